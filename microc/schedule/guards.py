"""How often a condition over loop variables holds: the share of iterations that take a branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.tir import ir
from microc.tir.operators import ARRAYS
from microc.tir.rewrite import free_vars, walk_expr

_MOST = 1 << 14
"""Points that are looked at; a larger domain is sampled."""
_GOLDEN = (5**0.5 - 1) / 2
_UNKNOWN = 0.5


def share(condition: ir.Expr, given: Sequence[ir.Expr], extents: Mapping[ir.Var, int]) -> float:
    """The share of iterations with ``given`` true in which ``condition`` is, too; a half for what depends on data."""
    if not _static(condition, extents):
        return _UNKNOWN
    known = [g for g in given if _static(g, extents) and free_vars(g) & free_vars(condition)]
    names = sorted(set().union(*(free_vars(e) for e in (condition, *known))), key=lambda v: v.name)
    axes = _axes([extents[v] for v in names])
    values = dict(zip(names, np.meshgrid(*axes, indexing="ij", sparse=True), strict=True))
    met = np.ones([len(axis) for axis in axes], bool)
    for g in known:
        met = met & _evaluate(g, values)
    total = int(np.count_nonzero(met))
    return int(np.count_nonzero(met & _evaluate(condition, values))) / total if total else 0.0


def _axes(extents: list[int]) -> list[np.ndarray[Any, Any]]:
    """Points of every loop: all of a short one, and of long ones as many as remain."""
    axes: list[np.ndarray[Any, Any]] = [np.arange(0)] * len(extents)
    most = float(_MOST)
    for done, place in enumerate(sorted(range(len(extents)), key=extents.__getitem__)):
        points = max(2, int(most ** (1 / (len(extents) - done))))
        axes[place] = _points(extents[place], points)
        most /= len(axes[place])
    return axes


def _points(extent: int, count: int) -> np.ndarray[Any, Any]:
    """``count`` numbers below an extent, spread by the golden ratio: even steps would meet the same few remainders of a division
    again and again."""
    if extent <= count:
        return np.arange(extent)
    return (np.arange(count) * _GOLDEN % 1 * extent).astype(np.int64)


def _static(expr: ir.Expr, extents: Mapping[ir.Var, int]) -> bool:
    """Whether an expression depends on loop variables alone."""
    for x in walk_expr(expr):
        match x:
            case ir.Var() if x in extents:
                pass
            case ir.Bin(op) if op in ARRAYS:
                pass
            case ir.Un("not") | ir.Const():
                pass
            case _:
                return False
    return True


def _evaluate(expr: ir.Expr, values: Mapping[ir.Var, Any]) -> Any:
    match expr:
        case ir.Var():
            return values[expr]
        case ir.Const(value):
            return value
        case ir.Un(_, a):
            return np.logical_not(_evaluate(a, values))
        case ir.Bin(op, a, b):
            return ARRAYS[op](_evaluate(a, values), _evaluate(b, values))
        case _:
            raise AssertionError(expr)
