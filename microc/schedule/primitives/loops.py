"""Primitives on loops: split, fuse, reorder, annotations, compiler flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import TypeGuard

from microc.base import dtypes
from microc.errors import ScheduleError
from microc.isa import FAMILIES
from microc.schedule.primitives.compute_at import stored_buffer
from microc.schedule.primitives.tree import (
    buffer_named,
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
from microc.tir.analysis.context import buffers_read, buffers_written
from microc.tir.analysis.cover import has_parts
from microc.tir.analysis.simplification import simplify
from microc.tir.names import BLOCK_NOTES, FLAGS, FLOATS, LANES, LOOP_NOTES, PRIVATE
from microc.tir.rewrite import free_vars, map_expr, map_stmt, substitute_stmt, walk_all_exprs, walk_stmt

# ---- Primitives that reshape loops: split, tile, fuse, reorder, kinds, annotations.

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


# ---- The primitive double_reduction: a reduction computes twice its sum, because that is what its consumer wants.


def double_reduction(func: ir.PrimFunc, block: str, weight: str) -> ir.PrimFunc:
    """``block`` (decomposed, a sum of products by the constant ``weight``) starts from twice its initial value, and the
    constant is stored doubled; its readers use the sum as ``x << 1``, for the high multiply, or for its sign.

    The doubled sum must fit: readers that shift it say so. The doubled constant must fit its dtype.
    """
    summing, starting = find_block(func.body, block), find_block(func.body, f"{block}_init")
    total, constant = stored_buffer(summing), buffer_named(func, weight)
    if constant.scope != "const" or not dtypes.is_integer(constant.dtype) or constant not in buffers_read(summing):
        raise ScheduleError(f"double_reduction: {weight!r} is no integer constant that block {block!r} reads")

    def start(s: ir.Stmt) -> ir.Stmt:
        return ir.Store(s.buffer, s.indices, s.value << 1) if isinstance(s, ir.Store) else s

    body = replace_stmt(func.body, starting, replace(starting, body=map_stmt(starting.body, start)))
    readers = [s for s in walk_stmt(body) if isinstance(s, ir.Block) and s.name != block and total in buffers_read(s)]
    for reader in readers:
        found = list(walk_all_exprs(reader.body))
        uses = sum(isinstance(x, ir.Load) and x.buffer == total for x in found)
        shifted = {id(x): x.a for x in found if _is(x, "shl", 1, total)}
        if len([x for x in found if id(x) in shifted or _is(x, "shr", 31, total)]) != uses:
            raise ScheduleError(
                f"double_reduction: block {reader.name!r} uses {total.name!r} undoubled",
                hint="it may be read as x << 1 or, for its sign, x >> 31 only",
            )
        body = replace_stmt(body, reader, replace(reader, body=map_stmt(reader.body, lambda s: s, _taking(shifted))))
    return replace(func, body=body)


def _taking(shifted: Mapping[int, ir.Expr]) -> Callable[[ir.Expr], ir.Expr]:
    """Expressions with others in the place of some, which are told by their identity: of ``(x << 1) << 1`` the inner shift alone
    is meant, and what is left of the outer one looks like it."""
    return lambda x: map_expr(x, lambda e: shifted.get(id(e), e))


def _is(e: ir.Expr, op: str, distance: int, total: ir.Buffer) -> TypeGuard[ir.Bin]:
    """Whether ``e`` is the sum, shifted."""
    match e:
        case ir.Bin(kind, ir.Load(buffer), ir.Const(by)):
            return (kind, by, buffer) == (op, distance, total)
        case _:
            return False


# ---- Options of the C compiler for one kernel: a decision like any other, which steps keep and replay.
#
# Only options that change no result may be named, those that a family of cores lists: a record is somebody else's, perhaps.


def compile_with(func: ir.PrimFunc, flags: str) -> ir.PrimFunc:
    """Have gcc take ``flags`` for this function beside those of its file, as ``"unroll-loops,no-gcse"``; without ``-f``."""
    known = {each for family in FAMILIES.values() for choice in family.flags for each in choice.split(",")}
    unknown = [flag for flag in flags.split(",") if flag not in known]
    if unknown:
        raise ScheduleError(
            f"{unknown[0]!r} is no option for a kernel",
            hint="known: " + ", ".join(sorted(known)) + ", with commas between",
        )
    return replace(func, annotations=(*(note for note in func.annotations if note[0] != FLAGS), (FLAGS, flags)))
