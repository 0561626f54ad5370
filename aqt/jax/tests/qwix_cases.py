"""Random contractions for Qwix's rules, and what qwix 0.1.8 makes of them. For qwix_live.py and tests/golden/qwix."""

import contextlib
import dataclasses
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from qwix._src.core import dot_general_qt
from qwix._src.utils import flax_util

import comparing

SEEDS_PER_SHAPE = 16
DTYPES = (jnp.float32, jnp.float32, jnp.bfloat16, jnp.float16)
# dims and shapes as functions of extents: lhs, rhs, (contracting, batch). The last contracting axis has extent k.
_LAYOUTS = (
    (lambda m, k, n: ((m, k), (k, n), (((1,), (0,)), ((), ())))),
    (lambda m, k, n: ((2, m, k), (k, n), (((2,), (0,)), ((), ())))),
    (lambda m, k, n: ((k, m), (n, k), (((0,), (1,)), ((), ())))),
    (lambda m, k, n: ((3, m, k), (3, n, k), (((2,), (2,)), ((0,), (0,))))),
    (lambda m, k, n: ((m, 2, k), (2, k, n), (((1, 2), (0, 1)), ((), ())))),
    (lambda m, k, n: ((2, k, m, 3), (3, n, 2, k), (((3, 1), (0, 3)), ((0,), (2,))))),
)


@dataclasses.dataclass
class Case:
    rule: qwix.QtRule
    weight: str
    dims: tuple
    lhs: jax.Array
    rhs: jax.Array
    g: jax.Array
    key: jax.Array

    @property
    def notes(self):
        return (f"weight={self.weight} {self.lhs.dtype}{list(self.lhs.shape)} x {list(self.rhs.shape)} {self.dims} "
                f"{self.rule}")


# ---- drawing


def _data(random, shape, dtype, exact):
    """Numbers whose squares have exact sums, or any; some rows are zero, tiny or hold special values."""
    if exact:
        x = random.integers(-12, 13, shape) / 4
        return jnp.asarray(x, dtype)
    x = random.standard_normal(shape) * 2.0 ** random.integers(-3, 4)
    if x.ndim > 1 and random.random() < 0.3:
        row = (random.integers(x.shape[0]),)
        x[row] *= random.choice([0.0, 2.0**-40, 2.0**-64, 2.0**-70, 2.0**-130, 100.0])
    if x.size and random.random() < 0.1:
        x[tuple(random.integers(extent) for extent in x.shape)] = random.choice([np.nan, np.inf, -np.inf, -0.0])
    return jnp.asarray(x.astype(np.float32)).astype(dtype)


def _calibration(random, of_gradient=False):
    method = random.choice(["absmax", "absmax", "absmax", "scaled", "fixed", "rms"])
    if method == "absmax":
        return "absmax"
    if method == "scaled":
        return f"absmax,{random.choice([0.5, 0.9, 1.0, 1.25])}"
    if method == "fixed":
        return random.choice(["fixed,1.5", "fixed,-2,2", "FIXED,0.3"])
    return "absmax" if of_gradient else f"rms,{random.choice([2.0, 3.5])}"


def _qtype(random, native=False):
    names = [jnp.int8, jnp.int8, jnp.int4, jnp.float8_e4m3fn, jnp.float8_e5m2, "int8", "int4"]
    if not native:
        names += ["int2", "int3", "int5", "int6", "int7", jnp.int2]
    return names[random.integers(len(names))]


def _is_fp8(qtype):
    return qtype is not None and "float8" in (qtype if isinstance(qtype, str) else np.dtype(qtype).name)


def draw_rule(random, k, sums_one_axis):
    has_bwd = random.random() < 0.6
    tile = None
    divisors = [d for d in range(2, k) if k % d == 0]
    if divisors and random.random() < 0.35:
        tile = int(divisors[random.integers(len(divisors))])
        tile = tile if random.random() < 0.7 else tile / k
    fields = {
        "weight_qtype": _qtype(random, native=has_bwd and tile is None),
        "act_qtype": None if random.random() < 0.2 else _qtype(random, native=has_bwd and tile is None),
        "tile_size": tile,
        "weight_calibration_method": _calibration(random),
        "act_calibration_method": random.choice([None, _calibration(random)]),
        "disable_channelwise_axes": tile is None and random.random() < 0.15,
    }
    for role in ("weight", "act"):
        if _is_fp8(fields[f"{role}_qtype"]):
            fields[f"{role}_calibration_method"] = "absmax"
    if random.random() < 0.15:
        fields["additional_qt_config"] = {"disable_gradient_clipping": True}
    if has_bwd:
        noise = random.random() < 0.4
        fields |= {
            "bwd_qtype": _qtype(random),
            "bwd_calibration_method": _calibration(random, of_gradient=True),
            "bwd_stochastic_rounding": "uniform" if noise else None,
            "channelwise_noise_axes": [(0,), (0, 1), (), (1,)][random.integers(4)],
        }
        if sums_one_axis and not noise and not fields["disable_channelwise_axes"] and random.random() < 0.3:
            fields["bwd_weight_grad_tile_size"] = random.choice([0.5, 0.25, 1.0])
    return qwix.QtRule(**fields)


