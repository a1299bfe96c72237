"""Converters of TFLite's elementwise operators, dtype conversions, comparisons and reductions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.frontend import formulas
from microc.frontend.formulas import make_operator_emitter
from microc.frontend.tflite.context import (
    FLOAT,
    MOVABLE,
    ONE_SCALE,
    PLAIN,
    QUANTISED,
    REAL,
    Converter,
    OpContext,
    activation_name,
    check_same_quantisation,
    dequantised_operand,
    emit_output_from_float32,
    reinterpret_as_integers,
)
from microc.graph.ir import Attr
from microc.numerics import quantize_multiplier
from microc.ops.attributes import Multiplier, Rounding, Ties
from microc.ops.elementwise.lookup import int16_function_table

# ---- Converters of elementwise operators: arithmetic, mathematical functions, bitwise operators.

_INT8 = (*FLOAT, "int8")
_BYTES = (*FLOAT, "int8", "uint8")
_SIGNED = (*FLOAT, "int8", "int16")
_BITS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
_NO_ATTRS: Mapping[str, Attr] = {}


def make_unary_converter(
    op: str, output_dtypes: tuple[str, ...] = FLOAT, attrs: Mapping[str, Attr] = _NO_ATTRS
) -> Converter:
    """Return the converter of a TFLite operator with one operand and no options.

    ``op``: microc's operator, ``attrs``: its attributes. int32 and int64 operands must not have a scale."""

    def convert_unary(context: OpContext) -> None:
        _refuse_quantised_int32_or_int64(context)
        context.result(op, (context.operand(0),), attrs)

    return Converter(convert_unary, output_dtypes)


def make_table_interpolation_converter(op: str) -> Converter:
    """Return the converter of a mathematical function ``op`` that TFLite computes for int16 by interpolation in a
    table.

    Other dtypes become microc's operator ``op``."""
    plain = make_unary_converter(op, _SIGNED)

    def convert_by_table_interpolation(context: OpContext) -> None:
        if not _try_int16_table_interpolation(context, op):
            plain.convert(context)

    return Converter(convert_by_table_interpolation, _SIGNED)


def _try_int16_table_interpolation(context: OpContext, function_name: str) -> bool:
    """Convert a mathematical function of int16 to ``lookup16``, which interpolates in a table as TFLite does.

    Return False, and append nothing, unless operand and result are quantised int16 tensors with zero point 0."""
    source, target = context.input_tensor(0).type, context.output_tensor().type
    if any(type_.dtype != "int16" or type_.quant is None or any(type_.quant.zero_point) for type_ in (source, target)):
        return False
    operand = context.operand(0)
    assert source.quant is not None and target.quant is not None
    table = int16_function_table(function_name, source.quant.scale[0], target.quant.scale[0])
    context.result("lookup16", (operand, context.new_constant(f"{function_name}_table", table)), {})
    return True


def make_binary_converter(op: str, options_table: str = "", output_dtypes: tuple[str, ...] = REAL) -> Converter:
    """Return the converter of a TFLite operator with two operands that are broadcast.

    ``op``: microc's operator. ``options_table``: the schema's name of the options table with the fused activation; ""
    if the operator has none. ``output_dtypes``: allowed dtypes of the output."""

    def convert_binary(context: OpContext) -> None:
        attrs: dict[str, Attr] = {}
        if options_table:
            code = context.operator.options.fields(options_table).read_integer("FusedActivationFunction")
            attrs["activation"] = activation_name(context, code)
        _refuse_quantised_int32_or_int64(context)
        context.result(op, (context.operand(0), context.operand(1)), attrs)

    return Converter(convert_binary, output_dtypes)


def make_converter_ignoring_scales(op: str, output_dtypes: tuple[str, ...]) -> Converter:
    """Return the converter of a TFLite operator that computes with the stored integers and ignores their scales."""

    def convert_ignoring_scales(context: OpContext) -> None:
        value = context.emit(
            op,
            [reinterpret_as_integers(context, context.unchanged_operand(k)) for k in (0, 1)],
            {"rounding": Rounding.NONE},
        )
        context.result_reshape(value, context.type(value).shape)

    return Converter(convert_ignoring_scales, output_dtypes)


