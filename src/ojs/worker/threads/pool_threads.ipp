// pool_threads: the threads of a pool, from their start until they are joined or left to themselves.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../core/detail/wake.hpp"

namespace ojs::detail {

// Threads that begin together: whoever starts them does not compete with those it has started.
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
    // `in_handlers`: how many of them only a handler's return brings home. `supervisor` is woken when no
    // others are left.
    pool_threads(ref_counted& pool, const atomic<std::size_t>& in_handlers, wake& supervisor)
        : pool_(pool), in_handlers_(in_handlers), supervisor_(supervisor) {}

    template <class Body>
    result<void> start(const thread_options& options, const Body& body) {
        ref<pool_thread> entry;
        const ref<ref_counted> pool(&pool_);
        live_.fetch_add(1);
        result<thread> started = unless_out_of_memory([&] {
            entry = make_ref<pool_thread>();
            pool_thread* const own = entry.get();  // no reference: a thread cannot join itself
            return thread::start(
                [this, pool, own, body] {
                    const auto over = [&] { ended(*own); };
                    call_guarded(body, over);
                    over();
                },
                options);
        });
        if (!started) {
            live_.fetch_sub(1);
            return started.error();
        }
        entry->handle = std::move(*started);
        const lock_guard held(mutex_);
        if (abandoned_) entry->handle.detach();
        if (!abandoned_) list(std::move(entry));
        return {};
    }
    // One for which nobody waits: at its end it joins those that have ended before.
    template <class Body>
    result<void> start_service(const thread_options& options, const Body& body) {
        return start(options, [this, body] {
            body();
            join_ended();
        });
    }

    // Joins the ended threads, which else would keep their stacks; their thread_local destructors may block.
    // Returns how many have not ended by `deadline`: they are joined later.
    std::size_t join(time_point deadline) {
        ref<pool_thread> next = take_ended();
        std::size_t left = 0;
        while (next) {
            ref<pool_thread> entry = detail::exchange(next, {});
            next = detail::exchange(entry->next, {});
            if (entry->handle.join_until(deadline)) continue;
            ++left;
            const lock_guard held(mutex_);
            if (abandoned_) entry->handle.detach();
            if (!abandoned_) list(std::move(entry));
        }
        return left;
    }
    void join_ended() { join({}); }  // without waiting

    // Whether only handlers keep threads from ending.
    bool over() const noexcept { return live_ <= in_handlers_; }
    bool all_finished() const noexcept { return live_ == 0; }

    // Detaches threads that do not end; each holds what it uses.
    void abandon() {
        const lock_guard held(mutex_);
        abandoned_ = true;
        for (; threads_; threads_ = detail::exchange(threads_->next, {})) threads_->handle.detach();
    }

  private:
    struct pool_thread : ref_counted {
        thread handle;
        bool ended = false;
        ref<pool_thread> next;
    };

    // With the mutex held.
    void list(ref<pool_thread> entry) {
        entry->next = std::move(threads_);
        threads_ = std::move(entry);
        any_ended_ = any_ended_ || threads_->ended;
    }
    void ended(pool_thread& entry) {
        {
            const lock_guard held(mutex_);
            if (!abandoned_) entry.ended = any_ended_ = true;
        }
        --live_;
        if (over()) supervisor_.notify();
    }
    ref<pool_thread> take_ended() {
        const lock_guard held(mutex_);
        ref<pool_thread> out;
        if (!detail::exchange(any_ended_, false)) return out;
        for (ref<pool_thread>* place = &threads_; *place;) {
            if (!(*place)->ended) {
                place = &(*place)->next;
                continue;
            }
            ref<pool_thread> entry = detail::exchange(*place, {});
            *place = detail::exchange(entry->next, detail::exchange(out, {}));
            out = std::move(entry);
        }
        return out;
    }

    ref_counted& pool_;
    const atomic<std::size_t>& in_handlers_;
    wake& supervisor_;
    mutex mutex_;
    ref<pool_thread> threads_;     // a list; some have ended and are to be joined
    atomic<std::size_t> live_{0};  // threads that have not ended
    bool any_ended_ = false;
    bool abandoned_ = false;
};

}  // namespace ojs::detail
