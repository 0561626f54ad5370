"""Compiles headers on their own."""

load("@rules_cc//cc:defs.bzl", "CcInfo", "cc_library")

def _one_include_each_impl(ctx):
    sources = []
    public = [header.short_path for header in ctx.attr.library[CcInfo].compilation_context.direct_public_headers]
    for header in ctx.attr.headers:
        if header not in public:
            fail("%s is not a header of %s" % (header, ctx.attr.library.label))
        source = ctx.actions.declare_file("%s/%d.cc" % (ctx.label.name, len(sources)))

        # The second line finds a missing include guard, the definition keeps the object from being empty.
        ctx.actions.write(source, "#include \"{h}\"\n#include \"{h}\"\nnamespace {{ [[maybe_unused]] int used; }}\n".format(h = header))
        sources.append(source)
    return [DefaultInfo(files = depset(sources))]

_one_include_each = rule(
    implementation = _one_include_each_impl,
    attrs = {
        "headers": attr.string_list(mandatory = True, allow_empty = False),
        "library": attr.label(mandatory = True, providers = [CcInfo]),
    },
)

def headers_compile_alone(name, library, headers, copts):
    """Declares the cc_library `name`, which compiles if each of the headers of `library` does, with only that dependency."""
    _one_include_each(
        name = name + "_sources",
        headers = headers,
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
