// The demonstration: a backend and workers as processes of their own, jobs that read real files, real signals in the
// middle, and what became of every job.
//
// It expects dev_backend and worker beside itself, and leaves nothing behind: no process, no file.
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
    "usage: demo [--svg FILE | --help]\n"
    "Starts a backend and workers, stops them by signals, and shows what becomes of every job.\n"
    "\n"
    "  --svg FILE   draws the second shutdown, by the times that were measured\n"
    "\n"
    "Exit status: 0 no job was lost and none was done twice; 1 otherwise; 64 a wrong flag; 130 after "
    "Ctrl-C.\n";

constexpr int short_ms = 600;
// The first act: jobs that are done before the SIGTERM comes, jobs that are running then, and jobs not yet begun.
constexpr int early_jobs = 12;
constexpr std::array<int, concurrency> in_flight_ms = {1500, 2300, 3100, 3900};
constexpr int queued_jobs = 8;
// The second act: two jobs are done while all is well, one in quiet, one in the drain; two are interrupted, and two
// never begun.
constexpr std::array<int, 8> mixed_ms = {700, 1000, 1900, 6000, 2000, 5000, 600, 600};
constexpr std::size_t begun_of_mixed = 6;

// ---- files to count ----

// Of a size that is worth reading, readable, and without a NUL byte at its beginning.
bool is_text_file(const fs::directory_entry& entry) {
    std::error_code failed;
    if (!entry.is_regular_file(failed)) return false;
    const std::uintmax_t size = entry.file_size(failed);
    if (failed || size < 2000 || size > 2000000) return false;
    std::ifstream file(entry.path(), std::ios::binary);
    std::array<char, 1000> head{};
    return file.read(head.data(), head.size()) && std::count(head.begin(), head.end(), '\0') == 0;
}

texts texts_below(const fs::path& folder, std::size_t most) {
    texts out;
    std::error_code failed;
    const auto skip = fs::directory_options::skip_permission_denied;
    fs::recursive_directory_iterator at(folder, skip, failed);
    for (; !failed && at != fs::recursive_directory_iterator() && out.size() < most; at.increment(failed)) {
        if (is_text_file(*at)) out.push_back(at->path().string());
    }
    return out;
}

// What there is to count: texts of the system, or else the programs themselves.
texts find_files(const fs::path& programs) {
    texts out;
    for (const char* below : {"common-licenses", "perl", "doc", "perl5", "python3", "misc"}) {
        for (std::string& path : texts_below(fs::path("/usr/share") / below, 40))
            out.push_back(std::move(path));
    }
    if (out.size() >= 10) return out;
    return {programs / "dev_backend", programs / "worker"};
}

// Pushes one text.count job a duration; returns their ids.
template <class Durations>
texts push_jobs(stage& on, const std::string& queue, const texts& files, const Durations& durations_ms) {
    constexpr double passes = 1;
    constexpr double checkpoint_bytes = 64 * 1024;
    picojson::array jobs;
    for (const int ms : durations_ms) {
        const std::string& file = files[jobs.size() * 7 % files.size()];
        picojson::object options;
        options["queue"] = picojson::value(queue);
        picojson::object job;
        job["type"] = picojson::value("text.count");
        job["args"] =
            picojson::value(picojson::array{picojson::value(file), picojson::value(static_cast<double>(ms)),
                                            picojson::value(passes), picojson::value(checkpoint_bytes)});
        job["options"] = picojson::value(options);
        jobs.emplace_back(job);
    }
    picojson::object body;
    body["jobs"] = picojson::value(jobs);
    const picojson::value answer = on.call("POST", "/ojs/v1/jobs/batch", picojson::value(body).serialize());
    texts ids;
    for (const picojson::value& job : member(answer, "jobs").get<picojson::array>())
        ids.push_back(text_of(job, "id"));
    return ids;
}

// ---- a shutdown, told as it happens ----

class narrator {
  public:
    narrator(stage& on, program& worker) : on_(on), worker_(worker) {}

    // Sends SIGTERM, after a SIGTSTP if `quiet_first` says so, and tells what happens until the process is gone.
    // Returns the seconds that took, from the first signal.
    double stop(milliseconds quiet_first = milliseconds(0)) {
        start_ns_ = monotonic_ns();
        if (quiet_first.count() > 0) {
            awaited_ = "SIGTSTP received -> QUIET: no more FETCH";
            on_.signal(worker_, SIGTSTP);
            const auto end = ojs::steady_clock::now() + quiet_first;
            watch_until([&] { return ojs::steady_clock::now() >= end; });
        }
        awaited_ = "SIGTERM received -> DRAIN: no more FETCH, the jobs go on";
        on_.signal(worker_, SIGTERM);
        watch_until([&] { return worker_.has_ended(); });
        const double took = seconds_between(start_ns_, monotonic_ns());
        line(took, worker_.name() + ": " + worker_.end().describe(),
             worker_.end().ok() ? style::good : style::bad);
        if (!worker_.end().ok())
            throw failed{worker_.name() + " did not settle its jobs: " + on_.last_words(worker_.name())};
        return took;
    }

