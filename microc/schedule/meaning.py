"""Intrinsics for the interpreter: Python functions made from their TIR meanings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.dtypes import Array, to_numpy
from microc.schedule.intrinsics import SCALAR, Intrin
from microc.tir import ir
from microc.tir.interp import compile_func
from microc.tir.rewrite import substitute, substitute_stmt


@lru_cache(maxsize=1)
def meanings() -> Mapping[str, Callable[[list[Any]], Any]]:
    """By name, a function as :func:`microc.tir.interp.run` wants it."""
    return MappingProxyType({name: _function(intrin) for name, intrin in SCALAR.items()})


def _function(intrin: Intrin) -> Callable[[list[Any]], Any]:
    buffers = [p if isinstance(p, ir.Buffer) else ir.Buffer(f"{p.name}_in", (1,), p.dtype) for p in intrin.params]
    values: dict[ir.Var, ir.Expr] = {
        p: b[0] for p, b in zip(intrin.params, buffers, strict=True) if isinstance(p, ir.Var)
    }
    if isinstance(intrin.meaning, ir.Stmt):
        return _effect(intrin.name, buffers, substitute_stmt(intrin.meaning, values))
    result = ir.Buffer("result", (1,), intrin.meaning.dtype)
    body = ir.Store(result, (ir.const(0, "int32"),), substitute(intrin.meaning, values))
    run = compile_func(ir.PrimFunc(intrin.name, (*buffers, result), body))

    def call(args: list[Any]) -> Any:
        out = np.zeros(1, dtype=to_numpy(result.dtype))
        run([*_arrays(buffers, args), out], {})
        return int(out[0])

    return call


def _effect(name: str, buffers: list[ir.Buffer], body: ir.Stmt) -> Callable[[list[Any]], Any]:
    """An intrinsic that writes through its pointer."""
    run = compile_func(ir.PrimFunc(name, tuple(buffers), body))

    def call(args: list[Any]) -> Any:
        arrays = _arrays(buffers, args)
        run(arrays, {})
        for array, arg in zip(arrays, args, strict=True):
            if isinstance(arg, tuple):
                flat, start = arg
                flat[start : start + len(array)] = array
        return 0

    return call


def _arrays(buffers: list[ir.Buffer], args: list[Any]) -> list[Array]:
    found: list[Array] = []
    for buffer, arg in zip(buffers, args, strict=True):
        if isinstance(arg, tuple):
            flat, start = arg
            found.append(np.array(flat[start : start + buffer.size]))
        else:
            found.append(np.array([arg], dtype=to_numpy(buffer.dtype)))
    return found
