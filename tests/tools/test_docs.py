"""The documents: what they cite exists, and code in them is code that is compiled and run."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"unit": ("base", "core", "system", "net", "worker"), "process": ("process",), "recovery": ("process",)}


def read(path):
    return (ROOT / path).read_text()


def test_cases(folder):
    """The names of the doctest cases in the files of a folder of tests/; a long name is several literals."""
    out = set()
    for path in (ROOT / "tests" / folder).glob("*.cpp"):
        for literals in re.findall(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)[)*]', path.read_text()):
            pieces = re.findall(r'"((?:[^"\\]|\\.)*)"', literals)
            out.add("".join(pieces).replace('\\"', '"'))
    return out


class Protocol(unittest.TestCase):
    def test_every_test_it_cites_exists(self):
        cited = re.findall(r"\b(unit|process|recovery) (?:``\s?(.+?)\s?``|`([^`]+)`)", read("docs/protocol.md"))
        known = {suite: set().union(*map(test_cases, folders)) for suite, folders in PARTS.items()}
        names = [(suite, first or second) for suite, first, second in cited]
        names = [(suite, name) for suite, name in names if name != "--test-case='NAME'"]
        self.assertGreater(len(names), 200)
        self.assertEqual([], [(suite, name) for suite, name in names if name not in known[suite]])

    def test_every_python_test_it_cites_exists(self):
        code = read("tests/tools/test_deploy.py") + read("tests/container/container_test.py")
        for name in set(re.findall(r"`\w+\.(test_\w+)`", read("docs/protocol.md"))):
            self.assertIn(f"def {name}(", code)


class Jobs(unittest.TestCase):
    def test_the_guide_is_the_example(self):
        example = read("examples/river_guide.cpp")
        blocks = re.findall(r"```cpp\n(.*?)```", read("docs/jobs.md").split("## River's stages")[1], re.DOTALL)
        self.assertEqual(3, len(blocks))
        self.assertIn(blocks[1].strip(), example)
        self.assertIn(blocks[2].split("\n", 1)[1].strip(), example)


class Readme(unittest.TestCase):
    def test_its_variables_are_those_that_are_read(self):
        text = read("src/ojs/worker/worker_options.ipp")
        asked = set(re.findall(r'"(OJS_\w+)"', text[text.index("worker_options::from_environment") :]))
        table = read("README.md").split("## Options")[1].split("\n## ")[0]
        named = set(re.findall(r"`(OJS_\w+)`", table))
        self.assertEqual(asked, named)
        known = set(re.findall(r"OJS_\w+", text[text.index("known_variables") : text.index("split_list")]))
        self.assertEqual(set(), asked - known)

    def test_links_lead_somewhere(self):
        for document in ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*"))):
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", read(document)):
                with self.subTest(document=document, target=target):
                    self.assertTrue(((ROOT / document).parent / target).exists())


if __name__ == "__main__":
    unittest.main()
