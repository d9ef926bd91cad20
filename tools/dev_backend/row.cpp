#include "row.hpp"

#include <algorithm>
#include <utility>

#include "clock.hpp"
#include "json.hpp"
#include "push_request.hpp"
#include "refusal.hpp"

namespace dev_backend {

namespace {

std::int64_t wall_ms_of(ojs::time_point when) {
    if (when == ojs::time_point::max()) return 0;
    const auto left = std::chrono::duration_cast<milliseconds>(when - ojs::steady_clock::now());
    return wall_ms() + left.count();
}

job_state state_of(const std::string& name) {
    const auto found = std::find(state_names.begin(), state_names.end(), name);
    if (found == state_names.end()) refuse_shape("no state is called " + name);
    return static_cast<job_state>(found - state_names.begin());
}

void require_within(std::int64_t value, std::int64_t max, const char* name) {
    if (value < 0 || value > max) refuse_shape(std::string(name) + " is " + std::to_string(value));
}

// Larger values would overflow; this program never writes them.
void require_own_numbers(const row& kept) {
    constexpr std::int64_t ten_years = 315576000000;       // in ms
    constexpr std::int64_t end_of_time = 253402300800000;  // the year 10000
    require_within(kept.turn, INT64_MAX, "turn");
    require_within(kept.attempt, INT32_MAX, "attempt");
    require_within(kept.lease_ms, ten_years, "lease_ms");
    require_within(kept.retry_delay_ms, end_of_time, "retry_delay_ms");
    require_within(kept.due_ms, INT64_MAX, "due_ms");
    require_within(kept.started_ms, end_of_time, "started_ms");
    require_within(kept.ended_ms, end_of_time, "ended_ms");
}

// Later code slices the JSON without checking it.
ojs::json_view require_json(const std::string& text, const char* column) {
    const ojs::result<ojs::json_view> read = ojs::json_view::parse(text);
    if (!read) refuse_shape(std::string(column) + " is damaged");
    return *read;
}
void require_json(const std::string& text, ojs::json_type type, const char* column) {
    if (require_json(text, column).type() != type) refuse_shape(std::string(column) + " is damaged");
}

std::string array_of(const std::vector<std::string>& jsons) {
    std::string out = "[";
    for (const std::string& json : jsons) out.append(out.size() > 1 ? "," : "").append(json);
    return out + "]";
}

}  // namespace

row row_of(const job& kept) {
    row out;
    out.id = kept.id;
    out.turn = static_cast<std::int64_t>(kept.turn);
    out.is_new = !kept.is_stored;
    if (out.is_new) out.fixed = kept.fixed + "}";
    out.meta = kept.meta;
    out.state = name_of(kept.state);
    out.attempt = kept.attempt;
    if (kept.owner != nullptr) out.worker = kept.owner->id;
    out.lease_ms = kept.lease.count();
    out.due_ms = wall_ms_of(kept.due);
    out.started_ms = kept.started_ms;
    out.ended_ms = kept.ended_ms;
    out.retry_delay_ms = kept.retry_delay.count();
    out.result = kept.result;
    out.error = kept.error;
    out.errors = array_of(kept.errors);
    out.is_dead_letter = kept.is_dead_letter;
    return out;
}

std::unique_ptr<job> job_of(const row& kept) {
    require_own_numbers(kept);
    require_json(kept.fixed, ojs::json_type::object, "fixed");
    require_json(kept.meta, ojs::json_type::object, "meta");
    require_json(kept.errors, ojs::json_type::array, "errors");
    if (!kept.result.empty()) require_json(kept.result, "result");
    if (!kept.error.empty()) require_json(kept.error, "error");
    auto out = std::make_unique<job>();
    const new_job read = read_push(parse_object(kept.fixed), true);
    if (read.id != kept.id) refuse_shape("fixed is that of another job");
    static_cast<job_terms&>(*out) = read;
    out->id = kept.id;
    out->fixed = kept.fixed.substr(0, kept.fixed.size() - 1);
    out->meta = kept.meta;
    out->has_checkpoint = !raw_member(kept.meta, "checkpoint").empty();
    out->attempt = kept.attempt;
    out->turn = static_cast<std::uint64_t>(kept.turn);
    out->state = state_of(kept.state);
    out->lease = milliseconds(kept.lease_ms);
    out->retry_delay = milliseconds(kept.retry_delay_ms);
    out->started_ms = kept.started_ms;
    out->ended_ms = kept.ended_ms;
    out->result = kept.result;
    out->error = kept.error;
    for (const auto& [key, value] : ojs::json_view(kept.errors)) out->errors.emplace_back(value.text());
    out->is_dead_letter = kept.is_dead_letter;
    out->is_stored = true;
    return out;
}

}  // namespace dev_backend