  private:
    void watch_until(const std::function<bool()>& done) {
        on_.watch_until(done, [&](const happening& event) {
            if (event.worker == worker_.name() && event.ns >= start_ns_) tell(event);
        });
    }

    static void line(double at, const std::string& text, style how = style::plain) {
        say("t=" + one_decimal(at) + "s  " + text, how);
    }

    void tell(const happening& event) {
        const double at = seconds_between(start_ns_, event.ns);
        const picojson::value& record = event.record;
        if (event.what == "phase") {
            const bool too_long = text_of(record, "event") == "grace_expired";
            if (too_long) line(at, "grace period over -> STOP: interrupt what is left", style::title);
            tell_effect(at);
        } else if (event.what == "beat") {
            const std::string state = text_of(record, "state");
            if (state != said_state_) tell_effect(at);
            said_state_ = state;
            const std::string count = std::to_string(ids_of(record, "active").size());
            line(at, "heartbeat state=" + state + " active=" + count, style::faint);
        } else if (event.what == "fetch") {
            line(at, "FETCH that was under way, " + std::to_string(ids_of(record, "jobs").size()) + " jobs");
        } else if (event.what == "ack") {
            ++completed_;
            line(at, "Active jobs: " + active() + " (" + std::to_string(completed_) + " completed)");
        } else if (event.what == "nack") {
            const std::string id = text_of(record, "job_id");
            line(at,
                 "FAIL " + text_of(record, "type") +
                     " reason=" + text_of(member(record, "details"), "reason") + " job .." +
                     id.substr(id.size() - 6) + " -> " + text_of(record, "state"),
                 style::bad);
        }
    }

    // The log and the first heartbeat both tell of a signal's effect; either may be seen first.
    void tell_effect(double at) {
        if (awaited_.empty()) return;
        line(at, std::exchange(awaited_, {}), style::title);
        say("        Active jobs: " + active());
    }

    std::string active() { return std::to_string(on_.books().in_state("active")); }

    stage& on_;
    program& worker_;
    std::int64_t start_ns_ = 0;
    int completed_ = 0;
    std::string awaited_;  // what the last signal should bring about
    std::string said_state_ = "running";
};

// ---- the picture ----

// Draws what is in the history about these jobs, from the start of the first of two workers to the end of the last job.
class illustrator {
  public:
    illustrator(const std::vector<happening>& history, const texts& ids) : history_(history), ids_(ids) {}

    picture::timeline draw(const std::string& first, const std::string& second, const std::string& grace) {
        start_ns_ = std::min(moment(first, "fetch"), moment(first, "beat"));
        end_ns_ = start_ns_;
        for (std::size_t i = 0; i < ids_.size(); ++i) {
            out_.rows.push_back("job " + std::to_string(i + 1) + ", " + one_decimal(mixed_ms[i] / 1000.0) +
                                " s");
            draw_job(i);
        }
        out_.until = at(end_ns_) + 0.2;
        for (const happening& each : history_) {
            if (each.what == "beat" && each.ns >= start_ns_ && each.ns <= end_ns_)
                out_.ticks.push_back({text_of(each.record, "state"), at(each.ns)});
            if (each.what == "signal" && each.worker == first)
                out_.marks.push_back({each.record.to_str(), each.record.to_str(), at(each.ns)});
        }
        draw_phases(first, second, grace);
        describe();
        return out_;
    }

  private:
    double at(std::int64_t ns) const { return seconds_between(start_ns_, ns); }

    // When a worker first did that; a phase is one that it came to.
    std::int64_t moment(const std::string& worker, const char* what, const char* phase = nullptr) const {
        for (const happening& each : history_) {
            if (each.worker != worker || each.what != what) continue;
            if (phase == nullptr || text_of(each.record, "phase") == phase) return each.ns;
        }
        throw failed{worker + " was never " + (phase != nullptr ? phase : what)};
    }

    void draw_job(std::size_t row) {
        std::int64_t since = start_ns_;
        for (const happening& each : history_) {
            if (each.what == "fetch") {
                const texts jobs = ids_of(each.record, "jobs");
                if (std::find(jobs.begin(), jobs.end(), ids_[row]) == jobs.end()) continue;
                if (each.ns > since) out_.waits.push_back({row, at(since), at(each.ns)});
                since = each.ns;
            } else if ((each.what == "ack" || each.what == "nack") &&
                       text_of(each.record, "job_id") == ids_[row]) {
                out_.bars.push_back({row, each.what == "ack", at(since), at(each.ns)});
                since = each.ns;
            }
        }
        end_ns_ = std::max(end_ns_, since);
    }

