// exchange and swap: without the questions that those of <utility> ask of each type. With those the header compiles 13 %
// longer.
#pragma once

#include <type_traits>
#include <utility>

namespace ojs::detail {

template <class T>
void swap(T& one, T& other) noexcept {
    T kept = static_cast<T&&>(one);
    one = static_cast<T&&>(other);
    other = static_cast<T&&>(kept);
}

// What was there before. The type is that of `place` alone.
template <class T>
T exchange(T& place, std::decay_t<T> next) {
    T before = static_cast<T&&>(place);
    place = static_cast<T&&>(next);
    return before;
}

}  // namespace ojs::detail
