// Recovers the jobs of dead workers.
#pragma once

#include <set>

#include "settle.ipp"

namespace ojs::detail {
// `refused`: a file in request/ that stays there. `recovered`: a dead worker's job was requeued or settled.
// `owner_unknown`: a folder in processing/ stays. `result_dropped`: the disk is full.
enum class spool_event_kind { refused, recovered, owner_unknown, result_dropped };
inline constexpr const char* spool_messages[] = {
    "cannot claim the spool file; it stays in request/", "a dead worker's job was recovered",
    "jobs of another worker stay in processing/: cannot tell whether that worker is alive",
    "a completed job is settled without its result"};

// Reports events; repeated ones once. Used by one thread at a time.
class spool_event_reporter {
  public:
    explicit spool_event_reporter(const spool_options& options) : options_(options) {}

    void report(spool_event_kind kind, const std::string& name, const std::string& reason) const {
        if (!options_.log) return;
        options_.log({kind == spool_event_kind::recovered ? log_level::info : log_level::warn,
                      spool_messages[static_cast<int>(kind)],
                      {field("file", printable(name, 300)), field("reason", reason)},
                      {},
                      "spool"});
    }
    void report_once(spool_event_kind kind, const std::string& name, const std::string& reason) {
        if (reported_.size() > 10000) reported_.clear();
        std::string key = cat({static_cast<int>(kind), name, "\n", reason});
        if (reported_.insert(std::move(key)).second) report(kind, name, reason);
    }

  private:
    const spool_options& options_;
    std::set<std::string> reported_;
};

// Used by one thread at a time; several processes may recover at once, as each dead owner is locked meanwhile.
class spool_recovery {
  public:
    spool_recovery(const spool_options& options, spool_event_reporter& reporter)
        : options_(options), reporter_(reporter) {}

    // Recovers all of processing/ except `own_name`. The next call continues after a deadline.
    void recover_all(const spool_folders& spool, const std::string& own_name, time_point deadline) {
        std::vector<std::string> names;
        if (list_folder(spool.processing.get(), names) != 0) return;
        for (const std::string& name : names)
            if (name != own_name && steady_clock::now() < deadline) recover_owner(spool, name);
    }

  private:
    static constexpr const char* never_claimed = "never claimed, but in a dead worker's folder; moved to failed/";
    static constexpr const char* not_removed =
        "its worker is dead; a file in the folder is not a job or cannot be moved: move that file by hand";
    static constexpr const char* died_while_running = "the worker died while running the job";
    static constexpr const char* settled_after_death =
        "the worker died while settling the job; the settlement is completed";

    void recover_owner(const spool_folders& spool, const std::string& name) {
        const owner_check owner = lock_if_dead(spool, name);
        if (owner.state == owner_state::unknown)
            reporter_.report_once(spool_event_kind::owner_unknown, name, owner.reason);
        if (owner.state != owner_state::dead) return;
        const int folder = owner.folder.get();
        std::vector<std::string> names;
        if (list_folder(folder, names) != 0) return;
        bool all_done = true;
        for (const std::string& entry : names) all_done = recover_entry(spool, folder, entry) && all_done;
        for (const std::string& entry : names) all_done = remove_leftover(spool, folder, entry) && all_done;
        if (!all_done) {  // retried in the next round
            reporter_.report_once(spool_event_kind::owner_unknown, name, not_removed);
            return;
        }
        ::unlinkat(folder, owner_file_name, 0);
        ::unlinkat(spool.processing.get(), name.c_str(), AT_REMOVEDIR);
    }

    // Handles a decision or a job; a file that was never claimed is no job. False: it is still there.
    bool recover_entry(const spool_folders& spool, int folder, const std::string& entry) {
        for (const spool_target target : spool_targets) {
            const std::string prefix = settled_name(target, "");
            if (entry.compare(0, prefix.size(), prefix) != 0) continue;
            const std::string name = entry.substr(prefix.size());
            if (!was_claimed(folder, name)) return false;
            const claimed_file file{spool, folder, name};
            result<void> done = apply_decision(file, target);
            if (done) done = sync_target(file, target);
            return report_recovered(name, done, settled_after_death);
        }
        if (entry.front() == '.') return true;
        const claimed_file file{spool, folder, entry};
        if (!was_claimed(folder, entry)) return fail_stray(file);
        return has_decision(folder, entry) || recover_job(file);
    }

    static bool has_decision(int folder, const std::string& name) {
        const auto decides = [&](spool_target target) { return exists_at(folder, settled_name(target, name)); };
        return std::any_of(std::begin(spool_targets), std::end(spool_targets), decides);
    }