    void draw_phases(const std::string& first, const std::string& second, const std::string& grace) {
        // A signal handler acts at once. The log tells of a phase a little later, while jobs are being reported already.
        const double quiet = out_.marks.at(0).at;
        const double draining = out_.marks.at(1).at;
        const double stopping = at(std::min(moment(first, "phase", "stopping"), moment(first, "nack")));
        const double ended = at(moment(first, "phase", "terminated"));
        out_.bands = {{"running", first + ": running", 0, quiet},
                      {"quiet", "quiet", quiet, draining},
                      {"draining", "draining, at most " + grace, draining, stopping},
                      {"stopping", "", stopping, ended},
                      {"running", second + ": running", at(moment(second, "beat")), out_.until}};
        std::array<char, 60> text{};
        std::snprintf(text.data(), text.size(), "grace period over: stopped in %.0f ms",
                      (ended - stopping) * 1000);
        out_.marks.push_back({"", text.data(), stopping});
    }

    void describe() {
        const auto done =
            std::count_if(out_.bars.begin(), out_.bars.end(), [](const auto& bar) { return bar.done; });
        const auto number = [](auto of) { return std::to_string(of); };
        out_.title = "Timeline of a shutdown, as it was measured";
        out_.description =
            number(ids_.size()) + " jobs in " + number(out_.bars.size()) +
            " runs. After SIGTSTP no job is begun; after SIGTERM those that run go on until the "
            "grace period is over. " +
            number(out_.bars.size() - static_cast<std::size_t>(done)) +
            " are handed back then, and another worker finishes them from where they were. " + number(done) +
            " are done in the end, none is lost.";
    }

    const std::vector<happening>& history_;
    const texts& ids_;
    std::int64_t start_ns_ = 0;
    std::int64_t end_ns_ = 0;
    picture::timeline out_;
};

// ---- the acts ----

std::string progress(const account& books) {
    return std::to_string(books.in_state("completed")) + " completed, " +
           std::to_string(books.in_state("active")) + " active, " +
           std::to_string(books.in_state("available")) + " queued";
}

// Lets the worker run until `done`, with a line of progress a second.
void let_run(stage& on, program& worker, const std::function<bool()>& done) {
    const auto start = ojs::steady_clock::now();
    int shown = 0;
    on.watch_until([&] {
        const auto now = ojs::steady_clock::now();
        if (now >= start + seconds(shown + 1)) {
            say("  after " + std::to_string(++shown) + "s: " + progress(on.books()), style::faint);
        }
        if (worker.has_ended())
            throw failed{worker.name() + " ended by itself: " + on.last_words(worker.name())};
        return done();
    });
}

// What the backend itself counts must agree with what we read in its ledger.
void compare_with_backend(stage& on) {
    const picojson::value summary = on.call("GET", "/dev/summary");
    const account& books = on.books();
    if (number_of(summary, "pushed") != books.pushed() ||
        number_of(summary, "completed") != books.in_state("completed") ||
        number_of(summary, "available") != books.in_state("available") ||
        number_of(summary, "active") != books.in_state("active")) {
        throw failed{"the backend's summary and its ledger disagree: " + summary.serialize()};
    }
}

void show_account(stage& on) {
    const account& books = on.books();
    const auto row = [](const char* name, std::int64_t count, style how = style::plain) {
        std::string number = std::to_string(count);
        number.insert(0, number.size() < 4 ? 4 - number.size() : 0, ' ');
        say("  " + number + "  " + name, how);
    };
    say("\nThe backend's account:", style::title);
    row("pushed", books.pushed());
    row("completed", books.in_state("completed"));
    row("handed back by a worker", static_cast<std::int64_t>(books.handed_back().size()));
    row("still queued", books.in_state("available"));
    row("lost", books.lost(), books.lost() == 0 ? style::good : style::bad);
    row("duplicated", books.duplicated(), books.duplicated() == 0 ? style::good : style::bad);
    compare_with_backend(on);
    if (books.lost() != 0 || books.duplicated() != 0) throw failed{"jobs were lost or done twice"};
}

void show_last_result(const account& books) {
    const picojson::value& result = books.last_result();
    say("The last result: " + fs::path(text_of(result, "path")).filename().string() + ", " +
            text_of(result, "lines") + " lines, " + text_of(result, "words") + " words, crc32 " +
            text_of(result, "crc32"),
        style::faint);
}

