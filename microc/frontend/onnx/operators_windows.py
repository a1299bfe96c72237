"""Conversion of ONNX convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.onnx.context import FLOAT, Converter, OpContext, StoredTensor
from microc.graph.ir import Attr

# ---- Windows of convolutions and pools, and the converter of Conv. One spatial axis is treated as two with unit height.
#
# Layouts stay channels first; weights are OIHW.

LIMIT = 1 << 24


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


def read_spatial_window(
    context: OpContext, kernel_shape: tuple[int, ...], data_extents: tuple[int, ...], ceil_mode: bool
) -> SpatialWindow:
    """Return the window of a convolution or pool over any number of spatial axes, read from the attributes.

    ``data_extents``: extents of the data's spatial axes, which padding by ``auto_pad`` and ``ceil_mode`` depends on."""
    attributes, rank = context.operator.attributes, len(data_extents)
    strides = read_spatial_attribute(context, "strides", (1,) * rank, 1)
    dilation = read_spatial_attribute(context, "dilations", (1,) * rank, 1)
    pads = read_spatial_attribute(context, "pads", (0,) * 2 * rank, 0)
    before, after = list(pads[:rank]), list(pads[rank:])
    mode = attributes.text("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        context.broken(f"auto_pad is {mode!r}, expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    extra = [0] * rank
    for k, (size, taps, stride, step) in enumerate(zip(data_extents, kernel_shape, strides, dilation, strict=True)):
        span = (taps - 1) * step + 1
        if mode.startswith("SAME"):
            total = max((-(-size // stride) - 1) * stride + span - size, 0)
            smaller, larger = total // 2, total - total // 2
            before[k], after[k] = (smaller, larger) if mode == "SAME_UPPER" else (larger, smaller)
        elif mode == "VALID":
            before[k] = after[k] = 0
        last_start = size + before[k] + after[k] - span
        if last_start < 0:
            padded = f"{size} elements and {before[k]} + {after[k]} of padding"
            context.broken(f"a window of {span} elements (dilated) exceeds the padded axis of {padded} elements")
        # ceil_mode adds a last window if it starts inside the data or the padding before it, not in the padding behind.
        if ceil_mode and last_start % stride:
            next_start = (last_start // stride + 1) * stride
            if next_start < size + before[k]:
                extra[k] = next_start - last_start
    return SpatialWindow(kernel_shape, strides, tuple(before), tuple(after), dilation, tuple(extra))


def read_image_window(
    context: OpContext, kernel_shape: tuple[int, ...], data_extents: tuple[int, ...], ceil_mode: bool
) -> ImageWindow:
    """Return the window of a convolution or pool over height and width, read from the attributes.

    Data of one spatial axis are treated as images of height 1."""
    window = read_spatial_window(context, kernel_shape, data_extents, ceil_mode)
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


def read_spatial_attribute(
    context: OpContext, attribute_name: str, default_values: tuple[int, ...], minimum: int
) -> tuple[int, ...]:
    """Return the integers of attribute ``attribute_name``, or ``default_values`` if it is absent.

    Raises ModelError unless there are as many integers as in ``default_values``, all in the range ``minimum`` to
    :data:`LIMIT`."""
    values = context.operator.attributes.integers(attribute_name, default_values)
    if len(values) != len(default_values) or any(not minimum <= value <= LIMIT for value in values):
        context.broken(f"{attribute_name} is {values}, expected {len(default_values)} numbers in {minimum}..{LIMIT}")
    return values


def convert_conv(context: OpContext) -> None:
    """Convert Conv to a ``conv2d`` or to a ``convolution``.

    Float32 data of one or two spatial axes with constant weights and bias become a ``conv2d``. Anything else becomes a
    ``convolution``, which supports any number of spatial axes."""
    stored_operands = [context.builder.get_stored_constant(context.value(k)) for k in (1, 2) if context.has_input(k)]
    is_plain = context.type(context.value(0)).dtype == "float32" and len(context.shape(0)) in (3, 4)
    if is_plain and all(stored is not None for stored in stored_operands):
        write_convolution(context, context.value(0), *read_constant_weights_and_bias(context, 1, 2), context.output())
        return
    operands = [context.operand(k) for k in range(3) if context.has_input(k)]
    context.result("convolution", operands, read_convolution_attributes(context, context.shape(1)[2:]))


def read_convolution_attributes(context: OpContext, kernel_shape: tuple[int, ...]) -> Mapping[str, Attr]:
    """Return the attributes of the graph operator ``convolution``, which has any number of spatial axes."""
    extents = context.shape(0)[2:]
    if (
        len(kernel_shape) != len(extents)
        or context.operator.attributes.integers("kernel_shape", kernel_shape) != kernel_shape
    ):
        context.broken(
            f"got data of shape {context.shape(0)} and kernel_shape {kernel_shape}, expected a number for each spatial axis, "
            "and kernel_shape equal to the spatial extents of the weights"
        )
    window = read_spatial_window(context, kernel_shape, extents, ceil_mode=False)
    groups = context.operator.attributes.integer("group", 1)
    return {"strides": window.strides, "padding": window.padding, "dilation": window.dilation, "groups": groups}


def read_constant_weights_and_bias(
    context: OpContext, weight_input_index: int, bias_input_index: int
) -> tuple[StoredTensor, StoredTensor | None]:
    """Return the constant weights and bias of a convolution; the bias is None if absent.

    Raises UnsupportedError if one is computed at run time. ``weight_input_index``, ``bias_input_index``: positions of
    the inputs."""
    stored_operands = []
    for position in (weight_input_index, bias_input_index):
        stored = context.builder.get_stored_constant(context.value(position)) if context.has_input(position) else None
        if stored is None and (position == weight_input_index or context.has_input(position)):
            what = f"input {position} ({context.value(position)!r}) is computed at run time, expected a constant"
            context.refuse(what, "export the model with constant weights")
        stored_operands.append(stored)
    assert stored_operands[0] is not None
    return stored_operands[0], stored_operands[1]


def write_convolution(
    context: OpContext, data_name: str, weight: StoredTensor, bias: StoredTensor | None, output_name: str
) -> None:
    """Write the value ``output_name``, the convolution of ``data_name`` with constant weights and bias.

    The data have shape (N, C, [H,] W), the weights have shape (O, C / groups, [H,] W)."""
    shape, kernel = context.type(data_name).shape, weight.data.shape[2:]
    if len(shape) != len(weight.data.shape) or len(shape) not in (3, 4, 5):
        expected = "expected equal numbers of axes, 3 to 5"
        context.broken(f"got data of shape {shape} and weights of shape {weight.data.shape}, {expected}")
    if len(shape) == 5:
        context.refuse(
            "a quantised convolution over three spatial axes is not supported, expected one or two",
            "leave the layer in float32",
        )
    attributes = context.operator.attributes
    if attributes.integers("kernel_shape", kernel) != kernel or 0 in weight.data.shape:
        stated = attributes.integers("kernel_shape", kernel)
        context.broken(
            f"kernel_shape is {stated} for weights of shape {weight.data.shape}, expected {kernel} and no extent of 0"
        )
    groups, channels = attributes.integer("group", 1), weight.data.shape[0]
    if groups < 1 or channels % groups or weight.data.shape[1] * groups != shape[1]:
        context.broken(
            f"got group {groups} and weights of shape {weight.data.shape} for {shape[1]} input channels, expected "
            "shape (outputs, inputs / group, ...) and a group that divides both"
        )
    if bias is not None and bias.data.shape != (channels,):
        context.broken(f"bias: got shape {bias.data.shape}, expected ({channels},)")
    window = read_image_window(context, kernel, shape[2:], ceil_mode=False)
    weight_2d = weight.reshape((*weight.data.shape[:2], *window.kernel))
    if weight_2d is None:
        context.refuse(
            "the weights are quantised along their width, expected along the output channels",
            "quantise them along the output channels",
        )
    operands = [reshape_to_image(context, data_name), context.add_stored_tensor(f"{output_name}_weight", weight_2d)]
    if bias is not None:
        operands.append(context.add_stored_tensor(f"{output_name}_bias", bias))
    attrs: Mapping[str, Attr] = {
        "strides": window.strides,
        "padding": window.padding,
        "dilation": window.dilation,
        "groups": groups,
        "layout": "NCHW",
    }
    write_image_result(context, "conv2d", operands, attrs, len(shape), output_name)


def reshape_to_image(context: OpContext, value_name: str) -> str:
    """Reshape data (N, C, W) to (N, C, 1, W); return the name of the result. Data (N, C, H, W) are unchanged."""
    shape = context.type(value_name).shape
    return value_name if len(shape) == 4 else context.reshape(value_name, (shape[0], shape[1], 1, shape[2]))


def write_image_result(
    context: OpContext, op: str, operand_names: list[str], attrs: Mapping[str, Attr], result_rank: int, output_name: str
) -> None:
    """Write the value ``output_name`` as the result (N, C, H, W) of the operator ``op``.

    If ``result_rank`` is 3, H is 1 and is removed by a reshape to (N, C, W)."""
    if result_rank == 4:
        context.write_node(op, operand_names, attrs, output_name)
        return
    image = context.emit(op, operand_names, attrs)
    batch, channels, _, width = context.type(image).shape
    context.write_node("reshape", (image,), {"shape": (batch, channels, width)}, output_name)


WINDOW_CONVERTERS: Mapping[str, Converter] = {"Conv": Converter(convert_conv)}


# ---- Converters of pools: those of images have operators and schedules of their own, others use general windows.


def make_pool_converter(op: str) -> Converter:
    """Make a converter of MaxPool or AveragePool to ``op``, ``max_pool2d`` or ``avg_pool2d``.

    If ``op`` cannot express a pool, it is converted to a general window operator. ``ceil_mode`` becomes padding at
    the end of the spatial axes."""

    def convert_pool(context: OpContext) -> None:
        attributes, data = context.operator.attributes, context.value(0)
        shape = context.type(data).shape
        kernel = attributes.integers("kernel_shape")
        if len(shape) < 3 or len(kernel) != len(shape) - 2 or any(not 1 <= k <= LIMIT for k in kernel):
            context.broken(
                f"kernel_shape is {kernel} for data of shape {shape}, expected 1..{LIMIT} for each spatial axis"
            )
        if not _can_use_image_pool(context, op, kernel):
            (_convert_general_max_pool if op == "max_pool2d" else _convert_general_average_pool)(context, kernel)
            return
        window = read_image_window(context, kernel, shape[2:], attributes.flag("ceil_mode"))
        attrs: dict[str, Attr] = {
            "kernel": window.kernel,
            "strides": window.strides,
            "padding": window.padding_with_ceil_mode,
            "layout": "NCHW",
        }
        if op == "avg_pool2d":
            attrs["count_include_pad"] = attributes.flag("count_include_pad") and any(window.padding)
        write_image_result(context, op, [reshape_to_image(context, data)], attrs, len(shape), context.output())

    return Converter(convert_pool, FLOAT if op == "avg_pool2d" else (*FLOAT, "int8", "uint8"))


def _can_use_image_pool(context: OpContext, op: str, kernel_shape: tuple[int, ...]) -> bool:
    """Test whether the operator ``op``, ``max_pool2d`` or ``avg_pool2d``, can express a pool.

    The pool must have one or two spatial axes, no dilation, only one output, less padding than kernel extent on each
    side, and data other than float64. An average that counts padding must not have padding from ``ceil_mode``."""
    attributes, kind = context.operator.attributes, context.type(context.value(0))
    window = read_spatial_window(context, kernel_shape, kind.shape[2:], attributes.flag("ceil_mode"))
    includes = (
        op == "avg_pool2d"
        and attributes.flag("count_include_pad")
        and any((*window.padding_before, *window.padding_after))
    )
    is_narrow = all(p < k for p, k in zip(window.padding, kernel_shape * 2, strict=True))
    one_result = not context.output(1) and kind.dtype != "float64" and len(kernel_shape) in (1, 2)
    return one_result and is_narrow and set(window.dilation) == {1} and not (includes and any(window.ceil_mode_padding))


def _get_window_attrs(window: SpatialWindow) -> dict[str, Attr]:
    """Return kernel, strides, padding and dilation of a window as attributes of a graph operator."""
    return {"kernel": window.kernel, "strides": window.strides, "padding": window.padding, "dilation": window.dilation}


def _convert_general_max_pool(context: OpContext, kernel_shape: tuple[int, ...]) -> None:
    """Convert a MaxPool that ``max_pool2d`` cannot express, such as one with dilation or with indices of maxima."""
    attributes, data = context.operator.attributes, context.value(0)
    attrs = _get_window_attrs(
        read_spatial_window(context, kernel_shape, context.shape(0)[2:], attributes.flag("ceil_mode"))
    )
    if not context.output(1):
        context.result("window_max", (data,), attrs)
        return
    attrs["column_major"] = attributes.flag("storage_order")
    context.write_node_with_outputs("window_argmax", (data,), attrs, context.operator.outputs)


def _convert_general_average_pool(context: OpContext, kernel_shape: tuple[int, ...]) -> None:
    """Convert an AveragePool that ``avg_pool2d`` cannot express, to window sums divided by element counts.

    Windows that overlap padding contain fewer elements, so the constant counts differ by position."""
    attributes, data = context.operator.attributes, context.value(0)
    extents, kind = context.shape(0)[2:], context.type(data).dtype
    window = read_spatial_window(context, kernel_shape, extents, attributes.flag("ceil_mode"))
    total = context.emit("window_sum", (data,), _get_window_attrs(window))
    include = attributes.flag("count_include_pad")
    counts = np.ones((1,) * len(extents))
    for axis, extent in enumerate(extents):
        first = -window.padding_before[axis] if include else 0
        last = extent + (window.padding_after[axis] if include else 0)
        starts = np.arange(context.type(total).shape[2 + axis]) * window.strides[axis] - window.padding_before[axis]
        taps = starts[:, None] + np.arange(kernel_shape[axis]) * window.dilation[axis]
        elements = ((taps >= first) & (taps < last)).sum(1)
        counts = counts * elements.reshape(-1, *[1] * (len(extents) - axis - 1))
    # One number if all counts are the same.
    counts = counts[(slice(None, 1),) * counts.ndim] if (counts == counts.flat[0]).all() else counts
    divisor = context.new_constant(f"{context.output()}_counts", counts.astype(kind))
    context.result("div", (total, divisor))


def convert_lp_pool(context: OpContext) -> None:
    """Convert LpPool, the p-th root of the sum of |x| ** p over each window."""
    attributes, data = context.operator.attributes, context.value(0)
    kernel, kind = attributes.integers("kernel_shape"), context.type(context.value(0)).dtype
    p = float(attributes.integer("p", 2))
    window = read_spatial_window(context, kernel, context.shape(0)[2:], attributes.flag("ceil_mode"))
    magnitude = context.emit("abs", (data,))
    powers = context.emit("pow", (magnitude, context.scalar(p, kind)))
    total = context.emit("window_sum", (powers,), _get_window_attrs(window))
    context.result("pow", (total, context.scalar(1.0 / p, kind)))


def convert_global_lp_pool(context: OpContext) -> None:
    """Convert GlobalLpPool, the p-th root of the sum of |x| ** p over all spatial axes."""
    data, p = context.value(0), float(context.operator.attributes.integer("p", 2))
    kind = context.type(data)
    powers = context.emit("pow", (context.emit("abs", (data,)), context.scalar(p, kind.dtype)))
    total = context.emit("sum", (powers,), {"axes": tuple(range(2, len(kind.shape))), "keepdims": True})
    context.result("pow", (total, context.scalar(1.0 / p, kind.dtype)))


def convert_max_unpool(context: OpContext) -> None:
    """Convert MaxUnpool, which writes each element of the data to its index (input 1) in a tensor of zeros."""
    attributes, shape = context.operator.attributes, context.shape(0)
    kernel = attributes.integers("kernel_shape")
    rank = len(kernel)
    strides, pads = attributes.integers("strides", (1,) * rank), attributes.integers("pads", (0,) * 2 * rank)
    extents = [
        (e - 1) * s + k - pads[axis] - pads[axis + rank]
        for axis, (e, s, k) in enumerate(zip(shape[2:], strides, kernel, strict=True))
    ]
    full = (*shape[:2], *extents)
    wanted = context.integers(2) if context.has_input(2) else full
    kind = context.type(context.value(0)).dtype
    size, indices = int(np.prod(full)), context.value(1)
    zeros = context.emit("broadcast_to", (context.scalar(0.0, kind),), {"shape": (size,)})
    data, flat_indices = (context.reshape(value, (int(np.prod(shape)),)) for value in (context.value(0), indices))
    scattered = context.reshape(context.emit("scatter_elements", (zeros, flat_indices, data), {"axis": 0}), full)
    padding = tuple((0, goal - extent) for goal, extent in zip(wanted, full, strict=True))
    if any(after for _, after in padding):
        scattered = context.emit("pad", (scattered,), {"padding": padding, "value": 0.0})
    context.result_alias(scattered)


def convert_lrn(context: OpContext) -> None:
    """Convert LRN: x / (bias + alpha / size * sum of squares of the neighbouring channels) ** beta."""
    attributes, data = context.operator.attributes, context.value(0)
    shape, kind, size = context.shape(0), context.type(data).dtype, attributes.integer("size")
    before = (size - 1) // 2
    squares = context.emit("mul", (data, data))
    rows = context.reshape(squares, (1, shape[0], shape[1], int(np.prod(shape[2:]))))
    attrs: Mapping[str, Attr] = {
        "kernel": (size, 1),
        "strides": (1, 1),
        "padding": (before, 0, size - 1 - before, 0),
        "dilation": (1, 1),
    }
    total = context.reshape(context.emit("window_sum", (rows,), attrs), shape)
    factor = context.scalar(attributes.real("alpha", 1e-4) / size, kind)
    base = context.emit(
        "add", (context.emit("mul", (total, factor)), context.scalar(attributes.real("bias", 1.0), kind))
    )
    power = context.emit("pow", (base, context.scalar(attributes.real("beta", 0.75), kind)))
    context.result("div", (data, power))


def make_global_pool_converter(op: str) -> Converter:
    """Make a converter of GlobalAveragePool or GlobalMaxPool to the reduction ``op`` over the spatial axes."""

    def convert_global_pool(context: OpContext) -> None:
        data = context.value(0)
        rank = len(context.type(data).shape)
        if rank < 3:
            context.broken(f"got data of shape {context.type(data).shape}, expected at least three axes")
        context.result(op, (data,), {"axes": tuple(range(2, rank)), "keepdims": True})

    return Converter(convert_global_pool, FLOAT)


POOL_CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": make_pool_converter("avg_pool2d"),
    "GlobalAveragePool": make_global_pool_converter("mean"),
    "GlobalLpPool": Converter(convert_global_lp_pool),
    "GlobalMaxPool": make_global_pool_converter("max"),
    "LRN": Converter(convert_lrn),
    "LpPool": Converter(convert_lp_pool),
    "MaxPool": make_pool_converter("max_pool2d"),
    "MaxUnpool": Converter(convert_max_unpool),
}
