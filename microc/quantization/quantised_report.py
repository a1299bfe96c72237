# SPDX-License-Identifier: Apache-2.0
"""Build the report on a quantised network as plain data, and derive advice from its numbers."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.compiler.interaction import Progress
from microc.graph.ir import Graph, Loc, Node
from microc.ops import registry
from microc.quantization import decisions, mixed_bits
from microc.quantization.calibration_data import Row, SampleData, Statistics, storage_of_values_from_input_bytes
from microc.quantization.decisions import CalibratedNetwork
from microc.quantization.mixed_bits import load_board_by_name_or_file
from microc.quantization.network_noise import measure_noise_of_values
from microc.quantization.network_structure import find_quantisable_loop_body, flatten_graph
from microc.quantization.quantised_page import (
    NetworkComparison,
    build_activations_report,
    build_outputs_report,
    build_weights_report,
    compare_networks,
    min_bits_of_integers,
)
from microc.quantization.repairs import Trial
from microc.quantization.write import Recipe, write_quantised_graph
from microc.target import Board
from microc.transform.quantised.qdq import has_integer_form
from microc.transform.quantised.qdq_values import CLAMPS

# ---- Layers of a float network in reports. A layer is an operator of the model with all nodes that are fused with it.
#
# Frontends convert an operator of the model to several nodes, which all have its location. A node that only moves elements
# belongs to the layer that computes them. An elementwise node belongs to the layer whose result it reads, if this result is not
# stored as integers.


@dataclass(slots=True)
class ReportedLayer:
    """A layer of the model, as reports list it. Inputs and states are listed as layers too.

    ``nodes``: nodes of the layer; none for an input or state. ``values``: names of the nodes' results, or of the input
    or state."""

    nodes: list[Node] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    @property
    def computing_nodes(self) -> list[Node]:
        """Nodes of the layer that compute: all except those that only move elements."""
        return [node for node in self.nodes if not registry.get(node.op).moves]

    @property
    def result_names(self) -> list[str]:
        """Names of the results of the layer's computing nodes; the name of the input if there are none.

        Results of nodes that only move elements are left out, since their numbers are the same."""
        return [name for node in self.computing_nodes for name in node.outputs if name] or self.values[:1]

    @property
    def weights(self) -> list[str]:
        """Names of the weights of the layer's convolutions and dense products."""
        return [node.inputs[1] for node in self.nodes if registry.is_layer(node)]

    @property
    def name(self) -> str:
        """Name of the layer in the model."""
        nodes = self.computing_nodes
        if not nodes:
            return self.values[0]
        main = next((node for node in nodes if registry.is_layer(node)), nodes[0])
        return main.loc.name or main.outputs[0]

    @property
    def ops(self) -> str:
        """Names of the layer's operators, joined by ``+``."""
        return "+".join(dict.fromkeys(node.op for node in self.computing_nodes)) or "input"


def group_into_layers(graph: Graph, integer_values: Container[str]) -> list[ReportedLayer]:
    """Group the nodes of a float graph into the layers of the model. Inputs and state come first.

    ``integer_values``: names of the values that become integers."""
    flat = flatten_graph(graph)
    owner = {name: ReportedLayer([], [name]) for name in (*graph.inputs, *graph.state)}
    by_location: dict[str, ReportedLayer] = {str(graph.location_of_input(name)): row for name, row in owner.items()}
    for number, node in enumerate(flat.nodes):
        location = str(node.loc) if node.loc != Loc() else f"operator {number}"
        row = by_location.setdefault(location, ReportedLayer())
        row.nodes.append(node)
        row.values += filter(None, node.outputs)
        owner |= dict.fromkeys(filter(None, node.outputs), row)
    for location, row in list(by_location.items()):
        target = _find_containing_layer(row, owner, integer_values)
        if target is not None and target is not row:
            target.nodes += row.nodes
            target.values += row.values
            owner |= dict.fromkeys(row.values, target)
            del by_location[location]
    return list(by_location.values())


def _find_containing_layer(
    row: ReportedLayer, owner: dict[str, ReportedLayer], integer_values: Container[str]
) -> ReportedLayer | None:
    """Return the layer that ``row``, a group of nodes with the same location, is a part of; None if it is a layer
    itself.

    ``owner``: the group that computes each value. ``integer_values``: names of the values that become integers."""
    if not row.nodes:
        return None
    if not row.computing_nodes:
        return owner.get(row.nodes[0].inputs[0])
    if not all(registry.get(node.op).elementwise for node in row.computing_nodes):
        return None
    operands = (
        name
        for name in row.nodes[0].inputs
        if name in owner and name not in integer_values and owner[name].computing_nodes
    )
    return next((owner[name] for name in operands), None)


