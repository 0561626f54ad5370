#!/usr/bin/env python3
"""Refuses a dependency or an #include that bazel/rooms.py does not allow.

usage: tests/repo/arrows/arrows.py [ROOT]   (default: this file's tree)
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bazel"))
import build_files  # noqa: E402  pylint: disable=wrong-import-position
import check_deps  # noqa: E402  pylint: disable=wrong-import-position
from rooms import ROOMS, house_of, may_use, rooms_in  # noqa: E402  pylint: disable=wrong-import-position

# What folders other than rooms may use. "*" means everything.
OTHERS = {
    "examples": {name for name in ROOMS if not ROOMS[name].testonly},
    "tests": {"*"},
    "bazel": set(),
    "": {"*"},  # the top package names public targets
}
ALLOWED = {**{room: may_use(room) for room in ROOMS}, **OTHERS}

# library -> the folders whose libraries may use it; tests may also use FOR_TESTS
OUTSIDE = {
    "@com_google_absl": "*",
    "@highway": "aqt/kernels aqt/core/machine",
    "@eigen": "aqt/kernels",
    "@com_google_protobuf": "configs serving/families serving/plan serving/grpc",
    "@com_googlesource_code_re2": "aqt/transforms aqt/nn aqt/models aqt/stored serving/families serving/plan serving/gguf",
    "@nlohmann_json": "aqt/io aqt/models aqt/native aqt/stored aqt/tokenizers serving/tools serving/formats serving/plan serving/convert serving/compare serving/http/api",
    "@zlib": "aqt/io",
    "@cli11": "serving/cli/flags serving/cli/help serving/cli/checkpoints serving/cli/programs serving/cli/models serving/cli examples",
    "@boost": "serving/http/wire",
    "@grpc": "serving/grpc",
    "@com_google_googletest": "aqt/testing",
    "@com_google_benchmark": "",
    "@onednn": "",
    "@openmpi": "aqt/collective",
}
FOR_TESTS = {"@eigen", "@com_google_googletest", "@com_google_benchmark", "@com_google_protobuf", "@nlohmann_json"}

# The targets that users depend on. Only code in the place of a user's own may depend on it.
UMBRELLAS = {"//:aqt", "//:parallel", "//:precision"}
USES_UMBRELLAS = {"examples", "tests"}

# What a header (not -inl.h) may include from Abseil: types in its interface, and what templates and macros need for
# errors.
ABSEIL_IN_HEADERS = {
    "absl/container/btree_map.h", "absl/container/flat_hash_map.h", "absl/container/inlined_vector.h",
    "absl/functional/function_ref.h", "absl/status/status.h", "absl/status/statusor.h", "absl/strings/str_cat.h",
    "absl/strings/string_view.h", "absl/time/time.h", "absl/types/span.h",
}


def folder_of(path):
    """The longest folder of ALLOWED at the start of a path: "aqt/core" for "aqt/core/sub", "examples" for "examples/digits".
    None if the folder is not listed, such as a folder of a house that is not a room."""
    parts = path.split("/")
    prefixes = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    name = next((prefix for prefix in prefixes if prefix in ALLOWED), None)
    return None if name != path and rooms_in(name) else name


def testonly(folder):
    return folder in ROOMS and ROOMS[folder].testonly


def within(folder, names):
    """Whether `folder` is one of the names, or a room of a house with such a name."""
    return "*" in names or folder in names or (house_of(folder) in names and not testonly(folder))


def house_may_use(folder):
    """What any room of a folder's house may use."""
    return set().union(*(ALLOWED[room] for room in rooms_in(house_of(folder))))


def is_test(target):
    """Whether a target is a test or only for tests. Such targets may use more."""
    return target.testonly or target.rule.endswith("_test")


def sees_protobuf(target):
    """Whether a target may use protos: libraries that convert messages to structs, and their tests."""
    return target.package.startswith("aqt/") and target.name.endswith(("_proto", "_proto_test"))


def sees_eigen(target):
    """Whether this is the one public header for users of Eigen."""
    return target.label == "//aqt/core:eigen_adapter"


def allowed(target, used):
    """Whether `target` may use the label `used` (of a target, or //folder:header for an include)."""
    folder = folder_of(target.package)
    if used.startswith("@"):
        library = used.split("//")[0]
        if library not in OUTSIDE:
            return False
        where = OUTSIDE[library].split()
        return (within(folder, where) or (is_test(target) and library in FOR_TESTS) or folder == "tests" or
                (library == "@com_google_protobuf" and sees_protobuf(target)) or
                (library == "@eigen" and sees_eigen(target)))
    if used in UMBRELLAS:
        return folder in USES_UMBRELLAS
    other = folder_of(used[2:].split(":")[0])
    if other is None:
        return False
    if is_test(target) and (testonly(other) or house_of(other) == house_of(folder) or other in house_may_use(folder)):
        return True
    return (other == folder or other in ALLOWED[folder] or "*" in ALLOWED[folder] or (other == "configs" and sees_protobuf(target)))


def header_problem(target, path, header):
    """The reason why a header may not include another, or None."""
    if not path.endswith(".h") or path.endswith("-inl.h") or is_test(target) or not path.startswith(("aqt/", "serving/")):
        return None
    label = check_deps.external_library(header)
    if label is None or header in ABSEIL_IN_HEADERS:
        return None
    if label.startswith("@com_google_absl"):
        return "a header may include from Abseil only " + ", ".join(sorted(ABSEIL_IN_HEADERS))
    if label.startswith("@highway") and path.startswith("aqt/kernels/"):
        return None
    if label.startswith("@com_google_protobuf") and sees_protobuf(target):
        return None
    if label.startswith("@eigen") and sees_eigen(target):
        return None
    return "a header may include no library except Abseil"


def problems(root):
    """One line for each forbidden arrow."""
    found = []
    for target in build_files.read_tree(root).values():
        if folder_of(target.package) is None:
            found.append(f"{target.label}: add {target.package} to bazel/rooms.py")
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
    print("\n".join(found) or "arrows: every dependency is allowed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
