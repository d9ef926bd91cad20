// session: the held jobs and the lock that proves our ownership; listens, rescues, schedules due jobs.
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
    const bool is_valid = !text.empty() && end == text.c_str() + text.size() && errno == 0;
    return is_valid ? std::optional(id) : std::nullopt;
}

// A job that is claimed and not settled.
struct held_job {
    long long id = 0;
    long long attempt = 0;
    bool reported = false;           // a report is in progress
    int given_up = 0;                // 1: its report was refused; one more for each heartbeat that omits the job
    bool response_lost = false;      // to a report: it may have been settled
    std::string settled_as;          // the action, set before the reporting thread sees it
    bool claimed_again = false;      // before that was known; the new claim is given back
    std::string cancelled_at;        // in the metadata when claimed: of an earlier run
    const char* action = nullptr;    // of snooze(), retry_after(), cancel(); null: none
    std::string reason;              // its error text, by which fail() recognises it
    std::optional<long long> delay;  // its delay in milliseconds
    time_point touched;              // see renew_attempted_at
};

// Thread-safe.
class held_jobs {
  public:
    std::size_t size() const noexcept { return size_; }

    // False: it is held already; this claim is given back after the first is settled.
    bool add(held_job job) {
        const unique_lock held(mutex_);
        const auto [place, added] = all_.try_emplace(job.id, std::move(job));
        if (!added) place->second.claimed_again = true;
        size_ = all_.size();
        return added;
    }
    // For a claim that no caller received.
    void drop(long long id) {
        const unique_lock held(mutex_);
        all_.erase(id);
        size_ = all_.size();
        any_claim_lost = true;
    }
    void forget(long long id) {
        const unique_lock held(mutex_);
        const auto found = all_.find(id);
        if (found != all_.end()) forget(found);
    }

    // Applies `change` to a held job, and returns a copy of the job.
    template <class Change>
    std::optional<held_job> change(long long id, Change change) {
        const unique_lock held(mutex_);
        const auto found = all_.find(id);
        if (found == all_.end()) return {};
        change(found->second);
        return found->second;
    }
    template <class Change>
    std::optional<held_job> change(const std::string& id, Change apply) {
        const std::optional<long long> number = read_id(id);
        return number ? change(*number, apply) : std::nullopt;
    }
    template <class Id>
    std::optional<held_job> find(const Id& id) {
        return change(id, [](const held_job&) {});
    }
    // Forgets the jobs that are not in `ours`: they are not reported. A report in progress decides for itself.
    void forget_unconfirmed(const std::vector<std::string>& requested, std::vector<std::string>& ours) {
        const std::set<std::string> confirmed(ours.begin(), ours.end());
        const unique_lock held(mutex_);
        for (const std::string& name : requested) {
            const std::optional<long long> id = read_id(name);
            const auto found = id && confirmed.count(name) == 0 ? all_.find(*id) : all_.end();
            if (found == all_.end()) continue;
            found->second.reported ? ours.push_back(name) : forget(found);
        }
    }
    // Forgets jobs whose reports the worker has given up.
    void forget_given_up(const std::vector<std::string>& active) {
        const unique_lock held(mutex_);
        for (auto next = all_.begin(); next != all_.end();) {
            const auto one = next++;
            if (one->second.given_up == 0 || contains(active, std::to_string(one->first))) continue;
            if (++one->second.given_up > 2) forget(one);  // the first may have been made up before the claim
        }
    }
    postgres_array ids() const {
        const unique_lock held(mutex_);
        postgres_array out;
        for (const auto& entry : all_) out.add(entry.first);
        return out;
    }
    // Returns and touches the jobs not touched for `age`.
    postgres_array touch_older_than(std::chrono::milliseconds age) {
        const time_point now = steady_clock::now();
        postgres_array out;
        const unique_lock held(mutex_);
        for (auto& entry : all_) {
            if (now - entry.second.touched < age) continue;
            entry.second.touched = now;
            out.add(entry.first);
        }
        return out;
    }

