# SPDX-License-Identifier: Apache-2.0
"""HTML pages of documents: each is self-contained, loads no other files, and shows its pictures as inline SVG.

A page has figures at its head, sections of blocks, and the origin of its figures at its foot. Its blocks are those of
:mod:`microc.document.blocks`, the pictures of :mod:`microc.reports.pages.drawings`, and those of this file, which terminals do
not show. ``templates/report/page.html.j2`` has a macro for each."""

from __future__ import annotations

from collections.abc import Iterable

from microc.base.immutable import frozen
from microc.codegen.render import Data, render_html
from microc.document.blocks import Fact, Prose, Steps, Table
from microc.reports.pages.drawings import ConfusionMatrixLayout, MemoryMap, NetworkDrawing, ScatterPlot


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
