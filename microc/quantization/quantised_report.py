"""The report on a quantised network, as plain data, and what to try next."""

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
from microc.quantization.calibration_data import Data, Row, Statistics, functions_of_bytes
from microc.quantization.decisions import Calibrated
from microc.quantization.mixed_bits import board_of
from microc.quantization.network_noise import alone
from microc.quantization.network_structure import body_of, flattened
from microc.quantization.quantised_page import (
    Comparison,
    answers_report,
    compared,
    stored_bits,
    values_report,
    weights_report,
)
from microc.quantization.repairs import Trial
from microc.quantization.write import Recipe, quantised
from microc.target import Board
from microc.transform.quantised.qdq import LAYERS, has_integer_form
from microc.transform.quantised.qdq_values import CLAMPS

# ---- The layers of a float network as reports tell of them: an operator of the model, and all that becomes one with
# it.
#
# Readers write several operators for one of the model's, which all say its place. What only moves elements belongs to whatever
# makes them, and a function of each element to the layer whose result is nothing but its operand.


@dataclass(slots=True)
class LayerRow:
    """``nodes``: its operators, none of an input; ``values``: what they make, or the input."""

    nodes: list[Node] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    @property
    def computing(self) -> list[Node]:
        """The operators that do not only move elements."""
        return [node for node in self.nodes if not registry.get(node.op).moves]

    @property
    def made(self) -> list[str]:
        """What these make, each once: what is moved is the same numbers. Of an input, it."""
        return [name for node in self.computing for name in node.outputs if name] or self.values[:1]

    @property
    def weights(self) -> list[str]:
        """What layers multiply by."""
        return [node.inputs[1] for node in self.nodes if node.op in LAYERS]

    @property
    def name(self) -> str:
        """What the model calls it."""
        nodes = self.computing
        if not nodes:
            return self.values[0]
        known = next((node for node in nodes if node.op in LAYERS), nodes[0])
        return known.loc.name or known.outputs[0]

    @property
    def ops(self) -> str:
        """What it does."""
        return "+".join(dict.fromkeys(node.op for node in self.computing)) or "input"


def rows(graph: Graph, stored: Container[str]) -> list[LayerRow]:
    """The layers in order, inputs and state first. ``stored``: the values that become integers."""
    flat = flattened(graph)
    owner = {name: LayerRow([], [name]) for name in (*graph.inputs, *graph.state)}
    found: dict[str, LayerRow] = {str(graph.place(name)): row for name, row in owner.items()}
    for number, node in enumerate(flat.nodes):
        place = str(node.loc) if node.loc != Loc() else f"operator {number}"
        row = found.setdefault(place, LayerRow())
        row.nodes.append(node)
        row.values += filter(None, node.outputs)
        owner |= dict.fromkeys(filter(None, node.outputs), row)
    for place, row in list(found.items()):
        before = _joined(row, owner, stored)
        if before is not None and before is not row:
            before.nodes += row.nodes
            before.values += row.values
            owner |= dict.fromkeys(row.values, before)
            del found[place]
    return list(found.values())


def _joined(row: LayerRow, owner: dict[str, LayerRow], stored: Container[str]) -> LayerRow | None:
    """The layer before, if this one is a part of it."""
    if not row.nodes:
        return None
    if not row.computing:
        return owner.get(row.nodes[0].inputs[0])
    if not all(registry.get(node.op).elementwise for node in row.computing):
        return None
    made = (name for name in row.nodes[0].inputs if name in owner and name not in stored and owner[name].computing)
    return next((owner[name] for name in made), None)


def placed(graph: Graph, layers: list[LayerRow]) -> Graph:
    """The graph whose operators say the number of their layer as their place: a model's own places may be one for several."""
    places = {value: place_of(number) for number, row in enumerate(layers) for value in row.values if row.nodes}
    nodes = [replace(node, loc=places.get(node.outputs[0], node.loc)) for node in graph.nodes]
    return graph.with_nodes(nodes)


def place_of(number: int) -> Loc:
    """The place that :func:`placed` gives the operators of a layer."""
    return Loc(index=number, name="layer")


# ---- What a quantised network still computes in floats, and why.