    // The database may hold jobs as ours that are not held here.
    std::atomic<bool> any_claim_lost{false};

  private:
    // Called with the mutex.
    void forget(std::map<long long, held_job>::iterator found) {
        if (found->second.claimed_again) any_claim_lost = true;
        all_.erase(found);
        size_ = all_.size();
    }

    mutable mutex mutex_;
    std::map<long long, held_job> all_;
    std::atomic<std::size_t> size_{0};
};

// The versions of River's main migration line that the statements are tested with.
inline constexpr int min_river_version = 6;
inline constexpr int max_river_version = 8;

// PostgreSQL rejects a notification on a longer channel.
inline result<void> check_channel(const std::string& schema) {
    constexpr std::size_t max_schema = 63 - std::string_view(".river_leadership").size();  // River's own limit
    if (schema.size() <= max_schema) return {};
    return failure(errc::unsupported, "the schema's name \"" + printable(schema) + "\" is longer than " +
                                          std::to_string(max_schema) +
                                          " bytes: the channel SCHEMA.river_leadership may have 63");
}

class session {
  public:
    session(database& db, held_jobs& jobs) : db_(db), jobs_(jobs) {}

    // Errors: unsupported, if the tables are missing or of an unknown version.
    result<void> check_schema(time_point deadline) {
        const result<void> pooler = check_pooler(deadline);
        if (!pooler) return pooler;
        const result<postgres_rows> found = db_.listening.run(sql::version, {}, deadline);
        if (!found) {
            const std::string& why = found.error().text;
            if (!has_part(why, "(42P01)") && !has_part(why, "(3F000)")) return found.error();
            return failure(errc::unsupported, "River's tables are missing (run river migrate-up): " + why);
        }
        const long long version = found->is_null(0, 0) ? 0 : found->number(0, 0);
        if (version < min_river_version || version > max_river_version)
            return failure(errc::unsupported, "River's tables are of version " + std::to_string(version) +
                                                  "; supported are " + std::to_string(min_river_version) + " to " +
                                                  std::to_string(max_river_version));
        const std::string schema = db_.options.schema.empty() ? found->text(0, 1) : db_.options.schema;
        const result<void> fits = check_channel(schema);
        if (!fits) return fits;
        const unique_lock held(mutex_);
        insert_channel_ = schema + ".river_insert";
        control_channel_ = schema + ".river_control";
        return {};
    }

