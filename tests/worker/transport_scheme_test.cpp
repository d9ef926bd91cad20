// URL schemes that a program adds, and the errors for unknown ones.
#include "recorder.hpp"
#include "text.hpp"

using namespace ojs;
using test::holds;

namespace {
// Counts those that live.
class counted_queue : public memory_transport {
  public:
    explicit counted_queue(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
    ~counted_queue() override { --alive_; }

  private:
    std::atomic<int>& alive_;
};

// The result of start() with this URL, a handler and the schemes that `change` adds.
template <class Change>
result<void> start_with(const std::string& url, Change change) {
    worker_options options = recorder::options();
    options.url = url;
    change(options);
    worker worker(options);
    worker.register_handler("work", [](job_context&) {});
    return worker.start();
}

void none(worker_options& /*options*/) {}

transport_scheme scheme(const char* name, result<transport_ref> opened) {
    return {name, [opened](const detail::transport_setup&) { return opened; }, nullptr};
}

result<worker_options> from_url(const char* url) {
    return worker_options::from_environment(
        [url](const char* name) { return std::string(name) == "OJS_URL" ? url : nullptr; }, "/nonexistent");
}

void check_refused(const result<void>& started, errc code, const std::string& part) {
    REQUIRE(!started);
    CAPTURE(started.error().text);
    CHECK(started.error().code == code);
    CHECK(holds(started.error().text, part));
}
}  // namespace

TEST_CASE("scheme: a scheme that a program adds opens the transport, also for copied options") {
    std::atomic<int> alive{0};
    recorder::event done;
    std::vector<log_record> logged;
    std::string address;
    std::string worker_id;
    result<worker_options> read = from_url("Queue+1:a:b//c");
    REQUIRE(read);
    read->log.hook = [&logged](const log_record& record) { logged.push_back(record); };
    read->worker_id = "me";
    read->transports.add({"queue+1",
                          [&](const detail::transport_setup& setup) -> result<transport_ref> {
                              address = std::string(setup.address);
                              worker_id = setup.worker.worker_id + setup.options.worker_id;
                              setup.log({log_level::warn, "opened", {}, {}});
                              const transport_ref made(new counted_queue(alive));
                              static_cast<counted_queue&>(*made).push("work");
                              return made;
                          },
                          nullptr});
    CHECK(validate(*read));
    const worker_options copy = *read;
    {
        worker worker(copy);
        worker.register_handler("work", [&done](job_context&) { done.set(); });
        CHECK(alive == 0);
        REQUIRE(worker.start());
        REQUIRE(done.wait());
        REQUIRE(worker.stop(recorder::guard));
        CHECK(worker.report().completed == 1);
        CHECK(alive == 1);
    }
    CHECK(alive == 0);
    CHECK(address == "a:b//c");
    CHECK(worker_id == "meme");
    REQUIRE(!logged.empty());
    CHECK(logged.front().message == "opened");
    CHECK(logged.front().worker_id == "me");
    std::string url;
    for (const log_record& each : logged) {
        if (each.message == "worker started") url = recorder::value_of(each, "url");
    }
    CHECK(url == "Queue+1:a:b//c");
}

TEST_CASE("scheme: the last scheme added under a name wins, even over a built-in scheme") {
    const error first{errc::system, 0, "first"};
    const error second{errc::unreachable, 7, "second"};
    for (const char* url : {"q:", "http://host"}) {
        const std::string name = std::string(url).substr(0, std::string(url).find(':'));
        const result<void> started = start_with(url, [&](worker_options& options) {
            options.transports.add(scheme(name.c_str(), first));
            options.transports.add(scheme(name.c_str(), second));
        });
        check_refused(started, errc::unreachable, std::string("url (OJS_URL) '") + url + "': second");
        CHECK(started.error().sys_errno == 7);
    }
}

TEST_CASE("scheme: a scheme that returns no transport or throws makes start() fail with an error") {
    const auto add = [](transport_scheme added) {
        return [added](worker_options& options) { options.transports.add(added); };
    };
    check_refused(start_with("q:", add({"q", nullptr, nullptr})), errc::invalid_argument, "returned no transport");
    check_refused(start_with("q:", add(scheme("q", transport_ref()))), errc::invalid_argument, "returned no transport");
    const auto thrower = [](const detail::transport_setup&) -> result<transport_ref> { throw 1; };
    check_refused(start_with("q:", add({"q", thrower, nullptr})), errc::invalid_argument, "threw an exception");
}

// How doctor() corrects the URL; empty: it has no advice.
std::string advised_for(const std::string& url, void (*change)(worker_options&)) {
    worker_options options;
    options.url = url;
    change(options);
    for (const finding& each : doctor(options, ops_options(), std::chrono::milliseconds(1))) {
        if (each.id == "options" && holds(each.fix, "did you mean ")) return each.fix;
    }
    return "";
}

TEST_CASE("scheme: a URL without a known scheme is refused with a remedy, and doctor() suggests a correct URL") {
    const std::string schemes = "; write http://HOST:PORT (schemes: http:, unix:, mine:)";
    const std::string appended = "leave out /ojs/v1, which is appended to the URL";
    const struct {
        const char* url;
        std::string advice;
        const char* suggestion = nullptr;
    } rows[] = {
        {"other:x", "no valid scheme" + schemes},
        {"Spool:/dir", "needs ojs_spool.hpp: include it, and call options->transports.add(ojs::spool())"},
        {"", "no valid scheme; write http://"},
        {"memory:", "needs ojs_memory.hpp: include it, and call options->transports.add(ojs::memory())"},
        {"amqp://me:pa55@h/", "amqp: needs ojs_amqp.hpp: include it, and call options->transports.add(ojs::amqp())"},
        {"REDIS://:pa55@h", "redis: needs ojs_redis_streams.hpp: include it, and call options->transports.add("},
        {"postgresql://me:pa55@h/db", "needs ojs_river.hpp: include it, and call ojs::river_transport::create()"},
        {"amqps://me:pa55@h", "amqps://(redacted"},
        {"other:me://pa55@h", "'(redacted"},
        {"/tmp/jobs", "no valid scheme" + schemes},
        {"localhost:8080", "no valid scheme" + schemes, "http://localhost:8080"},
        {"[::1]:8080/base", "no valid scheme" + schemes, "http://[::1]:8080/base"},
        {"//host", "no valid scheme" + schemes, "http://host"},
        {"HTPS://h:1", "no valid scheme" + schemes, "https://h:1"},
        {"http:/h", "no valid scheme" + schemes, "http://h"},
        {"HTTP//h", "no valid scheme" + schemes, "http://h"},
        {"minr:/x/ojs/v1", "no valid scheme" + schemes, "mine:/x/ojs/v1"},
        {"http://h:1/ojs/v1", appended, "http://h:1"},
        {"HTTP://h/base/ojs/v1//", appended, "HTTP://h/base"},
        {"http://h/me:pa55@x/ojs/v1", appended, "http://(redacted: may contain credentials)"}};
    const auto adds = [](worker_options& options) { options.transports.add(scheme("mine", transport_ref())); };
    for (const auto& each : rows) {
        CAPTURE(each.url);
        if (*each.url != '\0') CHECK(from_url(each.url));
        const result<void> started = start_with(each.url, adds);
        const bool is_known = holds(each.advice, "needs ojs_");
        check_refused(started, is_known ? errc::unsupported : errc::invalid_argument, each.advice);
        CHECK(!holds(started.error().text, "pa55"));
        worker_options options;
        options.url = each.url;
        adds(options);
        REQUIRE(!validate(options));
        CHECK(validate(options).error().text == started.error().text);
        if (each.suggestion == nullptr)
            CHECK(advised_for(each.url, adds).empty());
        else
            CHECK(advised_for(each.url, adds) == std::string("did you mean ") + each.suggestion + "?");
    }
    for (const char* url : {":x", "1a:x", "a b:x", "unix:x"}) CHECK_MESSAGE(!start_with(url, none), url);
    const auto has_https = [](worker_options& options) {
        options.https_stream = [](int, const std::string&, const std::string&) { return byte_stream_ref(); };
    };
    check_refused(start_with("h:1", has_https), errc::invalid_argument, "(schemes: http:, unix:, https:)");
}

TEST_CASE("scheme: memory: starts a worker, and ojs/v1 is refused only at the end of a path") {
    const auto add_memory = [](worker_options& options) { options.transports.add(memory()); };
    CHECK(start_with("memory:", add_memory));
    check_refused(start_with("memory:x", add_memory), errc::invalid_argument, "memory: takes no address");
    worker_options options;
    for (const char* url : {"http://h/ojs", "http://h/ojs/v1/x", "http://h/ojs/v10", "http://ojs/v1",
                            "http://h/a-ojs/v1", "unix:/ojs/v1"}) {
        CAPTURE(url);
        options.url = url;
        CHECK(validate(options));
    }
}