def make_extremum_converter(op: str) -> Converter:
    """Return the converter of MAXIMUM or MINIMUM.

    TFLite compares the stored integers. Therefore both operands and the output must have the same quantisation."""

    def convert_extremum(context: OpContext) -> None:
        _refuse_quantised_int32_or_int64(context)
        quants = {
            context.input_tensor(0).type.quant,
            context.input_tensor(1).type.quant,
            context.output_tensor().type.quant,
        }
        if context.output_tensor().type.dtype in QUANTISED and len(quants) != 1:
            context.refuse("quantisation: operands and output have different scales or zero points", ONE_SCALE)
        context.result(op, (context.operand(0), context.operand(1)), {})

    return Converter(convert_extremum, (*REAL, *PLAIN))


def _refuse_quantised_int32_or_int64(context: OpContext) -> None:
    """Refuse an output of 32- or 64-bit integers with a scale: TFLite computes with the stored integers and ignores the
    scale."""
    if context.output_tensor().type.dtype in PLAIN and context.output_tensor().type.quant is not None:
        context.refuse(
            f"output: got quantised {context.output_tensor().type.dtype}, expected no scale",
            "remove the scale: 32- and 64-bit integers are not quantised",
        )


_ADD_N_SHIFT = 20


def convert_add_n(context: OpContext) -> None:
    """Convert ADD_N, the sum of all operands. The operands must have the same shape and quantisation."""
    values = [context.operand(position) for position in range(len(context.operator.inputs))]
    types, target = [context.type(value) for value in values], context.output_tensor().type
    if len(values) < 2:
        context.broken("got one operand, expected at least two")
    if any(type_.shape != types[0].shape or type_.quant != types[0].quant for type_ in types):
        context.refuse(
            "operands: got different shapes, scales or zero points, expected equal ones",
            "write the sum as several ADD operators",
        )
    if target.dtype == "int8":
        _convert_int8_add_n(context, values)
        return
    total = values[0]
    for value in values[1:-1]:
        total = context.emit("add", (total, value), {})
    context.result("add", (total, values[-1]), {})


def _convert_int8_add_n(context: OpContext, operand_values: list[str]) -> None:
    """Convert ADD_N of int8 operands with TFLite's fixed-point arithmetic (``reference/add_n.h``).

    TFLite shifts every operand left by 20 bits, halves it, adds all, and rescales the sum to the output. Its sum starts
    with the contribution of a stored zero; therefore ``len(operand_values) + 1`` zero points are subtracted."""
    type_, target = context.type(operand_values[0]), context.output_tensor().type
    assert type_.quant is not None and target.quant is not None
    zero, half = type_.quant.zero_point[0], 1 << _ADD_N_SHIFT - 1
    bound = (len(operand_values) + 1) * 255 * half
    if bound >= 1 << 31:
        context.refuse(
            f"got {len(operand_values)} operands, whose sum may exceed 32 bits",
            "write the sum as several ADD_N with fewer operands",
        )
    stacked = context.emit("concat", [context.reshape(v, (1, *type_.shape)) for v in operand_values], {"axis": 0})
    start: Mapping[str, Attr] = {"axes": (0,), "keepdims": False, "rounding": Rounding.NONE, "out_dtype": "int32"}
    total = context.emit("sum", (stacked,), {**start, "offset": -(len(operand_values) + 1) * zero})
    shifted = context.emit("mul", (total, context.new_constant("shift", np.array(half, np.int32))), {})
    twice = 2.0 * float(np.float32(type_.quant.scale[0]))
    mantissa, shift = quantize_multiplier(twice / ((1 << _ADD_N_SHIFT) * float(np.float32(target.quant.scale[0]))))
    low, high = dtypes.int_range(target.dtype)
    attrs: dict[str, Attr] = {"multiplier": mantissa, "shift": shift, "shift_range": (shift, shift), "bound": bound}
    attrs |= {"zero_point": target.quant.zero_point[0], "minimum": low, "maximum": high, "out_dtype": target.dtype}
    context.result("requantize", (shifted,), {**attrs, "input_zero_point": 0, "rounding": Multiplier.DOUBLE})


