// A spool directory put through what every transport must do.
#include "contract/doctest.hpp"
#include "spool_dir.hpp"

namespace {
using transport_contract::job_state;
using transport_contract::new_job;
using transport_contract::traits;
using namespace spool_test;

class spool_subject : public transport_contract::subject {
  public:
    spool_subject() {
        dir_.options.retry_delays = {std::chrono::milliseconds(0)};
        dir_.open();  // makes the folders
    }

    traits can() const override {
        traits out;
        out.first_in_first_out = out.requeue_spares_attempt = out.knows_holder = true;
        out.jobs_outlive_worker = out.counts_lost_runs = out.passes_checkpoints = true;
        out.largest_args = 200 * 1024;
        out.keeps_args_text = out.holds_nul = out.any_type = out.any_id = true;
        out.tells_of_work = OJS_SHUTDOWN_USE_INOTIFY != 0;
        return out;
    }
    std::shared_ptr<ojs::transport> connect(const ojs::worker_identity& /*as*/) override {
        const transport_ref opened = dir_.open();
        return std::shared_ptr<ojs::transport>(opened.get(), [opened](ojs::transport*) {});
    }
    std::string push(const new_job& what) override { return what.id.empty() ? enqueue(what) : put(what); }
    job_state state_of(const std::string& id) override {
        const std::string name = files_.count(id) != 0 ? files_[id] : id + ".json";
        if (fs::exists(dir_.path / "request" / name)) return job_state::waiting;
        if (is_claimed(name)) return job_state::running;
        if (fs::exists(dir_.path / "done" / name)) return job_state::completed;
        return fs::exists(dir_.path / "failed" / name) ? job_state::discarded : job_state::absent;
    }

  private:
    bool is_claimed(const std::string& name) const {
        for (const auto& each : fs::directory_iterator(dir_.path / "processing")) {
            if (fs::exists(each.path() / name)) return true;
        }
        return false;
    }
    std::string enqueue(const new_job& what) {
        const ojs::result<std::string> id =
            ojs::spool_enqueue(dir_.path, {what.type, what.args_json, what.queue, what.max_attempts, ""});
        if (!id) throw std::runtime_error(id.error().text);
        return *id;
    }
    // As any program may: the file has a name of its own.
    std::string put(const new_job& what) {
        const std::string name = "6-" + std::to_string(files_.size()) + ".json";
        const auto quoted = [](const std::string& text) { return ojs::detail::json_quote(text); };
        dir_.put(name, "{\"id\":" + quoted(what.id) + ",\"type\":" + quoted(what.type) +
                           ",\"queue\":" + quoted(what.queue) + ",\"args\":" + what.args_json +
                           ",\"max_attempts\":" + std::to_string(what.max_attempts) + "}");
        files_[what.id] = name;
        return what.id;
    }

    const temporary_folder folder_{temporary_folder::kind::in_memory};
    spool_dir dir_{folder_.path() / "spool"};
    std::map<std::string, std::string> files_;
};
}  // namespace

TEST_CASE("spool: every transport contract check that applies to a directory passes") {
    names left_out = {"a backend that freezes and continues", "an ACK or FAIL whose response is lost counts once",
                      "a FETCH whose response is lost loses no job"};
    if (OJS_SHUTDOWN_USE_INOTIFY == 0) left_out.push_back("on_work_available is called after a push");
    CHECK(transport_contract::check_all([] { return std::make_unique<spool_subject>(); }) == left_out);
}
