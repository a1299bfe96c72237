# SPDX-License-Identifier: Apache-2.0
"""The primitive ``select_intrinsics``: it finds the meanings of scalar intrinsics in a function, and replaces them by calls.

An intrinsic declares what it computes as an expression of its parameters, which is the pattern (:mod:`.unification`). So a new
scalar instruction needs no code here. Expressions that only equal a meaning are first rewritten by identities
(:mod:`.identity_selection`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from microc.base import dtypes
from microc.errors import ScheduleError, known_names_hint
from microc.isa import SCALAR, Intrin
from microc.schedule.primitives.unification import match_int32_clamp, normalise_clamp, root_operator, unify
from microc.tir import ir
from microc.tir.analysis.context import is_index
from microc.tir.analysis.intervals import within
from microc.tir.analysis.simplification import bounds_of
from microc.tir.names import RESULT_RANGES
from microc.tir.rewrite import ExprMap, map_expr, map_stmt, walk_expr


def select_intrinsics(func: ir.PrimFunc, names: tuple[str, ...]) -> ir.PrimFunc:
    """Replace every expression that is the meaning of one of the intrinsics ``names`` by a call.

    If several match, the one with the largest meaning is called: ``saturate_i8_shr_1(x)`` rather than
    ``saturate_i8(x >> 1)``. Operands must be within the limits of the intrinsic, by the bounds that follow from their
    dtypes and operators. Casts of a result to a narrower dtype that holds it (:data:`.names.RESULT_RANGES`) and back are
    removed, because the C compiler cannot remove them from inline assembly."""
    return _select(func, names)[0]


def find_intrinsics(func: ir.PrimFunc, names: Sequence[str]) -> tuple[str, ...]:
    """Return those of the intrinsics ``names`` that :func:`select_intrinsics` would call in a function, sorted."""
    return tuple(sorted(_select(func, names)[1]))


def select_in_expr(expr: ir.Expr, names: Sequence[str]) -> ir.Expr:
    """Replace the meanings of the intrinsics ``names`` in an expression by calls, as :func:`select_intrinsics`."""
    return map_expr(expr, _intrinsic_selector(names, set()))


def _select(func: ir.PrimFunc, names: Sequence[str]) -> tuple[ir.PrimFunc, set[str]]:
    """Return the function with calls of intrinsics, and the names of the called intrinsics."""
    called = set[str]()
    select = _intrinsic_selector(names, called)
    return replace(func, body=map_stmt(func.body, lambda s: s, lambda x: map_expr(x, select))), called


def _intrinsic_selector(names: Sequence[str], called: set[str]) -> ExprMap:
    """Return the function that replaces an expression if it is the meaning of one of the intrinsics ``names``. It adds the
    names of the intrinsics to ``called``. Raise ScheduleError for a name that is no scalar intrinsic."""
    patterns = _index_intrinsics(tuple(names), SCALAR.entries)

    def select(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Cast("int32", ir.Cast(narrow, ir.Call(name) as call)) if _is_exact(name, narrow):
                return call
        candidates = [intrin for key in _pattern_keys(expr) for intrin in patterns.get(key, ())]
        if not candidates:
            return expr
        expr, is_clamp = normalise_clamp(expr)
        # Index arithmetic keeps its form, since later passes simplify it. Only clamps are better as an instruction.
        if not is_clamp and is_index(expr):
            return expr
        for intrin in candidates:
            found = _match_call(intrin, expr)
            if found is not None:
                called.add(intrin.name)
                return found
        return expr

    return select


@lru_cache(maxsize=64)
def _index_intrinsics(names: tuple[str, ...], _entries: object) -> Mapping[object, list[Intrin]]:
    """Return the intrinsics ``names`` by the keys of their meanings, the largest meanings first. The contents of the registry are
    part of the key of the memo, since plugins extend it."""
    for name in names:
        if name not in SCALAR or not SCALAR[name].is_scalar:
            scalars = [each.name for each in SCALAR.values() if each.is_scalar]
            raise ScheduleError(
                f"select_intrinsics: wrong name; got {name!r}, expected the name of a scalar intrinsic",
                hint=known_names_hint(name, scalars, "scalar intrinsics"),
            )
    patterns: dict[object, list[Intrin]] = {}
    for intrin in sorted((SCALAR[name] for name in names), key=_meaning_size, reverse=True):
        patterns.setdefault(_pattern_keys(intrin.meaning)[0], []).append(intrin)
    return patterns


def _pattern_keys(expr: ir.Expr | ir.Stmt) -> tuple[object, ...]:
    """Return the keys by which patterns of an expression are looked up: the limits of a clamp, and the outermost operator."""
    clamp = match_int32_clamp(expr) if isinstance(expr, ir.Bin) else None
    return (root_operator(expr),) if clamp is None else (clamp[1], root_operator(expr))


def _meaning_size(intrin: Intrin) -> int:
    """Return the number of nodes of the meaning of an intrinsic."""
    return sum(1 for _ in walk_expr(intrin.meaning)) if isinstance(intrin.meaning, ir.Expr) else 0


def _match_call(intrin: Intrin, expr: ir.Expr) -> ir.Call | None:
    """Return the call of an intrinsic that computes ``expr``; None if its meaning does not match, or if an operand may
    exceed the limits of a parameter."""
    if isinstance(expr, ir.Bin) and expr.op == "mul" and any(isinstance(x, ir.Const) for x in (expr.a, expr.b)):
        return None  # the C compiler multiplies by a constant in fewer instructions
    params = [param for param in intrin.params if isinstance(param, ir.Var)]
    limits = {name: (low, high) for name, low, high in intrin.limits}
    for operands in unify(intrin.meaning, expr, {}):
        found = [operands.get(param) for param in params]
        args = tuple(operand for operand in found if operand is not None)
        if len(args) == len(params) and all(
            within(bounds_of(arg) or dtypes.int_range(arg.dtype), limits[param.name])
            for param, arg in zip(params, args, strict=True)
            if param.name in limits
        ):
            return ir.Call(intrin.name, args, intrin.result)
    return None


def _is_exact(name: str, narrow: str) -> bool:
    """Test whether the dtype ``narrow`` holds all results of the intrinsic ``name``."""
    is_known = name in RESULT_RANGES and dtypes.is_integer(narrow)
    return is_known and within(RESULT_RANGES[name], dtypes.int_range(narrow))
