"""Functions of one number and of two, comparisons, choice, conversions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.frontend.onnx.alike import COMPARISONS, FUNCTIONS, PAIRS, Alike
from microc.frontend.onnx.writer.application import Application, Row
from microc.frontend.onnx.writer.quantised import quantize


def alike(row: Alike) -> Row:
    """An operator that is the same in ONNX."""

    def write(application: Application) -> None:
        application = application.where_it_lies()
        operands = [application.operand(k) for k in range(len(application.node.inputs))]
        application.result(row.code, *operands, **{name: application.attr(name) for name in row.reals})

    return write


def clip(application: Application) -> None:
    """Clip; of integers the bounds are as stored."""
    application = application.where_it_lies()
    bounds = [_bound(application, application.attr(name)) for name in ("minimum", "maximum")]
    application.result("Clip", application.operand(), *bounds)


def _bound(application: Application, value: float) -> str:
    """A bound, brought into the range of the dtype."""
    if not dtypes.is_float(application.dtype()):
        low, high = dtypes.int_range(application.dtype())
        value = min(max(int(value), low), high)
    return application.number(value)


def stored_real(application: Application, value: float) -> float:
    """The real that a stored number stands for, in float32; of numbers that are computed with as they are, itself."""
    quant = application.type().quant
    if not application.quantised or quant is None:
        return value
    return float(np.float32(value - quant.zero_point[0]) * np.float32(quant.scale[0]))


def quotient(application: Application) -> None:
    """Div; of integers both round to zero."""
    application.result("Div", application.operand(0), application.operand(1))


def remainder(fmod: int) -> Row:
    """Mod, with the divisor's sign (which ONNX has of integers only), or with the dividend's."""

    def write(application: Application) -> None:
        a, b = application.operand(0), application.operand(1)
        if fmod or not dtypes.is_float(application.dtype()):
            application.result("Mod", a, b, fmod=fmod)
            return
        down = application.emit("Floor", application.emit("Div", a, b))
        application.result("Sub", a, application.emit("Mul", down, b))

    return write


def floor_quotient(application: Application) -> None:
    """floor(a / b); of integers (a - (a mod b)) / b, which has no remainder."""
    a, b = application.operand(0), application.operand(1)
    if dtypes.is_float(application.dtype()):
        application.result("Floor", application.emit("Div", a, b))
    else:
        rest = application.emit("Mod", a, b, fmod=0)
        application.result("Div", application.emit("Sub", a, rest), b)


def power(application: Application) -> None:
    application.result("Pow", application.operand(0), application.operand(1))


def squared_difference(application: Application) -> None:
    """(a - b) * (a - b)."""
    difference = application.emit("Sub", application.operand(0), application.operand(1))
    application.result("Mul", difference, difference)


def reciprocal_root(application: Application) -> None:
    """1 / sqrt(x)."""
    application.result("Reciprocal", application.emit("Sqrt", application.operand()))


def shift(direction: str) -> Row:
    """BitShift, which ONNX has of unsigned integers."""

    def write(application: Application) -> None:
        if dtypes.info(application.dtype()).kind != "uint":
            application.refuse(f"a shift of {application.dtype()}", "ONNX shifts unsigned integers only")
        application.result("BitShift", application.operand(0), application.operand(1), direction=direction)

    return write


def negated(code: str) -> Row:
    """Not of what ``code`` tells."""

    def write(application: Application) -> None:
        application.result("Not", application.emit(code, application.operand(0), application.operand(1)))

    return write


def prelu(application: Application) -> None:
    """PRelu."""
    application = application.where_it_lies()
    application.result("PRelu", application.operand(0), application.operand(1))


def where(application: Application) -> None:
    application.result("Where", *(application.operand(k) for k in range(3)))


def logical_not(application: Application) -> None:
    application.result("Not", application.operand())


def cast(application: Application) -> None:
    """Cast; integers that stand for reals stand for the same in other bits."""
    from microc.frontend.onnx.writer.build import CODES

    kind = application.result_type
    if application.type().quant is not None and kind.quant is not None:
        quant = kind.quant
        attrs = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis, "out_dtype": kind.dtype}
        quantize(replace(application, node=replace(application.node, attrs=attrs)))
    else:
        application.result("Cast", application.operand(), to=CODES[application.attr("dtype")])


ROWS: Mapping[str, Row] = {
    **{row.op: alike(row) for row in (*FUNCTIONS, *PAIRS, *COMPARISONS)},
    "cast": cast,
    "clip": clip,
    "div": quotient,
    "floor_div": floor_quotient,
    "floor_mod": remainder(0),
    "fmod": remainder(1),
    "logical_not": logical_not,
    "not_equal": negated("Equal"),
    "pow": power,
    "prelu": prelu,
    "rsqrt": reciprocal_root,
    "shift_left": shift("LEFT"),
    "shift_right": shift("RIGHT"),
    "squared_difference": squared_difference,
    "where": where,
}
