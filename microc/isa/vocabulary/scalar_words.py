# SPDX-License-Identifier: Apache-2.0
"""Intrinsics on 32-bit words: arithmetic, memory accesses, packed int16 pairs and bytes, sums of four products."""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.instruction_set import (
    ANY,
    A,
    B,
    C,
    Intrin,
    IntrinsicStep,
    StepOperand,
    TensorIntrin,
    int32_constant,
    pack_halves,
    sign_extend_8,
    sign_extend_16,
)
from microc.isa.instruction_set import SUMS as INSTRUCTION_SET_SUMS
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var
from microc.tir.names import SATURATED, SHIFTED_SATURATIONS, SUFFIXES

# ---- Single numbers: high halves of products, saturation, floats to integers
#
# ``high_mul_round(a, b)`` is (a b + 2**31) >> 32, ``high_product`` the high half that is rounded down; ``high_mac_round`` and
# ``high_mac`` add them. ``saturate_<t>`` clamps to the dtype, ``saturate_<t>_shr_<n>`` after a right shift by n; ``clamp8`` is
# the same as ``saturate_i8``, for values most of which are in range. ``hold`` keeps a constant in a register, since
# instructions that shift an operand take it from there. ``swap_bytes`` swaps the bytes of each half. ``float16_low`` and
# ``float16_high`` widen a half of a word of two, reinterpreted as a float. ``high_mul(x, m)``: round(x m / 2**31), ties
# upwards, for |x| < 2**30 and m >= 0; ``product_2_31(x, m)``: the same rounded down; ``product_2_30(x, m)``: floor(x m / 2**30)
# for |x| <= 2**20: for cores that multiply 32 by 32 bits to 32, on which 64-bit products are library calls.
#
# With x = 2**15 h + l and m = 2**16 u + v, where 0 <= l < 2**15, 0 <= v < 2**16 and 0 <= u < 2**15,
#
#     x m / 2**16  =  2**15 h u + l u + (h v + l v / 2**15) / 2,
#
# and every division by a power of two may round down, since an integer is added outside of it. For |x| < 2**30 each
# product and each sum fits 32 signed bits: l u < 2**30, l v < 2**31, |h v + 2**16| <= 2**31 - 1, and the half of that plus l u
# plus 2**14 stays below 2**31.
#
# For |x| <= 2**20 there are fewer: m in thirds, m = 2**20 a + 2**10 b + c with a < 2**11 and b, c < 2**10, gives
#
#     floor(x m / 2**20)  =  x a + floor((x b + floor(x c / 2**10)) / 2**10),
#
# where |x c| < 2**30, |x b| + 2**20 <= 2**30, and the sum is x m / 2**20 rounded down, within 32 signed bits.

_F, _X, _M = Var("x", "float32"), Var("x"), Var("m")
_END = float(1 << 31)
_H, _L = _X >> 15, _X & 0x7FFF
_U, _V = _M >> 16, _M & 0xFFFF
_MANTISSA = ("m", 0, (1 << 31) - 1)
_SCALARS_HALVES = (("x", -(1 << 30), (1 << 30) - 1), _MANTISSA)
_WIDE = A.astype("int64") * B.astype("int64")
_TOP = _H * _U
_REST = _L * _U + ((_H * _V + ((_L * _V) >> 15)) >> 1)
"""Fraction of x m / 2**31, which equals ``_TOP`` + ``_REST`` / 2**15."""
_ROUNDED = (_WIDE >> 32).astype("int32") + ((_WIDE >> 31) & 1).astype("int32")
"""High half of a product, rounded half up: the highest bit of the low half is added, which cannot carry further."""
_NEAREST = ir.select(
    _F < _END,
    ir.select(_F >= -_END, ir.cast("int32", ir.call("rint", _F)), ir.const(-(1 << 31), "int32")),
    ir.select(_F >= _END, int32_constant((1 << 31) - 1), 0),
)
"""Conversion to int32 that rounds half to even and saturates. NaN becomes 0, because both comparisons are false for
it."""


