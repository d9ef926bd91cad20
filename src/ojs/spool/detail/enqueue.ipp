// spool_enqueue(): puts a job into a spool, where others see it whole or not at all.
#pragma once

#include "../spool_transport.hpp"
#include "intake.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// The time to the nanosecond, so that names are in the order in which they were made, and a random number.
inline std::string time_name(const char* start) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    std::string out = utc_text(static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000);
    char rest[48];
    std::snprintf(rest, sizeof rest, "%06ldZ-%08llx", static_cast<long>(now.tv_nsec % 1000000),
                  static_cast<unsigned long long>(random_number() & 0xffffffff));
    out.pop_back();  // the Z
    return cat({start, out, rest});
}

}  // namespace detail

OJS_SHUTDOWN_INLINE result<std::string> spool_enqueue(const std::string& directory, const spool_job& job) {
    using detail::cat, detail::json_quote, detail::spool_misuse;
    result<detail::spool_folders> opened = detail::open_spool_folders(directory, true);
    if (!opened) return opened.error();
    if (job.type.empty() || job.queue.empty() || job.max_attempts < 0)
        return spool_misuse({"a job needs a type, a queue and no negative max_attempts"});
    const std::string fault = detail::args_fault(job.args_json);
    if (!fault.empty()) return spool_misuse({fault});
    const std::string stamp = cat({detail::time_name("5-"), ".json"});
    const std::string name = job.name.empty() ? stamp : job.name;
    const std::string bad_name = detail::spool_name_fault(name);
    if (!bad_name.empty()) return spool_misuse({bad_name});
    const std::string id = detail::id_from_name(name);
    const std::string text =
        detail::edited_json("{}", {{"id", json_quote(id)},
                                   {"type", json_quote(job.type)},
                                   {"queue", json_quote(job.queue)},
                                   {"args", job.args_json},
                                   {"max_attempts", job.max_attempts > 0 ? cat({job.max_attempts}) : ""},
                                   {"created_at", json_quote(detail::utc_timestamp())}});
    constexpr std::size_t longest = detail::longest_spool_job - detail::room_for_error;
    if (text.size() >= longest) return spool_misuse({"a job is at most ", longest, " bytes"});
    const std::string temporary = cat({".new.", detail::hex_text(detail::random_number())});
    const int request = opened->request.get();
    const result<void> written = detail::write_new_spool_file(request, temporary, text + "\n");
    if (!written) return written.error();
    const int failed = detail::rename_to_new(request, temporary, request, name);
    if (failed == 0 && detail::sync_descriptor(request)) return id;
    const int why = failed != 0 ? failed : errno;
    if (failed != 0) ::unlinkat(request, temporary.c_str(), 0);
    if (why == EEXIST) return spool_misuse({"the name ", detail::printable(name), " is taken"}, why);
    return detail::spool_error(cat({"put a job into ", detail::printable(directory, 300)}), why,
                               errc::system);
}

}  // namespace v0_1_0
}  // namespace ojs
