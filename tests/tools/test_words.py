"""No word of tools/words.txt stands in the tree, and no sentence of the documents is too long to read once."""

import os
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = "tools/words.txt"


def rules():
    """{paths: [(pattern, replacement)]}"""
    out = {}
    for line in (ROOT / LIST).read_text().splitlines():
        if heading := re.fullmatch(r"\[\w+: (.+)\]", line):
            found = out.setdefault(tuple(heading[1].split()), [])
        elif line and not line.startswith("#"):
            found.append(line.split(" -> "))
    return out


def offences():
    for paths, pairs in rules().items():
        options = [word for pattern, _ in pairs for word in ("-e", rf"\b({pattern})\b")]
        where = [*paths, f":!{LIST}", ":!tests/tools/test_words.py"]
        done = subprocess.run(["git", "grep", "-IniE", *options, "--", *where], cwd=ROOT, env={**os.environ, "LC_ALL": "C"},
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode <= 1, done.stderr
        for line in done.stdout.splitlines():
            _, _, text = line.split(":", 2)
            yield line, [replacement for pattern, replacement in pairs if re.search(rf"\b(?:{pattern})\b", text, re.IGNORECASE)]


MAX_WORDS = 30
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def sentences(text):
    """Of prose and lists, without code blocks, tables, headings and comments. A colon or semicolon ends none."""
    text = re.sub(r"(?ms)^```.*?^```$|<!--.*?-->", "\n\n", text)
    text = re.sub(r"(?m)^(?:#.*|\|.*)$", "\n", text)
    text = re.sub(r"(?m)^\s*(?:[-*]|\d+\.|>) ", "\n\n", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)  # the target of a link is not read
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"""(?<=[.!?])["')\]*]*\s+(?=[^a-z\s])""", " ".join(paragraph.split()))


def words_of(sentence):
    return [word for word in sentence.split() if re.search(r"\w", word)]


class Sentences(unittest.TestCase):
    def test_none_is_too_long(self):
        found = [(document, each) for document in DOCUMENTS for each in sentences((ROOT / document).read_text())]
        self.assertGreater(len(found), 1000)
        long = [f"{document}: {len(words_of(each))} words: {each}" for document, each in found if len(words_of(each)) > MAX_WORDS]
        self.assertEqual([], long, "\n" + "\n".join(long))

    def test_what_ends_a_sentence(self):
        text = "# Of no\n\nOne: two; `a.b` [e.g. c](d e.md).\nThree!\n\n- Four\n  five\n1. Six\n\n| no |\n```sh\nno\n```\n(Seven.) Eight"
        expected = ["One: two; `a.b` [e.g. c].", "Three!", "Four five", "Six", "(Seven.", "Eight"]
        self.assertEqual(expected, [each for each in sentences(text) if each])


class Words(unittest.TestCase):
    def test_no_listed_word_stands_in_the_tree(self):
        self.assertTrue(rules() and all(rules().values()))
        self.assertEqual([f"{line}: write {' or '.join(replacements)}" for line, replacements in offences()], [])


if __name__ == "__main__":
    unittest.main()
