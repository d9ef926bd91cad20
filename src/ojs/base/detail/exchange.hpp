// exchange and swap: those of <utility> ask so many questions of each type that they take as long to compile as what uses
// them.
#pragma once

#include <utility>

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

template <class T>
void swap(T& one, T& other) noexcept {
    T kept = static_cast<T&&>(one);
    one = static_cast<T&&>(other);
    other = static_cast<T&&>(kept);
}

template <class T>
struct itself {
    using type = T;
};

// What was there before. The type is that of `place` alone.
template <class T>
T exchange(T& place, typename itself<T>::type next) {
    T before = static_cast<T&&>(place);
    place = static_cast<T&&>(next);
    return before;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
