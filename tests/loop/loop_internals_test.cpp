// loop_core: what a health server asks.
#include "test.hpp"

TEST_CASE("loop: quiet() between accepting() and begin() -> the loop is not drained until the item ends") {
    loop_options options;
    options.log.level = log_level::off;
    lifecycle life;
    const auto one = detail::make_ref<detail::loop_core>(options, &life);
    one->prepare();
    REQUIRE(one->advance());
    REQUIRE(one->phases.may_take());
    life.apply(event::quiet_request, {});
    CHECK_FALSE(one->is_drained());
    item taken = one->begin_item("a");
    CHECK(one->advance());
    CHECK_FALSE(one->is_drained());
    taken.end();
    CHECK(one->is_drained());
    one->close();
}
