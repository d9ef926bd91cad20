// River's queue in PostgreSQL for ojs_shutdown.hpp: a transport on the tables of River (riverqueue/river), so that a worker
// in C++ works beside River's own in Go. Copy this file and postgres_connection.hpp, and link with -lpq.
// examples/river_worker.cpp is a whole worker; docs/river.md says what is kept, and what is not.
//
// Who owns a job. attempted_by ends with the name of the process that runs the job, "ojs:LEASE:WORKER:NONCE", and for as
// long as that process works it holds the advisory lock hashtextextended(NAME, 0). Every worker looks for running jobs whose
// owner's lock is free; where it stays free for LEASE milliseconds, the owner is gone, or can no longer report: its jobs are
// given back by a transaction that holds that lock itself. Names without "ojs:" are left to River.
//
// Each use has a connection of its own: claiming, settling, beating, checkpoints, and the session that holds the lock,
// listens, and looks after the queues. All times are the database's.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>

#include "postgres_connection.hpp"

namespace ojs_adapters {

struct river_options {
    std::string schema;  // of River's tables; empty: they are found on the search_path
    std::vector<std::string>
        kinds;  // claim only these; empty: all, as River does: one without a handler is an error
    std::size_t most_bytes = 4 * 1024 * 1024;  // of args or metadata; a job with more stays where it is
    // What the worker cannot know and somebody should: one line, from any thread. Must be short and not throw.
    std::function<void(const std::string&)> on_notice;
};

// What River's tables were seen to be: the versions of its main line of migrations.
inline constexpr int least_river_version = 6;
inline constexpr int last_river_version = 8;

namespace river_detail {

// ---- the statements; "@" stands for the schema ----

inline constexpr const char* version =
    "SELECT max(version), current_schema() FROM @river_migration AS m"
    " WHERE coalesce(to_jsonb(m) ->> 'line', 'main') = 'main'";

inline constexpr const char* lock = "SELECT pg_advisory_lock(hashtextextended($1, 0))";

// $1 queue, $2 how many, $3 owner, $4 most bytes, $5 kinds or NULL, $6 ids to leave out, $7 and $8 the first and last id.
// A job that weighs too much, or lacks what a job has, is not claimed: it comes back without a kind.
inline constexpr const char* claim = R"(
WITH picked AS MATERIALIZED (
    SELECT id, attempt, args, metadata FROM @river_job
    WHERE state = 'available' AND queue = $1 AND scheduled_at <= now()
        AND ($5::text[] IS NULL OR kind = ANY ($5::text[]))
        AND CASE WHEN id BETWEEN $7::bigint AND $8::bigint THEN NOT id = ANY ($6::bigint[]) END
        AND NOT EXISTS (SELECT FROM @river_queue WHERE name = $1 AND paused_at IS NOT NULL)
    ORDER BY priority, scheduled_at, id
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE @river_job AS job
    SET state = 'running', attempt = job.attempt + 1, attempted_at = now(),
        attempted_by = array_append(CASE WHEN array_ndims(job.attempted_by) = 1
            THEN job.attempted_by[greatest(cardinality(job.attempted_by) - 98, 1):] END, $3::text)
    FROM picked WHERE job.id = picked.id AND picked.attempt < 32767
        AND octet_length(picked.args::text) <= $4::bigint AND octet_length(picked.metadata::text) <= $4::bigint
    RETURNING job.*
)
SELECT picked.id, kind, queue, claimed.attempt, max_attempts, claimed.args::text, claimed.metadata::text,
    coalesce(claimed.metadata ->> 'cancel_attempted_at', '')
FROM picked LEFT JOIN claimed ON claimed.id = picked.id ORDER BY priority, scheduled_at, picked.id)";

// What a FETCH has claimed whose answer was lost. $1 owner, $2 the claimed ids that are known, $3 channel, $4 and $5 the
// first and last id. Comes back with whether it was given back: others may have locked it.
inline constexpr const char* give_back_lost = R"(
WITH lost AS MATERIALIZED (
    SELECT id FROM @river_job
    WHERE state = 'running' AND attempted_by[cardinality(attempted_by)] = $1 AND NOT id = ANY ($2::bigint[])
        AND id BETWEEN $4::bigint AND $5::bigint
), unlocked AS MATERIALIZED (
    SELECT id FROM @river_job WHERE id IN (SELECT id FROM lost)
    FOR UPDATE SKIP LOCKED
), given_back AS (
    UPDATE @river_job AS job
    SET state = CASE WHEN metadata ? 'cancel_attempted_at' THEN 'cancelled'::@river_job_state ELSE 'available' END,
        finalized_at = CASE WHEN metadata ? 'cancel_attempted_at' THEN now() END,
        attempt = attempt - 1
    FROM unlocked WHERE job.id = unlocked.id AND state = 'running' AND attempted_by[cardinality(attempted_by)] = $1
    RETURNING job.id, queue
)
SELECT given_back.id IS NOT NULL,
    CASE WHEN given_back.id IS NOT NULL THEN pg_notify($3, json_build_object('queue', queue)::text) END
FROM lost LEFT JOIN given_back ON given_back.id = lost.id)";

// Many jobs at a time. $1 ids, $2 attempts, $3 actions, $4 errors, $5 delays in milliseconds, $6 what metadata gets, $7 owner,
// $8 channel. The ids that come back are settled; others are locked, or not ours any more.
//   complete   it is done                     discard, cancel   it is over, for the error
//   fail       River's back-off, or `delay`   requeue, snooze   again at once, or after `delay`; the attempt does not count
// A job that somebody asked to cancel does not come again, whatever its worker says but that it is done.
inline constexpr const char* settle = R"(
WITH asked AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::jsonb[])
        AS asked (id, attempt, action, error, delay, merged)
), found AS MATERIALIZED (
    SELECT job.id, asked.error, asked.merged, asked.action,
        CASE
            WHEN asked.action = 'complete' THEN 'completed'
            WHEN asked.action = 'discard' THEN 'discarded'
            WHEN asked.action = 'cancel' OR job.metadata ? 'cancel_attempted_at' THEN 'cancelled'
            WHEN asked.action IN ('requeue', 'snooze') THEN 'again'
            WHEN job.attempt >= job.max_attempts THEN 'discarded'
            ELSE 'retried'
        END AS fate,
        CASE
            WHEN asked.action = 'requeue' THEN NULL
            WHEN asked.delay IS NOT NULL THEN asked.delay / 1000.0
            ELSE least(power(cardinality(coalesce(job.errors, '{}')) + 1, 4), 1e9) * (0.9 + 0.2 * random())
        END AS delay
    FROM asked JOIN @river_job AS job ON job.id = asked.id
    WHERE job.state = 'running' AND job.attempt = asked.attempt
        AND job.attempted_by[cardinality(job.attempted_by)] = $7
    ORDER BY job.id
    FOR UPDATE OF job SKIP LOCKED
), settled AS (
    UPDATE @river_job AS job
    SET state = (CASE
            WHEN fate NOT IN ('again', 'retried') THEN fate
            WHEN coalesce(found.delay, 0) <= 5 THEN 'available'
            WHEN fate = 'again' THEN 'scheduled'
            ELSE 'retryable'
        END)::@river_job_state,
        attempt = job.attempt - (fate = 'again')::int,
        scheduled_at = CASE WHEN fate IN ('again', 'retried') AND found.delay IS NOT NULL
            THEN now() + make_interval(secs => found.delay) ELSE job.scheduled_at END,
        finalized_at = CASE WHEN fate NOT IN ('again', 'retried') THEN now() END,
        errors = CASE WHEN fate IN ('completed', 'again') OR found.error IS NULL OR array_ndims(job.errors) > 1
            THEN job.errors ELSE array_append(
            job.errors, jsonb_build_object(
                'at', now(), 'attempt', job.attempt, 'error', found.error, 'trace', '')) END,
        metadata = CASE WHEN jsonb_typeof(job.metadata) <> 'object' THEN job.metadata
            WHEN fate = 'completed' THEN (job.metadata - 'checkpoint') || coalesce(found.merged, '{}')
            WHEN found.action = 'snooze' THEN job.metadata || coalesce(found.merged, '{}') || jsonb_build_object(
                'snoozes', CASE WHEN jsonb_typeof(job.metadata -> 'snoozes') = 'number'
                    THEN (job.metadata ->> 'snoozes')::numeric ELSE 0 END + 1)
            ELSE job.metadata || coalesce(found.merged, '{}') END
    FROM found WHERE job.id = found.id
    RETURNING job.id, job.queue, job.state = 'available' AND job.scheduled_at <= now() AS waits
)
SELECT id, CASE WHEN waits THEN pg_notify($8, json_build_object('queue', queue)::text) END FROM settled)";

