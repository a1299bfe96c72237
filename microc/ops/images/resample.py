# SPDX-License-Identifier: Apache-2.0
"""Interpolation between the elements of images: ``resample`` at positions known at compile time, and ``grid_sample``
at computed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import INT32_MAX, INT32_MIN
from microc.ops.arithmetic import Rewrite, is_quantised, legalize_in_float, per_tensor_quant
from microc.ops.attributes import ROUNDING, Rounding, choice, integer, some_axes
from microc.ops.constants import CheckedNode, Constants, NumberUse, OperandBounds
from microc.ops.gradients.rules import build_resample_gradient
from microc.ops.registry import Case, Legalized, OpCall, OpDef, map_along_axes
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var
from microc.tir.names import ACC, TWO_ROUNDINGS

# ---- Operator ``resample``: every element of the result is a weighted sum of a few elements along some axes, or one
# of these elements.
#
# The elements and weights are known at compile time, so any rule of resizing (nearest, linear, cubic; corners
# or centres aligned) becomes two tables for each axis: indices (out, taps), and weights of the same shape. With
# one tap there are no weights. Integers are multiplied by integer weights; the sum is scaled by 2**-``shift``
# and rounded half away from zero.
#
# Quantised bytes with float weights are legalised to integer weights if the scale is unchanged. The weights then have 14
# bits (11 and 12 along two axes). For ONNX, ties are rounded to even distances from the zero point. The result is exact
# for weights that are multiples of these powers of two, as when scaling by two. Other weights have an error of at most
# 2**-12, so a result of n taps has an error of at most n 2**-5 steps of its data before it is rounded.
#
# Source: TFLite ``reference/resize_bilinear.h`` (ResizeBilinearInteger), ``resize_nearest_neighbor.h``.


INDEX_DTYPES = ("int16", "int32")
_MOST_BITS = 14
"""Largest number of fraction bits of a weight, which may exceed one."""
_SUM_BITS = 23
"""Largest number of fraction bits of the weights of all axes together: products of bytes and these weights are summed
in int32."""


def _split_index_and_weight_tables(
    attrs: Mapping[str, Any], operands: Sequence[Any]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return ``(indices, weights)``: for each axis an operand with tap indices, and an operand with tap weights.

    ``weights`` is empty if each element has one tap."""
    count = len(attrs["axes"])
    return operands[1 : 1 + count], operands[1 + count :]


def _infer_resample_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, axes = types[0], attrs["axes"]
    indices, weights = _split_index_and_weight_tables(attrs, types)
    if not axes or sorted(set(axes)) != list(axes) or not 0 <= axes[0] <= axes[-1] < len(data.shape) or 0 in data.shape:
        raise ModelError(
            f"resample: axes must be axes of data that are not empty, in ascending order; got axes={tuple(axes)} for "
            f"{data.shape}"
        )
    if len(indices) != len(axes) or len(weights) not in (0, len(axes)):
        raise ModelError(
            f"resample: wrong number of tables; got {len(indices)} of indices and {len(weights)} of weights, "
            f"expected {len(axes)} of each, or no weights"
        )
    if any(tensor_type.dtype not in INDEX_DTYPES or len(tensor_type.shape) != 2 for tensor_type in indices):
        raise ModelError(
            f"resample: index tables have wrong types; got {', '.join(f'{t.dtype} {t.shape}' for t in indices)}, "
            f"expected {' or '.join(INDEX_DTYPES)} with two axes (rows, taps)"
        )
    if any(tensor_type.shape != index.shape for tensor_type, index in zip(weights, indices, strict=False)):
        raise ModelError(
            f"resample: weights need the shapes of the index tables; got {', '.join(str(t.shape) for t in weights)}, "
            f"expected {', '.join(str(t.shape) for t in indices)}"
        )
    if not weights and any(tensor_type.shape[1] != 1 for tensor_type in indices):
        raise ModelError(
            "resample: index tables without weights must have one tap per row; "
            f"got shapes {', '.join(str(t.shape) for t in indices)}, expected (rows, 1) each"
        )
    shape = list(data.shape)
    for axis, tensor_type in zip(axes, indices, strict=True):
        shape[axis] = tensor_type.shape[0]
    return (TensorType(tuple(shape), data.dtype),)


