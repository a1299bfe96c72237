# SPDX-License-Identifier: Apache-2.0
"""Axis orders, and rewrite rules that move transpositions towards the outputs of the graph until they cancel."""

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

# ---- Orders of axes: pure functions of shapes, for passes that move transpositions and reshapes.
#
# ``axes`` always has numpy's meaning: ``y = x.transpose(axes)`` has ``y.shape[i] == x.shape[axes[i]]``.

T = TypeVar("T")
Axes = tuple[int, ...]
Shape = tuple[int, ...]


def invert_axes(axes: Sequence[int]) -> Axes:
    """Return the axis order that undoes a transposition by ``axes``."""
    return tuple(sorted(range(len(axes)), key=lambda i: axes[i]))


def compose_axes(first_axes: Sequence[int], second_axes: Sequence[int]) -> Axes:
    """Return the axis order that equals a transposition by ``first_axes`` followed by one by ``second_axes``."""
    return tuple(first_axes[axis] for axis in second_axes)


def permute_items(items: Sequence[T], axes: Sequence[int]) -> tuple[T, ...]:
    """Return the shape, or another sequence with one item per axis, after a transposition by ``axes``."""
    return tuple(items[axis] for axis in axes)


def keeps_memory_order(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Test whether a transposition of ``shape`` by ``axes`` keeps the order of elements in memory, because it moves
    only axes of extent 1."""
    moved = [axis for axis in axes if shape[axis] != 1]
    return moved == sorted(moved)


def permute_type(tensor_type: TensorType, axes: Sequence[int]) -> TensorType:
    """Return the type after a transposition by ``axes``. The axis of per-channel scales is moved, too."""
    quant = tensor_type.quant
    if quant is not None and quant.axis is not None:
        quant = replace(quant, axis=tuple(axes).index(quant.axis))
    return TensorType(permute_items(tensor_type.shape, axes), tensor_type.dtype, quant)


AXIS_KINDS = frozenset(("axis", "axes", "axes in order", "ints by axis", "pairs by axis"))
"""Kinds of attributes that name axes of the first operand, or have a value for each axis."""


def permute_attrs(declared: Attributes, attrs: Mapping[str, Attr], axes: Axes) -> dict[str, Attr] | None:
    """Return attributes with which an operator on ``x`` computes the same as with ``attrs`` on ``x.transpose(axes)``,
    transposed.

    Return None if an ordered list of axes ("axes in order") would no longer be ascending, because float sums depend on
    this order."""
    result = dict(attrs)
    for name, value in attrs.items():
        kind = declared[name].kind
        if kind not in AXIS_KINDS or value is None:
            continue
        as_given: Any = value
        if kind == "axis":
            result[name] = axes[as_given % len(axes)]
        elif kind.endswith("by axis"):
            result[name] = permute_items(as_given, invert_axes(axes))
        else:
            original_axes = tuple(axes[axis % len(axes)] for axis in as_given)
            if kind == "axes in order" and list(original_axes) != sorted(original_axes):
                return None
            result[name] = tuple(sorted(original_axes))
    return result


def pad_shape_with_leading_ones(shape: Sequence[int], rank: int) -> Shape:
    """Return a shape with axes of extent 1 inserted in front up to ``rank`` axes, as broadcasting does."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def transpose_array(array: Array, axes: Sequence[int]) -> Array:
    """Return a contiguous transposed copy of an array. The array may have fewer axes than ``axes``, as a broadcast
    operand may."""
    return np.ascontiguousarray(array.reshape(pad_shape_with_leading_ones(array.shape, len(axes))).transpose(axes))


def move_transpose_through_reshape(shape: Shape, axes: Axes, reshaped_shape: Shape) -> tuple[Axes, Shape, Axes] | None:
    """Rewrite ``x.transpose(axes).reshape(reshaped_shape)``, where x has ``shape``, as
    ``x.transpose(axes1).reshape(shape2).transpose(axes2)``.

    Return ``(axes1, shape2, axes2)``, or None if there is no such form. ``axes1`` makes those axes adjacent that the
    reshape merges, and otherwise keeps the order of x. It keeps the order in memory if these axes are already adjacent
    in x."""
    solid = [axis for axis in axes if shape[axis] != 1]
    runs = _split_extents_into_equal_products(
        [shape[axis] for axis in solid], [extent for extent in reshaped_shape if extent != 1]
    )
    if runs is None:
        return None
    # For each run: the axes of x (without extents of 1) that are merged, and the number of reshaped axes that they become.
    merged: list[tuple[list[int], int]] = []
    for before, after in runs:
        merged.append((solid[:before], after))
        solid = solid[before:]
    gathered = [axis for group, _ in sorted(merged, key=lambda item: min(item[0])) for axis in group]
    rest = [axis for axis in range(len(shape)) if shape[axis] == 1]
    return (*rest, *gathered), *_sort_reshaped_axes(merged, reshaped_shape)


def _split_extents_into_equal_products(old_extents: list[int], new_extents: list[int]) -> list[tuple[int, int]] | None:
    """Split two lists of extents into the shortest runs with equal products.

    Return for each pair of runs the number of extents in ``old_extents`` and in ``new_extents``; None if there is no
    such split."""
    runs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(old_extents) and j < len(new_extents):
        first, second, left, right = i + 1, j + 1, old_extents[i], new_extents[j]
        while left != right:
            if left < right and first < len(old_extents):
                left *= old_extents[first]
                first += 1
            elif right < left and second < len(new_extents):
                right *= new_extents[second]
                second += 1
            else:
                return None
        runs.append((first - i, second - j))
        i, j = first, second
    return runs if (i, j) == (len(old_extents), len(new_extents)) else None


def _sort_reshaped_axes(merged_axes: Sequence[tuple[list[int], int]], reshaped_shape: Shape) -> tuple[Shape, Axes]:
    """Sort the axes of the reshaped tensor by the positions of their sources in x. An axis of extent 1 follows the axis
    before it.

    Return ``(shape2, axes2)`` of :func:`move_transpose_through_reshape`."""
    run_of: list[int] = []
    runs = [number for number, (_, count) in enumerate(merged_axes) for _ in range(count)]
    current = -1
    for extent in reshaped_shape:
        if extent != 1:
            current = runs.pop(0)
        run_of.append(current)
    first_axis = {number: min(group) for number, (group, _) in enumerate(merged_axes)}
    order = sorted(range(len(reshaped_shape)), key=lambda axis: (first_axis.get(run_of[axis], -1), axis))
    return permute_items(reshaped_shape, order), invert_axes(order)


# ---- Rules that absorb transpositions into an integer ``matmul`` as its attributes ``axes_a`` and ``axes_b``.
#
# ``matmul`` packs both operands along K in any case (``rows`` in ``ops/matrix/matmul.py``), whatever the order of their axes.

_BYTES = ("int8", "uint8")


def matmul_transpose_rules() -> tuple[Rule, ...]:
    """Return the rule that absorbs a transposition in an integer ``matmul``, if the ``matmul`` is its only reader."""
    return ((P.op("matmul"), _absorb_transposes_in_matmul),)


def _absorb_transposes_in_matmul(match: Match) -> Replacement | None:
    """Absorb the transpositions of an integer ``matmul``'s operands in its attributes ``axes_a`` and ``axes_b``."""
    if match.type(match.output).dtype != "int32" or any(
        match.type(name).dtype not in _BYTES for name in match.root.inputs
    ):
        return None
    inputs, attrs = list(match.root.inputs), dict(match.root.attrs)
    for position, name in enumerate("ab"):
        transpose = match.scope.producer(inputs[position])
        if transpose is None or transpose.op != "transpose" or not match.scope.has_only_one_reader(inputs[position]):
            continue
        axes = transpose.attr("axes")
        inputs[position] = transpose.inputs[0]
        order = match.root.attr(f"axes_{name}") if match.root.attrs.get(f"axes_{name}") else range(len(axes))
        attrs[f"axes_{name}"] = compose_axes(axes, order)
    if tuple(inputs) == match.root.inputs:
        return None
    match.emit("matmul", inputs, attrs)
    return match.replacement()


# ---- Rules that move transpositions towards the outputs until they cancel, vanish in constants, or stop.
#
# ``op(transpose(x))`` becomes ``transpose(op(x))`` for every operator that supports another order of axes. Nothing is computed
# twice. A rule never adds a transposition where there was none, so that rewriting terminates.

_CHANNELS_FIRST = (0, 3, 1, 2)
_MOVED = P.op("transpose", P.any("x"), name="moved", shared=True)


def transpose_merging_rules() -> tuple[Rule, ...]:
    """Return rules that merge two successive transpositions and remove transpositions that change nothing."""
    return ((P.op("transpose", P.any("x")), _remove_identity_transpose), (P.op("transpose", _MOVED), _merge_transposes))


def transpose_rules() -> tuple[Rule, ...]:
    """Return rules that move, merge and absorb transpositions."""
    return (
        *transpose_merging_rules(),
        (P.op("transpose", P.const("x")), _transpose_constant),
        (P.op("reshape", _MOVED), _sink_transpose_through_reshape),
        (P.op(axis_independent_operators()), _sink_transpose_through_operator),
        (P.op(registry.layer_operators()), _fold_transpose_into_dense_weight),
    )


def final_transpose_rules() -> tuple[Rule, ...]:
    """Return rules for the transpositions that remain when none can be moved any more.

    A transposition that keeps the order of elements becomes a reshape. A transposition of dequantised floats is moved
    before ``dequantize``, so that it moves integers."""
    return (
        (P.op("transpose", P.any("x")), _replace_by_reshape),
        (P.op("transpose", P.op("dequantize", P.any("x"), name="floats")), _move_before_dequantize),
    )


def _remove_identity_transpose(match: Match) -> Replacement | None:
    """Remove a transposition whose axes are in their original order."""
    axes = match.root.attr("axes")
    return match.same("x") if axes == tuple(range(len(axes))) and match.has_type_of_root("x") else None


def _transpose_constant(match: Match) -> Replacement | None:
    """Transpose a constant at compile time. A graph output must stay computed."""
    if match.output in match.scope.kept:
        return None
    axes = match.root.attr("axes")
    kind = permute_type(match.type(match["x"]), axes)
    return match.same_as(match.constant(f"{match['x']}.moved", transpose_array(match.const("x"), axes), kind))


def _merge_transposes(match: Match) -> Replacement:
    """Replace two successive transpositions by one."""
    axes = compose_axes(match.nodes["moved"].attr("axes"), match.root.attr("axes"))
    match.emit("transpose", (match["x"],), {"axes": axes})
    return match.replacement()


def _replace_by_reshape(match: Match) -> Replacement | None:
    """Replace a transposition that keeps the order of elements in memory by a reshape."""
    if not keeps_memory_order(match.type(match["x"]).shape, match.root.attr("axes")):
        return None
    match.emit("reshape", (match["x"],), {"shape": match.type(match.output).shape})
    return match.replacement()


def _move_before_dequantize(match: Match) -> Replacement | None:
    """Rewrite transpose(dequantize(x)) -> dequantize(transpose(x)).

    The transposition then moves narrow integers, and ``dequantize`` can be fused with the reader."""
    floats, axes = match.nodes["floats"], match.root.attr("axes")
    if floats.attr("axis") is not None:
        return None
    kind = permute_type(match.type(match["x"]), axes)
    moved = match.emit("transpose", (match["x"],), {"axes": axes}, kind, f"{match['x']}.moved")
    match.emit("dequantize", (moved,), floats.attrs, loc=floats.loc)
    return match.replacement()


def _sink_transpose_through_reshape(match: Match) -> Replacement | None:
    """Rewrite reshape(transpose(x)) -> transpose(reshape(x)) if the reshape splits axes or merges adjacent ones.

    If the reshape merges axes that are not adjacent (depth to space), a transposition that makes them adjacent remains
    before it. That is done only if the transposition after the reshape is from NHWC to NCHW, because such a
    transposition may cancel."""
    source, axes = match.type(match["x"]), match.nodes["moved"].attr("axes")
    result = match.type(match.output)
    if any(t.quant is not None and t.quant.axis is not None for t in (source, result)):
        return None
    rewritten = move_transpose_through_reshape(source.shape, axes, result.shape)
    if rewritten is None:
        return None
    axes1, shape, axes2 = rewritten  # the names of move_transpose_through_reshape
    operand = match["x"]
    if not keeps_memory_order(source.shape, axes1):
        if axes2 != _CHANNELS_FIRST:
            return None
        kind = permute_type(source, axes1)
        operand = match.emit("transpose", (operand,), {"axes": axes1}, kind, f"{match.output}.gathered")
    if axes2 == tuple(range(len(axes2))):
        match.emit("reshape", (operand,), {"shape": shape})
    else:
        inner = TensorType(shape, result.dtype, result.quant)
        _emit_with_transpose(match, "reshape", (operand,), {"shape": shape}, inner, axes2)
    return match.replacement()


def _emit_with_transpose(
    match: Match, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], tensor_type: TensorType, axes: Axes
) -> None:
    """Emit ``op`` on untransposed operands, with a result of type ``tensor_type``, and a transposition after it."""
    inner = match.emit(op, inputs, attrs, tensor_type, f"{match.output}.moved")
    match.emit("transpose", (inner,), {"axes": axes})


