# SPDX-License-Identifier: Apache-2.0
"""Converters of ATen's elementwise operators, reductions, searches and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import numpy as np

from microc.base import dtypes
from microc.frontend.graph_builder import make_operator_emitter
from microc.frontend.signature import Argument, ConverterTable, Ints, Only, Value
from microc.frontend.torch.context import OpContext
from microc.graph.ir import Attr
from microc.ops import arithmetic

CONVERTERS = ConverterTable()

# ---- Converters of functions of one tensor.


def _make_unary_converter(op: str) -> Callable[..., Value]:
    """Return the converter of an elementwise function of one tensor. Integers are cast to float if the result is
    float."""

    def convert_unary(context: OpContext, x: Value) -> Value:
        result_dtype = context.result_dtype()
        return context.emit(op, (context.cast(x, result_dtype) if dtypes.is_float(result_dtype) else x,))

    return convert_unary


for _name in (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "log"),
    *("neg", "relu", "rsqrt", "sigmoid", "sin", "sinh", "softplus", "sqrt", "tan", "tanh"),
):
    CONVERTERS.register(_name)(_make_unary_converter(_name))


@CONVERTERS.register("round")
def convert_round(
    context: OpContext, x: Value, *, decimals: Annotated[int, Only(0, "scale the data before and after round")] = 0
) -> Value:
    """Convert round, to the nearest integer, ties to the even one."""
    return context.emit("round", (x,))


CONVERTERS.register("hardswish")(_make_unary_converter("hard_swish"))


def _make_formula_converter(formula: Callable[..., str]) -> Callable[..., Value]:
    """Return the converter of an elementwise function that is composed of several operators by ``formula``."""

    def convert_by_formula(context: OpContext, x: Value) -> Value:
        return _emit_in_float32(context, x, lambda operand: formula(make_operator_emitter(context.builder), operand))

    return convert_by_formula


CONVERTERS.register("hardsigmoid")(_make_formula_converter(arithmetic.emit_hard_sigmoid))
CONVERTERS.register("reciprocal")(_make_formula_converter(arithmetic.emit_reciprocal))


@CONVERTERS.register("gelu")
def convert_gelu(context: OpContext, x: Value, *, approximate: str = "none") -> Value:
    """Convert gelu, exact or approximated by tanh."""
    emit = make_operator_emitter(context.builder)
    return _emit_in_float32(context, x, lambda operand: arithmetic.emit_gelu(emit, operand, approximate == "tanh"))


def _emit_in_float32(context: OpContext, x: Value, build_formula: Callable[[str], str]) -> Value:
    """Emit ``build_formula`` of ``x``. float16 and bfloat16 are computed in float32, and only the result is rounded."""
    if x.dtype not in dtypes.HALF:
        return context.look_up(build_formula(x))
    return context.cast(context.look_up(build_formula(context.cast(x, "float32"))), x.dtype)


@CONVERTERS.register("sign")
def convert_sign(context: OpContext, x: Value) -> Value:
    """Convert sign to (x > 0) - (x < 0): -1, 0 or 1, in the dtype of the value."""
    zero = context.convert_to_value(0, x.dtype)
    return context.emit("sub", [context.cast(context.emit(op, (x, zero)), x.dtype) for op in ("greater", "less")])


@CONVERTERS.register("trunc")
def convert_trunc(context: OpContext, x: Value) -> Value:
    """Convert trunc, which rounds towards zero, to sign(x) * floor(abs(x))."""
    whole = context.emit("floor", (context.emit("abs", (x,)),))
    return context.emit("mul", (convert_sign(context, x), whole))


@CONVERTERS.register("leaky_relu")
def convert_leaky_relu(context: OpContext, x: Value, *, negative_slope: float = 0.01) -> Value:
    """Convert leaky_relu: x if it is positive, else x times the slope."""
    return context.emit("leaky_relu", (x,), {"alpha": negative_slope})


@CONVERTERS.register("rrelu_with_noise_functional")
def convert_rrelu(context: OpContext, x: Value, *, lower: float = 1 / 8, upper: float = 1 / 3) -> tuple[str, str]:
    """Convert rrelu in evaluation mode: a leaky_relu whose slope is the mean of ``lower`` and ``upper``.

    The operator's second result, noise, is used only in training; it becomes ""."""
    return context.emit("leaky_relu", (x,), {"alpha": (lower + upper) / 2}), ""


