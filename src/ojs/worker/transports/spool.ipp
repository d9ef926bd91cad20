#pragma once

#include "../../base/detail/array.hpp"
#include "../../base/detail/exchange.hpp"
#include "spool.hpp"
#include "spool/intake.ipp"
#include "spool/recovery.ipp"
#include "spool/watch.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// The directories held open; replaced as a whole where they were taken away and made anew.
class spool_place : public ref_counted {
  public:
    explicit spool_place(spool_folders opened) : folders(std::move(opened)) {}

    bool is_gone() const noexcept {
        struct stat there {};
        struct stat here {};
        if (::stat(folders.path.c_str(), &there) != 0 || ::fstat(folders.root.get(), &here) != 0) return true;
        return !same_file(there, here) || folder_is_gone(folders.request.get()) ||
               folder_is_gone(folders.processing.get()) || folder_is_gone(folders.done.get()) ||
               folder_is_gone(folders.failed.get());
    }

    const spool_folders folders;
};

class spool_body : public ref_counted {
  public:
    explicit spool_body(spool_options options)
        : options_(std::move(options)),
          examiner_(options_),
          teller_(options_),
          recovery_(options_, teller_) {}

    result<void> open() {
        const lock_guard fetching(fetch_mutex_);
        return reopen(true);
    }

