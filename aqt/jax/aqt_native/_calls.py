"""The library's handlers as JAX functions: usable in jit and vmap, refused by name in jvp and grad."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Callable, NamedTuple, Sequence

import jax
import jax.numpy as jnp

from aqt_native import _library
from aqt_native._errors import NotSupportedError
from aqt_native._sharding import Counts, Product, forward_layout, gradient_layout, quantize_layout, sharded
from aqt_native._spec import Spec, aval_text, struct_of, text_of

# Positions in Spec.levels and in a description's "draws".
_FORWARD = (0, 1)
_BACKWARD = {"lhs": (2, 3), "rhs": (4, 5)}


class Given(NamedTuple):
    """How an operand is given: a float array, a quantized tensor, scales only, or a tensor with its float array.

    A quantized tensor may have `panels`: its values as kernels read them, made for contractions with the key `packed_as`.
    """

    value: Any = None
    qvalue: Any = None
    scales: Sequence[Any] = ()
    panels: Any = None
    packed_as: str = ""

    @property
    def form(self) -> str:
        if self.qvalue is None:
            return f"scales:{len(self.scales)}" if self.scales else "float"
        if self.panels is not None:
            return f"panels:{len(self.scales)}"
        return f"{'qvalue' if self.value is None else 'both'}:{len(self.scales)}"

    @property
    def arrays(self) -> list[Any]:
        return [x for x in (self.value, self.qvalue, self.panels, *self.scales) if x is not None]


def as_int8(qvalue: Any) -> Any:
    """Integers as handlers take them."""
    return qvalue.astype(jnp.int8) if qvalue.dtype.name in ("int4", "int2") else qvalue


def checked_key(key: Any) -> Any:
    """The key. TypeError unless it is a single one, of either kind."""
    dtype = getattr(key, "dtype", None)
    if dtype is not None:
        rank = {jnp.dtype(jnp.uint32): 1}.get(dtype, 0 if jnp.issubdtype(dtype, jax.dtypes.prng_key) else None)
        if rank == len(key.shape):
            return key
    found = repr(key) if dtype is None else f"{dtype}{list(key.shape)}"
    raise TypeError(f"aqt_native: the key is {found}, expected one of jax.random.key or jax.random.PRNGKey; for a key per "
                    "entry use jax.vmap")


def key_data(key: Any) -> Any:
    """The two words of a key of either kind. NotSupportedError unless it is a single Threefry key."""
    key = checked_key(key)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        impl = str(jax.random.key_impl(key))
        if "threefry" not in impl and "fry" not in impl:
            raise NotSupportedError(f"aqt_native: keys of the generator {impl} are not supported; use threefry2x32")
        key = jax.random.key_data(key)
    if key.dtype != jnp.uint32 or key.shape != (2,):
        raise NotSupportedError(f"aqt_native: a key is two words of uint32, but this one is {key.dtype}{list(key.shape)}; "
                                "use jax.random.key(seed) or jax.random.PRNGKey(seed) of threefry2x32")
    return key


def refused(name: str) -> Callable[..., Any]:
    """A rule for derivatives that refuses them."""

    def jvp(*_: Any) -> Any:
        raise NotSupportedError(
            f"aqt_native: {name} cannot be differentiated. Gradients of gradients and forward-mode derivatives of "
            "quantized contractions are not defined; AQT does not define them, either.")

    return jvp


def _function(name: str, call: Callable[..., Any], batched: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted function of arrays with a rule for vmap. `batched` gets (axis_size, which are batched, arrays)."""
    mapped = jax.custom_batching.custom_vmap(call)
    mapped.def_vmap(batched)
    refusing = jax.custom_jvp(lambda *arrays: mapped(*arrays))
    refusing.defjvp(refused(name))
    return jax.jit(refusing, inline=True)


def _one_by_one(function: Callable[..., Any], is_batched: Sequence[bool], arrays: Sequence[Any]) -> Any:
    """The call for each entry of the axis, one after the other."""

    def body(entry: Any) -> Any:
        entries = iter(entry)
        return function(*(next(entries) if b else x for x, b in zip(arrays, is_batched)))

    return jax.lax.map(body, tuple(x for x, b in zip(arrays, is_batched) if b))


def _leading(array: Any, is_batched: bool, axis_size: int) -> Any:
    return array if is_batched else jnp.broadcast_to(array, (axis_size, *array.shape))


