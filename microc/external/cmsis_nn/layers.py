"""Layers with weights, of int8: convolutions, depthwise ones, dense layers. They give TFLite Micro's bits, and ours."""

from __future__ import annotations

import numpy as np

from microc.dtypes import Array
from microc.external.backend import Code, Region
from microc.external.cmsis_nn.numbers import (
    DSP,
    MVE,
    PLAIN,
    context,
    dims,
    kind_of,
    refused,
    scaled,
    structure,
    tile,
    zero_point,
)
from microc.ops.convolution.geometry import Geometry, geometry

PRODUCT = {MVE: 0.16, DSP: 0.95, PLAIN: 4.0}
"""Instructions for a product of a matrix, by version: ARM's kernels, counted on emulated cores (docs/external.md)."""
DEPTHWISE = {MVE: 0.35, DSP: 3.2, PLAIN: 7.0}
"""The same of a depthwise layer."""
RESULT = {MVE: 4.0, DSP: 17.0, PLAIN: 24.0}
"""For a result: its requantisation, its share of what is around the loop over the sum."""
CALL = 300.0
_CODE = 1500
"""Bytes of a convolution's functions; layers share them, so that each is told less than its own."""


def check_convolution(region: Region) -> str:
    why = _check(region, "conv2d")
    if why:
        return why
    g = _geometry(region)
    if g.groups not in (1, g.channels):
        return f"it has {g.groups} groups of {g.channels} channels"
    if region.root.attr("layout") != "NHWC":
        return "its channels come first"
    return ""


def check_dense(region: Region) -> str:
    return _check(region, "dense")


def _check(region: Region, op: str) -> str:
    why = refused(region, ("int8",), (op, "requantize"))
    if why:
        return why
    names = [name for name in region.root.inputs[1:] if name]
    if any(region.const(name) is None for name in names):
        return "its weights are computed"
    weight = region.type(names[0])
    if weight.dtype != "int8" or weight.quant is None or any(weight.quant.zero_point):
        return "its weights are no int8 around zero"
    if len(names) > 1 and region.type(names[1]).dtype != "int32":
        return f"its bias is {region.type(names[1]).dtype}"
    return ""


