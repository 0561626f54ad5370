"""Libraries whose results are promised bit for bit (docs/bits.md)."""

load("@rules_cc//cc:defs.bzl", "cc_library")
load(":copts.bzl", "BITS_COPTS", "SIMD_COPTS")

def bits_library(name, simd = False, vectorized = False, **kwargs):
    """A cc_library with the flags that keep the bits: a*b+c rounds twice, and a consumer's fastbuild is optimised, too.

    Args:
      name: its name.
      simd: whether it holds Highway code for several targets.
      vectorized: whether its plain loops should become vector code: -O3, and selections of floats without branches,
        which g++ allows when nobody reads the exception flags.
      **kwargs: of cc_library; no copts.
    """
    copts = (SIMD_COPTS if simd else BITS_COPTS) + (["-O3", "-fno-trapping-math"] if vectorized else [])
    cc_library(name = name, copts = copts, **kwargs)
