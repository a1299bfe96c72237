"""What is decided for every value: ranges, names, configuration."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler import validation
from microc.compiler.interaction import Progress
from microc.compiler.options import Options
from microc.errors import UsageError, suggestion
from microc.graph.ir import Graph, Node
from microc.quantization import integer_scheme
from microc.quantization.calibration_data import Row, Statistics, merged, observe, table_statistics
from microc.quantization.integer_scheme import (
    WIDE,
    Activation,
    Weight,
    activation,
    faked,
    like,
    quantised_constant,
    quantised_weights,
)
from microc.quantization.network_noise import Reals
from microc.quantization.network_structure import distinct, flattened
from microc.quantization.quantisation_points import Places, places
from microc.quantization.repairs import FEWEST, Attempt, Repaired, Trial, equalised, repaired, split
from microc.quantization.write import Recipe
from microc.transform import NORMALISING, canonicalise, scale_axis
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised import legalize
from microc.transform.quantised.qdq import LAYERS
from microc.transform.quantised.qdq_values import CHOICES, moves

# ---- Which reals the integers of an activation span: estimators, and the choice among them by the error that they
# cause.
#
# A wide range rounds coarsely, a narrow one saturates. Every estimator proposes a range; each is tried on the elements that
# were drawn, and the least mean squared error wins. Other samples will exceed what these hold: by how much is told by the
# extremes of each sample, and added to the error, so that 16 bits have room to spare. Sources: TensorRT's entropy calibration
# (Migacz, 2017), "A White Paper on Neural Network Quantization" (Nagel et al., 2021) for the search by squared error.

Range = tuple[float, float]
Estimator = Callable[[Statistics, Array, str], Range]
_STRETCHES = np.array([*np.linspace(0.3, 1.0, 15), 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5])
_TAIL = 0.1
"""Of the samples, those of the largest extremes."""
_DECAY = 0.9
_BINS, _LEVELS = 2048, 128


def minmax(seen: Statistics, elements: Array, dtype: str) -> Range:
    """Everything that was seen."""
    return seen.low, seen.high


def moving_average(seen: Statistics, elements: Array, dtype: str) -> Range:
    """Minima and maxima of the samples, averaged with weights that fall by a tenth."""
    low, high = seen.lows[0], seen.highs[0]
    for a, b in zip(seen.lows, seen.highs, strict=True):
        low, high = _DECAY * low + (1 - _DECAY) * a, _DECAY * high + (1 - _DECAY) * b
    return low, high


def percentile(seen: Statistics, elements: Array, dtype: str) -> Range:
    """All but one element in ten thousand, at either end."""
    low, high = np.quantile(elements, (0.0001, 0.9999))
    return float(low), float(high)


def squared_error(seen: Statistics, elements: Array, dtype: str) -> Range:
    """The least squared error of those that shrink or stretch everything that was seen: either end for itself, then both."""
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    highs, lows = np.unique(high * _STRETCHES), np.unique(low * _STRETCHES)
    for _ in range(2):
        high = min(highs, key=lambda top: _error(seen, (low, top), elements, dtype))
        low = min(lows, key=lambda bottom: _error(seen, (bottom, high), elements, dtype))
    return low, high


def entropy(seen: Statistics, elements: Array, dtype: str) -> Range:
    """The threshold at which the histogram of magnitudes loses least information in 128 levels (Kullback and Leibler's
    divergence)."""
    top = max(-seen.low, seen.high)
    if not top > 0:
        return seen.low, seen.high
    counts, edges = np.histogram(np.abs(elements), bins=_BINS, range=(0.0, top))
    best = min(range(_LEVELS, _BINS + 1, _LEVELS // 4), key=lambda bins: _divergence(counts.astype(np.float64), bins))
    threshold = float(edges[best])
    return max(seen.low, -threshold), min(seen.high, threshold)


def _divergence(counts: Array, bins: int) -> float:
    """Of the first ``bins``, the rest counted at their end, from the same in 128 levels."""
    told = counts[:bins].copy()
    told[-1] += counts[bins:].sum()
    owner = np.minimum(np.arange(bins) * _LEVELS // bins, _LEVELS - 1)
    filled = counts[:bins] > 0
    mass = np.bincount(owner, counts[:bins], _LEVELS)
    width = np.bincount(owner, filled, _LEVELS)
    spread = np.where(filled, (mass / np.maximum(width, 1))[owner], 0.0)
    p, q = told / told.sum(), spread / max(spread.sum(), 1.0)
    known = (p > 0) & (q > 0)
    lost = float(p[(p > 0) & (q == 0)].sum())
    return float((p[known] * np.log(p[known] / q[known])).sum()) + lost * _LEVELS


ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
        "minmax": minmax,
        "percentile": percentile,
        "mse": squared_error,
        "entropy": entropy,
        "moving-average": moving_average,
    }
)
AUTO = "auto"
METHODS = (AUTO, *ESTIMATORS)


def chosen(seen: Statistics, dtype: str, method: str, power_of_two: bool = False) -> tuple[Activation, str]:
    """The quantisation of an activation, and the estimator that gave its range (``auto``: the one of the least squared error)."""
    elements = seen.elements.astype(np.float64)
    tried = ESTIMATORS if method == AUTO else {method: ESTIMATORS[method]}
    found = {name: _reachable(estimate(seen, elements, dtype), seen) for name, estimate in tried.items()}
    best = min(found, key=lambda name: _error(seen, found[name], elements, dtype)) if len(found) > 1 else method
    return activation(*found[best], dtype, power_of_two), best


def _reachable(span: Range, seen: Statistics) -> Range:
    """A range without what no sample reaches; a little more where these did, for floats round."""
    low, high = seen.reach
    return max(span[0], min(low, seen.low)), min(span[1], max(high, seen.high))


def _error(seen: Statistics, span: Range, elements: Array, dtype: str) -> float:
    """The mean squared error of what was drawn, as integers of a range, and of what other samples will hold beyond."""
    how = activation(*span, dtype)
    first, last = ((end - how.zero_point) * how.scale for end in dtypes.int_range(dtype))
    beyond = excess(np.array(seen.highs), last) if last < seen.reach[1] else 0.0
    beyond += excess(-np.array(seen.lows), -first) if first > seen.reach[0] else 0.0
    return float(np.mean(np.square(faked(elements, how) - elements))) + beyond / max(1, seen.size)


def excess(extremes: Array, end: float) -> float:
    """The expected square of what a sample exceeds ``end`` by, from the extremes of others.

    By how much they exceed a threshold is taken to be exponentially distributed (peaks over threshold: Pickands, 1975, in its
    simplest case), which tells about what is beyond all of them, too.
    """
    count = int(len(extremes) * _TAIL) or 1
    if len(extremes) <= count:
        return 0.0
    ordered = np.sort(extremes)
    threshold = ordered[-count - 1]
    mean = float((ordered[-count:] - threshold).mean())
    if not mean > 0:
        return 0.0
    return count / len(extremes) * float(np.exp(-max(end - threshold, 0.0) / mean)) * 2 * mean**2


# ---- Layers by the names that their users know: a model's own name of the operator, its result's, or its weight's.

BITS = (8, 4, 2)
"""Bits that weights may have."""
WIDE_BITS, FLOAT_BITS = 16, 32
"""Of an operator: its activations have 16 bits, its weights 8; it stays in floats."""
WIDTHS = (FLOAT_BITS, WIDE_BITS, *BITS)
ALL = "all"
"""The name of every layer."""


def labels(graph: Graph, weights: Iterable[str]) -> dict[str, str]:
    """Weight -> what its layer is called, one name for each."""
    readers = {node.inputs[1]: node for node in reversed(flattened(graph).nodes) if node.op in LAYERS}
    named = {weight: readers[weight].loc.name or readers[weight].outputs[0] for weight in weights}
    found = list(named.values())
    return {weight: name if found.count(name) == 1 else readers[weight].outputs[0] for weight, name in named.items()}


def widths(graph: Graph, weights: Sequence[str], given: Mapping[str, int]) -> dict[str, int]:
    """Bits by the results of operators, from bits by their names. UsageError for an operator that is not there, or that cannot
    have so many: without weights 16 is all there is."""
    known = {name: node for node in reversed(flattened(graph).nodes) for name in _names(node)}
    found: dict[str, int] = {}
    for name, bits in validation.by_name("bits", given, _bits).items():
        if name not in known:
            raise _unknown(name, labels(graph, weights).values())
        node = known[name]
        if bits != WIDE_BITS and (node.op not in LAYERS or node.inputs[1] not in weights):
            raise UsageError(
                f"{name!r} has no weights that could have {bits} bits", hint=f"{WIDE_BITS}, for its activations"
            )
        found[node.outputs[0]] = bits
    return found


def everywhere(graph: Graph, weights: Sequence[str], bits: int) -> dict[str, int]:
    """``bits`` for each of ``weights``, but 8 in depthwise and grouped convolutions: kernels store these as bytes whatever their
    numbers are, so that fewer bits would save nothing."""
    nodes = (node for node in flattened(graph).nodes if node.op in LAYERS)
    grouped = {node.inputs[1] for node in nodes if node.attrs.get("groups", 1) != 1}
    return {name: 8 if name in grouped else bits for name in weights}


def by_weight(graph: Graph, widths: Mapping[str, int]) -> dict[str, int]:
    """The same by weight, of layers."""
    return {
        node.inputs[1]: widths[node.outputs[0]]
        for node in flattened(graph).nodes
        if node.outputs[0] in widths and node.op in LAYERS
    }


def of_weights(widths: Mapping[str, int]) -> dict[str, int]:
    """The bits of weights that go with widths: of 16 bits and in floats what fits beside int16, 8."""
    return {name: min(bits, BITS[0]) for name, bits in widths.items()}


def of_width(graph: Graph, widths: Mapping[str, int], bits: int) -> frozenset[str]:
    """The results of operators of so many bits, as they or their weights are named."""
    return frozenset(
        node.outputs[0]
        for node in flattened(graph).nodes
        if widths.get(node.outputs[0]) == bits or (node.op in LAYERS and widths.get(node.inputs[1]) == bits)
    )


def readers(graph: Graph, value: str) -> list[str]:
    """What to name so that a value has 16 bits where it is read: the operators that read its elements, or else make it."""
    flat = flattened(graph)
    users = flat.consumers().get(value, ())
    moved = [
        readers(flat, node.outputs[0]) if moves(node) or node.op in CHOICES else [node.outputs[0]] for node in users
    ]
    return list(dict.fromkeys(name for names in moved for name in names)) or [value]


def floating(graph: Graph, given: Iterable[str]) -> frozenset[str]:
    """The results of operators that shall stay in floats. UsageError for one that is not there."""
    found: set[str] = set()
    for name in validation.names("float_layers", given):
        values = {node.outputs[0] for node in graph.nodes if name in _names(node)}
        if not values:
            raise _unknown(name, (node.loc.name or node.outputs[0] for node in graph.nodes))
        found |= values
    return frozenset(found)


def opening(graph: Graph, given: Iterable[str]) -> frozenset[str]:
    """The results of layers on floats whose weights alone shall be integers. UsageError for one that is not there, or whose
    weights kernels cannot open: computed ones, those of grouped and transposed convolutions."""
    can = [node for node in _with_constant_weights(graph) if _opens(node)]
    return _chosen(
        graph, "weight_only", given, can, "the weights of {!r} cannot be opened where they are read",
        "of convolutions of one group and dense layers, constant weights can; leave the others out",
    )  # fmt: skip


def by_rows(graph: Graph, given: Iterable[str]) -> frozenset[str]:
    """The results of layers that shall quantise their data row by row when they are there, and have integer weights. UsageError
    for one that is not there, or whose weights are computed."""
    return _chosen(
        graph, "dynamic_range", given, _with_constant_weights(graph), "the weights of {!r} are computed",
        "dense layers and convolutions with constant weights have a form of dynamic range; leave the others out",
    )  # fmt: skip


def weights_of(graph: Graph, results: Container[str]) -> frozenset[str]:
    """What the layers of these results multiply by."""
    return frozenset(
        node.inputs[1] for node in flattened(graph).nodes if node.op in LAYERS and node.outputs[0] in results
    )


def all_floating(graph: Graph, *given: Iterable[str]) -> frozenset[str]:
    """All values where one of these speaks of all layers: what else there is stays in floats."""
    everything = any(list(names) == [ALL] for names in given)
    return frozenset(flattened(graph).types) if everything else frozenset()


def _chosen(
    graph: Graph, what: str, given: Iterable[str], can: Sequence[Node], refusal: str, hint: str
) -> frozenset[str]:
    """The results of those layers of ``can`` that are named. UsageError for another one."""
    named = validation.names(what, given)
    if list(named) == [ALL]:
        return frozenset(node.outputs[0] for node in can)
    found: set[str] = set()
    for name in named:
        values = {node.outputs[0] for node in can if name in _names(node)}
        if not values and any(name in _names(node) for node in flattened(graph).nodes if node.op in LAYERS):
            raise UsageError(refusal.format(name), hint=hint)
        if not values:
            raise _unknown(name, (node.loc.name or node.outputs[0] for node in can))
        found |= values
    return frozenset(found)


def _with_constant_weights(graph: Graph) -> list[Node]:
    flat = flattened(graph)
    return [node for node in flat.nodes if node.op in LAYERS and node.inputs[1] in flat.consts]


def _opens(node: Node) -> bool:
    return node.op in ("conv2d", "dense") and node.attrs.get("groups", 1) == 1


def _names(node: Node) -> Iterator[str]:
    if node.loc.name:
        yield node.loc.name
    yield node.outputs[0]
    if node.op in LAYERS:
        yield node.inputs[1]


def _bits(what: str, value: Any) -> int:
    return int(validation.choice(what, value, WIDTHS))


def _unknown(name: str, known: Iterable[str]) -> UsageError:
    return UsageError(f"there is no layer {name!r}", hint=suggestion(name, known, "layers"))


# ---- What a network's integers shall be like, by the names that the network has for its values.


@frozen
class Config:
    """``activations``: their dtype. ``weights``: their bits; ``block``: of few bits, how many inputs share a multiplier.
    ``power_of_two``: all scales are. ``ranges``: the estimator. ``floating``: results of operators that stay in floats;
    ``opening``: of layers in floats on integer weights; ``by_rows``: those of them that quantise their data when they are there;
    ``bits``: of some operators, by their results (:mod:`microc.quantization.decisions`)."""

    activations: str = "int8"
    weights: int = 8
    block: int = integer_scheme.NONE
    power_of_two: bool = False
    ranges: str = "auto"
    floating: frozenset[str] = frozenset()
    opening: frozenset[str] = frozenset()
    by_rows: frozenset[str] = frozenset()
    bits: Mapping[str, int] = field(default_factory=dict)

    def placed(self, graph: Graph, bits: Mapping[str, int]) -> Places:
        """Where a network becomes integers whose operators, or their weights, have these bits: some are wide, some in floats."""
        wide, real = (of_width(graph, bits, width) for width in (WIDE_BITS, FLOAT_BITS))
        return places(graph, self.floating | real, wide, self.opening)

    def named(self, graph: Graph, bits: Mapping[str, int]) -> Config:
        """With the bits that a user names operators with. UsageError where one is not there or cannot have them, and where
        nothing of the network becomes integers."""
        found = self.placed(graph, {})
        if not found.values and not found.opened:
            raise UsageError(f"no operator of {graph.name} has an integer form", hint="microc operators lists them")
        named = widths(graph, (*found.weights, *found.opened), bits)
        return replace(self, bits=named, floating=self.floating | of_width(graph, named, FLOAT_BITS))


# ---- How every value of a network is stored: activations by what was seen of them, constants by what they are.


def decided(
    graph: Graph, found: Places, seen: Mapping[str, Statistics], config: Config, bits: Mapping[str, int]
) -> Recipe:
    """The recipe for places of a network; activations that share a scale by what all of them hold. ``bits``: of each weight."""
    dtype, method, power_of_two = config.activations, config.ranges, config.power_of_two
    how: dict[str, Activation] = {}
    narrowed: dict[str, Activation] = {}
    flat = flattened(graph)
    tables = {value: table_statistics(flat.consts[name]) for name, value in found.tables.items()}
    for leader, values in found.groups().items():
        held = merged([all_of[value] for all_of in (seen, tables) for value in values if value in all_of])
        held = replace(held, reach=found.reach.get(leader, held.reach))
        wide, known = values[0] in found.wide, found.known.get(values[0])
        into = WIDE if wide else dtype
        if known is None or (known.dtype == WIDE) != (into == WIDE):  # raw bytes keep the dtype that they come in
            known = chosen(held, into, method, wide or power_of_two)[0]
        how |= dict.fromkeys(values, known)
        if dtype != WIDE and not found.narrowed.isdisjoint(values):
            narrowed |= dict.fromkeys(found.narrowed.intersection(values), chosen(held, dtype, method, power_of_two)[0])
    stored: dict[str, Weight] = {name: quantised_constant(flat.consts[name], power_of_two) for name in found.constants}
    stored |= {name: like(flat.consts[name], how[value]) for name, value in found.tables.items()}
    stored |= {
        name: quantised_weights(flat.consts[name], bits[name], power_of_two=power_of_two) for name in found.opened
    }
    opened, by_rows = frozenset(found.opened), weights_of(graph, config.by_rows)
    recipe = Recipe(how, stored, narrowed, found.widened, config.block, opened, power_of_two, by_rows)
    for node in flat.nodes:
        if node.op in LAYERS and node.inputs[1] in found.weights:
            bias = flat.consts.get(node.inputs[2]) if len(node.inputs) > 2 else None
            data = recipe.read(node)
            name = node.inputs[1]
            reals = flat.consts[name]
            own = integer_scheme.block_of(node, reals, config.block)
            stored[name] = integer_scheme.quantised_in_blocks(reals, bits[name], own, bias, data.scale, power_of_two)
    return recipe


# ---- The float graph as it is quantised: constants folded, channels last, norms as operators, SVDF as layers,
# everything computed once, a name for each value, those in bodies of loops too; means of raw bytes are a byte.

_PASSES = (
    *NORMALISING,
    legalize.SVDF_LAYERS_PASS,
    canonicalise.LAYER_NORM_PASS,
    canonicalise.COMMON_SUBEXPRESSIONS_PASS,
    canonicalise.DEAD_CODE_PASS,
    scale_axis.CENTRED,
)


def prepared(graph: Graph, options: Options) -> Graph:
    """The float graph, which computes what the given one does. UsageError where it is on integers already."""
    context = PassContext(options={"requantize": options.requantize, "hybrid": "float", "rounding": options.rounding})
    made = run_passes(graph, _PASSES, context)
    if any(made.types[name].quant is not None for node in made.nodes for name in (*node.inputs, *node.outputs) if name):
        raise UsageError(
            f"{graph.name} is quantised already", where=graph.name, hint="give the float network that it was made from"
        )
    if not any(made.types[name].dtype == "float32" for node in made.nodes for name in node.outputs):
        raise UsageError(
            f"{graph.name} computes nothing in float32", where=graph.name, hint="there is nothing to quantise"
        )
    return distinct(made)


# ---- A float network in which typical inputs were observed: what it becomes with weights of some bits.


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
        return by_weight(self.graph, self.config.bits)

    @cached_property
    def held(self) -> Sequence[Row]:
        """Rows that nothing is made from, to judge by; all where they are too few."""
        return split(self.graph, self.rows, self.seed)[1] or self.rows

    def recipe(self, bits: Mapping[str, int]) -> Recipe:
        """How everything is stored where these weights have such bits, all others the usual ones."""
        every = self._usual | {**self.config.bits, **bits}
        found = self.config.placed(self.graph, every)
        return decided(self.graph, found, self.seen, self.config, of_weights(every))

    def repaired(self, bits: Mapping[str, int]) -> Repaired:
        """The network of that recipe, repaired, and the report on repairs."""
        every = of_weights(self._usual | {**self.fixed, **bits})
        return repaired(self.graph, self.plain(bits), every, self.rows, self.seed, self.reals, self.progress)

    def plain(self, bits: Mapping[str, int]) -> Trial:
        """The network of that recipe as it is, compiled once."""
        key = tuple(sorted(bits.items()))
        if key not in self.plains:
            self.plains[key] = Trial(self.graph, Attempt(self.recipe(bits)), self.reals)
        return self.plains[key]

    @cached_property
    def _usual(self) -> dict[str, int]:
        return everywhere(self.graph, self.stored, self.config.weights)


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