def _evaluate_resample_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Interpolate along one axis after the other. Integers are summed in int64."""
    data, (indices, weights) = arrays[0], _split_index_and_weight_tables(attrs, arrays)
    if not weights:
        for axis, index in zip(attrs["axes"], indices, strict=True):
            data = np.take(data, index[:, 0], axis=axis)
        return (data,)
    if data.dtype.kind == "f":
        return (_sum_weighted_taps_in_floats(attrs["axes"], data, indices, weights),)
    total = data.astype(np.int64)
    for axis, index, weight in zip(attrs["axes"], indices, weights, strict=True):
        factors = weight.astype(total.dtype).reshape(*weight.shape, *(1,) * (total.ndim - axis - 1))
        total = (np.take(total, index, axis=axis) * factors).sum(axis=axis + 1)
    half, shift, even = 1 << attrs["shift"] >> 1, attrs["shift"], attrs.get("even_from")
    if even is not None:
        return ((total + half - 1 + ((total >> shift) + even & 1) >> shift).astype(data.dtype),)
    return ((np.sign(total) * (abs(total) + half >> shift)).astype(data.dtype),)


def _sum_weighted_taps_in_floats(
    axes: Sequence[int], data: Array, indices: Sequence[Array], weights: Sequence[Array]
) -> Array:
    """Sum the weighted taps one by one in the dtype of the data, in the order of the generated loops.

    The order matters, because the last bit decides whether a later quantisation meets a tie."""
    total: Array | None = None
    for taps in np.ndindex(*(weight.shape[1] for weight in weights)):
        factor, part = np.ones((), data.dtype), data
        for axis, index, weight, tap in zip(axes, indices, weights, taps, strict=True):
            factor = factor * weight[:, tap].reshape(-1, *(1,) * (data.ndim - axis - 1))
            part = np.take(part, index[:, tap], axis=axis)
        total = part * factor if total is None else total + part * factor
    assert total is not None
    return total


def _compute_resample(call: OpCall) -> te.Tensor:
    operands = call.present
    x, axes = operands[0].tensor(), call.attrs["axes"]
    indices, weights = (
        [table.tensor() for table in tables] for tables in _split_index_and_weight_tables(call.attrs, operands)
    )
    shape, dtype = call.out_types[0].shape, x.dtype

    def build_source_index(index: Sequence[Expr], taps: Sequence[Expr]) -> tuple[Expr, ...]:
        found = list(index)
        for axis, table, tap in zip(axes, indices, taps, strict=True):
            found[axis] = ir.cast("int32", table[index[axis], tap])
        return tuple(found)

    if not weights:
        return te.compute(
            shape, lambda *index: x[build_source_index(index, [ir.const(0, "int32")] * len(axes))], "picked"
        )
    taps = [te.reduce_axis(table.shape[1], f"k{k}") for k, table in enumerate(indices)]
    wide = dtype if dtypes.is_float(dtype) else "int32" if dtypes.nbytes(dtype) == 1 else "int64"

    def build_weighted_sum(*index: Expr) -> Expr:
        parts = [
            ir.cast(wide, table[index[axis], tap.var]) for axis, table, tap in zip(axes, weights, taps, strict=True)
        ]
        factor = reduce(lambda a, b: a * b, parts)
        return te.sum_reduce(ir.cast(wide, x[build_source_index(index, [tap.var for tap in taps])]) * factor, *taps)

    notes = ((TWO_ROUNDINGS, 1),) if dtypes.is_float(dtype) and call.attrs.get("rounding") == Rounding.EVEN else ()
    acc = te.compute(shape, build_weighted_sum, ACC, notes=notes)
    if dtypes.is_float(dtype):
        return acc
    half, shift, even = 1 << call.attrs["shift"] >> 1, call.attrs["shift"], call.attrs.get("even_from")

    def build_rounded_sum(*index: Expr) -> Expr:
        total = acc[index]
        if even is not None:
            odd = ((total >> shift) + even % 2) & 1
            return ir.cast(dtype, (total + (half - 1) + odd) >> shift)
        nearest = total + ir.select(total > 0, ir.const(half, wide), -half)
        return ir.cast(dtype, ir.binary("truncdiv", nearest, 1 << shift))

    return te.compute(shape, build_rounded_sum, "rounded")


def _legalize_resample(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite quantised data to integer weights if scale and zero point stay the same, else to float operators."""
    axes = node.attr("axes")
    weights = [graph.consts.get(name) for name in node.inputs[1 + len(axes) :]]
    if not is_quantised(node, graph) or not weights or any(w is None or w.dtype.kind != "f" for w in weights):
        return None
    (source, zero), result = (
        per_tensor_quant(node, graph, node.inputs[0]),
        per_tensor_quant(node, graph, node.outputs[0]),
    )
    bytes_alike = (source, zero) == result and dtypes.nbytes(graph.types[node.inputs[0]].dtype) == 1
    if node.attr("rounding") == Rounding.EVEN or not bytes_alike:
        return legalize_in_float(node, graph)
    bits = [min(_MOST_BITS, (_SUM_BITS + k) // len(axes)) for k in range(len(axes))]
    rewrite = Rewrite(node, graph)
    levels = [
        rewrite.add_constant("weights", round_weights(w, b))
        for w, b in zip(weights, bits, strict=True)
        if w is not None
    ]
    attrs = {**node.attrs, "shift": sum(bits), "even_from": zero}
    rewrite.emit("resample", (*node.inputs[: 1 + len(axes)], *levels), node.outputs, attrs)
    return rewrite.legalized()


def round_weights(weights: Array, fraction_bits: int) -> Array:
    """Round weights (out, taps) to int16 multiples of 2**-``fraction_bits``.

    The largest weight of each row is adjusted so that the sum of the row is unchanged. If the sum is one, zero points
    cancel."""
    scaled = weights.astype(np.float64) * (1 << fraction_bits)
    levels = np.rint(scaled)
    rows = np.arange(len(weights))
    levels[rows, np.abs(scaled).argmax(axis=1)] += np.rint(scaled.sum(axis=1)) - levels.sum(axis=1)
    return levels.astype(np.int16)


def _resample_operand_bounds(checked_node: CheckedNode) -> Constants:
    """Return bounds of the index operands (the extents of their axes). Integer weights must be constant, because they
    bound the sums."""
    axes, (data, *_) = checked_node.attrs["axes"], checked_node.types
    found = {1 + k: OperandBounds(NumberUse.INDEX, 0, data.shape[axis] - 1) for k, axis in enumerate(axes)}
    if not dtypes.is_float(data.dtype) and not _has_quantised_float_weights(checked_node):
        weights = range(1 + len(axes), len(checked_node.types))
        found |= {position: OperandBounds(NumberUse.FACTOR, INT32_MIN, INT32_MAX) for position in weights}
    return found


def _has_quantised_float_weights(checked_node: CheckedNode) -> bool:
    """Test whether the node has quantised data and float weights, which its legalisation converts to integers."""
    return checked_node.quantised and dtypes.is_float(checked_node.types[-1].dtype)


def _weighted_sum_overflow_message(checked_node: CheckedNode) -> str:
    """Return an error message if sums of integers, with the half unit for rounding, can overflow their dtype; else an
    empty string."""
    attrs, data = checked_node.attrs, checked_node.types[0]
    weights = [checked_node.data[k] for k in range(1 + len(attrs["axes"]), len(checked_node.types))]
    if not weights or dtypes.is_float(data.dtype) or _has_quantised_float_weights(checked_node):
        return ""
    if data.dtype == "bool":
        return "the data must be numbers; got bool"
    most = INT32_MAX if dtypes.nbytes(data.dtype) == 1 else 1 << 62
    bits = 30 if most == INT32_MAX else 61
    if attrs["shift"] > bits:
        return f"shift is out of range; got {attrs['shift']}, expected at most {bits}"
    low, high = dtypes.int_range(data.dtype)
    largest, factor = float(max(-low, high)), 1.0
    for array in weights:
        rows = np.abs(np.asarray(array, np.float64))
        largest, factor = largest * rows.sum(axis=1).max(initial=0), factor * rows.max(initial=0)
    largest += 2.0 ** attrs["shift"]
    if max(largest, factor) > most:
        return f"weighted sums are too large; got up to {max(largest, factor):.0f}, expected at most {most}"
    even = attrs.get("even_from")
    return (
        ""
        if even is None or low <= even <= high
        else f"even_from does not fit {data.dtype}; got {even}, expected {low}..{high}"
    )


def _make_resample_test_cases() -> Iterable[Case]:
    rows, columns = np.array([[0], [0], [2], [1]], np.int16), np.array([[3], [1]], np.int32)
    for dtype in ("float32", "int8", "bool"):
        operand_types = (TensorType((2, 3, 4, 3), dtype), TensorType((4, 1), "int16"), TensorType((2, 1), "int32"))
        yield Case({"axes": (1, 2), "shift": 0}, operand_types, (1, 2), (None, rows, columns), name=f"picked {dtype}")
    pairs = np.array([[0, 1], [1, 2], [2, 2]], np.int16)
    for dtype, weight, one in (("float32", "float32", 1.0), ("int8", "int16", 1024), ("int16", "int16", 1024)):
        share = np.array([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]) * one
        tables = (pairs, share.astype(weight))
        for shape, axes in (((1, 3, 3, 2), (1, 2)), ((3,), (0,)), ((2, 3), (1,))):
            types: tuple[TensorType, ...] = (
                TensorType(shape, dtype),
                *(TensorType((3, 2), "int16"),) * len(axes),
                *(TensorType((3, 2), weight),) * len(axes),
            )
            arrays = (None, *tables[:1] * len(axes), *tables[1:] * len(axes))
            consts = tuple(range(1, len(types)))
            attrs: dict[str, Attr] = {"axes": axes, "shift": 10 * len(axes)}
            yield Case(attrs, types, consts, arrays, tolerance=2e-6, name=f"{dtype} {shape}")
            if dtype == "int8":
                yield Case({**attrs, "even_from": -3}, types, consts, arrays, name=f"{dtype} {shape} even")


RESAMPLE_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "resample",
        infer=_infer_resample_types,
        reference=_evaluate_resample_reference,
        compute=_compute_resample,
        cases=_make_resample_test_cases,
        gradient=build_resample_gradient,
        attrs={
            "axes": some_axes("axes that are resampled; each has a table of weights", in_order=True),
            "shift": integer("for integers: the sum of the weights is 2 to this power", 0, least=0),
            "even_from": integer(
                "for integers: ties are rounded to even distances from this number; None: away from zero", None
            ),
            "rounding": ROUNDING,
        },
        tables=True,
        legalize=_legalize_resample,
        axes=map_along_axes,
        constants=_resample_operand_bounds,
        sound=(_weighted_sum_overflow_message,),
        operand_names=("data",),
    ),
)


