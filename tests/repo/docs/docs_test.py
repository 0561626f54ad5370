#!/usr/bin/env python3
"""Generated pages are up to date, the tests that they name exist, and pages agree with headers."""
import json
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path[:0] = [str(ROOT / "bazel"), str(ROOT / "tests" / "benchmarks")]
import api_page  # noqa: E402
import build_files  # noqa: E402
import config_reference  # noqa: E402
import feature_table  # noqa: E402
import json_page  # noqa: E402
import performance_page  # noqa: E402
import room_picture  # noqa: E402
import rooms  # noqa: E402


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


class ConfigReference(unittest.TestCase):
    def test_the_page_is_up_to_date(self):
        text, problems = config_reference.page(ROOT)
        self.assertEqual(problems, [])
        self.assertEqual(read(config_reference.PAGE), text, "run bazel/config_reference.py")

    def test_a_message(self):
        _, items = config_reference.parse("""syntax = "proto3";
// M.
message M {
  // A | b. Default: 1.
  int32 a = 1;
  // Default: none.
  repeated Other more = 2;
  // One. Required.
  oneof one {
    // Of text.
    string text = 3;
    // Of another.
    Other other = 4;
  }
}
""")
        self.assertEqual(config_reference.describe_message(items[0], {"M", "Other"}), [
            "| field | type | meaning |",
            "| --- | --- | --- |",
            "| `a` | `int32` | A \\| b. Default: 1. |",
            "| `more` | list of [Other](#other) | Default: none. |",
            "| one of |  | One. Required. |",
            "| `text` | `string` | (one of) Of text. |",
            "| `other` | [Other](#other) | (one of) Of another. |"])

    def test_what_is_missing_is_noticed(self):
        head = 'syntax = "proto3";\n'
        cases = {
            "// M.\nmessage M {\n  optional int32 a = 1;\n}": ["configs/x.proto: M.a has no comment"],
            "// M.\nmessage M {\n  // A.\n  optional int32 a = 1;\n}":
                ["configs/x.proto: M.a: the comment says neither Default nor Required"],
            "// M.\nmessage M {\n  // A. Default: 1.\n  optional int32 a = 1;\n}": [],
            "// M.\nmessage M {\n  // O.\n  oneof o {\n    int32 a = 1;\n  }\n}":
                ["configs/x.proto: M.o: the comment says neither Default nor Required",
                 "configs/x.proto: o.a has no comment"],
            "message M {}": ["configs/x.proto: M has no comment"],
            "// E.\nenum E {\n  A = 0;\n}": ["configs/x.proto: E.A has no comment"],
        }
        for text, want in cases.items():
            with self.subTest(text=text):
                self.assertEqual(config_reference.problems("x.proto", config_reference.parse(head + text)[1]), want)
        for line in ["int32 a = 1; // beside", "map<string, int32> a = 1;", "reserved 3;"]:
            with self.subTest(line=line), self.assertRaisesRegex(ValueError, "line 3: cannot read"):
                config_reference.parse(head + "message M {\n  " + line + "\n}")


class Performance(unittest.TestCase):
    def test_page_and_picture_are_those_of_the_measurements(self):
        data = json.loads(read(performance_page.DATA))
        for path, text in performance_page.texts(data).items():
            self.assertEqual(read(path), text, "run tests/benchmarks/performance_page.py")


