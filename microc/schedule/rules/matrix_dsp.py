"""Matrix products of bytes, or of 16-bit numbers by bytes, on cores with DSP instructions: four products in two ``dot2``.

Bytes are widened to 16 bits once, when a tile of pixels is copied into ``patch`` rows; weights lie crossed, so that
``evens`` gives pairs in order. A tile of 3 by 2 keeps six sums, four weights and two activations in registers: 0.94
instructions per product with K unrolled by 16, 0.85 where two columns share their words (:mod:`microc.schedule.pairing`). A
tile is read before it is written: a pointwise layer can work in place.
"""

from __future__ import annotations

from dataclasses import dataclass

from microc.schedule.pairing import can_pair
from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import copy_words, double_sums, inline_elementwise
from microc.schedule.rules.matrix import Axes, product_axes
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.names import ACC, OUT, PATCH
from microc.tir.rewrite import walk_expr, walk_stmt

STEP = 4
"""Products that a tensor intrinsic does at once."""


ROW_WIDTHS = (6, 4, 2)
"""Outputs of a single row at once: as many as divide them where they are even."""
WIDTH = 2
"""Channels of a tile."""
PAIRED_DEPTH = 20
"""Terms of a sum from which on pairing saves more than entangling and separating the sums costs."""

TALL = 3
"""Pixels that share the widened weights."""


SAVED, SAVED_PAIRS = 0.5 / TALL, 0.25 / TALL
"""Instructions that a weight saves for every pixel when it is stored as 16-bit number: two widenings in four weights, shared by
a tile; one where columns are paired."""


@dataclass(frozen=True, slots=True)
class Operands:
    """The buffers of a product: two factors and the sum."""

    data: ir.Buffer
    weight: ir.Buffer
    total: ir.Buffer


def operands(schedule: Schedule) -> Operands | None:
    """What ``acc`` multiplies; None when it is not one product of two loads."""
    store = next(s for s in walk_stmt(find_block(schedule.func.body, ACC).body) if isinstance(s, ir.Store))
    loads = [x.buffer for x in walk_expr(store.value) if isinstance(x, ir.Load) and x.buffer != store.buffer]
    return Operands(loads[0], loads[1], store.buffer) if len(loads) == 2 else None


def suits_dsp(schedule: Schedule, target: Target) -> bool:
    """Numbers of 8 or 16 bits times constant bytes into 32 bits, whole words of bytes."""
    if not target.has("dsp"):
        return False
    found = operands(schedule)
    if found is None or found.data.dtype not in ("int8", "uint8", "int16") or found.total.dtype != "int32":
        return False
    depth = loop_extent(schedule.func, schedule.loops_of(ACC)[-1])
    return found.weight.scope == "const" and found.weight.dtype == "int8" and depth % STEP == 0


def schedule_matrix_dsp(schedule: Schedule, target: Target, goal: Goal) -> tuple[Schedule, ...]:
    """p and o tiled into registers, k innermost; weights stored as 16-bit numbers where that is worth twice the flash. Of a
    single row, whose weights serve once, both ways are to be compared."""
    schedule = inline_elementwise(schedule)
    found = operands(schedule)
    assert found is not None
    axes = product_axes(schedule)
    rows, columns, depth = (loop_extent(schedule.func, name) for name in (axes.p, axes.o, axes.k))
    if rows == 1 and found.data.dtype != "int16" and not schedule.has(PATCH):
        return (_one_row(schedule, found, columns, depth),)
    patch = "patch"
    if not schedule.has(PATCH):
        schedule = schedule.cache_read(ACC, found.data.name, "workspace")
        patch = f"{found.data.name}_workspace"
    pairs = can_pair(find_block(schedule.func.body, ACC), columns) and depth >= PAIRED_DEPTH

    def stored(*, wide: bool) -> Schedule:
        return _patched(schedule, found, patch, target, pairs=pairs, wide=wide)

    if rows == 1:
        return stored(wide=True), stored(wide=False)
    return (stored(wide=rows * (SAVED_PAIRS if pairs else SAVED) >= goal.price),)


