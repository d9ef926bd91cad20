// session: the held jobs, and the lock that says whose they are; listens, rescues, schedules due jobs.
#pragma once

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/sync.hpp"
#include "../../base/duration.hpp"
#include "../../core/detail/wake.hpp"
#include "../../worker/transport.hpp"
#include "database.ipp"

namespace ojs::detail {
namespace river {

OJS_SHUTDOWN_INLINE std::optional<long long> read_id(const std::string& text) {
    errno = 0;
    char* end = nullptr;
    const long long id = std::strtoll(text.c_str(), &end, 10);
    const bool whole = !text.empty() && end == text.c_str() + text.size() && errno == 0;
    return whole ? std::optional(id) : std::nullopt;
}

// Claimed, and not settled.
struct held_job {
    long long id = 0;
    long long attempt = 0;
    bool reported = false;           // a report is under way; kept until it is answered
    bool lost_answer = false;        // the answer to a report was lost: it may have been settled
    std::string settled_as;          // the action that settled it; the reporting thread may not know yet
    bool came_again = false;         // claimed once more before that was known; that claim is given back
    std::string cancelled_at;        // of the metadata when it was claimed: an earlier run's cancellation
    const char* action = nullptr;    // set by snooze() and the like; null: the worker's outcome decides
    std::string why;                 // its error text, by which fail() recognises it
    std::optional<long long> delay;  // its delay in milliseconds
    time_point touched;              // see keep_from_rescuer
};

// Thread-safe.
class held_jobs {
  public:
    std::size_t size() const noexcept { return size_; }

    // False: it is already held, and this claim is given back once that one is settled.
    bool add(held_job job) {
        const unique_lock held(mutex_);
        const auto [place, added] = all_.try_emplace(job.id, std::move(job));
        if (!added) place->second.came_again = true;
        size_ = all_.size();
        return added;
    }
    // For a claim that no caller received.
    void drop(long long id) {
        const unique_lock held(mutex_);
        all_.erase(id);
        size_ = all_.size();
        any_lost = true;
    }
    void forget(long long id) {
        const unique_lock held(mutex_);
        const auto found = all_.find(id);
        if (found != all_.end()) forget(found);
    }

    // Applies `change` to a job that is held, and returns a copy of it.
    template <class Change>
    std::optional<held_job> change(long long id, Change change) {
        const unique_lock held(mutex_);
        const auto found = all_.find(id);
        if (found == all_.end()) return {};
        change(found->second);
        return found->second;
    }
    template <class Change>
    std::optional<held_job> change(const std::string& id, Change with) {
        const std::optional<long long> number = read_id(id);
        return number ? change(*number, with) : std::nullopt;
    }
    template <class Id>
    std::optional<held_job> find(const Id& id) {
        return change(id, [](const held_job&) {});
    }
    // Jobs that are no longer ours are not reported; the worker only names them. A report under way decides itself.
    void forget_others(const std::vector<std::string>& asked, std::vector<std::string>& ours) {
        const std::set<std::string> still(ours.begin(), ours.end());
        const unique_lock held(mutex_);
        for (const std::string& each : asked) {
            const std::optional<long long> id = read_id(each);
            const auto found = id && still.count(each) == 0 ? all_.find(*id) : all_.end();
            if (found == all_.end()) continue;
            found->second.reported ? ours.push_back(each) : forget(found);
        }
    }
    postgres_array ids() const {
        const unique_lock held(mutex_);
        postgres_array out;
        for (const auto& each : all_) out.add(each.first);
        return out;
    }
    // Returns and touches the jobs not touched for `age`.
    std::vector<long long> touch_older_than(std::chrono::milliseconds age) {
        const time_point now = steady_clock::now();
        std::vector<long long> out;
        const unique_lock held(mutex_);
        for (auto& each : all_) {
            if (now - each.second.touched < age) continue;
            each.second.touched = now;
            out.push_back(each.first);
        }
        return out;
    }

