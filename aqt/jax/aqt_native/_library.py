"""The shared library: loading it, registering its handlers with XLA, and asking it questions."""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import pathlib
import threading
from typing import Any

from aqt_native._errors import NotSupportedError

_HANDLERS = ("aqt_jax_forward", "aqt_jax_gradient", "aqt_jax_quantize", "aqt_jax_pack", "aqt_jax_dequantize",
             "aqt_jax_program")
_UNIMPLEMENTED, _INVALID_ARGUMENT, _NOT_FOUND = 12, 3, 5
_lock = threading.Lock()
_registered = False


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The loaded library: libaqt.so beside this file, or the file that AQT_JAX_LIBRARY names."""
    path = os.environ.get("AQT_JAX_LIBRARY") or str(pathlib.Path(__file__).parent / "libaqt.so")
    try:
        loaded = ctypes.CDLL(path)  # RTLD_LOCAL: its symbols are visible to nobody else
    except OSError as error:
        raise ImportError(f"aqt_native: cannot load {path}: {error}. Install the package aqt-native, or set "
                          "AQT_JAX_LIBRARY to the path of its library.") from error
    text = ctypes.POINTER(ctypes.c_char_p)
    loaded.aqt_jax_describe_contraction.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_int, text]
    loaded.aqt_jax_describe_program.argtypes = [ctypes.c_char_p, text]
    loaded.aqt_jax_compat.argtypes = [ctypes.c_char_p, text]
    loaded.aqt_jax_complete_config.argtypes = [ctypes.c_char_p, text]
    loaded.aqt_jax_free.argtypes = [ctypes.c_char_p]
    loaded.aqt_jax_free.restype = None
    return loaded


def ffi() -> Any:
    """jax.ffi, or where it was before jax 0.5. Registers the handlers once."""
    global _registered
    import jax  # pylint: disable=import-outside-toplevel

    if jax.__version_info__ < (0, 4, 35):
        # XLA would refuse the handlers, with an error that names neither package.
        raise ImportError(f"aqt_native needs jax 0.4.35 or later, but this is jax {jax.__version__}.")
    module: Any = getattr(jax, "ffi", None)
    if module is None:
        module = importlib.import_module("jax.extend.ffi")
    with _lock:
        if not _registered:
            for name in _HANDLERS:
                handler = ctypes.cast(getattr(library(), name), ctypes.c_void_p).value
                register = getattr(module, "register_ffi_target", None) or jax.ffi.register_ffi_target
                register(name, _capsule(handler), platform="cpu")
            _registered = True
    return module


def handler(name: str, results: Any) -> Any:
    """A function of arrays and attributes: jax.ffi.ffi_call of a handler of the library."""
    import jax  # pylint: disable=import-outside-toplevel

    call = ffi().ffi_call(name, results, vmap_method="sequential")
    if jax.__version_info__ >= (0, 5):
        return call
    return lambda *arrays, **attributes: jax.tree_util.tree_map(_same, call(*arrays, **attributes))


def _same(x: Any) -> Any:
    """x, by an operation that XLA does not remove.

    Where a call gives the result of a whole jitted function that also concatenates arrays, as jax.random.split does, the XLA
    of JAX 0.4 reads the attributes of the call as JSON, and ends the process.
    """
    import jax  # pylint: disable=import-outside-toplevel
    import jax.numpy as jnp  # pylint: disable=import-outside-toplevel

    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    # float8_e4m3fn has neither infinities nor exponents below its smallest normal number, as reduce_precision would.
    wide = x.astype(jnp.float16) if x.dtype.itemsize == 1 else x
    info = jnp.finfo(wide.dtype)
    return jax.lax.reduce_precision(wide, exponent_bits=info.nexp, mantissa_bits=info.nmant).astype(x.dtype)


def _capsule(pointer: int | None) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(pointer, None, None)


def _ask(function: Any, *arguments: Any) -> str:
    text = ctypes.c_char_p()
    code = function(*arguments, ctypes.byref(text))
    try:
        answer = (text.value or b"").decode()
    finally:
        library().aqt_jax_free(text)
    if code == 0:
        return answer
    if code in (_INVALID_ARGUMENT, _UNIMPLEMENTED):
        raise NotSupportedError(f"aqt_native: {answer}")
    raise (FileNotFoundError if code == _NOT_FOUND else RuntimeError)(f"aqt_native: {answer}")


@functools.lru_cache(maxsize=4096)
def describe_contraction(spec: str, lhs: str, rhs: str, forward_only: bool) -> dict[str, Any]:
    """What the library computes for these operands: see aqt/jax/describe.h."""
    return json.loads(_ask(library().aqt_jax_describe_contraction, spec.encode(), lhs.encode(), rhs.encode(),
                           int(forward_only)))


def describe_program(path: str) -> dict[str, Any]:
    """Digest, inputs and outputs of a saved program: see aqt/jax/describe.h."""
    return json.loads(_ask(library().aqt_jax_describe_program, os.fsencode(path)))


def complete_config(textproto: str) -> str:
    """The configuration with its base resolved; NotSupportedError, with line and column, for a mistake in it."""
    return _ask(library().aqt_jax_complete_config, textproto.encode())


def compat_text(names: str) -> str:
    """The fields of Compat that "qwix", or names separated by spaces, stand for: a textproto of aqt.config.Compat."""
    return _ask(library().aqt_jax_compat, names.encode())
