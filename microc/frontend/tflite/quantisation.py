"""What the integers of a TFLite tensor stand for: scales and zero points, checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from microc import dtypes
from microc.errors import ModelError, UnsupportedError
from microc.frontend.tflite.options import as_array
from microc.graph.ir import Quant

_CUSTOM, _BLOCKS = 1, 2
"""Details of quantisation: custom ones say nothing to TFLite either; blocks of scales lie in a tensor of their own."""


def read_quantisation(table: Any, shape: tuple[int, ...], dtype: str, where: str) -> Quant | None:
    """Scales and zero points, checked against shape and dtype; None where there are none or the dtype is real.

    Raises ModelError where they make no sense, UnsupportedError for details that microc does not know.
    """
    if table is None:
        return None
    details = int(table.DetailsType())
    if details > _CUSTOM:
        what = "scales for blocks of elements" if details == _BLOCKS else f"quantisation of kind {details}"
        raise UnsupportedError(what, where=where, hint="quantise per tensor or per channel")
    if table.ScaleLength() == 0 or not dtypes.is_valid(dtype) or not dtypes.is_integer(dtype):
        return None
    scale, zero_point = as_array(table.ScaleAsNumpy()), as_array(table.ZeroPointAsNumpy())
    axis = int(table.QuantizedDimension()) if len(scale) > 1 else None
    if axis is not None and len(shape) == 1:
        axis = 0  # converters copy the axis of the weights to the bias
    if len(scale) != len(zero_point):
        raise ModelError(f"{len(scale)} scales but {len(zero_point)} zero points", where=where)
    if axis is not None and not 0 <= axis < len(shape):
        raise ModelError(f"quantised along axis {axis} of a tensor of rank {len(shape)}", where=where)
    if axis is not None and shape[axis] != len(scale):
        raise ModelError(f"{len(scale)} scales along axis {axis} of extent {shape[axis]}", where=where)
    if not (np.all(np.isfinite(scale)) and np.all(scale > 0)):
        raise ModelError("a quantisation scale is not a positive number", where=where)
    lowest, highest = dtypes.int_range(dtype)
    if np.any(zero_point < lowest) or np.any(zero_point > highest):
        raise ModelError(f"a zero point lies outside {dtype}", where=where)
    return Quant(tuple(map(float, scale)), tuple(map(int, zero_point)), axis)
