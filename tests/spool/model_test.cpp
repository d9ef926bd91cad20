// open_spool against a model: random names, collisions, deaths, ends. OJS_TEST_SEED repeats a run.
#include <random>
#if OJS_SHUTDOWN_USE_INOTIFY
#include <sys/inotify.h>
#endif

#include "spool_dir.hpp"

using namespace spool_test;

// Closing an instance takes the kernel 20 ms: most transports have none here.
static bool has_no_inotify = false;

#if OJS_SHUTDOWN_USE_INOTIFY && defined(__GLIBC__)  // a static musl has a symbol of its own
extern "C" int inotify_init1(int flags) noexcept(noexcept(::inotify_init1(flags))) {
    if (!has_no_inotify) return static_cast<int>(::syscall(SYS_inotify_init1, flags));
    errno = EMFILE;
    return -1;
}
#endif

namespace {
// A job that was put there: found again by its number, which is in its content and nowhere else.
struct model_job {
    std::string id;
    std::int64_t runs = 0;    // that count
    bool has_failed = false;  // for good
    bool is_done = false;
};

class sequence {
  public:
    sequence(std::uint64_t seed, const fs::path& base)
        : random_(seed), any_file_(below(2) == 0), dir_(base / "spool", any_file_, {0ms, 0ms}) {
        workers_.push_back(dir_.open());
    }
    ~sequence() {
        workers_.clear();
        fs::remove_all(dir_.path);
    }

    void run() {
        for (int step = 0, steps = 10 + below(20); step < steps; ++step) {
            const int what = below(9);
            if (what < 3) put(accept_backup_names());
            if (what == 3) die();
            if (what == 4) move_by_hand();
            if (what > 4) work();
            if (step % 8 == 7) check_kept();
        }
        for (int left = 100; left > 0 && !are_all_settled(); --left) {
            die();
            work(true);
        }
        check_kept();
        REQUIRE(are_all_settled());
    }

  private:
    int below(int end) { return static_cast<int>(random_() % static_cast<std::uint64_t>(end)); }

    static std::string two_byte_letters() {
        std::string out;
        while (out.size() < 200) out += "\xc3\xa4";
        return out;
    }

    // Few names, so that they collide; of all lengths that are allowed, and of those that the spool makes itself.
    std::string accept_backup_names() {
        static const std::string n(195, 'n');
        static const names all = {"a",   "a.json",           "a.1",       "a.json.1", n + "nnnnn",
                                  "5-b", two_byte_letters(), n + ".json", n + "nnn.1"};
        return all[static_cast<std::size_t>(below(static_cast<int>(all.size())))];
    }

    // As mv -n does it: what a user overwrites is not the spool's affair.
    void put(const std::string& name) {
        if (fs::exists(dir_.path / "request" / name)) return;
        const int number = ++last_;
        model_job& job = jobs_[number];
        const bool has_id = !any_file_ && below(3) == 0;
        const bool is_named = !any_file_ && name.size() > 5 && name.substr(name.size() - 5) == ".json";
        job.id = has_id ? "id-" + std::to_string(number) : name.substr(0, name.size() - (is_named ? 5 : 0));
        std::string text = "{\"number\":" + std::to_string(number) + ",\"type\":\"noop\"";
        if (has_id) text += ",\"id\":\"" + job.id + "\"";
        dir_.put(name, text + ",\"args\":[\"xxx\"]}");
    }

    static int number_of(const std::string& text) { return std::atoi(member(text, "number").c_str()); }

    void work(bool to_the_end = false) {
        transport& by = *workers_[static_cast<std::size_t>(below(static_cast<int>(workers_.size())))];
        for (const job& claimed : dir_.fetch(by, 1 + static_cast<std::size_t>(below(3)))) {
            const fs::path file = spool_path(claimed);
            const int number = number_of(read_file(file));
            CAPTURE(number);
            REQUIRE(jobs_.count(number) == 1);
            model_job& job = jobs_[number];
            CHECK(claimed.malformed.empty());
            CHECK(!(job.is_done || job.has_failed));
            CHECK(claimed.id == job.id);
            CHECK(claimed.attempt == job.runs + 1);
            const std::string name = file.filename();
            if (!to_the_end && name.size() <= 200 && below(3) == 0) put(name);  // which is taken, then
            settle(by, claimed, job, to_the_end ? below(2) : below(6));
        }
    }

    void settle(transport& by, const job& claimed, model_job& job, int end) {
        const bool is_last = job.runs + 1 >= 3;
        ++job.runs;
        job.is_done = end == 0;
        job.has_failed = end == 1 || (end > 1 && end != 3 && is_last);
        if (end == 0) CHECK(ack(by, claimed.id, below(2) == 0 ? "{\"r\":1}" : "") == settle_result::accepted);
        if (end == 1 || end == 2) CHECK(fail(by, claimed.id, boom(end == 2)) == settle_result::accepted);
        if (end == 3) --job.runs;
        if (end == 3) CHECK(requeue(by, claimed.id) == settle_result::accepted);
        // 4: in flight until its worker dies
    }

    // All workers are gone, with what they had in flight; the next FETCH recovers it.
    void die() {
        workers_.clear();
        const int count = 1 + below(2);
        for (int i = 0; i < count; ++i) workers_.push_back(dir_.open());
        fetch_request nothing = dir_.asking();
        nothing.should_send = [] { return false; };
        static_cast<void>(workers_.back()->fetch(nothing, deadline_after(10s)));
    }

    bool are_all_settled() const {
        return std::all_of(jobs_.begin(), jobs_.end(),
                           [](const auto& each) { return each.second.is_done != each.second.has_failed; });
    }

    // From failed/ back, under the name that it has there.
    void move_by_hand() {
        for (const std::string& name : dir_.names("failed")) {
            if (below(2) == 0 || fs::exists(dir_.path / "request" / name)) continue;
            jobs_[number_of(dir_.read("failed/" + name))].has_failed = false;
            fs::rename(dir_.path / "failed" / name, dir_.path / "request" / name);
        }
    }

    // Each job is in one place, whole.
    void check_kept() {
        std::multiset<int> found;
        for (const auto& each : fs::recursive_directory_iterator(dir_.path)) {
            const std::string name = each.path().filename();
            if (!each.is_regular_file() || name.front() == '.') continue;
            const std::string text = read_file(each.path());
            found.insert(number_of(text));
            CHECK(holds(text, "xxx\"]"));
        }
        std::multiset<int> put;
        for (const auto& each : jobs_) put.insert(each.first);
        REQUIRE(found == put);
    }

    std::mt19937_64 random_;
    const bool any_file_;
    spool_dir dir_;
    std::vector<transport_ref> workers_;
    std::map<int, model_job> jobs_;
    int last_ = 0;
};
}  // namespace

TEST_CASE("spool: random names, collisions and worker deaths -> every job is settled once, and every run counted") {
    const char* const given = std::getenv("OJS_TEST_SEED");
    const std::uint64_t first = given == nullptr ? std::random_device{}() : std::strtoull(given, nullptr, 10);
    const temporary_folder base(temporary_folder::kind::in_memory);
    for (std::uint64_t seed = first; seed < first + 100; ++seed) {
        CAPTURE(seed);
        has_no_inotify = seed % 32 != 0;
        sequence(seed, base.path()).run();
    }
    has_no_inotify = false;
}
