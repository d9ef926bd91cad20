// A spool directory under fire: workers that are killed outright at random moments, and the flag that puts jobs in.
// Settings from the environment:
//
//   OJS_TEST_SEED         repeats a run's random choices (it is printed)
//   OJS_TEST_SPOOL_JOBS   how many jobs; default 600
#include <random>
#include <sstream>

#include "files.hpp"
#include "harness.hpp"

using namespace test;
namespace fs = std::filesystem;

namespace {

// Visible names only: what begins with a dot is no job.
std::multiset<std::string> names_in(const fs::path& folder) {
    std::multiset<std::string> out;
    std::error_code gone;
    for (const auto& each : fs::directory_iterator(folder, gone)) {
        const std::string name = each.path().filename();
        if (name.front() != '.') out.insert(name);
    }
    return out;
}

// Folders of workers. One killed while it made its own leaves an empty one, for a minute.
int owners_in(const fs::path& directory) {
    int out = 0;
    for (const std::string& folder : names_in(directory / "processing")) {
        std::error_code gone;
        out += fs::is_empty(directory / "processing" / folder, gone) || gone ? 0 : 1;
    }
    return out;
}

enum class fate { done, discarded, either };

// The directory, what was put into it, and what must become of it.
class field {
  public:
    explicit field(std::uint64_t seed) : random_(seed), path_(scratch_file("spool")) {
        for (const fs::path& folder : {path_, path_ / "markers", path_ / "request"})
            REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
    }

    int below(int end) { return static_cast<int>(random_() % static_cast<std::uint64_t>(end)); }

    void put(int number) {
        const std::string name = "j" + std::to_string(number);
        const int kind = below(10);
        const fate what = kind == 0 ? fate::discarded : kind == 1 ? fate::either : fate::done;
        const std::string end = what == fate::discarded ? "discard" : "done";
        const int attempts = what == fate::either ? 2 : 1000000;
        put_file(name, "[" + std::to_string(below(4000)) + ",\"" + end +
                           "\"],\"max_attempts\":" + std::to_string(attempts));
        fates_[name] = what;
    }

    process start(const char* log_level = "warn") {
        return process({program("spool_worker")}, {{"OJS_URL", "spool:" + path_.string()},
                                                   {"TEST_MARKERS", (path_ / "markers").string()},
                                                   {"TEST_LEDGER", (path_ / "ledger").string()},
                                                   {"OJS_CONCURRENCY", "4"},
                                                   {"OJS_POLL_INTERVAL", "20ms"},
                                                   {"OJS_HEARTBEAT_INTERVAL", "50ms"},
                                                   {"OJS_VISIBILITY_TIMEOUT", "1h"},
                                                   {"OJS_LOG_LEVEL", log_level}});
    }

    bool all_ended() const {
        return names_in(path_ / "done").size() + names_in(path_ / "failed").size() >= fates_.size();
    }

    const fs::path& path() const { return path_; }
    const std::map<std::string, fate>& fates() const { return fates_; }

  private:
    // As cp and mv do it.
    void put_file(const std::string& name, const std::string& args) {
        const fs::path hidden = path_ / "request" / ".incoming";
        write_file(hidden, "{\"type\":\"spool.work\",\"args\":" + args + "}\n");
        fs::rename(hidden, path_ / "request" / name);
    }

    std::mt19937_64 random_;
    const fs::path path_;
    std::map<std::string, fate> fates_;
};

struct tally {
    int overlaps = 0;
    std::set<std::string> ended;
};

tally read_ledger(const field& where) {
    tally out;
    std::ifstream lines(where.path() / "ledger");
    std::string what;
    std::string id;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        words >> what >> id;
        out.overlaps += what == "overlap" ? 1 : 0;
        if (what == "end") out.ended.insert(id);
    }
    return out;
}

void check_ends(const field& where, const tally& ledger) {
    const std::multiset<std::string> done = names_in(where.path() / "done");
    const std::multiset<std::string> failed = names_in(where.path() / "failed");
    std::multiset<std::string> ended = done;
    ended.insert(failed.begin(), failed.end());
    std::multiset<std::string> put;
    for (const auto& each : where.fates()) put.insert(each.first);
    CHECK(ended == put);  // none lost, none doubled
    CHECK(names_in(where.path() / "request").empty());
    for (const std::string& folder : names_in(where.path() / "processing"))
        CHECK(fs::is_empty(where.path() / "processing" / folder));
    for (const auto& file : where.fates()) {
        const std::string& name = file.first;
        const fate what = file.second;
        CAPTURE(name);
        const bool is_done = done.count(name) == 1;
        if (what == fate::done) CHECK(is_done);
        if (what == fate::discarded) CHECK(!is_done);
        const json envelope = json::parse(read_file(where.path() / (is_done ? "done" : "failed") / name));
        CHECK(envelope["type"].is("spool.work"));
        if (is_done) CHECK(ledger.ended.count(name) == 1);
        if (is_done) CHECK(envelope.has("result"));
        if (!is_done && what == fate::either) {
            CHECK(envelope["error"]["code"].is("worker_lost"));
            CHECK(envelope["attempt"].number == 2);
        }
        if (what == fate::discarded) CHECK(envelope["error"]["message"].is("as asked"));
    }
}

}  // namespace

