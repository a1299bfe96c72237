"""Intrinsics for the interpreter: Python functions made from their TIR meanings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.dtypes import to_numpy
from microc.schedule.intrinsics import SCALAR, Intrin
from microc.tir import ir
from microc.tir.interp import compile_func
from microc.tir.rewrite import substitute


@lru_cache(maxsize=1)
def meanings() -> Mapping[str, Callable[[list[Any]], Any]]:
    """By name, a function as :func:`microc.tir.interp.run` wants it."""
    return MappingProxyType({name: _function(intrin) for name, intrin in SCALAR.items()})


def _function(intrin: Intrin) -> Callable[[list[Any]], Any]:
    buffers = [p if isinstance(p, ir.Buffer) else ir.Buffer(f"{p.name}_in", (1,), p.dtype) for p in intrin.params]
    values: dict[ir.Var, ir.Expr] = {
        p: b[0] for p, b in zip(intrin.params, buffers, strict=True) if isinstance(p, ir.Var)
    }
    result = ir.Buffer("result", (1,), intrin.meaning.dtype)
    body = ir.Store(result, (ir.const(0, "int32"),), substitute(intrin.meaning, values))
    run = compile_func(ir.PrimFunc(intrin.name, (*buffers, result), body))

    def call(args: list[Any]) -> Any:
        arrays = []
        for buffer, arg in zip(buffers, args, strict=True):
            if isinstance(arg, tuple):
                flat, start = arg
                arrays.append(np.ascontiguousarray(flat[start : start + buffer.size]))
            else:
                arrays.append(np.array([arg], dtype=to_numpy(buffer.dtype)))
        out = np.zeros(1, dtype=to_numpy(result.dtype))
        run([*arrays, out], {})
        return int(out[0])

    return call
