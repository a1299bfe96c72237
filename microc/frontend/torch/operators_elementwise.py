"""Converters of ATen's elementwise operators, reductions, searches and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend import formulas
from microc.frontend.formulas import composer
from microc.frontend.torch.context import Converter, OpContext
from microc.graph.ir import Attr

# ---- Converters of elementwise operators, reductions and searches.


def unary(op: str, **attrs: Attr) -> Converter:
    """Return the converter of an elementwise function of one tensor. Integers are cast to float if the result is float."""

    def convert(a: OpContext) -> str:
        x, result_dtype = a.operand("self"), a.result_dtype()
        return a.emit(op, (a.cast(x, result_dtype) if dtypes.is_float(result_dtype) else x,), attrs)

    return convert


_BOOL_LOGIC = {"add": "logical_or", "maximum": "logical_or", "minimum": "logical_and", "mul": "logical_and"}
"""Logical operators that replace arithmetic operators on bool tensors, by the name of the arithmetic operator."""


def binary(op: str, *, swapped: bool = False) -> Converter:
    """Return the converter of an arithmetic operator on two tensors, or on a tensor and a number.

    The second operand is multiplied by the argument ``alpha``, if present. ``swapped`` exchanges the operands."""

    def convert(a: OpContext) -> str:
        x, y = promote_operands(a, a.argument("self"), a.argument("other"), a.result_dtype())
        if a.result_dtype() == "bool" and op in _BOOL_LOGIC:
            return a.emit(_BOOL_LOGIC[op], (x, y))
        alpha = a.argument("alpha", 1)
        if alpha not in (1, None):
            y = a.emit("mul", (y, a.value(alpha, a.dtype(y))))
        return a.emit(op, (y, x) if swapped else (x, y))

    return convert


def comparison(op: str) -> Converter:
    """Return the converter of a comparison of two tensors, or of a tensor and a number. bool counts as 0 and 1."""

    def convert(a: OpContext) -> str:
        x, y = promote_operands(a, a.argument("self"), a.argument("other"))
        if a.dtype(x) == "bool" and op not in ("equal", "not_equal"):
            x, y = a.cast(x, "int32"), a.cast(y, "int32")
        return a.emit(op, (x, y))

    return convert


def logical(op: str) -> Converter:
    """Return the converter of a logical operator on two tensors, whose elements are true if they are not zero."""
    return lambda a: a.emit(op, [to_bool(a, a.argument(name)) for name in ("self", "other")])


def logical_not(a: OpContext) -> str:
    return a.emit("logical_not", (to_bool(a, a.argument("self")),))


def to_bool(a: OpContext, x: Any) -> str:
    """Convert a tensor to bool: true where an element is not zero."""
    value = a.value(x)
    return value if a.dtype(value) == "bool" else a.emit("not_equal", (value, a.value(0, a.dtype(value))))


def promote_operands(a: OpContext, x: Any, y: Any, dtype: str = "") -> tuple[str, str]:
    """Cast both operands to the same dtype; return their names.

    The dtype is ``dtype``, or, by default, the dtype that PyTorch's type promotion gives."""
    if not dtype:
        tensors = [part for part in (x, y) if isinstance(part, (str, a.torch.Tensor))]
        tensor_dtypes = [a.dtype(t) if isinstance(t, str) else str(t.dtype).removeprefix("torch.") for t in tensors]
        real_dtypes = [name for name in tensor_dtypes if dtypes.is_float(name)]
        number = next((part for part in (x, y) if isinstance(part, (int, float))), 0)
        dtype = real_dtypes[0] if real_dtypes else "float32" if isinstance(number, float) else tensor_dtypes[-1]
    return _to_dtype(a, x, dtype), _to_dtype(a, y, dtype)


def _to_dtype(a: OpContext, x: Any, dtype: str) -> str:
    """Return the name of a value of ``dtype`` that contains ``x``, a value of the graph, a known tensor or a number."""
    return a.cast(x, dtype) if isinstance(x, str) else a.value(x, dtype)


