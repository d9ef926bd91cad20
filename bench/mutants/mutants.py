#!/usr/bin/env python3
"""Which tests would notice a wrong line: changes one line at a time, and runs the tests of its layer.

    mutants.py [--count N] [--seed S] LAYER...

A LAYER is a folder of src/ojs, a file in it, or FILE:LINE. The changes are universalmutator's, one in each line, drawn
at random; the seed decides which. Killed means that a test failed, crashed or hung, or ThreadSanitizer saw a race. A
mutant that does not compile, or compiles to the same object code, is not counted. Mutants run in a PID namespace: a
wrong kill() may reach any process.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "ojs"
TESTS = {"process": "child_process"}  # the folder of a layer's tests, where it has another name
RULES = ["universal.rules", "cpp.rules", "c_like.rules"]
NOT_CODE = [r"^\s*(#|//|\})", r"= (default|delete);",
            r"^\s*((inline )?namespace|using|class|struct|enum|template|static_assert|friend|public|private)\b"]  # fmt: skip
CORES = len(os.sched_getaffinity(0))
IN_FLIGHT = 6 * CORES  # most tests wait rather than compute
SUCCESS = "Status: SUCCESS!"

Mutant = collections.namedtuple("Mutant", "file line before after")  # file: below src/ojs
Verdict = collections.namedtuple("Verdict", "kind test")  # kind: killed, lived or uncounted


# ---- which mutants ---------------------------------------------------------------------------------------------------


def mutants_of(file):
    """{line: the mutants of it}, by universalmutator."""
    from universalmutator import mutator

    before = (SOURCE / file).read_text().splitlines(keepends=True)
    with contextlib.redirect_stdout(None):
        found = mutator.mutants_regexp(before, RULES, ignorePatterns=NOT_CODE, ignoreStringOnly=True)
    lines = collections.defaultdict(list)
    for number, after, *_ in found:
        mutant = Mutant(file, number, before[number - 1], after)
        if is_worth_it(mutant):
            lines[number].append(mutant)
    return lines


def is_worth_it(mutant):
    """Not what never compiles, nor a changed text for people, which no test is to repeat."""
    before, after = mutant.before, mutant.after
    if after.count("\n") > 1:  # an inserted break or continue, mostly outside of a loop
        return False
    if "/*" in after and not before.split("//")[0].rstrip().endswith(";"):  # a line without the rest of its statement
        return False
    if re.match(r"[^ ][<>&*]", before[len(os.path.commonprefix([before, after])) - 1 :]):  # of a template or reference
        return False
    without_text = [re.sub(r'"[^"]* [^"]*"', '""', line) for line in (before, after)]
    return without_text[0] != without_text[1]


def is_within(place, layers):
    """Whether core/signals.ipp:7 is in one of [core, core/signals.ipp, core/signals.ipp:7]."""
    return any(place == layer or place.startswith((layer.rstrip("/") + "/", layer + ":")) for layer in layers)


def draw(layers, seed):
    """{layer: its mutants in the order of their trial}. A line's mutant depends on the seed and the line only."""
    drawn = collections.defaultdict(list)
    for path in sorted(SOURCE.rglob("*.?pp")):
        file = str(path.relative_to(SOURCE))
        if not any(is_within(file, [layer.split(":")[0]]) for layer in layers):
            continue
        for line, mutants in mutants_of(file).items():
            place = f"{file}:{line}"
            if is_within(place, layers):
                drawn[file.split("/")[0]].append((random.Random(f"{seed} {place}").random(), place, mutants))
    return {layer: [random.Random(f"{seed} {place} which").choice(mutants) for _, place, mutants in sorted(lines)]
            for layer, lines in drawn.items()}  # fmt: skip


def shares(drawn, count):
    """{layer: how many of `count` it gets}, in proportion to its lines."""
    lines = sum(map(len, drawn.values()))
    return {layer: min(len(mutants), max(1, round(count * len(mutants) / lines))) for layer, mutants in drawn.items()}


# ---- one layer --------------------------------------------------------------------------------------------------------


def failed_test(output):
    """The test case that failed first; after a crash, the one after the last that ended."""
    before, error, _ = output.partition("ERROR: ")
    found = re.findall(r"^TEST CASE:\s+(.*)" if error else r"^[0-9.]+ s: (.*)", before, re.MULTILINE)
    return ("" if error else "crash after: ") + (found[-1] if found else "nothing")


def header_of(layer):
    """An extension has the name of its layer."""
    extension = f"ojs_{layer}.hpp"
    return extension if (ROOT / "src" / extension).exists() else "ojs_shutdown.hpp"


def definitions(header):
    """The files of src/ that a template lists as definitions, those of the headers it includes first."""
    declared, defined = (ROOT / "src" / header).read_text().split('#include "set_define.hpp"\n')
    included = re.findall(r'#include "(ojs_\w+\.hpp)"', declared)
    own = re.findall(r'#include "(ojs/.*)"', defined)
    return list(dict.fromkeys(file for name in included for file in definitions(name))) + own