def _level(draws: Sequence[str], positions: Sequence[int], keys_are_batched: Sequence[bool]) -> str | None:
    """The digits of a new level, or None if the calls have to run one by one."""
    digits = ["1"] * 6
    batched = iter(keys_are_batched)
    for position in positions:
        if draws[position] and (next(batched) or draws[position] != "noise"):
            return None  # each entry has its own key, or its numerics cannot share random bits
    return "".join(digits)


def _drawing(description: dict[str, Any], positions: Sequence[int]) -> int:
    return sum(1 for position in positions if description["draws"][position])


# ---- forward


@functools.lru_cache(maxsize=1024)
def _forward_function(spec: Spec, lhs: str, rhs: str, lhs_form: str, rhs_form: str, residuals: bool) -> Any:
    description = _library.describe_contraction(spec.text, lhs, rhs, not residuals)
    kept = [r for r in description["residuals"] if r["kind"] != "value"]
    results = [struct_of(description["out"])] + [struct_of(r["aval"]) for r in kept]
    ffi_call = _library.handler("aqt_jax_forward", results)
    attributes = {"spec": spec.text, "passes": "both" if residuals else "forward",
                  "lhs": _attribute(lhs_form, lhs), "rhs": _attribute(rhs_form, rhs)}
    num_keys = _drawing(description, _FORWARD)
    product = Product(spec, lhs, rhs, description)
    sides = ["lhs"] * _number_of_arrays(lhs_form) + ["rhs"] * _number_of_arrays(rhs_form)
    unpacked_forms = (lhs_form.replace("panels", "qvalue"), rhs_form.replace("panels", "qvalue"))

    def call(*arrays: Any) -> tuple[Any, ...]:
        return tuple(ffi_call(*_without(arrays, lhs_form, rhs_form, "qvalue"), **attributes))

    def part(counts: Counts) -> Any:
        function = _forward_function(spec, product.part("lhs", counts), product.part("rhs", counts), *unpacked_forms,
                                     residuals)
        return lambda *arrays: function(*_without(arrays, lhs_form, rhs_form, "panels"))

    def run(*arrays: Any) -> Any:
        layout = forward_layout(product, sides, (lhs_form, rhs_form), kept, arrays)
        return sharded(call, part, layout)(*arrays)

    def batched(axis_size: int, is_batched: Sequence[bool], *arrays: Any) -> Any:
        if unpacked_forms != (lhs_form, rhs_form):  # panels are those of one product
            function = _forward_function(spec, lhs, rhs, *unpacked_forms, residuals)
            in_axes = tuple(0 if b else None for b in _without(is_batched, lhs_form, rhs_form, "panels"))
            out = jax.vmap(function, in_axes, axis_size=axis_size)(*_without(arrays, lhs_form, rhs_form, "panels"))
            return out, (True,) * len(out)
        first_key = len(arrays) - num_keys
        level = _level(description["draws"], _FORWARD, is_batched[first_key:])
        if level is None or "tiling" in spec.config:
            out = _one_by_one(function, is_batched, arrays)
            return out, (True,) * len(out)
        operands = [_leading(x, b, axis_size) for x, b in zip(arrays[:first_key], is_batched)]
        inner = _forward_function(spec.with_level(level), _with_axis(lhs, axis_size), _with_axis(rhs, axis_size), lhs_form,
                                  rhs_form, residuals)
        out = inner(*operands, *arrays[first_key:])
        # A constant scale is not repeated along the axis.
        return (tuple(_leading(x[0], False, axis_size) if x.shape[0] != axis_size else x for x in out),
                (True,) * len(out))

    function = _function("a quantized contraction", run, batched)
    return function


def _number_of_arrays(form: str) -> int:
    """How many arrays a Given of this form has."""
    kind, _, scales = form.partition(":")
    return int(scales or 0) + (2 if kind in ("both", "panels") else 1)


def _attribute(form: str, aval: str) -> str:
    """A form as the library reads it."""
    return f"{form}:{aval}" if form.startswith("panels") else form


def _without(arrays: Sequence[Any], lhs_form: str, rhs_form: str, what: str) -> list[Any]:
    """The arrays of a forward call, where operands with panels leave out their "qvalue" or their "panels"."""
    left_out, first = set(), 0
    for form in (lhs_form, rhs_form):
        if form.startswith("panels"):
            left_out.add(first + ("qvalue", "panels").index(what))
        first += _number_of_arrays(form)
    return [x for i, x in enumerate(arrays) if i not in left_out]