def divide(a: OpContext) -> str:
    """Convert div. The argument ``rounding_mode`` may be ``floor`` (round down) or ``trunc`` (round towards zero)."""
    mode = a.argument("rounding_mode")
    operands = promote_operands(a, a.argument("self"), a.argument("other"), a.result_dtype())
    if mode == "floor":
        return a.emit("floor_div", operands)
    quotient = a.emit("div", operands)
    return quotient if mode is None or not dtypes.is_float(a.dtype(quotient)) else _truncate_to_zero(a, quotient)


def _truncate_to_zero(a: OpContext, x: str) -> str:
    """Emit the value rounded towards zero."""
    whole = a.emit("floor", (a.emit("abs", (x,)),))
    return a.emit("mul", (_emit_sign(a, x), whole))


def _emit_sign(a: OpContext, x: str) -> str:
    """Emit the sign of each element: -1, 0 or 1, in the dtype of the value."""
    zero = a.value(0, a.dtype(x))
    sides = [a.cast(a.emit(op, (x, zero)), a.dtype(x)) for op in ("greater", "less")]
    return a.emit("sub", sides)


def sign(a: OpContext) -> str:
    return _emit_sign(a, a.operand("self"))


def truncate(a: OpContext) -> str:
    return _truncate_to_zero(a, a.operand("self"))


def power(a: OpContext) -> str:
    """Convert pow. The exponents 2 and 0.5 become a product and a square root."""
    exponent = a.argument("exponent")
    x = a.argument("self")
    if exponent == 2 and isinstance(x, str):
        return a.emit("mul", (x, x))
    if exponent == 0.5 and isinstance(x, str):
        return a.emit("sqrt", (x,))
    return a.emit("pow", promote_operands(a, x, exponent))


def clamp(a: OpContext) -> str:
    """Convert clamp, hardtanh, clamp_min and clamp_max. Bounds are numbers or tensors."""
    x = a.operand("self")
    names = ("min_val", "max_val") if a.name == "hardtanh" else ("min", "max")
    low, high = (a.argument(name) for name in names)
    if any(isinstance(bound, str) or hasattr(bound, "shape") for bound in (low, high)):
        x = x if low is None else a.emit("maximum", promote_operands(a, x, low, a.result_dtype()))
        return x if high is None else a.emit("minimum", promote_operands(a, x, high, a.result_dtype()))
    if low == 0 and high is None:
        return a.emit("relu", (x,))
    most = float(np.finfo(np.float32).max)
    return a.emit(
        "clip",
        (x,),
        {"minimum": -most if low is None else float(low), "maximum": most if high is None else float(high)},
    )


def leaky(a: OpContext) -> str:
    return a.emit("leaky_relu", (a.operand("self"),), {"alpha": float(a.argument("negative_slope"))})


def elu(a: OpContext) -> str:
    if float(a.argument("scale", 1)) != 1 or float(a.argument("input_scale", 1)) != 1:
        scaled = a.emit("elu", (a.operand("self"),), {"alpha": float(a.argument("alpha"))})
        return a.emit("mul", (scaled, a.value(float(a.argument("scale")))))
    return a.emit("elu", (a.operand("self"),), {"alpha": float(a.argument("alpha"))})


def formula_converter(formula: Callable[..., str]) -> Converter:
    """Return the converter of an elementwise function that is composed of several operators by ``formula``."""
    return lambda a: _in_float32(a, lambda x: formula(composer(a.write), x))


def _in_float32(a: OpContext, build_formula: Callable[[str], str]) -> str:
    """Emit ``build_formula`` of the operand. float16 and bfloat16 are computed in float32, and only the result is rounded."""
    x = a.operand("self")
    if a.dtype(x) not in dtypes.HALF:
        return build_formula(x)
    return a.cast(build_formula(a.cast(x, "float32")), a.dtype(x))


def gelu(a: OpContext) -> str:
    """Convert gelu, exact or approximated by tanh."""
    tanh = a.argument("approximate", "none") == "tanh"
    return _in_float32(a, lambda x: formulas.gelu(composer(a.write), x, tanh))


