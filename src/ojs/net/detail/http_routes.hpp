// http_routes: what a server of ours answers on which path, and whom it refuses: web pages, and who has no token.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "../http_message.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct http_route {
    const char* path;
    const char* methods[2];  // the second may be null
    bool guarded;            // changes something: not for web pages, and only with the token
};

struct http_guard {
    bool on_loopback = false;  // then the Host of a request must be an address or localhost
    bool open = true;          // false: guarded routes are not there
    std::string token;         // empty: guarded routes need none
    bool own_page = false;     // a page of this server's own may ask, as whoever opened it
};

// Which of `routes` the request is for: its place. -1: none that it may have; `refused` is the answer then. Thread-safe.
int choose_route(const http_route* routes, std::size_t count, const http_guard& guard,
                 const http_request& request, http_response& refused);

// What `name` has in the query of a target, as it stands; false if it is not there.
bool find_parameter(std::string_view target, std::string_view name, std::string_view& value) noexcept;

http_response json_answer(int status, std::string body);
http_response json_problem(int status, std::string_view what);  // {"error":"..."}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
