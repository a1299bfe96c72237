# SPDX-License-Identifier: Apache-2.0
"""Primitives on loops: split, fuse, reorder, kinds of loops, annotations, doubled sums, compiler flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import TypeGuard

from microc.base import dtypes
from microc.errors import ScheduleError
from microc.isa import FAMILIES
from microc.schedule.primitives.compute_at import stored_buffer
from microc.schedule.primitives.tree import (
    extent_of,
    find_block,
    find_buffer,
    find_loop,
    fresh_name,
    has_block,
    loops_around,
    names_in,
    outermost_blocks,
    replace_stmt,
    statements_outside_blocks,
    symbolic_extent_of,
)
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written
from microc.tir.analysis.cover import has_disjoint_iterations
from microc.tir.analysis.simplification import simplify
from microc.tir.extents import is_at_most
from microc.tir.names import BLOCK_NOTES, DISTRIBUTED, FLAGS, FLOATS, LANES, LOOP_NOTES, PRIVATE, parse_lanes
from microc.tir.rewrite import free_vars, map_expr, map_stmt, substitute_stmt, walk_all_exprs, walk_stmt
from microc.tir.text.print import format_expr

# ---- Primitives that reshape loops: split, tile, fuse, reorder, kinds, annotations

VECTORS = (4, 8, 16, 32, 64)
"""Permitted numbers of lanes of a vectorised loop: from 128 bits of 32-bit elements to 512 bits of bytes."""


def check_split(loop: ir.For, extent: int, factors: tuple[int | None, ...]) -> None:
    """Raise ScheduleError unless the factors are valid and their product covers the loop's ``extent``."""
    if len(factors) < 2 or sum(f is None for f in factors) > 1 or any(f is not None and f < 1 for f in factors):
        raise ScheduleError(
            f"split: wrong factors of {loop.var.name!r}; got {factors}, expected two or more positive ones, at most "
            "one None",
            hint="write split('k', (None, 4)) for an outer loop and an inner one of 4",
        )
    if None not in factors and (
        isinstance(extent, ir.Expr) or not is_at_most(extent, prod(f for f in factors if f is not None))
    ):
        raise ScheduleError(
            f"split: the factors of {loop.var.name!r} do not cover its iterations; got {factors}, expected a product of "
            f"{format_expr(loop.extent)} at least",
            hint="let one factor be None so that it is computed",
        )


