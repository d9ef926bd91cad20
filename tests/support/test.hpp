// What every test of the library includes: doctest, the library as a user sees it, with its extensions, and what most tests
// use besides, names without a prefix included. The library comes first: it must not need what follows.
#pragma once
#include <doctest/doctest.h>

#include <optional>

#include "every_extension.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "events.hpp"
#include "files.hpp"
#include "text.hpp"

using namespace ojs;
using namespace std::chrono_literals;

namespace test {
// Why it failed; nothing where it did not.
template <class T>
std::optional<ojs::errc> code_of(const ojs::result<T>& from) {
    return from ? std::nullopt : std::optional<ojs::errc>(from.error().code);
}
}  // namespace test
