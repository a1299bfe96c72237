# SPDX-License-Identifier: Apache-2.0
"""Layers by CMSIS-NN: checks, and calls of the library."""

from __future__ import annotations

import math

import numpy as np

from microc.base.dtypes import Array
from microc.external.backend import Code, Region
from microc.external.cmsis_nn.cmsis_library import (
    DSP,
    MVE,
    PLAIN,
    average_pool_workspace_bytes,
    convolution_workspace_bytes,
    depthwise_workspace_bytes,
    format_dims,
    format_structure,
    format_workspace_context,
    function_suffix,
    kernel_variant,
    legalised_nodes_by_operator,
    region_requantize_params,
    tile_members_of_extents,
    unsupported_reason,
    zero_point,
)
from microc.numerics import INT32_MAX, quantize_multiplier
from microc.ops.arithmetic import activation_range
from microc.ops.convolution.geometry import Geometry, infer_geometry
from microc.transform.pass_context import PassContext
from microc.transform.quantised.legalize import legalize

# ---- int8 convolutions for which the library has special versions, which assume more than a layer guarantees.
#
# The library's version for 1x1 windows ignores padding at the bottom and at the right, and would read beyond the data there. Over
# images of one row, the MVE variant computes the first, the middle and the last results separately (``arm_convolve_1_x_n_s8``).
# It assumes that the padding is equal on both sides, or one larger on the right, and that the last windows exceed the data by
# padding only.


def wrong_convolution_reason(geometry: Geometry, *, uses_mve: bool) -> str:
    """Return why the library would compute wrong results for a convolution, or read out of bounds; empty if it would
    not.

    ``uses_mve``: True if the MVE variant of the library is compiled for the core."""
    top, left, bottom, right = geometry.padding
    if geometry.kernel == (1, 1) and geometry.dilation == (1, 1) and not (top or left):
        return "it pads the end of an axis, which the version for 1x1 windows ignores" if bottom or right else ""
    one_row = (
        geometry.height == geometry.kernel[0] == geometry.dilation[1] == 1
        and geometry.strides[1] * geometry.channels % 4 == 0
    )
    if uses_mve and one_row and (top or bottom or not _is_one_row_image_correct(geometry)):
        return "its windows over one row end where the MVE version does not expect it"
    return ""