# ---------------------------------------------------------------- any operator that can


def axis_independent_operators() -> frozenset[str]:
    """Return the names of the operators that support any order of axes, because their attributes name the axes."""
    operators = registry.registry().items()
    return frozenset(
        name
        for name, definition in operators
        if definition.elementwise or (definition.axes and any(a.kind in AXIS_KINDS for a in definition.attrs.values()))
    )


def _sink_transpose_through_operator(match: Match) -> Replacement | None:
    """Rewrite op(transpose(x), ...) -> transpose(op(x, ...)).

    All operands that share axes with the result must be transposed equally, be constant, or be small enough to be
    permuted by a reshape. For an elementwise operator, the operands that are as large as its result determine the order
    of axes."""
    node, kind, inputs = match.root, match.type(match.output), list(match.root.inputs)
    if all(_find_transpose_axes_of(match, name, len(match.type(name).shape)) is None for name in inputs if name):
        return None
    definition = registry.get(node.op)
    mapped = definition.axis_map(node, match.scope.types)
    positions = [k for k, mapped_axes in enumerate(mapped) if mapped_axes is not None]
    if not definition.elementwise:  # an operand with axes of its own, such as the indices of gather, does not broadcast
        data_rank = len(match.type(inputs[0]).shape)
        positions = [k for k in positions if len(match.type(inputs[k]).shape) == data_rank]
    rank = max((len(match.type(inputs[k]).shape) for k in positions), default=0)
    orders = {k: _find_transpose_axes_of(match, inputs[k], rank) for k in positions}
    # A small broadcast operand must not determine the order of axes: a transposition of the large operand would be added.
    large = (o for k, o in orders.items() if not definition.elementwise or match.type(inputs[k]).size == kind.size)
    axes = next((order for order in large if order), None)
    if axes is None or len([name for name in node.outputs if name]) != 1 or _does_rounding_depend_on_axis(match, axes):
        return None
    attrs = permute_attrs(definition.attrs, node.attrs, axes)
    if attrs is None:
        return None
    for k in positions:
        producer = match.scope.producer(inputs[k])
        operand = (
            producer.inputs[0]
            if orders[k] == axes and producer is not None
            else _untranspose_broadcast_operand(match, inputs[k], axes, kind.size)
        )
        if not operand:
            return None
        inputs[k] = operand
    untransposed = replace(node, inputs=tuple(inputs), attrs=attrs)
    order = axes if len(kind.shape) == rank else _find_axes_of_result(match, untransposed, axes)
    if order is None:
        return None
    if order == tuple(range(len(order))):
        match.emit(node.op, inputs, attrs)
    else:
        _emit_with_transpose(match, node.op, inputs, attrs, permute_type(kind, invert_axes(order)), order)
    return match.replacement()


