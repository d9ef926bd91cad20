#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>

#include "../base/detail/array.hpp"
#include "../base/detail/text.hpp"
#include "../core/detail/wake.hpp"
#include "detail/active_threads.ipp"
#include "detail/event_queue.ipp"
#include "detail/listener.ipp"
#include "detail/server_connection.ipp"
#include "draining_server.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr int accepted_at_once = 64;
// accept_retry_time each, for longer than a connection lingers: then its descriptor is free.
inline constexpr int tries_for_queue = 30;
// Who had connected before the drain, and has not heard of it, may have sent a request that is still on its way.
inline constexpr auto time_for_late = std::chrono::milliseconds(100);
// Who is between two requests, and is to find the successor, hears of it with an answer: a closed connection could be one
// on which the next is on its way.
inline constexpr auto time_to_hand_over = std::chrono::milliseconds(100);

inline std::size_t thread_count(std::size_t wanted, std::size_t processors) noexcept {
    constexpr std::size_t most = 1024;
    if (wanted > 0) return wanted < most ? wanted : most;
    return processors < 4 ? 8 : processors * 2;
}

}  // namespace detail

class draining_server::impl final : public detail::ref_counted {
  public:
    impl(http_handler handler, draining_server_options options, bool is_small) {
        context_.handler = std::move(handler);
        context_.options = std::move(options);
        context_.is_small = is_small;
        context_.on_fewer = [this] { tell_changed(); };
        context_.on_earlier_look = [this] { wake_.notify(); };
    }
    ~impl() override {
        drain_options now;
        now.deadline = steady_clock::now();
        if (wake_.fd() >= 0) drain(now);
        join();
    }

    result<void> start(std::string_view address) {
        result<void> started = context_.is_small
                                   ? detail::open_address(address, false, listeners_)
                                   : detail::open_listeners(address, context_.options.reuse_port, listeners_);
        if (started) started = start_threads();
        for (detail::listener& each : listeners_) {
            if (!started) each.give_back();
            detail::append(address_, {address_.empty() ? "" : ",", each.where().name});
        }
        return started;
    }
    // In a child made by fork() the threads are the parent's, one of which may hold a lock here for ever.
    void leave_to_parent() noexcept {
        if (!is_forked()) return;
        retain();  // never destroyed: a condition waits for its waiters
        if (!mutex_.try_lock()) return;
        for (detail::listener& each : listeners_) each.leave();
        for (const detail::ref<connection>& each : connections_) each->close();
    }
    drain_result drain(const drain_options& options) {
        if (is_forked()) return {};
        const detail::lock_guard alone(drain_mutex_);
        if (drained_) return result_;
        drained_ = true;
        begin_drain(options);
        await_idle(options);
        result_.cut = cut();
        result_.answered = context_.answered.load();
        result_.refused = context_.refused.load();
        return result_;
    }

    // After drain(): waits for the handlers, and ends every thread.
    void join() noexcept {
        if (is_forked()) return;
        const detail::lock_guard alone(drain_mutex_);
        detail::lock_guard held(mutex_);
        for (std::size_t i = 0; i < threads_.size();) {
            detail::thread ending = std::move(threads_[i].joinable() ? threads_[i] : ended_);
            i = ending.joinable() ? 0 : i + 1;  // one that its handler ended has begun another
            held.unlock();
            ending.join();
            held.lock();
        }
    }

    const std::string& address() const noexcept { return address_; }
    std::uint16_t port() const noexcept { return listeners_[0].where().port; }
    std::vector<int> listeners() const {
        const detail::lock_guard held(mutex_);
        std::vector<int> out;
        for (const detail::listener& each : listeners_) out.push_back(each.fd());
        return out;
    }
    bool draining() const noexcept { return context_.draining.load(); }
    std::size_t connections() const {
        const detail::lock_guard held(mutex_);
        return connections_.size();
    }

  private:
    using connection = detail::server_connection;
    enum class accepting { no, yes, last_time };

    bool is_forked() const noexcept { return ::getpid() != owner_; }

    // ---- starting ----

