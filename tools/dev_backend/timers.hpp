// timers: jobs or workers in the order of their `due`.
#pragma once
#include <set>
#include <utility>

#include "job.hpp"

namespace dev_backend {
template <class Timed>
class timers {
  public:
    void set(Timed& timed, ojs::time_point when) {
        if (timed.due != never) all_.erase({timed.due, &timed});
        timed.due = when;
        if (when != never) all_.insert({when, &timed});
    }
    // The first that is due by `now`; null: none.
    Timed* find_due(ojs::time_point now) const { return next() <= now ? all_.begin()->second : nullptr; }
    ojs::time_point next() const { return all_.empty() ? never : all_.begin()->first; }
    void clear() { all_.clear(); }

  private:
    std::set<std::pair<ojs::time_point, Timed*>> all_;
};
}  // namespace dev_backend
