"""ATen elementwise operators, reductions, searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend import formulas
from microc.frontend.formulas import composer
from microc.frontend.torch.context import Application, Spelling
from microc.graph.ir import Attr

# ---- Spellings of ATen's elementwise operators, reductions and searches.


def unary(op: str, **attrs: Attr) -> Spelling:
    """A function of every element; integers are converted where the result is real."""

    def spell(a: Application) -> str:
        x, made = a.operand("self"), a.result_dtype()
        return a.emit(op, (a.cast(x, made) if dtypes.is_float(made) else x,), attrs)

    return spell


_OF_TRUTHS = {"add": "logical_or", "maximum": "logical_or", "minimum": "logical_and", "mul": "logical_and"}
"""Arithmetic that PyTorch does on tensors of bool, as logic."""


def binary(op: str, *, swapped: bool = False) -> Spelling:
    """Arithmetic on two tensors, or a tensor and a number; ``alpha`` scales the second."""

    def spell(a: Application) -> str:
        x, y = pair(a, a.argument("self"), a.argument("other"), a.result_dtype())
        if a.result_dtype() == "bool" and op in _OF_TRUTHS:
            return a.emit(_OF_TRUTHS[op], (x, y))
        alpha = a.argument("alpha", 1)
        if alpha not in (1, None):
            y = a.emit("mul", (y, a.value(alpha, a.dtype(y))))
        return a.emit(op, (y, x) if swapped else (x, y))

    return spell


def comparison(op: str) -> Spelling:
    """A comparison of two tensors, or a tensor and a number; an order of truths is that of 0 and 1."""

    def spell(a: Application) -> str:
        x, y = pair(a, a.argument("self"), a.argument("other"))
        if a.dtype(x) == "bool" and op not in ("equal", "not_equal"):
            x, y = a.cast(x, "int32"), a.cast(y, "int32")
        return a.emit(op, (x, y))

    return spell


def logic(op: str) -> Spelling:
    """Logic of two tensors, whose numbers are true where they are not zero."""
    return lambda a: a.emit(op, [truth(a, a.argument(name)) for name in ("self", "other")])


def negation(a: Application) -> str:
    return a.emit("logical_not", (truth(a, a.argument("self")),))


def truth(a: Application, x: Any) -> str:
    """The bool of a tensor: true where it is not zero."""
    held = a.value(x)
    return held if a.dtype(held) == "bool" else a.emit("not_equal", (held, a.value(0, a.dtype(held))))


def pair(a: Application, x: Any, y: Any, dtype: str = "") -> tuple[str, str]:
    """Both operands in one dtype: the one given, else the one that PyTorch promotes them to."""
    if not dtype:
        tensors = [part for part in (x, y) if isinstance(part, (str, a.torch.Tensor))]
        found = [a.dtype(t) if isinstance(t, str) else str(t.dtype).removeprefix("torch.") for t in tensors]
        reals = [name for name in found if dtypes.is_float(name)]
        number = next((part for part in (x, y) if isinstance(part, (int, float))), 0)
        dtype = reals[0] if reals else "float32" if isinstance(number, float) else found[-1]
    return _as(a, x, dtype), _as(a, y, dtype)


def _as(a: Application, x: Any, dtype: str) -> str:
    return a.cast(x, dtype) if isinstance(x, str) else a.value(x, dtype)


def divide(a: Application) -> str:
    """div, rounded down or to zero where it says so."""
    mode = a.argument("rounding_mode")
    both = pair(a, a.argument("self"), a.argument("other"), a.result_dtype())
    if mode == "floor":
        return a.emit("floor_div", both)
    quotient = a.emit("div", both)
    return quotient if mode is None or not dtypes.is_float(a.dtype(quotient)) else _truncated(a, quotient)


def _truncated(a: Application, x: str) -> str:
    whole = a.emit("floor", (a.emit("abs", (x,)),))
    return a.emit("mul", (_signs(a, x), whole))


def _signs(a: Application, x: str) -> str:
    zero = a.value(0, a.dtype(x))
    sides = [a.cast(a.emit(op, (x, zero)), a.dtype(x)) for op in ("greater", "less")]
    return a.emit("sub", sides)


def sign(a: Application) -> str:
    return _signs(a, a.operand("self"))


def truncate(a: Application) -> str:
    return _truncated(a, a.operand("self"))


def power(a: Application) -> str:
    """pow: a square as a product."""
    exponent = a.argument("exponent")
    x = a.argument("self")
    if exponent == 2 and isinstance(x, str):
        return a.emit("mul", (x, x))
    if exponent == 0.5 and isinstance(x, str):
        return a.emit("sqrt", (x,))
    return a.emit("pow", pair(a, x, exponent))


def clamp(a: Application) -> str:
    """clamp, hardtanh, clamp_min and clamp_max."""
    x = a.operand("self")
    names = ("min_val", "max_val") if a.name == "hardtanh" else ("min", "max")
    low, high = (a.argument(name) for name in names)
    if any(isinstance(bound, str) or hasattr(bound, "shape") for bound in (low, high)):
        x = x if low is None else a.emit("maximum", pair(a, x, low, a.result_dtype()))
        return x if high is None else a.emit("minimum", pair(a, x, high, a.result_dtype()))
    if low == 0 and high is None:
        return a.emit("relu", (x,))
    most = float(np.finfo(np.float32).max)
    return a.emit(
        "clip",
        (x,),
        {"minimum": -most if low is None else float(low), "maximum": most if high is None else float(high)},
    )


def leaky(a: Application) -> str:
    return a.emit("leaky_relu", (a.operand("self"),), {"alpha": float(a.argument("negative_slope"))})


def elu(a: Application) -> str:
    if float(a.argument("scale", 1)) != 1 or float(a.argument("input_scale", 1)) != 1:
        scaled = a.emit("elu", (a.operand("self"),), {"alpha": float(a.argument("alpha"))})
        return a.emit("mul", (scaled, a.value(float(a.argument("scale")))))
    return a.emit("elu", (a.operand("self"),), {"alpha": float(a.argument("alpha"))})


def composed(formula: Callable[..., str]) -> Spelling:
    return lambda a: _in_float32(a, lambda x: formula(composer(a.write), x))


def _in_float32(a: Application, formula: Callable[[str], str]) -> str:
    """A formula of one operand, which for halves is computed in float32."""
    x = a.operand("self")
    if a.dtype(x) not in dtypes.HALF:
        return formula(x)
    return a.cast(formula(a.cast(x, "float32")), a.dtype(x))


def gelu(a: Application) -> str:
    """Exact, or the approximation with tanh."""
    tanh = a.argument("approximate", "none") == "tanh"
    return _in_float32(a, lambda x: formulas.gelu(composer(a.write), x, tanh))


def softmax(a: Application) -> str:
    return a.emit("softmax", (a.operand("self"),), {"axis": int(a.argument("dim"))})


def log_softmax(a: Application) -> str:
    """x less its largest, less the logarithm of the sum of powers."""
    x = a.operand("self")
    over: Mapping[str, Attr] = {"axes": (int(a.argument("dim")) % len(a.result_shape()),), "keepdims": True}
    centred = a.emit("sub", (x, a.emit("max", (x,), over)))
    total = a.emit("sum", (a.emit("exp", (centred,)),), over)
    return a.emit("sub", (centred, a.emit("log", (total,))))


def reduction(op: str) -> Spelling:
    """A reduction over ``dim``, or over everything, in the dtype that PyTorch computes it in."""

    def spell(a: Application) -> str:
        x = _countable(a, a.cast(a.operand("self"), a.result_dtype()))
        rank, dims = len(a.shape(x)), a.argument("dim")
        dims = [dims] if isinstance(dims, int) else dims
        axes = tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))
        made = a.emit(op, (x,), {"axes": axes, "keepdims": bool(a.argument("keepdim", False))}) if axes else x
        return a.cast(made, a.result_dtype())

    return spell


def _countable(a: Application, x: str) -> str:
    """Truths as 0 and 1, which have an order."""
    return a.cast(x, "int32") if a.dtype(x) == "bool" else x


def extreme(op: str, of_two: str, place: str) -> Spelling:
    """max and min: of two tensors, along an axis with the places, or of everything."""

    def spell(a: Application) -> Any:
        if a.argument("other") is not None:
            return a.emit(of_two, pair(a, a.argument("self"), a.argument("other"), a.result_dtype()))
        given, dim = a.operand("self"), a.argument("dim")
        x = _countable(a, given)
        if dim is None:
            whole = a.emit(op, (x,), {"axes": tuple(range(len(a.shape(x)))), "keepdims": False})
            return a.cast(whole, a.dtype(given))
        keep = bool(a.argument("keepdim", False))
        largest = a.emit(op, (x,), {"axes": (int(dim) % len(a.shape(x)),), "keepdims": keep})
        return a.cast(largest, a.dtype(given)), a.emit(
            place, (x,), {"axis": int(dim), "keepdims": keep, "out_dtype": "int64"}
        )

    return spell


def top(a: Application) -> tuple[str, ...]:
    attrs = {
        "axis": int(a.argument("dim", -1)),
        "k": int(a.argument("k")),
        "largest": bool(a.argument("largest", True)),
    }
    return a.write.emit_all("topk", (a.operand("self"),), attrs)


def running_sum(a: Application) -> str:
    return a.emit("cumsum", (a.cast(a.operand("self"), a.result_dtype()),), {"axis": int(a.argument("dim"))})


def flip(a: Application) -> str:
    x = a.operand("self")
    return a.emit("reverse", (x,), {"axes": tuple(sorted(d % len(a.shape(x)) for d in a.argument("dims")))})


def variance(a: Application) -> str:
    """The mean square of what is left of the mean, over n - correction."""
    x, rank, dims = a.operand("self"), len(a.shape(a.operand("self"))), a.argument("dim")
    axes = tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))
    correction = a.argument("correction", 1)
    count = math.prod(a.shape(x)[axis] for axis in axes)
    centred = a.emit("sub", (x, a.emit("mean", (x,), {"axes": axes, "keepdims": True})))
    kept = bool(a.argument("keepdim", False))
    total = a.emit("sum", (a.emit("mul", (centred, centred)),), {"axes": axes, "keepdims": kept})
    return a.emit("mul", (total, a.value(1 / max(count - (1 if correction is None else correction), 1e-30))))


def variance_and_mean(a: Application) -> tuple[str, str]:
    """var_mean."""
    x, dims = a.operand("self"), a.argument("dim")
    rank = len(a.shape(x))
    axes = tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))
    return variance(a), a.emit("mean", (x,), {"axes": axes, "keepdims": bool(a.argument("keepdim", False))})


def place_of(op: str) -> Spelling:
    def spell(a: Application) -> str:
        x, dim = a.operand("self"), a.argument("dim")
        if dim is None:
            x, dim = a.reshaped(x, (math.prod(a.shape(x)),)), 0
        made = a.emit(op, (x,), {"axis": int(dim), "keepdims": False, "out_dtype": "int64"})
        return a.reshaped(made, a.result_shape())

    return spell


def where(a: Application) -> str:
    x, y = pair(a, a.argument("self"), a.argument("other"))
    return a.emit("where", (a.operand("condition"), x, y))


OPS_SPELLINGS: Mapping[str, Spelling] = {
    "_log_softmax": log_softmax,
    "_softmax": softmax,
    "abs": unary("abs"),
    "add": binary("add"),
    "amax": reduction("max"),
    "amin": reduction("min"),
    "argmax": place_of("argmax"),
    "argmin": place_of("argmin"),
    "ceil": unary("ceil"),
    "clamp": clamp,
    "clamp_max": clamp,
    "clamp_min": clamp,
    "cos": unary("cos"),
    "cumsum": running_sum,
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
    "hardsigmoid": composed(formulas.hard_sigmoid),
    "hardswish": unary("hard_swish"),
    "hardtanh": clamp,
    "le": comparison("less_equal"),
    "leaky_relu": leaky,
    "log": unary("log"),
    "logical_and": logic("logical_and"),
    "logical_not": negation,
    "logical_or": logic("logical_or"),
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
    "reciprocal": composed(formulas.reciprocal),
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
    "topk": top,
    "trunc": truncate,
    "var": variance,
    "var_mean": variance_and_mean,
    "where": where,
}


# ---- Spellings of ATen's less usual operators: trigonometry, logic of truths, remainders, norms, distances, sorting.


def logarithm(base: float) -> Spelling:
    return lambda a: a.emit("mul", (a.emit("log", (a.operand("self"),)), a.value(1 / math.log(base))))


def power_of_two(a: Application) -> str:
    return a.emit("pow", (a.value(2.0), a.operand("self")))


def bitwise(of_truths: str, of_integers: str) -> Spelling:
    """An operator on bits, which on truths is one of logic."""

    def spell(a: Application) -> str:
        operands = [a.operand("self")]
        if a.argument("other") is not None:
            operands = list(pair(a, a.argument("self"), a.argument("other"), a.result_dtype()))
        return a.emit(of_truths if a.dtype(operands[0]) == "bool" else of_integers, operands)

    return spell


def is_nan(a: Application) -> str:
    return a.emit("not_equal", (a.operand("self"), a.operand("self")))


def is_infinite(a: Application) -> str:
    return a.emit("equal", (a.emit("abs", (a.operand("self"),)), a.value(math.inf)))


def any_of(a: Application) -> str:
    """Whether something is not zero, along some axes or all."""
    x, dims = a.operand("self"), a.argument("dim")
    if a.dtype(x) != "bool":
        x = a.emit("not_equal", (x, a.value(0, a.dtype(x))))
    counted = a.cast(x, "int32")
    over: Mapping[str, Attr] = {"axes": _axes(a, counted, dims), "keepdims": bool(a.argument("keepdim", False))}
    return a.emit("greater", (a.emit("max", (counted,), over), a.value(0, "int32")))


def _axes(a: Application, x: str, dims: object) -> tuple[int, ...]:
    rank = len(a.shape(x))
    given = [dims] if isinstance(dims, int) else list(dims) if isinstance(dims, (list, tuple)) else []
    return tuple(sorted(d % rank for d in given)) if given else tuple(range(rank))


def remainder_to_zero(a: Application) -> str:
    """fmod: the remainder has the sign of the left side."""
    return a.emit("fmod", pair(a, a.argument("self"), a.argument("other"), a.result_dtype()))


def logarithm_of_one_more(a: Application) -> str:
    return a.emit("log", (a.emit("add", (a.operand("self"), a.value(1.0))),))


def exponential_less_one(a: Application) -> str:
    return a.emit("sub", (a.emit("exp", (a.operand("self"),)), a.value(1.0)))


def angle(a: Application) -> str:
    """atan2: the angle of (x, y), by its quadrant; 0 at the origin."""
    y, x = pair(a, a.argument("self"), a.argument("other"), a.result_dtype())
    zero = a.value(0.0, a.dtype(x))
    slope = a.emit("atan", (a.emit("div", (y, x)),))
    half_turn = a.emit("where", (a.emit("less", (y, zero)), a.value(-math.pi), a.value(math.pi)))
    behind = a.emit("less", (x, zero))
    found = a.emit("where", (behind, a.emit("add", (slope, half_turn)), slope))
    ahead = a.emit("logical_and", (a.emit("equal", (y, zero)), a.emit("logical_not", (behind,))))
    return a.emit("where", (ahead, y, found))


def rest_of_error_function(a: Application) -> str:
    """erfc."""
    return a.emit("sub", (a.value(1.0), a.emit("erf", (a.operand("self"),))))


def hypotenuse(a: Application) -> str:
    """hypot."""
    sides = pair(a, a.argument("self"), a.argument("other"), a.result_dtype())
    return a.emit("sqrt", (a.emit("add", [a.emit("mul", (side, side)) for side in sides]),))


def middle_slope(a: Application) -> tuple[str, str]:
    """rrelu outside of training: the mean of its slopes; the noise, its second result, is for training."""
    slope = (float(a.argument("lower")) + float(a.argument("upper"))) / 2
    return a.emit("leaky_relu", (a.operand("self"),), {"alpha": slope}), ""


def norm(a: Application) -> str:
    """linalg_vector_norm of any order from 1 on."""
    x, order = a.operand("self"), float(a.argument("ord", 2))
    over: Mapping[str, Attr] = {"axes": _axes(a, x, a.argument("dim")), "keepdims": bool(a.argument("keepdim", False))}
    return _norm(a, x, order, over)


def _norm(a: Application, x: str, order: float, over: Mapping[str, Attr]) -> str:
    if order == 2:
        return a.emit("sqrt", (a.emit("sum", (a.emit("mul", (x, x)),), over),))
    size = a.emit("abs", (x,))
    if order in (1, math.inf):
        return a.emit("sum" if order == 1 else "max", (size,), over)
    if order < 1:
        a.refuse(f"a norm of order {order}", "orders from 1 to infinity are known")
    total = a.emit("sum", (a.emit("pow", (size, a.value(order))),), over)
    return a.emit("pow", (total, a.value(1 / order)))


def distances(a: Application) -> str:
    """cdist: between all rows of one side and all rows of the other."""
    x, y = a.operand("x1"), a.operand("x2")
    one, other = a.shape(x), a.shape(y)
    left, right = a.reshaped(x, (*one[:-1], 1, one[-1])), a.reshaped(y, (*other[:-2], 1, *other[-2:]))
    over: Mapping[str, Attr] = {"axes": (len(one),), "keepdims": False}
    return _norm(a, a.emit("sub", (left, right)), float(a.argument("p")), over)


def running_product(a: Application) -> str:
    return a.emit("cumprod", (a.cast(a.operand("self"), a.result_dtype()),), {"axis": int(a.argument("dim"))})


def sort(a: Application) -> tuple[str, ...]:
    """All elements in order, and where they were; of equal ones the first comes first."""
    x, axis = a.operand("self"), int(a.argument("dim", -1))
    attrs: Mapping[str, Attr] = {"axis": axis, "k": a.shape(x)[axis], "largest": bool(a.argument("descending", False))}
    return a.write.emit_all("topk", (x,), attrs)


def copy(a: Application) -> str:
    """The second operand with the first one's shape and dtype."""
    made = a.cast(a.operand("src"), a.result_dtype())
    wanted = a.result_shape()
    return made if a.shape(made) == wanted else a.emit("broadcast_to", (made,), {"shape": wanted})


