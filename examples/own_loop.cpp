// A consumer loop of your own, without the worker: it takes items from two queues and stops without losing one.
//
//     build/own_loop [TIME]        four items in each queue; each takes TIME (default 2s)
//
// SIGTERM or Ctrl-C: no item starts, those in progress finish. Again, or after 10 s: they are interrupted and requeued.
// SIGTSTP: no item starts until SIGCONT. Exit status 0; 75: an item did not return, its queue has to deliver it again.
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "ojs_shutdown.hpp"  // or ojs_shutdown_core.hpp: no worker, no sockets, no JSON

namespace {

using namespace std::chrono_literals;

// Behind a condition variable.
class memory_queue {
  public:
    void put(int item) {
        const std::lock_guard<std::mutex> lock(mutex_);
        items_.push_back(item);
        changed_.notify_one();
    }
    std::optional<int> take(const ojs::cancel_token& stop) {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!stop.wait(changed_, lock, [&] { return !items_.empty(); })) return std::nullopt;
        const int item = items_.front();
        items_.pop_front();
        return item;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<int> items_;
};

// Behind poll: a pipe, for one consumer. A socket, or the descriptor of a client library, works alike.
class pipe_queue {
  public:
    pipe_queue() {
        if (pipe(ends_) != 0) std::abort();
    }
    void put(int item) {
        if (write(ends_[1], &item, sizeof item) != sizeof item) std::abort();
    }
    std::optional<int> take(const ojs::cancel_token& stop) {
        const ojs::result<int> stopped = stop.fd();
        if (!stopped) return std::nullopt;  // out of descriptors
        pollfd both[] = {{ends_[0], POLLIN, 0}, {*stopped, POLLIN, 0}};
        while (poll(both, 2, -1) < 0 && errno == EINTR) {
        }
        int item = 0;
        if (both[1].revents != 0 || read(ends_[0], &item, sizeof item) != sizeof item) return std::nullopt;
        return item;
    }

  private:
    int ends_[2];
};

// False if it was interrupted.
bool process(int item, std::chrono::milliseconds time, const ojs::cancel_token& interrupt) {
    const std::string name = "item " + std::to_string(item);
    ojs::write_log_line(STDOUT_FILENO, name + ": started");
    const bool done = interrupt.sleep_for(time);
    ojs::write_log_line(STDOUT_FILENO, name + (done ? ": done" : ": interrupted, requeued"));
    return done;
}

}  // namespace

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    if (!signals) return ojs::report_usage(signals.error());
    const auto time = ojs::parse_duration(argc > 1 ? argv[1] : "2s");
    if (argc > 2 || !time)
        return ojs::report_usage({ojs::errc::invalid_argument, 0, "usage: own_loop [TIME]"});
    memory_queue memory;
    pipe_queue pipe;
    for (int item = 1; item <= 4; ++item) memory.put(item), pipe.put(4 + item);
    ojs::cancel_source stop, interrupt;          // no item starts; items in progress return
    stop.cancel(ojs::cancel_reason::cancelled);  // no consumer runs yet
    ojs::drain_barrier consumers;
    const auto consume = [&](auto& queue) {
        std::thread([&, &queue = queue, stopped = stop.token(), ticket = consumers.enter()] {
            while (const auto item = queue.take(stopped)) {  // waits for one; none once `stop` is cancelled
                if (!process(*item, *time, interrupt.token())) queue.put(*item);
            }
        }).detach();
    };
    for (ojs::phase phase; (phase = lifecycle.phase()) < ojs::phase::draining; signals->wait()) {
        if (phase == ojs::phase::quiet) stop.cancel(ojs::cancel_reason::cancelled);
        if (phase == ojs::phase::quiet || !stop.requested()) continue;
        stop = ojs::cancel_source();
        consume(memory), consume(pipe);
    }
    stop.cancel(ojs::cancel_reason::cancelled);
    consumers.close();
    const auto finish = [&](const ojs::step_context& step) { consumers.wait_until(step.deadline); };
    ojs::shutdown_sequence steps;
    steps.add("finish items", finish, 10s);
    ojs::sequence_options options;
    options.lifecycle = &lifecycle;  // a second signal ends the step
    steps.run(options);
    interrupt.cancel(ojs::cancel_reason::forced);
    const bool all_returned = consumers.wait_until(ojs::deadline_after(5s)) == 0;
    std::exit(all_returned ? 0 : 75);  // "return" would restore the signals first: another one would kill
}
