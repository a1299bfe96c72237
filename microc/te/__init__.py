# SPDX-License-Identifier: Apache-2.0
"""Tensor expressions: a tensor is defined by an expression of one element. :func:`create_prim_func` lowers tensors to loops."""

from microc.te.lower import collect_tensors, create_prim_func, format_formula, tensor_reads, to_text
from microc.te.tensor import (
    ComputeDef,
    ExternDef,
    Reduce,
    ReduceAxis,
    Tensor,
    TensorRead,
    compute,
    extern,
    fma_reduce,
    max_reduce,
    min_reduce,
    placeholder,
    reduce_axis,
    sum_reduce,
    var,
)

__all__ = [
    "ComputeDef",
    "ExternDef",
    "Reduce",
    "ReduceAxis",
    "Tensor",
    "TensorRead",
    "collect_tensors",
    "compute",
    "create_prim_func",
    "extern",
    "fma_reduce",
    "format_formula",
    "max_reduce",
    "min_reduce",
    "placeholder",
    "reduce_axis",
    "sum_reduce",
    "tensor_reads",
    "to_text",
    "var",
]
