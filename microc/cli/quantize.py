# SPDX-License-Identifier: Apache-2.0
"""``microc quantize``: quantise a network, and show a report of the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc.cli import show
from microc.cli.declared.model_commands import QuantizeArguments
from microc.cli.project_context import check_output_paths, pixel_range, progress_callback
from microc.document.blocks import (
    Block,
    Document,
    Fact,
    Table,
    bars,
    document,
    facts,
    layer_names,
    numbers,
    prose,
    table,
    texts,
)

# ---- Report of mixed precision: the precisions that each layer may have, and the Pareto front of noise and cost.

_SHOWN_POINTS = 12
_FLOAT_BITS = 32


def mixed_precision_blocks(mixed: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the blocks that report mixed precision: a table of layers, then the Pareto front of noise and cost.

    The table shows the chosen precision of each layer, and the precisions that the layer may have."""
    rows = [
        (
            layer["layer"],
            _format_layer_bits(layer["bits"]),
            *(_describe_layer_precision(option) for option in layer["options"]),
        )
        for layer in mixed["layers"]
    ]
    columns = max((len(layer["options"]) for layer in mixed["layers"]), default=0)
    rows = [(*row, *("",) * (2 + columns - len(row))) for row in rows]
    yield table((*layer_names("layer"), *texts("bits", *("may be: bits, noise, bytes",) * columns)), rows)
    yield from _pareto_front_blocks(mixed["front"], mixed["board"], mixed["against"])


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


