"""Converters of ATen's elementwise operators, reductions, searches and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend import formulas
from microc.frontend.formulas import make_operator_emitter
from microc.frontend.torch.context import Converter, OpContext
from microc.graph.ir import Attr

# ---- Converters of elementwise operators, reductions and searches.


def make_unary_converter(op: str, **attrs: Attr) -> Converter:
    """Return the converter of an elementwise function of one tensor. Integers are cast to float if the result is
    float."""

    def convert_unary(context: OpContext) -> str:
        x, result_dtype = context.operand("self"), context.result_dtype()
        return context.emit(op, (context.cast(x, result_dtype) if dtypes.is_float(result_dtype) else x,), attrs)

    return convert_unary


_BOOL_LOGIC = {"add": "logical_or", "maximum": "logical_or", "minimum": "logical_and", "mul": "logical_and"}
"""Logical operators that replace arithmetic operators on bool tensors, by the name of the arithmetic operator."""


def make_binary_converter(op: str, *, swapped: bool = False) -> Converter:
    """Return the converter of an arithmetic operator on two tensors, or on a tensor and a number.

    The second operand is multiplied by the argument ``alpha``, if present. ``swapped`` exchanges the operands."""

    def convert_binary(context: OpContext) -> str:
        x, y = promote_operands(context, context.argument("self"), context.argument("other"), context.result_dtype())
        if context.result_dtype() == "bool" and op in _BOOL_LOGIC:
            return context.emit(_BOOL_LOGIC[op], (x, y))
        alpha = context.argument("alpha", 1)
        if alpha not in (1, None):
            y = context.emit("mul", (y, context.convert_to_value(alpha, context.dtype(y))))
        return context.emit(op, (y, x) if swapped else (x, y))

    return convert_binary


def make_comparison_converter(op: str) -> Converter:
    """Return the converter of a comparison of two tensors, or of a tensor and a number. bool counts as 0 and 1."""

    def convert_comparison(context: OpContext) -> str:
        x, y = promote_operands(context, context.argument("self"), context.argument("other"))
        if context.dtype(x) == "bool" and op not in ("equal", "not_equal"):
            x, y = context.cast(x, "int32"), context.cast(y, "int32")
        return context.emit(op, (x, y))

    return convert_comparison


def make_logical_converter(op: str) -> Converter:
    """Return the converter of a logical operator on two tensors, whose elements are true if they are not zero."""
    return lambda context: context.emit(
        op, [cast_to_bool(context, context.argument(name)) for name in ("self", "other")]
    )


def convert_logical_not(context: OpContext) -> str:
    return context.emit("logical_not", (cast_to_bool(context, context.argument("self")),))


def cast_to_bool(context: OpContext, x: Any) -> str:
    """Convert a tensor to bool: true where an element is not zero."""
    value = context.convert_to_value(x)
    return (
        value
        if context.dtype(value) == "bool"
        else context.emit("not_equal", (value, context.convert_to_value(0, context.dtype(value))))
    )


def promote_operands(context: OpContext, x: Any, y: Any, result_dtype: str = "") -> tuple[str, str]:
    """Cast both operands to the same dtype; return their names.

    The dtype is ``result_dtype``, or, by default, the dtype that PyTorch's type promotion gives."""
    if not result_dtype:
        tensors = [part for part in (x, y) if isinstance(part, (str, context.torch.Tensor))]
        tensor_dtypes = [
            context.dtype(t) if isinstance(t, str) else str(t.dtype).removeprefix("torch.") for t in tensors
        ]
        real_dtypes = [name for name in tensor_dtypes if dtypes.is_float(name)]
        number = next((part for part in (x, y) if isinstance(part, (int, float))), 0)
        result_dtype = real_dtypes[0] if real_dtypes else "float32" if isinstance(number, float) else tensor_dtypes[-1]
    return _convert_to_value_of_dtype(context, x, result_dtype), _convert_to_value_of_dtype(context, y, result_dtype)


def _convert_to_value_of_dtype(context: OpContext, x: Any, dtype: str) -> str:
    """Return the name of a value of ``dtype`` that contains ``x``, a value of the graph, a known tensor or a number."""
    return context.cast(x, dtype) if isinstance(x, str) else context.convert_to_value(x, dtype)


