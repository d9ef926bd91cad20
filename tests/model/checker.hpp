// A small model checker: every interleaving of a few threads, and every value that a load may return on a processor with a
// weaker memory than x86. Not the atomics of the library but those of this file are under the code that is tested.
// Each atomic keeps all values it ever had, and each thread the oldest of them it may still read. A load returns any from
// that one on; acquire takes over what the releasing thread knew; what is sequentially consistent finds at least the last
// sequentially consistent write before it. Writes are not made before earlier loads, as no processor we know of does here.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <vector>

// The library's memory orders. Its atomic gets another name, so that the one below can take its place.
#define atomic replaced_atomic
#include "ojs/base/detail/light.hpp"
#undef atomic

#include "ojs/base/error.hpp"

namespace model {
using ojs::detail::memory_order;

using view = std::array<std::uint16_t, 160>;  // for each atomic, the oldest value that may be read

class checker {
  public:
    struct message {
        std::uint64_t value;
        view known;  // to threads that acquire it
    };

    // ---- for the atomics ----

    std::size_t add(std::uint64_t value) {
        if (places_.size() == view().size()) std::abort();  // more atomics than a view has
        places_.push_back({{{value, {}}}, 0});
        return places_.size() - 1;
    }
    std::uint64_t load(std::size_t at, memory_order order) {
        step(at);
        place& from = places_[at];
        const std::size_t last = from.values.size() - 1;
        std::size_t read = last;
        if (follows(at)) {
            std::size_t oldest = running_->knows[at];
            if (order == memory_order::seq_cst) oldest = std::max(oldest, from.last_consistent);
            read = oldest + choose(last - oldest + 1);
            raise(running_->knows, at, read);
            if (order != memory_order::relaxed) join(running_->knows, from.values[read].known);
        }
        return from.values[read].value;
    }
    void store(std::size_t at, std::uint64_t value, memory_order order) {
        step(at);
        write(at, value, order, {});
    }
    // `change` makes the new value of the last one, or says that there is none.
    template <class Change>
    std::uint64_t modify(std::size_t at, memory_order order, Change change) {
        step(at);
        const message before = places_[at].values.back();
        const bool acquires = order != memory_order::relaxed && order != memory_order::release;
        if (running_ != nullptr && acquires) join(running_->knows, before.known);
        if (running_ != nullptr) raise(running_->knows, at, places_[at].values.size() - 1);
        std::uint64_t value = before.value;
        if (change(value)) write(at, value, order, before.known);
        return before.value;
    }
    // Until another thread has written; a spinning thread sees everything in the end.
    void yield() {
        if (running_ == nullptr) return;
        running_->waits_for = writes_ + 1;
        pass_on();
        for (std::size_t at = 0; at < places_.size(); ++at) raise(running_->knows, at, places_[at].values.size() - 1);
    }

    // ---- for the tests ----

    // Calls these members of a new Scenario, each on a thread, in every way there is. Returns in how many it went wrong.
    template <class Scenario>
    long explore(const char* name, std::initializer_list<void (Scenario::*)()> members) {
        const auto bodies = [&](Scenario& scenario) {
            std::vector<std::function<void()>> out;
            for (const auto member : members) out.push_back([&scenario, member] { (scenario.*member)(); });
            return out;
        };
        followed_.clear();
        for (const bool backwards : {false, true}) {  // which atomics are written at all
            begin();
            Scenario scenario;
            run_in_turn(bodies(scenario), backwards);
            note_written();
        }
        long runs = 0;
        long wrong = 0;
        plan_.clear();
        do {
            begin();
            Scenario scenario;
            run(bodies(scenario));
            ++runs;
            if (scenario.is_wrong()) ++wrong;
        } while (next_plan());
        std::printf("%-60s %8ld executions, %ld wrong\n", name, runs, wrong);
        return wrong;
    }

  private:
    struct place {
        std::vector<message> values;
        std::size_t last_consistent;
    };
    struct thread {
        std::function<void()> body;
        std::vector<char> stack = std::vector<char>(256 * 1024);
        ucontext_t context{};
        view knows{};
        std::uint64_t waits_for = 0;  // writes
        bool done = true;
    };

    bool follows(std::size_t at) const { return running_ != nullptr && at < followed_.size() && followed_[at]; }
    static void raise(view& of, std::size_t at, std::size_t to) {
        of[at] = std::max(of[at], static_cast<std::uint16_t>(to));
    }
    static void join(view& of, const view& other) {
        for (std::size_t at = 0; at < of.size(); ++at) of[at] = std::max(of[at], other[at]);
    }
    void write(std::size_t at, std::uint64_t value, memory_order order, view known) {
        place& to = places_[at];
        const std::size_t number = to.values.size();
        if (running_ != nullptr) {
            raise(running_->knows, at, number);
            const bool releases = order != memory_order::relaxed && order != memory_order::acquire;
            if (releases) join(known, running_->knows);
        }
        raise(known, at, number);
        to.values.push_back({value, known});
        if (order == memory_order::seq_cst) to.last_consistent = number;
        ++writes_;
    }