def softmax(a: OpContext) -> str:
    return a.emit("softmax", (a.operand("self"),), {"axis": int(a.argument("dim"))})


def log_softmax(a: OpContext) -> str:
    """Convert log_softmax: x - m - log(sum(exp(x - m))), where m is the maximum along the axis."""
    x = a.operand("self")
    over: Mapping[str, Attr] = {"axes": (int(a.argument("dim")) % len(a.result_shape()),), "keepdims": True}
    centred = a.emit("sub", (x, a.emit("max", (x,), over)))
    total = a.emit("sum", (a.emit("exp", (centred,)),), over)
    return a.emit("sub", (centred, a.emit("log", (total,))))


def reduction(op: str) -> Converter:
    """Return the converter of a reduction over the axes ``dim``, or over all axes. Its dtype is PyTorch's dtype of the result."""

    def convert(a: OpContext) -> str:
        x = _bool_as_int(a, a.cast(a.operand("self"), a.result_dtype()))
        rank, dims = len(a.shape(x)), a.argument("dim")
        dims = [dims] if isinstance(dims, int) else dims
        axes = tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))
        reduced = a.emit(op, (x,), {"axes": axes, "keepdims": bool(a.argument("keepdim", False))}) if axes else x
        return a.cast(reduced, a.result_dtype())

    return convert


def _bool_as_int(a: OpContext, x: str) -> str:
    """Cast a bool value to int32, which can be ordered; return any other value unchanged."""
    return a.cast(x, "int32") if a.dtype(x) == "bool" else x


def extreme(op: str, binary_op: str, arg_op: str) -> Converter:
    """Return the converter of max or min: of two tensors, along an axis (with the indices), or of all elements.

    ``op``, ``binary_op``, ``arg_op``: microc's operators for the reduction, for two tensors, and for the indices."""

    def convert(a: OpContext) -> Any:
        if a.argument("other") is not None:
            return a.emit(binary_op, promote_operands(a, a.argument("self"), a.argument("other"), a.result_dtype()))
        operand, dim = a.operand("self"), a.argument("dim")
        x = _bool_as_int(a, operand)
        if dim is None:
            reduced = a.emit(op, (x,), {"axes": tuple(range(len(a.shape(x)))), "keepdims": False})
            return a.cast(reduced, a.dtype(operand))
        keep = bool(a.argument("keepdim", False))
        extremum = a.emit(op, (x,), {"axes": (int(dim) % len(a.shape(x)),), "keepdims": keep})
        return a.cast(extremum, a.dtype(operand)), a.emit(
            arg_op, (x,), {"axis": int(dim), "keepdims": keep, "out_dtype": "int64"}
        )

    return convert


def topk(a: OpContext) -> tuple[str, ...]:
    attrs = {
        "axis": int(a.argument("dim", -1)),
        "k": int(a.argument("k")),
        "largest": bool(a.argument("largest", True)),
    }
    return a.write.emit_all("topk", (a.operand("self"),), attrs)


def cumsum(a: OpContext) -> str:
    return a.emit("cumsum", (a.cast(a.operand("self"), a.result_dtype()),), {"axis": int(a.argument("dim"))})


def flip(a: OpContext) -> str:
    x = a.operand("self")
    return a.emit("reverse", (x,), {"axes": tuple(sorted(d % len(a.shape(x)) for d in a.argument("dims")))})


def variance(a: OpContext) -> str:
    """Convert var: the sum of squared differences from the mean, divided by (number of elements - correction)."""
    x, rank, dims = a.operand("self"), len(a.shape(a.operand("self"))), a.argument("dim")
    axes = tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))
    correction = a.argument("correction", 1)
    count = math.prod(a.shape(x)[axis] for axis in axes)
    centred = a.emit("sub", (x, a.emit("mean", (x,), {"axes": axes, "keepdims": True})))
    keepdims = bool(a.argument("keepdim", False))
    total = a.emit("sum", (a.emit("mul", (centred, centred)),), {"axes": axes, "keepdims": keepdims})
    return a.emit("mul", (total, a.value(1 / max(count - (1 if correction is None else correction), 1e-30))))


