"""Functions that differ in numbers only, as if nobody knew these numbers: what is made of them then is alike, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from microc.tir import ir
from microc.tir.rewrite import map_children, map_stmt, substitute_stmt


def lowered_alike(funcs: Sequence[ir.PrimFunc], lower: Callable[[ir.PrimFunc], ir.PrimFunc]) -> list[ir.PrimFunc]:
    """The functions lowered, with every int32 number that differs between them unknown meanwhile.

    Where they differ in more than that, only the extents of their loops (by name) are unknown.
    """
    walks = [_numbers(func) for func in funcs]
    if any(shape != walks[0][0] for shape, _ in walks):
        return _by_loops(funcs, lower)
    names: dict[tuple[int, ...], ir.Var] = {}
    for together in zip(*(numbers for _, numbers in walks), strict=True):
        if len(set(together)) > 1:
            names.setdefault(together, ir.Var(f"number_{len(names)}"))
    found = []
    for k, func in enumerate(funcs):
        columns = iter(list(zip(*(numbers for _, numbers in walks), strict=True)))

        def hide(number: ir.Const, columns=columns) -> ir.Expr:  # type: ignore[no-untyped-def]
            return names.get(next(columns), number)

        made = lower(replace(func, body=_mapped(func.body, hide, lambda _: None)))
        values: dict[ir.Var, ir.Expr] = {name: ir.const(column[k], "int32") for column, name in names.items()}
        found.append(replace(made, body=substitute_stmt(made.body, values)))
    return found


def _numbers(func: ir.PrimFunc) -> tuple[list[object], list[int]]:
    """What a function is apart from its int32 numbers, and these, in order."""
    shape: list[object] = []
    numbers: list[int] = []

    def keep(number: ir.Const) -> ir.Expr:
        numbers.append(int(number.value))
        return number

    _mapped(func.body, keep, shape.append)
    return shape, numbers


def _mapped(body: ir.Stmt, on_number: Callable[[ir.Const], ir.Expr], on_other: Callable[[object], None]) -> ir.Stmt:
    """``body`` with its int32 numbers replaced, in an order that depends on nothing else."""

    def on_expr(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Const) and expr.dtype == "int32":
            return on_number(expr)
        on_other(_head(expr))
        return map_children(expr, on_expr)

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        on_other(type(stmt))
        return stmt

    return map_stmt(body, on_stmt, on_expr)


def _head(expr: ir.Expr) -> object:
    match expr:
        case ir.Const() | ir.Var():
            return expr
        case ir.Load(buffer) | ir.AddressOf(buffer):
            return buffer.name
        case ir.Bin(op) | ir.Un(op):
            return op
        case ir.Call(name):
            return name
        case _:
            return type(expr), expr.dtype


def _by_loops(funcs: Sequence[ir.PrimFunc], lower: Callable[[ir.PrimFunc], ir.PrimFunc]) -> list[ir.PrimFunc]:
    extents: dict[str, set[int | None]] = {}
    for func in funcs:
        for name, extent in _loops(func).items():
            extents.setdefault(name, set()).add(ir.int_value(extent))
    open_loops = {name for name, found in extents.items() if len(found) > 1}
    return [_with_open_loops(func, open_loops, lower) for func in funcs]


def _loops(func: ir.PrimFunc) -> dict[str, ir.Expr]:
    found: dict[str, ir.Expr] = {}

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.For):
            found[stmt.var.name] = stmt.extent
        return stmt

    map_stmt(func.body, on_stmt)
    return found


def _with_open_loops(
    func: ir.PrimFunc, open_loops: set[str], lower: Callable[[ir.PrimFunc], ir.PrimFunc]
) -> ir.PrimFunc:
    values: dict[ir.Var, ir.Expr] = {}

    def hide(stmt: ir.Stmt) -> ir.Stmt:
        if not isinstance(stmt, ir.For) or stmt.var.name not in open_loops:
            return stmt
        extent = ir.Var(f"extent_of_{stmt.var.name}")
        values[extent] = stmt.extent
        return replace(stmt, extent=extent)

    made = lower(replace(func, body=map_stmt(func.body, hide)))
    return replace(made, body=substitute_stmt(made.body, values))
