"""Decisions of quantisation: ranges of activations, bits by layer names, configuration, recipe, calibrated network."""

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
from microc.errors import UsageError, known_names_hint
from microc.graph.ir import Graph, Node
from microc.quantization import integer_scheme
from microc.quantization.calibration_data import (
    Row,
    Statistics,
    merge_statistics,
    observe_activations,
    table_statistics,
)
from microc.quantization.integer_scheme import (
    WIDE,
    Activation,
    Weight,
    activation_for_range,
    fake_quantise,
    quantise_constant,
    quantise_like,
    quantise_weights,
)
from microc.quantization.network_noise import Reals
from microc.quantization.network_structure import flatten_graph, make_names_distinct
from microc.quantization.quantisation_points import QuantisationPoints, find_quantisation_points
from microc.quantization.repairs import (
    MIN_SAMPLES,
    Attempt,
    Repaired,
    Trial,
    equalise_channels,
    repair_network,
    split_samples,
)
from microc.quantization.write import Recipe
from microc.transform import NORMALISING, canonicalise, scale_axis
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised import legalize
from microc.transform.quantised.qdq import LAYERS
from microc.transform.quantised.qdq_values import CHOICES, moves_elements

# ---- Ranges of activations: estimators, and the choice among them by the error that they cause.
#
# A wide range rounds coarsely, a narrow one saturates. Every estimator proposes a range; each is tried on the drawn elements,
# and the least mean squared error wins. Unseen samples will exceed these elements: the excess is predicted from the extremes of
# each sample and added to the error, so that 16 bits keep headroom. Sources: TensorRT's entropy calibration (Migacz, 2017), "A
# White Paper on Neural Network Quantization" (Nagel et al., 2021) for the search by squared error.

Range = tuple[float, float]
Estimator = Callable[[Statistics, Array, str], Range]
_STRETCHES = np.array([*np.linspace(0.3, 1.0, 15), 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5])
"""Factors of the observed range that ``mse`` tries."""
_TAIL = 0.1
"""Share of the samples, those with the largest extremes, that predict the excess."""
_DECAY = 0.9
"""Weight of the previous average."""
_BINS, _LEVELS = 2048, 128
"""Bins of the histogram of magnitudes, and levels that it is reduced to."""


def minmax(statistics: Statistics, elements: Array, dtype: str) -> Range:
    """Return the observed range."""
    return statistics.low, statistics.high


def moving_average(statistics: Statistics, elements: Array, dtype: str) -> Range:
    """Return minima and maxima of the samples, averaged with exponentially decaying weights."""
    low, high = statistics.lows[0], statistics.highs[0]
    for a, b in zip(statistics.lows, statistics.highs, strict=True):
        low, high = _DECAY * low + (1 - _DECAY) * a, _DECAY * high + (1 - _DECAY) * b
    return low, high


def percentile(statistics: Statistics, elements: Array, dtype: str) -> Range:
    """Return the range of elements without one in ten thousand at either end."""
    low, high = np.quantile(elements, (0.0001, 0.9999))
    return float(low), float(high)


def least_squared_error(statistics: Statistics, elements: Array, dtype: str) -> Range:
    """Return the range with the least expected squared error, found by coordinate descent over both ends.

    Candidates for an end are the observed one times fixed factors above and below 1; each end is chosen twice."""
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    highs, lows = np.unique(high * _STRETCHES), np.unique(low * _STRETCHES)
    for _ in range(2):
        high = min(highs, key=lambda top: _expected_error(statistics, (low, top), elements, dtype))
        low = min(lows, key=lambda bottom: _expected_error(statistics, (bottom, high), elements, dtype))
    return low, high