def draw(seed):
    # Neighbouring seeds share shapes and dtype, because compiling for new ones takes most of the time.
    random = np.random.default_rng(seed // SEEDS_PER_SHAPE)
    layout = _LAYOUTS[random.integers(len(_LAYOUTS))]
    m, n = (int(x) for x in random.choice([1, 2, 3, 4, 7, 8, 12], 2))
    k = int(random.choice([1, 2, 3, 5, 8, 16, 24, 60, 128, 256, 300, 512]))
    lhs, rhs, dims = layout(m, k, n)
    if random.random() < 0.05:
        m, n = 256, 512  # tiles of gradients
        lhs, rhs, dims = layout(m, 3, n)
        k = 3
    dtype = DTYPES[random.integers(len(DTYPES))]
    random = np.random.default_rng([seed])
    weight = random.choice(["rhs", "rhs", "rhs", "lhs", "none"])
    remaining = [len(shape) - len(dims[0][i]) - len(dims[1][i]) for i, shape in enumerate((lhs, rhs))]
    rule = draw_rule(random, k, remaining == [1, 1])
    methods = (rule.weight_calibration_method, rule.act_calibration_method or "", rule.bwd_calibration_method)
    exact = any("rms" in method for method in methods)
    out = jax.eval_shape(lambda a, b: jax.lax.dot_general(a, b, dims), jnp.zeros(lhs, dtype), jnp.zeros(rhs, dtype))
    return Case(rule, str(weight), dims, _data(random, lhs, dtype, exact), _data(random, rhs, dtype, exact),
                _data(random, out.shape, dtype, False), jax.random.PRNGKey(int(random.integers(2**31))))


# ---- Qwix


@contextlib.contextmanager
def _product(function):
    """Qwix with another product of arrays."""
    with mock.patch.object(jax.lax, "dot_general", function):
        yield


class _Sums:
    """A product that notes whether its sums are exact in any order; with `magnitudes` it sums magnitudes."""

    def __init__(self, magnitudes):
        self.magnitudes, self.products = magnitudes, []
        self.inner = jax.lax.dot_general

    def __call__(self, lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None, **kwargs):
        out = self.inner(lhs, rhs, dimension_numbers, precision=precision,
                         preferred_element_type=preferred_element_type, **kwargs)
        if jnp.issubdtype(lhs.dtype, jnp.integer) and jnp.issubdtype(rhs.dtype, jnp.integer):
            self.products.append((True, 1))
            return out
        a, b = np.asarray(lhs).astype(np.float64), np.asarray(rhs).astype(np.float64)
        length = math.prod(a.shape[axis] for axis in dimension_numbers[0][0])
        sums = np.asarray(self.inner(jnp.asarray(np.abs(a), jnp.float32), jnp.asarray(np.abs(b), jnp.float32),
                                     dimension_numbers)).astype(np.float64) * 1.001
        units = comparing.unit(a), comparing.unit(b)
        is_exact = None not in units and (sums.size == 0 or np.max(sums) / (units[0] * units[1]) < 2.0**24)
        # Products of subnormal results are not exact, either.
        is_exact = is_exact and units[0] * units[1] >= 2.0**-120
        self.products.append((bool(is_exact), length))
        return jnp.asarray(sums).astype(out.dtype) if self.magnitudes else out


def config_of(case):
    """Qwix's configuration of the contraction."""

    def find(x):
        return "w" if (case.weight == "lhs" and x is case.lhs) or (case.weight == "rhs" and x is case.rhs) else None

    provider = qwix.QtProvider([case.rule])
    with (mock.patch.object(flax_util, "find_param", find),
          mock.patch.object(flax_util, "make_rng", lambda _: case.key)):
        return provider._create_dot_general_qt_config(provider._rules[0], "dot_general0", case.lhs, case.rhs)  # pylint: disable=protected-access


def _run(case):
    config = config_of(case)
    out, vjp = jax.vjp(lambda l, r: dot_general_qt.dot_general_qt(l, r, case.dims, config), case.lhs, case.rhs)
    return (out, *vjp(case.g))


def run_qwix(case):
    """[(result, bound)] for out, dlhs, drhs: bound is None where the bits are defined, else the largest difference.

    Two f32 sums of K products differ by at most 2 K 2^-24 S, S the sum of their magnitudes, and each of the few
    roundings after the sum by one unit of the dtype. With tiles, sums of tiles are rounded once more.
    """
    plain, magnitudes = _Sums(False), _Sums(True)
    with _product(plain):
        results = _run(case)
    with _product(magnitudes):
        scaled = _run(case)
    eps = float(jnp.finfo(case.lhs.dtype).eps)
    tiles = case.rule.tile_size or case.rule.bwd_weight_grad_tile_size
    out = []
    for result, magnitude, (is_exact, length) in zip(results, scaled, plain.products):
        if is_exact and not tiles:
            out.append((result, None))
            continue
        out.append((result, comparing.bound_of(magnitude, length, 2.0**-24, eps)))
    return out
