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
    def test_the_runner_is_called_for_each_suite_and_its_failures_are_counted(self):
        known = (ROOT / "tests/conformance/contradictions.txt").read_text().split()[0]
        with tempfile.TemporaryDirectory() as folder:
            for name, text in ("runner", RUNNER), ("dev_backend", BACKEND):
                (Path(folder) / name).write_text(text)
                (Path(folder) / name).chmod(0o755)
            runner = f"{folder}/runner"
            for flag, status, last in (("--also=L9-NEW-001", 1, "3 passed, 3 failed"),
                                       (f"--also={known}", 0, "3 passed, 0 failed"),  # it contradicts the specification
                                       ("--silent", 1, "0 passed, 3 failed")):  # it prints no case
                with self.subTest(flag):
                    done = subprocess.run([ROOT / "tests/conformance/run.sh", folder, folder, f"{runner} {flag}"], text=True,
                                          capture_output=True, timeout=120)
                    self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (status, last))
                    self.assertEqual(done.stdout.count("FAILED: L9-NEW-001 Another"), 3 if "NEW" in flag else 0)
                    calls = Path(f"{runner}.calls").read_text().splitlines()[-3:]
                    at = "-url http://127.0.0.1:1 -reset-url http://127.0.0.1:1/dev/reset"
                    self.assertEqual(calls, [f"{flag} {at} -suites {folder}/{each} -verbose" for each in SUITES])


if __name__ == "__main__":
    unittest.main()
