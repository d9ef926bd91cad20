"""The documents: what they cite exists, and code in them is code that is compiled, run or looked up.

A block without a language, or with one that no rule below knows, fails. C++ is compiled as a file of its own, unless a
comment, which no reader sees, stands right before it:

    <!-- compiled in: TEXT BLOCK TEXT -->      what the block is compiled in
    <!-- part of FILE -->                      the block is a part of that file; `// ...` or `# ...` stands for what is left out
"""

import concurrent.futures
import functools
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path

import clauses
import picture

ROOT = Path(__file__).resolve().parents[2]
MAKEFILES = [ROOT / "Makefile", *(path for folder in ("bench", "tests", "packaging") for path in (ROOT / folder).rglob("*.mk"))]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
COMPILER = [os.environ.get("CXX", "c++"), "-std=c++17", "-pthread", "-fsyntax-only"]
FORM = ["-DOJS_SHUTDOWN_SEPARATE=1"]
INCLUDES = [f"-I{ROOT}", f"-I{ROOT}/extensions", "-isystem", str(ROOT / "third_party/include")]


def read(path):
    return (ROOT / path).read_text()


# ---- the blocks of the documents -------------------------------------------------------------------------------------


@dataclass
class Block:
    where: str  # document and line
    language: str
    note: str  # of the comment before it
    text: str


def blocks(document):
    text = read(document)
    fence = r"(?ms)^```([^\n]*)\n(.*?)^```$"
    outside = re.sub(fence, "", text)
    assert not re.search(r"(?m)^\s*(```|~~~)|(?:\A|^\s*\n) {4}", outside), f"{document}: indented code, or another kind of fence"
    out = []
    for found in re.finditer(fence, text):
        before = text[: found.start()]
        note = re.search(r"<!-- ((?:(?!-->).)*?)\s*-->\n$", before, re.DOTALL)
        out.append(Block(f"{document}:{before.count(chr(10)) + 1}", found[1], note[1] if note else "", found[2]))
    return out


def read_headers():
    return read("ojs_shutdown.hpp") + "".join(each.read_text() for each in (ROOT / "extensions").iterdir())


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"


def is_part_of(block):
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
    if block.note.startswith("part of "):
        return is_part_of(block)
    run([*COMPILER, "-include", precompiled(), *INCLUDES, *FORM, "-x", "c++", "-"], input=source_of(block))


def parse_json(block):
    keys = []
    json.loads(block.text, object_pairs_hook=lambda pairs: keys.extend(name for name, _ in pairs))
    # tests/process/launcher_admin.cpp runs the one of docs/launcher.md
    readers = {"docs/spot.md": "tools/controller.cpp", "docs/launcher.md": "src/ojs/launcher/launcher_options.ipp"}
    if reader := readers.get(block.where.split(":")[0]):
        for key in keys:
            assert f'"{key}"' in read(reader), f"{reader} reads no {key}"


# ---- commands --------------------------------------------------------------------------------------------------------

SUITES = ("unit", "process", "recovery")


def source_of_program(name):
    stem = name.replace("-", "_")
    return "".join(path.read_text() for glob in (f"*/{stem}.cpp", f"tools/{stem}/*.cpp") for path in ROOT.glob(glob))


def check_flags(words, known, whose):
    for word in words:
        if re.match(r"--?\w", word):
            flag = re.escape(word.split("=")[0])
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", known), f"{whose} knows no {word}"


def check_program(words):
    name = Path(words[0]).name
    if name in SUITES:
        return check_flags(words[1:], "--test-case", name)
    assert source_of_program(name), f"there is no program {words[0]}"
    own = words[1 : words.index("--")] if "--" in words else words[1:]
    check_flags(own, source_of_program(name), name)
    if "--" in words:
        check_command(words[words.index("--") + 1 :])


def check_make(words):
    makefile = "".join(path.read_text() for path in MAKEFILES)
    targets = {target for line in re.findall(r"(?m)^([a-z][a-z -]*):", makefile) for target in line.split()}
    for word in words[1:]:
        name = word.split("=")[0]
        if "=" in word:
            assert re.search(rf"(?m)^{name} \?=", makefile), f"no Makefile has a variable {name}"
        elif word.startswith("build/test/"):
            _, _, configuration, suite = word.split("/")
            assert f"\ncompiler.{configuration} " in makefile and suite in SUITES, word
        elif word.startswith("build/"):
            assert source_of_program(Path(word).name), f"there is no program {word}"
        else:
            assert word in targets, f"no Makefile has a target {word}"


