# SPDX-License-Identifier: Apache-2.0
"""Layers without weights by CMSIS-NN (pools, additions of two tensors, softmax): checks, and calls of the library."""

from __future__ import annotations

import math

import numpy as np

from microc.external.backend import Code, Region
from microc.external.cmsis_nn.cmsis_library import (
    DSP,
    MVE,
    PLAIN,
    average_pool_workspace_bytes,
    format_dims,
    format_structure,
    format_workspace_context,
    function_suffix,
    kernel_variant,
    legalised_nodes_by_operator,
    tile_members_of_extents,
    unsupported_reason,
)
from microc.external.cmsis_nn.weighted_layers import CALL
from microc.numerics import INT32_MAX, quantize_multiplier
from microc.ops.arithmetic import activation_range
from microc.transform.pass_context import PassContext
from microc.transform.quantised.legalize import legalize

TAP = {MVE: 2.5, DSP: 6.2, PLAIN: 16.7}
"""Instructions for an element under a pool's window, by kernel variant (docs/external.md)."""
SUM = {MVE: 12.8, DSP: 83.0, PLAIN: 90.0}
"""Instructions for the quantised addition of two elements, by kernel variant."""
EXPONENTIAL = 130.0
"""Instructions for each class of a softmax; the library computes its exponential twice."""


def check_pool(region: Region) -> str:
    """Return why the library cannot compute a pooling layer, as a clause; empty if it can."""
    op = region.root.op
    x, y = region.root.inputs[0], region.root.outputs[0]
    if not all(region.type(name).quant for name in (x, y)) or region.type(x).quant != region.type(y).quant:
        return "its data and results have different scales or zero points, or none"
    if region.root.attr("layout") != "NHWC":
        return "its layout is not NHWC"
    if op == "avg_pool2d" and region.root.attr("count_include_pad"):
        return "it counts padding"
    if "dilation" in region.root.attrs and any(n != 1 for n in region.root.attr("dilation")):
        return "its window is dilated"
    return unsupported_reason(region, (op, "clip") if region.root.attr("activation") else (op,))


def generate_pool_call(region: Region) -> Code:
    """Generate the call of ``arm_avgpool_s8`` or ``arm_max_pool_s8``; for int16 data these names end in ``_s16``.

    Averages are rounded half away from zero, as in microc's own code."""
    node, kind = region.root, kernel_variant(region.target)
    x, y = region.type(node.inputs[0]), region.type(node.outputs[0])
    assert y.quant is not None
    low, high = activation_range(str(node.attr("activation")), y.quant, y.dtype)
    average = node.op == "avg_pool2d"
    workspace = average_pool_workspace_bytes(x.shape[-1], kind) if average else 0
    kernel = node.attr("kernel")
    name = f"arm_{'avgpool' if average else 'max_pool'}_{function_suffix(region)}"
    lines = (
        format_workspace_context(workspace),
        format_structure(
            "cmsis_nn_pool_params", "params", stride=tile_members_of_extents(node.attr("strides")),
            padding=tile_members_of_extents(node.attr("padding")[:2]), activation={"min": low, "max": high},
        ),
        format_dims("input", *x.shape),
        format_dims("filter", 1, *kernel, 1),
        format_dims("output", *y.shape),
        f"return (int){name}(&context, &params, &input, in_0, &filter, &output, out_0);",
    )  # fmt: skip
    cost = CALL + y.size * (TAP[kind] * math.prod(kernel) + (20.0 if average else 4.0))
    return Code(lines, {}, workspace, cost, 400, (name,), fails=True)


def check_add(region: Region) -> str:
    """Return why the library cannot compute an addition of two tensors, as a clause; empty if it can."""
    types = [region.type(name) for name in region.root.inputs]
    if any(type_.dtype != types[0].dtype or type_.shape != types[0].shape for type_ in types):
        return "its operands differ in dtype or shape"
    return unsupported_reason(region, ("qadd",))


def generate_add_call(region: Region) -> Code:
    """Generate the call of ``arm_elementwise_add_s8`` or ``arm_elementwise_add_s16``."""
    node, kind = legalised_nodes_by_operator(region)["qadd"], kernel_variant(region.target)
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
    name = f"arm_elementwise_add_{function_suffix(region)}"
    return Code((f"return (int){name}({call});",), data, 0, cost, 200, (name,), fails=True)


def check_softmax(region: Region) -> str:
    """Return why the library cannot compute a softmax, as a clause; empty if it can."""
    why = unsupported_reason(region, ("qsoftmax" if region.output_types[0].dtype == "int8" else "qsoftmax16",))
    if why:
        return why
    rank = len(region.output_types[0].shape)
    return "" if region.root.attr("axis") in (-1, rank - 1) else "it is not over the last axis"


def generate_softmax_call(region: Region) -> Code:
    """Generate the call of ``arm_softmax_s8`` or ``arm_softmax_s16``.

    The integer parameters for int8 are computed as in TFLite's kernel (``softmax.h``, PreprocessSoftmaxScaling)."""
    shape = region.output_types[0].shape
    rows = int(np.prod(shape[:-1]))
    cost = CALL + EXPONENTIAL * rows * shape[-1]
    if region.output_types[0].dtype == "int16":
        return _generate_int16_softmax_call(region, rows, shape[-1], cost)
    quant = region.type(region.root.inputs[0]).quant
    assert quant is not None
    real = min(float(region.root.attr("beta")) * quant.scale[0] * (1 << 26), float(INT32_MAX))
    mantissa, shift = quantize_multiplier(real, 31)
    radius = math.floor(math.ldexp(31 << 26, -shift))
    call = f"arm_softmax_s8(in_0, {rows}, {shape[-1]}, {mantissa}, {shift}, {-radius}, out_0);"
    return Code((call,), {}, 0, cost, 500, ("arm_softmax_s8",))


def _generate_int16_softmax_call(region: Region, rows: int, classes: int, cost: float) -> Code:
    """Generate the call of ``arm_softmax_s16`` with microc's tables of exponentials and reciprocals, which equal
    TFLite's."""
    graph = legalize(region.graph, PassContext())
    (node,) = graph.nodes
    data = {name: graph.consts[value] for name, value in zip(("powers", "reciprocals"), node.inputs[1:], strict=True)}
    lines = (
        format_structure("cmsis_nn_softmax_lut_s16", "tables", exp_lut="powers", one_by_one_lut="reciprocals"),
        f"return (int)arm_softmax_s16(in_0, {rows}, {classes}, {node.attr('multiplier')}, {node.attr('shift')}, "
        "&tables, out_0);",
    )
    return Code(lines, data, 0, cost, 400, ("arm_softmax_s16",), fails=True)
