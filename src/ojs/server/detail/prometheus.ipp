// prometheus: histograms, and metrics as text (exposition format 0.0.4).
#pragma once

#include <cstdio>
#include <string>

#include "../../base/detail/light.hpp"
#include "../../base/detail/text.hpp"
#include "../../base/duration.hpp"

namespace ojs::detail {
using counter = atomic<std::uint64_t>;

inline void count_one(counter& value) noexcept { value.fetch_add(1, memory_order::relaxed); }
inline std::uint64_t read_counter(const counter& value) noexcept { return value.load(memory_order::relaxed); }

// Microseconds as decimal seconds; not by %f, whose decimal point follows the locale.
inline std::string seconds_text(std::uint64_t microseconds) {
    char text[40];
    std::snprintf(text, sizeof text, "%llu.%06llu", static_cast<unsigned long long>(microseconds / 1000000U),
                  static_cast<unsigned long long>(microseconds % 1000000U));
    return text;
}

inline std::string label(std::string_view name, std::string_view value) {
    std::string out = cat({name, "=\""});
    for (const char c : value) {
        if (c == '\n') {
            out += "\\n";
            continue;
        }
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    out += '"';
    return out;
}

struct histogram_bound {
    const char* le;
    std::int64_t ms;
};
struct histogram_bounds {
    const histogram_bound* at;
    std::size_t count;
};
// Counts durations in buckets: one for each bound, and one above. Thread-safe.
class histogram {
  public:
    void observe(const histogram_bounds& bounds, steady_clock::duration took) noexcept {
        const std::int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(took).count();
        std::size_t index = 0;
        while (index < bounds.count && us > bounds.at[index].ms * 1000) ++index;
        count_one(buckets_[index]);
        if (us > 0) sum_us_.fetch_add(static_cast<std::uint64_t>(us), memory_order::relaxed);
    }
    std::uint64_t count() const noexcept {
        std::uint64_t out = 0;
        for (const counter& each : buckets_) out += read_counter(each);
        return out;
    }
    // Writes the samples of one series. The count is the sum of the buckets as read, so that the two agree.
    void show(std::string& out, const histogram_bounds& bounds, std::string_view name, std::string_view labels) const {
        const std::string_view comma = labels.empty() ? "" : ",";
        std::uint64_t below = 0;
        for (std::size_t i = 0; i <= bounds.count; ++i) {
            below += read_counter(buckets_[i]);
            append(out, {name, "_bucket{", labels, comma, "le=\"", i < bounds.count ? bounds.at[i].le : "+Inf", "\"} ",
                         below, "\n"});
        }
        const std::string braced = labels.empty() ? std::string() : cat({"{", labels, "}"});
        append(out, {name, "_sum", braced, " ", seconds_text(read_counter(sum_us_)), "\n"});
        append(out, {name, "_count", braced, " ", below, "\n"});
    }

  private:
    counter buckets_[16] = {};
    counter sum_us_{0};
};

class metrics_page {
  public:
    void family(std::string_view name, std::string_view type, std::string_view help) {
        name_ = std::string(name);
        append(text, {"# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n"});
    }
    void sample(const text_part& value, std::string_view labels = {}) {
        append(text, {name_, labels.empty() ? "" : "{", labels, labels.empty() ? "" : "}", " ", value, "\n"});
    }
    // A family of one sample without labels.
    void single(std::string_view name, std::string_view type, std::string_view help, const text_part& value) {
        family(name, type, help);
        sample(value);
    }
    void samples(const histogram& from, const histogram_bounds& bounds, std::string_view labels = {}) {
        from.show(text, bounds, name_, labels);
    }

    std::string text;

  private:
    std::string name_;
};
}  // namespace ojs::detail
