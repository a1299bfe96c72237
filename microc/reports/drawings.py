# SPDX-License-Identifier: Apache-2.0
"""Geometry of a report's pictures: scatter plots, confusion matrices, network graphs and memory maps.

This module computes positions in pixels; templates render the pictures as SVG.
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
from microc.document.blocks import format_dequantization_formula, format_shape_with_times_signs
from microc.reports.firmware_size import live_arena_bytes

# ---- Scatter plots with an optional line.

PLOT_WIDTH, PLOT_HEIGHT = 520, 300
PLOT_LEFT, PLOT_TOP, PLOT_RIGHT, PLOT_BOTTOM = 52, 28, 20, 44
"""Margins of the plot in pixels; the left margin is wider if tick labels are long."""
_DIGIT_WIDTH = 7
"""Width of a digit in pixels, at a font size of 11.5 pixels in the widest of the page's fonts (DejaVu Sans: 0.636 em)."""
_MAX_TICKS = 6
"""Approximate limit of the number of ticks on an axis."""
_AXIS_MARGIN = 0.05
"""Space between the outermost points and the ends of the axis, as a share of the points' range."""


@frozen
class PlotPoint:
    """A point of a scatter plot. ``kind`` selects its colour; ``title`` is its tooltip."""

    x: float
    y: float
    kind: str
    title: str


@frozen
class AxisTick:
    """A tick of an axis: its position along the axis in pixels, and its label."""

    position: float
    label: str


@frozen
class ScatterPlot:
    """A scatter plot with positions in pixels.

    ``path``: SVG path of a line, empty if there is none; ``x_ticks``: ticks of the horizontal axis; ``y_ticks``: ticks
    of the vertical axis; ``axis_labels``: texts of the two axes; ``frame``: left, top, right and bottom of the plotting area."""

    points: tuple[PlotPoint, ...]
    path: str
    x_ticks: tuple[AxisTick, ...]
    y_ticks: tuple[AxisTick, ...]
    axis_labels: tuple[str, str]
    frame: tuple[int, int, int, int]
    size: tuple[int, int] = (PLOT_WIDTH, PLOT_HEIGHT)


def lay_out_scatter_plot(
    points: Sequence[PlotPoint], axis_labels: tuple[str, str], polyline: Sequence[tuple[float, float]] = ()
) -> ScatterPlot:
    """Lay out a scatter plot of at least one point.

    ``axis_labels``: texts of the horizontal and the vertical axis; ``polyline``: points of a line to draw as well."""
    y, y_ticks = _axis_scale_and_ticks([point.y for point in points], PLOT_HEIGHT - PLOT_BOTTOM, PLOT_TOP)
    left = max(PLOT_LEFT, 10 + _DIGIT_WIDTH * max(len(tick.label) for tick in y_ticks))
    x, x_ticks = _axis_scale_and_ticks([point.x for point in points], left, PLOT_WIDTH - PLOT_RIGHT)
    points_in_pixels = tuple(PlotPoint(x(point.x), y(point.y), point.kind, point.title) for point in points)
    path = "M" + "L".join(f"{x(right):.1f} {y(top):.1f}" for right, top in polyline) if polyline else ""
    return ScatterPlot(
        points_in_pixels,
        path,
        x_ticks,
        y_ticks,
        axis_labels,
        frame=(left, PLOT_TOP, PLOT_WIDTH - PLOT_RIGHT, PLOT_HEIGHT - PLOT_BOTTOM),
    )


def _axis_scale_and_ticks(
    coordinates: Sequence[float], start: int, end: int
) -> tuple[Callable[[float], float], tuple[AxisTick, ...]]:
    """Return the scale of an axis, a function that converts numbers to pixels, and the axis' ticks at round numbers.

    ``coordinates``: the numbers that the axis must cover; ``start``, ``end``: pixel positions of the axis' ends."""
    low, high = min(coordinates), max(coordinates)
    room = _AXIS_MARGIN * (high - low) or max(abs(high), 1.0) / 2
    low, high = low - room, high + room

    def to_pixels(number: float) -> float:
        return start + (end - start) * (number - low) / (high - low)

    step = _round_up_tick_distance((high - low) / _MAX_TICKS)
    first, last = math.ceil(low / step), math.floor(high / step)
    return to_pixels, tuple(AxisTick(to_pixels(k * step), f"{k * step:,.10g}") for k in range(first, last + 1))


