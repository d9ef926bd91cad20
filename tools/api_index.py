#!/usr/bin/env python3
"""Makes the API reference by doxygen. Its first page is an index by header, from the XML of a first run.

    api_index.py            build/api/index.html, or $BUILD/api/index.html
    api_index.py --check    fails if a public name has no comment or is in no header, or the main header has too many;
                            exits with 77 without doxygen
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

Look up a public name by the header and the part that declares it. Each has the first sentence of its comment.
"""
# What the compiler writes too, and so needs no comment.
SPECIAL = re.compile(r"(?:.*::)?(?:\w+::operator=\(.*|(\w+)::~?\1\((?:(?:const )?\1 &.*|\).*))")
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
    """Returns the text of the index, how many names have no comment, and how many the main header has."""
    found = {}
    for file, *row in rows():
        found.setdefault(file, []).append(row)
    out, counts = [HEAD], {}
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
                out.append("| name | kind | meaning |\n|---|---|---|\n")
            counts[template.product] += len(names)
            for name, (sentence, kind, link, line) in names.items():
                out.append(f"| [{name}]({link}) | {kind} | {sentence} |\n")
                if not sentence:
                    print(f"src/ojs/{part}:{line}: `{name}` has no comment: write `/// ...` above it or `///< ...` behind it")
                    missing += 1
    assert not found, f"in no header: {', '.join(found)}"
    return "".join(out), missing, counts[amalgamate.MAIN]


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
