"""The arena over time as a picture: steps from left to right, bytes from the bottom up, one rectangle for every value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from microc.driver.report.size import live_bytes
from microc.frozen import frozen

LEFT, TOP, BOTTOM, RIGHT = 72, 26, 44, 12
"""Pixels around the plot."""
INDENT = 6
_HEIGHT, _WIDTH = 340, 1096
_NARROWEST, _WIDEST = 16, 180
_LETTER = 6.3
"""Width of a letter in pixels, about."""
_LEVELS = 6


@frozen
class Box:
    """A rectangle in pixels. ``kind``: what colours it; ``label``: what fits into it, ``INDENT`` from the left; ``title``: all
    there is to say."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str
    title: str


@frozen
class Column:
    """A step below the plot: the middle of its column, its number in words (of some columns), what happens, the bytes in use.
    ``step``: its number; -1 before the first and after the last."""

    x: float
    label: str
    title: str
    live: str
    peak: bool
    step: int


@frozen
class Level:
    """A height in the plot and the bytes there."""

    y: float
    label: str


@frozen
class MemoryMap:
    """The picture. ``overlaps``: where a result is written over what the step reads, or a workspace lies over either."""

    width: float
    height: float
    column: float
    boxes: tuple[Box, ...]
    overlaps: tuple[Box, ...]
    columns: tuple[Column, ...]
    levels: tuple[Level, ...]
    arena: Level
    kinds: tuple[str, ...]


def memory_map(manifest: Mapping[str, Any], names: Sequence[str]) -> MemoryMap:
    """The picture of a manifest's arena; ``names``: what to call its steps."""
    steps = len(manifest["kernels"])
    column = min(max(_WIDTH / (steps + 2), _NARROWEST), _WIDEST)
    plot = _Plot(column, manifest["arena_size"])
    above = ("output", "workspace")  # drawn over others: outputs are often views, workspaces lie where others end
    memory = sorted(
        manifest["memory"], key=lambda m: (m["kind"] in above and above.index(m["kind"]) + 1, m["first"], -m["bytes"])
    )
    live = live_bytes(manifest)
    kinds = dict.fromkeys(m["kind"] for m in memory)
    return MemoryMap(
        width=LEFT + column * (steps + 2) + RIGHT,
        height=TOP + _HEIGHT + BOTTOM,
        column=column,
        boxes=_labelled([plot.box(m, names) for m in memory]),
        overlaps=tuple(plot.overlap(*both) for both in _overlaps(memory)),
        columns=tuple(_columns(plot, names, live)),
        levels=tuple(Level(plot.y(at), f"{at:,}") for at in _levels(manifest["arena_size"])),
        arena=Level(plot.y(manifest["arena_size"]), f"{manifest['arena_size']:,} bytes"),
        kinds=tuple(k for k in ("input", "intermediate", "workspace", "state", "const", "output") if k in kinds),
    )


@frozen
class _Plot:
    """From steps and bytes to pixels."""

    column: float
    size: int

    def x(self, step: int) -> float:
        return LEFT + self.column * (step + 1)

    def y(self, offset: int) -> float:
        return TOP + _HEIGHT * (1 - offset / max(self.size, 1))

    def box(self, value: Mapping[str, Any], names: Sequence[str]) -> Box:
        width = self.column * (value["last"] - value["first"] + 1)
        height = _HEIGHT * value["bytes"] / max(self.size, 1)
        x, y = self.x(value["first"]), self.y(value["offset"] + value["bytes"])
        label = value["name"] if len(value["name"]) * _LETTER < width - 2 * INDENT and height >= 15 else ""
        return Box(x, y, width, height, value["kind"], label, _describe(value, names))

    def overlap(self, old: Mapping[str, Any], new: Mapping[str, Any], step: int) -> Box:
        start = max(old["offset"], new["offset"])
        stop = min(old["offset"] + old["bytes"], new["offset"] + new["bytes"])
        height = _HEIGHT * (stop - start) / max(self.size, 1)
        title = f"step {step}: {new['name']} lies over {stop - start:,} bytes of {old['name']}"
        return Box(self.x(step), self.y(stop), self.column, height, "overlap", "", title)


def _labelled(boxes: Sequence[Box]) -> tuple[Box, ...]:
    """The boxes in the order in which they are drawn; those keep their labels that no later box covers."""

    def hidden(box: Box, by: Box) -> bool:
        right, middle = box.x + INDENT + len(box.label) * _LETTER, box.y + box.height / 2
        return (
            box.x < by.x + by.width and by.x < right and by.y < middle + _LETTER and middle - _LETTER < by.y + by.height
        )

    return tuple(
        replace(box, label="") if box.label and any(hidden(box, by) for by in boxes[k + 1 :]) else box
        for k, box in enumerate(boxes)
    )


def _describe(value: Mapping[str, Any], names: Sequence[str]) -> str:
    shape = "x".join(map(str, value["shape"])) or "scalar"
    place = f"{value['bytes']:,} bytes at {value['offset']:,}"
    first, last = (
        "before" if step < 0 else "after" if step >= len(names) else f"step {step} ({names[step]})"
        for step in (value["first"], value["last"])
    )
    life = f"during {first}" if value["first"] == value["last"] else f"from {first} to {last}"
    return f"{value['name']}: {value['kind']}, {value['dtype']} {shape}, {place}, {life}"


def _overlaps(memory: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Mapping[str, Any], int]]:
    """Pairs that share bytes during the step with which one ends and the other starts."""
    starting: dict[int, list[Mapping[str, Any]]] = {}
    for value in memory:
        starting.setdefault(value["first"], []).append(value)
    return [
        (old, new, new["first"])
        for old in memory
        for new in starting.get(old["last"], ())
        if old is not new
        and old["offset"] < new["offset"] + new["bytes"]
        and new["offset"] < old["offset"] + old["bytes"]
        and (old["first"], old["kind"], old["name"])
        < (new["first"], new["kind"], new["name"])  # a pair of workspaces once
    ]


def _columns(plot: _Plot, names: Sequence[str], live: Sequence[int]) -> list[Column]:
    """Every step, with its peak; of narrow columns each second, fifth ... has its number."""
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 1000) if n * plot.column >= 22)
    wide = plot.column >= 46
    found = [
        Column(
            plot.x(k) + plot.column / 2,
            str(k) if k % every == 0 else "",
            f"step {k}: {name}, {live[k]:,} bytes in use",
            f"{live[k]:,}" if wide else "",
            live[k] == max(live),
            k,
        )
        for k, name in enumerate(names)
    ]
    ends = (("in", -1, "before the first step"), ("out", len(names), "after the last step"))
    return [*found, *(Column(plot.x(k) + plot.column / 2, label, title, "", False, -1) for label, k, title in ends)]


def _levels(size: int) -> list[int]:
    """Round numbers of bytes, a handful of them."""
    step = 1
    while size / step > _LEVELS:
        step *= 2
    return list(range(0, size + 1, step))
