# SPDX-License-Identifier: Apache-2.0
"""Converters of TFLite's layers: convolution, dense, SVDF, pooling, softmax, BATCH_MATMUL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Annotated

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.signature import Only, Rank, ReadWith, Value
from microc.frontend.tflite.context import (
    FLOAT,
    Activation,
    ConverterTable,
    OpContext,
    Operand,
    Positive,
    Variable,
    emit_float32_activation_as_output,
    resolve_padding_scheme,
)
from microc.graph.ir import Attr, Quant

CONVERTERS = ConverterTable()

# ---- Operands and options that layers have in common.

_WEIGHT_DTYPES = {"float32": ("float32", "int8"), "int8": ("int8",), "uint8": ("uint8",), "int16": ("int8",)}
_BIAS_DTYPES = {"float32": ("float32",), "int8": ("int32",), "uint8": ("int32",), "int16": ("int64", "int32")}


def _make_constant_reader(
    noun: str, allowed_dtypes: Mapping[str, tuple[str, ...]]
) -> Callable[[OpContext, int], Value]:
    """Return the function that reads a constant operand of a layer, and refuses it unless its dtype fits the output's.

    ``noun``: what the operand is, for the error. ``allowed_dtypes``: its dtypes by that of the output."""

    def read_constant(context: OpContext, input_position: int) -> Value:
        dtype, output_dtype = context.input_tensor(input_position).type.dtype, context.output_dtype()
        if dtype not in allowed_dtypes[output_dtype]:
            context.refuse(
                f"{noun}: dtype {dtype} does not match the output's dtype {output_dtype}",
                f"convert the {noun} to {' or '.join(allowed_dtypes[output_dtype])}",
            )
        return context.constant_value(input_position)

    return read_constant


_read_weights = _make_constant_reader("weights", _WEIGHT_DTYPES)
_read_bias = _make_constant_reader("bias", _BIAS_DTYPES)


Image = Annotated[Operand, Rank(4, 4, has_elements=True)]
"""Operand NHWC of arithmetic."""
Filter = Annotated[Value, ReadWith(_read_weights), Rank(4, 4, has_elements=True)]
"""Constant weights of a convolution."""
Bias = Annotated[Value, ReadWith(_read_bias)]
"""Constant bias of a layer."""
_Matrix = Annotated[Operand, Rank(2, 2, has_elements=True)]


@frozen
class ConvolutionOptions:
    """Options of a convolution and of its transpose."""

    padding: int
    stride_w: Positive
    stride_h: Positive
    fused_activation_function: Activation

    @property
    def strides(self) -> tuple[int, int]:
        """Strides along height and width."""
        return self.stride_h, self.stride_w


@frozen
class _PoolOptions(ConvolutionOptions):
    """Options of a pool."""

    filter_width: Positive
    filter_height: Positive

    @property
    def kernel(self) -> tuple[int, int]:
        """Height and width of the window."""
        return self.filter_height, self.filter_width


def _get_window_attrs(
    context: OpContext,
    options: ConvolutionOptions,
    data: Value,
    kernel: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
) -> dict[str, Attr]:
    """Return the attributes that convolutions and pools have in common: strides, padding and activation."""
    height, width = data.shape[1:3]
    padding = resolve_padding_scheme(context, options.padding, (height, width), kernel, options.strides, dilation)
    return {"strides": options.strides, "padding": padding, "activation": options.fused_activation_function}


def get_dynamic_attrs(context: OpContext, weights: Value, is_asymmetric: bool | None) -> dict[str, Attr]:
    """Return the attribute ``dynamic`` of a hybrid layer, which has float data and int8 weights; {} for any other
    layer.

    The attribute records whether LiteRT quantises the data symmetrically or asymmetrically at run time.
    ``is_asymmetric`` None means asymmetrically if the weights have a scale for each channel."""
    quant = weights.quant
    if context.output_dtype() != "float32" or weights.dtype != "int8" or quant is None or any(quant.zero_point):
        return {}
    if is_asymmetric is None:
        is_asymmetric = quant.axis is not None
    return {"dynamic": "asymmetric" if is_asymmetric else "symmetric"}


def emit_weights(context: OpContext, weights: Value, *, channel_axis: int, axis_order: tuple[int, ...] = ()) -> Value:
    """Return the constant weights of a layer, transposed to ``axis_order`` if it is not empty.

    Weights may be quantised per tensor, or along ``channel_axis``. int8 weights of a float layer are dequantised; the
    layer's attribute ``dynamic`` records how LiteRT computes such a layer."""
    quant = weights.quant
    if weights.dtype != "float32" and quant is None:
        context.refuse(f"{weights.dtype} weights {str(weights)!r} have no quantisation", "give them scales")
    if quant and quant.axis not in (None, channel_axis):
        context.refuse(
            f"weights: quantisation axis is {quant.axis}, expected {channel_axis}",
            "quantise per output channel, or per tensor",
        )
    stored = weights
    if axis_order:
        quant = replace(quant, axis=0) if quant and quant.axis is not None else quant
        stored = context.new_constant(f"{weights}_ohwi", context.data(weights).transpose(axis_order), quant)
    if context.output_dtype() == "float32" and quant is not None:
        return _emit_dequantized_weights(context, stored, quant)
    return stored


