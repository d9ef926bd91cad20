// A consumer loop of your own, without the worker: it takes items from two queues and stops without losing one.
//
//     build/own_loop [TIME]        four items in each queue; each takes TIME (default 2s)
//
// SIGTERM or Ctrl-C: no item starts, those in progress finish. Again, or when the grace period ends: they are interrupted
// and requeued. SIGTSTP: no item starts until SIGCONT. Exit status 0; 75: an item has not ended, and its queue has to
// deliver it again.
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "ojs_shutdown.hpp"  // or ojs_shutdown_loop.hpp: no worker, no sockets, no JSON

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

template <class Queue>
void consume(ojs::consumer& consumer, Queue& queue, std::chrono::milliseconds time) {
    while (consumer.next()) {                                    // waits while quiet; false: the loop stops
        const auto taken = queue.take(consumer.intake_token());  // waits for one; none once quiet or stopping
        if (!taken) continue;
        const ojs::item item = consumer.begin(std::to_string(*taken));  // in flight until the end of its scope
        if (!process(*taken, time, item.token())) queue.put(*taken);
    }
}
}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;  // first: a SIGTERM during start-up is kept
    const auto time = ojs::parse_duration(argc > 1 ? argv[1] : "2s");
    if (argc > 2 || !time) return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "usage: own_loop [TIME]"});
    memory_queue memory;
    pipe_queue pipe;
    for (int item = 1; item <= 4; ++item) memory.put(item), pipe.put(4 + item);
    loop.add_consumers(1, [&](ojs::consumer& consumer) { consume(consumer, memory, *time); });  // a thread each
    loop.add_consumers(1, [&](ojs::consumer& consumer) { consume(consumer, pipe, *time); });
    return loop.run();
}
