# SPDX-License-Identifier: Apache-2.0
"""Converters of TFLite's elementwise operators, dtype conversions, comparisons and reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import numpy as np

from microc.base import dtypes
from microc.frontend.graph_builder import make_operator_emitter
from microc.frontend.signature import Floats, Ints, Range, ReadWith, Value
from microc.frontend.tflite.context import (
    FLOAT,
    MOVABLE,
    PLAIN,
    QUANTISED,
    REAL,
    Activation,
    Bool,
    ConverterTable,
    Moved,
    NoActivation,
    OpContext,
    Operand,
    StoredIntegers,
    Unchanged,
    emit_as_float32,
    emit_output_from_float32,
)
from microc.graph.ir import Attr, Quant
from microc.numerics import quantize_multiplier
from microc.ops import arithmetic
from microc.ops.attributes import Multiplier, Rounding, Ties
from microc.ops.elementwise.elementwise import int16_function_table

CONVERTERS = ConverterTable()

# ---- Converters of elementwise operators: arithmetic, mathematical functions, bitwise operators.

_INT8 = (*FLOAT, "int8")
_BYTES = (*FLOAT, "int8", "uint8")
_SIGNED = (*FLOAT, "int8", "int16")
_BITS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
_NO_ATTRS: Mapping[str, Attr] = {}
_dtypes: tuple[str, ...]


def _make_unary_converter(op: str, attrs: Mapping[str, Attr]) -> Callable[..., None]:
    """Make a converter of a TFLite operator with one operand to ``op`` with the attributes ``attrs``."""

    def convert_unary(context: OpContext, x: Operand) -> None:
        _refuse_quantised_int32_or_int64(context)
        context.result(op, (x,), attrs)

    return convert_unary


for _code, _op, _dtypes, _attrs in (
    ("ABS", "abs", (*FLOAT, "int8", "int16", "int32"), _NO_ATTRS),
    ("CEIL", "ceil", FLOAT, _NO_ATTRS),
    ("COS", "cos", FLOAT, _NO_ATTRS),
    ("ELU", "elu", _INT8, {"alpha": 1.0}),
    ("FLOOR", "floor", FLOAT, _NO_ATTRS),
    ("HARD_SWISH", "hard_swish", _BYTES, _NO_ATTRS),
    ("LOGISTIC", "sigmoid", REAL, _NO_ATTRS),
    ("NEG", "neg", (*FLOAT, *PLAIN), _NO_ATTRS),
    ("RELU", "relu", REAL, _NO_ATTRS),
    ("RELU6", "clip", REAL, {"minimum": 0.0, "maximum": 6.0}),
    ("RELU_0_TO_1", "clip", _BYTES, {"minimum": 0.0, "maximum": 1.0}),
    ("RELU_N1_TO_1", "clip", _BYTES, {"minimum": -1.0, "maximum": 1.0}),
    ("ROUND", "round", FLOAT, _NO_ATTRS),
    ("RSQRT", "rsqrt", _SIGNED, _NO_ATTRS),
    ("SIGN", "sign", (*FLOAT, "int32"), _NO_ATTRS),
    ("SIN", "sin", FLOAT, _NO_ATTRS),
    ("SQRT", "sqrt", _SIGNED, _NO_ATTRS),
    ("TANH", "tanh", REAL, _NO_ATTRS),
):
    CONVERTERS.register(_code, dtypes=_dtypes)(_make_unary_converter(_op, _attrs))


def _make_table_interpolation_converter(op: str) -> Callable[..., None]:
    """Make a converter of a mathematical function ``op`` that TFLite computes for int16 by interpolation in a table.

    Other dtypes become microc's operator ``op``."""

    def convert_by_table_interpolation(context: OpContext, x: Operand) -> None:
        if not _try_int16_table_interpolation(context, op, x):
            context.result(op, (x,))

    return convert_by_table_interpolation