    // Jobs may be ours in the database without being held here.
    std::atomic<bool> any_lost{false};

  private:
    // Called with the mutex. A claim that came again is given back.
    void forget(std::map<long long, held_job>::iterator which) {
        if (which->second.came_again) any_lost = true;
        all_.erase(which);
        size_ = all_.size();
    }

    mutable mutex mutex_;
    std::map<long long, held_job> all_;
    std::atomic<std::size_t> size_{0};
};

// The versions of River's main line of migrations that the statements are known to work on.
inline constexpr int min_river_version = 6;
inline constexpr int max_river_version = 8;

class session {
  public:
    session(database& db, held_jobs& jobs) : db_(db), jobs_(jobs) {}

    // Errors: unsupported, where the tables are missing or of an unknown version.
    result<void> look_at_schema(time_point deadline) {
        const result<void> pooler = look_for_pooler(deadline);
        if (!pooler) return pooler;
        const result<postgres_rows> found = db_.listening.run(sql::version, {}, deadline);
        if (!found) {
            const bool missing = found.error().text.find("(42P01)") != std::string::npos ||
                                 found.error().text.find("(3F000)") != std::string::npos;
            if (!missing) return found.error();
            return failure(errc::unsupported,
                           "River's tables are not in this database: " + found.error().text);
        }
        const long long version = found->is_null(0, 0) ? 0 : found->number(0, 0);
        if (version < min_river_version || version > max_river_version)
            return failure(errc::unsupported, "River's tables are of version " + std::to_string(version) +
                                                  "; known are " + std::to_string(min_river_version) +
                                                  " to " + std::to_string(max_river_version));
        const std::string schema = db_.options.schema.empty() ? found->text(0, 1) : db_.options.schema;
        const unique_lock held(mutex_);
        insert_channel_ = schema + ".river_insert";
        control_channel_ = schema + ".river_control";
        return {};
    }

    // Waits until the lock is held: nothing is claimed before.
    result<void> begin(const worker_identity& worker, time_point deadline) {
        unique_lock held(mutex_);
        if (owner_.empty()) {
            lease_ = worker.visibility_timeout;
            all_queues_ = worker.queues;
            owner_ = make_owner(worker);
        }
        if (!thread_.joinable() && !ending_) {
            const result<void> started = start_thread();
            if (!started) return started;
        }
        const auto ready = [this] { return locked_ || ending_; };
        if (wait_until(changed_, held, deadline, ready) && locked_) return {};
        if (ending_) return failure(errc::unavailable, "the worker has left");
        return failure(errc::unavailable, trouble_.empty() ? "the database does not answer" : trouble_);
    }

    std::string owner() const { return locked(owner_); }
    std::string insert_channel() const { return locked(insert_channel_); }  // empty before look_at_schema()
    long long server_process() const { return locked(server_process_); }  // that holds the lock; 0: none does

    void end() {
        unique_lock held(mutex_);
        ending_ = true;
        thread ended = std::move(thread_);
        changed_.notify_all();
        held.unlock();
        if (ended.joinable()) wake_.notify();
        ended.join();
    }

    void on_work(function<void()> tell) {
        const unique_lock held(tell_mutex_);
        tell_work_ = std::move(tell);
    }
    void on_revoked(function<void(const std::string&)> tell) {
        const unique_lock held(tell_mutex_);
        tell_revoked_ = std::move(tell);
    }
    void tell_revoked(const std::string& id) const {
        const unique_lock held(tell_mutex_);
        tell_revoked_(id);
    }

