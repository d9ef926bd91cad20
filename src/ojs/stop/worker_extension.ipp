#pragma once

#include "../base/detail/text.hpp"
#include "detail/machine_state.ipp"
#include "worker_extension.hpp"

namespace ojs::detail {

class running_worker_view final : public running_worker {
  public:
    explicit running_worker_view(const ref<machine_state>& context) : worker_(context) {}

    const loop_options& options() const noexcept override { return worker_->settings; }
    const worker_identity& identity() const noexcept override { return worker_->identity; }
    const std::vector<std::string>& job_types() const noexcept override { return worker_->job_types; }
    bool owns_process() const noexcept override { return worker_->owns_process; }
    ojs::phase phase() const noexcept override { return worker_->phases.now(); }
    bool connected() const noexcept override { return worker_->connected(); }
    bool drained() const noexcept override { return worker_->is_drained(); }
    std::size_t active_jobs() const override { return worker_->active(); }
    void visit_active_jobs(const function<void(const job&)>& visit) const override {
        for (const ref<work>& each : worker_->works()) visit(each->job);
    }
    worker_report report() const override { return worker_->report(); }
    std::uint64_t unreported_jobs() const noexcept override { return worker_->unreported(); }
    time_point drain_deadline() const noexcept override { return worker_->phases.drain_deadline(); }
    time_point stop_deadline() const noexcept override {
        if (worker_->steps_timeout == no_limit) return never;
        const time_point drained = drain_deadline();
        const steady_clock::duration after_drain =
            worker_->settings.times.stop_timeout + worker_->steps_timeout;
        return drained < never - after_drain ? drained + after_drain : never;
    }
    bool apply(event event, cause cause) override { return worker_->phases.own.apply(event, cause); }
    void wake() override { worker_->waker.notify(); }
    void log(log_record record) const override { worker_->log.write(std::move(record)); }

  private:
    const ref<machine_state> worker_;
};

inline result<void> start_worker_extension(machine_state& worker, const worker_extension_factory& factory,
                                           const running_worker_ref& view) {
    worker_extension* const extension = factory.make ? factory.make() : nullptr;
    if (extension == nullptr)
        return error{errc::invalid_argument, 0,
                     cat({"worker extension '", factory.name, "' cannot be made"})};
    worker.user.extensions.push_back(extension);
    ++worker.user.running_extensions;
    try {
        return extension->start(view);
    } catch (...) {
        return error{errc::invalid_argument, 0,
                     cat({"worker extension '", factory.name, "' threw in start(): ", thrown_text()})};
    }
}
// Before other threads use the extensions. After an error the caller calls stop_worker_extensions().
inline result<void> start_worker_extensions(const ref<machine_state>& worker) {
    worker->user.delete_extensions();  // of a failed start
    const running_worker_ref view(new running_worker_view(worker));
    result<void> started;
    for (const worker_extension_factory& factory : worker->settings.extensions) {
        if (started) started = start_worker_extension(*worker, factory, view);
    }
    return started;
}
// In reverse order. Idempotent.
inline void stop_worker_extensions(machine_state& worker, time_point deadline) {
    while (worker.user.running_extensions > 0) {
        worker_extension* const last = worker.user.extensions[--worker.user.running_extensions];
        worker.user.call("a worker extension threw in stop()", [&] { last->stop(deadline); });
    }
}

}  // namespace ojs::detail
