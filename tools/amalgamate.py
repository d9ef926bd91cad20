#!/usr/bin/env python3
"""Joins the parts in src/ into the headers that users copy: ojs_shutdown.hpp, and the extensions in extensions/.

Each header has a template, src/ojs_NAME.hpp, with two lists of parts: the declarations, within the include guard, and
the definitions. This tool writes the lists, in the order that the parts' includes need. Each include of a part is replaced
by that part. Everything else stays as it is, except that a namespace stays open if the next part reopens it, and that a
comment that repeats the module list or the name of its part is left out. Only preprocessor lines and the lines that open
and close namespaces are parsed, so the code in src/ is the code in the headers.

The parts are in layers (folders of src/ojs). A layer includes itself and the layers before it, and of the extensions only
those that its own header needs. check_part and check_tree check that and the other house rules.
"""

import argparse
import hashlib
import itertools
import posixpath
import re
import sys
import textwrap
from pathlib import Path

# Each header: its layers, from the lowest, and the headers it includes.
PRODUCTS = {
    "shutdown": (["base", "core", "host", "stop", "loop", "net", "worker"], []),
    "server": (["server"], ["shutdown"]),
    "ops": (["ops"], ["server"]),
    "memory": (["memory"], ["shutdown"]),
    "spool": (["spool"], ["shutdown"]),
    "events": (["events"], ["shutdown"]),
    "client": (["client"], ["shutdown"]),
    "process": (["process"], ["shutdown"]),
    "coordinator": (["coordinator"], ["server"]),
    "launcher": (["launcher"], ["process", "coordinator"]),
    "tls": (["tls"], ["shutdown"]),
    "river": (["river"], ["shutdown"]),
    "amqp": (["amqp"], ["shutdown"]),
    "redis_streams": (["redis_streams"], ["shutdown"]),
    "ledger": (["ledger"], ["shutdown"]),
    "stop_token": (["stop_token"], ["shutdown"]),
}
MAIN = "shutdown"
# Extensions that need another library: not part of --all.
ADAPTERS = ["tls", "river", "amqp", "redis_streams", "stop_token"]
LAYERS = [layer for layers, _ in PRODUCTS.values() for layer in layers]
PRODUCT_OF = {layer: product for product, (layers, _) in PRODUCTS.items() for layer in layers}
# Internals are in folders of these names, and in the namespace detail.
INTERNAL = {"detail"}
FIRST_SCREEN = 100  # columns
FRAGMENTS = ["set_inline.hpp", "set_define.hpp"]  # in src/: templates include their lines, without the comment
CONFIG = "base/config.hpp"  # the version and the macros: part of every header, without an include

ANY_LOCAL_INCLUDE = re.compile(r'\s*#\s*include\s*"')
LOCAL_INCLUDE = re.compile(r'#include "([^"]+)"')
SYSTEM_INCLUDE = re.compile(r"\s*#\s*include\s*<([^>]+)>")
DEFINE = re.compile(r"\s*#\s*define\s+(\w+)")
VERSION = re.compile(r'#define OJS_SHUTDOWN_VERSION "([^"]+)"')
INLINE_NAMESPACE = re.compile(r"inline namespace (\w+)")
OPENED = re.compile(r"(inline )?namespace (\w+) \{$")
EXPECTED_VERSION = re.compile(r"(?:#error|static_assert).* (\d+\.\d+\.\d+)")
LISTED = re.compile(r'^#include "ojs/([^"]+)"$', re.MULTILINE)
LISTS = re.compile(r"(?<=// clang-format off\n).*?(// clang-format on\n)", re.DOTALL)
CLOSED = re.compile(r"\}  // namespace (\w+)$")

# Streams pull in locales and static constructors; the rest costs more compile time than the library itself.
# base/function.hpp and base/detail/ have replacements.
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
        self.layer = name.split("/")[0]
        self.internal = not INTERNAL.isdisjoint(name.split("/")[1:-1])
        self.is_public = name.endswith(".hpp") and not self.internal
        self.includes = []
        for number, line in enumerate(self.lines, 1):
            found = LOCAL_INCLUDE.match(line)
            if found:
                target = posixpath.normpath(posixpath.join(posixpath.dirname(name), found.group(1)))
                self.includes.append((number, target))

    def at(self, number):
        return f"src/ojs/{self.name}:{number}"

    def purpose(self):
        """The first sentence of the file, without its name: the file's entry in the module list."""
        comment = []
        for line in self.lines:
            if not line.startswith("// "):
                break
            comment.append(line[3:].strip())
        sentence = re.split(r"(?<=\.) ", " ".join(comment))[0].rstrip(".")
        stem = posixpath.basename(self.name).split(".")[0]
        return sentence[len(stem) + 2 :] if sentence.startswith(stem + ": ") else sentence


