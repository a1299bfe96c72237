"""A report as one page of HTML that needs nothing else: pictures are SVG inside of it, nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc.base.immutable import frozen
from microc.codegen.render import Data, render_html
from microc.reports.drawings import (
    PICTURE_HEIGHT,
    PICTURE_WIDTH,
    Matrix,
    MemoryMap,
    Picture,
    matrix_of,
    memory_map,
    picture_of,
)
from microc.reports.evidence import accuracy_words
from microc.reports.firmware_size import PARTS
from microc.reports.layers import slowest
from microc.reports.text_tables import clock_words, shape_words, shown_ms, stack_words

_MOST_CLASSES = 32
_ESTIMATED = "as the cost model counts them for this core and its flash: nothing was run"
_KINDS = {"flash": ("Flash", ("text", "data")), "ram": ("RAM", ("data", "bss"))}


@frozen
class Fact:
    """A number in words at the head of the page."""

    name: str
    value: str
    note: str


@frozen
class Row:
    """A layer: in the timeline a bar from ``start`` on (both in percent), in the table its numbers as data and as text."""

    step: int
    layer: str
    full: str
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
class Segment:
    """A part of flash or RAM; ``percent`` of what is used. ``colour``: number of its colour."""

    part: str
    meaning: str
    size: str
    percent: str
    colour: int


@frozen
class Bar:
    """Flash or RAM: what is used, of how much, and by what."""

    name: str
    used: str
    segments: tuple[Segment, ...]


@frozen
class Advice:
    """What to do, and the command for it, or none."""

    text: str
    command: str


@frozen
class ReportContext:
    """What ``report/report.html.j2`` shows. ``first``: the step that is shown in full at first; ``data`` and ``before``: the
    reports themselves, for the page's script."""

    title: str
    board: str
    unit: str
    unit_meaning: str
    facts: tuple[Fact, ...]
    advice: tuple[Advice, ...]
    memory: MemoryMap
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    totals: tuple[str, ...]
    marks: tuple[tuple[str, str], ...]
    picture: Picture
    box: tuple[int, int]
    bars: tuple[Bar, ...]
    accuracy: tuple[str, ...]
    matrix: Matrix | None
    first: int
    data: Data
    before: Data | None
    origin: tuple[tuple[str, str], ...]


def to_html(data: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """The page of a report's data; ``before``: those of another, which it is compared with. Equal data give equal pages."""
    layers, measured, accuracy = data["layers"], data["measured"], data["accuracy"]
    arena = {"kernels": layers, "memory": data["memory"], "arena_size": data["totals"]["arena"]}
    confusion = accuracy["confusion"] if accuracy else None
    total = measured["time"] if measured else data["totals"]["cycles"]
    context = ReportContext(
        title=data["model"],
        board=data["board"]["title"],
        unit=measured["unit"] if measured else "cycles",
        unit_meaning=measured["meaning"] if measured else _ESTIMATED,
        facts=tuple(_facts(data)),
        advice=tuple(Advice(each["text"], each["command"]) for each in data["advice"]),
        memory=memory_map(arena, [layer["name"] for layer in layers]),
        rows=tuple(_rows(data, total)),
        columns=tuple(name for name, _ in _columns(data, layers)),
        totals=tuple(text for _, (_, text) in _columns(data, layers)),
        marks=_marks(total),
        picture=picture_of(data),
        box=(PICTURE_WIDTH, PICTURE_HEIGHT),
        bars=tuple(_bars(data)),
        accuracy=tuple(accuracy_words(accuracy, data["fingerprint"])) if accuracy else (),
        matrix=matrix_of(confusion) if confusion and len(confusion) <= _MOST_CLASSES else None,
        first=slowest(data, 1)[0]["step"] if layers else -1,
        data=Data(data),
        before=Data(before) if before is not None else None,
        origin=tuple(_origin(data)),
    )
    return render_html("report/report.html.j2", context)


def _facts(data: Mapping[str, Any]) -> Iterator[Fact]:
    measured, totals, board = data["measured"], data["totals"], data["board"]
    ms = totals["milliseconds"]
    about = f"{totals['cycles']:,} cycles" + (f" at {clock_words(board['clock_hz'])}" if ms is not None else "")
    if measured:
        seconds = measured["seconds"]
        note = (
            f"{measured['unit']}, {shown_ms(1000 * seconds)}"
            if seconds is not None
            else f"{measured['unit']}, emulated"
        )
        yield Fact("One inference", f"{measured['time']:,}", note)
    if ms is not None:
        yield Fact("Estimated" if measured else "One inference", shown_ms(ms), about if measured else f"about {about}")
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
            yield Fact(name, f"{totals[key]:,}", f"bytes{_of(totals[key], board[key])}{estimated}")
    yield Fact("Arena", f"{totals['arena']:,}", f"bytes, lower bound {totals['arena_lower_bound']:,}")
    stack, _, note = stack_words(data).partition(" ")
    yield Fact("Peak stack", stack, note)
    kept = sum(each["bytes"] for each in data["state"])
    yield Fact(
        "Holds state", f"{kept:,} bytes" if kept else "no", "from run to run" if kept else "every run stands alone"
    )
    if data["accuracy"] and data["accuracy"]["total"]:
        found = data["accuracy"]
        share = f"{100 * found['correct'] / found['total']:.2f} %"
        yield Fact("Accuracy", share, f"{found['correct']:,} of {found['total']:,}")


def _of(size: int, room: int) -> str:
    return f", {100 * size / room:.1f} % of {room:,}" if room else ""


def _columns(data: Mapping[str, Any], of: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[float, str]]]:
    """The numbers of a layer, or of all, by the names of their columns: to sort by, and to read."""
    measured, macs = data["measured"], sum(layer["macs"] for layer in of)
    cycles = sum(layer["cycles"] for layer in of)
    if measured:
        yield measured["unit"], _number(sum(layer["time"] for layer in of))
    else:
        yield "cycles", _number(cycles)
    yield "% of all", (share := sum(layer["share"] for layer in of), f"{100 * share:.1f}")
    if data["totals"]["milliseconds"] is not None and not measured:
        ms = sum(layer["milliseconds"] for layer in of)
        yield "ms", (ms, f"{ms:,.3f}")
    yield "MACs", _number(macs)
    time = sum(layer["time"] for layer in of) if measured else cycles
    unit = measured["unit"] if measured else "cycles"
    yield f"{unit} per MAC", (time / macs, f"{time / macs:.2f}") if macs else (-1, "")
    if measured:
        yield "cycles, estimated", _number(cycles)
    code, constants = sum(layer["code"] for layer in of), sum(layer["constants"] for layer in of)
    yield from (("code", _number(code)), ("constants", _number(constants)), ("flash", _number(code + constants)))
    yield "arena", _number(max((layer["arena"] for layer in of), default=0))


