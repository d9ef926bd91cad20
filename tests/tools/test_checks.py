"""checks.py: what it counts, also with a make of its own, whose checks say when they ran, and how."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import checks

CHECKS = Path(__file__).with_name("checks.py")


class Count(unittest.TestCase):
    def test_passed_failed_and_skipped_are_counted_from_the_output(self):
        doctest = "[doctest] test cases: 7 | 6 passed | {} failed | 2 skipped\n"
        unittests = "Ran 5 tests in 0.1s\n\n"
        for output, status, cases, expected in (
            (doctest.format(1), 1, 0, (6, 1, 2)),
            (doctest.format(1), 1, 3, (2, 1, 2)),  # a part of the cases
            (doctest.format(0), 1, 0, (6, 1, 2)),  # it crashed on its way out
            ("half of the cases\n", 0, 3, (0, 1, 0)),  # no summary
            (unittests + "OK (skipped=2)\n", 0, 0, (3, 0, 2)),
            (unittests + "FAILED (failures=1, errors=2)\n", 1, 0, (2, 3, 0)),
            ("Ran 0 tests in 0.0s\n\nOK\n", 0, 0, (0, 1, 0)),  # it proves nothing
            ("1 passed, 0 failed\n5 passed, 2 failed, 1 skipped\n", 1, 0, (5, 2, 1)),  # the last line counts
            ("", 0, 0, (1, 0, 0)), ("", 1, 0, (0, 1, 0)), ("", checks.SKIPPED, 0, (0, 0, 1)),
        ):  # fmt: skip
            with self.subTest(output=output, status=status, cases=cases):
                self.assertEqual(expected, checks.count(output, status, cases))


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

    def test_checks_print_the_total_last_and_count_failed_builds(self):
        self.assertEqual((0, "2 passed, 0 failed"), self.last(*self.run_checks("format", "a/unit")))
        status, lines = self.run_checks("format", "build/unit")
        self.assertEqual((1, "1 passed, 1 failed"), self.last(status, lines))
        self.assertIn("FAILED build/unit: could not be built or started", lines)

    def last(self, status, lines):
        return status, lines[-1]

    def test_an_exclusive_check_runs_while_no_other_check_runs(self):
        seen = self.folder / "seen"
        look = f"if flock -n -s {self.folder}/results/.lock true; then echo shared; else echo alone; fi >>{seen}"
        self.run_checks("interop", "a/b", command=look)
        self.assertCountEqual(["alone", "shared"], seen.read_text().split())

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


if __name__ == "__main__":
    unittest.main()
