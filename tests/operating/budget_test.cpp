// Budgets of a stop: whether it fits into the container's or the platform's time, and the recommended fix.
#include <string>
#include <utility>
#include <vector>

#include "text.hpp"

using namespace test;
using namespace std::chrono_literals;
using ojs::dialect;
using ojs::finding;
using ojs::severity;
using ojs::worker_options;
using ojs::detail::check_budget;
using std::chrono::milliseconds;

namespace {

ojs::worker_options with(milliseconds grace, milliseconds container, milliseconds prestop = 0ms,
                         milliseconds stop = 5s) {
    ojs::worker_options out;
    out.times.shutdown_grace_period = grace;
    out.container_grace_period = container;
    out.prestop_delay = prestop;
    out.times.stop_timeout = stop;
    return out;
}

}  // namespace

TEST_CASE("budget: no finding if nothing is configured, or if everything fits") {
    CHECK(check_budget(with(30s, 0s)).empty());
    CHECK(check_budget(with(30s, 0s, 5s)).empty());
    CHECK(check_budget(with(30s, 40s)).empty());
    CHECK(check_budget(with(30s, 35s)).empty());
    CHECK(check_budget(with(30s, 40s, 5s)).empty());
    CHECK(check_budget(with(30s, 50s, 0s, 20s)).empty());
}

TEST_CASE("budget: the timeouts of shutdown steps count") {
    CHECK(check_budget(with(30s, 45s), 10s).empty());
    const std::vector<finding> tight = check_budget(with(30s, 45s), 11s);
    REQUIRE(tight.size() == 1);
    CHECK(tight[0].id == "budget-tight");
    CHECK(holds(tight[0].problem, "may take 16s"));
    CHECK(holds(tight[0].fix, "grant 46s"));
    CHECK(check_budget(with(30s, 1h), ojs::no_limit).size() == 1);
    CHECK(check_budget(with(ojs::no_limit, 60s)).size() == 1);
    CHECK(holds(check_budget(with(ojs::no_limit, 60s))[0].problem, "unlimited grace period"));
    CHECK(holds(check_budget(with(ojs::no_limit, 60s))[0].fix, "set OJS_SHUTDOWN_GRACE_PERIOD to 50s"));
}

