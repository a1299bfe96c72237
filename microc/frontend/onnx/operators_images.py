"""Conversion of ONNX operators that resize images or interpolate between elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc.base.dtypes import Array, is_float
from microc.base.immutable import frozen
from microc.frontend.onnx.context import MOVABLE, Converter, OpContext, StoredTensor
from microc.frontend.onnx.operators_windows import (
    read_constant_weights_and_bias,
    read_spatial_attribute,
    read_spatial_window,
    reshape_to_image,
)
from microc.graph.ir import Attr, Quant
from microc.ops.attributes import Rounding

# ---- Resize by any factor and mode: every result along an axis is a weighted sum of a few elements, listed in a table.
#
# Source: ONNX Resize, its definition's formulas for coordinates, coefficients and antialiasing.

MODES = ("nearest", "linear", "cubic")
_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@frozen
class ResizedAxis:
    """An axis that a Resize changes.

    ``scale``: output extent divided by input extent before rounding. ``roi_start``, ``roi_end``: bounds of the
    region of interest relative to the input extent; 0 and 1 for the whole axis."""

    axis: int
    input_extent: int
    output_extent: int
    scale: float
    roi_start: float
    roi_end: float


@frozen
class ResizeRule:
    """Attributes of a Resize that determine source positions and weights, under ONNX's names."""

    mode: str
    coordinate_transformation_mode: str
    nearest_mode: str
    cubic_coeff_a: float
    antialias: bool
    exclude_outside: bool

    @property
    def is_linear_interpolation(self) -> bool:
        """True if every result is interpolated between its two neighbours."""
        return self.mode == "linear" and not self.antialias and not self.exclude_outside


def write_resize(context: OpContext, resized_axes: Sequence[ResizedAxis]) -> None:
    """Write the operator's output: input 0 resized along ``resized_axes``."""
    attributes, data = context.operator.attributes, context.value(0)
    old = context.opset < 11
    rule = ResizeRule(
        attributes.text("mode", "nearest"),
        "asymmetric" if old else attributes.text("coordinate_transformation_mode", "half_pixel"),
        "floor" if old else attributes.text("nearest_mode", "round_prefer_floor"),
        attributes.real("cubic_coeff_a", -0.75),
        attributes.flag("antialias"),
        attributes.flag("exclude_outside"),
    )
    if (
        rule.mode not in MODES
        or rule.coordinate_transformation_mode not in _COORDINATES
        or rule.nearest_mode not in _ROUNDINGS
    ):
        context.broken(
            f"got mode {rule.mode!r}, coordinate_transformation_mode {rule.coordinate_transformation_mode!r} and nearest_mode "
            f"{rule.nearest_mode!r}, expected one of {', '.join(MODES)}; {', '.join(_COORDINATES)}; {', '.join(_ROUNDINGS)}"
        )
    kind = context.type(data)
    if rule.mode != "nearest" and not is_float(kind.dtype):
        context.refuse(f"mode {rule.mode!r} is not supported for {kind.dtype} data", "use mode nearest")
    positions = [compute_source_positions(rule, axis) for axis in resized_axes]
    tables = [
        compute_indices_and_weights(rule, axis, position)
        for axis, position in zip(resized_axes, positions, strict=True)
    ]
    attrs: Mapping[str, Attr] = {"axes": tuple(axis.axis for axis in resized_axes)}
    name = context.output()
    operands = [context.new_constant(f"{name}_indices", index) for index, _ in tables]
    if rule.mode != "nearest":
        operands += [context.new_constant(f"{name}_weights", w.astype(kind.dtype)) for _, w in tables]
    resized = context.emit("resample", (data, *operands), attrs) if resized_axes else data
    if rule.coordinate_transformation_mode == "tf_crop_and_resize":
        resized = _fill_outside_image(context, resized, resized_axes, positions)
    context.result_alias(resized)


