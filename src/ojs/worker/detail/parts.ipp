// part_list: the parts of one worker, from its start to its last thread.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../worker_part.hpp"

namespace ojs::detail {

// start() and stop() are of one thread, while no other knows of the parts yet, or no longer by promise.
class part_list {
  public:
    part_list() = default;
    part_list(const part_list&) = delete;
    part_list& operator=(const part_list&) = delete;
    ~part_list() { clear(); }

    // The first error; stop() is then for the caller.
    result<void> start(const worker_parts& wanted, const running_worker_ref& worker) {
        clear();  // of a start that failed
        for (const worker_part_factory& each : wanted.factories()) {
            const result<void> started = start_one(each, worker);
            if (!started) return started;
        }
        return {};
    }
    // False: all are stopped. What stop() throws is for the caller, who then goes on with the next.
    bool stop_next(time_point deadline) {
        if (running_ > 0) parts_[--running_]->stop(deadline);
        return running_ > 0;
    }

    bool empty() const noexcept { return parts_.empty(); }
    worker_part* const* begin() const noexcept { return parts_.begin(); }
    worker_part* const* end() const noexcept { return parts_.end(); }

  private:
    void clear() noexcept {
        for (worker_part* each : parts_) delete each;
        parts_.clear();
    }
    result<void> start_one(const worker_part_factory& factory, const running_worker_ref& worker) {
        parts_.reserve_one();
        worker_part* const made = factory.make ? factory.make() : nullptr;
        if (made == nullptr)
            return error{errc::invalid_argument, 0, cat({"worker part '", factory.name, "' cannot be made"})};
        parts_.push_back(made);
        ++running_;
        try {
            return made->start(worker);
        } catch (...) {
            pass_on_thread_end();
            return error{errc::invalid_argument, 0,
                         cat({"worker part '", factory.name, "' threw in start()"})};
        }
    }

    array<worker_part*> parts_;
    std::size_t running_ = 0;  // of them, those that were not stopped
};

}  // namespace ojs::detail
