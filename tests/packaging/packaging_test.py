#!/usr/bin/env python3
"""The ways into another project: each one builds examples/hello_worker.cpp outside the tree and runs it; and what `make dist`
makes. What it takes:

    OJS_TEST_BUILD    a folder to work in, with the workers of `make dist`; default build
    CXX               the compiler; default c++

Without cmake or pkg-config its part is skipped; in CI (CI=true) that is a failure.
"""

import functools
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("OJS_TEST_BUILD", "build")).resolve()
CXX = os.environ.get("CXX", "c++")
VERSION = re.search(r'OJS_SHUTDOWN_VERSION "(.*)"', (ROOT / "src/ojs/base/config.hpp").read_text()).group(1)
HELLO = (ROOT / "examples/hello_worker.cpp").read_text()
PROJECT = """\
cmake_minimum_required(VERSION 3.14)
project(user LANGUAGES CXX)
add_executable(app hello.cpp)
"""
EXTENSIONS = [path.name for path in (ROOT / "extensions").iterdir()]
HEADERS = sorted(["ojs_shutdown.hpp", "ojs_shutdown_bundled.hpp", "ojs_shutdown_core.hpp", *EXTENSIONS])
DOCUMENT = (ROOT / "docs/installing.md").read_text()


def documented(word):
    """The lines for CMake that the document gives, as a user with this checkout would write them."""
    (block,) = [each for each in re.findall(r"```cmake\n(.*?)```", DOCUMENT, re.DOTALL) if word in each]
    return block.replace("/path/to/ojs_shutdown", str(ROOT))


def run(*command, **how):
    words = [str(word) for word in command]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, **how)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make(*words):
    return run("make", "-s", "-C", ROOT, f"BUILD={BUILD}", *words)


