#include "unique_policy.hpp"

#include <picojson.h>

#include <algorithm>

#include "job.hpp"
#include "refusal.hpp"
#include "retry_policy.hpp"

namespace dev_backend {

namespace {

std::vector<std::string> read_texts(const json_members& given, const char* key) {
    const json_view found = given[key];
    if (!found) return {};
    auto texts = texts_of(found);
    if (!texts) refuse_member("unique." + std::string(key) + " is not an array of strings");
    return std::move(*texts);
}

void read_keys(const json_members& given, const char* member, unique_policy& out) {
    for (const std::string& key : read_texts(given, member)) {
        if (key != "type" && key != "queue" && key != "args")
            refuse_member("unique." + std::string(member) + " has \"" + key +
                          "\"; this backend has type, queue and args");
        out.by_queue |= key == "queue";
        out.by_args |= key == "args";
    }
}

std::bitset<8> read_states(const json_members& given, std::bitset<8> fallback) {
    const std::vector<std::string> names = read_texts(given, "states");
    if (names.empty()) return fallback;
    std::bitset<8> out;
    for (const std::string& name : names) {
        const auto* const found = std::find(state_names.begin(), state_names.end(), name);
        if (found == state_names.end())
            refuse_member("unique.states has \"" + name + "\", which is no state");
        out.set(static_cast<std::size_t>(found - state_names.begin()));
    }
    return out;
}

bool are_equal(std::string_view one, std::string_view other) {
    return one == other || *json_view(one).as<picojson::value>() == *json_view(other).as<picojson::value>();
}

}  // namespace

unique_policy read_unique_policy(json_view source) {
    if (source.type() != json_type::object) refuse_member("unique is not an object");
    const json_members given(source);
    unique_policy out;
    for (const char* member : {"keys", "key"}) read_keys(given, member, out);
    out.states = read_states(given, out.states);
    out.period = duration_or(given, "period", out.period, "unique");
    if (const json_view found = given["on_conflict"]; found && found.string().value_or("") != "reject")
        refuse_member("unique.on_conflict is not \"reject\", the only one that this backend has");
    return out;
}

bool are_duplicates(const unique_policy& policy, const job_identity& one, const job_identity& other) {
    return one.type == other.type && (!policy.by_queue || one.queue == other.queue) &&
           (!policy.by_args || are_equal(one.args, other.args));
}

}  // namespace dev_backend
