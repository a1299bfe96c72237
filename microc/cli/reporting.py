"""Commands that show a network: report, compare, explain, profile, bench, size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.file_access import open_regular, read_bytes
from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.project_context import build_firmware, compile_model, line, load_inputs, opened_project, progress
from microc.cli.shared_options import chosen_options, option_words, spoken_options
from microc.errors import UsageError
from microc.reports.layers import unit_table

if TYPE_CHECKING:
    from microc.reports.firmware_size import Growth, SizeReport
    from microc.reports.report import Report
    from microc.run.bench import BoardFigures
    from microc.run.profile import Profile
    from microc.target import Board


# ---- ``microc report`` and ``microc compare``: a network on a board in numbers, and what has changed between two of
# them.


def report(arguments: Arguments) -> show.Answer:
    """``microc report``."""
    from microc.reports.evidence import read_accuracy

    accuracy = None if arguments.verified is None else read_accuracy(arguments.verified)
    made = _report(arguments.source, arguments, accuracy)
    made = replace(made, data={**made.data, "advice": advice_here(made.data["advice"], made.data, arguments)})
    text = _report_text(made.data)
    if arguments.output is not None:
        text += f"\n\nreport: {made.save(arguments.output)}"
    return show.Answer(made.to_data(), text)


def compare(arguments: Arguments) -> show.Answer:
    """``microc compare``."""
    from microc.cli.project_context import write_text
    from microc.reports.saved_reports import compare as changes

    before, after = (_saved(path, arguments) for path in (arguments.before, arguments.after))
    data = changes(before, after)
    if arguments.html is not None:
        write_text(arguments.html, after.html(before))
    return show.Answer(data, _report_changes(data))


def _saved(path: Path, arguments: Arguments) -> Report:
    """A report from a file, or of a model or project."""
    from microc.reports.saved_reports import is_report, read_report

    return read_report(path) if is_report(path) else _report(path, arguments)


def _report(source: Path, arguments: Arguments, accuracy: Mapping[str, Any] | None = None) -> Report:
    from microc.codegen.output_files import MARKER
    from microc.reports.making import report as make

    compiled = (source / MARKER).is_file() and not spoken_options(
        arguments
    )  # a project has what microc.toml says in it
    options: dict[str, Any] = {} if compiled else chosen_options(arguments)
    return make(source, board=arguments.board or None, accuracy=accuracy, progress=progress(arguments), **options)


def _report_text(data: Mapping[str, Any]) -> str:
    """What a terminal shows of a report: the numbers, the layers, what to do."""
    from microc.reports.evidence import accuracy_words
    from microc.reports.text_tables import memory_rows, stack_words, time_words

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
    from microc.reports.advice import rewrite_command

    given = model or arguments.source
    if not given.is_dir():
        own = option_words(arguments.words, arguments.board)
        return [rewrite_command(each, data, str(given), own) for each in advice]
    beside = given.parent / data["source"]
    path = str(beside) if not Path(data["source"]).exists() and beside.is_file() else data["source"]
    return [rewrite_command(each, data, path or data["model"], None) for each in advice]


def next_steps(advice: Sequence[Mapping[str, Any]]) -> str:
    """Advices with their commands, for a terminal; empty where there are none."""
    from microc.reports import text_tables

    lines = ["what to do next"]
    for each in advice:
        lines += text_tables.wrapped(each["text"], show.columns(), "- ")
        lines += text_tables.command(each["command"], show.columns(), "  ") if each["command"] else []
    return "\n".join(lines) if len(lines) > 1 else ""


def estimate_rows(report: Mapping[str, Any]) -> list[tuple[str, object]]:
    """What a person needs to know before there is a board, of :meth:`microc.Program.report`."""
    from microc.reports.layers import slowest
    from microc.reports.text_tables import estimate_words
    from microc.run.profile import short_layer

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


def _report_changes(data: Mapping[str, Any]) -> str:
    """Two tables: all, and by layer."""
    rows = [(row["name"], *_three(row)) for row in data["totals"]]
    layers = [(row["layer"], *_three(row["cycles"]), *_three(row["flash"])) for row in data["layers"]]
    head = ("layer", "cycles before", "after", "change", "flash before", "after", "change")
    about = [(what, f"{data[what]['source']} on {data[what]['board']}") for what in ("before", "after")]
    return "\n\n".join(
        (show.facts(about), show.table(("", "before", "after", "change"), rows), show.table(head, layers))
    )


def _three(row: Mapping[str, Any]) -> tuple[str, str, str]:
    from microc.reports.text_tables import change_words

    shown = [_number(row[when]) for when in ("before", "after")]
    return shown[0], shown[1], change_words(row["before"], row["after"])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.3f}" if isinstance(value, float) else show.count(value)


# ---- ``microc explain``: why a layer costs what it costs.


def explain(arguments: Arguments) -> show.Answer:
    """``microc explain``."""
    from microc.device.boards import load_board
    from microc.reports import explain as driver
    from microc.reports.summary import of_module

    if arguments.board and arguments.target:
        raise UsageError("--board and --target cannot both be given", hint="a board has its core")
    found = driver.explain(
        arguments.model,
        arguments.layer,
        target=arguments.target or "host",
        board=arguments.board or None,
        progress=progress(arguments),
        **chosen_options(arguments),
    )
    data, text = found.to_data(full=arguments.full), found.text(full=arguments.full, width=show.columns())
    if found.kernel is None and arguments.board:
        report = of_module(found.module, load_board(arguments.board)).data
        data["advice"] = advice_here(report["advice"], report, arguments, arguments.model)
        text = "\n\n".join(filter(None, (text, next_steps(data["advice"]))))
    return show.Answer(data, text)


# ---- ``microc profile``: time, flash and memory by layer.

_CSV = (
    "kernel", "layer", "op", "rule", "unit", "time", "share", "macs", "time_per_mac", "ticks", "instructions", "code",
    "constants", "flash", "arena", "estimated_cycles", "schedule",
)  # fmt: skip


def profile(arguments: Arguments) -> show.Answer:
    """``microc profile``."""
    import numpy as np

    from microc.cli.project_context import check_places, write_csv, write_json, write_text
    from microc.reports.evidence import read_accuracy
    from microc.reports.making import of_profile
    from microc.reports.saved_reports import to_trace
    from microc.run.session import Device
    from microc.run.verify import random_inputs

    check_places(**{"--html": arguments.html, "--csv": arguments.csv, "--trace": arguments.trace})
    verified = None if arguments.verified is None else read_accuracy(arguments.verified)
    with opened_project(arguments) as project:
        given = load_inputs(arguments, project.manifest) if arguments.inputs else None
        build_firmware(project, arguments)
        with Device(project, progress=progress(arguments), **line(arguments)) as device:
            device.set_inputs(*(given or random_inputs(device.inputs, np.random.default_rng(arguments.seed))))
            result, stack = device.profile(), device.stats().stack_bytes
        report = of_profile(result, stack, verified)
        advice = advice_here(report.data["advice"], report.data, arguments)
        data = {**result.to_data(), "advice": advice}
        if arguments.trace is not None:
            write_json(arguments.trace, to_trace(result))
        if arguments.csv is not None:
            rows = [{**k, "unit": result.unit} for k in data["kernels"]]
            write_csv(arguments.csv, _CSV, [[row[name] for name in _CSV] for row in rows])
        if arguments.html is not None:
            write_text(arguments.html, replace(report, data={**report.data, "advice": advice}).html())
    return show.Answer(data, "\n\n".join(filter(None, (_profile_text(result), next_steps(advice)))))


def _profile_text(result: Profile) -> str:
    """The table of kernels, its total, and what the numbers are."""
    unit = result.unit
    rows = []
    for k in result.kernels:
        costs = _costs(k.time, k.share, k.macs, k.flash, k.arena, k.estimated_cycles)
        rows.append((str(k.kernel), show.layer(k.layer), k.op, k.rule, *costs))
    arena = max((k.arena for k in result.kernels), default=0)
    flash = sum(k.flash or 0 for k in result.kernels) if result.size else None
    rows.append(("", "total", "", "", *_costs(result.time, 1.0, result.macs, flash, arena, result.estimated_cycles)))
    head = (
        "kernel",
        "layer",
        "operators",
        "schedule",
        unit,
        "%",
        "MACs",
        f"{unit}/MAC",
        "flash",
        "arena",
        "est. cycles",
    )
    notes = (
        f"{result.board}: {show.duration(result.clock, result.time)}",
        "flash: code and constants in bytes; arena: bytes in use during the step; cycles: estimated from the code, not measured",
    )
    on_unit = unit_table({k.kernel: k.tensor_unit for k in result.kernels}, show.columns())
    return "\n\n".join((show.table(head, rows, 4), *([on_unit] if on_unit else []), "\n".join(notes)))


def _costs(time: int, share: float, macs: int, flash: int | None, arena: int, cycles: int) -> tuple[str, ...]:
    each = f"{time / macs:.2f}" if macs else ""
    size = "" if flash is None else show.count(flash)
    return show.count(time), f"{100 * share:.1f}", show.count(macs), each, size, show.count(arena), show.count(cycles)


# ---- ``microc bench``: one network on several boards.

_SMALL = 1e-3


def bench(arguments: Arguments) -> show.Answer:
    """``microc bench``. The exit code is that of the first board's error where none was measured."""
    from microc.run.bench import boards_of, measure_boards
    from microc.run.profile import words_of

    if arguments.source.is_dir() and (arguments.source / "manifest.json").is_file():
        raise UsageError(
            f"{arguments.source} is a project, which is for one board", hint="give the model that it was compiled from"
        )
    if not arguments.board_names:
        raise UsageError("bench needs boards", hint="name them: --boards microbit,mps2-an386, or all-emulated")
    if arguments.meter:
        words_of(arguments.meter)
    boards = boards_of(arguments.board_names)

    def write(board: Board, folder: Path) -> Path:
        return compile_model(arguments.source, arguments, board).write(folder)

    compile_model(arguments.source, arguments, "host")  # what is wrong with the model is wrong on every board
    rows = measure_boards(
        write,
        boards,
        meter=arguments.meter,
        repeat=arguments.repeat or (_METERED if arguments.meter else 1),
        patience=arguments.timeout,
        progress=progress(arguments),
    )
    failed = [row.error for row in rows if row.error is not None]
    code = failed[0].exit_code if len(failed) == len(rows) else 0
    return show.Answer({"boards": [row.to_data() for row in rows]}, _bench_text(rows), code)


