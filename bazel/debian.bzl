"""Repository rules that present Debian's -dev packages under the labels which
the upstream projects use in their own Bazel builds.

No header is copied: the headers are in the compiler's default search path.
Each cc_library carries link options only.
"""

def _need(rctx, path, package):
    if not rctx.path(path).exists:
        fail("\n\n%s is missing: run  apt-get install %s\n" % (path, package))

def _write(rctx, workspace_name, files):
    rctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % workspace_name, executable = False)
    for path, lines in files.items():
        rctx.file(path, "\n".join(lines) + "\n", executable = False)

def _lib(name, linkopts = [], deps = [], defines = [], includes = [], hdrs = None):
    out = [
        "cc_library(",
        "    name = \"%s\"," % name,
        "    linkopts = %r," % (linkopts,),
        "    deps = %r," % (deps,),
        "    defines = %r," % (defines,),
        "    includes = %r," % (includes,),
    ]
    if hdrs:
        out.append("    hdrs = %s," % hdrs)
    out += ["    visibility = [\"//visibility:public\"],", ")", ""]
    return out

# `--define=deps=static` links Debian's archives: programs start faster, need
# less address space, and run on machines without these libraries. The archives
# are not position independent: they work in executables but not in shared
# objects, so the shared libraries are the default for consumers.
_STATIC_SETTING = [
    "config_setting(",
    "    name = \"static\",",
    "    define_values = {\"deps\": \"static\"},",
    ")",
    "",
]

def _lib_either(name, shared, static, deps = []):
    return [
        "cc_library(",
        "    name = \"%s\"," % name,
        "    linkopts = select({",
        "        \":static\": %r," % (static,),
        "        \"//conditions:default\": %r," % (shared,),
        "    }),",
        "    deps = %r," % (deps,),
        "    visibility = [\"//visibility:public\"],",
        ")",
        "",
    ]

def _alias(name, actual):
    return [
        "alias(",
        "    name = \"%s\"," % name,
        "    actual = \"%s\"," % actual,
        "    visibility = [\"//visibility:public\"],",
        ")",
        "",
    ]

# ---------------------------------------------------------------- directories

def _debian_directory_impl(rctx):
    _need(rctx, rctx.attr.path, rctx.attr.package)
    for entry in rctx.path(rctx.attr.path).readdir():
        rctx.symlink(entry, entry.basename)

debian_directory = repository_rule(
    implementation = _debian_directory_impl,
    attrs = {
        "path": attr.string(mandatory = True),
        "package": attr.string(mandatory = True),
    },
    local = True,
)

# ------------------------------------------------------------------- rules_cc

_CC_RULES = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "fdo_prefetch_hints",
    "fdo_profile",
    "objc_import",
    "objc_library",
]

def _debian_rules_cc_impl(rctx):
    files = {
        "BUILD.bazel": [],
        "cc/BUILD.bazel": [],
        # A global may not be re-exported under its own name in one step.
        "cc/native.bzl": [
            "NativeCcInfo = CcInfo",
            "NativeDebugPackageInfo = DebugPackageInfo",
            "native_cc_common = cc_common",
        ],
        "cc/defs.bzl": [
            "load(\":native.bzl\", \"NativeCcInfo\", \"NativeDebugPackageInfo\", \"native_cc_common\")",
            "CcInfo = NativeCcInfo",
            "DebugPackageInfo = NativeDebugPackageInfo",
            "cc_common = native_cc_common",
        ] + ["%s = native.%s" % (r, r) for r in _CC_RULES],
    }
    for rule in _CC_RULES:
        files["cc/%s.bzl" % rule] = ["%s = native.%s" % (rule, rule)]

    # bazel_tools//tools/cpp loads these two names.
    for f in ["action_names.bzl", "cc_toolchain_config_lib.bzl", "find_cc_toolchain.bzl"]:
        src = "/usr/share/bazel/rules/cc/cc/" + f
        if rctx.path(src).exists:
            rctx.symlink(src, "cc/" + f)
    _write(rctx, "rules_cc", files)

debian_rules_cc = repository_rule(implementation = _debian_rules_cc_impl, local = True)

