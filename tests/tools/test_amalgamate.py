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
#include "ojs/base/text.hpp"

#include "ojs/core/gate.hpp"

#include "ojs/net/json.hpp"

#endif  // OJS_SHUTDOWN_HPP

#include "ojs/base/text.ipp"
#include "ojs/core/gate.ipp"
#include "ojs/net/json.ipp"

#undef OJS_SHUTDOWN_INLINE
"""

FILES = {
    "base/config.hpp": '// Version.\n#pragma once\n#define OJS_SHUTDOWN_VERSION "1.2.3"\n',
    "base/text.hpp": "// Texts. Fast ones.\n#pragma once\n\n#include <string>\n#include <errno.h>\n\nint text();\n",
    "base/text.ipp": '#include <cstdio>\n#include <string>\n\n#include "text.hpp"\n\nint text() { return 1; }\n',
    "core/gate.hpp": '// gate: a door.\n#pragma once\n\n#include <atomic>\n\n#include "../base/text.hpp"\n\nint gate();\n',
    "core/gate.ipp": '#include "gate.hpp"\n#if FANCY\n#include <sys/fancy.h>\n#endif\n\nint gate() { return text(); }\n',
    "net/json.hpp": '// JSON.\n#pragma once\n\n#include "../base/text.hpp"\n\nint json();\n',
    "net/json.ipp": '#include "json.hpp"\n\nint json() { return 3; }\n',
}


class AmalgamateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("src/ojs_shutdown.hpp", UMBRELLA)
        for name, text in FILES.items():
            self.write(f"src/ojs/{name}", text)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def replace(self, name, old, new):
        """With `new` None the file is removed, with `old` None it is written."""
        if new is None:
            return (self.root / name).unlink()
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


class OutputTest(AmalgamateTest):
    def test_parts_come_in_the_order_of_the_template_under_markers(self):
        lines = self.header().split("\n")
        markers = [line for line in lines if line.startswith("// ==== ")]
        names = [line[len('#include "ojs/') : -1] for line in UMBRELLA.split("\n") if line.startswith("#include")]
        self.assertEqual(markers, [f"// ==== {name} ====" for name in names])

    def test_only_pragmas_and_local_includes_are_taken_out(self):
        text = self.header()
        self.assertNotIn("#pragma once", text)
        code = text.split("#ifndef OJS_SHUTDOWN_HPP")[1]
        self.assertNotIn('#include "', code)
        for kept in ("int text() { return 1; }", "// gate: a door.", "#undef OJS_SHUTDOWN_INLINE"):
            self.assertIn(kept, code)
        self.assertNotIn("readers of src/ only", text)

    def test_system_includes_are_sorted_and_unique_at_the_top_of_their_block(self):
        declarations, definitions = self.header().split("#endif  // OJS_SHUTDOWN_HPP")
        head = declarations.split("// ==== base/config.hpp")[0]
        self.assertTrue(head.endswith("\n#include <errno.h>\n\n#include <atomic>\n#include <string>\n\n"), head)
        head = definitions.split("// ==== base/text.ipp")[0]
        self.assertEqual(head.strip(), "#include <cstdio>")

    def test_includes_of_a_private_header_go_to_the_definitions(self):
        self.write("src/ojs/core/hidden.hpp", "// Hidden.\n#pragma once\n#include <poll.h>\n")
        self.replace("src/ojs_shutdown.hpp", '#include "ojs/core/gate.ipp"', '#include "ojs/core/hidden.hpp"')
        (self.root / "src/ojs/core/gate.ipp").unlink()
        declarations, definitions = self.header().split("#endif  // OJS_SHUTDOWN_HPP")
        self.assertNotIn("<poll.h>", declarations)
        self.assertTrue(definitions.lstrip().startswith("#include <poll.h>\n\n#include <cstdio>\n"), definitions)

    def test_purpose_may_be_wrapped(self):
        self.replace("src/ojs/core/gate.hpp", "// gate: a door.\n", "// gate: a door\n// to somewhere. And more.\n//\n// More.\n")
        self.assertRegex(self.header(), r"//   core/gate +a door to somewhere\n")

    def test_conditional_includes_stay_where_they_are(self):
        self.assertIn("#if FANCY\n#include <sys/fancy.h>\n#endif\n", self.header())

    def test_internal_parts_are_not_on_the_first_screen(self):
        self.write("src/ojs/base/detail/bits.hpp", "// bits: small things.\n#pragma once\nnamespace detail {\nint bits();\n}\n")
        self.replace("src/ojs_shutdown.hpp", '#include "ojs/base/text.hpp"', '#include "ojs/base/detail/bits.hpp"\n#include "ojs/base/text.hpp"')
        banner, code = self.header().split("#ifndef OJS_SHUTDOWN_HPP")
        self.assertNotIn("bits", banner)
        self.assertIn("// ==== base/detail/bits.hpp ====", code)

    def assert_together(self, first, second, fails):
        text = first + second
        done = subprocess.run(["c++", "-x", "c++", "-E", "-Wundef", "-Werror", "-DFANCY=0", "-"], input=text, capture_output=True, text=True)
        self.assertEqual(fails, done.returncode != 0, done.stderr)
        self.assertEqual(fails, "#error a smaller variant of ojs_shutdown.hpp was included before" in done.stderr)

    def test_the_whole_header_after_a_smaller_one_is_an_error(self):
        whole, small = self.header(), self.header("--modules", "core")
        for first, second, fails in ((small, whole, True), (whole, small, False), (whole, whole, False)):
            self.assert_together(first, second, fails)

    def test_a_smaller_header_after_another_one_is_an_error(self):
        core, net = self.header("--modules", "core"), self.header("--modules", "net")
        for first, second, fails in ((core, net, True), (net, core, True), (core, core, False), (net, net, False)):
            self.assert_together(first, second, fails)
        # What was asked for does not count, what is in it does.
        self.assert_together(core, self.header("--modules", "base,core"), False)

    def test_banner(self):
        text = self.header().split("#ifndef")[0]
        self.assertIn("ojs_shutdown.hpp 1.2.3", text)
        self.assertIn("SPDX-License-Identifier: Apache-2.0", text)
        self.assertIn("GENERATED by tools/amalgamate.py from src/; do not edit", text)
        self.assertRegex(text, r"SHA-256 of the inputs: [0-9a-f]{64}\n")
        self.assertRegex(text, r"//   base/text +Texts\n")
        self.assertRegex(text, r"//   core/gate +a door\n")
        self.assertNotIn(str(self.root), text)

    def test_deterministic_and_hash_follows_every_input(self):
        first = self.header()
        self.assertEqual(first, self.header())
        self.replace("src/ojs/net/json.ipp", "return 3", "return 4")
        hashes = [text.split("inputs: ")[1][:64] for text in (first, self.header())]
        self.assertNotEqual(*hashes)

    def test_modules_are_closed_over_includes_and_definitions(self):
        text = self.header("--modules", "core")
        for name in ("base/config.hpp", "base/text.hpp", "base/text.ipp", "core/gate.hpp", "core/gate.ipp"):
            self.assertIn(f"// ==== {name} ====", text)
        self.assertNotIn("json", text)
        self.assertEqual(self.header("--modules", "core,net").count("// ==== "), len(FILES))

    def test_module_that_is_not_there(self):
        done = self.call("--modules", "host", "--output", "-")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no such module", done.stderr)

    def test_bundle_picojson(self):
        picojson = self.write("copy/picojson.h", "/* its license */\n#ifndef picojson_h\n#include <map>\n#endif\n")
        text = self.header("--bundle-picojson", str(picojson))
        self.assertNotIn(str(self.root), text)
        self.assertIn("/* its license */\n#ifndef picojson_h\n#include <map>\n#endif\n", text)
        self.assertLess(text.index("#endif"), text.index("#ifndef OJS_SHUTDOWN_HPP"))  # it comes first
        self.assertEqual(self.call("--bundle-picojson", "nowhere/picojson.h", "--output", "-").returncode, 1)


SERVER = """\
// ojs_server.hpp: answers.
#ifndef OJS_SHUTDOWN_SERVER_HPP
#define OJS_SHUTDOWN_SERVER_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MINOR != 2
#error "ojs_server.hpp 1.2.3 and ojs_shutdown.hpp are of different versions"
#endif

