// Takes back what dead workers have left in a spool.
#pragma once

#include <set>

#include "settle.ipp"

namespace ojs::detail {

// Passes events on, those that would come again and again only once. Used by one thread at a time.
class spool_teller {
  public:
    explicit spool_teller(const spool_options& options) : options_(options) {}

    void tell(spool_event_kind what, const std::string& name, const std::string& text) const {
        if (options_.on_event) options_.on_event({what, printable(name, 300), text});
    }
    void tell_once(spool_event_kind what, const std::string& name, const std::string& text) {
        if (told_.size() > 10000) told_.clear();
        std::string key = cat({static_cast<int>(what), name, "\n", text});
        if (told_.insert(std::move(key)).second) tell(what, name, text);
    }

  private:
    const spool_options& options_;
    std::set<std::string> told_;
};

// Used by one thread at a time; several processes may recover at once, as each dead owner is locked meanwhile.
class spool_recovery {
  public:
    spool_recovery(const spool_options& options, spool_teller& teller) : options_(options), teller_(teller) {}

    // All of processing/ but `own`; what is left at the deadline, the next time.
    void recover_all(const spool_folders& spool, const std::string& own, time_point deadline) {
        std::vector<std::string> names;
        if (list_folder(spool.processing.get(), names) != 0) return;
        for (const std::string& name : names)
            if (name != own && steady_clock::now() < deadline) recover_owner(spool, name);
    }

  private:
    static constexpr const char* never_claimed =
        "it lay among a dead worker's claimed files and was never claimed; it is in failed/ now";
    static constexpr const char* not_removed =
        "it is of a dead worker, and holds something that is no job, or cannot be moved now";
    static constexpr const char* died_running = "its worker died while it ran";
    static constexpr const char* carried_out_late =
        "what its worker had decided before it died is carried out";

    void recover_owner(const spool_folders& spool, const std::string& name) {
        const judged_owner owner = judge_owner(spool, name);
        if (owner.state == owner_state::owner_unknown)
            teller_.tell_once(spool_event_kind::owner_unknown, name, owner.why);
        if (owner.state != owner_state::dead) return;
        const int folder = owner.folder.get();
        std::vector<std::string> names;
        if (list_folder(folder, names) != 0) return;
        bool all = true;
        for (const std::string& each : names) all = recover_entry(spool, folder, each) && all;
        for (const std::string& each : names) all = remove_leftover(spool, folder, each) && all;
        if (!all) {  // what is left will be tried again
            teller_.tell_once(spool_event_kind::owner_unknown, name, not_removed);
            return;
        }
        ::unlinkat(folder, owner_file, 0);
        ::unlinkat(spool.processing.get(), name.c_str(), AT_REMOVEDIR);
    }

    // A decision, or a job without one. False: it is still there. What was never claimed is no job.
    bool recover_entry(const spool_folders& spool, int folder, const std::string& entry) {
        for (const spool_end end : spool_ends) {
            const std::string prefix = decision_name(end, "");
            if (entry.compare(0, prefix.size(), prefix) != 0) continue;
            const std::string name = entry.substr(prefix.size());
            if (!was_claimed(folder, name)) return false;
            const claimed_file file{spool, folder, name};
            result<void> done = carry_out(file, end);
            if (done) done = sync_end(file, end);
            return note_recovered(name, done, carried_out_late);
        }
        if (entry.front() == '.') return true;
        const claimed_file file{spool, folder, entry};
        if (!was_claimed(folder, entry)) return put_aside(file);
        return has_decision(folder, entry) || recover_job(file);
    }

    static bool has_decision(int folder, const std::string& name) {
        const auto decides = [&](spool_end end) { return exists_at(folder, decision_name(end, name)); };
        return std::any_of(std::begin(spool_ends), std::end(spool_ends), decides);
    }

    // What belongs to a job, where that is settled. False: something is left that is not to be thrown away.
    static bool remove_leftover(const spool_folders& spool, int folder, const std::string& entry) {
        if (entry.front() != '.' || entry == owner_file || !exists_at(folder, entry)) return true;
        const std::string name = entry.substr(entry.find('.', 1) + 1);
        const bool about = entry == sidecar_name(name);
        if (!is_temporary(entry)) {
            const bool belongs_to_job = about || entry == checkpoint_name(name) || entry == mark_name(name);
            if (!belongs_to_job || exists_at(folder, name) || has_decision(folder, name)) return false;
        }
        std::string end;
        if (about) raw_string(raw_member(read_own_file(folder, entry), "settled"), end);
        // Its worker died after it had moved the file, and before the sidecar.
        if (end == "failed") return fail_with_sidecar({spool, folder, name}).has_value();
        return ::unlinkat(folder, entry.c_str(), 0) == 0 || errno == ENOENT;
    }

