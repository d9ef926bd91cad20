// What forces an ordering: one thread sets or counts, others wait for that.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace test {
// Only a hang ever takes this long, also beside a hundred busy threads.
inline constexpr std::chrono::seconds hang_guard{120};

// Counts up; waited for by anyone. False: the hang guard, or the deadline, ended the wait.
class counter {
  public:
    int add(int by = 1) {
        const std::lock_guard<std::mutex> held(mutex_);
        count_ += by;
        highest_ = std::max(highest_, count_);
        changed_.notify_all();
        return count_;
    }
    int count() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return count_;
    }
    int highest() const {
        const std::lock_guard<std::mutex> held(mutex_);
        return highest_;
    }
    bool wait_for(int target) const { return wait_until(target, std::chrono::steady_clock::now() + hang_guard); }
    bool wait_until(int target, std::chrono::steady_clock::time_point deadline) const {
        std::unique_lock<std::mutex> held(mutex_);
        return changed_.wait_until(held, deadline, [&] { return count_ >= target; });
    }

  private:
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    int count_ = 0;
    int highest_ = 0;
};

// Set once; waited for by anyone.
class event {
  public:
    void set() { sets_.add(); }
    bool is_set() const { return sets_.count() > 0; }
    bool wait() const { return sets_.wait_for(1); }
    bool wait_until(std::chrono::steady_clock::time_point deadline) const { return sets_.wait_until(1, deadline); }

  private:
    counter sets_;
};

// Looks every few milliseconds until holds(): for what no event announces. False: the limit is over.
template <class Condition>
bool eventually(Condition holds, std::chrono::milliseconds limit = hang_guard) {
    const auto end = std::chrono::steady_clock::now() + limit;
    for (std::chrono::milliseconds pause{1}; !holds(); pause = std::min(pause * 2, std::chrono::milliseconds(8))) {
        if (std::chrono::steady_clock::now() >= end) return holds();
        std::this_thread::sleep_for(pause);
    }
    return true;
}

// Runs body(0), body(1), ... on threads of their own that begin together; returns when all of them have ended.
template <class Body>
void at_once(int count, Body body) {
    std::atomic<int> missing{count};
    std::vector<std::thread> threads;
    for (int number = 0; number < count; ++number) {
        threads.emplace_back([&missing, &body, number] {
            --missing;
            while (missing > 0) std::this_thread::yield();
            body(number);
        });
    }
    for (std::thread& each : threads) each.join();
}
}  // namespace test
