"""The page of an evidence bundle that people read and sign."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SHOWN = 400
"""Characters of a text; evidence.json has it whole."""


def page(facts: Mapping[str, Any]) -> str:
    """Markdown. Every text of a model, board or user is inert in it."""
    return "\n".join(_lines(facts)) + "\n"


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    project, board = facts["project"], facts["board"]
    yield f"# Verification of {_text(project['network'])}: {facts['verdict']}"
    yield ""
    if facts["failure"]:
        yield from (_text(facts["failure"]), "")
    yield from _table(
        ("what", "value"),
        [
            ("verdict", facts["verdict"]),
            ("created", facts["created"]),
            ("model", facts["model"]["source"]),
            ("model, SHA-256", facts["model"]["sha256"]),
            ("network, fingerprint", project["fingerprint"]),
            ("project's bill of materials, SHA-256", project["sha256"] or "none: no project was written"),
            *(_board(board) if board else [("board", "none: the kernels ran on this computer")]),
            ("microc", facts["microc"]),
            *facts["tools"].items(),
            *((f"option {name}", value) for name, value in project["options"].items()),
        ],
    )
    yield from ("", "Deviations:", "")
    yield from (f"- {_text(line)}" for line in project["deviations"])
    for comparison in facts["comparisons"]:
        yield from _comparison(comparison)
    if facts["evaluation"]:
        found = facts["evaluation"]
        classes = found.get("classification")
        yield from (
            "",
            "## The user's data",
            "",
            f"{found['samples']} samples, differing: {len(found['differing_samples'])}",
        )
        if classes:
            yield f"accuracy: {classes['correct']} of {classes['total']} ({_text(classes['output'])})"
    yield from ("", "## Signed off", "", "| name | role | date | signature |", "|---|---|---|---|", "| | | | |")


def _board(board: Mapping[str, Any]) -> list[tuple[str, Any]]:
    names = ("name", "title", "line", "emulator", "firmware_sha256")
    return [(f"board, {name.replace('_', ' ')}", board[name]) for name in names if board.get(name)]


def _comparison(found: Mapping[str, Any]) -> Iterator[str]:
    verdict = "agrees" if found["agrees"] else "differs"
    yield from ("", f"## {_text(found['what'])}: {verdict}", "")
    yield f"{found['samples']} sets of inputs, SHA-256 `{_text(found['data_sha256'])}`"
    for kind in ("outputs", "layers"):
        rows = found.get(kind) or ()
        if rows:
            yield ""
            yield from _table((kind[:-1], *_columns(rows)), [_row(row) for row in rows])


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return ("elements", "differing", "largest difference", "verdict") if "wrong" in rows[0] else ("elements", "error")


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    name = f"{row.get('layer') or ''} {row.get('tensor') or ''}".strip()
    if "wrong" in row:
        return name, row["elements"], row["differing"], row["largest"], "agrees" if row["agrees"] else "differs"
    return name, row["elements"], row["error"]


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    yield from ("| " + " | ".join(map(_text, row)) + " |" for row in rows)


def _text(value: Any) -> str:
    """Any value as text without what Markdown or HTML would take for markup; what else is strange becomes a question mark."""
    return re.sub(r"[^A-Za-z0-9 .,:;()/+_=%'\-]", "?", str(value))[:_SHOWN]
