"""Calls on sharded arrays: each device computes its part of the batch and output axes.

A label names an axis of a contraction in all its arrays: "b0" a batch axis, "m0" another axis of lhs, "n0" of rhs, "k0" a
contracting axis. An axis of an array that is no axis of the contraction, such as that of a key, has the label "".
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from typing import Any, Callable, Mapping, Sequence

import jax
from jax.experimental.custom_partitioning import custom_partitioning

from aqt_native._errors import NotSupportedError
from aqt_native._spec import Spec, aval_text, struct_of

Labels = tuple[str, ...]
Counts = Mapping[str, int]  # the number of parts of each label that is split


@dataclasses.dataclass(frozen=True)
class Product:
    """A contraction of two operands, "f32[2,3]", with what the library says of it."""

    spec: Spec
    lhs: str
    rhs: str
    description: Mapping[str, Any]

    @functools.cached_property
    def labels(self) -> dict[str, Labels]:
        """The labels of "lhs", "rhs" and "out"."""
        lhs_contracting, rhs_contracting, lhs_batch, rhs_batch = self.spec.dims
        lhs = _labels(len(struct_of(self.lhs).shape), lhs_contracting, lhs_batch, "m")
        rhs = _labels(len(struct_of(self.rhs).shape), rhs_contracting, rhs_batch, "n")
        out = (*(f"b{i}" for i in range(len(lhs_batch))), *_of_kind("m", lhs), *_of_kind("n", rhs))
        return {"lhs": lhs, "rhs": rhs, "out": out}

    @functools.cached_property
    def extents(self) -> dict[str, int]:
        """The length of each axis."""
        return dict(zip(self.labels["lhs"] + self.labels["rhs"], struct_of(self.lhs).shape + struct_of(self.rhs).shape))

    def labels_of(self, side: str, shape: Sequence[int]) -> Labels:
        """The labels of an operand, or of its qvalue, scale or mask: "" where it has one element for the whole axis."""
        labels = self.labels[side]
        if len(shape) != len(labels):
            return ("",) * len(shape)
        return tuple(label if extent == self.extents[label] else "" for label, extent in zip(labels, shape))

    def part(self, side: str, counts: Counts) -> str:
        """One part of an operand."""
        shape = (-(-self.extents[label] // counts.get(label, 1)) for label in self.labels[side])
        return aval_text(tuple(shape), struct_of(getattr(self, side)).dtype)

    def splits(self, contracting: str, operands: Sequence[tuple[int, str]]) -> frozenset[str]:
        """The axes along which a product can be split.

        `operands` are those that the product quantizes: positions in the description's lists, and sides, or "out" for
        the gradient of the output. `contracting` is the first letter of the labels that the product contracts.
        """
        if "tiling" in self.spec.config or "_mid_alpha" in self.spec.config:
            return frozenset()  # these join what is apart in the operands
        fixed = {label for position, side in operands for axis, label in enumerate(self.labels[side])
                 if axis not in self.description["splits"][position]}
        return frozenset(label for label in self.extents if not label.startswith(contracting)) - fixed


def _labels(rank: int, contracting: Sequence[int], batch: Sequence[int], other: str) -> Labels:
    names = {axis: f"k{i}" for i, axis in enumerate(contracting)} | {axis: f"b{i}" for i, axis in enumerate(batch)}
    others = (axis for axis in range(rank) if axis not in names)
    names |= {axis: f"{other}{i}" for i, axis in enumerate(others)}
    return tuple(names[axis] for axis in range(rank))


def _of_kind(kind: str, labels: Labels) -> Labels:
    return tuple(label for label in labels if label.startswith(kind))


_KEY: Labels = ("",)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The axes of the arguments and results of a call."""

    arguments: tuple[Labels, ...]
    results: tuple[Labels, ...]
    splits: frozenset[str]  # labels of axes whose parts can be computed on their own
    extents: Mapping[str, int]
    operands: tuple[str, ...] = ()  # for each argument the operand that must not be split along a contracting axis


def forward_layout(product: Product, sides: Sequence[str], forms: Sequence[str], residuals: Sequence[Any],
                   arrays: Sequence[Any]) -> Layout:
    """The layout of a forward call. `sides` says which operand each array before the keys belongs to."""
    draws = product.description["draws"]
    quantized = [(position, side) for position, (side, form) in enumerate(zip(("lhs", "rhs"), forms))
                 if form == "float" or (form.startswith("scales") and draws[position])]
    arguments = [product.labels_of(side, array.shape) for side, array in zip(sides, arrays)]
    arguments += [_KEY] * (len(arrays) - len(sides))
    results = [product.labels["out"]]
    results += [product.labels_of(slot["side"], struct_of(slot["aval"]).shape) for slot in residuals]
    return Layout(tuple(arguments), tuple(results), product.splits("k", quantized), product.extents, tuple(sides))


def gradient_layout(product: Product, side: str, positions: Sequence[int], num_keys: int) -> Layout:
    """The layout of the gradient of one operand. Its arguments are g, all residuals and keys."""
    other, contracting = ("rhs", "n") if side == "lhs" else ("lhs", "m")
    arguments = [product.labels["out"]]
    for slot in product.description["residuals"]:
        arguments.append(product.labels_of(slot["side"], struct_of(slot["aval"]).shape))
    splits = product.splits(contracting, list(zip(positions, ("out", other))))
    return Layout((*arguments, *[_KEY] * num_keys), (product.labels[side],), splits, product.extents)


