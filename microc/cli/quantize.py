"""``microc quantize``: a float network becomes an integer one, and what that costs and brings is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.mixed import mixed_paragraphs
from microc.cli.model_options import chosen_options
from microc.cli.session import progress

if TYPE_CHECKING:
    from microc.quantization import Quantized

_SHOWN_VALUES = 8
_SHOWN_CHANGES = 8


def quantize(arguments: Arguments) -> show.Answer:
    """``microc quantize``."""
    from microc import quantization

    assert arguments.output is not None and arguments.data is not None
    found = quantization.quantize(
        arguments.model,
        arguments.data,
        activations=arguments.activations,
        weights=arguments.weights,
        bits=dict(arguments.layers),
        float_layers=arguments.float_layers,
        board=arguments.board,
        flash=arguments.flash,
        ram=arguments.ram,
        time=arguments.time,
        max_drop=arguments.max_drop,
        ranges=arguments.ranges,
        evaluate=arguments.evaluation,
        labels=arguments.labels,
        pixels=None if arguments.pixels is None else (arguments.pixels[0], arguments.pixels[1]),
        seed=arguments.seed,
        progress=progress(arguments),
        **chosen_options(arguments),
    )
    path = found.save(arguments.output)
    report = {**found.report, **(_costs(found, arguments.board) if arguments.board else {})}
    return show.Answer({"file": str(path), **report}, "\n\n".join(_paragraphs(arguments, str(path), report)))


def _costs(found: Quantized, name: str) -> dict[str, Any]:
    """What both networks cost on a board, which may be too small for the float one."""
    from microc.device.boards import load_board
    from microc.quantization.cost import cost

    board = load_board(name)
    return {"board": board.name, "float_cost": cost(found.float_graph, board), "cost": cost(found.graph, board)}


def _paragraphs(arguments: Arguments, path: str, report: Mapping[str, Any]) -> Iterator[str]:
    rows: list[tuple[str, object]] = [
        ("model", f"{arguments.model.name} -> {path}"),
        ("samples", f"{report['samples']} for calibration, {report['evaluated_samples']} for comparison"),
        *(("  note", note) for note in report["notes"]),
    ]
    for output in report["outputs"]:
        near = "identical" if output["decibels"] is None else f"{output['decibels']:.1f} dB above the noise"
        rows.append(
            (f"output {show.layer(output['name'])}", f"{near}, largest difference {output['largest_difference']:.3g}")
        )
    yield show.facts(rows)
    if "classification" in report:
        yield _classification(report["classification"])
    if "mixed" in report:
        yield from mixed_paragraphs(report["mixed"])
    yield _noisiest(report["values"])
    if report["floats"]["operators"]:
        yield _in_floats(report["floats"])
    if report["advice"]:
        yield "what to try next\n" + "\n".join(f"- {line}" for line in report["advice"])
    if "cost" in report:
        yield _compared(report["board"], report["float_cost"], report["cost"])


def _compared(board: str, before: Mapping[str, int], after: Mapping[str, int]) -> str:
    rows = [
        (
            name.replace("_", " "),
            show.count(before[name]),
            show.count(after[name]),
            f"{after[name] / max(1, before[name]):.2f}",
        )
        for name in ("flash", "ram", "estimated_instructions", "estimated_cycles")
    ]
    return show.table((f"on {board}", "float", "quantised", "ratio"), rows)


def _classification(found: Mapping[str, Any]) -> str:
    before, after = 100 * found["float_accuracy"], 100 * found["accuracy"]
    lines = [f"accuracy  {before:.2f} % -> {after:.2f} % of {show.count(found['samples'])} samples"]
    if found["changed"]:
        rows = [(c["sample"], c["truth"], c["float"], c["quantised"]) for c in found["changed"][:_SHOWN_CHANGES]]
        lines.append(f"{show.count(found['changed_count'])} answers changed\n")
        lines.append(show.table(("sample", "truth", "float", "quantised"), rows, 0))
    return "\n".join(lines)


def _noisiest(values: Sequence[Mapping[str, Any]]) -> str:
    from microc.quantization.report import worst

    rows = []
    for value in worst(values, _SHOWN_VALUES):
        span, noise = (f"{value['low']:.4g}", f"{value['high']:.4g}"), f"{value['decibels']:.1f}"
        rows.append((show.layer(value["value"]), value["dtype"], *span, noise, f"{100 * value['clipped']:.2f}"))
    return show.table(("noisiest values", "dtype", "from", "to", "dB", "% saturated"), rows, 2)


def _in_floats(floats: Mapping[str, Any]) -> str:
    rows = [
        (show.layer(each["value"]), each["op"], show.count(each["macs"]), each["reason"])
        for each in floats["operators"][:_SHOWN_VALUES]
    ]
    head = (
        f"{len(floats['operators'])} operators compute in floats, {100 * floats['share']:.1f} % of multiply-accumulates"
    )
    return f"{head}\n\n{show.table(('value', 'operator', 'MACs', 'why'), rows, 2)}"
