"""Kernels that differ in a few literals become one C function that reads them from a table of constants.

Layers of one shape differ in their multipliers, shifts and zero points. One body for all of them costs a load or two per
tile and saves hundreds of bytes of code per layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from microc.frozen import frozen
from microc.module import Call, Kernel, Module, Value
from microc.tir import ir
from microc.tir.rewrite import map_children, map_stmt
from microc.tir.verify import constants_of, verify

TABLE = "constants"
MOST = 8
"""A table of more entries would cost more loads than the merged code is worth."""


@frozen
class _Skeleton:
    """A function without its int32 literals, and the literals in order of appearance."""

    func: ir.PrimFunc
    literals: tuple[int, ...]


def merge_kernels(module: Module) -> Module:
    """``module`` with the kernels merged that are equal but for at most :data:`MOST` literals."""
    alike: dict[object, list[tuple[Kernel, _Skeleton]]] = {}
    for kernel in module.kernels:
        skeleton = _skeleton(kernel.func)
        alike.setdefault((skeleton.func.params, skeleton.func.body), []).append((kernel, skeleton))
    for family in alike.values():
        if len(family) > 1:
            module = _merge(module, family)
    return module


def _visit(func: ir.PrimFunc, on_literal: Callable[[int], ir.Expr]) -> ir.PrimFunc:
    """The function with its int32 literals mapped: those that are computed with, not those that index memory."""

    def go(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Const(int() as value, "int32"):
                return on_literal(value)
            case ir.Load() | ir.AddressOf():
                return expr
            case _:
                return map_children(expr, go)

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.Store(buffer, indices, value):
                return ir.Store(buffer, indices, go(value))
            case ir.Let(var, value, body):
                return ir.Let(var, go(value), body)
            case ir.Evaluate(value):
                return ir.Evaluate(go(value))
            case _:
                return s

    return replace(func, name="", body=map_stmt(func.body, on_stmt))


def _skeleton(func: ir.PrimFunc) -> _Skeleton:
    literals: list[int] = []

    def collect(value: int) -> ir.Expr:
        literals.append(value)
        return ir.const(0, "int32")

    return _Skeleton(_visit(func, collect), tuple(literals))


def _merge(module: Module, family: list[tuple[Kernel, _Skeleton]]) -> Module:
    """One kernel for the family, a table for each member, and calls that pass it."""
    columns = list(zip(*(skeleton.literals for _, skeleton in family), strict=True))
    slots: dict[tuple[int, ...], int] = {}
    for column in columns:
        if len(set(column)) > 1:
            slots.setdefault(column, len(slots))
    if not 0 < len(slots) <= MOST:
        return module
    first = family[0][0]
    table = ir.Buffer(TABLE, (len(slots),), "int32", "const")
    place = iter(columns)

    def load(value: int) -> ir.Expr:
        column = next(place)
        return table[slots[column]] if column in slots else ir.const(value, "int32")

    body = _visit(first.func, load).body
    func = ir.PrimFunc(first.name, (*first.func.params, table), body, first.func.annotations)
    verify(func, tables=constants_of(func))  # the table has literals of members, each of which was verified with them
    values, tables = dict(module.values), {}
    for member, (kernel, _) in enumerate(family):
        name = f"{kernel.name}_{TABLE}"
        data = np.array([column[member] for column in slots], np.int32)
        values[name] = Value(name, data.shape, "int32", "const", data, label=name)
        tables[kernel.name] = name
    alike = tuple(block for block in first.blocks if all(block in kernel.blocks for kernel, _ in family))
    merged = replace(first, func=func, blocks=alike)
    gone = {kernel.name for kernel, _ in family[1:]}
    kernels = tuple(merged if k is first else k for k in module.kernels if k.name not in gone)
    calls = tuple(_through(call, first.name, tables) for call in module.calls)
    return replace(module, kernels=kernels, calls=calls, values=values)


def _through(call: Call, kernel: str, tables: dict[str, str]) -> Call:
    """The call by way of the merged kernel, if it was one of the family's."""
    if call.kernel not in tables:
        return call
    return replace(call, kernel=kernel, args=(*call.args, tables[call.kernel]))
