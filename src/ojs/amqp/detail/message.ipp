// message: what AMQP delivers as a job, and how a job is published again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../base/detail/text.hpp"
#include "../../loop/job.hpp"
#include "../../net/json_view.hpp"
#include "connection.ipp"

namespace ojs::detail {
namespace rabbitmq {

// A message, frame by frame.
struct delivery {
    std::string consumer_tag;
    std::uint64_t tag = 0;
    bool redelivered = false;
    std::string properties;  // as they were encoded
    std::string body;
    std::uint64_t body_size = 0;

    std::string message_id, type, content_type;  // empty: none
    std::int64_t attempt = 1;
    std::int64_t max_attempts = 0;  // 0: the header is missing
};

// Clients choose any integer type.
OJS_SHUTDOWN_INLINE std::int64_t number_of(const amqp_field_value_t& field) {
    switch (field.kind) {
        case AMQP_FIELD_KIND_I8: return field.value.i8;
        case AMQP_FIELD_KIND_U8: return field.value.u8;
        case AMQP_FIELD_KIND_I16: return field.value.i16;
        case AMQP_FIELD_KIND_U16: return field.value.u16;
        case AMQP_FIELD_KIND_I32: return field.value.i32;
        case AMQP_FIELD_KIND_U32: return field.value.u32;
        case AMQP_FIELD_KIND_I64:
        case AMQP_FIELD_KIND_U64: return field.value.i64;
        default: return 0;
    }
}

// The attempt is that of this publication, and one more for each return that the broker has counted.
OJS_SHUTDOWN_INLINE void read_headers(const amqp_table_t& headers, delivery& out) {
    constexpr std::int64_t max = std::int64_t{1} << 40;
    for (int i = 0; i < headers.num_entries; ++i) {
        const std::string_view name = view_of(headers.entries[i].key);
        const std::int64_t number =
            detail::min(detail::max(number_of(headers.entries[i].value), std::int64_t{0}), max);
        if (name == "x-ojs-attempt" && number > 0) out.attempt += number - 1;
        if (name == "x-delivery-count") out.attempt += number;
        if (name == "x-ojs-max-attempts") out.max_attempts = number;
    }
}

OJS_SHUTDOWN_INLINE void read_properties(const amqp_frame_t& frame, delivery& out) {
    out.properties = view_of(frame.payload.properties.raw);
    out.body_size = frame.payload.properties.body_size;
    out.body.clear();
    const auto& found = *static_cast<amqp_basic_properties_t*>(frame.payload.properties.decoded);
    if ((found._flags & AMQP_BASIC_MESSAGE_ID_FLAG) != 0) out.message_id = view_of(found.message_id);
    if ((found._flags & AMQP_BASIC_TYPE_FLAG) != 0) out.type = view_of(found.type);
    if ((found._flags & AMQP_BASIC_CONTENT_TYPE_FLAG) != 0) out.content_type = view_of(found.content_type);
    if ((found._flags & AMQP_BASIC_HEADERS_FLAG) != 0) read_headers(found.headers, out);
}

// "application/json", "application/json; charset=utf-8"
OJS_SHUTDOWN_INLINE bool is_json(std::string_view content_type) {
    return equals_ignore_case(trim_blanks(next_part(content_type, ";")), "application/json");
}

// Sets args_json, or why the job cannot be run.
OJS_SHUTDOWN_INLINE void read_args(const delivery& from, job& out) {
    if (!is_json(from.content_type)) return;
    const result<json_view> parsed = json_view::parse(from.body, from.body.size());
    if (!parsed) {
        out.malformed = cat({"the message says application/json, and is not: ", parsed.error().text});
    } else {
        out.args_json = parsed->type() == json_type::array ? from.body : cat({"[", from.body, "]"});
    }
}

// What is published. Its state and fault are guarded by the publisher's mutex, the rest never changes.
struct publication : ref_counted {
    enum class state { waiting, confirmed, failed };
    std::string queue;
    std::string properties, body;  // of the original message
    std::int64_t attempt = 0;
    std::string error;                   // empty: a retry
    bool is_declared = false;            // the queue is the worker's
    std::string returns_to;              // of a retry queue: where its messages go
    std::chrono::milliseconds delay{0};  // and after which time
    state now = state::waiting;
    std::string fault;
};

// What the broker adds to a message, and what must not go out again: CC routes to other queues, expiration
// drops, and x-death makes the broker take a retry for a loop.
OJS_SHUTDOWN_INLINE bool is_dropped_header(std::string_view name) {
    return starts_with(name, "x-death") || starts_with(name, "x-first-death-") ||
           starts_with(name, "x-last-death-") ||
           is_listed(name, "CC BCC x-delivery-count x-acquired-count x-ojs-attempt x-ojs-error");
}

OJS_SHUTDOWN_INLINE amqp_table_entry_t text_entry(const char* name, std::string_view text) {
    amqp_table_entry_t out{};
    out.key = amqp_cstring_bytes(name);
    out.value.kind = AMQP_FIELD_KIND_UTF8;
    out.value.value.bytes = bytes_of(text);
    return out;
}
OJS_SHUTDOWN_INLINE amqp_table_entry_t number_entry(const char* name, std::int64_t number) {
    amqp_table_entry_t out{};
    out.key = amqp_cstring_bytes(name);
    out.value.kind = AMQP_FIELD_KIND_I64;
    out.value.value.i64 = number;
    return out;
}
OJS_SHUTDOWN_INLINE amqp_table_t table_of(std::vector<amqp_table_entry_t>& entries) {
    return {static_cast<int>(entries.size()), entries.data()};
}

// Returns librabbitmq's status.
OJS_SHUTDOWN_INLINE int publish(connection& to, amqp_channel_t channel, const publication& what) {
    amqp_pool_t pool;
    init_amqp_pool(&pool, 4096);
    void* decoded = nullptr;
    int status = amqp_decode_properties(AMQP_BASIC_CLASS, &pool, bytes_of(what.properties), &decoded);
    if (status == AMQP_STATUS_OK) {
        amqp_basic_properties_t properties = *static_cast<amqp_basic_properties_t*>(decoded);
        std::vector<amqp_table_entry_t> headers;
        const bool has_headers = (properties._flags & AMQP_BASIC_HEADERS_FLAG) != 0;
        for (int i = 0; has_headers && i < properties.headers.num_entries; ++i) {
            const amqp_table_entry_t& header = properties.headers.entries[i];
            if (!is_dropped_header(view_of(header.key))) headers.push_back(header);
        }
        headers.push_back(number_entry("x-ojs-attempt", what.attempt));
        if (!what.error.empty()) headers.push_back(text_entry("x-ojs-error", what.error));
        properties.headers = table_of(headers);
        properties.delivery_mode = 2;
        properties._flags |= AMQP_BASIC_HEADERS_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG;
        properties._flags &= ~static_cast<amqp_flags_t>(AMQP_BASIC_EXPIRATION_FLAG | AMQP_BASIC_USER_ID_FLAG);
        status = amqp_basic_publish(to.state(), channel, amqp_empty_bytes, bytes_of(what.queue), 1, 0,
                                    &properties, bytes_of(what.body));
    }
    empty_amqp_pool(&pool);
    return status;
}

}  // namespace rabbitmq
}  // namespace ojs::detail