def _fill_outside_image(
    context: OpContext,
    resized_name: str,
    resized_axes: Sequence[ResizedAxis],
    source_positions_by_axis: Sequence[Array],
) -> str:
    """Set results with a source position outside the image to ``extrapolation_value``; return the name of the value.

    ``source_positions_by_axis``: source position of each result, one array for each of ``resized_axes``."""
    for axis, position in zip(resized_axes, source_positions_by_axis, strict=True):
        outside = (position < 0) | (position > axis.input_extent - 1)
        if outside.any():
            kind = context.type(resized_name)
            mask = outside.reshape(-1, *[1] * (len(kind.shape) - axis.axis - 1))
            fill = context.scalar(context.operator.attributes.real("extrapolation_value", 0.0), kind.dtype)
            name = context.new_constant(f"{context.output()}_outside", mask)
            resized_name = context.emit("where", (name, fill, resized_name))
    return resized_name


def compute_source_positions(rule: ResizeRule, axis: ResizedAxis) -> Array:
    """Return the source position of each result along an axis, as an array of floats in units of input elements.

    Positions for modes nearest and linear are computed in float32 step by step, as ONNX Runtime does, because the
    choice of the nearest element and quantised results depend on the last bit. Cubic and antialiased positions are
    float64."""
    dtype = np.float32 if rule.is_linear_interpolation or rule.mode == "nearest" else np.float64

    def to_scalar_array(value: float) -> Array:
        """Return a number as an array of rank 0 in the dtype of the computation."""
        return np.asarray(value, dtype)

    y, half, scale, last = (
        np.arange(axis.output_extent).astype(dtype),
        to_scalar_array(0.5),
        to_scalar_array(axis.scale),
        to_scalar_array(axis.input_extent - 1),
    )
    width, first = scale * to_scalar_array(axis.input_extent), to_scalar_array(axis.roi_start) * last
    match rule.coordinate_transformation_mode:
        case "align_corners":
            return np.asarray(y * last / (width - 1) if width != 1 else y * 0)
        case "asymmetric":
            return np.asarray(y / scale)
        case "tf_crop_and_resize":
            span = to_scalar_array(axis.roi_end - axis.roi_start) * last
            return np.asarray(first + (y * 0 + span * half if width == 1 else y * span / (width - 1)))
        case "pytorch_half_pixel" if axis.output_extent == 1:
            return y
        case "half_pixel_symmetric":
            centre = to_scalar_array(axis.input_extent) * half * (1 - axis.output_extent / width)
            return np.asarray(centre + (y + half) / scale - half)
        case _:
            return np.asarray((y + half) / scale - half)


def compute_indices_and_weights(rule: ResizeRule, axis: ResizedAxis, source_positions: Array) -> tuple[Array, Array]:
    """Return indices of source elements and their weights, both of shape (results, taps), for one axis.

    Each result is the sum of its taps' source elements times their weights. ``source_positions``: as returned by
    :func:`compute_source_positions`."""
    if rule.is_linear_interpolation:
        return _compute_linear_indices_and_weights(axis, source_positions)
    # A position on an element counts as the right end of its interval, so that the ratio is in (0, 1].
    left = np.ceil(source_positions).astype(np.int64) - 1
    ratio = source_positions - left
    if rule.mode == "nearest":
        steps = {
            "round_prefer_floor": ratio > 0.5,
            "round_prefer_ceil": ratio >= 0.5,
            "floor": ratio == 1,
            "ceil": ratio > 0,
        }[rule.nearest_mode]
        indices, weights = (left + steps)[:, None], np.ones((axis.output_extent, 1))
    else:
        # Antialiasing stretches the kernel by the inverse of a scale below 1, so it has more taps.
        scale = min(axis.scale, 1.0) if rule.antialias else 1.0
        reach = 2 if rule.mode == "cubic" else 1
        first = math.floor(-reach / scale) + 1
        offsets = np.arange(first, 2 - first)
        indices = left[:, None] + offsets
        weights = _compute_kernel_weights(rule, np.abs((offsets - ratio[:, None]) * scale))
        weights = weights / weights.sum(1, keepdims=True)
    if rule.exclude_outside:
        weights = np.where((indices >= 0) & (indices < axis.input_extent), weights, 0)
        weights = weights / weights.sum(1, keepdims=True)
    return _clamp_indices(axis, indices), weights


