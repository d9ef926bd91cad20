// machine_threads: the threads of a loop or a worker, and its tasks.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.ipp"
#include "../../core/detail/wake.hpp"
#include "../loop_options.hpp"

namespace ojs::detail {
// Urgent tasks end in time; reports may be retried; callbacks run user code, transitions in order. No kind waits.
enum class task_kind : std::uint8_t { urgent, report, callback, transition };

// Thread-safe. Each thread holds a reference to the owner.
class machine_threads {
  public:
    machine_threads(ref_counted& owner, mutex& guard, const loop_options& options, const wake& waker)
        : owner_(owner), guard_(guard), options_(options), waker_(waker) {}
    ~machine_threads() {
        for (const ref<entry>& each : all_) each->handle.detach();  // one of them may run this
    }

    // With the guard held, and unlocked meanwhile. `count` is one more unless it fails. With `takes_signals`, programs
    // that it starts inherit an open mask.
    result<void> start(unique_lock& held, std::size_t& count, const char* name, bool takes_signals,
                       const function<void()>& body) {
        const ref<entry> added = make_ref<entry>();
        ++live_;
        ++count;
        held.unlock();
        result<thread> started = thread::start(
            [this, added, body, owner = ref<ref_counted>(&owner_)] {
                body();
                const unique_lock ended(guard_);
                added->has_ended = true;
                --live_;
                if (is_closed_) waker_.notify();
            },
            {options_.thread_stack_size, takes_signals, name});
        held.lock();
        if (!started) {
            --live_;
            --count;
            return started.error();
        }
        added->handle = std::move(*started);
        all_.push_back(added);
        return {};
    }

    void post(task_kind kind, function<void()> task) {
        unique_lock held(guard_);
        pool& to = pools_[static_cast<int>(kind)];
        to.tasks.push_back(std::move(task));
        if (to.idle < to.tasks.size() && to.threads < to.max) static_cast<void>(start_server(held, to));
        to.due.notify_one();
    }
    // Starts `count` threads early: it is slow once handlers keep all processors busy.
    result<void> prepare(task_kind kind, std::size_t count) {
        unique_lock held(guard_);
        pool& of = pools_[static_cast<int>(kind)];
        result<void> started;
        while (started && of.threads < count) started = start_server(held, of);
        return started;
    }
    // The threads end when no task is left. Undone by a new start.
    void close(bool is_closed = true) {
        const unique_lock held(guard_);
        is_closed_ = is_closed;
        for (pool& each : pools_) each.due.notify_all();
    }
    // With the guard held: threads that have not ended.
    std::size_t live() const noexcept { return live_; }
    // Joins threads that have ended. Returns how many have not: thread_local destructors may block.
    std::size_t join(time_point deadline) {
        std::size_t left = 0;
        unique_lock held(guard_);
        const array<ref<entry>> all = exchange(all_, {});
        held.unlock();
        for (const ref<entry>& each : all) {
            if (!each->has_ended || !each->handle.end_by(deadline)) ++left;
            each->handle.detach();
        }
        return left;
    }

  private:
    struct entry : ref_counted {
        thread handle;
        atomic<bool> has_ended{false};
    };
    struct pool {
        const std::size_t max;
        array<function<void()>> tasks;
        condition due;
        std::size_t threads = 0;
        std::size_t idle = 0;  // of these: starting, or without a task
    };

    // If no thread serves the pool, the urgent ones do its tasks, or this one, in order.
    result<void> start_server(unique_lock& held, pool& of) {
        ++of.idle;
        result<void> started = start(held, of.threads, "ojs-service", false, [this, &of] { serve(of); });
        if (started) return started;
        --of.idle;
        if (of.threads > 0) return started;
        pool& urgent = pools_[0];
        while (!of.tasks.empty()) {
            if (urgent.threads == 0 || of.max == 1) {
                run_next(held, of);
                continue;
            }
            urgent.tasks.push_back(std::move(of.tasks[0]));
            of.tasks.remove(0);
            urgent.due.notify_one();
        }
        return started;
    }
    void serve(pool& of) {
        unique_lock held(guard_);
        while (!is_closed_ || !of.tasks.empty()) {
            if (of.tasks.empty()) {
                of.due.wait(held);
                continue;
            }
            --of.idle;
            run_next(held, of);
            ++of.idle;
        }
        --of.idle;
        --of.threads;
    }
    void run_next(unique_lock& held, pool& of) {
        function<void()> task = std::move(of.tasks[0]);
        of.tasks.remove(0);
        held.unlock();
        task();
        task = nullptr;  // what it holds may be user code
        held.lock();
    }

    ref_counted& owner_;
    mutex& guard_;  // guards the rest
    const loop_options& options_;
    const wake& waker_;
    array<ref<entry>> all_;
    std::size_t live_ = 0;
    pool pools_[4] = {{4, {}, {}}, {128, {}, {}}, {1024, {}, {}}, {1, {}, {}}};  // by task_kind
    bool is_closed_ = false;
};
}  // namespace ojs::detail
