#include <cctype>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <picojson.h>

#include "every_message.hpp"
#include "files.hpp"
#include "test.hpp"
#include "text.hpp"

using namespace ojs;
using namespace ojs::detail;
using test::any_message;
using test::every_message;

namespace {

using texts = std::vector<std::string>;

// Every field gets a value that no other one has; `next` counts on.
void fill(const array<message_field>& fields, int& next) {
    for (const message_field& each : fields) {
        const int n = ++next;
        const std::string text = each.name + std::to_string(n);
        switch (each.kind) {
            case field_kind::text: *static_cast<std::string*>(each.value) = text; break;
            case field_kind::flag: *static_cast<bool*>(each.value) = true; break;
            case field_kind::int32: *static_cast<std::int32_t*>(each.value) = -1000 - n; break;
            case field_kind::int64:
                *static_cast<std::int64_t*>(each.value) = (std::int64_t{1} << 60) + n;
                break;
            case field_kind::texts: *static_cast<texts*>(each.value) = {text, "", text + "\n\"\\ é"}; break;
            case field_kind::checks:
                *static_cast<std::vector<readiness_check>*>(each.value) = {
                    {text, true}, {"", false}, {"snake_case", true}};
                break;
            case field_kind::enumeration: {
                const auto last = static_cast<std::int32_t>(each.enumerated->count - 1);
                std::memcpy(each.value, &last, sizeof last);
                break;
            }
            case field_kind::messages:
                fill(each.element(each.value, 0).fields, next);
                fill(each.element(each.value, 1).fields, next);
                static_cast<void>(each.element(each.value, 2));  // the last one says nothing
                break;
            case field_kind::message: fill(each.fields, next); break;
        }
    }
}

bool same_value(const message_field& one, const message_field& other);

bool same_values(const array<message_field>& one, const array<message_field>& other) {
    for (std::size_t i = 0; i < one.size(); ++i) {
        if (!same_value(one[i], other[i])) return false;
    }
    return true;
}

template <class T>
bool same(const message_field& one, const message_field& other) {
    return *static_cast<T*>(one.value) == *static_cast<T*>(other.value);
}

bool same_checks(const std::vector<readiness_check>& one, const std::vector<readiness_check>& other) {
    bool out = one.size() == other.size();
    for (std::size_t i = 0; out && i < one.size(); ++i) {
        out = one[i].name == other[i].name && one[i].passed == other[i].passed;
    }
    return out;
}

bool same_messages(const message_field& one, const message_field& other) {
    const std::size_t size = one.size(one.value);
    bool out = size == other.size(other.value);
    for (std::size_t i = 0; out && i < size; ++i)
        out = same_values(one.element(one.value, i).fields, other.element(other.value, i).fields);
    return out;
}

bool same_value(const message_field& one, const message_field& other) {
    switch (one.kind) {
        case field_kind::text: return same<std::string>(one, other);
        case field_kind::flag: return same<bool>(one, other);
        case field_kind::int32: return same<std::int32_t>(one, other);
        case field_kind::int64: return same<std::int64_t>(one, other);
        case field_kind::texts: return same<texts>(one, other);
        case field_kind::checks:
            return same_checks(*static_cast<std::vector<readiness_check>*>(one.value),
                               *static_cast<std::vector<readiness_check>*>(other.value));
        case field_kind::enumeration: return std::memcmp(one.value, other.value, sizeof(std::int32_t)) == 0;
        case field_kind::messages: return same_messages(one, other);
        case field_kind::message: return same_values(one.fields, other.fields);
    }
    return false;
}

std::vector<std::unique_ptr<any_message>> filled_messages() {
    std::vector<std::unique_ptr<any_message>> out = every_message();
    for (const auto& each : out) {
        int next = 0;
        fill(each->view().fields, next);
    }
    return out;
}

// The text of the error, which must be one of bad input; empty if there is none.
std::string fault_in(any_message& into, const std::string& json) {
    const result<void> read = into.read(json);
    if (read) return "";
    CHECK(read.error().code == errc::bad_response);
    CHECK(read.error().text.size() < 120);
    return read.error().text;
}

template <class Message>
std::string fault_of(const std::string& json) {
    test::message_of_type<Message> into;
    return fault_in(into, json);
}

// "shutdown_duration_ms" is "shutdownDurationMs".
std::string lower_camel(std::string name) {
    for (std::size_t at; (at = name.find('_')) != std::string::npos;) {
        name.replace(at, 2, std::string(1, static_cast<char>(std::toupper(name[at + 1]))));
    }
    return name;
}

// ---- the .proto file ----

texts without_comments(const std::string& proto) {
    texts out;
    std::string line;
    bool blank = false;
    for (std::size_t i = 0; i < proto.size(); ++i) {
        if (proto.compare(i, 2, "//") == 0) i = proto.find('\n', i);
        const char c = proto[i];
        if (c == '\n') {
            if (!line.empty()) out.push_back(line);
            line.clear();
            blank = false;
        } else if (c == ' ') {
            blank = !line.empty();
        } else {
            line += blank ? std::string{' ', c} : std::string{c};
            blank = false;
        }
    }
    return out;
}

// "State" of "ShutdownStatus.State".
std::string last_name(const std::string& path) {
    return path.substr(path.rfind('.') + 1);
}

std::string proto_type(const message_field& of) {
    switch (of.kind) {
        case field_kind::text: return "string";
        case field_kind::flag: return "bool";
        case field_kind::int32: return "int32";
        case field_kind::int64: return "int64";
        case field_kind::texts: return "repeated string";
        case field_kind::checks: return "map<string, bool>";
        case field_kind::enumeration: return last_name(of.enumerated->name);
        case field_kind::messages: return cat({"repeated ", of.element(of.value, 0).name});
        case field_kind::message: return of.message_name;
    }
    return "";
}

void add_message(const message_view& view, texts& out) {
    out.push_back(cat({"message ", view.name, " {"}));
    for (const message_field& each : view.fields) {
        if (each.enumerated != nullptr) {
            CHECK(cat({view.name, ".", last_name(each.enumerated->name)}) == each.enumerated->name);
            out.push_back(cat({"enum ", last_name(each.enumerated->name), " {"}));
            for (std::size_t i = 0; i < each.enumerated->count; ++i) {
                out.push_back(cat({each.enumerated->values[i], " = ", i, ";"}));
            }
            out.push_back("}");
        }
        const auto number = &each - view.fields.begin() + 1;
        out.push_back(cat({proto_type(each), " ", each.name, " = ", static_cast<long>(number), ";"}));
    }
    out.push_back("}");
}

// What a service's methods take and give.
struct rpc_method {
    const char* name;
    const char* request;
    const char* answer;
};
constexpr rpc_method lifecycle_methods[] = {
    {"Shutdown", "ShutdownRequest", "ShutdownAck"},
    {"GetShutdownStatus", "ShutdownStatusRequest", "ShutdownStatus"},
    {"NotifyShutdownComplete", "ShutdownComplete", "ShutdownCompleteAck"},
    {"GetReadinessStatus", "ReadinessRequest", "ReadinessResponse"},
    {"NotifyReady", "ReadyNotification", "ReadyAck"},
};
constexpr rpc_method manager_methods[] = {
    {"ShutdownProcess", "ShutdownProcessRequest", "ShutdownProcessResponse"},
    {"GetProcessStatus", "ProcessStatusRequest", "ProcessStatus"},
    {"ShutdownGroup", "ShutdownGroupRequest", "ShutdownGroupResponse"},
    {"GetGroupStatus", "GroupStatusRequest", "GroupStatus"},
    {"RollingReplace", "RollingReplaceRequest", "RollingReplaceResponse"},
    {"CancelReplace", "CancelReplaceRequest", "CancelReplaceResponse"},
    {"ListGroups", "ListGroupsRequest", "ListGroupsResponse"},
};

// `rest`: what follows the package, before the service.
template <std::size_t Methods>
texts proto_of(const std::string& service, const texts& rest, const rpc_method (&methods)[Methods],
               const std::vector<std::unique_ptr<any_message>>& messages) {
    const std::size_t dot = service.rfind('.');
    texts out = {"syntax = \"proto3\";", "package " + service.substr(0, dot) + ";"};
    out.insert(out.end(), rest.begin(), rest.end());
    out.push_back("service " + service.substr(dot + 1) + " {");
    for (const rpc_method& each : methods) {
        out.push_back(cat({"rpc ", each.name, "(", each.request, ") returns (", each.answer, ");"}));
    }
    out.push_back("}");
    for (const auto& each : messages) add_message(each->view(), out);
    return out;
}

void check_proto(const std::string& name, const texts& table) {
    const std::string path = "examples/proto/" + name;
    REQUIRE_MESSAGE(std::filesystem::exists(path), "begin the tests in the root of the tree");
    const texts file = without_comments(test::read_file(path));
    for (std::size_t i = 0; i < file.size() && i < table.size(); ++i) CHECK(file[i] == table[i]);
    CHECK(file.size() == table.size());
}

}  // namespace

