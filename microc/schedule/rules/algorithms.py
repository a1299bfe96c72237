"""Which cores an operator's ways to compute are for. When one is valid says its operator (``OpDef.algorithms``)."""

from __future__ import annotations

from typing import NamedTuple

from microc.target import Target


class Cores(NamedTuple):
    """Those that have all features of ``needs`` and none of ``lacks``, with which there is something better."""

    needs: frozenset[str]
    lacks: frozenset[str] = frozenset()


ALGORITHMS = {
    "winograd": Cores(frozenset({"pairs"}), frozenset({"lanes"})),
    "even": Cores(frozenset({"pairs"}), frozenset({"lanes"})),
    "pairs": Cores(frozenset({"one_product"})),
    "quads": Cores(frozenset({"one_product"}), frozenset({"unsigned_bytes"})),
    "widened": Cores(frozenset({"one_product", "unsigned_bytes"})),
    "packed": Cores(frozenset(), frozenset({"pairs"})),
    "packed_halves": Cores(frozenset({"pairs"}), frozenset({"lanes"})),
    "packed_vectors": Cores(frozenset({"lanes"})),
    "unsigned": Cores(frozenset({"unsigned_bytes"})),
    "unsigned_rows": Cores(frozenset({"dot4_u8_i32x4"})),
}
"""By value of the attribute ``algorithm``; all others are for every core."""


def suits_core(algorithm: str, target: Target) -> bool:
    """Whether an algorithm is worth comparing on a core."""
    needs, lacks = ALGORITHMS.get(algorithm, Cores(frozenset()))
    return needs <= target.features and not lacks & target.features
