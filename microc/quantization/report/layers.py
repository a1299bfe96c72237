"""What a report tells of each layer: how it is stored, how near it is to the float network's, what it costs before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc import dtypes
from microc.driver.progress import Progress
from microc.graph.ir import Graph
from microc.quantization import cost
from microc.quantization.observe import Statistics
from microc.quantization.report.comparison import Comparison, stored_bits
from microc.quantization.report.rows import Row, place_of
from microc.quantization.write import Recipe
from microc.target import Board
from microc.transform.qdq_values import CLAMPS


def layers_report(
    layers: Sequence[Row], recipe: Recipe, found: Comparison, alone: Mapping[str, float], seen: Mapping[str, Statistics]
) -> list[dict[str, Any]]:
    """Of every layer: its name, what it does, its bits and types, and of the last value that it stores range, scale, ratio of
    signal to noise and the share that is saturated. ``alone``: the noise that each value and each constant causes alone;
    their sums are the sensitivities of weights and of values. ``seen``: what is zero in all samples, of the channels of a result
    that is clamped, is ``silent``."""
    return [_layer(row, recipe, found, alone) | _silence(row, seen) for row in layers]


def _silence(row: Row, seen: Mapping[str, Statistics]) -> dict[str, int]:
    clamped = [node.outputs[0] for node in row.computing if node.op in CLAMPS and node.outputs[0] in seen]
    highest = np.concatenate([np.zeros(0), *(seen[value].channels for value in clamped)])
    return {"silent": int((highest == 0).sum()), "channels": highest.size} if clamped else {}


def _layer(row: Row, recipe: Recipe, found: Comparison, alone: Mapping[str, float]) -> dict[str, Any]:
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
    layers: Sequence[Row],
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
        totals[key], prices = cost.by_place(graph, board)
        for number, (row, line) in enumerate(zip(layers, told, strict=True)):
            of = [prices[place] for place in (str(place_of(number)), str(real.place(row.values[0]))) if place in prices]
            sums = {name: sum(getattr(price, name) for price in of) for name in ("flash", "instructions", "cycles")}
            line[key] = sums if of else None
    if progress is not None:
        progress(f"cost on {board.name}", 2, 3)
    return {"board": board.name, **totals}
