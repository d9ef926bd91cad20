// mode_file, container: what the library reads of the machine it runs on.
#pragma once
#include <sys/stat.h>

#include "../fuzz.hpp"

namespace fuzz {
// Only the word itself, between blanks, makes a stop normal. The first byte says how often the rest is in the file.
inline void mode_file(input in) {
    static const temporary_folder folder(temporary_folder::kind::in_memory);
    const std::string path = folder.file("termination-type");
    const unsigned how = in.byte();
    std::string text;
    for (unsigned i = 0; i <= how % 4; ++i) text += in.rest();
    write_file(path, text);
    const std::string blanks = " \t\r\n\v\f";
    const std::size_t first = std::min(text.find_first_not_of(blanks), text.size());
    const std::string word = text.substr(first, text.find_last_not_of(blanks) + 1 - first);
    const bool is_normal = text.size() <= 4096 && word == "NORMAL_SHUTDOWN";
    const ojs::termination_mode found = ojs::read_termination_mode(path);
    expect(found.is_reclaim() == !is_normal, "only NORMAL_SHUTDOWN makes a stop normal", text);
    expect((found.evidence == ojs::termination_evidence::reclaim) == (text.size() <= 4096 && word == "SPOT_RECLAIM"),
           "only SPOT_RECLAIM is called that", text);
    expect(found.changed_ms > 0, "it is known when the file was written");
    expect_printable(found.found, 250);
}

// The files of a machine or a container: for each a byte that picks it, and its text up to a 0xff.
inline void container(input in) {
    static const temporary_folder folder(temporary_folder::kind::in_memory);
    static const std::vector<std::string> files{"/proc/self/stat",   "/proc/self/cmdline", "/proc/1/comm",
                                                "/proc/1/cmdline",   "/.dockerenv",        "container",
                                                "AWS_EXECUTION_ENV", "NOMAD_ALLOC_ID",     "FLY_MACHINE_ID"};
    const std::string root = folder.path();
    static const bool made = std::filesystem::create_directories(root + "/proc/self") &&
                             std::filesystem::create_directories(root + "/proc/1");
    expect(made, "there is a folder for the files");
    std::map<std::string, std::string> variables;
    std::vector<std::string> written;
    while (!in.empty()) {
        const std::string& name = files[in.byte() % files.size()];
        const std::string_view text = in.line('\xff');
        if (name[0] != '/') variables[name] = std::string(text).c_str();
        if (name[0] == '/') write_file(written.emplace_back(root + name), text);
    }
    ojs::detail::container_probe probe;
    probe.root = root;
    probe.pid = 7;
    probe.environment = [&variables](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
    };
    const auto info = ojs::detail::detect_container(probe);
    std::vector<std::string> warnings;
    ojs::log_options log;
    log.hook = [&warnings](const ojs::log_record& record) { warnings.push_back(record.message); };
    ojs::detail::check_parents(ojs::detail::logger(log, "fuzz"), info, probe);
    for (const std::string& each : written) ::unlink(each.c_str());

    expect(!info.in_container || info.platform != nullptr, "a container is stopped by something");
    expect(info.in_container || warnings.empty(), "only a container has a PID 1 that matters");
    for (const std::string& each : warnings) expect_printable(each, 700);
}
}  // namespace fuzz