def _with_axis(aval: str, axis_size: int) -> str:
    struct = struct_of(aval)
    name = aval.split("[")[0]
    return f"{name}[{','.join(str(extent) for extent in (axis_size, *struct.shape))}]"


def operand_text(given: Given, dtype: Any) -> str:
    """Dtype and shape of the float operand."""
    array = given.value if given.value is not None else given.qvalue
    return aval_text(array.shape, dtype)


def forward(spec: Spec, lhs: Given, rhs: Given, dtype: Any, keys: Sequence[Any], residuals: bool) -> tuple[Any, ...]:
    """(out, residuals...): the residuals are those of the description that are not float operands.

    `keys` holds the key of fwd.lhs and that of fwd.rhs, None where there is none.
    """
    lhs_text, rhs_text = operand_text(lhs, dtype), operand_text(rhs, dtype)
    description = _library.describe_contraction(spec.text, lhs_text, rhs_text, not residuals)
    lhs, rhs = (_fitting(given, panels) for given, panels in zip((lhs, rhs), description["panels"]))
    function = _forward_function(spec, lhs_text, rhs_text, lhs.form, rhs.form, residuals)
    return function(*lhs.arrays, *rhs.arrays, *_needed_keys(description, _FORWARD, keys))


def _fitting(given: Given, panels: Sequence[Any] | None) -> Given:
    """Without panels that are those of another contraction or another processor. `panels`: of the description."""
    if given.panels is None or (panels is not None and panels[0] == given.packed_as):
        return given
    warnings.warn(f"aqt_native: a weight is packed as '{given.packed_as}', but this contraction reads "
                  f"'{panels[0] if panels else 'values'}', so it is packed again in each call; convert it with the "
                  "contracting axes and the configuration of this contraction, on this processor", stacklevel=3)
    return given._replace(panels=None)


def _needed_keys(description: dict[str, Any], positions: Sequence[int], keys: Sequence[Any]) -> list[Any]:
    names = ("fwd.lhs", "fwd.rhs", "dlhs.lhs", "dlhs.rhs", "drhs.lhs", "drhs.rhs")
    needed = []
    for position, key in zip(positions, keys):
        if not description["draws"][position]:
            continue
        if key is None:
            raise ValueError(f"aqt_native: {names[position]} rounds stochastically, but there is no key; use set_context")
        needed.append(key_data(key))
    return needed


# ---- gradients


@functools.lru_cache(maxsize=1024)
def _gradient_function(spec: Spec, lhs: str, rhs: str, side: str) -> Any:
    description = _library.describe_contraction(spec.text, lhs, rhs, False)
    result = struct_of(lhs if side == "lhs" else rhs)
    call = _library.handler("aqt_jax_gradient", result)
    attributes = {"spec": spec.text, "side": side, "lhs": lhs, "rhs": rhs}
    positions = _BACKWARD[side]
    num_keys = _drawing(description, positions)
    product = Product(spec, lhs, rhs, description)
    layout = gradient_layout(product, side, positions, num_keys)

    def part(counts: Counts) -> Any:
        function = _gradient_function(spec, product.part("lhs", counts), product.part("rhs", counts), side)
        return lambda *arrays: (function(*arrays),)

    def run(*arrays: Any) -> Any:
        return sharded(lambda *xs: (call(*xs, **attributes),), part, layout)(*arrays)[0]

    def batched(axis_size: int, is_batched: Sequence[bool], *arrays: Any) -> Any:
        first_key = len(arrays) - num_keys
        level = _level(description["draws"], positions, is_batched[first_key:])
        if level is None or "tiling" in spec.config:
            return _one_by_one(function, is_batched, arrays), True
        wide = spec.with_level(level)
        wide_lhs, wide_rhs = _with_axis(lhs, axis_size), _with_axis(rhs, axis_size)
        slots = _library.describe_contraction(wide.text, wide_lhs, wide_rhs, False)["residuals"]
        operands = [_leading(x, b, axis_size) for x, b in zip(arrays[:first_key], is_batched)]
        # A constant scale is not repeated along the axis.
        operands = operands[:1] + [x if struct_of(slot["aval"]).shape[0] == axis_size else x[:1]
                                   for x, slot in zip(operands[1:], slots)]
        return _gradient_function(wide, wide_lhs, wide_rhs, side)(*operands, *arrays[first_key:]), True

    function = _function("the gradient of a quantized contraction", run, batched)
    return function


