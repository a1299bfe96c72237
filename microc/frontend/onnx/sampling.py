"""Spellings of ONNX's operators that read between elements: GridSample, RoiAlign, DeformConv."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from microc.dtypes import Array
from microc.frontend.onnx.application import Application, Spelling
from microc.frontend.onnx.window import spans
from microc.graph.ir import Attr


def grid_sample(application: Application) -> None:
    """GridSample."""
    attributes, shape, grid = application.operator.attributes, application.shape(0), application.shape(1)
    if len(grid) != len(shape):
        application.broken(f"data of shape {shape} and places of shape {grid}")
    attrs: Mapping[str, Attr] = {
        "mode": attributes.text("mode", "linear").removeprefix("bi"),
        "border": attributes.text("padding_mode", "zeros").replace("border", "edge"),
        "coordinates": "corners" if attributes.flag("align_corners") else "edges",
    }
    application.result("grid_sample", (application.value(0), application.operand(1)), attrs)


def roi_align(application: Application) -> None:
    """RoiAlign with a given number of samples."""
    attributes = application.operator.attributes
    default = "half_pixel" if application.opset >= 16 else "output_half_pixel"
    coordinates = attributes.text("coordinate_transformation_mode", default)
    samples = attributes.integer("sampling_ratio", 0)
    if coordinates not in ("half_pixel", "output_half_pixel"):
        application.broken(f"coordinate_transformation_mode is {coordinates!r}")
    if samples < 1:
        hint = "export the layer with a sampling_ratio, 2 for instance"
        application.refuse("boxes with a number of samples that depends on their size (sampling_ratio 0)", hint)
    attrs: Mapping[str, Attr] = {
        "mode": attributes.text("mode", "avg"),
        "half_pixel": coordinates == "half_pixel",
        "size": (attributes.integer("output_height", 1), attributes.integer("output_width", 1)),
        "samples": samples,
        "scale": attributes.real("spatial_scale", 1.0),
    }
    application.result("roi_align", (application.value(0), application.operand(1), application.value(2)), attrs)


def deform_conv(application: Application) -> None:
    """DeformConv: what the taps of all pixels read, times their masks, times the weights as a matrix for every group."""
    attributes, shape = application.operator.attributes, application.shape(0)
    outputs, inputs, *kernel = application.shape(1)
    groups, parts = attributes.integer("group", 1), attributes.integer("offset_group", 1)
    rank, taps = len(kernel), prod(kernel)
    if rank < 1 or len(shape) != rank + 2 or attributes.integers("kernel_shape", tuple(kernel)) != tuple(kernel):
        application.broken(f"data of shape {shape} and weights of shape {application.shape(1)}")
    if min(groups, parts) < 1 or inputs * groups != shape[1] or outputs % groups or shape[1] % parts:
        application.broken(f"{groups} groups and {parts} groups of offsets for {shape[1]} channels by {outputs}")
    base, size = _tap_places(application, tuple(kernel))
    pixels, images = prod(size), shape[0] * parts
    if application.shape(2) != (shape[0], parts * taps * rank, *size):
        application.broken(f"offsets of shape {application.shape(2)} for {size} pixels of {taps} taps")
    moves = application.reshaped(application.operand(2), (images, taps, rank, pixels))
    moves = application.emit("transpose", (moves,), {"axes": (0, 1, 3, 2)})
    moves = application.reshaped(moves, (images, taps * pixels, rank))
    grid = application.new_constant(f"{application.output()}_taps", base.astype(application.type(moves).dtype))
    places = application.emit("add", (moves, grid))
    data = application.reshaped(application.value(0), (images, shape[1] // parts, *shape[2:]))
    attrs: Mapping[str, Attr] = {"mode": "linear", "border": "zeros", "coordinates": "elements"}
    read = application.emit("grid_sample", (data, places), attrs)
    if application.has(4):
        mask = application.reshaped(application.operand(4), (images, 1, taps * pixels))
        read = application.emit("mul", (read, mask))
    columns = application.reshaped(read, (shape[0], groups, inputs * taps, pixels))
    matrix = application.reshaped(application.operand(1), (1, groups, outputs // groups, inputs * taps))
    product = application.emit("matmul", (matrix, columns))
    made = application.reshaped(product, (shape[0], outputs, *size))
    if application.has(3):
        made = application.emit("add", (made, application.reshaped(application.operand(3), (outputs, *(1,) * rank))))
    application.result_alias(made)


def _tap_places(application: Application, kernel: tuple[int, ...]) -> tuple[Array, tuple[int, ...]]:
    """Where the taps of all pixels lie without offsets, (1, taps * pixels, axes), and the result's extents."""
    extents = application.shape(0)[2:]
    view = spans(application, kernel, extents, ceil_mode=False)
    rank, axes, size = len(extents), [], []
    for k, extent in enumerate(extents):
        room = extent + view.before[k] + view.after[k] - (kernel[k] - 1) * view.dilation[k] - 1
        size.append(room // view.strides[k] + 1)
        taps, pixels = np.arange(kernel[k]) * view.dilation[k], np.arange(size[k]) * view.strides[k]
        shape = np.ones(2 * rank, int)
        shape[[k, rank + k]] = taps.size, pixels.size
        axes.append((taps[:, None] + pixels - view.before[k]).reshape(shape))
    return np.stack(np.broadcast_arrays(*axes), axis=-1).reshape(1, -1, rank), tuple(size)


SPELLINGS: Mapping[str, Spelling] = {
    "DeformConv": Spelling(deform_conv),
    "GridSample": Spelling(grid_sample),
    "RoiAlign": Spelling(roi_align),
}
