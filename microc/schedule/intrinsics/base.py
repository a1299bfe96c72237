"""What an intrinsic is: a meaning in TIR, a C body by feature. The portable body is printed from the meaning.

A scalar intrinsic is a pure function of 32-bit values (packed vectors such as ``int16x2`` included) or of a pointer. A
tensor intrinsic replaces a small loop nest (its description) by calls of scalar ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from microc.tir import ir
from microc.tir.ir import Buffer, Call, Expr, Stmt, Var, const


@dataclass(frozen=True, slots=True)
class Intrin:
    """A scalar intrinsic.

    ``params`` are scalar variables or (for pointers) buffers; ``meaning`` is its value, or its effect on a buffer. ``guard``
    is the C preprocessor condition under which ``body`` (statements of C, may use ``__asm__``) replaces the portable one;
    ``feature`` is what a target must have for that: schedules ask for it.
    """

    name: str
    params: tuple[Var | Buffer, ...]
    meaning: Expr | Stmt
    feature: str
    guard: str
    body: str


@dataclass(frozen=True, slots=True)
class TensorIntrin:
    """A loop of ``extent`` over ``c += a[k] * b[k]`` (operands widened to int32) and the expression that replaces it.

    ``a`` and ``b`` are the operand dtypes; ``steps`` maps the operands' loaded words to pairs of ``int16x2`` values to
    multiply and add, in the same order on both sides.
    """

    name: str
    a: str
    b: str
    extent: int
    feature: str
    steps: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

    def value(self, a: ir.AddressOf, b: ir.AddressOf, accumulator: Expr) -> Expr:
        """The new accumulator."""
        total = accumulator
        for left, right in self.steps:
            total = Call("smlad", (_apply(left, a), _apply(right, b), total), "int32")
        return total


def _apply(names: tuple[str, ...], argument: Expr) -> Expr:
    for name in names:
        argument = Call(name, (argument,), "int32")
    return argument


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
