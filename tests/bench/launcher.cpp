// What a launcher costs, how fast it is, what it leaves behind, and how shutdowns of every kind end.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "bench.hpp"
#include "fleet.hpp"

namespace bench {
namespace {

// ---- a launcher as a process of its own ----

// With so many children of one kind.
class launcher_apart {
  public:
    launcher_apart(int children, const std::vector<std::string>& command)
        : admin_("unix:" + scratch("admin.sock")), process_(command_of(children, command)) {
        process_.await_line("ready");
    }

    const std::string& admin() const { return admin_; }
    pid_t pid() const { return process_.pid(); }
    double resident_mib() const {
        return static_cast<double>(
                   number_after(read_file("/proc/" + std::to_string(pid()) + "/status"), "VmRSS:")) /
               1024;
    }
    double cpu_seconds() const {
        clockid_t clock{};
        timespec used{};
        if (::clock_getcpuclockid(pid(), &clock) != 0 || ::clock_gettime(clock, &used) != 0)
            throw failure("no processor time of another process");
        return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
    }
    void signal_stop() const { process_.signal(SIGTERM); }
    void wait() {
        const ended end = process_.wait();
        if (end.status != 0) throw failure("the launcher ended with " + std::to_string(end.status));
    }

  private:
    std::vector<std::string> command_of(int children, const std::vector<std::string>& command) const {
        std::vector<std::string> out = {std::to_string(children), admin_};
        out.insert(out.end(), command.begin(), command.end());
        return self_as("launcher", out);
    }
    const std::string admin_;
    child process_;
};

constexpr int hundred = 100;

// Percent of one processor that `of` uses while `work` runs.
template <class Work>
double cpu_percent(const launcher_apart& of, Work work) {
    const double before = of.cpu_seconds();
    const std::int64_t began = monotonic_ns();
    work();
    const double seconds = static_cast<double>(monotonic_ns() - began) / 1e9;
    return (of.cpu_seconds() - before) / seconds * 100;
}

// So many a second: each has its moment, and none is left out.
template <class Ask>
void ask_at_rate(int a_second, std::chrono::seconds time, Ask ask) {
    const auto began = ojs::steady_clock::now();
    for (int i = 0; i < a_second * time.count(); ++i) {
        std::this_thread::sleep_until(began + std::chrono::nanoseconds(1s) * i / a_second);
        ask(i);
    }
}

ojs::http_client client_of(const std::string& url) {
    auto out = ojs::http_client::create(url);
    if (!out) throw failure(out.error().text);
    return std::move(*out);
}

std::string call_method(ojs::http_client& peer, const std::string& service, const std::string& method,
                        const std::string& body) {
    ojs::http_request request;
    request.method = "POST";
    request.target = "/" + service + "/" + method;
    request.headers = {{"Content-Type", "application/json"}};
    request.body = body;
    ojs::http_call limits;
    limits.deadline = ojs::deadline_after(guard);
    const auto answer = peer.send(request, limits);
    if (!answer) throw failure(answer.error().text);
    if (answer->status != 200) throw failure(method + " answered " + std::to_string(answer->status));
    return answer->body;
}

// ---- start and drain ----

ojs::group_options trivial_group(int size) {
    return group_of(size, self_as("trivial_child"));
}

// When each process began to drain, by what it prints; from the threads that read that.
class drain_moments {
  public:
    void heard(std::string_view line) {
        const std::string_view start = "drain ";
        if (line.substr(0, start.size()) != start) return;
        const std::lock_guard<std::mutex> held(mutex_);
        began_ = number_after(line, start);
    }
    // The last one. It stands there once the process was waited for.
    std::int64_t take() {
        const std::lock_guard<std::mutex> held(mutex_);
        return std::exchange(began_, 0);
    }

