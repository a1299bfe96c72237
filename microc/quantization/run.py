"""The steps of quantisation, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from microc.driver import accepted
from microc.driver.extended import knows_plugins
from microc.driver.model import read_model, source_of
from microc.driver.options import make_options
from microc.driver.progress import Progress, teller
from microc.driver.spoken import speaks_python
from microc.errors import UsageError
from microc.quantization import blocks, by_hand
from microc.quantization.calibrated import calibrated, in_better_units
from microc.quantization.config import Config
from microc.quantization.limits import limits_of
from microc.quantization.mixed import search
from microc.quantization.prepare import prepared
from microc.quantization.quantized import Quantized
from microc.quantization.ranges import AUTO, METHODS
from microc.quantization.report.advice import advice
from microc.quantization.report.whole import reported
from microc.quantization.samples import calibration_of, data_of
from microc.quantization.score import check_labels, score_by
from microc.quantization.task import Task
from microc.target import Board
from microc.transform.boundary import Boundary, adapt

if TYPE_CHECKING:
    from microc.driver.options.typed import ReadingOptions

ANY, POWER_OF_TWO = "any", "power-of-two"
ACTIVATIONS = ("int8", "uint8", "int16")
MOST_SAMPLES, MOST_STEPS = 512, 4096
"""How many samples are calibrated with at most; where they are steps of sequences."""


@speaks_python
@knows_plugins
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
    dynamic_range: Sequence[str] = (),
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
    progress: Progress | bool | None = None,
    **options: Unpack[ReadingOptions],
) -> Quantized:
    """Quantise a float network: anything that :func:`microc.compile` takes, in float32.

    ``data``: typical inputs, some tens to some hundreds (:func:`microc.quantization.samples.data_of`); of a network that keeps
    state, the samples of one sequence, or sequences along one axis more. ``activations``: int8,
    uint8 or int16. ``weights``: 8, 4 or 2 bits; ``block``: of the latter two, how many inputs (16, 32, 64) share a multiplier
    beside the scale of their channel (:mod:`microc.quantization.blocks`). ``scales``: any, or power-of-two. ``ranges``: an
    estimator of :mod:`microc.quantization.ranges`.

    ``bits``: those of some operators, by name: of the weights, 16 for activations of int16 (weights of 8 bits), 32 for
    floats; ``float_layers``: which stay in floats; ``weight_only``: which compute in floats on integer weights;
    ``dynamic_range``: which quantise their data when they are there, row by row, and scale sums of integers to floats; of both,
    ``["all"]``: every one that can, and all else in floats. With limits, bits of all other layers are searched
    (:mod:`microc.quantization.mixed`): ``flash`` and ``ram`` in bytes and ``time`` of a run in seconds, as they are estimated
    for ``board``, are kept with the least noise; ``max_drop``, of the accuracy (0.01 is a point) or of what ``evaluate`` gives,
    with the least flash; where 8 bits lose more, with 16 or floats in some layers, in the least time. FitError where no bits
    keep them.

    Inputs and outputs are the float network's unless ``input_dtype`` and ``output_dtype``, of the options, say int8 or uint8.

    ``evaluate``: data of the same kinds, with labels where ``labels`` names them, on which both networks are compared (the
    calibration data unless given); or a function of a network (called with one array for each input) that gives a score,
    larger is better. ``pixels``: the reals of pixels 0 and 255, of pictures. ``seed``: of what is held
    back; ``progress``: True shows stages, a function of what, done and total hears of them. ``options`` are those of
    :class:`microc.CompileOptions` that speak of reading. Everything refused is a
    :class:`~microc.errors.MicrocError`.
    """
    accepted.choice("activations", activations, ACTIVATIONS)
    accepted.choice("weights", weights, by_hand.BITS)
    accepted.choice("block", block, blocks.SIZES)
    if block and (weight_only or dynamic_range):
        raise UsageError(
            "weights of layers in floats have one scale for each channel, no multipliers by blocks",
            hint="leave out block (--block), or weight_only and dynamic_range (--weight-only, --dynamic-range)",
        )
    accepted.choice("scales", scales, (ANY, POWER_OF_TWO))
    accepted.choice("ranges", ranges, METHODS)
    told = teller(progress)
    limits = limits_of(board, flash, ram, time, max_drop)
    chosen_options = make_options(**options)
    reading, ends = replace(chosen_options, input_dtype={}, output_dtype={}), chosen_options
    boundary = Boundary(ends.input_dtype, ends.output_dtype)
    source = read_model(source_of(model, reading), reading)
    graph = prepared(source, reading)
    same_data = evaluate is None or callable(evaluate)
    colours = reading.input_colour
    samples = (data_of if same_data else calibration_of)(graph, data, labels, pixels, colours)
    judged = samples if same_data else data_of(graph, evaluate, labels, pixels, colours)
    check_labels(graph, judged)
    rows = samples.rows[: MOST_SAMPLES if samples.steps == 1 else MOST_STEPS]
    floating = by_hand.floating(graph, float_layers) | by_hand.all_floating(graph, weight_only, dynamic_range)
    by_rows = by_hand.by_rows(graph, dynamic_range)
    opening = by_hand.opening(graph, weight_only)
    if opening & by_rows:
        raise UsageError(
            f"{min(opening & by_rows)!r} is named by weight_only and by dynamic_range",
            hint="a layer computes in floats on integer weights, or quantises its data: name it in one of them",
        )
    config = Config(
        activations, weights, block, scales == POWER_OF_TWO, ranges, floating, opening | by_rows, by_rows
    ).named(graph, bits or {})
    network, equalising = in_better_units(calibrated(graph, config, rows, seed, told))
    score, searched = score_by(evaluate, judged), None
    if limits is None:
        best, repairs = network.repaired(network.fixed)
    else:
        (best, repairs), searched = search(Task(network, limits, score))
    report = reported(source, network, best, samples, judged, board, told)
    report["repairs"] = [*equalising, *repairs]
    if searched is not None:
        report["mixed"] = searched
    report["advice"] = advice(report)
    written = best.written
    if callable(evaluate) and score is not None:
        report["float_score"], report["score"] = score(network.graph), score(written.graph)
    made, exact = adapt(written.graph, boundary), adapt(written.exact, boundary)
    return Quantized(made, exact, network.graph, best.attempt.recipe, report, best.attempt.biases)
