# SPDX-License-Identifier: Apache-2.0
"""Integer scaling that is proved to be exact: operators ``sum_even``, ``product_even`` and ``requantize_even``, which round
ties to even, and ``sum_floor``, which takes the place of a scaled sum of bytes.

Fixed-point factors are searched at compile time and compared with exact arithmetic for all values of the operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import INT32_MAX, NUMPY, shift_right_even
from microc.ops import registry
from microc.ops.arithmetic import TIR, Rewrite, clamp_to_dtype
from microc.ops.attributes import STORED, Attributes, integer
from microc.ops.constants import CheckedNode, make_zero_point_range_check, stored_range_error_message
from microc.ops.registry import Case, OpDef
from microc.tir import ir
from microc.tir.expressions import Expr
from microc.tir.extents import broadcast_shapes

# ---- Integer scaling that equals exact arithmetic with ties to even, proved at compile time for every operand.
#
# Scales are float32 numbers, so that a scaled sum is a ratio of integers, ``(p1 x1 + p2 x2) / q``, which
# :func:`exact_rounded_sums` rounds exactly. A fixed-point factor has an error of at most half a unit, which may move a product
# over a tie or away from a tie. Therefore each candidate (:class:`FixedPointFactors`) is compared with the exact results for all
# operand values, and the cheapest candidate that equals all of them is used.

LARGEST_DOMAIN = 1 << 20
"""Largest number of operand values for which candidate factors are compared with exact arithmetic. The comparison takes
20 ms of numpy."""
_FACTOR_BITS = (31, 52)
"""Numbers of bits of candidate factors. Factors of int32 come first, because their products are one instruction on
cores that multiply 32 by 32 bits. Scales that are decimal fractions (0.0123, 0.04) bring sums within 2**-30 of ties and
need more bits; a factor of 52 bits times a sum of 10 bits fits int64."""
LARGEST_FACTOR = 1 << 52
"""Largest magnitude of a fixed-point factor."""
_NEAR_TIE = 1e-5
"""Distance from a tie below which a ratio is computed in exact integers. Float64 is accurate to 2**-30 for results of 22 bits."""


def exact_scale_ratio(*factors_then_divisor: float) -> Fraction:
    """Return the product of the scales ``factors_then_divisor`` but the last, divided by the last, as an exact
    fraction.

    Each scale is rounded to float32 first."""
    *factors, divisor = (Fraction(float(np.float32(scale))) for scale in factors_then_divisor)
    return math.prod(factors, start=Fraction(1)) / divisor


def exact_rounded_sums(terms: Sequence[tuple[Array, Fraction]]) -> Array:
    """Return the sums of x * factor over the terms (x, factor), computed exactly and rounded half to even, as int64.

    Sums that exceed 22 bits may be approximate."""
    q = math.lcm(*(factor.denominator for _, factor in terms))
    weights = [int(factor * q) for _, factor in terms]
    most = sum(int(abs(x).max(initial=0)) * abs(weight) for (x, _), weight in zip(terms, weights, strict=True))
    if max(most, q) < 1 << 60:
        total = sum(x * weight for (x, _), weight in zip(terms, weights, strict=True))
        level, rest = np.divmod(np.asarray(total, np.int64), q)
        return np.asarray(level + ((2 * rest > q) | ((2 * rest == q) & (level & 1 == 1))))
    real = np.asarray(sum(x * float(factor) for x, factor in terms), np.float64)
    real = np.clip(real, -(2.0**30), 2.0**30)
    levels = np.asarray(np.rint(real).astype(np.int64))
    is_near_tie = (abs(real - np.floor(real) - 0.5) < _NEAR_TIE) & (abs(real) < 1 << 22)
    for index in zip(*np.nonzero(is_near_tie), strict=True):
        levels[index] = round(Fraction(sum(int(x[index]) * w for (x, _), w in zip(terms, weights, strict=True)), q))
    return levels


@frozen
class FixedPointFactors:
    """Fixed-point factors of the formula ``round(sum(x * factor) / 2**right_shift)``, which rounds half to even.

    A sum within ``tie_margin`` of a tie counts as a tie. If ``tie_margin`` is negative, ties are rounded up."""

    factors: tuple[int, ...]
    right_shift: int
    tie_margin: int

    def round_sums(self, operands: Sequence[Array]) -> Array:
        """Compute the rounded sums of ``operands`` times factors over numpy, exactly as the generated code does."""
        total = sum(x * factor for x, factor in zip(operands, self.factors, strict=True))
        return np.asarray(shift_right_even(np.asarray(total, np.int64), self.right_shift, self.tie_margin, NUMPY))


def find_exact_factors(
    terms: Sequence[tuple[Array, Fraction]], lowest_result: int, highest_result: int
) -> FixedPointFactors | None:
    """Return fixed-point factors whose rounded sums equal the exact sums for all operand values, or None if no
    candidate has this property.

    ``terms`` are arrays of all operand values with their exact factors. Sums are compared after clamping to
    ``lowest_result``..``highest_result``."""
    operands, expected = [x for x, _ in terms], np.clip(exact_rounded_sums(terms), lowest_result, highest_result)
    for candidate in _candidate_factors(terms):
        if np.array_equal(np.clip(candidate.round_sums(operands), lowest_result, highest_result), expected):
            return candidate
    return None


def _candidate_factors(terms: Sequence[tuple[Array, Fraction]]) -> Iterator[FixedPointFactors]:
    """Yield candidate factors, beginning with the smallest number of bits.

    For each number of bits there are three candidates: without ties to even, with exact ties, and with a margin for the
    ties that rounding the factors can move."""
    largest = max(abs(factor) for _, factor in terms)
    sizes = [int(abs(x).max(initial=0)) for x, _ in terms]
    for bits in _FACTOR_BITS:
        distance = bits - 1 - math.ceil(math.log2(largest))
        if not 1 <= distance <= 61 or sum(sizes).bit_length() + bits > 62:
            continue
        scaled = [factor * (1 << distance) for _, factor in terms]
        factors = [round(factor) for factor in scaled]
        errors = [abs(factor - whole) for factor, whole in zip(scaled, factors, strict=True)]
        shorter = 0
        if not any(errors):  # exact factors: their common trailing zeros shorten the shift
            zeros = min((factor & -factor).bit_length() - 1 for factor in factors)
            shorter = max(0, min(zeros, distance - 1))
        # The largest error of a sum: how far rounding the factors can move a tie.
        tie_error = math.ceil(sum(size * error for size, error in zip(sizes, errors, strict=True)))
        for near in dict.fromkeys((-1, 0, tie_error)):
            yield FixedPointFactors(tuple(factor >> shorter for factor in factors), distance - shorter, near)


def is_exact_scale(
    scale: float, max_magnitude: int, exact_factor: Fraction, lowest_result: int, highest_result: int
) -> bool:
    """Test whether float32 products by ``scale`` round to the same integers as exact products by ``exact_factor``.

    All integers of a magnitude up to ``max_magnitude`` are tried. Results are clamped to
    ``lowest_result``..``highest_result`` first."""
    if 2 * max_magnitude > LARGEST_DOMAIN:
        return False
    x = np.arange(-max_magnitude, max_magnitude + 1)
    with np.errstate(over="ignore"):
        real = np.rint(np.clip(x.astype(np.float32) * np.float32(scale), -(2.0**30), 2.0**30))
    expected = np.clip(exact_rounded_sums(((x, exact_factor),)), lowest_result, highest_result)
    return bool(np.array_equal(np.clip(real.astype(np.int64), lowest_result, highest_result), expected))


# ---- Sums, products and scalings of integers with ties to even: sum_even, product_even and requantize_even.
#
# ONNX's quantised arithmetic is legalised to these operators if factors are found that are exact. Each operator is one sum of
# products, ``x1 * factor1 + x2 * factor2``, and one rounding shift, in 32 bits if the sum fits, else in 64 bits.

_ROUNDED: Attributes = {
    "distance": integer("number of bits by which the sum of products is shifted", least=1, most=61),
    "near": integer(
        "largest distance from a tie that counts as a tie; negative: ties are rounded up", least=-1, most=1 << 22
    ),
    **STORED,
}
_FACTOR = {"least": -LARGEST_FACTOR, "most": LARGEST_FACTOR}


def _read_factor_attrs(attrs: Mapping[str, Any]) -> tuple[int, ...]:
    return (attrs["factor"],) if "factor" in attrs else (attrs["factor_a"], attrs["factor_b"])


def _multiplied_operands(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> list[Any]:
    """Return the int64 arrays that are multiplied by the factors: the centred operands, their product, or the clamped
    operand of ``requantize_even``."""
    wide = [np.asarray(x, np.int64) for x in arrays]
    if "bound" in attrs:  # larger numbers saturate; only graphs that microc did not legalise contain them
        return [np.clip(wide[0], -attrs["bound"], attrs["bound"])]
    wide = [x - attrs[f"zero_point_{operand_name}"] for x, operand_name in zip(wide, "ab", strict=True)]
    return wide if "factor_a" in attrs else [wide[0] * wide[1]]


def _evaluate_half_even_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    total = sum(
        x * factor for x, factor in zip(_multiplied_operands(attrs, arrays), _read_factor_attrs(attrs), strict=True)
    )
    level = shift_right_even(np.asarray(total, np.int64), attrs["distance"], attrs["near"], NUMPY)
    clipped = np.clip(level + attrs["zero_point"], attrs["minimum"], attrs["maximum"])
    return (np.asarray(clipped).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _max_operand_magnitudes(attrs: Mapping[str, Any], dtype_names: Sequence[str]) -> list[int]:
    """Return the largest magnitude of each array that is multiplied by a factor (see :func:`_multiplied_operands`)."""
    if "bound" in attrs:
        return [attrs["bound"]]
    sizes = []
    for dtype, operand_name in zip(dtype_names, "ab", strict=True):
        low, high = dtypes.int_range(dtype)
        sizes.append(max(high - attrs[f"zero_point_{operand_name}"], attrs[f"zero_point_{operand_name}"] - low))
    return sizes if "factor_a" in attrs else [sizes[0] * sizes[1]]


def _bound_of_rounded_sum(attrs: Mapping[str, Any], dtype_names: Sequence[str]) -> int:
    """Return an upper bound of the sum of products plus the addend that rounds it."""
    sums = sum(
        size * abs(factor)
        for size, factor in zip(_max_operand_magnitudes(attrs, dtype_names), _read_factor_attrs(attrs), strict=True)
    )
    return int(sums + (1 << (attrs["distance"] - 1)) + max(attrs["near"], 0))


def _build_half_even_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    largest = _bound_of_rounded_sum(attrs, [x.dtype for x in args])
    short = largest <= INT32_MAX
    if "bound" in attrs:
        operands = [ir.clamp(ir.cast("int32", args[0]), -attrs["bound"], attrs["bound"])]
    else:
        operands = [ir.cast("int32", x) for x in args]
        zeros = [attrs[f"zero_point_{operand_name}"] for operand_name in "ab"]
        operands = [x - zero if zero else x for x, zero in zip(operands, zeros, strict=True)]
        operands = operands if "factor_a" in attrs else [operands[0] * operands[1]]
    dtype = "int32" if short else "int64"
    terms = [
        ir.cast(dtype, x) * ir.const(factor, dtype) if factor != 1 else ir.cast(dtype, x)
        for x, factor in zip(operands, _read_factor_attrs(attrs), strict=True)
    ]
    total = terms[0] if len(terms) == 1 else terms[0] + terms[1]
    level = shift_right_even(total, attrs["distance"], attrs["near"], TIR)
    zero, low, high = attrs["zero_point"], attrs["minimum"], attrs["maximum"]
    if largest >> attrs["distance"] > INT32_MAX - abs(zero) - 1:  # the level plus the zero point could overflow int32
        level, zero, low, high = ir.clamp(level, low - zero, high - zero), zero, low, high
    level = ir.cast("int32", level)
    return clamp_to_dtype(level + zero if zero else level, low, high, attrs["out_dtype"])


def _infer_half_even_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if any(not dtypes.is_integer(tensor_type.dtype) for tensor_type in types):
        raise ModelError(
            "operands have an unsupported dtype; got "
            f"{', '.join(tensor_type.dtype for tensor_type in types)}, expected integers"
        )
    try:
        shape = broadcast_shapes(*(tensor_type.shape for tensor_type in types))
    except ValueError:
        raise ModelError(f"shapes do not broadcast; got {types[0].shape} and {types[1].shape}") from None
    return (TensorType(shape, attrs["out_dtype"]),)


def _rounded_sum_overflow_message(checked_node: CheckedNode) -> str:
    """Return a message if an operand can exceed int32, or if the sum of products plus its rounding addend can exceed
    int64; else return an empty string."""
    attrs, dtype_names = checked_node.attrs, [dtype.dtype for dtype in checked_node.types]
    if any(dtypes.nbytes(dtype) > (4 if "bound" in attrs else 2) or dtype == "uint32" for dtype in dtype_names):
        expected = "integers of at most 32 bits other than uint32" if "bound" in attrs else "integers of 8 or 16 bits"
        return f"operands have unsupported dtypes; got {', '.join(dtype_names)}, expected {expected}"
    if max(_max_operand_magnitudes(attrs, dtype_names)) > INT32_MAX:
        return f"an operand or product can overflow int32; got operands of {', '.join(dtype_names)}"
    if not any(_read_factor_attrs(attrs)):
        return "all factors are zero; expected another number for one of them"
    return (
        ""
        if _bound_of_rounded_sum(attrs, dtype_names) < 1 << 62
        else f"sums are too large; got up to {_bound_of_rounded_sum(attrs, dtype_names)}, expected less than 2**62"
    )


# ---------------------------------------------------------------- legalisation

Terms = Callable[[Sequence[Array]], Sequence[tuple[Array, Fraction]]]


def emit_half_even_sum(
    rewrite: Rewrite,
    operands: Sequence[str],
    zero_points: Sequence[int],
    scales: Sequence[Fraction],
    result_attrs: Mapping[str, Attr],
) -> bool:
    """Append ``sum_even`` of two 8-bit values. Return False, and append nothing, if no fixed-point factors are exact
    for all pairs of their values."""
    a, b = (
        _dtype_values_minus_zero_point(rewrite, name, zero) for name, zero in zip(operands, zero_points, strict=True)
    )
    grid = [np.repeat(a, len(b)), np.tile(b, len(a))]
    factors = _find_factors_for_result(tuple(zip(grid, scales, strict=True)), result_attrs)
    if factors is None:
        return False
    attrs = {
        **_zero_point_attrs(zero_points),
        "factor_a": factors.factors[0],
        "factor_b": factors.factors[1],
        **_add_factor_attrs(factors, result_attrs),
    }
    rewrite.emit("sum_even", operands, rewrite.node.outputs, attrs)
    return True


def emit_half_even_product(
    rewrite: Rewrite,
    operands: Sequence[str],
    zero_points: Sequence[int],
    exact_scale: Fraction,
    result_attrs: Mapping[str, Attr],
) -> bool:
    """Append ``product_even`` of two 8-bit values. Return False, and append nothing, if no fixed-point factor is exact
    for all pairs of their values."""
    a, b = (
        _dtype_values_minus_zero_point(rewrite, name, zero) for name, zero in zip(operands, zero_points, strict=True)
    )
    factors = _find_factors_for_result(((np.unique(np.multiply.outer(a, b)), exact_scale),), result_attrs)
    if factors is None:
        return False
    attrs = {**_zero_point_attrs(zero_points), "factor": factors.factors[0], **_add_factor_attrs(factors, result_attrs)}
    rewrite.emit("product_even", operands, rewrite.node.outputs, attrs)
    return True


def emit_requantize_even(
    rewrite: Rewrite, operand_name: str, max_magnitude: int, exact_scale: Fraction, result_attrs: Mapping[str, Attr]
) -> bool:
    """Append ``requantize_even`` of integers of a magnitude up to ``max_magnitude``. Return False, and append nothing,
    if no fixed-point factor is exact for all such integers."""
    if 2 * max_magnitude > LARGEST_DOMAIN:
        return False
    factors = _find_factors_for_result(((np.arange(-max_magnitude, max_magnitude + 1), exact_scale),), result_attrs)
    if factors is None:
        return False
    rewrite.emit(
        "requantize_even",
        (operand_name,),
        rewrite.node.outputs,
        {"bound": max_magnitude, "factor": factors.factors[0], **_add_factor_attrs(factors, result_attrs)},
    )
    return True


def _find_factors_for_result(
    terms: Sequence[tuple[Array, Fraction]], result_attrs: Mapping[str, Attr]
) -> FixedPointFactors | None:
    """Return exact fixed-point factors for sums that are clamped as ``result_attrs`` require, or None if there are
    none."""
    low, high, zero = (int(str(result_attrs[name])) for name in ("minimum", "maximum", "zero_point"))
    return find_exact_factors(terms, low - zero, high - zero)


def _dtype_values_minus_zero_point(rewrite: Rewrite, value_name: str, zero_point: int) -> Array:
    """Return an array of all values of the dtype of ``value_name``, minus ``zero_point``."""
    low, high = dtypes.int_range(rewrite.type(value_name).dtype)
    return np.arange(low - zero_point, high - zero_point + 1)


def _zero_point_attrs(zero_points: Sequence[int]) -> dict[str, Attr]:
    return {"zero_point_a": zero_points[0], "zero_point_b": zero_points[1]}


def _add_factor_attrs(factors: FixedPointFactors, result_attrs: Mapping[str, Attr]) -> dict[str, Attr]:
    return {"distance": factors.right_shift, "near": factors.tie_margin, **result_attrs}


# ---- Sums of scaled bytes by two products and one shift: sum_floor takes the place of qadd and sum_even.
#
# A scaled sum of two bytes is a table E of 65,536 results. It equals
#
#     clamp((a * Fa + b * Fb + C) >> S)
#
# if and only if ``E(a, b) << S <= a * Fa + b * Fb + C < (E(a, b) + 1) << S`` for all pairs, where results at an end of the clamp
# need one of both bounds. For given factors that is an interval of C. TFLite shifts both operands left, scales each of them,
# adds them, and scales the sum, by a rounded high product each time. Its rounding errors are about 2**-20 of a result, so that
# some integer in the interval nearly always exists. C includes the zero points. Exact ties that round half away from zero are
# met by factors that are a little too large; both signs of a sum then need the same C, which not all zero points permit.

SUM_FACTOR_STEPS = (0, 1, -1, 2, -2)
"""Distances from the nearest integer of the factors that are tried."""
SUM_SHIFT_COUNT = 3
"""Number of shifts that are tried, the largest first. With :data:`SUM_FACTOR_STEPS` 75 tables at most, 12 ms of numpy."""


@frozen
class FloorSum:
    """Constants of ``sum_floor``: factors Fa and Fb, addend C, and shift S."""

    factors: tuple[int, int]
    addend: int
    shift: int


def find_floor_sum(
    results: Array, operands: tuple[Array, Array], scales: tuple[float, float], minimum: int, maximum: int
) -> FloorSum | None:
    """Find the constants with which ``sum_floor`` has the given results for all pairs of operands; None if there are none.

    ``results``: int64 table (len(a), len(b)), clamped to ``minimum``..``maximum``. ``scales``: real factors of a and b. All
    products and sums fit int32."""
    a, b = operands[0][:, None], operands[1][None, :]
    sizes = [int(np.abs(x).max()) for x in operands]
    largest = sum(size * abs(scale) for size, scale in zip(sizes, scales, strict=True)) + max(-minimum, maximum) + 1
    first = min(30, 30 - math.ceil(math.log2(largest)))
    for shift in range(first, max(first - SUM_SHIFT_COUNT, 0), -1):
        starts, ends = results << shift, (results + 1) << shift
        for steps in sorted(product(SUM_FACTOR_STEPS, repeat=2), key=lambda pair: abs(pair[0]) + abs(pair[1])):
            fa, fb = (round(scale * (1 << shift)) + step for scale, step in zip(scales, steps, strict=True))
            sums = a * fa + b * fb
            low = int((starts - sums).max(initial=-INT32_MAX, where=results > minimum))
            high = int((ends - 1 - sums).min(initial=INT32_MAX, where=results < maximum))
            addend = (low + high) >> 1
            if low <= high and sizes[0] * abs(fa) + sizes[1] * abs(fb) + abs(addend) <= INT32_MAX:
                return FloorSum((fa, fb), addend, shift)
    return None


def use_floor_sums(graph: Graph, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Replace the sums of two 8-bit operands in a group by ``sum_floor``, where this is exact. Return the nodes."""
    return tuple(_floor_sum_of(graph, node) or node for node in nodes)


