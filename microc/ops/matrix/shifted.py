"""Weights of nine bits in one byte: what all of them are shifted by comes back as one sum for all channels.

Bytes with a zero point, as uint8 has them, are beyond int8 once that is taken away, most often by the one number at the end of
their range. Twice the flash for them all, and products that few cores have, are the other way. Instead,

    sum(x w)  =  sum(x (w - c)) + sum(x c),

where w - c is a byte, and the last sum is the same for all channels: a product with one channel more, added to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.fixed import INT32_MAX
from microc.graph.ir import Attr, Graph, Node
from microc.ops.arith import Rewrite

CHANNELS: Mapping[str, int] = MappingProxyType({"dense": 8, "conv2d": 32})
"""As many share the sum at least. A convolution keeps one of four bytes for every pixel: with fewer channels that is more
memory than the bytes are worth."""
_BYTE = 128


def shift_of(node: Node, graph: Graph, rows: Array) -> int:
    """c for weights w, a row for each channel; 0 where they are bytes as they are, or stay wider.

    Every product, and every sum of some of them, must fit in 32 bits shifted, too.
    """
    low, high = int(rows.min(initial=0)), int(rows.max(initial=0))
    fits, spread = low >= -_BYTE and high < _BYTE, high - low < 2 * _BYTE
    plain = len(rows) >= CHANNELS.get(node.op, len(rows) + 1) and node.attrs.get("groups", 1) == 1
    if fits or not spread or not plain or dtypes.nbytes(graph.types[node.inputs[0]].dtype) > 1:
        return 0
    shift = high - (_BYTE - 1) if high >= _BYTE else low + _BYTE
    least, most = dtypes.int_range(graph.types[node.inputs[0]].dtype)
    sums = np.abs(rows).sum(axis=1) + 2 * np.abs(rows - shift).sum(axis=1) + 2 * abs(shift) * rows.shape[1]
    return shift if int(sums.max(initial=0)) * max(most, -least) < INT32_MAX // 2 else 0


def lacking_of(
    rewrite: Rewrite, operands: Sequence[str], shift: int, shape: Sequence[int], dtype: str, attrs: Mapping[str, Attr]
) -> str:
    """What sums of this ``shape`` and ``dtype`` lack with shifted weights: one number for all channels, by the same operator
    under its ``attrs``. It is made before the sums, so that these can take it up at once."""
    data, weight = operands[:2]
    extents = rewrite.type(weight).shape
    same = rewrite.constant("shift", np.full((1, *extents[1:]), shift, np.int8 if shift < _BYTE else np.int16))
    axis = 1 if attrs.get("layout") == "NCHW" else len(shape) - 1
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    return rewrite.emit(rewrite.node.op, (data, same), rewrite.value("lacking", one, dtype), attrs)