// Of jobs that a settlement did not find: whether one is still ours, so that others have locked it, and whether its run
// ended without us, which leaves an error of that attempt. $1 ids, $2 attempts, $3 errors, $4 owner.
inline constexpr const char* unsettled = R"(
SELECT asked.id,
    EXISTS (SELECT FROM @river_job AS job WHERE job.id = asked.id AND state = 'running'
        AND job.attempt = asked.attempt AND attempted_by[cardinality(attempted_by)] = $4) AS is_ours,
    EXISTS (SELECT FROM @river_job AS job, unnest(job.errors) AS told WHERE job.id = asked.id
        AND told ->> 'attempt' = asked.attempt::text AND told ->> 'error' IS DISTINCT FROM asked.error) AS is_rescued
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS asked (id, attempt, error))";

// What is still ours, as long as the session that says so holds our lock, and when somebody wanted it cancelled.
// $1 ids, $2 owner, $3 the session's process.
inline constexpr const char* confirm = R"(
SELECT job.id, coalesce(job.metadata ->> 'cancel_attempted_at', '')
FROM @river_job AS job
WHERE job.id = ANY ($1::bigint[]) AND job.state = 'running'
    AND job.attempted_by[cardinality(job.attempted_by)] = $2)";
inline constexpr const char* lock_is_held = R"(
SELECT FROM pg_locks
WHERE locktype = 'advisory' AND granted AND pid = $2 AND objsubid = 1
    AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1, 0))";

// River's rescuer takes a job that has run for an hour for a stuck one. $1 ids, $2 owner.
inline constexpr const char* keep_from_rescuer = R"(
UPDATE @river_job SET attempted_at = now()
WHERE id IN (SELECT id FROM @river_job WHERE id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED)
    AND state = 'running' AND attempted_by[cardinality(attempted_by)] = $2)";

// Running jobs' owners of our kind whose lock nobody holds. $1 queues, $2 owner.
inline constexpr const char* owners_without_lock = R"(
WITH owners AS MATERIALIZED (
    SELECT DISTINCT attempted_by[cardinality(attempted_by)] AS name FROM @river_job
    WHERE state = 'running' AND queue = ANY ($1::text[])
), locks AS MATERIALIZED (
    SELECT classid::bigint << 32 | objid::bigint AS key FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT name FROM owners
WHERE name ~ '^ojs:[0-9]{1,9}:.*:[0-9a-f]{16}$' AND name <> $2
    AND NOT EXISTS (SELECT FROM locks WHERE key = hashtextextended(name, 0)))";

// $1 the owner that is gone, $2 queues, $3 and $4 the first and last id. The attempt counts: a job that ends its workers
// comes to an end itself. The others are due, and `schedule` makes them available.
inline constexpr const char* rescue = R"(
WITH owner AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0)) AS is_gone
), lost AS MATERIALIZED (
    SELECT job.id FROM owner JOIN @river_job AS job ON owner.is_gone
    WHERE job.state = 'running' AND job.queue = ANY ($2::text[])
        AND job.attempted_by[cardinality(job.attempted_by)] = $1 AND job.id BETWEEN $3::bigint AND $4::bigint
    ORDER BY job.id LIMIT 1000
    FOR UPDATE OF job SKIP LOCKED
), rescued AS (
    UPDATE @river_job AS job
    SET state = (CASE
            WHEN metadata ? 'cancel_attempted_at' THEN 'cancelled'
            WHEN attempt >= max_attempts THEN 'discarded'
            ELSE 'retryable' END)::@river_job_state,
        finalized_at = CASE
            WHEN metadata ? 'cancel_attempted_at' OR attempt >= max_attempts THEN now() END,
        errors = CASE WHEN array_ndims(errors) > 1 THEN errors ELSE array_append(errors, jsonb_build_object(
            'at', now(), 'attempt', attempt, 'error', 'the worker is gone: ' || $1, 'trace', '')) END,
        metadata = CASE WHEN jsonb_typeof(metadata) <> 'object' THEN metadata ELSE metadata || jsonb_build_object(
            'river:rescue_count', CASE WHEN jsonb_typeof(metadata -> 'river:rescue_count') = 'number'
                THEN (metadata ->> 'river:rescue_count')::numeric ELSE 0 END + 1) END
    FROM lost WHERE job.id = lost.id
    RETURNING job.id
)
SELECT id FROM rescued)";

// Jobs whose time has come: what River's leader does, where there is one. Of unique ones only one may wait.
// $1 queues, $2 channel, $3 and $4 the first and last id.
inline constexpr const char* schedule = R"(
WITH due AS MATERIALIZED (
    SELECT id, priority, scheduled_at, unique_key, unique_states IS NOT NULL AS is_unique FROM @river_job
    WHERE state IN ('retryable', 'scheduled') AND queue = ANY ($1::text[]) AND scheduled_at <= now()
        AND id BETWEEN $3::bigint AND $4::bigint
    ORDER BY priority, scheduled_at, id LIMIT 1000
    FOR UPDATE SKIP LOCKED
), ranked AS (
    SELECT id, unique_key,
        unique_key IS NOT NULL AND is_unique AS is_unique,
        row_number() OVER (PARTITION BY unique_key ORDER BY priority, scheduled_at, id) AS place
    FROM due
), decided AS (
    SELECT id, is_unique AND (place > 1 OR EXISTS (
            SELECT FROM @river_job AS other
            WHERE other.unique_key = ranked.unique_key AND other.unique_states IS NOT NULL
                AND @river_job_state_in_bitmask(other.unique_states, other.state)
                AND NOT other.id IN (SELECT id FROM due))) AS too_many
    FROM ranked
), moved AS (
    UPDATE @river_job AS job
    SET state = (CASE WHEN too_many THEN 'discarded' ELSE 'available' END)::@river_job_state,
        finalized_at = CASE WHEN too_many THEN now() END,
        metadata = CASE WHEN too_many AND jsonb_typeof(metadata) = 'object'
            THEN metadata || '{"unique_key_conflict": "scheduler_discarded"}' ELSE metadata END
    FROM decided WHERE job.id = decided.id
    RETURNING queue, state
)
SELECT pg_notify($2, json_build_object('queue', queue)::text) FROM moved WHERE state = 'available' GROUP BY queue)";

inline constexpr const char* keep_queues = R"(
INSERT INTO @river_queue (name, created_at, metadata, updated_at)
SELECT name, now(), '{}', now() FROM unnest($1::text[]) AS names (name) ORDER BY name
ON CONFLICT (name) DO UPDATE SET updated_at = now())";

