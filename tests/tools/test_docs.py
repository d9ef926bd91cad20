"""The documents: what they cite exists, and their C++ compiles.

A block of C++ is compiled as a file of its own, JSON is parsed. A block of sh is parsed; its make targets, programs, flags,
paths and variables exist. Other languages are not looked at. A comment right before a block, which no reader sees, changes that:

    <!-- compiled in: TEXT BLOCK TEXT -->      what the block is compiled in
    <!-- part of FILE -->                      the block is a part of that file; `// ...` or `# ...` stands for what is left out
"""

import concurrent.futures
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
REPORTS = sorted(str(path.relative_to(ROOT)) for root in ("bench", "src", "tests", "tools") for path in (ROOT / root).rglob("*.md"))
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", *PAGES, *REPORTS]
COMPILER = [os.environ.get("CXX", "c++"), "-std=c++17", "-pthread", "-fsyntax-only"]
FORM = ["-DOJS_SHUTDOWN_SEPARATE=1"]
INCLUDES = [f"-I{ROOT}", f"-I{ROOT}/extensions", "-isystem", str(ROOT / "third_party/include")]


def read(path):
    return (ROOT / path).read_text()


def read_headers():
    return read("ojs_shutdown.hpp") + "".join(each.read_text() for each in (ROOT / "extensions").iterdir())


# ---- the blocks of the documents -------------------------------------------------------------------------------------

FENCED = r"(?ms)^```([^\n]*)\n(.*?)^```$"


@dataclass
class Block:
    where: str  # document and line
    language: str
    note: str  # of the comment before it
    text: str


def blocks(document):
    text = read(document)
    out = []
    for found in re.finditer(FENCED, text):
        before = text[: found.start()]
        note = re.search(r"<!-- ((?:(?!-->).)*?)\s*-->\n$", before, re.DOTALL)
        out.append(Block(f"{document}:{before.count(chr(10)) + 1}", found[1], note[1] if note else "", found[2]))
    return out


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **more)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"


def find_in_file(block):
    """Compares a block with the file it says it is a part of."""
    path = block.note.removeprefix("part of ")
    whole = read(path)
    if block.language != "cpp":  # comments in configurations are left out without a mark
        whole = re.sub(r"(?m)^ *#.*\n", "", whole)
    found = 0
    for part in re.split(r"(?m)^ *(?://|#) \.\.\.\n", block.text):
        at = whole.find("\n" + part, max(0, found - 1))
        assert at >= 0, f"this is not in {path}, or not in this order:\n{part}"
        found = at + len(part)


def source_of(block):
    """A C++ block as a file that can be compiled."""
    if not block.note:
        assert re.search(r'(?m)^#include [<"]ojs_', block.text), "it includes no header of the library"
        return block.text
    assert block.note.startswith("compiled in:") and "BLOCK" in block.note, f"a note of no known kind: {block.note}"
    around = block.note.removeprefix("compiled in:").strip()
    document, line = block.where.split(":")
    text = f'\n#line {int(line) + 1} "{document}"\n{block.text}'
    return '#include "ojs_shutdown.hpp"\n' + around.replace("BLOCK", text)


@functools.cache
def precompiled():
    """The main header, which every block includes."""
    header = Path(tempfile.mkdtemp(prefix="ojs-docs-")) / "ojs_shutdown.hpp"
    unittest.addModuleCleanup(shutil.rmtree, header.parent)
    run([*COMPILER[:-1], *INCLUDES, *FORM, "-x", "c++-header", f"{ROOT}/ojs_shutdown.hpp", "-o", f"{header}.gch"])
    return header


def compile_cpp(block):
    run([*COMPILER, "-include", precompiled(), *INCLUDES, *FORM, "-x", "c++", "-"], input=source_of(block))


def parse_json(block):
    keys = []
    json.loads(block.text, object_pairs_hook=lambda pairs: keys.extend(name for name, _ in pairs))
    # tests/process/launcher_admin.cpp runs the one of docs/launcher.md
    readers = {"docs/deploying.md": "tools/controller.cpp", "docs/launcher.md": "src/ojs/launcher/launcher_options.ipp"}
    if reader := readers.get(block.where.split(":")[0]):
        for key in keys:
            assert f'"{key}"' in read(reader), f"{reader} reads no {key}"


def parse_shell(block):
    run(["sh", "-n"], input=block.text)
    check_commands(block.text)


# ---- commands --------------------------------------------------------------------------------------------------------