TEST_CASE("launcher messages: the .proto files say what the table says") {
    check_proto("lifecycle.proto",
                proto_of(lifecycle_service, {}, lifecycle_methods, test::lifecycle_messages()));
    check_proto("admin.proto", proto_of(manager_service, {"import \"lifecycle.proto\";"}, manager_methods,
                                        test::manager_messages()));
}

TEST_CASE("launcher messages: no field has the name or the place of another") {
    for (const auto& message : every_message()) {
        const message_view view = message->view();
        CAPTURE(view.name);
        std::set<std::string> names;
        std::set<const void*> places;
        for (const message_field& each : view.fields) {
            CHECK(names.insert(each.name).second);
            const void* const place = each.kind == field_kind::message ? each.fields[0].value : each.value;
            CHECK(places.insert(place).second);
        }
        CHECK(view.fields.size() <= 32);  // the reader notes in 32 bits which of them it has seen
    }
}

// ---- both ways ----

TEST_CASE("launcher messages: a message comes back with every field") {
    for (const auto& message : filled_messages()) {
        const std::string json = message->write();
        CAPTURE(json);
        const auto read = message->fresh();
        CHECK(same_values(message->view().fields, read->view().fields) == message->view().fields.empty());
        REQUIRE(read->read(json).has_value());
        CHECK(same_values(message->view().fields, read->view().fields));
    }
}

