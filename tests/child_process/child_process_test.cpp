// child_process with real children. Pipes force the order; a pipe that a whole group holds ends with its last process.
#include "processes.hpp"

using namespace std::string_literals;
using stream = child_stream;
using namespace test;

namespace {
// Returns `path`.
std::string made_file(const std::string& path, const std::string& text, mode_t mode) {
    write_file(path, text);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
}

// All there is up to the end of the stream, or up to the first line's end.
std::string read_all(int fd, bool one_line = false) {
    std::string out;
    for (;;) {
        pollfd waiting{fd, POLLIN, 0};
        char byte = 0;
        if (::poll(&waiting, 1, 120000) != 1) return out + "<still open>";
        if (::read(fd, &byte, 1) != 1) return out;
        if (one_line && byte == '\n') return out;
        out += byte;
    }
}
std::string read_line(int fd) { return read_all(fd, true); }

child_options command(std::vector<std::string> words) {
    child_options out;
    out.command = std::move(words);
    return out;
}
child_options shell(const std::string& script) { return command({"/bin/sh", "-c", script}); }
// With its output in a pipe, and with it that of all it starts.
child_options piped(child_options options) {
    options.output = stream::pipe();
    return options;
}

child_process started(const child_options& options) {
    result<child_process> child = child_process::start(options);
    REQUIRE_MESSAGE(child, child.error().text);
    return std::move(*child);
}

time_point soon() { return deadline_after(hang_guard); }

child_exit ended(child_process& child) {
    const result<child_exit> end = child.wait(soon());
    REQUIRE_MESSAGE(end, end.error().text);
    return *end;
}

std::string output_of(child_options options) {
    child_process child = started(piped(std::move(options)));
    std::string out = read_all(child.output());
    CHECK(ended(child).ok());
    return out;
}

// Of its group, all of which holds the output: it is at its end when the last of them is gone.
bool all_gone(const child_process& child) { return read_all(child.output()).empty(); }

// Waits for standard input, which is in a pipe.
child_options reading(const std::string& script) {
    child_options out = piped(shell(script));
    out.input = stream::pipe();
    return out;
}
child_process started_ready(child_options options) {
    child_process child = started(piped(std::move(options)));
    CHECK(read_line(child.output()) == "ready");
    return child;
}
// A group whose member ignores SIGTERM.
const char* const deaf_group = "trap '' TERM; sh -c 'echo ready; exec sleep 60' & wait; sleep 60";

error refusal(const child_options& options) {
    const result<child_process> child = child_process::start(options);
    REQUIRE(!child);
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left behind
    return child.error();
}

TEST_CASE("child_process: arguments reach the program unchanged, without expansion by a shell") {
    const std::string script = "for each in \"$@\"; do printf '%s|' \"$each\"; done";
    CHECK(output_of(command({"/bin/sh", "-c", script, "name", "a b", "", "$(id)", "'\"", "*", "\n"})) ==
          "a b||$(id)|'\"|*|\n|");
}

TEST_CASE("child_process: describe() tells exit statuses from signals, and explains 126, 127 and 143") {
    const std::pair<child_exit, const char*> rows[] = {
        {{0, 0, false}, "exit status 0"},           {{3, 0, false}, "exit status 3"},
        {{126, 0, false}, "cannot be executed"},    {{127, 0, false}, "was not found"},
        {{128, 0, false}, "exit status 128"},       {{143, 0, false}, "SIGTERM"},
        {{0, SIGKILL, false}, "killed by SIGKILL"}, {{0, SIGSEGV, true}, "killed by SIGSEGV (core dumped)"},
        {{0, 99, false}, "killed by signal 99"}};
    for (const auto& [end, text] : rows) {
        CHECK(holds(end.describe(), text));
        CHECK(end.ok() == (text == std::string("exit status 0")));
    }
}

TEST_CASE("child_process: a command without a slash is looked up in the PATH of the child's environment") {
    const temporary_folder here;
    made_file(here.file("tool"), "#!/bin/sh\necho found $0", 0755);
    child_options options = command({"tool"});
    options.environment = {"PATH=/nowhere:" + here.path().string() + "/tool::" + here.path().string()};
    CHECK(output_of(options) == "found " + here.path().string() + "/tool\n");
    options.working_directory = here.path().string();
    for (const char* path : {"PATH=:/nowhere:", "PATH="}) {  // an empty part is not the working directory
        options.environment = {path};
        for (const char* name : {"tool", "sh"}) {  // nor is an empty PATH the usual one
            options.command = {name};
            CHECK(refusal(options).sys_errno == ENOENT);
        }
    }
    options = command({"sh", "-c", "exit 4"});
    options.inherit_environment = false;
    child_process usual = started(options);
    CHECK(ended(usual).code == 4);
}

TEST_CASE("child_process: set-up or exec() fails -> start() fails with errc::system and errno") {
    const temporary_folder here;
    const std::string fifo = here.file("fifo");
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    const std::string no_format = made_file(here.file("no-format"), "text", 0755);
    child_options to_fifo = shell(""), to_nowhere = to_fifo, in_nowhere = to_fifo, over_limit = to_fifo;
    to_fifo.output = stream::file(fifo);
    to_nowhere.output = stream::file("/no/such/folder/file");
    in_nowhere.working_directory = "/no/such/folder";
    over_limit.limits = {{RLIMIT_CORE, 2, 1}};
    const struct {
        child_options options;
        int number;
        const char* text;
    } rows[] = {{command({"/no/such/program"}), ENOENT, "cannot start '/no/such/program'"},
                {command({made_file(here.file("plain"), "text", 0644)}), EACCES, ""},
                {command({no_format}), ENOEXEC, ""},
                {command({here.path().string()}), EACCES, ""},
                {command({"/bin/true", std::string(4 << 20, 'x')}), E2BIG, ""},  // Linux takes less
                {to_fifo, ENXIO, ""},
                {to_nowhere, ENOENT, "/no/such/folder/file"},
                {in_nowhere, ENOENT, "working_directory: "},
                {over_limit, EINVAL, "limits: "}};
    for (const auto& row : rows) {
        CAPTURE(row.number);
        const error why = refusal(row.options);
        CHECK(why.code == errc::system);
        CHECK(why.sys_errno == row.number);
        CHECK(holds(why.text, row.text));
    }
}

TEST_CASE("child_process: invalid options -> start() fails with errc::invalid_argument, without a child") {
    std::vector<child_options> bad = {command({}), command({""}), command({"sh", std::string("a\0b", 3)})};
    const auto add = [&bad]() -> child_options& { return bad.emplace_back(shell("exit 0")); };
    for (const std::string& each : {std::string("NAME"), std::string("=x"), std::string(), "A="s + '\0'})
        add().environment = {each};
    add().input = stream::lines([](std::string_view) {});
    add().output = stream::lines(nullptr);
    add().output = stream::output();
    add().keep_descriptors = {987};
    for (const int number : {1000, -1}) add().death_signal = number;
    for (const child_options& each : bad) {
        CAPTURE(&each - bad.data());
        const error why = refusal(each);
        CHECK(why.code == errc::invalid_argument);
        CHECK(why.sys_errno == 0);
    }
}

TEST_CASE("child_process: operations on an object without a child fail with errc::invalid_argument") {
    child_process none;
    CHECK(none.pid() == 0);
    CHECK(none.fd() == -1);
    CHECK(none.output() == -1);
    none.close_input();
    for (const auto& end : {none.wait(), none.wait_until(soon(), {}), none.terminate(0ms), none.kill()})
        CHECK(code_of(end) == errc::invalid_argument);
    CHECK(code_of(none.signal(SIGTERM)) == errc::invalid_argument);
}

TEST_CASE("child_process: the child inherits the environment, and options.environment overrides it") {
    REQUIRE(::setenv("OJS_CHILD_TEST", "ours", 1) == 0);
    const std::string script = "echo \"$OJS_CHILD_TEST,$OTHER\"; env | grep -c OJS_CHILD_TEST=";
    CHECK(output_of(shell(script)) == "ours,\n1\n");
    child_options options = shell(script);
    options.environment = {"OJS_CHILD_TEST=no", "OTHER=x=y", "OJS_CHILD_TEST=given"};
    CHECK(output_of(options) == "given,x=y\n1\n");
    options = command({"/usr/bin/env"});
    options.inherit_environment = false;
    options.environment = {"A=", "B=2"};
    CHECK(output_of(options) == "A=\nB=2\n");
    ::unsetenv("OJS_CHILD_TEST");
}

TEST_CASE("child_process: secrets and the service manager's variables are inherited only on request") {
    const std::vector<const char*> own = {"OJS_AUTH_TOKEN", "OJS_HEALTH_TOKEN", "NOTIFY_SOCKET", "WATCHDOG_PID",
                                          "WATCHDOG_USEC"};
    for (const char* each : own) REQUIRE(::setenv(each, "canary", 1) == 0);
    REQUIRE(::setenv("OJS_AUTH_TOKEN_FILE", "another", 1) == 0);
    child_options options = command({"/usr/bin/env"});
    options.environment = {"OJS_AUTH_TOKEN=given"};
    for (const bool asked : {false, true}) {
        options.inherit_private_variables = asked;
        const std::string text = output_of(options);
        for (const char* each : own) CHECK(holds(text, each + "=canary\n"s) == (asked && each != own[0]));
        CHECK(holds(text, "OJS_AUTH_TOKEN=given\n"));
        CHECK(holds(text, "OJS_AUTH_TOKEN_FILE=another\n"));
    }
    for (const char* each : own) ::unsetenv(each);
    ::unsetenv("OJS_AUTH_TOKEN_FILE");
}

#ifdef __linux__
TEST_CASE("child_process: a child that waits before its exec() keeps no descriptor of its parent open") {
    pipe_ends ends(O_CLOEXEC);
    child_options options = shell("exit 0");
    // Forked, and held before its exec(): it has copied what there was, and so the pipe ends only if it let go of that.
    options.before_exec = [&](pid_t) {
        ends.close_writer();
        pollfd ended{ends.reader(), POLLIN, 0};
        CHECK(::poll(&ended, 1, static_cast<int>(hang_guard.count()) * 1000) == 1);
        return result<void>();
    };
    child_process child = started(options);
    CHECK(ended(child).ok());
}
#endif

TEST_CASE("child_process: working_directory and limits apply to the child") {
    child_options options = shell("pwd; ulimit -n; ulimit -Hn");
    options.working_directory = "/";
    options.limits = {{RLIMIT_NOFILE, 40, 41}};
    CHECK(output_of(options) == "/\n40\n41\n");
}

TEST_CASE("child_process: standard streams can be files or null, and errors can go to the output") {
    const temporary_folder here;
    const std::string out = here.file("out");
    child_options options = shell("cat; echo said; echo complained >&2");
    options.input = stream::file(made_file(here.file("in"), "read\n", 0600));
    options.output = stream::file(out);
    for (const child_stream& errors : {stream::output(), stream::null()}) {
        options.errors = errors;
        child_process child = started(options);
        CHECK(ended(child).ok());
        options.input = stream::null();
    }
    CHECK(read_file(out) == "read\nsaid\ncomplained\nsaid\n");
}

TEST_CASE("child_process: streams as pipes -> the parent writes the input and reads output and errors") {
    child_options options = reading("cat; cat >&2 </dev/null; echo end >&2");
    options.errors = stream::pipe();
    child_process child = started(options);
    REQUIRE(::write(child.input(), "one\n", 4) == 4);
    CHECK(read_line(child.output()) == "one");
    child.close_input();
    CHECK(child.input() == -1);
    CHECK(all_gone(child));
    CHECK(read_all(child.errors()) == "end\n");
    CHECK(ended(child).ok());
}

TEST_CASE("child_process: start() works in a parent whose own standard streams are closed") {
    const pid_t other = forked([] {
        for (const int fd : {0, 1, 2}) ::close(fd);
        child_options options = piped(shell("echo out; echo err >&2"));
        options.errors = stream::output();
        result<child_process> child = child_process::start(options);
        return child && read_all(child->output()) == "out\nerr\n" && child->wait()->ok() ? 0 : 1;
    });
    CHECK(status_of(other) == 0);
}

TEST_CASE("child_process: line callbacks get every line, in pieces of at most 8,192 bytes") {
    std::vector<std::string> out;
    std::vector<std::string> err;
    child_options options =
        shell("echo first; echo; printf 'x%.0s' $(seq 20000); echo; echo wrong >&2; printf unfinished");
    options.output = stream::lines([&](std::string_view line) { out.emplace_back(line); });
    options.errors = stream::lines([&](std::string_view line) {
        err.emplace_back(line);
        throw 1;  // is dropped
    });
    child_process child = started(options);
    CHECK(ended(child).ok());
    const std::string piece(8192, 'x');
    CHECK(out == std::vector<std::string>{"first", "", piece, piece, piece.substr(0, 20000 - 2 * 8192), "unfinished"});
    CHECK(err == std::vector<std::string>{"wrong"});
}

TEST_CASE("child_process: slow line callbacks -> wait() awaits the last line, and kill() does not") {
    for (const bool killed : {false, true}) {
        CAPTURE(killed);
        std::atomic<int> end_fd{-1};
        std::atomic<int> lines{0};
        child_options options = shell(std::string("read -r go; yes | head -c ") +
                                      (killed ? "40000; echo >&2; exec sleep 600" : "6; echo >&2"));
        options.input = stream::pipe();
        options.errors = stream::pipe();
        options.output = stream::lines([&](std::string_view) {
            pollfd ended_first{end_fd, POLLIN, 0};
            CHECK(::poll(&ended_first, 1, 120000) == 1);
            ::usleep(5000);  // the slow callback itself: a wait that does not last is over by then
            ++lines;
        });
        child_process child = started(options);
        end_fd = child.fd();
        REQUIRE(::write(child.input(), "go\n", 3) == 3);
        CHECK(read_line(child.errors()).empty());  // all is written
        CHECK((killed ? child.kill(60s) : child.wait(soon()))->signal == (killed ? SIGKILL : 0));
        CHECK((killed ? lines < 20000 : lines == 3));
    }
}

TEST_CASE("child_process: a descendant outside the group that keeps the output open does not delay wait()") {
    if (::access("/usr/bin/setsid", X_OK) != 0) {
        MESSAGE("skipped: no setsid");
        return;
    }
    std::string pid;
    child_options options = shell("setsid sleep 60 & echo $!; exit 0");
    options.output = stream::lines([&](std::string_view line) { pid = line; });
    child_process child = started(options);
    CHECK(ended(child).ok());
    REQUIRE(std::atoi(pid.c_str()) > 0);
    ::kill(std::atoi(pid.c_str()), SIGKILL);
}

#ifdef __linux__
TEST_CASE("child_process: the child gets only descriptors 0, 1 and 2 and those in keep_descriptors") {
    const int leaky = ::open("/dev/null", O_RDONLY);  // as a careless library opens them
    const int kept = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    REQUIRE(leaky > 2);
    REQUIRE(kept > 2);
    child_options options = shell("ls /proc/$$/fd; true");  // from another process: ls itself opens the folder
    CHECK(output_of(options) == "0\n1\n2\n");
    options.keep_descriptors = {kept, 0};
    CHECK(output_of(options) == "0\n1\n2\n" + std::to_string(kept) + "\n");
    ::close(leaky);
    ::close(kept);
}

// [Spot target (a)]
TEST_CASE("child_process: the child starts with no signal blocked or ignored, unlike its parent") {
    const pid_t other = forked([] {
        sigset_t all;
        sigfillset(&all);
        ::sigprocmask(SIG_SETMASK, &all, nullptr);
        for (const int number : {SIGPIPE, SIGHUP, SIGTERM}) ::signal(number, SIG_IGN);
        ::signal(SIGUSR1, [](int) {});
        result<child_process> child =
            child_process::start(piped(command({"/bin/grep", "^Sig[BI]", "/proc/self/status"})));
        if (!child) return 1;
        // Without 32 and 33, which the C library keeps to itself: its posix_spawn() starts programs with them ignored,
        // and its sigaction() does not touch them.
        const auto mask_after = [text = read_all(child->output())](const std::string& name) {
            const std::size_t at = text.find(name);
            return at == std::string::npos ? ~0ULL : std::strtoull(text.c_str() + at + name.size(), nullptr, 16);
        };
        const unsigned long long internal = 3ULL << 31;
        return mask_after("SigBlk:") == 0 && (mask_after("SigIgn:") & ~internal) == 0 ? 0 : 2;
    });
    CHECK(status_of(other) == 0);
}
#endif

TEST_CASE("child_process: a signal during start() never runs a handler of the parent in the child") {
    ::signal(SIGUSR1, [](int) { ::_exit(99); });
    child_options options = command({"/bin/true"});
    options.death_signal = 0;              // else it is forked by a thread that has all signals blocked
    options.before_exec = [](pid_t pid) {  // the forked child still has its parent's handlers
        CHECK(::kill(pid, SIGUSR1) == 0);
        return result<void>();
    };
    child_process child = started(options);
    ::signal(SIGUSR1, SIG_DFL);
    CHECK(ended(child).signal == SIGUSR1);
}

// [Spot target (a)]
TEST_CASE("child_process: own_group decides whether the child leads its own group or stays in the parent's") {
    child_options options = shell("exec sleep 60");
    for (const bool own_group : {true, false}) {
        options.own_group = own_group;
        child_process child = started(options);
        CHECK(::getpgid(child.pid()) == (own_group ? child.pid() : ::getpgrp()));
        CHECK(child.terminate(60s)->signal == SIGTERM);
    }
}

TEST_CASE("child_process: wait() fails at its deadline with errc::timed_out, and can be repeated") {
    child_process child = started(reading("read -r line; exit 5"));
    for (const time_point end : {steady_clock::now(), deadline_after(20ms), time_point::min()})
        CHECK(code_of(child.wait(end)) == errc::timed_out);
    pollfd readable{child.fd(), POLLIN, 0};
    CHECK(::poll(&readable, 1, 0) == 0);
    child.close_input();
    CHECK(::poll(&readable, 1, 120000) == 1);
    CHECK(ended(child).code == 5);
    CHECK(child.wait(time_point::min())->code == 5);
    CHECK(child.signal(SIGTERM).error().sys_errno == ESRCH);
    CHECK(child.terminate(0ms)->code == 5);
    CHECK(child.kill()->code == 5);
}

// [River cancellation (c)]
TEST_CASE("child_process: a cancelled token ends the wait, not the child") {
    cancel_source cancel;
    child_process child = started(shell("exec sleep 60"));
    // The wait is in progress, or about to begin: either way it ends.
    std::thread canceller([&] { cancel.cancel(cancel_reason::cancelled); });
    CHECK(code_of(child.wait_until(soon(), cancel.token())) == errc::cancelled);
    canceller.join();
    CHECK(cancel.token().seen());
    CHECK(::kill(child.pid(), 0) == 0);
    CHECK(code_of(child.wait_until(soon(), cancel.token())) == errc::cancelled);  // cancelled before
    CHECK(code_of(child.wait_until(deadline_after(1ms), {})) == errc::timed_out);
    CHECK(child.kill(60s)->signal == SIGKILL);
    CHECK(child.wait_until(soon(), cancel.token())->signal == SIGKILL);  // an end is an end
}

TEST_CASE("child_process: several threads can wait for one child while another thread signals it") {
    const pid_t other = forked([] { return 7; });
    child_process child =
        started_ready(shell("exec 2>/dev/null; trap 'exit 6' USR1; echo ready; while :; do sleep 0.01; done"));
    std::atomic<int> right{0};
    at_once(5, [&](int thread) {
        if (thread == 0) return static_cast<void>(child.signal(SIGUSR1));
        const result<child_exit> end = child.wait(soon());
        if (end && end->code == 6) right.fetch_add(1);
    });
    CHECK(right.load() == 4);
    CHECK(status_of(other) == 7);  // nobody else's child is reaped
}

TEST_CASE("child_process: after other code has reaped the child, wait() and signal() fail with ECHILD") {
    child_process child = started(shell("exit 1"));
    CHECK(::waitpid(child.pid(), nullptr, 0) == child.pid());
    CHECK(child.signal(SIGKILL).error().sys_errno == ECHILD);
    const result<child_exit> end = child.wait(soon());
    REQUIRE(code_of(end) == errc::system);
    CHECK(end.error().sys_errno == ECHILD);
    CHECK(holds(end.error().text, "another part of this program"));
    CHECK(child.kill().error().sys_errno == ECHILD);
    CHECK(child.terminate(60s).error().sys_errno == ECHILD);
}

TEST_CASE("child_process: wait() kills orphans of the child's group, unless leave_orphans is set") {
    for (const bool reaped_by_others : {false, true}) {
        for (const bool leave_orphans : {false, true}) {
            CAPTURE(reaped_by_others);
            CAPTURE(leave_orphans);
            child_options options = piped(shell("sleep 60 & echo $!; exit 0"));
            options.leave_orphans = leave_orphans;
            child_process child = started(options);
            const pid_t orphan = std::atoi(read_line(child.output()).c_str());
            REQUIRE(orphan > 0);
            if (reaped_by_others) CHECK(::waitpid(child.pid(), nullptr, 0) == child.pid());
            const result<child_exit> end = child.wait(soon());
            CHECK((end ? 0 : end.error().sys_errno) == (reaped_by_others ? ECHILD : 0));
            if (leave_orphans) CHECK(::kill(orphan, SIGKILL) == 0);
            CHECK(all_gone(child));
        }
    }
}

TEST_CASE("child_process: terminate() sends SIGTERM to the group, and SIGKILL after the grace period") {
    const struct {
        const char* name;
        const char* script;
        std::chrono::milliseconds grace;
        int code;
        int signal;
        const char* rest;
    } rows[] = {{"it obeys before its grace is over",
                 "exec 2>/dev/null; trap 'echo cleaned; exit 9' TERM; echo ready; while :; do sleep 0.01; done", 60s, 9,
                 0, "cleaned\n"},
                {"it ignores SIGTERM", deaf_group, 50ms, 0, SIGKILL, ""},
                {"its leader obeys, what that started does not",
                 "sh -c 'trap \"\" TERM; echo ready; sleep 60; sleep 60' & exec sleep 60", 50ms, 0, SIGTERM, ""}};
    for (const auto& row : rows) {
        CAPTURE(row.name);
        child_process child = started_ready(shell(row.script));
        const time_point began = steady_clock::now();
        const result<child_exit> end = child.terminate(row.grace);
        REQUIRE(end);
        CHECK(end->code == row.code);
        CHECK(end->signal == row.signal);
        if (row.signal == SIGKILL) CHECK(steady_clock::now() - began >= row.grace);
        CHECK(read_all(child.output()) == row.rest);
    }
}

TEST_CASE("child_process: the leader exits at once -> terminate() gives its group the grace period") {
    if (OJS_SHUTDOWN_USE_PROC == 0) return;
    // A shell that ends at once, and a program in it that has something to save first, until the test answers.
    child_process child = started_ready(
        reading("exec 3<&0 2>/dev/null; sh -c 'trap \"echo asked; read -r go; echo saved \\$go; exit\" TERM; "
                "echo ready; while :; do sleep 0.01; done' <&3 & exec sleep 60"));
    result<child_exit> end = error{};
    std::thread terminating([&] { end = child.terminate(60s); });
    CHECK(read_line(child.output()) == "asked");
    CHECK(::write(child.input(), "it\n", 3) == 3);
    CHECK(read_all(child.output()) == "saved it\n");
    terminating.join();
    REQUIRE(end);
    CHECK(end->signal == SIGTERM);
}

TEST_CASE("child_process: terminate() ends a stopped child through its SIGTERM handler") {
    // It starts nothing: a shell that is about to waits for its own child to run, in a state that cannot be stopped.
    child_process child = started_ready(reading("trap 'exit 8' TERM; echo ready; read -r line"));
    CHECK(child.signal(SIGSTOP));
    siginfo_t about{};
    CHECK(::waitid(P_PID, static_cast<id_t>(child.pid()), &about, WSTOPPED | WNOWAIT) == 0);
    child.close_input();  // a shell stopped just before it reads would not run its trap before the line's end
    CHECK(child.terminate(60s)->code == 8);
}

TEST_CASE("child_process: the destructor kills the whole group and leaves no zombie") {
    int output = -1;
    pid_t pid = 0;
    {
        const child_process child = started_ready(shell(deaf_group));
        output = ::dup(child.output());
        pid = child.pid();
    }
    CHECK(read_all(output).empty());
    ::close(output);
    CHECK(::waitpid(pid, nullptr, WNOHANG) == -1);
    CHECK(errno == ECHILD);
}

TEST_CASE("child_process: in a forked process, the inherited object neither signals nor ends the child") {
    auto* child = new child_process(started(reading("read -r line")));
    const pid_t other = forked([&] {
        const bool lost = !child->wait(soon()) && !child->signal(SIGTERM);
        delete child;
        return lost ? 0 : 1;
    });
    CHECK(status_of(other) == 0);
    CHECK(::kill(child->pid(), 0) == 0);
    child->close_input();
    CHECK(ended(*child).code == 1);
    delete child;
}

TEST_CASE("child_process: before_exec runs before exec(), and its error or exception prevents exec()") {
    const temporary_folder files;
    const std::string mark = files.file("ran");
    child_options options = command({"/usr/bin/touch", mark});
    pid_t given = 0;
    bool ran_before = true;
    options.before_exec = [&](pid_t pid) {
        given = pid;
        ran_before = ::access(mark.c_str(), F_OK) == 0;
        return result<void>();
    };
    child_process child = started(options);
    CHECK(given == child.pid());
    CHECK_FALSE(ran_before);
    CHECK(ended(child).ok());
    REQUIRE(::unlink(mark.c_str()) == 0);
    options.before_exec = [](pid_t) -> result<void> { return error{errc::busy, 7, "full"}; };
    CHECK(refusal(options).text == "full");
    options.before_exec = [](pid_t) -> result<void> { throw 1; };
    CHECK(refusal(options).code == errc::invalid_argument);
    CHECK(::access(mark.c_str(), F_OK) != 0);
}

TEST_CASE("child_process: the parent is killed during before_exec -> the child ends without exec()") {
    const temporary_folder files;
    const std::string mark = files.file("ran");
    pipe_ends ends(O_CLOEXEC);  // open as long as one of them lives
    const pid_t parent = forked([&] {
        child_options options = command({"/usr/bin/touch", mark});
        options.death_signal = 0;  // which would end it too
        options.keep_descriptors = {ends.writer()};
        options.before_exec = [&](pid_t) {
            if (::write(ends.writer(), "forked\n", 7) < 0) ::_exit(1);
            for (;;) ::pause();
            return result<void>();
        };
        return child_process::start(options) ? 2 : 3;
    });
    ends.close_writer();
    CHECK(read_line(ends.reader()) == "forked");
    ::kill(parent, SIGKILL);
    CHECK(status_of(parent) == -SIGKILL);
    CHECK(read_all(ends.reader()).empty());
    CHECK(::access(mark.c_str(), F_OK) != 0);
}

#ifdef __linux__
TEST_CASE("child_process: the child dies with its parent process, unless death_signal is 0") {
    for (const bool outlives : {false, true}) {
        CAPTURE(outlives);
        pipe_ends ends(O_CLOEXEC), input(O_CLOEXEC);
        const pid_t parent = forked([&] {
            child_options options = shell("while read -r line <&" + std::to_string(input.reader()) +
                                          "; do echo read $line >&" + std::to_string(ends.writer()) + "; done");
            options.keep_descriptors = {ends.writer(), input.reader()};
            if (outlives) options.death_signal = 0;
            input.close_writer();
            result<child_process> child = error{};
            std::thread([&] { child = child_process::start(options); }).join();  // this thread has ended
            if (!child || ::write(ends.writer(), "started\n", 8) != 8) return 1;
            for (;;) ::pause();
        });
        ends.close_writer();
        CHECK(read_line(ends.reader()) == "started");
        REQUIRE(::write(input.writer(), "on\n", 3) == 3);
        CHECK(read_line(ends.reader()) == "read on");
        ::kill(parent, SIGKILL);
        CHECK(status_of(parent) == -SIGKILL);
        if (outlives) {
            REQUIRE(::write(input.writer(), "still\n", 6) == 6);
            CHECK(read_line(ends.reader()) == "read still");
            input.close_writer();
        }
        CHECK(read_all(ends.reader()).empty());  // its end: the child, which held the other one, is gone too
    }
}
#endif
}  // namespace
