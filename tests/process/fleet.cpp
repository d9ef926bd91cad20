// tools/fleet: workers are replaced under load, and no job is lost.
#include "harness.hpp"

using namespace test;

TEST_CASE("fleet: three groups are replaced under load, and every job is done once") {
    if (!may_have_many_children()) return;
    process fleet({program("fleet")}, {});
    CHECK(fleet.wait(seconds(120)) == 0);
    INFO(fleet.output());
    CHECK(fleet.count("replaced 3 of 3") == 9);
    CHECK(fleet.prints("lost 0, doubled 0"));
}
