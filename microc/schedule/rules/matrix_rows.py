"""Products of two matrices of bytes that are data, both copied along k as 16-bit numbers (``rows`` in ``ops/matrix/matmul.py``).

``columns``, the right side, is copied once for each matrix, ``patch`` for a tile of rows; then there are the tiles of layers
whose weights are 16-bit numbers: by ``dot2``, by vectors, or one product at a time.
"""

from __future__ import annotations

from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import copy_words, inline_elementwise
from microc.schedule.rules.matrix import product_axes, schedule_matrix
from microc.schedule.rules.matrix_dsp import TALL, WIDTH, operands, tiled, unrolled
from microc.schedule.rules.matrix_mve import schedule_matrix_mve
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir.names import ACC, COLUMNS, PATCH


def is_rows(schedule: Schedule) -> bool:
    """Whether ``acc`` multiplies copies of both sides."""
    return schedule.has(COLUMNS) and schedule.has(PATCH) and schedule.has(ACC)


def schedule_matrix_rows(schedule: Schedule, target: Target) -> tuple[Schedule, ...]:
    """The right side's copy before its tiles, the left side's before each."""
    outside = schedule.loops_of(ACC)[:-3]
    if outside:
        schedule = schedule.compute_at(COLUMNS, outside[-1])
    if target.has("mve"):
        return (schedule_matrix_mve(schedule),)
    schedule = copy_words(schedule, COLUMNS, target)
    if not target.has("dsp"):
        return schedule_matrix(schedule, target, words=False)
    schedule = inline_elementwise(schedule)
    found = operands(schedule)
    assert found is not None
    axes = product_axes(schedule)
    rows, columns, depth = (loop_extent(schedule.func, name) for name in (axes.p, axes.o, axes.k))
    schedule = tiled(schedule, found, (min(rows, TALL), (min(columns, WIDTH),)), depth)
    schedule = copy_words(schedule.compute_at(PATCH, axes.tile), PATCH, target)
    return (unrolled(schedule.tensorize(f"{axes.k}_2", "dot4_int16_int16"), axes),)