def check_curl(words):
    if "-d" in words:
        json.loads(words[words.index("-d") + 1])
    target = "/" + words[-1].split("/", 3)[3].split("?")[0]
    service, _, method = target[1:].rpartition("/")
    answered = read("tools/dev_backend/routes.cpp"), *(path.read_text() for path in (ROOT / "src/ojs/launcher").rglob("*admin*"))
    known = (f'"POST", "{target}"', f'{{"{target}", {{"GET"', f'.add("{method}"')
    assert any(each in source for each in known for source in answered), f"nobody answers {target}"
    assert "--unix-socket" not in words or not service or any(f'"{service}"' in source for source in answered), service


def check_signal(words):
    (name,) = re.findall(r" -(?:-signal=)?([A-Z][A-Z0-9]+)\b", " ".join(words))
    assert hasattr(signal, "SIG" + name), f"there is no signal {name}"


def check_docker(words):  # what is said of a file stands in that file
    assert "-f" not in words or " ".join(words) in read(words[words.index("-f") + 1]), words


def check_python(words):
    if words[1] == "-B":
        assert words[2:5] == ["-m", "unittest", "discover"], words
    else:
        check_tool(words[1:], "python3", "-B", ROOT / words[1])


def check_tool(words, *command):
    """Flags are those that --help names, where there is such a tool."""
    if shutil.which((command or words)[0]):
        known = subprocess.run([*(command or words[:1]), "--help"], capture_output=True, text=True).stdout
        check_flags([word for word in words[1:] if word.startswith("--") or not command], known, words[0])


COMMANDS = {
    "make": check_make,
    "curl": check_curl,
    "kill": check_signal,
    "systemctl": lambda words: words[1] in ("restart", "reload") or check_signal(words),
    "kubectl": lambda words: check_command(words[words.index("--") + 1 :]),
    "python3": check_python,
    "docker": check_docker,
    "addr2line": check_tool,
    "sha256sum": check_tool,
    "grep": lambda words: run(words, cwd=ROOT),
    "/worker": check_program,
    "/controller": check_program,
    # The test of packaging runs cmake and minisign. Of the others, files and variables are looked at.
    **dict.fromkeys(("cmake", "minisign", "conan", "vcpkg", "cat", "export"), lambda words: None),
}
FILE_COMMANDS = ("echo", "cp", "mv")  # a line of them is run, in a folder of its own
OPTIONS = [read(f"src/ojs/{name}.ipp") for name in ("loop/loop_options", "worker/options/worker_options")]
KNOWN_VARIABLES = set(re.findall(r"OJS_[A-Z_]+", "".join(OPTIONS))) | {"OJS_TEST_BIN"}


def check_command(words):
    for word in words:
        name = re.match(r"(OJS_\w+)=", word)
        assert not name or name.group(1) in KNOWN_VARIABLES, f"nobody reads {word}"
        if path := re.search(r"(?:^|=)((?:examples|packaging|tests|tools)/.*)", word):
            assert (ROOT / path.group(1)).exists(), f"there is no {word}"
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if words[0].startswith(("build/", "./")):
        return check_program(words)
    assert words[0] in COMMANDS, f"no rule for the command {words[0]}"
    COMMANDS[words[0]](words)


