"""Spellings of ONNX's operators that choose, join, repeat and pad elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frontend.onnx.application import MOVABLE, Application, Spelling
from microc.frontend.onnx.moving import moving_slice
from microc.graph.ir import Attr

_TILED_AXES = 3
"""Axes that are copied at once: twice as many stand in the tensor between."""
_PIECES = 64
"""An irregular choice of elements becomes so many slices at most."""


def concat(application: Application) -> None:
    """Concat along an axis."""
    values = tuple(application.operand(position) for position in range(application.count()))
    if not values:
        application.broken("there are no operands")
    axis = application.axis(application.operator.attributes.integer("axis"), len(application.type(values[0]).shape))
    values = tuple(value for value in values if application.type(value).size) or values[:1]
    joined(application, values, axis, application.output())


def joined(application: Application, values: Sequence[str], axis: int, output: str = "") -> str:
    """``values`` one after another along ``axis``, as ``output`` or a new value."""
    if len(values) == 1 and not output:
        return values[0]
    if len(values) == 1:
        application.result_alias(values[0])
        return values[0]
    if not output:
        return application.emit("concat", values, {"axis": axis})
    return application.write("concat", values, {"axis": axis}, output)


def cut(application: Application, value: str, axis: int, begin: int, end: int, output: str = "") -> str:
    """Elements begin..end - 1 of ``value`` along ``axis``."""
    extents = application.type(value).shape
    bounds = [(0, extent) for extent in extents]
    bounds[axis] = (begin, end)
    attrs: Mapping[str, Attr] = {
        "begin": tuple(b for b, _ in bounds),
        "end": tuple(e for _, e in bounds),
        "strides": (1,) * len(extents),
    }
    if output:
        return application.write("slice", (value,), attrs, output)
    return value if (begin, end) == (0, extents[axis]) else application.emit("slice", (value,), attrs)


def slice_bounds(application: Application) -> tuple[tuple[int, ...], ...]:
    """Starts, ends, axes and steps, from attributes before opset 10, then from inputs."""
    rank = len(application.shape(0))
    if application.opset < 10:
        attributes = application.operator.attributes
        starts, ends = attributes.integers("starts"), attributes.integers("ends")
        given, steps = attributes.integers("axes", tuple(range(len(starts)))), (1,) * len(starts)
    else:
        starts, ends = application.integers(1), application.integers(2)
        given = application.integers(3) if application.has(3) else tuple(range(len(starts)))
        steps = application.integers(4) if application.has(4) else (1,) * len(starts)
    axes = application.axes(given, rank)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        application.broken(f"starts {starts}, ends {ends}, axes {axes}, steps {steps}")
    return starts, ends, axes, steps


def slice_(application: Application) -> None:
    """Slice: starts and ends are clamped to the tensor; what steps backwards is reversed first."""
    if application.opset >= 10 and any(application.value(k) not in application.builder.consts for k in (1, 2)):
        moving_slice(application)
        return
    starts, ends, axes, steps = slice_bounds(application)
    extents = application.shape(0)
    begin, end, strides = [0] * len(extents), list(extents), [1] * len(extents)
    turned = []
    for axis, first, last, step in zip(axes, starts, ends, steps, strict=True):
        chosen = range(extents[axis])[first:last:step]
        if step < 0:
            turned.append(axis)
            chosen = range(extents[axis] - 1 - chosen.start, extents[axis] - 1 - chosen.stop, -step)
        begin[axis], end[axis], strides[axis] = chosen.start, min(chosen.stop, extents[axis]), chosen.step
        if not chosen:
            application.result_constant(_nothing(application, axis))
            return
    data = application.value(0)
    if turned:
        data = application.emit("reverse", (data,), {"axes": tuple(sorted(turned))})
    if (begin, end, strides) == ([0] * len(extents), list(extents), [1] * len(extents)):
        application.result_alias(data)
        return
    attrs: Mapping[str, Attr] = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
    application.result("slice", (data,), attrs)


def _nothing(application: Application, axis: int) -> Array:
    """A tensor like input 0, but without elements along an axis: known when compiling."""
    kind = application.type(application.value(0))
    shape = tuple(0 if k == axis else extent for k, extent in enumerate(kind.shape))
    return np.zeros(shape, dtypes.to_numpy(kind.dtype))


def split(application: Application) -> None:
    """Split into parts of given or of equal extents."""
    extents, attributes, outputs = application.shape(0), application.operator.attributes, application.operator.outputs
    axis = application.axis(attributes.integer("axis", 0), len(extents))
    parts = split_parts(application, extents[axis])
    if len(parts) != len(outputs) or sum(parts) != extents[axis] or min(parts) < 0:
        application.broken(f"{len(outputs)} parts of {parts} elements of {extents[axis]}")
    first = 0
    for position, part in enumerate(parts):
        if part == extents[axis]:
            application.result_alias(application.value(0), position)
        elif part == 0:
            application.result_constant(_nothing(application, axis), position)
        elif outputs[position]:
            cut(application, application.value(0), axis, first, first + part, outputs[position])
        first += part


def split_parts(application: Application, extent: int) -> tuple[int, ...]:
    """The parts' extents: given, or equal with a smaller last one."""
    attributes, count = application.operator.attributes, len(application.operator.outputs)
    if application.opset < 13 and "split" in attributes:
        return attributes.integers("split")
    if application.opset >= 13 and application.has(1):
        return application.integers(1)
    if count == 0:
        application.broken("there are no outputs")
    part = -(-extent // count)
    return (*[part] * (count - 1), extent - part * (count - 1))


def gather(application: Application) -> None:
    """Gather: a slice or a concatenation of slices where the indices are known when compiling and follow each other."""
    data, extents = application.value(0), application.shape(0)
    axis = application.axis(application.operator.attributes.integer("axis", 0), len(extents))
    if application.value(1) not in application.builder.consts or application.constant(1).size > _PIECES:
        application.result("gather", (application.value(0), application.value(1)), {"axis": axis})
        return
    indices = application.constant(1)
    if indices.dtype not in (np.int32, np.int64) or not indices.size:
        application.broken(f"indices of shape {indices.shape} and {indices.dtype}")
    found = [application.axis(int(i), extents[axis]) for i in indices.reshape(-1)]
    chosen = chosen_elements(application, data, axis, found)
    application.result_reshape(chosen, (*extents[:axis], *indices.shape, *extents[axis + 1 :]))


def chosen_elements(application: Application, value: str, axis: int, indices: Sequence[int]) -> str:
    """The elements of ``value`` at ``indices`` along ``axis``: one slice for every run of consecutive indices."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and index == runs[-1][1]:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    if len(runs) > _PIECES:
        application.refuse(
            f"{len(runs)} separate pieces of a tensor; at most {_PIECES}",
            "make the indices an input",
        )
    return joined(application, [cut(application, value, axis, begin, end) for begin, end in runs], axis)


def pad(application: Application) -> None:
    """Pad: with a constant, or reflected or repeated at the edges; negative padding cuts."""
    attributes, extents = application.operator.attributes, application.shape(0)
    mode = attributes.text("mode", "constant")
    widths, value = padding(application), application.value(0)
    for axis, (before, after) in enumerate(widths):
        left = extents[axis] + min(before, 0) + min(after, 0)
        if left < 0:
            application.broken(f"padding {widths} of shape {extents} takes more than there is")
        if not left:
            application.refuse(
                f"padding {widths} of shape {extents}, which leaves nothing", "cut the network before it"
            )
        value = cut(application, value, axis, max(-before, 0), extents[axis] + min(after, 0))
    widths = tuple((max(before, 0), max(after, 0)) for before, after in widths)
    if not any(before or after for before, after in widths):
        application.result_alias(value)
    elif mode in ("reflect", "edge", "wrap"):
        application.result_alias(application.emit("mirror_pad", (value,), {"padding": widths, "mode": mode}))
    elif mode != "constant":
        application.broken(f"padding of mode {mode!r}")
    elif application.opset >= 11 and application.has(2) and application.value(2) not in application.builder.consts:
        application.result_alias(_padded_by(application, value, widths))
    else:
        value = application.emit("pad", (value,), {"padding": widths, "value": pad_value(application)})
        application.result_alias(value)


def _padded_by(application: Application, value: str, widths: tuple[tuple[int, int], ...]) -> str:
    """``value`` within elements that are only known at run time."""
    kind = application.type(value)
    inside = application.new_constant(f"{application.output()}_inside", np.ones(kind.shape, np.bool_))
    mask = application.emit("pad", (inside,), {"padding": widths, "value": False})
    data = application.emit("pad", (value,), {"padding": widths, "value": 0})
    return application.emit("where", (mask, data, application.reshaped(application.operand(2), ())))


def padding(application: Application) -> tuple[tuple[int, int], ...]:
    """(before, after) of every axis."""
    rank = len(application.shape(0))
    pads = application.operator.attributes.integers("pads") if application.opset < 11 else application.integers(1)
    axes = tuple(range(rank))
    if application.opset >= 18 and application.has(3):
        axes = application.axes(application.integers(3), rank)
    if len(pads) != 2 * len(axes) or any(abs(p) > 1 << 24 for p in pads):
        application.broken(f"pads {pads} for {len(axes)} axes")
    found = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    return tuple(found.get(axis, (0, 0)) for axis in range(rank))


def pad_value(application: Application) -> float | int:
    """What constant padding fills with."""
    if application.opset < 11:
        return application.operator.attributes.real("value", 0.0)
    kind = application.type(application.value(0)).dtype
    if not application.has(2):
        return 0.0 if kind.startswith("float") else 0
    data = application.constant(2)
    if data.size != 1 or data.dtype.name != kind:
        application.broken(f"a padding value of shape {data.shape} and {data.dtype}")
    number = data.reshape(()).item()
    return number if isinstance(number, float) else int(number)


def expand(application: Application) -> None:
    """Expand: broadcast to a shape."""
    extents = application.shape(0)
    wanted = application.broadcast(extents, application.integers(1))
    if wanted == application.shape(0):
        application.result_alias(application.value(0))
    else:
        application.result("broadcast_to", (application.value(0),), {"shape": wanted})


def tile(application: Application) -> None:
    """Tile: whole copies along every axis."""
    counts = application.integers(1)
    if len(counts) != len(application.shape(0)) or any(count < 1 for count in counts):
        application.broken(f"repeats {counts} for shape {application.shape(0)}")
    value, extents = application.value(0), list(application.shape(0))
    axes = [axis for axis, count in enumerate(counts) if count > 1]
    for at in range(0, len(axes), _TILED_AXES):
        value = _copied(application, value, extents, {axis: counts[axis] for axis in axes[at : at + _TILED_AXES]})
        extents = [extent * (counts[k] if k in axes[at : at + _TILED_AXES] else 1) for k, extent in enumerate(extents)]
    application.result_reshape(value, extents)


def _copied(application: Application, value: str, extents: Sequence[int], counts: Mapping[int, int]) -> str:
    """Whole copies along some axes, as a tensor of any shape: an axis of copies stands before the one that they are copies of,
    and what is there once keeps together, so that the rank stays low."""
    parts, copies = [1], [1]
    for axis, extent in enumerate(extents):
        if axis in counts:
            parts, copies = [*parts, 1, extent], [*copies, counts[axis], extent]
        else:
            parts[-1], copies[-1] = parts[-1] * extent, copies[-1] * extent
    return application.emit("broadcast_to", (application.reshaped(value, parts),), {"shape": tuple(copies)})


SPELLINGS: Mapping[str, Spelling] = {
    "Concat": Spelling(concat, MOVABLE),
    "Expand": Spelling(expand, MOVABLE),
    "Gather": Spelling(gather, MOVABLE),
    "Pad": Spelling(pad, MOVABLE),
    "Slice": Spelling(slice_, MOVABLE),
    "Split": Spelling(split, MOVABLE),
    "Tile": Spelling(tile, MOVABLE),
}
