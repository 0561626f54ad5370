#!/usr/bin/env python3
"""Every header of aqt/ and serving/ compiles on its own and is guarded by its path.

x.h is compiled on its own if some x.cc of its library includes it first. The libraries where no .cc does so are listed in
BUILD.bazel here, which generates one source file per header for them. -inl.h is a part of the header that includes it.
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
        if target.rule in ("cc_library", "bits_library") and not target.testonly and target.package.startswith(("aqt/", "serving")) and headers:
            yield target, headers


class Headers(unittest.TestCase):
    def test_each_compiles_alone(self):
        listed = {target.name for target in build_files.read_tree(ROOT).values() if target.rule == "headers_compile_alone"}
        needed = {}
        for target, headers in libraries():
            first = {first_include(source) for source in target.srcs if source.endswith(".cc")}
            if any(build_files.file_of(header) not in first for header in headers):
                needed[target.label[2:].replace("/", "_").replace(":", "_")] = target.label
        self.assertEqual([label for name, label in sorted(needed.items()) if name not in listed], [],
                         "include x.h first in x.cc, or add these to LIBRARIES in tests/repo/headers/BUILD.bazel")
        self.assertIn("aqt_core_executor", needed)

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