_CHANGING = frozenset(("quantize", "dequantize"))
UNSEEN = "the values in it cannot be observed: it is no loop with a bound"
COMPUTED = "its weights are computed"
FORMLESS = "has no integer form"
ASKED = "as asked"
OPENED = "its weights alone are integers"
BESIDE = "an operand or its result stays in floats"


def floats_report(graph: Graph, asked: Container[str] = ()) -> dict[str, Any]:
    """Of a quantised ``graph``, of which the results ``asked`` for shall stay in floats: ``operators``, those that compute in
    float32, in loops too, each with its multiply-accumulates in a run and the reason, but what compiled is a table; ``share``,
    of all multiply-accumulates, those in floats."""
    flat = flattened(graph)
    by_rows = {node.loc for node in flat.nodes if node.op == "dynamic_quantize"}
    tabulated = functions_of_bytes(flat)
    left, of_all, of_floats = list[dict[str, Any]](), 0, 0
    for node, macs in _counted(graph, 1):
        of_all += macs
        made = {flat.types[name].dtype for name in node.outputs if name}
        if node.op not in _CHANGING and "float32" in made and node.outputs[0] not in tabulated:
            of_floats += macs
            reason = ASKED if node.loc in by_rows else _reason(node, flat, asked)
            left.append({"value": node.outputs[0], "op": node.op, "macs": macs, "reason": reason})
    return {"operators": left, "share": of_floats / max(1, of_all)}


def _counted(graph: Graph, turns: int) -> Iterator[tuple[Node, int]]:
    """The operators, those of bodies in place of their loops, and their multiply-accumulates in so many turns."""
    for node in graph.nodes:
        body = body_of(node)
        if body is not None:
            yield from _counted(body, turns * node.attr("count"))
            continue
        count = registry.get(node.op).macs
        kinds = ([graph.types[name] for name in names if name] for names in (node.inputs, node.outputs))
        yield node, turns * count(node.attrs, *kinds) if count is not None else 0


def _reason(node: Node, flat: Graph, asked: Container[str]) -> str:
    if node.outputs[0] in asked:
        return ASKED
    if registry.get(node.op).regions:
        return UNSEEN
    source = flat.producer().get(node.inputs[1]) if node.op in LAYERS else None
    if source is not None and source.op == "dequantize" and source.inputs[0] in flat.consts:
        return OPENED
    if has_integer_form(node, flat):
        return BESIDE
    return COMPUTED if node.op in LAYERS else FORMLESS


# ---- What the data look like, for warnings: spans of inputs in calibration and comparison, and whether they are raw
# pixels.

_PIXEL, _BRIGHT = 255, 128
_SCALING = frozenset(("add", "sub", "mul", "div"))


def inputs_report(source: Graph, samples: Sequence[Row], judged: Sequence[Row]) -> list[dict[str, Any]]:
    """Of each input: ``low`` and ``high`` of the calibration data, ``compared_low`` and ``compared_high`` of those compared on,
    and ``pixels``: whether they are whole numbers up to 255 that the network, as it was read, does not scale."""
    told = []
    for number, name in enumerate(source.inputs):
        low, high = _span(samples, number)
        compared_low, compared_high = (low, high) if judged is samples else _span(judged, number)
        real = source.types[name].dtype == "float32"
        told.append(
            {
                "input": name,
                "low": low,
                "high": high,
                "compared_low": compared_low,
                "compared_high": compared_high,
                "pixels": real and _BRIGHT <= high <= _PIXEL and low >= 0 and not _scaled(source, name)
                and all(bool((row[number] == np.rint(row[number])).all()) for row in samples),
            }
        )  # fmt: skip
    return told


def _span(rows: Sequence[Row], number: int) -> tuple[float, float]:
    return min(float(row[number].min()) for row in rows), max(float(row[number].max()) for row in rows)


def _scaled(graph: Graph, name: str) -> bool:
    """Whether the network begins with a shift or a factor."""
    readers = [node for node in graph.nodes if name in node.inputs]
    moved = [node.outputs[0] for node in readers if registry.get(node.op).moves]
    return any(node.op in _SCALING for node in readers) or any(_scaled(graph, result) for result in moved)


# ---- What a report tells of each layer: how it is stored, how near it is to the float network's, what it costs
# before and after.


