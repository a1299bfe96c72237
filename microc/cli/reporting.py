# SPDX-License-Identifier: Apache-2.0
"""The commands that show the costs of a network: ``report``, ``compare``, ``explain``, ``profile``, ``bench`` and ``size``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.file_access import open_regular_file, read_bytes
from microc.cli import show
from microc.cli.declared.board_commands import (
    BenchArguments,
    CompareArguments,
    ProfileArguments,
    ReportArguments,
    SizeArguments,
)
from microc.cli.declared.declarations import CompileArguments, compilation_option_words
from microc.cli.declared.model_commands import ExplainArguments
from microc.cli.project_context import (
    build_firmware,
    compile_with_arguments,
    load_inputs,
    open_project_of_source,
    progress_callback,
    serial_line_options,
)
from microc.document.blocks import (
    Document,
    Fact,
    Table,
    document,
    format_shared_kernels,
    layer_names,
    numbers,
    prose,
    table,
    texts,
)
from microc.errors import MicrocError, UsageError
from microc.reports.report_document import tensor_unit_table, tflm_table

if TYPE_CHECKING:
    from microc.device.board_info import Stats
    from microc.reports.firmware_size import Growth, SizeReport
    from microc.reports.report import Report
    from microc.run.bench import BoardFigures, TflmModel
    from microc.run.profile import Profile
    from microc.target import Board


# ---- ``microc report`` and ``microc compare``: estimates of a network on a board, and the changes between two reports.


def run_report_command(arguments: ReportArguments) -> show.Answer:
    """Run ``microc report``: estimate a network's costs on a board."""
    from microc.reports.evidence import read_accuracy, read_tflm_comparison

    accuracy = None if arguments.verified is None else read_accuracy(arguments.verified)
    result = _make_report_of_source(arguments.source, arguments, accuracy)
    advice = rewrite_advice_commands(result.data["advice"], result.data, arguments, arguments.source)
    data = {**result.data, "advice": advice}
    if arguments.bench is not None:
        data["tflm"] = read_tflm_comparison(arguments.bench, data["board"]["name"], data["fingerprint"])
    result = replace(result, data=data)
    saved = None if arguments.output is None else prose(f"report: {result.save(arguments.output)}")
    return show.Answer(result.to_data(), result.document() + document(saved))


def run_compare_command(arguments: CompareArguments) -> show.Answer:
    """Run ``microc compare``: compare two reports, projects or models."""
    from microc.cli.project_context import write_text_file
    from microc.reports.report_document import comparison_document
    from microc.reports.saved_reports import compare_reports as changes

    before, after = (_read_or_make_report(path, arguments) for path in (arguments.before, arguments.after))
    data = changes(before, after)
    if arguments.html is not None:
        write_text_file(arguments.html, after.html(before))
    return show.Answer(data, comparison_document(data))


def _read_or_make_report(path: Path, arguments: CompareArguments) -> Report:
    """Read the saved report at ``path``, or make the report of the model or project at ``path``."""
    from microc.reports.saved_reports import is_report, read_report

    return read_report(path) if is_report(path) else _make_report_of_source(path, arguments)


def _make_report_of_source(
    source: Path, arguments: CompileArguments, accuracy: Mapping[str, Any] | None = None
) -> Report:
    """Make the report of a model or project folder; ``accuracy``: result of
    :func:`microc.reports.evidence.read_accuracy`."""
    from microc.codegen.output_files import PROJECT_MARKER
    from microc.reports.saved_reports import report as make

    # A project has been compiled with the options of microc.toml, so that only options of the command line are passed on: the
    # report of a project refuses them.
    compiled = (source / PROJECT_MARKER).is_file() and not arguments.command_line_options
    options: dict[str, Any] = {} if compiled else arguments.options
    return make(
        source, board=arguments.board or None, accuracy=accuracy, progress=progress_callback(arguments), **options
    )


