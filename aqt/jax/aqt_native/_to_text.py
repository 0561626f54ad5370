"""AQT's configuration objects as our textproto, field by field. What has no counterpart is refused by name."""

from __future__ import annotations

import functools
from typing import Any, Callable

from aqt.jax.v2 import aqt_dot_general
from aqt.jax.v2 import aqt_quantizer
from aqt.jax.v2 import calibration as aqt_calibration
from aqt.jax.v2 import stochastic_rounding
from aqt.jax.v2.numerics import fp8_numerics
from aqt.jax.v2.numerics import fp_numerics
from aqt.jax.v2.numerics import int_numerics
from aqt.jax.v2.numerics import no_numerics
import jax
import jax.numpy as jnp
import numpy as np

from aqt_native._errors import NotSupportedError
from aqt_native._spec import dtype_name

_PRODUCTS = ("fwd", "dlhs", "drhs")


def to_textproto(config: aqt_dot_general.DotGeneral) -> str:
    """The textproto (configs/quant.proto) that means the same as AQT's configuration.

    Raises:
      NotSupportedError: a field has a value that this library does not have; the message names the field and the value.
    """
    if not isinstance(config, aqt_dot_general.DotGeneral):
        raise TypeError(f"aqt_native: expected AQT's DotGeneral (aqt.jax.v2.config), got {type(config).__name__}")
    parts = [f"{name} {{\n{product_text(getattr(config, name), name)}\n}}" for name in _PRODUCTS]
    return "\n".join(("schema: 1", *parts))


def product_text(raw: aqt_dot_general.DotGeneralRaw, where: str) -> str:
    """The fields of one DotGeneralRaw."""
    quantizer = raw.dg_quantizer
    if type(quantizer) is not aqt_dot_general.DefaultDotGeneralQuantizer:
        _refuse(f"{where}.dg_quantizer", type(quantizer).__name__, "use DefaultDotGeneralQuantizer")
    if not quantizer.skip_mid_scales:
        _refuse(f"{where}.dg_quantizer.skip_mid_scales", False, "leave it True")
    if raw.dot_general is not jax.lax.dot_general:
        _refuse(f"{where}.dot_general", raw.dot_general, "leave it jax.lax.dot_general")
    if raw.local_aqt is not None and where == "fwd":
        _refuse("fwd.local_aqt", raw.local_aqt, "AQT splits contractions of dlhs and drhs only")
    lines = [f"{side} {{\n{_tensor_text(raw, side, where)}\n}}" for side in ("lhs", "rhs")]
    lines.append(f'dg_accumulator_dtype: "{_accumulator(raw.dg_accumulator_dtype, where)}"')
    if raw.local_aqt is not None:
        lines.append(f"local_aqt {{ {_local_aqt(raw.local_aqt)} }}")
    for field in ("lhs_mid_alpha", "rhs_mid_alpha"):
        alpha = getattr(quantizer, field)
        if alpha is not None:
            lines.append(f"{field}: {_number(alpha, f'{where}.dg_quantizer.{field}')}")
            _check_mid(getattr(quantizer, field.removesuffix("_alpha")), f"{where}.dg_quantizer.{field[:7]}")
    if raw.allow_dummy_gradient_into_qtensor:
        lines.append("allow_dummy_gradient_into_qtensor: true")
    return "\n".join(lines)


def _refuse(field: str, value: Any, remedy: str) -> None:
    raise NotSupportedError(f"aqt_native: {field} is {value}, which this library does not have; {remedy}, or use "
                            "fallback=True, which leaves this contraction to AQT")


def _tensor_text(raw: aqt_dot_general.DotGeneralRaw, side: str, where: str) -> str:
    tensor = getattr(raw, side)
    lines = [f"quantizer {{\n{quantizer_text(getattr(raw.dg_quantizer, side), f'{where}.dg_quantizer.{side}')}\n}}"]
    # Elsewhere it has no effect in AQT.
    if tensor.use_fwd_quant and side == "rhs" and where != "fwd":
        lines.append("use_fwd_quant: true")
    lines.append(f"dequant_mode: DEQUANT_MODE_{tensor.dequant_mode.name}")
    lines.append(f"calibration_mode: CALIBRATION_MODE_{tensor.calibration_mode.name}")
    return "\n".join(lines)


def _accumulator(dtype: Any, where: str) -> str:
    if dtype is None:
        return "none"
    name = dtype_name(dtype)
    if name not in ("s32", "f32", "bf16", "f16"):
        _refuse(f"{where}.dg_accumulator_dtype", np.dtype(dtype).name, "use int32, float32, bfloat16, float16 or None")
    return str(name)