def convert_leaky_relu(context: OpContext) -> None:
    """Convert LEAKY_RELU: alpha * x for negative x, else x."""
    alpha = context.operator.options.fields("LeakyReluOptions", required=True).read_float("Alpha")
    context.result("leaky_relu", (context.operand(0),), {"alpha": alpha})


def convert_prelu(context: OpContext) -> None:
    """Convert PRELU: slope * x for negative x, else x. The slope is an operand that is broadcast."""
    dtype = context.output_tensor().type.dtype
    operands = (context.operand(0), context.operand(1, "int8" if dtype == "int16" else dtype))
    context.result("prelu", operands, {})


def convert_gelu(context: OpContext) -> None:
    """Convert GELU, exact or approximated by tanh."""
    approximate = bool(context.operator.options.fields("GeluOptions").read_integer("Approximate"))
    if _try_int16_table_interpolation(context, "gelu_by_tanh" if approximate else "gelu"):
        return
    activated = formulas.emit_gelu(make_operator_emitter(context), dequantised_operand(context, 0), approximate)
    emit_output_from_float32(context, "reshape", (activated,), {"shape": context.type(activated).shape})


def convert_right_shift(context: OpContext) -> None:
    """Convert RIGHT_SHIFT. The shift count is clamped to 0 .. bits - 1, as in TFLite."""
    data, counts = (reinterpret_as_integers(context, context.unchanged_operand(position)) for position in (0, 1))
    bits = 8 * dtypes.nbytes(context.output_tensor().type.dtype)
    bounds: Mapping[str, Attr] = {"minimum": 0.0, "maximum": bits - 1.0, "rounding": Rounding.NONE}
    shifted = context.emit("shift_right", (data, context.emit("clip", (counts,), bounds)), {})
    context.result_reshape(shifted, context.type(shifted).shape)


def convert_square(context: OpContext) -> None:
    """Convert SQUARE: x * x."""
    data = context.operand(0)
    context.result("mul", (data, data), {})


def convert_l2_normalization(context: OpContext) -> None:
    """Convert L2_NORMALIZATION over the last axis; refuse a fused activation."""
    code = context.operator.options.fields("L2NormOptions").read_integer("FusedActivationFunction")
    if activation_name(context, code):
        context.refuse(
            "fused_activation_function: got an activation, expected NONE", "write the activation as a separate operator"
        )
    context.result("l2_normalize", (context.operand(0),), {})


ELEMENTWISE_CONVERTERS: Mapping[str, Converter] = {
    "ABS": make_unary_converter("abs", (*FLOAT, "int8", "int16", "int32")),
    "ADD": make_binary_converter("add", "AddOptions", (*REAL, *PLAIN)),
    "ATAN2": make_binary_converter("atan2", output_dtypes=FLOAT),
    "ADD_N": Converter(convert_add_n, (*_INT8, "int32")),
    "BITWISE_XOR": make_converter_ignoring_scales("bit_xor", _BITS),
    "CEIL": make_unary_converter("ceil"),
    "COS": make_unary_converter("cos"),
    "DIV": make_binary_converter("div", "DivOptions", (*REAL, "int32")),
    "ELU": make_unary_converter("elu", _INT8, {"alpha": 1.0}),
    "EXP": make_table_interpolation_converter("exp"),
    "FLOOR": make_unary_converter("floor"),
    "FLOOR_DIV": make_converter_ignoring_scales("floor_div", (*_SIGNED, *PLAIN)),
    "FLOOR_MOD": make_converter_ignoring_scales("floor_mod", (*_SIGNED, *PLAIN)),
    "GELU": Converter(convert_gelu),
    "HARD_SWISH": make_unary_converter("hard_swish", _BYTES),
    "L2_NORMALIZATION": Converter(convert_l2_normalization, _BYTES),
    "LEAKY_RELU": Converter(convert_leaky_relu),
    "LOG": make_table_interpolation_converter("log"),
    "LOGISTIC": make_unary_converter("sigmoid", REAL),
    "MAXIMUM": make_extremum_converter("maximum"),
    "MINIMUM": make_extremum_converter("minimum"),
    "MUL": make_binary_converter("mul", "MulOptions", (*REAL, *PLAIN, "uint32")),
    "NEG": make_unary_converter("neg", (*FLOAT, *PLAIN)),
    "POW": make_binary_converter("pow", output_dtypes=FLOAT),
    "PRELU": Converter(convert_prelu),
    "RELU": make_unary_converter("relu", REAL),
    "RELU6": make_unary_converter("clip", REAL, {"minimum": 0.0, "maximum": 6.0}),
    "RELU_0_TO_1": make_unary_converter("clip", _BYTES, {"minimum": 0.0, "maximum": 1.0}),
    "RELU_N1_TO_1": make_unary_converter("clip", _BYTES, {"minimum": -1.0, "maximum": 1.0}),
    "RIGHT_SHIFT": Converter(convert_right_shift, _BITS),
    "ROUND": make_unary_converter("round"),
    "RSQRT": make_unary_converter("rsqrt", _SIGNED),
    "SIGN": make_unary_converter("sign", (*FLOAT, "int32")),
    "SIN": make_unary_converter("sin"),
    "SQRT": make_unary_converter("sqrt", _SIGNED),
    "SQUARE": Converter(convert_square, FLOAT),
    "SQUARED_DIFFERENCE": make_binary_converter("squared_difference", output_dtypes=(*FLOAT, "int8", "int16", "int32")),
    "SUB": make_binary_converter("sub", "SubOptions", (*REAL, *PLAIN)),
    "TANH": make_unary_converter("tanh", REAL),
}