class Features(unittest.TestCase):
    def test_the_page_is_up_to_date(self):
        rows = json.loads(read(feature_table.DATA))
        self.assertEqual(feature_table.problems(ROOT, rows), [])
        self.assertEqual(read(feature_table.PAGE), feature_table.page(rows), "run bazel/feature_table.py")

    def test_a_false_claim_is_noticed(self):
        with tempfile.TemporaryDirectory() as scratch:
            root = pathlib.Path(scratch)
            (root / "a").mkdir()
            (root / "a/BUILD.bazel").write_text(
                'cc_test(name = "x_test", srcs = ["x_test.cc"])\ncc_library(name = "x")\n'
                'sh_test(name = "y_test", srcs = ["y.py"])\n', encoding="utf-8")
            (root / "a/x_test.cc").write_text(
                "TEST(Suite, One) {}\nTEST_P(Suite, Two) {}\n// TEST(Suite, Three)\n", encoding="utf-8")
            (root / "page.md").write_text("# The page\n```\n# in code\n```\n## A `b` (c)\n", encoding="utf-8")
            good = {"row": 1, "part": "core", "feature": "f", "state": "done",
                    "tests": ["//a:x_test Suite.Two", "//a:y_test"], "benchmark": "//a:x", "doc": "page.md#a-b-c"}
            cases = [
                ({}, None),
                ({"tests": ["//a:x_test Suite.Three"]}, "//a:x_test has no test 'Suite.Three'"),
                ({"tests": ["//a:x_test"]}, "//a:x_test has no test ''"),
                ({"tests": ["//a:x Suite.One"]}, "there is no test target //a:x"),
                ({"tests": ["//b:x_test Suite.One"]}, "there is no test target //b:x_test"),
                ({"tests": []}, "is done, but names no test or no doc"),
                ({"doc": ""}, "is done, but names no test or no doc"),
                ({"doc": "page.md#in-code"}, "page.md has no heading #in-code"),
                ({"doc": "other.md#a"}, "there is no page other.md"),
                ({"benchmark": "//a:z"}, "there is no target //a:z"),
                ({"state": "soon", "tests": [], "benchmark": None},
                 "state 'soon', expected one of done, part, planned, left out"),
                ({"state": "part"}, "is part, but has no note that says why"),
                ({"state": "planned"}, "is planned, but names tests or a benchmark"),
                ({"tset": []}, "unknown keys ['tset']"),
                ({"row": 2}, "rows are numbered [2], expected 1, 2, 3, ..."),
                ({"row": 65, "part": "older"}, None),
            ]
            for change, want in cases:
                with self.subTest(change=change):
                    problems = feature_table.problems(root, [{**good, **change}])
                    short = [re.sub("^docs/features.json: (row 1: )?", "", problem) for problem in problems]
                    self.assertEqual(short, [want] if want else [])


class JsonReports(unittest.TestCase):
    def test_the_page_is_up_to_date(self):
        schema = json.loads(read(json_page.DATA))
        self.assertEqual(json_page.problems(schema), [])
        self.assertEqual(read(json_page.PAGE), json_page.page(schema), "run bazel/json_page.py")

    def test_what_is_missing_is_noticed(self):
        field = {"type": "integer", "description": "N.", "unit": "bytes"}

        def problems(inner, **change):
            report = {"type": "object", "description": "R.", "properties": {
                "a": {"type": ["array", "null"], "description": "A.", "items": {"type": "object", "properties": {"bytes": inner}}}}}
            return json_page.problems({"$defs": {"r": {**report, **change}}})
        self.assertEqual(problems(field), [])
        self.assertEqual(problems(field, description=""), [f"{json_page.DATA}: r has no description"])
        self.assertEqual(problems({**field, "description": ""}), [f"{json_page.DATA}: r: a[].bytes has no description"])
        self.assertEqual(problems({"type": "integer", "description": "N."}), [f"{json_page.DATA}: r: a[].bytes has no unit"])


class ApiPage(unittest.TestCase):
    def test_is_current(self):
        self.assertEqual(read(api_page.PAGE), api_page.page(ROOT), "run bazel/api_page.py")

    def test_names(self):
        text = """
// Returns `x`, or so. More.
#define AQT_IF(x) x
#define AQT_IF_IMPL_(x) x

namespace aqt {

// Rounds e.g. to even.
enum class Mode { kA };
class Later;
// What it
// is: a plan.
struct Plan : Base {
  int Member();
};
Plan MakePlan(int a);
bool IsPlan(const Plan& plan);  // never fails
template <class T>
absl::StatusOr<std::vector<T>> Read(int n);
Plan Plan::Member() { return {}; }

namespace internal {
int Hidden();
}  // namespace internal

namespace nn {
using Names = std::vector<std::string>;
inline constexpr int kMany = 3;
}  // namespace nn
}  // namespace aqt
"""
        self.assertEqual(api_page.names(text), [
            ("AQT_IF", "Returns `x`, or so"), ("Mode", "Rounds e.g. to even"), ("Plan", "What it is: a plan"), ("MakePlan", ""),
            ("IsPlan", "never fails"), ("Read", ""), ("nn::Names", ""), ("nn::kMany", "")])

    def test_each_name_has_a_sentence(self):
        self.assertEqual(api_page.silent_names(ROOT), [])

    def test_names_without_a_sentence_are_found(self):
        with tempfile.TemporaryDirectory() as scratch:
            root = pathlib.Path(scratch)
            (root / "aqt").mkdir()
            (root / "aqt/aqt.h").write_text('#include "aqt/a.h"\n', encoding="utf-8")
            (root / "aqt/a.h").write_text("namespace aqt {\n// Said.\nint A();\nint B();\n}  // namespace aqt\n", encoding="utf-8")
            self.assertEqual(api_page.silent_names(root), ["aqt/a.h: B"])


