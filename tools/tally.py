#!/usr/bin/env python3
"""Runs one check and writes down how many cases passed and failed; sums up what was written down.

    tally.py run [--limit SECONDS] FILE COMMAND...   always exits 0, so that make goes on with the next check
    tally.py sum FILE...                             ends with the line "N passed, N failed"; exits 1 on failures

The Makefile runs every check through this, each with a result file of its own, so checks may run at the same time and
one that fails, crashes, hangs or cannot even be built does not hide the others.
"""

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

DOCTEST = re.compile(r"\[doctest\] test cases:\s*\d+ \|\s*(\d+) passed \|\s*(\d+) failed \|\s*(\d+) skipped")
# With --duration, doctest puts a heading above the one line that tells how long a case took.
DURATION_HEADING = re.compile(r"={79}\n(?:[^\n]+\n)+\n(?=[\d.]+ s: )")
DURATION = re.compile(r"^[\d.]+ s: .*\n", re.MULTILINE)
LAST_DURATIONS = 3  # of a failed run: after a crash, the last case named is the last one that came to its end
UNITTEST = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
UNITTEST_BAD = re.compile(r"(?:failures|errors)=(\d+)")
UNITTEST_SKIPPED = re.compile(r"skipped=(\d+)")
SKIPPED = 77  # exit status of a script that cannot do here what it is for
SCRIPT = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)


def count(output, status):
    """(passed, failed, skipped) as the output of doctest, unittest or a script of ours tells; any other is one case."""
    found = DOCTEST.search(output)
    ran = UNITTEST.search(output)
    script = SCRIPT.findall(output)
    if found:
        passed, failed, skipped = map(int, found.groups())
    elif ran:
        verdict = output[ran.end() :]
        failed = sum(map(int, UNITTEST_BAD.findall(verdict)))
        skipped = sum(map(int, UNITTEST_SKIPPED.findall(verdict)))
        passed = int(ran.group(1)) - failed - skipped
    elif script:
        passed, failed, skipped = (int(number or 0) for number in script[-1])
    elif status == SKIPPED:
        return 0, 0, 1
    else:
        return (1, 0, 0) if status == 0 else (0, 1, 0)
    # A test program that ran nothing proves nothing; one that fails without a failed case crashed on its way out, or
    # a sanitizer spoke up.
    if failed == 0 and (passed + skipped == 0 or status != 0):
        failed = 1
    return passed, failed, skipped


def name(result):
    """build/results/header/unit -> header/unit"""
    return result.as_posix().split("results/")[-1]


def told(output):
    """The output of a run that failed, without the cases that passed but the last ones."""
    output = DURATION_HEADING.sub("", output)
    passed = DURATION.findall(output)
    return DURATION.sub("", output) + "".join(passed[-LAST_DURATIONS:])


def run(result, limit, command):
    started = time.monotonic()
    result.parent.mkdir(parents=True, exist_ok=True)
    # A group of its own, so that a test which hangs, or is interrupted with us, ends together with its children. Not
    # a session: there SIGTSTP would no longer stop anything.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=os.setpgrp
    )
    try:
        output = process.communicate(timeout=limit)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            output = process.communicate(timeout=5)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:  # a child that left the group still holds the pipe
            output = ""
        output += f"\nkilled: still running after {limit:.0f} s\n"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    status = process.returncode
    if status is not None and status < 0:
        output += f"\nended by signal {-status}\n"
    passed, failed, skipped = count(output, status)
    seconds = time.monotonic() - started
    verdict = "FAILED" if failed else "ok"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = f"{seconds:.1f} s, of a processor {used.ru_utime + used.ru_stime:.1f} s"
    head = f"{verdict:6} {name(result)}: {passed} passed, {failed} failed ({took})"
    if skipped:  # neither passed nor failed, and not to be overlooked
        head += f", {skipped} SKIPPED"
    tell = failed or not passed
    print((told(output) + "\n" if tell else "") + head, flush=True)
    again = result.with_suffix(".failed")  # for the end of a long log, see .ci/run
    if failed:
        again.write_text(f"{told(output)}\n{head}\n")
    else:
        again.unlink(missing_ok=True)
    result.write_text(f"{passed} {failed} {skipped}\n")


def total(results):
    passed = failed = skipped = 0
    for result in results:
        if result.exists():
            good, bad, left_out = map(int, result.read_text().split())
        else:
            good, bad, left_out = 0, 1, 0
            print(f"FAILED {name(result)}: could not be built or started")
        passed += good
        failed += bad
        skipped += left_out
    if skipped:
        print(f"{skipped} skipped: what they need is not there or not permitted on this machine")
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed + skipped else 0


def main():
    parser = argparse.ArgumentParser(description="Runs checks and sums them up.")
    commands = parser.add_subparsers(dest="what", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--limit", type=float, default=600, metavar="SECONDS")
    runner.add_argument("result", type=Path)
    runner.add_argument("command", nargs=argparse.REMAINDER)
    summer = commands.add_parser("sum")
    summer.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    if options.what == "sum":
        return total(options.results)
    run(options.result, options.limit, options.command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
