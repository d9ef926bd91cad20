// The disk of a state file, which hangs, fails or works as a test says. One at a time.
#pragma once
#include "test.hpp"

#if !OJS_SHUTDOWN_SEPARATE

namespace test {

class faulty_disk {
  public:
    static constexpr int hangs = -1;

    faulty_disk() { current = this; }
    faulty_disk(const faulty_disk&) = delete;
    faulty_disk& operator=(const faulty_disk&) = delete;
    ~faulty_disk() {
        set(0);
        std::unique_lock<std::mutex> held(mutex_);
        while (busy_ > 0) changed_.wait(held);
        current = nullptr;
    }

    // 0, hangs, or the errno of each write.
    void set(int fault) {
        const std::lock_guard<std::mutex> held(mutex_);
        fault_ = fault;
        changed_.notify_all();
    }
    void await_hanging() {
        std::unique_lock<std::mutex> held(mutex_);
        while (busy_ == 0) changed_.wait(held);
    }
    static int replace(const std::string& path, std::string_view text) {
        faulty_disk* const disk = current;
        const int fault = disk != nullptr ? disk->enter() : 0;
        const int failed = fault != 0 ? fault : ojs::detail::replace_file(path, text);
        if (disk != nullptr) disk->leave();
        return failed;
    }

  private:
    int enter() {
        std::unique_lock<std::mutex> held(mutex_);
        ++busy_;
        changed_.notify_all();
        while (fault_ == hangs) changed_.wait(held);
        return fault_;
    }
    void leave() {
        const std::lock_guard<std::mutex> held(mutex_);
        --busy_;
        changed_.notify_all();
    }

    static inline std::atomic<faulty_disk*> current{nullptr};
    std::mutex mutex_;
    std::condition_variable changed_;
    int fault_ = 0;
    int busy_ = 0;
};

}  // namespace test
#endif
