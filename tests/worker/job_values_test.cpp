// Handlers that take and give picojson's values.
#include "recorder.hpp"

using recorder::make_job;

namespace {
template <class Handler>
recorder::call settle_with(const std::string& args_json, Handler handler, const std::string& meta_json = "{}") {
    job given = make_job("a", "work", args_json);
    given.meta_json = meta_json;
    return recorder::run_one(std::move(given), std::move(handler));
}

picojson::value number(double of) { return picojson::value(of); }
}  // namespace

TEST_CASE("job values: arguments are read as picojson values, or the error names the argument") {
    const std::string deep = std::string(200, '[') + std::string(200, ']');
    settle_with(R"([{"n":1.5,"l":["x"]},[1,2],"s",)" + std::string("\"\xff\",") + deep + "]", [](job_context& job) {
        CHECK(job.arg<picojson::value>(0)->get("n").get<double>() == 1.5);
        CHECK(job.require_arg<picojson::object>(0).at("l").get(0).get<std::string>() == "x");
        CHECK(job.arg<picojson::array>(1)->size() == 2);
        CHECK(job.arg<picojson::value>(2)->get<std::string>() == "s");
        const result<picojson::array> no_array = job.arg<picojson::array>(0);
        REQUIRE_FALSE(no_array);
        CHECK(no_array.error().code == errc::invalid_argument);
        CHECK(no_array.error().text == "argument 0: not an array");
        CHECK(job.arg<picojson::value>(3).error().text == "argument 3: invalid JSON: not UTF-8");
        CHECK(job.arg<picojson::value>(4).error().text == "argument 4: invalid JSON in line 1, or beyond a limit");
        CHECK(job.arg<picojson::value>(5).error().text == "argument 5: missing");
        CHECK(job.args<picojson::array>().error().code == errc::bad_response);
    });
    settle_with("[1,[2]]", [](job_context& job) {
        CHECK(job.args<picojson::array>()->at(1).get(0).get<double>() == 2);
        CHECK(job.args<picojson::value>()->get(0).get<double>() == 1);
        CHECK(job.args<picojson::object>().error().code == errc::invalid_argument);
    });
}

TEST_CASE("job values: a picojson value that a handler returns is the job's result") {
    const auto result_of = [](auto handler) { return settle_with("[]", handler).result_json; };
    CHECK(result_of([](job_context&) { return picojson::value(picojson::object{{"n", number(2)}}); }) == R"({"n":2})");
    CHECK(result_of([](job_context&) -> outcome { return picojson::value("text"); }) == R"("text")");
    CHECK(result_of([](job_context&) { return outcome::done(number(0.5)); }) == "0.5");
    CHECK(result_of([](job_context&) { return outcome::done(picojson::value(std::string("a\xff"))); }) ==
          "\"a\xef\xbf\xbd\"");
}

TEST_CASE("job values: a checkpoint is saved and loaded as a picojson value") {
    settle_with(
        "[]",
        [](job_context& job) {
            CHECK(job.checkpoint<picojson::object>()->at("page").get<double>() == 7);
            CHECK(job.checkpoint<picojson::array>().error().code == errc::invalid_argument);
            CHECK(job.save_checkpoint(picojson::value(picojson::array{number(8.5)})));
            CHECK(job.checkpoint() == "[8.5]");
            CHECK(job.checkpoint<picojson::value>()->get(0).get<double>() == 8.5);
            CHECK(job.save_checkpoint(picojson::value(std::string("\xff"))).error().code == errc::invalid_argument);
            CHECK(job.save_checkpoint(picojson::value()));
            CHECK(job.checkpoint<picojson::value>()->is<picojson::null>());
        },
        R"({"checkpoint":{"page":7}})");
}
