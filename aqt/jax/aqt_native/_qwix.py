"""Qwix's quantization rules (qwix 0.1.8), and the configuration (configs/quant.proto) that each gives a contraction.

What a rule has and this library does not is refused by name; nothing is ignored. docs/coming-from-aqt-or-qwix.md has
the formulas.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple, NoReturn, Sequence

import numpy as np

from aqt_native import _library
from aqt_native._errors import NotSupportedError

# QuantizationRule and QtRule, with the defaults of a QtRule.
_DEFAULTS: dict[str, Any] = {
    "module_path": ".*",
    "op_names": (),
    "weight_qtype": None,
    "act_qtype": None,
    "tile_size": None,
    "act_static_scale": None,
    "weight_calibration_method": "absmax",
    "act_calibration_method": None,
    "act_batch_axes": (0,),  # read only with act_static_scale
    "bwd_qtype": None,
    "bwd_calibration_method": "absmax",
    "bwd_weight_grad_tile_size": None,
    "disable_channelwise_axes": False,
    "bwd_stochastic_rounding": None,
    "channelwise_noise_axes": (0,),
    "additional_qt_config": None,
}
OPS = ("dot_general", "einsum")
# The smallest tile whose product Qwix computes before it dequantizes.
_MIN_TILE_OF_INTEGERS = 128
_WEIGHTS = ("lhs", "rhs", "none")


def refuse(where: str, value: Any, remedy: str) -> NoReturn:
    raise NotSupportedError(f"aqt_native: {where} is {value!r}, which this library does not have; {remedy}")


class QType(NamedTuple):
    """A type of quantized numbers."""

    name: str
    bits: int  # of integers; 0 for 8-bit floats
    is_native: bool  # a dtype, not one of Qwix's names such as "int3"

    @property
    def bound(self) -> float:
        """What the bound of a calibration is mapped to."""
        if self.bits:
            return 2.0 ** (self.bits - 1) - 0.5
        return 448.0 if self.name == "float8_e4m3fn" else 57344.0


class Calibration(NamedTuple):
    """How the bound of an operand is found."""

    method: str  # "absmax", "rms" or "fixed"
    argument: float | None = None

    @property
    def clips(self) -> bool:
        """Whether values may exceed the bound; their gradients are then 0."""
        return self.method != "absmax" or (self.argument is not None and self.argument < 1)


class Rule(NamedTuple):
    """A rule as it is understood here."""

    name: str  # for messages: "rules[2]"
    module_path: str
    op_names: tuple[str, ...]  # empty: all
    weight: QType | None
    act: QType | None
    tile_size: int | float | None
    weight_calibration: Calibration
    act_calibration: Calibration
    bwd: QType | None
    bwd_calibration: Calibration
    bwd_tile_size: int | float | None
    per_tensor: bool
    noise: bool
    noise_axes: tuple[int, ...]
    clips_gradient: bool

    def matches(self, module_path: str, op_name: str) -> bool:
        return bool(re.fullmatch(self.module_path, module_path)) and (not self.op_names or op_name in self.op_names)

    @property
    def is_symmetric(self) -> bool:
        """Whether weights and activations are quantized in the same way."""
        same = self.weight == self.act and self.weight_calibration == self.act_calibration
        return same and (self.bwd is None or not self.bwd_tile_size)


# ---- reading


def read_rules(rules: Sequence[Any]) -> tuple[Rule, ...]:
    """Qwix's rules. NotSupportedError names the field that this library does not have."""
    if not isinstance(rules, (list, tuple)):
        raise TypeError(f"aqt_native: expected a list of qwix.QuantizationRule, got {type(rules).__name__}")
    return tuple(_read_rule(rule, f"rules[{i}]") for i, rule in enumerate(rules))


