"""Numbers for expressions: equal ones have the same, so that they compare at once. Hashing an expression costs as much as
walking it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from microc.tir import ir
from microc.tir.facts import is_index
from microc.tir.rewrite import children


class Facts(NamedTuple):
    """An expression's number, the buffers that it reads or takes addresses in, and whether it is ``computed``: reads or calls."""

    number: int
    buffers: frozenset[ir.Buffer]
    computed: bool


_NONE: frozenset[ir.Buffer] = frozenset()
_OWN: Mapping[type[ir.Expr], Callable[[Any], object]] = MappingProxyType(
    {
        ir.Const: lambda x: x,
        ir.Var: lambda x: x,
        ir.Bin: attrgetter("op"),
        ir.Un: attrgetter("op"),
        ir.Cast: attrgetter("dtype"),
        ir.Load: attrgetter("buffer"),
        ir.AddressOf: attrgetter("buffer", "extent", "writes", "step"),
        ir.Call: attrgetter("name", "dtype"),
        ir.Select: type,
    }
)
"""What tells an expression from others of its kind with the same operands."""


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
        if is_index(expr):  # it reads nothing, and knows its hash
            return self._numbered.get(expr) or self._numbered.setdefault(expr, Facts(len(self._numbered), _NONE, False))
        kind, parts = type(expr), [self.of(child) for child in children(expr)]
        key = (kind, _OWN[kind](expr), *[part.number for part in parts])
        found = self._numbered.get(key)
        if found is None:
            buffers = _NONE.union(*[part.buffers for part in parts])
            if isinstance(expr, (ir.Load, ir.AddressOf)):
                buffers = buffers | {expr.buffer}
            computed = bool(buffers) or isinstance(expr, ir.Call) or any(part.computed for part in parts)
            found = self._numbered[key] = Facts(len(self._numbered), buffers, computed)
        return found
