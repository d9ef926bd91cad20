// duration, controller: what an operator writes.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {
// WIRE 1, by hand: 1h2m3s4ms, each unit at most once and in that order, or whole seconds, up to 3600; at most 2^31 - 1 ms.
// -1: not a duration.
inline std::int64_t duration_by_hand(std::string_view text) {
    constexpr const char* digits = "0123456789";
    constexpr std::pair<std::string_view, long double> units[] = {
        {"", 1000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
    if (text.empty()) return -1;
    long double total = 0;
    for (const auto& [name, ms] : units) {
        const std::string number(text.substr(0, text.find_first_not_of(digits)));
        const std::string_view unit =
            text.substr(number.size(), text.find_first_of(digits, number.size()) - number.size());
        if (number.empty() || unit != name) continue;
        total += ms * std::strtold(number.c_str(), nullptr);
        if (name.empty() && total > 3600000) return -1;
        text.remove_prefix(number.size() + unit.size());
    }
    return text.empty() && total <= 2147483647 ? static_cast<std::int64_t>(total) : -1;
}

inline void duration(input in) {
    const std::string text(in.rest());
    const auto read = ojs::parse_duration(text);
    const std::int64_t wanted = duration_by_hand(text);
    expect((read ? read->count() : -1) == wanted, "a duration follows the rule",
           text + " is " + std::to_string(read ? read->count() : -1) + ", not " + std::to_string(wanted));
    if (read) {
        const auto again = ojs::parse_duration(ojs::format_duration(*read));
        expect(again && *again == *read, "a duration is read again from its text", text);
    } else {
        expect(read.error().text.size() <= 400, "an error's text is short", read.error().text);
    }
}

// `read_configuration` is the controller's own: result<config> of a path.
template <class Read, class Check>
void controller(input in, Read read_configuration, Check check) {
    static const temporary_folder folder(temporary_folder::kind::in_memory);
    const auto text = in.rest();
    for (const std::string name : {"controller.json", "controller.toml"}) {
        const std::string path = folder.path() / name;
        write_file(path, text);
        const auto config = read_configuration(path);
        if (!config) {
            expect(config.error().text.size() <= 1000, "an error does not echo the file", config.error().text);
            continue;
        }
        picojson::value parsed;
        const bool is_object = read_json(text, parsed) && parsed.is<picojson::object>();
        expect(is_object || name == "controller.toml", "a configuration is a JSON object");
        expect(config->options.concurrency >= 1, "something is run at a time");
        for (const std::chrono::milliseconds each : config->spool.retry_delays)
            expect(each.count() >= 0 && each.count() <= 0x7fffffff, "a delay can be waited for");
        if (!check(path, *config)) continue;
        expect(!config->command.empty() && !config->spool.directory.empty(), "there is a command and a queue");
        for (const std::string& word : config->command)
            expect(word.find('\0') == std::string::npos, "no argument holds a NUL");
    }
}
}  // namespace fuzz