class Outside(unittest.TestCase):
    """In a folder that is not below the tree, with an installation of the header beside it."""

    NEEDS = []

    def setUp(self):
        for program in self.NEEDS:
            if not shutil.which(program):
                if os.environ.get("CI"):
                    self.fail(f"there is no {program}")
                self.skipTest(f"there is no {program}")
        self.folder = Path(tempfile.mkdtemp(prefix="ojs-packaging-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "hello.cpp").write_text(HELLO)
        self.prefix = self.folder / "prefix"

    def assert_works(self, program):
        # It wants a backend to do more; that it starts and says what is wrong with its settings is all that is asked.
        done = subprocess.run([program], env={"OJS_URL": "nowhere"}, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 64, done.stdout + done.stderr)
        self.assertIn("OJS_URL", done.stdout + done.stderr)

    def compile(self, *flags, source="hello.cpp"):
        run(CXX, "-std=c++17", *flags, source, "-o", "hello", cwd=self.folder)
        return self.folder / "hello"


class Installed(Outside):
    def test_what_is_put_there_is_taken_away(self):
        make("install", f"PREFIX={self.prefix}")
        files = sorted(str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if path.is_file())
        self.assertEqual(files, [*(f"include/{each}" for each in HEADERS), "lib/pkgconfig/ojs_shutdown.pc"])
        self.assertEqual((self.prefix / "include/ojs_shutdown.hpp").read_bytes(), (ROOT / "ojs_shutdown.hpp").read_bytes())
        make("uninstall", f"PREFIX={self.prefix}")
        self.assertEqual([path for path in self.prefix.rglob("*") if path.is_file()], [])

    def test_destdir_is_in_no_file(self):
        make("install", "PREFIX=/usr", f"DESTDIR={self.prefix}")
        config = (self.prefix / "usr/lib/pkgconfig/ojs_shutdown.pc").read_text()
        self.assertIn("prefix=/usr\n", config)
        self.assertNotIn(str(self.prefix), config)

    def test_the_single_file_needs_no_picojson(self):
        make("install", f"PREFIX={self.prefix}")
        (self.folder / "hello.cpp").write_text(HELLO.replace("ojs_shutdown.hpp", "ojs_shutdown_bundled.hpp"))
        no_picojson = ROOT / "tests/compile/no_picojson"  # where picojson.h is an error
        self.assert_works(self.compile("-pthread", f"-I{self.prefix}/include", f"-I{no_picojson}"))

    def test_the_core_is_a_header_of_its_own(self):
        make("install", f"PREFIX={self.prefix}")
        example = (ROOT / "examples/own_loop.cpp").read_text()
        (self.folder / "hello.cpp").write_text(example.replace("ojs_shutdown.hpp", "ojs_shutdown_core.hpp"))
        program = self.compile("-pthread", f"-I{self.prefix}/include")
        self.assertEqual(subprocess.run([program, "soon"], capture_output=True).returncode, 64)


class Program:
    """What the headers of a 64-bit, little-endian ELF file say."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        assert self.bytes[:6] == b"\x7fELF\x02\x01", path
        self.type, self.machine = struct.unpack_from("<HH", self.bytes, 16)
        segments, sections = struct.unpack_from("<QQ", self.bytes, 32)
        segment_size, segment_count, section_size, section_count = struct.unpack_from("<HHHH", self.bytes, 54)
        at = range(segments, segments + segment_size * segment_count, segment_size)
        self.segments = {struct.unpack_from("<I", self.bytes, each)[0] for each in at}
        at = range(sections, sections + section_size * section_count, section_size)
        self.sections = {struct.unpack_from("<I", self.bytes, each + 4)[0] for each in at}


class Dist(unittest.TestCase):
    # The number that ELF has for the processor, and what runs its programs elsewhere.
    WORKERS = {"x86_64": (62, "qemu-x86_64-static"), "aarch64": (183, "qemu-aarch64-static")}
    DYN, INTERP, RELRO, SYMTAB = 3, 3, 0x6474E552, 2
    MAX_BYTES = 700_000

    @classmethod
    def setUpClass(cls):
        make("dist")

    def worker(self, processor):
        return BUILD / "dist" / f"worker-{processor}"

    def test_the_sums_are_those_of_all_files(self):
        said = run("sha256sum", "-c", "SHA256SUMS", cwd=BUILD / "dist").split()
        files = [*HEADERS, *(f"worker-{each}" for each in self.WORKERS)]
        self.assertEqual(sorted(said), sorted(word for each in files for word in (f"{each}:", "OK")))

    def test_made_elsewhere_the_headers_are_the_same(self):
        with tempfile.TemporaryDirectory(prefix="ojs-dist-") as elsewhere:
            run("make", "-s", "-C", ROOT, f"BUILD={elsewhere}", *(f"{elsewhere}/dist/{each}" for each in HEADERS))
            for each in HEADERS:
                self.assertEqual((Path(elsewhere) / "dist" / each).read_bytes(), (BUILD / "dist" / each).read_bytes())

    def test_the_workers_are_static_small_and_know_no_place(self):
        for processor, (machine, _) in self.WORKERS.items():
            with self.subTest(processor):
                program = Program(self.worker(processor))
                self.assertEqual((program.type, program.machine), (self.DYN, machine))
                self.assertNotIn(self.INTERP, program.segments)
                self.assertIn(self.RELRO, program.segments)
                self.assertNotIn(self.SYMTAB, program.sections)
                self.assertLessEqual(len(program.bytes), self.MAX_BYTES)
                for place in [ROOT, BUILD, Path.home()]:
                    self.assertNotIn(str(place).encode() + b"/", program.bytes)

    def test_the_workers_run(self):
        for processor, (_, emulator) in self.WORKERS.items():
            with self.subTest(processor):
                emulated = [] if processor == platform.machine() else [emulator]
                if emulated and not shutil.which(emulator):
                    self.skipTest(f"there is no {emulator}")
                self.assertIn("usage: worker", run(*emulated, self.worker(processor), "--help"))


class PkgConfig(Outside):
    NEEDS = ["pkg-config"]

    def test_flags_and_version(self):
        make("install", f"PREFIX={self.prefix}")
        env = {**os.environ, "PKG_CONFIG_PATH": f"{self.prefix}/lib/pkgconfig"}
        self.assertEqual(run("pkg-config", "--modversion", "ojs_shutdown", env=env).strip(), VERSION)
        flags = run("pkg-config", "--cflags", "--libs", "ojs_shutdown", env=env).split()
        self.assert_works(self.compile(*flags))


@functools.cache
def installed_by_cmake():
    """Where; one for all tests, as it takes compiling the definitions."""
    folder = Path(tempfile.mkdtemp(prefix="ojs-installed-"))
    unittest.addModuleCleanup(shutil.rmtree, folder)
    run("cmake", "-S", ROOT, "-B", folder / "lib", f"-DCMAKE_INSTALL_PREFIX={folder}/prefix", f"-DCMAKE_CXX_COMPILER={CXX}")
    run("cmake", "--build", folder / "lib")
    run("cmake", "--install", folder / "lib")
    shutil.rmtree(folder / "lib")
    return folder / "prefix"


class CMake(Outside):
    NEEDS = ["cmake"]

    def build(self, lines, *settings):
        (self.folder / "CMakeLists.txt").write_text(PROJECT + lines)
        run("cmake", "-S", self.folder, "-B", self.folder / "out", f"-DCMAKE_CXX_COMPILER={CXX}", *settings)
        run("cmake", "--build", self.folder / "out")
        self.assert_works(self.folder / "out/app")

    def test_find_package(self):
        lines = documented("find_package")
        self.assertIn(VERSION, lines)
        for target in ["ojs_shutdown::ojs_shutdown", "ojs_shutdown::separate", "ojs_shutdown::server"]:
            with self.subTest(target):
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                self.build(lines.replace("ojs_shutdown::ojs_shutdown", target), f"-DCMAKE_PREFIX_PATH={installed_by_cmake()}")

    def test_another_version_is_not_found(self):
        where = f"-DCMAKE_PREFIX_PATH={installed_by_cmake()}"
        with self.assertRaisesRegex(AssertionError, f"version: {VERSION}"):
            self.build("find_package(ojs_shutdown 99.0 REQUIRED)\n", where)

    def test_fetch_content(self):
        self.build(documented("FetchContent"))

    def test_add_subdirectory(self):
        self.build(documented("add_subdirectory"))


if __name__ == "__main__":
    unittest.main()
