#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "../base/detail/light.hpp"
#include "../base/detail/text.hpp"
#include "../core/detail/wake.hpp"
#include "detail/event_queue.ipp"
#include "detail/listener.ipp"
#include "detail/server_connection.ipp"
#include "draining_server.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr std::size_t max_threads = 1024;
inline constexpr int accepted_at_once = 64;
// accept_retry_time each, for longer than a connection lingers: then its descriptor is free.
inline constexpr int tries_for_queue = 30;
// A client that connected before the drain may have sent a request that is still on its way.
inline constexpr auto time_for_late = std::chrono::milliseconds(100);
// A client between two requests learns of the drain with an answer: closing could cross its next request.
inline constexpr auto time_to_hand_over = std::chrono::milliseconds(100);

// The body of a draining_server.
class server_body final : public ref_counted {
  public:
    server_body(http_handler handler, draining_server_options options, bool is_small) {
        context.handler = std::move(handler);
        context.options = std::move(options);
        context.is_small = is_small;
        context.on_fewer = [this] { tell_changed(); };
        context.on_earlier_look = [this] { wake_.notify(); };
    }
    ~server_body() override {
        drain_options now;
        now.deadline = steady_clock::now();
        if (wake_.fd() >= 0) drain(now);
        join();
    }

    result<void> start(std::string_view where) {
        result<void> started = context.is_small
                                   ? open_address(where, false, listeners_)
                                   : open_listeners(where, context.options.reuse_port, listeners_);
        if (started) started = start_threads();
        for (listener& each : listeners_) {
            if (!started) each.give_back();
            append(address, {address.empty() ? "" : ",", each.where().name});
        }
        return started;
    }
    // In a child made by fork() the threads are the parent's, one of which may hold a lock here for ever.
    void leave_to_parent() noexcept {
        if (!is_forked()) return;
        retain();  // never destroyed: a condition waits for its waiters
        if (!mutex_.try_lock()) return;
        for (listener& each : listeners_) each.leave();
        for (const ref<connection>& each : connections_) each->close();
    }
    drain_result drain(const drain_options& options) {
        if (is_forked()) return {};
        const unique_lock alone(drain_mutex_);
        if (drained_) return result_;
        drained_ = true;
        begin_drain(options);
        await_idle(options);
        result_.cut = cut();
        result_.answered = context.answered.load();
        result_.refused = context.refused.load();
        return result_;
    }

    // After drain(): waits for the handlers, and ends every thread.
    void join() noexcept {
        if (is_forked()) return;
        const unique_lock alone(drain_mutex_);
        unique_lock held(mutex_);
        for (std::size_t i = 0; i < threads_.size();) {
            thread ending = std::move(threads_[i].joinable() ? threads_[i] : ended_);
            i = ending.joinable() ? 0 : i + 1;  // one that its handler ended has begun another
            held.unlock();
            ending.join();
            held.lock();
        }
    }

    std::uint16_t port() const noexcept { return listeners_[0].where().port; }
    std::vector<int> listeners() const {
        const unique_lock held(mutex_);
        std::vector<int> out;
        for (const listener& each : listeners_) out.push_back(each.fd());
        return out;
    }
    std::size_t connections() const {
        const unique_lock held(mutex_);
        return connections_.size();
    }

    draining_context context;
    std::string address;

  private:
    using connection = server_connection;
    enum class accepting { no, yes, last_time };

    bool is_forked() const noexcept { return ::getpid() != owner_; }

    // ---- starting ----