def entropy(statistics: Statistics, elements: Array, dtype: str) -> Range:
    """Return the range by the threshold at which the histogram of magnitudes loses least information in 128 levels
    (Kullback-Leibler divergence)."""
    top = max(-statistics.low, statistics.high)
    if not top > 0:
        return statistics.low, statistics.high
    counts, edges = np.histogram(np.abs(elements), bins=_BINS, range=(0.0, top))
    best = min(
        range(_LEVELS, _BINS + 1, _LEVELS // 4), key=lambda bins: _histogram_divergence(counts.astype(np.float64), bins)
    )
    threshold = float(edges[best])
    return max(statistics.low, -threshold), min(statistics.high, threshold)


def _histogram_divergence(counts: Array, bins: int) -> float:
    """Return the Kullback-Leibler divergence of the first ``bins`` of a histogram, with the rest added to the last of
    them, from their reduction to 128 levels."""
    clipped = counts[:bins].copy()
    clipped[-1] += counts[bins:].sum()
    owner = np.minimum(np.arange(bins) * _LEVELS // bins, _LEVELS - 1)
    filled = counts[:bins] > 0
    mass = np.bincount(owner, counts[:bins], _LEVELS)
    width = np.bincount(owner, filled, _LEVELS)
    spread = np.where(filled, (mass / np.maximum(width, 1))[owner], 0.0)
    p, q = clipped / clipped.sum(), spread / max(spread.sum(), 1.0)
    both = (p > 0) & (q > 0)
    lost = float(p[(p > 0) & (q == 0)].sum())
    return float((p[both] * np.log(p[both] / q[both])).sum()) + lost * _LEVELS


ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
        "minmax": minmax,
        "percentile": percentile,
        "mse": least_squared_error,
        "entropy": entropy,
        "moving-average": moving_average,
    }
)
AUTO = "auto"
METHODS = (AUTO, *ESTIMATORS)


def choose_storage(
    statistics: Statistics, dtype: str, method: str, power_of_two: bool = False
) -> tuple[Activation, str]:
    """Return the storage of an activation, and the name of the estimator that gave its range (``auto``: the one of least
    squared error)."""
    elements = statistics.elements.astype(np.float64)
    estimators = ESTIMATORS if method == AUTO else {method: ESTIMATORS[method]}
    ranges = {
        name: _clip_to_reach(estimate(statistics, elements, dtype), statistics) for name, estimate in estimators.items()
    }
    best = method
    if len(ranges) > 1:
        best = min(ranges, key=lambda name: _expected_error(statistics, ranges[name], elements, dtype))
    return activation_for_range(*ranges[best], dtype, power_of_two), best


def _clip_to_reach(span: Range, statistics: Statistics) -> Range:
    """Cut off the part of a range that no sample can reach, but nothing that was observed, since floats are rounded."""
    low, high = statistics.reach
    return max(span[0], min(low, statistics.low)), min(span[1], max(high, statistics.high))


def _expected_error(statistics: Statistics, span: Range, elements: Array, dtype: str) -> float:
    """Return the mean squared error of the drawn elements as integers of a range, plus the predicted error of unseen
    samples."""
    how = activation_for_range(*span, dtype)
    first, last = ((end - how.zero_point) * how.scale for end in dtypes.int_range(dtype))
    beyond = expected_excess(np.array(statistics.highs), last) if last < statistics.reach[1] else 0.0
    beyond += expected_excess(-np.array(statistics.lows), -first) if first > statistics.reach[0] else 0.0
    return float(np.mean(np.square(fake_quantise(elements, how) - elements))) + beyond / max(1, statistics.size)