# ---- Converters of operators that change the dtype: QUANTIZE, DEQUANTIZE, CAST, BITCAST, DENSIFY ...


def convert_quantize(context: OpContext) -> None:
    """Convert QUANTIZE: quantise float32, or requantise integers to another scale and zero point."""
    target, source = context.output_tensor(), context.input_tensor(0).type.dtype
    if source not in (*REAL, "int32"):
        context.refuse(f"input: dtype {source} is not supported", "convert it to float32, int8, uint8, int16 or int32")
    data, quant = context.operand(0, source, symmetric=False), target.type.quant
    if quant is None or (source != "float32" and context.input_tensor(0).type.quant is None):
        context.refuse(
            "input or output: got integers without quantisation, expected a scale",
            "give both tensors a scale and a zero point",
        )
    attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}
    attrs |= {"out_dtype": target.type.dtype, "rounding": Ties.AWAY if source == "float32" else Multiplier.DOUBLE}
    context.result("quantize", (data,), attrs)


def convert_dequantize(context: OpContext) -> None:
    """Convert DEQUANTIZE: integers to float32. A float16 constant becomes a float32 constant at compile time."""
    source, target = context.input_tensor(0), context.output_tensor()
    half = _find_float16_constant(context)
    if half is not None:
        context.builder.define_constant(target.name, half.astype(np.float32))
        return
    quant = source.type.quant
    if source.type.dtype not in (*QUANTISED, "int32"):
        context.refuse(
            f"input: dtype {source.type.dtype} is not supported", "quantise it to int8, uint8, int16 or int32"
        )
    if quant is None:
        context.refuse(f"{source.name!r} has no quantisation", "give it a scale and a zero point")
    attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
    context.result("dequantize", (context.value(0),), attrs)


def convert_densify(context: OpContext) -> None:
    """Convert DENSIFY of a sparse constant, which the reader has already made dense.

    A float16 constant is recorded in ``float16_constants`` of the graph builder, for the operator that converts it to
    float32.
    """
    target, half = context.output_tensor(), _find_float16_constant(context)
    if half is None:
        context.builder.define_constant(target.name, context.constant(0), target.type.quant)
    elif target.type.dtype != "float16" or target.index in context.builder.float16_constants:
        context.broken(
            f"output {target.name!r}: it has dtype {target.type.dtype} or is written twice, expected float16, "
            "written once"
        )
    else:
        context.builder.float16_constants[target.index] = half


def _find_float16_constant(context: OpContext) -> Array | None:
    """Return the data of the first operand if it is float16: a constant of the file, or the result of DENSIFY. Else
    return None.

    The graph cannot contain float16 values.
    """
    source = context.input_tensor(0)
    if source.type.dtype != "float16":
        return None
    return (
        context.builder.file.array(source)
        if source.is_constant
        else context.builder.float16_constants.get(source.index)
    )


