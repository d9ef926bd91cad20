#include "machine.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace sim {
bool traces = false;
static const bool traces_points = ::getenv("POINTS") != nullptr;

namespace {
constexpr std::size_t stack_size = 256 * 1024;
constexpr nanoseconds never = INT64_MAX;
constexpr nanoseconds tick = 200;                    // what passing a point takes
constexpr nanoseconds poll_error = 2 * millisecond;  // its time is rounded up
constexpr std::uint64_t max_steps = 2'000'000;
constexpr std::uint64_t first_priority = 1ULL << 40;
// What all fibers of all runs begin at; not 0, which the library takes for "never".
constexpr nanoseconds boot_time = 1000 * second;
constexpr nanoseconds epoch = 1'800'000'000 * second;

// What the compiler's run time keeps for each thread: the exceptions that are being handled.
struct exception_state {
    void* caught = nullptr;
    unsigned uncaught = 0;
};
exception_state& thread_exceptions() { return *reinterpret_cast<exception_state*>(abi::__cxa_get_globals()); }

// The program's thread_local variables, of which each fiber has a copy.
struct local_variables {
    char* at = nullptr;
    std::size_t size = 0;
    const void* initial = nullptr;  // without the zeros at its end
    std::size_t initial_size = 0;
};
const local_variables& locals() {
    static const local_variables found = [] {
        local_variables out;
        ::dl_iterate_phdr(
            [](dl_phdr_info* program, std::size_t, void* result) {
                auto& out = *static_cast<local_variables*>(result);
                for (int i = 0; i < program->dlpi_phnum; ++i) {
                    const auto& part = program->dlpi_phdr[i];
                    if (part.p_type != PT_TLS) continue;
                    out = {static_cast<char*>(program->dlpi_tls_data), part.p_memsz,
                           reinterpret_cast<const void*>(program->dlpi_addr + part.p_vaddr), part.p_filesz};
                }
                return 1;  // the program itself comes first
            },
            &out);
        return out;
    }();
    return found;
}

struct fiber {
    enum class state { ready, blocked, done };

    std::uint64_t id = 0;
    const char* name = "";
    std::function<void()> body;
    void* stack = nullptr;
    ucontext_t first{};
    jmp_buf place{};
    bool started = false;
    state is = state::ready;
    const void* waits_on = nullptr;
    const char* waits_for = "";
    nanoseconds until = never;
    bool timed_out = false, detached = false;
    std::uint64_t priority = 0;
    const void* probed_on = nullptr;   // woken for nothing: must wait for the same again
    nanoseconds probed_until = never;  // and as long
    int outside = 0;
    exception_state exceptions;
    int error_number = 0;
    std::vector<char> locals;
};

// The stacks of all runs, as making one takes longer than most runs do.
std::vector<void*> free_stacks;
void* take_stack() {
    if (free_stacks.empty()) {
        void* const made =
            ::mmap(nullptr, stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) std::abort();
        ::mprotect(made, 4096, PROT_NONE);
        return made;
    }
    void* const out = free_stacks.back();
    free_stacks.pop_back();
    return out;
}

class machine {
  public:
    explicit machine(const plan& how) : how_(how), choices_(how.seed), world_(how.seed ^ 0x5eed) {
        for (int i = 0; i < how.priority_changes; ++i) changes_.push_back(choices_.below(how.expected_steps));
    }

    ending run(const std::function<void()>& body) {
        start("main", body);
        thread_exceptions() = {};
        if (_setjmp(end_) == 0) go_on();
        result_.time = now;
        result_.steps = steps_;
        for (const auto& each : fibers_)  // the first one, and those that nobody joined
            if (each->is == fiber::state::done) free_stacks.push_back(each->stack);
        // What the others hold, perhaps with a locked mutex, is not destroyed.
        if (result_.how != ending::kind::returned) new std::vector<std::unique_ptr<fiber>>(std::move(fibers_));
        return result_;
    }

