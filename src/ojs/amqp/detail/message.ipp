// message: what AMQP delivers as a job.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../base/detail/text.hpp"
#include "../../net/json_view.hpp"
#include "../../stop/job.hpp"
#include "link.ipp"

namespace ojs::detail {
namespace rabbitmq {
// A message, frame by frame.
struct delivery {
    std::uint64_t tag = 0;
    bool redelivered = false;
    std::string properties;  // as they were encoded
    std::string body;
    std::uint64_t body_size = 0;
    std::size_t fingerprint = 0;  // of the body, which moves to the worker

    std::string message_id, type, content_type, content_encoding;  // empty: none
    std::int64_t attempt = 1;
    std::int64_t max_attempts = 0;  // 0: the header is missing
    std::string meta;               // JSON members: the headers that are text
};

// Clients choose any signed type.
OJS_SHUTDOWN_INLINE std::int64_t number_of(const amqp_field_value_t& field) {
    switch (field.kind) {
        case AMQP_FIELD_KIND_I8: return field.value.i8;
        case AMQP_FIELD_KIND_I16: return field.value.i16;
        case AMQP_FIELD_KIND_I32: return field.value.i32;
        case AMQP_FIELD_KIND_I64: return field.value.i64;
        default: return 0;
    }
}

// Why the broker moved the message here last: "rejected", "expired", ... Empty: it did not.
OJS_SHUTDOWN_INLINE std::string_view last_death(const amqp_field_value_t& deaths) {
    if (deaths.kind != AMQP_FIELD_KIND_ARRAY || deaths.value.array.num_entries < 1) return {};
    const amqp_field_value_t& last = deaths.value.array.entries[0];
    for (int i = 0; last.kind == AMQP_FIELD_KIND_TABLE && i < last.value.table.num_entries; ++i) {
        const amqp_table_entry_t& entry = last.value.table.entries[i];
        if (view_of(entry.key) == "reason" && entry.value.kind == AMQP_FIELD_KIND_UTF8)
            return view_of(entry.value.value.bytes);
    }
    return {};
}

// The attempt is that of this publication, and one more for each return that the broker has counted. A dead letter that
// was moved back begins again.
OJS_SHUTDOWN_INLINE void read_headers(const amqp_table_t& headers, delivery& out) {
    constexpr std::int64_t max = std::int64_t{1} << 40;
    bool was_dead = false;
    std::int64_t published = 1, returned = 0;
    for (int i = 0; i < headers.num_entries; ++i) {
        const std::string_view name = view_of(headers.entries[i].key);
        const amqp_field_value_t& value = headers.entries[i].value;
        if (value.kind == AMQP_FIELD_KIND_UTF8)
            append(out.meta,
                   {out.meta.empty() ? "" : ",", json_quote(name), ":", json_quote(view_of(value.value.bytes))});
        const std::int64_t number = detail::min(detail::max(number_of(value), std::int64_t{0}), max);
        if (name == "x-ojs-attempt") published = detail::max(number, std::int64_t{1});
        if (name == "x-delivery-count" && out.redelivered) returned = number;  // else a copy, of another queue
        if (name == "x-ojs-max-attempts") out.max_attempts = number;
        was_dead = was_dead || name == "x-ojs-error" || (name == "x-death" && last_death(value) != "expired");
    }
    out.attempt = (was_dead ? 1 : published) + returned;
}

OJS_SHUTDOWN_INLINE void read_properties(const amqp_frame_t& frame, delivery& out) {
    out.properties = view_of(frame.payload.properties.raw);
    out.body_size = frame.payload.properties.body_size;
    out.body.clear();
    const auto& found = *static_cast<amqp_basic_properties_t*>(frame.payload.properties.decoded);
    if ((found._flags & AMQP_BASIC_MESSAGE_ID_FLAG) != 0) out.message_id = view_of(found.message_id);
    if ((found._flags & AMQP_BASIC_TYPE_FLAG) != 0) out.type = view_of(found.type);
    if ((found._flags & AMQP_BASIC_CONTENT_TYPE_FLAG) != 0) out.content_type = view_of(found.content_type);
    if ((found._flags & AMQP_BASIC_CONTENT_ENCODING_FLAG) != 0) out.content_encoding = view_of(found.content_encoding);
    if ((found._flags & AMQP_BASIC_HEADERS_FLAG) != 0) read_headers(found.headers, out);
}

// Sets args_json, or why the job cannot be run.
OJS_SHUTDOWN_INLINE void read_args(const delivery& from, job& out) {
    std::string_view type = from.content_type;  // "application/json; charset=utf-8"
    if (!equals_ignore_case(trim_blanks(next_part(type, ";")), "application/json")) return;
    const result<json_view> parsed = json_view::parse(from.body, from.body.size());
    if (!parsed) {
        const std::string encoding = from.content_encoding.empty() ? "" : printable(" as " + from.content_encoding);
        out.malformed = cat({"the message says application/json", encoding, ", and is not: ", parsed.error().text});
    } else {
        out.args_json = parsed->type() == json_type::array ? from.body : cat({"[", from.body, "]"});
    }
}
}  // namespace rabbitmq
}  // namespace ojs::detail
