#include <picojson.h>

#include "file_tree.hpp"
#include "standard_error.hpp"

namespace {
using variables = std::map<std::string, std::string>;

result<worker_options> read(const variables& set, const std::string& root = "/nonexistent") {
    return worker_options::from_environment(
        [&set](const char* name) -> const char* {
            const auto found = set.find(name);
            return found == set.end() ? nullptr : found->second.c_str();
        },
        root);
}

worker_options good(const variables& set) {
    const result<worker_options> out = read(set);
    if (!out) MESSAGE(out.error().text);
    REQUIRE(out);
    return *out;
}

// The value is refused, and the text names the variable and the value.
void check_bad(const std::string& name, const std::string& value, errc code = errc::invalid_argument) {
    CAPTURE(name);
    CAPTURE(value);
    const result<worker_options> out = read({{name, value}});
    REQUIRE(!out);
    CAPTURE(out.error().text);
    CHECK(out.error().code == code);
    CHECK(holds(out.error().text, name + "='" + value + "'"));
}

// As check_bad(), of a value that the text may show otherwise, with the fault.
void check_refused(const char* name, const char* value, const char* fault) {
    CAPTURE(name);
    CAPTURE(value);
    const result<worker_options> refused = read({{name, value}});
    REQUIRE(!refused);
    CHECK(refused.error().text.find(name + std::string("='")) == 0);
    CHECK(holds(refused.error().text, fault));
}

// validate() refuses what `change` makes of the defaults, and the text holds `part`.
template <class Change>
void refused(const char* part, Change change) {
    CAPTURE(part);
    worker_options options;
    change(options);
    const result<void> valid = validate(options);
    REQUIRE(!valid);
    CHECK(valid.error().code == errc::invalid_argument);
    CHECK(holds(valid.error().text, part));
}

using milliseconds = std::chrono::milliseconds;
struct duration_variable {
    const char* name;
    milliseconds stop_times::*of_times;
    milliseconds worker_options::*own = nullptr;
    milliseconds value(const worker_options& in) const { return own == nullptr ? in.times.*of_times : in.*own; }
};
const duration_variable duration_variables[] = {
    {"OJS_SHUTDOWN_GRACE_PERIOD", &stop_times::shutdown_grace_period},
    {"OJS_GRACE_PERIOD", &stop_times::shutdown_grace_period},
    {"OJS_SHUTDOWN_TIMEOUT", &stop_times::shutdown_grace_period},
    {"OJS_STOP_TIMEOUT", &stop_times::stop_timeout},
    {"OJS_CANCEL_GRACE", &stop_times::cancel_grace},
    {"OJS_RECLAIM_GRACE", &stop_times::reclaim_grace},
    {"OJS_CANCEL_BEFORE_DEADLINE", &stop_times::cancel_before_deadline},
    {"OJS_HEARTBEAT_INTERVAL", nullptr, &worker_options::heartbeat_interval},
    {"OJS_POLL_INTERVAL", nullptr, &worker_options::poll_interval},
    {"OJS_VISIBILITY_TIMEOUT", nullptr, &worker_options::visibility_timeout},
    {"OJS_REQUEST_TIMEOUT", nullptr, &worker_options::request_timeout},
    {"OJS_STUCK_AFTER", nullptr, &worker_options::stuck_after},
    {"OJS_SIGNAL_DEBOUNCE", nullptr, &worker_options::signal_debounce},
    {"OJS_PROGRESS_INTERVAL", nullptr, &worker_options::progress_interval},
};
}  // namespace

// [GS-003] [WP 4.2 (a)] [WP 5.2] [WP 8.1]
TEST_CASE("options: an empty environment gives valid defaults") {
    const worker_options out = good({});
    CHECK(out.url == "http://127.0.0.1:8080");  // the others are in docs/options.md, which is tested below
    CHECK(out.times.shutdown_grace_period == 30s);
    CHECK(out.heartbeat_interval == 5s);
    CHECK(out.visibility_timeout == 30s);
    CHECK(out.profile.interrupted_error == "ShutdownError");
    CHECK(out.profile.last_state == "terminate");
    CHECK(validate(out));
    CHECK(validate(worker_options()));
}

