"""``microc report`` and ``microc compare``: a network on a board in numbers, and what has changed between two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import progress
from microc.cli.model_options import chosen_options, option_words, spoken_options

if TYPE_CHECKING:
    from microc.driver.report.report import Report


def report(arguments: Arguments) -> show.Answer:
    """``microc report``."""
    from microc.driver.report.accuracy import read_accuracy

    accuracy = None if arguments.verified is None else read_accuracy(arguments.verified)
    made = _report(arguments.source, arguments, accuracy)
    made = replace(made, data={**made.data, "advice": advice_here(made.data["advice"], made.data, arguments)})
    text = _text(made.data)
    if arguments.output is not None:
        text += f"\n\nreport: {made.save(arguments.output)}"
    return show.Answer(made.to_data(), text)


def compare(arguments: Arguments) -> show.Answer:
    """``microc compare``."""
    from microc.cli.files import write_text
    from microc.driver.report.comparison import compare as changes

    before, after = (_saved(path, arguments) for path in (arguments.before, arguments.after))
    data = changes(before, after)
    if arguments.html is not None:
        write_text(arguments.html, after.html(before))
    return show.Answer(data, _changes(data))


def _saved(path: Path, arguments: Arguments) -> Report:
    """A report from a file, or of a model or project."""
    from microc.driver.report.reading import is_report, read_report

    return read_report(path) if is_report(path) else _report(path, arguments)


def _report(source: Path, arguments: Arguments, accuracy: Mapping[str, Any] | None = None) -> Report:
    from microc.codegen.files import MARKER
    from microc.driver.report.making import report as make

    compiled = (source / MARKER).is_file() and not spoken_options(
        arguments
    )  # a project has what microc.toml says in it
    options: dict[str, Any] = {} if compiled else chosen_options(arguments)
    return make(source, board=arguments.board or None, accuracy=accuracy, progress=progress(arguments), **options)


def _text(data: Mapping[str, Any]) -> str:
    """What a terminal shows of a report: the numbers, the layers, what to do."""
    from microc.driver.report.accuracy import accuracy_words
    from microc.driver.report.words import memory_rows, stack_words, time_words

    totals, board = data["totals"], data["board"]
    state = ", ".join(f"{s['name']} {s['dtype']} {show.shape(s['shape'])}" for s in data["state"])
    rows: list[tuple[str, object]] = [
        ("model", f"{data['source']} on {board['name']} ({board['cpu']})"),
        ("one inference", time_words(data)),
        ("multiply-accumulates", show.count(totals["macs"])),
        *(
            (name, show.of(totals[key], board[key]))
            for name, key in (("flash, estimated", "flash"), ("RAM", "ram"))
            if totals[key] is not None
        ),
        ("arena", f"{show.count(totals['arena'])} bytes"),
        *memory_rows(data.get("memories", ())),
        ("peak stack", stack_words(data)),
        ("holds state", state or "no"),
        *(
            ("accuracy", line)
            for line in (accuracy_words(data["accuracy"], data["fingerprint"]) if data["accuracy"] else ())
        ),
    ]
    return "\n\n".join(filter(None, (show.facts(rows), layer_table(data["layers"]), next_steps(data["advice"]))))


def advice_here(
    advice: Sequence[Mapping[str, Any]], data: Mapping[str, Any], arguments: Arguments, model: Path | None = None
) -> list[dict[str, Any]]:
    """Advices whose commands can be typed here: the model by its path (of a project as far as it is found), and the options of
    this command. ``data``: the report's; ``model``: what the command calls ``source`` unless given."""
    from microc.driver.report.next_steps import rewrite_command

    given = model or arguments.source
    if not given.is_dir():
        own = option_words(arguments.words, arguments.board)
        return [rewrite_command(each, data, str(given), own) for each in advice]
    beside = given.parent / data["source"]
    path = str(beside) if not Path(data["source"]).exists() and beside.is_file() else data["source"]
    return [rewrite_command(each, data, path or data["model"], None) for each in advice]


def next_steps(advice: Sequence[Mapping[str, Any]]) -> str:
    """Advices with their commands, for a terminal; empty where there are none."""
    from microc.driver.report import tables

    lines = ["what to do next"]
    for each in advice:
        lines += tables.wrapped(each["text"], show.columns(), "- ")
        lines += tables.command(each["command"], show.columns(), "  ") if each["command"] else []
    return "\n".join(lines) if len(lines) > 1 else ""


def estimate_rows(report: Mapping[str, Any]) -> list[tuple[str, object]]:
    """What a person needs to know before there is a board, of :meth:`microc.Program.report`."""
    from microc.driver.measure.profile import short_layer
    from microc.driver.report.layers import slowest
    from microc.driver.report.words import estimate_words

    layers = [{**layer, "step": layer["kernel"]} for layer in report["layers"]]
    parts = [f"{100 * k['share']:.0f} % {short_layer(k['layer'])}" for k in slowest({"layers": layers})]
    state = sum(each["bytes"] for each in report["state"])
    return [
        ("one inference", estimate_words(report["estimated_cycles"], report["estimated_milliseconds"])),
        ("  most of it", ", ".join(parts)),
        ("peak stack", f"{show.count(report['stack_bound'])} bytes at most, estimated"),
        *state_rows(state),
    ]


def state_rows(state: int, board: str = "") -> list[tuple[str, object]]:
    """Whether runs depend on those before; ``board``: where nothing was compiled for it, so that its time is not known."""
    time = [("one inference", "--exact estimates cycles and time, layer by layer")] if board else []
    return [*time, ("holds state", f"{show.count(state)} bytes from run to run" if state else "no")]


def layer_table(layers: Sequence[Mapping[str, Any]]) -> str:
    """The layers with what the cost model says of them."""
    clocked = all(layer["milliseconds"] is not None for layer in layers)
    total = sum(layer["cycles"] for layer in layers) or 1
    cells = [
        (
            str(k["step"]),
            show.layer(k["layer"]),
            k["op"],
            show.count(k["cycles"]),
            f"{100 * k['cycles'] / total:.1f}",
            *((f"{k['milliseconds']:.3f}",) if clocked else ()),
            show.count(k["macs"]),
            show.count(k["code"] + k["constants"]),
            show.count(k["arena"]),
        )
        for k in layers
    ]
    head = (
        "step",
        "layer",
        "operators",
        "est. cycles",
        "%",
        *(("est. ms",) if clocked else ()),
        "MACs",
        "flash",
        "arena",
    )
    return show.table(head, cells, 3)


def _changes(data: Mapping[str, Any]) -> str:
    """Two tables: all, and by layer."""
    rows = [(row["name"], *_three(row)) for row in data["totals"]]
    layers = [(row["layer"], *_three(row["cycles"]), *_three(row["flash"])) for row in data["layers"]]
    head = ("layer", "cycles before", "after", "change", "flash before", "after", "change")
    about = [(what, f"{data[what]['source']} on {data[what]['board']}") for what in ("before", "after")]
    return "\n\n".join(
        (show.facts(about), show.table(("", "before", "after", "change"), rows), show.table(head, layers))
    )


def _three(row: Mapping[str, Any]) -> tuple[str, str, str]:
    from microc.driver.report.words import change_words

    shown = [_number(row[when]) for when in ("before", "after")]
    return shown[0], shown[1], change_words(row["before"], row["after"])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.3f}" if isinstance(value, float) else show.count(value)