TEST_CASE("launcher messages: unset fields are not sent") {
    for (const auto& message : every_message()) {
        CHECK(message->write() == "{}");
        std::string nulls = "{";
        for (const message_field& each : message->view().fields) {
            append(nulls, {nulls.size() > 1 ? "," : "", json_quote(each.name), ":null"});
        }
        for (const std::string& json : {std::string("{}"), std::string(" {\n} "), nulls + "}"}) {
            CAPTURE(json);
            const auto read = message->fresh();
            REQUIRE(read->read(json).has_value());
            CHECK(same_values(message->view().fields, read->view().fields));
        }
    }
}

TEST_CASE("launcher messages: a shutdown as JSON") {
    shutdown_request request;
    request.process_id = "kv-1";
    request.reason = "admin request";
    request.grace_period_seconds = 3;
    request.max_shutdown_seconds = 10;
    CHECK(write_message(request) ==
          R"({"processId":"kv-1","reason":"admin request","gracePeriodSeconds":3,"maxShutdownSeconds":10})");

    shutdown_ack ack;
    ack.acknowledged = true;
    ack.estimated_seconds = 2;
    ack.message = "Beginning graceful shutdown";
    CHECK(write_message(ack) ==
          R"({"acknowledged":true,"estimatedSeconds":2,"message":"Beginning graceful shutdown"})");

    shutdown_status_request question;
    question.process_id = "kv-1";
    CHECK(write_message(question) == R"({"processId":"kv-1"})");

    shutdown_status status;
    status.state = shutdown_state::blocked;
    status.message = "waits";
    status.metrics.in_flight_requests = 5;
    status.metrics.open_connections = 2;
    status.metrics.buffered_bytes = 9007199254740993;  // no double holds it
    status.metrics.blocking_operations = {"waiting for Kafka flush"};
    status.need_more_time = true;
    status.additional_seconds = 4;
    CHECK(
        write_message(status) ==
        R"({"state":"SHUTDOWN_BLOCKED","message":"waits","metrics":{"inFlightRequests":5,"openConnections":2,)"
        R"("bufferedBytes":"9007199254740993","blockingOperations":["waiting for Kafka flush"]},)"
        R"("needMoreTime":true,"additionalSeconds":4})");
    CHECK(write_message(status.metrics) ==
          R"({"inFlightRequests":5,"openConnections":2,"bufferedBytes":"9007199254740993",)"
          R"("blockingOperations":["waiting for Kafka flush"]})");

    shutdown_complete complete;
    complete.process_id = "kv-1";
    complete.message = "Drain complete";
    complete.shutdown_duration_ms = 1800;
    CHECK(write_message(complete) ==
          R"({"processId":"kv-1","message":"Drain complete","shutdownDurationMs":"1800"})");

    shutdown_complete_ack complete_ack;
    complete_ack.acknowledged = true;
    CHECK(write_message(complete_ack) == R"({"acknowledged":true})");
}

