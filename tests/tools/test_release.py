"""A release is ready for its tag: one version everywhere."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = (ROOT / "src/ojs/base/config.hpp").read_text()
VERSION = re.search(r'#define OJS_SHUTDOWN_VERSION "(.*)"', CONFIG).group(1)


def read(path):
    return (ROOT / path).read_text()


class Version(unittest.TestCase):
    """Those of the images are in test_deploy.py, of the CMake package and pkg-config in tests/packaging/, of each header and
    its namespace in tools/amalgamate.py."""

    def test_version_macros_agree(self):
        parts = [re.search(rf"#define OJS_SHUTDOWN_VERSION_{each} (\d+) ", CONFIG).group(1) for each in ("MAJOR", "MINOR", "PATCH")]
        self.assertEqual(".".join(parts), VERSION)

    def test_the_newest_section_of_the_changelog_is_this_version(self):
        headings = re.findall(r"(?m)^## (.*)$", read("CHANGELOG.md"))
        self.assertEqual(headings[0], f"[{VERSION}]")
        self.assertEqual(len(headings), len(set(headings)))

    def test_documents_name_no_other_version(self):
        patterns = r"ojs_shutdown[ -](\d+\.\d+\.\d+)", r"GIT_TAG v(\S+?)\)", r"download/v(\d+\.\d+\.\d+)/", r"the tag `v(\S+)`"
        named = {}
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.yml")]:
            for pattern in patterns:
                named.update((version, path) for version in re.findall(pattern, path.read_text()))
        self.assertEqual(set(named), {VERSION}, named)


if __name__ == "__main__":
    unittest.main()
