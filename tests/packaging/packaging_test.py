#!/usr/bin/env python3
"""The ways into another project: each one builds a program outside the tree and runs it; and what `make dist` makes. What it
takes:

    OJS_TEST_BUILD    a folder to work in, with the static programs of `make dist`; default build
    CXX               the compiler; default c++

Without cmake or pkg-config its part is skipped; in CI (CI=true) that is a failure.
"""

import functools
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import ARCHIVE, BUILD, CXX, EXTENSIONS, RELEASE, ROOT, SBOM, SMALL, VERSION, Outside, run

HELLO = (ROOT / "examples/hello_worker.cpp").read_text()
PROJECT = """\
cmake_minimum_required(VERSION 3.14)
project(user LANGUAGES CXX)
add_executable(app hello.cpp)
"""
HEADERS = sorted(["ojs_shutdown.hpp", "ojs_shutdown_bundled.hpp", "ojs_shutdown_core.hpp", "ojs_shutdown_loop.hpp",
                  *EXTENSIONS])
LIBRARIES = {"tls": "openssl", "river": "libpq", "amqp": "rabbitmq-c", "redis_streams": "hiredis"}  # of extensions
PACKAGE = ["share/ojs_shutdown/ojs_shutdown-config-version.cmake", "share/ojs_shutdown/ojs_shutdown-config.cmake"]
DOCUMENT = (ROOT / "docs/start.md").read_text()


def documented(word, language="cmake"):
    """The block of the document with that word."""
    (block,) = [each for each in re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL) if word in each]
    return block


def make(*words):
    return run("make", "-s", "-C", ROOT, f"BUILD={BUILD}", *words)


class Program(Outside):
    """With an installation of the header beside it."""

    def setUp(self):
        super().setUp()
        (self.folder / "hello.cpp").write_text(SMALL)
        self.prefix = self.folder / "prefix"

    def compile(self, *flags):
        run(CXX, "-std=c++17", *flags, "hello.cpp", "-o", "hello", cwd=self.folder)
        return self.folder / "hello"


class Installed(Program):
    def test_installed_files_do_not_contain_destdir_and_uninstall_removes_them(self):
        where = ["PREFIX=/usr", f"DESTDIR={self.folder}"]
        prefix = self.folder / "usr"
        make("install", *where)
        files = sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file())
        self.assertEqual(files, [*(f"include/{each}" for each in HEADERS), "lib/pkgconfig/ojs_shutdown.pc", *PACKAGE])
        self.assertEqual((prefix / "include/ojs_shutdown.hpp").read_bytes(), (ROOT / "ojs_shutdown.hpp").read_bytes())
        self.assertIn("prefix=/usr\n", (prefix / "lib/pkgconfig/ojs_shutdown.pc").read_text())
        for each in files:
            self.assertNotIn(str(self.folder), (prefix / each).read_text(), each)
        make("uninstall", *where)
        left = {str(path.relative_to(prefix)) for path in prefix.rglob("*")}
        self.assertEqual(left, {"include", "lib", "lib/pkgconfig", "share"})

    def test_the_bundled_header_and_an_extension_compile_without_other_files(self):
        make(*(RELEASE / each for each in ["ojs_shutdown_bundled.hpp", "ojs_spool.hpp"]))
        shutil.copy(RELEASE / "ojs_shutdown_bundled.hpp", self.folder / "ojs_shutdown.hpp")
        shutil.copy(RELEASE / "ojs_spool.hpp", self.folder)
        (self.folder / "hello.cpp").write_text('#include "ojs_spool.hpp"\n' + SMALL)
        no_picojson = ROOT / "tests/compile/no_picojson"  # where picojson.h is an error
        self.assert_works(self.compile("-pthread", f"-I{no_picojson}"))

    def test_the_loop_compiles_from_ojs_shutdown_loop_hpp_alone(self):
        make("install", f"PREFIX={self.prefix}")
        example = (ROOT / "examples/own_loop.cpp").read_text()
        (self.folder / "hello.cpp").write_text(example.replace("ojs_shutdown.hpp", "ojs_shutdown_loop.hpp"))
        program = self.compile("-pthread", f"-I{self.prefix}/include")
        self.assertEqual(subprocess.run([program, "soon"], capture_output=True).returncode, 64)