def convert_div(context: OpContext) -> str:
    """Convert div. The argument ``rounding_mode`` may be ``floor`` (round down) or ``trunc`` (round towards zero)."""
    mode = context.argument("rounding_mode")
    operands = promote_operands(context, context.argument("self"), context.argument("other"), context.result_dtype())
    if mode == "floor":
        return context.emit("floor_div", operands)
    quotient = context.emit("div", operands)
    return (
        quotient
        if mode is None or not dtypes.is_float(context.dtype(quotient))
        else _truncate_to_zero(context, quotient)
    )


def _truncate_to_zero(context: OpContext, x: str) -> str:
    """Emit the value rounded towards zero."""
    whole = context.emit("floor", (context.emit("abs", (x,)),))
    return context.emit("mul", (_emit_sign(context, x), whole))


def _emit_sign(context: OpContext, x: str) -> str:
    """Emit the sign of each element: -1, 0 or 1, in the dtype of the value."""
    zero = context.convert_to_value(0, context.dtype(x))
    sides = [context.cast(context.emit(op, (x, zero)), context.dtype(x)) for op in ("greater", "less")]
    return context.emit("sub", sides)


def convert_sign(context: OpContext) -> str:
    return _emit_sign(context, context.operand("self"))


def convert_trunc(context: OpContext) -> str:
    return _truncate_to_zero(context, context.operand("self"))


def convert_pow(context: OpContext) -> str:
    """Convert pow. The exponents 2 and 0.5 become a product and a square root."""
    exponent = context.argument("exponent")
    x = context.argument("self")
    if exponent == 2 and isinstance(x, str):
        return context.emit("mul", (x, x))
    if exponent == 0.5 and isinstance(x, str):
        return context.emit("sqrt", (x,))
    return context.emit("pow", promote_operands(context, x, exponent))


def convert_clamp(context: OpContext) -> str:
    """Convert clamp, hardtanh, clamp_min and clamp_max. Bounds are numbers or tensors."""
    x = context.operand("self")
    names = ("min_val", "max_val") if context.operator_name == "hardtanh" else ("min", "max")
    low, high = (context.argument(name) for name in names)
    if any(isinstance(bound, str) or hasattr(bound, "shape") for bound in (low, high)):
        x = x if low is None else context.emit("maximum", promote_operands(context, x, low, context.result_dtype()))
        return (
            x if high is None else context.emit("minimum", promote_operands(context, x, high, context.result_dtype()))
        )
    if low == 0 and high is None:
        return context.emit("relu", (x,))
    most = float(np.finfo(np.float32).max)
    return context.emit(
        "clip",
        (x,),
        {"minimum": -most if low is None else float(low), "maximum": most if high is None else float(high)},
    )


def convert_leaky_relu(context: OpContext) -> str:
    return context.emit("leaky_relu", (context.operand("self"),), {"alpha": float(context.argument("negative_slope"))})


def convert_elu(context: OpContext) -> str:
    if float(context.argument("scale", 1)) != 1 or float(context.argument("input_scale", 1)) != 1:
        scaled = context.emit("elu", (context.operand("self"),), {"alpha": float(context.argument("alpha"))})
        return context.emit("mul", (scaled, context.convert_to_value(float(context.argument("scale")))))
    return context.emit("elu", (context.operand("self"),), {"alpha": float(context.argument("alpha"))})


def make_formula_converter(formula: Callable[..., str]) -> Converter:
    """Return the converter of an elementwise function that is composed of several operators by ``formula``."""
    return lambda context: _emit_in_float32(context, lambda x: formula(make_operator_emitter(context.builder), x))


def _emit_in_float32(context: OpContext, build_formula: Callable[[str], str]) -> str:
    """Emit ``build_formula`` of the operand. float16 and bfloat16 are computed in float32, and only the result is
    rounded."""
    x = context.operand("self")
    if context.dtype(x) not in dtypes.HALF:
        return build_formula(x)
    return context.cast(build_formula(context.cast(x, "float32")), context.dtype(x))


def convert_gelu(context: OpContext) -> str:
    """Convert gelu, exact or approximated by tanh."""
    tanh = context.argument("approximate", "none") == "tanh"
    return _emit_in_float32(context, lambda x: formulas.emit_gelu(make_operator_emitter(context.builder), x, tanh))