TEST_CASE("launcher messages: readiness as JSON") {
    readiness_request question;
    question.process_id = "kv-3";
    CHECK(write_message(question) == R"({"processId":"kv-3"})");

    readiness_response answer;
    answer.state = readiness_state::warming;
    answer.message = "pool 3 of 8";
    answer.checks.grpc_server_ready = true;
    answer.checks.backend_connected = true;
    answer.checks.custom_checks = {{"schema", true}, {"cache_warm", false}};
    CHECK(write_message(answer) ==
          R"({"state":"WARMING","message":"pool 3 of 8","checks":{"grpcServerReady":true,)"
          R"("backendConnected":true,"customChecks":{"schema":true,"cache_warm":false}}})");
    answer.checks.backend_warmed = true;
    CHECK(write_message(answer.checks) ==
          R"({"grpcServerReady":true,"backendConnected":true,"backendWarmed":true,)"
          R"("customChecks":{"schema":true,"cache_warm":false}})");

    ready_notification ready;
    ready.process_id = "kv-3";
    ready.message = "warm";
    CHECK(write_message(ready) == R"({"processId":"kv-3","message":"warm"})");

    ready_ack ack;
    ack.acknowledged = true;
    CHECK(write_message(ack) == R"({"acknowledged":true})");
}

TEST_CASE("launcher messages: what an administrator sees as JSON") {
    shutdown_process_request stop;
    stop.process_id = "kv-1";
    stop.reason = "admin request";
    stop.grace_period_seconds = 3;
    stop.max_shutdown_seconds = 10;
    stop.dry_run = true;
    CHECK(write_message(stop) ==
          R"({"processId":"kv-1","reason":"admin request","gracePeriodSeconds":3,"maxShutdownSeconds":10,)"
          R"("dryRun":true})");

    shutdown_process_response stopping;
    stopping.acknowledged = true;
    stopping.message = "stopping";
    stopping.status.metrics.in_flight_requests = 5;
    CHECK(write_message(stopping) ==
          R"({"acknowledged":true,"message":"stopping","status":{"metrics":{"inFlightRequests":5}}})");

    process_status process;
    process.process_id = "kv-1";
    process.group = "keyvalue-runner";
    process.state = instance_state::forced;
    process.pid = 4711;
    process.message = "SIGTERM timeout";
    process.readiness.state = readiness_state::draining;
    process.shutdown.state = shutdown_state::forced;
    process.uptime_ms = 12500;
    process.exit = "killed by SIGKILL";
    const std::string seen =
        R"({"processId":"kv-1","group":"keyvalue-runner","state":"FORCED","pid":4711,)"
        R"("message":"SIGTERM timeout","readiness":{"state":"DRAINING"},)"
        R"("shutdown":{"state":"SHUTDOWN_FORCED"},"uptimeMs":"12500","exit":"killed by SIGKILL"})";
    CHECK(write_message(process) == seen);

    group_status group;
    group.group = "keyvalue-runner";
    group.desired = 2;
    group.min_healthy = 1;
    group.ready = 3;
    group.replacing = true;
    group.degraded = true;
    group.message = "rolled back";
    group.processes = {process, {}};
    group.quiet = true;
    CHECK(write_message(group) ==
          R"({"group":"keyvalue-runner","desired":2,"minHealthy":1,"ready":3,"replacing":true,)"
          R"("degraded":true,"message":"rolled back","processes":[)" +
              seen + R"(,{}],"quiet":true})");
    CHECK(fault_of<group_status>(R"({"processes":[{},{"shutdown":{"state":9}}]})") ==
          "GroupStatus.processes.shutdown.state: not a ShutdownStatus.State known here");

    rolling_replace_request replace;
    replace.group = "keyvalue-runner";
    replace.reason = "1.4.2";
    replace.canary = 1;
    replace.canary_seconds = 60;
    CHECK(write_message(replace) ==
          R"({"group":"keyvalue-runner","reason":"1.4.2","canary":1,"canarySeconds":60})");
    replace.retry = retry_policy::backoff;
    replace.retries = 2;
    CHECK(write_message(replace) ==
          R"({"group":"keyvalue-runner","reason":"1.4.2","canary":1,"canarySeconds":60,)"
          R"("retry":"BACKOFF","retries":2})");
    CHECK(fault_of<rolling_replace_request>(R"({"retry":"SOMETIMES"})") ==
          "RollingReplaceRequest.retry: not a RollingReplaceRequest.Retry known here");

    cancel_replace_response cancelled;
    cancelled.acknowledged = true;
    cancelled.replacement.phase = replacement_phase::draining;
    cancelled.replacement.replaced = 1;
    cancelled.replacement.total = 3;
    cancelled.replacement.cancelling = true;
    CHECK(
        write_message(cancelled) ==
        R"({"acknowledged":true,"replacement":{"phase":"DRAINING","replaced":1,"total":3,"cancelling":true}})");

    list_groups_response groups;
    groups.groups = {"keyvalue-runner", "pubsub-runner"};
    CHECK(write_message(groups) == R"({"groups":["keyvalue-runner","pubsub-runner"]})");
}