_METERED = 100
"""Inferences that a meter is given."""


def _bench_text(rows: tuple[BoardFigures, ...]) -> str:
    metered = any(row.joules is not None for row in rows)
    head = ("board", "core", "time", "unit", "ms", "flash", "%", "RAM", "%", *(("energy",) if metered else ()))
    cells = [
        (
            row.board, row.cpu, _count(row.time), row.unit,
            "" if row.seconds is None else f"{1000 * row.seconds:.3f}",
            _count(row.flash), _share(row.flash, row.room_flash), _count(row.ram), _share(row.ram, row.room_ram),
            *((_energy(row.joules),) if metered else ()),
        )
        for row in rows
    ]  # fmt: skip
    notes = dict.fromkeys(f"{row.unit or row.board}: {row.unit_meaning}" for row in rows if row.unit_meaning)
    why = [f"{row.board}: {row.error.what}" for row in rows if row.error is not None]
    table = show.table(head, cells, 2)
    return "\n\n".join(filter(None, (table, "\n".join(why), "\n".join(notes))))


def _count(number: int | None) -> str:
    return "-" if number is None else show.count(number)


def _share(number: int | None, room: int) -> str:
    return f"{100 * number / room:.1f}" if number is not None and room else ""


def _energy(joules: float | None) -> str:
    if joules is None:
        return "-"
    return f"{1e3 * joules:.4g} mJ" if joules >= _SMALL else f"{1e6 * joules:.4g} uJ"


