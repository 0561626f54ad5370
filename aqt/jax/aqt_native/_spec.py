"""What a call contracts, as the text that the library reads (aqt/jax/contraction_spec.h)."""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any, Sequence

import jax
import numpy as np

DimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]
Dims = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]

_NAMES = {
    "bool": "bool", "int2": "s2", "int4": "s4", "int8": "s8", "uint8": "u8", "int16": "s16", "int32": "s32",
    "uint32": "u32", "int64": "s64", "float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2", "float16": "f16",
    "bfloat16": "bf16", "float32": "f32", "float64": "f64",
}
_DTYPES = {ours: theirs for theirs, ours in _NAMES.items()}


def dtype_name(dtype: Any) -> str | None:
    """Our name of a dtype, or None if it has none."""
    return _NAMES.get(np.dtype(dtype).name)


def dtype_of(name: str) -> np.dtype:
    """The dtype that an array of ours has in JAX. 4-bit and 2-bit integers pass as int8."""
    import ml_dtypes  # pylint: disable=import-outside-toplevel

    theirs = _DTYPES[name]
    if theirs in ("int4", "int2"):
        return np.dtype(np.int8)
    return np.dtype(getattr(ml_dtypes, theirs, None) or theirs)


def aval_text(shape: Sequence[int], dtype: Any) -> str:
    """Dtype and shape as "f32[2,3]"."""
    name = dtype_name(dtype)
    if name is None:
        raise TypeError(f"aqt_native: arrays of {np.dtype(dtype).name} are not supported; cast them")
    return f"{name}[{','.join(str(extent) for extent in shape)}]"


def text_of(array: Any) -> str:
    """Dtype and shape of an array."""
    return aval_text(array.shape, array.dtype)


@functools.lru_cache(maxsize=4096)
def struct_of(aval: str) -> jax.ShapeDtypeStruct:
    """The inverse of aval_text."""
    name, extents = aval[:-1].split("[")
    return jax.ShapeDtypeStruct(tuple(int(extent) for extent in extents.split(",") if extent), dtype_of(name))


def normalized_dims(dimension_numbers: Any, lhs_rank: int, rhs_rank: int) -> Dims:
    """lax.dot_general's dimension numbers with axes that count from 0: contracting of lhs, rhs, batch of lhs, rhs."""
    positive = lambda axes, rank: tuple(operator.index(axis) + (rank if axis < 0 else 0) for axis in axes)
    try:
        (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = dimension_numbers
        return (positive(lhs_contracting, lhs_rank), positive(rhs_contracting, rhs_rank), positive(lhs_batch, lhs_rank),
                positive(rhs_batch, rhs_rank))
    except (TypeError, ValueError) as error:
        raise TypeError(f"aqt_native: dimension_numbers is {dimension_numbers!r}, expected ((lhs_contracting, "
                        "rhs_contracting), (lhs_batch, rhs_batch)), each a list of axes") from error


@dataclasses.dataclass(frozen=True)
class Spec:
    """A contraction. Hashable; equal texts share a plan in the library."""

    config: str  # textproto
    dims: Dims
    compat: str = "original"
    arithmetic: str = ""
    original_layout: bool = False
    levels: tuple[str, ...] = ()

    @functools.cached_property
    def text(self) -> str:
        lines = ["dims " + "|".join(",".join(str(axis) for axis in axes) for axes in self.dims)]
        if self.compat:
            lines.append(f"compat {self.compat}")
        if self.arithmetic:
            lines.append(f"arithmetic {self.arithmetic}")
        if self.original_layout:
            lines.append("layout original")
        if self.levels:
            lines.append("levels " + " ".join(self.levels))
        return "\n".join((*lines, "config", self.config))

    def with_level(self, shared: str) -> Spec:
        """The same contraction for each entry of a new leading axis of all arrays. `shared` has a digit per operand."""
        lhs_contracting, rhs_contracting, lhs_batch, rhs_batch = (tuple(axis + 1 for axis in axes) for axes in self.dims)
        dims = (lhs_contracting, rhs_contracting, (0, *lhs_batch), (0, *rhs_batch))
        return dataclasses.replace(self, dims=dims, levels=(shared, *self.levels))


def current_layout_is_original() -> bool:
    """Whether JAX now draws random numbers in its original layout."""
    return not getattr(jax.config, "jax_threefry_partitionable")