# `bazel test` needs these two labels even without coverage.
def _stub_coverage_tools_impl(rctx):
    _write(rctx, "remote_coverage_tools", {"BUILD.bazel": [
        "filegroup(name = \"coverage_report_generator\", visibility = [\"//visibility:public\"])",
        "filegroup(name = \"lcov_merger\", visibility = [\"//visibility:public\"])",
    ]})

stub_coverage_tools = repository_rule(implementation = _stub_coverage_tools_impl)

# --------------------------------------------------------------------- abseil

# upstream package -> {upstream target: name of Debian's absl_<name>.pc}
_ABSL = {
    "absl/algorithm": {"algorithm": "algorithm", "container": "algorithm_container"},
    "absl/base": {
        "base": "base",
        "config": "config",
        "core_headers": "core_headers",
        "dynamic_annotations": "dynamic_annotations",
        "endian": "endian",
        "log_severity": "log_severity",
        "prefetch": "prefetch",
    },
    "absl/cleanup": {"cleanup": "cleanup"},
    "absl/container": {
        "btree": "btree",
        "fixed_array": "fixed_array",
        "flat_hash_map": "flat_hash_map",
        "flat_hash_set": "flat_hash_set",
        "inlined_vector": "inlined_vector",
        "node_hash_map": "node_hash_map",
        "node_hash_set": "node_hash_set",
    },
    "absl/debugging": {
        "failure_signal_handler": "failure_signal_handler",
        "leak_check": "leak_check",
        "stacktrace": "stacktrace",
        "symbolize": "symbolize",
    },
    "absl/flags": {
        "commandlineflag": "flags_commandlineflag",
        "config": "flags_config",
        "flag": "flags",
        "marshalling": "flags_marshalling",
        "parse": "flags_parse",
        "reflection": "flags_reflection",
        "usage": "flags_usage",
    },
    "absl/functional": {
        "any_invocable": "any_invocable",
        "bind_front": "bind_front",
        "function_ref": "function_ref",
    },
    "absl/hash": {"hash": "hash"},
    "absl/memory": {"memory": "memory"},
    "absl/meta": {"type_traits": "type_traits"},
    "absl/numeric": {"bits": "bits", "int128": "int128"},
    "absl/random": {
        "bit_gen_ref": "random_bit_gen_ref",
        "distributions": "random_distributions",
        "random": "random_random",
        "seed_gen_exception": "random_seed_gen_exception",
        "seed_sequences": "random_seed_sequences",
    },
    "absl/status": {"status": "status", "statusor": "statusor"},
    "absl/strings": {
        "cord": "cord",
        "str_format": "str_format",
        "string_view": "strings",
        "strings": "strings",
    },
    "absl/synchronization": {"synchronization": "synchronization"},
    "absl/time": {"time": "time"},
    "absl/types": {
        "any": "any",
        "compare": "compare",
        "optional": "optional",
        "span": "span",
        "variant": "variant",
    },
    "absl/utility": {"utility": "utility"},
}

def _libdir(rctx):
    for arch in ["x86_64-linux-gnu", "aarch64-linux-gnu"]:
        if rctx.path("/usr/lib/" + arch).exists:
            return "/usr/lib/" + arch
    fail("no known Debian library directory")

def _parse_pc(text):
    """Returns (libraries and link flags of its own, names it requires)."""
    link = []
    requires = []
    for line in text.split("\n"):
        if line.startswith("Libs:"):
            link = [w for w in line[5:].split(" ") if w and not w.startswith("-L")]
        elif line.startswith("Requires:"):
            requires = [r.strip().split(" ")[0] for r in line[9:].split(",") if r.strip()]
    return link, requires

