# SPDX-License-Identifier: Apache-2.0
"""Instructions for loop nests: lowering for a tensor unit, and requantisation of vectors of sums."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import NoReturn

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.errors import InternalError, ScheduleError
from microc.tir import ir
from microc.tir.analysis.region import build_address, memory_stride
from microc.tir.analysis.simplification import simplify
from microc.tir.names import BARRIER, QUEUES, SIGNAL, UNIT, WAIT, collect_unit_instructions
from microc.tir.rewrite import map_expr, map_stmt, replace_buffers, stmt_exprs, substitute_stmt, walk_expr, walk_stmt

# ---- Lowering for a tensor unit (matrix accelerator): loop nests become its instructions, and tokens synchronise
# its queues.


# ---- Tokens between the instruction queues of a tensor unit, and barriers before accesses by the processor.
#
# Each queue of the unit runs its instructions in order; different queues run concurrently. Every buffer in the unit's memories
# has an event. The queue that fills the buffer and the queue that empties (reads) it exchange tokens: after filling a tile, the
# filling queue signals the emptying queue; after reading the tile, the emptying queue signals the filling queue. At the start the
# emptying queue sends a token for each slot of the buffer, so that all slots may be filled ahead; at the end it waits for these
# tokens. Instructions in the same queue need no tokens.


@frozen
class _BufferSynchronisation:
    """Synchronisation of the queue that fills a buffer in a tensor unit's memory with the queue that reads (empties) it.

    ``event_number``: number of the event that tokens of this buffer carry. ``filling_queue``, ``emptying_queue``:
    numbers of the two queues. ``slot_count``: number of tiles for which the buffer has memory."""

    event_number: int
    buffer: ir.Buffer
    filling_queue: int
    emptying_queue: int
    slot_count: int

    def fills_and_empties(self, stmt: ir.Stmt) -> tuple[bool, bool]:
        """Return two booleans: True if a statement fills the buffer, and True if it empties (reads) the buffer."""
        queues = {
            QUEUES[call.name] for call in collect_unit_instructions(stmt) if self.buffer in _accessed_buffers(call)
        }
        return self.filling_queue in queues, self.emptying_queue in queues

    def token_call_to_emptying_queue(self, instruction_name: str, token_count: int = 1) -> ir.Stmt:
        """Return a call that sends, or waits for, tokens from the queue that fills the buffer to the queue that empties it.

        ``instruction_name``: ``SIGNAL`` (send) or ``WAIT``."""
        return _build_token_call(
            instruction_name, self.filling_queue, self.emptying_queue, self.event_number, token_count
        )

    def token_call_to_filling_queue(self, instruction_name: str, token_count: int = 1) -> ir.Stmt:
        """Return a call that sends, or waits for, tokens from the queue that empties the buffer to the queue that fills it.

        ``instruction_name``: ``SIGNAL`` (send) or ``WAIT``."""
        return _build_token_call(
            instruction_name, self.emptying_queue, self.filling_queue, self.event_number, token_count
        )


def _build_token_call(
    instruction_name: str, source_queue: int, target_queue: int, event_number: int, token_count: int
) -> ir.Stmt:
    """Return a call that sends, or waits for, tokens of an event from one instruction queue to another.

    ``instruction_name``: ``SIGNAL`` (send) or ``WAIT``."""
    return ir.Evaluate(
        ir.Call(
            instruction_name,
            tuple(ir.const(n, "int32") for n in (source_queue, target_queue, event_number, token_count)),
            "int32",
        )
    )


def _accessed_buffers(call: ir.Call) -> tuple[ir.Buffer, ...]:
    """Return the buffers that a tensor unit instruction accesses."""
    return tuple(a.buffer for a in call.args if isinstance(a, ir.AddressOf))


def add_synchronisation_tokens(stmt: ir.Stmt, unit_buffers: Sequence[ir.Buffer]) -> ir.Stmt:
    """Return a statement with tokens between the instruction queues of a tensor unit, and barriers, added.

    The instructions of the unit must be calls already. ``unit_buffers``: the buffers in the unit's memories."""
    events = tuple(_iterate_buffer_synchronisations(stmt, unit_buffers))
    allocs, inner = [], stmt
    while isinstance(inner, ir.Alloc):
        allocs.append(inner.buffer)
        inner = inner.body
    body = _insert_barriers(_add_tokens_around_instructions(inner, events), [False])
    first = [event.token_call_to_filling_queue(SIGNAL, event.slot_count) for event in events]
    last = [event.token_call_to_filling_queue(WAIT, event.slot_count) for event in events]
    whole = ir.seq(*first, body, *last, _BARRIER)
    for buffer in reversed(allocs):
        whole = ir.Alloc(buffer, whole)
    return whole


