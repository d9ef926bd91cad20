#!/usr/bin/env python3
"""Puts the parts in src/ together into the headers that users copy: ojs_shutdown.hpp, and extensions/ for further needs.

Each header has a template, src/ojs_NAME.hpp. It lists the parts in order, first the declarations, within the include
guard, then the definitions. Each include of a part is replaced by that part; everything else is kept as it stands, but
that a namespace which ends where it begins again is not closed. Nothing is parsed but preprocessor lines and the lines
that open and close namespaces, so what you read in src/ is what you find in the headers.

The parts live in rooms (folders of src/ojs). A room knows itself and the rooms before it, never those after it, and of
the extensions only those that its own header needs. That and the other house rules are checked here, because here every
part is read anyway: see check_part and check_tree.
"""

import argparse
import hashlib
import posixpath
import re
import sys
import textwrap
from pathlib import Path

# Each header: the rooms that go into it, from the lowest, and the headers it includes.
PRODUCTS = {
    "shutdown": (["base", "core", "host", "net", "worker"], []),
    "server": (["server"], ["shutdown"]),
    "operating": (["operating"], ["server"]),
    "spool": (["spool"], ["shutdown"]),
    "process": (["process"], ["shutdown"]),
    "coordinator": (["coordinator"], ["server"]),
    "launcher": (["launcher"], ["process", "coordinator"]),
    "tls": (["tls"], ["shutdown"]),
    "river": (["river"], ["shutdown"]),
}
MAIN = "shutdown"
# Extensions that want a library of their own: not part of --all.
ADAPTERS = ["tls", "river"]
ROOMS = [room for rooms, _ in PRODUCTS.values() for room in rooms]
PRODUCT_OF = {room: product for product, (rooms, _) in PRODUCTS.items() for room in rooms}
# What no user may name stands in folders of these names, and in the namespace detail.
INTERNAL = {"detail", "jobs", "threads", "reports", "heartbeat", "stop", "http"}
FIRST_SCREEN = 100  # columns
FRAGMENTS = ["set_inline.hpp", "set_define.hpp"]  # of the templates, in src/: their lines, but for the comment
CONFIG = "base/config.hpp"  # part of every header: the version and the macros, which nobody includes by name

ANY_LOCAL_INCLUDE = re.compile(r'\s*#\s*include\s*"')
LOCAL_INCLUDE = re.compile(r'#include "([^"]+)"')
SYSTEM_INCLUDE = re.compile(r"\s*#\s*include\s*<([^>]+)>")
DEFINE = re.compile(r"\s*#\s*define\s+(\w+)")
VERSION = re.compile(r'#define OJS_SHUTDOWN_VERSION "([^"]+)"')
INLINE_NAMESPACE = re.compile(r"inline namespace (\w+)")
OPENED = re.compile(r"(inline )?namespace (\w+) \{$")
EXPECTED_VERSION = re.compile(r"(?:#error|static_assert).* (\d+\.\d+\.\d+)")
CLOSED = re.compile(r"\}  // namespace (\w+)$")

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
        self.internal = not INTERNAL.isdisjoint(name.split("/")[1:-1])
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


class Template:
    """src/ojs_NAME.hpp: its lines, and the parts it lists as (line number, name)."""

    def __init__(self, product, text):
        self.product = product
        self.path = f"src/ojs_{product}.hpp"
        self.output = f"ojs_{product}.hpp" if product == MAIN else f"extensions/ojs_{product}.hpp"
        self.guard = "OJS_SHUTDOWN_HPP" if product == MAIN else f"OJS_SHUTDOWN_{product.upper()}_HPP"
        self.lines = text.splitlines()
        self.order = []
        for number, line in enumerate(self.lines, 1):
            found = LOCAL_INCLUDE.match(line)
            if found and found.group(1).startswith("ojs/"):
                self.order.append((number, found.group(1)[len("ojs/") :]))

    def at(self, number):
        return f"{self.path}:{number}"

    def bounds(self):
        """Where the include guard begins and ends: the declarations are within, the definitions after it."""
        begin, end = f"#ifndef {self.guard}", f"#endif  // {self.guard}"
        if begin not in self.lines or end not in self.lines:
            raise Problem(self.at(1), "no include guard", f"write '{begin}' and '{end}'")
        return self.lines.index(begin), self.lines.index(end)

    def comment(self):
        """What stands above the include guard, without the slashes."""
        return [line[2:].strip() if line == "//" else line[3:] for line in self.lines[: self.bounds()[0]] if line]


