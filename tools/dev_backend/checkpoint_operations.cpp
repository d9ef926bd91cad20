// Checkpoints, which are kept until their job is completed.
#include <string>
#include <string_view>

#include "json.hpp"
#include "operations.hpp"

namespace dev_backend {

namespace {

std::string checkpoint_answer(const std::string& id, std::string_view state) {
    json_object inner;
    inner.text("job_id", id);
    if (!state.empty()) inner.raw("state", state);
    return json_object().raw("checkpoint", inner.str()).str();
}

}  // namespace

ojs::http_response save_checkpoint(backend& on, const incoming& in) {
    json_object event = on.events.fields();
    const std::string from(ojs::find_header(in.request.headers, "X-OJS-Worker-ID"));
    event.text("job_id", in.id).text("worker_id", from);
    ojs::http_response out = json_response(200, checkpoint_answer(in.id, {}));
    store::lock held(on.jobs.mutex(), std::defer_lock);
    try {
        parse_object(in.request.body);
        const std::string_view state = raw_member(in.request.body, "state");
        if (state.empty()) refuse_shape("state is missing");
        held.lock();
        const job& of = on.jobs.find(in.id);
        require_holder(of, from);
        require_active(of);
        if (state.size() > on.options.max_checkpoint) {
            throw refusal{413, "invalid_payload", "the checkpoint is too large"};
        }
        on.jobs.keep_checkpoint(in.id, state);
        event.raw("state", state);
    } catch (const refusal& why) {
        out = error_answer(why, in);
    }
    if (!held.owns_lock()) held.lock();
    event.number("status", out.status);
    if (in.lost) event.flag("lost", true);
    on.events.write("checkpoint", event);
    return out;
}

ojs::http_response load_checkpoint(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    const job& of = on.jobs.find(in.id);
    if (!of.has_checkpoint) throw refusal{404, "not_found", "the job has no checkpoint"};
    return json_response(200, checkpoint_answer(in.id, checkpoint_of(of)));
}

ojs::http_response drop_checkpoint(backend& on, const incoming& in) {
    const store::lock held(on.jobs.mutex());
    const job& of = on.jobs.find(in.id);
    if (!of.has_checkpoint) throw refusal{404, "not_found", "the job has no checkpoint"};
    require_holder(of, ojs::find_header(in.request.headers, "X-OJS-Worker-ID"));
    on.jobs.forget_checkpoint(in.id);
    on.events.write("checkpoint_dropped", on.events.fields().text("job_id", in.id));
    return json_response(200, json_object().flag("deleted", true).text("job_id", in.id).str());
}

}  // namespace dev_backend