def grid_sampler(a: Application) -> str:
    modes, borders = ("linear", "nearest", "cubic"), ("zeros", "edge", "reflection")
    attrs: Mapping[str, Attr] = {
        "mode": modes[int(a.argument("interpolation_mode"))],
        "border": borders[int(a.argument("padding_mode"))],
        "coordinates": "corners" if a.argument("align_corners") else "edges",
    }
    return a.emit("grid_sample", (a.operand("input"), a.operand("grid")), attrs)


FUNCTIONS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")

MATH_SPELLINGS: Mapping[str, Spelling] = {
    **{name: unary(name) for name in FUNCTIONS},
    "_cdist_forward": distances,
    "any": any_of,
    "atan2": angle,
    "bitwise_and": bitwise("logical_and", "bit_and"),
    "bitwise_not": bitwise("logical_not", "bit_not"),
    "bitwise_or": bitwise("logical_or", "bit_or"),
    "bitwise_xor": bitwise("not_equal", "bit_xor"),
    "copy": copy,
    "cumprod": running_product,
    "erfc": rest_of_error_function,
    "exp2": power_of_two,
    "expm1": exponential_less_one,
    "fmod": remainder_to_zero,
    "grid_sampler_2d": grid_sampler,
    "hypot": hypotenuse,
    "isinf": is_infinite,
    "isnan": is_nan,
    "linalg_vector_norm": norm,
    "log1p": logarithm_of_one_more,
    "log10": logarithm(10.0),
    "log2": logarithm(2.0),
    "logical_xor": bitwise("not_equal", "bit_xor"),
    "rrelu_with_noise_functional": middle_slope,
    "sort": sort,
}