# ---- Operator ``grid_sample``, which reads images at real coordinates, and tables of taps for interpolation between
# elements.


# ---- Taps of a real coordinate between elements: a table of indices and weights, filled once and used for every channel.

FARTHEST = float(1 << 20)
"""Largest magnitude of coordinates. All coordinates, NaN too, are clamped to it, so that they can be converted to
integers."""


@frozen
class AxisTaps:
    """The elements (taps) that interpolation reads along one axis.

    ``extent``: extent of the axis. ``index_weight_conditions``: function that returns, for the number of a tap, the
    index of the element, its weight, and the conditions under which an element exists at this index."""

    extent: int
    tap_count: int
    index_weight_conditions: Callable[[Var], tuple[Expr, Expr, Sequence[Expr]]]


@frozen
class TapTables:
    """Tables of the ``tap_count`` elements that interpolation reads: the ``index`` of each in the flat image, and its
    ``weight``.

    The index is -1 where no element is read."""

    tap_count: int
    index: Buffer
    weight: Buffer

    @classmethod
    def with_capacity(cls, tap_count: int, dtype: str) -> TapTables:
        """Return tables for ``tap_count`` taps whose weights have ``dtype``."""
        return cls(
            tap_count,
            Buffer("index", (tap_count,), "int32", "workspace"),
            Buffer("weight", (tap_count,), dtype, "workspace"),
        )

    def allocate_around(self, body: Stmt) -> Stmt:
        """Wrap ``body`` in the allocation of the tables."""
        return ir.Alloc(self.index, ir.Alloc(self.weight, body))

    def build_fill_loops(self, taps_by_axis: Sequence[AxisTaps]) -> Stmt:
        """Build the loops that fill the tables with all combinations of the taps along the axes; ``taps_by_axis`` has
        an entry for each axis."""

        def build_loops_from_axis(
            axis: int, tap_number: Expr, flat_index: Expr, weight: Expr, conditions: tuple[Expr, ...]
        ) -> Stmt:
            if axis == len(taps_by_axis):
                inside = ir.all_of(conditions)
                index = flat_index if inside is None else ir.select(inside, flat_index, -1)
                return ir.seq(ir.Store(self.index, (tap_number,), index), ir.Store(self.weight, (tap_number,), weight))
            side, t = taps_by_axis[axis], Var(f"t{axis}")
            at, share, more = side.index_weight_conditions(t)
            where, part = Var(f"at{axis}"), Var(f"share{axis}", self.weight.dtype)
            inner = build_loops_from_axis(
                axis + 1,
                tap_number * side.tap_count + t,
                flat_index * side.extent + where,
                weight * part if axis else part,
                (*conditions, *more),
            )
            return ir.loops([(t, side.tap_count)], ir.Let(where, at, ir.Let(part, share, inner)))

        zero = ir.const(0, "int32")
        return build_loops_from_axis(0, zero, zero, ir.const(1.0, self.weight.dtype), ())

    def build_weighted_element(self, t: Var, element: Callable[[Expr], Expr]) -> Expr:
        """Build the product of the element and the weight of tap ``t``, or 0 if no element is read.

        ``element`` returns the image's element at a flat index."""
        value = element(self.index[t]) * self.weight[t]
        return ir.select(self.index[t] >= 0, value, 0.0)


