// part_access: a worker as its parts see it.
#pragma once

#include "../worker.hpp"
#include "worker_context.ipp"

namespace ojs::detail {

class part_access final : public running_worker {
  public:
    explicit part_access(ref<worker_context> context) : context_(std::move(context)), worker_(*context_) {}

    const worker_options& options() const noexcept override { return worker_.options; }
    const worker_identity& identity() const noexcept override { return worker_.identity; }
    const std::vector<std::string>& job_types() const noexcept override { return worker_.job_types; }
    bool owns_process() const noexcept override { return worker_.owns_process; }
    ojs::phase phase() const noexcept override { return worker_.effective_phase(); }
    bool connected() const noexcept override { return worker_.has_answered(); }
    bool drained() const noexcept override { return worker_.drained(); }
    std::size_t active_jobs() const override { return worker_.jobs.size(); }
    void visit_active_jobs(const function<void(const job&)>& visit) const override {
        for (const ref<active_job>& each : worker_.jobs.snapshot()) visit(each->job);
    }
    worker_report report() const override { return worker_.tally.report(); }
    std::uint64_t unreported_jobs() const noexcept override { return worker_.tally.unreported(); }
    time_point drain_deadline() const noexcept override { return worker_.drain_deadline(); }
    time_point stop_deadline() const noexcept override { return worker_.stop_deadline(); }
    bool apply(event request, cause why) override { return worker_.life.apply(request, why); }
    void wake() override { worker_.supervisor.notify(); }
    void log(log_record record) const override { worker_.log.write(std::move(record)); }

  private:
    const ref<worker_context> context_;
    worker_context& worker_;
};

}  // namespace ojs::detail