def _find_axes_of_result(match: Match, moved_node: Node, axes: Axes) -> Axes | None:
    """Return the axis order that transposes the result of ``moved_node`` to the result of the original node.

    The rank of the result may differ from the rank of the first operand. Return None if there is no such order."""
    definition, types = registry.get(moved_node.op), match.scope.types
    before, after = (definition.axis_map(node, types)[0] or () for node in (match.root, moved_node))
    target = {position: after[axes[axis]] for axis, position in enumerate(before) if position is not None}
    order = tuple(target.get(position) for position in range(len(match.type(match.output).shape)))
    return None if None in order else tuple(position for position in order if position is not None)


def _does_rounding_depend_on_axis(match: Match, axes: Axes) -> bool:
    """Test whether moving an operator to other axes would change the rounding of its results.

    That is so for TFLite's quantised softmax: it is computed in fixed point along the last axis, and in floats along
    other axes."""
    if (
        match.root.op != "softmax"
        or match.type(match.output).quant is None
        or match.root.attr("rounding") == Rounding.EVEN
    ):
        return False
    axis, last = match.root.attr("axis") % len(axes), len(axes) - 1
    return bool((axes[axis] == last) != (axis == last))


def _find_transpose_axes_of(match: Match, value_name: str, rank: int) -> Axes | None:
    """Return the axis order by which ``value_name`` is transposed, or None if it is not computed by a transposition or
    has another rank."""
    producer = match.scope.producer(value_name)
    if producer is None or producer.op != "transpose" or len(match.type(value_name).shape) != rank:
        return None
    axes: Axes = producer.attr("axes")
    return axes


