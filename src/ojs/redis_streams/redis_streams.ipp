#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "../net/json_view.hpp"
#include "../worker/worker_options.hpp"
#include "detail/claims.ipp"
#include "detail/connection.ipp"
#include "detail/scripts.ipp"
#include "detail/watcher.ipp"
#include "redis_streams.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace redis {
// From {entry, deliveries, attempt, max_attempts, {name, value, ...}}. Without id and claim.
OJS_SHUTDOWN_INLINE job make_job(const redisReply& from, const std::string& queue, const std::string& default_type) {
    job out;
    out.type = default_type;
    out.queue = queue;
    out.attempt = from.element[2]->integer;
    out.max_attempts = from.element[3]->integer;
    std::string members;
    const redisReply& fields = *from.element[4];
    for (std::size_t i = 0; i + 1 < fields.elements; i += 2) {
        const std::string name = text_of(*fields.element[i]);
        std::string value = text_of(*fields.element[i + 1]);
        if (name == "args") {
            const result<json_view> args = json_view::parse(value);
            const bool is_list = args && args->type() == json_type::array;
            if (!is_list) out.malformed = "its field args is not a JSON array";
            if (is_list) out.args_json = std::move(value);
        } else if (name == "body") {
            out.body = std::move(value);
        } else {
            append(members, {members.empty() ? "" : ",", json_quote(name), ":", json_quote(value)});
            if (name == "id") out.id = value;
            if (name == "type" && !value.empty()) out.type = value;
        }
    }
    out.envelope_json = cat({"{", members, "}"});
    out.meta_json = out.envelope_json;
    return out;
}

