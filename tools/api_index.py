#!/usr/bin/env python3
"""Makes the API reference by doxygen. Its first page is an index from the XML of a first run: the names of a worker program, then
all names by header.

    api_index.py            build/api/index.html, or $BUILD/api/index.html
    api_index.py --check    fails if a public name is in no header or has no comment, if the first sentence of a comment does not
                            say what the name is or does, or if the main header has too many names; exits with 77 without doxygen
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import amalgamate

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("BUILD", "build"))
INDEX = ROOT / BUILD / "api.md"
MOST_NAMES = 450  # of the main header
HEAD = """# Public names

The names of a worker program come first. All names follow, by the header and the part that declares them. Each has the first
sentence of its comment.
"""
# What the author of a worker needs first; the links lead to the rest.
WORKER_NAMES = """
    worker worker::worker() worker::register_handler() worker::run() worker::start() worker::stop() worker::stop_and_cancel()
    worker::wait() worker::stopped() stoppable::quiet() stoppable::resume() stoppable::request_stop() stoppable::stopped_token()
    stoppable::report() stoppable::exit_code() worker_report exit_status::settled exit_status::usage exit_status::unavailable
    exit_status::unreported
    job_context job_context::arg() job_context::arg_or() job_context::require_arg() job_context::args() job_context::args_json()
    job_context::meta() job_context::id() job_context::type() job_context::attempt() job_context::job() job_context::token()
    job_context::sleep_for() job_context::on_cancel() job_context::cancel_requested() job_context::stop_requested()
    job_context::abandoned() job_context::deadline() job_context::extend_lease() job_context::save_checkpoint()
    job_context::checkpoint() outcome outcome::done() outcome::retry() outcome::discard() outcome::interrupted() handler_options
    worker_options worker_options::from_environment() worker_options::url worker_options::queues loop_options::concurrency
    loop_options::times stop_times loop_options::log loop_options::extensions worker_options::transports
    worker_options::on_unknown_type loop_options::on_transition validate() report_startup_error() phase result error errc
