"""The report on a quantised network as one page of HTML, of the family of ``microc profile``'s."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc import __version__
from microc.codegen.render import render_html
from microc.driver.report.confusion import Matrix, matrix_of
from microc.driver.report.page import Fact
from microc.driver.report.plot import Plot, Point, plot
from microc.frozen import frozen
from microc.quantization.report.comparison import confused

_MOST_CLASSES = 32
_MOST_CONFUSED = 20
_SILENT = 120.0
"""Decibels at which noise is drawn that there is none of."""
_MEASURED = (("score", "score {:.4f}"), ("decibels", "{:.1f} dB"))
Number = tuple[float, str]
"""A number to sort by, and as it is read."""


@frozen
class LayerRow:
    """A layer: its bar of the ratio of signal to noise in percent of the longest, and its numbers."""

    number: int
    layer: str
    ops: str
    stored: str
    length: str
    decibels: str
    cells: tuple[Number, ...]


@frozen
class Table:
    """Text in columns, the first ``left`` of which are words."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@frozen
class QuantizedContext:
    """What ``report/quantized.html.j2`` shows. ``advice`` and tables may be empty; ``matrix``: None for many classes."""

    title: str
    board: str
    facts: tuple[Fact, ...]
    advice: tuple[str, ...]
    classified: bool
    matrix: Matrix | None
    confused: Table
    changed: Table
    changed_note: str
    rows: tuple[LayerRow, ...]
    columns: tuple[str, ...]
    plots: tuple[Plot, ...]
    repairs: Table
    floats: Table
    floats_note: str
    origin: tuple[tuple[str, str], ...]


def to_html(report: Mapping[str, Any]) -> str:
    """The page of a report (:class:`microc.quantization.Quantized`). Equal reports give equal pages."""
    found, floats = report.get("classification"), report["floats"]
    small = found is not None and len(found["confusion"]) <= _MOST_CLASSES
    context = QuantizedContext(
        title=report["model"],
        board=report.get("board", ""),
        facts=tuple(_facts(report)),
        advice=tuple(report["advice"]),
        classified=found is not None,
        matrix=matrix_of(found["confusion"], found["float_confusion"]) if found is not None and small else None,
        confused=Table(("truth", "answer", "float", "quantised"), tuple(_confused(found, small)), 0),
        changed=Table(("sample", "truth", "float", "quantised"), tuple(_changed(found)), 0),
        changed_note=_changed_note(found),
        rows=tuple(_rows(report["layers"])),
        columns=tuple(_columns(report["layers"])),
        plots=tuple(_plots(report["mixed"])) if "mixed" in report else (),
        repairs=Table(("repair", "dB before", "dB after", "kept"), tuple(_repairs(report["repairs"])), 1),
        floats=Table(("value", "operator", "why", "MACs"), tuple(_floats(floats["operators"])), 3),
        floats_note=f"{100 * floats['share']:.1f} % of the multiply-accumulates are computed in floats.",
        origin=tuple(_origin(report)),
    )
    return render_html("report/quantized.html.j2", context)


def _facts(report: Mapping[str, Any]) -> Iterator[Fact]:
    if "classification" in report:
        found = report["classification"]
        yield Fact("Accuracy", _arrow(100 * found["float_accuracy"], 100 * found["accuracy"], "{:.2f}".format), "%")
    if "score" in report:
        yield Fact("Score", _arrow(report["float_score"], report["score"], "{:.5g}".format), "")
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
            yield Fact(name, _arrow(before[key], after[key], "{:,}".format), note)
    yield Fact("Samples", f"{report['samples']:,}", f"for calibration, {report['evaluated_samples']:,} for comparison")


def _arrow(before: Any, after: Any, shown: Any) -> str:
    return f"{shown(before)} \N{RIGHTWARDS ARROW} {shown(after)}"


def _confused(found: Mapping[str, Any] | None, small: bool) -> Iterator[tuple[str, ...]]:
    """The most frequent mistakes, where classes are too many for a matrix."""
    if found is not None and not small:
        for mistake in confused(found)[:_MOST_CONFUSED]:
            yield tuple(map(str, mistake))


