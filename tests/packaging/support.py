"""What both tests of packages share."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("OJS_TEST_BUILD", "build")).resolve()
CXX = os.environ.get("CXX", "c++")
VERSION = re.search(r'OJS_SHUTDOWN_VERSION "(.*)"', (ROOT / "src/ojs/base/config.hpp").read_text()).group(1)
EXTENSIONS = [path.name for path in (ROOT / "extensions").iterdir()]
RELEASE = BUILD / "dist" / f"ojs_shutdown-{VERSION}"
ARCHIVE = RELEASE / f"ojs_shutdown-{VERSION}.tar.gz"
SBOM = RELEASE / f"ojs_shutdown-{VERSION}.cdx.json"
# It needs the definitions, but few of them: a compiler takes a quarter of the time of a whole worker's.
SMALL = """\
#include "ojs_shutdown.hpp"
int main() {
    const auto options = ojs::worker_options::from_environment();
    return options ? 0 : ojs::report_startup_error(options.error());
}
"""


def run(*command, **how):
    words = [str(word) for word in command]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=600, **how)  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}")
    return done.stdout


class Outside(unittest.TestCase):
    """In a folder that is not below the tree."""

    NEEDS = []

    def setUp(self):
        for program in self.NEEDS:
            if not shutil.which(program):
                if os.environ.get("CI"):
                    self.fail(f"there is no {program}")
                self.skipTest(f"there is no {program}")
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-packaging-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def assert_works(self, program):
        # It starts and says what is wrong with its settings.
        done = subprocess.run([program], env={"OJS_CONCURRENCY": "none"}, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 64, done.stdout + done.stderr)
        self.assertIn("OJS_CONCURRENCY", done.stdout + done.stderr)
