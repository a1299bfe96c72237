# SPDX-License-Identifier: Apache-2.0
"""Blocks of a document: facts, tables, prose, code, commands and advice; and figures as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from microc.base.immutable import frozen

# ---- Blocks of a document: facts, tables, prose, code, commands and advice.
#
# A report or a command builds a document once. Each form of output is a renderer: text for a terminal
# (:mod:`microc.document.renderers`) and HTML for a notebook (:mod:`microc.document.renderers`). Widths,
# alignment, thousands separators and shortened names are theirs.


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


# ---- Figures of reports as text: times, memory, shapes, formulas and changes, for pages, terminals and notebooks.


MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def cycles_to_milliseconds(cycles: float, clock_hz: int | None) -> float | None:
    """Convert cycles to milliseconds at a board's clock frequency; None if the frequency is unknown."""
    return 1000 * cycles / clock_hz if clock_hz else None


def format_milliseconds(milliseconds: float) -> str:
    """Format a time given in milliseconds with three significant digits and its unit."""
    if milliseconds < 0.001:
        return f"{1000 * milliseconds:.3g} µs"
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def format_inference_time(data: Mapping[str, Any]) -> str:
    """Format the time of one inference in a report: the measured time, else the estimated time."""
    measured, totals = data["measured"], data["totals"]
    if measured:
        seconds = measured["seconds"]
        return f"{measured['time']:,} {measured['unit']}" + (
            f", {format_milliseconds(1000 * seconds)}" if seconds is not None else ""
        )
    return format_estimated_time(totals["cycles"], totals["milliseconds"])


def format_estimated_time(cycles: int, ms: float | None) -> str:
    """Format the estimated cycles of one inference, and the time in milliseconds if it is known."""
    return f"about {cycles:,} cycles" + (f", {format_milliseconds(ms)}" if ms is not None else "")


def format_peak_stack(data: Mapping[str, Any]) -> str:
    """Format the peak stack in a report: bytes, and the remark whether they are measured or estimated."""
    stack = data["stack"]
    reserved = f"; {stack['reserved']:,} reserved" if stack.get("reserved") else ""
    if stack["measured"] is not None:
        core1 = f"; {stack['core1']:,} on core 1" if "core1" in stack else ""
        return f"{stack['measured']:,} bytes, measured{core1}{reserved}"
    return f"{stack['bytes']:,} bytes at most, estimated{reserved}" if stack["bytes"] is not None else "unknown"


def format_shared_kernels(kernels: Sequence[tuple[int, float]]) -> str:
    """Format how many kernels two cores compute, and their share of the time; empty if one core computes all of them.

    ``kernels``: for each kernel the number of its cores, and its share of the time, 0 to 1."""
    shares = [share for cores, share in kernels if cores > 1]
    return f"{len(shares)} of {len(kernels)} kernels, {100 * sum(shares):.1f} % of the time" if shares else ""


def format_clock_rate(hertz: int | None) -> str:
    """Format a clock rate, as in ``168 MHz``; empty if the rate is unknown."""
    return f"{hertz / 1e6:.4g} MHz" if hertz else ""


def format_capacity_use(byte_count: int, capacity: int) -> str:
    """Format a size in bytes, and its share of a memory's ``capacity`` in bytes (0 if unknown)."""
    return (
        f"{byte_count:,} of {capacity:,} bytes ({100 * byte_count / capacity:.1f} %)"
        if capacity
        else f"{byte_count:,} bytes"
    )


def format_shape(shape: Sequence[int]) -> str:
    """Format a tensor's shape, as in ``1x8x8x1``."""
    return "x".join(map(str, shape)) or "scalar"


def format_shape_with_times_signs(shape: Sequence[int]) -> str:
    """Format a shape, as in ``1x8x8x1`` but with multiplication signs instead of x."""
    return TIMES.join(map(str, shape)) or "scalar"


def format_dequantization_formula(tensor: Mapping[str, Any]) -> str:
    """Format the formula of a tensor's real values, as in ``0.0111 (q + 128)``; empty if the tensor is not quantised."""
    if tensor["scale"] is None:
        return ""
    zero = tensor["zero_point"] or 0
    return f"{tensor['scale']:.4g}" + (f" (q {MINUS if zero > 0 else '+'} {abs(zero)})" if zero else " q")


def format_percent_change(before: float | None, after: float | None) -> str:
    """Format the change of a figure in percent; empty if the figure before or after is unknown.

    A tie is rounded away from zero, as by ``toFixed`` in JavaScript, so that tables of pages agree."""
    if before is None or after is None:
        return ""
    if before == after:
        return "same"
    if not before:
        return "new"
    change = Decimal(100 * (after / before - 1)).quantize(Decimal("0.1"), ROUND_HALF_UP)
    return f"{change:+} %".replace("-", MINUS)


def memory_usage_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return a row (name, description of its use) for each memory of a board.

    ``rows``: result of :func:`microc.reports.report_document.describe_tensor_memories`."""
    return [(f"  {row['memory']}", _memory_usage_text(row)) for row in rows]


def _memory_usage_text(row: Mapping[str, Any]) -> str:
    """Describe the use of a memory as text: bytes, number of values by kind, accesses and wait cycles."""
    used = f"{row['bytes']:,} of {row['capacity']:,} bytes"
    if not row["bytes"]:
        return f"{used}, nothing lies there"
    kinds = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in row["holds"].items())
    if "saved" in row:
        waits = f"{row['waits']:,} cycles of waiting for code" if row["waits"] else "no waiting for code"
        return f"{used}: code of {kinds}; {waits}, {row['saved']:,} fewer than from flash, estimated"
    waits = f"{row['waits']:,} cycles of waiting, estimated" if row["waits"] else "no waiting"
    accesses = f"{row['reads']:,} reads" if "reads" in row else f"{row['accesses']:,} accesses"
    return f"{used}: {kinds}; {accesses}, {waits}"


def format_integer(number: int) -> str:
    """Format an integer with thousands separators."""
    return f"{number:,}"
