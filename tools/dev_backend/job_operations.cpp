// PUSH, INFO, CANCEL, queues, and dead letters.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "clock.hpp"
#include "json.hpp"
#include "push_request.hpp"

namespace dev_backend {
namespace {
std::string array_of(const std::vector<const job*>& jobs) {
    std::string out = "[";
    for (const job* each : jobs) out = envelope(*each, std::move(out.append(out.size() > 1 ? "," : "")));
    return out + "]";
}

new_job read_job_of_batch(json_view source, std::size_t index, bool hyphens) {
    try {
        if (source.type() != json_type::object) refuse_shape("a job is not an object");
        return read_new_push(source, hyphens);
    } catch (refusal& why) {
        why.message.insert(0, "jobs[" + std::to_string(index) + "]: ");
        throw;
    }
}
}  // namespace

ojs::http_response push(backend& on, const incoming& in) {
    const new_job given = read_new_push(parse_object(in.request.body), on.options.hyphens);
    const store::lock held(on.jobs.mutex());
    on.jobs.require_new(given);
    const job& added = on.jobs.add(given);
    return json_response(201, envelope(added, "{\"job\":") + "}");
}

ojs::http_response push_batch(backend& on, const incoming& in) {
    const json_view body = parse_object(in.request.body);
    require_known_batch_members(body);
    const json_view list = member(body, "jobs");
    if (list.type() != json_type::array || !list.element(0)) refuse_shape("jobs is missing, empty or not an array");
    std::vector<new_job> given;  // read them all before any is added: all or none
    std::set<std::string> taken;
    for (const auto& [key, each] : list) {
        given.push_back(read_job_of_batch(each, given.size(), on.options.hyphens));
        for (const std::string& name : {given.back().id, given.back().unique_key}) {
            if (!name.empty() && !taken.insert(name).second) refuse_duplicate("two jobs of the batch are duplicates");
        }
    }
    const store::lock held(on.jobs.mutex());
    for (const new_job& each : given) on.jobs.require_new(each);
    std::vector<const job*> added;
    for (const new_job& each : given) added.push_back(&on.jobs.add(each));
    return json_response(
        201, json_object().raw("jobs", array_of(added)).number("count", static_cast<std::int64_t>(added.size())).str());
}

ojs::http_response info(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    return json_response(200, envelope(on.jobs.find(in.id), "{\"job\":") + "}");
}

ojs::http_response cancel(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    job& found = on.jobs.find(in.id);
    const char* const previous = name_of(found.state);
    if (has_ended(found.state)) throw refusal{409, "conflict", std::string("the job has ended already: ") + previous};
    on.jobs.cancel(found);
    return json_response(200, open_envelope(found, "{\"job\":").text("previous_state", previous).str() + "}");
}

ojs::http_response list_queues(backend& on, const incoming&) {
    const store::lock held(on.jobs.mutex());
    std::vector<std::string> shown;
    for (const auto& [name, counts] : on.jobs.count_by_queue())
        shown.push_back(json_object().text("name", name).text("status", "active").str());
    return json_response(200, json_object().raws("queues", shown).str());
}

ojs::http_response queue_stats(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    const auto queues = on.jobs.count_by_queue();
    const auto found = queues.find(in.id);
    if (found == queues.end()) throw refusal{404, "not_found", "no job was ever in this queue"};
    json_object counts;
    for (std::size_t i = 0; i < state_names.size(); ++i) counts.number(state_names[i], found->second[i]);
    return json_response(200,
                         json_object().text("queue", in.id).text("status", "active").raw("stats", counts.str()).str());
}

ojs::http_response list_dead_letters(backend& on, const incoming&) {
    const store::lock held(on.jobs.mutex());
    return json_response(200, json_object().raw("jobs", array_of(on.jobs.dead_letters())).str());
}

ojs::http_response retry_dead_letter(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    job& found = on.jobs.find_dead_letter(in.id);
    on.jobs.retry(found);
    return json_response(200, envelope(found, "{\"job\":") + "}");
}

ojs::http_response remove_dead_letter(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    on.jobs.remove(on.jobs.find_dead_letter(in.id));
    return json_response(200, json_object().flag("deleted", true).text("job_id", in.id).str());
}
}  // namespace dev_backend
