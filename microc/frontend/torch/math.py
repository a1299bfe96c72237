"""Spellings of ATen's less usual operators: trigonometry, logic of truths, remainders, norms, distances, sorting."""

from __future__ import annotations

import math
from collections.abc import Mapping

from microc.frontend.torch.application import Application, Spelling
from microc.frontend.torch.ops import pair, unary
from microc.graph.ir import Attr


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

SPELLINGS: Mapping[str, Spelling] = {
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
