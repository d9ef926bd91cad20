// The list of names that wait in a spool, by itself and beside std::map.
#include <map>
#include <random>
#include <string>
#include <vector>

#include "test.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using detail::spool_entries;
using detail::spool_entry;

namespace {

using names = std::vector<std::string>;
using content = std::map<std::string, std::string>;  // names and what is known of each

spool_entry make_entry(const std::string& name, const std::string& about = "") {
    spool_entry out(name);
    out.queue = about;
    return out;
}

spool_entries made_of(const names& all) {
    spool_entries out;
    for (const std::string& name : all) out.append(make_entry(name, "of " + name));
    return out;
}

names names_of(const spool_entries& entries) {
    names out;
    for (std::size_t i = 0; i < entries.size(); ++i) out.push_back(entries[i].name);
    return out;
}

// In the same order as well.
bool holds(const spool_entries& entries, const content& wanted) {
    if (entries.size() != wanted.size()) return false;
    std::size_t place = 0;
    for (const auto& each : wanted) {
        const spool_entry& found = entries[place++];
        if (found.name != each.first || found.queue != each.second) return false;
    }
    return true;
}

}  // namespace

TEST_CASE("spool entries: appended, found and counted") {
    spool_entries none;
    CHECK(none.size() == 0);
    CHECK(none.find("a") == nullptr);
    CHECK(none.place_of("a") == 0);
    spool_entries some = made_of({"b", "d", "f"});
    CHECK(names_of(some) == names{"b", "d", "f"});
    CHECK(some.place_of("a") == 0);
    CHECK(some.place_of("b") == 0);
    CHECK(some.place_of("c") == 1);
    CHECK(some.place_of("g") == 3);
    REQUIRE(some.find("d") != nullptr);
    CHECK(some.find("d")->queue == "of d");
    CHECK(some.find("e") == nullptr);
    some.clear();
    CHECK(some.size() == 0);
    CHECK(some.find("d") == nullptr);
}

TEST_CASE("spool entries: put at both ends, in the middle, and in place of one of that name") {
    spool_entries some = made_of({"c", "e"});
    some.put(make_entry("g"));
    some.put(make_entry("a"));
    some.put(make_entry("d"));
    CHECK(names_of(some) == names{"a", "c", "d", "e", "g"});
    some.put(make_entry("d", "another"));
    CHECK(some.size() == 5);
    CHECK(some.find("d")->queue == "another");
    CHECK(some.find("e")->queue == "of e");
}

TEST_CASE("spool entries: put and taken where the front is empty") {
    spool_entries some = made_of({"a", "b", "d", "f", "h", "j"});
    CHECK(some.take("a").queue == "of a");
    CHECK(some.take("b").queue == "of b");
    CHECK(names_of(some) == names{"d", "f", "h", "j"});
    CHECK(some[0].name == "d");
    some.put(make_entry("e"));
    CHECK(names_of(some) == names{"d", "e", "f", "h", "j"});
    some.put(make_entry("i"));
    CHECK(names_of(some) == names{"d", "e", "f", "h", "i", "j"});
    some.put(make_entry("a"));
    some.put(make_entry("0"));
    CHECK(names_of(some) == names{"0", "a", "d", "e", "f", "h", "i", "j"});
    CHECK(some.find("f")->queue == "of f");
}

TEST_CASE("spool entries: taken from both ends and the middle, until there is none") {
    spool_entries some = made_of({"a", "b", "c", "d", "e", "f"});
    for (const char* name : {"b", "e", "f", "a", "d"})
        CHECK(some.take(name).queue == std::string("of ") + name);
    CHECK(names_of(some) == names{"c"});
    const spool_entry unknown = some.take("x");
    CHECK(unknown.name == "x");
    CHECK(unknown.queue.empty());
    CHECK(some.size() == 1);
    some.take("c");
    CHECK(some.size() == 0);
    some.put(make_entry("m"));
    CHECK(names_of(some) == names{"m"});
}

TEST_CASE("spool entries: walked to in order, each moved from once found") {
    spool_entries some = made_of({"a", "c", "e", "g"});
    some.take("a");
    std::size_t place = 0;
    CHECK(some.walk_to("a", place) == nullptr);
    CHECK(place == 0);
    spool_entry* const found = some.walk_to("c", place);
    REQUIRE(found != nullptr);
    const spool_entry moved = std::move(*found);  // its name is gone from the list
    CHECK(moved.queue == "of c");
    CHECK(some.walk_to("d", place) == nullptr);
    REQUIRE(some.walk_to("g", place) != nullptr);
    CHECK(place == some.size());
    CHECK(some.walk_to("h", place) == nullptr);
}

TEST_CASE("spool entries: many at once, before, among and after those there are") {
    for (const std::size_t step : {1U, 2U, 7U}) {  // few and many: one by one and in one walk
        spool_entries some;
        content model;
        for (int i = 100; i < 200; i += 2) {
            const std::string name = std::to_string(i);
            some.append(make_entry(name, "old"));
            model[name] = "old";
        }
        spool_entries added;
        for (std::size_t i = 90 + step; i < 230; i += step * 3) {
            const std::string name = (i < 100 ? "0" : "") + std::to_string(i);
            added.append(make_entry(name, "new"));
            model[name] = "new";
        }
        some.put_all(std::move(added));
        CHECK(holds(some, model));
    }
    spool_entries none;
    none.put_all(made_of({}));
    CHECK(none.size() == 0);
    none.put_all(made_of({"a", "b"}));
    none.put_all(made_of({}));
    CHECK(names_of(none) == names{"a", "b"});
}

TEST_CASE("spool entries: the same as a map, whatever is done to both") {
    std::mt19937 random(20240229);  // the numbers of which the standard fixes
    const auto below = [&](unsigned most) { return random() % most; };
    const auto some_name = [&] { return std::to_string(1000 + below(400)); };
    spool_entries tested;
    content model;
    for (int round = 0; round < 6000; ++round) {
        const std::string about = std::to_string(round);
        const std::string name = some_name();
        // Long stretches in which it grows, is emptied from the front, and is emptied from anywhere.
        const unsigned trend = static_cast<unsigned>(round) / 500 % 3;
        const unsigned what = below(10);
        if (what < (trend == 0 ? 5U : 2U)) {
            tested.put(make_entry(name, about));
            model[name] = about;
        } else if (what == 5) {
            const std::string last = model.empty() ? name : model.rbegin()->first + "0";
            tested.append(make_entry(last, about));
            model[last] = about;
        } else if (what == 6) {
            content added;
            for (unsigned i = below(20); i > 0; --i) added[some_name()] = about;
            spool_entries given;
            for (const auto& each : added) {
                given.append(make_entry(each.first, about));
                model[each.first] = about;
            }
            tested.put_all(std::move(given));
        } else {
            const std::string gone = trend == 1 && !model.empty() ? model.begin()->first : name;
            const auto known = model.find(gone);
            CHECK(tested.take(gone).queue == (known == model.end() ? "" : known->second));
            if (known != model.end()) model.erase(known);
        }
        const auto at_least = model.lower_bound(name);
        CHECK(tested.place_of(name) == static_cast<std::size_t>(std::distance(model.begin(), at_least)));
        const bool is_there = at_least != model.end() && at_least->first == name;
        CHECK((tested.find(name) != nullptr) == is_there);
        REQUIRE(holds(tested, model));
    }
}

#endif