    // The first accepts, the last is for the drain. A small server has one for each connection.
    result<void> start_threads() {
        const result<void> opened = queue_.open();
        if (!opened) return opened;
        result<wake> waker = wake::create();
        if (!waker) return waker.error();
        wake_ = std::move(*waker);
        const unique_lock held(mutex_);
        threads_ = array<thread>(context.is_small ? context.options.max_connections + 1 : 2);
        const result<void> started = context.is_small ? result<void>() : start_server_threads();
        if (!started) return started;
        accepting_ = accepting::yes;
        const result<void> accepts = start_thread(0, "ojs-accept", [this] { accept_until_stopped(); });
        if (!accepts) accepting_ = accepting::no;
        return accepts;
    }
    result<void> start_server_threads() {
        const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
        const std::size_t processors = online > 1 ? static_cast<std::size_t>(online) : 1;
        const std::size_t usual = processors < 4 ? 8 : processors * 2;
        const std::size_t count =
            context.options.threads > 0 ? std::min(context.options.threads, max_threads) : usual;
        active_.begin(static_cast<int>(count < processors ? count : processors), static_cast<int>(count + 1));
        threads_ = array<thread>(count + 2);
        for (std::size_t i = 1; i <= count; ++i) {
            const result<void> started = start_server(i);
            if (!started && i == 1) return started;
        }
        return {};
    }
    // These with the mutex held.
    result<void> start_server(std::size_t place) {
        return start_thread(place, "ojs-serve", [this, place] { serve_until_stopped(place); });
    }
    result<void> start_thread(std::size_t place, const char* name, function<void()> body) {
        thread_options options;
        options.name = name;
        options.stack_size = context.options.thread_stack_size;
        result<thread> started = thread::start(std::move(body), options);
        if (!started) return started.error();
        threads_[place] = std::move(*started);
        return {};
    }
    bool has_server_for_one_more() {
        if (!context.is_small || serving_ > connections_.size()) return true;
        std::size_t place = 1;
        while (place < threads_.size() && threads_[place].joinable()) ++place;
        if (place == threads_.size() || !start_server(place)) return false;
        ++serving_;
        return true;
    }
    // True: this thread ends, as a small server's surplus or by its handler. It joins the one before it.
    bool end_thread(std::size_t place, bool by_handler = false) {
        if (!context.is_small && !by_handler) return false;
        thread before;
        const unique_lock held(mutex_);
        const bool is_surplus = context.is_small && serving_ > connections_.size();
        if (!is_surplus && !by_handler) return false;
        before = exchange(ended_, std::move(threads_[place]));
        if (is_surplus) --serving_;
        if (!is_surplus) static_cast<void>(start_server(place));
        return true;
    }

    // ---- accepting ----

    void accept_until_stopped() noexcept {
        array<pollfd> waiting(listeners_.size() + 1);
        for (;;) {
            await_peers(waiting);
            if (waiting[0].revents != 0) wake_.clear();
            active_.adjust();
            unique_lock held(mutex_);
            if (stopping_) return;
            const accepting now = accepting_;
            held.unlock();
            if (now == accepting::last_time) end_accepting();
            for (std::size_t i = 0; now == accepting::yes && i < listeners_.size(); ++i)
                if (waiting[i + 1].revents != 0) accept_from(listeners_[i]);
            if (steady_clock::now() >= context.next_look.load()) sweep();
        }
    }
    void await_peers(array<pollfd>& waiting) noexcept {
        unique_lock held(mutex_);
        const bool accepts = accepting_ == accepting::yes && !full_;
        time_point until = connections_.empty() ? time_point::max() : context.next_look.load();
        held.unlock();
        if (active_.needs_adjusting()) until = std::min(until, deadline_after(activity_interval));
        waiting[0] = {wake_.fd(), POLLIN, 0};
        for (std::size_t i = 0; i < listeners_.size(); ++i)
            waiting[i + 1] = {accepts ? listeners_[i].fd() : -1, POLLIN, 0};
        ::poll(waiting.data(), static_cast<nfds_t>(waiting.size()), poll_timeout(until));
    }
    void accept_from(const listener& from) noexcept {
        if (!has_room()) return make_room();
        for (int i = 0; i < accepted_at_once && has_room() && accept_one(from, wake_.fd()); ++i) continue;
    }
    // False: there is nobody, for now.
    bool accept_one(const listener& from, int interrupt) noexcept {
        unique_fd socket = accept_socket(from.fd());
        const int failed = socket ? 0 : errno;
        if (peer_gave_up(failed)) return true;
        if (would_block(failed)) return false;
        try {
            if (socket) return admit(std::move(socket)), true;
        } catch (...) {  // out of memory: treated like being out of descriptors
        }
        // The listener stays readable, so poll would spin. The wake is left to the loop, for whom it may be.
        pollfd told{interrupt, POLLIN, 0};
        ::poll(&told, 1, static_cast<int>(accept_retry_time.count()));
        return false;
    }
    bool has_room() noexcept {
        const unique_lock held(mutex_);
        return connections_.size() < context.options.max_connections;
    }
    // Closes the longest idle connection, or the next to become idle, or cuts the slowest client's.
    void make_room() noexcept {
        const unique_lock held(mutex_);
        if (connections_.size() < context.options.max_connections) return;
        full_ = true;
        connection* done = waits_longest(true);
        if (done == nullptr) {
            context.wants_place.store(true);
            done = waits_longest(true);  // since when it was looked for
            if (done != nullptr && !context.takes_place()) done = nullptr;
        }
        connection* const slow = done == nullptr ? waits_longest(false) : nullptr;
        const long long waited = slow == nullptr ? 0 : milliseconds_since(slow->waits_since());
        const auto left = context.options.overload_timeout - std::chrono::milliseconds(waited);
        if (done != nullptr) done->leave_soon();
        if (slow != nullptr && left.count() <= 0) slow->cut();
        // Who was busy may be idle by then.
        context.look_at(
            deadline_after(left.count() > 0 ? std::min(left, overdue_interval) : overdue_interval));
    }
    // Of those that have answered, or of those whose clients keep them waiting; null: none.
    connection* waits_longest(bool is_done) const noexcept {
        connection* out = nullptr;
        time_point since = time_point::max();
        for (const ref<connection>& each : connections_) {
            if (each->is_done() != is_done || each->waits_since() >= since) continue;
            if (each->is_idle() && each->has_bytes()) continue;
            out = each.get();
            since = each->waits_since();
        }
        return out;
    }
    void admit(unique_fd socket) {
        const ref<connection> admitted = make_ref<connection>(std::move(socket), context);
        const unique_lock held(mutex_);  // whoever is told of it finds it listed
        connections_.reserve_one();
        if (!has_server_for_one_more()) return admitted->turn_away();
        admitted->place = connections_.size();
        connections_.push_back(admitted);
        context.look_at(deadline_after(context.options.idle_timeout));
        if (!queue_.add(admitted->fd(), admitted.get())) connections_.pop_back();
    }
    // Ends what is overdue.
    void sweep() noexcept {
        const time_point now = steady_clock::now();
        context.next_look.store(time_point::max());  // before the deadlines are read
        const unique_lock held(mutex_);
        full_ = false;  // who was busy when somebody waited for a place may be idle by now
        context.wants_place.store(false);
        for (const ref<connection>& each : connections_) context.look_at(each->end_if_overdue(now));
    }
    void leave_idle() noexcept {
        const unique_lock held(mutex_);
        for (const ref<connection>& each : connections_) {
            if (each->has_asked()) each->notice_drain();
        }
    }
    // A closed queue is reset. A successor accepts from the same one, unless each process has its own (SO_REUSEPORT).
    void end_accepting() noexcept {
        const bool leaves_queue = end_.has_successor && !context.options.reuse_port;
        for (listener& each : listeners_) {
            // Without descriptors for them, the idle ones go first, and a moment later there are some.
            for (int tries = tries_for_queue; !leaves_queue && tries > 0 && !is_over();) {
                if (accept_one(each, -1)) {
                    tries = tries_for_queue;
                    continue;
                }
                pollfd waits{each.fd(), POLLIN, 0};
                if (::poll(&waits, 1, 0) <= 0) break;
                if (tries-- == tries_for_queue) leave_idle();
                sweep();  // who was answered and does not close holds a descriptor
            }
        }
        const unique_lock held(mutex_);
        for (listener& each : listeners_) end_.has_successor ? each.leave() : each.close();
        accepting_ = accepting::no;
        changed_.notify_all();
    }

