// What the library takes from a process. Prints a line for each change of it: "before: ...", "runs: ..." while a worker, a
// loop or the core alone runs, "after: ...", each with threads (name/KiB of stack), descriptors by kind, handled signals,
// blocked ones of the main thread, and the bytes that operator new has given out. Not those that it began with.
//
//     footprint core|loop|worker SLOTS    the worker is configured from the environment
//
// Jobs: test.gate [PATH]  returns once the file exists
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <ojs_shutdown.hpp>

namespace {

std::atomic<std::size_t> held{0};
constexpr std::size_t front = alignof(std::max_align_t);  // of each block: its size

}  // namespace

void* operator new(std::size_t size) {
    void* const block = std::malloc(front + size);
    if (block == nullptr) std::abort();
    *static_cast<std::size_t*>(block) = size;
    held.fetch_add(size);
    return static_cast<char*>(block) + front;
}
void operator delete(void* given) noexcept {
    if (given == nullptr) return;
    void* const block = static_cast<char*>(given) - front;
    held.fetch_sub(*static_cast<std::size_t*>(block));
    std::free(block);
}
void operator delete(void* given, std::size_t) noexcept {
    operator delete(given);
}

namespace {

// No memory of operator new here: it is what is counted.
class word_list {
  public:
    void add(const char* word) {
        if (count_ < max_words) std::snprintf(words_[count_++], sizeof words_[0], "%s", word);
    }
    // "a*3 b": sorted, with counts.
    void print(char*& to, const char* end) {
        std::sort(order_, order_ + count_,
                  [&](int a, int b) { return std::strcmp(words_[a], words_[b]) < 0; });
        for (int i = 0, next = 0; i < count_; i = next) {
            while (next < count_ && std::strcmp(word(i), word(next)) == 0) ++next;
            const auto room = static_cast<std::size_t>(end - to);
            const int length = next - i > 1 ? std::snprintf(to, room, " %s*%d", word(i), next - i)
                                            : std::snprintf(to, room, " %s", word(i));
            to += std::min(room - 1, static_cast<std::size_t>(length));
        }
    }
    word_list() {
        for (int i = 0; i < max_words; ++i) order_[i] = i;
    }

  private:
    static constexpr int max_words = 512;
    const char* word(int at) const { return words_[order_[at]]; }
    char words_[max_words][48];
    int order_[max_words];
    int count_ = 0;
};

// ---- threads ----

struct started {
    void* (*body)(void*);
    void* argument;
};
struct known_thread {
    std::atomic<long> id{0};
    std::atomic<std::size_t> stack{0};
};
known_thread known[1024];
std::atomic<int> known_count{0};

long thread_id() {
    return ::syscall(SYS_gettid);
}

void* run_started(void* given) {
    const started start = *static_cast<started*>(given);
    std::free(given);
    pthread_attr_t attributes;
    std::size_t stack = 0;
    void* at = nullptr;
    ::pthread_getattr_np(::pthread_self(), &attributes);
    ::pthread_attr_getstack(&attributes, &at, &stack);
    ::pthread_attr_destroy(&attributes);
    known_thread& mine = known[known_count.fetch_add(1) % 1024];
    mine.stack = stack;
    mine.id = thread_id();
    return start.body(start.argument);
}

}  // namespace

extern "C" int pthread_create(pthread_t* out, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
    using function = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static auto* const original = reinterpret_cast<function*>(::dlsym(RTLD_NEXT, "pthread_create"));
    auto* const start = static_cast<started*>(std::malloc(sizeof(started)));
    if (start == nullptr) return ENOMEM;
    *start = {body, argument};
    const int failed = original(out, attributes, run_started, start);
    if (failed != 0) std::free(start);
    return failed;
}