def commands_in(line):
    """The simple commands of a line of shell, each a list of words; without redirections."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    out = [[]]
    redirected = False
    for word in reader:
        if set(word) <= set(";|&"):
            out.append([])
        elif set(word) <= set("<>"):
            redirected = True
        elif redirected:
            redirected = False
        else:
            out[-1].append(word)
    return [words for words in out if words]


def run_on_files(line):
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/var/spool/jobs/request")
        os.makedirs(f"{folder}/tmp")
        run(["sh", "-ec", re.sub(r"(?<=[ >])/(?=var/|tmp/)", f"{folder}/", line)])
        for written in Path(folder).rglob("*.json"):
            json.loads(written.read_text())


def check_shell(block):
    run(["sh", "-n"], input=block.text)
    text = re.sub(r"'\{[^']*'", lambda found: found[0].replace("\n", " "), block.text)  # JSON of several lines
    for line in re.sub(r"(\\|&&|\|)\n", r"\1 ", text).replace("\\ ", " ").splitlines():
        if line.startswith(FILE_COMMANDS):
            run_on_files(line)
        elif line.startswith("g++"):  # with the flags of the blocks, or those of pkg-config, as in the test of packaging
            separate = r"-pthread( -DOJS_SHUTDOWN_SEPARATE)? worker\.cpp( ojs_shutdown\.cpp)? -o worker"
            assert re.fullmatch(rf"g\+\+ -std=c\+\+17 ({separate}|worker\.cpp -o worker \$\(pkg-config .*\))", line), line
        else:
            for words in commands_in(line):
                check_command(words)


def is_in_the_header(block):
    """A picture of times is that of the comment on them."""
    assert "".join(f"///     {line}\n" for line in block.text.splitlines()) in read("src/ojs/loop/loop_options.hpp")


def is_built(block):
    """A block for CMake is built by the test of packaging, which asks for it by a word."""
    asked = re.findall(r'documented\("(.+?)"', read("tests/packaging/packaging_test.py"))
    assert any(word in block.text for word in asked), "tests/packaging/packaging_test.py does not build this"


RULES = {"cmake": is_built, "cpp": compile_cpp, "sh": check_shell, "json": parse_json, "ini": is_part_of, "yaml": is_part_of,
         "text": is_in_the_header}  # fmt: skip


class Blocks(unittest.TestCase):
    def check(self, document):
        def fault(block):
            if block.language not in RULES:
                return f"no rule for a block of language '{block.language}'"
            try:
                return RULES[block.language](block)
            except Exception as why:  # whatever it is, it is the block's
                return f"{type(why).__name__}: {why}"

        found = blocks(document)
        precompiled()  # before the threads
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            for block, why in zip(found, threads.map(fault, found)):
                with self.subTest(block.where):
                    self.assertFalse(why, why)
        return found

    def test_each_is_compiled_run_or_looked_up(self):
        found = [block for document in DOCUMENTS for block in self.check(document)]
        self.assertGreater(len(found), 25)
        self.assertEqual(set(RULES), {block.language for block in found})

    def test_commands_in_the_text_too(self):
        begin = (*COMMANDS, "build/", "worker --", "controller --", "launcher ", "dev_backend --", "demo --")
        looked_at = 0
        for document in DOCUMENTS:
            text = re.sub(r"(?ms)^```.*?^```$", "", read(document))
            for code in re.findall(r"`([^`\n]+)`", text):
                if " " not in code.rstrip() or not code.startswith(begin) or code.startswith(("kill(", "export(")):
                    continue
                for command in code.split(" && "):
                    words = command.split()
                    words[0] = words[0] if words[0] in COMMANDS else "build/" + words[0].removeprefix("build/")
                    with self.subTest(document=document, code=code):
                        check_command([word for word in words if not word.startswith(("[", "..."))])
                        looked_at += 1
        self.assertGreater(looked_at, 20)


# ---- names -----------------------------------------------------------------------------------------------------------


def anchors(document):
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"(?ms)^```.*?^```$", "", read(document))
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Names(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for document in [*DOCUMENTS, "CHANGELOG.md"]:
            for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", read(document)):
                with self.subTest(document=document, target=target, anchor=anchor):
                    path = (ROOT / document).parent / target if target else ROOT / document
                    self.assertTrue(path.exists())
                    if anchor:
                        self.assertIn(anchor, anchors(path))

    def test_paths_lead_somewhere(self):
        for document in DOCUMENTS:
            for path in re.findall(r"`((?:src|tests|tools|examples|docs)/[a-z0-9_./-]+)`", read(document)):
                with self.subTest(document=document, path=path):
                    self.assertTrue((ROOT / path).exists())

    def test_layers_are_those_of_the_source(self):
        rows = set(re.findall(r"(?m)^\| `(\w+)/` \|", read("CONTRIBUTING.md")))
        self.assertEqual(set(), {path.name for path in (ROOT / "src/ojs").iterdir()} - rows)

    def test_threads_are_those_of_the_source(self):
        source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/ojs").rglob("*.?pp"))
        rows = set(re.findall(r"(?m)^\| .*?`(ojs-[a-z-]+)`.*?\|", read("CONTRIBUTING.md")))
        self.assertEqual(set(re.findall(r'"(ojs-[a-z-]+)"', source)), rows)


    def test_findings_are_those_of_the_source(self):
        source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/ojs").rglob("*.?pp")))
        after_level = re.findall(r"(?:(?:severity::\w+|\blevel|\bRLIMIT_\w+),|\.id =)\s*([^,;]+)", source)
        named = set(re.findall(r'"([a-z0-9-]+)"', " ".join(after_level)))
        section = re.search(r"(?ms)^## Is it set up for a clean stop\?$(.*?)^## ", read("docs/operating.md"))[1]
        cells = " ".join(re.findall(r"(?m)^\| (`.*?`) \|", section))
        documented = {name.replace("PLATFORM", "") for name in re.findall(r"`(.*?)`", cells)}
        self.assertGreater(len(named), 25)
        self.assertEqual(named, documented)

    def test_variables_of_the_programs_are_known_to_the_worker(self):
        """Or a worker started with one of them warns of a variable that it does not know."""
        source = "".join(path.read_text() for root in ("src", "tools") for path in (ROOT / root).rglob("*.?pp"))
        read_by_name = set(re.findall(r'"(OJS_[A-Z_]+)=?"', source))
        known = set(re.findall(r"OJS_[A-Z_]+", read("src/ojs/loop/detail/environment.ipp")))
        not_of_a_worker = {"OJS_PROCESS_PID"}  # of the launcher's hooks
        self.assertIn("OJS_CONTROLLER_CONFIG", read_by_name)
        self.assertEqual(set(), read_by_name - known - KNOWN_VARIABLES - not_of_a_worker)


class Backend(unittest.TestCase):
    def test_its_routes_are_those_of_the_source(self):
        source = re.findall(r'\{"([A-Z]+)",\s*"(/[^"]*)",\s*"([^"]+)",\s*&', read("tools/dev_backend/routes.cpp"))
        self.assertGreater(len(source), 30)
        self.assertEqual(source, re.findall(r"(?m)^\| ([A-Z]+) \| `(.+?)` \| (.+) \|$", read("docs/backend.md")))

    def test_each_option_of_a_push_is_documented(self):
        section = re.search(r"(?ms)^## Enqueue with options$(.*?)^## ", read("docs/jobs.md"))[1]
        known = re.findall(r'\{"(\w+)", in_(?:job|either|retry|unique)\}', read("tools/dev_backend/push_members.cpp").split("// Only the store")[0])
        suffixed = {"initial_interval_ms", "max_interval_ms"}
        unexplained = {"specversion", "metadata", "options"}  # of clients and of the conformance suite
        self.assertGreater(len(known), 30)
        self.assertEqual([], [name for name in known if f"`{name}`" not in section and name not in suffixed | unexplained])


class Makefiles(unittest.TestCase):
    def test_help_lists_every_target_that_says_what_it_is_for(self):
        listed = subprocess.run(["make", "-s", "help"], capture_output=True, text=True, cwd=ROOT, timeout=60).stdout
        said = [line for path in MAKEFILES for line in re.findall(r"(?m)^([a-z][a-z -]*):.*  ## ", path.read_text())]
        self.assertEqual(sorted(re.findall(r"(?m)^make (\S+) ", listed)), sorted(" ".join(said).split()))

    def test_each_can_be_read(self):
        for path in MAKEFILES:
            self.assertLessEqual(len(path.read_text().splitlines()), 160 if path.name == "Makefile" else 150, path)

    def test_an_example_is_short_enough_to_copy(self):
        longer = {"kafka_loop.cpp": 245, "asio_drain.cpp": 170}  # a client and a server that need more calls
        for path in (ROOT / "examples").rglob("*.?pp"):
            self.assertLessEqual(len(path.read_text().splitlines()), longer.get(path.name, 120), path)


class Handlers(unittest.TestCase):
    def test_one_that_prints_flushes(self):
        """In a pipe, and so in a container's log, nothing is seen before the exit otherwise."""
        sources = [block.text for document in DOCUMENTS for block in blocks(document)]
        sources += [path.read_text() for path in (ROOT / "examples").rglob("*.cpp")]
        prints = r"std::printf\([^;]*;(\s*std::fflush\(stdout\);)?"
        found = [flush for source in sources for flush in re.findall(prints, source.partition("register_handler(")[2])]
        self.assertGreater(len(found), 1)
        self.assertTrue(all(found))


