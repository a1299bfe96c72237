"""For the checker: the way to every access of a lowered function, through statements in a row, guards, names and loops."""

from __future__ import annotations

from collections.abc import Iterator

from microc.errors import InternalError
from microc.frozen import frozen
from microc.tir import ir
from microc.tir.rewrite import free_vars
from microc.tir.simplifier import Simplifier


@frozen
class Slot:
    """So many ticks on."""

    start: int


@frozen
class Turns:
    """The turns of a loop, ``span`` ticks each, at most ``longest`` of them."""

    loop: ir.For
    span: int
    longest: int


@frozen
class Guard:
    """Only where the condition comes out so."""

    condition: ir.Expr
    holds: bool


@frozen
class Name:
    """A value that has a name from here on."""

    var: ir.Var
    value: ir.Expr


Step = Slot | Turns | Guard | Name
Way = tuple[Step, ...]


@frozen
class Access:
    """How to get to an access, and what it touches."""

    way: Way
    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    extent: int
    write: bool
    step: int = 1


_ENDLESS = ir.const(ir.ENDLESS, "int32")
LEAF = 3
"""Ticks of a statement: reads, writes, and reads that go on while a call writes."""


def accesses(func: ir.PrimFunc) -> Iterator[Access]:
    """Everything that a lowered function touches."""
    return _row(func.body, (), _Ticks())


class _Ticks:
    """How long statements last at most; each is measured once, after the loops around it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ir.Stmt, int]] = {}
        self._reach: dict[ir.Var, tuple[int, int]] = {}

    def of(self, stmt: ir.Stmt) -> int:
        if id(stmt) not in self._known:
            self._known[id(stmt)] = (stmt, sum(self.item(item) for item in _flat(stmt)))
        return self._known[id(stmt)][1]

    def item(self, item: ir.Stmt | Name) -> int:
        match item:
            case ir.For(_, _, body):
                return self.turns(item) * self.of(body) + LEAF
            case ir.If(_, then, otherwise):
                return LEAF + self.of(then) + (self.of(otherwise) if otherwise else 0)
            case _:
                return LEAF

    def turns(self, loop: ir.For) -> int:
        """The most turns of a loop, by those of the loops around it; two for an endless one, whose turns are alike."""
        most = 2 if loop.extent == _ENDLESS else Simplifier(self._reach).reach(loop.extent)[1]
        if not isinstance(most, int):
            raise InternalError("the order in a loop without a bound is not known")
        self._reach[loop.var] = (0, max(most - 1, 0))
        return max(most, 0)


def _row(stmt: ir.Stmt, way: Way, ticks: _Ticks) -> Iterator[Access]:
    start = 0
    for item in _flat(stmt):
        here = (*way, Slot(start))
        start += ticks.item(item)
        match item:
            case ir.Store(buffer, indices, value):
                yield from _operands((*indices, value), here)
                yield Access((*here, Slot(1)), buffer, indices, 1, True)
            case ir.Evaluate(value):
                yield from _operands((value,), here)
            case ir.If(condition, then, otherwise):
                yield from _operands((condition,), here)
                yield from _row(then, (*here, Slot(LEAF), Guard(condition, True)), ticks)
                if otherwise is not None:
                    past = Slot(LEAF + ticks.of(then))
                    yield from _row(otherwise, (*here, past, Guard(condition, False)), ticks)
            case ir.For(_, extent, body):
                longest = ticks.turns(item)
                turns = Turns(item, ticks.of(body), longest)
                yield from _row(body, (*here, turns), ticks)
                yield from _operands((extent,), (*here, Slot(turns.longest * turns.span)))  # asked once more at the end
            case Name():
                yield from _operands((item.value,), here)
                way = (*way, item)
            case _:
                raise InternalError(f"{type(item).__name__} was not lowered")


def _flat(stmt: ir.Stmt) -> Iterator[ir.Stmt | Name]:
    """Statements in order; a let is a statement that names a value for those behind it."""
    waiting = [stmt]
    while waiting:
        match waiting.pop():
            case ir.Seq(body):
                waiting.extend(reversed(body))
            case ir.Let(var, value, body):
                yield Name(var, value)
                waiting.append(body)
            case ir.Alloc(_, body):
                waiting.append(body)
            case other:
                yield other


def _operands(exprs: tuple[ir.Expr, ...], way: Way) -> Iterator[Access]:
    """Reads come first and writes through pointers second. A call that does both may read until it ends."""
    for expr in exprs:
        yield from _expression(expr, way, during=False)


def _expression(expr: ir.Expr, way: Way, *, during: bool) -> Iterator[Access]:
    match expr:
        case ir.Load(buffer, indices):
            yield Access((*way, Slot(2 if during else 0)), buffer, indices, 1, False)
            for index in indices:
                yield from _expression(index, way, during=during)
        case ir.AddressOf(buffer, indices, extent, writes, step):
            tick = 1 if writes else 2 if during else 0
            yield Access((*way, Slot(tick)), buffer, indices, extent, writes, step)
            for index in indices:
                yield from _expression(index, way, during=during)
        case ir.Call(_, args):
            stores = any(isinstance(a, ir.AddressOf) and a.writes for a in args)
            for a in args:
                yield from _expression(a, way, during=during or (stores and isinstance(a, ir.AddressOf)))
        case ir.Select(condition, a, b):
            yield from _expression(condition, way, during=during)
            yield from _expression(a, (*way, Guard(condition, True)), during=during)
            yield from _expression(b, (*way, Guard(condition, False)), during=during)
        case ir.Bin(("and" | "or") as op, a, b):
            yield from _expression(a, way, during=during)
            yield from _expression(b, (*way, Guard(a, op == "and")), during=during)
        case ir.Bin(_, a, b):
            yield from _expression(a, way, during=during)
            yield from _expression(b, way, during=during)
        case ir.Un(_, a) | ir.Cast(_, a):
            yield from _expression(a, way, during=during)
        case ir.Const() | ir.Var():
            return
        case _:
            raise InternalError(f"unknown expression {type(expr).__name__}")


def variables(access: Access) -> set[ir.Var]:
    """Variables on which it depends whether and where the access happens."""
    found = {var for index in access.indices for var in free_vars(index)}
    for step in reversed(access.way):
        match step:
            case Guard(condition):
                found |= free_vars(condition)
            case Turns(loop):
                found |= free_vars(loop.extent)
            case Name(var, value) if var in found:
                found |= free_vars(value)
    return found
