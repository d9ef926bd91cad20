#!/usr/bin/env python3
"""The recipes of packaging/ for Conan and vcpkg: each one makes its package, and a program built with that runs. And the SBOM.

    CONAN             Conan 2, beside a Python with cyclonedx; default conan
    OJS_TEST_BUILD    the folder with the archive and the SBOM of `make dist`; default build

No collection is asked for anything. Conan is the real one; in the place of vcpkg, tests/packaging/vcpkg_stand_in.cmake runs
the portfile.
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

    def test_it_has_the_schema_of_cyclonedx(self):
        text = SBOM.read_text()
        self.assertEqual(self.validated(text), "valid\n")
        self.assertIn("bogus", self.validated(text.replace('"SHA-256"', '"bogus"', 1)))


class Recipe(Outside):
    NEEDS = ["cmake"]

    def files(self, folder):
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Conan(Recipe):
    NEEDS = ["cmake", CONAN]
    FILES = [*HEADERS, "licenses/LICENSE"]

    def setUp(self):
        super().setUp()
        self.env = {**os.environ, "CONAN_HOME": str(self.folder / "home"), "CXX": CXX}
        self.conan("profile", "detect")

    def conan(self, *words):
        return run(CONAN, *words, env=self.env, cwd=self.folder)

    def create(self, recipe, *more):
        return self.conan("create", recipe, "--no-remote", "--settings=compiler.cppstd=17", "--settings=build_type=Debug",
                          f"--conf=tools.cmake.cmake_layout:test_folder={self.folder}/test",
                          "--conf=tools.cmake.cmaketoolchain:user_presets=", *more)

    def assert_package_is_whole(self):
        made = self.conan("list", f"ojs_shutdown/{VERSION}:*", "--format=json")
        (package,) = re.findall(r'"packages": \{\s*"([0-9a-f]+)"', made)
        where = Path(self.conan("cache", "path", f"ojs_shutdown/{VERSION}:{package}").strip())
        self.assertEqual([each for each in self.files(where) if not each.startswith("conan")], self.FILES)
        for each in ["ojs_shutdown.hpp", *(f"extensions/{name}" for name in EXTENSIONS)]:
            self.assertEqual((where / "include" / Path(each).name).read_bytes(), (ROOT / each).read_bytes(), each)

    def test_from_a_checkout(self):
        before = self.files(RECIPE)
        self.assertIn(VERDICT, self.create(RECIPE))
        self.assert_package_is_whole()
        self.assertEqual(self.files(RECIPE), before)

    def test_from_a_release_as_in_a_collection(self):
        recipe = self.folder / "all"
        shutil.copytree(RECIPE, recipe)
        sources = {VERSION: {"url": ARCHIVE.as_uri(), "sha256": hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()}}
        (recipe / "conandata.yml").write_text(json.dumps({"sources": sources}))  # which YAML can read
        self.create(recipe, f"--version={VERSION}", "--test-folder=")  # the same files: the program above ran with them
        self.assert_package_is_whole()

    def test_not_for_windows_nor_for_less_than_cpp17(self):
        for setting, complaint in [("os=Windows", "POSIX"), ("compiler.cppstd=14", "17")]:
            with self.subTest(setting), self.assertRaisesRegex(AssertionError, f"Invalid.*\n*.*{complaint}"):
                self.conan("create", RECIPE, "--no-remote", f"--settings={setting}", "--test-folder=")


class Vcpkg(Recipe):
    def test_the_version_is_the_header_s(self):
        port = json.loads((PORT / "vcpkg.json").read_text())
        self.assertEqual(port["version"], VERSION)
        self.assertRegex(port["name"], r"^[a-z0-9]+(-[a-z0-9]+)*$")  # vcpkg's own rule
        needed = {each if isinstance(each, str) else each["name"] for each in port["dependencies"]}
        self.assertEqual(needed, {"vcpkg-cmake", "vcpkg-cmake-config"})

    def test_what_the_portfile_makes_is_a_package_that_can_be_moved(self):
        name = json.loads((PORT / "vcpkg.json").read_text())["name"]
        installed, packages = self.folder / "installed", self.folder / "packages"
        installed.mkdir()
        folders = {"PORT_DIR": PORT, "INSTALLED_DIR": installed, "PACKAGES_DIR": packages,
                   "BUILDTREES_DIR": self.folder / "buildtrees"}
        run("cmake", f"-DPORT={name}", *(f"-DCURRENT_{key}={value}" for key, value in folders.items()),
            "-P", ROOT / "tests/packaging/vcpkg_stand_in.cmake", env={**os.environ, "CXX": CXX})
        config = [f"share/ojs_shutdown/ojs_shutdown-{each}.cmake" for each in ["config", "config-version"]]
        self.assertEqual(self.files(packages), sorted([
            *HEADERS, *config, f"share/{name}/copyright", f"share/{name}/usage"]))
        for each in config:
            self.assertNotIn(str(self.folder), (packages / each).read_text())
        installed_elsewhere = (ROOT / "packaging/ojs_shutdown-config.cmake").read_text()  # whose targets packaging_test.py builds
        self.assertEqual((packages / config[0]).read_text(), installed_elsewhere)
        shutil.copytree(packages, installed, dirs_exist_ok=True)
        shutil.rmtree(packages)
        moved = self.folder / "moved"
        installed.rename(moved)
        self.assert_usage_works(moved, (PORT / "usage").read_text())

    def assert_usage_works(self, prefix, usage):
        lines = [line.strip() for line in usage.splitlines() if line.startswith("    ")]
        links = [line for line in lines if line.startswith("target_link_libraries(main ")]
        self.assertEqual(len(links), 2)
        project = self.folder / "user"
        project.mkdir()
        (project / "main.cpp").write_text(SMALL)
        programs = [line for number, link in enumerate(links)
                    for line in (f"add_executable(main{number} main.cpp)", link.replace("(main ", f"(main{number} "))]
        (project / "CMakeLists.txt").write_text("\n".join([
            "cmake_minimum_required(VERSION 3.15)", "project(user LANGUAGES CXX)",
            *(line for line in lines if line not in links), *programs, ""]))
        run("cmake", "-S", project, "-B", project / "out", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={CXX}")
        run("cmake", "--build", project / "out", "--target", "main0")  # the headers; the definitions take long to compile
        self.assert_works(project / "out/main0")


if __name__ == "__main__":
    unittest.main()
