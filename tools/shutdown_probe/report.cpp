// report: merging verdicts, and the texts.
#include "report.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <set>

#include "ojs_shutdown.hpp"

namespace probe {
namespace {
const char* word(verdict::kind what) {
    constexpr std::array<const char*, 3> words = {"PASS", "FAIL", "skipped"};
    return words[static_cast<std::size_t>(what)];
}

std::string padded(std::string text, std::size_t width) {
    text.append(text.size() < width ? width - text.size() : 1, ' ');
    return text;
}

std::string decimal(double value) {
    std::array<char, 48> text{};
    std::snprintf(text.data(), text.size(), "%.2f", value);
    return text.data();
}

// A worker's output may contain any bytes: those that are not text become '?'.
std::string json(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20 || byte > 0x7e) {
            out += c == '\t' ? ' ' : '?';
        } else {
            out += c;
        }
    }
    return out + "\"";
}

std::string xml(const std::string& text) {
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '&') {
            out += "&amp;";
        } else if (c == '<') {
            out += "&lt;";
        } else if (c == '>') {
            out += "&gt;";
        } else if (c == '"') {
            out += "&quot;";
        } else {
            out += (byte >= 0x20 && byte < 0x7f) || c == '\n' ? c : '?';
        }
    }
    return out;
}

std::string json(const std::vector<std::string>& texts) {
    std::string out;
    for (const std::string& each : texts) out += (out.empty() ? "" : ",") + json(each);
    return "[" + out + "]";
}