def label_locations(graph: Graph, layers: list[ReportedLayer]) -> Graph:
    """Return the graph with the location of each node replaced by that of its layer (:func:`layer_location`).

    The new location is different for each layer, while several layers of a model's file may have the same location."""
    locations = {
        value: layer_location(number) for number, row in enumerate(layers) for value in row.values if row.nodes
    }
    nodes = [replace(node, loc=locations.get(node.outputs[0], node.loc)) for node in graph.nodes]
    return graph.with_nodes(nodes)


def layer_location(layer_index: int) -> Loc:
    """Return the location that :func:`label_locations` sets for the nodes of the layer with the index
    ``layer_index``."""
    return Loc(index=layer_index, name="layer")


# ---- Operators that a quantised network computes in floats, and the reasons.

_CHANGING = frozenset(("quantize", "dequantize"))
UNSEEN = "the values in it cannot be observed: it is no loop with a bound"
COMPUTED = "its weights are computed"
FORMLESS = "has no integer form"
ASKED = "as asked"
OPENED = "its weights alone are integers"
BESIDE = "an operand or its result stays in floats"


def build_float_operators_report(graph: Graph, requested_floats: Container[str] = ()) -> dict[str, Any]:
    """Return the part of the report about the operators that a quantised ``graph`` computes in floats.

    ``requested_floats``: results of the operators for which the user requested floats. The entry ``operators`` lists
    the operators that compute in float32, including those in loops, each with its multiply-accumulates in a run and the
    reason. Operators that are compiled to a table are left out. The entry ``share`` is their fraction of all
    multiply-accumulates."""
    flat = flatten_graph(graph)
    by_rows = {node.loc for node in flat.nodes if node.op == "dynamic_quantize"}
    tabulated = storage_of_values_from_input_bytes(flat)
    operators, all_macs, float_macs = list[dict[str, Any]](), 0, 0
    for node, macs in _iterate_nodes_with_macs(graph, 1):
        all_macs += macs
        result_dtypes = {flat.types[name].dtype for name in node.outputs if name}
        if node.op not in _CHANGING and "float32" in result_dtypes and node.outputs[0] not in tabulated:
            float_macs += macs
            reason = ASKED if node.loc in by_rows else _explain_float_operator(node, flat, requested_floats)
            operators.append({"value": node.outputs[0], "op": node.op, "macs": macs, "reason": reason})
    return {"operators": operators, "share": float_macs / max(1, all_macs)}


def _iterate_nodes_with_macs(graph: Graph, iterations: int) -> Iterator[tuple[Node, int]]:
    """Yield the operators of a graph with their numbers of multiply-accumulates in a run.

    A loop is replaced by the operators of its body. ``iterations``: number of times that the graph, a body itself,
    runs."""
    for node in graph.nodes:
        body = find_quantisable_loop_body(node)
        if body is not None:
            yield from _iterate_nodes_with_macs(body, iterations * node.attr("count"))
            continue
        count = registry.get(node.op).macs
        types = ([graph.types[name] for name in names if name] for names in (node.inputs, node.outputs))
        yield node, iterations * count(node.attrs, *types) if count is not None else 0


def _explain_float_operator(node: Node, flat: Graph, requested_floats: Container[str]) -> str:
    """Return the reason, as a text for the report, why a quantised network computes an operator in floats."""
    if node.outputs[0] in requested_floats:
        return ASKED
    if registry.get(node.op).regions:
        return UNSEEN
    source = flat.producer().get(node.inputs[1]) if registry.is_layer(node) else None
    if source is not None and source.op == "dequantize" and source.inputs[0] in flat.consts:
        return OPENED
    if has_integer_form(node, flat):
        return BESIDE
    return COMPUTED if registry.is_layer(node) else FORMLESS


# ---- Properties of the data, for warnings: ranges of inputs in the calibration and comparison data, and whether they are pixels
# that should have been scaled.

_LARGEST_PIXEL, _MIN_PIXEL_MAXIMUM = 255, 128
_SCALING = frozenset(("add", "sub", "mul", "div"))


