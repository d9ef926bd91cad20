// exit_notice: names the jobs in flight when the program calls exit(), which gives a worker no time to stop.
#pragma once

#include <unistd.h>

#include <cstdlib>

#include "../../base/detail/files.ipp"
#include "../../base/detail/sync.hpp"
#include "../../stop/detail/machine_log.ipp"
#include "../../stop/detail/machine_state.ipp"

namespace ojs::detail {
// The running workers. Never destroyed, as exit() may be in progress.
struct exit_list {
    mutex guard;
    array<machine_ref> workers;
    pid_t owner = ::getpid();  // a child of fork() has none of them
};
inline exit_list& exit_workers() {
    static atomic<exit_list*> all{nullptr};
    exit_list* found = all.load();
    if (found != nullptr) return *found;
    auto* const made = new exit_list;
    if (all.compare_exchange_strong(found, made)) return *made;
    delete made;  // another thread's was first
    return *found;
}

// To standard error, past the log hook: the program's static objects may be gone already.
inline void write_exit_notice(const machine_state& worker) {
    std::vector<std::string> left;
    for (const ref<work>& each : worker.works())
        left.push_back(cat({printable(each->job.id, 64), ":", printable(each->job.type, 64)}));
    log_format format = worker.settings.log.format;
    if (format == log_format::automatic && ::isatty(STDERR_FILENO) == 0) format = log_format::json;
    const log_record record{log_level::error,
                            "exit() was called while jobs are in flight; they run again when their leases end",
                            {field("active_jobs", left.size()), field("jobs", join_names(left))},
                            worker.identity.worker_id,
                            "worker"};
    if (left.empty()) return;
    const time_point deadline = steady_clock::now() + std::chrono::milliseconds(100);
    static_cast<void>(write_text(STDERR_FILENO, format_log_record(record, format) + "\n", deadline));
}

// Does not wait for the list: another thread may hold its lock for good. The table of jobs is locked by each worker
// only for moments, and never while code of the user runs.
inline void on_exit_call() noexcept {
    exit_list& all = exit_workers();
    if (all.owner != ::getpid() || !all.guard.try_lock()) return;
    for (const machine_ref& worker : all.workers) {
        if (worker->settings.log.level != log_level::off) write_exit_notice(*worker);
    }
    all.guard.unlock();
}

inline void watch_exit(const machine_ref& worker) {
    static atomic<bool> is_registered{false};
    if (!is_registered.exchange(true)) static_cast<void>(std::atexit(on_exit_call));
    exit_list& all = exit_workers();
    if (all.owner != ::getpid()) return;
    const unique_lock held(all.guard);
    all.workers.push_back(worker);
}
inline void unwatch_exit(const machine_ref& worker) noexcept {
    exit_list& all = exit_workers();
    if (all.owner != ::getpid()) return;
    const unique_lock held(all.guard);
    for (std::size_t i = 0; i < all.workers.size(); ++i) {
        if (all.workers[i].get() == worker.get()) return static_cast<void>(all.workers.remove(i));
    }
}
}  // namespace ojs::detail
