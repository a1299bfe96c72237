# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX elementwise operators, comparisons, logic and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Literal

import numpy as np

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.frontend.graph_builder import make_operator_emitter
from microc.frontend.onnx.context import FLOAT, INTEGERS, MOVABLE, NUMBERS, SIGNED, ConverterTable, OpContext
from microc.frontend.signature import AttributeBefore, Dtype, Ints, Matrix, SameDtype, Value
from microc.graph.ir import Attr
from microc.ops import arithmetic
from microc.ops.attributes import Rounding

CONVERTERS = ConverterTable()

# ---- Operators with the same operands in ONNX and here: one row serves the reader and the writer.
#
# ``dtypes`` are those that the reader accepts; ``real_attributes`` are attributes, of the same name on both sides, with ONNX's
# defaults.


@frozen
class OneToOneOperator:
    """Correspondence of an operator of microc's graph and an ONNX operator with the same operands.

    ``dtypes``: operand dtypes that the reader supports. ``real_attributes``: float attributes, which have the same
    names in microc and in ONNX, with ONNX's defaults."""

    op: str
    onnx_op_type: str
    dtypes: tuple[str, ...] = FLOAT
    real_attributes: Mapping[str, float] = field(default_factory=dict)


FUNCTIONS = (
    OneToOneOperator("abs", "Abs", NUMBERS),
    OneToOneOperator("acos", "Acos"),
    OneToOneOperator("acosh", "Acosh"),
    OneToOneOperator("asin", "Asin"),
    OneToOneOperator("asinh", "Asinh"),
    OneToOneOperator("atan", "Atan"),
    OneToOneOperator("atanh", "Atanh"),
    OneToOneOperator("bit_not", "BitwiseNot", INTEGERS),
    OneToOneOperator("ceil", "Ceil"),
    OneToOneOperator("cos", "Cos"),
    OneToOneOperator("cosh", "Cosh"),
    OneToOneOperator("elu", "Elu", real_attributes={"alpha": 1.0}),
    OneToOneOperator("erf", "Erf"),
    OneToOneOperator("exp", "Exp"),
    OneToOneOperator("floor", "Floor"),
    OneToOneOperator("hard_swish", "HardSwish"),
    OneToOneOperator("leaky_relu", "LeakyRelu", real_attributes={"alpha": 0.01}),
    OneToOneOperator("log", "Log"),
    OneToOneOperator("neg", "Neg", SIGNED),
    OneToOneOperator("relu", "Relu", NUMBERS),
    OneToOneOperator("round", "Round"),
    OneToOneOperator("sigmoid", "Sigmoid"),
    OneToOneOperator("sign", "Sign", NUMBERS),
    OneToOneOperator("sin", "Sin"),
    OneToOneOperator("sinh", "Sinh"),
    OneToOneOperator("softplus", "Softplus"),
    OneToOneOperator("sqrt", "Sqrt"),
    OneToOneOperator("tan", "Tan"),
    OneToOneOperator("tanh", "Tanh"),
)
"""Operators with one operand."""

PAIRS = (
    OneToOneOperator("add", "Add", NUMBERS),
    OneToOneOperator("bit_and", "BitwiseAnd", INTEGERS),
    OneToOneOperator("bit_or", "BitwiseOr", INTEGERS),
    OneToOneOperator("bit_xor", "BitwiseXor", INTEGERS),
    OneToOneOperator("mul", "Mul", NUMBERS),
    OneToOneOperator("sub", "Sub", NUMBERS),
)
"""Operators with two operands."""

EXTREMA = (OneToOneOperator("maximum", "Max", NUMBERS), OneToOneOperator("minimum", "Min", NUMBERS))
"""Operators with two operands that take any number in ONNX, folded from the left."""

COMPARISONS = (
    OneToOneOperator("equal", "Equal", (*NUMBERS, "bool")),
    OneToOneOperator("greater", "Greater", NUMBERS),
    OneToOneOperator("greater_equal", "GreaterOrEqual", NUMBERS),
    OneToOneOperator("less", "Less", NUMBERS),
    OneToOneOperator("less_equal", "LessOrEqual", NUMBERS),
    OneToOneOperator("logical_and", "And", ("bool",)),
    OneToOneOperator("logical_or", "Or", ("bool",)),
)
"""Comparisons and logic on two operands of one dtype, with a bool result."""


