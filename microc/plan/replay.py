"""For the checker: when a call touches every byte of some operands, by walking down to each access and running it in order.

It shares no code with the analysis that the planner trusts (:mod:`microc.tir.order`) and works the other way round: the analysis
times statements from the inside out and ignores guards; here a span of time is cut up from the outside in (a sequence gives each
of its statements a slot, a loop each of its turns), all turns of a loop stand side by side in arrays, and guards are evaluated.
A loop that an access does not depend on runs its first and its last turn only: those between touch the same bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import InternalError
from microc.tir import ir

ETERNITY = 1 << 62
NEVER = ETERNITY
_CHUNK = 1 << 18
"""Executions of an access that are followed side by side."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """Statement ``number`` of ``count`` in a row."""

    number: int
    count: int


@dataclass(frozen=True, slots=True)
class _Guard:
    """Only where the condition comes out so."""

    condition: ir.Expr
    holds: bool


@dataclass(frozen=True, slots=True)
class _Name:
    """A value that has a name from here on."""

    var: ir.Var
    value: ir.Expr


Step = _Slot | _Guard | _Name | ir.For
Way = tuple[Step, ...]
Values = Mapping[ir.Var, Array | None]
"""Variables, one number for each of some executions side by side; None for data."""


@dataclass(frozen=True, slots=True)
class _Access:
    """How to get to an access, and what it touches."""

    way: Way
    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    extent: int
    write: bool
    step: int = 1


class Replay:
    """First write and last touch of every byte of the watched buffers of a lowered function, on one clock."""

    def __init__(self, func: ir.PrimFunc, watched: Iterable[ir.Buffer]) -> None:
        self.first_write = {b: np.full(b.nbytes, NEVER, np.int64) for b in watched}
        self.last_touch = {b: np.full(b.nbytes, -1, np.int64) for b in self.first_write}
        for access in _statement(func.body, ()):
            if access.buffer in self.first_write:
                self._follow(access)

    def _follow(self, access: _Access) -> None:
        """Run one access."""
        for values, when in _walk(access.way, _variables(access), {}, np.zeros(1, np.int64), ETERNITY):
            self._touch(access, values, when)

    def _touch(self, access: _Access, values: Values, when: Array) -> None:
        buffer, width = access.buffer, dtypes.nbytes(access.buffer.dtype)
        element, inside = np.zeros_like(when), np.ones(len(when), bool)
        for index, extent in zip(access.indices, buffer.shape, strict=True):
            number = _value(index, values)
            if number is None:  # made of data: anywhere
                self._mark(access, np.arange(buffer.nbytes), when[:, None])
                return
            inside &= (number >= 0) & (number < extent)  # behind a guard that is made of data, anything may stand
            element = element * extent + number
        offsets = (np.arange(access.extent)[:, None] * access.step * width + np.arange(width)).reshape(-1)
        touched = element[inside, None] * width + offsets
        self._mark(access, np.minimum(touched, buffer.nbytes - 1), when[inside, None])

    def _mark(self, access: _Access, touched: Array, when: Array) -> None:
        touched, when = (part.reshape(-1) for part in np.broadcast_arrays(touched, when))
        np.maximum.at(self.last_touch[access.buffer], touched, when)
        if access.write:
            np.minimum.at(self.first_write[access.buffer], touched, when)


# ---------------------------------------------------------------- ways to all accesses


def _statement(stmt: ir.Stmt, way: Way) -> Iterator[_Access]:
    items = list(_flat(stmt))
    for k, item in enumerate(items):
        here = (*way, _Slot(k, len(items)))
        match item:
            case ir.Store(buffer, indices, value):
                yield from _operands((*indices, value), here)
                yield _Access((*here, _Slot(1, 3)), buffer, indices, 1, True)
            case ir.Evaluate(value):
                yield from _operands((value,), here)
            case ir.If(condition, then, otherwise):
                yield from _operands((condition,), (*here, _Slot(0, 3)))
                yield from _statement(then, (*here, _Slot(1, 3), _Guard(condition, True)))
                if otherwise is not None:
                    yield from _statement(otherwise, (*here, _Slot(2, 3), _Guard(condition, False)))
            case ir.For():
                yield from _statement(item.body, (*here, _Slot(0, 2), item))
                yield from _operands((item.extent,), (*here, _Slot(1, 2)))
            case _Name():
                yield from _operands((item.value,), here)
                way = (*way, item)
            case _:
                raise InternalError(f"{type(item).__name__} was not lowered")


def _flat(stmt: ir.Stmt) -> Iterator[ir.Stmt | _Name]:
    """Statements in order; a let is a statement that names a value for those behind it."""
    match stmt:
        case ir.Seq(body):
            for child in body:
                yield from _flat(child)
        case ir.Let(var, value, body):
            yield _Name(var, value)
            yield from _flat(body)
        case ir.Alloc(_, body):
            yield from _flat(body)
        case _:
            yield stmt


def _operands(exprs: tuple[ir.Expr, ...], way: Way) -> Iterator[_Access]:
    """Reads come first (third 0) and writes through pointers second. A call that does both may read until it ends."""
    for expr in exprs:
        yield from _expression(expr, way, during=False)


def _expression(expr: ir.Expr, way: Way, *, during: bool) -> Iterator[_Access]:
    match expr:
        case ir.Load(buffer, indices):
            yield _Access((*way, _Slot(2 if during else 0, 3)), buffer, indices, 1, False)
            for index in indices:
                yield from _expression(index, way, during=during)
        case ir.AddressOf(buffer, indices, extent, writes, step):
            third = 1 if writes else 2 if during else 0
            yield _Access((*way, _Slot(third, 3)), buffer, indices, extent, writes, step)
            for index in indices:
                yield from _expression(index, way, during=during)
        case ir.Call(_, args):
            stores = any(isinstance(a, ir.AddressOf) and a.writes for a in args)
            for a in args:
                yield from _expression(a, way, during=during or (stores and isinstance(a, ir.AddressOf)))
        case ir.Select(condition, a, b):
            yield from _expression(condition, way, during=during)
            yield from _expression(a, (*way, _Guard(condition, True)), during=during)
            yield from _expression(b, (*way, _Guard(condition, False)), during=during)
        case ir.Bin(("and" | "or") as op, a, b):
            yield from _expression(a, way, during=during)
            yield from _expression(b, (*way, _Guard(a, op == "and")), during=during)
        case ir.Bin(_, a, b):
            yield from _expression(a, way, during=during)
            yield from _expression(b, way, during=during)
        case ir.Un(_, a) | ir.Cast(_, a):
            yield from _expression(a, way, during=during)
        case ir.Const() | ir.Var():
            return
        case _:
            raise InternalError(f"unknown expression {type(expr).__name__}")


# ---------------------------------------------------------------- running them


def _variables(access: _Access) -> set[ir.Var]:
    """Variables on which it depends whether and where the access happens."""
    found = set(_names(access.indices))
    for step in reversed(access.way):
        match step:
            case _Guard(condition):
                found |= set(_names((condition,)))
            case ir.For(_, extent):
                found |= set(_names((extent,)))
            case _Name(var, value) if var in found:
                found |= set(_names((value,)))
    return found


def _names(exprs: tuple[ir.Expr, ...]) -> Iterator[ir.Var]:
    for expr in exprs:
        match expr:
            case ir.Var():
                yield expr
            case ir.Load(_, indices) | ir.AddressOf(_, indices):
                yield from _names(indices)
            case ir.Call(_, args):
                yield from _names(args)
            case ir.Select(c, a, b):
                yield from _names((c, a, b))
            case ir.Bin(_, a, b):
                yield from _names((a, b))
            case ir.Un(_, a) | ir.Cast(_, a):
                yield from _names((a,))


def _walk(way: Way, wanted: set[ir.Var], values: Values, when: Array, span: int) -> Iterator[tuple[Values, Array]]:
    """Executions of what lies at the end of a way: variables and times side by side."""
    for position, step in enumerate(way):
        match step:
            case _Slot(number, count):
                span //= count
                when = when + number * span
            case _Guard(condition, holds):
                values, when = _guarded(condition, holds, values, when)
            case _Name(var, value) if var in wanted:
                named = _value(value, values)
                values = {**values, var: None if named is None else np.broadcast_to(named, when.shape)}
            case ir.For():
                for inner, then, turn in _turns(step, wanted, values, when, span):
                    yield from _walk(way[position + 1 :], wanted, inner, then, turn)
                return
        if span < 1:
            raise InternalError("loops nest too deep to be checked")
    yield values, when


def _guarded(condition: ir.Expr, holds: bool, values: Values, when: Array) -> tuple[Values, Array]:
    """The executions that a guard lets pass; one that is made of data lets all pass."""
    if isinstance(condition, ir.Bin) and condition.op == ("and" if holds else "or"):
        for part in (condition.a, condition.b):
            values, when = _guarded(part, holds, values, when)
        return values, when
    outcome = _value(condition, values)
    if outcome is None:
        return values, when
    chosen = np.broadcast_to(outcome.astype(bool) == holds, when.shape)
    return _picked(values, chosen), when[chosen]


def _turns(
    loop: ir.For, wanted: set[ir.Var], values: Values, when: Array, span: int
) -> Iterator[tuple[Values, Array, int]]:
    """The turns of a loop, some at a time; the first and the last only, if the access does not depend on the loop."""
    extents = _value(loop.extent, values)
    if extents is None or loop.kind == "parallel":
        raise InternalError(f"the order in loop {loop.var.name} is not known")
    extents = np.broadcast_to(extents, when.shape)
    longest = int(extents.max(initial=0))
    turns = np.arange(longest if loop.var in wanted else min(longest, 2))
    at_once = max(1, _CHUNK // max(len(when), 1))
    for start in range(0, len(turns), at_once):
        some = turns[start : start + at_once]
        parent, number = np.repeat(np.arange(len(when)), len(some)), np.tile(some, len(when))
        if loop.var not in wanted:
            number = number * (extents[parent] - 1)
        chosen = (number >= 0) & (number < extents[parent])
        parent, number = parent[chosen], number[chosen]
        turn = span // longest
        yield {**_picked(values, parent), loop.var: number}, when[parent] + number * turn, turn


def _picked(values: Values, chosen: Array) -> dict[ir.Var, Array | None]:
    return {var: None if array is None else array[chosen] for var, array in values.items()}


def _value(expr: ir.Expr, values: Values) -> Array | None:
    """An integer expression for every execution; None where data decides."""
    match expr:
        case ir.Const(int() as value):
            return np.array(value)
        case ir.Var():
            return values.get(expr)
        case ir.Un("neg", a):
            x = _value(a, values)
            return None if x is None else -x
        case ir.Un("not", a):
            x = _value(a, values)
            return None if x is None else ~x
        case ir.Bin(op, a, b) if op in _OPERATORS:
            x, y = _value(a, values), _value(b, values)
            return None if x is None or y is None else _OPERATORS[op](x, y)
        case ir.Select(c, a, b):
            chosen, x, y = (_value(part, values) for part in (c, a, b))
            return None if chosen is None or x is None or y is None else np.where(chosen, x, y)
        case _:
            return None


def _truncated(x: Array, y: Array) -> Array:
    return np.where((x < 0) == (y < 0), abs(x) // abs(y), -(abs(x) // abs(y)))


_OPERATORS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "floordiv": operator.floordiv,
        "floormod": operator.mod,
        "truncdiv": _truncated,
        "truncmod": lambda x, y: x - y * _truncated(x, y),
        "min": np.minimum,
        "max": np.maximum,
        "shl": operator.lshift,
        "shr": operator.rshift,
        "bitand": operator.and_,
        "bitor": operator.or_,
        "bitxor": operator.xor,
        "lt": operator.lt,
        "le": operator.le,
        "gt": operator.gt,
        "ge": operator.ge,
        "eq": operator.eq,
        "ne": operator.ne,
        "and": np.logical_and,
        "or": np.logical_or,
    }
)
