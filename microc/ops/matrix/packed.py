"""Products by constant weights of few bits, which a schedule stores side by side (:mod:`microc.tir.bit_fields`).

Any constant int8 weights within -8..7 (4 bits) or -2..1 (2 bits) suit, wherever they come from; and such as are products of those
and a multiplier of their own for each block of inputs. And, as indices of 4, 2 or 1 bits into a table, any weights of which
an output channel has few values: what TFLite Micro's compressed constants are. The expression is that of any
product; its note says how many bits a weight has, and there are zeros behind the terms up to whole elements of the form.
Which form is for which core says ``schedule/rules/algorithms.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from types import MappingProxyType

import numpy as np

from microc import dtypes
from microc.ops.matrix.gemm import Notes, product_notes
from microc.ops.registry import Algorithms, OpCall
from microc.tir.bit_fields import HALVES, NEIGHBOURS, VECTOR, BitFields, bits_of, few_bits, few_values
from microc.tir.names import WEIGHT_BITS, WEIGHT_BLOCK, WEIGHT_TABLES

MOST = 0.75
"""The share of the bytes that packed weights may take, with the zeros behind them."""
LARGEST = 32
"""The largest block whose sums are kept apart in an iteration: of larger ones the parts have equal multipliers."""


TABLES = "packed_tables"
ORDERS: Mapping[str, str] = MappingProxyType(
    {"packed": NEIGHBOURS, "packed_halves": HALVES, "packed_vectors": VECTOR, TABLES: NEIGHBOURS}
)
"""How weights lie, by algorithm."""


def packed_form(call: OpCall, algorithm: str) -> BitFields | None:
    """How an algorithm packs the constant weights (O, ...) of one group whose sums have 32 bits; None where it does not."""
    if algorithm not in ORDERS:
        return None
    data, weight, _ = call.weighted
    integers = dtypes.is_integer(data.type.dtype) and call.attrs.get("out_dtype") == "int32"
    if weight.data is None or weight.data.dtype != np.int8 or not integers or call.attrs.get("groups", 1) > 1:
        return None
    if not weight.data.size:
        return None
    rows, order = weight.data.reshape(len(weight.data), -1), ORDERS[algorithm]
    if algorithm == TABLES:
        values = few_values(rows)
        fewer = values is not None and values[0] < bits_of(rows)
        return BitFields(values[0], order, tables=values[1]) if values and fewer else None
    bits, block = few_bits(rows)
    if block and order == HALVES:
        block = min(block, LARGEST)
    return BitFields(bits, order, block) if bits < 8 else None


def packed_depth(form: BitFields, depth: int) -> int:
    """Terms of a sum, with zeros up to whole elements."""
    whole = max(form.group, form.block)
    return -(-depth // whole) * whole


def _suits(call: OpCall, algorithm: str) -> bool:
    """Whether weights may be packed, and take less flash then."""
    form, weight = packed_form(call, algorithm), call.weighted[1].data
    if form is None or weight is None:
        return False
    units = len(weight)
    depth = weight.size // units
    stored = prod(form.shape(units, packed_depth(form, depth))) * dtypes.nbytes(form.dtype)
    narrow = form.order == NEIGHBOURS or (form.order == HALVES and dtypes.nbytes(call.weighted[0].type.dtype) == 1)
    return stored <= MOST * weight.size and (narrow or not form.block)


def packed_notes(call: OpCall, form: BitFields) -> Notes:
    """What a schedule may know of the product."""
    more = ((WEIGHT_BLOCK, form.block), (WEIGHT_TABLES, form.tables))
    return (*product_notes(*call.weighted), (WEIGHT_BITS, form.bits), *((name, n) for name, n in more if n))


FAR = np.int8(13)
"""What cases multiply numbers of few bits by, so that only a table holds them."""
PACKED: Algorithms = {algorithm: partial(_suits, algorithm=algorithm) for algorithm in ORDERS}
"""Whether an algorithm suits a product."""
