"""Biases of quantised layers: integers at the scale of the accumulator, data scale times weight scale.

Quantisers write int32 biases of just that scale; they are taken as they are. Others (floats, or integers of another
scale) are rounded to it, an error of half a unit of the accumulator: to int32, or beside data of 16 bits to int64 where they
need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Node, Quant, TensorType

_TOLERANCE = 2.0**-20
"""Relative distance of a bias' scale from the accumulator's that float32 rounding explains."""


_SHORT, _LONG = ("int32", dtypes.int_range("int32")), ("int64", (-(1 << 46), 1 << 46))
_RANGES = {1: (_SHORT,), 2: (_SHORT, _LONG)}
"""By bytes of the data: what a bias may be; sums of more than 48 bits are not scaled in fixed point."""


@frozen
class Sum:
    """``output`` = ``operand`` + the constant ``term``."""

    output: str
    operand: str
    term: str


def accumulator_quant(data: Quant, weight: Quant) -> Quant:
    """The quantisation of the sum of products: one scale, or one per output channel along axis 0."""
    scales = tuple(data.scale[0] * scale for scale in weight.scale)
    return Quant(scales, (0,) * len(scales), None if weight.axis is None else 0)


def integer_bias(
    terms: Sequence[tuple[Array, Quant | None]], accumulator: Quant, units: int, data_dtype: str
) -> Array | None:
    """The sum of constant ``terms`` (data, quantisation or None for floats), int32 of ``units`` elements.

    A single term that is an int32 bias at the accumulator's scale is returned as it is, the same array. None where an
    integer term has no scale or one per channel that do not fit, or where the sum leaves int32 (2**46, of int64 for 16-bit data).
    """
    if len(terms) == 1 and _fits(*terms[0], accumulator, units):
        return terms[0][0]
    total = np.zeros(units, np.float64)
    for data, quant in terms:
        real = _real(data, quant)
        if real is None or real.size not in (1, units):
            return None
        total += real
    levels = np.rint(total / np.array(accumulator.scale))
    for dtype, (low, high) in _RANGES[dtypes.nbytes(data_dtype)]:
        if np.isfinite(levels).all() and low <= levels.min() and levels.max() <= high:
            return np.asarray(levels, dtypes.to_numpy(dtype))
    return None


def sum_behind(
    node: Node, units: int, types: Mapping[str, TensorType], only_user: Callable[[str], Node | None]
) -> Sum | None:
    """The addition of a constant per output channel that is the only reader of a layer, or of its reshaped result."""
    value, axis = node.outputs[0], -1
    user = only_user(value)
    if node.op == "conv2d":
        axis = {"NCHW": -3}.get(node.attr("layout"), -1)
    elif user is not None and user.op == "reshape" and types[user.outputs[0]].shape[-1:] == (units,):
        value = user.outputs[0]
        user = only_user(value)
    if user is None or user.op != "add" or user.attrs.get("activation", "") or user.inputs.count(value) != 1:
        return None
    term = user.inputs[1 - user.inputs.index(value)]
    shape = types[term].shape
    one_channel = all(extent == 1 for k, extent in enumerate(shape) if k != len(shape) + axis)
    if not one_channel or types[user.outputs[0]].shape != types[value].shape:
        return None
    return Sum(user.outputs[0], value, term)


def _fits(data: Array, quant: Quant | None, accumulator: Quant, units: int) -> bool:
    """Whether a bias is int32 with the accumulator's scale (up to float32 rounding) and zero point 0."""
    if quant is None or data.dtype != np.int32 or data.shape != (units,) or any(quant.zero_point):
        return False
    ratio = np.array(quant.scale) / np.array(accumulator.scale)
    return len(quant.scale) in (1, units) and bool((np.abs(ratio - 1) <= _TOLERANCE).all())


def _real(data: Array, quant: Quant | None) -> Array | None:
    """The real numbers that constant data stands for, flat; None for integers without quantisation."""
    if quant is None:
        return np.asarray(data, np.float64).reshape(-1) if dtypes.is_float(data.dtype.name) else None
    if len(quant.scale) not in (1, data.size):
        return None
    levels = data.astype(np.float64).reshape(-1) - np.array(quant.zero_point)
    return np.asarray(levels * np.array(quant.scale))
