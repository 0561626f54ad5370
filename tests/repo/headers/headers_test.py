#!/usr/bin/env python3
"""Every header of aqt/ and serving/ compiles on its own and is guarded by its path.

x.h compiles on its own if some x.cc of its library includes it first. The others are listed in BUILD.bazel here, which
generates a source file for each. -inl.h is a part of the header that includes it.
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.insert(0, str(ROOT / "bazel"))
import build_files  # noqa: E402


def text_of(label):
    return (ROOT / build_files.file_of(label)).read_text(encoding="utf-8")


def first_include(label):
    match = build_files.INCLUDE.search(text_of(label))
    return match and match.group(1)


def libraries():
    """The libraries with their headers, as labels, that a generated file may include."""
    for target in build_files.read_tree(ROOT).values():
        headers = [label for label in target.hdrs if label.endswith(".h") and not label.endswith("-inl.h")]
        if target.rule in ("cc_library", "bits_library") and not target.testonly and headers and (
                target.package == "" or target.package.startswith(("aqt/", "serving"))):
            yield target, headers


def listed():
    """HEADERS of BUILD.bazel."""
    names = {"load": lambda *_: None, "COPTS": [], "headers_compile_alone": lambda **_: None, "sh_test": lambda **_: None}
    exec((ROOT / "tests/repo/headers/BUILD.bazel").read_text(encoding="utf-8"), names)  # pylint: disable=exec-used
    return names["HEADERS"]


class Headers(unittest.TestCase):
    def test_each_compiles_alone(self):
        needed = {}
        for target, headers in libraries():
            first = {first_include(source) for source in target.srcs if source.endswith(".cc")}
            alone = sorted(path for path in map(build_files.file_of, headers) if path not in first)
            if alone:
                needed[target.label] = alone
        self.assertEqual(listed(), needed, "include x.h first in x.cc, or list it in HEADERS in tests/repo/headers/BUILD.bazel")
        self.assertIn("aqt/core/executor.h", needed["//aqt/core:executor"])

    def test_guards(self):
        for target, headers in libraries():
            for header in headers:
                path = build_files.file_of(header)
                guard = re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"
                with self.subTest(header=path):
                    self.assertRegex(text_of(header), rf"\A#ifndef (AQT_)?{guard}\n#define (AQT_)?{guard}\n", f"want the guard {guard} first")
                    self.assertRegex(text_of(header), rf"\n#endif  // (AQT_)?{guard}\n\Z", f"want the last line #endif  // {guard}")


if __name__ == "__main__":
    unittest.main()
