"""The shared library: its functions, structs and handles (aqt/c_api.h)."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import weakref
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

from aqt_native.numpy._errors import InvalidArgumentError, make_error

API_VERSION = 1


class Aval(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("rank", c_int32), ("dims", POINTER(c_int64))]


class Array(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("rank", c_int32), ("dims", POINTER(c_int64)),
                ("strides", POINTER(c_int64))]


class PlanOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("forward_only", c_int32), ("prng_layout", c_int32), ("arithmetic", c_int32),
                ("weight_only", c_int32), ("compat", c_char_p), ("target", c_char_p)]


class CallOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("executor", c_void_p), ("has_key", c_int32), ("key", c_uint32 * 2),
                ("mode", c_int32), ("rhs_mode", c_int32), ("old_state", POINTER(Array)), ("new_state", POINTER(Array)),
                ("num_state", c_size_t)]


class DotDims(ctypes.Structure):
    _fields_ = [("lhs_contracting", POINTER(c_int64)), ("rhs_contracting", POINTER(c_int64)),
                ("num_contracting", c_size_t), ("lhs_batch", POINTER(c_int64)), ("rhs_batch", POINTER(c_int64)),
                ("num_batch", c_size_t)]


class State(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("operand", c_char_p), ("name", c_char_p), ("initial", Array),
                ("updated_in_train", c_int32)]


class Operand(ctypes.Structure):
    _fields_ = [("value", POINTER(Array)), ("prepared", c_void_p)]


class Slot(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("kind", c_char_p), ("name", c_char_p), ("aval", Aval)]


class EmbedderOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("preset", c_char_p), ("config", c_char_p), ("calibration", c_char_p)]


class TextInfo(ctypes.Structure):
    _fields_ = [("tokens", c_int64), ("truncated", c_int64)]


Progress = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_int64, c_char_p)


class ConvertOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("preset", c_char_p), ("config", c_char_p), ("scheme_from", c_char_p),
                ("calibration", c_char_p), ("jobs", c_int32), ("force", c_int32), ("allow_requantize", c_int32),
                ("strict", c_int32), ("rules", c_char_p), ("non_finite", c_char_p), ("experts", c_char_p),
                ("exclude", POINTER(c_char_p)), ("num_exclude", c_size_t), ("max_shard_bytes", c_int64),
                ("progress", Progress), ("user", c_void_p)]


_HANDLE = c_void_p
_OUT = POINTER(c_void_p)  # receives a handle
_ARRAY, _AVAL, _OPTIONS, _CALL = POINTER(Array), POINTER(Aval), POINTER(PlanOptions), POINTER(CallOptions)

# Functions that return a code, and take an error last.
_CALLS: dict[str, list[Any]] = {
    "check_environment": [],
    "executor_make": [c_int32, _OUT],
    "qtensor_make": [_ARRAY, _ARRAY, c_size_t, _ARRAY, c_size_t, c_int32, _OUT],
    "qtensor_part": [_HANDLE, c_int32, c_size_t, _ARRAY],
    "qtensor_aval": [_HANDLE, _AVAL],
    "qtensor_dequantize": [_HANDLE, _ARRAY],
    "quantizer_make": [c_char_p, _OPTIONS, _OUT],
    "quantizer_quantize": [_HANDLE, _ARRAY, POINTER(c_int64), c_size_t, _CALL, _OUT],
    "quantizer_gradient": [_HANDLE, _ARRAY, _HANDLE, _ARRAY, _ARRAY],
    "dot_general_make": [c_char_p, _AVAL, _AVAL, POINTER(DotDims), _OPTIONS, _OUT],
    "dot_general_out": [_HANDLE, _AVAL],
    "dot_general_needs_key": [_HANDLE, c_int32, POINTER(c_int32)],
    "dot_general_config": [_HANDLE, _OUT],
    "dot_general_num_state": [_HANDLE, c_int32, POINTER(c_size_t)],
    "dot_general_state": [_HANDLE, c_int32, c_size_t, POINTER(State)],
    "dot_general_forward": [_HANDLE, POINTER(Operand), POINTER(Operand), _CALL, _ARRAY, _HANDLE],
    "dot_general_backward": [_HANDLE, _ARRAY, _HANDLE, _CALL, _ARRAY, _ARRAY],
    "residuals_make": [c_int32, _OUT],
    "dot_general_prepare": [_HANDLE, c_int32, _ARRAY, _CALL, _OUT],
    "dot_general_prepare_qtensor": [_HANDLE, c_int32, _HANDLE, _CALL, _OUT],
    "prepared_qtensor": [_HANDLE, _OUT],
    "prepared_without_values": [_HANDLE, _OUT],
    "program_load": [c_void_p, c_size_t, _OUT],
    "program_count": [_HANDLE, c_int32, POINTER(c_size_t)],
    "program_slot": [_HANDLE, c_int32, c_size_t, POINTER(Slot)],
    "program_run": [_HANDLE, _ARRAY, c_size_t, _ARRAY, c_size_t, _CALL],
    "embedder_open": [c_char_p, POINTER(EmbedderOptions), _OUT],
    "embedder_notes": [_HANDLE, _OUT],
    "embedder_embed": [_HANDLE, POINTER(c_char_p), POINTER(c_size_t), c_size_t, _CALL, _ARRAY, POINTER(TextInfo)],
    "convert": [c_char_p, c_char_p, POINTER(ConvertOptions), _OUT],
    "dequantize": [c_char_p, c_char_p, c_int32, POINTER(ConvertOptions), _OUT],
}
# Functions without errors: arguments and result.
_ASKS: dict[str, tuple[list[Any], Any]] = {
    "api_version": ([], c_uint32),
    "version": ([], c_char_p),
    "simd_target": ([], c_char_p),
    "supported_targets": ([], c_char_p),
    "error_message": ([_HANDLE], c_char_p),
    "error_free": ([_HANDLE], None),
    "string_data": ([_HANDLE], c_void_p),
    "string_size": ([_HANDLE], c_size_t),
    "string_free": ([_HANDLE], None),
    "executor_threads": ([_HANDLE], c_int32),
    "executor_free": ([_HANDLE], None),
    "qtensor_count": ([_HANDLE, c_int32], c_size_t),
    "qtensor_free": ([_HANDLE], None),
    "quantizer_free": ([_HANDLE], None),
    "dot_general_free": ([_HANDLE], None),
    "residuals_bytes": ([_HANDLE], c_int64),
    "residuals_free": ([_HANDLE], None),
    "prepared_panel_bytes": ([_HANDLE], c_int64),
    "prepared_free": ([_HANDLE], None),
    "program_free": ([_HANDLE], None),
    "embedder_width": ([_HANDLE], c_int64),
    "embedder_max_length": ([_HANDLE], c_int64),
    "embedder_free": ([_HANDLE], None),
}


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The library: libaqt.so of this package, or the file that the environment variable AQT_LIBRARY names."""
    path = os.environ.get("AQT_LIBRARY") or str(pathlib.Path(__file__).resolve().parents[1] / "libaqt.so")
    try:
        loaded = ctypes.CDLL(path)  # RTLD_LOCAL: its symbols are visible to nobody else
        version_of = loaded.aqt_api_version
    except (OSError, AttributeError) as error:
        raise ImportError(f"aqt_native: cannot load {path}: {error}. Install the package aqt-native, or set AQT_LIBRARY "
                          "to the path of libaqt.so.") from error
    version_of.restype = c_uint32
    if version_of() < API_VERSION:
        raise ImportError(f"aqt_native: {path} has version {version_of()} of the interface, expected at least "
                          f"{API_VERSION}. It belongs to an older aqt-native.")
    for name, arguments in _CALLS.items():
        function = getattr(loaded, f"aqt_{name}")
        function.argtypes, function.restype = [*arguments, _OUT], c_int32
    for name, (arguments, result) in _ASKS.items():
        function = getattr(loaded, f"aqt_{name}")
        function.argtypes, function.restype = arguments, result
    return loaded


