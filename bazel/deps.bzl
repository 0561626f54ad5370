"""External repositories of aqt, taken from Debian's packages.

aqt_dependencies() declares a repository only if the calling WORKSPACE has
not declared it before. A consumer may declare any of these names first
(http_archive, local_repository, ...), and that definition is kept.
"""

load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load(
    "//bazel:debian.bzl",
    "debian_abseil",
    "debian_benchmark",
    "debian_boost",
    "debian_cli11",
    "debian_directory",
    "debian_eigen",
    "debian_googletest",
    "debian_grpc",
    "debian_highway",
    "debian_json",
    "debian_onednn",
    "debian_openmpi",
    "debian_protobuf",
    "debian_re2",
    "debian_rules_cc",
    "debian_zlib",
    "stub_coverage_tools",
)

def aqt_dependencies():
    """Declares what //aqt, //serving and //tests need, from installed Debian packages."""

    # Rule sets that Bazel 4 would otherwise download.
    maybe(debian_rules_cc, name = "rules_cc")
    maybe(debian_directory, name = "rules_java", path = "/usr/share/bazel/rules/java", package = "bazel-rules-java")
    maybe(debian_directory, name = "rules_proto", path = "/usr/share/bazel/rules/proto", package = "bazel-rules-proto")
    maybe(debian_directory, name = "bazel_skylib", path = "/usr/share/bazel/tools/skylib", package = "bazel-skylib")
    maybe(debian_directory, name = "platforms", path = "/usr/share/bazel/tools/platforms", package = "bazel-platforms")
    maybe(stub_coverage_tools, name = "remote_coverage_tools")

    # Libraries.
    maybe(debian_abseil, name = "com_google_absl")
    maybe(debian_eigen, name = "eigen")
    maybe(debian_highway, name = "highway")
    maybe(debian_googletest, name = "com_google_googletest")
    maybe(debian_protobuf, name = "com_google_protobuf")
    maybe(debian_benchmark, name = "com_google_benchmark")
    maybe(debian_json, name = "nlohmann_json")
    maybe(debian_onednn, name = "onednn")  # optional
    maybe(debian_openmpi, name = "openmpi")  # optional
    maybe(debian_grpc, name = "grpc")  # optional
    maybe(debian_boost, name = "boost")
    maybe(debian_cli11, name = "cli11")
    maybe(debian_re2, name = "com_googlesource_code_re2")
    maybe(debian_zlib, name = "zlib")