def layers_report(
    layers: Sequence[LayerRow],
    recipe: Recipe,
    found: Comparison,
    alone: Mapping[str, float],
    seen: Mapping[str, Statistics],
) -> list[dict[str, Any]]:
    """Of every layer: its name, what it does, its bits and types, and of the last value that it stores range, scale, ratio of
    signal to noise and the share that is saturated. ``alone``: the noise that each value and each constant causes alone;
    their sums are the sensitivities of weights and of values. ``seen``: what is zero in all samples, of the channels of a result
    that is clamped, is ``silent``."""
    return [_layer(row, recipe, found, alone) | _silence(row, seen) for row in layers]


def _silence(row: LayerRow, seen: Mapping[str, Statistics]) -> dict[str, int]:
    clamped = [node.outputs[0] for node in row.computing if node.op in CLAMPS and node.outputs[0] in seen]
    highest = np.concatenate([np.zeros(0), *(seen[value].channels for value in clamped)])
    return {"silent": int((highest == 0).sum()), "channels": highest.size} if clamped else {}


def _layer(row: LayerRow, recipe: Recipe, found: Comparison, alone: Mapping[str, float]) -> dict[str, Any]:
    stored = [value for value in row.made if value in recipe.activations]
    weights = [name for name in row.weights if name in recipe.weights]
    seen = [
        value for value in (*row.values, *stored) if value in found.values and value in recipe.activations
    ] or stored
    told: dict[str, Any] = {
        "layer": row.name,
        "ops": row.ops,
        "values": stored,
        "bits": sorted({stored_bits(recipe.weights[name].data) for name in weights}),
        "value_sensitivity": _sum(stored, alone),
        "weight_sensitivity": _sum(weights, alone),
        "dtype": "float32",
    }
    if seen:
        how, noise = recipe.activations[seen[-1]], found.values.get(seen[-1])
        low, high = ((end - how.zero_point) * how.scale for end in dtypes.int_range(how.dtype))
        told |= {"dtype": how.dtype, "scale": how.scale, "zero_point": how.zero_point, "low": low, "high": high}
        told |= {
            "decibels": noise.decibels if noise is not None else None,
            "clipped": noise.clipped / max(1, noise.elements) if noise is not None else None,
        }
    return told


def _sum(names: Sequence[str], alone: Mapping[str, float]) -> float | None:
    """None where nothing is known of any."""
    known = [alone[name] for name in names if name in alone]
    return sum(known) if known else None


