#include "every_message.hpp"
#include "test.hpp"

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
            case field_kind::int64: *static_cast<std::int64_t*>(each.value) = (std::int64_t{1} << 60) + n; break;
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
template <class Message>
std::string fault_of(const std::string& json) {
    const result<Message> read = read_message<Message>(json);
    if (read) return "";
    CHECK(read.error().code == errc::bad_response);
    CHECK(read.error().text.size() < 120);
    return read.error().text;
}

std::string proto_type(const message_field& of) {
    switch (of.kind) {
        case field_kind::text: return "string";
        case field_kind::flag: return "bool";
        case field_kind::int32: return "int32";
        case field_kind::int64: return "int64";
        case field_kind::texts: return "repeated string";
        case field_kind::checks: return "map<string, bool>";
        case field_kind::enumeration: return of.enumerated->name + std::string(of.enumerated->name).rfind('.') + 1;
        case field_kind::messages: return cat({"repeated ", of.element(of.value, 0).name});
        case field_kind::message: return of.message_name;
    }
    return "";
}

TEST_CASE("launcher messages: the .proto files have the same fields, types, numbers and values") {
    const std::string files =
        test::read_file("examples/proto/lifecycle.proto") + test::read_file("examples/proto/admin.proto");
    for (const auto& message : every_message()) {
        const message_view view = message->view();
        CAPTURE(view.name);
        const std::size_t begin = files.find(cat({"\nmessage ", view.name, " {"}));
        REQUIRE(begin != std::string::npos);
        const std::string body = files.substr(begin, files.find("\n}", begin) - begin);
        texts lines;
        for (const message_field& each : view.fields) {
            const auto number = static_cast<long>(&each - view.fields.begin() + 1);
            lines.push_back(cat({" ", proto_type(each), " ", each.name, " = ", number, ";"}));
            for (std::size_t i = 0; each.enumerated != nullptr && i < each.enumerated->count; ++i)
                lines.push_back(cat({" ", each.enumerated->values[i], " = ", i, ";"}));
        }
        for (const std::string& line : lines) CHECK_MESSAGE(test::holds(body, line), line);
        CHECK(std::count(body.begin(), body.end(), '=') == static_cast<long>(lines.size()));
    }
}

TEST_CASE("launcher messages: a filled message survives writing and reading as JSON") {
    for (const auto& message : filled_messages()) {
        const std::string json = message->write();
        CAPTURE(json);
        const auto read = message->fresh();
        REQUIRE(read->read(json).has_value());
        CHECK(read->write() == json);
        std::set<const void*> places;
        const message_view view = message->view();
        for (const message_field& each : view.fields)
            CHECK(places.insert(each.kind == field_kind::message ? each.fields[0].value : each.value).second);
        CHECK(view.fields.size() <= 32);  // the reader notes in 32 bits which of them it has seen
    }
}

TEST_CASE("launcher messages: unset fields are not written, and null and unknown fields are ignored") {
    for (const auto& message : every_message()) {
        CHECK(message->write() == "{}");
        std::string json = R"({"":[],"x":{"state":7},"State":"?","ProcessId":0,"process-id":[null])";
        for (const message_field& each : message->view().fields) append(json, {",", json_quote(each.name), ":null"});
        CAPTURE(json);
        const auto read = message->fresh();
        REQUIRE(read->read(json + R"(,"x":1e9,"message_":"\ud83d\ude00"})").has_value());
        CHECK(read->write() == "{}");
    }
}