class Layer:
    """A layer's tests in the header-only form, which have internals, linked with an object of the layer's definitions.

    In that object they are no inline functions, and replace the tests' copies: a mutant costs one small compilation.
    """

    def __init__(self, name, folder, compiler):
        self.name = name
        self.folder = folder
        self.compiler = compiler
        self.compiling = threading.Semaphore(CORES)
        header = header_of(name)
        parts = definitions(header)
        own = [part for part in parts if part.startswith(f"ojs/{name}/")]
        lower = parts[: parts.index(own[0])]
        self.prefix = self.write(f"{name}_prefix.hpp", ["#define OJS_SHUTDOWN_SEPARATE 1", include(header),
                                 "#define OJS_SHUTDOWN_INLINE inline", *map(include, lower)])  # fmt: skip
        self.layer = self.write(f"{name}_layer.cpp", ["#undef OJS_SHUTDOWN_INLINE", "#define OJS_SHUTDOWN_INLINE",
                                                    *map(include, own)])  # fmt: skip
        files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests" / TESTS.get(name, name)).glob("*.cpp"))
        if not files:
            sys.exit(f"mutants: {name} has no unit tests")
        tests = subprocess.check_output([ROOT / "tests/tools/layer.sh", *files], cwd=ROOT, text=True)
        self.tests_source = self.write(f"{name}_tests.cpp", [tests])

        precompiled = self.compile(self.prefix, f"{self.name}_prefix", "-x", "c++-header")
        self.plain = ["-include", str(self.prefix)]
        self.optimised = self.compile(self.layer, f"{self.name}_optimised", "-O1", *self.plain)
        self.tests = Tests(self, self.name, ["-include-pch", str(precompiled)])
        self.sanitized = Tests(self, f"{self.name}_sanitized", self.plain, "-fsanitize=thread",
                               "-D__SANITIZE_THREAD__=1")  # fmt: skip

    def write(self, name, lines):
        (self.folder / name).write_text("\n".join(lines) + "\n")
        return self.folder / name

    def compile(self, source, name, *options):
        """The object, or None if it does not compile."""
        made = self.folder / f"{name}.o"
        command = [self.compiler, "-std=c++17", "-pthread", "-Wno-everything", "-Werror=return-type", "-Wfatal-errors",
                   *(f"-I{ROOT}/{folder}" for folder in ("src", "tests", "tests/support")),
                   f"-isystem{ROOT}/third_party/include", "-DDOCTEST_CONFIG_SUPER_FAST_ASSERTS",
                   *options, "-c", str(source), "-o", str(made)]  # fmt: skip
        with self.compiling:
            done = subprocess.run(command, cwd=self.folder, stderr=subprocess.DEVNULL)
        return made if done.returncode == 0 else None

    def judge(self, mutant):
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            return self.judge_built(mutant, Path(folder).name)

    def judge_built(self, mutant, name):
        overlay = ["-ivfsoverlay", str(self.write_overlay(mutant, name))]
        is_header = mutant.file.endswith(".hpp")  # the tests see it too
        if verdict := self.tests.judge(name, overlay, is_header):
            return verdict
        # Trivial compiler equivalence: the optimiser makes the same of both.
        optimised = None if is_header else self.compile(self.layer, f"{name}/layer", "-O1", *self.plain, *overlay)
        if optimised and is_same(optimised, self.optimised):
            return Verdict("uncounted", "")
        return self.sanitized.judge(name, overlay, is_header) or Verdict("lived", "")

    def write_overlay(self, mutant, name):
        """A file that has the compiler read the mutant where the library has the original."""
        lines = (SOURCE / mutant.file).read_text().splitlines()
        lines[mutant.line - 1] = mutant.after.rstrip("\n")
        entry = {"type": "file", "name": str(SOURCE / mutant.file),
                 "external-contents": str(self.write(f"{name}/mutant", lines))}  # fmt: skip
        overlay = {"version": 0, "use-external-names": False, "roots": [entry]}
        return self.write(f"{name}/overlay", [json.dumps(overlay)])


