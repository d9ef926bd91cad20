#pragma once

#include "../base/detail/light.hpp"
#include "detail/claiming.ipp"
#include "detail/recovery.ipp"
#include "detail/requests.ipp"
#include "spool_transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
OJS_SHUTDOWN_INLINE std::vector<std::chrono::milliseconds> default_retry_delays() {
    return {std::chrono::milliseconds(0), std::chrono::milliseconds(1000)};
}

class spool_transport final : public transport {
  public:
    explicit spool_transport(spool_options options)
        : options_((options.incomplete_timeout =
                        std::clamp<milliseconds>(options.incomplete_timeout, {}, milliseconds(max_duration_ms)),
                    std::move(options))),
          examiner_(options_, requests_),
          reporter_(options_),
          recovery_(options_, reporter_),
          claimer_(options_, requests_, reporter_) {}
    ~spool_transport() override { watcher_.stop(); }

    result<void> open() {
        const unique_lock fetching(fetch_mutex_);
        return reopen(true);
    }

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        const unique_lock fetching(fetch_mutex_);
        const result<void> usable = reopen_if_removed();
        if (!usable) return usable.error();
        claimer_.put_back_strays(*folders_);
        recover_when_due(deadline);
        if (request.should_send && !request.should_send()) return fetch_cancelled();
        const int errnum = requests_.update(folders_->request());
        if (errnum != 0) return spool_error("read request/", errnum);
        std::vector<job> claimed;
        const result<void> taken = claim_jobs(request, deadline, claimed);
        watcher_.on_fetched(requests_.next_due());
        if (!taken) next_folder_check_at_ = time_point::min();
        if (!taken && claimed.empty()) return taken.error();
        return claimed;
    }

    result<settle_result> ack(const ack_request& request, time_point) override {
        const ref<spool_claim> claim = claims_.find(request.job_id);
        if (!claim) return settle_result::gone;
        const unique_lock held(claim->settling);
        result<settle_result> done = settle(*claim, completion_verdict(*claim, request.result_json));
        // A rename needs no space: the work is done, only its result is dropped.
        if (done || !is_disk_full(done.error()) || claim->stage != settle_stage::open) return done;
        done = settle(*claim, {});
        if (done || claim->stage != settle_stage::open)
            reporter_.report(spool_event_kind::result_dropped, claim->name, "no space left on the disk");
        return done;
    }

    result<settle_result> fail(const fail_request& request, time_point) override {
        const ref<spool_claim> claim = claims_.find(request.job_id);
        if (!claim) return settle_result::gone;
        const unique_lock held(claim->settling);
        const std::string checkpoint = fits(*claim, request.checkpoint_json) ? request.checkpoint_json : std::string();
        job_error why = request.error;
        const bool is_malformed = why.code == "invalid_payload";  // it waits in failed/ to be corrected
        why.retryable = why.retryable && !is_malformed;
        return settle(*claim, request.requeue && !is_malformed ? requeue_verdict(*claim, checkpoint)
                                                               : failure_verdict(options_, *claim, why, checkpoint));
    }

    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point) override {
        heartbeat_response out;
        for (const std::string& id : request.active_jobs)
            if (claims_.find(id)) out.jobs_extended.push_back(id);
        return out;
    }

    void on_work_available(function<void()> callback) override {
        watcher_.stop();
        if (callback) watcher_.start(std::move(callback), requests_.watch_fd());
    }

  private:
    static error fetch_cancelled() { return {errc::cancelled, 0, "cancelled: the worker stopped fetching"}; }

    ref<spool_folders> current_folders() {
        const unique_lock held(mutex_);
        return folders_;
    }

    // Called with fetch_mutex_ held.
    result<void> reopen(bool create_root) {
        result<ref<spool_folders>> opened = open_spool_folders(folders_ ? folders_->path : options_.directory,
                                                               create_root, options_.allow_group_writable);
        if (!opened) return opened.error();
        result<ref<spool_owner>> owner = create_owner(*opened);
        if (!owner) return owner.error();
        const result<void> moves = check_renames_work(**opened, (*owner)->folder());
        if (!moves) return moves.error();
        requests_.watch((*opened)->path, owner_ && !owner_->is_lock_held());
        next_recovery_at_ = time_point::min();
        const unique_lock held(mutex_);
        folders_ = std::move(*opened);
        owner_ = std::move(*owner);
        return {};
    }

    result<void> reopen_if_removed() {
        const time_point now = steady_clock::now();
        const bool forked = !owner_->is_lock_held();  // the folder stays the parent's
        if (!forked && now < next_folder_check_at_ && requests_.has_ready()) return {};
        next_folder_check_at_ = now + fast_check_interval;
        if (!forked && !folders_->is_removed() && !is_folder_removed(owner_->folder())) return {};
        next_folder_check_at_ = time_point::min();
        const result<void> opened = reopen(false);
        if (opened) return {};
        error failure = opened.error();
        failure.code = errc::unavailable;
        failure.text += "; it was removed or changed while the worker ran";
        return failure;
    }

    result<void> claim_jobs(const fetch_request& request, time_point deadline, std::vector<job>& out) {
        std::string last;
        while (out.size() < request.count) {
            const std::string* next = requests_.next(last);
            if (next == nullptr) break;
            if (steady_clock::now() >= deadline)
                return error{errc::timed_out, 0,
                             "spool: the deadline passed before all files of request/ were examined"};
            last = *next;
            result<void> done = claim_if_ready(last, request, out);
            if (!done) return done;
        }
        return {};
    }

    result<void> claim_if_ready(const std::string& name, const fetch_request& request, std::vector<job>& out) {
        const std::string fault = spool_name_fault(name_as_put(name), options_.accept_backup_names);
        spool_candidate found;
        const examination examined =
            fault.empty() ? examiner_.examine(*folders_, name, request.worker->queues, found) : refuse(fault);
        switch (examined.verdict) {
            case readiness::ready: break;
            case readiness::later:
                requests_.postpone(name, examined.check_delay);
                if (!examined.reason.empty() && !detail::exchange(said_hidden_, true))
                    reporter_.report(spool_event_kind::refused, name, examined.reason);
                return {};
            case readiness::refused: claimer_.postpone_refused(name, examined.reason); return {};
            case readiness::gone: requests_.forget(name); return {};
            case readiness::error: return examined.failure;
        }
        if (claims_.find(found.job.id, found.name) || claimer_.is_stray(name)) {
            requests_.postpone(name, fast_check_interval);
            return {};
        }
        if (request.should_send && !request.should_send()) return fetch_cancelled();
        const result<ref<spool_claim>> claimed = claimer_.claim(*folders_, owner_, found);
        if (!claimed) return claimed.error();
        requests_.forget(name);
        if (*claimed) add_claimed(found, *claimed, out);
        return {};
    }

    void add_claimed(spool_candidate& found, const ref<spool_claim>& claim, std::vector<job>& out) {
        ojs::job& job = found.job;
        job.attempt = claim->attempt;
        job.max_attempts = claim->max_attempts;
        job.visibility_timeout = no_limit;  // it lasts as long as this process
        const std::string path = cat({folders_->path, "/processing/", owner_->name, "/", found.name});
        array<json_edit> additions = {{"spool_path", json_quote(path)}};
        if (claim->is_opaque) additions.push_back({"checkpoint", std::string(raw_member(claim->text, "checkpoint"))});
        job.meta_json = edit_json(job.meta_json, additions);
        claims_.add(claim);
        out.push_back(std::move(job));
    }

    // The job's file or sidecar, checkpoint included, must stay readable.
    static bool fits(const spool_claim& claim, const std::string& checkpoint) noexcept {
        return claim.text.size() - added_size(claim.text) + checkpoint.size() + reserved_job_size <= max_spool_job_size;
    }

    result<settle_result> settle(spool_claim& claim, spool_verdict verdict) {
        const ref<spool_folders> folders = current_folders();
        const claimed_file file{*folders, claim.owner->folder(), claim.name};
        result<settle_result> done = settle_claim(file, claim, std::move(verdict), claim.owner->new_temporary_name());
        if (done) claims_.remove(claim);
        return done;
    }

    void recover_when_due(time_point deadline) {
        const time_point now = steady_clock::now();
        if (now < next_recovery_at_) return;
        next_recovery_at_ = deadline_after(options_.recovery_interval);
        recovery_.recover_all(*folders_, owner_->name, deadline);
    }

    const spool_options options_;
    const spool_examiner examiner_;
    spool_event_reporter reporter_;
    spool_recovery recovery_;
    mutex fetch_mutex_;  // one FETCH at a time; held before mutex_
    spool_requests requests_;
    spool_claimer claimer_;
    bool said_hidden_ = false;
    time_point next_recovery_at_ = time_point::min();
    time_point next_folder_check_at_ = time_point::min();
    mutex mutex_;                 // guards folders_ and owner_, which only a FETCH changes
    ref<spool_folders> folders_;  // replaced when the directory was removed and recreated
    ref<spool_owner> owner_;
    spool_claims claims_;
    spool_watcher watcher_;
};

