// unknown_types: how long jobs of types without a handler are held before they are handed back.
#pragma once

#include "../../base/detail/array.hpp"
#include "../../base/detail/sync.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Thread-safe. All jobs of a type go back together, after a back-off that doubles from 100 ms to 5 s: their number does not
// make FETCHes more frequent. Remembers 64 types; all others share the back-off of the last.
class unknown_types {
  public:
    struct turn {
        time_point hand_back_at;
        bool is_first = false;  // of its type
    };
    turn next(const std::string& type, time_point now) {
        const lock_guard held(mutex_);
        std::size_t i = 0;
        while (i < entries_.size() && entries_[i].type != type && i + 1 < max_types) ++i;
        const bool is_first = i == entries_.size();
        if (is_first) entries_.push_back({type, now, {}});
        entry& found = entries_[i];
        if (now >= found.hand_back_at + max_pause) found.pause = {};
        if (now >= found.hand_back_at) {
            found.pause = found.pause < min_pause       ? min_pause
                          : found.pause * 2 < max_pause ? found.pause * 2
                                                        : max_pause;
            found.hand_back_at = now + found.pause;
        }
        return {found.hand_back_at, is_first};
    }

  private:
    struct entry {
        std::string type;
        time_point hand_back_at;
        std::chrono::milliseconds pause{0};
    };
    static constexpr std::size_t max_types = 64;
    static constexpr std::chrono::milliseconds min_pause{100};
    static constexpr std::chrono::milliseconds max_pause{5000};

    mutex mutex_;
    array<entry> entries_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
