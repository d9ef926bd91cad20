#!/usr/bin/env python3
"""Puts the parts in src/ together into ojs_shutdown.hpp, the one file that users copy.

The template is src/ojs_shutdown.hpp: it lists the parts in order, first the declarations, within the include guard,
then the definitions. Each of its local includes is replaced by that part; everything else in it is kept as it stands. Nothing
is parsed but preprocessor lines, so what you read in src/ is what you find in the header.

The parts live in rooms (folders of src/ojs). A room knows itself and the rooms before it, never those after it. That
and the other house rules are checked here, because here every part is read anyway: see check_part and check_tree.
"""

import argparse
import hashlib
import posixpath
import re
import sys
from pathlib import Path

ROOMS = ["base", "core", "system", "net", "server", "worker", "spool", "launcher"]
# What no user may name stands in folders of these names, and in the namespace detail.
INTERNAL = {"detail", "engine", "http"}
# Rooms that are compiled only where a macro is 1. Nothing else includes them, so who does not want them pays nothing.
LEAVES = {"server": "OJS_SHUTDOWN_SERVER", "launcher": "OJS_SHUTDOWN_LAUNCHER"}
FIRST_SCREEN = 100  # columns
UMBRELLA = "src/ojs_shutdown.hpp"
OUTPUT = "ojs_shutdown.hpp"
GUARD_BEGIN = "#ifndef OJS_SHUTDOWN_HPP"  # the declarations are between these two, the definitions after them
GUARD_END = "#endif  // OJS_SHUTDOWN_HPP"
CONFIG = "base/config.hpp"  # part of every header: the version and the macros, which nobody includes by name

ANY_LOCAL_INCLUDE = re.compile(r'\s*#\s*include\s*"')
LOCAL_INCLUDE = re.compile(r'#include "([^"]+)"')
SYSTEM_INCLUDE = re.compile(r"\s*#\s*include\s*<([^>]+)>")
DEFINE = re.compile(r"\s*#\s*define\s+(\w+)")
VERSION = re.compile(r'#define OJS_SHUTDOWN_VERSION "([^"]+)"')
INLINE_NAMESPACE = re.compile(r"inline namespace (\w+)")

ALLOWED_MACROS = {"PICOJSON_USE_LOCALE"}
# Streams pull in locales and static constructors; the rest costs more compile time than the library itself.
# base/function.hpp and the parts in base/detail/ have what is needed of them.
STREAMS = {"iostream", "sstream", "fstream", "iomanip"}
HEAVY = STREAMS | {"functional", "memory", "mutex", "thread", "condition_variable", "map", "regex"}


class Problem(Exception):
    def __init__(self, where, what, fix):
        super().__init__(f"{where}: {what}\n  fix: {fix}")


class Part:
    """One file of src/ojs: its name ("core/wake.ipp"), its lines, and its local includes as (line number, name)."""

    def __init__(self, name, text):
        self.name = name
        self.lines = text.splitlines()
        self.room = name.split("/")[0]
        self.internal = not INTERNAL.isdisjoint(name.split("/")[:-1])
        self.includes = []
        for number, line in enumerate(self.lines, 1):
            found = LOCAL_INCLUDE.match(line)
            if found:
                target = posixpath.normpath(posixpath.join(posixpath.dirname(name), found.group(1)))
                self.includes.append((number, target))

    def at(self, number):
        return f"src/ojs/{self.name}:{number}"

    def purpose(self):
        """The first sentence of the file, without the name it begins with: the file's entry in the module list."""
        comment = []
        for line in self.lines:
            if not line.startswith("// "):
                break
            comment.append(line[3:].strip())
        sentence = re.split(r"(?<=\.) ", " ".join(comment))[0].rstrip(".")
        stem = posixpath.basename(self.name).split(".")[0]
        return sentence[len(stem) + 2 :] if sentence.startswith(stem + ": ") else sentence


