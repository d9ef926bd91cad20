#!/usr/bin/env python3
"""Runs checks side by side, while make builds what they need, and sums them up.

    checks.py all FOLDER NAME...           has make make each FOLDER/NAME; ends with the line "N passed, N failed"
    checks.py one FOLDER/NAME COMMAND...   runs one check; always exits 0, so that make continues with the next check

Each check has a result file of its own, so one that fails, crashes, hangs or cannot even be built does not hide the
others.

Not ctest: it tests what is built, or starts a make for each test, and these would race for the objects they share. Here one
make builds and tests, so that compilers use the processors that waiting tests leave. ctest also counts a program as one
test, not its cases, and knows no niceness.
"""

import fcntl
import itertools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# How a check runs: TESTS mostly wait, and measure time. What only COMPILES takes the processor that tests and their
# compilers leave. One that runs ALONE has no other check beside it.
TESTS, COMPILES, ALONE = range(3)
# The first row that fits a check says how it runs and how many seconds it may take. Checks begin in the order of the
# rows, the minutes first: what begins last must not go on alone.
PLAN = [
    (r"header/(unit|internals)", TESTS, 600),
    (r"asan/.*", TESTS, 600),
    (r"tsan/.*", TESTS, 1500),
    (r"packaging", COMPILES, 1200),
    (r"container", TESTS, 600),
    (r"duress/.*", ALONE, 3000),
    (r".*/(process|recovery)", TESTS, 600),
    (r".*-linux-.*/(unit|portable)", TESTS, 1800),
    (r".*/unit", TESTS, 600),
    (r"debian-13/.*", TESTS, 3600),
    (r"recipes|subprojects|tools", COMPILES, 1200),
    (r"warnings/g\+\+/optimised", COMPILES, 2400),
    (r"warnings/.*/c\+\+17", COMPILES, 1200),
    (r".*/weak_memory", TESTS, 600),
    (r"variants|warnings/.*", COMPILES, 1200),
    (r"observability/.*|interop|server", ALONE, 600),
    (r"sim/.*", COMPILES, 600),
    (r"fuzz/.*", COMPILES, None),  # libFuzzer has limits of its own
    (r"analysis/.*|format|api|amalgamation|header/compile/.*|compiled/.*|(adapters|queues)/warnings", COMPILES, 1200),
    (r".*", TESTS, 600),
]
# Test programs mostly wait: so many of each run side by side, with a part of the cases each.
PARTS = [(r"src-separate/unit", 8), (r"[^/]+/(process|unit|internals)", 4), (r"[^/]+/recovery", 2)]
SLOWEST = 10  # cases listed at the end
# Compilers yield to tests. The minute that compiles all tests as one file goes before the rest.
LOWER = "LOWER=nice -n $(if $(filter %/layers/unit.o %/layers/internals.o,$@),5,10)"

DOCTEST = re.compile(r"\[doctest\] test cases:\s*\d+ \|\s*(\d+) passed \|\s*(\d+) failed \|\s*(\d+) skipped")
# With --duration, doctest puts a heading above the one line with a case's time, also above that of one that passed.
DURATION_HEADING = re.compile(r"={79}\n(?:[^\n]+\n)+\n(?:DEEPEST SUBCASE[^\n]*\n(?: [^\n]+\n)+\n)?(?=[\d.]+ s: )")
DURATION = re.compile(r"^[\d.]+ s: .*\n", re.MULTILINE)
FAILURE = re.compile(r"^(?:TEST CASE:  .*|\S+: (?:FATAL )?ERROR: .*)\n", re.MULTILINE)
CASES = re.compile(r"^\[doctest\] .*test cases .*filters: (\d+)", re.MULTILINE)
LAST_DURATIONS = 3  # of a failed run: after a crash, the last case named is the last one that came to its end
UNITTEST = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
UNITTEST_BAD = re.compile(r"(?:failures|errors)=(\d+)")
UNITTEST_SKIPPED = re.compile(r"skipped=(\d+)")
SKIPPED = 77  # exit status of a script that cannot do here what it is for
SCRIPT = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)


def count(output, status, cases):
    """(passed, failed, skipped) as the output of doctest, unittest or a script of ours tells; any other is one case."""
    found = DOCTEST.search(output)
    ran = UNITTEST.search(output)
    script = SCRIPT.findall(output)
    if found:
        passed, failed, skipped = map(int, found.groups())
        passed = cases - failed if cases else passed  # doctest counts the cases of the other extensions as passed
    elif ran:
        verdict = output[ran.end() :]
        failed = sum(map(int, UNITTEST_BAD.findall(verdict)))
        skipped = sum(map(int, UNITTEST_SKIPPED.findall(verdict)))
        passed = int(ran.group(1)) - failed - skipped
    elif script:
        passed, failed, skipped = (int(number or 0) for number in script[-1])
    elif cases:  # it ended before its summary, be it with status 0
        return 0, 1, 0
    elif status == SKIPPED:
        return 0, 0, 1
    else:
        return (1, 0, 0) if status == 0 else (0, 1, 0)
    # A test program that ran nothing proves nothing; one that fails without a failed case crashed on its way out, or
    # a sanitizer spoke up.
    if failed == 0 and (passed + skipped == 0 or status != 0):
        failed = 1
    return passed, failed, skipped


