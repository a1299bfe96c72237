"""Operators that move elements, or choose them by place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.onnx.writer.application import Application, Row
from microc.frontend.onnx.writer.build import TO_FIRST
from microc.frontend.onnx.writer.elementwise import stored_real

_FROM_THE_END = -(1 << 62)
"""The end of a slice that goes backwards to the first element."""


def reshape(application: Application) -> None:
    """Reshape; of shapes with an extent of zero, which else means the data's."""
    shape = application.attr("shape")
    allowzero = 1 if 0 in shape else None
    application.result("Reshape", application.operand(), application.integers(*shape), allowzero=allowzero)


def transpose(application: Application) -> None:
    """Transpose."""
    application.result("Transpose", application.operand(), perm=application.attr("axes"))


def concat(application: Application) -> None:
    """Concat, with channels first if all operands are there like that."""
    builder, names, rank = application.builder, application.node.inputs, len(application.result_type.shape)
    axis = application.attr("axis") % rank
    if all(map(builder.is_first, names)):
        application, axis = application.with_channels_first(), TO_FIRST.index(axis)
    application.result("Concat", *(application.operand(k) for k in range(len(names))), axis=axis)


def slice_(application: Application) -> None:
    """Slice along the axes of which not all is taken."""
    parts = zip(
        *(application.attr(name) for name in ("begin", "end", "strides")), application.type().shape, strict=True
    )
    cut = [(axis, *part[:3]) for axis, part in enumerate(parts) if part != (0, part[3], 1, part[3])]
    if not cut:
        application.result("Identity", application.operand())
        return
    axes, begin, end, strides = (application.integers(*numbers) for numbers in zip(*cut, strict=True))
    application.result("Slice", application.operand(), begin, end, axes, strides)


def reverse(application: Application) -> None:
    """Slice with steps of -1."""
    axes = application.attr("axes")
    if not axes:
        application.result("Identity", application.operand())
        return
    numbers = ((-1,) * len(axes), (_FROM_THE_END,) * len(axes), axes, (-1,) * len(axes))
    application.result("Slice", application.operand(), *(application.integers(*each) for each in numbers))


def pad(application: Application) -> None:
    """Pad; the value is as stored."""
    value = stored_real(application, application.attr("value"))
    application.result("Pad", application.operand(), _amounts(application), application.number(value))


def _amounts(application: Application) -> str:
    """All amounts before, then all behind."""
    pairs = application.attr("padding")
    return application.integers(*(before for before, _ in pairs), *(after for _, after in pairs))


def mirror_pad(application: Application) -> None:
    """Pad by a mode; ``symmetric``, which ONNX does not have, by indices along every axis."""
    mode, data = application.attr("mode"), application.operand()
    if mode != "symmetric":
        if mode == "wrap":
            application.builder.require(19)
        application.result("Pad", data, _amounts(application), mode=mode)
        return
    padded = [axis for axis, amounts in enumerate(application.attr("padding")) if any(amounts)]
    for axis in padded:
        extent, amounts = application.type().shape[axis], application.attr("padding")[axis]
        places = np.pad(np.arange(extent, dtype=np.int64), amounts, mode="symmetric")
        data = application.emit("Gather", data, application.constant(places, "places"), axis=axis)
    application.result("Identity", data)


def broadcast_to(application: Application) -> None:
    """Expand."""
    application.result("Expand", application.operand(), application.integers(*application.attr("shape")))


def triangle(application: Application) -> None:
    """Trilu."""
    diagonal = application.constant(np.array(application.attr("diagonal"), np.int64))
    application.result("Trilu", application.operand(), diagonal, upper=int(application.attr("upper")))


def reverse_sequence(application: Application) -> None:
    """ReverseSequence."""
    axes = {"time_axis": application.attr("time_axis"), "batch_axis": application.attr("batch_axis")}
    if sorted(axes.values()) != [0, 1]:
        application.refuse(f"sequences along axes {tuple(axes.values())}", "ONNX has them along axes 0 and 1")
    application.result("ReverseSequence", application.operand(), indices(application, 1, "int64"), **axes)