def _try_int16_table_interpolation(context: OpContext, function_name: str, operand: Value) -> bool:
    """Convert a mathematical function of int16 to ``lookup16``, which interpolates in a table as TFLite does.

    Return False, and append nothing, unless operand and result are quantised int16 tensors with zero point 0."""
    source, target = operand.quant, context.output_tensor().type.quant
    if operand.dtype != "int16" or source is None or target is None or any((*source.zero_point, *target.zero_point)):
        return False
    table = int16_function_table(function_name, source.scale[0], target.scale[0])
    context.result("lookup16", (operand, context.new_constant(f"{function_name}_table", table)))
    return True


for _code, _op in (("EXP", "exp"), ("LOG", "log")):
    CONVERTERS.register(_code, dtypes=_SIGNED)(_make_table_interpolation_converter(_op))


def _make_binary_converter(op: str) -> Callable[..., None]:
    """Make a converter of a TFLite operator with two operands that are broadcast to ``op``."""

    def convert_binary(context: OpContext, a: Operand, b: Operand) -> None:
        _refuse_quantised_int32_or_int64(context)
        context.result(op, (a, b))

    return convert_binary


for _code, _op, _dtypes in (
    ("ATAN2", "atan2", FLOAT),
    ("POW", "pow", FLOAT),
    ("SQUARED_DIFFERENCE", "squared_difference", (*FLOAT, "int8", "int16", "int32")),
):
    CONVERTERS.register(_code, dtypes=_dtypes)(_make_binary_converter(_op))


def _make_arithmetic_converter(op: str) -> Callable[..., None]:
    """Make a converter of a TFLite operator with two operands and a fused activation to ``op``."""

    def convert_arithmetic(
        context: OpContext, a: Operand, b: Operand, *, fused_activation_function: Activation = ""
    ) -> None:
        _refuse_quantised_int32_or_int64(context)
        context.result(op, (a, b), {"activation": fused_activation_function})

    return convert_arithmetic


for _code, _op, _dtypes in (
    ("ADD", "add", (*REAL, *PLAIN)),
    ("DIV", "div", (*REAL, "int32")),
    ("MUL", "mul", (*REAL, *PLAIN, "uint32")),
    ("SUB", "sub", (*REAL, *PLAIN)),
):
    CONVERTERS.register(_code, options=f"{_code.capitalize()}Options", dtypes=_dtypes)(_make_arithmetic_converter(_op))


def _make_stored_integers_converter(op: str) -> Callable[..., None]:
    """Make a converter of a TFLite operator that computes with the stored integers and ignores their scales."""

    def convert_stored_integers(context: OpContext, a: StoredIntegers, b: StoredIntegers) -> None:
        value = context.emit(op, (a, b), {"rounding": Rounding.NONE})
        context.result_reshape(value, value.shape)

    return convert_stored_integers


for _code, _op, _dtypes in (
    ("BITWISE_XOR", "bit_xor", _BITS),
    ("FLOOR_DIV", "floor_div", (*_SIGNED, *PLAIN)),
    ("FLOOR_MOD", "floor_mod", (*_SIGNED, *PLAIN)),
):
    CONVERTERS.register(_code, dtypes=_dtypes)(_make_stored_integers_converter(_op))


def _make_extremum_converter(op: str) -> Callable[..., None]:
    """Make a converter of MAXIMUM or MINIMUM.

    TFLite compares the stored integers. Therefore both operands and the output must have the same quantisation."""

    def convert_extremum(context: OpContext, a: Operand, b: Operand) -> None:
        _refuse_quantised_int32_or_int64(context)
        for position in (0, 1):
            context.check_same_quantisation(position)
        context.result(op, (a, b))

    return convert_extremum


for _code in ("MAXIMUM", "MINIMUM"):
    CONVERTERS.register(_code, dtypes=(*REAL, *PLAIN))(_make_extremum_converter(_code.lower()))


def _refuse_quantised_int32_or_int64(context: OpContext) -> None:
    """Refuse an output of 32- or 64-bit integers with a scale: TFLite computes with the stored integers and ignores the
    scale."""
    target = context.output_tensor().type
    if target.dtype in PLAIN and target.quant is not None:
        context.refuse(
            f"output: got quantised {target.dtype}, expected no scale",
            "remove the scale: 32- and 64-bit integers are not quantised",
        )