// [WP 7.3]
TEST_CASE("options: a profile sets its grace period, and a variable overrides the profile") {
    CHECK(good({{"OJS_PROFILE", "graceful_shutdown"}}).times.shutdown_grace_period == 30s);
    CHECK(good({{"OJS_PROFILE", "website"}}).profile.interrupted_error == "shutdown");
    const worker_options out = good({{"OJS_PROFILE", "worker_protocol"}});
    CHECK(out.times.shutdown_grace_period == 25s);
    CHECK(out.profile.active_jobs_as_count);
    CHECK(out.profile.drain_state == "terminate");
    const worker_options spot = good({{"OJS_PROFILE", "spot_controller"}, {"OJS_CANCEL_BEFORE_DEADLINE", "3s"}});
    CHECK(spot.times.shutdown_grace_period == 3550s);
    CHECK(spot.times.cancel_before_deadline == 3s);
    CHECK(spot.termination_mode_file == "/tmp/termination-type");
    CHECK(good({{"OJS_PROFILE", "worker_protocol"}, {"OJS_GRACE_PERIOD", "7s"}}).times.shutdown_grace_period == 7s);
    for (const char* value : {"", "Website", "tide"}) check_bad("OJS_PROFILE", value);
    CHECK(good({}).on_unknown_type == unknown_type_action::requeue);
    CHECK(good({{"OJS_ON_UNKNOWN_TYPE", "requeue"}}).on_unknown_type == unknown_type_action::requeue);
    CHECK(good({{"OJS_ON_UNKNOWN_TYPE", "fail"}}).on_unknown_type == unknown_type_action::fail);
    CHECK(good({{"OJS_ON_UNKNOWN_TYPE", "discard"}}).on_unknown_type == unknown_type_action::discard);
    for (const char* value : {"", "Requeue", "ignore"}) check_bad("OJS_ON_UNKNOWN_TYPE", value);
    worker_options set;
    set.apply_profile(profile::worker_protocol());
    CHECK(set.times.shutdown_grace_period == 25s);
    CHECK(set.profile.interrupted_error == "shutdown");
    set.apply_profile(profile::spot_controller());
    CHECK(set.times.cancel_before_deadline == 10s);
    CHECK(set.times.cancel_grace == 0s);
    set.apply_profile({});
    CHECK(set.times.cancel_before_deadline == 0s);
    CHECK(set.termination_mode_file.empty());
}

TEST_CASE("options: a variable sets its option, and durations may omit the unit") {
    const worker_options out = good({{"OJS_URL", "http://backend:81/base"},
                                     {"OJS_QUEUES", "a, b ,c"},
                                     {"OJS_CONCURRENCY", "1000"},
                                     {"OJS_LABELS", "x,y"},
                                     {"OJS_WORKER_ID", "w-1"},
                                     {"OJS_AUTH_TOKEN", "s3cret"},
                                     {"OJS_TERMINATION_MODE_FILE", "/run/mode"},
                                     {"OJS_LOG_LEVEL", "error"},
                                     {"OJS_LOG_FORMAT", "json"}});
    CHECK(out.url == "http://backend:81/base");
    CHECK(out.queues == std::vector<std::string>{"a", "b", "c"});
    CHECK(out.concurrency == 1000);
    CHECK(out.labels == std::vector<std::string>{"x", "y"});
    CHECK(out.worker_id == "w-1");
    CHECK(out.auth_token == "s3cret");
    CHECK(out.termination_mode_file == "/run/mode");
    CHECK(out.log.level == log_level::error);
    CHECK(out.log.format == log_format::json);
    CHECK(good({{"OJS_CONCURRENCY", "1"}}).concurrency == 1);
    CHECK(good({{"OJS_TERMINATION_MODE_FILE", " mode "}}).termination_mode_file ==
          std::filesystem::current_path().string() + "/mode");
    CHECK(good({{"OJS_URL", "memory:"}}).url == "memory:");
    CHECK(good({{"OJS_URL", "unix:/run/ojs.sock"}}).url == "unix:/run/ojs.sock");
    for (const duration_variable& each : duration_variables) {
        CAPTURE(each.name);
        // Longer than the shortest beat and shorter than the longest lease, so every one of them may have it.
        const std::string name = each.name;
        const bool is_beat = name == "OJS_HEARTBEAT_INTERVAL";
        const worker_options longer = good({{name, is_beat ? "2500ms" : "1m1s500ms"}});
        CHECK(each.value(longer) == (is_beat ? 2500ms : 61500ms));
        const bool is_lease = name == "OJS_VISIBILITY_TIMEOUT";
        const worker_options plain = good({{name, "7"}, {"OJS_VISIBILITY_TIMEOUT", is_lease ? "7" : "1h"}});
        CHECK(each.value(plain) == 7s);
    }
}

