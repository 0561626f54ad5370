"""A quantized dot_general with gradients, from a textproto."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from aqt_native import _calls, _library
from aqt_native._errors import NotSupportedError
from aqt_native._spec import DimensionNumbers, Spec, current_layout_is_original, normalized_dims, text_of

_FLOATS = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Options:
    """How a configuration is computed. The defaults give AQT's bits."""

    compat: str = "original"  # "original", names of fields of Compat, or ""
    arithmetic: str = ""  # "" (as XLA divides) or "ieee"

    def __post_init__(self) -> None:
        if self.arithmetic not in ("", "ieee"):
            raise ValueError(f"aqt_native: arithmetic is {self.arithmetic!r}, expected \"\" (as XLA divides) or \"ieee\"")
        if self.compat not in ("", "original", "qwix"):
            _library.compat_text(self.compat)  # NotSupportedError lists the names

    def spec(self, config: str, dimension_numbers: Any, lhs_rank: int, rhs_rank: int) -> Spec:
        return Spec(config, normalized_dims(dimension_numbers, lhs_rank, rhs_rank), self.compat, self.arithmetic,
                    current_layout_is_original())


def check_operands(lhs: Any, rhs: Any) -> None:
    """TypeError, naming both dtypes, unless both are f32, bf16 or f16."""
    if jnp.dtype(lhs.dtype).name not in _FLOATS or lhs.dtype != rhs.dtype:
        raise TypeError(f"aqt_native: lhs is {lhs.dtype} and rhs is {rhs.dtype}, but both have to be float32, "
                        "bfloat16 or float16")


def check_precision(precision: Any) -> None:
    if precision is not None:
        raise NotSupportedError(f"aqt_native: precision {precision} together with quantization is not supported; leave "
                                "precision out")


@functools.lru_cache(maxsize=1024)
def differentiable(spec: Spec) -> Any:
    """function(lhs, rhs, keys) -> out, with AQT's gradients. keys is a list of six, some of them None."""

    @jax.custom_vjp
    def function(lhs: Any, rhs: Any, keys: Any) -> Any:
        return _calls.forward(spec, _calls.Given(lhs), _calls.Given(rhs), lhs.dtype, keys[:2], False)[0]

    def fwd(lhs: Any, rhs: Any, keys: Any) -> Any:
        out, *kept = _calls.forward(spec, _calls.Given(lhs), _calls.Given(rhs), lhs.dtype, keys[:2], True)
        lhs_text, rhs_text = text_of(lhs), text_of(rhs)
        residuals = _calls.all_residuals(spec, lhs, rhs, lhs_text, rhs_text, kept)
        return out, (residuals, keys, _Static((lhs_text, rhs_text)))

    def bwd(saved: Any, g: Any) -> Any:
        residuals, keys, avals = saved
        lhs_text, rhs_text = avals.value
        dlhs = _calls.gradient(spec, "lhs", g, residuals, lhs_text, rhs_text, keys[2:4])
        drhs = _calls.gradient(spec, "rhs", g, residuals, lhs_text, rhs_text, keys[4:6])
        return dlhs, drhs, None

    function.defvjp(fwd, bwd)
    return function


def _is_quantized(x: Any) -> bool:
    return hasattr(x, "qvalue") and hasattr(x, "scales")  # QuantizedArray, which imports this module


def _given(x: Any) -> _calls.Given:
    if not _is_quantized(x):
        return _calls.Given(x)
    return _calls.Given(None, _calls.as_int8(x.qvalue), tuple(x.scales), x.panels, x.packed_as)


@jax.tree_util.register_pytree_node_class
class _Static:
    """A hashable value in a tree without leaves."""

    def __init__(self, value: Any):
        self.value = value

    def tree_flatten(self) -> Any:
        return (), self.value

    @classmethod
    def tree_unflatten(cls, value: Any, _: Any) -> Any:
        return cls(value)


def split_key(key: Any) -> list[Any]:
    """The keys of fwd.lhs, fwd.rhs, dlhs.lhs, dlhs.rhs, drhs.lhs, drhs.rhs, as AQT's set_context splits one."""
    return [operand for product in jax.random.split(_calls.checked_key(key), 3) for operand in jax.random.split(product, 2)]


@dataclasses.dataclass(frozen=True, eq=False)
class DotGeneral:
    """A quantized contraction with the signature of jax.lax.dot_general. Made by from_textproto.

    Immutable. It works in jit and grad; under vmap a batch is one call. Gradients of gradients are refused.
    """

    config: str
    options: Options = Options()
    key: Any = None

    def __eq__(self, other: object) -> bool:
        # As a static argument of jit: another key is another function.
        return (isinstance(other, DotGeneral) and (self.config, self.options) == (other.config, other.options) and
                self.key is other.key)

    def __hash__(self) -> int:
        return hash((self.config, self.options))

    def set_context(self, key: Any) -> DotGeneral:
        """The same contraction with a random key, which stochastic rounding needs: a new object.

        Args:
          key: of jax.random.key or jax.random.PRNGKey, with the generator threefry2x32.
        """
        return dataclasses.replace(self, key=key)

    def __call__(self, lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers, precision: None = None,
                 preferred_element_type: Any = None, out_sharding: None = None) -> jax.Array:
        """lhs x rhs, quantized.

        Args:
          lhs, rhs: float32, bfloat16 or float16, both of one dtype; or a QuantizedArray of convert, without gradients.
          dimension_numbers: ((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch)).
          precision: has to be None.
          preferred_element_type: ignored, as by AQT. The result has the dtype of the operands.
          out_sharding: has to be None.

        Raises:
          NotSupportedError: the configuration does not fit these shapes or dtypes; the message names the field.
        """
        del preferred_element_type
        check_precision(precision)
        if out_sharding is not None:
            raise NotSupportedError("aqt_native: out_sharding is not supported; leave it out")
        lhs, rhs = (x if _is_quantized(x) else jnp.asarray(x) for x in (lhs, rhs))
        check_operands(lhs, rhs)
        spec = self.options.spec(self.config, dimension_numbers, lhs.ndim, rhs.ndim)
        keys = [None] * 6 if self.key is None else split_key(self.key)
        if _is_quantized(lhs) or _is_quantized(rhs):
            return _calls.forward(spec, _given(lhs), _given(rhs), lhs.dtype, keys[:2], False)[0]
        return differentiable(spec)(lhs, rhs, keys)


def from_textproto(textproto: str, *, compat: str = "original", arithmetic: str = "") -> DotGeneral:
    """A quantized dot_general from a textproto of aqt.config.DotGeneral (configs/quant.proto). Does not need aqtp.

    Args:
      textproto: the configuration, for example 'schema: 1 base: "fully_quantized_int8"'.
      compat: "original" for AQT's results to the bit; "" for this library's own, which differ where
        docs/differences-from-aqt.md says so; "qwix" for Qwix's; or names of single fields of Compat, separated by
        spaces.
      arithmetic: "" to divide as XLA does on a CPU, or "ieee".

    Raises:
      NotSupportedError: the text is not a configuration; the message has the line and column.
    """
    if not isinstance(textproto, str):
        raise TypeError(f"aqt_native: textproto is {textproto!r}, expected a text such as "
                        "'schema: 1 base: \"fully_quantized_int8\"'")
    return DotGeneral(_library.complete_config(textproto), Options(compat, arithmetic))
