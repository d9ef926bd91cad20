// database: the statements on River's tables, and one connection for each purpose.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../river_transport.hpp"
#include "postgres_connection.ipp"

namespace ojs::detail {
namespace river {
namespace sql {
inline constexpr postgres_statement version = {"version",
                                               "SELECT max(version), current_schema() FROM @river_migration AS m"
                                               " WHERE coalesce(to_jsonb(m) ->> 'line', 'main') = 'main'"};

inline constexpr postgres_statement ids = {"ids", "SELECT min(id), max(id) FROM @river_job"};
inline constexpr postgres_statement lock = {"lock", "SELECT pg_advisory_lock(hashtextextended($1, 0))"};

// $1 queue, $2 how many, $3 owner, $4 max bytes, $5 kinds or NULL, $6 ids to skip, $7 and $8 the first and last id. A
// job that is too large or incomplete, or has the last attempt that a smallint holds, is not claimed, and returned
// without a kind.
inline constexpr postgres_statement claim = {"claim", R"(
WITH picked AS MATERIALIZED (
    SELECT id, attempt, args, metadata FROM @river_job
    WHERE state = 'available' AND queue = $1 AND scheduled_at <= now()
        AND ($5::text[] IS NULL OR kind = ANY ($5::text[]))
        AND CASE WHEN id BETWEEN $7::bigint AND $8::bigint THEN NOT id = ANY ($6::bigint[]) END
        AND NOT EXISTS (SELECT FROM @river_queue WHERE name = $1 AND paused_at IS NOT NULL)
    ORDER BY priority, scheduled_at, id
    LIMIT $2::bigint FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE @river_job AS job
    SET state = 'running', attempt = job.attempt + 1, attempted_at = now(),
        attempted_by = array_append(CASE WHEN array_ndims(job.attempted_by) = 1
            THEN job.attempted_by[greatest(cardinality(job.attempted_by) - 98, 1):] END, $3::text)
    FROM picked WHERE job.id = picked.id AND picked.attempt < 32767
        AND octet_length(picked.args::text) <= $4::bigint AND octet_length(picked.metadata::text) <= $4::bigint
    RETURNING job.*
)
SELECT picked.id, kind, queue, coalesce(claimed.attempt, picked.attempt), max_attempts, claimed.args::text, claimed.metadata::text,
    coalesce(claimed.metadata ->> 'cancel_attempted_at', ''),
    octet_length(picked.args::text) > $4::bigint OR octet_length(picked.metadata::text) > $4::bigint
FROM picked LEFT JOIN claimed ON claimed.id = picked.id ORDER BY priority, scheduled_at, picked.id)"};

// Requeues jobs whose claim had no response. $1 owner, $2 the known claimed ids, $3 channel, $4 and $5 the first and
// last id. Returns for each job whether it was requeued: others may have locked it.
inline constexpr postgres_statement give_back_lost = {"give_back_lost", R"(
WITH lost AS MATERIALIZED (
    SELECT id FROM @river_job
    WHERE state = 'running' AND attempted_by[cardinality(attempted_by)] = $1 AND NOT id = ANY ($2::bigint[])
        AND id BETWEEN $4::bigint AND $5::bigint
), unlocked AS MATERIALIZED (
    SELECT id FROM @river_job WHERE id IN (SELECT id FROM lost) FOR UPDATE SKIP LOCKED
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
FROM lost LEFT JOIN given_back ON given_back.id = lost.id)"};

// Settles many jobs. $1 ids, $2 attempts, $3 actions, $4 errors, $5 delays in milliseconds, $6 additions to metadata,
// $7 owner, $8 channel. Returned jobs are settled by that action; others are locked, or no longer ours.
//   complete   it is completed                discard, cancel   it is finalized with the error
//   fail       River's back-off, or `delay`   requeue, snooze   at once, or after `delay`; the attempt does not count
// A job whose cancellation was requested is never retried; it can only complete.
inline constexpr postgres_statement settle = {"settle", R"(
WITH request AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::jsonb[])
        AS request (id, attempt, action, error, delay, merged)
), found AS MATERIALIZED (
    SELECT job.id, request.error, request.merged, request.action,
        CASE
            WHEN request.action = 'complete' THEN 'completed'
            WHEN request.action = 'discard' THEN 'discarded'
            WHEN request.action = 'cancel' OR job.metadata ? 'cancel_attempted_at' THEN 'cancelled'
            WHEN request.action IN ('requeue', 'snooze') THEN 'again'
            WHEN job.attempt >= job.max_attempts THEN 'discarded'
            ELSE 'retried'
        END AS fate,
        CASE
            WHEN request.action = 'requeue' THEN NULL
            WHEN request.delay IS NOT NULL THEN request.delay / 1000.0
            ELSE least(power(cardinality(coalesce(job.errors, '{}')) + 1, 4), 1e9) * (0.9 + 0.2 * random())
        END AS delay
    FROM request JOIN @river_job AS job ON job.id = request.id
    WHERE job.state = 'running' AND job.attempt = request.attempt
        AND job.attempted_by[cardinality(job.attempted_by)] = $7
    ORDER BY job.id FOR UPDATE OF job SKIP LOCKED
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
    RETURNING job.id, found.action, job.queue, job.state = 'available' AND job.scheduled_at <= now() AS waits
)
SELECT id, action, CASE WHEN waits THEN pg_notify($8, json_build_object('queue', queue)::text) END FROM settled)"};

// For jobs that `settle` did not return: is_ours: another transaction has locked it; is_rescued: another process ended
// its run, and left an error of that attempt. $1 ids, $2 attempts, $3 errors, $4 owner.
inline constexpr postgres_statement unsettled = {"unsettled", R"(
SELECT request.id,
    EXISTS (SELECT FROM @river_job AS job WHERE job.id = request.id AND state = 'running'
        AND job.attempt = request.attempt AND attempted_by[cardinality(attempted_by)] = $4) AS is_ours,
    EXISTS (SELECT FROM @river_job AS job, unnest(job.errors) AS reported WHERE job.id = request.id
        AND reported ->> 'attempt' = request.attempt::text AND reported ->> 'error' IS DISTINCT FROM request.error) AS is_rescued
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS request (id, attempt, error))"};

// The jobs that are still ours while lock_is_held, and when their cancellation was requested. $1 ids, $2 owner.
inline constexpr postgres_statement confirm = {"confirm", R"(
SELECT job.id, coalesce(job.metadata ->> 'cancel_attempted_at', '')
FROM @river_job AS job WHERE job.id = ANY ($1::bigint[]) AND job.state = 'running'
    AND job.attempted_by[cardinality(job.attempted_by)] = $2)"};
inline constexpr postgres_statement lock_is_held = {"lock_is_held", R"(
SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = $2 AND objsubid = 1
    AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1, 0))"};

// River's rescuer treats a job that has run for an hour as stuck. $1 ids, $2 owner.
inline constexpr postgres_statement renew_attempted_at = {"keep_from_rescuer", R"(
UPDATE @river_job SET attempted_at = now()
WHERE id IN (SELECT id FROM @river_job WHERE id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED)
    AND state = 'running' AND attempted_by[cardinality(attempted_by)] = $2)"};

// Owners of running jobs, named like ours, whose lock is free. $1 queues, $2 our own name.
inline constexpr postgres_statement owners_without_lock = {"owners", R"(
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
    AND NOT EXISTS (SELECT FROM locks WHERE key = hashtextextended(name, 0)))"};

// $1 the dead owner, $2 queues, $3 and $4 the first and last id. The attempt counts, so that a job that kills its
// workers runs out of attempts. The others become retryable, and `schedule` makes them available.
inline constexpr postgres_statement rescue = {"rescue", R"(
WITH owner AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0)) AS is_gone
), lost AS MATERIALIZED (
    SELECT job.id FROM owner JOIN @river_job AS job ON owner.is_gone
    WHERE job.state = 'running' AND job.queue = ANY ($2::text[])
        AND job.attempted_by[cardinality(job.attempted_by)] = $1 AND job.id BETWEEN $3::bigint AND $4::bigint
    ORDER BY job.id LIMIT 1000 FOR UPDATE OF job SKIP LOCKED
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
SELECT id FROM rescued)"};