_BARRIER = ir.Evaluate(ir.Call(BARRIER, (), "int32"))


def _iterate_buffer_synchronisations(
    stmt: ir.Stmt, unit_buffers: Sequence[ir.Buffer]
) -> Iterator[_BufferSynchronisation]:
    """Yield the synchronisation of each buffer in the unit's memories.

    Its two queues are the queues of the instructions that write and that read the buffer."""
    for number, buffer in enumerate(unit_buffers):
        queues = {True: set[int](), False: set[int]()}
        for call in collect_unit_instructions(stmt):
            for a in call.args:
                if isinstance(a, ir.AddressOf) and a.buffer == buffer:
                    queues[a.writes].add(QUEUES[call.name])
        (fills,), (empties,) = queues[True], queues[False] - queues[True]
        yield _BufferSynchronisation(number, buffer, fills, empties, max(1, buffer.slots))


def _add_tokens_around_instructions(stmt: ir.Stmt, events: Sequence[_BufferSynchronisation]) -> ir.Stmt:
    """Return a statement with tokens added around the instructions that fill or empty the buffers of ``events``."""
    match stmt:
        case ir.Seq(body):
            before, after = defaultdict[int, list[ir.Stmt]](list), defaultdict[int, list[ir.Stmt]](list)
            for event in events:
                _exchange_tokens(event, body, before, after)
            done = (
                [*before[k], _add_tokens_around_instructions(child, events), *after[k]] for k, child in enumerate(body)
            )
            return ir.seq(*(s for part in done for s in part))
        case ir.For(var, extent, body, kind, annotations):
            return ir.For(var, extent, _add_tokens_around_instructions(body, events), kind, annotations)
        case ir.Alloc(buffer, body):
            return ir.Alloc(buffer, _add_tokens_around_instructions(body, events))
        case ir.Let(var, value, body):
            return ir.Let(var, value, _add_tokens_around_instructions(body, events))
        case ir.If(condition, then, otherwise):
            return ir.If(
                condition,
                _add_tokens_around_instructions(then, events),
                _add_tokens_around_instructions(otherwise, events) if otherwise else None,
            )
        case _:
            return stmt


def _exchange_tokens(
    event: _BufferSynchronisation,
    statements: Sequence[ir.Stmt],
    tokens_before: dict[int, list[ir.Stmt]],
    tokens_after: dict[int, list[ir.Stmt]],
) -> None:
    """Add the tokens that one buffer needs to a sequence of statements.

    Tokens are added to ``tokens_before`` and ``tokens_after``, by the index of the statement. Only statements that either fill
    or empty the buffer are considered. A statement that does both (a loop) gets tokens inside of its body. If a whole sequence
    only fills, or only empties, the tokens are added to an enclosing sequence. Consecutive fills, or consecutive reads,
    exchange tokens once: before the first and after the last of them.
    """
    roles = [event.fills_and_empties(child) for child in statements]
    fills = [k for k, t in enumerate(roles) if t == (True, False)]
    empties = [k for k, t in enumerate(roles) if t == (False, True)]
    if not fills or not empties:
        return
    # Consecutive fills wait for a free slot even at the start of the sequence, because the reader has sent a token for each slot
    # in advance. Consecutive reads at the end of the sequence send the token for the next iteration.
    single = sorted(fills + empties)
    for position, k in enumerate(single):
        left = single[position - 1] if position else None
        right = single[position + 1] if position + 1 < len(single) else None
        if k in fills and (left is None or left in empties):
            tokens_before[k].append(event.token_call_to_filling_queue(WAIT))
        if k in fills and right in empties:
            tokens_after[k].append(event.token_call_to_emptying_queue(SIGNAL))
        if k in empties and left in fills:
            tokens_before[k].append(event.token_call_to_emptying_queue(WAIT))
        if k in empties and (right is None or right in fills):
            tokens_after[k].append(event.token_call_to_filling_queue(SIGNAL))