TEST_CASE("options: if several variables of one option are set, only the first is read") {
    CHECK(good({{"OJS_BACKEND_URL", "http://b"}}).url == "http://b");
    CHECK(good({{"OJS_BACKEND_URL", "http://b"}, {"OJS_URL", "http://a"}}).url == "http://a");
    CHECK(good({{"OJS_QUEUE", "q"}}).queues == std::vector<std::string>{"q"});
    CHECK(good({{"OJS_QUEUE", "q"}, {"OJS_QUEUES", "p"}}).queues == std::vector<std::string>{"p"});
    variables grace = {{"OJS_SHUTDOWN_TIMEOUT", "3"}};
    CHECK(good(grace).times.shutdown_grace_period == 3s);
    grace["OJS_GRACE_PERIOD"] = "2";
    CHECK(good(grace).times.shutdown_grace_period == 2s);
    grace["OJS_SHUTDOWN_GRACE_PERIOD"] = "1";
    CHECK(good(grace).times.shutdown_grace_period == 1s);
    grace["OJS_GRACE_PERIOD"] = "nonsense";  // hidden by the first one
    CHECK(good(grace).times.shutdown_grace_period == 1s);
    check_bad("OJS_SHUTDOWN_TIMEOUT", "nonsense");
    check_bad("OJS_BACKEND_URL", "");
    check_bad("OJS_QUEUE", "");
}

TEST_CASE("options: an invalid value is refused with an error that shows the variable and the value") {
    for (const char* name : {"OJS_HEARTBEAT_INTERVAL", "OJS_POLL_INTERVAL", "OJS_VISIBILITY_TIMEOUT",
                             "OJS_REQUEST_TIMEOUT", "OJS_STOP_TIMEOUT", "OJS_PROGRESS_INTERVAL"}) {
        check_bad(name, "0s");
    }
    for (const duration_variable& each : duration_variables) {
        for (const char* value : {"", "-1", "5x", "2000000h", " 5", "30000"}) check_bad(each.name, value);
        CHECK(holds(read({{each.name, "30000"}}).error().text, "30000s (8h20m) or 30000ms (30s)?"));
    }
    for (const char* value : {"", "0", "1001", "ten", " 1"}) check_bad("OJS_CONCURRENCY", value);
    for (const char* name : {"OJS_QUEUES", "OJS_QUEUE", "OJS_LABELS"}) {
        for (const char* value : {"", ",", "a,,b", ",a", "a, ,b"}) check_bad(name, value);
    }
    check_bad("OJS_URL", "");
    check_bad("OJS_WORKER_ID", "");
    check_bad("OJS_AUTH_TOKEN", "");
    for (const char* value : {"", "INFO", "verbose", "info "}) check_bad("OJS_LOG_LEVEL", value);
    for (const char* value : {"", "xml"}) check_bad("OJS_LOG_FORMAT", value);
    for (const char* value : {"", "no", "2"}) check_bad("OJS_LOG_ERROR_MESSAGES", value);
    for (const char* name : {"OJS_URL", "OJS_CONCURRENCY", "OJS_STOP_TIMEOUT", "OJS_LOG_LEVEL"})
        check_refused(name, "", "is empty; unset it, or give it a value");
}

