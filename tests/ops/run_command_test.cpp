// run_command: which words are commands, and their statuses; tests/process/flags.cpp sends signals.
#include "findings.hpp"
#include "standard_error.hpp"

using namespace test;

TEST_CASE("run_command: a wrong command or invalid options give 64, and words without two dashes are the program's") {
    const ojs::error invalid{ojs::errc::invalid_argument, 0, "OJS_X='y': no"};
    const auto run = [](const std::string& arguments, const ojs::result<ojs::worker_options>& options) {
        const std::vector<std::string> all = words("/bin/hello " + arguments);
        std::vector<const char*> argv;
        for (const std::string& each : all) argv.push_back(each.c_str());
        return ojs::run_command(static_cast<int>(argv.size()), argv.data(), options).value_or(-1);
    };
    int status = 0;
    for (const char* own : {"", "file", "-x file", "--", "-", "--init"})  // the last only forks as PID 1
        CHECK(run(own, quiet_options()) == -1);
    for (const char* wrong :
         {"--nonsense", "--help", "file --verbose", "quiet --signal", "--wait", "--wait --signal quiet", "--doctor now",
          "--init now", "--init --doctor", "--signal", "--signal --wait", "--signal pause", "--signal stop -1",
          "--signal stop 0", "--signal stop 1x", "--signal stop 1 2", "--signal stop 1 --wait 2"}) {
        CAPTURE(wrong);
        const std::string said = standard_error_of([&] { status = run(wrong, quiet_options()); });
        CHECK(status == 64);
        CHECK(holds(said, wrong == std::string("--signal pause") ? "quiet, resume" : "usage: hello [--doctor"));
    }
    for (const char* given : {"", "--init", "--signal quiet --wait"}) {
        CHECK(standard_error_of([&] { status = run(given, invalid); }) == "error: OJS_X='y': no\n");
        CHECK(status == 64);
    }
    CHECK(run("--doctor", invalid) == 1);  // a finding
    CHECK(run("--doctor", quiet_options()) == 0);
}
