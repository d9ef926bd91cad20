"""A release is ready for its tag: one version everywhere, and what the forge reads is what its authors meant."""

import importlib.util
import os
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

    def test_macros_agree(self):
        parts = [re.search(rf"#define OJS_SHUTDOWN_VERSION_{each} (\d+) ", CONFIG).group(1) for each in ("MAJOR", "MINOR", "PATCH")]
        self.assertEqual(".".join(parts), VERSION)

    def test_the_newest_section_of_the_changelog_is_this_version(self):
        headings = re.findall(r"(?m)^## (.*)$", read("CHANGELOG.md"))
        self.assertEqual(headings[0], f"[{VERSION}]")
        self.assertEqual(len(headings), len(set(headings)))

    def test_documents_name_no_other(self):
        patterns = r"ojs_shutdown[ -](\d+\.\d+\.\d+)", r"GIT_TAG v(\S+?)\)", r"download/v(\d+\.\d+\.\d+)/", r"the tag `v(\S+)`"
        named = {}
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.yml")]:
            for pattern in patterns:
                named.update((version, path) for version in re.findall(pattern, path.read_text()))
        self.assertEqual(set(named), {VERSION}, named)


@unittest.skipUnless(importlib.util.find_spec("yaml"), "there is no yaml module (Debian: python3-yaml)")
class Forge(unittest.TestCase):
    def load(self, path):
        return importlib.import_module("yaml").safe_load(read(path))

    def test_the_workflow_runs_what_developers_run(self):
        workflow = self.load(".github/workflows/ci.yml")
        (job,) = workflow["jobs"].values()
        commands = [step["run"] for step in job["steps"] if "run" in step]
        self.assertEqual(commands[-1], ".ci/run ${{ matrix.lane }}")
        lanes = {each["lane"]: each.get("options") for each in job["strategy"]["matrix"]["include"]}
        self.assertEqual(lanes, {"quick": None, "ci": None, "container-test": "--privileged"})
        self.assertTrue(os.access(ROOT / ".ci/run", os.X_OK))
        self.assertIn(" make", commands[0])  # with which .ci/run installs the rest
        self.assertEqual(workflow["permissions"], {"contents": "read"})
        self.assertEqual(set(workflow[True]), {"push", "pull_request"})  # `on`, in YAML 1.1

    def test_the_issue_template_asks_for_the_doctor(self):
        template = self.load(".github/ISSUE_TEMPLATE/bug.yml")
        self.assertLessEqual({"name", "description", "body"}, set(template))
        asked = {each["id"]: each for each in template["body"] if each["type"] in ("input", "textarea")}
        self.assertIn("worker --doctor", asked["doctor"]["attributes"]["description"])
        self.assertTrue(all(each["attributes"]["label"] and each["validations"]["required"] for each in asked.values()))


if __name__ == "__main__":
    unittest.main()
