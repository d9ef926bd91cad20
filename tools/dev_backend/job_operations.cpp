// PUSH, INFO, CANCEL, ACTIVATE.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "json.hpp"
#include "operations.hpp"
#include "push_members.hpp"
#include "push_request.hpp"

namespace dev_backend {

ojs::http_response push(backend& on, const incoming& in) {
    const new_job given = read_new_push(parse_object(in.request.body), on.options.hyphens);
    const store::lock held(on.jobs.mutex());
    on.jobs.require_unique(given);
    const job& added = on.jobs.add(given);
    ojs::http_response out = json_response(201, envelope(added, "{\"job\":") + "}");
    out.headers.push_back({"Location", "/ojs/v1/jobs/" + added.id});
    return out;
}

namespace {

new_job read_job_of_batch(json_view source, std::size_t index, bool hyphens) {
    try {
        if (source.type() != json_type::object) refuse_shape("a job is not an object");
        return read_new_push(json_members(source), hyphens);
    } catch (refusal& why) {
        why.message.insert(0, "jobs[" + std::to_string(index) + "]: ");
        throw;
    }
}

void require_unique_in(const std::vector<new_job>& batch) {
    for (auto added = batch.begin(); added != batch.end(); ++added) {
        if (!added->unique) continue;
        for (auto before = batch.begin(); before != added; ++before) {
            const bool counts = added->unique->states[static_cast<std::size_t>(first_state_of(*before))];
            if (counts && are_duplicates(*added->unique, identity_of(*added), identity_of(*before)))
                refuse_duplicate("unique: two jobs of the batch are duplicates");
        }
    }
}

}  // namespace

ojs::http_response push_batch(backend& on, const incoming& in) {
    const json_members body = parse_object(in.request.body);
    require_known_batch_members(body);
    const json_view list = body["jobs"];
    if (list.type() != json_type::array || !list.element(0))
        refuse_shape("jobs is missing, empty or not an array");
    std::vector<new_job> given;  // read them all before any is added: all or none
    std::set<std::string> ids;
    for (const auto& [key, each] : list) {
        given.push_back(read_job_of_batch(each, given.size(), on.options.hyphens));
        if (!given.back().id.empty() && !ids.insert(given.back().id).second) refuse_duplicate_id();
    }
    const store::lock held(on.jobs.mutex());
    for (const std::string& id : ids) {
        if (on.jobs.has(id)) refuse_duplicate_id();
    }
    require_unique_in(given);
    for (const new_job& each : given) on.jobs.require_unique(each);
    std::string out = "{\"jobs\":[";
    for (const new_job& each : given) {
        if (out.back() != '[') out += ',';
        out = envelope(on.jobs.add(each), std::move(out));
    }
    return json_response(201, out + "],\"count\":" + std::to_string(given.size()) + "}");
}

ojs::http_response info(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    return json_response(200, envelope(on.jobs.find(in.id), "{\"job\":") + "}");
}

namespace {

std::string moved_answer(const job& moved, const char* previous) {
    return open_envelope(moved, "{\"job\":").text("previous_state", previous).str() + "}";
}

}  // namespace

ojs::http_response cancel(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    const job& found = on.jobs.find(in.id);
    const char* const previous = name_of(found.state);
    if (has_ended(found.state))
        throw refusal{409, "conflict", std::string("the job has ended already: ") + previous};
    on.jobs.cancel(in.id);
    return json_response(200, moved_answer(found, previous));
}

ojs::http_response activate(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    const job& found = on.jobs.find(in.id);
    const char* const previous = name_of(found.state);
    on.jobs.activate(in.id);
    return json_response(200, moved_answer(found, previous));
}

}  // namespace dev_backend