def indices(application: Application, position: int, *dtypes: str) -> str:
    """An operand of places, as the first of ``dtypes`` where it is none of them."""
    name = application.operand(position)
    return name if application.type(position).dtype in dtypes else application.cast(name, dtypes[0])


def gather(application: Application) -> None:
    """Gather; where leading axes are shared, GatherND of places with one more axis."""
    axis, batch, places = application.attr("axis") % len(application.type().shape), application.attr("batch_dims"), 1
    if application.attr("span") > 1:
        application.refuse("runs of neighbours", "leave out the pass blocked_turns, which makes them")
    if not batch:
        found = indices(application, places, "int32", "int64")
        application.result("Gather", application.operand(), found, axis=axis)
        return
    if axis != batch:
        application.refuse(f"places along axis {axis} with {batch} shared axes", "move the axis behind the shared ones")
    shape = (*application.type(places).shape, 1)
    each = application.emit("Reshape", indices(application, places, "int64"), application.integers(*shape))
    application.result("GatherND", application.operand(), each, batch_dims=batch)


def gather_elements(application: Application) -> None:
    """GatherElements."""
    places = indices(application, 1, "int32", "int64")
    application.result("GatherElements", application.operand(), places, axis=application.attr("axis"))


def gather_nd(application: Application) -> None:
    """GatherND."""
    places = indices(application, 1, "int64")
    application.result("GatherND", application.operand(), places, batch_dims=application.attr("batch_dims"))


def scatter(code: str, *dtypes: str) -> Row:
    """ScatterElements and ScatterND."""

    def write(application: Application) -> None:
        operands = application.operand(), indices(application, 1, *dtypes), application.operand(2)
        reduction = application.attr("reduction") or None
        if reduction in ("max", "min"):
            application.builder.require(18)
        application.result(code, *operands, axis=application.attr("axis"), reduction=reduction)

    return write


def one_hot(application: Application) -> None:
    """OneHot; where negative places do not count from the end, they are moved behind it."""
    depth = application.attr("depth")
    places = indices(application, 0, "int64")
    bound = application.constant(np.array(depth, np.int64), "depth")
    if not application.attr("wrap"):
        negative = application.emit("Less", places, application.constant(np.array(0, np.int64), "zero"))
        places = application.emit("Where", negative, bound, places)
    values = [application.emit("Reshape", application.operand(k), application.integers(1)) for k in (2, 1)]
    both = application.emit("Concat", *values, axis=0)
    if application.type().shape:
        application.result("OneHot", places, bound, both, axis=application.attr("axis"))
        return
    row = application.emit("Reshape", places, application.integers(1))
    application.result("OneHot", row, bound, both, then=[("Reshape", (application.integers(depth),), {})])


def dynamic_slice(application: Application) -> None:
    """Slice from a place that is brought so far inside that the part is."""
    shape, size = application.type().shape, application.attr("size")
    begin = indices(application, 1, "int64")
    limits = application.integers(*(extent - part for extent, part in zip(shape, size, strict=True)))
    nearest = application.emit("Min", begin, limits)
    first = application.emit("Max", nearest, application.integers(*(0,) * len(size)))
    part = application.emit(
        "Slice", application.operand(), first, application.emit("Add", first, application.integers(*size))
    )
    application.result("Reshape", part, application.integers(*size))


ROWS: Mapping[str, Row] = {
    "broadcast_to": broadcast_to,
    "concat": concat,
    "dynamic_slice": dynamic_slice,
    "gather": gather,
    "gather_elements": gather_elements,
    "gather_nd": gather_nd,
    "mirror_pad": mirror_pad,
    "one_hot": one_hot,
    "pad": pad,
    "reshape": reshape,
    "reverse": reverse,
    "reverse_sequence": reverse_sequence,
    "scatter_elements": scatter("ScatterElements", "int32", "int64"),
    "scatter_nd": scatter("ScatterND", "int64"),
    "slice": slice_,
    "transpose": transpose,
    "triangle": triangle,
}