def _build_saturation_intrinsics() -> Iterator[Intrin]:
    """Yield the intrinsics that clamp a number to the range of a dtype, without and with a right shift before it."""
    for name, (low, high) in SATURATED.items():
        yield Intrin(name, (A,), ir.clamp(A, low, high))
    for name, (saturation, distance) in SHIFTED_SATURATIONS.items():
        yield Intrin(name, (A,), ir.clamp(A >> distance, *SATURATED[saturation]))


_BITS = ir.reinterpret("int32", _F)
_PAIRS_OF_BYTES, _EVEN_BYTES = A.astype("uint32"), ir.const(0xFF00FF, "uint32")


def _float16_bits_to_float32(bits: ir.Expr) -> ir.Expr:
    """Build the conversion of a float16, given as an integer with its bits, to float32."""
    return ir.cast("float32", ir.reinterpret("float16", ir.cast("uint16", bits)))


SCALARS = (
    *_build_saturation_intrinsics(),
    Intrin("clamp8", (A,), ir.clamp(A, -128, 127)),
    Intrin("nearest_i32", (_F,), _NEAREST),
    Intrin("hold", (A,), A),
    Intrin(
        "swap_bytes",
        (A,),
        ((_PAIRS_OF_BYTES >> 8 & _EVEN_BYTES) | (_PAIRS_OF_BYTES & _EVEN_BYTES) << 8).astype("int32"),
    ),
    Intrin("float16_low", (_F,), _float16_bits_to_float32(_BITS & 0xFFFF)),
    Intrin("float16_high", (_F,), _float16_bits_to_float32(_BITS >> 16 & 0xFFFF)),
    Intrin("mul_i8", (A, B), A * B, limits=(("a", -128, 127), ("b", -128, 127))),
    Intrin("mul_i8_u8", (A, B), A * B, limits=(("a", -128, 127), ("b", 0, 255))),
    Intrin("high_mul_round", (A, B), _ROUNDED),
    Intrin("high_product", (A, B), (_WIDE >> 32).astype("int32")),
    Intrin("high_mac", (A, B, C), C + (_WIDE >> 32).astype("int32"), limits=INSTRUCTION_SET_SUMS),
    Intrin("high_mac_round", (A, B, C), C + _ROUNDED, limits=INSTRUCTION_SET_SUMS),
    Intrin("high_mul", (_X, _M), _TOP + ((_REST + (1 << 14)) >> 15), limits=_SCALARS_HALVES),
    Intrin("product_2_31", (_X, _M), _TOP + (_REST >> 15), limits=_SCALARS_HALVES),
    Intrin(
        "product_2_30",
        (_X, _M),
        (_X * (_M >> 20) + ((_X * (_M >> 10 & 1023) + ((_X * (_M & 1023)) >> 10)) >> 10)) >> 10,
        limits=(("x", -(1 << 20), 1 << 20), _MANTISSA),
    ),
)


# ---- Memory: loads and stores of words, copies and fills of runs
#
# ``load_i8x4`` loads four bytes as a little-endian word, ``store_i16x2`` stores two 16-bit numbers; ``_aligned``: at a multiple
# of four bytes. ``move_<t>`` and ``copy_<t>`` copy ``n`` elements from ``q`` to ``p`` from the first to the last, so that memory
# may move down over itself; ``fill_<t>`` stores one number. ``move`` is by words if both addresses allow it, ``copy`` by vectors.
# ``copy_strided_<t>`` gathers elements at a distance of ``step``.

MOVED = {"int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16"}
FARTHEST = ((1 << 16) - 1) // 7
"""Largest step of a strided copy: the element offsets of eight elements must fit 16 bits."""


def _load_four_bytes(p: Buffer) -> Expr:
    """Build the expression that loads the four bytes at ``p`` as a little-endian word."""
    parts = [p[k].astype("int32") & 0xFF for k in range(4)]
    top = sign_extend_8(parts[3])
    return parts[0] | (parts[1] * 256) | (parts[2] * 65536) | (top * 16777216)


def _convert_low_byte(x: Expr, dtype: str) -> Expr:
    """Build the conversion of the low byte of a word to the byte dtype ``dtype``."""
    return ir.cast(dtype, sign_extend_8(x) if dtype == "int8" else x & 0xFF)


