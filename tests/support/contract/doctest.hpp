// The contract as part of a doctest case.
#pragma once

#include <doctest/doctest.h>

#include "../transport_contract.hpp"

namespace transport_contract {
// Runs all cases, or those whose names contain a word; `make` returns a pointer to a subject for each. Returns the names of
// skipped cases for the caller to compare: a capability that is lost by mistake must not go unnoticed.
template <class Make>
std::vector<std::string> check_all(Make make, const std::string& word = "") {
    std::vector<std::string> left_out;
    for (const contract_case& each : cases()) {
        if (std::string(each.name).find(word) == std::string::npos) continue;
        INFO("the case: ", std::string(each.name));
        auto on = make();
        const verdict got = run(each, *on);
        for (const std::string& what : got.broken) FAIL_CHECK(what);
        if (!got.left_out.empty()) left_out.push_back(each.name);
        CHECK((got.checks > 0 || !got.left_out.empty()));
    }
    return left_out;
}
}  // namespace transport_contract
