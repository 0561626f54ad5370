"""NumPy arrays as arrays of the library."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Sequence
from ctypes import c_int64
from typing import Any

import numpy as np

from aqt_native.numpy import _library
from aqt_native.numpy._errors import InvalidArgumentError

# The library's number and its name of each NumPy dtype.
_DTYPES = {"bool": (1, "bool"), "int2": (2, "s2"), "int4": (3, "s4"), "int8": (4, "s8"), "uint8": (5, "u8"),
           "int16": (6, "s16"), "int32": (7, "s32"), "uint32": (8, "u32"), "int64": (9, "s64"),
           "float8_e4m3fn": (10, "e4m3fn"), "float8_e5m2": (11, "e5m2"), "float16": (12, "f16"),
           "bfloat16": (13, "bf16"), "float32": (14, "f32"), "float64": (15, "f64")}
_NAMES = {number: name for name, (number, _) in _DTYPES.items()}
_OWN_NAMES = {own: name for name, (_, own) in _DTYPES.items()}
_OF_ML_DTYPES = {"int2", "int4", "float8_e4m3fn", "float8_e5m2", "bfloat16"}


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of that name; those of ml_dtypes are imported."""
    if name not in _OF_ML_DTYPES:
        return np.dtype(name)
    try:
        module = importlib.import_module("ml_dtypes")
        dtype: np.dtype[Any] = np.dtype(getattr(module, name))
        return dtype
    except (ImportError, AttributeError) as error:
        raise ImportError(f"aqt_native: {name} needs the package ml_dtypes in a version that has it; "
                          "pip install ml_dtypes") from error


def to_dtype(dtype: Any) -> np.dtype[Any]:
    """A dtype from what NumPy takes, or the name of one: "bfloat16", or "bf16" as in configurations."""
    if isinstance(dtype, str):
        name = _OWN_NAMES.get(dtype, dtype)
        return dtype_of(name) if name in _OF_ML_DTYPES else np.dtype(name)
    made: np.dtype[Any] = np.dtype(dtype)
    return made


@functools.lru_cache(maxsize=256)
def _known(dtype: np.dtype[Any]) -> int:
    """The library's number of a dtype; 0 for one that it does not have. (The name of a dtype takes long to find.)"""
    return _DTYPES[dtype.name][0] if dtype.isnative and dtype.name in _DTYPES else 0


def number_of(dtype: np.dtype[Any], what: str) -> int:
    """The library's number of a dtype."""
    if number := _known(dtype):
        return number
    if dtype.name not in _DTYPES:
        raise InvalidArgumentError(f"{what} has the dtype {dtype}, expected one of {', '.join(_DTYPES)}")
    raise InvalidArgumentError(f"{what} has bytes in the order of another machine; use "
                               "x.astype(x.dtype.newbyteorder('='))")


def name_of(number: int) -> str:
    """The name of the dtype of a number."""
    return _NAMES[number]


def dtype_from(number: int) -> np.dtype[Any]:
    """The dtype of a number: int8 for int4 and int2 without ml_dtypes."""
    try:
        return dtype_of(_NAMES[number])
    except ImportError:
        if number in (_DTYPES["int2"][0], _DTYPES["int4"][0]):
            return np.dtype(np.int8)
        raise


def integers(values: Sequence[int]) -> Any:
    """A C array of 64-bit integers."""
    return (c_int64 * len(values))(*values)


class Ref:
    """An array for the library, and the memory that it refers to."""

    def __init__(self, array: np.ndarray[Any, Any], what: str, *, writable: bool = False) -> None:
        if writable and not array.flags.writeable:
            raise InvalidArgumentError(f"{what} is read-only; give an array that can be written")
        self.array = array
        self._dims, self._strides = integers(array.shape), integers(array.strides)
        self.struct = _library.Array(array.ctypes.data, number_of(array.dtype, what), array.ndim, self._dims,
                                     self._strides)
        self.pointer = ctypes.pointer(self.struct)


def input_array(value: Any, what: str) -> np.ndarray[Any, Any]:
    """The value as an array. It is copied only if it is no array, not aligned, or of int2 or int4."""
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidArgumentError(f"{what} is a masked array, whose mask would be lost; use {what}.filled(VALUE)")
    array = np.asarray(value)
    if _known(array.dtype) in (2, 3):  # int2 and int4: how the unused bits are set is up to ml_dtypes
        whole: np.ndarray[Any, Any] = array.astype(np.int8)
        return whole.view(array.dtype)
    return array if array.flags.aligned else array.copy()


def input_ref(value: Any, what: str) -> Ref:
    """An array that is read."""
    return Ref(input_array(value, what), what)


def narrow_ref(value: Any, dtype: str, what: str) -> Ref:
    """An array of int8 with values of int4 or int2, as an array of these."""
    array = input_array(value, what)
    if dtype not in ("int2", "int4") or array.dtype != np.int8:
        raise InvalidArgumentError(f"{what}_dtype is {dtype!r} for an array of {array.dtype}, expected \"int4\" or "
                                   "\"int2\" for an array of int8")
    largest = 7 if dtype == "int4" else 1
    if array.size > 0 and (array.max() > largest or array.min() < -largest - 1):
        raise InvalidArgumentError(f"{what} has values from {array.min()} to {array.max()}, expected "
                                   f"{-largest - 1} .. {largest} for {dtype}")
    ref = Ref(array, what)
    ref.struct.dtype = _DTYPES[dtype][0]
    return ref


def output_ref(out: np.ndarray[Any, Any] | None, shape: Sequence[int], dtype: np.dtype[Any], what: str) -> Ref:
    """An array that is written: `out`, or a new one."""
    if out is None:
        return Ref(np.empty(tuple(shape), dtype), what, writable=True)
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{what} is {type(out).__name__}, expected numpy.ndarray")
    return Ref(out, what, writable=True)


def spec_of(value: Any, what: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an array, of (shape, dtype), or of anything with these attributes."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return tuple(int(n) for n in value.shape), to_dtype(value.dtype)
    if isinstance(value, tuple) and len(value) == 2 and not np.isscalar(value[0]):
        return tuple(int(n) for n in value[0]), to_dtype(value[1])
    raise TypeError(f"{what} is {value!r}, expected an array or (shape, dtype)")


def aval_of(shape: Sequence[int], dtype: np.dtype[Any], what: str) -> _library.Aval:
    """Shape and dtype for the library."""
    return _library.Aval(number_of(dtype, what), len(shape), integers(shape))


def from_aval(aval: _library.Aval) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype from the library."""
    return tuple(aval.dims[axis] for axis in range(aval.rank)), dtype_from(aval.dtype)


def view_of(struct: _library.Array, owner: Any) -> np.ndarray[Any, Any]:
    """A dense array in the library's memory, read-only, which keeps `owner` alive."""
    shape = tuple(struct.dims[axis] for axis in range(struct.rank))
    dtype = dtype_from(struct.dtype)
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(struct.data)
    memory._owner = owner  # pylint: disable=protected-access
    array: np.ndarray[Any, Any] = np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)
    array.flags.writeable = False
    return array