def _insert_barriers(stmt: ir.Stmt, may_be_pending: list[bool]) -> ir.Stmt:
    """Return a statement with barriers added: the processor waits for pending instructions of the unit.

    A barrier is added before every statement that the processor runs itself while instructions may be pending.
    ``may_be_pending``: a list of one boolean, True if instructions may be pending, which is updated."""
    if collect_unit_instructions(stmt) == []:
        waits = may_be_pending[0] and any(
            isinstance(s, (ir.Store, ir.Evaluate)) and not _is_token_call(s) for s in walk_stmt(stmt)
        )
        may_be_pending[0] = may_be_pending[0] and not waits
        return ir.seq(_BARRIER, stmt) if waits else stmt
    match stmt:
        case ir.Seq(body):
            return ir.seq(*(_insert_barriers(child, may_be_pending) for child in body))
        case ir.For(var, extent, body, kind, annotations):
            # Instructions of the previous iteration may be pending at the start of the body.
            may_be_pending[0] = True
            return ir.For(var, extent, _insert_barriers(body, may_be_pending), kind, annotations)
        case ir.Alloc(buffer, body):
            return ir.Alloc(buffer, _insert_barriers(body, may_be_pending))
        case ir.Let(var, value, body):
            return ir.Let(var, value, _insert_barriers(body, may_be_pending))
        case ir.If(condition, then, otherwise):
            start = [may_be_pending[0]]
            first = _insert_barriers(then, may_be_pending)
            second = _insert_barriers(otherwise, start) if otherwise else None
            # Only one of the branches runs. After it, its instructions may be pending.
            may_be_pending[0] = True
            return ir.If(condition, first, second)
        case _:
            may_be_pending[0] = True
            return stmt


def _is_token_call(stmt: ir.Stmt) -> bool:
    return isinstance(stmt, ir.Evaluate) and isinstance(stmt.value, ir.Call) and stmt.value.name in (SIGNAL, WAIT)


# ---- Loop nests annotated ``unit``: each becomes one instruction of a tensor unit.
#
# The value of the annotation is the instruction's name (:mod:`microc.isa.vocabulary.matrix_products`). Copies and fills are loops
# over rows and columns around a store. A product ``sums[r, c] += int32(input[r, k]) * int32(weight[c, k])`` has three loops.
# Loops of tails may have smaller extents, and a loop of one iteration may be missing. Finally the buffers in the unit's
# memories get their addresses in these memories.

Loops = list[tuple[ir.Var, int]]
"""Variables and extents of nested loops, outermost first."""


