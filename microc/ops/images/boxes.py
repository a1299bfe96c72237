# SPDX-License-Identifier: Apache-2.0
"""Operators on boxes in images: ``roi_align`` (crops by interpolation) and ``suppress`` (non-maximum suppression)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.attributes import REQUIRED, choice, flag, integer, integers, real
from microc.ops.constants import BOUNDED
from microc.ops.data_movement.rearrange import clamp_index
from microc.ops.images.resample import FARTHEST, AxisTaps, TapTables, clamp_coordinate
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

# ---- ``roi_align``: boxes (R, 4) of images (N, C, H, W), each divided into ``size`` cells. A cell is the average (``avg``) or
# maximum (``max``) of ``samples`` by ``samples`` points, interpolated between elements.
#
# A box is (left, top, right, bottom), in units of ``scale`` elements; ``images`` (R) is the index of its image. ``half_pixel``:
# coordinates refer to edges of elements, not their centres, and boxes may have any size; otherwise they are enlarged to one
# element. A point more than one element outside is 0. The maximum is over the weighted corners of all points.
#
# Source: ONNX RoiAlign.

_FLOATS = ("float32", "float64")
_MODES = ("avg", "max")
MOST_SAMPLES = 256
"""Largest number of sampling points along a side of a cell. The taps of interpolation are computed for each of the
points."""


def _infer_roi_align_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, boxes, images = types
    if len(data.shape) != 4 or 0 in data.shape or boxes.shape != (boxes.shape[0], 4) or images.shape != boxes.shape[:1]:
        raise ModelError(
            f"roi_align: operands have wrong shapes; got data {data.shape}, boxes {boxes.shape} and image indices "
            f"{images.shape}, expected (N, C, H, W) without empty axes, (boxes, 4) and (boxes,)"
        )
    if data.dtype not in _FLOATS or boxes.dtype != data.dtype or images.dtype not in ("int32", "int64"):
        raise ModelError(
            f"roi_align: operands have wrong dtypes; got data {data.dtype}, boxes {boxes.dtype} and image indices "
            f"{images.dtype}, expected one of {', '.join(_FLOATS)} for data and boxes, and int32 or int64"
        )
    return (TensorType((boxes.shape[0], data.shape[1], *attrs["size"]), data.dtype),)


def _evaluate_roi_align_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Interpolate along each axis separately, at points (R, cells * samples) between two neighbouring elements."""
    data, boxes, images = arrays
    samples, size = attrs["samples"], attrs["size"]
    image = data[np.clip(images, 0, len(data) - 1)].astype(np.float64)  # (R, C, H, W)
    sides = []
    for k, extent in enumerate(data.shape[2:]):
        first, last = (boxes[:, column].astype(np.float64) * attrs["scale"] for column in (1 - k, 3 - k))
        span = last - first if attrs["half_pixel"] else np.maximum(last - first, 1)
        steps = (np.arange(size[k] * samples) + 0.5) / (size[k] * samples)
        with np.errstate(invalid="ignore"):
            x = first[:, None] - 0.5 * attrs["half_pixel"] + span[:, None] * steps
        x = np.where(x > -FARTHEST, np.minimum(x, FARTHEST), -FARTHEST)
        inside, x = (x >= -1) & (x <= extent), np.clip(x, 0, extent - 1)
        low = np.floor(x).astype(int)
        sides.append((inside, x - low, low, np.minimum(low + 1, extent - 1)))
    rows, columns = (tuple(np.expand_dims(part, 2 - k) for part in side) for k, side in enumerate(sides))
    box, corners = np.arange(len(boxes))[:, None, None], []
    for down, right in np.ndindex(2, 2):
        weight = (rows[1] if down else 1 - rows[1]) * (columns[1] if right else 1 - columns[1])
        read = np.moveaxis(image[box, :, rows[2 + down], columns[2 + right]], -1, 1)
        corners.append((weight * (rows[0] & columns[0]))[:, None] * read)
    points = np.sum(corners, axis=0) if attrs["mode"] == "avg" else np.max(corners, axis=0)
    tiles = points.reshape(*points.shape[:2], size[0], samples, size[1], samples)
    result = tiles.mean(axis=(3, 5)) if attrs["mode"] == "avg" else tiles.max(axis=(3, 5))
    return (result.astype(data.dtype),)