class Dist(unittest.TestCase):
    PROCESSORS = os.environ.get("PROCESSORS", "x86_64 aarch64").split()
    READELF_CALLS_IT = {"x86_64": "X86-64", "aarch64": "AArch64"}
    MAX_BYTES = {"worker": 760_000, "shutdown-probe": 410_000}

    @classmethod
    def setUpClass(cls):
        RELEASE.mkdir(parents=True, exist_ok=True)
        (RELEASE / "stale").touch()
        make("dist")

    def test_sha256sums_covers_every_release_file(self):
        said = run(*documented("sha256sum", "sh").split("\n")[0].split(), cwd=RELEASE).split()
        programs = [f"{program}-{processor}" for program in self.MAX_BYTES for processor in self.PROCESSORS]
        files = [*HEADERS, *programs, ARCHIVE.name, SBOM.name, "RELEASE_NOTES.md", "LICENSE"]
        self.assertEqual(sorted(said), sorted(word for each in files for word in (f"{each}:", "OK")))
        self.assertEqual({path.name for path in RELEASE.iterdir()}, {*files, "SHA256SUMS"})

    def test_the_sbom_lists_the_hash_and_components_of_every_release_file(self):
        bill = json.loads(SBOM.read_text())
        sums = dict(line.split()[::-1] for line in (RELEASE / "SHA256SUMS").read_text().splitlines())
        del sums[SBOM.name]
        files = [each for each in bill["components"] if each["type"] == "file"]
        self.assertEqual({each["name"]: each["hashes"][0]["content"] for each in files}, sums)
        needs = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
        self.assertEqual(needs.pop("ojs_shutdown"), sorted(sums))
        self.assertEqual(needs[f"worker-{self.PROCESSORS[0]}"], ["llvm-libcxx", "musl", "picojson"])
        self.assertEqual({name: needs[name] for name in EXTENSIONS if needs[name]},
                         {f"ojs_{name}.hpp": [library] for name, library in LIBRARIES.items()})

    def test_a_signature_of_the_sums_is_verified_as_documented(self):
        (verify,) = [line for line in documented("sha256sum", "sh").splitlines() if "minisign" in line]
        with tempfile.TemporaryDirectory(prefix="ojs-signed-") as folder:
            shutil.copy(RELEASE / "SHA256SUMS", folder)
            run("minisign", "-G", "-W", "-p", "ojs_shutdown.pub", "-s", "key", cwd=folder)
            run("minisign", "-S", "-s", "key", "-m", "SHA256SUMS", cwd=folder)
            self.assertIn("verified", run(*verify.split(), cwd=folder))

    def test_a_release_built_in_another_folder_is_identical(self):
        names = [*HEADERS, ARCHIVE.name, "RELEASE_NOTES.md"]
        with tempfile.TemporaryDirectory(prefix="ojs-dist-") as elsewhere:
            release = Path(elsewhere) / "dist" / RELEASE.name
            run("make", "-s", "-C", ROOT, f"BUILD={elsewhere}", *(release / each for each in names))
            for each in names:
                self.assertEqual((release / each).read_bytes(), (RELEASE / each).read_bytes(), each)

    def test_release_notes_equal_the_section_of_the_changelog(self):
        notes = (RELEASE / "RELEASE_NOTES.md").read_text()
        section = (ROOT / "CHANGELOG.md").read_text().split(f"## [{VERSION}]", 1)[1].split("\n", 1)[1]
        self.assertEqual(notes, section.split("\n## ")[0] if "\n## " in section else section)
        self.assertIn("### Added", notes)

    def test_released_programs_run_are_static_small_and_contain_no_build_path(self):
        for (name, max_bytes), processor in itertools.product(self.MAX_BYTES.items(), self.PROCESSORS):
            with self.subTest(name, processor=processor):
                path = RELEASE / f"{name}-{processor}"
                headers = run("readelf", "-hlSW", path, env={**os.environ, "LC_ALL": "C"})
                self.assertRegex(headers, rf"Type: +DYN .*\n.*Machine: .*{self.READELF_CALLS_IT[processor]}\n")
                self.assertIn("GNU_RELRO", headers)
                for part in ["INTERP", ".symtab"]:
                    self.assertNotIn(part, headers)
                content = path.read_bytes()
                self.assertLessEqual(len(content), max_bytes)
                for place in [ROOT, BUILD, Path.home()]:
                    self.assertNotIn(str(place).encode() + b"/", content)
                emulator = [] if processor == platform.machine() else [f"qemu-{processor}-static"]
                if emulator and not shutil.which(*emulator):
                    self.skipTest(f"there is no {emulator[0]}")
                self.assertIn(f"usage: {name}", run(*emulator, path, "--help"))


class PkgConfig(Program):
    NEEDS = ["pkg-config"]

    def test_pkg_config_gives_the_version_and_working_flags(self):
        make("install", f"PREFIX={self.prefix}")
        env = {**os.environ, "PKG_CONFIG_PATH": f"{self.prefix}/lib/pkgconfig"}
        self.assertEqual(run("pkg-config", "--modversion", "ojs_shutdown", env=env).strip(), VERSION)
        flags = run("pkg-config", "--cflags", "--libs", "ojs_shutdown", env=env).split()
        (self.folder / "hello.cpp").write_text(HELLO)  # a whole worker, once
        self.assert_works(self.compile(*flags))


