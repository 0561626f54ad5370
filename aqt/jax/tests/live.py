"""AQT, op by op, against aqt_native, on random configurations, shapes, dtypes, data and keys.

    PYTHONPATH=aqt/jax python aqt/jax/tests/live.py --seed 1 --cases 2000

Forward and both gradients are equal to the bit where the sum of a product is exact in any order. Elsewhere the bound is
derived: two f32 sums of K products differ by at most 2 K 2^-24 S, S the sum of their magnitudes, and each of the few
roundings after the sum by one unit of the dtype. Some XLA add some products of bf16 in bf16 (0.12 where an operand has
an axis of one element): then 2^-24 is half a unit of the dtype. S, scaled as the product is, comes from AQT itself, run
with a product that sums magnitudes. Nothing is recorded; a failure prints its seed.
"""

import sys

from aqt.jax.v2 import config as aqt_config
from aqt.jax.v2.numerics import fp8_numerics
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import aqt_native
import comparing
import random_cases


class Recorder:
    """A product for AQT: the usual one, or the sum of magnitudes; notes whether sums are exact in any order."""

    def __init__(self, magnitudes, added_shards=0):
        self.magnitudes = magnitudes
        self.added_shards = added_shards  # LocalAqt: AQT adds their scaled products in floating point
        self.is_exact = added_shards == 0
        self.length = 1 + added_shards
        self.rounding = 2.0**-24  # of a partial sum

    def __call__(self, lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None):
        out = jax.lax.dot_general(lhs, rhs, dimension_numbers=dimension_numbers, precision=precision,
                                  preferred_element_type=preferred_element_type)
        if jnp.issubdtype(out.dtype, jnp.integer):
            if not self.magnitudes:
                return out
            if not self.added_shards:
                return jnp.zeros_like(out)
            return jax.lax.dot_general(jnp.abs(lhs.astype(out.dtype)), jnp.abs(rhs.astype(out.dtype)),
                                       dimension_numbers=dimension_numbers)
        a, b = np.asarray(lhs).astype(np.float64), np.asarray(rhs).astype(np.float64)
        contracted = [a.shape[axis] for axis in dimension_numbers[0][0]]
        self.length = max(self.length, int(np.prod(contracted)) + self.added_shards)
        sums = np.asarray(jax.lax.dot_general(np.abs(a).astype(np.float32), np.abs(b).astype(np.float32),
                                              dimension_numbers=dimension_numbers)).astype(np.float64) * 1.001
        units = comparing.unit(a), comparing.unit(b)
        self._notice_narrow_sums(out, a, b, dimension_numbers, sums)
        if None in units or (sums.size and np.max(sums) / (units[0] * units[1]) >= 2.0**24):
            self.is_exact = False
        return jnp.asarray(sums).astype(out.dtype) if self.magnitudes else out

    def _notice_narrow_sums(self, out, a, b, dimension_numbers, sums):
        """Whether XLA added in the dtype of the result: its result is further from the sum in f32 than one rounding."""
        wide = np.asarray(jax.lax.dot_general(a.astype(np.float32), b.astype(np.float32),
                                              dimension_numbers=dimension_numbers)).astype(np.float64)
        eps, tiny = float(jnp.finfo(out.dtype).eps), float(jnp.finfo(out.dtype).smallest_subnormal)
        with np.errstate(invalid="ignore"):
            off = np.abs(np.asarray(out).astype(np.float64) - wide)
            if np.any(off > 2 * (self.length + 2) * 2.0**-24 * sums + eps * np.abs(wide) + tiny):
                self.rounding, self.is_exact = max(self.rounding, eps / 2), False


def run(config, case):
    """out, dlhs, drhs."""
    out, vjp = jax.vjp(lambda l, r: config(l, r, case.dims), case.lhs, case.rhs)
    return (out, *vjp(case.g))