def quantize_layout(product: Product, side: str, position: int, results: Sequence[Any], num_keys: int) -> Layout:
    """The layout of the quantization of one operand."""
    splits = product.splits("k", [(position, side)])
    outs = tuple(product.labels_of(side, result.shape) for result in results)
    return Layout((product.labels[side], *[_KEY] * num_keys), outs, splits, product.extents)


def sharded(call: Callable[..., tuple[Any, ...]], part: Callable[[Counts], Callable[..., tuple[Any, ...]]],
            layout: Layout) -> Callable[..., tuple[Any, ...]]:
    """`call`, computed in parts if its arguments or results are sharded along axes that can be split.

    `part` gives the function for one part. Arguments that are sharded along other axes are gathered. NotSupportedError,
    as an error of XLA, if one of `layout.operands` is split along a contracting axis.
    """

    def infer(mesh: Any, arguments: Any, _: Any) -> Any:
        axes = _axes_of_labels(layout, mesh, zip(layout.arguments, arguments))
        return tuple(_place(mesh, labels, axes) for labels in layout.results)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        _refuse(layout, arguments)
        axes = _axes_of_labels(layout, mesh, (*zip(layout.arguments, arguments), *zip(layout.results, results)))
        counts = {label: _size(mesh, names) for label, names in axes.items()}
        return (mesh, part(counts), tuple(_place(mesh, labels, axes) for labels in layout.results),
                tuple(_place(mesh, labels, axes) for labels in layout.arguments))

    if _has_explicit_axes():
        return call  # custom_partitioning of jax 0.12 cannot be compiled there; XLA gathers the arguments
    function = custom_partitioning(lambda *arrays: call(*arrays))
    keywords = {}
    if "sharding_rule" in inspect.signature(function.def_partition).parameters:  # since jax 0.5; Shardy needs it
        keywords["sharding_rule"] = _rule(layout)
    function.def_partition(partition, infer_sharding_from_operands=infer, **keywords)
    return function


def _has_explicit_axes() -> bool:
    """Whether the mesh of the context has axes whose shardings are part of types."""
    kinds, mesh = (getattr(jax.sharding, name, None) for name in ("AxisType", "get_abstract_mesh"))
    if kinds is None or mesh is None:  # JAX that has no such axes
        return False
    return kinds.Explicit in (getattr(mesh(), "axis_types", None) or ())


def _rule(layout: Layout) -> str:
    """Shardy's rule: an axis that can be split has one name in all arrays, any other axis its own."""
    count = 0

    def names(labels: Labels) -> str:
        nonlocal count
        result = []
        for label in labels:
            count += 1
            result.append(label if label in layout.splits else f"u{count}")
        return " ".join(result)

    arguments, results = (", ".join(names(labels) for labels in arrays) for arrays in (layout.arguments, layout.results))
    return f"{arguments} -> {results}"


def _mesh_axes(array: Any) -> list[tuple[str, ...]]:
    """The axes of the mesh along which each axis of an array is split."""
    sharding = array.sharding
    if not isinstance(sharding, jax.sharding.NamedSharding):  # older JAX, without a mesh in the context
        return [()] * len(array.shape)
    axes = [() if entry is None else entry if isinstance(entry, tuple) else (entry,) for entry in sharding.spec]
    return axes + [()] * (len(array.shape) - len(axes))


def _size(mesh: Any, names: Sequence[str]) -> int:
    return math.prod(mesh.shape[name] for name in names)


def _axes_of_labels(layout: Layout, mesh: Any, arrays: Any) -> dict[str, tuple[str, ...]]:
    """The axes of the mesh for each label that is split: those of the first array that is split along it."""
    chosen: dict[str, tuple[str, ...]] = {}
    for labels, array in arrays:
        for label, names in zip(labels, _mesh_axes(array)):
            taken = {name for axes in chosen.values() for name in axes}
            if not names or label not in layout.splits or label in chosen or taken & set(names):
                continue
            # With a single scale XLA divides where it otherwise multiplies with the reciprocal: a part of one row would
            # have other bits.
            if layout.extents[label] > _size(mesh, names):
                chosen[label] = names
    return chosen


def _place(mesh: Any, labels: Labels, axes: Mapping[str, tuple[str, ...]]) -> Any:
    if not axes:
        # Here this means replicated. Without a mesh in the context no NamedSharding can be made.
        return jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(axes.get(label) for label in labels)))


def _refuse(layout: Layout, arguments: Any) -> None:
    for operand, labels, array in zip(layout.operands, layout.arguments, arguments):
        for axis, (label, names) in enumerate(zip(labels, _mesh_axes(array))):
            if names and label.startswith("k"):
                raise NotSupportedError(
                    f"aqt_native: {operand} is split along its contracting axis {axis} "
                    f"({', '.join(names)} of the mesh), which is not supported; replicate this axis with "
                    "jax.lax.with_sharding_constraint, or split a batch or output axis")
