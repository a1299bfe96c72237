"""Render tables as Markdown, for generated pages of the documentation and for the pages of evidence."""

from __future__ import annotations

from microc.document.blocks import Table


def render_markdown_table(table: Table) -> str:
    """Render a table as Markdown without a line end at its end. A ``|`` in a cell is escaped, other markup is kept."""
    cells = (
        [column.format_cell(cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.all_rows
    )
    headings = " | ".join(column.heading for column in table.columns).rstrip()
    lines = (" | ".join(text.replace("|", "\\|") for text in row) for row in cells)
    return "\n".join((f"| {headings} |", "|" + "---|" * len(table.columns), *(f"| {line} |" for line in lines)))
