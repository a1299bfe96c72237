"""Text in columns, and numbers of a report in words."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc.base.terminal import visible

# ---- Numbers of a report in words, the same on the page, in a terminal and in a notebook.

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def milliseconds(cycles: float, clock_hz: int | None) -> float | None:
    """What cycles take at a board's clock; None where that is not known."""
    return 1000 * cycles / clock_hz if clock_hz else None


def shown_ms(value: float) -> str:
    """Milliseconds with three digits that say something."""
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms" if value >= 0.001 else f"{1000 * value:.3g} µs"


def time_words(data: Mapping[str, Any]) -> str:
    """One inference: what was measured, else what is estimated."""
    measured, totals = data["measured"], data["totals"]
    if measured:
        seconds = measured["seconds"]
        return f"{measured['time']:,} {measured['unit']}" + (
            f", {shown_ms(1000 * seconds)}" if seconds is not None else ""
        )
    return estimate_words(totals["cycles"], totals["milliseconds"])


def estimate_words(cycles: int, ms: float | None) -> str:
    """What the cost model says."""
    return f"about {cycles:,} cycles" + (f", {shown_ms(ms)}" if ms is not None else "")


def stack_words(data: Mapping[str, Any]) -> str:
    """The stack, and how it is known."""
    stack = data["stack"]
    if stack["measured"] is not None:
        return f"{stack['measured']:,} bytes, measured"
    return f"{stack['bytes']:,} bytes at most, estimated" if stack["bytes"] is not None else "unknown"


def clock_words(hertz: int | None) -> str:
    """``168 MHz``."""
    return f"{hertz / 1e6:.4g} MHz" if hertz else ""


def shape_words(shape: Sequence[int]) -> str:
    """``1x8x8x1``, with the sign that multiplies."""
    return TIMES.join(map(str, shape)) or "scalar"


def quant_words(tensor: Mapping[str, Any]) -> str:
    """``real = 0.0111 (q + 128)``; empty where a tensor stands for itself."""
    if tensor["scale"] is None:
        return ""
    zero = tensor["zero_point"] or 0
    return f"{tensor['scale']:.4g}" + (f" (q {MINUS if zero > 0 else '+'} {abs(zero)})" if zero else " q")


def change_words(before: float | None, after: float | None) -> str:
    """By how much, in percent."""
    if before is None or after is None:
        return ""
    if before == after:
        return "same"
    if not before:
        return "new"
    return f"{100 * (after / before - 1):+.1f} %".replace("-", MINUS)


def memory_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """A board's memories (:func:`microc.reports.layers.memories_data`) as facts, one line for each."""
    return [(f"  {row['memory']}", _memory_words(row)) for row in rows]


def _memory_words(row: Mapping[str, Any]) -> str:
    used = f"{row['bytes']:,} of {row['capacity']:,} bytes"
    if not row["bytes"]:
        return f"{used}, nothing lies there"
    kinds = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in row["holds"].items())
    if "saved" in row:
        waits = f"{row['waits']:,} cycles of waiting for code" if row["waits"] else "no waiting for code"
        return f"{used}: code of {kinds}; {waits}, {row['saved']:,} fewer than from flash, estimated"
    waits = f"{row['waits']:,} cycles of waiting, estimated" if row["waits"] else "no waiting"
    return f"{used}: {kinds}; {row['accesses']:,} accesses, {waits}"


# ---- Text in columns, for people.

_GAP = "  "
_LEAST = 12
"""Letters that a column of text keeps, and those from which on the last one is wrapped in itself instead of cut."""


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1, width: int = 0, mark: str = "..."
) -> str:
    """Columns in line; the first ``left`` are flush left, the others, numbers, flush right.

    ``width``: letters of a line, where they are bounded. A last column of text is wrapped in itself then; of other texts the
    widest are cut, with ``mark`` at their end, the first, which are names, last of all. Numbers are never cut: columns for which
    no room is left are a table of their own below, behind the first column.
    """
    cells = [[_plain(cell) for cell in row] for row in (header, *rows)]
    return "\n\n".join(_one(part, some, width, mark) for part, some in _parts(cells, left, width))