// $1 id, $2 attempt, $3 owner, $4 the checkpoint.
inline constexpr const char* save = R"(
UPDATE @river_job SET metadata = metadata || jsonb_build_object('checkpoint', $4::jsonb)
WHERE id = $1::bigint AND state = 'running' AND attempt = $2::bigint
    AND attempted_by[cardinality(attempted_by)] = $3 AND jsonb_typeof(metadata) = 'object'
RETURNING id)";
inline constexpr const char* load = "SELECT metadata -> 'checkpoint' FROM @river_job WHERE id = $1::bigint";

// ---- small things ----

inline ojs::error failure(ojs::errc code, std::string text) {
    return {code, 0, std::move(text), 0, {}};
}

inline std::optional<long long> read_id(const std::string& text) {
    errno = 0;
    char* end = nullptr;
    const long long id = std::strtoll(text.c_str(), &end, 10);
    const bool whole = !text.empty() && end == text.c_str() + text.size() && errno == 0;
    return whole ? std::optional(id) : std::nullopt;
}

// PostgreSQL holds no NUL, and only whole characters.
inline std::string storable(std::string text, bool ascii_only) {
    for (char& each : text) {
        if (each == '\0' || (ascii_only && static_cast<unsigned char>(each) >= 0x80)) each = '?';
    }
    return text;
}

inline postgres_array array_of(const std::vector<std::string>& texts) {
    postgres_array out;
    for (const std::string& each : texts) out.add(each);
    return out;
}

// Until a moment that any clock can hold.
inline ojs::time_point within_an_hour(ojs::time_point deadline) {
    return std::min(deadline, ojs::steady_clock::now() + std::chrono::hours(1));
}

// A job in hand: claimed, and not settled.
struct held_job {
    long long attempt = 0;
    bool reported = false;     // it was tried: until that is answered, this stays
    bool lost_answer = false;  // of a settlement: it may have been made
    bool settled = false;      // whoever reports it is still to hear of it
    bool came_again = false;   // it was claimed once more before that was clear: that claim is nobody's
    std::string cancelled_at;  // what metadata said at the claim: of an earlier run
    const char* action =
        nullptr;      // what the handler decided with snooze() and the like; none: what the worker says
    std::string why;  // the same: its outcome says so
    std::optional<long long> delay;  // the same; milliseconds
    ojs::time_point touched;         // see keep_from_rescuer
};

// A FETCH that waits for its jobs.
struct wish {
    const ojs::fetch_request* request = nullptr;  // as long as whoever asks waits
    std::size_t count = 0;                        // 0: it is not wanted any more
    bool left = false;                            // nobody waits any more: what comes is nobody's

    bool over = false;
    std::vector<ojs::job> jobs;  // once it is over
    std::optional<ojs::error> failed;
};

// What is to become of a job.
struct settlement {
    long long id = 0;
    long long attempt = 0;
    std::string action;
    std::string error;
    std::optional<long long> delay;
    std::string merged;  // JSON object; empty: none

    bool over = false;
    bool done = false;    // once it is over: the database took it
    bool locked = false;  // the same: another transaction has locked the row
    std::optional<ojs::error> failed;
};

}  // namespace river_detail

// Of one worker, once, and of the process that made it: a child made by fork() must neither use nor destroy it.
class river_postgres : public ojs::transport {
  public:
    // `url` is a URI (postgres://...) or a string of libpq's. Connects for up to `patience`, to look at the tables: errors are
    // invalid_argument, where it is no such string, and unsupported, where the tables are not there or are of a version that
    // is not known. A database that cannot be reached is no error here: the worker goes on trying.
    static ojs::result<std::unique_ptr<river_postgres>> create(
        std::string url, river_options options = {},
        std::chrono::milliseconds patience = std::chrono::seconds(5)) {
        if (!is_conninfo(url))
            return river_detail::failure(ojs::errc::invalid_argument,
                                         "the database's URL is not one that libpq can read");
        std::unique_ptr<river_postgres> made(new river_postgres(std::move(url), std::move(options)));
        const ojs::result<void> seen = made->look_at_schema(ojs::deadline_after(patience));
        if (!seen && seen.error().code == ojs::errc::unsupported) return seen.error();
        return made;
    }
    ~river_postgres() override { end_session(); }

    // For a handler to return, in place of an outcome of its own: the job comes again after `delay`, and the attempt does not
    // count; comes again after `delay` instead of River's back-off, unless its attempts are used up; or is over, as cancelled.
    ojs::outcome snooze(const ojs::job_context& job, std::chrono::milliseconds delay) {
        return decide(job, "snooze", milliseconds(delay), "snoozed");
    }
    ojs::outcome retry_after(const ojs::job_context& job, std::chrono::milliseconds delay, std::string why) {
        return decide(job, "fail", milliseconds(delay), std::move(why));
    }
    ojs::outcome cancel(const ojs::job_context& job, std::string why) {
        return decide(job, "cancel", {}, std::move(why));
    }

    // FETCHes that come together are one claim, as ACKs and FAILs are one report: a commit each.
    ojs::result<std::vector<ojs::job>> fetch(const ojs::fetch_request& request,
                                             ojs::time_point deadline) override {
        const ojs::result<void> known = begin_session(*request.worker, deadline);
        if (!known) return known.error();
        const auto own = std::make_shared<river_detail::wish>();
        own->request = &request;
        own->count = request.count;
        std::unique_lock<std::mutex> lock(wishes_mutex_);
        wishes_.push_back(own);
        company_.notify_one();
        while (!own->over) {
            if (!claiming_now_) {
                claim_for_all(lock, *own, deadline);
            } else if (wishes_changed_.wait_until(lock, river_detail::within_an_hour(deadline)) ==
                           std::cv_status::timeout &&
                       !own->over) {
                return leave_wish(own);
            }
        }
        if (own->failed) return *own->failed;
        return std::move(own->jobs);
    }

    ojs::result<ojs::settled> ack(const ojs::ack_request& request, ojs::time_point deadline) override {
        river_detail::settlement wanted;
        wanted.action = "complete";
        if (!request.result_json.empty()) wanted.merged = "{\"output\":" + request.result_json + "}";
        return settle(request.job_id, std::move(wanted), deadline);
    }

    ojs::result<ojs::settled> fail(const ojs::fail_request& request, ojs::time_point deadline) override {
        const ojs::job_error& error = request.error;
        river_detail::settlement wanted;
        wanted.action = request.requeue             ? "requeue"
                        : error.code == "cancelled" ? "cancel"
                        : error.retryable           ? "fail"
                                                    : "discard";
        const bool named = error.code == "handler_error" || error.message.rfind(error.code, 0) == 0;
        wanted.error = named ? error.message : error.code + ": " + error.message;
        if (!request.checkpoint_json.empty())
            wanted.merged = "{\"checkpoint\":" + request.checkpoint_json + "}";
        if (!request.requeue && error.retryable && error.code == "handler_error")
            apply_decision(request.job_id, wanted);
        return settle(request.job_id, std::move(wanted), deadline);
    }

    ojs::result<ojs::heartbeat_answer> heartbeat(const ojs::heartbeat_request& request,
                                                 ojs::time_point deadline) override {
        if (left_) return ojs::heartbeat_answer();
        const ojs::result<void> known = begin_session(*request.worker, deadline);
        if (!known) return known.error();
        const line::turn turn(beating_, deadline);
        if (!turn) return river_detail::failure(ojs::errc::timed_out, "another heartbeat is still under way");
        return confirm(request, deadline);
    }

