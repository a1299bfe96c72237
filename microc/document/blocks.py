# SPDX-License-Identifier: Apache-2.0
"""Blocks of a document: facts, tables, prose, code, commands and advice.

A report or a command builds a document once. Each form of output is a renderer: text for a terminal
(:mod:`microc.document.text`) and HTML for a notebook (:mod:`microc.document.notebook`). Widths, alignment, thousands
separators and shortened names are theirs."""

from __future__ import annotations

from collections.abc import Iterable

from microc.base.immutable import frozen


@frozen
class Term:
    """Text of a table cell with what a page knows besides.

    ``detail``: a tooltip, such as the full name; by default the text. ``order``: the number by which the cell is sorted."""

    text: str
    detail: str = ""
    order: float | None = None


Cell = str | int | float | Term | None
"""Content of a table cell or the value of a fact; None if it is unknown."""


_BAR_WIDTH = 24
"""Length of a bar of 1 in characters; even the shortest bar has one."""


@frozen
class Column:
    """A column of a table.

    ``format_spec``: format of its numbers, as in ``.1f``; None for a column of text, which is flush left and may be cut or
    wrapped. Numbers are flush right and stay whole. ``is_layer``: True if the cells are names of layers, which a terminal
    shortens. ``is_bar``: True if the cells are numbers from 0 to 1 that are shown as bars."""

    heading: str
    format_spec: str | None = None
    is_layer: bool = False
    is_bar: bool = False

    @property
    def is_text(self) -> bool:
        """True if the column contains text, False if it contains numbers."""
        return self.format_spec is None

    def format_cell(self, cell: Cell) -> str:
        """Format a cell as text; empty if it is unknown (None). Text in a column of numbers stays as it is."""
        if cell is None:
            return ""
        if isinstance(cell, Term):
            return cell.text
        if self.is_bar and not isinstance(cell, str):
            return "#" * max(1, round(_BAR_WIDTH * cell))
        return str(cell) if isinstance(cell, str) or self.format_spec is None else format(cell, self.format_spec)

    def detail_of(self, cell: Cell) -> str:
        """Return the tooltip of a cell of text: its detail, or the text itself, which a narrow column may wrap."""
        return cell.detail or cell.text if isinstance(cell, Term) else self.format_cell(cell)

    def order_of(self, cell: Cell) -> float | None:
        """Return the number by which a cell is sorted; -1 if the cell is unknown (None), None if its text is sorted."""
        if cell is None:
            return -1
        return cell.order if isinstance(cell, Term) else None if isinstance(cell, str) else cell


def texts(*headings: str) -> tuple[Column, ...]:
    """Declare columns of text."""
    return tuple(map(Column, headings))


def layer_names(*headings: str) -> tuple[Column, ...]:
    """Declare columns with names of layers."""
    return tuple(Column(heading, is_layer=True) for heading in headings)


def numbers(*headings: str, spec: str = ",") -> tuple[Column, ...]:
    """Declare columns of numbers in the format ``spec``; by default integers with thousands separators."""
    return tuple(Column(heading, spec) for heading in headings)


def bars(*headings: str) -> tuple[Column, ...]:
    """Declare columns of bars, whose cells are numbers from 0 to 1."""
    return tuple(Column(heading, is_bar=True) for heading in headings)


@frozen
class Table:
    """A table with a cell for each column in every row.

    ``heading`` and ``note`` are lines above and below it; ``totals``: a last row, empty if there is none."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    heading: str = ""
    note: str = ""
    totals: tuple[Cell, ...] = ()

    @property
    def all_rows(self) -> tuple[tuple[Cell, ...], ...]:
        """Rows of the table, with the row of totals at the end."""
        return (*self.rows, self.totals) if self.totals else self.rows


def table(
    columns: Iterable[Column],
    rows: Iterable[Iterable[Cell]],
    heading: str = "",
    note: str = "",
    totals: Iterable[Cell] = (),
) -> Table:
    """Make a table of any iterables of columns and rows."""
    return Table(tuple(columns), tuple(map(tuple, rows)), heading, note, tuple(totals))


Fact = tuple[str, str | int | None]
"""A fact: its name, and its value. Integers get thousands separators."""


@frozen
class Facts:
    """Names and values, one pair a line; nothing is shown if there are none. ``heading`` is a line above them."""

    rows: tuple[Fact, ...]
    heading: str = ""


def facts(rows: Iterable[Fact], heading: str = "") -> Facts:
    """Make facts of any iterable of pairs."""
    return Facts(tuple(rows), heading)


@frozen
class Prose:
    """Lines of prose, which may be wrapped between words. An indent is kept; a line that begins with a dash is an item."""

    lines: tuple[str, ...]


def prose(*lines: str) -> Prose:
    """Make prose of lines, or of texts of several lines; nothing is shown if there are none."""
    return Prose(tuple(part for line in lines for part in line.split("\n")))


@frozen
class Code:
    """Text whose lines are never wrapped or cut: code, or a page of Markdown. ``heading`` is a line above it."""

    content: str
    heading: str = ""


@frozen
class Shell:
    """Shell commands to copy; nothing is shown if there are none. ``heading`` and ``note`` are lines above and below them.

    ``is_chain``: True if each command runs only if the one before succeeded, which makes them a single line."""

    commands: tuple[str, ...]
    heading: str = ""
    note: str = ""
    is_chain: bool = False


@frozen
class Step:
    """A piece of advice; ``command``: the shell command that carries it out, empty if there is none."""

    advice: str
    command: str = ""


@frozen
class Steps:
    """A list of advice with commands to copy; nothing is shown if there is none. ``heading`` is a line above it."""

    items: tuple[Step, ...]
    heading: str = ""


Block = Table | Facts | Prose | Code | Shell | Steps


@frozen
class Document:
    """Blocks in the order in which they are shown. ``title``: caption in a notebook; a terminal does not show it."""

    blocks: tuple[Block, ...]
    title: str = ""

    def __add__(self, other: Document) -> Document:
        """Join the blocks of two documents under the title of the first."""
        return Document((*self.blocks, *other.blocks), self.title)


def document(*blocks: Block | None, title: str = "") -> Document:
    """Make a document of blocks; None stands for a block that is left out."""
    return Document(tuple(block for block in blocks if block is not None), title)
