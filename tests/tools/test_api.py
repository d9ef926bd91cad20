"""tools/api_filter.py: which comments of a header become documentation, beside what `make check` sees in docs/api.md."""

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

    def test_comments_in_bodies_and_argument_lists_stay(self):
        body = "void f(int a,  // seconds\n       int b) {\n    // Adds.\n    a += b;  // twice\n}"
        self.becomes(body, body)

    def test_indented_lines_are_code(self):
        self.becomes("// Use:\n//\n//     f(a<b>);\nint f();", "/// Use:\n/// @code{.cpp}\n///     f(a<b>); @endcode\nint f();")


if __name__ == "__main__":
    unittest.main()
