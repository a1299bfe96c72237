"""``microc size --against``: the figures of a firmware beside those of an earlier one, and whether they may have grown so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.errors import UsageError
from microc.reading import read_bytes

if TYPE_CHECKING:
    from microc.driver.report.growth import Growth

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
    from microc.driver.measure.firmware import build, open_project
    from microc.driver.report.size import measure

    if not path.is_dir():
        return read_report(path)
    project = open_project(path)
    build(project)
    return measure(project).to_data()


def held(arguments: Arguments, data: dict[str, Any], base: Any, text: str) -> show.Answer:
    """The answer of ``microc size`` with what has grown since ``base``; its error where that is beyond a bound."""
    from microc.driver.report.growth import figures_of, growth, refusal

    assert arguments.base is not None
    before, after = figures_of(base, str(arguments.base)), figures_of(data, str(arguments.source))
    found = growth(before, after, dict(arguments.fail_over))
    error = refusal(found, f"{arguments.source}, since {arguments.base}")
    parts = (_text(found), text)
    return show.Answer(
        {**data, "growth": [each.to_data() for each in found]}, "\n\n".join(filter(None, parts)), error=error
    )


def _text(found: Sequence[Growth]) -> str:
    rows = [
        (
            each.what, show.count(each.before), show.count(each.after), f"{each.after - each.before:+,}",
            f"{100 * each.share:+.2f}" if each.before else "",
            "any" if each.allowed is None else f"{100 * each.allowed:+.2f}", "too much" if each.exceeds else "",
        )
        for each in found
    ]  # fmt: skip
    return show.table(("", "before", "after", "change", "%", "allowed, %", ""), rows)
