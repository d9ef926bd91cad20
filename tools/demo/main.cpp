// The demonstration: a backend and workers as separate processes, jobs that read real files, real signals, and the end of
// every job.
//
// It expects dev_backend and worker in its own folder, and leaves no process and no file.
#include <picojson.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ojs_shutdown.hpp"
#include "picture.hpp"
#include "stage.hpp"

namespace demo {
namespace {
using std::chrono::seconds;

constexpr const char* usage =
    R"(usage: demo [--svg FILE | --help]
Starts a backend and workers, stops them by signals, and shows how every job
ends.

  --svg FILE   draws the second shutdown as it was measured

Exit status:
  0    no job was lost and none was completed twice
  1    otherwise
  64   a wrong flag
  130  after Ctrl-C
)";

constexpr int short_ms = 600;
// The first act: jobs that end before the SIGTERM, jobs in flight, and jobs not yet started.
constexpr int early_jobs = 12;
constexpr std::array<int, concurrency> in_flight_ms = {1500, 2300, 3100, 3900};
constexpr int queued_jobs = 8;
// The second act: two jobs end while running, one in quiet, one in the drain; two are interrupted, two never started.
constexpr std::array<int, 8> mixed_ms = {700, 1000, 1900, 6000, 2000, 5000, 600, 600};
constexpr std::size_t started_of_mixed = 6;

// ---- files to count ----

// Readable, of a suitable size, and without a NUL byte at its beginning.
bool is_text_file(const fs::directory_entry& entry) {
    std::error_code failed;
    if (!entry.is_regular_file(failed)) return false;
    const std::uintmax_t size = entry.file_size(failed);
    if (failed || size < 2000 || size > 2000000) return false;
    std::ifstream file(entry.path(), std::ios::binary);
    std::array<char, 1000> head{};
    return file.read(head.data(), head.size()) && std::count(head.begin(), head.end(), '\0') == 0;
}

texts texts_below(const fs::path& folder, std::size_t max) {
    texts out;
    std::error_code failed;
    const auto skip = fs::directory_options::skip_permission_denied;
    fs::recursive_directory_iterator at(folder, skip, failed);
    for (; !failed && at != fs::recursive_directory_iterator() && out.size() < max; at.increment(failed)) {
        if (is_text_file(*at)) out.push_back(at->path().string());
    }
    return out;
}

// The files to count: texts of the system, or else the programs themselves.
texts find_files(const fs::path& programs) {
    texts out;
    for (const char* below : {"common-licenses", "perl", "doc", "perl5", "python3", "misc"}) {
        for (std::string& path : texts_below(fs::path("/usr/share") / below, 40)) out.push_back(std::move(path));
    }
    if (out.size() >= 10) return out;
    return {programs / "dev_backend", programs / "worker"};
}

// Pushes one text.count job per duration; returns their ids.
template <class Durations>
texts push_jobs(stage& stage, const std::string& queue, const texts& files, const Durations& durations_ms) {
    std::vector<ojs::enqueue_request> jobs;
    for (const int ms : durations_ms) {
        ojs::enqueue_request job;
        job.type = "text.count";
        job.queue = queue;
        job.args_json =
            "[" + ojs::json_quote(files[jobs.size() * 7 % files.size()]) + "," + std::to_string(ms) + ",1,65536]";
        jobs.push_back(std::move(job));
    }
    texts ids;
    for (const ojs::job_info& each : stage.value_of(stage.client().enqueue_batch(jobs, stage::soon())))
        ids.push_back(each.job.id);
    return ids;
}

// ---- a shutdown, printed as it happens ----

std::string progress(const account& account) {
    return std::to_string(account.in_state("completed")) + " completed, " + std::to_string(account.in_state("active")) +
           " active, " + std::to_string(account.in_state("available")) + " queued";
}

class narrator {
  public:
    narrator(stage& stage, program& worker) : stage_(stage), worker_(worker) {}

