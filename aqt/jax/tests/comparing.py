"""What comparisons with AQT and Qwix share: equality or a bound, how this XLA divides, and the count of cases."""

import argparse
import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np

RESULTS = ("out", "dlhs", "drhs")


def unit(x):
    """The largest power of two that divides all elements, or None if there is none."""
    x = x[x != 0]
    if x.size == 0:
        return 1.0
    if not np.all(np.isfinite(x)):
        return None
    mantissa, exponent = np.frexp(x)
    bits = np.rint(np.abs(mantissa) * 2.0**53).astype(np.int64)
    trailing = np.log2((bits & -bits).astype(np.float64))
    return 2.0 ** float(np.min(exponent - 53 + trailing))


def bound_of(magnitude, length, rounding, eps):
    """The largest difference of two sums of `length` products, and a few roundings by `eps` after them.

    `magnitude`: the sum of the products' magnitudes; `rounding`: of a partial sum.
    """
    m = np.abs(np.asarray(magnitude).astype(np.float64))
    return np.where(np.isfinite(m), m, np.inf) * (2 * (length + 2) * rounding + 4 * eps)


@functools.lru_cache(maxsize=None)
def arithmetic():
    """How this XLA divides, op by op: older ones compute quotients, newer ones multiply with the reciprocal."""
    x = jnp.asarray(np.random.default_rng(1).uniform(1, 5, (1000, 1)), jnp.float32)
    return "ieee" if np.array_equal(np.asarray(x / 127.5), np.asarray(x) / np.float32(127.5)) else ""


def difference(got, want, bound, peer, nothing_known=False):
    """None, or the first difference from `peer`.

    bound: None for equality, or the largest difference. nothing_known: an infinite bound also allows a NaN.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    a, b = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if bound is not None:
        with np.errstate(invalid="ignore"):
            same |= np.abs(a - b) <= bound
            if nothing_known:
                same |= np.isinf(bound)
    if same.all():
        return None
    where = tuple(int(i[0]) for i in np.nonzero(~same))
    return f"{np.count_nonzero(~same)} of {same.size} differ; at {where}: {a[where]!r}, {peer} has {b[where]!r}"


def arguments(doc, cases, jitted):
    """The command line: which seeds, and whether `jitted` runs jitted."""
    parser = argparse.ArgumentParser(description=doc.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first case; case i has the seed SEED + i")
    parser.add_argument("--cases", type=int, default=cases, help="number of cases")
    parser.add_argument("--jit", action="store_true", help=f"run {jitted} jitted")
    return parser.parse_args()


class Tally:
    """Counts cases, and prints failures as they come."""

    def __init__(self, peer):
        self.peer, self.counts, self.failures = peer, collections.Counter(), 0

    def add(self, what):
        self.counts[what] += 1

    def fail(self, seed, what, notes, text):
        self.failures += 1
        print(f"seed {seed} {what}{notes}: {text}", flush=True)

    def compare(self, seed, notes, got, want, bounds, **kwargs):
        """Out, dlhs and drhs of a case."""
        for name, a, b, bound in zip(RESULTS, got, want, bounds):
            found = difference(a, b, bound, self.peer, **kwargs)
            self.counts["equal bits" if bound is None else "within the bound"] += found is None
            if found is not None:
                self.fail(seed, f"{name} ", notes, found)
        self.add("cases")

    def finish(self, first, cases):
        """Prints the counts. The exit status."""
        print(f"jax {jax.__version__}, seeds {first} to {first + cases - 1}:")
        for name, count in sorted(self.counts.items()):
            print(f"  {count:6} {name}")
        print(f"  {self.failures:6} failures")
        return 1 if self.failures else 0
