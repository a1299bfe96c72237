"""Render a report as one self-contained HTML page: pictures are inline SVG, and the page loads no other files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc.base.immutable import frozen
from microc.codegen.render import Data, render_html
from microc.reports.drawings import (
    PICTURE_HEIGHT,
    PICTURE_WIDTH,
    ConfusionMatrixLayout,
    MemoryMap,
    NetworkDrawing,
    lay_out_confusion_matrix,
    lay_out_memory_map,
    lay_out_network_graph,
)
from microc.reports.evidence import accuracy_sentences
from microc.reports.firmware_size import PARTS
from microc.reports.layers import slowest_layers
from microc.reports.text_tables import (
    format_clock_rate,
    format_milliseconds,
    format_peak_stack,
    format_shape_with_times_signs,
)

_MAX_DRAWN_CLASSES = 32
"""Largest number of classes for which a confusion matrix is drawn."""
_ESTIMATED_UNIT_MEANING = "as the cost model counts them for this core and its flash: nothing was run"
_SYMBOL_KINDS_OF_MEMORY = {"flash": ("Flash", ("text", "data")), "ram": ("RAM", ("data", "bss"))}
"""Title of each memory bar, and the kinds of symbols that the memory contains."""


@frozen
class Fact:
    """A figure at the head of the page: its name, its value, and a note in small print."""

    name: str
    value: str
    note: str


@frozen
class LayerRow:
    """A layer on the page: its bar in the timeline, and its row in the table of layers.

    ``layer``: short name; ``full_name``: full location in the model; ``result``: type of its first output; ``rule``:
    name of its schedule; ``start`` and ``length``: start and length of its bar, in percent of the total time;
    ``cells``: a pair for each column, the number to sort by and the text."""

    step: int
    layer: str
    full_name: str
    op: str
    result: str
    rule: str
    schedule: str
    start: str
    length: str
    time: str
    share: str
    cells: tuple[tuple[float, str], ...]


@frozen
class MemorySegment:
    """A segment of a memory bar, for one part of the firmware.

    ``meaning``: description of the part; ``size``: its bytes as text; ``percent``: its share of the used bytes;
    ``colour``: index of its colour."""

    part: str
    meaning: str
    size: str
    percent: str
    colour: int


@frozen
class MemoryBar:
    """A bar that shows the use of a memory, flash or RAM; ``used``: used bytes and capacity as text."""

    name: str
    used: str
    segments: tuple[MemorySegment, ...]


@frozen
class PrintedAdvice:
    """A piece of advice on the page; ``command``: the command that carries it out, empty if there is none."""

    text: str
    command: str


@frozen
class ReportContext:
    """Values that the template ``report/report.html.j2`` of the page uses.

    ``first``: number of the step that is selected when the page opens; ``data``: the report's data, for the page's script;
    ``before``: the data of the report to compare with, None if there is none; ``box``: width and height of a box in the
    network graph; ``origin``: rows that state where the figures come from."""

    title: str
    board: str
    unit: str
    unit_meaning: str
    facts: tuple[Fact, ...]
    advice: tuple[PrintedAdvice, ...]
    memory: MemoryMap
    rows: tuple[LayerRow, ...]
    columns: tuple[str, ...]
    totals: tuple[str, ...]
    marks: tuple[tuple[str, str], ...]
    picture: NetworkDrawing
    box: tuple[int, int]
    bars: tuple[MemoryBar, ...]
    accuracy: tuple[str, ...]
    matrix: ConfusionMatrixLayout | None
    first: int
    data: Data
    before: Data | None
    origin: tuple[tuple[str, str], ...]


def to_html(data: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """Render a report as an HTML page. Equal data give equal pages.

    ``data``: data of the report; ``before``: data of an earlier report to compare with."""
    layers, measured, accuracy = data["layers"], data["measured"], data["accuracy"]
    arena = {"kernels": layers, "memory": data["memory"], "arena_size": data["totals"]["arena"]}
    confusion = accuracy["confusion"] if accuracy else None
    total = measured["time"] if measured else data["totals"]["cycles"]
    context = ReportContext(
        title=data["model"],
        board=data["board"]["title"],
        unit=measured["unit"] if measured else "cycles",
        unit_meaning=measured["meaning"] if measured else _ESTIMATED_UNIT_MEANING,
        facts=tuple(_headline_facts(data)),
        advice=tuple(PrintedAdvice(item["text"], item["command"]) for item in data["advice"]),
        memory=lay_out_memory_map(arena, [layer["name"] for layer in layers]),
        rows=tuple(_layer_rows(data, total)),
        columns=tuple(name for name, _ in _layer_columns(data, layers)),
        totals=tuple(text for _, (_, text) in _layer_columns(data, layers)),
        marks=_timeline_marks(total),
        picture=lay_out_network_graph(data),
        box=(PICTURE_WIDTH, PICTURE_HEIGHT),
        bars=tuple(_memory_bars(data)),
        accuracy=tuple(accuracy_sentences(accuracy, data["fingerprint"])) if accuracy else (),
        matrix=lay_out_confusion_matrix(confusion) if confusion and len(confusion) <= _MAX_DRAWN_CLASSES else None,
        first=slowest_layers(data, 1)[0]["step"] if layers else -1,
        data=Data(data),
        before=Data(before) if before is not None else None,
        origin=tuple(_origin_rows(data)),
    )
    return render_html("report/report.html.j2", context)


def _headline_facts(data: Mapping[str, Any]) -> Iterator[Fact]:
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
        yield Fact("One inference", f"{measured['time']:,}", note)
    if ms is not None:
        yield Fact(
            "Estimated" if measured else "One inference",
            format_milliseconds(ms),
            about if measured else f"about {about}",
        )
    elif not measured:
        yield Fact("One inference", f"{totals['cycles']:,}", "cycles, about")
    time, unit = (measured["time"], measured["unit"]) if measured else (totals["cycles"], "cycles")
    yield Fact(
        "MACs",
        f"{totals['macs']:,}",
        f"{time / totals['macs']:.2f} {unit} each" if totals["macs"] else "",
    )
    for name, key in (("Flash", "flash"), ("RAM", "ram")):
        if totals[key] is not None:
            estimated = "" if data["firmware"] or key == "ram" else ", estimated"
            yield Fact(name, f"{totals[key]:,}", f"bytes{_capacity_share_text(totals[key], board[key])}{estimated}")
    yield Fact("Arena", f"{totals['arena']:,}", f"bytes, lower bound {totals['arena_lower_bound']:,}")
    stack, _, note = format_peak_stack(data).partition(" ")
    yield Fact("Peak stack", stack, note)
    state_bytes = sum(tensor["bytes"] for tensor in data["state"])
    yield Fact(
        "Holds state",
        f"{state_bytes:,} bytes" if state_bytes else "no",
        "from run to run" if state_bytes else "every run stands alone",
    )
    if data["accuracy"] and data["accuracy"]["total"]:
        accuracy = data["accuracy"]
        share = f"{100 * accuracy['correct'] / accuracy['total']:.2f} %"
        yield Fact("Accuracy", share, f"{accuracy['correct']:,} of {accuracy['total']:,}")


def _capacity_share_text(used_bytes: int, capacity: int) -> str:
    """Format the percentage of ``capacity`` that ``used_bytes`` are; empty if the capacity is unknown (0)."""
    return f", {100 * used_bytes / capacity:.1f} % of {capacity:,}" if capacity else ""


def _layer_columns(
    data: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, tuple[float, str]]]:
    """Yield the cells of a row in the table of layers, as (heading of the column, (number to sort by, text)).

    ``layers``: a single layer for the row of this layer, or all layers for the row of totals."""
    measured, macs = data["measured"], sum(layer["macs"] for layer in layers)
    cycles = sum(layer["cycles"] for layer in layers)
    if measured:
        yield measured["unit"], _number_cell(sum(layer["time"] for layer in layers))
    else:
        yield "cycles", _number_cell(cycles)
    yield "% of all", (share := sum(layer["share"] for layer in layers), f"{100 * share:.1f}")
    if data["totals"]["milliseconds"] is not None and not measured:
        ms = sum(layer["milliseconds"] for layer in layers)
        yield "ms", (ms, f"{ms:,.3f}")
    yield "MACs", _number_cell(macs)
    time = sum(layer["time"] for layer in layers) if measured else cycles
    unit = measured["unit"] if measured else "cycles"
    yield f"{unit} per MAC", (time / macs, f"{time / macs:.2f}") if macs else (-1, "")
    if measured:
        yield "cycles, estimated", _number_cell(cycles)
    code, constants = sum(layer["code"] for layer in layers), sum(layer["constants"] for layer in layers)
    yield from (
        ("code", _number_cell(code)),
        ("constants", _number_cell(constants)),
        ("flash", _number_cell(code + constants)),
    )
    yield "arena", _number_cell(max((layer["arena"] for layer in layers), default=0))


def _number_cell(number: int) -> tuple[float, str]:
    """Return a cell of the table of layers: the number to sort by, and the number as text."""
    return number, f"{number:,}"


def _layer_rows(data: Mapping[str, Any], total_time: int) -> Iterator[LayerRow]:
    """Yield the timeline bars and table rows of all layers; ``total_time``: time of all layers, which the bars refer to."""
    start, tensors = 0, {tensor["name"]: tensor for tensor in data["tensors"]}
    for layer in data["layers"]:
        time = layer["time"] if data["measured"] else layer["cycles"]
        results = [tensors[name] for name in layer["outputs"] if name in tensors]
        yield LayerRow(
            step=layer["step"],
            layer=layer["name"],
            full_name=layer["layer"],
            op=layer["op"].replace("+", " + "),
            result=f"{results[0]['dtype']} {format_shape_with_times_signs(results[0]['shape'])}" if results else "",
            rule=_schedule_text(layer),
            schedule=layer["schedule"],
            start=f"{100 * start / max(total_time, 1):.3f}",
            length=f"{100 * time / max(total_time, 1):.3f}",
            time=f"{time:,}",
            share=f"{100 * layer['share']:.1f}",
            cells=tuple(cell for _, cell in _layer_columns(data, [layer])),
        )
        start += time


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


def _memory_bars(data: Mapping[str, Any]) -> Iterator[MemoryBar]:
    """Yield the bars of flash and RAM, if the report contains sizes of a linked firmware."""
    parts = data["firmware"] or {}
    for key, (name, kinds) in _SYMBOL_KINDS_OF_MEMORY.items() if parts else ():
        used, room = data["totals"][key], data["board"][key]
        of = f" of {room:,} bytes ({100 * used / room:.1f} %)" if room else " bytes"
        yield MemoryBar(name, f"{used:,}{of}", tuple(_memory_segments(parts, kinds, max(used, 1))))


def _memory_segments(
    parts: Mapping[str, Mapping[str, int]], symbol_kinds: Sequence[str], used_bytes: int
) -> Iterator[MemorySegment]:
    """Yield the segments of a memory bar: the parts of the firmware that have bytes in the memory.

    ``symbol_kinds``: kinds of symbols that the memory contains; ``used_bytes``: number of used bytes of the memory."""
    for colour, (part, meaning) in enumerate(PARTS.items()):
        size = sum(parts.get(part, {}).get(kind, 0) for kind in symbol_kinds)
        if size:
            yield MemorySegment(part, meaning, f"{size:,}", f"{100 * size / used_bytes:.2f}", colour)


def _origin_rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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
