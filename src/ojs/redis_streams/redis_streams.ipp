#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "../net/json_view.hpp"
#include "../worker/worker_options.hpp"
#include "detail/claims.ipp"
#include "detail/connection.ipp"
#include "redis_streams.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace redis {
// The next job of `from`, whose id is not final.
OJS_SHUTDOWN_INLINE job read_job(claim_reader& from, claim& held, const std::string& queue,
                                 const std::string& default_type) {
    job out;
    held.entry = out.id = from.text();
    held.count = from.text();
    out.type = default_type;
    out.queue = queue;
    out.attempt = from.number();
    out.max_attempts = from.number();
    std::string members;
    for (std::int64_t left = from.number(); left > 0 && from.is_valid; left -= 2) {
        const std::string name = from.text();
        std::string value = from.text();
        if (name == "args") {
            const result<json_view> args = json_view::parse(value);
            if (args && args->type() == json_type::array)
                out.args_json = std::move(value);
            else
                out.malformed = "the field args is not a JSON array";
        } else if (name == "body") {
            out.body = std::move(value);
        } else {
            append(members, {members.empty() ? "" : ",", json_quote(name), ":", json_quote(value)});
            if (name == "id" && !value.empty()) out.id = value;
            if (name == "type" && !value.empty()) out.type = value;
        }
    }
    out.meta_json = out.envelope_json = cat({"{", members, "}"});
    return out;
}

// What the FETCHes know of a queue.
struct queue_state {
    std::string last_delivered;  // entry; empty: unknown
    time_point fetch_at = time_point::min(), recover_at = time_point::min();
};

class redis_transport final : public transport {
  public:
    redis_transport(redis_streams_options options, address to)
        : options_(std::move(options)), pool_(std::move(to), script_source) {}

