// See bench.hpp.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "bench.hpp"

namespace bench {

std::int64_t monotonic_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// ---- samples ----

namespace {

double quantile(const samples& sorted, double part) {
    const double at = part * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

}  // namespace

double median(samples values) {
    if (values.empty()) throw failure("no samples");
    std::sort(values.begin(), values.end());
    return quantile(values, 0.5);
}

// ---- the table ----

std::string text_of(double number) {
    char text[32];
    const int digits = number >= 100 ? 0 : number >= 10 ? 1 : 2;
    const bool whole =
        number >= 0 && number < 1e15 && number == static_cast<double>(static_cast<std::int64_t>(number));
    std::snprintf(text, sizeof text, "%.*f", whole ? 0 : digits, number);
    return text;
}

namespace {

// The median and the quartiles.
std::string shown(samples values, const char* unit) {
    const std::string middle = text_of(median(values)) + " " + unit;
    std::sort(values.begin(), values.end());
    if (values.size() == 1) return middle;
    return middle + " (" + text_of(quantile(values, 0.25)) + ".." + text_of(quantile(values, 0.75)) + ")";
}

std::string shown(const target& wanted, const char* unit) {
    if (wanted.what == target::kind::none) return "-";
    char limit[32];
    std::snprintf(limit, sizeof limit, "%.7g", wanted.limit);
    return (wanted.what == target::kind::at_most ? "<= " : ">= ") + std::string(limit) + " " + unit;
}

std::string judged(const target& wanted, double reached) {
    if (wanted.what == target::kind::none) return "-";
    const bool met = wanted.what == target::kind::at_most ? reached <= wanted.limit : reached >= wanted.limit;
    return met ? "met" : "NOT MET";
}

std::string fixed(double ratio) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", ratio);
    return text;
}

double ratio_of(const paired& measured) {
    samples ratios;
    for (std::size_t i = 0; i < measured.ours.size(); ++i) {
        ratios.push_back(measured.ours[i] / measured.floor[i]);
    }
    return median(ratios);
}

}  // namespace

void table::add_ratio(const std::string& name, const char* unit, const paired& measured, target wanted) {
    const double ratio = ratio_of(measured);
    rows_.push_back({name, shown(measured.ours, unit), shown(measured.floor, unit), fixed(ratio),
                     shown(wanted, "x"), judged(wanted, ratio)});
}

void table::add(const std::string& name, const char* unit, const samples& ours, target wanted,
                const samples& floor) {
    const bool has_floor = !floor.empty();
    rows_.push_back({name, shown(ours, unit), has_floor ? shown(floor, unit) : "-",
                     has_floor ? fixed(ratio_of({ours, floor})) : "-", shown(wanted, unit),
                     judged(wanted, median(ours))});
}

void table::add_failed(const std::string& name, const std::string& why) {
    rows_.push_back({name, "could not run", "-", "-", "-", "-"});
    note(name + " could not run: " + why);
}

void table::print() const {
    const auto print_row = [](const row& each) {
        std::printf("%-41s  %-29s  %-29s  %5s  %-16s  %s\n", each.name.c_str(), each.ours.c_str(),
                    each.floor.c_str(), each.ratio.c_str(), each.wanted.c_str(), each.verdict.c_str());
    };
    print_row({"median (quartiles)", "ours", "floor", "ratio", "target", ""});
    for (const row& each : rows_) print_row(each);
    if (!notes_.empty()) std::puts("");
    for (const std::string& each : notes_) std::puts(each.c_str());
}

void progress(const std::string& what) {
    std::fprintf(stderr, "bench: %s\n", what.c_str());
}

// ---- files ----

namespace {

struct scratch_folder {
    std::filesystem::path path;

