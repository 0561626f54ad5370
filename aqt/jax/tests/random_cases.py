"""Random contractions for live.py: a configuration of AQT, operands, the gradient of the output and a key."""

import dataclasses
import functools

from aqt.jax.v2 import aqt_dot_general
from aqt.jax.v2 import calibration
from aqt.jax.v2 import config as aqt_config
from aqt.jax.v2.numerics import fp_numerics
from aqt.jax.v2.numerics import int_numerics
from aqt.jax.v2.numerics import utils as numerics_utils
import jax
import jax.numpy as jnp
import numpy as np

BITS = (None, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 9, 12, "e4m3", "e5m2")
INT_BITS = (None, 1, 2, 3, 4, 6, 8, 8, 10)
SMALL_FLOATS = ("e2m1_ocp", "e2m1", "e1m2_ocp", "e3m0_ocp", "e3m2_ocp", "e2m3_ocp", "e0m3_ocp", "RADIX4")
DTYPES = (jnp.float32, jnp.float32, jnp.float32, jnp.bfloat16, jnp.float16)


@dataclasses.dataclass
class Case:
    config: object
    dims: tuple
    lhs: jax.Array
    rhs: jax.Array
    g: jax.Array
    key: object
    notes: list


def _pick(rng, values):
    return values[int(rng.integers(len(values)))]


def _chance(rng, probability):
    return rng.random() < probability


def _builder(rng, notes):
    kind = _pick(rng, ("fully_quantized", "v3", "v4", "v4", "fwd_fp8", "make", "unquantized"))
    notes.append(kind)
    if kind == "unquantized":  # for the setters
        return aqt_config.default_unquantized_config()
    if kind == "fwd_fp8":
        return aqt_config.config_fwd_fp8(_pick(rng, ("e4m3", "e5m2")))
    if kind == "make":
        return aqt_config.dot_general_make(_pick(rng, BITS), _pick(rng, BITS), _pick(rng, BITS), bool(rng.integers(2)),
                                           allow_dummy_gradients=bool(rng.integers(2)))
    local = {"dlhs_local_aqt": _local_aqt(rng), "drhs_local_aqt": _local_aqt(rng)} if _chance(rng, 0.1) else {}
    rest = {**local, "use_dummy_static_bound": _chance(rng, 0.1)}
    if kind == "fully_quantized":
        sides = {"vjp_lhs_stochastic_rounding": bool(rng.integers(2)), "vjp_rhs_stochastic_rounding": False}
        noise = ({**sides, "use_stochastic_rounding": None} if _chance(rng, 0.2) else
                 {"use_stochastic_rounding": bool(rng.integers(2))})
        return aqt_config.fully_quantized(fwd_bits=_pick(rng, INT_BITS), bwd_bits=_pick(rng, INT_BITS),
                                          use_fwd_quant=bool(rng.integers(2)), **noise, **rest)
    rest["rng_type"] = _pick(rng, ("jax.uniform", "custom-1"))
    if kind == "v3":
        return aqt_config.config_v3(fwd_bits=_pick(rng, (2, 4, 6, 8)), dlhs_bits=_pick(rng, (4, 8)),
                                    drhs_bits=_pick(rng, (None, 8)), **rest)
    bits = [_pick(rng, BITS) for _ in range(3)]
    if _chance(rng, 0.1):
        rest.update(fwd_mid_alpha_both=0.5, dlhs_mid_alpha_both=_pick(rng, (aqt_config.SKIP, 0.5)))
    elif _chance(rng, 0.3):
        rest.update(dlhs_use_fwd_quant=bits[0] is not None and bool(rng.integers(2)))
    return aqt_config.config_v4(fwd_bits=bits[0], dlhs_bits=bits[1], drhs_bits=bits[2], **rest)


def _local_aqt(rng):
    if _chance(rng, 0.5):
        return aqt_dot_general.LocalAqt(contraction_axis_shard_count=_pick(rng, (1, 2)))
    return aqt_dot_general.LocalAqt(contraction_axis_shard_size=_pick(rng, (1, 2)), tile_largest_shape=True)


def quantizers(config):
    """The six quantizers of operands."""
    return [getattr(getattr(config, product).dg_quantizer, side)
            for product in ("fwd", "dlhs", "drhs") for side in ("lhs", "rhs")]


def _set_stochastic_rounding(rng, config):
    axes = (0,) if _chance(rng, 0.3) else ()
    aqt_config.set_stochastic_rounding(config, bool(rng.integers(2)), bool(rng.integers(2)),
                                       _pick(rng, ("jax.uniform", "custom-1")), axes)


def _set_modes(rng, config):
    side = _pick(rng, ("lhs", "rhs"))
    dequant, calibrate = _pick(rng, (("THIS_INPUT", "CONTRACTING_AXIS"), ("THIS_INPUT", "REMAINING_AXIS"),
                                     ("OTHER_INPUT", "REMAINING_AXIS")))
    aqt_config.set_fwd_dequant_mode(config, **{f"{side}_dequant_mode": aqt_config.DequantMode[dequant]})
    aqt_config.set_fwd_calibration_mode(config, **{f"{side}_calibration_mode": aqt_config.CalibrationMode[calibrate]})
    config.fwd.dg_accumulator_dtype = None
    if calibrate == "REMAINING_AXIS":
        (config.drhs if side == "lhs" else config.dlhs).rhs.use_fwd_quant = False


