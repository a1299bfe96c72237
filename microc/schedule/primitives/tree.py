# SPDX-License-Identifier: Apache-2.0
"""Steps of a schedule, and access to the loops, blocks and buffers of a function by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from microc.base.immutable import frozen
from microc.errors import ScheduleError
from microc.schedule.identities import OLD_STEPS
from microc.tir import ir
from microc.tir.analysis.context import block_names_in, buffers_read, buffers_written, is_index
from microc.tir.analysis.simplification import simplify
from microc.tir.rewrite import (
    BottomUpRewriter,
    ExprMap,
    declared_names,
    is_endless,
    map_stmt,
    stmt_children,
    substitute_stmt,
    walk_expr,
    walk_stmt,
)
from microc.tir.text.print import format_expr

# ---- A step of a schedule: a name and arguments, as they are printed and replayed.


@frozen
class Step:
    """One step of a schedule: the name of a primitive, and its arguments (strings, ints, None, and tuples of these)."""

    primitive: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.primitive}({', '.join(map(_format_argument, self.args))})"


def _format_argument(argument: object) -> str:
    """Format an argument of a step as text, tuples in parentheses."""
    return f"({', '.join(map(_format_argument, argument))})" if isinstance(argument, tuple) else str(argument)


def freeze_argument(argument: Any) -> Any:
    """Convert an argument of a step from JSON: lists become tuples, at all levels."""
    return tuple(freeze_argument(v) for v in argument) if isinstance(argument, (list, tuple)) else argument


def parse_step(row: Sequence[Any]) -> Step:
    """Convert a step from a JSON list of its name and its arguments. A step of an older schedule becomes the one that replaced
    it."""
    name, args = row[0], tuple(map(freeze_argument, row[1:]))
    return Step("apply_identities", (OLD_STEPS[name],)) if name in OLD_STEPS else Step(name, args)


# ---- Finding and replacing parts of a scheduled function by loop and block names


def loop_names(body: ir.Stmt) -> list[str]:
    """Return the names of all loops in a statement, in order."""
    return [s.var.name for s in walk_stmt(body) if isinstance(s, ir.For)]


def find_loop(body: ir.Stmt, name: str) -> ir.For:
    """Return the loop whose variable is called ``name``. Raise ScheduleError if there is no such loop, and for a ``while``
    loop, whose iterations run in order and have no number."""
    for s in walk_stmt(body):
        if isinstance(s, ir.For) and s.var.name == name:
            if is_endless(s):
                raise ScheduleError(
                    f"loop {name!r} is a while loop, whose iterations cannot be counted, divided or reordered",
                    hint="schedule a loop around it or inside of it",
                )
            return s
    raise ScheduleError(f"there is no loop {name!r}", hint="choose one of " + ", ".join(loop_names(body)))


def statements_outside_blocks(body: ir.Stmt) -> Iterator[ir.Stmt]:
    """Iterate over ``body`` and the statements in it, without the bodies of blocks.

    Primitives may move a block to one of these loops, and may move one of these (outermost) blocks."""
    stack = [body]
    while stack:
        stmt = stack.pop()
        yield stmt
        if not isinstance(stmt, ir.Block):
            stack.extend(stmt_children(stmt)[::-1])


def outermost_blocks(body: ir.Stmt) -> list[ir.Block]:
    """Return the blocks that are not inside another block, in order."""
    return [s for s in statements_outside_blocks(body) if isinstance(s, ir.Block)]


def find_outer_loop(body: ir.Stmt, name: str) -> ir.For:
    """Return the loop called ``name``. Raise ScheduleError if it is inside a block."""
    loop = find_loop(body, name)
    if all(s is not loop for s in statements_outside_blocks(body)):
        raise ScheduleError(f"loop {name!r} is inside a block, which is one unit", hint="name a loop around the block")
    return loop


def find_block(body: ir.Stmt, name: str, *, nested: bool = False) -> ir.Block:
    """Return the block called ``name``. Raise ScheduleError if there is no such block, or if a ``while`` loop runs it.

    ``nested``: also accept a block inside another block (:func:`microc.schedule.primitives.reductions.blockize`)."""
    for s in walk_stmt(body) if nested else statements_outside_blocks(body):
        if isinstance(s, ir.Block) and s.name == name:
            if any(map(is_endless, loops_around(body, s))):
                raise ScheduleError(
                    f"block {name!r} is in a while loop, which may run it any number of times",
                    hint="schedule the loops inside of the while loop, or write the while loop inside of a block",
                )
            return s
    outermost = outermost_blocks(body)
    for unit in outermost:
        if has_block(unit, name):
            raise ScheduleError(
                f"block {name!r} is inside block {unit.name!r}, which is one unit", hint=f"name {unit.name!r}"
            )
    blocks = [s for s in walk_stmt(body) if isinstance(s, ir.Block)] if nested else outermost
    raise ScheduleError(f"there is no block {name!r}", hint="choose one of " + ", ".join(b.name for b in blocks))


def check_moves_back(func: ir.PrimFunc, block: ir.Block, last: ir.Stmt, primitive: str) -> None:
    """Raise ScheduleError if a statement behind ``block``, up to the end of the statement ``last``, writes what it reads.

    Moved there, or inlined there, the block would read other values. If it leaves a loop, that holds for all of the loop."""
    leaves = leaves_outside_blocks(func.body)
    first, end = (_position_of_last_leaf(leaves, stmt) for stmt in (block, last))
    for leaf in (*_other_leaves_of_left_loop(func, block, last), *leaves[first + 1 : end + 1]):
        if changed := buffers_written(leaf) & buffers_read(block):
            _refuse_move(
                primitive, f"block {block.name!r} reads", min(b.name for b in changed), leaf, "writes afterwards"
            )


def check_moves_forward(func: ir.PrimFunc, block: ir.Block, target: ir.Stmt, primitive: str) -> None:
    """Raise ScheduleError if a statement between ``target`` and ``block`` depends on the order of the two, or if one outside of
    blocks in ``target`` writes what ``block`` reads, perhaps again in a later iteration.

    Moved to the end of ``target``, the block would read other values, or store before its result is due."""
    leaves, result, read = leaves_outside_blocks(func.body), buffers_written(block), buffers_read(block)
    first, end = (_position_of_last_leaf(leaves, stmt) for stmt in (target, block))
    for leaf in (*leaves[first + 1 : end], *_other_leaves_of_left_loop(func, block, target)):
        if changed := buffers_written(leaf) & read:
            _refuse_move(primitive, f"block {block.name!r} reads", min(b.name for b in changed), leaf, "writes before")
        if used := (buffers_read(leaf) | buffers_written(leaf)) & result:
            _refuse_move(primitive, f"block {block.name!r} writes", min(b.name for b in used), leaf, "uses before")
    for leaf in leaves_outside_blocks(target):
        if not isinstance(leaf, ir.Block) and (changed := buffers_written(leaf) & read):
            name = min(b.name for b in changed)
            _refuse_move(primitive, f"block {block.name!r} reads", name, leaf, "writes in several iterations")


def _other_leaves_of_left_loop(func: ir.PrimFunc, block: ir.Block, target: ir.Stmt) -> list[ir.Stmt]:
    """Return the other blocks and statements in the outermost loop that is around ``block``, but not around ``target``."""
    staying = {id(target), *map(id, loops_around(func.body, target))}
    left = [loop for loop in loops_around(func.body, block) if id(loop) not in staying]
    return [leaf for leaf in leaves_outside_blocks(left[0]) if leaf is not block] if left else []


def leaves_outside_blocks(body: ir.Stmt) -> list[ir.Stmt]:
    """Return the outermost blocks, and the stores and calls outside of blocks, in order."""
    return [s for s in statements_outside_blocks(body) if isinstance(s, (ir.Block, ir.Store, ir.Evaluate))]


def _position_of_last_leaf(leaves: Sequence[ir.Stmt], stmt: ir.Stmt) -> int:
    """Return the position in ``leaves`` of the last one in a statement, compared by identity."""
    within = {id(s) for s in statements_outside_blocks(stmt)}
    return max(k for k, leaf in enumerate(leaves) if id(leaf) in within)


def _refuse_move(primitive: str, use: str, buffer: str, leaf: ir.Stmt, change: str) -> NoReturn:
    """Raise ScheduleError: the statement ``leaf`` must not be on the other side of a moved block."""
    raise ScheduleError(
        f"{primitive}: {use} {buffer!r}, which {describe_leaf(leaf)} {change}",
        hint=f"store to another buffer than {buffer!r}, or leave the block where it is",
    )


def describe_leaf(leaf: ir.Stmt) -> str:
    """Return the description of an item of :func:`leaves_outside_blocks` for an error."""
    return f"block {leaf.name!r}" if isinstance(leaf, ir.Block) else "a statement outside of blocks"


def find_early_reads(func: ir.PrimFunc) -> set[tuple[str, str]]:
    """Return the pairs (reader, writer) of outermost blocks in which the reader of a buffer is in front of the writer, and no
    other block wrote it before.

    A reduction with an initialisation of its own does not read what was there before."""
    written, early = set[ir.Buffer](), set[tuple[str, str]]()
    readers: dict[ir.Buffer, list[str]] = {}
    for block in outermost_blocks(func.body):
        early |= {(reader, block.name) for buffer in buffers_written(block) for reader in readers.get(buffer, ())}
        initialised = frozenset() if block.init is None else buffers_written(block.init)
        for buffer in buffers_read(block) - written - initialised:
            readers.setdefault(buffer, []).append(block.name)
        written |= buffers_written(block)
    return early


def has_block(body: ir.Stmt, name: str) -> bool:
    """Test whether a statement contains a block of this name, at any depth."""
    return name in block_names_in(body)


def loops_around(body: ir.Stmt, target: ir.Stmt) -> tuple[ir.For, ...]:
    """Return the loops around the statement ``target`` (compared by identity), outermost first. If it is inside a
    block, only the loops inside that block are returned."""
    target_blocks = block_names_in(target)  # the statements around the target contain these blocks, too
    stack: list[tuple[ir.Stmt, tuple[ir.For, ...]]] = [(body, ())]
    while stack:
        s, loops = stack.pop()
        if s is target:
            return loops
        inner = (*loops, s) if isinstance(s, ir.For) else () if isinstance(s, ir.Block) else loops
        stack += [(child, inner) for child in stmt_children(s)[::-1] if target_blocks <= block_names_in(child)]
    raise ScheduleError(
        "the statement is not part of the function",
        hint="give a statement of this function's body, as find_block and find_loop return it",
    )


def extent_of(loop: ir.For) -> int:
    """Return the constant extent of a loop. Raise ScheduleError if the extent is not constant."""
    extent = ir.int_value(loop.extent)
    if extent is None:
        raise ScheduleError(
            f"loop {loop.var.name!r} has no constant extent; got {format_expr(loop.extent)}",
            hint="schedule a loop of fixed length, or fix sizes by tir.specialize(func, sizes)",
        )
    return extent


def symbolic_extent_of(func: ir.PrimFunc, loop: ir.For) -> int:
    """Return the extent of a loop: a number, or an expression over the symbolic sizes of ``func``.

    Raise ScheduleError if it depends on anything else, such as data or the variable of a loop around it."""
    variables = [x for x in walk_expr(loop.extent) if isinstance(x, (ir.Var, ir.Load, ir.Call))]
    if not variables or not set(variables) <= set(func.scalars):
        return extent_of(loop)
    extent: Any = simplify(loop.extent)
    return extent  # type: ignore[no-any-return]


def replace_stmt(body: ir.Stmt, old: ir.Stmt, new: ir.Stmt | None) -> ir.Stmt:
    """Replace the statement ``old`` (compared by identity) in ``body`` by ``new``. If ``new`` is None, remove it,
    and remove loops and conditions that become empty."""
    old_blocks = block_names_in(old)

    def replace_in_statement(stmt: ir.Stmt) -> ir.Stmt | None:
        if stmt is old:
            return new
        if not old_blocks <= block_names_in(stmt):  # the statement does not contain ``old``
            return stmt
        match stmt:
            case ir.For(var, extent, inner, kind, annotations):
                new_inner = replace_in_statement(inner)
                if new_inner is None or new_inner is inner:
                    return None if new_inner is None else stmt
                return ir.For(var, extent, new_inner, kind, annotations)
            case ir.If(condition, then, otherwise):
                first = replace_in_statement(then)
                second = replace_in_statement(otherwise) if otherwise else None
                if first is then and second is otherwise:
                    return stmt
                return None if first is None else ir.If(condition, first, second)
            case ir.Seq(parts):
                new_parts = [replace_in_statement(part) for part in parts]
                if all(a is b for a, b in zip(new_parts, parts, strict=True)):
                    return stmt
                remaining = [part for part in new_parts if part is not None]
                return ir.seq(*remaining) if remaining else None
            case ir.Let(var, value, inner):
                new_inner = replace_in_statement(inner)
                return stmt if new_inner is inner else None if new_inner is None else ir.Let(var, value, new_inner)
            case ir.Alloc(buffer, inner):
                new_inner = replace_in_statement(inner)
                return stmt if new_inner is inner else None if new_inner is None else ir.Alloc(buffer, new_inner)
            case ir.Block(body=inner, init=init):
                new_inner, new_init = replace_in_statement(inner), replace_in_statement(init) if init else None
                if new_inner is inner and new_init is init:
                    return stmt
                return None if new_inner is None else replace(stmt, body=new_inner, init=new_init)
            case _:
                return stmt

    result = replace_in_statement(body)
    return result if result is not None else ir.Seq(())


def map_values(body: ir.Stmt, transform: ExprMap) -> ir.Stmt:
    """Rewrite the expressions of a statement bottom-up by ``transform``, except those that are index arithmetic."""
    return map_stmt(body, lambda s: s, BottomUpRewriter(transform, is_index))


def names_in(body: ir.Stmt) -> set[str]:
    """Return the names of all variables and buffers that a statement defines or writes."""
    return {*declared_names(body), *(s.buffer.name for s in walk_stmt(body) if isinstance(s, ir.Store))}


def fresh_name(used_names: set[str], stem: str) -> str:
    """Return ``stem`` or ``stem_1``, ``stem_2`` and so on: the first name that is not in ``used_names``. Add it to
    ``used_names``."""
    name, number = stem, 1
    while name in used_names:
        name, number = f"{stem}_{number}", number + 1
    used_names.add(name)
    return name


def with_unique_names(func: ir.PrimFunc) -> ir.PrimFunc:
    """Rename loops and blocks that have the name of an earlier one, because steps address them by name.

    Loop ``i`` around block ``C`` becomes ``i_C`` (``i_1`` would be the name of a part of ``i`` after a split), the second
    block ``C`` becomes ``C_1``. Loops inside of blocks keep their names: blocks are units."""
    loops = [s.var.name for s in statements_outside_blocks(func.body) if isinstance(s, ir.For)]
    blocks = [s.name for s in outermost_blocks(func.body)]
    if len(set(loops)) == len(loops) and len(set(blocks)) == len(blocks):
        return func
    used_names = names_in(func.body) | {param.name for param in func.params}
    used_blocks, seen_loops, seen_blocks = set(blocks), set[str](), set[str]()

    def rename(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.For(var, body=body):
                if var.name in seen_loops:
                    owners = [s.name for s in walk_stmt(body) if isinstance(s, ir.Block)]
                    owners += [s.buffer.name for s in walk_stmt(body) if isinstance(s, ir.Store)]
                    var = replace(var, name=fresh_name(used_names, "_".join([var.name, *owners[:1]])))
                    body = substitute_stmt(body, {stmt.var: var})
                seen_loops.add(var.name)
                return replace(stmt, var=var, body=rename(body))
            case ir.Block(name):
                unique = fresh_name(used_blocks, name) if name in seen_blocks else name
                seen_blocks.add(unique)
                return replace(stmt, name=unique)
            case ir.Seq(parts):
                return ir.Seq(tuple(map(rename, parts)))
            case ir.If(condition, then, otherwise):
                return ir.If(condition, rename(then), rename(otherwise) if otherwise else None)
            case ir.Let(body=body) | ir.Alloc(body=body):
                return replace(stmt, body=rename(body))
            case _:
                return stmt

    return replace(func, body=rename(func.body))


def find_buffer(func: ir.PrimFunc, name: str) -> ir.Buffer:
    """Return the parameter or allocated buffer called ``name``. Raise ScheduleError if there is no such buffer."""
    buffers = {p.name: p for p in func.params}
    buffers.update({s.buffer.name: s.buffer for s in walk_stmt(func.body) if isinstance(s, ir.Alloc)})
    if name not in buffers:
        raise ScheduleError(f"there is no buffer {name!r}", hint="choose one of " + ", ".join(buffers))
    return buffers[name]