def _emit_dequantized_weights(context: OpContext, stored: Value, quant: Quant) -> Value:
    """Return integer weights as float32."""
    attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
    return context.emit("dequantize", (stored,), attrs, like=replace(stored.type, dtype="float32", quant=None))


def flatten_bias(context: OpContext, bias: Value | None, channel_count: int) -> tuple[Value, ...]:
    """Return a tuple with a layer's bias of ``channel_count`` elements; () if the layer has none."""
    if bias is None:
        return ()
    if bias.size != channel_count:
        context.broken(f"bias: got shape {bias.shape}, expected {channel_count} elements, one for each output channel")
    if bias.rank == 1:
        return (bias,)
    return (context.new_constant(f"{bias}_flat", context.data(bias).reshape(channel_count)),)


# ---- Converters of layers: convolution, dense, SVDF, pooling, softmax.


@CONVERTERS.register("CONV_2D", options="Conv2DOptions")
def convert_conv_2d(
    context: OpContext,
    data: Image,
    weights: Filter,
    bias: Bias | None,
    *,
    options: ConvolutionOptions,
    dilation_w_factor: Positive = 1,
    dilation_h_factor: Positive = 1,
) -> None:
    """Convert CONV_2D with weights OHWI.

    It is a grouped convolution if the weights have fewer input channels than the data."""
    channels = data.shape[3]
    out_channels, height, width, depth = weights.shape
    if channels % depth or out_channels % (channels // depth):
        context.broken(
            f"filter: got {out_channels} x {depth} channels for {channels} input channels, expected {depth} to divide "
            f"{channels}, and {channels // depth} groups to divide {out_channels}"
        )
    dilation = (dilation_h_factor, dilation_w_factor)
    attrs = _get_window_attrs(context, options, data, (height, width), dilation)
    attrs |= {"dilation": dilation, "groups": channels // depth, "layout": "NHWC"}
    attrs |= get_dynamic_attrs(context, weights, None)
    kernel = emit_weights(context, weights, channel_axis=0)
    context.result("conv2d", (data, kernel, *flatten_bias(context, bias, out_channels)), attrs)


@CONVERTERS.register("DEPTHWISE_CONV_2D", options="DepthwiseConv2DOptions")
def convert_depthwise_conv_2d(
    context: OpContext,
    data: Image,
    weights: Filter,
    bias: Bias | None,
    *,
    options: ConvolutionOptions,
    dilation_w_factor: Positive = 1,
    dilation_h_factor: Positive = 1,
) -> None:
    """Convert DEPTHWISE_CONV_2D to a convolution with C groups.

    The weights (1, H, W, C * multiplier) are transposed to OHWI with one input channel."""
    channels = data.shape[3]
    one, height, width, out_channels = weights.shape
    if one != 1 or out_channels % channels:
        context.broken(
            f"filter: got {one} x {out_channels} channels, expected 1 x a multiple of {channels}, the input channels"
        )
    dilation = (dilation_h_factor, dilation_w_factor)
    attrs = _get_window_attrs(context, options, data, (height, width), dilation)
    attrs |= {"dilation": dilation, "groups": channels, "layout": "NHWC", **get_dynamic_attrs(context, weights, True)}
    kernel = emit_weights(context, weights, channel_axis=3, axis_order=(3, 1, 2, 0))
    context.result("conv2d", (data, kernel, *flatten_bias(context, bias, out_channels)), attrs)


def _read_weights_or_product(context: OpContext, input_position: int) -> Value:
    """Return the weights of FULLY_CONNECTED, which may be computed by the network.

    TFLite converters write a product of two activations like this. Data and weights then have the same dtype."""
    weights = context.value(input_position)
    if weights.constant is not None:
        return _read_weights(context, input_position)
    dtype = context.input_tensor(0).type.dtype
    if weights.dtype != dtype or dtype not in ("float32", "int8", "uint8"):
        context.refuse(
            f"computed weights: got {weights.dtype}, expected the dtype of the data, {dtype}",
            "convert both to float32, int8 or uint8",
        )
    if weights.quant and weights.quant.axis is not None:
        context.refuse("computed weights: quantisation per channel is not supported", "quantise them per tensor")
    return context.operand(input_position)


@CONVERTERS.register("FULLY_CONNECTED", options="FullyConnectedOptions")
def convert_fully_connected(
    context: OpContext,
    data: Operand,
    weights: Annotated[Value, ReadWith(_read_weights_or_product), Rank(2, 2, has_elements=True)],
    bias: Bias | None,
    *,
    fused_activation_function: Activation = "",
    weights_format: Annotated[int, Only(0, "convert the model with DEFAULT weights")] = 0,
    keep_num_dims: bool = False,
    asymmetric_quantize_inputs: bool = False,
) -> None:
    """Convert FULLY_CONNECTED: the product of the data, reshaped to (M, K), and the weights (N, K).

    The output is (M, N), or has the leading axes of the data if ``keep_num_dims`` is set."""
    units, depth = weights.shape
    if not data.size or data.size % depth:
        context.broken(
            f"input: got shape {data.shape}, expected a multiple of {depth} elements for weights of {units} x {depth}"
        )
    rows = data.size // depth
    attrs: dict[str, Attr] = {"activation": fused_activation_function}
    attrs |= get_dynamic_attrs(context, weights, asymmetric_quantize_inputs)
    matrix = emit_weights(context, weights, channel_axis=0) if weights.constant is not None else weights
    operands = (context.reshape(data, (rows, depth)), matrix, *flatten_bias(context, bias, units))
    keep = keep_num_dims and data.shape and data.shape[-1] == depth
    shape = (*data.shape[:-1], units) if keep else (rows, units)
    declared = context.output_tensor()
    if not declared.unknown_axes and prod(declared.type.shape) == rows * units and declared.type.shape:
        shape = declared.type.shape
    if shape == (rows, units):
        context.result("dense", operands, attrs)
    else:
        context.result_reshape(context.emit("dense", operands, attrs, like=declared.type), shape)


_FactoredWeights = Annotated[Value, ReadWith(OpContext.constant_value), Rank(2, 2, has_elements=True)]


@CONVERTERS.register("SVDF", options="SVDFOptions", dtypes=("float32", "int8"))
def convert_svdf(
    context: OpContext,
    data: _Matrix,
    feature_weights: _FactoredWeights,
    time_weights: _FactoredWeights,
    bias: Bias | None,
    state: Variable,
    *,
    rank: Positive,
    fused_activation_function: Activation = "",
    asymmetric_quantize_inputs: bool = False,
) -> None:
    """Convert SVDF: a dense layer over the last time steps, whose weights are factored into ``rank`` terms.

    The memory of earlier time steps is a variable tensor, which becomes a state of the graph."""
    is_real = data.dtype == "float32"
    allowed_dtypes = (
        [("float32", "int8"), ("float32", "int8"), ("float32",)] if is_real else [("int8",), *[("int8", "int16")] * 2]
    )
    dtypes = [value.dtype for value in (feature_weights, time_weights, state)]
    if any(dtype not in allowed for dtype, allowed in zip(dtypes, allowed_dtypes, strict=True)):
        context.refuse(
            f"weights and state: got dtypes {', '.join(dtypes)}",
            "convert int8 data with int8 features, int8 or int16 time weights and state; float data with float or int8 weights",
        )
    (rows, depth), (filters, taps) = data.shape, time_weights.shape
    if feature_weights.shape != (filters, depth) or filters % rank:
        context.broken(
            f"got feature weights {feature_weights.shape} and rank {rank}, "
            f"expected ({filters}, {depth}) and a divisor of {filters}"
        )
    if state.size != rows * filters * taps:
        context.broken(f"state: got shape {state.shape}, expected {filters} x {taps} (filters x taps) for each row")
    attrs: dict[str, Attr] = {"rank": rank, "activation": fused_activation_function}
    attrs |= get_dynamic_attrs(context, feature_weights, asymmetric_quantize_inputs)
    if is_real:
        feature_weights = emit_weights(context, feature_weights, channel_axis=0)
        time_weights = emit_weights(context, time_weights, channel_axis=0)
    biases = flatten_bias(context, bias, filters // rank)
    memory = context.builder.define_state(str(state), state.type, None, context.where)
    if not biases:
        zeros = np.zeros(filters // rank, "float32" if is_real else "int32")
        biases = (context.new_constant(f"{context.output_tensor().name}_bias", zeros),)
    context.result_with_state("svdf", (data, feature_weights, time_weights, *biases, memory), attrs, memory)


def _make_pool_converter(op: str) -> Callable[..., None]:
    """Make a converter of AVERAGE_POOL_2D or MAX_POOL_2D. The average does not count padding."""

    def convert_pool(context: OpContext, data: Image, *, options: _PoolOptions) -> None:
        attrs = _get_window_attrs(context, options, data, options.kernel)
        attrs |= {"kernel": options.kernel, "layout": "NHWC"}
        if op == "avg_pool2d":
            attrs["count_include_pad"] = False
        context.result(op, (data,), attrs)

    return convert_pool


for _code, _op in (("AVERAGE_POOL_2D", "avg_pool2d"), ("MAX_POOL_2D", "max_pool2d")):
    CONVERTERS.register(_code, options="Pool2DOptions")(_make_pool_converter(_op))


@CONVERTERS.register("L2_POOL_2D", options="Pool2DOptions", dtypes=FLOAT)
def convert_l2_pool_2d(context: OpContext, data: Image, *, options: _PoolOptions) -> None:
    """Convert L2_POOL_2D: the square root of the mean of the squares in each window. The mean does not count
    padding."""
    attrs = _get_window_attrs(context, options, data, options.kernel)
    del attrs["activation"]
    attrs |= {"kernel": options.kernel, "layout": "NHWC", "count_include_pad": False}
    mean = context.emit("avg_pool2d", (context.emit("mul", (data, data)),), attrs)
    root = context.emit("sqrt", (mean,))
    emit_float32_activation_as_output(context, root, options.fused_activation_function)


def _read_logits(context: OpContext, input_position: int) -> Value:
    """Return the operand of SOFTMAX, which may be int8 if the output is int16."""
    source, target = context.input_tensor(input_position).type.dtype, context.output_dtype()
    if source != target and (source, target) != ("int8", "int16"):
        context.refuse(
            f"got {source} input and {target} output, expected equal dtypes",
            "use one dtype, or int8 input and int16 output",
        )
    return context.operand(input_position, source, symmetric=source == target)


@CONVERTERS.register("SOFTMAX", options="SoftmaxOptions")
def convert_softmax(
    context: OpContext,
    data: Annotated[Value, ReadWith(_read_logits), Rank(1, None, has_elements=True)],
    *,
    beta: float = 1.0,
) -> None:
    """Convert SOFTMAX over the last axis. The output of int8 data may be int16."""
    if not beta > 0:
        context.broken(f"beta is {beta}, expected a positive number")
    context.result("softmax", (data,), {"axis": data.rank - 1, "beta": beta})


@CONVERTERS.register("LOG_SOFTMAX", dtypes=(*FLOAT, "int8"))
def convert_log_softmax(context: OpContext, data: Operand) -> None:
    """Convert LOG_SOFTMAX over the last axis."""
    context.result("log_softmax", (data,))


# ---- Converter of BATCH_MATMUL of floats, of integers, and of float data by a constant int8 matrix.


def _read_factor(context: OpContext, input_position: int) -> Value:
    """Return the right operand of BATCH_MATMUL, which may be int8 for float data, and a constant of int8 for int16
    data."""
    dtypes = context.input_tensor(0).type.dtype, context.input_tensor(input_position).type.dtype
    if dtypes in (("float32", "int8"), ("int16", "int8")):
        return context.constant_value(input_position)
    return context.operand(input_position)


@CONVERTERS.register("BATCH_MATMUL", options="BatchMatMulOptions", dtypes=(*FLOAT, "int8", "int16"))
def convert_batch_matmul(
    context: OpContext,
    x: Annotated[Operand, Rank(2, 5, has_elements=True)],
    y: Annotated[Value, ReadWith(_read_factor), Rank(2, 5, has_elements=True)],
    *,
    adj_x: bool = False,
    adj_y: bool = False,
    asymmetric_quantize_inputs: bool = False,
) -> None:
    """Convert BATCH_MATMUL. An operand whose adjoint option is set is transposed first.

    The int8 operand of int16 data must be a constant; it is widened to int16 at compile time.
    """
    data = _transpose_if_adjoint(context, x, adj_x)
    if (x.dtype, y.dtype) == ("float32", "int8"):
        _emit_matmul_of_int8_weights(context, data, y, adj_y, asymmetric_quantize_inputs)
        return
    if (x.dtype, y.dtype) == ("int16", "int8"):
        y = context.new_constant("widened", context.data(y).astype(np.int16), y.quant)
    context.result("matmul", (data, _transpose_if_adjoint(context, y, adj_y)))


def _transpose_if_adjoint(context: OpContext, value: Value, is_adjoint: bool) -> Value:
    """Return ``value`` with its last two axes swapped if ``is_adjoint``, else unchanged."""
    axes = (*range(value.rank - 2), value.rank - 1, value.rank - 2)
    return context.emit("transpose", (value,), {"axes": axes}) if is_adjoint else value


def _emit_matmul_of_int8_weights(
    context: OpContext, data: Value, weights: Value, is_adjoint: bool, is_asymmetric: bool
) -> None:
    """Emit the product of float data and a constant int8 matrix as a dense layer with dequantised weights.

    The option ``hybrid`` with the value ``dynamic`` quantises the rows of the data of such a layer at run time. If the
    constant is no matrix, or has scales along the wrong axis, a float matmul is emitted.
    """
    quant, shape = weights.quant, data.shape
    if quant is None:
        context.refuse(f"int8 weights {str(weights)!r} have no quantisation", "give them scales")
    if weights.rank != 2 or quant.axis not in (None, int(not is_adjoint)):
        real = _emit_dequantized_weights(context, weights, quant)
        context.result("matmul", (data, _transpose_if_adjoint(context, real, is_adjoint)))
        return
    stored = context.data(weights)
    rows = stored if is_adjoint else np.ascontiguousarray(stored.T)
    quant = replace(quant, axis=None if quant.axis is None else 0)
    real = _emit_dequantized_weights(context, context.new_constant("weights", rows, quant), quant)
    if shape[-1] != rows.shape[1]:
        context.broken(
            f"input: got shape {shape}, expected a last axis of {rows.shape[1]} for {rows.shape[1]} x "
            f"{rows.shape[0]} weights"
        )
    attrs = {"activation": "", **get_dynamic_attrs(context, weights, is_asymmetric)}
    product = context.emit("dense", (context.reshape(data, (prod(shape[:-1]), shape[-1])), real), attrs)
    context.result_reshape(product, (*shape[:-1], rows.shape[0]))
