# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Annotated, Literal

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.onnx.builder import StoredTensor
from microc.frontend.onnx.context import FLOAT, ConverterTable, OpContext
from microc.frontend.signature import Ints, Range, Rank, SameDtype, Value
from microc.graph.ir import Attr
from microc.ops.windows import compute_same_padding_of_axis

CONVERTERS = ConverterTable()

# ---- Windows of convolutions and pools, and the converter of Conv. One spatial axis is treated as two with unit height.
#
# Layouts stay channels first; weights are OIHW.

LIMIT = 1 << 24
"""Largest extent, stride, padding or dilation."""
AutoPad = Literal["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]


@frozen
class WindowAttributes:
    """Attributes of all convolutions and pools; an empty tuple stands for strides or dilations of 1 or pads of 0."""

    auto_pad: AutoPad = "NOTSET"
    dilations: Ints = ()
    pads: Ints = ()
    strides: Ints = ()


@frozen
class ConvolutionAttributes(WindowAttributes):
    """Attributes of all convolutions; an empty ``kernel_shape`` stands for that of the weights."""

    group: int = 1
    kernel_shape: Ints = ()


@frozen
class ImageWindow:
    """Window of a convolution or pool over height and width: kernel extents, strides, padding and dilation.

    ``padding``: top, left, bottom, right. ``ceil_mode_padding``: further padding (bottom, right) that only
    ``ceil_mode`` adds."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    ceil_mode_padding: tuple[int, int]

    @property
    def padding_with_ceil_mode(self) -> tuple[int, int, int, int]:
        """Padding (top, left, bottom, right), including ``ceil_mode_padding``."""
        top, left, bottom, right = self.padding
        return top, left, bottom + self.ceil_mode_padding[0], right + self.ceil_mode_padding[1]


@frozen
class SpatialWindow:
    """Window of a convolution or pool over any number of spatial axes; each field has one entry for each axis.

    ``padding_before``, ``padding_after``: padding at the start and end of the axis. ``ceil_mode_padding``: further
    padding at the end that only ``ceil_mode`` adds."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding_before: tuple[int, ...]
    padding_after: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode_padding: tuple[int, ...]

    @property
    def padding(self) -> tuple[int, ...]:
        """Padding before each axis, then padding after each axis, including ``ceil_mode_padding``."""
        return (*self.padding_before, *(a + e for a, e in zip(self.padding_after, self.ceil_mode_padding, strict=True)))


def make_spatial_window(
    context: OpContext, attributes: WindowAttributes, kernel_shape: Ints, data_extents: Ints, ceil_mode: bool = False
) -> SpatialWindow:
    """Return the window of a convolution or pool over any number of spatial axes.

    ``data_extents``: extents of the data's spatial axes, which padding by ``auto_pad`` and ``ceil_mode`` depends on."""
    rank, mode = len(data_extents), attributes.auto_pad
    strides = check_spatial_attribute(context, "strides", attributes.strides, (1,) * rank, 1)
    dilation = check_spatial_attribute(context, "dilations", attributes.dilations, (1,) * rank, 1)
    pads = check_spatial_attribute(context, "pads", attributes.pads, (0,) * 2 * rank, 0)
    before, after = list(pads[:rank]), list(pads[rank:])
    extra = [0] * rank
    for k, (size, taps, stride, step) in enumerate(zip(data_extents, kernel_shape, strides, dilation, strict=True)):
        span = (taps - 1) * step + 1
        if mode.startswith("SAME"):
            smaller, larger = compute_same_padding_of_axis(size, span, stride)
            before[k], after[k] = (smaller, larger) if mode == "SAME_UPPER" else (larger, smaller)
        elif mode == "VALID":
            before[k] = after[k] = 0
        last_start = size + before[k] + after[k] - span
        if last_start < 0 and not (ceil_mode and last_start > -stride):  # ceil_mode makes one window of a smaller axis
            padded = f"{size} elements and {before[k]} + {after[k]} of padding"
            context.broken(f"a window of {span} elements (dilated) exceeds the padded axis of {padded} elements")
        # ceil_mode adds a last window if it starts inside the data or the padding before it, not in the padding behind.
        if ceil_mode and last_start % stride:
            next_start = (last_start // stride + 1) * stride
            if next_start < size + before[k]:
                extra[k] = next_start - last_start
    return SpatialWindow(kernel_shape, strides, tuple(before), tuple(after), dilation, tuple(extra))


def _expand_window(window: SpatialWindow) -> ImageWindow:
    """Return a window over one or two spatial axes as one over height and width.

    Data of one spatial axis are treated as images of height 1."""
    before, after = (
        _expand_to_height_and_width(window.padding_before, 0),
        _expand_to_height_and_width(window.padding_after, 0),
    )
    return ImageWindow(
        _expand_to_height_and_width(window.kernel, 1),
        _expand_to_height_and_width(window.strides, 1),
        (*before, *after),
        _expand_to_height_and_width(window.dilation, 1),
        _expand_to_height_and_width(window.ceil_mode_padding, 0),
    )


def _expand_to_height_and_width(spatial_values: tuple[int, ...], default_height: int) -> tuple[int, int]:
    """Expand a tuple of one or two values of spatial axes to (height, width).

    A single value is the width; the height is then ``default_height``."""
    return (default_height, spatial_values[0]) if len(spatial_values) == 1 else (spatial_values[0], spatial_values[1])


def check_spatial_attribute(
    context: OpContext, attribute_name: str, values: Ints, default_values: Ints, minimum: int
) -> Ints:
    """Return the integers of attribute ``attribute_name``, or ``default_values`` if it is empty.

    Raises ModelError unless there are as many integers as in ``default_values``, all in the range ``minimum`` to
    :data:`LIMIT`."""
    values = values or default_values
    if len(values) != len(default_values) or any(not minimum <= value <= LIMIT for value in values):
        context.broken(f"{attribute_name} is {values}, expected {len(default_values)} numbers in {minimum}..{LIMIT}")
    return values


@CONVERTERS.register("Conv")
def convert_conv(
    context: OpContext, x: Value, w: SameDtype, b: SameDtype | None, *, attributes: ConvolutionAttributes
) -> None:
    """Convert Conv to a ``conv2d`` or to a ``convolution``.

    Float32 data of one or two spatial axes with constant weights and bias become a ``conv2d``. Anything else becomes a
    ``convolution``, which supports any number of spatial axes."""
    weight, bias = context.find_stored_tensor(w), None if b is None else context.find_stored_tensor(b)
    if x.dtype == "float32" and x.rank in (3, 4) and weight is not None and (b is None or bias is not None):
        write_convolution(context, x, weight, bias, attributes, context.output())
        return
    operands = (x, w) if b is None else (x, w, b)
    context.result("convolution", operands, get_convolution_attrs(context, x, w, attributes))


def get_convolution_attrs(
    context: OpContext, x: Value, w: Value, attributes: ConvolutionAttributes
) -> Mapping[str, Attr]:
    """Return the attributes of the graph operator ``convolution``, which has any number of spatial axes."""
    extents, kernel_shape = x.shape[2:], w.shape[2:]
    if len(kernel_shape) != len(extents) or (attributes.kernel_shape or kernel_shape) != kernel_shape:
        context.broken(
            f"got data of shape {x.shape} and kernel_shape {kernel_shape}, expected a number for each spatial axis, "
            "and kernel_shape equal to the spatial extents of the weights"
        )
    window = make_spatial_window(context, attributes, kernel_shape, extents)
    return {
        "strides": window.strides,
        "padding": window.padding,
        "dilation": window.dilation,
        "groups": attributes.group,
    }


def write_convolution(
    context: OpContext,
    data: Value,
    weight: StoredTensor,
    bias: StoredTensor | None,
    attributes: ConvolutionAttributes,
    output_name: str,
) -> Value:
    """Write the value ``output_name``, the convolution of ``data`` with constant weights and bias; return it.

    The data have shape (N, C, [H,] W), the weights have shape (O, C / groups, [H,] W)."""
    shape, kernel = data.shape, weight.data.shape[2:]
    if len(shape) != len(weight.data.shape) or len(shape) not in (3, 4, 5):
        expected = "expected equal numbers of axes, 3 to 5"
        context.broken(f"got data of shape {shape} and weights of shape {weight.data.shape}, {expected}")
    if len(shape) == 5:
        context.refuse(
            "a quantised convolution over three spatial axes is not supported, expected one or two",
            "leave the layer in float32",
        )
    stated = attributes.kernel_shape or kernel
    if stated != kernel or 0 in weight.data.shape:
        context.broken(
            f"kernel_shape is {stated} for weights of shape {weight.data.shape}, expected {kernel} and no extent of 0"
        )
    groups, channels = attributes.group, weight.data.shape[0]
    if groups < 1 or channels % groups or weight.data.shape[1] * groups != shape[1]:
        context.broken(
            f"got group {groups} and weights of shape {weight.data.shape} for {shape[1]} input channels, expected "
            "shape (outputs, inputs / group, ...) and a group that divides both"
        )
    if bias is not None and bias.data.shape != (channels,):
        context.broken(f"bias: got shape {bias.data.shape}, expected ({channels},)")
    window = _expand_window(make_spatial_window(context, attributes, kernel, shape[2:]))
    weight_2d = weight.reshape((*weight.data.shape[:2], *window.kernel))
    if weight_2d is None:
        context.refuse(
            "the weights are quantised along their width, expected along the output channels",
            "quantise them along the output channels",
        )
    operands = [reshape_to_image(context, data), context.add_stored_tensor(f"{output_name}_weight", weight_2d)]
    if bias is not None:
        operands.append(context.add_stored_tensor(f"{output_name}_bias", bias))
    attrs: Mapping[str, Attr] = {
        "strides": window.strides,
        "padding": window.padding,
        "dilation": window.dilation,
        "groups": groups,
        "layout": "NCHW",
    }
    return _write_image_result(context, "conv2d", operands, attrs, len(shape), output_name)


def reshape_to_image(context: OpContext, value: Value) -> Value:
    """Reshape data (N, C, W) to (N, C, 1, W); return the result. Data (N, C, H, W) are unchanged."""
    if value.rank == 4:
        return value
    batch, channels, width = value.shape
    return context.reshape(value, (batch, channels, 1, width))


def _write_image_result(
    context: OpContext, op: str, operands: list[Value], attrs: Mapping[str, Attr], result_rank: int, output_name: str
) -> Value:
    """Write the value ``output_name`` as the result (N, C, H, W) of the operator ``op``; return it.

    If ``result_rank`` is 3, H is 1 and is removed by a reshape to (N, C, W)."""
    if result_rank == 4:
        return context.write_node(op, operands, attrs, output_name)
    image = context.emit(op, operands, attrs)
    batch, channels, _, width = image.shape
    return context.write_node("reshape", (image,), {"shape": (batch, channels, width)}, output_name)


# ---- Converters of pools: those of images have operators and schedules of their own, others use general windows.
#
# ``ceil_mode`` becomes padding at the end of the spatial axes.

_Channels = Annotated[Value, Rank(3, None)]


@CONVERTERS.register("MaxPool", dtypes=(*FLOAT, "int8", "uint8"))
def convert_max_pool(
    context: OpContext,
    x: _Channels,
    *,
    kernel_shape: Ints,
    ceil_mode: bool = False,
    storage_order: bool = False,
    attributes: WindowAttributes,
) -> None:
    """Convert MaxPool to ``max_pool2d`` or, if that cannot express it, to ``window_max``.

    A model that reads the indices of the maxima has a ``window_argmax``."""
    _check_kernel_shape(context, x, kernel_shape)
    window = make_spatial_window(context, attributes, kernel_shape, x.shape[2:], ceil_mode)
    if not context.output(1) and _is_image_pool(x, window):
        _write_image_pool(context, "max_pool2d", x, _expand_window(window), {})
    elif not context.output(1):
        context.result("window_max", (x,), _get_window_attrs(window))
    else:
        attrs = {**_get_window_attrs(window), "column_major": storage_order}
        context.write_node_with_outputs("window_argmax", (x,), attrs, context.operator.outputs)


@CONVERTERS.register("AveragePool")
def convert_average_pool(
    context: OpContext,
    x: _Channels,
    *,
    kernel_shape: Ints,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    attributes: WindowAttributes,
) -> None:
    """Convert AveragePool to ``avg_pool2d`` or, if that cannot express it, to window sums divided by element counts.

    ``avg_pool2d`` cannot count padding as elements where ``ceil_mode`` adds padding, too."""
    _check_kernel_shape(context, x, kernel_shape)
    window = make_spatial_window(context, attributes, kernel_shape, x.shape[2:], ceil_mode)
    includes_padding = count_include_pad and any((*window.padding_before, *window.padding_after))
    if _is_image_pool(x, window) and not (includes_padding and any(window.ceil_mode_padding)):
        _write_image_pool(context, "avg_pool2d", x, _expand_window(window), {"count_include_pad": includes_padding})
        return
    total = context.emit("window_sum", (x,), _get_window_attrs(window))
    counts = _count_averaged_elements(window, x.shape[2:], total.shape[2:], count_include_pad)
    divisor = context.new_constant(f"{context.output()}_counts", counts.astype(x.dtype))
    context.result("div", (total, divisor))


def _check_kernel_shape(context: OpContext, x: Value, kernel_shape: Ints) -> None:
    """Raise ModelError unless ``kernel_shape`` has an extent for each spatial axis of a pool's data."""
    if len(kernel_shape) != x.rank - 2 or any(not 1 <= k <= LIMIT for k in kernel_shape):
        context.broken(
            f"kernel_shape is {kernel_shape} for data of shape {x.shape}, expected 1..{LIMIT} for each spatial axis"
        )


def _is_image_pool(x: Value, window: SpatialWindow) -> bool:
    """Test whether ``max_pool2d`` or ``avg_pool2d`` can express a pool.

    The pool must have one or two spatial axes, no dilation, less padding than kernel extent on each side, and data
    other than float64."""
    is_narrow = all(p < k for p, k in zip(window.padding, window.kernel * 2, strict=True))
    return x.dtype != "float64" and len(window.kernel) in (1, 2) and is_narrow and set(window.dilation) == {1}


def _write_image_pool(context: OpContext, op: str, x: Value, window: ImageWindow, attrs: Mapping[str, Attr]) -> None:
    """Write the output: the pool ``op``, ``max_pool2d`` or ``avg_pool2d``, of images."""
    attrs = {
        "kernel": window.kernel,
        "strides": window.strides,
        "padding": window.padding_with_ceil_mode,
        "layout": "NCHW",
        **attrs,
    }
    _write_image_result(context, op, [reshape_to_image(context, x)], attrs, x.rank, context.output())


def _get_window_attrs(window: SpatialWindow) -> dict[str, Attr]:
    """Return kernel, strides, padding and dilation of a window as attributes of a graph operator."""
    return {"kernel": window.kernel, "strides": window.strides, "padding": window.padding, "dilation": window.dilation}


def _count_averaged_elements(
    window: SpatialWindow, data_extents: Ints, result_extents: Ints, count_include_pad: bool
) -> Array:
    """Return the number of elements in each window of a pool, of shape (results of each axis, ...).

    Windows that overlap padding contain fewer elements, so the counts differ by position. There is only one number if
    all counts are the same."""
    rank = len(data_extents)
    counts = np.ones((1,) * rank)
    for axis, extent in enumerate(data_extents):
        first = -window.padding_before[axis] if count_include_pad else 0
        last = extent + (window.padding_after[axis] if count_include_pad else 0)
        starts = np.arange(result_extents[axis]) * window.strides[axis] - window.padding_before[axis]
        taps = starts[:, None] + np.arange(window.kernel[axis]) * window.dilation[axis]
        elements = ((taps >= first) & (taps < last)).sum(1)
        counts = counts * elements.reshape(-1, *[1] * (rank - axis - 1))
    return counts[(slice(None, 1),) * rank] if (counts == counts.flat[0]).all() else counts


_Exponent = Annotated[int, Range(1)]


@CONVERTERS.register("LpPool")
def convert_lp_pool(
    context: OpContext,
    x: Value,
    *,
    kernel_shape: Ints,
    ceil_mode: bool = False,
    p: _Exponent = 2,
    attributes: WindowAttributes,
) -> None:
    """Convert LpPool, the p-th root of the sum of |x| ** p over each window."""
    _check_kernel_shape(context, x, kernel_shape)
    window = make_spatial_window(context, attributes, kernel_shape, x.shape[2:], ceil_mode)
    powers = context.emit("pow", (context.emit("abs", (x,)), context.scalar(float(p), x.dtype)))
    total = context.emit("window_sum", (powers,), _get_window_attrs(window))
    context.result("pow", (total, context.scalar(1.0 / p, x.dtype)))


@CONVERTERS.register("GlobalLpPool")
def convert_global_lp_pool(context: OpContext, x: Value, *, p: _Exponent = 2) -> None:
    """Convert GlobalLpPool, the p-th root of the sum of |x| ** p over all spatial axes."""
    powers = context.emit("pow", (context.emit("abs", (x,)), context.scalar(float(p), x.dtype)))
    total = context.emit("sum", (powers,), {"axes": tuple(range(2, x.rank)), "keepdims": True})
    context.result("pow", (total, context.scalar(1.0 / p, x.dtype)))


@CONVERTERS.register("MaxUnpool")
def convert_max_unpool(
    context: OpContext,
    x: Value,
    indices: Value,
    output_shape: Ints | None,
    *,
    kernel_shape: Ints,
    pads: Ints = (),
    strides: Ints = (),
) -> None:
    """Convert MaxUnpool, which writes each element of the data to its index in a tensor of zeros."""
    rank = x.rank - 2
    _check_kernel_shape(context, x, kernel_shape)
    strides = check_spatial_attribute(context, "strides", strides, (1,) * rank, 1)
    pads = check_spatial_attribute(context, "pads", pads, (0,) * 2 * rank, 0)
    extents = [
        (e - 1) * s + k - pads[axis] - pads[axis + rank]
        for axis, (e, s, k) in enumerate(zip(x.shape[2:], strides, kernel_shape, strict=True))
    ]
    full = (*x.shape[:2], *extents)
    if output_shape and len(output_shape) != len(full):
        context.broken(f"output_shape: got {output_shape}, expected {len(full)} extents")
    zeros = context.emit("broadcast_to", (context.scalar(0.0, x.dtype),), {"shape": (prod(full),)})
    data, flat_indices = (context.reshape(value, (x.size,)) for value in (x, indices))
    scattered = context.reshape(context.emit("scatter_elements", (zeros, flat_indices, data), {"axis": 0}), full)
    padding = tuple((0, goal - extent) for goal, extent in zip(output_shape or full, full, strict=True))
    if any(after for _, after in padding):
        scattered = context.emit("pad", (scattered,), {"padding": padding, "value": 0.0})
    context.result_alias(scattered)


@CONVERTERS.register("LRN")
def convert_lrn(
    context: OpContext, x: Value, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> None:
    """Convert LRN: x / (bias + alpha / size * sum of squares of the neighbouring channels) ** beta."""
    before = (size - 1) // 2
    squares = context.emit("mul", (x, x))
    rows = context.reshape(squares, (1, x.shape[0], x.shape[1], prod(x.shape[2:])))
    attrs: Mapping[str, Attr] = {
        "kernel": (size, 1),
        "strides": (1, 1),
        "padding": (before, 0, size - 1 - before, 0),
        "dilation": (1, 1),
    }
    total = context.reshape(context.emit("window_sum", (rows,), attrs), x.shape)
    scaled = context.emit("mul", (total, context.scalar(alpha / size, x.dtype)))
    base = context.emit("add", (scaled, context.scalar(bias, x.dtype)))
    context.result("div", (x, context.emit("pow", (base, context.scalar(beta, x.dtype)))))


def _make_global_pool_converter(op: str) -> Callable[..., None]:
    """Make a converter of GlobalAveragePool or GlobalMaxPool to the reduction ``op`` over the spatial axes."""

    def convert_global_pool(context: OpContext, x: _Channels) -> None:
        context.result(op, (x,), {"axes": tuple(range(2, x.rank)), "keepdims": True})

    return convert_global_pool


CONVERTERS.register("GlobalAveragePool")(_make_global_pool_converter("mean"))
CONVERTERS.register("GlobalMaxPool")(_make_global_pool_converter("max"))