def rewrite_advice_commands(
    advice: Sequence[Mapping[str, Any]],
    data: Mapping[str, Any],
    arguments: CompileArguments,
    source: Path,
    output: Path | None = None,
) -> list[dict[str, Any]]:
    """Rewrite the commands in advice so that the user can run them in the current folder.

    The commands then contain the path of the model, and the compilation options of this command line. ``data``: data of the
    report; ``source``: path of the model or project. If it is a project, its model is searched for in the folder that contains
    the project, and commands write the project. ``output``: path that this command line writes.
    """
    from microc.reports.advice import rewrite_command_of_advice

    if not source.is_dir():
        options, written = compilation_option_words(arguments.words, arguments.board), str(output or "")
        return [rewrite_command_of_advice(item, data, str(source), options, written) for item in advice]
    neighbour = source.parent / data["source"]
    path = str(neighbour) if not Path(data["source"]).exists() and neighbour.is_file() else data["source"]
    return [rewrite_command_of_advice(item, data, path or data["model"], None, str(source)) for item in advice]


def estimate_rows(report: Mapping[str, Any]) -> list[Fact]:
    """Return summary rows about time, stack and state of a compiled network.

    ``report``: result of :meth:`microc.Program.report`."""
    from microc.document.blocks import format_estimated_time
    from microc.reports.report_document import slowest_layers
    from microc.run.profile import shorten_layer_name

    layers = [{**layer, "step": layer["kernel"]} for layer in report["layers"]]
    parts = [f"{100 * k['share']:.0f} % {shorten_layer_name(k['layer'])}" for k in slowest_layers({"layers": layers})]
    state = sum(tensor["bytes"] for tensor in report["state"])
    return [
        ("one inference", format_estimated_time(report["estimated_cycles"], report["estimated_milliseconds"])),
        ("  most of it", ", ".join(parts)),
        ("peak stack", f"{show.format_integer(report['stack_bound'])} bytes at most, estimated"),
        *state_rows(state),
    ]


def state_rows(state_bytes: int, board: str = "") -> list[Fact]:
    """Return the summary row about the bytes of state that a network keeps between runs.

    ``board``: name of the board if the network was not compiled for it; a row then states how to estimate the time."""
    time = [("one inference", "--exact estimates cycles and time, layer by layer")] if board else []
    return [
        *time,
        ("holds state", f"{show.format_integer(state_bytes)} bytes from run to run" if state_bytes else "no"),
    ]


# ---- ``microc explain``: explain how a layer's kernel was chosen and what it costs.


def run_explain_command(arguments: ExplainArguments) -> show.Answer:
    """Run ``microc explain``: list the steps of a network, or explain the kernel of a layer."""
    from microc.device.boards import load_board
    from microc.reports import explain as explain_reports
    from microc.reports.report import report_module
    from microc.reports.report_document import next_steps

    if arguments.board and arguments.target:
        raise UsageError(
            "--board and --target cannot both be given", hint="leave out --target: the board determines the core"
        )
    explanation = explain_reports.explain(
        arguments.model,
        arguments.layer,
        target=arguments.target or "host",
        board=arguments.board or None,
        progress=progress_callback(arguments),
        **arguments.options,
    )
    data, shown = explanation.to_data(full=arguments.full), explanation.document(full=arguments.full)
    if explanation.kernel is None and arguments.board:
        report = report_module(explanation.module, load_board(arguments.board)).data
        data["advice"] = rewrite_advice_commands(report["advice"], report, arguments, arguments.model)
        shown += document(next_steps(data["advice"]))
    return show.Answer(data, shown)


# ---- ``microc profile``: time, flash and memory by layer.

_CSV_COLUMNS = (
    "kernel", "layer", "op", "rule", "unit", "time", "share", "macs", "time_per_mac", "ticks", "instructions", "code",
    "constants", "flash", "arena", "estimated_cycles", "cycles", "schedule",
)  # fmt: skip