def _is_one_row_image_correct(geometry: Geometry) -> bool:
    """Test whether the library's MVE variant computes the results of a one-row image correctly.

    It computes them in three parts: left, middle and right. If the number of results of the parts does not add up to
    that of the row, the library uses its general version, which is correct: the test is then true as well.
    """
    left, step, kernel = geometry.padding[1], geometry.strides[1], geometry.kernel[1]
    total = (geometry.out_width - 1) * step + kernel - geometry.width
    more = int(math.fmod(total, 2))  # as C has it
    if 2 * left + more != total:
        return False
    first = max(1, -(-left // step)) if left else 0
    last = max(1, -(-(left + more) // step)) if left + more else 0
    middle = max(geometry.out_width - first - last, 0)
    if first + middle + last != geometry.out_width:
        return True
    begin = step * (first + middle) - left
    within = (first - 1) * step - left + kernel <= geometry.width if first else True
    behind = last if more else left
    ends = begin + kernel - 1 == geometry.width and (last - 1) * step + 1 <= behind if last else True
    return within and ends


# ---- Layers with weights: convolutions, depthwise convolutions, dense layers. Their results are bit-exact with TFLite Micro and
# with our code. The costs are in instructions, by kernel variant (``cmsis_library.kernel_variant``).

PRODUCT = {MVE: 0.175, DSP: 1.75, PLAIN: 2.5}
"""Instructions for a multiply-accumulate of a convolution (a product of matrices), by kernel variant.

Counted on emulated cores over MLPerf's networks (docs/external.md)."""
ROW = {MVE: 0.48, DSP: 1.85, PLAIN: 3.4}
"""Instructions for a multiply-accumulate of a dense layer (a product of a row and a matrix), by kernel variant. Counted
like :data:`PRODUCT`."""
GATHER = {MVE: 12.0, DSP: 30.0, PLAIN: 50.0}
"""Instructions for copying an element of a patch (the data under a window), by kernel variant. Windows larger than 1x1
are copied to such a patch first."""
DEPTHWISE = {MVE: 1.0, DSP: 4.0, PLAIN: 4.8}
"""Instructions for a multiply-accumulate of a depthwise convolution, by kernel variant."""
RESULT = {MVE: 14.0, DSP: 36.0, PLAIN: 40.0}
"""Instructions for a result, by kernel variant: its requantisation, and its share of the code outside of the innermost
loop."""
CALL = 300.0  # instructions for a call of a library function
_CODE_BYTES_PER_LAYER = 1500
"""Bytes of code that the estimate charges for each convolution. Layers share the library's functions, so that each is
charged less than the size of the function."""


def check_convolution(region: Region) -> str:
    """Return why the library cannot compute a convolution, as a clause; empty if it can."""
    why = _check_weighted_layer(region, "conv2d")
    if why:
        return why
    g = _convolution_geometry(region)
    if g.groups not in (1, g.channels):
        return f"it has {g.groups} groups of {g.channels} channels"
    if region.root.attr("layout") != "NHWC":
        return "its layout is not NHWC"
    if _is_depthwise_region(region) or region.output_types[0].dtype == "int16":
        return ""
    return wrong_convolution_reason(g, uses_mve=kernel_variant(region.target) == MVE)


def check_dense(region: Region) -> str:
    """Return why the library cannot compute a dense layer, as a clause; empty if it can."""
    why = _check_weighted_layer(region, "dense")
    if not why and region.output_types[0].dtype == "int16" and region_requantize_params(region).multiplier.size > 1:
        return "its weights have a scale for each unit"
    return why


def _check_weighted_layer(region: Region, op: str) -> str:
    """Return why the library does not support the dtypes, weights or bias of a layer, as a clause; empty if it does."""
    why = unsupported_reason(region, (op, "requantize"))
    if why:
        return why
    names = [name for name in region.root.inputs[1:] if name]
    if any(region.const(name) is None for name in names):
        return "its weights are computed"
    weight = region.type(names[0])
    if weight.dtype != "int8" or weight.quant is None or any(weight.quant.zero_point):
        return "its weights are not int8 with zero point 0"
    wide = region.output_types[0].dtype == "int16"
    biases = (
        ("int32",)
        if not wide
        else ("int64", "int32")
        if op == "conv2d" and not _is_depthwise_region(region)
        else ("int64",)
    )
    if len(names) > 1 and region.type(names[1]).dtype not in biases:
        return f"its bias is {region.type(names[1]).dtype}, not {' or '.join(biases)}"
    return ""


def _is_depthwise_region(region: Region) -> bool:
    """Test whether the region is a depthwise convolution: one of several groups. :func:`check_convolution` has refused
    convolutions of several groups that are not depthwise."""
    return region.root.op == "conv2d" and region.root.attr("groups") > 1


def generate_convolution_call(region: Region) -> Code:
    """Generate the call of ``arm_convolve_wrapper_s8`` or, for a depthwise layer, ``arm_depthwise_conv_wrapper_s8``.

    For int16 data these names end in ``_s16``."""
    g, quant, kind = _convolution_geometry(region), region_requantize_params(region), kernel_variant(region.target)
    weight, bias = _find_weights_and_bias(region, g.out_channels)
    depthwise, wide = _is_depthwise_region(region), region.output_types[0].dtype == "int16"
    name = f"arm_{'depthwise_conv_wrapper' if depthwise else 'convolve_wrapper'}_{function_suffix(region)}"
    workspace = (depthwise_workspace_bytes if depthwise else convolution_workspace_bytes)(g, kind, int16_data=wide)
    fields: dict[str, object] = {
        "input_offset": -zero_point(region, region.root.inputs[0]),
        "output_offset": quant.zero_point,
        **({"ch_mult": g.out_channels // g.channels} if depthwise else {}),
        "stride": tile_members_of_extents(g.strides),
        "padding": tile_members_of_extents(g.padding[:2]),
        "dilation": tile_members_of_extents(g.dilation),
        "activation": {"min": quant.minimum, "max": quant.maximum},
    }
    kernel = (
        format_dims("filter", 1, *g.kernel, g.out_channels)
        if depthwise
        else format_dims("filter", g.out_channels, *g.kernel, g.channels)
    )
    lines = (
        format_workspace_context(workspace),
        format_structure("cmsis_nn_dw_conv_params" if depthwise else "cmsis_nn_conv_params", "params", **fields),
        format_structure(
            "cmsis_nn_per_channel_quant_params", "quant", multiplier="(int32_t *)multiplier", shift="(int32_t *)shift"
        ),
        format_dims("input", g.batch, g.height, g.width, g.channels),
        kernel,
        format_dims("biases", 1, 1, 1, g.out_channels),
        format_dims("output", g.batch, g.out_height, g.out_width, g.out_channels),
        *([_format_bias(bias)] if wide and not depthwise else []),
        f"return (int){name}(&context, &params, &quant, &input, in_0, &filter, weight, &biases, "
        f"{'&terms' if wide and not depthwise else 'bias'}, &output, out_0);",
    )
    data = {
        "weight": weight.transpose(3, 1, 2, 0) if depthwise else weight,
        "bias": bias,
        "multiplier": np.broadcast_to(quant.multiplier, g.out_channels),
        "shift": np.broadcast_to(quant.shift, g.out_channels),
    }
    results = g.batch * g.out_height * g.out_width * g.out_channels
    taps = g.kernel[0] * g.kernel[1]
    gather_cost = 0.0 if taps == 1 else GATHER[kind] * g.depth * g.output_pixels
    each = DEPTHWISE[kind] * taps if depthwise else PRODUCT[kind] * g.depth
    cost = CALL + results * (each + RESULT[kind]) + (0.0 if depthwise else gather_cost)
    return Code(lines, data, workspace, cost, _CODE_BYTES_PER_LAYER, (name,), fails=True)


def generate_dense_call(region: Region) -> Code:
    """Generate the call of ``arm_fully_connected_s8`` or ``arm_fully_connected_s16``.

    The MVE variant for int8 needs the sum of each row of weights; these sums are computed here and stored as
    constants."""
    requant, kind = region_requantize_params(region), kernel_variant(region.target)
    x = region.input_types[0]
    units = region.output_types[0].shape[-1]
    weight, bias = _find_weights_and_bias(region, units)
    depth = weight.shape[1]
    rows, offset = x.size // depth, -zero_point(region, region.root.inputs[0])
    data = {"weight": weight, "bias": bias}
    wide = region.output_types[0].dtype == "int16"
    has_sums = kind == MVE and not wide
    if has_sums:
        data["sums"] = (bias.astype(np.int64) + offset * weight.astype(np.int64).sum(axis=1)).astype(np.int32)
    is_per_tensor = requant.multiplier.size == 1 and requant.shift.size == 1
    if is_per_tensor:
        quant = format_structure(
            "cmsis_nn_per_tensor_quant_params", "quant", multiplier=requant.multiplier[0], shift=requant.shift[0]
        )
    else:
        data["multiplier"] = np.broadcast_to(requant.multiplier, units)
        data["shift"] = np.broadcast_to(requant.shift, units)
        quant = format_structure(
            "cmsis_nn_per_channel_quant_params", "quant", multiplier="(int32_t *)multiplier", shift="(int32_t *)shift"
        )
    name = f"arm_fully_connected_{'' if is_per_tensor else 'per_channel_'}{function_suffix(region)}"
    buffer = {"buf": "(void *)sums", "size": 4 * units} if has_sums else {"buf": "NULL", "size": 0}
    lines = (
        format_structure("cmsis_nn_context", "context", **buffer),
        format_structure(
            "cmsis_nn_fc_params", "params", input_offset=offset, filter_offset=0, output_offset=requant.zero_point,
            activation={"min": requant.minimum, "max": requant.maximum},
        ),
        quant,
        format_dims("input", rows, 1, 1, depth),
        format_dims("filter", depth, 1, 1, units),
        format_dims("biases", 1, 1, 1, units),
        format_dims("output", rows, 1, 1, units),
        f"return (int){name}(&context, &params, &quant, &input, in_0, &filter, weight, &biases, bias, &output, out_0);",
    )  # fmt: skip
    cost = CALL + rows * units * (ROW[kind] * depth + RESULT[kind])
    used = (name, "arm_vector_sum_s8") if has_sums else (name,)
    return Code(lines, data, 0, cost, 400, used, fails=True)


def _format_bias(bias: Array) -> str:
    """Format the structure for the bias of an int16 convolution. The dtype of the bias selects the width of the
    sums."""
    return format_structure(
        "cmsis_nn_bias_data", "terms", data="bias", is_int32_bias=str(bias.dtype == np.int32).lower()
    )


def _find_weights_and_bias(region: Region, output_channel_count: int) -> tuple[Array, Array]:
    """Return a layer's weights, and its bias for each of ``output_channel_count`` output channels: zeros if the layer
    has no bias."""
    weight, *bias = (region.const(name) for name in region.root.inputs[1:] if name)
    assert weight is not None
    dtype = np.int64 if region.output_types[0].dtype == "int16" else np.int32
    array = bias[0] if bias and bias[0] is not None else np.zeros(output_channel_count, dtype)
    return weight, array.reshape(-1)


def _convolution_geometry(region: Region) -> Geometry:
    """Return the geometry of the region's convolution."""
    data, weight = (region.type(name).shape for name in region.root.inputs[:2])
    return infer_geometry(region.root.attrs, data, weight)


# ---- Layers without weights by CMSIS-NN (pools, additions of two tensors, softmax): checks, and calls of the
# library.


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
