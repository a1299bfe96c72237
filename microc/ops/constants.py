# SPDX-License-Identifier: Apache-2.0
"""Bounds of the constants that generated loops rely on: indices, offsets, shifts, counts and factors. They are declared
as data.

``OpDef.constants`` bounds the numbers of single operands. ``OpDef.sound`` checks several numbers together, for example
that the walk of a tree stays within its tables, or that sums fit their dtype.
:func:`microc.ops.registry.node_constant_error_message` applies both. The reader of graph files and the compiler call
this function, so that no number of a model can make the generated C access other memory, loop forever or overflow,
whatever the model's format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Node, TensorType
from microc.numerics import INT32_MAX, INT32_MIN

_LARGEST = {"int32": float(INT32_MAX), "int64": float(1 << 62)}
"""Largest permitted magnitude of a sum, by dtype. Sums in int64 are bounded by arithmetic in float64, so their limit
leaves one bit for its rounding."""
_MAX_STEP = 255
"""Largest magnitude of a result of ``dynamic_quantize``: the difference of two int8 numbers."""


class NumberUse(StrEnum):
    """Use of a constant operand's numbers by the generated code, in words for error messages."""

    INDEX = "an index"
    OFFSET = "an offset"
    SHIFT = "a shift"
    COUNT = "a count"
    FACTOR = "a factor"
    TERM = "a term of a sum"
    POINT = "a point of a table"


@frozen
class CheckedNode:
    """A node as the checks of its constants receive it: complete attributes, and types and data of the operands that
    are present.

    ``types``, ``data`` and ``producers`` have one entry for each operand. ``data``: the operand's numbers if it is
    constant, else None. ``producers``: the node that computes the operand, or None. ``results``: types of the node's
    outputs."""

    attrs: Mapping[str, Any]
    types: tuple[TensorType, ...]
    data: tuple[Array | None, ...]
    producers: tuple[Node | None, ...] = ()
    results: tuple[TensorType, ...] = ()

    @property
    def quantised(self) -> bool:
        """True for a quantised operator that is not yet legalised. The operators that replace it are checked in its
        place."""
        return all(tensor_type.is_quantised for tensor_type in (self.types[0], *self.results))


Bound = int | Callable[[CheckedNode], int]
"""A bound of an operand's numbers: an integer, or a function that computes it from the node's attributes and types."""


@frozen
class OperandBounds:
    """Bounds of the numbers of one operand: generated code is safe if every number is from ``least`` to ``most``.

    ``permitted_producers``: operators that may compute the operand at run time, because their results stay within the
    bounds. None: any operator may compute it, because the generated loops clamp the numbers. Empty: the operand must be
    constant."""

    use: NumberUse
    least: Bound
    most: Bound
    permitted_producers: tuple[str, ...] | None = ()

    def find_fault(self, checked_node: CheckedNode, position: int, name: str) -> str:
        """Return the reason why the operand at ``position``, called ``name``, violates its bounds, or an empty
        string."""
        data = checked_node.data[position]
        if data is None:
            maker = checked_node.producers[position] if position < len(checked_node.producers) else None
            if self.permitted_producers is None or (maker is not None and maker.op in self.permitted_producers):
                return ""
            return f"{name} is {self.use}; it is computed when the network runs, expected a constant"
        if not data.size:
            return ""
        least, most = (end(checked_node) if callable(end) else end for end in (self.least, self.most))
        if data.dtype.kind not in "iub":
            return f"{name} is {self.use}; got {data.dtype}, expected integers"
        low, high = int(data.min()), int(data.max())
        if least <= low and high <= most:
            return ""
        return f"{name} is {self.use}; got {low if low < least else high}, expected {least}..{most}"


Constants = Mapping[int, OperandBounds]
"""Bounds of an operator's operands, by the operand's position."""
NodeCheck = Callable[[CheckedNode], str]
"""Check of several numbers of a node together. It returns the reason why they are invalid, or an empty string."""


def constant_error_message(
    declared: Constants | Callable[[CheckedNode], Constants],
    node_checks: Iterable[NodeCheck],
    checked_node: CheckedNode,
    names: Sequence[str],
) -> str:
    """Return the reason why the constant operands of a node are invalid, or an empty string if all are valid.

    ``declared``: bounds of operands by position, or a function that returns them. ``node_checks``: checks of several
    operands together. ``names``: names of the operands for the message."""
    bounds = declared(checked_node) if callable(declared) else declared
    for position, constant in bounds.items():
        if position < len(checked_node.types):
            name = names[position] if position < len(names) else f"operand {position}"
            if reason := constant.find_fault(checked_node, position, name):
                return reason
    for check in node_checks:
        if reason := check(checked_node):
            return reason
    return ""


# ---------------------------------------------------------------- bounds that operators share

