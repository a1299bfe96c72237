# SPDX-License-Identifier: Apache-2.0
"""``microc tune``: search for faster schedules, show the progress of the search, and manage files of tuning records."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.operating_system import has_control_sequences, quote_argument
from microc.cli import INTERRUPTED, SCHEMA_VERSION, show
from microc.cli.declared.model_commands import TuneArguments
from microc.cli.project_context import write_text_file
from microc.document.blocks import Cell, Fact, Facts, Table, document, facts, layer_names, numbers, prose, table, texts
from microc.document.renderers import render_text
from microc.errors import UsageError, write_trusted_control_sequence

if TYPE_CHECKING:
    from microc.compiler.tuned.records import Database, Record
    from microc.tuning.tune import Tuning
    from microc.tuning.tuner import TunedKernel, TunedNetwork, TuningEvent


# ---- ``microc tune`` on files of tuning records (measured schedules): show, merge, prune, or repeat a measurement.

_SHOWN_FAILURES = 8
_EXIT_CODES = {"ok": 0, "wrong": 1, "failed": 6, "unbuilt": 6}
"""Exit code of ``--repeat`` by the status of the new measurement.

``wrong``: results differ from the reference; ``failed``: the board did not answer; ``unbuilt``: the program could not be
built."""


def show_records(path: Path, html: Path | None) -> show.Answer:
    """Return the answer of ``microc tune --show``: a table of the kernels in a file of tuning records.

    Failed records are listed with the commands that measure them again. ``html``: path of an HTML page to write as well."""
    from microc.compiler.tuned.records import OK, open_records

    database = open_records(path)
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for record in database:
        groups.setdefault((record.key, record.board, record.unit), []).append(record)
    rows, data = [], []
    for (key, board, unit), records in groups.items():
        good = [record for record in records if record.status == OK]
        best = min(good, key=lambda record: record.ticks) if good else None
        example = records[0]
        rows.append((
            example.layer, example.op, example.cpu, board, len(records), len(records) - len(good),
            round(best.ticks) if best else None, unit, f"{best.algorithm}: {best.rule}" if best else "",
        ))  # fmt: skip
        data.append(_describe_kernel_records(key, path, records, best))
    columns = (
        *layer_names("layer"), *texts("operators", "core", "board"),
        *numbers("records", "failed", "best"), *texts("unit", "schedule"),
    )  # fmt: skip
    skipped = f"{database.skipped} lines of the file are damaged and were skipped" if database.skipped else None
    if html is not None:
        from microc.tuning.tuning_page import to_html

        write_text_file(html, to_html(database, path.name))
    return show.Answer(
        {"records": len(database), "skipped": database.skipped, "kernels": data},
        document(
            table(columns, rows), prose(*_failed_record_lines(database, path)), prose(skipped) if skipped else None
        ),
    )


def _failed_record_lines(database: Database, path: Path) -> Iterator[str]:
    """Yield lines that list the failed tuning records of a file, each with the command that measures it again.

    There are none if no record has failed."""
    failures = [record for record in database if record.status != "ok"]
    if not failures:
        return
    culprit = "the compiler, of other people's code" if any(r.theirs for r in failures) else "the compiler"
    yield f"each of these is a defect, of {culprit} or of the board; its command measures it again:"
    for r in failures[:_SHOWN_FAILURES]:
        yield f"{r.status}: {show.fit_layer_name(r.layer)}, {r.algorithm}: {r.rule}"
        yield f"  {_repeat_command(r, path)}"
    if len(failures) > _SHOWN_FAILURES:
        yield f"... and {len(failures) - _SHOWN_FAILURES} more: --json"


def _repeat_command(record: Record, path: Path) -> str:
    """Return the ``microc tune`` command that measures a tuning record again."""
    from microc.compiler.tuned.records import FROM_RAM

    board = quote_argument(record.board.removesuffix(FROM_RAM))
    where = f"--target {record.cpu}" if record.board == "host" else f"--board {board}"
    external = f" --external {quote_argument(record.algorithm)}=PATH" if record.theirs else ""
    return f"microc tune MODEL {where}{external} --records {quote_argument(str(path))} --repeat {record.id}"


def measure_record_again(arguments: TuneArguments) -> show.Answer:
    """Measure the tuning record of ``--repeat`` again; return the answer that compares the old and the new result."""
    from microc.tuning.fleet import measure_record

    options = arguments.options
    if len(arguments.ports) > 1:
        raise UsageError(f"--repeat: got {len(arguments.ports)} ports, expected one", hint="give --port once")
    record, result, unit = measure_record(
        arguments.model,
        arguments.target,
        board=arguments.board or None,
        records=arguments.records,
        record_id_prefix=arguments.repeat,
        port=arguments.ports[0] if arguments.ports else "",
        **options,
    )
    now = (
        f"{result.status}: {result.detail}"
        if result.detail
        else f"{result.status}, {show.format_integer(round(result.ticks))} {unit}"
    )
    rows: list[Fact] = [
        ("record", record.id),
        ("layer", record.layer),
        ("schedule", f"{record.algorithm}: {record.rule} " + ", ".join(f"{n} {v}" for n, v in record.decisions)),
        ("was", f"{record.status}, {show.format_integer(round(record.ticks))} {record.unit}"),
        ("is", now),
    ]
    data = {
        "record": record.id,
        "was": record.status,
        "is": result.status,
        "ticks": result.ticks,
        "detail": result.detail,
    }
    return show.Answer(data, document(facts(rows)), _EXIT_CODES[result.status])


def _describe_kernel_records(kernel_key: str, path: Path, records: list[Any], fastest_record: Any) -> Mapping[str, Any]:
    """Describe the tuning records of one kernel as plain data.

    ``kernel_key``: key of the kernel in the file; ``path``: path of the file; ``fastest_record``: the record with the fewest
    ticks, None if all have failed."""
    example = records[0]
    return {
        "key": kernel_key,
        "layer": example.layer,
        "op": example.op,
        "cpu": example.cpu,
        "board": example.board,
        "unit": example.unit,
        "external": next((r.algorithm for r in records if r.theirs), ""),
        "records": len(records),
        "best": None if fastest_record is None else fastest_record.ticks,
        "failures": [
            {
                "record": r.id,
                "status": r.status,
                "rule": r.rule,
                "decisions": dict(r.decisions),
                "repeat": _repeat_command(r, path),
            }
            for r in records
            if r.status != "ok"
        ],
    }


def merge_or_prune_records(arguments: TuneArguments) -> show.Answer:
    """Merge the files of ``--merge`` into one file of tuning records, or prune the file of ``--prune``."""
    from microc.compiler.tuned.records import merge_records, open_records, write_records

    if arguments.prune is not None:
        target, records = arguments.prune, open_records(arguments.prune).pruned_records()
    else:
        target, records = arguments.records, merge_records(arguments.merge or ())
    count = write_records(target, records)
    written = prose(f"{target}: {show.format_integer(count)} records")
    return show.Answer({"file": str(target), "records": count}, document(written))


# ---- Progress of a search: a table that is updated in place on a terminal, else lines of text or JSON.

if TYPE_CHECKING:
    Watcher = Callable[[TuningEvent], None]

PROGRESS_COLUMNS = (*layer_names("layer"), *numbers("tried", "best", "gain"))
_OTHER_LINES = 6
"""Number of lines of the terminal that are not rows of the table: its header, the line of dashes, the summary, and a margin."""


@contextmanager
def progress_watcher(arguments: TuneArguments) -> Iterator[Watcher | None]:
    """Yield the function that shows every event of a search; None for ``--quiet``.

    It prints JSON on standard output for ``--json``, else text on standard error."""
    if arguments.json:
        yield _print_event_json
    elif arguments.quiet:
        yield None
    elif has_control_sequences(sys.stderr):
        with _live_table() as watcher:
            yield watcher
    else:
        yield _LineWatcher()


def format_percent_gain(default: float | None, best: float) -> str:
    """Format the change from the time ``default`` to the time ``best`` in percent; empty if one of them was not measured."""
    if not default or best == float("inf"):
        return ""
    return f"{100 * (best / default - 1):+.1f} %"


def kernel_progress_cells(kernel: TunedKernel) -> tuple[Cell, ...]:
    """Return the table cells that show the progress of a kernel, for the columns :data:`PROGRESS_COLUMNS`."""
    best = None if kernel.default is None else round(kernel.best)
    return kernel.task.name, kernel.tried, best, format_percent_gain(kernel.default, kernel.best)


def describe_search_progress(event: TuningEvent) -> str:
    """Describe the progress of a search in one line."""
    remaining = f", {_format_seconds_or_minutes(event.left)} left" if event.left else ""
    lost = f"; lost: {'; '.join(event.lost)}" if event.lost else ""
    return f"{event.measured:,} of at most {event.trials:,} in {_format_seconds_or_minutes(event.seconds)}{remaining}{lost}"


def _format_seconds_or_minutes(seconds: float) -> str:
    """Format a number of seconds: as seconds or, from two minutes on, as minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _print_event_json(event: TuningEvent) -> None:
    """Print an event of the search (a batch of measurements) as one line of JSON."""
    sys.stdout.write(show.ascii_json({"schema_version": SCHEMA_VERSION, "command": "tune", **event.to_data()}) + "\n")
    sys.stdout.flush()


