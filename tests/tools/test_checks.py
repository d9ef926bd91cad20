"""checks.py with a make of its own, whose checks say when they ran, and how."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECKS = Path(__file__).with_name("checks.py")


class Checks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "make").write_text(f'#!/bin/sh\nexec make -f {self.folder}/Makefile "$@"\n')
        (self.folder / "make").chmod(0o700)

    def run_checks(self, *names, command="true"):
        """(status, lines): every check is this command, except for build/*, which no rule makes."""
        rule = f"%: FORCE\n\t@{sys.executable} {CHECKS} one $@ sh -c '{command}'\nFORCE:\n"
        (self.folder / "Makefile").write_text(f"{self.folder}/results/{rule}{self.folder}/results/build/%:\n\t@false\n")
        words = [sys.executable, str(CHECKS), "all", str(self.folder / "results"), *names]
        done = subprocess.run(words, env={"PATH": "/usr/bin:/bin", "MAKE": str(self.folder / "make")},
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120)  # fmt: skip
        return done.returncode, done.stdout.splitlines()

    def test_the_sum_is_the_last_line_and_counts_what_could_not_be_built(self):
        self.assertEqual((0, "2 passed, 0 failed"), self.last(*self.run_checks("format", "a/unit")))
        status, lines = self.run_checks("format", "build/unit")
        self.assertEqual((1, "1 passed, 1 failed"), self.last(status, lines))
        self.assertIn("FAILED build/unit: could not be built or started", lines)
        counted = "echo 5 passed, 2 failed, 1 skipped; exit 1"
        self.assertEqual((1, "5 passed, 2 failed"), self.last(*self.run_checks("a/unit", command=counted)))

    def last(self, status, lines):
        return status, lines[-1]

    def test_what_only_compiles_yields_to_tests(self):
        ours = os.nice(0)
        for name, niceness in ("warnings/g++/src", 19), ("a/unit", ours):
            _, lines = self.run_checks(name, command="nice; false")
            self.assertEqual(str(niceness), lines[0])

    def test_the_longest_begin_first_and_those_that_run_alone_have_none_beside_them(self):
        seen = self.folder / "seen"
        look = f"if flock -n -s {self.folder}/results/.lock true; then echo shared; else echo alone; fi >>{seen}"
        self.run_checks("interop", "server", "observability/a", command=look)
        self.run_checks("a/b", command=look)
        self.assertEqual(["alone"] * 3 + ["shared"], seen.read_text().split())

        (self.folder / "make").write_text('#!/bin/sh\necho "$@"\n')
        _, lines = self.run_checks("amalgamation", "a/unit", "warnings/x", "a/process", "header/unit")
        order = [word.split("results/")[1] for word in lines[0].split() if "results/" in word]
        self.assertEqual(["header/unit", "a/process", "a/unit", "warnings/x", "amalgamation"], order)

    def test_cases_run_in_parts_and_the_slowest_are_listed(self):
        filters = "[doctest] unskipped test cases passing the current filters"
        program = self.folder / "program"
        program.write_text(f"""#!/bin/sh
            [ "$1" = --count ] && {{ echo "{filters}: 7"; exit; }}
            echo "0.${{1#--first=}} s: from ${{1#--first=}} to ${{2#--last=}}"
            [ "$1" = --first=1 ] && bad=0 || bad=1
            [ "$1" = --first=6 ] && exit
            echo "bad: $bad"
            echo "[doctest] test cases: 7 | 6 passed | $bad failed | 2 skipped"
            """)
        program.chmod(0o700)
        status, lines = self.run_checks("a/unit", command=f"exec {program} $$0 $$1")
        # The last part ended without its summary.
        self.assertEqual((1, "3 passed, 3 failed"), self.last(status, lines))
        self.assertEqual((2, 0), (lines.count("bad: 1"), lines.count("bad: 0")), "only parts that failed are shown")
        self.assertTrue(lines[-2].startswith("2 skipped"), lines[-2])
        slowest = lines[lines.index("slowest cases:") + 1 : -2]
        parts = ["   0.6 s  a/unit: from 6 to 7", "   0.4 s  a/unit: from 4 to 5",
                 "   0.2 s  a/unit: from 2 to 3", "   0.1 s  a/unit: from 1 to 1"]  # fmt: skip
        self.assertEqual(parts, slowest)

    def test_a_failed_run_is_shown_without_the_cases_that_passed(self):
        line, deepest = "=" * 79, "DEEPEST SUBCASE STACK REACHED (DIFFERENT FROM THE CURRENT ONE):"
        (self.folder / "out").write_text(
            f"{line}\na.cpp:1:\nTEST CASE:  one\n\n0.1 s: one\n"
            f"{line}\na.cpp:2:\nTEST CASE:  two\n\n{deepest}\n  a\n  b\n\n0.2 s: two\n"
            f"{line}\na.cpp:3:\nTEST CASE:  three\n\na.cpp:4: ERROR: CHECK( false )\n\n0.3 s: three\n"
        )
        _, lines = self.run_checks("a/unit", command=f"cat {self.folder}/out; exit 1")
        shown = [line, "a.cpp:3:", "TEST CASE:  three", "", "a.cpp:4: ERROR: CHECK( false )", ""]
        errors = ["TEST CASE:  three", "a.cpp:4: ERROR: CHECK( false )"]
        self.assertEqual(shown + ["0.1 s: one", "0.2 s: two", "0.3 s: three"] + errors, lines[:11])


if __name__ == "__main__":
    unittest.main()