def convert_softmax(context: OpContext) -> str:
    return context.emit("softmax", (context.operand("self"),), {"axis": int(context.argument("dim"))})


def convert_log_softmax(context: OpContext) -> str:
    """Convert log_softmax: x - m - log(sum(exp(x - m))), where m is the maximum along the axis."""
    x = context.operand("self")
    over: Mapping[str, Attr] = {"axes": (int(context.argument("dim")) % len(context.result_shape()),), "keepdims": True}
    centred = context.emit("sub", (x, context.emit("max", (x,), over)))
    total = context.emit("sum", (context.emit("exp", (centred,)),), over)
    return context.emit("sub", (centred, context.emit("log", (total,))))


def make_reduction_converter(op: str) -> Converter:
    """Return the converter of a reduction over the axes ``dim``, or over all axes. Its dtype is PyTorch's dtype of the
    result."""

    def convert_reduction(context: OpContext) -> str:
        x = _cast_bool_to_int32(context, context.cast(context.operand("self"), context.result_dtype()))
        rank, dims = len(context.shape(x)), context.argument("dim")
        dims = [dims] if isinstance(dims, int) else dims
        axes = tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))
        reduced = (
            context.emit(op, (x,), {"axes": axes, "keepdims": bool(context.argument("keepdim", False))}) if axes else x
        )
        return context.cast(reduced, context.result_dtype())

    return convert_reduction


def _cast_bool_to_int32(context: OpContext, x: str) -> str:
    """Cast a bool value to int32, which can be ordered; return any other value unchanged."""
    return context.cast(x, "int32") if context.dtype(x) == "bool" else x


def make_extremum_converter(op: str, binary_op: str, arg_op: str) -> Converter:
    """Return the converter of max or min: of two tensors, along an axis (with the indices), or of all elements.

    ``op``, ``binary_op``, ``arg_op``: microc's operators for the reduction, for two tensors, and for the indices."""

    def convert_extremum(context: OpContext) -> Any:
        if context.argument("other") is not None:
            return context.emit(
                binary_op,
                promote_operands(context, context.argument("self"), context.argument("other"), context.result_dtype()),
            )
        operand, dim = context.operand("self"), context.argument("dim")
        x = _cast_bool_to_int32(context, operand)
        if dim is None:
            reduced = context.emit(op, (x,), {"axes": tuple(range(len(context.shape(x)))), "keepdims": False})
            return context.cast(reduced, context.dtype(operand))
        keep = bool(context.argument("keepdim", False))
        extremum = context.emit(op, (x,), {"axes": (int(dim) % len(context.shape(x)),), "keepdims": keep})
        return context.cast(extremum, context.dtype(operand)), context.emit(
            arg_op, (x,), {"axis": int(dim), "keepdims": keep, "out_dtype": "int64"}
        )

    return convert_extremum


def convert_topk(context: OpContext) -> tuple[str, ...]:
    attrs = {
        "axis": int(context.argument("dim", -1)),
        "k": int(context.argument("k")),
        "largest": bool(context.argument("largest", True)),
    }
    return context.builder.emit_all("topk", (context.operand("self"),), attrs)


def convert_cumsum(context: OpContext) -> str:
    return context.emit(
        "cumsum",
        (context.cast(context.operand("self"), context.result_dtype()),),
        {"axis": int(context.argument("dim"))},
    )


def convert_flip(context: OpContext) -> str:
    x = context.operand("self")
    return context.emit(
        "reverse", (x,), {"axes": tuple(sorted(d % len(context.shape(x)) for d in context.argument("dims")))}
    )


def convert_var(context: OpContext) -> str:
    """Convert var: the sum of squared differences from the mean, divided by (number of elements - correction)."""
    x, rank, dims = context.operand("self"), len(context.shape(context.operand("self"))), context.argument("dim")
    axes = tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))
    correction = context.argument("correction", 1)
    count = math.prod(context.shape(x)[axis] for axis in axes)
    centred = context.emit("sub", (x, context.emit("mean", (x,), {"axes": axes, "keepdims": True})))
    keepdims = bool(context.argument("keepdim", False))
    total = context.emit("sum", (context.emit("mul", (centred, centred)),), {"axes": axes, "keepdims": keepdims})
    return context.emit(
        "mul", (total, context.convert_to_value(1 / max(count - (1 if correction is None else correction), 1e-30)))
    )


