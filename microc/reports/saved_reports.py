# SPDX-License-Identifier: Apache-2.0
"""Sources of reports: models, compiled programs, projects, and saved files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from microc.base.file_access import open_regular_file, read_text
from microc.compiler import api, validation
from microc.compiler.interaction import Progress, as_callback
from microc.compiler.model import register_plugins, registers_plugins, resolve_model
from microc.compiler.options import Options, make_options
from microc.compiler.pipeline import compile_model
from microc.device.board_info import make_printable
from microc.device.boards import load_board
from microc.device.toolchain import find_compiler
from microc.errors import FitError, ToolError, UsageError
from microc.reports.evidence import reject_json_constant
from microc.reports.firmware_size import try_to_measure_firmware
from microc.reports.report import SCHEMA, VERSION, Report, make_report
from microc.run.board_project import Project, open_project
from microc.run.desktop.library import Library
from microc.run.profile import Clock, KernelTime, Profile, shorten_layer_name
from microc.target import Board

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions


# ---- Reading reports: a JSON file that ``microc report`` wrote, or an HTML page, which contains the same JSON.

MAX_REPORT_BYTES = 256 << 20
"""Largest size of a report file that is read, in bytes."""
_PAGE_START, _JSON_START = b"<!DOCTYPE html>", b"{"
_EMBEDDED_DATA = re.compile(r'<script type="application/json" id="report-data">(.*?)</script>', re.DOTALL)
_HINT = "write one: microc report MODEL --board BOARD -o report.json"


def is_report(path: Path) -> bool:
    """Test whether a file looks like a report: whether it begins like an HTML page or a JSON object.

    No supported model file begins like either."""
    try:
        with open_regular_file(path) as file:
            return file.read(64).lstrip().startswith((_PAGE_START, _JSON_START))
    except OSError:
        return False


def read_report(path: str | Path) -> Report:
    """Read a report from a JSON file, or from an HTML page that contains its data.

    Raises UsageError if the file is no report, or a report of another version."""
    file = validation.as_path("a report", path)
    try:
        text = read_text(file, MAX_REPORT_BYTES)
        page_data = _EMBEDDED_DATA.search(text) if text.lstrip().startswith(_PAGE_START.decode()) else None
        data = json.loads(page_data[1] if page_data else text, parse_constant=reject_json_constant)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}", where=str(file), hint=_HINT) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{file}: expected a report of microc, got another file", where=str(file), hint=_HINT
        ) from error
    return Report(_validate_report(data, file))


def _validate_report(data: Any, file: Path) -> Mapping[str, Any]:
    """Validate the data of a report against their schema, so that a page can be rendered from them.

    Return the data without the fields that ``--json`` adds. Raises UsageError, which names ``file``, if the data are no
    report, or a report of another version."""
    import jsonschema

    version = data.get("report_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version != VERSION:
        raise UsageError(f"{file}: got a report of version {version}, expected {VERSION}", where=str(file), hint=_HINT)
    try:
        jsonschema.validate(data, SCHEMA)
    except jsonschema.ValidationError as error:
        place = "/".join(map(str, error.absolute_path))
        what = f"{place or 'its keys'}: {make_printable(error.message, 200)}"
        raise UsageError(f"{file}: invalid report: {what}", where=str(file), hint=_HINT) from error
    report_data: dict[str, Any] = {
        name: value for name, value in data.items() if name not in ("schema_version", "command")
    }
    return report_data


# ---- Comparing two reports: totals, and layers with the same name.

Row = dict[str, Any]


def compare_reports(before: Report, after: Report) -> dict[str, Any]:
    """Compare two reports; return plain data.

    ``totals`` and ``layers`` are lists of rows; each row has ``before`` and ``after`` for a figure, None if a report lacks
    the figure."""
    a, b = before.data, after.data
    return {
        "before": _network_data(a),
        "after": _network_data(b),
        "totals": [row for row in _total_rows(a, b) if row["before"] is not None or row["after"] is not None],
        "layers": list(_layer_comparison_rows(a["layers"], b["layers"])),
    }


def _network_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the network of a report as plain data: model, fingerprint, options and board."""
    names = {name: data[name] for name in ("model", "source", "fingerprint", "options")}
    return {**names, "board": data["board"]["name"]}