def build_inputs_report(
    source: Graph, samples: Sequence[Row], comparison_samples: Sequence[Row]
) -> list[dict[str, Any]]:
    """Return the part of the report about the inputs of the network, with an entry for each of them.

    ``source``: the network as it was read. ``samples``: the calibration data. ``comparison_samples``: the samples on
    which the float and the quantised network are compared. In an entry, ``low`` and ``high`` are the smallest and the
    largest number in the calibration data, ``compared_low`` and ``compared_high`` those in the comparison data.
    ``pixels`` is True if the calibration data are integers up to 255 that the network does not scale."""
    inputs = []
    for number, name in enumerate(source.inputs):
        low, high = _smallest_and_largest_input(samples, number)
        compared_low, compared_high = (
            (low, high) if comparison_samples is samples else _smallest_and_largest_input(comparison_samples, number)
        )
        is_float = source.types[name].dtype == "float32"
        inputs.append(
            {
                "input": name,
                "low": low,
                "high": high,
                "compared_low": compared_low,
                "compared_high": compared_high,
                "pixels": is_float
                and _MIN_PIXEL_MAXIMUM <= high <= _LARGEST_PIXEL
                and low >= 0
                and not _is_input_scaled(source, name)
                and all(bool((row[number] == np.rint(row[number])).all()) for row in samples),
            }
        )  # fmt: skip
    return inputs


def _smallest_and_largest_input(rows: Sequence[Row], position: int) -> tuple[float, float]:
    """Return the smallest and the largest number of an input over all samples. ``position``: index of the input."""
    return min(float(row[position].min()) for row in rows), max(float(row[position].max()) for row in rows)


def _is_input_scaled(graph: Graph, name: str) -> bool:
    """Test whether the network shifts or scales an input before other operators compute with it.

    It does if an operator that reads the input, directly or after operators that only move elements, adds, subtracts,
    multiplies or divides."""
    readers = [node for node in graph.nodes if name in node.inputs]
    moved = [node.outputs[0] for node in readers if registry.get(node.op).moves]
    return any(node.op in _SCALING for node in readers) or any(_is_input_scaled(graph, result) for result in moved)


# ---- Report on each layer: storage, noise compared with the float network, cost before and after quantisation.


def build_layers_report(
    layers: Sequence[ReportedLayer],
    recipe: Recipe,
    comparison: NetworkComparison,
    noise_alone: Mapping[str, float],
    statistics_by_value: Mapping[str, Statistics],
) -> list[dict[str, Any]]:
    """Return the part of the report about layers, with an entry for each of them.

    An entry contains name, operators, number of bits, dtype, and figures about the last value that the layer stores:
    range, scale, signal-to-noise ratio and the fraction of elements that saturate. ``noise_alone``: the noise that
    quantising each value or constant causes alone; sums of these noises are the sensitivities in an entry.
    ``statistics_by_value``: statistics of activations, from which channels that are zero in all samples are counted as
    ``silent``."""
    return [
        _build_layer_entry(row, recipe, comparison, noise_alone) | _count_silent_channels(row, statistics_by_value)
        for row in layers
    ]


def _count_silent_channels(row: ReportedLayer, statistics_by_value: Mapping[str, Statistics]) -> dict[str, int]:
    """Return the entries ``silent`` and ``channels`` for a layer with clamps (such as relu); empty for other layers.

    ``channels`` is the number of channels of the layer's clamped results. ``silent`` is the number of those that are
    zero in all samples."""
    clamped = [
        node.outputs[0] for node in row.computing_nodes if node.op in CLAMPS and node.outputs[0] in statistics_by_value
    ]
    highest = np.concatenate([np.zeros(0), *(statistics_by_value[value].channel_magnitudes for value in clamped)])
    return {"silent": int((highest == 0).sum()), "channels": highest.size} if clamped else {}


def _build_layer_entry(
    row: ReportedLayer, recipe: Recipe, comparison: NetworkComparison, noise_alone: Mapping[str, float]
) -> dict[str, Any]:
    """Return the entry of a layer in the report. ``noise_alone``: as in :func:`build_layers_report`."""
    stored = [value for value in row.result_names if value in recipe.activations]
    weights = [name for name in row.weights if name in recipe.weights]
    stored_values = [
        value for value in (*row.values, *stored) if value in comparison.values and value in recipe.activations
    ] or stored
    line: dict[str, Any] = {
        "layer": row.name,
        "ops": row.ops,
        "values": stored,
        "bits": sorted({min_bits_of_integers(recipe.weights[name].data) for name in weights}),
        "value_sensitivity": _sum_known_noise(stored, noise_alone),
        "weight_sensitivity": _sum_known_noise(weights, noise_alone),
        "dtype": "float32",
    }
    if stored_values:
        storage, noise = recipe.activations[stored_values[-1]], comparison.values.get(stored_values[-1])
        low, high = ((end - storage.zero_point) * storage.scale for end in dtypes.int_range(storage.dtype))
        line |= {
            "dtype": storage.dtype,
            "scale": storage.scale,
            "zero_point": storage.zero_point,
            "low": low,
            "high": high,
        }
        line |= {
            "decibels": noise.decibels if noise is not None else None,
            "clipped": noise.saturated_elements / max(1, noise.element_count) if noise is not None else None,
        }
    return line