// Makes due jobs available, as River's leader does. Of unique ones only one may wait.
// $1 queues, $2 channel, $3 and $4 the first and last id.
inline constexpr postgres_statement schedule = {"schedule", R"(
WITH due AS MATERIALIZED (
    SELECT id, priority, scheduled_at, unique_key, unique_states IS NOT NULL AS is_unique FROM @river_job
    WHERE state IN ('retryable', 'scheduled') AND queue = ANY ($1::text[]) AND scheduled_at <= now()
        AND id BETWEEN $3::bigint AND $4::bigint
    ORDER BY priority, scheduled_at, id LIMIT 1000 FOR UPDATE SKIP LOCKED
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
SELECT pg_notify($2, json_build_object('queue', queue)::text) FROM moved WHERE state = 'available' GROUP BY queue)"};

inline constexpr postgres_statement upsert_queues = {"keep_queues", R"(
INSERT INTO @river_queue (name, created_at, metadata, updated_at)
SELECT name, now(), '{}', now() FROM unnest($1::text[]) AS names (name) ORDER BY name
ON CONFLICT (name) DO UPDATE SET updated_at = now())"};
}  // namespace sql

using turn = postgres_connection::turn;
using values = std::vector<postgres_value>;

// Replaces NUL, which PostgreSQL cannot store, and with `ascii_only` every byte above 0x7f, by '?'.
OJS_SHUTDOWN_INLINE std::string storable(std::string text, bool ascii_only) {
    for (char& byte : text) {
        if (byte == '\0' || (ascii_only && static_cast<unsigned char>(byte) >= 0x80)) byte = '?';
    }
    return text;
}