class Tree:
    """Everything that is read: the template, and all parts by name. Of the template, which lines are under an #if."""

    def __init__(self, root):
        self.umbrella = read(root / UMBRELLA).splitlines()
        folder = root / "src" / "ojs"
        files = sorted(f for f in folder.rglob("*") if f.suffix in (".hpp", ".ipp"))
        names = [f.relative_to(folder).as_posix() for f in files]
        self.parts = {name: Part(name, read(file)) for name, file in zip(names, files)}
        self.order = []  # (line number in the template, name)
        self.conditions = {}  # of a part that is listed under an #if: what that asks for
        open_conditions = []
        for number, line in enumerate(self.umbrella, 1):
            found = LOCAL_INCLUDE.match(line)
            condition = re.match(r"#\s*(if|endif)\w*\s*(.*)", line)
            if condition and condition.group(1) == "if":
                open_conditions.append(condition.group(2))
            elif condition and open_conditions:
                open_conditions.pop()
            if found and found.group(1).startswith("ojs/"):
                name = found.group(1)[len("ojs/") :]
                self.order.append((number, name))
                self.conditions[name] = list(open_conditions)


def read(path):
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise Problem(path.name, f"cannot be read ({failure})", "restore the file as UTF-8 text") from None


# ---- rules ----------------------------------------------------------------------------------------------------------


def check_part(part):
    """What one file must not do, whatever the others are."""
    if part.room not in ROOMS:
        raise Problem(part.at(1), f"unknown room '{part.room}'", f"move it to one of {', '.join(ROOMS)}")
    is_header = part.name.endswith(".hpp")
    if part.internal and "namespace detail {" not in part.lines:
        raise Problem(part.at(1), "internal names where users see them", "put them into namespace detail")
    if is_header and not (part.lines and part.lines[0].startswith("// ")):
        raise Problem(part.at(1), "no purpose", "let the first line be '// name: what it is for.'")
    for number, line in enumerate(part.lines, 1):
        macro = DEFINE.match(line)
        if macro and not macro.group(1).startswith("OJS_SHUTDOWN_") and macro.group(1) not in ALLOWED_MACROS:
            raise Problem(part.at(number), f"macro {macro.group(1)} would reach users", "name it OJS_SHUTDOWN_...")
        system = SYSTEM_INCLUDE.match(line)
        if system and system.group(1) in (HEAVY if is_header else STREAMS):
            fix = "use base/function or a part of base/detail" + ("; or move it to the .ipp" if is_header else "")
            raise Problem(part.at(number), f"<{system.group(1)}> costs every user compile time", fix)
        # clang-format indents every scope but the file's and a namespace's, so the first column tells.
        if line.startswith("using namespace"):
            raise Problem(part.at(number), "'using namespace' would reach users", "name the namespace where it is used")
        if ANY_LOCAL_INCLUDE.match(line) and not LOCAL_INCLUDE.match(line):
            raise Problem(part.at(number), "local include left over", 'write it as #include "...", from column one')


def check_tree(tree):
    """What the files must not do to each other: rooms, cycles, order, nothing missing, nothing forgotten."""
    for part in tree.parts.values():
        check_part(part)
        for number, target in part.includes:
            if target not in tree.parts:
                raise Problem(part.at(number), f"src/ojs/{target} does not exist", "correct the path, or add the file")
            if ROOMS.index(part.room) < ROOMS.index(target.split("/")[0]):
                fix = f"move what is needed to {part.room}/ or before, or hand it in as a parameter"
                raise Problem(part.at(number), f"upward include: {part.room}/ must not know {target}", fix)
            check_seen_by_users(tree, part, number, target)
    check_cycles(tree)
    check_version(tree)
    check_leaves(tree)

    listed = {name for _, name in tree.order}
    emitted = set()
    for number, name in tree.order:
        where = f"{UMBRELLA}:{number}"
        if name not in tree.parts:
            raise Problem(where, f"src/ojs/{name} does not exist", "add the file, or take the line out")
        if name in emitted:
            raise Problem(where, f"{name} is listed twice", "take one of the lines out")
        for line, target in tree.parts[name].includes:
            if target in listed - emitted:
                what = f"uses {target}, which comes later in the header"
                raise Problem(tree.parts[name].at(line), what, f"in {UMBRELLA}, list {target} before {name}")
        emitted.add(name)
    for name, part in tree.parts.items():
        if name not in emitted:
            raise Problem(part.at(1), "not part of the header", f'add #include "ojs/{name}" to {UMBRELLA}')
    replaced = {number for number, _ in tree.order}
    for number, line in enumerate(tree.umbrella, 1):
        if ANY_LOCAL_INCLUDE.match(line) and number not in replaced:
            raise Problem(f"{UMBRELLA}:{number}", "local include left over", 'write it as #include "ojs/ROOM/FILE"')


