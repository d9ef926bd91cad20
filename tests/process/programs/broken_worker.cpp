// A worker that breaks the requirement of --break ID on purpose: what shutdown-probe is tested on. --serial: one job at
// a time. --dies: no handler of SIGTERM. --list: for each ID the check that must fail, and the scenario that shows it.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "ojs_server.hpp"

namespace {
using std::chrono::milliseconds;

// By the scenario that shows them. An id is that of the check that must fail, and what tells it from others of that check.
struct breakages {
    const char* scenario;
    const char* ids;
};

constexpr breakages all_breakages[] = {
    {"drain", "GS-001 GS-004 NO-FETCH LAST-BEAT ONCE EXIT-0 SENDER BEATS-JOBS LAST-BEAT-twice"},
    {"sigint", "GS-002"},
    {"grace", "GS-003 GS-005 ATTEMPT GS-005-final"},
    {"tstp", "GS-R001 RESUME"},
    {"second-term", "GS-R002"},
    {"progress", "GS-R003"},
    {"readiness", "GS-R004 LIVE"},
    {"slow-ack", "BEATS-END"},
    {"many-fails", "FAIL-FAST"},
    {"fetch-in-flight", "IN-FLIGHT HAND-BACK"},
    {"lost-answer", "LOST"},
    {"away-and-back", "AWAY-BACK"},
    {"away-for-good", "AWAY-GOOD UNREPORTED"},
    {"hostile", "HOSTILE"},
    {"strict", "STRICT"},
    {"directives", "DIR-QUIET DIR-STAYS"},
    {"terminate", "DIR-TERM"},
    {"storm", "STORM"},
    {"sent-twice", "TWICE"},
    {"cont-after-term", "CONT"},
    {"early-term", "EARLY"},
    {"concurrency", "SLOTS"},
    {"deaf", "DEAF DEAF-refused"},
    {"frozen", "FROZEN FROZEN-silent"},
    {"cancelled", "CANCELLED"},
    {"grace-default", "GS-003-default"},
};

std::string_view broken;  // the id, or empty
bool serial = false;
bool dies = false;

bool breaks(std::string_view id) { return broken == id; }

// What the parts of a breakage know of each other.
ojs::worker* the_worker = nullptr;
std::atomic<bool> call_failed{false};
std::atomic<int> spinning{0};

[[noreturn]] void hang() {
    for (;;) ::pause();
}

// Passes everything on, and does its worst on the way.
class wicked_transport final : public ojs::transport {
  public:
    wicked_transport(ojs::http_client client, ojs::http_client other, ojs::lifecycle& life)
        : inner_(ojs::make_http_transport(std::move(client))), other_(std::move(other)), life_(life) {}

    ojs::result<std::vector<ojs::job>> fetch(const ojs::fetch_request& request, ojs::time_point deadline) override {
        if (dies) ::signal(SIGTERM, SIG_DFL);
        ojs::result<std::vector<ojs::job>> got = inner_->fetch(request, deadline);
        if (!got && got.error().code == ojs::errc::bad_response && breaks("HOSTILE")) ::_exit(3);
        if (breaks("IN-FLIGHT") && life_.phase() >= ojs::phase::draining) return std::vector<ojs::job>();
        return got;
    }

    ojs::result<ojs::settle_result> ack(const ojs::ack_request& request, ojs::time_point deadline) override {
        const auto now = count_settlement();
        if (breaks("LOST")) return ack_once(request, "", deadline);
        if (breaks("STRICT")) return ack_once(request, ",\"worker\":\"me\"", deadline);
        if (breaks("ONCE")) static_cast<void>(inner_->ack(request, deadline));
        ojs::result<ojs::settle_result> got = inner_->ack(request, deadline);
        if (!got && breaks("AWAY-BACK")) return ojs::settle_result::accepted;
        return got;
    }

    ojs::result<ojs::settle_result> fail(const ojs::fail_request& request, ojs::time_point deadline) override {
        const auto now = count_settlement();
        std::unique_lock<std::mutex> alone(one_by_one_, std::defer_lock);
        if (breaks("FAIL-FAST")) alone.lock();
        ojs::fail_request changed = request;
        if (breaks("ATTEMPT") || breaks("HAND-BACK")) changed.requeue = false;
        if (breaks("GS-005-final")) changed.error.retryable = false;
        ojs::result<ojs::settle_result> got = inner_->fail(changed, deadline);
        if (!got) call_failed = true;
        return got;
    }

