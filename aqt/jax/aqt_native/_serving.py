"""Weights quantized once, for serving."""

from __future__ import annotations

import dataclasses
import operator
import re
from typing import Any, Mapping, Sequence

import jax
import jax.numpy as jnp

from aqt_native import _calls
from aqt_native._dot_general import DotGeneral, Options, split_key
from aqt_native._errors import NotSupportedError
from aqt_native._spec import Spec, aval_text, current_layout_is_original

# Flax's Dense, DenseGeneral with one input axis, and Embed's attend.
_DENSE = {r"(.*/)?kernel": (0,)}


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class QuantizedArray:
    """A tensor as integers and scales: value = qvalue * scales[0] * ..., in `dtype`.

    `panels` are the same integers as the kernels of this processor read them, if convert(..., packed=True) made them,
    and `packed_as` says how. They belong to the qvalue: where that is changed, leave them out.
    """

    qvalue: Any
    scales: tuple[Any, ...]
    dtype: Any
    panels: Any = None
    packed_as: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.qvalue.shape

    @property
    def ndim(self) -> int:
        return self.qvalue.ndim

    def dequantize(self) -> jax.Array:
        """The values, each product rounded to `dtype`."""
        return _calls.dequantize(_calls.as_int8(self.qvalue), self.scales, self.dtype)

    def tree_flatten(self) -> Any:
        return (self.qvalue, self.scales, self.panels), (self.dtype, self.packed_as)

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> QuantizedArray:
        qvalue, scales, panels = children
        dtype, packed_as = static
        return cls(qvalue, scales, dtype, panels, packed_as)


def convert(params: Any, config: Any, *, contracting: Mapping[str, Sequence[int]] | None = None, key: Any = None,
            packed: bool = False) -> Any:
    """The parameters with quantized weights, as AQT's freezer stores them: the same integers and scales.

    A DotGeneral of this package takes a QuantizedArray in place of an operand. The result is that of the float weight,
    to the bit.

    Args:
      params: a tree of arrays. A QuantizedArray stays as it is, but for `packed`.
      config: a DotGeneral of this package, or AQT's (accelerated or not). Weights are the rhs of its forward product.
      contracting: regular expressions for paths in the tree ("Dense_0/kernel"), with the axes of the weight that are
        contracted. Default: axis 0 of each array whose name is kernel.
      key: for stochastic rounding of weights.
      packed: also keep each weight as the kernels of this processor read it, so that calls do not pack it: the same
        bits, several times as fast for few rows, twice the memory. Not for checkpoints.

    Raises:
      NotSupportedError: the configuration does not quantize fwd.rhs, or not in a way that can be stored.
      ValueError: a pattern matches no array.
    """
    dot_general = _own(config)
    patterns = {pattern: (_compiled(pattern), _axes(axes, pattern))
                for pattern, axes in (_DENSE if contracting is None else contracting).items()}
    used = set()

    def one(path: Any, array: Any) -> Any:
        name = "/".join(_step(step) for step in path)
        for pattern, (compiled, axes) in patterns.items():
            if compiled.fullmatch(name):
                used.add(pattern)
                weight = _Weight(dot_general, array, axes, name)
                quantized = weight.quantized(key) if not isinstance(array, QuantizedArray) else array
                return weight.packed(quantized) if packed else quantized
        return array

    result = jax.tree_util.tree_map_with_path(one, params, is_leaf=lambda x: isinstance(x, QuantizedArray))
    unused = [pattern for pattern in patterns if pattern not in used]
    if unused:
        raise ValueError(f"aqt_native: no array of the parameters has a path like {unused[0]!r}")
    return result


def _step(step: Any) -> str:
    for field in ("key", "idx", "name"):
        if hasattr(step, field):
            return str(getattr(step, field))
    return str(step)


def _own(config: Any) -> DotGeneral:
    if isinstance(config, DotGeneral):
        return config
    from aqt_native._to_text import to_textproto  # pylint: disable=import-outside-toplevel

    return DotGeneral(to_textproto(config), getattr(config, "options", Options()))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(f"aqt_native: contracting has the pattern {pattern!r}, which is no regular expression: {error}"
                         ) from error


def _axes(axes: Any, pattern: str) -> tuple[int, ...]:
    try:
        return tuple(operator.index(axis) for axis in axes)
    except TypeError as error:
        raise TypeError(f"aqt_native: contracting[{pattern!r}] is {axes!r}, expected a list of axes such as (0,)") from error


class _Weight:
    """An array of the parameters as the rhs of a contraction."""

    def __init__(self, dot_general: DotGeneral, array: Any, axes: Sequence[int], name: str):
        self.array = array if isinstance(array, QuantizedArray) else jnp.asarray(array)
        self.name, rank = name, self.array.ndim
        axes = tuple(axis + (rank if axis < 0 else 0) for axis in axes)
        if any(not 0 <= axis < rank for axis in axes):
            raise ValueError(f"aqt_native: {name} has {rank} axes, but its contracting axes are {list(axes)}")
        # One row stands for any lhs: the weight does not depend on it.
        self.row = aval_text((1, *(self.array.shape[axis] for axis in axes)), self.array.dtype)
        dims = (tuple(range(1, len(axes) + 1)), axes, (), ())
        options = dot_general.options
        self.spec = Spec(dot_general.config, dims, options.compat, options.arithmetic, current_layout_is_original())

    def quantized(self, key: Any) -> QuantizedArray:
        """The integers and scales of the array."""
        keys = [None] * 6 if key is None else split_key(key)
        qvalue, *scales = _calls.quantize(self.spec, "rhs", self.array, self.row, keys[1])
        if not scales:
            raise NotSupportedError(f"aqt_native: the configuration does not quantize fwd.rhs, so {self.name} has no "
                                    "integers; set a quantizer with numerics")
        return QuantizedArray(qvalue, tuple(scales), self.array.dtype)

    def packed(self, array: QuantizedArray) -> QuantizedArray:
        """The same with panels."""
        own = aval_text(self.array.shape, self.array.dtype)
        qvalue = _calls.as_int8(array.qvalue)
        panels, packed_as = _calls.packed(self.spec, "rhs", self.row, own, qvalue, array.scales)
        return dataclasses.replace(array, panels=panels, packed_as=packed_as)