class redis_transport final : public transport {
  public:
    redis_transport(redis_streams_options options, address to) : options_(std::move(options)), pool_(std::move(to)) {}
    ~redis_transport() override { watcher_.stop(); }

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        std::vector<job> out;
        // One at a time: what another FETCH has just claimed is not held yet, and would be taken for lost.
        const std::unique_lock<std::mutex> alone(fetching_, std::try_to_lock);
        if (!alone) return out;
        const bool recovers = steady_clock::now() >= recover_at_;
        const time_point next_recovery = recovers ? deadline_after(recovery_interval) : recover_at_;
        recover_at_ = time_point::min();  // unless all that this one claims is held
        const words& queues = request.worker->queues;
        ++fetches_;
        words keys, positions;
        for (std::size_t i = 0; i < queues.size() && out.size() < request.count; ++i) {
            const std::string& queue = queues[(fetches_ + i) % queues.size()];
            keys.push_back(options_.prefix + queue);
            const result<reply> claimed =
                claim_from(keys.back(), request, request.count - out.size(), recovers, deadline);
            if (!claimed && out.empty()) return claimed.error();
            if (!claimed) return out;
            add_jobs(**claimed, keys.back(), queue, request.worker->worker_id, out);
            positions.push_back(text_of(*(*claimed)->element[2]));
        }
        recover_at_ = next_recovery;
        if (!keys.empty()) watcher_.watch(std::move(keys), std::move(positions), out.size() >= request.count);
        return out;
    }

    result<settle_result> ack(const ack_request& request, time_point deadline) override {
        return settle(request.job_id, request.claim, {"ack"}, request.should_send, deadline);
    }

    // One that is malformed is not handed back: it would come back at once, forever.
    result<settle_result> fail(const fail_request& request, time_point deadline) override {
        const job_error& error = request.error;
        const bool is_malformed = error.code == "invalid_payload";
        if (request.requeue && !is_malformed)
            return settle(request.job_id, request.claim, {"requeue"}, request.should_send, deadline);
        words arguments = {error.retryable && !is_malformed ? "retry" : "discard", error.code, error.message,
                           std::to_string(options_.max_attempts)};
        for (const std::chrono::milliseconds delay : options_.retry_delays)
            arguments.push_back(std::to_string(delay.count()));
        return settle(request.job_id, request.claim, arguments, request.should_send, deadline);
    }

    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point deadline) override {
        std::map<std::string, std::pair<words, words>> streams;  // pairs and ids, for renew()
        for (std::size_t i = 0; i < request.claims.size(); ++i) {
            const std::optional<claim> held = parse_claim(request.claims[i]);
            if (!held) continue;
            auto& [pairs, ids] = streams[held->key];
            pairs.insert(pairs.end(), {held->entry, held->count});
            ids.push_back(request.active_jobs[i]);
        }
        heartbeat_response out;
        for (const auto& [key, in] : streams) {
            const result<words> renewed =
                renew(key, request.worker->worker_id, in.first, in.second, request.should_send, deadline);
            if (!renewed) return renewed.error();
            out.jobs_extended.insert(out.jobs_extended.end(), renewed->begin(), renewed->end());
        }
        if (!request.is_last) return out;
        for (const std::string& queue : request.worker->queues) {
            const words all = with_keys(options_.prefix + queue, {options_.group, request.worker->worker_id});
            const result<reply> left = leave_.run(pool_, all, deadline, nullptr);
            if (!left) return left.error();
        }
        return out;
    }

    result<bool> confirm_claim(const job_request& query, time_point deadline) override {
        const std::optional<claim> held = parse_claim(query.claim);
        if (!held) return false;
        const result<words> renewed =
            renew(held->key, held->consumer, {held->entry, held->count}, {query.job_id}, query.should_send, deadline);
        if (!renewed) return renewed.error();
        if (renewed->empty()) claims_.remove(query.job_id, *held, false);
        return !renewed->empty();
    }

    void on_work_available(function<void()> callback) override {
        watcher_.stop();
        if (callback) watcher_.start(std::move(callback));
    }

  private:
    static constexpr std::chrono::milliseconds recovery_interval{1000};
    words with_keys(const std::string& key, words arguments, const words& rest = {}) const {
        const std::string own = cat({key, ".", options_.group});  // two groups must not share these
        arguments.insert(arguments.begin(), {"4", key, own + ".retry", key + ".dead", own + ".meta"});
        arguments.insert(arguments.end(), rest.begin(), rest.end());
        return arguments;
    }

    // New entries come first every other time: else handed-back jobs without a handler would hold them up.
    result<reply> claim_from(const std::string& key, const fetch_request& request, std::size_t count, bool recovers,
                             time_point deadline) {
        const worker_identity& worker = *request.worker;
        const words all =
            with_keys(key,
                      {options_.group, worker.worker_id, std::to_string(count),
                       std::to_string(worker.visibility_timeout.count()), std::to_string(options_.max_attempts),
                       options_.keep_entries ? "1" : "0", std::to_string(options_.max_consumer_idle.count()),
                       fetches_ / worker.queues.size() % 2 == 0 ? "1" : "0", recovers ? "1" : "0"},
                      recovers ? claims_.entries_of(key) : words());
        result<reply> out = claim_.run(pool_, all, deadline, request.should_send);
        if (!out) return out;
        if ((*out)->type == REDIS_REPLY_ERROR) return refusal(**out);
        if ((*out)->elements != 3) return failure(errc::bad_response, "the claims are not readable");
        return out;
    }

    void add_jobs(const redisReply& from, const std::string& key, const std::string& queue, const std::string& consumer,
                  std::vector<job>& out) {
        const redisReply& buried = *from.element[1];
        if (buried.elements > 0 && options_.log)
            options_.log({log_level::warn,
                          "entries moved to the dead stream: their last attempt did not end",
                          {field("stream", key), field("count", buried.elements)},
                          consumer,
                          "worker"});
        const redisReply& jobs = *from.element[0];
        out.reserve(out.size() + jobs.elements);
        for (std::size_t i = 0; i < jobs.elements; ++i) {
            const redisReply& each = *jobs.element[i];
            const claim held = {text_of(*each.element[0]), std::to_string(each.element[1]->integer), consumer, key};
            job next = make_job(each, queue, options_.default_type);
            next.claim = held.text();
            next.id = claims_.add(next.id.empty() ? held.entry : next.id, held);
            out.push_back(std::move(next));
        }
    }

    result<settle_result> settle(const std::string& job_id, const std::string& claim_text, const words& action,
                                 const function<bool()>& should_send, time_point deadline) {
        const std::optional<claim> held = parse_claim(claim_text);
        if (!held) return settle_result::gone;
        const words all = with_keys(
            held->key, {options_.group, held->entry, held->count, held->consumer, options_.keep_entries ? "1" : "0"},
            action);
        const result<reply> got = settle_.run(pool_, all, deadline, should_send);
        if (!got) return got.error();
        const bool is_gone = is_error(**got, "NOGROUP");
        if ((*got)->type == REDIS_REPLY_ERROR && !is_gone) return refusal(**got);
        claims_.remove(job_id, *held, action.front() == "ack");
        return is_gone || text_of(**got) == "gone" ? settle_result::gone : settle_result::accepted;
    }

    // `pairs`: an entry and its delivery count for each of `ids`. Returns the ids of those whose claims hold.
    result<words> renew(const std::string& key, const std::string& consumer, const words& pairs, const words& ids,
                        const function<bool()>& should_send, time_point deadline) {
        const words all = with_keys(key, {options_.group, consumer}, pairs);
        const result<reply> got = renew_.run(pool_, all, deadline, should_send);
        if (!got) return got.error();
        words out;
        if (is_error(**got, "NOGROUP")) return out;
        if ((*got)->type == REDIS_REPLY_ERROR) return refusal(**got);
        for (std::size_t i = 0; i < (*got)->elements; ++i)
            out.push_back(ids.at(static_cast<std::size_t>((*got)->element[i]->integer)));
        return out;
    }

    const redis_streams_options options_;
    pool pool_;
    held_claims claims_;
    watcher watcher_{pool_};
    std::mutex fetching_;  // of the next two
    std::size_t fetches_ = 0;
    time_point recover_at_ = time_point::min();
    script claim_{cat({common_source, claim_source})};
    script settle_{cat({common_source, settle_source})};
    script renew_{renew_source};
    script leave_{leave_source};
};
}  // namespace redis
}  // namespace detail

OJS_SHUTDOWN_INLINE result<transport_ref> open_redis_streams(redis_streams_options options) {
    result<detail::redis::address> to = detail::redis::parse_address(options.url);
    if (!to) return to.error();
    bool is_valid = !options.group.empty() && options.max_attempts > 0;
    for (const std::chrono::milliseconds delay : options.retry_delays) is_valid = is_valid && delay.count() >= 0;
    if (!is_valid)
        return error{errc::invalid_argument, 0, "Redis: a group, max_attempts > 0 and retry_delays >= 0 are needed"};
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
