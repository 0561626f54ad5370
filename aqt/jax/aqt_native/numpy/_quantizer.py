"""Quantizers and quantized tensors."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from aqt_native.numpy import _arrays, _library, _options
from aqt_native.numpy._errors import InvalidArgumentError

_QVALUE, _SCALE, _BIAS = 0, 1, 2


def _structs(refs: Sequence[_arrays.Ref]) -> Any:
    return (_library.Array * len(refs))(*(ref.struct for ref in refs))


class QuantizedTensor:
    """x ~ qvalue * scales[0] * scales[1] * ... - biases[0] - ...

    The arrays are read-only. Scales and biases have the rank of the qvalue, and 1 or its extent along each axis. Without a
    qvalue there are only scales. A qvalue of int4 or int2 is an array of int8 if ml_dtypes is missing; qvalue_dtype, "int4"
    or "int2", says so when one is made from such an array.
    """

    _handle: _library.Handle

    def __init__(self, qvalue: Any = None, scales: Sequence[Any] = (), biases: Sequence[Any] = (), *,
                 dequant_dtype: Any = np.float32, qvalue_dtype: str | None = None) -> None:
        value = (None if qvalue is None else _arrays.input_ref(qvalue, "qvalue") if qvalue_dtype is None else
                 _arrays.narrow_ref(qvalue, qvalue_dtype, "qvalue"))
        scale_refs = [_arrays.input_ref(scale, f"scales[{i}]") for i, scale in enumerate(scales)]
        bias_refs = [_arrays.input_ref(bias, f"biases[{i}]") for i, bias in enumerate(biases)]
        number = _arrays.number_of(_arrays.to_dtype(dequant_dtype), "dequant_dtype")
        self._set(_library.Handle("qtensor", "qtensor_make", None if value is None else value.pointer,
                                  _structs(scale_refs), len(scale_refs), _structs(bias_refs), len(bias_refs), number),
                  number)

    def _set(self, handle: _library.Handle, dequant: int) -> None:
        self._handle = handle
        self._dequant = dequant

    @classmethod
    def _of(cls, handle: _library.Handle, dequant: int) -> QuantizedTensor:
        made = cls.__new__(cls)
        made._set(handle, dequant)
        return made

    @property
    def handle(self) -> Any:
        """For calls."""
        return self._handle.value

    def _parts(self, part: int) -> tuple[np.ndarray[Any, Any], ...]:
        found = []
        for index in range(_library.ask("qtensor_count", self.handle, part)):
            struct = _library.Array()
            _library.call("qtensor_part", self.handle, part, index, ctypes.byref(struct))
            found.append(_arrays.view_of(struct, self._handle))
        return tuple(found)

    @property
    def qvalue(self) -> np.ndarray[Any, Any] | None:
        """The integers, or small floats; None if there are only scales."""
        return next(iter(self._parts(_QVALUE)), None)

    @property
    def scales(self) -> tuple[np.ndarray[Any, Any], ...]:
        """The scales."""
        return self._parts(_SCALE)

    @property
    def biases(self) -> tuple[np.ndarray[Any, Any], ...]:
        """The biases, which are subtracted."""
        return self._parts(_BIAS)

    def dequantize(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """The values, each operation rounded as the library's documentation says."""
        aval = _library.Aval()
        _library.call("qtensor_aval", self.handle, ctypes.byref(aval))
        ref = _arrays.output_ref(out, *_arrays.from_aval(aval), "out")
        _library.call("qtensor_dequantize", self.handle, ref.pointer)
        return ref.array

    @property
    def qvalue_dtype(self) -> str | None:
        """The name of the qvalue's dtype: "int4" also if it is given as int8. None if there are only scales."""
        if _library.ask("qtensor_count", self.handle, _QVALUE) == 0:
            return None
        struct = _library.Array()
        _library.call("qtensor_part", self.handle, _QVALUE, 0, ctypes.byref(struct))
        return _arrays.name_of(struct.dtype)

    def __reduce__(self) -> tuple[object, ...]:
        value, name = self.qvalue, self.qvalue_dtype
        narrow = name in ("int2", "int4")  # as int8, for a process without ml_dtypes
        return _rebuild, (value.astype(np.int8) if narrow and value is not None else value, self.scales, self.biases,
                          self._dequant, name if narrow else None)

    def __repr__(self) -> str:
        value = self.qvalue
        values = "no qvalue" if value is None else f"{self.qvalue_dtype}{list(value.shape)}"
        return f"QuantizedTensor({values}, scales {[list(scale.shape) for scale in self.scales]})"


