"""What has changed between two reports: in all, and by layer; layers are matched by their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc.driver.report.report import Report

Row = dict[str, Any]


def compare(before: Report, after: Report) -> dict[str, Any]:
    """Plain data: ``totals`` and ``layers``, each with ``before`` and ``after`` (None where there is nothing)."""
    a, b = before.data, after.data
    return {
        "before": _named(a),
        "after": _named(b),
        "totals": [row for row in _totals(a, b) if row["before"] is not None or row["after"] is not None],
        "layers": list(_layers(a["layers"], b["layers"])),
    }


def _named(data: Mapping[str, Any]) -> dict[str, Any]:
    names = {name: data[name] for name in ("model", "source", "fingerprint", "options")}
    return {**names, "board": data["board"]["name"]}


def _totals(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Row]:
    if a["measured"] and b["measured"] and a["measured"]["unit"] == b["measured"]["unit"]:
        yield _row(f"measured, {a['measured']['unit']}", a["measured"]["time"], b["measured"]["time"])
    for key, name in (
        ("cycles", "estimated cycles"),
        ("milliseconds", "estimated ms"),
        ("macs", "multiply-accumulates"),
        ("flash", "flash, bytes"),
        ("ram", "RAM, bytes"),
        ("arena", "arena, bytes"),
        ("weights", "weights, bytes"),
    ):
        yield _row(name, a["totals"][key], b["totals"][key])
    yield _row("stack, bytes", a["stack"]["bytes"], b["stack"]["bytes"])
    yield _row("accuracy, %", _accuracy(a), _accuracy(b))


def _accuracy(data: Mapping[str, Any]) -> float | None:
    found = data["accuracy"]
    return 100 * found["correct"] / found["total"] if found and found["total"] else None


def _layers(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """All layers of after in their order, then those that are gone."""
    old, new = _by_name(a), _by_name(b)
    for name in dict.fromkeys((*new, *old)):
        both = {"before": old.get(name), "after": new.get(name)}
        cycles = {when: layer["cycles"] if layer else None for when, layer in both.items()}
        flash = {when: layer["code"] + layer["constants"] if layer else None for when, layer in both.items()}
        yield {"layer": name, "cycles": cycles, "flash": flash}


def _by_name(layers: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Layers by their names without the number of the operator; of equal names each has its own number."""
    found, seen = {}, Counter[str]()
    for layer in layers:
        name = re.sub(r"^#\d+ ", "", layer["name"])
        seen[name] += 1
        found[f"{name} ({seen[name]})" if seen[name] > 1 else name] = layer
    return found


def _row(name: str, before: float | None, after: float | None) -> Row:
    return {"name": name, "before": before, "after": after}