    // Sends SIGTERM, `quiet_time` after a SIGTSTP unless that is 0, and prints what happens until the process ends.
    // Returns the seconds from the first signal.
    double stop(milliseconds quiet_time = milliseconds(0)) {
        print("  before the first signal: " + progress(stage_.account()), style::faint);
        start_ns_ = monotonic_ns();
        if (quiet_time.count() > 0) {
            expected_ = "SIGTSTP received -> QUIET: no more FETCH";
            stage_.signal(worker_, SIGTSTP);
            const auto end = ojs::steady_clock::now() + quiet_time;
            watch_until([&] { return ojs::steady_clock::now() >= end; });
        }
        expected_ = "SIGTERM received -> DRAIN: no more FETCH, the jobs continue";
        stage_.signal(worker_, SIGTERM);
        watch_until([&] { return worker_.has_ended(); });
        const double took = seconds_between(start_ns_, monotonic_ns());
        line(took, worker_.name() + ": " + worker_.end().describe(), worker_.end().ok() ? style::good : style::bad);
        if (!worker_.end().ok())
            throw failed{worker_.name() + " did not settle its jobs: " + stage_.last_output(worker_.name())};
        return took;
    }

  private:
    void watch_until(const std::function<bool()>& done) {
        stage_.watch_until(done, [&](const event& event) {
            if (event.worker == worker_.name() && event.ns >= start_ns_) print_event(event);
        });
    }

    static void line(double at, const std::string& text, style style = style::plain) {
        print("t=" + one_decimal(at) + "s  " + text, style);
    }

    void print_event(const event& event) {
        const double at = seconds_between(start_ns_, event.ns);
        const picojson::value& record = event.record;
        if (event.kind == "phase") {
            const bool has_expired = text_of(record, "event") == "grace_expired";
            if (has_expired) line(at, "grace period over -> STOP: interrupt the remaining jobs", style::title);
            print_effect(at);
        } else if (event.kind == "beat") {
            const std::string state = text_of(record, "state");
            if (state != last_state_) print_effect(at);
            const bool is_first_quiet = state == "quiet" && last_state_ != "quiet";
            last_state_ = state;
            const std::string count = std::to_string(ids_of(record, "active").size());
            // The protocol has one word for both phases.
            line(at,
                 "heartbeat state=" + state + " active=" + count +
                     (is_first_quiet ? " (quiet: fetches no more jobs, in a drain too)" : ""),
                 style::faint);
        } else if (event.kind == "fetch") {
            line(at, "FETCH that was in flight, " + std::to_string(ids_of(record, "jobs").size()) + " jobs");
        } else if (event.kind == "ack") {
            line(at, "Active jobs: " + active() + " (" + std::to_string(stage_.account().in_state("completed")) +
                         " completed in all)");
        } else if (event.kind == "nack") {
            const std::string id = text_of(record, "job_id");
            line(at,
                 "FAIL " + text_of(record, "type") + " reason=" + text_of(member(record, "details"), "reason") +
                     " job .." + id.substr(id.size() - 6) + " -> " + text_of(record, "state"),
                 style::bad);
        }
    }

    // The log and the first heartbeat both show a signal's effect; either may come first.
    void print_effect(double at) {
        if (expected_.empty()) return;
        line(at, std::exchange(expected_, {}), style::title);
        print("        Active jobs: " + active());
    }

    std::string active() { return std::to_string(stage_.account().in_state("active")); }

    stage& stage_;
    program& worker_;
    std::int64_t start_ns_ = 0;
    std::string expected_;  // the effect of the last signal
    std::string last_state_ = "running";
};

// ---- the picture ----

// Draws the history of these jobs, from the start of the first of two workers to the end of the last job.
class illustrator {
  public:
    illustrator(const std::vector<event>& history, const texts& ids) : history_(history), ids_(ids) {}

