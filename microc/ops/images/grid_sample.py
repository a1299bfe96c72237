# SPDX-License-Identifier: Apache-2.0
"""Operator ``grid_sample``, which reads images at real coordinates, and tables of taps for interpolation between
elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.attributes import choice
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

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
    return clamp_coordinate((from_first * float(extent) - 1.0) * 0.5)


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


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "grid_sample",
        attrs={
            "mode": choice("of interpolation", "nearest", "linear", "cubic"),
            "border": choice("what lies outside", "zeros", "edge", "reflection"),
            "coordinates": choice(
                "of places: -1 and 1 are centres, or outer edges, of the ends; or they count elements",
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