    // The first accepts, the last is for the drain alone. A small one has a thread for each connection, begun and ended with it.
    result<void> start_threads() {
        result<detail::event_queue> queue = detail::event_queue::create();
        if (!queue) return queue.error();
        queue_ = std::move(*queue);
        result<detail::wake> waker = detail::wake::create();
        if (!waker) return waker.error();
        wake_ = std::move(*waker);
        const detail::lock_guard held(mutex_);
        threads_ =
            detail::array<detail::thread>(context_.is_small ? context_.options.max_connections + 1 : 2);
        if (!context_.is_small) {
            const result<void> started = start_server_threads();
            if (!started) return started;
        }
        accepting_ = accepting::yes;
        const result<void> accepts = start_thread(0, "ojs-accept", [this] { accept_until_stopped(); });
        if (!accepts) accepting_ = accepting::no;
        return accepts;
    }
    result<void> start_server_threads() {
        const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
        const std::size_t processors = online > 1 ? static_cast<std::size_t>(online) : 1;
        const std::size_t count = detail::thread_count(context_.options.threads, processors);
        active_.begin(static_cast<int>(count < processors ? count : processors), static_cast<int>(count + 1));
        threads_ = detail::array<detail::thread>(count + 2);
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
        detail::thread_options options;
        options.name = name;
        options.stack_size = context_.options.thread_stack_size;
        result<detail::thread> started = detail::thread::start(std::move(body), options);
        if (!started) return started.error();
        threads_[place] = std::move(*started);
        return {};
    }
    bool has_server_for_one_more() {
        if (!context_.is_small || serving_ > connections_.size()) return true;
        std::size_t place = 1;
        while (place < threads_.size() && threads_[place].joinable()) ++place;
        if (place == threads_.size() || !start_server(place)) return false;
        ++serving_;
        return true;
    }
    // A thread that ends joins, once the mutex is free, the one that ended before.
    bool end_surplus(std::size_t place) {
        if (!context_.is_small) return false;
        detail::thread before;
        const detail::lock_guard held(mutex_);
        if (serving_ <= connections_.size()) return false;
        --serving_;
        before = detail::exchange(ended_, std::move(threads_[place]));
        return true;
    }
    // For one that its handler has ended, by that thread.
    void replace_thread(std::size_t place) {
        detail::thread before;
        const detail::lock_guard held(mutex_);
        before = detail::exchange(ended_, std::move(threads_[place]));
        static_cast<void>(start_server(place));
    }

    // ---- accepting ----