def _debian_abseil_impl(rctx):
    pcdir = _libdir(rctx) + "/pkgconfig"
    _need(rctx, pcdir + "/absl_status.pc", "libabsl-dev")
    build = [] + _STATIC_SETTING

    # One library per .pc file. Its Requires become deps, so Bazel orders
    # the link line correctly, for shared and for static linking.
    known = {}
    for f in rctx.path(pcdir).readdir():
        if f.basename.startswith("absl_") and f.basename.endswith(".pc"):
            known[f.basename[:-3]] = f
    for name in sorted(known):
        link, requires = _parse_pc(rctx.read(known[name]))

        # Only a few 32-bit architectures need -latomic.
        link = [w for w in link if w.startswith("-l") and w != "-latomic"]
        own = [w for w in link if w.startswith("-labsl_")]
        other = [w for w in link if not w.startswith("-labsl_")]
        if name == "absl_base":
            other.append("-pthread")
        build += _lib_either(
            name,
            # No --as-needed here: Bazel's default dynamic_mode links tests
            # against one shared object per library. These do not name their
            # own dependencies; only the executable does.
            shared = own + other,
            static = ["-l:lib%s.a" % w[2:] for w in own] + other,
            deps = [":" + r for r in requires if r in known and r != name],
        )
    files = {"BUILD.bazel": build}
    for package, targets in _ABSL.items():
        files[package + "/BUILD.bazel"] = []
        for target, pc in sorted(targets.items()):
            if "absl_" + pc in known:
                files[package + "/BUILD.bazel"] += _alias(target, "//:absl_" + pc)
    _write(rctx, "com_google_absl", files)

debian_abseil = repository_rule(implementation = _debian_abseil_impl, local = True)

# ---------------------------------------------------------------------- eigen

def _debian_eigen_impl(rctx):
    _need(rctx, "/usr/include/eigen3/Eigen/Core", "libeigen3-dev")
    rctx.symlink("/usr/include/eigen3/Eigen", "Eigen")
    rctx.symlink("/usr/include/eigen3/unsupported", "unsupported")
    _write(rctx, "eigen", {"BUILD.bazel": _lib(
        "eigen",
        includes = ["."],
        hdrs = "glob([\"Eigen/**\", \"unsupported/**\"])",
        defines = ["EIGEN_MPL2_ONLY"],
    )})

debian_eigen = repository_rule(implementation = _debian_eigen_impl, local = True)

# -------------------------------------------------------------------- highway

def _debian_highway_impl(rctx):
    _need(rctx, "/usr/include/hwy/highway.h", "libhwy-dev")
    # The headers suffice: aqt/core/machine finds the processor's targets itself.
    build = _lib("hwy", defines = ["HWY_SHARED_DEFINE"])
    build += _lib("contrib", linkopts = ["-lhwy_contrib"], deps = [":hwy"])
    for name in ["algo", "dot", "image", "math"]:
        build += _alias(name, ":contrib")
    build += _lib("hwy_test_util", linkopts = ["-lhwy_test"], deps = [":hwy"])
    build += _lib("nanobenchmark", deps = [":hwy"])
    _write(rctx, "highway", {"BUILD.bazel": build})

debian_highway = repository_rule(implementation = _debian_highway_impl, local = True)

# ----------------------------------------------------------------- googletest

def _debian_googletest_impl(rctx):
    _need(rctx, "/usr/include/gtest/gtest.h", "libgtest-dev")
    _need(rctx, "/usr/include/gmock/gmock.h", "libgmock-dev")
    build = _lib("gtest", linkopts = ["-lgmock", "-lgtest", "-pthread"])
    build += _lib("gtest_main", linkopts = ["-lgmock_main"], deps = [":gtest"])
    _write(rctx, "com_google_googletest", {"BUILD.bazel": build})

debian_googletest = repository_rule(implementation = _debian_googletest_impl, local = True)

# ------------------------------------------------------------------- protobuf

_WELL_KNOWN = {
    "any": [],
    "api": ["source_context", "type"],
    "descriptor": [],
    "duration": [],
    "empty": [],
    "field_mask": [],
    "source_context": [],
    "struct": [],
    "timestamp": [],
    "type": ["any", "source_context"],
    "wrappers": [],
}

