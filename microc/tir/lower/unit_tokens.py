"""Tokens between the queues of a tensor unit, and barriers before what the processor does itself.

Every buffer in the unit's memories has an event of its own. The queue that fills it and the queue that empties it hand tokens to
and fro: a filled tile is signalled to the one that reads it, a tile that was read to the one that fills the next. The reader
starts with as many tokens as the buffer has slots, so that so many tiles may be filled ahead, and gives all of them back in the
end. Queues run in order, so that nothing orders instructions of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from microc.frozen import frozen
from microc.tir import ir
from microc.tir.rewrite import walk_stmt
from microc.tir.unit import BARRIER, QUEUES, SIGNAL, WAIT, instructions


@frozen
class _Event:
    """The number of a buffer's tokens, the queues that fill and empty it, and how many tiles it holds."""

    number: int
    buffer: ir.Buffer
    fills: int
    empties: int
    slots: int

    def touched(self, stmt: ir.Stmt) -> tuple[bool, bool]:
        """Whether a statement fills it, and whether it empties it."""
        queues = {QUEUES[call.name] for call in instructions(stmt) if self.buffer in _operands(call)}
        return self.fills in queues, self.empties in queues

    def filled(self, word: str, count: int = 1) -> ir.Stmt:
        return _token(word, self.fills, self.empties, self.number, count)

    def emptied(self, word: str, count: int = 1) -> ir.Stmt:
        return _token(word, self.empties, self.fills, self.number, count)


def _token(word: str, before: int, after: int, event: int, count: int) -> ir.Stmt:
    return ir.Evaluate(ir.Call(word, tuple(ir.const(n, "int32") for n in (before, after, event, count)), "int32"))


def _operands(call: ir.Call) -> tuple[ir.Buffer, ...]:
    return tuple(a.buffer for a in call.args if isinstance(a, ir.AddressOf))


def ordered(stmt: ir.Stmt, held: Sequence[ir.Buffer]) -> ir.Stmt:
    """``stmt``, whose instructions are calls, with tokens for the buffers in the unit's memories, and barriers."""
    events = tuple(_events(stmt, held))
    allocs, inner = [], stmt
    while isinstance(inner, ir.Alloc):
        allocs.append(inner.buffer)
        inner = inner.body
    body = _with_barriers(_with_tokens(inner, events), [False])
    first = [event.emptied(SIGNAL, event.slots) for event in events]
    last = [event.emptied(WAIT, event.slots) for event in events]
    whole = ir.seq(*first, body, *last, _BARRIER)
    for buffer in reversed(allocs):
        whole = ir.Alloc(buffer, whole)
    return whole


_BARRIER = ir.Evaluate(ir.Call(BARRIER, (), "int32"))


def _events(stmt: ir.Stmt, held: Sequence[ir.Buffer]) -> Iterator[_Event]:
    for number, buffer in enumerate(held):
        queues = {True: set[int](), False: set[int]()}
        for call in instructions(stmt):
            for a in call.args:
                if isinstance(a, ir.AddressOf) and a.buffer == buffer:
                    queues[a.writes].add(QUEUES[call.name])
        (fills,), (empties,) = queues[True], queues[False] - queues[True]
        yield _Event(number, buffer, fills, empties, max(1, buffer.slots))


def _with_tokens(stmt: ir.Stmt, events: Sequence[_Event]) -> ir.Stmt:
    match stmt:
        case ir.Seq(body):
            before, after = defaultdict[int, list[ir.Stmt]](list), defaultdict[int, list[ir.Stmt]](list)
            for event in events:
                _turns(event, body, before, after)
            done = ([*before[k], _with_tokens(child, events), *after[k]] for k, child in enumerate(body))
            return ir.seq(*(s for part in done for s in part))
        case ir.For(var, extent, body, kind, annotations):
            return ir.For(var, extent, _with_tokens(body, events), kind, annotations)
        case ir.Alloc(buffer, body):
            return ir.Alloc(buffer, _with_tokens(body, events))
        case ir.Let(var, value, body):
            return ir.Let(var, value, _with_tokens(body, events))
        case ir.If(condition, then, otherwise):
            return ir.If(condition, _with_tokens(then, events), _with_tokens(otherwise, events) if otherwise else None)
        case _:
            return stmt


def _turns(
    event: _Event,
    body: Sequence[ir.Stmt],
    before: dict[int, list[ir.Stmt]],
    after: dict[int, list[ir.Stmt]],
) -> None:
    """What a buffer's turns among statements in a row need before and behind them: those that fill it, then those that empty it.
    A statement that does both has its turns inside; where only one is done here, the turn is that of a statement around."""
    touched = [event.touched(child) for child in body]
    fills = [k for k, t in enumerate(touched) if t == (True, False)]
    empties = [k for k, t in enumerate(touched) if t == (False, True)]
    if not fills or not empties:
        return
    single = sorted(fills + empties)
    for position, k in enumerate(single):
        left = single[position - 1] if position else None
        right = single[position + 1] if position + 1 < len(single) else None
        if k in fills and (left is None or left in empties):
            before[k].append(event.emptied(WAIT))
        if k in fills and right in empties:
            after[k].append(event.filled(SIGNAL))
        if k in empties and left in fills:
            before[k].append(event.filled(WAIT))
        if k in empties and (right is None or right in fills):
            after[k].append(event.emptied(SIGNAL))


def _with_barriers(stmt: ir.Stmt, pending: list[bool]) -> ir.Stmt:
    """A barrier before every statement of the processor's at which instructions may be pending; ``pending``: whether some are."""
    if instructions(stmt) == []:
        waits = pending[0] and any(isinstance(s, (ir.Store, ir.Evaluate)) and not _is_token(s) for s in walk_stmt(stmt))
        pending[0] = pending[0] and not waits
        return ir.seq(_BARRIER, stmt) if waits else stmt
    match stmt:
        case ir.Seq(body):
            return ir.seq(*(_with_barriers(child, pending) for child in body))
        case ir.For(var, extent, body, kind, annotations):
            pending[0] = True
            return ir.For(var, extent, _with_barriers(body, pending), kind, annotations)
        case ir.Alloc(buffer, body):
            return ir.Alloc(buffer, _with_barriers(body, pending))
        case ir.Let(var, value, body):
            return ir.Let(var, value, _with_barriers(body, pending))
        case ir.If(condition, then, otherwise):
            start = [pending[0]]
            first = _with_barriers(then, pending)
            second = _with_barriers(otherwise, start) if otherwise else None
            pending[0] = True
            return ir.If(condition, first, second)
        case _:
            pending[0] = True
            return stmt


def _is_token(stmt: ir.Stmt) -> bool:
    return isinstance(stmt, ir.Evaluate) and isinstance(stmt.value, ir.Call) and stmt.value.name in (SIGNAL, WAIT)
