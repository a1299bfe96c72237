"""The primitive ``select_intrinsics``: it finds the meanings of scalar intrinsics in a function, and replaces them by calls.

An intrinsic declares what it computes as an expression of its parameters. This expression is the pattern: a parameter matches
any operand, and commutative operators match in both orders. So a new scalar instruction needs no code here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from microc.base import dtypes
from microc.errors import ScheduleError, known_names_hint
from microc.isa import SCALAR, Intrin
from microc.tir import ir
from microc.tir.analysis.context import is_index
from microc.tir.analysis.intervals import within
from microc.tir.analysis.simplification import bounds_of, simplify
from microc.tir.names import RESULT_RANGES
from microc.tir.rewrite import children, map_expr, map_stmt, walk_expr

_COMMUTATIVE = frozenset({"add", "mul", "bitand", "bitor", "bitxor", "min", "max", "eq", "ne"})
Operands = Mapping[ir.Expr, ir.Expr]
"""Operands by parameter of an intrinsic."""


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


def _select(func: ir.PrimFunc, names: Sequence[str]) -> tuple[ir.PrimFunc, set[str]]:
    """Return the function with calls of intrinsics, and the names of the called intrinsics. Raise ScheduleError for a name
    that is no scalar intrinsic."""
    for name in names:
        if name not in SCALAR or not SCALAR[name].is_scalar:
            scalars = [each.name for each in SCALAR.values() if each.is_scalar]
            raise ScheduleError(
                f"select_intrinsics: wrong name; got {name!r}, expected the name of a scalar intrinsic",
                hint=known_names_hint(name, scalars, "scalar intrinsics"),
            )
    patterns: dict[str, list[Intrin]] = {}
    for intrin in sorted((SCALAR[name] for name in names), key=_meaning_size, reverse=True):
        patterns.setdefault(_root_operator(intrin.meaning), []).append(intrin)
    called = set[str]()

    def select(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Cast("int32", ir.Cast(narrow, ir.Call(name) as call)) if _is_exact(name, narrow):
                return call
        candidates = patterns.get(_root_operator(expr))
        if candidates is None:
            return expr
        expr, is_clamp = _normalise_clamp(expr)
        # Index arithmetic keeps its form, since later passes simplify it. Only clamps are better as an instruction.
        if not is_clamp and is_index(expr):
            return expr
        for intrin in candidates:
            found = _match_call(intrin, expr)
            if found is not None:
                called.add(intrin.name)
                return found
        return expr

    body = map_stmt(func.body, lambda s: s, lambda x: map_expr(x, select))
    return replace(func, body=body), called


def _meaning_size(intrin: Intrin) -> int:
    """Return the number of nodes of the meaning of an intrinsic."""
    return sum(1 for _ in walk_expr(intrin.meaning)) if isinstance(intrin.meaning, ir.Expr) else 0


def _root_operator(expr: ir.Expr | ir.Stmt) -> str:
    """Return the name of the outermost operator of an expression, by which patterns are looked up. Maxima are minima,
    because a clamp may be written in both orders."""
    match expr:
        case ir.Bin("max", ir.Bin("min")):
            return "min"
        case ir.Bin(op) | ir.Un(op):
            return op
        case ir.Call(name):
            return name
        case _:
            return type(expr).__name__


def _normalise_clamp(expr: ir.Expr) -> tuple[ir.Expr, bool]:
    """Rewrite a clamp of int32 to ``min(max(x, low), high)`` with a simplified x, so that a final shift of x is visible.
    Leave any other expression unchanged. Return the expression, and whether it is a clamp."""
    parts = match_int32_clamp(expr)
    return (expr, False) if parts is None else (ir.clamp(simplify(parts[0]), *parts[1]), True)


def match_int32_clamp(expr: ir.Expr) -> tuple[ir.Expr, tuple[int, int]] | None:
    """Match ``min(max(x, low), high)`` of int32, with minimum and maximum in either order. Return (x, (low, high));
    None if it does not match."""
    match expr:
        case ir.Bin("min", ir.Bin("max", x, ir.Const(low)), ir.Const(high)) if expr.dtype == "int32":
            return x, (int(low), int(high))
        case ir.Bin("max", ir.Bin("min", x, ir.Const(high)), ir.Const(low)) if expr.dtype == "int32" and low <= high:
            return x, (int(low), int(high))
        case _:
            return None


def _match_call(intrin: Intrin, expr: ir.Expr) -> ir.Call | None:
    """Return the call of an intrinsic that computes ``expr``; None if its meaning does not match, or if an operand may
    exceed the limits of a parameter."""
    if isinstance(expr, ir.Bin) and expr.op == "mul" and any(isinstance(x, ir.Const) for x in (expr.a, expr.b)):
        return None  # the C compiler multiplies by a constant in fewer instructions
    params = [param for param in intrin.params if isinstance(param, ir.Var)]
    limits = {name: (low, high) for name, low, high in intrin.limits}
    for operands in _unify(intrin.meaning, expr, {}):
        found = [operands.get(param) for param in params]
        args = tuple(operand for operand in found if operand is not None)
        if len(args) == len(params) and all(
            within(bounds_of(arg) or dtypes.int_range(arg.dtype), limits[param.name])
            for param, arg in zip(params, args, strict=True)
            if param.name in limits
        ):
            return ir.Call(intrin.name, args, intrin.result)
    return None


def _unify(pattern: ir.Expr | ir.Stmt, expr: ir.Expr, known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which ``pattern`` is equal to ``expr``. ``known``: operands that were matched before."""
    if isinstance(pattern, ir.Var):
        if known.get(pattern, expr) == expr and pattern.dtype == expr.dtype:
            yield {**known, pattern: expr}
        return
    if type(pattern) is not type(expr) or pattern.dtype != expr.dtype:
        return
    match pattern, expr:
        case ir.Const(), _:
            if pattern == expr:
                yield known
            return
        case (ir.Bin(a), ir.Bin(b)) | (ir.Un(a), ir.Un(b)) | (ir.Call(a), ir.Call(b)) if a != b:
            return
        case ((ir.Load() | ir.AddressOf()), _):
            return
    parts = children(expr)
    yield from _unify_all(children(pattern), parts, known)
    if isinstance(pattern, ir.Bin) and pattern.op in _COMMUTATIVE and dtypes.is_integer(parts[0].dtype):
        yield from _unify_all(children(pattern), parts[::-1], known)


def _unify_all(patterns: Sequence[ir.Expr], parts: Sequence[ir.Expr], known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which all patterns are equal to the expressions ``parts`` at the same positions."""
    if len(patterns) != len(parts):
        return
    if not patterns:
        yield known
        return
    for operands in _unify(patterns[0], parts[0], known):
        yield from _unify_all(patterns[1:], parts[1:], operands)


def _is_exact(name: str, narrow: str) -> bool:
    """Test whether the dtype ``narrow`` holds all results of the intrinsic ``name``."""
    is_known = name in RESULT_RANGES and dtypes.is_integer(narrow)
    return is_known and within(RESULT_RANGES[name], dtypes.int_range(narrow))
