// spool_claimer: claims a file of request/, or leaves it unchanged.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "recovery.ipp"
#include "requests.ipp"

namespace ojs::detail {
// The jobs in flight. Thread-safe.
class spool_claims {
  public:
    void add(const ref<spool_claim>& claim) {
        const unique_lock held(mutex_);
        all_.push_back(claim);
    }
    // Neither an id nor a file name is claimed twice at a time.
    ref<spool_claim> find(const std::string& id, const std::string& name = {}) {
        const unique_lock held(mutex_);
        for (const ref<spool_claim>& claim : all_)
            if (claim->job_id == id || claim->name == name) return claim;
        return {};
    }
    void remove(const spool_claim& claim) {
        const unique_lock held(mutex_);
        for (std::size_t i = 0; i < all_.size(); ++i)
            if (all_[i].get() == &claim) return static_cast<void>(all_.remove(i));
    }

  private:
    mutex mutex_;
    array<ref<spool_claim>> all_;
};

// Used by one FETCH at a time.
class spool_claimer {
  public:
    spool_claimer(const spool_options& options, spool_requests& requests, spool_event_reporter& reporter)
        : options_(options), requests_(requests), reporter_(reporter) {}

    // Empty: another worker was quicker, or the file cannot be claimed and is postponed.
    result<ref<spool_claim>> claim(const spool_folders& spool, const ref<spool_owner>& owner, spool_candidate& found) {
        const int from = spool.request();
        const int to = owner->folder();
        ref<spool_claim> claim = make_claim(owner, found);
        const int marked =
            create_mark_or_sidecar(spool, *claim);  // first, so that recovery recognises the file as claimed
        if (marked != 0) return handle_claim_error(to, found.name, marked);
        const int errnum = rename_to_claim(from, found.name, to);
        if (errnum != 0) {
            unmark(to, found.name);
            return handle_claim_error(to, found.name, errnum);
        }
        if (!is_unchanged(from, to, found)) {
            const result<void> back = put_back(spool, {owner, found.name});
            if (!back) return back.error();
            return ref<spool_claim>();
        }
        for (const int folder : {from, spool.folder(spool_target::failed)})
            if (!found.sidecar.empty()) remove_sidecar(folder, found.name, found.info);
        return claim;
    }

    void postpone_refused(const std::string& name, const std::string& reason) {
        requests_.postpone(name, slow_check_interval);
        reporter_.report_once(spool_event_kind::refused, name, reason);
    }

    // A stray was claimed by mistake and could not be returned yet.
    bool is_stray(const std::string& name) const {
        const auto has_name = [&](const stray& candidate) { return candidate.name == name; };
        return std::any_of(strays_.begin(), strays_.end(), has_name);
    }
    void put_back_strays(const spool_folders& spool) {
        const array<stray> strays = detail::exchange(strays_, {});
        for (const stray& file : strays) static_cast<void>(put_back(spool, file));
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
        out->job_id = found.job.id;
        out->is_opaque = found.is_opaque;
        std::int64_t runs = 0;
        read_if_integer(raw_member(found.is_opaque ? found.sidecar : found.text, "attempt"), runs);
        out->attempt = runs + 1;
        out->max_attempts = found.job.max_attempts > 0 ? found.job.max_attempts
                                                       : static_cast<std::int64_t>(options_.retry_delays.size()) + 1;
        out->text = found.is_opaque
                        ? edit_json(found.sidecar.empty() ? "{}" : found.sidecar,
                                    {{"attempt", cat({out->attempt})}, {"settled", ""}, {"state", ""}, {"spool", ""}})
                        : std::move(found.text);
        return out;
    }

    // 0 or the errno.
    int create_mark_or_sidecar(const spool_folders& spool, spool_claim& claim) const {
        const int to = claim.owner->folder();
        if (!options_.accept_any_file) {
            claim.is_marked = true;
            return create_mark(to, claim.name);
        }
        const result<void> written = replace_file({spool, to, claim.name}, claim.owner->new_temporary_name(), to,
                                                  sidecar_name(claim.name), claim.text);
        return written ? 0 : written.error().sys_errno;
    }
    void unmark(int folder, const std::string& name) const {
        ::unlinkat(folder, (options_.accept_any_file ? sidecar_name(name) : mark_name(name)).c_str(), 0);
    }

    // Empty if another worker was faster (ENOENT), or the file cannot be claimed now and is postponed. Else the error.
    result<ref<spool_claim>> handle_claim_error(int folder, const std::string& name, int errnum) {
        if (errnum == ENOENT && !is_folder_removed(folder)) return ref<spool_claim>();
        const bool taken = errnum == EEXIST || errnum == ENOTEMPTY || errnum == EISDIR || errnum == ENOTDIR;
        const bool may_be_immutable = errnum == EPERM || errnum == EBUSY || errnum == ENAMETOOLONG;
        const error failure = spool_error(cat({"claim request/", printable(name)}), errnum);
        if (!taken && !may_be_immutable) return failure;
        postpone_refused(
            name, may_be_immutable ? failure.text : "the worker's folder in processing/ has a file of this name");
        return ref<spool_claim>();
    }

    // Another process may have replaced the file, written to it, or run it (a new sidecar).
    static bool is_unchanged(int request, int folder, const spool_candidate& found) {
        struct stat info {};
        if (!stat_at(folder, found.name, info)) return true;  // settling reports it as gone
        if (info.st_dev != found.info.st_dev || identity_of(info) != identity_of(found.info)) return false;
        if (!found.is_opaque || !found.job.malformed.empty()) return true;  // has no sidecar
        const std::string sidecar = read_sidecar(request, found.name, info);
        return sidecar.empty() || sidecar == found.sidecar;
    }

    result<void> put_back(const spool_folders& spool, const stray& claimed) {
        const claimed_file file{spool, claimed.owner->folder(), claimed.name};
        result<void> moved = move_back(file, claimed.owner->new_temporary_name());
        if (moved || moved.error().sys_errno == ENOENT) {
            unmark(file.owner, claimed.name);
            return {};
        }
        strays_.push_back(claimed);
        return moved;
    }
    result<void> move_back(const claimed_file& file, const std::string& temporary) const {
        struct stat info {};
        if (!options_.accept_any_file || !stat_at(file.owner, file.name, info))
            return move_to(file, spool_target::request);
        return return_with_sidecar(file, read_sidecar(file.spool.request(), file.name, info), temporary, file.name);
    }

    const spool_options& options_;
    spool_requests& requests_;
    spool_event_reporter& reporter_;
    array<stray> strays_;
};
}  // namespace ojs::detail
