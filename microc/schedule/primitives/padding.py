# SPDX-License-Identifier: Apache-2.0
"""Primitives that pad reductions, align storage and split off borders, and the 16-bit formats of float constants."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ScheduleError
from microc.schedule.primitives.compute_at import stored_buffer
from microc.schedule.primitives.tree import (
    extent_of,
    find_block,
    find_buffer,
    fresh_name,
    has_block,
    loops_around,
    names_in,
    outermost_blocks,
    replace_stmt,
)
from microc.tir import ir
from microc.tir.analysis.region import loop_bounds
from microc.tir.analysis.simplification import bounds_of, linear, simplify
from microc.tir.extents import is_less, largest, smallest
from microc.tir.rewrite import replace_buffers, stmt_exprs, substitute, walk_expr, walk_stmt
from microc.tir.text.print import format_expr

# ---- Primitives that remove guards of borders and tails: pad_reduction, storage_align, decompose_padding


def _resize_buffers(func: ir.PrimFunc, new_shapes: dict[ir.Buffer, tuple[int, ...]]) -> ir.PrimFunc:
    """Replace the shapes of intermediate buffers."""
    return replace(
        func, body=replace_buffers(func.body, {b: replace(b, shape=shape) for b, shape in new_shapes.items()})
    )


def pad_reduction(func: ir.PrimFunc, block: str) -> ir.PrimFunc:
    """Remove the guard of ``block`` for a split that does not divide its loop: the superfluous iterations are computed,
    too.

    The intermediate buffers that the block writes and reads are enlarged for these iterations, whose results nothing
    reads. The added elements of an operand are undefined, so that the reduction must not overflow for any values."""
    sizes: dict[ir.Buffer, tuple[int, ...]] = {}
    names = [name for name in (f"{block}_init", block) if has_block(func.body, name)]
    for name in names:
        what = find_block(func.body, name)
        if outermost_blocks(what.body):
            raise ScheduleError(
                f"pad_reduction: block {name!r} is a tile; expected a block without blocks in it",
                hint="pad_reduction before blockize",
            )
        bounds = loop_bounds(loops_around(func.body, what))
        extents = {}
        for i in what.iters:
            reach = bounds_of(i.binding, bounds)
            if reach is None:
                raise ScheduleError(
                    f"pad_reduction: iterator {i.var.name!r} of block {name!r} has no known range",
                    hint="schedule loops of constant extents",
                )
            extents[i.var] = largest(i.extent, reach[1] + 1)
        ranges = {var: (0, extent - 1) for var, extent in extents.items()}
        for buffer, indices in _buffer_accesses(what):
            reaches = [bounds_of(index, ranges) for index in indices]
            old = sizes.get(buffer, buffer.shape)
            new = tuple(largest(n, reach[1] + 1) if reach else n for n, reach in zip(old, reaches, strict=True))
            if new != buffer.shape and buffer in func.params:
                raise ScheduleError(
                    f"pad_reduction: block {name!r} would read beyond {buffer.name!r}; got {tuple(buffer.shape)}, "
                    f"expected {new}",
                    hint="cache_read first: it makes a copy that can grow",
                )
            sizes[buffer] = new
        iters = tuple(replace(i, extent=extents[i.var]) for i in what.iters)
        func = replace(func, body=replace_stmt(func.body, what, replace(what, iters=iters, predicate=None)))
    return _resize_buffers(func, {b: shape for b, shape in sizes.items() if shape != b.shape})


def _buffer_accesses(block: ir.Block) -> list[tuple[ir.Buffer, tuple[ir.Expr, ...]]]:
    """Return (buffer, indices) of every load and store in a block."""
    accesses = []
    for s in walk_stmt(block):
        if isinstance(s, ir.Store):
            accesses.append((s.buffer, s.indices))
        for expr in stmt_exprs(s):
            accesses += [(x.buffer, x.indices) for x in walk_expr(expr) if isinstance(x, ir.Load)]
    return accesses


def storage_align(func: ir.PrimFunc, buffer: str, axis: int, factor: int) -> ir.PrimFunc:
    """Pad an axis of an intermediate buffer: round its extent up to a multiple of ``factor``."""
    old = find_buffer(func, buffer)
    if old in func.params or not 0 <= axis < len(old.shape) or factor < 1:
        raise ScheduleError(
            f"storage_align: axis or factor of {buffer!r} is out of range; got axis {axis} and factor {factor}, "
            f"expected 0..{len(old.shape) - 1} of an intermediate buffer and 1 at least",
            hint="name an axis of an intermediate buffer, counted from 0",
        )
    shape = list(old.shape)
    shape[axis] = -(-shape[axis] // factor) * factor
    return _resize_buffers(func, {old: tuple(shape)})


def decompose_padding(func: ir.PrimFunc, block: str) -> ir.PrimFunc:
    """Split a block that stores either an element or, outside of a border, a constant, into two blocks.

    ``<block>_fill`` stores the constant everywhere. ``<block>`` stores the elements inside the border, without a
    test. If loops around the nest also decide whether an element is inside, only their part of the test remains."""
    what = find_block(func.body, block)
    match what.body:
        case ir.Store(buffer, indices, ir.Select(condition, value, ir.Const() as border)):
            pass
        case _:
            raise ScheduleError(
                f"decompose_padding: block {block!r} stores no select between an element and a constant padding value",
                hint="name the block of a padding",
            )
    stored_buffer(what)
    loops = loops_around(func.body, what)
    nest: ir.Stmt = what
    inner: dict[ir.Var, ir.For] = {}
    for loop in reversed(loops):
        if loop.body is not nest:
            break
        nest, inner[loop.var] = loop, loop
    # The condition is a box of the block's iterators. Loops that alone count one of these shrink to its range.
    ranges = _find_inclusive_ranges_in_border(what, condition)
    shorter = dict(inner)
    starts: dict[ir.Var, ir.Expr] = {}
    own = {i.var: _find_loop_and_first_value(i, inner) for i in what.iters if i.var in ranges}
    if ranges and not any(own.values()):
        names = ", ".join(var.name for var in own)
        raise ScheduleError(
            f"decompose_padding: {names} of block {block!r} are not counted by one loop each from a fixed start",
            hint="compute the whole plane at an outer loop first",
        )
    for i in what.iters:
        own_loop = own.get(i.var)
        if own_loop is None:
            continue
        loop, offset = own_loop
        low = largest(ranges[i.var][0] - offset, 0)
        high = smallest(ranges[i.var][1] - offset, extent_of(loop) - 1)
        shorter[loop.var] = replace(loop, extent=ir.const(largest(high - low + 1, 0), "int32"))
        starts[loop.var] = loop.var + low
    iters = tuple(replace(i, binding=simplify(substitute(i.binding, starts))) for i in what.iters)
    predicate = substitute(what.predicate, starts) if what.predicate is not None else None
    outer_test = ir.all_of(
        [test for var, loop in own.items() if loop is None for test in _build_range_tests(var, ranges[var])]
    )
    copied = value if outer_test is None else ir.Select(outer_test, value, border)
    copying: ir.Stmt = replace(what, iters=iters, body=ir.Store(buffer, indices, copied), predicate=predicate)
    for loop in shorter.values():
        copying = replace(loop, body=copying)
    fill = _drop_guard_if_buffer_fits(
        replace(what, name=f"{block}_fill", body=ir.Store(buffer, indices, border)), loops
    )
    filling = _copy_nest_with_new_names(fill, inner, func)
    return replace(func, body=replace_stmt(func.body, nest, ir.seq(filling, copying)))


def _drop_guard_if_buffer_fits(block: ir.Block, loops: tuple[ir.For, ...]) -> ir.Block:
    """Remove the guard of a block if its buffer is large enough for all iterations of ``loops``. Else return the
    block unchanged."""
    store, bounds = block.body, loop_bounds(loops)
    assert isinstance(store, ir.Store)
    rooms: dict[ir.Expr, int] = dict(zip(store.indices, store.buffer.shape, strict=True))
    reaches = [bounds_of(i.binding, bounds) for i in block.iters]
    if any(
        reach is None or not is_less(reach[1], rooms.get(i.var, 0))
        for i, reach in zip(block.iters, reaches, strict=True)
    ):
        return block
    return replace(block, iters=tuple(replace(i, extent=rooms[i.var]) for i in block.iters), predicate=None)


def _find_inclusive_ranges_in_border(block: ir.Block, condition: ir.Expr) -> dict[ir.Expr, tuple[int, int]]:
    """Return for each iterator of the block in ``condition`` its inclusive range (lowest, highest) inside the
    border. Raise ScheduleError if the condition is no conjunction of such ranges."""
    extents: dict[ir.Expr, int] = {i.var: i.extent for i in block.iters}
    ranges: dict[ir.Expr, tuple[int, int]] = {}
    for term in ir.conjuncts(condition):
        if not _is_index_range_test(term):
            raise ScheduleError(
                f"decompose_padding: the border of block {block.name!r} is no comparison of indices; got "
                f"{format_expr(term)}, expected a < b or a >= b"
            )
        terms, offset = linear(simplify(term.a - term.b))
        if len(terms) != 1 or set(terms.values()) != {1} or not terms.keys() <= extents.keys():
            raise ScheduleError(
                f"decompose_padding: the border of block {block.name!r} is not a test of index ranges; got "
                f"{format_expr(term)}, expected one iterator and a constant on each side"
            )
        (var,) = terms
        low, high = ranges.get(var, (0, extents[var] - 1))
        # var + offset < 0, or var + offset >= 0
        ranges[var] = (low, smallest(high, -offset - 1)) if term.op == "lt" else (largest(low, -offset), high)
    return ranges


def _is_index_range_test(term: ir.Expr) -> TypeGuard[ir.Bin]:
    """Test whether a term is a comparison a < b or a >= b of int32 indices."""
    return isinstance(term, ir.Bin) and term.op in ("lt", "ge") and term.a.dtype == "int32"


def _build_range_tests(var: ir.Var, inclusive_range: tuple[int, int]) -> list[ir.Expr]:
    """Build the two comparisons that a variable is within inclusive limits (lowest, highest)."""
    return [var >= inclusive_range[0], var < inclusive_range[1] + 1]


def _find_loop_and_first_value(iterator: ir.IterVar, loops_by_var: dict[ir.Var, ir.For]) -> tuple[ir.For, int] | None:
    """Return (loop, first value) if a block iterator is bound to one loop variable plus a constant first value.

    None if the binding contains several loops, or a multiple of a loop variable."""
    terms, offset = linear(simplify(iterator.binding))
    names = [var for var in terms if isinstance(var, ir.Var) and var in loops_by_var]
    if len(terms) != 1 or len(names) != 1 or terms[names[0]] != 1:
        return None
    return loops_by_var[names[0]], offset


def _copy_nest_with_new_names(block: ir.Block, loops_by_var: dict[ir.Var, ir.For], func: ir.PrimFunc) -> ir.Stmt:
    """Return a copy of a block inside copies of its loops, in which all loop variables and iterators have new names."""
    taken = names_in(func.body)
    names = {
        var: ir.Var(fresh_name(taken, f"{var.name}_fill")) for var in (*loops_by_var, *(i.var for i in block.iters))
    }
    values: dict[ir.Var, ir.Expr] = dict(names)
    store = block.body
    assert isinstance(store, ir.Store)
    iters = tuple(replace(i, var=names[i.var], binding=substitute(i.binding, values)) for i in block.iters)
    predicate = substitute(block.predicate, values) if block.predicate is not None else None
    body = ir.Store(store.buffer, tuple(substitute(i, values) for i in store.indices), store.value)
    nest: ir.Stmt = replace(block, iters=iters, body=body, predicate=predicate)
    for old in loops_by_var.values():
        nest = replace(old, var=names[old.var], body=nest)
    return nest


# ---- Constants of float32 in 16 bits: one by one, or two float16 in a word, for cores that widen either half of a register

WORDS = "float16x2"
"""Format of constants with two float16 in a word: neighbours along the last axis, whose extent must be even, the first
in the lower half.