    scratch_folder() {
        std::string name = (std::filesystem::temp_directory_path() / "ojs_bench_XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw failure("no temporary folder");
        path = name;
    }
    scratch_folder(const scratch_folder&) = delete;
    scratch_folder& operator=(const scratch_folder&) = delete;
    ~scratch_folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
};

}  // namespace

std::string scratch(const std::string& name) {
    static const scratch_folder folder;
    static int count = 0;
    return folder.path / (std::to_string(++count) + "_" + name);
}

std::string program(const std::string& name) {
    const std::filesystem::path found = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
    if (!std::filesystem::exists(found)) throw failure(found.string() + " is not there; make builds it");
    return found;
}

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::int64_t> numbers_after(std::string_view text, std::string_view key) {
    std::vector<std::int64_t> out;
    for (std::size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at)) {
        at = text.find_first_not_of(" \t", at + key.size());
        std::int64_t number = 0;
        if (at == std::string_view::npos) break;
        if (std::from_chars(text.data() + at, text.data() + text.size(), number).ec == std::errc())
            out.push_back(number);
    }
    return out;
}

std::int64_t number_after(std::string_view text, std::string_view key) {
    const std::vector<std::int64_t> found = numbers_after(text, key);
    if (found.empty()) throw failure("no number after " + std::string(key));
    return found.front();
}

// ---- processes ----

namespace {

// For state that must be polled: another process's.
template <class Condition>
void await_state(const std::string& what, Condition holds) {
    const std::int64_t end = monotonic_ns() + std::chrono::nanoseconds(guard).count();
    while (!holds()) {
        if (monotonic_ns() > end) throw failure("waited in vain: " + what);
        const timespec pause{0, 200000};
        ::nanosleep(&pause, nullptr);
    }
}

bool sleeps(const std::string& stat_path) {
    const std::string stat = read_file(stat_path);  // "ID (NAME) STATE ..."
    const std::size_t name_end = stat.rfind(") ");
    return name_end != std::string::npos && stat.compare(name_end + 2, 1, "S") == 0;
}

int remaining_ms(std::int64_t deadline_ns) {
    return static_cast<int>(std::max<std::int64_t>(0, (deadline_ns - monotonic_ns()) / 1000000));
}

}  // namespace

void await_asleep(pid_t process) {
    const std::string tasks = "/proc/" + std::to_string(process) + "/task";
    await_state("all threads asleep", [&] {
        std::error_code failed;
        bool all = true;
        for (const auto& task : std::filesystem::directory_iterator(tasks, failed))
            all = all && sleeps(task.path() / "stat");
        return all && !failed;
    });
}

// Polls without a pause: the wait takes microseconds, and this processor should stay awake.
void await_asleep(pid_t process, pid_t task) {
    const std::string stat = "/proc/" + std::to_string(process) + "/task/" + std::to_string(task) + "/stat";
    while (!sleeps(stat)) ::sched_yield();
}

child::child(std::vector<std::string> command, const environment& extra)
    : name_(std::filesystem::path(command.front()).filename()), error_path_(scratch("stderr")) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw failure("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) exec(command, extra, ends[1]);
    ::close(ends[1]);
    output_ = ends[0];
    if (pid_ < 0) throw failure("no process");
    pid_fd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
}

void child::exec(const std::vector<std::string>& command, const environment& extra, int output) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no child survives the bench
    ::dup2(output, STDOUT_FILENO);
    const int errors = ::open(error_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ::dup2(errors, STDERR_FILENO);
    for (const auto& [name, value] : extra) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> arguments;
    for (const std::string& each : command) arguments.push_back(const_cast<char*>(each.c_str()));
    arguments.push_back(nullptr);
    ::execvp(arguments[0], arguments.data());
    std::fprintf(stderr, "cannot run %s\n", arguments[0]);
    ::_exit(127);
}

child::~child() {
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    if (pid_fd_ >= 0) ::close(pid_fd_);
    if (output_ >= 0) ::close(output_);
}

void child::signal(int number) const {
    ::kill(pid_, number);
}

void child::fail(const std::string& what) const {
    const std::string output = errors();
    throw failure(name_ + " " + what +
                  "; its stderr: " + output.substr(output.size() > 400 ? output.size() - 400 : 0));
}

std::string child::await_line(const std::string& start) {
    std::string line;
    while (next_line(line)) {
        if (line.compare(0, start.size(), start) == 0) return line.substr(start.size());
    }
    fail("did not print '" + start + "'");
}

bool child::next_line(std::string& line) {
    const std::int64_t deadline = monotonic_ns() + std::chrono::nanoseconds(guard).count();
    for (;;) {
        const std::size_t end = buffer_.find('\n');
        if (end != std::string::npos) {
            line = buffer_.substr(0, end);
            buffer_.erase(0, end + 1);
            return true;
        }
        pollfd readable{output_, POLLIN, 0};
        if (::poll(&readable, 1, remaining_ms(deadline)) <= 0) return false;
        char bytes[4096];
        const ssize_t got = ::read(output_, bytes, sizeof bytes);
        if (got <= 0) return false;
        buffer_.append(bytes, static_cast<std::size_t>(got));
    }
}

ended child::wait() {
    pollfd gone{pid_fd_, POLLIN, 0};
    const int timeout = static_cast<int>(guard.count());
    if (pid_fd_ >= 0 && ::poll(&gone, 1, timeout) <= 0) fail("did not end");
    ended out;
    int status = 0;
    rusage used{};
    ::wait4(pid_, &status, 0, &used);
    out.at_ns = monotonic_ns();
    pid_ = 0;
    out.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    for (const timeval& part : {used.ru_utime, used.ru_stime}) {
        out.cpu_ms += static_cast<double>(part.tv_sec) * 1e3 + static_cast<double>(part.tv_usec) / 1e3;
    }
    out.peak_mib = static_cast<double>(used.ru_maxrss) / 1024;  // kibibytes on Linux
    return out;
}

// ---- the backend ----

namespace {

std::vector<std::string> backend_command(std::vector<std::string> flags, const std::string& ledger) {
    std::vector<std::string> out = {program("dev_backend"), "--port", "0", "--quiet"};
    out.insert(out.end(), flags.begin(), flags.end());
    if (!ledger.empty()) out.insert(out.end(), {"--ledger", ledger});
    return out;
}

template <class T>
T value_or_failure(ojs::result<T> from) {
    if (!from) throw failure(from.error().text);
    return std::move(*from);
}

}  // namespace

backend::backend(const std::vector<std::string>& flags, bool with_ledger)
    : ledger_path_(with_ledger ? scratch("ledger") : ""),
      process_(backend_command(flags, ledger_path_)),
      port_(std::stoi(process_.await_line("listening on 127.0.0.1:"))),
      client_(value_or_failure(ojs::http_client::create(url()))) {}

std::string backend::call(const char* method, const std::string& path, std::string body) {
    ojs::http_request request;
    request.method = method;
    request.target = path;
    request.headers = {{"Content-Type", "application/json"}};
    request.body = std::move(body);
    ojs::http_call limits;
    limits.deadline = ojs::steady_clock::now() + guard;
    ojs::http_response answer = value_or_failure(client_.send(request, limits));
    if (answer.status / 100 != 2) throw failure(path + " answered " + std::to_string(answer.status));
    return std::move(answer.body);
}

void backend::push(const std::string& type, int count) {
    constexpr int most = 5000;
    for (; count > 0; count -= most) {
        std::string jobs;
        for (int i = 0; i < std::min(count, most); ++i) {
            jobs += (jobs.empty() ? "" : ",") + ("{\"type\":\"" + type + "\",\"args\":[]}");
        }
        call("POST", "/ojs/v1/jobs/batch", "{\"jobs\":[" + jobs + "]}");
    }
}

void backend::set_delay(milliseconds delay) {
    call("POST", "/dev/delay", "{\"ms\":" + std::to_string(delay.count()) + "}");
}

std::int64_t backend::jobs_in(const std::string& state) {
    return number_after(call("GET", "/dev/summary", ""), "\"" + state + "\":");
}

void backend::await_jobs_in(const std::string& state, std::int64_t count) {
    await_state(std::to_string(count) + " jobs " + state, [&] { return jobs_in(state) >= count; });
}

std::vector<std::string> backend::ledger(const std::string& event, const std::string& text) const {
    std::ifstream file(ledger_path_);
    std::vector<std::string> out;
    for (std::string line; std::getline(file, line);) {
        const bool named = line.find("\"event\":\"" + event + "\"") != std::string::npos;
        if (named && line.find(text) != std::string::npos) out.push_back(line);
    }
    return out;
}

void backend::await_in_ledger(const std::string& event, const std::string& text) const {
    await_state(event + " of " + text, [&] { return !ledger(event, text).empty(); });
}

environment worker_environment(const backend& jobs, int concurrency, const std::string& id) {
    return {{"OJS_URL", jobs.url()}, {"OJS_CONCURRENCY", std::to_string(concurrency)}, {"OJS_WORKER_ID", id}};
}

std::string new_worker_id() {
    static int count = 0;
    return "bench_worker_" + std::to_string(++count);
}

}  // namespace bench
