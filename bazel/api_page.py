#!/usr/bin/env python3
"""Writes docs/api.md: the names that aqt/aqt.h and the other umbrellas make available, from the headers that they include.

usage: bazel/api_page.py          writes the page
       bazel/api_page.py --check  fails if the page differs from what it would write
       bazel/api_page.py --silent fails if a name has no sentence, and lists those names

A name is a type, function, constant or macro declared at the margin of a header, outside namespace internal. Its description is
the first sentence of the comment above it, or beside it. A name without a comment belongs to the name above.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import build_files  # noqa: E402  pylint: disable=wrong-import-position
import generated_page  # noqa: E402  pylint: disable=wrong-import-position

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = "docs/api.md"
UMBRELLAS = ("aqt/aqt.h", "aqt/precision.h", "aqt/parallel.h")
INTRODUCTION = """# The public names

Generated from the headers by `bazel/api_page.py`; do not edit. `aqt/aqt.h` has what most programs need, `aqt/precision.h` mixed
precision, scale propagation and FP8 layers, and `aqt/parallel.h` programs of several processes. Depend on `@aqt//:aqt`,
`@aqt//:precision` or `@aqt//:parallel`. Or depend on the library of a single header below and include that header. The comment in
the header has the details: formula, shapes, dtypes, errors.
"""

# Patterns of declarations at the margin of a file that clang-format formatted.
NAMESPACE = re.compile(r"namespace ([\w:]+) \{$")
END = re.compile(r"\}  // namespace ([\w:]+)$")
MACRO = re.compile(r"#define (AQT_\w+)(?<!_)\(")
TYPE = re.compile(r"(?:class|struct|enum class) (?:\[\[\w+\]\] )?(\w+)(?: final)?(?: : [^;]*)? ?\{")
ALIAS = re.compile(r"using (\w+) =")
CONSTANT = re.compile(r"(?:inline )?constexpr [\w:<> ]+? (\w+)(?:\[\])? ?[={]")
FUNCTION = re.compile(r"(?:\[\[nodiscard\]\] )?(?:inline |constexpr |template <[^>]*> )*[\w:]+(?:<.*>)?[ &*]+(\w+)\(")


def first_sentence(comment):
    """The text up to the first period that ends a sentence, or up to a colon that begins a list."""
    text = " ".join(comment).strip()
    match = re.match(r"(.*?[^.\s])(?<!e\.g)(?<!i\.e)\.(?:\s|$)", text)
    return (match.group(1) if match else text).rstrip(":")


def names(text):
    """[(name with its namespace below aqt, first sentence)] in the order of the header. Overloads appear once."""
    found, comment, spaces = {}, [], []
    for line in text.split("\n"):
        if line.startswith("// ") or line == "//":
            comment += [] if line.startswith("// clang-format") else [line[3:]]
            continue
        if match := NAMESPACE.match(line):
            spaces.append(match.group(1))
        elif END.match(line):
            spaces.pop()
        elif spaces and not any("internal" in space for space in spaces) and line[:1] not in ("", " ", "}", "#"):
            for pattern in (TYPE, ALIAS, CONSTANT, FUNCTION):
                match = pattern.match(line)
                if match and "operator" not in line.split("(")[0]:
                    path = "::".join(spaces).split("::")[1:] + [match.group(1)]
                    found.setdefault("::".join(path), first_sentence(comment or line.split("  // ")[1:]))
                    break
        elif match := MACRO.match(line):
            found.setdefault(match.group(1), first_sentence(comment))
        if not line.startswith("template <"):  # the declaration is on the next line
            comment = []
    return list(found.items())


def headers(root, umbrella):
    path = root / umbrella
    return re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), re.M) if path.exists() else []


def silent_names(root):
    """"HEADER: NAME" of each name without a sentence."""
    return [f"{header}: {name}" for umbrella in UMBRELLAS for header in headers(root, umbrella)
            for name, said in names((root / header).read_text(encoding="utf-8")) if not said]


def cell(text):
    return text.replace("|", "\\|")


def page(root):
    """The text of the page."""
    library = {build_files.file_of(header): target.label for target in build_files.read_tree(root).values()
               for header in target.hdrs}
    parts = [INTRODUCTION]
    for umbrella in UMBRELLAS:
        parts.append(f"\n## Included by `{umbrella}`\n")
        for header in headers(root, umbrella):
            rows = names((root / header).read_text(encoding="utf-8"))
            if rows:
                parts.append(f"\n### `{header}`\nLibrary `{library[header]}`.\n\n| name | |\n|---|---|\n")
                parts += [f"| `{name}` | {cell(said)} |\n" for name, said in rows]
    return "".join(parts)


def main(arguments):
    if arguments == ["--silent"]:
        found = silent_names(ROOT)
        print("\n".join(found) or "api_page: each name has a sentence")
        return 1 if found else 0
    return generated_page.run(__file__, __doc__, ROOT / PAGE, page(ROOT), [], arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