def convolution(region: Region) -> Code:
    """``arm_convolve_wrapper_s8``, or of one channel each ``arm_depthwise_conv_wrapper_s8``."""
    g, found, kind = _geometry(region), scaled(region), kind_of(region.target)
    weight, bias = _weights(region, g.out_channels)
    depthwise = g.groups > 1
    name = "depthwise_conv_wrapper" if depthwise else "convolve_wrapper"
    workspace = _depthwise_bytes(g) if depthwise else _patch_bytes(g)
    fields: dict[str, object] = {
        "input_offset": -zero_point(region, region.root.inputs[0]),
        "output_offset": found.zero_point,
        **({"ch_mult": g.out_channels // g.channels} if depthwise else {}),
        "stride": tile(g.strides),
        "padding": tile(g.padding[:2]),
        "dilation": tile(g.dilation),
        "activation": {"min": found.minimum, "max": found.maximum},
    }
    kernel = (
        dims("filter", 1, *g.kernel, g.out_channels)
        if depthwise
        else dims("filter", g.out_channels, *g.kernel, g.channels)
    )
    lines = (
        context(workspace),
        structure("cmsis_nn_dw_conv_params" if depthwise else "cmsis_nn_conv_params", "params", **fields),
        structure(
            "cmsis_nn_per_channel_quant_params", "quant", multiplier="(int32_t *)multiplier", shift="(int32_t *)shift"
        ),
        dims("input", g.batch, g.height, g.width, g.channels),
        kernel,
        dims("biases", 1, 1, 1, g.out_channels),
        dims("output", g.batch, g.out_height, g.out_width, g.out_channels),
        f"(void)arm_{name}_s8(&context, &params, &quant, &input, in_0, &filter, weight, &biases, bias, &output, out_0);",
    )
    data = {
        "weight": weight.transpose(3, 1, 2, 0) if depthwise else weight,
        "bias": bias,
        "multiplier": np.broadcast_to(found.multiplier, g.out_channels),
        "shift": np.broadcast_to(found.shift, g.out_channels),
    }
    results = g.batch * g.out_height * g.out_width * g.out_channels
    each = DEPTHWISE[kind] * g.kernel[0] * g.kernel[1] if depthwise else PRODUCT[kind] * g.depth
    cost = CALL + results * (each + RESULT[kind])
    return Code(lines, data, workspace, cost, _CODE, (f"arm_{name}_s8",))


def dense(region: Region) -> Code:
    """``arm_fully_connected_s8``. Cores with MVE add sums of the weights, which are constants here."""
    found, kind = scaled(region), kind_of(region.target)
    x = region.input_types[0]
    units = region.output_types[0].shape[-1]
    weight, bias = _weights(region, units)
    depth = weight.shape[1]
    rows, offset = x.size // depth, -zero_point(region, region.root.inputs[0])
    data = {"weight": weight, "bias": bias}
    if kind == MVE:
        data["sums"] = (bias.astype(np.int64) + offset * weight.astype(np.int64).sum(axis=1)).astype(np.int32)
    one = found.multiplier.size == 1 and found.shift.size == 1
    if one:
        quant = structure(
            "cmsis_nn_per_tensor_quant_params", "quant", multiplier=found.multiplier[0], shift=found.shift[0]
        )
    else:
        data["multiplier"] = np.broadcast_to(found.multiplier, units)
        data["shift"] = np.broadcast_to(found.shift, units)
        quant = structure(
            "cmsis_nn_per_channel_quant_params", "quant", multiplier="(int32_t *)multiplier", shift="(int32_t *)shift"
        )
    name = "arm_fully_connected_s8" if one else "arm_fully_connected_per_channel_s8"
    buffer = {"buf": "(void *)sums", "size": 4 * units} if kind == MVE else {"buf": "NULL", "size": 0}
    lines = (
        structure("cmsis_nn_context", "context", **buffer),
        structure(
            "cmsis_nn_fc_params", "params", input_offset=offset, filter_offset=0, output_offset=found.zero_point,
            activation={"min": found.minimum, "max": found.maximum},
        ),
        quant,
        dims("input", rows, 1, 1, depth),
        dims("filter", depth, 1, 1, units),
        dims("biases", 1, 1, 1, units),
        dims("output", rows, 1, 1, units),
        f"(void){name}(&context, &params, &quant, &input, in_0, &filter, weight, &biases, bias, &output, out_0);",
    )  # fmt: skip
    cost = CALL + rows * units * (PRODUCT[kind] * depth + RESULT[kind])
    used = (name, "arm_vector_sum_s8") if kind == MVE else (name,)
    return Code(lines, data, 0, cost, 400, used)


def _weights(region: Region, channels: int) -> tuple[Array, Array]:
    """Weights and bias; zeros where there is none."""
    weight, *bias = (region.const(name) for name in region.root.inputs[1:] if name)
    assert weight is not None
    given = bias[0] if bias and bias[0] is not None else np.zeros(channels, np.int32)
    return weight, given.reshape(-1)


def _geometry(region: Region) -> Geometry:
    data, weight = (region.type(name).shape for name in region.root.inputs[:2])
    return geometry(region.root.attrs, data, weight)


def _patch_bytes(g: Geometry) -> int:
    """What ``arm_convolve_wrapper_s8`` needs at most, in any version: four patches of int8, each in whole vectors of 16."""
    return 4 * (-(-g.kernel[0] * g.kernel[1] * g.channels // 16) * 16)


def _depthwise_bytes(g: Geometry) -> int:
    """What ``arm_depthwise_conv_wrapper_s8`` needs at most: a patch of int16, or four blocks of 124 channels; of one channel of
    data, which MVE computes as a convolution, its patches and the weights turned round."""
    taps = g.kernel[0] * g.kernel[1]
    blocks = max(2 * g.channels * taps, 4 * 124 * taps)
    return max(blocks, _patch_bytes(g) + g.out_channels * taps) if g.channels == 1 else blocks