    // ---- serving ----

    void serve_until_stopped(std::size_t place) {
        active_.enter();
        while (!end_thread(place)) {
            void* const found = active_.next([&] { return queue_.wait(); }, [&] { wake_.notify(); });
            if (found == nullptr) return;
            connection& which = *static_cast<connection*>(found);
            call_guarded([&] { serve(which); },
                         [&] {  // the handler ended this thread
                             active_.leave();
                             remove(which);
                             end_thread(place, true);
                         });
        }
    }
    void serve(connection& which) {
        connection::next next = connection::next::close;
        try {
            next = which.on_ready();
        } catch (...) {  // out of memory: this connection ends, the server goes on
            pass_on_thread_end();
        }
        if (next == connection::next::close) return remove(which);
        const auto events = static_cast<short>(next);
        if (!which.pass_on([&] { return queue_.watch(which.fd(), &which, events); })) remove(which);
    }
    void remove(connection& which) noexcept {
        which.end();
        queue_.remove(which.fd());
        unique_lock held(mutex_);
        const ref<connection> removed = std::move(connections_[which.place]);
        if (which.place + 1 < connections_.size()) {
            connections_[which.place] = std::move(connections_.back());
            connections_[which.place]->place = which.place;
        }
        connections_.pop_back();
        removed->close();
        const bool was_full = full_;
        full_ = false;
        context.wants_place.store(false);
        const bool was_last = stopping_ && connections_.empty();
        held.unlock();
        if (was_full) wake_.notify();
        if (was_last) stop_serving();
    }
    void stop_serving() noexcept {
        queue_.stop();
        active_.stop();
    }

    // ---- ending ----

