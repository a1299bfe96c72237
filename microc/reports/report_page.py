# SPDX-License-Identifier: Apache-2.0
"""HTML pages of documents and of reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from microc.base.immutable import frozen
from microc.codegen.render import Data, render_html
from microc.document.blocks import (
    Cell,
    Column,
    Fact,
    Prose,
    Steps,
    Table,
    Term,
    format_clock_rate,
    format_milliseconds,
    format_peak_stack,
    format_shape_with_times_signs,
    format_shared_kernels,
    layer_names,
    numbers,
    prose,
    table,
    texts,
)
from microc.reports.drawings import (
    PICTURE_HEIGHT,
    PICTURE_WIDTH,
    ConfusionMatrixLayout,
    MemoryMap,
    NetworkDrawing,
    ScatterPlot,
    lay_out_confusion_matrix,
    lay_out_memory_map,
    lay_out_network_graph,
)
from microc.reports.evidence import accuracy_sentences
from microc.reports.firmware_size import PARTS
from microc.reports.report_document import next_steps, slowest_layers, tflm_table

# ---- HTML pages of documents: each is self-contained, loads no other files, and shows its pictures as inline SVG.
#
# A page has figures at its head, sections of blocks, and the origin of its figures at its foot. Its blocks are
# those of :mod:`microc.document.blocks`, the pictures of :mod:`microc.reports.drawings`, and those of
# this file, which terminals do not show. ``templates/report/page.html.j2`` has a macro for each.


@frozen
class Figure:
    """A figure at the head of a page: its name, its value, and a note in small print."""

    name: str
    value: str
    note: str


@frozen
class Bar:
    """A bar of a chart, in the order of the network.

    ``title``: the tooltip; ``start`` and ``length``: in percent of the chart's width; ``value``: the number that the length
    shows, and ``note``, small print beside it. ``number``: that of the layer; a click selects it if the page has an
    explorer of layers."""

    number: int
    name: str
    title: str
    start: str
    length: str
    value: str
    note: str


@frozen
class Bars:
    """A chart of bars, one below the other. ``marks``: positions in percent, with labels, on an axis below it.

    ``selects``: True if a click on a bar selects the layer."""

    bars: tuple[Bar, ...]
    marks: tuple[tuple[str, str], ...] = ()
    selects: bool = False


@frozen
class SortableTable:
    """A large table that a click on a heading sorts. ``label``: its name for screen readers.

    ``steps``: number of the step that a row shows, if a click on its layer selects it."""

    table: Table
    label: str
    steps: tuple[int, ...] = ()


@frozen
class MemorySegment:
    """A segment of a memory bar, for one part of the firmware.

    ``meaning``: description of the part; ``size``: its bytes; ``percent``: its share of the used bytes; ``colour``: index
    of its colour."""

    part: str
    meaning: str
    size: int
    percent: float
    colour: int


@frozen
class MemoryBar:
    """A bar that shows the use of a memory, and a table of its segments; ``name``: that of the memory."""

    name: str
    segments: tuple[MemorySegment, ...]


@frozen
class Legend:
    """The legend of plots: kinds of points, each with its meaning."""

    entries: tuple[tuple[str, str], ...]


@frozen
class Explorer:
    """The graph of a network, and a panel that shows the selected layer; ``box``: width and height of a box in pixels."""

    drawing: NetworkDrawing
    box: tuple[int, int]


@frozen
class ComparisonPlace:
    """The place of a comparison with another report; ``is_chosen_by_reader``: True if the reader opens the other report."""

    is_chosen_by_reader: bool


@frozen
class GridCell:
    """A cell of a grid: its heading, if any, with small print; ``is_long``: True if its block may need to scroll."""

    block: TypedBlock
    heading: str = ""
    note: str = ""
    is_long: bool = False


@frozen
class Grid:
    """Cells side by side, as many as fit."""

    cells: tuple[GridCell, ...]


PageBlock = (
    Prose | Steps | Table | SortableTable | Bars | MemoryBar | Legend | Explorer | ComparisonPlace | Grid
    | ScatterPlot | ConfusionMatrixLayout | MemoryMap
)  # fmt: skip
TypedBlock = tuple[str, PageBlock]
"""Name of the class of a block, by which the template chooses the macro, and the block."""


@frozen
class Section:
    """A section of a page. ``anchor``: its id; ``note``: small print beside the title; ``intro``: a paragraph below it.

    ``is_scripted``: True if it is hidden where scripts do not run."""

    anchor: str
    title: str
    blocks: tuple[TypedBlock, ...]
    intro: str
    note: str
    is_scripted: bool


@frozen
class Page:
    """A page: the variables of ``templates/report/page.html.j2``.

    ``command``: the command that writes such pages; ``lead``: the line below the title; ``origin``: names and values at the
    foot. ``data``: the report's data, for the script that explores layers, None if there is no explorer; ``before``: the data
    of the report to compare with; ``first``: number of the layer that is selected when the page opens."""

    command: str
    title: str
    board: str
    lead: str
    figures: tuple[Figure, ...]
    sections: tuple[Section, ...]
    origin: tuple[Fact, ...]
    data: Data | None = None
    before: Data | None = None
    first: int = -1


def section(
    anchor: str, title: str, *blocks: PageBlock | None, intro: str = "", note: str = "", is_scripted: bool = False
) -> Section:
    """Make a section of blocks; None stands for a block that is left out."""
    shown = tuple(_with_type(block) for block in blocks if block is not None)
    return Section(anchor, title, shown, intro, note, is_scripted)


def grid_cell(block: PageBlock, heading: str = "", note: str = "", is_long: bool = False) -> GridCell:
    """Make a cell of a grid."""
    return GridCell(_with_type(block), heading, note, is_long)


def grid(blocks: Iterable[PageBlock]) -> Grid:
    """Make a grid of blocks without headings."""
    return Grid(tuple(map(grid_cell, blocks)))


def _with_type(block: PageBlock) -> TypedBlock:
    """Return a block with the name of its class."""
    return type(block).__name__, block


def render_page(page: Page) -> str:
    """Render a page as HTML. Equal pages give equal texts."""
    return render_html("report/page.html.j2", page)


# ---- The page of a report: the network's layers, their time and memory, accuracy, and comparison with another
# report.


_MAX_DRAWN_CLASSES = 32
"""Largest number of classes for which a confusion matrix is drawn."""
_ESTIMATED_UNIT_MEANING = "as the cost model counts them for this core and its flash: nothing was run"
_SYMBOL_KINDS_OF_MEMORY = {"flash": ("Flash", ("text", "data")), "ram": ("RAM", ("data", "bss"))}
"""Title of each memory bar, and the kinds of symbols that the memory contains."""


def to_html(data: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """Render a report as an HTML page. Equal data give equal pages.

    ``data``: data of the report; ``before``: data of an earlier report to compare with."""
    board, layers = data["board"]["title"], data["layers"]
    page = Page(
        command="report",
        title=data["model"],
        board=board,
        lead=board,
        figures=tuple(_headline_figures(data)),
        sections=tuple(_sections(data, before is not None)),
        origin=tuple(_origin_rows(data)),
        data=Data(data),
        before=Data(before) if before is not None else None,
        first=slowest_layers(data, 1)[0]["step"] if layers else -1,
    )
    return render_page(page)


def _sections(data: Mapping[str, Any], is_comparison: bool) -> Iterator[Section]:
    """Yield the sections of the page; ``is_comparison``: True if the page compares the report with an earlier one."""
    layers, measured, accuracy = data["layers"], data["measured"], data["accuracy"]
    unit, meaning = (measured["unit"], measured["meaning"]) if measured else ("cycles", _ESTIMATED_UNIT_MEANING)
    if is_comparison:
        yield section("compare", "Before and after", ComparisonPlace(is_chosen_by_reader=False))
    if data["advice"]:
        yield section("advice", "What to do next", Steps(next_steps(data["advice"]).items))
    yield section(
        "graph",
        "The network",
        Explorer(lay_out_network_graph(data), (PICTURE_WIDTH, PICTURE_HEIGHT)),
        intro="The stronger the colour of a layer, the larger its part of the time. A click shows its cost, its "
        "tensors in the arena, and its C.",
    )
    yield section(
        "time",
        "Time, layer by layer",
        _timeline(data),
        intro=f"One inference from left to right, in {unit} ({meaning}).",
    )
    arena = {"kernels": layers, "memory": data["memory"], "arena_size": data["totals"]["arena"]}
    yield section(
        "memory",
        "The arena over time",
        lay_out_memory_map(arena, [layer["name"] for layer in layers]),
        intro="Steps from left to right, addresses from the bottom up. Every rectangle is a value, from the step that writes "
        "it to the last that reads it; hatched: a step writes over what it is done with.",
    )
    code = "Flash that layers share is divided among them" if data["firmware"] else "Bytes of code are estimated"
    yield section(
        "layers",
        "Layers",
        _layers_table(data),
        intro=f"A click on a heading sorts. {code}; the arena's bytes are those that hold something meanwhile.",
    )
    if accuracy:
        confusion = accuracy["confusion"]
        is_drawn = bool(confusion) and len(confusion) <= _MAX_DRAWN_CLASSES
        yield section(
            "accuracy",
            "Right or wrong",
            prose(*accuracy_sentences(accuracy, data["fingerprint"])),
            prose("True classes by row, answers by column:") if is_drawn else None,
            lay_out_confusion_matrix(confusion) if is_drawn else None,
        )
    if "tflm" in data:
        yield section(
            "tflm",
            "Beside TensorFlow Lite Micro",
            tflm_table([data["tflm"]]),
            intro="The same network, board and inputs. Its arena is the smallest that it accepts.",
        )
    if data["firmware"]:
        yield section("firmware", "What the firmware is made of", _memory_bars(data))
    if not is_comparison:
        yield section(
            "compare",
            "Compare",
            ComparisonPlace(is_chosen_by_reader=True),
            intro="With another report, a page or its JSON: that one is before, this one after. The file stays on this computer.",
            is_scripted=True,
        )


def _headline_figures(data: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the figures at the head of the page: time, multiply-accumulates, memories, state, accuracy."""
    measured, totals, board = data["measured"], data["totals"], data["board"]
    ms = totals["milliseconds"]
    about = f"{totals['cycles']:,} cycles" + (f" at {format_clock_rate(board['clock_hz'])}" if ms is not None else "")
    if measured:
        seconds = measured["seconds"]
        note = (
            f"{measured['unit']}, {format_milliseconds(1000 * seconds)}"
            if seconds is not None
            else f"{measured['unit']}, emulated"
        )
        yield Figure("One inference", f"{measured['time']:,}", note)
    if ms is not None:
        yield Figure(
            "Estimated" if measured else "One inference",
            format_milliseconds(ms),
            about if measured else f"about {about}",
        )
    elif not measured:
        yield Figure("One inference", f"{totals['cycles']:,}", "cycles, about")
    time, unit = (measured["time"], measured["unit"]) if measured else (totals["cycles"], "cycles")
    yield Figure(
        "MACs",
        f"{totals['macs']:,}",
        f"{time / totals['macs']:.2f} {unit} each" if totals["macs"] else "",
    )
    for name, key in (("Flash", "flash"), ("RAM", "ram")):
        if totals[key] is not None:
            estimated = "" if data["firmware"] or key == "ram" else ", estimated"
            yield Figure(name, f"{totals[key]:,}", f"bytes{_capacity_share_text(totals[key], board[key])}{estimated}")
    yield Figure("Arena", f"{totals['arena']:,}", f"bytes, lower bound {totals['arena_lower_bound']:,}")
    stack, _, note = format_peak_stack(data).partition(" ")
    yield Figure("Peak stack", stack, note)
    shared = format_shared_kernels([(layer.get("cores", 1), layer["share"]) for layer in data["layers"]])
    if shared:
        count, _, note = shared.partition(" ")
        yield Figure("On two cores", count, note)
    state_bytes = sum(tensor["bytes"] for tensor in data["state"])
    yield Figure(
        "Holds state",
        f"{state_bytes:,} bytes" if state_bytes else "no",
        "from run to run" if state_bytes else "every run stands alone",
    )
    if data["accuracy"] and data["accuracy"]["total"]:
        accuracy = data["accuracy"]
        share = f"{100 * accuracy['correct'] / accuracy['total']:.2f} %"
        yield Figure("Accuracy", share, f"{accuracy['correct']:,} of {accuracy['total']:,}")