def expected_excess(extremes: Array, end: float) -> float:
    """Return the expected square by which a sample exceeds ``end``, from the extremes of other samples.

    The excess over a threshold is taken as exponentially distributed (peaks over threshold: Pickands, 1975, in its simplest
    case), which covers numbers beyond all observed ones.
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


# ---- Layers by names that users know: the operator's in the model, its result's, or its weight's.

BITS = (8, 4, 2)
"""Bits that weights may have."""
WIDE_BITS, FLOAT_BITS = 16, 32
"""Bits of an operator: 16-bit activations with 8-bit weights; floats."""
WIDTHS = (FLOAT_BITS, WIDE_BITS, *BITS)
ALL = "all"
"""Name that stands for every layer."""


def layer_labels(graph: Graph, weights: Iterable[str]) -> dict[str, str]:
    """Map weights to unique names of their layers."""
    readers = {node.inputs[1]: node for node in reversed(flatten_graph(graph).nodes) if node.op in LAYERS}
    named = {weight: readers[weight].loc.name or readers[weight].outputs[0] for weight in weights}
    found = list(named.values())
    return {weight: name if found.count(name) == 1 else readers[weight].outputs[0] for weight, name in named.items()}


def bits_by_result(graph: Graph, weights: Sequence[str], bits_by_operator: Mapping[str, int]) -> dict[str, int]:
    """Convert bits that a user gives by names of operators to bits by the operators' results.

    Raises UsageError for an operator that does not exist or cannot have so many bits: one without weights can only have
    16."""
    by_name = {name: node for node in reversed(flatten_graph(graph).nodes) for name in _layer_names(node)}
    by_result: dict[str, int] = {}
    for name, bits in validation.as_mapping_by_name("bits", bits_by_operator, _check_bits).items():
        if name not in by_name:
            raise _unknown_layer(name, layer_labels(graph, weights).values())
        node = by_name[name]
        if bits != WIDE_BITS and (node.op not in LAYERS or node.inputs[1] not in weights):
            raise UsageError(
                f"bits: layer {name!r} has no constant weights; got {bits} bits, expected {WIDE_BITS}, for its activations",
                hint=f"leave it out, or give {WIDE_BITS}",
            )
        by_result[node.outputs[0]] = bits
    return by_result


def uniform_bits(graph: Graph, weights: Sequence[str], bits: int) -> dict[str, int]:
    """Return ``bits`` for each of ``weights``, but 8 for those of depthwise and grouped convolutions: kernels store these
    as bytes in any case."""
    nodes = (node for node in flatten_graph(graph).nodes if node.op in LAYERS)
    grouped = {node.inputs[1] for node in nodes if node.attrs.get("groups", 1) != 1}
    return {name: 8 if name in grouped else bits for name in weights}


def bits_by_weight(graph: Graph, result_bits: Mapping[str, int]) -> dict[str, int]:
    """Convert bits by the results of layers, ``result_bits``, to bits by the names of the layers' weights."""
    return {
        node.inputs[1]: result_bits[node.outputs[0]]
        for node in flatten_graph(graph).nodes
        if node.outputs[0] in result_bits and node.op in LAYERS
    }


def stored_weight_bits(operator_bits: Mapping[str, int]) -> dict[str, int]:
    """Map operators' results to the bits in which their weights are stored: those of the operator, but at most 8.

    ``operator_bits``: bits by result, 16 for 16-bit activations and 32 for floats included."""
    return {name: min(bits, BITS[0]) for name, bits in operator_bits.items()}


def results_with_bits(graph: Graph, operator_bits: Mapping[str, int], bits: int) -> frozenset[str]:
    """Return the results of the operators whose bits are ``bits``.

    ``operator_bits``: bits by the operators' results or by the names of their weights."""
    return frozenset(
        node.outputs[0]
        for node in flatten_graph(graph).nodes
        if operator_bits.get(node.outputs[0]) == bits
        or (node.op in LAYERS and operator_bits.get(node.inputs[1]) == bits)
    )


def names_of_readers(graph: Graph, value: str) -> list[str]:
    """Return the names of the operators that must have 16 bits, so that a value is read in 16 bits everywhere.

    These are the operators that read its elements, directly or after moves; the value itself if nothing reads it."""
    flat = flatten_graph(graph)
    users = flat.consumers().get(value, ())
    names_by_reader = [
        names_of_readers(flat, node.outputs[0]) if moves_elements(node) or node.op in CHOICES else [node.outputs[0]]
        for node in users
    ]
    return list(dict.fromkeys(name for names in names_by_reader for name in names)) or [value]


def find_float_results(graph: Graph, operator_names: Iterable[str]) -> frozenset[str]:
    """Return the results of the operators that shall stay in floats. Raises UsageError for an unknown one."""
    results: set[str] = set()
    for name in validation.as_names("float_layers", operator_names):
        values = {node.outputs[0] for node in graph.nodes if name in _layer_names(node)}
        if not values:
            raise _unknown_layer(name, (node.loc.name or node.outputs[0] for node in graph.nodes))
        results |= values
    return frozenset(results)


def find_weight_only_results(graph: Graph, layer_names: Iterable[str]) -> frozenset[str]:
    """Return the results of the float layers whose weights alone shall be integers.

    Raises UsageError for an unknown layer, or one whose kernels cannot dequantise weights: computed ones, and those of grouped
    and transposed convolutions.
    """
    can = [node for node in _layers_with_constant_weights(graph) if _can_dequantise_weights(node)]
    return _select_layers(
        graph, "weight_only", layer_names, can, "the weights of {!r} cannot be opened where they are read",
        "of convolutions of one group and dense layers, constant weights can; leave the others out",
    )  # fmt: skip