class Architecture(unittest.TestCase):
    def test_the_pictures_are_up_to_date(self):
        targets = build_files.read_tree(ROOT)
        for path in room_picture.PAGES:
            page = read(path)
            self.assertEqual(page, room_picture.page(page, path, targets), "run bazel/room_picture.py")

    def test_every_room_exists(self):
        packages = {target.package for target in build_files.read_tree(ROOT).values()}
        self.assertEqual(set(rooms.ROOMS) - packages, set())

    def test_a_picture(self):
        def library(label, *deps, testonly=False, rule="cc_library"):
            return label, build_files.Target(label, rule, deps, (), (), testonly)
        targets = dict([
            library("//aqt/core:a"), library("//aqt/io:a", "//aqt/core:a", "@other//:x"),
            library("//aqt/quant/config:a", "//aqt/core:a"), library("//aqt/quant/config:b", "//aqt/quant/config:a"),
            library("//aqt/quant/text:a", "//aqt/quant/config:b", "//aqt/core:a"),
            library("//aqt/quant/text:t", "//aqt/io:a", testonly=True),
            library("//aqt/quant/text:a_test", "//aqt/io:a", rule="cc_test"),
            library("//aqt/testing:a", "//aqt/io:a", testonly=True), library("//tests/e2e:a", "//aqt/io:a"),
            library("//aqt/quant:a", rule="alias")])
        self.assertEqual(room_picture.picture(targets), """```mermaid
flowchart TB
  aqt_core["<b>aqt/core</b>"]
  aqt_io["<b>aqt/io</b>"]
  aqt_quant["<b>aqt/quant</b><br>config · text"]
  aqt_testing["<b>aqt/testing</b>"]
  aqt_io --> aqt_core
  aqt_quant --> aqt_core
  aqt_testing -.-> aqt_io
```
""")
        targets.update([library("//aqt/core:b", "//aqt/quant/text:a")])
        with self.assertRaisesRegex(ValueError, "a circle: .*aqt/core"):
            room_picture.picture(targets)


class DifferencesFromAqt(unittest.TestCase):
    """Each field of Compat has a line in a table, and a name by which Original() or Qwix() sets it."""

    def fields(self):
        struct = re.search(r"^struct Compat \{\n(.*?)^\};", read("aqt/quant/config/semantics.h"), re.M | re.S)[1]
        fields = re.findall(r"^  bool (\w+) = false;", struct, re.M)
        initialized = re.findall(r" = (?!default)", struct)
        self.assertEqual(len(fields), len(initialized), "fields of Compat are bools that are false by default")
        self.assertGreater(len(fields), 0)
        return fields

    def test_table(self):
        pages = read("docs/differences-from-aqt.md") + read("docs/coming-from-aqt-or-qwix.md")
        rows = re.findall(r"^\| .* \| `(\w+)` \|$", pages, re.M)
        self.assertEqual(sorted(rows), sorted(self.fields()))

    def test_original_sets_all(self):
        # Original() and Qwix() set the fields of this table. The table must have every field.
        table = re.search(r"kCompatFields\[\] = \{(.*?)\n\};", read("aqt/quant/config/semantics.cc"), re.M | re.S)[1]
        self.assertEqual(re.findall(r'\{"(\w+)", &Compat::\1[,}]', table), self.fields())


if __name__ == "__main__":
    unittest.main()
