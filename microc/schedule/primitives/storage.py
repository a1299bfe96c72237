# SPDX-License-Identifier: Apache-2.0
"""Primitives on storage: cache_read, cache_write, set_scope, align_rows, double_buffer, set_dtype, transform_layout,
pack_bits. Repacking of constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError, ScheduleError
from microc.schedule.primitives import padding
from microc.schedule.primitives.compute_at import stored_buffer
from microc.schedule.primitives.tensorize import pack_column_pairs, pack_tap_words
from microc.schedule.primitives.tensorize_bits import pack_bit_columns
from microc.schedule.primitives.tree import (
    Step,
    describe_leaf,
    extent_of,
    find_block,
    find_buffer,
    find_loop,
    fresh_name,
    leaves_outside_blocks,
    loops_around,
    map_values,
    names_in,
    replace_stmt,
)
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written
from microc.tir.analysis.simplification import simplify
from microc.tir.bit_fields import HALVES, BitFields
from microc.tir.extents import is_at_most
from microc.tir.rewrite import map_accesses, map_expr, map_stmt, replace_buffers, walk_stmt

# ---- Primitives on the memory of buffers: cache_read, cache_write, set_scope

CACHE_SCOPES = ("workspace", "shared", "register", "local", *ir.UNIT_SCOPES)


def _check_scope(scope: str) -> None:
    """Raise ScheduleError unless buffers can be placed in the memory scope ``scope`` (:data:`CACHE_SCOPES`)."""
    if scope not in CACHE_SCOPES:
        raise ScheduleError(f"unknown memory scope; got {scope!r}", hint="choose one of " + ", ".join(CACHE_SCOPES))


def _build_copy_nest(func: ir.PrimFunc, block_name: str, source: ir.Buffer, target: ir.Buffer) -> ir.Stmt:
    """Build the loops and the block ``block_name`` that copy ``source`` to ``target``, element by element."""
    taken = names_in(func.body)
    loops, iters = [], []
    for axis, extent in enumerate(source.shape):
        loop = ir.Var(fresh_name(taken, f"{block_name}_i{axis}"))
        iters.append(ir.IterVar(ir.Var(fresh_name(taken, f"v_{block_name}_i{axis}")), extent, "space", loop))
        loops.append((loop, extent))
    where = tuple(i.var for i in iters)
    return ir.loops(loops, ir.Block(block_name, tuple(iters), ir.Store(target, where, ir.Load(source, where))))


def cache_read(func: ir.PrimFunc, block: str, buffer: str, scope: str) -> ir.PrimFunc:
    """Let ``block`` read a copy of ``buffer`` in memory scope ``scope``. A new block ``<buffer>_<scope>`` before it
    makes the copy; compute_at can move that block."""
    _check_scope(scope)
    reader, source = find_block(func.body, block), find_buffer(func, buffer)
    if source not in buffers_read(reader):
        raise ScheduleError(
            f"cache_read: block {block!r} does not read {buffer!r}",
            hint="choose one of " + ", ".join(sorted(b.name for b in buffers_read(reader))),
        )
    if source in buffers_written(reader):
        raise ScheduleError(
            f"cache_read: block {block!r} also writes {buffer!r}, and would read a stale copy",
            hint="use cache_write, which keeps sums in another scope",
        )
    name = f"{buffer}_{scope}"
    copy = replace(source, name=fresh_name(names_in(func.body) | {p.name for p in func.params}, name), scope=scope)
    nest: ir.Stmt = reader
    for loop in reversed(loops_around(func.body, reader)):
        nest = loop
    writers = [describe_leaf(leaf) for leaf in leaves_outside_blocks(nest) if source in buffers_written(leaf)]
    if writers:  # the copy is placed before the nest
        raise ScheduleError(
            f"cache_read: {writers[0]} writes {buffer!r} inside the loops of {block!r}",
            hint="cache_read first, then compute_at",
        )

    def load_from_copy(access: ir.Load | ir.AddressOf) -> ir.Expr:
        return ir.Load(copy, access.indices) if isinstance(access, ir.Load) else access

    def keep_statement(stmt: ir.Stmt) -> ir.Stmt:
        return stmt

    reading = map_accesses(reader, (source,), keep_statement, load_from_copy)
    body = replace_stmt(func.body, reader, reading)
    anchor = replace_stmt(nest, reader, reading) if nest is not reader else reading
    copying = _build_copy_nest(func, copy.name, source, copy)
    # replace_stmt finds by identity, but each replacement above rebuilt the nest: `body` holds an equal copy of `anchor`.
    placed = next(s for s in walk_stmt(body) if s == anchor)
    new = replace_stmt(body, placed, ir.seq(copying, anchor))
    return replace(func, body=ir.Alloc(copy, new))


def cache_write(func: ir.PrimFunc, block: str, scope: str) -> ir.PrimFunc:
    """Let ``block`` write to a new buffer ``<output>_<scope>`` in memory scope ``scope``. A new block of the same
    name copies that buffer to the output."""
    _check_scope(scope)
    writer = find_block(func.body, block)
    target = stored_buffer(writer)
    name = fresh_name(names_in(func.body) | {p.name for p in func.params}, f"{target.name}_{scope}")
    cache = replace(target, name=name, scope=scope)
    nest: ir.Stmt = writer
    for loop in reversed(loops_around(func.body, writer)):
        if loop.body is not nest:
            break
        nest = loop
    around = loops_around(func.body, nest)
    if around:  # the copy is of the whole tensor, of which an iteration has a part
        raise ScheduleError(
            f"cache_write: other blocks share loop {around[-1].var.name!r} with block {block!r}",
            hint="cache_write first, then compute_at",
        )
    inside = {id(s) for s in walk_stmt(nest)}
    leaves = [leaf for leaf in leaves_outside_blocks(func.body) if id(leaf) not in inside]
    others = [describe_leaf(leaf) for leaf in leaves if target in buffers_written(leaf)]
    if others:  # its numbers would be overwritten by those of the cache
        raise ScheduleError(
            f"cache_write: {others[0]} writes {target.name!r}, too",
            hint="write the cache before decompose_reduction",
        )
    writing = replace_buffers(nest, {target: cache})
    copying = _build_copy_nest(func, name, cache, target)
    return replace(func, body=ir.Alloc(cache, replace_stmt(func.body, nest, ir.seq(writing, copying))))


def set_scope(func: ir.PrimFunc, buffer: str, scope: str) -> ir.PrimFunc:
    """Move an intermediate buffer to the memory scope ``workspace``, ``shared``, ``register``, ``local``, or to a
    tensor unit's memory."""
    _check_scope(scope)
    old = find_buffer(func, buffer)
    if old in func.params:
        raise ScheduleError(
            f"set_scope: {buffer!r} is a parameter; expected an intermediate buffer",
            hint="cache_read or cache_write first: they make a buffer to place",
        )
    return replace(func, body=replace_buffers(func.body, {old: replace(old, scope=scope)}))