def _sum_known_noise(names: Sequence[str], noise_alone: Mapping[str, float]) -> float | None:
    """Return the sum of the noises that quantising each of the named values or weights causes alone.

    ``noise_alone`` may not contain all names; None if it contains none of them."""
    known = [noise_alone[name] for name in names if name in noise_alone]
    return sum(known) if known else None


def build_costs_report(
    layers: Sequence[ReportedLayer],
    float_graph: Graph,
    integer_graph: Graph,
    board: Board,
    layer_lines: Sequence[dict[str, Any]],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return the part of the report about the cost of the float and the quantised network on a board.

    A network need not fit on the board. Both graphs must have the locations that :func:`label_locations` sets. The
    price of each layer is added to its entry in ``layer_lines``: ``flash`` (bytes of constants and code),
    ``instructions`` and ``cycles``, or None if no kernel call is for this layer alone, because it is computed with
    another layer or not at all."""
    totals = {}
    for step, (key, graph) in enumerate((("float_cost", float_graph), ("cost", integer_graph))):
        if progress is not None:
            progress(f"cost on {board.name}", step, 3)
        totals[key], prices = mixed_bits.estimate_price_by_location(graph, board)
        for number, (row, line) in enumerate(zip(layers, layer_lines, strict=True)):
            layer_prices = [
                prices[place]
                for place in (str(layer_location(number)), str(float_graph.location_of_input(row.values[0])))
                if place in prices
            ]
            sums = {
                name: sum(getattr(price, name) for price in layer_prices)
                for name in ("flash", "instructions", "cycles")
            }
            line[key] = sums if layer_prices else None
    if progress is not None:
        progress(f"cost on {board.name}", 2, 3)
    return {"board": board.name, **totals}


# ---- Advice: warnings and suggestions derived from a report's numbers.

MIN_CALIBRATION_SAMPLES = 20
"""Number of calibration samples below which a warning is given, because ranges probably do not contain rare values."""
MAX_SPAN_RATIO, MIN_SPAN_RATIO = 2.0, 0.25
"""Largest and smallest ratio of an input's span in the comparison data to its span in the calibration data. Outside of
these limits a warning is given that the data were prepared differently."""
CLIPPED_SHARE = 0.01
"""Fraction of a value's elements outside of its range from which a warning is given that the compared data differ from
the calibration data."""
SILENT_CHANNEL_SHARE = 0.5
"""Fraction of the channels after clamps that are zero in all samples, from which a warning is given that the data are
unlike those that the network was trained with."""
MIN_OUTPUT_VARIATION = 1e-3
"""Variation of an output over the samples, relative to its size, below which a warning is given that it does not depend
on them."""
NOISE_SHARE = 0.01
"""Noise at the outputs, relative to the signal, from which advice is given. It corresponds to 20 dB."""
DOMINANT_NOISE_SHARE = 0.5
"""Fraction of all noise from which advice is given to store a single value or weight in more bits."""
MIN_ACCURACY_RATIO = 1.5
"""Ratio of the float network's accuracy to that of guessing, below which a warning is given that data or labels are
wrong."""
MIN_ACCURACY_LOSS = 0.003
"""Difference of the accuracies of both networks from which advice is given."""
SIGNIFICANT_DEVIATIONS = 2.0
"""Number of standard deviations by which a loss of accuracy must differ from zero not to count as chance: 95 %
(McNemar's test)."""
FLOAT_MACS_SHARE = 0.01
"""Fraction of multiply-accumulates in floats from which advice is given."""


def advice(report: Mapping[str, Any]) -> list[str]:
    """Return warnings and suggestions that follow from the numbers of a report, as sentences, the most fundamental
    first.

    The list is empty if there is nothing to improve."""
    return [
        *_advise_on_inputs(report),
        *_advise_on_data(report),
        *_advise_on_labels(report),
        *_advise_on_accuracy(report),
        *_advise_on_noise(report),
        *_advise_on_floats(report),
    ]


def _advise_on_inputs(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield advice about the number of samples and about the ranges of inputs."""
    if report["samples"] < MIN_CALIBRATION_SAMPLES:
        yield (
            f"{report['samples']} samples are few: ranges miss what is rare. Calibrate with some tens to some hundreds, "
            f"of every kind that the network will see."
        )
    for data in report["inputs"]:
        span, compared = (
            f"{data['low']:.4g} to {data['high']:.4g}",
            data["compared_high"] - data["compared_low"],
        )
        if data["low"] == data["high"]:
            yield f"{data['input']} is {data['low']:.4g} in all samples: what the network does with other numbers is not seen."
        elif not MIN_SPAN_RATIO <= compared / (data["high"] - data["low"]) <= MAX_SPAN_RATIO:
            yield (
                f"{data['input']} spans {span} in the calibration data and {data['compared_low']:.4g} to "
                f"{data['compared_high']:.4g} in those compared on: prepare both as the network was trained."
            )
        if data["pixels"]:
            yield (
                f"The samples of {data['input']} are whole numbers, {span}, as pixels are stored, and the network does not scale "
                f"them: was it trained on 0 to 1, or -1 to 1? Then divide them (of pictures: --pixels 0 1)."
            )


def _advise_on_data(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield advice about data that are unlike those that the network was trained with.

    Signs of such data are channels that are always zero, outputs that hardly vary, and values outside of their
    ranges."""
    clamped = [layer for layer in report["layers"] if "silent" in layer]
    silent, channels = (sum(layer[name] for layer in clamped) for name in ("silent", "channels"))
    if silent > SILENT_CHANNEL_SHARE * channels:
        yield (
            f"{silent} of {channels} channels behind clamps are zero in all samples: the data are not those of the training, or "
            f"much of the network does nothing. Look at scaling (--pixels) and the order of channels."
        )
    for output in report["outputs"]:
        if report["evaluated_samples"] > 1 and output["variation"] < MIN_OUTPUT_VARIATION:
            yield (
                f"Output {output['name']} of the float network hardly depends on the data: look at their scaling, and whether "
                f"the network is trained."
            )
    beyond = [value for value in report["values"] if value["clipped"] > CLIPPED_SHARE]
    if beyond:
        worst = max(beyond, key=lambda value: float(value["clipped"]))
        span = f"{worst['low']:.4g} to {worst['high']:.4g}"
        yield (
            f"{100 * worst['clipped']:.1f} % of {worst['value']} are beyond its range, {span}: the data compared on differ from "
            f"those calibrated with. Calibrate with samples of both, or try --ranges minmax."
        )


def _advise_on_labels(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield advice about labels: all samples have the same class, or the float network's accuracy is near that of
    guessing."""
    result = report.get("classification")
    if not result:
        return
    classes = [truth for truth, row in enumerate(result["confusion"]) if any(row)]
    if len(classes) == 1:
        (label,) = classes
        yield f"All labels are class {label}: the accuracy says nothing about the others. Compare on samples of all (--eval)."
    elif result["float_accuracy"] < MIN_ACCURACY_RATIO / len(result["confusion"]):
        yield (
            f"The float network itself is right in {100 * result['float_accuracy']:.1f} % only, which is near guessing: data or "
            f"labels are not what it was trained on. Look at scaling (--pixels), the order of channels, the numbers of classes."
        )


def _advise_on_accuracy(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield advice about a loss of accuracy, which states whether the loss may be due to chance."""
    result = report.get("classification")
    if not result or abs(result["float_accuracy"] - result["accuracy"]) < MIN_ACCURACY_LOSS:
        return
    lost, gained, samples = result["lost"], result["gained"], result["samples"]
    if lost - gained > SIGNIFICANT_DEVIATIONS * math.sqrt(lost + gained):
        yield (
            f"{lost} of {samples} answers became wrong and {gained} right, which is no chance: "
            f"{_recommend_finer_setting(report)}, or "
            f"calibrate with more samples."
        )
    else:
        yield (
            f"The accuracies differ by {abs(lost - gained)} of {samples} samples, which may be chance: compare on more (--eval)."
        )


def _recommend_finer_setting(report: Mapping[str, Any]) -> str:
    """Return a part of a sentence that recommends the option which lowers the noise of the network most."""
    if any(bits < 8 for layer in report["layers"] for bits in layer["bits"]):
        return "give weights more bits (--weights 8, or --max-drop 1%, which searches those that need them)"
    if report["settings"]["activations"] != "int16":
        return "give activations 16 bits (--activations int16)"
    return "leave the noisiest layers in floats (--float-layer)"


def _advise_on_noise(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield advice about the value or the weights that cause most of the noise."""
    shares = [(v["sensitivity"], v["value"], "value") for v in report["values"] if v.get("sensitivity")]
    shares += [
        (w["sensitivity"], w["layer"], "weights" if w["bits"] < 8 else "layer")
        for w in report["weights"]
        if w.get("sensitivity")
    ]
    total = sum(share for share, *_ in shares)
    if total < NOISE_SHARE:
        return
    top, name, what = max(shares)
    if top < DOMINANT_NOISE_SHARE * total:
        yield f"Noise comes from many places: {_recommend_finer_setting(report)}, which helps more than any one layer."
    elif what == "weights":
        yield f"The weights of {name} alone cause {100 * top / total:.0f} % of the noise: give them 8 bits (--layer {name}=8)."
    elif what == "value" and report["settings"]["activations"] != "int16":
        readers = next(v["readers"] for v in report["values"] if v["value"] == name)
        yield (
            f"{name} alone causes {100 * top / total:.0f} % of the noise: give 16 bits to what reads it "
            f"({' '.join(f'--layer {reader}=16' for reader in readers)}), or to all activations (--activations int16)."
        )
    else:
        yield f"{name} alone causes {100 * top / total:.0f} % of the noise: leave it in floats (--float-layer {name})."


def _advise_on_floats(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield advice about operators that are computed in floats although the user did not request floats for them."""
    operators = [operator for operator in report["floats"]["operators"] if operator["reason"] != ASKED]
    if operators and report["floats"]["share"] > FLOAT_MACS_SHARE:
        largest = max(operators, key=lambda operator: int(operator["macs"]))
        yield (
            f"{100 * report['floats']['share']:.0f} % of the multiply-accumulates stay in floats, most in {largest['value']} "
            f"({largest['op']}): {largest['reason']}. microc operators lists what has an integer form."
        )


# ---- The complete report.


def build_report(
    source: Graph,
    network: CalibratedNetwork,
    best: Trial,
    samples: SampleData,
    evaluation_data: SampleData,
    board: Any,
    progress: Progress | None,
) -> dict[str, Any]:
    """Return the report on a quantised network as plain data.

    ``source``: the float graph as it was read. ``network``: the calibrated float network. ``best``: its quantised form.
    ``samples``: the calibration data. ``evaluation_data``: the data on which both networks are compared. ``board``: the
    board for which costs are estimated; empty for a report without costs."""
    graph, config, recipe = network.graph, network.config, best.attempt.recipe
    comparison = compare_networks(best.pair, evaluation_data, progress)
    report: dict[str, Any] = {
        "model": graph.name,
        "notes": [
            *samples.conversion_notes,
            *(evaluation_data.conversion_notes if evaluation_data is not samples else ()),
        ],
        "samples": len(network.samples),
        "evaluated_samples": len(evaluation_data.rows),
        "inputs": build_inputs_report(source, samples.rows, evaluation_data.rows),
        **build_outputs_report(comparison, evaluation_data),
        "values": build_activations_report(comparison, recipe.activations),
        "weights": build_weights_report(flatten_graph(graph), recipe.weights),
        "floats": build_float_operators_report(best.written.graph, config.float_results),
        "settings": {
            "activations": config.activation_dtype,
            "weights": config.weight_bits,
            "ranges": config.range_estimator,
            "seed": network.seed,
        },
    }
    noise_alone, names = (
        measure_noise_of_values(graph, samples.rows, recipe, progress),
        decisions.unique_names_of_layers(graph, network.weight_names),
    )
    layer_rows = group_into_layers(graph, recipe.activations)
    report["layers"] = build_layers_report(layer_rows, recipe, comparison, noise_alone, network.statistics_by_value)
    if board:
        located = label_locations(graph, layer_rows)
        integer = write_quantised_graph(best.attempt.graph(located), recipe).graph
        report |= build_costs_report(
            layer_rows, located, integer, load_board_by_name_or_file(board), report["layers"], progress
        )
    for value in report["values"]:
        value["sensitivity"] = noise_alone.get(value["value"])
        value["readers"] = decisions.names_of_operators_that_read(graph, value["value"])
    for weight in report["weights"]:
        weight["sensitivity"] = noise_alone.get(weight["constant"])
        weight["layer"] = names.get(weight["constant"], weight["constant"])
    return report
