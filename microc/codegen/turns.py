"""Parallel loops for threads: the turn of a loop as a function of its own, with what it sees of the kernel in a structure."""

from __future__ import annotations

from collections.abc import Sequence

from microc import dtypes
from microc.errors import InternalError
from microc.frozen import frozen
from microc.tir import ir
from microc.tir.facts import buffers_read, buffers_written
from microc.tir.rewrite import walk_all_exprs, walk_stmt

RUN = "microc_run_turns"
"""The function of ``templates/project/threads.c.j2`` that runs them."""


@frozen
class Turns:
    """C of a parallel loop: the functions before the kernel, and what stands in it instead of the loop."""

    function: tuple[str, ...]
    call: tuple[str, ...]


def seen_inside(loop: ir.For, params: Sequence[ir.Buffer]) -> tuple[list[ir.Buffer], list[ir.Var]]:
    """Parameters that a loop touches, and values from outside of it that it reads, both in a fixed order."""
    used, known = buffers_read(loop.body) | buffers_written(loop.body), {loop.var}
    own = set()
    for stmt in walk_stmt(loop.body):
        match stmt:
            case ir.For(var) | ir.Let(var):
                known.add(var)
            case ir.Alloc(buffer):
                own.add(buffer)
            case _:
                pass
    foreign = sorted(b.name for b in used - own - set(params))
    if foreign:
        raise InternalError(f"turns of parallel loop {loop.var.name} share {foreign[0]}, which is no parameter")
    values = {x for x in walk_all_exprs(loop.body) if isinstance(x, ir.Var)} - known
    return [b for b in params if b in used], sorted(values, key=lambda v: v.name)


def turns_of(name: str, loop: ir.For, extent: str, seen: Sequence[tuple[str, str]], body: Sequence[str]) -> Turns:
    """A loop whose indented ``body`` is printed. ``name``: of the function; ``seen``: declarations of what it sees without their
    names, and these."""
    members = [f"    {_member(kind)}{each};" for kind, each in seen]
    given = f"((const struct {name} *)microc_seen)"
    return Turns(
        (
            f"struct {name} {{",
            *members,
            "};",
            "",
            f"static void {name}(const void *microc_seen, {dtypes.c_name(loop.var.dtype)} {loop.var.name})",
            "{",
            *(f"    {kind}const {each} = {given}->{each};" for kind, each in seen),
            *body,
            "}",
            "",
        ),
        (
            "{",
            f"    const struct {name} microc_seen = {{{', '.join(each for _, each in seen)}}};",
            f"    {RUN}({name}, &microc_seen, {extent});",
            "}",
        ),
    )


def _member(kind: str) -> str:
    """A declaration's type inside of a structure, where nothing is promised of pointers."""
    return kind.replace("restrict ", "")