def convert_cast(context: OpContext) -> None:
    """Convert CAST: the stored numbers in another dtype. A float16 constant becomes a float32 constant at compile
    time."""
    half = _find_float16_constant(context)
    if half is not None and context.output_tensor().type.dtype == "float32":
        context.builder.define_constant(context.output_tensor().name, half.astype(np.float32))
        return
    if context.input_tensor(0).type.dtype not in MOVABLE:
        context.refuse(
            f"input: dtype {context.input_tensor(0).type.dtype} is not supported", f"use {', '.join(MOVABLE)}"
        )
    context.result("cast", (context.value(0),), {"dtype": context.output_tensor().type.dtype})


def convert_fake_quant(context: OpContext) -> None:
    """Convert FAKE_QUANT: round float32 values to those that ``NumBits``-bit integers represent for the range min ..
    max."""
    fields = context.operator.options.fields("FakeQuantOptions", required=True)
    low, high, bits = fields.read_float("Min"), fields.read_float("Max"), fields.read_integer("NumBits", 2, 16)
    least, most = int(bool(fields.read_integer("NarrowRange"))), (1 << bits) - 1
    if not low < high:
        context.broken(f"got min {low} and max {high}, expected min < max")
    scale = np.float32((np.float32(high) - np.float32(low)) / np.float32(most - least))
    zero = np.float32(least) - np.float32(low) / scale
    nudged = float(np.clip(np.floor(zero + np.float32(0.5)), least, most))
    bottom, top = (float(np.float32(end - nudged) * scale) for end in (least, most))
    clipped = context.emit("clip", (context.operand(0),), {"minimum": bottom, "maximum": top})
    above = context.emit("sub", (clipped, context.scalar(bottom)), {})
    steps = context.emit("mul", (above, context.scalar(float(np.float32(1) / scale))), {})
    whole = context.emit("floor", (context.emit("add", (steps, context.scalar(0.5)), {}),), {})
    back = context.emit("mul", (whole, context.scalar(float(scale))), {})
    context.result("add", (back, context.scalar(bottom)), {})


def convert_bucketize(context: OpContext) -> None:
    """Convert BUCKETIZE: for every element x, the number of boundaries that are at most x. Boundaries ascend."""
    boundaries = context.operator.options.fields("BucketizeOptions", required=True).read_floats("Boundaries")
    data = context.value(0)
    type_ = context.type(data)
    if type_.dtype not in (*FLOAT, *PLAIN) or list(boundaries) != sorted(boundaries) or not boundaries:
        context.refuse(
            f"got {type_.dtype} input and {len(boundaries)} boundaries, expected numbers and ascending boundaries",
            "give ascending boundaries, and float32, int32 or int64 data",
        )
    real = data if type_.dtype == "float32" else context.emit("cast", (data,), {"dtype": "float32"})
    apart = context.reshape(real, (*type_.shape, 1))
    ends = context.new_constant("boundaries", np.array(boundaries, np.float32))
    above = context.emit("greater_equal", (apart, ends), {"rounding": Rounding.NONE})
    attrs: Mapping[str, Attr] = {"axes": (len(type_.shape),), "keepdims": False, "rounding": Rounding.NONE}
    context.result("sum", (context.emit("cast", (above,), {"dtype": "int32"}),), attrs)


def convert_bitcast(context: OpContext) -> None:
    """Convert BITCAST between integer dtypes of the same width. A constant may be reinterpreted as any dtype."""
    source, target = context.input_tensor(0), context.output_tensor()
    data = context.builder.consts.get(context.value(0))
    if data is not None:
        converted = np.frombuffer(data.tobytes(), dtypes.to_numpy(target.type.dtype))
        if converted.size != target.type.size:
            context.broken(
                f"got {data.nbytes} bytes, expected {target.type.nbytes} for an output {target.type.dtype} "
                f"{target.type.shape}"
            )
        context.builder.define_constant(target.name, converted.reshape(target.type.shape), target.type.quant)
        return
    pair = (source.type.dtype, target.type.dtype)
    if not all(dtypes.is_integer(name) for name in pair) or len({dtypes.nbytes(name) for name in pair}) > 1:
        context.refuse(
            f"input and output: got {pair[0]} and {pair[1]}, expected integers of equal width",
            "make input 0 a constant, which is reinterpreted at compile time",
        )
    context.result("cast", (context.value(0),), {"dtype": pair[1]})


