"""Saved programs."""

from __future__ import annotations

import ctypes
import os
import pathlib
from collections.abc import Mapping, Sequence
from ctypes import c_size_t
from typing import Any, NamedTuple

import numpy as np

from aqt_native.numpy import _arrays, _library, _options
from aqt_native.numpy._errors import InvalidArgumentError
from aqt_native.numpy._executor import Executor

_INPUT, _OUTPUT = 0, 1


class Slot(NamedTuple):
    """An input or output of a program."""

    kind: str  # "param", "stat", "frozen", "key" or "data"
    name: str  # "mlp/fc1/kernel"
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Program:
    """A program of the library's SaveProgram, from its file or its bytes."""

    def __init__(self, source: str | os.PathLike[str] | bytes) -> None:
        self._bytes = source if isinstance(source, bytes) else pathlib.Path(source).read_bytes()
        self._handle = _library.Handle("program", "program_load", self._bytes, len(self._bytes))
        self.inputs, self.outputs = self._slots(_INPUT), self._slots(_OUTPUT)

    def _slots(self, port: int) -> tuple[Slot, ...]:
        count = c_size_t()
        _library.call("program_count", self._handle.value, port, ctypes.byref(count))
        slots = []
        for index in range(count.value):
            slot = _library.Slot(struct_size=ctypes.sizeof(_library.Slot))
            _library.call("program_slot", self._handle.value, port, index, ctypes.byref(slot))
            slots.append(Slot(slot.kind.decode(), slot.name.decode(), *_arrays.from_aval(slot.aval)))
        return tuple(slots)

    def __call__(self, arguments: Sequence[Any] | Mapping[str, Any] = (), *, executor: Executor | None = None,
                 out: Sequence[np.ndarray[Any, Any]] | None = None) -> tuple[np.ndarray[Any, Any], ...]:
        """One call: arguments in the order of `inputs`, or by name; the results in the order of `outputs`.

        An argument that is not dense is copied.
        """
        given = self._by_name(arguments) if isinstance(arguments, Mapping) else list(arguments)
        refs = [_arrays.input_ref(value, f"argument {i + 1}") for i, value in enumerate(given)]
        outs = list(out) if out is not None else [None] * len(self.outputs)
        if len(outs) != len(self.outputs):
            raise InvalidArgumentError(f"out has {len(outs)} arrays, and the program has {len(self.outputs)} outputs")
        results = [_arrays.output_ref(array, slot.shape, slot.dtype, f"out[{i}]")
                   for i, (array, slot) in enumerate(zip(outs, self.outputs))]
        options = _options.CallOptions(executor=executor)
        _library.call("program_run", self._handle.value, _structs(refs), len(refs), _structs(results), len(results),
                      options.pointer)
        return tuple(result.array for result in results)

    def _by_name(self, arguments: Mapping[str, Any]) -> list[Any]:
        names = [slot.name for slot in self.inputs]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise InvalidArgumentError(f"inputs of two kinds have the name {sorted(twice)[0]!r}; give the arguments in order")
        unknown, missing = sorted(set(arguments) - set(names)), sorted(set(names) - set(arguments))
        if unknown or missing:
            what = f"the program has no input {unknown[0]!r}" if unknown else f"the input {missing[0]!r} is missing"
            raise InvalidArgumentError(f"{what}; its inputs are {', '.join(names)}")
        return [arguments[name] for name in names]

    def __reduce__(self) -> tuple[object, ...]:
        return Program, (self._bytes,)

    def __repr__(self) -> str:
        return f"Program({len(self.inputs)} inputs, {len(self.outputs)} outputs)"


def _structs(refs: Sequence[_arrays.Ref]) -> Any:
    return (_library.Array * len(refs))(*(ref.struct for ref in refs))
