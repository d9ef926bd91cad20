#pragma once

#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "doctor.ipp"
#include "ops.ipp"
#include "run_command.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
inline bool is_flag(std::string_view word) noexcept { return word.size() > 2 && starts_with(word, "--"); }

inline bool print(const std::string& text) noexcept {
    return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
}

inline int print_findings(const result<worker_options>& options) {
    std::vector<finding> all;
    if (options) all = doctor(*options);
    if (!options) all.push_back({severity::error, "options", options.error().text, "correct the variable"});
    return print(format_findings(all)) && max_severity(all) < severity::error ? 0 : 1;
}

inline int send_command(std::string_view command, pid_t pid, std::chrono::milliseconds wait) {
    const result<pid_t> sent = signal_worker(command, pid);
    if (!sent) {
        report_startup_error(sent.error());
        return sent.error().code == errc::invalid_argument ? 64 : 1;
    }
    const bool is_printed = print(cat({"sent ", command, " to process ", *sent, "\n"}));
    const time_point end = deadline_after(wait);
    for (time_point now; (now = steady_clock::now()) < end && ::kill(*sent, 0) == 0;)
        pause_for(detail::min<steady_clock::duration>(end - now, std::chrono::milliseconds(100)));
    return is_printed ? 0 : 1;
}
}  // namespace detail

OJS_SHUTDOWN_INLINE std::optional<int> run_command(int argc, const char* const* argv,
                                                   const result<worker_options>& options) {
    const std::string_view name = argc > 1 ? argv[1] : "";
    const bool waits = argc > 3 && std::string_view(argv[argc - 1]) == "--wait";
    const int count = argc - (waits ? 1 : 0);
    std::uint64_t pid = 0;
    const bool has_target = count == 3 || (count == 4 && detail::parse_number(argv[3], 0x7fffffff, pid) && pid > 0);
    const bool is_init = argc == 2 && name == "--init";
    if (argc == 2 && name == "--doctor") return detail::print_findings(options);
    if (waits && !options) return report_startup_error(options.error());
    if (name == "--signal" && has_target && !detail::is_flag(argv[2]))
        return detail::send_command(argv[2], static_cast<pid_t>(pid),
                                    waits ? options->prestop_delay : std::chrono::milliseconds(0));
    if (!is_init && std::any_of(argv, argv + argc, detail::is_flag))
        return report_startup_error(detail::invalid(
            detail::cat({"'", detail::printable(name, 40),
                         "' is not a command, or an argument is missing; usage: ", detail::program_name(argv[0]),
                         " [--doctor | --init | --signal quiet|resume|stop|reclaim [PID] [--wait]]"})));
    const result<void> begun = is_init ? run_as_init() : result<void>();
    if (!begun || !options) return report_startup_error(begun ? options.error() : begun.error());
    return std::nullopt;
}
}  // namespace v0_1_0
}  // namespace ojs