def run_profile_command(arguments: ProfileArguments) -> show.Answer:
    """Run ``microc profile``: measure every layer on a board."""
    import numpy as np

    from microc.cli.project_context import check_output_paths, write_csv, write_json_file, write_text_file
    from microc.reports.evidence import read_accuracy
    from microc.reports.report_document import next_steps
    from microc.reports.saved_reports import profile_to_trace, report_profile
    from microc.run.data.samples import draw_inputs
    from microc.run.session import Device

    check_output_paths(**{"--html": arguments.html, "--csv": arguments.csv, "--trace": arguments.trace})
    accuracy = None if arguments.verified is None else read_accuracy(arguments.verified)
    with open_project_of_source(arguments) as project:
        inputs = load_inputs(arguments, project.manifest) if arguments.inputs else None
        build_firmware(project, arguments)
        progress, line = progress_callback(arguments), serial_line_options(arguments)
        with Device(project, cycles=arguments.cycles, progress=progress, **line) as device:
            device.set_inputs(*(inputs or draw_inputs(device.inputs, np.random.default_rng(arguments.seed))))
            result, stats = device.profile(), device.stats()
        report = report_profile(result, stats.stack_bytes, accuracy, core1_stack=stats.core1_stack_bytes)
        advice = rewrite_advice_commands(report.data["advice"], report.data, arguments, arguments.source)
        stacks = {"stack": stats.stack_bytes, "core1_stack": stats.core1_stack_bytes}
        data = {**result.to_data(), **stacks, "advice": advice}
        if arguments.trace is not None:
            write_json_file(arguments.trace, profile_to_trace(result))
        if arguments.csv is not None:
            rows = [{**k, "unit": result.unit} for k in data["kernels"]]
            write_csv(arguments.csv, _CSV_COLUMNS, [[row[name] for name in _CSV_COLUMNS] for row in rows])
        if arguments.html is not None:
            write_text_file(arguments.html, replace(report, data={**report.data, "advice": advice}).html())
    return show.Answer(data, _profile_document(result, stats) + document(next_steps(advice)))


def _profile_document(result: Profile, stats: Stats) -> Document:
    """Show a profile: a table of kernels with a row of totals, work on a tensor unit or on two cores, and the meaning of the
    figures."""
    unit, macs = result.unit, result.macs
    # Cycles are beside their estimate, the last column.
    counted = bool(result.cycles_meaning)
    rows = [
        (
            str(k.kernel), k.layer, k.op, k.rule, k.time, 100 * k.share, k.macs, k.time / k.macs if k.macs else None,
            k.flash, k.arena, *([k.cycles] if counted else ()), k.estimated_cycles,
        )
        for k in result.kernels
    ]  # fmt: skip
    arena = max((k.arena for k in result.kernels), default=0)
    flash = sum(k.flash or 0 for k in result.kernels) if result.size else None
    cycles = (*([result.cycles] if counted else ()), result.estimated_cycles)
    total = (result.time, 100.0, macs, result.time / macs if macs else None, flash, arena, *cycles)
    columns = (
        *texts("kernel"), *layer_names("layer"), *texts("operators", "schedule"), *numbers(unit),
        *numbers("%", spec=".1f"), *numbers("MACs"), *numbers(f"{unit}/MAC", spec=".2f"),
        *numbers("flash", "arena", *(["cycles"] if counted else ()), "est. cycles"),
    )  # fmt: skip
    return document(
        table(columns, rows, totals=("", "total", "", "", *total)),
        tensor_unit_table({k.kernel: k.tensor_unit for k in result.kernels}),
        prose(
            f"{result.board}: {show.format_measured_time(result.clock, result.time)}",
            *_two_cores_sentences(result, stats),
            *([f"cycles: {result.cycles_meaning}"] if counted else ()),
            "flash: code and constants in bytes; arena: bytes in use during the step; "
            f"{'est. cycles' if counted else 'cycles'}: estimated from the code, not measured",
        ),
    )


def _two_cores_sentences(result: Profile, stats: Stats) -> Iterator[str]:
    """Yield what two cores compute, and the stack of each; nothing for firmware that uses one core."""
    shared = format_shared_kernels([(k.cores, k.share) for k in result.kernels])
    if shared:
        depths = (f"{depth:,} bytes" if depth else "unknown" for depth in (stats.stack_bytes, stats.core1_stack_bytes))
        yield f"two cores: {shared}; stack: {' on core 0, '.join(depths)} on core 1"