def check_seen_by_users(tree, part, number, target):
    """What users see needs nothing of how it is done, but for the small parts in detail/."""
    seen = part.name.endswith(".hpp") and not part.internal
    if seen and tree.parts[target].internal and "detail" not in target.split("/"):
        fix = "include it in the .ipp, or move what is needed to detail/"
        raise Problem(part.at(number), f"{part.name} is for users, {target} is not", fix)


def check_leaves(tree):
    """The rooms that are opted into are listed under their macro, and nothing else is."""
    for number, name in tree.order:
        wanted = LEAVES.get(name.split("/")[0])
        if wanted and wanted not in tree.conditions[name]:
            raise Problem(f"{UMBRELLA}:{number}", f"{name} is of a leaf", f"list it under '#if {wanted}'")
        if not wanted and not set(LEAVES.values()).isdisjoint(tree.conditions[name]):
            raise Problem(f"{UMBRELLA}:{number}", f"{name} is of no leaf", "list it before the #if")


def check_version(tree):
    """Two versions in one process must share neither functions nor state: the inline namespace names the version."""
    config = tree.parts.get(CONFIG)
    version = VERSION.search("\n".join(config.lines)) if config else None
    if not version:
        return
    wanted = "v" + version.group(1).replace(".", "_")
    for part in tree.parts.values():
        for number, line in enumerate(part.lines, 1):
            found = INLINE_NAMESPACE.search(line)
            if found and found.group(1) != wanted:
                raise Problem(part.at(number), f"namespace {found.group(1)} is not the version's", f"name it {wanted}")


def check_cycles(tree):
    done = set()

    def visit(part, path):
        for number, target in part.includes:
            if target in path:
                cycle = " -> ".join(path[path.index(target) :] + [target])
                raise Problem(part.at(number), f"include cycle: {cycle}", "move what both need to a file of its own")
            if target not in done:
                visit(tree.parts[target], path + [target])
        done.add(part.name)

    for name, part in tree.parts.items():
        visit(part, [name])


# ---- output ---------------------------------------------------------------------------------------------------------


def choose(tree, rooms):
    """The parts to emit: everything, or the files of `rooms` and all that they need, definitions included."""
    if rooms is None:
        return set(tree.parts)
    for room in rooms:
        if not any(part.room == room for part in tree.parts.values()):
            raise Problem(f"src/ojs/{room}", "no such module in this tree", "leave it out of --modules")
    chosen = set()
    pending = [CONFIG] + [part.name for part in tree.parts.values() if part.room in rooms]
    while pending:
        name = pending.pop()
        if name in chosen or name not in tree.parts:
            continue
        chosen.add(name)
        pending += [target for _, target in tree.parts[name].includes]
        if name.endswith(".hpp"):
            pending.append(name[: -len(".hpp")] + ".ipp")
    return chosen


def split_includes(part):
    """(body, system includes to hoist). An include under a condition stays where it is, and so does picojson, which
    wants its own macros set before it."""
    body, hoisted, depth = [], set(), 0
    for line in part.lines:
        directive = re.match(r"\s*#\s*(if|endif|pragma once)", line)
        if directive:
            depth += {"if": 1, "endif": -1}.get(directive.group(1), 0)
            if directive.group(1) == "pragma once":
                continue
        system = SYSTEM_INCLUDE.match(line)
        if LOCAL_INCLUDE.match(line):
            continue
        if system and depth == 0 and system.group(1) != "picojson.h":
            hoisted.add(system.group(1))
        else:
            body.append(line)
    return body, hoisted


def tidy(lines):
    """No blank lines at either end, never two in a row: taking includes out leaves some."""
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    return text.strip("\n").split("\n")