namespace {

std::atomic<long> observer{0};

template <class Visit>
void each_name(const char* folder, Visit visit) {
    DIR* const opened = ::opendir(folder);
    if (opened == nullptr) return;
    while (const dirent* const entry = ::readdir(opened)) {
        const int number = std::atoi(entry->d_name);
        if (entry->d_name[0] != '.' && number != ::dirfd(opened)) visit(entry->d_name, number);
    }
    ::closedir(opened);
}

void add_thread(word_list& to, const char* task) {
    const long id = std::atol(task);
    if (id == observer || id == ::getpid()) return;
    char path[64];
    char name[32] = "";
    std::snprintf(path, sizeof path, "/proc/self/task/%s/comm", task);
    if (std::FILE* const file = std::fopen(path, "r")) {
        if (std::fgets(name, sizeof name, file) != nullptr) name[std::strcspn(name, "\n")] = '\0';
        std::fclose(file);
    }
    std::size_t stack = 0;
    for (const known_thread& each : known) {
        if (each.id == id) stack = each.stack;
    }
    char word[48];
    std::snprintf(word, sizeof word, "%s/%zu", name, stack / 1024);
    if (name[0] != '\0') to.add(word);  // else it has ended
}

// What the process began with, which is not counted; a sanitizer handles signals.
bool inherited[1024];
bool handled_before[NSIG];

void add_descriptor(word_list& to, int number) {
    char path[64];
    char target[256] = "";
    if (number < 1024 && inherited[number]) return;
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", number);
    if (::readlink(path, target, sizeof target - 1) < 0) return;
    target[std::strcspn(target, ":")] = target[0] == '/' ? '\0' : ':';
    char* const kind = std::strchr(target, '[');  // anon_inode:[eventfd], socket:[123]
    if (kind != nullptr && std::strncmp(target, "anon_inode", 10) != 0) kind[-1] = '\0';
    to.add(kind != nullptr && std::strncmp(target, "anon_inode", 10) == 0 ? kind : target);
}

void add_signals(word_list& to) {
    for (int number = 1; number < NSIG; ++number) {
        struct sigaction action {};
        if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_DFL) continue;
        if (handled_before[number]) continue;
        char word[16];
        std::snprintf(word, sizeof word, "%d", number);
        to.add(word);
    }
}

int blocked_count() {
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    int out = 0;
    for (int number = 1; number < NSIG; ++number) out += ::sigismember(&mask, number) == 1 ? 1 : 0;
    return out;
}

void describe(char* to, std::size_t size) {
    static word_list threads, descriptors, handled;
    threads = word_list();
    descriptors = word_list();
    handled = word_list();
    each_name("/proc/self/task", [](const char* name, int) { add_thread(threads, name); });
    each_name("/proc/self/fd", [](const char*, int number) { add_descriptor(descriptors, number); });
    add_signals(handled);
    const char* const end = to + size;
    for (const auto& [label, list] :
         {std::pair{"threads", &threads}, {"; descriptors", &descriptors}, {"; signals", &handled}}) {
        to += std::snprintf(to, static_cast<std::size_t>(end - to), "%s", label);
        list->print(to, end);
    }
}

void print_state(const char* when) {
    static char text[8192];
    describe(text, sizeof text);
    std::printf("%s: %s; blocked %d; heap %zu\n", when, text, blocked_count(), held.load());
    std::fflush(stdout);
}

std::atomic<bool> ends{false};

void* observe(void*) {
    observer = thread_id();
    static char last[8192], now[8192];
    while (!ends) {
        describe(now, sizeof now);
        const bool same = std::strcmp(now, last) == 0;
        std::memcpy(last, now, sizeof last);
        if (!same) std::printf("runs: %s; heap %zu\n", now, held.load());
        if (!same) std::fflush(stdout);
        ::usleep(2000);
    }
    return nullptr;
}

// ---- what runs ----

constexpr std::size_t stack_size = 1024 * 1024;  // not the default, which is that of `ulimit -s`

int run_core() {
    ojs::lifecycle lifecycle;
    auto installed = ojs::signals::install(lifecycle);
    if (!installed) return 98;
    ojs::drain_barrier barrier;
    while (lifecycle.phase() == ojs::phase::running) static_cast<void>(installed->wait());
    barrier.close();
    return barrier.wait_until(ojs::deadline_after(std::chrono::seconds(1))) == 0 ? 0 : 75;
}

int run_loop(std::size_t slots) {
    ojs::loop_options options;
    options.thread_stack_size = stack_size;
    ojs::loop loop(options);
    loop.consumers(slots, [](ojs::slot& slot) {
        while (slot.next()) static_cast<void>(slot.taking().sleep_for(std::chrono::hours(1)));
    });
    return loop.run();
}

int run_worker() {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    options->thread_stack_size = stack_size;
    ojs::worker worker(*options);
    worker.register_handler("test.gate", [](ojs::job_context& job) {
        const auto path = job.arg<std::string>(0);
        while (::access(path->c_str(), F_OK) != 0) {
            if (!job.sleep_for(std::chrono::milliseconds(2))) return;
        }
    });
    return worker.run();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 64;
    for (int number = 0; number < 1024; ++number) inherited[number] = ::fcntl(number, F_GETFD) >= 0;
    for (int number = 1; number < NSIG; ++number) {
        struct sigaction action {};
        handled_before[number] = ::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_DFL;
    }
    print_state("before");
    pthread_t watching;
    if (::pthread_create(&watching, nullptr, observe, nullptr) != 0) return 98;
    const std::string what = argv[1];
    const auto slots = static_cast<std::size_t>(std::atoi(argv[2]));
    const int status = what == "core" ? run_core() : what == "loop" ? run_loop(slots) : run_worker();
    ends = true;
    ::pthread_join(watching, nullptr);
    ojs::detail::flush_log();
    print_state("after");
    return status;
}
