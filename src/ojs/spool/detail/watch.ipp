// Tells a worker at once when there may be something in request/.
#pragma once

#include <poll.h>

#include "../../base/detail/light.hpp"
#include "../../core/detail/wake.hpp"
#include "../spool_transport.hpp"

namespace ojs::detail {

// A thread that waits for the kernel to tell of a new file, or for one that was put off to be due.
class spool_watcher {
  public:
    // Where that is not to be had the worker polls, and finds it a little later.
    void start(function<void()> tell, int news_fd) {
        if (changed_.fd() < 0) {  // once: a FETCH under way may use it
            result<wake> made = wake::create();
            if (!made) return;
            changed_ = std::move(*made);
        }
        running_.store(true, memory_order::release);
        thread_options options;
        options.stack_size = 256 * 1024;
        options.name = "ojs-spool";
        result<thread> started = thread::start([this, tell, news_fd] { run(tell, news_fd); }, options);
        if (started) {
            thread_ = std::move(*started);
        } else {
            running_.store(false, memory_order::release);
        }
    }

    void stop() {
        if (!running_.exchange(false, memory_order::acq_rel)) return;
        changed_.notify();
        thread_.join();
    }

    // A FETCH has taken in all news, and `due` is when the next file that it has put off is worth another look.
    void looked(time_point due) {
        const steady_clock::rep until = due.time_since_epoch().count();
        const steady_clock::rep before = due_.exchange(until, memory_order::acq_rel);
        const bool told = told_.exchange(false, memory_order::acq_rel);
        const bool concerns_thread = told || until < before;
        if (concerns_thread && running_.load(memory_order::acquire)) changed_.notify();
    }

  private:
    // Tells once, and then waits until a FETCH has looked: a worker that has enough to do does not want to hear more.
    void run(const function<void()>& tell, int news_fd) {
        while (running_.load(memory_order::acquire)) {
            const bool told = told_.load(memory_order::acquire);
            const auto due = time_point(steady_clock::duration(due_.load(memory_order::acquire)));
            pollfd waits[2] = {{changed_.fd(), POLLIN, 0}, {told ? -1 : news_fd, POLLIN, 0}};
            ::poll(waits, 2, poll_timeout(told ? time_point::max() : due));
            if (waits[0].revents != 0) {
                changed_.clear();
                continue;
            }
            told_.store(true, memory_order::release);
            tell();
        }
    }

    wake changed_;
    thread thread_;
    atomic<bool> running_{false};
    atomic<bool> told_{false};
    atomic<steady_clock::rep> due_{time_point::max().time_since_epoch().count()};
};

}  // namespace ojs::detail
