#include <cctype>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
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

texts without_comments(const std::string& proto) {
    texts out;
    std::istringstream lines(proto);
    for (std::string line; std::getline(lines, line);) {
        std::string text;
        for (const std::string& word : test::words(line.substr(0, line.find("//"))))
            text += (text.empty() ? "" : " ") + word;
        if (!text.empty()) out.push_back(text);
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

const texts lifecycle_methods = {
    "rpc Shutdown(ShutdownRequest) returns (ShutdownAck);",
    "rpc GetShutdownStatus(ShutdownStatusRequest) returns (ShutdownStatus);",
    "rpc NotifyShutdownComplete(ShutdownComplete) returns (ShutdownCompleteAck);",
    "rpc GetReadinessStatus(ReadinessRequest) returns (ReadinessResponse);",
    "rpc NotifyReady(ReadyNotification) returns (ReadyAck);"};
const texts manager_methods = {
    "rpc ShutdownProcess(ShutdownProcessRequest) returns (ShutdownProcessResponse);",
    "rpc GetProcessStatus(ProcessStatusRequest) returns (ProcessStatus);",
    "rpc ShutdownGroup(ShutdownGroupRequest) returns (ShutdownGroupResponse);",
    "rpc GetGroupStatus(GroupStatusRequest) returns (GroupStatus);",
    "rpc RollingReplace(RollingReplaceRequest) returns (RollingReplaceResponse);",
    "rpc CancelReplace(CancelReplaceRequest) returns (CancelReplaceResponse);",
    "rpc ListGroups(ListGroupsRequest) returns (ListGroupsResponse);"};

// `rest`: what follows the package, before the service.
texts proto_of(const std::string& service, const texts& rest, const texts& methods,
               const std::vector<std::unique_ptr<any_message>>& messages) {
    const std::size_t dot = service.rfind('.');
    texts out = {"syntax = \"proto3\";", "package " + service.substr(0, dot) + ";"};
    out.insert(out.end(), rest.begin(), rest.end());
    out.push_back("service " + service.substr(dot + 1) + " {");
    out.insert(out.end(), methods.begin(), methods.end());
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

TEST_CASE("launcher messages: a message comes back with every field") {
    for (const auto& message : filled_messages()) {
        const std::string json = message->write();
        CAPTURE(json);
        const auto read = message->fresh();
        REQUIRE(read->read(json).has_value());
        CHECK(read->write() == json);  // in which another parser has found every field
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
            CHECK(read->write() == "{}");
        }
    }
}

TEST_CASE("launcher messages: a message as JSON") {
    process_status process;
    process.process_id = "kv-1";
    process.state = instance_state::forced;
    process.pid = 4711;
    process.readiness.state = readiness_state::draining;
    process.readiness.checks.custom_checks = {{"schema", true}, {"cache_warm", false}};
    process.shutdown.metrics.buffered_bytes = 9007199254740993;  // no double holds it
    process.shutdown.metrics.blocking_operations = {"waiting for Kafka flush"};
    process.uptime_ms = 12500;
    group_status group;
    group.min_healthy = 1;
    group.processes = {process, {}};
    group.quiet = true;
    CHECK(write_message(group) ==
          R"({"minHealthy":1,"processes":[{"processId":"kv-1","state":"FORCED","pid":4711,)"
          R"("readiness":{"state":"DRAINING","checks":{"customChecks":{"schema":true,"cache_warm":false}}},)"
          R"("shutdown":{"metrics":{"bufferedBytes":"9007199254740993",)"
          R"("blockingOperations":["waiting for Kafka flush"]}},"uptimeMs":"12500"},{}],"quiet":true})");
}

template <class Message, class State>
void check_states(const std::string& all, State Message::*place, const std::string& field = "state") {
    const texts names = test::words(all);
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

TEST_CASE("launcher messages: every state has its name, and is read by name and by number") {
    check_states(
        "RUNNING SHUTDOWN_REQUESTED SHUTDOWN_DRAINING SHUTDOWN_BLOCKED SHUTDOWN_COMPLETE SHUTDOWN_FORCED",
        &shutdown_status::state);
    check_states("STARTING WARMING READY DRAINING UNHEALTHY", &readiness_response::state);
    check_states(
        "SPAWNING STARTING WARMING READY UNHEALTHY SHUTDOWN_REQUESTED DRAINING COMPLETE FORCED CRASHED",
        &process_status::state);
    check_states("AS_CONFIGURED MANUAL IMMEDIATE BACKOFF", &rolling_replace_request::retry, "retry");
    check_states("NONE STARTING CANARIES DRAINING PAUSING ROLLING_BACK DONE ROLLED_BACK CANCELLED",
                 &replacement_status::phase, "phase");
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
    constexpr std::int64_t max = std::numeric_limits<std::int64_t>::max();
    const struct {
        const char* written;
        int bits;  // that it takes; 0: none can hold it
        std::int64_t value;
    } cases[] = {{"0 -0 0.000e99999999999999999999", 32, 0},
                 {"7 7.000 700e-2 0.0007e4", 32, 7},
                 {"2147483647", 32, 2147483647},
                 {"-2147483648", 32, -2147483647 - 1},
                 {"2147483648", 64, 2147483648},
                 {"-2147483649", 64, -2147483649},
                 {"9007199254740993", 64, 9007199254740993},
                 {"9.223372036854775807e18", 64, max},
                 {"-9223372036854775808", 64, -max - 1},
                 {"9223372036854775808 -9223372036854775809 1e19 1e300 0.5 1e-1 7.0000000000000000000000001 "
                  "100000000000000000000000000000000000000000",
                  0, 0}};
    for (const auto& each : cases) {
        for (const std::string& written : test::words(each.written)) {
            for (const std::string& value : {written, "\"" + written + "\""}) {
                CAPTURE(value);
                const auto small = read_message<shutdown_metrics>("{\"openConnections\":" + value + "}");
                const auto large = read_message<shutdown_metrics>("{\"bufferedBytes\":" + value + "}");
                CHECK(small.has_value() == (each.bits == 32));
                CHECK(large.has_value() == (each.bits != 0));
                if (small) CHECK(small->open_connections == each.value);
                if (large) CHECK(large->buffered_bytes == each.value);
            }
        }
    }
    texts bad =
        test::words(R"("" "+7" "07" "0x7" "seven" "NaN" "Infinity" "1e99999999999999999999" "7\u0000")");
    for (const char* each : {R"(" 7")", R"("7 ")"}) bad.emplace_back(each);
    for (const std::string& none : bad) {
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
        CHECK(read->write() == message->write());
    }
}

// One of each shape of JSON, and more of what some field takes.
const texts samples = test::words(
    R"(true "" "x" 0 1 4 1.5 -1 3000000000 "1" [] ["x"] [1] ["x",[]] {} {"x":true} {"x":1} {"x":null} "WARMING")"
    R"( "SHUTDOWN_FORCED" "shutdown" [null] "RUNNING_")");

// The samples that a field of that kind accepts, independently of the reader.
std::set<std::string> taken_by(const message_field& of) {
    std::set<std::string> names;
    for (std::size_t i = 0; of.enumerated != nullptr && i < of.enumerated->count; ++i) {
        names.insert(std::to_string(i));
        names.insert(json_quote(of.enumerated->values[i]));
    }
    switch (of.kind) {
        case field_kind::text:
            return {R"("")",         R"("x")",       R"("1")", R"("WARMING")", R"("SHUTDOWN_FORCED")",
                    R"("shutdown")", R"("RUNNING_")"};
        case field_kind::flag: return {"true"};
        case field_kind::int32: return {"0", "1", "4", "-1", "\"1\""};
        case field_kind::int64: return {"0", "1", "4", "-1", "\"1\"", "3000000000"};
        case field_kind::texts: return {"[]", "[\"x\"]"};
        case field_kind::checks: return {"{}", "{\"x\":true}"};
        case field_kind::enumeration: return names;
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
    // Unknown ones may be repeated.
    CHECK(fault_of<ready_ack>(R"({"later":1,"later":2})").empty());
}

TEST_CASE("launcher messages: text that is not a JSON object is refused") {
    for (const std::string& json :
         {std::string(), std::string(" "), std::string("null"), std::string("\"{}\""), std::string("{} x"),
          std::string("{reason:1}"), std::string(R"({"reason":"\ud800"})"), std::string("{}\0", 3),
          std::string(R"({"maxShutdownSeconds":1e999})"), std::string(R"({"x":1e999})")}) {
        CAPTURE(json);
        CHECK(fault_of<shutdown_request>(json) != "");
    }
    CHECK(fault_of<shutdown_request>("{\"reason\":\"\xff\"}") == "invalid JSON: not UTF-8");
    CHECK(fault_of<shutdown_request>("[1]") == "ShutdownRequest: not an object");
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
    CHECK(fault_of<group_status>(R"({"processes":[{},{"shutdown":{"state":9}}]})") ==
          "GroupStatus.processes.shutdown.state: not a ShutdownStatus.State known here");
    CHECK(fault_of<rolling_replace_request>(R"({"retry":"SOMETIMES"})") ==
          "RollingReplaceRequest.retry: not a RollingReplaceRequest.Retry known here");
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
            } else if (each.kind == field_kind::enumeration) {
                CHECK(found.to_str() == each.enumerated->values[each.enumerated->count - 1]);
            } else {
                CHECK_FALSE(found.is<picojson::null>());
            }
        }
    }
}

}  // namespace
