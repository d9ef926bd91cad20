// job_metrics: its series and its buckets, which a worker would take hours to fill.
#include "metrics_page.hpp"

using test::samples;

TEST_CASE("metrics: the number of series stays bounded for any number of names, and every job is counted") {
    std::vector<std::string> queues;
    std::vector<std::string> types = {"other", "t0"};
    for (int i = 0; i < 60; ++i) queues.push_back("q" + std::to_string(i));
    for (int i = 0; i < 300; ++i) types.push_back("t" + std::to_string(i));
    detail::job_metrics metrics(queues, types);
    queues.emplace_back("stranger");
    types.emplace_back("strange");
    for (const std::string& queue : queues) {
        for (const std::string& type : types) metrics.settled({queue, type, detail::settled_state::completed, 3ms});
    }
    detail::metrics_page page;
    metrics.show(page);
    std::uint64_t shown = 0;
    int series = 0;
    for (const auto& [name, value] : samples(page.text)) {
        CHECK(!holds(name, "strange"));
        if (name.compare(0, 24, "ojs_job_completed_total{") != 0) continue;
        ++series;
        shown += std::stoull(value);
    }
    CHECK(series == 501);
    CHECK(shown == queues.size() * types.size());
}

TEST_CASE("metrics: job durations are counted in the recommended buckets") {
    detail::job_metrics metrics({"q"}, {"t"});
    for (const auto took : {-1ms, 0ms, 5ms, 6ms, 300000ms, 300001ms})
        metrics.settled({"q", "t", detail::settled_state::available, took});
    detail::metrics_page page;
    metrics.show(page);
    const auto all = samples(page.text);
    const std::string labels = "{queue=\"q\",type=\"t\",state=\"available\"";
    const std::pair<std::string, const char*> buckets[] = {
        {"0.005", "3"}, {"0.01", "4"}, {"120", "4"}, {"300", "5"}, {"+Inf", "6"}};
    for (const auto& [le, count] : buckets)
        CHECK(all.at("ojs_job_duration_seconds_bucket" + labels + ",le=\"" + le + "\"}") == count);
    CHECK(all.at("ojs_job_duration_seconds_sum" + labels + "}") == "600.012000");
    CHECK(all.count("ojs_job_completed_total{queue=\"q\",type=\"t\"}") == 0);
}