    // Another thread may come first.
    void step(std::size_t at) {
        if (follows(at)) pass_on();
    }
    void pass_on() {
        thread* const self = running_;
        running_ = next_thread();
        if (running_ != self) swapcontext(&self->context, running_ ? &running_->context : &scheduler_);
    }
    // Null where all have ended.
    thread* next_thread() {
        const auto runs = [](const thread& each) { return !each.done; };
        const auto is_ready = [&](const thread& each) { return !each.done && each.waits_for <= writes_; };
        auto ready = std::count_if(threads_.begin(), threads_.end(), is_ready);
        const bool all_wait = ready == 0;
        if (all_wait) ready = std::count_if(threads_.begin(), threads_.end(), runs);
        if (ready == 0) return nullptr;
        auto left = choose(static_cast<std::size_t>(ready));
        return &*std::find_if(threads_.begin(), threads_.end(), [&](const thread& each) {
            return (all_wait ? runs(each) : is_ready(each)) && left-- == 0;
        });
    }

    std::size_t choose(std::size_t among) {
        if (among < 2) return 0;
        if (next_ == plan_.size()) plan_.push_back({0, among});
        return plan_[next_++].first;
    }
    bool next_plan() {
        while (!plan_.empty() && plan_.back().first + 1 == plan_.back().second) plan_.pop_back();
        if (plan_.empty()) return false;
        ++plan_.back().first;
        return true;
    }

    void begin() {
        places_.clear();
        next_ = 0;
        writes_ = 0;
    }
    void note_written() {
        followed_.resize(places_.size());
        for (std::size_t at = 0; at < places_.size(); ++at)
            followed_[at] = followed_[at] || places_[at].values.size() > 1;
    }
    void run_in_turn(const std::vector<std::function<void()>>& bodies, bool backwards) {
        for (place& each : places_) each.values.erase(each.values.begin(), each.values.end() - 1);
        for (std::size_t i = 0; i < bodies.size(); ++i) bodies[backwards ? bodies.size() - 1 - i : i]();
    }

    static void enter(unsigned high, unsigned low) {
        const auto bits = static_cast<std::uint64_t>(high) << 32 | low;
        auto* self = reinterpret_cast<checker*>(bits);
        self->running_->body();
        self->running_->done = true;
        self->pass_on();
    }

    void run(const std::vector<std::function<void()>>& bodies) {
        view all{};
        for (std::size_t at = 0; at < places_.size(); ++at) raise(all, at, places_[at].values.size() - 1);
        if (threads_.size() < bodies.size()) threads_.resize(bodies.size());
        for (std::size_t i = 0; i < bodies.size(); ++i) prepare(threads_[i], bodies[i], all);
        running_ = next_thread();
        swapcontext(&scheduler_, &running_->context);
    }
    void prepare(thread& out, const std::function<void()>& body, const view& knows) {
        out.body = body;
        out.knows = knows;
        out.waits_for = 0;
        out.done = false;
        getcontext(&out.context);
        out.context.uc_stack.ss_sp = out.stack.data();
        out.context.uc_stack.ss_size = out.stack.size();
        out.context.uc_link = nullptr;
        const auto self = reinterpret_cast<std::uint64_t>(this);
        makecontext(&out.context, reinterpret_cast<void (*)()>(&enter), 2, static_cast<unsigned>(self >> 32),
                    static_cast<unsigned>(self));
    }

    std::vector<place> places_;
    std::vector<bool> followed_;  // the atomics that somebody writes; the others hold one value
    std::vector<thread> threads_;
    std::vector<std::pair<std::size_t, std::size_t>> plan_;  // each choice, and among how many
    std::size_t next_ = 0;
    std::uint64_t writes_ = 0;
    thread* running_ = nullptr;
    ucontext_t scheduler_{};
};

inline checker& the_checker() {
    static checker one;
    return one;
}

template <class T>
class atomic {
  public:
    static constexpr bool is_always_lock_free = true;
    using order = memory_order;

    atomic(T value = T()) : place_(the_checker().add(pack(value))) {}
    atomic(const atomic&) = delete;
    atomic& operator=(const atomic&) = delete;

    T load(order how = memory_order::seq_cst) const { return unpack(the_checker().load(place_, how)); }
    void store(T value, order how = memory_order::seq_cst) { the_checker().store(place_, pack(value), how); }
    operator T() const { return load(); }
    T operator=(T value) {
        store(value);
        return value;
    }
    T fetch_add(T by, order how = memory_order::seq_cst) {
        return change(how, [by](T before) { return static_cast<T>(before + by); });
    }
    T fetch_sub(T by, order how = memory_order::seq_cst) {
        return change(how, [by](T before) { return static_cast<T>(before - by); });
    }
    T exchange(T value, order how = memory_order::seq_cst) {
        return change(how, [value](T) { return value; });
    }
    bool compare_exchange_strong(T& expected, T desired, order success = memory_order::seq_cst) {
        bool changed = false;
        const T before = unpack(the_checker().modify(place_, success, [&](std::uint64_t& value) {
            changed = value == pack(expected);
            if (changed) value = pack(desired);
            return changed;
        }));
        if (!changed) expected = before;
        return changed;
    }

  private:
    static std::uint64_t pack(T value) {
        std::uint64_t out = 0;
        std::memcpy(&out, &value, sizeof value);
        return out;
    }
    static T unpack(std::uint64_t bits) {
        T out;
        std::memcpy(&out, &bits, sizeof out);
        return out;
    }
    template <class Change>
    T change(order how, Change make) {
        return unpack(the_checker().modify(place_, how, [&](std::uint64_t& value) {
            value = pack(make(unpack(value)));
            return true;
        }));
    }
    const std::size_t place_;
};
}  // namespace model
