"""The report on a quantised network, put together: what is told of values, weights, layers and inputs, and advice."""

from __future__ import annotations

from typing import Any

from microc.driver.progress import Progress
from microc.graph.ir import Graph
from microc.quantization import by_hand
from microc.quantization.calibrated import Calibrated
from microc.quantization.cost import board_of
from microc.quantization.loops import flattened
from microc.quantization.repairs import Trial
from microc.quantization.report.comparison import answers_report, compared, values_report, weights_report
from microc.quantization.report.floats import floats_report
from microc.quantization.report.inputs import inputs_report
from microc.quantization.report.layers import costs_report, layers_report
from microc.quantization.report.rows import placed
from microc.quantization.report.rows import rows as rows_of
from microc.quantization.samples import Data
from microc.quantization.sensitivity import alone
from microc.quantization.write import quantised


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
    found_alone, names = alone(graph, samples.rows, recipe, progress), by_hand.labels(graph, network.stored)
    layered = rows_of(graph, recipe.activations)
    report["layers"] = layers_report(layered, recipe, comparison, found_alone, network.seen)
    if board:
        marked = placed(graph, layered)
        integer = quantised(best.attempt.graph(marked), recipe).graph
        report |= costs_report(layered, marked, integer, board_of(board), report["layers"], progress)
    for value in report["values"]:
        value["sensitivity"] = found_alone.get(value["value"])
        value["readers"] = by_hand.readers(graph, value["value"])
    for weight in report["weights"]:
        weight["sensitivity"] = found_alone.get(weight["constant"])
        weight["layer"] = names.get(weight["constant"], weight["constant"])
    return report