# ---- ``microc bench``: one network on several boards.

_MILLIJOULES_FROM = 1e-3
"""Least energy, in joules, that is printed in millijoules; smaller energies are printed in microjoules."""


def run_bench_command(arguments: BenchArguments) -> show.Answer:
    """Run ``microc bench``: measure one network on several boards, or estimate it.

    If no board could be measured, the exit code is that of the first board's error."""
    from microc.run.bench import list_boards_with_limits, measure_boards, select_boards
    from microc.run.profile import split_meter_command

    if arguments.source.is_dir() and (arguments.source / "manifest.json").is_file():
        raise UsageError(
            f"{arguments.source}: got a project, which is compiled for a single board, expected a model",
            hint="give the model file from which it was compiled",
        )
    if arguments.all_boards and arguments.board_names:
        raise UsageError(
            "--all cannot be combined with --boards: got both, expected one", hint="leave out --boards, or --all"
        )
    if not arguments.board_names and not arguments.all_boards:
        raise UsageError(
            "--boards: got none, expected one at least",
            hint="name boards: --boards microbit,mps2-an386, or --boards all-emulated; or estimate all: --all --estimate",
        )
    if arguments.meter:
        split_meter_command(arguments.meter)
    tflm = _read_tflm_model(arguments)
    boards = list_boards_with_limits() if arguments.all_boards else select_boards(arguments.board_names)
    if arguments.estimate:
        return _estimate_boards(arguments, boards)

    def write_project_for_board(board: Board, folder: Path) -> Path:
        return compile_with_arguments(arguments.source, arguments, board).write(folder)

    # Report a broken model once, not for every board. This computer has no second core of a board.
    compile_with_arguments(arguments.source, arguments, "host", cores=1)
    rows = measure_boards(
        write_project_for_board,
        boards,
        meter=arguments.meter,
        repeat=arguments.repeat or (_METER_INFERENCES if arguments.meter else 1),
        patience=arguments.timeout,
        tflm=tflm,
        progress=progress_callback(arguments),
    )
    failed = [row.error for row in rows if row.error is not None]
    code = failed[0].exit_code if len(failed) == len(rows) else 0
    return show.Answer({"boards": [row.to_data() for row in rows]}, _bench_document(rows), code)


def _read_tflm_model(arguments: BenchArguments) -> TflmModel | None:
    """Read the model for ``bench --against tflm``; None without this option.

    Raises UsageError if the model is no TFLite file, no copy of TFLite Micro is named, or nothing is to be run."""
    from microc.frontend.tflite.file import IDENTIFIER
    from microc.run.bench import TflmModel
    from microc.run.tflm_firmware import name_folder

    if not arguments.against:
        if arguments.tflm is not None:
            raise UsageError(
                "--tflm: got a folder without --against tflm", hint="add --against tflm, or leave out --tflm"
            )
        return None
    if arguments.estimate:
        raise UsageError(
            "--estimate cannot be combined with --against: nothing runs; got both, expected one",
            hint="leave out --against, or --estimate",
        )
    folder = name_folder(arguments.tflm)
    try:
        data = read_bytes(arguments.source)
    except OSError as error:
        raise UsageError(
            f"cannot read {arguments.source}: {error.strerror or error}", where=str(arguments.source)
        ) from error
    if data[4:8] != IDENTIFIER:
        raise UsageError(
            f"--against tflm: {arguments.source} is no TFLite file, which TFLite Micro reads alone",
            where=str(arguments.source),
            hint="give a .tflite file, or leave out --against",
        )
    return TflmModel(data, folder)


