// report: one row a requirement, as text, JSON and JUnit.
#pragma once
#include <string>
#include <vector>

#include "scenarios.hpp"

namespace probe {

// One requirement over all scenarios: it fails if it fails in one of them.
struct row {
    std::string id;
    std::string what;
    finding result;
};

std::vector<row> rows_of(
    const std::vector<finding>& all);  // in the order of `requirements`; only those judged
int count(const std::vector<row>& rows, verdict::kind what);

double median(std::vector<double> values);
std::string as_text(const std::vector<row>& rows, const findings& all, double took);
std::string as_json(const std::vector<row>& rows, const findings& all, double took);
std::string as_junit(const std::vector<row>& rows, double took);

}  // namespace probe
