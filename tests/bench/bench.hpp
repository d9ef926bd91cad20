// What the measurements share: samples, the table, programs as real processes, and the example backend.
#pragma once
#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <ojs_shutdown.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

using std::chrono::milliseconds;

// A measurement that could not be made, and why. Figures that miss their target are none.
struct failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// How long to wait for what must happen: it ends a measurement that would hang.
inline constexpr milliseconds guard{60000};

std::int64_t monotonic_ns();

// ---- samples ----

using samples = std::vector<double>;

double median(samples values);

// What was measured, and its floor, in pairs of the same round.
struct paired {
    samples ours;
    samples floor;
};

// A B A B ..., so that whatever else the machine does meets both alike.
template <class Ours, class Floor>
paired interleave(int rounds, Ours ours, Floor floor) {
    paired out;
    for (int i = 0; i < rounds; ++i) {
        out.ours.push_back(ours());
        out.floor.push_back(floor());
    }
    return out;
}

// ---- the table ----

struct target {
    enum class kind { none, at_most, at_least } what = kind::none;
    double limit = 0;
};
inline target at_most(double limit) {
    return {target::kind::at_most, limit};
}
inline target at_least(double limit) {
    return {target::kind::at_least, limit};
}

class table {
  public:
    // One row each. The target of the first is of the ratio: the median over the rounds of ours / floor. That of the
    // second is of our figure, and a floor is shown where there is one.
    void add_ratio(const std::string& name, const char* unit, const paired& measured, target wanted = {});
    void add(const std::string& name, const char* unit, const samples& ours, target wanted = {},
             const samples& floor = {});
    void add_failed(const std::string& name, const std::string& why);
    // A line below the table.
    void note(const std::string& text) { notes_.push_back(text); }
    void print() const;

  private:
    struct row {
        std::string name;
        std::string ours;
        std::string floor;
        std::string ratio;
        std::string wanted;
        std::string verdict;
    };
    std::vector<row> rows_;
    std::vector<std::string> notes_;
};

void progress(const std::string& what);  // a line on standard error
std::string text_of(double number);      // three significant digits, or whole

// ---- files and programs ----

std::string scratch(const std::string& name);    // a path in a folder that is removed at exit
std::string program(const std::string& name);    // beside this one
std::string read_file(const std::string& path);  // empty if it cannot be read
// The numbers after every occurrence of `key`, up to 64 bits: enough to read a ledger or /proc.
std::vector<std::int64_t> numbers_after(std::string_view text, std::string_view key);
std::int64_t number_after(std::string_view text, std::string_view key);

using environment = std::map<std::string, std::string>;

struct ended {
    int status = 0;          // exit status, or minus the signal
    std::int64_t at_ns = 0;  // when that was noticed
    double cpu_ms = 0;       // user and system time
    double peak_mib = 0;     // of memory
};

// A program; its standard output is read line by line, its standard error goes to a file. Killed, by its id, with the
// object.
class child {
  public:
    explicit child(std::vector<std::string> command, const environment& extra = {});
    child(const child&) = delete;
    child& operator=(const child&) = delete;
    ~child();

    pid_t pid() const { return pid_; }
    void signal(int number) const;
    // The rest of the next line of output that starts so; lines before it are skipped.
    std::string await_line(const std::string& start);
    ended wait();  // for its end
    std::string errors() const { return read_file(error_path_); }

  private:
    [[noreturn]] void exec(const std::vector<std::string>& command, const environment& extra, int output);
    bool next_line(std::string& line);
    [[noreturn]] void fail(const std::string& what) const;

    std::string name_;
    std::string error_path_;
    std::string buffer_;
    pid_t pid_ = 0;
    int pid_fd_ = -1;
    int output_ = -1;
};

// Waits until every thread of a process sleeps (one thread, where `task` names it).
void await_asleep(pid_t process);
void await_asleep(pid_t process, pid_t task);

// tools/dev_backend.
class backend {
  public:
    explicit backend(const std::vector<std::string>& flags = {}, bool with_ledger = false);

    int port() const { return port_; }
    std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
    void push(const std::string& type, int count);
    void set_delay(milliseconds delay);
    std::int64_t jobs_in(const std::string& state);  // as /dev/summary has it
    void await_jobs_in(const std::string& state, std::int64_t count);
    // The ledger's lines of this event that hold `text`, too.
    std::vector<std::string> ledger(const std::string& event, const std::string& text) const;
    void await_in_ledger(const std::string& event, const std::string& text) const;

  private:
    std::string call(const char* method, const std::string& path, std::string body);
    std::string ledger_path_;
    child process_;
    int port_;
    ojs::http_client client_;
};

// The settings of a worker for this backend; it names itself `id`.
environment worker_environment(const backend& jobs, int concurrency, const std::string& id);
std::string new_worker_id();

// ---- this program as a child: see children.cpp ----

std::vector<std::string> self_as(const std::string& role, const std::vector<std::string>& arguments = {});
int run_as(const std::string& role, const std::vector<std::string>& arguments);
// Of them, those in server.cpp.
int draining_server_role(const std::vector<std::string>& arguments);
int epoll_server_role(const std::vector<std::string>& arguments);
int load_client_role(const std::vector<std::string>& arguments);
// Those in launcher.cpp.
int trivial_child(const std::vector<std::string>& arguments);
int launcher_role(const std::vector<std::string>& arguments);

// ---- the measurements ----

struct measurement {
    const char* name;
    const char* how;
    void (*run)(table&);
};

void signal_to_phase(table& out);
void signal_to_awake(table& out);
void barrier(table& out);
void throughput(table& out);
void backend_rate(table& out);
void server_rate(table& out);
void spool(table& out);
void settled_to_gone(table& out);
void term_to_gone(table& out);
void forced_stop(table& out);
void termination_decision(table& out);
void idle_wakeups(table& out);
void memory(table& out);
void binary_size(table& out);
void compile_time(table& out);
void rolling_jobs(table& out);
void rolling_requests(table& out);
void launcher_times(table& out);
void launcher_cost(table& out);
void launcher_polls(table& out);
void launcher_stop(table& out);
void launcher_leaks(table& out);
void launcher_shutdowns(table& out);

}  // namespace bench
