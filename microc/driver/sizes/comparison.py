"""Whether two functions compute the same, found by running both in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from microc.dtypes import Array, to_numpy
from microc.schedule.meaning import meanings
from microc.tir import ir
from microc.tir.interp import execute
from microc.tir.rewrite import stmt_children

PATIENCE = 200_000
"""Stores that are interpreted to compare two functions at small sizes; beyond that, bounds are proved and nothing is run."""


def computes_alike(
    func: ir.PrimFunc, constants: Sequence[Array], direct: ir.PrimFunc, own_constants: Sequence[Array]
) -> bool:
    """Whether two functions compute the same from random data, every bit of it.

    They may see their tensors in other shapes. The first is given the constants of the largest sizes.
    """
    generator = np.random.default_rng(0)
    whole, own = iter(constants), iter(own_constants)
    mine, theirs = ([p for p in f.params if p.scope != "workspace"] for f in (func, direct))
    first, second = list[Array](), list[Array]()
    for a, b in zip(mine, theirs, strict=True):
        given = next(own) if b.scope == "const" else _random(b, generator)
        second.append(np.ascontiguousarray(given).reshape(b.shape))
        first.append(np.ascontiguousarray(next(whole) if b.scope == "const" else second[-1]).reshape(a.shape))
    made, wanted = _executed(func, first), _executed(direct, second)
    outside = [k for k, buffer in enumerate(theirs) if buffer.scope == "global"]
    return all(made[k].tobytes() == wanted[k].tobytes() for k in outside)


def steps(stmt: ir.Stmt) -> int:
    """How many stores and calls a statement of constant loops executes, both sides of conditions counted."""
    match stmt:
        case ir.For(_, extent, body):
            return (ir.int_value(extent) or 1) * steps(body)
        case ir.Store() | ir.Evaluate():
            return 1
        case _:
            return sum(map(steps, stmt_children(stmt)))


def _executed(func: ir.PrimFunc, arrays: Sequence[Array]) -> list[Array]:
    """What a function leaves in its parameters; its workspaces are made for it."""
    scratch = [np.zeros(b.shape, to_numpy(b.dtype)) for b in func.params[len(arrays) :]]
    return execute(func, [*arrays, *scratch], meanings())


def _random(buffer: ir.Buffer, generator: np.random.Generator) -> Array:
    kind = to_numpy(buffer.dtype)
    if kind.kind == "f":
        return generator.standard_normal(buffer.shape).astype(kind)
    return generator.integers(0, 2 if kind.kind == "b" else 8, buffer.shape).astype(kind)
