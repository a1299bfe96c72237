"""Quality of a quantised network: comparison with the float network, and the HTML page of the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from microc import __version__
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.render import render_html
from microc.compiler.interaction import Progress
from microc.graph.ir import Graph
from microc.quantization.calibration_data import SampleData, classify_outputs
from microc.quantization.integer_scheme import Activation, Weight
from microc.quantization.network_noise import NetworkPair
from microc.quantization.network_structure import End
from microc.reports.drawings import Matrix, Plot, Point, draw_confusion, draw_plot
from microc.reports.page import Fact

# ---- Quality of a quantised network, compared with the float one value by value and output by output.
#
# The ratio of signal to noise of a value is 10 log10(sum of squares / sum of squared differences) in decibels; 40 dB are 1 %
# of noise.

_SHOWN_CHANGES = 100
"""Limit of changed answers in the report."""


@dataclass
class Noise:
    """Sums over samples of a value, or of its measured part at an ``end``: squares of the float values and of the
    differences, and the number of saturated elements."""

    signal: float = 0.0
    noise: float = 0.0
    clipped: int = 0
    elements: int = 0
    end: End = field(default_factory=lambda: End(""))

    def add(self, real: Array, stored: Array, kind: Any) -> None:
        """Add the float values of one sample and their stored form of type ``kind``."""
        values = stored.astype(np.float64)
        if kind.quant is not None:
            scale, zero = kind.quant.scale[0], kind.quant.zero_point[0]
            low, high = ((end - zero) * scale for end in dtypes.int_range(kind.dtype))
            self.clipped += int(((real < low - scale / 2) | (real > high + scale / 2)).sum())
            values = (values - zero) * scale
        self.signal += float(np.square(self.end.seen(real)).sum())
        self.noise += float(np.square(self.end.seen(values - real)).sum())
        self.elements += real.size

    @property
    def decibels(self) -> float | None:
        """Signal-to-noise ratio; None without noise or without signal."""
        return 10 * float(np.log10(self.signal / self.noise)) if self.signal > 0 and self.noise > 0 else None


@dataclass
class Comparison:
    """The float and the quantised network, compared on the same samples. ``values``: noise of each value; ``answers``:
    outputs by name, of the float network and of the quantised one."""

    values: dict[str, Noise] = field(default_factory=dict)
    answers: tuple[dict[str, Array], dict[str, Array]] = field(default_factory=lambda: ({}, {}))


def compare_networks(pair: NetworkPair, data: SampleData, progress: Progress | None = None) -> Comparison:
    """Run the float network and the quantised one on the data and compare them."""
    comparison, rows = Comparison({value: Noise() for value in pair.names}), (list[Any](), list[Any]())
    for number, (real, integer) in enumerate(pair.rows(data.rows)):
        if progress is not None:
            progress("comparison", number, len(data.rows))
        for name, kind, a, b in zip(pair.names, pair.kinds, real, integer, strict=True):
            comparison.values[name].add(a, b, kind)
        rows[0].append(real[: len(pair.ends)])
        rows[1].append(integer[: len(pair.ends)])
    for answers, output_rows in zip(comparison.answers, rows, strict=True):
        answers.update({name: np.stack([row[k] for row in output_rows]) for k, name in enumerate(pair.ends)})
    return comparison


def answers_report(comparison: Comparison, data: SampleData) -> dict[str, Any]:
    """Report the outputs of both networks: signal-to-noise ratio; with labels, the accuracy of each network and the
    answers that changed."""
    report: dict[str, Any] = {
        "outputs": [
            {
                "name": name,
                "decibels": comparison.values[name].decibels,
                "largest_difference": _largest_difference(comparison, name),
            }
            | {"variation": _relative_variation(comparison.answers[0][name])}
            for name in comparison.answers[0]
        ]
    }
    labels = data.labels
    if labels is None:
        return report
    labelled_answers = (
        {name: data.select_labelled(rows) for name, rows in answers.items()} for answers in comparison.answers
    )
    real, integer = (classify_outputs(answers, labels) for answers in labelled_answers)
    first, second = real.answers, integer.answers
    changed = np.flatnonzero(first != second)
    report["classification"] = {
        "output": real.output,
        "samples": len(labels),
        "float_accuracy": real.accuracy,
        "accuracy": integer.accuracy,
        "float_confusion": real.confusion.tolist(),
        "confusion": integer.confusion.tolist(),
        "changed": [
            {"sample": int(k), "truth": int(labels[k]), "float": int(first[k]), "quantised": int(second[k])}
            for k in changed[:_SHOWN_CHANGES]
        ],
        "changed_count": len(changed),
        "lost": int(((first == labels) & (second != labels)).sum()),
        "gained": int(((first != labels) & (second == labels)).sum()),
    }
    return report


def _relative_variation(answers: Array) -> float:
    """Return the variation of an output of the float network over the samples: RMS distance from the mean, relative to the
    output's RMS."""
    reals = answers.astype(np.float64)
    size = float(np.square(reals).mean())
    return float(np.sqrt(np.square(reals - reals.mean(axis=0)).mean() / size)) if size > 0 else 0.0


