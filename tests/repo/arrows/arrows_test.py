#!/usr/bin/env python3
"""The tree has only allowed arrows and names its dependencies. Errors in other trees are detected."""
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import arrows  # noqa: E402
import build_files  # noqa: E402
import check_deps  # noqa: E402
import rooms  # noqa: E402


class Tree:
    """A small source tree: {path: text}."""

    def __init__(self, test, files):
        scratch = tempfile.TemporaryDirectory()
        test.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text, encoding="utf-8")


def library(name, deps=(), extra=""):
    return f'cc_library(name = "{name}", srcs = ["{name}.cc"], hdrs = ["{name}.h"], deps = {list(deps)!r}, {extra})\n'


class RealTree(unittest.TestCase):
    def test_arrows(self):
        self.assertEqual(arrows.problems(arrows.ROOT), [])

    def test_dependencies(self):
        self.assertEqual(check_deps.problems(arrows.ROOT), [])
        self.assertEqual(check_deps.unused(arrows.ROOT), [])

    def test_the_tree_was_read(self):
        targets = build_files.read_tree(arrows.ROOT)
        self.assertIn("//aqt/core:dtype", targets["//aqt/core:array"].deps)
        self.assertIn("@com_google_absl//absl/types:span", targets["//aqt/core:array"].deps)
        self.assertIn(("aqt/core/array.cc", "aqt/core/array.h"), build_files.includes(arrows.ROOT, targets["//aqt/core:array"]))
        packages = {target.package for target in targets.values()}
        on_disk = {path.parent.relative_to(arrows.ROOT).as_posix() for path in arrows.ROOT.glob("aqt/*/BUILD.bazel")}
        self.assertGreaterEqual(packages, on_disk)
        self.assertGreater(len(on_disk), 1)


