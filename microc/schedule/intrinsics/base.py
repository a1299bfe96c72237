"""What an intrinsic is: a meaning in TIR, a C body by feature. The portable body is printed from the meaning.

A scalar intrinsic is a pure function of 32-bit values (packed vectors such as ``int16x2`` included) or of a pointer. Vector
intrinsics have values of 128 bits, such as ``int32x4``; their meaning is that of one lane. A tensor intrinsic replaces a small
loop nest (its description) by calls of scalar ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.ir import Buffer, Call, Expr, Stmt, Var, const

LANE = Var("lane")
"""The number of the lane that the meaning of a vector intrinsic speaks of."""
ANY = 1 << 30
"""Elements behind a pointer when the call says how many it touches."""


@dataclass(frozen=True, slots=True)
class Turns:
    """A loop inside an intrinsic: the parameter that says how many elements there are, how many an iteration takes, and what an
    iteration costs."""

    parameter: str
    elements: int
    operations: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Intrin:
    """A scalar or vector intrinsic.

    ``params`` are scalar variables or (for pointers) buffers; ``meaning`` is its value, or its effect on a buffer. ``guard``
    is the C preprocessor condition under which ``body`` (statements of C, may use ``__asm__``) replaces the portable one;
    ``feature`` is what a target must have for that: schedules ask for it. Without a guard there is no body but the meaning.
    ``operations``: what it costs then, by kind of
    operation (``schedule/cores.py``); one ``alu`` for each ``__asm__`` and an access for each ``memcpy`` unless given.

    ``turns`` is the loop inside, whose length is an argument. ``apart``: it stays a function of its own, since its body is long.

    With ``lanes`` the meaning holds for every lane, number :data:`LANE`: a vector parameter stands there for its element, as
    the variable of its name and the element's dtype, and a value is that of the lane.
    """

    name: str
    params: tuple[Var | Buffer, ...]
    meaning: Expr | Stmt
    feature: str
    guard: str
    body: str
    operations: tuple[tuple[str, int], ...] = ()
    lanes: int = 0
    turns: Turns | None = None
    apart: bool = False

    @property
    def result(self) -> str:
        """The dtype of the value; empty for an intrinsic that only writes."""
        if isinstance(self.meaning, Stmt):
            return ""
        return f"{self.meaning.dtype}x{self.lanes}" if self.lanes else self.meaning.dtype


@dataclass(frozen=True, slots=True)
class Part:
    """An operand of a step: the intrinsics applied, innermost first, to the address ``offset`` elements on, where ``width``
    elements are read; without intrinsics the element itself, widened to int32."""

    offset: int
    names: tuple[str, ...]
    width: int

    def value(self, start: ir.Load) -> Expr:
        """The operand, counted from the element ``start`` (often a pair: ``int16x2`` in an int32)."""
        indices = _moved(start, self.offset)
        if not self.names:
            return ir.cast("int32", ir.Load(start.buffer, indices))
        value: Expr = ir.AddressOf(start.buffer, indices, self.width)
        for name in self.names:
            value = Call(name, (value,), "int32")
        return value


def _moved(start: ir.Load, offset: int) -> tuple[Expr, ...]:
    """The indices of the element ``offset`` further on in memory; what an axis cannot hold is carried to the one before."""
    indices = list(start.indices)
    for axis in reversed(range(len(indices))):
        offset, step = divmod(offset, start.buffer.shape[axis]) if axis else (0, offset)
        indices[axis] = simplify(indices[axis] + step)
    return tuple(indices)


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that multiplies two parts and adds to the sum of one ``output``."""

    left: Part
    right: Part
    name: str = "dot2"
    output: int = 0


@dataclass(frozen=True, slots=True)
class TensorIntrin:
    """Loops over ``outputs`` and the terms of a sum, ``c[n] += a[n, k] * b[n, k]`` (operands widened to int32), and the
    instructions that replace them.

    ``a`` and ``b`` are the operands' dtypes. ``order_a`` and ``order_b`` say, for every (n, k) in row-major order, how many
    elements behind that of (0, 0) the operand lies. ``aligned_a``, ``aligned_b``: the operand is read by words that must lie
    at multiples of four bytes. A single output has no loop n.
    """

    name: str
    a: str
    b: str
    order_a: tuple[int, ...]
    order_b: tuple[int, ...]
    feature: str
    steps: tuple[Step, ...]
    aligned_a: bool = False
    aligned_b: bool = False
    outputs: int = 1

    @property
    def extents(self) -> tuple[int, ...]:
        """The lengths of the loops."""
        terms = len(self.order_a) // self.outputs
        return (self.outputs, terms) if self.outputs > 1 else (terms,)

    def body(self, a: ir.Load, b: ir.Load, sums: tuple[ir.Load, ...]) -> Stmt:
        """The instructions, from the operands at (0, 0) and the places of the sums; those that add to one sum in turn are
        one statement."""
        stores: list[ir.Store] = []
        for step in self.steps:
            place = sums[step.output]
            chained = bool(stores) and ir.Load(stores[-1].buffer, stores[-1].indices) == place
            old = stores.pop().value if chained else place
            value = Call(step.name, (step.left.value(a), step.right.value(b), old), "int32")
            stores.append(ir.Store(place.buffer, place.indices, value))
        return ir.seq(*stores)


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


def assembly(text: str, inputs: str) -> str:
    """A body of one instruction with one result ``%0``."""
    return f'int32_t r;\n__asm__("{text}" : "=r"(r) : {inputs});\nreturn r;'
