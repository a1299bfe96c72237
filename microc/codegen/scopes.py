"""Names inside of a function: what a block of C declares is called unlike all else that can be seen there.

Passes over TIR copy statements and make up names, one apart from the other, and a ``Let`` ends with its statement where a
declaration of C lives on to the end of its block. So names are made here, for a whole function at once, right before it is
printed: a loop is called like the axis that it runs along (``y``), or like that axis's tiles (``y_tile``), and values are
numbered in the order of the text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from microc.codegen.c_expr import register_name
from microc.codegen.names import is_free, is_mathematical
from microc.errors import InternalError, ScheduleError
from microc.tir import ir
from microc.tir.rewrite import map_expr, walk_all_exprs, walk_stmt


def tile_names(buffer: ir.Buffer, body: ir.Stmt) -> list[str]:
    """The scalars of a register tile, as many as the body uses (a peeled tail uses fewer)."""
    used: dict[tuple[int, ...], None] = {}
    for stmt in walk_stmt(body):
        if isinstance(stmt, ir.Store) and stmt.buffer == buffer:
            where = tuple(ir.int_value(i) for i in stmt.indices)
            if any(n is None for n in where):
                raise ScheduleError(
                    f"register tile {buffer.name}: a loop that indexes it is not unrolled",
                    hint=f"registers have no addresses: unroll the loop, or set_scope({buffer.name!r}, 'local'), an array",
                )
            used[tuple(n for n in where if n is not None)] = None
    return [register_name(buffer, list(where)) for where in used]


def distinct(func: ir.PrimFunc) -> ir.PrimFunc:
    """The function with names that C can have side by side and people can read."""
    names = _Names(func)
    params = tuple(names.buffer(p, p.name) for p in func.params)
    scalars = tuple(names.variable(s, s.name) for s in func.scalars)
    return replace(func, params=params, scalars=scalars, body=names.statement(func.body))


_SUFFIX = re.compile(r"(_[a-z]+\d+)+$")
_COPIED = re.compile(r"\d+|init|fill|from|[a-z]+\d+")
"""Words that passes put behind the name of what they copy or divide."""


def axis_name(name: str, buffers: Iterable[str]) -> str:
    """What a loop is called for short: ``y`` for ``y_acc_1`` where ``acc`` is a buffer, ``y_tile`` for ``y_acc_0``."""
    longest = max((b for b in buffers if name.startswith(f"{b}_i")), key=len, default=None)
    words = (name.removeprefix(f"{longest}_") if longest else name).split("_")
    stages = {word for buffer in buffers for word in buffer.split("_")}
    behind: list[str] = []
    while len(words) > 1 and words[0] and (_COPIED.fullmatch(words[-1]) or words[-1] in stages):
        behind.append(words.pop())
    return "_".join(words) + ("_tile" if "0" in behind else "")


class _Names:
    """A walk in the order of the text. ``seen``: what the blocks around a place have declared, the innermost last."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.func = func
        self.seen: list[set[str]] = [set()]
        self.taken = {func.name, *(p.name for p in func.params), *(s.name for s in func.scalars)}
        self.stages = {p.name for p in func.params}
        for stmt in walk_stmt(func.body):
            match stmt:
                case ir.For(var) | ir.Let(var):
                    self.taken.add(var.name)
                case ir.Alloc(buffer, body):
                    self.taken.update(_declared(buffer, body))
                    self.stages.add(buffer.name)
                case _:
                    pass
        self.variables: dict[ir.Var, ir.Var] = {}
        self.buffers: dict[ir.Buffer, ir.Buffer] = {}

    def variable(self, var: ir.Var, wanted: str) -> ir.Var:
        """Declare a variable; what it is called from here on."""
        name = wanted if self.fits([wanted]) else self.fresh(wanted)
        chosen = var if name == var.name else replace(var, name=name)
        self.declare([chosen.name])
        self.variables[var] = chosen
        return chosen

    def value(self, var: ir.Var) -> ir.Var:
        """The same of a ``Let``, without the loop before ``__``: a number at the end is the next one of the block."""
        wanted = var.name.rpartition("__")[2]
        stem = re.sub(r"_\d+$", "", wanted)
        if stem == wanted:
            return self.variable(var, wanted)
        return self.variable(var, next(n for n in (f"{stem}_{k}" for k in itertools.count()) if self.fits([n])))

    def buffer(self, buffer: ir.Buffer, wanted: str, body: ir.Stmt | None = None) -> ir.Buffer:
        """The same of a buffer, which in registers is several scalars; ``body`` says which."""
        chosen = buffer if wanted == buffer.name else replace(buffer, name=wanted)
        while not self.fits(parts := _declared(chosen, body, buffer)):
            chosen = replace(buffer, name=self.fresh(wanted))
        self.declare(parts)
        self.buffers[buffer] = chosen
        return chosen

    def fits(self, names: Iterable[str]) -> bool:
        return all(self.is_free(name) and not any(name in block for block in self.seen) for name in names)

    def is_free(self, name: str) -> bool:
        """A value may be called like a function of mathematics that this function does not call (``log2``)."""
        return name not in self.called if is_mathematical(name) else is_free(name)

    @cached_property
    def called(self) -> set[str]:
        names = {expr.name for expr in walk_all_exprs(self.func.body) if isinstance(expr, ir.Call)}
        return names | {f"{name}f" for name in names}

    def declare(self, names: Iterable[str]) -> None:
        self.seen[-1].update(names)

    def fresh(self, stem: str) -> str:
        number = 2
        while f"{stem}_{number}" in self.taken or not self.is_free(f"{stem}_{number}"):
            number += 1
        self.taken.add(f"{stem}_{number}")
        return f"{stem}_{number}"

    def block(self, stmt: ir.Stmt) -> ir.Stmt:
        """A statement between braces."""
        self.seen.append(set())
        made = self.statement(stmt)
        self.seen.pop()
        return made

    def statement(self, stmt: ir.Stmt) -> ir.Stmt:
        """The statement under the names of the place; what it declares is gone from ``variables`` and ``buffers`` behind it."""
        match stmt:
            case ir.Seq(body):
                return ir.Seq(tuple(self.statement(child) for child in body))
            case ir.Store(buffer, indices, value):
                where = tuple(self.expr(i) for i in indices)
                return ir.Store(self.buffers.get(buffer, buffer), where, self.expr(value))
            case ir.Evaluate(value):
                return ir.Evaluate(self.expr(value))
            case ir.If(condition, then, otherwise):
                return ir.If(self.expr(condition), self.block(then), self.block(otherwise) if otherwise else None)
            case ir.For(var, extent, body, kind, annotations):
                extent, outer = self.expr(extent), self.variables.get(var)
                self.seen.append(set())
                counter = self.variable(var, axis_name(var.name, self.stages))
                made: ir.Stmt = ir.For(counter, extent, self.block(body), kind, annotations)
                self.seen.pop()
                self.restore(var, outer)
                return made
            case ir.Let(var, value, body):
                value, outer = self.expr(value), self.variables.get(var)
                made = ir.Let(self.value(var), value, self.statement(body))
                self.restore(var, outer)
                return made
            case ir.Alloc(buffer, body):
                before = self.buffers.get(buffer)
                wanted = _SUFFIX.sub("", buffer.name)
                made = ir.Alloc(self.buffer(buffer, wanted, body), self.statement(body))
                if before is not None:
                    self.buffers[buffer] = before
                return made
            case _:
                raise InternalError(f"cannot print {type(stmt).__name__} as C")

    def restore(self, var: ir.Var, outer: ir.Var | None) -> None:
        if outer is not None:
            self.variables[var] = outer

    def expr(self, expr: ir.Expr) -> ir.Expr:
        return map_expr(expr, self.renamed)

    def renamed(self, expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Var():
                return self.variables.get(expr, expr)
            case ir.Load(buffer, indices):
                chosen = self.buffers.get(buffer, buffer)
                return expr if chosen is buffer else ir.Load(chosen, indices)
            case ir.AddressOf(buffer):
                chosen = self.buffers.get(buffer, buffer)
                return expr if chosen is buffer else replace(expr, buffer=chosen)
            case _:
                return expr


def _declared(buffer: ir.Buffer, body: ir.Stmt | None, original: ir.Buffer | None = None) -> list[str]:
    """The names that a buffer takes; ``original``: what it is called in ``body``."""
    if buffer.scope != "register" or body is None:
        return [buffer.name]
    before = (original or buffer).name
    return [buffer.name + part.removeprefix(before) for part in tile_names(original or buffer, body)]
