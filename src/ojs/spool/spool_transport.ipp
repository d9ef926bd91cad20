#pragma once

#include "../base/detail/light.hpp"
#include "detail/claiming.ipp"
#include "detail/intake.ipp"
#include "detail/recovery.ipp"
#include "spool_transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

OJS_SHUTDOWN_INLINE std::vector<std::chrono::milliseconds> usual_retry_delays() {
    return {std::chrono::milliseconds(0), std::chrono::milliseconds(1000)};
}

class spool_transport final : public transport {
  public:
    explicit spool_transport(spool_options options)
        : options_(std::move(options)),
          examiner_(options_, waiting_),
          teller_(options_),
          recovery_(options_, teller_),
          claimer_(options_, waiting_, teller_) {}
    ~spool_transport() override { watcher_.stop(); }

    result<void> open() {
        const unique_lock fetching(fetch_mutex_);
        return reopen(true);
    }

    // ---- FETCH ----

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        const unique_lock fetching(fetch_mutex_);
        const result<void> usable = keep_open();
        if (!usable) return usable.error();
        claimer_.put_back_strays(*place_);
        recover_when_due(deadline);  // for others, if not for us
        if (request.still_wanted && !request.still_wanted()) return no_longer_wanted();
        look_at_other_queues(request.worker->queues);
        const int failed = waiting_.update(place_->request());
        if (failed != 0) return spool_error("read request/", failed);
        std::vector<job> claimed;
        const result<void> taken = claim_jobs(request, deadline, claimed);
        watcher_.looked(waiting_.next_due());
        if (!taken) next_check_ = time_point::min();  // perhaps a folder is gone
        if (!taken && claimed.empty()) return taken.error();
        return claimed;
    }

    // ---- settling ----

    result<settled> ack(const ack_request& request, time_point) override {
        const ref<spool_claim> claim = held_.find(request.job_id);
        if (!claim) return settled::gone;
        const unique_lock held(claim->settling);
        result<settled> done = settle(*claim, completed_run(*claim, request.result_json));
        // The work is done, and a rename needs no room.
        if (done || !is_out_of_room(done.error()) || claim->stage != settle_stage::open) return done;
        done = settle(*claim, {});
        if (done || claim->stage != settle_stage::open)
            teller_.tell(spool_event_kind::result_dropped, claim->name, "no space left on the disk");
        return done;
    }

    result<settled> fail(const fail_request& request, time_point) override {
        const ref<spool_claim> claim = held_.find(request.job_id);
        if (!claim) return settled::gone;
        const unique_lock held(claim->settling);
        const bool kept = request.checkpoint_json.empty() || !has_room(*claim, request.checkpoint_json);
        const std::string checkpoint = kept ? kept_checkpoint(*claim) : request.checkpoint_json;
        return settle(*claim, request.requeue ? requeued(*claim, checkpoint)
                                              : failed_run(options_, *claim, request.error, checkpoint));
    }

    result<settled> save_checkpoint(const checkpoint_request& request, time_point) override {
        if (!is_json(request.state_json)) return spool_misuse({"the checkpoint is not JSON"});
        const ref<spool_claim> claim = held_.find(request.job_id);
        if (!claim) return settled::gone;
        const unique_lock held(claim->settling);
        if (claim->stage != settle_stage::open) return settled::gone;
        if (!has_room(*claim, request.state_json))
            return error{errc::rejected, 0, "spool: the checkpoint is too large for the job's file", 413};
        const ref<spool_folders> place = current_place();
        const claimed_file file{*place, claim->owner->folder(), claim->name};
        const result<void> written = write_owned(file, claim->owner->new_temporary_name(), file.owner,
                                                 checkpoint_name(claim->name), request.state_json);
        if (!written) return written.error();
        claim->has_checkpoint = true;
        return settled::accepted;
    }

    result<std::string> load_checkpoint(const std::string& job_id, time_point) override {
        const ref<spool_claim> claim = held_.find(job_id);
        if (!claim) return std::string();
        const unique_lock held(claim->settling);
        std::string kept = kept_checkpoint(*claim);
        if (!kept.empty()) return kept;
        const std::string_view meta =
            claim->opaque ? std::string_view(claim->text) : raw_member(claim->text, "meta");
        return std::string(raw_member(meta, "checkpoint"));
    }

    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point) override {
        heartbeat_response out;
        for (const std::string& id : request.active_jobs)
            if (held_.find(id)) out.jobs_extended.push_back(id);
        return out;
    }

    void on_work_available(function<void()> tell) override {
        watcher_.stop();
        if (tell) watcher_.start(std::move(tell), waiting_.watch_fd());
    }

  private:
    static error no_longer_wanted() { return {errc::cancelled, 0, "no longer wanted"}; }

    // ---- directories ----

    ref<spool_folders> current_place() {
        const unique_lock held(mutex_);
        return place_;
    }

    // With fetch_mutex_ held.
    result<void> reopen(bool make_root) {
        result<ref<spool_folders>> opened =
            open_spool_folders(place_ ? place_->path : options_.directory, make_root);
        if (!opened) return opened.error();
        result<ref<spool_owner>> owner = make_owner(*opened);
        if (!owner) return owner.error();
        waiting_.watch((*opened)->path, owner_ && !owner_->is_ours());
        next_recovery_ = time_point::min();
        const unique_lock held(mutex_);
        place_ = std::move(*opened);
        owner_ = std::move(*owner);
        return {};
    }

    result<void> keep_open() {
        const time_point now = steady_clock::now();
        const bool forked = !owner_->is_ours();  // what it is named for belongs to the process that made it
        if (!forked && now < next_check_ && waiting_.has_ready()) return {};
        next_check_ = now + look_soon;
        if (!forked && !place_->is_gone() && !folder_is_gone(owner_->folder())) return {};
        next_check_ = time_point::min();
        const result<void> opened = reopen(false);
        if (opened) return {};
        error why = opened.error();
        why.code = errc::unavailable;
        why.text += "; it was there before";
        return why;
    }

    // ---- claiming ----

    // A queue that was not asked for last time may be now. With fetch_mutex_ held.
    void look_at_other_queues(const std::vector<std::string>& queues) {
        if (queues == queues_) return;
        if (!queues_.empty()) waiting_.look_at_all_again();
        queues_ = queues;
    }

    result<void> claim_jobs(const fetch_request& request, time_point deadline, std::vector<job>& out) {
        std::string last;
        while (out.size() < request.count) {
            const std::string* next = waiting_.next(last);
            if (next == nullptr) break;
            if (steady_clock::now() >= deadline)
                return error{errc::timed_out, 0, "spool: the deadline passed"};
            last = *next;
            const result<void> looked = claim_if_ready(last, request, out);
            if (!looked) return looked;
        }
        return {};
    }

    result<void> claim_if_ready(const std::string& name, const fetch_request& request,
                                std::vector<job>& out) {
        const std::string fault = spool_name_fault(name);
        spool_candidate found;
        const examined look =
            fault.empty() ? examiner_.examine(*place_, name, request.worker->queues, found) : refuse(fault);
        switch (look.what) {
            case readiness::ready: break;
            case readiness::later: waiting_.put_off(name, look.look_again); return {};
            case readiness::refused: claimer_.put_off_refused(name, look.why); return {};
            case readiness::gone: waiting_.forget(name); return {};
            case readiness::failed: return look.failure;
        }
        if (held_.find(found.job.id, found.name) || claimer_.is_stray(name)) {
            waiting_.put_off(name, look_soon);
            return {};
        }
        if (request.still_wanted && !request.still_wanted()) return no_longer_wanted();
        const result<ref<spool_claim>> claimed = claimer_.claim(*place_, owner_, found);
        if (!claimed) return claimed.error();
        waiting_.forget(name);
        if (*claimed) hand_out(found, *claimed, out);
        return {};
    }

    void hand_out(spool_candidate& found, const ref<spool_claim>& claim, std::vector<job>& out) {
        ojs::job& job = found.job;
        job.attempt = claim->attempt;
        job.max_attempts = claim->max_attempts;
        const std::string path = cat({place_->path, "/processing/", owner_->name, "/", found.name});
        array<json_edit> additions = {{"spool_path", json_quote(path)}};
        if (claim->opaque)
            additions.push_back({"checkpoint", std::string(raw_member(claim->text, "checkpoint"))});
        job.meta_json = edited_json(job.meta_json, additions);
        claim->job_id = job.id;
        held_.add(claim);
        out.push_back(std::move(job));
    }

    // ---- settling ----

    // What is written with it must be read again: the job's file, or the sidecar, has a limit.
    static bool has_room(const spool_claim& claim, const std::string& checkpoint) noexcept {
        return claim.text.size() + checkpoint.size() + room_for_error <= max_spool_job_size;
    }

    static std::string kept_checkpoint(const spool_claim& claim) {
        return claim.has_checkpoint ? read_own_file(claim.owner->folder(), checkpoint_name(claim.name))
                                    : std::string();
    }

    result<settled> settle(spool_claim& claim, spool_verdict verdict) {
        const ref<spool_folders> place = current_place();
        const claimed_file file{*place, claim.owner->folder(), claim.name};
        const result<settled> done =
            settle_claim(file, claim, std::move(verdict), claim.owner->new_temporary_name());
        if (done) held_.remove(claim);
        return done;
    }

    // ---- dead workers ----

    void recover_when_due(time_point deadline) {
        const time_point now = steady_clock::now();
        if (now < next_recovery_) return;
        next_recovery_ = now + options_.recovery_interval;
        recovery_.recover_all(*place_, owner_->name, deadline);
    }

    const spool_options options_;
    const spool_examiner examiner_;
    spool_teller teller_;
    spool_recovery recovery_;
    mutex fetch_mutex_;  // one FETCH at a time; held before mutex_
    spool_waiting waiting_;
    std::vector<std::string> queues_;  // of the last FETCH
    spool_claimer claimer_;
    time_point next_recovery_ = time_point::min();
    time_point next_check_ = time_point::min();  // whether the folders are still there
    mutex mutex_;                                // guards place_ and owner_, which only a FETCH changes
    ref<spool_folders> place_;  // replaced as a whole where they were taken away and made anew
    ref<spool_owner> owner_;
    spool_claims held_;
    spool_watcher watcher_;
};

