"""tools/api_filter.py: which comments of a header become documentation, and of what."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import api_filter  # noqa: E402


class Filter(unittest.TestCase):
    def becomes(self, before, after):
        self.assertEqual(api_filter.converted(before.split("\n")), after.split("\n"))

    def test_a_comment_above_a_declaration_is_its(self):
        self.becomes("// Stops <all> #1\n// [GS 5.2].\nvoid stop();", "/// Stops \\<all\\> \\#1\n/// [GS 5.2].\nvoid stop();")
        self.becomes("// Alone.\n\nvoid stop();", "// Alone.\n\nvoid stop();")

    def test_a_comment_behind_a_member_is_its_with_the_lines_that_continue_it(self):
        self.becomes(
            'struct a {\n    int b = f("  // c");  // seconds,\n                          // at most 5\n    // The next one.\n    int d;\n};',
            'struct a {\n    int b = f("  // c");  ///< seconds,\n                          ///< at most 5\n    /// The next one.\n    int d;\n};',
        )
        self.becomes("enum class a {\n    b,  // one\n    c   // two\n};", "enum class a {\n    b,  ///< one\n    c   ///< two\n};")

    def test_a_comment_behind_the_brace_of_a_type_is_the_types(self):
        self.becomes("struct a {  // What b is.\n    int b;  // seconds\n};", "/** What b is. */ struct a {\n    int b;  ///< seconds\n};")

    def test_comments_in_bodies_and_argument_lists_stay(self):
        body = "void f(int a,  // seconds\n       int b) {\n    // Adds.\n    a += b;  // twice\n}"
        self.becomes(body, body)

    def test_an_overload_and_a_copy_need_none(self):
        self.becomes(
            "class a {\n  public:\n    a(const a&) = delete;\n    // Adds.\n    int f(int);\n    int f(bool);\n    template <class T>\n    T f(T);\n    int g();\n};",
            "class a {\n  public:\n/** @private */     a(const a&) = delete;\n    /// Adds.\n    int f(int);\n"
            "/** @overload */     int f(bool);\n/** @overload */     template <class T>\n    T f(T);\n    int g();\n};",
        )

    def test_a_macro_has_its_row_of_the_table_or_the_comment_above_its_ifndef(self):
        self.becomes(
            "//   OJS_A  1, Linux  0: no a\n\n// B.\n#ifndef OJS_B\n#define OJS_B 0\n#endif\n#define OJS_A 1",
            "//   OJS_A  1, Linux  0: no a\n\n// B.\n#ifndef OJS_B\n#define OJS_B 0  ///< B.\n#endif\n#define OJS_A 1  ///< 0: no a",
        )

    def test_indented_lines_are_code(self):
        self.becomes("// Use:\n//\n//     f(a<b>);\nint f();", "/// Use:\n/// @code{.cpp}\n///     f(a<b>); @endcode\nint f();")


if __name__ == "__main__":
    unittest.main()