class _LineWatcher:
    """A function object that prints a line for every batch of measurements, and a line for every board or process that has
    failed."""

    def __init__(self) -> None:
        self._lost = 0

    def __call__(self, event: TuningEvent) -> None:
        name, tried, best, less = (
            column.format_cell(cell)
            for column, cell in zip(PROGRESS_COLUMNS, kernel_progress_cells(event.kernel), strict=True)
        )
        progress = f"{show.fit_layer_name(name)}: {tried} tried, "
        progress += f"best {best} ({less})" if best else "its default does not run"
        left = _format_seconds_or_minutes(event.left)
        lines = [f"lost {lost}" for lost in event.lost[self._lost :]]
        lines.append(f"[{event.measured}/{event.trials}] {progress}, {left} left")
        self._lost = len(event.lost)
        sys.stderr.write(render_text(document(prose(*lines))) + "\n")
        sys.stderr.flush()


@contextmanager
def _live_table() -> Iterator[Watcher]:
    """Yield a function that redraws a table on the terminal after every batch of measurements.

    The table shows the kernels measured last, as many as fit the terminal."""
    kernels, drawn_lines = dict[str, Any](), 0

    def redraw_table(event: TuningEvent) -> None:
        nonlocal drawn_lines
        kernels.pop(event.kernel.task.key, None)
        kernels[event.kernel.task.key] = event.kernel
        size = shutil.get_terminal_size()
        rows = [
            kernel_progress_cells(kernel) for kernel in list(kernels.values())[-max(1, size.lines - _OTHER_LINES) :]
        ]
        shown = document(table(PROGRESS_COLUMNS, rows, note=describe_search_progress(event)))
        text = render_text(shown, size.columns - 1) + "\n"
        back = f"\x1b[{drawn_lines}A\x1b[J" if drawn_lines else ""
        write_trusted_control_sequence(back + text)
        drawn_lines = text.count("\n")

    yield redraw_table


