"""Spellings of TFLite's operators that cut a tensor into parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.build import Piece
from microc.frontend.tflite.spelling import MOVABLE, Spelling
from microc.frozen import frozen
from microc.graph.ir import Attr


def unpack(application: Application) -> None:
    """UNPACK: one output per index of an axis, which disappears."""
    fields = application.operator.options.fields("UnpackOptions", required=True)
    data = application.moved(0)
    shape = application.type(data).shape
    axis = application.axis(fields.integer("Axis"), len(shape))
    if len(application.operator.outputs) != shape[axis]:
        application.broken(f"{len(application.operator.outputs)} outputs of an axis of extent {shape[axis]}")
    for position in range(shape[axis]):
        part = application.emit("slice", (data,), _along(shape, axis, position, position + 1))
        application.result_reshape(part, (*shape[:axis], *shape[axis + 1 :]), position)


def split(application: Application) -> None:
    """SPLIT: equal parts along a constant axis (input 0)."""
    data = application.moved(1)
    (axis,) = application.integers(0)[:1] or (0,)
    shape = application.type(data).shape
    axis, count = application.axis(axis, len(shape)), len(application.operator.outputs)
    if not count or shape[axis] % count:
        application.broken(f"{count} equal parts of an axis of extent {shape[axis]}")
    _parts(application, data, axis, [shape[axis] // count] * count)


def split_v(application: Application) -> None:
    """SPLIT_V: parts of given sizes along a constant axis; one size may be -1, the rest."""
    data, sizes = application.moved(0), list(application.integers(1))
    (axis,) = application.integers(2)[:1] or (0,)
    shape = application.type(data).shape
    axis = application.axis(axis, len(shape))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = shape[axis] - sum(sizes) - 1
    if len(sizes) != len(application.operator.outputs) or min(sizes, default=0) < 1 or sum(sizes) != shape[axis]:
        application.broken(f"parts of {sizes} of an axis of extent {shape[axis]}")
    _parts(application, data, axis, sizes)


def slice_(application: Application) -> None:
    """SLICE: begin and size per axis; size -1 is all the rest."""
    data = application.moved(0)
    if any(application.value(position) not in application.builder.consts for position in (1, 2)):
        _computed_slice(application, data)
        return
    begin, size = application.integers(1), application.integers(2)
    shape = application.type(data).shape
    if not len(begin) == len(size) == len(shape):
        application.broken(f"begin {begin} and size {size} for shape {shape}")
    end = tuple(
        extent if count == -1 else first + count for first, count, extent in zip(begin, size, shape, strict=True)
    )
    if any(not 0 <= first <= last <= extent for first, last, extent in zip(begin, end, shape, strict=True)):
        application.broken(f"begin {begin} and size {size} leave shape {shape}")
    if begin and any(first == last for first, last in zip(begin, end, strict=True)):
        sizes = [last - first for first, last in zip(begin, end, strict=True)]
        application.result_constant(np.zeros(sizes, application.target().type.dtype))
        return
    application.result("slice", (data,), {"begin": begin, "end": end, "strides": (1,) * len(shape)})


def _computed_slice(application: Application, data: str) -> None:
    """A slice from computed indices on: of constant size, or a piece that waits for the others to be joined to."""
    begin, size, shape = application.value(1), application.value(2), application.type(data).shape
    known = application.builder.consts.get(size)
    if known is not None and known.size == len(shape) and known.min(initial=1) >= 1:
        application.result("dynamic_slice", (data, begin), {"size": tuple(int(part) for part in known.reshape(-1))})
    else:
        application.builder.pieces[application.target().name] = Piece(data, begin, size)


@frozen
class _Masks:
    """The bit masks of STRIDED_SLICE, bit i for entry i of the specification."""

    begin: int
    end: int
    ellipsis: int
    new_axis: int
    shrink_axis: int


def strided_slice(application: Application) -> None:
    """STRIDED_SLICE: numpy's slicing, with new and removed axes. Axes with negative strides are turned round first."""
    fields = application.operator.options.fields("StridedSliceOptions", required=True)
    masks = _Masks(*(fields.integer(f"{name}Mask") for name in ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis")))
    data = application.moved(0)
    if any(application.value(position) not in application.builder.consts for position in (1, 2)):
        _computed_places(application, data, masks)
        return
    begin, end, strides = (application.integers(position) for position in (1, 2, 3))
    if not len(begin) == len(end) == len(strides):
        application.broken(f"begin {begin}, end {end} and strides {strides} differ in length")
    if fields.integer("Offset"):
        end = tuple(first + count for first, count in zip(begin, end, strict=True))
    ranges, shape = _slice_ranges(application, application.type(data).shape, (begin, end, strides), masks)
    turned = tuple(axis for axis, entry in enumerate(ranges) if entry[2] < 0)
    if turned:
        data = application.emit("reverse", (data,), {"axes": turned})
        extents = application.type(data).shape
        ranges = [
            (extents[axis] - 1 - first, extents[axis] - 1 - last, -step) if step < 0 else (first, last, step)
            for axis, (first, last, step) in enumerate(ranges)
        ]
    if 0 in shape:
        application.result_constant(np.zeros(shape, application.target().type.dtype))
        return
    first, last, steps = (tuple(entry[i] for entry in ranges) for i in range(3))
    attrs: dict[str, Attr] = {"begin": first, "end": last, "strides": steps}
    if masks.new_axis or masks.shrink_axis:
        application.result_reshape(application.emit("slice", (data,), attrs), shape)
    else:
        application.result("slice", (data,), attrs)


def _computed_places(application: Application, data: str, masks: _Masks) -> None:
    """``x[:, i]``, ``x[i : i + 3]``: from computed places on, in steps of one; the declared shape tells how many.

    Negative places count from the end, as in a constant STRIDED_SLICE.
    """
    begin, shape, target = application.value(1), application.type(data).shape, application.target()
    entries = prod(application.type(begin).shape)
    if any(step != 1 for step in application.integers(3)) or masks.ellipsis or masks.new_axis:
        application.refuse("a slice from computed places with steps, an ellipsis or new axes", "slice, then reshape")
    kept = [axis for axis in range(len(shape)) if not masks.shrink_axis >> axis & 1]
    if entries > len(shape) or target.unknown or len(target.type.shape) != len(kept):
        application.refuse(f"a slice of {shape} of computed size", "a fixed size: x[:, i], x[i : i + 3]")
    size = [1] * len(shape)
    for axis, extent in zip(kept, target.type.shape, strict=True):
        size[axis] = extent
    if any(not 1 <= count <= extent for count, extent in zip(size, shape, strict=True)):
        application.broken(f"{tuple(size)} elements of shape {shape}")
    whole = [masks.begin >> axis & 1 and not masks.shrink_axis >> axis & 1 for axis in range(entries)]
    kind = application.type(begin).dtype
    extents, zeros, used = (
        application.new_constant(stem, np.array(numbers, kind))
        for stem, numbers in (("extents", shape[:entries]), ("zeros", [0] * entries), ("used", [not w for w in whole]))
    )
    from_end = application.emit("less", (begin, zeros), {})
    places = application.emit("where", (from_end, application.emit("add", (begin, extents), {}), begin), {})
    places = application.emit("mul", (places, used), {})
    if entries < len(shape):
        places = application.emit("pad", (places,), {"padding": ((0, len(shape) - entries),), "value": 0})
    application.result_reshape(
        application.emit("dynamic_slice", (data, places), {"size": tuple(size)}), target.type.shape
    )


def _slice_ranges(
    application: Application, shape: tuple[int, ...], spec: Sequence[tuple[int, ...]], masks: _Masks
) -> tuple[list[tuple[int, int, int]], list[int]]:
    """(begin, end, stride) per data axis, and the output's shape."""
    entries = len(spec[0])
    consumed = sum(not (masks.ellipsis | masks.new_axis) >> i & 1 for i in range(entries))
    if consumed > len(shape) or (masks.ellipsis & (1 << entries) - 1).bit_count() > 1:
        application.broken(f"a slice of {entries} entries of shape {shape}")
    ranges: list[tuple[int, int, int]] = []
    result: list[int] = []

    def whole(count: int) -> None:
        for extent in shape[len(ranges) : len(ranges) + count]:
            ranges.append((0, extent, 1))
            result.append(extent)

    for i, (first, last, stride) in enumerate(zip(*spec, strict=True)):
        if masks.ellipsis >> i & 1:
            whole(len(shape) - consumed)
        elif masks.new_axis >> i & 1:
            result.append(1)
        elif masks.shrink_axis >> i & 1:
            ranges.append(_one_index(application, first, shape[len(ranges)]))
        else:
            extent = shape[len(ranges)]
            first = (0 if stride > 0 else extent - 1) if masks.begin >> i & 1 else first
            last = (extent if stride > 0 else -1 - extent) if masks.end >> i & 1 else last
            ranges.append(_one_range(application, first, last, stride, extent))
            result.append(-(-abs(ranges[-1][1] - ranges[-1][0]) // abs(stride)))
    whole(len(shape) - len(ranges))
    return ranges, result


def _one_index(application: Application, index: int, extent: int) -> tuple[int, int, int]:
    index += extent if index < 0 else 0
    if not 0 <= index < extent:
        application.broken(f"index {index} of an axis of extent {extent}")
    return index, index + 1, 1


def _one_range(application: Application, first: int, last: int, stride: int, extent: int) -> tuple[int, int, int]:
    """Bounds within the axis: from 0 to the extent, or (backwards) from its last index to -1."""
    if stride == 0:
        application.broken("stride 0")
    first, last = (bound + extent if bound < 0 else bound for bound in (first, last))
    low, high = (0, extent) if stride > 0 else (-1, extent - 1)
    first, last = min(max(first, low), high), min(max(last, low), high)
    return (first, last, stride) if (last - first) * stride > 0 else (0, 0, 1)


def _along(shape: tuple[int, ...], axis: int, first: int, last: int) -> dict[str, Attr]:
    """The slice of indices first..last-1 along ``axis``, everything along the others."""
    begin = tuple(first if i == axis else 0 for i in range(len(shape)))
    end = tuple(last if i == axis else extent for i, extent in enumerate(shape))
    return {"begin": begin, "end": end, "strides": (1,) * len(shape)}


def _parts(application: Application, data: str, axis: int, sizes: Sequence[int]) -> None:
    first = 0
    for position, size in enumerate(sizes):
        attrs = _along(application.type(data).shape, axis, first, first + size)
        application.result("slice", (data,), attrs, position)
        first += size


SPELLINGS: Mapping[str, Spelling] = {
    "SLICE": Spelling(slice_, MOVABLE),
    "SPLIT": Spelling(split, MOVABLE),
    "SPLIT_V": Spelling(split_v, MOVABLE),
    "STRIDED_SLICE": Spelling(strided_slice, MOVABLE),
    "UNPACK": Spelling(unpack, MOVABLE),
}
