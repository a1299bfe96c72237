# SPDX-License-Identifier: Apache-2.0
"""Operators ``convolution`` and ``convolution_transpose`` over any number of spatial axes. Their weights may be
computed at run time.

The usual layers, with one or two axes and constant weights, are ``conv2d`` and ``conv2d_transpose`` instead. Here every
output sums its taps directly, or the taps of an output position are gathered once for all output channels (algorithm
``gathered``). Data is (N, C, spatial ...), weights are (O, C / groups, kernel ...), and transposed (C, O / groups,
kernel ...). ``padding`` lists the amounts at the start of all axes, then those at the end of all axes. Source: ONNX
Conv, ConvTranspose, ConvInteger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.attributes import SPATIAL, Attributes, integer
from microc.ops.gradients.rules import build_convolution_gradients
from microc.ops.matrix.gemm import build_initial_sum
from microc.ops.registry import Case, OpCall, OpDef, map_batch_axis
from microc.ops.windows import (
    Product,
    Windows,
    build_tap_indices,
    build_transposed_taps,
    evaluate_product,
    transposed_window_axes,
    window_axes,
)
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC, CHANNELS_FIRST, PATCH

_ATTRS: Attributes = {
    **SPATIAL,
    "groups": integer("number of groups of channels with weights of their own", 1, least=1),
}
DTYPES = ("float32", "float64", "int32")


def _windows(attrs: Mapping[str, Any], data_shape: Sequence[int], weight_shape: Sequence[int]) -> Windows:
    """Return the windows of ``convolution`` along the spatial axes."""
    return window_axes(data_shape[2:], weight_shape[2:], attrs["strides"], attrs["padding"], attrs["dilation"])


def _transposed_windows(attrs: Mapping[str, Any], data_shape: Sequence[int], weight_shape: Sequence[int]) -> Windows:
    """Return the windows of ``convolution_transpose``, which lie on the spatial axes of its result."""
    return transposed_window_axes(
        data_shape[2:], weight_shape[2:], attrs["strides"], attrs["padding"], attrs["dilation"]
    )


def _check_operands(
    op_name: str, types: Sequence[TensorType], in_channels: int, out_channels: int, groups: int
) -> None:
    """Raise ModelError if dtypes, ranks, channels or bias of the operands contradict each other."""
    data, weight = types[0], types[1]
    fits = len(data.shape) == len(weight.shape) >= 3 and 0 not in (*data.shape, *weight.shape)
    if not fits or data.dtype not in DTYPES or groups < 1 or data.shape[1] != in_channels or out_channels % groups:
        raise ModelError(
            f"{op_name}: data, weights and groups disagree; got {data.dtype} {data.shape}, {weight.dtype} "
            f"{weight.shape} and groups={groups}, expected {in_channels} input channels, as many axes in both (three at "
            f"least, none empty) and {', '.join(DTYPES)}"
        )
    if len({tensor_type.dtype for tensor_type in types}) > 1 or (len(types) > 2 and types[2].shape != (out_channels,)):
        raise ModelError(
            f"{op_name}: operands need one dtype, and the bias one element for each of {out_channels} channels; got "
            f"{', '.join(f'{t.dtype} {t.shape}' for t in types)}"
        )


# ---------------------------------------------------------------- convolution


def _infer_convolution_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, weight, groups = types[0], types[1], attrs["groups"]
    _check_operands("convolution", types, weight.shape[1] * groups, weight.shape[0], groups)
    shape = [axis.count for axis in _windows(attrs, data.shape, weight.shape)]
    if min(shape) < 1 or min(attrs["padding"]) < 0:
        raise ModelError(
            f"convolution: padding={attrs['padding']} is negative or leaves no output; got data {data.shape} and a "
            f"window of {weight.shape[2:]}"
        )
    return (TensorType((data.shape[0], weight.shape[0], *shape), data.dtype),)


def _evaluate_reference(transposed: bool, attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Compute the sums in float64, or for integers in int64, so that they wrap around."""
    wide = np.float64 if arrays[0].dtype.kind == "f" else np.int64
    data, weight, *bias = (array.astype(wide) for array in arrays)
    rank, groups = data.ndim - 2, attrs["groups"]
    windows = (_transposed_windows if transposed else _windows)(attrs, data.shape, weight.shape)
    if transposed:  # (C, O / groups, kernel ...) to (O, C / groups, kernel ...)
        by_group = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
        weight = by_group.reshape(-1, *by_group.shape[2:])
    result = evaluate_product(Product(-1 - rank, groups, windows, transposed=transposed), data, weight)
    if bias:
        result = result + bias[0].reshape(-1, *[1] * rank)
    return (result.astype(arrays[0].dtype),)