def clamp_coordinate(coordinate: Expr) -> Expr:
    """Clamp a coordinate, which may be NaN, to a range that fits int32."""
    return ir.select(coordinate > -FARTHEST, ir.minimum(coordinate, FARTHEST), -FARTHEST)


# ---- ``grid_sample``: data (N, C, spatial ...) read at real coordinates (N, out ..., axes), by ``nearest``, ``linear`` or
# ``cubic`` interpolation. ``border`` defines elements outside: ``zeros``, the ``edge``, or a ``reflection``. ``coordinates``:
#
# - ``corners``: from -1, the centre of the first element, to 1, the centre of the last; the last axis comes first.
# - ``edges``: from -1, the outer edge of the first element, to 1, the outer edge of the last.
# - ``elements``: in elements, from the centre of the first one, about which reflections mirror.
#
# Source: ONNX GridSample, DeformConv.

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Number of taps along an axis, by mode of interpolation."""
BORDERS = ("zeros", "edge", "reflection")
COORDINATES = ("corners", "edges", "elements")
_FLOATS = ("float32", "float64")
_SHARPNESS = -0.75
"""Parameter of Keys' cubic interpolation."""


def _infer_grid_sample_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, grid = types
    rank = len(data.shape) - 2
    fits = rank >= 1 and len(grid.shape) > 1 and grid.shape[-1] == rank and grid.shape[0] == data.shape[0]
    if not fits or 0 in data.shape:
        raise ModelError(
            f"grid_sample: data and grid disagree; got {data.shape} and {grid.shape}, expected (N, C, spatial axes) "
            f"without empty axes and (N, ..., {max(rank, 1)})"
        )
    for name, known in (("mode", tuple(TAPS)), ("border", BORDERS), ("coordinates", COORDINATES)):
        if attrs[name] not in known:
            raise ModelError(f"grid_sample: unknown {name}; got {attrs[name]!r}, expected one of {', '.join(known)}")
    if data.dtype not in _FLOATS or grid.dtype != data.dtype:
        raise ModelError(
            f"grid_sample: data and grid need one dtype of {', '.join(_FLOATS)}; got {data.dtype} and {grid.dtype}"
        )
    return (TensorType((*data.shape[:2], *grid.shape[1:-1]), data.dtype),)