TEST_CASE("options: white space around a name is trimmed, and a control character in a name is refused") {
    for (const std::string space : {" ", "\r\n\t "}) {
        const auto around = [&](const std::string& name) { return space + name + space; };
        const worker_options out = good({{"OJS_QUEUES", around("email") + "," + around("a-b.c_9")},
                                         {"OJS_LABELS", around("l") + "," + around("a b")},
                                         {"OJS_STOP_SIGNALS", around("TERM") + "," + around("INT")},
                                         {"OJS_TERMINATION_TYPE_FILE", around("/run/a mode")},
                                         {"OJS_WORKER_ID", around("w")}});
        CHECK(out.queues == std::vector<std::string>{"email", "a-b.c_9"});
        CHECK(out.labels == std::vector<std::string>{"l", "a b"});
        CHECK(out.stop_signals == std::vector<int>{SIGTERM, SIGINT});
        CHECK(out.worker_id == "w");
        CHECK(out.termination_mode_file == "/run/a mode");
        for (const std::string& token : {"s3cret" + space, space + "s3cret", "s3\ncret" + space}) {
            const auto health = [&token](const char* name) {
                return name == std::string("OJS_HEALTH_TOKEN") ? token.c_str() : nullptr;
            };
            for (const error& refused :
                 {read({{"OJS_AUTH_TOKEN", token}}).error(), ops_options::from_environment(health).error()}) {
                CHECK(holds(refused.text, "_TOKEN: "));
                CHECK(!holds(refused.text, "cret"));
            }
        }
    }
    for (const char* value : {"a\x1b", "\x7f"}) {
        for (const char* name : {"OJS_LABELS", "OJS_WORKER_ID", "OJS_TERMINATION_TYPE_FILE", "OJS_QUEUES", "OJS_QUEUE"})
            check_refused(name, value, "contains a control character");
    }
    check_refused("OJS_LABELS", "a,b\tc", "contains a control character");
    refused("queues (OJS_QUEUES OJS_QUEUE) contains", [](auto& o) { o.queues = {"a", "b\x7f"}; });
    refused("labels (OJS_LABELS) contains", [](auto& o) { o.labels = {"b\r"}; });
    refused("worker_id (OJS_WORKER_ID) contains", [](auto& o) { o.worker_id = "b\n"; });
    refused("auth_token (OJS_AUTH_TOKEN) begins or ends", [](auto& o) { o.auth_token = "b\n"; });
}

TEST_CASE("options: a variable has white space in a queue or job type -> an error says that commas separate names") {
    const char* const fault = "contains white space; names are separated by commas";
    for (const char* value : {"default email", "a,b c", "a\nb", "a,b\tc"}) {
        for (const char* name : {"OJS_QUEUES", "OJS_QUEUE"}) check_refused(name, value, fault);
    }
    worker_options options;
    options.queues = {"0.a-b", "A_b:c/d", "e f"};  // in code it is meant, and RabbitMQ and Redis take it
    CHECK(validate(options));
}

TEST_CASE("options: OJS_STOP_SIGNALS takes names or numbers, and refuses signals that cannot stop a worker") {
    using numbers = std::vector<int>;
    CHECK(good({}).stop_signals == numbers{SIGTERM, SIGINT, SIGHUP});
    CHECK(good({{"OJS_STOP_SIGNALS", "TERM"}}).stop_signals == numbers{SIGTERM});
    CHECK(good({{"OJS_STOP_SIGNALS", "SIGQUIT, USR2,3"}}).stop_signals == numbers{SIGQUIT, SIGUSR2, 3});
    CHECK(good({{"OJS_STOP_SIGNALS", "RTMIN,SIGRTMIN+3,RTMAX,RTMAX-1"}}).stop_signals ==
          numbers{SIGRTMIN, SIGRTMIN + 3, SIGRTMAX, SIGRTMAX - 1});
    CHECK(good({{"OJS_STOP_SIGNALS", "USR1"}}).stop_signals == numbers{SIGUSR1});
    for (const char* value : {"", "TERM,", "term", "SIG", "SIGSIGTERM", "0", "-15", "15.0", "RTMIN-1", "RTMIN+",
                              "RTMIN+99", "RTMAX+1", "TERM;INT"}) {
        check_bad("OJS_STOP_SIGNALS", value);
    }
    CHECK(holds(read({{"OJS_STOP_SIGNALS", "SIGKILL"}}).error().text, "(OJS_STOP_SIGNALS): SIGKILL "));
    CHECK(!read({{"OJS_STOP_SIGNALS", "USR1"}, {"OJS_TERMINATION_TYPE_FILE", "/run/mode"}}));
    worker_options none;
    none.stop_signals.clear();
    CHECK(!validate(none));
}