# ---- The command.

_SHOWN_VALUES = 12


def run_tune_command(arguments: TuneArguments) -> show.Answer:
    """Run ``microc tune``: search for faster schedules on a board, or manage files of tuning records."""
    if arguments.show is not None:
        return show_records(arguments.show, arguments.html)
    if arguments.merge or arguments.prune is not None:
        return merge_or_prune_records(arguments)
    if arguments.model is None:
        raise UsageError("tune: got no model, expected one", hint="give a model: microc tune MODEL --board BOARD")
    if not arguments.board and not arguments.target:
        raise UsageError(
            "tune: got neither --board nor --target, expected one to measure on",
            hint="add --board BOARD, or --target native for this computer",
        )
    if "tuned" in arguments.options:
        raise UsageError(
            "tune: --tuned is not supported, because tune appends to the file of --records",
            hint="name the file of tuning records: --records FILE",
        )
    if arguments.space:
        return _answer_with_search_spaces(arguments)
    if arguments.repeat:
        return measure_record_again(arguments)
    return _answer_with_search(arguments)


def _answer_with_search(arguments: TuneArguments) -> show.Answer:
    """Search for faster schedules; write the tuning records and, if asked, an optimisation plan and a page.

    Return the answer with the results."""
    from microc.compiler.options import make_options
    from microc.compiler.tuned.optimisation_plan import write_plan
    from microc.tuning.tune import Interrupted, make_tuning_plan, tune
    from microc.tuning.tuner import reject_undecided_code
    from microc.tuning.tuning_page import to_html

    assert arguments.model is not None
    options, interrupted = arguments.options, False
    # Other commands read the file of --plan; this command writes it. The search must not follow a plan.
    plan = options.pop("plan", None)
    if plan is not None:
        # A plan cannot state whose code computes a region. This is refused before the search, which may take hours.
        reject_undecided_code(make_options(**options))
    if plan is not None and plan.exists():
        raise UsageError(
            f"--plan: {plan} exists already, and is not overwritten because it may have been edited",
            hint="name another file",
        )
    with progress_watcher(arguments) as callback:
        try:
            result = tune(
                arguments.model,
                arguments.target,
                board=arguments.board or None,
                records=arguments.records,
                port=arguments.ports,
                load=arguments.load,
                measure=arguments.measure,
                trials=arguments.trials,
                time=arguments.time,
                search=arguments.search,
                cost_model=arguments.cost_model,
                seed=arguments.seed,
                jobs=arguments.jobs,
                fleet=arguments.fleet,
                layers=arguments.only,
                callback=callback,
                **options,
            )
        except Interrupted as end:
            result, interrupted = end.tuning, True
    data = {"event": "end", "interrupted": interrupted, "records": str(arguments.records), **result.to_data()}
    notes = list(_search_notes(result, arguments.records))
    if interrupted:
        notes.append(
            f"ended by Ctrl-C: {arguments.records} contains every finished batch; run the same command again to continue"
        )
    # If external code may compute regions, there is no plan (see reject_undecided_code). The page then shows the records without
    # the schedules that a compilation would choose.
    elif arguments.html is not None and result.regions:
        keys = [each.task.key for each in (*result.kernels, *(region.tuned for region in result.regions))]
        write_text_file(arguments.html, to_html(result.database, arguments.model.name, keys=keys))
    elif plan is not None or arguments.html is not None:
        board, records = arguments.board or None, arguments.records
        plan_data = make_tuning_plan(arguments.model, arguments.target, board=board, records=records, **options)
        if plan is not None:
            write_plan(plan, plan_data)
            notes.append(f"or what the plan chooses: microc compile MODEL --plan {plan}")
        if arguments.html is not None:
            choices = {kernel["key"]: kernel["choice"] for kernel in plan_data["kernels"]}
            keys = [kernel.task.key for kernel in result.kernels]
            if result.network is not None:
                keys, choices = (
                    [*keys, result.network.key],
                    {**choices, result.network.key: result.network.chosen_record_id},
                )
            write_text_file(arguments.html, to_html(result.database, arguments.model.name, keys=keys, chosen=choices))
    tables = (_tuned_kernels_table(result), _external_regions_table(result))
    return show.Answer(data, document(*tables, prose(*notes)), INTERRUPTED if interrupted else 0)


