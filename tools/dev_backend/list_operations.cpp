// Paged lists: jobs, lifecycle events, dead letters; and the operations on dead letters.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "clock.hpp"
#include "json.hpp"
#include "operations.hpp"
#include "read_number.hpp"

namespace dev_backend {

namespace {

std::uint64_t number_parameter(const incoming& in, const char* name, std::uint64_t min, std::uint64_t max,
                               std::uint64_t fallback) {
    const std::string text = in.parameter(name);
    std::uint64_t out = fallback;
    if (!text.empty() && (!read_number(text, UINT64_MAX, out) || out < min)) {
        refuse_shape(std::string(name) + " is not a number of at least " + std::to_string(min));
    }
    return std::min(out, max);
}

// "email.send", or "email.*" as a prefix.
bool fits_type(const std::string& type, const std::string& pattern) {
    if (pattern.empty() || pattern.back() != '*') return pattern.empty() || type == pattern;
    return type.compare(0, pattern.size() - 1, pattern, 0, pattern.size() - 1) == 0;
}

std::vector<const job*> wanted_jobs(const backend& on, const incoming& in) {
    const std::string queue = in.parameter("queue");
    const std::string state = in.parameter("state");
    const std::string type = in.parameter("type");
    std::vector<const job*> out = on.jobs.in_order_of_arrival();
    const auto is_other = [&](const job* each) {
        return (!queue.empty() && each->queue != queue) ||
               (!state.empty() && state != name_of(each->state)) || !fits_type(each->type, type);
    };
    out.erase(std::remove_if(out.begin(), out.end(), is_other), out.end());
    return out;
}

constexpr std::size_t largest_page = 100;

// Jobs after the cursor, which is the turn of the last one shown. [OJS HTTP 17]
std::string page_of(std::vector<const job*> all, const incoming& in) {
    const std::uint64_t limit = number_parameter(in, "limit", 1, largest_page, 50);
    const std::uint64_t after = number_parameter(in, "cursor", 0, UINT64_MAX, 0);
    const std::uint64_t offset = number_parameter(in, "offset", 0, INT64_MAX, 0);
    const std::size_t total = all.size();
    all.erase(std::remove_if(all.begin(), all.end(), [&](const job* each) { return each->turn <= after; }),
              all.end());
    all.erase(all.begin(),
              all.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(offset, all.size())));
    const bool has_more = all.size() > limit;
    if (has_more) all.resize(limit);
    std::vector<std::string> shown;
    for (const job* each : all) shown.push_back(envelope(*each));
    json_object pages;
    pages.number("total", static_cast<std::int64_t>(total)).number("limit", static_cast<std::int64_t>(limit));
    pages.number("offset", static_cast<std::int64_t>(offset)).flag("has_more", has_more);
    if (has_more) pages.text("next_cursor", std::to_string(all.back()->turn));
    return json_object().raws("jobs", shown).raw("pagination", pages.str()).str();
}

}  // namespace

ojs::http_response list_jobs(backend& on, const incoming& in) {
    const std::uint64_t page = number_parameter(in, "page", 1, 1000000, 1);
    const std::uint64_t per_page = number_parameter(in, "per_page", 1, largest_page, 20);
    const bool oldest_first = in.parameter("order") == "asc";
    const store::lock held(on.jobs.mutex());
    std::vector<const job*> all = wanted_jobs(on, in);
    if (!oldest_first) std::reverse(all.begin(), all.end());
    std::vector<std::string> items;
    for (std::uint64_t i = (page - 1) * per_page; i < all.size() && items.size() < per_page; ++i) {
        items.push_back(envelope(*all[i]));
    }
    json_object pages;
    pages.number("total", static_cast<std::int64_t>(all.size()))
        .number("page", static_cast<std::int64_t>(page));
    pages.number("per_page", static_cast<std::int64_t>(per_page));
    return json_response(200, json_object().raws("items", items).raw("pagination", pages.str()).str());
}

ojs::http_response list_events(backend& on, const incoming& in) {
    event_filter filter;
    filter.after = in.parameter("after");
    filter.types = in.texts_parameter("types");
    filter.queues = in.texts_parameter("queues");
    filter.job_types = in.texts_parameter("job_types");
    filter.limit = number_parameter(in, "limit", 1, 1000, filter.limit);
    const store::lock held(on.jobs.mutex());
    return json_response(200, on.jobs.feed().list(filter));
}

ojs::http_response list_dead_letters(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    std::vector<const job*> all = wanted_jobs(on, in);
    all.erase(std::remove_if(all.begin(), all.end(), [](const job* each) { return !each->is_dead_letter; }),
              all.end());
    return json_response(200, page_of(std::move(all), in));
}

ojs::http_response retry_dead_letter(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    on.jobs.retry_dead_letter(in.id);
    json_object shown = open_envelope(on.jobs.find(in.id), "{\"job\":");
    return json_response(200, shown.text("re_enqueued_at", iso_time()).str() + "}");
}

ojs::http_response remove_dead_letter(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    on.jobs.remove_dead_letter(in.id);
    return json_response(200, json_object().flag("deleted", true).text("job_id", in.id).str());
}

}  // namespace dev_backend
