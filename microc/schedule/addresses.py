"""Addresses as a compiler sees them: a pointer that depends on loop variables, and a constant offset."""

from __future__ import annotations

from microc import dtypes
from microc.frozen import frozen
from microc.tir import ir
from microc.tir.rewrite import free_vars

Terms = dict[ir.Expr, int]


@frozen
class Place:
    """``pointer`` is shared by all accesses of one buffer whose addresses differ by a constant; ``offset`` is in bytes."""

    buffer: ir.Buffer
    terms: frozenset[tuple[ir.Expr, int]]
    offset: int

    @property
    def pointer(self) -> Pointer:
        return self.buffer.name, self.terms

    def follows(self, other: Place) -> bool:
        """Whether two words are neighbours, which one instruction loads."""
        return self.pointer == other.pointer and abs(self.offset - other.offset) == 4


Pointer = tuple[str, frozenset[tuple[ir.Expr, int]]]


def place_of(buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> Place:
    """The address of an element."""
    terms: Terms = {}
    offset = 0
    for index, stride in zip(indices, buffer.strides, strict=True):
        offset += _add(index, stride, terms)
    return Place(buffer, frozenset((e, k) for e, k in terms.items() if k), offset * dtypes.nbytes(buffer.dtype))


def _add(expr: ir.Expr, factor: int, terms: Terms) -> int:
    """Add ``factor * expr`` to linear terms; returns its constant part."""
    match expr:
        case ir.Const(int() as value):
            return factor * value
        case ir.Bin("add", a, b):
            return _add(a, factor, terms) + _add(b, factor, terms)
        case ir.Bin("sub", a, b):
            return _add(a, factor, terms) + _add(b, -factor, terms)
        case ir.Bin("mul", a, ir.Const(int() as value)) | ir.Bin("mul", ir.Const(int() as value), a):
            return _add(a, factor * value, terms)
        case _:
            terms[expr] = terms.get(expr, 0) + factor
            return 0


def moves_with(pointer: Pointer, var: ir.Var) -> bool:
    """Whether a pointer changes with a loop variable."""
    return any(_depends(e, var) for e, _ in pointer[1])


def step_of(pointer: Pointer, var: ir.Var) -> int:
    """Elements that a loop advances a pointer by."""
    return sum(k for e, k in pointer[1] if e == var)


def without(pointer: Pointer, var: ir.Var) -> Pointer:
    """The pointer at the start of a loop."""
    name, terms = pointer
    return name, frozenset((e, k) for e, k in terms if not _depends(e, var))


def _depends(expr: ir.Expr, var: ir.Var) -> bool:
    return expr == var if isinstance(expr, ir.Var) else var in free_vars(expr)