    void accept_until_stopped() noexcept {
        detail::array<pollfd> waiting(listeners_.size() + 1);
        for (;;) {
            await_peers(waiting);
            if (waiting[0].revents != 0) wake_.clear();
            active_.adjust();
            detail::lock_guard held(mutex_);
            if (stopping_) return;
            const accepting now = accepting_;
            held.unlock();
            if (now == accepting::last_time) {
                end_accepting();
            } else if (now == accepting::yes) {
                for (std::size_t i = 0; i < listeners_.size(); ++i) {
                    if (waiting[i + 1].revents != 0) accept_from(listeners_[i]);
                }
            }
            if (steady_clock::now() >= context_.next_look.load()) sweep();
        }
    }
    int await_peers(detail::array<pollfd>& waiting) noexcept {
        detail::lock_guard held(mutex_);
        const bool accepts = accepting_ == accepting::yes && !full_;
        time_point until = connections_.empty() ? time_point::max() : context_.next_look.load();
        held.unlock();
        if (active_.needs_adjusting()) {
            const time_point adjusted = deadline_after(detail::activity_interval);
            if (adjusted < until) until = adjusted;
        }
        waiting[0] = {wake_.fd(), POLLIN, 0};
        for (std::size_t i = 0; i < listeners_.size(); ++i)
            waiting[i + 1] = {accepts ? listeners_[i].fd() : -1, POLLIN, 0};
        return ::poll(waiting.data(), static_cast<nfds_t>(waiting.size()), detail::poll_timeout(until));
    }
    void accept_from(const detail::listener& from) noexcept {
        if (!has_room()) return make_room();
        for (int i = 0; i < detail::accepted_at_once && has_room(); ++i) {
            if (!accept_one(from, wake_.fd())) return;
        }
    }
    // False: there is nobody, for now.
    bool accept_one(const detail::listener& from, int interrupt) noexcept {
        detail::unique_fd socket = detail::accept_socket(from.fd());
        const int failed = socket ? 0 : errno;
        if (detail::peer_gave_up(failed)) return true;
        if (detail::would_block(failed)) return false;
        try {
            if (socket) return admit(std::move(socket)), true;
        } catch (...) {  // out of memory: treated like being out of descriptors
        }
        // The listener stays readable, so poll would spin. The wake is left to the loop, for whom it may be.
        pollfd told{interrupt, POLLIN, 0};
        ::poll(&told, 1, static_cast<int>(detail::accept_retry_time.count()));
        return false;
    }
    bool has_room() noexcept {
        const detail::lock_guard held(mutex_);
        return connections_.size() < context_.options.max_connections;
    }
    // For who waits: the connection that has been idle longest goes, or the next that would be idle, or the slowest client's is
    // cut. Until one has gone, nobody is accepted.
    void make_room() noexcept {
        const detail::lock_guard held(mutex_);
        if (connections_.size() < context_.options.max_connections) return;
        full_ = true;
        connection* done = waits_longest(true);
        if (done == nullptr) {
            context_.wants_place.store(true);
            done = waits_longest(true);  // since when it was looked for
            if (done != nullptr && !context_.takes_place()) done = nullptr;
        }
        connection* const slow = done == nullptr ? waits_longest(false) : nullptr;
        const long long waited = slow == nullptr ? 0 : detail::milliseconds_since(slow->waits_since());
        const auto left = context_.options.crowded_timeout - std::chrono::milliseconds(waited);
        if (done != nullptr) done->leave_soon();
        if (slow != nullptr && left.count() <= 0) slow->cut();
        // Who was busy may be idle by then.
        context_.look_at(deadline_after(
            left.count() > 0 && left < detail::overdue_interval ? left : detail::overdue_interval));
    }
    // Of those that have answered, or of those whose clients keep them waiting; null: none.
    connection* waits_longest(bool is_done) const noexcept {
        connection* out = nullptr;
        time_point since = time_point::max();
        for (const detail::ref<connection>& each : connections_) {
            if (each->is_done() != is_done || each->waits_since() >= since) continue;
            if (each->is_idle() && each->has_bytes()) continue;
            out = each.get();
            since = each->waits_since();
        }
        return out;
    }
    void admit(detail::unique_fd socket) {
        const detail::ref<connection> admitted = detail::make_ref<connection>(std::move(socket), context_);
        const detail::lock_guard held(mutex_);  // whoever is told of it finds it listed
        connections_.reserve_one();
        if (!has_server_for_one_more()) return admitted->turn_away();
        admitted->place = connections_.size();
        connections_.push_back(admitted);
        context_.look_at(deadline_after(context_.options.idle_timeout));
        if (!queue_.add(admitted->fd(), admitted.get())) connections_.pop_back();
    }
    // Ends what is overdue.
    void sweep() noexcept {
        const time_point now = steady_clock::now();
        context_.next_look.store(time_point::max());  // before the deadlines are read
        const detail::lock_guard held(mutex_);
        full_ = false;  // who was busy when somebody waited for a place may be idle by now
        context_.wants_place.store(false);
        for (const detail::ref<connection>& each : connections_) context_.look_at(each->end_if_overdue(now));
    }
    void leave_idle() noexcept {
        const detail::lock_guard held(mutex_);
        for (const detail::ref<connection>& each : connections_) {
            if (each->has_asked()) each->notice_drain();
        }
    }
    // A closed queue is reset. A successor accepts from the same one, unless each process has its own (SO_REUSEPORT).
    void end_accepting() noexcept {
        const bool leaves_queue = has_successor_ && !context_.options.reuse_port;
        for (detail::listener& each : listeners_) {
            // Without descriptors for them, the idle ones go first, and a moment later there are some.
            for (int tries = detail::tries_for_queue; !leaves_queue && tries > 0 && !is_over();) {
                if (accept_one(each, -1)) {
                    tries = detail::tries_for_queue;
                    continue;
                }
                pollfd waits{each.fd(), POLLIN, 0};
                if (::poll(&waits, 1, 0) <= 0) break;
                if (tries-- == detail::tries_for_queue) leave_idle();
                sweep();  // who was answered and does not close holds a descriptor
            }
        }
        const detail::lock_guard held(mutex_);
        for (detail::listener& each : listeners_) has_successor_ ? each.leave() : each.close();
        accepting_ = accepting::no;
        changed_.notify_all();
    }

    // ---- serving ----

