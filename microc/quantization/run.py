"""The steps of quantisation, in order."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from microc.driver import accepted
from microc.driver.api import compile
from microc.driver.model import read_model, source_of
from microc.driver.options import make_options
from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.quantization.equalise import equalised
from microc.quantization.floats import floats_report
from microc.quantization.loops import distinct, flattened
from microc.quantization.observe import Progress, Statistics, merged, observe, table_statistics
from microc.quantization.places import Places, places
from microc.quantization.prepare import prepared
from microc.quantization.quantized import Quantized
from microc.quantization.ranges import AUTO, METHODS, chosen
from microc.quantization.repairs import repaired
from microc.quantization.report import Evaluate, answers_report, compared, values_report, weights_report
from microc.quantization.samples import data_of
from microc.quantization.scheme import WIDE, Activation, Weight
from microc.quantization.weights import like, quantised_constant, quantised_weights
from microc.quantization.write import Recipe, quantised
from microc.transform.qdq import LAYERS

ACTIVATIONS = ("int8", "uint8", "int16")
BITS = (8, 4, 2)
MOST_SAMPLES = 512


def quantize(
    model: Any,
    data: Any,
    *,
    activations: str = "int8",
    weights: int = 8,
    ranges: str = AUTO,
    evaluate: Any = None,
    labels: str = "",
    pixels: tuple[float, float] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Quantized:
    """Quantise a float network: anything that :func:`microc.compile` takes, in float32.

    ``data``: typical inputs, some tens to some hundreds (:func:`microc.quantization.samples.data_of`). ``activations``:
    int8, uint8 or int16. ``weights``: 8, 4 or 2 bits. ``ranges``: an estimator of :mod:`microc.quantization.ranges`.

    ``evaluate``: data of the same kinds, with labels where ``labels`` names them, on which both networks are compared (the
    calibration data unless given); or a function of a network (called with one array for each input) that gives a score,
    larger is better. ``pixels``: the reals of pixels 0 and 255, of pictures. ``options`` are those fields of
    :class:`~microc.driver.options.Options` that speak of reading. Everything refused is a
    :class:`~microc.errors.MicrocError`.
    """
    accepted.choice("activations", activations, ACTIVATIONS)
    accepted.choice("weights", weights, BITS)
    accepted.choice("ranges", ranges, METHODS)
    chosen_options = make_options(**options)
    graph = prepared(read_model(source_of(model, chosen_options), chosen_options), chosen_options)
    samples = data_of(graph, data, labels, pixels)
    found = places(graph)
    if not found.values:
        raise UsageError(f"no operator of {graph.name} has an integer form", hint="microc operators lists them")
    seen = observe(graph, found.seen, samples.rows[:MOST_SAMPLES], seed, progress)
    better = equalised(graph, seen, activations, weights)
    if better is not graph:
        graph = distinct(better)
        found = places(graph)
        seen = observe(graph, found.seen, samples.rows[:MOST_SAMPLES], seed, progress)
    recipe = decided(graph, found, seen, activations, weights, ranges)
    attempt, repairs = repaired(graph, recipe, weights, samples.rows[:MOST_SAMPLES], seed, progress)
    recipe, written = attempt.recipe, quantised(attempt.graph(graph), attempt.recipe)
    judged = samples if evaluate is None or callable(evaluate) else data_of(graph, evaluate, labels, pixels)
    comparison = compared(graph, written, judged, progress)
    report: dict[str, Any] = {
        "model": graph.name,
        "notes": [*samples.notes, *(judged.notes if judged is not samples else ())],
        "samples": len(samples.rows),
        "evaluated_samples": len(judged.rows),
        **answers_report(comparison, judged.labels),
        "values": values_report(comparison, recipe.activations),
        "repairs": repairs,
        "weights": weights_report(flattened(graph), recipe.weights),
        "floats": floats_report(written.graph),
    }
    if callable(evaluate):
        report["float_score"], report["score"] = (_score(evaluate, each) for each in (graph, written.graph))
    return Quantized(written.graph, written.exact, graph, recipe, report)


def _score(evaluate: Evaluate, graph: Graph) -> float:
    """What the caller's function says of a network."""
    found = evaluate(compile(graph, optimize="speed", check=False))
    if not isinstance(found, numbers.Real) or not math.isfinite(found):
        raise UsageError(
            f"evaluate gave {accepted.shown(found)}", hint="a function of a network that gives a finite number"
        )
    return float(found)


def decided(graph: Graph, found: Places, seen: Mapping[str, Statistics], dtype: str, bits: int, method: str) -> Recipe:
    """How every value is stored: activations that share a scale by what all of them hold."""
    how: dict[str, Activation] = {}
    narrowed: dict[str, Activation] = {}
    flat = flattened(graph)
    tables = {value: table_statistics(flat.consts[name]) for name, value in found.tables.items()}
    for values in found.groups().values():
        held = merged([all_of[value] for all_of in (seen, tables) for value in values if value in all_of])
        wide, known = values[0] in found.wide, found.known.get(values[0])
        how |= dict.fromkeys(values, known or chosen(held, WIDE if wide else dtype, method, power_of_two=wide)[0])
        if dtype != WIDE and not found.narrowed.isdisjoint(values):
            narrowed |= dict.fromkeys(found.narrowed.intersection(values), chosen(held, dtype, method)[0])
    stored: dict[str, Weight] = {name: quantised_constant(flat.consts[name]) for name in found.constants}
    stored |= {name: like(flat.consts[name], how[value]) for name, value in found.tables.items()}
    for node in flat.nodes:
        if node.op in LAYERS and node.inputs[1] in found.weights:
            bias = flat.consts.get(node.inputs[2]) if len(node.inputs) > 2 else None
            data = narrowed.get(node.inputs[0], how[node.inputs[0]])
            stored[node.inputs[1]] = quantised_weights(flat.consts[node.inputs[1]], bits, bias, data.scale)
    return Recipe(how, stored, narrowed)
