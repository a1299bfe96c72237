# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX operators that resize images or interpolate between elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any, Literal

import numpy as np

from microc.base.dtypes import Array, is_float
from microc.base.immutable import frozen
from microc.frontend.model_limits import check_shape
from microc.frontend.onnx.builder import StoredTensor
from microc.frontend.onnx.context import MOVABLE, ConverterTable, OpContext
from microc.frontend.onnx.operators.windows import (
    ConvolutionAttributes,
    check_spatial_attribute,
    make_spatial_window,
    reshape_to_image,
)
from microc.frontend.signature import AttributeBefore, Axes, DefaultBefore, Floats, Ints, SameDtype, Value
from microc.graph.ir import Attr, Quant
from microc.ops.attributes import Rounding

CONVERTERS = ConverterTable()

# ---- Resize by any factor and mode: every result along an axis is a weighted sum of a few elements, listed in a table.
#
# Source: ONNX Resize, its definition's formulas for coordinates, coefficients and antialiasing.

ResizeMode = Literal["nearest", "linear", "cubic"]
Coordinates = Literal[
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
]
NearestMode = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


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

    mode: ResizeMode = "nearest"
    coordinate_transformation_mode: Annotated[Coordinates, DefaultBefore(11, "asymmetric")] = "half_pixel"
    nearest_mode: Annotated[NearestMode, DefaultBefore(11, "floor")] = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False

    @property
    def is_linear_interpolation(self) -> bool:
        """True if every result is interpolated between its two neighbours."""
        return self.mode == "linear" and not self.antialias and not self.exclude_outside


def _write_resize(
    context: OpContext,
    x: Value,
    rule: ResizeRule,
    resized_axes: Sequence[ResizedAxis],
    extrapolation_value: float = 0.0,
) -> None:
    """Write the operator's output: ``x`` resized along ``resized_axes``.

    ``extrapolation_value``: results with a source position outside the image, in mode ``tf_crop_and_resize``."""
    if rule.mode != "nearest" and not is_float(x.dtype):
        context.refuse(f"mode {rule.mode!r} is not supported for {x.dtype} data", "use mode nearest")
    for axis in resized_axes if rule.antialias else ():  # its cubic kernels have 4 taps for each element of the input
        check_shape((axis.output_extent + axis.input_extent, 8), "float64", context.where)
    positions = [compute_source_positions(rule, axis) for axis in resized_axes]
    tables = [
        compute_indices_and_weights(rule, axis, position)
        for axis, position in zip(resized_axes, positions, strict=True)
    ]
    attrs: Mapping[str, Attr] = {"axes": tuple(axis.axis for axis in resized_axes)}
    name = context.output()
    operands = [context.new_constant(f"{name}_indices", index) for index, _ in tables]
    if rule.mode != "nearest":
        operands += [context.new_constant(f"{name}_weights", w.astype(x.dtype)) for _, w in tables]
    resized = context.emit("resample", (x, *operands), attrs) if resized_axes else x
    if rule.coordinate_transformation_mode == "tf_crop_and_resize":
        resized = _fill_outside_image(context, resized, resized_axes, positions, extrapolation_value)
    context.result_alias(resized)


def _fill_outside_image(
    context: OpContext,
    resized: Value,
    resized_axes: Sequence[ResizedAxis],
    source_positions_by_axis: Sequence[Array],
    extrapolation_value: float,
) -> Value:
    """Set results with a source position outside the image to ``extrapolation_value``; return the value.

    ``source_positions_by_axis``: source position of each result, one array for each of ``resized_axes``."""
    for axis, position in zip(resized_axes, source_positions_by_axis, strict=True):
        outside = (position < 0) | (position > axis.input_extent - 1)
        if outside.any():
            mask = outside.reshape(-1, *[1] * (resized.rank - axis.axis - 1))
            fill = context.scalar(extrapolation_value, resized.dtype)
            name = context.new_constant(f"{context.output()}_outside", mask)
            resized = context.emit("where", (name, fill, resized))
    return resized


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


