#!/usr/bin/env python3
"""What the simulation is worth: puts faults of the library's history back, one at a time, and lets it look for each.

    sim_proof.py [--only REGEX] [--seconds N] [--cxx COMPILER]

A line for each: title | schedules until found | seconds | the violation. A schedule that fails without the fault as
well finds nothing. Exit status 1 if a fault is not found in its seconds.
"""

import argparse
import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, SIM = ROOT / "src", ROOT / "tests/sim"
OPTIONS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-DOJS_SHUTDOWN_USE_PROC=0"]

# file: below src/ojs; now: a text in it; then: the one from before the commit that the title names
Fault = collections.namedtuple("Fault", "title file now then")

FAULTS = [
    Fault("1edc59ba the answer to a query about an earlier claim marks the next one as lost",
          "worker/detail/worker_state.ipp", "        if (job.claims != number) return;\n",
          "        static_cast<void>(number);\n"),
    Fault("050c06d5 a job that is claimed again while its ACK is due runs twice", "worker/detail/slots.ipp",
          "is_claimed_again = as_job(each).claim_again(claimed, leased_at) ||",
          "is_claimed_again = (!as_job(each).is_taken && as_job(each).claim_again(claimed, leased_at)) ||"),
    Fault("df28c57d a thread that is left behind calls the log hook of a destroyed worker",
          "stop/detail/machine_state.ipp",
          "if (entered) return settings.log.hook(record);",
          "return settings.log.hook(record);"),
    Fault("f5d69161 a job that the stop finds before its handler began is failed, not handed back",
          "worker/detail/worker_core.ipp",
          'job->has_begun ? cut_short(*this, *job, why, "") : unstarted(*this)',
          'cut_short(*this, *job, why, "")'),
    Fault("f563dd29 a start that fails leaves a thread behind", "worker/detail/worker_core.ipp",
          "if (!started) threads.close();", ""),
    Fault("2c18d9d0 a handler begins although the stop has taken its job", "worker/detail/slots.ipp",
          "if (job.is_taken || is_abandoning || job.is_lost || job.lease_expired()) return false;",
          "if (job.is_lost || job.lease_expired()) return false;"),
    Fault("7ec9b1d7 a resume of an outside lifecycle beside its quiet is lost", "stop/detail/stop_phase.ipp",
          "        apply_if(now.phase == phase::running && before.phase == phase::quiet, event::resume_request);\n",
          ""),
    Fault("370780a5 a job that a response holds twice is reported twice", "worker/detail/slots.ipp",
          "if ((last == i || each.id.empty()) && admit(", "if (admit("),
    Fault("4651b3ed a FETCH that ends the drain does not wake the turning thread", "worker/detail/slots.ipp",
          "        notify_if_idle();\n", ""),
    # Found by the simulation.
    Fault("a report that is accepted as the stop gives it up counts twice", "worker/detail/reports.ipp",
          "if (exchange(job.is_over, true)) return;",
          "if (exchange(job.is_over, true) && ended == job_status::unreported) return;"),
    Fault("a report is refused for ever", "worker/detail/reports.ipp", "is_refused && ++so_far.refusals >= 6",
          "is_refused && ++so_far.refusals >= 600"),
    Fault("a cancelled rollout starts more processes than it may", "launcher/detail/process_group.hpp",
          "if (rollout_) free = std::min(free, rollout_->max_total", "if (is_replacing()) free = std::min(free, rollout_->max_total"),
    Fault("a worker does not fetch after a back-off during which a slot became free", "worker/detail/slots.ipp",
          "        if (fetch_at < leads_until_) leader_due_.notify_one();  // when it began to wait, no slot was free\n",
          "        static_cast<void>(fetch_at);\n"),
    Fault("the last heartbeat waits for one that hangs", "worker/detail/heartbeats.ipp",
          "{ is_last ? send_last() : send_beat(); });\n", "{ is_last ? send_last() : send_beat(); });\n            return never;\n"),
    Fault("a task is lost where no thread can be started", "stop/detail/machine_threads.ipp",
          "            if (urgent.threads == 0 || of.max == 1) {\n", "            if (urgent.threads == 7) {\n"),
    # Of the design.
    Fault("a hint wakes nobody", "worker/detail/slots.ipp",
          "        schedule_.note_work_hint();\n        leader_due_.notify_one();\n", "        schedule_.note_work_hint();\n"),
    Fault("a hint between the check of the leader and its wait is lost", "worker/detail/slots.ipp",
          "        leads_until_ = fetch_at;\n",
          "        leads_until_ = fetch_at;\n        held.unlock();\n        held.lock();\n"),
    Fault("a timeout or a held job wakes nobody", "stop/detail/machine_state.ipp",
          "        next_check = when;\n        waker.notify();\n", "        next_check = when;\n"),
    Fault("a FETCH is over before its jobs are in flight", "worker/detail/slots.ipp",
          "        std::size_t claimed = 0;\n        for (std::size_t i = 0; response",
          "        held.lock();\n        --fetches;\n"
          "        held.unlock();\n        sched_yield();\n        held.lock();\n        ++fetches;\n        held.unlock();\n"
          "        std::size_t claimed = 0;\n        for (std::size_t i = 0; response"),
    Fault("the report of a lost job waits for its next try", "worker/detail/worker_state.ipp",
          "        job.is_lost = true;\n        retry_reports();\n", "        job.is_lost = true;\n"),
    Fault("stopped_token() is cancelled during the last on_transition", "stop/detail/machine.ipp",
          "            while (self->transitions_due_ == 1) pause_for(milliseconds(5));  // not if an earlier one hangs\n", ""),
    Fault("nobody is told of the end", "stop/detail/machine.ipp",
          "has_ended = true; });\n        changed.notify_all();\n", "has_ended = true; });\n"),
    Fault("a registration ends during its callback", "core/cancel_token.ipp",
          "        while (running_id == id && !pthread_equal(running_thread, pthread_self())) changed.wait(held);\n", ""),
]  # fmt: skip


