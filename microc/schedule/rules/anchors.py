"""Functions of a user's own get the names that rules look for: the sum of products along one axis becomes ``acc``, the
elementwise work behind it ``out``, whatever they were called and whether there is such work at all."""

from __future__ import annotations

from microc.schedule.placement import stored_buffer
from microc.schedule.rules.generic import blocks_of, inline_elementwise, is_extern
from microc.schedule.rules.product import multiplies
from microc.schedule.schedule import Schedule
from microc.tir import ir
from microc.tir.facts import buffers_read
from microc.tir.names import ACC, OUT, PART, UNTILE
from microc.tir.rewrite import walk_expr


def with_anchors(start: Schedule) -> Schedule:
    """The function with its one product named; as it was where it has several or none, or stages that are named already."""
    if any(map(start.has, (OUT, UNTILE, PART))) or any(map(is_extern, blocks_of(start))):
        return start
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    sums = [block for block in blocks if block.init is not None]
    if len(sums) != 1 or not _is_product(sums[0]):
        return start
    total, others = stored_buffer(sums[0]), [block for block in blocks if block is not sums[0]]
    readers = [block.name for block in others if total in buffers_read(block)]
    if total in schedule.func.params:
        schedule = schedule.cache_write(sums[0].name, "workspace")
        readers.append(blocks_of(schedule)[-1].name)
    if len(readers) != 1:
        return start
    names = ((sums[0].name, ACC), (readers[0], OUT))
    for name, known in names:
        schedule = schedule if name == known else schedule.rename_block(name, known)
    return schedule


def _is_product(block: ir.Block) -> bool:
    """Whether it sums products of two loads along one axis, for rows and columns at least."""
    kinds = [each.kind for each in block.iters]
    if len(kinds) < 3 or kinds != ["space"] * (len(kinds) - 1) + ["reduce"] or not isinstance(block.body, ir.Store):
        return False
    match block.body.value:
        case ir.Bin("add", ir.Load(buffer), value) if buffer == block.body.buffer:
            return any(map(multiplies, walk_expr(value)))
        case _:
            return False