def _estimate_boards(arguments: BenchArguments, boards: Sequence[Board]) -> show.Answer:
    """Run ``microc bench --estimate``: estimate one network on boards, best board first."""
    from microc.compiler.network_cost import PricedNetwork
    from microc.compiler.options import make_options
    from microc.run.bench import estimate_boards

    if arguments.meter or arguments.repeat is not None:
        given = "--meter" if arguments.meter else "--repeat"
        raise UsageError(
            f"--estimate cannot be combined with {given}: nothing runs; got both, expected one",
            hint=f"leave out {given}, or --estimate",
        )
    rows = estimate_boards(PricedNetwork(arguments.source, make_options(**arguments.options)), boards)
    fitting = sum(bool(row.fits) for row in rows)
    verdict = prose(
        f"fits {fitting} of {len(rows)} boards, by estimate: microc check MODEL --board BOARD --exact compiles it to know"
    )
    failed = [row.error for row in rows if row.error is not None]
    code = failed[0].exit_code if len(failed) == len(rows) else 0
    data = {"boards": [row.to_data() for row in rows]}
    return show.Answer(data, _bench_document(rows) + document(verdict), code)


_METER_INFERENCES = 100
"""Default number of inferences that a meter measures."""


def _bench_document(rows: tuple[BoardFigures, ...]) -> Document:
    """Show the measurements of boards: a table, then the errors of boards, then the meaning of the units."""
    metered = any(row.joules is not None for row in rows)
    columns = (
        *texts("board", "core"), *numbers("time"), *texts("unit"), *numbers("ms", spec=".3f"),
        *numbers("flash"), *numbers("%", spec=".1f"), *numbers("RAM"), *numbers("%", spec=".1f"),
        *(numbers("energy") if metered else ()),
    )  # fmt: skip
    cells = [
        (
            row.board, row.cpu, _number_or_dash(row.time), row.unit,
            None if row.seconds is None else 1000 * row.seconds,
            _number_or_dash(row.flash), _percent_of_capacity(row.flash, row.room_flash),
            _number_or_dash(row.ram), _percent_of_capacity(row.ram, row.room_ram),
            *((_format_energy(row.joules),) if metered else ()),
        )
        for row in rows
    ]  # fmt: skip
    shared = [f"{row.board}: two cores compute {row.shared_kernels} kernels" for row in rows if row.shared_kernels]
    errors = [f"{row.board}: {row.error.what}" for row in rows if row.error is not None]
    units = dict.fromkeys(f"{row.unit or row.board}: {row.unit_meaning}" for row in rows if row.unit_meaning)
    compared = [row.to_data() for row in rows if row.tflm is not None and not isinstance(row.tflm, MicrocError)]
    errors += [f"{row.board}: {row.tflm.what}" for row in rows if isinstance(row.tflm, MicrocError)]
    beside = tflm_table(compared) if compared else None
    return document(table(columns, cells), beside, prose(*shared), prose(*errors), prose(*units))


def _number_or_dash(count: int | None) -> int | str:
    """Return an integer for a table cell; ``-`` if it is unknown (None)."""
    return "-" if count is None else count


def _percent_of_capacity(byte_count: int | None, capacity: int) -> float | None:
    """Return ``byte_count`` in percent of a memory's ``capacity`` in bytes; None if one of the two is unknown."""
    return 100 * byte_count / capacity if byte_count is not None and capacity else None


def _format_energy(joules: float | None) -> str:
    """Format an energy given in joules, with its unit; ``-`` if it was not measured."""
    if joules is None:
        return "-"
    return f"{1e3 * joules:.4g} mJ" if joules >= _MILLIJOULES_FROM else f"{1e6 * joules:.4g} uJ"


# ---- ``microc size --against``: growth of a firmware since an earlier build, checked against limits.

MAX_REPORT_BYTES = 1 << 28
"""Largest size of a report file that is read, in bytes."""


def read_json_report(path: Path) -> Any:
    """Read a file that contains the output of ``microc size --json`` or ``microc profile --json``.

    Raises UsageError if the file cannot be read or is no JSON."""
    import json

    hint = "write one: microc size DIR --json > FILE"
    try:
        return json.loads(read_bytes(path, MAX_REPORT_BYTES))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", where=str(path), hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}", where=str(path), hint=hint) from error


def load_base_of_growth(path: Path) -> Any:
    """Return the data of the report since which growth is measured.

    ``path``: a saved report, or a project folder, whose firmware is built and measured."""
    from microc.reports.firmware_size import measure_firmware
    from microc.run.board_project import build_project, open_project

    if not path.is_dir():
        return read_json_report(path)
    project = open_project(path)
    build_project(project)
    return measure_firmware(project).to_data()