def find_dynamic_results(graph: Graph, layer_names: Iterable[str]) -> frozenset[str]:
    """Return the results of the layers that shall quantise their data row by row at run time and have integer weights.

    Raises UsageError for an unknown layer, or one whose weights are computed.
    """
    return _select_layers(
        graph, "dynamic_range", layer_names, _layers_with_constant_weights(graph), "the weights of {!r} are computed",
        "dense layers and convolutions with constant weights have a form of dynamic range; leave the others out",
    )  # fmt: skip


def weights_of_layers(graph: Graph, results: Container[str]) -> frozenset[str]:
    """Return the names of the weights of the layers whose results are ``results``."""
    return frozenset(
        node.inputs[1] for node in flatten_graph(graph).nodes if node.op in LAYERS and node.outputs[0] in results
    )


def all_float_values(graph: Graph, *given: Iterable[str]) -> frozenset[str]:
    """Return all values of the network if one of the lists of layers is ``["all"]``, else none.

    With ``all``, every operator outside of the named layers stays in floats."""
    everything = any(list(names) == [ALL] for names in given)
    return frozenset(flatten_graph(graph).types) if everything else frozenset()


def _select_layers(
    graph: Graph, option_name: str, layer_names: Iterable[str], candidates: Sequence[Node], refusal: str, hint: str
) -> frozenset[str]:
    """Return the results of the named layers, which must be among ``candidates``. Raises UsageError for another one.

    ``option_name``: the option, ``refusal`` and ``hint``: the error for a layer that is no candidate."""
    names = validation.as_names(option_name, layer_names)
    if list(names) == [ALL]:
        return frozenset(node.outputs[0] for node in candidates)
    results: set[str] = set()
    for name in names:
        values = {node.outputs[0] for node in candidates if name in _layer_names(node)}
        if not values and any(name in _layer_names(node) for node in flatten_graph(graph).nodes if node.op in LAYERS):
            raise UsageError(refusal.format(name), hint=hint)
        if not values:
            raise _unknown_layer(name, (node.loc.name or node.outputs[0] for node in candidates))
        results |= values
    return frozenset(results)


def _layers_with_constant_weights(graph: Graph) -> list[Node]:
    flat = flatten_graph(graph)
    return [node for node in flat.nodes if node.op in LAYERS and node.inputs[1] in flat.consts]


def _can_dequantise_weights(node: Node) -> bool:
    """Test whether a layer's kernels can dequantise weights as they read them: dense layers, and convolutions of one
    group."""
    return node.op in ("conv2d", "dense") and node.attrs.get("groups", 1) == 1


def _layer_names(node: Node) -> Iterator[str]:
    """Yield the names by which a user may name an operator: its name in the model, its result, its weight."""
    if node.loc.name:
        yield node.loc.name
    yield node.outputs[0]
    if node.op in LAYERS:
        yield node.inputs[1]


def _check_bits(value_name: str, value: Any) -> int:
    return int(validation.as_known_value(value_name, value, WIDTHS))


def _unknown_layer(name: str, known: Iterable[str]) -> UsageError:
    return UsageError(f"there is no layer {name!r}", hint=known_names_hint(name, known, "layers"))


# ---- Configuration of quantisation, by the network's own names of values.