class Tests:
    """A layer's tests, compiled with these options. prefix: includes what the layer is built on."""

    def __init__(self, layer, name, prefix, *options):
        self.layer, self.prefix, self.options = layer, prefix, options
        self.main = layer.compile(ROOT / "tests/main.cpp", f"{name}_main", *options)
        self.tests = layer.compile(layer.tests_source, f"{name}_tests", *options)
        self.original = layer.compile(layer.layer, f"{name}_layer", *options, *prefix)
        self.program = self.link(name, self.original, self.tests)
        began = time.monotonic()
        output = self.run(self.program, 900)
        if not output or SUCCESS not in output:
            sys.exit(f"mutants: the tests of {name} fail without a mutant: {failed_test(output or '')}")
        self.limit = 60 + 8 * (time.monotonic() - began)  # the machine may become slower

    def judge(self, name, overlay, is_header):
        """The verdict, or None: it lives."""
        layer, tests = self.layer, self.tests
        prefix = layer.plain if is_header else self.prefix
        changed = layer.compile(layer.layer, f"{name}/layer", *self.options, *prefix, *overlay)
        if changed and is_header:
            tests = layer.compile(layer.tests_source, f"{name}/tests", *self.options, *overlay)
        if not tests or not changed or (is_same(changed, self.original) and is_same(tests, self.tests)):
            return Verdict("uncounted", "")
        output = self.run(self.link(f"{name}/program", changed, tests), self.limit)
        if output is None:
            return Verdict("killed", "hung")
        return None if SUCCESS in output else Verdict("killed", failed_test(output))

    def link(self, name, *objects):
        made = self.layer.folder / name
        command = [self.layer.compiler, "-pthread", *self.options, *objects, self.main, "-o", made]
        subprocess.run(command, check=True)
        return made

    def run(self, program, limit):
        """The output of its tests, up to the first failure or race; None: it hung."""
        command = [*sandbox(self.options), str(program), "--abort-after=1", "--duration=true"]
        folder = self.layer.folder
        with tempfile.TemporaryDirectory(dir=folder) as own, tempfile.TemporaryFile(dir=folder) as output:
            variables = {**os.environ, "TMPDIR": own, "TSAN_OPTIONS": "halt_on_error=1 report_thread_leaks=0 die_after_fork=0"}
            try:
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, cwd=own,
                               env=variables, timeout=limit)  # fmt: skip
            except subprocess.TimeoutExpired:
                return None
            output.seek(0)
            return output.read().decode(errors="replace")


def include(file):
    return f'#include "{file}"'


def is_same(one, other):
    return one.read_bytes() == other.read_bytes()


# ---- all layers -------------------------------------------------------------------------------------------------------


def judge_in_order(judge, mutants, count):
    """(mutant, verdict) in the order of the draw, until `count` are counted: the result depends on the seed alone."""
    rest = iter(mutants)
    pending = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
        while count > 0:
            while len(pending) < count and (drawn := next(rest, None)):
                pending.append((drawn, pool.submit(judge, drawn)))
            if not pending:
                return
            mutant, future = pending.popleft()
            verdict = future.result()
            if verdict.kind != "uncounted":
                count -= 1
            yield mutant, verdict


def describe(mutant):
    return f"{mutant.file}:{mutant.line}\n    - {mutant.before.rstrip()}\n    + {mutant.after.rstrip()}"


def report(verdicts):
    """The score of each folder, and of all of them."""
    scores = collections.defaultdict(list)
    for mutant, verdict in verdicts:
        for place in (str(Path(mutant.file).parent), "total"):
            scores[place].append(verdict.kind == "killed")
    return [f"{place:24} {sum(killed):4} of {len(killed):4} killed, {100 * sum(killed) / len(killed):.0f} %"
            for place, killed in sorted(scores.items(), key=lambda score: (score[0] == "total", score[0]))]  # fmt: skip


def sandbox(sanitizer=()):
    """Before the tests: a PID namespace and a session of their own, with limits. A sanitizer needs all addresses."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    addresses = ["setarch", "-R"] if sanitizer else ["prlimit", "--as=16000000000"]
    return ["unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc", *addresses,
            "sh", "-c", 'ulimit -f 200000; ulimit -t 60; setsid -w "$@"; exit $?', ""]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="how many mutants, of all layers (default: 200)")
    parser.add_argument("--seed", default=None, help="which ones (default: any, and printed)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/mutants")
    parser.add_argument("--compiler", default="clang++")
    parser.add_argument("layers", nargs="+", metavar="LAYER")
    options = parser.parse_args()
    seed = options.seed or str(random.randrange(10**6))
    if subprocess.run([*sandbox(), "true"]).returncode != 0:
        sys.exit("mutants: cannot create a PID namespace (unshare); run as root or allow user namespaces")
    os.environ["CCACHE_DISABLE"] = "1"  # no object is needed twice
    drawn = draw(options.layers, seed)
    if not drawn:
        sys.exit(f"mutants: nothing to change in {' '.join(options.layers)}; name a folder or file of src/ojs")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}: a mutant that lived is a change that no test of its layer notices", flush=True)
    verdicts = []
    with open(folder / "verdicts.tsv", "w", buffering=1) as log:
        for name, count in shares(drawn, options.count).items():
            layer = Layer(name, folder, options.compiler)
            for mutant, verdict in judge_in_order(layer.judge, drawn[name], count):
                print(f"{mutant.file}:{mutant.line}", *verdict, mutant.after.strip(), sep="\t", file=log)
                if verdict.kind == "lived":
                    print("lived:", describe(mutant), flush=True)
                if verdict.kind != "uncounted":
                    verdicts.append((mutant, verdict))
    print(*report(verdicts), f"seed {seed}; each verdict is in {folder}/verdicts.tsv", sep="\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        os._exit(130)  # without the pool's tests; their namespaces end with unshare