_ADD_N_SHIFT = 20


@CONVERTERS.register("ADD_N", dtypes=(*_INT8, "int32"))
def convert_add_n(context: OpContext, *values: Operand) -> None:
    """Convert ADD_N, the sum of all operands. The operands must have the same shape and quantisation."""
    if len(values) < 2:
        context.broken("got one operand, expected at least two")
    if any(value.shape != values[0].shape or value.quant != values[0].quant for value in values):
        context.refuse(
            "operands: got different shapes, scales or zero points, expected equal ones",
            "write the sum as several ADD operators",
        )
    if context.output_dtype() == "int8":
        _convert_int8_add_n(context, values)
        return
    total = values[0]
    for value in values[1:-1]:
        total = context.emit("add", (total, value))
    context.result("add", (total, values[-1]))


def _convert_int8_add_n(context: OpContext, operands: tuple[Value, ...]) -> None:
    """Convert ADD_N of int8 operands with TFLite's fixed-point arithmetic (``reference/add_n.h``).

    TFLite shifts every operand left by 20 bits, halves it, adds all, and rescales the sum to the output. Its sum starts
    with the contribution of a stored zero; therefore ``len(operands) + 1`` zero points are subtracted."""
    quant, target = operands[0].quant, context.output_tensor().type
    assert quant is not None and target.quant is not None
    zero, half = quant.zero_point[0], 1 << _ADD_N_SHIFT - 1
    bound = (len(operands) + 1) * 255 * half
    if bound >= 1 << 31:
        context.refuse(
            f"got {len(operands)} operands, whose sum may exceed 32 bits",
            "write the sum as several ADD_N with fewer operands",
        )
    stacked = context.emit("concat", [context.reshape(v, (1, *v.shape)) for v in operands], {"axis": 0})
    start: Mapping[str, Attr] = {"axes": (0,), "keepdims": False, "rounding": Rounding.NONE, "out_dtype": "int32"}
    total = context.emit("sum", (stacked,), {**start, "offset": -(len(operands) + 1) * zero})
    shifted = context.emit("mul", (total, context.new_constant("shift", np.array(half, np.int32))))
    twice = 2.0 * float(np.float32(quant.scale[0]))
    mantissa, shift = quantize_multiplier(twice / ((1 << _ADD_N_SHIFT) * float(np.float32(target.quant.scale[0]))))
    low, high = dtypes.int_range(target.dtype)
    attrs: dict[str, Attr] = {"multiplier": mantissa, "shift": shift, "shift_range": (shift, shift), "bound": bound}
    attrs |= {"zero_point": target.quant.zero_point[0], "minimum": low, "maximum": high, "out_dtype": target.dtype}
    context.result("requantize", (shifted,), {**attrs, "input_zero_point": 0, "rounding": Multiplier.DOUBLE})


@CONVERTERS.register("LEAKY_RELU", options="LeakyReluOptions")
def convert_leaky_relu(context: OpContext, x: Operand, *, alpha: float) -> None:
    """Convert LEAKY_RELU: alpha * x for negative x, else x."""
    context.result("leaky_relu", (x,), {"alpha": alpha})


def _read_slope(context: OpContext, input_position: int) -> Value:
    """Return the slope of PRELU, which is int8 for int16 data."""
    dtype = context.output_dtype()
    return context.operand(input_position, "int8" if dtype == "int16" else dtype)


@CONVERTERS.register("PRELU")
def convert_prelu(context: OpContext, x: Operand, slope: Annotated[Value, ReadWith(_read_slope)]) -> None:
    """Convert PRELU: slope * x for negative x, else x. The slope is broadcast."""
    context.result("prelu", (x, slope))


@CONVERTERS.register("GELU", options="GeluOptions")
def convert_gelu(context: OpContext, x: Operand, *, approximate: bool = False) -> None:
    """Convert GELU, exact or approximated by tanh."""
    if _try_int16_table_interpolation(context, "gelu_by_tanh" if approximate else "gelu", x):
        return
    activated = arithmetic.emit_gelu(make_operator_emitter(context), emit_as_float32(context, x), approximate)
    emit_output_from_float32(context, "reshape", (activated,), {"shape": context.type(activated).shape})