def _patched(schedule: Schedule, found: Operands, patch: str, target: Target, *, pairs: bool, wide: bool) -> Schedule:
    """Tiles whose rows are copied to ``patch`` as 16-bit numbers. ``wide``: weights are such numbers too; else ``pairs`` of
    columns share their words, or they lie crossed."""
    axes = product_axes(schedule)
    o, k = axes.o, axes.k
    rows, columns, depth = (loop_extent(schedule.func, name) for name in (axes.p, o, k))
    tile: tuple[int, ...] = (min(columns, WIDTH),)
    if rows == 1:
        count = _row_width(columns)
        tile = (count // 2, 2) if pairs and not wide else (count,)
    schedule = tiled(schedule, found, (min(rows, TALL), tile), depth)
    schedule = schedule.compute_at(patch, axes.tile)
    if found.data.dtype != "int16":
        schedule = schedule.set_dtype(patch, "int16")
    schedule = copy_words(schedule, patch, target)
    if wide:
        schedule = schedule.set_dtype(found.weight.name, "int16").tensorize(f"{k}_2", "dot4_int16_int16")
        schedule = double_sums(schedule, found.weight.name)
    elif pairs:
        schedule = schedule.tensorize_pairs(found.weight.name, f"{o}_{len(tile)}", f"{k}_0", "int16")
    else:
        schedule = _crossed(schedule, found.weight.name).tensorize(f"{k}_2", "dot4_int16_crossed_int8")
    return unrolled(schedule, axes)


def _crossed(schedule: Schedule, weight: str) -> Schedule:
    """Every four weights of a row as 0, 2, 1, 3."""
    return schedule.transform_layout(weight, ((None,), (None, 2, 2)), (0, 1, 3, 2))


def _one_row(schedule: Schedule, found: Operands, columns: int, depth: int) -> Schedule:
    """A vector times a matrix: several outputs share the widened activations."""
    axes = product_axes(schedule)
    o, k = axes.o, axes.k
    wide = _row_width(columns)
    if can_pair(find_block(schedule.func.body, ACC), columns) and depth >= PAIRED_DEPTH:
        schedule = tiled(schedule, found, (1, (wide // 2, 2)), depth)
        schedule = schedule.tensorize_pairs(found.weight.name, f"{o}_2", f"{k}_0", found.data.dtype)
    else:
        schedule = tiled(schedule, found, (1, (wide,)), depth)
        schedule = schedule.tensorize(f"{k}_2", f"dot4_{found.data.dtype}_int8")
    return unrolled(schedule, axes)


def _row_width(columns: int) -> int:
    """Outputs of a single row at once. Of an odd number: the fewest tiles, the last of which may be a part of one, in the least
    code."""
    even = next((n for n in ROW_WIDTHS if columns % n == 0), 0)
    odd = range(1, min(columns, ROW_WIDTHS[0]) + 1)
    return even or min(odd, key=lambda n: (-(-columns // n), n + columns % n))


def tiled(schedule: Schedule, found: Operands, tile: tuple[int, tuple[int, ...]], depth: int) -> Schedule:
    """The loops p, o, k around a tile, and the elementwise end after it. Loops around p stay around it."""
    axes = product_axes(schedule)
    p, o, k = axes.p, axes.o, axes.k
    unroll = next(n for n in (4, 3, 2, 5, 1) if (depth // STEP) % n == 0)
    schedule = schedule.split(p, (None, tile[0])).split(o, (None, *tile[1])).split(k, (None, unroll, STEP))
    inner = [f"{o}_{n + 1}" for n in range(len(tile[1]))]
    schedule = schedule.reorder(f"{p}_0", *axes.inside, f"{o}_0", f"{k}_0", f"{k}_1", f"{p}_1", *inner, f"{k}_2")
    schedule = schedule.decompose_reduction(ACC, f"{k}_0")
    return schedule.reverse_compute_at(OUT, f"{o}_0").set_scope(found.total.name, "register")


def unrolled(schedule: Schedule, axes: Axes) -> Schedule:
    """Scalars for every sum."""
    kept = (f"{axes.p}_0", *axes.inside, f"{axes.o}_0", f"{axes.k}_0")
    for block in ("acc_init", "acc", "out"):
        around = schedule.loops_of(block)
        for loop in around[around.index(f"{axes.p}_0") + 1 :]:
            if loop not in kept:
                schedule = schedule.unroll(loop)
    return schedule
