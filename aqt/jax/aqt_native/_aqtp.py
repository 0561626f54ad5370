"""AQT's own configuration objects, computed by the native library.

accelerate() returns a DotGeneral of AQT whose three products call the library. AQT's setters, set_context, flax layers,
freezers and einsum work on it as on any other.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from typing import Any

from aqt.jax.v2 import aqt_dot_general
from aqt.jax.v2 import aqt_tensor
import jax
import jax.numpy as jnp
import numpy as np

from aqt_native import _calls
from aqt_native._dot_general import Options, check_operands, check_precision
from aqt_native._errors import NotSupportedError
from aqt_native._spec import Spec, text_of
from aqt_native._to_text import to_textproto

_PRODUCTS = ("fwd", "dlhs", "drhs")


def accelerate(config: aqt_dot_general.DotGeneral, *, fallback: bool = False, compat: str = "original",
               arithmetic: str = "") -> aqt_dot_general.DotGeneral:
    """AQT's configuration, computed by this library: with AQT's bits, several times faster.

    The result is an AQT DotGeneral. Use it wherever AQT takes one: as dot_general, in aqt_flax.AqtDotGeneral and
    AqtEinsum, with config.set_context. `config` is copied.

    Args:
      config: any DotGeneral of aqt.jax.v2, from any builder and setter.
      fallback: where this library refuses a configuration or a shape, let AQT compute it, and warn once.
      compat: "original" for AQT's results to the bit; "" for this library's own, which differ where
        docs/differences-from-aqt.md says so; or names of single fields of Compat, separated by spaces.
      arithmetic: "" to divide as XLA does on a CPU, or "ieee".

    Raises:
      NotSupportedError: a field of `config` has a value that this library does not have, and fallback is False.
    """
    try:
        to_textproto(config)
    except NotSupportedError as error:
        if not fallback:
            raise
        _warn(str(error))
        return copy.deepcopy(config)
    copied = copy.deepcopy(config)
    return NativeDotGeneral._make(copied, Options(compat, arithmetic), fallback)


@functools.lru_cache(maxsize=None)
def _warn(message: str) -> None:
    warnings.warn(f"{message}. AQT computes it, as fallback=True asks.", stacklevel=3)


# ---- the classes


def _fields(instance: Any) -> list[dataclasses.Field[Any]]:
    return list(dataclasses.fields(instance))


def _register(cls: Any, nodes: list[str], values: list[str]) -> None:
    """Makes a class a tree with these children and values."""

    def data(x: Any) -> Any:
        if hasattr(x, "traced_text") and not _is_traced(x):
            x.traced_text = _text_or_none(x)
        return tuple(getattr(x, name) for name in values)

    def flatten(x: Any) -> Any:
        return tuple(getattr(x, name) for name in nodes), data(x)

    def flatten_with_keys(x: Any) -> Any:
        return tuple((jax.tree_util.GetAttrKey(name), getattr(x, name)) for name in nodes), data(x)

    def unflatten(static: Any, children: Any) -> Any:
        x = object.__new__(cls)
        for name, value in (*zip(nodes, children), *zip(values, static)):
            setattr(x, name, value)
        return x

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def _is_traced(config: Any) -> bool:
    """Whether the numbers of a configuration are not known now: it went through a transformation of JAX."""
    flags = [getattr(getattr(getattr(config, name), "dg_quantizer", None), "skip_mid_scales", None) for name in _PRODUCTS]
    return not all(isinstance(flag, bool) for flag in flags)


def _text_or_none(config: Any) -> str | None:
    try:
        return to_textproto(config)
    except NotSupportedError:
        return None


class NativeProduct(aqt_dot_general.DotGeneralRaw):
    """One of the products of a NativeDotGeneral.

    A product does not know the others, but what the forward pass keeps depends on them. So NativeDotGeneral tells a
    product who its owner is whenever it hands it out.
    """

    _owner: Any = None
    _role = ""

    @classmethod
    def _of(cls, raw: aqt_dot_general.DotGeneralRaw) -> NativeProduct:
        if isinstance(raw, cls):
            return raw
        return cls(**{f.name: getattr(raw, f.name) for f in _fields(raw)})

    def __deepcopy__(self, memo: Any) -> NativeProduct:
        return type(self)(**{f.name: copy.deepcopy(getattr(self, f.name), memo) for f in _fields(self)})

    def __call__(self, lhs: Any, rhs: Any, lhs_qt: Any, rhs_qt: Any, dimension_numbers: Any) -> Any:
        if self._owner is None:
            return super().__call__(lhs, rhs, lhs_qt, rhs_qt, dimension_numbers)
        if isinstance(rhs, _Saved):
            return self._owner._backward(self, lhs, rhs, dimension_numbers), None
        if self._role == "fwd" and not isinstance(rhs, aqt_dot_general.MultiTensor):
            return self._owner._forward(lhs, rhs, lhs_qt, rhs_qt, dimension_numbers, True)
        return super().__call__(lhs, rhs, lhs_qt, rhs_qt, dimension_numbers)


@jax.tree_util.register_pytree_node_class
class _Operand:
    """Stands for an operand that no gradient reads: only its rank is left."""

    def __init__(self, ndim: int):
        self.ndim = ndim

    def tree_flatten(self) -> Any:
        return (), self.ndim

    @classmethod
    def tree_unflatten(cls, ndim: int, _: Any) -> Any:
        return cls(ndim)


class _Saved(aqt_dot_general.MultiTensor):
    """What the forward pass keeps: AQT's pair for one operand, and the residuals of the library's plan."""

    residuals: Any = ()
    info: Any = None  # side of x, spec, lhs, rhs


def _product(name: str) -> property:
    slot = getattr(aqt_dot_general.DotGeneral, name)

    def get(self: Any) -> Any:
        raw = slot.__get__(self)
        if isinstance(raw, NativeProduct):
            raw._owner, raw._role = self, name
        return raw

    def put(self: Any, raw: Any) -> None:
        native = isinstance(raw, aqt_dot_general.DotGeneralRaw)
        slot.__set__(self, NativeProduct._of(raw) if native else raw)

    return property(get, put)


class NativeDotGeneral(aqt_dot_general.DotGeneral):
    """AQT's DotGeneral, computed by the native library. Made by accelerate."""

    fwd = _product("fwd")
    dlhs = _product("dlhs")
    drhs = _product("drhs")
    options = Options()
    fallback = False
    # The text of the configuration while its numbers are being traced: AQT's alphas and flags are leaves of the tree.
    traced_text: str | None = None

    @classmethod
    def _make(cls, config: aqt_dot_general.DotGeneral, options: Options, fallback: bool) -> NativeDotGeneral:
        made = cls(**{f.name: getattr(config, f.name) for f in _fields(config)})
        made.options, made.fallback = options, fallback
        return made

    def __deepcopy__(self, memo: Any) -> NativeDotGeneral:
        made = type(self)(**{f.name: copy.deepcopy(getattr(self, f.name), memo) for f in _fields(self)})
        made.options, made.fallback = self.options, self.fallback
        return made

    def __call__(self, lhs: Any, rhs: Any, dimension_numbers: Any, precision: None = None,
                 preferred_element_type: Any = None, out_sharding: None = None) -> jax.Array:
        """lhs x rhs, quantized; the arguments are those of jax.lax.dot_general. See DotGeneral.__call__."""
        del preferred_element_type
        check_precision(precision)
        if out_sharding is not None:
            raise NotSupportedError("aqt_native: out_sharding is not supported; leave it out")
        lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
        return self.dg_core(lhs, rhs, None, None, dimension_numbers)[0]

    def dg_core(self, lhs: Any, rhs: Any, lhs_qt: Any, rhs_qt: Any, dimension_numbers: Any) -> Any:
        """As in AQT: (out, (lhs as a QTensor, rhs as a QTensor))."""
        check_operands(lhs, rhs)
        self.assert_config_validity()
        if not self.apply_custom_vjp_on_jax:  # a caller that has its own custom_vjp
            return _primal(lhs, rhs, lhs_qt, rhs_qt, dimension_numbers, self)
        core = jax.custom_vjp(_primal, nondiff_argnums=(4,))
        core.defvjp(aqt_dot_general.dg_core_vjp_fwd, aqt_dot_general.dg_core_vjp_bwd)
        return core(lhs, rhs, lhs_qt, rhs_qt, dimension_numbers, self)

    # ---- forward

    def _spec(self, dimension_numbers: Any, lhs: Any, rhs: Any) -> Spec:
        text = self.traced_text if _is_traced(self) and self.traced_text else to_textproto(self)
        return self.options.spec(text, dimension_numbers, lhs.ndim, rhs.ndim)

    def _forward(self, lhs: Any, rhs: Any, lhs_qt: Any, rhs_qt: Any, dimension_numbers: Any, residuals: bool) -> Any:
        """What AQT's forward product returns: (out, what the gradients need)."""
        try:
            return self._native_forward(lhs, rhs, lhs_qt, rhs_qt, dimension_numbers, residuals)
        except NotSupportedError as error:
            if not self.fallback:
                raise
            _warn(str(error))
        raw = aqt_dot_general.DotGeneral.fwd.__get__(self)
        if not residuals:  # AQT's forward pass for gradients has done this
            raw = copy.deepcopy(raw)
            raw.dg_quantizer.init_calibration()
        return aqt_dot_general.DotGeneralRaw.__call__(raw, lhs, rhs, lhs_qt, rhs_qt, dimension_numbers)

    def _native_forward(self, lhs: Any, rhs: Any, lhs_qt: Any, rhs_qt: Any, dimension_numbers: Any,
                        residuals: bool) -> Any:
        spec = self._spec(dimension_numbers, lhs, rhs)
        raw = self.fwd
        if residuals:
            _check_gradient("lhs", lhs_qt, raw)
            _check_gradient("rhs", rhs_qt, raw)
        given = (_given("lhs", lhs, lhs_qt, residuals), _given("rhs", rhs, rhs_qt, residuals))
        keys = _keys(raw)
        out, *kept = _calls.forward(spec, *given, lhs.dtype, keys, residuals)
        info = (spec, text_of(lhs), text_of(rhs))
        qtensors = _qtensors(self, spec, raw, (lhs, rhs), (lhs_qt, rhs_qt), dimension_numbers, keys)
        saved: tuple[Any, ...] = ()
        if residuals:
            saved = _calls.all_residuals(spec, lhs, rhs, *info[1:], kept)
        sides = []
        for side, x, qx in zip(("lhs", "rhs"), (lhs, rhs), qtensors):
            multi = _Saved(x=_Operand(x.ndim), qx=qx)
            multi.residuals, multi.info = saved, (side, *info)
            sides.append(aqt_dot_general.TensorRes(mt=multi, quant_grad=None))
        return out, aqt_dot_general.DotGeneralRes(lhs=sides[0], rhs=sides[1])

    # ---- backward

    def _backward(self, raw: NativeProduct, g: Any, other: _Saved, dimension_numbers: Any) -> Any:
        del dimension_numbers  # of the product of the gradient; the library derives them
        other_side, spec, lhs, rhs = other.info
        side = "rhs" if other_side == "lhs" else "lhs"
        result = _calls.gradient(spec, side, g, other.residuals, lhs, rhs, _keys(raw))
        return jnp.transpose(result, _to_product(spec, side, result.ndim))


