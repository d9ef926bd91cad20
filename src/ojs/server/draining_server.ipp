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
#include "detail/thread_end.ipp"
#include "draining_server.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
inline constexpr std::size_t max_threads = 1024;
inline constexpr int accept_batch_size = 64;
// Times accept_retry_time: longer than a connection lingers before it frees its descriptor.
inline constexpr int max_accept_retries = 60;
// A client that connected before the drain may have sent a request that has not arrived yet.
inline constexpr auto late_request_timeout = std::chrono::milliseconds(100);
// A busy client is disconnected by a response: an idle close could cross its next request.
inline constexpr auto min_handover_time = std::chrono::milliseconds(100);

class server_body final : public ref_counted {
  public:
    server_body(http_handler handler, draining_server_options options, bool thread_per_connection) {
        context.handler = std::move(handler);
        context.options = std::move(options);
        context.thread_per_connection = thread_per_connection;
        context.on_count_zero = [this] { notify_changed(); };
        context.on_earlier_sweep = [this] { wake_.notify(); };
    }
    ~server_body() override {
        drain_options now;
        now.deadline = steady_clock::now();
        if (wake_.fd() >= 0) drain(now);
        join();
    }

    result<void> start(std::string_view where) {
        result<void> started = context.thread_per_connection
                                   ? open_address(where, false, listeners_)
                                   : open_listeners(where, context.options.reuse_port, listeners_);
        if (started) started = start_threads();
        for (listener& each : listeners_) {
            if (!started) each.release_given();
            append(address, {address.empty() ? "" : ",", each.where().name});
        }
        return started;
    }
    // In a child made by fork() the parent's threads do not exist, and one of them may have held a lock.
    void abandon_after_fork() noexcept {
        if (!is_forked()) return;
        retain();  // never destroyed: a condition's destructor waits for its waiters
        if (!mutex_.try_lock()) return;
        for (listener& each : listeners_) each.close_copy();
        for (const ref<connection>& each : connections_) each->close();
    }
    drain_result drain(const drain_options& options) {
        if (is_forked()) return {};
        const unique_lock drain_lock(drain_mutex_);
        if (drained_) return result_;
        drained_ = true;
        run_lame_duck(options);
        await_idle(options);
        result_.aborted = cut();
        result_.answered = context.answered.load();
        result_.refused = context.refused.load();
        return result_;
    }

