#!/usr/bin/env python3
"""Writes the last column of tests/conformance/CLAUSES.md: the files whose tests carry a row's tag.

    clauses.py            rewrites the document
    clauses.py --check    says what differs, and fails

A tag is a comment above the test, `// [GS 10.2]` or `# [GS 10.2]`: the word that the section's heading begins with, and the
clause. One comment may have several. A row without a test says so.
"""

import collections
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "tests/conformance/CLAUSES.md"
TAGS = re.compile(r"(?m)^ *(?://|#) ((?:\[[^\[\]]+\] ?)+)$")


def tags_of(source):
    return {tag for comment in TAGS.findall(source) for tag in re.findall(r"\[(.+?)\]", comment)}


def tagged_files():
    """{tag: the files below tests/ that have it, without `_test.cpp`}."""
    files = collections.defaultdict(set)
    for path in (ROOT / "tests").rglob("*"):
        if path.suffix in (".cpp", ".hpp", ".py"):
            name = re.sub(r"(_test)?\.\w+$", "", str(path.relative_to(ROOT / "tests")))
            for tag in tags_of(path.read_text()):
                files[tag].add(name)
    return files


def tag_of(section, clause):
    """That of a row: of `Extensions` and of GS-001 in GS the clause alone."""
    clause = clause.replace("`", "")
    return clause if section == "Extensions" or clause.startswith(section + "-") else f"{section} {clause}"


def with_tests(document, files):
    """The document with its columns of tests, and the tags that none of its rows has."""
    section, rows, lines, unknown = "", False, [], set(files)
    for line in document.splitlines():
        if line.startswith("## "):
            section = line[3:].split(":")[0]
        if not line.startswith("|"):
            rows = False
        elif line.endswith("| test |"):
            rows = True
        elif rows and not line.startswith("|---"):
            clause, text, met, _ = line[2:-2].split(" | ")
            tag = tag_of(section, clause)
            unknown.discard(tag)
            tests = ", ".join(f"`{name}`" for name in sorted(files.get(tag, ())))
            tests = tests or ("–" if met.startswith("not here") else "no test")
            line = f"| {clause} | {text} | {met} | {tests} |"
        lines.append(line)
    return "\n".join(lines) + "\n", unknown


def main(check):
    before, files = DOCUMENT.read_text(), tagged_files()
    after, unknown = with_tests(before, files)
    faults = [f"tests/conformance/CLAUSES.md has no row [{tag}], which {', '.join(sorted(files[tag]))} has" for tag in sorted(unknown)]
    if not check:
        DOCUMENT.write_text(after)
    elif after != before:
        faults.append("tests/conformance/CLAUSES.md is not current: run tests/tools/clauses.py, then read what changed")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