def _build_word_access_intrinsics() -> Iterator[Intrin]:
    """Yield the intrinsics that load and store a word of four bytes or of two 16-bit numbers."""
    for dtype in ("int8", "uint8"):
        p = Buffer("p", (4,), dtype)
        stored = (ir.Store(p, (int32_constant(k),), _convert_low_byte(A >> (8 * k), dtype)) for k in range(4))
        yield Intrin(f"load_{MOVED[dtype]}x4", (p,), _load_four_bytes(p))
        yield Intrin(f"store_{MOVED[dtype]}x4", (p, A), ir.seq(*stored))
    for suffix in ("", "_aligned"):
        p = Buffer("p", (2,), "int16")
        stored = (ir.Store(p, (int32_constant(k),), sign_extend_16(A >> (16 * k)).astype("int16")) for k in range(2))
        yield Intrin(f"load_i16x2{suffix}", (p,), pack_halves(p[0].astype("int32"), p[1].astype("int32")))
        yield Intrin(f"store_i16x2{suffix}", (p, A), ir.seq(*stored))


def _build_copy_and_fill_intrinsics() -> Iterator[Intrin]:
    """Yield the intrinsics that copy or fill contiguous memory, or copy elements at a constant distance."""
    k, n, value, step = Var("k"), Var("n"), Var("value"), Var("step")
    for dtype, short in SUFFIXES.items():
        p, q = Buffer("p", (ANY,), dtype), Buffer("q", (ANY,), dtype)
        copy = ir.For(k, n, ir.Store(p, (k,), q[k]))
        if dtype in MOVED:
            yield Intrin(f"move_{short}", (p, q, n), copy)
            strided = ir.For(k, n, ir.Store(p, (k,), q[k * step]))
            yield Intrin(f"copy_strided_{short}", (p, q, n, step), strided, limits=(("step", 1, FARTHEST),))
        yield Intrin(f"copy_{short}", (p, q, n), copy)
        if dtype != "float32":  # one number is an integer in a core register
            yield Intrin(f"fill_{short}", (p, value, n), ir.For(k, n, ir.Store(p, (k,), ir.cast(dtype, value))))


WORDS = (*_build_word_access_intrinsics(), *_build_copy_and_fill_intrinsics())


# ---- Lanes of a 32-bit word: pairs of 16-bit numbers, four bytes
#
# ``dot2(a, b, c)`` adds both products of two pairs, ``mac_low_high`` that of one half each; ``dot4_<s>(a, b, c)`` adds the
# products of four bytes, of ``a`` unsigned in ``dot4_u8``, of ``b`` signed; ``dot4_i16_aligned(p, a, b, c)`` those of four 16-bit
# numbers in memory, at a multiple of four bytes, by the pairs ``a`` and ``b``. ``evens`` and ``odds`` widen bytes 0 and 2, or 1
# and 3, to a pair, ``widen`` four bytes to four numbers in memory. ``add_i16x2``, ``max_u8x4`` and their like work lane by
# lane.

_Z = Var("z")
_PAIRS_HALVES = {"low": (sign_extend_16(A), sign_extend_16(B)), "high": (A >> 16, B >> 16)}
_PRODUCTS = tuple(a * b for a, b in _PAIRS_HALVES.values())
_FOUR = Buffer("p", (4,), "int16")


def _build_byte_widening_intrinsic(name: str, signed: bool, subtracts_z: bool = False) -> Intrin:
    """Build the intrinsic that widens the four bytes of a word to four int16 in memory, in the same order.

    The address ``p`` is a multiple of four bytes. If ``subtracts_z``, the number that is in both halves of the word
    ``z`` is subtracted from each byte."""
    pointer = Buffer("p", (4,), "int16")

    def widened_byte(byte_index: int) -> Expr:
        part = A >> (8 * byte_index)
        value = sign_extend_8(part) if signed else part & 0xFF
        return ir.cast("int16", value - sign_extend_16(_Z) if subtracts_z else value)

    stores = (ir.Store(pointer, (int32_constant(k),), widened_byte(k)) for k in range(4))
    return Intrin(name, (pointer, A, *((_Z,) if subtracts_z else ())), ir.seq(*stores))


