"""External repositories of aqt, from pinned upstream releases instead of Debian's packages.

Untested. In WORKSPACE, instead of aqt_dependencies():

    load("@aqt//bazel:deps_http.bzl", "aqt_http_dependencies")
    aqt_http_dependencies()
    load("@com_google_protobuf//:protobuf_deps.bzl", "protobuf_deps")
    protobuf_deps()

protobuf 29.3 needs Bazel 7 or later. Addresses and hashes are those of the Bazel Central Registry. As with
aqt_dependencies(), repositories that the calling WORKSPACE declared before are kept.
"""

load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_archive")
load("@bazel_tools//tools/build_defs/repo:utils.bzl", "maybe")
load("//bazel:debian.bzl", "debian_boost", "debian_grpc", "debian_onednn", "debian_openmpi")

_GITHUB = "https://github.com/"

# name -> (address, sha256, folder inside the archive)
_RELEASES = {
    "bazel_skylib": (
        "bazelbuild/bazel-skylib/releases/download/1.7.1/bazel-skylib-1.7.1.tar.gz",
        "bc283cdfcd526a52c3201279cda4bc298652efa898b10b4db0837dc51652756f",
        "",
    ),
    "cli11": (
        "CLIUtils/CLI11/archive/refs/tags/v2.4.2.tar.gz",
        "f2d893a65c3b1324c50d4e682c0cdc021dd0477ae2c048544f39eed6654b699a",
        "CLI11-2.4.2",
    ),
    "com_google_absl": (
        "abseil/abseil-cpp/releases/download/20240722.0/abseil-cpp-20240722.0.tar.gz",
        "f50e5ac311a81382da7fa75b97310e4b9006474f9560ac46f54a9967f07d4ae3",
        "abseil-cpp-20240722.0",
    ),
    "com_google_benchmark": (
        "google/benchmark/archive/refs/tags/v1.9.1.tar.gz",
        "32131c08ee31eeff2c8968d7e874f3cb648034377dfc32a4c377fa8796d84981",
        "benchmark-1.9.1",
    ),
    "com_google_googletest": (
        "google/googletest/releases/download/v1.15.2/googletest-1.15.2.tar.gz",
        "7b42b4d6ed48810c5362c265a17faebe90dc2373c885e5216439d37927f02926",
        "googletest-1.15.2",
    ),
    "com_google_protobuf": (
        "protocolbuffers/protobuf/releases/download/v29.3/protobuf-29.3.zip",
        "e9b9ac1910b1041065839850603caf36e29d3d3d230ddf52bd13778dd31b9046",
        "protobuf-29.3",
    ),
    "com_googlesource_code_re2": (
        "google/re2/releases/download/2024-07-02/re2-2024-07-02.zip",
        "a835fe55fbdcd8e80f38584ab22d0840662c67f2feb36bd679402da9641dc71e",
        "re2-2024-07-02",
    ),
    "highway": (
        "google/highway/archive/refs/tags/1.2.0.tar.gz",
        "7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343",
        "highway-1.2.0",
    ),
    "platforms": (
        "bazelbuild/platforms/releases/download/0.0.10/platforms-0.0.10.tar.gz",
        "218efe8ee736d26a3572663b374a253c012b716d8af0c07e842e82f238a0a7ee",
        "",
    ),
    "rules_cc": (
        "bazelbuild/rules_cc/releases/download/0.0.17/rules_cc-0.0.17.tar.gz",
        "abc605dd850f813bb37004b77db20106a19311a96b2da1c92b789da529d28fe1",
        "rules_cc-0.0.17",
    ),
}

# These have no BUILD file for the targets that this project uses.
_EIGEN_BUILD = """
cc_library(
    name = "eigen",
    hdrs = glob(
        ["Eigen/**", "unsupported/Eigen/**"],
        exclude = [  # LGPL
            "unsupported/Eigen/src/IterativeSolvers/ConstrainedConjGrad.h",
            "unsupported/Eigen/src/IterativeSolvers/IterationController.h",
        ],
    ),
    defines = ["EIGEN_MPL2_ONLY"],
    includes = ["."],
    visibility = ["//visibility:public"],
)
"""

_JSON_BUILD = """
cc_library(
    name = "json",
    hdrs = glob(["include/nlohmann/**"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

_ZLIB_BUILD = """
cc_library(
    name = "zlib",
    srcs = glob(["*.c", "*.h"], exclude = ["zlib.h", "zconf.h"]),
    hdrs = ["zlib.h", "zconf.h"],
    copts = ["-w", "-DHAVE_UNISTD_H"],
    includes = ["."],
    visibility = ["//visibility:public"],
)
"""

def aqt_http_dependencies():
    """Declares what //aqt, //serving and //tests need, from upstream releases."""
    for name, (address, sha256, prefix) in _RELEASES.items():
        maybe(
            http_archive,
            name = name,
            url = _GITHUB + address,
            sha256 = sha256,
            strip_prefix = prefix,
        )
    maybe(
        http_archive,
        name = "eigen",
        build_file_content = _EIGEN_BUILD,
        sha256 = "6ea6a434ba063a0275dbe1a1dcef5c26fe2626d7cf8e9de7a948b5cf81382684",
        strip_prefix = "eigen-3.4.0",
        url = _GITHUB + "eigen-mirror/eigen/archive/refs/tags/3.4.0.zip",
    )
    maybe(
        http_archive,
        name = "nlohmann_json",
        build_file_content = _JSON_BUILD,
        sha256 = "a22461d13119ac5c78f205d3df1db13403e58ce1bb1794edc9313677313f4a9d",
        url = _GITHUB + "nlohmann/json/releases/download/v3.11.3/include.zip",
    )
    maybe(
        http_archive,
        name = "zlib",
        build_file_content = _ZLIB_BUILD,
        sha256 = "9a93b2b7dfdac77ceba5a558a580e74667dd6fede4585b91eefb60f03b72df23",
        strip_prefix = "zlib-1.3.1",
        url = _GITHUB + "madler/zlib/releases/download/v1.3.1/zlib-1.3.1.tar.gz",
    )
    maybe(debian_boost, name = "boost")  # the system's headers: upstream has no build for Bazel
    maybe(debian_grpc, name = "grpc")  # the system's package; only --config=grpc uses it
    maybe(debian_onednn, name = "onednn")  # a peer of the benchmarks: the system's package, empty without it
    maybe(debian_openmpi, name = "openmpi")  # the system's package; targets that need it are skipped without it