class Tree:
    """Everything that is read: the templates by product, and all parts by name."""

    def __init__(self, root):
        paths = {product: root / "src" / f"ojs_{product}.hpp" for product in PRODUCTS}
        self.templates = {
            product: Template(product, read(path))
            for product, path in paths.items()
            if path.exists() or product == MAIN
        }
        folder = root / "src" / "ojs"
        fragments = [root / "src" / name for name in FRAGMENTS if (root / "src" / name).exists()]
        self.fragments = {f'#include "{path.name}"': read(path).splitlines()[1:] for path in fragments}
        files = sorted(f for f in folder.rglob("*") if f.suffix in (".hpp", ".ipp"))
        names = [f.relative_to(folder).as_posix() for f in files]
        self.parts = {name: Part(name, read(file)) for name, file in zip(names, files)}

    def version(self):
        config = self.parts.get(CONFIG)
        found = VERSION.search("\n".join(config.lines)) if config else None
        if not found:
            raise Problem(f"src/ojs/{CONFIG}:1", "no version", '#define OJS_SHUTDOWN_VERSION "X.Y.Z"')
        return found.group(1)


def closure(products):
    """These and all that they need, each after what it needs; the main header first."""
    out = []
    for product in products:
        out += [each for each in closure(PRODUCTS[product][1]) + [product] if each not in out]
    return [each for each in out if each not in out[: out.index(each)]]


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
    if part.internal and not {"namespace detail {", "namespace ojs::detail {"} & set(part.lines):
        raise Problem(part.at(1), "internal names where users see them", "put them into namespace detail")
    if is_header and not (part.lines and part.lines[0].startswith("// ")):
        raise Problem(part.at(1), "no purpose", "let the first line be '// name: what it is for.'")
    for number, line in enumerate(part.lines, 1):
        macro = DEFINE.match(line)
        if macro and not macro.group(1).startswith("OJS_SHUTDOWN_"):
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
            if not may_know(part.room, target.split("/")[0]):
                fix = f"move what is needed to {part.room}/ or before, or hand it in as a parameter"
                raise Problem(part.at(number), f"upward include: {part.room}/ must not know {target}", fix)
            check_seen_by_users(tree, part, number, target)
    check_cycles(tree)
    check_version(tree)
    emitted = {}
    for product in closure(tree.templates):
        check_template(tree, tree.templates[product], emitted)
    for name, part in tree.parts.items():
        if name not in emitted:
            template = f"src/ojs_{PRODUCT_OF[part.room]}.hpp"
            raise Problem(part.at(1), "not part of any header", f'add #include "ojs/{name}" to {template}')


def may_know(room, other):
    """Rooms of the same header that come before, and all rooms of the headers that it needs."""
    product = PRODUCT_OF[room]
    if other not in PRODUCT_OF:
        return False
    if PRODUCT_OF[other] == product:
        return ROOMS.index(other) <= ROOMS.index(room)
    return PRODUCT_OF[other] in closure([product])


def check_template(tree, template, emitted):
    listed = {name for _, name in template.order}
    for number, name in template.order:
        if name not in tree.parts:
            raise Problem(template.at(number), f"src/ojs/{name} does not exist", "add the file, or take the line out")
        if name in emitted:
            raise Problem(template.at(number), f"{name} is listed twice", "take one of the lines out")
        home = PRODUCT_OF[tree.parts[name].room]
        if home != template.product:
            raise Problem(template.at(number), f"{name} is of another header", f"list it in src/ojs_{home}.hpp")
        for line, target in tree.parts[name].includes:
            if target in listed and target not in emitted:
                what = f"uses {target}, which comes later in the header"
                raise Problem(tree.parts[name].at(line), what, f"in {template.path}, list {target} before {name}")
        emitted[name] = template.product
    wanted = [f"ojs_{need}.hpp" for need in PRODUCTS[template.product][1]]
    replaced = {number for number, _ in template.order}
    for number, line in enumerate(template.lines, 1):
        if ANY_LOCAL_INCLUDE.match(line) and number not in replaced and line not in tree.fragments:
            if not (LOCAL_INCLUDE.match(line) and LOCAL_INCLUDE.match(line).group(1) in wanted):
                raise Problem(template.at(number), "local include left over", 'write it as #include "ojs/ROOM/FILE"')
            wanted.remove(LOCAL_INCLUDE.match(line).group(1))
    if wanted:
        raise Problem(template.at(1), f"{wanted[0]} is not included", f'write #include "{wanted[0]}" below the guard')