def _register_like_aqt(cls: Any, values: list[str]) -> None:
    is_node = {f.name: f.metadata.get("pytree_node", True) for f in _fields(cls)}
    _register(cls, [name for name, node in is_node.items() if node],
              [name for name, node in is_node.items() if not node] + values)


_register_like_aqt(NativeProduct, [])
_register_like_aqt(NativeDotGeneral, ["options", "fallback", "traced_text"])
# Without qx: it is for the freezers only, and would be kept until the backward pass.
_register(_Saved, ["x", "residuals"], ["info"])


def _primal(lhs: Any, rhs: Any, lhs_qt: Any, rhs_qt: Any, dimension_numbers: Any, config: NativeDotGeneral) -> Any:
    out, saved = config._forward(lhs, rhs, lhs_qt, rhs_qt, dimension_numbers, False)
    return out.astype(lhs.dtype), (saved.lhs.mt.qx, saved.rhs.mt.qx)


def _to_product(spec: Spec, side: str, rank: int) -> tuple[int, ...]:
    """The axes of an operand in the order in which AQT's product for its gradient has them."""
    contracting, batch = {"lhs": spec.dims[0], "rhs": spec.dims[1]}, {"lhs": spec.dims[2], "rhs": spec.dims[3]}
    other = "rhs" if side == "lhs" else "lhs"
    remaining = [axis for axis in range(rank) if axis not in contracting[side] + batch[side]]
    by_other = [contracting[side][i] for i in np.argsort(contracting[other])]
    return (*batch[side], *remaining, *by_other)


