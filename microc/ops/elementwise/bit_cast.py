"""``bit_cast``: the bits of every element as another dtype of as many; a bool is a byte, and true whatever bit of it is set.

Source: ONNX BitCast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import element_type
from microc.ops.registry import Case, OpDef
from microc.tir import ir
from microc.tir.ir import Expr


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    source, dtype = types[0].dtype, attrs["dtype"]
    if not dtypes.is_valid(dtype) or dtypes.nbytes(source) != dtypes.nbytes(dtype):
        raise ModelError(f"the bits of {source} as {dtype!r}", hint="both have as many bits")
    return (TensorType(types[0].shape, dtype),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, dtype = np.asarray(arrays[0]), dtypes.to_numpy(attrs["dtype"])
    return (x != 0 if dtype == np.bool_ else x.view(dtype),)


def _scalar(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    x, dtype = args[0], attrs["dtype"]
    if dtype == "bool" != x.dtype:
        return ir.cast("int32", x).ne(0)
    return ir.reinterpret(dtype, x)


def _cases() -> Iterable[Case]:
    """Zeros of both signs, infinities, the smallest and a NaN with a payload; negative integers."""
    special = {2: [0x8000, 0x7C00, 1, 0x7E01], 4: [1 << 31, 0x7F800000, 1, 0x7FC00003], 8: [1 << 63, 0x7FF << 52, 1, 9]}
    for dtype, other in (
        ("float32", "int32"),
        ("float32", "uint32"),
        ("float64", "int64"),
        ("float64", "uint64"),
        ("float16", "int16"),
        ("bfloat16", "uint16"),
        ("float16", "bfloat16"),
        ("int8", "uint8"),
        ("bool", "uint8"),
    ):
        width = dtypes.nbytes(dtype)
        bits = np.array(special.get(width, [0, 127, 128, 255]), f"uint{8 * width}")
        for source, target in ((dtype, other), (other, dtype)):
            array = (bits & 1 if source == "bool" else bits).view(dtypes.to_numpy(source)).reshape(2, 2)
            types = (TensorType((2, 2), source),)
            yield Case({"dtype": target}, types, arrays=(array,), name=f"{source} as {target}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "bit_cast",
        infer=_infer,
        reference=_reference,
        scalar=_scalar,
        cases=_cases,
        operand_names=("x",),
        attrs={"dtype": element_type()},
    ),
)