def shortened(output):
    """The output of a run that failed, without the cases that passed but the last ones; then its errors once more."""
    output = DURATION_HEADING.sub("", output)
    ended = DURATION.findall(output)
    output = DURATION.sub("", output)
    return "".join([output, *ended[-LAST_DURATIONS:], *FAILURE.findall(output)])


def row_of(name):
    return next(at for at, (pattern, _, _) in enumerate(PLAN) if re.fullmatch(pattern, name))


def parts_of(name, command):
    """[(command, number of its cases)]: the command as it is, number 0, or once for each part of its test cases."""
    parts = next((parts for pattern, parts in PARTS if re.fullmatch(pattern, name)), 1)
    counts = [*command, "--count"] if parts > 1 else ["true"]
    listed = subprocess.run(counts, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout
    cases = int((CASES.search(listed) or ["", 0])[1])
    if cases == 0:
        return [(command, 0)]
    ends = [cases * part // parts for part in range(parts + 1)]
    return [([*command, f"--first={before + 1}", f"--last={last}"], last - before)
            for before, last in zip(ends, ends[1:]) if before < last]  # fmt: skip


def start(command, niceness):
    # A group of its own, so that a test which hangs, or is interrupted with us, ends together with its children. Not
    # a session: there SIGTSTP would no longer stop anything.
    def prepare():
        os.setpgrp()
        os.nice(niceness)

    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=prepare
    )


def result_of(process, cases, limit):
    """(output, passed, failed, skipped) of a process, which is killed with its children after so many seconds."""
    try:
        output = process.communicate(timeout=limit)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            output = process.communicate(timeout=5)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:  # a child that left the group still holds the pipe
            output = ""
        output += f"\nkilled: still running after {limit:.0f} s\n"
    status = process.returncode
    if status is not None and status < 0:
        output += f"\nended by signal {-status}\n"
    return output, *count(output, status, cases)


def run(parts, how, limit):
    """The result_of each part; they run side by side."""
    processes = [start(command, 19 if how == COMPILES else 0) for command, _ in parts]
    try:
        with ThreadPoolExecutor(len(processes)) as pool:
            return list(pool.map(result_of, processes, [cases for _, cases in parts], itertools.repeat(limit)))
    except BaseException:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        raise


def one(result, command):
    folder, name = result.split("results/")
    _, how, limit = PLAN[row_of(name)]
    result = Path(result)
    result.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lock = open(f"{folder}results/.lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX if how == ALONE else fcntl.LOCK_SH)
    started = time.monotonic()
    outputs, passed, failed, skipped = zip(*run(parts_of(name, command), how, limit))
    seconds = time.monotonic() - started
    # Of parts that ran side by side, only those that failed; all of them count.
    shown = shortened("".join(text for text, bad in zip(outputs, failed) if bad) or "".join(outputs))
    passed, failed, skipped = sum(passed), sum(failed), max(skipped)  # each part counts all that are skipped
    verdict = "FAILED" if failed else "ok"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = f"{seconds:.1f} s, CPU time {used.ru_utime + used.ru_stime:.1f} s"
    head = f"{verdict:6} {name}: {passed} passed, {failed} failed ({took})"
    if skipped:  # neither passed nor failed, and not to be overlooked
        head += f", {skipped} SKIPPED"
    print((shown + "\n" if failed or not passed else "") + head, flush=True)
    again = result.with_name(result.name + ".failed")  # for the end of a long log, see .ci/run
    if failed:
        again.write_text(f"{shown}\n{head}\n")
    else:
        again.unlink(missing_ok=True)
    result.write_text(f"{passed} {failed} {skipped}\n" + "".join(DURATION.findall("".join(outputs))))


def total(folder, names):
    passed = failed = skipped = 0
    durations = []
    for name in names:
        result = folder / name
        if result.exists():
            counts, *cases = result.read_text().splitlines()
            good, bad, left_out = map(int, counts.split())
            durations += [(float(case.split()[0]), f"{name}: {case.split(': ', 1)[1]}") for case in cases]
        else:
            good, bad, left_out = 0, 1, 0
            print(f"FAILED {name}: could not be built or started")
        passed += good
        failed += bad
        skipped += left_out
    if durations:
        print("slowest cases:")
    for seconds, case in sorted(durations, reverse=True)[:SLOWEST]:
        print(f"{seconds:6.1f} s  {case}")
    if skipped:
        print(f"{skipped} skipped: left out below a sanitizer, or what they need is missing or not permitted here")
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed + skipped else 0


def all_of(folder, names):
    shutil.rmtree(folder, ignore_errors=True)
    # The caller's -j is for what compiles, not for what waits.
    flags = re.sub(r"(^| )(-j\d*|--jobserver\S*)", "", os.environ.get("MAKEFLAGS", ""))
    goals = [str(folder / name) for name in sorted(names, key=row_of)]
    command = [os.environ.get("MAKE", "make"), "-s", "-k", f"-j{os.cpu_count() + 4}", LOWER, *goals]
    make = subprocess.Popen(command, env={**os.environ, "MAKEFLAGS": flags})
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: make.send_signal(number))
    return 1 if make.wait() < 0 else total(folder, names)


def main():
    what, path, *rest = sys.argv[1:]
    return one(path, rest) if what == "one" else all_of(Path(path), rest)


if __name__ == "__main__":
    sys.exit(main())
