// job_slots: how many jobs a worker takes at a time: as many as it was told to, or as it gets threads for.
#pragma once

#include "worker_context.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// The pool's mutex guards all but retry_at().
class job_slots {
  public:
    explicit job_slots(worker_context& worker) : worker_(worker), count_(concurrency()) {}

    std::size_t count() const noexcept { return count_; }
    // Slots without a job, for which no FETCH is in flight. Up to max_held held jobs take none.
    std::size_t free() const noexcept {
        const std::size_t held = worker_.held_jobs;
        const std::size_t room = count_ + (held < max_held ? held : max_held);
        const std::size_t taken = worker_.jobs.size() + asked_for_ + kept_;
        return taken >= room ? 0 : room - taken < count() ? room - taken : count();
    }
    // keep(): the job of a stuck handler is reported. release(): the handler has returned, or is replaced.
    void keep() noexcept { ++kept_; }
    void release() noexcept { --kept_; }
    // For a FETCH under way, and after it.
    void ask_for(std::size_t more) noexcept { asked_for_ += more; }
    void answered(std::size_t fewer) noexcept { asked_for_ -= fewer; }

    // The system has no more threads than these, for now.
    void lower(std::size_t threads) {
        count_ = threads;
        retry_at_ = steady_clock::now() + pause;
        worker_.supervisor.notify();
    }
    void log_lowered(const error& why) const {
        worker_.log.write(log_level::warn, "cannot create threads; concurrency lowered for now",
                          {field("concurrency", count_.load()), field("error", why.text)});
    }
    // When to try for one more; time_point::max() where none is missing.
    time_point retry_at() const noexcept { return retry_at_; }
    void begin_retry() noexcept { retry_at_ = never; }
    // True: all threads are there again.
    bool end_retry(bool got_one, time_point now) {
        const bool all = got_one && ++count_ >= concurrency();
        if (!all) retry_at_ = got_one ? now : now + pause;
        return all;
    }
    void log_all_back() const {
        worker_.log.write(log_level::info, "threads can be created again",
                          {field("concurrency", count_.load())});
    }

  private:
    std::size_t concurrency() const noexcept { return static_cast<std::size_t>(worker_.options.concurrency); }

    static constexpr std::chrono::milliseconds pause{1000};
    static constexpr std::size_t max_held = 100;

    worker_context& worker_;
    atomic<std::size_t> count_;
    std::size_t asked_for_ = 0;  // by FETCHes under way
    std::size_t kept_ = 0;       // by stuck handlers whose jobs are reported
    atomic<time_point> retry_at_{never};
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