CONVERSIONS_CONVERTERS: Mapping[str, Converter] = {
    "BITCAST": Converter(convert_bitcast, MOVABLE),
    "BUCKETIZE": Converter(convert_bucketize, ("int32",)),
    "CAST": Converter(convert_cast, MOVABLE),
    "DENSIFY": Converter(convert_densify, (*MOVABLE, "float16")),
    "DEQUANTIZE": Converter(convert_dequantize, FLOAT),
    "FAKE_QUANT": Converter(convert_fake_quant, FLOAT),
    "QUANTIZE": Converter(convert_quantize, (*QUANTISED, "int32")),
}


# ---- Converters of comparisons, logic, selection and search: EQUAL, LOGICAL_AND, SELECT_V2, ARG_MAX, TOPK_V2 ...

_BOOL = ("bool",)
_COMPARED = (*FLOAT, *QUANTISED, *PLAIN, "uint32", "bool")


def make_comparison_converter(op: str) -> Converter:
    """Return the converter of a comparison of two operands of the same dtype. Quantised operands are compared as real
    numbers."""

    def convert_comparison(context: OpContext) -> None:
        first, second = (context.input_tensor(position).type for position in (0, 1))
        if first.dtype != second.dtype or first.dtype not in _COMPARED:
            context.refuse(
                f"operands: got {first.dtype} and {second.dtype}, expected equal dtypes", f"use {', '.join(_COMPARED)}"
            )
        if any(type_.quant is not None and type_.quant.axis is not None for type_ in (first, second)):
            context.refuse("operands: quantisation per channel is not supported", "quantise activations per tensor")
        operands = (context.value(0), context.value(1))
        context.result(op, operands, {})

    return Converter(convert_comparison, _BOOL)


def make_logical_converter(op: str, operand_count: int) -> Converter:
    """Return the converter of a logical operator with ``operand_count`` bool operands."""

    def convert_logical(context: OpContext) -> None:
        context.result(op, [context.operand(position, "bool") for position in range(operand_count)], {})

    return Converter(convert_logical, _BOOL)


def convert_select(context: OpContext) -> None:
    """Convert SELECT and SELECT_V2.

    A condition of rank 1 of SELECT selects whole rows of the data. It is reshaped with trailing axes of extent 1 for
    this."""
    condition = context.operand(0, "bool")
    a, b = context.unchanged_operand(1), context.unchanged_operand(2)
    check_same_quantisation(context, [1, 2])
    rank, shape = len(context.type(a).shape), context.type(condition).shape
    if context.operator.code == "SELECT" and len(shape) == 1 and rank > 1:
        condition = context.reshape(condition, (*shape, *(1,) * (rank - 1)))
    context.result("where", (condition, a, b), {})


def make_arg_extremum_converter(op: str) -> Converter:
    """Return the converter of ARG_MAX or ARG_MIN along a constant axis. The stored numbers are compared."""

    def convert_arg_extremum(context: OpContext) -> None:
        data = context.value(0)
        if context.type(data).dtype not in (*FLOAT, *QUANTISED, *PLAIN):
            context.refuse(
                f"input: dtype {context.type(data).dtype} is not supported",
                "convert it to float32, int8, int16 or int32",
            )
        (axis,) = context.integers(1)[:1] or (0,)
        axis = context.axis(axis, len(context.type(data).shape))
        attrs: Mapping[str, Attr] = {"axis": axis, "out_dtype": context.output_tensor().type.dtype}
        context.result(op, (data,), attrs)

    return Converter(convert_arg_extremum, PLAIN)


def convert_topk_v2(context: OpContext) -> None:
    """Convert TOPK_V2: the k largest elements along the last axis and their indices, for a constant k."""
    data = context.unchanged_operand(0)
    check_same_quantisation(context, [0])
    (count,) = context.integers(1)[:1] or (0,)
    attrs: dict[str, Attr] = {"axis": len(context.type(data).shape) - 1, "k": count, "largest": True}
    context.results("topk", (data,), {**attrs, "out_dtype": context.output_tensor(1).type.dtype})