def _keys(raw: aqt_dot_general.DotGeneralRaw) -> tuple[Any, Any]:
    return raw.dg_quantizer.lhs.context.key, raw.dg_quantizer.rhs.context.key


def _given(side: str, x: Any, qt: Any, residuals: bool) -> _calls.Given:
    """The operand of a call: x, or AQT's QTensor."""
    if qt is None:
        return _calls.Given(x)
    if qt.bias or qt.sparsity_mask is not None or qt.tiling_state is not None or not isinstance(qt.scale, list):
        raise NotSupportedError(f"aqt_native: the QTensor for {side} has a bias, a sparsity mask, a tiling state or no "
                                "list of scales, which this library does not take in JAX")
    if not qt.is_full():
        return _calls.Given(x, None, tuple(qt.scale))
    qvalue = qt.qvalue
    if qvalue.dtype.name in ("int4", "int2"):
        qvalue = qvalue.astype(jnp.int8)
    return _calls.Given(x if residuals else None, qvalue, tuple(qt.scale))


def _check_gradient(side: str, qt: Any, raw: Any) -> None:
    if qt is not None and qt.is_full() and not raw.allow_dummy_gradient_into_qtensor:
        raise NotSupportedError(f"aqt_native: {side} is a frozen tensor, into which no gradient flows; set "
                                "allow_dummy_gradient_into_qtensor of fwd, or do not differentiate while serving")