@CONVERTERS.register("RIGHT_SHIFT", dtypes=_BITS)
def convert_right_shift(context: OpContext, x: StoredIntegers, counts: StoredIntegers) -> None:
    """Convert RIGHT_SHIFT. The shift count is clamped to 0 .. bits - 1, as in TFLite."""
    bits = 8 * dtypes.nbytes(x.dtype)
    bounds: Mapping[str, Attr] = {"minimum": 0.0, "maximum": bits - 1.0, "rounding": Rounding.NONE}
    shifted = context.emit("shift_right", (x, context.emit("clip", (counts,), bounds)))
    context.result_reshape(shifted, shifted.shape)


@CONVERTERS.register("SQUARE", dtypes=FLOAT)
def convert_square(context: OpContext, x: Operand) -> None:
    """Convert SQUARE: x * x."""
    context.result("mul", (x, x))


@CONVERTERS.register("L2_NORMALIZATION", options="L2NormOptions", dtypes=_BYTES)
def convert_l2_normalization(context: OpContext, x: Operand, *, fused_activation_function: NoActivation = None) -> None:
    """Convert L2_NORMALIZATION over the last axis."""
    context.result("l2_normalize", (x,))


# ---- Converters of operators that change the dtype: QUANTIZE, DEQUANTIZE, CAST, BITCAST, DENSIFY ...


def _read_quantized_or_real(context: OpContext, input_position: int) -> Value:
    """Return the operand of QUANTIZE. int16 may have any zero point."""
    dtype = context.input_tensor(input_position).type.dtype
    if dtype not in (*REAL, "int32"):
        context.refuse(f"input: dtype {dtype} is not supported", "convert it to float32, int8, uint8, int16 or int32")
    return context.operand(input_position, dtype, symmetric=False)


@CONVERTERS.register("QUANTIZE", dtypes=(*QUANTISED, "int32"))
def convert_quantize(context: OpContext, x: Annotated[Value, ReadWith(_read_quantized_or_real)]) -> None:
    """Convert QUANTIZE: quantise float32, or requantise integers to another scale and zero point."""
    target = context.output_tensor().type
    if target.quant is None or (x.dtype != "float32" and x.quant is None):
        context.refuse(
            "input or output: got integers without quantisation, expected a scale",
            "give both tensors a scale and a zero point",
        )
    attrs: dict[str, Attr] = _get_quantisation_attrs(target.quant, None)
    attrs |= {"out_dtype": target.dtype, "rounding": Ties.AWAY if x.dtype == "float32" else Multiplier.DOUBLE}
    context.result("quantize", (x,), attrs)


def _get_quantisation_attrs(quant: Quant, axis: int | None) -> dict[str, Attr]:
    """Return the attributes of ``quantize`` and ``dequantize`` that say scales and zero points."""
    return {"scale": quant.scale, "zero_point": quant.zero_point, "axis": axis}


def _read_any_dtype(context: OpContext, input_position: int) -> Value:
    """Return an operand of any dtype.

    The graph has no values of float16. A float16 operand is a constant, of the file or the result of DENSIFY: a value
    that is not in the graph, but whose data are known."""
    source, builder = context.input_tensor(input_position), context.builder
    if source.type.dtype in MOVABLE:
        return context.value(input_position)
    if source.type.dtype == "float16" and source.is_constant:
        return Value(source.name, source.type, builder.file.array(source))
    return Value(source.name, source.type, builder.float16_constants.get(source.index))


_AnyDtype = Annotated[Value, ReadWith(_read_any_dtype)]