    // Removes files of settled jobs. False: a file is left that may be of value.
    static bool remove_leftover(const spool_folders& spool, int folder, const std::string& entry) {
        if (entry.front() != '.' || entry == owner_file_name || !exists_at(folder, entry)) return true;
        const std::string name = entry.substr(entry.find('.', 1) + 1);
        const bool is_sidecar = entry == sidecar_name(name);
        if (!is_temporary(entry)) {
            const bool belongs_to_job = is_sidecar || entry == mark_name(name);
            if (!belongs_to_job || exists_at(folder, name) || has_decision(folder, name)) return false;
        }
        std::string target;
        if (is_sidecar) read_json_string(raw_member(read_own_file(folder, entry), "settled"), target);
        // Its worker died between moving the file and the sidecar.
        if (target == "failed") return fail_with_sidecar({spool, folder, name}).has_value();
        return ::unlinkat(folder, entry.c_str(), 0) == 0 || errno == ENOENT;
    }

    bool recover_job(const claimed_file& file) {
        const std::string& name = file.name;
        spool_file found = open_spool_file(file.owner, name);
        if (found.sys_errno != 0 && found.refused.empty()) return found.sys_errno == ENOENT;
        spool_claim claim;
        claim.name = name;
        claim.job_id = options_.accept_any_file ? name : id_from_name(name);
        claim.is_marked = true;
        claim.max_attempts = static_cast<std::int64_t>(options_.retry_delays.size()) + 1;
        spool_verdict verdict;
        verdict.target = spool_target::request;
        job_error failure = {"worker_lost", died_while_running, true, "{}"};
        bool counts_as_run = true;
        if (options_.accept_any_file) {
            counts_as_run = read_orphan_sidecar(file, found.info, claim, verdict);
        } else if (!found.refused.empty()) {
            claim.is_opaque = true;  // replaced by something that no worker will claim
            counts_as_run = false;
        } else if (!read_orphan_envelope(found, file, claim, failure)) {
            return false;
        }
        if (counts_as_run) verdict = failure_verdict(options_, claim, failure);
        const bool decided = claim.stage == settle_stage::decided;
        const result<settle_result> done = settle_claim(file, claim, std::move(verdict), ".tmp.recovery");
        return report_recovered(name, done ? result<void>() : result<void>(done.error()),
                                decided ? settled_after_death : died_while_running);
    }

    bool fail_stray(const claimed_file& file) {
        const result<void> moved = move_to(file, spool_target::failed);
        if (moved) reporter_.report(spool_event_kind::refused, file.name, never_claimed);
        return moved.has_value();
    }

    // Takes a sidecar's text into the claim: its run count, and the decision if its dead worker had made one.
    static void fill_from_sidecar(std::string text, spool_claim& claim) {
        claim.is_opaque = true;
        claim.text = std::move(text);
        read_if_integer(raw_member(claim.text, "attempt"), claim.attempt);
        std::string target;
        if (!read_json_string(raw_member(claim.text, "settled"), target)) return;
        claim.stage = settle_stage::decided;
        claim.decision = {target == "failed" ? spool_target::failed : spool_target::request, claim.text};
    }

    // False: it returns to request/ uncounted, with the verdict's sidecar if any.
    static bool read_orphan_sidecar(const claimed_file& file, const struct stat& info, spool_claim& claim,
                                    spool_verdict& verdict) {
        claim.is_opaque = true;
        // A sidecar in request/ of this very file is newer: no new run has begun, or it has been returned.
        verdict.text = read_sidecar(file.spool.request(), file.name, info);
        if (!verdict.text.empty()) return false;
        std::string sidecar = read_own_file(file.owner, sidecar_name(file.name));
        if (!is_json(sidecar)) return false;
        fill_from_sidecar(std::move(sidecar), claim);
        return true;
    }

    // A malformed job fails without another run: it may have killed its worker. False: retry later.
    static bool read_orphan_envelope(const spool_file& found, const claimed_file& file, spool_claim& claim,
                                     job_error& failure) {
        const auto size = static_cast<std::uint64_t>(found.info.st_size);
        if (size <= max_spool_file_size && !read_all(found.fd.get(), claim.text)) return false;
        const std::string fault = envelope_fault(std::max<std::uint64_t>(claim.text.size(), size), claim.text);
        if (!fault.empty()) {
            const std::string sidecar = read_own_file(file.owner, sidecar_name(file.name));
            fill_from_sidecar(is_json_object(sidecar) ? sidecar : "{}", claim);
            failure = {"invalid_payload", fault, false, "{}"};
            return true;
        }
        std::int64_t runs = 0;
        read_if_integer(raw_member(claim.text, "attempt"), runs);
        claim.attempt = runs + 1;
        std::int64_t max_attempts = 0;
        read_if_integer(raw_member(claim.text, "max_attempts"), max_attempts);
        if (max_attempts > 0) claim.max_attempts = max_attempts;
        return true;
    }

    bool report_recovered(const std::string& name, const result<void>& done, const char* reason) {
        if (done) reporter_.report(spool_event_kind::recovered, name, reason);
        return done.has_value();
    }

    const spool_options& options_;
    spool_event_reporter& reporter_;
};
}  // namespace ojs::detail