    void serve_until_stopped(std::size_t place) {
        active_.enter();
        while (!end_surplus(place)) {
            void* const found = active_.next([&] { return queue_.wait(); }, [&] { wake_.notify(); });
            if (found == nullptr) return;
            connection& which = *static_cast<connection*>(found);
            detail::call_guarded([&] { serve(which); },
                                 [&] {  // the handler ended this thread
                                     active_.leave();
                                     remove(which);
                                     if (!end_surplus(place)) replace_thread(place);
                                 });
        }
    }
    void serve(connection& which) {
        connection::next next = connection::next::close;
        try {
            next = which.go_on();
        } catch (...) {  // out of memory: this connection ends, the server goes on
            detail::pass_on_thread_end();
        }
        if (next == connection::next::close) return remove(which);
        const detail::awaited what = next == connection::next::write  ? detail::awaited::to_write
                                     : next == connection::next::turn ? detail::awaited::either
                                                                      : detail::awaited::to_read;
        if (!which.pass_on([&] { return queue_.watch(which.fd(), &which, what); })) remove(which);
    }
    void remove(connection& which) noexcept {
        which.end();
        queue_.remove(which.fd());
        detail::lock_guard held(mutex_);
        const detail::ref<connection> removed = std::move(connections_[which.place]);
        if (which.place + 1 < connections_.size()) {
            connections_[which.place] = std::move(connections_.back());
            connections_[which.place]->place = which.place;
        }
        connections_.pop_back();
        removed->close();
        const bool was_full = full_;
        full_ = false;
        context_.wants_place.store(false);
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
        context_.draining.store(true);
        time_point end = deadline_after(context_.options.lame_duck);
        // With a successor, who comes anew is its own from the first moment on.
        if (options.has_successor) {
            const time_point least = deadline_after(detail::time_to_hand_over);
            if (end < least) end = least;
            detail::lock_guard held(mutex_);
            has_successor_ = true;
            accepting_ = accepting::last_time;
            held.unlock();
            wake_.notify();
        }
        static_cast<void>(options.hurry.sleep_until(end < options.deadline ? end : options.deadline));

        detail::lock_guard held(mutex_);
        if (accepting_ == accepting::yes) accepting_ = accepting::last_time;
        wake_.notify();
        while (accepting_ != accepting::no) changed_.wait(held);
        context_.refusing.store(true);
        for (const detail::ref<connection>& each : connections_) each->notice_drain();
    }
    bool is_over() const noexcept { return end_.hurry.cancelled() || steady_clock::now() >= end_.deadline; }
    void await_idle(const drain_options& options) {
        // All others may be with handlers, and who comes too late is to be told so.
        detail::lock_guard held(mutex_);
        if (!context_.is_small) static_cast<void>(start_server(threads_.size() - 1));
        held.unlock();
        const cancel_registration hurried = options.hurry.on_cancel([this] { tell_changed(); });
        const time_point late_end = deadline_after(detail::time_for_late);
        held.lock();
        for (;;) {
            const bool in_hand = context_.in_hand.load() > 0;
            if ((!in_hand && context_.late.load() == 0) || options.hurry.cancelled()) return;
            const time_point end = in_hand || options.deadline < late_end ? options.deadline : late_end;
            if (end <= steady_clock::now()) return;
            changed_.wait_until(held, end);
        }
    }
    std::size_t cut() {
        std::size_t out = 0;
        detail::lock_guard held(mutex_);
        for (const detail::ref<connection>& each : connections_) out += each->cut() ? 1U : 0U;
        stopping_ = true;
        const bool none_left = connections_.empty();  // else whoever removes the last one stops the queue
        held.unlock();
        wake_.notify();
        if (none_left) stop_serving();
        return out;
    }
    void tell_changed() noexcept {
        const detail::lock_guard held(mutex_);
        changed_.notify_all();
    }

    const pid_t owner_ = ::getpid();
    detail::draining_context context_;
    std::string address_;
    detail::event_queue queue_;
    detail::active_threads active_;
    detail::wake wake_;  // of the thread that accepts

    detail::mutex drain_mutex_;  // one drain() at a time
    bool drained_ = false;
    drain_result result_;
    drain_options end_;  // of that drain, set before anything is accepted the last time

    mutable detail::mutex mutex_;  // guards what follows
    detail::condition changed_;
    detail::array<detail::listener> listeners_;
    detail::array<detail::ref<connection>> connections_;
    detail::array<detail::thread> threads_;
    detail::thread ended_;
    std::size_t serving_ = 0;  // threads of a small one
    accepting accepting_ = accepting::no;
    bool has_successor_ = false;
    bool full_ = false;
    bool stopping_ = false;
};

OJS_SHUTDOWN_INLINE draining_server::draining_server(detail::ref<impl> body) noexcept
    : impl_(std::move(body)) {}
OJS_SHUTDOWN_INLINE draining_server::draining_server(draining_server&& other) noexcept = default;
OJS_SHUTDOWN_INLINE draining_server& draining_server::operator=(draining_server&& other) noexcept {
    detail::ref<impl> taken = std::move(other.impl_);
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
    detail::ref<impl> body = detail::make_ref<impl>(std::move(handler), std::move(options), is_small);
    const result<void> started = body->start(address);
    if (!started) return started.error();
    return draining_server(std::move(body));
}

OJS_SHUTDOWN_INLINE const std::string& draining_server::address() const noexcept {
    return impl_->address();
}
OJS_SHUTDOWN_INLINE std::uint16_t draining_server::port() const noexcept {
    return impl_->port();
}
OJS_SHUTDOWN_INLINE std::vector<int> draining_server::listeners() const {
    return impl_->listeners();
}
OJS_SHUTDOWN_INLINE bool draining_server::draining() const noexcept {
    return impl_->draining();
}
OJS_SHUTDOWN_INLINE std::size_t draining_server::connections() const {
    return impl_->connections();
}
OJS_SHUTDOWN_INLINE drain_result draining_server::drain(const drain_options& options) {
    return impl_->drain(options);
}

}  // namespace v0_1_0
}  // namespace ojs