TEST_CASE(
    "spool: 8 workers killed at random -> each job ends once in done/ or failed/, never run by two at once") {
    const std::uint64_t seed = number_from("OJS_TEST_SEED", std::random_device{}());
    const auto total = static_cast<int>(number_from("OJS_TEST_SPOOL_JOBS", 600));
    MESSAGE("OJS_TEST_SEED=" << seed << " OJS_TEST_SPOOL_JOBS=" << total);
    field where(seed);
    int put = 0;
    while (put < total / 2) where.put(put++);
    std::vector<process> workers;
    for (int i = 0; i < 8; ++i) workers.push_back(where.start());
    int killed = 0;
    int idle = 0;  // of them, without a job in flight
    const auto limit = clock::now() + guard * 3 + milliseconds(total * 20);
    const auto ledger_size = [&] {
        std::error_code none_yet;
        const auto size = fs::file_size(where.path() / "ledger", none_yet);
        return none_yet ? std::uintmax_t{0} : size;
    };
    // Looking through the folders is slow, and the killing is what this is about.
    for (int round = 0; put < total || round % 10 != 0 || !where.all_ended(); ++round) {
        REQUIRE(clock::now() < limit);
        for (int i = 0; i < total / 100 + 1 && put < total; ++i) where.put(put++);
        // Something was done since the last one was killed, or much time has passed: else nobody would get anywhere.
        const auto so_far = ledger_size();
        static_cast<void>(eventually([&] { return ledger_size() > so_far + 50; }, milliseconds(200)));
        std::this_thread::sleep_for(milliseconds(where.below(10)));  // at any moment of its work
        process& victim = workers[static_cast<std::size_t>(where.below(8))];
        REQUIRE_MESSAGE(!victim.ended(), victim.output());
        victim.signal(SIGKILL);
        CHECK(victim.wait() == -SIGKILL);
        for (const std::string& folder : names_in(where.path() / "processing")) {
            if (folder.compare(0, folder.find('-'), std::to_string(victim.pid())) == 0)
                idle += names_in(where.path() / "processing" / folder).empty() ? 1 : 0;
        }
        victim = where.start();
        ++killed;
    }
    for (process& each : workers) each.signal(SIGTERM);
    for (process& each : workers) {
        // One that had not yet come to claim its signals ends by this one.
        const int status = each.wait();
        CHECK_MESSAGE((status == 0 || status == -SIGTERM), status << "\n" << each.output());
    }
    process last = where.start("info");  // takes away what those left that were killed last
    CHECK(last.prints("worker started"));
    CHECK(eventually([&] { return owners_in(where.path()) == 1; }));
    last.signal(SIGTERM);
    CHECK(last.wait() == 0);
    CHECK(owners_in(where.path()) == 0);
    const tally ledger = read_ledger(where);
    check_ends(where, ledger);
    CHECK(ledger.overlaps == 0);
    CHECK(killed > 0);
    MESSAGE(total << " jobs, " << killed << " workers killed, " << killed - idle << " with jobs in flight");
}

TEST_CASE("spool: a worker without a backend runs the jobs added by worker --enqueue") {
    const fs::path directory = scratch_file("spool-enqueue");
    const environment settings = {{"OJS_URL", "spool:" + directory.string()}, {"OJS_POLL_INTERVAL", "50ms"}};
    const auto enqueue = [&](std::vector<std::string> words) {
        words.insert(words.begin(), {program("worker"), "--enqueue"});
        return process(words, settings);
    };
    process put = enqueue({"text.count", "/etc/passwd", "0"});
    CHECK(put.wait() == 0);
    const std::string id = put.output().substr(0, put.output().find('\n'));
    CHECK(!id.empty());
    process other =
        enqueue({"noop", "007", "{\"n\":12345678901234567890}", "[1", "-1.5e3", "\"quoted\"", ""});
    CHECK(other.wait() == 0);
    const std::string second = other.output().substr(0, other.output().find('\n'));
    CHECK(read_file(directory / "request" / (second + ".json"))
              .find(R"("args":["007",{"n":12345678901234567890},"[1",-1.5e3,"quoted",""])") !=
          std::string::npos);
    process worker({program("worker")}, settings);
    CHECK(eventually([&] { return names_in(directory / "done").size() == 2; }));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    const json done = json::parse(read_file(directory / "done" / (id + ".json")));
    CHECK(done["result"]["path"].is("/etc/passwd"));

    process wrong({program("worker"), "--enqueue", "noop"}, {{"OJS_URL", "spool:/dev/null"}});
    CHECK(wrong.wait() == 1);
    CHECK(wrong.output().compare(0, 7, "error: ") == 0);
    CHECK(wrong.count("\n") == 1);
}
