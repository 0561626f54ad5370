"""Libraries whose results are promised bit for bit (docs/bits.md)."""

load("@rules_cc//cc:defs.bzl", "cc_library")
load(":copts.bzl", "BITS_COPTS", "SIMD_COPTS", "SMALL_BITS_COPTS")

def bits_library(name, simd = False, vectorized = False, small = False, **kwargs):
    """A cc_library with flags that fix the bits: a*b+c rounds twice, and a consumer's fastbuild is optimised, too.

    Args:
      name: its name.
      simd: whether it contains Highway code for several targets.
      vectorized: whether its plain loops should be vectorized: -O3, and branchless selections of floats, which g++
        permits if nothing reads the exception flags.
      small: whether it has no loops over data, so that its size counts more than its speed.
      **kwargs: arguments of cc_library, except copts.
    """
    copts = (SIMD_COPTS if simd else SMALL_BITS_COPTS if small else BITS_COPTS) + (["-O3", "-fno-trapping-math"] if vectorized else [])
    cc_library(name = name, copts = copts, **kwargs)
