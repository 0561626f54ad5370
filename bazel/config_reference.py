#!/usr/bin/env python3
"""Writes docs/reference-config.md from the comments of configs/*.proto.

usage: bazel/config_reference.py          writes the page
       bazel/config_reference.py --check  fails if the page differs from what it would write, or if a comment is incomplete

Each message, field, oneof, enum and enum value has a comment in the lines above it. The comment of a field says what happens
if the field is not set: it contains "Default" or "Required".
"""
import dataclasses
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import generated_page  # noqa: E402  pylint: disable=wrong-import-position

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = "docs/reference-config.md"
# file -> (heading, folder of its presets)
FILES = {
    "quant.proto": ("A contraction and its gradients", "presets/quant"),
    "inject.proto": ("Rules for a program", "presets/inject"),
    "convert.proto": ("The converter", "presets/convert"),
    "families.proto": ("Families of models, for the converter", "presets/families"),
    "amp.proto": ("Mixed precision", "presets/amp"),
    "weights_map.proto": ("Weights of a checkpoint", "presets/weights_map"),
}
INTRODUCTION = """# Configuration reference

Every message and field of the configurations, which are textprotos. The page is generated from the comments in `configs/*.proto`
by `bazel/config_reference.py`; do not edit it.

A list is written as `axes: [0, 1]`, or by repeating the field. A field whose type is a message is written with braces, even if
it is empty: `abs_max {}`.

To print a configuration with its base filled in, use `aqt config KIND FILE`, or in C++ `ToText(*DotGeneralFromText(text))`
and `ToText(*InjectConfigFromText(text))` (`aqt/transforms/quantize/inject_proto.h`), or for the converter
`aqt plan --config FILE --print-effective-config`. Errors are reported with `file:line:column`.
"""

BLOCK = re.compile(r"(message|enum|oneof) (\w+) \{(\})?$")
FIELD = re.compile(r"(?:(optional|repeated) )?([\w.]+) (\w+) = (\d+);$")
VALUE = re.compile(r"([A-Z]\w*) = (\d+);$")


@dataclasses.dataclass
class Item:
    """A message, an enum, a oneof, a field or a value, with the items inside it."""
    kind: str
    name: str
    comment: str
    type: str = ""
    repeated: bool = False
    items: list = dataclasses.field(default_factory=list)


def parse(text):
    """(comment at the top of the file, its messages and enums). Raises ValueError for a line that it cannot parse."""
    head, body = text.split('syntax = "proto3";\n', 1)
    root = Item("file", "", "")
    stack, comment = [root], []
    for number, line in enumerate(body.split("\n"), start=head.count("\n") + 2):
        line = line.strip()
        if line.startswith("// "):
            comment.append(line[3:])
            continue
        text_above, comment = " ".join(comment), []
        if not line or line.startswith(("package ", "import ")):
            continue
        if line == "}":
            stack.pop()
        elif match := BLOCK.match(line):
            item = Item(match[1], match[2], text_above)
            stack[-1].items.append(item)
            if not match[3]:
                stack.append(item)
        elif stack[-1].kind == "enum" and (match := VALUE.match(line)):
            stack[-1].items.append(Item("value", match[1], text_above))
        elif stack[-1].kind in ("message", "oneof") and (match := FIELD.match(line)):
            stack[-1].items.append(Item("field", match[3], text_above, match[2], match[1] == "repeated"))
        else:
            raise ValueError(f"line {number}: cannot read {line!r}; comments stand in lines of their own")
    return [line[3:] if line != "//" else "" for line in head.strip().split("\n")], root.items


def problems(file, items, parent=None):
    """One line for each item without a comment, or whose comment does not say what happens if it is not set."""
    found = []
    for item in items:
        where = f"configs/{file}: {parent.name + '.' if parent else ''}{item.name}"
        if not item.comment:
            found.append(f"{where} has no comment")
        elif item.kind == "oneof" or (item.kind == "field" and parent.kind == "message"):
            if not re.search(r"\b(Default|Required)\b", item.comment):
                found.append(f"{where}: the comment says neither Default nor Required")
        found += problems(file, item.items, item)
    return found


def anchor(name):
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^a-z0-9_ -]", "", name.lower()).replace(" ", "-")


def table(rows):
    def cell(text):
        return text.replace("|", "\\|")
    return [f"| {' | '.join(cell(text) for text in row)} |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]]


def describe_message(message, names):
    def type_of(field):
        text = f"[{field.type}](#{anchor(field.type)})" if field.type in names else f"`{field.type}`"
        return f"list of {text}" if field.repeated else text

    rows = [["field", "type", "meaning"]]
    for item in message.items:
        if item.kind == "field":
            rows.append([f"`{item.name}`", type_of(item), item.comment])
            continue
        rows.append(["one of", "", item.comment])
        rows += [[f"`{field.name}`", type_of(field), f"(one of) {field.comment}"] for field in item.items]
    return table(rows) if len(rows) > 1 else []


def describe(root, file):
    """The part of the page for one file, and its problems."""
    heading, presets = FILES[file]
    top, items = parse((root / "configs" / file).read_text(encoding="utf-8"))
    names = {item.name for other in FILES for item in parse((root / "configs" / other).read_text(encoding="utf-8"))[1]}
    lines = [f"## {heading}", ""]
    top = [line for line in top if not line.startswith(PAGE)]  # readers see the page's name
    for paragraph in "\n".join(top).strip().split("\n\n"):
        code = all(line.startswith("  ") for line in paragraph.split("\n"))
        lines += (["```textproto", *(line[2:] for line in paragraph.split("\n")), "```", ""] if code
                  else [*paragraph.split("\n"), ""])
    folder = root / "configs" / presets
    known = ", ".join(f"`{path.stem}`" for path in sorted(folder.glob("*.textproto")))
    if known:
        lines += [f"Presets (`configs/{presets}`): {known}.", ""]
    for item in items:
        lines += [f"### {item.name}", "", item.comment, ""]
        if item.kind == "message":
            rows = describe_message(item, names)
        else:
            rows = table([["value", "meaning"], *([f"`{value.name}`", value.comment] for value in item.items)])
        lines += [*rows, ""] if rows else []
    return lines, problems(file, items)


def page(root):
    lines, found = [INTRODUCTION], []
    for file in FILES:
        part, wrong = describe(root, file)
        lines += part
        found += wrong
    return "\n".join(lines).rstrip() + "\n", found


def main(arguments):
    text, found = page(ROOT)
    return generated_page.run(__file__, __doc__, ROOT / PAGE, text, found, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
