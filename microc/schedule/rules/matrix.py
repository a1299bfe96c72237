"""Matrix products: dense layers, pointwise and (through ``patch`` rows) all other ungrouped convolutions.

Register blocking: a tile of pixels by channels accumulates in scalars while k runs, so that each loaded activation serves
several channels and each loaded weight several pixels. With DSP instructions four 8-bit products take two SMLAD.
"""

from __future__ import annotations

from dataclasses import dataclass

from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import finish_tile, inline_elementwise
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir import ir
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
    *around, p, o, k = schedule.loops_of("acc")
    if is_noted(schedule, "grouped"):
        return Axes(around[-1], (p,), o, k)
    return Axes(o, (), p, k) if is_noted(schedule, "channels_first") else Axes(p, (), o, k)


def is_noted(schedule: Schedule, what: str) -> bool:
    """Whether ``acc`` says of itself: ``grouped``, a sum over k for pixels p, groups, and channels o of a group;
    ``channels_first``: for channels o, and pixels p."""
    return schedule.has("acc") and what in dict(find_block(schedule.func.body, "acc").annotations)


def is_matrix(schedule: Schedule) -> bool:
    """Whether ``acc`` is a sum over k for pixels p and channels o, of one group or of several."""
    if not schedule.has("acc"):
        return False
    kinds = [i.kind for i in find_block(schedule.func.body, "acc").iters]
    return kinds == ["space", "space", "reduce"] or is_noted(schedule, "grouped")


def is_batched_matrix(schedule: Schedule) -> bool:
    """Whether ``acc`` is a sum over k for rows p and columns o of one matrix, or of each of many."""
    if not schedule.has("acc"):
        return False
    kinds = [i.kind for i in find_block(schedule.func.body, "acc").iters]
    return len(kinds) > 2 and kinds == ["space"] * (len(kinds) - 1) + ["reduce"]


def operand_dtypes(schedule: Schedule) -> tuple[str, ...]:
    """Dtypes of the two factors."""
    block = find_block(schedule.func.body, "acc")
    loads = [
        x.dtype
        for s in walk_stmt(block.body)
        if isinstance(s, ir.Store)
        for x in walk_expr(s.value)
        if isinstance(x, ir.Load) and x.buffer != s.buffer
    ]
    return tuple(loads)


def choose_tile(rows: int, columns: int, depth: int, dtypes: tuple[str, ...], accumulator: str, target: Target) -> Tile:
    """The tile for a product of (rows, depth) by (columns, depth).

    Two by two keeps four sums, four widened operands and four pointers in the registers of an Armv7-M core; a single row
    takes four channels. The tile that divides evenly is preferred, since a tail costs code.
    """
    tall, wide = (2, 2) if rows > 1 else (1, 4)
    wide = next(n for n in range(min(wide, columns), 0, -1) if columns % n == 0 or n == 1)
    if rows == 1 and wide == 1 and columns > 1:
        wide = 2
    intrin = f"dot4_{dtypes[0]}_{dtypes[1]}" if len(dtypes) == 2 else ""
    dsp = target.has("dsp") and accumulator == "int32" and depth % 4 == 0
    if dsp and intrin in ("dot4_int8_int8", "dot4_uint8_int8"):
        steps = depth // 4
        return Tile(tall, wide, next(n for n in (4, 2, 1) if steps % n == 0), 4, intrin)
    return Tile(tall, wide, next(n for n in (4, 3, 2, 1) if depth % n == 0))


def schedule_matrix(schedule: Schedule, target: Target, *, words: bool = True) -> Schedule:
    """p and o tiled into registers, k innermost; patches for one tile of pixels at a time. Loops around p stay around it.

    ``words``: both factors lie along k, so that an instruction may take several of each.
    """
    schedule = inline_elementwise(schedule)
    acc = find_block(schedule.func.body, "acc")
    axes = product_axes(schedule)
    p, o, k = axes.p, axes.o, axes.k
    rows, columns, depth = (loop_extent(schedule.func, name) for name in (p, o, k))
    store = next(s for s in walk_stmt(acc.body) if isinstance(s, ir.Store))
    dtypes = operand_dtypes(schedule) if words else ()
    tile = choose_tile(rows, columns, depth, dtypes, store.buffer.dtype, target)
    schedule = schedule.split(p, (None, tile.rows)).split(o, (None, tile.columns))
    schedule = schedule.split(k, (None, tile.unroll, tile.step))
    schedule = schedule.reorder(f"{p}_0", *axes.inside, f"{o}_0", f"{k}_0", f"{k}_1", f"{p}_1", f"{o}_1", f"{k}_2")
    schedule = schedule.decompose_reduction("acc", f"{k}_0")
    if tile.intrin:
        schedule = schedule.tensorize(f"{k}_2", tile.intrin)
    schedule = schedule.reverse_compute_at("out", f"{o}_0").set_scope(store.buffer.name, "register")
    return finish_tile(schedule, (p, o, k), axes.tile, target)