TEST_CASE("budget: without a configured grant, the platform's default counts and the platform is named") {
    const std::string any = "terminationGracePeriodSeconds, stop_grace_period or docker stop -t";
    const struct {
        const char* runtime;
        milliseconds granted;
        const char* id;
        std::string name;
        std::string setting;
    } cases[] = {
        {"kubernetes", 30s, "budget-kubernetes", "Kubernetes", "terminationGracePeriodSeconds"},
        {"ecs", 30s, "budget-ecs", "Amazon ECS", "stopTimeout"},
        {"cloud-run", 10s, "budget-cloud-run", "Cloud Run", ""},
        {"heroku", 30s, "budget-heroku", "Heroku", ""},
        {"fly", 5s, "budget-fly", "Fly.io", "kill_timeout in fly.toml"},
        {"nomad", 5s, "budget-nomad", "Nomad", "kill_timeout"},
        {"docker", 10s, "budget-docker", "Docker", "stop_grace_period or docker stop -t"},
        {"podman", 10s, "budget-podman", "Podman", "--stop-timeout or podman stop -t"},
        {"lxc", 10s, "budget-container", "the container", any},
    };
    ojs::container_info info;
    info.in_container = true;
    for (const auto& each : cases) {
        CAPTURE(each.runtime);
        info.runtime = each.runtime;
        const milliseconds fitting = each.granted - 5s;  // the longest grace period
        const std::string granted =
            ojs::format_duration(each.granted) + " that " + each.name + " grants" +
            (each.setting.empty() ? "" : " unless " + each.setting + " says otherwise");
        worker_options options = with(fitting, 0s);
        options.heartbeat_interval = fitting - 1ms;
        const std::vector<finding> fits = check_budget(options, 0s, info);
        REQUIRE(fits.size() == 1);
        CHECK(fits[0].id == each.id);
        CHECK(fits[0].severity == severity::info);
        CHECK(fits[0].problem ==
              "the grace period of " + ojs::format_duration(fitting) + " fits into the " + granted);
        options.times.shutdown_grace_period += 1s;
        const std::vector<finding> longer = check_budget(options, 0s, info);
        REQUIRE(longer.size() == 1);
        CHECK(longer[0].id == "budget-unknown");
        CHECK(longer[0].severity == severity::warning);
        CHECK(longer[0].problem == "the grace period of " + ojs::format_duration(fitting + 1s) +
                                       " and the 5s for reporting need more than the " + granted +
                                       "; OJS_CONTAINER_GRACE_PERIOD is unset");
        std::string fix = each.name + " grants no more time: let longer jobs save checkpoints";
        if (!each.setting.empty())
            fix = "let " + each.name + " grant " + ojs::format_duration(fitting + 11s) + " (" + each.setting +
                  ") and set OJS_CONTAINER_GRACE_PERIOD to the same";
        if (each.granted == 30s) fix += "; or set OJS_SHUTDOWN_GRACE_PERIOD to 20s or less";
        CHECK(longer[0].fix == fix);
        CHECK(check_budget(with(fitting, 0s, 1s), 0s, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(fitting, 0s), 1s, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(fitting, 0s, 0s, 6s), 0s, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(fitting, 0s), ojs::no_limit, info)[0].id == "budget-unknown");
        CHECK(check_budget(with(30s, 60s), 0s, info).empty());
        info.in_container = false;  // these stop a process without a container, too
        CHECK(check_budget(with(30s, 0s), 0s, info).empty() != holds("nomad heroku fly", info.runtime));
        info.in_container = true;
    }
    info.runtime = "ecs";
    CHECK(holds(check_budget(with(30s, 20s), 0s, info)[0].fix, "let Amazon ECS grant 40s (stopTimeout) "));
    info.runtime = "cloud-run";
    CHECK(check_budget(with(30s, 10s), 0s, info)[0].fix ==
          "Cloud Run grants no more time: let longer jobs save checkpoints");
}

TEST_CASE("budget: a cancel_wait that exceeds stop_timeout") {
    worker_options options = with(30s, 0s);
    options.times.cancel_wait = 2250ms;  // half of what the last heartbeat leaves of 5 s
    CHECK(check_budget(options).empty());
    options.times.cancel_wait = 2251ms;
    const std::vector<finding> cut = check_budget(options);
    REQUIRE(cut.size() == 1);
    CHECK(cut[0].id == "cancel-wait-cut");
    CHECK(cut[0].severity == severity::warning);
    CHECK(holds(cut[0].problem, "2s251ms"));
    CHECK(holds(cut[0].problem, "2s250ms"));
    CHECK(holds(cut[0].fix, "5s751ms"));
    options.times.stop_timeout = 5751ms;
    CHECK(check_budget(options).empty());
    options.times.cancel_wait = 0ms;
    options.times.reclaim_wait = 1h;
    CHECK(check_budget(options).size() == 1);
    options.use(dialect::river());
    CHECK(check_budget(options).empty());
}

