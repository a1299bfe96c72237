# SPDX-License-Identifier: Apache-2.0
"""The result of quantisation: its quality, measured by comparing the integer network with the float network, its HTML page, and
the class ``Quantized`` that contains all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from microc import __version__
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.file_access import write_text
from microc.codegen.output_files import replace_atomically
from microc.codegen.render import format_signature
from microc.compiler.interaction import Progress
from microc.compiler.model import ONNX, save
from microc.document.blocks import (
    Document,
    Fact,
    Step,
    Steps,
    Table,
    Term,
    document,
    facts,
    layer_names,
    numbers,
    table,
    texts,
)
from microc.document.renderers import Showable
from microc.graph.ir import Graph
from microc.quantization.calibration_data import SampleData, classify_outputs
from microc.quantization.integer_scheme import Activation, Weight
from microc.quantization.network_noise import NetworkPair
from microc.quantization.network_structure import MeasuredEnd
from microc.quantization.write import Recipe
from microc.reports.drawings import PlotPoint, ScatterPlot, lay_out_confusion_matrix, lay_out_scatter_plot
from microc.reports.report_page import (
    Bar,
    Bars,
    Figure,
    Grid,
    GridCell,
    Legend,
    Page,
    Section,
    SortableTable,
    grid,
    grid_cell,
    render_page,
    section,
)

# ---- Quality of a quantised network: each value and each output is compared with that of the float network.
#
# The signal-to-noise ratio of a value in decibels is 10 log10(sum of squares / sum of squared differences). With 40 dB the
# differences have 1 % of the size of the value (root mean square).

_SHOWN_CHANGES = 100
"""Maximum number of changed answers (predicted classes) that the report lists."""


@dataclass
class Noise:
    """Sums over samples from which the noise of a value is computed.

    ``signal_square_sum``: sum of squares of the float network's elements. ``noise_square_sum``: sum of squared
    differences of the quantised network's elements. ``saturated_elements``: number of elements that saturate.
    ``element_count``: number of all elements. ``measured_end``: determines the part of the value in which noise is
    measured (see :class:`MeasuredEnd`); by default the whole value."""

    signal_square_sum: float = 0.0
    noise_square_sum: float = 0.0
    saturated_elements: int = 0
    element_count: int = 0
    measured_end: MeasuredEnd = field(default_factory=lambda: MeasuredEnd(""))

    def add(self, real: Array, stored: Array, kind: Any) -> None:
        """Add the elements of one sample: ``real``, those of the float network, and ``stored``, those of the quantised
        one.

        ``kind``: type of the stored elements."""
        values = stored.astype(np.float64)
        if kind.quant is not None:
            scale, zero = kind.quant.scale[0], kind.quant.zero_point[0]
            low, high = ((end - zero) * scale for end in dtypes.int_range(kind.dtype))
            self.saturated_elements += int(((real < low - scale / 2) | (real > high + scale / 2)).sum())
            values = (values - zero) * scale
        self.signal_square_sum += float(np.square(self.measured_end.measured_part(real)).sum())
        self.noise_square_sum += float(np.square(self.measured_end.measured_part(values - real)).sum())
        self.element_count += real.size

    @property
    def decibels(self) -> float | None:
        """Signal-to-noise ratio in decibels; None without noise or without signal."""
        return (
            10 * float(np.log10(self.signal_square_sum / self.noise_square_sum))
            if self.signal_square_sum > 0 and self.noise_square_sum > 0
            else None
        )


@dataclass
class NetworkComparison:
    """Comparison of the float and the quantised network on the same samples.

    ``values``: noise of each value by name. ``answers``: outputs of the float network for all samples, by name, and the
    same of the quantised network."""

    values: dict[str, Noise] = field(default_factory=dict)
    answers: tuple[dict[str, Array], dict[str, Array]] = field(default_factory=lambda: ({}, {}))


def compare_networks(pair: NetworkPair, data: SampleData, progress: Progress | None = None) -> NetworkComparison:
    """Run the float network and the quantised network on the same data, and return the comparison of their values."""
    comparison, rows = NetworkComparison({value: Noise() for value in pair.names}), (list[Any](), list[Any]())
    for number, (real, integer) in enumerate(pair.run_both(data.rows)):
        if progress is not None:
            progress("comparison", number, len(data.rows))
        for name, kind, a, b in zip(pair.names, pair.integer_types, real, integer, strict=True):
            comparison.values[name].add(a, b, kind)
        rows[0].append(real[: len(pair.ends)])
        rows[1].append(integer[: len(pair.ends)])
    for answers, output_rows in zip(comparison.answers, rows, strict=True):
        answers.update({name: np.stack([row[k] for row in output_rows]) for k, name in enumerate(pair.ends)})
    return comparison


def build_outputs_report(comparison: NetworkComparison, data: SampleData) -> dict[str, Any]:
    """Return the part of the report about the outputs of both networks: the signal-to-noise ratio of each output.

    If the data has labels, the accuracy of each network is added, and the samples that are now predicted
    differently."""
    report: dict[str, Any] = {
        "outputs": [
            {
                "name": name,
                "decibels": comparison.values[name].decibels,
                "largest_difference": _largest_difference(comparison, name),
            }
            | {"variation": _relative_variation_of_output(comparison.answers[0][name])}
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


def _relative_variation_of_output(output_samples: Array) -> float:
    """Return how much an output of the float network varies over the samples.

    It is the root mean square of the difference from the mean over the samples, divided by that of the output."""
    reals = output_samples.astype(np.float64)
    size = float(np.square(reals).mean())
    return float(np.sqrt(np.square(reals - reals.mean(axis=0)).mean() / size)) if size > 0 else 0.0


def _largest_difference(comparison: NetworkComparison, name: str) -> float:
    """Return the largest absolute difference between the float and the quantised network in the output ``name``."""
    a, b = (answers[name].astype(np.float64) for answers in comparison.answers)
    return float(np.abs(a - b).max(initial=0.0))


def build_activations_report(comparison: NetworkComparison, recipe: Mapping[str, Activation]) -> list[dict[str, Any]]:
    """Return the part of the report about quantised activations, with an entry for each of them.

    An entry contains dtype, range, signal-to-noise ratio, and the fraction of elements that saturate."""
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
                "clipped": noise.saturated_elements / max(1, noise.element_count),
            }
        )
    return lines


def build_weights_report(graph: Graph, recipe: Mapping[str, Weight]) -> list[dict[str, Any]]:
    """Return the part of the report about quantised constants, with an entry for each of them.

    An entry contains the number of elements, the number of bits, and the signal-to-noise ratio."""
    lines = []
    for name, weight in recipe.items():
        noise = Noise()
        reals = graph.consts[name].astype(np.float64)
        noise.signal_square_sum, noise.noise_square_sum = (
            float(np.square(reals).sum()),
            float(np.square(weight.real - reals).sum()),
        )
        bits = min_bits_of_integers(weight.data)
        lines.append({"constant": name, "elements": reals.size, "bits": bits, "decibels": noise.decibels})
    return lines


def min_bits_of_integers(data: Array) -> int:
    """Return the smallest number of bits, at least 2, in which all integers of an array can be stored."""
    low, high = int(data.min(initial=0)), int(data.max(initial=0))
    return max(2, high.bit_length() + 1, (~low).bit_length() + 1)


def list_frequent_confusions(classification: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """Return the confusions of classes, the most frequent of the quantised network first.

    A confusion is a tuple: true class, predicted class, number of such predictions by the float network, and by the
    quantised network."""
    before, after = (np.array(classification[name]) for name in ("float_confusion", "confusion"))
    wrong = np.argwhere((before + after) * (1 - np.eye(len(after), dtype=np.int64)))
    mistakes = [(int(t), int(a), int(before[t, a]), int(after[t, a])) for t, a in wrong]
    return sorted(mistakes, key=lambda m: (-m[3], -m[2], m[0], m[1]))


# ---- The report as a single HTML page, in the style of the page of ``microc profile``.

_MAX_DRAWN_CLASSES = 32
_MAX_CONFUSIONS = 20
_NOISELESS_DECIBELS = 120.0
"""Signal-to-noise ratio in decibels with which a network without noise is drawn in a plot."""
_MEASURED = (("score", "score {:.4f}"), ("decibels", "{:.1f} dB"))


def to_html(report: Mapping[str, Any]) -> str:
    """Render the report on a quantised network (``Quantized.report``) as an HTML page. Equal reports result in equal
    pages."""
    board = report.get("board", "")
    page = Page(
        command="quantize",
        title=report["model"],
        board=board,
        lead=board or "float and quantised network beside each other",
        figures=tuple(_figures_at_top_of_page(report)),
        sections=tuple(_sections(report)),
        origin=tuple(_origin_rows(report)),
    )
    return render_page(page)


def _sections(report: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the sections of the page."""
    layers, floats = report["layers"], report["floats"]
    if report["advice"]:
        yield section("advice", "What to try next", Steps(tuple(map(Step, report["advice"]))))
    if "classification" in report:
        yield _answers_section(report["classification"])
    yield section(
        "noise",
        "Signal to noise, layer by layer",
        _noise_bars(layers),
        intro="What each layer stores beside what the float network has there: 40 dB are 1 % of noise, 20 dB are 10 %. A bar "
        "that is much shorter than the one before shows where noise comes in.",
    )
    yield section(
        "layers",
        "Layers",
        SortableTable(_layers_table(layers), "table of layers"),
        intro="A click on a heading sorts. Bits are those of weights; noise is what the layer causes at the outputs when it "
        "alone is rounded; flash is constants and code in bytes. What is empty is computed with another layer.",
    )
    plots = tuple(_noise_plots(report["mixed"])) if "mixed" in report else ()
    if plots:
        yield section(
            "front",
            "The front: noise against flash and time",
            Legend((("chosen", "taken"), ("measured", "measured"), ("predicted", "predicted"))),
            grid(plots),
            intro="Each point is a choice of bits for all layers that no other one beats, as sensitivities and prices "
            "predict it.",
        )
    if report["repairs"]:
        yield section(
            "repairs",
            "Repairs",
            _repairs_table(report["repairs"]),
            intro="Each is kept only if it lowers the noise at the outputs on calibration samples that it was not made from.",
        )
    if floats["operators"]:
        rows = [
            (operator["value"], operator["op"], operator["reason"], operator["macs"])
            for operator in floats["operators"]
        ]
        yield section(
            "floats",
            "What stays in floats",
            table((*texts("value", "operator", "why"), *numbers("MACs")), rows),
            intro=f"{100 * floats['share']:.1f} % of the multiply-accumulates are computed in floats.",
        )