def _tuned_kernels_table(result: Tuning) -> Table | None:
    """Make a table of the kernels of a search, with the points of their search spaces and their times; None without kernels."""
    rows = [
        (
            _name_of_layers(k.task.name, k.task.layers),
            k.task.op,
            len(k.search.space.points),
            k.tried,
            None if k.default is None else round(k.default),
            None if k.default is None else round(k.best),
            format_percent_gain(k.default, k.best),
            str(k.point),
        )
        for k in result.kernels
    ]
    columns = (
        *texts("layer", "operators"),
        *numbers("points", "tried", f"default, {result.unit}", "best", ""),
        *texts("schedule"),
    )
    return table(columns, rows) if rows else None


def _name_of_layers(name: str, layers: Sequence[str]) -> str:
    """Return the short name of a layer, and the number of the other layers that share its kernel."""
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    return f"{show.fit_layer_name(name)}{more}"


def _search_notes(result: Tuning, records: Path) -> Iterator[str]:
    """Yield lines about a search: the time of all kernels, the whole network, failures, and how to use the records."""
    gain = format_percent_gain(result.default, result.best) or "nothing measured"
    times = " -> ".join(show.format_integer(round(ticks)) for ticks in (result.default, result.best))
    yield f"tuned kernels: {times} {result.unit} ({gain}), each by its fastest schedule"
    if result.network is not None:
        yield describe_whole_network(result.network, result.unit)
    failed = sum(tuned.failed for tuned in (*result.kernels, *(region.tuned for region in result.regions)))
    if failed:
        yield f"{failed} candidates failed: microc tune --show {records}"
    yield f"use them: microc compile MODEL --tuned {records}"