def _make_linear_axis_taps(extent: int, coordinate: Var) -> AxisTaps:
    """Return the taps of linear interpolation along one axis: the elements before and after ``coordinate``.

    For a coordinate beyond the centre of the first or last element, both taps are this element."""
    inside = (coordinate >= -1.0, coordinate <= float(extent))
    within = ir.maximum(ir.minimum(coordinate, float(extent - 1)), 0.0)

    def build_index_weight_conditions(t: Var) -> tuple[Expr, Expr, tuple[Expr, ...]]:
        low = ir.cast("int32", within)
        part = within - ir.cast(coordinate.dtype, low)
        return ir.minimum(low + t, extent - 1), ir.select(t.eq(0), 1.0 - part, part), inside

    return AxisTaps(extent, 2, build_index_weight_conditions)


def _compute_roi_align(call: OpCall) -> te.Tensor:
    """Build a loop over the sampling points of every cell. The taps of a point are computed once and used for every
    channel."""
    data, boxes, images = call.present
    attrs, dtype, (batch, channels, *extents) = call.attrs, data.type.dtype, data.type.shape
    samples, size, scale, count = attrs["samples"], attrs["size"], float(attrs["scale"]), boxes.type.shape[0]
    taps, average = TapTables.with_capacity(4, dtype), attrs["mode"] == "avg"
    start = ir.const(0.0 if average else float("-inf"), dtype)

    def build_roi_align_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, box, image), (out,) = operands, results
        r, n, c, t = Var("r"), Var("n"), Var("c"), Var("t")
        cells, points = (Var("y"), Var("x")), (Var("down"), Var("right"))
        total, zero = Buffer("total", (1,), dtype, "register"), ir.const(0, "int32")

        def build_sampling_coordinate(axis: int) -> Expr:
            """Build the image coordinate of the current sampling point along an axis."""
            first, last = box[r, 1 - axis] * scale, box[r, 3 - axis] * scale
            span = last - first if attrs["half_pixel"] else ir.maximum(last - first, 1.0)
            step = (ir.cast(dtype, cells[axis] * samples + points[axis]) + 0.5) * (1.0 / (size[axis] * samples))
            return clamp_coordinate((first - 0.5 if attrs["half_pixel"] else first) + span * step)

        at = (r, c, *cells)
        term = taps.build_weighted_element(t, lambda index: x[n, c, index])
        gathered = total[0] + term if average else ir.maximum(total[0], term)
        channel = ir.seq(
            ir.Store(total, (zero,), out[at]),
            ir.loops([(t, taps.tap_count)], ir.Store(total, (zero,), gathered)),
            ir.Store(out, at, total[0]),
        )
        names = [Var(f"place{k}", dtype) for k in (0, 1)]
        point: Stmt = taps.build_fill_loops(
            [_make_linear_axis_taps(extent, name) for extent, name in zip(extents, names, strict=True)]
        )
        for k in (1, 0):
            point = ir.Let(names[k], build_sampling_coordinate(k), point)
        point = ir.seq(point, ir.loops([(c, channels)], ir.Alloc(total, channel)))
        first = ir.loops([(c, channels)], ir.Store(out, at, start))
        cell = ir.seq(first, ir.loops([(point_axis, samples) for point_axis in points], point))
        if average:
            share = ir.Store(out, at, out[at] * (1.0 / samples**2))
            cell = ir.seq(cell, ir.loops([(c, channels)], share))
        whole = ir.loops([*zip(cells, size, strict=True)], cell)
        return taps.allocate_around(ir.loops([(r, count)], ir.Let(n, clamp_index(image[r], batch), whole)))

    read = (data.tensor((batch, channels, prod(extents))), boxes.tensor(), images.tensor())
    return te.extern("roi_align", read, (("out", call.out_types[0].shape, dtype),), build_roi_align_loops)[0]


