# SPDX-License-Identifier: Apache-2.0
"""Quantise a network: run the steps of quantisation in order, and return their result, or a module that trains with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from microc.compiler import validation
from microc.compiler.interaction import Progress, as_callback, convert_flags_in_errors
from microc.compiler.model import read_model, registers_plugins, resolve_model
from microc.compiler.options import make_options
from microc.errors import ToolError, UsageError
from microc.quantization import decisions, integer_scheme
from microc.quantization.calibration_data import (
    check_labels,
    choose_score,
    convert_calibration_data,
    convert_to_samples,
)
from microc.quantization.decisions import (
    AUTO,
    METHODS,
    QuantisationConfig,
    calibrate,
    equalise_network,
    normalise_float_graph,
)
from microc.quantization.mixed_bits import BitSearch, check_limits, search_bits
from microc.quantization.quantised_page import Quantized
from microc.quantization.quantised_report import advice, build_report
from microc.target import Board
from microc.transform.boundary import Boundary, adapt_inputs_and_outputs

if TYPE_CHECKING:
    from microc.compiler.option_values import ReadingOptions
    from microc.quantization.training import FakeQuantized


# ---- The function that runs the steps of quantisation in order.

ANY, POWER_OF_TWO = "any", "power-of-two"
ACTIVATIONS = ("int8", "uint8", "int16")
MOST_SAMPLES, MOST_STEPS = 512, 4096
"""Maximum number of calibration samples that are used: without sequences, and if the samples form sequences."""


@convert_flags_in_errors
@registers_plugins
def quantize(
    model: Any,
    data: Any,
    *,
    activations: str = "int8",
    weights: int = 8,
    block: int = integer_scheme.NONE,
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
    """Quantise a float network after training. ``model``: anything that :func:`microc.compile` accepts, in float32.

    ``data``: typical inputs, some tens to some hundreds
    (:func:`microc.quantization.calibration_data.convert_to_samples`). For a network with state, they are the samples of
    one sequence, or sequences along an additional axis. ``activations``: dtype of activations: int8, uint8 or int16.
    ``weights``: number of bits of weights: 8, 4 or 2. ``block``: for weights of 4 and 2 bits, the number of inputs (16,
    32, 64) that share a multiplier of their channel's scale (:mod:`microc.quantization.integer_scheme`). ``scales``:
    any, or power-of-two. ``ranges``: name of an estimator of ranges (:mod:`microc.quantization.decisions`).

    ``bits``: numbers of bits of single operators, by name: 8, 4 or 2 are bits of the weights, 16 means int16
    activations with 8-bit weights, and 32 means floats. ``float_layers``: operators that are computed in floats.
    ``weight_only``: layers that compute in floats and have integer weights. ``dynamic_range``: layers that quantise
    their data at run time, with a scale for each row, and scale their integer sums to floats. For ``weight_only`` and
    ``dynamic_range``, ``["all"]`` selects every layer that supports it; all other operators are then computed in
    floats.

    If limits are set, the numbers of bits of all other layers are searched (:mod:`microc.quantization.mixed_bits`).
    ``flash`` and ``ram`` limit bytes, and ``time`` limits a run in seconds, all estimated for ``board``; the network
    with the least noise within these limits is chosen. ``max_drop`` limits the loss of accuracy (0.01 is one percentage
    point) or of the score that ``evaluate`` returns; the network with the least flash within this limit is chosen. If
    weights of 8 bits lose more, some layers get 16 bits or floats, and the fastest such network is chosen. Raises
    FitError if every choice of bits exceeds a limit.

    Inputs and outputs have the dtypes of the float network, unless the options ``input_dtype`` and ``output_dtype`` are
    int8 or uint8.

    ``evaluate``: data on which the float and the quantised network are compared, of the same types as ``data``
    (default: the calibration data); ``labels`` names its labels. Or a function that is called with a network, which is
    itself a function of one array for each input, and returns a score; a larger score is better. ``pixels``: the real
    numbers for the pixel values 0 and 255 of pictures. ``seed``: seed of the random choice of held-back samples.
    ``progress``: True to show the stages; a function is called with the stage, the number of finished steps and the
    number of all steps. ``options``: the reading options of :class:`microc.CompileOptions`. Every error is a
    :class:`~microc.errors.MicrocError`."""
    validation.as_known_value("activations", activations, ACTIVATIONS)
    validation.as_known_value("weights", weights, decisions.BITS)
    validation.as_known_value("block", block, integer_scheme.SIZES)
    if block and (weight_only or dynamic_range):
        raise UsageError(
            "block cannot be combined with weight_only and dynamic_range, whose weights have one scale for each channel; "
            f"got block {block}",
            hint="leave out block (--block), or weight_only and dynamic_range (--weight-only, --dynamic-range)",
        )
    validation.as_known_value("scales", scales, (ANY, POWER_OF_TWO))
    validation.as_known_value("ranges", ranges, METHODS)
    report_progress = as_callback(progress)
    limits = check_limits(board, flash, ram, time, max_drop)
    all_options = make_options(**options)
    reading, ends = replace(all_options, input_dtype={}, output_dtype={}), all_options
    boundary = Boundary(ends.input_dtype, ends.output_dtype)
    source = read_model(resolve_model(model, reading), reading)
    graph = normalise_float_graph(source, reading)
    same_data = evaluate is None or callable(evaluate)
    colours = reading.input_colour
    samples = (convert_to_samples if same_data else convert_calibration_data)(graph, data, labels, pixels, colours)
    evaluation_data = samples if same_data else convert_to_samples(graph, evaluate, labels, pixels, colours)
    check_labels(graph, evaluation_data)
    rows = samples.rows[: MOST_SAMPLES if samples.samples_per_sequence == 1 else MOST_STEPS]
    float_results = decisions.find_float_results(graph, float_layers) | decisions.all_values_if_all_layers_listed(
        graph, weight_only, dynamic_range
    )
    by_rows = decisions.find_dynamic_results(graph, dynamic_range)
    weight_only_layers = decisions.find_weight_only_results(graph, weight_only)
    if weight_only_layers & by_rows:
        raise UsageError(
            f"{min(weight_only_layers & by_rows)!r} is named in both weight_only and dynamic_range, expected one of them",
            hint="name it in weight_only to compute in floats, or in dynamic_range to quantise its data",
        )
    config = QuantisationConfig(
        activations,
        weights,
        block,
        scales == POWER_OF_TWO,
        ranges,
        float_results,
        weight_only_layers | by_rows,
        by_rows,
    ).with_named_bits(graph, bits or {})
    network, equalising = equalise_network(calibrate(graph, config, rows, seed, report_progress))
    score, search_report = choose_score(evaluate, evaluation_data), None
    if limits is None:
        best, repairs = network.quantise_and_repair(network.bits_set_by_user)
    else:
        (best, repairs), search_report = search_bits(BitSearch(network, limits, score))
    report = build_report(source, network, best, samples, evaluation_data, board, report_progress)
    report["repairs"] = [*equalising, *repairs]
    if search_report is not None:
        report["mixed"] = search_report
    report["advice"] = advice(report)
    written = best.written
    if callable(evaluate) and score is not None:
        report["float_score"], report["score"] = score(network.graph), score(written.graph)
    integer_graph, exact = (
        adapt_inputs_and_outputs(written.graph, boundary),
        adapt_inputs_and_outputs(written.exact, boundary),
    )
    return Quantized(integer_graph, exact, network.graph, best.attempt.recipe, report, best.attempt.biases)


# ---- Training: a PyTorch module that knows the integers of the network which it becomes.

_NOT_TRAINED = MappingProxyType({"block": integer_scheme.NONE, "weight_only": (), "dynamic_range": (), "scales": ANY})
"""Options of :func:`microc.quantize` that training cannot simulate, with their defaults, which are the only permitted values."""


@registers_plugins
def fake_quantize(model: Any, data: Any, **options: Any) -> FakeQuantized:
    """Return a ``torch.nn.Module`` for quantisation-aware training of a network.

    ``model``: a ``torch.nn.Module``, which is exported in eval mode, or anything else that :func:`microc.quantize` accepts, such
    as an ONNX file, which is then trained in PyTorch as well. ``data``: typical inputs for calibration, as a tensor or an array
    with the samples along the first axis; for several inputs a tuple of tensors or arrays. ``options``: options of
    :func:`microc.quantize` except block, weight_only, dynamic_range and scales.

    The module starts as the integer network that ``microc.quantize`` returns. In training and in evaluation it computes the
    outputs of the integer network that its present weights are quantised to; ``quantized()`` returns this network. Raises
    ToolError without PyTorch, UnsupportedError for loops, state and operators without a known gradient, and otherwise the errors
    of :func:`microc.quantize`.
    """
    try:
        import torch
    except ImportError as error:
        raise ToolError(
            "training needs PyTorch, which is not installed", hint='install it: pip install "microc[torch]"'
        ) from error
    from microc.quantization.training import FakeQuantized

    for name, default in _NOT_TRAINED.items():
        if options.get(name, default) != default:
            raise UsageError(
                f"{name}: training cannot simulate {options[name]!r}, expected {default!r}", hint=f"leave out {name}"
            )
    inputs = data if isinstance(data, tuple) else (data,)
    if isinstance(model, torch.nn.Module):
        if not all(hasattr(array, "shape") and len(array) for array in inputs):
            raise UsageError(
                "data: expected arrays with one sample at least, since a module is exported with the first one; "
                f"got {', '.join(type(array).__name__ for array in inputs)}",
                hint="give a tensor with the samples along the first axis, for several inputs a tuple of tensors",
            )
        model = torch.export.export(model.eval(), tuple(torch.as_tensor(array[:1]) for array in inputs))
    arrays = tuple(array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array for array in inputs)
    return FakeQuantized(quantize(model, arrays if isinstance(data, tuple) else arrays[0], **options))