@CONVERTERS.register("Upsample", dtypes=MOVABLE)
def convert_upsample(
    context: OpContext,
    x: Value,
    scales: Annotated[Floats, AttributeBefore(9)],
    *,
    mode: Literal["nearest", "linear"] = "nearest",
) -> None:
    """Convert Upsample, the form that Resize had before opset 10."""
    axes = tuple(range(x.rank))
    _check_scales(context, x, axes, scales, None)
    resized_axes = _find_resized_axes(context, x, axes, scales, None, (0.0,) * x.rank + (1.0,) * x.rank)
    _write_resize(context, x, ResizeRule(mode, "asymmetric", "floor"), resized_axes)


@CONVERTERS.register("Resize", dtypes=MOVABLE)
def convert_resize(
    context: OpContext,
    x: Value,
    roi: Value | None,
    scales: Floats | None,
    sizes: Ints | None,
    *,
    axes: Axes | None = None,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: Literal["stretch", "not_larger", "not_smaller"] = "stretch",
    rule: ResizeRule,
) -> None:
    """Convert Resize. Each result is a single source element or a weighted sum of a few.

    The file has scales or sizes, for all axes or only for the axes in the attribute ``axes``. Before opset 11 there is
    no roi input in front of the scales."""
    axes = tuple(range(x.rank)) if axes is None else axes
    if not axes:
        context.broken("axes: got (), expected at least one axis")
    scales = context.reals(1) if context.opset < 11 else scales
    if scales:
        sizes = None
    else:
        sizes = context.integers(3)
        extents = [x.shape[axis] for axis in axes]
        scales = tuple(size / extent for size, extent in zip(sizes, extents, strict=False))
        # The definition rounds sizes half up when it keeps the aspect ratio.
        if keep_aspect_ratio_policy != "stretch":
            common = min(scales) if keep_aspect_ratio_policy == "not_larger" else max(scales)
            scales = (common,) * len(scales)
            sizes = tuple(math.floor(common * extent + 0.5) for extent in extents)
    _check_scales(context, x, axes, scales, sizes)
    crops = rule.coordinate_transformation_mode == "tf_crop_and_resize"
    region = context.reals(1) if crops else (0.0,) * len(axes) + (1.0,) * len(axes)
    resized_axes = _find_resized_axes(context, x, axes, scales, sizes, region)
    _write_resize(context, x, rule, resized_axes, extrapolation_value)


def _check_scales(context: OpContext, x: Value, axes: Ints, scales: Floats, sizes: Ints | None) -> None:
    """Raise ModelError unless there is a positive scale, and a size if any, for each of ``axes``."""
    # The bound of scales keeps the size of the tables, and so the work of the reader, small.
    if {len(scales), len(sizes or scales)} != {len(axes)} or any(not 0 < s < 1 << 12 for s in scales):
        context.broken(
            f"got {len(sizes or scales)} sizes and scales {scales} for shape {x.shape}, expected {len(axes)} of each, "
            f"scales above 0 and below {1 << 12}"
        )