def _read_rule(rule: Any, name: str) -> Rule:
    if not dataclasses.is_dataclass(rule) or isinstance(rule, type) or not hasattr(rule, "module_path"):
        raise TypeError(f"aqt_native: {name} is a {type(rule).__name__}, expected a qwix.QuantizationRule or QtRule")
    given = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    for field in given:
        if field not in _DEFAULTS:
            refuse(f"{name}.{field}", given[field], f"use QuantizationRule or QtRule, not {type(rule).__name__}")
    fields = {**_DEFAULTS, **given}
    if not isinstance(fields["module_path"], str):
        raise TypeError(f"aqt_native: {name}.module_path is {fields['module_path']!r}, expected a regular expression")
    try:
        re.compile(fields["module_path"])
    except re.error as error:
        raise ValueError(f"aqt_native: {name}.module_path is {fields['module_path']!r}: {error}") from error
    if fields["act_static_scale"]:
        refuse(f"{name}.act_static_scale", True, "leave it out: ranges are found in each call")
    if fields["act_static_scale"] is not None and fields["act_qtype"] is None:
        raise ValueError(f"aqt_native: {name}.act_static_scale is set, but act_qtype is not; Qwix refuses this, too")
    options = dict(fields["additional_qt_config"] or {})
    clips_gradient = not options.pop("disable_gradient_clipping", False)
    for option, value in options.items():
        refuse(f"{name}.additional_qt_config[{option!r}]", value, "only disable_gradient_clipping is known here")
    act_calibration = fields["act_calibration_method"]
    result = Rule(
        name=name,
        module_path=fields["module_path"],
        op_names=_op_names(fields["op_names"], f"{name}.op_names"),
        weight=_qtype(fields["weight_qtype"], f"{name}.weight_qtype"),
        act=_qtype(fields["act_qtype"], f"{name}.act_qtype"),
        tile_size=_tile_size(fields["tile_size"], f"{name}.tile_size"),
        weight_calibration=_calibration(fields["weight_calibration_method"], f"{name}.weight_calibration_method"),
        act_calibration=_calibration("absmax" if act_calibration is None else act_calibration,
                                     f"{name}.act_calibration_method"),
        bwd=_qtype(fields["bwd_qtype"], f"{name}.bwd_qtype"),
        bwd_calibration=_calibration(fields["bwd_calibration_method"], f"{name}.bwd_calibration_method"),
        bwd_tile_size=_tile_size(fields["bwd_weight_grad_tile_size"], f"{name}.bwd_weight_grad_tile_size"),
        per_tensor=bool(fields["disable_channelwise_axes"]),
        noise=_noise(fields["bwd_stochastic_rounding"], f"{name}.bwd_stochastic_rounding"),
        noise_axes=tuple(int(axis) for axis in fields["channelwise_noise_axes"]),
        clips_gradient=clips_gradient,
    )
    _check_together(result)
    return result


def _op_names(names: Any, where: str) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"aqt_native: {where} is {names!r}, expected a list of names")
    for name in names:
        if name not in OPS:
            refuse(where, name, "only the contractions " + " and ".join(OPS) + " are quantized here")
    return tuple(names)


def _qtype(qtype: Any, where: str) -> QType | None:
    if qtype is None:
        return None
    if isinstance(qtype, str) and qtype in ("int2", "int3", "int5", "int6", "int7"):
        return QType(qtype, int(qtype[3:]), False)
    try:
        name = qtype if isinstance(qtype, str) and qtype in ("nf4", "mxfp8", "mxfp4", "nvfp4") else _dtype_name(qtype)
    except TypeError:
        name = str(qtype)
    if name in ("int2", "int4", "int8"):
        return QType(name, int(name[3:]), True)
    if name in ("float8_e4m3fn", "float8_e5m2"):
        return QType(name, 0, True)
    refuse(where, name, "use int8, int4, int2, 'int2' to 'int7', float8_e4m3fn or float8_e5m2")


def _dtype_name(qtype: Any) -> str:
    if isinstance(qtype, str):
        import ml_dtypes  # pylint: disable=import-outside-toplevel

        qtype = getattr(ml_dtypes, qtype, qtype)
    return np.dtype(qtype).name