TEST_CASE("launcher messages: a group status with nested messages is written as proto3 JSON") {
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

TEST_CASE("launcher messages: a state is read by name or number, and written by to_string()") {
    for (const char* json : {R"({"state":"SHUTDOWN_BLOCKED"})", R"({"state":3})"})
        CHECK(read_message<shutdown_status>(json).value_or({}).state == shutdown_state::blocked);
    CHECK(to_string(shutdown_state::forced) == std::string("SHUTDOWN_FORCED"));
    CHECK(to_string(static_cast<shutdown_state>(6)) == std::string("UNKNOWN"));
    CHECK(to_string(static_cast<readiness_state>(-1)) == std::string("UNKNOWN"));
}

TEST_CASE("launcher messages: unknown enum values, invalid UTF-8 and duplicates become valid JSON") {
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

TEST_CASE("launcher messages: field names in snake_case and camelCase are read, with JSON escapes decoded") {
    const auto read = read_message<shutdown_request>(R"({"process_id":"\u006bv-1","gracePeriodSec\u006fnds":3})");
    REQUIRE(read.has_value());
    CHECK(read->process_id == "kv-1");
    CHECK(read->grace_period_seconds == 3);
    const auto zero = read_message<shutdown_status>("{\"message\":\"a\\u0000b\"}");
    CHECK((zero && zero->message == std::string("a\0b", 3)));
}

TEST_CASE("launcher messages: an integer field accepts only whole numbers in its range, exactly") {
    constexpr std::int64_t max = std::numeric_limits<std::int64_t>::max();
    const struct {
        const char* written;
        int bits;  // that it takes; 0: none can hold it
        std::int64_t value;
    } rows[] = {{"0 -0 0.000e99999999999999999999", 32, 0},
                {"7 7.000 700e-2 0.0007e4", 32, 7},
                {"-2147483648", 32, -2147483647 - 1},
                {"2147483648", 64, 2147483648},
                {"9007199254740993", 64, 9007199254740993},
                {"9.223372036854775807e18", 64, max},
                {"9223372036854775808 1e300 0.5 7.0000000000000000000000001", 0, 0},
                {"+7 07 0x7 seven NaN 1e99999999999999999999 7\\u0000", 0, 0}};
    for (const auto& row : rows) {
        for (const std::string& written : test::words(row.written)) {
            for (const std::string& value : {written, "\"" + written + "\""}) {
                CAPTURE(value);
                const auto small = read_message<shutdown_metrics>("{\"openConnections\":" + value + "}");
                const auto large = read_message<shutdown_metrics>("{\"bufferedBytes\":" + value + "}");
                CHECK(small.has_value() == (row.bits == 32));
                CHECK(large.has_value() == (row.bits != 0));
                if (small) CHECK(small->open_connections == row.value);
                if (large) CHECK(large->buffered_bytes == row.value);
            }
        }
    }
    CHECK(fault_of<shutdown_metrics>(R"({"open_connections":2147483648})") ==
          "ShutdownMetrics.open_connections: must be a 32-bit integer");
    CHECK(fault_of<shutdown_metrics>(R"({"bufferedBytes":0.5})") ==
          "ShutdownMetrics.buffered_bytes: must be a 64-bit integer");
}

TEST_CASE("launcher messages: an error names the field and type, never parts of the input") {
    const struct {
        std::string (*fault)(const std::string& json);
        const char* json;
        const char* text;
    } rows[] = {
        {fault_of<shutdown_request>, R"({"reason":"a","processId":"hunter2","process_id":"hunter2"})",
         "ShutdownRequest.process_id: duplicate key"},
        {fault_of<shutdown_status>, R"({"state":null,"state":4})", "ShutdownStatus.state: duplicate key"},
        {fault_of<shutdown_status>, R"({"metrics":{"bufferedBytes":1,"buffered_bytes":1}})",
         "ShutdownStatus.metrics.buffered_bytes: duplicate key"},
        {fault_of<readiness_response>, R"({"checks":{"customChecks":{"a":true,"b":true,"\u0061":false}}})",
         "ReadinessResponse.checks.custom_checks: duplicate name"},
        {fault_of<ready_ack>, R"({"later":1,"later":2})", ""},  // unknown
        {fault_of<shutdown_request>, "{\"reason\":\"\xff\"}", "invalid JSON: not UTF-8"},
        {fault_of<shutdown_request>, "[1]", "ShutdownRequest: must be an object"},
        {fault_of<shutdown_ack>, R"({"acknowledged":1})", "ShutdownAck.acknowledged: must be true or false"},
        {fault_of<shutdown_metrics>, R"({"blockingOperations":["x",[]]})",
         "ShutdownMetrics.blocking_operations[1]: must be a string"},
        {fault_of<readiness_checks>, R"({"customChecks":{"x":null}})",
         "ReadinessChecks.custom_checks: must be an object of true and false"},
        {fault_of<group_status>, R"({"processes":{}})", "GroupStatus.processes: must be a list"},
        {fault_of<shutdown_status>, R"({"metrics":[]})", "ShutdownStatus.metrics: must be an object"},
        {fault_of<shutdown_status>, R"({"state":6})", "ShutdownStatus.state: must be a known ShutdownStatus.State"},
        {fault_of<shutdown_request>, R"({"processId":["hunter2"]})", "ShutdownRequest.process_id: must be a string"},
        {fault_of<shutdown_request>, R"({"hunter2":1,"reason":{"hunter2":1}})",
         "ShutdownRequest.reason: must be a string"},
        {fault_of<shutdown_status>, R"({"state":"HUNTER2"})",
         "ShutdownStatus.state: must be a known ShutdownStatus.State"},
        {fault_of<group_status>, R"({"processes":[{},{"shutdown":{"state":9}}]})",
         "GroupStatus.processes[1].shutdown.state: must be a known ShutdownStatus.State"}};
    for (const auto& row : rows) CHECK_MESSAGE(row.fault(row.json) == row.text, row.json);
    const std::string broken = fault_of<shutdown_request>(R"({"hunter2)");
    CHECK(test::holds(broken, "invalid JSON"));
    CHECK_FALSE(test::holds(broken, "hunter"));
}
}  // namespace