    // Waits until the lock is held: claims need it.
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
        if (ending_) return failure(errc::unavailable, "the worker has ended its session");
        return failure(errc::unavailable, last_error_.empty() ? "the database has not responded yet" : last_error_);
    }

    std::string owner() const { return locked(owner_); }
    std::string insert_channel() const { return locked(insert_channel_); }  // empty before check_schema()
    long long backend_pid() const { return locked(backend_pid_); }          // holds the lock; 0: none

    void end() {
        unique_lock held(mutex_);
        ending_ = true;
        thread ended = std::move(thread_);
        changed_.notify_all();
        held.unlock();
        if (ended.joinable()) wake_.notify();
        ended.join();
    }

    void on_work(function<void()> callback) {
        const unique_lock held(callback_mutex_);
        work_callback_ = std::move(callback);
    }
    void on_cancelled(function<void(const std::string&)> callback) {
        const unique_lock held(callback_mutex_);
        cancel_callback_ = std::move(callback);
    }
    void notify_cancelled(const std::string& id) const {
        const unique_lock held(callback_mutex_);
        cancel_callback_(id);
    }

  private:
    // Behind a transaction pooler two connections share a session, or one uses two.
    result<void> check_pooler(time_point deadline) {
        static const postgres_statement query = {"", "SELECT pg_backend_pid()"};
        std::set<std::pair<postgres_connection*, long long>> seen;
        std::set<long long> sessions;
        for (postgres_connection* const connection :
             {&db_.listening, &db_.listening, &db_.claiming, &db_.claiming, &db_.listening, &db_.claiming}) {
            const turn taken(*connection, deadline);
            if (!taken) return connection->busy(errc::timed_out);
            const result<postgres_rows> found = connection->run(query, {}, deadline);
            if (!found) return found.error();
            if (!db_.listening.is_pooled()) return {};
            seen.emplace(connection, found->number(0, 0));
            sessions.insert(found->number(0, 0));
        }
        if (seen.size() == 2 && sessions.size() == 2) return {};
        return failure(errc::unsupported,
                       "the connection pooler is in transaction mode, which breaks advisory locks and LISTEN: set "
                       "pool_mode=session, or connect to PostgreSQL directly");
    }

    static std::string make_owner(const worker_identity& worker) {
        char nonce[17];
        std::snprintf(nonce, sizeof nonce, "%016llx", static_cast<unsigned long long>(random_number()));
        return "ojs:" + std::to_string(worker.visibility_timeout.count()) + ":" + storable(worker.worker_id, true) +
               ":" + nonce;
    }
    result<void> start_thread() {
        result<wake> created = wake::create();
        if (!created) return created.error();
        wake_ = std::move(*created);
        db_.listening.set_interrupt_fd(wake_.fd());
        result<thread> started = thread::start([this] { run_sessions(); }, {0, false, "ojs-river"});
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

    void run_sessions() {
        auto pause = std::chrono::milliseconds(20);
        while (!is_ending()) {
            const result<void> begun = acquire_lock();
            if (begun) {
                pause = std::chrono::milliseconds(20);
                serve_session();
            }
            set_locked(false, begun ? "" : begun.error().text);
            db_.listening.reset();
            wait_for_event(deadline_after(pause));
            pause = std::min(pause * 2, std::chrono::milliseconds(1000));
        }
    }

    result<void> acquire_lock() {
        const time_point deadline = call_deadline();
        const result<void> known = check_schema(deadline);
        if (!known) return known;
        const result<postgres_rows> locked = db_.listening.run(sql::lock, {owner()}, deadline);
        if (!locked) return locked.error();
        db_.listening.forbid_reconnect();
        unlocked_since_.clear();
        for (const std::string& channel : {insert_channel_, control_channel_}) {
            const std::string listen = "LISTEN " + quoted_identifier(channel);
            const result<postgres_rows> listening = db_.listening.run({"", listen.c_str()}, {}, deadline);
            if (!listening) return listening.error();
        }
        next_maintenance_at_ = next_queue_upsert_at_ = steady_clock::now();
        set_locked(true, "");
        notify_work();
        return {};
    }
    void set_locked(bool is_locked, std::string error_text) {
        const unique_lock held(mutex_);
        locked_ = is_locked;
        backend_pid_ = is_locked ? db_.listening.backend_pid() : 0;
        last_error_ = std::move(error_text);
        changed_.notify_all();
    }
    static time_point call_deadline() { return deadline_after(std::chrono::seconds(5)); }

    // Returns when the connection ends or the worker leaves.
    void serve_session() {
        while (!is_ending()) {
            if (steady_clock::now() >= next_maintenance_at_ && !run_maintenance()) return;
            wait_for_event(next_maintenance_at_);
            const bool alive = db_.listening.take_notifications(
                [this](std::string_view channel, std::string_view text) { on_notification(channel, text); });
            if (!alive) return;
        }
    }

    void wait_for_event(time_point deadline) {
        pollfd polled[] = {{db_.listening.socket(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
        ::poll(polled, 2, poll_timeout(deadline));
    }

    void on_notification(std::string_view channel, std::string_view text) {
        if (channel == insert_channel_) {
            for (const std::string& queue : all_queues_) {
                if (text.find("\"" + queue + "\"") != std::string_view::npos) return notify_work();
            }
        }
        if (channel != control_channel_) return;
        if (text.find("\"resume\"") != std::string_view::npos) return notify_work();
        if (text.find("\"cancel\"") == std::string_view::npos) return;
        const std::size_t name = text.find("\"job_id\"");
        const std::size_t from = name == std::string_view::npos ? name : text.find_first_of("0123456789", name);
        if (from == std::string_view::npos) return;
        notify_cancelled(std::string(text.substr(from, text.find_first_not_of("0123456789", from) - from)));
    }

    void notify_work() const {
        const unique_lock held(callback_mutex_);
        work_callback_();
    }

    // Runs every few seconds. False: disconnected.
    bool run_maintenance() {
        const std::chrono::milliseconds quarter = lease_ / 4;
        next_maintenance_at_ =
            deadline_after(std::clamp(quarter, std::chrono::milliseconds(50), std::chrono::milliseconds(5000)));
        const std::string queues = array_of(all_queues_).text();
        rescue_lost_owners(queues);
        const values due = {queues, insert_channel_};
        db_.ok_or_notice(
            db_.run_by_halves(
                db_.listening, sql::schedule, [&] { return due; }, [](const postgres_rows&) {}, call_deadline()),
            "cannot make due jobs available; retrying");
        if (steady_clock::now() >= next_queue_upsert_at_) {
            next_queue_upsert_at_ = deadline_after(std::chrono::minutes(1));
            db_.ok_or_notice(db_.listening.run(sql::upsert_queues, {queues}, call_deadline()),
                             "cannot update the rows of the queues");
            renew_attempted_at();
        }
        return db_.listening.is_connected();
    }
    // An owner whose lock is free for its whole lease is gone: a live one acquires it again much earlier.
    void rescue_lost_owners(const std::string& queues) {
        const result<postgres_rows> found =
            db_.listening.run(sql::owners_without_lock, {queues, owner()}, call_deadline());
        if (!db_.ok_or_notice(found, "cannot look for dead workers; retrying")) return unlocked_since_.clear();
        std::map<std::string, time_point> unlocked_since;
        const time_point now = steady_clock::now();
        for (int row = 0; row < found->size(); ++row) {
            const std::string name = found->text(row, 0);
            const auto before = unlocked_since_.find(name);
            const time_point since = before == unlocked_since_.end() ? now : before->second;
            if (now - since >= lease_of(name)) rescue(name, queues);
            unlocked_since[name] = since;
        }
        unlocked_since_.swap(unlocked_since);
    }
    static std::chrono::milliseconds lease_of(const std::string& name) {
        return std::chrono::milliseconds(std::atoll(name.c_str() + 4));  // "ojs:30000:..."
    }
    void rescue(const std::string& name, const std::string& queues) {
        int rescued = 0;
        const auto lost = [&] { return values({name, queues}); };
        const auto count = [&](const postgres_rows& rows) { rescued += rows.size(); };
        const auto done = db_.run_by_halves(db_.listening, sql::rescue, lost, count, call_deadline());
        if (!done)
            db_.notice("cannot rescue a dead worker's jobs; retrying",
                       {field("error", done.error().text), field("owner", name)});
        if (rescued > 0) db_.notice("rescued a dead worker's jobs", {field("jobs", rescued), field("owner", name)});
    }

    void renew_attempted_at() {
        const std::string ids = jobs_.touch_older_than(std::chrono::minutes(10)).text();
        if (ids == "{}") return;
        db_.ok_or_notice(db_.listening.run(sql::renew_attempted_at, {ids, owner()}, call_deadline()),
                         "cannot renew attempted_at; River's rescuer may take jobs of over an hour");
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
    long long backend_pid_ = 0;
    std::string last_error_;
    std::string insert_channel_, control_channel_;
    thread thread_;
    wake wake_;

    // Used only by the thread.
    time_point next_maintenance_at_;
    time_point next_queue_upsert_at_;
    std::map<std::string, time_point> unlocked_since_;

    mutable mutex callback_mutex_;
    function<void()> work_callback_;
    function<void(const std::string&)> cancel_callback_;
};
}  // namespace river
}  // namespace ojs::detail
