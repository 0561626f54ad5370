"""Qwix, op by op, against from_qwix, on random rules, shapes, dtypes, data and keys.

    PYTHONPATH=aqt/jax python aqt/jax/tests/qwix_live.py --seed 1 --cases 500

Needs qwix 0.1.8. Forward and both gradients are equal to the bit where the sum of a product is exact in any order;
elsewhere they are within the bound that qwix_cases.run_qwix derives. A failure prints its seed.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import aqt_native
import comparing
import qwix_cases


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


def main():
    arguments = comparing.arguments(__doc__, 100, "from_qwix")
    tally, how = comparing.Tally("Qwix"), comparing.arithmetic()
    for seed in range(arguments.seed, arguments.seed + arguments.cases):
        if seed % qwix_cases.SEEDS_PER_SHAPE == 0:
            jax.clear_caches()
        case = qwix_cases.draw(seed)
        if max_drops_nan(case):
            tally.add("not compared: XLA's maximum drops a NaN")
            continue
        if case.rule.bwd_qtype and case.rule.tile_size and case.g.size == 1:
            tally.add("not compared: a gradient of one element beside tiles (docs/coming-from-aqt-or-qwix.md)")
            continue
        try:
            got = ours(case, how, arguments.jit)
        except aqt_native.NotSupportedError as error:
            tally.add("refused here: " + str(error)[:110])
            continue
        except Exception as error:  # pylint: disable=broad-except
            got = error
        try:
            want = qwix_cases.run_qwix(case)
        except Exception as error:  # pylint: disable=broad-except
            tally.add(f"refused by Qwix: {str(error).splitlines()[0][:80] if str(error) else type(error).__name__}")
            continue
        if isinstance(got, Exception):
            tally.fail(seed, "", case.notes, f"{type(got).__name__}: {got}")
            continue
        tally.compare(seed, case.notes, got, *zip(*want), nothing_known=True)
    return tally.finish(arguments.seed, arguments.cases)


if __name__ == "__main__":
    sys.exit(main())