  private:
    // A transaction pooler gives two connections the same session, or one connection two.
    result<void> look_for_pooler(time_point deadline) {
        static const postgres_statement ask = {"", "SELECT pg_backend_pid()"};
        std::set<std::pair<postgres_connection*, long long>> seen;
        std::set<long long> sessions;
        for (postgres_connection* const each :
             {&db_.listening, &db_.listening, &db_.claiming, &db_.claiming, &db_.listening, &db_.claiming}) {
            const turn taken(*each, deadline);
            if (!taken) return failure(errc::timed_out, "the connection is in use");
            const result<postgres_rows> found = each->run(ask, {}, deadline);
            if (!found) return found.error();
            if (!db_.listening.pooled()) return {};
            seen.emplace(each, found->number(0, 0));
            sessions.insert(found->number(0, 0));
        }
        if (seen.size() == 2 && sessions.size() == 2) return {};
        return failure(errc::unsupported,
                       "the pooler before the database shares sessions between transactions, "
                       "which loses locks and LISTEN; "
                       "set its pool_mode to session, or connect to PostgreSQL itself");
    }

    static std::string make_owner(const worker_identity& worker) {
        char nonce[17];
        std::snprintf(nonce, sizeof nonce, "%016llx", static_cast<unsigned long long>(random_number()));
        return "ojs:" + std::to_string(worker.visibility_timeout.count()) + ":" +
               storable(worker.worker_id, true) + ":" + nonce;
    }
    result<void> start_thread() {
        result<wake> made = wake::create();
        if (!made) return made.error();
        wake_ = std::move(*made);
        db_.listening.give_up_on(wake_.fd());
        result<thread> started = thread::start([this] { keep_session(); });
        if (!started) return started.error();
        thread_ = std::move(*started);
        return {};
    }

    template <class Value>
    Value locked(const Value& value) const {
        const unique_lock held(mutex_);
        return value;
    }
    bool is_ending() const { return locked(ending_); }

    void keep_session() {
        auto pause = std::chrono::milliseconds(20);
        while (!is_ending()) {
            const result<void> begun = take_lock();
            if (begun) {
                pause = std::chrono::milliseconds(20);
                serve_session();
            }
            set_locked(false, begun ? "" : begun.error().text);
            db_.listening.begin_anew();
            wait_on_session(deadline_after(pause));
            pause = std::min(pause * 2, std::chrono::milliseconds(1000));
        }
    }

    result<void> take_lock() {
        const time_point deadline = call_deadline();
        const result<void> known = look_at_schema(deadline);
        if (!known) return known;
        const result<postgres_rows> locked = db_.listening.run(sql::lock, {owner()}, deadline);
        if (!locked) return locked.error();
        db_.listening.keep_to_this_one();
        free_since_.clear();
        for (const std::string& channel : {insert_channel_, control_channel_}) {
            const std::string listen = "LISTEN " + quoted_identifier(channel);
            const result<postgres_rows> listening = db_.listening.run({"", listen.c_str()}, {}, deadline);
            if (!listening) return listening.error();
        }
        next_round_ = next_queues_ = steady_clock::now();
        set_locked(true, "");
        tell_work();
        return {};
    }
    void set_locked(bool now, std::string trouble) {
        const unique_lock held(mutex_);
        locked_ = now;
        server_process_ = now ? db_.listening.server_process() : 0;
        trouble_ = std::move(trouble);
        changed_.notify_all();
    }
    static time_point call_deadline() { return deadline_after(std::chrono::seconds(5)); }

    // Returns when the connection ends or the worker leaves.
    void serve_session() {
        while (!is_ending()) {
            if (steady_clock::now() >= next_round_ && !make_round()) return;
            wait_on_session(next_round_);
            const bool alive = db_.listening.take_notices(
                [this](std::string_view channel, std::string_view text) { read_notice(channel, text); });
            if (!alive) return;
        }
    }