namespace {

template <class Message, class State>
void check_states(const texts& names, State Message::*place, const std::string& field = "state") {
    for (std::size_t i = 0; i < names.size(); ++i) {
        const auto state = static_cast<State>(i);
        CHECK(to_string(state) == names[i]);
        for (const std::string& written : {json_quote(names[i]), std::to_string(i)}) {
            const auto read = read_message<Message>("{\"" + field + "\":" + written + "}");
            CHECK((read && (*read).*place == state));
        }
    }
    CHECK_FALSE(read_message<Message>("{\"" + field + "\":" + std::to_string(names.size()) + "}"));
}

}  // namespace

TEST_CASE("launcher messages: every state has its name, and is read by name and by number") {
    check_states({"RUNNING", "SHUTDOWN_REQUESTED", "SHUTDOWN_DRAINING", "SHUTDOWN_BLOCKED",
                  "SHUTDOWN_COMPLETE", "SHUTDOWN_FORCED"},
                 &shutdown_status::state);
    check_states({"STARTING", "WARMING", "READY", "DRAINING", "UNHEALTHY"}, &readiness_response::state);
    check_states({"SPAWNING", "STARTING", "WARMING", "READY", "UNHEALTHY", "SHUTDOWN_REQUESTED", "DRAINING",
                  "COMPLETE", "FORCED", "CRASHED"},
                 &process_status::state);
    check_states({"AS_CONFIGURED", "MANUAL", "IMMEDIATE", "BACKOFF"}, &rolling_replace_request::retry,
                 "retry");
    check_states({"NONE", "STARTING", "CANARIES", "DRAINING", "PAUSING", "ROLLING_BACK", "DONE",
                  "ROLLED_BACK", "CANCELLED"},
                 &replacement_status::phase, "phase");
    CHECK(to_string(shutdown_state::forced) == std::string("SHUTDOWN_FORCED"));
    CHECK(to_string(readiness_state::unhealthy) == std::string("UNHEALTHY"));
    CHECK(to_string(instance_state::crashed) == std::string("CRASHED"));
    CHECK(to_string(static_cast<shutdown_state>(6)) == std::string("UNKNOWN"));
    CHECK(to_string(static_cast<readiness_state>(-1)) == std::string("UNKNOWN"));
}

TEST_CASE("launcher messages: invalid values of a caller still become JSON") {
    shutdown_status status;
    status.state = static_cast<shutdown_state>(-3);
    status.message = "\xff\xed\xa0\x80 cut";
    status.message += '\0';
    CHECK(write_message(status) ==
          "{\"state\":-3,\"message\":\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd cut\\u0000\"}");
    readiness_checks checks;
    checks.custom_checks = {{"one", true}, {"two", true}, {"one", false}};
    CHECK(write_message(checks) == R"({"customChecks":{"two":true,"one":false}})");
}