class Template:
    """src/ojs_NAME.hpp: its lines, and the parts it lists as (line number, name). `lists`: the declarations, the definitions."""

    def __init__(self, product, text, lists):
        self.product = product
        self.path = f"src/ojs_{product}.hpp"
        self.output = f"ojs_{product}.hpp" if product == MAIN else f"extensions/ojs_{product}.hpp"
        self.guard = "OJS_SHUTDOWN_HPP" if product == MAIN else f"OJS_SHUTDOWN_{product.upper()}_HPP"
        if len(LISTS.findall(text)) != len(lists):
            fix = "write '// clang-format off' and '// clang-format on' for the declarations, and again for the definitions"
            raise Problem(self.at(1), "no two lists of parts", fix)
        names = iter(lists)
        self.lines = LISTS.sub(lambda found: include_lines_of(next(names)) + found[1], text).splitlines()
        self.order = []
        for number, line in enumerate(self.lines, 1):
            found = LOCAL_INCLUDE.match(line)
            if found and found.group(1).startswith("ojs/"):
                self.order.append((number, found.group(1)[len("ojs/") :]))

    def at(self, number):
        return f"{self.path}:{number}"

    def bounds(self):
        """The lines of the include guard: the declarations are within it, the definitions after it."""
        begin, end = f"#ifndef {self.guard}", f"#endif  // {self.guard}"
        if begin not in self.lines or end not in self.lines:
            raise Problem(self.at(1), "no include guard", f"write '{begin}' and '{end}'")
        return self.lines.index(begin), self.lines.index(end)

    def comment(self):
        """The comment above the include guard, without the slashes."""
        return [line[2:].strip() if line == "//" else line[3:] for line in self.lines[: self.bounds()[0]] if line]


class Tree:
    """All input: the templates by product, and the parts by name."""

    def __init__(self, root):
        paths = {product: root / "src" / f"ojs_{product}.hpp" for product in PRODUCTS}
        texts = {product: read(path) for product, path in paths.items() if path.exists() or product == MAIN}
        folder = root / "src" / "ojs"
        fragments = [root / "src" / name for name in FRAGMENTS if (root / "src" / name).exists()]
        self.fragments = {f'#include "{path.name}"': read(path).splitlines()[1:] for path in fragments}
        files = sorted(f for f in folder.rglob("*") if f.suffix in (".hpp", ".ipp"))
        names = [f.relative_to(folder).as_posix() for f in files]
        self.parts = {name: Part(name, read(file)) for name, file in zip(names, files)}
        self.templates = {name: Template(name, text, self.lists(name, text)) for name, text in texts.items()}

    def lists(self, product, text):
        """The parts that a header declares (its public ones and what they include), and those that it defines. Layer by layer,
        each part after what it includes; else as listed in `text`, which may be out of date."""
        layers, old = PRODUCTS[product][0], LISTED.findall(text)
        own = [name for name, part in self.parts.items() if part.layer in layers and name != CONFIG]
        own.sort(key=lambda name: (layers.index(self.parts[name].layer), old.index(name) if name in old else len(old)))
        declared = [name for name in own if self.parts[name].is_public]
        for name in declared:
            declared += [target for _, target in self.parts[name].includes if target in own and target not in declared]
        return [self.in_order([name for name in own if (name in declared) == wanted]) for wanted in (True, False)]

    def in_order(self, names):
        """The same parts, each after those of them that it includes."""
        done, out = set(), []

        def add(name):
            if name in names and name not in done:
                done.add(name)
                for _, target in self.parts[name].includes:
                    add(target)
                out.append(name)

        for name in names:
            add(name)
        return out

    def version(self):
        config = self.parts.get(CONFIG)
        found = VERSION.search("\n".join(config.lines)) if config else None
        if not found:
            raise Problem(f"src/ojs/{CONFIG}:1", "no version", '#define OJS_SHUTDOWN_VERSION "X.Y.Z"')
        return found.group(1)


