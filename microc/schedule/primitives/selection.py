# SPDX-License-Identifier: Apache-2.0
"""Selection of instructions by meaning: unification, identities of expressions, and scalar intrinsics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from microc.base import dtypes
from microc.errors import ScheduleError, known_names_hint
from microc.isa import SCALAR, Intrin
from microc.schedule.identities import IDENTITIES, Context, Identity, Match
from microc.tir import ir
from microc.tir.analysis.context import is_index
from microc.tir.analysis.linear_forms import within
from microc.tir.analysis.simplification import bounds_of, simplify
from microc.tir.names import RESULT_RANGES
from microc.tir.rewrite import (
    ExprMap,
    children,
    map_children,
    map_expr,
    map_stmt,
    stmt_children,
    stmt_exprs,
    substitute,
    walk_expr,
    with_children,
)

# ---- Unification of patterns with expressions: a variable of a pattern matches any operand of its dtype,
# commutative operators of integers match in both orders, and so do the minimum and the maximum of a clamp. An
# operand that is a call of an intrinsic also matches the intrinsic's meaning.


_COMMUTATIVE = frozenset({"add", "mul", "bitand", "bitor", "bitxor", "min", "max", "eq", "ne"})
Operands = Mapping[ir.Expr, ir.Expr]
"""Operands by variable of a pattern."""


def root_operator(expr: ir.Expr | ir.Stmt) -> str:
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


def normalise_clamp(expr: ir.Expr) -> tuple[ir.Expr, bool]:
    """Rewrite a clamp of int32 to ``min(max(x, low), high)`` with a simplified x, so that a final shift of x is visible.
    Leave any other expression unchanged. Return the expression, and whether it is a clamp."""
    parts = match_int32_clamp(expr)
    return (expr, False) if parts is None else (ir.clamp(simplify(parts[0]), *parts[1]), True)


def _clamp_with_outer_minimum(expr: ir.Expr) -> ir.Expr:
    """Rewrite a clamp of int32 to ``min(max(x, low), high)``. Leave any other expression unchanged."""
    parts = match_int32_clamp(expr)
    return expr if parts is None else ir.clamp(parts[0], *parts[1])


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


def add_constant(expr: ir.Expr, value: int) -> ir.Expr:
    """Build the sum of an integer expression and a constant. A constant that the expression adds or subtracts is included."""
    match expr:
        case ir.Const(int() as number):
            return ir.Const(number + value, expr.dtype)
        case ir.Bin("add" | "sub" as op, x, ir.Const(int() as number)):
            total = (number if op == "add" else -number) + value
            return x if total == 0 else x + total if total > 0 else x - -total
        case _:
            return simplify(expr + value)


def expand_call(call: ir.Call) -> ir.Expr:
    """Return the meaning of a call of a scalar intrinsic, with its arguments. Return any other call unchanged."""
    return _expand_call(call, SCALAR.entries)


@lru_cache(maxsize=256)
def _expand_call(call: ir.Call, _entries: object) -> ir.Expr:
    """Return :func:`expand_call`. The contents of the registry are part of the key, since plugins extend it."""
    intrin = SCALAR.get(call.name)
    if intrin is None or not intrin.is_scalar or not isinstance(intrin.meaning, ir.Expr):
        return call
    params = (param for param in intrin.params if isinstance(param, ir.Var))
    return substitute(intrin.meaning, dict(zip(params, call.args, strict=True)))


def unify(pattern: ir.Expr | ir.Stmt, expr: ir.Expr, known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which ``pattern`` is equal to ``expr``. ``known``: operands that were matched before."""
    if isinstance(pattern, ir.Var):
        if known.get(pattern, expr) == expr and pattern.dtype == expr.dtype:
            yield {**known, pattern: expr}
        return
    match pattern:
        # A distance plus one may have been folded: d + 1 is s for d = s - 1.
        case ir.Bin("add", ir.Var() as var, ir.Const(int() as number)) if var in known:
            if add_constant(known[var], number) == expr:
                yield known
                return
        case ir.Bin("min", ir.Bin("max")):
            expr = _clamp_with_outer_minimum(expr)
        case ir.Bin() | ir.Select() | ir.Cast() if isinstance(expr, ir.Call):
            expr = expand_call(expr)
        case _:
            pass
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
    for operands in unify(patterns[0], parts[0], known):
        yield from _unify_all(patterns[1:], parts[1:], operands)


