#include "journal.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "refusal.hpp"

namespace dev_backend {
namespace {
constexpr std::string_view first_line = "dev_backend store 2\n";

bool starts_with(std::string_view text, std::string_view begin) { return text.substr(0, begin.size()) == begin; }

// The file may have been created just now.
bool sync_folder(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == path.npos ? "." : path.substr(0, slash + 1);
    const ojs::detail::unique_fd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return opened && ::fsync(opened.get()) == 0;
}
}  // namespace

ojs::error journal::fault_of(const std::string& why) const { return {ojs::errc::system, 0, path_ + ": " + why}; }

ojs::result<void> journal::open(const std::string& path) {
    path_ = path;
    // Readable by the owner only: arguments of jobs may be confidential.
    ojs::detail::unique_fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file) return fault_of(std::strerror(errno));
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return fault_of("another process has it open");
    std::string text;
    std::array<char, 65536> buffer{};
    ssize_t count = 0;
    while ((count = ::read(file.get(), buffer.data(), buffer.size())) > 0)
        text.append(buffer.data(), static_cast<std::size_t>(count));
    if (count < 0) return fault_of(std::strerror(errno));
    const bool is_new = starts_with(first_line, text);
    if (!is_new && !starts_with(text, first_line)) return fault_of("it is no store of dev_backend");
    text.erase(text.rfind('\n') + 1);  // a kill may have cut the last line, which no response reports
    if (const auto loaded = load(text); !loaded) return loaded;
    size_ = is_new ? 0 : text.size();
    file_ = std::move(file);
    if (::ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) return fault_of(std::strerror(errno));
    if (is_new) {
        if (const auto begun = append(std::string(first_line)); !begun) return begun;
        if (!sync_folder(path)) return fault_of(std::strerror(errno));
    }
    return {};
}

ojs::result<void> journal::load(const std::string& text) {
    struct stored_job {
        std::string_view fixed;
        json_view record;
        std::size_t line = 0;
    };
    std::map<std::string, stored_job> all;
    std::size_t number = 1;
    try {
        for (std::size_t at = text.find('\n') + 1; at > 0 && at < text.size(); at = text.find('\n', at) + 1) {
            const std::string_view line(text.data() + at, text.find('\n', at) - at);
            ++number;
            if (!ojs::detail::is_json(line)) refuse_shape("not JSON");
            for (const auto& [key, record] : json_view(line)) {
                const std::string id = required_text(record, "id");
                if (flag_or(record, "is_removed", false)) {
                    all.erase(id);
                    continue;
                }
                stored_job& found = all[id];
                if (const json_view fixed = member(record, "fixed")) found.fixed = fixed.text();
                found.record = record;
                found.line = number;
            }
        }
        std::multimap<std::int64_t, const stored_job*> in_order;
        for (const auto& [id, each] : all) {
            number = each.line;
            in_order.emplace(integer_or(each.record, "turn", 1, 0), &each);
        }
        for (const auto& [turn, each] : in_order) {
            number = each->line;
            store_.restore(each->fixed, each->record);
        }
    } catch (const refusal& why) {
        return fault_of("line " + std::to_string(number) + " is damaged: " + why.message);
    }
    return {};
}

ojs::result<void> journal::save() {
    if (!is_open()) return {};
    const std::uint64_t needed = store_.changes();
    // A request that waits here finds its changes saved by another one.
    const std::lock_guard<std::mutex> held(mutex_);
    if (saved_ >= needed) return {};
    std::uint64_t through = 0;
    {
        const store::lock of_jobs(store_.mutex());
        through = store_.changes();
        unsaved_ += store_.take_changes();
    }
    ojs::result<void> done = append(unsaved_);
    is_failing_ = !done;
    if (!done) return done;
    unsaved_.clear();
    saved_ = through;
    return {};
}

ojs::result<void> journal::append(const std::string& text) {
    std::size_t written = 0;
    while (written < text.size()) {
        const auto at = static_cast<off_t>(size_ + written);
        const ssize_t more = ::pwrite(file_.get(), text.data() + written, text.size() - written, at);
        if (more > 0) written += static_cast<std::size_t>(more);
        if (more < 0 && errno != EINTR) break;
    }
    // The next call overwrites an incomplete line, and open() drops it.
    if (written < text.size() || ::fsync(file_.get()) != 0) return fault_of(std::strerror(errno));
    size_ += text.size();
    return {};
}
}  // namespace dev_backend