def _debian_protobuf_impl(rctx):
    _need(rctx, "/usr/include/google/protobuf/message.h", "libprotobuf-dev")
    _need(rctx, "/usr/bin/protoc", "protobuf-compiler")
    rctx.symlink("/usr/bin/protoc", "bin/protoc")
    build = ["package(default_visibility = [\"//visibility:public\"])", ""]
    build += _STATIC_SETTING
    build += _lib_either("protobuf", ["-lprotobuf", "-pthread"], ["-l:libprotobuf.a", "-lz", "-pthread"])
    build += _lib_either("protobuf_lite", ["-lprotobuf-lite", "-pthread"], ["-l:libprotobuf-lite.a", "-pthread"])
    build += _alias("protobuf_headers", ":protobuf")
    build += ["filegroup(name = \"protoc\", srcs = [\"bin/protoc\"])", ""]
    for name, deps in sorted(_WELL_KNOWN.items()):
        rctx.symlink("/usr/include/google/protobuf/%s.proto" % name, "src/google/protobuf/%s.proto" % name)
        build += [
            "proto_library(",
            "    name = \"%s_proto\"," % name,
            "    srcs = [\"src/google/protobuf/%s.proto\"]," % name,
            "    strip_import_prefix = \"src\",",
            "    deps = %r," % ([":%s_proto" % d for d in deps],),
            ")",
            "",
        ]
    build += [
        "proto_lang_toolchain(",
        "    name = \"cc_toolchain\",",
        "    blacklisted_protos = %r," % ([":%s_proto" % n for n in sorted(_WELL_KNOWN)],),
        "    command_line = \"--cpp_out=$(OUT)\",",
        "    runtime = \":protobuf\",",
        ")",
    ]
    _write(rctx, "com_google_protobuf", {
        "BUILD.bazel": build,
        "bazel/BUILD.bazel": [],
        # The loads that current protobuf releases recommend.
        "bazel/proto_library.bzl": ["proto_library = native.proto_library"],
        "bazel/cc_proto_library.bzl": ["cc_proto_library = native.cc_proto_library"],
    })

debian_protobuf = repository_rule(implementation = _debian_protobuf_impl, local = True)

# ------------------------------------------------------------------ benchmark

def _debian_benchmark_impl(rctx):
    _need(rctx, "/usr/include/benchmark/benchmark.h", "libbenchmark-dev")
    build = _lib("benchmark", linkopts = ["-lbenchmark", "-pthread"])
    build += _lib("benchmark_main", linkopts = ["-lbenchmark_main"], deps = [":benchmark"])
    _write(rctx, "com_google_benchmark", {"BUILD.bazel": build})

debian_benchmark = repository_rule(implementation = _debian_benchmark_impl, local = True)

# --------------------------------------------------------------------- onednn

# A peer of the benchmarks, optional: without the package the library is empty.
def _debian_onednn_impl(rctx):
    build = _lib("onednn")
    if rctx.path("/usr/include/dnnl.hpp").exists:
        build = _lib("onednn", linkopts = ["-ldnnl"], defines = ["AQT_HAVE_ONEDNN"])
    _write(rctx, "onednn", {"BUILD.bazel": build})

debian_onednn = repository_rule(implementation = _debian_onednn_impl, local = True)

# -------------------------------------------------------------------- openmpi

# Optional: without the packages @openmpi is incompatible with every platform, and `bazel test //...` skips targets
# that depend on it.
def _debian_openmpi_impl(rctx):
    headers = _libdir(rctx) + "/openmpi/include"
    if rctx.path(headers + "/mpi.h").exists and rctx.path("/usr/bin/mpirun").exists:
        rctx.symlink(headers, "include")
        build = _lib("openmpi", linkopts = ["-lmpi"], includes = ["include"], hdrs = "glob([\"include/**/*.h\"])", defines = ["OMPI_SKIP_MPICXX"])
    else:
        build = [
            "cc_library(",
            "    name = \"openmpi\",",
            "    target_compatible_with = [\"@platforms//:incompatible\"],",
            "    visibility = [\"//visibility:public\"],",
            ")",
        ]
    _write(rctx, "openmpi", {"BUILD.bazel": build})

debian_openmpi = repository_rule(implementation = _debian_openmpi_impl, local = True)

# ----------------------------------------------------------------------- grpc