  private:
    std::mutex mutex_;
    std::int64_t began_ = 0;
};

double ms_between(ojs::time_point from, ojs::time_point to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
}

// From before fork() until the parent has read that it runs.
double bare_start() {
    const std::int64_t began = monotonic_ns();
    child process(self_as("bare_process"));
    process.await_line("ready");
    return static_cast<double>(monotonic_ns() - began) / 1e6;
}

double question(const std::string& address) {
    ojs::http_client peer = client_of(address);
    const std::int64_t began = monotonic_ns();
    call_method(peer, ojs::lifecycle_service, "GetReadinessStatus", "{}");
    return static_cast<double>(monotonic_ns() - began) / 1e6;
}

// ---- what is left ----

struct possessions {
    std::ptrdiff_t descriptors = entries("/proc/self/fd");
    std::ptrdiff_t threads = entries("/proc/self/task");
    std::ptrdiff_t children = count_children();

  private:
    static std::ptrdiff_t entries(const char* folder) {
        const std::filesystem::directory_iterator all(folder);
        return std::distance(begin(all), end(all));
    }
    // Zombies too.
    static std::ptrdiff_t count_children() {
        std::ptrdiff_t out = 0;
        for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
            std::ifstream list(each.path() / "children");
            for (pid_t child = 0; list >> child;) ++out;
        }
        return out;
    }
};

// A thread that was joined stays listed for a moment.
possessions at_rest() {
    std::this_thread::sleep_for(100ms);
    return {};
}

std::int64_t resident_kib() {
    return number_after(read_file("/proc/self/status"), "VmRSS:");
}

// ---- shutdowns of every kind ----

struct behaviour {
    const char* name;
    std::vector<std::string> flags;
    bool must_be_forced;
    bool crashes;
};

const std::vector<behaviour>& behaviours() {
    static const std::vector<behaviour> all = {
        {"clean", {}, false, false},
        {"slow-drain", {"--behavior", "slow-drain", "--drain-duration", "500ms"}, false, false},
        {"request-more", {"--behavior", "request-more", "--drain-duration", "1200ms"}, false, false},
        {"crash", {"--behavior", "crash"}, false, true},
        {"hang", {"--behavior", "hang"}, true, false},
        {"deaf", {"--behavior", "hang", "--ignore-sigterm"}, true, false},
        {"clean-deaf", {"--ignore-sigterm"}, false, false},
    };
    return all;
}

ojs::group_options behaving_group(const behaviour& which, int size) {
    ojs::group_options out = group_of(size, {program("lifecycle_runner"), "--work-duration", "10ms"});
    for (const std::string& each : which.flags) out.process.child.command.push_back(each);
    out.name = which.name;
    out.min_healthy = 0;
    out.process.shutdown.grace_period = 1s;
    out.process.shutdown.max_duration = 3s;
    out.process.shutdown.poll_interval = 100ms;
    out.process.shutdown.kill_delay = 200ms;
    return out;
}

// Every change of state, as reported by on_change and as logged.
class transitions {
  public:
    ojs::log_options log() {
        ojs::log_options out;
        out.level = ojs::log_level::info;
        out.hook = [this](const ojs::log_record& record) { logged(record); };
        return out;
    }
    void on_change(const ojs::process_info& now) {
        const std::lock_guard<std::mutex> held(mutex_);
        ojs::instance_state& last = last_[now.id];
        if (last == now.state) return;
        reported_.insert(step(now.id, ojs::to_string(last), ojs::to_string(now.state)));
        last = now.state;
    }
    std::size_t count() const { return reported_.size(); }
    double logged_percent() const {
        std::size_t out = 0;
        for (const std::string& each : reported_) out += logged_.count(each);
        return 100.0 * static_cast<double>(out) / static_cast<double>(reported_.size());
    }

