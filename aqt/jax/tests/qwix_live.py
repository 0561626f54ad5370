"""Qwix, op by op, against from_qwix, on random rules, shapes, dtypes, data and keys.

    PYTHONPATH=aqt/jax python aqt/jax/tests/qwix_live.py --seed 1 --cases 500

Needs qwix 0.1.8. Forward and both gradients are equal to the bit where the sum of a product is exact in any order;
elsewhere they are within the bound that qwix_cases.run_qwix derives. A failure prints its seed.
"""

import argparse
import collections
import sys

import jax
import jax.numpy as jnp
import numpy as np

import aqt_native
import qwix_cases


def arithmetic():
    """How this XLA divides, op by op: older ones compute quotients, newer ones multiply with the reciprocal."""
    x = jnp.asarray(np.random.default_rng(1).uniform(1, 5, (1000, 1)), jnp.float32)
    return "ieee" if np.array_equal(np.asarray(x / 127.5), np.asarray(x) / np.float32(127.5)) else ""


def max_drops_nan(case):
    """Whether XLA's maximum of an array with a NaN can be a number, as on CPUs for some places of the NaN. Scales then depend on them."""
    for x in (case.lhs, case.rhs, case.g):
        x = jnp.abs(x)
        for axis in range(x.ndim):
            if np.any(np.isnan(np.asarray(jnp.sum(x, axis))) & ~np.isnan(np.asarray(jnp.max(x, axis)))):
                return True
    return False


def ours(case, how, jitted):
    """out, dlhs, drhs."""
    rules = aqt_native.from_qwix([case.rule], arithmetic=how)
    contraction = rules.dot_general(weight=case.weight, key=case.key)

    def run():
        out, vjp = jax.vjp(lambda l, r: contraction(l, r, case.dims), case.lhs, case.rhs)
        return (out, *vjp(case.g))

    return jax.jit(run)() if jitted else run()


def difference(got, want, bound):
    """None, or the first difference. bound: None for equality, or the largest difference."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    a, b = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if bound is not None:
        with np.errstate(invalid="ignore"):
            same |= np.abs(a - b) <= bound
            same |= np.isinf(bound)
    if same.all():
        return None
    where = tuple(int(i[0]) for i in np.nonzero(~same))
    return f"{np.count_nonzero(~same)} of {same.size} differ; at {where}: {a[where]!r}, Qwix has {b[where]!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first case; case i has the seed SEED + i")
    parser.add_argument("--cases", type=int, default=100, help="number of cases")
    parser.add_argument("--jit", action="store_true", help="run from_qwix jitted")
    arguments = parser.parse_args()
    counts, failures, how = collections.Counter(), 0, arithmetic()
    for seed in range(arguments.seed, arguments.seed + arguments.cases):
        if seed % qwix_cases.SEEDS_PER_SHAPE == 0:
            jax.clear_caches()
        case = qwix_cases.draw(seed)
        if max_drops_nan(case):
            counts["not compared: XLA's maximum drops a NaN"] += 1
            continue
        try:
            got = ours(case, how, arguments.jit)
        except aqt_native.NotSupportedError as error:
            counts["refused here: " + str(error)[:110]] += 1
            continue
        except Exception as error:  # pylint: disable=broad-except
            got = error
        try:
            want = qwix_cases.run_qwix(case)
        except Exception as error:  # pylint: disable=broad-except
            counts[f"refused by Qwix: {str(error).splitlines()[0][:80] if str(error) else type(error).__name__}"] += 1
            continue
        if isinstance(got, Exception):
            failures += 1
            print(f"seed {seed} {case.notes}: {type(got).__name__}: {got}", flush=True)
            continue
        for name, a, (b, bound) in zip(("out", "dlhs", "drhs"), got, want):
            found = difference(a, b, bound)
            counts["equal bits" if bound is None else "within the bound"] += found is None
            if found is not None:
                failures += 1
                print(f"seed {seed} {name} {case.notes}: {found}", flush=True)
        counts["cases"] += 1
    print(f"jax {jax.__version__}, seeds {arguments.seed} to {arguments.seed + arguments.cases - 1}:")
    for name, count in sorted(counts.items()):
        print(f"  {count:6} {name}")
    print(f"  {failures:6} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
