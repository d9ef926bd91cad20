// ledger: one line of JSON per event, for tests that check what became of each job.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "clock.hpp"
#include "json.hpp"

namespace dev_backend {
class ledger {
  public:
    bool open(const std::string& path) {
        file_ = ojs::detail::unique_fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
        return static_cast<bool>(file_);
    }

    // The caller holds the store's lock, so that the lines are in order.
    void write(const char* event, json_object& fields) {
        if (!file_) return;
        json_object line;
        line.number("mono_ns", monotonic_ns()).text("event", event);
        const std::string rest = fields.str();
        std::string text = line.open_text() + (rest.size() > 2 ? "," : "") + rest.substr(1);
        std::replace(text.begin(), text.end(), '\n', ' ');  // received JSON may span lines
        text += '\n';
        for (std::string_view left = text; !left.empty();) {
            const ssize_t written = ::write(file_.get(), left.data(), left.size());
            if (written > 0) left.remove_prefix(static_cast<std::size_t>(written));
            if (written >= 0 || errno == EINTR) continue;
            std::fputs("dev_backend: the ledger cannot be written, and ends here\n", stderr);
            file_ = ojs::detail::unique_fd();  // for good: later lines would follow a gap
            return;
        }
    }

  private:
    ojs::detail::unique_fd file_;
};
}  // namespace dev_backend