SUITES = ("unit", "process", "recovery")
MAKEFILES = [ROOT / "Makefile", *(path for folder in ("bench", "tests", "packaging") for path in (ROOT / folder).rglob("*.mk"))]
TARGETS = {target for path in MAKEFILES for line in re.findall(r"(?m)^([a-z][a-z -]*):", path.read_text()) for target in line.split()}
OPTIONS = [read(f"src/ojs/{name}.ipp") for name in ("stop/loop_options", "worker/worker_options")]
KNOWN_VARIABLES = set(re.findall(r"OJS_[A-Z_]+", "".join(OPTIONS))) | {"OJS_TEST_BIN"}


def source_of_program(name):
    stem = name.replace("-", "_")
    return "".join(path.read_text() for glob in (f"*/{stem}.cpp", f"tools/{stem}/*.cpp") for path in ROOT.glob(glob))


def check_program(words):
    """That it exists, and has these flags."""
    name = Path(words[0]).name
    if name not in SUITES:
        source = source_of_program(name)
        assert source, f"there is no program {words[0]}"
        for flag in re.findall(r"(?<!\S)--?[a-z][\w-]*", " ".join(words)):
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", source), f"{name} knows no {flag}"


def check_commands(text):
    """That what commands name exists. Programs that are not of this project are not looked at."""
    for name in re.findall(r"\b(OJS_\w+)=", text):
        assert name in KNOWN_VARIABLES, f"nobody reads {name}"
    for path in re.findall(r"(?<![\w./-])(?:bench|examples|packaging|tests|tools)/[\w./-]+", text):
        assert (ROOT / path).exists(), f"there is no {path}"
    for command in re.split(r"#.*|[;&|\n]+| -- ", re.sub(r'"[^"\n]*"', '""', text)):
        words = [word for word in command.split() if not re.match(r"\w+=", word)]
        if words[:1] == ["make"]:
            for word in words[1:]:
                assert word in TARGETS or source_of_program(Path(word).name), f"no Makefile has a target {word}"
        elif words and words[0].startswith(("build/", "/", "./")):
            check_program(words)


RULES = {"cpp": compile_cpp, "sh": parse_shell, "json": parse_json}


class Blocks(unittest.TestCase):
    def test_each_code_block_compiles_parses_or_is_part_of_its_file(self):
        def fault(block):
            rule = find_in_file if block.note.startswith("part of ") else RULES.get(block.language, lambda block: None)
            try:
                return rule(block)
            except Exception as why:  # whatever it is, it is the block's
                return f"{type(why).__name__}: {why}"

        found = [block for document in DOCUMENTS for block in blocks(document)]
        self.assertLessEqual(set(RULES), {block.language for block in found})
        precompiled()  # before the threads
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            for block, why in zip(found, threads.map(fault, found)):
                with self.subTest(block.where):
                    self.assertFalse(why, why)

    def test_commands_in_the_text_use_existing_targets_and_flags(self):
        looked_at = 0
        for document in DOCUMENTS:
            for code in re.findall(r"`([^`\n]+)`", re.sub(FENCED, "", read(document))):
                if re.match(r"(make|build/\S+|launcher) |(worker|controller|dev_backend|demo) --", code):
                    with self.subTest(document=document, code=code):
                        check_commands(code if code.startswith(("make", "build/")) else "build/" + code)
                        looked_at += 1
        self.assertGreater(looked_at, 20)


# ---- names -----------------------------------------------------------------------------------------------------------


