#!/usr/bin/env python3
"""Finds C++ functions of more than 80 lines, from the line of the template or the return type to the closing brace.

usage: tests/repo/format/long_functions.py [ROOT]   (default: the tree that this file is in)

A function is what begins with a brace behind a pair of parentheses, in a namespace or a class. Lambdas, and classes inside
functions, count as lines of the function around them.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import format as gate  # noqa: E402  pylint: disable=wrong-import-position

MOST_LINES = 80
# Its function is one loop around tiles that stay in registers; no others may be added.
EXCEPTIONS = {"aqt/kernels/gemm/isa/amx.cc"}

DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
NAMESPACE = re.compile(r"(?:inline )?namespace\b|extern\b")
CLASS = re.compile(r"\b(?:class|struct|union|enum)\b")
SIGNATURE_END = re.compile(r"\)[\w\s:>&*-]*$")  # const, override, HWY_ATTR, -> T


def blanked(text):
    """The text without comments, strings and preprocessor lines; each line keeps its number."""
    def spaces(match):
        return re.sub(r"[^\n]", " ", match[0])
    return DIRECTIVE.sub(spaces, gate.TOKEN.sub(spaces, text))


def is_function(head):
    """Is a brace behind `head` the body of a function, and not of a class or the start of a list of values?"""
    head = re.sub(r"\btemplate <[^{}]*?>\s", "", head)
    if CLASS.search(head) and not SIGNATURE_END.search(head):
        return False
    return "(" in head and not re.search(r"=\s*[\w:<>]*$", head)


def functions(text):
    """[(first line, number of lines)] of each function in a namespace or a class."""
    text = blanked(text)
    found, scopes, parentheses, begin = [], [], [0], 0
    for at, char in enumerate(text):
        if char == "(":
            parentheses[-1] += 1
        elif char == ")":
            parentheses[-1] -= 1
        elif char == ";" and parentheses[-1] == 0:
            begin = at + 1
        elif char == "{":
            head = text[begin:at].strip()
            if scopes and scopes[-1][0] in ("function", "other"):
                kind = "other"
            elif NAMESPACE.match(head) or (parentheses[-1] == 0 and CLASS.search(head) and not is_function(head)):
                kind = "scope"
            else:
                kind = "function" if parentheses[-1] == 0 and is_function(head) else "other"
            scopes.append((kind, at - len(text[begin:at].lstrip())))
            parentheses.append(0)
            begin = at + 1
        elif char == "}" and scopes:
            kind, first = scopes.pop()
            parentheses.pop()
            goes_on = re.match(r"\s*[,{]", text[at + 1:at + 200])  # of the members that a constructor initializes
            if kind == "function" and not goes_on:
                line = text.count("\n", 0, first) + 1
                found.append((line, text.count("\n", first, at) + 1))
            begin = first if goes_on else at + 1
    return found


def problems(root, names):
    """"FILE:LINE: ..." for each function that is too long."""
    found = []
    for name in names:
        if name.endswith(".proto") or name in EXCEPTIONS:
            continue
        text = (pathlib.Path(root) / name).read_text(encoding="utf-8")
        found += [f"{name}:{line}: the function has {lines} lines, at most {MOST_LINES} are allowed"
                  for line, lines in functions(text) if lines > MOST_LINES]
    return found


def main(arguments):
    root = arguments[0] if arguments else gate.ROOT
    found = problems(root, gate.files(root))
    print("\n".join(found) or f"long_functions: no function has more than {MOST_LINES} lines")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