    ojs::result<void> register_worker(const ojs::worker_identity& worker, ojs::time_point deadline) override {
        return begin_session(worker, deadline);
    }
    // Lets go of the lock: what could not be reported is for others to find.
    ojs::result<void> deregister_worker(const ojs::worker_identity& /*worker*/,
                                        ojs::time_point deadline) override {
        ojs::result<void> found;
        {
            const line::turn turn(claiming_, deadline);
            if (turn) found = give_back_lost(deadline);
        }
        left_ = true;
        end_session();
        return found;
    }

    ojs::result<ojs::settled> save_checkpoint(const ojs::checkpoint_request& request,
                                              ojs::time_point deadline) override {
        const std::optional<long long> id = river_detail::read_id(request.job_id);
        const std::optional<river_detail::held_job> held = id ? find_held(*id) : std::nullopt;
        if (!held) return ojs::settled::gone;
        const line::turn turn(saving_, deadline);
        if (!turn)
            return river_detail::failure(ojs::errc::timed_out, "another checkpoint is still under way");
        const ojs::result<postgres_rows> saved =
            saving_.run(save_, {*id, held->attempt, owner(), request.state_json}, deadline);
        if (!saved) return saved.error();
        return saved->size() > 0 ? ojs::settled::accepted : ojs::settled::gone;
    }
    ojs::result<std::string> load_checkpoint(const std::string& job_id, ojs::time_point deadline) override {
        const std::optional<long long> id = river_detail::read_id(job_id);
        if (!id) return std::string();
        const line::turn turn(saving_, deadline);
        if (!turn)
            return river_detail::failure(ojs::errc::timed_out, "another checkpoint is still under way");
        const ojs::result<postgres_rows> found = saving_.run(load_, {*id}, deadline);
        if (!found) return found.error();
        return found->size() > 0 && !found->is_null(0, 0) ? found->text(0, 0) : std::string();
    }

    void when_work_may_wait(ojs::function<void()> tell) override {
        const std::lock_guard<std::mutex> held(tell_mutex_);
        tell_work_ = std::move(tell);
    }
    void when_jobs_are_revoked(ojs::function<void(const std::string&)> tell) override {
        const std::lock_guard<std::mutex> held(tell_mutex_);
        tell_revoked_ = std::move(tell);
    }

  private:
    // A connection, and whose turn it is.
    class line : public postgres_connection {
      public:
        using postgres_connection::postgres_connection;

        // False: it was another's until the deadline.
        class turn {
          public:
            turn(line& of, ojs::time_point deadline) : of_(of) {
                std::unique_lock<std::mutex> held(of_.mutex_);
                mine_ = of_.free_again_.wait_until(held, river_detail::within_an_hour(deadline),
                                                   [&of] { return !of.taken_; });
                if (mine_) of_.taken_ = true;
            }
            turn(const turn&) = delete;
            turn& operator=(const turn&) = delete;
            ~turn() {
                if (!mine_) return;
                const std::lock_guard<std::mutex> held(of_.mutex_);
                of_.taken_ = false;
                of_.free_again_.notify_one();
            }
            explicit operator bool() const noexcept { return mine_; }

          private:
            line& of_;
            bool mine_ = false;
        };

      private:
        std::mutex mutex_;
        std::condition_variable free_again_;
        bool taken_ = false;
    };

    river_postgres(std::string url, river_options options)
        : options_(std::move(options)),
          claiming_(url, "ojs claims"),
          settling_(url, "ojs settles"),
          beating_(url, "ojs beats"),
          saving_(url, "ojs checkpoints"),
          session_(std::move(url), "ojs session") {}

    static bool is_conninfo(const std::string& url) {
        if (url.find('\0') != std::string::npos) return false;
        PQconninfoOption* const read =
            PQconninfoParse(url.c_str(), nullptr);  // its text may quote a password
        PQconninfoFree(read);
        return read != nullptr;
    }

    postgres_statement statement(const char* name, const char* sql) const {
        const std::string schema =
            options_.schema.empty() ? "" : postgres_connection::quoted(options_.schema) + ".";
        std::string out;
        for (const char* at = sql; *at != '\0'; ++at) out += *at == '@' ? schema : std::string(1, *at);
        return {name, out};
    }

    void notice(const std::string& text) const {
        if (options_.on_notice) options_.on_notice(text);
    }

    // It may have been done, or not.
    static bool is_lost(const ojs::error& why) {
        return why.code == ojs::errc::timed_out || why.code == ojs::errc::disconnected;
    }
    // At most thirty years.
    static long long milliseconds(std::chrono::milliseconds time) {
        return std::clamp<long long>(time.count(), 0, 1'000'000'000'000);
    }

    // ---- the schema ----

    // Each transaction of a pooled connection may have another session: then two connections have the same, or one has two.
    ojs::result<void> look_for_pooler(ojs::time_point deadline) {
        static const postgres_statement ask = {"", "SELECT pg_backend_pid()"};
        std::set<std::pair<line*, long long>> seen;
        std::set<long long> sessions;
        for (line* const each : {&session_, &session_, &claiming_, &claiming_, &session_, &claiming_}) {
            const line::turn turn(*each, deadline);
            if (!turn) return river_detail::failure(ojs::errc::timed_out, "the connection is in use");
            const ojs::result<postgres_rows> found = each->run(ask, {}, deadline);
            if (!found) return found.error();
            if (!session_.pooled()) return {};
            seen.emplace(each, found->number(0, 0));
            sessions.insert(found->number(0, 0));
        }
        if (seen.size() == 2 && sessions.size() == 2) return {};
        return river_detail::failure(ojs::errc::unsupported,
                                     "the pooler before the database shares sessions between transactions, "
                                     "which loses locks and LISTEN; "
                                     "set its pool_mode to session, or connect to PostgreSQL itself");
    }

    ojs::result<void> look_at_schema(ojs::time_point deadline) {
        const ojs::result<void> pooler = look_for_pooler(deadline);
        if (!pooler) return pooler;
        const ojs::result<postgres_rows> found = session_.run(version_, {}, deadline);
        const std::string known =
            std::to_string(least_river_version) + " to " + std::to_string(last_river_version);
        if (!found) {
            const bool missing = found.error().text.find("(42P01)") != std::string::npos ||
                                 found.error().text.find("(3F000)") != std::string::npos;
            if (!missing) return found.error();
            return river_detail::failure(ojs::errc::unsupported,
                                         "River's tables are not in this database: " + found.error().text);
        }
        const long long version = found->is_null(0, 0) ? 0 : found->number(0, 0);
        if (version < least_river_version || version > last_river_version)
            return river_detail::failure(
                ojs::errc::unsupported,
                "River's tables are of version " + std::to_string(version) + "; known are " + known);
        const std::string schema = options_.schema.empty() ? found->text(0, 1) : options_.schema;
        const std::lock_guard<std::mutex> held(mutex_);
        insert_channel_ = schema + ".river_insert";
        control_channel_ = schema + ".river_control";
        return {};
    }

    // ---- the session: the lock, what others notify, and what is due from time to time ----

    // Nothing is claimed before the lock is held.
    ojs::result<void> begin_session(const ojs::worker_identity& worker, ojs::time_point deadline) {
        std::unique_lock<std::mutex> held(mutex_);
        if (owner_.empty()) {
            lease_ = worker.visibility_timeout;
            all_queues_ = worker.queues;
            owner_ = make_owner(worker);
        }
        if (!session_thread_.joinable() && !ending_) {
            const ojs::result<void> started = start_session_thread();
            if (!started) return started;
        }
        const auto ready = [this] { return locked_ || ending_; };
        if (changed_.wait_until(held, river_detail::within_an_hour(deadline), ready) && locked_) return {};
        if (ending_) return river_detail::failure(ojs::errc::unavailable, "the worker has left");
        return river_detail::failure(ojs::errc::unavailable, session_trouble_.empty()
                                                                 ? "the database does not answer"
                                                                 : session_trouble_);
    }

