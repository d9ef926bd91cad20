#pragma once

#include "../server/detail/service_report.ipp"
#include "detail/health.ipp"
#include "detail/thread_stack.hpp"
#include "operating.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

class operating_part final : public worker_part {
  public:
    result<void> start(const running_worker_ref& worker) override {
        worker_ = worker;
        log_options log = worker->options().log;
        log.hook = [worker](const log_record& record) { worker->log(record); };
        log_ = logger(std::move(log));
        if (worker->owns_process()) service_.start(steady_clock::now());
        if (worker->options().health_address.empty()) return {};
        counted_ = make_ref<worker_metrics>(worker->options().queues, worker->job_types());
        answers_ = make_ref<health_answers>(worker, counted_);
        server_ = serve_health(*worker, answers_);
        return server_ ? result<void>() : server_.error();
    }

    void on_phase(const lifecycle_state& state) override {
        const phase before = detail::exchange(phase_, state.phase);
        if (counted_ && before != state.phase) counted_->phase_began(state.phase);
        if (before < phase::draining && state.phase >= phase::draining) {
            service_.stopping(service_text());
        } else {
            report_service();
        }
    }
    time_point on_turn(time_point now) override {
        if (counted_) counted_->note_turn();
        if (service_.active() && service_.tick(now, worker_->stop_deadline())) report_service();
        return service_.next_due();
    }
    std::string stack_of(pthread_t thread, time_point deadline) override {
        return capture_stack(thread, deadline);
    }

    void on_heartbeat(bool answered) override {
        if (counted_) counted_->note_heartbeat(answered);
    }
    void on_fetch(fetch_status status) override {
        if (counted_) counted_->note_fetch(status);
    }
    void on_job_settled(const job_settlement& job) override {
        if (counted_) counted_->jobs.settled(job);
    }

    // Ends the waits for the worker, and lets answers under way be finished.
    void stop(time_point deadline) override {
        if (answers_) answers_->end_waits();
        if (server_) server_->stop(deadline);
        server_ = error{};
        answers_ = {};
        log_ = logger();
        worker_ = {};
    }

  private:
    void report_service() {
        if (service_.active()) service_.report(true, service_text());
    }
    std::string service_text() const {
        return cat({to_string(worker_->phase()), ", ", worker_->active_jobs(), " jobs in flight"});
    }

    running_worker_ref worker_;
    logger log_;
    service_report service_{log_};  // of the supervising thread
    phase phase_ = phase::running;  // the same
    ref<worker_metrics> counted_;   // none: no health server; set in start() only, as abandoned threads count
    ref<health_answers> answers_;
    result<http_server> server_ = error{};
};

}  // namespace detail

OJS_SHUTDOWN_INLINE worker_part_factory operating() {
    return {"operating", [] { return static_cast<worker_part*>(new detail::operating_part); },
            detail::check_health, detail::check_kubernetes_health};
}

}  // namespace v0_1_0
}  // namespace ojs
