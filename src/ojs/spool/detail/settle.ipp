// How a claimed file of a spool is settled, so that dying at any point leaves it settled or not, and never twice.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../worker/transports/job_json.ipp"
#include "owner.ipp"

namespace ojs::detail {

// ".done.NAME": what is to become of a file of that name is decided and must only be carried out.
inline std::string decision_name(spool_end end, const std::string& name) {
    return cat({".", spool_end_names[static_cast<std::size_t>(end)], ".", name});
}
inline std::string checkpoint_name(const std::string& name) {
    return ".checkpoint." + name;
}
// What is known of a file that is not ours to write into: runs, error, checkpoint.
inline std::string sidecar_name(const std::string& name) {
    return ".about." + name;
}

// An empty file: the envelope of that name was claimed, not put there. Any other file has its sidecar.
inline std::string mark_name(const std::string& name) {
    return ".claim." + name;
}
// 0 or the errno. Whatever has that name already is as good.
inline int make_mark(int owner, const std::string& name) noexcept {
    const std::string mark = mark_name(name);
    const int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const unique_fd made(::openat(owner, mark.c_str(), flags, 0600));
    const int failed = made ? 0 : errno;
    return failed != 0 && exists_at(owner, mark) ? 0 : failed;
}
inline bool was_claimed(int owner, const std::string& name) noexcept {
    return exists_at(owner, mark_name(name)) || exists_at(owner, sidecar_name(name));
}

// Why the text of a file of `size` bytes, empty where it is too long to be read, is no envelope; empty if it may be.
inline std::string envelope_fault(std::size_t size, std::string_view text) {
    if (size > max_spool_job_size) return cat({"the file is longer than ", max_spool_job_size, " bytes"});
    const result<void> valid = check_json(text);
    if (!valid) return valid.error().text;
    return is_json_object(text) ? "" : "the file is not a JSON object";
}

// The same object with these members in place of those of the same names; one without a value is left out.
struct json_edit {
    std::string_view key;
    std::string value;  // source text
};
inline std::string edited_json(std::string_view object, const array<json_edit>& edits) {
    std::string out = "{";
    const auto add = [&out](std::string_view key, std::string_view value) {
        append(out, {out.size() > 1 ? "," : "", key, ":", value});
    };
    std::string_view rest = object;
    std::string_view key;
    std::string_view value;
    while (next_raw_member(rest, key, value)) {
        bool replaced = false;
        for (const json_edit& each : edits) replaced = replaced || json_key_is(key, each.key);
        if (!replaced) add(key, value);
    }
    for (const json_edit& each : edits)
        if (!each.value.empty()) add(json_quote(each.key), each.value);
    return out + "}";
}

inline std::string error_json(const job_error& failure, std::int64_t attempt) {
    const std::string code = json_quote(failure.code);
    return cat({"{\"code\":", code, ",\"type\":", code, ",\"message\":", json_quote(failure.message),
                ",\"retryable\":", failure.retryable ? "true" : "false", ",\"details\":", details_of(failure),
                ",\"attempt\":", attempt, ",\"at\":", json_quote(utc_timestamp()), "}"});
}

// ---- moving a file to its end ----

// A claimed file: in which folder, and under which name.
struct claimed_file {
    const spool_folders& spool;
    int owner;  // the folder
    const std::string& name;
};

inline result<void> sync_end(const claimed_file& file, spool_end end) {
    if (sync_descriptor(file.spool.end(end))) return {};
    return spool_error(cat({"write ", spool_end_names[static_cast<std::size_t>(end)], "/"}), errno);
}

// As it is. One rename, and so decided and done at once.
inline result<void> move_to_end(const claimed_file& file, spool_end end) {
    const result<std::string> moved = move_spool_file(file.owner, file.name, file.spool.end(end), file.name);
    return moved ? result<void>() : result<void>(moved.error());
}

// With the new text of the decision's file. The old file goes first, so that there is never one too many.
inline result<void> carry_out(const claimed_file& file, spool_end end) {
    if (::unlinkat(file.owner, file.name.c_str(), 0) != 0 && errno != ENOENT)
        return spool_error(cat({"remove ", printable(file.name)}), errno);
    const result<std::string> moved =
        move_spool_file(file.owner, decision_name(end, file.name), file.spool.end(end), file.name);
    return moved ? result<void>() : result<void>(moved.error());
}

// Replaces a file as a whole: a reader, also after a crash, finds all of the new one or the one before.
inline result<void> write_owned(const claimed_file& file, const std::string& temporary, int folder,
                                const std::string& name, std::string_view text) {
    const result<void> written = write_new_spool_file(file.owner, temporary, text);
    if (!written) return written;
    if (::renameat(file.owner, temporary.c_str(), folder, name.c_str()) == 0) return {};
    const int failed = errno;
    ::unlinkat(file.owner, temporary.c_str(), 0);
    return spool_error(cat({"write ", printable(name)}), failed);
}

// ---- files that are not ours to write into ----

// Says which file the sidecar is of: the one that is there when it is put beside it.
inline std::string bound_to(std::string_view sidecar, const struct stat& about) {
    return with_raw_member(sidecar, "file", json_quote(identity_of(about))) + "\n";
}

// Empty where there is none, or where it is that of another file.
inline std::string read_sidecar(int folder, const std::string& name, const struct stat& about) {
    const std::string text = read_own_file(folder, sidecar_name(name));
    return raw_member(text, "file") == json_quote(identity_of(about)) && is_json(text) ? text : std::string();
}

// Takes it away, if it is of that file: somebody else may bring one for another file of the name at any time.
inline void remove_sidecar(int folder, const std::string& name, const struct stat& about) {
    if (!read_sidecar(folder, name, about).empty()) ::unlinkat(folder, sidecar_name(name).c_str(), 0);
}

// Puts the sidecar beside where the file will be, then the file there: whoever claims it has both.
inline result<void> return_with_sidecar(const claimed_file& file, std::string_view sidecar,
                                        const std::string& temporary) {
    const int request = file.spool.request();
    struct stat about {};
    if (!stat_at(file.owner, file.name, about))
        return spool_error(cat({"move ", printable(file.name)}), errno);
    for (int left = max_name_attempts;; --left) {
        const std::string target = free_name(request, file.name);
        if (!sidecar.empty()) {
            const result<void> written =
                write_owned(file, temporary, request, sidecar_name(target), bound_to(sidecar, about));
            if (!written) return written;
        }
        const int failed = rename_to_new(file.owner, file.name, request, target);
        if (failed == 0) return {};
        if (!sidecar.empty()) remove_sidecar(request, target, about);
        if (failed != EEXIST || left == 0) return spool_error(cat({"move ", printable(file.name)}), failed);
    }
}

// The file, then the sidecar beside it. The sidecar says what is decided; a later owner carries it out.
inline result<void> fail_with_sidecar(const claimed_file& file) {
    const std::string own = sidecar_name(file.name);
    const result<std::string> moved =
        move_spool_file(file.owner, file.name, file.spool.end(spool_end::failed), file.name);
    if (!moved && moved.error().sys_errno != ENOENT) return moved.error();
    const std::string beside = sidecar_name(moved ? *moved : file.name);
    if (::renameat(file.owner, own.c_str(), file.spool.end(spool_end::failed), beside.c_str()) != 0 &&
        errno != ENOENT)
        return spool_error(cat({"write ", printable(beside)}), errno);
    return {};
}

// ---- settling ----

struct spool_verdict {
    spool_end end = spool_end::done;
    std::string
        text;  // the envelope or, where that is not ours to write, the sidecar; empty: there is nothing to keep
};

enum class settle_stage : unsigned char { open, decided, moved, settled };

// A claimed job until it is settled.
class spool_claim : public ref_counted {
  public:
    mutex settling;  // guards stage, decision and checkpoint
    settle_stage stage = settle_stage::open;
    spool_verdict decision;       // from `decided` on
    bool has_checkpoint = false;  // there is a checkpoint file
    ref<spool_owner> owner;       // empty: a dead one's
    std::string job_id;           // of the job, once it is handed out
    std::string name;             // of the file
    std::string text;             // the envelope, or the sidecar
    bool opaque = false;          // not ours to write into
    std::int64_t attempt = 1;     // of this run
    std::int64_t max_attempts = 1;
    bool is_marked = false;
};

inline result<void> decide(const claimed_file& file, const spool_claim& claim, const std::string& temporary) {
    const std::string sidecar = sidecar_name(file.name);
    const std::string& text = claim.decision.text;
    if (!claim.opaque)
        return text.empty() ? result<void>()
                            : write_owned(file, temporary, file.owner,
                                          decision_name(claim.decision.end, file.name), text);
    struct stat about {};  // goes as it is, and the sidecar after it: what has none was never claimed
    if (text.empty()) return {};
    if (!stat_at(file.owner, file.name, about))
        return spool_error(cat({"read ", printable(file.name)}), errno);
    return write_owned(file, temporary, file.owner, sidecar, bound_to(text, about));
}

inline result<void> carry_out(const claimed_file& file, const spool_claim& claim,
                              const std::string& temporary) {
    const spool_verdict& verdict = claim.decision;
    if (!claim.opaque)
        return verdict.text.empty() ? move_to_end(file, verdict.end) : carry_out(file, verdict.end);
    if (verdict.end == spool_end::request) return return_with_sidecar(file, verdict.text, temporary);
    if (verdict.end == spool_end::failed) return fail_with_sidecar(file);
    return move_to_end(file, verdict.end);
}

inline void remove_traces(const claimed_file& file, const spool_claim& claim) {
    if (claim.opaque) ::unlinkat(file.owner, sidecar_name(file.name).c_str(), 0);
    if (claim.is_marked) ::unlinkat(file.owner, mark_name(file.name).c_str(), 0);
    if (claim.has_checkpoint) ::unlinkat(file.owner, checkpoint_name(file.name).c_str(), 0);
}

// By someone else: there is nothing left to settle.
inline bool is_taken_away(const claimed_file& file) noexcept {
    return !exists_at(file.owner, file.name) && errno == ENOENT;
}
// By the job itself, which is done: its sidecar is still there, and whoever else takes a job takes that too.
inline bool is_used_up(const claimed_file& file, const spool_claim& claim) noexcept {
    return claim.opaque && claim.decision.end == spool_end::done &&
           exists_at(file.owner, sidecar_name(file.name));
}
inline settled give_up(spool_claim& claim) noexcept {
    claim.stage = settle_stage::settled;
    return settled::gone;
}

// With claim.settling held. After an error it may be called again; once something is decided, that stands.
inline result<settled> settle_claim(const claimed_file& file, spool_claim& claim, spool_verdict verdict,
                                    const std::string& temporary) {
    if (claim.stage == settle_stage::settled) return settled::gone;
    if (claim.stage == settle_stage::open) {
        claim.decision = std::move(verdict);
        const bool keeps_text = !claim.decision.text.empty();
        if (keeps_text && is_taken_away(file)) return give_up(claim);
        const result<void> decided = decide(file, claim, temporary);
        if (!decided) return decided.error();
        if (keeps_text) claim.stage = settle_stage::decided;
    }
    if (claim.stage != settle_stage::moved) {
        const result<void> done = carry_out(file, claim, temporary);
        const bool lost = !done && claim.stage == settle_stage::open && is_taken_away(file);
        if (lost && !is_used_up(file, claim)) return give_up(claim);
        if (!done && !lost) return done.error();
        claim.stage = settle_stage::moved;
        remove_traces(file, claim);
    }
    const result<void> on_disk = sync_end(file, claim.decision.end);
    if (!on_disk) return on_disk.error();
    claim.stage = settle_stage::settled;
    return settled::accepted;
}

// ---- verdicts ----

// What a retry policy says about a run that failed.
inline std::chrono::milliseconds retry_delay(const spool_options& options, std::int64_t attempt) {
    const auto& delays = options.retry_delays;
    if (delays.empty()) return std::chrono::milliseconds(0);
    return delays[std::min(static_cast<std::size_t>(attempt - 1), delays.size() - 1)];
}

inline std::string delay_json(std::chrono::milliseconds delay) {
    if (delay.count() <= 0) return {};
    return cat(
        {"{\"not_before_ms\":", wall_clock_ms() + delay.count(), ",\"delay_ms\":", delay.count(), "}"});
}

// The checkpoint goes into `meta` of an envelope. A sidecar has it as its own.
inline void add_checkpoint(const spool_claim& claim, const std::string& checkpoint, array<json_edit>& edits) {
    if (!is_json(checkpoint)) return;
    if (claim.opaque) {
        edits.push_back({"checkpoint", checkpoint});
        return;
    }
    const std::string_view meta = raw_member(claim.text, "meta");
    edits.push_back(
        {"meta", edited_json(meta.substr(0, 1) == "{" ? meta : "{}", {{"checkpoint", checkpoint}})});
}

inline spool_verdict requeued(const spool_claim& claim, const std::string& checkpoint) {
    spool_verdict out;
    out.end = spool_end::request;
    const std::int64_t runs = claim.attempt - 1;
    if (!is_json(checkpoint) &&
        (!claim.opaque || (runs == 0 && raw_member(claim.text, "checkpoint").empty())))
        return out;
    array<json_edit> edits = {{"attempt", cat({runs})}, {"state", "\"available\""}, {"spool", ""}};
    if (claim.opaque) edits.push_back({"settled", "\"request\""});
    add_checkpoint(claim, checkpoint, edits);
    out.text = edited_json(claim.text, edits) + "\n";
    return out;
}

// What is kept of an error where all of it would make a job longer than can be read again.
inline job_error cut_error(const job_error& whole) {
    return {whole.code.substr(0, 100), printable(whole.message, 4096), whole.retryable, "{}"};
}

inline spool_verdict failed_run(const spool_options& options, const spool_claim& claim,
                                const job_error& failure, const std::string& checkpoint) {
    spool_verdict out;
    const bool again = failure.retryable && claim.attempt < claim.max_attempts;
    out.end = again ? spool_end::request : spool_end::failed;
    array<json_edit> edits = {
        {"error", error_json(failure, claim.attempt)},
        {"attempt", cat({claim.attempt})},
        {"state", again ? "\"retryable\"" : "\"discarded\""},
        {"spool", again ? delay_json(retry_delay(options, claim.attempt)) : std::string()}};
    if (claim.opaque) edits.push_back({"settled", again ? "\"request\"" : "\"failed\""});
    add_checkpoint(claim, checkpoint, edits);
    out.text = edited_json(claim.text, edits) + "\n";
    if (out.text.size() <= max_spool_job_size) return out;
    edits[0].value = error_json(cut_error(failure), claim.attempt);
    out.text = edited_json(claim.text, edits) + "\n";
    return out;
}

inline spool_verdict completed_run(const spool_claim& claim, const std::string& result_json) {
    spool_verdict out;
    if (claim.opaque || result_json.empty()) return out;
    out.text =
        edited_json(claim.text, {{"attempt", cat({claim.attempt})},
                                 {"state", "\"completed\""},
                                 {"result", is_json(result_json) ? result_json : json_quote(result_json)},
                                 {"completed_at", json_quote(utc_timestamp())},
                                 {"error", ""},
                                 {"spool", ""}}) +
        "\n";
    return out;
}

}  // namespace ojs::detail