  private:
    static std::string step(const std::string& id, const std::string& from, const std::string& to) {
        return id + " " + from + " " + to;
    }
    void logged(const ojs::log_record& record) {
        std::map<std::string, std::string> fields;
        for (const ojs::log_field& each : record.fields) fields[each.name] = each.value;
        if (fields["from"] == fields["state"]) return;
        const std::lock_guard<std::mutex> held(mutex_);
        logged_.insert(step(fields["process_id"], fields["from"], fields["state"]));
    }

    std::mutex mutex_;
    std::map<std::string, ojs::instance_state> last_;
    std::set<std::string> reported_;
    std::set<std::string> logged_;
};

struct mixed_ends {
    int all = 0;
    int clean = 0;
    int forced = 0;
    int unexpected = 0;  // what did not end as its behaviour must
    samples took;
    samples clean_took;
    std::string first_unexpected;
};

void count_end(const behaviour& which, const ojs::process_info& of, mixed_ends& out) {
    const bool clean = of.state == ojs::instance_state::complete;
    const bool forced = of.state == ojs::instance_state::forced;
    const auto took = static_cast<double>(of.shutdown_duration.count());
    ++out.all;
    out.clean += clean ? 1 : 0;
    out.forced += forced ? 1 : 0;
    out.took.push_back(took);
    if (clean) out.clean_took.push_back(took);
    const bool as_expected = which.must_be_forced ? forced
                             : which.crashes      ? of.state == ojs::instance_state::crashed
                                                  : clean;
    if (as_expected) return;
    if (out.unexpected++ == 0)
        out.first_unexpected = of.id + " " + ojs::to_string(of.state) + ": " + of.message;
}

void shut_down_all_kinds(int of_each, transitions& steps, mixed_ends& out) {
    test::counter ready;
    ojs::launcher_options options;
    for (const behaviour& each : behaviours()) options.groups.push_back(behaving_group(each, of_each));
    options.log = steps.log();
    options.on_routable = [&](const ojs::process_info&) { ready.add(); };
    options.on_change = [&](const ojs::process_info& now) { steps.on_change(now); };
    ojs::launcher all(std::move(options));
    const ojs::result<void> started = all.start();
    if (!started) throw failure(started.error().text);
    if (!ready.wait_for(of_each * static_cast<int>(behaviours().size()))) throw failure("not all were ready");
    all.request_stop();
    if (!all.wait(ojs::deadline_after(guard)) || all.exit_code() != 0) throw failure("some did not end");
    for (const behaviour& each : behaviours()) {
        const auto group = all.group(each.name);
        for (const ojs::process_info& one : group->processes) count_end(each, one, out);
    }
}

double part(samples values, double of) {
    std::sort(values.begin(), values.end());
    return values[static_cast<std::size_t>(of * static_cast<double>(values.size() - 1) + 0.5)];
}

}  // namespace

// ---- roles ----

// Ready at once, and drained at once. Prints when.
int trivial_child(const std::vector<std::string>&) {
    auto options = ojs::coordinator_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    options->log.level = ojs::log_level::off;
    ojs::lifecycle life;
    const auto signals = ojs::signals::install(life);
    if (!signals) return ojs::report_usage(signals.error());
    auto coordinator = ojs::shutdown_coordinator::start(*options, life);
    if (!coordinator) return ojs::report_usage(coordinator.error());
    coordinator->ready();
    const auto drained = coordinator->run([](const ojs::cancel_token&) -> ojs::result<void> {
        const std::string line = "drain " + std::to_string(monotonic_ns()) + "\n";
        if (::write(STDOUT_FILENO, line.data(), line.size()) < 0)
            return ojs::error{ojs::errc::system, errno, "nobody reads"};
        return {};
    });
    return drained ? 0 : 1;
}

