#!/usr/bin/env python3
"""Writes the columns of tables in the documents that the source decides; the other columns are written by hand.

    doc_tables.py            rewrites the documents
    doc_tables.py --check    says which of them is not current, and fails

A new row gets `?` for what is to be written; a row of what is gone is removed.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/ojs"
LEVELS = ["error", "warning", "info"]


def sources(*patterns):
    return "".join(path.read_text() for pattern in patterns for path in sorted(SOURCE.glob(pattern)))


def findings():
    """{id: (its levels, what logs it at start-up)}; `found`, `check` and `level` are variables of the source."""
    text, levels = sources("ops/*.ipp", "ops/detail/*.ipp"), {}

    def add(name, found):
        levels.setdefault(name + "PLATFORM" if name.endswith("-") else name, set()).update(found)

    for severities, ids in re.findall(r"\{([^{};,]*severity::[^{};,]*),\s*([^,]*\"[a-z0-9-]+\"[^,]*),", text):
        for name in re.findall(r'"([a-z0-9-]+)"', ids):
            add(name, re.findall(r"severity::(\w+)", severities))
    for severities, name in re.findall(r'severity level = ([^;]*);[^;]*\{level, "([a-z-]+)"', text):
        add(name, re.findall(r"severity::(\w+)", severities))
    for level, name in re.findall(r'found\.severity = severity::(\w+);\s*found\.id = "([a-z-]+)"', text):
        add(name, [level])
    for name in re.findall(r'\{\n\s*found\.id = "([a-z-]+)"', text) + re.findall(r'\{RLIMIT_\w+, "([a-z-]+)"', text):
        add(name, ["warning"])
    for level, name in re.findall(r'\{severity::(\w+), "([a-z-]+)"\}', text):
        add(name, [level])
    logged = [("yes", sources("stop/detail/machine_log.ipp")), ("with `ojs::ops()`", sources("ops/detail/startup_findings.ipp"))]
    rows = {}
    for name, found in levels.items():
        by = next((by for by, source in logged if f'"{name}"' in source), "–")
        rows[name] = (" or ".join(", ".join(level for level in LEVELS if level in found).rsplit(", ", 1)), by)
    return rows


def metrics():
    """{name: (kind, meaning)} of a worker's page."""
    text = sources("ops/detail/health.ipp", "ops/detail/metrics.ipp")
    text = re.sub(r"show_duration\(page, (.*?), \"", r'page.family(\1, "histogram", "', text)
    found = re.findall(r'page\.(?:family|single)\(\s*"(\w+)",\s*"(\w+)",\s*"([^"]*?)\.?"', text)
    return {name: (kind, meaning) for name, kind, meaning in found}


# The first and the last column of the header, and the rows: {first cell: the cells that follow}.
TABLES = {"docs/operating.md": [("finding", findings), ("metric", metrics)]}


def with_rows(text, header, rows):
    table = re.search(rf"(?m)^\| {header} \|.*\n\|[-| ]*\|\n((?:\|.*\n)+)", text)
    assert table, f"no table of each {header}"
    by_hand = {}
    for line in table[1].splitlines():
        cells = line[2:-2].split(" | ")
        by_hand[cells[0].strip("`")] = cells[1:]
    width = table[0].splitlines()[0].count(" | ")
    out = []
    for name in [name for name in by_hand if name in rows] + sorted(set(rows) - set(by_hand)):
        made = rows[name]
        rest = by_hand.get(name, [])[len(made) :] or ["?"] * (width - len(made))
        out.append("| " + " | ".join([f"`{name}`", *made, *rest]) + " |\n")
    return text[: table.start(1)] + "".join(out) + text[table.end(1) :]


def main(check):
    old = []
    for document, tables in TABLES.items():
        before = after = (ROOT / document).read_text()
        for header, rows in tables:
            after = with_rows(after, header, rows())
        if after != before:
            old.append(document)
            if not check:
                (ROOT / document).write_text(after)
    if check and old:
        print(f"not current, run tools/doc_tables.py: {', '.join(old)}")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