def _capacity_share_text(used_bytes: int, capacity: int) -> str:
    """Format the percentage of ``capacity`` that ``used_bytes`` are; empty if the capacity is unknown (0)."""
    return f", {100 * used_bytes / capacity:.1f} % of {capacity:,}" if capacity else ""


def _layers_table(data: Mapping[str, Any]) -> SortableTable:
    """Make the table of layers, with a row of totals."""
    layers, tensors = data["layers"], {tensor["name"]: tensor for tensor in data["tensors"]}
    columns, totals = zip(*_layer_figures(data, layers), strict=True)
    rows = [
        (
            layer["step"],
            Term(layer["name"], layer["layer"]),
            layer["op"].replace("+", " + "),
            _result_type(layer, tensors),
            Term(_schedule_text(layer), layer["schedule"]),
            *(figure for _, figure in _layer_figures(data, [layer])),
        )
        for layer in layers
    ]
    names = (*numbers("step"), *layer_names("layer"), *texts("operators", "result", "schedule"))
    shown = table((*names, *columns), rows, totals=(None, "all", None, None, None, *totals))
    return SortableTable(shown, "table of layers", tuple(layer["step"] for layer in layers))


def _layer_figures(data: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Column, Cell]]:
    """Yield the figures of a row in the table of layers, each with its column.

    ``layers``: a single layer for the row of this layer, or all layers for the row of totals."""
    measured, macs = data["measured"], sum(layer["macs"] for layer in layers)
    cycles = sum(layer["cycles"] for layer in layers)
    unit = measured["unit"] if measured else "cycles"
    time = sum(layer["time"] for layer in layers) if measured else cycles
    code, constants = sum(layer["code"] for layer in layers), sum(layer["constants"] for layer in layers)
    yield Column(unit, ","), time
    yield Column("% of all", ".1f"), 100 * sum(layer["share"] for layer in layers)
    if data["totals"]["milliseconds"] is not None and not measured:
        yield Column("ms", ",.3f"), sum(layer["milliseconds"] for layer in layers)
    yield Column("MACs", ","), macs
    yield Column(f"{unit} per MAC", ".2f"), time / macs if macs else None
    if measured:
        yield Column("cycles, estimated", ","), cycles
    yield Column("code", ","), code
    yield Column("constants", ","), constants
    yield Column("flash", ","), code + constants
    yield Column("arena", ","), max((layer["arena"] for layer in layers), default=0)


