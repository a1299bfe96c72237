"""Products of bytes on cores without SIMD, several sums in the fields of a word: two pixels in one multiplication
(``ops/matrix/pairs.py``), or two channels (``ops/matrix/quads.py``).

Terms are summed by blocks (``part``), whose fields are added up (``acc``) in registers; eight of them are low registers of
Armv6-M, which hold a word of inputs, a weight, the sum of a block and pointers, the high ones the fields' sums.
"""

from __future__ import annotations

from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.generic import copy_words, inline_elementwise
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir.facts import buffers_read
from microc.tir.names import ACC, COLUMN, ENTRY, OUT, PAIRS, PART, PATCH, PEEL, VALUE

ACROSS = 2
"""Channels that share a block of pixel pairs."""
MANY = 8
"""From so many blocks on, two are done in one iteration."""
COPY_STEP = 16
"""Bytes of a patch that are copied in one iteration."""
CHANNELS = 4
"""Channels whose weights share a word."""


def suits_pixels(start: Schedule, target: Target) -> bool:
    """Whether the function multiplies pairs of pixels."""
    return start.has(PAIRS) and start.has(PART)


def suits_channels(start: Schedule, target: Target) -> bool:
    """Whether the function multiplies quads of channels."""
    return start.has(ENTRY) and start.has(PART)


def by_pixels(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Two pixels at a time: their inputs paired, then tiles of channels, block by block."""
    schedule, end = _ended(start)
    p, o = schedule.loops_of(end)
    alone = loop_extent(schedule.func, p) % 2
    wide = ACROSS if loop_extent(schedule.func, o) % ACROSS == 0 else 1
    schedule = schedule.split(p, (None, 2)).split(o, (None, wide))
    schedule = schedule.reorder(f"{p}_0", f"{o}_0", f"{p}_1", f"{o}_1").compute_at(ACC, f"{o}_0")
    _, field, channel, block = schedule.loops_of(ACC)[-4:]
    schedule, columns, term = _by_blocks(schedule, (channel, field), block)
    terms = loop_extent(schedule.func, term)
    weight = next(b for b in buffers_read(find_block(schedule.func.body, PART)) if b.dtype == "uint8")
    schedule = schedule.transform_layout(weight.name, ((None, wide), (None, terms)), (0, 2, 3, 1))
    schedule = schedule.compute_at(PAIRS, f"{p}_0")
    schedule = schedule.split(schedule.loops_of(PAIRS)[-1], (None, terms + 1))
    if alone:  # the last pixel has no partner: two tests cost less than all of it again
        schedule = schedule.annotate(f"{p}_0", PEEL, 0)
    if schedule.has(PATCH):
        schedule = _unrolled_copy(copy_words(schedule.compute_at(PATCH, f"{p}_0"), PATCH, target))
    return _unrolled(
        schedule, (*schedule.loops_of(end)[-2:], term, columns, channel, field, schedule.loops_of(PAIRS)[-1])
    )


def by_channels(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """A row at a time: its inputs laid out, or the words behind its blocks alone; then four channels at once, block by block."""
    schedule, end = _ended(start)
    p, o = schedule.loops_of(end)
    schedule = schedule.split(o, (None, CHANNELS)).compute_at(ACC, f"{o}_0")
    *_, field, high, block = schedule.loops_of(ACC)
    blocks = loop_extent(schedule.func, block)
    schedule, column, term = _by_blocks(schedule, (field, high), block, most=1)
    schedule = schedule.compute_at(ENTRY, p)
    entries = schedule.loops_of(ENTRY)[-1]
    if loop_extent(schedule.func, entries) > blocks:
        terms = loop_extent(schedule.func, term)
        schedule = schedule.split(entries, (None, terms + 1)).unroll(f"{entries}_1")
    if schedule.has(COLUMN):
        schedule = schedule.compute_at(COLUMN, p)
    return _unrolled(schedule, (schedule.loops_of(end)[-1], term, column, field, high))


def _ended(start: Schedule) -> tuple[Schedule, str]:
    """The function with its elementwise stages joined, and the block that stores results."""
    schedule = inline_elementwise(start)
    return schedule, OUT if schedule.has(OUT) else VALUE


def _by_blocks(schedule: Schedule, fields: tuple[str, str], block: str, most: int = 2) -> tuple[Schedule, str, str]:
    """Blocks of terms outermost, where there are many ``most`` in an iteration: less for counting and pointers. Also the loops
    of ``part`` over channels and terms."""
    schedule = schedule.reorder(block, *fields).decompose_reduction(ACC, block)
    blocks = loop_extent(schedule.func, block)
    if blocks >= MANY and blocks % most == 0 and most > 1:
        schedule, block = schedule.split(block, (None, most)).unroll(f"{block}_1"), f"{block}_1"
    schedule = schedule.compute_at(PART, block)
    columns, term = schedule.loops_of(PART)[-2:]
    schedule = schedule.reorder(term, columns).decompose_reduction(PART, term)
    for name in (ACC, PART):
        schedule = schedule.set_scope(stored_buffer(find_block(schedule.func.body, name)).name, "register")
    return schedule, columns, term


def _unrolled(schedule: Schedule, loops: tuple[str, ...]) -> Schedule:
    """Scalars for every sum."""
    for loop in (*schedule.loops_of(f"{ACC}_init")[-2:], *schedule.loops_of(f"{PART}_init")[-1:], *loops):
        schedule = schedule.unroll(loop)
    return schedule


def _unrolled_copy(schedule: Schedule) -> Schedule:
    """Runs of bytes copied without a loop, or many in one iteration."""
    inner = schedule.loops_of(PATCH)[-1]
    extent = loop_extent(schedule.func, inner)
    if extent <= COPY_STEP:
        return schedule.unroll(inner)
    step = next(n for n in range(COPY_STEP, 0, -1) if extent % n == 0)
    return schedule.split(inner, (None, step)).unroll(f"{inner}_1") if step > 1 else schedule