def describe_whole_network(network: TunedNetwork, unit: str) -> str:
    """Describe the measurement of the whole network as text.

    The text states the time with default schedules, the best time, and the number of kernels that keep their default
    schedule. ``unit``: unit of the times."""
    scale, unit = (1000, "us") if unit == "ns" else (1, unit)
    kept_count = len(network.kernels_kept_at_default)
    kept_text = (
        f"; {kept_count} kernel{'s stay as they were' if kept_count > 1 else ' stays as it was'}" if kept_count else ""
    )
    default, best = (f"{ticks / scale:,.1f}" for ticks in (network.default, network.best))
    return f"whole network: {default} -> {best} {unit} ({network.best / network.default:.3f}){kept_text}"


def _external_regions_table(result: Tuning) -> Table | None:
    """Make a table that compares the time of microc's kernels with that of external code, for each region of the graph.

    None if external code computes no region."""
    rows = [
        (
            _name_of_layers(region.task.name, region.task.layers),
            region.task.backend_and_pattern,
            *(
                None if ticks is None else round(ticks)
                for ticks in (region.verdict.own_ticks, region.verdict.backend_ticks)
            ),
            region.chosen_code or "by cost",
            region.why,
        )
        for region in result.regions
    ]
    columns = (*texts("layer", "external code"), *numbers(f"ours, {result.unit}", "theirs"), *texts("taken", ""))
    return table(columns, rows) if rows else None


def _answer_with_search_spaces(arguments: TuneArguments) -> show.Answer:
    """Return the answer of ``microc tune --space``: the search spaces of all kernels."""
    from microc.tuning.tune import describe_search_spaces

    kernels = describe_search_spaces(
        arguments.model, arguments.target, board=arguments.board or None, **arguments.options
    )
    return show.Answer({"kernels": kernels}, document(*map(_search_space_facts, kernels)))


def _search_space_facts(kernel: Mapping[str, Any]) -> Facts:
    """List the decisions of a kernel's search space with their values."""
    head = f"{_name_of_layers(kernel['layers'][0], kernel['layers'])} ({kernel['op']})"
    decisions = ((n, values) for n, values in kernel["decisions"].items() if len(values) > 1)
    rows: list[Fact] = [
        ("default", str(kernel["default"])),
        *((f"  {name}", _format_decision_values(values)) for name, values in decisions),
    ]
    return facts(rows, f"{head}: {show.format_integer(kernel['points'])} points")


def _format_decision_values(values: list[Any]) -> str:
    """Format the values from which a decision of a schedule (such as a tile size) is chosen."""
    text = ", ".join(str(value) or "-" for value in values[:_SHOWN_VALUES])
    return text + (f", ... ({len(values)})" if len(values) > _SHOWN_VALUES else "")
