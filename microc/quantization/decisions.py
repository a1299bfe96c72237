# SPDX-License-Identifier: Apache-2.0
"""Decide how a network is quantised: ranges of activations, bits of layers, and the storage (recipe) of all values."""

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
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.quantization import integer_scheme
from microc.quantization.calibration_data import (
    Row,
    Statistics,
    merge_statistics,
    observe_activations,
    statistics_of_table,
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
from microc.quantization.network_noise import FloatLibraries
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
from microc.transform.quantised.qdq_values import CHOICES, only_moves_elements

# ---- Ranges of activations: estimators of ranges, and the choice among the estimated ranges by the error that they cause.
#
# With a wide range numbers are rounded coarsely; with a narrow range they saturate. Every estimator proposes a range. Each range
# is tried on the elements drawn from the samples, and the range with the least mean squared error is chosen. Other samples will
# exceed the drawn elements: this excess is predicted from the extremes of each sample and added to the error, so that a range for
# 16 bits has headroom. Sources: TensorRT's entropy calibration (Migacz, 2017), and "A White Paper on Neural Network Quantization"
# (Nagel et al., 2021) for the search by squared error.

Range = tuple[float, float]
Estimator = Callable[[Statistics, Array, str], Range]
_RANGE_FACTORS = np.array([*np.linspace(0.3, 1.0, 15), 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5])
"""Factors by which the estimator ``mse`` multiplies the ends of the observed range, to try them."""
_TAIL_SHARE = 0.1
"""Fraction of the samples from which the excess over a range is predicted. They are the samples with the largest
extremes."""
_AVERAGE_DECAY = 0.9
"""Weight of the previous average in a moving average."""
_HISTOGRAM_BINS, _HISTOGRAM_LEVELS = 2048, 128
"""Number of bins of the histogram of magnitudes, and number of quantisation levels to which the histogram is
reduced."""


def estimate_range_by_minmax(statistics: Statistics, elements: Array, dtype: str) -> Range:
    """Return the range from the smallest to the largest observed element."""
    return statistics.low, statistics.high


def estimate_range_by_moving_average(statistics: Statistics, elements: Array, dtype: str) -> Range:
    """Return the exponential moving averages, over the samples, of each sample's minimum and maximum."""
    low, high = statistics.sample_minima[0], statistics.sample_maxima[0]
    for a, b in zip(statistics.sample_minima, statistics.sample_maxima, strict=True):
        low, high = _AVERAGE_DECAY * low + (1 - _AVERAGE_DECAY) * a, _AVERAGE_DECAY * high + (1 - _AVERAGE_DECAY) * b
    return low, high


def estimate_range_by_percentile(statistics: Statistics, elements: Array, dtype: str) -> Range:
    """Return the range that excludes the smallest and the largest ten-thousandth of the elements."""
    low, high = np.quantile(elements, (0.0001, 0.9999))
    return float(low), float(high)


def estimate_range_by_squared_error(statistics: Statistics, elements: Array, dtype: str) -> Range:
    """Return the range with the least expected squared error, found by coordinate descent over both ends of the range.

    Candidates for an end are the observed end multiplied by fixed factors above and below 1. Each end is chosen
    twice."""
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    highs, lows = np.unique(high * _RANGE_FACTORS), np.unique(low * _RANGE_FACTORS)
    for _ in range(2):
        high = min(highs, key=lambda top: _expected_squared_error(statistics, (low, top), elements, dtype))
        low = min(lows, key=lambda bottom: _expected_squared_error(statistics, (bottom, high), elements, dtype))
    return low, high


def estimate_range_by_entropy(statistics: Statistics, elements: Array, dtype: str) -> Range:
    """Return the observed range clipped at the threshold with the least loss of information.

    The loss is the Kullback-Leibler divergence between the histogram of magnitudes up to the threshold and its
    reduction to 128 levels, as in TensorRT's entropy calibration."""
    top = max(-statistics.low, statistics.high)
    if not top > 0:
        return statistics.low, statistics.high
    counts, edges = np.histogram(np.abs(elements), bins=_HISTOGRAM_BINS, range=(0.0, top))
    best = min(
        range(_HISTOGRAM_LEVELS, _HISTOGRAM_BINS + 1, _HISTOGRAM_LEVELS // 4),
        key=lambda bins: _histogram_divergence(counts.astype(np.float64), bins),
    )
    threshold = float(edges[best])
    return max(statistics.low, -threshold), min(statistics.high, threshold)


def _histogram_divergence(counts: Array, bins: int) -> float:
    """Return the Kullback-Leibler divergence between a clipped histogram and its reduction to 128 levels.

    The clipped histogram has the first ``bins`` bins; the counts of all further bins are added to the last of these."""
    clipped = counts[:bins].copy()
    clipped[-1] += counts[bins:].sum()
    owner = np.minimum(np.arange(bins) * _HISTOGRAM_LEVELS // bins, _HISTOGRAM_LEVELS - 1)
    filled = counts[:bins] > 0
    mass = np.bincount(owner, counts[:bins], _HISTOGRAM_LEVELS)
    width = np.bincount(owner, filled, _HISTOGRAM_LEVELS)
    spread = np.where(filled, (mass / np.maximum(width, 1))[owner], 0.0)
    p, q = clipped / clipped.sum(), spread / max(spread.sum(), 1.0)
    both = (p > 0) & (q > 0)
    lost = float(p[(p > 0) & (q == 0)].sum())
    return float((p[both] * np.log(p[both] / q[both])).sum()) + lost * _HISTOGRAM_LEVELS


ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
        "minmax": estimate_range_by_minmax,
        "percentile": estimate_range_by_percentile,
        "mse": estimate_range_by_squared_error,
        "entropy": estimate_range_by_entropy,
        "moving-average": estimate_range_by_moving_average,
    }
)
AUTO = "auto"
METHODS = (AUTO, *ESTIMATORS)


def choose_storage(
    statistics: Statistics, dtype: str, method: str, power_of_two: bool = False
) -> tuple[Activation, str]:
    """Return the dtype and quantisation of an activation, and the name of the estimator that determined its range.

    ``method``: the name of an estimator, or ``auto`` for the estimator whose range has the least expected squared
    error. ``power_of_two``: True if the scale must be a power of two."""
    elements = statistics.elements.astype(np.float64)
    estimators = ESTIMATORS if method == AUTO else {method: ESTIMATORS[method]}
    ranges = {
        name: _clip_to_certain_bounds(estimate(statistics, elements, dtype), statistics)
        for name, estimate in estimators.items()
    }
    best = method
    if len(ranges) > 1:
        best = min(ranges, key=lambda name: _expected_squared_error(statistics, ranges[name], elements, dtype))
    return activation_for_range(*ranges[best], dtype, power_of_two), best


def _clip_to_certain_bounds(range_: Range, statistics: Statistics) -> Range:
    """Return a range without its part beyond the bounds that hold for any sample (``statistics.certain_bounds``).

    Observed elements always stay inside: they may exceed the bounds by the rounding of floats."""
    low, high = statistics.certain_bounds
    return max(range_[0], min(low, statistics.low)), min(range_[1], max(high, statistics.high))


def _expected_squared_error(statistics: Statistics, range_: Range, elements: Array, dtype: str) -> float:
    """Return the expected mean squared error if an activation is quantised with the range ``range_``.

    It is the error on the drawn elements, plus the predicted error of other samples that exceed the range."""
    how = activation_for_range(*range_, dtype)
    first, last = ((end - how.zero_point) * how.scale for end in dtypes.int_range(dtype))
    beyond = (
        expected_squared_excess(np.array(statistics.sample_maxima), last)
        if last < statistics.certain_bounds[1]
        else 0.0
    )
    beyond += (
        expected_squared_excess(-np.array(statistics.sample_minima), -first)
        if first > statistics.certain_bounds[0]
        else 0.0
    )
    return float(np.mean(np.square(fake_quantise(elements, how) - elements))) + beyond / max(
        1, statistics.elements_per_sample
    )


def expected_squared_excess(extremes: Array, range_end: float) -> float:
    """Return the expected square of the amount by which a new sample exceeds ``range_end``, the end of a range.

    ``extremes``: the largest element of each observed sample. The excess over a threshold is assumed to be
    exponentially distributed (peaks over threshold: Pickands, 1975, in its simplest case). This also predicts numbers
    beyond all observed ones."""
    count = int(len(extremes) * _TAIL_SHARE) or 1
    if len(extremes) <= count:
        return 0.0
    ordered = np.sort(extremes)
    threshold = ordered[-count - 1]
    mean = float((ordered[-count:] - threshold).mean())
    if not mean > 0:
        return 0.0
    return count / len(extremes) * float(np.exp(-max(range_end - threshold, 0.0) / mean)) * 2 * mean**2


# ---- Layers by the names that users know: the name of the operator in the model, of its result, or of its weights.

BITS = (8, 4, 2)
"""Numbers of bits that integer weights may have."""
WIDE_BITS, FLOAT_BITS = 16, 32
"""Numbers of bits that select how an operator is computed: 16 for 16-bit activations with 8-bit weights, 32 for
floats."""
WIDTHS = (FLOAT_BITS, WIDE_BITS, *BITS)
ALL = "all"
"""Name that users write to select every layer."""


def unique_names_of_layers(graph: Graph, weights: Iterable[str]) -> dict[str, str]:
    """Map the name of each of ``weights`` to a name for its layer that no other layer has, for reports and errors."""
    readers = {node.inputs[1]: node for node in reversed(flatten_graph(graph).nodes) if registry.is_layer(node)}
    named = {weight: readers[weight].loc.name or readers[weight].outputs[0] for weight in weights}
    found = list(named.values())
    return {weight: name if found.count(name) == 1 else readers[weight].outputs[0] for weight, name in named.items()}


def bits_by_result(graph: Graph, weights: Sequence[str], bits_by_operator: Mapping[str, int]) -> dict[str, int]:
    """Convert a user's numbers of bits by names of operators to numbers of bits by the names of the operators' results.

    ``weights``: names of the weights that become integers. UsageError for an operator that does not exist, or that
    cannot have this number of bits: an operator without such weights can only have 16."""
    by_name = {name: node for node in reversed(flatten_graph(graph).nodes) for name in _possible_names_of_layer(node)}
    by_result: dict[str, int] = {}
    for name, bits in validation.as_mapping_by_name("bits", bits_by_operator, _check_bits_of_value).items():
        if name not in by_name:
            raise _unknown_layer_error(name, unique_names_of_layers(graph, weights).values())
        node = by_name[name]
        if bits != WIDE_BITS and (not registry.is_layer(node) or node.inputs[1] not in weights):
            raise UsageError(
                f"bits: layer {name!r} has no constant weights; got {bits} bits, expected {WIDE_BITS}, for its activations",
                hint=f"leave it out, or give {WIDE_BITS}",
            )
        by_result[node.outputs[0]] = bits
    return by_result


def uniform_bits(graph: Graph, weights: Sequence[str], bits: int) -> dict[str, int]:
    """Return the number of bits for each of ``weights``, if all layers shall have ``bits``.

    The weights of depthwise and grouped convolutions have 8 bits, because kernels store them as bytes in any case."""
    nodes = (node for node in flatten_graph(graph).nodes if registry.is_layer(node))
    grouped = {node.inputs[1] for node in nodes if node.attrs.get("groups", 1) != 1}
    return {name: 8 if name in grouped else bits for name in weights}


def bits_by_weight(graph: Graph, result_bits: Mapping[str, int]) -> dict[str, int]:
    """Convert numbers of bits by the names of layers' results to numbers of bits by the names of the layers'
    weights."""
    return {
        node.inputs[1]: result_bits[node.outputs[0]]
        for node in flatten_graph(graph).nodes
        if node.outputs[0] in result_bits and registry.is_layer(node)
    }


def stored_weight_bits(operator_bits: Mapping[str, int]) -> dict[str, int]:
    """Convert numbers of bits of operators to numbers of bits in which their weights are stored: at most 8.

    ``operator_bits``: number of bits by name of a result or of weights; 16 means 16-bit activations, 32 means
    floats."""
    return {name: min(bits, BITS[0]) for name, bits in operator_bits.items()}


def results_with_bits(graph: Graph, operator_bits: Mapping[str, int], bits: int) -> frozenset[str]:
    """Return the names of the results of all operators for which ``operator_bits`` contains the number ``bits``.

    ``operator_bits``: number of bits by name of an operator's result or weights."""
    return frozenset(
        node.outputs[0]
        for node in flatten_graph(graph).nodes
        if operator_bits.get(node.outputs[0]) == bits
        or (registry.is_layer(node) and operator_bits.get(node.inputs[1]) == bits)
    )


def names_of_operators_that_read(graph: Graph, value: str) -> list[str]:
    """Return the names of the operators to which a user must assign 16 bits so that a value is stored in 16 bits.

    They are the results of all operators that read the value's elements, directly or after operators that only move
    elements. If nothing reads the value, it is the value's own name."""
    flat = flatten_graph(graph)
    users = flat.consumers().get(value, ())
    names_by_reader = [
        names_of_operators_that_read(flat, node.outputs[0])
        if only_moves_elements(node) or node.op in CHOICES
        else [node.outputs[0]]
        for node in users
    ]
    return list(dict.fromkeys(name for names in names_by_reader for name in names)) or [value]


def find_float_results(graph: Graph, operator_names: Iterable[str]) -> frozenset[str]:
    """Return the names of the results of the operators that shall be computed in floats.

    ``operator_names``: names that the user listed. UsageError for the name of an unknown operator."""
    results: set[str] = set()
    for name in validation.as_names("float_layers", operator_names):
        values = {node.outputs[0] for node in graph.nodes if name in _possible_names_of_layer(node)}
        if not values:
            raise _unknown_layer_error(name, (node.loc.name or node.outputs[0] for node in graph.nodes))
        results |= values
    return frozenset(results)


def find_weight_only_results(graph: Graph, layer_names: Iterable[str]) -> frozenset[str]:
    """Return the names of the results of those float layers whose weights alone are to become integers.

    ``layer_names``: names that the user listed. UsageError for an unknown layer, or for a layer whose kernels cannot
    dequantise weights. Computed weights, and those of grouped and transposed convolutions, cannot be dequantised."""
    types = flatten_graph(graph).types
    candidates = [node for node in _layers_with_constant_weights(graph) if _can_dequantise_weights(node, types)]
    return _select_layers(
        graph, "weight_only", layer_names, candidates, "weight_only: kernels of layer {!r} cannot dequantise its weights",
        "name dense layers and convolutions of one group with constant weights; leave out other layers",
    )  # fmt: skip


def find_dynamic_results(graph: Graph, layer_names: Iterable[str]) -> frozenset[str]:
    """Return the names of the results of the dynamic-range layers that a user listed.

    Such a layer has integer weights, and at run time quantises its data with a scale for each row. UsageError for an
    unknown layer, or for a layer whose weights are computed."""
    return _select_layers(
        graph, "dynamic_range", layer_names, _layers_with_constant_weights(graph),
        "dynamic_range: the weights of layer {!r} are computed, expected constant weights",
        "name dense layers and convolutions with constant weights; leave out other layers",
    )  # fmt: skip


def weights_of_layers(graph: Graph, results: Container[str]) -> frozenset[str]:
    """Return the names of the weights of all layers whose results are in ``results``."""
    return frozenset(
        node.inputs[1] for node in flatten_graph(graph).nodes if registry.is_layer(node) and node.outputs[0] in results
    )


def all_values_if_all_layers_listed(graph: Graph, *layer_lists: Iterable[str]) -> frozenset[str]:
    """Return the names of all values of a network if one of the user's lists of layers is ``["all"]``; else an empty
    set.

    The result is the set of values that stay floats: ``["all"]`` selects all layers that can have integer weights, and
    all other operators are then computed in floats."""
    everything = any(list(names) == [ALL] for names in layer_lists)
    return frozenset(flatten_graph(graph).types) if everything else frozenset()


def _select_layers(
    graph: Graph, option_name: str, layer_names: Iterable[str], candidates: Sequence[Node], refusal: str, hint: str
) -> frozenset[str]:
    """Return the names of the results of the layers that a user listed; of all ``candidates`` if the list is
    ``["all"]``.

    UsageError for a layer that is not among ``candidates``, or if there are none. ``option_name``: name of the option
    that contains the list. ``refusal`` and ``hint``: text and hint of the error for a layer that exists and is no
    candidate."""
    names = validation.as_names(option_name, layer_names)
    if list(names) == [ALL]:
        if not candidates:
            raise UsageError(f"{option_name}: 'all' selects no layer of {graph.name}", hint=hint)
        return frozenset(node.outputs[0] for node in candidates)
    results: set[str] = set()
    for name in names:
        values = {node.outputs[0] for node in candidates if name in _possible_names_of_layer(node)}
        if not values and any(
            name in _possible_names_of_layer(node) for node in flatten_graph(graph).nodes if registry.is_layer(node)
        ):
            raise UsageError(refusal.format(name), hint=hint)
        if not values:
            raise _unknown_layer_error(name, (node.loc.name or node.outputs[0] for node in candidates))
        results |= values
    return frozenset(results)


def _layers_with_constant_weights(graph: Graph) -> list[Node]:
    flat = flatten_graph(graph)
    return [node for node in flat.nodes if registry.is_layer(node) and node.inputs[1] in flat.consts]


def _can_dequantise_weights(node: Node, types: Mapping[str, TensorType]) -> bool:
    """Test whether kernels can dequantise a layer's weights while they read them.

    They can for dense layers and for convolutions of one group."""
    product = registry.product_of(node, types)
    return product is not None and product.mixes_channels


def _possible_names_of_layer(node: Node) -> Iterator[str]:
    """Yield the names that a user may write for an operator: its name in the model, that of its result, that of its
    weights."""
    if node.loc.name:
        yield node.loc.name
    yield node.outputs[0]
    if registry.is_layer(node):
        yield node.inputs[1]


def _check_bits_of_value(value_name: str, value: Any) -> int:
    return int(validation.as_known_value(value_name, value, WIDTHS))


def _unknown_layer_error(name: str, known: Iterable[str]) -> UsageError:
    return UsageError(f"there is no layer {name!r}", hint=known_names_hint(name, known, "layers"))


# ---- Configuration of quantisation. It names the values of the network, not the user's names of layers.


@frozen
class QuantisationConfig:
    """Configuration of quantisation.

    ``activation_dtype``: dtype of activations. ``weight_bits``: number of bits of weights. ``block_size``: number of
    inputs that share a multiplier if weights have few bits. ``power_of_two``: True if all scales are powers of two.
    ``range_estimator``: name of the estimator of ranges. Operators are identified by the names of their results.
    ``float_results``: operators that are computed in floats. ``weight_only_results``: layers with integer weights and
    float arithmetic. ``dynamic_range_results``: the layers of ``weight_only_results`` that quantise their data at run
    time, with a scale for each row. ``bits``: number of bits of some operators."""

    activation_dtype: str = "int8"
    weight_bits: int = 8
    block_size: int = integer_scheme.NONE
    power_of_two: bool = False
    range_estimator: str = "auto"
    float_results: frozenset[str] = frozenset()
    weight_only_results: frozenset[str] = frozenset()
    dynamic_range_results: frozenset[str] = frozenset()
    bits: Mapping[str, int] = field(default_factory=dict)

    def find_points(self, graph: Graph, bits: Mapping[str, int]) -> QuantisationPoints:
        """Return the quantisation points of a network: the values that become integers.

        ``bits``: number of bits by name of an operator's result or weights. Operators with 16 bits have 16-bit
        activations, and operators with 32 bits are computed in floats."""
        wide_results, float_results = (results_with_bits(graph, bits, width) for width in (WIDE_BITS, FLOAT_BITS))
        return find_quantisation_points(
            graph, self.float_results | float_results, wide_results, self.weight_only_results
        )

    def with_named_bits(self, graph: Graph, bits: Mapping[str, int]) -> QuantisationConfig:
        """Return the configuration with a user's numbers of bits added. ``bits``: number of bits by name of an
        operator.

        UsageError for an unknown operator, for an impossible number of bits, or if no value of the network becomes
        integers."""
        points = self.find_points(graph, {})
        if not points.values and not points.dequantised_weights:
            raise UsageError(
                f"no operator of {graph.name} can be computed on integers",
                hint="compare its operators with those listed by microc operators",
            )
        by_result = bits_by_result(graph, (*points.weights, *points.dequantised_weights), bits)
        return replace(
            self, bits=by_result, float_results=self.float_results | results_with_bits(graph, by_result, FLOAT_BITS)
        )


# ---- Recipe: the storage of every value of a network, decided by statistics of activations and by the elements of constants.


def decide_recipe(
    graph: Graph,
    points: QuantisationPoints,
    statistics_by_value: Mapping[str, Statistics],
    config: QuantisationConfig,
    bits: Mapping[str, int],
) -> Recipe:
    """Decide the dtype and quantisation of all values that become integers.

    ``points``: the values that become integers. ``bits``: number of bits of each weight. The scale of activations that
    must share a scale follows from their common statistics."""
    dtype, method, power_of_two = config.activation_dtype, config.range_estimator, config.power_of_two
    activations: dict[str, Activation] = {}
    narrowed: dict[str, Activation] = {}
    flat = flatten_graph(graph)
    tables = {value: statistics_of_table(flat.consts[name]) for name, value in points.result_by_table.items()}
    for leader, values in points.groups().items():
        statistics = merge_statistics(
            [all_of[value] for all_of in (statistics_by_value, tables) for value in values if value in all_of]
        )
        statistics = replace(statistics, certain_bounds=points.bounds_by_leader.get(leader, statistics.certain_bounds))
        wide, storage = values[0] in points.values_with_16_bits, points.storage_known_without_data.get(values[0])
        storage_dtype = WIDE if wide else dtype
        # 8-bit inputs keep their dtype, int8 or uint8, whatever the dtype of the other activations is.
        if storage is None or (storage.dtype == WIDE) != (storage_dtype == WIDE):
            storage = choose_storage(statistics, storage_dtype, method, wide or power_of_two)[0]
        activations |= dict.fromkeys(values, storage)
        if dtype != WIDE and not points.values_read_in_8_bits.isdisjoint(values):
            narrowed |= dict.fromkeys(
                points.values_read_in_8_bits.intersection(values),
                choose_storage(statistics, dtype, method, power_of_two)[0],
            )
    stored: dict[str, Weight] = {name: quantise_constant(flat.consts[name], power_of_two) for name in points.constants}
    stored |= {
        name: quantise_like(flat.consts[name], activations[value]) for name, value in points.result_by_table.items()
    }
    stored |= {
        name: quantise_weights(flat.consts[name], bits[name], power_of_two=power_of_two)
        for name in points.dequantised_weights
    }
    opened, by_rows = frozenset(points.dequantised_weights), weights_of_layers(graph, config.dynamic_range_results)
    recipe = Recipe(
        activations, stored, narrowed, points.results_with_16_bits, config.block_size, opened, power_of_two, by_rows
    )
    for node in flat.nodes:
        if registry.is_layer(node) and node.inputs[1] in points.weights:
            bias = flat.consts.get(node.inputs[2]) if len(node.inputs) > 2 else None
            data = recipe.storage_of_read_data(node)
            name = node.inputs[1]
            reals = flat.consts[name]
            block = integer_scheme.usable_block_size(node, reals, config.block_size)
            stored[name] = integer_scheme.quantise_in_blocks(reals, bits[name], block, bias, data.scale, power_of_two)
    return recipe


# ---- Preparation of the float graph. Constants are folded, channels become the last axis, normalisation becomes one operator,
# SVDF operators become layers, common subexpressions are merged, means that are subtracted from 8-bit inputs are rounded to a
# byte, and values in bodies of loops get names that are unique in the network.

_PASSES = (
    *NORMALISING,
    legalize.SVDF_LAYERS_PASS,
    canonicalise.LAYER_NORM_PASS,
    canonicalise.COMMON_SUBEXPRESSIONS_PASS,
    canonicalise.DEAD_CODE_PASS,
    scale_axis.CENTRE_PASS,
)


def normalise_float_graph(graph: Graph, options: Options) -> Graph:
    """Return a float graph in the form that quantisation expects. It computes the same function.

    UsageError if the graph is quantised already or computes nothing in float32."""
    context = PassContext(options={"requantize": options.requantize, "hybrid": "float", "rounding": options.rounding})
    normalised = run_passes(graph, _PASSES, context)
    used = {name for node in normalised.nodes for name in (*node.inputs, *node.outputs) if name}
    if any(normalised.types[name].quant is not None for name in used):
        raise UsageError(
            f"{graph.name} is quantised already, expected a float network",
            where=graph.name,
            hint="give the float network from which it was quantised",
        )
    if not any(normalised.types[name].dtype == "float32" for node in normalised.nodes for name in node.outputs):
        raise UsageError(
            f"{graph.name} computes nothing in float32, expected a float network",
            where=graph.name,
            hint="compile it without quantising it",
        )
    return make_names_distinct(normalised)


# ---- Calibrated network: a float network with statistics on typical inputs, which can be quantised with various numbers of bits.


@dataclass(frozen=True)
class CalibratedNetwork:
    """A float network and the statistics of its values on calibration data.

    ``points``: quantisation points, the values that become integers. ``samples``: the samples. ``statistics_by_value``:
    statistics of values on the samples. ``seed``: seed of random choices. ``float_libraries``: compiled float networks
    (see :class:`.network_noise.NetworkPair`). ``trials_by_bits``: quantised networks without repairs, by numbers of
    bits of weights."""

    graph: Graph
    config: QuantisationConfig
    points: QuantisationPoints
    samples: Sequence[Row]
    statistics_by_value: Mapping[str, Statistics]
    seed: int
    progress: Progress | None = None
    float_libraries: FloatLibraries = field(default_factory=dict, compare=False)
    trials_by_bits: dict[tuple[tuple[str, int], ...], Trial] = field(default_factory=dict, compare=False)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names of all weights of layers that become integers."""
        return (*self.points.weights, *self.points.dequantised_weights)

    @cached_property
    def bits_set_by_user(self) -> Mapping[str, int]:
        """Numbers of bits that the user set for some weights, by name of the weights."""
        return bits_by_weight(self.graph, self.config.bits)

    @cached_property
    def held_back_samples(self) -> Sequence[Row]:
        """Samples that are not used for repairs, but to measure the noise of networks; all samples if there are too
        few."""
        return split_samples(self.graph, self.samples, self.seed)[1] or self.samples

    def make_recipe(self, bits: Mapping[str, int]) -> Recipe:
        """Return the recipe (storage of all values) of the network quantised with numbers of bits.

        ``bits``: number of bits by name of weights. Other weights have those of the configuration."""
        all_bits = self._default_bits | {**self.config.bits, **bits}
        points = self.config.find_points(self.graph, all_bits)
        return decide_recipe(self.graph, points, self.statistics_by_value, self.config, stored_weight_bits(all_bits))

    def quantise_and_repair(self, bits: Mapping[str, int]) -> Repaired:
        """Return the network quantised with numbers of bits and repaired (see :mod:`.repairs`), and a report on the
        repairs.

        ``bits``: number of bits by name of weights. Other weights have those of the configuration."""
        all_bits = stored_weight_bits(self._default_bits | {**self.bits_set_by_user, **bits})
        return repair_network(
            self.graph,
            self.quantise_without_repairs(bits),
            all_bits,
            self.samples,
            self.seed,
            self.float_libraries,
            self.progress,
        )

    def quantise_without_repairs(self, bits: Mapping[str, int]) -> Trial:
        """Return the network quantised with numbers of bits, without repairs. The result is memoised.

        ``bits``: number of bits by name of weights. Other weights have those of the configuration."""
        key = tuple(sorted(bits.items()))
        if key not in self.trials_by_bits:
            self.trials_by_bits[key] = Trial(self.graph, Attempt(self.make_recipe(bits)), self.float_libraries)
        return self.trials_by_bits[key]

    @cached_property
    def _default_bits(self) -> dict[str, int]:
        """Number of bits of each weight by the configuration's default alone, neither set by the user nor searched."""
        return uniform_bits(self.graph, self.weight_names, self.config.weight_bits)


def calibrate(
    graph: Graph, config: QuantisationConfig, rows: Sequence[Row], seed: int, progress: Progress | None
) -> CalibratedNetwork:
    """Find the values of a float network that become integers, and collect statistics of them on samples.

    ``rows``: the samples. ``seed``: seed of random choices."""
    points = config.find_points(graph, config.bits)
    return CalibratedNetwork(
        graph,
        config,
        points,
        rows,
        observe_activations(graph, points.values_to_observe, rows, seed, progress),
        seed,
        progress,
    )


def equalise_network(network: CalibratedNetwork) -> tuple[CalibratedNetwork, list[dict[str, Any]]]:
    """Equalise the channels of a network (:func:`.repairs.equalise_channels`) if this lowers the noise on held-back
    samples.

    Return the better network, and a report in the form of that on a repair. If there are too few samples to hold some
    back, the expected noise decides, and there is no report."""
    better = equalise_channels(
        network.graph, network.statistics_by_value, network.config.activation_dtype, network.config.weight_bits
    )
    if better is network.graph:
        return network, []
    equalised_network = calibrate(
        make_names_distinct(better), network.config, network.samples, network.seed, network.progress
    )
    if len(network.samples) < MIN_SAMPLES:
        return equalised_network, []
    before, after = (
        candidate.quantise_without_repairs(candidate.bits_set_by_user).decibels(network.held_back_samples)
        for candidate in (network, equalised_network)
    )
    report = {"name": "cross-layer equalisation", "before": before, "after": after, "kept": after > before}
    return (equalised_network if after > before else network), [report]