    // After drain(): waits for the handlers, and ends every thread.
    void join() noexcept {
        if (is_forked()) return;
        const unique_lock drain_lock(drain_mutex_);
        unique_lock held(mutex_);
        for (std::size_t i = 0; i < threads_.size();) {
            thread ending = std::move(threads_[i].joinable() ? threads_[i] : ended_);
            i = ending.joinable() ? 0 : i + 1;  // a thread that its handler ended has started another
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

    // The first thread accepts, the last is for the drain. A small server has one for each connection.
    result<void> start_threads() {
        result<void> opened = queue_.open();
        if (!opened) return opened;
        result<wake> waker = wake::create();
        if (!waker) return waker.error();
        wake_ = std::move(*waker);
        const unique_lock held(mutex_);
        threads_ = array<thread>(context.thread_per_connection ? context.options.max_connections + 1 : 2);
        result<void> started = context.thread_per_connection ? result<void>() : start_serving_threads();
        if (!started) return started;
        accepting_ = accepting::yes;
        result<void> accepts = start_thread(0, "ojs-accept", [this] { accept_until_stopped(); });
        if (!accepts) accepting_ = accepting::no;
        return accepts;
    }
    result<void> start_serving_threads() {
        const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
        const std::size_t processors = online > 1 ? static_cast<std::size_t>(online) : 1;
        const std::size_t usual = processors < 4 ? 8 : processors * 2;
        const std::size_t count = context.options.threads > 0 ? std::min(context.options.threads, max_threads) : usual;
        active_.begin(static_cast<int>(count < processors ? count : processors), static_cast<int>(count + 1));
        threads_ = array<thread>(count + 2);
        for (std::size_t i = 1; i <= count; ++i) {
            result<void> started = start_serving_thread(i);
            if (!started && i == 1) return started;
        }
        return {};
    }
    // The next three need the mutex held.
    result<void> start_serving_thread(std::size_t index) {
        return start_thread(index, "ojs-serve", [this, index] { serve_until_stopped(index); });
    }
    result<void> start_thread(std::size_t index, const char* name, function<void()> body) {
        thread_options options;
        options.name = name;
        options.stack_size = context.options.thread_stack_size;
        result<thread> started = thread::start(std::move(body), options);
        if (!started) return started.error();
        threads_[index] = std::move(*started);
        return {};
    }
    bool ensure_serving_thread() {
        if (!context.thread_per_connection || serving_threads_ > connections_.size()) return true;
        std::size_t index = 1;
        while (index < threads_.size() && threads_[index].joinable()) ++index;
        if (index == threads_.size() || !start_serving_thread(index)) return false;
        ++serving_threads_;
        return true;
    }
    // True: this thread ends, as surplus of a small server or by its handler; it joins the one that ended before it.
    bool end_thread(std::size_t index, bool by_handler = false) {
        if (!context.thread_per_connection && !by_handler) return false;
        thread previous;
        const unique_lock held(mutex_);
        const bool is_surplus = context.thread_per_connection && serving_threads_ > connections_.size();
        if (!is_surplus && !by_handler) return false;
        previous = exchange(ended_, std::move(threads_[index]));
        if (is_surplus) --serving_threads_;
        if (!is_surplus) static_cast<void>(start_serving_thread(index));
        return true;
    }

    void accept_until_stopped() noexcept {
        array<pollfd> waiting(listeners_.size() + 1);
        for (;;) {
            await_connections(waiting);
            if (waiting[0].revents != 0) wake_.clear();
            active_.adjust();
            unique_lock held(mutex_);
            if (stopping_) return;
            const accepting now = accepting_;
            held.unlock();
            if (now == accepting::last_time) finish_accepting();
            for (std::size_t i = 0; now == accepting::yes && i < listeners_.size(); ++i)
                if (waiting[i + 1].revents != 0) accept_from(listeners_[i]);
            if (steady_clock::now() >= context.next_sweep_at.load()) close_overdue();
        }
    }
    void await_connections(array<pollfd>& waiting) noexcept {
        unique_lock held(mutex_);
        const bool accepts = accepting_ == accepting::yes && !full_;
        time_point until = connections_.empty() ? time_point::max() : context.next_sweep_at.load();
        held.unlock();
        if (active_.needs_adjusting()) until = std::min(until, deadline_after(activity_interval));
        waiting[0] = {wake_.fd(), POLLIN, 0};
        for (std::size_t i = 0; i < listeners_.size(); ++i)
            waiting[i + 1] = {accepts ? listeners_[i].fd() : -1, POLLIN, 0};
        ::poll(waiting.begin(), static_cast<nfds_t>(waiting.size()), poll_timeout(until));
    }
    void accept_from(const listener& from) noexcept {
        if (!has_free_slot()) return free_slot();
        for (int i = 0; i < accept_batch_size && has_free_slot() && accept_one(from, wake_.fd()); ++i) continue;
    }
    // False: no client is waiting, or none can be accepted now.
    bool accept_one(const listener& from, int interrupt_fd) noexcept {
        unique_fd socket = accept_socket(from.fd());
        const int failed = socket ? 0 : errno;
        if (is_peer_error(failed)) return true;
        if (failed == EAGAIN) return false;
        try {
            if (socket) return admit(std::move(socket)), true;
        } catch (...) {  // out of memory: treated like being out of descriptors
        }
        // The listener stays readable, so poll would spin. The accept loop clears the wake.
        pollfd interrupted{interrupt_fd, POLLIN, 0};
        ::poll(&interrupted, 1, static_cast<int>(accept_retry_time.count()));
        return false;
    }
    bool has_free_slot() noexcept {
        const unique_lock held(mutex_);
        return connections_.size() < context.options.max_connections;
    }
    // Closes the longest idle connection or the next one to become idle, or cuts the slowest client.
    void free_slot() noexcept {
        const unique_lock held(mutex_);
        if (connections_.size() < context.options.max_connections) return;
        full_ = true;
        for (const ref<connection>& each : connections_) {
            if (!each->is_ending()) continue;
            context.schedule_sweep(deadline_after(overdue_interval));  // its slot is free in a moment
            return;
        }
        connection* done = oldest_waiting(true);
        if (done == nullptr) {
            context.needs_slot.store(true);
            done = oldest_waiting(true);  // one may have become idle before needs_slot was set
            if (done != nullptr && !context.take_slot_request()) done = nullptr;
        }
        connection* const slow = done == nullptr ? oldest_waiting(false) : nullptr;
        const long long waited = slow == nullptr ? 0 : milliseconds_since(slow->waiting_since());
        const auto left = context.options.overload_timeout - std::chrono::milliseconds(waited);
        if (done != nullptr) done->close_when_idle();
        if (slow != nullptr && left.count() <= 0) slow->cut();
        // A busy connection may be idle by then.
        context.schedule_sweep(deadline_after(left.count() > 0 ? std::min(left, overdue_interval) : overdue_interval));
    }
    // The connection that has waited longest, either after its response or for its client; null: none.
    connection* oldest_waiting(bool has_responded) const noexcept {
        connection* out = nullptr;
        time_point since = time_point::max();
        for (const ref<connection>& each : connections_) {
            if (each->has_responded() != has_responded || each->waiting_since() >= since) continue;
            if ((each->is_idle() || !has_responded) && each->has_progress()) continue;
            out = each.get();
            since = each->waiting_since();
        }
        return out;
    }
    void admit(unique_fd socket) {
        const ref<connection> admitted = make_ref<connection>(std::move(socket), context);
        const unique_lock held(mutex_);  // a thread that receives its event finds it listed
        if (!ensure_serving_thread()) return admitted->reject();
        admitted->index = connections_.size();
        connections_.push_back(admitted);
        context.schedule_sweep(deadline_after(context.options.idle_timeout));
        if (!queue_.add(admitted->fd(), admitted.get())) connections_.pop_back();
    }
    void close_overdue() noexcept {
        const time_point now = steady_clock::now();
        context.next_sweep_at.store(time_point::max());  // before the deadlines are read
        const unique_lock held(mutex_);
        full_ = false;  // connections that were busy may be idle by now
        context.needs_slot.store(false);
        for (const ref<connection>& each : connections_) context.schedule_sweep(each->end_if_overdue(now));
    }
    void drain_idle_connections() noexcept {
        const unique_lock held(mutex_);
        for (const ref<connection>& each : connections_) {
            if (each->has_received()) each->on_drain();
        }
    }
    // Closing resets queued clients. A successor shares the queue, unless each process has its own (SO_REUSEPORT).
    void finish_accepting() noexcept {
        const bool leaves_queue = drain_.has_successor && !context.options.reuse_port;
        for (listener& each : listeners_) {
            // Out of descriptors: idle connections are closed first, which frees some a moment later.
            for (int tries = max_accept_retries; !leaves_queue && tries > 0 && !is_over();) {
                if (accept_one(each, -1)) {
                    tries = max_accept_retries;
                    continue;
                }
                pollfd waits{each.fd(), POLLIN, 0};
                if (::poll(&waits, 1, 0) <= 0) break;
                --tries;
                drain_idle_connections();  // each time: one may have become idle since
                close_overdue();           // an answered client that does not close holds a descriptor
            }
        }
        const unique_lock held(mutex_);
        for (listener& each : listeners_) drain_.has_successor ? each.close_copy() : each.close();
        accepting_ = accepting::no;
        changed_.notify_all();
    }

    void serve_until_stopped(std::size_t index) {
        lent_memory lent;
        active_.enter();
        while (!end_thread(index)) {
            void* const found = active_.next([&] { return queue_.wait(); }, [&] { wake_.notify(); });
            if (found == nullptr) return;
            connection& served = *static_cast<connection*>(found);
            call_guarded([&] { serve(served, lent); },
                         [&] {  // the handler ended this thread
                             active_.leave();
                             remove(served);
                             end_thread(index, true);
                         });
        }
    }
    // Handles one readiness event, then watches the connection for the next or removes it.
    void serve(connection& served, lent_memory& lent) {
        connection::next next = connection::next::close;
        try {
            next = served.on_ready(lent);
        } catch (...) {  // out of memory: only this connection ends
            rethrow_thread_exit();
        }
        if (next == connection::next::close) return remove(served);
        const auto events = static_cast<short>(next);
        if (!served.hand_over([&] { return queue_.watch(served.fd(), &served, events); })) remove(served);
    }
    void remove(connection& served) noexcept {
        served.on_closed();
        queue_.remove(served.fd());
        unique_lock held(mutex_);
        const ref<connection> removed = std::move(connections_[served.index]);
        if (served.index + 1 < connections_.size()) {
            connections_[served.index] = std::move(connections_.back());
            connections_[served.index]->index = served.index;
        }
        connections_.pop_back();
        removed->close();
        const bool was_full = full_;
        full_ = false;
        context.needs_slot.store(false);
        const bool was_last = stopping_ && connections_.empty();
        held.unlock();
        if (was_full) wake_.notify();
        if (was_last) stop_serving();
    }
    void stop_serving() noexcept {
        queue_.stop();
        active_.stop();
    }

    // Then accepts no more, and closes idle connections.
    void run_lame_duck(const drain_options& options) {
        drain_ = options;
        context.draining.store(true);
        time_point end = deadline_after(context.options.lame_duck);
        if (options.has_successor) {  // it accepts new clients from now on
            end = std::max(end, deadline_after(min_handover_time));
            request_last_accept();
        }
        static_cast<void>(options.abort.sleep_until(std::min(end, options.deadline)));
        request_last_accept();
        unique_lock held(mutex_);
        while (accepting_ != accepting::no) changed_.wait(held);
        context.refusing.store(true);
        for (const ref<connection>& each : connections_) each->on_drain();
    }
    void request_last_accept() noexcept {
        const unique_lock held(mutex_);
        if (accepting_ == accepting::yes) accepting_ = accepting::last_time;
        wake_.notify();
    }
    bool is_over() const noexcept { return drain_.abort.cancelled() || steady_clock::now() >= drain_.deadline; }
    void await_idle(const drain_options& options) {
        // All other threads may run handlers; late clients still need a 503.
        unique_lock held(mutex_);
        if (!context.thread_per_connection) static_cast<void>(start_serving_thread(threads_.size() - 1));
        held.unlock();
        const cancel_registration aborted = options.abort.on_cancel([this] { notify_changed(); });
        const time_point late_end = deadline_after(late_request_timeout);
        held.lock();
        for (;;) {
            const bool in_flight_connections = context.in_flight_connections.load() > 0;
            if ((!in_flight_connections && context.late.load() == 0) || options.abort.cancelled()) return;
            const time_point end = in_flight_connections ? options.deadline : std::min(options.deadline, late_end);
            if (end <= steady_clock::now()) return;
            changed_.wait_until(held, end);
        }
    }
    std::size_t cut() {
        std::size_t out = 0;
        unique_lock held(mutex_);
        for (const ref<connection>& each : connections_) out += each->cut() ? 1U : 0U;
        stopping_ = true;
        const bool none_left = connections_.empty();  // else remove() of the last one stops the queue
        held.unlock();
        wake_.notify();
        if (none_left) stop_serving();
        return out;
    }
    void notify_changed() noexcept {
        const unique_lock held(mutex_);
        changed_.notify_all();
    }

    const pid_t owner_ = ::getpid();
    event_queue queue_;
    active_threads active_;
    wake wake_;  // for the accepting thread

    mutex drain_mutex_;  // one drain() at a time
    bool drained_ = false;
    drain_result result_;
    drain_options drain_;  // set before the last accept

    mutable mutex mutex_;  // guards what follows
    condition changed_;
    array<listener> listeners_;
    array<ref<connection>> connections_;
    array<thread> threads_;
    thread ended_;
    std::size_t serving_threads_ = 0;  // of a small server
    accepting accepting_ = accepting::no;
    bool full_ = false;
    bool stopping_ = false;
};
}  // namespace detail

OJS_SHUTDOWN_INLINE result<std::chrono::milliseconds> server_shutdown_timeout(const environment_lookup& lookup) {
    constexpr const char* name = "OJS_SERVER_SHUTDOWN_TIMEOUT";
    const char* const value = detail::find_variable(lookup, name);
    if (value == nullptr) return std::chrono::milliseconds(30000);
    result<std::chrono::milliseconds> read = parse_duration(value);
    if (read) return read;
    return error{errc::invalid_argument, 0, detail::cat({name, "=", read.error().text})};
}

OJS_SHUTDOWN_INLINE draining_server::draining_server(detail::ref<detail::server_body> body) noexcept
    : impl_(std::move(body)) {}
OJS_SHUTDOWN_INLINE draining_server::draining_server(draining_server&& other) noexcept
    : impl_(std::move(other.impl_)) {}
OJS_SHUTDOWN_INLINE draining_server& draining_server::operator=(draining_server&& other) noexcept {
    detail::ref<detail::server_body> taken = std::move(other.impl_);
    const draining_server ended(std::move(*this));
    impl_ = std::move(taken);
    return *this;
}
OJS_SHUTDOWN_INLINE draining_server::~draining_server() {
    if (impl_) impl_->abandon_after_fork();
}

OJS_SHUTDOWN_INLINE result<draining_server> draining_server::start(std::string_view address, http_handler handler,
                                                                   draining_server_options options) {
    return start(address, std::move(handler), std::move(options), false);
}
OJS_SHUTDOWN_INLINE result<draining_server> draining_server::start(std::string_view address, http_handler handler,
                                                                   draining_server_options options,
                                                                   bool thread_per_connection) {
    if (!handler) return error{errc::invalid_argument, 0, "HTTP server: the handler is empty"};
    if (options.max_connections == 0) return error{errc::invalid_argument, 0, "HTTP server: max_connections is 0"};
    detail::ref<detail::server_body> body =
        detail::make_ref<detail::server_body>(std::move(handler), std::move(options), thread_per_connection);
    const result<void> started = body->start(address);
    if (!started) return started.error();
    return draining_server(std::move(body));
}

OJS_SHUTDOWN_INLINE const std::string& draining_server::address() const noexcept { return impl_->address; }
OJS_SHUTDOWN_INLINE std::uint16_t draining_server::port() const noexcept { return impl_->port(); }
OJS_SHUTDOWN_INLINE std::vector<int> draining_server::listeners() const { return impl_->listeners(); }
OJS_SHUTDOWN_INLINE bool draining_server::draining() const noexcept { return impl_->context.draining.load(); }
OJS_SHUTDOWN_INLINE std::size_t draining_server::connections() const { return impl_->connections(); }
OJS_SHUTDOWN_INLINE drain_result draining_server::drain(const drain_options& options) { return impl_->drain(options); }
OJS_SHUTDOWN_INLINE void draining_server::join() noexcept { impl_->join(); }
}  // namespace v0_1_0
}  // namespace ojs