    // From the queues that have more or news, and from each once a second; while there is no job, from the others. A
    // refusal concerns one queue, unless it concerns all.
    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        std::vector<job> out;
        // One at a time: what another FETCH has just claimed is not held yet, and would be taken for lost.
        const std::unique_lock<std::mutex> alone(fetching_, std::try_to_lock);
        if (!alone) return out;
        const std::set<std::string> news = watcher_.take_changed_keys();
        const time_point now = steady_clock::now();
        words queues = request.worker->queues, positions;
        words command = {"XREAD", "COUNT", "1", "BLOCK", "5000", "STREAMS"};
        const auto first = queues.begin() + static_cast<std::ptrdiff_t>(++fetches_ % queues.size());
        std::rotate(queues.begin(), first, queues.end());
        const auto others = std::stable_partition(queues.begin(), queues.end(), [&](const std::string& queue) {
            const std::string key = options_.prefix + queue;
            return states_[key].fetch_at <= now || news.count(key) > 0;
        });
        result<void> refused;
        for (auto each = queues.begin(); each != queues.end(); ++each) {
            if (out.size() >= (each < others ? request.count : 1)) break;
            const result<void> fetched = fetch_from(*each, request, deadline, out);
            if (!fetched && refused) refused = fetched;
        }
        for (const std::string& queue : queues) {
            const std::string& position = states_[options_.prefix + queue].last_delivered;
            if (!position.empty()) command.push_back(options_.prefix + queue), positions.push_back(position);
        }
        if (positions.empty() && !refused) return refused.error();
        if (!refused && now >= log_at_) {
            log_at_ = now + log_interval;
            log("FETCH failed", {field("error", refused.error().text)}, request);
        }
        command.insert(command.end(), positions.begin(), positions.end());
        watcher_.watch(std::move(command), out.size() >= request.count);
        return out;
    }
    result<settle_result> ack(const ack_request& request, time_point deadline) override {
        return settle(request, {"ack"}, deadline);
    }
    // A malformed entry is not requeued: it would come back at once, forever.
    result<settle_result> fail(const fail_request& request, time_point deadline) override {
        const job_error& error = request.error;
        const bool is_malformed = error.code == "invalid_payload";
        if (request.requeue && !is_malformed) return settle(request, {"requeue"}, deadline);
        words how = {error.retryable && !is_malformed ? "retry" : "discard", error.code, error.message};
        how.push_back(std::to_string(options_.max_attempts));
        for (const auto delay : options_.retry_delays) how.push_back(std::to_string(delay.count()));
        return settle(request, how, deadline);
    }
    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point deadline) override {
        std::map<std::string, words> streams;
        for (std::size_t i = 0; i < request.claims.size(); ++i) {
            const claim held(request.claims[i]);
            words& claims = streams[held.key];
            claims.insert(claims.end(), {held.entry, held.count, request.active_jobs[i]});
        }
        if (streams.empty() && !request.is_last) streams[options_.prefix + request.worker->queues.front()];  // a ping
        heartbeat_response out;
        result<void> refused;
        for (const auto& [key, claims] : streams) {
            const result<words> renewed = run("renew", key, claims, {}, request, deadline);
            const errc code = renewed ? errc::unavailable : renewed.error().code;
            if (code != errc::unavailable && code != errc::rejected) return renewed.error();
            if (!renewed) refused = renewed.error();
            if (renewed) out.jobs_extended.insert(out.jobs_extended.end(), renewed->begin(), renewed->end());
        }
        if (!refused && out.jobs_extended.empty()) return refused.error();
        for (const std::string& queue : request.is_last ? request.worker->queues : words())
            static_cast<void>(run("leave", options_.prefix + queue, {}, {}, request, deadline));
        return out;
    }
    result<bool> confirm_claim(const job_request& query, time_point deadline) override {
        const claim held(query.claim);
        const auto renewed = run("renew", held.key, {held.entry, held.count, query.job_id}, {}, query, deadline);
        if (!renewed) return renewed.error();
        if (renewed->empty()) claims_.remove(query.job_id, held, false);
        return !renewed->empty();
    }
    void on_phase(phase now) override {
        if (now == phase::stopping) stopping_.cancel(cancel_reason::cancelled);
    }
    void on_work_available(function<void()> callback) override {
        watcher_.stop();
        if (callback) watcher_.start(std::move(callback));
    }

  private:
    static constexpr std::chrono::milliseconds interval{1000}, log_interval{10000};  // of FETCHes from empty queues
    // All actions have the group and the consumer.
    result<words> run(const char* action, const std::string& key, const words& arguments, const words& rest,
                      const worker_request& request, time_point deadline, int interrupt_fd = -1) {
        const std::string own = cat({key, ".", options_.group});  // two groups must not share these
        words all = {"EVALSHA", "4", key, own + ".retry", key + ".dead", own + ".meta"};
        all.insert(all.end(), {action, options_.group, request.worker->worker_id});
        all.insert(all.end(), arguments.begin(), arguments.end());
        all.insert(all.end(), rest.begin(), rest.end());
        return pool_.run(std::move(all), deadline, request.should_send, interrupt_fd);
    }
    void log(const char* message, std::vector<log_field> fields, const fetch_request& request) const {
        if (!options_.log) return;
        options_.log({log_level::warn, message, std::move(fields), request.worker->worker_id, "worker"});
    }
    // Adds to `out`, even if something is refused. New entries come first every other time: else handed-back jobs
    // without a handler would hold them up.
    result<void> fetch_from(const std::string& queue, const fetch_request& request, time_point deadline,
                            std::vector<job>& out) {
        const worker_identity& worker = *request.worker;
        const std::string key = options_.prefix + queue;
        queue_state& state = states_[key];
        const time_point next = deadline_after(interval);
        const bool recovers = next - interval >= state.recover_at;
        const time_point recover_at = recovers ? next : state.recover_at;
        state.recover_at = time_point::min();  // unless all that this one claims is held
        state.fetch_at = next;
        state.last_delivered.clear();
        result<words> got =
            run("claim", key,
                {keeps_, std::to_string(request.count - out.size()), std::to_string(worker.visibility_timeout.count()),
                 std::to_string(options_.max_attempts), std::to_string(options_.max_consumer_idle.count()),
                 fetches_ / worker.queues.size() % 2 == 0 ? "1" : "0", recovers ? "1" : "0"},
                recovers ? claims_.entries_of(key) : words(), request, deadline, stopping_.token().fd().value_or(-1));
        if (!got) return got.error();
        claim_reader from(std::move(*got));
        state.last_delivered = from.text();
        const std::string refused = from.text();
        const std::int64_t buried = from.number(), recovered = from.number();
        while (from.has_more()) {
            claim held("  " + key);
            job next_job = read_job(from, held, queue, options_.default_type);
            if (!from.is_valid) break;
            next_job.claim = held.text();
            next_job.id = claims_.add(next_job.id, held);
            out.push_back(std::move(next_job));
        }
        if (!from.is_valid) return failure(errc::bad_response, "cannot read the claims in the response");
        if (buried > 0)
            log("entries moved to the dead stream: their last attempt did not end",
                {field("stream", key), field("dead_stream", cat({key, ".dead"})), field("count", buried)}, request);
        if (recovered == 0) state.recover_at = recover_at;
        if (out.size() >= request.count) state.fetch_at = time_point::min();
        return refused.empty() ? result<void>() : refusal(refused);
    }
    result<settle_result> settle(const job_request& request, const words& how, time_point deadline) {
        const claim held(request.claim);
        if (held.entry.empty()) return settle_result::gone;
        const result<words> got = run("settle", held.key, {keeps_, held.entry, held.count}, how, request, deadline);
        if (!got) return got.error();
        const bool is_accepted = *got == words{"accepted"};
        if (!is_accepted && !got->empty() && got->front() != "gone")
            return failure(errc::bad_response, "cannot read the result in the response");
        claims_.remove(request.job_id, held, how.front() == "ack");
        return is_accepted ? settle_result::accepted : settle_result::gone;
    }

    const redis_streams_options options_;
    const std::string keeps_ = options_.keep_entries ? "1" : "0";
    cancel_source stopping_;  // the grace period is over: a FETCH in flight ends
    pool pool_;
    held_claims claims_;
    watcher watcher_{pool_};
    std::mutex fetching_;  // of the next three
    time_point log_at_ = time_point::min();
    std::size_t fetches_ = 0;
    std::map<std::string, queue_state> states_;  // by key
};
}  // namespace redis
}  // namespace detail

OJS_SHUTDOWN_INLINE result<transport_ref> open_redis_streams(redis_streams_options options) {
    result<detail::redis::address> to = detail::redis::parse_address(options.url);
    if (!to) return to.error();
    std::string wrong = options.max_attempts <= 0 ? "max_attempts must be at least 1" : "";
    for (const auto delay : options.retry_delays)
        if (delay.count() < 0) wrong = "retry_delays must not be negative";
    if (options.group.empty()) wrong = "group must not be empty";
    if (!wrong.empty()) return error{errc::invalid_argument, 0, "redis_streams_options: " + wrong};
    if (to->username.empty()) to->username = options.username;
    if (to->password.empty()) to->password = options.password;
    return transport_ref(new detail::redis::redis_transport(std::move(options), std::move(*to)));
}

OJS_SHUTDOWN_INLINE transport_scheme redis_streams(redis_streams_options options) {
    const auto open = [options = std::move(options)](const detail::transport_setup& setup) {
        redis_streams_options with_url = options;
        with_url.url = detail::cat({"redis:", setup.address});
        if (!with_url.log) with_url.log = setup.log;
        return open_redis_streams(std::move(with_url));
    };
    return {"redis", open, nullptr};
}
}  // namespace v0_1_0
}  // namespace ojs