class Arrows(unittest.TestCase):
    def problems(self, files):
        return arrows.problems(Tree(self, files).root)

    def test_a_wrong_dependency(self):
        for package, dep in [("aqt/quant/text", "//aqt/graph:x"), ("aqt/graph", "//aqt/quant:x"), ("aqt/core", "//aqt/io:x"),
                             ("aqt/transforms", "//aqt/runtime:x"), ("aqt/io", "//aqt/quant"), ("aqt/nn/layers", "//serving:x"),
                             ("aqt/quant/text", "//aqt/testing:x"), ("aqt/quant/text", "//configs:x"), ("aqt/nn/train", "//tests/e2e:x"),
                             ("serving", "//examples/digits:x"), ("configs", "//aqt/core:x")]:
            with self.subTest(package=package, dep=dep):
                label = build_files.absolute(dep, package)
                self.assertEqual(self.problems({f"{package}/BUILD.bazel": library("a", [dep])}), [f"//{package}:a: may not depend on {label}"])

    def test_a_right_dependency(self):
        for package, dep in [("aqt/quant/numerics", "//aqt/kernels:x"), ("aqt/transforms", "//aqt/core:x"), ("aqt/graph", ":x"), ("tests/e2e", "//serving:x"),
                             ("examples/digits", "//aqt/nn/layers:x"), ("serving", "//configs:x"), ("aqt/nn/train", "//aqt/runtime/memory:x"), ("aqt/core", "//aqt/core:x")]:
            with self.subTest(package=package, dep=dep):
                self.assertEqual(self.problems({f"{package}/BUILD.bazel": library("a", [dep])}), [])

    def test_outside_libraries(self):
        for package, dep in [("aqt/quant", "@highway//:hwy"), ("aqt/nn/train", "@eigen//:eigen"), ("aqt/graph", "@com_google_protobuf//:protobuf"),
                             ("aqt/io", "@cli11"), ("serving/convert", "@cli11"), ("aqt/core", "@com_google_googletest//:gtest"), ("aqt/core", "@boost//:boost"), ("serving/http", "@other//:any")]:
            with self.subTest(package=package, dep=dep):
                self.assertEqual(self.problems({f"{package}/BUILD.bazel": library("a", [dep])}),
                                 [f"//{package}:a: may not depend on {build_files.absolute(dep, package)}"])
        for package, dep in [("aqt/kernels", "@highway//:hwy"), ("aqt/kernels/gemm", "@highway//:hwy"), ("aqt/quant", "@com_google_absl//absl/status"), ("serving/cli", "@cli11")]:
            with self.subTest(package=package, dep=dep):
                self.assertEqual(self.problems({f"{package}/BUILD.bazel": library("a", [dep])}), [])

    def test_tests_may_use_more(self):
        deps = ["@eigen", "@com_google_googletest//:gtest_main", "//aqt/testing:x"]
        for target in [f'cc_test(name = "a", srcs = [], deps = {deps!r})', library("a", deps, "testonly = True"),
                       "package(default_testonly = True)\n" + library("a", deps)]:
            self.assertEqual(self.problems({"aqt/quant/BUILD.bazel": target}), [])
        self.assertEqual(len(self.problems({"aqt/quant/BUILD.bazel": 'cc_test(name = "a", deps = ["//aqt/graph:x", "@highway//:hwy"])'})), 2)

    def test_only_proto_targets_see_protobuf(self):
        deps = ["@com_google_protobuf//:protobuf", "//configs:quant_cc_proto"]
        self.assertEqual(self.problems({"aqt/quant/BUILD.bazel": library("config_proto", deps)}), [])
        self.assertEqual(len(self.problems({"aqt/quant/BUILD.bazel": library("config", deps)})), 2)

    def test_an_include_counts_too(self):
        for header in ["aqt/graph/x.h", "hwy/highway.h", "Eigen/Core", "google/protobuf/message.h", "configs/quant.pb.h", "tests/e2e/x.h"]:
            with self.subTest(header=header):
                self.assertEqual(self.problems({"aqt/quant/BUILD.bazel": library("a"), "aqt/quant/a.cc": f'#include "{header}"\n'}),
                                 [f"//aqt/quant:a: aqt/quant/a.cc may not include {header}"])
        good = '#include <vector>\n#include "a.h"\n#include "sys/stat.h"\n#include "aqt/core/x.h"\n'
        self.assertEqual(self.problems({"aqt/quant/text/BUILD.bazel": library("a"), "aqt/quant/text/a.cc": good}), [])

    def test_headers_show_no_library(self):
        build = {"aqt/kernels/BUILD.bazel": library("a")}
        self.assertEqual(self.problems({**build, "aqt/kernels/a.cc": "#include <Eigen/Core>\n"}), [])
        self.assertRegex(self.problems({**build, "aqt/kernels/a.h": "#include <Eigen/Core>\n"})[0], "kernels/a.h may not include Eigen/Core")
        self.assertRegex(self.problems({**build, "aqt/kernels/a.h": '#include "absl/strings/str_format.h"\n'})[0], "from Abseil only")
        self.assertEqual(self.problems({**build, "aqt/kernels/a.h": '#include "absl/types/span.h"\n'}), [])
        serving = {"serving/formats/BUILD.bazel": library("a"), "serving/formats/a.h": '#include "nlohmann/json.hpp"\n'}
        self.assertRegex(self.problems(serving)[0], "a header may include no library except Abseil")

    def test_a_select_hides_nothing(self):
        build = 'cc_library(name = "a", deps = [":b"] + select({"//bazel:x": ["//aqt/graph:x"], "//conditions:default": []}))'
        self.assertEqual(self.problems({"aqt/quant/BUILD.bazel": build}), ["//aqt/quant:a: may not depend on //aqt/graph:x"])

    def test_a_macro_hides_nothing(self):
        build = 'load("//bazel:m.bzl", "my_library")\n[my_library(name = n, deps = ["//aqt/graph:x"]) for n in ["a", "b"]]'
        self.assertEqual(len(self.problems({"aqt/quant/BUILD.bazel": build})), 2)

    def test_rooms(self):
        """All pairs of rooms of two houses: pairs outside these lists are refused."""
        quant = {"config": "", "numerics": "config", "weights": "config numerics", "tensor": "config numerics",
                 "text": "config numerics tensor", "contraction": "config numerics tensor",
                 "reference": "config numerics tensor contraction"}
        convert = "tools formats families plan convert"
        http = "tools engine http/wire http/models http/api http"
        checkpoints = f"{convert} compare gguf cli/flags cli/checkpoints"
        programs = f"{convert} engine cli/flags cli/programs"
        serving = {"tools": "", "formats": "tools", "families": "tools formats", "plan": "tools formats families",
                   "convert": "tools formats families plan", "compare": convert, "gguf": convert,
                   "engine": "tools", "http/wire": "", "http/models": "tools http/wire", "http/api": "tools http/wire http/models",
                   "http": http, "grpc": http,
                   "cli/flags": convert, "cli/help": f"{convert} cli/flags", "cli/checkpoints": checkpoints, "cli/programs": programs,
                   "cli/models": f"{programs} {http} grpc",
                   "cli": f"{checkpoints} {programs} {http} grpc cli/help cli/models",
                   "c": f"{checkpoints} {programs}",
                   "python": f"{checkpoints} {programs} {http} grpc cli/help cli/models cli c"}
        for house, order in [("aqt/quant", quant), ("serving", serving)]:
            self.assertEqual(sorted(arrows.rooms_in(house)), sorted(f"{house}/{room}" for room in order))
            for room, below in order.items():
                for other in order:
                    with self.subTest(house=house, room=room, other=other):
                        package, dep = f"{house}/{room}", f"//{house}/{other}:x"
                        found = self.problems({f"{package}/BUILD.bazel": library("a", [dep]),
                                               f"{package}/a.h": f'#include "{house}/{other}/x.h"\n'})
                        want = [f"//{package}:a: may not depend on {dep}",
                                f"//{package}:a: {package}/a.h may not include {house}/{other}/x.h"]
                        self.assertEqual(found, [] if other in (room, *below.split()) else want)

    def test_a_house_stands_for_its_rooms(self):
        for package in ["aqt/ops", "serving/cli", "examples/digits"]:
            for room in ["config", "text", "contraction"]:
                with self.subTest(package=package, room=room):
                    self.assertEqual(self.problems({f"{package}/BUILD.bazel": library("a", [f"//aqt/quant/{room}:x"])}), [])
        for package, dep in [("aqt/graph", "//aqt/quant/config:x"), ("aqt/quant/config", "//aqt/graph:x"),
                             ("aqt/nn/layers", "//serving/formats:x"), ("serving/convert", "//aqt/quant/contraction:x"),
                             ("serving/formats", "//aqt/graph:x"), ("aqt/quant/tensor", "@highway//:hwy")]:
            with self.subTest(package=package, dep=dep):
                self.assertEqual(self.problems({f"{package}/BUILD.bazel": library("a", [dep])}),
                                 [f"//{package}:a: may not depend on {dep}"])

    def test_what_only_tests_use(self):
        for package in ["aqt/quant/contraction", "aqt/ops", "aqt/quant", "serving/cli"]:
            for dep in ["//aqt/quant/reference:x", "//aqt/testing:x"]:
                with self.subTest(package=package, dep=dep):
                    build = f"{package}/BUILD.bazel"
                    self.assertEqual(self.problems({build: library("a", [dep])}), [f"//{package}:a: may not depend on {dep}"])
                    self.assertEqual(self.problems({build: library("a", [dep], "testonly = True")}), [])

    def test_a_test_sees_its_own_house(self):
        target = 'cc_test(name = "a", deps = ["//aqt/quant/text:x", "//aqt/quant/contraction:x"])'
        self.assertEqual(self.problems({"aqt/quant/config/BUILD.bazel": target}), [])
        self.assertEqual(len(self.problems({"aqt/graph/BUILD.bazel": target})), 2)

    def test_within_a_house_its_name_is_only_the_folder(self):
        """A room may use its house's own folder without the other rooms; a house of another name means all its rooms."""
        deps = ["//aqt/graph:x", "//aqt/graph/draw:x"]
        self.assertEqual(self.problems({"aqt/graph/interpret/BUILD.bazel": library("a", deps)}),
                         ["//aqt/graph/interpret:a: may not depend on //aqt/graph/draw:x"])
        self.assertEqual(self.problems({"aqt/ops/BUILD.bazel": library("a", deps)}), [])

    def test_a_circle_is_refused(self):
        with unittest.mock.patch.dict(arrows.ROOMS, {"aqt/core": rooms.Room("", ("aqt/io",))}):
            with self.assertRaisesRegex(ValueError, "a circle: aqt/(core|io) -> "):
                rooms.may_use("aqt/io")

    def test_an_unknown_room(self):
        found = self.problems({"aqt/quant/utils/BUILD.bazel": library("a")})
        self.assertEqual(found, ["//aqt/quant/utils:a: add aqt/quant/utils to bazel/rooms.py"])
        self.assertEqual(self.problems({"aqt/quant/config/testdata/BUILD.bazel": library("a", ["//aqt/quant/config:x"])}), [])
        self.assertEqual(len(self.problems({"aqt/nn/layers/BUILD.bazel": library("a", ["//aqt/quant/utils:x"])})), 1)

    def test_an_unknown_folder(self):
        self.assertRegex(self.problems({"aqt/utils/BUILD.bazel": library("a")})[0], "add aqt/utils to bazel/rooms.py")

    def test_ignored_folders(self):
        files = {".bazelignore": "tests/consumer\n", "tests/consumer/BUILD.bazel": library("a", ["@boost//:any"])}
        self.assertEqual(self.problems(files), [])


