"""Transpositions move until they cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

import numpy as np

from microc.base.dtypes import Array
from microc.graph.ir import Attr, Node, TensorType
from microc.graph.match import Match, P, Replacement, Rule
from microc.ops import registry
from microc.ops.attributes import Attributes, Rounding

# ---- Orders of axes: pure functions of shapes, for passes that move transpositions and reshapes about.
#
# ``axes`` always means numpy's: ``y = x.transpose(axes)`` has ``y.shape[i] == x.shape[axes[i]]``.

T = TypeVar("T")
Axes = tuple[int, ...]
Shape = tuple[int, ...]


def inverse(axes: Sequence[int]) -> Axes:
    """The order that undoes ``axes``."""
    return tuple(sorted(range(len(axes)), key=lambda i: axes[i]))


def composed(first: Sequence[int], second: Sequence[int]) -> Axes:
    """The one order that equals transposing by ``first``, then by ``second``."""
    return tuple(first[axis] for axis in second)


def permuted(shape: Sequence[T], axes: Sequence[int]) -> tuple[T, ...]:
    """The shape, or whatever there is for each axis, after transposing by ``axes``."""
    return tuple(shape[axis] for axis in axes)


def keeps_memory(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether transposing ``shape`` by ``axes`` moves axes of one element only: the elements keep their order."""
    moved = [axis for axis in axes if shape[axis] != 1]
    return moved == sorted(moved)


def permuted_type(kind: TensorType, axes: Sequence[int]) -> TensorType:
    """The type after transposing by ``axes``; scales along an axis go with it, the meaning of the axes is forgotten."""
    quant = kind.quant
    if quant is not None and quant.axis is not None:
        quant = replace(quant, axis=tuple(axes).index(quant.axis))
    return TensorType(permuted(kind.shape, axes), kind.dtype, quant)


AXIS_KINDS = frozenset(("axis", "axes", "axes in order", "ints by axis", "pairs by axis"))
"""Kinds of attributes that name axes of the first operand, or have a value for each."""


def permuted_attrs(declared: Attributes, attrs: Mapping[str, Attr], axes: Axes) -> dict[str, Attr] | None:
    """The attributes of an application to ``x`` that does what they do to ``x.transpose(axes)``.

    None where axes with something else for each would come in another order: sums of floats are taken in it.
    """
    found = dict(attrs)
    for name, value in attrs.items():
        kind = declared[name].kind
        if kind not in AXIS_KINDS or value is None:
            continue
        given: Any = value
        if kind == "axis":
            found[name] = axes[given % len(axes)]
        elif kind.endswith("by axis"):
            found[name] = permuted(given, inverse(axes))
        else:
            named = tuple(axes[axis % len(axes)] for axis in given)
            if kind == "axes in order" and list(named) != sorted(named):
                return None
            found[name] = tuple(sorted(named))
    return found


