#!/usr/bin/env python3
"""The runs behind docs/evidence.md, one after another, with what each counted:

    account.py [--scale X] [--seed N] [--only NAME,NAME...]

--scale 1 takes two hours on two processors; 0.01 is a trial. The last line is "N held, N broken". What a run printed is in
build/account/NAME.log; the seed repeats its random choices.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "build/test/header-separate"
LOGS = ROOT / "build/account"
DOCTEST = r"(?:MESSAGE: (.*)|\[doctest\] test cases: *(.*?) *\|[^|]*skipped)$"


class Row:
    """One run: a command, the variables whose values grow with the scale, and what of its output is a figure."""

    def __init__(self, name, command, figures=DOCTEST, **counts):
        self.name, self.command, self.figures, self.counts = name, command, figures, counts

    def variables(self, scale):
        return {name: str(max(1, int(value * scale))) for name, value in self.counts.items()}


def cases(suite, files):
    return [str(TESTS / suite), f"--source-file={','.join(f'*/{name}.cpp' for name in files.split())}"]


def under(kind, command):
    return ["tests/tools/duress.sh", kind, *command]


STOPS = cases("process", "stopping interruptions rfc_041")
NETWORK = ["python3", "-B", "tests/network/network.py"]
BOOKS = r"^((?:jobs|expired claims|taken back|events|workers|broken): .*)$"
HOSTS = ("busy", "hogs", "user", "quota", "freezes", "one-cpu", "bare")
ROWS = [
    Row("workers", [*NETWORK, "workers"], BOOKS, OJS_TEST_WORKERS=10000),
    Row("network", NETWORK, BOOKS, OJS_TEST_JOBS=10000),
    Row("spool", cases("recovery", "spool_crash")),
    Row("checkpoints", cases("recovery", "checkpoints")),
    Row("store", cases("process", "backend_store"), OJS_TEST_JOBS=10000, OJS_TEST_KILLS=100),
    Row("rolls", ["make", "-s", "fleet-demo"], r"^(.*(?:lost|failed).*)$"),
    Row("river", ["make", "-s", "river-chaos"], r"^(\w[\w ]*: .*)$", JOBS_TO_RUN=20000),
    Row("tls", ["make", "-s", "adapters-test"], r"^(ok .*|FAILED .*)$"),
    Row("weak-memory", ["build/test/src/weak_memory"]),
    Row("fuzz", ["make", "-s", "fuzz"], r"^(build/fuzz/\S+: *\S*number_of_executed_units: \d+|.*failed.*)$", SECONDS=900),
    Row("sim", ["make", "-s", "sim"], r"^(\d+ schedules .*|FAILED .*)$", SECONDS=3600),
    Row("mutants", ["make", "-s", "mutants"], r"^(.*(?:%|SEED).*)$", N=60),
    *(Row(f"host-{kind}", under(kind, STOPS)) for kind in HOSTS),
    # Leases that are longer than such a host keeps a process from running.
    *(Row(f"host-{kind}-workers", under(kind, [*NETWORK, "workers"]), BOOKS, OJS_TEST_WORKERS=300, OJS_TEST_LEASE=10)
      for kind in HOSTS),
]  # fmt: skip


def run(row, scale, seed):
    """Whether everything held."""
    chosen = {"OJS_TEST_SEED": str(seed), **row.variables(scale)}
    shown = " ".join(f"{name}={value}" for name, value in chosen.items())
    print(f"\n{row.name}: {shown} {' '.join(row.command)}".replace(f"{ROOT}/", ""), flush=True)
    began = time.monotonic()
    environment = {**os.environ, "OJS_TEST_BIN": str(TESTS), **chosen}
    with open(LOGS / f"{row.name}.log", "w+", encoding="utf-8", errors="replace") as log:
        status = subprocess.call(row.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.seek(0)
        for line in log:
            if found := re.search(row.figures, line.rstrip()):
                print("    " + next(filter(None, found.groups())))
    print(f"    {'held' if status == 0 else f'BROKEN, status {status}'}, {time.monotonic() - began:.0f} s", flush=True)
    return status == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--only", default="", help="some of the runs, separated by commas")
    options = parser.parse_args()
    names = [row.name for row in ROWS]
    chosen = options.only.split(",") if options.only else names
    if unknown := set(chosen) - set(names):
        parser.error(f"no run is called {', '.join(sorted(unknown))}; they are {', '.join(names)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    held = [run(row, options.scale, options.seed) for row in ROWS if row.name in chosen]
    print(f"\n{held.count(True)} held, {held.count(False)} broken")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
