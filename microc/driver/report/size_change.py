"""What has changed between two reports of a firmware's size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from microc.driver.report.owners import PARTS
from microc.driver.report.size import SizeReport
from microc.errors import UsageError


def compare(before: Mapping[str, Any], after: SizeReport) -> dict[str, Any]:
    """What has changed since a report that :meth:`SizeReport.to_data` gave: bytes before, after and their difference.

    ``totals`` and ``parts`` (flash and RAM apart), then ``symbols`` that differ, largest difference first. UsageError when
    ``before`` is no such report.
    """
    try:
        old_totals, old_parts = dict(before["totals"]), {k: dict(v) for k, v in before["parts"].items()}
        old_symbols = _by_symbol((s["part"], s["name"], s["source"], s["size"]) for s in before["symbols"])
        totals = [_change(k, old_totals[k], v) for k, v in after.to_data()["totals"].items()]
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError("this is no report of `microc size --json`", hint="microc size DIR --json > FILE") from error
    new_parts = after.parts()
    new_symbols = _by_symbol((s.part, s.name, s.source, s.size) for s in after.symbols)
    parts = [
        {"part": part, "memory": memory, **_sizes(_in(old_parts, part, kinds), _in(new_parts, part, kinds))}
        for part in PARTS
        for memory, kinds in (("flash", ("text", "data")), ("ram", ("data", "bss")))
    ]
    symbols = [
        {"part": key[0], "symbol": key[1], "source": key[2], **_sizes(old_symbols.get(key, 0), new_symbols.get(key, 0))}
        for key in {**old_symbols, **new_symbols}
    ]
    changed = [s for s in symbols if s["change"]]
    return {
        "totals": totals,
        "parts": [p for p in parts if p["before"] or p["after"]],
        "symbols": sorted(changed, key=lambda s: (-abs(s["change"]), s["symbol"])),
    }


def _sizes(before: int, after: int) -> dict[str, int]:
    return {"before": before, "after": after, "change": after - before}


def _change(name: str, before: int, after: int) -> dict[str, Any]:
    return {"memory": name, **_sizes(before, after)}


def _in(parts: Mapping[str, Mapping[str, int]], part: str, kinds: Sequence[str]) -> int:
    return sum(parts.get(part, {}).get(kind, 0) for kind in kinds)


def _by_symbol(rows: Iterable[tuple[str, str, str, int]]) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = {}
    for *key, size in rows:
        part, name, source = key
        found[part, name, source] = found.get((part, name, source), 0) + size
    return found
