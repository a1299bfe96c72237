"""Primitives that reshape loops: split, tile, fuse, reorder, kinds, annotations."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from microc.errors import ScheduleError
from microc.schedule.tree import (
    extent_of,
    find_block,
    find_loop,
    fresh,
    has_block,
    loops_around,
    names_in,
    replace_stmt,
    units,
)
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.facts import buffers_read, buffers_written
from microc.tir.names import BLOCK_NOTES, FLOATS, LANES, LOOP_NOTES, PRIVATE
from microc.tir.parallel import has_parts
from microc.tir.rewrite import free_vars, substitute_stmt, walk_stmt

VECTORS = (4, 8, 16, 32, 64)
"""Lanes that vectors may have: from 128 bits of 32-bit numbers to 512 bits of bytes."""


def check_split(loop: ir.For, factors: tuple[int | None, ...]) -> None:
    if len(factors) < 2 or sum(f is None for f in factors) > 1 or any(f is not None and f < 1 for f in factors):
        raise ScheduleError(
            f"split {loop.var.name!r} by {factors}: give two or more positive factors, at most one None",
            hint="split('k', (None, 4)) makes an outer loop and an inner one of 4",
        )
    extent = extent_of(loop)
    if None not in factors and prod(f for f in factors if f is not None) < extent:
        raise ScheduleError(
            f"split {loop.var.name!r} of {extent} by {factors} leaves iterations out",
            hint="let one factor be None so that it is computed",
        )


def split(func: ir.PrimFunc, loop: str, factors: tuple[int | None, ...]) -> ir.PrimFunc:
    """``loop`` becomes nested loops ``loop_0, loop_1 ...``; a tail that does not divide guards the blocks inside."""
    old = find_loop(func.body, loop)
    check_split(old, factors)
    extent = extent_of(old)
    known = prod(f for f in factors if f is not None)
    sizes = [f if f is not None else -(-extent // known) for f in factors]
    taken = names_in(func.body)
    variables = [ir.Var(fresh(taken, f"{loop}_{k}")) for k in range(len(sizes))]
    index: ir.Expr = ir.const(0, "int32")
    for var, size in zip(variables, sizes, strict=True):
        index = index * size + var
    index = simplify(index)
    body = substitute_stmt(old.body, {old.var: index})
    if prod(sizes) != extent:
        guard = index < extent
        for unit in units(body):
            guarded = guard if unit.predicate is None else ir.Bin("and", unit.predicate, guard)
            body = replace_stmt(body, unit, replace(unit, predicate=guarded))
    for var, size in reversed(list(zip(variables, sizes, strict=True))):
        body = ir.For(var, ir.const(size, "int32"), body, old.kind, old.annotations)
    return replace(func, body=replace_stmt(func.body, old, body))


def _chain(func: ir.PrimFunc, names: tuple[str, ...]) -> list[ir.For]:
    """Loops from the outermost to the innermost of ``names``; each must hold nothing but the next."""
    if len(set(names)) != len(names) or not names:
        raise ScheduleError(f"{names}: name each loop once")
    wanted = {name: find_loop(func.body, name) for name in names}
    depth = {name: len(loops_around(func.body, loop)) for name, loop in wanted.items()}
    outer = wanted[min(names, key=lambda n: depth[n])]
    chain, left = [outer], set(names) - {outer.var.name}
    while left:
        inner = chain[-1].body
        if not isinstance(inner, ir.For):
            raise ScheduleError(
                f"loops {', '.join(names)} are not perfectly nested: {chain[-1].var.name!r} holds more than one statement",
                hint="move the other statements first, or decompose the reduction after reordering",
            )
        chain.append(inner)
        left.discard(inner.var.name)
    return chain


def check_fuse(chain: list[ir.For], names: tuple[str, ...]) -> None:
    if [loop.var.name for loop in chain] != list(names):
        raise ScheduleError(
            f"fuse({', '.join(names)}): the loops are nested as {', '.join(loop.var.name for loop in chain)}",
            hint="reorder them next to each other, outermost first",
        )


def check_one_kind(chain: list[ir.For]) -> None:
    """Until its initialisation is a block of its own, a reduction must be walked in order for each result: fusing its loops
    with spatial ones would let a later reorder accumulate before the initialisation."""
    fused = {loop.var for loop in chain}
    for s in walk_stmt(chain[-1].body):
        if isinstance(s, ir.Block) and s.init is not None:
            kinds = {i.kind for i in s.iters if free_vars(i.binding) & fused}
            if len(kinds) > 1:
                names = ", ".join(loop.var.name for loop in chain)
                raise ScheduleError(
                    f"fuse({names}): block {s.name!r} reduces along some of them",
                    hint="fuse spatial loops with spatial ones, or decompose_reduction first",
                )


def fuse(func: ir.PrimFunc, loops: tuple[str, ...]) -> ir.PrimFunc:
    """Directly nested loops become one, named after all."""
    chain = _chain(func, loops)
    check_fuse(chain, loops)
    check_one_kind(chain)
    extents = [extent_of(loop) for loop in chain]
    var = ir.Var(fresh(names_in(func.body), "_".join(loops)))
    values: dict[ir.Var, ir.Expr] = {}
    rest: ir.Expr = var
    for loop, extent in reversed(list(zip(chain, extents, strict=True))[1:]):
        values[loop.var] = rest % extent
        rest = rest // extent
    values[chain[0].var] = rest
    body = substitute_stmt(chain[-1].body, values)
    fused = ir.For(var, ir.const(prod(extents), "int32"), body, chain[0].kind, chain[0].annotations)
    return replace(func, body=replace_stmt(func.body, chain[0], fused))


def reorder(func: ir.PrimFunc, loops: tuple[str, ...]) -> ir.PrimFunc:
    """The named loops take each other's places so that they nest in the given order; others between them stay."""
    chain = _chain(func, loops)
    places = [k for k, loop in enumerate(chain) if loop.var.name in loops]
    by_name = {loop.var.name: loop for loop in chain}
    order = list(chain)
    for place, name in zip(places, loops, strict=True):
        order[place] = by_name[name]
    body = chain[-1].body
    for loop in reversed(order):
        body = replace(loop, body=body)
    return replace(func, body=replace_stmt(func.body, chain[0], body))


