"""Bytes multiplied two pixels at once (``ops/matrix/pairs.py``): blocks ``pairs``, ``part``, ``acc``, ``out``.

A tile is two pixels by a few channels: eight low registers hold a pixel pair, a weight, the sum of a block and pointers, the
high ones the fields' sums.
"""

from __future__ import annotations

from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.generic import copy_words, inline_elementwise
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir.names import ACC, OUT, PAIRS, PART, PATCH, PEEL
from microc.tir.rewrite import buffers_read

COLUMNS = 2
"""Channels that share a block of pixel pairs."""
MANY = 8
"""From so many blocks on, two are done in one iteration."""
COPY_STEP = 16
"""Bytes of a patch that are copied in one iteration."""


def is_paired(schedule: Schedule) -> bool:
    """Whether the function multiplies pairs of pixels."""
    return schedule.has(PAIRS) and schedule.has(PART)


def schedule_matrix_pairs(schedule: Schedule, target: Target) -> Schedule:
    """Two pixels at a time: their inputs paired, then tiles of channels, block by block."""
    schedule = inline_elementwise(schedule)
    end = "out" if schedule.has(OUT) else "value"
    p, o = schedule.loops_of(end)
    alone = loop_extent(schedule.func, p) % 2
    wide = COLUMNS if loop_extent(schedule.func, o) % COLUMNS == 0 else 1
    schedule = schedule.split(p, (None, 2)).split(o, (None, wide))
    schedule = schedule.reorder(f"{p}_0", f"{o}_0", f"{p}_1", f"{o}_1").compute_at(ACC, f"{o}_0")
    _, field, channel, j = schedule.loops_of(ACC)[-4:]
    schedule = schedule.reorder(j, channel, field).decompose_reduction(ACC, j)
    schedule, j = _several(schedule, j)
    schedule = schedule.compute_at(PART, j)
    columns, term = schedule.loops_of(PART)[-2:]
    schedule = schedule.reorder(term, columns).decompose_reduction(PART, term)
    terms = loop_extent(schedule.func, term)
    weight = next(b for b in buffers_read(find_block(schedule.func.body, PART)) if b.dtype == "uint8")
    schedule = schedule.transform_layout(weight.name, ((None, wide), (None, terms)), (0, 2, 3, 1))
    for block in ("acc", "part"):
        schedule = schedule.set_scope(stored_buffer(find_block(schedule.func.body, block)).name, "register")
    entries = schedule.compute_at(PAIRS, f"{p}_0").loops_of(PAIRS)[-1]
    schedule = schedule.compute_at(PAIRS, f"{p}_0").split(entries, (None, terms + 1))
    if alone:  # the last pixel has no partner: two tests cost less than all of it again
        schedule = schedule.annotate(f"{p}_0", PEEL, 0)
    if schedule.has(PATCH):
        schedule = copy_words(schedule.compute_at(PATCH, f"{p}_0"), PATCH, target)
        schedule = _copied(schedule, "patch")
    unrolled = (*schedule.loops_of("acc_init")[-2:], *schedule.loops_of("part_init")[-1:], *schedule.loops_of(end)[-2:])
    for loop in (*unrolled, term, columns, channel, field, schedule.loops_of(PAIRS)[-1]):
        schedule = schedule.unroll(loop)
    return schedule


def _several(schedule: Schedule, j: str) -> tuple[Schedule, str]:
    """Two blocks in an iteration, where there are many: less for counting and pointers. Also the loop of one block."""
    blocks = loop_extent(schedule.func, j)
    if blocks < MANY or blocks % 2:
        return schedule, j
    return schedule.split(j, (None, 2)).unroll(f"{j}_1"), f"{j}_1"


def _copied(schedule: Schedule, block: str) -> Schedule:
    """Runs of bytes copied without a loop, or many in one iteration."""
    inner = schedule.loops_of(block)[-1]
    extent = loop_extent(schedule.func, inner)
    if extent <= COPY_STEP:
        return schedule.unroll(inner)
    step = next(n for n in range(COPY_STEP, 0, -1) if extent % n == 0)
    return schedule.split(inner, (None, step)).unroll(f"{inner}_1") if step > 1 else schedule
