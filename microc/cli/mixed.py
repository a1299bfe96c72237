"""Bits of layers as the terminal shows them: what each layer may be, and the front that the choice is on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc.cli import show

_SHOWN_POINTS = 12
_BAR = 30


def mixed_paragraphs(found: Mapping[str, Any]) -> Iterator[str]:
    """A table of layers, and one of the front."""
    rows = [
        (show.layer(layer["layer"]), layer["bits"], *(_option(option) for option in layer["options"]))
        for layer in found["layers"]
    ]
    columns = max((len(layer["options"]) for layer in found["layers"]), default=0)
    rows = [(*row, *("",) * (2 + columns - len(row))) for row in rows]
    yield show.table(("layer", "bits", *("may be: bits, noise, bytes",) * columns), rows, 1 + columns)
    yield "\n".join(_front(found["front"], found["board"]))


def _option(option: Mapping[str, Any]) -> str:
    return f"{option['bits']}: {decibels(option['noise'])} dB, {show.count(option['flash'])}"


def decibels(noise: float) -> str:
    """Noise of so much power, relative to the signal."""
    return f"{-10 * math.log10(noise):.1f}" if noise > 0 else "no noise"


def _front(points: Sequence[Mapping[str, Any]], board: str) -> Iterator[str]:
    """Points as bars of their flash, the chosen one among them."""
    step = max(1, len(points) // _SHOWN_POINTS)
    kept = [p for k, p in enumerate(points) if p["chosen"] or p["score"] is not None or k % step == 0]
    least, most = points[0]["flash"], points[-1]["flash"]
    yield f"the front on {board}: the least noise for each flash, predicted (* is taken)\n"
    rows = []
    for p in kept:
        bar = "#" * (1 + round(_BAR * (p["flash"] - least) / max(1, most - least)))
        score = "" if p["score"] is None else f"{p['score']:.4f}"
        rows.append(
            (
                "*" if p["chosen"] else "",
                show.count(p["flash"]),
                show.count(p["cycles"]),
                decibels(p["noise"]),
                score,
                bar,
            )
        )
    yield show.table(("", "flash", "cycles", "dB", "score", ""), rows)
