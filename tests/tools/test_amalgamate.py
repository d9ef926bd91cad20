"""tools/amalgamate.py, run on little trees made for each test."""

import contextlib
import io
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import amalgamate  # noqa: E402

UMBRELLA = """\
// This comment is for readers of src/ only.
#ifndef OJS_SHUTDOWN_HPP
#define OJS_SHUTDOWN_HPP

#include "ojs/base/config.hpp"

// clang-format off
#include "ojs/core/gone.hpp"
// clang-format on

#endif  // OJS_SHUTDOWN_HPP

// clang-format off
// clang-format on

#undef OJS_SHUTDOWN_INLINE
"""

SERVER = """\
// ojs_server.hpp: answers.
#ifndef OJS_SHUTDOWN_SERVER_HPP
#define OJS_SHUTDOWN_SERVER_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MINOR != 2
#error "ojs_server.hpp 1.2.3 and ojs_shutdown.hpp are of different versions"
#endif

// clang-format off
// clang-format on

#endif  // OJS_SHUTDOWN_SERVER_HPP

// clang-format off
// clang-format on
"""

FILES = {
    "base/config.hpp": '// Version.\n#pragma once\n#define OJS_SHUTDOWN_VERSION "1.2.3"\n',
    "base/text.hpp": "// Texts. Fast ones.\n#pragma once\n\n#include <string>\n#include <errno.h>\n\nint text();\n",
    "base/text.ipp": '#include <cstdio>\n#include <string>\n\n#include "text.hpp"\n\nint text() { return 1; }\n',
    "core/gate.hpp": '// gate: a door.\n#pragma once\n\n#include <atomic>\n\n#include "../base/text.hpp"\n\nint gate();\n',
    "core/gate.ipp": '#include "gate.hpp"\n#if FANCY\n#include <sys/fancy.h>\n#endif\n\nint gate() { return text(); }\n',
    "net/json.hpp": '// JSON.\n#pragma once\n\n#include "../base/text.hpp"\n\nint json();\n',
    "net/json.ipp": '#include "json.hpp"\n\nint json() { return 3; }\n',
    "server/server.hpp": '// server: answers.\n#include <string>\n#include "../core/gate.hpp"\n\nint serve();\n',
    "server/server.ipp": '#include <cstdio>\n#include "server.hpp"\n\nint serve() { return gate(); }\n',
}


class AmalgamateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("src/ojs_shutdown.hpp", UMBRELLA)
        self.write("src/ojs_server.hpp", SERVER)
        for name, text in FILES.items():
            self.write(f"src/ojs/{name}", text)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def replace(self, name, old, new):
        """With `old` None the file is written."""
        if old is None:
            return self.write(name, new)
        text = (self.root / name).read_text(encoding="utf-8")
        self.assertIn(old, text)
        self.write(name, text.replace(old, new, 1))

    def call(self, *arguments):
        """As the script; not as a process, which would take most of the time."""
        out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            try:
                status = amalgamate.main(["--root", str(self.root), *arguments])
            except SystemExit as end:
                status = end.code
        out.seek(0)
        return types.SimpleNamespace(returncode=status, stdout=out.read(), stderr=errors.getvalue())

    def header(self, *arguments):
        done = self.call("--output", "-", *arguments)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode, 0)
        return done.stdout

    def assert_refused(self, where, what, fix):
        done = self.call()
        self.assertEqual(done.returncode, 1, done.stdout)
        first, second = done.stderr.rstrip("\n").split("\n")
        self.assertTrue(first.startswith(where + ": "), first)
        self.assertIn(what, first)
        self.assertTrue(second.startswith("  fix: "), second)
        self.assertIn(fix, second)
        self.assertFalse((self.root / "ojs_shutdown.hpp").exists())


class VariantTest(AmalgamateTest):
    def test_including_the_whole_header_after_a_smaller_variant_is_an_error(self):
        whole, core, net = self.header(), self.header("--modules", "core"), self.header("--modules", "net")
        # What was asked for does not count, what is in it does.
        same_as_core = self.header("--modules", "base,core")
        for text, fails in ((core + whole, True), (whole + core, False), (whole + whole, False), (core + net, True),
                            (net + core, True), (core + core, False), (net + net, False), (core + same_as_core, False)):
            done = subprocess.run(["c++", "-x", "c++", "-E", "-Wundef", "-Werror", "-DFANCY=0", "-"], input=text,
                                  capture_output=True, text=True)
            self.assertEqual(fails, done.returncode != 0, done.stderr)
            self.assertEqual(fails, "#error a smaller variant of ojs_shutdown.hpp was included before" in done.stderr)


