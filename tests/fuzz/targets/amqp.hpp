// amqp: the properties of any message are a job, whose meta is JSON; nothing without <amqp.h>.
#pragma once
#include "../fuzz.hpp"
#if __has_include(<amqp.h>)
#include <ojs_amqp.hpp>
#endif

namespace fuzz {
inline void amqp([[maybe_unused]] input in) {
#if __has_include(<amqp.h>)
    const std::string raw(in.rest());
    static_cast<void>(ojs::detail::rabbitmq::parse_url(raw));
    amqp_pool_t pool;
    init_amqp_pool(&pool, 4096);
    amqp_frame_t frame{};
    auto& read = frame.payload.properties;
    read.raw = ojs::detail::rabbitmq::bytes_of(raw);
    ojs::detail::rabbitmq::delivery out;
    if (amqp_decode_properties(AMQP_BASIC_CLASS, &pool, read.raw, &read.decoded) == 0) read_properties(frame, out);
    empty_amqp_pool(&pool);
    const std::string meta = "{" + out.meta + "}";
    expect(out.attempt >= 1 && out.max_attempts >= 0, "attempts count from 1", raw);
    expect(bool(ojs::json_view::parse(meta, meta.size())), "meta is JSON", meta);
#endif
}
}  // namespace fuzz
