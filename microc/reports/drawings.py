"""Geometry of a report's pictures: scatter plots, confusion matrices, network graphs, memory maps. Templates render them as
SVG.
"""

from __future__ import annotations

import math
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from microc.base.immutable import frozen
from microc.reports.firmware_size import live_bytes
from microc.reports.text_tables import quant_words, shape_words

# ---- Scatter plots with an optional line.

PLOT_WIDTH, PLOT_HEIGHT = 520, 300
PLOT_LEFT, PLOT_TOP, PLOT_RIGHT, PLOT_BOTTOM = 52, 28, 20, 44
"""Margins of the plot in pixels; the left one grows with long tick labels."""
_DIGIT = 7
"""Width of a digit in pixels, at a font size of 11.5 pixels in the widest of the page's fonts (DejaVu Sans: 0.636 em)."""
_TICKS = 6
"""Ticks on an axis, at most about so many."""
_MARGIN = 0.05
"""Space beyond the outermost points, as a share of their range."""


@frozen
class Point:
    """A point. ``kind`` selects its colour; ``title`` is its tooltip."""

    x: float
    y: float
    kind: str
    title: str


@frozen
class Tick:
    """A tick: its position on the axis in pixels, and its label."""

    at: float
    label: str


@frozen
class Plot:
    """A plot: ``points`` in pixels, ``path`` (SVG) of a line or empty."""

    points: tuple[Point, ...]
    path: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    labels: tuple[str, str]
    frame: tuple[int, int, int, int]
    size: tuple[int, int] = (PLOT_WIDTH, PLOT_HEIGHT)


def draw_plot(points: Sequence[Point], labels: tuple[str, str], line: Sequence[tuple[float, float]] = ()) -> Plot:
    """Lay out a plot of at least one point. ``labels``: of the axes; ``line``: points of a polyline."""
    y, up = _axis([point.y for point in points], PLOT_HEIGHT - PLOT_BOTTOM, PLOT_TOP)
    left = max(PLOT_LEFT, 10 + _DIGIT * max(len(tick.label) for tick in up))
    x, across = _axis([point.x for point in points], left, PLOT_WIDTH - PLOT_RIGHT)
    points_in_pixels = tuple(Point(x(point.x), y(point.y), point.kind, point.title) for point in points)
    path = "M" + "L".join(f"{x(right):.1f} {y(top):.1f}" for right, top in line) if line else ""
    return Plot(
        points_in_pixels,
        path,
        across,
        up,
        labels,
        frame=(left, PLOT_TOP, PLOT_WIDTH - PLOT_RIGHT, PLOT_HEIGHT - PLOT_BOTTOM),
    )


def _axis(numbers: Sequence[float], start: int, end: int) -> tuple[Callable[[float], float], tuple[Tick, ...]]:
    """Return the function from numbers to pixels, and the ticks at round numbers."""
    low, high = min(numbers), max(numbers)
    room = _MARGIN * (high - low) or max(abs(high), 1.0) / 2
    low, high = low - room, high + room

    def at(number: float) -> float:
        return start + (end - start) * (number - low) / (high - low)

    step = _round_step((high - low) / _TICKS)
    first, last = math.ceil(low / step), math.floor(high / step)
    return at, tuple(Tick(at(k * step), f"{k * step:,.10g}") for k in range(first, last + 1))


def _round_step(least: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= least)


# ---- Confusion matrices: true classes by row, answers by column.

SIDE, MARGIN = 34, 40
"""Pixels of a cell's side, and of the margin for class numbers."""
_HOTTEST = 5


@frozen
class Cell:
    """A cell: position, number of samples, change against an earlier matrix. ``heat``: 0 to 5, by the share of the
    class."""

    x: int
    y: int
    count: str
    change: str
    heat: int
    right: bool
    title: str


@frozen
class Matrix:
    """A matrix: size in pixels, cells, class numbers with their positions along an edge."""

    size: int
    side: int
    cells: tuple[Cell, ...]
    classes: tuple[tuple[int, str], ...]


