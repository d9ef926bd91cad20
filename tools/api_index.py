#!/usr/bin/env python3
"""Makes the API reference by doxygen, and docs/api.md, its index by header, from the XML of the same run.

    api_index.py            build/api/index.html, or $BUILD/api/index.html, and docs/api.md
    api_index.py --check    fails where doxygen warns or docs/api.md is not current; exits with 77 without doxygen
"""

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
INDEX = ROOT / "docs" / "api.md"
HEAD = """# Public names

For users of the headers: every public name by the header and the part that declares it, with the first sentence of its
comment. `make api` makes this index, and the reference with everything else in `build/api/index.html`.
"""
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
    """Yields (file, line, name, kind, sentence) of every public name; of overloads, of each."""
    for path in (ROOT / BUILD / "api" / "xml").glob("*.xml"):
        for compound in xml.parse(path).getroot().iter("compounddef"):
            of = compound.get("kind")  # functions outside classes are in the XML of their file too
            scope = re.sub(r"^ojs(::)?|<.*>", "", compound.findtext("compoundname")) if of != "file" else ""
            if of in ("class", "struct") and is_public(compound):
                yield *place_of(compound), scope, of, sentence_of(compound)
            elif of not in ("file", "namespace"):
                continue
            for member in filter(is_public, compound.iter("memberdef")):
                if (member.get("kind") == "define") != (of == "file"):
                    continue
                name = "::".join(filter(None, (scope, member.findtext("name"))))
                kind = "constant" if (member.get("kind"), of) == ("variable", "namespace") else member.get("kind")
                call = "()" if kind == "function" else ""
                sentence, plain = sentence_of(member), []
                for value in member.iter("enumvalue"):
                    if sentence_of(value):
                        yield *place_of(member), f"{name}::{value.findtext('name')}", "value", sentence_of(value)
                    else:
                        plain.append(f"`{value.findtext('name')}`")
                sentence += f" ({', '.join(plain)})" if plain else ""
                yield *place_of(member), name + call, KINDS.get(kind, kind), sentence


def place_of(element):
    place = element.find("location")
    return place.get("file"), int(place.get("line"))


def index():
    found = {}
    for file, line, name, kind, sentence in rows():
        found.setdefault(file, []).append((line, name, kind, sentence))
    out = [HEAD]
    templates = amalgamate.Tree(ROOT).templates
    for template in templates.values():
        out.append(f"\n## {template.output}\n")
        for _, part in template.order:
            names = {}
            for _, name, kind, sentence in sorted(found.pop(part, []), key=lambda row: (row[0], row[2] == "value")):
                if sentence:  # doxygen fails where one is missing; constructors as the compiler writes them need none
                    names.setdefault(name, (kind, sentence))
            if names:
                out.append(f"\n### {part.removesuffix('.hpp')}\n\n| name | kind | meaning |\n|---|---|---|\n")
                out += [f"| `{name}` | {kind} | {sentence} |\n" for name, (kind, sentence) in names.items()]
    assert not found, f"in no header: {', '.join(found)}"
    return "".join(out)


def run_doxygen():
    shutil.rmtree(ROOT / BUILD / "api", ignore_errors=True)  # the XML of what is no longer there
    (ROOT / BUILD / "api").mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "BUILD": str(BUILD)}
    return subprocess.run(["doxygen", "docs/Doxyfile"], cwd=ROOT, env=environment).returncode == 0


def main():
    check = sys.argv[1:] == ["--check"]
    if not shutil.which("doxygen"):
        print("doxygen is not installed: `make deps-check` installs it")
        return 77 if check else 1
    if not run_doxygen():
        return 1
    now = index()
    if INDEX.read_text() == now:
        return 0
    if check:
        print("docs/api.md is not current: run `make api`, and commit it with the change")
        return 1
    INDEX.write_text(now)
    return 0 if run_doxygen() else 1  # the index is the first page


if __name__ == "__main__":
    sys.exit(main())
