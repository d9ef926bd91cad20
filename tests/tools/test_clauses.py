"""tests/conformance/CLAUSES.md and the tags of the tests; and how clauses.py finds one by the other."""

import unittest

import clauses

TABLE = """\
## GS: a specification

| clause | what it says | met? | test |
|---|---|---|---|
| GS-001 | drain | met | {} |
| 5.1 (a) | stop | met | {} |
| 5.1 (b) | crash | not here | {} |
| 5.1 (c) | log | met | {} |

| snippet | here | remark |
|---|---|---|
| 5.1 (c) | no | row |
"""


class Clauses(unittest.TestCase):
    def test_clauses_md_is_current_and_has_each_tag(self):
        self.assertEqual(0, clauses.main(check=True))

    def test_a_clause_tag_is_a_comment_of_its_own(self):
        source = "// [GS 5.1 (a)] [GS-001]\n    # [Spot crash]\n// see [GS 5.1 (c)]\nint list[3];  // [GS 5.1 (d)]\n"
        self.assertEqual(clauses.tags_of(source), {"GS 5.1 (a)", "GS-001", "Spot crash"})

    def test_a_row_names_its_files_and_a_tag_without_a_row_is_reported(self):
        files = {"GS-001": {"b"}, "GS 5.1 (a)": {"b", "a"}, "GS 5.1 (d)": {"a"}}
        expected = TABLE.format("`b`", "`a`, `b`", "–", "no test"), {"GS 5.1 (d)"}
        self.assertEqual(clauses.with_tests(TABLE.format("", "`old`", "no test", "`b`"), files), expected)


if __name__ == "__main__":
    unittest.main()