    bool recover_job(const claimed_file& file) {
        const std::string& name = file.name;
        spool_file found = open_spool_file(file.owner, name);
        if (found.sys_errno != 0 && found.refused.empty()) return found.sys_errno == ENOENT;
        spool_claim claim;
        claim.name = name;
        claim.is_marked = true;
        claim.max_attempts = static_cast<std::int64_t>(options_.retry_delays.size()) + 1;
        spool_verdict verdict;
        verdict.end = spool_end::request;
        job_error why = {"worker_lost", "the worker that ran the job died", true, "{}"};
        bool is_run = true;  // false: it goes back as it is
        if (options_.any_file) {
            is_run = read_dead_sidecar(file, found.about, claim, verdict);
        } else if (!found.refused.empty()) {
            claim.opaque = true;  // nobody knows what it is now, and nobody will claim it
            is_run = false;
        } else if (!read_dead_envelope(found, file, claim, why)) {
            return false;
        }
        if (is_run) {
            const std::string checkpoint = read_own_file(file.owner, checkpoint_name(name));
            claim.has_checkpoint = !checkpoint.empty();
            verdict = failed_run(options_, claim, why, checkpoint);
        }
        const bool decided = claim.stage == settle_stage::decided;
        const result<settled> done = settle_claim(file, claim, std::move(verdict), ".tmp.recovery");
        return note_recovered(name, done ? result<void>() : result<void>(done.error()),
                              decided ? carried_out_late : died_running);
    }

    bool put_aside(const claimed_file& file) {
        const result<void> moved = move_to_end(file, spool_end::failed);
        if (moved) teller_.tell(spool_event_kind::refused, file.name, never_claimed);
        return moved.has_value();
    }

    // What its sidecar had decided already, or counted.
    static void read_counts(std::string sidecar, spool_claim& claim) {
        claim.opaque = true;
        claim.text = std::move(sidecar);
        read_integer(raw_member(claim.text, "attempt"), claim.attempt);
        std::string end;
        if (!raw_string(raw_member(claim.text, "settled"), end)) return;
        claim.stage = settle_stage::decided;
        claim.decision = {end == "failed" ? spool_end::failed : spool_end::request, claim.text};
    }

    // False: it goes back, with the verdict's sidecar where there is one.
    static bool read_dead_sidecar(const claimed_file& file, const struct stat& about, spool_claim& claim,
                                  spool_verdict& verdict) {
        claim.opaque = true;
        // One in request/ that is of this very file is the last word: it was not yet run again, or is back already.
        verdict.text = read_sidecar(file.spool.request(), file.name, about);
        if (!verdict.text.empty()) return false;
        std::string own = read_own_file(file.owner, sidecar_name(file.name));
        if (!is_json(own)) return false;
        read_counts(std::move(own), claim);
        return true;
    }

    // One that cannot be read has had its only run: perhaps its worker died of it. False: another time.
    static bool read_dead_envelope(const spool_file& found, const claimed_file& file, spool_claim& claim,
                                   job_error& why) {
        const auto size = static_cast<std::size_t>(found.about.st_size);
        if (size <= max_spool_job_size && !read_whole(found.fd.get(), claim.text)) return false;
        const std::string fault = envelope_fault(std::max(claim.text.size(), size), claim.text);
        if (!fault.empty()) {
            const std::string sidecar = read_own_file(file.owner, sidecar_name(file.name));
            read_counts(is_json_object(sidecar) ? sidecar : "{}", claim);
            why = {"invalid_payload", fault, false, "{}"};
            return true;
        }
        std::int64_t runs = 0;
        read_integer(raw_member(claim.text, "attempt"), runs);
        claim.attempt = runs + 1;
        std::int64_t most = 0;
        read_integer(raw_member(claim.text, "max_attempts"), most);
        if (most > 0) claim.max_attempts = most;
        return true;
    }

    bool note_recovered(const std::string& name, const result<void>& done, const char* how) {
        if (done) teller_.tell(spool_event_kind::recovered, name, how);
        return done.has_value();
    }

    const spool_options& options_;
    spool_teller& teller_;
};

}  // namespace ojs::detail