# ---- ``microc size --against``: the figures of a firmware beside those of an earlier one, and whether they may have
# grown so.

LARGEST = 1 << 28
"""Bytes of a report at most."""


def read_report(path: Path) -> Any:
    """What `microc size --json` or `microc profile --json` wrote."""
    import json

    hint = "write one: microc size DIR --json > FILE"
    try:
        return json.loads(read_bytes(path, LARGEST))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", where=str(path), hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON", where=str(path), hint=hint) from error


def base_report(path: Path) -> Any:
    """The report of what is compared with: a project's firmware, which is built, or a saved one."""
    from microc.reports.firmware_size import measure
    from microc.run.board_project import build, open_project

    if not path.is_dir():
        return read_report(path)
    project = open_project(path)
    build(project)
    return measure(project).to_data()


def held(arguments: Arguments, data: dict[str, Any], base: Any, text: str) -> show.Answer:
    """The answer of ``microc size`` with what has grown since ``base``; its error where that is beyond a bound."""
    from microc.reports.firmware_size import figures_of, growth, refusal

    assert arguments.base is not None
    before, after = figures_of(base, str(arguments.base)), figures_of(data, str(arguments.source))
    found = growth(before, after, dict(arguments.fail_over))
    error = refusal(found, f"{arguments.source}, since {arguments.base}")
    parts = (_growth_text(found), text)
    return show.Answer(
        {**data, "growth": [each.to_data() for each in found]}, "\n\n".join(filter(None, parts)), error=error
    )


