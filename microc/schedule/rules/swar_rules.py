"""Products of bytes on cores without SIMD, several sums in the fields of a word: two pixels in one multiplication
(``ops/matrix/swar.py``), or two channels (``ops/matrix/swar.py``).

Terms are summed by blocks (``part``), whose fields are added up (``acc``) in registers; eight of them are low registers of
Armv6-M, which hold a word of inputs, a weight, the sum of a block and pointers, the high ones the fields' sums. Cores with many
registers take two pairs at once, which share each weight that is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules.generic import copy_words, inline_elementwise
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir.analysis.context import buffers_read
from microc.tir.names import ACC, COLUMN, ENTRY, OUT, PAIRS, PART, PATCH, PEEL, VALUE

ACROSS = 2
"""Channels that share a block of pixel pairs."""
MANY_REGISTERS = 24
"""Registers from which on the sums of two pairs by two channels stay in them."""
MOST_PAIRS, MOST_ACROSS, MOST_QUADS = 3, 4, 3
"""Pairs, channels and quads at once that a search tries."""
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


def known_pairs(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """Pairs of pixels at once: one, and two where there are registers for them."""
    return range(1, 3) if target.core.costs.registers >= MANY_REGISTERS and _extents(start)[0] > 2 else (1,)


def all_pairs(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """As many as a search may try."""
    return range(1, min((_extents(start)[0] + 1) // 2, MOST_PAIRS) + 1)


def known_channels(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """Channels at once: two where they are even."""
    return (ACROSS if _extents(start)[1] % ACROSS == 0 else 1,)


def all_channels(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """As many as a search may try, which leave none over."""
    return [n for n in range(1, MOST_ACROSS + 1) if _extents(start)[1] % n == 0]


def all_quads(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """Quads of channels at once, which share each input that is loaded."""
    return [n for n in range(1, MOST_QUADS + 1) if _extents(start)[1] % (n * CHANNELS) == 0]


def _extents(start: Schedule) -> tuple[int, int]:
    """Rows and columns of the result."""
    schedule, end = _ended(start)
    p, o = schedule.loops_of(end)
    return loop_extent(schedule.func, p), loop_extent(schedule.func, o)


def by_pixels(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Tiles of pairs of pixels by channels, block by block; the inputs of a tile's pixels are paired first."""
    schedule, end = _ended(start)
    p, o = schedule.loops_of(end)
    tall, wide = decisions["pairs"], decisions["channels"]
    alone = tall == 1 and loop_extent(schedule.func, p) % 2
    schedule = schedule.split(p, (None, 2 * tall)).split(o, (None, wide))
    schedule = schedule.reorder(f"{p}_0", f"{o}_0", f"{p}_1", f"{o}_1").compute_at(ACC, f"{o}_0")
    pair, field, channel, block = schedule.loops_of(ACC)[-4:]
    sums = (pair, channel, field) if tall > 1 else (channel, field)
    schedule, parts, term = _by_blocks(schedule, sums, block)
    terms = loop_extent(schedule.func, term)
    weight = next(b for b in buffers_read(find_block(schedule.func.body, PART)) if b.dtype == "uint8")
    schedule = schedule.transform_layout(weight.name, ((None, wide), (None, terms)), (0, 2, 3, 1))
    schedule = schedule.compute_at(PAIRS, f"{p}_0")
    schedule = schedule.split(schedule.loops_of(PAIRS)[-1], (None, terms + 1))
    if alone:  # the last pixel has no partner: two tests cost less than all of it again
        schedule = schedule.annotate(f"{p}_0", PEEL, 0)
    if schedule.has(PATCH):
        schedule = _unrolled_copy(copy_words(schedule.compute_at(PATCH, f"{p}_0"), PATCH, target))
    ends = schedule.loops_of(end)[-2:]
    return _unrolled(schedule, (*ends, term, *parts, *sums, schedule.loops_of(PAIRS)[-1]), len(parts), len(sums))


def by_channels(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """A row at a time: its inputs laid out, or the words behind its blocks alone; then a quad of channels or more, block by
    block."""
    schedule, end = _ended(start)
    p, o = schedule.loops_of(end)
    schedule = schedule.split(o, (None, CHANNELS * decisions["quads"])).compute_at(ACC, f"{o}_0")
    *_, quad, field, high, block = schedule.loops_of(ACC)
    blocks = loop_extent(schedule.func, block)
    sums = (quad, field, high) if decisions["quads"] > 1 else (field, high)
    schedule, parts, term = _by_blocks(schedule, sums, block, most=1)
    schedule = schedule.compute_at(ENTRY, p)
    entries = schedule.loops_of(ENTRY)[-1]
    if loop_extent(schedule.func, entries) > blocks:
        terms = loop_extent(schedule.func, term)
        schedule = schedule.split(entries, (None, terms + 1)).unroll(f"{entries}_1")
    if schedule.has(COLUMN):
        schedule = schedule.compute_at(COLUMN, p)
    return _unrolled(schedule, (schedule.loops_of(end)[-1], term, *parts, *sums), len(parts), len(sums))


def _ended(start: Schedule) -> tuple[Schedule, str]:
    """The function with its elementwise stages joined, and the block that stores results."""
    schedule = inline_elementwise(start)
    return schedule, OUT if schedule.has(OUT) else VALUE


def _by_blocks(
    schedule: Schedule, sums: tuple[str, ...], block: str, most: int = 2
) -> tuple[Schedule, tuple[str, ...], str]:
    """Blocks of terms outermost, where there are many ``most`` in an iteration: less for counting and pointers. Also the loops
    of ``part`` over what a term serves, and over terms."""
    schedule = schedule.reorder(block, *sums).decompose_reduction(ACC, block)
    blocks = loop_extent(schedule.func, block)
    if blocks >= MANY and blocks % most == 0 and most > 1:
        schedule, block = schedule.split(block, (None, most)).unroll(f"{block}_1"), f"{block}_1"
    schedule = schedule.compute_at(PART, block)
    loops = schedule.loops_of(PART)
    *inside, term = loops[loops.index(block) + 1 :]
    parts = tuple(loop for loop in inside if loop_extent(schedule.func, loop) > 1)
    schedule = schedule.reorder(term, *parts).decompose_reduction(PART, term)
    for name in (ACC, PART):
        schedule = schedule.set_scope(stored_buffer(find_block(schedule.func.body, name)).name, "register")
    return schedule, parts, term


def _unrolled(schedule: Schedule, loops: tuple[str, ...], parts: int, sums: int) -> Schedule:
    """Scalars for every sum: those of blocks begin in so many loops, those of all in ``sums``."""
    begun, blocks = schedule.loops_of(f"{ACC}_init"), schedule.loops_of(f"{PART}_init")
    for loop in (*begun[len(begun) - sums :], *blocks[len(blocks) - parts :], *loops):
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
