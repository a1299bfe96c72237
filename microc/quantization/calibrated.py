"""A float network in which typical inputs were observed: what it becomes with weights of some bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from microc.driver.progress import Progress
from microc.graph.ir import Graph
from microc.quantization import by_hand
from microc.quantization.config import Config
from microc.quantization.decide import decided
from microc.quantization.equalise import equalised
from microc.quantization.found import Places
from microc.quantization.loops import distinct
from microc.quantization.observe import Row, Statistics, observe
from microc.quantization.pair import Reals
from microc.quantization.repairs import FEWEST, Attempt, Repaired, Trial, repaired, split
from microc.quantization.write import Recipe


@dataclass(frozen=True)
class Calibrated:
    """``found``: where the network becomes integers; ``seen``: statistics of its values on ``rows``; ``reals``: as in
    :class:`.Pair`; ``plains``: by the bits of weights, what was compiled and not repaired."""

    graph: Graph
    config: Config
    found: Places
    rows: Sequence[Row]
    seen: Mapping[str, Statistics]
    seed: int
    progress: Progress | None = None
    reals: Reals = field(default_factory=dict, compare=False)
    plains: dict[tuple[tuple[str, int], ...], Trial] = field(default_factory=dict, compare=False)

    @property
    def stored(self) -> tuple[str, ...]:
        """Weights of layers that become integers."""
        return (*self.found.weights, *self.found.opened)

    @cached_property
    def fixed(self) -> Mapping[str, int]:
        """The bits of weights that are chosen by hand."""
        return by_hand.by_weight(self.graph, self.config.bits)

    @cached_property
    def held(self) -> Sequence[Row]:
        """Rows that nothing is made from, to judge by; all where they are too few."""
        return split(self.graph, self.rows, self.seed)[1] or self.rows

    def recipe(self, bits: Mapping[str, int]) -> Recipe:
        """How everything is stored where these weights have such bits, all others the usual ones."""
        every = self._usual | {**self.config.bits, **bits}
        found = self.config.placed(self.graph, every)
        return decided(self.graph, found, self.seen, self.config, by_hand.of_weights(every))

    def repaired(self, bits: Mapping[str, int]) -> Repaired:
        """The network of that recipe, repaired, and the report on repairs."""
        every = by_hand.of_weights(self._usual | {**self.fixed, **bits})
        return repaired(self.graph, self.plain(bits), every, self.rows, self.seed, self.reals, self.progress)

    def plain(self, bits: Mapping[str, int]) -> Trial:
        """The network of that recipe as it is, compiled once."""
        key = tuple(sorted(bits.items()))
        if key not in self.plains:
            self.plains[key] = Trial(self.graph, Attempt(self.recipe(bits)), self.reals)
        return self.plains[key]

    @cached_property
    def _usual(self) -> dict[str, int]:
        return by_hand.everywhere(self.graph, self.stored, self.config.weights)


def calibrated(graph: Graph, config: Config, rows: Sequence[Row], seed: int, progress: Progress | None) -> Calibrated:
    """The network runs on ``rows``, and all its values are looked at."""
    found = config.placed(graph, config.bits)
    return Calibrated(graph, config, found, rows, observe(graph, found.seen, rows, seed, progress), seed, progress)


def in_better_units(network: Calibrated) -> tuple[Calibrated, list[dict[str, Any]]]:
    """The network with its channels equalised (:mod:`.equalise`) where that lowers the noise on samples that were held back,
    and the report on it, as on a repair. Too few samples to judge by leave it to what is expected."""
    better = equalised(network.graph, network.seen, network.config.activations, network.config.weights)
    if better is network.graph:
        return network, []
    found = calibrated(distinct(better), network.config, network.rows, network.seed, network.progress)
    if len(network.rows) < FEWEST:
        return found, []
    before, after = (each.plain(each.fixed).decibels(network.held) for each in (network, found))
    told = {"name": "cross-layer equalisation", "before": before, "after": after, "kept": after > before}
    return (found if after > before else network), [told]