def _growth_text(found: Sequence[Growth]) -> str:
    rows = [
        (
            each.what, show.count(each.before), show.count(each.after), f"{each.after - each.before:+,}",
            f"{100 * each.share:+.2f}" if each.before else "",
            "any" if each.allowed is None else f"{100 * each.allowed:+.2f}", "too much" if each.exceeds else "",
        )
        for each in found
    ]  # fmt: skip
    return show.table(("", "before", "after", "change", "%", "allowed, %", ""), rows)


# ---- ``microc size``: flash and RAM by part, layer and symbol.

_SHOWN_SYMBOLS = 12
_ELF = b"\x7fELF"


def size(arguments: Arguments) -> show.Answer:
    """``microc size``."""
    from microc.cli.project_context import check_places, write_csv
    from microc.reports.firmware_size import compare

    check_places(**{"--csv": arguments.csv})
    if arguments.fail_over and arguments.base is None:
        raise UsageError(
            "--fail-over speaks of --against", hint="microc size firmware --against before.json --fail-over 2%"
        )
    if arguments.compare and arguments.base:
        raise UsageError("--compare and --against are one: the second tells more", hint="give --against")
    base = base_report(arguments.base) if arguments.base else None
    if base is not None and _is_report(arguments.source):
        return held(arguments, read_report(arguments.source), base, "")
    before = read_report(arguments.compare) if arguments.compare else base if _has_symbols(base) else None
    with _measured(arguments) as report:
        data = report.to_data()
        text = _text(report)
        if arguments.csv is not None:
            write_csv(
                arguments.csv,
                ("part", "network", "steps", "symbol", "source", "section", "kind", "bytes"),
                _rows(report),
            )
        if before is not None:
            data["changes"] = compare(before, report)
            text = _changes(data["changes"])
    return show.Answer(data, text) if base is None else held(arguments, data, base, text if before is not None else "")


def _is_report(path: Path) -> bool:
    """Whether this is a report, by its name: reports and models are files."""
    return path.suffix == ".json" and path.is_file()


def _has_symbols(report: Any) -> bool:
    """Whether a report tells of symbols, as those of sizes do."""
    return isinstance(report, dict) and "symbols" in report