void patient_act(stage& on, const texts& files) {
    std::vector<int> durations(early_jobs, short_ms);
    durations.insert(durations.end(), in_flight_ms.begin(), in_flight_ms.end());
    durations.insert(durations.end(), queued_jobs, short_ms);
    const texts ids = push_jobs(on, "texts", files, durations);
    program worker = on.start_worker("worker-1", "texts", "20s");
    say("worker   pid " + worker.pid() + ", " + std::to_string(concurrency) + " jobs at a time");
    say("jobs     " + std::to_string(ids.size()) + " text.count over " + std::to_string(files.size()) +
        " files, such as " + files.front());

    say("\n1. A shutdown with time enough (grace period 20s)", style::title);
    const std::string& last_in_flight = ids[early_jobs + concurrency - 1];
    let_run(on, worker, [&] { return on.books().was_claimed(last_in_flight); });
    on.watch_for(milliseconds(500));
    const double took = narrator(on, worker).stop();
    say("Total shutdown time: " + one_decimal(took) + " seconds (within the 20s grace period)");
    show_account(on);
    show_last_result(on.books());
}

std::string list_of(const std::vector<std::int64_t>& numbers) {
    std::string out;
    for (const std::int64_t each : numbers) out += (out.empty() ? "" : ", ") + std::to_string(each);
    return out;
}

// Interrupted jobs, and how far their checkpoints say they have come.
struct interrupted_jobs {
    texts ids;
    std::vector<std::int64_t> passes;
};

interrupted_jobs check_back_in_queue(stage& on) {
    interrupted_jobs out{on.books().handed_back(), {}};
    if (out.ids.empty()) throw failed{"no job was interrupted"};
    for (const std::string& id : out.ids) {
        const std::string state = text_of(member(on.call("GET", "/ojs/v1/jobs/" + id), "job"), "state");
        if (state != "available") throw failed{"job " + id + " is " + state + ", not back in the queue"};
        out.passes.push_back(on.books().last_pass(id));
    }
    say("The " + std::to_string(out.ids.size()) + " interrupted jobs are back in the queue: state available");
    say("Their checkpoints tell how far they came: pass " + list_of(out.passes));
    return out;
}

void check_resumed(const account& books, const interrupted_jobs& jobs) {
    std::vector<std::int64_t> resumed;
    for (std::size_t i = 0; i < jobs.ids.size(); ++i) {
        resumed.push_back(books.first_pass(jobs.ids[i]));
        if (resumed[i] < jobs.passes[i]) throw failed{"job " + jobs.ids[i] + " started over"};
    }
    say("The interrupted jobs went on from there: in pass " + list_of(resumed));
}

constexpr const char* hasty_grace = "2s";

// Returns its jobs.
texts hasty_act(stage& on, const texts& files) {
    say("\n2. A shutdown without: quiet first, as a preStop hook has it, then a grace period of " +
            std::string(hasty_grace),
        style::title);
    texts ids = push_jobs(on, "mixed", files, mixed_ms);
    program worker = on.start_worker("worker-2", "mixed", hasty_grace);
    let_run(on, worker, [&] { return on.books().was_claimed(ids[begun_of_mixed - 1]); });
    on.watch_for(milliseconds(400));
    narrator(on, worker).stop(milliseconds(800));
    return ids;
}

void last_act(stage& on) {
    const interrupted_jobs left = check_back_in_queue(on);
    say("\n3. Another worker finishes everything", style::title);
    program worker = on.start_worker("worker-3", "mixed,texts", "20s");
    let_run(on, worker, [&] { return on.books().in_state("completed") == on.books().pushed(); });
    narrator(on, worker).stop();
    check_resumed(on.books(), left);
    show_account(on);
}

void write_picture(const std::string& path, const std::string& svg) {
    std::ofstream file(path, std::ios::trunc);
    if (!(file << svg).flush()) throw failed{"cannot write " + path};
    say("The second shutdown is drawn in " + path);
}

void play(const fs::path& folder, ojs::lifecycle& lifecycle, ojs::signals& signals, const std::string& svg) {
    if (!svg.empty() && !std::ofstream(svg, std::ios::app)) throw failed{"cannot write " + svg};
    stage on(folder, lifecycle, signals);
    say("A backend and a worker, real jobs, a real SIGTERM: what becomes of every job", style::title);
    say("backend  pid " + on.backend().pid() + " on " + on.address() + ", in memory");
    const texts files = find_files(folder);
    patient_act(on, files);
    const texts drawn = hasty_act(on, files);
    last_act(on);
    say("\nEvery job was completed once; none was lost.", style::good);
    if (svg.empty()) return;
    const picture::timeline scene =
        illustrator(on.history(), drawn).draw("worker-2", "worker-3", hasty_grace);
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
    if (!signals) return ojs::report_usage(signals.error());
    const std::string_view flag = argc > 1 ? argv[1] : "";
    if (flag == "--help" && argc == 2) return std::fputs(usage, stdout) < 0 ? 1 : 0;
    if (argc > 1 && !(flag == "--svg" && argc == 3 && *argv[2] != '\0'))
        return ojs::report_usage(
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
