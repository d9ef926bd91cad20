#include "backend.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "json.hpp"

namespace dev_backend {

namespace {

int hex_digit(char c) {
    const std::size_t at = std::string_view("0123456789abcdef0123456789ABCDEF").find(c);
    return at == std::string_view::npos ? -1 : static_cast<int>(at % 16);
}

}  // namespace

std::string percent_decoded(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const bool escaped = text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 &&
                             hex_digit(text[i + 2]) >= 0;
        if (escaped) {
            out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
            i += 2;
        } else {
            out += text[i];
        }
    }
    return out;
}

namespace {

const char* hint_for(std::string_view code) {
    struct advice {
        std::string_view code;
        const char* text;
    };
    constexpr std::array<advice, 6> known = {{
        {"invalid_payload", "fix the request: the message says what is wrong"},
        {"invalid_request", "fix the request: the message says what is wrong"},
        {"not_found", "check the id and the path; a restart without --store loses all jobs"},
        {"conflict", "read the job: another worker holds it, or its state has changed"},
        {"duplicate", "choose another id, or none; with unique, wait for the job in the message"},
        {"backend_error", "check later whether it was done; a request with its own id can be repeated"},
    }};
    for (const advice& each : known) {
        if (each.code == code) return each.text;
    }
    return "see docs_url";
}

}  // namespace

std::string incoming::parameter(std::string_view name) const {
    const std::string_view target = request.target;
    std::size_t at = target.find('?');
    while (at != target.npos) {
        const std::size_t end = target.find('&', at + 1);
        const std::string_view each = target.substr(at + 1, end == target.npos ? end : end - at - 1);
        const std::size_t equals = each.find('=');
        if (equals != each.npos && each.substr(0, equals) == name) {
            std::string value(each.substr(equals + 1));
            std::replace(value.begin(), value.end(), '+', ' ');
            return percent_decoded(value);
        }
        at = end;
    }
    return {};
}

std::vector<std::string> incoming::texts_parameter(std::string_view name) const {
    std::vector<std::string> out;
    std::string left = parameter(name);
    while (!left.empty()) {
        const std::size_t comma = std::min(left.find(','), left.size());
        if (comma > 0) out.push_back(left.substr(0, comma));
        left.erase(0, comma + 1);
    }
    return out;
}

ojs::http_response json_response(int status, std::string body) {
    ojs::http_response out;
    out.status = status;
    out.headers.reserve(4);
    out.headers.push_back({"Content-Type", "application/openjobspec+json"});
    out.headers.push_back({"OJS-Version", "1.0"});
    out.body = std::move(body);
    return out;
}

ojs::http_response error_answer(const refusal& why, const incoming& in) {
    json_object inner;
    inner.text("code", why.code).text("message", why.message).flag("retryable", why.status >= 500);
    if (*why.type != '\0') inner.text("type", why.type);
    inner.text("hint", hint_for(why.code)).text("docs_url", "https://github.com/openjobspec/spec");
    inner.text("request_id", in.request_id);
    return json_response(why.status, json_object().raw("error", inner.str()).str());
}

}  // namespace dev_backend