@contextmanager
def _measured(arguments: Arguments) -> Iterator[SizeReport]:
    """The report about a project, an ELF file, or a model that is compiled and built on the fly."""
    from microc.codegen.output_files import MARKER
    from microc.reports.firmware_size import measure
    from microc.run.board_project import open_project

    if not _is_elf(arguments.source):
        if arguments.project is not None:
            raise UsageError(
                "--project says whose network an ELF file holds", hint="microc size FIRMWARE.elf --project DIR"
            )
        with opened_project(arguments) as project:
            build_firmware(project, arguments)
            yield measure(project)
        return
    elf, folder = arguments.source, arguments.project or arguments.source.parent
    if arguments.project is None and not (folder / MARKER).is_file():
        raise UsageError(
            f"no project lies beside {elf.name}", where=str(elf), hint="say whose network it holds: --project DIR"
        )
    project = open_project(folder)
    yield measure(project, None if elf.resolve() == project.elf.resolve() else elf)


def _is_elf(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False  # a folder, or nothing: its reader says so


def _rows(report: SizeReport) -> Iterator[tuple[object, ...]]:
    for s in report.symbols:
        yield s.part, s.network, " ".join(map(str, s.steps)), s.name, s.source, s.section, s.kind, s.size


def _text(report: SizeReport) -> str:
    from microc.reports.firmware_size import PARTS

    rows = [
        (part, PARTS[part], show.count(sizes["text"] + sizes["data"]), show.count(sizes["data"] + sizes["bss"]))
        for part, sizes in report.parts().items()
        if part != "stack"
    ]
    reserved = f"the most that a run takes; {show.count(report.reserved_stack)} reserved"
    rows.append(("stack", reserved, "0", show.count(report.stack)))
    rows.append(("total", f"size(1): text {report.text}, data {report.data}, bss {report.bss}",
                 show.count(report.flash), show.count(report.ram)))  # fmt: skip
    parts = show.table(("part", "what it is", "flash", "RAM"), rows, 2)
    several = len({layer.network for layer in report.layers}) > 1
    layers = show.table(
        ("step", "layer", "operators", "code", "constants", "flash", "%", "arena"),
        [
            (
                f"{layer.network} {layer.step}" if several else layer.step,
                show.layer(layer.layer),
                layer.op,
                show.count(layer.code) + ("*" if layer.shared_code else ""),
                show.count(layer.constants),
                show.count(layer.flash),
                f"{100 * layer.flash / max(report.flash, 1):.1f}",
                show.count(layer.arena),
            )
            for layer in report.layers
        ],
        3,
    )
    symbols = show.table(
        ("largest symbols", "part", "source", "section", "bytes"),
        [(s.name, s.part, s.source, s.section, show.count(s.size)) for s in report.symbols[:_SHOWN_SYMBOLS]],
        4,
    )
    note = "arena: bytes that hold something during the step, part of the RAM above"
    if any(layer.shared_code for layer in report.layers):
        note += "\n*: shares functions with other layers; its part of them is counted"
    return f"{parts}\n\n{layers}\n{note}\n\n{symbols}"


def _changes(changes: dict[str, Any]) -> str:
    parts = [(row["part"], row["memory"], *_change(row)) for row in changes["parts"] if row["change"]] + [
        ("total", row["memory"], *_change(row)) for row in changes["totals"] if row["memory"] in ("flash", "ram")
    ]
    text = show.table(("part", "memory", "before", "after", "change"), parts, 2)
    symbols = [(s["symbol"], s["part"], *_change(s)) for s in changes["symbols"][:_SHOWN_SYMBOLS]]
    return f"{text}\n\n{show.table(('symbol', 'part', 'before', 'after', 'change'), symbols, 2)}" if symbols else text


def _change(row: dict[str, Any]) -> tuple[str, str, str]:
    return show.count(row["before"]), show.count(row["after"]), f"{row['change']:+,}"
