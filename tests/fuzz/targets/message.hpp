// request, answer: an HTTP message is read the same however its bytes come in, and what is read keeps the rules.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {
// Everything the parser says about a stream of messages, which may answer HEAD.
template <class Parser>
std::string read_messages(std::string_view bytes, std::size_t step, unsigned how) {
    using ojs::detail::http_parser;
    constexpr std::size_t max_body = 2048;
    Parser parser(512, max_body);
    std::string report;
    for (int messages = 0; messages < 20; ++messages) {
        parser.begin(std::is_same_v<Parser, http_parser> && how % 2 == 1);
        http_parser::status reached = parser.feed({});
        while (reached == http_parser::status::need_more && !bytes.empty()) {
            const std::string_view part = bytes.substr(0, step);
            bytes.remove_prefix(part.size());
            reached = parser.feed(part);
        }
        const bool ended = reached == http_parser::status::need_more;
        if (ended) reached = parser.finish();
        if (reached != http_parser::status::complete) {
            return ojs::detail::cat({report, "failed ", parser.failure_code(), " ", parser.failure()});
        }
        const ojs::http_request& message = parser.message();
        report += ojs::detail::cat({message.method, "|", message.target, "|", parser.code(), "|",
                                    parser.keeps_alive() ? "lives" : "closes", "|", message.body, "|"});
        expect(message.body.size() <= max_body, "a body keeps to its limit", report);
        for (const ojs::http_header& header : message.headers) {
            report += ojs::detail::cat({header.name, "=", header.value, ";"});
            expect(ojs::detail::is_token(header.name), "a header's name is a token", report);
            expect(ojs::detail::is_field_value(header.value), "a header's value holds no control character", report);
        }
        if (!std::is_same_v<Parser, http_parser>) {
            expect(ojs::detail::is_token(message.method), "a method is a token", report);
            expect(ojs::detail::is_target(message.target), "a target holds no blank", report);
        }
        report += "\n";
        if (ended || (bytes.empty() && !parser.has_surplus())) return report;
    }
    return report;
}

inline void request(input in) { expect_same_in_pieces(in, read_messages<ojs::detail::request_parser>); }
inline void answer(input in) { expect_same_in_pieces(in, read_messages<ojs::detail::http_parser>); }
}  // namespace fuzz