def check_seen_by_users(tree, part, number, target):
    """What users see needs nothing of how it is done, but for the small parts in detail/."""
    seen = part.name.endswith(".hpp") and not part.internal
    if seen and tree.parts[target].internal and "detail" not in target.split("/"):
        fix = "include it in the .ipp, or move what is needed to detail/"
        raise Problem(part.at(number), f"{part.name} is for users, {target} is not", fix)


def check_version(tree):
    """Two versions in one process must share neither functions nor state: the inline namespace names the version. An
    extension takes no other."""
    version = tree.version()
    wanted = "v" + version.replace(".", "_")
    for part in tree.parts.values():
        for number, line in enumerate(part.lines, 1):
            found = INLINE_NAMESPACE.search(line)
            if found and found.group(1) != wanted:
                raise Problem(part.at(number), f"namespace {found.group(1)} is not the version's", f"name it {wanted}")
    for template in tree.templates.values():
        for number, line in enumerate(template.lines, 1):
            found = EXPECTED_VERSION.search(line)
            if found and found.group(1) != version:
                raise Problem(template.at(number), f"expects version {found.group(1)}", f"write {version}")


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
    """(body, system includes to hoist). An include under a condition stays where it is."""
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
        if system and depth == 0:
            hoisted.add(system.group(1))
        else:
            body.append(line)
    return body, hoisted


def tidy(lines):
    """No blank lines at either end, never two in a row: taking includes out leaves some."""
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    return text.strip("\n").split("\n")


def amalgamate(tree, product=MAIN, rooms=None, picojson=None, merged=()):
    """The text of one header, which is one of those that are `merged` into a file, if there are any. A pure function of
    its inputs: no time, no path, no commit."""
    template = tree.templates[product]
    chosen = choose(tree, rooms)
    names = [name for _, name in template.order if name in chosen]
    lines = assemble(tree, template, names)
    if product == MAIN:
        subset = None if rooms is None else "0x" + digest(template, tree, names, None)[:8]
        lines = tell_apart(lines, subset)
    bundled = bundle(picojson) if picojson is not None else []
    return "\n".join(banner(tree, template, names, rooms, picojson, merged) + [""] + bundled + lines) + "\n"


def merge(tree, products, picojson):
    """The main header and these extensions, with all that they need, as one file."""
    check_tree(tree)
    chosen = [each for each in closure(products) if each in tree.templates]
    texts = [amalgamate(tree, each, None, picojson if each == MAIN else None, chosen) for each in chosen]
    included = re.compile(r'#include "ojs_\w+\.hpp".*\n')
    return texts[0] + "".join("\n" + included.sub("", text) for text in texts[1:])


def system_includes(tree, template, names):
    """(of the declarations, of the definitions): what comes before, there or in a header that is needed, is left out."""
    end = template.bounds()[1]
    declared, defined = set(), set()
    for product in closure([template.product]):
        one = tree.templates[product]
        before = set(declared), set(defined)
        for number, name in one.order:
            if product != template.product or name in names:
                found = split_includes(tree.parts[name])[1]
                (declared if number <= one.bounds()[1] else defined).update(found)
    # The definitions of an extension follow those of what it needs.
    return declared - before[0], defined - declared - before[1]


def assemble(tree, template, names):
    start, end = template.bounds()
    listed = dict(template.order)
    hoisted = list(system_includes(tree, template, names))
    out, spaces = [], Namespaces("v" + tree.version().replace(".", "_"))
    for number, line in enumerate(template.lines[start:], start + 1):
        if line.startswith("// clang-format "):  # protects the order of the list, which is not in the output
            continue
        if number not in listed:
            if line:
                spaces.close(out)
            out += tree.fragments.get(line, [line])
            continue
        if len(hoisted) == 2 or (len(hoisted) == 1 and number > end):  # the first part of its block
            out += include_lines(hoisted.pop(0))
        if listed[number] in names:
            spaces.add(out, listed[number], tidy(split_includes(tree.parts[listed[number]])[0]))
    return tidy(out)


