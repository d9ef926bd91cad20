// A handler that enqueues a follow-up job. The id of that is derived from its own job's id, so that a run which is repeated,
// as after a crash, enqueues nothing twice.
//
//     build/dev_backend & build/follow_up & build/ojs push order.ship 4711
#include <cstdio>
#include <string>

#include "ojs_client.hpp"

namespace {
void print(const char* what, const ojs::job_context& job) {
    std::printf("%s %s\n", what, job.id().c_str());
    std::fflush(stdout);
}

ojs::outcome ship(const ojs::client& client, ojs::job_context& job) {
    print("shipped", job);
    ojs::enqueue_request mail;
    mail.type = "order.mail";
    mail.args_json = job.args_json();
    mail.id = ojs::follow_up_id(job.id(), "mail");
    const auto sent = client.enqueue(mail, {ojs::deadline_after(std::chrono::seconds(20)), job.token()});
    if (sent) return ojs::outcome::done();  // enqueued now, or by an earlier run
    if (sent.error().code == ojs::errc::cancelled) return ojs::outcome::interrupted();
    return ojs::outcome::retry(sent.error().text);
}
}  // namespace

int main() {
    const auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    const auto client = ojs::client::create(*options);  // of the same server
    if (!client) return ojs::report_startup_error(client.error());
    ojs::worker worker(*options);
    worker.register_handler("order.ship", [&](ojs::job_context& job) { return ship(*client, job); });
    worker.register_handler("order.mail", [](ojs::job_context& job) { print("mailed", job); });
    return worker.run();
}