// Arguments: how many children, where an operator is answered, and their command.
int launcher_role(const std::vector<std::string>& arguments) {
    const int count = std::stoi(arguments.at(0));
    ojs::lifecycle life;
    const auto signals = ojs::signals::install(life);  // before "ready": a SIGTERM may follow at once
    if (!signals) return ojs::report_usage(signals.error());
    ojs::launcher_options options;
    options.admin_address = arguments.at(1);
    options.log.level = ojs::log_level::off;
    ojs::group_options group = group_of(count, {arguments.begin() + 2, arguments.end()});
    group.process.shutdown.poll_interval = 100ms;
    group.process.shutdown.grace_period = 30s;
    group.process.shutdown.max_duration = 30s;
    options.groups = {group};
    std::atomic<int> ready{0};
    options.on_routable = [&](const ojs::process_info&) {
        if (++ready == count) std::puts("ready"), std::fflush(stdout);
    };
    if (count == 0) std::puts("ready"), std::fflush(stdout);
    return ojs::launcher(std::move(options), life).run();
}

// ---- what it must reach ----

void launcher_times(table& out) {
    const int rounds = share_of(200);
    samples starts;
    samples bare;
    samples drains;
    samples questions;
    drain_moments moments;
    test::counter asked;
    std::atomic<std::int64_t> asked_at{0};
    ojs::group_options group = trivial_group(1);
    group.process.readiness_interval = 1h;  // what is not pushed is not seen
    group.process.child.output =
        ojs::child_stream::lines([&](std::string_view line) { moments.heard(line); });
    std::mutex mutex;
    fleet one(
        group,
        [&](const ojs::process_info& of) {
            const std::lock_guard<std::mutex> held(mutex);
            starts.push_back(ms_between(of.started_at, ojs::steady_clock::now()));
        },
        {},
        [&](const ojs::process_info& of) {
            if (of.state != ojs::instance_state::shutdown_requested) return;
            asked_at = std::chrono::nanoseconds(of.changed_at.time_since_epoch()).count();
            asked.add();
        });
    for (int i = 0; i < rounds; ++i) {
        bare.push_back(bare_start());
        questions.push_back(question(one->group(group_name)->processes.front().address));
        one.replace(1);
        if (!asked.wait_for(i + 1)) throw failure("on_change did not report a request");
        drains.push_back(static_cast<double>(moments.take() - asked_at) / 1e6);
    }
    one.stop();
    starts.erase(starts.begin());  // of the first one, before the first round
    out.add("start -> READY seen, by push", "ms", starts, at_most(5), bare);
    out.add("Shutdown RPC -> drain begun", "ms", drains, at_most(2), questions);
    out.note("launcher_times: worst of " + std::to_string(rounds) + ": READY " + text_of(part(starts, 1)) +
             " ms, drain " + text_of(part(drains, 1)) + " ms");
}

void launcher_cost(table& out) {
    samples resident;
    samples empty;
    samples polls;
    for (int i = 0; i < 3; ++i) {
        launcher_apart none(0, self_as("trivial_child"));
        empty.push_back(none.resident_mib());
        none.signal_stop();
        none.wait();
        launcher_apart many(hundred, self_as("trivial_child"));
        await_asleep(many.pid());
        resident.push_back(many.resident_mib());
        ojs::http_client operators = client_of(many.admin());
        polls.push_back(cpu_percent(many, [&] {
            ask_at_rate(1000, std::chrono::seconds(share_of(10)), [&](int count) {
                const std::string id = std::string(group_name) + "-" + std::to_string(count % hundred + 1);
                call_method(operators, ojs::manager_service, "GetProcessStatus",
                            "{\"processId\":\"" + id + "\"}");
            });
        }));
        many.signal_stop();
        many.wait();
    }
    out.add("RSS with 100 children (floor: none)", "MiB", resident, at_most(10), empty);
    out.add("1,000 status questions/s to the launcher", "% CPU", polls, at_most(10));
}