def _qtensors(config: Any, spec: Spec, raw: Any, operands: Any, given: Any, dimension_numbers: Any, keys: Any) -> Any:
    """Both operands as AQT's QTensors, for freezers. jit drops what nobody uses."""
    has_mid = raw.dg_quantizer.lhs_mid_alpha is not None or raw.dg_quantizer.rhs_mid_alpha is not None
    if has_mid and _is_traced(config):  # AQT cannot trace this, either
        return tuple(aqt_tensor.QTensor(qvalue=None, scale=None, scale_t=None, bias=[]) for _ in range(2))
    if has_mid or any(qt is not None and not qt.is_full() for qt in given):
        quantizer = copy.deepcopy(raw.dg_quantizer)
        for part in (quantizer.lhs, quantizer.rhs, quantizer.lhs_mid, quantizer.rhs_mid):
            part._calibrator = None
        quantizer.init_calibration()
        (lhs, _), (rhs, _) = aqt_dot_general.quant(*operands, *given, quantizer, raw.lhs, raw.rhs, dimension_numbers,
                                                   True)
        return lhs, rhs
    return tuple(given[i] if given[i] is not None else _qtensor(spec, raw, i, operands, keys[i]) for i in range(2))


def _qtensor(spec: Spec, raw: Any, index: int, operands: Any, key: Any) -> aqt_tensor.QTensor:
    x = operands[index]
    numerics = (raw.dg_quantizer.lhs, raw.dg_quantizer.rhs)[index].numerics
    qvalue, *scales = _calls.quantize(spec, ("lhs", "rhs")[index], x, text_of(operands[1 - index]), key)
    container = numerics.get_dtype()
    if scales and container is not None and np.dtype(container).name in ("int4", "int2"):
        qvalue = qvalue.astype(container)
    return aqt_tensor.QTensor(qvalue=qvalue, scale=list(scales), scale_t=None, bias=[], dequant_dtype=x.dtype)
