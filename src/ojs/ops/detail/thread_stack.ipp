// thread_stack: the stack of another thread of this process, to log where a stuck job hangs.
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
#include "../ops.hpp"

#if OJS_SHUTDOWN_USE_UNWIND
#include <link.h>
#include <unwind.h>
#endif

namespace ojs::detail {

#if OJS_SHUTDOWN_USE_UNWIND

// One request at a time. Static, so that it still exists for a thread that answers late.
struct stack_request {
    enum state : int { idle, preparing, requested, writing, late, written };
    static constexpr int max_frames = 48;

    atomic<int> current{idle};
    atomic<int> abandoned{0};  // requests whose signal has not arrived yet
    // Written before `requested`, and kept.
    pthread_t thread{};
    wake* answered = nullptr;
    std::uint32_t owner = 0;  // process of `answered`: a forked child must not use its parent's
    // Written before `written`.
    int count = 0;
    std::uintptr_t frames[max_frames] = {};
};
__attribute__((visibility("default"))) inline stack_request stack_slot;

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

// The late signal of an abandoned request must not count as an operator's SIGTTIN.
inline bool take_abandoned() noexcept {
    int left = stack_slot.abandoned.load();
    while (left > 0 && !stack_slot.abandoned.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
}

inline bool on_stack_signal(const siginfo_t* info) noexcept {
    if (info->si_code != SI_TKILL || info->si_pid != getpid()) return false;
    int expected = stack_request::requested;
    if (stack_slot.current.load() != expected || !pthread_equal(stack_slot.thread, pthread_self()) ||
        !stack_slot.current.compare_exchange_strong(expected, stack_request::writing)) {
        return take_abandoned();
    }
    stack_slot.count = 0;
    _Unwind_Backtrace(note_frame, &stack_slot);
    expected = stack_request::writing;
    if (stack_slot.current.compare_exchange_strong(expected, stack_request::written)) {
        stack_slot.answered->notify();
    } else {
        stack_slot.current.store(stack_request::idle);  // too late: no reader
    }
    return true;
}

inline void forget_stack_requests() noexcept {
    stack_slot.current.store(stack_request::idle);
    stack_slot.abandoned.store(0);
}

inline constexpr thread_request stack_requests = {on_stack_signal, forget_stack_requests};

inline std::string hex(std::uintptr_t number) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(number));
    return text;
}

inline std::string program_path() {
    char path[512];
    const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
    return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : "program";
}

// Finds the module of an address, and the offset there for addr2line.
struct module_search {
    std::uintptr_t address;
    std::string module;  // that of the address before; then that of this one
    std::string* out;
};

inline int find_module(struct dl_phdr_info* module, std::size_t /*size*/, void* search) {
    auto* requested = static_cast<module_search*>(search);
    for (int i = 0; i < module->dlpi_phnum; ++i) {
        const auto& part = module->dlpi_phdr[i];
        const std::uintptr_t from = module->dlpi_addr + part.p_vaddr;
        if (part.p_type != PT_LOAD || requested->address < from || requested->address >= from + part.p_memsz)
            continue;
        std::string_view name = module->dlpi_name == nullptr ? "" : module->dlpi_name;
        // The program itself has no name in glibc, and in static programs of musl this one.
        if (name == "/proc/self/exe") name = {};
        const std::string path = name.empty() ? program_path() : std::string(name);
        std::string& out = *requested->out;
        if (path != requested->module) append(out, {out.empty() ? "" : "; ", path});
        append(out, {" ", hex(requested->address - module->dlpi_addr)});
        requested->module = path;
        return 1;
    }
    return 0;
}

inline std::string format_stack() {
    std::string out;
    module_search search = {0, "", &out};
    for (int i = 0; i < stack_slot.count; ++i) {
        search.address = stack_slot.frames[i];
        if (dl_iterate_phdr(find_module, &search) == 0) append(out, {" ", hex(search.address)});
    }
    return out;
}

// True: answered. At the deadline the request is withdrawn, or an answer in progress frees it.
inline bool await_stack(time_point deadline) {
    while (stack_slot.current.load() != stack_request::written) {
        if (stack_slot.answered->wait_until(deadline)) continue;
        int expected = stack_request::requested;
        stack_slot.abandoned.fetch_add(1);
        if (stack_slot.current.compare_exchange_strong(expected, stack_request::idle)) return false;
        stack_slot.abandoned.fetch_sub(1);
        expected = stack_request::writing;
        if (stack_slot.current.compare_exchange_strong(expected, stack_request::late)) return false;
    }
    return true;
}

// Whether SIGTTIN would reach this very handler: another library of the process may have its own.
inline bool handles_signal() noexcept {
    struct sigaction current {};
    return ::sigaction(SIGTTIN, nullptr, &current) == 0 && is_ours(current);
}

inline bool prepare_wake() {
    if (stack_slot.answered != nullptr && stack_slot.owner == fork_generation()) return true;
    result<wake> made = wake::create();
    if (!made) return false;
    delete detail::exchange(stack_slot.answered, new wake(std::move(*made)));
    stack_slot.owner = fork_generation();
    return true;
}

inline bool request_and_await_stack(pthread_t thread, time_point deadline) {
    _Unwind_Backtrace(ojs_shutdown_skip_frame, nullptr);  // loads its libraries here, not in the handler
    stack_slot.answered->clear();
    stack_slot.thread = thread;
    stack_slot.current.store(stack_request::requested);
    if (pthread_kill(thread, SIGTTIN) == 0) return await_stack(deadline);
    stack_slot.current.store(stack_request::idle);
    return false;
}

// The return addresses on the stack of a live thread, innermost first, as the arguments of one addr2line -e a module:
// "/app/worker 0x1234 0x5678; /lib/libc.so.6 0x9abc". Sends it a SIGTTIN, which ends a sleep() or poll() early. Empty at the deadline,
// without installed signals or an unwinder, and during another request. Thread-safe.
inline std::string capture_stack(pthread_t thread, time_point deadline) {
    if (!handles_signal()) return {};
    process.thread_request_handler.store(&stack_requests);  // first: a child forked later forgets it
    int expected = stack_request::idle;
    if (!stack_slot.current.compare_exchange_strong(expected, stack_request::preparing)) return {};
    if (!prepare_wake()) {
        stack_slot.current.store(stack_request::idle);
        return {};
    }
    if (!request_and_await_stack(thread, deadline)) return {};
    std::string out = format_stack();
    stack_slot.current.store(stack_request::idle);
    return out;
}

#else

inline std::string capture_stack(pthread_t /*thread*/, time_point /*deadline*/) {
    return {};
}

#endif  // OJS_SHUTDOWN_USE_UNWIND

}  // namespace ojs::detail