""".split()
# A first sentence that begins like this says nothing without the code around it; a field may begin with a preposition.
UNCLEAR = re.compile(r"(?:it|the rest|as|all|see|every call|likewise|not|also|or|and)\b", re.IGNORECASE)
UNCLEAR_UNLESS_FIELD = re.compile(r"(?:for|of|to|with|in|on|from|only)\b", re.IGNORECASE)
# What the compiler writes too, and so needs no comment.
SPECIAL = re.compile(r"(?:.*::)?(?:\w+::operator=\(.*|(\w+)::~?\1\((?:(?:const )?\1 &.*|\).*))")
COLUMNS = "| name | kind | meaning |\n|---|---|---|\n"
KINDS = {"define": "macro", "variable": "field", "typedef": "type"}


def text_of(element):
    if element is None or element.tag == "programlisting":
        return ""
    text = (element.text or "") + "".join(text_of(child) + (child.tail or "") for child in element)
    return f"`{text}`" if element.tag == "computeroutput" else text


def sentence_of(element):
    words = text_of(element.find("briefdescription")) or text_of(element.find("detaileddescription"))
    sentence = re.split(r"(?<=\w\.) (?=[A-Z])", " ".join(words.split()))[0]
    return re.sub(r"(`[^`]*`)|([|<>*])", lambda found: found[1] or "\\" + found[2], sentence)


def fault_of(kind, sentence):
    """Why the first sentence of a comment does not say what the name is or does; "": it does."""
    if not sentence:
        return "has no comment: write `/// ...` above it or `///< ...` behind it"
    words = re.sub(r" \(`.*`\)$", "", sentence)  # without the enumerators
    is_field = kind in ("field", "value")
    if found := UNCLEAR.match(words) or (not is_field and UNCLEAR_UNLESS_FIELD.match(words)):
        return f'begins with "{found[0]}": say what it is or does'
    if words.endswith((":", ",", ";")):
        return f'is cut: "{words}"'
    return "" if is_field or " " in words or re.search(r"[^\w.-]", words) else f'is one word: "{words}"'


def is_public(element):
    """Not what overrides a documented function either."""
    return element.get("prot") == "public" and element.get("kind") != "friend" and element.find("reimplements") is None


def rows():
    """Yields (file, line, name, kind, sentence, link) of every public name; of overloads, of each."""
    for path in (ROOT / BUILD / "api" / "xml").glob("*.xml"):
        for compound in xml.parse(path).getroot().iter("compounddef"):
            of = compound.get("kind")  # functions outside classes are in the XML of their file too
            scope = re.sub(r"^ojs(::v\d\w*)?(::)?|<.*>", "", compound.findtext("compoundname")) if of != "file" else ""
            if of in ("class", "struct") and is_public(compound):
                yield *place_of(compound), scope, of, sentence_of(compound), f"{compound.get('id')}.html"
            elif of not in ("file", "namespace"):
                continue
            for member in filter(is_public, compound.iter("memberdef")):
                own, sentence, plain = member.findtext("name"), sentence_of(member), []
                special = SPECIAL.fullmatch(f"{scope}::{own}{member.findtext('argsstring') or ''}")
                if (member.get("kind") == "define") != (of == "file") or (special and not sentence):
                    continue
                name = "::".join(filter(None, (scope, own)))
                kind = "constant" if (member.get("kind"), of) == ("variable", "namespace") else member.get("kind")
                call = "()" if kind == "function" else ""
                for value in member.iter("enumvalue"):
                    if sentence_of(value):
                        value_name = f"{name}::{value.findtext('name')}"
                        yield *place_of(member), value_name, "value", sentence_of(value), link_of(value)
                    else:
                        plain.append(f"`{value.findtext('name')}`")
                sentence += f" ({', '.join(plain)})" if plain and sentence else ""
                yield *place_of(member), name + call, KINDS.get(kind, kind), sentence, link_of(member)


def place_of(element):
    place = element.find("location")
    return place.get("file"), int(place.get("line"))


def link_of(member):
    return "{}.html#{}".format(*member.get("id").rsplit("_1", 1))


def head_of(part):
    lines = itertools.takewhile(lambda line: line.startswith("//"), part.lines)
    return "\n".join(line[3:] for line in lines)


def index():
    """Returns the text of the index, how many names have no comment that says what they are, and how many the main header has."""
    found = {}
    for file, *row in rows():
        found.setdefault(file, []).append(row)
    out, first, counts = [], dict.fromkeys(WORKER_NAMES), {}
    tree, missing = amalgamate.Tree(ROOT), 0
    for template in tree.templates.values():
        out.append(f"\n## {template.output}\n")
        counts[template.product] = 0
        for _, part in template.order:
            names = {}  # of overloads, the first with a comment
            for line, name, kind, sentence, link in sorted(found.pop(part, []), key=lambda row: (row[0], row[2] == "value")):
                if not names.get(name, ("",))[0]:
                    names[name] = (sentence, kind, link, line)
            if names:
                out.append(f"\n### {part.removesuffix('.hpp')}\n\n{head_of(tree.parts[part])}\n\n")
                out.append(COLUMNS)
            counts[template.product] += len(names)
            for name, (sentence, kind, link, line) in names.items():
                out.append(f"| [{name}]({link}) | {kind} | {sentence} |\n")
                if name in first:
                    first[name] = first[name] or out[-1]
                if fault := fault_of(kind, sentence):
                    print(f"src/ojs/{part}:{line}: `{name}` {fault}")
                    missing += 1
    assert not found, f"in no header: {', '.join(found)}"
    gone = [name for name, row in first.items() if not row]
    assert not gone, f"no names of a worker program: {', '.join(gone)}"
    return "".join([HEAD, "\n## The names of a worker program\n\n", COLUMNS, *first.values(), *out]), missing, counts[amalgamate.MAIN]


def run_doxygen():
    shutil.rmtree(ROOT / BUILD / "api", ignore_errors=True)  # the XML of what is no longer there
    (ROOT / BUILD / "api").mkdir(parents=True, exist_ok=True)
    INDEX.touch()
    environment = {**os.environ, "BUILD": str(BUILD)}
    return subprocess.run(["doxygen", "docs/Doxyfile"], cwd=ROOT, env=environment).returncode == 0


def main():
    check = sys.argv[1:] == ["--check"]
    if not shutil.which("doxygen"):
        print("doxygen is not installed: `make deps-check` installs it")
        return 77 if check else 1
    if not run_doxygen():
        return 1
    text, missing, names = index()
    print(f"ojs_shutdown.hpp has {names} public names, its limit is {MOST_NAMES}")
    if missing or (check and names > MOST_NAMES):
        return 1
    INDEX.write_text(text)
    return 0 if check or run_doxygen() else 1  # the index is the first page


if __name__ == "__main__":
    sys.exit(main())