class CheckTest(AmalgamateTest):
    def test_a_header_that_is_missing_or_differs_in_a_byte_is_not_current(self):
        self.assertEqual(self.call().returncode, 0)
        self.assertEqual(self.call("--check").returncode, 0)
        for path in (self.root / "ojs_shutdown.hpp", self.root / "extensions/ojs_server.hpp"):
            current = path.read_bytes()
            for other in (current + b"\n", current.replace(b"\n", b"\r\n"), b"\xff" + current):
                path.write_bytes(other)
                done = self.call("--check")
                self.assertEqual(done.returncode, 1)
                self.assertIn("fix: python3 tools/amalgamate.py", done.stderr)
                self.assertEqual(path.read_bytes(), other)
            path.unlink()
            self.assertEqual(self.call("--check").returncode, 1)
            path.write_bytes(current)


BITS = '// bits: small things.\n#pragma once\n\nint bits();\n'
# What is done to the tree, as (file below src/, old, new); where that is refused, what is said of it, and the fix.
REFUSALS = {
    "cycle": ([("ojs/base/text.hpp", "#include <errno.h>", '#include "config.hpp"'),
               ("ojs/base/config.hpp", "#pragma once\n", '#pragma once\n#include "text.hpp"\n')],
              "ojs/base/text.hpp:5", "include cycle: ", "file of its own"),
    "upward include": ([("ojs/base/text.ipp", '"text.hpp"', '"../core/gate.hpp"')],
                       "ojs/base/text.ipp:4", "upward include", "move the needed code to base/"),
    "cycle of folders": ([("ojs/net/stop/bits.hpp", None, BITS.replace("int", '#include "../json.hpp"\nnamespace detail {\nint')),
                          ("ojs/net/json.ipp", '"json.hpp"', '"stop/bits.hpp"')],
                         "ojs/net/stop/bits.hpp:4", "include cycle of folders: net -> net/stop -> net", "to the lower folder"),
    "unprefixed macro": ([("ojs/core/gate.ipp", "#if FANCY", "#define FANCY 1\n#if FANCY")],
                         "ojs/core/gate.ipp:2", "macro FANCY", "OJS_SHUTDOWN_"),
    "namespace of another version": ([("ojs/core/gate.hpp", "int gate();", "inline namespace v1_2_2 { int gate(); }")],
                                     "ojs/core/gate.hpp:8", "namespace v1_2_2 is not the version's", "name it v1_2_3"),
    "using namespace": ([("ojs/core/gate.ipp", "int gate()", "using namespace std;\nint gate()")],
                        "ojs/core/gate.ipp:6", "using namespace", "where it is used"),
    **{f"<{name}> in a header": ([("ojs/core/gate.hpp", None, f"// gate: a door.\n#include <{name}>\n")],
                                 "ojs/core/gate.hpp:2", f"<{name}>", "include it in the .ipp")
       for name in "iostream sstream fstream iomanip functional memory mutex thread condition_variable map regex".split()},
    "<sstream> in definitions": ([("ojs/base/text.ipp", "<cstdio>", "<sstream>")],
                                 "ojs/base/text.ipp:1", "<sstream>", "base/detail"),
    "internal names outside of detail": ([("ojs/base/detail/bits.hpp", None, BITS)],
                                         "ojs/base/detail/bits.hpp:1", "internal names", "namespace detail"),
    # Of an extension.
    "the main header uses it": ([("ojs/net/json.ipp", '"json.hpp"', '"../server/server.hpp"')],
                                "ojs/net/json.ipp:1", "upward include", "move the needed code to net/"),
    "another version in its template": ([("ojs_server.hpp", "1.2.3", "1.2.2")],
                                        "ojs_server.hpp:8", "expects version 1.2.2", "write 1.2.3"),
}  # fmt: skip


class RefusalTest(AmalgamateTest):
    def test_each_refusal_names_the_place_and_the_fix(self):
        for name, (edits, where, what, fix) in REFUSALS.items():
            with self.subTest(name):
                self.setUp()
                for path, old, new in edits:
                    self.replace(f"src/{path}", old, new)
                self.assert_refused(f"src/{where}", what, fix)

    def test_allowed_constructs_are_not_refused(self):
        self.replace("src/ojs/core/gate.ipp", "{ return", "{\n    using namespace std;\n    return")
        self.replace("src/ojs/base/text.ipp", "<cstdio>", "<map>")
        self.write("src/ojs/net/detail/bits.ipp", '#include "../json.hpp"\nnamespace detail {\n}\n')
        self.replace("src/ojs/net/json.ipp", '"json.hpp"', '"detail/bits.ipp"')  # each may include the other
        self.assertEqual(self.call().stderr, "")


if __name__ == "__main__":
    unittest.main()
