"""``microc quantize``: quantise a network, and print a report of the loss as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc.cli import show
from microc.cli.declared.model_commands import QuantizeArguments
from microc.cli.project_context import check_output_paths, pixel_range, progress_callback

# ---- Report of mixed precision: the precisions that each layer may have, and the Pareto front of noise and cost.

_SHOWN_POINTS = 12
_BAR_COLUMNS = 30
_FLOAT_BITS = 32


def mixed_precision_paragraphs(mixed: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paragraphs that report mixed precision: a table of layers, then the Pareto front of noise and cost.

    The table shows the chosen precision of each layer, and the precisions that the layer may have."""
    rows = [
        (
            show.fit_layer_name(layer["layer"]),
            _format_layer_bits(layer["bits"]),
            *(_describe_layer_precision(option) for option in layer["options"]),
        )
        for layer in mixed["layers"]
    ]
    columns = max((len(layer["options"]) for layer in mixed["layers"]), default=0)
    rows = [(*row, *("",) * (2 + columns - len(row))) for row in rows]
    yield show.format_table(("layer", "bits", *("may be: bits, noise, bytes",) * columns), rows, 1 + columns)
    yield "\n".join(_pareto_front_lines(mixed["front"], mixed["board"], mixed["against"]))


def _describe_layer_precision(precision: Mapping[str, Any]) -> str:
    """Format one precision that a layer may have: number of bits, signal-to-noise ratio, bytes of flash."""
    bits, ratio = _format_layer_bits(precision["bits"]), format_signal_to_noise(precision["noise"])
    return f"{bits}: {ratio} dB, {show.format_integer(precision['flash'])}"


def _format_layer_bits(bits: int) -> str:
    """Format the precision of a layer: its number of bits, or ``float``."""
    return "float" if bits == _FLOAT_BITS else str(bits)


def format_signal_to_noise(noise: float) -> str:
    """Format noise power, relative to the signal, as a signal-to-noise ratio in decibels."""
    return f"{-10 * math.log10(noise):.1f}" if noise > 0 else "no noise"


