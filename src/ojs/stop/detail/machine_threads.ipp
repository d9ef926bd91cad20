// machine_threads: the threads of a loop or a worker: those that it starts itself, and those that do its tasks.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.ipp"
#include "../../core/detail/wake.ipp"
#include "../loop_options.hpp"

namespace ojs::detail {

template <class T>
class fifo {
  public:
    std::size_t size() const noexcept { return list_.size() - first_; }
    void push(T value) { list_.push_back(std::move(value)); }
    T pop() {  // must not be empty
        T out = std::move(list_[first_++]);
        if (first_ == list_.size()) {
            list_.clear();
            first_ = 0;
        }
        return out;
    }

  private:
    array<T> list_;
    std::size_t first_ = 0;
};

// Urgent tasks end in time; reports may be retried for long; callbacks run user code. None waits for one of
// another kind, unless no thread can be created.
enum class task_kind : std::uint8_t { urgent, report, callback };

// Thread-safe. Each thread holds a reference to the owner.
class machine_threads {
  public:
    machine_threads(ref_counted& owner, mutex& guard, const loop_options& options, const wake& waker)
        : owner_(owner), guard_(guard), options_(options), waker_(waker) {}
    machine_threads(const machine_threads&) = delete;
    machine_threads& operator=(const machine_threads&) = delete;
    ~machine_threads() {
        for (const ref<entry>& each : all_) each->handle.detach();  // one of them may run this
    }

    // With `takes_signals`, programs that the thread starts inherit an open mask. Other threads call transports, hooks and
    // callbacks, which may need much stack. The guard is not held.
    result<void> start(const char* name, bool takes_signals, const function<void()>& body) {
        thread_options wanted;
        wanted.stack_size = options_.thread_stack_size;
        if (!takes_signals) wanted.min_stack_size = 256 * 1024;
        wanted.takes_signals = takes_signals;
        wanted.name = name;
        const ref<entry> added = make_ref<entry>();
        join_ended();
        {
            const unique_lock held(guard_);
            ++live_;
        }
        result<thread> started = thread::start(
            [this, added, body, owner = ref<ref_counted>(&owner_)] {
                body();
                end(*added);
            },
            wanted);
        const unique_lock held(guard_);
        if (!started) {
            --live_;
            return started.error();
        }
        added->handle = std::move(*started);
        all_.push_back(added);
        return {};
    }

    // Has one of the threads call `task`.
    void post(task_kind kind, function<void()> task) {
        unique_lock held(guard_);
        pool& to = pools_[static_cast<int>(kind)];
        to.tasks_due.push(std::move(task));
        if (to.free() < to.tasks_due.size() && to.threads < to.max && start_server(held, to)) return;
        to.threads > 0 ? to.due.notify_one() : rescue(held, to);
    }
    // Has so many threads wait for tasks: until handlers keep all processors busy, starting one is fast.
    result<void> keep(task_kind kind, std::size_t count) {
        unique_lock held(guard_);
        pool& of = pools_[static_cast<int>(kind)];
        of.kept = count;
        result<void> started;
        while (started && of.free() < count) started = start_server(held, of);
        return started;
    }
    // Those that do tasks end when none is left.
    void close() {
        const unique_lock held(guard_);
        is_closed_ = true;
        for (pool& each : pools_) each.due.notify_all();
    }
    // After a start that failed: as if none had ever started.
    void end_all() {
        close();
        unique_lock held(guard_);
        while (live_ > 0) {
            held.unlock();
            waker_.wait_until(deadline_after(std::chrono::seconds(1)));
            held.lock();
        }
        held.unlock();
        join(time_point::max());
        held.lock();
        is_closed_ = false;
    }
    // With the guard held: threads that have not ended.
    std::size_t live() const noexcept { return live_; }
    // Joins those that have ended; their thread_local destructors may block. Detaches the others, and returns how many
    // they are.
    std::size_t join(time_point deadline) {
        array<ref<entry>> all;
        {
            const unique_lock held(guard_);
            all.swap(all_);
        }
        std::size_t left = 0;
        for (const ref<entry>& each : all) {
            if (!has_ended(*each) || !each->handle.join_until(deadline)) ++left;
            each->handle.detach();
        }
        return left;
    }