// ---- the scheme ----

inline void log_spool_event(const log_hook& log, const spool_event& event) {
    static constexpr const char* messages[] = {
        "a file in the spool is not run and stays where it is", "a dead worker's job was recovered",
        "a folder of claimed jobs may be of a dead worker, and is left alone",
        "a completed job is settled without its result"};
    const bool recovered = event.kind == spool_event_kind::recovered;
    log({recovered ? log_level::info : log_level::warn,
         messages[static_cast<int>(event.kind)],
         {field("file", event.name), field("reason", event.text)},
         {}});
}

inline result<transport_ref> open_scheme(const transport_setup& setup) {
    spool_options options;
    options.directory = std::string(setup.address);
    options.recovery_interval = setup.options.heartbeat_interval;
    options.on_event = [log = setup.log](const spool_event& event) { log_spool_event(log, event); };
    return open_spool(std::move(options));
}

inline std::vector<finding> inspect_spool(std::string_view address) {
    const std::string directory(address);
    if (::access(directory.c_str(), R_OK | W_OK | X_OK) == 0) return {};
    const int failed = errno;
    const bool missing = failed == ENOENT && !directory.empty();
    return {{missing ? severity::warning : severity::error, missing ? "spool-missing" : "spool-unusable",
             cat({"the spool directory '", printable(directory), "' cannot be used: ", errno_text(failed)}),
             missing ? "the worker makes it if the directory above it is there"
                     : "let OJS_URL name a directory the worker may read and write"}};
}

// ---- spool_enqueue() ----

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

OJS_SHUTDOWN_INLINE result<transport_ref> open_spool(spool_options options) {
    auto* const made = new detail::spool_transport(std::move(options));
    transport_ref out(made);
    const result<void> opened = made->open();
    return opened ? result<transport_ref>(std::move(out)) : opened.error();
}

OJS_SHUTDOWN_INLINE transport_scheme spool() {
    return {"spool", detail::open_scheme, detail::inspect_spool};
}

OJS_SHUTDOWN_INLINE result<std::string> spool_enqueue(const std::string& directory, const spool_job& job) {
    using detail::cat, detail::json_quote, detail::spool_misuse;
    const result<detail::ref<detail::spool_folders>> opened = detail::open_spool_folders(directory, true);
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
    constexpr std::size_t longest = detail::max_spool_job_size - detail::room_for_error;
    if (text.size() >= longest) return spool_misuse({"a job is at most ", longest, " bytes"});
    const std::string temporary = cat({".new.", detail::hex_text(detail::random_number())});
    const int request = (*opened)->request();
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
