# SPDX-License-Identifier: Apache-2.0
"""Operator ``conv2d_transpose``: every input pixel adds the kernel, multiplied by the pixel, to the output; the adjoint
of ``conv2d``.

Along one axis y[t] = sum over x of w[t + before - stride x] data[x]. With t = stride q + p this is, for every phase p,
a convolution over q with the taps p, p + stride, ... in reverse. So with constant weights it is one ``conv2d`` whose
channels are the phases of a stride-sized block of pixels, followed by a transposition of blocks to pixels. Sums and
scaling are those of ``conv2d``.

Data is NHWC, weights are OHWI with the input channels of one group. ``padding`` (top, left, bottom, right) is cropped
from the full result of (extent - 1) * stride + reach rows; a negative bottom or right adds rows that contain only the
bias.

Sources: TFLite ``reference/transpose_conv.h``; ONNX ConvTranspose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.ops.arithmetic import Rewrite, constant_data, is_quantised, split_activation
from microc.ops.attributes import ACTIVATED, DYNAMIC, Attributes, default_attributes, element_type
from microc.ops.convolution.geometry import DEFAULTS as CONVOLUTION
from microc.ops.convolution.geometry import WINDOWS
from microc.ops.gradients.rules import build_conv2d_transpose_gradients
from microc.ops.registry import Case, Legalized, OpCall, OpDef, map_batch_axis
from microc.ops.windows import (
    Product,
    WindowAxis,
    Windows,
    build_transposed_taps,
    evaluate_product,
    transposed_window_axes,
)
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC

ATTRS: Attributes = {
    **WINDOWS,
    **ACTIVATED,
    "out_dtype": element_type("dtype of the sums; empty: that of the data", ""),
    "dynamic": DYNAMIC,
}
DEFAULTS = default_attributes(ATTRS)


@frozen
class _Phases:
    """Phases of a transposed convolution along height or width. A phase is a position in the result modulo the stride.

    ``window``: windows on the result, one for each element of the data."""

    window: WindowAxis

    @property
    def zero_taps_at_start(self) -> int:
        """Number of zero taps added at the start of the kernel, so that the number of rows cropped before the
        result becomes a multiple of the stride.

        It is 0 if these zeros would add a tap to every phase."""
        stride, taps = self.window.stride, self.window.span
        wanted = -self.window.before % stride
        return wanted if -(-(taps + wanted) // stride) == -(-taps // stride) else 0

    @property
    def taps_per_phase(self) -> int:
        """Number of kernel taps in each phase."""
        return -(-(self.window.span + self.zero_taps_at_start) // self.window.stride)

    @property
    def first_block_crop(self) -> int:
        """Number of rows to crop from the first block of ``stride`` rows, because they precede the result."""
        return (self.window.before + self.zero_taps_at_start) % self.window.stride

    @property
    def padding(self) -> tuple[int, int]:
        """Padding of the equivalent convolution, at the start and at the end. A negative number means no padding; as
        many rows of blocks are cropped from the result instead."""
        # A full convolution pads by taps - 1. Blocks that are cropped as a whole need no padding before, and the blocks up to the
        # result's end determine the padding after.
        window = self.window
        first = (window.before + self.zero_taps_at_start) // window.stride
        blocks = -(-(window.extent + self.first_block_crop) // window.stride)
        return self.taps_per_phase - 1 - first, blocks + first - window.count


def _infer_windows(attrs: Mapping[str, Any], data_shape: Sequence[int], weight_shape: Sequence[int]) -> Windows:
    """Return the windows on height and width of the result; raise ModelError if shapes and attributes contradict each
    other."""
    groups = attrs["groups"]
    if len(data_shape) != 4 or len(weight_shape) != 4 or 0 in (*data_shape, *weight_shape):
        raise ModelError(
            f"conv2d_transpose: data and weights need four axes, none of them empty; got {tuple(data_shape)} and "
            f"{tuple(weight_shape)}"
        )
    if groups < 1 or data_shape[3] != weight_shape[3] * groups or weight_shape[0] % groups:
        raise ModelError(
            f"conv2d_transpose: channel counts disagree; got data {tuple(data_shape)} (NHWC), weights "
            f"{tuple(weight_shape)} (OHWI) and "
            f"groups={groups}, expected C = I * groups and O a multiple of groups"
        )
    windows = _windows(attrs, data_shape, weight_shape)
    if any(axis.before < 0 or axis.extent < 1 for axis in windows):
        raise ModelError(
            f"conv2d_transpose: padding={attrs['padding']} is negative or leaves no output; got data "
            f"{tuple(data_shape)} and weights {tuple(weight_shape)}"
        )
    return windows


def _windows(attrs: Mapping[str, Any], data_shape: Sequence[int], weight_shape: Sequence[int]) -> Windows:
    return transposed_window_axes(
        data_shape[1:3], weight_shape[1:3], attrs["strides"], attrs["padding"], attrs["dilation"]
    )


def _infer_conv2d_transpose_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    attrs = {**DEFAULTS, **attrs}
    height, width = _infer_windows(attrs, types[0].shape, types[1].shape)
    channels = types[1].shape[0]
    if len(types) > 2 and types[2].size != channels:
        raise ModelError(
            f"conv2d_transpose: the bias has a wrong size; got {types[2].size}, expected {channels} (output channels)"
        )
    dtype = attrs["out_dtype"] or types[0].dtype
    return (TensorType((types[0].shape[0], height.extent, width.extent, channels), dtype),)


def _evaluate_conv2d_transpose_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Compute the transposed convolution in float64."""
    attrs = {**DEFAULTS, **attrs}
    data, weight = (np.asarray(x, np.float64) for x in arrays[:2])
    result = evaluate_product(_describe_product(attrs, data.shape, weight.shape), data, weight)
    if len(arrays) > 2:
        result = result + np.asarray(arrays[2], np.float64).reshape(-1)
    return (result.astype(attrs["out_dtype"] or arrays[0].dtype),)