def _find_resized_axes(
    context: OpContext, x: Value, axes: Ints, scales: Floats, sizes: Ints | None, roi: Floats
) -> tuple[ResizedAxis, ...]:
    """Return the axes that a Resize or Upsample changes, in ascending order.

    ``axes``: axes to which ``scales`` and ``sizes`` belong. ``roi``: start of the region of interest for each of them,
    then its end."""
    extents = [x.shape[axis] for axis in axes]
    result_sizes = sizes or tuple(math.floor(s * e) for s, e in zip(scales, extents, strict=True))
    if len(roi) != 2 * len(axes) or min(result_sizes) < 1:
        context.broken(
            f"got sizes {result_sizes} and roi {roi} for shape {x.shape}, expected sizes of at least 1 and "
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


@CONVERTERS.register("GridSample")
def convert_grid_sample(
    context: OpContext,
    x: Value,
    grid: SameDtype,
    *,
    align_corners: bool = False,
    mode: Annotated[
        Literal["linear", "nearest", "cubic", "bilinear", "bicubic"], DefaultBefore(20, "bilinear")
    ] = "linear",
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
) -> None:
    """Convert GridSample, which interpolates data at the positions of a grid."""
    if grid.rank != x.rank:
        context.broken(f"got grid of shape {grid.shape} and data of shape {x.shape}, expected equal numbers of axes")
    attrs: Mapping[str, Attr] = {
        "mode": mode.removeprefix("bi"),
        "border": padding_mode.replace("border", "edge"),
        "coordinates": "corners" if align_corners else "edges",
    }
    context.result("grid_sample", (x, grid), attrs)


@CONVERTERS.register("RoiAlign")
def convert_roi_align(
    context: OpContext,
    x: Value,
    rois: SameDtype,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: Annotated[
        Literal["half_pixel", "output_half_pixel"], DefaultBefore(16, "output_half_pixel")
    ] = "half_pixel",
    mode: Literal["avg", "max"] = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> None:
    """Convert RoiAlign with a fixed number of samples for each output element."""
    if sampling_ratio < 1:
        hint = "export the layer with a sampling_ratio, 2 for instance"
        context.refuse("sampling_ratio is 0 (adaptive), expected a fixed number of samples", hint)
    attrs: Mapping[str, Attr] = {
        "mode": mode,
        "half_pixel": coordinate_transformation_mode == "half_pixel",
        "size": (output_height, output_width),
        "samples": sampling_ratio,
        "scale": spatial_scale,
    }
    context.result("roi_align", (x, rois, batch_indices), attrs)


@CONVERTERS.register("DeformConv")
def convert_deform_conv(
    context: OpContext,
    x: Value,
    w: SameDtype,
    offset: SameDtype,
    b: SameDtype | None,
    mask: SameDtype | None,
    *,
    offset_group: int = 1,
    attributes: ConvolutionAttributes,
) -> None:
    """Convert DeformConv to a ``grid_sample`` at the displaced positions of all kernel taps, a mask, and a
    ``matmul``."""
    outputs, inputs, *kernel = w.shape
    group = attributes.group
    rank, taps = len(kernel), prod(kernel)
    if rank < 1 or x.rank != rank + 2 or (attributes.kernel_shape or tuple(kernel)) != tuple(kernel):
        expected = "(N, C, spatial axes), (O, C / group, kernel_shape)"
        context.broken(f"data and weights: got shapes {x.shape} and {w.shape}, expected {expected}")
    if min(group, offset_group) < 1 or inputs * group != x.shape[1] or outputs % group or x.shape[1] % offset_group:
        expected = f"divisors of the {x.shape[1]} input channels, group also of the {outputs} output channels"
        got = f"group {group} (weights of {inputs} channels) and offset_group {offset_group}"
        context.broken(f"got {got}, expected {expected}")
    base, size = _compute_tap_positions_and_output_extents(context, x, attributes, tuple(kernel))
    pixels, images = prod(size), x.shape[0] * offset_group
    offset_shape = (x.shape[0], offset_group * taps * rank, *size)
    if offset.shape != offset_shape:
        context.broken(f"offsets: got shape {offset.shape}, expected {offset_shape}")
    moves = context.reshape(offset, (images, taps, rank, pixels))
    moves = context.emit("transpose", (moves,), {"axes": (0, 1, 3, 2)})
    moves = context.reshape(moves, (images, taps * pixels, rank))
    grid = context.new_constant(f"{context.output()}_taps", base.astype(moves.dtype))
    sample_positions = context.emit("add", (moves, grid))
    data = context.reshape(x, (images, x.shape[1] // offset_group, *x.shape[2:]))
    attrs: Mapping[str, Attr] = {"mode": "linear", "border": "zeros", "coordinates": "elements"}
    sampled = context.emit("grid_sample", (data, sample_positions), attrs)
    if mask is not None:
        sampled = context.emit("mul", (sampled, context.reshape(mask, (images, 1, taps * pixels))))
    columns = context.reshape(sampled, (x.shape[0], group, inputs * taps, pixels))
    matrix = context.reshape(w, (1, group, outputs // group, inputs * taps))
    product = context.emit("matmul", (matrix, columns))
    summed = context.reshape(product, (x.shape[0], outputs, *size))
    if b is not None:
        summed = context.emit("add", (summed, context.reshape(b, (outputs, *(1,) * rank))))
    context.result_alias(summed)


def _compute_tap_positions_and_output_extents(
    context: OpContext, x: Value, attributes: ConvolutionAttributes, kernel_shape: Ints
) -> tuple[Array, Ints]:
    """Return the source positions of all kernel taps for all output pixels, and the output's spatial extents.

    The positions do not include DeformConv's offsets. They have shape (1, taps * pixels, spatial axes)."""
    extents = x.shape[2:]
    window = make_spatial_window(context, attributes, kernel_shape, extents)
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


# ---- Converter of ConvTranspose.


@CONVERTERS.register("ConvTranspose")
def convert_conv_transpose(
    context: OpContext,
    x: Value,
    w: SameDtype,
    b: SameDtype | None,
    *,
    output_padding: Ints = (),
    output_shape: Ints = (),
    attributes: ConvolutionAttributes,
) -> None:
    """Convert ConvTranspose to ``conv2d_transpose`` or ``convolution_transpose``.

    ``conv2d_transpose`` is for float32 data of one or two spatial axes with constant weights and bias."""
    attrs = _get_transposed_convolution_attrs(context, x, w, attributes, output_padding, output_shape)
    weight, bias = context.find_stored_tensor(w), None if b is None else context.find_stored_tensor(b)
    is_plain = x.dtype == "float32" and x.rank in (3, 4)
    if not is_plain or weight is None or (b is not None and bias is None):
        context.result("convolution_transpose", (x, w) if b is None else (x, w, b), attrs)
        return
    name = context.output()
    image = context.emit("transpose", (reshape_to_image(context, x),), {"axes": (0, 2, 3, 1)})
    reordered = _reorder_weights_channels_last(context, weight, attributes.group)
    operands = [image, context.add_stored_tensor(f"{name}_weight", reordered)]
    if bias is not None:
        operands.append(context.add_stored_tensor(f"{name}_bias", bias))
    if x.rank == 3:
        (stride,), (step,), (before, after) = attrs["strides"], attrs["dilation"], attrs["padding"]
        attrs = {**attrs, "strides": (1, stride), "dilation": (1, step), "padding": (0, before, 0, after)}
    upsampled = context.emit("conv2d_transpose", operands, {**attrs, "rounding": Rounding.EVEN})
    upsampled = context.emit("transpose", (upsampled,), {"axes": (0, 3, 1, 2)})
    batch, channels, _, width = upsampled.shape
    context.result_alias(upsampled if x.rank == 4 else context.reshape(upsampled, (batch, channels, width)))


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


def _get_transposed_convolution_attrs(
    context: OpContext, x: Value, w: Value, attributes: ConvolutionAttributes, output_padding: Ints, output_shape: Ints
) -> Mapping[str, Any]:
    """Return strides, padding, dilation and groups of a ConvTranspose over any number of axes.

    ``output_padding`` is subtracted from the padding at the end."""
    extents, kernel, channels = x.shape[2:], w.shape[2:], x.shape[1]
    rank, groups = len(extents), attributes.group
    if len(kernel) != rank or 0 in w.shape or (attributes.kernel_shape or kernel)[-rank:] != kernel:
        context.broken(
            f"got weights of shape {w.shape} for data of shape {x.shape}, expected equal numbers of "
            "axes, and kernel_shape equal to the spatial extents of the weights"
        )
    if groups < 1 or w.shape[0] != channels or channels % groups:
        expected = f"{channels} rows of weights and a group that divides them"
        context.broken(f"got group {groups} and weights of shape {w.shape}, expected {expected}")
    strides = check_spatial_attribute(context, "strides", attributes.strides, (1,) * rank, 1)
    dilation = check_spatial_attribute(context, "dilations", attributes.dilations, (1,) * rank, 1)
    growth = check_spatial_attribute(context, "output_padding", output_padding, (0,) * rank, 0)
    pads = check_spatial_attribute(context, "pads", attributes.pads, (0,) * 2 * rank, 0)
    sizes = [(e - 1) * s + (k - 1) * d + 1 for e, s, k, d in zip(extents, strides, kernel, dilation, strict=True)]
    mode, wanted = attributes.auto_pad, output_shape[-rank:]
    if len(wanted) not in (0, rank):
        context.broken(f"output_shape is {wanted}, expected {rank} extents or none")
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
    return {"strides": strides, "padding": (*before, *after), "dilation": dilation, "groups": groups}
