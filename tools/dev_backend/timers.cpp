#include "timers.hpp"

#include <algorithm>

namespace dev_backend {

void timers::set(job& timed, ojs::time_point when) {
    if (timed.due != ojs::time_point::max()) jobs_.erase({timed.due, &timed});
    timed.due = when;
    if (when != ojs::time_point::max()) jobs_.insert({when, &timed});
    if (when < wakes_at_) changed_.notify_one();
}

void timers::set(worker& silent_until, ojs::time_point when) {
    if (silent_until.dead_at != ojs::time_point::max()) workers_.erase({silent_until.dead_at, &silent_until});
    silent_until.dead_at = when;
    if (when != ojs::time_point::max()) workers_.insert({when, &silent_until});
    if (when < wakes_at_) changed_.notify_one();
}

job* timers::due_job(ojs::time_point now) const {
    return !jobs_.empty() && jobs_.begin()->first <= now ? jobs_.begin()->second : nullptr;
}

worker* timers::due_worker(ojs::time_point now) const {
    return !workers_.empty() && workers_.begin()->first <= now ? workers_.begin()->second : nullptr;
}

ojs::time_point timers::next() const {
    ojs::time_point first = ojs::time_point::max();
    if (!jobs_.empty()) first = std::min(first, jobs_.begin()->first);
    if (!workers_.empty()) first = std::min(first, workers_.begin()->first);
    return first;
}

void timers::wait(std::unique_lock<std::mutex>& held) {
    wakes_at_ = next();
    if (wakes_at_ == ojs::time_point::max()) {
        changed_.wait(held);
    } else {
        changed_.wait_until(held, wakes_at_);
    }
}

}  // namespace dev_backend
