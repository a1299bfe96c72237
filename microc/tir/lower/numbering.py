"""Numbers for expressions: equal ones have the same, so that they compare at once. Hashing an expression costs as much as
walking it."""

from __future__ import annotations

from typing import NamedTuple

from microc.tir import ir
from microc.tir.rewrite import children


class Facts(NamedTuple):
    """An expression's number, the buffers that it reads or takes addresses in, and whether it calls."""

    number: int
    buffers: frozenset[ir.Buffer]
    calls: bool


_NONE: frozenset[ir.Buffer] = frozenset()


class Numbering:
    """Facts by identity of the expression, made from those of its operands."""

    def __init__(self) -> None:
        self._facts: dict[int, tuple[ir.Expr, Facts]] = {}
        self._numbered: dict[object, Facts] = {}

    def of(self, expr: ir.Expr) -> Facts:
        found = self._facts.get(id(expr))
        if found is None:
            found = self._facts[id(expr)] = (expr, self._make(expr))
        return found[1]

    def _make(self, expr: ir.Expr) -> Facts:
        parts = [self.of(child) for child in children(expr)]
        key = (type(expr), _own(expr), *[part.number for part in parts])
        found = self._numbered.get(key)
        if found is None:
            buffers = _NONE.union(*(part.buffers for part in parts))
            if isinstance(expr, (ir.Load, ir.AddressOf)):
                buffers = buffers | {expr.buffer}
            calls = isinstance(expr, ir.Call) or any(part.calls for part in parts)
            found = self._numbered[key] = Facts(len(self._numbered), buffers, calls)
        return found


def _own(expr: ir.Expr) -> object:
    """What tells an expression from others with the same operands."""
    match expr:
        case ir.Const() | ir.Var():
            return expr
        case ir.Bin(op) | ir.Un(op):
            return op
        case ir.Cast(dtype):
            return dtype
        case ir.Load(buffer):
            return buffer
        case ir.AddressOf(buffer, _, extent, writes, step):
            return buffer, extent, writes, step
        case ir.Call(name, _, dtype):
            return name, dtype
        case _:
            return None
