"""Barriers between what the items of a group do: one waits for the others where it would read or overwrite what they use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from microc.errors import ScheduleError
from microc.frozen import frozen
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.lower.region import accesses
from microc.tir.rewrite import free_vars, substitute, walk_stmt

BARRIER = "barrier"
LOCAL, GLOBAL = "shared", "global"


@frozen
class _Use:
    """A phase reads or writes a buffer; ``first``: its index along the first axis, where all its accesses agree."""

    buffer: ir.Buffer
    writes: bool
    first: ir.Expr | None

    def clashes(self, other: _Use) -> bool:
        if self.buffer != other.buffer or not (self.writes or other.writes):
            return False
        return self.first is None or other.first is None or not _apart(self.first, other.first)


Uses = frozenset[_Use]


def with_barriers(stmt: ir.Stmt, params: Collection[ir.Buffer]) -> ir.Stmt:
    """``stmt`` with calls of ``barrier`` between nests of items where a group's items use the same memory.

    ScheduleError for a nest that reads what it writes into shared memory: items would have to wait inside of it.
    """
    written = {a.buffer for a in accesses(stmt) if a.writes}
    read = {a.buffer for a in accesses(stmt) if not a.writes}
    followed = {b for b in written & read if b.scope == "shared" or b in params}
    result, _ = _walk(stmt, frozenset(), followed)
    return result


def _walk(stmt: ir.Stmt, before: Uses, followed: set[ir.Buffer]) -> tuple[ir.Stmt, Uses]:
    """The statement with barriers, and what was used since the last one; ``before``: what was used since one before it."""
    match stmt:
        case ir.Seq(body):
            parts = []
            for child in body:
                part, before = _walk(child, before, followed)
                parts.append(part)
            return ir.seq(*parts), before
        case ir.Alloc(_, inside) | ir.Let(_, _, inside):
            part, after = _walk(inside, before, followed)
            return replace(stmt, body=part), after
        case ir.For(var) if _has_phases(stmt):
            _, once = _walk(stmt.body, before, followed)
            earlier = frozenset(replace(u, first=u.first and substitute(u.first, {var: var - 1})) for u in once)
            part, after = _walk(stmt.body, before | earlier, followed)
            return replace(stmt, body=part), before | after
        case ir.If(_, then, otherwise) if _has_phases(stmt):
            if _clash(_uses(stmt, followed), before):  # all wait, whether or not they go in
                part, after = _walk(stmt, frozenset(), followed)
                return ir.seq(_barrier(_uses(stmt, followed), before), part), after
            first, after = _walk(then, before, followed)
            second, other = _walk(otherwise, before, followed) if otherwise is not None else (None, before)
            return replace(stmt, then=first, otherwise=second), after | other
        case _:
            return _phase(stmt, before, followed)


def _has_phases(stmt: ir.Stmt) -> bool:
    """Whether nests of items are inside a statement that all items run alike."""
    if isinstance(stmt, ir.For) and stmt.kind in ir.ITEMS:
        return False
    return any(isinstance(s, ir.For) and s.kind in ir.ITEMS for s in walk_stmt(stmt))


def _phase(stmt: ir.Stmt, before: Uses, followed: set[ir.Buffer]) -> tuple[ir.Stmt, Uses]:
    uses = _uses(stmt, followed)
    for buffer in followed:
        mine = [u for u in uses if u.buffer == buffer]
        if buffer.scope == "shared" and len({u.writes for u in mine}) == 2:
            raise ScheduleError(
                f"one nest of items writes {buffer.name!r} into shared memory and reads it",
                hint="compute_at a loop outside of the items: they wait for each other between nests",
            )
    if not _clash(uses, before):
        return stmt, before | uses
    return ir.seq(_barrier(uses, before), stmt), uses


def _clash(uses: Uses, before: Uses) -> bool:
    return any(u.clashes(v) for u in uses for v in before)


def _barrier(uses: Uses, before: Uses) -> ir.Stmt:
    scope = GLOBAL if any(u.clashes(v) and u.buffer.scope != "shared" for u in uses for v in before) else LOCAL
    return ir.Evaluate(ir.Call(f"{BARRIER}_{scope}", (), "int32"))


def _uses(stmt: ir.Stmt, followed: set[ir.Buffer]) -> Uses:
    found: dict[tuple[ir.Buffer, bool], set[ir.Expr | None]] = {}
    for access in accesses(stmt):
        if access.buffer in followed:
            index = access.indices[0]
            alike = free_vars(index).isdisjoint(loop.var for loop in access.loops)  # for all items
            found.setdefault((access.buffer, access.writes), set()).add(index if alike else None)
    return frozenset(
        _Use(buffer, writes, next(iter(firsts)) if len(firsts) == 1 else None)
        for (buffer, writes), firsts in found.items()
    )


def _apart(a: ir.Expr, b: ir.Expr) -> bool:
    """Whether two numbers of halves certainly differ: they, or x and y of ``x % 2`` and ``y % 2``, differ by an odd one."""
    difference = ir.int_value(simplify(_numbered(a) - _numbered(b)))
    return difference is not None and difference % 2 == 1


def _numbered(half: ir.Expr) -> ir.Expr:
    return half.a if isinstance(half, ir.Bin) and half.op == "floormod" and ir.int_value(half.b) == 2 else half
