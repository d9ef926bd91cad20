#include "committer.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "refusal.hpp"

namespace dev_backend {

void committer::start() {
    thread_ = std::thread([this] { run(); });
}

void committer::wait() {
    const std::uint64_t needed = store_.changes();
    if (committed_ >= needed) return;
    std::unique_lock<std::mutex> held(mutex_);
    wanted_ = std::max(wanted_, needed);
    wanted_changed_.notify_one();
    tried_.wait(held, [&] { return committed_ >= needed || failed_ >= needed; });
    if (committed_ < needed)
        throw refusal{500, "backend_error", "not stored yet, but it may be in a moment: " + fault_};
}

std::string committer::fault() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return fault_;
}

bool committer::stop() {
    {
        const std::lock_guard<std::mutex> held(mutex_);
        if (!thread_.joinable()) return !failing_;
        wanted_ = store_.changes();
        stopping_ = true;
    }
    wanted_changed_.notify_one();
    thread_.join();
    storage_.reset();
    return !failing_;
}

void committer::run() {
    constexpr std::chrono::seconds until_next_try{1};
    std::unique_lock<std::mutex> held(mutex_);
    while (true) {
        const auto is_due = [&] { return stopping_ || wanted_ > committed_; };
        if (failing_) {
            wanted_changed_.wait_for(held, until_next_try, [&] { return stopping_; });
        } else {
            wanted_changed_.wait(held, is_due);
        }
        const bool last = stopping_;
        held.unlock();
        std::uint64_t through = 0;
        const ojs::result<void> done = commit(through);
        // Until the next try; afterwards, until workers that got an error have called again.
        if (!done || failing_) store_.hold_time(done ? std::chrono::seconds(15) : until_next_try * 3);
        held.lock();
        failing_ = !done;
        if (done) {
            committed_ = through;
        } else {
            failed_ = through;
            fault_ = done.error().text;
        }
        tried_.notify_all();
        if (last) return;
    }
}

ojs::result<void> committer::commit(std::uint64_t& through) {
    changed_rows now;
    {
        const store::lock held(store_.mutex());
        now = store_.take_changes();
    }
    through = now.number;
    if (!now.rows.empty() || !now.removed.empty()) unsaved_.push_back(std::move(now));
    if (unsaved_.empty()) return {};
    ojs::result<void> done = storage_->commit(unsaved_);
    if (done) unsaved_.clear();
    return done;
}

}  // namespace dev_backend
