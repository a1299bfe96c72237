# SPDX-License-Identifier: Apache-2.0
"""Rules for functions that move elements, and for elementwise functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod

from microc.base import dtypes
from microc.isa import CORES, SCALAR
from microc.isa.instruction_set import split_lane_form
from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.selection import find_lane_operation
from microc.schedule.primitives.tree import find_loop
from microc.schedule.rules.generic import (
    blocks_of,
    compute_padding_by_row,
    finish_reduction,
    inline_elementwise,
    is_operator_scheduled,
    reduction_loops,
    schedule_generic,
    split_contiguous_runs,
    unroll_small_loops,
)
from microc.schedule.rules.rule import Decisions, vectorize_in_lanes, vectorize_in_strips, vectorize_lanes
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.analysis.context import is_index
from microc.tir.analysis.region import is_consecutive
from microc.tir.lower.lanes import SHORT as LANES_SHORT
from microc.tir.lower.packed_lanes import WORD_FORMS
from microc.tir.names import LANE_FORMS, LANE_OPERATIONS, LANE_OPERATORS, LANES, MOVED, SUFFIXES, WORD_LANES, Lanes
from microc.tir.rewrite import free_vars, walk_all_exprs, walk_expr, walk_stmt

# ---- Copy loops that operators wrote themselves: as many elements at a time as a core moves

WORD = 4
"""Bytes of a word."""
LEAST = 16
"""Bytes of contiguous elements from which a test at run time pays whether the addresses permit moving words."""


def matches_copy_loops(start: Schedule, target: Target) -> bool:
    """Match functions whose operator definition contains loops that copy memory."""
    return any(find_copy_loops_and_dtypes(start.func))


def schedule_copy_loops(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Schedule as :func:`schedule_generic` does, but move the operator's own copy loops by words or vectors.

    Short copies become slower by that, contiguous ones faster; the cost model decides."""
    return schedule_generic(vectorize_copy_loops(start, target), target, decisions)


def find_copy_loops_and_dtypes(func: ir.PrimFunc) -> Iterator[tuple[str, str]]:
    """Iterate over (loop, dtype) of the loops that only copy contiguous elements from one buffer to another.

    Only loops of an operator's definition have statements outside of blocks."""
    for loop in walk_stmt(func.body):
        match loop:
            case ir.For(var, ir.Const(), ir.Store(into, into_indices, ir.Load(source, indices)), "serial") if (
                into != source and is_consecutive(into_indices, var) and is_consecutive(indices, var)
            ):
                if find_loop(func.body, var.name) is loop:  # steps know loops by name
                    yield var.name, into.dtype


def vectorize_copy_loops(schedule: Schedule, target: Target) -> Schedule:
    """Let copy loops (:func:`find_copy_loops_and_dtypes`) move vectors, words at any address, or words if both addresses
    permit that. Else leave the loops unchanged.

    Elements are moved in order, so that memory may be moved to a lower address that overlaps it."""
    for loop, dtype in tuple(find_copy_loops_and_dtypes(schedule.func)):
        width = dtypes.nbytes(dtype)
        if (target.has("lanes") or target.has("vectors")) and dtype in SUFFIXES:
            schedule = vectorize_lanes(schedule, loop)
        elif target.has("unaligned") or width == WORD:
            schedule = schedule.vectorize(loop)
        elif target.has("words") and dtype in LANES_SHORT and loop_extent(schedule.func, loop) * width >= LEAST:
            schedule = schedule.annotate(loop, MOVED, 1)
    return schedule


# ---- Functions that move elements, or take a maximum: whole words if the core can, else several elements in an iteration

RUNS = (8, 4)
"""Numbers of elements that one iteration moves, in order of preference: the first number that divides all elements
is chosen."""
TAPS = 16
"""Largest number of elements of a window for which a maximum is unrolled for every word."""


def matches_copies(start: Schedule, target: Target) -> bool:
    """Match functions that only move elements, in loops of blocks."""
    blocks = blocks_of(start)
    return bool(blocks) and all(_is_copy_block(block) and bool(start.loops_of(block.name)) for block in blocks)


