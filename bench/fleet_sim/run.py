"""Simulates a fleet of workers: python3 run.py --defaults build/fleet_defaults [SCENARIO...]

Prints for each scenario the peak of requests a second as a multiple of the steady load, and how long jobs wait to be
reported.
"""

import argparse
import concurrent.futures
from pathlib import Path

import chart
from inputs import read_inputs
from scenarios import SCENARIOS, TIMES_STEADY, outcome

HEADINGS = ("scenario", "steady/s", "attempts", "peak", "at", "max waiting", "reported after", "unreported",
            "expired")  # fmt: skip


def row(name, found):
    peak, second = found.peak(SCENARIOS[name])
    reported = f"{found.reported_after()} s" if found.reported_after() else "at once"
    return (name, f"{found.steady:,.0f}", f"{found.attempts():.1f}x", f"{peak:.1f}x", f"{second} s",
            f"{max(found.waiting):,}", reported, f"{found.unreported:,}", f"{found.expired:,}")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--defaults", required=True, help="the program that prints the library's defaults")
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--capacity", type=float, default=TIMES_STEADY, help="of the backend, in steady loads")
    parser.add_argument("--svg", type=Path, help="where to draw the curves")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    given = parser.parse_args()
    names = given.scenarios or list(SCENARIOS)
    for name in names:
        if name not in SCENARIOS:
            parser.error(f"{name}: not a scenario; they are {', '.join(SCENARIOS)}")
    if given.workers < 1 or given.capacity <= 0:
        parser.error("--workers and --capacity must be positive")
    inputs = read_inputs(given.defaults)
    print(f"{given.workers:,} workers of {inputs.concurrency} jobs, seed {given.seed}, "
          f"a backend for {given.capacity:g} steady loads\n")  # fmt: skip
    with concurrent.futures.ProcessPoolExecutor() as pool:
        settings = (inputs, given.workers, given.seed, given.capacity)
        running = {name: pool.submit(outcome, name, *settings) for name in names}
        found = {name: each.result() for name, each in running.items()}
    print("| " + " | ".join(HEADINGS) + " |\n" + "|---" * len(HEADINGS) + "|")
    for name in names:
        print("| " + " | ".join(row(name, found[name])) + " |")
    if given.svg:
        given.svg.write_text(chart.drawn(found, given.workers))


if __name__ == "__main__":
    main()
