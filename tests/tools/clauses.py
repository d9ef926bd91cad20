#!/usr/bin/env python3
"""Writes the last column of docs/clauses.md: the files whose tests carry a row's tag.

    clauses.py            rewrites the document
    clauses.py --check    says what differs, and fails

A tag is a comment before the test, `// [GS 10.2]` or `# [GS 10.2]`: the word that the table's heading begins with, and the
clause. One comment may have several. A row without a test says so.
"""

import collections
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/clauses.md"
TAGS = re.compile(r"^\s*(?://|#) ((?:\[[^\[\]]+\] ?)+)$", re.MULTILINE)
HEADINGS = ("| clause |", "| statement |")


def tagged():
    """{tag: the files that have it, below tests/}."""
    files = collections.defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in (".cpp", ".hpp", ".py"):
            for tags in TAGS.findall(path.read_text()):
                for tag in re.findall(r"\[(.+?)\]", tags):
                    files[tag].add(re.sub(r"(_test)?\.\w+$", "", str(path.relative_to(ROOT / "tests"))))
    return files


def tag_of(section, clause):
    clause = clause.replace("`", "")
    return clause if section == "Extensions" or clause.startswith(section + "-") else f"{section} {clause}"


def written(text, files):
    """The document with its last columns, and the tags that none of its rows has."""
    section, in_table, lines, left = "", False, [], set(files)
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:].split(":")[0]
        in_table = line.startswith("|") and (in_table or line.startswith(HEADINGS))
        cells = line[2:-2].split(" | ")
        if in_table and not line.startswith(("|---", *HEADINGS)):
            tag = tag_of(section, cells[0])
            left.discard(tag)
            found = ", ".join(f"`{name}`" for name in sorted(files.get(tag, ())))
            cells[-1] = found or ("–" if cells[2].startswith("not here") else "no test")
            line = f"| {' | '.join(cells)} |"
        lines.append(line)
    return "\n".join(lines) + "\n", left


def main(check):
    before = DOCUMENT.read_text()
    after, left = written(before, tagged())
    for tag in sorted(left):
        print(f"docs/clauses.md has no row [{tag}], which a test carries")
    if not check:
        DOCUMENT.write_text(after)
    elif after != before:
        print("docs/clauses.md is not current: run tests/tools/clauses.py and look at what changed")
        left.add("")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
