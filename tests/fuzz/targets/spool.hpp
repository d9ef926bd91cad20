// spool: a file that anyone may have put into a queue, and what lies beside it. Whatever they hold, and whatever is done
// to the job, the file is in exactly one place, and where it is run it is run as what it is.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {
// Like another process that may write there: at an offset that the input chooses.
inline void damage(const std::filesystem::path& sidecar, std::string_view with, unsigned offset) {
    std::string content = read_file(sidecar);
    if (content.empty()) content = std::string(with);
    if (offset < content.size()) content.replace(offset, std::min<std::size_t>(with.size(), 8), with);
    write_file(sidecar, content);
}

inline void fetch_and_settle(ojs::transport& transport, unsigned how) {
    ojs::fetch_request asking;
    ojs::worker_identity worker;
    worker.queues = {"default"};
    asking.worker = &worker;
    asking.count = 2;
    const ojs::time_point deadline = ojs::deadline_after(std::chrono::seconds(60));
    const auto got = transport.fetch(asking, deadline);
    if (!got || got->empty()) return;
    expect(got->size() == 1, "one file is one job");
    const ojs::job& job = got->front();
    picojson::value read;
    if (job.malformed.empty()) {
        const auto is_represented = [](const std::string& text) {
            expect(ojs::detail::is_json(text), "it is JSON", text);
            return fits_picojson(text);
        };
        if (is_represented(job.args_json))
            expect(read_json(job.args_json, read) && read.is<picojson::array>(), "arguments are an array",
                   job.args_json);
        if (is_represented(job.meta_json))
            expect(read_json(job.meta_json, read) && read.is<picojson::object>(), "meta is an object", job.meta_json);
    }
    const ojs::job_error error{"handler_error", "boom", how != 1, "{}"};
    const std::string state = how == 2 ? "{\"at\":1}" : "";
    if (how == 0) {
        expect(static_cast<bool>(transport.ack({{{}, job.id}, "7"}, deadline)), "an ACK is taken");
    } else if (how <= 3) {
        expect(static_cast<bool>(transport.fail({{{}, job.id}, error, how == 3, state}, deadline)), "a FAIL is taken");
    }  // else: left to recovery
}

// What a person would see: files whose name does not begin with a dot.
inline int visible_files(const std::filesystem::path& folder) {
    int out = 0;
    for (const auto& each : std::filesystem::recursive_directory_iterator(folder)) {
        if (each.is_regular_file() && each.path().filename().string().front() != '.') ++out;
    }
    return out;
}

inline void spool(input in) {
    static const temporary_folder folder(temporary_folder::kind::in_memory);
    static unsigned run = 0;
    const std::filesystem::path path = folder.path() / std::to_string(++run);
    const std::filesystem::path request = path / "request";
    const unsigned how = in.byte();
    ojs::spool_options options;
    options.directory = path.string();
    options.incomplete_timeout = std::chrono::milliseconds(0);
    options.recovery_interval = std::chrono::milliseconds(0);
    options.retry_delays = {std::chrono::milliseconds(0), std::chrono::milliseconds(0)};
    options.accept_any_file = how % 2 == 1;
    std::vector<std::pair<unsigned, unsigned>> steps(1 + how / 2 % 4);  // what is done, where is damaged
    for (auto& [what, offset] : steps) {
        what = in.byte();
        offset = in.byte();
    }
    const std::string_view beside = in.line();
    const auto first = ojs::open_spool(options);  // stays open
    expect(first.has_value(), "the folder opens");
    write_file(request / ".new", in.rest());
    std::filesystem::rename(request / ".new", request / "job.json");
    for (const auto& [what, offset] : steps) {
        const auto transport = ojs::open_spool(options);
        expect(transport.has_value(), "the folder opens");
        if (what >= 128) damage(request / ".about.job.json", beside, offset);
        fetch_and_settle(**transport, what % 5);
        expect(visible_files(path) == 1, "the file is in exactly one place");
    }
    std::filesystem::remove_all(path);
}
}  // namespace fuzz