#include "ojs/server/server.hpp"

#endif  // OJS_SHUTDOWN_SERVER_HPP

#include "ojs/server/server.ipp"
"""


class ExtensionTree(AmalgamateTest):
    def setUp(self):
        super().setUp()
        self.write("src/ojs_server.hpp", SERVER)
        self.write("src/ojs/server/server.hpp", '// server: answers.\n#include <string>\n#include <poll.h>\n#include "../core/gate.hpp"\n\nint serve();\n')
        self.write("src/ojs/server/server.ipp", '#include <cstdio>\n#include "server.hpp"\n\nint serve() { return gate(); }\n')


class ExtensionTest(ExtensionTree):
    def extension(self):
        self.assertEqual(self.call().stderr, "")
        return (self.root / "extensions/ojs_server.hpp").read_text(encoding="utf-8")

    def test_it_includes_the_main_header_and_is_not_in_it(self):
        text = self.extension()
        self.assertIn('\n#include "ojs_shutdown.hpp"\n', text)
        self.assertIn("// ==== server/server.ipp ====", text)
        self.assertNotIn("gate();\n\nint", text)
        self.assertNotIn("serve()", (self.root / "ojs_shutdown.hpp").read_text(encoding="utf-8"))

    def test_what_the_main_header_includes_is_not_included_again(self):
        text = self.extension()
        self.assertIn("#include <poll.h>\n", text)
        self.assertNotIn("<string>", text)
        self.assertNotIn("<cstdio>", text)

    def test_banner(self):
        text = self.extension().split("#ifndef")[0]
        for part in ("// ojs_server.hpp: answers.\n", "Version 1.2.3, an extension of ojs_shutdown.hpp", "GENERATED", "//   server/server  answers\n"):
            self.assertIn(part, text)

    def test_all_are_checked(self):
        self.extension()
        self.assertEqual(self.call("--check").returncode, 0)
        self.replace("extensions/ojs_server.hpp", "int serve();", "int serve(); // edited")
        done = self.call("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ojs_server.hpp:", done.stderr)

    def test_one_file_with_it(self):
        for flags in (["--with", "server"], ["--all"]):
            text = self.header(*flags)
            self.assertNotIn('#include "', text.split("#ifndef OJS_SHUTDOWN_HPP")[1])
            for name in (*FILES, "server/server.hpp", "server/server.ipp"):
                self.assertEqual(text.count(f"// ==== {name} ===="), 1, name)

    def test_one_file_says_what_is_in_it(self):
        text = self.header("--with", "server")
        self.assertIn("// Includes these extensions: ojs_server.hpp\n", text.split("#ifndef")[0])
        self.assertNotIn("Copy it next to", text)

    def test_all_and_one_that_wants_a_library(self):
        self.write("src/ojs_tls.hpp", SERVER.replace("server", "tls").replace("SERVER", "TLS"))
        self.write("src/ojs/tls/tls.hpp", "// tls: encrypts.\nint encrypt();\n")
        self.write("src/ojs/tls/tls.ipp", "int encrypt() { return 5; }\n")
        self.assertNotIn("encrypt", self.header("--all"))
        self.assertIn("int serve() {", self.header("--all", "--with", "tls"))
        self.assertIn("int encrypt() {", self.header("--all", "--with", "tls"))


class NamespaceTest(AmalgamateTest):
    def code(self, *bodies):
        for name, body in zip(("base/text.ipp", "core/gate.ipp", "net/json.ipp"), bodies):
            self.write(f"src/ojs/{name}", body)
        return self.header().split("#endif  // OJS_SHUTDOWN_HPP")[1]

    def test_a_namespace_that_is_opened_again_stays_open(self):
        part = "// Why.\n\nnamespace ojs {\nnamespace detail {\n\nint %s;\n\n}  // namespace detail\n}  // namespace ojs\n"
        code = self.code(part % "a", part % "b", part % "c")
        self.assertEqual(code.count("namespace ojs {"), 1)
        self.assertEqual(code.count("}  // namespace ojs"), 1)
        self.assertEqual(code.count("// Why."), 3)
        self.assertLess(code.index("int c;"), code.index("}  // namespace detail"))

    def test_what_is_opened_less_deeply_is_closed_to_there(self):
        inner = "namespace ojs {\nnamespace detail {\nint a;\n}  // namespace detail\nint b;\n}  // namespace ojs\n"
        code = self.code(inner, inner.replace("a;", "c;").replace("b;", "d;"), "int e;\n")
        self.assertEqual(code.count("namespace ojs {"), 1)
        self.assertEqual(code.count("namespace detail {"), 2)
        self.assertLess(code.index("}  // namespace ojs"), code.index("int e;"))

    def test_nothing_but_comments_may_stand_between(self):
        part = "namespace ojs {\nint %s;\n}  // namespace ojs\n"
        code = self.code(part % "a", "#if FANCY\n#include <sys/fancy.h>\n#endif\n\n" + part % "b", part % "c")
        self.assertEqual(code.count("namespace ojs {"), 2)
        self.assertLess(code.index("}  // namespace ojs"), code.index("#if FANCY"))


class CheckTest(AmalgamateTest):
    def test_current(self):
        self.assertEqual(self.call().returncode, 0)
        done = self.call("--check")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_first_difference_and_fix_are_named(self):
        self.assertEqual(self.call().returncode, 0)
        path = self.root / "ojs_shutdown.hpp"
        number = path.read_text(encoding="utf-8").split("\n").index("int gate();") + 1
        self.replace("ojs_shutdown.hpp", "int gate();", "int gate(); // edited")
        before = path.read_bytes()
        done = self.call("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"ojs_shutdown.hpp:{number}:", done.stderr)
        self.assertIn("file: int gate(); // edited\n", done.stderr)
        self.assertIn("src/: int gate();\n", done.stderr)
        self.assertIn("fix: python3 tools/amalgamate.py", done.stderr)
        self.assertEqual(path.read_bytes(), before)

    def test_every_byte_counts(self):
        self.assertEqual(self.call().returncode, 0)
        path = self.root / "ojs_shutdown.hpp"
        current = path.read_bytes()
        for other in (current + b"\n", current[:-1], current.replace(b"\n", b"\r\n"), b"\xff" + current, b""):
            path.write_bytes(other)
            self.assertEqual(self.call("--check").returncode, 1)
        path.unlink()
        self.assertEqual(self.call("--check").returncode, 1)


BITS = '// bits: small things.\n#pragma once\n\nint bits();\n'
MAIN = "ojs_shutdown.hpp"
# What is done to the tree, as (file below src/, old, new); where that is refused, what is said of it, and the fix.
REFUSALS = {
    "cycle": ([("ojs/base/text.hpp", "#include <errno.h>", '#include "config.hpp"'),
               ("ojs/base/config.hpp", "#pragma once\n", '#pragma once\n#include "text.hpp"\n')],
              "ojs/base/text.hpp:5", "include cycle: ", "file of its own"),
    "upward include": ([("ojs/base/text.ipp", '"text.hpp"', '"../core/gate.hpp"')],
                       "ojs/base/text.ipp:4", "upward include", "move the needed code to base/"),
    "orphan": ([("ojs/core/lost.ipp", None, "int lost();\n")],
               "ojs/core/lost.ipp:1", "not part of any header", '#include "ojs/core/lost.ipp"'),
    "listed but missing": ([("ojs/net/json.ipp", "", None)], f"{MAIN}:16", "net/json.ipp does not exist", "add the file"),
    "included but missing": ([("ojs/net/json.ipp", '"json.hpp"', '"jason.hpp"')],
                             "ojs/net/json.ipp:1", "net/jason.hpp does not exist", "correct the path"),
    "listed twice": ([(MAIN, '"ojs/net/json.ipp"', '"ojs/core/gate.ipp"')], f"{MAIN}:16", "listed twice", "remove one"),
    "used before it is emitted": ([("ojs/base/extra.hpp", None, "// Extra.\n"),
                                   ("ojs/base/text.hpp", "#include <errno.h>", '#include "extra.hpp"'),
                                   (MAIN, '#include "ojs/core', '#include "ojs/base/extra.hpp"\n#include "ojs/core')],
                                  "ojs/base/text.hpp:5", "uses base/extra.hpp", "list base/extra.hpp before base/text.hpp"),
    "leftover local include": ([("ojs/base/text.ipp", '#include "text', '#  include "text')],
                               "ojs/base/text.ipp:4", "left over", "from column one"),
    "leftover local include in the template": ([(MAIN, '#include "ojs/core/gate.hpp"', '#include "gate.hpp"'),
                                                (MAIN, '#include "ojs/core/gate.ipp"\n', ""),
                                                ("ojs/server/server.hpp", '#include "../core/gate.hpp"\n', ""),
                                                ("ojs/core/gate.hpp", "", None), ("ojs/core/gate.ipp", "", None)],
                                               f"{MAIN}:8", "left over", "ojs/ROOM/FILE"),
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
    "no include guard": ([(MAIN, "#endif  // OJS_SHUTDOWN_HPP", "#endif")], f"{MAIN}:1", "no include guard",
                         "#ifndef OJS_SHUTDOWN_HPP"),
    "internal names outside of detail": ([("ojs/base/detail/bits.hpp", None, BITS)],
                                         "ojs/base/detail/bits.hpp:1", "internal names", "namespace detail"),
    "a public part that needs an internal one": (
        [("ojs/net/stop/motor.hpp", None, "// motor: turns.\n#pragma once\nnamespace detail {\n}\n"),
         (MAIN, '#include "ojs/net/json.hpp"', '#include "ojs/net/stop/motor.hpp"\n#include "ojs/net/json.hpp"'),
         ("ojs/net/json.hpp", '"../base/text.hpp"', '"stop/motor.hpp"')],
        "ojs/net/json.hpp:4", "net/json.hpp is public, net/stop/motor.hpp is internal", "detail/"),
    "first sentence too long": ([("ojs/core/gate.hpp", "a door.", "a door" + " and a door" * 9 + ".")],
                                "ojs/core/gate.hpp:1", "does not fit into the first screen", "shorter"),
    "unknown room": ([("ojs/attic/old.hpp", None, "// Old.\n")],
                     "ojs/attic/old.hpp:1", "unknown room 'attic'", "base, core, host, net, worker, server"),
    "no purpose": ([("ojs/core/gate.hpp", "// gate: a door.\n", "")], "ojs/core/gate.hpp:1", "no purpose", "what it is for"),
    "no version": ([("ojs/base/config.hpp", '"1.2.3"', "123")], "ojs/base/config.hpp:1", "no version", "OJS_SHUTDOWN_VERSION"),
    # Of an extension.
    "the main header uses it": ([("ojs/net/json.ipp", '"json.hpp"', '"../server/server.hpp"')],
                                "ojs/net/json.ipp:1", "upward include", "move the needed code to net/"),
    "part in the wrong template": ([(MAIN, '"ojs/net/json.ipp"', '"ojs/server/server.ipp"')],
                                   f"{MAIN}:16", "belongs to another header", "src/ojs_server.hpp"),
    "it does not include what it needs": ([("ojs_server.hpp", '#include "ojs_shutdown.hpp"\n', "")],
                                          "ojs_server.hpp:1", "ojs_shutdown.hpp is not included", "below the guard"),
    "another version in its template": ([("ojs_server.hpp", "1.2.3", "1.2.2")],
                                        "ojs_server.hpp:8", "expects version 1.2.2", "write 1.2.3"),
}  # fmt: skip


class RefusalTest(ExtensionTree):
    def test_each_names_the_place_and_the_fix(self):
        for name, (edits, where, what, fix) in REFUSALS.items():
            with self.subTest(name):
                self.setUp()
                for path, old, new in edits:
                    self.replace(f"src/{path}", old, new)
                self.assert_refused(f"src/{where}", what, fix)

    def test_what_is_allowed(self):
        self.replace("src/ojs/core/gate.ipp", "{ return", "{\n    using namespace std;\n    return")
        self.replace("src/ojs/base/text.ipp", "<cstdio>", "<map>")
        for each in ("    using namespace std;\n", "#include <map>\n"):
            self.assertIn(each, self.header())


class UsageTest(AmalgamateTest):
    def test_wrong_flags_exit_2_with_usage(self):
        for flags in (["--frobnicate"], ["--modules", "attic", "--output", "-"], ["--modules", "core"], ["--with", "server"], ["--all"],
                      ["--with", "attic", "--output", "-"], ["--modules", "server", "--output", "-"],
                      ["--modules", "core", "--all", "--output", "-"], ["extra"]):
            with self.subTest(flags):
                done = self.call(*flags)
                self.assertEqual(done.returncode, 2)
                self.assertIn("usage:", done.stderr)
                self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
