"""Tensor intrinsics of four products of bytes, or of two or four of 16-bit numbers."""

from __future__ import annotations

from microc.isa.tensor import Part, Step, TensorIntrin

WIDENED = {
    "int8": (("load_i8x4", "evens_i8"), ("load_i8x4", "odds_i8")),
    "uint8": (("load_u8x4", "evens_u8"), ("load_u8x4", "odds_u8")),
}
"""How a word of four bytes becomes the pairs (0, 2) and (1, 3)."""
NATURAL = (0, 1, 2, 3)
CROSSED = (0, 2, 1, 3)
"""Bytes stored in this order come out of ``evens`` and ``odds`` as the pairs (0, 1) and (2, 3)."""
_PAIRS = (Part(0, ("load_i16x2_aligned",), 2), Part(2, ("load_i16x2_aligned",), 2))
_CROSSED_BYTES = tuple(Part(0, names, 4) for names in WIDENED["int8"])
_WORD = Part(0, ("load_i8x4",), 4)


def _halved(a: str) -> TensorIntrin:
    """Four products of 8-bit values: bytes 0, 2 and 1, 3 pair up alike on both sides, so nothing is repacked."""
    steps = tuple(Step(Part(0, x, 4), Part(0, y, 4)) for x, y in zip(WIDENED[a], WIDENED["int8"], strict=True))
    return TensorIntrin(f"dot4_{a}_int8", a, "int8", NATURAL, NATURAL, steps)


def _by_pairs(name: str, order: tuple[int, ...]) -> TensorIntrin:
    steps = tuple(map(Step, _PAIRS, _PAIRS))
    return TensorIntrin(name, "int16", "int16", order, order, steps, aligned_a=True, aligned_b=True)


_NEIGHBOURS = Part(0, ("load_i16x2",), 2)

SUMS = (
    TensorIntrin("dot4_int8_int8_word", "int8", "int8", NATURAL, NATURAL, (Step(_WORD, _WORD, "dot4_i8"),)),
    TensorIntrin(
        "dot4_uint8_int8_word", "uint8", "int8", NATURAL, NATURAL, (Step(Part(0, ("load_u8x4",), 4), _WORD, "dot4_u8"),)
    ),
    _halved("int8"),
    _halved("uint8"),
    TensorIntrin(
        "dot4_int16_crossed_int8",
        "int16",
        "int8",
        NATURAL,
        CROSSED,
        tuple(map(Step, _PAIRS, _CROSSED_BYTES)),
        aligned_a=True,
    ),
    _by_pairs("dot4_int16_int16", NATURAL),
    _by_pairs("dot4_crossed_int16_int16", CROSSED),
    TensorIntrin(
        "dot4_int16_int16_loaded",
        "int16",
        "int16",
        NATURAL,
        NATURAL,
        (Step(_PAIRS[0], Part(0, (), 4), "dot4_i16_aligned", more=_PAIRS[1:]),),
        aligned_a=True,
        aligned_b=True,
    ),
    TensorIntrin("dot2_int16_int16", "int16", "int16", (0, 1), (0, 1), (Step(_NEIGHBOURS, _NEIGHBOURS),)),
)
