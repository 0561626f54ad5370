#!/usr/bin/env python3
"""The tree is formatted and has no long functions. Trees with such errors are detected."""
import contextlib
import io
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import format as gate  # noqa: E402
import long_functions  # noqa: E402

LONG = "// " + "x" * 118  # 121 columns


class RealTree(unittest.TestCase):
    def test_is_formatted(self):
        found = gate.problems(gate.ROOT)
        self.assertEqual(found, [], f"\nfix them with:  {gate.FIX}\n" + "\n".join(found))

    def test_functions_are_short(self):
        self.assertEqual(long_functions.problems(gate.ROOT, gate.files(gate.ROOT)), [])

    def test_was_read(self):
        names = gate.files(gate.ROOT)
        for name in ("aqt/core/dtype.h", "aqt/core/dtype.cc", "configs/quant.proto", "tests/e2e/wytiwys_test.cc"):
            self.assertIn(name, names)
        self.assertGreater(len(names), 400)


class OtherTrees(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        shutil.copy(gate.ROOT / ".clang-format", self.root)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def test_unformatted_files_are_named(self):
        self.write("a/bad.cc", "int a;\nint  b;\nint  c;\n")
        self.write("a/good.cc", "int a;\n")
        self.write("b.h", "void F( );\n")
        self.write("c.proto", 'syntax="proto3";\n')
        self.assertEqual(sorted(gate.problems(self.root)),
                         ["a/bad.cc:2: is not formatted", "b.h:1: is not formatted", "c.proto:1: is not formatted"])

    def test_the_command_mends_what_it_can(self):
        self.write("a.cc", "int  a;\n")
        self.write("b.cc", LONG + "\n")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            self.assertEqual(gate.main([str(self.root)]), 1)
        self.assertIn("a.cc:1: is not formatted", said.getvalue())
        self.assertIn(f"fix them with:  {gate.FIX}", said.getvalue())
        with contextlib.redirect_stdout(said):
            self.assertEqual(gate.main(["--fix", str(self.root)]), 1)
        self.assertEqual((self.root / "a.cc").read_text(encoding="utf-8"), "int a;\n")
        self.assertEqual(gate.problems(self.root), ["b.cc:1: has 121 columns, at most 120 are allowed"])

    def test_long_lines(self):
        ok = LONG[:-1]
        for text, lines in [
                (f"{ok}\n{LONG}\n", [2]),
                (f"// clang-format off\n{LONG}\n// clang-format on\n{LONG}\n", [4]),
                (f"// clang-format off\n{LONG}\n", []),
                (f"/* // clang-format off */\n{LONG}\n", [2]),
                (f'const char* a = R"(\n{LONG}\n)";\n{LONG}\n', [4]),
                (f'const char* a = R"x(\n)"\n{LONG}\n)x";\n', []),
                (f'// R"(\n{LONG}\n// )"\n', [2]),
                (f'const char a = \'"\';\nconst int b = 1\'0;\nconst char* c = "\\"// clang-format off";\n{LONG}\n', [4]),
        ]:
            with self.subTest(text=text):
                self.write("a.cc", text)
                self.assertEqual(gate.long_lines(self.root, ["a.cc"]),
                                 [f"a.cc:{line}: has 121 columns, at most 120 are allowed" for line in lines])

    def test_links_and_hidden_folders_are_left_out(self):
        self.write("real/a.cc", "int  a;\n")
        self.write(".hidden/b.cc", "int  b;\n")
        (self.root / "bazel-out").symlink_to(self.root / "real")
        self.assertEqual(gate.files(self.root), ["real/a.cc"])

    def test_a_missing_program_fails(self):
        which = shutil.which
        self.addCleanup(setattr, shutil, "which", which)
        shutil.which = lambda name: None
        self.assertEqual(gate.unformatted(self.root, []),
                         ["clang-format 14 is missing: install the package clang-format-14"])

    def test_another_version_is_not_taken(self):
        self.write("clang-format-14", "#!/bin/sh\necho Debian clang-format version 15.0.6\n")
        self.write("clang-format", "#!/bin/sh\necho Debian clang-format version 14.0.6\n")
        which = shutil.which
        self.addCleanup(setattr, shutil, "which", which)
        for name in ("clang-format-14", "clang-format"):
            (self.root / name).chmod(0o755)
        shutil.which = lambda name: str(self.root / name)
        self.assertEqual(gate.clang_format(), str(self.root / "clang-format"))

    def test_a_failing_program_fails(self):
        self.write(".clang-format", "no such style\n")
        self.write("a.cc", "int a;\n")
        self.assertRegex(gate.unformatted(self.root, ["a.cc"])[0], "clang-format failed: ")

    def test_long_functions_are_named(self):
        self.write("a.cc", "int a;\n\nvoid F() {\n" + "  G();\n" * 79 + "}\n")
        self.write("b.cc", "void F() {\n" + "  G();\n" * 78 + "}\n")
        self.write("aqt/kernels/gemm/isa/amx.cc", "void F() {\n" + "  G();\n" * 99 + "}\n")
        self.assertEqual(long_functions.problems(self.root, gate.files(self.root)),
                         ["a.cc:3: the function has 81 lines, at most 80 are allowed"])


class Functions(unittest.TestCase):
    def test_each_is_found_from_its_first_line_to_its_last(self):
        text = """#include <x>
namespace a {
constexpr int kTable[] = {
    F(1),
};
struct S : T {
  S() : a{1}, b{2} {
    Run([] {
      F();
    });
  }
  // void NotOne() {
  template <class T>
  std::enable_if_t<B<T>, int> F(struct stat* s) const {
    return R"({ ( )";
  }
  int member = F({1, 2});
};
int declared(int);
TEST(Suite, Name) {
#define X {
  for (;;) {
  }
}
enum class E { kA };
auto G(int x = 3) -> int { return '{'; }
}  // namespace a
"""
        self.assertEqual(long_functions.functions(text), [(7, 5), (13, 4), (20, 5), (26, 1)])


if __name__ == "__main__":
    unittest.main()