def _local_aqt(local: aqt_dot_general.LocalAqt) -> str:
    fields = []
    for field in ("contraction_axis_shard_count", "contraction_axis_shard_size"):
        if getattr(local, field) is not None:
            fields.append(f"{field}: {int(getattr(local, field))}")
    if local.tile_largest_shape:
        fields.append("tile_largest_shape: true")
    return " ".join(fields)


def _check_mid(quantizer: aqt_quantizer.Quantizer, where: str) -> None:
    # set_use_mid_quant sets numerics without rounding and with the bound 1, and AbsMax.
    kind = type(quantizer.numerics).__name__
    if kind != "DummyNumerics":
        _refuse(f"{where}.numerics", kind, "use set_use_mid_quant of AQT's config")
    if quantizer.calibration is not aqt_calibration.AbsMaxCalibration:
        _refuse(f"{where}.calibration", quantizer.calibration, "use set_use_mid_quant of AQT's config")
    if quantizer.calib_shared_axes:
        _refuse(f"{where}.calib_shared_axes", quantizer.calib_shared_axes, "leave it None")
    if quantizer.scale_dtype is not None:
        _refuse(f"{where}.scale_dtype", np.dtype(quantizer.scale_dtype).name, "leave it None")


# ---- one tensor


def quantizer_text(quantizer: aqt_quantizer.Quantizer, where: str) -> str:
    """The fields of one Quantizer."""
    lines = [_numerics(quantizer.numerics, f"{where}.numerics")]
    if isinstance(quantizer.numerics, no_numerics.NoNumerics):
        return lines[0]
    shared = quantizer.calib_shared_axes
    if isinstance(shared, str):
        if shared != "per_tensor":
            _refuse(f"{where}.calib_shared_axes", shared, "use None, axes or per_tensor")
        lines.append("calib_shared_axes { per_tensor: true }")
    elif shared:
        lines.append("calib_shared_axes { " + " ".join(f"axes: {int(axis)}" for axis in shared) + " }")
    if quantizer.scale_dtype is not None:
        lines.append(f'scale_dtype: "{_dtype(quantizer.scale_dtype, ("f32", "bf16", "f16"), f"{where}.scale_dtype")}"')
    if not quantizer.scale_stop_grad:
        lines.append("scale_stop_grad: false")
    lines.append(_calibration(quantizer.calibration, f"{where}.calibration"))
    return "\n".join(lines)


def _dtype(dtype: Any, allowed: tuple[str, ...], where: str) -> str:
    name = dtype_name(dtype)
    if name not in allowed:
        _refuse(where, np.dtype(dtype).name, "use one of " + ", ".join(allowed))
    return str(name)


def _bool(value: Any) -> str:
    return "true" if value else "false"


def _number(value: Any, where: str) -> str:
    try:
        return repr(float(value))
    except (TypeError, jax.errors.ConcretizationTypeError):
        _refuse(where, value, "use a number that is known when the function is traced")
        raise


def _numerics(numerics: Any, where: str) -> str:
    kind = type(numerics)
    if kind is no_numerics.NoNumerics:
        return "no_numerics {}"
    if kind is int_numerics.IntSymmetric:
        return f"int_symmetric {{ {_int_symmetric(numerics, where)} }}"
    if kind is fp8_numerics.Fp8Numerics:
        return (f'fp8 {{ dtype: "{_dtype(numerics.dtype, ("e4m3fn", "e5m2", "bf16"), f"{where}.dtype")}" '
                f"exponent_bits: {int(numerics.exponent_bits)} mantissa_bits: {int(numerics.mantissa_bits)} "
                f"stochastic_rounding: {_bool(numerics.stochastic_rounding)} }}")
    if kind is fp_numerics.FpNumerics:
        cfg = numerics.cfg
        fields = [f"{name}: {int(getattr(cfg, name))}" for name in ("nexp", "minexp", "nmant", "radix")]
        fields += [f"{name}: {_bool(getattr(cfg, name))}" for name in ("has_subnormals", "has_two_nan", "has_naninf")]
        return (f"fp {{ format {{ {' '.join(fields)} }} stochastic_rounding: {_bool(numerics.stochastic_rounding)} "
                f"clip_gradient: {_bool(numerics.clip_gradient)} }}")
    _refuse(where, kind.__name__, "use IntSymmetric, Fp8Numerics, FpNumerics or NoNumerics")
    raise AssertionError


def _int_symmetric(numerics: int_numerics.IntSymmetric, where: str) -> str:
    fields = [f"bits: {int(numerics.bits)}"]
    fields += [f"{name}: {_bool(getattr(numerics, name))}"
               for name in ("preserve_zero", "preserve_max_val", "clip", "clip_gradient", "round")]
    if numerics.dtype is None:
        fields.append('dtype: "none"')
    else:
        containers = ("s2", "s4", "s8", "s32", "f32", "bf16", "f16")
        fields.append(f'dtype: "{_dtype(numerics.dtype, containers, f"{where}.dtype")}"')
    if numerics.noise_fn is not None:
        fields.append(f"noise {{ {_noise(numerics.noise_fn, f'{where}.noise_fn')} }}")
    return " ".join(fields)