def _can_share_patch(call: OpCall) -> bool:
    """Test whether an im2col patch can serve several output channels: one image, one group and constant weights."""
    data, weight, _ = call.data_weight_bias
    several = data.type.shape[0] == call.attrs["groups"] == 1 < weight.type.shape[0]
    return several and weight.data is not None


def _build_patch_product(call: OpCall, sum_dtype: str) -> te.Tensor:
    """Build the stage ``acc`` (O, P): weights (O, K) times the im2col matrix ``patch`` (P, K) of all output positions,
    in ``sum_dtype``."""
    data, weight, bias = call.data_weight_bias
    outputs, *window = weight.type.shape
    windows = _windows(call.attrs, data.type.shape, weight.type.shape)
    assert weight.data is not None
    x, w = data.tensor(), weight.packed(weight.data.reshape(outputs, -1))
    spatial, k = call.out_types[0].shape[2:], te.reduce_axis(prod(window), "k")

    def build_patch_element(p: Expr, term: Expr) -> Expr:
        channel, *taps = _unflatten_index(term, window)
        indices, condition = build_tap_indices(windows, _unflatten_index(p, spatial), taps)
        value = x[(0, channel, *indices)]
        return value if condition is None else ir.select(condition, value, 0)

    patch = te.compute((prod(spatial), prod(window)), build_patch_element, PATCH, ("p", "k"))

    def build_sum(o: Expr, p: Expr) -> Expr:
        product = ir.cast(sum_dtype, patch[p, k.var]) * ir.cast(sum_dtype, w[o, k.var])
        return te.sum_reduce(product, k, init=build_initial_sum(bias, o, sum_dtype))

    return te.compute((outputs, prod(spatial)), build_sum, ACC, ("o", "p"), ((CHANNELS_FIRST, 1),))


def _unflatten_index(index: Expr, extents: Sequence[int]) -> list[Expr]:
    """Convert a flat row-major index to indices along ``extents``."""
    indices: list[Expr] = []
    for extent in reversed(extents[1:]):
        indices.append(index % extent)
        index = index // extent
    return [index, *reversed(indices)]


def _build_wrapping_sums(call: OpCall, build_sums: Callable[[OpCall, str], te.Tensor]) -> te.Tensor:
    """Build the sums with the function ``build_sums``. Sums of int32 data are computed in uint32, for which C defines
    overflow."""
    dtype = call.data.type.dtype
    if dtype != "int32":
        return build_sums(call, dtype)
    total = build_sums(call, "uint32")
    return te.compute(total.shape, lambda *index: ir.cast(dtype, total[index]), "wrapped")