OJS_SHUTDOWN_INLINE postgres_array array_of(const std::vector<std::string>& texts) {
    postgres_array out;
    for (const std::string& text : texts) out.add(text);
    return out;
}

// The statement may have been executed, or not.
OJS_SHUTDOWN_INLINE bool is_unresolved(const error& reason) {
    return reason.code == errc::timed_out || reason.code == errc::disconnected;
}

// Not if resources are short (53) or transactions collide (40).
OJS_SHUTDOWN_INLINE bool may_concern_one_row(const error& reason) {
    const bool may_pass = has_part(reason.text, "(53") || has_part(reason.text, "(40");
    return reason.code == errc::rejected || (reason.code == errc::unavailable && !may_pass);
}

class database {
  public:
    database(const std::string& url, river_options river)
        : options(std::move(river)),
          schema(options.schema.empty() ? "" : quoted_identifier(options.schema) + "."),
          claiming(url, "ojs claims", schema),
          settling(url, "ojs settles", schema),
          renewing(url, "ojs beats", schema),
          listening(url, "ojs session", schema) {}

    void notice(std::string message, std::vector<log_field> fields) const {
        if (options.log) options.log({log_level::warn, std::move(message), std::move(fields), {}, "river"});
    }
    template <class Value>
    bool ok_or_notice(const result<Value>& done, const char* action) const {
        if (!done) notice(action, {field("error", done.error().text)});
        return bool(done);
    }

    // The statement's last two values are the first and last id. A refused range is halved, if an empty one is accepted.
    result<void> run_by_halves(postgres_connection& connection, const postgres_statement& query,
                               const function<values()>& make_values, const function<void(const postgres_rows&)>& take,
                               time_point deadline, const function<bool()>& should_send = nullptr,
                               std::set<long long>* refused = nullptr) {
        std::vector<std::pair<long long, long long>> ranges = {{INT64_MIN, INT64_MAX}};
        while (!ranges.empty()) {
            const auto [from, to] = ranges.back();
            ranges.pop_back();
            values all = make_values();
            all.insert(all.end(), {from, to});
            const result<postgres_rows> rows = connection.run(query, all, deadline, should_send);
            if (rows) {
                take(*rows);
            } else if (from > to || !may_concern_one_row(rows.error())) {
                return rows.error();
            } else if (from == to) {
                notice("the database refused a statement for a job",
                       {field("statement", query.name), field("job_id", from), field("error", rows.error().text)});
                if (refused != nullptr) refused->insert(from);
            } else if (from == INT64_MIN) {
                const result<postgres_rows> known = connection.run(sql::ids, {}, deadline);
                if (!known) return known.error();
                ranges = {{known->number(0, 0), known->number(0, 1)}, {1, 0}};
            } else {
                const long long middle = from + (to - from) / 2;
                ranges.insert(ranges.end(), {{middle + 1, to}, {from, middle}});
            }
        }
        return {};
    }

    const river_options options;
    const std::string schema;  // quoted, with a dot
    postgres_connection claiming;
    postgres_connection settling;
    postgres_connection renewing;
    postgres_connection listening;  // holds the lock
};
}  // namespace river
}  // namespace ojs::detail