def shards(case, name):
    """At least the number of shards of a gradient with LocalAqt: the extents that it sums over."""
    x, side = (case.rhs, 1) if name == "dlhs" else (case.lhs, 0)
    kept = {axis for axes in case.dims for axis in axes[side]}
    return int(np.prod([x.shape[axis] for axis in range(x.ndim) if axis not in kept]))


def aqt(case, magnitudes):
    config = aqt_config.set_context(case.config, case.key, None)
    recorders = []
    for name in ("fwd", "dlhs", "drhs"):
        raw = getattr(config, name)
        recorder = Recorder(magnitudes, shards(case, name) if raw.local_aqt is not None else 0)
        raw.dot_general = recorder
        recorders.append(recorder)
    return run(config, case), recorders


def rounds_fp8_twice():
    """Whether this XLA rounds f32 to f16 and then to 8 bits, as older ones do. AQT's 8-bit floats are then off."""
    x = np.random.default_rng(0).standard_normal(20000).astype(np.float32)
    cast = np.asarray(jnp.asarray(x).astype(jnp.float8_e4m3fn)).view(np.uint8)
    return not np.array_equal(cast, x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def uses_fp8(config):
    return any(isinstance(quantizer.numerics, fp8_numerics.Fp8Numerics) for quantizer in random_cases.quantizers(config))


def has_own_log2():
    """Whether JAX computes log2 as one operation, as 0.12 does. In bf16 it then doubles fewer scales with po2_scale."""
    return float(jnp.log2(jnp.asarray(2.0**-5, jnp.bfloat16))) == -5


def has_po2_in_bf16(case):
    calibrations = [quantizer.calibration for quantizer in random_cases.quantizers(case.config)]
    return case.lhs.dtype == jnp.bfloat16 and any(getattr(c, "keywords", {}).get("po2_scale") for c in calibrations)


def ours(case, jitted):
    config = aqt_native.accelerate(case.config, arithmetic=comparing.arithmetic())
    config = aqt_config.set_context(config, case.key, None)
    return jax.jit(lambda: run(config, case))() if jitted else run(config, case)


def bounds(case, recorders):
    if all(recorder.is_exact for recorder in recorders):
        yield from [None] * 3
        return
    scaled, _ = aqt(case, True)
    eps = float(jnp.finfo(case.lhs.dtype).eps)
    for magnitude, recorder in zip(scaled, recorders):
        if recorder.is_exact:
            yield None
            continue
        yield comparing.bound_of(magnitude, recorder.length, recorder.rounding, eps)


def main():
    arguments = comparing.arguments(__doc__, 200, "aqt_native")
    tally = comparing.Tally("AQT")
    skips_fp8, skips_po2 = rounds_fp8_twice(), has_own_log2()
    for seed in range(arguments.seed, arguments.seed + arguments.cases):
        if seed % random_cases.SEEDS_PER_GROUP == 0:
            jax.clear_caches()
            print(f"seed {seed}: {tally.counts['cases']} cases, {tally.failures} failures", file=sys.stderr, flush=True)
        try:
            case = random_cases.draw(seed)
            if skips_fp8 and uses_fp8(case.config):
                tally.add("skipped: this XLA rounds to fp8 twice")
                continue
            if skips_po2 and has_po2_in_bf16(case):
                tally.add("skipped: log2 of this JAX is another one in bf16")
                continue
            want, recorders = aqt(case, False)
        except Exception as error:  # pylint: disable=broad-except
            tally.add("refused by AQT")
            del error
            continue
        try:
            got = ours(case, arguments.jit)
        except aqt_native.NotSupportedError as error:
            tally.add("refused here: " + str(error)[:110])
            continue
        except Exception as error:  # pylint: disable=broad-except
            tally.fail(seed, "", case.notes, f"{type(error).__name__}: {error}")
            continue
        tally.compare(seed, case.notes, got, want, bounds(case, recorders))
    return tally.finish(arguments.seed, arguments.cases)


if __name__ == "__main__":
    sys.exit(main())