def _noise(noise: Any, where: str) -> str:
    axes: Any = ()
    if isinstance(noise, functools.partial):
        if noise.args or set(noise.keywords) - {"noise_sharing_axes"}:
            _refuse(where, noise, "give it noise_sharing_axes only")
        axes = noise.keywords.get("noise_sharing_axes", ())
        noise = noise.func
    kinds = {stochastic_rounding.JaxUniform: "NOISE_KIND_JAX_UNIFORM",
             stochastic_rounding.RandomCenteredUniform: "NOISE_KIND_RANDOM_CENTERED_UNIFORM"}
    if type(noise) not in kinds:
        _refuse(where, noise, "use JaxUniform or RandomCenteredUniform")
    # AQT compares the axes with those of the tensor, so negative ones share nothing.
    shared = [int(axis) for axis in axes if axis >= 0]
    return " ".join((f"kind: {kinds[type(noise)]}", *(f"noise_sharing_axes: {axis}" for axis in shared)))


# ---- calibrations


def _calibration(factory: Any, where: str) -> str:
    if factory is None:
        _refuse(where, None, "set it, because the numerics are not NoNumerics")
    keywords: dict[str, Any] = {}
    kind = factory
    while isinstance(kind, functools.partial):
        if kind.args:
            _refuse(where, factory, "give it keyword arguments only")
        keywords = {**kind.keywords, **keywords}
        kind = kind.func
    keywords.pop("dtype", None)  # the quantizer's scale_dtype replaces it
    write = _CALIBRATIONS.get(kind)
    if write is None:
        name = getattr(kind, "__name__", str(kind))
        remedy = "use AbsMaxCalibration, AbsMeanCalibration, ConstantCalibration or SnrBasedAutoCalibration"
        _refuse(where, name, remedy)
        raise AssertionError
    text = write(keywords, where)
    if keywords.pop("po2_scale", False):
        text += " po2_scale: true"
    if keywords:
        _refuse(f"{where}({', '.join(keywords)})", list(keywords.values()), "leave it out")
    return f"{_MESSAGES[kind]} {{ {text} }}"


def _abs_max(keywords: dict[str, Any], where: str) -> str:
    scale = keywords.pop("clipping_scale", None)
    return f"clipping_scale: {_number(scale, f'{where}.clipping_scale')}" if scale else ""


def _abs_mean(keywords: dict[str, Any], where: str) -> str:
    return " ".join(f"{name}: {_number(keywords.pop(name), f'{where}.{name}')}" for name in ("clipping_scale", "p"))


def _constant(keywords: dict[str, Any], where: str) -> str:
    text = f"bound {{ {_constant_value(keywords.pop('bound'), f'{where}.bound')} }}"
    bias = keywords.pop("bias", None)
    return text if bias is None else f"{text} bias {{ {_constant_value(bias, f'{where}.bias')} }}"


def _snr_search(keywords: dict[str, Any], where: str) -> str:
    candidates = keywords.pop("auto_clip_search_config")
    return " ".join(f"candidates: {_number(c, f'{where}.auto_clip_search_config')}" for c in candidates)


_CALIBRATIONS: dict[Any, Callable[[dict[str, Any], str], str]] = {
    aqt_calibration.AbsMaxCalibration: _abs_max,
    aqt_calibration.AbsMeanCalibration: _abs_mean,
    aqt_calibration.ConstantCalibration: _constant,
    aqt_calibration.SnrBasedAutoCalibration: _snr_search,
}
_MESSAGES = {
    aqt_calibration.AbsMaxCalibration: "abs_max",
    aqt_calibration.AbsMeanCalibration: "abs_mean",
    aqt_calibration.ConstantCalibration: "constant",
    aqt_calibration.SnrBasedAutoCalibration: "snr_search",
}


def _constant_value(value: Any, where: str) -> str:
    if isinstance(value, jax.core.Tracer):
        _refuse(where, "computed inside a traced function", "use a value that is known when the function is traced")
    if isinstance(value, (bool, int, float)):
        return f"number: {_number(value, where)}"
    array = np.asarray(value)
    name = _dtype(array.dtype, ("f32", "bf16", "f16"), where)
    numbers = np.asarray(jnp.asarray(value).astype(jnp.float32)).ravel()
    fields = [f'dtype: "{name}"', *(f"shape: {extent}" for extent in array.shape),
              *(f"values: {float(x)!r}" for x in numbers)]
    return f"array {{ {' '.join(fields)} }}"