class Namespaces:
    """Writes parts one after the other; a namespace that the next part opens again stays open."""

    def __init__(self, version):
        self.open = []  # names, the outermost first
        # Parts reopen ojs::detail by that name, which older compilers do not find within the inline namespace.
        self.long_form = {
            "namespace ojs::detail {": ["namespace ojs {", f"inline namespace {version} {{", "namespace detail {"],
            "}  // namespace ojs::detail": [
                f"}}  // namespace {name}" for name in ("detail", version, "ojs")
            ],
        }

    def close(self, out, keep=0):
        if len(self.open) > keep:
            while out and not out[-1]:
                out.pop()
            out.append("")
            out += [f"}}  // namespace {name}" for name in reversed(self.open[keep:])] + [""]
            del self.open[keep:]

    def add(self, out, name, lines):
        lines = [long for line in lines for long in self.long_form.get(line, [line])]
        head = next((i for i, line in enumerate(lines) if line and not line.startswith("//")), len(lines))
        first = head
        while first < len(lines) and OPENED.match(lines[first]):
            first += 1
        last = len(lines)
        while last > first and CLOSED.match(lines[last - 1]):
            last -= 1
        opened = lines[head:first]
        names = [OPENED.match(line).group(2) for line in opened]
        same = 0
        while same < min(len(names), len(self.open)) and names[same] == self.open[same]:
            same += 1
        self.close(out, same)
        out += [f"// ==== {name} ===="] + lines[:head] + opened[same:] + lines[first:last] + [""]
        self.open = [CLOSED.match(line).group(1) for line in reversed(lines[last:])]


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


def include_lines(headers):
    """C headers first, as everywhere in src/."""
    if not headers:
        return []
    c_headers = sorted(h for h in headers if h.endswith(".h"))
    others = sorted(set(headers) - set(c_headers))
    return [f"#include <{h}>" for h in c_headers] + [""] + [f"#include <{h}>" for h in others] + [""]


def bundle(picojson):
    """picojson, with the license at its head. Its own guard covers a second one."""
    lines = picojson.splitlines()
    for line in lines:
        if ANY_LOCAL_INCLUDE.match(line):
            raise Problem("picojson", f"local include left over: {line.strip()}", "bundle the one-file picojson.h")
    return ["// ==== picojson.h (its own license follows) ====", ""] + lines + [""]


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


EXTENSIONS = [
    "Extensions, each an ojs_NAME.hpp of its own: operating (probes, metrics, systemd), spool (a",
    "directory as the queue), server, process, coordinator, launcher, tls, river.",
    "",
]


def banner(tree, template, names, rooms, picojson, merged):
    """The first screen of a header: all that a stranger needs to use it and to find things in it."""
    generated = [
        "",
        "SPDX-License-Identifier: Apache-2.0",
        "GENERATED by tools/amalgamate.py from src/; do not edit"
        + (f" (modules: {', '.join(rooms)})" if rooms is not None else ""),
        f"SHA-256 of the inputs: {digest(template, tree, names, picojson)}",
        "",
    ]
    if template.product == MAIN:
        text = main_banner(tree, names, generated, merged)
    elif merged:
        text = [*template.comment(), ""]
    else:
        text = extension_banner(tree, template, generated)
    listed = [name for name in names if name.endswith(".hpp") and not tree.parts[name].internal]
    width = max((len(name) - len(".hpp") for name in listed), default=0) + 2
    lines = [("// " + line).rstrip() for line in text]
    for name in listed:
        lines.append("//   " + name[: -len(".hpp")].ljust(width) + tree.parts[name].purpose())
        if len(lines[-1]) > FIRST_SCREEN:  # the rest is written in this file, and in the templates
            what = f"its first sentence does not fit into the first screen ({len(lines[-1])} of {FIRST_SCREEN} columns)"
            raise Problem(tree.parts[name].at(1), what, "make it shorter")
    return lines


