"""Format numbers and other figures as text, and tables of text for terminals."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from microc.base.terminal import escape_unprintable

# ---- Figures of a report as text, for the page, a terminal and a notebook.

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
        return f"{stack['measured']:,} bytes, measured{reserved}"
    return f"{stack['bytes']:,} bytes at most, estimated{reserved}" if stack["bytes"] is not None else "unknown"


def format_clock_rate(hertz: int | None) -> str:
    """Format a clock rate, as in ``168 MHz``; empty if the rate is unknown."""
    return f"{hertz / 1e6:.4g} MHz" if hertz else ""


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

    ``rows``: result of :func:`microc.reports.layers.describe_tensor_memories`."""
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
    return f"{used}: {kinds}; {row['accesses']:,} accesses, {waits}"


# ---- Tables.

_COLUMN_GAP = "  "
_MIN_TEXT_WIDTH = 12
"""Least width of a column of text in characters. A last column of text that is at least this wide is wrapped instead of cut."""


def format_table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    text_columns: int = 1,
    width: int = 0,
    ellipsis: str = "...",
) -> str:
    """Format a table as text.

    The first ``text_columns`` columns contain text and are flush left; the others contain numbers and are flush right. ``width``:
    largest width of a line in characters, 0: unlimited. If the table is too wide, a last column of text is wrapped. Other
    columns of text are cut and end in ``ellipsis``, the widest column first and the first column last. Numbers are never cut:
    columns of numbers that do not fit form another table below, which repeats the first column."""
    cells = [[_printable_cell(cell) for cell in row] for row in (header, *rows)]
    return "\n\n".join(
        _format_single_table(part, some, width, ellipsis) for part, some in _split_columns(cells, text_columns, width)
    )


def _format_single_table(cells: Sequence[Sequence[str]], text_columns: int, width: int, ellipsis: str) -> str:
    """Format a table whose columns all fit, with a line of dashes below its heading."""
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    if width:
        widths = _narrow_text_columns(widths, text_columns, width)
    ruled = [cells[0], ["-" * w for w in widths], *cells[1:]]
    return "\n".join(line for row in ruled for line in _format_row_lines(row, widths, text_columns, ellipsis))


def _split_columns(cells: list[list[str]], text_columns: int, width: int) -> Iterator[tuple[list[list[str]], int]]:
    """Split a table by columns into tables that fit ``width`` (0: unlimited); each begins with the first column.

    Yield the cells of each table, and the number of its text columns."""
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    min_widths = [min(w, _MIN_TEXT_WIDTH) if k < text_columns else w for k, w in enumerate(widths)]
    columns, room = list[int](), width - min_widths[0]
    for k in range(1, len(min_widths)):
        if width and columns and room < min_widths[k] + len(_COLUMN_GAP):
            yield [[row[0], *(row[j] for j in columns)] for row in cells], 1 + sum(j < text_columns for j in columns)
            columns, room = [], width - min_widths[0]
        columns.append(k)
        room -= min_widths[k] + len(_COLUMN_GAP)
    yield (
        [[row[0], *(row[j] for j in columns)] for row in cells],
        min(text_columns, 1) + sum(j < text_columns for j in columns),
    )


def _printable_cell(cell: object) -> str:
    """Convert a cell to text without control characters, because names come from models of unknown origin."""
    return escape_unprintable(str(cell), "")


def _narrow_text_columns(widths: list[int], text_columns: int, width: int) -> list[int]:
    """Return the column widths of a table, with text columns narrowed until the table fits ``width``.

    If all columns are text, the last column is narrowed first; then the widest columns."""
    fitted = list(widths)
    texts = range(min(text_columns, len(fitted)))
    excess = sum(fitted) + len(_COLUMN_GAP) * (len(fitted) - 1) - width
    if excess > 0 and text_columns >= len(fitted):
        last_width = max(_MIN_TEXT_WIDTH, fitted[-1] - excess)
        excess -= max(0, fitted[-1] - last_width)
        fitted[-1] = min(fitted[-1], last_width)
    for columns in (texts[1:], texts[:1]):
        while excess > 0 and columns and max(fitted[k] for k in columns) > _MIN_TEXT_WIDTH:
            fitted[max(columns, key=lambda k: fitted[k])] -= 1
            excess -= 1
    return fitted


def _format_row_lines(row: Sequence[str], widths: Sequence[int], text_columns: int, ellipsis: str) -> list[str]:
    """Format a row of a table as one or several lines; several if the last cell is wrapped."""
    wraps = text_columns >= len(row)
    last = textwrap.wrap(row[-1], widths[-1]) if wraps and len(row[-1]) > widths[-1] else [row[-1]]
    first = [
        cell if len(cell) <= w else cell[: w - len(ellipsis)] + ellipsis
        for cell, w in zip(row[:-1], widths, strict=False)
    ]
    lines = [[*first, last[0]], *([*[""] * len(first), more] for more in last[1:])]
    return [
        _COLUMN_GAP.join(
            c.ljust(w) if k < text_columns else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def format_pairs(rows: Sequence[tuple[str, object]], width: int = 0) -> str:
    """Format names and values, one pair per line.

    ``width``: largest width of a line in characters, 0: unlimited. Longer values are wrapped beside their name."""
    indent = max(len(name) for name, _ in rows) + len(_COLUMN_GAP)
    lines: list[str] = []
    for name, value in rows:
        text, room = _printable_cell(value), width - indent
        parts = textwrap.wrap(text, room) if room >= _MIN_TEXT_WIDTH and len(text) > room else [text]
        lines += [
            f"{label.ljust(indent)}{part}".rstrip()
            for label, part in zip([name, *[""] * len(parts)], parts, strict=False)
        ]
    return "\n".join(lines)


def wrap_text(text: str, width: int = 0, first_prefix: str = "") -> list[str]:
    """Wrap text to ``width`` characters (0: unlimited).

    The first line begins with ``first_prefix``; the others are indented by its width."""
    text = _printable_cell(text)
    if not width:
        return [first_prefix + text]
    return textwrap.wrap(
        text,
        max(width, len(first_prefix) + _MIN_TEXT_WIDTH),
        initial_indent=first_prefix,
        subsequent_indent=" " * len(first_prefix),
    )


def wrap_command(text: str, width: int = 0, first_prefix: str = "") -> list[str]:
    """Wrap a shell command to ``width`` characters (0: unlimited) with backslashes, so that it can be copied.

    The first line begins with ``first_prefix``; the others are indented."""
    if not width or len(first_prefix) + len(text) <= width:
        return [first_prefix + text]
    parts = list[str]()
    for word in shlex.split(text):
        is_new = word.startswith("-") or not parts or not parts[-1].startswith("-") or " " in parts[-1]
        parts[len(parts) - (not is_new) :] = [shlex.quote(word) if is_new else f"{parts[-1]} {shlex.quote(word)}"]
    lines = [first_prefix + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(f" {part} \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append(" " * (len(first_prefix) + 2) + part)
    return lines


def format_integer(number: int) -> str:
    """Format an integer with thousands separators."""
    return f"{number:,}"