def call(name: str, *arguments: Any) -> None:
    """Calls a function. Raises the exception for its error."""
    loaded, error = library(), c_void_p()
    code = getattr(loaded, f"aqt_{name}")(*arguments, ctypes.byref(error))
    if code == 0:
        return
    message = (loaded.aqt_error_message(error) or b"").decode(errors="replace")
    message = message.replace("set Context::key", "give a key")
    loaded.aqt_error_free(error)
    raise make_error(code, message)


def ask(name: str, *arguments: Any) -> Any:
    """Calls a function that has no errors."""
    return getattr(library(), f"aqt_{name}")(*arguments)


def text(name: str, *arguments: Any) -> str:
    """Calls a function whose last result is a text."""
    handle = c_void_p()
    call(name, *arguments, ctypes.byref(handle))
    try:
        return ctypes.string_at(ask("string_data", handle), ask("string_size", handle)).decode(errors="replace")
    finally:
        ask("string_free", handle)


class Handle:
    """A handle of the library, which is freed with this object. `kind` as in aqt_KIND_free."""

    def __init__(self, kind: str, make: str, *arguments: Any) -> None:
        handle = c_void_p()
        call(make, *arguments, ctypes.byref(handle))
        self.value = handle.value
        free: Callable[[Any], None] = getattr(library(), f"aqt_{kind}_free")
        weakref.finalize(self, free, handle).atexit = False


def encoded(value: str | None, what: str) -> bytes | None:
    """Text for the library."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what} is {type(value).__name__}, expected str")
    if "\0" in value:
        raise InvalidArgumentError(f"{what} has a NUL character; leave it out")
    return value.encode(errors="surrogateescape")


def version() -> str:
    """The version of the library: "0.1.0"."""
    return str(ask("version").decode())


def simd_target() -> str:
    """The instruction set that the kernels use on this machine: "avx2". AQT_MAX_TARGET limits it."""
    return str(ask("simd_target").decode())


def supported_targets() -> list[str]:
    """The instruction sets that this machine runs."""
    return list(ask("supported_targets").decode().split(","))


def check_environment() -> None:
    """Raises InvalidArgumentError if AQT_MAX_TARGET or AQT_VERBOSE has a wrong value, which is otherwise ignored."""
    call("check_environment")