def _reduces(func: ir.PrimFunc, loop: ir.For) -> bool:
    """Whether some block under ``loop`` reduces along it."""
    return any(
        i.kind == "reduce" and loop.var in free_vars(i.binding)
        for s in walk_stmt(loop.body)
        if isinstance(s, ir.Block)
        for i in s.iters
    )


def set_kind(func: ir.PrimFunc, loop: str, kind: str) -> ir.PrimFunc:
    """Mark a loop ``unrolled``, ``vectorized``, ``parallel`` or bound to groups or items; only the first may reduce."""
    old = find_loop(func.body, loop)
    if kind not in ir.FOR_KINDS:
        raise ScheduleError(f"a loop cannot be {kind!r}", hint="kinds: " + ", ".join(ir.FOR_KINDS))
    if kind not in ("serial", "unrolled") and _reduces(func, old):
        raise ScheduleError(
            f"loop {loop!r} reduces and cannot be {f'bound to {kind}' if '.' in kind else kind}",
            hint="reorder a spatial loop there, or tensorize the reduction",
        )
    if kind not in ("serial", "vectorized", "parallel"):
        extent_of(old)
    return replace(func, body=replace_stmt(func.body, old, replace(old, kind=kind)))


def check_parallel(func: ir.PrimFunc, step: str) -> None:
    """ScheduleError if ``step`` left a parallel loop that writes a workspace: there is one of it for all threads, as large as
    one turn needs; or one that works on a tensor unit. One that is read behind the loop is whole, and turns may have parts of
    it to themselves; the loop may be one whose turns have workspaces of their own (:data:`~microc.tir.names.PRIVATE`)."""
    for loop in walk_stmt(func.body):
        if isinstance(loop, ir.For) and loop.kind == "parallel":
            touched = buffers_written(loop.body) | buffers_read(loop.body)
            held = sorted(b.name for b in touched if b.scope in ir.UNIT_SCOPES)
            if held:
                raise ScheduleError(
                    f"{step}: the turns of parallel loop {loop.var.name!r} would share {held[0]!r} in a tensor unit's memory",
                    hint="a unit takes instructions from one thread: leave loops around them serial",
                )
            written = (b for b in buffers_written(loop.body) if b.scope == "workspace")
            shared = sorted(b.name for b in written if not _parts_by_turn(func, loop, b))
            if shared:
                raise ScheduleError(
                    f"{step}: the turns of parallel loop {loop.var.name!r} would share the workspace {shared[0]!r}",
                    hint=f"set_scope({shared[0]!r}, 'local') or 'register' before, once its readers are in the loop as well",
                )


def _parts_by_turn(func: ir.PrimFunc, loop: ir.For, buffer: ir.Buffer) -> bool:
    """Whether each turn touches a part of ``buffer`` of its own: one behind the loop reads it, so that it is whole, or the turns
    have it to themselves."""
    if is_inside(func, loop, buffer):
        return PRIVATE in dict(loop.annotations)
    return has_parts(loop, buffer)


def is_inside(func: ir.PrimFunc, loop: ir.For, buffer: ir.Buffer) -> bool:
    """Whether no block outside of ``loop`` touches ``buffer``."""
    inside = {id(s) for s in walk_stmt(loop.body)}
    outside = (s for s in walk_stmt(func.body) if isinstance(s, ir.Block) and id(s) not in inside)
    return not any(buffer in buffers_read(block) or buffer in buffers_written(block) for block in outside)


def annotate_loop(func: ir.PrimFunc, loop: str, key: str, value: int | str) -> ir.PrimFunc:
    """Attach a note to a loop (kept in the text form, shown in comments)."""
    _check_note(key, LOOP_NOTES)
    if key == LANES and value not in VECTORS:
        raise ScheduleError(
            f"annotate: lanes of {loop!r}; got {value!r}, expected one of {', '.join(map(str, VECTORS))}"
        )
    if key == FLOATS and not isinstance(value, int):
        raise ScheduleError(f"annotate: floats of {loop!r}; got {value!r}, expected a number")
    old = find_loop(func.body, loop)
    notes = tuple(sorted({**dict(old.annotations), key: value}.items()))
    return replace(func, body=replace_stmt(func.body, old, replace(old, annotations=notes)))


def rename_block(func: ir.PrimFunc, block: str, name: str) -> ir.PrimFunc:
    """``block`` under another name, that of the part that it has in a family of functions, say (:mod:`microc.tir.names`)."""
    old = find_block(func.body, block)
    if has_block(func.body, name):
        raise ScheduleError(f"rename_block: there is a block {name!r} already")
    return replace(func, body=replace_stmt(func.body, old, replace(old, name=name)))


def annotate_block(func: ir.PrimFunc, block: str, key: str, value: int | str) -> ir.PrimFunc:
    """Attach a note to a block."""
    _check_note(key, BLOCK_NOTES)
    old = find_block(func.body, block, inside=True)
    notes = tuple(sorted({**dict(old.annotations), key: value}.items()))
    return replace(func, body=replace_stmt(func.body, old, replace(old, annotations=notes)))


def _check_note(key: str, known: frozenset[str]) -> None:
    if key not in known:
        raise ScheduleError(f"nothing reads a note {key!r}", hint="known: " + ", ".join(sorted(known)))