class Readme(unittest.TestCase):
    def test_it_is_short(self):
        self.assertLessEqual(len(read("README.md").encode()), 10_000)

    def test_it_leads_to_every_document(self):
        for document in set(DOCUMENTS) - {"README.md", "SECURITY.md"}:  # the forge links SECURITY.md itself
            self.assertIn(f"]({document})", read("README.md"))


class Shutdown(unittest.TestCase):
    """docs/shutdown.svg, as build/demo drew it; tests/process/demo.cpp draws another one."""

    def test_the_picture_is_whole_and_readable(self):
        drawn = picture.Picture(ROOT / "docs/shutdown.svg")
        self.assertEqual([], list(drawn.faults()))
        self.assertEqual([], drawn.begun_in_shutdown())
        self.assertEqual((10, 2), (len(drawn.bars), len(drawn.back)))

    def test_its_colours_are_those_that_are_drawn_now(self):
        style = picture.text_of(picture.Picture(ROOT / "docs/shutdown.svg").root, "style")
        for rule in style.strip().splitlines():
            self.assertIn(f'"{rule}\\n"', read("tools/demo/picture.hpp"))


class Comparison(unittest.TestCase):
    """docs/comparison.md and its picture, made from what bench/peers/compare.py measured."""

    def setUp(self):
        sys.path.insert(0, str(ROOT / "bench/peers"))
        self.addCleanup(sys.path.remove, str(ROOT / "bench/peers"))
        self.chart = importlib.import_module("chart")
        self.result = json.loads(read("bench/peers/measured.json"))

    def test_table_and_picture_are_what_was_measured(self):
        self.assertIn("\n" + self.chart.table(self.result), read("docs/comparison.md"))
        self.assertEqual(self.chart.drawn(self.result), read("docs/comparison.svg"))

    def test_the_figures_of_the_readme_are_among_them(self):
        def figures(row):  # this library's, and those of the SDKs
            cells = re.search(rf"(?m)^\| {row} \|(.*)\|$", read("docs/comparison.md"))[1].split("|")
            own, *others = [re.sub(r" \(.*", "", cell.strip()) for cell in cells]
            return own, sorted(others, key=lambda each: float(each.split()[0].replace(",", "")))

        (probe, probes), (cpu, cpus), (memory, memories) = map(
            figures, ("checks of the probe that pass", "CPU a job, µs", "memory at most, MiB"))  # fmt: skip
        said = " ".join(read("README.md").split())
        self.assertIn(f"passes {probe} checks of the [shutdown probe]", said)
        self.assertIn(f"pass {probes[0].split()[0]} to {probes[-1]} (", said)
        self.assertIn(f"costs {cpu} µs of CPU ({cpus[0]} to {cpus[-1]})", said)
        self.assertIn(f"a worker {memory} MiB of memory ({memories[0]} to {memories[-1]})", said)

    def test_the_picture_can_be_read_on_light_pages_and_dark_ones(self):
        for name, pair in self.chart.COLOURS.items():
            for colour, page in zip(pair, self.chart.COLOURS["page"]):
                least = {"page": 1, "name": 4.5, "dim": 4.5}.get(name, 3)
                self.assertGreaterEqual(picture.contrast(colour, page), least, name)
        drawn = picture.xml.fromstring(read("docs/comparison.svg"))
        self.assertTrue(picture.text_of(drawn, "title") and picture.text_of(drawn, "desc"))
        for text in drawn.iter("{http://www.w3.org/2000/svg}text"):
            self.assertLess(float(text.get("x")) + 7 * len(text.text), self.chart.WIDTH, text.text)


