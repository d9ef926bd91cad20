// PUSH, INFO, CANCEL, ACTIVATE.
#include <set>
#include <string>
#include <vector>

#include "json.hpp"
#include "operations.hpp"
#include "push_request.hpp"

namespace dev_backend {

ojs::http_response push(backend& on, const incoming& in) {
    const new_job given = read_push(parse_object(in.request.body), in.request.body, on.options.hyphens);
    const store::lock held(on.jobs.mutex());
    const job& added = on.jobs.add(given);
    ojs::http_response out = json_response(201, json_object().raw("job", envelope(added)).str());
    out.headers.push_back({"Location", "/ojs/v1/jobs/" + added.id});
    return out;
}

ojs::http_response push_batch(backend& on, const incoming& in) {
    const picojson::value parsed = parse_object(in.request.body);
    const picojson::value* list = member(parsed, "jobs");
    if (list == nullptr || !list->is<picojson::array>() || list->get<picojson::array>().empty()) {
        refuse_shape("jobs is missing, empty or not an array");
    }
    std::vector<new_job> given;  // read them all before any is added: all or none
    std::set<std::string> ids;
    auto source = ojs::json_view(source_of(in.request.body, "jobs")).begin();
    for (const picojson::value& each : list->get<picojson::array>()) {
        if (!each.is<picojson::object>()) refuse_shape("a job is not an object");
        given.push_back(read_push(each, source->value.text(), on.options.hyphens));
        ++source;
        if (!given.back().id.empty() && !ids.insert(given.back().id).second) refuse_duplicate();
    }
    const store::lock held(on.jobs.mutex());
    for (const std::string& id : ids) {
        if (on.jobs.has(id)) refuse_duplicate();
    }
    std::string out = "{\"jobs\":[";
    for (const new_job& each : given) {
        if (out.back() != '[') out += ',';
        out += envelope(on.jobs.add(each));
    }
    return json_response(201, out + "],\"count\":" + std::to_string(given.size()) + "}");
}

ojs::http_response info(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    return json_response(200, json_object().raw("job", envelope(on.jobs.find(in.id))).str());
}

namespace {

std::string moved_answer(const job& moved, const char* previous) {
    const json_object shown = json_object::continued(open_envelope(moved)).text("previous_state", previous);
    return json_object().raw("job", shown.str()).str();
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