@frozen
class QuantisationConfig:
    """Configuration of quantisation.

    ``activations``: their dtype. ``weights``: their bits; ``block``: inputs that share a multiplier, for few bits.
    ``power_of_two``: all scales are powers of two. ``ranges``: the estimator. ``floating``: results of operators that
    stay in floats; ``opening``: of float layers on integer weights; ``by_rows``: those of them that quantise their data
    at run time; ``bits``: of some operators, by their results."""

    activations: str = "int8"
    weights: int = 8
    block: int = integer_scheme.NONE
    power_of_two: bool = False
    ranges: str = "auto"
    floating: frozenset[str] = frozenset()
    opening: frozenset[str] = frozenset()
    by_rows: frozenset[str] = frozenset()
    bits: Mapping[str, int] = field(default_factory=dict)

    def find_points(self, graph: Graph, bits: Mapping[str, int]) -> QuantisationPoints:
        """Return the quantisation points if operators, or their weights, have these bits: some are 16-bit, some stay in
        floats."""
        wide_results, float_results = (results_with_bits(graph, bits, width) for width in (WIDE_BITS, FLOAT_BITS))
        return find_quantisation_points(graph, self.floating | float_results, wide_results, self.opening)

    def with_named_bits(self, graph: Graph, bits: Mapping[str, int]) -> QuantisationConfig:
        """Add bits by a user's names of operators.

        Raises UsageError for an unknown operator, impossible bits, or if nothing in the network becomes integers.
        """
        points = self.find_points(graph, {})
        if not points.values and not points.opened:
            raise UsageError(
                f"no operator of {graph.name} can be computed on integers",
                hint="compare its operators with those listed by microc operators",
            )
        by_result = bits_by_result(graph, (*points.weights, *points.opened), bits)
        return replace(self, bits=by_result, floating=self.floating | results_with_bits(graph, by_result, FLOAT_BITS))


# ---- Recipe: storage of every value, of activations by their statistics, of constants by their numbers.


def decide_recipe(
    graph: Graph,
    points: QuantisationPoints,
    statistics_by_value: Mapping[str, Statistics],
    config: QuantisationConfig,
    bits: Mapping[str, int],
) -> Recipe:
    """Decide the storage of all values of a network at its quantisation points. ``bits``: of each weight.

    Activations that share a scale are decided by their common statistics."""
    dtype, method, power_of_two = config.activations, config.ranges, config.power_of_two
    activations: dict[str, Activation] = {}
    narrowed: dict[str, Activation] = {}
    flat = flatten_graph(graph)
    tables = {value: table_statistics(flat.consts[name]) for name, value in points.tables.items()}
    for leader, values in points.groups().items():
        statistics = merge_statistics(
            [all_of[value] for all_of in (statistics_by_value, tables) for value in values if value in all_of]
        )
        statistics = replace(statistics, reach=points.reach.get(leader, statistics.reach))
        wide, storage = values[0] in points.wide, points.known.get(values[0])
        storage_dtype = WIDE if wide else dtype
        # 8-bit inputs keep their dtype, int8 or uint8, whatever the other activations have.
        if storage is None or (storage.dtype == WIDE) != (storage_dtype == WIDE):
            storage = choose_storage(statistics, storage_dtype, method, wide or power_of_two)[0]
        activations |= dict.fromkeys(values, storage)
        if dtype != WIDE and not points.narrowed.isdisjoint(values):
            narrowed |= dict.fromkeys(
                points.narrowed.intersection(values), choose_storage(statistics, dtype, method, power_of_two)[0]
            )
    stored: dict[str, Weight] = {name: quantise_constant(flat.consts[name], power_of_two) for name in points.constants}
    stored |= {name: quantise_like(flat.consts[name], activations[value]) for name, value in points.tables.items()}
    stored |= {
        name: quantise_weights(flat.consts[name], bits[name], power_of_two=power_of_two) for name in points.opened
    }
    opened, by_rows = frozenset(points.opened), weights_of_layers(graph, config.by_rows)
    recipe = Recipe(activations, stored, narrowed, points.widened, config.block, opened, power_of_two, by_rows)
    for node in flat.nodes:
        if node.op in LAYERS and node.inputs[1] in points.weights:
            bias = flat.consts.get(node.inputs[2]) if len(node.inputs) > 2 else None
            data = recipe.read(node)
            name = node.inputs[1]
            reals = flat.consts[name]
            block = integer_scheme.usable_block_size(node, reals, config.block)
            stored[name] = integer_scheme.quantise_in_blocks(reals, bits[name], block, bias, data.scale, power_of_two)
    return recipe


# ---- Preparation of the float graph: constants folded, channels last, norms as operators, SVDF as layers, common
# subexpressions merged, unique names for values in bodies of loops too, means of 8-bit inputs rounded to a byte.

_PASSES = (
    *NORMALISING,
    legalize.SVDF_LAYERS_PASS,
    canonicalise.LAYER_NORM_PASS,
    canonicalise.COMMON_SUBEXPRESSIONS_PASS,
    canonicalise.DEAD_CODE_PASS,
    scale_axis.CENTRE_PASS,
)


