"""Spellings of TFLite's operators on numbers, one by one: arithmetic, functions, bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc import dtypes
from microc.fixed import quantize_multiplier
from microc.frontend import formulas
from microc.frontend.formulas import composer
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import (
    FLOAT,
    ONE_SCALE,
    PLAIN,
    QUANTISED,
    REAL,
    Spelling,
    activation,
    bare,
    real_operand,
    real_result,
)
from microc.graph.ir import Attr
from microc.ops.rounding import Multiplier, Rounding

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


SPELLINGS: Mapping[str, Spelling] = {
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
