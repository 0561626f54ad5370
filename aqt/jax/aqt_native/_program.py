"""Saved programs as JAX functions."""

from __future__ import annotations

import os
from typing import Any, Mapping, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from aqt_native import _calls, _library
from aqt_native._errors import NotSupportedError
from aqt_native._spec import struct_of


class Port(NamedTuple):
    """An input or output of a program."""

    kind: str  # "param", "stat", "frozen", "key" or "data"
    path: str  # "mlp/kernel"
    shape: tuple[int, ...]
    dtype: Any  # 4-bit and 2-bit integers pass as int8


class Program:
    """A program that the C++ library or `aqt` saved (docs/runtime.md), as one call: the complete model in one kernel.

        program = aqt_native.Program("model.aqtprog")
        y = jax.jit(program)({"x": x, "mlp/kernel": kernel})["y"]

    It works in jit. The file has to stay as it is; a call fails if it has changed. Not differentiable.
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Reads and compiles the program. RuntimeError or NotSupportedError, naming the file, if that fails."""
        self.path = os.path.abspath(os.fspath(path))
        description = _library.describe_program(self.path)
        self._digest = description["digest"]
        self.inputs: tuple[Port, ...] = tuple(_port(port) for port in description["inputs"])
        self.outputs: tuple[Port, ...] = tuple(_port(port) for port in description["outputs"])
        results = [jax.ShapeDtypeStruct(port.shape, port.dtype) for port in self.outputs]
        try:
            call = _library.handler("aqt_jax_program", results)
        except ValueError as error:  # jax 0.4 has no 64-bit results without jax_enable_x64
            wide = [port for port in self.outputs if np.dtype(port.dtype).itemsize == 8]
            if not wide:
                raise
            raise NotSupportedError(f"aqt_native: the output {wide[0].path!r} of {self.path} is {wide[0].dtype}; "
                                    "set JAX_ENABLE_X64=1") from error
        attributes = {"path": self.path, "digest": self._digest}
        refusing = jax.custom_jvp(lambda *arrays: tuple(call(*arrays, **attributes)))
        refusing.defjvp(_calls.refused(f"the program {self.path}"))
        self._run = jax.jit(refusing, inline=True)

    def __call__(self, inputs: Mapping[Any, Any]) -> dict[Any, jax.Array]:
        """Runs the program.

        Args:
          inputs: an array for each input, by its path, or by (kind, path). A key may be a key of JAX.

        Returns:
          The outputs, by path, or by (kind, path) where two have the same path.

        Raises:
          ValueError: an input is missing or unknown, or has another dtype or shape; the message names it.
        """
        known = {name for port in self.inputs for name in (port.path, (port.kind, port.path))}
        unknown = [name for name in inputs if name not in known]
        if unknown:
            raise ValueError(f"aqt_native: {self.path} has no input {unknown[0]!r}; it has "
                             f"{', '.join(repr(port.path) for port in self.inputs)}")
        results = self._run(*(self._argument(port, inputs) for port in self.inputs))
        return {_name(port, self.outputs): result for port, result in zip(self.outputs, results)}

    def _argument(self, port: Port, inputs: Mapping[Any, Any]) -> Any:
        name = (port.kind, port.path) if (port.kind, port.path) in inputs else port.path
        if name not in inputs:
            raise ValueError(f"aqt_native: the input {port.path!r} ({port.kind}) of {self.path} is missing")
        array = inputs[name]
        array = _calls.key_data(array) if port.kind == "key" else jnp.asarray(array)
        if array.dtype.name in ("int4", "int2"):
            array = array.astype(jnp.int8)
        if array.shape != port.shape or array.dtype != port.dtype:
            raise ValueError(f"aqt_native: the input {port.path!r} of {self.path} is {array.dtype}{list(array.shape)}, "
                             f"expected {port.dtype}{list(port.shape)}")
        return array


def _port(description: Mapping[str, str]) -> Port:
    struct = struct_of(description["aval"])
    return Port(description["kind"], description["path"], struct.shape, struct.dtype)


def _name(port: Port, ports: tuple[Port, ...]) -> Any:
    same = sum(1 for other in ports if other.path == port.path)
    return port.path if same == 1 else (port.kind, port.path)


