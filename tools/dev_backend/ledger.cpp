#include "ledger.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

namespace dev_backend {

bool ledger::open(const std::string& path) {
    // Opening a pipe without a reader would block, signals notwithstanding.
    const int tried = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
    if (tried < 0) return false;
    ::close(tried);
    file_.open(path, std::ios::app);
    return enabled_ = file_.is_open();
}

void ledger::write(const char* event, const json_object& fields) {
    if (!enabled_) return;
    const std::int64_t now = monotonic_ns();
    std::array<char, 96> head{};
    std::snprintf(head.data(), head.size(), "{\"t_ms\":%.3f,\"mono_ns\":%lld,\"event\":\"%s\"",
                  static_cast<double>(now - start_ns_) / 1e6, static_cast<long long>(now), event);
    std::string rest = fields.str();
    std::replace(rest.begin(), rest.end(), '\n', ' ');  // received JSON may span lines
    file_ << head.data() << (rest.size() > 2 ? "," : "") << std::string_view(rest).substr(1) << '\n'
          << std::flush;
    if (file_) return;
    enabled_ = false;  // for good: later lines would follow a gap
    std::fputs("dev_backend: the ledger cannot be written, and ends here\n", stderr);
}

}  // namespace dev_backend
