#!/usr/bin/env python3
"""Which folder may use which, and which of them may use which outside library.

usage: tests/arrows/arrows.py [ROOT]   (default: the tree that this file is in)

Both the dependencies in BUILD files and the #include lines count. The picture that this keeps:

  examples, serving -> nn -> transforms -> ops -> quant -> kernels -> core
                             transforms, ops -> graph -> kernels;  runtime -> graph, ops;  io -> core;  nn, serving -> io
                             ops -> collective -> core

Some folders are houses with rooms: folders below them, each with a line of its own in LAYERS.

  aqt/quant:  contraction -> tensor -> numerics -> config;  text -> tensor;  weights -> numerics;  reference -> contraction
  serving:    cli -> convert -> formats -> tools
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bazel"))
import build_files  # noqa: E402  pylint: disable=wrong-import-position
import check_deps  # noqa: E402  pylint: disable=wrong-import-position

# folder -> the folders that it may use, besides itself. All that lies below an arrow is written out: a longer way round is
# no reason to refuse a shorter one. A house stands for all its rooms, except those in TESTONLY. A folder of a house that has
# rooms must be one of them, or be below one.
LAYERS = {
    "aqt/core": "",
    "aqt/io": "aqt/core",
    "aqt/collective": "aqt/core",
    "aqt/kernels": "aqt/core",
    "aqt/quant": "aqt/core aqt/kernels",  # only the names that are documented, as aliases
    "aqt/quant/config": "aqt/core aqt/kernels",
    "aqt/quant/numerics": "aqt/core aqt/kernels aqt/quant/config",
    "aqt/quant/weights": "aqt/core aqt/kernels aqt/quant/config aqt/quant/numerics",
    "aqt/quant/tensor": "aqt/core aqt/kernels aqt/quant/config aqt/quant/numerics",
    "aqt/quant/text": "aqt/core aqt/kernels aqt/quant/config aqt/quant/numerics aqt/quant/tensor",
    "aqt/quant/contraction": "aqt/core aqt/kernels aqt/quant/config aqt/quant/numerics aqt/quant/tensor",
    "aqt/quant/reference":
        "aqt/core aqt/kernels aqt/quant/config aqt/quant/numerics aqt/quant/tensor aqt/quant/contraction",
    "aqt/graph": "aqt/core aqt/kernels",
    "aqt/ops": "aqt/core aqt/collective aqt/kernels aqt/quant aqt/graph",
    "aqt/transforms": "aqt/core aqt/collective aqt/kernels aqt/quant aqt/graph aqt/ops",
    "aqt/runtime": "aqt/core aqt/collective aqt/kernels aqt/quant aqt/graph aqt/ops",
    "aqt/nn": "aqt/core aqt/collective aqt/kernels aqt/quant aqt/graph aqt/ops aqt/transforms aqt/runtime aqt/io",
    "aqt/testing": "aqt/core aqt/collective aqt/kernels aqt/quant aqt/graph aqt/ops aqt/transforms aqt/runtime aqt/io",
    "configs": "",
    "serving": "aqt/core aqt/collective aqt/kernels aqt/quant aqt/graph aqt/ops aqt/transforms aqt/runtime aqt/nn aqt/io "
               "configs",
    "serving/tools": "aqt/core aqt/io",
    "serving/formats":
        "aqt/core aqt/kernels aqt/io aqt/quant/config aqt/quant/numerics aqt/quant/weights serving/tools",
    "serving/families": "aqt/core aqt/kernels aqt/io aqt/quant/config aqt/quant/numerics aqt/quant/weights configs "
                        "serving/tools serving/formats",
    "serving/convert": "aqt/core aqt/kernels aqt/io aqt/quant/config aqt/quant/numerics aqt/quant/weights configs "
                       "serving/tools serving/formats serving/families",
    "serving/cli": "aqt/core aqt/collective aqt/kernels aqt/quant aqt/graph aqt/ops aqt/transforms aqt/runtime aqt/nn aqt/io configs "
                   "serving/tools serving/formats serving/families serving/convert",
    "examples": "aqt/core aqt/collective aqt/kernels aqt/quant aqt/graph aqt/ops aqt/transforms aqt/runtime aqt/nn aqt/io "
                "configs serving",
    "tests": "*",
    "bazel": "",
    "": "*",  # the top package names public targets
}

# Only tests use these, whatever LAYERS says. A test may also use every room of its own house.
TESTONLY = {"aqt/testing", "aqt/quant/reference"}

# library -> the folders whose libraries may use it; a test may always use the libraries marked so
OUTSIDE = {
    "@com_google_absl": "*",
    "@highway": "aqt/kernels",
    "@eigen": "aqt/kernels",
    "@com_google_protobuf": "configs serving/families serving/convert",
    "@com_googlesource_code_re2": "aqt/transforms aqt/nn serving/families serving/convert",
    "@nlohmann_json": "aqt/io serving/formats serving/convert",
    "@cli11": "serving/cli examples",
    "@com_google_googletest": "aqt/testing",
    "@com_google_benchmark": "",
    "@onednn": "",
    "@openmpi": "aqt/collective",
}
FOR_TESTS = {"@eigen", "@com_google_googletest", "@com_google_benchmark", "@com_google_protobuf", "@nlohmann_json"}

# The target that users depend on. Only what stands in for a user's own code may depend on it.
UMBRELLA = "//:aqt"
USES_UMBRELLA = {"examples", "tests"}

# What a header (not -inl.h) may take from Abseil: types that its users meet anyway, and what templates and macros need
# to word an error.
ABSEIL_IN_HEADERS = {
    "absl/container/btree_map.h", "absl/container/flat_hash_map.h", "absl/container/inlined_vector.h",
    "absl/functional/function_ref.h", "absl/status/status.h", "absl/status/statusor.h", "absl/strings/str_cat.h",
    "absl/strings/string_view.h", "absl/types/span.h",
}


def rooms(house):
    return [name for name in LAYERS if house and name.startswith(house + "/")]


def house_of(folder):
    """"aqt/quant" of itself and of "aqt/quant/config"; any other folder is its own house."""
    return next((house for house in LAYERS if folder in rooms(house)), folder)


def folder_of(path):
    """The longest folder of LAYERS at the start of a path: "aqt/core" of "aqt/core/sub", "examples" of "examples/digits".
    None of a folder that is in no list, such as one of a house with rooms that is not a room."""
    parts = path.split("/")
    prefixes = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    name = next((prefix for prefix in prefixes if prefix in LAYERS), None)
    return None if name != path and rooms(name) else name


def within(folder, names):
    """Is `folder` one of the names, or a room of one?"""
    return "*" in names or folder in names or (house_of(folder) in names and folder not in TESTONLY)


def is_test(target):
    """Tests, and what only tests use, may use more."""
    return target.testonly or target.rule.endswith("_test")


def sees_protobuf(target):
    """quant:config_proto and graph:program_proto turn messages into structs; their tests make messages."""
    return target.package.startswith("aqt/") and target.name.endswith(("_proto", "_proto_test"))


def sees_eigen(target):
    """The one public header for users of Eigen."""
    return target.label == "//aqt/quant/contraction:eigen_adapter"


def allowed(target, used):
    """May `target` use the label `used` (of a target, or //folder:header for an include)?"""
    folder = folder_of(target.package)
    if used.startswith("@"):
        library = used.split("//")[0]
        if library not in OUTSIDE:
            return False
        where = OUTSIDE[library].split()
        return (within(folder, where) or (is_test(target) and library in FOR_TESTS) or folder == "tests" or
                (library == "@com_google_protobuf" and sees_protobuf(target)) or
                (library == "@eigen" and sees_eigen(target)))
    if used == UMBRELLA:
        return folder in USES_UMBRELLA
    other = folder_of(used[2:].split(":")[0])
    if other is None:
        return False
    if is_test(target) and (other in TESTONLY or house_of(other) == house_of(folder)):
        return True
    return (other == folder or within(other, LAYERS[folder].split()) or (other == "configs" and sees_protobuf(target)))


def header_problem(target, path, header):
    """Why a header may not include another, or None."""
    if not path.endswith(".h") or path.endswith("-inl.h") or is_test(target) or not path.startswith(("aqt/", "serving/")):
        return None
    label = check_deps.external_library(header)
    if label is None or header in ABSEIL_IN_HEADERS:
        return None
    if label.startswith("@com_google_absl"):
        return "a header takes no more of Abseil than " + ", ".join(sorted(ABSEIL_IN_HEADERS))
    if label.startswith("@highway") and path.startswith("aqt/kernels/"):
        return None
    if label.startswith("@com_google_protobuf") and sees_protobuf(target):
        return None
    if label.startswith("@eigen") and sees_eigen(target):
        return None
    return "a header includes no library but Abseil"


def problems(root):
    """One line for each arrow that is not allowed."""
    found = []
    for target in build_files.read_tree(root).values():
        if folder_of(target.package) is None:
            found.append(f"{target.label}: add {target.package} to LAYERS in tests/arrows/arrows.py")
            continue
        for dep in target.deps:
            if not allowed(target, dep):
                found.append(f"{target.label}: may not depend on {dep}")
        for path, header in build_files.includes(root, target):
            label = check_deps.external_library(header)
            if label is None and "/" in header and folder_of(header.rpartition("/")[0]) is not None:
                label = f"//{header.rpartition('/')[0]}:{header}"
            if label and not allowed(target, label):
                found.append(f"{target.label}: {path} may not include {header}")
            elif reason := header_problem(target, path, header):
                found.append(f"{target.label}: {path} may not include {header}: {reason}")
    return found


def main():
    found = problems(sys.argv[1] if len(sys.argv) > 1 else ROOT)
    print("\n".join(found) or "arrows: all point right or down")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
