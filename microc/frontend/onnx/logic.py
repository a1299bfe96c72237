"""Spellings of ONNX's comparisons, logic, choice, bits and trigonometry."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc import dtypes
from microc.frontend.onnx.application import FLOAT, INTEGERS, MOVABLE, NUMBERS, Application, Spelling
from microc.frontend.onnx.elementwise import Composer, composed, unary, variadic

_ANY = (*NUMBERS, "bool")


def comparison(op: str, *kinds: str) -> Spelling:
    """A comparison of two operands of one dtype."""
    return Spelling(lambda application: application.result(op, (application.operand(0), application.operand(1))), kinds)


def logical_not(application: Application) -> None:
    """Not."""
    application.result("logical_not", (application.value(0),))


def where(application: Application) -> None:
    """Where: elements of one of two operands."""
    application.result("where", tuple(application.value(position) for position in range(3)))


def modulo(application: Application) -> None:
    """Mod: with the divisor's sign, or the dividend's where ``fmod`` says so."""
    data = application.operand(0)
    fmod = application.operator.attributes.flag("fmod")
    application.result("fmod" if fmod else "floor_mod", (data, application.operand(1)))


def shift(application: Application) -> None:
    """BitShift of unsigned integers."""
    direction = application.operator.attributes.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        application.broken(f"direction is {direction!r}")
    application.result(f"shift_{direction.lower()}", (application.operand(0), application.operand(1)))


def cast_like(application: Application) -> None:
    """CastLike: to the dtype of the second operand."""
    data, to = application.value(0), application.type(application.value(1)).dtype
    if to == application.type(data).dtype:
        application.result_alias(data)
    else:
        application.result("cast", (data,), {"dtype": to})


def is_nan(make: Composer, x: str) -> str:
    """A number that does not equal itself."""
    return make("not_equal", x, x)


def is_inf(make: Composer, x: str) -> str:
    """Infinite, of the signs asked for."""
    attributes = make.application.operator.attributes
    found = [
        make("equal", x, value)
        for value, name in ((np.inf, "detect_positive"), (-np.inf, "detect_negative"))
        if attributes.flag(name, True)
    ]
    return make("logical_or", *found) if len(found) == 2 else found[0] if found else make("less", x, -np.inf)


def celu(make: Composer, x: str) -> str:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    alpha = make.real("alpha", 1.0)
    return make("mul", make("elu", make("div", x, alpha), alpha=1.0), alpha) if alpha > 0 else x


def thresholded_relu(make: Composer, x: str) -> str:
    """x above a threshold, else 0."""
    return make("where", make("greater", x, make.real("alpha", 1.0)), x, make.number(0.0, x))


def shrink(make: Composer, x: str) -> str:
    """x brought nearer to 0 by a bias outside of -lambd..lambd, else 0."""
    bias, limit = make.real("bias", 0.0), make.real("lambd", 0.5)
    low = make("where", make("less", x, -limit), make("add", x, bias), make.number(0.0, x))
    return make("where", make("greater", x, limit), make("sub", x, bias), low)


def swish(make: Composer, x: str) -> str:
    """x * sigmoid(alpha * x)."""
    alpha = make.real("alpha", 1.0)
    return make("mul", x, make("sigmoid", x if alpha == 1.0 else make("mul", x, alpha)))


def eye_like(application: Application) -> None:
    """EyeLike: ones on a diagonal; the operand gives the shape, and the dtype unless that is given."""
    from microc.frontend.onnx.tensor import dtype

    kind, attributes = application.type(application.value(0)), application.operator.attributes
    if len(kind.shape) != 2:
        application.broken(f"data of shape {kind.shape}")
    to = dtype(attributes.integer("dtype"), application.where) if "dtype" in attributes else kind.dtype
    eye = np.eye(*kind.shape, k=attributes.integer("k", 0))
    application.result_constant(eye.astype(dtypes.to_numpy(to)))


SPELLINGS: Mapping[str, Spelling] = {
    "Acos": unary("acos"),
    "Acosh": unary("acosh"),
    "And": comparison("logical_and", "bool"),
    "Asin": unary("asin"),
    "Asinh": unary("asinh"),
    "Atan": unary("atan"),
    "Atanh": unary("atanh"),
    "BitShift": Spelling(shift, INTEGERS),
    "BitwiseAnd": variadic("bit_and", INTEGERS),
    "BitwiseNot": unary("bit_not", INTEGERS),
    "BitwiseOr": variadic("bit_or", INTEGERS),
    "BitwiseXor": variadic("bit_xor", INTEGERS),
    "CastLike": Spelling(cast_like, MOVABLE),
    "Celu": composed(celu),
    "Cos": unary("cos"),
    "Cosh": unary("cosh"),
    "Equal": comparison("equal", *_ANY),
    "EyeLike": Spelling(eye_like, MOVABLE),
    "Greater": comparison("greater", *NUMBERS),
    "GreaterOrEqual": comparison("greater_equal", *NUMBERS),
    "IsInf": composed(is_inf, FLOAT),
    "IsNaN": composed(is_nan, FLOAT),
    "Less": comparison("less", *NUMBERS),
    "LessOrEqual": comparison("less_equal", *NUMBERS),
    "Mod": Spelling(modulo, NUMBERS),
    "Not": Spelling(logical_not, ("bool",)),
    "Or": comparison("logical_or", "bool"),
    "Shrink": composed(shrink, NUMBERS),
    "Sign": unary("sign", NUMBERS),
    "Sin": unary("sin"),
    "Sinh": unary("sinh"),
    "Swish": composed(swish),
    "Tan": unary("tan"),
    "ThresholdedRelu": composed(thresholded_relu),
    "Where": Spelling(where, ("bool",)),
    "Xor": comparison("not_equal", "bool"),
}
