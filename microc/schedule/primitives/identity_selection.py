# SPDX-License-Identifier: Apache-2.0
"""The primitive ``apply_identities``: it replaces occurrences of the left sides of identities by their right sides.

Every expression is rewritten twice: before its operands, so that a large pattern is found before a part of it is replaced, and
after them, so that the results of other identities are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from microc.base import dtypes
from microc.errors import ScheduleError, known_names_hint
from microc.schedule.identities import IDENTITIES, Context, Identity, Match
from microc.schedule.primitives.unification import Operands, add_constant, root_operator, unify
from microc.tir import ir
from microc.tir.analysis.context import is_index
from microc.tir.analysis.simplification import simplify
from microc.tir.rewrite import children, map_children, map_stmt, stmt_children, stmt_exprs, with_children


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
    return replace(func, body=map_stmt(func.body, lambda s: s, lambda x: rewriters[id(x)](x))), used


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
    """Yield every complete expression of a statement and its sub-statements, with its context.

    ``loops``: loops around the statement inside the innermost block, outermost first."""
    target = ir.Load(stmt.buffer, stmt.indices) if isinstance(stmt, ir.Store) else None
    for expr in stmt_exprs(stmt):
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


class _Rewriter:
    """Rewriting of expressions of one context. An operand that occurs several times as the same object remains shared.

    ``used``: set to which the names of the applied identities are added."""

    def __init__(self, patterns: Mapping[str, list[Identity]], context: Context, used: set[str]) -> None:
        self.patterns, self.context, self.used = patterns, context, used
        self.known: dict[int, tuple[ir.Expr, ir.Expr]] = {}

    def __call__(self, expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, (ir.Const, ir.Var)) or is_index(expr):
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
