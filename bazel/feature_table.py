#!/usr/bin/env python3
"""Writes docs/features.md from docs/features.json.

usage: bazel/feature_table.py          writes the page
       bazel/feature_table.py --check  fails if the page differs from what it would write, or if a claim is false

A row of the JSON file:
  {"row": 5, "part": "core",                       or "layers" or "older"; numbers of "older" may have gaps
   "feature": "...",                               what the user gets
   "state": "done" | "part" | "planned" | "left out",
   "tests": ["//aqt/quant/numerics:numerics_test IntSymmetric.Bounds", "//examples/quickstart:quickstart_test"],
   "benchmark": "//tests/benchmarks:gemm",                 optional
   "doc": "docs/quantization.md#a-contraction",
   "note": "..."}                                          what is missing; for part and left out

A test is a target followed by a TEST (or TEST_F, TEST_P, TYPED_TEST) of its sources. Python and shell tests are named only by
their target.
"""
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import build_files  # noqa: E402  pylint: disable=wrong-import-position
import generated_page  # noqa: E402  pylint: disable=wrong-import-position

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA, PAGE = "docs/features.json", "docs/features.md"
STATES = ("done", "part", "planned", "left out")
KEYS = {"row", "part", "feature", "state", "tests", "benchmark", "doc", "note"}
PARTS = {"core": "Contractions, numerics, calibration", "layers": "Layers, calibration state, serving",
         "older": "Only in AQT's older stacks"}
INTRODUCTION = """# Features

The features of AQT v2 as a numbered list, with the tests that show each feature and the page that explains it. The last part has
features of AQT's older stacks (`jax_legacy`). The page is generated from `docs/features.json` by `bazel/feature_table.py`; do not
edit it. `//tests/repo/docs:docs_test` checks that every named test and heading exists.

"part": works, with the exception in the note; "left out": not planned. `//tests/golden_check:golden_check_test` runs recorded cases
of AQT itself.
"""
TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\((\w+), (\w+)\)", re.M)


def anchor(heading):
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")


def anchors(path):
    """The anchors of a Markdown file's headings, without code blocks."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {anchor(match) for match in re.findall(r"^#+ (.+)$", text, flags=re.M)}


def tests_of(root, target):
    """{"Suite.Name"} from the sources of a test target."""
    found = set()
    for label in target.srcs:
        path = build_files.file_of(label)
        if path and path.endswith(".cc") and (root / path).is_file():
            found |= {f"{suite}.{name}" for suite, name in TEST.findall((root / path).read_text(encoding="utf-8"))}
    return found


def problems_of_row(root, targets, row):
    if unknown := set(row) - KEYS:
        yield f"unknown keys {sorted(unknown)}"
    if row["state"] not in STATES:
        yield f"state {row['state']!r}, expected one of {', '.join(STATES)}"
    works = row["state"] in ("done", "part")
    if works and not (row.get("tests") and row.get("doc")):
        yield f"is {row['state']}, but names no test or no doc"
    if not works and (row.get("tests") or row.get("benchmark")):
        yield f"is {row['state']}, but names tests or a benchmark"
    if row["state"] in ("part", "left out") and not row.get("note"):
        yield f"is {row['state']}, but has no note that says why"
    for test in row.get("tests", []):
        label, _, name = test.partition(" ")
        target = targets.get(label)
        if target is None or not target.rule.endswith("_test"):
            yield f"there is no test target {label}"
        elif target.rule == "cc_test" and name not in tests_of(root, target):
            yield f"{label} has no test {name!r}"
    if (benchmark := row.get("benchmark")) and benchmark not in targets:
        yield f"there is no target {benchmark}"
    if doc := row.get("doc"):
        path, _, heading = doc.partition("#")
        if not (root / path).is_file():
            yield f"there is no page {path}"
        elif heading not in anchors(root / path):
            yield f"{path} has no heading #{heading}"


def problems(root, rows):
    """One line per false claim."""
    targets = build_files.read_tree(root)
    found = [f"{DATA}: row {row['row']}: {problem}" for row in rows for problem in problems_of_row(root, targets, row)]
    numbers = [row["row"] for row in rows]
    older = sum(row["part"] == "older" for row in rows)
    if numbers[:len(rows) - older] != list(range(1, len(rows) - older + 1)) or numbers != sorted(set(numbers)):
        found.append(f"{DATA}: rows are numbered {numbers}, expected 1, 2, 3, ...")
    return found


def describe(row):
    """The line of the table."""
    tests = {}
    for test in row.get("tests", []):
        label, _, name = test.partition(" ")
        tests.setdefault(label, []).append(name)
    shown = "<br>".join(f"`{label}`" + (": " + ", ".join(f"`{name}`" for name in names) if names != [""] else "")
                        for label, names in tests.items())
    doc = row.get("doc", "")
    if doc:
        doc = f"[{doc.removeprefix('docs/').split('#')[0]}]({doc.removeprefix('docs/')})"
    feature = row["feature"] + (f" ({row['note']})" if row.get("note") else "")
    benchmark = f"`{row['benchmark']}`" if row.get("benchmark") else ""
    return f"| {row['row']} | {feature} | {row['state']} | {shown} | {benchmark} | {doc} |"


def page(rows):
    lines = [INTRODUCTION]
    counts = ", ".join(f"{sum(row['state'] == state for row in rows)} {state}" for state in STATES)
    lines += [f"{len(rows)} features: {counts}.", ""]
    for part, heading in PARTS.items():
        lines += [f"## {heading}", "", "| | feature | state | tests | benchmark | page |", "|---|---|---|---|---|---|"]
        lines += [describe(row) for row in rows if row["part"] == part]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main(arguments):
    rows = json.loads((ROOT / DATA).read_text(encoding="utf-8"))
    return generated_page.run(__file__, __doc__, ROOT / PAGE, page(rows), problems(ROOT, rows), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