@CONVERTERS.register("elu")
def convert_elu(
    context: OpContext, x: Value, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Value:
    """Convert elu, also with a factor ``scale`` of the result."""
    result = context.emit("elu", (x,), {"alpha": alpha})
    if scale != 1 or input_scale != 1:
        return context.emit("mul", (result, context.convert_to_value(scale)))
    return result


def _make_logarithm_converter(base: float) -> Callable[..., Value]:
    """Return the converter of the logarithm to the base ``base``."""

    def convert_logarithm(context: OpContext, x: Value) -> Value:
        return context.emit("mul", (context.emit("log", (x,)), context.convert_to_value(1 / math.log(base))))

    return convert_logarithm


CONVERTERS.register("log2")(_make_logarithm_converter(2.0))
CONVERTERS.register("log10")(_make_logarithm_converter(10.0))


@CONVERTERS.register("exp2")
def convert_exp2(context: OpContext, x: Value) -> Value:
    """Convert exp2: 2 ** x."""
    return context.emit("pow", (context.convert_to_value(2.0), x))


@CONVERTERS.register("log1p")
def convert_log1p(context: OpContext, x: Value) -> Value:
    """Convert log1p: log(x + 1)."""
    return context.emit("log", (context.emit("add", (x, context.convert_to_value(1.0))),))


@CONVERTERS.register("expm1")
def convert_expm1(context: OpContext, x: Value) -> Value:
    """Convert expm1: exp(x) - 1."""
    return context.emit("sub", (context.emit("exp", (x,)), context.convert_to_value(1.0)))


@CONVERTERS.register("erfc")
def convert_erfc(context: OpContext, x: Value) -> Value:
    """Convert erfc: 1 - erf(x)."""
    return context.emit("sub", (context.convert_to_value(1.0), context.emit("erf", (x,))))


@CONVERTERS.register("isnan")
def convert_isnan(context: OpContext, x: Value) -> Value:
    """Convert isnan to x != x, which is true for NaN only."""
    return context.emit("not_equal", (x, x))


@CONVERTERS.register("isinf")
def convert_isinf(context: OpContext, x: Value) -> Value:
    """Convert isinf to abs(x) == infinity."""
    return context.emit("equal", (context.emit("abs", (x,)), context.convert_to_value(math.inf)))


@CONVERTERS.register("copy")
def convert_copy(context: OpContext, src: Value) -> Value:
    """Convert copy: the operand ``src``, broadcast to the shape of ``self`` and cast to its dtype."""
    return context.broadcast_to(context.cast(src, context.result_dtype()), context.result_shape())


# ---- Converters of functions of two tensors, or of a tensor and a number.

_BOOL_LOGIC = {"add": "logical_or", "maximum": "logical_or", "minimum": "logical_and", "mul": "logical_and"}
"""Logical operators that replace arithmetic operators on bool tensors, by the name of the arithmetic operator."""


def promote_operands(context: OpContext, x: Argument, y: Argument, result_dtype: str = "") -> tuple[Value, Value]:
    """Cast both operands to the same dtype; return them as values.

    The dtype is ``result_dtype``, or, by default, the dtype that PyTorch's type promotion gives."""
    if not result_dtype:
        tensors = [part for part in (x, y) if isinstance(part, (str, context.torch.Tensor))]
        tensor_dtypes = [
            context.look_up(t).dtype if isinstance(t, str) else str(t.dtype).removeprefix("torch.") for t in tensors
        ]
        real_dtypes = [name for name in tensor_dtypes if dtypes.is_float(name)]
        number = next((part for part in (x, y) if isinstance(part, (int, float))), 0)
        result_dtype = real_dtypes[0] if real_dtypes else "float32" if isinstance(number, float) else tensor_dtypes[-1]
    return _convert_to_value_of_dtype(context, x, result_dtype), _convert_to_value_of_dtype(context, y, result_dtype)


def _convert_to_value_of_dtype(context: OpContext, x: Argument, dtype: str) -> Value:
    """Return a value of ``dtype`` that contains ``x``, a value of the graph, a known tensor or a number."""
    return context.cast(context.look_up(x), dtype) if isinstance(x, str) else context.convert_to_value(x, dtype)


def _emit_binary(context: OpContext, op: str, x: Argument, other: Argument, alpha: float = 1) -> Value:
    """Emit the arithmetic operator ``op`` of ``x`` and ``other`` * ``alpha``, in PyTorch's dtype of the result."""
    result_dtype = context.result_dtype()
    x, other = promote_operands(context, x, other, result_dtype)
    if result_dtype == "bool" and op in _BOOL_LOGIC:
        return context.emit(_BOOL_LOGIC[op], (x, other))
    if alpha != 1:
        other = context.emit("mul", (other, context.convert_to_value(alpha, other.dtype)))
    return context.emit(op, (x, other))


def _make_binary_converter(op: str) -> Callable[..., Value]:
    """Return the converter of an arithmetic operator on two tensors, or on a tensor and a number."""

    def convert_binary(context: OpContext, x: Argument, other: Argument) -> Value:
        return _emit_binary(context, op, x, other)

    return convert_binary


for _name, _op in (
    ("floor_divide", "floor_div"),
    ("fmod", "fmod"),
    ("maximum", "maximum"),
    ("minimum", "minimum"),
    ("mul", "mul"),
    ("remainder", "floor_mod"),
):
    CONVERTERS.register(_name)(_make_binary_converter(_op))


def _make_sum_converter(op: str) -> Callable[..., Value]:
    """Return the converter of an operator that multiplies its second operand by ``alpha`` first."""

    def convert_sum(context: OpContext, x: Argument, other: Argument, *, alpha: float = 1.0) -> Value:
        return _emit_binary(context, op, x, other, alpha)

    return convert_sum


for _name in ("add", "sub"):
    CONVERTERS.register(_name)(_make_sum_converter(_name))


@CONVERTERS.register("rsub")
def convert_rsub(context: OpContext, x: Argument, other: Argument, *, alpha: float = 1.0) -> Value:
    """Convert rsub: other - x * alpha."""
    x, other = promote_operands(context, x, other, context.result_dtype())
    if alpha != 1:
        x = context.emit("mul", (x, context.convert_to_value(alpha, x.dtype)))
    return context.emit("sub", (other, x))


@CONVERTERS.register("div")
def convert_div(context: OpContext, x: Argument, other: Argument, *, rounding_mode: str | None = None) -> Value:
    """Convert div. ``rounding_mode`` may be ``floor`` (round down) or ``trunc`` (round towards zero)."""
    operands = promote_operands(context, x, other, context.result_dtype())
    if rounding_mode == "floor":
        return context.emit("floor_div", operands)
    quotient = context.emit("div", operands)
    return (
        quotient if rounding_mode is None or not dtypes.is_float(quotient.dtype) else convert_trunc(context, quotient)
    )


@CONVERTERS.register("pow")
def convert_pow(context: OpContext, x: Argument, exponent: Argument) -> Value:
    """Convert pow. The exponents 2 and 0.5 become a product and a square root."""
    number = exponent.item() if isinstance(exponent, context.torch.Tensor) and exponent.numel() == 1 else exponent
    if isinstance(x, str) and isinstance(number, (int, float)) and number in (2, 0.5):
        return context.emit("mul", (x, x)) if number == 2 else context.emit("sqrt", (x,))
    return context.emit("pow", promote_operands(context, x, exponent))


@CONVERTERS.register("clamp")
def convert_clamp(context: OpContext, x: Value, min: Argument = None, max: Argument = None) -> Value:
    """Convert clamp. Bounds are numbers or tensors."""
    if any(isinstance(bound, str) or hasattr(bound, "shape") for bound in (min, max)):
        result_dtype = context.result_dtype()
        x = x if min is None else context.emit("maximum", promote_operands(context, x, min, result_dtype))
        return x if max is None else context.emit("minimum", promote_operands(context, x, max, result_dtype))
    if min == 0 and max is None:
        return context.emit("relu", (x,))
    most = float(np.finfo(np.float32).max)
    attrs = {"minimum": -most if min is None else float(min), "maximum": most if max is None else float(max)}
    return context.emit("clip", (x,), attrs)


@CONVERTERS.register("clamp_min")
def convert_clamp_min(context: OpContext, x: Value, min: Argument) -> Value:
    """Convert clamp_min, a clamp with a lower bound only."""
    return convert_clamp(context, x, min=min)


@CONVERTERS.register("clamp_max")
def convert_clamp_max(context: OpContext, x: Value, max: Argument) -> Value:
    """Convert clamp_max, a clamp with an upper bound only."""
    return convert_clamp(context, x, max=max)


@CONVERTERS.register("hardtanh")
def convert_hardtanh(context: OpContext, x: Value, *, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    """Convert hardtanh, a clamp to two numbers."""
    return convert_clamp(context, x, min_val, max_val)


@CONVERTERS.register("atan2")
def convert_atan2(context: OpContext, x: Argument, other: Argument) -> Value:
    """Convert atan2(y, x): the arctangent of y / x, corrected for the quadrant of (x, y); 0 at the origin.

    ATen's ``self`` is y, ``other`` is x."""
    return emit_atan2(context, *promote_operands(context, x, other, context.result_dtype()))


def emit_atan2(context: OpContext, y: Value, x: Value) -> Value:
    """Emit the angle of the points (x, y)."""
    zero = context.convert_to_value(0.0, x.dtype)
    slope = context.emit("atan", (context.emit("div", (y, x)),))
    half_circle = context.emit(
        "where",
        (context.emit("less", (y, zero)), context.convert_to_value(-math.pi), context.convert_to_value(math.pi)),
    )
    behind = context.emit("less", (x, zero))
    quadrant_angle = context.emit("where", (behind, context.emit("add", (slope, half_circle)), slope))
    on_positive_axis = context.emit(
        "logical_and", (context.emit("equal", (y, zero)), context.emit("logical_not", (behind,)))
    )
    return context.emit("where", (on_positive_axis, y, quadrant_angle))


@CONVERTERS.register("hypot")
def convert_hypot(context: OpContext, x: Argument, other: Argument) -> Value:
    """Convert hypot: sqrt(x * x + y * y)."""
    sides = promote_operands(context, x, other, context.result_dtype())
    return context.emit("sqrt", (context.emit("add", [context.emit("mul", (side, side)) for side in sides]),))


# ---- Converters of comparisons, logic and selection.


def _make_comparison_converter(op: str) -> Callable[..., Value]:
    """Return the converter of a comparison of two tensors, or of a tensor and a number. bool counts as 0 and 1."""

    def convert_comparison(context: OpContext, x: Argument, other: Argument) -> Value:
        x, other = promote_operands(context, x, other)
        if x.dtype == "bool" and op not in ("equal", "not_equal"):
            x, other = context.cast(x, "int32"), context.cast(other, "int32")
        return context.emit(op, (x, other))

    return convert_comparison


for _name, _op in (
    ("eq", "equal"),
    ("ge", "greater_equal"),
    ("gt", "greater"),
    ("le", "less_equal"),
    ("lt", "less"),
    ("ne", "not_equal"),
):
    CONVERTERS.register(_name)(_make_comparison_converter(_op))


def _make_logical_converter(op: str) -> Callable[..., Value]:
    """Return the converter of a logical operator on two tensors, whose elements are true if they are not zero."""

    def convert_logical(context: OpContext, x: Value, other: Value) -> Value:
        return context.emit(op, [_cast_to_bool(context, operand) for operand in (x, other)])

    return convert_logical


for _name in ("logical_and", "logical_or"):
    CONVERTERS.register(_name)(_make_logical_converter(_name))


@CONVERTERS.register("logical_not")
def convert_logical_not(context: OpContext, x: Value) -> Value:
    """Convert logical_not of a tensor, whose elements are true if they are not zero."""
    return context.emit("logical_not", (_cast_to_bool(context, x),))


def _cast_to_bool(context: OpContext, x: Value) -> Value:
    """Convert a tensor to bool: true where an element is not zero."""
    return x if x.dtype == "bool" else context.emit("not_equal", (x, context.convert_to_value(0, x.dtype)))


def _make_bitwise_converter(bool_op: str, integer_op: str) -> Callable[..., Value]:
    """Return the converter of a bitwise operator. On bool operands it becomes the logical operator ``bool_op``."""

    def convert_bitwise(context: OpContext, x: Argument, other: Argument) -> Value:
        x, other = promote_operands(context, x, other, context.result_dtype())
        return context.emit(bool_op if x.dtype == "bool" else integer_op, (x, other))

    return convert_bitwise


for _name, _bool_op, _op in (
    ("bitwise_and", "logical_and", "bit_and"),
    ("bitwise_or", "logical_or", "bit_or"),
    ("bitwise_xor", "not_equal", "bit_xor"),
    ("logical_xor", "not_equal", "bit_xor"),
):
    CONVERTERS.register(_name)(_make_bitwise_converter(_bool_op, _op))


@CONVERTERS.register("bitwise_not")
def convert_bitwise_not(context: OpContext, x: Value) -> Value:
    """Convert bitwise_not of integers or bools."""
    return context.emit("logical_not" if x.dtype == "bool" else "bit_not", (x,))


@CONVERTERS.register("where")
def convert_where(context: OpContext, condition: Argument, x: Argument, other: Argument) -> Value:
    """Convert where, which selects each element from one of two operands by a condition."""
    operands = promote_operands(context, x, other)
    return context.emit("where", (context.convert_to_value(condition), *operands))


# ---- Converters of reductions, norms and distances.


def _resolve_reduced_axes(x: Value, dim: Ints) -> Ints:
    """Return the axes ``dim`` of ``x`` as ascending numbers of at least 0. No ``dim`` means all axes."""
    return tuple(sorted(d % x.rank for d in dim)) or tuple(range(x.rank))


def _make_reduction_converter(op: str) -> Callable[..., Value]:
    """Return the converter of a reduction over the axes ``dim``, or over all axes. Its dtype is PyTorch's dtype of the
    result."""

    def convert_reduction(context: OpContext, x: Value, *, dim: Ints = (), keepdim: bool = False) -> Value:
        x = _cast_bool_to_int32(context, context.cast(x, context.result_dtype()))
        axes = _resolve_reduced_axes(x, dim)
        reduced = context.emit(op, (x,), {"axes": axes, "keepdims": keepdim}) if axes else x
        return context.cast(reduced, context.result_dtype())

    return convert_reduction


for _name, _op in (("amax", "max"), ("amin", "min"), ("mean", "mean"), ("prod", "prod"), ("sum", "sum")):
    CONVERTERS.register(_name)(_make_reduction_converter(_op))


def _cast_bool_to_int32(context: OpContext, x: Value) -> Value:
    """Cast a bool value to int32, which can be ordered; return any other value unchanged."""
    return context.cast(x, "int32") if x.dtype == "bool" else x


@CONVERTERS.register("any")
def convert_any(context: OpContext, x: Value, *, dim: Ints = (), keepdim: bool = False) -> Value:
    """Convert any: test whether an element is not zero, along some axes or over all elements."""
    integers = context.cast(_cast_to_bool(context, x), "int32")
    over: Mapping[str, Attr] = {"axes": _resolve_reduced_axes(x, dim), "keepdims": keepdim}
    return context.emit("greater", (context.emit("max", (integers,), over), context.convert_to_value(0, "int32")))


@CONVERTERS.register("var")
def convert_var(
    context: OpContext, x: Value, *, dim: Ints = (), correction: float | None = None, keepdim: bool = False
) -> Value:
    """Convert var: the sum of squared differences from the mean, divided by (number of elements - correction).

    Without ``correction`` it is 1."""
    axes = _resolve_reduced_axes(x, dim)
    count = math.prod(x.shape[axis] for axis in axes)
    centred = context.emit("sub", (x, context.emit("mean", (x,), {"axes": axes, "keepdims": True})))
    total = context.emit("sum", (context.emit("mul", (centred, centred)),), {"axes": axes, "keepdims": keepdim})
    divisor = max(count - (1 if correction is None else correction), 1e-30)
    return context.emit("mul", (total, context.convert_to_value(1 / divisor)))


@CONVERTERS.register("var_mean")
def convert_var_mean(
    context: OpContext, x: Value, *, dim: Ints = (), correction: float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """Convert var_mean; return the variance and the mean."""
    variance = convert_var(context, x, dim=dim, correction=correction, keepdim=keepdim)
    return variance, context.emit("mean", (x,), {"axes": _resolve_reduced_axes(x, dim), "keepdims": keepdim})


@CONVERTERS.register("linalg_vector_norm")
def convert_vector_norm(
    context: OpContext, x: Value, *, ord: float = 2.0, dim: Ints = (), keepdim: bool = False
) -> Value:
    """Convert linalg_vector_norm of an order of at least 1."""
    return _emit_norm(context, x, ord, {"axes": _resolve_reduced_axes(x, dim), "keepdims": keepdim})


def _emit_norm(context: OpContext, x: Value, order: float, axes_attrs: Mapping[str, Attr]) -> Value:
    """Emit the vector norm of an order from 1 to infinity; ``axes_attrs``: attributes of the reductions over the
    axes."""
    if order == 2:
        return context.emit("sqrt", (context.emit("sum", (context.emit("mul", (x, x)),), axes_attrs),))
    size = context.emit("abs", (x,))
    if order in (1, math.inf):
        return context.emit("sum" if order == 1 else "max", (size,), axes_attrs)
    if order < 1:
        context.refuse(f"ord: got {order}, expected at least 1", "use an order of at least 1, or infinity")
    total = context.emit("sum", (context.emit("pow", (size, context.convert_to_value(order))),), axes_attrs)
    return context.emit("pow", (total, context.convert_to_value(1 / order)))


@CONVERTERS.register("_cdist_forward")
def convert_cdist_forward(context: OpContext, x1: Value, x2: Value, *, p: float) -> Value:
    """Convert cdist: the distances between all rows of ``x1`` and all rows of ``x2``."""
    left = context.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    right = context.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    return _emit_norm(context, context.emit("sub", (left, right)), p, {"axes": (x1.rank,), "keepdims": False})


# ---- Converters of softmax, running sums, searches and sorting: operators along an axis.


@CONVERTERS.register("_softmax")
def convert_softmax(context: OpContext, x: Value, *, dim: int) -> Value:
    """Convert softmax along an axis."""
    return context.emit("softmax", (x,), {"axis": dim})


@CONVERTERS.register("_log_softmax")
def convert_log_softmax(context: OpContext, x: Value, *, dim: int) -> Value:
    """Convert log_softmax: x - m - log(sum(exp(x - m))), where m is the maximum along the axis."""
    over: Mapping[str, Attr] = {"axes": (dim % x.rank,), "keepdims": True}
    centred = context.emit("sub", (x, context.emit("max", (x,), over)))
    total = context.emit("sum", (context.emit("exp", (centred,)),), over)
    return context.emit("sub", (centred, context.emit("log", (total,))))


def _make_cumulative_converter(op: str) -> Callable[..., Value]:
    """Return the converter of running sums or products along an axis."""

    def convert_cumulative(context: OpContext, x: Value, *, dim: int) -> Value:
        return context.emit(op, (context.cast(x, context.result_dtype()),), {"axis": dim})

    return convert_cumulative


for _name in ("cumprod", "cumsum"):
    CONVERTERS.register(_name)(_make_cumulative_converter(_name))


@CONVERTERS.register("flip")
def convert_flip(context: OpContext, x: Value, *, dims: Ints) -> Value:
    """Convert flip, which reverses the order of elements along some axes."""
    return context.emit("reverse", (x,), {"axes": tuple(sorted(d % x.rank for d in dims))})


def _make_extremum_converter(op: str, binary_op: str, arg_op: str) -> Callable[..., Value | tuple[Value, Value]]:
    """Return the converter of max or min: of two tensors, along an axis (with the indices), or of all elements.

    ``op``, ``binary_op``, ``arg_op``: microc's operators for the reduction, for two tensors, and for the indices."""

    def convert_extremum(
        context: OpContext, x: Argument, other: Argument = None, *, dim: int | None = None, keepdim: bool = False
    ) -> Value | tuple[Value, Value]:
        if other is not None:
            return context.emit(binary_op, promote_operands(context, x, other, context.result_dtype()))
        operand = context.convert_to_value(x)
        ordered = _cast_bool_to_int32(context, operand)
        axes = tuple(range(ordered.rank)) if dim is None else (dim % ordered.rank,)
        reduced = context.emit(op, (ordered,), {"axes": axes, "keepdims": keepdim})
        extremum = context.cast(reduced, operand.dtype)
        if dim is None:
            return extremum
        indices = context.emit(arg_op, (ordered,), {"axis": dim, "keepdims": keepdim, "out_dtype": "int64"})
        return extremum, indices

    return convert_extremum


CONVERTERS.register("max")(_make_extremum_converter("max", "maximum", "argmax"))
CONVERTERS.register("min")(_make_extremum_converter("min", "minimum", "argmin"))


def _make_arg_extremum_converter(op: str) -> Callable[..., Value]:
    """Return the converter of argmax or argmin, along an axis or over all elements."""

    def convert_arg_extremum(context: OpContext, x: Value, *, dim: int | None = None) -> Value:
        if dim is None:
            x, dim = context.reshape(x, (x.size,)), 0
        index = context.emit(op, (x,), {"axis": dim, "keepdims": False, "out_dtype": "int64"})
        return context.reshape(index, context.result_shape())

    return convert_arg_extremum


for _name in ("argmax", "argmin"):
    CONVERTERS.register(_name)(_make_arg_extremum_converter(_name))


@CONVERTERS.register("topk")
def convert_topk(context: OpContext, x: Value, *, k: int, dim: int = -1, largest: bool = True) -> Sequence[str]:
    """Convert topk: the largest or smallest elements along an axis, and their indices."""
    return context.builder.emit_all("topk", (x,), {"axis": dim, "k": k, "largest": largest})


@CONVERTERS.register("sort")
def convert_sort(context: OpContext, x: Value, *, dim: int = -1, descending: bool = False) -> Sequence[str]:
    """Convert sort: the elements along an axis in order, and their indices. The order of equal elements does not
    change."""
    return context.builder.emit_all("topk", (x,), {"axis": dim, "k": x.shape[dim], "largest": descending})


@CONVERTERS.register("grid_sampler_2d")
def convert_grid_sampler_2d(
    context: OpContext, x: Value, grid: Value, *, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    """Convert grid_sampler_2d, which samples an image at positions that are data."""
    attrs: Mapping[str, Attr] = {
        "mode": ("linear", "nearest", "cubic")[interpolation_mode],
        "border": ("zeros", "edge", "reflection")[padding_mode],
        "coordinates": "corners" if align_corners else "edges",
    }
    return context.emit("grid_sample", (x, grid), attrs)
