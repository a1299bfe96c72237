"""What statements touch, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.size_forms import Conflict, Form, Forms, Ranges
from microc.tir.rewrite import free_vars, substitute, walk_expr, walk_stmt

# ---- What single statements of a lowered function touch, in which order within them, and the walk over statements in
# a row.

TICKS = 3
"""A statement reads (0), then writes (1); an intrinsic that reads and writes through pointers reads to its very end (2)."""
FOLLOWED = ("global", "workspace")
"""Scopes whose accesses matter; constants and registers have no place in the arena."""
_EXPRESSIONS = (ir.Load, ir.AddressOf, ir.Const, ir.Var, ir.Bin, ir.Un, ir.Cast, ir.Select, ir.Call)


@frozen
class Touch:
    """One syntactic access, ``tick`` ticks after its statement starts: ``extent`` elements from an index on, ``step`` apart."""

    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    write: bool
    tick: int
    extent: int = 1
    step: int = 1


@dataclass(slots=True)
class Scope:
    """The indices that names stand for. A name for data stands for itself, and is unknown."""

    names: dict[ir.Var, ir.Expr]

    def name(self, var: ir.Var, value: ir.Expr) -> None:
        data = any(isinstance(x, (ir.Load, ir.Call, ir.AddressOf)) for x in walk_expr(value))
        self.names[var] = var if data else self.expr(value)

    def expr(self, expr: ir.Expr) -> ir.Expr:
        return substitute(expr, self.names) if self.names else expr

    def indices(self, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(map(self.expr, indices))


def row(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
    """Statements in order; a let stands for itself, what it encloses comes behind it."""
    stack = [stmt]
    while stack:
        match stack.pop():
            case ir.Seq(body):
                stack += reversed(body)
            case ir.Let(_, _, body) as let:
                yield let
                stack.append(body)
            case ir.Alloc(_, body):
                stack.append(body)
            case other:
                yield other


def leaf(stmt: ir.Stmt, scope: Scope) -> list[Touch]:
    """What a statement touches by itself: of a condition and a loop, what decides on them; names enter the scope."""
    match stmt:
        case ir.Store(buffer, indices, value):
            written = [Touch(buffer, scope.indices(indices), True, 1)] if buffer.scope in FOLLOWED else []
            return _touched((*indices, value), scope) + written
        case ir.Evaluate(value):
            return _touched((value,), scope)
        case ir.Let(var, value):
            found = _touched((value,), scope)
            scope.name(var, value)
            return found
        case ir.If(condition):
            return _touched((condition,), scope)
        case ir.For(_, extent):
            return _touched((extent,), scope)
        case _:
            raise InternalError(f"{type(stmt).__name__} was not lowered")


def _touched(exprs: tuple[ir.Expr, ...], scope: Scope) -> list[Touch]:
    """What the expressions of one statement touch. Operands of a call are there before it starts to write."""
    found, writes = [], False
    for x in (x for expr in exprs for x in walk_expr(expr)):
        match x:
            case ir.Load(buffer, indices) if buffer.scope in FOLLOWED:
                found.append(Touch(buffer, scope.indices(indices), False, 0))
            case ir.AddressOf(buffer, indices, extent, write, step) if buffer.scope in FOLLOWED:
                found.append(Touch(buffer, scope.indices(indices), write, 1 if write else 0, extent, step))
                writes = writes or write
            case x if not isinstance(x, _EXPRESSIONS):
                raise InternalError(f"unknown expression {type(x).__name__}")
    if not writes:
        return found
    call = exprs[0]
    outermost = isinstance(call, ir.Call) and any(isinstance(a, ir.AddressOf) and a.writes for a in call.args)
    pointed = {a.buffer for a in call.args if isinstance(a, ir.AddressOf)} if isinstance(call, ir.Call) else set()
    return [a if a.write or (outermost and a.buffer not in pointed) else replace(a, tick=2) for a in found]


# ---- When a function touches every element of its buffers: the first write and the last touch, on one clock.
#
# A lowered function runs its statements in a fixed order, so the time of a statement is an affine function of the loop
# variables around it: every leaf statement lasts :data:`TICKS`, a loop as many times its body as it has turns. From it
# follows whether two buffers may share memory: a byte that ends up in both must be touched for the last time as the one before
# it is written for the first time as the other (:mod:`microc.plan.liveness`).
#
# Whatever is not known makes the answer careful: a guarded access counts as made where its indices lie within the buffer, an
# index made of data reaches all along its axis, a loop of variable extent runs to its bound, and in a function with a loop that
# is ``parallel`` or without a bound nothing is known to come before anything else. Work is numpy's; there is no Python loop over
# elements.

NEVER_WRITTEN = np.iinfo(np.int64).max
NEVER_TOUCHED = -1
_AT_ONCE = 1 << 20
"""Accesses that are worked out in one go; bounds the memory this takes."""
_MOST = 1 << 24
"""Executions of one access beyond which its address is not followed: it is taken to reach the whole buffer."""


@frozen
class Touches:
    """Times of a buffer by flat element index, int64: its first write (:data:`NEVER_WRITTEN`) and its last read or write
    (:data:`NEVER_TOUCHED`)."""

    first_write: Array
    last_touch: Array


@frozen
class _Turn:
    """A loop around an access: ``span`` ticks from one turn to the next."""

    var: ir.Var
    extent: int
    span: int


@frozen
class _Access:
    """A touch that happens at ``at`` plus ``span`` times the turn of every loop around it, innermost first."""

    touch: Touch
    at: int
    loops: tuple[_Turn, ...] = ()


def touches(func: ir.PrimFunc) -> dict[ir.Buffer, Touches]:
    """First writes and last touches of every parameter of a lowered function; constants are left out."""
    found = {
        b: Touches(np.full(b.size, NEVER_WRITTEN, np.int64), np.full(b.size, NEVER_TOUCHED, np.int64))
        for b in func.params
        if b.scope in FOLLOWED
    }
    loops = [s for s in walk_stmt(func.body) if isinstance(s, ir.For)]
    if any(loop.kind == "parallel" or _bound(loop.extent) is None for loop in loops):
        return {b: Touches(np.zeros_like(t.first_write), np.zeros_like(t.last_touch)) for b, t in found.items()}
    _, accesses = _collect(func.body, Scope({}))
    for access in accesses:
        if access.touch.buffer in found:
            _record(access, found[access.touch.buffer])
    return found


# ---------------------------------------------------------------- all accesses of a function, with their loops

Timed = tuple[int, list[_Access]]


def _collect(stmt: ir.Stmt, around: Scope) -> Timed:
    """How long a statement lasts, and its accesses timed from its start."""
    scope = Scope(dict(around.names))
    parts: list[Timed] = []
    for item in row(stmt):
        own: Timed = TICKS, [_Access(touch, touch.tick) for touch in leaf(item, scope)]
        match item:
            case ir.If(_, then, otherwise):
                parts += [own, _collect(then, scope)]
                parts += [_collect(otherwise, scope)] if otherwise else []
            case ir.For():
                parts += [
                    _loop(item, scope),
                    own,
                ]  # C looks at the extent before every turn, so for the last time at the end
            case _:
                parts.append(own)
    return _sequence(parts)


def _sequence(parts: Iterable[Timed]) -> Timed:
    total, found = 0, []
    for duration, accesses in parts:
        found += [replace(access, at=access.at + total) for access in accesses] if total else accesses
        total += duration
    return total, found


def _loop(loop: ir.For, scope: Scope) -> Timed:
    extent = _bound(loop.extent) or 0
    span, inner = _collect(loop.body, Scope({**scope.names, loop.var: loop.var}))
    turn = _Turn(loop.var, extent, span)
    return extent * span, [replace(access, loops=(*access.loops, turn)) for access in inner] if extent else []


def _bound(extent: ir.Expr) -> int | None:
    """The most turns of a loop."""
    if isinstance(extent, ir.Bin) and extent.op == "min":
        return min((n for n in (_bound(extent.a), _bound(extent.b)) if n is not None), default=None)
    value = ir.int_value(extent)
    if value == ir.ENDLESS:
        return 2  # its turns touch the same elements: the first and the last tell all
    return None if value is None else max(value, 0)


# ---------------------------------------------------------------- addresses and times as arrays


def _record(access: _Access, into: Touches) -> None:
    """Enter one access at all its elements: a write at its earliest, any access at its latest time."""
    touch, buffer = access.touch, access.touch.buffer
    for grid, rank in _grids(access):
        flat: Array = _along(np.arange(touch.extent) * touch.step, rank - 1, rank)
        inside: Array = np.ones((1,) * rank, bool)
        for axis, (index, size, stride) in enumerate(zip(touch.indices, buffer.shape, buffer.strides, strict=True)):
            value = _evaluate(index, grid) if grid is not None else None
            if value is None:
                value = _along(np.arange(size), rank - 2 - axis, rank)
            inside = inside & (value >= 0) & (value < size)
            flat = flat + value * stride
        inside = inside & (flat < buffer.size)
        if touch.write:
            _enter(into.first_write, np.minimum, flat, inside, _time(access, grid or {}, last=False))
        _enter(into.last_touch, np.maximum, flat, inside, _time(access, grid or {}, last=True))


Grid = Mapping[ir.Var, Array]


def _grids(access: _Access) -> Iterator[tuple[Grid | None, int]]:
    """The loop variables that the address depends on, as arrays along an axis each, piece by piece; and the rank of all.

    Behind the loops' axes there is one for every index, should it be unknown, and one for the elements from an address on.
    The grid is None when it would be too large.
    """
    names = {var for index in access.touch.indices for var in free_vars(index)}
    used = [turn for turn in reversed(access.loops) if turn.var in names]
    rank = len(used) + len(access.touch.indices) + 1
    points = prod(turn.extent for turn in used) * access.touch.extent * _unknown(access.touch, used)
    if points > _MOST:
        yield None, rank
        return
    first = used[0].extent if used else 1
    step = max(1, first * _AT_ONCE // points) if points else 1
    fixed = {t.var: _along(np.arange(t.extent), axis, rank) for axis, t in enumerate(used)}
    for start in range(0, first, step):
        turns = {used[0].var: _along(np.arange(start, min(start + step, first)), 0, rank)} if used else {}
        yield {**fixed, **turns}, rank


def _unknown(touch: Touch, used: Iterable[_Turn]) -> int:
    """Elements along the axes whose index is made of data, each of which may be meant at every turn."""
    start = {turn.var: np.zeros((), np.int64) for turn in used}
    axes = zip(touch.indices, touch.buffer.shape, strict=True)
    return prod(size for index, size in axes if _evaluate(index, start) is None)


def _time(access: _Access, grid: Grid, *, last: bool) -> Array:
    """When the access happens, over the grid: in the last (or first) turn of the loops that its address does not see."""
    when: Array = np.array(access.at, np.int64)
    for turn in access.loops:
        if turn.var in grid:
            when = when + grid[turn.var] * turn.span
        elif last:
            when = when + (turn.extent - 1) * turn.span
    return when


def _enter(times: Array, better: np.ufunc, flat: Array, inside: Array, when: Array) -> None:
    flat, inside, when = (part.reshape(-1) for part in np.broadcast_arrays(flat, inside, when))
    if not inside.all():
        flat, when = flat[inside], when[inside]
    better.at(times, flat, when)


def _along(values: Array, axis: int, rank: int) -> Array:
    shape = [1] * rank
    shape[axis] = -1
    return values.astype(np.int64).reshape(shape)


def _evaluate(expr: ir.Expr, grid: Grid) -> Array | None:
    """An index over the grid; None when it is made of data."""
    match expr:
        case ir.Const(int() as value):
            return np.array(value, np.int64)
        case ir.Var():
            return grid.get(expr)
        case ir.Bin(op, a, b) if op in _OPERATORS:
            x, y = _evaluate(a, grid), _evaluate(b, grid)
            return None if x is None or y is None else _OPERATORS[op](x, y)
        case _:
            return None


_OPERATORS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "floordiv": np.floor_divide,
        "floormod": np.mod,
        "min": np.minimum,
        "max": np.maximum,
    }
)
"""Index arithmetic; indices of any other kind are unknown."""


# ---- Which places of two buffers a function touches in the wrong order for sharing memory, at any of many sizes.
#
# A byte of one buffer may be a byte of another if it is touched for the last time as the former before it is written for the
# first time as the latter. :mod:`microc.tir.analysis.access_order` answers that for one size, element by element. Here it is
# proved for all sizes at once, from how loops are nested: of two statements, one comes later than the other if it is further
# down in the same turns of all loops around both, or if the outermost of them whose turns differ has come further. For each of
# these cases the distance of the two places is a sum over loop variables (:mod:`microc.tir.analysis.size_forms`), whose range
# is known at every size (:mod:`microc.tir.analysis.size_forms`); all of it is a :class:`Conflict`.

_ZERO = np.zeros(1, np.int64)
Guard = tuple[ir.Expr, bool]
"""A condition, and how it comes out."""


@frozen
class _Found:
    """A touch in the function: the loops around it, the number of its statement, which rises with time, what holds there."""

    touch: Touch
    loops: tuple[ir.Var, ...]
    number: int
    guards: tuple[Guard, ...]


@frozen
class _Place:
    """The same as forms: the bytes that are touched, and what is not negative there. ``order`` rises with time."""

    bytes: Form
    facts: tuple[Form, ...]
    loops: tuple[ir.Var, ...]
    order: tuple[int, int]
    write: bool


class Precedence:
    """Conflicts between the buffers of a lowered function. ``sizes``: its scalars at all sizes of a run, side by side."""

    def __init__(self, func: ir.PrimFunc, sizes: Mapping[str, Array]) -> None:
        self.forms = Forms(sizes)
        self._number = 0
        loops = (s for s in walk_stmt(func.body) if isinstance(s, ir.For))
        self._ordered = all(loop.kind != "parallel" for loop in loops)
        followed = {b for b in func.params if b.scope in FOLLOWED}
        found = [x for x in self._statements(func.body, Scope({}), (), ()) if x.touch.buffer in followed]
        self._places: dict[ir.Buffer, list[_Place]] = {}
        digits = -1
        while digits < len(self.forms.digits):  # until it is known which loops have them
            digits = len(self.forms.digits)
            self._places = {b: [] for b in followed}
            for x in found:
                self._places[x.touch.buffer].append(self._place(x))

    def conflicts(self, old: ir.Buffer, new: ir.Buffer) -> list[Conflict]:
        """Distances from ``old`` to ``new`` at which some byte of ``old`` is touched when ``new`` was written there already."""
        if not self._ordered:
            return [Conflict(-new.nbytes, old.nbytes)]
        touched, written = self._places[old], [place for place in self._places[new] if place.write]
        found = [self._conflict(a, b, _common(a, b), None) for a in touched for b in written if a.order >= b.order]
        for a in self._merged(touched, old.name):
            for b in self._merged(written, new.name):
                common = _common(a, b)
                found += [self._conflict(a, b, common[:k], var) for k, var in enumerate(common)]
        return list(dict.fromkeys(conflict for conflict in found if conflict is not None))

    # ------------------------------------------------------------ touches

    def _statements(
        self, stmt: ir.Stmt, around: Scope, loops: tuple[ir.Var, ...], guards: tuple[Guard, ...]
    ) -> Iterator[_Found]:
        """All touches. Variables of loops get names of their own."""
        scope = Scope(dict(around.names))
        for item in row(stmt):
            self._number += 1
            own, number = leaf(item, scope), self._number
            match item:
                case ir.If(condition, then, otherwise):
                    decided = scope.expr(condition)
                    yield from self._statements(then, scope, loops, (*guards, (decided, True)))
                    if otherwise is not None:
                        yield from self._statements(otherwise, scope, loops, (*guards, (decided, False)))
                case ir.For(var, extent, body):
                    unique, turns = ir.Var(f"{var.name}.{number}"), scope.expr(extent)
                    self.forms.loop(unique, turns)
                    inner = Scope({**scope.names, var: unique})
                    yield from self._statements(body, inner, (*loops, unique), (*guards, (unique < turns, True)))
                    self._number = number = self._number + 1  # C looks at the extent for the last time at the end
            for touch in own:
                yield _Found(touch, loops, number, guards)

    def _place(self, found: _Found) -> _Place:
        loops = tuple(digit for var in found.loops for digit in self.forms.variables(var))
        facts = tuple(fact for guard in found.guards for fact in self.forms.facts(*guard) if fact.terms)
        order = found.number, found.touch.tick
        return _Place(self._bytes(found.touch), facts, loops, order, found.touch.write)

    def _bytes(self, touch: Touch) -> Form:
        """The bytes that an access touches; all of the buffer where data decide."""
        buffer, width = touch.buffer, dtypes.nbytes(touch.buffer.dtype)
        total = Form({}, _ZERO, _ZERO + (touch.extent - 1) * touch.step * width + width - 1)
        for index, stride in zip(touch.indices, buffer.strides, strict=True):
            form = self.forms.of(index)
            if form is None:
                return Form({}, _ZERO, _ZERO + buffer.nbytes - 1)
            total = total.plus(form.times(_ZERO + stride * width))
        return total

    # ------------------------------------------------------------ distances

    def _merged(self, places: Sequence[_Place], name: str) -> Iterator[_Place]:
        """Places in the same loops that differ by a constant, as one in another loop around them."""
        found: dict[object, list[_Place]] = {}
        for place in places:
            found.setdefault((place.loops, place.bytes.slopes, frozenset(f.key for f in place.facts)), []).append(place)
        for k, group in enumerate(found.values()):
            unrolled = ir.Var(f"{k} of {name}")
            bytes_, self.forms.extents[unrolled] = Form.around([place.bytes for place in group], unrolled)
            yield replace(group[0], bytes=bytes_, loops=(*group[0].loops, unrolled))

    def _conflict(self, a: _Place, b: _Place, same: tuple[ir.Var, ...], later: ir.Var | None) -> Conflict | None:
        """Distances of two places in the same turns of some loops and, if told, a later turn of another one at the first."""
        extents = self.forms.extents
        mine, other = {var: _number(var) for var in same}, {var: _number(var) for var in same}
        reach = {var: self.forms.reach(var) for var in same if extents[var] is not None}
        for names, place, mark in ((mine, a, "'"), (other, b, '"')):
            for var in place.loops[len(same) :]:
                if extents[var] is not None:
                    names[var] = _number(ir.Var(var.name + mark))
                    reach[ir.Var(var.name + mark)] = self.forms.reach(var)
        ranges = Ranges(reach)
        if later is not None and (extent := extents[later]) is not None:
            mine[later], other[later] = ranges.turns(later, extent)
        facts = [*(f.renamed(mine) for f in a.facts), *(f.renamed(other) for f in b.facts)]
        return ranges.conflict(a.bytes.renamed(mine).plus(b.bytes.renamed(other).times(_ZERO - 1)), facts)


def _number(var: ir.Var) -> Form:
    return Form({var: _ZERO + 1}, _ZERO, _ZERO)


def _common(a: _Place, b: _Place) -> tuple[ir.Var, ...]:
    """The loops around both."""
    pairs = zip(a.loops, b.loops, strict=False)
    return tuple(x for x, y in takewhile(lambda pair: pair[0] == pair[1], pairs))
