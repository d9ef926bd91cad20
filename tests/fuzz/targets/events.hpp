// events: server-sent events are read the same however their bytes come in, and keep to their limits.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {

inline std::string read_events(std::string_view bytes, std::size_t step) {
    ojs::detail::event_parser parser;
    std::string report;
    while (!bytes.empty()) {
        parser.feed(bytes.substr(0, step), [&](const ojs::detail::server_event& event) {
            expect(event.type.size() + event.data.size() <= 2 * ojs::detail::max_event_size + 2,
                   "an event keeps to its limit", report);
            report +=
                ojs::detail::cat({event.type, "|", event.data, "|", event.is_cut ? "cut|" : "",
                                  ojs::detail::announces_work(event) ? "announces\n" : "says nothing\n"});
        });
        bytes.remove_prefix(std::min(step, bytes.size()));
    }
    expect(parser.retry() >= std::chrono::milliseconds(0) && parser.retry() <= std::chrono::hours(1),
           "the retry time is at most an hour");
    return report + ojs::detail::cat({parser.retry().count()});
}

// The first byte says how the stream is split.
inline void events(input in) {
    const unsigned how = in.byte();
    const std::string whole = read_events(in.rest(), in.rest().size() + 1);
    for (const std::size_t step : {std::size_t{1}, std::size_t{2 + how}}) {
        const std::string split = read_events(in.rest(), step);
        expect(split == whole, "split feeds agree", "whole: " + whole + "\nsplit: " + split);
    }
}

}  // namespace fuzz
