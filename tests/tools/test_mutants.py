"""mutants.py without universalmutator and without a compiler: what is drawn, counted and reported."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "mutants"))
import mutants  # noqa: E402
from mutants import Mutant, Verdict  # noqa: E402


def of_each_line(file):
    lines = {1: ["a", "b", "c"], 2: ["d", "e"]}
    return {line: [Mutant(file, line, "before", after) for after in texts] for line, texts in lines.items()}


class Mutants(unittest.TestCase):
    def test_a_seed_gives_the_same_mutants_and_those_of_a_line_alone(self):
        drawn = mutants.draw(["core", "net"], "7", of_each_line)
        self.assertEqual(drawn, mutants.draw(["net", "core"], "7", of_each_line))
        self.assertNotEqual(drawn, mutants.draw(["core", "net"], "8", of_each_line))
        self.assertEqual({"core", "net"}, set(drawn))
        alone = mutants.draw(["core/signals.ipp:2"], "7", of_each_line)["core"]
        self.assertEqual(alone, [mutant for mutant in drawn["core"] if mutant[:2] == ("core/signals.ipp", 2)])
        self.assertEqual({}, mutants.draw(["cor", "core/signals.ip"], "7", of_each_line))

    def test_neither_texts_for_people_nor_what_never_compiles_are_mutants(self):
        worth = lambda before, after: mutants.is_worth_it(Mutant("core/a.ipp", 1, before + "\n", after))  # noqa: E731
        self.assertTrue(worth('write("type", 1);', 'write("", 1);\n'))
        self.assertTrue(worth('log("a text", 1);', 'log("a text", 2);\n'))
        self.assertFalse(worth('log("a text", 1);', 'log("", 1);\n'))
        self.assertFalse(worth("return 1;", "return 1;\nbreak;\n"))
        self.assertTrue(worth("if (a < b)", "if (a > b)\n"))
        self.assertFalse(worth("set<int> a;", "set>int> a;\n"))

    def test_rooms_share_the_count_by_their_lines(self):
        self.assertEqual({"core": 2, "net": 6}, mutants.shares({"core": range(25), "net": range(75)}, 8))
        self.assertEqual({"core": 3}, mutants.shares({"core": range(3)}, 200))

    def test_quick_tests_run_first_and_chunks_are_short(self):
        self.assertEqual([(10, ["a", "b"]), (7, ["c"])], mutants.chunks([(7, "c"), (4, "a"), (6, "b")]))

    def test_the_test_that_noticed_is_named(self):
        failed = "TEST CASE:  passed, with a message\n0.1 s: passed\nTEST CASE:  failed, so\na.cpp:1: ERROR: CHECK\n"
        self.assertEqual("failed, so", mutants.failed_test(failed))
        self.assertEqual("crash after: one", mutants.failed_test("0.1 s: one\n"))

    def test_the_count_is_of_those_that_compile_in_the_order_of_the_draw(self):
        kinds = ["uncounted", "killed", "uncounted", "lived", "killed"]
        judged = mutants.judge_in_order(lambda kind, _: Verdict(kind, ""), kinds, 2)
        self.assertEqual(kinds[:4], [kind for kind, _ in judged])
        self.assertEqual(5, len(list(mutants.judge_in_order(lambda kind, _: Verdict(kind, ""), kinds, 9))))

    def test_the_report_has_each_folder_and_the_sum(self):
        verdicts = [(Mutant("core/a.ipp", 1, "", ""), Verdict("killed", "a")),
                    (Mutant("net/b.ipp", 1, "", ""), Verdict("lived", ""))]  # fmt: skip
        self.assertEqual([["core", "1", "of", "1", "killed,", "100", "%"], ["net", "0", "of", "1", "killed,", "0", "%"],
                          ["all", "1", "of", "2", "killed,", "50", "%"]],
                         [line.split() for line in mutants.report(verdicts)])  # fmt: skip


if __name__ == "__main__":
    unittest.main()