TEST_CASE("options: an https URL is valid only with https_stream, which may be set after from_environment()") {
    result<worker_options> out = read({{"OJS_URL", "https://h"}});
    REQUIRE(out);
    const result<void> valid = validate(*out);
    REQUIRE(!valid);
    CHECK(valid.error().code == errc::unsupported);
    CHECK(holds(valid.error().text, "url (OJS_URL) 'https://h'"));
    out->https_stream = [](int, const std::string&, const std::string&) { return byte_stream_ref(); };
    CHECK(validate(*out));
    out->url = "https://h:0";
    CHECK(holds(validate(*out).error().text, "url (OJS_URL) 'https://h:0'"));
}

TEST_CASE("options: only the first of several errors is reported, and no error shows a password") {
    const result<worker_options> two = read({{"OJS_CONCURRENCY", "x"}, {"OJS_POLL_INTERVAL", "y"}});
    REQUIRE(!two);
    CHECK(holds(two.error().text, "OJS_CONCURRENCY"));
    CHECK(!holds(two.error().text, "OJS_POLL_INTERVAL"));
    for (const char* url : {"http://me:pa55@h", "htp://me:pa55@h", "me:pa55@h"}) {
        worker_options options;
        options.url = url;
        REQUIRE(!validate(options));
        CHECK(holds(validate(options).error().text, "OJS_URL"));
        CHECK(!holds(validate(options).error().text, "pa55"));
    }
}

// [WP 6.2] [WP 8.1]
TEST_CASE("options: validate() refuses values that are out of range, alone or in combination") {
    refused("concurrency (OJS_CONCURRENCY) is 0; it must be 1 to 1000", [](auto& o) { o.concurrency = 0; });
    refused("concurrency", [](auto& o) { o.concurrency = 1001; });
    refused("queues", [](auto& o) { o.queues.clear(); });
    refused("queue", [](auto& o) { o.queues = {"a", ""}; });
    for (const duration_variable& each : duration_variables) {
        refused("is -1; ",
                [&](worker_options& o) { (each.own == nullptr ? o.times.*each.of_times : o.*each.own) = -1ms; });
    }
    refused(
        "times.shutdown_grace_period (OJS_SHUTDOWN_GRACE_PERIOD OJS_GRACE_PERIOD OJS_SHUTDOWN_TIMEOUT) is 2147483648; ",
        [](auto& o) { o.times.shutdown_grace_period = 2147483648ms; });
    refused("heartbeat_interval (OJS_HEARTBEAT_INTERVAL) is 9; ", [](auto& o) { o.heartbeat_interval = 9ms; });
    refused("times.stop_timeout (OJS_STOP_TIMEOUT) is 99; ", [](auto& o) { o.times.stop_timeout = 99ms; });
    refused("heartbeat_interval (30s)", [](auto& o) { o.heartbeat_interval = 30s; });
    worker_options least;
    least.heartbeat_interval = 10ms;
    least.visibility_timeout = 1000ms;
    least.times.stop_timeout = 100ms;
    least.times.shutdown_grace_period = 0ms;
    least.poll_interval = 1ms;
    CHECK(validate(least));
    least.times.shutdown_grace_period = 2147483647ms;
    CHECK(validate(least));
    // What parses but does not fit is refused from the environment too.
    const result<worker_options> out = read({{"OJS_STOP_TIMEOUT", "99ms"}});
    REQUIRE(!out);
    CHECK(out.error().text == "OJS_STOP_TIMEOUT='99ms': is 99; it must be 100 to 2147483647 ms");
}

