"""``roi_align``: boxes (R, 4) of images (N, C, H, W), each divided into ``size`` cells, of which every one is the average
(``avg``) or the largest (``max``) of ``samples`` by ``samples`` points between elements.

A box names its left, top, right and bottom edge, in units of ``scale`` elements; ``images`` (R) says which image it is of.
``half_pixel``: edges are those of elements, not their centres, and boxes may be of any size; else they are one element or larger.
A point farther than one element outside is 0. The largest is that of the weighted corners of all points.

Source: ONNX RoiAlign.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.attributes import REQUIRED, choice, flag, integer, integers, real
from microc.ops.constants import BOUNDED
from microc.ops.images.taps import FARTHEST, Side, Taps, near
from microc.ops.moving.places import clamped_index
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_FLOATS = ("float32", "float64")
_MODES = ("avg", "max")
MOST_SAMPLES = 256
"""Points along a side of a cell: their square is how often its taps are found."""


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, boxes, images = types
    if len(data.shape) != 4 or 0 in data.shape or boxes.shape != (boxes.shape[0], 4) or images.shape != boxes.shape[:1]:
        raise ModelError(f"roi_align of shape {data.shape} in boxes of shape {boxes.shape}, images {images.shape}")
    if data.dtype not in _FLOATS or boxes.dtype != data.dtype or images.dtype not in ("int32", "int64"):
        raise ModelError(f"roi_align of {data.dtype} in {boxes.dtype} boxes of {images.dtype} images")
    return (TensorType((boxes.shape[0], data.shape[1], *attrs["size"]), data.dtype),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Both axes apart: points (R, cells * samples) with the two elements around each."""
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


def _side(extent: int, place: Var) -> Side:
    """The two elements around a place; beyond the outer centres the outer element twice."""
    inside = (place >= -1.0, place <= float(extent))
    within = ir.maximum(ir.minimum(place, float(extent - 1)), 0.0)

    def tap(t: Var) -> tuple[Expr, Expr, tuple[Expr, ...]]:
        low = ir.cast("int32", within)
        part = within - ir.cast(place.dtype, low)
        return ir.minimum(low + t, extent - 1), ir.select(t.eq(0), 1.0 - part, part), inside

    return Side(extent, 2, tap)


def _compute(call: OpCall) -> te.Tensor:
    """Point after point of every cell: its taps are found once, then gathered for every channel."""
    data, boxes, images = call.present
    attrs, dtype, (batch, channels, *extents) = call.attrs, data.type.dtype, data.type.shape
    samples, size, scale, count = attrs["samples"], attrs["size"], float(attrs["scale"]), boxes.type.shape[0]
    taps, average = Taps.of(4, dtype), attrs["mode"] == "avg"
    start = ir.const(0.0 if average else float("-inf"), dtype)

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, box, image), (out,) = operands, results
        r, n, c, t = Var("r"), Var("n"), Var("c"), Var("t")
        cells, points = (Var("y"), Var("x")), (Var("down"), Var("right"))
        total, zero = Buffer("total", (1,), dtype, "register"), ir.const(0, "int32")

        def place(k: int) -> Expr:
            first, last = box[r, 1 - k] * scale, box[r, 3 - k] * scale
            span = last - first if attrs["half_pixel"] else ir.maximum(last - first, 1.0)
            step = (ir.cast(dtype, cells[k] * samples + points[k]) + 0.5) * (1.0 / (size[k] * samples))
            return near((first - 0.5 if attrs["half_pixel"] else first) + span * step)

        at = (r, c, *cells)
        term = taps.product(t, lambda index: x[n, c, index])
        gathered = total[0] + term if average else ir.maximum(total[0], term)
        channel = ir.seq(
            ir.Store(total, (zero,), out[at]),
            ir.loops([(t, taps.count)], ir.Store(total, (zero,), gathered)),
            ir.Store(out, at, total[0]),
        )
        names = [Var(f"place{k}", dtype) for k in (0, 1)]
        point: Stmt = taps.fill([_side(extent, name) for extent, name in zip(extents, names, strict=True)])
        for k in (1, 0):
            point = ir.Let(names[k], place(k), point)
        point = ir.seq(point, ir.loops([(c, channels)], ir.Alloc(total, channel)))
        first = ir.loops([(c, channels)], ir.Store(out, at, start))
        cell = ir.seq(first, ir.loops([(point_axis, samples) for point_axis in points], point))
        if average:
            share = ir.Store(out, at, out[at] * (1.0 / samples**2))
            cell = ir.seq(cell, ir.loops([(c, channels)], share))
        whole = ir.loops([*zip(cells, size, strict=True)], cell)
        return taps.living_in(ir.loops([(r, count)], ir.Let(n, clamped_index(image[r], batch), whole)))

    read = (data.tensor((batch, channels, prod(extents))), boxes.tensor(), images.tensor())
    return te.extern("roi_align", read, (("out", call.out_types[0].shape, dtype),), build)[0]


def _cases() -> Iterable[Case]:
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


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "roi_align",
        attrs={
            "mode": choice("of the samples", "avg", "max"),
            "half_pixel": flag("edges are those of elements, not their centres", REQUIRED),
            "size": integers("cells down and across", length=2, least=1),
            "samples": integer("points along each axis of a cell", least=1, most=MOST_SAMPLES),
            "scale": real("elements in a unit of the boxes' edges"),
        },
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        constants={2: BOUNDED},
        operand_names=("data", "boxes", "images"),
    ),
)