def _make_roi_align_test_cases() -> Iterable[Case]:
    boxes = np.array([[0.5, 1.0, 7.0, 6.5], [-3.0, 2.0, 4.0, 2.2], [3.0, 3.0, 30.0, 9.0], [5.0, 5.0, 1.0, 2.0]])
    images = np.array([1, 0, 1, 0])
    for mode in _MODES:
        for half in (True, False):
            for dtype, index in (("float32", "int64"), ("float64", "int32")):
                attrs: dict[str, Attr] = {"mode": mode, "half_pixel": half, "size": (2, 3), "samples": 2, "scale": 0.75}
                types = (TensorType((2, 2, 5, 6), dtype), TensorType((4, 4), dtype), TensorType((4,), index))
                arrays = (None, boxes.astype(dtype), images.astype(index))
                yield Case(attrs, types, arrays=arrays, tolerance=1e-5, name=f"{mode} {half} {dtype}")
    types = (TensorType((1, 1, 1, 1), "float32"), TensorType((1, 4), "float32"), TensorType((1,), "int64"))
    attrs = {"mode": "avg", "half_pixel": True, "size": (1, 1), "samples": 1, "scale": 1.0}
    for box in ([[np.nan, 0.0, 1.0, 1.0]], [[0.0, -np.inf, 1.0, np.inf]]):
        arrays = (None, np.array(box, np.float32), np.array([7], np.int64))
        yield Case(attrs, types, arrays=arrays, name=f"box {box[0][:2]}")


ROI_ALIGN_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "roi_align",
        attrs={
            "mode": choice("how the samples of a cell are combined", "avg", "max"),
            "half_pixel": flag("True if coordinates refer to edges of elements, False: to centres", REQUIRED),
            "size": integers("rows and columns of cells", length=2, least=1),
            "samples": integer("number of samples along each axis of a cell", least=1, most=MOST_SAMPLES),
            "scale": real("number of elements for a unit of the boxes' coordinates"),
        },
        infer=_infer_roi_align_types,
        reference=_evaluate_roi_align_reference,
        compute=_compute_roi_align,
        cases=_make_roi_align_test_cases,
        constants={2: BOUNDED},
        operand_names=("data", "boxes", "images"),
    ),
)


# ---- ``suppress``: the best boxes of which no two overlap too much (non-maximum suppression).
#
# Each iteration selects the box with the largest score, the first of equals. Boxes that overlap it are removed, or (``sigma``
# above zero) their scores are multiplied by exp(-overlap**2 / (2 sigma)) and they are removed below a threshold. Boxes are
# (top, left, bottom, right). Sources:
# TFLite ``non_max_suppression.h``; TFLite Micro ``detection_postprocess.cc``; Bodla et al., "Soft-NMS" (2017).

_GONE = float("-inf")
"""Score of a box that was selected or removed."""
_ZERO = np.float32(0)


def _infer_suppress_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    boxes, scores = types
    if boxes.dtype != "float32" or scores.dtype != "float32" or boxes.shape != (*scores.shape, 4) or not scores.size:
        raise ModelError(
            f"suppress: boxes and scores disagree; got {boxes.dtype} {boxes.shape} and {scores.dtype} "
            f"{scores.shape}, expected float32 (boxes, 4) and float32 (boxes,)"
        )
    most = attrs["most"]
    if len(scores.shape) != 1 or most < 1 or not 0 <= attrs["overlap"] <= 1 or attrs["sigma"] < 0:
        raise ModelError(
            f"suppress: scores or attributes are invalid; got scores {scores.shape}, "
            f"most={most}, overlap={attrs['overlap']} and sigma={attrs['sigma']}, expected one axis, most from 1 "
            "on, overlap 0..1 and sigma from 0 on"
        )
    return TensorType((most,), "int32"), TensorType((most,), "float32"), TensorType((), "int32")