def convert_var_mean(context: OpContext) -> tuple[str, str]:
    """Convert var_mean; return the variance and the mean."""
    x, dims = context.operand("self"), context.argument("dim")
    rank = len(context.shape(x))
    axes = tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))
    return convert_var(context), context.emit(
        "mean", (x,), {"axes": axes, "keepdims": bool(context.argument("keepdim", False))}
    )


def make_arg_extremum_converter(op: str) -> Converter:
    """Return the converter of argmax or argmin, along an axis or over all elements."""

    def convert_arg_extremum(context: OpContext) -> str:
        x, dim = context.operand("self"), context.argument("dim")
        if dim is None:
            x, dim = context.reshape(x, (math.prod(context.shape(x)),)), 0
        index = context.emit(op, (x,), {"axis": int(dim), "keepdims": False, "out_dtype": "int64"})
        return context.reshape(index, context.result_shape())

    return convert_arg_extremum


def convert_where(context: OpContext) -> str:
    x, y = promote_operands(context, context.argument("self"), context.argument("other"))
    return context.emit("where", (context.operand("condition"), x, y))


ELEMENTWISE_CONVERTERS: Mapping[str, Converter] = {
    "_log_softmax": convert_log_softmax,
    "_softmax": convert_softmax,
    "abs": make_unary_converter("abs"),
    "add": make_binary_converter("add"),
    "amax": make_reduction_converter("max"),
    "amin": make_reduction_converter("min"),
    "argmax": make_arg_extremum_converter("argmax"),
    "argmin": make_arg_extremum_converter("argmin"),
    "ceil": make_unary_converter("ceil"),
    "clamp": convert_clamp,
    "clamp_max": convert_clamp,
    "clamp_min": convert_clamp,
    "cos": make_unary_converter("cos"),
    "cumsum": convert_cumsum,
    "div": convert_div,
    "elu": convert_elu,
    "eq": make_comparison_converter("equal"),
    "erf": make_unary_converter("erf"),
    "exp": make_unary_converter("exp"),
    "flip": convert_flip,
    "floor": make_unary_converter("floor"),
    "floor_divide": make_binary_converter("floor_div"),
    "ge": make_comparison_converter("greater_equal"),
    "gelu": convert_gelu,
    "gt": make_comparison_converter("greater"),
    "hardsigmoid": make_formula_converter(formulas.emit_hard_sigmoid),
    "hardswish": make_unary_converter("hard_swish"),
    "hardtanh": convert_clamp,
    "le": make_comparison_converter("less_equal"),
    "leaky_relu": convert_leaky_relu,
    "log": make_unary_converter("log"),
    "logical_and": make_logical_converter("logical_and"),
    "logical_not": convert_logical_not,
    "logical_or": make_logical_converter("logical_or"),
    "lt": make_comparison_converter("less"),
    "max": make_extremum_converter("max", "maximum", "argmax"),
    "maximum": make_binary_converter("maximum"),
    "mean": make_reduction_converter("mean"),
    "min": make_extremum_converter("min", "minimum", "argmin"),
    "minimum": make_binary_converter("minimum"),
    "mul": make_binary_converter("mul"),
    "ne": make_comparison_converter("not_equal"),
    "neg": make_unary_converter("neg"),
    "pow": convert_pow,
    "prod": make_reduction_converter("prod"),
    "reciprocal": make_formula_converter(formulas.emit_reciprocal),
    "relu": make_unary_converter("relu"),
    "remainder": make_binary_converter("floor_mod"),
    "round": make_unary_converter("round"),
    "rsqrt": make_unary_converter("rsqrt"),
    "rsub": make_binary_converter("sub", swapped=True),
    "sigmoid": make_unary_converter("sigmoid"),
    "sign": convert_sign,
    "sin": make_unary_converter("sin"),
    "softplus": make_unary_converter("softplus"),
    "sqrt": make_unary_converter("sqrt"),
    "sub": make_binary_converter("sub"),
    "sum": make_reduction_converter("sum"),
    "tanh": make_unary_converter("tanh"),
    "topk": convert_topk,
    "trunc": convert_trunc,
    "var": convert_var,
    "var_mean": convert_var_mean,
    "where": convert_where,
}


