"""Converters of TFLite's layers: convolution, dense, SVDF, pooling, softmax, BATCH_MATMUL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from microc.frontend.tflite.builtin_options import OptionFields
from microc.frontend.tflite.context import (
    FLOAT,
    Converter,
    OpContext,
    activation_name,
    emit_float32_activation_as_output,
    resolve_padding_scheme,
)
from microc.graph.ir import Attr

# ---- Converters of layers: convolution, dense, SVDF, pooling, softmax.

_WEIGHT_DTYPES = {"float32": ("float32", "int8"), "int8": ("int8",), "uint8": ("uint8",), "int16": ("int8",)}
_BIAS_DTYPES = {"float32": ("float32",), "int8": ("int32",), "uint8": ("int32",), "int16": ("int64", "int32")}


def convert_conv_2d(context: OpContext) -> None:
    """Convert CONV_2D with weights OHWI.

    It is a grouped convolution if the weights have fewer input channels than the data."""
    fields = context.operator.options.fields("Conv2DOptions", required=True)
    data = context.operand(0)
    weight = read_layer_weights(context, 1, channel_axis=0)
    channels = context.shape_of_rank(data, 4)[3]
    out_channels, height, width, depth = context.shape_of_rank(weight, 4)
    if channels % depth or out_channels % (channels // depth):
        context.broken(
            f"filter: got {out_channels} x {depth} channels for {channels} input channels, expected {depth} to divide "
            f"{channels}, and {channels // depth} groups to divide {out_channels}"
        )
    bias = read_layer_bias(context, 2, out_channels)
    attrs = _read_window_attributes(context, fields, data, (height, width), has_dilation=True)
    attrs |= {"groups": channels // depth, "layout": "NHWC", **dynamic_quantisation_attrs(context, None)}
    context.result("conv2d", (data, weight, *bias), attrs)


def convert_depthwise_conv_2d(context: OpContext) -> None:
    """Convert DEPTHWISE_CONV_2D to a convolution with C groups.

    The weights (1, H, W, C * multiplier) are transposed to OHWI with one input channel."""
    fields = context.operator.options.fields("DepthwiseConv2DOptions", required=True)
    data = context.operand(0)
    channels = context.shape_of_rank(data, 4)[3]
    weight = read_layer_weights(context, 1, channel_axis=3, axis_order=(3, 1, 2, 0))
    out_channels, height, width, one = context.shape_of_rank(weight, 4)
    if one != 1 or out_channels % channels:
        context.broken(
            f"filter: got {one} x {out_channels} channels, expected 1 x a multiple of {channels}, the input channels"
        )
    bias = read_layer_bias(context, 2, out_channels)
    attrs = _read_window_attributes(context, fields, data, (height, width), has_dilation=True)
    attrs |= {"groups": channels, "layout": "NHWC", **dynamic_quantisation_attrs(context, True)}
    context.result("conv2d", (data, weight, *bias), attrs)


def convert_fully_connected(context: OpContext) -> None:
    """Convert FULLY_CONNECTED: the product of the data, reshaped to (M, K), and the weights (N, K).

    The output is (M, N), or has the leading axes of the data if ``KeepNumDims`` is set."""
    fields = context.operator.options.fields("FullyConnectedOptions")
    if fields.read_integer("WeightsFormat") != 0:
        context.refuse("weights_format: shuffled weights are not supported", "convert the model with DEFAULT weights")
    data = context.operand(0)
    is_constant = context.value(1) in context.builder.consts
    weight = read_layer_weights(context, 1, channel_axis=0) if is_constant else _read_computed_weights(context)
    units, depth = context.shape_of_rank(weight, 2)
    type_ = context.type(data)
    if not type_.size or type_.size % depth:
        context.broken(
            f"input: got shape {type_.shape}, expected a multiple of {depth} elements for weights of {units} x {depth}"
        )
    rows = type_.size // depth
    attrs: dict[str, Attr] = {"activation": activation_name(context, fields.read_integer("FusedActivationFunction"))}
    attrs |= dynamic_quantisation_attrs(context, bool(fields.read_integer("AsymmetricQuantizeInputs")))
    operands = (context.reshape(data, (rows, depth)), weight, *read_layer_bias(context, 2, units))
    keep = fields.read_integer("KeepNumDims") and type_.shape and type_.shape[-1] == depth
    shape = (*type_.shape[:-1], units) if keep else (rows, units)
    declared = context.output_tensor()
    if not declared.unknown_axes and prod(declared.type.shape) == rows * units and declared.type.shape:
        shape = declared.type.shape
    if shape == (rows, units):
        context.result("dense", operands, attrs)
    else:
        context.result_reshape(context.emit("dense", operands, attrs, like=declared.type), shape)


def _read_computed_weights(context: OpContext) -> str:
    """Return the weights of a FULLY_CONNECTED whose weights are computed by the network.

    TFLite converters write a product of two activations like this. Data and weights must have the same dtype."""
    dtype = context.input_tensor(0).type.dtype
    weights = context.input_tensor(1).type
    if weights.dtype != dtype or dtype not in ("float32", "int8", "uint8"):
        context.refuse(
            f"computed weights: got {weights.dtype}, expected the dtype of the data, {dtype}",
            "convert both to float32, int8 or uint8",
        )
    if weights.quant and weights.quant.axis is not None:
        context.refuse("computed weights: quantisation per channel is not supported", "quantise them per tensor")
    return context.operand(1)


def convert_svdf(context: OpContext) -> None:
    """Convert SVDF: a dense layer over the last time steps, whose weights are factored into ``rank`` terms.

    The memory of earlier time steps is a variable tensor, which becomes a state of the graph."""
    fields = context.operator.options.fields("SVDFOptions", required=True)
    data = context.operand(0)
    depth = context.shape_of_rank(data, 2)[1]
    types = [context.input_tensor(position).type for position in (1, 2, 4)]
    real = context.output_tensor().type.dtype == "float32"
    allowed_dtypes = (
        [("float32", "int8"), ("float32", "int8"), ("float32",)] if real else [("int8",), *[("int8", "int16")] * 2]
    )
    if any(type_.dtype not in dtypes for type_, dtypes in zip(types, allowed_dtypes, strict=True)):
        context.refuse(
            f"weights and state: got dtypes {', '.join(type_.dtype for type_ in types)}",
            "convert int8 data with int8 features, int8 or int16 time weights and state; float data with float or int8 weights",
        )
    for position in (1, 2):
        context.constant(position)
    if real:
        feature, time = (read_layer_weights(context, position, channel_axis=0) for position in (1, 2))
    else:
        feature, time = context.value(1), context.value(2)
    filters, taps = context.shape_of_rank(time, 2)
    rank = fields.read_integer("Rank", 1)
    if context.shape_of_rank(feature, 2) != (filters, depth) or filters % rank:
        context.broken(
            f"got feature weights {context.type(feature).shape} and rank {rank}, "
            f"expected ({filters}, {depth}) and a divisor of {filters}"
        )
    bias = read_layer_bias(context, 3, filters // rank)
    memory = context.input_tensor(4)
    if not memory.is_variable:
        context.refuse(
            f"state {memory.name!r}: got is_variable = false, expected true", "set is_variable of the tensor to true"
        )
    if prod(memory.type.shape) != prod(context.type(data).shape[:1]) * filters * taps:
        context.broken(
            f"state: got shape {memory.type.shape}, expected {filters} x {taps} (filters x taps) for each row"
        )
    state = context.builder.define_state(memory.name, memory.type, None, context.where)
    code = fields.read_integer("FusedActivationFunction")
    attrs: dict[str, Attr] = {"rank": rank, "activation": activation_name(context, code)}
    attrs |= dynamic_quantisation_attrs(context, bool(fields.read_integer("AsymmetricQuantizeInputs")))
    if not bias:
        dtype = "float32" if real else "int32"
        bias = (context.new_constant(f"{context.output_tensor().name}_bias", np.zeros(filters // rank, dtype)),)
    context.result_with_state("svdf", (data, feature, time, *bias, state), attrs, state)


def make_pool_converter(op: str) -> Converter:
    """Return the converter of AVERAGE_POOL_2D or MAX_POOL_2D. The average does not count padding."""

    def convert_pool(context: OpContext) -> None:
        fields = context.operator.options.fields("Pool2DOptions", required=True)
        data = context.operand(0)
        context.shape_of_rank(data, 4)
        kernel = (fields.read_integer("FilterHeight", 1), fields.read_integer("FilterWidth", 1))
        attrs = _read_window_attributes(context, fields, data, kernel, has_dilation=False)
        attrs |= {"kernel": kernel, "layout": "NHWC"}
        if op == "avg_pool2d":
            attrs["count_include_pad"] = False
        context.result(op, (data,), attrs)

    return Converter(convert_pool)


def convert_l2_pool_2d(context: OpContext) -> None:
    """Convert L2_POOL_2D: the square root of the mean of the squares in each window. The mean does not count
    padding."""
    fields = context.operator.options.fields("Pool2DOptions", required=True)
    data = context.operand(0)
    context.shape_of_rank(data, 4)
    kernel = (fields.read_integer("FilterHeight", 1), fields.read_integer("FilterWidth", 1))
    attrs = _read_window_attributes(context, fields, data, kernel, has_dilation=False)
    function = str(attrs.pop("activation"))
    attrs |= {"kernel": kernel, "layout": "NHWC", "count_include_pad": False}
    mean = context.emit("avg_pool2d", (context.emit("mul", (data, data), {}),), attrs)
    root = context.emit("sqrt", (mean,), {})
    emit_float32_activation_as_output(context, root, function)


def convert_softmax(context: OpContext) -> None:
    """Convert SOFTMAX over the last axis. The output of int8 data may be int16."""
    fields = context.operator.options.fields("SoftmaxOptions")
    source, target = context.input_tensor(0).type.dtype, context.output_tensor().type.dtype
    if source != target and (source, target) != ("int8", "int16"):
        context.refuse(
            f"got {source} input and {target} output, expected equal dtypes",
            "use one dtype, or int8 input and int16 output",
        )
    data = context.operand(0, source, symmetric=source == target)
    axis = len(context.shape_of_rank(data, *range(1, 9))) - 1
    beta = fields.read_float("Beta") if context.operator.options.table_type else 1.0
    if not beta > 0:
        context.broken(f"beta is {beta}, expected a positive number")
    context.result("softmax", (data,), {"axis": axis, "beta": beta})


def convert_log_softmax(context: OpContext) -> None:
    """Convert LOG_SOFTMAX over the last axis."""
    context.result("log_softmax", (context.operand(0),), {})


def _read_window_attributes(
    context: OpContext, fields: OptionFields, data_name: str, kernel_extents: tuple[int, int], *, has_dilation: bool
) -> dict[str, Attr]:
    """Return the attributes that convolutions and pools have in common: strides, padding, activation, and dilation if
    ``has_dilation``."""
    strides = (fields.read_integer("StrideH", 1), fields.read_integer("StrideW", 1))
    dilation = (
        (fields.read_integer("DilationHFactor", 1), fields.read_integer("DilationWFactor", 1))
        if has_dilation
        else (1, 1)
    )
    height, width = context.type(data_name).shape[1:3]
    padding = resolve_padding_scheme(
        context, fields.read_integer("Padding"), (height, width), kernel_extents, strides, dilation
    )
    attrs: dict[str, Attr] = {
        "strides": strides,
        "padding": padding,
        "activation": activation_name(context, fields.read_integer("FusedActivationFunction")),
    }
    if has_dilation:
        attrs["dilation"] = dilation
    return attrs


def dynamic_quantisation_attrs(context: OpContext, is_asymmetric: bool | None) -> dict[str, Attr]:
    """Return the attribute ``dynamic`` of a hybrid layer, which has float data and int8 weights; {} for any other
    layer.

    The attribute records whether LiteRT quantises the data symmetrically or asymmetrically at run time.
    ``is_asymmetric`` None means asymmetrically if the weights have a scale for each channel."""
    target, weights = context.output_tensor().type, context.input_tensor(1).type
    if target.dtype != "float32" or weights.dtype != "int8" or weights.quant is None or any(weights.quant.zero_point):
        return {}
    if is_asymmetric is None:
        is_asymmetric = weights.quant.axis is not None
    return {"dynamic": "asymmetric" if is_asymmetric else "symmetric"}


def read_layer_weights(
    context: OpContext, input_position: int, *, channel_axis: int, axis_order: tuple[int, ...] = ()
) -> str:
    """Return the name of a layer's constant weights, transposed to ``axis_order`` if it is not empty.

    Weights may be quantised per tensor, or along ``channel_axis``. int8 weights of a float layer are dequantised; the
    layer's attribute ``dynamic`` records how LiteRT computes such a layer."""
    tensor, dtype = context.input_tensor(input_position), context.output_tensor().type.dtype
    type_ = tensor.type
    if type_.dtype not in _WEIGHT_DTYPES[dtype]:
        context.refuse(
            f"weights: dtype {type_.dtype} does not match the output's dtype {dtype}",
            f"convert the weights to {' or '.join(_WEIGHT_DTYPES[dtype])}",
        )
    data = context.constant(input_position)
    if type_.dtype != "float32" and type_.quant is None:
        context.refuse(f"{type_.dtype} weights {tensor.name!r} have no quantisation", "give them scales")
    if type_.quant and type_.quant.axis not in (None, channel_axis):
        context.refuse(
            f"weights: quantisation axis is {type_.quant.axis}, expected {channel_axis}",
            "quantise per output channel, or per tensor",
        )
    name, quant = tensor.name, type_.quant
    if axis_order:
        if data.ndim != len(axis_order):
            context.broken(f"got weights of {data.ndim} axes, expected {len(axis_order)}")
        quant = replace(quant, axis=0) if quant and quant.axis is not None else quant
        name = context.new_constant(f"{tensor.name}_ohwi", data.transpose(axis_order), quant)
    if dtype == "float32" and quant is not None:
        attrs: Mapping[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
        name = context.emit("dequantize", (name,), attrs, like=replace(type_, dtype="float32", quant=None))
    return name


def read_layer_bias(context: OpContext, input_position: int, channel_count: int) -> tuple[str, ...]:
    """Return a tuple with the name of a layer's constant bias of ``channel_count`` elements; () if the layer has
    none."""
    if not context.has_input(input_position):
        return ()
    tensor, dtype = context.input_tensor(input_position), context.output_tensor().type.dtype
    if tensor.type.dtype not in _BIAS_DTYPES[dtype]:
        context.refuse(
            f"bias: dtype {tensor.type.dtype} does not match the output's dtype {dtype}",
            f"convert the bias to {' or '.join(_BIAS_DTYPES[dtype])}",
        )
    data = context.constant(input_position)
    if data.size != channel_count:
        context.broken(f"bias: got shape {data.shape}, expected {channel_count} elements, one for each output channel")
    if data.ndim == 1:
        return (tensor.name,)
    return (context.new_constant(f"{tensor.name}_flat", data.reshape(channel_count)),)


NEURAL_CONVERTERS: Mapping[str, Converter] = {
    "AVERAGE_POOL_2D": make_pool_converter("avg_pool2d"),
    "CONV_2D": Converter(convert_conv_2d),
    "DEPTHWISE_CONV_2D": Converter(convert_depthwise_conv_2d),
    "FULLY_CONNECTED": Converter(convert_fully_connected),
    "L2_POOL_2D": Converter(convert_l2_pool_2d, FLOAT),
    "LOG_SOFTMAX": Converter(convert_log_softmax, (*FLOAT, "int8")),
    "MAX_POOL_2D": make_pool_converter("max_pool2d"),
    "SOFTMAX": Converter(convert_softmax),
    "SVDF": Converter(convert_svdf, ("float32", "int8")),
}


# ---- Converter of BATCH_MATMUL of floats, of integers, and of float data by a constant int8 matrix.


def convert_batch_matmul(context: OpContext) -> None:
    """Convert BATCH_MATMUL. An operand whose adjoint option (AdjX, AdjY) is set is transposed first.

    The int8 operand of int16 data must be a constant; it is widened to int16 at compile time.
    """
    fields = context.operator.options.fields("BatchMatMulOptions")
    adjoint = [bool(fields.read_integer(name)) for name in ("AdjX", "AdjY")]
    left, right = (context.input_tensor(position).type.dtype for position in (0, 1))
    data = _transpose_if_adjoint(context, context.operand(0), adjoint[0])
    if (left, right) == ("float32", "int8"):
        _emit_matmul_of_int8_weights(context, data, adjoint[1], bool(fields.read_integer("AsymmetricQuantizeInputs")))
        return
    if (left, right) == ("int16", "int8"):
        other = context.new_constant(
            "widened", context.constant(1).astype(np.int16), context.input_tensor(1).type.quant
        )
    else:
        other = context.operand(1)
    context.result("matmul", (data, _transpose_if_adjoint(context, other, adjoint[1])), {})


def _transpose_if_adjoint(context: OpContext, value: str, is_adjoint: bool) -> str:
    """Return ``value`` with its last two axes swapped if ``is_adjoint``, else unchanged."""
    rank = len(context.shape_of_rank(value, 2, 3, 4, 5))
    axes = (*range(rank - 2), rank - 1, rank - 2)
    return context.emit("transpose", (value,), {"axes": axes}) if is_adjoint else value


def _emit_matmul_of_int8_weights(context: OpContext, data_name: str, is_adjoint: bool, is_asymmetric: bool) -> None:
    """Emit the product of float data and a constant int8 matrix as a dense layer with dequantised weights.

    The option ``hybrid`` with the value ``dynamic`` quantises the rows of the data of such a layer at run time. If the
    constant is no matrix, or has scales along the wrong axis, a float matmul is emitted.
    """
    tensor, weight = context.input_tensor(1), context.constant(1)
    quant = tensor.type.quant
    if quant is None:
        context.refuse(f"int8 weights {tensor.name!r} have no quantisation", "give them scales")
    attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
    if weight.ndim != 2 or quant.axis not in (None, int(not is_adjoint)) or len(context.type(data_name).shape) < 2:
        real = context.emit("dequantize", (tensor.name,), attrs, like=replace(tensor.type, dtype="float32", quant=None))
        context.result("matmul", (data_name, _transpose_if_adjoint(context, real, is_adjoint)), {})
        return
    rows = weight if is_adjoint else np.ascontiguousarray(weight.T)
    attrs["axis"] = None if quant.axis is None else 0
    name = context.new_constant("weights", rows, replace(quant, axis=None if quant.axis is None else 0))
    real = context.emit(
        "dequantize", (name,), attrs, like=replace(tensor.type, shape=rows.shape, dtype="float32", quant=None)
    )
    shape = context.type(data_name).shape
    if shape[-1] != rows.shape[1]:
        context.broken(
            f"input: got shape {shape}, expected a last axis of {rows.shape[1]} for {rows.shape[1]} x "
            f"{rows.shape[0]} weights"
        )
    dynamic: Mapping[str, Attr] = (
        {} if any(quant.zero_point) else {"dynamic": "asymmetric" if is_asymmetric else "symmetric"}
    )
    flat = context.reshape(data_name, (prod(shape[:-1]), shape[-1]))
    product = context.emit("dense", (flat, real), {"activation": "", **dynamic})
    context.result_reshape(product, (*shape[:-1], rows.shape[0]))


MATMUL_CONVERTERS: Mapping[str, Converter] = {
    "BATCH_MATMUL": Converter(convert_batch_matmul, (*FLOAT, "int8", "int16"))
}
