"""Quantized contractions and their gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_size_t
from typing import Any, NamedTuple

import numpy as np

from aqt_native.numpy import _arrays, _library, _options
from aqt_native.numpy._errors import InvalidArgumentError
from aqt_native.numpy._executor import Executor
from aqt_native.numpy._quantizer import QuantizedTensor

_FORWARD, _BACKWARD = 0, 1
_SIDES = {"lhs": 0, "rhs": 1}
_MATMUL = (((1,), (0,)), ((), ()))


class Statistic(NamedTuple):
    """One array that calibrations with state read and update."""

    operand: str  # "fwd.lhs"
    name: str  # "amax_history"
    initial: np.ndarray[Any, Any]  # before the first update; read-only
    updated_in_train: bool


class Residuals:
    """What a forward call keeps for the gradients. For one thread at a time; cannot be pickled.

    With `borrow` the operands are not copied: they must not change until the last backward call.
    """

    def __init__(self, *, borrow: bool = False) -> None:
        self._handle = _library.Handle("residuals", "residuals_make", int(borrow))
        self._operands: Any = None  # kept alive

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return int(_library.ask("residuals_bytes", self._handle.value))

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("Residuals cannot be pickled; run the forward call where the gradients are computed")


class Prepared:
    """An operand that was quantized and packed once, by DotGeneral.prepare."""

    def __init__(self, plan: DotGeneral, side: str, handle: _library.Handle, *, has_values: bool = True) -> None:
        self._plan, self._side, self._handle, self._has_values = plan, side, handle, has_values

    @property
    def handle(self) -> Any:
        """For calls."""
        return self._handle.value

    @property
    def quantized(self) -> QuantizedTensor:
        """The quantized tensor: what to store. `DotGeneral.prepare` takes it back."""
        handle = _library.Handle("qtensor", "prepared_qtensor", self.handle)
        dtype = self._plan.lhs[1]
        return QuantizedTensor._of(handle, _arrays.number_of(dtype, "operand"))  # pylint: disable=protected-access

    @property
    def panel_bytes(self) -> int:
        """The bytes of the packed form; 0 if there is none."""
        return int(_library.ask("prepared_panel_bytes", self.handle))

    def without_values(self) -> Prepared:
        """Only the packed form and the scales, in half the memory: for calls without residuals."""
        handle = _library.Handle("prepared", "prepared_without_values", self.handle)
        return Prepared(self._plan, self._side, handle, has_values=False)

    def __reduce__(self) -> tuple[object, ...]:
        if not self._has_values:
            raise TypeError("a Prepared operand without values cannot be pickled; pickle the one that it was made from")
        return _prepare, (self._plan, self._side, self.quantized)


def _prepare(plan: DotGeneral, side: str, value: Any) -> Prepared:
    return plan.prepare(side, value)


class DotGeneral:
    """A plan for a quantized contraction of two shapes, and its gradients.

        plan = DotGeneral("fully_quantized_int8", ((5, 64), np.float32), ((64, 32), np.float32))
        y = plan(x, w)
        y, residuals = plan.forward(x, w)
        dx, dw = plan.backward(g, residuals, key=7)

    config: the name of a preset, or a textproto of aqt.config.DotGeneral ("schema: 1 ...").
    lhs, rhs: arrays, or (shape, dtype): float32, bfloat16 or float16.
    dimension_numbers: ((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch)), as for jax.lax.dot_general.
    prng_layout: "partitionable" or "original" (jax_threefry_partitionable off).
    arithmetic: "xla_compatible" or "ieee". weight_only: "digits" or "float".
    compat: "original", or fields of aqt.config.Compat separated by commas. target: as AQT_MAX_TARGET.
    """

    def __init__(self, config: str, lhs: Any, rhs: Any, dimension_numbers: Any = _MATMUL, *, forward_only: bool = False,
                 prng_layout: str = "partitionable", arithmetic: str = "xla_compatible", weight_only: str = "digits",
                 compat: str = "", target: str | None = None) -> None:
        self.lhs, self.rhs = _arrays.spec_of(lhs, "lhs"), _arrays.spec_of(rhs, "rhs")
        self.dimension_numbers = _dimension_numbers(dimension_numbers)
        self._options = {"forward_only": forward_only, "prng_layout": prng_layout, "arithmetic": arithmetic,
                         "weight_only": weight_only, "compat": compat, "target": target}
        if not isinstance(config, str):
            raise TypeError(f"config is {config!r}, expected the name of a preset, or a textproto of aqt.config.DotGeneral")
        self._config = f'schema: 1 base: "{config}"' if config.isidentifier() else config
        options = _options.plan_options(**self._options)  # type: ignore[arg-type]
        (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = self.dimension_numbers
        dims = _library.DotDims(_arrays.integers(lhs_contracting), _arrays.integers(rhs_contracting), len(lhs_contracting),
                                _arrays.integers(lhs_batch), _arrays.integers(rhs_batch), len(lhs_batch))
        avals = [_arrays.aval_of(*self.lhs, "lhs"), _arrays.aval_of(*self.rhs, "rhs")]
        self._handle = _library.Handle("dot_general", "dot_general_make", _library.encoded(self._config, "config"),
                                       *map(ctypes.byref, avals), ctypes.byref(dims), ctypes.byref(options))
        out = _library.Aval()
        _library.call("dot_general_out", self._handle.value, ctypes.byref(out))
        self.out = _arrays.from_aval(out)

    @property
    def config(self) -> str:
        """The whole configuration as a textproto, without a base."""
        return _library.text("dot_general_config", self._handle.value)

    def _needs_key(self, which: int) -> bool:
        needs = c_int32()
        _library.call("dot_general_needs_key", self._handle.value, which, ctypes.byref(needs))
        return needs.value != 0

    @property
    def forward_needs_key(self) -> bool:
        """Whether forward calls round stochastically."""
        return self._needs_key(_FORWARD)

    @property
    def backward_needs_key(self) -> bool:
        """Whether backward calls round stochastically."""
        return self._needs_key(_BACKWARD)

    def _statistics(self, which: int) -> list[Statistic]:
        count = c_size_t()
        _library.call("dot_general_num_state", self._handle.value, which, ctypes.byref(count))
        found = []
        for index in range(count.value):
            state = _library.State(struct_size=ctypes.sizeof(_library.State))
            _library.call("dot_general_state", self._handle.value, which, index, ctypes.byref(state))
            found.append(Statistic(state.operand.decode(), state.name.decode(),
                                   _arrays.view_of(state.initial, self._handle), state.updated_in_train != 0))
        return found

    @property
    def forward_state(self) -> list[Statistic]:
        """The statistics of forward calls, in the order of `state`; empty if no calibration has state."""
        return self._statistics(_FORWARD)

    @property
    def backward_state(self) -> list[Statistic]:
        """The statistics of backward calls."""
        return self._statistics(_BACKWARD)

    def __call__(self, lhs: Any, rhs: Any, *, key: Any = None, mode: str | None = None, rhs_mode: str | None = None,
                 state: Sequence[np.ndarray[Any, Any]] | None = None, executor: Executor | None = None,
                 out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """The product. An operand is an array, a Prepared one, or (array, Prepared) for prepared scales.

        key: an integer, as for jax.random.PRNGKey, or two uint32. mode, rhs_mode: "train" (the default), "calibrate",
        "convert" or "serve". state: arrays like those of `forward_state`, which are updated in place.
        """
        return self._run(lhs, rhs, None, key, mode, rhs_mode, state, executor, out)

    def forward(self, lhs: Any, rhs: Any, *, key: Any = None, mode: str | None = None, rhs_mode: str | None = None,
                state: Sequence[np.ndarray[Any, Any]] | None = None, executor: Executor | None = None,
                out: np.ndarray[Any, Any] | None = None,
                residuals: Residuals | None = None) -> tuple[np.ndarray[Any, Any], Residuals]:
        """The product, and what the gradients need. The memory of `residuals` is used again if they are given."""
        kept = Residuals() if residuals is None else residuals
        return self._run(lhs, rhs, kept, key, mode, rhs_mode, state, executor, out), kept

    def _run(self, lhs: Any, rhs: Any, residuals: Residuals | None, key: Any, mode: str | None, rhs_mode: str | None,
             state: Sequence[np.ndarray[Any, Any]] | None, executor: Executor | None,
             out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        operands = [_Operand(lhs, "lhs"), _Operand(rhs, "rhs")]
        options = _options.CallOptions(key=key, mode=mode, rhs_mode=rhs_mode, executor=executor, state=state)
        result = _arrays.output_ref(out, *self.out, "out")
        kept = None if residuals is None else residuals._handle.value  # pylint: disable=protected-access
        _library.call("dot_general_forward", self._handle.value, *(ctypes.byref(o.struct) for o in operands),
                      options.pointer, result.pointer, kept)
        if residuals is not None:
            residuals._operands = operands  # pylint: disable=protected-access
        return result.array

    def backward(self, g: Any, residuals: Residuals, *, key: Any = None, mode: str | None = None,
                 rhs_mode: str | None = None, state: Sequence[np.ndarray[Any, Any]] | None = None,
                 executor: Executor | None = None, lhs: bool = True,
                 rhs: bool = True) -> tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any] | None]:
        """The gradients of lhs and rhs, given that of the product; None for one that is not wanted."""
        gradient = _arrays.input_ref(g, "g")
        options = _options.CallOptions(key=key, mode=mode, rhs_mode=rhs_mode, executor=executor, state=state)
        if not isinstance(residuals, Residuals):
            raise InvalidArgumentError(f"residuals is {type(residuals).__name__}, expected those of forward")
        results = [_arrays.output_ref(None, *spec, "gradient") if wanted else None
                   for spec, wanted in ((self.lhs, lhs), (self.rhs, rhs))]
        _library.call("dot_general_backward", self._handle.value, gradient.pointer,
                      residuals._handle.value,  # pylint: disable=protected-access
                      options.pointer, *(None if result is None else result.pointer for result in results))
        dlhs, drhs = (None if result is None else result.array for result in results)
        return dlhs, drhs

    def prepare(self, side: str, value: Any, *, key: Any = None, mode: str | None = None,
                executor: Executor | None = None) -> Prepared:
        """Quantizes and packs the operand of a side, "lhs" or "rhs", once: an array, or a QuantizedTensor."""
        if side not in _SIDES:
            raise InvalidArgumentError(f"side is {side!r}, expected \"lhs\" or \"rhs\"")
        options = _options.CallOptions(key=key, mode=mode, executor=executor)
        if isinstance(value, QuantizedTensor):
            handle = _library.Handle("prepared", "dot_general_prepare_qtensor", self._handle.value, _SIDES[side],
                                     value.handle, options.pointer)
        else:
            ref = _arrays.input_ref(value, "value")
            handle = _library.Handle("prepared", "dot_general_prepare", self._handle.value, _SIDES[side], ref.pointer,
                                     options.pointer)
        return Prepared(self, side, handle)

    def __reduce__(self) -> tuple[object, ...]:
        lhs, rhs = ((shape, dtype.name) for shape, dtype in (self.lhs, self.rhs))
        return _make_plan, (self._config, lhs, rhs, self.dimension_numbers, self._options)

    def __repr__(self) -> str:
        sides = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in (self.lhs, self.rhs))
        return f"DotGeneral({sides} -> {self.out[1]}{list(self.out[0])})"


def _make_plan(config: str, lhs: Any, rhs: Any, dimension_numbers: Any, options: dict[str, Any]) -> DotGeneral:
    return DotGeneral(config, lhs, rhs, dimension_numbers, **options)


class _Operand:
    """An operand for the library, and what it refers to."""

    def __init__(self, given: Any, what: str) -> None:
        value, prepared = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if isinstance(value, Prepared):
            value, prepared = None, value
        if prepared is not None and not isinstance(prepared, Prepared):
            raise InvalidArgumentError(f"{what} is (array, {type(prepared).__name__}), expected (array, Prepared)")
        self._prepared = prepared
        self._ref = None if value is None else _arrays.input_ref(value, what)
        self.struct = _library.Operand(None if self._ref is None else self._ref.pointer,
                                       None if prepared is None else prepared.handle)


_Axes = tuple[int, ...]


def _dimension_numbers(given: Any) -> tuple[tuple[_Axes, _Axes], tuple[_Axes, _Axes]]:
    try:
        (a, b), (c, d) = given
        pairs = [tuple(map(int, axes)) for axes in (a, b, c, d)]
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"dimension_numbers is {given!r}, expected ((lhs_contracting, rhs_contracting), "
                                   "(lhs_batch, rhs_batch))") from error
    for left, right, what in ((pairs[0], pairs[1], "contracting"), (pairs[2], pairs[3], "batch")):
        if len(left) != len(right):
            raise InvalidArgumentError(f"dimension_numbers has {len(left)} {what} axes of lhs and {len(right)} of rhs, "
                                       "expected pairs")
    return (pairs[0], pairs[1]), (pairs[2], pairs[3])