def _untranspose_broadcast_operand(match: Match, value_name: str, axes: Axes, result_size: int) -> str:
    """Return the name of a broadcast operand permuted by the inverse of ``axes``; empty if that would move elements at
    run time."""
    kind, back = match.type(value_name), invert_axes(axes)
    if kind.size == 1 and len(kind.shape) <= len(axes):
        return value_name
    padded = TensorType(pad_shape_with_leading_ones(kind.shape, len(axes)), kind.dtype, kind.quant)
    if kind.quant is not None and kind.quant.axis is not None:
        return ""
    inverted = permute_type(padded, back)
    data = match.scope.consts.get(value_name)
    if data is not None:
        return match.constant(f"{value_name}.moved", transpose_array(data, back), inverted)
    if kind.size < result_size and keeps_memory_order(padded.shape, back):
        return match.emit("reshape", (value_name,), {"shape": inverted.shape}, inverted, f"{value_name}.moved")
    return ""


# ---------------------------------------------------------------- dense layers


def _fold_transpose_into_dense_weight(match: Match) -> Replacement | None:
    """Rewrite dense(reshape(transpose(x)), weight) -> dense(reshape(x), permuted weight), where the weight is constant.

    The columns of the weight are permuted to the order of the elements of x."""
    data, weight, *bias = match.root.inputs
    flat = match.scope.producer(data)
    moved = match.scope.producer(flat.inputs[0]) if flat is not None and flat.op == "reshape" else None
    weights, kind = match.scope.consts.get(weight), match.type(weight)
    product = registry.product_of(match.root, match.scope.types)
    if product is None or product.windows:
        return None
    if moved is None or moved.op != "transpose" or weights is None or (kind.quant and kind.quant.axis not in (None, 0)):
        return None
    rows, columns = match.type(data).shape
    source = match.type(moved.inputs[0]).shape
    axes: Axes = moved.attr("axes")
    if rows != 1 and (axes[0] != 0 or source[0] != rows):
        return None
    # source_columns[k]: the position in x, flattened row by row, of the element that column k of the weight multiplies.
    source_columns = np.arange(prod(source)).reshape(source).transpose(axes).reshape(rows, columns)[0]
    permuted_weights = np.empty_like(weights)
    permuted_weights[:, source_columns] = weights
    view = match.emit(
        "reshape",
        (moved.inputs[0],),
        {"shape": (rows, columns)},
        TensorType((rows, columns), match.type(data).dtype, match.type(data).quant),
        f"{data}.moved",
    )
    operand = match.constant(f"{weight}.moved", permuted_weights, kind)
    match.emit(match.root.op, (view, operand, *bias), match.root.attrs)
    return match.replacement()
