// Settles a claimed file: a crash at any point leaves it settled once or not at all.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../worker/detail/job_json.ipp"
#include "owner.ipp"

namespace ojs::detail {
// ".done.NAME": NAME is settled; only the move to done/ is missing.
inline std::string settled_name(spool_target target, const std::string& name) {
    return cat({".", spool_target_names[static_cast<std::size_t>(target)], ".", name});
}
// Holds runs, error and checkpoint of an opaque file, which is never written to.
inline std::string sidecar_name(const std::string& name) { return ".about." + name; }

// An empty file that proves that the envelope NAME was claimed; an opaque file has its sidecar instead.
inline std::string mark_name(const std::string& name) { return ".claim." + name; }
// 0 or the errno. An existing file of that name serves as well.
inline int create_mark(int owner, const std::string& name) noexcept {
    const std::string mark = mark_name(name);
    const int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const unique_fd created(::openat(owner, mark.c_str(), flags, 0600));
    const int errnum = created ? 0 : errno;
    return errnum != 0 && exists_at(owner, mark) ? 0 : errnum;
}
inline bool was_claimed(int owner, const std::string& name) noexcept {
    return exists_at(owner, mark_name(name)) || exists_at(owner, sidecar_name(name));
}

inline std::string id_from_name(const std::string& name) {
    const std::size_t size = name.size() < 6 ? 0 : name.size() - 5;
    return size > 0 && name.compare(size, 5, ".json") == 0 ? name.substr(0, size) : name;
}

// Bytes of an envelope that are ours. What is settled has a state; other files are as they were put.
inline std::size_t added_size(std::string_view text) {
    if (raw_member(text, "state").empty()) return 0;
    std::size_t out = text.substr(text.size() - 1) == "\n" ? 1 : 0;
    for (const std::string_view key : {"state", "error", "attempt", "spool", "id", "result", "completed_at"}) {
        const std::string_view value = raw_member(text, key);
        if (!value.empty()) out += key.size() + value.size() + 4;  // quotes, colon, comma
    }
    return out;
}

// Why a file of `size` bytes is no envelope; empty: it may be one. `text` is empty when it is too long.
inline std::string envelope_fault(std::uint64_t size, std::string_view text) {
    if (size > max_spool_job_size && (size > max_spool_file_size || size - added_size(text) > max_spool_job_size))
        return cat({"the file is longer than ", max_spool_job_size, " bytes"});
    const result<void> valid = check_json(text);
    if (!valid) return valid.error().text;
    return is_json_object(text) ? "" : "the file is not a JSON object";
}

// Replaces or adds these members; one with an empty value is removed.
struct json_edit {
    std::string_view key;
    std::string value;  // source text
};
inline std::string edit_json(std::string_view object, const array<json_edit>& edits) {
    std::string out = "{";
    const auto add = [&out](std::string_view key, std::string_view value) {
        append(out, {out.size() > 1 ? "," : "", key, ":", value});
    };
    for (json_iterator at(object, '{'); at; ++at) {
        bool replaced = false;
        for (const json_edit& edit : edits) replaced = replaced || json_key_is(at->key, edit.key);
        if (!replaced) add(at->key.text(), at->value.text());
    }
    for (const json_edit& edit : edits)
        if (!edit.value.empty()) add(json_quote(edit.key), edit.value);
    return out + "}";
}

inline std::string error_json(const job_error& failure, std::int64_t attempt) {
    const std::string code = json_quote(failure.code);
    return cat({"{\"code\":", code, ",\"type\":", code, ",\"message\":", json_quote(failure.message),
                ",\"retryable\":", failure.retryable ? "true" : "false", ",\"details\":", details_of(failure),
                ",\"attempt\":", attempt, ",\"at\":", json_quote(utc_text()), "}"});
}

struct claimed_file {
    const spool_folders& spool;
    int owner;  // its folder in processing/
    const std::string& name;
};

inline result<void> sync_target(const claimed_file& file, spool_target target) {
    if (sync_descriptor(file.spool.folder(target))) return {};
    return spool_error(cat({"write ", spool_target_names[static_cast<std::size_t>(target)], "/"}), errno);
}

// One rename decides and moves at once; the content stays.
inline result<void> move_to(const claimed_file& file, spool_target target) {
    const result<std::string> moved = move_spool_file(file.owner, file.name, file.spool.folder(target), file.name);
    return moved ? result<void>() : result<void>(moved.error());
}

// Renames the decision, which has the new text, to its target. The claimed file is removed first, so that a job never
// exists twice.
inline result<void> apply_decision(const claimed_file& file, spool_target target) {
    if (::unlinkat(file.owner, file.name.c_str(), 0) != 0 && errno != ENOENT)
        return spool_error(cat({"remove ", printable(file.name)}), errno);
    const result<std::string> moved =
        move_spool_file(file.owner, settled_name(target, file.name), file.spool.folder(target), file.name);
    return moved ? result<void>() : result<void>(moved.error());
}

// Replaces a file atomically, also across a crash.
inline result<void> replace_file(const claimed_file& file, const std::string& temporary, int folder,
                                 const std::string& name, std::string_view text) {
    result<void> written = write_new_spool_file(file.owner, temporary, text);
    if (!written) return written;
    if (::renameat(file.owner, temporary.c_str(), folder, name.c_str()) == 0) return {};
    const int errnum = errno;
    ::unlinkat(file.owner, temporary.c_str(), 0);
    return spool_error(cat({"write ", printable(name)}), errnum);
}

// Ties the sidecar to this very file.
inline std::string bind_sidecar(std::string_view sidecar, const struct stat& info) {
    return edit_json(sidecar, {{"file", json_quote(identity_of(info))}}) + "\n";
}

// Empty if it is missing or belongs to another file.
inline std::string read_sidecar(int folder, const std::string& name, const struct stat& info) {
    const std::string text = read_own_file(folder, sidecar_name(name));
    return raw_member(text, "file") == json_quote(identity_of(info)) && is_json(text) ? text : std::string();
}

// Only if it belongs to that file: another process may bring one for a new file of the same name.
inline void remove_sidecar(int folder, const std::string& name, const struct stat& info) {
    if (!read_sidecar(folder, name, info).empty()) ::unlinkat(folder, sidecar_name(name).c_str(), 0);
}

inline bool has_id(std::string_view text) {
    std::string id;
    return read_json_string(raw_member(text, "id"), id) && !id.empty();
}
// A job without an id keeps that of its first run, whatever its file's name becomes.
inline std::string with_id(std::string_view text, const std::string& id) {
    if (id.empty() || has_id(text)) return std::string(text);
    return edit_json(text.empty() ? "{}" : text, {{"id", json_quote(id)}, {"state", "\"available\""}}) + "\n";
}

// The sidecar is in request/ before the file: a worker that claims the file has both.
inline result<void> return_with_sidecar(const claimed_file& file, std::string sidecar, const std::string& temporary,
                                        const std::string& id) {
    const int request = file.spool.request();
    struct stat info {};
    if (!stat_at(file.owner, file.name, info)) return spool_error(cat({"move ", printable(file.name)}), errno);
    for (int left = max_name_attempts;; --left) {
        const std::string target = find_free_name(request, file.name);
        if (target != file.name) sidecar = with_id(sidecar, id);
        if (!sidecar.empty()) {
            result<void> written =
                replace_file(file, temporary, request, sidecar_name(target), bind_sidecar(sidecar, info));
            if (!written) return written;
        }
        const int errnum = rename_to_new(file.owner, file.name, request, target);
        if (errnum == 0) return {};
        if (!sidecar.empty()) remove_sidecar(request, target, info);
        if (errnum != EEXIST || left == 0) return spool_error(cat({"move ", printable(file.name)}), errnum);
    }
}

// Moves the file, then its sidecar. Recovery finishes what a crash interrupts, by the sidecar's "settled".
inline result<void> fail_with_sidecar(const claimed_file& file) {
    const std::string own = sidecar_name(file.name);
    const result<std::string> moved =
        move_spool_file(file.owner, file.name, file.spool.folder(spool_target::failed), file.name);
    if (!moved && moved.error().sys_errno != ENOENT) return moved.error();
    const int failed = file.spool.folder(spool_target::failed);
    const std::string name = moved ? *moved : file.name;
    const std::string beside = sidecar_name(name);
    struct stat by_hand {};  // a person moved a namesake back to request/, without the sidecar that it needs
    if (stat_at(file.spool.request(), name, by_hand) && !read_sidecar(failed, name, by_hand).empty())
        ::renameat(failed, beside.c_str(), file.spool.request(), beside.c_str());
    if (::renameat(file.owner, own.c_str(), failed, beside.c_str()) != 0 && errno != ENOENT)
        return spool_error(cat({"write ", printable(beside)}), errno);
    return {};
}

struct spool_verdict {
    spool_target target = spool_target::done;
    std::string text;  // the new envelope or sidecar; empty: unchanged
};

enum class settle_stage : unsigned char { open, decided, moved, settled };

// A claimed job until it is settled.
class spool_claim : public ref_counted {
  public:
    mutex settling;  // guards stage and decision
    settle_stage stage = settle_stage::open;
    spool_verdict decision;    // from `decided` on
    ref<spool_owner> owner;    // empty: it is dead
    std::string job_id;        // of the job
    std::string name;          // of the file
    std::string text;          // the envelope, or the sidecar
    bool is_opaque = false;    // a file that is never written to
    std::int64_t attempt = 1;  // of this run
    std::int64_t max_attempts = 1;
    bool is_marked = false;
};

inline result<void> write_decision(const claimed_file& file, const spool_claim& claim, const std::string& temporary) {
    const std::string sidecar = sidecar_name(file.name);
    const std::string& text = claim.decision.text;
    if (!claim.is_opaque)
        return text.empty()
                   ? result<void>()
                   : replace_file(file, temporary, file.owner, settled_name(claim.decision.target, file.name), text);
    struct stat info {};
    if (text.empty()) return {};
    if (!stat_at(file.owner, file.name, info)) return spool_error(cat({"read ", printable(file.name)}), errno);
    return replace_file(file, temporary, file.owner, sidecar, bind_sidecar(text, info));
}

inline result<void> apply_verdict(const claimed_file& file, const spool_claim& claim, const std::string& temporary) {
    const spool_verdict& verdict = claim.decision;
    if (!claim.is_opaque && !verdict.text.empty()) return apply_decision(file, verdict.target);
    if (!claim.is_opaque && verdict.target == spool_target::request && !has_id(claim.text)) {
        const int errnum = rename_to_new(file.owner, file.name, file.spool.request(), file.name);
        return errnum == 0 ? result<void>() : spool_error(cat({"move ", printable(file.name)}), errnum);
    }
    if (!claim.is_opaque) return move_to(file, verdict.target);
    if (verdict.target == spool_target::request)
        return return_with_sidecar(file, verdict.text, temporary, claim.job_id);
    if (verdict.target == spool_target::failed) return fail_with_sidecar(file);
    return move_to(file, verdict.target);
}

inline void remove_traces(const claimed_file& file, const spool_claim& claim) {
    if (claim.is_opaque) ::unlinkat(file.owner, sidecar_name(file.name).c_str(), 0);
    if (claim.is_marked) ::unlinkat(file.owner, mark_name(file.name).c_str(), 0);
}

// Another process has taken it: nothing is left to settle.
inline bool is_removed(const claimed_file& file) noexcept {
    return !exists_at(file.owner, file.name) && errno == ENOENT;
}
// The job removed its own file and so is done. Another process would have taken the sidecar as well.
inline bool is_removed_by_job(const claimed_file& file, const spool_claim& claim) noexcept {
    return claim.is_opaque && claim.decision.target == spool_target::done &&
           exists_at(file.owner, sidecar_name(file.name));
}
inline settle_result abandon_claim(spool_claim& claim) noexcept {
    claim.stage = settle_stage::settled;
    return settle_result::gone;
}

// Called with claim.settling held. Repeatable after an error; a written decision stands.
inline result<settle_result> settle_claim(const claimed_file& file, spool_claim& claim, spool_verdict verdict,
                                          const std::string& temporary) {
    if (claim.stage == settle_stage::settled) return settle_result::gone;
    if (claim.stage == settle_stage::open) {
        claim.decision = std::move(verdict);
        const bool keeps_text = !claim.decision.text.empty();
        if (keeps_text && is_removed(file)) return abandon_claim(claim);
        const result<void> decided = write_decision(file, claim, temporary);
        if (!decided) return decided.error();
        if (keeps_text) claim.stage = settle_stage::decided;
    }
    if (claim.stage != settle_stage::moved) {
        result<void> done = apply_verdict(file, claim, temporary);
        if (!done && done.error().sys_errno == EEXIST && !claim.is_opaque && claim.stage == settle_stage::open) {
            claim.decision.text = with_id(claim.text, claim.job_id);
            done = write_decision(file, claim, temporary);
            if (!done) return done.error();
            claim.stage = settle_stage::decided;
            done = apply_verdict(file, claim, temporary);
        }
        const bool lost = !done && claim.stage == settle_stage::open && is_removed(file);
        if (lost && !is_removed_by_job(file, claim)) return abandon_claim(claim);
        if (!done && !lost) return done.error();
        claim.stage = settle_stage::moved;
        remove_traces(file, claim);
    }
    const result<void> on_disk = sync_target(file, claim.decision.target);
    if (!on_disk) return on_disk.error();
    claim.stage = settle_stage::settled;
    return settle_result::accepted;
}

inline std::chrono::milliseconds retry_delay(const spool_options& options, std::int64_t attempt) {
    const auto& delays = options.retry_delays;
    if (delays.empty()) return std::chrono::milliseconds(0);
    return delays[std::min(static_cast<std::size_t>(attempt - 1), delays.size() - 1)];
}

inline std::string delay_json(std::chrono::milliseconds delay) {
    if (delay.count() <= 0) return {};
    return cat({"{\"not_before_ms\":", wall_clock_ms() + delay.count(), ",\"delay_ms\":", delay.count(), "}"});
}

// An envelope keeps it in `meta`, a sidecar at the top.
inline void add_checkpoint(const spool_claim& claim, const std::string& checkpoint, array<json_edit>& edits) {
    if (!is_json(checkpoint)) return;
    if (claim.is_opaque) {
        edits.push_back({"checkpoint", checkpoint});
        return;
    }
    const std::string_view meta = raw_member(claim.text, "meta");
    edits.push_back({"meta", edit_json(meta.substr(0, 1) == "{" ? meta : "{}", {{"checkpoint", checkpoint}})});
}

inline spool_verdict requeue_verdict(const spool_claim& claim, const std::string& checkpoint) {
    spool_verdict out;
    out.target = spool_target::request;
    const std::int64_t runs = claim.attempt - 1;
    const bool is_first = runs == 0 && raw_member(claim.text, "checkpoint").empty() && !has_id(claim.text);
    if (!is_json(checkpoint) && (!claim.is_opaque || is_first)) return out;
    array<json_edit> edits = {{"attempt", cat({runs})}, {"state", "\"available\""}, {"spool", ""}};
    if (claim.is_opaque) edits.push_back({"settled", "\"request\""});
    if (!has_id(claim.text)) edits.push_back({"id", json_quote(claim.job_id)});
    add_checkpoint(claim, checkpoint, edits);
    out.text = edit_json(claim.text, edits) + "\n";
    return out;
}

// For an error that would make the job too large to be read again.
inline job_error truncate_error(const job_error& failure) {
    return {failure.code.substr(0, 100), printable(failure.message, 4096), failure.retryable, "{}"};
}

inline spool_verdict failure_verdict(const spool_options& options, const spool_claim& claim, const job_error& failure,
                                     const std::string& checkpoint = {}) {
    spool_verdict out;
    const bool retries = failure.retryable && claim.attempt < claim.max_attempts;
    out.target = retries ? spool_target::request : spool_target::failed;
    array<json_edit> edits = {{"error", error_json(failure, claim.attempt)},
                              {"attempt", cat({claim.attempt})},
                              {"state", retries ? "\"retryable\"" : "\"discarded\""},
                              {"spool", retries ? delay_json(retry_delay(options, claim.attempt)) : std::string()}};
    if (claim.is_opaque) edits.push_back({"settled", retries ? "\"request\"" : "\"failed\""});
    if (!has_id(claim.text)) edits.push_back({"id", json_quote(claim.job_id)});
    add_checkpoint(claim, checkpoint, edits);
    out.text = edit_json(claim.text, edits) + "\n";
    if (out.text.size() <= max_spool_file_size) return out;
    edits[0].value = error_json(truncate_error(failure), claim.attempt);
    out.text = edit_json(claim.text, edits) + "\n";
    return out;
}

inline spool_verdict completion_verdict(const spool_claim& claim, const std::string& result_json) {
    spool_verdict out;
    if (claim.is_opaque || result_json.empty()) return out;
    out.text = edit_json(claim.text, {{"attempt", cat({claim.attempt})},
                                      {"state", "\"completed\""},
                                      {"result", is_json(result_json) ? result_json : json_quote(result_json)},
                                      {"completed_at", json_quote(utc_text())},
                                      {"error", ""},
                                      {"spool", ""}}) +
               "\n";
    return out;
}
}  // namespace ojs::detail