def schedule_copies(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Copy by words if the decision ``words`` is True and the core can move words, or can test at run time whether
    the addresses permit it. Else unroll several elements."""
    schedule = generic = schedule_generic(start, target, {"unrolled": False})
    for block in blocks_of(generic):
        if not decisions["words"]:
            schedule = _unroll_elements(schedule, block)
        elif target.has("unaligned"):
            schedule = _vectorize_innermost(split_contiguous_runs(schedule, block.name), block.name)
        elif target.has("words"):
            inner = [name for name in schedule.loops_of(block.name) if loop_extent(schedule.func, name) > 1]
            schedule = schedule.annotate(inner[-1], MOVED, 1) if inner else schedule
    return schedule


def matches_integer_moves(start: Schedule, target: Target) -> bool:
    """Match functions that move integers, or compute the maximum or minimum of a few integers."""
    return all(_is_integer_move_block(block) for block in blocks_of(start))


def schedule_integer_moves(start: Schedule, target: Target, _: Decisions) -> Schedule | None:
    """Compute all lanes of a packed word at once. Return None if too many elements are compared."""
    schedule = inline_elementwise(start)
    for block in blocks_of(schedule):
        reducing = reduction_loops(schedule, block.name)
        if prod(loop_extent(schedule.func, name) for name in reducing) > TAPS:
            return None
        schedule = unroll_small_loops(finish_reduction(schedule, block.name), block.name, reducing, TAPS)
    schedule = compute_padding_by_row(schedule, target)
    return _vectorize_innermost(schedule, blocks_of(schedule)[-1].name)


def matches_packed_lanes(start: Schedule, target: Target) -> bool:
    """Match functions that compute elements of 8 or 16 bits one by one, on cores with operations in lanes of this dtype."""
    return matches_elementwise_arithmetic(start, target) and bool(_list_packed_lanes(blocks_of(start)[-1], target))


def _list_packed_lanes(block: ir.Block, target: Target) -> dict[Lanes, list[str]]:
    """Return the lanes in which a core may compute what a block stores, the most lanes first, each with the notation of those
    operations that are no scalar intrinsics (:data:`~microc.tir.names.LANE_FORMS`).

    The core has scalar intrinsics in the lanes, whose meanings are found later, or all operators of the block."""
    values = [x for x in walk_all_exprs(block.body) if not is_index(x) and isinstance(x, (ir.Bin, ir.Call))]
    operators = {LANE_OPERATORS.get(x.op, x.op) if isinstance(x, ir.Bin) else x.name for x in values}
    lanes_of_block: dict[Lanes, list[str]] = {}
    for lanes, names in list_lane_forms(target, CORES.entries, SCALAR.entries).items():
        has_operators = operators <= names.keys() and not (lanes.is_word and operators <= WORD_FORMS)
        has_forms = {"load", "store"} <= names.keys() and (has_operators or not names.keys().isdisjoint(SCALAR))
        if has_forms and lanes.dtype == stored_buffer(block).dtype:
            wanted = {*LANE_OPERATORS.values()} - WORD_FORMS if lanes.is_word else LANE_OPERATIONS
            own = {operation: name for operation, name in names.items() if operation in wanted}
            lanes_of_block[lanes] = [
                op if name == f"{op}_{lanes.suffix}" else f"{op}={name}" for op, name in own.items()
            ]
    return lanes_of_block


@lru_cache(maxsize=64)
def list_lane_forms(target: Target, _cores: object, _intrinsics: object) -> Mapping[Lanes, Mapping[str, str]]:
    """Return the lanes narrower than int32 of a core, the most lanes first, each with the intrinsics by which the core computes
    operations and scalar intrinsics in them.

    The contents of the registries are part of the key, since plugins extend them."""
    forms: dict[Lanes, dict[str, str]] = {}
    for name in sorted(target.core.has & SCALAR.keys()):
        found = find_lane_operation(SCALAR[name])
        operation, lanes = found or split_lane_form(name)
        # A vector intrinsic with the name of an operation, but with another meaning, does not compute the operation.
        if lanes and lanes.is_narrow and not lanes.scalable and (found or lanes.is_word or operation in SCALAR):
            forms.setdefault(lanes, {})[operation] = name
    return dict(sorted(forms.items(), key=lambda entry: (-entry[0].count, entry[0].suffix)))


def schedule_packed_lanes(start: Schedule, target: Target, _: Decisions) -> Schedule | None:
    """Compute elements in the lanes of a word or a vector: the most lanes that the loop fills. Expressions that the core does not
    compute in lanes stay scalar. Return None if there are several blocks, or no loop."""
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    inner = _innermost_long_loop(schedule, blocks[0]) if len(blocks) == 1 else ""
    if not inner:
        return None
    all_forms = _list_packed_lanes(blocks[0], target)
    lanes = next((lanes for lanes in all_forms if lanes.count <= loop_extent(schedule.func, inner)), None)
    if lanes is None:
        return None
    schedule, forms = schedule.vectorize(inner), all_forms[lanes]
    if lanes not in WORD_LANES:
        schedule = schedule.annotate(inner, LANES, lanes.suffix)
    return schedule.annotate(inner, LANE_FORMS, " ".join(forms)) if forms else schedule


def _vectorize_innermost(schedule: Schedule, block: str) -> Schedule:
    """Vectorise the innermost loop around a block that has more than one iteration."""
    inner = [name for name in schedule.loops_of(block) if loop_extent(schedule.func, name) > 1]
    return schedule.vectorize(inner[-1]) if inner else schedule


def _unroll_elements(schedule: Schedule, block: ir.Block) -> Schedule:
    """Unroll several elements of the innermost loop of a block in order to save counters and branches, unless the
    code of an element is long."""
    inner = schedule.loops_of(block.name)[-1]
    run = next((n for n in RUNS if loop_extent(schedule.func, inner) % n == 0), 1)
    if run == 1 or any(_repeats_select_per_element(x, block.iters[-1].var) for x in walk_all_exprs(block.body)):
        return schedule
    return schedule.split(inner, (None, run)).unroll(f"{inner}_1")


def _repeats_select_per_element(expr: ir.Expr, element: ir.Var) -> bool:
    """Test whether an expression contains a select that the code of every unrolled element would repeat: its
    condition depends on ``element``, or it is in the index of a load."""
    match expr:
        case ir.Select(condition, _, _):
            return element in free_vars(condition)
        case ir.Load(_, indices):
            return any(isinstance(x, ir.Select) for index in indices for x in walk_expr(index))
        case _:
            return False


def _is_copy_block(block: ir.Block) -> bool:
    """Test whether a block stores loaded elements or constants unchanged."""
    return (
        block.init is None
        and not is_operator_scheduled(block)
        and isinstance(block.body, ir.Store)
        and _is_copied_value(block.body.value)
    )


def _is_copied_value(value: ir.Expr) -> bool:
    """Test whether a value is a load, a constant, or a select of these."""
    match value:
        case ir.Select(_, a, b):
            return _is_copied_value(a) and _is_copied_value(b)
        case _:
            return isinstance(value, (ir.Load, ir.Const))


def _is_integer_move_block(block: ir.Block) -> bool:
    """Test whether a block moves integers, or computes their maximum or minimum."""
    if is_operator_scheduled(block) or not isinstance(block.body, ir.Store):
        return False
    return _is_integer_move(block.body.value)


def _is_integer_move(value: ir.Expr) -> bool:
    """Test whether a value is an integer load or constant, or a select, maximum, minimum or cast of these."""
    match value:
        case ir.Select(_, a, b) | ir.Bin("max" | "min", a, b):
            return _is_integer_move(a) and _is_integer_move(b)
        case ir.Cast(_, inner):
            return _is_integer_move(inner)
        case _:
            return isinstance(value, (ir.Load, ir.Const)) and not value.dtype.startswith("float")


# ---- Functions without a product to tile: results in the lanes of vectors, or several in one iteration

SHORT = 40
"""Largest number of nodes of an expression that is unrolled. For a longer expression the counter and the branch cost
little in comparison."""


def matches_block_loops(start: Schedule, target: Target) -> bool:
    """Match functions whose loops all belong to blocks: the operator definition contains no loops of its own."""
    return not any(is_operator_scheduled(block) for block in blocks_of(start))


def vectorize_results(start: Schedule, target: Target, _: Decisions) -> Schedule | None:
    """Vectorise the innermost loop of the last block. Expressions that vectors cannot compute stay scalar. Return
    None if the block has no loop."""
    schedule = schedule_generic(start, target, {"unrolled": False})
    inner = _innermost_long_loop(schedule, blocks_of(schedule)[-1])
    return vectorize_in_lanes(schedule, inner, target) if inner else None


def vectorize_stages(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Vectorise the innermost loop of the last block, and the innermost loops of earlier elementwise blocks if no other
    block is in the loop.

    If the decision ``strips`` is True, use vectors of any length (RVV), else vectors with a fixed number of lanes."""
    if decisions["strips"] and not target.has("scalable"):
        return None
    vectorize = vectorize_in_strips if decisions["strips"] else vectorize_in_lanes
    schedule = schedule_generic(start, target, {"unrolled": False})
    *stages, last = blocks_of(schedule)
    elementwise = [
        _innermost_long_loop(schedule, block) for block in stages if not any(i.kind == "reduce" for i in block.iters)
    ]
    unshared = [
        name for name in elementwise if name and sum(name in schedule.loops_of(b.name) for b in (*stages, last)) == 1
    ]
    inner = _innermost_long_loop(schedule, last)
    for loop in (*unshared, *([inner] if inner else [])):
        schedule = vectorize(schedule, loop, target)
    return schedule if inner else None


TRANSPOSED_RUN = 64
"""Largest number of elements of a row that are computed in vectors before they are stored by columns."""
TRANSPOSED_BYTES = 1024
"""Largest size of the workspace for such elements."""


def matches_transposed_elements(start: Schedule, target: Target) -> bool:
    """Match functions that compute elements, on cores with vectors."""
    return bool(target.core.lanes) and matches_elementwise_arithmetic(start, target)


def vectorize_transposed(start: Schedule, target: Target, _: Decisions) -> Schedule | None:
    """Compute elements in vectors along the rows of the operand of a transposition, in a workspace; then store its columns.

    The results of a vector are apart in memory, so that without the workspace every element is computed by scalar code. Return
    None if the operand is not transposed, or if the workspace would be too large."""
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    if len(blocks) != 1 or len(blocks[0].iters) < 2 or not isinstance(blocks[0].body, ir.Store):
        return None
    row, column = blocks[0].iters[-2:]
    reads = [x.indices[-1] for x in walk_expr(blocks[0].body.value) if isinstance(x, ir.Load) and x.indices]
    if row.var not in reads or any(column.var in free_vars(index) for index in reads):
        return None
    results, axes = stored_buffer(blocks[0]), len(blocks[0].iters)
    run = min(TRANSPOSED_RUN, row.extent, TRANSPOSED_BYTES // (column.extent * dtypes.nbytes(results.dtype)))
    if run < target.core.lanes[-1]:
        return None
    copy = array = f"{results.name}_workspace"  # the block that copies the array has its name
    schedule = schedule.cache_write(blocks[0].name, "workspace")
    schedule = schedule.transform_layout(array, ((None,),) * axes, (*range(axes - 2), axes - 1, axes - 2))
    along = schedule.loops_of(copy)[-2]
    schedule = schedule.split(along, (None, run)).compute_at(blocks[0].name, f"{along}_0")
    along_row, across = schedule.loops_of(blocks[0].name)[-2:]
    schedule = vectorize_in_lanes(schedule.reorder(across, along_row), along_row, target)
    return unroll_small_loops(schedule, copy, list(schedule.loops_of(copy))[-1:])


def matches_elementwise_arithmetic(start: Schedule, target: Target) -> bool:
    """Match functions without reductions that compute elements, not only move them."""
    blocks = blocks_of(start)
    return not any(block.init is not None or is_operator_scheduled(block) for block in blocks) and not matches_copies(
        start, target
    )


def unroll_results(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Compute ``results`` elements in an iteration. Return None if that number does not divide the extent, or if the
    code of an element is long."""
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    if len(blocks) != 1:
        return None
    inner, run = _innermost_long_loop(schedule, blocks[0]), decisions["results"]
    size = sum(1 for x in walk_all_exprs(blocks[0].body) if not isinstance(x, (ir.Var, ir.Const)))
    if not inner or loop_extent(schedule.func, inner) % run or size > SHORT:
        return None
    return schedule.split(inner, (None, run)).unroll(f"{inner}_1")


def _innermost_long_loop(schedule: Schedule, block: ir.Block) -> str:
    """Return the name of the innermost loop around a block that has more than one iteration; empty if there is none."""
    loops = schedule.loops_of(block.name)
    return next((name for name in reversed(loops) if loop_extent(schedule.func, name) > 1), "")
