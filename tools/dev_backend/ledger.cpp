#include "ledger.hpp"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace dev_backend {

bool ledger::open(const std::string& path) {
    // Opening a pipe without a reader would block, signals notwithstanding.
    file_ = ojs::detail::unique_fd(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666));
    enabled_ = file_ && ::fcntl(file_.get(), F_SETFL, O_APPEND) == 0;
    return enabled_;
}

void ledger::write(const char* event, json_object& fields) {
    if (!enabled_ || fields.is_none()) return;
    const std::int64_t now = monotonic_ns();
    const std::int64_t us = (now - start_ns_) / 1000;
    const std::string fraction = std::to_string(1000 + us % 1000).substr(1);
    const std::string rest = fields.str();
    std::string line = "{\"t_ms\":" + std::to_string(us / 1000) + "." + fraction;
    line.append(",\"mono_ns\":").append(std::to_string(now)).append(",\"event\":\"").append(event);
    line.append(rest.size() > 2 ? "\"," : "\"").append(rest, 1);
    std::replace(line.begin(), line.end(), '\n', ' ');  // received JSON may span lines
    line += '\n';
    if (write_all(line)) return;
    enabled_ = false;  // for good: later lines would follow a gap
    std::fputs("dev_backend: the ledger cannot be written, and ends here\n", stderr);
}

bool ledger::write_all(std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(file_.get(), text.data(), text.size());
        if (written < 0 && errno != EINTR) return false;
        if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
}

}  // namespace dev_backend