std::string indented(const std::vector<std::string>& lines, const char* by) {
    std::string out;
    for (const std::string& each : lines) out += by + each + "\n";
    return out;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double worst(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

// A failure outweighs a pass, and a pass what was skipped.
int weight(const verdict& one) {
    return one.what == verdict::kind::fails ? 2 : one.what == verdict::kind::passes ? 1 : 0;
}

void merge(check& into, const std::string& scenario, const verdict& what) {
    std::string figures = into.result.figures;
    if (!what.figures.empty()) figures += (figures.empty() ? "" : "; ") + what.figures;
    if (!into.judged || weight(what) > weight(into.result)) {
        into.result = what;
        into.scenario = scenario;
    }
    into.result.figures = figures;
    into.judged = true;
    into.pending.erase(std::remove(into.pending.begin(), into.pending.end(), scenario), into.pending.end());
}

std::string row_of(const check& one) {
    const verdict& result = one.result;
    std::string out = padded(one.id, 11) + padded(word(result.what), 9) + padded(one.what, 64) + result.figures;
    out.erase(out.find_last_not_of(' ') + 1);
    return out + '\n';
}

struct heading {
    const char* name;
    const char* means;
};
constexpr std::array<heading, 4> headings = {{
    // by harm
    {"lost", "a job or its result is gone, or an attempt is used up"},
    {"doubled", "a job runs or is reported twice"},
    {"late", "jobs wait for a lease, or the stop for a deadline"},
    {"comfort", "what operators see"},
}};

// Without times, numbers and ids.
std::string without_numbers(const std::string& text) {
    std::string out;
    for (const char c : text) {
        const bool is_digit = c >= '0' && c <= '9';
        if (!is_digit || out.empty() || out.back() != '#') out += is_digit ? '#' : c;
    }
    return out;
}

// Equal for verdicts of one cause.
std::string cause_of(const check& one) {
    const verdict& result = one.result;
    if (result.what == verdict::kind::passes) return one.id;
    return word(result.what) + (result.cause.empty() ? without_numbers(result.reason) : result.cause);
}

// Checks of one cause, as they stand below one heading.
using group = std::vector<const check*>;

// Failures come first, then what was skipped.
std::vector<group> groups_of(const std::vector<check>& checks, harm costs) {
    std::vector<group> out;
    for (const auto what : {verdict::kind::fails, verdict::kind::skipped, verdict::kind::passes}) {
        for (const check& each : checks) {
            if (each.costs != costs || each.result.what != what) continue;
            const auto same = std::find_if(out.begin(), out.end(),
                                           [&](const group& one) { return cause_of(*one.front()) == cause_of(each); });
            if (same == out.end()) {
                out.push_back({&each});
            } else {
                same->push_back(&each);
            }
        }
    }
    return out;
}

// The rows, each different reason, and what shows the cause: once, also if it has rows below other headings.
std::string text_of(const group& rows, std::map<std::string, std::string>& shown) {
    std::string out;
    for (const check* each : rows) out += row_of(*each);
    std::set<std::string> said;
    for (const check* each : rows) {
        const std::string& reason = each->result.reason;
        if (!reason.empty() && said.insert(without_numbers(reason)).second)
            out += "    " + each->scenario + ": " + reason + "\n";
    }
    const verdict& result = rows.front()->result;
    const auto [at, is_first] = shown.emplace(cause_of(*rows.front()), rows.front()->id);
    if (result.details.empty() && result.output.empty()) return out;
    if (!is_first) return out + "    as " + at->second + "\n";
    return out + indented(result.details, "    ") + indented(result.output, "        ");
}

// The cause with most rows among those with a failure below the first heading that has one.
std::string fix_first(const std::vector<check>& checks) {
    for (const auto what : {verdict::kind::fails, verdict::kind::skipped}) {
        for (const harm costs : {harm::lost, harm::doubled, harm::late, harm::comfort}) {
            std::vector<const check*> most;
            for (const check& one : checks) {
                if (one.costs != costs || one.result.what != what) continue;
                if (what == verdict::kind::skipped && one.result.cause.empty()) continue;  // it cannot be judged
                std::vector<const check*> same;
                for (const check& each : checks)
                    if (cause_of(each) == cause_of(one)) same.push_back(&each);
                if (same.size() > most.size()) most = same;
            }
            if (most.empty()) continue;
            std::string ids;
            for (const check* each : most) ids += (ids.empty() ? "" : ", ") + each->id;
            const verdict& shown = most.front()->result;
            return (what == verdict::kind::fails ? shown.reason : shown.cause) + " (" + ids + ")";
        }
    }
    return "nothing: no check fails";
}
}  // namespace

void findings::add(const std::string& id, const std::string& scenario, const verdict& what) {
    const std::lock_guard<std::recursive_mutex> held(mutex_);
    for (check& each : checks_) {
        if (each.id != id) continue;
        merge(each, scenario, what);
        if (each.pending.empty()) std::fputs(row_of(each).c_str(), stderr);
    }
}

void findings::add_pending(const std::string& scenario, const verdict& what) {
    const std::lock_guard<std::recursive_mutex> held(mutex_);
    for (const check& each : std::vector<check>(checks_)) {
        if (std::count(each.pending.begin(), each.pending.end(), scenario) != 0) add(each.id, scenario, what);
    }
}

void findings::measured(const std::string& name, double ms) {
    const std::lock_guard<std::recursive_mutex> held(mutex_);
    figures_[name].push_back(ms);
}

void findings::note_serial() {
    serial_ = true;
    std::fputs(
        "note: the worker runs one job at a time, whatever OJS_CONCURRENCY says.\n"
        "Checks that need several jobs at a time are skipped; the others use one job.\n",
        stdout);
}

const char* findings::name_of(harm costs) { return headings[static_cast<std::size_t>(costs)].name; }

std::vector<check> findings::judged() const {
    const std::lock_guard<std::recursive_mutex> held(mutex_);
    std::vector<check> out;
    std::copy_if(checks_.begin(), checks_.end(), std::back_inserter(out),
                 [](const check& each) { return each.judged; });
    return out;
}

int findings::count(verdict::kind what) const {
    const std::vector<check> checks = judged();
    return static_cast<int>(
        std::count_if(checks.begin(), checks.end(), [&](const check& each) { return each.result.what == what; }));
}

bool findings::print_end(double took, int interrupted) {
    int not_judged = 0;
    for (check& each : checks_) {
        if (each.pending.empty()) continue;
        not_judged += each.judged ? 0 : 1;
        if (each.judged && each.result.what == verdict::kind::passes)
            each.result = skipped("it passes here, but " + each.pending.front() + " was not judged");
    }
    const std::vector<check> all = judged();
    std::map<std::string, std::string> shown;  // the first check with that cause
    std::string out;
    for (const harm costs : {harm::lost, harm::doubled, harm::late, harm::comfort}) {
        const std::vector<group> groups = groups_of(all, costs);
        if (groups.empty()) continue;
        const heading& above = headings[static_cast<std::size_t>(costs)];
        out += std::string("\n") + above.name + ": " + above.means + "\n";
        for (const group& each : groups) out += text_of(each, shown);
    }
    out += '\n';
    for (const auto& [name, values] : figures_) {
        out += padded(name, 40) + "median " + decimal(median(values)) + " ms, worst " + decimal(worst(values)) +
               " ms of " + std::to_string(values.size()) + "\n";
    }
    out += std::to_string(count(verdict::kind::passes)) + " pass, " + std::to_string(count(verdict::kind::fails)) +
           " fail, " + std::to_string(count(verdict::kind::skipped)) + " skipped, ";
    if (not_judged > 0) out += std::to_string(not_judged) + " not judged, ";
    out += "in " + decimal(took) + " s";
    if (interrupted != 0) out += "; ended by " + ojs::signal_name(interrupted);
    out += "\nfix first: " + fix_first(all) + "\n";
    return std::fputs(out.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
}

std::string findings::as_json(double took, int interrupted) const {
    std::string out = "{\"command\":" + json(command_) + ",\"seconds\":" + decimal(took) +
                      ",\"interrupted\":" + (interrupted != 0 ? "true" : "false") +
                      ",\"serial\":" + (serial_ ? "true" : "false") +
                      ",\"pass\":" + std::to_string(count(verdict::kind::passes)) +
                      ",\"fail\":" + std::to_string(count(verdict::kind::fails)) +
                      ",\"skipped\":" + std::to_string(count(verdict::kind::skipped)) + ",\"checks\":[";
    const char* comma = "";
    for (const check& each : judged()) {
        const verdict& result = each.result;
        out += std::string(comma) + "\n{\"id\":" + json(each.id) + ",\"heading\":" + json(name_of(each.costs)) +
               ",\"what\":" + json(each.what) + ",\"result\":" + json(word(result.what)) +
               ",\"scenario\":" + json(each.scenario) + ",\"figures\":" + json(result.figures) +
               ",\"reason\":" + json(result.reason) + ",\"details\":" + json(result.details) +
               ",\"output\":" + json(result.output) + "}";
        comma = ",";
    }
    out += "],\"figures\":[";
    comma = "";
    for (const auto& [name, values] : figures_) {
        out += std::string(comma) + "\n{\"name\":" + json(name) + ",\"median_ms\":" + decimal(median(values)) +
               ",\"worst_ms\":" + decimal(worst(values)) + ",\"count\":" + std::to_string(values.size()) + "}";
        comma = ",";
    }
    return out + "]}\n";
}

std::string findings::as_junit(double took) const {
    const std::vector<check> checks = judged();
    std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"shutdown-probe\" tests=\"" +
                      std::to_string(checks.size()) + "\" failures=\"" + std::to_string(count(verdict::kind::fails)) +
                      "\" skipped=\"" + std::to_string(count(verdict::kind::skipped)) + "\" time=\"" + decimal(took) +
                      "\">\n";
    for (const check& each : checks) {
        const verdict& result = each.result;
        out += "<testcase classname=\"" + xml(each.scenario) + "\" name=\"" + xml(each.id + " " + each.what) + "\"";
        if (result.what == verdict::kind::passes) {
            out += "/>\n";
        } else if (result.what == verdict::kind::skipped) {
            out += "><skipped message=\"" + xml(result.reason) + "\"/></testcase>\n";
        } else {
            out += "><failure message=\"" + xml(result.reason) + "\">" +
                   xml(indented(result.details, "") + indented(result.output, "")) + "</failure></testcase>\n";
        }
    }
    return out + "</testsuite>\n";
}
}  // namespace probe