// ---- the scheme ----

inline result<transport_ref> open_spool_url(const detail::transport_setup& setup) {
    spool_options options;
    options.directory = std::string(setup.address);
    options.recovery_interval = setup.options.heartbeat_interval;
    options.log = setup.log;
    return open_spool(std::move(options));
}

// The worker creates a directory that is missing.
inline std::string inspect_spool(std::string_view address) {
    const std::string directory(address);
    if (::access(directory.c_str(), R_OK | W_OK | X_OK) == 0 || (errno == ENOENT && !address.empty())) return {};
    return cat({"the spool directory '", printable(directory), "' cannot be used: ", errno_text(errno)});
}

// ---- spool_enqueue() ----

// The time in nanoseconds, so that names sort by creation, and a random number.
inline std::string name_from_time(const char* start) {
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
    auto* const created = new detail::spool_transport(std::move(options));
    transport_ref out(created);
    const result<void> opened = created->open();
    return opened ? result<transport_ref>(std::move(out)) : opened.error();
}

OJS_SHUTDOWN_INLINE transport_scheme spool() { return {"spool", detail::open_spool_url, detail::inspect_spool}; }

OJS_SHUTDOWN_INLINE result<std::string> spool_enqueue(const std::string& directory, const spool_job& job) {
    using detail::cat, detail::json_quote, detail::spool_usage_error;
    const result<detail::ref<detail::spool_folders>> opened = detail::open_spool_folders(directory, true);
    if (!opened) return opened.error();
    if (job.type.empty()) return spool_usage_error({"type must not be empty"});
    if (job.queue.empty()) return spool_usage_error({"queue must not be empty"});
    if (job.max_attempts < 0) return spool_usage_error({"max_attempts must not be negative"});
    if (!json_view::parse(job.args_json) || json_view(job.args_json).type() != json_type::array)
        return spool_usage_error({"args is not a JSON array"});
    const std::string stamp = cat({detail::name_from_time("5-"), ".json"});
    const std::string name = job.name.empty() ? stamp : job.name;
    const std::string bad_name = detail::spool_name_fault(name);
    if (!bad_name.empty()) return spool_usage_error({bad_name});
    std::string id = detail::id_from_name(name);
    const std::string text =
        detail::edit_json("{}", {{"id", json_quote(id)},
                                 {"type", json_quote(job.type)},
                                 {"queue", json_quote(job.queue)},
                                 {"args", job.args_json},
                                 {"max_attempts", job.max_attempts > 0 ? cat({job.max_attempts}) : ""},
                                 {"created_at", json_quote(detail::utc_text())}});
    constexpr std::size_t max_size = detail::max_spool_job_size;
    if (text.size() >= max_size) return spool_usage_error({"a job must be smaller than ", max_size, " bytes"});
    const std::string temporary = cat({".new.", detail::hex_text(detail::random_number())});
    const int request = (*opened)->request();
    int errnum = ENOENT;
    for (int left = 3; left > 0 && errnum == ENOENT; --left) {  // it was stopped meanwhile, and its file removed
        const result<void> written = detail::write_new_spool_file(request, temporary, text + "\n");
        if (!written) return written.error();
        errnum = detail::rename_to_new(request, temporary, request, name);
    }
    if (errnum == 0 && detail::sync_descriptor(request)) return id;
    if (errnum == 0)
        return detail::spool_error(cat({"write request/: the job ", detail::printable(id),
                                        " is there and will run, do not repeat it; a power failure may lose it"}),
                                   errno, errc::system);
    ::unlinkat(request, temporary.c_str(), 0);
    if (errnum == EEXIST) return spool_usage_error({"the name ", detail::printable(name), " is taken"}, errnum);
    return detail::spool_error(cat({"put a job into ", detail::printable(directory, 300)}), errnum, errc::system);
}
}  // namespace v0_1_0
}  // namespace ojs