FORMULAS: tuple[tuple[str, Callable[..., str], tuple[str, ...], Mapping[str, float]], ...] = (
    ("Celu", arithmetic.emit_celu, FLOAT, {"alpha": 1.0}),
    ("HardSigmoid", arithmetic.emit_hard_sigmoid, FLOAT, {"alpha": 0.2, "beta": 0.5}),
    ("Mish", arithmetic.emit_mish, FLOAT, {}),
    ("Reciprocal", arithmetic.emit_reciprocal, FLOAT, {}),
    ("Selu", arithmetic.emit_selu, FLOAT, {"alpha": 1.6732631921768188, "gamma": 1.0507010221481323}),
    ("Shrink", arithmetic.emit_shrink, SIGNED, {"bias": 0.0, "lambd": 0.5}),
    ("Softsign", arithmetic.emit_softsign, FLOAT, {}),
    ("Swish", arithmetic.emit_swish, FLOAT, {"alpha": 1.0}),
    ("ThresholdedRelu", arithmetic.emit_thresholded_relu, FLOAT, {"alpha": 1.0}),
)
"""Operators with one operand that become several of ours: ONNX's type, formula, dtypes, float attributes with ONNX's
defaults."""


# ---- Converters of the rows above.


def _make_unary_converter(op: str) -> Callable[..., None]:
    """Make a converter of an ONNX operator with one operand to ``op``, which has the same float attributes."""

    def convert_unary(context: OpContext, x: Value, **attributes: float) -> None:
        context.result(op, (x,), attributes)

    return convert_unary


def _make_formula_converter(formula: Callable[..., str]) -> Callable[..., None]:
    """Make a converter of an ONNX operator with one operand to the graph operators that ``formula`` emits."""

    def convert_by_formula(context: OpContext, x: Value, **attributes: float) -> None:
        context.result_alias(formula(make_operator_emitter(context), x, **attributes))

    return convert_by_formula


def _make_variadic_converter(op: str) -> Callable[..., None]:
    """Make a converter of a variadic ONNX operator, such as Sum, to a chain of ``op`` with two operands each.

    The operands broadcast to each other. A single operand is the result itself."""

    def convert_variadic(context: OpContext, first: Value, *others: SameDtype) -> None:
        if not others:
            context.result_alias(first)
            return
        for other in others[:-1]:
            first = context.emit(op, (first, other))
        context.result(op, (first, others[-1]))

    return convert_variadic


def _make_binary_converter(op: str) -> Callable[..., None]:
    """Make a converter of an ONNX operator with two operands of the same dtype to the graph operator ``op``."""

    def convert_binary(context: OpContext, a: Value, b: SameDtype) -> None:
        context.result(op, (a, b))

    return convert_binary


for _row in FUNCTIONS:
    CONVERTERS.register(_row.onnx_op_type, dtypes=_row.dtypes, float_attributes=_row.real_attributes)(
        _make_unary_converter(_row.op)
    )
for _op_type, _formula, _dtypes, _attributes in FORMULAS:
    CONVERTERS.register(_op_type, dtypes=_dtypes, float_attributes=_attributes)(_make_formula_converter(_formula))
for _row in (*EXTREMA, OneToOneOperator("add", "Sum", NUMBERS)):
    CONVERTERS.register(_row.onnx_op_type, dtypes=_row.dtypes)(_make_variadic_converter(_row.op))
for _row in (*PAIRS, *COMPARISONS, OneToOneOperator("not_equal", "Xor", ("bool",))):
    CONVERTERS.register(_row.onnx_op_type, dtypes=_row.dtypes)(_make_binary_converter(_row.op))


# ---- Converters of other activation functions.

FLOAT_MAX = float(np.finfo(np.float32).max)


@CONVERTERS.register("Gelu")
@CONVERTERS.register("Gelu", domain="com.microsoft")
def convert_gelu(context: OpContext, x: Value, *, approximate: Literal["none", "tanh"] = "none") -> None:
    """Convert Gelu, exact or approximated by tanh."""
    context.result_alias(arithmetic.emit_gelu(make_operator_emitter(context), x, approximate == "tanh"))


@CONVERTERS.register("PRelu")
def convert_prelu(context: OpContext, x: Value, slope: SameDtype) -> None:
    """Convert PRelu, slope * x for negative x, else x; the slope broadcasts to x."""
    if context.broadcast_shapes(x.shape, slope.shape) != x.shape:
        context.broken(f"got slope of shape {slope.shape}, expected one that broadcasts to data of shape {x.shape}")
    context.result("prelu", (x, slope), {"rounding": Rounding.EVEN})


