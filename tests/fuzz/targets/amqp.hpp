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
    amqp_pool_t pool;
    init_amqp_pool(&pool, 4096);
    amqp_frame_t frame{};
    frame.payload.properties.raw = ojs::detail::rabbitmq::bytes_of(raw);
    if (amqp_decode_properties(AMQP_BASIC_CLASS, &pool, frame.payload.properties.raw,
                               &frame.payload.properties.decoded) == AMQP_STATUS_OK) {
        ojs::detail::rabbitmq::delivery out;
        read_properties(frame, out);
        expect(out.attempt >= 1 && out.max_attempts >= 0, "attempts count from 1", raw);
        const std::string meta = "{" + out.meta + "}";
        expect(bool(ojs::json_view::parse(meta, meta.size())), "meta is JSON", meta);
    }
    empty_amqp_pool(&pool);
    static_cast<void>(ojs::detail::rabbitmq::parse_url(raw));
#endif
}
}  // namespace fuzz