def _number(number: int) -> tuple[float, str]:
    return number, f"{number:,}"


def _rows(data: Mapping[str, Any], total: int) -> Iterator[Row]:
    start, tensors = 0, {tensor["name"]: tensor for tensor in data["tensors"]}
    for layer in data["layers"]:
        time = layer["time"] if data["measured"] else layer["cycles"]
        made = [tensors[name] for name in layer["outputs"] if name in tensors]
        yield Row(
            step=layer["step"],
            layer=layer["name"],
            full=layer["layer"],
            op=layer["op"].replace("+", " + "),
            result=f"{made[0]['dtype']} {shape_words(made[0]['shape'])}" if made else "",
            rule=_rule(layer),
            schedule=layer["schedule"],
            start=f"{100 * start / max(total, 1):.3f}",
            length=f"{100 * time / max(total, 1):.3f}",
            time=f"{time:,}",
            share=f"{100 * layer['share']:.1f}",
            cells=tuple(cell for _, cell in _columns(data, [layer])),
        )
        start += time


def _rule(layer: Mapping[str, Any]) -> str:
    """The schedule's name, and how much of a tensor unit it uses."""
    use = layer.get("tensor_unit")
    return f"{layer['rule']}, {100 * use['utilisation']:.1f} % used" if use else str(layer["rule"])


def _marks(total: int) -> tuple[tuple[str, str], ...]:
    """Round numbers below the timeline, with their places in percent."""
    step = 1
    while total / step > 5:
        step *= 2 if str(step)[0] in "15" else 1
        step = step * 5 // 2 if str(step)[0] == "2" and total / step > 5 else step
    return tuple((f"{100 * at / max(total, 1):.3f}", f"{at:,}") for at in range(0, total + 1, step))


def _bars(data: Mapping[str, Any]) -> Iterator[Bar]:
    """What the linked firmware is made of, if there is one."""
    parts = data["firmware"] or {}
    for key, (name, kinds) in _KINDS.items() if parts else ():
        used, room = data["totals"][key], data["board"][key]
        of = f" of {room:,} bytes ({100 * used / room:.1f} %)" if room else " bytes"
        yield Bar(name, f"{used:,}{of}", tuple(_segments(parts, kinds, max(used, 1))))


def _segments(parts: Mapping[str, Mapping[str, int]], kinds: Sequence[str], used: int) -> Iterator[Segment]:
    for colour, (part, meaning) in enumerate(PARTS.items()):
        taken = sum(parts.get(part, {}).get(kind, 0) for kind in kinds)
        if taken:
            yield Segment(part, meaning, f"{taken:,}", f"{100 * taken / used:.2f}", colour)


def _origin(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where the numbers come from."""
    board, measured = data["board"], data["measured"]
    yield "model", data["source"]
    yield "board", f"{board['name']}: {board['title']}, {board['cpu']}"
    yield "unit", f"{measured['unit']}, {measured['meaning']}" if measured else f"cycles, {_ESTIMATED}"
    yield "options", ", ".join(f"{key} {value}" for key, value in data["options"].items())
    yield "memory plan", data["planner"]
    if data.get("compiler"):
        yield "compiler", data["compiler"]
    yield "microc", data["microc"]
    yield "fingerprint", data["fingerprint"]