# ---- Converters of arithmetic and casts.


@CONVERTERS.register("Clip", dtypes=NUMBERS)
def convert_clip(
    context: OpContext,
    data: Value,
    low: SameDtype | None,
    high: SameDtype | None,
    *,
    min: float = -FLOAT_MAX,
    max: float = FLOAT_MAX,
) -> None:
    """Convert Clip, whose bounds are the attributes ``min`` and ``max`` before opset 11 and optional inputs since then.

    Constant bounds of float32 data become a ``clip``; other bounds become a ``maximum`` and a ``minimum``."""
    if context.opset < 11:
        _write_clip(context, data, min, max)
        return
    if all(bound is None or bound.constant is not None for bound in (low, high)) and data.dtype == "float32":
        minimum = -FLOAT_MAX if low is None else context.constant_number(1)
        maximum = FLOAT_MAX if high is None else context.constant_number(2)
        _write_clip(context, data, minimum, maximum)
        return
    if low is not None:
        data = context.emit("maximum", (data, low))
    if high is not None:
        data = context.emit("minimum", (data, high))
    context.result_alias(data)


def _write_clip(context: OpContext, data: Value, minimum: float, maximum: float) -> None:
    """Write the output: ``data`` clipped to constant bounds. Infinite bounds are omitted."""
    if math.isnan(minimum) or math.isnan(maximum):
        context.broken(f"got min {minimum} and max {maximum}, expected no NaN")
    minimum, maximum = (min(max(bound, -FLOAT_MAX), FLOAT_MAX) for bound in (minimum, maximum))
    if (minimum, maximum) == (-FLOAT_MAX, FLOAT_MAX):
        context.result_alias(data)
    elif (minimum, maximum) == (0.0, FLOAT_MAX):
        context.result("relu", (data,))
    else:
        context.result("clip", (data,), {"minimum": min(minimum, maximum), "maximum": maximum})


@CONVERTERS.register("Pow", dtypes=NUMBERS)
def convert_pow(context: OpContext, base: Value, exponent: Value) -> None:
    """Convert Pow; a constant exponent of 2 becomes a multiplication.

    The result has the dtype of the base. The exponent may have another dtype. Powers of integers are computed in
    float64."""
    constant = exponent.constant
    if (
        constant is not None
        and constant.size == 1
        and constant.ndim <= base.rank
        and float(constant.reshape(())) == 2.0
    ):
        context.result("mul", (base, base))
        return
    real = base.dtype if base.dtype in FLOAT else "float64"
    operands = [context.cast(value, real) for value in (base, exponent)]
    if real == base.dtype:
        context.result("pow", operands)
    else:
        context.result("cast", (context.emit("pow", operands),), {"dtype": base.dtype})


@CONVERTERS.register("Mean")
def convert_mean(context: OpContext, first: Value, *others: SameDtype) -> None:
    """Convert Mean, the average of operands that broadcast to each other."""
    total = first
    for other in others:
        total = context.emit("add", (total, other))
    context.result("mul", (total, context.scalar(1.0 / (1 + len(others)), first.dtype)))


@CONVERTERS.register("Div", dtypes=NUMBERS)
def convert_div(context: OpContext, a: Value, b: SameDtype) -> None:
    """Convert Div."""
    _check_constant_divisor(context, b)
    context.result("div", (a, b))


@CONVERTERS.register("Mod", dtypes=NUMBERS)
def convert_mod(context: OpContext, a: Value, b: SameDtype, *, fmod: bool = False) -> None:
    """Convert Mod. The remainder has the sign of the dividend if ``fmod`` is set, else that of the divisor."""
    _check_constant_divisor(context, b)
    context.result("fmod" if fmod else "floor_mod", (a, b))


def _check_constant_divisor(context: OpContext, divisor: Value) -> None:
    """Raise ModelError if a constant integer divisor contains 0."""
    if divisor.constant is not None and divisor.constant.dtype.kind in "iu" and not divisor.constant.all():
        context.broken("the constant integer divisor contains 0, expected no 0")


