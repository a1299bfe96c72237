"""The outermost loops of large kernels, split among threads: any schedule, after it was chosen.

A turn is a run of neighbouring iterations in their order, with workspaces of its own; so every element is computed as one thread
would, bit for bit. Loops that do little stay as they are: a second thread that is awake pays from some two
microseconds of work on (1.64 become 1.33, 16.2 become 8.7), one that must be woken from fifty on, and buffers of parallel loops
share no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from microc.errors import ScheduleError
from microc.schedule.choose import Choice
from microc.schedule.cost import estimate
from microc.schedule.loops import is_inside
from microc.schedule.tree import find_loop
from microc.target import Target
from microc.tir import ir
from microc.tir.facts import buffers_read, buffers_written
from microc.tir.lower import lower
from microc.tir.parallel import has_parts
from microc.tir.rewrite import free_vars, walk_stmt
from microc.tir.verify import constants_of, fault

MOST = 4
"""Turns for each thread at most: each has workspaces of its own."""
LEAST = 60_000
"""Instructions of a loop, by the cost model, from which on it is split: some two microseconds in vectors, twenty without."""


def across_threads(choice: Choice, target: Target, threads: int) -> Choice:
    """The same with its large loops parallel."""
    if threads == 1:
        return choice
    total, start = estimate(choice.func, target).instructions, choice.schedule.func
    work = {loop.var.name: _instances(loop) for loop in _outermost(start.body)}
    for name, instances in work.items():
        if total * instances >= LEAST * sum(work.values()):
            choice = _split(choice, name, threads)
    return choice


def _outermost(stmt: ir.Stmt) -> Iterator[ir.For]:
    """The loops that are in no other, but for those of a single turn."""
    match stmt:
        case ir.Seq(body):
            for child in body:
                yield from _outermost(child)
        case ir.Alloc(_, body) | ir.Let(_, _, body):
            yield from _outermost(body)
        case ir.For(_, extent, body):
            if ir.int_value(extent) == 1:
                yield from _outermost(body)
            else:
                yield stmt


def _instances(loop: ir.For) -> int:
    """How often blocks in a loop run."""
    found = (s for s in walk_stmt(loop.body) if isinstance(s, ir.Block))
    return sum(prod(i.extent for i in block.iters) for block in found)


def _split(choice: Choice, name: str, threads: int) -> Choice:
    """A loop as turns for threads; as it was where turns might get in each other's way, or it is not known that they stay within
    buffers."""
    schedule = choice.schedule
    loop = find_loop(schedule.func.body, name)
    count = _turns(ir.int_value(loop.extent) or 0, threads)
    if loop.kind != "serial" or count == 0 or _guarded(loop):
        return choice
    try:
        made = schedule.split(name, (count, None)).parallel(f"{name}_0", private=True)
    except ScheduleError as refusal:
        return replace(choice, schedule=schedule.without(f"parallel({name})", refusal))
    lowered, turns = lower(made.func), find_loop(made.func.body, f"{name}_0")
    return (
        choice
        if not _independent(made.func, turns) or fault(lowered, tables=constants_of(lowered))
        else Choice(made, lowered)
    )


def _turns(extent: int, threads: int) -> int:
    """The fewest turns, all alike, by which threads are done first; 0 where there are none for two of them."""
    fitting = [n for n in range(2, min(extent, MOST * threads) + 1) if extent % n == 0]
    return min(fitting, key=lambda n: -(-n // threads) * (extent // n), default=0)


def _guarded(loop: ir.For) -> bool:
    """Whether the last iteration is a part of one: it is peeled, and would be nobody's turn."""
    blocks = (s for s in walk_stmt(loop.body) if isinstance(s, ir.Block))
    return any(block.predicate is not None and loop.var in free_vars(block.predicate) for block in blocks)


def _independent(func: ir.PrimFunc, loop: ir.For) -> bool:
    """Whether turns write parts of their own of what others see, and see nothing but memory themselves."""
    written = buffers_written(loop.body)
    seen = [b for b in written | buffers_read(loop.body) if b in func.params or not is_inside(func, loop, b)]
    return all(b.scope not in ("local", "register") for b in seen) and all(
        has_parts(loop, b) for b in seen if b in written
    )
