# SPDX-License-Identifier: Apache-2.0
"""Products of bytes on cores without SIMD instructions: SWAR, several sums in the bit fields of a word
(``ops/matrix/swar.py``).

One multiplication computes products of two pixels, or of two channels. Terms are summed in blocks (block ``part``),
so that fields do not overflow. The fields of a block are added to their sums (block ``acc``) in registers. Armv6-M
has eight low registers: they contain a word of inputs, a weight, the sum of a block and pointers; the high registers
contain the sums of the fields. Cores with many registers compute two pairs at once, which share each loaded weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microc.isa.arm_product_loops import MAX_BYTE_OFFSET, MOST_LINES
from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules.generic import inline_elementwise, vectorize_copy
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir.analysis.context import buffers_read
from microc.tir.names import ACC, COLUMN, ENTRY, OUT, PAIRS, PART, PATCH, PEEL, VALUE

ACROSS = 2
"""Number of channels that share a block of pixel pairs."""
MANY_REGISTERS = 24
"""Number of registers from which the sums of two pairs by two channels stay in registers."""
MOST_PAIRS, MOST_ACROSS, MOST_QUADS = 3, 4, 3
"""Most pixel pairs, most channels and most channel quads in a tile that a search tries."""
MANY = 8
"""Number of blocks of terms from which C compilers are given two blocks in an iteration."""
COPY_STEP = 16
"""Most bytes of a patch that are copied in one iteration."""
CHANNELS = 4
"""Number of channels whose weights are packed into one 32-bit word."""


def matches_pixel_pairs(start: Schedule, target: Target) -> bool:
    """Match products whose inputs are packed so that a 32-bit word contains the inputs of two pixels (a pair)."""
    return start.has(PAIRS) and start.has(PART)


def matches_channel_quads(start: Schedule, target: Target) -> bool:
    """Match products whose weights are packed so that a 32-bit word contains the weights of four channels (a quad)."""
    return start.has(ENTRY) and start.has(PART)


def default_pixel_pairs(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """Return the numbers of pixel pairs in a tile that the cost model compares: one, and two if there are enough
    registers."""
    return range(1, 3) if target.core.costs.registers >= MANY_REGISTERS and _result_extents(start)[0] > 2 else (1,)


def search_pixel_pairs(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """Return the numbers of pixel pairs in a tile that a search tries."""
    return range(1, min((_result_extents(start)[0] + 1) // 2, MOST_PAIRS) + 1)


def default_channels(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """Return the number of channels in a tile, as a tuple of one: two if the number of all channels is even, else
    one."""
    return (ACROSS if _result_extents(start)[1] % ACROSS == 0 else 1,)


def search_channels(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """Return the numbers of channels in a tile that a search tries: divisors of all channels."""
    return [n for n in range(1, MOST_ACROSS + 1) if _result_extents(start)[1] % n == 0]


def search_quads(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """Return the numbers of channel quads in a tile that a search tries, such that the tile's channels divide all
    channels. The quads share each loaded input."""
    return [n for n in range(1, MOST_QUADS + 1) if _result_extents(start)[1] % (n * CHANNELS) == 0]


def _result_extents(start: Schedule) -> tuple[int, int]:
    """Return (number of rows, number of columns) of a function's result."""
    schedule, end = _inline_and_find_output(start)
    p, o = schedule.loops_of(end)
    return loop_extent(schedule.func, p), loop_extent(schedule.func, o)


