# SPDX-License-Identifier: Apache-2.0
"""Operators ``lookup``, a function of 8-bit numbers as a table of 256 results, and ``lookup16``, a function of int16
interpolated in a table.

The table of ``lookup`` may contain several functions one after the other. A third operand then has, for each element,
the index at which the table of its function begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from microc import numerics, te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.constants import CheckedNode, Constants, NumberUse, OperandBounds
from microc.ops.elementwise.elementwise import broadcast_shape
from microc.ops.registry import Case, OpDef
from microc.tir import ir
from microc.tir.ir import Expr


def _infer_lookup_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, table, *first = types
    if x.dtype not in ("int8", "uint8"):
        raise ModelError(f"lookup: the data have an unsupported dtype; got {x.dtype}, expected int8 or uint8")
    if len(table.shape) != 1 or table.size % 256 or not table.size or (table.size > 256 and not first):
        raise ModelError(f"lookup: the table needs 256 entries for each function; got shape {table.shape}")
    if any(tensor_type.dtype not in ("int16", "int32") for tensor_type in first):
        raise ModelError(
            f"lookup: functions' first indices have a bad dtype; got {first[0].dtype}, expected int16 or int32"
        )
    return (TensorType(broadcast_shape("lookup", (x, *first)), table.dtype),)


def _evaluate_lookup_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table, *first = arrays
    return (table[sum(first, x.astype(np.int32) - np.iinfo(x.dtype).min)],)


def _build_lookup_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Any]) -> Expr:
    x: Expr = args[0]
    table: te.Tensor = args[1]
    low, _ = dtypes.int_range(x.dtype)
    place = ir.cast("int32", x) - low
    return table[place + ir.cast("int32", args[2]) if len(args) > 2 else place]


def _lookup_operand_bounds(checked_node: CheckedNode) -> Constants:
    """Return bounds of the operand that contains the first table index of each function.

    All 256 entries of each function must be in the table."""
    return {2: OperandBounds(NumberUse.OFFSET, 0, checked_node.types[1].size - 256)}


def _make_lookup_test_cases() -> Iterable[Case]:
    every = np.arange(-128, 128)
    for dtype, result in (("int8", "int8"), ("uint8", "uint8"), ("int8", "int16"), ("uint8", "int8")):
        low, high = dtypes.int_range(result)
        table = np.linspace(high, low, 256).astype(dtypes.to_numpy(result))
        x = every.reshape(4, 64).astype(dtypes.to_numpy(dtype))
        types = (TensorType(x.shape, dtype), TensorType((256,), result))
        yield Case({}, types, consts=(1,), arrays=(x, table), name=f"{dtype}_to_{result}")
    first, channels = TensorType((3,), "int16"), np.arange(768).astype(np.int8)
    x = np.arange(96, dtype=np.uint8).reshape(32, 3)
    operand_types = (TensorType(x.shape, "uint8"), TensorType((768,), "int8"), first)
    yield Case(
        {}, operand_types, consts=(1, 2), arrays=(x, channels, np.array([0, 256, 512], np.int16)), name="by channel"
    )
    yield Case(
        {},
        (TensorType((1,), "int8"), TensorType((256,), "int8")),
        consts=(1,),
        arrays=(np.array([-128], np.int8), np.arange(256).astype(np.int8)),
        name="one element, lowest",
    )


# ---- ``lookup16``: a function of one int16 number, interpolated in a table of 513 points.
#
# The points are 128 numbers apart. Each is corrected by half of the interpolation error in the middle of the segment behind it.
# Source: TFLite ``common.h`` (LUTPopulateInt16, LUTLookup).

POINTS = 513
"""Number of points of a table: the starts of 512 segments of 128 inputs each, and the end of the last segment."""


def compute_interpolation_table(
    function: Callable[[Any], Any], in_scale: Any, in_zero_point: int, out_scale: Any
) -> Array:
    """Return int16 values of ``function`` at POINTS points spaced evenly over all int16 inputs.

    Inputs have scale ``in_scale`` and zero point ``in_zero_point``; results have scale ``out_scale``. All arithmetic
    has the dtype of ``in_scale``: float32 or float64, as in the two runtimes of TFLite. Where the function is infinite,
    TFLite's correction is NaN, and C does not define the conversion of NaN to int16; the point is then the limit of
    int16 that the function exceeds."""
    one = type(in_scale)
    low, high = (in_scale * one(limit - in_zero_point) for limit in (-32768, 32767))
    inverse = one(65536) / (out_scale * one(32767) - out_scale * one(-32768))
    step = (high - low) / one(512)
    index = np.arange(512).astype(one)
    with np.errstate(over="ignore", invalid="ignore"):
        value = numerics.round_half_away(function(low + index * step) * inverse)
        following = function(low + (index + one(1)) * step) * inverse
        middle = numerics.round_half_away(function(low + index * step + step / one(2)) * inverse)
        error = numerics.round_half_away((following + value) / one(2)) - middle
        points = value - numerics.round_half_away(error / one(2))
        last = numerics.round_half_away(function(np.asarray(high)) * inverse)
    points = np.append(np.where(np.isnan(points), value, points), last)
    clipped: Array = np.clip(points, -32768, 32767)
    return clipped.astype(np.int16)


def interpolate_table(read_table: Callable[[Any], Any], x: Any) -> Any:
    """Interpolate a table of POINTS points linearly at an int16 ``x``. ``read_table`` returns the point at an index.

    The upper nine bits of ``x`` select the segment, the lower seven bits the position within the segment."""
    index = (x + 32768) >> 7
    base = read_table(index)
    return base + (((read_table(index + 1) - base) * (x & 0x7F) + 64) >> 7)


# ---- Functions whose int16 form TFLite's kernels interpolate. Arguments and results are float32; ``lowest_value`` is the least
# real number of the output. Functions of the C library are rounded from float64; the rounding to int16 hides the difference.
#
# Sources: TFLite ``exp.cc``, ``elementwise.cc`` (LOG), ``reference/gelu.h``.

_ERFC = np.vectorize(math.erfc, otypes=[np.float64])
_ROOT_OF_TWO_BY_PI = np.float32(math.sqrt(2 / math.pi))


def wrap_float64_function(float64_function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function of float32 arrays that computes ``float64_function`` in float64 and rounds the result once."""
    return lambda x: np.asarray(float64_function(x.astype(np.float64)).astype(np.float32))


