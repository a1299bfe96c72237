"""``lookup``: a function of one 8-bit number as a table of 256 results.

The table may hold several functions one after the other; then an operand gives for each element the index where its own begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.constants import Application, Constants, NumberUse, OperandBounds
from microc.ops.elementwise.elementwise import broadcast_shape
from microc.ops.registry import Case, OpDef
from microc.tir import ir
from microc.tir.ir import Expr


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
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


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table, *first = arrays
    return (table[sum(first, x.astype(np.int32) - np.iinfo(x.dtype).min)],)


def _scalar(attrs: Mapping[str, Any], args: Sequence[Any]) -> Expr:
    x: Expr = args[0]
    table: te.Tensor = args[1]
    low, _ = dtypes.int_range(x.dtype)
    place = ir.cast("int32", x) - low
    return table[place + ir.cast("int32", args[2]) if len(args) > 2 else place]


def _operand_bounds(application: Application) -> Constants:
    """Bound the operand with the first table index of each function, so that the function's 256 entries are in the table."""
    return {2: OperandBounds(NumberUse.OFFSET, 0, application.types[1].size - 256)}


def _cases() -> Iterable[Case]:
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


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "lookup",
        infer=_infer,
        reference=_reference,
        scalar=_scalar,
        cases=_cases,
        constants=_operand_bounds,
        operand_names=("x", "table"),
        whole=(1,),
    ),
)
