"""The tests stay light: each line of them pins a promise and is read at each change of the code."""

import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {path.name for path in (ROOT / "src/ojs").iterdir()} & {path.name for path in (ROOT / "tests").iterdir()} - {"process"}
# Folder, limit in lines; or the limit for each line of the folder that it tests. When tests became lighter, lower it.
LIMITS = [
    ("tests", 41_500, None),
    ("tests/process", 5_500, None),  # whole processes, with the programs that they start
    ("tests/child_process", 1.2, "src/ojs/process"),
    *((f"tests/{layer}", 1.2, f"src/ojs/{layer}") for layer in sorted(LAYERS)),
]


def lines_in(folder):
    files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sum(path.read_bytes().count(b"\n") for path in files)


def faults(limits, lines_in):
    for folder, limit, tested in limits:
        allowed = int(limit * lines_in(tested)) if tested else limit
        if (lines := lines_in(folder)) > allowed:
            yield f"{folder} has {lines} lines, its limit is {allowed}" + (f" ({limit} x {tested})" if tested else "")


class Budget(unittest.TestCase):
    def test_no_folder_exceeds_its_limit(self):
        if found := list(faults(LIMITS, lines_in)):
            self.fail("\n".join(["merge or delete what another test notices too:", *found]))


if __name__ == "__main__":
    unittest.main()
