"""Bits of layers as the terminal shows them: what each layer may be, and the front that the choice is on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc.cli import show

_SHOWN_POINTS = 12
_BAR = 30
_FLOAT = 32


def mixed_paragraphs(found: Mapping[str, Any]) -> Iterator[str]:
    """A table of layers, and one of the front."""
    rows = [
        (show.layer(layer["layer"]), _width(layer["bits"]), *(_option(option) for option in layer["options"]))
        for layer in found["layers"]
    ]
    columns = max((len(layer["options"]) for layer in found["layers"]), default=0)
    rows = [(*row, *("",) * (2 + columns - len(row))) for row in rows]
    yield show.table(("layer", "bits", *("may be: bits, noise, bytes",) * columns), rows, 1 + columns)
    yield "\n".join(_front(found["front"], found["board"], found["against"]))


def _option(option: Mapping[str, Any]) -> str:
    return f"{_width(option['bits'])}: {decibels(option['noise'])} dB, {show.count(option['flash'])}"


def _width(bits: int) -> str:
    """Bits of a layer: of its weights up to 8, of its activations, or floats."""
    return "float" if bits == _FLOAT else str(bits)


def decibels(noise: float) -> str:
    """Noise of so much power, relative to the signal."""
    return f"{-10 * math.log10(noise):.1f}" if noise > 0 else "no noise"


def _front(points: Sequence[Mapping[str, Any]], board: str, against: str) -> Iterator[str]:
    """Points as bars of their flash or cycles, the chosen one among them, those that were measured too."""
    step = max(1, len(points) // _SHOWN_POINTS)
    measured = [p["score"] is not None or p["decibels"] is not None for p in points]
    kept = [p for k, p in enumerate(points) if p["chosen"] or measured[k] or k % step == 0]
    least, most = points[0][against], points[-1][against]
    yield f"the front on {board}: the least noise for each {against}, predicted, and measured behind repairs (* is taken)\n"
    rows = []
    for p in kept:
        bar = "#" * (1 + round(_BAR * (p[against] - least) / max(1, most - least)))
        found = "" if p["decibels"] is None else f"{p['decibels']:.1f}"
        score = "" if p["score"] is None else f"{p['score']:.4f}"
        sizes = show.count(p["flash"]), show.count(p["cycles"])
        rows.append(("*" if p["chosen"] else "", *sizes, decibels(p["noise"]), found, score, bar))
    yield show.table(("", "flash", "cycles", "dB", "measured", "score", ""), rows)
