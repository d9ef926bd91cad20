// array<T>: what the library needs of std::vector for types of its own. With std::vector the header compiles 26 % longer.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <utility>

#include "exchange.hpp"

namespace ojs::detail {

// Every place that is reserved holds a T, so T has a default constructor. Thread-safe as far as T is, like a vector.
template <class T>
class array {
  public:
    array() = default;
    explicit array(std::size_t count) : all_(new T[count]()), size_(count), room_(count) {}
    array(std::initializer_list<T> given) : array() {  // delegating: what throws leaves nothing behind
        reserve(given.size());
        for (const T& each : given) push_back(each);
    }
    array(const array& other) : array() {
        reserve(other.size_);
        for (const T& each : other) push_back(each);
    }
    array(array&& other) noexcept { swap(other); }
    array& operator=(array other) noexcept {
        swap(other);
        return *this;
    }
    ~array() { delete[] all_; }

    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    T* data() noexcept { return all_; }
    const T* data() const noexcept { return all_; }
    T* begin() noexcept { return all_; }
    T* end() noexcept { return all_ + size_; }
    const T* begin() const noexcept { return all_; }
    const T* end() const noexcept { return all_ + size_; }
    T& operator[](std::size_t place) noexcept { return all_[place]; }
    const T& operator[](std::size_t place) const noexcept { return all_[place]; }
    T& back() noexcept { return all_[size_ - 1]; }

    void reserve(std::size_t room) {
        if (room <= room_) return;
        T* const grown = new T[room]();
        for (std::size_t i = 0; i < size_; ++i) grown[i] = std::move(all_[i]);
        delete[] detail::exchange(all_, grown);
        room_ = room;
    }
    // The next push_back() cannot throw bad_alloc.
    void reserve_one() {
        if (size_ == room_) reserve(room_ == 0 ? 4 : room_ * 2);
    }
    void push_back(T added) {
        reserve_one();
        all_[size_++] = std::move(added);
    }
    void pop_back() { all_[--size_] = T(); }
    void remove(std::size_t place) {
        for (std::size_t i = place; i + 1 < size_; ++i) all_[i] = std::move(all_[i + 1]);
        pop_back();
    }
    // Gives the memory back as well.
    void clear() noexcept { array().swap(*this); }
    void swap(array& other) noexcept {
        detail::swap(all_, other.all_);
        detail::swap(size_, other.size_);
        detail::swap(room_, other.room_);
    }

  private:
    T* all_ = nullptr;
    std::size_t size_ = 0;
    std::size_t room_ = 0;
};

// The first place from `from` to `to` that is not before what is looked for, in an order that is kept.
template <class IsBefore>
std::size_t first_not_before(std::size_t from, std::size_t to, IsBefore is_before) {
    while (from < to) {
        const std::size_t middle = from + (to - from) / 2;
        if (is_before(middle)) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

}  // namespace ojs::detail
