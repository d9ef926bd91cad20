// shutdown_sequence: the order, and what a step that throws, hangs or ends its thread does to the others.
#include <pthread.h>

#include <mutex>

#include "events.hpp"
#include "test.hpp"

using namespace ojs;
using namespace std::chrono_literals;

namespace {

struct journal {
    std::mutex mutex;
    std::string text;
    void add(const char* what) {
        const std::lock_guard<std::mutex> held(mutex);
        text += what;
    }
};

}  // namespace

TEST_CASE("shutdown sequence: steps run in order, once, and each says how it ended") {
    journal ran;
    shutdown_sequence tested;
    CHECK(tested.add(
        "first", [&] { ran.add("1"); }, 1min));
    CHECK(tested.add(
        "throws", [&] { throw 1; }, 1min));
    CHECK(tested.add(
        "leaves", [&] { ran.add("2"), pthread_exit(nullptr); }, 1min));
    CHECK(tested.add(
        "last", [&] { ran.add("3"); }, no_limit));
    CHECK_FALSE(tested.add("none", nullptr, 1min));
    CHECK(tested.size() == 4);
    CHECK(tested.limit() == no_limit);
    std::vector<std::string> told;
    const std::vector<step_result> got =
        tested.run([&](const step_result& each) { told.push_back(each.name); });
    CHECK(ran.text == "123");
    CHECK(told == std::vector<std::string>{"first", "throws", "leaves", "last"});
    REQUIRE(got.size() == 4);
    const step_end expected[] = {step_end::done, step_end::threw, step_end::done, step_end::done};
    for (std::size_t i = 0; i < 4; ++i) CHECK(got[i].how == expected[i]);
    CHECK(tested.run().empty());
    CHECK(ran.text == "123");
    CHECK(std::string(to_string(step_end::timed_out)) == "timed out");
}

TEST_CASE("shutdown sequence: a step that hangs is left behind at its limit") {
    const auto let_go = std::make_shared<test::event>();
    const auto returned = std::make_shared<test::event>();
    journal ran;
    shutdown_sequence tested;
    tested.add(
        "hangs",
        [=] {
            let_go->wait();
            returned->set();
        },
        1ms);
    tested.add(
        "next", [&] { ran.add("n"); }, 1min);
    const std::vector<step_result> got = tested.run();
    REQUIRE(got.size() == 2);
    CHECK(got[0].how == step_end::timed_out);
    CHECK(got[1].how == step_end::done);
    CHECK(ran.text == "n");
    let_go->set();
    REQUIRE(returned->wait());
}
