"""A shared library that holds everything it needs except glibc and libgcc_s.

Debian's archives of Abseil, protobuf, RE2, zlib, Highway and libstdc++ are compiled for executables. They can be linked into a shared
library that hides them, after bazel/shared_tls.py has changed the few objects with thread-local variables. The library then meets
no other copy of these libraries in a process, and runs wherever glibc 2.34 does.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# Archives with objects that shared_tls.py has to change. The linker reports any other.
_ARCHIVES_WITH_TLS = ["absl_base", "absl_cordz_functions", "absl_raw_hash_set", "protobuf", "re2"]

# A shared library that targets name, and the archive in its place.
_STATIC = {"-lz": "-l:libz.a"}

# Highway is used for its headers only.
_NOT_NEEDED = ["-lhwy", "-lhwy_contrib", "-pthread", "-lm"]

def _inputs(deps):
    """(archives that are linked as a whole, other archives, flags) of the dependencies."""
    whole, archives, flags = [], [], []
    for dep in deps:
        for input in dep[CcInfo].linking_context.linker_inputs.to_list():
            flags += [_STATIC.get(flag, flag) for flag in input.user_link_flags if flag not in flags]
            for library in input.libraries:
                archive = library.pic_static_library or library.static_library
                if archive and library.alwayslink:
                    whole.append(archive)
                elif archive:
                    archives.append(archive)
    return whole, archives, flags

def _shared_library_impl(ctx):
    compiler = find_cpp_toolchain(ctx).compiler_executable
    tls = ctx.actions.declare_file(ctx.label.name + ".tls.o")
    ctx.actions.run_shell(
        outputs = [tls],
        inputs = [ctx.file._shared_tls],
        command = "folder=$(dirname $(%s -print-file-name=libc.so)) && python3 %s %s %s" % (
            compiler,
            ctx.file._shared_tls.path,
            tls.path,
            " ".join(["$folder/lib%s.a" % name for name in _ARCHIVES_WITH_TLS]),
        ),
        mnemonic = "SharedTls",
    )
    whole, archives, flags = _inputs(ctx.attr.deps + [ctx.attr._support])
    out = ctx.outputs.file
    args = ctx.actions.args()
    args.add_all(["-shared", "-fuse-ld=bfd", "-o", out])
    args.add("-Wl,-soname=" + ctx.attr.soname)
    args.add(ctx.file.exports, format = "-Wl,--version-script=%s")
    args.add_all(["-Wl,-z,defs,-z,relro,-z,now,-z,noexecstack,--gc-sections,--build-id=none,-O1,-s", tls])
    args.add("-Wl,--whole-archive")
    args.add_all(whole, uniquify = True)
    args.add_all(["-Wl,--no-whole-archive", "-Wl,--start-group"])
    args.add_all(archives, uniquify = True)
    args.add_all([flag for flag in flags if flag not in _NOT_NEEDED])
    args.add_all(["-l:libstdc++.a", "-Wl,--end-group", "-lm", "-lgcc_s"])
    ctx.actions.run(
        outputs = [out],
        inputs = whole + archives + [tls, ctx.file.exports],
        executable = compiler,
        arguments = [args],
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = "SharedLibrary",
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

shared_library = rule(
    implementation = _shared_library_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "exports": attr.label(mandatory = True, allow_single_file = True, doc = "the linker's version script"),
        "file": attr.output(mandatory = True, doc = "the library"),
        "soname": attr.string(mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_shared_tls": attr.label(default = "//bazel:shared_tls.py", allow_single_file = True),
        "_support": attr.label(default = "//bazel:shared_support", providers = [CcInfo]),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    doc = "A shared library from the cc_libraries `deps`. Those with `alwayslink` are linked as a whole.",
)
