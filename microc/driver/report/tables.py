"""Text in columns, for people."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Columns in line; the first ``left`` are flush left, the others, numbers, flush right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(header))]
    lines = [
        "  ".join(
            c.ljust(w) if k < left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def facts(rows: Sequence[tuple[str, object]]) -> str:
    """Names and values, one a line."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in rows)


def count(number: int) -> str:
    """A number with its thousands apart."""
    return f"{number:,}"
