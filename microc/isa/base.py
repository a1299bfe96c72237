"""What an intrinsic is: a name of the neutral vocabulary and its meaning in TIR; what an instruction set brings for it: a body
in C.

A scalar intrinsic is a pure function of 32-bit values (words of four bytes or two 16-bit numbers included) or of a pointer.
Vector intrinsics have values of a whole vector, such as ``int32x4``; their meaning is that of one lane. The portable C of an
intrinsic is printed from its meaning.
"""

from __future__ import annotations

from microc.frozen import frozen
from microc.tir.ir import Buffer, Expr, Stmt, Var, const

LANE = Var("lane")
"""The number of the lane that the meaning of a vector intrinsic speaks of."""
ANY = 1 << 30
"""Elements behind a pointer when the call says how many it touches."""
A, B, C = Var("a"), Var("b"), Var("c")
"""Parameters of most scalar intrinsics."""
VL = Var("vl")
"""The lanes of a scalable vector that take part."""


@frozen
class Turns:
    """A loop inside a body: the parameter that says how many elements there are, how many an iteration takes, and what an
    iteration costs."""

    parameter: str
    elements: int
    operations: tuple[tuple[str, int], ...]


@frozen
class Body:
    """How instructions compute an intrinsic: statements of C (may use ``__asm__``) over its parameters; empty where the meaning
    is as good as anything.

    ``operations``: what it costs, by kind of operation (``isa/sets.py``); one ``alu`` for each ``__asm__`` and an access for
    each ``memcpy`` unless given. ``turns`` is the loop inside, whose length is an argument. ``apart``: it stays a function of
    its own, since it is long. ``guard``: the C preprocessor condition under which it replaces the meaning, that of its set
    unless given. ``types``: vectors that are declared before it, with their header, though no parameter is one.
    """

    text: str
    operations: tuple[tuple[str, int], ...] = ()
    turns: Turns | None = None
    apart: bool = False
    guard: str = ""
    types: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """What it costs, without the loop inside."""
        if self.operations:
            return dict(self.operations)
        memory = {"load": self.text.count("memcpy(&"), "store": self.text.count("memcpy(p")}
        alu = self.text.count("__asm__")
        return {**memory, "alu": alu if alu or any(memory.values()) else 1}


@frozen
class Intrin:
    """A word of the vocabulary.

    ``params`` are scalar variables or (for pointers) buffers; ``meaning`` is its value, or its effect on a buffer. With
    ``lanes`` the meaning holds for every lane, number :data:`LANE`: a vector parameter stands there for its element, as the
    variable of its name and the element's dtype, and a value is that of the lane. ``limits``: the smallest and largest number
    of parameters that have narrower ones than their dtype; others give nothing. ``bodies``: those that suit any core (a user's
    own). ``scalable``: vectors have at least so many lanes, of which the last parameter, ``vl``, says how many take part; others
    hold anything.
    """

    name: str
    params: tuple[Var | Buffer, ...]
    meaning: Expr | Stmt
    lanes: int = 0
    limits: tuple[tuple[str, int, int], ...] = ()
    bodies: tuple[Body, ...] = ()
    scalable: bool = False

    @property
    def result(self) -> str:
        """The dtype of the value; empty for an intrinsic that only writes."""
        if isinstance(self.meaning, Stmt):
            return ""
        return vector(self.meaning.dtype, self.lanes, self.scalable) if self.lanes else self.meaning.dtype

    @property
    def turns(self) -> Expr:
        """The lanes that take part."""
        return VL if self.scalable else i32(self.lanes)


SUMS = (("c", -(1 << 30), 1 << 30),)
"""Limits of what products of a word are added to."""


def vector(element: str, lanes: int, scalable: bool = False) -> str:
    """The dtype of so many lanes, or of a multiple of them."""
    return f"{element}x{'vscalex' if scalable else ''}{lanes}"


def i32(value: int) -> Expr:
    return const(value, "int32")


def sign16(x: Expr) -> Expr:
    """The low half of ``x`` as a signed number, without overflow: ((x & 0xffff) ^ 0x8000) - 0x8000."""
    return ((x & 0xFFFF) ^ 0x8000) - 0x8000


def sign8(x: Expr) -> Expr:
    return ((x & 0xFF) ^ 0x80) - 0x80


def pack16(low: Expr, high: Expr) -> Expr:
    """Two values within int16 as one word."""
    return (low & 0xFFFF) | (high * 65536)


def assembly(text: str, inputs: str) -> Body:
    """A body of one instruction with one result ``%0``; ``inputs`` are parameters in general registers, ``%1`` on."""
    operands = ", ".join(f'"r"({name})' for name in inputs)
    return Body(f'int32_t r;\n__asm__("{text}" : "=r"(r) : {operands});\nreturn r;')