@CONVERTERS.register("DEQUANTIZE", dtypes=FLOAT)
def convert_dequantize(context: OpContext, x: _AnyDtype) -> None:
    """Convert DEQUANTIZE: integers to float32. A float16 constant becomes a float32 constant at compile time."""
    if x.dtype == "float16" and x.constant is not None:
        context.builder.define_constant(context.output_tensor().name, x.constant.astype(np.float32))
        return
    if x.dtype not in (*QUANTISED, "int32"):
        context.refuse(f"input: dtype {x.dtype} is not supported", "quantise it to int8, uint8, int16 or int32")
    if x.quant is None:
        context.refuse(f"{str(x)!r} has no quantisation", "give it a scale and a zero point")
    context.result("dequantize", (x,), _get_quantisation_attrs(x.quant, x.quant.axis))


@CONVERTERS.register("DENSIFY", dtypes=(*MOVABLE, "float16"))
def convert_densify(context: OpContext, x: _AnyDtype) -> None:
    """Convert DENSIFY of a sparse constant, which the reader has already made dense.

    A float16 constant is recorded in ``float16_constants`` of the graph builder, for the operator that converts it to
    float32.
    """
    target = context.output_tensor()
    if x.dtype != "float16" or x.constant is None:
        context.builder.define_constant(target.name, context.constant(0), target.type.quant)
    elif target.type.dtype != "float16" or target.index in context.builder.float16_constants:
        context.broken(
            f"output {target.name!r}: it has dtype {target.type.dtype} or is written twice, expected float16, "
            "written once"
        )
    else:
        context.builder.float16_constants[target.index] = x.constant


@CONVERTERS.register("CAST", dtypes=MOVABLE)
def convert_cast(context: OpContext, x: _AnyDtype) -> None:
    """Convert CAST: the stored numbers in another dtype. A float16 constant becomes a float32 constant at compile
    time."""
    if x.dtype == "float16" and x.constant is not None and context.output_dtype() == "float32":
        context.builder.define_constant(context.output_tensor().name, x.constant.astype(np.float32))
        return
    if x.dtype not in MOVABLE:
        context.refuse(f"input: dtype {x.dtype} is not supported", f"use {', '.join(MOVABLE)}")
    context.result("cast", (x,), {"dtype": context.output_dtype()})


@CONVERTERS.register("FAKE_QUANT", options="FakeQuantOptions", dtypes=FLOAT)
def convert_fake_quant(
    context: OpContext,
    x: Operand,
    *,
    min: float,
    max: float,
    num_bits: Annotated[int, Range(2, 16)],
    narrow_range: bool = False,
) -> None:
    """Convert FAKE_QUANT: round float32 values to those that ``num_bits``-bit integers represent for the range ``min`` ..
    ``max``."""
    if not min < max:
        context.broken(f"got min {min} and max {max}, expected min < max")
    least, most = int(narrow_range), (1 << num_bits) - 1
    scale = np.float32((np.float32(max) - np.float32(min)) / np.float32(most - least))
    zero = np.float32(least) - np.float32(min) / scale
    nudged = float(np.clip(np.floor(zero + np.float32(0.5)), least, most))
    bottom, top = (float(np.float32(end - nudged) * scale) for end in (least, most))
    clipped = context.emit("clip", (x,), {"minimum": bottom, "maximum": top})
    above = context.emit("sub", (clipped, context.scalar(bottom)))
    steps = context.emit("mul", (above, context.scalar(float(np.float32(1) / scale))))
    whole = context.emit("floor", (context.emit("add", (steps, context.scalar(0.5))),))
    back = context.emit("mul", (whole, context.scalar(float(scale))))
    context.result("add", (back, context.scalar(bottom)))


@CONVERTERS.register("BUCKETIZE", options="BucketizeOptions", dtypes=("int32",))
def convert_bucketize(context: OpContext, x: Value, *, boundaries: Floats) -> None:
    """Convert BUCKETIZE: for every element x, the number of boundaries that are at most x. Boundaries ascend."""
    if x.dtype not in (*FLOAT, *PLAIN) or list(boundaries) != sorted(boundaries) or not boundaries:
        context.refuse(
            f"got {x.dtype} input and {len(boundaries)} boundaries, expected numbers and ascending boundaries",
            "give ascending boundaries, and float32, int32 or int64 data",
        )
    real = context.cast(x, "float32")
    apart = context.reshape(real, (*x.shape, 1))
    ends = context.new_constant("boundaries", np.array(boundaries, np.float32))
    above = context.emit("greater_equal", (apart, ends), {"rounding": Rounding.NONE})
    attrs: Mapping[str, Attr] = {"axes": (x.rank,), "keepdims": False, "rounding": Rounding.NONE}
    context.result("sum", (context.emit("cast", (above,), {"dtype": "int32"}),), attrs)