def variance_and_mean(a: OpContext) -> tuple[str, str]:
    """Convert var_mean; return the variance and the mean."""
    x, dims = a.operand("self"), a.argument("dim")
    rank = len(a.shape(x))
    axes = tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))
    return variance(a), a.emit("mean", (x,), {"axes": axes, "keepdims": bool(a.argument("keepdim", False))})


def arg_extremum(op: str) -> Converter:
    """Return the converter of argmax or argmin, along an axis or over all elements."""

    def convert(a: OpContext) -> str:
        x, dim = a.operand("self"), a.argument("dim")
        if dim is None:
            x, dim = a.reshape(x, (math.prod(a.shape(x)),)), 0
        index = a.emit(op, (x,), {"axis": int(dim), "keepdims": False, "out_dtype": "int64"})
        return a.reshape(index, a.result_shape())

    return convert


def where(a: OpContext) -> str:
    x, y = promote_operands(a, a.argument("self"), a.argument("other"))
    return a.emit("where", (a.operand("condition"), x, y))


ELEMENTWISE_CONVERTERS: Mapping[str, Converter] = {
    "_log_softmax": log_softmax,
    "_softmax": softmax,
    "abs": unary("abs"),
    "add": binary("add"),
    "amax": reduction("max"),
    "amin": reduction("min"),
    "argmax": arg_extremum("argmax"),
    "argmin": arg_extremum("argmin"),
    "ceil": unary("ceil"),
    "clamp": clamp,
    "clamp_max": clamp,
    "clamp_min": clamp,
    "cos": unary("cos"),
    "cumsum": cumsum,
    "div": divide,
    "elu": elu,
    "eq": comparison("equal"),
    "erf": unary("erf"),
    "exp": unary("exp"),
    "flip": flip,
    "floor": unary("floor"),
    "floor_divide": binary("floor_div"),
    "ge": comparison("greater_equal"),
    "gelu": gelu,
    "gt": comparison("greater"),
    "hardsigmoid": formula_converter(formulas.hard_sigmoid),
    "hardswish": unary("hard_swish"),
    "hardtanh": clamp,
    "le": comparison("less_equal"),
    "leaky_relu": leaky,
    "log": unary("log"),
    "logical_and": logical("logical_and"),
    "logical_not": logical_not,
    "logical_or": logical("logical_or"),
    "lt": comparison("less"),
    "max": extreme("max", "maximum", "argmax"),
    "maximum": binary("maximum"),
    "mean": reduction("mean"),
    "min": extreme("min", "minimum", "argmin"),
    "minimum": binary("minimum"),
    "mul": binary("mul"),
    "ne": comparison("not_equal"),
    "neg": unary("neg"),
    "pow": power,
    "prod": reduction("prod"),
    "reciprocal": formula_converter(formulas.reciprocal),
    "relu": unary("relu"),
    "remainder": binary("floor_mod"),
    "round": unary("round"),
    "rsqrt": unary("rsqrt"),
    "rsub": binary("sub", swapped=True),
    "sigmoid": unary("sigmoid"),
    "sign": sign,
    "sin": unary("sin"),
    "softplus": unary("softplus"),
    "sqrt": unary("sqrt"),
    "sub": binary("sub"),
    "sum": reduction("sum"),
    "tanh": unary("tanh"),
    "topk": topk,
    "trunc": truncate,
    "var": variance,
    "var_mean": variance_and_mean,
    "where": where,
}


# ---- Converters of less common operators: trigonometry, bitwise logic, remainders, norms, distances, sorting.


def logarithm(base: float) -> Converter:
    """Return the converter of the logarithm to the base ``base``."""
    return lambda a: a.emit("mul", (a.emit("log", (a.operand("self"),)), a.value(1 / math.log(base))))


def exp2(a: OpContext) -> str:
    return a.emit("pow", (a.value(2.0), a.operand("self")))


