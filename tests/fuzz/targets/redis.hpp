// redis: replies of any bytes and shape are jobs or an error, however they come in. Nothing where hiredis is not installed.
#pragma once
#include "../fuzz.hpp"
#if __has_include(<hiredis/hiredis.h>)
#include <ojs_redis_streams.hpp>
#endif

namespace fuzz {
inline std::string read_replies(std::string_view bytes, std::size_t step, unsigned /*how*/) {
    std::string report;
#ifdef OJS_SHUTDOWN_REDIS_STREAMS_HPP
    ojs::detail::redis::reply_reader reader;
    for (; !bytes.empty(); bytes.remove_prefix(std::min(step, bytes.size()))) {
        reader.feed(bytes.substr(0, step));
        for (std::optional<ojs::detail::redis::reply> got; reader.next(got) && got; got.reset()) {
            ojs::detail::redis::claim_reader from(std::move(got->texts));
            ojs::detail::redis::claim held("");
            while (from.has_more() && from.is_valid) report += read_job(from, held, "queue", "type").envelope_json;
        }
    }
#endif
    return report;
}
inline void redis_reply(input in) { expect_same_in_pieces(in, read_replies); }
}  // namespace fuzz
