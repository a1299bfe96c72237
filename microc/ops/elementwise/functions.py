"""The mathematical functions of one number that elementwise operators apply: each said once for numpy, once in TIR.

NaN goes through ``relu`` and ``clip`` as ONNX wants; TFLite's do the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen
from microc.ops.attributes import Attributes, number, real
from microc.ops.numbers import FLOAT, INTEGERS, NUMBERS, SIGNED, bound, wrapping
from microc.tir import ir
from microc.tir.ir import Expr


@frozen
class Unary:
    """``name``: ``array`` over numpy float64 (integers: int64), ``scalar`` over one TIR value of 32 or 64 bits.

    ``domain`` bounds the test data; ``tolerance`` is the float error allowed between the two; ``edges`` as in OpDef.
    """

    name: str
    array: Callable[[Mapping[str, Any], Array], Array]
    scalar: Callable[[Mapping[str, Any], Expr], Expr]
    dtypes: tuple[str, ...] = FLOAT
    attrs: Attributes = field(default_factory=dict)
    domain: tuple[float, float] = (-6.0, 6.0)
    tolerance: float = 2e-6
    edges: str = ""


def _zero(x: Expr) -> Expr:
    return ir.const(0, x.dtype)


def _call(name: str) -> Callable[[Mapping[str, Any], Expr], Expr]:
    return lambda _, x: ir.call(name, x)


def _relu(_: Mapping[str, Any], x: Expr) -> Expr:
    return ir.select(x < 0, _zero(x), x) if dtypes.is_float(x.dtype) else ir.maximum(x, 0)


def _clip(attrs: Mapping[str, Any], x: Expr) -> Expr:
    low, high = bound(attrs["minimum"], x.dtype), bound(attrs["maximum"], x.dtype)
    if dtypes.is_float(x.dtype):
        return ir.select(x < low, low, ir.select(x > high, high, x))
    return ir.clamp(x, low, high)


def _clip_array(attrs: Mapping[str, Any], x: Array) -> Array:
    low, high = attrs["minimum"], attrs["maximum"]
    if x.dtype.kind in "iu":  # of 64 bits floats hold the ends only nearly
        low, high = (x.dtype.type(ir.int_value(bound(end, x.dtype.name)) or 0) for end in (low, high))
    return np.where(x < low, low, np.where(x > high, high, x))


def _abs(_: Mapping[str, Any], x: Expr) -> Expr:
    return ir.call("fabs", x) if dtypes.is_float(x.dtype) else ir.select(x < 0, _negative({}, x), x)


def _negative(_: Mapping[str, Any], x: Expr) -> Expr:
    return -x if dtypes.is_float(x.dtype) else wrapping("sub", ir.const(0, x.dtype), x)


def _sigmoid(_: Mapping[str, Any], x: Expr) -> Expr:
    return 1.0 / (ir.call("exp", -x) + 1.0)


def _softplus(_: Mapping[str, Any], x: Expr) -> Expr:
    """log(1 + exp(x)) without overflow."""
    return ir.maximum(x, 0.0) + ir.call("log1p", ir.call("exp", -ir.call("fabs", x)))


def _hard_swish(_: Mapping[str, Any], x: Expr) -> Expr:
    """The factor is made before the product, which would overflow at numbers of which it is one."""
    return x * (ir.clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0))


def _elu(attrs: Mapping[str, Any], x: Expr) -> Expr:
    return ir.select(x < 0.0, ir.call("expm1", x) * float(attrs["alpha"]), x)


def _sign(_: Mapping[str, Any], x: Expr) -> Expr:
    one = ir.const(1, x.dtype)
    if dtypes.info(x.dtype).kind == "uint":
        return ir.minimum(x, one)
    return ir.select(x > 0, one, ir.select(x < 0, -one, x + 0 if dtypes.is_float(x.dtype) else x))


def _numpy(name: str) -> Callable[[Mapping[str, Any], Array], Array]:
    """numpy spells inverse functions out: ``arcsin`` for ``asin``."""
    function = getattr(np, f"arc{name[1:]}" if name.startswith("a") else name)
    return lambda _, x: np.asarray(function(x))


TRANSCENDENTAL = (
    ("tan", (-1.5, 1.5)),
    ("asin", (-1.0, 1.0)),
    ("acos", (-1.0, 1.0)),
    ("atan", (-6.0, 6.0)),
    ("sinh", (-6.0, 6.0)),
    ("cosh", (-6.0, 6.0)),
    ("asinh", (-6.0, 6.0)),
    ("acosh", (1.0, 9.0)),
    ("atanh", (-0.99, 0.99)),
)
"""Functions of ``<math.h>`` and the domain that they are tested on."""

_ERF = np.vectorize(math.erf, otypes=[np.float64])

_LOWEST = "The lowest integer stays what it is"

_BOUNDS: Attributes = {
    "minimum": number("the least result; of integers, as stored", 0.0),
    "maximum": number("the largest", 6.0),
}
UNARY: tuple[Unary, ...] = (
    Unary("relu", lambda _, x: np.where(x < 0, 0, x), _relu, NUMBERS, tolerance=0.0),
    Unary("clip", _clip_array, _clip, NUMBERS, _BOUNDS, (-9.0, 9.0), 0.0),
    Unary(
        "leaky_relu",
        lambda attrs, x: np.where(x < 0, x * np.float32(attrs["alpha"]), x),
        lambda attrs, x: ir.select(x < 0.0, x * float(attrs["alpha"]), x),
        attrs={"alpha": real("the slope below 0", 0.01)},
    ),
    Unary(
        "elu",
        lambda attrs, x: np.where(x < 0, np.expm1(x) * np.float32(attrs["alpha"]), x),
        _elu,
        attrs={"alpha": real("what it falls to", 1.0)},
    ),
    Unary("softplus", lambda _, x: np.logaddexp(0, x), _softplus, domain=(-90.0, 90.0)),
    Unary("tanh", lambda _, x: np.tanh(x), _call("tanh")),
    Unary("sigmoid", lambda _, x: 1 / (1 + np.exp(-x)), _sigmoid, domain=(-100.0, 100.0)),
    Unary("exp", lambda _, x: np.exp(x), _call("exp"), domain=(-90.0, 80.0)),
    Unary("log", lambda _, x: np.log(x), _call("log"), domain=(1e-6, 1e4)),
    Unary("sqrt", lambda _, x: np.sqrt(x), _call("sqrt"), domain=(0.0, 1e4), tolerance=0.0),
    Unary("rsqrt", lambda _, x: 1 / np.sqrt(x), lambda _, x: 1.0 / ir.call("sqrt", x), domain=(1e-6, 1e4)),
    Unary("abs", lambda _, x: np.abs(x), _abs, SIGNED, tolerance=0.0, edges=_LOWEST),
    Unary("neg", lambda _, x: -x, _negative, SIGNED, tolerance=0.0, edges=_LOWEST),
    *(Unary(name, _numpy(name), _call(name), domain=domain, tolerance=4e-6) for name, domain in TRANSCENDENTAL),
    Unary("sign", lambda _, x: np.sign(x), _sign, NUMBERS, tolerance=0.0),
    Unary("bit_not", lambda _, x: ~x, lambda _, x: ir.Un("bitnot", x), INTEGERS),
    Unary("sin", lambda _, x: np.sin(x), _call("sin")),
    Unary("cos", lambda _, x: np.cos(x), _call("cos")),
    Unary("floor", lambda _, x: np.floor(x), _call("floor"), tolerance=0.0),
    Unary("ceil", lambda _, x: np.ceil(x), _call("ceil"), tolerance=0.0),
    Unary("round", lambda _, x: np.rint(x), _call("rint"), tolerance=0.0),
    Unary("erf", lambda _, x: np.asarray(_ERF(x)), _call("erf")),
    Unary("hard_swish", lambda _, x: x * (np.clip(x + 3, 0, 6) / 6), _hard_swish),
)

UNARY_BY_NAME: Mapping[str, Unary] = MappingProxyType({function.name: function for function in UNARY})


def apply(function: Unary, attrs: Mapping[str, Any], x: Array) -> Array:
    """``function`` of an array, rounded once from double (exact in int64), in the array's dtype."""
    wide = x.astype(np.float64 if x.dtype.kind == "f" else x.dtype if x.dtype == np.uint64 else np.int64)
    with np.errstate(all="ignore"):
        return np.asarray(function.array(attrs, wide)).astype(x.dtype)