// ---- what is read ----

TEST_CASE("launcher messages: names in both cases, numbers in all shapes") {
    const auto read = read_message<shutdown_request>(
        R"({"process_id":"\u006bv-1","gracePeriodSec\u006fnds":"3","max_shutdown_seconds":1.0e1})");
    REQUIRE(read.has_value());
    CHECK(read->process_id == "kv-1");
    CHECK(read->grace_period_seconds == 3);
    CHECK(read->max_shutdown_seconds == 10);
    const auto zero = read_message<shutdown_status>("{\"message\":\"a\\u0000b\"}");
    CHECK((zero && zero->message == std::string("a\0b", 3)));
}

TEST_CASE("launcher messages: a whole number keeps its digits and its range") {
    struct {
        const char* written;
        bool fits_32;
        bool fits_64;
        std::int64_t value;
    } const cases[] = {
        {"0", true, true, 0},
        {"-0", true, true, 0},
        {"0.000e99999999999999999999", true, true, 0},
        {"7", true, true, 7},
        {"7.000", true, true, 7},
        {"700e-2", true, true, 7},
        {"0.0007e4", true, true, 7},
        {"2147483647", true, true, 2147483647},
        {"-2147483648", true, true, -2147483647 - 1},
        {"2147483648", false, true, 2147483648},
        {"-2147483649", false, true, -2147483649},
        {"9007199254740993", false, true, 9007199254740993},
        {"9.223372036854775807e18", false, true, std::numeric_limits<std::int64_t>::max()},
        {"-9223372036854775808", false, true, std::numeric_limits<std::int64_t>::min()},
        {"9223372036854775808", false, false, 0},
        {"-9223372036854775809", false, false, 0},
        {"1e19", false, false, 0},
        {"1e300", false, false, 0},
        {"100000000000000000000000000000000000000000", false, false, 0},
        {"0.5", false, false, 0},
        {"7.0000000000000000000000001", false, false, 0},
        {"1e-1", false, false, 0},
    };
    for (const auto& each : cases) {
        for (const std::string quote : {"", "\""}) {
            const std::string value = quote + each.written + quote;
            CAPTURE(value);
            const auto small = read_message<shutdown_metrics>("{\"openConnections\":" + value + "}");
            const auto large = read_message<shutdown_metrics>("{\"bufferedBytes\":" + value + "}");
            CHECK(small.has_value() == each.fits_32);
            CHECK(large.has_value() == each.fits_64);
            if (small) CHECK(small->open_connections == each.value);
            if (large) CHECK(large->buffered_bytes == each.value);
        }
    }
    for (const char* none : {R"("")", R"(" 7")", R"("7 ")", R"("+7")", R"("07")", R"("0x7")", R"("seven")",
                             R"("NaN")", R"("Infinity")", R"("1e99999999999999999999")", R"("7\u0000")"}) {
        CAPTURE(none);
        CHECK(fault_of<shutdown_metrics>(cat({"{\"open_connections\":", none, "}"})) ==
              "ShutdownMetrics.open_connections: not a whole number of 32 bits");
        CHECK(fault_of<shutdown_metrics>(cat({"{\"bufferedBytes\":", none, "}"})) ==
              "ShutdownMetrics.buffered_bytes: not a whole number of 64 bits");
    }
}

TEST_CASE("launcher messages: fields of a newer peer are ignored, whatever they are") {
    for (const auto& message : filled_messages()) {
        std::string json = message->write();
        if (json == "{}") json = R"({"":0})";  // one that has no fields
        json.insert(1, R"("":[],"x":{"state":7},"State":"?","ProcessId":0,"process-id":[null],)");
        json.insert(json.size() - 1, R"(,"x":1e9,"message_":"\ud83d\ude00")");
        CAPTURE(json);
        const auto read = message->fresh();
        REQUIRE(read->read(json).has_value());
        CHECK(same_values(message->view().fields, read->view().fields));
    }
}

// ---- what is refused ----

