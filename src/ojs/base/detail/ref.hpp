// ref<T>: a counted reference. <memory> takes a third of what <string>, <vector>, <chrono> and <atomic> take together.
#pragma once

#include <utility>

#include "atomic.hpp"
#include "exchange.hpp"

namespace ojs::detail {

// Base of everything shared between threads whose lifetimes differ.
class ref_counted {
  public:
    ref_counted() = default;
    ref_counted(const ref_counted&) = delete;
    ref_counted& operator=(const ref_counted&) = delete;
    virtual ~ref_counted() = default;

    void retain() noexcept { uses_.fetch_add(1, memory_order::relaxed); }
    void release() noexcept {
        if (uses_.fetch_sub(1, memory_order::acq_rel) == 1) delete this;
    }

  private:
    atomic<long> uses_{0};
};

// A counted reference to a T derived from ref_counted, which need not be complete where it is only kept and copied.
// Copying one is thread-safe, changing one is not.
template <class T>
class ref {
  public:
    ref() = default;
    explicit ref(T* target) noexcept : target_(target) {
        if (target_ != nullptr) target_->retain();
    }
    ref(const ref& other) noexcept : target_(other.target_) {
        if (target_ != nullptr) target_->retain();
    }
    ref(ref&& other) noexcept : target_(detail::exchange(other.target_, nullptr)) {}
    ref& operator=(ref other) noexcept {
        detail::swap(target_, other.target_);
        return *this;
    }
    ~ref() {
        if (target_ != nullptr) target_->release();
    }

    T* get() const noexcept { return static_cast<T*>(target_); }
    T* operator->() const noexcept { return get(); }
    T& operator*() const noexcept { return *get(); }
    explicit operator bool() const noexcept { return target_ != nullptr; }
    bool operator==(const ref& other) const noexcept { return target_ == other.target_; }

  private:
    ref_counted* target_ = nullptr;
};

template <class T, class... Args>
ref<T> make_ref(Args&&... args) {
    return ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace ojs::detail