def _changed(found: Mapping[str, Any] | None) -> Iterator[tuple[str, ...]]:
    for each in found["changed"] if found is not None else ():
        yield tuple(str(each[name]) for name in ("sample", "truth", "float", "quantised"))


def _changed_note(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    count, of = found["changed_count"], found["samples"]
    shown = f"; the first {len(found['changed'])} are shown" if count > len(found["changed"]) else ""
    return f"Both networks answer {of - count:,} of {of:,} samples alike; {count:,} answers changed{shown}."


def _columns(layers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from ("bits", "dB", "% of noise", "from", "to", "scale", "% saturated")
    if any("cost" in layer for layer in layers):
        yield from ("flash, float", "flash", "instr., float", "instr.")


def _rows(layers: Sequence[Mapping[str, Any]]) -> Iterator[LayerRow]:
    longest = max((layer["decibels"] for layer in layers if layer.get("decibels") is not None), default=1.0)
    total = sum(_sensitivity(layer) for layer in layers)
    for number, layer in enumerate(layers):
        known = layer.get("decibels")
        yield LayerRow(
            number=number,
            layer=layer["layer"],
            ops=layer["ops"],
            stored=layer["dtype"],
            length=f"{100 * max(0.0, known) / max(longest, 1.0):.2f}" if known is not None else "0",
            decibels=f"{known:.1f} dB" if known is not None else "",
            cells=tuple(_cells(layer, total)),
        )


def _cells(layer: Mapping[str, Any], total: float) -> Iterator[Number]:
    bits = layer["bits"]
    yield (min(bits), "/".join(map(str, bits))) if bits else (0, "")
    yield _number(layer.get("decibels"), "{:.1f}")
    yield _number(100 * _sensitivity(layer) / total if total > 0 else None, "{:.1f}")
    for name, form in (("low", "{:.4g}"), ("high", "{:.4g}"), ("scale", "{:.3g}")):
        yield _number(layer.get(name), form)
    clipped = layer.get("clipped")
    yield _number(None if clipped is None else 100 * clipped, "{:.2f}")
    for amount in ("flash", "instructions") if "cost" in layer else ():
        for of in ("float_cost", "cost"):
            yield _number(None if layer[of] is None else layer[of][amount], "{:,}")


def _sensitivity(layer: Mapping[str, Any]) -> float:
    """The noise that a layer causes alone, with its values and its weights."""
    return (layer["value_sensitivity"] or 0.0) + (layer["weight_sensitivity"] or 0.0)


def _number(number: float | None, form: str) -> Number:
    return (-1, "") if number is None else (number, form.format(number))


def _plots(found: Mapping[str, Any]) -> Iterator[Plot]:
    """What is lost against flash and against time; a line is the front that was searched."""
    for key, label in (("flash", "bytes of flash"), ("cycles", "cycles, estimated")):
        points = sorted((_point(p, p[key]) for p in found["front"]), key=lambda point: (point.x, point.y))
        if points:
            line = [(point.x, point.y) for point in points] if key == found.get("against", "flash") else []
            yield plot(points, (label, "signal to noise, dB"), line)


def _point(p: Mapping[str, Any], x: int) -> Point:
    measured = [f", measured: {form.format(p[key])}" for key, form in _MEASURED if p.get(key) is not None]
    kind = "chosen" if p["chosen"] else "measured" if measured else "predicted"
    ratio = -10 * math.log10(p["noise"]) if p["noise"] > 0 else _SILENT
    return Point(
        x, ratio, kind, f"{kind}: {p['flash']:,} bytes, {p['cycles']:,} cycles, {ratio:.1f} dB{''.join(measured)}"
    )


def _repairs(repairs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for each in repairs:
        yield each["name"], f"{each['before']:.2f}", f"{each['after']:.2f}", "yes" if each["kept"] else "no"


def _floats(operators: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for each in operators:
        yield each["value"], each["op"], each["reason"], f"{each['macs']:,}"


def _origin(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where the numbers come from."""
    yield "model", report["model"]
    yield "options", ", ".join(f"{name} {value}" for name, value in report["settings"].items())
    if report["notes"]:
        yield "data", "; ".join(report["notes"])
    if "mixed" in report:
        yield "tried", f"{report['mixed']['tried']} networks of the front on the evaluation data"
    yield "microc", __version__
