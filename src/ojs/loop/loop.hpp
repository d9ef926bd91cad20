// loop: consumers of any queue, stopped as a worker is.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "../core/cancel_token.hpp"
#include "../core/lifecycle.hpp"
#include "../stop/loop_options.hpp"
#include "../stop/stoppable.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
class loop_core;
struct loop_item;
}  // namespace detail

/// An item in flight, or none: the log names it and the stop waits for it, until end() or the end of its scope. It may
/// outlive its loop. Used by one thread at a time.
class [[nodiscard]] item {
  public:
    item() = default;
    item(item&& other) noexcept = default;
    item& operator=(item other) noexcept {
        detail::swap(entry_, other.entry_);
        return *this;
    }
    ~item() { end(); }

    /// Cancelled at the end of the grace period, by a second stop signal, or because on_renew() has lost the item
    /// (cancel_reason::revoked): requeue the item. Never for none.
    cancel_token token() const noexcept;
    /// Ends the item: settled, or requeued if its token was seen cancelled. Idempotent.
    void end() noexcept;

  private:
    friend class detail::loop_core;
    explicit item(detail::ref<detail::loop_item> entry) noexcept : entry_(std::move(entry)) {}
    detail::ref<detail::loop_item> entry_;
};

/// One thread of loop::add_consumers(), and used by it alone.
class consumer {
  public:
    /// Whether to take the next item; waits while the loop is quiet. False: return.
    [[nodiscard]] bool next() { return await_turn(time_point::max()) == turn::take; }
    /// The same, and calls `keep_alive()` each second meanwhile: for clients that leave their group, or lose their
    /// connection, if they are not polled (Kafka, AMQP).
    template <class KeepAlive>
    [[nodiscard]] bool next(KeepAlive&& keep_alive) {
        turn now = turn::wait;
        while ((now = await_turn(deadline_after(std::chrono::seconds(1)))) == turn::wait) keep_alive();
        return now == turn::take;
    }
    /// Cancelled as soon as no item may be taken: ends the wait for one. An item that comes nevertheless may still be
    /// processed.
    cancel_token intake_token() const;
    /// The item is in flight. `id` is for the log and on_renew().
    item begin(std::string id);
    std::size_t index() const noexcept { return index_; }  ///< 0, 1, ... among the loop's threads

  private:
    friend class detail::loop_core;
    enum class turn { take, wait, end };
    consumer(detail::loop_core& loop, std::size_t index) noexcept : loop_(loop), index_(index) {}
    turn await_turn(time_point deadline);
    detail::loop_core& loop_;
    const std::size_t index_;
    bool takes_ = false;  // but while it waits in next()
};

/// A loop of your own that stops as a worker does: its event table, times, termination-mode file, log lines and exit
/// statuses hold, for items of any queue. Construct it in the first line of main: a stop signal during start-up is kept.
/// Several may follow one lifecycle. run() and advance() report invalid options. The destructor ends a loop that has
/// begun, and restores the signals.
///
///     ojs::loop loop;
///     loop.add_consumers(8, [](ojs::consumer& consumer) {
///         my_queue queue("...");  // of this thread
///         while (consumer.next()) {
///             const auto message = queue.take(consumer.intake_token());
///             if (!message) continue;
///             const ojs::item item = consumer.begin(message->id);
///             process(*message, item.token()) ? queue.done(*message) : queue.hand_back(*message);
///         }
///     });
///     return loop.run();
class loop : public stoppable {
  public:
    loop() : loop(loop_options::from_environment(), nullptr) {}  ///< reads the environment
    explicit loop(loop_options options) : loop(result<loop_options>(std::move(options)), nullptr) {}
    loop(loop_options options, lifecycle& shared) : loop(result<loop_options>(std::move(options)), &shared) {}
    ~loop();

    /// run() calls `body(consumer&)` on `count` threads (0: loop_options::concurrency). The loop stops when all have
    /// returned, or one has thrown: run() then returns 70, and its items are unreported. False after the start.
    bool add_consumers(std::size_t count, function<void(consumer&)> body);
    /// Extends leases: calls `renew` every `interval` (min 1 ms), on its own thread, with the ids in flight. It returns
    /// the lost ones: their tokens are cancelled. False after the start.
    bool on_renew(detail::any_ms interval,
                  function<std::vector<std::string>(const std::vector<std::string>& ids)> renew);

    /// Works until stopped, and returns main's exit status: 0 if all items and threads have ended. If a thread has not,
    /// run() calls _exit() with 75. A third stop signal ends the process at once, with 128+n.
    [[nodiscard]] int run();

    /// Instead of run() and add_consumers(), in an event loop of your own: call it first, when fd() is readable, and at
    /// deadline(). Never blocks. False: the loop has ended; return exit_code(). One thread.
    bool advance();
    int fd() const noexcept;               ///< readable when advance() is due
    time_point deadline() const noexcept;  ///< time_point::max(): none
    // This and the rest is thread-safe.
    bool accepting() const noexcept;    ///< false: quiet, or it stops
    cancel_token intake_token() const;  ///< cancelled as soon as accepting() is false; a new one after a resume
    item begin(std::string id);         ///< puts an item in flight
    std::size_t active_items() const;   ///< those in flight

  private:
    loop(result<loop_options> options, lifecycle* shared);
    detail::ref<detail::loop_core> core_;
};
}  // namespace v0_1_0
}  // namespace ojs