def put_back(fault, folder):
    """A copy of the sources in the folder, with the fault."""
    shutil.copytree(SOURCE, folder / "src")
    file = folder / "src" / "ojs" / fault.file
    text = file.read_text()
    if text.count(fault.now) != 1:
        sys.exit(f"{fault.title}: {text.count(fault.now)} times in {fault.file}, not once:\n{fault.now}")
    file.write_text(text.replace(fault.now, fault.then))
    return folder / "src"


def build(source, program, compiler):
    files = sorted(SIM.glob("*.cpp"))
    subprocess.run([compiler, *OPTIONS, f"-I{source}", f"-I{SIM}", *files, "-o", program], check=True)
    return program


def search(program, today, seconds):
    """The seed of the first schedule that fails, but not without the fault, and what it violates; or None."""
    command = [program, "--first", "1", "--seconds", str(seconds), "--failures", "1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        for line in process.stdout:
            if not line.startswith("FAILED"):
                continue
            seed, violation = re.search(r"seed (\d+)", line)[1], next(process.stdout).strip()
            if subprocess.run([today, "--seed", seed], capture_output=True).returncode == 0:
                return seed, violation
        return None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", metavar="REGEX", default="", help="faults whose title matches it")
    options.add_argument("--seconds", type=int, default=600, help="of search for each")
    options.add_argument("--cxx", default="g++")
    given = options.parse_args()
    faults = [fault for fault in FAULTS if re.search(given.only, fault.title)]
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        today = build(SOURCE, Path(folder) / "today", given.cxx)
        for fault in faults:
            with tempfile.TemporaryDirectory() as own:
                program = build(put_back(fault, Path(own)), Path(own) / "sim", given.cxx)
                began = time.monotonic()
                seed, violation = search(program, today, given.seconds) or ("-", "not found")
                seconds = time.monotonic() - began
            found += seed != "-"
            print(f"{fault.title} | {seed} | {seconds:.1f} | {violation}", flush=True)
    print(f"{found} of {len(faults)} found")
    return found < len(faults)


if __name__ == "__main__":
    sys.exit(main())