# ---- The primitive ``apply_identities``: it replaces occurrences of the left sides of identities by their right
# sides.
#
# Every expression is rewritten twice: before its operands, so that a large pattern is found before a part of it
# is replaced, and after them, so that the results of other identities are found.


def apply_identities(func: ir.PrimFunc, names: tuple[str, ...]) -> ir.PrimFunc:
    """Replace the pattern of every identity of ``names`` (:data:`.identities.IDENTITIES`) by the expression that is equal.

    If several match, the first one of ``names`` is applied. Index arithmetic is unchanged."""
    return _apply(func, names)[0]


def find_identities(func: ir.PrimFunc, names: Sequence[str]) -> tuple[str, ...]:
    """Return those of the identities ``names`` that :func:`apply_identities` would apply to a function, in the same order."""
    used = _apply(func, names)[1]
    return tuple(name for name in names if name in used)


def rewrite_expr(expr: ir.Expr, names: Sequence[str]) -> ir.Expr:
    """Apply identities to an expression that is in no statement, so that identities with conditions on it do not apply."""
    return _Rewriter(_index_patterns(names), Context(), set())(expr)


def _apply(func: ir.PrimFunc, names: Sequence[str]) -> tuple[ir.PrimFunc, set[str]]:
    """Return the rewritten function, and the names of the applied identities. Raise ScheduleError for an unknown name."""
    patterns, used = _index_patterns(names), set[str]()
    if not patterns:
        return func, used
    contexts: dict[int, Context] = {}
    for expr, context in _list_contexts(func.body, Context(), ()):
        # Of an object that several statements share, only what is common to all of them is known.
        contexts[id(expr)] = _common_context(contexts.get(id(expr), context), context)
    rewriters = {key: _Rewriter(patterns, context, used) for key, context in contexts.items()}

    def rewrite(expr: ir.Expr) -> ir.Expr:
        rewriter = rewriters.get(id(expr))
        return expr if rewriter is None else rewriter(expr)

    return replace(func, body=map_stmt(func.body, lambda s: s, rewrite)), used


def _index_patterns(names: Sequence[str]) -> Mapping[str, list[Identity]]:
    """Return the identities ``names`` by the outermost operator of their patterns. Raise ScheduleError for an unknown name."""
    patterns: dict[str, list[Identity]] = {}
    for name in names:
        if name not in IDENTITIES:
            raise ScheduleError(
                f"apply_identities: wrong name; got {name!r}, expected the name of an identity",
                hint=known_names_hint(name, IDENTITIES, "identities"),
            )
        patterns.setdefault(root_operator(IDENTITIES[name].pattern), []).append(IDENTITIES[name])
    return patterns


def _list_contexts(stmt: ir.Stmt, context: Context, loops: tuple[ir.For, ...]) -> Iterator[tuple[ir.Expr, Context]]:
    """Yield every complete expression of a statement and its sub-statements that may be rewritten, with its context.

    ``loops``: loops around the statement inside the innermost block, outermost first."""
    target = ir.Load(stmt.buffer, stmt.indices) if isinstance(stmt, ir.Store) else None
    for expr in stmt_exprs(stmt):
        if not _is_fixed(expr):
            yield expr, replace(context, root=expr, target=target)
    match stmt:
        case ir.For():
            loops = (*loops, stmt)
        case ir.Block():
            context = Context(
                notes={**context.notes, **dict(stmt.annotations)},
                bindings={i.var: i.binding for i in stmt.iters},
                loop_var=next((loop.var for loop in reversed(loops) if loop.kind != "unrolled"), None),
            )
            loops = ()
        case _:
            pass
    for child in stmt_children(stmt):
        yield from _list_contexts(child, context, loops)