def convert_one_hot(context: OpContext) -> None:
    """Convert ONE_HOT. Its operands are indices, a constant depth, the on value and the off value."""
    fields = context.operator.options.fields("OneHotOptions", required=True)
    indices, (depth,) = context.value(0), context.integers(1)[:1] or (0,)
    on, off = context.unchanged_operand(2), context.unchanged_operand(3)
    axis = context.axis(fields.read_integer("Axis"), len(context.type(indices).shape) + 1)
    context.result("one_hot", (indices, on, off), {"axis": axis, "depth": depth, "wrap": False})


LOGIC_CONVERTERS: Mapping[str, Converter] = {
    "ARG_MAX": make_arg_extremum_converter("argmax"),
    "ARG_MIN": make_arg_extremum_converter("argmin"),
    "EQUAL": make_comparison_converter("equal"),
    "GREATER": make_comparison_converter("greater"),
    "GREATER_EQUAL": make_comparison_converter("greater_equal"),
    "LESS": make_comparison_converter("less"),
    "LESS_EQUAL": make_comparison_converter("less_equal"),
    "LOGICAL_AND": make_logical_converter("logical_and", 2),
    "LOGICAL_NOT": make_logical_converter("logical_not", 1),
    "LOGICAL_OR": make_logical_converter("logical_or", 2),
    "NOT_EQUAL": make_comparison_converter("not_equal"),
    "ONE_HOT": Converter(convert_one_hot, MOVABLE),
    "SELECT": Converter(convert_select, MOVABLE),
    "SELECT_V2": Converter(convert_select, MOVABLE),
    "TOPK_V2": Converter(convert_topk_v2, (*FLOAT, *QUANTISED, *PLAIN)),
}


# ---- Converters of reductions over constant axes, and of cumulative sums.


def make_reduction_converter(op: str, output_dtypes: tuple[str, ...]) -> Converter:
    """Return the converter of a reduction over constant axes.

    REDUCE_ANY and REDUCE_ALL, on bool, are the maximum and the minimum, computed in int8."""

    def convert_reduction(context: OpContext) -> None:
        keepdims = bool(context.operator.options.fields("ReducerOptions").read_integer("KeepDims"))
        data = context.operand(0)
        type_ = context.type(data)
        axes = tuple(sorted({context.axis(axis, len(type_.shape)) for axis in context.integers(1)}))
        if not axes:
            check_same_quantisation(context, [0])
            context.result_reshape(data, type_.shape)
            return
        attrs: dict[str, Attr] = {"axes": axes, "keepdims": keepdims}
        if type_.dtype == "bool":
            bytes_ = context.emit("cast", (data,), {"dtype": "int8"})
            reduced = context.emit("max" if op == "max" else "min", (bytes_,), {**attrs, "rounding": Rounding.NONE})
            context.result("cast", (reduced,), {"dtype": "bool"})
        else:
            context.result(op, (data,), attrs)

    return Converter(convert_reduction, output_dtypes)


def convert_cumsum(context: OpContext) -> None:
    """Convert CUMSUM, the cumulative sum along a constant axis."""
    fields = context.operator.options.fields("CumsumOptions")
    data = context.operand(0)
    (axis,) = context.integers(1)[:1] or (0,)
    attrs: dict[str, Attr] = {
        "axis": context.axis(axis, len(context.type(data).shape)),
    }
    for name in ("exclusive", "reverse"):
        attrs[name] = bool(fields.read_integer(name.capitalize()))
    context.result("cumsum", (data,), attrs)


REDUCTIONS_CONVERTERS: Mapping[str, Converter] = {
    "CUMSUM": Converter(convert_cumsum, (*FLOAT, "int8", *PLAIN)),
    "MEAN": make_reduction_converter("mean", (*REAL, *PLAIN)),
    "REDUCE_ALL": make_reduction_converter("min", _BOOL),
    "REDUCE_ANY": make_reduction_converter("max", _BOOL),
    "REDUCE_MAX": make_reduction_converter("max", (*REAL, *PLAIN, *_BOOL)),
    "REDUCE_MIN": make_reduction_converter("min", (*REAL, *PLAIN, *_BOOL)),
    "REDUCE_PROD": make_reduction_converter("prod", (*FLOAT, "int8", "int16", *PLAIN, *_BOOL)),
    "SUM": make_reduction_converter("sum", (*REAL, *PLAIN)),
}