def _round_up_tick_distance(min_distance: float) -> float:
    """Return the distance between ticks: ``min_distance`` rounded up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(min_distance))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= min_distance)


# ---- Confusion matrices: a row for each true class, a column for each class that the network answers.

SIDE, MARGIN = 34, 40
"""Pixels of a cell's side, and of the margin for class numbers."""
_MAX_HEAT = 5


@frozen
class ConfusionCell:
    """A cell of a confusion matrix.

    ``x``, ``y``: upper left corner in pixels; ``count``: number of samples as text; ``change``: difference to an earlier
    matrix as text; ``heat``: colour, 0 to 5 by the cell's share of the samples of the true class; ``is_correct``: True on the
    diagonal, where the answers are correct; ``title``: the tooltip."""

    x: int
    y: int
    count: str
    change: str
    heat: int
    is_correct: bool
    title: str


@frozen
class ConfusionMatrixLayout:
    """A laid out confusion matrix.

    ``size`` of the whole and ``cell_size`` of a cell, in pixels; ``classes``: position along an edge and label of each class."""

    size: int
    cell_size: int
    cells: tuple[ConfusionCell, ...]
    classes: tuple[tuple[int, str], ...]


def lay_out_confusion_matrix(
    counts: Sequence[Sequence[int]], before: Sequence[Sequence[int]] | None = None
) -> ConfusionMatrixLayout:
    """Lay out a confusion matrix.

    ``counts``: number of samples, by true class (row) and answered class (column); ``before``: counts of an earlier
    network, None if there is none. Cells show the difference to it."""
    cells = []
    for truth, row in enumerate(counts):
        total = max(1, sum(row))
        for answer, count in enumerate(row):
            change = count - before[truth][answer] if before else 0
            title = f"{count:,} of class {truth} answered {answer}" + (
                f", {change:+,} against before" if change else ""
            )
            cells.append(
                ConfusionCell(
                    x=MARGIN + SIDE * answer,
                    y=MARGIN + SIDE * truth,
                    count=f"{count:,}" if count else "",
                    change=f"{change:+d}" if change else "",
                    heat=math.ceil(_MAX_HEAT * count / total),
                    is_correct=truth == answer,
                    title=title,
                )
            )
    places = tuple((MARGIN + SIDE * k + SIDE // 2, str(k)) for k in range(len(counts)))
    return ConfusionMatrixLayout(MARGIN + SIDE * len(counts) + 1, SIDE, tuple(cells), places)


# ---- Layered layout of a directed acyclic graph, from top to bottom.
#
# The method of Sugiyama, Tagawa and Toda (1981). The rank (layer) of a box is the length of the longest path to it. An edge
# across several ranks passes through a point in each rank in between. Within ranks, boxes and points are sorted by the
# barycentres of their neighbours, which reduces crossings. Horizontal positions then approach those of the neighbours as far as
# the order allows.

_BOX_GAP, _RANK_GAP, _EDGE_POINT_WIDTH = 22, 30, 14
"""Distance between boxes of a rank, distance between ranks, and width reserved for the point of an edge, in pixels."""
_SWEEPS = 6
"""Number of passes over all ranks that sort the nodes of each rank; the passes go downwards and upwards in turn."""


@frozen
class GraphLayout:
    """The layout of a graph, in pixels.

    ``corners``: upper left corners of the boxes, in the order of box numbers; ``paths``: an SVG path for every edge, in
    the order of the edges; ``width`` and ``height``: size of the whole layout."""

    corners: tuple[tuple[float, float], ...]
    paths: tuple[str, ...]
    width: float
    height: float


def lay_out_graph(box_count: int, edges: Sequence[tuple[int, int]], box_width: float, box_height: float) -> GraphLayout:
    """Lay out a directed acyclic graph in ranks from top to bottom.

    The graph has ``box_count`` boxes of the same size, ``box_width`` by ``box_height`` pixels. ``edges``: pairs of box
    numbers (from, to); the number of the first box must be the lower one."""
    ranks = _box_ranks(box_count, edges)
    chains, ranks_of_all = _split_edges_at_ranks(edges, ranks)
    total = len(ranks_of_all)
    segments = [link for chain in chains for link in pairwise(chain)]
    rows = _order_nodes_in_ranks(ranks_of_all, segments)
    widths = [box_width if node < box_count else _EDGE_POINT_WIDTH for node in range(total)]
    centres = _compute_horizontal_node_centres(rows, segments, widths)
    left = min((centres[n] - widths[n] / 2 for n in range(total)), default=0.0)
    x = {node: at - left for node, at in centres.items()}
    y = {node: ranks_of_all[node] * (box_height + _RANK_GAP) for node in range(total)}
    paths = tuple(
        _edge_to_svg_path([(x[n], y[n], box_height if n < box_count else 0.0) for n in chain], box_height)
        for chain in chains
    )
    right = max((x[n] + widths[n] / 2 for n in range(total)), default=0.0)
    bottom = max((y[n] + box_height for n in range(box_count)), default=0.0)
    return GraphLayout(tuple((x[n] - box_width / 2, y[n]) for n in range(box_count)), paths, right, bottom)


def _box_ranks(box_count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Compute the rank of every box, which is the length of the longest path to it.

    A box without predecessors gets the rank directly above its uppermost successor."""
    ranks = [0] * box_count
    followers = defaultdict(list)
    has_predecessor = {v for _, v in edges}
    for u, v in sorted(edges):
        ranks[v] = max(ranks[v], ranks[u] + 1)
        followers[u].append(v)
    for node in range(box_count):
        if node not in has_predecessor and followers[node]:
            ranks[node] = min(ranks[v] for v in followers[node]) - 1
    return ranks


def _split_edges_at_ranks(edges: Sequence[tuple[int, int]], ranks: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Split every edge into a chain of nodes, with one node in each rank that the edge crosses.

    The nodes between the boxes are points, numbered after the boxes. Return the chains, and the ranks of all nodes."""
    all_ranks, chains = list(ranks), []
    for u, v in edges:
        points = list(range(len(all_ranks), len(all_ranks) + ranks[v] - ranks[u] - 1))
        all_ranks += [ranks[u] + 1 + k for k in range(len(points))]
        chains.append([u, *points, v])
    return chains, all_ranks


def _order_nodes_in_ranks(ranks: Sequence[int], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Order the nodes of each rank by the barycentres of their neighbours, so that few edges cross.

    Return a list of nodes for each rank. ``ranks``: rank of each node; ``links``: pairs of nodes in neighbouring ranks."""
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for node, rank in enumerate(ranks):
        rows[rank].append(node)
    above, below = _list_neighbours_above_and_below(links)
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            index = {node: k for r in rows for k, node in enumerate(r)}
            row.sort(key=lambda n: (_mean_or_default([index[m] for m in neighbours[n]], index[n]), index[n]))
    return rows


def _compute_horizontal_node_centres(
    rows: Sequence[Sequence[int]], links: Sequence[tuple[int, int]], widths: Sequence[float]
) -> dict[int, float]:
    """Compute the horizontal centre of each node, in pixels.

    It is as near to the mean of the centres of the node's neighbours as the order within the rank allows. ``rows``:
    nodes of each rank, in order; ``links``: pairs of nodes in neighbouring ranks; ``widths``: widths of the nodes, in
    pixels."""
    centres: dict[int, float] = {}
    for row in rows:
        span = sum(widths[n] for n in row) + _BOX_GAP * (len(row) - 1)
        at = -span / 2
        for node in row:
            centres[node] = at + widths[node] / 2
            at += widths[node] + _BOX_GAP
    above, below = _list_neighbours_above_and_below(links)
    for sweep in range(2 * _SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_mean_or_default([centres[m] for m in neighbours[n]], centres[n]) for n in row]
            centres.update(zip(row, _separate_node_centres(wanted, [widths[n] for n in row]), strict=True))
    return centres


def _separate_node_centres(preferred_centres: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return centres for the nodes of a rank that are near to the preferred centres, without overlaps of the nodes.

    They are the mean of two solutions: overlapping nodes pushed to the right, and overlapping nodes pushed to the left."""
    right, left = list(preferred_centres), list(preferred_centres)
    for k in range(1, len(preferred_centres)):
        right[k] = max(right[k], right[k - 1] + (widths[k - 1] + widths[k]) / 2 + _BOX_GAP)
        m = len(preferred_centres) - 1 - k
        left[m] = min(left[m], left[m + 1] - (widths[m] + widths[m + 1]) / 2 - _BOX_GAP)
    return [(a + b) / 2 for a, b in zip(right, left, strict=True)]


def _list_neighbours_above_and_below(
    links: Sequence[tuple[int, int]],
) -> tuple[Mapping[int, list[int]], Mapping[int, list[int]]]:
    """Return the neighbours in the rank above, and the neighbours in the rank below, of each node."""
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    for u, v in links:
        above[v].append(u)
        below[u].append(v)
    return above, below


def _mean_or_default(values: Sequence[float], default: float) -> float:
    """Return the mean of ``values``; ``default`` if there are no values."""
    return sum(values) / len(values) if values else default


def _edge_to_svg_path(points: Sequence[tuple[float, float, float]], box_height: float) -> str:
    """Return an edge as a smooth curve, in the syntax of an SVG path.

    The curve leads from the bottom of the first box through the edge's points to the top of the last box. ``points``: x, y
    and height of each node of the edge; a height of 0 marks a point between boxes."""
    (x, y, own), *rest = points
    at = x, y + own
    words = [f"M{at[0]:.1f} {at[1]:.1f}"]
    for x, y, own in rest:
        middle = (at[1] + y) / 2
        words.append(f"C{at[0]:.1f} {middle:.1f} {x:.1f} {middle:.1f} {x:.1f} {y:.1f}")
        if not own:
            words.append(f"V{y + box_height:.1f}")
        at = x, y + (own or box_height)
    return "".join(words)


# ---- Network graphs: a box for every layer, input, output and state, and an edge for every tensor between them.

PICTURE_WIDTH, PICTURE_HEIGHT = 252, 86
"""Width and height of a box in the network graph, in pixels."""
_MAX_LINE_CHARACTERS, _MAX_TITLE_CHARACTERS = 36, 24
"""Largest number of characters of a line in a box, and of its first line, which shares its space with the layer's time."""


@frozen
class LayerBox:
    """A box of the network graph, for a layer, input, output or state.

    ``x``, ``y``: upper left corner in pixels; ``lines``: up to three lines of text below the name; ``share``: the
    layer's share of the time as text, on the right of the name; ``title``: the tooltip; ``step``: number of the layer's
    step, -1 for an input, output or state; ``heat``: colour, 0 to 5 by the share of time; ``length``: length of the bar
    that shows the share, in pixels."""

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
class NetworkDrawing:
    """The drawing of a network graph, in pixels: its size, its boxes, and the SVG paths of its edges."""

    width: float
    height: float
    boxes: tuple[LayerBox, ...]
    paths: tuple[str, ...]


def lay_out_network_graph(data: Mapping[str, Any]) -> NetworkDrawing:
    """Lay out the graph of the network that a report describes; ``data``: the report's data."""
    layers, tensors = data["layers"], {t["name"]: t for t in data["tensors"]}
    inputs, outputs = ([t["name"] for t in data[kind]] for kind in ("inputs", "outputs"))
    read_names = {name for layer in layers for name in layer["inputs"]}
    sources = [name for name in (*inputs, *(t["name"] for t in data["state"])) if name in read_names]
    # Boxes are numbered as lay_out_graph needs them, writers before readers: inputs and state, layers, outputs.
    first = len(sources)
    makers = {name: _source_box_numbers(tensor, sources) for name, tensor in tensors.items()}
    uses = [(name, k) for k, layer in enumerate(layers) for name in layer["inputs"]]
    uses += [(name, len(layers) + k) for k, name in enumerate(outputs)]
    # lay_out_graph accepts forward edges only. A tensor with several writers may be read before its last writer.
    edges = [(u, first + k) for name, k in uses for u in makers.get(name, ()) if u < first + k]
    # dict.fromkeys: a layer that reads a tensor twice (x * x) gets one edge.
    graph = lay_out_graph(first + len(layers) + len(outputs), list(dict.fromkeys(edges)), PICTURE_WIDTH, PICTURE_HEIGHT)
    most = max((layer["share"] for layer in layers), default=0) or 1
    boxes = [
        *(_tensor_box_fields(tensors[name], tensors[name]["kind"]) for name in sources),
        *(_layer_box_fields(layer, tensors, most) for layer in layers),
        *(_tensor_box_fields(tensors[name], "output") for name in outputs),
    ]
    layer_boxes = (LayerBox(*corner, *box) for corner, box in zip(graph.corners, boxes, strict=True))
    return NetworkDrawing(graph.width, graph.height, tuple(layer_boxes), graph.paths)


def _source_box_numbers(tensor: Mapping[str, Any], sources: Sequence[str]) -> list[int]:
    """List the numbers of the boxes from which a tensor comes: the box of an input or state, or the boxes of the layers that
    write it."""
    if tensor["name"] in sources:
        return [sources.index(tensor["name"])]
    return [len(sources) + step for step in tensor["written_by"]]


def _tensor_box_fields(tensor: Mapping[str, Any], role: str) -> tuple[Any, ...]:
    """Return the fields of a :class:`LayerBox` without its position, for an input, output or state."""
    lines = (role, *_tensor_type_lines(tensor))
    name = tensor["label"] or tensor["name"]
    return (
        cut_text_to_columns(name, _MAX_LINE_CHARACTERS),
        lines,
        "",
        f"{role} {name}: {', '.join(_tensor_type_lines(tensor))}",
        -1,
        0,
        0.0,
    )


def _layer_box_fields(
    layer: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]], largest_share: float
) -> tuple[Any, ...]:
    """Return the fields of a :class:`LayerBox` without its position, for a layer.

    ``largest_share``: share of time of the slowest layer."""
    results = [tensors[name] for name in layer["outputs"] if name in tensors]
    kinds = _tensor_type_lines(results[0]) if results else ()
    share = f"{100 * layer['share']:.1f} %"
    operators = layer["op"].replace("+", " + ")
    title = ", ".join((f"step {layer['step']}: {layer['layer']}", operators, *kinds, share))
    lines = tuple(cut_text_to_columns(line, _MAX_LINE_CHARACTERS) for line in (operators, *kinds))
    heat, length = round(_MAX_HEAT * layer["share"] / largest_share), PICTURE_WIDTH * layer["share"] / largest_share
    return (
        cut_text_to_columns(_shorten_layer_path(layer["name"]), _MAX_TITLE_CHARACTERS),
        lines,
        share,
        title,
        layer["step"],
        heat,
        length,
    )


def _tensor_type_lines(tensor: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the lines of text that describe a tensor's type.

    The first line contains dtype and shape; for a quantised tensor, a second line contains the formula of its real values."""
    shape, quant = (
        f"{tensor['dtype']} {format_shape_with_times_signs(tensor['shape'])}",
        format_dequantization_formula(tensor),
    )
    return (shape, f"= {quant}") if quant else (shape,)


def _shorten_layer_path(name: str) -> str:
    """Shorten a layer's name to the first and the last component, if it is a long path."""
    parts = name.split("/")
    return (
        f"{parts[0]}/\N{HORIZONTAL ELLIPSIS}/{parts[-1]}"
        if len(name) > _MAX_TITLE_CHARACTERS and len(parts) > 2
        else name
    )


def cut_text_to_columns(text: str, max_columns: int) -> str:
    """Cut a text that is longer than ``max_columns`` columns, and end it with an ellipsis.

    East Asian wide characters count as two columns."""
    room, shortened = max_columns, ""
    for letter in text:
        room -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if room < 0:
            return shortened[:-1] + "\N{HORIZONTAL ELLIPSIS}"
        shortened += letter
    return text


# ---- Memory maps: the use of the arena over time. The horizontal axis shows the network's steps, the vertical axis addresses.
# Each value is a rectangle.

MEMORY_MAP_LEFT, MEMORY_MAP_TOP, MEMORY_MAP_BOTTOM, MEMORY_MAP_RIGHT = 72, 26, 44, 12
"""Margins of the plot in pixels."""
INDENT = 6
_MAP_HEIGHT, _MAP_WIDTH = 340, 1096
_MIN_COLUMN_WIDTH, _MAX_COLUMN_WIDTH = 16, 180
"""Least and largest width of a step's column, in pixels."""
_CHARACTER_WIDTH = 6.3
"""Approximate width of a character in pixels."""
_MAX_LEVELS = 6
"""Largest number of horizontal lines (besides the axis)."""


@frozen
class MemoryBox:
    """A rectangle of the memory map, in pixels: a value, or an area that two values share.

    ``kind`` selects the colour; ``label``: the text in it, drawn ``INDENT`` pixels from the left, empty if it does not fit;
    ``title``: the tooltip."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str
    title: str


@frozen
class StepLabels:
    """The labels of a step, below the memory map.

    ``x``: centre of the step's column in pixels; ``label``: the step's number as text, empty for some if columns are
    narrow; ``title``: the tooltip; ``live``: bytes of the arena in use, as text; ``is_peak``: True if no step uses more bytes;
    ``step``: the step's number, -1 for the columns before the first and after the last step."""

    x: float
    label: str
    title: str
    live: str
    is_peak: bool
    step: int


@frozen
class OffsetLine:
    """A horizontal line of the memory map: its vertical position in pixels, and its arena offset in bytes as text."""

    y: float
    label: str


@frozen
class MemoryMap:
    """A memory map: the use of the arena over time, in pixels.

    ``width``, ``height``: size of the whole map; ``column_width``: width of a step's column; ``overlaps``: areas where
    a step's result overwrites an operand of the step, or where the step's workspace shares memory with a value;
    ``arena``: line at the arena's size; ``kinds``: kinds of values that occur, for the legend."""

    width: float
    height: float
    column_width: float
    boxes: tuple[MemoryBox, ...]
    overlaps: tuple[MemoryBox, ...]
    columns: tuple[StepLabels, ...]
    levels: tuple[OffsetLine, ...]
    arena: OffsetLine
    kinds: tuple[str, ...]


def lay_out_memory_map(manifest: Mapping[str, Any], step_names: Sequence[str]) -> MemoryMap:
    """Lay out the memory map of the arena that a manifest describes.

    The horizontal axis shows the steps of the network, the vertical axis addresses. ``step_names``: a name for each step."""
    steps = len(manifest["kernels"])
    column = min(max(_MAP_WIDTH / (steps + 2), _MIN_COLUMN_WIDTH), _MAX_COLUMN_WIDTH)
    map_scale = _MemoryMapScale(column, manifest["arena_size"])
    # Drawn last, over others: outputs are often views of other values, and workspaces reuse memory that others free.
    drawn_last = ("output", "workspace")
    values = sorted(
        manifest["memory"],
        key=lambda m: (m["kind"] in drawn_last and drawn_last.index(m["kind"]) + 1, m["first"], -m["bytes"]),
    )
    live = live_arena_bytes(manifest)
    kinds = dict.fromkeys(m["kind"] for m in values)
    return MemoryMap(
        width=MEMORY_MAP_LEFT + column * (steps + 2) + MEMORY_MAP_RIGHT,
        height=MEMORY_MAP_TOP + _MAP_HEIGHT + MEMORY_MAP_BOTTOM,
        column_width=column,
        boxes=_remove_hidden_labels([map_scale.box(m, step_names) for m in values]),
        overlaps=tuple(map_scale.overlap_box(*both) for both in _overlapping_values(values)),
        columns=tuple(_memory_map_columns(map_scale, step_names, live)),
        levels=tuple(
            OffsetLine(map_scale.y_of_offset(at), f"{at:,}") for at in _round_byte_levels(manifest["arena_size"])
        ),
        arena=OffsetLine(map_scale.y_of_offset(manifest["arena_size"]), f"{manifest['arena_size']:,} bytes"),
        kinds=tuple(k for k in ("input", "intermediate", "workspace", "state", "const", "output") if k in kinds),
    )


@frozen
class _MemoryMapScale:
    """The scale of a memory map, which converts steps and arena offsets to pixels.

    ``column_width``: width of a step's column in pixels; ``arena_bytes``: size of the arena."""

    column_width: float
    arena_bytes: int

    def x_of_step(self, step: int) -> float:
        """Return the position of the left edge of a step's column, in pixels."""
        return MEMORY_MAP_LEFT + self.column_width * (step + 1)

    def y_of_offset(self, offset: int) -> float:
        """Return the vertical position of an arena offset (in bytes), in pixels."""
        return MEMORY_MAP_TOP + _MAP_HEIGHT * (1 - offset / max(self.arena_bytes, 1))

    def box(self, value: Mapping[str, Any], names: Sequence[str]) -> MemoryBox:
        """Return the rectangle of a value: its lifetime on the horizontal axis, its addresses on the vertical axis."""
        width = self.column_width * (value["last"] - value["first"] + 1)
        height = _MAP_HEIGHT * value["bytes"] / max(self.arena_bytes, 1)
        x, y = self.x_of_step(value["first"]), self.y_of_offset(value["offset"] + value["bytes"])
        label = value["name"] if len(value["name"]) * _CHARACTER_WIDTH < width - 2 * INDENT and height >= 15 else ""
        return MemoryBox(x, y, width, height, value["kind"], label, _format_value_tooltip(value, names))

    def overlap_box(self, old: Mapping[str, Any], new: Mapping[str, Any], step: int) -> MemoryBox:
        """Return the rectangle of the bytes that two values share during a step."""
        start = max(old["offset"], new["offset"])
        stop = min(old["offset"] + old["bytes"], new["offset"] + new["bytes"])
        height = _MAP_HEIGHT * (stop - start) / max(self.arena_bytes, 1)
        title = f"step {step}: {new['name']} lies over {stop - start:,} bytes of {old['name']}"
        return MemoryBox(self.x_of_step(step), self.y_of_offset(stop), self.column_width, height, "overlap", "", title)


def _remove_hidden_labels(boxes: Sequence[MemoryBox]) -> tuple[MemoryBox, ...]:
    """Remove the labels of boxes that a box drawn later would cover; return all boxes."""

    def is_label_covered(box: MemoryBox, later_box: MemoryBox) -> bool:
        right, middle = box.x + INDENT + len(box.label) * _CHARACTER_WIDTH, box.y + box.height / 2
        return (
            box.x < later_box.x + later_box.width
            and later_box.x < right
            and later_box.y < middle + _CHARACTER_WIDTH
            and middle - _CHARACTER_WIDTH < later_box.y + later_box.height
        )

    return tuple(
        replace(box, label="")
        if box.label and any(is_label_covered(box, later_box) for later_box in boxes[k + 1 :])
        else box
        for k, box in enumerate(boxes)
    )


def _format_value_tooltip(value: Mapping[str, Any], step_names: Sequence[str]) -> str:
    """Return the tooltip of a value in the memory map: its name, kind, type, size, offset and lifetime."""
    shape = "x".join(map(str, value["shape"])) or "scalar"
    position = f"{value['bytes']:,} bytes at {value['offset']:,}"
    first, last = (
        "before" if step < 0 else "after" if step >= len(step_names) else f"step {step} ({step_names[step]})"
        for step in (value["first"], value["last"])
    )
    lifetime = f"during {first}" if value["first"] == value["last"] else f"from {first} to {last}"
    return f"{value['name']}: {value['kind']}, {value['dtype']} {shape}, {position}, {lifetime}"


def _overlapping_values(memory: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Mapping[str, Any], int]]:
    """List pairs of values that share bytes during a step, each with this step.

    In this step the lifetime of the first value ends, and that of the second begins."""
    values_by_first_step: dict[int, list[Mapping[str, Any]]] = {}
    for value in memory:
        values_by_first_step.setdefault(value["first"], []).append(value)
    return [
        (old, new, new["first"])
        for old in memory
        for new in values_by_first_step.get(old["last"], ())
        if old is not new
        and old["offset"] < new["offset"] + new["bytes"]
        and new["offset"] < old["offset"] + old["bytes"]
        and (old["first"], old["kind"], old["name"])
        < (new["first"], new["kind"], new["name"])  # a pair of workspaces once
    ]


def _memory_map_columns(
    map_scale: _MemoryMapScale, step_names: Sequence[str], live_bytes: Sequence[int]
) -> list[StepLabels]:
    """List the labels of all columns of the memory map.

    If columns are narrow, only every second, fifth, tenth ... step has its number as label. ``live_bytes``: bytes of the
    arena in use during each step."""
    label_step = next(n for n in (1, 2, 5, 10, 20, 50, 100, 1000) if n * map_scale.column_width >= 22)
    is_wide = map_scale.column_width >= 46
    columns = [
        StepLabels(
            map_scale.x_of_step(k) + map_scale.column_width / 2,
            str(k) if k % label_step == 0 else "",
            f"step {k}: {name}, {live_bytes[k]:,} bytes in use",
            f"{live_bytes[k]:,}" if is_wide else "",
            live_bytes[k] == max(live_bytes),
            k,
        )
        for k, name in enumerate(step_names)
    ]
    ends = (("in", -1, "before the first step"), ("out", len(step_names), "after the last step"))
    return [
        *columns,
        *(
            StepLabels(map_scale.x_of_step(k) + map_scale.column_width / 2, label, title, "", False, -1)
            for label, k, title in ends
        ),
    ]


def _round_byte_levels(arena_bytes: int) -> list[int]:
    """List the arena offsets for the horizontal lines of a memory map: multiples of a power of two, up to ``arena_bytes``."""
    step = 1
    while arena_bytes / step > _MAX_LEVELS:
        step *= 2
    return list(range(0, arena_bytes + 1, step))