@CONVERTERS.register("BITCAST", dtypes=MOVABLE)
def convert_bitcast(context: OpContext, x: Value) -> None:
    """Convert BITCAST between integer dtypes of the same width. A constant may be reinterpreted as any dtype."""
    target = context.output_tensor()
    if x.constant is not None:
        if x.constant.nbytes != target.type.nbytes:
            context.broken(
                f"got {x.constant.nbytes} bytes, expected {target.type.nbytes} for an output {target.type.dtype} "
                f"{target.type.shape}"
            )
        converted = np.frombuffer(x.constant.tobytes(), dtypes.to_numpy(target.type.dtype))
        context.builder.define_constant(target.name, converted.reshape(target.type.shape), target.type.quant)
        return
    pair = (x.dtype, target.type.dtype)
    if not all(dtypes.is_integer(name) for name in pair) or len({dtypes.nbytes(name) for name in pair}) > 1:
        context.refuse(
            f"input and output: got {pair[0]} and {pair[1]}, expected integers of equal width",
            "make input 0 a constant, which is reinterpreted at compile time",
        )
    context.result("cast", (x,), {"dtype": pair[1]})


# ---- Converters of comparisons, logic, selection and search: EQUAL, LOGICAL_AND, SELECT_V2, ARG_MAX, TOPK_V2 ...

_BOOL = ("bool",)
_COMPARED = (*FLOAT, *QUANTISED, *PLAIN, "uint32", "bool")


def _make_comparison_converter(op: str) -> Callable[..., None]:
    """Make a converter of a comparison of two operands of the same dtype. Quantised operands are compared as real
    numbers."""

    def convert_comparison(context: OpContext, a: Value, b: Value) -> None:
        if a.dtype != b.dtype or a.dtype not in _COMPARED:
            context.refuse(
                f"operands: got {a.dtype} and {b.dtype}, expected equal dtypes", f"use {', '.join(_COMPARED)}"
            )
        if any(value.quant is not None and value.quant.axis is not None for value in (a, b)):
            context.refuse("operands: quantisation per channel is not supported", "quantise activations per tensor")
        context.result(op, (a, b))

    return convert_comparison


for _code in ("EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL"):
    CONVERTERS.register(_code, dtypes=_BOOL)(_make_comparison_converter(_code.lower()))


def _make_logical_converter(op: str) -> Callable[..., None]:
    """Make a converter of a logical operator with two operands."""

    def convert_logical(context: OpContext, a: Bool, b: Bool) -> None:
        context.result(op, (a, b))

    return convert_logical


for _code in ("LOGICAL_AND", "LOGICAL_OR"):
    CONVERTERS.register(_code, dtypes=_BOOL)(_make_logical_converter(_code.lower()))


@CONVERTERS.register("LOGICAL_NOT", dtypes=_BOOL)
def convert_logical_not(context: OpContext, x: Bool) -> None:
    """Convert LOGICAL_NOT."""
    context.result("logical_not", (x,))


@CONVERTERS.register("SELECT", "SELECT_V2", dtypes=MOVABLE)
def convert_select(context: OpContext, condition: Bool, a: Moved, b: Moved) -> None:
    """Convert SELECT and SELECT_V2.

    A condition of rank 1 of SELECT selects whole rows of the data. It is reshaped with trailing axes of extent 1 for
    this."""
    if context.operator.code == "SELECT" and condition.rank == 1 and a.rank > 1:
        condition = context.reshape(condition, (*condition.shape, *(1,) * (a.rank - 1)))
    context.result("where", (condition, a, b))