def draw_confusion(counts: Sequence[Sequence[int]], before: Sequence[Sequence[int]] | None = None) -> Matrix:
    """Lay out a matrix of counts; ``before``: earlier counts, against which cells show their change."""
    cells = []
    for truth, row in enumerate(counts):
        total = max(1, sum(row))
        for answer, count in enumerate(row):
            change = count - before[truth][answer] if before else 0
            title = f"{count:,} of class {truth} answered {answer}" + (
                f", {change:+,} against before" if change else ""
            )
            cells.append(
                Cell(
                    x=MARGIN + SIDE * answer,
                    y=MARGIN + SIDE * truth,
                    count=f"{count:,}" if count else "",
                    change=f"{change:+d}" if change else "",
                    heat=math.ceil(_HOTTEST * count / total),
                    right=truth == answer,
                    title=title,
                )
            )
    places = tuple((MARGIN + SIDE * k + SIDE // 2, str(k)) for k in range(len(counts)))
    return Matrix(MARGIN + SIDE * len(counts) + 1, SIDE, tuple(cells), places)


# ---- Layered layout of a directed acyclic graph, from top to bottom.
#
# The steps of Sugiyama, Tagawa and Toda (1981): the rank of a box is the longest path to it; an edge across several ranks passes
# through a point in each rank between; within ranks, sorting by the barycentres of neighbours reduces crossings; positions then
# approach those of the neighbours as far as the order allows.

_GAP, _RANK_GAP, _POINT = 22, 30, 14
"""Pixels between boxes of a rank, between ranks, and the width reserved for the point of an edge."""
_SWEEPS = 6
"""Passes over all ranks that sort them, alternately downwards and upwards."""


@frozen
class Layout:
    """Layout in pixels: upper left corners of the boxes by number, a path (SVG) for every edge in order, and the total
    size."""

    corners: tuple[tuple[float, float], ...]
    paths: tuple[str, ...]
    width: float
    height: float


def layout(count: int, edges: Sequence[tuple[int, int]], width: float, height: float) -> Layout:
    """Lay out ``count`` boxes of one size. ``edges`` lead from a lower number to a higher one."""
    ranks = _ranks(count, edges)
    chains, ranks_of_all = _chains(edges, ranks)
    total = len(ranks_of_all)
    segments = [link for chain in chains for link in pairwise(chain)]
    rows = _order_ranks(ranks_of_all, segments)
    widths = [width if node < count else _POINT for node in range(total)]
    centres = _centres(rows, segments, widths)
    left = min((centres[n] - widths[n] / 2 for n in range(total)), default=0.0)
    x = {node: at - left for node, at in centres.items()}
    y = {node: ranks_of_all[node] * (height + _RANK_GAP) for node in range(total)}
    paths = tuple(_path([(x[n], y[n], height if n < count else 0.0) for n in chain], height) for chain in chains)
    right = max((x[n] + widths[n] / 2 for n in range(total)), default=0.0)
    bottom = max((y[n] + height for n in range(count)), default=0.0)
    return Layout(tuple((x[n] - width / 2, y[n]) for n in range(count)), paths, right, bottom)


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Compute the longest path to every box. A box without predecessors is placed directly above its first reader."""
    ranks = [0] * count
    followers = defaultdict(list)
    has_predecessor = {v for _, v in edges}
    for u, v in sorted(edges):
        ranks[v] = max(ranks[v], ranks[u] + 1)
        followers[u].append(v)
    for node in range(count):
        if node not in has_predecessor and followers[node]:
            ranks[node] = min(ranks[v] for v in followers[node]) - 1
    return ranks


def _chains(edges: Sequence[tuple[int, int]], ranks: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Split every edge into a chain of nodes, one per rank. Points between boxes are numbered after the boxes."""
    all_ranks, chains = list(ranks), []
    for u, v in edges:
        points = list(range(len(all_ranks), len(all_ranks) + ranks[v] - ranks[u] - 1))
        all_ranks += [ranks[u] + 1 + k for k in range(len(points))]
        chains.append([u, *points, v])
    return chains, all_ranks


def _order_ranks(ranks: Sequence[int], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Order the nodes of each rank so that few edges cross."""
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for node, rank in enumerate(ranks):
        rows[rank].append(node)
    above, below = _neighbours(links)
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            index = {node: k for r in rows for k, node in enumerate(r)}
            row.sort(key=lambda n: (_mean([index[m] for m in neighbours[n]], index[n]), index[n]))
    return rows


def _centres(
    rows: Sequence[Sequence[int]], links: Sequence[tuple[int, int]], widths: Sequence[float]
) -> dict[int, float]:
    """Compute horizontal centres, each as near to the mean of its neighbours as its row allows."""
    centres: dict[int, float] = {}
    for row in rows:
        span = sum(widths[n] for n in row) + _GAP * (len(row) - 1)
        at = -span / 2
        for node in row:
            centres[node] = at + widths[node] / 2
            at += widths[node] + _GAP
    above, below = _neighbours(links)
    for sweep in range(2 * _SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_mean([centres[m] for m in neighbours[n]], centres[n]) for n in row]
            centres.update(zip(row, _spread(wanted, [widths[n] for n in row]), strict=True))
    return centres


def _spread(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Separate positions by a gap at least, near to the wanted ones: the mean of pushing to the right and pushing to the
    left."""
    right, left = list(wanted), list(wanted)
    for k in range(1, len(wanted)):
        right[k] = max(right[k], right[k - 1] + (widths[k - 1] + widths[k]) / 2 + _GAP)
        m = len(wanted) - 1 - k
        left[m] = min(left[m], left[m + 1] - (widths[m] + widths[m + 1]) / 2 - _GAP)
    return [(a + b) / 2 for a, b in zip(right, left, strict=True)]


def _neighbours(links: Sequence[tuple[int, int]]) -> tuple[Mapping[int, list[int]], Mapping[int, list[int]]]:
    """Return each node's neighbours in the rank above and below."""
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    for u, v in links:
        above[v].append(u)
        below[u].append(v)
    return above, below


def _mean(values: Sequence[float], otherwise: float) -> float:
    """Compute the mean; ``otherwise`` if there are no values."""
    return sum(values) / len(values) if values else otherwise


def _path(points: Sequence[tuple[float, float, float]], height: float) -> str:
    """Draw a smooth curve from the bottom of the first box through the points to the top of the last."""
    (x, y, own), *rest = points
    at = x, y + own
    words = [f"M{at[0]:.1f} {at[1]:.1f}"]
    for x, y, own in rest:
        middle = (at[1] + y) / 2
        words.append(f"C{at[0]:.1f} {middle:.1f} {x:.1f} {middle:.1f} {x:.1f} {y:.1f}")
        if not own:
            words.append(f"V{y + height:.1f}")
        at = x, y + (own or height)
    return "".join(words)


# ---- Network graphs: a box for every layer, input, output and state, and an edge for every tensor between them.

PICTURE_WIDTH, PICTURE_HEIGHT = 252, 86
"""Size of a box in pixels."""
_LETTERS, _TITLE = 36, 24
"""Characters of a line in a box, and of its first line, which has the share of time beside it."""


@frozen
class LayerBox:
    """A box: upper left corner, name, up to three lines below it, share of time at its right, tooltip.

    ``step``: of a layer, else -1. ``heat``: 0 to 5 by the share; ``length``: of the bar for the share, in pixels.
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
    """Network graph, in pixels."""

    width: float
    height: float
    boxes: tuple[LayerBox, ...]
    paths: tuple[str, ...]


def draw_network(data: Mapping[str, Any]) -> Picture:
    """Lay out the network of a report's data."""
    layers, tensors = data["layers"], {t["name"]: t for t in data["tensors"]}
    inputs, outputs = ([t["name"] for t in data[kind]] for kind in ("inputs", "outputs"))
    read_names = {name for layer in layers for name in layer["inputs"]}
    sources = [name for name in (*inputs, *(t["name"] for t in data["state"])) if name in read_names]
    # Boxes are numbered as layout() needs them, writers before readers: inputs and state, layers, outputs.
    first = len(sources)
    makers = {name: _makers(tensor, sources) for name, tensor in tensors.items()}
    uses = [(name, k) for k, layer in enumerate(layers) for name in layer["inputs"]]
    uses += [(name, len(layers) + k) for k, name in enumerate(outputs)]
    # layout() takes forward edges only. A tensor with several writers may be read before the last of them.
    edges = [(u, first + k) for name, k in uses for u in makers.get(name, ()) if u < first + k]
    # dict.fromkeys: a layer that reads a tensor twice (x * x) gets one edge.
    graph = layout(first + len(layers) + len(outputs), list(dict.fromkeys(edges)), PICTURE_WIDTH, PICTURE_HEIGHT)
    most = max((layer["share"] for layer in layers), default=0) or 1
    boxes = [
        *(_end_box(tensors[name], tensors[name]["kind"]) for name in sources),
        *(_layer_box(layer, tensors, most) for layer in layers),
        *(_end_box(tensors[name], "output") for name in outputs),
    ]
    layer_boxes = (LayerBox(*corner, *box) for corner, box in zip(graph.corners, boxes, strict=True))
    return Picture(graph.width, graph.height, tuple(layer_boxes), graph.paths)


def _makers(tensor: Mapping[str, Any], sources: Sequence[str]) -> list[int]:
    """List the numbers of the boxes that write a tensor: steps, or the box of an input or state."""
    if tensor["name"] in sources:
        return [sources.index(tensor["name"])]
    return [len(sources) + step for step in tensor["written_by"]]


def _end_box(tensor: Mapping[str, Any], kind: str) -> tuple[Any, ...]:
    """Return the fields of a box for an input, output or state."""
    lines = (kind, *_type_lines(tensor))
    name = tensor["label"] or tensor["name"]
    return cut_text(name, _LETTERS), lines, "", f"{kind} {name}: {', '.join(_type_lines(tensor))}", -1, 0, 0.0


def _layer_box(layer: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]], most: float) -> tuple[Any, ...]:
    """Return the fields of a box for a layer."""
    results = [tensors[name] for name in layer["outputs"] if name in tensors]
    kinds = _type_lines(results[0]) if results else ()
    share = f"{100 * layer['share']:.1f} %"
    operators = layer["op"].replace("+", " + ")
    title = ", ".join((f"step {layer['step']}: {layer['layer']}", operators, *kinds, share))
    lines = tuple(cut_text(line, _LETTERS) for line in (operators, *kinds))
    heat, length = round(_HOTTEST * layer["share"] / most), PICTURE_WIDTH * layer["share"] / most
    return cut_text(_shorten_path(layer["name"]), _TITLE), lines, share, title, layer["step"], heat, length


def _type_lines(tensor: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a tensor's dtype and shape, and the formula of its real values."""
    shape, quant = f"{tensor['dtype']} {shape_words(tensor['shape'])}", quant_words(tensor)
    return (shape, f"= {quant}") if quant else (shape,)


def _shorten_path(name: str) -> str:
    """Shorten a long path to its first and last part."""
    parts = name.split("/")
    return f"{parts[0]}/\N{HORIZONTAL ELLIPSIS}/{parts[-1]}" if len(name) > _TITLE and len(parts) > 2 else name


def cut_text(text: str, letters: int) -> str:
    """Cut text to a number of columns; East Asian wide characters take two."""
    room, shortened = letters, ""
    for letter in text:
        room -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if room < 0:
            return shortened[:-1] + "\N{HORIZONTAL ELLIPSIS}"
        shortened += letter
    return text


# ---- Memory maps: the arena over time. Steps go from left to right, addresses from bottom to top; each value is a box.

MEMORY_MAP_LEFT, MEMORY_MAP_TOP, MEMORY_MAP_BOTTOM, MEMORY_MAP_RIGHT = 72, 26, 44, 12
"""Margins of the plot in pixels."""
INDENT = 6
_HEIGHT, _WIDTH = 340, 1096
_MIN_COLUMN, _MAX_COLUMN = 16, 180
"""Width of a step's column in pixels, at least and at most."""
_LETTER = 6.3
"""Approximate width of a character in pixels."""
_LEVELS = 6
"""Horizontal lines, at most."""


@frozen
class Box:
    """A rectangle in pixels. ``kind`` selects its colour; ``label`` is drawn ``INDENT`` from the left if it fits; ``title``
    is the tooltip."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str
    title: str


@frozen
class Column:
    """A step below the plot: centre of its column, its number (not for every column), tooltip, bytes in use. ``step``: its
    number; -1 before the first and after the last."""

    x: float
    label: str
    title: str
    live: str
    peak: bool
    step: int


@frozen
class Level:
    """A height in the plot, and its number of bytes."""

    y: float
    label: str


@frozen
class MemoryMap:
    """A memory map. ``overlaps``: areas where a step writes over its own input, or where its workspace shares memory with
    either."""

    width: float
    height: float
    column: float
    boxes: tuple[Box, ...]
    overlaps: tuple[Box, ...]
    columns: tuple[Column, ...]
    levels: tuple[Level, ...]
    arena: Level
    kinds: tuple[str, ...]


def draw_memory_map(manifest: Mapping[str, Any], names: Sequence[str]) -> MemoryMap:
    """Lay out the arena of a manifest; ``names``: of its steps."""
    steps = len(manifest["kernels"])
    column = min(max(_WIDTH / (steps + 2), _MIN_COLUMN), _MAX_COLUMN)
    plot = _Plot(column, manifest["arena_size"])
    # Drawn last, over others: outputs are often views of other values, and workspaces reuse memory that others free.
    drawn_last = ("output", "workspace")
    values = sorted(
        manifest["memory"],
        key=lambda m: (m["kind"] in drawn_last and drawn_last.index(m["kind"]) + 1, m["first"], -m["bytes"]),
    )
    live = live_bytes(manifest)
    kinds = dict.fromkeys(m["kind"] for m in values)
    return MemoryMap(
        width=MEMORY_MAP_LEFT + column * (steps + 2) + MEMORY_MAP_RIGHT,
        height=MEMORY_MAP_TOP + _HEIGHT + MEMORY_MAP_BOTTOM,
        column=column,
        boxes=_remove_hidden_labels([plot.box(m, names) for m in values]),
        overlaps=tuple(plot.overlap(*both) for both in _overlaps(values)),
        columns=tuple(_columns(plot, names, live)),
        levels=tuple(Level(plot.y(at), f"{at:,}") for at in _levels(manifest["arena_size"])),
        arena=Level(plot.y(manifest["arena_size"]), f"{manifest['arena_size']:,} bytes"),
        kinds=tuple(k for k in ("input", "intermediate", "workspace", "state", "const", "output") if k in kinds),
    )


@frozen
class _Plot:
    """Converts steps and bytes to pixels."""

    column: float
    size: int

    def x(self, step: int) -> float:
        return MEMORY_MAP_LEFT + self.column * (step + 1)

    def y(self, offset: int) -> float:
        return MEMORY_MAP_TOP + _HEIGHT * (1 - offset / max(self.size, 1))

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


def _remove_hidden_labels(boxes: Sequence[Box]) -> tuple[Box, ...]:
    """Remove the labels that a box drawn later would cover."""

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
    """Return the tooltip of a value."""
    shape = "x".join(map(str, value["shape"])) or "scalar"
    position = f"{value['bytes']:,} bytes at {value['offset']:,}"
    first, last = (
        "before" if step < 0 else "after" if step >= len(names) else f"step {step} ({names[step]})"
        for step in (value["first"], value["last"])
    )
    lifetime = f"during {first}" if value["first"] == value["last"] else f"from {first} to {last}"
    return f"{value['name']}: {value['kind']}, {value['dtype']} {shape}, {position}, {lifetime}"


def _overlaps(memory: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Mapping[str, Any], int]]:
    """List pairs of values that share bytes during the step in which one ends and the other begins."""
    values_by_first: dict[int, list[Mapping[str, Any]]] = {}
    for value in memory:
        values_by_first.setdefault(value["first"], []).append(value)
    return [
        (old, new, new["first"])
        for old in memory
        for new in values_by_first.get(old["last"], ())
        if old is not new
        and old["offset"] < new["offset"] + new["bytes"]
        and new["offset"] < old["offset"] + old["bytes"]
        and (old["first"], old["kind"], old["name"])
        < (new["first"], new["kind"], new["name"])  # a pair of workspaces once
    ]


def _columns(plot: _Plot, names: Sequence[str], live: Sequence[int]) -> list[Column]:
    """List the columns. If they are narrow, only every second, fifth ... has its number."""
    label_step = next(n for n in (1, 2, 5, 10, 20, 50, 100, 1000) if n * plot.column >= 22)
    is_wide = plot.column >= 46
    columns = [
        Column(
            plot.x(k) + plot.column / 2,
            str(k) if k % label_step == 0 else "",
            f"step {k}: {name}, {live[k]:,} bytes in use",
            f"{live[k]:,}" if is_wide else "",
            live[k] == max(live),
            k,
        )
        for k, name in enumerate(names)
    ]
    ends = (("in", -1, "before the first step"), ("out", len(names), "after the last step"))
    return [*columns, *(Column(plot.x(k) + plot.column / 2, label, title, "", False, -1) for label, k, title in ends)]


def _levels(size: int) -> list[int]:
    """List round numbers of bytes for horizontal lines."""
    step = 1
    while size / step > _LEVELS:
        step *= 2
    return list(range(0, size + 1, step))