def _evaluate_grid_sample_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, grid = arrays[0].astype(np.float64), arrays[1].astype(np.float64)
    rank, taps = data.ndim - 2, TAPS[attrs["mode"]]
    out = grid.shape[1:-1]
    total = np.zeros((*data.shape[:2], *out))
    for tap in np.ndindex(*(taps,) * rank):
        weight = np.ones((data.shape[0], 1, *out))
        where: list[Array] = [np.arange(data.shape[0]).reshape(-1, *[1] * len(out))]
        met = np.ones((data.shape[0], *out), bool)
        for k, extent in enumerate(data.shape[2:]):
            place = _element_coordinates_in_numpy(attrs["coordinates"], grid, k, extent)
            first = np.rint(place) if taps == 1 else np.floor(place)
            share, index = place - first, first.astype(np.int64) + tap[k] - (taps // 2 - 1 if taps > 1 else 0)
            weight = weight * _tap_weights_in_numpy(attrs["mode"], share, tap[k])[:, None]
            index, inside = _map_indices_inside(attrs, index, extent)
            met &= inside
            where.append(index)
        values = np.moveaxis(data[(where[0], slice(None), *where[1:])], -1, 1)
        total += np.where(met[:, None], values, 0) * weight
    return (total.astype(arrays[0].dtype),)


def _element_coordinates_in_numpy(coordinates: str, grid: Array, axis: int, extent: int) -> Array:
    """Convert coordinates along an axis to units of elements, over numpy."""
    if coordinates == "elements":
        place = grid[..., axis]
    else:
        g = grid[..., -1 - axis] + 1
        place = g / 2 * (extent - 1) if coordinates == "corners" else (g * extent - 1) / 2
    return np.where(place > -FARTHEST, np.minimum(place, FARTHEST), -FARTHEST)


def _tap_weights_in_numpy(mode: str, fraction: Array, tap: int) -> Array:
    if mode == "nearest":
        return np.ones_like(fraction)
    if mode == "linear":
        return fraction if tap else 1 - fraction
    x, a = np.abs(tap - 1 - fraction), _SHARPNESS
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.asarray(np.where(x <= 1, near, far))


def _map_indices_inside(attrs: Mapping[str, Any], index: Array, axis_extent: int) -> tuple[Array, Array]:
    inside = (index >= 0) & (index < axis_extent) | (attrs["border"] != "zeros")
    if attrs["border"] == "reflection" and axis_extent > 1:
        ends = int(attrs["coordinates"] == "edges")
        period = 2 * (axis_extent - 1 + ends)
        index = np.mod(index, period)
        index = np.minimum(index, period - ends - index)
    return np.clip(index, 0, axis_extent - 1), inside


def _build_tap_weight(mode: str, fraction: Expr, tap: Expr) -> Expr:
    """Build the weight of a tap: one (nearest), the triangle function (linear), or Keys' cubic function.

    ``fraction``: distance of the coordinate from the element at or before it."""
    if mode == "nearest":
        return ir.const(1.0, fraction.dtype)
    if mode == "linear":
        return ir.select(tap.eq(0), 1.0 - fraction, fraction)
    x, a = ir.call("fabs", ir.cast(fraction.dtype, tap - 1) - fraction), _SHARPNESS
    near_part, far_part = (x * (a + 2) - (a + 3)) * x * x + 1.0, ((x * a - 5 * a) * x + 8 * a) * x - 4 * a
    return ir.select(x <= 1.0, near_part, far_part)


def _build_index_inside(attrs: Mapping[str, Any], index: Expr, axis_extent: int) -> Expr:
    """Map an index that may be outside of the data to an index inside, by the rule of the attribute ``border``."""
    if attrs["border"] == "reflection" and axis_extent > 1:
        ends = int(attrs["coordinates"] == "edges")
        period = 2 * (axis_extent - 1 + ends)
        index = index % period
        index = ir.minimum(index, period - ends - index)
    return ir.clamp(index, 0, axis_extent - 1)


def _build_element_coordinate(coordinates: str, coordinate: Expr, extent: int) -> Expr:
    """Convert a coordinate along an axis of ``extent`` elements from the coordinate system ``coordinates`` to units of
    elements."""
    if coordinates == "elements":
        return clamp_coordinate(coordinate)
    from_first = coordinate + 1.0
    if coordinates == "corners":
        return clamp_coordinate(from_first * ((extent - 1) / 2))
    return clamp_coordinate((from_first * extent - 1.0) * 0.5)


def _make_axis_taps(attrs: Mapping[str, Any], extent: int, coordinate: Var, base_index: Var) -> AxisTaps:
    """Return the taps for a coordinate along one axis; ``base_index`` is the index of the element at or before the
    coordinate."""
    mode, taps = attrs["mode"], TAPS[attrs["mode"]]

    def build_index_weight_conditions(t: Var) -> tuple[Expr, Expr, tuple[Expr, ...]]:
        at = ir.cast("int32", base_index) + t - (taps // 2 - 1 if taps > 1 else 0)
        inside = (at >= 0, at < extent) if attrs["border"] == "zeros" else ()
        return _build_index_inside(attrs, at, extent), _build_tap_weight(mode, coordinate - base_index, t), inside

    return AxisTaps(extent, taps, build_index_weight_conditions)


def _compute_grid_sample(call: OpCall) -> te.Tensor:
    """Build a loop over coordinates. The taps of a coordinate are computed once, then summed for every channel."""
    data, grid = call.present
    attrs, dtype, (batch, channels, *extents) = call.attrs, data.type.dtype, data.type.shape
    rank, count = len(extents), prod(grid.type.shape[1:-1])
    taps = TapTables.with_capacity(TAPS[attrs["mode"]] ** rank, dtype)
    step = "rint" if attrs["mode"] == "nearest" else "floor"
    places = [Var(f"place{k}", dtype) for k in range(rank)]
    firsts = [Var(f"first{k}", dtype) for k in range(rank)]

    def build_grid_sample_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, g), (out,) = operands, results
        n, p, c, t = Var("n"), Var("p"), Var("c"), Var("t")
        total, zero = Buffer("total", (1,), dtype, "register"), ir.const(0, "int32")
        fill = taps.build_fill_loops(
            [_make_axis_taps(attrs, *axis) for axis in zip(extents, places, firsts, strict=True)]
        )
        for k, extent in reversed(list(enumerate(extents))):
            given = g[n, p, k if attrs["coordinates"] == "elements" else rank - 1 - k]
            fill = ir.Let(firsts[k], ir.call(step, places[k]), fill)
            fill = ir.Let(places[k], _build_element_coordinate(attrs["coordinates"], given, extent), fill)
        term = taps.build_weighted_element(t, lambda index: x[n, c, index])
        sums = ir.seq(
            ir.Store(total, (zero,), ir.const(0.0, dtype)),
            ir.loops([(t, taps.tap_count)], ir.Store(total, (zero,), total[0] + term)),
            ir.Store(out, (n, c, p), total[0]),
        )
        each = ir.seq(fill, ir.loops([(c, channels)], ir.Alloc(total, sums)))
        return taps.allocate_around(ir.loops([(n, batch), (p, count)], each))

    read = (data.tensor((batch, channels, prod(extents))), grid.tensor((batch, count, rank)))
    return te.extern("sample", read, (("out", (batch, channels, count), dtype),), build_grid_sample_loops)[0]


def _make_grid_sample_test_cases() -> Iterable[Case]:
    grid = np.array([[[-1.6, 0.1], [0.0, -1.0]], [[0.3, 0.7], [1.0, 2.3]], [[-0.4, -0.9], [0.9, 0.45]]])
    far = np.array([[np.inf, 0.5], [-np.inf, -1e30], [0.25, np.nan]])
    for coordinates in COORDINATES:
        places = grid * 2 + 1 if coordinates == "elements" else grid
        for mode in TAPS:
            for border in BORDERS:
                attrs: dict[str, Attr] = {"mode": mode, "border": border, "coordinates": coordinates}
                for dtype in _FLOATS if mode == "linear" else _FLOATS[:1]:
                    types = (TensorType((1, 2, 4, 3), dtype), TensorType((1, 3, 2, 2), dtype))
                    arrays = (None, places[None].astype(dtype))
                    name = f"{mode} {border} {coordinates} {dtype}"
                    yield Case(attrs, types, arrays=arrays, tolerance=1e-5, name=name)
    attrs = {"mode": "linear", "border": "zeros", "coordinates": "elements"}
    types = (TensorType((2, 1, 3, 3), "float32"), TensorType((2, 3, 2), "float32"))
    data = np.full((2, 1, 3, 3), np.inf, np.float32)
    yield Case(attrs, types, arrays=(data, np.stack([far, far]).astype(np.float32)), name="far from infinities")
    types = (TensorType((1, 2, 2, 3, 2), "float32"), TensorType((1, 4, 3), "float32"))
    yield Case({**attrs, "coordinates": "edges"}, types, tolerance=1e-5, name="three axes")


GRID_SAMPLE_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "grid_sample",
        attrs={
            "mode": choice("interpolation", "nearest", "linear", "cubic"),
            "border": choice("value of elements outside the data", "zeros", "edge", "reflection"),
            "coordinates": choice(
                "-1 and 1 are the centres (corners) or outer edges (edges) of the end elements; or the unit is an element",
                "corners",
                "edges",
                "elements",
            ),
        },
        infer=_infer_grid_sample_types,
        reference=_evaluate_grid_sample_reference,
        compute=_compute_grid_sample,
        cases=_make_grid_sample_test_cases,
        operand_names=("data", "grid"),
    ),
)


OPERATORS = (*RESAMPLE_OPERATORS, *GRID_SAMPLE_OPERATORS)