    ojs::result<ojs::heartbeat_response> heartbeat(const ojs::heartbeat_request& request,
                                                   ojs::time_point deadline) override {
        if (breaks("STORM")) ::signal(SIGCONT, [](int) { ::_exit(3); });
        if (request.state == "quiet") quiet_beat(request, deadline);
        const bool last = request.state == "terminate";
        const ojs::time_point before = std::exchange(last_beat_, ojs::steady_clock::now());
        if (last_beat_ - before > std::chrono::seconds(1)) froze_ = true;
        const bool muted = (breaks("FROZEN-silent") && froze_) ||
                           (breaks("GS-004") && request.state == "quiet" && quiet_beats_++ > 0) ||
                           (breaks("LAST-BEAT") && last) || (breaks("BEATS-END") && settling_ > 0);
        if (muted) return ojs::heartbeat_response();
        if (breaks("LAST-BEAT-twice") && last) static_cast<void>(inner_->heartbeat(request, deadline));
        ojs::heartbeat_request changed = request;
        if (breaks("BEATS-JOBS")) changed.active_jobs.clear();
        if (breaks("CONT") && ojs::detail::lifecycle_access::requests(life_, ojs::event::resume_request) > 0 && !last)
            changed.state = "running";
        ojs::result<ojs::heartbeat_response> got = inner_->heartbeat(changed, deadline);
        if (got) twist(*got);
        return got;
    }

    ojs::result<bool> confirm_claim(const ojs::job_request& query, ojs::time_point deadline) override {
        const bool ignores = breaks("CANCELLED") || breaks("FROZEN");
        return ignores ? ojs::result<bool>(true) : inner_->confirm_claim(query, deadline);
    }

  private:
    // Counted while the result lives.
    std::shared_ptr<void> count_settlement() {
        ++settling_;
        return {nullptr, [this](void*) { --settling_; }};
    }

    void quiet_beat(const ojs::heartbeat_request& request, ojs::time_point deadline) {
        if (!breaks("NO-FETCH")) return;
        ojs::fetch_request more;
        more.worker = request.worker;
        static_cast<void>(inner_->fetch(more, deadline));
    }

    void twist(ojs::heartbeat_response& answer) {
        const ojs::directive said = answer.directive;
        if (said == ojs::directive::quiet && breaks("DIR-QUIET")) answer.directive = ojs::directive::none;
        if (said == ojs::directive::terminate && breaks("DIR-TERM")) answer.directive = ojs::directive::none;
        if (!breaks("DIR-STAYS")) return;
        if (said == ojs::directive::quiet) was_told_ = true;
        if (said == ojs::directive::none && was_told_) the_worker->resume();
    }

    // Without a second try: whatever the backend says, or does not say, counts as accepted.
    ojs::result<ojs::settle_result> ack_once(const ojs::ack_request& request, const char* more,
                                             ojs::time_point deadline) {
        ojs::http_request post;
        post.method = "POST";
        post.target = "/ojs/v1/workers/ack";
        post.body = "{\"job_id\":\"" + request.job_id + "\"" + more + "}";
        static_cast<void>(other_.send(post, {deadline}));
        return ojs::settle_result::accepted;
    }

