// pool_threads: the threads of a pool, from their start until they are joined or left to themselves.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../detail/worker_context.ipp"

namespace ojs::detail {

// Threads that begin together: the thread that starts them does not compete with those it has started.
class start_gate : public ref_counted {
  public:
    start_gate() noexcept { pthread_rwlock_wrlock(&lock_); }
    ~start_gate() { pthread_rwlock_destroy(&lock_); }

    void open() noexcept { pthread_rwlock_unlock(&lock_); }  // by the thread that made it
    void pass() noexcept {
        pthread_rwlock_rdlock(&lock_);
        pthread_rwlock_unlock(&lock_);
    }

  private:
    pthread_rwlock_t lock_ = PTHREAD_RWLOCK_INITIALIZER;
};

// Thread-safe. Each thread holds the pool, of which this is a part, for as long as it lives.
class pool_threads {
  public:
    // `in_handlers`: how many of them only a handler's return brings home. The supervisor is woken when no
    // others are left.
    pool_threads(ref_counted& pool, const atomic<std::size_t>& in_handlers, worker_context& worker)
        : pool_(pool), in_handlers_(in_handlers), worker_(worker) {}

    template <class Body>
    result<void> start(const thread_options& options, const Body& body) {
        ref<pool_thread> entry;
        const ref<ref_counted> pool(&pool_);
        live_.fetch_add(1);
        result<thread> started = unless_out_of_memory([&] {
            entry = make_ref<pool_thread>();
            return thread::start(
                [this, pool, entry, body] {
                    const auto over = [&] { ended(entry); };
                    call_guarded(body, over);
                    over();
                },
                options);
        });
        if (!started) {
            live_.fetch_sub(1);
            return started.error();
        }
        const unique_lock held(mutex_);
        entry->handle = std::move(*started);
        list_if_ended(std::move(entry));
        return {};
    }
    // One for which nobody waits: at its end it joins those that have ended before.
    template <class Body>
    result<void> start_service(const char* name, const Body& body) {
        return start(worker_.service_thread(name), [this, body] {
            body();
            join_ended();
        });
    }

    // Joins the ended threads, which else would keep their stacks; their thread_local destructors may block.
    // Returns how many have not ended by `deadline`: they are joined later.
    std::size_t join(time_point deadline) {
        unique_lock held(mutex_);
        ref<pool_thread> next = detail::exchange(ended_, {});
        held.unlock();
        std::size_t left = 0;
        while (next) {
            ref<pool_thread> entry = detail::exchange(next, {});
            next = detail::exchange(entry->next, {});
            if (entry->handle.join_until(deadline)) continue;
            ++left;
            held.lock();
            list_if_ended(std::move(entry));
            held.unlock();
        }
        return left;
    }
    void join_ended() { join({}); }  // without waiting

    // Whether only handlers keep threads from ending.
    bool over() const noexcept { return live_ <= in_handlers_; }
    bool all_finished() const noexcept { return live_ == 0; }

    // Nobody joins a thread any more; each holds what it uses.
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

    // With the mutex held. A thread may end before its starter has the handle.
    void list_if_ended(ref<pool_thread> entry) {
        if (abandoned_) return entry->handle.detach();
        if (!entry->ended || !entry->handle.joinable()) return;
        entry->next = std::move(ended_);
        ended_ = std::move(entry);
    }
    void ended(const ref<pool_thread>& entry) {
        {
            const unique_lock held(mutex_);
            entry->ended = true;
            list_if_ended(entry);
        }
        --live_;
        if (over()) worker_.supervisor.notify();
    }

    ref_counted& pool_;
    const atomic<std::size_t>& in_handlers_;
    worker_context& worker_;
    mutex mutex_;
    ref<pool_thread> ended_;       // a list of those to join
    atomic<std::size_t> live_{0};  // threads that have not ended
    bool abandoned_ = false;
};

}  // namespace ojs::detail
