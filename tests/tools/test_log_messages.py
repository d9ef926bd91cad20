"""Every text that the library can log stands in log_messages.txt, for a reviewer and for users who search a log.

    test_log_messages.py --write    writes the file
"""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("log_messages.txt")
# The functions whose literal is a record's message, and the tables of such literals.
CALLS = {"write", "write_requested", "log_job", "log_failure", "log_slots", "log_state", "log_rollout", "log_entry"}
CALLS |= {"call_back", "guard", "change", "terminate_child", "record"}
TABLES = {"status_messages", "messages"}
# A message that is not a literal at its place: a parameter of the functions above, a finding, the termination file's
# text, a table's element.
PASSED_ON = {"message", "message_if_thrown", "text", "found", "mode", "messages", "std::string"}
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[A-Za-z_][\w:]*|\S')
LEVELS = r"log_level::\w+(?:\s*:\s*log_level::\w+)?"


def without_comments(path):
    return re.sub(r"^((?:[^\"/\n]|\"(?:[^\"\\\n]|\\.)*\"|/(?!/))*)//.*$", r"\1", path.read_text(), flags=re.MULTILINE)


def messages(text):
    """Yields the messages of one file. `open` has, for each open bracket, what stands before it and its first token."""
    open_, before, table, literal = [], "", "", ""
    for token in TOKEN.findall(text):
        if token[0] == '"':
            literal += token[1:-1]
            continue
        if literal and open_:
            names = [name for name, _ in open_]
            name, first = open_[-1]
            record = name == "" and names[-2:-1] and names[-2] in CALLS  # write({level, "message", ...})
            if name in CALLS or record or first.startswith("log_level::") or (table in TABLES and name in ("=", "")):
                yield literal
            elif names[-2:] == ["cat", ""] and names[-3:-2] and names[-3] in CALLS:
                yield literal + "..."
        literal = ""
        if token in TABLES:
            table = token
        if token == ";":
            table = ""
        if token in "({[":
            open_.append((before, ""))
        elif token in ")}]" and open_:
            open_.pop()
        elif open_ and not open_[-1][1]:
            open_[-1] = (open_[-1][0], token)
        before = "" if token in "({[" else token


def sources():
    return sorted((ROOT / "src" / "ojs").rglob("*pp"))


def listing():
    out = {}
    for path in sources():
        layer = path.relative_to(ROOT / "src" / "ojs").parts[0]
        out.setdefault(layer, set()).update(message for message in messages(without_comments(path)) if message.strip())
    return "".join(f"[{layer}]\n" + "".join(f"{one}\n" for one in sorted(found)) for layer, found in out.items() if found)


class LogMessages(unittest.TestCase):
    maxDiff = None

    def test_all_are_listed(self):
        self.assertEqual(listing(), LIST.read_text(), "run tests/tools/test_log_messages.py --write, and read the change")

    def test_all_are_constant(self):
        wrong = []
        for path in sources():
            for found in re.finditer(rf"\b(?:write|write_requested)\(\s*{LEVELS},\s*([\w:]+)", without_comments(path)):
                if found[1] not in PASSED_ON | {"cat"} and "?" not in found.string[found.end() : found.end() + 40]:
                    wrong.append(f"{path.relative_to(ROOT)}: {found[0]}")
        self.assertEqual(wrong, [])

    def test_what_a_file_has(self):
        text = 'log_.write(log_level::info, ok ? "a b" : "c", {field("x", "y")}); guard("d", [&] { f("e"); });'
        self.assertEqual(list(messages(text)), ["a b", "c", "d"])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        LIST.write_text(listing())
    else:
        unittest.main()