    void begin_drain(const drain_options& options) {
        end_ = options;
        context.draining.store(true);
        time_point end = deadline_after(context.options.lame_duck);
        if (options.has_successor) {  // new clients are its own from the first moment on
            end = std::max(end, deadline_after(time_to_hand_over));
            accept_last();
        }
        static_cast<void>(options.abort.sleep_until(std::min(end, options.deadline)));
        accept_last();
        unique_lock held(mutex_);
        while (accepting_ != accepting::no) changed_.wait(held);
        context.refusing.store(true);
        for (const ref<connection>& each : connections_) each->notice_drain();
    }
    void accept_last() noexcept {
        const unique_lock held(mutex_);
        if (accepting_ == accepting::yes) accepting_ = accepting::last_time;
        wake_.notify();
    }
    bool is_over() const noexcept { return end_.abort.cancelled() || steady_clock::now() >= end_.deadline; }
    void await_idle(const drain_options& options) {
        // All others may be with handlers, and who comes too late is to be told so.
        unique_lock held(mutex_);
        if (!context.is_small) static_cast<void>(start_server(threads_.size() - 1));
        held.unlock();
        const cancel_registration aborted = options.abort.on_cancel([this] { tell_changed(); });
        const time_point late_end = deadline_after(time_for_late);
        held.lock();
        for (;;) {
            const bool in_flight_connections = context.in_flight_connections.load() > 0;
            if ((!in_flight_connections && context.late.load() == 0) || options.abort.cancelled()) return;
            const time_point end =
                in_flight_connections ? options.deadline : std::min(options.deadline, late_end);
            if (end <= steady_clock::now()) return;
            changed_.wait_until(held, end);
        }
    }
    std::size_t cut() {
        std::size_t out = 0;
        unique_lock held(mutex_);
        for (const ref<connection>& each : connections_) out += each->cut() ? 1U : 0U;
        stopping_ = true;
        const bool none_left = connections_.empty();  // else whoever removes the last one stops the queue
        held.unlock();
        wake_.notify();
        if (none_left) stop_serving();
        return out;
    }
    void tell_changed() noexcept {
        const unique_lock held(mutex_);
        changed_.notify_all();
    }

    const pid_t owner_ = ::getpid();
    event_queue queue_;
    active_threads active_;
    wake wake_;  // of the thread that accepts

    mutex drain_mutex_;  // one drain() at a time
    bool drained_ = false;
    drain_result result_;
    drain_options end_;  // of that drain, set before anything is accepted the last time

    mutable mutex mutex_;  // guards what follows
    condition changed_;
    array<listener> listeners_;
    array<ref<connection>> connections_;
    array<thread> threads_;
    thread ended_;
    std::size_t serving_ = 0;  // threads of a small one
    accepting accepting_ = accepting::no;
    bool full_ = false;
    bool stopping_ = false;
};

}  // namespace detail

OJS_SHUTDOWN_INLINE draining_server::draining_server(detail::ref<detail::server_body> body) noexcept
    : impl_(std::move(body)) {}
OJS_SHUTDOWN_INLINE draining_server::draining_server(draining_server&& other) noexcept = default;
OJS_SHUTDOWN_INLINE draining_server& draining_server::operator=(draining_server&& other) noexcept {
    detail::ref<detail::server_body> taken = std::move(other.impl_);
    const draining_server ended(std::move(*this));
    impl_ = std::move(taken);
    return *this;
}
OJS_SHUTDOWN_INLINE draining_server::~draining_server() {
    if (impl_) impl_->leave_to_parent();
}

OJS_SHUTDOWN_INLINE result<draining_server> draining_server::start(std::string_view address,
                                                                   http_handler handler,
                                                                   draining_server_options options) {
    return start(address, std::move(handler), std::move(options), false);
}
OJS_SHUTDOWN_INLINE result<draining_server> draining_server::start(std::string_view address,
                                                                   http_handler handler,
                                                                   draining_server_options options,
                                                                   bool is_small) {
    if (!handler || options.max_connections == 0)
        return error{errc::invalid_argument, 0, "an HTTP server needs a handler and at least one connection"};
    detail::ref<detail::server_body> body =
        detail::make_ref<detail::server_body>(std::move(handler), std::move(options), is_small);
    const result<void> started = body->start(address);
    if (!started) return started.error();
    return draining_server(std::move(body));
}

OJS_SHUTDOWN_INLINE const std::string& draining_server::address() const noexcept {
    return impl_->address;
}
OJS_SHUTDOWN_INLINE std::uint16_t draining_server::port() const noexcept {
    return impl_->port();
}
OJS_SHUTDOWN_INLINE std::vector<int> draining_server::listeners() const {
    return impl_->listeners();
}
OJS_SHUTDOWN_INLINE bool draining_server::draining() const noexcept {
    return impl_->context.draining.load();
}
OJS_SHUTDOWN_INLINE std::size_t draining_server::connections() const {
    return impl_->connections();
}
OJS_SHUTDOWN_INLINE drain_result draining_server::drain(const drain_options& options) {
    return impl_->drain(options);
}
OJS_SHUTDOWN_INLINE void draining_server::join() noexcept {
    impl_->join();
}

}  // namespace v0_1_0
}  // namespace ojs