    std::uint64_t start(const char* name, std::function<void()> body) {
        auto made = std::make_unique<fiber>();
        made->id = ++last_id_;
        made->name = name;
        made->body = std::move(body);
        made->stack = take_stack();
        made->locals.resize(locals().size);
        made->priority = first_priority + choices_.below(1U << 20);
        if (late_threads > 0 && std::strcmp(name, "thread") == 0 && choices_.one_in(2)) {
            --late_threads;
            made->is = fiber::state::blocked;
            made->waits_for = "processor";
            made->until = now + static_cast<nanoseconds>(choices_.below(slowness));
            slow_until_ = std::max(slow_until_, made->until);
        }
        fibers_.push_back(std::move(made));
        woken_ = true;
        return last_id_;
    }

    void point(const char* what) {
        ++steps_;
        now += tick;
        if (traces_points) std::fprintf(stdout, "P %lu %s %s\n", steps_, running->name, what);
        if (steps_ > max_steps) end(ending::kind::too_many_steps, 0);
        running->waits_for = what;
        if (interrupt_ && choices_.one_in(8)) deliver();
        if (slow_threads > 0 && running->outside == 0 && choices_.one_in(500)) {
            --slow_threads;
            delay("processor", static_cast<nanoseconds>(choices_.below(slowness)));
        }
        if (wants_switch()) pass_on();
    }
    // In the middle of something.
    void delay(const char* what, nanoseconds time) {
        slow_until_ = std::max(slow_until_, now + time);
        end_probe();
        block(nullptr, what, now + time);
    }
    // At a point of any fiber; where none comes to one soon, here.
    void interrupt(std::function<void()> handler) {
        deliver();
        interrupt_ = std::move(handler);
        block(nullptr, "signal", now + 20 * tick);
        deliver();
    }

    // Blocks until wake() or the time; false: the time.
    bool block(const void* on, const char* what, nanoseconds until) {
        check_probed(on, what, until);
        running->is = fiber::state::blocked;
        running->waits_on = on;
        running->waits_for = what;
        running->until = until;
        running->timed_out = false;
        pass_on();
        return !running->timed_out;
    }
    void wake(const void* on, bool all) {
        for (const auto& each : fibers_)  // one that is probed just now is woken for something
            if (each.get() != running && each->probed_on == on) each->probed_on = nullptr;
        const auto waits = [on](const auto& each) { return each->is == fiber::state::blocked && each->waits_on == on; };
        const auto waiting = static_cast<std::uint64_t>(std::count_if(fibers_.begin(), fibers_.end(), waits));
        if (waiting == 0) return;
        std::uint64_t chosen = all ? 0 : choices_.below(waiting);
        for (const auto& each : fibers_)
            if (waits(each) && (all || chosen-- == 0)) make_ready(*each);
    }
    void yield() {
        running->priority = --lowest_priority_;  // with PCT, one that spins must not keep the others from running
        ++steps_;
        now += 50 * tick;  // else one that waits so for a thread without a processor passes too many points
        pass_on();
    }

    fiber* find(std::uint64_t id) {
        for (const auto& each : fibers_)
            if (each->id == id) return each.get();
        return nullptr;
    }
    void check_end() { check_probed(running, "its end", never); }
    void forget(std::uint64_t id) {
        const outside calm;
        const auto at = std::find_if(fibers_.begin(), fibers_.end(), [id](const auto& each) { return each->id == id; });
        if (at == fibers_.end()) return;
        free_stacks.push_back((*at)->stack);
        forgotten_ = std::move(*at);
        fibers_.erase(at);
    }

    [[noreturn]] void end(ending::kind how, int status) {
        running->outside = 1;
        result_.how = how;
        result_.status = status;
        if (how != ending::kind::returned) {
            for (const auto& each : fibers_)
                if (each->is != fiber::state::done)
                    result_.waiting += std::string("  ") + each->name + ": " + each->waits_for + "\n";
        }
        running = nullptr;
        _longjmp(end_, 1);
    }

    // What a fiber does because of the probe may wake others.
    void end_probe() {
        for (const auto& each : fibers_) each->probed_on = nullptr;
        to_probe_.clear();
    }

    random& world() { return world_; }
    std::string names() const { return running->name; }