namespace {

// One of each shape of JSON, and more of what some field takes.
const texts samples = {"true",
                       "\"\"",
                       "\"x\"",
                       "0",
                       "1",
                       "4",
                       "1.5",
                       "-1",
                       "3000000000",
                       "\"1\"",
                       "[]",
                       "[\"x\"]",
                       "[1]",
                       "[\"x\",[]]",
                       "{}",
                       "{\"x\":true}",
                       "{\"x\":1}",
                       "{\"x\":null}",
                       "\"WARMING\"",
                       "\"SHUTDOWN_FORCED\"",
                       "\"shutdown\"",
                       "[null]",
                       "\"RUNNING \""};

// Of the samples.
std::set<std::string> numbers_and_names(const enum_type& type) {
    std::set<std::string> out;
    for (const std::size_t each : {0, 1, 4}) {
        if (each < type.count) out.insert(std::to_string(each));
    }
    for (std::size_t i = 0; i < type.count; ++i) {
        for (const std::string name : {"WARMING", "SHUTDOWN_FORCED"}) {
            if (name == type.values[i]) out.insert("\"" + name + "\"");
        }
    }
    return out;
}

// Those that are right for a field of that kind, told without the reader.
std::set<std::string> taken_by(const message_field& of) {
    const std::set<std::string> small = {"0", "1", "4", "-1", "\"1\""};
    switch (of.kind) {
        case field_kind::text:
            return {"\"\"",         "\"x\"",       "\"1\"", "\"WARMING\"", "\"SHUTDOWN_FORCED\"",
                    "\"shutdown\"", "\"RUNNING \""};
        case field_kind::flag: return {"true"};
        case field_kind::int32: return small;
        case field_kind::int64: return {"0", "1", "4", "-1", "\"1\"", "3000000000"};
        case field_kind::texts: return {"[]", "[\"x\"]"};
        case field_kind::checks: return {"{}", "{\"x\":true}"};
        case field_kind::enumeration: return numbers_and_names(*of.enumerated);
        case field_kind::messages: return {"[]"};
        case field_kind::message: return {"{}", "{\"x\":true}", "{\"x\":1}", "{\"x\":null}"};
    }
    return {};
}

// All fields of a message and of those in it, each with the way to it and the JSON that holds `value` there.
template <class Check>
void every_field(const array<message_field>& fields, const std::string& path, const std::string& before,
                 const std::string& after, Check check) {
    for (const message_field& each : fields) {
        const std::string here = path + "." + each.name;
        const std::string begin = before + "{" + json_quote(lower_camel(each.name)) + ":";
        check(each, here, begin, "}" + after);
        every_field(each.fields, here, begin, "}" + after, check);
    }
}

}  // namespace

TEST_CASE("launcher messages: a value of another type is refused by the name of its field") {
    int refused = 0;
    for (const auto& message : every_message()) {
        const message_view view = message->view();
        every_field(view.fields, view.name, "", "",
                    [&](const message_field& field, const std::string& path, const std::string& before,
                        const std::string& after) {
                        const std::set<std::string> taken = taken_by(field);
                        for (const std::string& each : samples) {
                            CAPTURE(before + each + after);
                            const std::string fault = fault_in(*message->fresh(), before + each + after);
                            CHECK(fault.empty() == (taken.count(each) > 0));
                            if (!fault.empty()) CHECK(fault.rfind(path + ": ", 0) == 0);
                            refused += fault.empty() ? 0 : 1;
                        }
                    });
    }
    CHECK(refused > 500);
}

TEST_CASE("launcher messages: a duplicate field or check is refused") {
    CHECK(fault_of<shutdown_request>(R"({"reason":"a","processId":"kv-1","process_id":"kv-2"})") ==
          "ShutdownRequest.process_id: duplicate key");
    CHECK(fault_of<shutdown_status>(R"({"state":null,"state":4})") == "ShutdownStatus.state: duplicate key");
    CHECK(fault_of<shutdown_status>(R"({"metrics":{"bufferedBytes":1,"buffered_bytes":1}})") ==
          "ShutdownStatus.metrics.buffered_bytes: duplicate key");
    CHECK(fault_of<readiness_response>(R"({"checks":{"customChecks":{"a":true,"b":true,"\u0061":false}}})") ==
          "ReadinessResponse.checks.custom_checks: duplicate name");
    // But of unknown ones nothing is asked.
    CHECK(fault_of<ready_ack>(R"({"later":1,"later":2})").empty());
}

