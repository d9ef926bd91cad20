// pool_threads: the threads of a pool, from their start until they are joined or left to themselves.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../core/detail/wake.hpp"

namespace ojs::detail {

// Its members know their place in it, so that taking one out takes the same time however many there are.
template <class T>
class placed_list {
  public:
    // Reserves memory for `members`.
    void make_room(std::size_t members) {
        std::size_t room = 16;
        while (room < members) room *= 2;
        all_.reserve(room);
    }
    void add(const ref<T>& member) {
        member->place = all_.size();
        all_.push_back(member);
    }
    void remove(const T& member) {
        const std::size_t place = member.place;
        all_.back()->place = place;
        detail::swap(all_[place], all_.back());
        all_.pop_back();
    }
    void clear() noexcept { all_.clear(); }
    const array<ref<T>>& all() const noexcept { return all_; }

  private:
    array<ref<T>> all_;
};

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
    // `in_handlers`: how many of them only a handler's return brings home. `supervisor` is woken when no others are left.
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
            make_room();
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
        keep(entry, std::move(*started));
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

    // Joins the ended threads, which else would keep their stacks; their thread_local destructors may block. Returns
    // how many have not ended by `deadline`: they are joined later.
    std::size_t join(time_point deadline) {
        ref<pool_thread> ended;
        {
            const lock_guard held(mutex_);
            ended = std::move(gone_);
        }
        std::size_t left = 0;
        for (ref<pool_thread> next; ended; ended = std::move(next)) {
            next = detail::exchange(ended->next_gone, {});
            if (ended->handle.join_until(deadline)) continue;
            ++left;
            const lock_guard held(mutex_);
            if (abandoned_) ended->handle.detach();
            if (!abandoned_) to_be_joined(*ended);
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
        for (const ref<pool_thread>& each : threads_.all()) each->handle.detach();
        threads_.clear();
        for (; gone_; gone_ = detail::exchange(gone_->next_gone, {})) gone_->handle.detach();
    }

  private:
    // Listed while it lives, and moved to those that ended by itself.
    struct pool_thread : ref_counted {
        thread handle;
        std::size_t place = 0;
        bool ended = false;
        ref<pool_thread> next_gone;
    };

    void make_room() {
        const lock_guard held(mutex_);
        threads_.make_room(live_);
    }
    // The thread may have ended meanwhile.
    void keep(const ref<pool_thread>& entry, thread handle) {
        const lock_guard held(mutex_);
        if (abandoned_) return handle.detach();
        entry->handle = std::move(handle);
        if (entry->ended) {
            to_be_joined(*entry);
        } else {
            threads_.add(entry);
        }
    }
    void ended(pool_thread& entry) {
        list_ended(entry);
        --live_;
        if (over()) supervisor_.notify();
    }
    void list_ended(pool_thread& entry) {
        const lock_guard held(mutex_);
        if (abandoned_) return;
        entry.ended = true;
        if (!entry.handle.joinable()) return;  // it is about to be kept
        to_be_joined(entry);
        threads_.remove(entry);
    }
    // With the mutex held.
    void to_be_joined(pool_thread& entry) {
        entry.next_gone = std::move(gone_);
        gone_ = ref<pool_thread>(&entry);
    }

    ref_counted& pool_;
    const atomic<std::size_t>& in_handlers_;
    wake& supervisor_;
    mutex mutex_;
    placed_list<pool_thread> threads_;
    ref<pool_thread> gone_;        // those that ended, to be joined: a list
    atomic<std::size_t> live_{0};  // threads that have not ended
    bool abandoned_ = false;
};

}  // namespace ojs::detail