# ---- Converters of less common operators: trigonometry, bitwise logic, remainders, norms, distances, sorting.


def make_logarithm_converter(base: float) -> Converter:
    """Return the converter of the logarithm to the base ``base``."""
    return lambda context: context.emit(
        "mul", (context.emit("log", (context.operand("self"),)), context.convert_to_value(1 / math.log(base)))
    )


def convert_exp2(context: OpContext) -> str:
    return context.emit("pow", (context.convert_to_value(2.0), context.operand("self")))


def make_bitwise_converter(bool_op: str, integer_op: str) -> Converter:
    """Return the converter of a bitwise operator. On bool operands it becomes the logical operator ``bool_op``."""

    def convert_bitwise(context: OpContext) -> str:
        operands = [context.operand("self")]
        if context.argument("other") is not None:
            operands = list(
                promote_operands(context, context.argument("self"), context.argument("other"), context.result_dtype())
            )
        return context.emit(bool_op if context.dtype(operands[0]) == "bool" else integer_op, operands)

    return convert_bitwise


def convert_isnan(context: OpContext) -> str:
    return context.emit("not_equal", (context.operand("self"), context.operand("self")))


def convert_isinf(context: OpContext) -> str:
    return context.emit("equal", (context.emit("abs", (context.operand("self"),)), context.convert_to_value(math.inf)))


def convert_any(context: OpContext) -> str:
    """Convert any: test whether an element is not zero, along some axes or over all elements."""
    x, dims = context.operand("self"), context.argument("dim")
    if context.dtype(x) != "bool":
        x = context.emit("not_equal", (x, context.convert_to_value(0, context.dtype(x))))
    integers = context.cast(x, "int32")
    over: Mapping[str, Attr] = {
        "axes": _resolve_reduced_axes(context, integers, dims),
        "keepdims": bool(context.argument("keepdim", False)),
    }
    return context.emit("greater", (context.emit("max", (integers,), over), context.convert_to_value(0, "int32")))


def _resolve_reduced_axes(context: OpContext, value_name: str, dims: object) -> tuple[int, ...]:
    """Return the axes ``dims`` as ascending numbers of at least 0. No ``dims`` means all axes."""
    rank = len(context.shape(value_name))
    axes = [dims] if isinstance(dims, int) else list(dims) if isinstance(dims, (list, tuple)) else []
    return tuple(sorted(d % rank for d in axes)) if axes else tuple(range(rank))


def convert_fmod(context: OpContext) -> str:
    """Convert fmod, the remainder with the sign of the dividend."""
    return context.emit(
        "fmod", promote_operands(context, context.argument("self"), context.argument("other"), context.result_dtype())
    )


def convert_log1p(context: OpContext) -> str:
    return context.emit("log", (context.emit("add", (context.operand("self"), context.convert_to_value(1.0))),))


def convert_expm1(context: OpContext) -> str:
    return context.emit("sub", (context.emit("exp", (context.operand("self"),)), context.convert_to_value(1.0)))


def convert_atan2(context: OpContext) -> str:
    """Convert atan2(y, x): the arctangent of y / x, corrected for the quadrant of (x, y); 0 at the origin."""
    y, x = promote_operands(context, context.argument("self"), context.argument("other"), context.result_dtype())
    zero = context.convert_to_value(0.0, context.dtype(x))
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


def convert_erfc(context: OpContext) -> str:
    """Convert erfc: 1 - erf(x)."""
    return context.emit("sub", (context.convert_to_value(1.0), context.emit("erf", (context.operand("self"),))))


def convert_hypot(context: OpContext) -> str:
    """Convert hypot: sqrt(x * x + y * y)."""
    sides = promote_operands(context, context.argument("self"), context.argument("other"), context.result_dtype())
    return context.emit("sqrt", (context.emit("add", [context.emit("mul", (side, side)) for side in sides]),))


