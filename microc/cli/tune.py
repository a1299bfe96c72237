"""``microc tune``: the search, its progress, files of records."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.terminal import control, visible
from microc.cli import INTERRUPTED, SCHEMA_VERSION, show
from microc.cli.arguments import Arguments
from microc.cli.project_context import write_text
from microc.cli.shared_options import chosen_options
from microc.errors import UsageError
from microc.reports import text_tables

if TYPE_CHECKING:
    from microc.compiler.tuned.records import Database, Record
    from microc.tuning.api import Tuning
    from microc.tuning.tuner import Event, Tuned, TunedNetwork


# ---- ``microc tune`` on a file of records: shown, merged, pruned, and one of them measured again.

_SHOWN_FAILURES = 8
_EXIT_CODES = {"ok": 0, "wrong": 1, "failed": 6, "unbuilt": 6}
"""Of a record that is repeated: board and reference differ; nothing answered, or there was no program."""


def shown(path: Path, html: Path | None) -> show.Answer:
    """The kernels of a file of records, and what failed, with the commands that repeat it; ``html``: as a page, too."""
    from microc.compiler.tuned.records import OK, records_of

    database = records_of(path)
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for record in database:
        groups.setdefault((record.key, record.board, record.unit), []).append(record)
    rows, data = [], []
    for (key, board, unit), records in groups.items():
        good = [record for record in records if record.status == OK]
        best = min(good, key=lambda record: record.ticks) if good else None
        first = records[0]
        rows.append((
            show.layer(first.layer), first.op, first.cpu, board, show.count(len(records)), show.count(len(records) - len(good)),
            show.count(round(best.ticks)) if best else "", unit, f"{best.algorithm}: {best.rule}" if best else "",
        ))  # fmt: skip
        data.append(_kernel(key, path, records, best))
    head = ("layer", "operators", "core", "board", "records", "failed", "best", "unit", "schedule")
    notes = _failures(database, path)
    if database.skipped:
        notes.append(f"{database.skipped} lines of the file are damaged and were skipped")
    if html is not None:
        from microc.tuning.tuning_page import to_html

        write_text(html, to_html(database, path.name))
    return show.Answer(
        {"records": len(database), "skipped": database.skipped, "kernels": data},
        "\n\n".join((show.table(head, rows, 4), *notes)),
    )


def _failures(database: Database, path: Path) -> list[str]:
    """What was wrong, or did not answer, each with the command that repeats it."""
    failed = [record for record in database if record.status != "ok"]
    if not failed:
        return []
    lines = [
        f"{r.status}: {show.layer(r.layer)}, {r.algorithm}: {r.rule}\n  {_command(r, path)}"
        for r in failed[:_SHOWN_FAILURES]
    ]
    more = [f"... and {len(failed) - len(lines)} more: --json"] if len(failed) > len(lines) else []
    whose = "the compiler, of other people's code" if any(r.theirs for r in failed) else "the compiler"
    head = f"each of these is a defect, of {whose} or of the board; its command measures it again:"
    return ["\n".join((head, *lines, *more))]


def _command(record: Record, path: Path) -> str:
    from microc.compiler.tuned.records import FROM_RAM

    board = shlex.quote(record.board.removesuffix(FROM_RAM))
    where = f"--target {record.cpu}" if record.board == "host" else f"--board {board}"
    external = f" --external {shlex.quote(record.algorithm)}=PATH" if record.theirs else ""
    return f"microc tune MODEL {where}{external} --records {shlex.quote(str(path))} --repeat {record.id}"


def repeated(arguments: Arguments) -> show.Answer:
    """One record, measured again."""
    from microc.tuning.places import repeat

    options = chosen_options(arguments)
    if len(arguments.ports) > 1:
        raise UsageError("one record is measured at one port", hint="name one --port")
    record, result, unit = repeat(
        arguments.model,
        arguments.target,
        board=arguments.board or None,
        records=arguments.records,
        record=arguments.repeat,
        port=arguments.ports[0] if arguments.ports else "",
        **options,
    )
    now = (
        f"{result.status}: {result.detail}"
        if result.detail
        else f"{result.status}, {show.count(round(result.ticks))} {unit}"
    )
    rows: list[tuple[str, object]] = [
        ("record", record.id),
        ("layer", record.layer),
        ("schedule", f"{record.algorithm}: {record.rule} " + ", ".join(f"{n} {v}" for n, v in record.decisions)),
        ("was", f"{record.status}, {show.count(round(record.ticks))} {record.unit}"),
        ("is", now),
    ]
    data = {
        "record": record.id,
        "was": record.status,
        "is": result.status,
        "ticks": result.ticks,
        "detail": result.detail,
    }
    return show.Answer(data, show.facts(rows), _EXIT_CODES[result.status])


def _kernel(key: str, path: Path, records: list[Any], best: Any) -> Mapping[str, Any]:
    first = records[0]
    return {
        "key": key,
        "layer": first.layer,
        "op": first.op,
        "cpu": first.cpu,
        "board": first.board,
        "unit": first.unit,
        "external": next((r.algorithm for r in records if r.theirs), ""),
        "records": len(records),
        "best": None if best is None else best.ticks,
        "failures": [
            {
                "record": r.id,
                "status": r.status,
                "rule": r.rule,
                "decisions": dict(r.decisions),
                "repeat": _command(r, path),
            }
            for r in records
            if r.status != "ok"
        ],
    }


def rewritten(arguments: Arguments) -> show.Answer:
    """Files of records, merged or pruned."""
    from microc.compiler.tuned.records import merged, records_of, write

    if arguments.prune is not None:
        target, kept = arguments.prune, records_of(arguments.prune).pruned()
    else:
        target, kept = arguments.records, merged(arguments.merge or ())
    count = write(target, kept)
    return show.Answer({"file": str(target), "records": count}, f"{target}: {show.count(count)} records")


# ---- A search while it goes on: a live table on a terminal, lines of text or of JSON elsewhere.

if TYPE_CHECKING:
    Watcher = Callable[[Event], None]

HEAD = ("layer", "tried", "best", "gain")
_SPARE = 6
"""Lines of a terminal that are not rows of the table."""


@contextmanager
def watching(arguments: Arguments) -> Iterator[Watcher | None]:
    """What a search tells of its batches, for the length of a ``with``: JSON to standard output, all else to standard error."""
    if arguments.json:
        yield _write_json
    elif arguments.quiet:
        yield None
    elif sys.stderr.isatty():
        with _live() as watcher:
            yield watcher
    else:
        yield _Lines()


def gain(default: float | None, best: float) -> str:
    """By how much less the best takes, in percent."""
    if not default or best == float("inf"):
        return ""
    return f"{100 * (best / default - 1):+.1f} %"


def cells(kernel: Tuned) -> tuple[str, str, str, str]:
    """A kernel in the columns of :data:`HEAD`."""
    best = show.count(round(kernel.best)) if kernel.default is not None else ""
    return show.layer(kernel.task.name), show.count(kernel.tried), best, gain(kernel.default, kernel.best)


def summary(event: Event) -> str:
    """How far a search is."""
    left = f", {_time(event.left)} left" if event.left else ""
    lost = f"; lost: {'; '.join(event.lost)}" if event.lost else ""
    return f"{event.measured:,} of at most {event.trials:,} in {_time(event.seconds)}{left}{lost}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _write_json(event: Event) -> None:
    sys.stdout.write(show.json_text({"schema_version": SCHEMA_VERSION, "command": "tune", **event.to_data()}) + "\n")
    sys.stdout.flush()


class _Lines:
    """A line for every batch; a place that failed is told once."""

    def __init__(self) -> None:
        self._lost = 0

    def __call__(self, event: Event) -> None:
        name, tried, best, less = cells(event.kernel)
        told = f"{name}: {tried} tried, " + (f"best {best} ({less})" if best else "its default does not run")
        for lost in event.lost[self._lost :]:
            sys.stderr.write(f"lost {lost}\n")
        self._lost = len(event.lost)
        sys.stderr.write(f"[{event.measured}/{event.trials}] {told}, {_time(event.left)} left\n")
        sys.stderr.flush()


@contextmanager
def _live() -> Iterator[Watcher]:
    """A table that is drawn over itself after every batch: the kernels that were measured last, as many as there is room for."""
    kernels, drawn_lines = dict[str, Any](), 0

    def drawn(event: Event) -> None:
        nonlocal drawn_lines
        kernels.pop(event.kernel.task.key, None)
        kernels[event.kernel.task.key] = event.kernel
        size = shutil.get_terminal_size()
        shown = [cells(kernel) for kernel in list(kernels.values())[-max(1, size.lines - _SPARE) :]]
        text = f"{text_tables.table(HEAD, shown, 1, size.columns - 1)}\n{summary(event)[: size.columns - 1]}\n"
        back = f"\x1b[{drawn_lines}A\x1b[J" if drawn_lines else ""
        control(back + visible(text))
        drawn_lines = text.count("\n")

    yield drawn


# ---- ``microc tune``: the search, and the file of records.

_SHOWN_VALUES = 12


def tune(arguments: Arguments) -> show.Answer:
    """``microc tune``."""
    if arguments.show is not None:
        return shown(arguments.show, arguments.html)
    if arguments.merge or arguments.prune is not None:
        return rewritten(arguments)
    if arguments.model is None:
        raise UsageError("there is no model to tune", hint="microc tune MODEL --board BOARD")
    if not arguments.board and not arguments.target:
        raise UsageError("there is nothing to measure on", hint="--board BOARD, or --target native for this computer")
    if "tuned" in chosen_options(arguments):
        raise UsageError(
            "a search compares with what there is without records", hint="name the file that grows: --records FILE"
        )
    if arguments.space:
        return _spaces(arguments)
    if arguments.repeat:
        return repeated(arguments)
    return _searched(arguments)


def _searched(arguments: Arguments) -> show.Answer:
    from microc.compiler.options import make_options
    from microc.compiler.tuned.optimisation_plan import write_plan
    from microc.tuning.api import Interrupted, tune, tuning_plan
    from microc.tuning.tuner import refuse_open
    from microc.tuning.tuning_page import to_html

    assert arguments.model is not None
    options, ended = chosen_options(arguments), False
    plan = options.pop("plan", None)
    if plan is not None:
        refuse_open(make_options(**options))
    if plan is not None and plan.exists():
        raise UsageError(f"there is a plan {plan} already, and a person may have edited it", hint="name another file")
    with watching(arguments) as callback:
        try:
            found = tune(
                arguments.model,
                arguments.target,
                board=arguments.board or None,
                records=arguments.records,
                port=arguments.ports,
                load=arguments.load,
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
            found, ended = end.tuning, True
    data = {"event": "end", "interrupted": ended, "records": str(arguments.records), **found.to_data()}
    text = _table(found, arguments.records)
    if ended:
        text += f"\nended by Ctrl-C: {arguments.records} has every batch that was told; the same command goes on there"
    elif arguments.html is not None and found.regions:
        keys = [each.task.key for each in (*found.kernels, *(region.tuned for region in found.regions))]
        write_text(arguments.html, to_html(found.database, arguments.model.name, keys=keys))
    elif plan is not None or arguments.html is not None:
        board, records = arguments.board or None, arguments.records
        chosen = tuning_plan(arguments.model, arguments.target, board=board, records=records, **options)
        if plan is not None:
            write_plan(plan, chosen)
            text += f"\nor what the plan chooses: microc compile MODEL --plan {plan}"
        if arguments.html is not None:
            choices = {kernel["key"]: kernel["choice"] for kernel in chosen["kernels"]}
            keys = [kernel.task.key for kernel in found.kernels]
            if found.network is not None:
                keys, choices = [*keys, found.network.key], {**choices, found.network.key: found.network.taken}
            write_text(arguments.html, to_html(found.database, arguments.model.name, keys=keys, chosen=choices))
    return show.Answer(data, text, INTERRUPTED if ended else 0)


def _table(found: Tuning, records: Path) -> str:
    rows = [
        (
            show.layer(k.task.name) + (f" and {len(k.task.layers) - 1} more" if len(k.task.layers) > 1 else ""),
            k.task.op,
            show.count(len(k.search.space.points)),
            show.count(k.tried),
            "" if k.default is None else show.count(round(k.default)),
            "" if k.default is None else show.count(round(k.best)),
            gain(k.default, k.best),
            k.point,
        )
        for k in found.kernels
    ]
    failed = sum(each.failed for each in (*found.kernels, *(region.tuned for region in found.regions)))
    notes = [
        f"tuned kernels: {show.count(round(found.default))} -> {show.count(round(found.best))} {found.unit} "
        f"({gain(found.default, found.best) or 'nothing measured'}), each by its fastest schedule",
        *([whole(found.network, found.unit)] if found.network is not None else []),
        *([f"{failed} candidates failed: microc tune --show {records}"] if failed else []),
        f"use them: microc compile MODEL --tuned {records}",
    ]
    head = ("layer", "operators", "points", "tried", f"default, {found.unit}", "best", "", "schedule")
    tables = [show.table(head, rows, 2)] if rows else []
    if found.regions:
        tables.append(_regions(found))
    return "\n\n".join((*tables, "\n".join(notes)))


def whole(network: TunedNetwork, unit: str) -> str:
    """The network as a whole, in words."""
    scale, unit = (1000, "us") if unit == "ns" else (1, unit)
    kept = len(network.kept)
    stay = f"; {kept} kernel{'s stay as they were' if kept > 1 else ' stays as it was'}" if kept else ""
    before, now = (f"{ticks / scale:,.1f}" for ticks in (network.default, network.best))
    return f"whole network: {before} -> {now} {unit} ({network.best / network.default:.3f}){stay}"


def _regions(found: Tuning) -> str:
    """Ours and theirs, region by region."""
    rows = [
        (
            show.layer(region.task.name)
            + (f" and {len(region.task.layers) - 1} more" if len(region.task.layers) > 1 else ""),
            region.task.whose,
            *(
                "" if ticks is None else show.count(round(ticks))
                for ticks in (region.verdict.ours, region.verdict.theirs)
            ),
            region.taken or "by cost",
            region.why,
        )
        for region in found.regions
    ]
    return show.table(("layer", "external code", f"ours, {found.unit}", "theirs", "taken", ""), rows, 2)


def _spaces(arguments: Arguments) -> show.Answer:
    """What a search could try."""
    from microc.tuning.api import spaces

    found = spaces(arguments.model, arguments.target, board=arguments.board or None, **chosen_options(arguments))
    parts = []
    for kernel in found:
        more = f" and {len(kernel['layers']) - 1} more" if len(kernel["layers"]) > 1 else ""
        head = f"{show.layer(kernel['layers'][0])}{more} ({kernel['op']}): {show.count(kernel['points'])} points"
        rows: list[tuple[str, object]] = [("default", kernel["default"])]
        rows += [(f"  {name}", _values(values)) for name, values in kernel["decisions"].items() if len(values) > 1]
        parts.append(head + "\n" + show.facts(rows))
    return show.Answer({"kernels": found}, "\n\n".join(parts))


def _values(values: list[Any]) -> str:
    shown = ", ".join(str(value) or "-" for value in values[:_SHOWN_VALUES])
    return shown + (f", ... ({len(values)})" if len(values) > _SHOWN_VALUES else "")