    picture::timeline draw(const std::string& first, const std::string& second, const std::string& grace) {
        start_ns_ = std::min(time_of(first, "fetch"), time_of(first, "beat"));
        end_ns_ = start_ns_;
        for (std::size_t i = 0; i < ids_.size(); ++i) {
            out_.rows.push_back("job " + std::to_string(i + 1) + ", " + one_decimal(mixed_ms[i] / 1000.0) + " s");
            draw_job(i);
        }
        out_.until = at(end_ns_) + 0.2;
        for (const event& event : history_) {
            if (event.kind == "beat" && event.ns >= start_ns_ && event.ns <= end_ns_)
                out_.ticks.push_back({text_of(event.record, "state"), at(event.ns)});
            if (event.kind == "signal" && event.worker == first)
                out_.marks.push_back({event.record.to_str(), event.record.to_str(), at(event.ns)});
        }
        draw_phases(first, second, grace);
        describe();
        return out_;
    }

  private:
    double at(std::int64_t ns) const { return seconds_between(start_ns_, ns); }

    // The time of a worker's first event of that kind; `phase`: of its first change to it.
    std::int64_t time_of(const std::string& worker, const char* kind, const char* phase = nullptr) const {
        for (const event& event : history_) {
            if (event.worker != worker || event.kind != kind) continue;
            if (phase == nullptr || text_of(event.record, "phase") == phase) return event.ns;
        }
        throw failed{worker + " was never " + (phase != nullptr ? phase : kind)};
    }

    void draw_job(std::size_t row) {
        std::int64_t since = start_ns_;
        for (const event& event : history_) {
            if (event.kind == "fetch") {
                const texts jobs = ids_of(event.record, "jobs");
                if (std::find(jobs.begin(), jobs.end(), ids_[row]) == jobs.end()) continue;
                if (event.ns > since) out_.waits.push_back({row, at(since), at(event.ns)});
                since = event.ns;
            } else if ((event.kind == "ack" || event.kind == "nack") && text_of(event.record, "job_id") == ids_[row]) {
                out_.bars.push_back({row, event.kind == "ack", at(since), at(event.ns)});
                since = event.ns;
            }
        }
        end_ns_ = std::max(end_ns_, since);
    }

    void draw_phases(const std::string& first, const std::string& second, const std::string& grace) {
        // A signal handler acts at once. The log shows a phase a little later, while jobs are already being reported.
        const double quiet = out_.marks.at(0).at;
        const double draining = out_.marks.at(1).at;
        const double stopping = at(std::min(time_of(first, "phase", "stopping"), time_of(first, "nack")));
        const double ended = at(time_of(first, "phase", "terminated"));
        out_.bands = {{"running", first + ": running", 0, quiet},
                      {"quiet", "quiet", quiet, draining},
                      {"draining", "draining, at most " + grace, draining, stopping},
                      {"stopping", "", stopping, ended},
                      {"running", second + ": running", at(time_of(second, "beat")), out_.until}};
        std::array<char, 60> text{};
        std::snprintf(text.data(), text.size(), "grace period over: stopped in %.0f ms", (ended - stopping) * 1000);
        out_.marks.push_back({"", text.data(), stopping});
    }

    void describe() {
        const auto done = std::count_if(out_.bars.begin(), out_.bars.end(), [](const auto& bar) { return bar.done; });
        const auto number = [](auto count) { return std::to_string(count); };
        out_.title = "Timeline of a shutdown, as it was measured";
        out_.description = number(ids_.size()) + " jobs in " + number(out_.bars.size()) +
                           " runs. After SIGTSTP no job starts; after SIGTERM running jobs continue until the "
                           "grace period is over. " +
                           number(out_.bars.size() - static_cast<std::size_t>(done)) +
                           " are then requeued, and another worker continues them from their checkpoints. " +
                           number(done) + " are completed, none is lost.";
    }

