"""What is searched when bits are, and what of it was tried: networks, what they cost and how good they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.quantization.cost import cost
from microc.quantization.limits import Limits
from microc.quantization.observe import Row
from microc.quantization.repairs import Repaired, Widths
from microc.quantization.score import Score
from microc.quantization.write import Recipe, quantised

Bits = tuple[int, ...]


@dataclass
class Task:
    """``weights``: whose bits are searched by ``rows``, of which those ``held`` back judge, but those that are ``fixed``.
    ``decide``: the recipe for bits of weights, ``repair``: the network of it as it is in the end; ``score`` of a network, larger
    is better, if there is one. The rest is what was tried."""

    graph: Graph
    weights: Sequence[str]
    rows: Sequence[Row]
    held: Sequence[Row]
    limits: Limits
    activations: str
    decide: Callable[[Widths], Recipe]
    repair: Callable[[Widths], Repaired]
    fixed: Widths
    seed: int
    score: Score | None = None
    repaired: dict[Bits, Repaired] = field(default_factory=dict)
    decibels: dict[Bits, float] = field(default_factory=dict)
    scores: dict[Bits, float] = field(default_factory=dict)
    costs: dict[tuple[Bits, bool], dict[str, Any]] = field(default_factory=dict)
    float_score: float | None = None

    def widths(self, bits: Bits) -> dict[str, int]:
        """By weight."""
        return dict(zip(self.weights, bits, strict=True))

    def everywhere(self, bits: int) -> Recipe:
        """The recipe of a network that has these bits throughout."""
        return self.decide(dict.fromkeys(self.weights, bits))

    def made(self, bits: Bits) -> Repaired:
        """The network of a choice."""
        if bits not in self.repaired:
            self.repaired[bits] = self.repair(self.widths(bits))
        return self.repaired[bits]

    def cost(self, bits: Bits) -> dict[str, Any]:
        """What a choice really costs on the board, repaired if it was."""
        key = bits, bits in self.repaired
        if key not in self.costs:
            known = key[1]
            graph = (
                self.made(bits)[0].written.graph
                if known
                else quantised(self.graph, self.decide(self.widths(bits))).graph
            )
            self.costs[key] = cost(graph, self.limits.board)
        return self.costs[key]

    def over(self, bits: Bits) -> tuple[int, int]:
        """By how many bytes and cycles a choice is above the limits."""
        found, limits = self.cost(bits), self.limits
        return _over(found["flash"], limits.flash), _over(found["estimated_cycles"], limits.cycles)

    def measured(self, bits: Bits) -> float:
        """The ratio of signal to noise of a choice, in decibels."""
        if bits not in self.decibels:
            self.decibels[bits] = self.made(bits)[0].decibels(self.held)
        return self.decibels[bits]

    def drop(self, bits: Bits) -> float:
        """What a choice loses of the score."""
        if self.score is None:
            raise UsageError(
                "without labels there is no accuracy that could drop",
                hint="name them (--labels), give evaluate a function that says how good a network is, or limit flash",
            )
        if self.float_score is None:
            self.float_score = self.score(self.graph)
        if bits not in self.scores:
            self.scores[bits] = self.score(self.made(bits)[0].written.graph)
        return self.float_score - self.scores[bits]


def _over(amount: int, limit: int | None) -> int:
    return 0 if limit is None else max(0, amount - limit)