@CONVERTERS.register("Cast", dtypes=MOVABLE)
def convert_cast(context: OpContext, data: Value, *, to: Dtype) -> None:
    """Convert Cast between numeric dtypes."""
    if to not in MOVABLE:
        context.refuse(f"a cast to {to} is not supported", f"cast to one of {', '.join(MOVABLE)}")
    _write_cast(context, data, to)


@CONVERTERS.register("CastLike", dtypes=MOVABLE)
def convert_cast_like(context: OpContext, data: Value, target: Value) -> None:
    """Convert CastLike, a cast to the dtype of the second operand."""
    _write_cast(context, data, target.dtype)


def _write_cast(context: OpContext, data: Value, dtype: str) -> None:
    """Write the output: ``data`` converted to ``dtype``."""
    if dtype == data.dtype:
        context.result_alias(data)
    else:
        context.result("cast", (data,), {"dtype": dtype})


# ---- Converters of reductions.

_AxesSince13 = Annotated[Ints | None, AttributeBefore(13)]
_AxesSince18 = Annotated[Ints | None, AttributeBefore(18)]
"""Axes of a reduction, which are an input of newer operator sets."""


def _make_reduction_converter(op: str, op_before: str, op_after: str) -> Callable[..., None]:
    """Make a converter of an ONNX reduction, such as ReduceL2, to ``op`` over axes.

    ``op_before``, ``op_after``: graph operators applied before and after the reduction; empty for none."""

    def convert_reduction(
        context: OpContext,
        data: Value,
        axes: _AxesSince18,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
    ) -> None:
        reduced_axes = _get_reduced_axes(context, data, axes, noop_with_empty_axes)
        steps: list[tuple[str, Mapping[str, Attr]]] = [(op_before, {})] if op_before else []
        steps += [(op, {"axes": reduced_axes, "keepdims": keepdims})] if reduced_axes else []
        steps += [(op_after, {})] if op_after else []
        if data.dtype == "bool" and steps:
            steps = [("cast", {"dtype": "uint8"}), *steps, ("cast", {"dtype": "bool"})]
        if data.dtype == "int32" and op_after == "sqrt":
            data = context.cast(data, "int64")
        for k, (step, attrs) in enumerate(steps):
            operands = (data, data) if step == "mul" else (data,)
            if step == "sqrt" and data.dtype == "int64":
                _write_integer_root(context, data)
                return
            if k + 1 == len(steps):
                context.result(step, operands, attrs)
                return
            data = context.emit(step, operands, attrs)
        context.result_alias(data)

    return convert_reduction


def _write_integer_root(context: OpContext, squares: Value) -> None:
    """Write the output: the root of an int64 sum of squares, rounded down, or the largest int32 if it is larger.

    The root in float32, truncated to an integer, has an error d below 1 + root * 2^-22. A step of Newton's method leaves
    d^2 / (2 root) < 1, so its result, rounded down, is the root or one more, which its square shows. A sum of 2^63 and
    more wraps around; its root exceeds int32, and ONNX does not define the result."""
    positive = context.emit("maximum", (squares, context.scalar(0, "int64")))
    real = context.emit("sqrt", (context.cast(positive, "float32"),))
    start = context.emit("maximum", (context.cast(real, "int64"), context.scalar(1, "int64")))
    both = context.emit("add", (start, context.emit("div", (positive, start))))
    root = context.emit("div", (both, context.scalar(2, "int64")))
    excess = context.emit("greater", (context.emit("mul", (root, root)), positive))
    exact = context.emit("sub", (root, context.cast(excess, "int64")))
    context.result("cast", (context.emit("minimum", (exact, context.scalar(2**31 - 1, "int64"))),), {"dtype": "int32"})


for _op_type, _op, _op_before, _op_after in (
    ("ReduceL1", "sum", "abs", ""),
    ("ReduceL2", "sum", "mul", "sqrt"),
    ("ReduceLogSum", "sum", "", "log"),
    ("ReduceMax", "max", "", ""),
    ("ReduceMean", "mean", "", ""),
    ("ReduceMin", "min", "", ""),
    ("ReduceProd", "prod", "", ""),
    ("ReduceSumSquare", "sum", "mul", ""),
):
    _dtypes = (*NUMBERS, "bool") if _op in ("max", "min") else FLOAT if _op_after == "log" else NUMBERS
    _dtypes = (*FLOAT, "int32") if _op_after == "sqrt" else _dtypes
    CONVERTERS.register(_op_type, dtypes=_dtypes)(_make_reduction_converter(_op, _op_before, _op_after))


