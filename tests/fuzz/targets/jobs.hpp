// jobs, heartbeat: what a backend answers. A job that may be run has arguments that are a JSON array, numbers keep their
// digits, and what is taken out of JSON as source text is what a parser finds there.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {
// The walk over source text against picojson, which keeps the last of two members of one name and the library the first.
inline void compare_walk(std::string_view object) {
    picojson::value parsed;
    if (!read_json(object, parsed) || !parsed.is<picojson::object>()) return;
    std::size_t members = 0;
    ojs::detail::json_iterator at(object, '{');
    for (; at; ++at) {
        ++members;
        picojson::value name;
        picojson::value content;
        expect(read_json(at->key.text(), name) && name.is<std::string>(), "a key is a string", std::string(object));
        expect(read_json(at->value.text(), content), "a member's text is JSON", std::string(at->value.text()));
    }
    expect(at.is_complete(), "a walk reaches the closing bracket", std::string(object));
    expect(members >= parsed.get<picojson::object>().size(), "no member is missed", std::string(object));
}

inline void check_job(const ojs::job& job) {
    expect(job.attempt >= 0 && job.max_attempts >= 0, "counts are not negative", job.envelope_json);
    for (const std::chrono::milliseconds each : {job.timeout, job.visibility_timeout})
        expect(each.count() >= 0 && each.count() <= 0x7fffffff, "durations fit poll(2)", job.envelope_json);
    compare_walk(job.envelope_json);
    if (!job.malformed.empty()) return;
    expect(ojs::detail::is_json(job.args_json) && ojs::json_view(job.args_json).type() == ojs::json_type::array,
           "arguments are a JSON array", job.args_json);
    if (!fits_picojson(job.args_json)) return;  // picojson cannot read them
    picojson::value args;
    expect(!job.type.empty(), "a job that may be run has a type", job.envelope_json);
    expect(read_json(job.args_json, args) && args.is<picojson::array>(), "arguments are a JSON array", job.args_json);
    ojs::detail::json_iterator at(job.args_json, '[');
    for (const picojson::value& each : args.get<picojson::array>()) {
        picojson::value walked;
        expect(static_cast<bool>(at), "no argument is missed", job.args_json);
        expect(read_json(at->value.text(), walked) && walked == each, "an argument's text is its value",
               std::string(at->value.text()));
        ++at;
    }
    expect(!at, "no argument is made up", job.args_json);
}

inline void jobs(input in) {
    const std::string body(in.rest());
    const auto read = ojs::detail::read_jobs(body);
    if (read) {
        for (const ojs::job& each : *read) check_job(each);
    } else {
        expect(read.error().text.size() <= 400, "an error does not echo the answer", read.error().text);
    }
    picojson::value quoted;
    expect(read_json(ojs::detail::json_quote(body), quoted) && quoted.is<std::string>(), "whatever is quoted is JSON",
           body);
}

inline void heartbeat(input in) {
    const std::string body(in.rest());
    if (!ojs::detail::is_json(body)) return;  // http_transport reads no other
    const ojs::heartbeat_response read = ojs::detail::read_heartbeat(body, {"j1", "j2"});
    if (!fits_picojson(body)) return;
    picojson::value parsed;
    if (!read_json(body, parsed) || !parsed.is<picojson::object>()) {
        expect(read.directive == ojs::directive::none, "only an object directs", body);
        return;
    }
    // A directive is obeyed where a parser finds the word, and an id is extended where a parser finds it.
    const auto says = [&body](const char* word) { return body.find(word) != std::string::npos; };
    if (!says("\\u")) {
        expect(read.directive != ojs::directive::terminate || says("\"terminate\""), "the body has no terminate", body);
        expect(read.directive != ojs::directive::quiet || says("\"quiet\""), "the body has no quiet", body);
    }
    const picojson::value& extended = parsed.get("jobs_extended");
    const std::size_t most = extended.is<picojson::array>() ? extended.get<picojson::array>().size() : 0;
    expect(says("jobs_extended\"") || read.jobs_extended.size() <= most, "no lease is made up", body);
}
}  // namespace fuzz