def _build_lane_min_or_max_intrinsic(name: str, lanes: int, *, signed: bool, minimum: bool) -> Intrin:
    """Build the intrinsic of the lane-wise maximum of two words of ``lanes`` lanes, or of their lane-wise minimum if
    ``minimum``."""
    bits = 32 // lanes
    mask, sign = (1 << bits) - 1, 1 << (bits - 1)

    def lane_value(word: Expr, lane_index: int) -> Expr:
        part = (word >> (bits * lane_index)) & mask
        return (part ^ sign) - sign if signed else part

    total: Expr = int32_constant(0)
    for k in range(lanes):
        extreme: Expr = ir.binary("min" if minimum else "max", lane_value(A, k), lane_value(B, k))
        # The highest lane is signed, so that its product by a power of two does not overflow.
        extreme = extreme if k < lanes - 1 or signed else (extreme ^ sign) - sign
        total = total | ((extreme & mask) * (1 << (bits * k)) if k < lanes - 1 else extreme * (1 << (bits * k)))
    return Intrin(name, (A, B), total)


def _build_byte_widening_intrinsics() -> Iterator[Intrin]:
    """Yield the intrinsics that widen bytes to int16: all four bytes of a word to memory, or two of them to a
    word."""
    for short, signed in (("i8", True), ("u8", False)):
        yield _build_byte_widening_intrinsic(f"widen_{short}x4", signed)
        yield _build_byte_widening_intrinsic(f"widen_less_{short}x4", signed, subtracts_z=True)
        for name, first in (("evens", 0), ("odds", 8)):
            word = A >> first if first else A
            pair = pack_halves(sign_extend_8(word), sign_extend_8(A >> (first + 16))) if signed else word & 0x00FF00FF
            yield Intrin(f"{name}_{short}", (A,), pair)


def _add_products_to_c(*products: Expr) -> Expr:
    """Build the sum of the intrinsic's parameter ``c`` and 32-bit products, modulo 2**32."""
    return sum((product.astype("int64") for product in products), C.astype("int64")).astype("int32")


def _add_four_byte_products_to_c(a_is_signed: bool) -> Expr:
    """Build the sum of ``c`` and the products of the four bytes of ``a`` and ``b``. The bytes of ``b`` are signed;
    the bytes of ``a`` are signed if ``a_is_signed``."""
    parts = (
        (sign_extend_8(A >> k) if a_is_signed else (A >> k) & 0xFF) * sign_extend_8(B >> k) for k in (0, 8, 16, 24)
    )
    return C + sum(parts, int32_constant(0))


PAIRS = (
    *(
        _build_lane_min_or_max_intrinsic(
            f"{name}_{letter}{bits}x{32 // bits}", 32 // bits, signed=letter == "i", minimum=name == "min"
        )
        for name in ("max", "min")
        for letter, bits in (("i", 8), ("u", 8), ("i", 16))
    ),
    Intrin(
        "add_i16x2", (A, B), pack_halves(sign_extend_16(A) + sign_extend_16(B), sign_extend_16((A >> 16) + (B >> 16)))
    ),
    Intrin(
        "sub_i16x2", (A, B), pack_halves(sign_extend_16(A) - sign_extend_16(B), sign_extend_16((A >> 16) - (B >> 16)))
    ),
    *_build_byte_widening_intrinsics(),
    Intrin("dot2", (A, B, C), C + _PRODUCTS[0] + _PRODUCTS[1], limits=INSTRUCTION_SET_SUMS),
    Intrin("dot2_wrapping", (A, B, C), _add_products_to_c(*_PRODUCTS)),
    Intrin(
        "dot4_i16_aligned",
        (_FOUR, A, B, C),
        _add_products_to_c(
            *(
                ir.Load(_FOUR, (int32_constant(k),)).astype("int32") * half
                for k, half in enumerate((sign_extend_16(A), A >> 16, sign_extend_16(B), B >> 16))
            )
        ),
    ),
    *(
        Intrin(
            f"mac_{left}_{right}",
            (A, B, C),
            C + _PAIRS_HALVES[left][0] * _PAIRS_HALVES[right][1],
            limits=INSTRUCTION_SET_SUMS,
        )
        for left in _PAIRS_HALVES
        for right in _PAIRS_HALVES
    ),
    Intrin("dot4_i8", (A, B, C), _add_four_byte_products_to_c(a_is_signed=True), limits=INSTRUCTION_SET_SUMS),
    Intrin("dot4_u8", (A, B, C), _add_four_byte_products_to_c(a_is_signed=False), limits=INSTRUCTION_SET_SUMS),
)