    fiber* running = nullptr;
    nanoseconds now = 0, wall_offset = 0;
    int threads_to_start = -1;      // so many start, and one does not; -1: no limit
    bool threads_stay_out = false;  // none follows
    int late_threads = 0;
    int slow_threads = 0;       // so many times one stands still for a while
    random ids{7};              // of getentropy()
    int descriptors_left = -1;  // -1: no limit

  private:
    void deliver() {
        const std::function<void()> handler = std::exchange(interrupt_, nullptr);
        if (!handler) return;
        const int error_number = errno;
        const outside calm;
        handler();
        errno = error_number;
    }

    // Nothing can run for a while: each waiter is woken once, one after the other, and must find that it still has to
    // wait.
    bool probe() {
        // What a slow one was about to do may wake a waiter.
        if (next_timer_ - now < millisecond || slow_until_ > now) to_probe_.clear();
        if (to_probe_.empty() && !begin_probe()) return false;
        while (!to_probe_.empty()) {
            fiber* const one = find(to_probe_.back());
            to_probe_.pop_back();
            if (one == nullptr || !can_be_probed(*one)) continue;
            one->probed_on = one->waits_on;
            one->probed_until = one->until;
            make_ready(*one);
            return true;
        }
        return false;
    }
    bool begin_probe() {
        if (next_timer_ - now < millisecond || now < next_probe_ || !choices_.one_in(4)) return false;
        if (slow_until_ > now) return false;
        next_probe_ = next_timer_;
        for (const auto& each : fibers_)
            if (can_be_probed(*each)) to_probe_.push_back(each->id);
        return true;
    }
    bool can_be_probed(const fiber& one) const {
        const auto waits_for = [&one](const char* what) { return std::strcmp(one.waits_for, what) == 0; };
        const bool may_be_due = one.until - now < poll_error;
        return one.is == fiber::state::blocked && (waits_for("condition") || (waits_for("poll") && !may_be_due));
    }
    void check_probed(const void* on, const char* what, nanoseconds until) {
        if (running->probed_on == nullptr || std::strcmp(what, "mutex") == 0) return;
        // While one slot fetches, another may become the one that waits for the time of the next FETCH.
        const bool leads = std::strcmp(running->name, "ojs-job") == 0 && std::strcmp(what, "condition") == 0;
        // A slow thread adds to the time.
        const bool is_exact = std::strcmp(what, "poll") == 0 && slow_until_ == 0;
        const bool waits_again =
            on == running->probed_on && (!is_exact || std::abs(until - running->probed_until) < poll_error);
        if (!waits_again && !leads && result_.lost_wake_up.empty()) {
            result_.lost_wake_up = std::string(running->name) + ", which continues to " + what;
            note("it should have been woken; it waited until %f, now until %f",
                 static_cast<double>(running->probed_until) / second, static_cast<double>(until) / second);
        }
        running->probed_on = nullptr;
    }

    bool wants_switch() {
        if (result_.switches >= how_.switches) return false;
        if (how_.priority_changes < 0) return choices_.one_in(how_.switch_one_in);
        const auto change = std::find(changes_.begin(), changes_.end(), steps_);
        if (change != changes_.end())
            running->priority =
                first_priority - changes_.size() + static_cast<std::uint64_t>(change - changes_.begin());
        return change != changes_.end() || woken_ || now >= next_timer_;
    }

    void make_ready(fiber& one) {
        one.is = fiber::state::ready;
        one.waits_on = nullptr;
        one.until = never;
        woken_ = true;
    }

    // Null: none can ever run.
    fiber* choose() {
        for (;;) {
            next_timer_ = never;
            ready_.clear();
            for (const auto& each : fibers_) {
                if (each->is == fiber::state::blocked && each->until <= now) {
                    make_ready(*each);
                    each->timed_out = true;
                }
                if (each->is == fiber::state::ready) ready_.push_back(each.get());
                if (each->is == fiber::state::blocked) next_timer_ = std::min(next_timer_, each->until);
            }
            woken_ = false;
            if (!ready_.empty()) break;
            if (next_timer_ == never) return nullptr;
            if (probe()) continue;
            now = next_timer_;
        }
        if (result_.switches >= how_.switches) return ready_.front();
        if (how_.priority_changes < 0) return ready_[choices_.below(ready_.size())];
        return *std::max_element(ready_.begin(), ready_.end(),
                                 [](const fiber* a, const fiber* b) { return a->priority < b->priority; });
    }

