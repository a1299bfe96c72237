"""Matrix products on cores with MVE: sums across lanes, then vectors of results.

A tile of pixels by channels accumulates in core registers (``dot_*`` intrinsics, 16 products of bytes an instruction) and goes to
a small array on the stack; there four channels at a time are scaled, clamped and stored. A tile's activations are copied before
its results are written, so that a pointwise layer can work in place.
"""

from __future__ import annotations

from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import inline_elementwise, split_runs
from microc.schedule.rules.matrix import product_axes
from microc.schedule.rules.matrix_dsp import Operands, operands
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir.names import ACC, LANES, OUT, PATCH, PRODUCT

TALL, WIDE = 3, 2
"""Pixels and channels of a product: six sums from five loaded vectors."""
ROW = 4
"""Channels of a product when there is a single pixel."""
STRETCH, LONG = 32, 128
"""Channels whose sums wait on the stack, for a tile of pixels and for a single one."""


def suits_mve(schedule: Schedule, target: Target) -> bool:
    """Bytes or 16-bit numbers by signed ones into 32 bits."""
    found = operands(schedule) if target.has("mve") else None
    if found is None or found.total.dtype != "int32":
        return False
    known = {("int8", "int8"), ("uint8", "int8"), ("int16", "int8"), ("int8", "int16"), ("int16", "int16")}
    return (found.data.dtype, found.weight.dtype) in known and loop_extent(
        schedule.func, schedule.loops_of(ACC)[-1]
    ) > 1


def schedule_matrix_mve(schedule: Schedule) -> Schedule:
    """Loops p, o over tiles, then stretches of channels; inside products over all of k. Loops around p stay around it."""
    schedule = inline_elementwise(schedule)
    found = operands(schedule)
    assert found is not None
    axes = product_axes(schedule)
    p, o, k = axes.p, axes.o, axes.k
    rows, columns = loop_extent(schedule.func, p), loop_extent(schedule.func, o)
    tall = min(rows, TALL if found.data.dtype == found.weight.dtype == "int8" else WIDE)
    wide = min(columns, WIDE if tall > 1 else ROW)
    schedule, patch = _patch(schedule, found, rows)
    stretch, wide = _stretch(columns, wide, STRETCH if tall > 1 else LONG)
    schedule = schedule.split(p, (None, tall)).split(o, (None, stretch))
    schedule = schedule.reorder(f"{p}_0", *axes.inside, f"{o}_0", f"{p}_1", f"{o}_1", k)
    apart = tall > 1  # sums of several pixels start in a loop of vectors; those of one pixel with their product
    if apart:
        schedule = schedule.decompose_reduction(ACC, f"{p}_1")
    schedule = schedule.reverse_compute_at(OUT, f"{o}_0").set_scope(found.total.name, "local")
    schedule = schedule.split(f"{o}_1", (None, wide)).reorder(f"{o}_1_0", f"{p}_1", f"{o}_1_1")
    if not apart:
        schedule = schedule.decompose_reduction(ACC, f"{p}_1")
    for loop in (f"{p}_1", f"{o}_1_1", k):
        schedule = schedule.annotate(loop, PRODUCT, 1)
    if patch:
        schedule = copy_lanes(schedule.compute_at(patch, axes.tile), patch)
    for row, column in (schedule.loops_of(block)[-2:] for block in (("acc_init", "out") if apart else ("out",))):
        schedule = vectorize_lanes(schedule.reorder(column, row).unroll(row), column)
    return schedule if apart else schedule.annotate(schedule.loops_of("acc_init")[-1], PRODUCT, 1)


def _patch(schedule: Schedule, found: Operands, rows: int) -> tuple[Schedule, str]:
    """The block that gathers the activations of a tile; a single row is read where it is."""
    if schedule.has(PATCH):
        return schedule, "patch"
    if rows == 1:
        return schedule, ""
    return schedule.cache_read(ACC, found.data.name, "workspace"), f"{found.data.name}_workspace"


def _stretch(columns: int, wide: int, most: int) -> tuple[int, int]:
    """Channels at once, and those of a product: as many as divide all of them, best into whole products. Where only few would,
    the last stretch is shorter and products have one channel: those of several would be cut off in the middle of a loop."""
    if columns <= most:
        return columns, wide
    divisors = [n for n in range(most, most // 4, -1) if columns % n == 0]
    if not divisors:
        return most, 1
    return next((n for n in divisors if n % wide == 0), divisors[0]), wide


def vectorize_lanes(schedule: Schedule, loop: str) -> Schedule:
    """Four iterations of ``loop`` at once, in the lanes of vectors."""
    return schedule.vectorize(loop).annotate(loop, LANES, 4)


def copy_lanes(schedule: Schedule, block: str) -> Schedule:
    """Runs that are consecutive in the source of a gathering block move as vectors."""
    schedule = split_runs(schedule, block)
    inner = schedule.loops_of(block)[-1]
    return vectorize_lanes(schedule, inner) if loop_extent(schedule.func, inner) > 1 else schedule