def amalgamate(tree, rooms=None, picojson=None):
    """The text of the header. A pure function of its inputs: no time, no path, no commit."""
    check_tree(tree)
    chosen = choose(tree, rooms)
    split = {name: split_includes(tree.parts[name]) for name in chosen}
    names = [name for _, name in tree.order if name in chosen]

    try:
        start, end = tree.umbrella.index(GUARD_BEGIN), tree.umbrella.index(GUARD_END)
    except ValueError:
        raise Problem(f"{UMBRELLA}:1", "no include guard", f"write '{GUARD_BEGIN}' and '{GUARD_END}'") from None
    declarations = {name for number, name in tree.order if number <= end}
    for name in names:  # a leaf keeps its system includes, under its own condition
        if tree.parts[name].room in LEAVES:
            split[name] = (kept_includes(split[name]), set())
    declared = set().union(*(split[name][1] for name in names if name in declarations))
    # The definitions always follow the declarations, so they need not include the same again.
    defined = set().union(*(split[name][1] for name in names if name not in declarations)) - declared

    out, hoisted = [], [declared, defined]
    for number, line in enumerate(tree.umbrella[start:], start):
        if line.startswith("// clang-format "):  # protects the order of the list, which is not in the output
            continue
        include = LOCAL_INCLUDE.match(line)
        if not include:
            out.append(line)
            continue
        if len(hoisted) == 2 or (len(hoisted) == 1 and number > end):  # the first part of its block
            out += include_lines(hoisted.pop(0))
        name = include.group(1)[len("ojs/") :]
        if name in chosen:
            out += [f"// ==== {name} ====", ""] + tidy(split[name][0]) + [""]

    subset = None if rooms is None else "0x" + digest(tree, names, None)[:8]
    lines = banner(tree, names, rooms, picojson) + [""] + tell_apart(tidy(out), subset)
    if picojson is not None:
        lines = bundle(lines, picojson)
    return "\n".join(lines) + "\n"


def tell_apart(lines, subset):
    """All variants have one guard. Of two in a file the second would vanish unseen, with what only it has. `subset` is
    a number of its own for each smaller header, and None for the whole one, after which nothing is lacking."""
    another, advice = "", "include this one alone"
    if subset is not None:
        lines = lines[:2] + [f"#define OJS_SHUTDOWN_SUBSET {subset}"] + lines[2:]
        another, advice = f" && OJS_SHUTDOWN_SUBSET != {subset}", "include one header with the modules of both"
    return [
        f"#if defined(OJS_SHUTDOWN_HPP) && defined(OJS_SHUTDOWN_SUBSET){another}",
        f"#error a smaller variant of ojs_shutdown.hpp was included before this one: {advice}",
        "#endif",
    ] + lines


def kept_includes(split):
    body, hoisted = split
    return include_lines(hoisted) + body if hoisted else body


def include_lines(headers):
    """C headers first, as everywhere in src/."""
    c_headers = sorted(h for h in headers if h.endswith(".h"))
    others = sorted(set(headers) - set(c_headers))
    return [f"#include <{h}>" for h in c_headers] + [""] + [f"#include <{h}>" for h in others] + [""]


def bundle(lines, picojson):
    """Puts picojson, with the license at its head, in place of its include. Its own guard covers a second one."""
    out, pending = [], ["// ==== picojson.h (its own license follows) ====", ""] + picojson.splitlines()
    for line in lines:
        system = SYSTEM_INCLUDE.match(line)
        if system and system.group(1) == "picojson.h":
            out += pending
            pending = []
        else:
            out.append(line)
    for line in out:
        if ANY_LOCAL_INCLUDE.match(line):
            raise Problem("picojson", f"local include left over: {line.strip()}", "bundle the one-file picojson.h")
    return out


WORKER_USE = """\
    int main() {
        auto options = ojs::worker_options::from_environment();
        if (!options) return ojs::report_usage(options.error());
        ojs::worker worker(*options);
        worker.register_handler("email.send", [](ojs::job_context& job) {
            send_email(job.args_json());
        });
        return worker.run();  // ends after a SIGTERM, when every job is reported
    }"""

CORE_USE = """\
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // errc::busy where another installer is active
    if (signals) signals->wait();                     // SIGTERM, SIGINT, SIGTSTP or SIGCONT"""