def bitwise(bool_op: str, integer_op: str) -> Converter:
    """Return the converter of a bitwise operator. On bool operands it becomes the logical operator ``bool_op``."""

    def convert(a: OpContext) -> str:
        operands = [a.operand("self")]
        if a.argument("other") is not None:
            operands = list(promote_operands(a, a.argument("self"), a.argument("other"), a.result_dtype()))
        return a.emit(bool_op if a.dtype(operands[0]) == "bool" else integer_op, operands)

    return convert


def is_nan(a: OpContext) -> str:
    return a.emit("not_equal", (a.operand("self"), a.operand("self")))


def is_infinite(a: OpContext) -> str:
    return a.emit("equal", (a.emit("abs", (a.operand("self"),)), a.value(math.inf)))


def any_of(a: OpContext) -> str:
    """Convert any: test whether an element is not zero, along some axes or over all elements."""
    x, dims = a.operand("self"), a.argument("dim")
    if a.dtype(x) != "bool":
        x = a.emit("not_equal", (x, a.value(0, a.dtype(x))))
    integers = a.cast(x, "int32")
    over: Mapping[str, Attr] = {
        "axes": _reduced_axes(a, integers, dims),
        "keepdims": bool(a.argument("keepdim", False)),
    }
    return a.emit("greater", (a.emit("max", (integers,), over), a.value(0, "int32")))


def _reduced_axes(a: OpContext, value_name: str, dims: object) -> tuple[int, ...]:
    """Return the axes ``dims`` as ascending numbers of at least 0. No ``dims`` means all axes."""
    rank = len(a.shape(value_name))
    axes = [dims] if isinstance(dims, int) else list(dims) if isinstance(dims, (list, tuple)) else []
    return tuple(sorted(d % rank for d in axes)) if axes else tuple(range(rank))


def fmod(a: OpContext) -> str:
    """Convert fmod, the remainder with the sign of the dividend."""
    return a.emit("fmod", promote_operands(a, a.argument("self"), a.argument("other"), a.result_dtype()))


def log1p(a: OpContext) -> str:
    return a.emit("log", (a.emit("add", (a.operand("self"), a.value(1.0))),))


def expm1(a: OpContext) -> str:
    return a.emit("sub", (a.emit("exp", (a.operand("self"),)), a.value(1.0)))


def atan2(a: OpContext) -> str:
    """Convert atan2(y, x): the arctangent of y / x, corrected for the quadrant of (x, y); 0 at the origin."""
    y, x = promote_operands(a, a.argument("self"), a.argument("other"), a.result_dtype())
    zero = a.value(0.0, a.dtype(x))
    slope = a.emit("atan", (a.emit("div", (y, x)),))
    half_circle = a.emit("where", (a.emit("less", (y, zero)), a.value(-math.pi), a.value(math.pi)))
    behind = a.emit("less", (x, zero))
    quadrant_angle = a.emit("where", (behind, a.emit("add", (slope, half_circle)), slope))
    on_positive_axis = a.emit("logical_and", (a.emit("equal", (y, zero)), a.emit("logical_not", (behind,))))
    return a.emit("where", (on_positive_axis, y, quadrant_angle))


def erfc(a: OpContext) -> str:
    """Convert erfc: 1 - erf(x)."""
    return a.emit("sub", (a.value(1.0), a.emit("erf", (a.operand("self"),))))


def hypot(a: OpContext) -> str:
    """Convert hypot: sqrt(x * x + y * y)."""
    sides = promote_operands(a, a.argument("self"), a.argument("other"), a.result_dtype())
    return a.emit("sqrt", (a.emit("add", [a.emit("mul", (side, side)) for side in sides]),))


def rrelu(a: OpContext) -> tuple[str, str]:
    """Convert rrelu in evaluation mode: a leaky_relu whose slope is the mean of the arguments ``lower`` and ``upper``.

    The operator's second result, noise, is used only in training; it becomes ""."""
    slope = (float(a.argument("lower")) + float(a.argument("upper"))) / 2
    return a.emit("leaky_relu", (a.operand("self"),), {"alpha": slope}), ""


def norm(a: OpContext) -> str:
    """Convert linalg_vector_norm of an order of at least 1."""
    x, order = a.operand("self"), float(a.argument("ord", 2))
    over: Mapping[str, Attr] = {
        "axes": _reduced_axes(a, x, a.argument("dim")),
        "keepdims": bool(a.argument("keepdim", False)),
    }
    return _emit_norm(a, x, order, over)