# ---- Primitives on buffers in the memories of a tensor unit: align_rows, double_buffer


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


# ---- Primitives on the format of buffers: set_dtype, transform_layout, pack_bits
#
# They apply to intermediate buffers and to constant parameters. The data of a constant is repacked at compile time:
# :func:`repack_constant` repeats the steps of a trace on its array.

_FEW_BITS = ("pack_bits", "tensorize_bits", "tensorize_bit_columns")
"""Primitives that pack several elements of a constant into one integer."""


def packs_constants(step: Step) -> bool:
    """Test whether a step stores a constant in fewer bits than the dtype in which it is multiplied: bit-packed
    integers, or floats in 16 bits."""
    return step.primitive in _FEW_BITS or (step.primitive == "set_dtype" and step.args[1] in padding.FORMATS_16_BIT)


def _find_repackable_buffer(func: ir.PrimFunc, primitive: str, buffer_name: str) -> ir.Buffer:
    """Return a buffer, given its name, whose storage format a primitive may change: an intermediate buffer or a
    constant parameter. Raise ScheduleError for an input or output."""
    buffer = find_buffer(func, buffer_name)
    if buffer in func.params and buffer.scope != "const":
        raise ScheduleError(
            f"{primitive}: {buffer_name!r} is an input or output, whose format belongs to the network",
            hint="cache_read or cache_write first: they make a buffer of its own",
        )
    return buffer


