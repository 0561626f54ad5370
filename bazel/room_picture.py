#!/usr/bin/env python3
"""Writes the picture of docs/design/architecture.md from the BUILD files.

usage: bazel/room_picture.py          writes the picture into the page
       bazel/room_picture.py --check  fails when the picture is not what it would write

A box is a folder with libraries. An arrow means that a library of the upper box depends on one of the lower box. Left out is
an arrow where a longer way leads to the same box.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import build_files  # noqa: E402  pylint: disable=wrong-import-position
import generated_page  # noqa: E402  pylint: disable=wrong-import-position

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = "docs/design/architecture.md"
BEGIN = "<!-- made by bazel/room_picture.py; do not edit -->\n"
END = "<!-- end of the picture -->\n"
FOLDERS = ("aqt/", "configs", "serving")  # tests and examples may use nearly everything


def arrows(targets):
    """{folder: the folders that its libraries use}, and the set of the folders that only tests use."""
    libraries = [target for target in targets.values() if target.package.startswith(FOLDERS) and target.rule != "alias" and
                 not target.rule.endswith("_test")]
    shipped = {target.package for target in libraries if not target.testonly}
    used = {target.package: set() for target in libraries}
    for target in libraries:
        if target.testonly and target.package in shipped:
            continue  # a test utility beside the libraries
        for dep in target.deps:
            package = dep[2:].split(":")[0]
            if dep.startswith("//") and package in used and package != target.package:
                used[target.package].add(package)
    return used, set(used) - shipped


def below(used, folder, seen=()):
    """All that can be reached from a folder. ValueError for a circle."""
    if folder in seen:
        raise ValueError("a circle: " + " -> ".join((*seen, folder)))
    return set().union(*({other} | below(used, other, (*seen, folder)) for other in used[folder]))


def reduced(used):
    """Without the arrows that a longer way replaces."""
    return {folder: {other for other in direct if not any(other in below(used, third) for third in direct - {other})}
            for folder, direct in used.items()}


def picture(targets):
    """As a Mermaid diagram, which GitHub draws."""
    used, testonly = arrows(targets)
    houses = {}
    for folder in sorted(used):
        parts = folder.rsplit("/", 1)
        # aqt/quant and serving have rooms; aqt/core is a box of the top level.
        houses.setdefault(parts[0] if len(parts) == 2 and parts[0] != "aqt" else "", []).append(folder)

    def box(folder, indent):
        name = folder.rsplit("/", 1)[1] if folder in sum((houses[h] for h in houses if h), []) else folder
        return f'{indent}{folder.replace("/", "_")}["{name}"]'
    lines = ["```mermaid", "flowchart TB"]
    for house, folders in sorted(houses.items(), reverse=True):
        if house:
            lines.append(f'  subgraph {house.replace("/", "_")}["{house}"]')
        lines += [box(folder, "    " if house else "  ") for folder in folders]
        if house:
            lines.append("  end")
    for folder, others in sorted(reduced(used).items()):
        arrow = "-.->" if folder in testonly else "-->"
        lines += [f'  {folder.replace("/", "_")} {arrow} {other.replace("/", "_")}' for other in sorted(others)]
    return "\n".join(lines + ["```", ""])


def page(old, targets):
    """The page with its picture made anew."""
    if old.count(BEGIN) != 1 or old.count(END) != 1:
        raise ValueError(f"{PAGE} does not have the two lines around the picture: {BEGIN}{END}")
    head, rest = old.split(BEGIN)
    return head + BEGIN + picture(targets) + END + rest.split(END)[1]


def main(arguments):
    text = page((ROOT / PAGE).read_text(encoding="utf-8"), build_files.read_tree(ROOT))
    return generated_page.run(__file__, __doc__, ROOT / PAGE, text, [], arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
