// signals: dispositions claimed and restored, waits, storms, forks.
#ifdef __linux__
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#endif

#include "dispositions.hpp"

using test::claim;
using test::disposition_of;
using test::send_self;
using test::with_disposition;

namespace {
constexpr int claimed[] = {SIGTERM, SIGINT, SIGTSTP, SIGCONT, SIGTTIN};

time_point guard() { return deadline_after(test::hang_guard); }
time_point passed() { return steady_clock::now() - 1s; }

bool readable(int fd) {
    pollfd polled{fd, POLLIN, 0};
    return ::poll(&polled, 1, 0) == 1;
}

std::atomic<int> foreign_calls{0};

void foreign_handler(int) { ++foreign_calls; }

const signal_options with_reclaim{true, {SIGTERM, SIGINT}};

// A third stop signal does not end the test itself.
signal_options without_exit() { return {false, {SIGTERM, SIGINT}, false}; }

#ifdef __linux__
TEST_CASE("signals: a SIGTTIN from the terminal stops the process and requests no report") {
    const pid_t child = test::forked([] {
        lifecycle target(0ms);
        const signals installed = claim(target);
        siginfo_t from_terminal{};
        from_terminal.si_signo = SIGTTIN;
        from_terminal.si_code = SI_KERNEL;
        ::syscall(SYS_rt_sigqueueinfo, ::getpid(), SIGTTIN, &from_terminal);
        return target.report_requests() == 0 ? 7 : 8;
    });
    siginfo_t stopped{};
    CHECK(::waitid(P_PID, static_cast<id_t>(child), &stopped, WSTOPPED | WEXITED | WNOWAIT) == 0);
    CHECK(stopped.si_code == CLD_STOPPED);
    ::kill(child, SIGCONT);
    CHECK(test::status_of(child) == 7);
}

// From now on the kernel refuses this call with that first argument, unless the second is 0. False: not available.
bool refuse(long call, int argument) {
    const auto load = [](std::size_t from) {
        return sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(from)};
    };
    const auto jump = [](long value, std::uint8_t if_equal, std::uint8_t otherwise) {
        return sock_filter{BPF_JMP | BPF_JEQ | BPF_K, if_equal, otherwise, static_cast<std::uint32_t>(value)};
    };
    sock_filter filter[] = {load(offsetof(seccomp_data, nr)),
                            jump(call, 0, 5),
                            load(offsetof(seccomp_data, args[0])),
                            jump(argument, 0, 3),
                            load(offsetof(seccomp_data, args[1])),
                            jump(0, 1, 0),
                            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EINVAL},
                            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    const sock_fprog program{sizeof filter / sizeof *filter, filter};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_CASE("signals: if the kernel refuses a handler, install() fails and leaves nothing claimed") {
    const int status = test::status_of(test::forked([] {
        if (!refuse(SYS_rt_sigaction, SIGINT)) return 99;
        lifecycle target(0ms);
        const result<signals> installed = signals::install(target);
        if (installed || installed.error().code != errc::system || detail::drives_signals(target)) return 1;
        for (const int number : claimed) {
            if (disposition_of(number).sa_handler != SIG_DFL) return 2;
        }
        signal_options options;
        options.stop_signals = {SIGTERM};
        const signals second = claim(target, options);
        options.stop_signals = {SIGINT};
        const auto added = detail::add_signals(options);
        return !added && added.error().code == errc::system ? 0 : 3;
    }));
    if (status == 99) MESSAGE("skipped: no seccomp filters");
    CHECK((status == 0 || status == 99));
}

TEST_CASE("signals: no reader of the lifecycle -> the third stop signal exits with 128+n") {
    for (const int number : {SIGTERM, SIGINT}) {
        CHECK(test::status_of(test::forked([=] {
                  lifecycle target(0ms);
                  const signals installed = claim(target);
                  for (int i = 0; i < 3; ++i) send_self(number);
                  return 7;
              })) == 128 + number);
    }
}

TEST_CASE("signals: a follower that does not exit at the third stop signal -> a stop signal a second later exits") {
    CHECK(test::status_of(test::forked([] {
              lifecycle target(0ms);
              const signals installed = claim(target);
              if (!target.subscribe(installed.fd())) return 8;
              for (int i = 0; i < 3; ++i) send_self(SIGTERM);
              if (target.state().stop_signals < 3) return 9;
              for (const auto end = guard(); steady_clock::now() < end; ::usleep(100000)) send_self(SIGINT);
              return 7;
          })) == 128 + SIGTERM);
}

#endif

// [GS 4.1 (a)]
TEST_CASE("signals: each signal drives the lifecycle, and wait() returns its number and sender") {
    struct {
        int number;
        phase before;
        phase after;
        event what;
    } const rules[] = {{SIGTERM, phase::running, phase::draining, event::stop_signal},
                       {SIGINT, phase::running, phase::draining, event::stop_signal},
                       {SIGTSTP, phase::running, phase::quiet, event::quiet_request},
                       {SIGCONT, phase::quiet, phase::running, event::resume_request},
                       {SIGTERM, phase::quiet, phase::draining, event::stop_signal},
                       {SIGTTIN, phase::running, phase::running, event::report_request}};
    for (const auto& rule : rules) {
        CAPTURE(rule.number);
        lifecycle target(0ms);
        if (rule.before == phase::quiet) REQUIRE(target.apply(event::quiet_request, {}));
        signals installed = claim(target);
        CHECK_FALSE(readable(installed.fd()));
        send_self(rule.number);
        CHECK(readable(installed.fd()));
        for (const received_signal& received : {installed.wait(guard()), detail::last_signal(rule.number)}) {
            CHECK(received.number == rule.number);
            CHECK(received.sender_pid == ::getpid());
            CHECK(received.sender_uid == ::getuid());
            CHECK(received.sender_name.empty() == (OJS_SHUTDOWN_USE_PROC == 0));
            CHECK(received.sender_name.find('\n') == std::string::npos);
        }
        CHECK(target.phase() == rule.after);
        CHECK(installed.wait(passed()).number == 0);
        CHECK_FALSE(readable(installed.fd()));
        CHECK(target.report_requests() == (rule.what == event::report_request ? 1 : 0));
        if (rule.what == event::report_request) continue;  // changes nothing
        CHECK(target.state().last_event == rule.what);
        CHECK(target.state().cause.kind == cause_kind::signal);
        CHECK(target.state().cause.signal == rule.number);
    }
}

TEST_CASE("signals: each handler blocks the other claimed signals and uses the alternate stack") {
    lifecycle target(0ms);
    const signals installed = claim(target);
    for (const int handled : claimed) {
        const struct sigaction action = disposition_of(handled);
        for (const int other : claimed) CHECK(::sigismember(&action.sa_mask, other) == 1);
        CHECK((action.sa_flags & SA_ONSTACK) != 0);
    }
}

TEST_CASE("signals: wait() returns signals in order, last_signal() the newest; without third_signal_exits none exits") {
    lifecycle target(0ms);
    signals installed = claim(target, without_exit());
    const pid_t parent = ::getpid();
    const int sent[] = {SIGTERM, SIGINT, SIGTERM, SIGCONT};
    pid_t senders[4] = {};
    for (int i = 0; i < 4; ++i) {
        senders[i] = test::forked([&] { return ::kill(parent, sent[i]); });
        REQUIRE(test::status_of(senders[i]) == 0);
    }
    CHECK(target.phase() == phase::stopping);
    CHECK(target.state().stop_signals == 3);
    CHECK(target.state().cause.signal == SIGTERM);
    for (int i = 1; i < 4; ++i) {
        CHECK(detail::last_signal(sent[i]).number == sent[i]);
        CHECK(detail::last_signal(sent[i]).sender_pid == senders[i]);
    }
    for (const int unclaimed : {SIGVTALRM, 0}) CHECK(detail::last_signal(unclaimed).number == 0);
    for (int i = 0; i < 4; ++i) {
        CHECK(readable(installed.fd()));
        const received_signal received = installed.wait(guard());
        CHECK(received.number == sent[i]);
        CHECK(received.sender_pid == senders[i]);
    }
    CHECK(installed.wait(passed()).number == 0);
    CHECK_FALSE(readable(installed.fd()));
}

#ifdef F_SETPIPE_SZ
TEST_CASE("signals: when the pipe is full, the newest signals are kept") {
    lifecycle target(0ms);
    signals installed = claim(target);
    const int room = ::fcntl(installed.fd(), F_SETPIPE_SZ, 4 * 4096);
    REQUIRE(room > 0);
    const int total = room / 8 * 2;
    for (int i = 0; i < total; ++i) send_self(i % 2 == 0 ? SIGTSTP : SIGCONT);
    send_self(SIGTERM);
    std::vector<int> kept;
    while (const int number = installed.wait(passed()).number) kept.push_back(number);
    CHECK(static_cast<int>(kept.size()) > total / 4);
    CHECK(static_cast<int>(kept.size()) < total);
    CHECK(kept.back() == SIGTERM);
    CHECK(kept[kept.size() - 2] == SIGCONT);
    CHECK_FALSE(readable(installed.fd()));
}
#endif

TEST_CASE("signals: destroying the installer restores handler, flags and mask of each signal") {
    struct sigaction special {};
    special.sa_handler = SIG_DFL;
    special.sa_flags = SA_NODEFER | SA_RESTART;
    sigemptyset(&special.sa_mask);
    sigaddset(&special.sa_mask, SIGUSR1);
    const with_disposition term(SIGTERM, special);
    const with_disposition stop(SIGTSTP, SIG_IGN);
    std::vector<struct sigaction> before;
    for (const int number : claimed) before.push_back(disposition_of(number));
    {
        lifecycle target(0ms);
        const signals installed = claim(target);
        CHECK((disposition_of(SIGTERM).sa_handler != SIG_DFL));
    }
    for (std::size_t i = 0; i < before.size(); ++i) {
        CAPTURE(claimed[i]);
        const struct sigaction after = disposition_of(claimed[i]);
        CHECK(after.sa_flags == before[i].sa_flags);
        for (int number = 1; number < 32; ++number)
            CHECK(::sigismember(&after.sa_mask, number) == ::sigismember(&before[i].sa_mask, number));
        CHECK((after.sa_handler == before[i].sa_handler));
    }
}

TEST_CASE("signals: install() over a foreign handler is refused with busy, but SIGHUP's stays in place") {
    for (const int number : claimed) {
        CAPTURE(number);
        foreign_calls = 0;
        lifecycle target(0ms);
        const with_disposition theirs(number, foreign_handler);
        const result<signals> refused = signals::install(target);
        REQUIRE(test::code_of(refused) == errc::busy);
        CHECK(refused.error().sys_errno == 0);
        CHECK(refused.error().text.find(signal_name(number) + " already has a handler in this process; ") == 0);
        CHECK((disposition_of(number).sa_handler == foreign_handler));
        CHECK_FALSE(detail::drives_signals(target));
        send_self(number);
        CHECK(foreign_calls == 1);
        CHECK(target.phase() == phase::running);
        for (const int other : claimed) {
            if (other != number) CHECK((disposition_of(other).sa_handler == SIG_DFL));
        }
    }
    foreign_calls = 0;
    const with_disposition reload(SIGHUP, foreign_handler);  // no other than SIGHUP's may stay
    lifecycle target(0ms);
    const signals works_now = claim(target, {false, {SIGTERM, SIGHUP}});  // the refusal kept nothing claimed
    CHECK(detail::drives_signals(target));
    CHECK(works_now.ignored().empty());
    send_self(SIGHUP);
    CHECK(foreign_calls == 1);
    CHECK(target.phase() == phase::running);
}

TEST_CASE("signals: a thread begins to handle SIGTSTP only after a later SIGCONT was handled -> not quiet") {
    lifecycle target(0ms);
    signals installed = claim(target);
    // The handler that the kernel chose, for a thread that loses its processor before it can begin.
    const auto chosen = disposition_of(SIGTSTP).sa_sigaction;
    send_self(SIGCONT);
    siginfo_t info{};
    info.si_signo = SIGTSTP;
    chosen(SIGTSTP, &info, nullptr);
    CHECK(target.phase() == phase::running);
    CHECK(target.state().cause.signal == SIGCONT);
    CHECK(installed.wait(guard()).number == SIGCONT);
    CHECK(installed.wait(guard()).number == SIGTSTP);
    for (int i = 0; i < 40; ++i) {
        send_self(SIGTSTP);
        CHECK(target.phase() == phase::quiet);
        send_self(SIGCONT);
        CHECK(target.phase() == phase::running);
    }
}

TEST_CASE("signals: a handler that the program replaces is reported once, and SIGCONT and the destructor keep it") {
    foreign_calls = 0;
    const with_disposition before(SIGTSTP, SIG_DFL);
    {
        lifecycle target(0ms);
        const signals installed = claim(target, {false, {SIGTERM, SIGINT, SIGHUP}});
        const with_disposition waiting(SIGINT, SIG_IGN);  // as system() does
        const with_disposition reload(SIGHUP, foreign_handler);
        CHECK(detail::replaced_signals() == "");
        ::signal(SIGTSTP, foreign_handler);
        CHECK(detail::replaced_signals() == "SIGTSTP");
        CHECK(detail::replaced_signals() == "");
        send_self(SIGCONT);
        send_self(SIGTSTP);
        CHECK(foreign_calls == 1);
        CHECK(target.phase() == phase::running);
    }
    CHECK((disposition_of(SIGTSTP).sa_handler == foreign_handler));
}

// [GS 4.1 (a)]
TEST_CASE("signals: an ignored signal stays ignored and is listed in ignored()") {
    const with_disposition interrupt(SIGINT, SIG_IGN);
    const with_disposition stop(SIGTSTP, SIG_IGN);
    lifecycle target(0ms);
    {
        signals installed = claim(target);
        CHECK(installed.ignored() == std::vector<int>{SIGINT, SIGTSTP});
        CHECK((disposition_of(SIGINT).sa_handler == SIG_IGN));
        send_self(SIGINT);
        send_self(SIGTSTP);
        CHECK(target.phase() == phase::running);
        CHECK(installed.wait(passed()).number == 0);
        signals moved = std::move(installed);
        CHECK(moved.ignored() == std::vector<int>{SIGINT, SIGTSTP});
        send_self(SIGTERM);
        CHECK(target.phase() == phase::draining);
        CHECK(moved.wait(guard()).number == SIGTERM);
    }
    CHECK((disposition_of(SIGINT).sa_handler == SIG_IGN));
}

TEST_CASE("signals: install() unblocks the claimed signals in its thread, and a pending signal is kept") {
    sigset_t ours;
    sigset_t previous;
    sigemptyset(&ours);
    for (const int number : claimed) sigaddset(&ours, number);
    sigaddset(&ours, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &ours, &previous);
    send_self(SIGTERM);
    lifecycle target(0ms);
    {
        signals installed = claim(target);
        sigset_t now;
        pthread_sigmask(SIG_SETMASK, nullptr, &now);
        for (const int number : claimed) CHECK(sigismember(&now, number) == 0);
        CHECK(sigismember(&now, SIGUSR1) == 1);  // none of ours
        CHECK(target.phase() == phase::draining);
        CHECK(installed.wait(guard()).number == SIGTERM);
    }
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

TEST_CASE("signals: run() adds SIGUSR1 to an active installer, from its default disposition only") {
    lifecycle target(0ms);
    const signals installed = claim(target);
    {
        const with_disposition ignored(SIGUSR1, SIG_IGN);
        CHECK(detail::add_signals(with_reclaim).value_or({}) == std::vector<int>{SIGUSR1});
        CHECK((disposition_of(SIGUSR1).sa_handler == SIG_IGN));
    }
    {
        const with_disposition foreign(SIGUSR1, foreign_handler);
        const auto refused = detail::add_signals(with_reclaim);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().text.find("SIGUSR1") == 0);
    }
    REQUIRE(detail::add_signals(with_reclaim));
    send_self(SIGUSR1);
    CHECK(target.state().mode == stop_mode::reclaim);
}

TEST_CASE("signals: a signal that cannot be a stop signal is refused with the reason, and nothing is claimed") {
    const std::pair<int, const char*> refused[] = {
        {SIGKILL, "SIGKILL cannot be handled"}, {SIGSTOP, "SIGSTOP cannot be handled"},
        {SIGSEGV, "SIGSEGV reports a fault"},   {SIGTSTP, "SIGTSTP already means quiet"},
        {SIGCONT, "SIGCONT already means"},     {SIGTTIN, "SIGTTIN already requests"},
        {SIGPIPE, "SIGPIPE is sent by"},        {SIGCHLD, "SIGCHLD is sent by"},
        {SIGUSR1, "SIGUSR1 already means"},     {0, "signal 0 is not a signal"},
        {-1, "signal -1 is not a signal"},      {SIGRTMAX + 1, "is not a signal"},
        {1000, "signal 1000 is not a signal"}};
    lifecycle target(0ms);
    for (const std::pair<int, const char*>& each : refused) {
        const int number = each.first;
        CAPTURE(number);
        for (const bool later : {false, true}) {
            const signals installed = later ? claim(target) : signals();
            const signal_options options{true, {SIGTERM, number}};
            const error failure =
                later ? detail::add_signals(options).error() : signals::install(target, options).error();
            CHECK(failure.code == errc::invalid_argument);
            CHECK(failure.sys_errno == 0);
            CHECK(failure.text.find(each.second) != std::string::npos);
            CHECK(detail::drives_signals(target) == later);
        }
    }
    const result<signals> without = signals::install(target, {false, {}});
    REQUIRE(test::code_of(without) == errc::invalid_argument);
    CHECK(without.error().sys_errno == 0);
    CHECK(signal_options().stop_signals == std::vector<int>{SIGTERM, SIGINT});
}

TEST_CASE("signals: signal_name() returns the name of a signal, or its number if there is no such signal") {
    std::string names;
    for (const int number : {SIGTERM, SIGINT, SIGTSTP, SIGCONT, SIGTTIN, SIGUSR1, SIGKILL, SIGBUS, SIGRTMIN + 3})
        names += signal_name(number) + " ";
    CHECK(names == "SIGTERM SIGINT SIGTSTP SIGCONT SIGTTIN SIGUSR1 SIGKILL SIGBUS SIGRTMIN+3 ");
    for (const int none : {0, SIGRTMAX + 1}) CHECK(signal_name(none) == "signal " + std::to_string(none));
}

// In a child: claims the signals beside the object its parent made. 0, or what went wrong.
int take_over(signals& parents, const lifecycle& parents_target) {
    lifecycle own(0ms);
    result<signals> again = signals::install(own);
    if (!again) return 2;
    if (parents.fd() != -1 || parents.wait(passed()).number != 0) return 3;
    { const signals gone = std::move(parents); }  // takes nothing from the new one
    if (!detail::drives_signals(own) || detail::drives_signals(parents_target)) return 4;
    if (signals::install(own)) return 5;
    ::kill(::getpid(), SIGTERM);
    if (own.phase() != phase::draining || parents_target.phase() != phase::running) return 6;
    if (again->wait(guard()).number != SIGTERM || again->wait(passed()).number != 0) return 7;
    { const signals gone = std::move(*again); }
    struct sigaction left {};
    ::sigaction(SIGTERM, nullptr, &left);
    return left.sa_handler == SIG_DFL ? 0 : 8;
}

// The ways to make a child.
TEST_CASE("signals: SIGTERM ends a child of each kind of fork, and a child can install signals itself") {
    for (const auto& way : test::ways_to_fork) {
        CAPTURE(&way - test::ways_to_fork);
        lifecycle target(0ms);
        signals installed = claim(target);
        const pid_t child = way.make();
        REQUIRE(child >= 0);
        if (child == 0) {
            // Async-signal-safe calls only.
            for (const int number : claimed) {
                struct sigaction action {};
                ::sigaction(number, nullptr, &action);
                if (way.runs_atfork_handlers && action.sa_handler != SIG_DFL) ::_exit(1);
            }
            ::kill(::getpid(), SIGTERM);
            ::_exit(2);
        }
        CHECK(test::status_of(child) == -SIGTERM);
        const pid_t heir = way.can_claim ? way.make() : child;
        REQUIRE(heir >= 0);
        if (heir == 0) {
            ::alarm(20);
            ::_exit(take_over(installed, target));
        }
        if (way.can_claim) CHECK(test::status_of(heir) == 0);
        CHECK(target.phase() == phase::running);  // the parent's own is as it was
        CHECK(installed.wait(passed()).number == 0);
        CHECK(detail::drives_signals(target));
        send_self(SIGTERM);
        CHECK(target.phase() == phase::draining);
        CHECK(installed.wait(guard()).number == SIGTERM);
    }
}

// [River shutdown code (f)]
TEST_CASE("signals: wait() returns number 0 once its token is cancelled, and a later signal is still received") {
    lifecycle target(0ms);
    signals installed = claim(target);
    cancel_source source;
    std::thread canceller([&] { source.cancel(cancel_reason::forced); });
    CHECK(installed.wait(time_point::max(), source.token()).number == 0);
    canceller.join();
    CHECK(installed.wait(time_point::max(), source.token()).number == 0);
    send_self(SIGTSTP);
    CHECK(installed.wait(time_point::max(), source.token()).number == SIGTSTP);  // it came all the same
    CHECK(installed.wait(passed()).number == 0);
}
}  // namespace