def _compute_convolution(call: OpCall, sum_dtype: str) -> te.Tensor:
    """Build the sums of the convolution in ``sum_dtype``, by loops over taps or from gathered patches."""
    if call.attrs.get("algorithm") == "gathered":
        return _build_patch_product(call, sum_dtype)
    data, weight, bias = call.data_weight_bias
    attrs, shape = call.attrs, weight.type.shape
    group_outputs, windows = shape[0] // attrs["groups"], _windows(attrs, data.type.shape, shape)
    x, w = data.tensor(), weight.tensor()
    depth = te.reduce_axis(shape[1], "k")
    taps = [te.reduce_axis(extent, f"t{k}") for k, extent in enumerate(shape[2:])]

    def build_sum(*index: Expr) -> Expr:
        n, o, *where = index
        indices, condition = build_tap_indices(windows, where, [tap.var for tap in taps])
        value = ir.cast(sum_dtype, x[(n, o // group_outputs * shape[1] + depth.var, *indices)])
        value = value if condition is None else ir.select(condition, value, 0)
        weight_ = ir.cast(sum_dtype, w[(o, depth.var, *(t.var for t in taps))])
        return te.sum_reduce(value * weight_, depth, *taps, init=build_initial_sum(bias, o, sum_dtype))

    return te.compute(call.out_types[0].shape, build_sum, ACC)


# ---------------------------------------------------------------- transposed


def _infer_convolution_transpose_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, weight, groups = types[0], types[1], attrs["groups"]
    outputs = weight.shape[1] * groups
    _check_operands("convolution_transpose", types, weight.shape[0], outputs, groups)
    shape = [axis.extent for axis in _transposed_windows(attrs, data.shape, weight.shape)]
    cut = attrs["padding"][: len(shape)]  # padding after may be negative: rows that no tap reaches
    if min(shape) < 1 or min(cut) < 0 or data.shape[1] % groups:
        raise ModelError(
            f"convolution_transpose: padding={attrs['padding']} is negative or leaves no output, or groups={groups} "
            f"does not divide the channels; got data {data.shape} and weights {weight.shape}"
        )
    return (TensorType((data.shape[0], outputs, *shape), data.dtype),)


def _compute_convolution_transpose(call: OpCall, sum_dtype: str) -> te.Tensor:
    """Build the sums of the transposed convolution in ``sum_dtype``: every output element gathers the taps that
    contribute to it."""
    data, weight, bias = call.data_weight_bias
    inputs, group_outputs, *kernel = weight.type.shape
    group = inputs // call.attrs["groups"]
    windows = _transposed_windows(call.attrs, data.type.shape, weight.type.shape)
    x, w = data.tensor(), weight.tensor()
    depth = te.reduce_axis(group, "k")
    taps = [te.reduce_axis(extent, f"t{k}") for k, extent in enumerate(kernel)]

    def build_sum(*index: Expr) -> Expr:
        n, o, *where = index
        elements = build_transposed_taps(windows, where, [tap.var for tap in taps])
        checks = [
            check
            for element, axis in zip(elements, windows, strict=True)
            for check in (*element.in_range, *((element.divides,) if axis.stride > 1 else ()))
        ]
        condition = ir.all_of(checks)
        assert condition is not None
        indices = [element.index for element in elements]
        if sum_dtype == "uint32":
            # Schedules of integers leave the taps in loops, for which the condition does not prove the index.
            indices = [ir.clamp(index, 0, axis.count - 1) for index, axis in zip(indices, windows, strict=True)]
        channel = o // group_outputs * group + depth.var
        value = ir.cast(sum_dtype, x[(n, channel, *indices)])
        weight_ = ir.cast(sum_dtype, w[(channel, o % group_outputs, *(t.var for t in taps))])
        # Floats: the product is selected, so that a weight of infinity or NaN that reaches nothing adds zero. Integers: the
        # factor is selected, which leaves the form of a matrix product.
        product = (
            ir.select(condition, value, 0) * weight_
            if sum_dtype == "uint32"
            else ir.select(condition, value * weight_, 0.0)
        )
        return te.sum_reduce(product, depth, *taps, init=build_initial_sum(bias, o, sum_dtype))

    return te.compute(call.out_types[0].shape, build_sum, ACC)


# ---------------------------------------------------------------- registry


def _count_convolution_macs(
    attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]
) -> int:
    return out_types[0].size * prod(types[1].shape[1:])


def _count_convolution_transpose_macs(
    attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]
) -> int:
    return types[0].size * prod(types[1].shape[1:])


def _make_convolution_test_cases(transposed: bool) -> Iterable[Case]:
    settings: tuple[tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...], tuple[int, ...], int], ...] = (
        ((1, 2, 5), (4, 2, 3), 1, (1, 1), (1,), 1),
        ((2, 2, 4, 5), (2, 1, 3, 2), 2, (1, 0, 0, 1), (2, 1), 2),
        ((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), 1, (0, 1, 0, 0, 0, 1), (1, 1, 2), 1),
        ((1, 2, 9, 10), (4, 2, 2, 2), 1, (1, 0, 0, 0), (2, 4), 8),
    )
    for data, weight, groups, padding, strides, spread in settings:
        if transposed:
            weight = (data[1], *weight[1:])
        outputs = weight[1] * groups if transposed else weight[0]
        attrs: dict[str, Attr] = {"strides": strides, "padding": padding, "groups": groups}
        attrs["dilation"] = (spread,) * len(strides)
        types = tuple(TensorType(shape, "float32") for shape in (data, weight, (outputs,)))
        yield Case(attrs, types, tolerance=2e-5, name=f"{len(strides)} axes")
        yield Case(attrs, types[:2], (1,), tolerance=2e-5, name=f"{len(strides)} axes, constant weights")
        integers = tuple(TensorType(tensor_type.shape, "int32") for tensor_type in types)
        yield Case(attrs, integers, (1,), name=f"{len(strides)} axes of integers")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "convolution",
        gradient=build_convolution_gradients,
        attrs=_ATTRS,
        infer=_infer_convolution_types,
        reference=lambda attrs, arrays: _evaluate_reference(False, attrs, arrays),
        compute=lambda call: _build_wrapping_sums(call, _compute_convolution),
        cases=lambda: _make_convolution_test_cases(False),
        axes=map_batch_axis,
        macs=_count_convolution_macs,
        algorithms={"gathered": _can_share_patch},
        operand_names=("data", "weight", "bias"),
    ),
    OpDef(
        "convolution_transpose",
        attrs=_ATTRS,
        infer=_infer_convolution_transpose_types,
        reference=lambda attrs, arrays: _evaluate_reference(True, attrs, arrays),
        compute=lambda call: _build_wrapping_sums(call, _compute_convolution_transpose),
        cases=lambda: _make_convolution_test_cases(True),
        axes=map_batch_axis,
        macs=_count_convolution_transpose_macs,
        operand_names=("data", "weight", "bias"),
    ),
)
