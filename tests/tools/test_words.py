"""No word of tools/words.txt stands in the tree."""

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
            text = line.split(":", 2)[2]
            yield line, [replacement for pattern, replacement in pairs if re.search(rf"\b(?:{pattern})\b", text, re.IGNORECASE)]


class Words(unittest.TestCase):
    def test_no_listed_word_stands_in_the_tree(self):
        self.assertTrue(rules() and all(rules().values()))
        self.assertEqual([f"{line}: write {' or '.join(replacements)}" for line, replacements in offences()], [])


if __name__ == "__main__":
    unittest.main()
