#!/usr/bin/env python3
"""Writes the picture of the rooms into README.md and docs/design/architecture.md, and the table of rooms into the latter.

usage: bazel/room_picture.py          writes them into the pages
       bazel/room_picture.py --check  fails if a page differs from what it would write

The picture comes from the BUILD files. A box is a folder with libraries, and lists its rooms. An arrow means that a library of the
upper box depends on one of the lower box. An arrow is left out if a longer path leads to the same box. The table comes from
bazel/rooms.py.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import build_files  # noqa: E402  pylint: disable=wrong-import-position
import generated_page  # noqa: E402  pylint: disable=wrong-import-position
from rooms import ROOMS, house_of  # noqa: E402  pylint: disable=wrong-import-position

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = {"README.md": ("picture",), "docs/design/architecture.md": ("picture", "table")}  # each with its generated parts
BEGIN = "<!-- {}, made by bazel/room_picture.py; do not edit -->\n"
END = "<!-- end of {} -->\n"
FOLDERS = ("aqt/", "configs", "serving")  # tests and examples may use nearly everything


def arrows(targets):
    """{house: the houses that its libraries use}, {house: its rooms}, and the set of houses that only tests use."""
    libraries = [target for target in targets.values() if target.package.startswith(FOLDERS) and target.rule != "alias" and
                 not target.rule.endswith("_test")]
    shipped = {house_of(target.package) for target in libraries if not target.testonly}
    used, rooms = {}, {}
    for target in libraries:
        house = house_of(target.package)
        used.setdefault(house, set())
        if target.package != house:
            rooms.setdefault(house, set()).add(target.package[len(house) + 1:])
        if target.testonly and house in shipped:
            continue  # a test utility beside the libraries
        used[house] |= {house_of(dep[2:].split(":")[0]) for dep in target.deps if dep.startswith("//")} - {house}
    return {house: others & set(used) for house, others in used.items()}, rooms, set(used) - shipped


def below(used, folder, seen=()):
    """All folders that can be reached from a folder. ValueError for a circle."""
    if folder in seen:
        raise ValueError("a circle: " + " -> ".join((*seen, folder)))
    return set().union(*({other} | below(used, other, (*seen, folder)) for other in used[folder]))


def reduced(used):
    """The arrows without those that a longer path replaces."""
    for folder in used:
        below(used, folder)
    return {folder: {other for other in direct if not any(other in below(used, third) for third in direct - {other})}
            for folder, direct in used.items()}


def picture(targets):
    """The picture as a Mermaid diagram, which GitHub draws."""
    used, rooms, testonly = arrows(targets)
    lines = ["```mermaid", "flowchart TB"]
    for house in sorted(used):
        label = "<br>".join([f"<b>{house}</b>"] + ([" · ".join(sorted(rooms[house]))] if house in rooms else []))
        lines.append(f'  {house.replace("/", "_")}["{label}"]')
    for house, others in sorted(reduced(used).items()):
        arrow = "-.->" if house in testonly else "-->"
        lines += [f'  {house.replace("/", "_")} {arrow} {other.replace("/", "_")}' for other in sorted(others)]
    return "\n".join(lines + ["```", ""])


def table():
    """The table of rooms."""
    lines = ["| room | holds | may use |", "|---|---|---|"]
    for name, room in ROOMS.items():
        holds = room.holds + ("; only for tests" if room.testonly else "")
        lines.append(f"| `{name}` | {holds} | " + ", ".join(f"`{other}`" for other in room.uses) + (" |" if room.uses else "|"))
    return "\n".join(lines + [""])


def page(old, path, targets):
    """The text `old` of the page at `path`, with its generated parts replaced."""
    texts = {"picture": picture, "table": lambda _: table()}
    for part in PAGES[path]:
        begin, end = BEGIN.format(part), END.format(part)
        if old.count(begin) != 1 or old.count(end) != 1:
            raise ValueError(f"{path}: expected exactly one of each of the two lines around the {part}: {begin}{end}")
        head, rest = old.split(begin)
        old = head + begin + texts[part](targets) + end + rest.split(end)[1]
    return old


def main(arguments):
    targets = build_files.read_tree(ROOT)
    codes = []
    for path in PAGES:
        text = page((ROOT / path).read_text(encoding="utf-8"), path, targets)
        codes.append(generated_page.run(__file__, __doc__, ROOT / path, text, [], arguments))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
