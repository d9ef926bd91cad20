// events: server-sent events are read the same however their bytes come in, and keep to their limits.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {
inline std::string read_events(std::string_view bytes, std::size_t step, unsigned /*how*/) {
    ojs::detail::event_parser parser;
    std::string report;
    while (!bytes.empty()) {
        parser.feed(bytes.substr(0, step), [&](const ojs::detail::server_event& event) {
            expect(event.type.size() + event.data.size() <= 2 * ojs::detail::max_event_size + 2,
                   "an event keeps to its limit", report);
            report += ojs::detail::cat({event.type, "|", event.data, "|", event.is_cut ? "cut|" : "",
                                        ojs::detail::announces_work(event) ? "announces\n" : "says nothing\n"});
        });
        bytes.remove_prefix(std::min(step, bytes.size()));
    }
    expect(parser.retry() >= std::chrono::milliseconds(0) && parser.retry() <= std::chrono::hours(1),
           "the retry time is at most an hour");
    return report + ojs::detail::cat({parser.retry().count()});
}

inline void events(input in) { expect_same_in_pieces(in, read_events); }
}  // namespace fuzz