    const std::vector<event>& history_;
    const texts& ids_;
    std::int64_t start_ns_ = 0;
    std::int64_t end_ns_ = 0;
    picture::timeline out_;
};

// ---- the acts ----

// Lets the worker run until `done`, and prints its progress each second.
void let_run(stage& stage, program& worker, const std::function<bool()>& done) {
    const auto start = ojs::steady_clock::now();
    int shown = 0;
    stage.watch_until([&] {
        const auto now = ojs::steady_clock::now();
        if (now >= start + seconds(shown + 1)) {
            print("  after " + std::to_string(++shown) + "s: " + progress(stage.account()), style::faint);
        }
        if (worker.has_ended()) throw failed{worker.name() + " ended by itself: " + stage.last_output(worker.name())};
        return done();
    });
}

// The backend's own counters must agree with its ledger.
void compare_with_backend(stage& stage) {
    std::int64_t available = 0;
    std::int64_t active = 0;
    for (const ojs::queue_info& queue : stage.value_of(stage.client().queues(stage::soon()))) {
        available += queue.available;
        active += queue.active;
    }
    if (available != stage.account().in_state("available") || active != stage.account().in_state("active"))
        throw failed{"the backend's queues and its ledger disagree: " + std::to_string(available) + " available, " +
                     std::to_string(active) + " active"};
}

void show_account(stage& stage) {
    const account& account = stage.account();
    const auto row = [](const char* name, std::int64_t count, style style = style::plain) {
        std::string number = std::to_string(count);
        number.insert(0, number.size() < 4 ? 4 - number.size() : 0, ' ');
        print("  " + number + "  " + name, style);
    };
    print("\nThe backend's record:", style::title);
    row("pushed", account.pushed());
    row("completed", account.in_state("completed"));
    row("requeued by a worker", static_cast<std::int64_t>(account.requeued().size()));
    row("still queued", account.in_state("available"));
    row("lost", account.lost(), account.lost() == 0 ? style::good : style::bad);
    row("duplicated", account.duplicated(), account.duplicated() == 0 ? style::good : style::bad);
    compare_with_backend(stage);
    if (account.lost() != 0 || account.duplicated() != 0) throw failed{"jobs were lost or completed twice"};
}

void show_last_result(const account& account) {
    const picojson::value& result = account.last_result();
    print("The last result: " + fs::path(text_of(result, "path")).filename().string() + ", " +
              text_of(result, "lines") + " lines, " + text_of(result, "words") + " words, crc32 " +
              text_of(result, "crc32"),
          style::faint);
}

void patient_act(stage& stage, const texts& files) {
    std::vector<int> durations(early_jobs, short_ms);
    durations.insert(durations.end(), in_flight_ms.begin(), in_flight_ms.end());
    durations.insert(durations.end(), queued_jobs, short_ms);
    const texts ids = push_jobs(stage, "texts", files, durations);
    program worker = stage.start_worker("worker-1", "texts", "20s");
    print("worker   pid " + worker.pid() + ", " + std::to_string(concurrency) + " jobs at a time");
    print("jobs     " + std::to_string(ids.size()) + " text.count over " + std::to_string(files.size()) +
          " files, such as " + files.front());

    print("\n1. A shutdown with enough time (grace period 20s)", style::title);
    const std::string& last_in_flight = ids[early_jobs + concurrency - 1];
    let_run(stage, worker, [&] { return stage.account().was_claimed(last_in_flight); });
    stage.watch_for(milliseconds(500));
    const double took = narrator(stage, worker).stop();
    print("Total shutdown time: " + one_decimal(took) + " seconds (within the 20s grace period)");
    show_account(stage);
    show_last_result(stage.account());
}

std::string list_of(const std::vector<std::int64_t>& numbers) {
    std::string out;
    for (const std::int64_t each : numbers) out += (out.empty() ? "" : ", ") + std::to_string(each);
    return out;
}

// Interrupted jobs, and the progress in their checkpoints.
struct interrupted_jobs {
    texts ids;
    std::vector<std::int64_t> passes;
};

interrupted_jobs check_back_in_queue(stage& stage) {
    interrupted_jobs out{stage.account().requeued(), {}};
    if (out.ids.empty()) throw failed{"no job was interrupted"};
    for (const std::string& id : out.ids) {
        const std::string state = stage.value_of(stage.client().get(id, stage::soon())).state;
        if (state != "available") throw failed{"job " + id + " is " + state + ", not back in the queue"};
        out.passes.push_back(stage.account().last_pass(id));
    }
    print("The " + std::to_string(out.ids.size()) + " interrupted jobs are back in the queue: state available");
    print("Their checkpoints hold their progress: pass " + list_of(out.passes));
    return out;
}

void check_resumed(const account& account, const interrupted_jobs& jobs) {
    std::vector<std::int64_t> resumed;
    for (std::size_t i = 0; i < jobs.ids.size(); ++i) {
        resumed.push_back(account.first_pass(jobs.ids[i]));
        if (resumed[i] < jobs.passes[i]) throw failed{"job " + jobs.ids[i] + " started over"};
    }
    print("The interrupted jobs continued from there: in pass " + list_of(resumed));
}

constexpr const char* hasty_grace = "2s";

// Returns its jobs.
texts hasty_act(stage& stage, const texts& files) {
    print("\n2. A shutdown without: quiet first, as in a preStop hook, then a grace period of " +
              std::string(hasty_grace),
          style::title);
    texts ids = push_jobs(stage, "mixed", files, mixed_ms);
    program worker = stage.start_worker("worker-2", "mixed", hasty_grace);
    let_run(stage, worker, [&] { return stage.account().was_claimed(ids[started_of_mixed - 1]); });
    stage.watch_for(milliseconds(400));
    narrator(stage, worker).stop(milliseconds(800));
    return ids;
}

void last_act(stage& stage) {
    const interrupted_jobs left = check_back_in_queue(stage);
    print("\n3. Another worker finishes everything", style::title);
    program worker = stage.start_worker("worker-3", "mixed,texts", "20s");
    let_run(stage, worker, [&] { return stage.account().in_state("completed") == stage.account().pushed(); });
    narrator(stage, worker).stop();
    check_resumed(stage.account(), left);
    show_account(stage);
}

void write_picture(const std::string& path, const std::string& svg) {
    std::ofstream file(path, std::ios::trunc);
    if (!(file << svg).flush()) throw failed{"cannot write " + path};
    print("The second shutdown is drawn in " + path);
}

void play(const fs::path& folder, ojs::lifecycle& lifecycle, ojs::signals& signals, const std::string& svg) {
    if (!svg.empty() && !std::ofstream(svg, std::ios::app)) throw failed{"cannot write " + svg};
    stage stage(folder, lifecycle, signals);
    print("A backend and a worker, real jobs, a real SIGTERM: how every job ends", style::title);
    print("backend  pid " + stage.backend().pid() + " on " + stage.address() + ", in memory");
    const texts files = find_files(folder);
    patient_act(stage, files);
    const texts drawn = hasty_act(stage, files);
    last_act(stage);
    print("\nEvery job was completed once; none was lost.", style::good);
    if (svg.empty()) return;
    const picture::timeline scene = illustrator(stage.history(), drawn).draw("worker-2", "worker-3", hasty_grace);
    write_picture(svg, picture::drawing(scene).svg());
}

fs::path own_folder(const char* argv0) {
    std::error_code failed;
    const fs::path link = fs::read_symlink("/proc/self/exe", failed);
    return (failed ? fs::absolute(argv0) : link).parent_path();
}
}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
    using namespace demo;
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);
    if (!signals) return ojs::report_startup_error(signals.error());
    const std::string_view flag = argc > 1 ? argv[1] : "";
    if (flag == "--help" && argc == 2) return std::fputs(usage, stdout) < 0 ? 1 : 0;
    if (argc > 1 && !(flag == "--svg" && argc == 3 && *argv[2] != '\0'))
        return ojs::report_startup_error(
            {ojs::errc::invalid_argument, 0, "demo takes --svg FILE or nothing; see --help"});
    signal(SIGPIPE, SIG_IGN);
    try {
        play(own_folder(argv[0]), lifecycle, *signals, argc > 1 ? argv[2] : "");
    } catch (const interrupted& by) {
        std::fputs("\ninterrupted: everything that was started is stopped\n", stderr);
        return 128 + (by.signal != 0 ? by.signal : SIGINT);
    } catch (const failed& reason) {
        std::fprintf(stderr, "demo failed: %s\n", reason.why.c_str());
        return 1;
    }
    return 0;
}
