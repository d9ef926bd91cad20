// placed_list: members know their place in it, so that taking one out takes the same time however many there are.
#pragma once

#include "../../base/detail/array.hpp"
#include "../../base/detail/ref.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

template <class T>
class placed_list {
  public:
    // Reserves memory for `members`.
    void make_room(std::size_t members) {
        std::size_t room = 16;
        while (room < members) room *= 2;
        all_.reserve(room);
    }
    void add(const ref<T>& member) {
        member->place = all_.size();
        all_.push_back(member);
    }
    void remove(const T& member) {
        const std::size_t place = member.place;
        all_.back()->place = place;
        detail::swap(all_[place], all_.back());
        all_.pop_back();
    }
    void clear() noexcept { all_.clear(); }
    const array<ref<T>>& all() const noexcept { return all_; }

  private:
    array<ref<T>> all_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