def _emit_norm(a: OpContext, x: str, order: float, axes_attrs: Mapping[str, Attr]) -> str:
    """Emit the vector norm of an order from 1 to infinity; ``axes_attrs``: attributes of the reductions over the axes."""
    if order == 2:
        return a.emit("sqrt", (a.emit("sum", (a.emit("mul", (x, x)),), axes_attrs),))
    size = a.emit("abs", (x,))
    if order in (1, math.inf):
        return a.emit("sum" if order == 1 else "max", (size,), axes_attrs)
    if order < 1:
        a.refuse(f"a norm of order {order}", "use an order of at least 1, or infinity")
    total = a.emit("sum", (a.emit("pow", (size, a.value(order))),), axes_attrs)
    return a.emit("pow", (total, a.value(1 / order)))


def cdist(a: OpContext) -> str:
    """Convert cdist: the distances between all rows of ``x1`` and all rows of ``x2``."""
    x, y = a.operand("x1"), a.operand("x2")
    one, other = a.shape(x), a.shape(y)
    left, right = a.reshape(x, (*one[:-1], 1, one[-1])), a.reshape(y, (*other[:-2], 1, *other[-2:]))
    over: Mapping[str, Attr] = {"axes": (len(one),), "keepdims": False}
    return _emit_norm(a, a.emit("sub", (left, right)), float(a.argument("p")), over)


def cumprod(a: OpContext) -> str:
    return a.emit("cumprod", (a.cast(a.operand("self"), a.result_dtype()),), {"axis": int(a.argument("dim"))})


def sort(a: OpContext) -> tuple[str, ...]:
    """Convert sort: the elements along an axis in order, and their indices. The order of equal elements does not change."""
    x, axis = a.operand("self"), int(a.argument("dim", -1))
    attrs: Mapping[str, Attr] = {"axis": axis, "k": a.shape(x)[axis], "largest": bool(a.argument("descending", False))}
    return a.write.emit_all("topk", (x,), attrs)


def copy(a: OpContext) -> str:
    """Convert copy: the operand ``src``, broadcast to the shape of ``self`` and cast to its dtype."""
    value = a.cast(a.operand("src"), a.result_dtype())
    shape = a.result_shape()
    return value if a.shape(value) == shape else a.emit("broadcast_to", (value,), {"shape": shape})


def grid_sampler(a: OpContext) -> str:
    modes, borders = ("linear", "nearest", "cubic"), ("zeros", "edge", "reflection")
    attrs: Mapping[str, Attr] = {
        "mode": modes[int(a.argument("interpolation_mode"))],
        "border": borders[int(a.argument("padding_mode"))],
        "coordinates": "corners" if a.argument("align_corners") else "edges",
    }
    return a.emit("grid_sample", (a.operand("input"), a.operand("grid")), attrs)


FUNCTIONS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")

MATH_CONVERTERS: Mapping[str, Converter] = {
    **{name: unary(name) for name in FUNCTIONS},
    "_cdist_forward": cdist,
    "any": any_of,
    "atan2": atan2,
    "bitwise_and": bitwise("logical_and", "bit_and"),
    "bitwise_not": bitwise("logical_not", "bit_not"),
    "bitwise_or": bitwise("logical_or", "bit_or"),
    "bitwise_xor": bitwise("not_equal", "bit_xor"),
    "copy": copy,
    "cumprod": cumprod,
    "erfc": erfc,
    "exp2": exp2,
    "expm1": expm1,
    "fmod": fmod,
    "grid_sampler_2d": grid_sampler,
    "hypot": hypot,
    "isinf": is_infinite,
    "isnan": is_nan,
    "linalg_vector_norm": norm,
    "log1p": log1p,
    "log10": logarithm(10.0),
    "log2": logarithm(2.0),
    "logical_xor": bitwise("not_equal", "bit_xor"),
    "rrelu_with_noise_functional": rrelu,
    "sort": sort,
}
