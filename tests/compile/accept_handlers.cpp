// flags: -Wpedantic -Waddress -Wshadow -Wconversion -Wzero-as-null-pointer-constant
// What may be given as a handler, and as a function: some of these can be compared with nullptr, and must not warn.
#include <functional>
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

ojs::outcome plain(ojs::job_context&) {
    return {};
}
void silent(const ojs::job_context&) noexcept {}

void set_up(ojs::worker& worker, const ojs::job_handler& own) {
    worker.register_handler("a", plain);
    worker.register_handler("b", &silent);
    worker.register_handler("c", own);
    worker.register_handler("d", std::function<std::string(ojs::job_context&)>());
    worker.register_handler("e", [](auto& job) { return job.args_json(); });
    worker.register_handler("f", [](ojs::job_context&) { return "null"; });
    worker.register_handler("g", [](ojs::job_context& job) mutable { return ojs::outcome::retry(job.id()); });
    worker.register_handler("h", [](ojs::job_context&) -> ojs::outcome { return {}; }, {true});
}
