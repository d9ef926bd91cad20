"""The header and the tests stay light: who copies the one reads it, and each line of the others is read at each change."""

import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {path.name for path in (ROOT / "src/ojs").iterdir()} & {path.name for path in (ROOT / "tests").iterdir()} - {"process"}
# Folder, limit in lines; or the limit for each line of the folder that it tests. When tests became lighter, lower it.
LIMITS = [
    ("tests", 40_000, None),
    ("tests/process", 5_000, None),  # whole processes, with the programs that they start
    ("tests/child_process", 1.2, "src/ojs/process"),
    *((f"tests/{layer}", 1.2, f"src/ojs/{layer}") for layer in sorted(LAYERS)),
]

# Of ojs_shutdown.hpp, as it is copied into a project.
HEADER_LIMITS = {"lines": 9_000, "lines of code": 7_200, "kB": 430}


def size_of(text):
    """Lines of code are those with more than a comment. The header has no /* */."""
    code = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("//")]
    return {"lines": text.count("\n"), "lines of code": len(code), "kB": len(text.encode()) // 1000}


def too_large(size):
    return [f"{size[unit]} {unit}, its limit is {limit}" for unit, limit in HEADER_LIMITS.items() if size[unit] > limit]


def lines_in(folder):
    files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return sum(path.read_bytes().count(b"\n") for path in files)


def faults(limits, lines_in):
    for folder, limit, tested in limits:
        allowed = int(limit * lines_in(tested)) if tested else limit
        if (lines := lines_in(folder)) > allowed:
            yield f"{folder} has {lines} lines, its limit is {allowed}" + (f" ({limit} x {tested})" if tested else "")


class Budget(unittest.TestCase):
    def test_the_main_header_is_within_its_limits(self):
        self.assertEqual(too_large(size_of((ROOT / "ojs_shutdown.hpp").read_text())), [])

    def test_the_error_for_a_header_over_its_limit_shows_size_and_limit(self):
        size = size_of("// why\n\nint a;  // a\n" * 3_001)
        self.assertEqual(size, {"lines": 9_003, "lines of code": 3_001, "kB": 63})
        self.assertEqual(too_large(size), ["9003 lines, its limit is 9000"])

    def test_no_test_folder_exceeds_its_limit(self):
        if found := list(faults(LIMITS, lines_in)):
            self.fail("\n".join(["merge or delete what another test notices too:", *found]))


if __name__ == "__main__":
    unittest.main()
