#!/usr/bin/env python3
"""doxygen's INPUT_FILTER: prints a header with its plain comments as documentation. Lines keep their numbers.

A comment directly above a declaration becomes ///. One behind a member, with the lines that continue it, becomes ///<.
One behind a type's { is the type's. A macro has the comment above its #ifndef, or its row in the table of
base/config.hpp. An overload directly below a documented function refers to it; copies and moves need no comment. All
other comments stay as they are. In docs/api.md, names become links.
"""

import re
import sys

COMMENT = re.compile(r"^( *)//(?: (.*))?$")
LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'')
ANGLES = re.compile(r"<[^<>]*>")
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum)\b[^()=]*$")
VERSION = re.compile(r"inline namespace \w+ \{|\}  // namespace v\d\w*$")
UNDOCUMENTED = re.compile(r"#|\}|(?:inline )?namespace\b|\w+:$|$")  # what a comment may stand above for other reasons
MACRO_ROW = re.compile(r"//   (OJS_\w+) +\S+(?: \S+)*  +(.*)")
TYPE = re.compile(r" *(?:enum|class|struct) .*\{")
COPY_OR_MOVE = re.compile(r" +(?:(\w+)\((?:const )?\1&&?(?: \w+)?\)|(\w+)& operator=\((?:const )?\2&{0,2}(?: \w+)?\))")
FUNCTION = re.compile(r"[ *&](operator\W+|~?\w+)\(")
# What doxygen takes for a command, a tag or a link. What stands in backticks is code already.
SPECIAL = re.compile(r"(`[^`]*`)|[\\@#<>&%]")


def escaped(text):
    return SPECIAL.sub(lambda found: found[1] or "\\" + found[0], text)


def documentation(lines, mark):
    """A comment's lines. Those that are indented are code or a table."""
    out, in_code = [], False
    for line in lines:
        indent, text = COMMENT.match(line).groups()
        text = text or ""
        is_code = text.startswith("  ") or (in_code and not text)
        if is_code != in_code:
            out[-1] += " @code{.cpp}" if is_code else " @endcode"
        in_code = is_code
        out.append(f"{indent}{mark} {text if is_code else escaped(text)}".rstrip())
    if in_code:
        out[-1] += " @endcode"
    return out


class Scopes:
    """What is open at some point of a header: braces by what they belong to, parentheses, a declaration."""

    def __init__(self):
        self.kinds, self.text, self.parentheses = [], "", 0

    def read(self, code):
        for token in re.split(r"([{}();])|\b(?:public|protected|private):", LITERAL.sub("0", code)):
            if token == "{":
                found = SCOPE.search(ANGLES.sub("", ANGLES.sub("", self.text)))
                self.kinds.append(found[1] if found else "body")
            elif token == "}":
                self.kinds.pop()
            elif token in ("(", ")"):
                self.parentheses += 1 if token == "(" else -1
            self.text = "" if token in ("{", "}", ";", None) else self.text + token

    def between_members(self):
        within = "body" in self.kinds or self.parentheses
        return not within and (not self.text.strip() or self.kinds[-1:] == ["enum"])


def comment_column(line):
    return LITERAL.sub(lambda literal: "0" * len(literal[0]), line).find("  // ") + 2


def block_end(lines, start, column):
    """The first line from `start` on that is not a comment in that column."""
    for at in range(start, len(lines)):
        found = COMMENT.match(lines[at])
        if not found or len(found[1]) != column:
            return at
    return len(lines)


def converted(lines):
    lines = ["//" if line.startswith("// clang-format") else line for line in lines] + [""]
    macros = dict(found.groups() for found in map(MACRO_ROW.match, lines) if found)
    out, scopes, at = [], Scopes(), 0
    above = False  # a comment above this line documents it
    documented = ""  # the documented function that ended in the line above
    while at < len(lines) - 1:
        line = lines[at]
        comment = COMMENT.match(line)
        if comment:
            end = block_end(lines, at, len(comment[1]))
            block, below = lines[at:end], lines[end].strip()
            if below.startswith("#ifndef "):
                macros[below.split()[1]] = " ".join(line[3:] for line in block)
            if below == "#pragma once":
                block = [*documentation(block, "///"), "/// @file"]
                end += 1
            elif scopes.between_members() and not UNDOCUMENTED.match(below):
                block, above = documentation(block, "///"), True
            out += block
            at = end
            continue
        at += 1
        if line.startswith("#"):
            macro = re.match(r"(#define (\w+).*?)(?:  // (.*))?$", line)
            text = (macro[3] or macros.get(macro[2])) if macro else None
            out.append(f"{macro[1]}  ///< {escaped(text)}" if text else line)
            continue
        if VERSION.match(line):
            out.append("")
            continue
        column = comment_column(line)
        code, behind = (line[:column], line[column:]) if column > 1 else (line, "")
        mark = ""
        if scopes.between_members():
            function = FUNCTION.search(code + lines[at] if code.lstrip().startswith("template ") else code)
            name = function[1] if function else ""
            if not above and not behind and COPY_OR_MOVE.match(code):
                mark = "/** @private */ "
            elif not above and not behind and name and name == documented:
                mark = "/** @overload */ "
            documented = name if above or behind or mark else ""
            above = False
        scopes.read(code)
        if behind and TYPE.match(code.rstrip()):
            out.append(f"/** {escaped(behind[3:])} */ {code.rstrip()}")
        elif behind and not behind.startswith("// namespace") and scopes.between_members():
            end = block_end(lines, at, column)
            first, *more = documentation([behind, *lines[at:end]], "///<")
            out += [code + first, *more]
            at = end
        else:
            out.append(mark + line)
    return out


LINK = re.compile(r"^\| `([a-z][\w:~]*(?:\(\))?)`", re.MULTILINE)

if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    if sys.argv[1].endswith(".hpp"):
        print("\n".join(converted(text.splitlines())))
    else:
        print(LINK.sub(r"| ojs::\1", text))
