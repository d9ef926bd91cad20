// link: a thread with a connection, which it opens again after a pause.
#pragma once

#include <poll.h>

#include <chrono>
#include <utility>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/sync.hpp"
#include "../../core/detail/wake.hpp"
#include "connection.ipp"

namespace ojs::detail {
namespace rabbitmq {
// What all links of a transport share.
struct monitor {
    mutex guard;
    condition changed;
};

// Each queue has its own links, as RabbitMQ may close a connection for a fault of one queue.
class link {
  public:
    link(const broker_address& broker, std::chrono::seconds heartbeat, monitor& shared)
        : shared_(shared), broker_(broker), heartbeat_(heartbeat) {}
    link(const link&) = delete;
    link& operator=(const link&) = delete;
    virtual ~link() = default;

    // Once; again, it does nothing.
    result<void> start(const char* name) {
        if (thread_.joinable()) return {};
        result<wake> created = wake::create();
        if (!created) return created.error();
        wake_ = std::move(*created);
        // librabbitmq decodes nested headers by recursion: frame_max bytes of them take less than this.
        result<thread> started = thread::start([this] { run(); }, {std::size_t{16} << 20, false, name});
        if (!started) return started.error();
        thread_ = std::move(*started);
        return {};
    }
    void notify() const noexcept {
        if (thread_.joinable()) wake_.notify();
    }
    // Sends what is decided, closes the connection, and ends; guarded.
    void request_end() {
        is_ending_ = true;
        shared_.changed.notify_all();
        notify();
    }
    // From `deadline` on the connection is cut.
    void join(time_point deadline) {
        unique_lock held(shared_.guard);
        while (thread_.joinable() && !has_ended_ && shared_.changed.wait_until(held, deadline)) continue;
        held.unlock();
        connection_.interrupt();
        thread_.join();
    }

  protected:
    // On the thread; false: the connection is of no more use.
    virtual bool begin() = 0;  // after each login
    virtual bool turn() = 0;   // after each event
    virtual void lose(const error& why) = 0;
    virtual bool is_needed() const { return true; }  // guarded

    monitor& shared_;
    connection connection_;
    bool is_ending_ = false;   // guarded
    bool has_worked_ = false;  // used only by the thread: the next pause is short

  private:
    void run() {
        backoff pause(std::chrono::milliseconds(100), std::chrono::milliseconds(5000));
        for (time_point at = steady_clock::now(); await_need(at); at = deadline_after(pause.next())) {
            if (connection_.open(broker_, heartbeat_) && begin()) serve();
            const error why = connection_.fault();
            connection_.close(is_ending());
            lose(why);
            if (exchange(has_worked_, false)) pause.reset();
        }
        const unique_lock held(shared_.guard);
        has_ended_ = true;
        shared_.changed.notify_all();
    }
    bool is_ending() {
        const unique_lock held(shared_.guard);
        return is_ending_;
    }
    // False: it ends.
    bool await_need(time_point at) {
        unique_lock held(shared_.guard);
        while (!is_ending_ && (!is_needed() || steady_clock::now() < at))
            shared_.changed.wait_until(held, is_needed() ? at : never);
        return !is_ending_;
    }
    void serve() {
        for (bool ends = false; !ends;) {
            ends = is_ending();
            if (!turn()) return;
            if (ends || connection_.has_frames()) continue;
            pollfd polled[] = {{wake_.fd(), POLLIN, 0}, {connection_.socket(), POLLIN, 0}};
            ::poll(polled, 2, 1000);  // for heartbeats
            wake_.clear();
        }
    }

    const broker_address& broker_;
    const std::chrono::seconds heartbeat_;
    bool has_ended_ = false;  // guarded
    wake wake_;
    thread thread_;
};
}  // namespace rabbitmq
}  // namespace ojs::detail