def _largest_difference(comparison: Comparison, name: str) -> float:
    """Return the largest absolute difference between both networks' results of an output."""
    a, b = (answers[name].astype(np.float64) for answers in comparison.answers)
    return float(np.abs(a - b).max(initial=0.0))


def values_report(comparison: Comparison, recipe: Mapping[str, Activation]) -> list[dict[str, Any]]:
    """Report every quantised value: type, range, signal-to-noise ratio and saturated share."""
    lines = []
    for name, noise in comparison.values.items():
        storage = recipe.get(name)
        if storage is None:
            continue
        low, high = ((end - storage.zero_point) * storage.scale for end in dtypes.int_range(storage.dtype))
        lines.append(
            {
                "value": name,
                "dtype": storage.dtype,
                "low": low,
                "high": high,
                "decibels": noise.decibels,
                "clipped": noise.clipped / max(1, noise.elements),
            }
        )
    return lines


def weights_report(graph: Graph, recipe: Mapping[str, Weight]) -> list[dict[str, Any]]:
    """Report every stored constant: elements, bits, signal-to-noise ratio."""
    lines = []
    for name, weight in recipe.items():
        noise = Noise()
        reals = graph.consts[name].astype(np.float64)
        noise.signal, noise.noise = float(np.square(reals).sum()), float(np.square(weight.real - reals).sum())
        bits = stored_bits(weight.data)
        lines.append({"constant": name, "elements": reals.size, "bits": bits, "decibels": noise.decibels})
    return lines


def stored_bits(data: Array) -> int:
    """Return the fewest bits, at least 2, in which these integers fit."""
    low, high = int(data.min(initial=0)), int(data.max(initial=0))
    return max(2, high.bit_length() + 1, (~low).bit_length() + 1)