    // ---- FETCH ----

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) {
        const lock_guard fetching(fetch_mutex_);
        const result<void> usable = keep_open();
        if (!usable) return usable.error();
        put_back_strays();
        recover_when_due(deadline);  // for others, if not for us
        if (request.still_wanted && !request.still_wanted()) return no_longer_wanted();
        look_at_other_queues(request.worker->queues);
        const int failed = waiting_.update(place_->folders.request.get());
        if (failed != 0) return spool_error("read request/", failed);
        std::vector<job> claimed;
        const result<void> taken = claim_jobs(request, deadline, claimed);
        watcher_.looked(waiting_.next_due());
        if (!taken) next_check_ = time_point::min();  // perhaps a folder is gone
        if (!taken && claimed.empty()) return taken.error();
        return claimed;
    }

    // A queue that was not asked for last time may be now. With fetch_mutex_ held.
    void look_at_other_queues(const std::vector<std::string>& queues) {
        if (queues == queues_) return;
        if (!queues_.empty()) waiting_.look_at_all_again();
        queues_ = queues;
    }

    // ---- settling ----

    result<settled> ack(const ack_request& request) {
        const ref<spool_claim> claim = find_claim(request.job_id);
        if (!claim) return settled::gone;
        const lock_guard held(claim->settling);
        return settle(*claim, completed_run(*claim, request.result_json));
    }

    result<settled> fail(const fail_request& request) {
        const ref<spool_claim> claim = find_claim(request.job_id);
        if (!claim) return settled::gone;
        const lock_guard held(claim->settling);
        const bool kept = request.checkpoint_json.empty() || !has_room(*claim, request.checkpoint_json);
        const std::string checkpoint = kept ? kept_checkpoint(*claim) : request.checkpoint_json;
        return settle(*claim, request.requeue ? requeued(*claim, checkpoint)
                                              : failed_run(options_, *claim, request.error, checkpoint));
    }

    result<settled> save_checkpoint(const checkpoint_request& request) {
        if (!is_json(request.state_json))
            return error{errc::invalid_argument, 0, "spool: the checkpoint is not JSON"};
        const ref<spool_claim> claim = find_claim(request.job_id);
        if (!claim) return settled::gone;
        const lock_guard held(claim->settling);
        if (claim->stage != settle_stage::open) return settled::gone;
        if (!has_room(*claim, request.state_json))
            return error{errc::rejected, 0, "spool: the checkpoint is too large for the job's file", 413};
        const ref<spool_place> place = current_place();
        const claimed_file file{place->folders, claim->owner->folder(), claim->name};
        const result<void> written = write_owned(file, claim->owner->new_temporary_name(), file.owner,
                                                 checkpoint_name(claim->name), request.state_json);
        if (!written) return written.error();
        claim->has_checkpoint = true;
        return settled::accepted;
    }

    result<std::string> load_checkpoint(const std::string& job_id) {
        const ref<spool_claim> claim = find_claim(job_id);
        if (!claim) return std::string();
        const lock_guard held(claim->settling);
        std::string kept = kept_checkpoint(*claim);
        if (!kept.empty()) return kept;
        const std::string_view meta =
            claim->opaque ? std::string_view(claim->text) : raw_member(claim->text, "meta");
        return std::string(raw_member(meta, "checkpoint"));
    }

    heartbeat_answer heartbeat(const heartbeat_request& request) {
        heartbeat_answer out;
        for (const std::string& id : request.active_jobs) {
            if (find_claim(id)) out.jobs_extended.push_back(id);
        }
        return out;
    }

    void when_work_may_wait(function<void()> tell) {
        watcher_.stop();
        if (tell) watcher_.start(std::move(tell), waiting_.watch_fd());
    }

    void close() {
        watcher_.stop();
        const lock_guard held(mutex_);
        held_.clear();
        owner_ = ref<spool_owner>();
    }

  private:
    static error no_longer_wanted() { return {errc::cancelled, 0, "no longer wanted"}; }

    // ---- directories ----

    ref<spool_place> current_place() {
        const lock_guard held(mutex_);
        return place_;
    }

    // With fetch_mutex_ held.
    result<void> reopen(bool make_root) {
        result<spool_folders> opened =
            open_spool_folders(place_ ? place_->folders.path : options_.directory, make_root);
        if (!opened) return opened.error();
        ref<spool_place> place = make_ref<spool_place>(std::move(*opened));
        result<ref<spool_owner>> owner = make_owner(place->folders);
        if (!owner) return owner.error();
        waiting_.watch(place->folders.path, owner_ && !owner_->is_ours());
        next_recovery_ = time_point::min();
        const lock_guard held(mutex_);
        place_ = std::move(place);
        owner_ = std::move(*owner);
        return {};
    }

    result<void> keep_open() {
        if (!place_) return error{errc::unavailable, 0, "spool: the directory is not open"};
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
            fault.empty() ? examiner_.examine(place_->folders, name, request.worker->queues, waiting_, found)
                          : refuse(fault);
        switch (look.what) {
            case readiness::ready: break;
            case readiness::later: waiting_.put_off(name, look.look_again); return {};
            case readiness::refused: put_off_refused(name, look.why); return {};
            case readiness::gone: waiting_.forget(name); return {};
            case readiness::failed: return look.failure;
        }
        if (is_claimed(found) || is_stray(name)) {
            waiting_.put_off(name, look_soon);
            return {};
        }
        if (request.still_wanted && !request.still_wanted()) return no_longer_wanted();
        const result<void> claimed = claim(found, out);
        if (claimed) waiting_.forget(name);
        return claimed;
    }

    void put_off_refused(const std::string& name, const std::string& why) {
        waiting_.put_off(name, look_rarely);
        teller_.tell_once(spool_event::kind::refused, name, why);
    }

    // The same name or id must not be in our hands twice: each is how a job is found again.
    bool is_claimed(const spool_candidate& found) {
        const lock_guard held(mutex_);
        for (const ref<spool_claim>& each : held_) {
            if (each->job_id == found.job.id || each->name == found.name) return true;
        }
        return false;
    }

    // Nothing is added to `out` where someone else was quicker.
    result<void> claim(spool_candidate& found, std::vector<job>& out) {
        const int from = place_->folders.request.get();
        const int to = owner_->folder();
        const ref<spool_claim> claim = make_claim(found);
        const int marked =
            mark(*claim);  // first, so that whoever finds the file here knows that it was claimed
        if (marked != 0) return not_claimed(found.name, marked);
        const int failed = rename_to_claim(from, found.name, to);
        if (failed != 0) {
            unmark(to, found.name);
            return not_claimed(found.name, failed);
        }
        if (!is_what_was_examined(from, to, found)) return put_back({owner_, found.name});
        for (const int folder : {from, place_->folders.failed.get()})
            if (!found.sidecar.empty()) remove_sidecar(folder, found.name, found.about);
        hand_out(found, claim, out);
        return {};
    }

    // 0 or the errno.
    int mark(spool_claim& claim) {
        const int to = claim.owner->folder();
        if (!options_.any_file) {
            claim.is_marked = true;
            return make_mark(to, claim.name);
        }
        const result<void> written =
            write_owned({place_->folders, to, claim.name}, claim.owner->new_temporary_name(), to,
                        sidecar_name(claim.name), claim.text);
        return written ? 0 : written.error().sys_errno;
    }
    void unmark(int folder, const std::string& name) const {
        ::unlinkat(folder, (options_.any_file ? sidecar_name(name) : mark_name(name)).c_str(), 0);
    }

    result<void> not_claimed(const std::string& name, int failed) {
        if (failed == ENOENT && !folder_is_gone(owner_->folder())) return {};
        const bool in_the_way =
            failed == EEXIST || failed == ENOTEMPTY || failed == EISDIR || failed == ENOTDIR;
        const error why = spool_error(cat({"claim request/", printable(name)}), failed);
        if (in_the_way) put_off_refused(name, "something of its name was put beside our claimed files");
        if (failed == EPERM || failed == EBUSY) put_off_refused(name, why.text);  // it may be immutable
        return in_the_way || failed == EPERM || failed == EBUSY ? result<void>() : result<void>(why);
    }

    // Between the look and the claim somebody may have put another file of that name there, or written to it, or run it:
    // then it is back, with another sidecar.
    static bool is_what_was_examined(int request, int folder, const spool_candidate& found) {
        struct stat about {};
        if (::fstatat(folder, found.name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0)
            return true;  // settling will see
        if (about.st_dev != found.about.st_dev || identity_of(about) != identity_of(found.about))
            return false;
        if (!found.opaque || !found.job.malformed.empty()) return true;  // all is in the file itself
        const std::string sidecar = read_sidecar(request, found.name, about);
        return sidecar.empty() || sidecar == found.sidecar;
    }

    // What was claimed by mistake must not stay in our hands, whatever is wrong just now.
    struct stray {
        ref<spool_owner> owner;
        std::string name;
    };
    result<void> put_back(const stray& one) {
        const claimed_file file{place_->folders, one.owner->folder(), one.name};
        const result<void> moved = move_back(file, one.owner->new_temporary_name());
        if (moved || moved.error().sys_errno == ENOENT) {
            unmark(file.owner, one.name);
            return {};
        }
        strays_.push_back(one);
        return moved;
    }
    result<void> move_back(const claimed_file& file, const std::string& temporary) const {
        struct stat about {};
        if (!options_.any_file || ::fstatat(file.owner, file.name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0)
            return move_to_end(file, spool_end::request);
        return return_with_sidecar(file, read_sidecar(file.spool.request.get(), file.name, about), temporary);
    }
    bool is_stray(const std::string& name) const {
        for (const stray& each : strays_) {
            if (each.name == name) return true;
        }
        return false;
    }
    void put_back_strays() {
        const array<stray> again = detail::exchange(strays_, {});
        for (const stray& each : again) static_cast<void>(put_back(each));
    }

    ref<spool_claim> make_claim(spool_candidate& found) const {
        ref<spool_claim> out = make_ref<spool_claim>();
        out->owner = owner_;
        out->name = found.name;
        out->opaque = found.opaque;
        std::int64_t runs = 0;
        read_integer(raw_member(found.opaque ? found.sidecar : found.text, "attempt"), runs);
        out->attempt = runs + 1;
        out->max_attempts = found.job.max_attempts > 0
                                ? found.job.max_attempts
                                : static_cast<std::int64_t>(options_.retry_delays.size()) + 1;
        out->text =
            found.opaque
                ? edited_json(
                      found.sidecar.empty() ? "{}" : found.sidecar,
                      {{"attempt", cat({out->attempt})}, {"settled", ""}, {"state", ""}, {"spool", ""}})
                : std::move(found.text);
        return out;
    }

    void hand_out(spool_candidate& found, const ref<spool_claim>& claim, std::vector<job>& out) {
        ojs::job& job = found.job;
        job.attempt = claim->attempt;
        job.max_attempts = claim->max_attempts;
        const std::string path = cat({place_->folders.path, "/processing/", owner_->name, "/", found.name});
        array<json_edit> additions = {{"spool_path", json_quote(path)}};
        if (claim->opaque)
            additions.push_back({"checkpoint", std::string(raw_member(claim->text, "checkpoint"))});
        job.meta_json = edited_json(job.meta_json, additions);
        {
            const lock_guard held(mutex_);
            claim->job_id = job.id;
            held_.push_back(claim);
        }
        out.push_back(std::move(job));
    }

    // ---- settling ----

    ref<spool_claim> find_claim(const std::string& id) {
        const lock_guard held(mutex_);
        for (const ref<spool_claim>& each : held_) {
            if (each->job_id == id) return each;
        }
        return {};
    }

    // What is written with it must be read again: the job's file, or the sidecar, has a limit.
    static bool has_room(const spool_claim& claim, const std::string& checkpoint) noexcept {
        return claim.text.size() + checkpoint.size() + room_for_error <= longest_spool_job;
    }

    static std::string kept_checkpoint(const spool_claim& claim) {
        return claim.has_checkpoint ? read_own_file(claim.owner->folder(), checkpoint_name(claim.name))
                                    : std::string();
    }

    result<settled> settle(spool_claim& claim, spool_verdict verdict) {
        const ref<spool_place> place = current_place();
        const claimed_file file{place->folders, claim.owner->folder(), claim.name};
        const result<settled> done =
            settle_claim(file, claim, std::move(verdict), claim.owner->new_temporary_name());
        if (done) let_go(claim);
        return done;
    }
    void let_go(const spool_claim& claim) {
        const lock_guard held(mutex_);
        for (ref<spool_claim>& each : held_) {
            if (each.get() != &claim) continue;
            detail::swap(each, held_.back());
            return held_.pop_back();
        }
    }

    // ---- dead workers ----

    void recover_when_due(time_point deadline) {
        const time_point now = steady_clock::now();
        if (now < next_recovery_) return;
        next_recovery_ = now + options_.recovery_interval;
        recovery_.recover_all(place_->folders, owner_->name, deadline);
    }

    const spool_options options_;
    const spool_examiner examiner_;
    spool_teller teller_;
    spool_recovery recovery_;
    mutex fetch_mutex_;  // one FETCH at a time; held before mutex_
    spool_waiting waiting_;
    std::vector<std::string> queues_;  // of the last FETCH
    array<stray> strays_;
    time_point next_recovery_ = time_point::min();
    time_point next_check_ = time_point::min();  // whether the folders are still there
    mutex mutex_;  // guards place_ and owner_, which only a FETCH changes, and what is held
    ref<spool_place> place_;
    ref<spool_owner> owner_;
    array<ref<spool_claim>> held_;  // as many as jobs in hand, few
    spool_watcher watcher_;
};

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

OJS_SHUTDOWN_INLINE spool_transport::spool_transport(spool_options options)
    : body_(detail::make_ref<detail::spool_body>(std::move(options))) {}
OJS_SHUTDOWN_INLINE spool_transport::~spool_transport() {
    body_->close();
}

OJS_SHUTDOWN_INLINE result<void> spool_transport::open() {
    return body_->open();
}
OJS_SHUTDOWN_INLINE result<std::vector<job>> spool_transport::fetch(const fetch_request& request,
                                                                    time_point deadline) {
    return body_->fetch(request, deadline);
}
OJS_SHUTDOWN_INLINE result<settled> spool_transport::ack(const ack_request& request,
                                                         time_point /*deadline*/) {
    return body_->ack(request);
}
OJS_SHUTDOWN_INLINE result<settled> spool_transport::fail(const fail_request& request,
                                                          time_point /*deadline*/) {
    return body_->fail(request);
}
OJS_SHUTDOWN_INLINE result<heartbeat_answer> spool_transport::heartbeat(const heartbeat_request& request,
                                                                        time_point /*deadline*/) {
    return body_->heartbeat(request);
}
OJS_SHUTDOWN_INLINE result<settled> spool_transport::save_checkpoint(const checkpoint_request& request,
                                                                     time_point /*deadline*/) {
    return body_->save_checkpoint(request);
}
OJS_SHUTDOWN_INLINE result<std::string> spool_transport::load_checkpoint(const std::string& job_id,
                                                                         time_point /*deadline*/) {
    return body_->load_checkpoint(job_id);
}
OJS_SHUTDOWN_INLINE void spool_transport::when_work_may_wait(function<void()> tell) {
    body_->when_work_may_wait(std::move(tell));
}

OJS_SHUTDOWN_INLINE result<std::string> spool_enqueue(const std::string& directory, const spool_job& job) {
    result<detail::spool_folders> opened = detail::open_spool_folders(directory, true);
    if (!opened) return opened.error();
    if (job.type.empty() || job.queue.empty() || job.max_attempts < 0)
        return error{errc::invalid_argument, 0,
                     "spool: a job needs a type, a queue and no negative max_attempts"};
    const std::string fault = detail::args_fault(job.args_json);
    if (!fault.empty()) return error{errc::invalid_argument, 0, detail::cat({"spool: ", fault})};
    const std::string stamp = detail::cat({detail::time_name("5-"), ".json"});
    const std::string name = job.name.empty() ? stamp : job.name;
    const std::string bad_name = detail::spool_name_fault(name);
    if (!bad_name.empty()) return error{errc::invalid_argument, 0, detail::cat({"spool: ", bad_name})};
    const std::string id = detail::id_from_name(name);
    const std::string text = detail::edited_json(
        "{}", {{"id", detail::json_quote(id)},
               {"type", detail::json_quote(job.type)},
               {"queue", detail::json_quote(job.queue)},
               {"args", job.args_json},
               {"max_attempts", job.max_attempts > 0 ? detail::cat({job.max_attempts}) : ""},
               {"created_at", detail::json_quote(detail::utc_timestamp())}});
    constexpr std::size_t longest = detail::longest_spool_job - detail::room_for_error;
    if (text.size() >= longest)
        return error{errc::invalid_argument, 0, detail::cat({"spool: a job is at most ", longest, " bytes"})};
    const std::string temporary = detail::cat({".new.", detail::hex_text(detail::random_number())});
    const int request = opened->request.get();
    const result<void> written = detail::write_new_file(request, temporary, text + "\n");
    if (!written) return written.error();
    const int failed = detail::rename_to_new(request, temporary, request, name);
    if (failed == 0 && detail::sync_descriptor(request)) return id;
    const int why = failed != 0 ? failed : errno;
    if (failed != 0) ::unlinkat(request, temporary.c_str(), 0);
    if (why == EEXIST)
        return error{errc::invalid_argument, why,
                     detail::cat({"spool: the name ", detail::printable(name), " is taken"})};
    return detail::spool_error(detail::cat({"put a job into ", detail::printable(directory, 300)}), why,
                               errc::system);
}

}  // namespace v0_1_0
}  // namespace ojs
