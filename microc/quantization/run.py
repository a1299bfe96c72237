"""The steps of quantisation, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from microc.driver import accepted
from microc.driver.model import read_model, source_of
from microc.driver.options import make_options
from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.quantization import blocks, by_hand
from microc.quantization.advice import advice
from microc.quantization.cost import board_of
from microc.quantization.equalise import equalised
from microc.quantization.floats import floats_report
from microc.quantization.found import Places
from microc.quantization.inputs import inputs_report
from microc.quantization.layer_report import costs_report, layers_report
from microc.quantization.limits import limits_of
from microc.quantization.loops import distinct, flattened
from microc.quantization.mixed import search
from microc.quantization.observe import Progress, Statistics, merged, observe, table_statistics
from microc.quantization.places import places
from microc.quantization.prepare import prepared
from microc.quantization.quantized import Quantized
from microc.quantization.ranges import AUTO, METHODS, chosen
from microc.quantization.repairs import Repaired, repaired, split
from microc.quantization.report import answers_report, compared, values_report, weights_report
from microc.quantization.rows import placed
from microc.quantization.rows import rows as rows_of
from microc.quantization.samples import calibration_of, data_of
from microc.quantization.scheme import WIDE, Activation, Weight
from microc.quantization.score import check_labels, score_by
from microc.quantization.sensitivity import alone
from microc.quantization.task import Task
from microc.quantization.weights import like, quantised_constant, quantised_weights
from microc.quantization.write import Recipe, quantised
from microc.target import Board
from microc.transform.boundary import Boundary, adapt
from microc.transform.qdq import LAYERS

ANY, POWER_OF_TWO = "any", "power-of-two"
ACTIVATIONS = ("int8", "uint8", "int16")
MOST_SAMPLES = 512


def quantize(
    model: Any,
    data: Any,
    *,
    activations: str = "int8",
    weights: int = 8,
    block: int = blocks.NONE,
    scales: str = ANY,
    bits: Mapping[str, int] | None = None,
    float_layers: Sequence[str] = (),
    weight_only: Sequence[str] = (),
    board: str | Path | Board = "",
    flash: int | None = None,
    ram: int | None = None,
    time: float | None = None,
    max_drop: float | None = None,
    ranges: str = AUTO,
    evaluate: Any = None,
    labels: str = "",
    pixels: tuple[float, float] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Quantized:
    """Quantise a float network: anything that :func:`microc.compile` takes, in float32.

    ``data``: typical inputs, some tens to some hundreds (:func:`microc.quantization.samples.data_of`). ``activations``: int8,
    uint8 or int16. ``weights``: 8, 4 or 2 bits; ``block``: of the latter two, how many inputs (16, 32, 64) share a multiplier
    beside the scale of their channel (:mod:`microc.quantization.blocks`). ``scales``: any, or power-of-two. ``ranges``: an
    estimator of :mod:`microc.quantization.ranges`.

    ``bits``: those of some operators, by name: of the weights, 16 for activations of int16 (weights of 8 bits), 32 for
    floats; ``float_layers``: which stay in floats; ``weight_only``: which compute in floats on integer weights, or
    ``["all"]``. With limits, bits of all other layers are searched (:mod:`microc.quantization.mixed`): ``flash`` and ``ram``
    in bytes and ``time`` of a run in seconds, as they are estimated for ``board``, are kept with the least noise;
    ``max_drop``, of the accuracy (0.01 is a point) or of what ``evaluate`` gives, with the least flash; where 8 bits lose
    more, with 16 or floats in some layers, in the least time. FitError where no bits keep them.

    Inputs and outputs are the float network's unless ``input_dtype`` and ``output_dtype``, of the options, say int8 or uint8.

    ``evaluate``: data of the same kinds, with labels where ``labels`` names them, on which both networks are compared (the
    calibration data unless given); or a function of a network (called with one array for each input) that gives a score,
    larger is better. ``pixels``: the reals of pixels 0 and 255, of pictures. ``options`` are those fields of
    :class:`~microc.driver.options.Options` that speak of reading. Everything refused is a
    :class:`~microc.errors.MicrocError`.
    """
    accepted.choice("activations", activations, ACTIVATIONS)
    accepted.choice("weights", weights, by_hand.BITS)
    accepted.choice("block", block, blocks.SIZES)
    if block and weight_only:
        raise UsageError(
            "weights of layers in floats have one scale for each channel, no multipliers by blocks",
            hint="leave out block (--block), or weight_only (--weight-only)",
        )
    accepted.choice("scales", scales, (ANY, POWER_OF_TWO))
    accepted.choice("ranges", ranges, METHODS)
    chosen_options = make_options(**options)
    reading, ends = replace(chosen_options, input_dtype={}, output_dtype={}), chosen_options
    boundary = Boundary(ends.input_dtype, ends.output_dtype)
    source = read_model(source_of(model, reading), reading)
    graph = prepared(source, reading)
    same_data = evaluate is None or callable(evaluate)
    samples = (data_of if same_data else calibration_of)(graph, data, labels, pixels)
    judged = samples if same_data else data_of(graph, evaluate, labels, pixels)
    check_labels(graph, judged)
    rows = samples.rows[:MOST_SAMPLES]
    floating = by_hand.floating(graph, float_layers) | by_hand.all_floating(graph, weight_only)
    opening = by_hand.opening(graph, weight_only)
    found = places(graph, floating, weight_only=opening)
    if not found.values and not found.opened:
        raise UsageError(f"no operator of {graph.name} has an integer form", hint="microc operators lists them")
    named = by_hand.widths(graph, (*found.weights, *found.opened), bits or {})
    floating |= by_hand.of_width(graph, named, by_hand.FLOAT_BITS)
    found = _placed(graph, floating, opening, named)
    seen = observe(graph, found.seen, rows, seed, progress)
    better = equalised(graph, seen, activations, weights)
    if better is not graph:
        graph = distinct(better)
        found = _placed(graph, floating, opening, named)
        seen = observe(graph, found.seen, rows, seed, progress)
    score, told = score_by(evaluate, judged), dict[str, Any]()
    fixed = by_hand.by_weight(graph, named)
    stored = (*found.weights, *found.opened)
    usual, by_two = by_hand.everywhere(graph, stored, weights), scales == POWER_OF_TWO

    def decide(widths: Mapping[str, int]) -> Recipe:
        every = usual | {**named, **widths}
        placed_so = _placed(graph, floating, opening, every)
        return decided(graph, placed_so, seen, activations, by_hand.of_weights(every), ranges, block, by_two)

    def repair(widths: Mapping[str, int]) -> Repaired:
        every = usual | {**fixed, **widths}
        return repaired(graph, decide(widths), by_hand.of_weights(every), rows, seed, progress)

    limits = limits_of(board, flash, ram, time, max_drop)
    if limits is None:
        best, repairs = repair(fixed)
    else:
        layers = [name for name in found.weights if name in graph.consts]
        held = split(graph, rows, seed)[1] or rows
        task = Task(graph, layers, rows, held, limits, activations, decide, repair, fixed, seed, score)
        (best, repairs), told["mixed"] = search(task)
    recipe, written = best.attempt.recipe, best.written
    comparison = compared(best.pair, judged, progress)
    report: dict[str, Any] = {
        "model": graph.name,
        "notes": [*samples.notes, *(judged.notes if judged is not samples else ())],
        "samples": len(rows),
        "evaluated_samples": len(judged.rows),
        "inputs": inputs_report(source, samples.rows, judged.rows),
        **answers_report(comparison, judged.labels),
        "values": values_report(comparison, recipe.activations),
        "repairs": repairs,
        "weights": weights_report(flattened(graph), recipe.weights),
        "floats": floats_report(written.graph, floating),
        **told,
        "settings": {"activations": activations, "weights": weights, "ranges": ranges, "seed": seed},
    }
    found_alone, names = alone(graph, samples.rows, recipe, progress), by_hand.labels(graph, stored)
    layered = rows_of(graph, recipe.activations)
    report["layers"] = layers_report(layered, recipe, comparison, found_alone, seen)
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
    report["advice"] = advice(report)
    if callable(evaluate) and score is not None:
        report["float_score"], report["score"] = score(graph), score(written.graph)
    made, exact = adapt(written.graph, boundary), adapt(written.exact, boundary)
    return Quantized(made, exact, graph, recipe, report, best.attempt.biases)


def _placed(graph: Graph, floating: frozenset[str], opening: frozenset[str], widths: Mapping[str, int]) -> Places:
    """Places where operators of some widths are wide or stay in floats, and the layers ``opening`` have integer weights alone."""
    wide, real = (by_hand.of_width(graph, widths, bits) for bits in (by_hand.WIDE_BITS, by_hand.FLOAT_BITS))
    return places(graph, floating | real, wide, opening)


def decided(
    graph: Graph,
    found: Places,
    seen: Mapping[str, Statistics],
    dtype: str,
    bits: Mapping[str, int],
    method: str,
    block: int = blocks.NONE,
    power_of_two: bool = False,
) -> Recipe:
    """How every value is stored: activations that share a scale by what all of them hold. ``bits``: of each weight; ``block``:
    of few bits, how many inputs share a multiplier; ``power_of_two``: all scales are."""
    how: dict[str, Activation] = {}
    narrowed: dict[str, Activation] = {}
    flat = flattened(graph)
    tables = {value: table_statistics(flat.consts[name]) for name, value in found.tables.items()}
    for values in found.groups().values():
        held = merged([all_of[value] for all_of in (seen, tables) for value in values if value in all_of])
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
    recipe = Recipe(how, stored, narrowed, found.widened, block, frozenset(found.opened), power_of_two)
    for node in flat.nodes:
        if node.op in LAYERS and node.inputs[1] in found.weights:
            bias = flat.consts.get(node.inputs[2]) if len(node.inputs) > 2 else None
            data = recipe.read(node)
            name = node.inputs[1]
            reals = flat.consts[name]
            own = blocks.block_of(node, reals, block)
            stored[name] = blocks.quantised_in_blocks(reals, bits[name], own, bias, data.scale, power_of_two)
    return recipe
