"""Scalable loops: iterations taken strip by strip, each as many of them as a machine's vectors have lanes for when it runs.

    for i in T.scalable(100, annotations={"lanes": 16}):
        vl: T.int32 = T.vector_length_x16(100 - i)
        T.evaluate(T.store_i8_i32xvscalex16(T.address_of(y, i), T.load_i8_i32xvscalex16(T.address_of(x, i), vl), vl))

``i`` goes on by ``vl``, the lanes that a turn has; ``lanes`` are those of the shortest vectors. An address tells of one lane, and
so do all analyses: the loop stands for as many turns of one lane as it has iterations. A turn does each statement for all its
lanes before the next, so what it reads may lie where other lanes write only if it reads all before it writes: then the order of
every read before every write is that of single lanes, whatever the number of them (:func:`fault`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from microc.tir import ir
from microc.tir.accesses import FOLLOWED, Scope
from microc.tir.affine import linear
from microc.tir.rewrite import accesses_of, stmt_children, stmt_exprs

LENGTH = "vector_length_x"
"""How words begin that say how many lanes a turn has, of so many that are left."""


def taken(loop: ir.For) -> ir.Let | None:
    """What names a turn's lanes, among the values that the body of a scalable loop starts with naming."""
    stmt = loop.body
    while isinstance(stmt, ir.Let):
        if isinstance(stmt.value, ir.Call) and stmt.value.name.startswith(LENGTH):
            return stmt
        stmt = stmt.body
    return None


def fault(loop: ir.For) -> str:
    """What is wrong with a scalable loop; nothing where all is well."""
    name = f"scalable loop {loop.var.name}"
    if taken(loop) is None or _asked(loop) != linear(loop.extent - loop.var):
        return f"{name} does not begin with the lanes that it takes of those that are left"
    if not in_order(loop.body):
        return f"{name} reads memory after it wrote some"
    return ""


def _asked(loop: ir.For) -> tuple[Mapping[ir.Expr, int], int] | None:
    """Of how many iterations that are left the lanes of a turn are taken."""
    known, stmt = Scope({}), loop.body
    while isinstance(stmt, ir.Let):
        if stmt == taken(loop) and isinstance(stmt.value, ir.Call):
            return linear(known.expr(stmt.value.args[0]))
        known.name(stmt.var, stmt.value)
        stmt = stmt.body
    return None


def in_order(body: ir.Stmt) -> bool:
    """Whether all that is read where results may lie is read before anything is written there."""
    written = False
    for reads, writes in _touched(body):
        if reads and written:
            return False
        written = written or writes
    return True


def _touched(stmt: ir.Stmt) -> Iterator[tuple[bool, bool]]:
    """Whether each part of a statement reads, and writes, where results lie; a loop that does both does so twice."""
    places = [x for e in stmt_exprs(stmt) for x in accesses_of(e) if x.buffer.scope in FOLLOWED]
    writes = isinstance(stmt, ir.Store) and stmt.buffer.scope in FOLLOWED
    yield (
        any(isinstance(x, ir.Load) or not x.writes for x in places),
        writes or any(isinstance(x, ir.AddressOf) and x.writes for x in places),
    )
    for _ in range(1 + isinstance(stmt, ir.For)):
        for child in stmt_children(stmt):
            yield from _touched(child)
