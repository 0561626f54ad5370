"""Compiles each header of a library on its own (except -inl.h, a part of the header that includes it)."""

load("@rules_cc//cc:defs.bzl", "CcInfo", "cc_library")

def _one_include_each_impl(ctx):
    sources = []
    for header in ctx.attr.library[CcInfo].compilation_context.direct_public_headers:
        if header.basename.endswith("-inl.h"):
            continue
        source = ctx.actions.declare_file("%s/%d.cc" % (ctx.label.name, len(sources)))

        # The second line finds a missing include guard, the definition keeps the object from being empty.
        ctx.actions.write(source, "#include \"{h}\"\n#include \"{h}\"\nnamespace {{ [[maybe_unused]] int used; }}\n".format(h = header.short_path))
        sources.append(source)
    if not sources:
        fail("%s has no header" % ctx.attr.library.label)
    return [DefaultInfo(files = depset(sources))]

_one_include_each = rule(
    implementation = _one_include_each_impl,
    attrs = {"library": attr.label(mandatory = True, providers = [CcInfo])},
)

def headers_compile_alone(name, library, copts):
    """Declares the cc_library `name`, which compiles if each header of `library` does, with only that dependency."""
    _one_include_each(
        name = name + "_sources",
        library = library,
        testonly = True,
    )
    cc_library(
        name = name,
        testonly = True,
        srcs = [name + "_sources"],
        copts = copts,
        linkstatic = True,
        deps = [library],
    )
