// A worker on a spool directory, and the flag that puts jobs in.
#include "harness.hpp"

namespace fs = std::filesystem;

TEST_CASE("spool: a worker without a backend runs the jobs added by worker --enqueue") {
    const fs::path directory = scratch_file("spool-enqueue");
    const environment settings = {{"OJS_URL", "spool:" + directory.string()}, {"OJS_POLL_INTERVAL", "50ms"}};
    const auto enqueue = [&](std::vector<std::string> words) {
        words.insert(words.begin(), {program("worker"), "--enqueue"});
        return process(words, settings);
    };
    process put = enqueue({"text.count", "/etc/passwd", "0"});
    CHECK(put.wait() == 0);
    const std::string id = put.output().substr(0, put.output().find('\n'));
    process other = enqueue({"noop", "007", "{\"n\":12345678901234567890}", "[1", "-1.5e3", ""});
    CHECK(other.wait() == 0);
    const std::string second = other.output().substr(0, other.output().find('\n'));
    CHECK(read_file(directory / "request" / (second + ".json"))
              .find(R"("args":["007",{"n":12345678901234567890},"[1",-1.5e3,""])") != std::string::npos);
    process worker({program("worker")}, settings);
    const auto is_done = [&](const std::string& each) { return fs::exists(directory / "done" / (each + ".json")); };
    CHECK(eventually([&] { return is_done(id) && is_done(second); }));
    CHECK(worker.end_by(SIGTERM) == 0);
    const json done = json::parse(read_file(directory / "done" / (id + ".json")));
    CHECK(done["result"]["path"].is("/etc/passwd"));
}