def _one(cells: Sequence[Sequence[str]], left: int, width: int, mark: str) -> str:
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    if width:
        widths = _fitting(widths, left, width)
    ruled = [cells[0], ["-" * w for w in widths], *cells[1:]]
    return "\n".join(line for row in ruled for line in _lines(row, widths, left, mark))


def _parts(cells: list[list[str]], left: int, width: int) -> Iterator[tuple[list[list[str]], int]]:
    """Tables that ``width`` (0: any) has room for, with their columns of text: neighbouring columns behind the first."""
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    least = [min(w, _LEAST) if k < left else w for k, w in enumerate(widths)]
    taken, room = list[int](), width - least[0]
    for k in range(1, len(least)):
        if width and taken and room < least[k] + len(_GAP):
            yield [[row[0], *(row[j] for j in taken)] for row in cells], 1 + sum(j < left for j in taken)
            taken, room = [], width - least[0]
        taken.append(k)
        room -= least[k] + len(_GAP)
    yield [[row[0], *(row[j] for j in taken)] for row in cells], min(left, 1) + sum(j < left for j in taken)


def _plain(cell: object) -> str:
    """What a stranger calls something moves no cursor."""
    return visible(str(cell), "")


def _fitting(widths: list[int], left: int, width: int) -> list[int]:
    """Narrower columns of text, the last one first, then the widest."""
    found = list(widths)
    texts = range(min(left, len(found)))
    over = sum(found) + len(_GAP) * (len(found) - 1) - width
    if over > 0 and left >= len(found):
        kept = max(_LEAST, found[-1] - over)
        over -= max(0, found[-1] - kept)
        found[-1] = min(found[-1], kept)
    for some in (texts[1:], texts[:1]):
        while over > 0 and some and max(found[k] for k in some) > _LEAST:
            found[max(some, key=lambda k: found[k])] -= 1
            over -= 1
    return found


def _lines(row: Sequence[str], widths: Sequence[int], left: int, mark: str) -> list[str]:
    """A row, whose last cell may take several lines."""
    wraps = left >= len(row)
    last = textwrap.wrap(row[-1], widths[-1]) if wraps and len(row[-1]) > widths[-1] else [row[-1]]
    first = [
        cell if len(cell) <= w else cell[: w - len(mark)] + mark for cell, w in zip(row[:-1], widths, strict=False)
    ]
    lines = [[*first, last[0]], *([*[""] * len(first), more] for more in last[1:])]
    return [
        _GAP.join(
            c.ljust(w) if k < left else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def facts(rows: Sequence[tuple[str, object]], width: int = 0) -> str:
    """Names and values, one a line; values that are longer than ``width`` allows are wrapped beside their name."""
    indent = max(len(name) for name, _ in rows) + len(_GAP)
    lines: list[str] = []
    for name, value in rows:
        text, room = _plain(value), width - indent
        parts = textwrap.wrap(text, room) if room >= _LEAST and len(text) > room else [text]
        lines += [
            f"{label.ljust(indent)}{part}".rstrip()
            for label, part in zip([name, *[""] * len(parts)], parts, strict=False)
        ]
    return "\n".join(lines)


def wrapped(text: str, width: int = 0, head: str = "") -> list[str]:
    """Lines of a text within ``width`` letters (0: any), the first behind ``head``, the others below it."""
    text = _plain(text)
    if not width:
        return [head + text]
    return textwrap.wrap(text, max(width, len(head) + _LEAST), initial_indent=head, subsequent_indent=" " * len(head))


def command(text: str, width: int = 0, head: str = "") -> list[str]:
    """Lines of a command of a shell within ``width`` letters (0: any), which it reads as one when they are copied."""
    if not width or len(head) + len(text) <= width:
        return [head + text]
    parts = list[str]()
    for word in shlex.split(text):
        apart = word.startswith("-") or not parts or not parts[-1].startswith("-") or " " in parts[-1]
        parts[len(parts) - (not apart) :] = [shlex.quote(word) if apart else f"{parts[-1]} {shlex.quote(word)}"]
    lines = [head + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(f" {part} \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append(" " * (len(head) + 2) + part)
    return lines


def count(number: int) -> str:
    """A number with its thousands apart."""
    return f"{number:,}"