    static std::string make_owner(const ojs::worker_identity& worker) {
        std::random_device random;
        char nonce[17];
        std::snprintf(nonce, sizeof nonce, "%08x%08x", random(), random());
        return "ojs:" + std::to_string(worker.visibility_timeout.count()) + ":" +
               river_detail::storable(worker.worker_id, true) + ":" + nonce;
    }
    std::string owner() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return owner_;
    }

    ojs::result<void> start_session_thread() {
        if (wake_[0] < 0 && ::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0)
            return ojs::error{ojs::errc::system, errno, "no pipe", 0, {}};
        session_.give_up_on(wake_[0]);
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        ojs::result<void> out;
        try {
            session_thread_ = std::thread([this] { keep_session(); });
        } catch (const std::system_error& why) {
            out = ojs::error{ojs::errc::system, why.code().value(), "no thread for the session", 0, {}};
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return out;
    }

    void end_session() {
        std::thread thread;
        {
            const std::lock_guard<std::mutex> held(mutex_);
            ending_ = true;
            thread.swap(session_thread_);
            changed_.notify_all();
        }
        if (thread.joinable()) {
            const char any = 0;
            if (::write(wake_[1], &any, 1) < 0) {
            }
            thread.join();
        }
        for (int& each : wake_) {
            if (each >= 0) ::close(each);
            each = -1;
        }
    }

    bool is_ending() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return ending_;
    }

    void keep_session() {
        auto pause = std::chrono::milliseconds(20);
        while (!is_ending()) {
            const ojs::result<void> begun = take_lock();
            if (begun) {
                pause = std::chrono::milliseconds(20);
                serve_session();
            }
            set_locked(false, begun ? "" : begun.error().text);
            session_.begin_anew();
            wait_on_session(ojs::deadline_after(pause));
            pause = std::min(pause * 2, std::chrono::milliseconds(1000));
        }
    }

    ojs::result<void> take_lock() {
        const ojs::time_point deadline = call_deadline();
        const ojs::result<void> known = look_at_schema(deadline);
        if (!known) return known;
        const ojs::result<postgres_rows> locked = session_.run(lock_, {owner()}, deadline);
        if (!locked) return locked.error();
        session_.keep_to_this_one();
        free_since_.clear();
        const postgres_statement listens[] = {
            {"listen for jobs", "LISTEN " + postgres_connection::quoted(insert_channel_)},
            {"listen for control", "LISTEN " + postgres_connection::quoted(control_channel_)}};
        for (const postgres_statement& each : listens) {
            const ojs::result<postgres_rows> listening = session_.run(each, {}, deadline);
            if (!listening) return listening.error();
        }
        next_round_ = next_queues_ = ojs::steady_clock::now();
        set_locked(true, "");
        tell_work();
        return {};
    }
    void set_locked(bool now, std::string trouble) {
        const std::lock_guard<std::mutex> held(mutex_);
        locked_ = now;
        session_process_ = now ? session_.server_process() : 0;
        session_trouble_ = std::move(trouble);
        changed_.notify_all();
    }
    static ojs::time_point call_deadline() { return ojs::deadline_after(std::chrono::seconds(5)); }

    // Until the connection ends, or the worker leaves.
    void serve_session() {
        while (!is_ending()) {
            if (ojs::steady_clock::now() >= next_round_ && !make_round()) return;
            wait_on_session(next_round_);
            const bool alive = session_.take_notices(
                [this](std::string_view channel, std::string_view text) { read_notice(channel, text); });
            if (!alive) return;
        }
    }

    void wait_on_session(ojs::time_point deadline) {
        pollfd looks[] = {{session_.socket(), POLLIN, 0}, {wake_[0], POLLIN, 0}};
        ::poll(looks, 2, postgres_connection::poll_time(deadline));
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
        const std::lock_guard<std::mutex> held(tell_mutex_);
        tell_work_();
    }
    void tell_revoked(const std::string& id) const {
        const std::lock_guard<std::mutex> held(tell_mutex_);
        tell_revoked_(id);
    }

    // Every few seconds. False: the connection is gone.
    bool make_round() {
        const std::chrono::milliseconds quarter = lease_ / 4;
        next_round_ = ojs::deadline_after(
            std::clamp(quarter, std::chrono::milliseconds(50), std::chrono::milliseconds(5000)));
        const std::string queues = river_detail::array_of(all_queues_).text();
        look_for_lost_owners(queues);
        const values due = {queues, insert_channel_};
        check(run_by_halves(
                  session_, schedule_, [&] { return due; }, [](const postgres_rows&) {}, call_deadline()),
              "jobs whose time has come");
        if (ojs::steady_clock::now() >= next_queues_) {
            next_queues_ = ojs::deadline_after(std::chrono::minutes(1));
            check(session_.run(keep_queues_, {queues}, call_deadline()), "the rows of the queues");
            keep_from_rescuer();
        }
        return session_.connected();
    }
    template <class Value>
    bool check(const ojs::result<Value>& done, const char* what) const {
        if (!done) notice(std::string(what) + ": " + done.error().text);
        return bool(done);
    }

    using values = std::vector<postgres_value>;

    // For a statement whose last two values are the first and the last id. Where the tables refuse one row, and with it the
    // statement, each half is done by itself, until that row is alone: it is told, and left out.
    ojs::result<void> run_by_halves(line& on, const postgres_statement& what,
                                    const std::function<values()>& others,
                                    const std::function<void(const postgres_rows&)>& take,
                                    ojs::time_point deadline,
                                    const ojs::function<bool()>& still_wanted = nullptr,
                                    std::set<long long>* refused = nullptr) {
        using ids = std::numeric_limits<long long>;
        std::vector<std::pair<long long, long long>> ranges = {{ids::min(), ids::max()}};
        while (!ranges.empty()) {
            const auto [from, to] = ranges.back();
            ranges.pop_back();
            values all = others();
            all.insert(all.end(), {from, to});
            const ojs::result<postgres_rows> rows = on.run(what, all, deadline, still_wanted);
            if (rows) {
                take(*rows);
            } else if (rows.error().code != ojs::errc::rejected) {
                return rows.error();
            } else if (from == to) {
                notice(std::string(what.name) + " of job " + std::to_string(from) + ": " + rows.error().text);
                if (refused != nullptr) refused->insert(from);
            } else {
                const long long middle = (from >> 1) + (to >> 1) + (from & to & 1);
                ranges.insert(ranges.end(), {{middle + 1, to}, {from, middle}});
            }
        }
        return {};
    }

    // An owner whose lock is seen free for its whole lease is gone: one that lives takes it again long before.
    void look_for_lost_owners(const std::string& queues) {
        const ojs::result<postgres_rows> found =
            session_.run(owners_without_lock_, {queues, owner()}, call_deadline());
        if (!check(found, "owners without a lock")) return free_since_.clear();
        std::map<std::string, ojs::time_point> still;
        const ojs::time_point now = ojs::steady_clock::now();
        for (int row = 0; row < found->size(); ++row) {
            const std::string name = found->text(row, 0);
            const auto before = free_since_.find(name);
            const ojs::time_point since = before == free_since_.end() ? now : before->second;
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
        check(run_by_halves(
                  session_, rescue_, [&] { return lost; }, count, call_deadline()),
              "rescue");
        if (rescued > 0)
            notice("rescued " + std::to_string(rescued) + " jobs of " + name + ", which is gone");
    }

    void keep_from_rescuer() {
        postgres_array ids;
        bool any = false;
        const ojs::time_point now = ojs::steady_clock::now();
        {
            const std::lock_guard<std::mutex> held(mutex_);
            for (auto& each : held_) {
                if (now - each.second.touched < std::chrono::minutes(10)) continue;
                each.second.touched = now;
                ids.add(each.first);
                any = true;
            }
        }
        if (any)
            check(session_.run(keep_from_rescuer_, {ids.text(), owner()}, call_deadline()),
                  "jobs that run for long");
    }

    // ---- claiming: FETCHes that wait at the same time are one claim ----

    using wishes = std::vector<std::shared_ptr<river_detail::wish>>;

    // With the lock, which is let go of meanwhile: whoever comes first claims for all who ask for the same queues.
    void claim_for_all(std::unique_lock<std::mutex>& lock, const river_detail::wish& own,
                       ojs::time_point deadline) {
        claiming_now_ = true;
        const ojs::time_point company = std::min(deadline, free_slots_until_);
        company_.wait_until(lock, company, [this] { return wanted_by(wishes_) >= free_slots_; });
        const std::vector<std::string> queues = own.request->worker->queues;
        const auto others = std::partition(wishes_.begin(), wishes_.end(), [&](const auto& each) {
            return each->request->worker->queues == queues;
        });
        const wishes mine(wishes_.begin(), others);
        wishes_.erase(wishes_.begin(), others);
        lock.unlock();
        std::vector<ojs::job> claimed;
        ojs::result<void> done;
        try {
            done = claim_jobs(queues, mine, deadline, claimed);
        } catch (...) {
            claims_lost_ = true;
            done = river_detail::failure(ojs::errc::unavailable, "no memory");
        }
        lock.lock();
        share_out(mine, done, std::move(claimed));
        claiming_now_ = false;
        wishes_changed_.notify_all();
    }
    static std::size_t wanted_by(const wishes& all) {
        std::size_t out = 0;
        for (const auto& each : all) out += each->count;
        return out;
    }

    // Nobody waits for this one any more. With the lock.
    ojs::error leave_wish(const std::shared_ptr<river_detail::wish>& own) {
        own->left = true;
        const auto found = std::find(wishes_.begin(), wishes_.end(), own);
        if (found == wishes_.end())
            return river_detail::failure(ojs::errc::timed_out, "the database did not answer in time");
        wishes_.erase(found);
        return river_detail::failure(ojs::errc::unreachable, "another FETCH is still under way");
    }

    // With the lock. Jobs for who has left are lost, as with an answer.
    void share_out(const wishes& to, const ojs::result<void>& done, std::vector<ojs::job> jobs) {
        std::size_t next = 0;
        for (const auto& each : to) {
            each->over = true;
            if (!done && jobs.empty()) each->failed = done.error();
            if (each->count == 0)
                each->failed = river_detail::failure(ojs::errc::cancelled, "not wanted any more");
            for (; each->jobs.size() < each->count && next < jobs.size(); ++next)
                each->jobs.push_back(std::move(jobs[next]));
            if (each->left && !each->jobs.empty()) drop(each->jobs);
        }
    }
    void drop(const std::vector<ojs::job>& jobs) {
        const std::lock_guard<std::mutex> held(mutex_);
        for (const ojs::job& each : jobs) held_.erase(std::atoll(each.id.c_str()));
        in_hand_ = held_.size();
        claims_lost_ = true;
    }

    // Of one queue after the other, beginning with another one each time.
    ojs::result<void> claim_jobs(const std::vector<std::string>& queues, const wishes& for_whom,
                                 ojs::time_point deadline, std::vector<ojs::job>& out) {
        const line::turn turn(claiming_, deadline);
        if (!turn) return river_detail::failure(ojs::errc::unreachable, "the connection is in use");
        ojs::result<void> done = connect_others(deadline);
        if (done) done = give_back_lost(deadline);
        const std::size_t first = next_queue_++;
        for (std::size_t i = 0; done && i < queues.size() && out.size() < wanted_by(for_whom); ++i) {
            const std::string& queue = queues[(first + i) % queues.size()];
            do {
                done = claim(queue, for_whom, deadline, out);
            } while (!done && done.error().code == ojs::errc::cancelled && out.empty() &&
                     wanted_by(for_whom) > 0);
        }
        return done;
    }
    // Nothing is claimed that could not be reported, or whose lease could not be renewed. What is in use stands.
    ojs::result<void> connect_others(ojs::time_point deadline) {
        const std::pair<line*, const postgres_statement*> others[] = {{&settling_, &settle_},
                                                                      {&beating_, &confirm_}};
        for (const auto& [each, what] : others) {
            const bool stands = each->server_process() != 0;
            const line::turn turn(*each, stands ? ojs::steady_clock::now() : deadline);
            if (!turn && !stands)
                return river_detail::failure(ojs::errc::unreachable, "the connection is in use");
            const ojs::result<void> ready = turn ? each->prepare(*what, deadline) : ojs::result<void>();
            if (!ready) return ready;
        }
        return {};
    }
    // False: one is not wanted any more. Before there are jobs, the others go on without it.
    bool all_still_wanted(const wishes& all, bool has_jobs) {
        const std::lock_guard<std::mutex> held(wishes_mutex_);
        bool out = true;
        for (const auto& each : all) {
            if (each->count == 0) continue;
            if (!each->left && (!each->request->still_wanted || each->request->still_wanted())) continue;
            if (!has_jobs) each->count = 0;
            out = false;
        }
        return out;
    }

    // Jobs that cannot be claimed are told, and left out for a minute, so that not each claim looks at them again.
    ojs::result<void> claim(const std::string& queue, const wishes& for_whom, ojs::time_point deadline,
                            std::vector<ojs::job>& out) {
        if (ojs::steady_clock::now() >= left_out_until_) {
            left_out_.clear();
            left_out_until_ = ojs::deadline_after(std::chrono::minutes(1));
        }
        const auto most_bytes = static_cast<long long>(options_.most_bytes);
        const postgres_value kinds =
            options_.kinds.empty() ? postgres_value(nullptr) : river_detail::array_of(options_.kinds).text();
        const auto values_now = [&] {
            postgres_array left_out;
            for (const long long each : left_out_) left_out.add(each);
            const auto count = static_cast<long long>(wanted_by(for_whom) - out.size());
            return values{queue, count, owner(), most_bytes, kinds, left_out.text()};
        };
        ojs::result<void> done;
        std::size_t known = 0;
        do {
            known = left_out_.size();
            done = run_by_halves(
                claiming_, claim_, values_now,
                [&](const postgres_rows& rows) { take_in_all(queue, rows, out); }, deadline,
                [&] { return all_still_wanted(for_whom, !out.empty()); }, &left_out_);
        } while (done && left_out_.size() > known && out.size() < wanted_by(for_whom));
        if (!done && is_lost(done.error())) claims_lost_ = true;
        return done;
    }

    void take_in_all(const std::string& queue, const postgres_rows& rows, std::vector<ojs::job>& out) {
        out.reserve(out.size() + static_cast<std::size_t>(rows.size()));
        std::vector<long long> unfit;
        {
            const std::lock_guard<std::mutex> held(mutex_);
            for (int row = 0; row < rows.size(); ++row) {
                const auto known = held_.find(rows.number(row, 0));
                if (rows.is_null(row, 1)) {
                    unfit.push_back(rows.number(row, 0));
                } else if (known == held_.end()) {
                    out.push_back(take_in(rows, row));
                } else {
                    known->second.came_again = true;
                }
            }
            in_hand_ = held_.size();
        }
        if (unfit.empty()) return;
        left_out_.insert(unfit.begin(), unfit.end());
        notice("left alone in queue " + queue + ": " + std::to_string(unfit.size()) +
               " jobs that weigh too much or have no args, the first of them " +
               std::to_string(unfit.front()));
    }

    // With the mutex held.
    ojs::job take_in(const postgres_rows& rows, int row) {
        river_detail::held_job held;
        held.attempt = rows.number(row, 3);
        held.cancelled_at = rows.text(row, 7);
        held.touched = ojs::steady_clock::now();
        ojs::job out;
        out.id = rows.text(row, 0);
        out.type = rows.text(row, 1);
        out.queue = rows.text(row, 2);
        out.attempt = held.attempt;
        out.max_attempts = rows.number(row, 4);
        const std::string args = rows.text(row, 5);
        out.args_json = args.rfind('[', 0) == 0 ? args : "[" + args + "]";
        out.meta_json = rows.text(row, 6);
        held_[rows.number(row, 0)] = std::move(held);  // the last: now it is in hand
        return out;
    }

    // With the mutex held. What came once more meanwhile is given back.
    void forget(std::map<long long, river_detail::held_job>::iterator which) {
        if (which->second.came_again) claims_lost_ = true;
        held_.erase(which);
        in_hand_ = held_.size();
    }
    // What is not ours any more is not reported either: the worker only names it. Where a report is under way, it will say.
    void forget_others(const std::vector<std::string>& asked, std::vector<std::string>& ours) {
        const std::set<std::string> still(ours.begin(), ours.end());
        const std::lock_guard<std::mutex> held(mutex_);
        for (const std::string& each : asked) {
            const std::optional<long long> id = river_detail::read_id(each);
            const auto found = id && still.count(each) == 0 ? held_.find(*id) : held_.end();
            if (found == held_.end()) continue;
            found->second.reported ? ours.push_back(each) : forget(found);
        }
    }

    // With the turn to claim, so that no claim is under way: what is ours and not in hand came with an answer that was lost.
    ojs::result<void> give_back_lost(ojs::time_point deadline) {
        if (!claims_lost_.exchange(false)) return {};
        postgres_array ids;
        std::string channel;
        {
            const std::lock_guard<std::mutex> held(mutex_);
            for (const auto& each : held_) ids.add(each.first);
            channel = insert_channel_;
        }
        int given = 0, locked = 0;
        const values lost = {owner(), ids.text(), channel};
        const auto count = [&](const postgres_rows& rows) {
            for (int row = 0; row < rows.size(); ++row) ++(rows.text(row, 0) == "t" ? given : locked);
        };
        const ojs::result<void> done = run_by_halves(
            claiming_, give_back_lost_, [&] { return lost; }, count, deadline);
        if (!done || locked > 0) claims_lost_ = true;
        if (given > 0)
            notice("gave back " + std::to_string(given) + " jobs whose claim was answered to nobody");
        return done;
    }

    // ---- beating ----

    ojs::result<ojs::heartbeat_answer> confirm(const ojs::heartbeat_request& request,
                                               ojs::time_point deadline) {
        long long session = 0;
        {
            const std::lock_guard<std::mutex> held(mutex_);
            session = session_process_;
        }
        const ojs::result<postgres_rows> locked =
            beating_.run(lock_is_held_, {owner(), session}, deadline, request.still_wanted);
        if (!locked) return locked.error();
        if (locked->size() == 0)
            return river_detail::failure(ojs::errc::unavailable,
                                         "the session that holds this worker's lock has ended");
        ojs::heartbeat_answer out;
        if (request.active_jobs.empty()) return out;
        postgres_array ids;
        for (const std::string& each : request.active_jobs) {
            if (const std::optional<long long> id = river_detail::read_id(each)) ids.add(*id);
        }
        const ojs::result<postgres_rows> ours = beating_.run(confirm_, {ids.text(), owner()}, deadline);
        if (!ours) return ours.error();
        for (int row = 0; row < ours->size(); ++row) {
            out.jobs_extended.push_back(ours->text(row, 0));
            const std::optional<river_detail::held_job> held = find_held(ours->number(row, 0));
            if (held && held->cancelled_at != ours->text(row, 1)) tell_revoked(ours->text(row, 0));
        }
        forget_others(request.active_jobs, out.jobs_extended);
        return out;
    }

    // ---- settling: what waits at the same time is one statement ----

    ojs::outcome decide(const ojs::job_context& job, const char* action, std::optional<long long> delay,
                        std::string why) {
        const std::optional<long long> id = river_detail::read_id(job.id());
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = id ? held_.find(*id) : held_.end();
        if (found != held_.end()) {
            found->second.action = action;
            found->second.delay = delay;
            found->second.why = why;
        }
        return ojs::outcome::retry(std::move(why));
    }
    void apply_decision(const std::string& job_id, river_detail::settlement& wanted) const {
        const std::optional<long long> id = river_detail::read_id(job_id);
        const std::optional<river_detail::held_job> held = id ? find_held(*id) : std::nullopt;
        if (!held || held->action == nullptr || held->why != wanted.error) return;
        wanted.action = held->action;
        wanted.delay = held->delay;
    }
    std::optional<river_detail::held_job> find_held(long long id) const {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = held_.find(id);
        return found == held_.end() ? std::nullopt : std::optional(found->second);
    }

    std::optional<river_detail::held_job> note_reported(long long id) {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = held_.find(id);
        if (found == held_.end()) return {};
        found->second.reported = true;
        return found->second;
    }

    ojs::result<ojs::settled> settle(const std::string& job_id, river_detail::settlement wanted,
                                     ojs::time_point deadline) {
        const std::optional<long long> id = river_detail::read_id(job_id);
        const std::optional<river_detail::held_job> held = id ? note_reported(*id) : std::nullopt;
        if (!held) return ojs::settled::gone;
        wanted.id = *id;
        wanted.attempt = held->attempt;
        wanted.error = river_detail::storable(std::move(wanted.error), false);
        const auto shared = std::make_shared<river_detail::settlement>(std::move(wanted));
        // One whose row others have locked holds up no other: it is tried again, until its time is over.
        for (std::chrono::milliseconds pause(5);;
             pause = std::min(pause * 2, std::chrono::milliseconds(300))) {
            if (!settle_with_others(shared, deadline))
                return river_detail::failure(ojs::errc::timed_out, "the database did not answer in time");
            if (!shared->locked || ojs::steady_clock::now() + 2 * pause >= deadline) break;
            std::this_thread::sleep_for(pause);
        }
        if (shared->locked)
            return river_detail::failure(ojs::errc::unavailable,
                                         "another transaction has locked the job's row");
        // The worker gives up on one that is rejected and has nothing more to leave out.
        if (!shared->failed || (shared->failed->code == ojs::errc::rejected && shared->merged.empty()))
            let_go(*id);
        if (shared->failed) return *shared->failed;
        return shared->done ? ojs::settled::accepted : ojs::settled::gone;
    }
    // False: its time is over, and others may still settle it.
    bool settle_with_others(const std::shared_ptr<river_detail::settlement>& own, ojs::time_point deadline) {
        std::unique_lock<std::mutex> lock(batch_mutex_);
        own->over = own->locked = false;
        waiting_.push_back(own);
        end_together_.notify_one();
        while (!own->over) {
            if (!settling_now_) {
                settle_waiting(lock, deadline);
            } else if (batch_changed_.wait_until(lock, river_detail::within_an_hour(deadline)) ==
                           std::cv_status::timeout &&
                       !own->over) {
                waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), own), waiting_.end());
                return false;
            }
        }
        return true;
    }

    using batch = std::vector<std::shared_ptr<river_detail::settlement>>;

    // Whoever comes first settles for all who wait by then.
    void settle_waiting(std::unique_lock<std::mutex>& lock, ojs::time_point deadline) {
        settling_now_ = true;
        end_together_.wait_until(lock, std::min(deadline, ojs::steady_clock::now() + company_time),
                                 [this] { return waiting_.size() >= in_hand_; });
        const batch all = std::move(waiting_);
        waiting_.clear();
        lock.unlock();
        try {
            settle_all(all, deadline);
        } catch (...) {
            note_lost(all);
            for (const auto& each : all) {
                if (!each->done) each->failed = river_detail::failure(ojs::errc::unavailable, "no memory");
            }
        }
        expect_wishes(all.size());
        lock.lock();
        for (const auto& each : all) each->over = true;
        settling_now_ = false;
        batch_changed_.notify_all();
    }

    // So many slots come free together: a FETCH waits a moment for the others.
    void expect_wishes(std::size_t count) {
        const std::lock_guard<std::mutex> held(wishes_mutex_);
        free_slots_ = count;
        free_slots_until_ = ojs::steady_clock::now() + company_time;
    }

    // A value that is refused must not keep the others from being settled.
    void settle_all(const batch& all, ojs::time_point deadline) {
        const line::turn turn(settling_, deadline);
        ojs::result<void> done = river_detail::failure(ojs::errc::timed_out, "the connection is in use");
        if (turn) done = try_settle(all, deadline, false);
        const bool alone = !done && done.error().code == ojs::errc::rejected;
        for (const auto& each : all) {
            if (alone) done = try_settle({each}, deadline, false);
            if (alone && !done && done.error().code == ojs::errc::rejected)
                done = try_settle({each}, deadline, true);
            if (!done && !each->done) each->failed = done.error();
        }
    }

    ojs::result<void> try_settle(const batch& all, ojs::time_point deadline, bool ascii_only) {
        postgres_array ids, attempts, actions, errors, delays, merged;
        for (const auto& each : all) {
            ids.add(each->id);
            attempts.add(each->attempt);
            actions.add(each->action);
            each->action == "complete" ? errors.add_null()
                                       : errors.add(river_detail::storable(each->error, ascii_only));
            each->delay ? delays.add(*each->delay) : delays.add_null();
            each->merged.empty() ? merged.add_null() : merged.add(each->merged);
        }
        std::string channel;
        {
            const std::lock_guard<std::mutex> held(mutex_);
            channel = insert_channel_;
        }
        const ojs::result<postgres_rows> rows =
            settling_.run(settle_,
                          {ids.text(), attempts.text(), actions.text(), errors.text(), delays.text(),
                           merged.text(), owner(), channel},
                          deadline);
        if (!rows) {
            if (is_lost(rows.error())) note_lost(all);
            return rows.error();
        }
        note_settled(all, *rows);
        return look_at_rest(all, errors, deadline);
    }

    void note_lost(const batch& all) {
        const std::lock_guard<std::mutex> held(mutex_);
        for (const auto& each : all) {
            const auto found = held_.find(each->id);
            if (found != held_.end()) found->second.lost_answer = true;
        }
    }
    void note_settled(const batch& all, const postgres_rows& rows) {
        std::set<long long> ids;
        for (int row = 0; row < rows.size(); ++row) ids.insert(rows.number(row, 0));
        const std::lock_guard<std::mutex> held(mutex_);
        for (const auto& each : all) {
            const auto found = held_.find(each->id);
            if (found == held_.end()) continue;
            found->second.settled |= ids.count(each->id) != 0;
            each->done = found->second.settled;
        }
    }
    // Those that were not found: others have locked them, an answer that was lost has settled them, or they are gone.
    ojs::result<void> look_at_rest(const batch& all, const postgres_array& errors, ojs::time_point deadline) {
        postgres_array ids, attempts;
        bool any = false;
        for (const auto& each : all) {
            ids.add(each->id);
            attempts.add(each->attempt);
            any |= !each->done;
        }
        if (!any) return {};
        const ojs::result<postgres_rows> rows =
            settling_.run(unsettled_, {ids.text(), attempts.text(), errors.text(), owner()}, deadline);
        if (!rows) return rows.error();
        for (int row = 0; row < rows->size(); ++row) {
            const long long id = rows->number(row, 0);
            river_detail::settlement& rest =
                **std::find_if(all.begin(), all.end(), [id](const auto& each) { return each->id == id; });
            const std::optional<river_detail::held_job> held = find_held(id);
            rest.locked = !rest.done && rows->text(row, 1) == "t";
            rest.done |= held && held->lost_answer && !rest.locked && rows->text(row, 2) != "t";
        }
        return {};
    }
    void let_go(long long id) {
        const std::lock_guard<std::mutex> held(mutex_);
        const auto found = held_.find(id);
        if (found != held_.end()) forget(found);
    }

    const river_options options_;
    const postgres_statement version_ = statement("version", river_detail::version);
    const postgres_statement lock_ = statement("lock", river_detail::lock);
    const postgres_statement claim_ = statement("claim", river_detail::claim);
    const postgres_statement give_back_lost_ = statement("give_back_lost", river_detail::give_back_lost);
    const postgres_statement settle_ = statement("settle", river_detail::settle);
    const postgres_statement unsettled_ = statement("unsettled", river_detail::unsettled);
    const postgres_statement confirm_ = statement("confirm", river_detail::confirm);
    const postgres_statement lock_is_held_ = statement("lock_is_held", river_detail::lock_is_held);
    const postgres_statement keep_from_rescuer_ =
        statement("keep_from_rescuer", river_detail::keep_from_rescuer);
    const postgres_statement owners_without_lock_ = statement("owners", river_detail::owners_without_lock);
    const postgres_statement rescue_ = statement("rescue", river_detail::rescue);
    const postgres_statement schedule_ = statement("schedule", river_detail::schedule);
    const postgres_statement keep_queues_ = statement("keep_queues", river_detail::keep_queues);
    const postgres_statement save_ = statement("save", river_detail::save);
    const postgres_statement load_ = statement("load", river_detail::load);

    line claiming_;
    std::size_t next_queue_ = 0;            // with the turn to claim
    std::atomic<bool> claims_lost_{false};  // the same
    std::set<long long> left_out_;          // the same: jobs that no claim is to look at, and until when
    ojs::time_point left_out_until_;
    line settling_;  // of who settles for all
    line beating_;
    line saving_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::string owner_;                    // once it is known
    std::chrono::milliseconds lease_{0};   // the same
    std::vector<std::string> all_queues_;  // the same
    std::map<long long, river_detail::held_job> held_;
    std::atomic<std::size_t> in_hand_{0};  // its size
    bool locked_ = false;
    bool ending_ = false;
    long long session_process_ = 0;
    std::string session_trouble_;
    std::string insert_channel_, control_channel_;
    std::atomic<bool> left_{false};

    // The session's thread alone, but for the pipe that wakes it.
    std::thread session_thread_;
    line session_;
    int wake_[2] = {-1, -1};
    ojs::time_point next_round_;
    ojs::time_point next_queues_;
    std::map<std::string, ojs::time_point> free_since_;

    mutable std::mutex tell_mutex_;
    ojs::function<void()> tell_work_;
    ojs::function<void(const std::string&)> tell_revoked_;

    // What comes together shares a commit, which takes longer than this.
    static constexpr std::chrono::milliseconds company_time{1};

    std::mutex wishes_mutex_;
    std::condition_variable wishes_changed_;
    std::condition_variable company_;
    wishes wishes_;
    bool claiming_now_ = false;
    std::size_t free_slots_ = 0;  // that came free together, and until when a FETCH waits for the others
    ojs::time_point free_slots_until_;

    std::mutex batch_mutex_;
    std::condition_variable batch_changed_;
    std::condition_variable end_together_;
    batch waiting_;
    bool settling_now_ = false;
};

}  // namespace ojs_adapters
