"""Intrinsics as data: a meaning in TIR, C bodies by feature. The portable body is printed from the meaning.

A scalar intrinsic is a pure function of 32-bit values (packed vectors such as ``int16x2`` included) or of a pointer. A
tensor intrinsic replaces a small loop nest (its description) by calls of scalar ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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


def _i32(value: int) -> Expr:
    return const(value, "int32")


def _sign16(x: Expr) -> Expr:
    """The low half of ``x`` as a signed number, without overflow: ((x & 0xffff) ^ 0x8000) - 0x8000."""
    return ((x & 0xFFFF) ^ 0x8000) - 0x8000


def _sign8(x: Expr) -> Expr:
    return ((x & 0xFF) ^ 0x80) - 0x80


def _pack16(low: Expr, high: Expr) -> Expr:
    """Two values within int16 as one word."""
    return (low & 0xFFFF) | (high * 65536)


_A, _B, _C = Var("a"), Var("b"), Var("c")


def _bytes(p: Buffer) -> Expr:
    """Four bytes from ``p`` on as a little-endian word."""
    parts = [p[k].astype("int32") & 0xFF for k in range(4)]
    top = _sign8(parts[3])
    return parts[0] | (parts[1] * 256) | (parts[2] * 65536) | (top * 16777216)


def _asm(text: str, inputs: str) -> str:
    return f'int32_t r;\n__asm__("{text}" : "=r"(r) : {inputs});\nreturn r;'


def _load(name: str, dtype: str) -> Intrin:
    pointer = Buffer("p", (4,), dtype)
    body = "int32_t r;\nmemcpy(&r, p, sizeof r);\nreturn r;"
    return Intrin(name, (pointer,), _bytes(pointer), "unaligned", "defined(__ARM_FEATURE_UNALIGNED)", body)


def _store(name: str, dtype: str) -> Intrin:
    """Four bytes of a little-endian word to ``p``."""
    pointer = Buffer("p", (4,), dtype)
    parts = [ir.Store(pointer, (_i32(k),), _low_byte(_A >> (8 * k), dtype)) for k in range(4)]
    body = "memcpy(p, &a, sizeof a);"
    return Intrin(name, (pointer, _A), ir.seq(*parts), "unaligned", "defined(__ARM_FEATURE_UNALIGNED)", body)


def _low_byte(x: Expr, dtype: str) -> Expr:
    return ir.cast(dtype, _sign8(x) if dtype == "int8" else x & 0xFF)


def _load16(name: str) -> Intrin:
    pointer = Buffer("p", (2,), "int16")
    low, high = pointer[0].astype("int32"), pointer[1].astype("int32")
    body = "int32_t r;\nmemcpy(&r, p, sizeof r);\nreturn r;"
    return Intrin(name, (pointer,), _pack16(low, high), "unaligned", "defined(__ARM_FEATURE_UNALIGNED)", body)


_DSP = "defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP"

SCALAR: Mapping[str, Intrin] = MappingProxyType(
    {
        i.name: i
        for i in (
            _load("load_i8x4", "int8"),
            _load("load_u8x4", "uint8"),
            _load16("load_i16x2"),
            _store("store_i8x4", "int8"),
            _store("store_u8x4", "uint8"),
            Intrin(
                "sxtb16", (_A,), _pack16(_sign8(_A), _sign8(_A >> 16)), "dsp", _DSP, _asm("sxtb16 %0, %1", '"r"(a)')
            ),
            Intrin(
                "sxtb16_ror8",
                (_A,),
                _pack16(_sign8(_A >> 8), _sign8(_A >> 24)),
                "dsp",
                _DSP,
                _asm("sxtb16 %0, %1, ror #8", '"r"(a)'),
            ),
            Intrin("uxtb16", (_A,), _A & 0x00FF00FF, "dsp", _DSP, _asm("uxtb16 %0, %1", '"r"(a)')),
            Intrin(
                "uxtb16_ror8",
                (_A,),
                (_A >> 8) & 0x00FF00FF,
                "dsp",
                _DSP,
                _asm("uxtb16 %0, %1, ror #8", '"r"(a)'),
            ),
            Intrin(
                "smlad",
                (_A, _B, _C),
                _C + _sign16(_A) * _sign16(_B) + (_A >> 16) * (_B >> 16),
                "dsp",
                _DSP,
                _asm("smlad %0, %1, %2, %3", '"r"(a), "r"(b), "r"(c)'),
            ),
            Intrin(
                "smmulr",
                (_A, _B),
                ((_A.astype("int64") * _B.astype("int64") + (1 << 31)) >> 32).astype("int32"),
                "dsp",
                _DSP,
                _asm("smmulr %0, %1, %2", '"r"(a), "r"(b)'),
            ),
        )
    }
)


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


def _dot4(a: str, b: str) -> TensorIntrin:
    """Four products of 8-bit values: bytes 0, 2 and 1, 3 pair up alike on both sides, so nothing is repacked."""
    wide = {"int8": ("load_i8x4", "sxtb16", "sxtb16_ror8"), "uint8": ("load_u8x4", "uxtb16", "uxtb16_ror8")}
    (la, ea, oa), (lb, eb, ob) = wide[a], wide[b]
    return TensorIntrin(f"dot4_{a}_{b}", a, b, 4, "dsp", (((la, ea), (lb, eb)), ((la, oa), (lb, ob))))


TENSOR: Mapping[str, TensorIntrin] = MappingProxyType(
    {
        t.name: t
        for t in (
            _dot4("int8", "int8"),
            _dot4("uint8", "int8"),
            TensorIntrin("dot2_int16_int16", "int16", "int16", 2, "dsp", ((("load_i16x2",), ("load_i16x2",)),)),
        )
    }
)