TEST_CASE("launcher messages: text that is not a JSON object is refused") {
    const std::string deep(99, '[');
    const std::string too_deep(100, '[');
    const texts none = {"",
                        " ",
                        "null",
                        "[]",
                        "\"{}\"",
                        "7",
                        "{",
                        "}",
                        "{}{}",
                        "{} x",
                        "{'reason':1}",
                        "{reason:1}",
                        "{\"reason\":\"a\"",
                        "{\"reason\":\"a\",}",
                        "{\"reason\":\"\xff\"}",
                        "{\"\xc0\x80\":1}",
                        "{\"reason\":\"\xed\xa0\x80\"}",
                        "{\"reason\":\"\\ud800\"}",
                        "{\"reason\":\"a\nb\"}",
                        std::string("{}\0", 3),
                        std::string("{\"reason\":\"\0\"}", 13),
                        "\xef\xbb\xbf{}",
                        "{\"maxShutdownSeconds\":1e999}",
                        "{\"x\":1e999}",
                        "{\"maxShutdownSeconds\":NaN}",
                        "{\"x\":" + too_deep + std::string(100, ']') + "}"};
    for (const std::string& json : none) {
        CAPTURE(json);
        CHECK(fault_of<shutdown_request>(json) != "");
    }
    CHECK(fault_of<shutdown_request>("{\"x\":" + deep + std::string(99, ']') + "}").empty());
    CHECK(fault_of<shutdown_request>("{\"reason\":\"\xff\"}") == "invalid JSON: not UTF-8");
    CHECK(fault_of<shutdown_request>("[1]") == "ShutdownRequest: not an object");
    CHECK(fault_of<shutdown_request>(std::string(200000, '[')) != "");
    // Nothing that was cut off is taken for the whole.
    for (const auto& message : filled_messages()) {
        const std::string json = message->write();
        for (std::size_t length = 0; length < json.size(); ++length) {
            CHECK_FALSE(message->read(json.substr(0, length)).has_value());
        }
    }
}

TEST_CASE("launcher messages: an error repeats nothing of what was sent") {
    for (const char* json : {R"({"processId":["hunter2"]})", R"({"hunter2":1,"reason":{"hunter2":1}})",
                             R"({"gracePeriodSeconds":"hunter2"})", R"({"hunter2)"}) {
        const std::string fault = fault_of<shutdown_request>(json);
        CHECK(fault != "");
        CHECK_FALSE(test::holds(fault, "hunter"));
    }
    CHECK(fault_of<shutdown_status>(R"({"state":"HUNTER2"})") ==
          "ShutdownStatus.state: not a ShutdownStatus.State known here");
    CHECK(fault_of<readiness_response>(R"({"state":5})") ==
          "ReadinessResponse.state: not a ReadinessResponse.ReadinessState known here");
}

TEST_CASE("launcher messages: another parser of JSON finds the same") {
    for (const auto& message : filled_messages()) {
        picojson::value parsed;
        REQUIRE(picojson::parse(parsed, message->write()).empty());
        CHECK(parsed.get<picojson::object>().size() == message->view().fields.size());
        for (const message_field& each : message->view().fields) {
            CAPTURE(each.name);
            const picojson::value& found = parsed.get(lower_camel(each.name));
            if (each.kind == field_kind::text) {
                CHECK(found.get<std::string>() == *static_cast<std::string*>(each.value));
            } else if (each.kind == field_kind::int64) {
                CHECK(found.get<std::string>() == std::to_string(*static_cast<std::int64_t*>(each.value)));
            } else if (each.kind == field_kind::int32) {
                CHECK(found.get<double>() == *static_cast<std::int32_t*>(each.value));
            } else if (each.kind == field_kind::texts) {
                const texts& sent = *static_cast<texts*>(each.value);
                REQUIRE(found.get<picojson::array>().size() == sent.size());
                for (std::size_t i = 0; i < sent.size(); ++i)
                    CHECK(found.get(i).get<std::string>() == sent[i]);
            } else {
                CHECK_FALSE(found.is<picojson::null>());
            }
        }
    }
}
