// The table of options in docs/options.md, compared with what is read.
#include "test.hpp"

namespace {
// Looks up each row in docs/options.md: name, variables, default, and in the rest of the line the constraints.
class documented_options {
  public:
    template <class Value, class... Constraints>
    void operator()(const std::string& name, std::string_view variables, const Value& value,
                    const Constraints&... constraints) {
        ++rows;
        std::string begin = "\n| `" + name + "` | ";
        for (const char* comma = ""; !variables.empty(); comma = ", ")
            begin += std::string(comma) + "`" + std::string(detail::next_part(variables, " ")) + "`";
        begin += " | " + shown(value, constraints...);
        const std::size_t found = text.find(begin);
        CAPTURE(begin);
        REQUIRE(found != std::string::npos);
        const std::size_t end = found + begin.size();
        CHECK(std::string(" ;:").find(text[end]) != std::string::npos);
        CHECK(holds(text.substr(end, text.find('\n', end) - end), wanted(constraints...)));
    }

    const std::string text = test::read_file("docs/options.md");
    std::size_t rows = 0;

  private:
    static std::string code(const std::string& value) { return value.empty() ? "none" : "`" + value + "`"; }
    static std::string shown(const std::string& value, detail::text_kind) { return code(value); }
    static std::string shown(const std::vector<std::string>& value, detail::text_kind = {}) {
        std::string out;
        for (const std::string& each : value) out += (out.empty() ? "" : ",") + each;
        return code(out);
    }
    static std::string shown(const std::vector<int>& value) {
        std::vector<std::string> names;
        for (const int each : value) names.push_back(signal_name(each).substr(3));
        return shown(names);
    }
    static std::string shown(const std::int64_t& value, int, int) { return std::to_string(value); }
    static std::string shown(const std::chrono::milliseconds& value, std::chrono::milliseconds,
                             std::chrono::milliseconds = {}) {
        return format_duration(value);
    }
    static std::string shown(const worker_options&, std::string_view names) {
        return code(std::string(detail::next_part(names, " ")));
    }
    template <class Enumeration>
    static std::string shown(Enumeration value, std::string_view names) {
        for (int place = static_cast<int>(value); place > 0; --place) detail::next_part(names, " ");
        return code(std::string(detail::next_part(names, " ")));
    }

    static std::string wanted() { return ""; }
    static std::string wanted(detail::text_kind) { return ""; }
    static std::string wanted(int min, int max) { return std::to_string(min) + " to " + std::to_string(max); }
    static std::string wanted(std::chrono::milliseconds min, std::chrono::milliseconds max = {}) {
        return max == no_limit ? "`ojs::no_limit`" : min > 0ms ? "min " + format_duration(min) : "";
    }
    static std::string wanted(const char* names) { return code(names); }
};
}  // namespace

TEST_CASE("options: docs/options.md lists every option with its variables, default and bounds") {
    documented_options documented;
    if (documented.text.empty()) {
        MESSAGE("skipped: docs/options.md is not in this folder");
        return;
    }
    const worker_options defaults;
    detail::visit_options(defaults, documented);
    const ops_options server;
    detail::visit_ops_options(server, documented);
    std::size_t lines = 0;
    for (std::size_t at = 0; (at = documented.text.find("` | `OJS_", at)) != std::string::npos; ++at) ++lines;
    CHECK(documented.rows == lines);
    CHECK(documented.rows >= 28);
}