def _answers_section(classification: Mapping[str, Any]) -> Section:
    """Make the section about classes: the confusion matrix or the most frequent mistakes, and the answers that changed."""
    confusion, cells = classification["confusion"], list[GridCell]()
    mistakes = list_frequent_confusions(classification)[:_MAX_CONFUSIONS]
    if len(confusion) <= _MAX_DRAWN_CLASSES:
        matrix = lay_out_confusion_matrix(confusion, classification["float_confusion"])
        note = "true classes by row; small: change against floats"
        cells.append(grid_cell(matrix, "Confusion of the quantised network", note))
    elif mistakes:
        columns = numbers("truth", "answer", "float", "quantised", spec="")
        cells.append(grid_cell(table(columns, mistakes), "Most frequent mistakes"))
    if classification["changed"]:
        names = ("sample", "truth", "float", "quantised")
        rows = [[answer[name] for name in names] for answer in classification["changed"]]
        cells.append(grid_cell(table(numbers(*names, spec=""), rows), "Samples whose answer changed", is_long=True))
    return section("classes", "Answers", Grid(tuple(cells)), intro=_describe_changed_predictions(classification))


def _figures_at_top_of_page(report: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the figures at the top of the page: accuracy or score, noise of outputs, cost, number of samples."""
    if "classification" in report:
        found = report["classification"]
        yield Figure(
            "Accuracy", _format_change(100 * found["float_accuracy"], 100 * found["accuracy"], "{:.2f}".format), "%"
        )
    if "score" in report:
        yield Figure("Score", _format_change(report["float_score"], report["score"], "{:.5g}".format), "")
    for output in report["outputs"]:
        near = "identical" if output["decibels"] is None else f"{output['decibels']:.1f} dB"
        note = f"signal to noise; largest difference {output['largest_difference']:.3g}"
        yield Figure(f"Output {output['name']}", near, note)
    if "cost" in report:
        before, after = report["float_cost"], report["cost"]
        for name, key, unit in (
            ("Flash", "flash", "bytes"),
            ("RAM", "ram", "bytes"),
            ("Instructions", "estimated_instructions", "estimated"),
        ):
            note = f"{unit}, {after[key] / max(1, before[key]):.2f} of the float network's"
            yield Figure(name, _format_change(before[key], after[key], "{:,}".format), note)
    yield Figure(
        "Samples", f"{report['samples']:,}", f"for calibration, {report['evaluated_samples']:,} for comparison"
    )


def _format_change(before: Any, after: Any, format_number: Any) -> str:
    """Return the text of a number for the float network, an arrow, and the number for the quantised network.

    ``format_number``: function that returns the text of a number."""
    return f"{format_number(before)} \N{RIGHTWARDS ARROW} {format_number(after)}"


def _describe_changed_predictions(classification: Mapping[str, Any]) -> str:
    """Return a sentence about the number of samples whose predicted class changed."""
    count, samples = classification["changed_count"], classification["samples"]
    shown = f"; the first {len(classification['changed'])} are shown" if count > len(classification["changed"]) else ""
    return f"Both networks answer {samples - count:,} of {samples:,} samples alike; {count:,} answers changed{shown}."


def _noise_bars(layers: Sequence[Mapping[str, Any]]) -> Bars:
    """Make the chart of the layers' signal-to-noise ratios."""
    longest = max((layer["decibels"] for layer in layers if layer.get("decibels") is not None), default=1.0)
    total = sum(map(_noise_caused_by_layer, layers))
    bars = [
        Bar(
            number=number,
            name=layer["layer"],
            title=f"{layer['layer']}, {layer['ops']}, {layer['dtype']}",
            start="0",
            length=f"{100 * max(0.0, layer['decibels']) / max(longest, 1.0):.2f}",
            value=f"{layer['decibels']:.1f} dB",
            note=f"{100 * _noise_caused_by_layer(layer) / total:.1f} %" if total > 0 else "",
        )
        for number, layer in enumerate(layers)
        if layer.get("decibels") is not None
    ]
    return Bars(tuple(bars))


def _layers_table(layers: Sequence[Mapping[str, Any]]) -> Table:
    """Make the table of layers: how each is stored, the noise that it causes, and its cost."""
    total = sum(map(_noise_caused_by_layer, layers))
    costs = [(of, amount) for amount in ("flash", "instructions") for of in ("float_cost", "cost")]
    rows = [
        (
            number,
            layer["layer"],
            layer["ops"],
            layer["dtype"],
            Term("/".join(map(str, layer["bits"])), order=min(layer["bits"])) if layer["bits"] else None,
            layer.get("decibels"),
            100 * _noise_caused_by_layer(layer) / total if total > 0 else None,
            *(layer.get(name) for name in ("low", "high", "scale")),
            None if layer.get("clipped") is None else 100 * layer["clipped"],
            *((None if layer[of] is None else layer[of][amount] for of, amount in costs) if "cost" in layer else ()),
        )
        for number, layer in enumerate(layers)
    ]
    columns = (
        *numbers("no."), *layer_names("layer"), *texts("operators", "stored"), *numbers("bits"),
        *numbers("dB", "% of noise", spec=".1f"), *numbers("from", "to", spec=".4g"), *numbers("scale", spec=".3g"),
        *numbers("% saturated", spec=".2f"),
        *(numbers("flash, float", "flash", "instr., float", "instr.") if any("cost" in layer for layer in layers) else ()),
    )  # fmt: skip
    return table(columns, rows)


def _noise_caused_by_layer(layer: Mapping[str, Any]) -> float:
    """Return the noise at the outputs that quantising a layer's values and weights causes, all other layers being in
    floats."""
    return (layer["value_sensitivity"] or 0.0) + (layer["weight_sensitivity"] or 0.0)


def _noise_plots(search_report: Mapping[str, Any]) -> Iterator[ScatterPlot]:
    """Yield the plots of the search for numbers of bits: noise against flash, and noise against time.

    A line connects the networks in the plot whose Pareto front was searched."""
    for key, label in (("flash", "bytes of flash"), ("cycles", "cycles, estimated")):
        points = sorted(
            (_plot_point_of_network(p, p[key]) for p in search_report["front"]), key=lambda point: (point.x, point.y)
        )
        if points:
            line = [(point.x, point.y) for point in points] if key == search_report.get("against", "flash") else []
            yield lay_out_scatter_plot(points, (label, "signal to noise, dB"), line)


def _plot_point_of_network(front_entry: Mapping[str, Any], x: int) -> PlotPoint:
    """Return the point of a network of the Pareto front in a plot.

    ``front_entry``: the network's entry in the report. ``x``: bytes of flash or cycles."""
    measured = [
        f", measured: {form.format(front_entry[key])}" for key, form in _MEASURED if front_entry.get(key) is not None
    ]
    kind = "chosen" if front_entry["chosen"] else "measured" if measured else "predicted"
    ratio = -10 * math.log10(front_entry["noise"]) if front_entry["noise"] > 0 else _NOISELESS_DECIBELS
    return PlotPoint(
        x,
        ratio,
        kind,
        f"{kind}: {front_entry['flash']:,} bytes, {front_entry['cycles']:,} cycles, {ratio:.1f} dB{''.join(measured)}",
    )


def _repairs_table(repairs: Sequence[Mapping[str, Any]]) -> Table:
    """Make the table of the repairs of the quantised network that were tried."""
    rows = [
        (repair["name"], repair["before"], repair["after"], "yes" if repair["kept"] else "no") for repair in repairs
    ]
    return table((*texts("repair"), *numbers("dB before", "dB after", spec=".2f"), *texts("kept")), rows)


def _origin_rows(report: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the facts about the origin of the numbers on the page: model, options, data, microc's version."""
    yield "model", report["model"]
    yield "options", ", ".join(f"{name} {value}" for name, value in report["settings"].items())
    if report["notes"]:
        yield "data", "; ".join(report["notes"])
    if "mixed" in report:
        yield "tried", f"{report['mixed']['tried']} networks of the front on the evaluation data"
    yield "microc", __version__


# ---- Result of ``quantize``: the integer graph, its recipe, and a report of its quality.


@dataclass(frozen=True, slots=True)
class Quantized(Showable):
    """Result of quantisation.

    ``graph``: the integer network, for :func:`microc.compile`. ``exact``: the same network with float scales, as ONNX
    defines them, instead of fixed-point multipliers. ``float_graph``: the normalised float network. ``recipe``: the
    storage of each value. ``report``: plain data about the quality of the network
    (:mod:`microc.quantization.quantised_report`). Its keys include ``values``, ``weights`` and ``outputs``;
    ``classification`` if the data has labels; ``score`` and ``float_score`` if the caller passed a function that scores
    networks. ``biases``: biases that repairs changed, by the names of the layers' results."""

    graph: Graph
    exact: Graph
    float_graph: Graph
    recipe: Recipe
    report: Mapping[str, Any] = field(default_factory=dict)
    biases: Mapping[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Quantized {self._signature()}, {', '.join(text for text, _ in self._output_ratios())}>"

    def document(self) -> Document:
        """Return the noise of the outputs as a document, for a notebook."""
        return document(facts((what, value) for value, what in self._output_ratios()), title=self._signature())

    def _signature(self) -> str:
        def describe_tensors(names: Sequence[str]) -> list[dict[str, Any]]:
            return [{"name": n, "dtype": self.graph.types[n].dtype, "shape": self.graph.types[n].shape} for n in names]

        return format_signature(
            self.graph.name, describe_tensors(self.graph.inputs), describe_tensors(self.graph.outputs)
        )

    def _output_ratios(self) -> list[tuple[str, str]]:
        """Return for each output the text of its signal-to-noise ratio, and a label for this number."""
        return [
            (f"{output['decibels']:.1f} dB", f"{output['name']} above the noise")
            for output in self.report.get("outputs", ())
        ]

    def save(self, path: str | Path) -> Path:
        """Write the integer network to a graph file, or to an ONNX file with QDQ operators if the suffix is ``.onnx``.

        Return the path."""
        return save(self.exact if Path(path).suffix == ONNX else self.graph, path)

    def save_report(self, path: str | Path) -> Path:
        """Write the report to a self-contained HTML page. Return the path."""
        with replace_atomically(Path(path)) as temporary:
            write_text(temporary, to_html(self.report))
        return Path(path)