    void pass_on() {
        fiber* const self = running;
        fiber* const next = choose();
        if (next == nullptr) end_without_fibers();
        if (next == self) return;
        ++result_.switches;
        self->exceptions = thread_exceptions();
        self->error_number = errno;
        std::copy(locals().at, locals().at + locals().size, self->locals.begin());
        if (_setjmp(self->place) == 0) resume(*next);
        thread_exceptions() = running->exceptions;
        std::copy(running->locals.begin(), running->locals.end(), locals().at);
        errno = running->error_number;
    }
    void end_without_fibers() {
        const bool done = std::all_of(fibers_.begin(), fibers_.end(),
                                      [](const auto& each) { return each->is == fiber::state::done; });
        end(done ? ending::kind::returned : ending::kind::deadlock, 0);
    }
    [[noreturn]] void go_on() {
        fiber* const next = choose();
        if (next == nullptr) end_without_fibers();
        resume(*next);
    }
    [[noreturn]] void resume(fiber& next) {
        running = &next;
        if (next.started) _longjmp(next.place, 1);
        next.started = true;
        thread_exceptions() = {};
        std::memset(locals().at, 0, locals().size);
        std::memcpy(locals().at, locals().initial, locals().initial_size);
        ::getcontext(&next.first);
        next.first.uc_stack.ss_sp = next.stack;
        next.first.uc_stack.ss_size = stack_size;
        next.first.uc_link = nullptr;
        ::makecontext(&next.first, enter, 0);
        ::setcontext(&next.first);
        std::abort();
    }
    static void enter();

    const plan how_;
    random choices_;
    random world_;
    std::vector<std::uint64_t> changes_;
    std::vector<std::unique_ptr<fiber>> fibers_;
    std::unique_ptr<fiber> forgotten_;  // the latest, which may still run
    std::vector<fiber*> ready_;
    std::uint64_t last_id_ = 0, steps_ = 0;
    nanoseconds next_timer_ = never;
    bool woken_ = false;
    nanoseconds next_probe_ = 0;
    std::vector<std::uint64_t> to_probe_;  // fibers
    nanoseconds slow_until_ = 0;
    std::uint64_t lowest_priority_ = first_priority / 2;
    std::function<void()> interrupt_;
    ending result_;
    jmp_buf end_{};
};

machine* current = nullptr;

void machine::enter() {
    machine& on = *current;
    on.running->body();
    fiber& self = *on.running;
    on.check_end();
    self.body = nullptr;
    self.is = fiber::state::done;
    self.waits_for = "nothing";
    on.wake(&self, true);                   // who joins it
    if (self.detached) on.forget(self.id);  // its stack is used until the next fiber runs, and nobody takes it before
    on.go_on();
}
}  // namespace

ending run(const plan& how, const std::function<void()>& body) {
    machine one(how);
    current = &one;
    const ending out = one.run(body);
    current = nullptr;
    return out;
}

bool is_running() noexcept { return current != nullptr && current->running != nullptr; }
void point(const char* what) {
    if (is_running()) current->point(what);
}
nanoseconds now() noexcept { return current != nullptr ? current->now : 0; }
void sleep_until(nanoseconds when) {
    if (is_running()) current->block(nullptr, "sleep", when);
}
random& dice() noexcept {
    static random none;
    return current != nullptr ? current->world() : none;
}
void start(const char* name, std::function<void()> body) {
    const outside calm;
    const std::uint64_t id = current->start(name, std::move(body));
    current->find(id)->detached = true;
}
void jump_wall_clock(nanoseconds by) noexcept {
    if (current != nullptr) current->wall_offset += by;
}
void stand_still(nanoseconds time) noexcept {
    if (current == nullptr) return;
    current->now += time;
    current->end_probe();
}
void interrupt(std::function<void()> handler) {
    if (is_running()) current->interrupt(std::move(handler));
}
void allow_early(const char* name) noexcept {
    if (is_running() && current->running->probed_on != nullptr && std::strcmp(current->running->name, name) == 0)
        current->end_probe();
}
void fail_thread(int after, bool all) noexcept {
    if (current == nullptr) return;
    current->threads_to_start = after;
    current->threads_stay_out = all;
}
void late_threads(int count) noexcept {
    if (current != nullptr) current->late_threads = count;
}
void slow_threads(int count) noexcept {
    if (current != nullptr) current->slow_threads = count;
}
void fail_descriptors(int after) noexcept {
    if (current != nullptr) current->descriptors_left = after;
}

