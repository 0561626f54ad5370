"""Options of plans and calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from aqt_native.numpy import _arrays, _library
from aqt_native.numpy._errors import InvalidArgumentError
from aqt_native.numpy._executor import Executor

_LAYOUTS, _ARITHMETICS, _SUMS = ("partitionable", "original"), ("xla_compatible", "ieee"), ("digits", "float")
_MODES = ("train", "calibrate", "convert", "serve")


def _place(value: str, values: Sequence[str], what: str) -> int:
    if value in values:
        return values.index(value)
    raise InvalidArgumentError(f"{what} is {value!r}, expected one of {', '.join(values)}")


def plan_options(*, forward_only: bool = False, prng_layout: str = "partitionable", arithmetic: str = "xla_compatible",
                 weight_only: str = "digits", compat: str = "", target: str | None = None) -> _library.PlanOptions:
    """Options of a plan or a quantizer."""
    return _library.PlanOptions(
        ctypes.sizeof(_library.PlanOptions), int(forward_only), _place(prng_layout, _LAYOUTS, "prng_layout"),
        _place(arithmetic, _ARITHMETICS, "arithmetic"), _place(weight_only, _SUMS, "weight_only"),
        _library.encoded(compat, "compat"), _library.encoded(target, "target"))


def key_words(key: Any) -> tuple[int, int]:
    """The words of a key: of jax.random.PRNGKey(seed) for an integer, or an array of two uint32."""
    if isinstance(key, (int, np.integer)):
        if not 0 <= int(key) < 1 << 64:
            raise InvalidArgumentError(f"key is {key}, expected 0 .. 2^64 - 1, or two uint32")
        return int(key) >> 32, int(key) & 0xffffffff
    words = np.asarray(key)
    if words.shape != (2,) or words.dtype != np.uint32:
        raise InvalidArgumentError(f"key is {words.dtype}{list(words.shape)}, expected an integer, or uint32[2]")
    return int(words[0]), int(words[1])


class CallOptions:
    """Options of one call, and the memory that they refer to."""

    def __init__(self, *, key: Any = None, mode: str | None = None, rhs_mode: str | None = None,
                 executor: Executor | None = None, state: Sequence[np.ndarray[Any, Any]] | None = None) -> None:
        self.pointer: Any = None
        if all(value is None for value in (key, mode, rhs_mode, executor, state)):
            return  # the defaults
        options = _library.CallOptions(struct_size=ctypes.sizeof(_library.CallOptions))
        if executor is not None:
            options.executor = executor.handle()
        if key is not None:
            options.has_key = 1
            options.key[0], options.key[1] = key_words(key)
        if mode is not None:
            options.mode = 1 + _place(mode, _MODES, "mode")
        if rhs_mode is not None:
            options.rhs_mode = 1 + _place(rhs_mode, _MODES, "rhs_mode")
        self._kept: list[Any] = [executor]
        if state is not None:
            refs = [_arrays.Ref(array, f"state[{i}]", writable=True) for i, array in enumerate(state)]
            structs = (_library.Array * len(refs))(*(ref.struct for ref in refs))
            self._kept += [refs, structs]
            options.old_state = options.new_state = structs
            options.num_state = len(refs)
        self.pointer = ctypes.pointer(options)