class Configuration(unittest.TestCase):
    def test_launcher_lists_every_key(self):
        """In the first column of its table, or in the row of the object that has it."""
        keys = set(re.findall(r'\bkey\("(\w+)"', read("src/ojs/launcher/launcher_options.ipp")))
        self.assertGreater(len(keys), 30)
        table = re.search(r"(?ms)^\| key \| default \|.*?\n\n", read("docs/launcher.md"))[0]
        self.assertEqual(set(), keys - set(re.findall(r"`(\w+)`", table)))


class LogsAndMetrics(unittest.TestCase):
    MESSAGES = {
        "operating": ["draining", "job could not be reported", "phase changed", "heartbeat failed", "grace_left_ms"],
        "launcher": ["shutdown progress", "more time requested", "process exceeded its grace_period", "forcing shutdown with SIGTERM",
                     "no acknowledgement of the shutdown request", "cannot stop the process: it outlived SIGKILL", "cannot start the process",
                     "group degraded: too many restarts", "did not stay ready", "a rollout is in progress in this group"],
    }  # fmt: skip

    def test_those_that_a_document_names_are_there(self):
        source = read_headers()
        for document, messages in self.MESSAGES.items():
            text = read(f"docs/{document}.md")
            metrics = set(re.findall(r"`(ojs_\w+?)(?:\{|`)", text))
            self.assertGreater(len(metrics), 5)
            if document == "launcher":
                self.assertEqual(metrics, set(re.findall(r'"(ojs_launcher_\w+)"', source)) - {"ojs_launcher_build_info"})
            for each in messages:
                self.assertIn(f"`{each}`", text)
            for each in metrics.union(messages):
                self.assertTrue(f'"{each}' in source, each)


# ---- docs/clauses.md -------------------------------------------------------------------------------------------------


class Clauses(unittest.TestCase):
    def test_the_column_of_tests_is_current(self):
        """And each tag of a test is that of a row."""
        self.assertEqual(0, clauses.main(check=True))


if __name__ == "__main__":
    unittest.main()
