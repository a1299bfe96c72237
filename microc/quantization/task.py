"""What is searched when bits are, and what of it was tried: networks, what they cost and how good they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from microc.errors import UsageError
from microc.quantization.calibrated import Calibrated
from microc.quantization.cost import cost
from microc.quantization.limits import Limits
from microc.quantization.repairs import Repaired
from microc.quantization.score import Score
from microc.quantization.write import Recipe, quantised

Bits = tuple[int, ...]
T = TypeVar("T")


@dataclass
class Task:
    """Bits of a ``network``'s weights under ``limits``; ``score`` of a network, larger is better, if there is one. The rest is
    what was tried."""

    network: Calibrated
    limits: Limits
    score: Score | None = None
    made_of: dict[Bits, Repaired] = field(default_factory=dict)
    decibels: dict[Bits, float] = field(default_factory=dict)
    scores: dict[Bits, float] = field(default_factory=dict)
    costs: dict[tuple[Bits, bool], dict[str, Any]] = field(default_factory=dict)
    float_score: float | None = None

    @cached_property
    def weights(self) -> list[str]:
        """Whose bits are searched, or fixed by hand."""
        return [name for name in self.network.found.weights if name in self.network.graph.consts]

    def widths(self, bits: Bits) -> dict[str, int]:
        """By weight."""
        return dict(zip(self.weights, bits, strict=True))

    def everywhere(self, bits: int) -> Recipe:
        """The recipe of a network that has these bits throughout."""
        return self.network.recipe(dict.fromkeys(self.weights, bits))

    def made(self, bits: Bits) -> Repaired:
        """The network of a choice."""
        if bits not in self.made_of:
            self.made_of[bits] = replace(self.network, progress=None).repaired(self.widths(bits))
        return self.made_of[bits]

    def cost(self, bits: Bits) -> dict[str, Any]:
        """What a choice really costs on the board, repaired if it was."""
        key = bits, bits in self.made_of
        if key not in self.costs:
            known = key[1]
            graph = (
                self.made(bits)[0].written.graph
                if known
                else quantised(self.network.graph, self.network.recipe(self.widths(bits))).graph
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
            self.decibels[bits] = self.made(bits)[0].decibels(self.network.held)
        return self.decibels[bits]

    def drop(self, bits: Bits) -> float:
        """What a choice loses of the score."""
        if self.score is None:
            raise UsageError(
                "without labels there is no accuracy that could drop",
                hint="name them (--labels), give evaluate a function that says how good a network is, or limit flash",
            )
        if self.float_score is None:
            self.float_score = self.score(self.network.graph)
        if bits not in self.scores:
            self.scores[bits] = self.score(self.made(bits)[0].written.graph)
        return self.float_score - self.scores[bits]

    def keeps_score(self, bits: Bits) -> bool:
        """Whether a choice loses no more of the score than is allowed, but for how scores and their difference are rounded:
        0.95 - 0.94 is a point."""
        most, lost = self.limits.max_drop, self.drop(bits)
        assert most is not None and self.float_score is not None
        rounding = 2 * sys.float_info.epsilon * max(abs(self.float_score), abs(self.scores[bits]))
        return lost <= most + rounding

    def in_turn(self, what: str, steps: Sequence[T]) -> Iterator[T]:
        """Steps of the search, each told of when it begins."""
        for number, step in enumerate(steps):
            self.tell(what, number, len(steps))
            yield step
        self.tell(what, len(steps), len(steps))

    def tell(self, what: str, done: int, steps: int) -> None:
        """How far the search is: what is ``done`` of so many steps, at most, each of which takes long."""
        if self.network.progress is not None:
            self.network.progress(f"search: {what}", done, steps + 1)


def _over(amount: int, limit: int | None) -> int:
    return 0 if limit is None else max(0, amount - limit)