def costs_report(
    layers: Sequence[LayerRow],
    real: Graph,
    integer: Graph,
    board: Board,
    told: Sequence[dict[str, Any]],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What both networks cost on a board, which may be too small for the float one. Both are those of :func:`.rows.placed`;
    ``told``, the report on layers, is given each layer's part: ``flash`` (constants and code), ``instructions`` and ``cycles``,
    None where a layer is computed with another one or not at all."""
    totals = {}
    for turn, (key, graph) in enumerate((("float_cost", real), ("cost", integer))):
        if progress is not None:
            progress(f"cost on {board.name}", turn, 3)
        totals[key], prices = mixed_bits.by_place(graph, board)
        for number, (row, line) in enumerate(zip(layers, told, strict=True)):
            of = [prices[place] for place in (str(place_of(number)), str(real.place(row.values[0]))) if place in prices]
            sums = {name: sum(getattr(price, name) for price in of) for name in ("flash", "instructions", "cycles")}
            line[key] = sums if of else None
    if progress is not None:
        progress(f"cost on {board.name}", 2, 3)
    return {"board": board.name, **totals}


# ---- What to try next, in words: warnings that a report gives, from its own numbers.

FEW = 20
"""Samples below which ranges are likely to miss what is rare."""
WIDER, NARROWER = 2.0, 0.25
"""Times the span that an input has in calibration, beyond which the data compared on are prepared otherwise."""
CLIPPED = 0.01
"""Share of a value's elements beyond its range from which on the data differ from the calibration's."""
SILENT = 0.5
"""Share of channels behind clamps that no sample reaches, from which on the data are not those of the training."""
SAME = 1e-3
"""Variation of an output, relative to its size, below which it says the same whatever is asked."""
LOUD = 0.01
"""Noise at the outputs, relative to the signal, that is worth doing something about: 20 dB."""
DOMINANT = 0.5
"""Share of all noise that makes one value or weight the one to keep finer."""
CHANCE = 1.5
"""Times the accuracy of guessing, below which the float network does not know the data."""
LOST = 0.003
"""Accuracy that is worth speaking of."""
SURE = 2.0
"""Standard deviations that a loss differs from chance by: 95 % (McNemar's test)."""
IN_FLOATS = 0.01
"""Share of multiply-accumulates in floats that is worth speaking of."""


def advice(report: Mapping[str, Any]) -> list[str]:
    """Sentences, the most fundamental first; none where all is well."""
    return [*_inputs(report), *_data(report), *_labels(report), *_accuracy(report), *_noise(report), *_floats(report)]


def _inputs(report: Mapping[str, Any]) -> Iterator[str]:
    if report["samples"] < FEW:
        yield (
            f"{report['samples']} samples are few: ranges miss what is rare. Calibrate with some tens to some hundreds, "
            f"of every kind that the network will see."
        )
    for each in report["inputs"]:
        span, compared = f"{each['low']:.4g} to {each['high']:.4g}", each["compared_high"] - each["compared_low"]
        if each["low"] == each["high"]:
            yield f"{each['input']} is {each['low']:.4g} in all samples: what the network does with other numbers is not seen."
        elif not NARROWER <= compared / (each["high"] - each["low"]) <= WIDER:
            yield (
                f"{each['input']} spans {span} in the calibration data and {each['compared_low']:.4g} to "
                f"{each['compared_high']:.4g} in those compared on: prepare both as the network was trained."
            )
        if each["pixels"]:
            yield (
                f"The samples of {each['input']} are whole numbers, {span}, as pixels are stored, and the network does not scale "
                f"them: was it trained on 0 to 1, or -1 to 1? Then divide them (of pictures: --pixels 0 1)."
            )


def _data(report: Mapping[str, Any]) -> Iterator[str]:
    clamped = [layer for layer in report["layers"] if "silent" in layer]
    silent, channels = (sum(layer[name] for layer in clamped) for name in ("silent", "channels"))
    if silent > SILENT * channels:
        yield (
            f"{silent} of {channels} channels behind clamps are zero in all samples: the data are not those of the training, or "
            f"much of the network does nothing. Look at scaling (--pixels) and the order of channels."
        )
    for output in report["outputs"]:
        if report["evaluated_samples"] > 1 and output["variation"] < SAME:
            yield (
                f"Output {output['name']} of the float network hardly depends on the data: look at their scaling, and whether "
                f"the network is trained."
            )
    beyond = [value for value in report["values"] if value["clipped"] > CLIPPED]
    if beyond:
        worst = max(beyond, key=lambda value: float(value["clipped"]))
        span = f"{worst['low']:.4g} to {worst['high']:.4g}"
        yield (
            f"{100 * worst['clipped']:.1f} % of {worst['value']} are beyond its range, {span}: the data compared on differ from "
            f"those calibrated with. Calibrate with samples of both, or try --ranges minmax."
        )


def _labels(report: Mapping[str, Any]) -> Iterator[str]:
    found = report.get("classification")
    if not found:
        return
    there = [truth for truth, row in enumerate(found["confusion"]) if any(row)]
    if len(there) == 1:
        yield f"All labels are class {there[0]}: the accuracy says nothing about the others. Compare on samples of all (--eval)."
    elif found["float_accuracy"] < CHANCE / len(found["confusion"]):
        yield (
            f"The float network itself is right in {100 * found['float_accuracy']:.1f} % only, which is near guessing: data or "
            f"labels are not what it was trained on. Look at scaling (--pixels), the order of channels, the numbers of classes."
        )


def _accuracy(report: Mapping[str, Any]) -> Iterator[str]:
    found = report.get("classification")
    if not found or abs(found["float_accuracy"] - found["accuracy"]) < LOST:
        return
    lost, gained, samples = found["lost"], found["gained"], found["samples"]
    if lost - gained > SURE * math.sqrt(lost + gained):
        yield (
            f"{lost} of {samples} answers became wrong and {gained} right, which is no chance: {_finer(report)}, or "
            f"calibrate with more samples."
        )
    else:
        yield (
            f"The accuracies differ by {abs(lost - gained)} of {samples} samples, which may be chance: compare on more (--eval)."
        )


def _finer(report: Mapping[str, Any]) -> str:
    """What has less noise than these settings."""
    if any(bits < 8 for layer in report["layers"] for bits in layer["bits"]):
        return "give weights more bits (--weights 8, or --max-drop 1%, which searches those that need them)"
    if report["settings"]["activations"] != "int16":
        return "give activations 16 bits (--activations int16)"
    return "leave the noisiest layers in floats (--float-layer)"


def _noise(report: Mapping[str, Any]) -> Iterator[str]:
    shares = [(v["sensitivity"], v["value"], "value") for v in report["values"] if v.get("sensitivity")]
    shares += [
        (w["sensitivity"], w["layer"], "weights" if w["bits"] < 8 else "layer")
        for w in report["weights"]
        if w.get("sensitivity")
    ]
    total = sum(share for share, *_ in shares)
    if total < LOUD:
        return
    most, name, kind = max(shares)
    if most < DOMINANT * total:
        yield f"Noise comes from many places: {_finer(report)}, which helps more than any one layer."
    elif kind == "weights":
        yield f"The weights of {name} alone cause {100 * most / total:.0f} % of the noise: give them 8 bits (--layer {name}=8)."
    elif kind == "value" and report["settings"]["activations"] != "int16":
        readers = next(v["readers"] for v in report["values"] if v["value"] == name)
        yield (
            f"{name} alone causes {100 * most / total:.0f} % of the noise: give 16 bits to what reads it "
            f"({' '.join(f'--layer {reader}=16' for reader in readers)}), or to all activations (--activations int16)."
        )
    else:
        yield f"{name} alone causes {100 * most / total:.0f} % of the noise: leave it in floats (--float-layer {name})."


def _floats(report: Mapping[str, Any]) -> Iterator[str]:
    left = [each for each in report["floats"]["operators"] if each["reason"] != ASKED]
    if left and report["floats"]["share"] > IN_FLOATS:
        most = max(left, key=lambda each: int(each["macs"]))
        yield (
            f"{100 * report['floats']['share']:.0f} % of the multiply-accumulates stay in floats, most in {most['value']} "
            f"({most['op']}): {most['reason']}. microc operators lists what has an integer form."
        )


# ---- The report on a quantised network, put together: what is told of values, weights, layers and inputs, and
# advice.


def reported(
    source: Graph,
    network: Calibrated,
    best: Trial,
    samples: Data,
    judged: Data,
    board: Any,
    progress: Progress | None,
) -> dict[str, Any]:
    """Plain data about ``best``, what became of ``network``, on the data that it is ``judged`` by. ``source``: the graph as it
    was read; ``board``: what costs are estimated for, if anything."""
    graph, config, recipe = network.graph, network.config, best.attempt.recipe
    comparison = compared(best.pair, judged, progress)
    report: dict[str, Any] = {
        "model": graph.name,
        "notes": [*samples.notes, *(judged.notes if judged is not samples else ())],
        "samples": len(network.rows),
        "evaluated_samples": len(judged.rows),
        "inputs": inputs_report(source, samples.rows, judged.rows),
        **answers_report(comparison, judged),
        "values": values_report(comparison, recipe.activations),
        "weights": weights_report(flattened(graph), recipe.weights),
        "floats": floats_report(best.written.graph, config.floating),
        "settings": {
            "activations": config.activations,
            "weights": config.weights,
            "ranges": config.ranges,
            "seed": network.seed,
        },
    }
    found_alone, names = alone(graph, samples.rows, recipe, progress), decisions.labels(graph, network.stored)
    layered = rows(graph, recipe.activations)
    report["layers"] = layers_report(layered, recipe, comparison, found_alone, network.seen)
    if board:
        marked = placed(graph, layered)
        integer = quantised(best.attempt.graph(marked), recipe).graph
        report |= costs_report(layered, marked, integer, board_of(board), report["layers"], progress)
    for value in report["values"]:
        value["sensitivity"] = found_alone.get(value["value"])
        value["readers"] = decisions.readers(graph, value["value"])
    for weight in report["weights"]:
        weight["sensitivity"] = found_alone.get(weight["constant"])
        weight["layer"] = names.get(weight["constant"], weight["constant"])
    return report
