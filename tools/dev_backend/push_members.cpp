#include "push_members.hpp"

#include <algorithm>
#include <iterator>
#include <string>

#include "refusal.hpp"

namespace dev_backend {

namespace {

// Where a member may be, in bits.
enum push_place : unsigned { in_batch = 1, in_job = 2, in_options = 4, in_retry = 8, in_unique = 16 };

struct push_member {
    std::string_view name;
    unsigned places;
};

constexpr unsigned in_either = in_options | in_job;

constexpr push_member known_members[] = {
    {"jobs", in_batch},
    {"type", in_job},
    {"args", in_job},
    {"id", in_job},
    {"meta", in_job},
    {"schema", in_job},
    {"specversion", in_job},
    {"options", in_job},
    {"queue", in_either},
    {"priority", in_either},
    {"timeout", in_either},
    {"timeout_ms", in_either},
    {"visibility_timeout", in_either},
    {"visibility_timeout_ms", in_either},
    {"delay_until", in_either},
    {"scheduled_at", in_either},
    {"expires_at", in_either},
    {"pending", in_either},
    {"tags", in_either},
    {"retry", in_either},
    {"unique", in_either},
    {"metadata", in_either},
    {"max_attempts", in_retry},
    {"initial_interval", in_retry},
    {"initial_interval_ms", in_retry},
    {"max_interval", in_retry},
    {"max_interval_ms", in_retry},
    {"backoff_coefficient", in_retry},
    {"backoff_strategy", in_retry},
    {"jitter", in_retry},
    {"non_retryable_errors", in_retry},
    {"on_exhaustion", in_retry},
    {"keys", in_unique},
    {"key", in_unique},
    {"period", in_unique},
    {"period_ms", in_unique},
    {"states", in_unique},
    {"on_conflict", in_unique},
    // Only the store sets these: a client's values are ignored. [OJS core 5.3]
    {"state", in_job},
    {"attempt", in_job},
    {"created_at", in_job},
    {"enqueued_at", in_job},
    {"started_at", in_job},
    {"completed_at", in_job},
    {"cancelled_at", in_job},
    {"discarded_at", in_job},
    {"retry_delay_ms", in_job},
    {"result", in_job},
    {"error", in_job},
    {"errors", in_job},
};

struct place_name {
    push_place place;
    const char* text;
};

// Of several places the first one is advised.
constexpr place_name place_names[] = {{in_options, "\"options\""},
                                      {in_retry, "\"options.retry\""},
                                      {in_unique, "\"options.unique\""},
                                      {in_job, "the job itself"},
                                      {in_batch, "the body of a batch"}};

const char* name_of_first(unsigned places) {
    return std::find_if(std::begin(place_names), std::end(place_names),
                        [&](const place_name& each) { return (places & each.place) != 0; })
        ->text;
}

unsigned places_of(std::string_view name) {
    if (is_extension_member(name)) return in_job;
    const auto* const found = std::find_if(std::begin(known_members), std::end(known_members),
                                           [&](const push_member& each) { return each.name == name; });
    return found == std::end(known_members) ? 0 : found->places;
}

void require_known(const json_members& given, push_place place) {
    for (const auto& [key, value] : given.all()) {
        const std::string name = *key.string();
        const unsigned places = places_of(name);
        if ((places & place) != 0) continue;
        std::string why = places == 0 ? "unknown member \"" + name + "\" in " + name_of_first(place)
                                      : "\"" + name + "\" belongs into " + name_of_first(places);
        refuse_member(std::move(why));
    }
}

}  // namespace

bool is_extension_member(std::string_view name) {
    return name.substr(0, 2) == "x_" || name.substr(0, 4) == "ext_";
}

void require_known_members(const json_members& push) {
    const json_members options(push["options"]);
    require_known(push, in_job);
    require_known(options, in_options);
    for (const json_members* each : {&push, &options}) {
        require_known(json_members((*each)["retry"]), in_retry);
        require_known(json_members((*each)["unique"]), in_unique);
    }
}

void require_known_batch_members(const json_members& batch) {
    require_known(batch, in_batch);
}

}  // namespace dev_backend