def answer_with_growth(
    arguments: SizeArguments, data: dict[str, Any], base: Any, changes: Document | None = None
) -> show.Answer:
    """Return the answer of ``microc size --against``: the growth since an earlier report, and an error if it exceeds a limit.

    ``data``: data of the new report; ``base``: data of the earlier report; ``changes``: what to show below the growth."""
    from microc.reports.firmware_size import compute_growth, make_growth_error, read_growth_figures

    assert arguments.base is not None
    before, after = read_growth_figures(base, str(arguments.base)), read_growth_figures(data, str(arguments.source))
    growths = compute_growth(before, after, dict(arguments.fail_over))
    error = make_growth_error(growths, f"{arguments.source}, since {arguments.base}")
    shown = document(_growth_table(growths)) + (changes or document())
    return show.Answer({**data, "growth": [item.to_data() for item in growths]}, shown, error=error)


def _growth_table(growths: Sequence[Growth]) -> Table:
    """Make a table of the growth of flash, RAM and time."""
    rows = [
        (
            item.what, item.before, item.after, item.after - item.before,
            100 * item.share if item.before else None,
            "any" if item.allowed is None else 100 * item.allowed, "too much" if item.exceeds else "",
        )
        for item in growths
    ]  # fmt: skip
    columns = (
        *texts(""), *numbers("before", "after"), *numbers("change", spec="+,"), *numbers("%", "allowed, %", spec="+.2f"),
        *texts(""),
    )  # fmt: skip
    return table(columns, rows)


# ---- ``microc size``: flash and RAM by part, layer and symbol.

_SHOWN_SYMBOLS = 12
_ELF = b"\x7fELF"


def run_size_command(arguments: SizeArguments) -> show.Answer:
    """Run ``microc size``: show flash and RAM of a firmware by part, layer and symbol, and the growth since an earlier
    build."""
    from microc.cli.project_context import check_output_paths, write_csv
    from microc.reports.firmware_size import compare_sizes

    check_output_paths(**{"--csv": arguments.csv})
    if arguments.fail_over and arguments.base is None:
        raise UsageError(
            "--fail-over requires --against", hint="add it: microc size firmware --against before.json --fail-over 2%"
        )
    if arguments.compare and arguments.base:
        raise UsageError(
            "--compare cannot be combined with --against", hint="give --against alone, which shows changes and growth"
        )
    base = load_base_of_growth(arguments.base) if arguments.base else None
    if base is not None and _is_json_report(arguments.source):
        return answer_with_growth(arguments, read_json_report(arguments.source), base)
    before = read_json_report(arguments.compare) if arguments.compare else base if _has_symbols(base) else None
    with _open_size_report(arguments) as report:
        data = report.to_data()
        shown = _size_document(report)
        if arguments.csv is not None:
            write_csv(
                arguments.csv,
                ("part", "network", "steps", "symbol", "source", "section", "kind", "bytes"),
                _symbol_csv_rows(report),
            )
        if before is not None:
            data["changes"] = compare_sizes(before, report)
            shown = _size_changes_document(data["changes"])
    if base is None:
        return show.Answer(data, shown)
    return answer_with_growth(arguments, data, base, shown if before is not None else None)


def _is_json_report(path: Path) -> bool:
    """Test whether a path is a saved report: an existing file whose name ends in .json, which is the suffix of no model
    format."""
    return path.suffix == ".json" and path.is_file()


def _has_symbols(report: Any) -> bool:
    """Test whether the data of a report contain symbols. Those of ``microc size`` do, those of ``microc profile`` do not."""
    return isinstance(report, dict) and "symbols" in report


