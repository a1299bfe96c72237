"""TFLite elementwise operators, conversions, comparisons, reductions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.frontend import formulas
from microc.frontend.formulas import composer
from microc.frontend.tflite.context import (
    FLOAT,
    MOVABLE,
    ONE_SCALE,
    PLAIN,
    QUANTISED,
    REAL,
    Application,
    Spelling,
    activation,
    bare,
    check_alike,
    real_operand,
    real_result,
)
from microc.graph.ir import Attr
from microc.numerics import quantize_multiplier
from microc.ops.attributes import Multiplier, Rounding, Ties

# ---- Spellings of TFLite's operators on numbers, one by one: arithmetic, functions, bits.

_INT8 = (*FLOAT, "int8")
_BYTES = (*FLOAT, "int8", "uint8")
_SIGNED = (*FLOAT, "int8", "int16")
_BITS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
_NO_ATTRS: Mapping[str, Attr] = {}


def unary(op: str, dtypes: tuple[str, ...] = FLOAT, attrs: Mapping[str, Attr] = _NO_ATTRS) -> Spelling:
    """An operator on one operand, without options. 32- and 64-bit integers stand for themselves."""

    def spell(application: Application) -> None:
        _check_plain(application)
        application.result(op, (application.operand(0),), attrs)

    return Spelling(spell, dtypes)


def binary(op: str, options: str = "", dtypes: tuple[str, ...] = REAL) -> Spelling:
    """An operator on two operands that broadcast; ``options`` names the table with the fused activation."""

    def spell(application: Application) -> None:
        attrs: dict[str, Attr] = {}
        if options:
            code = application.operator.options.fields(options).integer("FusedActivationFunction")
            attrs["activation"] = activation(application, code)
        _check_plain(application)
        application.result(op, (application.operand(0), application.operand(1)), attrs)

    return Spelling(spell, dtypes)


def stored(op: str, dtypes: tuple[str, ...]) -> Spelling:
    """An operator on two numbers as they are stored, whatever scale the file gives integers."""

    def spell(application: Application) -> None:
        found = application.emit(
            op, [bare(application, application.moved(k)) for k in (0, 1)], {"rounding": Rounding.NONE}
        )
        application.result_reshape(found, application.type(found).shape)

    return Spelling(spell, dtypes)


def extremum(op: str) -> Spelling:
    """MAXIMUM and MINIMUM: TFLite compares the stored integers, so all three quantisations must be one."""

    def spell(application: Application) -> None:
        _check_plain(application)
        kinds = {application.source(0).type.quant, application.source(1).type.quant, application.target().type.quant}
        if application.target().type.dtype in QUANTISED and len(kinds) != 1:
            application.refuse("operands and output are quantised differently", ONE_SCALE)
        application.result(op, (application.operand(0), application.operand(1)), {})

    return Spelling(spell, (*REAL, *PLAIN))


def _check_plain(application: Application) -> None:
    """TFLite computes with 32- and 64-bit integers as they are stored, whatever scale the file gives them."""
    if application.target().type.dtype in PLAIN and application.target().type.quant is not None:
        application.refuse(
            f"{application.target().type.dtype} tensors with a scale",
            "32- and 64-bit integers stand for themselves: take it away",
        )


_ADD_N_SHIFT = 20


def add_n(application: Application) -> None:
    """ADD_N: the sum of all operands, bytes of one scale among them."""
    values = [application.operand(position) for position in range(len(application.operator.inputs))]
    kinds, target = [application.type(value) for value in values], application.target().type
    if len(values) < 2:
        application.broken("one operand")
    if any(kind.shape != kinds[0].shape or kind.quant != kinds[0].quant for kind in kinds):
        application.refuse("operands of several shapes or scales", "write the sum as several ADD")
    if target.dtype == "int8":
        _add_bytes(application, values)
        return
    total = values[0]
    for value in values[1:-1]:
        total = application.emit("add", (total, value), {})
    application.result("add", (total, values[-1]), {})


def _add_bytes(application: Application, values: list[str]) -> None:
    """Shifted left by 20, halved, summed, scaled to the output; the sum starts, as TFLite's does, from what a stored zero adds
    (``reference/add_n.h``)."""
    kind, target = application.type(values[0]), application.target().type
    assert kind.quant is not None and target.quant is not None
    zero, half = kind.quant.zero_point[0], 1 << _ADD_N_SHIFT - 1
    bound = (len(values) + 1) * 255 * half
    if bound >= 1 << 31:
        application.refuse(f"the sum of {len(values)} operands, which may not fit 32 bits", "add them in groups")
    stacked = application.emit("concat", [application.reshaped(v, (1, *kind.shape)) for v in values], {"axis": 0})
    start: Mapping[str, Attr] = {"axes": (0,), "keepdims": False, "rounding": Rounding.NONE, "out_dtype": "int32"}
    total = application.emit("sum", (stacked,), {**start, "offset": -(len(values) + 1) * zero})
    shifted = application.emit("mul", (total, application.new_constant("shift", np.array(half, np.int32))), {})
    twice = 2.0 * float(np.float32(kind.quant.scale[0]))
    mantissa, shift = quantize_multiplier(twice / ((1 << _ADD_N_SHIFT) * float(np.float32(target.quant.scale[0]))))
    low, high = dtypes.int_range(target.dtype)
    attrs: dict[str, Attr] = {"multiplier": mantissa, "shift": shift, "shift_range": (shift, shift), "bound": bound}
    attrs |= {"zero_point": target.quant.zero_point[0], "minimum": low, "maximum": high, "out_dtype": target.dtype}
    application.result("requantize", (shifted,), {**attrs, "input_zero_point": 0, "rounding": Multiplier.DOUBLE})


def leaky_relu(application: Application) -> None:
    """LEAKY_RELU: alpha * x below zero."""
    alpha = application.operator.options.fields("LeakyReluOptions", required=True).real("Alpha")
    application.result("leaky_relu", (application.operand(0),), {"alpha": alpha})


def prelu(application: Application) -> None:
    """PRELU: the slope is a tensor that broadcasts."""
    dtype = application.target().type.dtype
    operands = (application.operand(0), application.operand(1, "int8" if dtype == "int16" else dtype))
    application.result("prelu", operands, {})


def gelu(application: Application) -> None:
    """GELU: exact, or with tanh where the file asks for the approximation."""
    approximate = bool(application.operator.options.fields("GeluOptions").integer("Approximate"))
    bent = formulas.gelu(composer(application), real_operand(application, 0), approximate)
    real_result(application, "reshape", (bent,), {"shape": application.type(bent).shape})


def right_shift(application: Application) -> None:
    """RIGHT_SHIFT: by at least no place, and at most by all bits but one."""
    data, places = (bare(application, application.moved(position)) for position in (0, 1))
    bits = 8 * dtypes.nbytes(application.target().type.dtype)
    bounds: Mapping[str, Attr] = {"minimum": 0.0, "maximum": bits - 1.0, "rounding": Rounding.NONE}
    moved = application.emit("shift_right", (data, application.emit("clip", (places,), bounds)), {})
    application.result_reshape(moved, application.type(moved).shape)


def square(application: Application) -> None:
    """SQUARE: x * x."""
    data = application.operand(0)
    application.result("mul", (data, data), {})


def l2_normalization(application: Application) -> None:
    """L2_NORMALIZATION over the last axis."""
    code = application.operator.options.fields("L2NormOptions").integer("FusedActivationFunction")
    if activation(application, code):
        application.refuse("a fused activation", "make the activation an operator of its own")
    application.result("l2_normalize", (application.operand(0),), {})


ELEMENTWISE_SPELLINGS: Mapping[str, Spelling] = {
    "ABS": unary("abs", (*FLOAT, "int8", "int16", "int32")),
    "ADD": binary("add", "AddOptions", (*REAL, *PLAIN)),
    "ATAN2": binary("atan2", dtypes=FLOAT),
    "ADD_N": Spelling(add_n, (*_INT8, "int32")),
    "BITWISE_XOR": stored("bit_xor", _BITS),
    "CEIL": unary("ceil"),
    "COS": unary("cos"),
    "DIV": binary("div", "DivOptions", (*REAL, "int32")),
    "ELU": unary("elu", _INT8, {"alpha": 1.0}),
    "EXP": unary("exp", _SIGNED),
    "FLOOR": unary("floor"),
    "FLOOR_DIV": stored("floor_div", (*_SIGNED, *PLAIN)),
    "FLOOR_MOD": stored("floor_mod", (*_SIGNED, *PLAIN)),
    "GELU": Spelling(gelu),
    "HARD_SWISH": unary("hard_swish", _BYTES),
    "L2_NORMALIZATION": Spelling(l2_normalization, _BYTES),
    "LEAKY_RELU": Spelling(leaky_relu),
    "LOG": unary("log", _SIGNED),
    "LOGISTIC": unary("sigmoid", REAL),
    "MAXIMUM": extremum("maximum"),
    "MINIMUM": extremum("minimum"),
    "MUL": binary("mul", "MulOptions", (*REAL, *PLAIN, "uint32")),
    "NEG": unary("neg", (*FLOAT, *PLAIN)),
    "POW": binary("pow", dtypes=FLOAT),
    "PRELU": Spelling(prelu),
    "RELU": unary("relu", REAL),
    "RELU6": unary("clip", REAL, {"minimum": 0.0, "maximum": 6.0}),
    "RELU_0_TO_1": unary("clip", _BYTES, {"minimum": 0.0, "maximum": 1.0}),
    "RELU_N1_TO_1": unary("clip", _BYTES, {"minimum": -1.0, "maximum": 1.0}),
    "RIGHT_SHIFT": Spelling(right_shift, _BITS),
    "ROUND": unary("round"),
    "RSQRT": unary("rsqrt", _SIGNED),
    "SIGN": unary("sign", (*FLOAT, "int32")),
    "SIN": unary("sin"),
    "SQRT": unary("sqrt", _SIGNED),
    "SQUARE": Spelling(square, FLOAT),
    "SQUARED_DIFFERENCE": binary("squared_difference", dtypes=(*FLOAT, "int8", "int16", "int32")),
    "SUB": binary("sub", "SubOptions", (*REAL, *PLAIN)),
    "TANH": unary("tanh", REAL),
}


# ---- Spellings of TFLite's conversions: between dtypes, between integers and what they stand for, of stored forms.


def quantize(application: Application) -> None:
    """QUANTIZE: floats to integers, or integers to another quantisation."""
    target, source = application.target(), application.source(0).type.dtype
    if source not in (*REAL, "int32"):
        application.refuse(f"{source} input", "float32, or int8, uint8, int16 and int32 with a scale")
    data, quant = application.operand(0, source, symmetric=False), target.type.quant
    if quant is None or (source != "float32" and application.source(0).type.quant is None):
        application.refuse("integers without quantisation", "give both tensors a scale and a zero point")
    attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}
    attrs |= {"out_dtype": target.type.dtype, "rounding": Ties.AWAY if source == "float32" else Multiplier.DOUBLE}
    application.result("quantize", (data,), attrs)


def dequantize(application: Application) -> None:
    """DEQUANTIZE: integers to floats; constants stored as float16 are widened here."""
    source, target = application.source(0), application.target()
    half = _half(application)
    if half is not None:
        application.builder.constant(target.name, half.astype(np.float32))
        return
    quant = source.type.quant
    if source.type.dtype not in (*QUANTISED, "int32"):
        application.refuse(
            f"{source.type.dtype} input", "int8, uint8, int16 and int32 with a scale, or constants of float16"
        )
    if quant is None:
        application.refuse(f"{source.name!r} has no quantisation", "give it a scale and a zero point")
    attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
    application.result("dequantize", (application.value(0),), attrs)


def densify(application: Application) -> None:
    """DENSIFY of a constant: sparse ones are dense as soon as they are read. One of float16 is kept for what widens it."""
    target, half = application.target(), _half(application)
    if half is None:
        application.builder.constant(target.name, application.constant(0), target.type.quant)
    elif target.type.dtype != "float16" or target.index in application.builder.halves:
        application.broken(f"a constant of float16 becomes {target.name!r} of {target.type.dtype}, or does so twice")
    else:
        application.builder.halves[target.index] = half


def _half(application: Application) -> Array | None:
    """The first operand where it is a constant of float16, stored or made dense: no value of the graph is."""
    source = application.source(0)
    if source.type.dtype != "float16":
        return None
    return application.builder.file.array(source) if source.constant else application.builder.halves.get(source.index)


def cast(application: Application) -> None:
    """CAST: the stored numbers in another dtype; constants of float16 are widened here."""
    half = _half(application)
    if half is not None and application.target().type.dtype == "float32":
        application.builder.constant(application.target().name, half.astype(np.float32))
        return
    if application.source(0).type.dtype not in MOVABLE:
        application.refuse(f"{application.source(0).type.dtype} input", f"microc has {', '.join(MOVABLE)}")
    application.result("cast", (application.value(0),), {"dtype": application.target().type.dtype})


def fake_quant(application: Application) -> None:
    """FAKE_QUANT: floats rounded to the steps that integers of some bits between two ends would have."""
    fields = application.operator.options.fields("FakeQuantOptions", required=True)
    low, high, bits = fields.real("Min"), fields.real("Max"), fields.integer("NumBits", 2, 16)
    least, most = int(bool(fields.integer("NarrowRange"))), (1 << bits) - 1
    if not low < high:
        application.broken(f"steps between {low} and {high}")
    scale = np.float32((np.float32(high) - np.float32(low)) / np.float32(most - least))
    zero = np.float32(least) - np.float32(low) / scale
    nudged = float(np.clip(np.floor(zero + np.float32(0.5)), least, most))
    bottom, top = (float(np.float32(end - nudged) * scale) for end in (least, most))
    clipped = application.emit("clip", (application.operand(0),), {"minimum": bottom, "maximum": top})
    above = application.emit("sub", (clipped, application.scalar(bottom)), {})
    steps = application.emit("mul", (above, application.scalar(float(np.float32(1) / scale))), {})
    whole = application.emit("floor", (application.emit("add", (steps, application.scalar(0.5)), {}),), {})
    back = application.emit("mul", (whole, application.scalar(float(scale))), {})
    application.result("add", (back, application.scalar(bottom)), {})


def bucketize(application: Application) -> None:
    """BUCKETIZE: how many of the boundaries, which rise, lie at or below each number."""
    boundaries = application.operator.options.fields("BucketizeOptions", required=True).reals("Boundaries")
    data = application.value(0)
    kind = application.type(data)
    if kind.dtype not in (*FLOAT, *PLAIN) or list(boundaries) != sorted(boundaries) or not boundaries:
        application.refuse(
            f"{kind.dtype} input with {len(boundaries)} boundaries", "boundaries rise, of float32 or integers"
        )
    real = data if kind.dtype == "float32" else application.emit("cast", (data,), {"dtype": "float32"})
    apart = application.reshaped(real, (*kind.shape, 1))
    ends = application.new_constant("boundaries", np.array(boundaries, np.float32))
    above = application.emit("greater_equal", (apart, ends), {"rounding": Rounding.NONE})
    attrs: Mapping[str, Attr] = {"axes": (len(kind.shape),), "keepdims": False, "rounding": Rounding.NONE}
    application.result("sum", (application.emit("cast", (above,), {"dtype": "int32"}),), attrs)


def bitcast(application: Application) -> None:
    """BITCAST: the same bits as another dtype of as many; of constants any dtype."""
    source, target = application.source(0), application.target()
    data = application.builder.consts.get(application.value(0))
    if data is not None:
        read = np.frombuffer(data.tobytes(), dtypes.to_numpy(target.type.dtype))
        if read.size != target.type.size:
            application.broken(
                f"{source.type.shape} of {source.type.dtype} as {target.type.shape} of {target.type.dtype}"
            )
        application.builder.constant(target.name, read.reshape(target.type.shape), target.type.quant)
        return
    pair = (source.type.dtype, target.type.dtype)
    if not all(dtypes.is_integer(name) for name in pair) or len({dtypes.nbytes(name) for name in pair}) > 1:
        application.refuse(f"the bits of {pair[0]} as {pair[1]}", "integers of as many bits, or constants")
    application.result("cast", (application.value(0),), {"dtype": pair[1]})


CONVERSIONS_SPELLINGS: Mapping[str, Spelling] = {
    "BITCAST": Spelling(bitcast, MOVABLE),
    "BUCKETIZE": Spelling(bucketize, ("int32",)),
    "CAST": Spelling(cast, MOVABLE),
    "DENSIFY": Spelling(densify, (*MOVABLE, "float16")),
    "DEQUANTIZE": Spelling(dequantize, FLOAT),
    "FAKE_QUANT": Spelling(fake_quant, FLOAT),
    "QUANTIZE": Spelling(quantize, (*QUANTISED, "int32")),
}


# ---- Spellings of TFLite's comparisons, logic, choice and search: EQUAL, LOGICAL_AND, SELECT_V2, ARG_MAX, TOPK_V2
# ...

_BOOL = ("bool",)
_COMPARED = (*FLOAT, *QUANTISED, *PLAIN, "uint32", "bool")


def comparison(op: str) -> Spelling:
    """Two operands of one dtype; quantised ones are compared as reals."""

    def spell(application: Application) -> None:
        first, second = (application.source(position).type for position in (0, 1))
        if first.dtype != second.dtype or first.dtype not in _COMPARED:
            application.refuse(f"{first.dtype} and {second.dtype} operands", f"both of one of {', '.join(_COMPARED)}")
        if any(kind.quant is not None and kind.quant.axis is not None for kind in (first, second)):
            application.refuse("operands quantised per channel", "quantise activations per tensor")
        operands = (application.value(0), application.value(1))
        application.result(op, operands, {})

    return Spelling(spell, _BOOL)


def logical(op: str, count: int) -> Spelling:
    def spell(application: Application) -> None:
        application.result(op, [application.operand(position, "bool") for position in range(count)], {})

    return Spelling(spell, _BOOL)


def select(application: Application) -> None:
    """SELECT and SELECT_V2; a vector that chooses whole rows (SELECT) gets axes behind its own."""
    condition = application.operand(0, "bool")
    a, b = application.moved(1), application.moved(2)
    check_alike(application, [1, 2])
    rank, shape = len(application.type(a).shape), application.type(condition).shape
    if application.operator.code == "SELECT" and len(shape) == 1 and rank > 1:
        condition = application.reshaped(condition, (*shape, *(1,) * (rank - 1)))
    application.result("where", (condition, a, b), {})


def arg(op: str) -> Spelling:
    """ARG_MAX and ARG_MIN along a constant axis; the stored numbers are compared."""

    def spell(application: Application) -> None:
        data = application.value(0)
        if application.type(data).dtype not in (*FLOAT, *QUANTISED, *PLAIN):
            application.refuse(f"{application.type(data).dtype} input", "float32, int8, uint8, int16, int32 or int64")
        (axis,) = application.integers(1)[:1] or (0,)
        axis = application.axis(axis, len(application.type(data).shape))
        attrs: Mapping[str, Attr] = {"axis": axis, "out_dtype": application.target().type.dtype}
        application.result(op, (data,), attrs)

    return Spelling(spell, PLAIN)


def topk(application: Application) -> None:
    """TOPK_V2: the constant number of largest elements along the last axis, and their indices."""
    data = application.moved(0)
    check_alike(application, [0])
    (count,) = application.integers(1)[:1] or (0,)
    attrs: dict[str, Attr] = {"axis": len(application.type(data).shape) - 1, "k": count, "largest": True}
    application.results("topk", (data,), {**attrs, "out_dtype": application.target(1).type.dtype})


def one_hot(application: Application) -> None:
    """ONE_HOT: indices, constant depth, the value on, the value off."""
    fields = application.operator.options.fields("OneHotOptions", required=True)
    indices, (depth,) = application.value(0), application.integers(1)[:1] or (0,)
    on, off = application.moved(2), application.moved(3)
    axis = application.axis(fields.integer("Axis"), len(application.type(indices).shape) + 1)
    application.result("one_hot", (indices, on, off), {"axis": axis, "depth": depth, "wrap": False})


LOGIC_SPELLINGS: Mapping[str, Spelling] = {
    "ARG_MAX": arg("argmax"),
    "ARG_MIN": arg("argmin"),
    "EQUAL": comparison("equal"),
    "GREATER": comparison("greater"),
    "GREATER_EQUAL": comparison("greater_equal"),
    "LESS": comparison("less"),
    "LESS_EQUAL": comparison("less_equal"),
    "LOGICAL_AND": logical("logical_and", 2),
    "LOGICAL_NOT": logical("logical_not", 1),
    "LOGICAL_OR": logical("logical_or", 2),
    "NOT_EQUAL": comparison("not_equal"),
    "ONE_HOT": Spelling(one_hot, MOVABLE),
    "SELECT": Spelling(select, MOVABLE),
    "SELECT_V2": Spelling(select, MOVABLE),
    "TOPK_V2": Spelling(topk, (*FLOAT, *QUANTISED, *PLAIN)),
}


# ---- Spellings of TFLite's reductions over constant axes, and of its running sums.


def reduction(op: str, dtypes: tuple[str, ...]) -> Spelling:
    """A reduction over constant axes. Of truth values, the largest is whether any is true, the least whether all are."""

    def spell(application: Application) -> None:
        keepdims = bool(application.operator.options.fields("ReducerOptions").integer("KeepDims"))
        data = application.operand(0)
        kind = application.type(data)
        axes = tuple(sorted({application.axis(axis, len(kind.shape)) for axis in application.integers(1)}))
        if not axes:
            check_alike(application, [0])
            application.result_reshape(data, kind.shape)
            return
        attrs: dict[str, Attr] = {"axes": axes, "keepdims": keepdims}
        if kind.dtype == "bool":
            bytes_ = application.emit("cast", (data,), {"dtype": "int8"})
            found = application.emit("max" if op == "max" else "min", (bytes_,), {**attrs, "rounding": Rounding.NONE})
            application.result("cast", (found,), {"dtype": "bool"})
        else:
            application.result(op, (data,), attrs)

    return Spelling(spell, dtypes)


def cumsum(application: Application) -> None:
    """CUMSUM along a constant axis."""
    fields = application.operator.options.fields("CumsumOptions")
    data = application.operand(0)
    (axis,) = application.integers(1)[:1] or (0,)
    attrs: dict[str, Attr] = {
        "axis": application.axis(axis, len(application.type(data).shape)),
    }
    for name in ("exclusive", "reverse"):
        attrs[name] = bool(fields.integer(name.capitalize()))
    application.result("cumsum", (data,), attrs)


REDUCTIONS_SPELLINGS: Mapping[str, Spelling] = {
    "CUMSUM": Spelling(cumsum, (*FLOAT, "int8", *PLAIN)),
    "MEAN": reduction("mean", (*REAL, *PLAIN)),
    "REDUCE_ALL": reduction("min", _BOOL),
    "REDUCE_ANY": reduction("max", _BOOL),
    "REDUCE_MAX": reduction("max", (*REAL, *PLAIN, *_BOOL)),
    "REDUCE_MIN": reduction("min", (*REAL, *PLAIN, *_BOOL)),
    "REDUCE_PROD": reduction("prod", (*FLOAT, "int8", "int16", *PLAIN, *_BOOL)),
    "SUM": reduction("sum", (*REAL, *PLAIN)),
}
