#include "web_pages.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <string_view>

#include "refusal.hpp"

namespace dev_backend {

namespace {

std::string lower_case(std::string_view text) {
    std::string out(text);
    for (char& each : out) each = each >= 'A' && each <= 'Z' ? static_cast<char>(each - 'A' + 'a') : each;
    return out;
}

// "application/json; charset=utf-8", "application/openjobspec+json": no form, and no page without CORS, can send these.
bool is_json_type(std::string_view content_type) {
    std::string type = lower_case(content_type.substr(0, content_type.find(';')));
    type.erase(type.find_last_not_of(" \t") + 1);
    constexpr std::string_view suffix = "+json";
    return type == "application/json" ||
           (type.size() > suffix.size() &&
            type.compare(type.size() - suffix.size(), suffix.size(), suffix) == 0);
}

// "127.0.0.1:8080", "[::1]:8080", "localhost": a foreign name may resolve to this machine (DNS rebinding), and is then
// the page's own origin.
bool is_address(std::string_view host) {
    const bool bracketed = !host.empty() && host.front() == '[';
    const std::size_t end = bracketed ? host.find(']') : host.find(':');
    const std::string name = lower_case(host.substr(0, end).substr(bracketed ? 1 : 0));
    std::array<unsigned char, sizeof(in6_addr)> bytes{};
    if (bracketed) return end != host.npos && inet_pton(AF_INET6, name.c_str(), bytes.data()) == 1;
    return name == "localhost" || name == "localhost." || inet_pton(AF_INET, name.c_str(), bytes.data()) == 1;
}

}  // namespace

void refuse_web_pages(const ojs::http_request& request) {
    for (const char* name : {"Origin", "Sec-Fetch-Site"}) {
        if (ojs::find_header(request.headers, name).data() != nullptr)
            throw refusal{403, "x_forbidden", "requests from web pages are not allowed"};
    }
    const std::string_view host = ojs::find_header(request.headers, "Host");
    if (host.data() != nullptr && !is_address(host))
        throw refusal{403, "x_forbidden", "the Host is neither an address nor localhost"};
    const std::string_view type = ojs::find_header(request.headers, "Content-Type");
    const bool is_empty = request.body.empty() && type.empty();
    if (request.method == "POST" && !is_empty && !is_json_type(type))
        throw refusal{400, "invalid_request", "Content-Type is not application/json"};
}

}  // namespace dev_backend