namespace {
bool takes_descriptor() noexcept {
    if (!is_running() || current->running->outside > 0 || current->descriptors_left < 0) return true;
    if (current->descriptors_left > 0) return --current->descriptors_left, true;
    errno = EMFILE;
    return false;
}
int no_fiber;
}  // namespace
outside::outside() noexcept : depth_(is_running() ? &current->running->outside : &no_fiber) { ++*depth_; }
outside::~outside() { --*depth_; }
void note(const char* format, ...) {
    if (!traces) return;
    std::printf("%10.6f %-14s ", static_cast<double>(now()) / second, is_running() ? current->names().c_str() : "");
    va_list values;
    va_start(values, format);
    std::vprintf(format, values);
    va_end(values);
    std::printf("\n");
}

namespace {
// What the library's mutexes, conditions and locks hold in place of the C library's. All zero where they are new.
struct sim_mutex {
    std::uint64_t owner;  // fiber; 0: free
};
struct sim_rwlock {
    std::uint64_t writer, readers;
};
sim_mutex& of(pthread_mutex_t* native) { return *reinterpret_cast<sim_mutex*>(native); }
sim_rwlock& of(pthread_rwlock_t* native) { return *reinterpret_cast<sim_rwlock*>(native); }
constexpr std::uint64_t no_thread = ~0U;  // who locks before or after a run

std::uint64_t self() { return is_running() ? current->running->id : no_thread; }

void lock(pthread_mutex_t* native) {
    sim_mutex& one = of(native);
    point("lock");
    while (one.owner != 0) {
        if (!is_running()) std::abort();  // left locked by a run that was given up
        current->block(native, "mutex", never);
    }
    one.owner = self();
}
void unlock(pthread_mutex_t* native) {
    of(native).owner = 0;
    if (is_running()) current->wake(native, true);
    point("unlock");
}

nanoseconds time_of(const timespec& value) { return value.tv_sec * second + value.tv_nsec; }
nanoseconds clock_value(clockid_t clock) {
    return clock == CLOCK_REALTIME ? epoch + now() + current->wall_offset : boot_time + now();
}

// False at the time, of the monotonic clock.
bool wait_for(pthread_cond_t* condition, pthread_mutex_t* held, nanoseconds until) {
    point("wait");  // between the check and the wait; another may notify it here, though not with the mutex
    of(held).owner = 0;
    current->wake(held, true);
    const bool spurious = dice().one_in(500);
    const bool woken = spurious || current->block(condition, "condition", until);
    lock(held);
    return woken;
}

// One timer, as the library has: it sends its signal a second after it was set.
struct {
    int id = 0;  // 0: none
    sigevent event{};
} timer;
long create_timer(const sigevent* event, int* id) {
    const outside calm;
    timer.event = *event;
    *id = ++timer.id;
    return 0;
}
long set_timer(int id) {
    const outside calm;
    start("timer", [id] {
        sleep_for(second);
        struct sigaction action {};
        ::sigaction(timer.event.sigev_signo, nullptr, &action);
        if (timer.id != id || (action.sa_flags & SA_SIGINFO) == 0) return;
        siginfo_t info{};
        info.si_signo = timer.event.sigev_signo;
        info.si_code = SI_TIMER;
        info.si_value = timer.event.sigev_value;
        action.sa_sigaction(info.si_signo, &info, nullptr);
    });
    return 0;
}
long delete_timer(int) {
    ++timer.id;
    return 0;
}
}  // namespace
}  // namespace sim

// ---- in place of the C library's ----

using sim::current;
using sim::is_running;

