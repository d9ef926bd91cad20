// examples/fleet: workers are replaced under load, and no job is lost.
#include "harness.hpp"

using namespace test;

TEST_CASE("fleet: three groups are replaced under load, and every job is done once") {
    process fleet({program("fleet")}, {});
    CHECK(fleet.wait(seconds(120)) == 0);
    INFO(fleet.output());
    CHECK(fleet.count("replaced 3 of 3") == 9);
    CHECK(fleet.prints("lost 0, doubled 0"));
}
