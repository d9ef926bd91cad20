// What every unit test includes: doctest, and the library as a user sees it, with its extensions.
#pragma once
#include <doctest/doctest.h>

#include <optional>

#include "every_extension.hpp"

namespace test {

// Why it failed; nothing where it did not.
template <class T>
std::optional<ojs::errc> code_of(const ojs::result<T>& from) {
    return from ? std::nullopt : std::optional<ojs::errc>(from.error().code);
}

}  // namespace test
