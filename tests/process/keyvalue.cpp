// tools/keyvalue_runner: what was put is there after a stop, a request in flight gets its response, and one that comes too
// late is refused.
#include "files.hpp"
#include "harness.hpp"
#include "raw_peer.hpp"

using namespace test;

namespace {

class keyvalue {
  public:
    keyvalue(const temporary_folder& folder, const std::string& work_duration)
        : socket_("unix:" + folder.file("kv.sock")),
          self(
              {program("keyvalue_runner"), "--file", folder.file("values"), "--work-duration", work_duration},
              {{"OJS_LIFECYCLE_ADDR", socket_}}) {
        REQUIRE_MESSAGE(self.prints("serving on 127.0.0.1:"), self.output());
        const std::string& text = self.output();
        const std::size_t at = text.find("127.0.0.1:");
        address_ = text.substr(at, text.find('\n', at) - at);
    }
    ojs::http_response send(const char* method, const std::string& key, const std::string& body = "") const {
        ojs::http_request request = peer::post("/" + key, body);
        request.method = method;
        const auto got = peer::make_client("http://" + address_).send(request, peer::call());
        REQUIRE_MESSAGE(got, got.error().text);
        return *got;
    }
    json lifecycle(const std::string& method, const std::string& body = "{}") const {
        ojs::http_request request = peer::post("/prism.interfaces.ProcessLifecycleInterface/" + method, body);
        request.headers = {{"Content-Type", "application/json"}};
        const auto got = peer::make_client(socket_).send(request, peer::call());
        REQUIRE_MESSAGE(got, got.error().text);
        return json::parse(got->body);
    }
    json status() const { return lifecycle("GetShutdownStatus"); }

  private:
    const std::string socket_;
    std::string address_;

  public:
    process self;
};

}  // namespace

TEST_CASE("keyvalue: a drain completes requests in flight, refuses new ones and saves every stored value") {
    const temporary_folder folder;
    {
        const keyvalue one(folder, "2s");
        int in_hand = 0;
        std::thread client([&] { in_hand = one.send("PUT", "a", "first value").status; });
        REQUIRE(eventually([&] { return one.status()["metrics"]["inFlightRequests"].number == 1; }));
        one.lifecycle("Shutdown", "{\"maxShutdownSeconds\":3600}");
        REQUIRE(eventually([&] { return one.status()["state"].is("SHUTDOWN_DRAINING"); }));
        CHECK(one.send("PUT", "b", "late").status == 503);
        client.join();
        CHECK(in_hand == 204);
        CHECK(one.self.wait() == 0);
    }
    CHECK(read_file(folder.file("values")) == "a first value\n");
    const keyvalue next(folder, "0s");
    CHECK(next.send("GET", "a").body == "first value");
    CHECK(next.send("GET", "b").status == 404);
    CHECK(next.send("PUT", "c", "third").status == 204);
    CHECK(next.status()["metrics"].has("bufferedBytes"));
    next.self.signal(SIGTERM);
    CHECK(next.self.wait() == 0);
    CHECK(read_file(folder.file("values")) == "a first value\nc third\n");
}