def frequent_mistakes(classification: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """Return the wrong answers of a classification: true class, answered class, their number in the float network and in
    the quantised one; those that are most frequent in the quantised one first."""
    before, after = (np.array(classification[name]) for name in ("float_confusion", "confusion"))
    wrong = np.argwhere((before + after) * (1 - np.eye(len(after), dtype=np.int64)))
    mistakes = [(int(t), int(a), int(before[t, a]), int(after[t, a])) for t, a in wrong]
    return sorted(mistakes, key=lambda m: (-m[3], -m[2], m[0], m[1]))


def noisiest_lines(lines: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return the ``count`` lines of a report with the lowest signal-to-noise ratios."""
    known = [line for line in lines if line["decibels"] is not None]
    return sorted(known, key=lambda line: float(line["decibels"]))[:count]


# ---- The report as one HTML page, in the style of ``microc profile``.

_MOST_CLASSES = 32
_MOST_CONFUSED = 20
_SILENT = 120.0
"""Decibels at which a network without noise is drawn."""
_MEASURED = (("score", "score {:.4f}"), ("decibels", "{:.1f} dB"))
Number = tuple[float, str]
"""A number to sort by, and its text."""


@frozen
class LayerTableRow:
    """A row of the page's table of layers: the bar of the layer's signal-to-noise ratio in percent of the longest, and its
    numbers."""

    number: int
    layer: str
    ops: str
    stored: str
    length: str
    decibels: str
    cells: tuple[Number, ...]


@frozen
class Table:
    """A table of text on the page; the first ``left`` columns are left-aligned words."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@frozen
class QuantizedContext:
    """Data of the template ``report/quantized.html.j2``. ``advice`` and tables may be empty; ``matrix`` is None for many
    classes."""

    title: str
    board: str
    facts: tuple[Fact, ...]
    advice: tuple[str, ...]
    classified: bool
    matrix: Matrix | None
    confused: Table
    changed: Table
    changed_note: str
    rows: tuple[LayerTableRow, ...]
    columns: tuple[str, ...]
    plots: tuple[Plot, ...]
    repairs: Table
    floats: Table
    floats_note: str
    origin: tuple[tuple[str, str], ...]


def to_html(report: Mapping[str, Any]) -> str:
    """Return the page of a report (:class:`microc.quantization.Quantized`). Equal reports give equal pages."""
    classification, floats = report.get("classification"), report["floats"]
    small = classification is not None and len(classification["confusion"]) <= _MOST_CLASSES
    context = QuantizedContext(
        title=report["model"],
        board=report.get("board", ""),
        facts=tuple(_page_facts(report)),
        advice=tuple(report["advice"]),
        classified=classification is not None,
        matrix=draw_confusion(classification["confusion"], classification["float_confusion"])
        if classification is not None and small
        else None,
        confused=Table(("truth", "answer", "float", "quantised"), tuple(_confusion_rows(classification, small)), 0),
        changed=Table(("sample", "truth", "float", "quantised"), tuple(_changed_rows(classification)), 0),
        changed_note=_changed_note(classification),
        rows=tuple(_layer_table_rows(report["layers"])),
        columns=tuple(_layer_columns(report["layers"])),
        plots=tuple(_noise_plots(report["mixed"])) if "mixed" in report else (),
        repairs=Table(("repair", "dB before", "dB after", "kept"), tuple(_repair_rows(report["repairs"])), 1),
        floats=Table(("value", "operator", "why", "MACs"), tuple(_float_operator_rows(floats["operators"])), 3),
        floats_note=f"{100 * floats['share']:.1f} % of the multiply-accumulates are computed in floats.",
        origin=tuple(_origin_rows(report)),
    )
    return render_html("report/quantized.html.j2", context)


def _page_facts(report: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the figures at the head of the page: accuracy or score, noise of outputs, cost, samples."""
    if "classification" in report:
        found = report["classification"]
        yield Fact(
            "Accuracy", _format_change(100 * found["float_accuracy"], 100 * found["accuracy"], "{:.2f}".format), "%"
        )
    if "score" in report:
        yield Fact("Score", _format_change(report["float_score"], report["score"], "{:.5g}".format), "")
    for output in report["outputs"]:
        near = "identical" if output["decibels"] is None else f"{output['decibels']:.1f} dB"
        note = f"signal to noise; largest difference {output['largest_difference']:.3g}"
        yield Fact(f"Output {output['name']}", near, note)
    if "cost" in report:
        before, after = report["float_cost"], report["cost"]
        for name, key, unit in (
            ("Flash", "flash", "bytes"),
            ("RAM", "ram", "bytes"),
            ("Instructions", "estimated_instructions", "estimated"),
        ):
            note = f"{unit}, {after[key] / max(1, before[key]):.2f} of the float network's"
            yield Fact(name, _format_change(before[key], after[key], "{:,}".format), note)
    yield Fact("Samples", f"{report['samples']:,}", f"for calibration, {report['evaluated_samples']:,} for comparison")


def _format_change(before: Any, after: Any, format_number: Any) -> str:
    """Format a number of the float network and of the quantised one with an arrow between; ``format_number`` formats one."""
    return f"{format_number(before)} \N{RIGHTWARDS ARROW} {format_number(after)}"


def _confusion_rows(classification: Mapping[str, Any] | None, matrix_is_shown: bool) -> Iterator[tuple[str, ...]]:
    """Yield a row for each of the most frequent mistakes, unless the page shows a confusion matrix."""
    if classification is not None and not matrix_is_shown:
        for mistake in frequent_mistakes(classification)[:_MOST_CONFUSED]:
            yield tuple(map(str, mistake))


def _changed_rows(classification: Mapping[str, Any] | None) -> Iterator[tuple[str, ...]]:
    """Yield a row for each sample that the quantised network answers differently."""
    for answer in classification["changed"] if classification is not None else ():
        yield tuple(str(answer[name]) for name in ("sample", "truth", "float", "quantised"))


def _changed_note(classification: Mapping[str, Any] | None) -> str:
    """Return a sentence on the number of answers that changed; empty without a classification."""
    if classification is None:
        return ""
    count, samples = classification["changed_count"], classification["samples"]
    shown = f"; the first {len(classification['changed'])} are shown" if count > len(classification["changed"]) else ""
    return f"Both networks answer {samples - count:,} of {samples:,} samples alike; {count:,} answers changed{shown}."


def _layer_columns(layers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the heads of the columns of the table of layers."""
    yield from ("bits", "dB", "% of noise", "from", "to", "scale", "% saturated")
    if any("cost" in layer for layer in layers):
        yield from ("flash, float", "flash", "instr., float", "instr.")


def _layer_table_rows(layers: Sequence[Mapping[str, Any]]) -> Iterator[LayerTableRow]:
    """Yield the rows of the table of layers."""
    longest = max((layer["decibels"] for layer in layers if layer.get("decibels") is not None), default=1.0)
    total = sum(_layer_noise(layer) for layer in layers)
    for number, layer in enumerate(layers):
        known = layer.get("decibels")
        yield LayerTableRow(
            number=number,
            layer=layer["layer"],
            ops=layer["ops"],
            stored=layer["dtype"],
            length=f"{100 * max(0.0, known) / max(longest, 1.0):.2f}" if known is not None else "0",
            decibels=f"{known:.1f} dB" if known is not None else "",
            cells=tuple(_layer_cells(layer, total)),
        )


def _layer_cells(layer: Mapping[str, Any], total_noise: float) -> Iterator[Number]:
    """Yield the numbers of a layer's row. ``total_noise``: the noise of all layers."""
    bits = layer["bits"]
    yield (min(bits), "/".join(map(str, bits))) if bits else (0, "")
    yield _sortable_number(layer.get("decibels"), "{:.1f}")
    yield _sortable_number(100 * _layer_noise(layer) / total_noise if total_noise > 0 else None, "{:.1f}")
    for name, form in (("low", "{:.4g}"), ("high", "{:.4g}"), ("scale", "{:.3g}")):
        yield _sortable_number(layer.get(name), form)
    clipped = layer.get("clipped")
    yield _sortable_number(None if clipped is None else 100 * clipped, "{:.2f}")
    for amount in ("flash", "instructions") if "cost" in layer else ():
        for network in ("float_cost", "cost"):
            yield _sortable_number(None if layer[network] is None else layer[network][amount], "{:,}")


def _layer_noise(layer: Mapping[str, Any]) -> float:
    """Return the noise that a layer's values and weights cause alone."""
    return (layer["value_sensitivity"] or 0.0) + (layer["weight_sensitivity"] or 0.0)


def _sortable_number(number: float | None, format_spec: str) -> Number:
    """Return a number to sort by and its text in the format ``format_spec``; -1 and an empty text for None."""
    return (-1, "") if number is None else (number, format_spec.format(number))


def _noise_plots(search_report: Mapping[str, Any]) -> Iterator[Plot]:
    """Yield plots of the search for bits: noise against flash and against time; the line is the front that was searched."""
    for key, label in (("flash", "bytes of flash"), ("cycles", "cycles, estimated")):
        points = sorted((_plot_point(p, p[key]) for p in search_report["front"]), key=lambda point: (point.x, point.y))
        if points:
            line = [(point.x, point.y) for point in points] if key == search_report.get("against", "flash") else []
            yield draw_plot(points, (label, "signal to noise, dB"), line)


def _plot_point(front_entry: Mapping[str, Any], x: int) -> Point:
    """Return the point of a network of the front in a plot. ``front_entry``: the network's entry in the report."""
    measured = [
        f", measured: {form.format(front_entry[key])}" for key, form in _MEASURED if front_entry.get(key) is not None
    ]
    kind = "chosen" if front_entry["chosen"] else "measured" if measured else "predicted"
    ratio = -10 * math.log10(front_entry["noise"]) if front_entry["noise"] > 0 else _SILENT
    return Point(
        x,
        ratio,
        kind,
        f"{kind}: {front_entry['flash']:,} bytes, {front_entry['cycles']:,} cycles, {ratio:.1f} dB{''.join(measured)}",
    )


def _repair_rows(repairs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each repair that was tried."""
    for repair in repairs:
        yield repair["name"], f"{repair['before']:.2f}", f"{repair['after']:.2f}", "yes" if repair["kept"] else "no"


def _float_operator_rows(operators: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each operator that is still computed in floats."""
    for operator in operators:
        yield operator["value"], operator["op"], operator["reason"], f"{operator['macs']:,}"


def _origin_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield rows on the origin of the page's numbers: model, options, data, version."""
    yield "model", report["model"]
    yield "options", ", ".join(f"{name} {value}" for name, value in report["settings"].items())
    if report["notes"]:
        yield "data", "; ".join(report["notes"])
    if "mixed" in report:
        yield "tried", f"{report['mixed']['tried']} networks of the front on the evaluation data"
    yield "microc", __version__
