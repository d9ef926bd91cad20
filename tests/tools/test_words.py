"""No word of tools/words.txt stands in the tree."""

import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tools" / "words.txt"
HEADING = re.compile(r"\[(\w+): (.+)\]")


def rules():
    """Yields (paths, pattern, replacement)."""
    paths = []
    for line in LIST.read_text().splitlines():
        heading = HEADING.fullmatch(line)
        if heading:
            paths = heading.group(2).split()
        elif line and not line.startswith("#"):
            pattern, replacement = line.split(" -> ")
            yield paths, re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), replacement


def files_below(paths):
    listed = subprocess.run(["git", "ls-files", "-z", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and ROOT / name not in (LIST, Path(__file__).resolve())]


def text_of(path):
    try:
        return path.read_text()
    except (UnicodeDecodeError, FileNotFoundError):
        return ""  # a picture; a file that is about to be removed


def offences():
    texts = {}
    for paths, pattern, replacement in rules():
        for path in files_below(paths):
            text = texts.setdefault(path, text_of(path))
            for found in pattern.finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                yield f"{path.relative_to(ROOT)}:{line}: {found.group()}: write {replacement}"


class Words(unittest.TestCase):
    def test_the_list_finds_a_word(self):
        patterns = [pattern for _, pattern, _ in rules()]
        for word in ("most_frames", "who is told", "Goes on"):
            self.assertTrue(any(pattern.search(word) for pattern in patterns), word)

    def test_no_listed_word_stands_in_the_tree(self):
        self.assertEqual("\n".join(offences()), "")


if __name__ == "__main__":
    unittest.main()