INT32: OperandBounds = OperandBounds(NumberUse.TERM, INT32_MIN, INT32_MAX, None)
"""Bounds of a term of a sum: any int32, constant or computed at run time."""
BOUNDED = OperandBounds(NumberUse.INDEX, -(1 << 63), (1 << 63) - 1, None)
"""Bounds of an index, constant or computed at run time, that the generated loops clamp; any int64 is valid."""
MANTISSA = OperandBounds(NumberUse.FACTOR, 0, INT32_MAX)
"""Bounds of the fixed-point mantissa of a scale."""
POSITIVE = OperandBounds(NumberUse.POINT, 0, INT32_MAX)
"""Bounds of a point of a table: a nonnegative int32."""


def stored_range_error_message(checked_node: CheckedNode) -> str:
    """Return the reason why the clamp bounds or the zero point of a scaled result do not fit its dtype, or an empty
    string."""
    attrs = checked_node.attrs
    dtype = attrs.get("out_dtype") or checked_node.types[0].dtype
    if not dtypes.is_integer(dtype):
        return f"out_dtype must be an integer dtype; got {dtype!r}"
    low, high = dtypes.int_range(dtype)
    for name in ("minimum", "maximum", "zero_point"):
        if name in attrs and not low <= attrs[name] <= high:
            return f"{name} does not fit {dtype}; got {attrs[name]}, expected {low}..{high}"
    if attrs.get("minimum", low) > attrs.get("maximum", high):
        return f"minimum exceeds maximum; got minimum={attrs['minimum']} and maximum={attrs['maximum']}"
    zero = attrs.get("zero_point", 0)
    if attrs.get("minimum", low) - zero > INT32_MAX or attrs.get("maximum", high) - zero < INT32_MIN:
        return f"zero_point={zero} is more than {INT32_MAX} from minimum..maximum"  # the difference is clamped in int32
    return ""


def attribute_dtype_error_message(attribute_name: str, attribute_value: float, dtype: str) -> str:
    """Return the reason why ``dtype`` cannot represent the value of the attribute ``attribute_name``, or an empty
    string."""
    if not dtypes.is_integer(dtype):
        return (
            f"{attribute_name} must be a {dtype}; got {attribute_value}"
            if dtype == "bool" and attribute_value not in (0, 1)
            else ""
        )
    low, high = dtypes.int_range(dtype)
    return (
        ""
        if low <= attribute_value <= high and attribute_value == int(attribute_value)
        else f"{attribute_name} does not fit {dtype}; got {attribute_value}, expected an integer of {low}..{high}"
    )


def make_zero_point_range_check(zero_point_attribute: str, position: int) -> NodeCheck:
    """Return a check that the attribute ``zero_point_attribute`` is within the dtype of the operand at ``position``."""

    def check_zero_point(checked_node: CheckedNode) -> str:
        dtype = checked_node.types[position].dtype
        low, high = dtypes.int_range(dtype) if dtypes.is_integer(dtype) else (INT32_MIN, INT32_MAX)
        value = checked_node.attrs[zero_point_attribute]
        return (
            ""
            if low <= value <= high
            else f"{zero_point_attribute} does not fit {dtype}; got {value}, expected {low}..{high}"
        )

    return check_zero_point


def operand_range_minus_zero_point(
    checked_node: CheckedNode, position: int, zero_point_attribute: str
) -> tuple[int, int]:
    """Return ``(least, largest)``: the range of the operand at ``position`` after subtraction of its zero point.

    The range is that of the operand's dtype. ``zero_point_attribute``: name of the attribute that is the zero point."""
    low, high = dtypes.int_range(checked_node.types[position].dtype)
    return low - checked_node.attrs[zero_point_attribute], high - checked_node.attrs[zero_point_attribute]


def product_overflow_message(checked_node: CheckedNode, zero_point_attributes: tuple[str, str]) -> str:
    """Return an error message if a product of the first two operands can overflow int32, else an empty string.

    The zero point of each operand is subtracted before the multiplication. ``zero_point_attributes``: names of the two
    attributes that are the zero points."""
    if not all(dtypes.is_integer(tensor_type.dtype) for tensor_type in checked_node.types[:2]):
        return f"the factors must be integers; got {checked_node.types[0].dtype} and {checked_node.types[1].dtype}"
    (a, b), (c, d) = (operand_range_minus_zero_point(checked_node, k, zero_point_attributes[k]) for k in range(2))
    largest = max(abs(x * y) for x in (a, b) for y in (c, d))
    return (
        ""
        if largest <= INT32_MAX
        else f"products can overflow int32; got up to {largest}, expected at most {INT32_MAX}"
    )


