#!/usr/bin/env python3
"""Writes docs/formats/json.md from docs/formats/json.schema.json.

usage: bazel/json_page.py          writes the page
       bazel/json_page.py --check  fails if the page differs from what it would write, or if a field lacks its meaning

The schema is JSON Schema with a keyword of its own, "unit".
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import generated_page  # noqa: E402  pylint: disable=wrong-import-position

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA, PAGE = "docs/formats/json.schema.json", "docs/formats/json.md"
INTRODUCTION = """# JSON reports

What `--json` prints, for each command. The page is generated from `docs/formats/json.schema.json` (JSON Schema) by
`bazel/json_page.py`; do not edit it. Tests compare the schema with what the commands print.

A report is one JSON object on standard output, in ASCII, with its fields in the order below. Errors and warnings also go to standard
error, and the exit codes do not depend on `--json` ([converting.md](../converting.md#exit-codes)). After an error there is no report.

- `schema` is 1. A new field does not change it, so ignore the fields that you do not know. A field that is removed, or gets another
  meaning, does.
- JSON has neither NaN nor infinity: a number that is NaN is null, and an infinite one is the string `"inf"` or `"-inf"`.
- Names are given in full. Bytes that are not UTF-8 become U+FFFD.
- Texts "for people" may change their wording at any time.

In the tables, `a.b` is the field `b` of the object `a`, `a[].b` that of each element of the list `a`, and `a{}.b` that of each value of
the object `a`, whose keys are data. Fields marked with * may be absent.
"""
TYPES = {"integer": "integer", "number": "number", "string": "string", "boolean": "boolean", "object": "object",
         "array": "list", "null": "null"}


def type_of(field):
    types = field["type"] if isinstance(field["type"], list) else [field["type"]]
    if types == ["array"]:
        return "list of " + {"object": "objects", "string": "strings", "integer": "integers", "number": "numbers"}[field["items"]["type"]]
    return " or ".join(TYPES[name] for name in types)


def fields(definition, prefix=""):
    """(path, is optional, field) of each field, in order, the inner ones after their owner."""
    for name, field in definition.get("properties", {}).items():
        yield prefix + name, name not in definition.get("required", []), field
        inner = {"array": ("[].", field.get("items")), "object": (".", field)}
        for kind in field["type"] if isinstance(field["type"], list) else [field["type"]]:
            mark, owner = inner.get(kind, ("", None))
            if isinstance(owner, dict):
                yield from fields(owner, prefix + name + mark)
            if kind == "object" and isinstance(field.get("additionalProperties"), dict):
                yield from fields(field["additionalProperties"], prefix + name + "{}.")


def problems(schema):
    """What a reader would miss."""
    found = []
    for report, definition in schema["$defs"].items():
        if not definition.get("description"):
            found.append(f"{DATA}: {report} has no description")
        for path, _, field in fields(definition):
            if not field.get("description"):
                found.append(f"{DATA}: {report}: {path} has no description")
            if path.split(".")[-1].endswith("bytes") and "unit" not in field:
                found.append(f"{DATA}: {report}: {path} has no unit")
    return found


def page(schema):
    lines = [INTRODUCTION]
    for report, definition in schema["$defs"].items():
        lines += [f"## {report}", "", definition["description"], "", "| field | type | unit | meaning |", "|---|---|---|---|"]
        for path, optional, field in fields(definition):
            meaning = field["description"].replace("|", "\\|")
            lines.append(f"| `{path}`{' *' if optional else ''} | {type_of(field)} | {field.get('unit', '')} | {meaning} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main(arguments):
    schema = json.loads((ROOT / DATA).read_text(encoding="utf-8"))
    return generated_page.run(__file__, __doc__, ROOT / PAGE, page(schema), problems(schema), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