class CheckDeps(unittest.TestCase):
    def problems(self, source, deps, extra=None):
        files = {"aqt/io/BUILD.bazel": library("a", deps), "aqt/io/a.cc": source, **(extra or {})}
        return check_deps.problems(Tree(self, files).root)

    def test_outside_headers(self):
        for header, label in [("absl/strings/str_cat.h", "@com_google_absl//absl/strings:strings"),
                              ("absl/strings/str_format.h", "@com_google_absl//absl/strings:str_format"),
                              ("absl/types/span.h", "@com_google_absl//absl/types:span"),
                              ("absl/container/btree_map.h", "@com_google_absl//absl/container:btree"),
                              ("absl/time/clock.h", "@com_google_absl//absl/time:time"),
                              ("nlohmann/json.hpp", "@nlohmann_json//:json"), ("re2/re2.h", "@com_googlesource_code_re2//:re2"),
                              ("CLI/CLI.hpp", "@cli11//:cli11"), ("boost/asio/post.hpp", "@boost//:boost"), ("gmock/gmock.h", "@com_google_googletest//:gtest"),
                              ("hwy/contrib/math/math-inl.h", "@highway//:contrib"), ("Eigen/Core", "@eigen//:eigen")]:
            with self.subTest(header=header):
                source = f"  # include <{header}>\n"
                self.assertEqual(self.problems(source, []), [f"//aqt/io:a: aqt/io/a.cc includes {header}; add {label}"])
                self.assertEqual(self.problems(source, [label]), [])
        self.assertEqual(self.problems('#include "gtest/gtest.h"\n', ["@com_google_googletest//:gtest_main"]), [])
        self.assertEqual(self.problems("#include <vector>\n#include <sys/stat.h>\n", []), [])

    def test_project_headers(self):
        core = {"aqt/core/BUILD.bazel": library("x") + library("y"), "aqt/core/x.h": "", "aqt/core/y.h": ""}
        source = '#include "aqt/core/x.h"\n#include "aqt/io/a.h"\n'
        self.assertEqual(self.problems(source, ["//aqt/core:y"], core), ["//aqt/io:a: aqt/io/a.cc includes aqt/core/x.h; add //aqt/core:x"])
        self.assertEqual(self.problems(source, ["//aqt/core:x"], core), [])

    def test_generated_headers(self):
        configs = {"configs/BUILD.bazel": 'proto_library(name = "q_proto", srcs = ["q.proto"])\n'
                                          'cc_proto_library(name = "q_cc_proto", deps = [":q_proto"])\n'}
        source = '#include "configs/q.pb.h"\n'
        self.assertEqual(self.problems(source, [], configs), ["//aqt/io:a: aqt/io/a.cc includes configs/q.pb.h; add //configs:q_cc_proto"])
        self.assertEqual(self.problems(source, ["//configs:q_cc_proto"], configs), [])

    def test_unused(self):
        core = {"aqt/core/BUILD.bazel": library("x") + library("y"), "aqt/core/x.h": "", "aqt/core/y.h": "", "aqt/io/a.h": ""}
        def unused(source, deps, extra):
            files = {"aqt/io/BUILD.bazel": library("a", deps), "aqt/io/a.cc": source, **extra}
            return check_deps.unused(Tree(self, files).root)
        absl = "@com_google_absl//absl/types:span"
        source = '#include "aqt/core/x.h"\n'
        self.assertEqual(unused(source, ["//aqt/core:x", "//aqt/core:y", absl], core),
                         ["//aqt/io:a: no source includes a header of //aqt/core:y; remove it",
                          f"//aqt/io:a: no source includes a header of {absl}; remove it"])
        self.assertEqual(unused(source + '#include "absl/types/span.h"\n', ["//aqt/core:x", absl, "@zlib"], core), [])
        del core["aqt/io/a.h"]  # made by a rule: nobody knows what it includes
        self.assertEqual(unused(source, ["//aqt/core:x", "//aqt/core:y"], core), [])


if __name__ == "__main__":
    unittest.main()
