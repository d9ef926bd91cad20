// spool_claimer: takes a file of request/ into a worker's hands, or leaves it as it was.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "intake.ipp"
#include "recovery.ipp"

namespace ojs::detail {

// As many as jobs in hand, few. Thread-safe.
class spool_claims {
  public:
    void add(const ref<spool_claim>& claim) {
        const unique_lock held(mutex_);
        all_.push_back(claim);
    }
    // By the job's id, or the file's name: neither is claimed twice at a time.
    ref<spool_claim> find(const std::string& id, const std::string& name = {}) {
        const unique_lock held(mutex_);
        for (const ref<spool_claim>& each : all_)
            if (each->job_id == id || each->name == name) return each;
        return {};
    }
    void remove(const spool_claim& claim) {
        const unique_lock held(mutex_);
        for (std::size_t i = 0; i < all_.size(); ++i)
            if (all_[i].get() == &claim) return all_.remove(i);
    }

  private:
    mutex mutex_;
    array<ref<spool_claim>> all_;
};

// For one FETCH at a time.
class spool_claimer {
  public:
    spool_claimer(const spool_options& options, spool_waiting& waiting, spool_teller& teller)
        : options_(options), waiting_(waiting), teller_(teller) {}

    // The claim; none where someone else was quicker, or where the file is not to be had and is put off.
    result<ref<spool_claim>> claim(const spool_folders& spool, const ref<spool_owner>& owner,
                                   spool_candidate& found) {
        const int from = spool.request();
        const int to = owner->folder();
        const ref<spool_claim> claim = make_claim(owner, found);
        const int marked =
            mark(spool, *claim);  // first, so that whoever finds the file here knows that it was claimed
        if (marked != 0) return not_claimed(to, found.name, marked);
        const int failed = rename_to_claim(from, found.name, to);
        if (failed != 0) {
            unmark(to, found.name);
            return not_claimed(to, found.name, failed);
        }
        if (!is_what_was_examined(from, to, found)) {
            const result<void> back = put_back(spool, {owner, found.name});
            if (!back) return back.error();
            return ref<spool_claim>();
        }
        for (const int folder : {from, spool.end(spool_end::failed)})
            if (!found.sidecar.empty()) remove_sidecar(folder, found.name, found.about);
        return claim;
    }

    void put_off_refused(const std::string& name, const std::string& why) {
        waiting_.put_off(name, look_rarely);
        teller_.tell_once(spool_event_kind::refused, name, why);
    }

    // What was claimed by mistake must not stay in our hands, whatever is wrong just now.
    bool is_stray(const std::string& name) const {
        const auto is_it = [&](const stray& each) { return each.name == name; };
        return std::any_of(strays_.begin(), strays_.end(), is_it);
    }
    void put_back_strays(const spool_folders& spool) {
        const array<stray> again = detail::exchange(strays_, {});
        for (const stray& each : again) static_cast<void>(put_back(spool, each));
    }

  private:
    struct stray {
        ref<spool_owner> owner;
        std::string name;
    };

    ref<spool_claim> make_claim(const ref<spool_owner>& owner, spool_candidate& found) const {
        ref<spool_claim> out = make_ref<spool_claim>();
        out->owner = owner;
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

    // 0 or the errno.
    int mark(const spool_folders& spool, spool_claim& claim) const {
        const int to = claim.owner->folder();
        if (!options_.any_file) {
            claim.is_marked = true;
            return make_mark(to, claim.name);
        }
        const result<void> written = write_owned({spool, to, claim.name}, claim.owner->new_temporary_name(),
                                                 to, sidecar_name(claim.name), claim.text);
        return written ? 0 : written.error().sys_errno;
    }
    void unmark(int folder, const std::string& name) const {
        ::unlinkat(folder, (options_.any_file ? sidecar_name(name) : mark_name(name)).c_str(), 0);
    }

    result<ref<spool_claim>> not_claimed(int folder, const std::string& name, int failed) {
        if (failed == ENOENT && !folder_is_gone(folder)) return ref<spool_claim>();
        const bool in_the_way =
            failed == EEXIST || failed == ENOTEMPTY || failed == EISDIR || failed == ENOTDIR;
        const bool fixed = failed == EPERM || failed == EBUSY;  // it may be immutable
        const error why = spool_error(cat({"claim request/", printable(name)}), failed);
        if (!in_the_way && !fixed) return why;
        put_off_refused(name, fixed ? why.text : "something of its name was put beside our claimed files");
        return ref<spool_claim>();
    }

    // Since the look somebody may have replaced the file, written to it, or run it (another sidecar).
    static bool is_what_was_examined(int request, int folder, const spool_candidate& found) {
        struct stat about {};
        if (!stat_at(folder, found.name, about)) return true;  // settling will see
        if (about.st_dev != found.about.st_dev || identity_of(about) != identity_of(found.about))
            return false;
        if (!found.opaque || !found.job.malformed.empty()) return true;  // all is in the file itself
        const std::string sidecar = read_sidecar(request, found.name, about);
        return sidecar.empty() || sidecar == found.sidecar;
    }

    result<void> put_back(const spool_folders& spool, const stray& one) {
        const claimed_file file{spool, one.owner->folder(), one.name};
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
        if (!options_.any_file || !stat_at(file.owner, file.name, about))
            return move_to_end(file, spool_end::request);
        return return_with_sidecar(file, read_sidecar(file.spool.request(), file.name, about), temporary);
    }

    const spool_options& options_;
    spool_waiting& waiting_;
    spool_teller& teller_;
    array<stray> strays_;
};

}  // namespace ojs::detail