  private:
    using tasks = fifo<function<void()>>;
    struct entry : ref_counted {
        thread handle;
        bool has_ended = false;
    };
    // The threads that do tasks of one kind.
    struct pool {
        const std::size_t max;
        tasks tasks_due;
        condition due;
        std::size_t kept = 1;  // so many wait for tasks
        std::size_t threads = 0;
        std::size_t idle = 0;      // of these
        std::size_t starting = 0;  // of these

        std::size_t free() const noexcept { return idle + starting; }
    };

    result<void> start_server(unique_lock& held, pool& of) {
        ++of.threads;
        ++of.starting;
        held.unlock();
        result<void> started = start("ojs-service", false, [this, &of] { serve(of); });
        held.lock();
        if (started) return started;
        --of.threads;
        --of.starting;
        if (of.threads == 0) rescue(held, of);  // of tasks that counted on it
        return started;
    }
    void serve(pool& of) {
        unique_lock held(guard_);
        --of.starting;
        for (;;) {
            if (tasks* const from = tasks_for(of)) {
                run_next(held, *from, &of);
                continue;
            }
            if (is_closed_ || of.idle >= of.kept) break;
            ++of.idle;
            of.due.wait(held);
            --of.idle;
        }
        --of.threads;
    }
    void run_next(unique_lock& held, tasks& from, pool* server = nullptr) {
        function<void()> task = from.pop();
        // Each starts the next, so that no single thread starts all.
        const bool more = server != nullptr && server->tasks_due.size() > server->free();
        if (more && server->threads < server->max) static_cast<void>(start_server(held, *server));
        held.unlock();
        task();
        task = nullptr;  // what it holds may be user code
        held.lock();
    }
    // Null: there is nothing to do.
    tasks* tasks_for(pool& of) noexcept {
        if (of.tasks_due.size() > 0) return &of.tasks_due;
        return &of == pools_ && overflow_.size() > 0 ? &overflow_ : nullptr;
    }
    // No thread serves the pool: the first one does these between its own or, if it has no thread either, the caller.
    void rescue(unique_lock& held, pool& from) {
        while (from.tasks_due.size() > 0) {
            if (pools_[0].threads == 0) {
                run_next(held, from.tasks_due);
            } else {
                overflow_.push(from.tasks_due.pop());
            }
        }
        pools_[0].due.notify_one();
    }
    void end(entry& one) {
        const unique_lock held(guard_);
        one.has_ended = true;
        --live_;
        if (is_closed_) waker_.notify();
    }
    bool has_ended(const entry& one) const {
        const unique_lock held(guard_);
        return one.has_ended;
    }
    // Releases the stacks of those that have ended, without waiting.
    void join_ended() {
        array<ref<entry>> ended;
        {
            const unique_lock held(guard_);
            for (std::size_t i = all_.size(); i-- > 0;) {
                if (!all_[i]->has_ended) continue;
                ended.push_back(all_[i]);
                all_.remove(i);
            }
        }
        for (const ref<entry>& each : ended) {
            if (each->handle.join_until({})) continue;
            const unique_lock held(guard_);
            all_.push_back(each);
        }
    }

    ref_counted& owner_;
    mutex& guard_;  // guards the rest
    const loop_options& options_;
    const wake& waker_;
    array<ref<entry>> all_;
    std::size_t live_ = 0;
    pool pools_[3] = {{4, {}, {}}, {128, {}, {}}, {128, {}, {}}};  // by task_kind
    tasks overflow_;
    bool is_closed_ = false;
};

}  // namespace ojs::detail