def _set_abs_mean(rng, config):
    # The mean is a sum of floats: exact in any order for the integers that draw() takes for these operands.
    factory = functools.partial(calibration.AbsMeanCalibration, clipping_scale=2.0, p=1.0, po2_scale=_chance(rng, 0.4))
    for quantizer in quantizers(config)[:2]:
        if quantizer.calibration is not None:
            quantizer.calibration = factory


def _set_calibration(rng, config):
    po2 = _chance(rng, 0.4)
    if _chance(rng, 0.5):
        factory = functools.partial(calibration.AbsMaxCalibration, clipping_scale=_pick(rng, (None, 0.5, 1.25)),
                                    po2_scale=po2)
    else:
        factory = functools.partial(calibration.SnrBasedAutoCalibration, auto_clip_search_config=(0.5, 0.75, 1.0))
    for quantizer in quantizers(config):
        if quantizer.calibration is not None and _chance(rng, 0.5):
            quantizer.calibration = factory


def _set_shared_axes(rng, config):
    for quantizer in quantizers(config)[:2]:
        if _chance(rng, 0.6):
            quantizer.calib_shared_axes = _pick(rng, ("per_tensor", "per_tensor", (0, 1), [0]))
            quantizer.scale_stop_grad = bool(rng.integers(2))


def _set_numerics(rng, config):
    for quantizer in quantizers(config):
        numerics = quantizer.numerics
        if not isinstance(numerics, int_numerics.IntSymmetric):
            continue
        if _chance(rng, 0.3):
            numerics.preserve_max_val = True
        if _chance(rng, 0.3):
            numerics.clip_gradient = True
        if _chance(rng, 0.1) and numerics.dtype is None:
            numerics.round = False
        if _chance(rng, 0.1) and numerics.dtype is None:
            numerics.clip = False


def _set_small_floats(rng, config):
    name = _pick(rng, SMALL_FLOATS)
    stochastic = _chance(rng, 0.3)
    for quantizer in quantizers(config):
        if quantizer.calibration is not None and _chance(rng, 0.6):
            quantizer.numerics = fp_numerics.FpNumerics(cfg=getattr(fp_numerics, name), stochastic_rounding=stochastic)
    for product in (config.fwd, config.dlhs, config.drhs):
        product.dg_accumulator_dtype = None


def _set_mid(rng, config):
    config.dlhs.rhs.use_fwd_quant = config.drhs.rhs.use_fwd_quant = False
    alpha = _pick(rng, (0.5, 1.0, 0.25))
    aqt_config.set_use_mid_quant(config, alpha, aqt_config.SKIP, aqt_config.SKIP)


def _set_scale_dtype(rng, config):
    for quantizer in quantizers(config):
        if quantizer.calibration is not None and _chance(rng, 0.5):
            quantizer.scale_dtype = _pick(rng, (jnp.float32, jnp.bfloat16))


def _set_local_aqt(rng, config):
    local = _local_aqt(rng)
    aqt_config.set_local_aqt(config, aqt_config.SKIP, local, local if _chance(rng, 0.5) else None)


def _set_preserve_zero(_, config):
    aqt_config.set_int_numerics_preserve_zero(config, False)
    for product in (config.fwd, config.dlhs, config.drhs):
        product.dg_accumulator_dtype = None


def _set_set_numerics(rng, config):
    product = _pick(rng, (config.fwd, config.dlhs, config.drhs))
    numerics = [numerics_utils.get_numerics(_pick(rng, (1, 2, 4, 8, "e4m3")), bool(rng.integers(2))) for _ in range(2)]
    aqt_config.set_numerics(product, *numerics)
    for quantizer in (product.dg_quantizer.lhs, product.dg_quantizer.rhs):
        quantizer.calibration = quantizer.calibration or calibration.AbsMaxCalibration


def _set_bits(rng, config):
    aqt_config.set_bits(config, *(_pick(rng, BITS) for _ in range(6)))


def _set_accumulator(rng, config):
    dtypes = (aqt_config.SKIP, None, jnp.float32, jnp.float32, jnp.bfloat16, jnp.float16)
    aqt_config.set_accumulator_dtype(config, *(_pick(rng, dtypes) for _ in range(3)))


def _set_use_fwd_quant(rng, config):
    fwd = config.fwd.dg_quantizer
    aqt_config.set_use_fwd_quant(config, fwd.rhs.calibration is not None and bool(rng.integers(2)),
                                 fwd.lhs.calibration is not None and bool(rng.integers(2)))


def _set_fwd_calibration(rng, config):
    if all(quantizer.calibration is not None for quantizer in quantizers(config)[:2]):
        aqt_config.set_fwd_calibration(config, functools.partial(calibration.AbsMaxCalibration, clipping_scale=0.75,
                                                                 po2_scale=bool(rng.integers(2))))