def _compute_linear_indices_and_weights(axis: ResizedAxis, source_positions: Array) -> tuple[Array, Array]:
    """Return indices and weights, both of shape (results, 2), of the two neighbours of each source position.

    At or after the last element both neighbours are that element, with weight 0.5 each."""
    inside = np.clip(source_positions, 0, axis.input_extent - 1)
    left = np.floor(inside).astype(np.int64)
    right = np.minimum(left + 1, axis.input_extent - 1)
    weights = np.stack([right - inside, inside - left], 1).astype(source_positions.dtype)
    weights[left == right] = 0.5
    return _clamp_indices(axis, np.stack([left, right], 1)), weights


def _clamp_indices(axis: ResizedAxis, element_indices: Array) -> Array:
    """Clamp indices to the extent of ``axis``; return int16 if it has fewer than 2 ** 15 elements, else int32."""
    return np.clip(element_indices, 0, axis.input_extent - 1).astype(
        np.int16 if axis.input_extent < 1 << 15 else np.int32
    )


def _compute_kernel_weights(rule: ResizeRule, tap_distances: Array) -> Array:
    """Return the weights of elements at ``tap_distances`` from the source position, in elements.

    Mode linear has a triangle as kernel, mode cubic has Keys' cubic convolution kernel."""
    if rule.mode == "linear":
        return np.asarray(np.clip(1 - tap_distances, 0, 1))
    a = rule.cubic_coeff_a
    near = ((a + 2) * tap_distances - (a + 3)) * tap_distances * tap_distances + 1
    far = ((a * tap_distances - 5 * a) * tap_distances + 8 * a) * tap_distances - 4 * a
    return np.asarray(np.where(tap_distances <= 1, near, np.where(tap_distances < 2, far, 0)))


def read_resized_axes(context: OpContext) -> tuple[ResizedAxis, ...]:
    """Return the axes that a Resize or Upsample changes, in ascending order.

    The file has scales or sizes, for all axes or only for the axes in the attribute ``axes``."""
    attributes, shape = context.operator.attributes, context.shape(0)
    axes = context.normalize_axes(attributes.integers("axes", tuple(range(len(shape)))), len(shape))
    # Before opset 11, and in Upsample, there is no roi input in front of the scales.
    scales_position = 1 if context.opset < 11 or context.operator.op_type == "Upsample" else 2
    extents = [shape[axis] for axis in axes]
    if context.opset < 9 and context.operator.op_type == "Upsample":
        scales, sizes = list(attributes.reals("scales")), None
    elif context.has_input(scales_position) and context.constant(scales_position).size:
        scales, sizes = [float(s) for s in context.constant(scales_position).reshape(-1)], None
    else:
        sizes = [int(s) for s in context.constant(3).reshape(-1)]
        scales = [size / extent for size, extent in zip(sizes, extents, strict=False)]
        policy = attributes.text("keep_aspect_ratio_policy", "stretch")
        # The definition rounds sizes half up when it keeps the aspect ratio.
        if policy != "stretch":
            common = min(scales) if policy == "not_larger" else max(scales)
            scales = [common] * len(scales)
            sizes = [math.floor(common * extent + 0.5) for extent in extents]
    # The bound of scales keeps the size of the tables, and so the work of the reader, small.
    if {len(scales), len(sizes or scales)} != {len(axes)} or any(not 0 < s < 1 << 12 for s in scales):
        context.broken(
            f"got {len(sizes or scales)} sizes and scales {tuple(scales)} for shape {shape}, expected {len(axes)} of each, "
            f"scales above 0 and below {1 << 12}"
        )
    result_sizes = sizes or [math.floor(s * e) for s, e in zip(scales, extents, strict=True)]
    crops = attributes.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    roi = [float(r) for r in context.constant(1).reshape(-1)] if crops else [0.0] * len(axes) + [1.0] * len(axes)
    if len(roi) != 2 * len(axes) or min(result_sizes) < 1:
        context.broken(
            f"got sizes {tuple(result_sizes)} and roi {tuple(roi)} for shape {shape}, expected sizes of at least 1 and "
            f"{2 * len(axes)} numbers in roi"
        )
    all_axes = [
        ResizedAxis(axis, extent, size, scale, roi[k], roi[len(axes) + k])
        for k, (axis, extent, size, scale) in enumerate(zip(axes, extents, result_sizes, scales, strict=True))
    ]
    # An axis of the same extent still changes if its scale differs from 1 (sizes are rounded down) or only a region is taken.
    changed_axes = (
        a for a in all_axes if (a.output_extent, a.scale, a.roi_start, a.roi_end) != (a.input_extent, 1.0, 0.0, 1.0)
    )
    return tuple(sorted(changed_axes, key=lambda a: a.axis))


