"""Names and what is known of them, where a walk through a function stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from microc import dtypes
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.simplifier import Simplifier

Names = Mapping[str, ir.Var | ir.Buffer]


class IllFormedError(InternalError):
    """A function that breaks a rule of TIR."""


def fail(where: str, what: str) -> NoReturn:
    raise IllFormedError(what, where=where)


def check_name(name: str, where: str) -> None:
    if not (name.isascii() and name.isidentifier()):
        fail(where, f"{name!r} is no identifier")


def declare(names: Names, x: ir.Var | ir.Buffer, where: str) -> Names:
    check_name(x.name, where)
    if x.name in names:
        fail(where, f"{x.name} is declared twice")
    if not dtypes.is_valid(x.dtype):
        fail(where, f"{x.name} has the unknown dtype {x.dtype!r}")
    return {**names, x.name: x}


def declare_buffer(names: Names, buffer: ir.Buffer, where: str) -> Names:
    if buffer.scope not in ir.SCOPES:
        fail(where, f"buffer {buffer.name} has the unknown scope {buffer.scope!r}")
    if any(n < 0 for n in buffer.shape):
        fail(where, f"buffer {buffer.name} has shape {list(buffer.shape)}")
    return declare(names, buffer, where)


class Place:
    """Where the walk stands: declared names, what is known of values, loops and conditions around, up to the next block."""

    def __init__(self, names: Names, known: Simplifier, around: tuple[ir.For | ir.Expr, ...]) -> None:
        self.names = names
        self.known = known
        self.around = around

    def under(self, names: Names, known: Simplifier, outer: ir.For | ir.Expr) -> Place:
        """The place inside a loop or a condition."""
        return Place(names, known, (*self.around, outer))

    def knowing(self, known: Simplifier) -> Place:
        return Place(self.names, known, self.around)
