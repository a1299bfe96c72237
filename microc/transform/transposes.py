"""Rules that move transpositions towards the outputs until they cancel, vanish in constants, or stop.

``op(transpose(x))`` becomes ``transpose(op(x))`` for every operator that can work in another order of axes. Nothing is
computed twice, and a rule never writes a transposition where there was none, so moving comes to an end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from microc.graph.ir import Attr, TensorType
from microc.graph.match import Match, P, Replacement, Rule
from microc.transform.axes import (
    Axes,
    composed,
    inverse,
    keeps_memory,
    padded_shape,
    permuted,
    permuted_type,
    through_reshape,
    transposed_array,
)
from microc.transform.reshapes import element_operands, elementwise_operators

_REDUCTIONS = ("sum", "mean", "max", "min", "prod")
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
        (P.op(elementwise_operators()), _elementwise),
        (P.op(_REDUCTIONS, _MOVED), _reduced),
        (P.op("softmax", _MOVED), _softmax),
        (P.op("concat"), _joined),
        (P.op("resample"), _resampled),
        (P.op("pad", _MOVED), _padded),
        (P.op("slice", _MOVED), _sliced),
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
    return match.same("x") if axes == tuple(range(len(axes))) and _alike(match) else None


def _alike(match: Match) -> bool:
    """Whether the captured x and the result differ in nothing that counts."""
    source, result = match.type(match["x"]), match.type(match.output)
    return (source.shape, source.dtype, source.quant) == (result.shape, result.dtype, result.quant)


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


# ---------------------------------------------------------------- elementwise operators


def _elementwise(match: Match) -> Replacement | None:
    """All operands transposed alike, constant, or small enough to be turned round by a reshape."""
    kind, inputs = match.type(match.output), list(match.root.inputs)
    rank, positions = len(kind.shape), element_operands(match)
    orders = {k: _order(match, inputs[k], rank) for k in positions}
    axes = next((o for k, o in orders.items() if o and match.type(inputs[k]).size == kind.size), None)
    if axes is None or len([name for name in match.root.outputs if name]) != 1:
        return None
    for k in positions:
        producer = match.scope.producer(inputs[k])
        if orders[k] == axes and producer is not None:
            inputs[k] = producer.inputs[0]
            continue
        operand = _turned(match, inputs[k], axes, kind.size)
        if not operand:
            return None
        inputs[k] = operand
    attrs = dict(match.root.attrs)
    if isinstance(attrs.get("axis"), int):
        attrs["axis"] = axes[match.root.attr("axis")]
    _finish(match, match.root.op, inputs, attrs, permuted_type(kind, inverse(axes)), axes)
    return match.replacement()


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


# ---------------------------------------------------------------- operators with axes


def _reduced(match: Match) -> Replacement:
    axes: Axes = match.nodes["moved"].attr("axes")
    rank = len(axes)
    over = tuple(sorted(axes[axis % rank] for axis in match.root.attr("axes")))
    attrs, kind = {**match.root.attrs, "axes": over}, match.type(match.output)
    if match.root.attr("keepdims"):
        _finish(match, match.root.op, (match["x"],), attrs, permuted_type(kind, inverse(axes)), axes)
        return match.replacement()
    kept = [axis for axis in axes if axis not in over]
    order = tuple(sorted(kept).index(axis) for axis in kept)
    if order == tuple(range(len(order))):
        match.emit(match.root.op, (match["x"],), attrs)
    else:
        _finish(match, match.root.op, (match["x"],), attrs, permuted_type(kind, inverse(order)), order)
    return match.replacement()


def _softmax(match: Match) -> Replacement | None:
    """A quantised softmax of TFLite means fixed point along the last axis and floats along others: it stays where it is."""
    axes: Axes = match.nodes["moved"].attr("axes")
    kind = match.type(match.output)
    last = len(axes) - 1
    axis = axes[match.root.attr("axis") % len(axes)]
    stays = (axis == last) == (match.root.attr("axis") % len(axes) == last)
    if kind.quant is not None and match.root.attrs.get("rounding") != "even" and not stays:
        return None
    attrs = {**match.root.attrs, "axis": axis}
    _finish(match, "softmax", (match["x"],), attrs, permuted_type(kind, inverse(axes)), axes)
    return match.replacement()


def _joined(match: Match) -> Replacement | None:
    """concat of operands that are transposed alike, or constant."""
    kind, inputs = match.type(match.output), match.root.inputs
    rank = len(kind.shape)
    orders = [_order(match, name, rank) for name in inputs]
    axes = next((o for o in orders if o), None)
    if axes is None:
        return None
    operands = []
    for name, order in zip(inputs, orders, strict=True):
        producer, data = match.scope.producer(name), match.scope.consts.get(name)
        if order == axes and producer is not None:
            operands.append(producer.inputs[0])
        elif data is not None:
            back = inverse(axes)
            turned = permuted_type(match.type(name), back)
            operands.append(match.constant(f"{name}.moved", transposed_array(data, back), turned))
        else:
            return None
    attrs = {**match.root.attrs, "axis": axes[match.root.attr("axis") % rank]}
    _finish(match, "concat", operands, attrs, permuted_type(kind, inverse(axes)), axes)
    return match.replacement()


def _resampled(match: Match) -> Replacement | None:
    """A resize, whose tables stay as they are: axes keep their order, in which sums of floats are taken."""
    kind, (data, *tables) = match.type(match.output), match.root.inputs
    axes = _order(match, data, len(kind.shape))
    producer = match.scope.producer(data)
    over = tuple(axes[axis] for axis in match.root.attr("axes")) if axes else ()
    if axes is None or producer is None or list(over) != sorted(over):
        return None
    attrs = {**match.root.attrs, "axes": over}
    _finish(match, "resample", (producer.inputs[0], *tables), attrs, permuted_type(kind, inverse(axes)), axes)
    return match.replacement()


def _padded(match: Match) -> Replacement:
    return _with_permuted(match, ("padding",))


def _sliced(match: Match) -> Replacement:
    return _with_permuted(match, ("begin", "end", "strides"))


def _with_permuted(match: Match, names: Sequence[str]) -> Replacement:
    """An operator with an attribute value for every axis."""
    axes: Axes = match.nodes["moved"].attr("axes")
    back = inverse(axes)
    attrs = dict(match.root.attrs)
    for name in names:
        attrs[name] = permuted(match.root.attr(name), back)
    _finish(match, match.root.op, (match["x"],), attrs, permuted_type(match.type(match.output), back), axes)
    return match.replacement()


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
