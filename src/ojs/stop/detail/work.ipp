// work: what is in flight: an item of a loop, a job of a worker.
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../base/detail/text.hpp"
#include "../../core/cancel_token.ipp"
#include "../job.hpp"

namespace ojs::detail {

struct work : ref_counted {
    work(ojs::job&& claimed, split_source source, time_point claimed_at = steady_clock::now())
        : job(std::move(claimed)), cancel(std::move(source)), since(claimed_at) {}

    // When its cancellation began, alone or with all others, which are cancelled at `all`. The machine's mutex is held.
    time_point cancelled_since(time_point all) const noexcept { return detail::min(cancelled_at, all); }

    const ojs::job job;  // of an item: id and queue
    split_source cancel;
    const time_point since;
    // Guarded by the machine's mutex.
    time_point cancelled_at = never;  // alone
    bool is_over = false;             // in the account: nothing waits for it any more
    bool is_stuck = false;            // has ignored its cancellation, and is logged as such
};
using work_list = array<ref<work>>;

inline void remove_work(work_list& list, const work& gone) noexcept {
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].get() == &gone) return list.remove(i);
    }
}
inline std::vector<std::string> ids_of(const work_list& list) {
    std::vector<std::string> out;
    for (const ref<work>& each : list) out.push_back(each->job.id);
    return out;
}
inline std::string join_names(const std::vector<std::string>& names, std::size_t max = 20) {
    std::string out;
    for (std::size_t i = 0; i < names.size() && i < max; ++i) append(out, {i == 0 ? "" : ",", printable(names[i], 80)});
    return names.size() > max ? cat({out, ",... ", names.size() - max, " more"}) : out;
}

}  // namespace ojs::detail