TEST_CASE("budget: exceeded, tight, and the value that works") {
    const struct {
        milliseconds grace, container, prestop, stop;
        const char* id;
        const char* recommended;
        const char* shorter;  // grace period that fits; null: there is none
    } cases[] = {
        {30s, 30s, 0s, 5s, "budget-exceeded", "40s", "20s"},
        {30s, 10s, 0s, 5s, "budget-exceeded", "40s", nullptr},
        {30s, 30s, 0s, 100ms, "budget-exceeded", "40s", "20s"},
        {30s, 29s, 0s, 5s, "budget-exceeded", "40s", "19s"},
        {30s, 35s, 5s, 5s, "budget-exceeded", "45s", "20s"},
        {25s, 30s, 15s, 5s, "budget-exceeded", "50s", "5s"},
        {30s, 1ms, 0s, 5s, "budget-exceeded", "40s", nullptr},
        {30s, 34999ms, 0s, 5s, "budget-tight", "40s", "24s999ms"},
        {30s, 31s, 0s, 5s, "budget-tight", "40s", "21s"},
        {30s, 39s, 5s, 5s, "budget-tight", "45s", "24s"},
        {30s, 45s, 0s, 20s, "budget-tight", "50s", "25s"},
        {30s, 34s, 0s, 100ms, "budget-tight", "40s", "24s"},
    };
    for (const auto& each : cases) {
        const ojs::worker_options options = with(each.grace, each.container, each.prestop, each.stop);
        const std::vector<finding> found = check_budget(options);
        REQUIRE(found.size() == 1);
        CAPTURE(found[0].problem);
        CAPTURE(found[0].fix);
        CHECK(found[0].id == each.id);
        CHECK((found[0].severity == severity::error) == (found[0].id == "budget-exceeded"));
        CHECK(found[0].severity >= severity::warning);
        CHECK(holds(found[0].problem, "grace period of " + ojs::format_duration(each.grace)));
        CHECK(holds(found[0].problem, "the " + ojs::format_duration(each.container) + " the container"));
        CHECK(holds(found[0].problem, "preStop") == (each.prestop > 0s));
        CHECK(holds(found[0].fix, std::string("grant ") + each.recommended + " "));
        CHECK(holds(found[0].fix, "OJS_SHUTDOWN_GRACE_PERIOD") == (each.shorter != nullptr));
        // Either fix removes the finding.
        ojs::worker_options longer = options;
        longer.container_grace_period = *ojs::parse_duration(each.recommended);
        CHECK(check_budget(longer).empty());
        if (each.shorter == nullptr) continue;
        CHECK(holds(found[0].fix, std::string("to ") + each.shorter + " or less"));
        ojs::worker_options shorter = options;
        shorter.times.shutdown_grace_period = *ojs::parse_duration(each.shorter);
        for (const finding& left : check_budget(shorter)) CHECK(left.id == "grace-below-heartbeat");
    }
}

TEST_CASE("budget: a grace period no longer than a heartbeat") {
    ojs::worker_options options = with(5s, 0s);
    REQUIRE(check_budget(options).size() == 1);
    CHECK(check_budget(options)[0].id == "grace-below-heartbeat");
    CHECK(check_budget(options)[0].severity == severity::warning);
    CHECK(holds(check_budget(options)[0].fix, "15s"));
    options.times.shutdown_grace_period = 5001ms;
    CHECK(check_budget(options).empty());
}

TEST_CASE("budget: the largest values do not overflow") {
    const milliseconds most = milliseconds::max();
    CHECK(check_budget(with(most, most, most))[0].id == "budget-exceeded");
    CHECK(check_budget(with(1s, most, most))[0].id == "budget-exceeded");
    CHECK(check_budget(with(30s, 40s, milliseconds::min())).empty());
    CHECK(check_budget(with(30s, milliseconds::min())).empty());
}

TEST_CASE("budget: a supervisor with a short time, in a container or not -> it is named with its setting") {
    const std::pair<const char*, const char*> cases[] = {
        {"pm2", "1s600ms that PM2 grants unless kill_timeout says"},
        {"s6", "3s that s6-overlay grants unless S6_KILL_GRACETIME says"},
        {"supervisord", "10s that supervisord grants unless stopwaitsecs says"}};
    for (const auto& [supervisor, granted] : cases) {
        for (const bool in_container : {true, false}) {
            ojs::container_info info;
            info.in_container = in_container;
            info.runtime = in_container ? "kubernetes" : "";
            info.supervisor = supervisor;
            const std::vector<finding> found = check_budget(with(20s, 0s), 0s, info);
            REQUIRE(found.size() == 1);
            CHECK(found[0].id == "budget-unknown");
            CHECK(holds(found[0].problem, granted));
        }
    }
}