def _exp_in_float32(x: Array, lowest_value: Any) -> Array:
    return wrap_float64_function(np.exp)(x)


def _gelu_in_float32(x: Array, lowest_value: Any) -> Array:
    """Return x / 2 erfc(-x / sqrt 2) in float32. For large negative x, 1 + erf(...) would lose all digits by
    cancellation."""
    scaled = x * np.float32(-math.sqrt(0.5))
    return np.asarray(np.float32(0.5) * x * wrap_float64_function(_ERFC)(scaled))


def _gelu_by_tanh_in_float32(x: Array, lowest_value: Any) -> Array:
    """Return the approximation x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))), in float32."""
    inner = _ROOT_OF_TWO_BY_PI * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + wrap_float64_function(np.tanh)(inner)))


def _log_or_lowest_value(x: Array, lowest_value: Any) -> Array:
    """Return the logarithm of ``x``, or ``lowest_value`` where ``x`` is zero or negative."""
    return np.where(x > 0, wrap_float64_function(np.log)(np.where(x > 0, x, np.float32(1))), lowest_value)


FUNCTIONS: Mapping[str, Callable[[Array, Any], Array]] = MappingProxyType(
    {
        "exp": _exp_in_float32,
        "log": _log_or_lowest_value,
        "gelu": _gelu_in_float32,
        "gelu_by_tanh": _gelu_by_tanh_in_float32,
    }
)
"""Functions of float32 arrays that TFLite interpolates, by name. Their second argument is the least real number of the
output."""


def int16_function_table(function_name: str, in_scale: float, out_scale: float) -> Array:
    """Return TFLite's int16 interpolation table of the function ``function_name``, a key of FUNCTIONS.

    ``in_scale`` and ``out_scale``: scales of input and output, whose zero points are 0."""
    least = np.float32(-32768) * np.float32(out_scale)
    return compute_interpolation_table(
        lambda x: FUNCTIONS[function_name](x, least), np.float32(in_scale), 0, np.float32(out_scale)
    )


# ---- The operator.


def _infer_lookup16_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, table = types
    if x.dtype != "int16" or table.shape != (POINTS,) or table.dtype != "int16":
        raise ModelError(
            f"lookup16: data or table have a wrong type; got {x.dtype} and {table.dtype} {table.shape}, expected int16 "
            f"and int16 ({POINTS},)"
        )
    return (TensorType(x.shape, "int16"),)


def _evaluate_lookup16_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table = (array.astype(np.int64) for array in arrays)
    return (interpolate_table(lambda index: table[index], x).astype(np.int16),)


def _build_lookup16_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Any]) -> Expr:
    """Build the interpolation. Its result is between two points of the table, so it fits int16."""
    table = args[1]
    return ir.cast("int16", interpolate_table(lambda index: ir.cast("int32", table[index]), ir.cast("int32", args[0])))


def _make_lookup16_test_cases() -> Iterable[Case]:
    x = np.append(np.linspace(-32768, 32767, 98), [0, 1, -1]).round().astype(np.int16)
    for name, scale, out_scale in (
        ("exp", 1 / 4096, 1 / 8),
        ("log", 1e-3, 3e-4),
        ("gelu", 1 / 4096, 1 / 4096),
        ("gelu_by_tanh", 1e-4, 1e-4),
    ):
        types = (TensorType(x.shape, "int16"), TensorType((POINTS,), "int16"))
        yield Case({}, types, consts=(1,), arrays=(x, int16_function_table(name, scale, out_scale)), name=name)


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "lookup",
        infer=_infer_lookup_types,
        reference=_evaluate_lookup_reference,
        scalar=_build_lookup_scalar_expr,
        cases=_make_lookup_test_cases,
        constants=_lookup_operand_bounds,
        operand_names=("x", "table"),
        whole=(1,),
    ),
    OpDef(
        "lookup16",
        infer=_infer_lookup16_types,
        reference=_evaluate_lookup16_reference,
        scalar=_build_lookup16_scalar_expr,
        cases=_make_lookup16_test_cases,
        constants={1: OperandBounds(NumberUse.POINT, -32768, 32767)},
        operand_names=("x", "table"),
        whole=(1,),
        repeats=True,
    ),
)