def anchors(document):
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(FENCED, "", read(document)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Names(unittest.TestCase):
    def test_no_link_is_broken(self):
        for document in [*DOCUMENTS, "CHANGELOG.md"]:
            for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", re.sub(FENCED, "", read(document))):
                with self.subTest(document=document, target=target, anchor=anchor):
                    path = (ROOT / document).parent / target if target else ROOT / document
                    self.assertTrue(path.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(path))
        for document, anchor in re.findall(r"runbook_url: (\S+)#(\S+)", read("examples/deploy/observability/alerts.yml")):
            self.assertIn(anchor, anchors(document), document)

    def test_every_path_in_the_text_exists(self):
        for document in DOCUMENTS:
            for path in re.findall(r"`((?:src|bench|tests|tools|examples|docs)/[a-z0-9_./-]+)`", read(document)):
                with self.subTest(document=document, path=path):  # tests/conformance/CLAUSES.md names `tools/test_deploy`, of tests/
                    self.assertTrue((ROOT / path).exists() or (ROOT / f"tests/{path}.py").exists())

    def test_contributing_lists_every_source_layer(self):
        rows = set(re.findall(r"(?m)^\| `(\w+)/` \|", read("CONTRIBUTING.md")))
        self.assertEqual(set(), {path.name for path in (ROOT / "src/ojs").iterdir()} - rows)

    def test_the_worker_knows_the_variables_of_all_programs(self):
        """Or a worker started with one of them warns of a variable that it does not know."""
        source = "".join(path.read_text() for root in ("src", "tools") for path in (ROOT / root).rglob("*.?pp"))
        read_by_name = set(re.findall(r'"(OJS_[A-Z_]+)=?"', source))
        known = set(re.findall(r"OJS_[A-Z_]+", read("src/ojs/ops/detail/startup_findings.ipp")))
        not_of_a_worker = {"OJS_PROCESS_PID"}  # of the launcher's hooks
        self.assertIn("OJS_CONTROLLER_CONFIG", read_by_name)
        self.assertEqual(set(), read_by_name - known - KNOWN_VARIABLES - not_of_a_worker)


class Sizes(unittest.TestCase):
    def test_documents_are_within_their_line_limits(self):
        def lines(paths):
            return sum(read(path).count("\n") for path in paths)

        self.assertLessEqual(len(PAGES), 12)
        self.assertLessEqual(lines(PAGES), 2_300)
        self.assertLessEqual(lines(["README.md"]), 150)
        self.assertLessEqual(lines(path for path in REPORTS if path.startswith("tests/")), 450)


class Tables(unittest.TestCase):
    def test_generated_table_columns_are_current(self):
        run([sys.executable, "-B", ROOT / "tools/doc_tables.py", "--check"])

    def test_readme_has_a_row_for_each_exit_status(self):
        constants = re.findall(r"inline constexpr int \w+ = (\d+);", read("src/ojs/stop/stoppable.hpp"))
        self.assertGreater(len(constants), 5)
        rows = re.findall(r"(?m)^\| (\d+)(?:\+n)? \|", read("README.md"))
        self.assertEqual(constants, rows)


class Backend(unittest.TestCase):
    def test_documented_dev_backend_routes_exist(self):
        """All of them are printed by the program: backend_api.cpp reads `GET /`."""
        source = set(re.findall(r'\{"[A-Z]+",\s*"(/[^"]*)",\s*"[^"]+",\s*&', read("tools/dev_backend/routes.cpp")))
        named = set(re.findall(r"(?:GET |`|:8080)(/[\w/{}-]*)", read("tools/dev_backend/README.md")))
        self.assertGreater(len(named), 5)
        self.assertEqual(set(), named - source)


class Configuration(unittest.TestCase):
    def test_launcher_md_lists_every_configuration_key(self):
        """In the first column of its table, or in the row of the object that has it."""
        keys = set(re.findall(r'\bkey\("(\w+)"', read("src/ojs/launcher/launcher_options.ipp")))
        self.assertGreater(len(keys), 30)
        table = re.search(r"(?ms)^\| key \| default \|.*?\n\n", read("docs/launcher.md"))[0]
        self.assertEqual(set(), keys - set(re.findall(r"`(\w+)`", table)))


class LogsAndMetrics(unittest.TestCase):
    # Where a document names log lines: texts of several words in code, but for commands.
    SECTIONS = {
        "operating": r"(?ms)^## (?:First aid|Log lines)$(.*?)^## ",
        "launcher": r"(?ms)^## No launcher answers$(.*)",
    }

    def test_log_messages_and_metrics_in_documents_exist_in_the_source(self):
        source = read_headers()
        for document, section in self.SECTIONS.items():
            text = read(f"docs/{document}.md")
            metrics = set(re.findall(r"`(ojs_\w+?)(?:\{|`)", text))
            if document == "launcher":
                self.assertEqual(metrics, set(re.findall(r'"(ojs_launcher_\w+)"', source)) - {"ojs_launcher_build_info"})
            code = re.findall(r"`([a-zA-Z]\w* [\w ,:;]+)`", re.sub(FENCED, "", "".join(re.findall(section, text))))
            messages = {each for each in code if not re.search(r"^(launcher|worker) |\b(ID|GROUP)\b", each)}
            self.assertGreater(min(len(metrics), len(messages)), 10)
            self.assertEqual([], [each for each in sorted(metrics) if f'"{each}"' not in source])
            self.assertEqual([], [each for each in sorted(messages) if f'"{each}' not in source])


if __name__ == "__main__":
    unittest.main()
