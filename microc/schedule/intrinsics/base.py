"""What an intrinsic is: a meaning in TIR, a C body by feature. The portable body is printed from the meaning.

A scalar intrinsic is a pure function of 32-bit values (packed vectors such as ``int16x2`` included) or of a pointer. A
tensor intrinsic replaces a small loop nest (its description) by calls of scalar ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.ir import Buffer, Call, Expr, Stmt, Var, const


@dataclass(frozen=True, slots=True)
class Intrin:
    """A scalar intrinsic.

    ``params`` are scalar variables or (for pointers) buffers; ``meaning`` is its value, or its effect on a buffer. ``guard``
    is the C preprocessor condition under which ``body`` (statements of C, may use ``__asm__``) replaces the portable one;
    ``feature`` is what a target must have for that: schedules ask for it. ``operations``: what it costs then, by kind of
    operation (``schedule/cores.py``); one ``alu`` for each ``__asm__`` and an access for each ``memcpy`` unless given.
    """

    name: str
    params: tuple[Var | Buffer, ...]
    meaning: Expr | Stmt
    feature: str
    guard: str
    body: str
    operations: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """An operand of a product of pairs: the intrinsics applied, innermost first, to the address ``offset`` elements on."""

    offset: int
    names: tuple[str, ...]

    def value(self, start: ir.AddressOf) -> Expr:
        """The pair (``int16x2`` in an int32)."""
        last = simplify(start.indices[-1] + self.offset)
        value: Expr = ir.AddressOf(start.buffer, (*start.indices[:-1], last), start.extent - self.offset)
        for name in self.names:
            value = Call(name, (value,), "int32")
        return value


@dataclass(frozen=True, slots=True)
class TensorIntrin:
    """A loop of ``len(order_a)`` over ``c += a[k] * b[k]`` (operands widened to int32) and the expression that replaces it.

    ``a`` and ``b`` are the operands' dtypes; step k of the loop touches the element ``order_a[k]`` (``order_b[k]``) behind
    that of step 0. ``steps`` are pairs of parts that SMLAD multiplies and adds. ``aligned_a``, ``aligned_b``: the operand
    is read by words that must lie at multiples of four bytes.
    """

    name: str
    a: str
    b: str
    order_a: tuple[int, ...]
    order_b: tuple[int, ...]
    feature: str
    steps: tuple[tuple[Part, Part], ...]
    aligned_a: bool = False
    aligned_b: bool = False

    def value(self, a: ir.AddressOf, b: ir.AddressOf, accumulator: Expr) -> Expr:
        """The new accumulator."""
        total = accumulator
        for left, right in self.steps:
            total = Call("smlad", (left.value(a), right.value(b), total), "int32")
        return total


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
