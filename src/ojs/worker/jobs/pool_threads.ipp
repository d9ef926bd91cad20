// pool_threads: the threads of a pool, from their start until they are joined or abandoned.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../state/worker_context.ipp"

namespace ojs::detail {

// Lets threads begin together, so that the thread that starts them does not compete with them.
class start_gate : public ref_counted {
  public:
    start_gate() noexcept { pthread_rwlock_wrlock(&lock_); }
    ~start_gate() { pthread_rwlock_destroy(&lock_); }

    void open() noexcept { pthread_rwlock_unlock(&lock_); }  // called by the thread that created it
    void pass() noexcept {
        pthread_rwlock_rdlock(&lock_);
        pthread_rwlock_unlock(&lock_);
    }

  private:
    pthread_rwlock_t lock_ = PTHREAD_RWLOCK_INITIALIZER;
};

// Thread-safe. Each thread holds a reference to the pool that contains this object.
class pool_threads {
  public:
    // The supervisor is woken when only threads in handlers are left.
    pool_threads(ref_counted& pool, worker_context& worker) : pool_(pool), worker_(worker) {}

    template <class Body>
    result<void> start(const thread_options& options, const Body& body) {
        ref<pool_thread> entry;
        const ref<ref_counted> pool(&pool_);
        live_.fetch_add(1);
        result<thread> started = unless_out_of_memory([&] {
            entry = make_ref<pool_thread>();
            return thread::start(
                [this, pool, entry, body] {
                    body();
                    ended(entry);
                },
                options);
        });
        if (!started) {
            live_.fetch_sub(1);
            return started.error();
        }
        const unique_lock held(mutex_);
        entry->handle = std::move(*started);
        queue_for_join(std::move(entry));
        return {};
    }
    // Joins the ended threads to release their stacks; their thread_local destructors may block. Returns the
    // number of those not joined by `deadline`; they are joined later.
    std::size_t join(time_point deadline) {
        unique_lock held(mutex_);
        ref<pool_thread> next = detail::exchange(ended_, {});
        held.unlock();
        std::size_t unjoined = 0;
        while (next) {
            ref<pool_thread> entry = detail::exchange(next, {});
            next = detail::exchange(entry->next, {});
            if (entry->handle.join_until(deadline)) continue;
            ++unjoined;
            held.lock();
            queue_for_join(std::move(entry));
            held.unlock();
        }
        return unjoined;
    }
    void join_ended() { join({}); }  // without waiting

    std::size_t live() const noexcept { return live_; }
    // All threads have ended but those in handlers, and those whose heartbeats hang.
    bool only_handlers_left() const { return live_ <= worker_.in_handlers + worker_.beats.calls_in_flight(); }

    // Detaches the threads, now or when they end; each holds references to what it uses.
    void abandon() {
        const unique_lock held(mutex_);
        abandoned_ = true;
        for (; ended_; ended_ = detail::exchange(ended_->next, {})) ended_->handle.detach();
    }

  private:
    struct pool_thread : ref_counted {
        thread handle;
        bool ended = false;
        ref<pool_thread> next;
    };

    // With the mutex held. A thread may end before start() has its handle.
    void queue_for_join(ref<pool_thread> entry) {
        if (abandoned_) return entry->handle.detach();
        if (!entry->ended || !entry->handle.joinable()) return;
        entry->next = std::move(ended_);
        ended_ = std::move(entry);
    }
    void ended(const ref<pool_thread>& entry) {
        {
            const unique_lock held(mutex_);
            entry->ended = true;
            queue_for_join(entry);
        }
        --live_;
        if (only_handlers_left()) worker_.supervisor.notify();
    }

    ref_counted& pool_;
    worker_context& worker_;
    mutex& mutex_ = worker_.state.guard;
    ref<pool_thread> ended_;       // a list of those to join
    atomic<std::size_t> live_{0};  // threads that have not ended
    bool abandoned_ = false;
};

}  // namespace ojs::detail