def _pareto_front_blocks(points: Sequence[Mapping[str, Any]], board: str, cost_name: str) -> Iterator[Block]:
    """Yield the blocks that show the Pareto front of noise and cost: a table whose bars show the cost.

    ``cost_name``: the cost, flash or cycles. Chosen and measured points are always shown; other points are thinned out."""
    step = max(1, len(points) // _SHOWN_POINTS)
    measured = [p["score"] is not None or p["decibels"] is not None for p in points]
    shown = [p for k, p in enumerate(points) if p["chosen"] or measured[k] or k % step == 0]
    least, most = points[0][cost_name], points[-1][cost_name]
    yield prose(
        f"the front on {board}: the least noise for each {cost_name}, predicted, and measured behind repairs (* is taken)"
    )
    rows = [
        (
            "*" if p["chosen"] else "",
            p["flash"],
            p["cycles"],
            format_signal_to_noise(p["noise"]),
            p["decibels"],
            p["score"],
            (p[cost_name] - least) / max(1, most - least),
        )
        for p in shown
    ]
    columns = (
        *texts(""), *numbers("flash", "cycles", "dB"), *numbers("measured", spec=".1f"), *numbers("score", spec=".4f"),
        *bars(""),
    )  # fmt: skip
    yield table(columns, rows)


# ---- The report as a document. The most important blocks come first; long tables are cut unless ``--full`` is given.

_SHOWN_ROWS = 12
"""Largest number of rows of a table without ``--full``."""
_SHOWN_CLASSES = 12
_COSTS = ("flash", "ram", "estimated_instructions", "estimated_cycles")
_SHARES = ("flash", "instructions")


def quantization_document(report: Mapping[str, Any], model: str, output_path: str, all_rows: bool) -> Document:
    """Show the report on a quantised network.

    ``model``: name of the float model's file; ``output_path``: the file to which the quantised model was written;
    ``all_rows``: True if long tables are not cut."""
    floats = report["floats"]
    return document(
        facts(_summary_rows(report, f"{model} -> {output_path}")),
        _cost_table(report["board"], report["float_cost"], report["cost"]) if "cost" in report else None,
        prose("what to try next", *(f"- {line}" for line in report["advice"])) if report["advice"] else None,
        _noisiest_layers_table(report["layers"], all_rows),
        *(_classification_blocks(report["classification"], all_rows) if "classification" in report else ()),
        *(mixed_precision_blocks(report["mixed"]) if "mixed" in report else ()),
        *(_float_operator_blocks(floats, all_rows) if floats["operators"] else ()),
        _repairs_table(report["repairs"]) if report["repairs"] else None,
    )


def _summary_rows(report: Mapping[str, Any], files: str) -> Iterator[Fact]:
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


def _cost_table(board: str, before: Mapping[str, int], after: Mapping[str, int]) -> Table:
    """Make a table of a network's costs on a board, before and after quantisation."""
    rows = [(name.replace("_", " "), before[name], after[name], after[name] / max(1, before[name])) for name in _COSTS]
    return table((*texts(f"on {board}"), *numbers("float", "quantised"), *numbers("ratio", spec=".2f")), rows)


def _noisiest_layers_table(layers: Sequence[Mapping[str, Any]], all_rows: bool) -> Table:
    """Make a table of the layers that cause the most quantisation noise, in the order of the network."""
    total = sum(map(_own_noise_of_layer, layers))
    by_noise = sorted(
        range(len(layers)), key=lambda k: (-_own_noise_of_layer(layers[k]), layers[k].get("decibels") or 0.0)
    )
    shown = sorted(by_noise if all_rows else by_noise[:_SHOWN_ROWS])
    costs = [(of, amount) for amount in _SHARES for of in ("float_cost", "cost")] if "cost" in layers[0] else []
    rows = []
    for layer in (layers[k] for k in shown):
        clipped = layer.get("clipped")
        rows.append(
            (
                layer["layer"],
                layer["dtype"],
                "/".join(map(str, layer["bits"])),
                layer.get("low"),
                layer.get("high"),
                layer.get("decibels"),
                100 * _own_noise_of_layer(layer) / total if total > 0 else None,
                clipped and 100 * clipped,
                *(None if layer[of] is None else layer[of][amount] for of, amount in costs),
            )
        )
    columns = (
        *layer_names("layer"), *texts("stored"), *numbers("bits"), *numbers("from", "to", spec=".4g"),
        *numbers("dB", "% of noise", spec=".1f"), *numbers("% saturated", spec=".2f"),
        *(numbers("flash, float", "now", "instr., float", "now") if costs else ()),
    )  # fmt: skip
    return table(columns, rows, note=_omitted_rows_note(len(layers) - len(shown), "layers, which cause less noise"))


def _own_noise_of_layer(layer: Mapping[str, Any]) -> float:
    """Return the quantisation noise that a layer itself causes: the sum for its activations and its weights."""
    return (layer["value_sensitivity"] or 0.0) + (layer["weight_sensitivity"] or 0.0)


def _omitted_rows_note(omitted_rows: int, row_kind: str) -> str:
    """Return the note below a table that states the number of omitted rows; empty if this number is 0.

    ``row_kind``: what the rows are, in the plural."""
    return f"{omitted_rows:,} more {row_kind}: --full shows all" if omitted_rows > 0 else ""


def _classification_blocks(classification: Mapping[str, Any], all_rows: bool) -> Iterator[Block]:
    """Yield the blocks about a classification: the confusion matrix, and the samples whose answer has changed.

    For many classes, the most frequent mistakes replace the confusion matrix."""
    if len(classification["confusion"]) <= _SHOWN_CLASSES:
        yield prose("answers, and by how many more than in floats")
        yield show.confusion_table(classification["confusion"], classification["float_confusion"])
    else:
        yield from _frequent_confusions_blocks(classification, all_rows)
    if classification["changed"]:
        shown = classification["changed"] if all_rows else classification["changed"][:_SHOWN_ROWS]
        rows = [(c["sample"], c["truth"], c["float"], c["quantised"]) for c in shown]
        note = _omitted_rows_note(classification["changed_count"] - len(shown), "answers changed")
        yield table(numbers("changed sample", "truth", "float", "quantised", spec=""), rows, note=note)


def _frequent_confusions_blocks(classification: Mapping[str, Any], all_rows: bool) -> Iterator[Block]:
    """Yield a table of the most frequent mistakes of the classification, if there are any."""
    from microc.quantization.quantised_page import list_frequent_confusions

    mistakes = list_frequent_confusions(classification)
    rows = mistakes if all_rows else mistakes[:_SHOWN_ROWS]
    if rows:
        note = _omitted_rows_note(len(mistakes) - len(rows), "mistakes")
        yield table(numbers("truth", "answer", "float", "quantised", spec=""), rows, note=note)


def _float_operator_blocks(float_report: Mapping[str, Any], all_rows: bool) -> Iterator[Block]:
    """Yield the share of floats, and a table of the operators that still compute in floats, with the reasons."""
    operators, count = float_report["operators"], len(float_report["operators"])
    rows = [(o["value"], o["op"], o["reason"], o["macs"]) for o in (operators if all_rows else operators[:_SHOWN_ROWS])]
    yield prose(f"{count} operators compute in floats, {100 * float_report['share']:.1f} % of multiply-accumulates")
    columns = (*layer_names("value"), *texts("operator", "why"), *numbers("MACs"))
    yield table(columns, rows, note=_omitted_rows_note(count - len(rows), "operators"))


def _repairs_table(repairs: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of the accuracy repairs that were tried.

    It shows whether each repair was kept, and the signal-to-noise ratio before and after the repair."""
    rows = [
        (repair["name"], "yes" if repair["kept"] else "no", repair["before"], repair["after"]) for repair in repairs
    ]
    return table((*texts("repair", "kept"), *numbers("dB before", "dB after", spec=".2f")), rows)


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
    shown = quantization_document(result.report, arguments.model.name, str(path), arguments.full)
    return show.Answer({"file": str(path), **result.report}, shown)
