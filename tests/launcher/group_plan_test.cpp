// Which processes of a group are started and stopped; tests/sim/group.cpp has whole groups.
#include "fake_fleet.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using namespace std::chrono_literals;
using detail::group_goal;
using detail::group_plan;
using detail::plan_group;
using namespace test;

TEST_CASE("group_plan: missing processes are started, up to the number of starts allowed now") {
    group_goal goal;
    goal.target = 3;
    goal.max_starts = 1;
    CHECK(plan_group({}, goal).starts == 1);
    goal.max_starts = 9;
    CHECK(plan_group({{true, true, true}}, goal).starts == 2);
    CHECK(plan_group({{false, true, true}}, goal).starts == 2);  // it counts, whatever its configuration
    goal.replacing = true;
    CHECK(plan_group({{false, true, true}}, goal).starts == 3);
}

TEST_CASE("group_plan: a rollout stops an old process only if min_healthy ready processes remain") {
    group_goal goal;
    goal.target = goal.max_old = goal.min_healthy = 2;
    goal.replacing = true;
    using ends = std::vector<std::size_t>;
    const auto ending = [&](const detail::array<detail::plan_member>& all) {
        const group_plan plan = plan_group(all, goal);
        return ends(plan.stops.begin(), plan.stops.end());
    };
    CHECK(ending({{false, true, true}, {false, true, true}, {true, true, false}}) == ends{});
    CHECK(ending({{false, true, true}, {false, true, true}, {true, true, true}}) == ends{0});
    CHECK(ending({{false, true, true}, {false, false, false}, {true, true, true}}) == ends{1});
    CHECK(ending({{false, true, false}, {false, true, false}, {true, true, true}}) == ends{});
    CHECK(ending({{false, true, true}, {true, true, true}, {true, true, true}}) == ends{0});
    CHECK(ending({{false, false, false}, {false, true, true}, {true, true, true}, {true, true, true}}) ==
          ends{0, 1});  // the first one was not healthy
    goal.may_stop = false;
    CHECK(ending({{false, true, true}, {true, true, true}, {true, true, true}}) == ends{});
}

#endif