@contextmanager
def _open_size_report(arguments: SizeArguments) -> Iterator[SizeReport]:
    """Yield the size report of the project or ELF file that the command line names, or of a model, which is compiled and
    built."""
    from microc.codegen.output_files import PROJECT_MARKER
    from microc.reports.firmware_size import measure_firmware
    from microc.run.board_project import open_project

    if not _is_elf(arguments.source):
        if arguments.project is not None:
            raise UsageError(
                "--project requires an ELF file",
                hint="give the ELF file of the firmware: microc size FIRMWARE.elf --project DIR",
            )
        with open_project_of_source(arguments) as project:
            build_firmware(project, arguments)
            yield measure_firmware(project)
        return
    elf, folder = arguments.source, arguments.project or arguments.source.parent
    if arguments.project is None and not (folder / PROJECT_MARKER).is_file():
        raise UsageError(
            f"{elf.name}: got no project in its folder and no --project, expected one of them",
            where=str(elf),
            hint="name the project whose network it contains: --project DIR",
        )
    project = open_project(folder)
    yield measure_firmware(project, None if elf.resolve() == project.elf.resolve() else elf)


def _is_elf(path: Path) -> bool:
    """Test whether a path is an ELF file, by the first bytes of the file."""
    try:
        with open_regular_file(path) as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False  # a folder, or no file at all: the code that opens it as a project reports that


def _symbol_csv_rows(report: SizeReport) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table that ``microc size --csv`` writes, one for each symbol."""
    for s in report.symbols:
        yield s.part, s.network, " ".join(map(str, s.steps)), s.name, s.source, s.section, s.kind, s.size


def _size_document(report: SizeReport) -> Document:
    """Show a size report: tables of the firmware's parts, of layers, and of the largest symbols."""
    from microc.reports.firmware_size import PARTS

    parts = [
        (part, PARTS[part], sizes["text"] + sizes["data"], sizes["data"] + sizes["bss"])
        for part, sizes in report.parts().items()
        if part != "stack"
    ]
    reserved = f"the most that a run takes; {show.format_integer(report.reserved_stack)} reserved"
    parts.append(("stack", reserved, 0, report.stack))
    linked = f"size(1): text {report.text}, data {report.data}, bss {report.bss}"
    totals = ("total", linked, report.flash, report.ram)
    several = len({layer.network for layer in report.layers}) > 1
    layers = [
        (
            f"{layer.network} {layer.step}" if several else str(layer.step),
            layer.layer,
            layer.op,
            show.format_integer(layer.code) + ("*" if layer.shared_code else ""),
            layer.constants,
            layer.flash,
            100 * layer.flash / max(report.flash, 1),
            layer.arena,
        )
        for layer in report.layers
    ]
    layer_columns = (
        *texts("step"), *layer_names("layer"), *texts("operators"), *numbers("code", "constants", "flash"),
        *numbers("%", spec=".1f"), *numbers("arena"),
    )  # fmt: skip
    note = "arena: bytes that hold something during the step, part of the RAM above"
    if any(layer.shared_code for layer in report.layers):
        note += "\n*: shares functions with other layers; its part of them is counted"
    symbols = [(s.name, s.part, s.source, s.section, s.size) for s in report.symbols[:_SHOWN_SYMBOLS]]
    return document(
        table((*texts("part", "what it is"), *numbers("flash", "RAM")), parts, totals=totals),
        table(layer_columns, layers, note=note),
        table((*texts("largest symbols", "part", "source", "section"), *numbers("bytes")), symbols),
    )


def _size_changes_document(changes: dict[str, Any]) -> Document:
    """Show the changes of sizes since an earlier report: a table of parts and totals, then a table of symbols."""
    columns = (*numbers("before", "after"), *numbers("change", spec="+,"))
    parts = [row for row in changes["parts"] if row["change"]]
    totals = [{**row, "part": "total"} for row in changes["totals"] if row["memory"] in ("flash", "ram")]
    sizes = ("before", "after", "change")
    part_rows = [[row[name] for name in ("part", "memory", *sizes)] for row in (*parts, *totals)]
    symbol_rows = [[row[name] for name in ("symbol", "part", *sizes)] for row in changes["symbols"][:_SHOWN_SYMBOLS]]
    return document(
        table((*texts("part", "memory"), *columns), part_rows),
        table((*texts("symbol", "part"), *columns), symbol_rows) if symbol_rows else None,
    )