def _total_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows that compare the totals of two reports."""
    if before["measured"] and after["measured"] and before["measured"]["unit"] == after["measured"]["unit"]:
        yield _comparison_row(
            f"measured, {before['measured']['unit']}", before["measured"]["time"], after["measured"]["time"]
        )
    for key, name in (
        ("cycles", "estimated cycles"),
        ("milliseconds", "estimated ms"),
        ("macs", "multiply-accumulates"),
        ("flash", "flash, bytes"),
        ("ram", "RAM, bytes"),
        ("arena", "arena, bytes"),
        ("weights", "weights, bytes"),
    ):
        yield _comparison_row(name, before["totals"][key], after["totals"][key])
    yield _comparison_row("stack, bytes", before["stack"]["bytes"], after["stack"]["bytes"])
    yield _comparison_row("accuracy, %", _accuracy_percent(before), _accuracy_percent(after))


def _accuracy_percent(data: Mapping[str, Any]) -> float | None:
    """Return the accuracy of a report in percent; None if it was not measured."""
    found = data["accuracy"]
    return 100 * found["correct"] / found["total"] if found and found["total"] else None


def _layer_comparison_rows(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield rows that compare the cycles and the flash of layers with the same name in two reports.

    First come the layers of ``after``, in their order; then the layers that only ``before`` contains."""
    old, new = _layers_by_name(before), _layers_by_name(after)
    for name in dict.fromkeys((*new, *old)):
        both = {"before": old.get(name), "after": new.get(name)}
        cycles = {when: layer["cycles"] if layer else None for when, layer in both.items()}
        flash = {when: layer["code"] + layer["constants"] if layer else None for when, layer in both.items()}
        yield {"layer": name, "cycles": cycles, "flash": flash}