    void wait_on_session(time_point deadline) {
        pollfd looks[] = {{db_.listening.socket(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
        ::poll(looks, 2, poll_timeout(deadline));
    }

    void read_notice(std::string_view channel, std::string_view text) {
        if (channel == insert_channel_) {
            for (const std::string& each : all_queues_) {
                if (text.find("\"" + each + "\"") != std::string_view::npos) return tell_work();
            }
        }
        if (channel != control_channel_) return;
        if (text.find("\"resume\"") != std::string_view::npos) return tell_work();
        if (text.find("\"cancel\"") == std::string_view::npos) return;
        const std::size_t name = text.find("\"job_id\"");
        const std::size_t from =
            name == std::string_view::npos ? name : text.find_first_of("0123456789", name);
        if (from == std::string_view::npos) return;
        tell_revoked(std::string(text.substr(from, text.find_first_not_of("0123456789", from) - from)));
    }

    void tell_work() const {
        const unique_lock held(tell_mutex_);
        tell_work_();
    }

    // Every few seconds. False: the connection is gone.
    bool make_round() {
        const std::chrono::milliseconds quarter = lease_ / 4;
        next_round_ = deadline_after(
            std::clamp(quarter, std::chrono::milliseconds(50), std::chrono::milliseconds(5000)));
        const std::string queues = array_of(all_queues_).text();
        look_for_lost_owners(queues);
        const values due = {queues, insert_channel_};
        db_.check(db_.run_by_halves(
                      db_.listening, sql::schedule, [&] { return due; }, [](const postgres_rows&) {},
                      call_deadline()),
                  "jobs whose time has come");
        if (steady_clock::now() >= next_queues_) {
            next_queues_ = deadline_after(std::chrono::minutes(1));
            db_.check(db_.listening.run(sql::keep_queues, {queues}, call_deadline()),
                      "the rows of the queues");
            keep_from_rescuer();
        }
        return db_.listening.connected();
    }
    // An owner whose lock is free for its whole lease is gone: a live one takes it again long before.
    void look_for_lost_owners(const std::string& queues) {
        const result<postgres_rows> found =
            db_.listening.run(sql::owners_without_lock, {queues, owner()}, call_deadline());
        if (!db_.check(found, "owners without a lock")) return free_since_.clear();
        std::map<std::string, time_point> still;
        const time_point now = steady_clock::now();
        for (int row = 0; row < found->size(); ++row) {
            const std::string name = found->text(row, 0);
            const auto before = free_since_.find(name);
            const time_point since = before == free_since_.end() ? now : before->second;
            if (now - since >= lease_of(name)) rescue(name, queues);
            still[name] = since;
        }
        free_since_.swap(still);
    }
    // "ojs:30000:..."
    static std::chrono::milliseconds lease_of(const std::string& name) {
        return std::chrono::milliseconds(std::atoll(name.c_str() + 4));
    }
    void rescue(const std::string& name, const std::string& queues) {
        int rescued = 0;
        const values lost = {name, queues};
        const auto count = [&](const postgres_rows& rows) { rescued += rows.size(); };
        db_.check(db_.run_by_halves(
                      db_.listening, sql::rescue, [&] { return lost; }, count, call_deadline()),
                  "rescue");
        if (rescued > 0)
            db_.notice("rescued " + std::to_string(rescued) + " jobs of " + name + ", which is gone");
    }

    void keep_from_rescuer() {
        const std::vector<long long> jobs = jobs_.touch_older_than(std::chrono::minutes(10));
        postgres_array ids;
        for (const long long each : jobs) ids.add(each);
        if (jobs.empty()) return;
        db_.check(db_.listening.run(sql::keep_from_rescuer, {ids.text(), owner()}, call_deadline()),
                  "jobs that run for long");
    }

    database& db_;
    held_jobs& jobs_;

    mutable mutex mutex_;
    condition changed_;
    std::string owner_;  // the worker's, like the next two
    std::chrono::milliseconds lease_{0};
    std::vector<std::string> all_queues_;
    bool locked_ = false;
    bool ending_ = false;
    long long server_process_ = 0;
    std::string trouble_;
    std::string insert_channel_, control_channel_;
    thread thread_;
    wake wake_;

    // Used by the thread alone.
    time_point next_round_;
    time_point next_queues_;
    std::map<std::string, time_point> free_since_;

    mutable mutex tell_mutex_;
    function<void()> tell_work_;
    function<void(const std::string&)> tell_revoked_;
};

}  // namespace river
}  // namespace ojs::detail