# ---- Converters of operators that sample between elements: GridSample, RoiAlign, DeformConv.


def convert_grid_sample(context: OpContext) -> None:
    """Convert GridSample, which interpolates data at the positions of a grid."""
    attributes, shape, grid = context.operator.attributes, context.shape(0), context.shape(1)
    if len(grid) != len(shape):
        context.broken(f"got grid of shape {grid} and data of shape {shape}, expected equal numbers of axes")
    attrs: Mapping[str, Attr] = {
        "mode": attributes.text("mode", "linear").removeprefix("bi"),
        "border": attributes.text("padding_mode", "zeros").replace("border", "edge"),
        "coordinates": "corners" if attributes.flag("align_corners") else "edges",
    }
    context.result("grid_sample", (context.value(0), context.operand(1)), attrs)


def convert_roi_align(context: OpContext) -> None:
    """Convert RoiAlign with a fixed number of samples for each output element."""
    attributes = context.operator.attributes
    default = "half_pixel" if context.opset >= 16 else "output_half_pixel"
    coordinates = attributes.text("coordinate_transformation_mode", default)
    samples = attributes.integer("sampling_ratio", 0)
    if coordinates not in ("half_pixel", "output_half_pixel"):
        context.broken(
            f"coordinate_transformation_mode is {coordinates!r}, expected 'half_pixel' or 'output_half_pixel'"
        )
    if samples < 1:
        hint = "export the layer with a sampling_ratio, 2 for instance"
        context.refuse("sampling_ratio is 0 (adaptive), expected a fixed number of samples", hint)
    attrs: Mapping[str, Attr] = {
        "mode": attributes.text("mode", "avg"),
        "half_pixel": coordinates == "half_pixel",
        "size": (attributes.integer("output_height", 1), attributes.integer("output_width", 1)),
        "samples": samples,
        "scale": attributes.real("spatial_scale", 1.0),
    }
    context.result("roi_align", (context.value(0), context.operand(1), context.value(2)), attrs)


