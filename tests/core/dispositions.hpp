// What a process does with a signal, and an installer that claims it.
#pragma once
#include "processes.hpp"

namespace test {
inline ojs::signals claim(ojs::lifecycle& target, ojs::signal_options options = {}) {
    ojs::result<ojs::signals> installed = ojs::signals::install(target, options);
    if (!installed) MESSAGE(installed.error().text);
    REQUIRE(installed);
    return std::move(*installed);
}

inline struct sigaction disposition_of(int number) {
    struct sigaction out {};
    REQUIRE(::sigaction(number, nullptr, &out) == 0);
    return out;
}

// Sets a disposition for as long as it lives.
class with_disposition {
  public:
    with_disposition(int number, const struct sigaction& action) : number_(number) {
        REQUIRE(::sigaction(number, &action, &previous_) == 0);
    }
    with_disposition(int number, void (*handler)(int)) : number_(number) {
        struct sigaction action {};
        action.sa_handler = handler;
        REQUIRE(::sigaction(number, &action, &previous_) == 0);
    }
    with_disposition(const with_disposition&) = delete;
    with_disposition& operator=(const with_disposition&) = delete;
    ~with_disposition() { ::sigaction(number_, &previous_, nullptr); }

  private:
    int number_;
    struct sigaction previous_ {};
};

inline void send_self(int number) { REQUIRE(::kill(::getpid(), number) == 0); }
}  // namespace test
