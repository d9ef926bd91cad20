// state_file: what a launcher finds where an earlier one recorded its processes, and what it writes there itself.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {
inline std::string replaced(std::string text, std::string_view mark, const std::string& by) {
    for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += by.size())
        text.replace(at, mark.size(), by);
    return text;
}

inline ojs::detail::launcher_state state_in(const std::string& path) {
    const std::string text = read_file(path);
    picojson::value parsed;
    expect(read_json(text, parsed) && parsed.is<picojson::object>(), "a state is JSON", text);
    expect(ojs::detail::is_utf8(text), "a state is UTF-8", text);
    const auto read = ojs::read_message<ojs::detail::launcher_state>(text);
    expect(read.has_value(), "what is written can be read", text);
    return *read;
}

// The first line is the name of a process and a folder, the rest the file; its marks are replaced by what this boot, this
// process and init are called. No orphan is signalled, and no folder removed: they are this machine's own.
inline void state_file(input in) {
    using ojs::detail::state_entry;
    static const temporary_folder folder(temporary_folder::kind::in_memory);
    const std::string path = folder.file("state");
    const std::string name(in.line());
    std::string text(in.rest());
    text = replaced(text, "@BOOT@", ojs::detail::boot_id());
    text = replaced(text, "@NAMESPACE@", ojs::detail::pid_namespace());
    text = replaced(text, "@PID@", std::to_string(::getpid()));
    text = replaced(text, "@TICKS@", std::to_string(ojs::detail::start_ticks_of(::getpid())));
    write_file(path, text);

    ojs::log_options quiet;
    quiet.level = ojs::log_level::off;
    const ojs::detail::logger log(quiet, "launcher");
    const auto opened = ojs::detail::state_file::open(path, log);
    if (!opened) {
        expect_printable(opened.error().text, 400);
        expect(read_file(path) == text, "a file that was refused is kept", text);
        return;
    }
    ojs::detail::state_file& state = **opened;
    for (const state_entry& each : state.orphans()) {
        expect(each.pid > 1 && each.session >= 0 && !each.id.empty(), "an orphan may be signalled", text);
        expect(each.pid != ::getpid() || each.start_ticks == ojs::detail::start_ticks_of(::getpid()),
               "another process with its pid is no orphan", text);
    }
    const auto before = ojs::read_message<ojs::detail::launcher_state>(text);
    const std::size_t folders = before ? before->socket_folders.size() : 0;
    expect(state.write({}).has_value() && state.add_folder(name).has_value(), "a state is written");
    state_entry added;
    added.id = added.group = added.address = name;
    added.pid = ::getpid();
    expect(state.add(added).has_value(), "a process is recorded");
    state.close();

    const ojs::detail::launcher_state now = state_in(path);
    expect(now.boot_id == ojs::detail::boot_id(), "a state names this boot");
    expect(now.socket_folders.size() == folders + 1, "no folder is forgotten", text);
    for (std::size_t i = 0; i < folders; ++i)
        expect(now.socket_folders[i] == before->socket_folders[i], "a folder keeps its name", text);
    expect(now.processes.size() == state.orphans().size() + 1, "no process is forgotten", text);
    const bool is_text = ojs::detail::is_utf8(name);
    expect(!is_text || now.socket_folders.back() == name, "a folder is recorded as it is", name);
    expect(!is_text || now.processes.back().id == name, "a process is recorded as it is", name);
    const auto again = ojs::detail::state_file::open(path, log);
    expect(name.empty() || again.has_value(), "a successor reads what a launcher wrote", name);
    if (again) expect((**again).orphans().size() == now.processes.size(), "it finds every process", text);
}
}  // namespace fuzz