extern "C" {

int pthread_mutex_init(pthread_mutex_t* native, const pthread_mutexattr_t*) noexcept {
    std::memset(native, 0, sizeof *native);
    return 0;
}
int pthread_mutex_destroy(pthread_mutex_t*) noexcept { return 0; }
int pthread_mutex_lock(pthread_mutex_t* native) noexcept {
    sim::lock(native);
    return 0;
}
int pthread_mutex_trylock(pthread_mutex_t* native) noexcept {
    sim::point("trylock");
    if (sim::of(native).owner != 0) return EBUSY;
    sim::of(native).owner = sim::self();
    return 0;
}
int pthread_mutex_unlock(pthread_mutex_t* native) noexcept {
    sim::unlock(native);
    return 0;
}

int pthread_cond_init(pthread_cond_t*, const pthread_condattr_t*) noexcept { return 0; }
int pthread_cond_destroy(pthread_cond_t*) noexcept { return 0; }
int pthread_cond_wait(pthread_cond_t* native, pthread_mutex_t* held) {
    if (!is_running()) std::abort();
    sim::wait_for(native, held, sim::never);
    return 0;
}
int pthread_cond_timedwait(pthread_cond_t* native, pthread_mutex_t* held, const timespec* until) {
    if (!is_running()) std::abort();
    return sim::wait_for(native, held, sim::time_of(*until) - sim::boot_time) ? 0 : ETIMEDOUT;
}
int pthread_cond_signal(pthread_cond_t* native) noexcept {
    if (is_running()) current->wake(native, false);
    sim::point("notify");
    return 0;
}
int pthread_cond_broadcast(pthread_cond_t* native) noexcept {
    if (is_running()) current->wake(native, true);
    sim::point("notify");
    return 0;
}

int pthread_rwlock_destroy(pthread_rwlock_t*) noexcept { return 0; }
int pthread_rwlock_wrlock(pthread_rwlock_t* native) noexcept {
    sim::point("write lock");
    sim::sim_rwlock& one = sim::of(native);
    while (one.writer != 0 || one.readers != 0) current->block(native, "rwlock", sim::never);
    one.writer = sim::self();
    return 0;
}
int pthread_rwlock_rdlock(pthread_rwlock_t* native) noexcept {
    sim::point("read lock");
    sim::sim_rwlock& one = sim::of(native);
    while (one.writer != 0) current->block(native, "rwlock", sim::never);
    ++one.readers;
    return 0;
}
int pthread_rwlock_unlock(pthread_rwlock_t* native) noexcept {
    sim::sim_rwlock& one = sim::of(native);
    one.writer != 0 ? one.writer = 0 : --one.readers;
    if (is_running()) current->wake(native, true);
    sim::point("unlock");
    return 0;
}

int pthread_create(pthread_t* out, const pthread_attr_t*, void* (*body)(void*), void* argument) noexcept {
    sim::point("create");
    if (!is_running()) std::abort();
    if (current->threads_to_start == 0) {
        if (!current->threads_stay_out) current->threads_to_start = -1;
        return EAGAIN;
    }
    if (current->threads_to_start > 0) --current->threads_to_start;
    const sim::outside calm;
    *out = current->start("thread", [body, argument] { body(argument); });
    return 0;
}
int pthread_join(pthread_t id, void**) {
    sim::point("join");
    sim::fiber* const one = current->find(id);
    if (one == nullptr) std::abort();
    while (one->is != sim::fiber::state::done) current->block(one, "join", sim::never);
    current->forget(id);
    return 0;
}
int pthread_tryjoin_np(pthread_t id, void**) noexcept {
    sim::point("join");
    sim::fiber* const one = current->find(id);
    if (one == nullptr) std::abort();
    if (one->is != sim::fiber::state::done) return EBUSY;
    current->forget(id);
    return 0;
}
int pthread_detach(pthread_t id) noexcept {
    sim::point("detach");
    sim::fiber* const one = current->find(id);
    if (one == nullptr) std::abort();
    one->detached = true;
    if (one->is == sim::fiber::state::done) current->forget(id);
    return 0;
}
pthread_t pthread_self() noexcept { return sim::self(); }
int pthread_setname_np(pthread_t id, const char* name) noexcept {
    if (!is_running()) return 0;
    const sim::outside calm;
    static std::vector<std::string*> names;  // a few, and they last
    for (const std::string* each : names)
        if (*each == name) return current->find(id)->name = each->c_str(), 0;
    names.push_back(new std::string(name));
    current->find(id)->name = names.back()->c_str();
    return 0;
}
int pthread_sigmask(int, const sigset_t*, sigset_t* before) noexcept {
    if (before != nullptr) std::memset(before, 0, sizeof *before);
    return 0;
}

int sched_yield() noexcept {
    if (is_running()) current->yield();
    return 0;
}
int nanosleep(const timespec* time, timespec*) {
    if (is_running()) current->delay("nanosleep", sim::time_of(*time));
    return 0;
}
int clock_gettime(clockid_t clock, timespec* out) noexcept {
    if (!is_running()) return static_cast<int>(::syscall(SYS_clock_gettime, clock, out));
    sim::point("clock");
    const sim::nanoseconds value = sim::clock_value(clock);
    out->tv_sec = value / sim::second;
    out->tv_nsec = value % sim::second;
    return 0;
}
int getentropy(void* out, std::size_t size) {
    if (!is_running()) return static_cast<int>(::syscall(SYS_getrandom, out, size, 0)) < 0 ? -1 : 0;
    for (std::size_t i = 0; i < size; ++i)
        static_cast<unsigned char*>(out)[i] = static_cast<unsigned char>(current->ids.next() >> 32);
    return 0;
}

int pipe(int* ends) noexcept { return sim::takes_descriptor() ? static_cast<int>(::syscall(SYS_pipe2, ends, 0)) : -1; }

// What makes a descriptor ready is a write() of this process.
int poll(pollfd* watched, nfds_t count, int timeout) {
    if (!is_running()) return static_cast<int>(::syscall(SYS_poll, watched, count, timeout));
    sim::point("poll");
    const bool is_forever = timeout < 0 || timeout == INT_MAX;
    const sim::nanoseconds until = is_forever ? sim::never : current->now + timeout * sim::millisecond;
    for (;;) {
        const int ready = static_cast<int>(::syscall(SYS_poll, watched, count, 0));
        if (ready != 0 || current->now >= until) return ready;
        current->block(&sim::current, count == 0 ? "sleep" : "poll", until);
        if (current->running->probed_on != nullptr) return watched->revents = watched->events, 1;
    }
}
ssize_t write(int fd, const void* bytes, std::size_t size) {
    sim::point("write");
    if (is_running() && fd == STDERR_FILENO && !sim::traces) return static_cast<ssize_t>(size);
    const ssize_t out = ::syscall(SYS_write, fd, bytes, size);
    if (is_running() && out < 0 && errno == EBADF) std::abort();  // it was closed before
    if (is_running()) current->wake(&sim::current, true);
    return out;
}

// The timer that ends a process after its third stop signal.
long syscall(long number, ...) noexcept {
    va_list given;
    va_start(given, number);
    long values[6];
    for (long& each : values) each = va_arg(given, long);
    va_end(given);
    if (is_running() && number == SYS_timer_create)
        return sim::create_timer(reinterpret_cast<sigevent*>(values[1]), reinterpret_cast<int*>(values[2]));
    if (is_running() && number == SYS_timer_settime) return sim::set_timer(static_cast<int>(values[0]));
    if (is_running() && number == SYS_timer_delete) return sim::delete_timer(static_cast<int>(values[0]));
    static const auto next = reinterpret_cast<long (*)(long, ...)>(::dlsym(RTLD_NEXT, "syscall"));
    return next(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

pid_t getpid() noexcept { return is_running() ? 1000 : static_cast<pid_t>(::syscall(SYS_getpid)); }
int pause() {
    for (;;) current->block(nullptr, "pause", sim::never);
}
int kill(pid_t, int number) noexcept {
    if (is_running()) current->end(sim::ending::kind::exited, 128 + number);
    std::abort();
}
void _exit(int status) {
    if (is_running()) current->end(sim::ending::kind::exited, status);
    for (;;) ::syscall(SYS_exit_group, status);
}

}  // extern "C"
