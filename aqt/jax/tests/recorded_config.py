"""The configurations of the recorded cases (tests/golden/aqt/manifest.json) as textprotos."""

import numpy as np

DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int32": "s32", "int8": "s8", "int4": "s4", "int2": "s2",
          "float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2"}
NOISES = {"jax.uniform": "NOISE_KIND_JAX_UNIFORM", "custom-1": "NOISE_KIND_RANDOM_CENTERED_UNIFORM"}
CALIBRATIONS = {"absmax": "abs_max", "absmean": "abs_mean", "constant": "constant", "snr": "snr_search",
                "mean_of_absmax": "mean_of_abs_max"}


def _value(value):
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _fields(json, names):
    return " ".join(f"{name}: {_value(json[name])}" for name in names if json.get(name) is not None)


def _dtype(name):
    return f'"{DTYPES[name] if name is not None else "none"}"'


def _numerics(json):
    if json["type"] == "none":
        return "no_numerics {}"
    if json["type"] == "int":
        text = _fields(json, ("bits", "preserve_zero", "preserve_max_val", "clip", "clip_gradient", "round"))
        text += f" dtype: {_dtype(json['container_dtype'])}"
        if json["noise"]:
            axes = " ".join(f"noise_sharing_axes: {axis}" for axis in json["noise"].get("noise_sharing_axes", ()))
            text += f" noise {{ kind: {NOISES[json['noise']['kind']]} {axes} }}"
        return f"int_symmetric {{ {text} }}"
    if json["type"] == "fp8":
        return (f"fp8 {{ dtype: {_dtype(json['dtype'])} "
                f"{_fields(json, ('exponent_bits', 'mantissa_bits', 'stochastic_rounding'))} }}")
    cfg = _fields(json["cfg"], ("nexp", "minexp", "nmant", "has_subnormals", "has_two_nan", "has_naninf", "radix"))
    return f"fp {{ format {{ {cfg} }} {_fields(json, ('stochastic_rounding', 'clip_gradient'))} }}"


def _constant(value, inputs):
    if not isinstance(value, str):
        return f"number: {float(value)!r}"
    array = inputs[value.removeprefix("input ")]
    shape = " ".join(f"shape: {extent}" for extent in array.shape)
    values = " ".join(f"values: {float(x)!r}" for x in np.asarray(array).astype(np.float64).ravel())
    return f'array {{ dtype: "{DTYPES[array.dtype.name]}" {shape} {values} }}'


def _calibration(json, inputs):
    text = _fields(json, ("po2_scale", "clipping_scale", "p"))
    if json["kind"] == "constant":
        text += f" bound {{ {_constant(json['bound'], inputs)} }}"
        if json.get("bias") is not None:
            text += f" bias {{ {_constant(json['bias'], inputs)} }}"
    for candidate in json.get("auto_clip_search_config", ()):
        text += f" candidates: {candidate!r}"
    return f"{CALIBRATIONS[json['kind']]} {{ {text} }}"


def quantizer(json, inputs, axes=None):
    """A message Quantizer. `axes` replaces the recorded ones."""
    parts = [_numerics(json["numerics"])]
    shared = json["calibration_axes"] if axes is None else axes
    if shared == "per_tensor":
        parts.append("calib_shared_axes { per_tensor: true }")
    elif shared:
        parts.append("calib_shared_axes { " + " ".join(f"axes: {axis}" for axis in shared) + " }")
    if json["calibration"]:
        parts.append(_calibration(json["calibration"], inputs))
        if json["calibration"].get("scale_dtype"):
            parts.append(f"scale_dtype: {_dtype(json['calibration']['scale_dtype'])}")
    return " ".join(parts)


def _tensor(json, inputs):
    return (f"quantizer {{ {quantizer(json, inputs)} }} use_fwd_quant: {_value(json['use_fwd_quant'])} "
            f"dequant_mode: DEQUANT_MODE_{json['dequant_mode'].upper()} "
            f"calibration_mode: CALIBRATION_MODE_{json['calibration_mode'].upper()}")


def _product(json, inputs):
    text = f"lhs {{ {_tensor(json['lhs'], inputs)} }} rhs {{ {_tensor(json['rhs'], inputs)} }}"
    text += f" dg_accumulator_dtype: {_dtype(json['dg_accumulator_dtype'])} "
    text += _fields(json, ("lhs_mid_alpha", "rhs_mid_alpha"))
    if json["local_aqt"]:
        names = ("contraction_axis_shard_count", "contraction_axis_shard_size", "tile_largest_shape")
        text += f" local_aqt {{ {_fields(json['local_aqt'], names)} }}"
    return text


def dot_general(json, inputs):
    """A message DotGeneral."""
    return "schema: 1 " + " ".join(f"{name} {{ {_product(json[name], inputs)} }}" for name in ("fwd", "dlhs", "drhs"))