def _tile_size(size: Any, where: str) -> int | float | None:
    if size is None or size == 0:
        return None
    if not isinstance(size, (int, float, np.integer, np.floating)) or not 0 < size < float("inf"):
        raise ValueError(f"aqt_native: {where} is {size!r}, expected a positive number: an integer is the size of a "
                         "tile, 0.25 means four tiles")
    return float(size) if isinstance(size, (float, np.floating)) else int(size)


def _calibration(text: Any, where: str) -> Calibration:
    if not isinstance(text, str):
        raise TypeError(f"aqt_native: {where} is {text!r}, expected a method such as 'absmax'")
    method, *words = text.lower().split(",")
    try:
        numbers = [float(word) for word in words]
    except ValueError as error:
        raise ValueError(f"aqt_native: {where} is {text!r}; expected numbers after the method") from error
    if not all(np.isfinite(numbers)):
        refuse(where, text, "use finite numbers")
    if method == "minmax":
        refuse(where, text, "its integers have a zero point; use 'absmax', 'rms,SCALE' or 'fixed,BOUND'")
    if method == "fixed" and len(numbers) == 2 and numbers[0] != -numbers[1]:
        refuse(where, text, "the range is not symmetric, so its integers would have a zero point; use 'fixed,BOUND'")
    expected = {"absmax": (0, 1), "rms": (1,), "fixed": (1, 2)}
    if method not in expected:
        refuse(where, text, "use 'absmax', 'absmax,SCALE', 'rms,SCALE' or 'fixed,BOUND'")
    if len(numbers) not in expected[method]:
        raise ValueError(f"aqt_native: {where} is {text!r}, which has {len(numbers)} numbers, expected "
                         + " or ".join(str(count) for count in expected[method]))
    argument = numbers[-1] if numbers else None
    if argument is not None and argument <= 0:
        refuse(where, text, "use a positive number")
    return Calibration(method, argument)


def _noise(method: Any, where: str) -> bool:
    if method is None:
        return False
    if method != "uniform":
        refuse(where, method, "use 'uniform' or None")
    return True


def _check_together(rule: Rule) -> None:
    """Refuses fields that cannot be used with each other here."""
    if rule.weight is None:
        return  # Qwix leaves such an operation alone
    for role, qtype, calibration in (("weight", rule.weight, rule.weight_calibration),
                                     ("act", rule.act, rule.act_calibration)):
        if qtype is None:
            continue
        if qtype.bits == 0 and calibration.clips and rule.clips_gradient:
            refuse(f"{rule.name}.{role}_calibration_method", ",".join(str(x) for x in calibration),
                   f"with {qtype.name} gradients of clipped values would pass; use 'absmax', or set "
                   "additional_qt_config={'disable_gradient_clipping': True}")
        if rule.bwd is not None and not qtype.is_native and not rule.tile_size:
            refuse(f"{rule.name}.{role}_qtype", qtype.name,
                   "Qwix cannot use it with bwd_qtype, either; use int4 or int8, or no bwd_qtype")
    if rule.tile_size and rule.per_tensor:
        refuse(f"{rule.name}.disable_channelwise_axes", True, "leave it out, or leave out tile_size")
    if rule.bwd is None:
        return
    if rule.bwd_tile_size and rule.per_tensor:
        refuse(f"{rule.name}.disable_channelwise_axes", True, "leave it out, or leave out bwd_weight_grad_tile_size")
    if rule.bwd_tile_size and rule.noise and rule.bwd.bits and rule.bwd.is_native:
        refuse(f"{rule.name}.bwd_weight_grad_tile_size", rule.bwd_tile_size,
               "leave it out, or leave out bwd_stochastic_rounding")


# ---- one contraction


class Operation(NamedTuple):
    """A contraction. Without `shapes`, it is that of a dense layer: [..., k] x [k, n]."""

    weight: str  # the operand that is a weight: "lhs", "rhs" or "none"
    dims: Any = None  # contracting axes of lhs, of rhs, batch axes of lhs, of rhs
    shapes: Any = None  # of lhs, of rhs
    dtype: str = "f32"


class _Side(NamedTuple):
    """How one operand of fwd is quantized."""

    qtype: QType
    calibration: Calibration
    tiles: int  # of the last contracting axis; 0: it is not tiled


