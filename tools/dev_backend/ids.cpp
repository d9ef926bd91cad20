#include "ids.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "clock.hpp"

namespace dev_backend {

std::string id_maker::next() {
    const std::int64_t ms = wall_ms();
    counter_ = ms > last_ms_ ? 0 : counter_ + 1;
    last_ms_ = std::max(ms, last_ms_);
    if (counter_ > 0xfff) {  // more than 4096 in a millisecond: borrow the next
        counter_ = 0;
        ++last_ms_;
    }
    const auto time = static_cast<unsigned long long>(last_ms_);
    const unsigned long long random = random_();
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "%08llx-%04llx-7%03llx-%04llx-%012llx", time >> 16U & 0xffffffffU,
                  time & 0xffffU, static_cast<unsigned long long>(counter_),
                  0x8000U | (random >> 48U & 0x3fffU), random & 0xffffffffffffU);
    return text.data();
}

std::string event_id(std::uint64_t number) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "evt_%016llx", static_cast<unsigned long long>(number));
    return text.data();
}

std::int64_t ms_of_event(const std::string& id) {
    unsigned long long number = 0;
    const bool is_known = std::sscanf(id.c_str(), "evt_%16llx", &number) == 1;
    return is_known ? static_cast<std::int64_t>(number >> 16) : wall_ms();
}

}  // namespace dev_backend
