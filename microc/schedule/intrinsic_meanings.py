# SPDX-License-Identifier: Apache-2.0
"""Intrinsics for the TIR interpreter: Python functions that are built from the TIR meanings of the intrinsics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array, to_numpy
from microc.isa import SCALAR, Intrin
from microc.isa.instruction_set import LANE
from microc.tir import ir
from microc.tir.interp import compile_func
from microc.tir.rewrite import map_expr, map_stmt

Function = Callable[[list[Any]], Any]


def intrinsic_functions() -> Mapping[str, Function]:
    """Return a Python function for every intrinsic, by the intrinsic's name, for :func:`microc.tir.interp.run`.

    The functions represent a vector as a tuple of its lanes."""
    return MappingProxyType({name: _intrinsic_function(intrin) for name, intrin in SCALAR.items()})


@lru_cache(maxsize=1024)
def _intrinsic_function(intrin: Intrin) -> Function:
    """Build the Python function that computes an intrinsic by interpreting its TIR meaning."""

    @lru_cache(maxsize=64)
    def compile_for(sizes: tuple[int, ...]) -> Callable[..., None]:
        return compile_func(_meaning_as_func(intrin, sizes))

    # None for a pointer.
    element_types = [None if isinstance(p, ir.Buffer) else to_numpy(_lane_dtype(p.dtype)) for p in intrin.params]
    result = to_numpy(_lane_dtype(intrin.result)) if intrin.result else None

    def call(args: list[Any]) -> Any:
        arrays: list[Array] = []
        for element_type, arg in zip(element_types, args, strict=True):
            if element_type is None:
                memory, start = arg
                arrays += [memory, np.array([start], np.int32)]
            else:
                arrays.append(np.array(arg, element_type).reshape(-1))
        if result is not None:
            arrays.append(np.zeros(int(args[-1]) if intrin.scalable else max(intrin.lanes, 1), result))
        compile_for(tuple(a.size for a in arrays))(arrays, {})
        if result is None:
            return 0
        lanes = arrays[-1].tolist()
        return tuple(lanes) if intrin.lanes else lanes[0]

    return call


def _lane_dtype(dtype: str) -> str:
    """Return the dtype of one lane of a vector dtype. Other dtypes are returned unchanged, also vectors packed in 32
    bits (int16x2), which the interpreter represents as one integer."""
    base, bits, _ = dtypes.dtype_parts(dtype)
    return f"{base}{bits}" if dtypes.is_vector(dtype) else dtype


def _meaning_as_func(intrin: Intrin, sizes: tuple[int, ...]) -> ir.PrimFunc:
    """Build the TIR function that computes an intrinsic, for buffers with these numbers of elements.

    Its parameters are, for each pointer, the whole memory and an offset; for each scalar or vector, an array; and
    last the result."""
    params: list[ir.Buffer] = []
    pointers: dict[ir.Buffer, tuple[ir.Buffer, ir.Load]] = {}
    values: dict[ir.Expr, ir.Expr] = {}
    for param in intrin.params:
        size = sizes[len(params)]
        if isinstance(param, ir.Buffer):
            memory, start = (
                ir.Buffer(f"{param.name}_memory", (size,), param.dtype),
                ir.Buffer(f"{param.name}_at", (1,), "int32"),
            )
            params += [memory, start]
            pointers[param] = memory, start[0]
        else:
            params.append(ir.Buffer(f"{param.name}_in", (size,), _lane_dtype(param.dtype)))
            values[ir.Var(param.name, _lane_dtype(param.dtype))] = params[-1][LANE if size > 1 else 0]

    def on_expr(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Load) and expr.buffer in pointers:
            memory, start = pointers[expr.buffer]
            return memory[start + expr.indices[0]]
        return values.get(expr, expr)

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Store) and stmt.buffer in pointers:
            memory, start = pointers[stmt.buffer]
            return ir.Store(memory, (start + stmt.indices[0],), stmt.value)
        return stmt

    body = intrin.meaning
    if isinstance(body, ir.Expr):
        params.append(ir.Buffer("result", (sizes[-1],), body.dtype))
        body = ir.Store(params[-1], (LANE if intrin.lanes else ir.const(0, "int32"),), body)
    body = map_stmt(body, on_stmt, lambda x: map_expr(x, on_expr))
    if intrin.lanes:
        body = ir.For(LANE, map_expr(intrin.active_lane_count, on_expr), body)
    return ir.PrimFunc(intrin.name, tuple(params), body)