def _result_type(layer: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the type of a layer's first output as text; empty if it has none."""
    results = [tensors[name] for name in layer["outputs"] if name in tensors]
    return f"{results[0]['dtype']} {format_shape_with_times_signs(results[0]['shape'])}" if results else ""


def _timeline(data: Mapping[str, Any]) -> Bars:
    """Make the chart of the layers' times, one after the other."""
    measured = data["measured"]
    total = measured["time"] if measured else data["totals"]["cycles"]
    start, bars = 0, list[Bar]()
    for layer in data["layers"]:
        time = layer["time"] if measured else layer["cycles"]
        operators = layer["op"].replace("+", " + ")
        bars.append(
            Bar(
                number=layer["step"],
                name=layer["name"],
                title=f"step {layer['step']}: {layer['layer']}, {operators}",
                start=f"{100 * start / max(total, 1):.3f}",
                length=f"{100 * time / max(total, 1):.3f}",
                value=f"{time:,}",
                note=f"{100 * layer['share']:.1f} %",
            )
        )
        start += time
    return Bars(tuple(bars), _timeline_marks(total), selects=True)


def _schedule_text(layer: Mapping[str, Any]) -> str:
    """Return the name of a layer's schedule and, if the layer uses the tensor unit, the unit's utilisation."""
    use = layer.get("tensor_unit")
    return f"{layer['rule']}, {100 * use['utilisation']:.1f} % used" if use else str(layer["rule"])


def _timeline_marks(total_time: int) -> tuple[tuple[str, str], ...]:
    """Return the marks of the timeline, as (position in percent of ``total_time``, round number as text)."""
    step = 1
    while total_time / step > 5:
        step *= 2 if str(step)[0] in "15" else 1
        step = step * 5 // 2 if str(step)[0] == "2" and total_time / step > 5 else step
    return tuple((f"{100 * at / max(total_time, 1):.3f}", f"{at:,}") for at in range(0, total_time + 1, step))


def _memory_bars(data: Mapping[str, Any]) -> Grid:
    """Make the bars of flash and RAM, from the sizes of the linked firmware."""
    cells = []
    for key, (name, kinds) in _SYMBOL_KINDS_OF_MEMORY.items():
        used, room = data["totals"][key], data["board"][key]
        of = f" of {room:,} bytes ({100 * used / room:.1f} %)" if room else " bytes"
        bar = MemoryBar(name, tuple(_memory_segments(data["firmware"], kinds, max(used, 1))))
        cells.append(grid_cell(bar, name, f"{used:,}{of}"))
    return Grid(tuple(cells))


def _memory_segments(
    parts: Mapping[str, Mapping[str, int]], symbol_kinds: Sequence[str], used_bytes: int
) -> Iterator[MemorySegment]:
    """Yield the segments of a memory bar: the parts of the firmware that have bytes in the memory.

    ``symbol_kinds``: kinds of symbols that the memory contains; ``used_bytes``: number of used bytes of the memory."""
    for colour, (part, meaning) in enumerate(PARTS.items()):
        size = sum(parts.get(part, {}).get(kind, 0) for kind in symbol_kinds)
        if size:
            yield MemorySegment(part, meaning, size, 100 * size / used_bytes, colour)


def _origin_rows(data: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield rows (name, value) that state where the figures come from: model, board, unit, options, compiler and others."""
    board, measured = data["board"], data["measured"]
    yield "model", data["source"]
    yield "board", f"{board['name']}: {board['title']}, {board['cpu']}"
    yield "unit", f"{measured['unit']}, {measured['meaning']}" if measured else f"cycles, {_ESTIMATED_UNIT_MEANING}"
    yield "options", ", ".join(f"{key} {value}" for key, value in data["options"].items())
    yield "memory plan", data["planner"]
    if data.get("compiler"):
        yield "compiler", data["compiler"]
    yield "microc", data["microc"]
    yield "fingerprint", data["fingerprint"]