def convert_deform_conv(context: OpContext) -> None:
    """Convert DeformConv to a ``grid_sample`` at the displaced positions of all kernel taps, a mask, and a
    ``matmul``."""
    attributes, shape = context.operator.attributes, context.shape(0)
    outputs, inputs, *kernel = context.shape(1)
    groups, parts = attributes.integer("group", 1), attributes.integer("offset_group", 1)
    rank, taps = len(kernel), prod(kernel)
    if rank < 1 or len(shape) != rank + 2 or attributes.integers("kernel_shape", tuple(kernel)) != tuple(kernel):
        expected = "(N, C, spatial axes), (O, C / group, kernel_shape)"
        context.broken(f"data and weights: got shapes {shape} and {context.shape(1)}, expected {expected}")
    if min(groups, parts) < 1 or inputs * groups != shape[1] or outputs % groups or shape[1] % parts:
        expected = f"divisors of the {shape[1]} input channels, group also of the {outputs} output channels"
        context.broken(
            f"got group {groups} (weights of {inputs} channels) and offset_group {parts}, expected {expected}"
        )
    base, size = _compute_tap_positions_and_output_extents(context, tuple(kernel))
    pixels, images = prod(size), shape[0] * parts
    if context.shape(2) != (shape[0], parts * taps * rank, *size):
        expected = str((shape[0], parts * taps * rank, *size))
        context.broken(f"offsets: got shape {context.shape(2)}, expected {expected}")
    moves = context.reshape(context.operand(2), (images, taps, rank, pixels))
    moves = context.emit("transpose", (moves,), {"axes": (0, 1, 3, 2)})
    moves = context.reshape(moves, (images, taps * pixels, rank))
    grid = context.new_constant(f"{context.output()}_taps", base.astype(context.type(moves).dtype))
    sample_positions = context.emit("add", (moves, grid))
    data = context.reshape(context.value(0), (images, shape[1] // parts, *shape[2:]))
    attrs: Mapping[str, Attr] = {"mode": "linear", "border": "zeros", "coordinates": "elements"}
    sampled = context.emit("grid_sample", (data, sample_positions), attrs)
    if context.has_input(4):
        mask = context.reshape(context.operand(4), (images, 1, taps * pixels))
        sampled = context.emit("mul", (sampled, mask))
    columns = context.reshape(sampled, (shape[0], groups, inputs * taps, pixels))
    matrix = context.reshape(context.operand(1), (1, groups, outputs // groups, inputs * taps))
    product = context.emit("matmul", (matrix, columns))
    summed = context.reshape(product, (shape[0], outputs, *size))
    if context.has_input(3):
        summed = context.emit("add", (summed, context.reshape(context.operand(3), (outputs, *(1,) * rank))))
    context.result_alias(summed)


def _compute_tap_positions_and_output_extents(
    context: OpContext, kernel_shape: tuple[int, ...]
) -> tuple[Array, tuple[int, ...]]:
    """Return the source positions of all kernel taps for all output pixels, and the output's spatial extents.

    The positions do not include DeformConv's offsets. They have shape (1, taps * pixels, spatial axes)."""
    extents = context.shape(0)[2:]
    window = read_spatial_window(context, kernel_shape, extents, ceil_mode=False)
    rank, axes, size = len(extents), [], []
    for k, extent in enumerate(extents):
        last_start = (
            extent + window.padding_before[k] + window.padding_after[k] - (kernel_shape[k] - 1) * window.dilation[k] - 1
        )
        size.append(last_start // window.strides[k] + 1)
        taps, pixels = np.arange(kernel_shape[k]) * window.dilation[k], np.arange(size[k]) * window.strides[k]
        # Axis k of the grid has its taps at dimension k and its pixels at dimension rank + k.
        shape = np.ones(2 * rank, int)
        shape[[k, rank + k]] = taps.size, pixels.size
        axes.append((taps[:, None] + pixels - window.padding_before[k]).reshape(shape))
    return np.stack(np.broadcast_arrays(*axes), axis=-1).reshape(1, -1, rank), tuple(size)


SAMPLING_CONVERTERS: Mapping[str, Converter] = {
    "DeformConv": Converter(convert_deform_conv),
    "GridSample": Converter(convert_grid_sample),
    "RoiAlign": Converter(convert_roi_align),
}


# ---- Converters of operators that enlarge images: ConvTranspose and Resize.


def convert_conv_transpose(context: OpContext) -> None:
    """Convert ConvTranspose to ``conv2d_transpose`` or ``convolution_transpose``.

    ``conv2d_transpose`` is for float32 data of one or two spatial axes with constant weights and bias."""
    attrs, shape = _read_transposed_convolution_attributes(context), context.shape(0)
    has_constant = [
        context.builder.get_stored_constant(context.value(k)) is not None for k in (1, 2) if context.has_input(k)
    ]
    is_plain = context.type(context.value(0)).dtype == "float32" and len(shape) in (3, 4)
    if not is_plain or not all(has_constant):
        operands = [context.operand(k) for k in range(3) if context.has_input(k)]
        context.result("convolution_transpose", operands, attrs)
        return
    weight, bias = read_constant_weights_and_bias(context, 1, 2)
    name = context.output()
    image = context.emit("transpose", (reshape_to_image(context, context.value(0)),), {"axes": (0, 2, 3, 1)})
    operands = [
        image,
        context.add_stored_tensor(
            f"{name}_weight", _reorder_weights_channels_last(context, weight, int(attrs["groups"]))
        ),
    ]
    if bias is not None:
        operands.append(context.add_stored_tensor(f"{name}_bias", bias))
    if len(shape) == 3:
        (stride,), (step,), (before, after) = attrs["strides"], attrs["dilation"], attrs["padding"]
        attrs = {**attrs, "strides": (1, stride), "dilation": (1, step), "padding": (0, before, 0, after)}
    upsampled = context.emit("conv2d_transpose", operands, {**attrs, "rounding": Rounding.EVEN})
    upsampled = context.emit("transpose", (upsampled,), {"axes": (0, 3, 1, 2)})
    batch, channels, _, width = context.type(upsampled).shape
    context.result_alias(upsampled if len(shape) == 4 else context.reshape(upsampled, (batch, channels, width)))


def _reorder_weights_channels_last(context: OpContext, weight: StoredTensor, group_count: int) -> StoredTensor:
    """Reorder the weights of a ConvTranspose from (C, O / groups, [H,] W) to (O, H, W, C / groups).

    C is the number of input channels, O that of output channels."""
    inputs, outputs_per_group, *kernel = weight.data.shape
    split = weight.data.reshape(
        group_count, inputs // group_count, outputs_per_group, *[1] * (2 - len(kernel)), *kernel
    )
    moved = np.ascontiguousarray(split.transpose(0, 2, 3, 4, 1))
    quant = weight.quant
    if quant is not None and quant.axis is not None:
        if quant.axis != 1:
            context.refuse(
                f"the weights are quantised along axis {quant.axis}, expected axis 1",
                "quantise them along axis 1, the output channels",
            )
        # Scales are those of one group's output channels; our tensor lists the output channels of all groups.
        quant = Quant(quant.scale * group_count, quant.zero_point * group_count, 0)
    return StoredTensor(moved.reshape(-1, *moved.shape[2:]), quant)


def _read_transposed_convolution_attributes(context: OpContext) -> Mapping[str, Any]:
    """Return strides, padding, dilation and groups of a ConvTranspose over any number of axes.

    Attribute ``output_padding`` is subtracted from the padding at the end."""
    attributes, extents, kernel = context.operator.attributes, context.shape(0)[2:], context.shape(1)[2:]
    rank, groups = len(extents), attributes.integer("group", 1)
    if len(kernel) != rank or 0 in context.shape(1) or attributes.integers("kernel_shape", kernel)[-rank:] != kernel:
        context.broken(
            f"got weights of shape {context.shape(1)} for data of shape {context.shape(0)}, expected equal numbers of "
            "axes, and kernel_shape equal to the spatial extents of the weights"
        )
    if groups < 1 or context.shape(1)[0] != context.shape(0)[1] or context.shape(0)[1] % groups:
        channels = context.shape(0)[1]
        expected = f"{channels} rows of weights and a group that divides them"
        context.broken(f"got group {groups} and weights of shape {context.shape(1)}, expected {expected}")
    strides, dilation = (read_spatial_attribute(context, name, (1,) * rank, 1) for name in ("strides", "dilations"))
    growth = read_spatial_attribute(context, "output_padding", (0,) * rank, 0)
    pads = read_spatial_attribute(context, "pads", (0,) * 2 * rank, 0)
    axes = list(zip(extents, strides, kernel, dilation, strict=True))
    sizes = [(e - 1) * s + (k - 1) * d + 1 for e, s, k, d in axes]
    mode, wanted = attributes.text("auto_pad", "NOTSET"), attributes.integers("output_shape", ())[-rank:]
    if len(wanted) not in (0, rank) or mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        context.broken(
            f"got output_shape {wanted} and auto_pad {mode!r}, expected {rank} extents or none, and NOTSET, VALID, "
            "SAME_UPPER or SAME_LOWER"
        )
    pads = pads if mode == "NOTSET" else (0,) * 2 * rank
    before, after = list(pads[:rank]), list(pads[rank:])
    if mode in ("SAME_UPPER", "SAME_LOWER") and not wanted:
        wanted = tuple(e * s for e, s in zip(extents, strides, strict=True))
    for k, (size, more) in enumerate(zip(sizes, growth, strict=True)):
        if wanted:
            total = size + more - wanted[k]
            begin_share = total // 2
            before[k] = begin_share if mode == "SAME_UPPER" else total - begin_share
            after[k] = total - before[k] - more
        else:
            after[k] -= more
    padding = (*before, *after)
    return {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}


def convert_resize(context: OpContext) -> None:
    """Convert Resize or Upsample. Each result is a single source element or a weighted sum of a few."""
    write_resize(context, read_resized_axes(context))


UPSAMPLE_CONVERTERS: Mapping[str, Converter] = {
    "ConvTranspose": Converter(convert_conv_transpose),
    "Resize": Converter(convert_resize, MOVABLE),
    "Upsample": Converter(convert_resize, MOVABLE),
}