def closure(products):
    """These products and all that they need, in include order; the main header first."""
    out = []
    for product in products:
        out += [name for name in closure(PRODUCTS[product][1]) + [product] if name not in out]
    return [name for name in out if name not in out[: out.index(name)]]


def include_lines_of(names):
    """The includes of parts in a template, with an empty line between two layers."""
    layers = itertools.groupby(names, lambda name: name.split("/")[0])
    return "\n".join("".join(f'#include "ojs/{name}"\n' for name in group) for _, group in layers)


def read(path):
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise Problem(path.name, f"cannot be read ({failure})", "restore the file as UTF-8 text") from None


# ---- rules ----------------------------------------------------------------------------------------------------------


def check_part(part):
    """Checks the rules for a single file."""
    if part.layer not in LAYERS:
        raise Problem(part.at(1), f"unknown layer '{part.layer}'", f"move it to one of {', '.join(LAYERS)}")
    is_header = part.name.endswith(".hpp")
    if part.internal and not {"namespace detail {", "namespace ojs::detail {"} & set(part.lines):
        raise Problem(part.at(1), "internal names are public", "put them into namespace detail")
    if is_header and not (part.lines and part.lines[0].startswith("// ")):
        raise Problem(part.at(1), "no purpose", "write '// name: what it is for.' as the first line")
    for number, line in enumerate(part.lines, 1):
        macro = DEFINE.match(line)
        if macro and not macro.group(1).startswith("OJS_SHUTDOWN_"):
            raise Problem(part.at(number), f"macro {macro.group(1)} would reach users", "name it OJS_SHUTDOWN_...")
        system = SYSTEM_INCLUDE.match(line)
        if system and system.group(1) in (HEAVY if is_header else STREAMS):
            fix = "use base/function or a part of base/detail" + ("; or include it in the .ipp" if is_header else "")
            raise Problem(part.at(number), f"<{system.group(1)}> costs every user compile time", fix)
        # clang-format indents every scope but the file's and a namespace's.
        if line.startswith("using namespace"):
            raise Problem(part.at(number), "'using namespace' would reach users", "name the namespace where it is used")
        if ANY_LOCAL_INCLUDE.match(line) and not LOCAL_INCLUDE.match(line):
            raise Problem(part.at(number), "local include left over", 'write it as #include "...", from column one')


def check_tree(tree):
    """Checks the rules between files: layers, cycles, versions, templates."""
    for part in tree.parts.values():
        check_part(part)
        for number, target in part.includes:
            if target not in tree.parts:
                raise Problem(part.at(number), f"src/ojs/{target} does not exist", "correct the path, or add the file")
            if not may_include(part.layer, target.split("/")[0]):
                fix = f"move the needed code to {part.layer}/ or a layer before it, or pass it as a parameter"
                raise Problem(part.at(number), f"upward include: {part.layer}/ must not include {target}", fix)
    check_cycles("include cycle", "move the shared code to a file of its own", includes_by(tree, lambda name: name))
    check_folders(tree)
    check_version(tree)
    emitted = set()
    for product in closure(tree.templates):
        check_template(tree, tree.templates[product], emitted)


def may_include(layer, other):
    """True for the layers before it in its header, and for all layers of the headers that its header needs."""
    product = PRODUCT_OF[layer]
    if other not in PRODUCT_OF:
        return False
    if PRODUCT_OF[other] == product:
        return LAYERS.index(other) <= LAYERS.index(layer)
    return PRODUCT_OF[other] in closure([product])


def check_template(tree, template, emitted):
    for number, name in template.order:
        if name in emitted or name not in tree.parts:
            raise Problem(template.at(number), f"{name} is not of the two lists", "remove the line")
        emitted.add(name)
    missing = [f"ojs_{need}.hpp" for need in PRODUCTS[template.product][1]]
    replaced = {number for number, _ in template.order}
    for number, line in enumerate(template.lines, 1):
        if ANY_LOCAL_INCLUDE.match(line) and number not in replaced and line not in tree.fragments:
            if not (LOCAL_INCLUDE.match(line) and LOCAL_INCLUDE.match(line).group(1) in missing):
                raise Problem(template.at(number), "local include left over", "remove the line")
            missing.remove(LOCAL_INCLUDE.match(line).group(1))
    if missing:
        raise Problem(template.at(1), f"{missing[0]} is not included", f'write #include "{missing[0]}" below the guard')


