"""Operators that are the same in ONNX, operand by operand: what the reader spells and the writer writes with one row each.

``dtypes`` are those that the reader takes; ``reals`` the attributes, which have one name on both sides, with ONNX's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from microc.frontend.onnx.application import FLOAT, INTEGERS, NUMBERS
from microc.frozen import frozen


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
