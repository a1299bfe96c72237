"""For the checker: when a call touches every byte of some operands, by walking down to each access and running it in order.

It shares no code with the analysis that the planner trusts (:mod:`microc.tir.order`) and works the other way round: the analysis
collects accesses from the inside out, works out when their addresses come up and ignores guards; here the way to each access
is walked from the outside in (:mod:`microc.plan.ways`), all executions side by side in arrays, and guards turn back those that do
not pass. A loop that an access does not depend on runs its first and its last turn only: those between touch the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import InternalError
from microc.plan.ways import Access, Guard, Name, Slot, Turns, Way, accesses, variables
from microc.tir import ir
from microc.tir.operators import ARRAYS

NEVER = 1 << 62
_CHUNK = 1 << 18
"""Executions of an access that are followed side by side."""


Values = Mapping[ir.Var, Array | None]
"""Variables, one number for each of some executions side by side; None for data."""


class Replay:
    """First write and last touch of every byte of the watched buffers of a lowered function, on one clock."""

    def __init__(self, func: ir.PrimFunc, watched: Iterable[ir.Buffer]) -> None:
        self.first_write = {b: np.full(b.nbytes, NEVER, np.int64) for b in watched}
        self.last_touch = {b: np.full(b.nbytes, -1, np.int64) for b in self.first_write}
        for access in accesses(func):
            if access.buffer in self.first_write:
                self._follow(access)

    def _follow(self, access: Access) -> None:
        """Run one access."""
        for values, when in _walk(access.way, variables(access), {}, np.zeros(1, np.int64)):
            self._touch(access, values, when)

    def _touch(self, access: Access, values: Values, when: Array) -> None:
        buffer, width = access.buffer, dtypes.nbytes(access.buffer.dtype)
        numbers = [_value(index, values) for index in access.indices]
        known, inside = np.zeros_like(when), np.ones(len(when), bool)
        unknown = np.zeros(1, np.int64)  # an index made of data stands anywhere along its axis
        for number, extent, stride in zip(numbers, buffer.shape, buffer.strides, strict=True):
            if number is None:
                unknown = (unknown[:, None] + np.arange(extent) * stride).reshape(-1)
            else:  # behind a guard that is made of data, anything may stand
                inside &= (number >= 0) & (number < extent)
                known = known + number * stride
        known, first, last = _spans(known[inside], when[inside])
        offsets = (np.arange(access.extent)[:, None] * access.step * width + np.arange(width)).reshape(-1)
        for start in range(0, len(known), max(1, _CHUNK // (len(unknown) * len(offsets)))):
            part = slice(start, start + max(1, _CHUNK // (len(unknown) * len(offsets))))
            element = known[part, None, None] + unknown[:, None]
            touched = np.minimum(element * width + offsets, buffer.nbytes - 1)
            self._mark(access, touched, first[part, None, None], last[part, None, None])

    def _mark(self, access: Access, touched: Array, first: Array, last: Array) -> None:
        touched, first, last = (part.reshape(-1) for part in np.broadcast_arrays(touched, first, last))
        np.maximum.at(self.last_touch[access.buffer], touched, last)
        if access.write:
            np.minimum.at(self.first_write[access.buffer], touched, first)


def _spans(places: Array, when: Array) -> tuple[Array, Array, Array]:
    """Every place once, with the earliest and the latest of its times."""
    distinct, number = np.unique(places, return_inverse=True)
    first, last = np.full(len(distinct), NEVER, np.int64), np.full(len(distinct), -1, np.int64)
    np.minimum.at(first, number, when)
    np.maximum.at(last, number, when)
    return distinct, first, last


def _walk(way: Way, wanted: set[ir.Var], values: Values, when: Array) -> Iterator[tuple[Values, Array]]:
    """Executions of what lies at the end of a way: variables and times side by side."""
    for position, step in enumerate(way):
        match step:
            case Slot(start):
                when = when + start
            case Guard(condition, holds):
                values, when = _guarded(condition, holds, values, when)
            case Name(var, value) if var in wanted:
                named = _value(value, values)
                values = {**values, var: None if named is None else np.broadcast_to(named, when.shape)}
            case Turns():
                for inner, then in _turns(step, wanted, values, when):
                    yield from _walk(way[position + 1 :], wanted, inner, then)
                return
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


def _turns(step: Turns, wanted: set[ir.Var], values: Values, when: Array) -> Iterator[tuple[Values, Array]]:
    """The turns of a loop, some at a time; the first and the last only, if the access does not depend on the loop."""
    loop = step.loop
    extents = _value(loop.extent, values)
    if extents is None or loop.kind == "parallel":
        raise InternalError(f"the order in loop {loop.var.name} is not known")
    if step.longest < int(extents.max(initial=0)):
        if loop.var in wanted:
            raise InternalError(f"loop {loop.var.name} is endless and addresses by its turn")
        extents = np.minimum(extents, step.longest)
    extents = np.broadcast_to(extents, when.shape)
    count = int(extents.max(initial=0))
    turns = np.arange(count if loop.var in wanted else min(count, 2))
    at_once = max(1, _CHUNK // max(len(when), 1))
    for start in range(0, len(turns), at_once):
        some = turns[start : start + at_once]
        parent, number = np.repeat(np.arange(len(when)), len(some)), np.tile(some, len(when))
        if loop.var not in wanted:
            number = number * (extents[parent] - 1)
        chosen = (number >= 0) & (number < extents[parent])
        parent, number = parent[chosen], number[chosen]
        yield {**_picked(values, parent), loop.var: number}, when[parent] + number * step.span


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
        case ir.Bin(op, a, b) if op in ARRAYS:
            x, y = _value(a, values), _value(b, values)
            return None if x is None or y is None else ARRAYS[op](x, y)
        case ir.Select(c, a, b):
            chosen, x, y = (_value(part, values) for part in (c, a, b))
            return None if chosen is None or x is None or y is None else np.where(chosen, x, y)
        case _:
            return None