def _common_context(a: Context, b: Context) -> Context:
    """Return the context with the fields in which two contexts are equal."""
    if a is b:
        return a
    names = ("root", "target", "notes", "bindings", "loop_var")
    return Context(**{name: getattr(a, name) for name in names if getattr(a, name) == getattr(b, name)})


def _is_fixed(expr: ir.Expr) -> bool:
    """Test whether identities leave an expression unchanged, with all its operands."""
    return isinstance(expr, (ir.Const, ir.Var)) or is_index(expr)


class _Rewriter:
    """Rewriting of expressions of one context. An operand that occurs several times as the same object remains shared.

    ``used``: set to which the names of the applied identities are added."""

    def __init__(self, patterns: Mapping[str, list[Identity]], context: Context, used: set[str]) -> None:
        self.patterns, self.context, self.used = patterns, context, used
        self.known: dict[int, tuple[ir.Expr, ir.Expr]] = {}

    def __call__(self, expr: ir.Expr) -> ir.Expr:
        if _is_fixed(expr):
            return expr
        entry = self.known.get(id(expr))
        if entry is None:  # the expression is stored, too, so that its id is not reused
            outer = self._rewrite_root(expr)
            inner = map_children(outer, self)
            result = inner if inner is outer else self._rewrite_root(inner)
            entry = self.known[id(expr)] = (expr, result)
        return entry[1]

    def _rewrite_root(self, expr: ir.Expr) -> ir.Expr:
        """Apply identities to an expression as a whole until none matches."""
        while (found := self._apply_first(expr)) is not None:
            expr = found
        return expr

    def _apply_first(self, expr: ir.Expr) -> ir.Expr | None:
        """Return the replacement of an expression by the first identity that matches; None if none does."""
        for identity in self.patterns.get(root_operator(expr), ()):
            for operands in unify(identity.pattern, expr, {}):
                match = Match(
                    expr, {var.name: found for var, found in operands.items() if isinstance(var, ir.Var)}, self.context
                )
                constants = (match.operands[name] for name in identity.constants)
                if (
                    all(isinstance(x, ir.Const) for x in constants)
                    and identity.condition(match)
                    and identity.context(match)
                ):
                    self.used.add(identity.name)
                    return substitute_operands(identity.replacement, operands)
        return None


def substitute_operands(template: ir.Expr, operands: Operands) -> ir.Expr:
    """Build an expression from a template by replacing its variables by operands. Arithmetic on constants is computed;
    operands are not simplified."""
    if isinstance(template, ir.Var):
        return operands[template]
    parts = children(template)
    found = [substitute_operands(part, operands) for part in parts]
    built = with_children(template, found)
    match template, built:
        case ir.Cast(dtype), ir.Cast(_, ir.Const(value)) if dtypes.is_integer(dtype):
            return ir.Const(int(value), dtype)
        case ir.Bin("add" | "sub" as op, ir.Var(), ir.Const(int() as value)), _ if dtypes.is_integer(built.dtype):
            return add_constant(found[0], value if op == "add" else -value)
        case _, ir.Bin("add" | "shl" | "shr", a, ir.Const(0)):
            return a
        case _, ir.Bin(_, ir.Const(), ir.Const()):
            return simplify(built)
        case _:
            return built


# ---- The primitive ``select_intrinsics``: it finds the meanings of scalar intrinsics in a function, and replaces
# them by calls.
#
# An intrinsic declares what it computes as an expression of its parameters, which is the pattern
# (:func:`unify`). So a new scalar instruction needs no code here. Expressions that only equal a meaning
# are first rewritten by identities (:func:`apply_identities`).


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
    """Return the keys by which patterns of an expression are looked up: the limits of a clamp, and the outermost operator with
    the dtype of its result."""
    root = root_operator(expr), expr.dtype if isinstance(expr, ir.Expr) else ""
    clamp = match_int32_clamp(expr) if isinstance(expr, ir.Bin) else None
    return (root,) if clamp is None else (clamp[1], root)


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
