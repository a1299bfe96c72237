# SPDX-License-Identifier: Apache-2.0
"""Primitives for tensor units: replacing loops by an instruction, double buffering in the unit's memories, alignment
of rows."""

from __future__ import annotations

from dataclasses import replace

from microc.errors import ScheduleError
from microc.schedule.primitives.tree import (
    extent_of,
    find_block,
    find_buffer,
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
"""Number of loops that each instruction of a tensor unit replaces (:mod:`microc.isa.vocabulary.matrix_products`)."""
_INPUT, _WEIGHT, _SUMS = ir.UNIT_SCOPES


def tensorize_unit(func: ir.PrimFunc, loop: str, instruction_name: str) -> ir.PrimFunc:
    """Mark ``loop``, with the loops in it and their only block, as an instruction of the tensor unit.

    The block must have the effect of the instruction. ``loop`` may also be the name of a block that blockize made.
    Lowering replaces the loops by calls only after it has separated tails from whole tiles, because the instructions
    accept any extents."""
    old = find_block(func.body, loop).body if has_block(func.body, loop) else find_loop(func.body, loop)
    loops: list[ir.For] = []
    inner = old
    while isinstance(inner, ir.For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, ir.Block) or len(loops) != LOOPS[instruction_name]:
        raise _unit_instruction_error(
            loop,
            instruction_name,
            f"wrong loops; got {len(loops)} around {'one block' if isinstance(inner, ir.Block) else 'several statements'}, "
            f"expected {LOOPS[instruction_name]} around one block",
        )
    if inner.init is not None:
        raise _unit_instruction_error(
            loop, instruction_name, "the reduction is not decomposed: decompose_reduction first"
        )
    if not _matches_unit_instruction(drop_blocks(inner.body), instruction_name):
        raise _unit_instruction_error(
            loop, instruction_name, f"block {inner.name!r} does not have the effect of the instruction"
        )
    marked: ir.Stmt = inner
    for x in reversed(loops):
        notes = (*(note for note in x.annotations if note[0] != UNIT), (UNIT, instruction_name))
        marked = ir.For(x.var, x.extent, marked, x.kind, notes)
    return replace(func, body=replace_stmt(func.body, old, marked))


def _unit_instruction_error(loop_name: str, instruction_name: str, reason: str) -> ScheduleError:
    """Build the ScheduleError that explains why a loop cannot become the tensor unit's instruction
    ``instruction_name``."""
    return ScheduleError(
        f"tensorize {loop_name!r} with {instruction_name}: {reason}",
        hint="move operands to the unit's memories by cache_read or set_scope: " + ", ".join(ir.UNIT_SCOPES),
    )


def _matches_unit_instruction(body: ir.Stmt, instruction_name: str) -> bool:
    """Test whether the statement of a block has the effect of a tensor unit's instruction on one element.

    For a matrix product the effect is adding one term to a sum."""
    match instruction_name, body:
        case "unit_matmul", ir.Store(
            sums, indices, ir.Bin("add", old, ir.Bin("mul", ir.Cast("int32", a), ir.Cast("int32", b)))
        ):
            scopes = {x.buffer.scope for x in (a, b) if isinstance(x, ir.Load) and x.dtype == "int8"}
            return sums.scope == _SUMS and old == ir.Load(sums, indices) and scopes == {_INPUT, _WEIGHT}
        case "unit_set", ir.Store(to, _, ir.Const()):
            return to.scope == _SUMS
        case "unit_store_sums", ir.Store(to, _, ir.Load(source)):
            return source.scope == _SUMS and to.scope not in ir.UNIT_SCOPES
        case "unit_load_input" | "unit_load_weight" | "unit_load_sums", ir.Store(to, _, ir.Load(source)):
            scope = {"unit_load_input": _INPUT, "unit_load_weight": _WEIGHT, "unit_load_sums": _SUMS}[instruction_name]
            dtype = "int32" if scope == _SUMS else "int8"
            return to.scope == scope and to.dtype == dtype and source.scope not in (*ir.UNIT_SCOPES, "register")
        case _:
            return False


def align_rows(func: ir.PrimFunc, buffer: str, align: int) -> ir.PrimFunc:
    """Align the rows of a buffer in a tensor unit's memory to multiples of ``align`` bytes."""
    old = _find_buffer_in_unit(func, "align_rows", buffer)
    return _replace_with_slotted_buffer(func, old, replace(old, align=align), None)


def double_buffer(func: ir.PrimFunc, buffer: str, loop: str) -> ir.PrimFunc:
    """Double-buffer a buffer in a tensor unit's memory: successive iterations of ``loop``, counted over the loops
    around it, too, use two slots alternately.

    Primitives that move blocks must be applied before."""
    old = _find_buffer_in_unit(func, "double_buffer", buffer)
    target = find_loop(func.body, loop)
    if old.slots:
        raise ScheduleError(
            f"double_buffer: {buffer!r} has {old.slots} tiles already; expected one", hint="double_buffer once"
        )
    touching = [s for s in walk_stmt(target) if isinstance(s, ir.Block) and _accesses_buffer(s, old)]
    if len(touching) != sum(isinstance(s, ir.Block) and _accesses_buffer(s, old) for s in walk_stmt(func.body)):
        raise ScheduleError(
            f"double_buffer: {buffer!r} is also used outside loop {loop!r}",
            hint="name a loop around all blocks that fill and empty it",
        )
    # The number of the iteration among all of these loops: its parity is the slot.
    iteration: ir.Expr = ir.const(0, "int32")
    for x in (*loops_around(func.body, target), target):
        iteration = iteration * extent_of(x) + x.var
    new = replace(old, shape=(2, *old.shape), slots=2)
    return _replace_with_slotted_buffer(func, old, new, simplify(iteration % 2))


def _accesses_buffer(block: ir.Block, buffer: ir.Buffer) -> bool:
    """Test whether a block reads or writes a buffer."""
    return buffer in buffers_read(block) or buffer in buffers_written(block)


def _find_buffer_in_unit(func: ir.PrimFunc, primitive_name: str, buffer_name: str) -> ir.Buffer:
    """Return a buffer in a tensor unit's memory, given its name. Raise ScheduleError if the buffer is in another
    memory. ``primitive_name``: for the message."""
    buffer = find_buffer(func, buffer_name)
    if buffer.scope not in ir.UNIT_SCOPES:
        raise ScheduleError(
            f"{primitive_name}: {buffer_name!r} is in no memory of a tensor unit; got {buffer.scope}",
            hint="cache_read or set_scope to one of " + ", ".join(ir.UNIT_SCOPES),
        )
    return buffer


def _replace_with_slotted_buffer(
    func: ir.PrimFunc, old: ir.Buffer, new: ir.Buffer, slot_index: ir.Expr | None
) -> ir.PrimFunc:
    """Replace the buffer ``old`` in a function by ``new``.

    ``slot_index``: additional first index of every access; None if there is none."""
    front = () if slot_index is None else (slot_index,)

    def replace_load(expr: ir.Expr) -> ir.Expr:
        return ir.Load(new, (*front, *expr.indices)) if isinstance(expr, ir.Load) and expr.buffer == old else expr

    def replace_store_or_allocation(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Store(buffer, indices, value) if buffer == old:
                return ir.Store(new, (*front, *indices), value)
            case ir.Alloc(buffer, body) if buffer == old:
                return ir.Alloc(new, body)
            case _:
                return stmt

    return replace(func, body=map_stmt(func.body, replace_store_or_allocation, lambda x: map_expr(x, replace_load)))
