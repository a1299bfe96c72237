"""Steps of a schedule, and parts of a function by loop and block names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from microc.base.immutable import frozen
from microc.errors import ScheduleError
from microc.tir import ir
from microc.tir.analysis.context import blocks_in
from microc.tir.rewrite import stmt_children, walk_stmt

# ---- A step of a schedule: a name and arguments, as they are printed and replayed.


@frozen
class Step:
    """One primitive and its arguments (strings, ints, None and tuples of them)."""

    primitive: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.primitive}({', '.join(map(_spell, self.args))})"


def _spell(value: object) -> str:
    return f"({', '.join(map(_spell, value))})" if isinstance(value, tuple) else str(value)


def frozen_argument(value: Any) -> Any:
    """An argument of a step with tuples in the place of lists."""
    return tuple(frozen_argument(v) for v in value) if isinstance(value, (list, tuple)) else value


# ---- Finding and replacing parts of a scheduled function by loop and block names.


def loop_names(body: ir.Stmt) -> list[str]:
    return [s.var.name for s in walk_stmt(body) if isinstance(s, ir.For)]


def find_loop(body: ir.Stmt, name: str) -> ir.For:
    """The loop whose variable is called ``name``."""
    for s in walk_stmt(body):
        if isinstance(s, ir.For) and s.var.name == name:
            return s
    raise ScheduleError(f"there is no loop {name!r}", hint="loops: " + ", ".join(loop_names(body)))


def outside_blocks(body: ir.Stmt) -> Iterator[ir.Stmt]:
    """``body`` and what is below it, without the insides of blocks: loops that steps may move blocks to, and units to move."""
    stack = [body]
    while stack:
        found = stack.pop()
        yield found
        if not isinstance(found, ir.Block):
            stack.extend(stmt_children(found)[::-1])


def units(body: ir.Stmt) -> list[ir.Block]:
    """The blocks that lie in no other, in order."""
    return [s for s in outside_blocks(body) if isinstance(s, ir.Block)]


def outer_loop(body: ir.Stmt, name: str) -> ir.For:
    """The loop called ``name``, which is no part of a block."""
    loop = find_loop(body, name)
    if all(s is not loop for s in outside_blocks(body)):
        raise ScheduleError(
            f"loop {name!r} is a part of a block, which is one unit", hint="name a loop around the block"
        )
    return loop


def find_block(body: ir.Stmt, name: str, *, inside: bool = False) -> ir.Block:
    """The block called ``name``; ``inside``: also one that is a part of another
    (:func:`microc.schedule.primitives.reductions.blockize`)."""
    known = units(body)
    blocks = [s for s in walk_stmt(body) if isinstance(s, ir.Block)] if inside else known
    for block in blocks:
        if block.name == name:
            return block
    for unit in known:
        if has_block(unit, name):
            raise ScheduleError(
                f"block {name!r} is a part of block {unit.name!r}", hint=f"name {unit.name!r}, the unit"
            )
    raise ScheduleError(f"there is no block {name!r}", hint="blocks: " + ", ".join(b.name for b in blocks))


def has_block(body: ir.Stmt, name: str) -> bool:
    return name in blocks_in(body)


def loops_around(body: ir.Stmt, target: ir.Stmt) -> tuple[ir.For, ...]:
    """The loops around a statement of the tree, outermost first; those in the same block where it is a part of one."""
    stack: list[tuple[ir.Stmt, tuple[ir.For, ...]]] = [(body, ())]
    while stack:
        s, loops = stack.pop()
        if s is target:
            return loops
        inner = (*loops, s) if isinstance(s, ir.For) else () if isinstance(s, ir.Block) else loops
        stack += [(child, inner) for child in stmt_children(s)[::-1]]
    raise ScheduleError("the statement is not part of the function")


def extent_of(loop: ir.For) -> int:
    """The constant extent of a loop."""
    extent = ir.int_value(loop.extent)
    if extent is None:
        raise ScheduleError(f"loop {loop.var.name!r} has no constant extent", hint="schedule a loop of fixed length")
    return extent


def replace_stmt(body: ir.Stmt, old: ir.Stmt, new: ir.Stmt | None) -> ir.Stmt:
    """``body`` with one statement (found by identity) exchanged, or removed together with what is left empty around it."""

    def walk(s: ir.Stmt) -> ir.Stmt | None:
        if s is old:
            return new
        match s:
            case ir.For(var, extent, inner, kind, annotations):
                got = walk(inner)
                return s if got is inner else None if got is None else ir.For(var, extent, got, kind, annotations)
            case ir.If(condition, then, otherwise):
                first = walk(then)
                second = walk(otherwise) if otherwise else None
                if first is then and second is otherwise:
                    return s
                return None if first is None else ir.If(condition, first, second)
            case ir.Seq(parts):
                kept = [walk(part) for part in parts]
                if all(a is b for a, b in zip(kept, parts, strict=True)):
                    return s
                left = [part for part in kept if part is not None]
                return ir.seq(*left) if left else None
            case ir.Let(var, value, inner):
                got = walk(inner)
                return s if got is inner else None if got is None else ir.Let(var, value, got)
            case ir.Alloc(buffer, inner):
                got = walk(inner)
                return s if got is inner else None if got is None else ir.Alloc(buffer, got)
            case ir.Block(body=inner, init=init):
                got, first = walk(inner), walk(init) if init else None
                if got is inner and first is init:
                    return s
                return None if got is None else replace(s, body=got, init=first)
            case _:
                return s

    result = walk(body)
    return result if result is not None else ir.Seq(())


def names_in(body: ir.Stmt) -> set[str]:
    """Every variable and buffer name that a statement binds."""
    names: set[str] = set()
    for s in walk_stmt(body):
        match s:
            case ir.For(var) | ir.Let(var):
                names.add(var.name)
            case ir.Alloc(buffer) | ir.Store(buffer):
                names.add(buffer.name)
            case ir.Block():
                names.update(i.var.name for i in s.iters)
            case _:
                pass
    return names


def fresh(taken: set[str], stem: str) -> str:
    """``stem`` or ``stem_1`` ...; the chosen name is added to ``taken``."""
    name, number = stem, 1
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    taken.add(name)
    return name


def buffer_named(func: ir.PrimFunc, name: str) -> ir.Buffer:
    """A parameter or allocated buffer."""
    found = {p.name: p for p in func.params}
    found.update({s.buffer.name: s.buffer for s in walk_stmt(func.body) if isinstance(s, ir.Alloc)})
    if name not in found:
        raise ScheduleError(f"there is no buffer {name!r}", hint="buffers: " + ", ".join(found))
    return found[name]