@CONVERTERS.register("ReduceSum", dtypes=NUMBERS)
def convert_reduce_sum(
    context: OpContext, data: Value, axes: _AxesSince13, *, keepdims: bool = True, noop_with_empty_axes: bool = False
) -> None:
    """Convert ReduceSum, whose axes are an input since opset 13."""
    reduced_axes = _get_reduced_axes(context, data, axes, noop_with_empty_axes)
    if reduced_axes:
        context.result("sum", (data,), {"axes": reduced_axes, "keepdims": keepdims})
    else:
        context.result_alias(data)


def _get_reduced_axes(context: OpContext, data: Value, axes: Ints | None, noop_with_empty_axes: bool) -> Ints:
    """Return the axes of a reduction as numbers of 0 to rank - 1; empty if the operator reduces no axis."""
    if not axes and noop_with_empty_axes:
        return ()
    return tuple(sorted(context.normalize_axes(axes or (), data.rank))) or tuple(range(data.rank))


@CONVERTERS.register("ReduceLogSumExp")
def convert_reduce_log_sum_exp(
    context: OpContext, data: Value, axes: _AxesSince18, *, keepdims: bool = True, noop_with_empty_axes: bool = False
) -> None:
    """Convert ReduceLogSumExp to m + log(sum(exp(x - m))), with the maximum m of x clipped to finite numbers."""
    reduced_axes = _get_reduced_axes(context, data, axes, noop_with_empty_axes)
    make = make_operator_emitter(context)
    over: Mapping[str, Attr] = {"axes": reduced_axes, "keepdims": True}
    largest = context.emit("max", (data,), over) if reduced_axes else data
    shift = make("clip", largest, minimum=-FLOAT_MAX, maximum=FLOAT_MAX)
    powers = make("exp", make("sub", data, shift))
    total = context.emit("sum", (powers,), over) if reduced_axes else powers
    result = make("add", make("log", total), shift)
    shape = [extent for k, extent in enumerate(context.type(result).shape) if keepdims or k not in reduced_axes]
    context.result_reshape(result, shape)


# ---- Converters of logic, selection and bit operations.


@CONVERTERS.register("Not", dtypes=("bool",))
def convert_logical_not(context: OpContext, x: Value) -> None:
    """Convert Not, the negation of bools."""
    context.result("logical_not", (x,))


@CONVERTERS.register("Where", dtypes=("bool",))
def convert_where(context: OpContext, condition: Value, x: Value, y: Value) -> None:
    """Convert Where, which selects each element from one of two operands by a condition."""
    context.result("where", (condition, x, y))


@CONVERTERS.register("BitShift", dtypes=INTEGERS)
def convert_bit_shift(context: OpContext, x: Value, amount: SameDtype, *, direction: Literal["LEFT", "RIGHT"]) -> None:
    """Convert BitShift of unsigned integers."""
    context.result(f"shift_{direction.lower()}", (x, amount))


@CONVERTERS.register("IsNaN")
def convert_is_nan(context: OpContext, x: Value) -> None:
    """Convert IsNaN to x != x, which is true for NaN only."""
    context.result("not_equal", (x, x))


@CONVERTERS.register("IsInf")
def convert_is_inf(context: OpContext, x: Value, *, detect_positive: bool = True, detect_negative: bool = True) -> None:
    """Convert IsInf to comparisons with the infinities that the attributes select."""
    make = make_operator_emitter(context)
    infinities = ((np.inf, detect_positive), (-np.inf, detect_negative))
    tests = [make("equal", x, value) for value, is_detected in infinities if is_detected] or [
        make("less", x, -np.inf)
        # With both signs deselected the result is false everywhere: x < -inf never holds.
    ]
    context.result_alias(make("logical_or", *tests) if len(tests) == 2 else tests[0])


@CONVERTERS.register("EyeLike", dtypes=MOVABLE)
def convert_eye_like(context: OpContext, data: Matrix, *, dtype: Dtype | None = None, k: int = 0) -> None:
    """Convert EyeLike to a constant matrix with ones on a diagonal, in the shape of the operand.

    The matrix has the dtype in the attribute ``dtype``, or that of the operand if the attribute is absent."""
    rows, columns = data.shape
    context.result_constant(np.eye(rows, columns, k=k).astype(dtypes.to_numpy(dtype or data.dtype)))
