"""cc_fuzz_test: a regression test over a corpus by default, a libFuzzer binary with --config=fuzz."""

load("@rules_cc//cc:defs.bzl", "cc_test")
load("//bazel:copts.bzl", "COPTS")

def cc_fuzz_test(name, srcs, corpus = [], deps = [], **kwargs):
    cc_test(
        name = name,
        size = "small",
        srcs = srcs + select({
            "//bazel:fuzzing": [],
            "//conditions:default": ["//tests/fuzz:replay_main.cc"],
        }),
        args = ["$(rootpaths %s)" % f for f in corpus],
        copts = COPTS,
        data = corpus,
        linkopts = select({
            "//bazel:fuzzing": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        deps = deps,
        **kwargs
    )
