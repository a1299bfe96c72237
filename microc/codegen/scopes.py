"""Names inside of a function: what a block of C declares is called unlike all else that can be seen there.

Passes over TIR copy statements and make up names, one apart from the other, and a ``Let`` ends with its statement where a
declaration of C lives on to the end of its block. So names are made different here, for a whole function at once, right before
it is printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from microc.codegen.c_expr import register_name
from microc.codegen.names import is_free, is_mathematical
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.rewrite import map_expr, walk_all_exprs, walk_stmt


def tile_names(buffer: ir.Buffer, body: ir.Stmt) -> list[str]:
    """The scalars of a register tile, as many as the body uses (a peeled tail uses fewer)."""
    used: dict[tuple[int, ...], None] = {}
    for stmt in walk_stmt(body):
        if isinstance(stmt, ir.Store) and stmt.buffer == buffer:
            where = tuple(ir.int_value(i) for i in stmt.indices)
            if any(n is None for n in where):
                raise InternalError(f"register tile {buffer.name} is indexed by a loop that was not unrolled")
            used[tuple(n for n in where if n is not None)] = None
    return [register_name(buffer, list(where)) for where in used]


def distinct(func: ir.PrimFunc) -> ir.PrimFunc:
    """The function with names that C can have side by side; the same one where it has them already."""
    names = _Names(func)
    params = tuple(names.buffer(p) for p in func.params)
    scalars = tuple(names.variable(s) for s in func.scalars)
    body = names.statement(func.body)
    return replace(func, params=params, scalars=scalars, body=body) if names.changed else func


class _Names:
    """A walk in the order of the text. ``seen``: what the blocks around a place have declared, the innermost last."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.func = func
        self.changed = False
        self.seen: list[set[str]] = [set()]
        self.taken = {func.name, *(p.name for p in func.params), *(s.name for s in func.scalars)}
        for stmt in walk_stmt(func.body):
            match stmt:
                case ir.For(var) | ir.Let(var):
                    self.taken.add(var.name)
                case ir.Alloc(buffer, body):
                    self.taken.update(_declared(buffer, body))
                case _:
                    pass
        self.variables: dict[ir.Var, ir.Var] = {}
        self.buffers: dict[ir.Buffer, ir.Buffer] = {}

    def variable(self, var: ir.Var) -> ir.Var:
        """Declare a variable; what it is called from here on."""
        chosen = var if self.fits([var.name]) else replace(var, name=self.fresh(var.name))
        self.declare([chosen.name])
        self.variables[var] = chosen
        return chosen

    def buffer(self, buffer: ir.Buffer, body: ir.Stmt | None = None) -> ir.Buffer:
        """The same of a buffer, which in registers is several scalars; ``body`` says which."""
        parts = _declared(buffer, body)
        chosen = buffer
        while not self.fits(parts):
            chosen = replace(buffer, name=self.fresh(buffer.name))
            parts = [chosen.name + part.removeprefix(buffer.name) for part in _declared(buffer, body)]
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
        self.changed = True
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
                made: ir.Stmt = ir.For(self.variable(var), extent, self.block(body), kind, annotations)
                self.seen.pop()
                self.restore(var, outer)
                return made
            case ir.Let(var, value, body):
                value, outer = self.expr(value), self.variables.get(var)
                made = ir.Let(self.variable(var), value, self.statement(body))
                self.restore(var, outer)
                return made
            case ir.Alloc(buffer, body):
                before = self.buffers.get(buffer)
                made = ir.Alloc(self.buffer(buffer, body), self.statement(body))
                if before is not None:
                    self.buffers[buffer] = before
                return made
            case _:
                raise InternalError(f"cannot print {type(stmt).__name__} as C")

    def restore(self, var: ir.Var, outer: ir.Var | None) -> None:
        if outer is not None:
            self.variables[var] = outer

    def expr(self, expr: ir.Expr) -> ir.Expr:
        return map_expr(expr, self.renamed) if self.changed else expr

    def renamed(self, expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Var():
                return self.variables.get(expr, expr)
            case ir.Load(buffer, indices):
                return ir.Load(self.buffers.get(buffer, buffer), indices)
            case ir.AddressOf(buffer):
                return replace(expr, buffer=self.buffers.get(buffer, buffer))
            case _:
                return expr


def _declared(buffer: ir.Buffer, body: ir.Stmt | None) -> list[str]:
    return tile_names(buffer, body) if buffer.scope == "register" and body is not None else [buffer.name]