    const ojs::transport_ref inner_;
    ojs::http_client other_;
    ojs::lifecycle& life_;
    std::mutex one_by_one_;
    std::atomic<int> settling_{0};
    std::atomic<int> quiet_beats_{0};
    ojs::time_point last_beat_ = ojs::steady_clock::now();  // of the thread that beats, as is the next one
    bool froze_ = false;
    std::atomic<bool> was_told_{false};
};

// ---- handlers, as the contract of the probe has them ----

ojs::outcome sleep_a_while(ojs::job_context& job) {
    const auto ms = job.arg<std::int64_t>(0);
    if (!ms) return ojs::outcome::discard("needs a number of milliseconds");
    return job.sleep_for(milliseconds(*ms)) ? ojs::outcome::done() : ojs::outcome::interrupted("woken up");
}

// Deaf; without the processor time that the contract asks for, which is not judged.
ojs::outcome spin(ojs::job_context& job) {
    const auto ms = job.arg<std::int64_t>(0);
    if (!ms) return ojs::outcome::discard("needs a number of milliseconds");
    if (breaks("DEAF-refused")) return ojs::outcome::retry("no such type");
    ++spinning;
    const auto until = ojs::steady_clock::now() + milliseconds(*ms);
    while (ojs::steady_clock::now() < until) ::usleep(1000);
    --spinning;
    return ojs::outcome::done();
}

// ---- options ----

void end_too_late() {
    if (breaks("AWAY-GOOD") && call_failed) hang();
    if (breaks("DEAF") && spinning > 0) hang();
}

void write_edited(const ojs::log_record& record) {
    ojs::log_record edited = record;
    edited.fields.clear();
    for (const ojs::log_field& field : record.fields) {
        const bool hidden =
            breaks("GS-R003") ? field.name == "active_jobs" : field.name == "sender_pid" || field.name == "sender";
        if (!hidden) edited.fields.push_back(field);
    }
    const std::string line = ojs::format_log_record(edited, ojs::log_format::text) + "\n";
    static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
}

void spoil(ojs::worker_options& options) {
    if (breaks("GS-001")) options.profile.drain_state = "running";
    if (breaks("GS-003")) options.times.shutdown_grace_period = milliseconds(100);
    if (breaks("GS-003-default") && options.times.shutdown_grace_period == milliseconds(30000))
        options.times.shutdown_grace_period = milliseconds(1000);
    if (breaks("GS-005")) options.profile.interrupted_error = "handler_error";
    if (breaks("GS-R002")) options.signal_debounce = std::chrono::hours(1);
    if (breaks("TWICE")) options.signal_debounce = milliseconds(0);
    if (serial) options.concurrency = 1;
    if (breaks("SLOTS")) options.concurrency *= 6;  // by far, so that a slow machine does not hide it
    if (breaks("FROZEN")) options.visibility_timeout = std::chrono::hours(1);
    if (breaks("GS-R003") || breaks("SENDER")) options.log.hook = write_edited;
}

// ---- signals and health ----

// Before the library takes the signals: it leaves alone what is ignored.
void spoil_signals() {
    if (breaks("GS-002")) ::signal(SIGINT, SIG_IGN);
    if (breaks("GS-R001")) ::signal(SIGTSTP, SIG_IGN);
    if (breaks("RESUME")) ::signal(SIGCONT, SIG_IGN);
    if (!breaks("EARLY")) return;
    ::signal(SIGTERM, SIG_IGN);
    ::usleep(500000);
    ::signal(SIGTERM, SIG_DFL);
}

// Its own, so that each answer can be broken by itself.
ojs::result<ojs::http_server> serve_health(const char* address, const ojs::lifecycle& life) {
    return ojs::http_server::start(address, [&life](const ojs::http_request& request) {
        const bool quiet = life.phase() != ojs::phase::running;
        ojs::http_response out;
        out.status = 404;
        if (request.target == "/readyz") out.status = quiet && !breaks("GS-R004") ? 503 : 200;
        if (request.target == "/livez") out.status = quiet && breaks("LIVE") ? 503 : 200;
        return out;
    });
}

int work(ojs::lifecycle& lifecycle) {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    spoil(*options);
    lifecycle.set_signal_debounce(options->signal_debounce);
    std::optional<ojs::result<ojs::http_server>> health;
    if (const char* address = std::getenv("OJS_HEALTH_ADDR")) {
        health = serve_health(address, lifecycle);
        if (!*health) return ojs::report_startup_error(health->error());
    }
    auto client = ojs::make_backend_client(options->url);
    auto other = ojs::make_backend_client(options->url);
    if (!client || !other) return 64;
    wicked_transport transport(std::move(*client), std::move(*other), lifecycle);
    ojs::worker worker(*options, transport, lifecycle);
    the_worker = &worker;
    worker.register_handler("probe.sleep", sleep_a_while);
    worker.register_handler("probe.spin", spin);
    worker.on_shutdown("end too late", end_too_late, ojs::no_limit);
    const int status = worker.run();
    if (breaks("UNREPORTED")) return 0;
    return breaks("EXIT-0") ? 1 : status;
}
}  // namespace

int main(int argc, char** argv) {
    const std::string_view mode = argc == 2 ? argv[1] : "";
    serial = mode == "--serial";
    dies = mode == "--dies";
    if (mode == "--list") {
        for (const breakages& of : all_breakages) {
            std::istringstream ids(of.ids);
            for (std::string id; ids >> id;) {
                const std::string check = id.substr(0, id.find_first_of("abcdefghijklmnopqrstuvwxyz") - 1);
                std::printf("%s %s %s\n", id.c_str(), check.c_str(), of.scenario);
            }
        }
        return 0;
    }
    if (argc == 3) broken = argv[2];
    spoil_signals();
    ojs::lifecycle lifecycle;
    const auto signals = ojs::signals::install(lifecycle);
    if (!signals) return ojs::report_startup_error(signals.error());
    return work(lifecycle);
}
