"""Which cores an operator's ways to compute are for, and what products are filled up to on them. When a way is valid says its
operator (``OpDef.algorithms``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microc.isa import word_product
from microc.ops.multiples import Multiples
from microc.target import Target


class Cores(NamedTuple):
    """Those that have all features of ``needs`` and none of ``lacks``, with which there is something better. ``over``: ways that
    cannot win there where this one is valid, so that they need not be lowered."""

    needs: frozenset[str]
    lacks: frozenset[str] = frozenset()
    over: frozenset[str] = frozenset()


FAST_MATH = "fast_math"
"""Not of the core, but of what the user asked for: infinities and NaN may spread."""
HALF_WEIGHTS = "half_weights"
"""The same: floats are stored in 16 bits that hold them, whatever the goal."""
HALF_MATH = "half_math"
"""The same: products of floats are summed in float16, on cores that have the feature :data:`HALF_FLOATS`."""
HALF_FLOATS = "half_floats"
THREADS = "threads"
"""Likewise: large loops are split among several threads, so that they should divide."""
ALGORITHMS = {
    "winograd": Cores(frozenset({"pairs"}), frozenset({"lanes"})),
    "winograd_floats": Cores(frozenset({"fma", FAST_MATH}), frozenset({"lanes", HALF_WEIGHTS})),
    "winograd_four": Cores(frozenset({"fma", "vectors", FAST_MATH}), frozenset({"lanes", HALF_WEIGHTS})),
    "half": Cores(frozenset({HALF_FLOATS, HALF_MATH}), over=frozenset({"direct", "opened"})),
    "even": Cores(frozenset({"pairs"}), frozenset({"lanes"})),
    "pairs": Cores(frozenset({"one_product"})),
    "quads": Cores(frozenset({"one_product"}), frozenset({"unsigned_bytes"})),
    "widened": Cores(frozenset({"one_product", "unsigned_bytes"})),
    "single": Cores(frozenset(), frozenset({"vectors"})),
    "packed": Cores(frozenset(), frozenset({"pairs"})),
    "packed_halves": Cores(frozenset({"pairs"}), frozenset({"lanes"})),
    "packed_vectors": Cores(frozenset({"lanes"})),
    "unsigned": Cores(frozenset({"unsigned_bytes"})),
    "unsigned_rows": Cores(frozenset({"dot4_u8_i32x4"}), over=frozenset({"direct"})),
    "windows": Cores(frozenset({"vectors"}), over=frozenset({"direct"})),
    "unsigned_windows": Cores(frozenset({"dot4_u8_i32x4"}), over=frozenset({"direct", "windows", "unsigned_rows"})),
}
"""By value of the attribute ``algorithm``; all others are for every core."""
NARROW = ("int8", "uint8", "int16", "uint16")
"""Data that words and vectors widen when they multiply it by bytes."""


def suits_core(algorithm: str, target: Target) -> bool:
    """Whether an algorithm is worth comparing on a core."""
    needs, lacks, _ = ALGORITHMS.get(algorithm, Cores(frozenset()))
    return needs <= target.features and not lacks & target.features


def unbeaten(algorithms: Sequence[str]) -> tuple[str, ...]:
    """Those of an application's algorithms that one is chosen from."""
    beaten = {name for each in algorithms if each in ALGORITHMS for name in ALGORITHMS[each].over}
    return tuple(name for name in algorithms if name not in beaten)


def multiples_of(target: Target) -> Multiples:
    """What products come in on a core. Vectors of any length take as many columns as there are, masked lanes as many terms."""
    lanes, pairs, vectors = (target.has(feature) for feature in ("lanes", "pairs", "vectors"))
    widened = {(a, "int8") for a in NARROW if pairs or vectors or word_product(a, "int8", target.cpu)}
    words = {("int16", "int16")} if pairs and not lanes else set()
    columns = target.core.lanes if vectors and not target.has("scalable") else ()
    return Multiples(frozenset(widened | words), lanes, columns)