# ---- Tensor intrinsics of four products of bytes, or of two or four of 16-bit numbers

WIDENED = {
    "int8": (("load_i8x4", "evens_i8"), ("load_i8x4", "odds_i8")),
    "uint8": (("load_u8x4", "evens_u8"), ("load_u8x4", "odds_u8")),
}
"""Names of intrinsics that load a word of four bytes and widen it to two int16 pairs: bytes (0, 2), and bytes (1,
3)."""
NATURAL = (0, 1, 2, 3)
"""Order of elements in a word: the order of memory."""
CROSSED = (0, 2, 1, 3)
"""Order of bytes for which the intrinsics ``evens`` and ``odds`` yield the pairs (0, 1) and (2, 3)."""
_PAIRS = (StepOperand(0, ("load_i16x2_aligned",), 2), StepOperand(2, ("load_i16x2_aligned",), 2))
_CROSSED_BYTES = tuple(StepOperand(0, names, 4) for names in WIDENED["int8"])
_WORD = StepOperand(0, ("load_i8x4",), 4)


def _build_dot4_bytes_intrinsic(a_dtype: str) -> TensorIntrin:
    """Build the tensor intrinsic that multiplies four bytes of dtype ``a_dtype`` by four int8. Both operands are
    widened to the pairs (0, 2) and (1, 3), so that neither operand has to be repacked."""
    steps = tuple(
        IntrinsicStep(StepOperand(0, x, 4), StepOperand(0, y, 4))
        for x, y in zip(WIDENED[a_dtype], WIDENED["int8"], strict=True)
    )
    return TensorIntrin(f"dot4_{a_dtype}_int8", a_dtype, "int8", NATURAL, NATURAL, steps)


def _build_dot4_int16_intrinsic(name: str, element_order: tuple[int, ...]) -> TensorIntrin:
    """Build the tensor intrinsic that multiplies four int16 by four int16. Both operands are stored in
    ``element_order``."""
    steps = tuple(map(IntrinsicStep, _PAIRS, _PAIRS))
    return TensorIntrin(name, "int16", "int16", element_order, element_order, steps, aligned_a=True, aligned_b=True)


_NEIGHBOURS = StepOperand(0, ("load_i16x2",), 2)

SUMS = (
    TensorIntrin("dot4_int8_int8_word", "int8", "int8", NATURAL, NATURAL, (IntrinsicStep(_WORD, _WORD, "dot4_i8"),)),
    TensorIntrin(
        "dot4_uint8_int8_word",
        "uint8",
        "int8",
        NATURAL,
        NATURAL,
        (IntrinsicStep(StepOperand(0, ("load_u8x4",), 4), _WORD, "dot4_u8"),),
    ),
    _build_dot4_bytes_intrinsic("int8"),
    _build_dot4_bytes_intrinsic("uint8"),
    TensorIntrin(
        "dot4_int16_crossed_int8",
        "int16",
        "int8",
        NATURAL,
        CROSSED,
        tuple(map(IntrinsicStep, _PAIRS, _CROSSED_BYTES)),
        aligned_a=True,
    ),
    _build_dot4_int16_intrinsic("dot4_int16_int16", NATURAL),
    _build_dot4_int16_intrinsic("dot4_crossed_int16_int16", CROSSED),
    TensorIntrin(
        "dot4_int16_int16_loaded",
        "int16",
        "int16",
        NATURAL,
        NATURAL,
        (IntrinsicStep(_PAIRS[0], StepOperand(0, (), 4), "dot4_i16_aligned", more_left_operands=_PAIRS[1:]),),
        aligned_a=True,
        aligned_b=True,
    ),
    TensorIntrin("dot2_int16_int16", "int16", "int16", (0, 1), (0, 1), (IntrinsicStep(_NEIGHBOURS, _NEIGHBOURS),)),
)
