"""Compiler flags for this project's own code (never applied to dependencies)."""

# Warnings are errors in this workspace (--define=aqt_werror=1 in .bazelrc), but not in a consumer's.
COPTS = [
    "-Wall",
    "-Wextra",
    "-Wno-unknown-warning-option",  # clang does not have all of g++'s names
    "-Wno-maybe-uninitialized",  # GCC 12 sees moved-from inline storage of absl::InlinedVector as uninitialized
] + select({
    "//bazel:werror": ["-Werror"],
    "//conditions:default": [],
})

TEST_COPTS = COPTS

# For code without loops over data, which runs once per file, command, plan or traced operation: its size counts, its
# speed does not.
SMALL_COPTS = COPTS + ["-Os"]

# For every library whose results are promised bit for bit (docs/bits.md): no
# contraction of a*b+c into one rounding, and optimised even in a fastbuild.
BITS_COPTS = COPTS + [
    "-O2",
    "-ffp-contract=off",
    "-fno-math-errno",
]

# GCC 12 reports its own AVX-512 intrinsics as uninitialized reads.
SIMD_COPTS = BITS_COPTS + [
    "-Wno-uninitialized",
]

SMALL_BITS_COPTS = BITS_COPTS + ["-Os"]