def all_residuals(spec: Spec, lhs: Any, rhs: Any, lhs_text: str, rhs_text: str, kept: Sequence[Any]) -> tuple[Any, ...]:
    """Every residual in order: `kept` from forward(), and the float operands where a gradient reads them."""
    slots = _library.describe_contraction(spec.text, lhs_text, rhs_text, False)["residuals"]
    rest = iter(kept)
    operands = {"lhs": lhs, "rhs": rhs}
    return tuple(operands[slot["side"]] if slot["kind"] == "value" else next(rest) for slot in slots)


def gradient(spec: Spec, side: str, g: Any, residuals: Sequence[Any], lhs_text: str, rhs_text: str,
             keys: Sequence[Any]) -> Any:
    """The gradient of one operand. `keys` holds those of the two operands of this product."""
    description = _library.describe_contraction(spec.text, lhs_text, rhs_text, False)
    function = _gradient_function(spec, lhs_text, rhs_text, side)
    return function(g, *residuals, *_needed_keys(description, _BACKWARD[side], keys))


# ---- quantization of one operand


@functools.lru_cache(maxsize=1024)
def _quantize_function(spec: Spec, lhs: str, rhs: str, side: str) -> Any:
    description = _library.describe_contraction(spec.text, lhs, rhs, True)
    position = 0 if side == "lhs" else 1
    avals = description["quantized"][position]
    own = lhs if side == "lhs" else rhs
    results = [struct_of(aval) for aval in avals] if avals is not None else [struct_of(own)]
    call = _library.handler("aqt_jax_quantize", results)
    attributes = {"spec": spec.text, "side": side, "other": rhs if side == "lhs" else lhs}
    product = Product(spec, lhs, rhs, description)
    layout = quantize_layout(product, side, position, results, _drawing(description, (position,)))

    def part(counts: Counts) -> Any:
        return _quantize_function(spec, product.part("lhs", counts), product.part("rhs", counts), side)

    def run(*arrays: Any) -> Any:
        return sharded(lambda *xs: tuple(call(*xs, **attributes)), part, layout)(*arrays)

    def batched(_: int, is_batched: Sequence[bool], *arrays: Any) -> Any:
        out = _one_by_one(function, is_batched, arrays)
        return out, (True,) * len(out)

    function = _function("the quantization of an operand", run, batched)
    return function


def quantize(spec: Spec, side: str, x: Any, other_text: str, key: Any) -> tuple[Any, ...]:
    """(qvalue, scale) of one operand as the contraction quantizes it, or (x,) if it does not. s4 and s2 come as int8."""
    own = text_of(x)
    lhs, rhs = (own, other_text) if side == "lhs" else (other_text, own)
    description = _library.describe_contraction(spec.text, lhs, rhs, True)
    position = 0 if side == "lhs" else 1
    keys = _needed_keys(description, (position,), (key,))
    return _quantize_function(spec, lhs, rhs, side)(x, *keys)


def packed(spec: Spec, side: str, lhs: str, rhs: str, qvalue: Any, scales: Sequence[Any]) -> tuple[Any, str]:
    """(panels, what they are packed as) of a quantized operand; (None, "") if it is packed in each call."""
    panels = _library.describe_contraction(spec.text, lhs, rhs, True)["panels"][0 if side == "lhs" else 1]
    if panels is None:
        return None, ""
    packed_as, size = panels
    result = jax.ShapeDtypeStruct((size,), jnp.uint8)
    call = _library.handler("aqt_jax_pack", result)
    return call(qvalue, *scales, spec=spec.text, side=side, lhs=lhs, rhs=rhs), packed_as


@functools.lru_cache(maxsize=1024)
def _dequantize_function(result: str) -> Any:
    call = _library.handler("aqt_jax_dequantize", struct_of(result))

    def batched(_: int, is_batched: Sequence[bool], *arrays: Any) -> Any:
        return _one_by_one(function, is_batched, arrays), True

    function = _function("dequantization", lambda *arrays: call(*arrays), batched)
    return function


def dequantize(qvalue: Any, scales: Sequence[Any], dtype: Any) -> Any:
    """qvalue * scale * ... in `dtype`."""
    return _dequantize_function(aval_text(qvalue.shape, dtype))(qvalue, *scales)
