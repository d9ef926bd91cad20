// fetch_period: what ends a FETCH that waits for jobs.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../core/cancel_token.hpp"

namespace ojs::detail {

// While jobs may be fetched: it ends with the next quiet.
struct fetch_period : ref_counted {
    cancel_source source;
};

// The token of the current period. Thread-safe.
class fetch_periods {
  public:
    explicit fetch_periods(mutex& guard) : guard_(guard) {}

    cancel_token token() const { return current_->source.token(); }  // with the guard held
    // Called after each change of phase. Returns the period whose callbacks are then to be called, if one has ended.
    ref<fetch_period> update(bool may_fetch) {
        ref<fetch_period> next;
        if (may_fetch) retry_allocation([&] { next = make_ref<fetch_period>(); });
        const unique_lock held(guard_);
        if (next && current_->source.requested()) swap(current_, next);
        if (may_fetch || !current_->source.request(cancel_reason::cancelled)) return {};
        return current_;
    }

  private:
    mutex& guard_;
    ref<fetch_period> current_ = make_ref<fetch_period>();
};

}  // namespace ojs::detail