def _replace_buffer(
    func: ir.PrimFunc,
    old: ir.Buffer,
    new: ir.Buffer,
    rewrite_load: Callable[[ir.Load], ir.Expr],
    rewrite_store: Callable[[ir.Store], ir.Stmt],
) -> ir.PrimFunc:
    """Replace the buffer ``old`` by ``new`` in a function. ``rewrite_load`` and ``rewrite_store`` return the new form
    of a load or store of ``old``.

    Raise ScheduleError if the address of the buffer is an argument of an intrinsic."""

    def replace_load(access: ir.Load | ir.AddressOf) -> ir.Expr:
        if isinstance(access, ir.AddressOf):
            raise ScheduleError(
                f"buffer {old.name!r} is an operand of an intrinsic; its format cannot change",
                hint="change its format before tensorize",
            )
        return rewrite_load(access)

    def replace_store_or_allocation(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Store(buffer) if buffer == old:
                return rewrite_store(stmt)
            case ir.Alloc(buffer, body) if buffer == old:
                return ir.Alloc(new, body)
            case _:
                return stmt

    params = tuple(new if p == old else p for p in func.params)
    body = map_accesses(func.body, (old,), replace_store_or_allocation, replace_load)
    return replace(func, params=params, body=body)


def _represents_every_number(dtype: str, source_dtype: str) -> bool:
    """Test whether ``dtype`` can represent every number of ``source_dtype``. Raise ScheduleError for an unknown
    dtype."""
    try:
        return dtypes.contains_range_of(dtype, source_dtype)
    except InternalError as error:
        raise ScheduleError(
            f"set_dtype: {error.what}", hint="name a dtype as in int8, int16, int32 or uint8"
        ) from error


def set_dtype(func: ir.PrimFunc, buffer: str, dtype: str) -> ir.PrimFunc:
    """Store an integer buffer in a wider dtype, or a float32 constant in a 16-bit format
    (:data:`microc.schedule.primitives.padding.FORMATS_16_BIT`) that represents all its numbers exactly.

    Loads are cast to the old dtype, unless a cast to a still wider dtype follows."""
    old = _find_repackable_buffer(func, "set_dtype", buffer)
    if dtype in padding.FORMATS_16_BIT:
        shape = (*old.shape[:-1], old.shape[-1] // 2) if dtype == padding.WORDS else old.shape
        new = replace(old, dtype=padding.dtype_of_16_bit_format(old, dtype), shape=shape)
    elif _represents_every_number(dtype, old.dtype):
        new = replace(old, dtype=dtype)
    else:
        hint = f"choose a wider integer; constants of float32 may be {', '.join(padding.FORMATS_16_BIT)}"
        raise ScheduleError(
            f"set_dtype: {dtype} cannot represent every number of buffer {old.name!r} of {old.dtype}", hint=hint
        )

    def load_in_old_dtype(load: ir.Load) -> ir.Expr:
        if dtype == padding.WORDS:
            return padding.load_float16_of_pair(new, load.indices)
        return ir.Cast(old.dtype, ir.Load(new, load.indices))

    def store_in_new_dtype(store: ir.Store) -> ir.Stmt:
        return ir.Store(new, store.indices, _widen_value(store.value, dtype))

    exchanged = _replace_buffer(func, old, new, load_in_old_dtype, store_in_new_dtype)
    return replace(exchanged, body=map_values(exchanged.body, _build_narrow_cast_remover(new, old.dtype)))


def _build_narrow_cast_remover(buffer: ir.Buffer, old_dtype: str) -> Callable[[ir.Expr], ir.Expr]:
    """Build a rewrite that removes the inner cast of ``wide(old_dtype(load))``. ``load`` reads ``buffer``.

    The values of the buffer fit both dtypes."""

    def remove_narrow_cast(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Cast(wide, ir.Cast(kind, ir.Load(b) as inner)) if b == buffer and kind == old_dtype:
                return inner if wide == b.dtype else ir.Cast(wide, inner)
            case _:
                return expr

    return remove_narrow_cast


def _widen_value(value: ir.Expr, wide_dtype: str) -> ir.Expr:
    """Convert a value to a wider dtype. In a select both alternatives are converted, so that later passes still
    recognise copies."""
    if isinstance(value, ir.Select):
        return ir.Select(value.condition, _widen_value(value.a, wide_dtype), _widen_value(value.b, wide_dtype))
    return ir.const(value.value, wide_dtype) if isinstance(value, ir.Const) else ir.Cast(wide_dtype, value)


def _complete_factors(extent: int, factors: tuple[int | None, ...], buffer_name: str) -> tuple[int, ...]:
    """Return the factors by which an axis is split, with None replaced by the quotient.

    Raise ScheduleError if the factors do not divide ``extent``. ``buffer_name``: for the message."""
    product = prod(f for f in factors if f is not None)
    if factors.count(None) > 1 or product < 1 or extent % product or (None not in factors and product != extent):
        raise ScheduleError(
            f"transform_layout: the factors of an axis of {buffer_name!r} do not divide it; got {factors}, expected a "
            f"product of {extent}, at most one None"
        )
    return tuple(extent // product if f is None else f for f in factors)


def transform_layout(
    func: ir.PrimFunc, buffer: str, factors: tuple[tuple[int | None, ...], ...], order: tuple[int, ...]
) -> ir.PrimFunc:
    """Change the layout of ``buffer``: split every axis by its ``factors`` (outermost first, one may be None), and
    arrange the resulting axes in ``order``.

    For example, factors ((None, 2), (None, 4)) and order (0, 2, 1, 3) store a matrix in tiles of 2 rows by 4
    columns."""
    old = _find_repackable_buffer(func, "transform_layout", buffer)
    parts = _axis_extent_and_stride_of_parts(old.shape, factors, order, buffer)
    new = replace(old, shape=tuple(parts[k][1] for k in order))

    def indices_in_new_layout(indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        result = []
        for k in order:
            axis, extent, stride = parts[k]
            index = simplify(indices[axis] // stride) if stride > 1 else indices[axis]
            # The outermost part of an axis needs no remainder: its quotient stays below the extent.
            result.append(index if is_at_most(old.shape[axis], extent * stride) else simplify(index % extent))
        return tuple(result)

    return _replace_buffer(
        func,
        old,
        new,
        lambda e: ir.Load(new, indices_in_new_layout(e.indices)),
        lambda s: ir.Store(new, indices_in_new_layout(s.indices), s.value),
    )


def _axis_extent_and_stride_of_parts(
    shape: tuple[int, ...], factors: tuple[tuple[int | None, ...], ...], order: tuple[int, ...], buffer_name: str
) -> list[tuple[int, int, int]]:
    """Return (old axis, extent, stride along the old axis) of each axis that results from splitting a buffer's axes by
    ``factors``.

    Raise ScheduleError if ``order`` is no permutation of these axes. ``buffer_name``: for the message."""
    if len(factors) != len(shape):
        raise ScheduleError(
            f"transform_layout: {buffer_name!r} needs factors for each axis; got {len(factors)}, expected {len(shape)}"
        )
    parts = []
    for axis, (extent, axis_factors) in enumerate(zip(shape, factors, strict=True)):
        digits = _complete_factors(extent, axis_factors, buffer_name)
        parts += [(axis, digit, prod(digits[k + 1 :])) for k, digit in enumerate(digits)]
    if sorted(order) != list(range(len(parts))):
        raise ScheduleError(
            f"transform_layout: order must name each part once; got {order}, expected 0..{len(parts) - 1}"
        )
    return parts


def pack_bits(func: ir.PrimFunc, buffer: str, bits: int, order: str, block: int = 0, tables: int = 0) -> ir.PrimFunc:
    """Store the rows of a constant int8 matrix as bit fields of ``bits`` bits. All elements must fit.

    ``order``, ``block`` and ``tables``: as in :class:`BitFields`."""
    old, form = _find_repackable_buffer(func, "pack_bits", buffer), BitFields(bits, order, block, tables)
    if old.scope != "const" or old.dtype != "int8" or len(old.shape) != 2:
        raise ScheduleError(
            f"pack_bits: {buffer!r} must be a constant int8 matrix; got {old.dtype} {old.shape} in {old.scope}"
        )
    rows, depth = old.shape
    new = replace(old, shape=form.shape(rows, depth), dtype=form.dtype)

    def load_packed_element(load: ir.Load) -> ir.Expr:
        row, k = load.indices
        element, bit = map(simplify, form.element_and_bit(k))
        if tables:
            number = form.load_table_value(lambda n: ir.Load(new, (simplify(n),)), (rows, depth), row, k)
        else:
            number = form.unpack_number(ir.Load(new, (row, element)), bit)
        if block:
            number = number * form.load_multiplier(lambda n: ir.Load(new, (row, simplify(n))), depth, k // block)
        numbers.append(number)
        return ir.Cast(old.dtype, number)

    def remove_int8_cast(expr: ir.Expr) -> ir.Expr:
        match (
            expr
        ):  # an unpacked number is an int32 that fits int8: the cast to int8 below a widening one is superfluous
            case ir.Cast("int32" | "int16" | "float32" as wide, ir.Cast("int8", number)) if number in numbers:
                return number.astype(wide)
            case _:
                return expr

    numbers: list[ir.Expr] = []
    func = _replace_buffer(func, old, new, load_packed_element, lambda s: s)
    return replace(func, body=map_values(func.body, remove_int8_cast))


def repack_constant(array: Array, buffer: ir.Buffer, steps: Iterable[tuple[str, tuple[Any, ...]]]) -> Array:
    """Repack the data of a constant parameter into the layout that the scheduled function reads.

    ``steps``: (primitive, arguments) of each step of the schedule's trace."""
    array = array.reshape(buffer.shape)
    for primitive, args in steps:
        if primitive == "set_dtype" and args[0] == buffer.name:
            form = args[1]
            array = (
                padding.convert_to_16_bit_format(array, form)
                if form in padding.FORMATS_16_BIT
                else array.astype(dtypes.to_numpy(form))
            )
        elif primitive == "double_reduction" and args[1] == buffer.name:
            # int8 weights double in place only if all are in -64..63; rules set int16 first.
            low, high = dtypes.int_range(str(array.dtype))
            if not (low <= 2 * int(array.min()) and 2 * int(array.max()) <= high):
                raise ScheduleError(
                    f"double_reduction: twice {buffer.name!r} does not fit {array.dtype}; got "
                    f"{array.min()}..{array.max()}",
                    hint="set_dtype first",
                )
            array = array * 2
        elif primitive == "transform_layout" and args[0] == buffer.name:
            _, factors, order = args
            extents = [
                extent for _, extent, _ in _axis_extent_and_stride_of_parts(array.shape, factors, order, buffer.name)
            ]
            array = array.reshape(extents).transpose(order)
        elif primitive == "tensorize_pairs" and args[0] == buffer.name:
            array = pack_column_pairs(array, *args[3:])
        elif primitive == "tensorize_taps" and args[1] == buffer.name:
            array = pack_tap_words(array, args[2])
        elif primitive == "pack_bits" and args[0] == buffer.name:
            array = BitFields(*args[1:]).pack(array)
        elif primitive == "tensorize_bit_columns" and args[0] == buffer.name:
            array = pack_bit_columns(array)
        elif primitive == "tensorize_bits" and args[0] == buffer.name:
            array = BitFields(args[3], HALVES, *args[4:]).pack(array)
    return np.ascontiguousarray(array)
