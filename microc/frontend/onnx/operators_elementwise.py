"""ONNX elementwise operators, comparisons, reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field

import numpy as np

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.frontend import formulas
from microc.frontend.formulas import composer
from microc.frontend.onnx.context import FLOAT, INTEGERS, MOVABLE, NUMBERS, SIGNED, Application, Spelling
from microc.frontend.onnx.file import dtype
from microc.graph.ir import Attr
from microc.ops.attributes import Rounding

# ---- Operators that are the same in ONNX, operand by operand: what the reader spells and the writer writes with one
# row each.
#
# ``dtypes`` are those that the reader takes; ``reals`` the attributes, which have one name on both sides, with ONNX's defaults.


@frozen
class Alike:
    """``op`` is our operator, ``code`` ONNX's."""

    op: str
    code: str
    dtypes: tuple[str, ...] = FLOAT
    reals: Mapping[str, float] = field(default_factory=dict)


FUNCTIONS = (
    Alike("abs", "Abs", NUMBERS),
    Alike("acos", "Acos"),
    Alike("acosh", "Acosh"),
    Alike("asin", "Asin"),
    Alike("asinh", "Asinh"),
    Alike("atan", "Atan"),
    Alike("atanh", "Atanh"),
    Alike("bit_not", "BitwiseNot", INTEGERS),
    Alike("ceil", "Ceil"),
    Alike("cos", "Cos"),
    Alike("cosh", "Cosh"),
    Alike("elu", "Elu", reals={"alpha": 1.0}),
    Alike("erf", "Erf"),
    Alike("exp", "Exp"),
    Alike("floor", "Floor"),
    Alike("hard_swish", "HardSwish"),
    Alike("leaky_relu", "LeakyRelu", reals={"alpha": 0.01}),
    Alike("log", "Log"),
    Alike("neg", "Neg", NUMBERS),
    Alike("relu", "Relu", NUMBERS),
    Alike("round", "Round"),
    Alike("sigmoid", "Sigmoid"),
    Alike("sign", "Sign", NUMBERS),
    Alike("sin", "Sin"),
    Alike("sinh", "Sinh"),
    Alike("softplus", "Softplus"),
    Alike("sqrt", "Sqrt"),
    Alike("tan", "Tan"),
    Alike("tanh", "Tanh"),
)
"""Functions of one number."""

PAIRS = (
    Alike("add", "Add", NUMBERS),
    Alike("bit_and", "BitwiseAnd", INTEGERS),
    Alike("bit_or", "BitwiseOr", INTEGERS),
    Alike("bit_xor", "BitwiseXor", INTEGERS),
    Alike("maximum", "Max", NUMBERS),
    Alike("minimum", "Min", NUMBERS),
    Alike("mul", "Mul", NUMBERS),
    Alike("sub", "Sub", NUMBERS),
)
"""Functions of two numbers; some take more in ONNX, one after the other."""

COMPARISONS = (
    Alike("equal", "Equal", (*NUMBERS, "bool")),
    Alike("greater", "Greater", NUMBERS),
    Alike("greater_equal", "GreaterOrEqual", NUMBERS),
    Alike("less", "Less", NUMBERS),
    Alike("less_equal", "LessOrEqual", NUMBERS),
    Alike("logical_and", "And", ("bool",)),
    Alike("logical_or", "Or", ("bool",)),
)
"""Functions of two numbers of one dtype that tell whether something holds."""


# ---- Spellings of ONNX's elementwise operators and reductions.

FLOAT_MAX = float(np.finfo(np.float32).max)


def unary(op: str, kinds: tuple[str, ...] = FLOAT, **defaults: float) -> Spelling:
    """An operator on one operand, whose attributes are real numbers."""

    def spell(application: Application) -> None:
        attributes = application.operator.attributes
        attrs: dict[str, Attr] = {name: attributes.real(name, default) for name, default in defaults.items()}
        application.result(op, (application.operand(0),), attrs)

    return Spelling(spell, kinds)


def variadic(op: str, kinds: tuple[str, ...] = NUMBERS) -> Spelling:
    """An operator on operands that broadcast, folded from the left; one operand is the result."""

    def spell(application: Application) -> None:
        value = application.operand(0)
        if application.count() == 1:
            application.result_alias(value)
        for position in range(1, application.count() - 1):
            value = application.emit(op, (value, application.operand(position)))
        if application.count() > 1:
            application.result(op, (value, application.operand(application.count() - 1)))

    return Spelling(spell, kinds)


