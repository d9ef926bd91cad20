// run_job: calls a job's handler, on the thread that has the job, and settles it.
#pragma once

#include <unistd.h>

#include <exception>

#include "../reports/settlement.ipp"
#include "running_jobs.ipp"

namespace ojs::detail {

// A handler called fork() and its child came back here. Two processes must not report one job.
inline void leave_forked_child(const worker_context& worker) {
    constexpr std::string_view text =
        "error: a child made by fork() in a job handler returned from it; the child ends here\n";
    if (getpid() == worker.owner) return;
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0)
        _exit(70);  // not by the log, whose mutex may be held
    _exit(70);
}

// Throwing is also a way to return on cancellation.
inline verdict judge_exception(const worker_context& worker, const active_job& job, std::string message) {
    const cancel_token token = job.cancel.token();
    if (token.seen()) return cut_short(worker, job, token.reason(), message);
    return failed({"handler_error", std::move(message), true, "{}"});
}

// Runs user code: whatever it throws is a FAIL. False: the stop came between, and may no longer wait for the handler, which
// was not called and has nothing to say.
inline bool call_handler(worker_context& worker, active_job& job, verdict& report) {
    try {
        const handler_thread::inside here(job.runner);
        if (job.taken()) return false;
        report = judge(worker, job, job.call_handler(worker));
    } catch (const std::exception& thrown) {
        report = failed({"handler_error", "out of memory", true, "{}"});
        insist([&] { report = judge_exception(worker, job, printable(thrown.what(), 2000)); });
    } catch (...) {
        pass_on_thread_end();
        report = failed({"handler_error", "not an error", true, "{}"});
        insist([&] {
            report = judge_exception(worker, job, "the handler threw something that is not a std::exception");
        });
    }
    return true;
}

inline void run_job(worker_context& worker, active_job& job, next_look& looks) {
    if (job.taken()) return;  // the stop was faster
    job.handler_begins();
    looks.by(job.timeout_at);
    verdict report;
    if (!call_handler(worker, job, report)) return;
    leave_forked_child(worker);
    if (job.take(settler::handler)) return settle(worker, job, std::move(report));
    if (job.known_stuck)
        log_job(worker, job, log_level::warn, "a stuck handler has returned; its result is dropped", report);
}

}  // namespace ojs::detail
