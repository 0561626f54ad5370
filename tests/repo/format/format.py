#!/usr/bin/env python3
"""Checks or fixes the format of C++ and proto files: clang-format 14 with the tree's .clang-format, and at most 120 columns.

usage: tests/repo/format/format.py [--fix] [ROOT]   (default: this file's tree)

Other versions of clang-format break lines differently, so only version 14 is accepted. It does not change comments and strings,
so lines longer than 120 columns are checked separately. They are allowed in raw strings and where clang-format is off; all others
must be fixed by hand.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
VERSION = 14
COLUMNS = 120
SUFFIXES = (".h", ".cc", ".proto")
FIX = "tests/repo/format/format.py --fix"

# A comment, a raw string, a string or a character. The one that starts first hides the others.
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<delimiter>[^()\\\s]{0,16})\((?P<raw>.*?)\)(?P=delimiter)"|"""
    r'''"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+\'''', re.DOTALL)
OFF, ON = "// clang-format off", "// clang-format on"


def files(root):
    """The C++ and proto files of the tree, as relative paths. Links (such as Bazel's) and hidden folders are left out."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not os.path.islink(os.path.join(folder, f)))
        found += [os.path.relpath(os.path.join(folder, name), root) for name in sorted(names) if name.endswith(SUFFIXES)]
    return found


def clang_format():
    """The program, or None."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name)
        if path is None:
            continue
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        if re.search(rf"version {VERSION}\.", version):
            return path
    return None


def free_lines(text):
    """The numbers, from 1, of lines of any length: those that touch a raw string, or where clang-format is off."""
    free = set()
    off = None  # where it was disabled
    for token in TOKEN.finditer(text):
        first = text.count("\n", 0, token.start()) + 1
        if token["raw"] is not None:
            free.update(range(first, first + token[0].count("\n") + 1))
        elif token[0].rstrip() == OFF:
            off = first
        elif token[0].rstrip() == ON and off is not None:
            free.update(range(off, first + 1))
            off = None
    if off is not None:
        free.update(range(off, text.count("\n") + 2))
    return free


def long_lines(root, names):
    """"FILE:LINE: ..." for each line that is too long."""
    problems = []
    for name in names:
        text = (pathlib.Path(root) / name).read_text(encoding="utf-8")
        long = [(i, line) for i, line in enumerate(text.split("\n"), 1) if len(line) > COLUMNS]
        free = free_lines(text) if long else set()
        problems += [f"{name}:{i}: has {len(line)} columns, at most {COLUMNS} are allowed" for i, line in long if i not in free]
    return problems


def unformatted(root, names):
    """"FILE:LINE: ..." for the first line of each file that clang-format would change, or a problem if it is not installed."""
    program = clang_format()
    if program is None:
        return [f"clang-format {VERSION} is missing: install the package clang-format-{VERSION}"]
    if not names:
        return []
    run = subprocess.run([program, "--dry-run", "--Werror", "--ferror-limit=0", *names], cwd=root, capture_output=True,
                         text=True, check=False)
    first = {}
    for name, line in re.findall(r"^(\S+?):(\d+):\d+: error: code should be clang-formatted", run.stderr, re.MULTILINE):
        first.setdefault(os.path.normpath(name), line)
    problems = [f"{name}:{line}: is not formatted" for name, line in first.items()]
    if run.returncode != 0 and not problems:
        problems = [f"clang-format failed: {run.stderr.strip()}"]
    return problems


def problems(root):
    names = files(root)
    return unformatted(root, names) + long_lines(root, names)


def fix(root):
    program = clang_format()
    if program is not None:
        subprocess.run([program, "-i", *files(root)], cwd=root, check=True)


def main(args):
    mend = "--fix" in args
    rest = [a for a in args if a != "--fix"]
    if len(rest) > 1 or any(a.startswith("-") for a in rest):
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(rest[0]) if rest else ROOT
    if mend:
        fix(root)
    found = problems(root)
    print("\n".join(found) if found else f"format: {len(files(root))} files are formatted")
    if any("is not formatted" in problem for problem in found):
        print(f"fix them with:  {FIX}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