def check_version(tree):
    """The inline namespace names the version, so two versions in one process share neither functions nor state. An
    extension requires its own version."""
    version = tree.version()
    expected = "v" + version.replace(".", "_")
    rules = [(part, INLINE_NAMESPACE, expected, "namespace {} is not the version's", "name it") for part in tree.parts.values()]
    rules += [(each, EXPECTED_VERSION, version, "expects version {}", "write") for each in tree.templates.values()]
    for file, pattern, wanted, problem, fix in rules:
        for number, line in enumerate(file.lines, 1):
            found = pattern.search(line)
            if found and found.group(1) != wanted:
                raise Problem(file.at(number), problem.format(found.group(1)), f"{fix} {wanted}")


def includes_by(tree, node_of):
    """By node, the includes of other nodes as (place, node). `node_of`: the node of a part's name."""
    out = {}
    for part in tree.parts.values():
        node = node_of(part.name)
        out.setdefault(node, []).extend((part.at(number), node_of(target)) for number, target in part.includes)
    return out


def check_cycles(problem, fix, includes):
    done = set()

    def visit(node, path):
        for where, target in includes[node]:
            if target in path:
                cycle = " -> ".join(path[path.index(target) :] + [target])
                raise Problem(where, f"{problem}: {cycle}", fix)
            if target not in done:
                visit(target, path + [target])
        done.add(node)

    for node in includes:
        visit(node, [node])


def check_folders(tree):
    """The folders of a layer include each other in one direction, but for detail/ and its layer's public headers."""
    includes = includes_by(tree, lambda name: posixpath.dirname(name).removesuffix("/detail"))
    others = {folder: [each for each in found if each[1] != folder] for folder, found in includes.items()}
    check_cycles("include cycle of folders", "move the shared code to the lower folder, or a file to the higher one", others)


# ---- output ---------------------------------------------------------------------------------------------------------


def choose(tree, layers):
    """The parts to emit: all, or the files of `layers` with all that they need, definitions included."""
    if layers is None:
        return set(tree.parts)
    for layer in set(layers) - {part.layer for part in tree.parts.values()}:
        raise Problem(f"src/ojs/{layer}", "no such module in this tree", "leave it out of --modules")
    chosen = [CONFIG] + [part.name for part in tree.parts.values() if part.layer in layers]
    for name in chosen:
        needed = [target for _, target in tree.parts[name].includes] + [name.removesuffix(".hpp") + ".ipp"]
        chosen += [each for each in needed if each in tree.parts and each not in chosen]
    return set(chosen)


def split_includes(part):
    """(body, system includes to hoist). A conditional include stays in place."""
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
    """Removes the blank lines that removed includes leave at the ends and in runs."""
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    return text.strip("\n").split("\n")


def amalgamate(tree, product=MAIN, layers=None, picojson=None, merged=()):
    """The text of one header; `merged`: those joined into one file. A pure function of its inputs: no time, path or commit."""
    template = tree.templates[product]
    chosen = choose(tree, layers)
    names = [name for _, name in template.order if name in chosen]
    lines = assemble(tree, template, names)
    if product == MAIN:
        lines = reject_other_variants(lines, layers and "0x" + digest(template, tree, names, None)[:8])
    bundled = bundle(picojson) if picojson is not None else []
    return "\n".join(banner(tree, template, names, layers, picojson, merged) + [""] + bundled + lines) + "\n"


def merge(tree, products, picojson):
    """The main header and these extensions, with all that they need, as one file."""
    check_tree(tree)
    chosen = [each for each in closure(products) if each in tree.templates]
    texts = [amalgamate(tree, each, None, picojson if each == MAIN else None, chosen) for each in chosen]
    included = re.compile(r'#include "ojs_\w+\.hpp".*\n')
    return texts[0] + "".join("\n" + included.sub("", text) for text in texts[1:])


def system_includes(tree, template, names):
    """(of the declarations, of the definitions), without those that come before, there or in a needed header."""
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
            part = tree.parts[listed[number]]
            lines = tidy(split_includes(part)[0])
            if part.is_public and lines[1:2] == [""] and ". " not in lines[0]:
                del lines[0]  # all of it is in the module list
            elif lines[0].startswith(repeated := f"// {posixpath.basename(part.name).split('.')[0]}: "):
                sentence = lines[0].removeprefix(repeated)
                lines[0] = "// " + sentence[0].upper() + sentence[1:]
            spaces.add(out, listed[number], lines)
    return tidy(out)


