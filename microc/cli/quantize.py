"""``microc quantize``: the result in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.project_context import check_places, pixels, progress
from microc.cli.shared_options import chosen_options

# ---- Bits of layers as the terminal shows them: what each layer may be, and the front that the choice is on.

_SHOWN_POINTS = 12
_BAR = 30
_FLOAT = 32


def mixed_paragraphs(found: Mapping[str, Any]) -> Iterator[str]:
    """A table of layers, and one of the front."""
    rows = [
        (show.layer(layer["layer"]), _width(layer["bits"]), *(_option(option) for option in layer["options"]))
        for layer in found["layers"]
    ]
    columns = max((len(layer["options"]) for layer in found["layers"]), default=0)
    rows = [(*row, *("",) * (2 + columns - len(row))) for row in rows]
    yield show.table(("layer", "bits", *("may be: bits, noise, bytes",) * columns), rows, 1 + columns)
    yield "\n".join(_front(found["front"], found["board"], found["against"]))


def _option(option: Mapping[str, Any]) -> str:
    return f"{_width(option['bits'])}: {decibels(option['noise'])} dB, {show.count(option['flash'])}"


def _width(bits: int) -> str:
    """Bits of a layer: of its weights up to 8, of its activations, or floats."""
    return "float" if bits == _FLOAT else str(bits)


def decibels(noise: float) -> str:
    """Noise of so much power, relative to the signal."""
    return f"{-10 * math.log10(noise):.1f}" if noise > 0 else "no noise"


def _front(points: Sequence[Mapping[str, Any]], board: str, against: str) -> Iterator[str]:
    """Points as bars of their flash or cycles, the chosen one among them, those that were measured too."""
    step = max(1, len(points) // _SHOWN_POINTS)
    measured = [p["score"] is not None or p["decibels"] is not None for p in points]
    kept = [p for k, p in enumerate(points) if p["chosen"] or measured[k] or k % step == 0]
    least, most = points[0][against], points[-1][against]
    yield f"the front on {board}: the least noise for each {against}, predicted, and measured behind repairs (* is taken)\n"
    rows = []
    for p in kept:
        bar = "#" * (1 + round(_BAR * (p[against] - least) / max(1, most - least)))
        found = "" if p["decibels"] is None else f"{p['decibels']:.1f}"
        score = "" if p["score"] is None else f"{p['score']:.4f}"
        sizes = show.count(p["flash"]), show.count(p["cycles"])
        rows.append(("*" if p["chosen"] else "", *sizes, decibels(p["noise"]), found, score, bar))
    yield show.table(("", "flash", "cycles", "dB", "measured", "score", ""), rows)


# ---- What ``microc quantize`` tells in a terminal: what matters first, tables cut unless all is asked for.

_SHOWN = 12
"""Rows of a table; ``--full`` shows all."""
_SHOWN_CLASSES = 12
_COSTS = ("flash", "ram", "estimated_instructions", "estimated_cycles")
_SHARES = ("flash", "instructions")


def paragraphs(report: Mapping[str, Any], model: str, path: str, full: bool) -> Iterator[str]:
    """The report on a network that was read from ``model`` and written to ``path``."""
    yield show.facts(list(_facts(report, f"{model} -> {path}")))
    if "cost" in report:
        yield _compared(report["board"], report["float_cost"], report["cost"])
    if report["advice"]:
        yield "what to try next\n" + "\n".join(f"- {line}" for line in report["advice"])
    yield _layers(report["layers"], full)
    if "classification" in report:
        yield from _classification(report["classification"], full)
    if "mixed" in report:
        yield from mixed_paragraphs(report["mixed"])
    if report["floats"]["operators"]:
        yield _in_floats(report["floats"], full)
    if report["repairs"]:
        yield _repairs(report["repairs"])


def _facts(report: Mapping[str, Any], files: str) -> Iterator[tuple[str, object]]:
    yield "model", files
    yield "samples", f"{report['samples']} for calibration, {report['evaluated_samples']} for comparison"
    yield from (("  note", note) for note in report["notes"])
    for output in report["outputs"]:
        near = "identical" if output["decibels"] is None else f"{output['decibels']:.1f} dB above the noise"
        yield f"output {show.layer(output['name'])}", f"{near}, largest difference {output['largest_difference']:.3g}"
    if "classification" in report:
        found = report["classification"]
        before, after = 100 * found["float_accuracy"], 100 * found["accuracy"]
        yield "accuracy", f"{before:.2f} % -> {after:.2f} % of {show.count(found['samples'])} samples"
    if "score" in report:
        yield "score", f"{report['float_score']:.5g} -> {report['score']:.5g}"


def _compared(board: str, before: Mapping[str, int], after: Mapping[str, int]) -> str:
    rows = []
    for name in _COSTS:
        ratio = f"{after[name] / max(1, before[name]):.2f}"
        rows.append((name.replace("_", " "), show.count(before[name]), show.count(after[name]), ratio))
    return show.table((f"on {board}", "float", "quantised", "ratio"), rows)


def _layers(layers: Sequence[Mapping[str, Any]], full: bool) -> str:
    """Those that cause most noise, in the order of the network."""
    total = sum(map(_noise, layers))
    loudest = sorted(range(len(layers)), key=lambda k: (-_noise(layers[k]), layers[k].get("decibels") or 0.0))
    kept = sorted(loudest if full else loudest[:_SHOWN])
    costs = [(of, amount) for amount in _SHARES for of in ("float_cost", "cost")] if "cost" in layers[0] else []
    rows = []
    for layer in (layers[k] for k in kept):
        span = [_text(layer.get(name), "{:.4g}") for name in ("low", "high")]
        share = f"{100 * _noise(layer) / total:.1f}" if total > 0 else ""
        clipped = layer.get("clipped")
        quality = _text(layer.get("decibels"), "{:.1f}"), share, _text(clipped and 100 * clipped, "{:.2f}")
        price = ("" if layer[of] is None else show.count(layer[of][amount]) for of, amount in costs)
        bits = "/".join(map(str, layer["bits"]))
        rows.append((show.layer(layer["layer"]), layer["dtype"], bits, *span, *quality, *price))
    prices = ("flash, float", "now", "instr., float", "now") if costs else ()
    head = ("layer", "stored", "bits", "from", "to", "dB", "% of noise", "% saturated", *prices)
    return _cut(show.table(head, rows, 2), len(layers) - len(kept), "layers, which cause less noise")


def _noise(layer: Mapping[str, Any]) -> float:
    """What it causes alone."""
    return (layer["value_sensitivity"] or 0.0) + (layer["weight_sensitivity"] or 0.0)


def _text(number: float | None, form: str) -> str:
    return "" if number is None else form.format(number)


def _cut(text: str, left: int, what: str) -> str:
    return f"{text}\n{show.count(left)} more {what}: --full shows all" if left > 0 else text


def _classification(found: Mapping[str, Any], full: bool) -> Iterator[str]:
    if len(found["confusion"]) <= _SHOWN_CLASSES:
        yield f"answers, and by how many more than in floats\n\n{show.confusion(found['confusion'], found['float_confusion'])}"
    else:
        yield from _mistakes(found, full)
    if found["changed"]:
        kept = found["changed"] if full else found["changed"][:_SHOWN]
        rows = [(c["sample"], c["truth"], c["float"], c["quantised"]) for c in kept]
        table = show.table(("changed sample", "truth", "float", "quantised"), rows, 0)
        yield _cut(table, found["changed_count"] - len(kept), "answers changed")


def _mistakes(found: Mapping[str, Any], full: bool) -> Iterator[str]:
    """Of many classes the most frequent mistakes."""
    from microc.quantization.quantised_page import confused

    mistakes = confused(found)
    rows = mistakes if full else mistakes[:_SHOWN]
    if rows:
        yield _cut(
            show.table(("truth", "answer", "float", "quantised"), rows, 0), len(mistakes) - len(rows), "mistakes"
        )


def _in_floats(floats: Mapping[str, Any], full: bool) -> str:
    operators = floats["operators"] if full else floats["operators"][:_SHOWN]
    rows = [(show.layer(each["value"]), each["op"], each["reason"], show.count(each["macs"])) for each in operators]
    count = len(floats["operators"])
    head = f"{count} operators compute in floats, {100 * floats['share']:.1f} % of multiply-accumulates"
    table = show.table(("value", "operator", "why", "MACs"), rows, 3)
    return f"{head}\n\n{_cut(table, count - len(rows), 'operators')}"


def _repairs(repairs: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (each["name"], "yes" if each["kept"] else "no", f"{each['before']:.2f}", f"{each['after']:.2f}")
        for each in repairs
    ]
    return show.table(("repair", "kept", "dB before", "dB after"), rows, 2)


# ---- ``microc quantize``: a float network becomes an integer one, and what that costs and brings is told.


def quantize(arguments: Arguments) -> show.Answer:
    """``microc quantize``."""
    from microc import quantization

    assert arguments.model is not None and arguments.output is not None and arguments.data is not None
    check_places(**{"-o": arguments.output, "--html": arguments.html})
    found = quantization.quantize(
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
        pixels=pixels(arguments),
        seed=arguments.seed,
        progress=progress(arguments),
        **chosen_options(arguments),
    )
    path = found.save(arguments.output)
    if arguments.html is not None:
        found.save_report(arguments.html)
    text = "\n\n".join(paragraphs(found.report, arguments.model.name, str(path), arguments.full))
    return show.Answer({"file": str(path), **found.report}, text)