def padded_shape(shape: Sequence[int], rank: int) -> Shape:
    """A shape with axes of one element in front, as broadcasting to ``rank`` sees it."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def transposed_array(array: Array, axes: Sequence[int]) -> Array:
    """A contiguous copy in another order; the array may have fewer axes than ``axes``, as a broadcast operand."""
    return np.ascontiguousarray(array.reshape(padded_shape(array.shape, len(axes))).transpose(axes))


def through_reshape(shape: Shape, axes: Axes, wanted: Shape) -> tuple[Axes, Shape, Axes] | None:
    """``x.transpose(axes).reshape(wanted)``, x of ``shape``, as ``x.transpose(axes1).reshape(shape2).transpose(axes2)``.

    Gives ``(axes1, shape2, axes2)``; None for tensors without elements. What the reshape merges is brought together by
    ``axes1``, in the order that x has otherwise; ``axes1`` keeps the memory where those axes are neighbours in x too.
    """
    solid = [axis for axis in axes if shape[axis] != 1]
    runs = _runs([shape[axis] for axis in solid], [extent for extent in wanted if extent != 1])
    if runs is None:
        return None
    merged: list[tuple[list[int], int]] = []
    for before, after in runs:
        merged.append((solid[:before], after))
        solid = solid[before:]
    gathered = [axis for group, _ in sorted(merged, key=lambda item: min(item[0])) for axis in group]
    rest = [axis for axis in range(len(shape)) if shape[axis] == 1]
    return (*rest, *gathered), *_assembled(merged, wanted)


def _runs(before: list[int], after: list[int]) -> list[tuple[int, int]] | None:
    """Smallest runs of extents with equal products: how many of ``before`` become how many of ``after``."""
    runs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        first, second, left, right = i + 1, j + 1, before[i], after[j]
        while left != right:
            if left < right and first < len(before):
                left *= before[first]
                first += 1
            elif right < left and second < len(after):
                right *= after[second]
                second += 1
            else:
                return None
        runs.append((first - i, second - j))
        i, j = first, second
    return runs if (i, j) == (len(before), len(after)) else None


def _assembled(merged: Sequence[tuple[list[int], int]], wanted: Shape) -> tuple[Shape, Axes]:
    """Put the wanted axes, run by run, where their sources stand; an axis of one element follows the one before it."""
    owner: list[int] = []
    runs = [number for number, (_, count) in enumerate(merged) for _ in range(count)]
    current = -1
    for extent in wanted:
        if extent != 1:
            current = runs.pop(0)
        owner.append(current)
    place = {number: min(group) for number, (group, _) in enumerate(merged)}
    order = sorted(range(len(wanted)), key=lambda axis: (place.get(owner[axis], -1), axis))
    return permuted(wanted, order), inverse(order)


# ---- Rules by which a product of integers takes its operands' axes in another order, instead of a transposed copy of
# one.
#
# It copies both sides along k anyway (``rows`` in ``ops/matrix/matmul.py``), whatever order they lie in.

_BYTES = ("int8", "uint8")


def operand_rules() -> tuple[Rule, ...]:
    """Transpositions that one product alone reads."""
    return ((P.op("matmul"), _taken_in_order),)


def _taken_in_order(match: Match) -> Replacement | None:
    if match.type(match.output).dtype != "int32" or any(
        match.type(name).dtype not in _BYTES for name in match.root.inputs
    ):
        return None
    inputs, attrs = list(match.root.inputs), dict(match.root.attrs)
    for position, name in enumerate("ab"):
        moved = match.scope.producer(inputs[position])
        if moved is None or moved.op != "transpose" or not match.scope.is_alone(inputs[position]):
            continue
        axes = moved.attr("axes")
        inputs[position] = moved.inputs[0]
        taken = match.root.attr(f"axes_{name}") if match.root.attrs.get(f"axes_{name}") else range(len(axes))
        attrs[f"axes_{name}"] = composed(axes, taken)
    if tuple(inputs) == match.root.inputs:
        return None
    match.emit("matmul", inputs, attrs)
    return match.replacement()


# ---- Rules that move transpositions towards the outputs until they cancel, vanish in constants, or stop.
#
# ``op(transpose(x))`` becomes ``transpose(op(x))`` for every operator that can work in another order of axes. Nothing is
# computed twice, and a rule never writes a transposition where there was none, so moving comes to an end.

_CHANNELS_FIRST = (0, 3, 1, 2)
_MOVED = P.op("transpose", P.any("x"), name="moved", shared=True)


def joining_rules() -> tuple[Rule, ...]:
    """Two transpositions are one, or none."""
    return ((P.op("transpose", P.any("x")), _without_effect), (P.op("transpose", _MOVED), _twice))


def transpose_rules() -> tuple[Rule, ...]:
    """Moving, joining and absorbing transpositions."""
    return (
        *joining_rules(),
        (P.op("transpose", P.const("x")), _of_constant),
        (P.op("reshape", _MOVED), _reshaped),
        (P.op(movable()), _moved),
        (P.op("dense"), _dense),
    )


def resting_rules() -> tuple[Rule, ...]:
    """For transpositions that stay, once nothing moves any more: one that leaves the elements in order is a reshape, others
    are done on integers rather than on the floats that these become."""
    return (
        (P.op("transpose", P.any("x")), _free),
        (P.op("transpose", P.op("dequantize", P.any("x"), name="floats")), _before_dequantize),
    )


def _without_effect(match: Match) -> Replacement | None:
    axes = match.root.attr("axes")
    return match.same("x") if axes == tuple(range(len(axes))) and match.is_like("x") else None


def _of_constant(match: Match) -> Replacement | None:
    """A constant is transposed now; a graph output stays computed."""
    if match.output in match.scope.kept:
        return None
    axes = match.root.attr("axes")
    kind = permuted_type(match.type(match["x"]), axes)
    return match.same_as(match.constant(f"{match['x']}.moved", transposed_array(match.const("x"), axes), kind))


def _twice(match: Match) -> Replacement:
    axes = composed(match.nodes["moved"].attr("axes"), match.root.attr("axes"))
    match.emit("transpose", (match["x"],), {"axes": axes})
    return match.replacement()


def _free(match: Match) -> Replacement | None:
    if not keeps_memory(match.type(match["x"]).shape, match.root.attr("axes")):
        return None
    match.emit("reshape", (match["x"],), {"shape": match.type(match.output).shape})
    return match.replacement()


def _before_dequantize(match: Match) -> Replacement | None:
    """dequantize follows in the same kernel."""
    floats, axes = match.nodes["floats"], match.root.attr("axes")
    if floats.attr("axis") is not None:
        return None
    kind = permuted_type(match.type(match["x"]), axes)
    moved = match.emit("transpose", (match["x"],), {"axes": axes}, kind, f"{match['x']}.moved")
    match.emit("dequantize", (moved,), floats.attrs, loc=floats.loc)
    return match.replacement()


def _reshaped(match: Match) -> Replacement | None:
    """Splitting axes, or merging neighbours, works in any order of the axes.

    Where it merges axes that are apart (depth to space), they are brought together, and only the order of an image is left to
    move on.
    """
    source, axes = match.type(match["x"]), match.nodes["moved"].attr("axes")
    result = match.type(match.output)
    if any(t.quant is not None and t.quant.axis is not None for t in (source, result)):
        return None
    found = through_reshape(source.shape, axes, result.shape)
    if found is None:
        return None
    first, shape, moved = found
    operand = match["x"]
    if not keeps_memory(source.shape, first):
        if moved != _CHANNELS_FIRST:
            return None
        kind = permuted_type(source, first)
        operand = match.emit("transpose", (operand,), {"axes": first}, kind, f"{match.output}.gathered")
    if moved == tuple(range(len(moved))):
        match.emit("reshape", (operand,), {"shape": shape})
    else:
        inner = TensorType(shape, result.dtype, result.quant)
        _finish(match, "reshape", (operand,), {"shape": shape}, inner, moved)
    return match.replacement()


def _finish(
    match: Match, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], kind: TensorType, axes: Axes
) -> None:
    """``op`` on what has not been transposed, making ``kind``, and the transposition behind it."""
    inner = match.emit(op, inputs, attrs, kind, f"{match.output}.moved")
    match.emit("transpose", (inner,), {"axes": axes})


# ---------------------------------------------------------------- any operator that can


def movable() -> frozenset[str]:
    """Names of the operators whose attributes say all about axes: they do the same in any order of these."""
    known = registry.registry().items()
    return frozenset(
        name
        for name, each in known
        if each.elementwise or (each.axes and any(a.kind in AXIS_KINDS for a in each.attrs.values()))
    )


def _moved(match: Match) -> Replacement | None:
    """All operands that share axes with the result are transposed alike, constant, or small enough to be turned round by a
    reshape; those of an elementwise operator that are as large as its result decide."""
    node, kind, inputs = match.root, match.type(match.output), list(match.root.inputs)
    if all(_order(match, name, len(match.type(name).shape)) is None for name in inputs if name):
        return None
    definition = registry.get(node.op)
    mapped = definition.axis_map(node, match.scope.types)
    positions = [k for k, places in enumerate(mapped) if places is not None]
    if not definition.elementwise:  # what has other axes than the data, as the indices of gather, does not broadcast
        extents = len(match.type(inputs[0]).shape)
        positions = [k for k in positions if len(match.type(inputs[k]).shape) == extents]
    rank = max((len(match.type(inputs[k]).shape) for k in positions), default=0)
    orders = {k: _order(match, inputs[k], rank) for k in positions}
    large = (o for k, o in orders.items() if not definition.elementwise or match.type(inputs[k]).size == kind.size)
    axes = next((order for order in large if order), None)
    if axes is None or len([name for name in node.outputs if name]) != 1 or _rounds_by_axis(match, axes):
        return None
    attrs = permuted_attrs(definition.attrs, node.attrs, axes)
    if attrs is None:
        return None
    for k in positions:
        producer = match.scope.producer(inputs[k])
        operand = (
            producer.inputs[0]
            if orders[k] == axes and producer is not None
            else _turned(match, inputs[k], axes, kind.size)
        )
        if not operand:
            return None
        inputs[k] = operand
    moved = replace(node, inputs=tuple(inputs), attrs=attrs)
    order = axes if len(kind.shape) == rank else _result_order(match, moved, axes)
    if order is None:
        return None
    if order == tuple(range(len(order))):
        match.emit(node.op, inputs, attrs)
    else:
        _finish(match, node.op, inputs, attrs, permuted_type(kind, inverse(order)), order)
    return match.replacement()


def _result_order(match: Match, moved: Node, axes: Axes) -> Axes | None:
    """How the result of ``moved`` has to be transposed where it has not as many axes as the first operand."""
    definition, types = registry.get(moved.op), match.scope.types
    before, after = (definition.axis_map(node, types)[0] or () for node in (match.root, moved))
    places = {place: after[axes[axis]] for axis, place in enumerate(before) if place is not None}
    order = tuple(places.get(place) for place in range(len(match.type(match.output).shape)))
    return None if None in order else tuple(place for place in order if place is not None)


def _rounds_by_axis(match: Match, axes: Axes) -> bool:
    """Whether the order of axes has a say in how results are rounded: a quantised softmax of TFLite means fixed point along the
    last axis, and floats along others."""
    if (
        match.root.op != "softmax"
        or match.type(match.output).quant is None
        or match.root.attr("rounding") == Rounding.EVEN
    ):
        return False
    axis, last = match.root.attr("axis") % len(axes), len(axes) - 1
    return bool((axes[axis] == last) != (axis == last))


def _order(match: Match, value: str, rank: int) -> Axes | None:
    """How ``value`` is transposed, if it is, with ``rank`` axes."""
    producer = match.scope.producer(value)
    if producer is None or producer.op != "transpose" or len(match.type(value).shape) != rank:
        return None
    axes: Axes = producer.attr("axes")
    return axes


def _turned(match: Match, value: str, axes: Axes, size: int) -> str:
    """A broadcast operand as it is before transposing by ``axes``; empty where that moves elements at run time."""
    kind, back = match.type(value), inverse(axes)
    if kind.size == 1 and len(kind.shape) <= len(axes):
        return value
    full = TensorType(padded_shape(kind.shape, len(axes)), kind.dtype, kind.quant)
    if kind.quant is not None and kind.quant.axis is not None:
        return ""
    turned = permuted_type(full, back)
    data = match.scope.consts.get(value)
    if data is not None:
        return match.constant(f"{value}.moved", transposed_array(data, back), turned)
    if kind.size < size and keeps_memory(full.shape, back):
        return match.emit("reshape", (value,), {"shape": turned.shape}, turned, f"{value}.moved")
    return ""


# ---------------------------------------------------------------- dense layers


def _dense(match: Match) -> Replacement | None:
    """dense(reshape(transpose(x)), constant weight): the weight's columns are put in the order that x has."""
    data, weight, *bias = match.root.inputs
    flat = match.scope.producer(data)
    moved = match.scope.producer(flat.inputs[0]) if flat is not None and flat.op == "reshape" else None
    weights, kind = match.scope.consts.get(weight), match.type(weight)
    if moved is None or moved.op != "transpose" or weights is None or (kind.quant and kind.quant.axis not in (None, 0)):
        return None
    rows, columns = match.type(data).shape
    source = match.type(moved.inputs[0]).shape
    axes: Axes = moved.attr("axes")
    if rows != 1 and (axes[0] != 0 or source[0] != rows):
        return None
    numbers = np.arange(prod(source)).reshape(source).transpose(axes).reshape(rows, columns)[0]
    turned = np.empty_like(weights)
    turned[:, numbers] = weights
    view = match.emit(
        "reshape",
        (moved.inputs[0],),
        {"shape": (rows, columns)},
        TensorType((rows, columns), match.type(data).dtype, match.type(data).quant),
        f"{data}.moved",
    )
    operand = match.constant(f"{weight}.moved", turned, kind)
    match.emit("dense", (view, operand, *bias), match.root.attrs)
    return match.replacement()
