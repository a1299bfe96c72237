"""Layers without weights: pools, sums of two tensors, softmax, of int8."""

from __future__ import annotations

import math

import numpy as np

from microc.external.backend import Code, Region
from microc.external.cmsis_nn.layers import CALL
from microc.external.cmsis_nn.numbers import (
    DSP,
    MVE,
    PLAIN,
    context,
    core_of,
    dims,
    kind_of,
    refused,
    structure,
    tile,
)
from microc.fixed import INT32_MAX, quantize_multiplier
from microc.ops.arith import activation_range

TAP = {MVE: 0.5, DSP: 4.0, PLAIN: 8.0}
"""Instructions for a number under a pool's window; of a result many more (docs/external.md)."""
SUM = {MVE: 9.0, DSP: 34.0, PLAIN: 45.0}
"""For a sum of two numbers."""
EXPONENTIAL = 110.0
"""For a class of a softmax, whose exponential is computed, twice."""


def check_pool(region: Region) -> str:
    op = region.root.op
    x, y = region.root.inputs[0], region.root.outputs[0]
    if not all(region.type(name).quant for name in (x, y)) or region.type(x).quant != region.type(y).quant:
        return "its data and results are not quantised alike"
    if region.root.attr("layout") != "NHWC":
        return "its channels come first"
    if op == "avg_pool2d" and region.root.attr("count_include_pad"):
        return "it counts padding"
    if "dilation" in region.root.attrs and any(n != 1 for n in region.root.attr("dilation")):
        return "its window is dilated"
    return refused(region, ("int8",), (op, "clip") if region.root.attr("activation") else (op,))


def pool(region: Region) -> Code:
    """``arm_avgpool_s8``, ``arm_max_pool_s8``. Averages are rounded half away from zero, as ours."""
    node, kind = region.root, kind_of(region.target)
    x, y = region.type(node.inputs[0]), region.type(node.outputs[0])
    assert y.quant is not None
    low, high = activation_range(str(node.attr("activation")), y.quant, y.dtype)
    average = node.op == "avg_pool2d"
    workspace = 4 * x.shape[-1] if average else 0
    kernel = node.attr("kernel")
    lines = (
        context(workspace),
        structure(
            "cmsis_nn_pool_params", "params", stride=tile(node.attr("strides")), padding=tile(node.attr("padding")[:2]),
            activation={"min": low, "max": high},
        ),
        dims("input", *x.shape),
        dims("filter", 1, *kernel, 1),
        dims("output", *y.shape),
        f"(void)arm_{'avgpool' if average else 'max_pool'}_s8(&context, &params, &input, in_0, &filter, &output, out_0);",
    )  # fmt: skip
    cost = CALL + y.size * (TAP[kind] * math.prod(kernel) + (20.0 if average else 4.0))
    return Code(lines, {}, workspace, cost, 400, ("arm_avgpool_s8" if average else "arm_max_pool_s8",))


def check_add(region: Region) -> str:
    kinds = [region.type(name) for name in region.root.inputs]
    if any(kind.dtype != "int8" or kind.shape != kinds[0].shape for kind in kinds):
        return "its operands are not int8 of one shape"
    return refused(region, ("int8",), ("qadd",))


def add(region: Region) -> Code:
    """``arm_elementwise_add_s8``."""
    node, kind = core_of(region)["qadd"], kind_of(region.target)
    size, data, operands = region.output_types[0].size, {}, list[str]()
    for name, role in zip(region.root.inputs, ("left", "right"), strict=True):
        array = region.const(name)
        if array is not None:
            data[role] = array
        operands.append(role if array is not None else f"in_{region.graph.inputs.index(name)}")
    sides = ", ".join(
        f"{-node.attr(f'zero_point_{side}')}, {node.attr(f'multiplier_{side}')}, {node.attr(f'shift_{side}')}"
        for side in "ab"
    )
    scale = ", ".join(str(node.attr(name)) for name in ("zero_point", "multiplier", "shift", "minimum", "maximum"))
    call = f"{', '.join(operands)}, {sides}, {node.attr('left_shift')}, out_0, {scale}, {size}"
    cost = CALL + SUM[kind] * size
    return Code((f"(void)arm_elementwise_add_s8({call});",), data, 0, cost, 200, ("arm_elementwise_add_s8",))


def check_softmax(region: Region) -> str:
    why = refused(region, ("int8",), ("qsoftmax",))
    if why:
        return why
    rank = len(region.output_types[0].shape)
    return "" if region.root.attr("axis") in (-1, rank - 1) else "it is not over the last axis"


def softmax(region: Region) -> Code:
    """``arm_softmax_s8``: what TFLite's kernel computes with the same numbers (``softmax.h``, PreprocessSoftmaxScaling)."""
    quant = region.type(region.root.inputs[0]).quant
    assert quant is not None
    real = min(float(region.root.attr("beta")) * quant.scale[0] * (1 << 26), float(INT32_MAX))
    mantissa, shift = quantize_multiplier(real, 31)
    radius = math.floor(math.ldexp(31 << 26, -shift))
    shape = region.output_types[0].shape
    rows = int(np.prod(shape[:-1]))
    call = f"arm_softmax_s8(in_0, {rows}, {shape[-1]}, {mantissa}, {shift}, {-radius}, out_0);"
    cost = CALL + EXPONENTIAL * rows * shape[-1]
    return Code((call,), {}, 0, cost, 500, ("arm_softmax_s8",))
