"""tests/conformance/run.sh with a backend and a runner that do nothing: what it calls, and what it counts."""

import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("level-0-core", "level-1-reliable", "ext-graceful-shutdown")
BACKEND = "#!/bin/sh\necho listening on 127.0.0.1:1\nexec sleep 60\n"
RUNNER = """#!/bin/sh
echo "$@" >>"$0.calls"
[ "$1" != --silent ] || exit 0
echo '  L0-ENV-001     Valid minimal job     PASS     3ms'
echo "  ${1#--also=}     Another     FAIL     12ms"
exit 1
"""


class Conformance(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.runner = self.program("runner", RUNNER)
        self.program("dev_backend", BACKEND)

    def program(self, name, text):
        out = self.folder / name
        out.write_text(text)
        out.chmod(0o755)
        return out

    def run_suites(self, runner, suites=None):
        return subprocess.run([ROOT / "tests/conformance/run.sh", self.folder, suites or self.folder, runner], text=True,
                              capture_output=True, timeout=120)

    def test_the_runner_of_the_user_is_called_for_each_suite(self):
        done = self.run_suites(f"{self.runner} --also=L9-NEW-001")
        calls = Path(f"{self.runner}.calls").read_text().splitlines()
        expected = "--also=L9-NEW-001 -url http://127.0.0.1:1 -reset-url http://127.0.0.1:1/dev/reset -suites {}/{} -verbose"
        self.assertEqual(calls, [expected.format(self.folder, each) for each in SUITES])
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.count("FAILED: L9-NEW-001 Another"), 3)
        self.assertTrue(done.stdout.endswith("\n3 passed, 3 failed\n"), done.stdout)

    def test_what_counts(self):
        known = (ROOT / "tests/conformance/contradictions.txt").read_text().split()[0]
        rows = {f"--also={known}": (0, "3 passed, 0 failed"),  # it contradicts the specification
                "--silent": (1, "0 passed, 3 failed")}  # it prints no case
        for flag, expected in rows.items():
            done = self.run_suites(f"{self.runner} {flag}")
            self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), expected)

    def test_without_a_runner_or_suites_it_says_how_it_is_called(self):
        for arguments in ("", None), (self.runner, "/nowhere"):
            done = self.run_suites(*arguments)
            self.assertEqual(done.returncode, 64)
            self.assertIn("RUNNER='COMMAND' SUITE_DIR=DIR", done.stderr)


if __name__ == "__main__":
    unittest.main()