def _layers_by_name(layers: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the layers of a report by their names, without the operator's number at the beginning of a name.

    If a name is repeated, a counter is appended to it."""
    layers_by_name, seen = {}, Counter[str]()
    for layer in layers:
        name = re.sub(r"^#\d+ ", "", layer["name"])
        seen[name] += 1
        layers_by_name[f"{name} ({seen[name]})" if seen[name] > 1 else name] = layer
    return layers_by_name


def _comparison_row(name: str, before: float | None, after: float | None) -> Row:
    """Return the row that compares a figure of two reports; ``before``, ``after``: None if a report lacks the figure."""
    return {"name": name, "before": before, "after": after}


# ---- Conversion of a profile to the Trace Event Format, for Perfetto and chrome://tracing.
#
# https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: an object with ``traceEvents``. Complete events
# (phase X) have ``ts`` and ``dur`` in microseconds and nest if one encloses another. Metadata events (phase M) name processes and
# threads. If the unit is instructions, a nanosecond stands for one.

_PROCESS = {"pid": 1, "tid": 1}
"""Numbers of the process and the thread to which all trace events belong."""


def profile_to_trace(profile: Profile) -> dict[str, Any]:
    """Convert a profile to the Trace Event Format.

    The trace contains an event for the inference; nested in it, events for the layers; nested in these, events for the
    kernels. A counter shows the bytes of the arena in use."""
    clock, unit, model = profile.clock, profile.unit, profile.project.manifest["model"]
    events = [
        _metadata_trace_event("process_name", f"{model} on {profile.board}"),
        _metadata_trace_event(
            "thread_name", "1 ns stands for one instruction" if clock.counts_instructions else "kernels"
        ),
        _complete_trace_event(clock, model, "inference", 0, profile.time, {"macs": profile.macs}),
    ]
    start = 0
    for layer, group in groupby(profile.kernels, key=lambda k: k.layer):
        kernels = tuple(group)
        end = start + sum(k.time for k in kernels)
        arguments = {"macs": sum(k.macs for k in kernels), "layer": layer}
        events.append(_complete_trace_event(clock, shorten_layer_name(layer), "layer", start, end, arguments))
        for k in kernels:
            events += _kernel_trace_events(clock, k, start)
            start += k.time
    other = {"board": profile.board, "unit": unit, "unit_meaning": clock.meaning}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _kernel_trace_events(clock: Clock, kernel_time: KernelTime, start: int) -> Iterator[dict[str, Any]]:
    """Yield the trace events of a kernel that begins at ``start``: one for its time, one for the bytes of the arena in use."""
    arguments = {
        "kernel": kernel_time.kernel,
        "macs": kernel_time.macs,
        "schedule": kernel_time.rule,
        "arena": kernel_time.arena,
    }
    yield _complete_trace_event(clock, kernel_time.op, "kernel", start, start + kernel_time.time, arguments)
    yield {
        "name": "arena",
        "ph": "C",
        "ts": _to_nanoseconds(clock, start) / 1000,
        **_PROCESS,
        "args": {"bytes": kernel_time.arena},
    }


def _complete_trace_event(
    clock: Clock, name: str, category: str, start: int, end: int, args: dict[str, Any]
) -> dict[str, Any]:
    """Return a complete event (phase X) of a trace, which lasts from ``start`` to ``end`` in the clock's unit."""
    at, till = _to_nanoseconds(clock, start), _to_nanoseconds(clock, end)
    times = {"ts": at / 1000, "dur": (till - at) / 1000}
    return {"name": name, "cat": category, "ph": "X", **times, **_PROCESS, "args": {clock.unit: end - start, **args}}


def _to_nanoseconds(clock: Clock, amount: int) -> int:
    """Convert a time in the clock's unit to nanoseconds. If the clock counts instructions, each becomes a nanosecond."""
    return amount if clock.counts_instructions else round(amount * 1e9 / clock.tick_hz)


def _metadata_trace_event(name: str, value: str) -> dict[str, Any]:
    """Return a metadata event (phase M) of a trace, which sets the name of the trace's process or thread."""
    return {"name": name, "ph": "M", "ts": 0, **_PROCESS, "args": {"name": value}}


# ---- ``microc.report``: make a report of a model, of a compiled program or library, or of a project folder.


@registers_plugins
def report(
    model: Any,
    *,
    board: str | Path | Board | None = None,
    accuracy: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[CompileOptions],
) -> Report:
    """Make a report of a network on a board, from estimates; neither the board nor a C compiler is needed.

    ``model``: anything that :func:`microc.compile` accepts; it is compiled for ``board`` (a name, or the path of a board
    file; default: this computer) under ``options``. Or a :class:`microc.Program`, a :class:`microc.Library`, or the folder
    of a project; these have a board and options of their own. If a network does not fit its board, the report's first
    advice states this. ``accuracy``: result of :func:`microc.reports.evidence.read_accuracy`. ``progress``: as for
    :func:`microc.compile`. Raises the errors of :func:`microc.compile`, and OutputError if a folder is no project.
    """
    path = Path(model) if isinstance(model, (str, Path)) else None
    is_compiled = isinstance(model, (api.Program, Library, Project)) or (
        path is not None and path.is_dir() and (path / "manifest.json").is_file()
    )
    if is_compiled:
        if board is not None or options:
            raise UsageError(
                "board and options cannot be given for a compiled network, which has its own; "
                f"got {', '.join((*(('board',) if board is not None else ()), *options))}",
                hint="leave out board and options, or give the model file instead of the compiled network",
            )
        if isinstance(model, api.Program):
            return report_program(model, accuracy)
        if isinstance(model, Library):
            return report_library(model, accuracy)
        return report_project(
            model if isinstance(model, Project) else open_project(validation.as_path("a project", model)), accuracy
        )
    board_or_host = board if board is not None else "host"
    try:
        program = api.compile(model, board=board_or_host, progress=progress, **options)
    except FitError:
        program = _compile_without_limits(model, board_or_host, make_options(**options), as_callback(progress))
    return report_program(program, accuracy)


def report_library(library: Library, accuracy: Mapping[str, Any] | None = None) -> Report:
    """Make a report of a network that is compiled as a library for this computer, from estimates.

    Cycles are estimated for the core whose kernels the library contains. Flash and RAM are None, because only firmware has
    them."""
    return make_report(library.manifest, load_board("host"), model_c=library.model_c, accuracy=accuracy)


def _compile_without_limits(
    model: Any, board: str | Path | Board, options: Options, progress: Progress | None
) -> api.Program:
    """Compile a network for a board without the board's memory limits, to report by how much the network exceeds them."""
    board_object = board if isinstance(board, Board) else load_board(board)
    return api.Program(
        compile_model(resolve_model(model, options), board_object.target, options, progress),
        board_object,
        options.plugins,
    )


def report_program(program: api.Program, accuracy: Mapping[str, Any] | None = None) -> Report:
    """Make a report of a network that is compiled for a board, from estimates."""
    with register_plugins({"plugins": program.plugins}):
        files = program.files()
        manifest = json.loads(files["manifest.json"])
        return make_report(
            manifest, program.board, model_c=str(files["model.c"]), program_report=program.report(), accuracy=accuracy
        )


def report_project(project: Project, accuracy: Mapping[str, Any] | None = None, **measurements: Any) -> Report:
    """Make a report of the network in a project folder.

    ``measurements``: times and sizes, as keywords of :func:`make_report`. If the file with the network's C is missing, the report
    contains no C."""
    path = project.sources / "model.c"
    text = read_text(path, errors="replace") if path.is_file() else ""
    if "profile" not in measurements and not project.relocatable:
        measurements["size"] = try_to_measure_firmware(project)
    return make_report(project.manifest, project.board, model_c=text, accuracy=accuracy, **measurements)


def report_profile(
    profile: Profile,
    stack: int | None = None,
    accuracy: Mapping[str, Any] | None = None,
    *,
    core1_stack: int | None = None,
) -> Report:
    """Make a report of a network that was measured on its board.

    ``stack``, ``core1_stack``: peak stack of the first and of the second core in bytes, measured on the board."""
    board = profile.project.board
    try:
        compiler = find_compiler(board).version
    except ToolError:
        compiler = "not on this computer"
    result = report_project(
        profile.project, accuracy, profile=profile, size=profile.size, stack=stack or None, core1_stack=core1_stack
    )
    return Report({**result.data, "compiler": compiler})