def _evaluate_suppress_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    boxes, left = arrays[0], np.where(np.isnan(arrays[1]), np.float32(_GONE), arrays[1])
    places, scores = np.zeros(attrs["most"], np.int32), np.zeros(attrs["most"], np.float32)
    count, limit = 0, np.float32(attrs["overlap"])
    while count < attrs["most"]:
        place = int(np.argmax(left))
        enough = left[place] >= attrs["score"] if attrs["score_inclusive"] else left[place] > attrs["score"]
        if left[place] == _GONE or not enough:
            break
        places[count], scores[count], count = place, left[place], count + 1
        share = _intersection_over_union_in_numpy(boxes, boxes[place])
        if attrs["sigma"] > 0:
            left = left * np.exp(np.float32(-0.5 / attrs["sigma"]) * share * share)
        left = np.where(share >= limit if attrs["overlap_inclusive"] else share > limit, np.float32(_GONE), left)
        left[place] = _GONE
    return places, scores, np.array(count, np.int32)


def _intersection_over_union_in_numpy(boxes: Array, box: Array) -> Array:
    """Return the intersection over union of each of ``boxes`` with ``box``; zero for boxes without area."""
    top, leftmost = np.maximum(boxes[:, 0], box[0]), np.maximum(boxes[:, 1], box[1])
    bottom, right = np.minimum(boxes[:, 2], box[2]), np.minimum(boxes[:, 3], box[3])
    common = np.maximum(bottom - top, _ZERO) * np.maximum(right - leftmost, _ZERO)
    areas, area = (np.asarray((b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1])) for b in (boxes, box))
    whole = np.where((areas > 0) & (area > 0), areas + area - common, np.float32(1))
    return np.asarray(np.where((areas > 0) & (area > 0), common / whole, _ZERO), np.float32)


def _build_intersection_over_union(
    boxes: Buffer, box_index: Expr, box_corners: Sequence[Expr]
) -> tuple[list[tuple[Var, Expr]], Expr]:
    """Build the intersection over union of ``boxes[box_index]`` and the box ``box_corners``.

    Return ``(definitions, value)``: the variables and values of the ``Let`` statements that the value needs, and the
    value."""
    own = [Var(name, "float32") for name in ("top", "leftmost", "bottom", "right")]
    lets: list[tuple[Var, Expr]] = [(var, boxes[box_index, side]) for side, var in enumerate(own)]
    area, other, common = Var("area", "float32"), Var("other", "float32"), Var("common", "float32")
    sides = [
        ir.maximum(
            ir.minimum(own[k + 2], box_corners[k + 2]) - ir.maximum(own[k], box_corners[k]), ir.const(0.0, "float32")
        )
        for k in (0, 1)
    ]
    lets += [
        (area, (own[2] - own[0]) * (own[3] - own[1])),
        (other, (box_corners[2] - box_corners[0]) * (box_corners[3] - box_corners[1])),
    ]
    lets.append((common, sides[0] * sides[1]))
    flat = ir.Bin("or", area <= 0.0, other <= 0.0)
    one = ir.const(1.0, "float32")
    return lets, ir.select(flat, ir.const(0.0, "float32"), common / ir.select(flat, one, area + other - common))