class Namespaces:
    """Writes parts in sequence; a namespace stays open if the next part reopens it."""

    def __init__(self, version):
        self.open = []  # names, the outermost first
        # Older compilers do not find ojs::detail, as parts reopen it, within the inline namespace.
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
        names = [OPENED.match(line).group(2) for line in lines[head:first]]
        same = len(posixpath.commonprefix([names, self.open]))
        self.close(out, same)
        out += [f"// ==== {name} ===="] + lines[:head] + lines[head + same : last] + [""]
        self.open = [CLOSED.match(line).group(1) for line in reversed(lines[last:])]


def reject_other_variants(lines, subset):
    """All variants share one include guard, so a second one in a file would be silently ignored. `subset`: the number of
    a smaller header; None for the complete one, which lacks nothing."""
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
    """C headers first, as in src/."""
    if not headers:
        return []
    both = [[f"#include <{h}>" for h in sorted(headers) if h.endswith(".h") == wanted] + [""] for wanted in (True, False)]
    return both[0] + both[1]


def bundle(picojson):
    """picojson with its license. Its own guard covers a second copy."""
    lines = picojson.splitlines()
    for line in lines:
        if ANY_LOCAL_INCLUDE.match(line):
            raise Problem("picojson", f"local include left over: {line.strip()}", "bundle the one-file picojson.h")
    return ["// ==== picojson.h (its own license follows) ====", ""] + lines + [""]


WORKER_USE = """\
    int main() {
        auto options = ojs::worker_options::from_environment();
        if (!options) return ojs::report_startup_error(options.error());
        ojs::worker worker(*options);
        worker.register_handler("email.send", [](ojs::job_context& job) {
            send_email(job.args_json());
        });
        return worker.run();  // returns after SIGTERM, once every job is reported
    }"""

LOOP_USE = """\
    int main() {
        ojs::loop loop;  // first: a SIGTERM during start-up is kept
        loop.add_consumers(8, [](ojs::consumer& consumer) {
            my_queue queue;  // of this thread
            while (consumer.next()) {
                const auto message = queue.take(consumer.intake_token());
                if (!message) continue;
                const ojs::item item = consumer.begin(message->id);
                process(*message, item.token()) ? queue.done(*message) : queue.hand_back(*message);
            }
        });
        return loop.run();
    }"""

CORE_USE = """\
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // errc::busy: another installer is active
    if (signals) signals->wait();                     // SIGTERM, SIGINT, SIGTSTP or SIGCONT"""