def _floor_sum_of(graph: Graph, node: Node) -> Node | None:
    """Return the ``sum_floor`` that equals a ``qadd`` or ``sum_even``; None if there is none."""
    if node.op not in ("qadd", "sum_even"):
        return None
    names = tuple(graph.types[name].dtype for name in (*node.inputs, *node.outputs))
    if any(dtypes.nbytes(name) > 1 for name in names):
        return None
    found = _find_floor_sum_of_node(node.op, tuple(node.attrs.items()), names[:2])
    if found is None:
        return None
    (factor_a, factor_b), stored = (
        found.factors,
        {name: node.attrs[name] for name in ("minimum", "maximum", "out_dtype")},
    )
    attrs = {"factor_a": factor_a, "factor_b": factor_b, "addend": found.addend, "shift": found.shift, **stored}
    return replace(node, op="sum_floor", attrs=attrs)


@lru_cache(maxsize=256)
def _find_floor_sum_of_node(
    op: str, attr_items: tuple[tuple[str, Any], ...], dtype_names: tuple[str, ...]
) -> FloorSum | None:
    """Find the constants that make ``sum_floor`` equal to a node of the operator ``op``; memoised, because fitting a network to
    a board lowers the same layers many times."""
    attrs = dict(attr_items)
    a, b = (np.arange(low, high + 1) for low, high in (dtypes.int_range(name) for name in dtype_names))
    if op == "sum_even":
        scales = tuple(attrs[f"factor_{which}"] / 2.0 ** attrs["distance"] for which in "ab")
    else:
        total = attrs["multiplier"] * 2.0 ** (attrs["shift"] + attrs["left_shift"] - 62)
        signs = (1, -1 if attrs["negate_b"] else 1)
        scales = tuple(
            sign * total * attrs[f"multiplier_{which}"] * 2.0 ** attrs[f"shift_{which}"]
            for sign, which in zip(signs, "ab", strict=True)
        )
    grid = [x.astype(dtypes.to_numpy(name)) for x, name in zip((a, b), dtype_names, strict=True)]
    reference = registry.get(op).reference
    assert reference is not None
    results = np.asarray(reference(attrs, (grid[0][:, None], grid[1][None, :]))[0], np.int64)
    return find_floor_sum(results, (a, b), (scales[0], scales[1]), attrs["minimum"], attrs["maximum"])


