// rpc_message: what a launcher and its child send each other. The first byte picks one of the messages, the rest is its JSON.
#pragma once
#include "../../support/every_message.hpp"
#include "../fuzz.hpp"

namespace fuzz {
inline void rpc_message(input in) {
    const auto all = test::every_message();
    test::any_message& message = *all[in.byte() % all.size()];
    const std::string body(in.rest());
    const ojs::result<void> read = message.read(body);
    const std::string written = message.write();
    if (!read) {
        expect(read.error().text.size() < 120, "an error does not echo the message", read.error().text);
        expect(written == "{}", "nothing is left of a message that was refused", written);
        return;
    }
    picojson::value parsed;
    expect(read_json(body, parsed) && parsed.is<picojson::object>(), "a message is an object", body);
    expect(ojs::detail::is_utf8(body), "a message is UTF-8", body);
    expect(read_json(written, parsed) && parsed.is<picojson::object>(), "what is written is JSON", written);
    const auto again = message.fresh();
    expect(again->read(written).has_value(), "what is written can be read", written);
    expect(again->write() == written, "and is equal when written again", written);
}
}  // namespace fuzz