TIR stores the words as int32 and reinterprets a loaded word as float32, because the instructions that widen a half
read a float register. That float is not NaN as long as neither half is NaN."""
FORMATS_16_BIT = (*dtypes.HALF, WORDS)
"""Names of the 16-bit formats of float32 constants, as arguments of set_dtype."""


def dtype_of_16_bit_format(buffer: ir.Buffer, format_name: str) -> str:
    """Return the dtype in which a float32 constant is stored in a 16-bit format (:data:`FORMATS_16_BIT`).

    Raise ScheduleError if the buffer cannot have that format."""
    if buffer.scope != "const" or buffer.dtype != "float32":
        raise ScheduleError(
            f"set_dtype: {buffer.name!r} cannot be stored as {format_name}; got {buffer.dtype} in {buffer.scope}, expected "
            "a constant of float32"
        )
    if format_name == WORDS and (not buffer.shape or buffer.shape[-1] % 2):
        raise ScheduleError(
            f"set_dtype: the last axis of {buffer.name!r} is odd; got shape {buffer.shape}, expected pairs for {format_name}",
            hint="store it as float16",
        )
    return "int32" if format_name == WORDS else format_name


def load_float16_of_pair(buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> ir.Expr:
    """Build the load of an element, as float32, from a buffer that stores pairs of float16 in words."""
    *rows, last = indices
    word = ir.reinterpret("float32", ir.Load(buffer, (*rows, simplify(last // 2))))
    first, second = (ir.Call(f"float16_{half}", (word,), "float32") for half in ("low", "high"))
    return ir.select(ir.binary("eq", simplify(last % 2), 0), first, second)


def convert_to_16_bit_format(array: Array, format_name: str) -> Array:
    """Convert a float32 constant to a 16-bit format (:data:`FORMATS_16_BIT`).

    Raise ScheduleError if the format cannot represent some number exactly."""
    dtype = "float16" if format_name == WORDS else format_name
    if not dtypes.is_exact_in(array, dtype):
        raise ScheduleError(
            f"set_dtype: {dtype} cannot represent every number of the constant", hint="round its numbers first"
        )
    halves = dtypes.round_to_16_bit_float(array, dtype)
    if format_name != WORDS:
        return halves
    bits = halves.view(np.uint16).astype(np.uint32)
    words: Array = (bits[..., ::2] | bits[..., 1::2] << 16).view(np.int32)
    return words
