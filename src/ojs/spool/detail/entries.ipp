// Names of files in order, and what is known of each.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "../../base/detail/light.hpp"
#include "../../base/duration.hpp"

namespace ojs::detail {

struct spool_entry {
    spool_entry() = default;
    explicit spool_entry(std::string name_given) : name(std::move(name_given)) {}

    std::string name;
    time_point until = time_point::min();  // not to be looked at before
    std::string identity;  // of a file of a queue that is not ours, as long as it is what it was
    std::string queue;     // that queue
};

// Entries in the order of their names. Most come at the end and go from the front: neither moves the others.
class spool_entries {
  public:
    std::size_t size() const noexcept { return all_.size() - first_; }
    const spool_entry& operator[](std::size_t place) const noexcept { return all_[first_ + place]; }
    spool_entry& operator[](std::size_t place) noexcept { return all_[first_ + place]; }
    // After all others, where its name belongs.
    void append(spool_entry last) { all_.push_back(std::move(last)); }
    void clear() {
        all_.clear();
        first_ = 0;
    }

    // How many names there are before `name`.
    std::size_t place_of(std::string_view name) const noexcept {
        const auto is_before = [&](std::size_t place) { return all_[place].name < name; };
        return first_not_before(first_, all_.size(), is_before) - first_;
    }
    // Null where it is not among them.
    spool_entry* find(std::string_view name) noexcept {
        const std::size_t place = first_ + place_of(name);
        return place < all_.size() && all_[place].name == name ? &all_[place] : nullptr;
    }
    // The same for names that are asked for in order: `place` goes along, so that entries may be moved from once found.
    spool_entry* walk_to(std::string_view name, std::size_t& place) noexcept {
        while (place < size() && (*this)[place].name < name) ++place;
        return place < size() && (*this)[place].name == name ? &(*this)[place++] : nullptr;
    }
    // In place of those of the same names, if there are any.
    void put_all(spool_entries added) {
        if (size() == 0) return detail::swap(*this, added);
        std::size_t left = 0;  // of `added`: those that are new
        for (std::size_t i = 0; i < added.size(); ++i) {
            spool_entry each = std::move(added[i]);
            spool_entry* const known = find(each.name);
            (known != nullptr ? *known : added[left++]) = std::move(each);
        }
        std::size_t from = all_.size();
        for (std::size_t i = 0; i < left; ++i) all_.push_back({});
        for (std::size_t to = all_.size(); left > 0;) {
            const bool old = from > first_ && added[left - 1].name < all_[from - 1].name;
            all_[--to] = std::move(old ? all_[--from] : added[--left]);
        }
    }
    void put(spool_entry added) {
        spool_entries one;
        one.append(std::move(added));
        put_all(std::move(one));
    }
    // With only the name where it is not among them.
    spool_entry take(std::string_view name) {
        spool_entry* const known = find(name);
        if (known == nullptr) return spool_entry(std::string(name));
        spool_entry out = std::move(*known);
        remove(static_cast<std::size_t>(known - all_.data()));
        return out;
    }

  private:
    void remove(std::size_t place) {
        if (place - first_ < all_.size() - place) {
            for (std::size_t i = place; i > first_; --i) all_[i] = std::move(all_[i - 1]);
            ++first_;
        } else {
            for (std::size_t i = place; i + 1 < all_.size(); ++i) all_[i] = std::move(all_[i + 1]);
            all_.pop_back();
        }
        if (first_ == all_.size()) clear();
    }

    array<spool_entry> all_;
    std::size_t first_ = 0;  // before it there are only empty ones
};

}  // namespace ojs::detail
