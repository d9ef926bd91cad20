// spool: a file that anyone may have put into a queue, and what lies beside it. Whatever they hold, and whatever is done
// to the job, the file is in exactly one place, and where it is run it is run as what it is.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {

class spool_run {
  public:
    spool_run(input in, const std::filesystem::path& path) : in_(in), path_(path) {
        options_.directory = path.string();
        options_.incomplete_timeout = std::chrono::milliseconds(0);
        options_.recovery_interval = std::chrono::milliseconds(0);
        options_.retry_delays = {std::chrono::milliseconds(0), std::chrono::milliseconds(0)};
        const unsigned how = in_.byte();
        options_.any_file = how % 2 == 1;
        steps_ = 1 + how / 2 % 4;
        for (unsigned i = 0; i < 2 * steps_; ++i) choices_.push_back(in_.byte());
        beside_ = in_.line();
    }

    void play() {
        const auto first = ojs::open_spool(options_);
        expect(first.has_value(), "the folder opens");
        write_file(path_ / "request" / ".new", in_.rest());
        std::filesystem::rename(path_ / "request" / ".new", path_ / "request" / name);
        for (unsigned i = 0; i < steps_; ++i) {
            const auto transport = ojs::open_spool(options_);
            expect(transport.has_value(), "the folder opens");
            step(**transport, choices_[2 * i], choices_[2 * i + 1]);
            expect(copies() == 1, "the file is in exactly one place");
        }
    }

  private:
    static constexpr const char* name = "job.json";

    void step(ojs::transport& transport, unsigned what, unsigned offset) {
        if (what >= 128) damage_sidecar(offset);
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
        picojson::value args;
        if (job.malformed.empty()) {
            expect(read_json(job.args_json, args) && args.is<picojson::array>(), "arguments are an array",
                   job.args_json);
            expect(read_json(job.meta_json, args) && args.is<picojson::object>(), "meta is an object",
                   job.meta_json);
        }
        settle(transport, job, what % 5, deadline);
    }

    void settle(ojs::transport& transport, const ojs::job& job, unsigned how, ojs::time_point deadline) {
        const ojs::job_error error{"handler_error", "boom", how != 1, "{}"};
        const std::string state = how == 2 ? "{\"at\":1}" : "";
        if (how == 0) {
            expect(static_cast<bool>(transport.ack({job.id, "7"}, deadline)), "an ACK is taken");
        } else if (how <= 3) {
            expect(static_cast<bool>(transport.fail({job.id, error, how == 3, state}, deadline)),
                   "a FAIL is taken");
        }  // else: left to recovery
    }

    // Like another process that may write there: at an offset that the input chooses.
    void damage_sidecar(unsigned offset) {
        const std::filesystem::path sidecar = path_ / "request" / (std::string(".about.") + name);
        std::string content = std::filesystem::exists(sidecar) ? read_file(sidecar) : std::string();
        if (content.empty()) content = std::string(beside_);
        if (offset < content.size())
            content.replace(offset, std::min<std::size_t>(beside_.size(), 8), beside_);
        write_file(sidecar, content);
    }

    // What a person would see: files whose name does not begin with a dot.
    int copies() const {
        int out = 0;
        for (const auto& each : std::filesystem::recursive_directory_iterator(path_)) {
            if (each.is_regular_file() && each.path().filename().string().front() != '.') ++out;
        }
        return out;
    }

    input in_;
    std::filesystem::path path_;
    ojs::spool_options options_;
    unsigned steps_ = 0;
    std::vector<unsigned> choices_;
    std::string_view beside_;
};

inline void spool(input in) {
    static const temporary_folder folder(temporary_folder::kind::in_memory);
    static unsigned run = 0;
    const std::filesystem::path path = folder.path() / std::to_string(++run);
    spool_run(in, path).play();
    std::filesystem::remove_all(path);
}

}  // namespace fuzz
