"""Matrix products: dense layers, pointwise and (through ``patch`` rows) all other ungrouped convolutions.

Register blocking: a tile of pixels by channels accumulates in scalars while k runs, so that each loaded activation serves
several channels and each loaded weight several pixels. With DSP instructions four 8-bit products take two ``dot2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from microc.schedule.cores import core_of
from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import finish_tile, inline_elementwise
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir import ir
from microc.tir.names import ACC, CHANNELS_FIRST, GROUPED, OUT
from microc.tir.rewrite import walk_expr, walk_stmt


@dataclass(frozen=True, slots=True)
class Tile:
    """Pixels and channels accumulated at once, steps of k unrolled, and the intrinsic that does ``step`` products."""

    rows: int
    columns: int
    unroll: int
    step: int = 1
    intrin: str = ""


@dataclass(frozen=True, slots=True)
class Axes:
    """The loops of a product: rows p, columns o, terms k. ``inside``: loops that run within a tile of rows, of groups of columns
    that have rows of their own."""

    p: str
    inside: tuple[str, ...]
    o: str
    k: str

    @property
    def tile(self) -> str:
        """The loop in which the rows of a tile are read."""
        return self.inside[-1] if self.inside else f"{self.p}_0"


def product_axes(schedule: Schedule) -> Axes:
    """The loops of ``acc``; whatever is around p in a product that is not grouped stays there."""
    *around, p, o, k = schedule.loops_of(ACC)
    if is_noted(schedule, GROUPED):
        return Axes(around[-1], (p,), o, k)
    return Axes(o, (), p, k) if is_noted(schedule, CHANNELS_FIRST) else Axes(p, (), o, k)


def is_noted(schedule: Schedule, what: str) -> bool:
    """Whether ``acc`` says of itself: ``grouped``, a sum over k for pixels p, groups, and channels o of a group;
    ``channels_first``: for channels o, and pixels p."""
    return schedule.has(ACC) and what in dict(find_block(schedule.func.body, ACC).annotations)


def is_matrix(schedule: Schedule) -> bool:
    """Whether ``acc`` is a sum over k for pixels p and channels o, of one group or of several."""
    if not schedule.has(ACC):
        return False
    kinds = [i.kind for i in find_block(schedule.func.body, ACC).iters]
    return kinds == ["space", "space", "reduce"] or is_noted(schedule, GROUPED)


def is_batched_matrix(schedule: Schedule) -> bool:
    """Whether ``acc`` is a sum over k for rows p and columns o of one matrix, or of each of many."""
    if not schedule.has(ACC):
        return False
    kinds = [i.kind for i in find_block(schedule.func.body, ACC).iters]
    return len(kinds) > 2 and kinds == ["space"] * (len(kinds) - 1) + ["reduce"]


def operand_dtypes(schedule: Schedule) -> tuple[str, ...]:
    """Dtypes of the two factors."""
    block = find_block(schedule.func.body, ACC)
    loads = [
        x.dtype
        for s in walk_stmt(block.body)
        if isinstance(s, ir.Store)
        for x in walk_expr(s.value)
        if isinstance(x, ir.Load) and x.buffer != s.buffer
    ]
    return tuple(loads)


def choose_tiles(
    rows: int, columns: int, depth: int, dtypes: tuple[str, ...], accumulator: str, target: Target
) -> tuple[Tile, ...]:
    """The tiles for a product of (rows, depth) by (columns, depth) that are worth comparing.

    Two by two keeps four sums, four widened operands and four pointers in the registers of an Armv7-M core; cores with more
    registers may hold a larger square of 32-bit sums: these, both sides' operands, and two addresses. A single row takes twice as
    many channels as that has. What is left of rows and columns is a part of a tile.
    """
    intrin = f"dot4_{dtypes[0]}_{dtypes[1]}" if len(dtypes) == 2 else ""
    dsp = target.has("dsp") and accumulator == "int32" and depth % 4 == 0
    step = 4 if dsp and intrin in ("dot4_int8_int8", "dot4_uint8_int8") else 1
    unroll = next(n for n in ((4, 2, 1) if step > 1 else (4, 3, 2, 1)) if depth // step % n == 0)
    sides = dict.fromkeys((2, max(2, isqrt(core_of(target).registers - 1) - 1) if accumulator == "int32" else 2))
    shapes = dict.fromkeys((min(n, rows), _wide(n if rows > 1 else 2 * n, columns)) for n in sides)
    return tuple(Tile(tall, wide, unroll, step, intrin if step > 1 else "") for tall, wide in shapes)


def _wide(most: int, columns: int) -> int:
    """Channels at once: as many as divide all of them where half of the most do, for a part of a tile costs code."""
    even = next((n for n in range(most, most // 2 - 1, -1) if n > 1 and columns % n == 0), 0)
    return even or min(most, columns)


def schedule_matrix(schedule: Schedule, target: Target, *, words: bool = True) -> tuple[Schedule, ...]:
    """p and o tiled into registers, k innermost; patches for one tile of pixels at a time. Loops around p stay around it. One
    schedule for each tile that suits.

    ``words``: both factors lie along k, so that an instruction may take several of each.
    """
    schedule = inline_elementwise(schedule)
    acc = find_block(schedule.func.body, ACC)
    axes = product_axes(schedule)
    rows, columns, depth = (loop_extent(schedule.func, name) for name in (axes.p, axes.o, axes.k))
    store = next(s for s in walk_stmt(acc.body) if isinstance(s, ir.Store))
    dtypes = operand_dtypes(schedule) if words else ()
    tiles = choose_tiles(rows, columns, depth, dtypes, store.buffer.dtype, target)
    return tuple(_tiled(schedule, axes, tile, store.buffer.name, target) for tile in tiles)


def _tiled(schedule: Schedule, axes: Axes, tile: Tile, total: str, target: Target) -> Schedule:
    """The loops around one tile; ``total``: the buffer of the sums."""
    p, o, k = axes.p, axes.o, axes.k
    schedule = schedule.split(p, (None, tile.rows)).split(o, (None, tile.columns))
    schedule = schedule.split(k, (None, tile.unroll, tile.step))
    schedule = schedule.reorder(f"{p}_0", *axes.inside, f"{o}_0", f"{k}_0", f"{k}_1", f"{p}_1", f"{o}_1", f"{k}_2")
    schedule = schedule.decompose_reduction(ACC, f"{k}_0")
    if tile.intrin:
        schedule = schedule.tensorize(f"{k}_2", tile.intrin)
    schedule = schedule.reverse_compute_at(OUT, f"{o}_0").set_scope(total, "register")
    return finish_tile(schedule, (p, o, k), axes.tile, target)