def window_sum_overflow_message(
    checked_node: CheckedNode, element_count: int, pad_value: int = 0, offset: int = 0, rounding_addend: int = 0
) -> str:
    """Return an error message if the sum of a window of the first operand can overflow int32, else an empty string.

    The sum has ``element_count`` elements; elements in the padding have the value ``pad_value``. ``offset`` and
    ``rounding_addend`` (half of the divisor) are added to the sum."""
    tensor_type = checked_node.types[0]
    if checked_node.quantised or not dtypes.is_integer(tensor_type.dtype):
        return ""
    low, high = dtypes.int_range(tensor_type.dtype)
    if not low <= pad_value <= high:
        return f"pad_value does not fit {tensor_type.dtype}; got {pad_value}, expected {low}..{high}"
    largest = max(abs(offset + element_count * low), abs(offset + element_count * high), abs(offset)) + rounding_addend
    return "" if largest <= INT32_MAX else f"sums can overflow int32; got up to {largest}, expected at most {INT32_MAX}"


def product_sum_overflow_message(checked_node: CheckedNode, products_per_sum: int, pad_value: float = 0) -> str:
    """Return an error message if sums of products of data and weights can overflow their dtype, else an empty string.

    ``pad_value``: value of the elements in the padding of the data."""
    data, weight = checked_node.types[:2]
    out = checked_node.attrs.get("out_dtype") or data.dtype
    if not dtypes.is_integer(data.dtype) or dtypes.is_float(out) or checked_node.quantised:
        return ""
    if out not in _LARGEST:
        return f"out_dtype cannot hold sums of {data.dtype}; got {out}, expected int32 or int64"
    low, high = dtypes.int_range(data.dtype)
    if not low <= pad_value <= high or pad_value != int(pad_value):
        return f"pad_value does not fit {data.dtype}; got {pad_value}, expected an integer of {low}..{high}"
    if not dtypes.is_integer(weight.dtype):
        return f"the weights of {data.dtype} data must be integers; got {weight.dtype}"
    if len(checked_node.types) > 2 and not dtypes.is_integer(checked_node.types[2].dtype):
        return f"the bias of integer sums must be an integer; got {checked_node.types[2].dtype}"
    largest = largest_partial_sum(checked_node, products_per_sum)
    return (
        ""
        if largest <= _LARGEST[out]
        else f"sums can overflow {out}; got up to {largest:.0f}, expected at most {_LARGEST[out]}"
    )


def ends_of_products(weights: Array, data_range: tuple[int, int]) -> tuple[Array, Array]:
    """Return the least and the largest sum of products of integer weights (channels, ...) and any data of the range ``(least,
    largest)``, for each channel, as float64."""
    low, high = data_range
    rows = weights.reshape(weights.shape[0], -1).astype(np.float64)
    return np.minimum(rows * low, rows * high).sum(axis=1), np.maximum(rows * low, rows * high).sum(axis=1)


def _bound_data(checked_node: CheckedNode) -> tuple[int, int]:
    """Return ``(least, largest)``: the range of the first operand's dtype, or of the results of ``dynamic_quantize``."""
    low, high = dtypes.int_range(checked_node.types[0].dtype)
    maker = checked_node.producers[0] if checked_node.producers else None
    if maker is None or maker.op != "dynamic_quantize":
        return low, high
    return max(low, -_MAX_STEP), min(high, _MAX_STEP)


def largest_partial_sum(checked_node: CheckedNode, products_per_sum: int) -> float:
    """Return the largest magnitude that any partial sum of bias and products of data and weights (channels, ...) can
    have.

    The data may be any values of their range. As every integer dtype contains zero, each partial sum is at least the
    bias plus all negative products, and at most the bias plus all positive products. A bias that is computed at run
    time is bounded by its dtype, or by the ``clip`` node that computes it."""
    data_range, weights = _bound_data(checked_node), checked_node.data[1]
    if weights is None:
        ends = [x * y for x in data_range for y in dtypes.int_range(checked_node.types[1].dtype)]
        above, below = np.array([products_per_sum * float(max(ends))]), np.array([products_per_sum * float(min(ends))])
    else:
        below, above = ends_of_products(weights, data_range)
    if len(checked_node.types) > 2:
        bias, maker = checked_node.data[2], checked_node.producers[2] if len(checked_node.producers) > 2 else None
        ends_of_bias: tuple[Any, Any] = dtypes.int_range(checked_node.types[2].dtype)
        if bias is not None:
            ends_of_bias = (bias.reshape(-1).astype(np.float64),) * 2
        elif maker is not None and maker.op == "clip":
            ends_of_bias = (maker.attrs["minimum"], maker.attrs["maximum"])
        below, above = below + np.minimum(ends_of_bias[0], 0), above + np.maximum(ends_of_bias[1], 0)
    return float(max(above.max(initial=0), -below.min(initial=0)))