def _pareto_front_lines(points: Sequence[Mapping[str, Any]], board: str, cost_name: str) -> Iterator[str]:
    """Yield the lines that show the Pareto front of noise and cost: a table whose bars show the cost.

    ``cost_name``: the cost, flash or cycles. Chosen and measured points are always shown; other points are thinned out."""
    step = max(1, len(points) // _SHOWN_POINTS)
    measured = [p["score"] is not None or p["decibels"] is not None for p in points]
    shown = [p for k, p in enumerate(points) if p["chosen"] or measured[k] or k % step == 0]
    least, most = points[0][cost_name], points[-1][cost_name]
    yield f"the front on {board}: the least noise for each {cost_name}, predicted, and measured behind repairs (* is taken)\n"
    rows = []
    for p in shown:
        bar = "#" * (1 + round(_BAR_COLUMNS * (p[cost_name] - least) / max(1, most - least)))
        decibels_text = "" if p["decibels"] is None else f"{p['decibels']:.1f}"
        score = "" if p["score"] is None else f"{p['score']:.4f}"
        sizes = show.format_integer(p["flash"]), show.format_integer(p["cycles"])
        rows.append(("*" if p["chosen"] else "", *sizes, format_signal_to_noise(p["noise"]), decibels_text, score, bar))
    yield show.format_table(("", "flash", "cycles", "dB", "measured", "score", ""), rows)


# ---- The report as text. The most important paragraphs come first; long tables are cut unless ``--full`` is given.

_SHOWN_ROWS = 12
"""Largest number of rows of a table without ``--full``."""
_SHOWN_CLASSES = 12
_COSTS = ("flash", "ram", "estimated_instructions", "estimated_cycles")
_SHARES = ("flash", "instructions")


def quantization_paragraphs(report: Mapping[str, Any], model: str, output_path: str, all_rows: bool) -> Iterator[str]:
    """Yield the paragraphs of the report on a quantised network.

    ``model``: name of the float model's file; ``output_path``: the file to which the quantised model was written;
    ``all_rows``: True if long tables are not cut."""
    yield show.format_pairs(list(_summary_rows(report, f"{model} -> {output_path}")))
    if "cost" in report:
        yield _format_cost_table(report["board"], report["float_cost"], report["cost"])
    if report["advice"]:
        yield "what to try next\n" + "\n".join(f"- {line}" for line in report["advice"])
    yield _format_noisiest_layers_table(report["layers"], all_rows)
    if "classification" in report:
        yield from _classification_paragraphs(report["classification"], all_rows)
    if "mixed" in report:
        yield from mixed_precision_paragraphs(report["mixed"])
    if report["floats"]["operators"]:
        yield _format_float_operators_table(report["floats"], all_rows)
    if report["repairs"]:
        yield _format_repairs_table(report["repairs"])


def _summary_rows(report: Mapping[str, Any], files: str) -> Iterator[tuple[str, object]]:
    """Yield the rows of the summary: number of samples, difference of each output from that of the float network, accuracy.

    ``files``: text that names the files of both models."""
    yield "model", files
    yield "samples", f"{report['samples']} for calibration, {report['evaluated_samples']} for comparison"
    yield from (("  note", note) for note in report["notes"])
    for output in report["outputs"]:
        closeness = "identical" if output["decibels"] is None else f"{output['decibels']:.1f} dB above the noise"
        yield (
            f"output {show.fit_layer_name(output['name'])}",
            f"{closeness}, largest difference {output['largest_difference']:.3g}",
        )
    if "classification" in report:
        classes = report["classification"]
        before, after = 100 * classes["float_accuracy"], 100 * classes["accuracy"]
        yield "accuracy", f"{before:.2f} % -> {after:.2f} % of {show.format_integer(classes['samples'])} samples"
    if "score" in report:
        yield "score", f"{report['float_score']:.5g} -> {report['score']:.5g}"


def _format_cost_table(board: str, before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Format a table of a network's costs on a board, before and after quantisation."""
    rows = []
    for name in _COSTS:
        ratio = f"{after[name] / max(1, before[name]):.2f}"
        rows.append(
            (name.replace("_", " "), show.format_integer(before[name]), show.format_integer(after[name]), ratio)
        )
    return show.format_table((f"on {board}", "float", "quantised", "ratio"), rows)


def _format_noisiest_layers_table(layers: Sequence[Mapping[str, Any]], all_rows: bool) -> str:
    """Format a table of the layers that cause the most quantisation noise, in the order of the network."""
    total = sum(map(_own_noise_of_layer, layers))
    by_noise = sorted(
        range(len(layers)), key=lambda k: (-_own_noise_of_layer(layers[k]), layers[k].get("decibels") or 0.0)
    )
    shown = sorted(by_noise if all_rows else by_noise[:_SHOWN_ROWS])
    costs = [(of, amount) for amount in _SHARES for of in ("float_cost", "cost")] if "cost" in layers[0] else []
    rows = []
    for layer in (layers[k] for k in shown):
        span = [_format_or_empty(layer.get(name), "{:.4g}") for name in ("low", "high")]
        share = f"{100 * _own_noise_of_layer(layer) / total:.1f}" if total > 0 else ""
        clipped = layer.get("clipped")
        quality = (
            _format_or_empty(layer.get("decibels"), "{:.1f}"),
            share,
            _format_or_empty(clipped and 100 * clipped, "{:.2f}"),
        )
        costs_text = ("" if layer[of] is None else show.format_integer(layer[of][amount]) for of, amount in costs)
        bits = "/".join(map(str, layer["bits"]))
        rows.append((show.fit_layer_name(layer["layer"]), layer["dtype"], bits, *span, *quality, *costs_text))
    prices = ("flash, float", "now", "instr., float", "now") if costs else ()
    head = ("layer", "stored", "bits", "from", "to", "dB", "% of noise", "% saturated", *prices)
    return _add_note_on_omitted_rows(
        show.format_table(head, rows, 2), len(layers) - len(shown), "layers, which cause less noise"
    )


def _own_noise_of_layer(layer: Mapping[str, Any]) -> float:
    """Return the quantisation noise that a layer itself causes: the sum for its activations and its weights."""
    return (layer["value_sensitivity"] or 0.0) + (layer["weight_sensitivity"] or 0.0)


def _format_or_empty(number: float | None, format_spec: str) -> str:
    """Format a number with the format string ``format_spec``; return an empty text for None."""
    return "" if number is None else format_spec.format(number)


def _add_note_on_omitted_rows(text: str, omitted_rows: int, row_kind: str) -> str:
    """Add a line to a formatted table that states the number of omitted rows, unless this number is 0.

    ``row_kind``: what the rows are, in the plural."""
    return (
        f"{text}\n{show.format_integer(omitted_rows)} more {row_kind}: --full shows all" if omitted_rows > 0 else text
    )


def _classification_paragraphs(classification: Mapping[str, Any], all_rows: bool) -> Iterator[str]:
    """Yield the paragraphs about a classification: the confusion matrix, and the samples whose answer has changed.

    For many classes, the most frequent mistakes replace the confusion matrix."""
    if len(classification["confusion"]) <= _SHOWN_CLASSES:
        matrix = show.confusion_table(classification["confusion"], classification["float_confusion"])
        yield f"answers, and by how many more than in floats\n\n{matrix}"
    else:
        yield from _list_frequent_confusions_paragraph(classification, all_rows)
    if classification["changed"]:
        shown = classification["changed"] if all_rows else classification["changed"][:_SHOWN_ROWS]
        rows = [(c["sample"], c["truth"], c["float"], c["quantised"]) for c in shown]
        table = show.format_table(("changed sample", "truth", "float", "quantised"), rows, 0)
        yield _add_note_on_omitted_rows(table, classification["changed_count"] - len(shown), "answers changed")


def _list_frequent_confusions_paragraph(classification: Mapping[str, Any], all_rows: bool) -> Iterator[str]:
    """Yield a table of the most frequent mistakes of the classification, if there are any."""
    from microc.quantization.quantised_page import list_frequent_confusions

    mistakes = list_frequent_confusions(classification)
    rows = mistakes if all_rows else mistakes[:_SHOWN_ROWS]
    if rows:
        yield _add_note_on_omitted_rows(
            show.format_table(("truth", "answer", "float", "quantised"), rows, 0), len(mistakes) - len(rows), "mistakes"
        )


def _format_float_operators_table(float_report: Mapping[str, Any], all_rows: bool) -> str:
    """Format a table of the operators that still compute in floats, with the reasons."""
    operators = float_report["operators"] if all_rows else float_report["operators"][:_SHOWN_ROWS]
    rows = [
        (
            show.fit_layer_name(operator["value"]),
            operator["op"],
            operator["reason"],
            show.format_integer(operator["macs"]),
        )
        for operator in operators
    ]
    count = len(float_report["operators"])
    head = f"{count} operators compute in floats, {100 * float_report['share']:.1f} % of multiply-accumulates"
    table = show.format_table(("value", "operator", "why", "MACs"), rows, 3)
    return f"{head}\n\n{_add_note_on_omitted_rows(table, count - len(rows), 'operators')}"


def _format_repairs_table(repairs: Sequence[Mapping[str, Any]]) -> str:
    """Format a table of the accuracy repairs that were tried.

    It shows whether each repair was kept, and the signal-to-noise ratio before and after the repair."""
    rows = [
        (repair["name"], "yes" if repair["kept"] else "no", f"{repair['before']:.2f}", f"{repair['after']:.2f}")
        for repair in repairs
    ]
    return show.format_table(("repair", "kept", "dB before", "dB after"), rows, 2)


# ---- The command.


def run_quantize_command(arguments: QuantizeArguments) -> show.Answer:
    """Run ``microc quantize``: quantise a float network to integers, and measure the loss of accuracy."""
    from microc import quantization

    check_output_paths(**{"-o": arguments.output, "--html": arguments.html})
    result = quantization.quantize(
        arguments.model,
        arguments.data,
        activations=arguments.activations,
        weights=arguments.weights,
        block=arguments.block,
        scales=arguments.scales,
        bits=dict(arguments.layers),
        float_layers=arguments.float_layers,
        weight_only=arguments.weight_only,
        dynamic_range=arguments.dynamic_range,
        board=arguments.board,
        flash=arguments.flash,
        ram=arguments.ram,
        time=arguments.time,
        max_drop=arguments.max_drop,
        ranges=arguments.ranges,
        evaluate=arguments.evaluation,
        labels=arguments.labels,
        pixels=pixel_range(arguments.pixels, [arguments.data, arguments.evaluation]),
        seed=arguments.seed,
        progress=progress_callback(arguments),
        **arguments.options,
    )
    path = result.save(arguments.output)
    if arguments.html is not None:
        result.save_report(arguments.html)
    text = "\n\n".join(quantization_paragraphs(result.report, arguments.model.name, str(path), arguments.full))
    return show.Answer({"file": str(path), **result.report}, text)
