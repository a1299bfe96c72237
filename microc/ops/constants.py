"""Bounds of constants that become indices, offsets, shifts, counts and factors, declared as data.

``OpDef.constants`` bounds the operands that generated loops rely on. ``OpDef.sound`` checks several numbers together: walks of
trees within their tables, sums that fit their dtype. :func:`microc.ops.registry.node_constant_error_message` applies both. The
reader of graph files and the compiler call it, so that no number of a model can make the generated C access other memory, loop
forever or overflow, whatever the model's format.
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
"""Largest magnitude of a sum by dtype. Sums of 64 bits are bounded in float64; one bit covers its rounding."""


class NumberUse(StrEnum):
    """Use of a constant's numbers in generated code."""

    INDEX = "an index"
    OFFSET = "an offset"
    SHIFT = "a shift"
    COUNT = "a count"
    FACTOR = "a factor"
    TERM = "a term of a sum"
    POINT = "a point of a table"


@frozen
class Application:
    """A node as the checks of constants receive it: attributes with their defaults, and the operands that are present.

    ``data``: the numbers of each constant operand, None for others. ``producers``: the node that computes an operand,
    if any."""

    attrs: Mapping[str, Any]
    types: tuple[TensorType, ...]
    data: tuple[Array | None, ...]
    producers: tuple[Node | None, ...] = ()
    results: tuple[TensorType, ...] = ()

    @property
    def quantised(self) -> bool:
        """True for a quantised operator that is still to be legalised; the operators that replace it are checked instead."""
        operand_types = (self.types[0], *self.results)
        return all(
            tensor_type.quant is not None and dtypes.is_integer(tensor_type.dtype) for tensor_type in operand_types
        )


Bound = int | Callable[[Application], int]


@frozen
class OperandBounds:
    """Bounds of the numbers of one operand.

    ``computed``: operators that may compute the operand at run time, because their results are within the bounds; None:
    any may, because the loops clamp the number themselves."""

    use: NumberUse
    least: Bound
    most: Bound
    computed: tuple[str, ...] | None = ()

    def fault(self, application: Application, position: int, name: str) -> str:
        """Return a message if the operand at ``position``, called ``name``, is outside its bounds, else an empty string."""
        data = application.data[position]
        if data is None:
            maker = application.producers[position] if position < len(application.producers) else None
            if self.computed is None or (maker is not None and maker.op in self.computed):
                return ""
            return f"{name} is {self.use}; it is computed when the network runs, expected a constant"
        if not data.size:
            return ""
        least, most = (end(application) if callable(end) else end for end in (self.least, self.most))
        if data.dtype.kind not in "iub":
            return f"{name} is {self.use}; got {data.dtype}, expected integers"
        low, high = int(data.min()), int(data.max())
        if least <= low and high <= most:
            return ""
        return f"{name} is {self.use}; got {low if low < least else high}, expected {least}..{most}"


Constants = Mapping[int, OperandBounds]
Sound = Callable[[Application], str]


def constant_error_message(
    declared: Constants | Callable[[Application], Constants],
    sound: Iterable[Sound],
    application: Application,
    names: Sequence[str],
) -> str:
    """Return what is wrong with the constants of an application, or an empty string."""
    bounds = declared(application) if callable(declared) else declared
    for position, constant in bounds.items():
        if position < len(application.types):
            name = names[position] if position < len(names) else f"operand {position}"
            if reason := constant.fault(application, position, name):
                return reason
    for check in sound:
        if reason := check(application):
            return reason
    return ""


# ---------------------------------------------------------------- bounds that operators share

INT32: OperandBounds = OperandBounds(NumberUse.TERM, INT32_MIN, INT32_MAX, None)
BOUNDED = OperandBounds(NumberUse.INDEX, -(1 << 63), (1 << 63) - 1, None)
"""An index that the loops clamp themselves, constant or computed."""
MANTISSA = OperandBounds(NumberUse.FACTOR, 0, INT32_MAX)
POSITIVE = OperandBounds(NumberUse.POINT, 0, INT32_MAX)


def stored_range_error_message(application: Application) -> str:
    """Return a message if clamp bounds or zero point of a scaled result are outside its dtype, else an empty string."""
    attrs = application.attrs
    dtype = attrs.get("out_dtype") or application.types[0].dtype
    if not dtypes.is_integer(dtype):
        return f"out_dtype={dtype!r} is no dtype of integers"
    low, high = dtypes.int_range(dtype)
    for name in ("minimum", "maximum", "zero_point"):
        if name in attrs and not low <= attrs[name] <= high:
            return f"{name} is no {dtype}; got {attrs[name]}, expected {low}..{high}"
    if attrs.get("minimum", low) > attrs.get("maximum", high):
        return f"minimum={attrs['minimum']} is above maximum={attrs['maximum']}"
    zero = attrs.get("zero_point", 0)
    if attrs.get("minimum", low) - zero > INT32_MAX or attrs.get("maximum", high) - zero < INT32_MIN:
        return f"zero_point={zero} is more than {INT32_MAX} from minimum..maximum"  # the difference is clamped in int32
    return ""