def split(func: ir.PrimFunc, loop: str, factors: tuple[int | None, ...]) -> ir.PrimFunc:
    """Split ``loop`` into nested loops ``loop_0``, ``loop_1`` and so on. If the factors do not divide the extent, or are not
    known to divide a symbolic one, the blocks inside get a guard."""
    old = find_loop(func.body, loop)
    extent = symbolic_extent_of(func, old)
    check_split(old, extent, factors)
    product = prod(f for f in factors if f is not None)
    sizes = [f if f is not None else _simplify_extent((extent + (product - 1)) // product) for f in factors]
    taken = names_in(func.body)
    variables = [ir.Var(fresh_name(taken, f"{loop}_{k}")) for k in range(len(sizes))]
    index: ir.Expr = ir.const(0, "int32")
    for var, size in zip(variables, sizes, strict=True):
        index = index * size + var
    index = simplify(index)
    body = substitute_stmt(old.body, {old.var: index})
    if _simplify_extent(prod(sizes)) != extent:
        body = _guard_statements(body, index < extent)
    for var, size in reversed(list(zip(variables, sizes, strict=True))):
        body = ir.For(var, ir.as_index(size), body, old.kind, old.annotations)
    return replace(func, body=replace_stmt(func.body, old, body))


def _simplify_extent(extent: int) -> int:
    """Return a symbolic extent simplified; a number is returned as it is."""
    return simplify(extent) if isinstance(extent, ir.Expr) else extent


def list_perfect_tiles(func: ir.PrimFunc, loop: str, count: int, max_innermost: int) -> tuple[tuple[int, ...], ...]:
    """Return all tuples of ``count`` factors whose product is the extent of ``loop``; the last is ``max_innermost`` at
    most."""
    if count < 1 or max_innermost < 1:
        raise ScheduleError(
            f"perfect_tiles: wrong number of loops or largest factor; got {count} and {max_innermost}, expected 1 at least",
            hint="write perfect_tiles('k', 2, max_innermost=64)",
        )

    def factorise(extent: int, factors: int) -> Iterator[tuple[int, ...]]:
        if factors == 1:
            yield (extent,)
            return
        for first in (n for n in range(1, extent + 1) if extent % n == 0):
            for rest in factorise(extent // first, factors - 1):
                yield (first, *rest)

    return tuple(tile for tile in factorise(extent_of(find_loop(func.body, loop)), count) if tile[-1] <= max_innermost)


def _guard_statements(body: ir.Stmt, guard: ir.Expr) -> ir.Stmt:
    """Run the statements of ``body`` only if ``guard`` holds: blocks by their predicates, others by an If around them, inside
    of the loops, which stay perfectly nested."""
    match body:
        case ir.For() | ir.Alloc():
            return replace(body, body=_guard_statements(body.body, guard))
        case ir.Seq(parts) if all(isinstance(part, (ir.For, ir.Alloc, ir.Block)) for part in parts):
            return ir.Seq(tuple(_guard_statements(part, guard) for part in parts))
        case ir.Block(predicate=predicate):
            return replace(body, predicate=guard if predicate is None else ir.Bin("and", predicate, guard))
        case _:
            return ir.If(guard, body)


def _is_outside_store(stmt: ir.Stmt) -> bool:
    """Test whether a statement outside of blocks stores: nothing declares in which order its iterations may run."""
    return isinstance(stmt, (ir.Store, ir.Evaluate))


def _is_copy_from_elsewhere(stmt: ir.Stmt) -> bool:
    """Test whether a statement stores a constant, or an element of another buffer."""
    if not isinstance(stmt, ir.Store):
        return False
    return isinstance(stmt.value, ir.Const) or (isinstance(stmt.value, ir.Load) and stmt.value.buffer != stmt.buffer)


def check_order_of_stores(loop: ir.For, primitive: str) -> None:
    """Raise ScheduleError if iterations of ``loop`` must run in order: a store outside of blocks may depend on an earlier one.

    A block declares which of its axes are spatial. Of a store outside of blocks, the iterations must write disjoint elements
    of its buffer, and read no others of it. A vectorised copy from another buffer needs no such
    proof, because its lanes store consecutive elements or it stays serial."""
    outside = [s for s in statements_outside_blocks(loop.body) if _is_outside_store(s)]
    if primitive == "vectorized":
        outside = [s for s in outside if not _is_copy_from_elsewhere(s)]
    for buffer in sorted({b for s in outside for b in buffers_written(s)}, key=lambda b: b.name):
        if not has_disjoint_iterations(loop, buffer):
            raise ScheduleError(
                f"{primitive}: iterations of loop {loop.var.name!r} share elements of {buffer.name!r}, to which a statement "
                "outside of blocks stores",
                hint='write the statement in a block, with T.block("name"), whose iterators are spatial or reduce',
            )


def _find_perfect_nest(func: ir.PrimFunc, loop_names: tuple[str, ...]) -> list[ir.For]:
    """Return the loops from the outermost to the innermost of ``loop_names``. Raise ScheduleError unless they are
    perfectly nested."""
    if len(set(loop_names)) != len(loop_names) or not loop_names:
        raise ScheduleError(
            f"loops must be named once each; got {', '.join(loop_names) or 'none'}",
            hint="name each loop once, outermost first",
        )
    by_name = {name: find_loop(func.body, name) for name in loop_names}
    depth = {name: len(loops_around(func.body, loop)) for name, loop in by_name.items()}
    outer = by_name[min(loop_names, key=lambda n: depth[n])]
    chain, missing = [outer], set(loop_names) - {outer.var.name}
    while missing:
        inner = chain[-1].body
        if not isinstance(inner, ir.For):
            raise ScheduleError(
                f"loops {', '.join(loop_names)} are not perfectly nested: {chain[-1].var.name!r} contains more than one "
                "statement",
                hint="move the other statements first, or decompose the reduction after reordering",
            )
        chain.append(inner)
        missing.discard(inner.var.name)
    return chain


def check_fuse(nested_loops: list[ir.For], loop_names: tuple[str, ...]) -> None:
    """Raise ScheduleError unless ``nested_loops`` have exactly these names, nested in this order."""
    if [loop.var.name for loop in nested_loops] != list(loop_names):
        raise ScheduleError(
            f"fuse: the loops are in another order; got {', '.join(loop_names)}, expected "
            f"{', '.join(loop.var.name for loop in nested_loops)}",
            hint="reorder them next to each other, outermost first",
        )


def check_not_mixed_with_reduction(nested_loops: list[ir.For]) -> None:
    """Raise ScheduleError if the loops contain both spatial and reduction loops of a block that is not decomposed.

    If such loops were fused, a later reorder could accumulate before the initialisation."""
    fused = {loop.var for loop in nested_loops}
    for s in walk_stmt(nested_loops[-1].body):
        if isinstance(s, ir.Block) and s.init is not None:
            kinds = {i.kind for i in s.iters if free_vars(i.binding) & fused}
            if len(kinds) > 1:
                names = ", ".join(loop.var.name for loop in nested_loops)
                raise ScheduleError(
                    f"fuse: block {s.name!r} reduces along some of the loops {names}, but not along all",
                    hint="fuse spatial loops with spatial ones, or decompose_reduction first",
                )


def fuse(func: ir.PrimFunc, loops: tuple[str, ...]) -> ir.PrimFunc:
    """Fuse perfectly nested loops into one loop, whose name joins theirs."""
    chain = _find_perfect_nest(func, loops)
    check_fuse(chain, loops)
    check_not_mixed_with_reduction(chain)
    extents = [symbolic_extent_of(func, loop) for loop in chain]
    var = ir.Var(fresh_name(names_in(func.body), "_".join(loops)))
    values: dict[ir.Var, ir.Expr] = {}
    rest: ir.Expr = var
    for loop, extent in reversed(list(zip(chain, extents, strict=True))[1:]):
        values[loop.var] = rest % extent
        rest = rest // extent
    values[chain[0].var] = rest
    body = substitute_stmt(chain[-1].body, values)
    fused = ir.For(var, ir.as_index(_simplify_extent(prod(extents))), body, chain[0].kind, chain[0].annotations)
    return replace(func, body=replace_stmt(func.body, chain[0], fused))


def reorder(func: ir.PrimFunc, loops: tuple[str, ...]) -> ir.PrimFunc:
    """Nest the named loops in the given order. Other loops between them keep their positions."""
    chain = _find_perfect_nest(func, loops)
    levels = [k for k, loop in enumerate(chain) if loop.var.name in loops]
    by_name = {loop.var.name: loop for loop in chain}
    order = list(chain)
    for level, name in zip(levels, loops, strict=True):
        order[level] = by_name[name]
        if by_name[name] is not chain[level]:
            check_order_of_stores(by_name[name], "reorder")
    body = chain[-1].body
    for loop in reversed(order):
        body = replace(loop, body=body)
    return replace(func, body=replace_stmt(func.body, chain[0], body))


def _reduces_along(func: ir.PrimFunc, loop: ir.For) -> bool:
    """Test whether some block inside ``loop`` reduces along it."""
    return any(
        i.kind == "reduce" and loop.var in free_vars(i.binding)
        for s in walk_stmt(loop.body)
        if isinstance(s, ir.Block)
        for i in s.iters
    )


def set_kind(func: ir.PrimFunc, loop: str, kind: str) -> ir.PrimFunc:
    """Mark a loop as ``unrolled``, ``vectorized`` or ``parallel``, or bind it to work groups or work items of an
    OpenCL device. Reduction loops can only be unrolled."""
    old = find_loop(func.body, loop)
    if kind not in ir.FOR_KINDS:
        raise ScheduleError(
            f"loop {loop!r}: unknown kind; got {kind!r}", hint="choose one of " + ", ".join(ir.FOR_KINDS)
        )
    if kind not in ("serial", "unrolled") and _reduces_along(func, old):
        raise ScheduleError(
            f"loop {loop!r} reduces and cannot be {f'bound to {kind}' if '.' in kind else kind}",
            hint="reorder a spatial loop there, or tensorize the reduction",
        )
    if kind not in ("serial", "unrolled"):
        check_order_of_stores(old, kind)
    if kind not in ("serial", "vectorized", "parallel"):
        extent_of(old)
    return replace(func, body=replace_stmt(func.body, old, replace(old, kind=kind)))


def keep_private_slices(func: ir.PrimFunc, primitive_name: str) -> ir.PrimFunc:
    """Annotate parallel loops as :data:`~microc.tir.names.PRIVATE` if their workspaces consist of one slice an iteration.

    Without the annotation a workspace shrinks to the slice of one iteration. With it the slices of all iterations are kept;
    they take no more memory than the workspace as it is declared. A loop that cores share keeps one slice for each core
    instead, because a core runs its iterations in order. Raises ScheduleError if iterations would share a workspace
    all the same. ``primitive_name``: name of the primitive that produced ``func``, for messages."""
    for loop in [s for s in walk_stmt(func.body) if isinstance(s, ir.For) and s.kind == "parallel"]:
        loop = find_loop(func.body, loop.var.name)  # an annotated loop around it has replaced it
        inside = [
            b for b in buffers_written(loop.body) if b.scope == "workspace" and is_used_only_in_loop(func, loop, b)
        ]
        shared_workspaces = inside and {PRIVATE, DISTRIBUTED}.isdisjoint(dict(loop.annotations))
        if shared_workspaces and all(has_disjoint_iterations(loop, b) for b in inside):
            notes = tuple(sorted({**dict(loop.annotations), PRIVATE: 1}.items()))
            func = replace(func, body=replace_stmt(func.body, loop, replace(loop, annotations=notes)))
    _check_parallel(func, primitive_name)
    return func


def _check_parallel(func: ir.PrimFunc, primitive_name: str) -> None:
    """Raise ScheduleError if iterations of a parallel loop would share a workspace or a tensor unit.

    All threads and cores share the workspaces. A shared workspace is safe in two cases: each iteration writes a disjoint
    part of a buffer that is read after the loop, or the loop has the annotation :data:`~microc.tir.names.PRIVATE` or
    :data:`~microc.tir.names.DISTRIBUTED`, which give each thread or core its own workspaces. ``primitive_name``: name of
    the primitive that produced ``func``, for messages."""
    for loop in walk_stmt(func.body):
        if isinstance(loop, ir.For) and loop.kind == "parallel":
            accessed = buffers_written(loop.body) | buffers_read(loop.body)
            in_unit = sorted(b.name for b in accessed if b.scope in ir.UNIT_SCOPES)
            nested = [s.var.name for s in walk_stmt(loop.body) if isinstance(s, ir.For) and s.kind == "parallel"]
            if nested and DISTRIBUTED in dict(loop.annotations):
                raise ScheduleError(
                    f"{primitive_name}: parallel loop {nested[0]!r} is inside of loop {loop.var.name!r}, which cores share",
                    hint="distribute one of them: a core that was forked does not fork",
                )
            if in_unit:
                raise ScheduleError(
                    f"{primitive_name}: the iterations of parallel loop {loop.var.name!r} would share {in_unit[0]!r} in a "
                    "tensor unit's memory",
                    hint="leave the loops around its blocks serial: a tensor unit takes instructions from one thread",
                )
            written = (b for b in buffers_written(loop.body) if b.scope == "workspace")
            shared = sorted(b.name for b in written if not _is_private_to_iteration(func, loop, b))
            if shared:
                raise ScheduleError(
                    f"{primitive_name}: the iterations of parallel loop {loop.var.name!r} would share the workspace "
                    f"{shared[0]!r}",
                    hint=f"set_scope({shared[0]!r}, 'local') or 'register' before, once its readers are in the loop as well; "
                    "or parallel(loop, private=True), with a copy for each iteration",
                )


def _is_private_to_iteration(func: ir.PrimFunc, loop: ir.For, buffer: ir.Buffer) -> bool:
    """Test whether no two iterations of ``loop`` that run in parallel access the same elements of ``buffer``.

    A buffer that is used only in the loop is private to a thread if the loop is annotated so. A buffer that is read
    after the loop must be written in disjoint parts."""
    if is_used_only_in_loop(func, loop, buffer):
        return not {PRIVATE, DISTRIBUTED}.isdisjoint(dict(loop.annotations))
    return has_disjoint_iterations(loop, buffer)


def is_used_only_in_loop(func: ir.PrimFunc, loop: ir.For, buffer: ir.Buffer) -> bool:
    """Test whether no block outside of ``loop`` accesses ``buffer``."""
    inside = {id(s) for s in walk_stmt(loop.body)}
    outside = (s for s in walk_stmt(func.body) if isinstance(s, ir.Block) and id(s) not in inside)
    return not any(buffer in buffers_read(block) or buffer in buffers_written(block) for block in outside)


def annotate_loop(func: ir.PrimFunc, loop: str, key: str, value: int | str) -> ir.PrimFunc:
    """Attach an annotation to a loop. It is part of the function's text form, and appears in comments of the
    generated C."""
    _check_annotation_key(key, LOOP_NOTES)
    if key == LANES and value not in VECTORS and not ((lanes := parse_lanes(str(value))) and lanes.is_narrow):
        raise ScheduleError(
            f"annotate: wrong number of lanes for loop {loop!r}; got {value!r}, expected one of {', '.join(map(str, VECTORS))}",
            hint="or name lanes narrower than int32 for which the core has intrinsics, such as 'i16x4'",
        )
    if key == DISTRIBUTED and value != 2:
        raise ScheduleError(f"annotate: wrong number of cores for loop {loop!r}; got {value!r}, expected 2")
    if key == FLOATS and not isinstance(value, int):
        raise ScheduleError(
            f"annotate: wrong value of {FLOATS!r} for loop {loop!r}; got {value!r}, expected an integer"
        )
    old = find_loop(func.body, loop)
    notes = tuple(sorted({**dict(old.annotations), key: value}.items()))
    return replace(func, body=replace_stmt(func.body, old, replace(old, annotations=notes)))


def rename_block(func: ir.PrimFunc, block: str, name: str) -> ir.PrimFunc:
    """Rename a block, for example to the name that rules look for (:mod:`microc.tir.names`)."""
    old = find_block(func.body, block)
    if has_block(func.body, name):
        raise ScheduleError(
            f"rename_block: the name is taken; got {name!r}",
            hint="choose another than " + ", ".join(sorted(b.name for b in outermost_blocks(func.body))),
        )
    return replace(func, body=replace_stmt(func.body, old, replace(old, name=name)))


def annotate_block(func: ir.PrimFunc, block: str, key: str, value: int | str) -> ir.PrimFunc:
    """Attach an annotation to a block. It is part of the function's text form."""
    _check_annotation_key(key, BLOCK_NOTES)
    old = find_block(func.body, block, nested=True)
    notes = tuple(sorted({**dict(old.annotations), key: value}.items()))
    return replace(func, body=replace_stmt(func.body, old, replace(old, annotations=notes)))


def _check_annotation_key(key: str, known_keys: frozenset[str]) -> None:
    """Raise ScheduleError for an annotation key that is not in ``known_keys``, because nothing would read it."""
    if key not in known_keys:
        raise ScheduleError(
            f"annotate: unknown annotation; got {key!r}", hint="choose one of " + ", ".join(sorted(known_keys))
        )


# ---- The primitive double_reduction: a reduction computes twice its sum, because its consumer multiplies twice the sum


def double_reduction(func: ir.PrimFunc, block: str, weight: str) -> ir.PrimFunc:
    """Double the sums of ``block``, a decomposed sum of products by the constant ``weight``.

    The block starts from twice its initial value, and the constant is stored doubled; the doubled constant must fit
    its dtype. The readers of the sum x may use it in two forms only: ``x << 1``, for a doubling high multiply,
    becomes the doubled sum; ``x >> 31``, for the sign, stays, because the sign is the same. The doubled sum fits,
    since the readers compute ``x << 1`` anyway."""
    summing, starting = find_block(func.body, block), find_block(func.body, f"{block}_init")
    total, constant = stored_buffer(summing), find_buffer(func, weight)
    if constant.scope != "const" or not dtypes.is_integer(constant.dtype) or constant not in buffers_read(summing):
        raise ScheduleError(
            f"double_reduction: {weight!r} must be an integer constant that block {block!r} reads; got "
            f"{constant.dtype} in {constant.scope}"
        )

    def double_initial_value(stmt: ir.Stmt) -> ir.Stmt:
        return ir.Store(stmt.buffer, stmt.indices, stmt.value << 1) if isinstance(stmt, ir.Store) else stmt

    body = replace_stmt(func.body, starting, replace(starting, body=map_stmt(starting.body, double_initial_value)))
    readers = [s for s in walk_stmt(body) if isinstance(s, ir.Block) and s.name != block and total in buffers_read(s)]
    for reader in readers:
        exprs = list(walk_all_exprs(reader.body))
        uses = sum(isinstance(x, ir.Load) and x.buffer == total for x in exprs)
        shifted = {id(x): x.a for x in exprs if _is_shifted_sum(x, "shl", 1, total)}
        if len([x for x in exprs if id(x) in shifted or _is_shifted_sum(x, "shr", 31, total)]) != uses:
            raise ScheduleError(
                f"double_reduction: block {reader.name!r} reads the sum {total.name!r} in a form that cannot be doubled",
                hint="let it read x << 1 or, for the sign, x >> 31 only",
            )
        body = replace_stmt(
            body, reader, replace(reader, body=map_stmt(reader.body, lambda s: s, _build_replacement_by_id(shifted)))
        )
    return replace(func, body=body)


def _build_replacement_by_id(replacements: Mapping[int, ir.Expr]) -> Callable[[ir.Expr], ir.Expr]:
    """Build a rewrite that replaces expressions, compared by identity.

    ``replacements``: new expressions by the ``id`` of the old ones. Comparison by value would be wrong: in ``(x <<
    1) << 1`` only the inner shift is replaced, but the result looks like the inner shift again."""
    return lambda x: map_expr(x, lambda e: replacements.get(id(e), e))


def _is_shifted_sum(expr: ir.Expr, shift_operator: str, distance: int, sum_buffer: ir.Buffer) -> TypeGuard[ir.Bin]:
    """Test whether ``expr`` is a load of the sum in ``sum_buffer``, shifted by ``distance`` bits.

    ``shift_operator``: "shl" or "shr"."""
    match expr:
        case ir.Bin(operator, ir.Load(buffer), ir.Const(by)):
            return (operator, by, buffer) == (shift_operator, distance, sum_buffer)
        case _:
            return False


# ---- Options of the C compiler for one kernel, as a step of a trace
#
# Only options that a family of cores lists are accepted, because traces may come from untrusted files. These options change no
# result.


def compile_with(func: ir.PrimFunc, flags: str) -> ir.PrimFunc:
    """Compile the C function of this kernel with additional options of gcc.

    ``flags``: options that are separated by commas and written without ``-f``, such as ``"unroll-loops,no-gcse"``."""
    known = {flag for family in FAMILIES.values() for choice in family.flags for flag in choice.split(",")}
    unknown = [flag for flag in flags.split(",") if flag not in known]
    if unknown:
        raise ScheduleError(
            f"compile_with: unknown compiler option for a kernel; got {unknown[0]!r}",
            hint="choose from these, separated by commas: " + ", ".join(sorted(known)),
        )
    return replace(func, annotations=(*(note for note in func.annotations if note[0] != FLAGS), (FLAGS, flags)))
