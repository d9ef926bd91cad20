#include "faults.hpp"

#include <algorithm>

#include "read_number.hpp"

namespace dev_backend {

std::optional<fault_rates> parse_faults(std::string_view text) {
    fault_rates rates{};
    while (!text.empty()) {
        const std::string_view item = text.substr(0, text.find(','));
        const std::string_view kind = item.substr(0, item.find(':'));
        const auto* known = std::find(fault_kinds.begin(), fault_kinds.end(), kind);
        if (known == fault_kinds.end() || kind.size() == item.size()) return std::nullopt;
        std::uint64_t& rate = rates[static_cast<std::size_t>(known - fault_kinds.begin())];
        if (!read_number(item.substr(kind.size() + 1), 1000, rate)) return std::nullopt;
        text.remove_prefix(std::min(item.size() + 1, text.size()));
    }
    return rates;
}

fault_injector::fault_injector(const fault_rates& rates, std::uint64_t seed) : random_(seed) {
    set(rates);
}

void fault_injector::set(const fault_rates& rates) {
    const std::lock_guard<std::mutex> held(mutex_);
    rates_ = rates;
    on_ = rates != fault_rates{};
}

fault_plan fault_injector::next() {
    fault_plan plan;
    if (!on_) return plan;
    const std::lock_guard<std::mutex> held(mutex_);
    std::array<bool, fault_kinds.size()> hit{};
    for (std::size_t i = 0; i < hit.size(); ++i) hit[i] = random_() % 1000 < rates_[i];
    if (hit[0]) plan.delay = milliseconds(random_() % 51);
    plan.reset = hit[1];
    plan.e500 = hit[2];
    plan.lose = hit[3];
    return plan;
}

void pauses::pause(milliseconds duration) {
    if (duration.count() <= 0) return;
    std::unique_lock<std::mutex> held(mutex_);
    end_.wait_for(held, duration, [this] { return stopping_; });
}

void pauses::stop() {
    {
        const std::lock_guard<std::mutex> held(mutex_);
        stopping_ = true;
    }
    end_.notify_all();
}

}  // namespace dev_backend
