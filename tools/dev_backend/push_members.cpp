#include "push_request.hpp"

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
    {"visibility_timeout_ms", in_either},
    {"delay_until", in_either},
    {"scheduled_at", in_either},
    {"expires_at", in_either},
    {"tags", in_either},
    {"retry", in_either},
    {"unique", in_either},
    {"metadata", in_either},
    {"max_attempts", in_retry},
    {"initial_interval", in_retry},
    {"max_interval", in_retry},
    {"backoff_coefficient", in_retry},
    {"backoff_strategy", in_retry},
    {"jitter", in_retry},
    {"non_retryable_errors", in_retry},
    {"on_exhaustion", in_retry},
    {"keys", in_unique},
    {"period", in_unique},
    {"on_conflict", in_unique},
};

// Only the store sets these: a client's values are ignored. [OJS core 5.3]
constexpr std::string_view ignored_members[] = {"state",          "attempt",      "created_at",   "enqueued_at",
                                                "started_at",     "completed_at", "cancelled_at", "discarded_at",
                                                "retry_delay_ms", "result",       "error",        "errors"};

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
    const auto is_there = [&](const place_name& each) { return (places & each.place) != 0; };
    return std::find_if(std::begin(place_names), std::end(place_names), is_there)->text;
}

unsigned places_of(std::string_view name) {
    const bool is_ignored =
        std::find(std::begin(ignored_members), std::end(ignored_members), name) != std::end(ignored_members);
    if (is_ignored || is_extension_member(name)) return in_job;
    for (const push_member& each : known_members) {
        if (each.name == name) return each.places;
    }
    return 0;
}

void require_known(json_view given, push_place place) {
    for (const auto& [key, value] : given) {
        const std::string name = *key.string();
        const unsigned places = places_of(name);
        if (places == 0) refuse_member("unknown member \"" + name + "\" in " + name_of_first(place));
        if ((places & place) == 0) refuse_member("\"" + name + "\" belongs into " + name_of_first(places));
    }
}
}  // namespace

bool is_extension_member(std::string_view name) { return name.substr(0, 2) == "x_" || name.substr(0, 4) == "ext_"; }

void require_known_members(json_view push) {
    const json_view options = push.member("options");
    require_known(push, in_job);
    require_known(options, in_options);
    for (const json_view each : {push, options}) {
        require_known(each.member("retry"), in_retry);
        require_known(each.member("unique"), in_unique);
    }
}

void require_known_batch_members(json_view batch) { require_known(batch, in_batch); }
}  // namespace dev_backend