TEST_CASE(
    "options: the error of a failed start has the form of OJS_LOG_FORMAT or log.format, and the status is 64 or 71") {
    int status = 0;
    error failure{errc::invalid_argument, 0, "OJS_X='y': no"};
    const auto usage = [&] { status = report_startup_error(failure); };
    CHECK(test::standard_error_of(usage) == "error: OJS_X='y': no\n");
    CHECK(status == 64);
    const auto status_of = [&](errc code, int cause) {
        failure.code = code;
        failure.sys_errno = cause;
        static_cast<void>(test::standard_error_of(usage));
        return status;
    };
    for (const errc code : {errc::unsupported, errc::rejected, errc::busy}) CHECK(status_of(code, 0) == 64);
    CHECK(status_of(errc::unsupported, ENOSYS) == 64);
    for (const int cause : {EACCES, EPERM, ENAMETOOLONG, ELOOP}) CHECK(status_of(errc::system, cause) == 64);
    for (const int cause : {EMFILE, ENFILE, ENOMEM, EAGAIN, EROFS, ENOENT, ENOSPC, EIO, EADDRNOTAVAIL})
        CHECK(status_of(errc::system, cause) == 71);
    CHECK(status_of(errc::busy, EADDRINUSE) == 71);
    CHECK(status_of(errc::unavailable, EACCES) == 71);
    ::setenv("OJS_LOG_FORMAT", "json", 1);
    const std::string text = test::standard_error_of(usage);
    ::unsetenv("OJS_LOG_FORMAT");
    picojson::value line;
    CHECK(picojson::parse(line, text).empty());
    CHECK(text.back() == '\n');
    CHECK(holds(text, "\"severity\":\"ERROR\""));
    CHECK(holds(text, "OJS_X='y': no"));
    worker_options options;
    const auto start = [&] { status = worker(options).run(); };
    CHECK(test::standard_error_of(start) == "error: no handler is registered: call register_handler()\n");
    options.log.format = log_format::json;
    CHECK(holds(test::standard_error_of(start), "\"message\":\"cannot start\""));
    options.log.format = log_format::logfmt;
    CHECK(holds(test::standard_error_of(start), "error=\"no handler is registered: call register_handler()\""));
    CHECK(status == 64);
}

// [GS-003] [Website Kubernetes]
TEST_CASE("options: the default drain fits into the stop timeout of a known platform") {
    const char* const pod = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    const char* const docker = "/.dockerenv";
    const variables cloud_run = {{"K_SERVICE", "s"}, {"K_REVISION", "s-1"}};
    const struct {
        const char* file;
        variables set;
        std::chrono::seconds drain;
    } rows[] = {{pod, {}, 25s},
                {pod, {{"OJS_STOP_TIMEOUT", "8s"}}, 22s},
                {pod, {{"OJS_PRESTOP_DELAY", "5s"}}, 20s},
                {pod, {{"OJS_PRESTOP_DELAY", "40s"}}, 30s},  // the budget findings report the problem
                {pod, {{"OJS_CONTAINER_GRACE_PERIOD", "60s"}}, 30s},
                {pod, {{"OJS_SHUTDOWN_TIMEOUT", "30s"}}, 30s},
                {pod, {{"OJS_PROFILE", "website"}}, 25s},
                {docker, {{"ECS_CONTAINER_METADATA_URI_V4", "http://169.254.170.2/v4/x"}}, 25s},
                {docker, cloud_run, 5s},
                {docker, {}, 30s}};  // Docker's default causes a warning
    for (const auto& each : rows) {
        CAPTURE(each.file);
        CAPTURE(&each - rows);
        test::file_tree tree;
        tree.file(each.file, "default");
        const auto got = read(each.set, tree.root());
        REQUIRE(got);
        CHECK(got->times.shutdown_grace_period == each.drain);
        CHECK((*got->platform_grace.platform == '\0') == (each.drain == 30s));
    }
}
