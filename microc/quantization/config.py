"""What a network's integers shall be like, by the names that the network has for its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from microc.errors import UsageError
from microc.frozen import frozen
from microc.graph.ir import Graph
from microc.quantization import blocks, by_hand
from microc.quantization.found import Places
from microc.quantization.places import places


@frozen
class Config:
    """``activations``: their dtype. ``weights``: their bits; ``block``: of few bits, how many inputs share a multiplier.
    ``power_of_two``: all scales are. ``ranges``: the estimator. ``floating``: results of operators that stay in floats;
    ``opening``: of layers in floats on integer weights; ``by_rows``: those of them that quantise their data when they are there;
    ``bits``: of some operators, by their results (:mod:`microc.quantization.by_hand`)."""

    activations: str = "int8"
    weights: int = 8
    block: int = blocks.NONE
    power_of_two: bool = False
    ranges: str = "auto"
    floating: frozenset[str] = frozenset()
    opening: frozenset[str] = frozenset()
    by_rows: frozenset[str] = frozenset()
    bits: Mapping[str, int] = field(default_factory=dict)

    def placed(self, graph: Graph, bits: Mapping[str, int]) -> Places:
        """Where a network becomes integers whose operators, or their weights, have these bits: some are wide, some in floats."""
        wide, real = (by_hand.of_width(graph, bits, width) for width in (by_hand.WIDE_BITS, by_hand.FLOAT_BITS))
        return places(graph, self.floating | real, wide, self.opening)

    def named(self, graph: Graph, bits: Mapping[str, int]) -> Config:
        """With the bits that a user names operators with. UsageError where one is not there or cannot have them, and where
        nothing of the network becomes integers."""
        found = self.placed(graph, {})
        if not found.values and not found.opened:
            raise UsageError(f"no operator of {graph.name} has an integer form", hint="microc operators lists them")
        named = by_hand.widths(graph, (*found.weights, *found.opened), bits)
        return replace(self, bits=named, floating=self.floating | by_hand.of_width(graph, named, by_hand.FLOAT_BITS))
