"""Spellings of ONNX's comparisons, logic, choice and bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc import dtypes
from microc.frontend import formulas
from microc.frontend.formulas import composer
from microc.frontend.onnx.alike import COMPARISONS
from microc.frontend.onnx.application import FLOAT, INTEGERS, MOVABLE, NUMBERS, SIGNED, Application, Spelling
from microc.frontend.onnx.elementwise import composed


def comparison(op: str, *kinds: str) -> Spelling:
    """A comparison of two operands of one dtype."""
    return Spelling(lambda application: application.result(op, (application.operand(0), application.operand(1))), kinds)


def logical_not(application: Application) -> None:
    """Not."""
    application.result("logical_not", (application.value(0),))


def where(application: Application) -> None:
    """Where: elements of one of two operands."""
    application.result("where", tuple(application.value(position) for position in range(3)))


def quotient(application: Application) -> None:
    """Div, and Mod: with the divisor's sign, or the dividend's where ``fmod`` says so."""
    data, divisor = application.operand(0), application.operand(1)
    known = application.builder.consts.get(divisor)
    if known is not None and known.dtype.kind in "iu" and not known.all():
        application.broken("integers divided by zero")
    op = "fmod" if application.operator.attributes.flag("fmod") else "floor_mod"
    application.result("div" if application.operator.code == "Div" else op, (data, divisor))


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


def is_nan(application: Application) -> None:
    """IsNaN: a number that does not equal itself."""
    application.result("not_equal", (application.operand(0), application.operand(0)))


def is_inf(application: Application) -> None:
    """IsInf: infinite, of the signs asked for."""
    attributes, make, x = application.operator.attributes, composer(application), application.operand(0)
    ends = ((np.inf, "detect_positive"), (-np.inf, "detect_negative"))
    found = [make("equal", x, value) for value, name in ends if attributes.flag(name, True)] or [
        make("less", x, -np.inf)
    ]
    application.result_alias(make("logical_or", *found) if len(found) == 2 else found[0])


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
    **{row.code: comparison(row.op, *row.dtypes) for row in COMPARISONS},
    "BitShift": Spelling(shift, INTEGERS),
    "CastLike": Spelling(cast_like, MOVABLE),
    "Celu": composed(formulas.celu, alpha=1.0),
    "Div": Spelling(quotient, NUMBERS),
    "EyeLike": Spelling(eye_like, MOVABLE),
    "IsInf": Spelling(is_inf, FLOAT),
    "IsNaN": Spelling(is_nan, FLOAT),
    "Mod": Spelling(quotient, NUMBERS),
    "Not": Spelling(logical_not, ("bool",)),
    "Shrink": composed(formulas.shrink, SIGNED, bias=0.0, lambd=0.5),
    "Swish": composed(formulas.swish, alpha=1.0),
    "ThresholdedRelu": composed(formulas.thresholded_relu, alpha=1.0),
    "Where": Spelling(where, ("bool",)),
    "Xor": comparison("not_equal", "bool"),
}