def _tile(where: str, size: int | float, extent: int) -> int:
    """The size of a tile of an axis."""
    resolved = round(extent * size) if isinstance(size, float) else size
    if resolved <= 0 or extent % resolved != 0:
        raise ValueError(f"aqt_native: {where} is {size}, but the axis has {extent} elements, which are not a multiple")
    return resolved


class _Writer:
    """Writes the configuration that a rule gives a contraction."""

    def __init__(self, rule: Rule, operation: Operation):
        if operation.weight not in _WEIGHTS:
            raise ValueError(f"aqt_native: weight is {operation.weight!r}, expected one of {', '.join(_WEIGHTS)}")
        self.rule, self.operation = rule, operation
        self.tile = self._forward_tile()
        self.sides = {side: self._side(side) for side in ("lhs", "rhs")}
        self.is_tiled = any(side is not None and side.tiles for side in self.sides.values())

    def _axis(self, side: str) -> tuple[int, int]:
        """The last contracting axis of an operand, and its extent."""
        contracting = self.operation.dims[0 if side == "lhs" else 1]
        if not contracting:
            raise ValueError(f"aqt_native: {self.rule.name} has a tile_size, but the contraction has no contracting axis")
        shape = self.operation.shapes[0 if side == "lhs" else 1]
        return contracting[-1], shape[contracting[-1]]

    def _forward_tile(self) -> int:
        """The size of a tile; 0 without one."""
        size, where = self.rule.tile_size, f"{self.rule.name}.tile_size"
        if not size:
            return 0
        if self.operation.shapes is None:
            if isinstance(size, float):
                refuse(where, size, "write the size of a tile as an integer, because the axis is not known here")
            tile, extent = size, 0
        else:
            extent = self._axis("lhs")[1]
            tile = _tile(where, size, extent)
        if tile == 1 and extent != 1:
            refuse(where, size, "each element would have its own scale; use larger tiles")
        return 0 if tile == extent else tile

    def _side(self, side: str) -> _Side | None:
        is_weight = self.operation.weight == side
        qtype = self.rule.weight if is_weight else self.rule.act
        if qtype is None:
            return None
        calibration = self.rule.weight_calibration if is_weight else self.rule.act_calibration
        return _Side(qtype, calibration, self.tile if calibration.method != "fixed" else 0)

    # ---- the text

    def text(self) -> str:
        lines = ["schema: 1", self._forward()]
        if self.rule.bwd is not None:
            lines += [self._gradient("dlhs"), self._gradient("drhs")]
        if self.is_tiled:
            axes = {"lhs": -1, "rhs": 0}
            if self.operation.shapes is not None:
                axes = {side: self._axis(side)[0] for side in axes}
            tiles = (f"{side} {{ contraction_axes {{ axis: {axis} tile_size: {self.tile} }} }}"
                     for side, axis in axes.items())
            lines.append(f"tiling {{ {' '.join(tiles)} }}")
        return "\n".join(lines)

    def _forward(self) -> str:
        lhs, rhs = self.sides["lhs"], self.sides["rhs"]
        # Qwix dequantizes before the product if an operand is a float or has small tiles.
        on_output = lhs is not None and rhs is not None and not (self.is_tiled and self.tile < _MIN_TILE_OF_INTEGERS)
        tensors = []
        for name, side in self.sides.items():
            if side is None:
                tensors.append(f"{name} {{}}")
                continue
            clips = side.calibration.clips and self.rule.clips_gradient
            quantizer = (_numerics(side.qtype, clips) + " " + _calibration_text(side.calibration) +
                         self._per_tensor(side.calibration))
            tensors.append(_tensor(name, quantizer, on_output))
        accumulator = self._accumulator(lhs.qtype, rhs.qtype) if on_output else ""  # type: ignore[union-attr]
        return f"fwd {{ {' '.join(tensors)}{accumulator} }}"

    def _per_tensor(self, calibration: Calibration) -> str:
        per_tensor = self.rule.per_tensor or calibration.method == "fixed"
        return " calib_shared_axes { per_tensor: true }" if per_tensor else ""

    def _accumulator(self, a: QType, b: QType) -> str:
        return f' dg_accumulator_dtype: "{"s32" if a.bits and b.bits else self.operation.dtype}"'

    def _gradient(self, product: str) -> str:
        """dlhs or drhs: g is quantized; the other operand is the qvalue of fwd if it has one without tiles."""
        rule = self.rule
        assert rule.bwd is not None
        other = self.sides["rhs" if product == "dlhs" else "lhs"]
        reused = other.qtype if other is not None and not other.tiles else None
        if reused is not None and not reused.bits and self.operation.dtype == "f16":
            refuse(f"{rule.name}.bwd_qtype", rule.bwd.name, "Qwix's gradients of float16 operands are then float32; "
                   "use integers, or leave bwd_qtype out")
        if reused is not None and not reused.is_native:
            refuse(f"{rule.name}.bwd_qtype", rule.bwd.name, f"Qwix cannot use it with {reused.name}, either")
        is_weight = self.operation.weight == ("lhs" if product == "dlhs" else "rhs")
        tile, tiles = self._gradient_tile(product) if is_weight and rule.bwd_tile_size else (0, 0)
        if rule.bwd_calibration.method == "fixed":
            tile = tiles = 0  # one scale
        on_output = reused is not None and not 0 < tile < _MIN_TILE_OF_INTEGERS
        quantizer = (_numerics(rule.bwd, False, self._noise()) + " " +
                     _calibration_text(rule.bwd_calibration) + self._per_tensor(rule.bwd_calibration))
        parts = [_tensor("lhs", quantizer, on_output)]
        if reused is not None and on_output:
            # The bound gives the scale 1, so that the integers of fwd stay as they are.
            kept = f"{_numerics(reused, False)} constant {{ bound {{ number: {reused.bound!r} }} }}"
            shared = "" if tiles else " calib_shared_axes { per_tensor: true }"
            parts.append(f"rhs {{ quantizer {{ {kept}{shared} }} use_fwd_quant: true }}")
            parts.append(self._accumulator(rule.bwd, reused).strip())
        elif reused is not None:
            parts.append("rhs { use_fwd_quant: true }")
        else:
            parts.append("rhs {}")
        if tiles:
            parts.append(f"local_aqt {{ contraction_axis_shard_count: {tiles} }}")
        return f"{product} {{ {' '.join(parts)} }}"

    def _gradient_extents(self, product: str) -> list[int]:
        """The extents of g that a gradient sums over."""
        side = 1 if product == "dlhs" else 0
        dims, shape = self.operation.dims, self.operation.shapes[side]
        return [extent for axis, extent in enumerate(shape) if axis not in dims[side] and axis not in dims[2 + side]]

    def _gradient_tile(self, product: str) -> tuple[int, int]:
        """The size of a tile and their number; (0, 0) for a single one."""
        where, size = f"{self.rule.name}.bwd_weight_grad_tile_size", self.rule.bwd_tile_size
        assert size is not None
        if self.operation.shapes is None:
            refuse(where, size, "the axis is not known here; leave it out, or use from_qwix(rules) in JAX")
        extents = self._gradient_extents(product)
        if len(extents) != 1:
            refuse(where, size, f"the gradient sums over {len(extents)} axes; reshape to one, or leave it out")
        tile = _tile(where, size, extents[0])
        return (0, 0) if tile == extents[0] else (tile, extents[0] // tile)

    def _noise(self) -> str:
        rule = self.rule
        assert rule.bwd is not None
        if not rule.noise or not rule.bwd.bits or not rule.bwd.is_native:
            return ""  # Qwix adds noise only to integers that are dtypes
        if self.operation.shapes is None:
            refuse(f"{rule.name}.bwd_stochastic_rounding", "uniform",
                   "the axes that share noise are not known here; leave it out, or use from_qwix(rules) in JAX")
        (lhs, rhs), dims = self.operation.shapes, self.operation.dims
        rank = len(lhs) + len(rhs) - 2 * len(dims[0]) - len(dims[2])
        first = 1 if self.is_tiled else 0  # an axis of tiles comes before those of g
        shared = list(range(first)) + [axis + first for axis in range(rank) if axis not in rule.noise_axes]
        axes = "".join(f" noise_sharing_axes: {axis}" for axis in shared)
        return f" noise {{ kind: NOISE_KIND_JAX_UNIFORM{axes} }}"


def _tensor(name: str, quantizer: str, on_output: bool) -> str:
    mode = "" if on_output else " dequant_mode: DEQUANT_MODE_THIS_INPUT"
    return f"{name} {{ quantizer {{ {quantizer} }}{mode} }}"


def _numerics(qtype: QType, clips_gradient: bool, noise: str = "") -> str:
    if not qtype.bits:
        dtype, exponent, mantissa = ("e4m3fn", 4, 3) if qtype.name == "float8_e4m3fn" else ("e5m2", 5, 2)
        return f'fp8 {{ dtype: "{dtype}" exponent_bits: {exponent} mantissa_bits: {mantissa} }}'
    container = "s8" if qtype.bits > 4 else "s4"
    mask = " clip_gradient: true" if clips_gradient else ""
    return f'int_symmetric {{ bits: {qtype.bits} dtype: "{container}"{mask}{noise} }}'


def _calibration_text(calibration: Calibration) -> str:
    method, argument = calibration
    if method == "absmax":
        return "abs_max {}" if argument is None else f"abs_max {{ clipping_scale: {argument!r} }}"
    if method == "rms":
        return f"abs_mean {{ p: 2.0 clipping_scale: {argument!r} }}"
    return f"constant {{ bound {{ number: {argument!r} }} }}"


def contraction_text(rule: Rule, operation: Operation) -> str:
    """The configuration that a rule with a weight_qtype gives a contraction."""
    return _Writer(rule, operation).text()


# ---- all rules, as an injection

_ORIGINS = {"rhs": ("OPERAND_ORIGIN_DATA", "OPERAND_ORIGIN_PARAM"), "lhs": ("OPERAND_ORIGIN_PARAM", "OPERAND_ORIGIN_DATA"),
            "none": ("OPERAND_ORIGIN_DATA", "OPERAND_ORIGIN_DATA")}
# What re has and RE2 does not: look-around, references, conditions, atomic groups, possessive repetition, comments.
_NOT_IN_RE2 = re.compile(r"\(\?(?:[=!>#(]|<[=!]|P=)|\\[1-9]|[*+?}]\+")


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def inject_text(rules: Sequence[Rule]) -> str:
    """The rules as a textproto of aqt.config.Inject (configs/inject.proto)."""
    lines = ["schema: 1"]
    splits = False
    for rule in rules:
        found = _NOT_IN_RE2.search(rule.module_path)
        if found is not None:
            refuse(f"{rule.name}.module_path", rule.module_path,
                   f"{found.group()!r} is not in RE2, the regular expressions of injections; write it without")
        ops = " ".join(f"ops: {_text(op)}" for op in rule.op_names or OPS)
        where = f"scope: {_text(rule.module_path)} {ops}"
        if rule.weight is None:
            lines.append(f"rules {{ name: {_text(rule.name)} {where} keep: true }}")
            continue
        by_weight = {weight: contraction_text(rule, Operation(weight)) for weight in ("rhs", "lhs", "none")}
        if len(set(by_weight.values())) == 1:
            lines.append(f"rules {{ name: {_text(rule.name)} {where}\ndot_general {{\n{by_weight['rhs']}\n}} }}")
            continue
        splits = True
        for weight, text in by_weight.items():
            lhs, rhs = _ORIGINS[weight]
            name = f"{rule.name}, {'no weight' if weight == 'none' else 'the weight is ' + weight}"
            lines.append(f"rules {{ name: {_text(name)} {where} lhs_origin: {lhs} rhs_origin: {rhs}\n"
                         f"dot_general {{\n{text}\n}} }}")
    if splits:
        lines.append("strict: false")  # few models have weights on each side
    lines.append(f"compat {{ {_library.compat_text('qwix')} }}")
    return "\n".join(lines) + "\n"
