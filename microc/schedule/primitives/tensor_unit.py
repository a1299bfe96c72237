"""Steps for tensor units: loops that are one instruction's, tiles that take turns in a memory, rows that begin at its words."""

from __future__ import annotations

from dataclasses import replace

from microc.errors import ScheduleError
from microc.schedule.primitives.tree import (
    buffer_named,
    extent_of,
    find_block,
    find_loop,
    has_block,
    loops_around,
    replace_stmt,
)
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written
from microc.tir.analysis.simplification import simplify
from microc.tir.lower.cleanup import drop_blocks
from microc.tir.names import UNIT
from microc.tir.rewrite import map_expr, map_stmt, walk_stmt

LOOPS = {
    "unit_load_input": 2,
    "unit_load_weight": 2,
    "unit_load_sums": 2,
    "unit_set": 2,
    "unit_matmul": 3,
    "unit_store_sums": 2,
}
"""Words of a tensor unit (:mod:`microc.isa.vocabulary.matrix_products`), with the loops that they have in them."""
_INPUT, _WEIGHT, _SUMS = ir.UNIT_SCOPES


def tensorize_unit(func: ir.PrimFunc, loop: str, word: str) -> ir.PrimFunc:
    """Mark ``loop`` and the loops in it, around one block that does what the word means, as an instruction: the calls are made
    when tails have been parted from whole tiles, since instructions take any extents."""
    old = find_block(func.body, loop).body if has_block(func.body, loop) else find_loop(func.body, loop)
    loops: list[ir.For] = []
    inner = old
    while isinstance(inner, ir.For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, ir.Block) or len(loops) != LOOPS[word]:
        raise _refuse(loop, word, f"it has {LOOPS[word]} loops around one block, these are {len(loops)}")
    if inner.init is not None:
        raise _refuse(loop, word, "the reduction is not decomposed")
    if not _means(drop_blocks(inner.body), word):
        raise _refuse(loop, word, "the block does something else")
    marked: ir.Stmt = inner
    for each in reversed(loops):
        notes = (*(note for note in each.annotations if note[0] != UNIT), (UNIT, word))
        marked = ir.For(each.var, each.extent, marked, each.kind, notes)
    return replace(func, body=replace_stmt(func.body, old, marked))


def _refuse(loop: str, word: str, why: str) -> ScheduleError:
    return ScheduleError(
        f"tensorize {loop!r} with {word}: {why}",
        hint="cache_read and set_scope move operands to the unit's memories: " + ", ".join(ir.UNIT_SCOPES),
    )


def _means(body: ir.Stmt, word: str) -> bool:
    """Whether a block's statement is what an instruction does to one element, or one term of a sum."""
    match word, body:
        case "unit_matmul", ir.Store(
            sums, place, ir.Bin("add", old, ir.Bin("mul", ir.Cast("int32", a), ir.Cast("int32", b)))
        ):
            scopes = {x.buffer.scope for x in (a, b) if isinstance(x, ir.Load) and x.dtype == "int8"}
            return sums.scope == _SUMS and old == ir.Load(sums, place) and scopes == {_INPUT, _WEIGHT}
        case "unit_set", ir.Store(to, _, ir.Const()):
            return to.scope == _SUMS
        case "unit_store_sums", ir.Store(to, _, ir.Load(source)):
            return source.scope == _SUMS and to.scope not in ir.UNIT_SCOPES
        case "unit_load_input" | "unit_load_weight" | "unit_load_sums", ir.Store(to, _, ir.Load(source)):
            wanted = {"unit_load_input": _INPUT, "unit_load_weight": _WEIGHT, "unit_load_sums": _SUMS}[word]
            kind = "int32" if wanted == _SUMS else "int8"
            return to.scope == wanted and to.dtype == kind and source.scope not in (*ir.UNIT_SCOPES, "register")
        case _:
            return False


def align_rows(func: ir.PrimFunc, buffer: str, align: int) -> ir.PrimFunc:
    """Begin the rows of a buffer in a unit's memory at multiples of ``align`` bytes."""
    old = _held(func, "align_rows", buffer)
    return _exchanged(func, old, replace(old, align=align), None)


def double_buffer(func: ir.PrimFunc, buffer: str, loop: str) -> ir.PrimFunc:
    """Give a buffer in a unit's memory two tiles: turns of ``loop``, and of the loops around it, take one and the other. The step
    comes behind those that move blocks."""
    old = _held(func, "double_buffer", buffer)
    target = find_loop(func.body, loop)
    if old.slots:
        raise ScheduleError(f"double_buffer: {buffer!r} has {old.slots} tiles already", hint="it is done once")
    touching = [s for s in walk_stmt(target) if isinstance(s, ir.Block) and _touches(s, old)]
    if len(touching) != sum(isinstance(s, ir.Block) and _touches(s, old) for s in walk_stmt(func.body)):
        raise ScheduleError(
            f"double_buffer: {buffer!r} is also used outside loop {loop!r}",
            hint="name a loop around all blocks that fill and empty it",
        )
    turn: ir.Expr = ir.const(0, "int32")
    for each in (*loops_around(func.body, target), target):
        turn = turn * extent_of(each) + each.var
    new = replace(old, shape=(2, *old.shape), slots=2)
    return _exchanged(func, old, new, simplify(turn % 2))


def _touches(block: ir.Block, buffer: ir.Buffer) -> bool:
    return buffer in buffers_read(block) or buffer in buffers_written(block)


def _held(func: ir.PrimFunc, step: str, name: str) -> ir.Buffer:
    buffer = buffer_named(func, name)
    if buffer.scope not in ir.UNIT_SCOPES:
        raise ScheduleError(
            f"{step}: {name!r} lies in no memory of a tensor unit",
            hint="cache_read and set_scope put it into " + ", ".join(ir.UNIT_SCOPES),
        )
    return buffer


def _exchanged(func: ir.PrimFunc, old: ir.Buffer, new: ir.Buffer, slot: ir.Expr | None) -> ir.PrimFunc:
    """``func`` with another buffer, its elements those of a slot."""
    front = () if slot is None else (slot,)

    def on_expr(e: ir.Expr) -> ir.Expr:
        return ir.Load(new, (*front, *e.indices)) if isinstance(e, ir.Load) and e.buffer == old else e

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.Store(buffer, indices, value) if buffer == old:
                return ir.Store(new, (*front, *indices), value)
            case ir.Alloc(buffer, body) if buffer == old:
                return ir.Alloc(new, body)
            case _:
                return s

    return replace(func, body=map_stmt(func.body, on_stmt, lambda x: map_expr(x, on_expr)))