def composed(formula: Callable[..., str], kinds: tuple[str, ...] = FLOAT, **defaults: float) -> Spelling:
    """An operator on one operand that is spelled with several of ours; the formula's parameters are attributes of these names."""

    def spell(application: Application) -> None:
        attributes = application.operator.attributes
        given = {name: attributes.real(name, default) for name, default in defaults.items()}
        application.result_alias(formula(composer(application), application.operand(0), **given))

    return Spelling(spell, kinds)


def gelu(application: Application) -> None:
    """Gelu: exact, or the approximation with tanh."""
    approximate = application.operator.attributes.text("approximate", "none") == "tanh"
    application.result_alias(formulas.gelu(composer(application), application.operand(0), approximate))


def clip(application: Application) -> None:
    """Clip: bounds are attributes before opset 11, then optional scalars; bounds that are not constant are operators."""
    data = application.operand(0)
    if application.opset < 11:
        attributes = application.operator.attributes
        _clip(application, data, attributes.real("min", -FLOAT_MAX), attributes.real("max", FLOAT_MAX))
        return
    given = [application.has(position) for position in (1, 2)]
    known = [application.operand(p) in application.builder.consts for p in (1, 2) if application.has(p)]
    if all(known) and application.type(data).dtype == "float32":
        low = application.number(1) if given[0] else -FLOAT_MAX
        high = application.number(2) if given[1] else FLOAT_MAX
        _clip(application, data, low, high)
        return
    if given[0]:
        data = application.emit("maximum", (data, application.operand(1)))
    if given[1]:
        data = application.emit("minimum", (data, application.operand(2)))
    application.result_alias(data)


def _clip(application: Application, data: str, low: float, high: float) -> None:
    if math.isnan(low) or math.isnan(high):
        application.broken(f"bounds {low} and {high}")
    low, high = (min(max(bound, -FLOAT_MAX), FLOAT_MAX) for bound in (low, high))
    if (low, high) == (-FLOAT_MAX, FLOAT_MAX):
        application.result_alias(data)
    elif (low, high) == (0.0, FLOAT_MAX):
        application.result("relu", (data,))
    else:
        application.result("clip", (data,), {"minimum": min(low, high), "maximum": high})


def power(application: Application) -> None:
    """Pow: the exponent may have another dtype; squares are spelled as such."""
    data, exponent = application.operand(0), application.value(1)
    known = application.builder.consts.get(exponent)
    single = known is not None and known.size == 1 and known.ndim <= len(application.type(data).shape)
    if known is not None and single and float(known.reshape(())) == 2.0:
        application.result("mul", (data, data))
        return
    kind = application.type(data).dtype
    real = kind if kind in FLOAT else "float64"
    operands = [
        value if application.type(value).dtype == real else application.emit("cast", (value,), {"dtype": real})
        for value in (data, exponent)
    ]
    if real == kind:
        application.result("pow", operands)
    else:
        application.result("cast", (application.emit("pow", operands),), {"dtype": kind})


def mean(application: Application) -> None:
    """Mean of operands that broadcast."""
    value = application.operand(0)
    for position in range(1, application.count()):
        value = application.emit("add", (value, application.operand(position)))
    count = application.scalar(1.0 / application.count(), application.type(value).dtype)
    application.result("mul", (value, count))


def prelu(application: Application) -> None:
    """PRelu: slope * x where x is negative, else x; the slope is broadcast to x."""
    data, slope = application.operand(0), application.operand(1)
    shape = application.type(data).shape
    if application.broadcast(shape, application.type(slope).shape) != shape:
        application.broken(f"slope of shape {application.type(slope).shape} for data of shape {shape}")
    application.result("prelu", (data, slope), {"rounding": Rounding.EVEN})


def reduction(op: str, before: str = "", after: str = "", since: int = 18) -> Spelling:
    """A reduction; axes are an input from opset ``since`` on. ``before`` and ``after`` are applied to its operand and result."""

    def spell(application: Application) -> None:
        attributes, data = application.operator.attributes, application.operand(0)
        axes, kind = _reduced_axes(application, since), application.type(data).dtype
        if kind == "bool":
            data = application.emit("cast", (data,), {"dtype": "uint8"})
        if not axes:
            data = application.emit(before, (data, data) if before == "mul" else (data,)) if before else data
            application.result_alias(application.emit(after, (data,)) if after else data)
            return
        if kind == "bool":
            made = application.emit(op, (data,), {"axes": axes, "keepdims": attributes.flag("keepdims", True)})
            application.result("cast", (made,), {"dtype": "bool"})
            return
        attrs: Mapping[str, Attr] = {"axes": axes, "keepdims": attributes.flag("keepdims", True)}
        if before:
            data = application.emit(before, (data, data) if before == "mul" else (data,))
        if after:
            application.result(after, (application.emit(op, (data,), attrs),))
        else:
            application.result(op, (data,), attrs)

    return Spelling(spell, (*NUMBERS, "bool") if op in ("max", "min") else NUMBERS)