@functools.cache
def installed_by(tool):
    """Where; one installation for all tests."""
    prefix = Path(tempfile.mkdtemp(prefix="ojs-installed-"))
    unittest.addModuleCleanup(shutil.rmtree, prefix)
    if tool == "make":
        make("install", f"PREFIX={prefix}")
        return prefix
    # The document's commands, from a fresh configuration; not in the build folder of make.
    for line in documented("cmake --install", "sh").splitlines():
        words = [{"build": prefix / "build", "/usr/local": prefix}.get(word, word) for word in line.split()]
        run(*words, cwd=ROOT, env={**os.environ, "CXX": CXX})
    shutil.rmtree(prefix / "build")
    return prefix


class CMake(Program):
    NEEDS = ["cmake"]

    def configure(self, lines, tool=None):
        (self.folder / "CMakeLists.txt").write_text(PROJECT + lines)
        where = [f"-DCMAKE_PREFIX_PATH={installed_by(tool)}"] if tool else []
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        run("cmake", "-S", self.folder, "-B", self.folder / "out", f"-DCMAKE_CXX_COMPILER={CXX}", *where)

    def build(self, lines, tool=None):
        self.configure(lines, tool)
        run("cmake", "--build", self.folder / "out", "--target", "app")
        self.assert_works(self.folder / "out/app")

    def test_find_package_works_after_make_install_and_cmake_install(self):
        for name in [*PACKAGE, "include/ojs_shutdown.hpp"]:
            self.assertEqual((installed_by("make") / name).read_text(), (installed_by("cmake") / name).read_text())
        lines = documented("find_package")
        self.assertIn(VERSION, lines)
        for tool, target in [("make", "ojs_shutdown"), ("cmake", "server")]:
            with self.subTest(target, tool=tool):
                self.build(lines.replace("ojs_shutdown::ojs_shutdown", f"ojs_shutdown::{target}"), tool)

    def test_cmake_has_a_target_for_every_extension(self):
        names = [re.fullmatch(r"ojs_(\w+)\.hpp", each).group(1) for each in EXTENSIONS]
        asked = "".join(f"if(NOT TARGET ojs_shutdown::{each})\nmessage(FATAL_ERROR {each})\nendif()\n" for each in names)
        self.configure("find_package(ojs_shutdown REQUIRED)\n" + asked, "make")

    def test_two_subprojects_can_use_the_package_and_export_a_library(self):
        part = self.folder / "part"
        part.mkdir()
        (part / "part.cpp").touch()
        (part / "CMakeLists.txt").write_text(
            "find_package(ojs_shutdown REQUIRED)\nadd_library(part STATIC part.cpp)\n"
            "target_link_libraries(part PRIVATE ojs_shutdown::separate)\n"
            "install(TARGETS part EXPORT part ARCHIVE DESTINATION lib)\ninstall(EXPORT part DESTINATION share/part)\n")
        self.configure("add_subdirectory(part)\nfind_package(ojs_shutdown REQUIRED)\n"
                       "target_link_libraries(app PRIVATE part ojs_shutdown::separate)\n", "make")
        self.assertEqual(len(list((self.folder / "out").rglob("ojs_shutdown_separate.cpp"))), 1)

    def test_find_package_accepts_only_a_compatible_version(self):
        major, minor, _ = VERSION.split(".")
        for asked in ["99.0", f"{major}.{int(minor) + 1}", f"{VERSION}.1", f"{int(major) + 1}.{minor}"]:
            with self.subTest(asked), self.assertRaisesRegex(AssertionError, f"version: {VERSION}"):
                self.configure(f"find_package(ojs_shutdown {asked} REQUIRED)\n", "make")
        for asked in ["", f"{major}.{minor}", f"{VERSION} EXACT"]:
            self.configure(f"find_package(ojs_shutdown {asked} REQUIRED)\n", "make")

    def test_fetch_content_by_url_builds_and_a_wrong_hash_fails(self):
        make(ARCHIVE)
        (self.folder / "third_party").mkdir()
        shutil.copy(ARCHIVE, self.folder / "third_party")
        lines = documented("URL_HASH")
        (placeholder,) = re.findall(r"SHA256=(\w+)", lines)
        with self.assertRaisesRegex(AssertionError, "hash"):
            self.configure(lines.replace(placeholder, "0" * 64))
        self.build(lines.replace(placeholder, hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()))

    def test_add_subdirectory_as_documented_builds(self):
        (self.folder / "third_party").mkdir()
        (self.folder / "third_party/ojs_shutdown").symlink_to(ROOT)
        self.build(documented("add_subdirectory"))


if __name__ == "__main__":
    unittest.main()
