#!/usr/bin/env python3
"""What the simulation is worth: puts faults of the library's history back, one at a time, and lets it look for each.

    past.py [--only REGEX] [--seconds N] [--cxx COMPILER]

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

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
OPTIONS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-mismatched-new-delete", "-DOJS_SHUTDOWN_USE_PROC=0",
           "-DOJS_SHUTDOWN_USE_UNWIND=0"]  # fmt: skip

# file: below src/ojs; now: a text in it; then: the one from before the commit that the title names
Fault = collections.namedtuple("Fault", "title file now then")

FAULTS = [
    Fault("1edc59ba the answer to a query about an earlier claim marks the next one as lost",
          "worker/state/active_job.ipp",
          """\
        if (claim_number_ != claim) return false;
        flags.add(job_flags::reassigned);
        if (claim_number_ == claim) return true;
        flags.remove(job_flags::reassigned);
        return false;
""",
          "        flags.add(job_flags::reassigned);\n        return static_cast<void>(claim), true;\n"),
    Fault("ee520aea a FAIL after the lease is sent beside a FETCH, and ends the next claim",
          "worker/jobs/send_report.ipp",
          "if (report_.ack || !(may_have_arrived_ || lease_over))", "if (report_.ack || !may_have_arrived_)"),
    Fault("050c06d5 a job that is claimed again while its ACK is due runs twice", "worker/state/active_job.ipp",
          "known = job->claim_again(candidate, from) || known;",
          "known = (!job->taken() && job->claim_again(candidate, from)) || known;"),
    Fault("df28c57d a thread that is left behind calls the log hook of a destroyed worker",
          "loop/detail/user_code.ipp",
          "if (entered) return log.hook(record);",
          "return log.hook(record);"),
    Fault("f5d69161 a job that the stop finds before its handler began is failed, not handed back",
          "worker/jobs/call_threads.ipp", "if (!job.began()) return unstarted(worker_);\n        ", ""),
    Fault("f563dd29 a start that fails leaves its heartbeats behind", "worker/stop/supervisor.ipp",
          "        while (pool_->threads.live() > 0) worker_.supervisor.wait_until(deadline_after(max_sleep));\n", ""),
    Fault("2c18d9d0 a handler begins although the stop has taken its job", "worker/state/active_job.ipp",
          "if (group_->abandoned() || !flags.begin()) return false;",
          "if (abandoned()) return false;\n        flags.add(job_flags::began);"),
    Fault("1409e7e7 a late thread registers the worker after its last heartbeat", "worker/jobs/heartbeat.ipp",
          "[this] { return !worker_.beats.has_last_begun(); };\n        const result<void>",
          "[] { return true; };\n        const result<void>"),
    Fault("7ec9b1d7 a resume of an outside lifecycle beside its quiet is lost", "loop/detail/stop_machine.ipp",
          "        apply_if(now.phase == phase::running && before.phase == phase::quiet, event::resume_request);\n",
          ""),
    Fault("51d1aa9c a report thread that has ended counts: nobody reports what a late FETCH brings",
          "worker/jobs/call_threads.ipp", "if (!closed_) {", "{"),
    Fault("370780a5 a job that a response holds twice is reported twice", "worker/jobs/fetcher.ipp",
          "} else if (!added.has(job.id)) {", "} else {"),
    Fault("4651b3ed a FETCH that ends the drain does not wake the supervisor", "worker/jobs/fetcher.ipp",
          "        worker_.leave(ticket);\n", ""),
    # Found by the simulation.
    Fault("two run() calls with one lifecycle: the first to end takes the signal handlers with it",
          "loop/detail/runs.ipp",
          "if (shares_ && --all_runs.shares == 0)", "if (shares_ && --all_runs.shares >= 0)"),
    Fault("a report that is accepted as the stop gives it up counts twice", "worker/state/job_tally.ipp",
          "if (!job.flags.add(job_flags::counted)) return;",
          "if (!job.flags.add(job_flags::counted) && status == job_status::unreported) return;"),
    Fault("without memory the copy of an error ends the process", "base/error.ipp",
          "detail::copy_if_memory(other.text)",
          "other.text"),
    Fault("a cancelled rollout starts more processes than it may", "launcher/detail/process_group.hpp",
          "if (rollout_) free = std::min(free, rollout_->max_total", "if (is_replacing()) free = std::min(free, rollout_->max_total"),
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
    files = sorted(HERE.glob("*.cpp"))
    subprocess.run([compiler, *OPTIONS, f"-I{source}", f"-I{HERE}", *files, "-o", program], check=True)
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
