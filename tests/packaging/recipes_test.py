#!/usr/bin/env python3
"""The recipe for Conan makes its package, and a program built with that runs; the SBOM has its schema.

    CONAN             Conan 2, beside a Python with cyclonedx; default conan
    OJS_TEST_BUILD    the folder with the archive and the SBOM of `make dist`; default build

No collection is asked for anything. There is no vcpkg here: of its port only the names and the version are compared.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

from support import ARCHIVE, CXX, EXTENSIONS, ROOT, SBOM, SMALL, VERSION, Outside, run

CONAN = os.environ.get("CONAN", "conan")
RECIPE = ROOT / "packaging/conan"
PORT = ROOT / "packaging/vcpkg"
HEADERS = sorted(f"include/{each}" for each in ["ojs_shutdown.hpp", *EXTENSIONS])
VERDICT = f"ojs_shutdown {VERSION}: status 0, job completed"


VALIDATOR = """\
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()) or "valid"))
"""


class Sbom(unittest.TestCase):
    def validated(self, text):
        python = Path(CONAN).parent / "python"
        return subprocess.run([python, "-c", VALIDATOR], input=text, capture_output=True, text=True).stderr

    def test_the_sbom_is_valid_cyclonedx(self):
        text = SBOM.read_text()
        self.assertEqual(self.validated(text), "valid\n")
        self.assertIn("bogus", self.validated(text.replace('"SHA-256"', '"bogus"', 1)))


class Conan(Outside):
    NEEDS = ["cmake", CONAN]

    def setUp(self):
        super().setUp()
        self.env = {**os.environ, "CONAN_HOME": str(self.folder / "home"), "CXX": CXX}
        self.conan("profile", "detect")

    def files(self, folder):
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    def conan(self, *words):
        return run(CONAN, *words, env=self.env, cwd=self.folder)

    def create(self, recipe, *more):
        return self.conan("create", recipe, "--settings=compiler.cppstd=17", "--settings=build_type=Debug",
                          f"--conf=tools.cmake.cmake_layout:test_folder={self.folder}/test",
                          "--conf=tools.cmake.cmaketoolchain:user_presets=", *more)

    def assert_package_is_whole(self):
        made = self.conan("list", f"ojs_shutdown/{VERSION}:*", "--format=json")
        (package,) = re.findall(r'"packages": \{\s*"([0-9a-f]+)"', made)
        where = Path(self.conan("cache", "path", f"ojs_shutdown/{VERSION}:{package}").strip())
        self.assertEqual([each for each in self.files(where) if not each.startswith("conan")],
                         [*HEADERS, "licenses/LICENSE"])
        for each in ["ojs_shutdown.hpp", *(f"extensions/{name}" for name in EXTENSIONS)]:
            self.assertEqual((where / "include" / Path(each).name).read_bytes(), (ROOT / each).read_bytes(), each)

    def test_conan_creates_the_package_from_a_checkout(self):
        before = self.files(RECIPE)
        self.assertIn(VERDICT, self.create(RECIPE))
        self.assert_package_is_whole()
        self.assertEqual(self.files(RECIPE), before)

    def test_conan_creates_the_package_from_a_release_archive(self):
        recipe = self.folder / "all"
        shutil.copytree(RECIPE, recipe)
        sources = {VERSION: {"url": ARCHIVE.as_uri(), "sha256": hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()}}
        (recipe / "conandata.yml").write_text(json.dumps({"sources": sources}))  # which YAML can read
        self.create(recipe, f"--version={VERSION}", "--test-folder=")  # the same files: the program above ran with them
        self.assert_package_is_whole()

    def test_conan_refuses_windows_and_cpp14(self):
        for setting, complaint in [("os=Windows", "POSIX"), ("compiler.cppstd=14", "17")]:
            with self.subTest(setting), self.assertRaisesRegex(AssertionError, f"Invalid.*\n*.*{complaint}"):
                self.conan("create", RECIPE, "--no-remote", f"--settings={setting}", "--test-folder=")


class Vcpkg(unittest.TestCase):
    def test_the_vcpkg_port_has_this_version_and_existing_targets(self):
        port = json.loads((PORT / "vcpkg.json").read_text())
        self.assertEqual(port["version"], VERSION)
        self.assertEqual({each["name"] for each in port["dependencies"]}, {"vcpkg-cmake", "vcpkg-cmake-config"})
        config = (ROOT / "packaging/ojs_shutdown-config.cmake").read_text()
        targets = re.findall(r"ojs_shutdown::\w+", (PORT / "usage").read_text())
        self.assertEqual(len(targets), 2)
        for target in targets:
            self.assertIn(f"add_library({target} ", config)


if __name__ == "__main__":
    unittest.main()
