// report: texts.
#include "report.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace probe {
namespace {

const char* word(verdict::kind what) {
    constexpr std::array<const char*, 3> words = {"holds", "FAILS", "skipped"};
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

std::string joined(const std::vector<std::string>& lines) {
    std::string out;
    for (const std::string& each : lines) out += each + "\n";
    return out;
}

}  // namespace

std::vector<row> rows_of(const std::vector<finding>& all) {
    std::vector<row> out;
    for (const requirement& each : requirements) {
        const finding* worst = nullptr;
        const auto weight = [](const finding& one) {
            return one.what.what == verdict::kind::fails ? 2 : one.what.what == verdict::kind::holds ? 1 : 0;
        };
        std::string figures;
        for (const finding& one : all) {
            if (one.id != each.id) continue;
            if (!one.what.figures.empty()) figures += (figures.empty() ? "" : "; ") + one.what.figures;
            if (worst == nullptr || weight(one) > weight(*worst)) worst = &one;
        }
        if (worst == nullptr) continue;
        out.push_back({each.id, each.what, *worst});
        out.back().result.what.figures = figures;
    }
    return out;
}

int count(const std::vector<row>& rows, verdict::kind what) {
    return static_cast<int>(std::count_if(rows.begin(), rows.end(),
                                          [&](const row& each) { return each.result.what.what == what; }));
}

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string as_text(const std::vector<row>& rows, const findings& all, double took) {
    std::string out;
    for (const row& each : rows) {
        const verdict& result = each.result.what;
        out += padded(each.id, 11) + padded(word(result.what), 9) + padded(each.what, 64) + result.figures;
        out.erase(out.find_last_not_of(' ') + 1);
        out += '\n';
        if (!result.reason.empty()) out += "    " + each.result.scenario + ": " + result.reason + "\n";
        for (const std::string& line : each.result.last_lines) out += "        " + line + "\n";
    }
    out += '\n';
    for (const auto& [name, values] : all.figures()) {
        out += padded(name, 40) + "median " + decimal(median(values)) + " ms, worst " +
               decimal(*std::max_element(values.begin(), values.end())) + " ms of " +
               std::to_string(values.size()) + "\n";
    }
    return out + std::to_string(count(rows, verdict::kind::holds)) + " hold, " +
           std::to_string(count(rows, verdict::kind::fails)) + " fail, " +
           std::to_string(count(rows, verdict::kind::skipped)) + " skipped, in " + decimal(took) + " s\n";
}

std::string as_json(const std::vector<row>& rows, const findings& all, double took) {
    std::string command;
    for (const std::string& each : all.command()) command += (command.empty() ? "" : ",") + json(each);
    std::string out = "{\"command\":[" + command + "],\"seconds\":" + decimal(took) +
                      ",\"holds\":" + std::to_string(count(rows, verdict::kind::holds)) +
                      ",\"fails\":" + std::to_string(count(rows, verdict::kind::fails)) +
                      ",\"skipped\":" + std::to_string(count(rows, verdict::kind::skipped)) + ",\"rows\":[";
    const char* comma = "";
    for (const row& each : rows) {
        const finding& result = each.result;
        std::string lines;
        for (const std::string& line : result.last_lines) lines += (lines.empty() ? "" : ",") + json(line);
        out += std::string(comma) + "\n{\"id\":" + json(each.id) + ",\"what\":" + json(each.what) +
               ",\"result\":" + json(word(result.what.what)) + ",\"scenario\":" + json(result.scenario) +
               ",\"figures\":" + json(result.what.figures) + ",\"reason\":" + json(result.what.reason) +
               ",\"output\":[" + lines + "]}";
        comma = ",";
    }
    out += "],\"figures\":[";
    comma = "";
    for (const auto& [name, values] : all.figures()) {
        out += std::string(comma) + "\n{\"name\":" + json(name) +
               ",\"median_ms\":" + decimal(median(values)) +
               ",\"worst_ms\":" + decimal(*std::max_element(values.begin(), values.end())) +
               ",\"count\":" + std::to_string(values.size()) + "}";
        comma = ",";
    }
    return out + "]}\n";
}

std::string as_junit(const std::vector<row>& rows, double took) {
    std::string out =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"shutdown-probe\" tests=\"" +
        std::to_string(rows.size()) + "\" failures=\"" + std::to_string(count(rows, verdict::kind::fails)) +
        "\" skipped=\"" + std::to_string(count(rows, verdict::kind::skipped)) + "\" time=\"" + decimal(took) +
        "\">\n";
    for (const row& each : rows) {
        const finding& result = each.result;
        out += "<testcase classname=\"" + xml(result.scenario) + "\" name=\"" +
               xml(each.id + " " + each.what) + "\"";
        if (result.what.what == verdict::kind::holds) {
            out += "/>\n";
        } else if (result.what.what == verdict::kind::skipped) {
            out += "><skipped message=\"" + xml(result.what.reason) + "\"/></testcase>\n";
        } else {
            out += "><failure message=\"" + xml(result.what.reason) + "\">" + xml(joined(result.last_lines)) +
                   "</failure></testcase>\n";
        }
    }
    return out + "</testsuite>\n";
}

}  // namespace probe
