"""``microc tune`` on a file of records: shown, merged, pruned, and one of them measured again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.files import write_text
from microc.cli.model_options import chosen_options
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.driver.tuned.records import Database, Record

_SHOWN_FAILURES = 8
_EXIT_CODES = {"ok": 0, "wrong": 1, "failed": 6, "unbuilt": 6}
"""Of a record that is repeated: board and reference differ; nothing answered, or there was no program."""


def shown(path: Path, html: Path | None) -> show.Answer:
    """The kernels of a file of records, and what failed, with the commands that repeat it; ``html``: as a page, too."""
    from microc.driver.tuned.records import OK, records_of

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
        from microc.tuning.page import to_html

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
    from microc.driver.tuned.records import FROM_RAM

    board = shlex.quote(record.board.removesuffix(FROM_RAM))
    where = f"--target {record.cpu}" if record.board == "host" else f"--board {board}"
    external = f" --external {shlex.quote(record.algorithm)}=PATH" if record.theirs else ""
    return f"microc tune MODEL {where}{external} --records {shlex.quote(str(path))} --repeat {record.id}"


def repeated(arguments: Arguments) -> show.Answer:
    """One record, measured again."""
    from microc.tuning.repeat import repeat

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
    from microc.driver.tuned.records import merged, records_of, write

    if arguments.prune is not None:
        target, kept = arguments.prune, records_of(arguments.prune).pruned()
    else:
        target, kept = arguments.records, merged(arguments.merge or ())
    count = write(target, kept)
    return show.Answer({"file": str(target), "records": count}, f"{target}: {show.count(count)} records")