def main_banner(tree, names, generated, merged):
    extensions = [f"ojs_{each}.hpp" for each in merged if each != MAIN]
    has_worker = "worker/worker.hpp" in names
    return [
        f"ojs_shutdown.hpp {tree.version()}: stop a worker process without losing work.",
        "On SIGTERM it stops taking jobs, lets those in flight finish, reports every one, and exits.",
        "C++17, POSIX, one header.",
        *(wrap("With these extensions in it: " + ", ".join(extensions)) if extensions else []),
        *generated,
        "Use: copy this file into your project, include it, compile with -std=c++17 -pthread.",
        "",
        *(WORKER_USE if has_worker else CORE_USE).split("\n"),
        "",
        "To compile the definitions only once, define OJS_SHUTDOWN_SEPARATE=1 for every file, and in exactly",
        "one of them OJS_SHUTDOWN_IMPLEMENTATION=1 as well, before it includes this header.",
        "",
        *(EXTENSIONS if has_worker and not extensions else []),
        "Where everything lives: search for '==== core/' or '==== core/lifecycle'; definitions (.ipp) come",
        "last; folders within a room, other than transports/, are not for users." + (" Begin with worker/worker." if has_worker else ""),
    ]


def extension_banner(tree, template, generated):
    needs = [f"ojs_{each}.hpp" for each in closure(PRODUCTS[template.product][1])]
    return [
        *template.comment(),
        "",
        f"Version {tree.version()}, an extension of ojs_shutdown.hpp. Copy it next to these, of the same version:",
        *wrap(", ".join(needs)),
        *generated,
        "Separate form: the file that defines OJS_SHUTDOWN_IMPLEMENTATION includes this header too.",
        "",
    ]


def wrap(text):
    return textwrap.wrap(text, FIRST_SCREEN - len("// "))


def digest(template, tree, names, picojson):
    sha = hashlib.sha256()
    inputs = [(template.path, template.lines)] + [(name, tree.parts[name].lines) for name in names]
    inputs += tree.fragments.items()
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
    extensions = [product for product in PRODUCTS if product != MAIN]
    modules = PRODUCTS[MAIN][0]
    parser = argparse.ArgumentParser(description="Puts the parts in src/ together into ojs_shutdown.hpp and extensions/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    parser.add_argument("--output", metavar="FILE", help="one header, written there; '-': standard output")
    parser.add_argument("--with", metavar="LIST", dest="extras", help=f"with these extensions in it: {','.join(extensions)}")
    parser.add_argument("--all", action="store_true", help="with all extensions in it that want no other library")
    parser.add_argument("--modules", metavar="LIST", help=f"a smaller one, with what these need: {','.join(modules)}")
    parser.add_argument("--bundle-picojson", metavar="FILE", help="with this picojson.h in it")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the source tree")
    options = parser.parse_args(arguments)
    for given, known, what in ((options.modules, modules, "module"), (options.extras, extensions, "extension")):
        unknown = [each for each in given.split(",") if each not in known] if given is not None else []
        if unknown:
            parser.error(f"unknown {what} '{unknown[0]}'; there are {', '.join(known)}")
    options.modules = options.modules.split(",") if options.modules is not None else None
    options.extras = options.extras.split(",") if options.extras is not None else []
    if options.all:
        options.extras += [each for each in extensions if each not in ADAPTERS + options.extras]
    if options.modules is not None and options.extras:
        parser.error("--modules makes a header smaller, --with and --all make it larger: give one of them")
    if (options.modules is not None or options.extras or options.bundle_picojson) and not options.output:
        parser.error("--modules, --with, --all and --bundle-picojson want --output FILE")
    if options.check and options.output == "-":
        parser.error("--check compares a file; '-' is none")
    return options


def make_headers(tree, options):
    """What to write, by path."""
    check_tree(tree)
    picojson = read(Path(options.bundle_picojson)) if options.bundle_picojson else None
    if options.output and options.extras:
        return {Path(options.output): merge(tree, options.extras, picojson)}
    if options.output:
        return {Path(options.output): amalgamate(tree, MAIN, options.modules, picojson)}
    return {options.root / each.output: amalgamate(tree, each.product) for each in tree.templates.values()}


def main(arguments):
    options = parse_arguments(arguments)
    try:
        headers = make_headers(Tree(options.root), options)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    if options.check:
        command = "python3 tools/amalgamate.py " + " ".join(each for each in arguments if each != "--check")
        return max(check_current(path, text, command.strip()) for path, text in headers.items())
    if options.output == "-":
        sys.stdout.buffer.write(headers.popitem()[1].encode("utf-8"))
        return 0
    for path, text in headers.items():
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode("utf-8"))
        except OSError as failure:
            print(f"{path}: {failure.strerror}\n  fix: give --output a file that can be written", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