def _compute_conv2d_transpose(call: OpCall) -> te.Tensor:
    """Build the sums for weights that are computed at run time: every output pixel gathers the taps that contribute to
    it."""
    data, weight, bias = call.data_weight_bias
    attrs = {**DEFAULTS, **call.attrs}
    windows = _windows(attrs, data.type.shape, weight.type.shape)
    outputs, rows, columns, depth = weight.type.shape
    group_outputs, dtype = outputs // attrs["groups"], data.type.dtype
    image, taps = data.tensor(), weight.tensor()
    ky, kx, k = te.reduce_axis(rows, "ky"), te.reduce_axis(columns, "kx"), te.reduce_axis(depth, "k")

    def build_sum(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        row, column = build_transposed_taps(windows, (y, x), (ky.var, kx.var))
        meets = ir.all_of((row.divides, *row.in_range, column.divides, *column.in_range))
        assert meets is not None
        value = image[n, row.index, column.index, c // group_outputs * depth + k.var]
        product = ir.select(meets, value * taps[c, ky.var, kx.var, k.var], 0.0)
        first = ir.const(0, dtype) if bias is None else bias.tensor((outputs,))[c]
        return te.sum_reduce(product, ky, kx, k, init=first)

    return te.compute(call.out_types[0].shape, build_sum, ACC, ("n", "y", "x", "c"))


# ---------------------------------------------------------------- legalisation


_MAX_SPARSE_TAPS, _MAX_SPARSE_ELEMENTS = 1 << 12, 1 << 20
"""Largest number of taps in a phase, and of elements in the weights of all phases, for which the weights may consist
mostly of zeros. Large strides or dilations cause such weights."""


def _legalize_conv2d_transpose(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a node with constant weights to a ``conv2d`` whose channels are the phases.

    Keep the operator (with its activation split off) if the weights are not constant, or if the phases' weights would
    be mostly zeros. Raise UnsupportedError if such a layer is quantised, because quantised layers can be computed by
    phases only."""
    weight = constant_data(graph, node.inputs[1])
    quantised = is_quantised(node, graph)
    if weight is None:
        if quantised:
            raise UnsupportedError(
                f"the weights {node.inputs[1]!r} are computed when the network runs; expected a constant",
                where=str(node.loc),
                hint="make the weights a constant, or keep the layer in float32",
            )
        return split_activation(node, graph)
    axes = _infer_phases({**DEFAULTS, **node.attrs}, graph.types[node.inputs[0]].shape, weight.shape)
    taps = math.prod(axis.taps_per_phase for axis in axes)
    elements = weight.shape[0] * weight.shape[3] * taps * math.prod(axis.window.stride for axis in axes)
    kernel = weight.shape[1] * weight.shape[2]
    if taps <= max(_MAX_SPARSE_TAPS, 4 * kernel) and elements <= max(_MAX_SPARSE_ELEMENTS, 4 * weight.size):
        return _emit_phases(node, graph, weight)
    if quantised:
        raise UnsupportedError(
            f"the strides and dilation expand the kernel to too many weights; got {elements:,} weights with {taps:,} "
            f"taps (from {weight.size:,} weights), expected at most {_MAX_SPARSE_ELEMENTS:,} with {_MAX_SPARSE_TAPS:,} taps",
            where=str(node.loc),
            hint="keep the layer in float32",
        )
    return split_activation(node, graph)


def _infer_phases(
    attrs: Mapping[str, Any], data_shape: Sequence[int], weight_shape: Sequence[int]
) -> tuple[_Phases, _Phases]:
    """Return the phases along height and along width."""
    height, width = _windows(attrs, data_shape, weight_shape)
    return _Phases(height), _Phases(width)


def _emit_phases(node: Node, graph: Graph, weight: Array) -> Legalized:
    """Emit the transposed convolution with constant weights as one ``conv2d`` whose channels are the phases.

    A phase is an output position modulo the strides. A transposition then moves the phases of each block to pixels, and
    a slice crops the result."""
    attrs: dict[str, Any] = {**DEFAULTS, **node.attrs}
    rewrite, output = Rewrite(node, graph), node.outputs[0]
    data, tensor_type, result = (graph.types[name] for name in (*node.inputs[:2], output))
    axes, groups = _infer_phases(attrs, data.shape, weight.shape), attrs["groups"]
    strides = [axis.window.stride for axis in axes]
    block = math.prod(strides)
    name = rewrite.add_constant("phases", _arrange_weights_by_phase(weight, tensor_type.quant, attrs, axes))
    rewrite.types[name] = replace(rewrite.types[name], quant=_repeat_quant(tensor_type.quant, groups, block))
    operands = [node.inputs[0], name]
    if len(node.inputs) > 2 and node.inputs[2]:
        operands.append(_repeat_bias(rewrite, node, groups, block))
    before, after = zip(*(axis.padding for axis in axes), strict=True)
    padding = tuple(max(each, 0) for each in (*before, *after))
    shape = [axis.window.count + sum(max(side, 0) for side in axis.padding) - axis.taps_per_phase + 1 for axis in axes]
    blocks = rewrite.add_value("blocks", (data.shape[0], *shape, weight.shape[0] * block), result.dtype, result.quant)
    common = {"groups": groups, **{name: attrs[name] for name in ("activation", "rounding", "out_dtype")}}
    rewrite.emit("conv2d", operands, blocks, {**CONVOLUTION, **common, "padding": padding})
    pixels = _emit_blocks_to_pixels(rewrite, blocks, groups, strides, (data.shape[0], *shape, weight.shape[0]))
    begin = [axis.first_block_crop + max(-axis.padding[0], 0) * axis.window.stride for axis in axes]
    if (*begin, *rewrite.type(pixels).shape) == (0, 0, *result.shape):
        rewrite.emit("reshape", (pixels,), output, {"shape": result.shape})
    else:
        end = (result.shape[0], begin[0] + result.shape[1], begin[1] + result.shape[2], result.shape[3])
        cut: Mapping[str, Attr] = {"begin": (0, *begin, 0), "end": end, "strides": (1, 1, 1, 1)}
        rewrite.emit("slice", (pixels,), output, cut)
    return rewrite.legalized()


def _arrange_weights_by_phase(
    weight: Array, weight_quant: Quant | None, attrs: Mapping[str, Any], phases: tuple[_Phases, _Phases]
) -> Array:
    """Rearrange weights (O, H, W, I) to weights by phase (O * phases, taps, taps, I).

    The channels are ordered by group, row and column of the phase, and output channel; the taps are reversed."""
    outputs, rows, columns, depth = weight.shape
    (down, right), (first, second) = (a.window.stride for a in phases), (a.zero_taps_at_start for a in phases)
    high, wide = (axis.taps_per_phase for axis in phases)
    zero = np.reshape(weight_quant.zero_point if weight_quant else (0,), (-1, 1, 1, 1)).astype(weight.dtype)
    # Taps that the kernel lacks hold the zero point, which stands for zero.
    spread = np.broadcast_to(zero, (outputs, high * down, wide * right, depth)).copy()
    y, x = attrs["dilation"]
    spread[:, first : first + rows * y : y, second : second + columns * x : x] = weight
    split = spread.reshape(attrs["groups"], -1, high, down, wide, right, depth)
    ordered = split.transpose(0, 3, 5, 1, 2, 4, 6)[:, :, :, :, ::-1, ::-1]
    return np.ascontiguousarray(ordered).reshape(-1, high, wide, depth)


def _repeat_quant(quant: Quant | None, groups: int, phase_count: int) -> Quant | None:
    """Return ``quant`` with the scales of each group's output channels repeated ``phase_count`` times."""
    if quant is None or quant.axis is None:
        return quant
    order = np.arange(len(quant.scale)).reshape(groups, 1, -1).repeat(phase_count, axis=1).reshape(-1)
    return Quant(tuple(quant.scale[i] for i in order), tuple(quant.zero_point[i] for i in order), 0)


def _repeat_bias(rewrite: Rewrite, node: Node, groups: int, phase_count: int) -> str:
    """Add a constant bias with the elements of each group's output channels repeated ``phase_count`` times; return its
    name."""
    bias, tensor_type = constant_data(rewrite.graph, node.inputs[2]), rewrite.type(node.inputs[2])
    if bias is None:
        raise UnsupportedError(
            f"the bias {node.inputs[2]!r} is computed when the network runs; expected a constant",
            where=str(node.loc),
            hint="make the bias a constant, or add it in a separate layer",
        )
    spread = bias.reshape(groups, 1, -1).repeat(phase_count, axis=1).reshape(-1)
    name = rewrite.add_constant("bias", spread)
    rewrite.types[name] = replace(rewrite.types[name], quant=_repeat_quant(tensor_type.quant, groups, phase_count))
    return name


def _emit_blocks_to_pixels(
    rewrite: Rewrite,
    block_value: str,
    groups: int,
    strides: Sequence[int],
    block_grid_shape: Sequence[int],
) -> str:
    """Emit nodes that move the phases of every block from channels to pixels; return the name of the moved value.

    Channels (group, row, column, output) become pixels with channels (group, output). ``block_grid_shape``: batch, rows
    of blocks, columns of blocks, output channels."""
    batch, rows, columns, outputs = block_grid_shape
    (down, right), tensor_type = strides, rewrite.type(block_value)
    if down * right == 1:
        return block_value
    apart = (batch, rows, columns, groups, down, right, outputs // groups)
    split = rewrite.add_value("split", apart, tensor_type.dtype, tensor_type.quant)
    rewrite.emit("reshape", (block_value,), split, {"shape": apart})
    axes_order = (0, 1, 4, 2, 5, 3, 6)
    moved = rewrite.add_value("moved", tuple(apart[axis] for axis in axes_order), tensor_type.dtype, tensor_type.quant)
    rewrite.emit("transpose", (split,), moved, {"axes": axes_order})
    whole = (batch, rows * down, columns * right, outputs)
    placed = rewrite.add_value("placed", whole, tensor_type.dtype, tensor_type.quant)
    return rewrite.emit("reshape", (moved,), placed, {"shape": whole})


def _count_conv2d_transpose_macs(
    attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]
) -> int:
    """Return the number of multiply-accumulates: each input element is multiplied by all taps of all output channels of
    its group."""
    outputs, rows, columns, _ = types[1].shape
    return types[0].size * rows * columns * outputs // int(attrs["groups"])


def _describe_product(attrs: Mapping[str, Any], data_shape: Sequence[int], weight_shape: Sequence[int]) -> Product:
    return Product(groups=attrs["groups"], windows=_windows(attrs, data_shape, weight_shape), transposed=True)


def _make_conv2d_transpose_test_cases() -> Iterable[Case]:
    settings: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Attr]], ...] = (
        ((1, 3, 4, 2), (3, 3, 3, 2), {"strides": (2, 2)}),
        ((1, 3, 4, 2), (3, 3, 3, 2), {"strides": (2, 2), "dilation": (3, 2)}),
        ((1, 3, 4, 2), (3, 3, 3, 2), {"strides": (2, 2), "padding": (0, 0, 1, 1)}),
        ((2, 2, 3, 1), (2, 4, 2, 1), {"strides": (2, 3), "padding": (1, 0, 1, -1)}),
        ((1, 4, 1, 4), (2, 5, 1, 2), {"padding": (2, 0, 2, 0), "groups": 2}),
        ((1, 2, 2, 1), (1, 2, 2, 1), {"strides": (3, 3), "padding": (0, 0, -1, -1), "dilation": (2, 1)}),
        ((1, 1, 1, 3), (2, 1, 1, 3), {}),
    )
    for data, weight, attrs in settings:
        types = tuple(TensorType(shape, "float32") for shape in (data, weight, (weight[0],)))
        yield Case({**DEFAULTS, **attrs}, types, tolerance=2e-5, name=f"{weight}")
        yield Case({**DEFAULTS, **attrs}, types[:2], (1,), tolerance=2e-5, name=f"{weight} without bias")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "conv2d_transpose",
        gradient=build_conv2d_transpose_gradients,
        infer=_infer_conv2d_transpose_types,
        reference=_evaluate_conv2d_transpose_reference,
        compute=_compute_conv2d_transpose,
        cases=_make_conv2d_transpose_test_cases,
        attrs=ATTRS,
        axes=map_batch_axis,
        legalize=_legalize_conv2d_transpose,
        macs=_count_conv2d_transpose_macs,
        product=lambda attrs, types: _describe_product(attrs, types[0].shape, types[1].shape),
        operand_names=("data", "weight", "bias"),
    ),
)