def lower_tensor_unit(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with loops annotated ``unit`` replaced by tensor unit instructions, synchronised by tokens.

    If no buffer is in the unit's memories, the statement is returned unchanged. Raises ScheduleError if the processor accesses
    a buffer in the unit's memories."""
    allocs = (s.buffer for s in walk_stmt(stmt) if isinstance(s, ir.Alloc))
    held = {b: _align_rows(b) for b in allocs if b.scope in ir.UNIT_SCOPES}
    if not held:
        return stmt
    called = _replace_annotated_nests(replace_buffers(stmt, held))
    for s in walk_stmt(called):
        loads = (x.buffer for e in stmt_exprs(s) for x in walk_expr(e) if isinstance(x, ir.Load))
        for buffer in (*loads, *([s.buffer] if isinstance(s, ir.Store) else [])):
            if buffer.scope in ir.UNIT_SCOPES:
                raise ScheduleError(
                    f"buffer {buffer.name!r}: the processor accesses it, but only instructions of the tensor unit reach "
                    f"the scope {buffer.scope!r}",
                    hint="tensorize every block that reads or writes it, or cache_read it for the other blocks",
                )
    return _combine_unit_buffers(add_synchronisation_tokens(called, tuple(held.values())), tuple(held.values()))


def _align_rows(buffer: ir.Buffer) -> ir.Buffer:
    """Return a buffer with its rows padded, so that every row is aligned."""
    step = max(1, buffer.align // dtypes.nbytes(buffer.dtype))
    return replace(buffer, shape=(*buffer.shape[:-1], -(-buffer.shape[-1] // step) * step))


def _instruction_name(loop: ir.For) -> str:
    """Return the value of a loop's annotation ``unit``, the name of an instruction; an empty string if there is none."""
    return str(dict(loop.annotations).get(UNIT, ""))


def _replace_annotated_nests(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with every loop nest annotated ``unit`` replaced by a call of its instruction."""
    match stmt:
        case ir.For() if _instruction_name(stmt):
            return _build_instruction_call(stmt)
        case ir.For(var, extent, body, kind, annotations):
            return ir.For(var, extent, _replace_annotated_nests(body), kind, annotations)
        case ir.Seq(body):
            return ir.seq(*map(_replace_annotated_nests, body))
        case ir.Alloc(buffer, body):
            return ir.Alloc(buffer, _replace_annotated_nests(body))
        case ir.Let(var, value, body):
            return ir.Let(var, value, _replace_annotated_nests(body))
        case ir.If(condition, then, otherwise):
            return ir.If(
                condition, _replace_annotated_nests(then), _replace_annotated_nests(otherwise) if otherwise else None
            )
        case _:
            return stmt


def _build_instruction_call(nest: ir.For) -> ir.Stmt:
    """Return the call of a tensor unit instruction (a product, a fill, or a copy) for an annotated loop nest."""
    word, loops, inner = _instruction_name(nest), list[tuple[ir.Var, int]](), ir.seq(nest)
    while isinstance(inner, ir.For) and _instruction_name(inner) == word:
        extent = ir.int_value(inner.extent)
        if extent is None:
            _raise_no_instruction(nest, "a loop has no constant extent")
        loops.append((inner.var, extent))
        inner = inner.body
    first: dict[ir.Var, ir.Expr] = {var: ir.const(0, "int32") for var, _ in loops}
    loops = [loop for loop in loops if loop[1] > 1]
    match word, inner:
        case "unit_matmul", ir.Store(sums, place, ir.Bin("add", old, ir.Bin("mul", ir.Cast(_, a), ir.Cast(_, b)))) if (
            old == ir.Load(sums, place) and isinstance(a, ir.Load) and isinstance(b, ir.Load)
        ):
            args = _build_matmul_arguments(nest, loops, first, ir.Load(sums, place), *_order_as_input_and_weight(a, b))
        case "unit_set", ir.Store(to, place, ir.Const() as value):
            rows, columns, strides = _row_count_length_and_strides(nest, loops, (ir.Load(to, place),))
            args = (_build_address_of_rows(to, place, first, rows, columns, strides[0], writes=True), value)
            args += _int32_literals(rows, columns, *strides)
        case _, ir.Store(to, place, ir.Load(source, where) as load):
            rows, columns, strides = _row_count_length_and_strides(nest, loops, (ir.Load(to, place), load))
            args = (
                _build_address_of_rows(to, place, first, rows, columns, strides[0], writes=True),
                _build_address_of_rows(source, where, first, rows, columns, strides[1]),
            )
            args += _int32_literals(rows, columns, *strides)
        case _:
            _raise_no_instruction(nest, "their body is neither a product, nor a copy, nor a fill by a constant")
    return ir.Evaluate(ir.Call(word, args, "int32"))


def _raise_no_instruction(nest: ir.For, reason: str) -> NoReturn:
    """Raise InternalError for an annotated loop nest that its instruction cannot compute."""
    raise InternalError(
        f"loop nest {nest.var.name}: the instruction {_instruction_name(nest)} cannot compute it: {reason}"
    )


def _order_as_input_and_weight(a: ir.Load, b: ir.Load) -> tuple[ir.Load, ir.Load]:
    """Return the two factors of a product in the order (input, weight). The input is in the first of the unit's memories."""
    return (a, b) if a.buffer.scope == ir.UNIT_SCOPES[0] else (b, a)


def _element_stride(nest: ir.For, load: ir.Load, var: ir.Var) -> int:
    """Return the distance in elements between the accesses of a load in consecutive iterations of ``var``.

    Raises InternalError if it is not constant."""
    step = memory_stride(load.buffer, load.indices, var)
    if step is None:
        _raise_no_instruction(nest, f"{load.buffer.name} is not accessed at a constant stride in the loop {var.name}")
    return step


def _row_count_length_and_strides(
    nest: ir.For, loops: Loops, operands: tuple[ir.Load, ...]
) -> tuple[int, int, tuple[int, ...]]:
    """Return the number of rows, the number of columns, and for each of ``operands`` the distance in elements between rows.

    Without a loop over rows the distance is unknown. Then it is the number of columns (adjacent rows) for buffers in the
    unit's memories, and 0 for other buffers."""
    steps = [tuple(_element_stride(nest, place, var) for place in operands) for var, _ in loops]
    extents = [extent for _, extent in loops]
    near = (1,) * len(operands)
    columns = extents.pop() if steps and steps[-1] == near else 1
    strides = steps[: len(extents)]
    if len(extents) > 1:
        _raise_no_instruction(nest, f"got {len(loops)} loops, expected one over rows and one over columns")
    alone = tuple(columns if place.buffer.scope in ir.UNIT_SCOPES else 0 for place in operands)
    return (extents[0] if extents else 1), columns, (strides[0] if strides else alone)


def _build_matmul_arguments(
    nest: ir.For, loops: Loops, start_values: dict[ir.Var, ir.Expr], sums: ir.Load, data: ir.Load, weight: ir.Load
) -> tuple[ir.Expr, ...]:
    """Return the arguments of the instruction that computes a matrix product.

    The role of each loop (row, column or term) follows from its strides in ``sums``, ``data`` and ``weight``."""
    rows = columns = depth = 1
    row = column = (0, 0)
    for var, extent in loops:
        of_sums, of_data, of_weight = (_element_stride(nest, place, var) for place in (sums, data, weight))
        if (of_sums, of_data, of_weight) == (0, 1, 1) and depth == 1:
            depth = extent
        elif of_weight == 0 and rows == 1:
            rows, row = extent, (of_sums, of_data)
        elif (of_sums, of_data) == (1, 0) and columns == 1:
            columns, column = extent, (1, of_weight)
        else:
            _raise_no_instruction(nest, f"{var.name} is no loop over rows, columns or terms")
    return (
        _build_address_of_rows(sums.buffer, sums.indices, start_values, rows, columns, row[0], writes=True),
        _build_address_of_rows(data.buffer, data.indices, start_values, rows, depth, row[1]),
        _build_address_of_rows(weight.buffer, weight.indices, start_values, columns, depth, column[1]),
        *_int32_literals(rows, columns, depth, row[0], row[1], column[1]),
    )


def _build_address_of_rows(
    buffer: ir.Buffer, indices: tuple[ir.Expr, ...], start_values: dict[ir.Var, ir.Expr], rows: int, row_length: int, stride: int,
    *, writes: bool = False,
) -> ir.AddressOf:  # fmt: skip
    """Return the address of ``rows`` rows of ``row_length`` elements. The starts of rows are ``stride`` elements apart.

    ``start_values``: values that replace the loop variables in ``indices``."""
    return build_address(buffer, indices, start_values, (rows - 1) * stride + row_length, writes=writes)


def _int32_literals(*values: int) -> tuple[ir.Expr, ...]:
    """Return integers as int32 literals."""
    return tuple(ir.const(value, "int32") for value in values)


def _combine_unit_buffers(stmt: ir.Stmt, unit_buffers: tuple[ir.Buffer, ...]) -> ir.Stmt:
    """Return a statement with all buffers in a memory of the unit combined into one buffer, one after the other."""
    places: dict[ir.Buffer, tuple[ir.Buffer, int]] = {}
    for scope in ir.UNIT_SCOPES:
        inside = [b for b in unit_buffers if b.scope == scope]
        memory = (
            ir.Buffer(scope, (sum(map(_padded_element_count, inside)),), inside[0].dtype, scope) if inside else None
        )
        for k, buffer in enumerate(inside):
            assert memory is not None
            places[buffer] = memory, sum(map(_padded_element_count, inside[:k]))

    def redirect_address(expr: ir.Expr) -> ir.Expr:
        if not isinstance(expr, ir.AddressOf) or expr.buffer not in places:
            return expr
        memory, start = places[expr.buffer]
        flat: ir.Expr = ir.const(start, "int32")
        for index, stride in zip(expr.indices, expr.buffer.strides, strict=True):
            flat = flat + index * stride
        return replace(expr, buffer=memory, indices=(flat,))

    def drop_allocation(s: ir.Stmt) -> ir.Stmt:
        return s.body if isinstance(s, ir.Alloc) and s.buffer in places else s

    body = map_stmt(stmt, drop_allocation, lambda x: map_expr(x, redirect_address))
    for memory in dict.fromkeys(memory for memory, _ in places.values()):
        body = ir.Alloc(memory, body)
    return body


def _padded_element_count(buffer: ir.Buffer) -> int:
    """Return the number of elements that a buffer occupies in the unit's memory, including padding to its alignment."""
    step = max(1, buffer.align // dtypes.nbytes(buffer.dtype))
    return -(-prod(buffer.shape) // step) * step


# ---- Replacement of loops over vectors that requantise sums in memory to bytes.
#
# ::
#
#     for o in 2 n: for r in R (unrolled):
#         store_saturated_<t>_rshr_<n>_i32x4(out[r, 4 o], high_product(mac_n(addend[4 o], sums[r, 4 o], factor), multiplier[4 o]))
#
# becomes ``requantize_<t>_rshr_<n>_<R>(out, sums, addend, multiplier, 8 n, factor, strides of out and sums)``.
# One instruction narrows half of a vector, so that two vectors become one; and the intrinsic orders the
# instructions of all rows. Of an odd number of vectors the last one stays as it is.


MAX_ROWS = 3
"""Most rows that one intrinsic requantises: rows of a matrix product on MVE."""
LANES = 4
"""Number of sums in a vector."""
_STORE = re.compile(r"store_saturated_([iu]8)_rshr_(\d+)_i32x4")
_SATURATED_STORES = {f"store_saturated_{suffix}_i32x4": suffix for suffix in ("i8", "u8")}
_ENDS = {"store_i8_i32x4": dtypes.int_range("int8"), "store_u8_i32x4": dtypes.int_range("uint8")}
"""Bounds by which results are clamped before they are stored without saturation."""


def requantisation_name(dtype_suffix: str, distance: int, rows: int) -> str:
    """Return the name of the intrinsic that requantises ``rows`` rows to ``i8`` or ``u8``, with a right shift by
    ``distance``."""
    return f"requantize_{dtype_suffix}_rshr_{distance}_{rows}"


@frozen
class _Row:
    """A vector of sums that is requantised: the addresses of its result, its sums and its constants.

    ``dtype_suffix``, ``distance``: dtype of the result and its right shift. ``factor``: factor of the sums."""

    dtype_suffix: str
    distance: int
    factor: int
    out: ir.AddressOf
    sums: ir.AddressOf
    constants: tuple[ir.AddressOf, ir.AddressOf]

    @property
    def common(self) -> tuple[object, ...]:
        """Values that all rows of a loop have in common."""
        return self.dtype_suffix, self.distance, self.factor, self.constants


def twice_rounding_name(dtype_suffix: str, *, away: bool) -> str:
    """Return the name of the intrinsic that requantises a row by one factor and rounds twice. ``away``: the second rounding
    rounds half away from zero."""
    return f"requantize_{dtype_suffix}_twice{'_away' if away else ''}"


def lower_requantisation(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with its loops that requantise vectors of sums replaced by calls."""
    uniform = {
        s.var: number
        for s in walk_stmt(stmt)
        if isinstance(s, ir.Let)
        and isinstance(s.value, ir.Call)
        and s.value.name == "dup_i32x4"
        and (number := ir.int_value(s.value.args[0])) is not None
    }

    def lower_loop(s: ir.Stmt) -> ir.Stmt:
        return (_build_call(s) or _build_twice_rounding_call(s, uniform) or s) if isinstance(s, ir.For) else s

    return map_stmt(stmt, lower_loop)


def _build_call(loop: ir.For) -> ir.Stmt | None:
    """Return the call of the intrinsic, and the last vector of an odd number, in place of a loop; None for other loops."""
    statements = loop.body.body if isinstance(loop.body, ir.Seq) else (loop.body,)
    rows = [row for s in statements if (row := _match_row(s)) is not None]
    extent = ir.int_value(loop.extent) or 0
    if not 0 < len(rows) == len(statements) <= MAX_ROWS or extent < 2:
        return None
    first = rows[0]
    places = (first.out, first.sums, *first.constants)
    stride_out, stride_sums = (_row_stride([getattr(row, name) for row in rows]) for name in ("out", "sums"))
    # Eight columns are loaded before any of them is stored: results must not overwrite sums or constants.
    apart = first.sums.buffer.scope == "local" and all(a.buffer.scope == "const" for a in first.constants)
    consecutive = all(memory_stride(a.buffer, a.indices, loop.var) == LANES for a in places)
    if stride_out is None or stride_sums is None or not apart or not consecutive:
        return None
    if any(row.common != first.common for row in rows):
        return None
    columns, start = extent // 2 * (2 * LANES), {loop.var: ir.const(0, "int32")}
    reaches = (columns + (len(rows) - 1) * stride_out, columns + (len(rows) - 1) * stride_sums, columns, columns)
    numbers = (columns, first.factor, *((stride_out, stride_sums) if len(rows) > 1 else ()))
    args = (
        *(
            build_address(a.buffer, a.indices, start, reach, writes=a.writes)
            for a, reach in zip(places, reaches, strict=True)
        ),
        *(ir.const(number, "int32") for number in numbers),
    )
    name = requantisation_name(first.dtype_suffix, first.distance, len(rows))
    last = [substitute_stmt(loop.body, {loop.var: ir.const(extent - 1, "int32")})] if extent % 2 else []
    return ir.seq(ir.Evaluate(ir.Call(name, args, "int32")), *last)


def _match_row(stmt: ir.Stmt) -> _Row | None:
    """Match the requantisation of a vector of sums in memory; None for other statements."""
    match stmt:
        case ir.Evaluate(
            ir.Call(
                store,
                (
                    ir.AddressOf() as out,
                    ir.Call(
                        "high_product_i32x4",
                        (
                            ir.Call(
                                "mac_n_i32x4",
                                (
                                    ir.Call("load_i32_i32x4", (ir.AddressOf() as addend,)),
                                    ir.Call("load_i32_i32x4", (ir.AddressOf() as sums,)),
                                    ir.Const(int() as factor),
                                ),
                            ),
                            ir.Call("load_i32_i32x4", (ir.AddressOf() as multiplier,)),
                        ),
                    ),
                ),
            )
        ) if (name := _STORE.fullmatch(store)) is not None:
            return _Row(name[1], int(name[2]), factor, out, sums, (addend, multiplier))
        case _:
            return None


# ---- A single row by one multiplier and one shift, as TFLite rounds: a high product, then a shift. Rows of one factor begin at
# their biases, so that ``requantize_floor`` would add nothing but its constants.
#
#     store_saturated_i8_i32x4(out[4 o], add(shift_round_n(doubling_high_mul_n(sums[4 o], multiplier), shift), zero_point))
#
# becomes ``requantize_i8_twice(out, sums, 16 n, multiplier, shift, zero_point)``. Vectors that do not fill 16 columns stay in a
# loop.

TWICE_COLUMNS = 16
"""Columns of an iteration."""
_ZERO_POINTS = range(-(1 << 15), 1 << 15)
"""Zero points that fit the lanes to which they are added, after the sums are narrowed to 16 bits."""


@frozen
class _TwiceRounded:
    """A vector of sums that is rounded twice: addresses of its result and sums, and the numbers of its scale."""

    dtype_suffix: str
    out: ir.AddressOf
    sums: ir.AddressOf
    multiplier: int
    shift: int
    zero_point: int
    away: bool


def _build_twice_rounding_call(loop: ir.For, uniform: Mapping[ir.Var, int]) -> ir.Stmt | None:
    """Return the call of the intrinsic, and the loop over the remaining vectors; None for other loops.

    ``uniform``: numbers that are equal in all lanes of a vector variable."""
    row, extent = _match_twice_rounded(loop.body, uniform), ir.int_value(loop.extent) or 0
    vectors = extent // (TWICE_COLUMNS // LANES) * (TWICE_COLUMNS // LANES)
    if row is None or not vectors or row.shift >= 0 or row.zero_point not in _ZERO_POINTS:
        return None
    places = row.out, row.sums
    consecutive = all(memory_stride(a.buffer, a.indices, loop.var) == LANES for a in places)
    if row.sums.buffer.scope != "local" or not consecutive:
        return None
    columns, start = vectors * LANES, {loop.var: ir.const(0, "int32")}
    args = [build_address(a.buffer, a.indices, start, columns, writes=a.writes) for a in places]
    numbers = _int32_literals(columns, row.multiplier, row.shift, row.zero_point)
    name = twice_rounding_name(row.dtype_suffix, away=row.away)
    rest = substitute_stmt(loop.body, {loop.var: loop.var + vectors})
    remaining = [replace(loop, extent=ir.const(extent - vectors, "int32"), body=rest)] if extent > vectors else []
    return ir.seq(ir.Evaluate(ir.Call(name, (*args, *numbers), "int32")), *remaining)


def _match_twice_rounded(stmt: ir.Stmt, uniform: Mapping[ir.Var, int]) -> _TwiceRounded | None:
    """Match the requantisation of a vector of sums by one factor; None for other statements."""
    match stmt:
        case ir.Evaluate(ir.Call(store, (ir.AddressOf() as out, value))) if store in _SATURATED_STORES:
            suffix = _SATURATED_STORES[store]
        case ir.Evaluate(
            ir.Call(
                store,
                (
                    ir.AddressOf() as out,
                    ir.Call("min_i32x4", (ir.Call("max_i32x4", (value, ir.Var() as low)), ir.Var() as high)),
                ),
            )
        ) if (uniform.get(low), uniform.get(high)) == _ENDS.get(store):
            suffix = store.split("_")[1]
        case _:
            return None
    match value:
        case ir.Call(
            "add_i32x4", (ir.Call("shift_round_n_i32x4", (product, ir.Const(int() as shift))), ir.Var() as zero_point)
        ) if zero_point in uniform:
            pass
        case _:
            return None
    sign: ir.Expr | None = None
    match product:
        case ir.Call("add_i32x4", (inner, ir.Call("shl_n_i32x4", (operand, ir.Const(-31))))):
            product, sign = inner, operand
    match product:
        case ir.Call(
            "doubling_high_mul_n_i32x4",
            (ir.Call("load_i32_i32x4", (ir.AddressOf() as sums,)) as load, ir.Const(int() as multiplier)),
        ) if sign in (None, load):
            return _TwiceRounded(suffix, out, sums, multiplier, shift, uniform[zero_point], sign is not None)
        case _:
            return None


def _row_stride(addresses: list[ir.AddressOf]) -> int | None:
    """Return the distance in elements between the addresses of neighbouring rows, 0 for a single row.

    None if it is not constant, not positive, or differs."""
    offsets = [_flat_index(address) for address in addresses]
    distances = {ir.int_value(simplify(after - before)) for before, after in pairwise(offsets)}
    buffers = {address.buffer for address in addresses}
    stride = distances.pop() if distances else 0
    return None if distances or len(buffers) > 1 or stride is None or stride < 0 else stride


def _flat_index(address: ir.AddressOf) -> ir.Expr:
    """Return the offset of an address from the start of its buffer, in elements."""
    total: ir.Expr = ir.const(0, "int32")
    for index, stride in zip(address.indices, address.buffer.strides, strict=True):
        total = total + index * stride
    return total