def convert_rrelu(context: OpContext) -> tuple[str, str]:
    """Convert rrelu in evaluation mode: a leaky_relu whose slope is the mean of the arguments ``lower`` and ``upper``.

    The operator's second result, noise, is used only in training; it becomes ""."""
    slope = (float(context.argument("lower")) + float(context.argument("upper"))) / 2
    return context.emit("leaky_relu", (context.operand("self"),), {"alpha": slope}), ""


def convert_vector_norm(context: OpContext) -> str:
    """Convert linalg_vector_norm of an order of at least 1."""
    x, order = context.operand("self"), float(context.argument("ord", 2))
    over: Mapping[str, Attr] = {
        "axes": _resolve_reduced_axes(context, x, context.argument("dim")),
        "keepdims": bool(context.argument("keepdim", False)),
    }
    return _emit_norm(context, x, order, over)


def _emit_norm(context: OpContext, x: str, order: float, axes_attrs: Mapping[str, Attr]) -> str:
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


def convert_cdist_forward(context: OpContext) -> str:
    """Convert cdist: the distances between all rows of ``x1`` and all rows of ``x2``."""
    x, y = context.operand("x1"), context.operand("x2")
    one, other = context.shape(x), context.shape(y)
    left, right = context.reshape(x, (*one[:-1], 1, one[-1])), context.reshape(y, (*other[:-2], 1, *other[-2:]))
    over: Mapping[str, Attr] = {"axes": (len(one),), "keepdims": False}
    return _emit_norm(context, context.emit("sub", (left, right)), float(context.argument("p")), over)


def convert_cumprod(context: OpContext) -> str:
    return context.emit(
        "cumprod",
        (context.cast(context.operand("self"), context.result_dtype()),),
        {"axis": int(context.argument("dim"))},
    )


def convert_sort(context: OpContext) -> tuple[str, ...]:
    """Convert sort: the elements along an axis in order, and their indices. The order of equal elements does not
    change."""
    x, axis = context.operand("self"), int(context.argument("dim", -1))
    attrs: Mapping[str, Attr] = {
        "axis": axis,
        "k": context.shape(x)[axis],
        "largest": bool(context.argument("descending", False)),
    }
    return context.builder.emit_all("topk", (x,), attrs)


def convert_copy(context: OpContext) -> str:
    """Convert copy: the operand ``src``, broadcast to the shape of ``self`` and cast to its dtype."""
    value = context.cast(context.operand("src"), context.result_dtype())
    shape = context.result_shape()
    return value if context.shape(value) == shape else context.emit("broadcast_to", (value,), {"shape": shape})


def convert_grid_sampler_2d(context: OpContext) -> str:
    modes, borders = ("linear", "nearest", "cubic"), ("zeros", "edge", "reflection")
    attrs: Mapping[str, Attr] = {
        "mode": modes[int(context.argument("interpolation_mode"))],
        "border": borders[int(context.argument("padding_mode"))],
        "coordinates": "corners" if context.argument("align_corners") else "edges",
    }
    return context.emit("grid_sample", (context.operand("input"), context.operand("grid")), attrs)


FUNCTIONS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")

MATH_CONVERTERS: Mapping[str, Converter] = {
    **{name: make_unary_converter(name) for name in FUNCTIONS},
    "_cdist_forward": convert_cdist_forward,
    "any": convert_any,
    "atan2": convert_atan2,
    "bitwise_and": make_bitwise_converter("logical_and", "bit_and"),
    "bitwise_not": make_bitwise_converter("logical_not", "bit_not"),
    "bitwise_or": make_bitwise_converter("logical_or", "bit_or"),
    "bitwise_xor": make_bitwise_converter("not_equal", "bit_xor"),
    "copy": convert_copy,
    "cumprod": convert_cumprod,
    "erfc": convert_erfc,
    "exp2": convert_exp2,
    "expm1": convert_expm1,
    "fmod": convert_fmod,
    "grid_sampler_2d": convert_grid_sampler_2d,
    "hypot": convert_hypot,
    "isinf": convert_isinf,
    "isnan": convert_isnan,
    "linalg_vector_norm": convert_vector_norm,
    "log1p": convert_log1p,
    "log10": make_logarithm_converter(10.0),
    "log2": make_logarithm_converter(2.0),
    "logical_xor": make_bitwise_converter("not_equal", "bit_xor"),
    "rrelu_with_noise_functional": convert_rrelu,
    "sort": convert_sort,
}