def banner(tree, template, names, layers, picojson, merged):
    """The first screen of a header: how to use it, and how to find things in it."""
    generated = [
        "",
        "SPDX-License-Identifier: Apache-2.0",
        "GENERATED by tools/amalgamate.py from src/; do not edit"
        + (f" (modules: {', '.join(layers)})" if layers is not None else ""),
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
    width = max(map(len, listed), default=0) - len(".hpp") + 2
    lines = [("// " + line).rstrip() for line in text]
    for name in listed:
        lines.append("//   " + name.removesuffix(".hpp").ljust(width) + tree.parts[name].purpose())
        if len(lines[-1]) > FIRST_SCREEN:  # the other lines come from this file and the templates
            problem = f"its first sentence does not fit into the first screen ({len(lines[-1])} of {FIRST_SCREEN} columns)"
            raise Problem(tree.parts[name].at(1), problem, "make it shorter")
    return lines


def main_banner(tree, names, generated, merged):
    extensions = [f"ojs_{each}.hpp" for each in merged if each != MAIN]
    has_worker = "worker/worker.hpp" in names
    return [
        f"ojs_shutdown.hpp {tree.version()}: stop a worker process without losing work.",
        "On SIGTERM it stops fetching jobs, finishes those in flight, reports each one, and exits.",
        "C++17, POSIX, one header.",
        *(wrap("Includes these extensions: " + ", ".join(extensions)) if extensions else []),
        *generated,
        "Use: copy this file into your project, include it, compile with -std=c++17 -pthread.",
        "",
        *(WORKER_USE if has_worker else LOOP_USE if "loop/loop.hpp" in names else CORE_USE).split("\n"),
        "",
        "To compile the definitions only once, define OJS_SHUTDOWN_IMPLEMENTATION in one file, and",
        "OJS_SHUTDOWN_SEPARATE in all others, before they include this header.",
        "",
        *(extensions_but(MAIN) if has_worker and not extensions else []),
        "To find a module, search for '==== core/' or '==== core/lifecycle'; definitions (.ipp) come last.",
        "Folders within a module are internal." + (" Begin with worker/worker." if has_worker else ""),
    ]


def extension_banner(tree, template, generated):
    needs = [f"ojs_{each}.hpp" for each in closure(PRODUCTS[template.product][1])]
    return [
        *template.comment(),
        "",
        *wrap(f"Version {tree.version()}. Copy it next to these, of the same version: {', '.join(needs)}."),
        *generated,
        *extensions_but(template.product)[:-1],
        "Separate form: the file that defines OJS_SHUTDOWN_IMPLEMENTATION must include this header too.",
        "",
    ]


def extensions_but(product):
    """The other headers that there are."""
    names = [each for each in PRODUCTS if each not in (MAIN, product)]
    return [*wrap("Extensions, each a header ojs_NAME.hpp: " + ", ".join(sorted(names)) + "."), ""]


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


def check_current(path, expected, command):
    """0 if the file at `path` equals `expected`; else prints the first difference."""
    actual = path.read_bytes().decode("utf-8", "backslashreplace") if path.exists() else ""
    pairs = itertools.zip_longest(actual.split("\n"), expected.split("\n"), fillvalue="(end of file)")
    for number, (old, new) in enumerate(pairs, 1):
        if old != new:
            print(f"{path}:{number}: differs from what src/ gives\n  file: {old}\n  src/: {new}\n  fix: {command}", file=sys.stderr)
            return 1
    return 0


def parse_arguments(arguments):
    extensions = [product for product in PRODUCTS if product != MAIN]
    modules = PRODUCTS[MAIN][0]
    parser = argparse.ArgumentParser(description="Joins the parts in src/ into ojs_shutdown.hpp and extensions/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    parser.add_argument("--output", metavar="FILE", help="write one header to FILE; '-': standard output")
    parser.add_argument("--with", metavar="LIST", dest="extras", help=f"include these extensions: {','.join(extensions)}")
    parser.add_argument("--all", action="store_true", help="include all extensions that need no other library")
    parser.add_argument("--modules", metavar="LIST", help=f"a smaller header of these modules and all they need: {','.join(modules)}")
    parser.add_argument("--bundle-picojson", metavar="FILE", help="include this picojson.h")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the source tree")
    options = parser.parse_args(arguments)
    for given, known, what in ((options.modules, modules, "module"), (options.extras, extensions, "extension")):
        unknown = [each for each in given.split(",") if each not in known] if given is not None else []
        if unknown:
            parser.error(f"unknown {what} '{unknown[0]}'; use one of {', '.join(known)}")
    options.modules = options.modules and options.modules.split(",")
    options.extras = options.extras.split(",") if options.extras else []
    if options.all:
        options.extras += [each for each in extensions if each not in ADAPTERS + options.extras]
    if options.modules and options.extras:
        parser.error("--modules makes a header smaller, --with and --all larger: use one of them")
    if (options.modules or options.extras or options.bundle_picojson) and not options.output:
        parser.error("--modules, --with, --all and --bundle-picojson need --output FILE")
    if options.check and options.output == "-":
        parser.error("--check compares a file: --output must not be '-'")
    return options


def make_headers(tree, options):
    """The text of each file to write, by path."""
    check_tree(tree)
    picojson = read(Path(options.bundle_picojson)) if options.bundle_picojson else None
    if options.output and options.extras:
        return {Path(options.output): merge(tree, options.extras, picojson)}
    if options.output:
        return {Path(options.output): amalgamate(tree, MAIN, options.modules, picojson)}
    templates = tree.templates.values()
    headers = {options.root / each.output: amalgamate(tree, each.product) for each in templates}
    return {**headers, **{options.root / each.path: "\n".join(each.lines) + "\n" for each in templates}}


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
            print(f"{path}: {failure.strerror}\n  fix: use a writable --output file", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