def attribute_dtype_error_message(name: str, value: float, dtype: str) -> str:
    """Return a message if ``dtype`` cannot hold ``value``, that of the attribute ``name``, else an empty string."""
    if not dtypes.is_integer(dtype):
        return f"{name}={value} is no {dtype}" if dtype == "bool" and value not in (0, 1) else ""
    low, high = dtypes.int_range(dtype)
    return "" if low <= value <= high and value == int(value) else f"{name}={value} is no {dtype}"


def zero_point_check(attribute: str, position: int) -> Sound:
    """Build the check that ``attribute``, the zero point of the operand at ``position``, is within the operand's dtype."""

    def check(application: Application) -> str:
        dtype = application.types[position].dtype
        low, high = dtypes.int_range(dtype) if dtypes.is_integer(dtype) else (INT32_MIN, INT32_MAX)
        value = application.attrs[attribute]
        return "" if low <= value <= high else f"{attribute} is no {dtype}; got {value}, expected {low}..{high}"

    return check


def centred_range(application: Application, position: int, attribute: str) -> tuple[int, int]:
    """Return the range of the operand at ``position`` minus its zero point, the value of ``attribute``."""
    low, high = dtypes.int_range(application.types[position].dtype)
    return low - application.attrs[attribute], high - application.attrs[attribute]


def product_overflow_message(application: Application, attributes: tuple[str, str]) -> str:
    """Return a message if a product of the first two operands can overflow int32, else an empty string.

    Each operand is taken minus its zero point; ``attributes`` names the two zero points."""
    if not all(dtypes.is_integer(tensor_type.dtype) for tensor_type in application.types[:2]):
        return f"a product of {application.types[0].dtype} and {application.types[1].dtype}, expected integers"
    (a, b), (c, d) = (centred_range(application, k, attributes[k]) for k in range(2))
    largest = max(abs(x * y) for x in (a, b) for y in (c, d))
    return "" if largest <= INT32_MAX else f"products of up to {largest} do not fit int32"


def window_sum_overflow_message(
    application: Application, count: int, pad: int = 0, offset: int = 0, half: int = 0
) -> str:
    """Return a message if a sum of ``count`` numbers of the first operand can overflow int32, else an empty string.

    ``offset`` and ``half``, half of the divisor for rounding, are added to the sum. ``pad`` is the value of padding."""
    tensor_type = application.types[0]
    if application.quantised or not dtypes.is_integer(tensor_type.dtype):
        return ""
    low, high = dtypes.int_range(tensor_type.dtype)
    if not low <= pad <= high:
        return f"pad_value is no {tensor_type.dtype}; got {pad}, expected {low}..{high}"
    largest = max(abs(offset + count * low), abs(offset + count * high), abs(offset)) + half
    return "" if largest <= INT32_MAX else f"sums of up to {largest} do not fit int32"


def product_sum_overflow_message(application: Application, depth: int, pad: float = 0) -> str:
    """Return a message if sums of products of data and weights can overflow their dtype, else an empty string.

    ``depth``: products in a sum. ``pad``: the value of padding."""
    data, weight = application.types[:2]
    out = application.attrs.get("out_dtype") or data.dtype
    if not dtypes.is_integer(data.dtype) or dtypes.is_float(out) or application.quantised:
        return ""
    if out not in _LARGEST:
        return f"sums of {data.dtype} are made in {out}, expected int32 or int64"
    low, high = dtypes.int_range(data.dtype)
    if not low <= pad <= high or pad != int(pad):
        return f"pad_value is no {data.dtype}; got {pad}, expected {low}..{high}"
    if not dtypes.is_integer(weight.dtype):
        return f"sums of {data.dtype} by weights of {weight.dtype}, expected integers"
    if len(application.types) > 2 and not dtypes.is_integer(application.types[2].dtype):
        return f"a bias of {application.types[2].dtype} for sums of integers"
    largest = largest_sum(application, depth)
    return "" if largest <= _LARGEST[out] else f"sums of up to {largest:.0f} do not fit {out}"


def largest_sum(application: Application, depth: int) -> float:
    """Return the largest magnitude of all partial sums of data times weights (channels, ...) and their bias.

    ``depth``: products in a sum. Data of any integer dtype can be zero, so every partial sum is between the bias plus
    the least products and the bias plus the largest ones. A computed bias is bounded by its dtype, or by the ``clip``
    that computes it."""
    low, high = dtypes.int_range(application.types[0].dtype)
    weights = application.data[1]
    if weights is None:
        ends = [x * y for x in (low, high) for y in dtypes.int_range(application.types[1].dtype)]
        above, below = np.array([depth * float(max(ends))]), np.array([depth * float(min(ends))])
    else:
        rows = weights.reshape(weights.shape[0], -1).astype(np.float64)
        above = np.maximum(rows * low, rows * high).sum(axis=1)
        below = np.minimum(rows * low, rows * high).sum(axis=1)
    if len(application.types) > 2:
        bias, maker = application.data[2], application.producers[2] if len(application.producers) > 2 else None
        ends_of_bias: tuple[Any, Any] = dtypes.int_range(application.types[2].dtype)
        if bias is not None:
            ends_of_bias = (bias.reshape(-1).astype(np.float64),) * 2
        elif maker is not None and maker.op == "clip":
            ends_of_bias = (maker.attrs["minimum"], maker.attrs["maximum"])
        below, above = below + np.minimum(ends_of_bias[0], 0), above + np.maximum(ends_of_bias[1], 0)
    return float(max(above.max(initial=0), -below.min(initial=0)))