def normalise_float_graph(graph: Graph, options: Options) -> Graph:
    """Normalise a float graph without changing its function. Raises UsageError if it is quantised already or has no floats."""
    context = PassContext(options={"requantize": options.requantize, "hybrid": "float", "rounding": options.rounding})
    normalised = run_passes(graph, _PASSES, context)
    used = {name for node in normalised.nodes for name in (*node.inputs, *node.outputs) if name}
    if any(normalised.types[name].quant is not None for name in used):
        raise UsageError(
            f"{graph.name} is quantised already, expected a float network",
            where=graph.name,
            hint="give the float network that it was made from",
        )
    if not any(normalised.types[name].dtype == "float32" for node in normalised.nodes for name in node.outputs):
        raise UsageError(
            f"{graph.name} computes nothing in float32, expected a float network",
            where=graph.name,
            hint="compile it as it is",
        )
    return make_names_distinct(normalised)


# ---- Calibrated network: a float network with statistics of typical inputs, and its quantised forms by bits of weights.


@dataclass(frozen=True)
class CalibratedNetwork:
    """A float network and the statistics of its values on calibration data.

    ``found``: quantisation points; ``seen``: statistics of its values on ``rows``; ``reals``: compiled float networks,
    as in :class:`.network_noise.NetworkPair`; ``plains``: compiled networks without repairs, by bits of weights."""

    graph: Graph
    config: QuantisationConfig
    found: QuantisationPoints
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
        """Bits of weights that are set by hand."""
        return bits_by_weight(self.graph, self.config.bits)

    @cached_property
    def held(self) -> Sequence[Row]:
        """Samples that are held back to judge networks by; all samples if there are too few."""
        return split_samples(self.graph, self.rows, self.seed)[1] or self.rows

    def recipe(self, bits: Mapping[str, int]) -> Recipe:
        """Return the recipe for weights with these bits; others have the default ones."""
        all_bits = self._default_bits | {**self.config.bits, **bits}
        points = self.config.find_points(self.graph, all_bits)
        return decide_recipe(self.graph, points, self.seen, self.config, stored_weight_bits(all_bits))

    def repair(self, bits: Mapping[str, int]) -> Repaired:
        """Return the repaired network for these bits, and the report on repairs."""
        all_bits = stored_weight_bits(self._default_bits | {**self.fixed, **bits})
        return repair_network(self.graph, self.plain(bits), all_bits, self.rows, self.seed, self.reals, self.progress)

    def plain(self, bits: Mapping[str, int]) -> Trial:
        """Return the network for these bits without repairs, compiled once."""
        key = tuple(sorted(bits.items()))
        if key not in self.plains:
            self.plains[key] = Trial(self.graph, Attempt(self.recipe(bits)), self.reals)
        return self.plains[key]

    @cached_property
    def _default_bits(self) -> dict[str, int]:
        """Bits of each weight by the configuration alone, neither set by hand nor searched."""
        return uniform_bits(self.graph, self.stored, self.config.weights)


def calibrate(
    graph: Graph, config: QuantisationConfig, rows: Sequence[Row], seed: int, progress: Progress | None
) -> CalibratedNetwork:
    """Find the quantisation points of a float network, and observe their values on ``rows``."""
    points = config.find_points(graph, config.bits)
    return CalibratedNetwork(
        graph, config, points, rows, observe_activations(graph, points.seen, rows, seed, progress), seed, progress
    )


def equalise_network(network: CalibratedNetwork) -> tuple[CalibratedNetwork, list[dict[str, Any]]]:
    """Equalise the network's channels (:func:`.repairs.equalise_channels`) if that lowers the noise on held-back samples.

    Returns the network and a report as on a repair. With too few samples to judge by, the expected noise decides."""
    better = equalise_channels(network.graph, network.seen, network.config.activations, network.config.weights)
    if better is network.graph:
        return network, []
    equalised_network = calibrate(
        make_names_distinct(better), network.config, network.rows, network.seed, network.progress
    )
    if len(network.rows) < MIN_SAMPLES:
        return equalised_network, []
    before, after = (
        candidate.plain(candidate.fixed).decibels(network.held) for candidate in (network, equalised_network)
    )
    report = {"name": "cross-layer equalisation", "before": before, "after": after, "kept": after > before}
    return (equalised_network if after > before else network), [report]