def _make_arg_extremum_converter(op: str) -> Callable[..., None]:
    """Make a converter of ARG_MAX or ARG_MIN along a constant axis. The stored numbers are compared."""

    def convert_arg_extremum(context: OpContext, data: Value, axis: int) -> None:
        if data.dtype not in (*FLOAT, *QUANTISED, *PLAIN):
            context.refuse(f"input: dtype {data.dtype} is not supported", "convert it to float32, int8, int16 or int32")
        axis = context.axis(axis, data.rank)
        context.result(op, (data,), {"axis": axis, "out_dtype": context.output_dtype()})

    return convert_arg_extremum


for _code, _op in (("ARG_MAX", "argmax"), ("ARG_MIN", "argmin")):
    CONVERTERS.register(_code, dtypes=PLAIN)(_make_arg_extremum_converter(_op))


@CONVERTERS.register("TOPK_V2", dtypes=(*FLOAT, *QUANTISED, *PLAIN))
def convert_topk_v2(context: OpContext, data: Moved, k: int) -> None:
    """Convert TOPK_V2: the k largest elements along the last axis and their indices, for a constant k."""
    attrs: dict[str, Attr] = {"axis": data.rank - 1, "k": k, "largest": True}
    context.results("topk", (data,), {**attrs, "out_dtype": context.output_tensor(1).type.dtype})


@CONVERTERS.register("ONE_HOT", options="OneHotOptions", dtypes=MOVABLE)
def convert_one_hot(
    context: OpContext, indices: Value, depth: int, on_value: Unchanged, off_value: Unchanged, *, axis: int
) -> None:
    """Convert ONE_HOT with a constant depth."""
    axis = context.axis(axis, indices.rank + 1)
    context.result("one_hot", (indices, on_value, off_value), {"axis": axis, "depth": depth, "wrap": False})


# ---- Converters of reductions over constant axes, and of cumulative sums.


def _make_reduction_converter(op: str) -> Callable[..., None]:
    """Make a converter of a reduction over constant axes.

    REDUCE_ANY and REDUCE_ALL, on bool, are the maximum and the minimum, computed in int8."""

    def convert_reduction(context: OpContext, data: Operand, axes: Ints, *, keep_dims: bool = False) -> None:
        axes = context.normalize_axes(axes, data.rank)
        if not axes:
            context.check_same_quantisation(0)
            context.result_reshape(data, data.shape)
            return
        attrs: dict[str, Attr] = {"axes": axes, "keepdims": keep_dims}
        if data.dtype == "bool":
            bytes_ = context.emit("cast", (data,), {"dtype": "int8"})
            reduced = context.emit("max" if op == "max" else "min", (bytes_,), {**attrs, "rounding": Rounding.NONE})
            context.result("cast", (reduced,), {"dtype": "bool"})
        else:
            context.result(op, (data,), attrs)

    return convert_reduction


for _code, _op, _dtypes in (
    ("MEAN", "mean", (*REAL, *PLAIN)),
    ("REDUCE_ALL", "min", _BOOL),
    ("REDUCE_ANY", "max", _BOOL),
    ("REDUCE_MAX", "max", (*REAL, *PLAIN, *_BOOL)),
    ("REDUCE_MIN", "min", (*REAL, *PLAIN, *_BOOL)),
    ("REDUCE_PROD", "prod", (*FLOAT, "int8", "int16", *PLAIN, *_BOOL)),
    ("SUM", "sum", (*REAL, *PLAIN)),
):
    CONVERTERS.register(_code, options="ReducerOptions", dtypes=_dtypes)(_make_reduction_converter(_op))


@CONVERTERS.register("CUMSUM", options="CumsumOptions", dtypes=(*FLOAT, "int8", *PLAIN))
def convert_cumsum(
    context: OpContext, data: Operand, axis: int, *, exclusive: bool = False, reverse: bool = False
) -> None:
    """Convert CUMSUM, the cumulative sum along a constant axis."""
    axis = context.axis(axis, data.rank)
    context.result("cumsum", (data,), {"axis": axis, "exclusive": exclusive, "reverse": reverse})