def schedule_pixel_pairs(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Tile pairs of pixels by channels, and compute one block of terms after the other. The inputs of a tile's
    pixels are paired in words first."""
    schedule, end = _inline_and_find_output(start)
    p, o = schedule.loops_of(end)
    pairs, channels = decisions["pairs"], decisions["channels"]
    has_odd_pixel = pairs == 1 and loop_extent(schedule.func, p) % 2
    schedule = schedule.split(p, (None, 2 * pairs)).split(o, (None, channels))
    # Pixels of a channel share its constants: with few registers they follow each other, so that the constants of one channel
    # are alive at a time. A pixel that may be absent has one test for all its channels.
    shares_constants = not has_odd_pixel and target.core.costs.registers < MANY_REGISTERS
    tile = (f"{o}_1", f"{p}_1") if shares_constants else (f"{p}_1", f"{o}_1")
    schedule = schedule.reorder(f"{p}_0", f"{o}_0", *tile).compute_at(ACC, f"{o}_0")
    pair, field, channel, block = schedule.loops_of(ACC)[-4:]
    sums = (pair, channel, field) if pairs > 1 else (channel, field)
    unrolled = _count_unrolled_blocks(schedule, target, block, channels * pairs)
    schedule, parts, term = _move_term_blocks_outermost(schedule, sums, block, unrolled)
    terms = loop_extent(schedule.func, term)
    weight = next(b for b in buffers_read(find_block(schedule.func.body, PART)) if b.dtype == "uint8")
    # [o][k] -> [o / channels][block][term][channel]: a block reads its weights in the order of its loops.
    schedule = schedule.transform_layout(weight.name, ((None, channels), (None, terms)), (0, 2, 3, 1))
    schedule = schedule.compute_at(PAIRS, f"{p}_0")
    schedule = schedule.split(schedule.loops_of(PAIRS)[-1], (None, terms + 1))
    if has_odd_pixel:  # the last pixel has no partner: two tests cost less than a peeled copy of the loop
        schedule = schedule.annotate(f"{p}_0", PEEL, 0)
    if schedule.has(PATCH):
        schedule = _unroll_copy(vectorize_copy(schedule.compute_at(PATCH, f"{p}_0"), PATCH, target))
    ends = schedule.loops_of(end)[-2:]
    return _unroll_loops(schedule, (*ends, term, *parts, *sums, schedule.loops_of(PAIRS)[-1]), len(parts), len(sums))


def _count_unrolled_blocks(schedule: Schedule, target: Target, block_loop: str, sums: int) -> int:
    """Return the number of blocks of terms in an iteration that saves counters and pointers.

    ``sums``: sums of a block. Cores with product loops (:mod:`microc.isa.arm_product_loops`) take as many blocks as a short
    branch spans: a load, a product and an addition for each term, and three instructions for each sum."""
    blocks = loop_extent(schedule.func, block_loop)
    if not target.has("product_loops"):
        return 2 if blocks >= MANY and blocks % 2 == 0 else 1
    terms = loop_extent(schedule.func, schedule.loops_of(PART)[-1])
    most = min(MOST_LINES // (sums * (3 * terms + 3) + 2), (MAX_BYTE_OFFSET + 1) // (sums * terms))
    return max((n for n in range(1, most + 1) if blocks % n == 0 and n < blocks), default=1)


def schedule_channel_quads(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Arrange the inputs of a row in blocks of terms, or only the words that follow its blocks. Then multiply one or
    more channel quads, one block of terms after the other."""
    schedule, end = _inline_and_find_output(start)
    p, o = schedule.loops_of(end)
    schedule = schedule.split(o, (None, CHANNELS * decisions["quads"])).compute_at(ACC, f"{o}_0")
    *_, quad, field, high, block = schedule.loops_of(ACC)
    blocks = loop_extent(schedule.func, block)
    sums = (quad, field, high) if decisions["quads"] > 1 else (field, high)
    schedule, parts, term = _move_term_blocks_outermost(schedule, sums, block, unrolled_blocks=1)
    schedule = schedule.compute_at(ENTRY, p)
    entries = schedule.loops_of(ENTRY)[-1]
    if loop_extent(schedule.func, entries) > blocks:
        terms = loop_extent(schedule.func, term)
        schedule = schedule.split(entries, (None, terms + 1)).unroll(f"{entries}_1")
    if schedule.has(COLUMN):
        schedule = schedule.compute_at(COLUMN, p)
    return _unroll_loops(schedule, (schedule.loops_of(end)[-1], term, *parts, *sums), len(parts), len(sums))


def _inline_and_find_output(start: Schedule) -> tuple[Schedule, str]:
    """Inline elementwise stages. Return the schedule and the name of the block that stores results."""
    schedule = inline_elementwise(start)
    return schedule, OUT if schedule.has(OUT) else VALUE


class _NestedTerms(NamedTuple):
    """A schedule in which the loop over blocks of terms is outermost, and names of loops of its block ``part``.

    ``part_loops``: loops over the sums that a term contributes to. ``term_loop``: loop over the terms of a block."""

    schedule: Schedule
    part_loops: tuple[str, ...]
    term_loop: str


def _move_term_blocks_outermost(
    schedule: Schedule, sum_loops: tuple[str, ...], block_loop: str, unrolled_blocks: int
) -> _NestedTerms:
    """Make ``block_loop``, the loop over blocks of terms, the outermost loop of a tile, and decompose the reductions.

    ``sum_loops``: names of the loops over sums. ``unrolled_blocks``: blocks that are computed in one iteration."""
    schedule = schedule.reorder(block_loop, *sum_loops).decompose_reduction(ACC, block_loop)
    if unrolled_blocks > 1:
        schedule = schedule.split(block_loop, (None, unrolled_blocks)).unroll(f"{block_loop}_1")
        block_loop = f"{block_loop}_1"
    schedule = schedule.compute_at(PART, block_loop)
    loops = schedule.loops_of(PART)
    *inside, term_loop = loops[loops.index(block_loop) + 1 :]
    part_loops = tuple(loop for loop in inside if loop_extent(schedule.func, loop) > 1)
    schedule = schedule.reorder(term_loop, *part_loops).decompose_reduction(PART, term_loop)
    for name in (ACC, PART):
        schedule = schedule.set_scope(stored_buffer(find_block(schedule.func.body, name)).name, "register")
    return _NestedTerms(schedule, part_loops, term_loop)


def _unroll_loops(schedule: Schedule, loops: tuple[str, ...], part_loop_count: int, sum_loop_count: int) -> Schedule:
    """Unroll ``loops``, and the innermost loops of two initialisations.

    These are the last ``sum_loop_count`` loops of ``acc_init`` and the last ``part_loop_count`` loops of
    ``part_init``."""
    acc_init, part_init = schedule.loops_of(f"{ACC}_init"), schedule.loops_of(f"{PART}_init")
    for loop in (*acc_init[len(acc_init) - sum_loop_count :], *part_init[len(part_init) - part_loop_count :], *loops):
        schedule = schedule.unroll(loop)
    return schedule


def _unroll_copy(schedule: Schedule) -> Schedule:
    """Unroll the copy of a patch: completely, or by at most :data:`COPY_STEP` bytes in an iteration."""
    inner = schedule.loops_of(PATCH)[-1]
    extent = loop_extent(schedule.func, inner)
    if extent <= COPY_STEP:
        return schedule.unroll(inner)
    step = next(n for n in range(COPY_STEP, 0, -1) if extent % n == 0)
    return schedule.split(inner, (None, step)).unroll(f"{inner}_1") if step > 1 else schedule