# Optional: only --config=grpc uses it. Without the package it is incompatible with every platform. The library is the one
# without TLS, which needs no OpenSSL.
def _debian_grpc_impl(rctx):
    libdir = _libdir(rctx)
    if not rctx.path("/usr/include/grpcpp/grpcpp.h").exists:
        _write(rctx, "grpc", {"BUILD.bazel": [
            "cc_library(",
            "    name = \"grpc++\",",
            "    target_compatible_with = [\"@platforms//:incompatible\"],",
            "    visibility = [\"//visibility:public\"],",
            ")",
        ]})
        return
    abseil = {}
    for name in ["gpr", "grpc_unsecure", "grpc++_unsecure"]:
        # Its names have spaces between them, not commas.
        text = rctx.read("%s/pkgconfig/%s.pc" % (libdir, name))
        words = [w for line in text.split("\n") if line.startswith("Requires:") for w in line.split(" ")]
        abseil.update({w: None for w in words if w.startswith("absl_")})
    for folder in ["grpc", "grpcpp"]:
        rctx.symlink("/usr/include/" + folder, "include/" + folder)
    own = ["grpc++_unsecure", "grpc_unsecure", "upb", "address_sorting", "gpr"]
    build = _STATIC_SETTING + [
        "cc_library(",
        "    name = \"grpc++\",",
        "    hdrs = glob([\"include/**/*.h\"]),",
        "    includes = [\"include\"],",
        "    linkopts = select({",
        "        \":static\": %r," % (["-l:lib%s.a" % name for name in own] + ["-l:libcares.a", "-lz", "-ldl", "-pthread"],),
        "        \"//conditions:default\": %r," % (["-l" + name for name in own] + ["-pthread"],),
        "    }),",
        "    deps = %r," % (["@com_google_protobuf//:protobuf"] + ["@com_google_absl//:" + name for name in sorted(abseil)],),
        "    visibility = [\"//visibility:public\"],",
        ")",
    ]
    _write(rctx, "grpc", {"BUILD.bazel": build})

debian_grpc = repository_rule(implementation = _debian_grpc_impl, local = True)

# ----------------------------------------------------------------------- json

def _debian_json_impl(rctx):
    _need(rctx, "/usr/include/nlohmann/json.hpp", "nlohmann-json3-dev")
    _write(rctx, "nlohmann_json", {"BUILD.bazel": _lib("json")})

debian_json = repository_rule(implementation = _debian_json_impl, local = True)

# ---------------------------------------------------------------------- cli11

def _debian_cli11_impl(rctx):
    _need(rctx, "/usr/include/CLI/CLI.hpp", "libcli11-dev")
    _write(rctx, "cli11", {"BUILD.bazel": _lib("cli11")})

debian_cli11 = repository_rule(implementation = _debian_cli11_impl, local = True)

# ----------------------------------------------------------------------- zlib

# libprotobuf-dev depends on zlib1g-dev.
def _debian_zlib_impl(rctx):
    _need(rctx, "/usr/include/zlib.h", "zlib1g-dev")
    _write(rctx, "zlib", {"BUILD.bazel": _lib("zlib", linkopts = ["-lz"])})

debian_zlib = repository_rule(implementation = _debian_zlib_impl, local = True)

# ------------------------------------------------------------------------ re2

def _debian_re2_impl(rctx):
    _need(rctx, "/usr/include/re2/re2.h", "libre2-dev")
    build = _STATIC_SETTING + _lib_either("re2", ["-lre2", "-pthread"], ["-l:libre2.a", "-pthread"])
    _write(rctx, "com_googlesource_code_re2", {"BUILD.bazel": build})

debian_re2 = repository_rule(implementation = _debian_re2_impl, local = True)

# ---------------------------------------------------------------------- boost

# Only headers: Asio and Beast.
def _debian_boost_impl(rctx):
    _need(rctx, "/usr/include/boost/beast/http/basic_parser.hpp", "libboost-dev")
    _write(rctx, "boost", {"BUILD.bazel": _lib(
        "boost",
        linkopts = ["-pthread"],
        defines = ["BOOST_ASIO_NO_DEPRECATED"],
    )})

debian_boost = repository_rule(implementation = _debian_boost_impl, local = True)
