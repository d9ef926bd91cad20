#pragma once

#include <string>
#include <utility>
#include <vector>

#include "../base/detail/text.hpp"
#include "../worker/worker_options.hpp"
#include "amqp_transport.hpp"
#include "consumer.ipp"
#include "detail/connection.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace rabbitmq {

class amqp_transport : public transport {
  public:
    amqp_transport(broker_address broker, amqp_options options)
        : consumer_(make_ref<consumer>(std::move(broker), std::move(options))) {}
    ~amqp_transport() override { consumer_->end(); }

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        const result<void> begun = consumer_->begin(*request.worker);
        if (!begun) return begun.error();
        if (request.should_send && !request.should_send()) return cancelled();
        return consumer_->fetch(request, deadline);
    }
    result<settled> ack(const ack_request& request, time_point deadline) override {
        if (request.should_send && !request.should_send()) return cancelled();
        return consumer_->settle(request.job_id, request.claim, verb::ack, deadline);
    }
    result<settled> fail(const fail_request& request, time_point deadline) override {
        if (request.should_send && !request.should_send()) return cancelled();
        if (!request.requeue) return consumer_->fail(request, deadline);
        return consumer_->settle(request.job_id, request.claim, verb::requeue, deadline);
    }
    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point) override {
        return consumer_->renew(request.active_jobs);
    }
    result<bool> confirm_claim(const claim_query& query, time_point) override {
        return consumer_->holds(query.job_id, query.claim);
    }
    result<void> register_worker(const worker_identity& worker, time_point deadline,
                                 const function<bool()>&) override {
        const result<void> begun = consumer_->begin(worker);
        return begun ? consumer_->await_consumers(deadline) : begun;
    }
    void on_work_available(function<void()> callback) override { consumer_->on_work(std::move(callback)); }
    void on_phase(phase now) override { consumer_->set_phase(now); }

  private:
    static error cancelled() { return {errc::cancelled, 0, "the request is no longer wanted"}; }

    const ref<consumer> consumer_;
};

OJS_SHUTDOWN_INLINE result<transport_ref> open_scheme(const amqp_options& base,
                                                      const transport_setup& setup) {
    amqp_options options = base;
    options.url = cat({"amqp:", setup.address});
    if (!options.on_event)
        options.on_event = [log = setup.log](severity level, const std::string& text) {
            const bool is_info = level == severity::info;
            log({is_info ? log_level::info : log_level::warn, "RabbitMQ event", {field("event", text)}, {}});
        };
    return open_amqp(std::move(options));
}

}  // namespace rabbitmq
}  // namespace detail

OJS_SHUTDOWN_INLINE result<transport_ref> open_amqp(amqp_options options) {
    result<detail::rabbitmq::broker_address> broker = detail::rabbitmq::parse_url(options.url);
    if (!broker) return broker.error();
    if (options.max_attempts < 1 || options.heartbeat.count() < 1 || options.heartbeat.count() > 3600)
        return error{errc::invalid_argument, 0, "amqp_options: max_attempts or heartbeat is out of range"};
    if (options.retry_delays.empty())
        options.retry_delays = {std::chrono::seconds(1), std::chrono::seconds(10), std::chrono::seconds(60)};
    return make_transport<detail::rabbitmq::amqp_transport>(std::move(*broker), std::move(options));
}

OJS_SHUTDOWN_INLINE transport_scheme amqp(amqp_options options) {
    const auto open = [base = std::move(options)](const transport_setup& setup) {
        return detail::rabbitmq::open_scheme(base, setup);
    };
    return {"amqp", open, nullptr};
}

}  // namespace v0_1_0
}  // namespace ojs