def _build_floor_sum_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    a, b = (ir.cast("int32", x) * attrs[f"factor_{which}"] for x, which in zip(args, "ab", strict=True))
    return clamp_to_dtype(
        (a + (b + attrs["addend"])) >> attrs["shift"], attrs["minimum"], attrs["maximum"], attrs["out_dtype"]
    )


def _evaluate_floor_sum_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    a, b = (np.asarray(x, np.int64) * attrs[f"factor_{which}"] for x, which in zip(arrays, "ab", strict=True))
    result = np.clip((a + b + attrs["addend"]) >> attrs["shift"], attrs["minimum"], attrs["maximum"])
    return (np.asarray(result).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _floor_sum_overflow_message(checked_node: CheckedNode) -> str:
    """Return a message if the operands are no bytes, or if a sum of their products can exceed int32; else an empty string."""
    dtype_names, attrs = [tensor_type.dtype for tensor_type in checked_node.types], checked_node.attrs
    if any(dtypes.nbytes(name) > 1 for name in dtype_names):
        return f"operands have unsupported dtypes; got {', '.join(dtype_names)}, expected integers of 8 bits"
    ends = (dtypes.int_range(name) for name in dtype_names)
    total = abs(attrs["addend"]) + sum(
        max(-low, high) * abs(attrs[f"factor_{which}"]) for (low, high), which in zip(ends, "ab", strict=True)
    )
    return "" if total <= INT32_MAX else f"sums can overflow int32; got up to {total}, expected at most {INT32_MAX}"


# ---------------------------------------------------------------- cases


def _make_floor_sum_test_cases() -> Iterable[Case]:
    for dtype, (fa, fb), addend, shift in (
        ("int8", (3, 5), -7, 1),
        ("int8", (-4194304, 4194303), 1 << 29, 23),
        ("uint8", (1 << 21, -77), -(1 << 30), 22),
        ("int8", (0, 1), 0, 1),
    ):
        low, high = dtypes.int_range(dtype)
        edges = np.array([low, low + 1, 0, 1, 5, 100, high - 1, high], dtypes.to_numpy(dtype))
        arrays = (np.repeat(edges[:, None], 8, 1), np.broadcast_to(edges, (8, 8)).copy())
        attrs: dict[str, Any] = {"factor_a": fa, "factor_b": fb, "addend": addend, "shift": shift}
        attrs |= {"minimum": low, "maximum": high, "out_dtype": dtype}
        yield Case(attrs, (TensorType((8, 8), dtype),) * 2, arrays=arrays, name=f"{dtype} {fa} {fb} {shift}")
        types = (TensorType((2, 3, 4), dtype), TensorType((4,), dtype))
        yield Case(attrs, types, (1,), name=f"{dtype} {fa} {fb} {shift} broadcast")
        types = (TensorType((2, 1), dtype), TensorType((3, 1, 4), dtype))
        yield Case(attrs, types, name=f"{dtype} {fa} {fb} {shift} both ways")


def _make_half_even_test_cases(op_name: str) -> Iterable[Case]:
    for near in (-1, 0, 200):
        for dtype, (za, zb, zo) in (("int8", (3, -128, 7)), ("uint8", (128, 0, 255)), ("int8", (0, 0, -128))):
            low, high = dtypes.int_range(dtype)
            result = {"zero_point": zo, "minimum": low, "maximum": high, "out_dtype": dtype, "near": near}
            for factor, distance in ((1, 1), (3, 4), (715827883, 33), (2147483647, 31), (1518500250, 45)):
                attrs: dict[str, Any] = {**result, "distance": distance}
                title = f"{dtype} {near} {factor} {distance}"
                if op_name == "requantize_even":
                    x = np.array(
                        [0, 1, -1, 2, -2, 3, 5, -5, 6, 7, 127, -128, 9999, -9999, 1 << 19, -(1 << 19)], np.int32
                    )
                    attrs |= {"bound": 1 << 19, "factor": factor}
                    yield Case(attrs, (TensorType((16,), "int32"),), arrays=(x,), name=title)
                    continue
                grid = np.array(
                    [low, low + 1, low + 3, 0, 1, za if za >= low else 0, high - 1, high, 5], dtypes.to_numpy(dtype)
                )
                arrays = (np.repeat(grid[:, None], 9, 1), np.broadcast_to(grid, (9, 9)).copy())
                attrs |= _zero_point_attrs((za, zb))
                attrs |= (
                    {"factor_a": factor, "factor_b": -factor // 2 or 1} if op_name == "sum_even" else {"factor": factor}
                )
                yield Case(attrs, (TensorType((9, 9), dtype),) * 2, arrays=arrays, name=title)
        if op_name != "requantize_even":
            types = (TensorType((2, 3, 4), dtype), TensorType((4,), dtype))
            yield Case(attrs, types, (1,), name=f"{dtype} {near} broadcast")
            types = (TensorType((2, 1), dtype), TensorType((3, 1, 4), dtype))
            yield Case(attrs, types, name=f"{dtype} {near} both ways")


_ZEROS: Attributes = {"zero_point_a": integer("of a"), "zero_point_b": integer("of b")}
_ZERO_POINTS = (make_zero_point_range_check("zero_point_a", 0), make_zero_point_range_check("zero_point_b", 1))

_SUM_FACTOR = {"least": -(1 << 23), "most": 1 << 23}

OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "sum_floor",
        infer=_infer_half_even_types,
        reference=_evaluate_floor_sum_reference,
        scalar=_build_floor_sum_expr,
        cases=_make_floor_sum_test_cases,
        sound=(stored_range_error_message, _floor_sum_overflow_message),
        attrs={
            "factor_a": integer("of a", **_SUM_FACTOR),
            "factor_b": integer("of b", **_SUM_FACTOR),
            "addend": integer("added to both products", least=-INT32_MAX, most=INT32_MAX),
            "shift": integer("bits by which the sum is shifted to the right", least=1, most=30),
            **{name: STORED[name] for name in ("minimum", "maximum", "out_dtype")},
        },
        operand_names=("a", "b"),
        formula="clamp(floor((a * {factor_a} + b * {factor_b} + {addend}) / 2**{shift}), {minimum}, {maximum})",
    ),
    OpDef(
        "sum_even",
        infer=_infer_half_even_types,
        reference=_evaluate_half_even_reference,
        scalar=_build_half_even_scalar_expr,
        cases=lambda: _make_half_even_test_cases("sum_even"),
        sound=(stored_range_error_message, *_ZERO_POINTS, _rounded_sum_overflow_message),
        attrs={
            **_ZEROS,
            "factor_a": integer("of a", **_FACTOR),
            "factor_b": integer("of b", **_FACTOR),
            **_ROUNDED,
        },
        operand_names=("a", "b"),
        formula="clamp(rint(((a - {zero_point_a}) * {factor_a} + (b - {zero_point_b}) * {factor_b}) / 2**{distance}) + "
        "{zero_point}, {minimum}, {maximum})",
    ),
    OpDef(
        "product_even",
        infer=_infer_half_even_types,
        reference=_evaluate_half_even_reference,
        scalar=_build_half_even_scalar_expr,
        cases=lambda: _make_half_even_test_cases("product_even"),
        sound=(stored_range_error_message, *_ZERO_POINTS, _rounded_sum_overflow_message),
        attrs={**_ZEROS, "factor": integer("of the product", **_FACTOR), **_ROUNDED},
        operand_names=("a", "b"),
        formula="clamp(rint((a - {zero_point_a}) * (b - {zero_point_b}) * {factor} / 2**{distance}) + {zero_point}, {minimum}, "
        "{maximum})",
    ),
    OpDef(
        "requantize_even",
        infer=_infer_half_even_types,
        reference=_evaluate_half_even_reference,
        scalar=_build_half_even_scalar_expr,
        cases=lambda: _make_half_even_test_cases("requantize_even"),
        sound=(stored_range_error_message, _rounded_sum_overflow_message),
        attrs={
            "bound": integer("the largest magnitude of x", least=1, most=INT32_MAX),
            "factor": integer("of x", **_FACTOR),
            **_ROUNDED,
        },
        operand_names=("x",),
        formula="clamp(rint(x * {factor} / 2**{distance}) + {zero_point}, {minimum}, {maximum})",
    ),
)
