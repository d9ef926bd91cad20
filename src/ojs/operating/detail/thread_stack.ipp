// thread_stack: where another thread of this process is, for a log about a job that does not return.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../core/detail/wake.hpp"
#include "../../core/signals.ipp"
#include "../operating.hpp"

#if OJS_SHUTDOWN_USE_UNWIND
#include <link.h>
#include <unwind.h>
#endif

namespace ojs::detail {

#if OJS_SHUTDOWN_USE_UNWIND

// One request at a time. All of it is static: a thread that answers late must find it still there.
struct stack_request {
    enum state : int { idle, preparing, requested, writing, late, written };
    static constexpr int max_frames = 48;

    atomic<int> current{idle};
    atomic<int> abandoned{0};  // requests whose signal has not been seen yet
    // Written before `wanted`, and kept.
    pthread_t thread{};
    wake* answered = nullptr;
    pid_t owner = 0;  // whose `answered` is: a forked child must not be woken by its parent's
    // Written before `written`.
    int count = 0;
    std::uintptr_t frames[max_frames] = {};
};
__attribute__((visibility("default"))) inline stack_request requested_stack;

inline _Unwind_Reason_Code note_frame(struct _Unwind_Context* context, void* request) {
    auto* out = static_cast<stack_request*>(request);
    const std::uintptr_t address = _Unwind_GetIP(context);
    if (address == 0 || out->count == stack_request::max_frames) return _URC_END_OF_STACK;
    out->frames[out->count++] = address;
    return _URC_NO_REASON;
}
inline _Unwind_Reason_Code ojs_shutdown_skip_frame(struct _Unwind_Context* /*context*/, void* /*request*/) {
    return _URC_END_OF_STACK;
}

// A request that was given up is still a request, and no wish for a report.
inline bool forget_abandoned() noexcept {
    int left = requested_stack.abandoned.load();
    while (left > 0 && !requested_stack.abandoned.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
}

inline bool on_stack_signal(const siginfo_t* info) noexcept {
    if (info->si_code != SI_TKILL || info->si_pid != getpid()) return false;
    int expected = stack_request::requested;
    if (requested_stack.current.load() != expected ||
        !pthread_equal(requested_stack.thread, pthread_self()) ||
        !requested_stack.current.compare_exchange_strong(expected, stack_request::writing)) {
        return forget_abandoned();
    }
    requested_stack.count = 0;
    _Unwind_Backtrace(note_frame, &requested_stack);
    expected = stack_request::writing;
    if (requested_stack.current.compare_exchange_strong(expected, stack_request::written)) {
        requested_stack.answered->notify();
    } else {
        requested_stack.current.store(stack_request::idle);  // too late: nobody reads it
    }
    return true;
}

inline void forget_stack_requests() noexcept {
    requested_stack.current.store(stack_request::idle);
    requested_stack.abandoned.store(0);
}

inline constexpr thread_request stack_requests = {on_stack_signal, forget_stack_requests};

inline std::string hex(std::uintptr_t number) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(number));
    return text;
}

// The module an address is in, and its place there as addr2line wants it.
struct module_search {
    std::uintptr_t address;
    std::string* out;
};

inline int find_module(struct dl_phdr_info* module, std::size_t /*size*/, void* search) {
    const auto* requested = static_cast<module_search*>(search);
    for (int i = 0; i < module->dlpi_phnum; ++i) {
        const auto& part = module->dlpi_phdr[i];
        const std::uintptr_t from = module->dlpi_addr + part.p_vaddr;
        if (part.p_type != PT_LOAD || requested->address < from || requested->address >= from + part.p_memsz)
            continue;
        std::string_view name = module->dlpi_name == nullptr ? "" : module->dlpi_name;
        // The program itself has no name in glibc, and in static programs of musl this one.
        if (name == "/proc/self/exe") name = {};
        name.remove_prefix(name.rfind('/') + 1);
        append(*requested->out,
               {name.empty() ? "program" : name, "+", hex(requested->address - module->dlpi_addr)});
        return 1;
    }
    return 0;
}

inline std::string format_stack() {
    std::string out;
    for (int i = 0; i < requested_stack.count; ++i) {
        if (i > 0) out += ' ';
        module_search search = {requested_stack.frames[i], &out};
        if (dl_iterate_phdr(find_module, &search) == 0) append(out, {hex(requested_stack.frames[i])});
    }
    return out;
}

// True: answered. At the deadline a request is taken back, or freed by the answer under way.
inline bool await_stack(time_point deadline) {
    while (requested_stack.current.load() != stack_request::written) {
        if (requested_stack.answered->wait_until(deadline)) continue;
        int expected = stack_request::requested;
        requested_stack.abandoned.fetch_add(1);
        if (requested_stack.current.compare_exchange_strong(expected, stack_request::idle)) return false;
        requested_stack.abandoned.fetch_sub(1);
        expected = stack_request::writing;
        if (requested_stack.current.compare_exchange_strong(expected, stack_request::late)) return false;
    }
    return true;
}

// Whether the signal would come to us: to the handler of this very code, as another library of the process may have
// its own.
inline bool handles_signal() noexcept {
    struct sigaction current {};
    return ::sigaction(SIGTTIN, nullptr, &current) == 0 && is_ours(current);
}

// Whether the answer would be heard.
inline bool prepare_wake() {
    if (requested_stack.answered != nullptr && requested_stack.owner == getpid()) return true;
    result<wake> made = wake::create();
    if (!made) return false;
    delete detail::exchange(requested_stack.answered, new wake(std::move(*made)));
    requested_stack.owner = getpid();
    return true;
}

inline bool request_stack(pthread_t thread, time_point deadline) {
    _Unwind_Backtrace(ojs_shutdown_skip_frame,
                      nullptr);  // what it loads at first, it shall not load in a handler
    requested_stack.answered->clear();
    requested_stack.thread = thread;
    requested_stack.current.store(stack_request::requested);
    if (pthread_kill(thread, SIGTTIN) == 0) return await_stack(deadline);
    requested_stack.current.store(stack_request::idle);
    return false;
}

// The return addresses on the stack of a living thread: "program+0x1234 libc.so.6+0x5678 ...", innermost
// first, for addr2line -e PROGRAM 0x1234. Sends it a SIGTTIN, which ends a sleep() or poll() early. Empty at
// the deadline, without installed signals or an unwinder, and while another request is under way.
// Thread-safe.
inline std::string capture_stack(pthread_t thread, time_point deadline) {
    if (!handles_signal()) return {};
    process.asks_threads.store(
        &stack_requests);  // before the request: a fork meanwhile makes the child forget it
    int expected = stack_request::idle;
    if (!requested_stack.current.compare_exchange_strong(expected, stack_request::preparing)) return {};
    if (!prepare_wake()) {
        requested_stack.current.store(stack_request::idle);
        return {};
    }
    if (!request_stack(thread, deadline)) return {};
    std::string out = format_stack();
    requested_stack.current.store(stack_request::idle);
    return out;
}

#else

inline std::string capture_stack(pthread_t /*thread*/, time_point /*deadline*/) {
    return {};
}

#endif  // OJS_SHUTDOWN_USE_UNWIND

}  // namespace ojs::detail