def _set_bias(rng, config):
    # Of float results only: AQT subtracts the bias of an operand from itself.
    calibrated = [quantizer for quantizer in quantizers(config)[:2] if quantizer.calibration is not None]
    for quantizer in calibrated:
        quantizer.calibration = functools.partial(calibration.ConstantCalibration, bound=_pick(rng, (1.5, 3.0)),
                                                  bias=_pick(rng, (None, 0.25)))
    config.fwd.lhs.dequant_mode = config.fwd.rhs.dequant_mode = aqt_config.DequantMode.THIS_INPUT
    config.fwd.dg_accumulator_dtype = None


SETTERS = (_set_stochastic_rounding, _set_modes, _set_calibration, _set_shared_axes, _set_numerics, _set_small_floats,
           _set_mid, _set_scale_dtype, _set_local_aqt, _set_preserve_zero, _set_abs_mean,
           lambda rng, c: aqt_config.set_constant_calibration(c, _pick(rng, (1.0, 2.5))),
           lambda rng, c: aqt_config.set_auto_calib_scale(c, (0.6, 0.8, 1.0)), _set_set_numerics, _set_bits,
           _set_accumulator, _set_use_fwd_quant, _set_fwd_calibration, _set_bias,
           lambda rng, c: aqt_config.set_absmax_calib_scale(c, _pick(rng, (0.5, 1.5))),
           lambda rng, c: aqt_config.set_scale_and_bias_dtype(c, _pick(rng, (jnp.float32, jnp.bfloat16))),
           lambda rng, c: aqt_config.set_fwd_rhs_dtype_int2(c))
SETTER_NAMES = ("noise", "modes", "calibration", "shared_axes", "numerics", "small_floats", "mid", "scale_dtype",
                "local_aqt", "preserve_zero", "abs_mean", "constant", "auto_calib", "set_numerics", "bits", "accumulator",
                "use_fwd_quant", "fwd_calibration", "bias", "absmax_scale", "scale_and_bias_dtype", "int2")


def _even(rng):
    return 2 * int(rng.integers(1, 17))


def _shapes(rng):
    kind = int(rng.integers(5))
    if kind <= 1:
        m, k, n = int(rng.integers(1, 40)), _even(rng), _even(rng)
        if kind == 0:
            m = 2 * m
        return (m, k), (k, n), (((1,), (0,)), ((), ()))
    if kind == 2:  # transposed kernel, two rows of batch
        b, m, k, n = int(rng.integers(1, 4)), _even(rng), _even(rng), _even(rng)
        return (b, m, k), (n, k), (((2,), (1,)), ((), ()))
    if kind == 3:  # attention
        b, h, q, k, d = 2, int(rng.integers(1, 4)), _even(rng), _even(rng), _even(rng)
        return (b, q, h, d), (b, k, h, d), (((3,), (3,)), ((0, 2), (0, 2)))
    a, b, m, n = _even(rng), int(rng.integers(1, 5)), _even(rng), _even(rng)
    return (m, a, b), (b, n, a), (((1, 2), (2, 0)), ((), ()))


def _data(rng, shape, dtype, notes):
    x = rng.standard_normal(shape)
    kind = _pick(rng, ("normal", "normal", "outliers", "small", "zeros", "integers"))
    if "abs_mean" in notes:
        kind = "integers"
    notes.append(kind)
    if kind == "outliers":
        x = x * np.exp(2 * rng.standard_normal(shape))
    elif kind == "small":
        x = x * 1e-3
    elif kind == "zeros":
        x = x * (rng.random(shape) < 0.5)
        x[..., :1] = 0
    elif kind == "integers":
        x = np.rint(3 * x)
    return jnp.asarray(x, jnp.float32).astype(dtype)


# Seeds in a row share shapes and dtype: compiling AQT's operations one by one for new ones takes most of the time.
SEEDS_PER_GROUP = 50


def draw(seed):
    """The case of a seed. A combination that AQT itself refuses is possible."""
    rng = np.random.default_rng(seed)
    notes = []
    config = _builder(rng, notes)
    for _ in range(int(rng.integers(0, 4))):
        index = int(rng.integers(len(SETTERS)))
        notes.append(SETTER_NAMES[index])
        SETTERS[index](rng, config)
    of_group = np.random.default_rng((0, seed // SEEDS_PER_GROUP))
    lhs_shape, rhs_shape, dims = _shapes(of_group)
    dtype = _pick(of_group, DTYPES)
    notes.append(jnp.dtype(dtype).name)
    notes.append(f"{lhs_shape}x{rhs_shape}")
    lhs, rhs = _data(rng, lhs_shape, dtype, notes), _data(rng, rhs_shape, dtype, notes)
    out = jax.eval_shape(lambda l, r: jax.lax.dot_general(l, r, dims), lhs, rhs)
    g = _data(rng, out.shape, dtype, notes)
    seed_of_key = int(rng.integers(2**31))
    key = jax.random.key(seed_of_key) if _chance(rng, 0.5) else jax.random.PRNGKey(seed_of_key)
    return Case(config, dims, lhs, rhs, g, key, notes)