void launcher_polls(table& out) {
    const int seconds = share_of(5);
    const std::string drain = std::to_string(seconds + 5) + "s";
    samples asking;
    for (int i = 0; i < 3; ++i) {
        launcher_apart many(hundred, {program("lifecycle_runner"), "--behavior", "slow-drain",
                                      "--drain-duration", drain, "--initial-work", "1"});
        many.signal_stop();
        std::this_thread::sleep_for(1s);  // all have begun, and are asked every 100 ms
        asking.push_back(
            cpu_percent(many, [&] { std::this_thread::sleep_for(std::chrono::seconds(seconds)); }));
        many.wait();
    }
    out.add("1,000 status polls/s of the launcher", "% CPU", asking, at_most(10));
}

void launcher_stop(table& out) {
    const auto stop_of = [](int count) {
        fleet all(group_of(count, {program("lifecycle_runner"), "--behavior", "slow-drain",
                                   "--drain-duration", "1s", "--initial-work", "1"}));
        const std::int64_t began = monotonic_ns();
        all.stop();
        return static_cast<double>(monotonic_ns() - began) / 1e6;
    };
    out.add_ratio("end of 100 processes (floor: of one)", "ms",
                  interleave(
                      share_of(5), [&] { return stop_of(hundred); }, [&] { return stop_of(1); }),
                  at_most(1.5));
}

void launcher_leaks(table& out) {
    const int cycles = share_of(10000);
    constexpr int at_a_time = 8;
    // Of both kinds: those that take part in the protocol, and those that know nothing of it.
    const ojs::group_options trivial = trivial_group(at_a_time);
    ojs::group_options others = group_of(at_a_time, {"/bin/sleep", "600"});
    others.process.has_coordinator = false;
    fleet of(trivial);
    for (const auto& kind : {others, trivial}) of.replace(kind, at_a_time);
    const possessions before = at_rest();
    const std::int64_t kib_before = resident_kib();
    samples took;
    for (int done = 0; done < cycles; done += 2 * at_a_time) {
        took.push_back((of.replace(others, at_a_time) + of.replace(trivial, at_a_time)) / (2 * at_a_time));
    }
    const possessions after = at_rest();
    const std::int64_t grown = resident_kib() - kib_before;
    of.stop();
    const auto name = std::to_string(cycles) + " starts and stops leave ";
    const auto left = [](std::ptrdiff_t now, std::ptrdiff_t then) {
        return samples{static_cast<double>(now - then)};
    };
    out.add(name + "fds", "", left(after.descriptors, before.descriptors), at_most(0));
    out.add(name + "threads", "", left(after.threads, before.threads), at_most(0));
    out.add(name + "zombies", "", left(after.children, before.children), at_most(0));
    out.add("one start and stop, of 8 at a time", "ms", took);
    out.note("launcher_leaks: " + std::to_string(grown) + " KiB more than before");
}

void launcher_shutdowns(table& out) {
    constexpr int of_each = 4;
    mixed_ends ends;
    std::size_t changes = 0;
    samples logged;
    while (ends.all < share_of(500)) {
        transitions round;  // ids begin anew with every launcher
        shut_down_all_kinds(of_each, round, ends);
        changes += round.count();
        logged.push_back(round.logged_percent());
    }
    const auto percent = [&](int count) { return samples{100.0 * count / ends.all}; };
    const auto name = std::to_string(ends.all) + " shutdowns: ";
    out.add(name + "clean", "%", percent(ends.clean));
    out.add(name + "forced", "%", percent(ends.forced));
    out.add(name + "not as they must", "", {static_cast<double>(ends.unexpected)}, at_most(0));
    out.add(name + "state changes logged", "%", {*std::min_element(logged.begin(), logged.end())},
            at_least(100));
    out.add(name + "time of clean ones", "ms", ends.clean_took);
    for (const double each : {0.5, 0.99, 1.0})
        out.add(name + "P" + text_of(each * 100), "ms", {part(ends.took, each)});
    out.note("launcher_shutdowns: " + std::to_string(changes) + " changes of state" +
             (ends.unexpected > 0 ? "; " + ends.first_unexpected : std::string()));
}

}  // namespace bench