def banner(tree, names, rooms, picojson):
    """The first screen of the header: all that a stranger needs to use it and to find things in it."""
    found = [VERSION.match(line) for line in tree.parts[CONFIG].lines] if CONFIG in tree.parts else []
    version = next((f.group(1) for f in found if f), None)
    if version is None:
        raise Problem(f"src/ojs/{CONFIG}:1", "no version", '#define OJS_SHUTDOWN_VERSION "X.Y.Z"')
    uses_picojson = any(re.match(r"\s*#\s*include\s*<picojson\.h>", l) for n in names for l in tree.parts[n].lines)
    needs = "; wants <picojson.h> on the include path" if uses_picojson and picojson is None else ""

    text = [
        f"ojs_shutdown.hpp {version}: stop a worker process without losing work.",
        "On SIGTERM it stops taking jobs, lets those in hand finish, reports every one, and exits.",
        f"C++17, POSIX, one header{needs}.",
        "",
        "SPDX-License-Identifier: Apache-2.0",
        "GENERATED by tools/amalgamate.py from src/; do not edit"
        + (f" (modules: {', '.join(rooms)})" if rooms is not None else ""),
        f"SHA-256 of the inputs: {digest(tree, names, picojson)}",
        "",
        'Use: copy this file into your project, include it, compile with -std=c++17 -pthread.',
        "",
    ]
    text += (WORKER_USE if "worker/worker.hpp" in names else CORE_USE).split("\n")
    text += [
        "",
        "That is all. To compile the definitions only once, give -DOJS_SHUTDOWN_SEPARATE=1 to every file,",
        "and let exactly one of them say",
        "",
        "    #define OJS_SHUTDOWN_IMPLEMENTATION 1",
        '    #include "ojs_shutdown.hpp"',
        "",
        "Where everything lives: search for '==== core/' or '==== core/lifecycle'; definitions (.ipp) come",
        "last; what is in detail/, engine/ and http/ is not for users."
        + (" Begin with worker/worker." if "worker/worker.hpp" in names else ""),
    ]
    listed = [name for name in names if name.endswith(".hpp") and not tree.parts[name].internal]
    width = max(len(name) - len(".hpp") for name in listed) + 2
    text += ["  " + name[: -len(".hpp")].ljust(width) + tree.parts[name].purpose() for name in listed]
    lines = [("// " + line).rstrip() for line in text]
    for name, line in zip(listed, lines[-len(listed) :]):  # the rest is written above
        if len(line) > FIRST_SCREEN:
            what = f"its first sentence does not fit into the first screen ({len(line)} of {FIRST_SCREEN} columns)"
            raise Problem(tree.parts[name].at(1), what, "make it shorter")
    return lines


def digest(tree, names, picojson):
    sha = hashlib.sha256()
    inputs = [(UMBRELLA, tree.umbrella)] + [(name, tree.parts[name].lines) for name in names]
    if picojson is not None:
        inputs.append(("picojson.h", picojson.splitlines()))
    for name, lines in inputs:
        sha.update("\n".join([name] + lines + ["\0"]).encode("utf-8"))
    return sha.hexdigest()


# ---- command line ---------------------------------------------------------------------------------------------------


def check_current(path, wanted, command):
    """0 if the file at `path` is byte for byte `wanted`; else says where it first differs."""
    have = path.read_bytes() if path.exists() else b""
    want = wanted.encode("utf-8")
    if have == want:
        return 0
    old, new = have.split(b"\n"), want.split(b"\n")
    at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))

    def line(lines):
        return lines[at].decode("utf-8", "backslashreplace") if at < len(lines) else "(end of file)"

    print(f"{path.name}:{at + 1}: not what src/ makes\n  file: {line(old)}\n  src/: {line(new)}", file=sys.stderr)
    print(f"  fix: {command}", file=sys.stderr)
    return 1


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description="Puts the parts in src/ together into ojs_shutdown.hpp.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is not current")
    parser.add_argument("--output", metavar="FILE", help=f"write there instead of {OUTPUT}; '-': standard output")
    parser.add_argument("--modules", metavar="LIST", help=f"a smaller header, with what these need: {','.join(ROOMS)}")
    parser.add_argument("--bundle-picojson", metavar="FILE", help="put this picojson.h into the header")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the source tree")
    options = parser.parse_args(arguments)
    if options.modules is not None:
        options.modules = options.modules.split(",")
        unknown = [room for room in options.modules if room not in ROOMS]
        if unknown:
            parser.error(f"unknown module '{unknown[0]}'; there are {', '.join(ROOMS)}")
    if (options.modules is not None or options.bundle_picojson) and not options.output:
        parser.error(f"--modules and --bundle-picojson want --output FILE: {OUTPUT} is always the whole library")
    if options.check and options.output == "-":
        parser.error("--check compares a file; '-' is none")
    return options


def main(arguments):
    options = parse_arguments(arguments)
    try:
        picojson = read(Path(options.bundle_picojson)) if options.bundle_picojson else None
        text = amalgamate(Tree(options.root), options.modules, picojson)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    path = Path(options.output) if options.output else options.root / OUTPUT
    if options.check:
        command = ["python3 tools/amalgamate.py"] + [a for a in arguments if a != "--check"]
        return check_current(path, text, " ".join(command))
    if options.output == "-":
        sys.stdout.buffer.write(text.encode("utf-8"))
        return 0
    try:
        path.write_bytes(text.encode("utf-8"))
    except OSError as failure:
        print(f"{path}: {failure.strerror}\n  fix: give --output a file that can be written", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
