"""A profile as one page of HTML that needs nothing else: pictures are SVG inside of it, nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from microc.codegen.render import render_html
from microc.device.toolchain import find_compiler
from microc.driver.compile.fit import capacity
from microc.driver.measure.profile import KernelTime, Profile, short_layer
from microc.driver.report.graph_layout import layout
from microc.driver.report.memory_map import MemoryMap, memory_map
from microc.driver.report.owners import PARTS
from microc.driver.report.size import SizeReport
from microc.errors import ToolError

BOX_WIDTH, BOX_HEIGHT = 220, 62
_LETTERS = 29
"""Letters of a layer's name that a box holds."""
_HOTTEST = 5
"""Classes of heat: a layer that takes the largest share has the highest."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number in words at the head of the page."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Row:
    """A layer: in the timeline a bar from ``start`` on (both in percent), in the table its numbers as data and as text."""

    step: int
    layer: str
    full: str
    op: str
    rule: str
    schedule: str
    start: str
    length: str
    cells: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class GraphBox:
    """A box of the network's graph: up to three lines of text; ``heat`` from 0 to 5 by the share of the time, -1: no layer."""

    x: float
    y: float
    lines: tuple[str, ...]
    title: str
    heat: int


@dataclass(frozen=True, slots=True)
class Graph:
    """The network's picture."""

    width: float
    height: float
    boxes: tuple[GraphBox, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of flash or RAM; ``percent`` of what is used. ``colour``: number of its colour."""

    part: str
    meaning: str
    size: str
    percent: str
    colour: int


@dataclass(frozen=True, slots=True)
class Bar:
    """Flash or RAM: what is used, of how much, and by what."""

    name: str
    used: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class ReportContext:
    """What ``report/profile.html.j2`` shows."""

    title: str
    board: str
    unit: str
    unit_meaning: str
    facts: tuple[Fact, ...]
    memory: MemoryMap
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    totals: tuple[str, ...]
    marks: tuple[tuple[str, str], ...]
    graph: Graph
    box: tuple[int, int]
    bars: tuple[Bar, ...]
    origin: tuple[tuple[str, str], ...]


def to_html(profile: Profile) -> str:
    """The page. Equal profiles give equal pages."""
    manifest, board = profile.project.manifest, profile.project.board
    names = [short_layer(k.layer) for k in profile.kernels]
    context = ReportContext(
        title=manifest["model"],
        board=board.title,
        unit=profile.unit,
        unit_meaning=profile.clock.meaning,
        facts=tuple(_facts(profile)),
        memory=memory_map(manifest, names),
        rows=tuple(_rows(profile)),
        columns=tuple(_columns(profile)),
        totals=tuple(text for _, text in _cells(profile, None)),
        marks=_marks(profile.time),
        graph=_graph(profile),
        box=(BOX_WIDTH, BOX_HEIGHT),
        bars=tuple(_bars(profile)),
        origin=tuple(_origin(profile)),
    )
    return render_html("report/profile.html.j2", context)


def _facts(profile: Profile) -> Iterator[Fact]:
    seconds = profile.clock.seconds(profile.time)
    note = f"{profile.unit}, {1000 * seconds:,.3f} ms" if seconds is not None else f"{profile.unit}, emulated"
    yield Fact("One inference", f"{profile.time:,}", note)
    each = f"{profile.time / profile.macs:.2f} {profile.unit} each" if profile.macs else ""
    yield Fact("Multiply-accumulates", f"{profile.macs:,}", each)
    if profile.size:
        board = profile.project.board
        yield Fact("Flash", f"{profile.size.flash:,} bytes", _of(profile.size.flash, capacity(board, "flash")))
        yield Fact("RAM", f"{profile.size.ram:,} bytes", _of(profile.size.ram, capacity(board, "ram")))
    manifest = profile.project.manifest
    bound = f"lower bound {manifest['arena_lower_bound']:,}"
    yield Fact("Arena", f"{manifest['arena_size']:,} bytes", bound)


def _of(size: int, room: int) -> str:
    return f"{100 * size / room:.1f} % of {room:,}" if room else ""


def _columns(profile: Profile) -> Iterator[str]:
    yield from (profile.unit, "% of all", "MACs", f"{profile.unit} per MAC")
    if profile.size:
        yield from ("code", "constants", "flash")
    yield from ("arena", "cycles, estimated")


def _cells(profile: Profile, kernel: KernelTime | None) -> Iterator[tuple[float, str]]:
    """Numbers of a layer, or of all, in the order of :func:`_columns`: to sort by, and to read."""
    of = [kernel] if kernel else list(profile.kernels)
    time, macs = sum(k.time for k in of), sum(k.macs for k in of)
    yield time, f"{time:,}"
    share = sum(k.share for k in of)
    yield share, f"{100 * share:.1f}"
    yield macs, f"{macs:,}"
    each = time / macs if macs else None
    yield each if each is not None else -1, f"{each:.2f}" if each is not None else ""
    if profile.size:
        code, constants = sum(k.code or 0 for k in of), sum(k.constants or 0 for k in of)
        yield from ((n, f"{n:,}") for n in (code, constants, code + constants))
    arena = max((k.arena for k in of), default=0)
    yield arena, f"{arena:,}"
    cycles = sum(k.estimated_cycles for k in of)
    yield cycles, f"{cycles:,}"


def _rows(profile: Profile) -> Iterator[Row]:
    start, total = 0, max(profile.time, 1)
    for k in profile.kernels:
        yield Row(
            step=k.kernel,
            layer=short_layer(k.layer),
            full=k.layer,
            op=k.op,
            rule=k.rule,
            schedule=k.schedule,
            start=f"{100 * start / total:.3f}",
            length=f"{100 * k.time / total:.3f}",
            cells=tuple(_cells(profile, k)),
        )
        start += k.time


def _marks(total: int) -> tuple[tuple[str, str], ...]:
    """Round numbers below the timeline, with their places in percent."""
    step = 1
    while total / step > 5:
        step *= 2 if str(step)[0] in "15" else 1
        step = step * 5 // 2 if str(step)[0] == "2" and total / step > 5 else step
    return tuple((f"{100 * at / max(total, 1):.3f}", f"{at:,}") for at in range(0, total + 1, step))


def _graph(profile: Profile) -> Graph:
    """Inputs, state, layers and outputs, with an edge for every tensor that goes from one to another."""
    manifest = profile.project.manifest
    kernels, tensors = manifest["kernels"], {t["name"]: t for t in manifest["tensors"]}
    state = [t["name"] for t in manifest["tensors"] if t["kind"] == "state"]
    sources = [n for n in (*manifest["inputs"], *state) if any(n in k["inputs"] for k in kernels)]
    outputs, first, last = manifest["outputs"], len(sources), len(sources) + len(kernels)
    makers = {name: _makers(tensor, sources) for name, tensor in tensors.items()}
    reads = [(name, k) for k, kernel in enumerate(kernels) for name in kernel["inputs"]]
    reads += [(name, len(kernels) + k) for k, name in enumerate(outputs)]
    edges = [(u, first + k) for name, k in reads for u in makers[name] if u < first + k]
    found = layout(last + len(outputs), list(dict.fromkeys(edges)), BOX_WIDTH, BOX_HEIGHT)
    hottest = max((k.share for k in profile.kernels), default=0) or 1
    texts = [
        *(_end_lines(tensors[name], tensors[name]["kind"]) for name in sources),
        *(_layer_lines(profile, k, tensors) for k in profile.kernels),
        *(_end_lines(tensors[name], "output") for name in outputs),
    ]
    heats = [-1] * first + [round(_HOTTEST * k.share / hottest) for k in profile.kernels] + [-1] * len(outputs)
    boxes = (GraphBox(*corner, *text, heat) for corner, text, heat in zip(found.corners, texts, heats, strict=True))
    return Graph(found.width, found.height, tuple(boxes), found.paths)


def _makers(tensor: Mapping[str, Any], sources: Sequence[str]) -> list[int]:
    """The numbers of the boxes that a tensor comes from: the steps that write it, or what is there before the first."""
    if tensor["name"] in sources:
        return [sources.index(tensor["name"])]
    return [len(sources) + step for step in tensor["written_by"]]


def _end_lines(tensor: Mapping[str, Any], kind: str) -> tuple[tuple[str, ...], str]:
    shape = _shape(tensor)
    return (kind, _cut(tensor["name"]), shape), f"{kind} {tensor['name']}: {shape}"


def _layer_lines(
    profile: Profile, kernel: KernelTime, tensors: Mapping[str, Mapping[str, Any]]
) -> tuple[tuple[str, ...], str]:
    made = profile.project.manifest["kernels"][kernel.kernel]["outputs"]
    shape = _shape(tensors[made[0]]) if made else ""
    share = f"{100 * kernel.share:.1f} %"
    lines = (_cut(short_layer(kernel.layer)), _cut(kernel.op), f"{shape} \N{MIDDLE DOT} {share}" if shape else share)
    return lines, f"step {kernel.kernel}: {kernel.layer}, {kernel.op}, {shape}, {kernel.time:,} {profile.unit}, {share}"


def _shape(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['dtype']} {'x'.join(map(str, tensor['shape'])) or 'scalar'}"


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _bars(profile: Profile) -> Iterator[Bar]:
    if profile.size is None:
        return
    board = profile.project.board
    for name, used, kinds, room in (
        ("Flash", profile.size.flash, ("text", "data"), capacity(board, "flash")),
        ("RAM", profile.size.ram, ("data", "bss"), capacity(board, "ram")),
    ):
        of = f" of {room:,} bytes ({100 * used / room:.1f} %)" if room else " bytes"
        yield Bar(name, f"{used:,}{of}", tuple(_segments(profile.size, kinds, max(used, 1))))


def _segments(size: SizeReport, kinds: Sequence[str], used: int) -> Iterator[Segment]:
    parts = size.parts()
    for colour, (part, meaning) in enumerate(PARTS.items()):
        taken = sum(parts.get(part, {}).get(kind, 0) for kind in kinds)
        if taken:
            yield Segment(part, meaning, f"{taken:,}", f"{100 * taken / used:.2f}", colour)


def _origin(profile: Profile) -> Iterator[tuple[str, str]]:
    """Where the numbers come from."""
    manifest, board = profile.project.manifest, profile.project.board
    yield "model", manifest["source"]
    yield "board", f"{board.name}: {board.title}, {board.target.cpu}"
    yield "unit", f"{profile.unit}, {profile.clock.meaning}"
    yield "options", ", ".join(f"{key} {value}" for key, value in manifest["options"].items())
    yield "memory plan", manifest["planner"]
    try:
        yield "compiler", find_compiler(board).version
    except ToolError:
        yield "compiler", "not on this computer"
    yield "microc", manifest["microc"]
    yield "fingerprint", manifest["fingerprint"]