def _reduced_axes(application: Application, since: int) -> tuple[int, ...]:
    """The axes of a reduction, an input from opset ``since`` on; none where it reduces nothing."""
    attributes, rank = application.operator.attributes, len(application.shape(0))
    axes: tuple[int, ...] = ()
    if application.opset < since:
        axes = attributes.integers("axes", ())
    elif application.has(1):
        axes = application.integers(1)
    if not axes and attributes.flag("noop_with_empty_axes"):
        return ()
    return tuple(sorted(application.axes(axes, rank))) or tuple(range(rank))


def reduce_log_sum_exp(application: Application) -> None:
    """ReduceLogSumExp: m + log(sum(exp(x - m))), m being the largest element, a finite number."""
    data, axes, make = application.operand(0), _reduced_axes(application, 18), composer(application)
    over: Mapping[str, Attr] = {"axes": axes, "keepdims": True}
    largest = application.emit("max", (data,), over) if axes else data
    shift = make("clip", largest, minimum=-FLOAT_MAX, maximum=FLOAT_MAX)
    powers = make("exp", make("sub", data, shift))
    total = application.emit("sum", (powers,), over) if axes else powers
    made = make("add", make("log", total), shift)
    kept = application.operator.attributes.flag("keepdims", True)
    shape = [extent for k, extent in enumerate(application.type(made).shape) if kept or k not in axes]
    application.result_reshape(made, shape)


def cast(application: Application) -> None:
    """Cast between numbers that have a dtype of ours."""
    data, to = application.value(0), dtype(application.operator.attributes.integer("to"), application.where)
    if to not in MOVABLE:
        application.refuse(f"a cast to {to}", "docs/operators.md lists the dtypes that Cast knows")
    if to == application.type(data).dtype:
        application.result_alias(data)
    else:
        application.result("cast", (data,), {"dtype": to})


ELEMENTWISE_SPELLINGS: Mapping[str, Spelling] = {
    **{row.code: unary(row.op, row.dtypes, **row.reals) for row in FUNCTIONS},
    **{row.code: variadic(row.op, row.dtypes) for row in PAIRS},
    "Cast": Spelling(cast, MOVABLE),
    "Clip": Spelling(clip, NUMBERS),
    "Gelu": Spelling(gelu),
    "HardSigmoid": composed(formulas.hard_sigmoid, alpha=0.2, beta=0.5),
    "Mish": composed(formulas.mish),
    "PRelu": Spelling(prelu, FLOAT),
    "Pow": Spelling(power, NUMBERS),
    "Reciprocal": composed(formulas.reciprocal),
    "ReduceL1": reduction("sum", before="abs"),
    "ReduceL2": reduction("sum", before="mul", after="sqrt"),
    "ReduceLogSum": reduction("sum", after="log"),
    "ReduceLogSumExp": Spelling(reduce_log_sum_exp),
    "ReduceMax": reduction("max"),
    "ReduceMean": reduction("mean"),
    "ReduceMin": reduction("min"),
    "ReduceProd": reduction("prod"),
    "ReduceSum": reduction("sum", since=13),
    "ReduceSumSquare": reduction("sum", before="mul"),
    "Selu": composed(formulas.selu, alpha=1.6732631921768188, gamma=1.0507010221481323),
    "Softsign": composed(formulas.softsign),
    "Mean": Spelling(mean),
    "Sum": variadic("add"),
}


# ---- Spellings of ONNX's comparisons, logic, choice and bits.


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
    from microc.frontend.onnx.file import dtype

    kind, attributes = application.type(application.value(0)), application.operator.attributes
    if len(kind.shape) != 2:
        application.broken(f"data of shape {kind.shape}")
    to = dtype(attributes.integer("dtype"), application.where) if "dtype" in attributes else kind.dtype
    eye = np.eye(*kind.shape, k=attributes.integer("k", 0))
    application.result_constant(eye.astype(dtypes.to_numpy(to)))


LOGIC_SPELLINGS: Mapping[str, Spelling] = {
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
