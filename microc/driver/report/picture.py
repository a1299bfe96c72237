"""The network of a report as a picture: a box for every layer, input, output and state, and an edge for every tensor between."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from microc.driver.report.graph_layout import layout
from microc.driver.report.words import quant_words, shape_words
from microc.frozen import frozen

WIDTH, HEIGHT = 252, 86
"""Of a box, in pixels."""
_LETTERS, _TITLE = 36, 24
"""Letters of a line that a box holds, and of the first, which has the share of the time beside it."""
_HOTTEST = 5
"""Classes of heat: a layer that takes the largest share has the highest."""


@frozen
class Box:
    """A box: its upper left corner, its name, up to three lines below, what stands at its right (the share), all there is to say.

    ``step``: of a layer; -1 for what is none. ``heat`` from 0 to 5 by the share, ``length`` of the bar that shows it, in pixels.
    """

    x: float
    y: float
    name: str
    lines: tuple[str, ...]
    share: str
    title: str
    step: int
    heat: int
    length: float


@frozen
class Picture:
    """The network's picture, in pixels."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    paths: tuple[str, ...]


def picture_of(data: Mapping[str, Any]) -> Picture:
    """The picture of a report's data."""
    layers, tensors = data["layers"], {t["name"]: t for t in data["tensors"]}
    inputs, outputs = ([t["name"] for t in data[kind]] for kind in ("inputs", "outputs"))
    read = {name for layer in layers for name in layer["inputs"]}
    sources = [name for name in (*inputs, *(t["name"] for t in data["state"])) if name in read]
    first = len(sources)
    makers = {name: _makers(tensor, sources) for name, tensor in tensors.items()}
    reads = [(name, k) for k, layer in enumerate(layers) for name in layer["inputs"]]
    reads += [(name, len(layers) + k) for k, name in enumerate(outputs)]
    edges = [(u, first + k) for name, k in reads for u in makers.get(name, ()) if u < first + k]
    found = layout(first + len(layers) + len(outputs), list(dict.fromkeys(edges)), WIDTH, HEIGHT)
    most = max((layer["share"] for layer in layers), default=0) or 1
    boxes = [
        *(_end(tensors[name], tensors[name]["kind"]) for name in sources),
        *(_layer(layer, tensors, most) for layer in layers),
        *(_end(tensors[name], "output") for name in outputs),
    ]
    placed = (Box(*corner, *box) for corner, box in zip(found.corners, boxes, strict=True))
    return Picture(found.width, found.height, tuple(placed), found.paths)


def _makers(tensor: Mapping[str, Any], sources: Sequence[str]) -> list[int]:
    """The numbers of the boxes that a tensor comes from: the steps that write it, or what is there before the first."""
    if tensor["name"] in sources:
        return [sources.index(tensor["name"])]
    return [len(sources) + step for step in tensor["written_by"]]


def _end(tensor: Mapping[str, Any], kind: str) -> tuple[Any, ...]:
    lines = (kind, *_kind(tensor))
    name = tensor["label"] or tensor["name"]
    return cut(name, _LETTERS), lines, "", f"{kind} {name}: {', '.join(_kind(tensor))}", -1, 0, 0.0


def _layer(layer: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]], most: float) -> tuple[Any, ...]:
    made = [tensors[name] for name in layer["outputs"] if name in tensors]
    kinds = _kind(made[0]) if made else ()
    share = f"{100 * layer['share']:.1f} %"
    operators = layer["op"].replace("+", " + ")
    title = ", ".join((f"step {layer['step']}: {layer['layer']}", operators, *kinds, share))
    lines = tuple(cut(line, _LETTERS) for line in (operators, *kinds))
    heat, length = round(_HOTTEST * layer["share"] / most), WIDTH * layer["share"] / most
    return cut(_inner(layer["name"]), _TITLE), lines, share, title, layer["step"], heat, length


def _kind(tensor: Mapping[str, Any]) -> tuple[str, ...]:
    """Shape and dtype of a tensor, and what its integers stand for."""
    shape, quant = f"{tensor['dtype']} {shape_words(tensor['shape'])}", quant_words(tensor)
    return (shape, f"= {quant}") if quant else (shape,)


def _inner(name: str) -> str:
    """A path that is too long for a box by its first and its last part."""
    parts = name.split("/")
    return f"{parts[0]}/\N{HORIZONTAL ELLIPSIS}/{parts[-1]}" if len(name) > _TITLE and len(parts) > 2 else name


def cut(text: str, letters: int) -> str:
    """What fits into so many places; letters of some scripts take two."""
    room, kept = letters, ""
    for letter in text:
        room -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if room < 0:
            return kept[:-1] + "\N{HORIZONTAL ELLIPSIS}"
        kept += letter
    return text
