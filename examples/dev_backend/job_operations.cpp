// PUSH, INFO, CANCEL.
#include <string>
#include <vector>

#include "json.hpp"
#include "json_slicer.hpp"
#include "operations.hpp"
#include "push_request.hpp"

namespace dev_backend {

ojs::http_response push(backend& on, const incoming& in) {
    const new_job given = read_push(parse_object(in.request.body), in.request.body);
    const store::lock held(on.jobs.mutex());
    return json_answer(201, json_object().raw("job", envelope(on.jobs.add(given))).str());
}

ojs::http_response push_batch(backend& on, const incoming& in) {
    const picojson::value parsed = parse_object(in.request.body);
    const picojson::value* list = member(parsed, "jobs");
    if (list == nullptr || !list->is<picojson::array>() || list->get<picojson::array>().empty()) {
        refuse_shape("jobs is missing, empty or not an array");
    }
    const auto elements =
        json_slicer::array_elements(json_slicer::find(json_slicer::object_members(in.request.body), "jobs"));
    const picojson::array& values = list->get<picojson::array>();
    if (elements.size() != values.size()) refuse_shape("jobs is written in a way this backend does not read");
    std::vector<new_job> given;  // read them all before any is added: all or none
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!values[i].is<picojson::object>()) refuse_shape("a job is not an object");
        given.push_back(read_push(values[i], elements[i]));
    }
    const store::lock held(on.jobs.mutex());
    std::string out = "{\"jobs\":[";
    for (const new_job& each : given) {
        if (out.back() != '[') out += ',';
        out += envelope(on.jobs.add(each));
    }
    return json_answer(201, out + "],\"count\":" + std::to_string(given.size()) + "}");
}

ojs::http_response info(backend& on, const std::string& id) {
    const store::lock held(on.jobs.mutex());
    return json_answer(200, json_object().raw("job", envelope(on.jobs.find(id))).str());
}

ojs::http_response cancel(backend& on, const std::string& id) {
    const store::lock held(on.jobs.mutex());
    const job& found = on.jobs.find(id);
    if (found.state != job_state::available && found.state != job_state::active &&
        found.state != job_state::retryable) {
        throw refusal{409, "INVALID_STATE_TRANSITION", "the job has ended already"};
    }
    on.jobs.cancel(id);
    return json_answer(200, json_object().raw("job", envelope(found)).str());
}

}  // namespace dev_backend