def _compute_suppress(call: OpCall) -> tuple[te.Tensor, ...]:
    """Build non-maximum suppression. Each iteration selects the best box, then lowers the scores of boxes that overlap
    it."""
    boxes, scores = call.present
    attrs, size, most = call.attrs, scores.type.size, int(call.attrs["most"])

    def build_suppress_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, given), (places, kept, count, left) = operands, results
        n, m, d, e, zero = Var("n"), Var("m"), Var("d"), Var("e"), ir.const(0, "int32")
        best, place = Buffer("best", (1,), "float32", "register"), Buffer("place", (1,), "int32", "register")
        value, rest, share = Var("value", "float32"), Var("rest", "float32"), Var("share", "float32")
        gone = ir.const(_GONE, "float32")
        clear = ir.seq(ir.Store(places, (e,), zero), ir.Store(kept, (e,), ir.const(0.0, "float32")))
        start = ir.seq(
            ir.loops([(n, size)], ir.Store(left, (n,), given[n])),
            ir.loops([(e, most)], clear),
            ir.Store(count, (zero,), zero),
        )
        better = ir.seq(ir.Store(best, (zero,), value), ir.Store(place, (zero,), m))
        find = ir.loops([(m, size)], ir.Let(value, left[m], ir.If(value > best[0], better)))
        box = [Var(f"box_{side}", "float32") for side in ("top", "left", "bottom", "right")]
        j = Var("j")
        lets, overlap = _build_intersection_over_union(x, j, box)
        weak = ir.binary("ge" if attrs["overlap_inclusive"] else "gt", share, attrs["overlap"])
        faded = (
            rest * ir.call("exp", share * share * float(np.float32(-0.5 / attrs["sigma"]))) if attrs["sigma"] else rest
        )
        change = ir.Let(share, overlap, ir.Store(left, (j,), ir.select(weak, gone, faded)))
        for var, bound in reversed(lets):
            change = ir.Let(var, bound, change)
        others = ir.loops([(j, size)], ir.Let(rest, left[j], ir.If(rest > gone, change)))
        body: Stmt = others
        for side, var in reversed(list(enumerate(box))):
            body = ir.Let(var, x[place[0], side], body)
        take = ir.seq(
            ir.Store(places, (count[0],), place[0]),
            ir.Store(kept, (count[0],), best[0]),
            ir.Store(count, (zero,), count[0] + 1),
            body,
            ir.Store(left, (place[0],), gone),
        )
        enough = ir.binary("ge" if attrs["score_inclusive"] else "gt", best[0], attrs["score"])
        iteration = ir.seq(
            ir.Store(best, (zero,), gone),
            ir.Store(place, (zero,), zero),
            find,
            ir.If(ir.Bin("and", best[0] > gone, enough), take),
        )
        return ir.seq(start, ir.loops([(d, most)], ir.Alloc(best, ir.Alloc(place, iteration))))

    results = (
        ("places", (most,), "int32"),
        ("kept", (most,), "float32"),
        ("count", (1,), "int32"),
        ("left", (size,), "float32"),
    )
    return te.extern("suppress", (boxes.tensor((size, 4)), scores.tensor((size,))), results, build_suppress_loops)[:3]


def _make_suppress_test_cases() -> Iterable[Case]:
    rng = np.random.default_rng(4)
    corner, extent = rng.uniform(0, 4, (12, 2)), rng.uniform(0.5, 3, (12, 2))
    boxes = np.concatenate([corner, corner + extent], 1).astype(np.float32)
    boxes[3, 2] = boxes[3, 0]  # without area
    scores = rng.normal(size=12).astype(np.float32)
    scores[5], scores[6], scores[9] = np.nan, np.inf, scores[2]
    types = (TensorType((12, 4), "float32"), TensorType((12,), "float32"))
    for most, overlap, least, sigma in (
        (5, 0.3, -1.0, 0.0),
        (20, 0.5, 0.0, 0.0),
        (12, 1.0, 0.1, 0.5),
        (3, 0.0, -9.0, 0.0),
    ):
        attrs: dict[str, Attr] = {"most": most, "overlap": overlap, "score": least, "sigma": sigma}
        for inclusive in (False, True):
            attrs = {**attrs, "score_inclusive": inclusive, "overlap_inclusive": inclusive}
            finite = np.where(scores == np.inf, np.float32(3), scores) if sigma else scores
            yield Case(attrs, types, arrays=(boxes, finite), tolerance=1e-6, name=f"{most} {sigma}")


SUPPRESSION_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "suppress",
        infer=_infer_suppress_types,
        reference=_evaluate_suppress_reference,
        compute=_compute_suppress,
        cases=_make_suppress_test_cases,
        attrs={
            "most": integer("largest number of boxes that are kept", least=1),
            "overlap": real("largest overlap of two boxes that are kept"),
            "score": real("least score of a box that is kept"),
            "sigma": real("sigma of soft suppression; 0: overlapping boxes are dropped", 0.0),
            "score_inclusive": flag("True if boxes with exactly this score are kept"),
            "overlap_inclusive": flag("True if boxes with exactly this overlap are dropped"),
        },
        operand_names=("boxes", "scores"),
    ),
)


OPERATORS = (*ROI_ALIGN_OPERATORS, *SUPPRESSION_OPERATORS)