def _rebuild(qvalue: Any, scales: Any, biases: Any, dequant: int, qvalue_dtype: str | None) -> QuantizedTensor:
    return QuantizedTensor(qvalue, scales, biases, dequant_dtype=_arrays.dtype_from(dequant), qvalue_dtype=qvalue_dtype)


def _axes(axes: Any) -> list[int]:
    try:
        return [operator.index(axis) for axis in ([axes] if hasattr(axes, "__index__") else axes)]
    except TypeError as error:
        raise TypeError(f"axes is {axes!r}, expected an integer or a list of integers") from error


class Quantizer:
    """Quantizes tensors as a textproto of aqt.config.Quantizer says: "int_symmetric { bits: 8 } abs_max {}"."""

    def __init__(self, config: str, *, prng_layout: str = "partitionable", arithmetic: str = "xla_compatible",
                 compat: str = "") -> None:
        if not isinstance(config, str):
            raise TypeError(f"config is {config!r}, expected a textproto such as \"int_symmetric {{ bits: 8 }} abs_max {{}}\"")
        self._arguments = (config, prng_layout, arithmetic, compat)
        options = _options.plan_options(prng_layout=prng_layout, arithmetic=arithmetic, compat=compat)
        self._handle = _library.Handle("quantizer", "quantizer_make", _library.encoded(config, "config"),
                                       ctypes.byref(options))

    def quantize(self, x: Any, axes: Sequence[int] | int = (), *, key: Any = None) -> QuantizedTensor:
        """Quantizes x (float32, bfloat16 or float16). Scales are shared along `axes`, unless the configuration names axes.

        `key`, for stochastic rounding, is an integer, as for jax.random.PRNGKey, or two uint32.
        """
        ref = _arrays.input_ref(x, "x")
        shared = _arrays.integers(_axes(axes))
        options = _options.CallOptions(key=key)
        handle = _library.Handle("qtensor", "quantizer_quantize", self._handle.value, ref.pointer, shared, len(shared),
                                 options.pointer)
        return QuantizedTensor._of(handle, ref.struct.dtype)  # pylint: disable=protected-access

    def gradient(self, x: Any, quantized: QuantizedTensor, g: Any) -> np.ndarray[Any, Any]:
        """The straight-through gradient: g, with zeros where x was clipped if the configuration has clip_gradient.

        NotSupportedError for clip_gradient with the compat clip_gradient_at_bound, which "qwix" sets.
        """
        if not isinstance(quantized, QuantizedTensor):
            raise InvalidArgumentError(f"quantized is {type(quantized).__name__}, expected the QuantizedTensor of x")
        value, gradient = _arrays.input_ref(x, "x"), _arrays.input_ref(g, "g")
        out = _arrays.output_ref(None, gradient.array.shape, gradient.array.dtype, "dx")
        _library.call("quantizer_gradient", self._handle.value, value.pointer, quantized.handle, gradient.pointer,
                      out.pointer)
        return out.array

    def __reduce__(self) -> tuple[object, ...]:
        return _make_quantizer, self._arguments

    def __repr__(self) -> str:
        return f"Quantizer({self._arguments[0]!r})"


def _make_quantizer(config: str, prng_layout: str, arithmetic: str, compat: str) -> Quantizer:
    return Quantizer(config, prng_layout=prng_layout, arithmetic=arithmetic, compat=compat)
