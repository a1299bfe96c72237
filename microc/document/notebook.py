# SPDX-License-Identifier: Apache-2.0
"""Render a document as HTML for a notebook: plain tables without style sheets, with all text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from microc.base.terminal import escape_unprintable, fit_layer_name
from microc.document.blocks import Block, Cell, Code, Column, Document, Facts, Prose, Shell, Steps, Table

_MAX_LENGTH = 4000
"""Largest number of characters of a cell. Names come from models of unknown origin."""
_LEFT = "style='text-align:left'"


class Showable:
    """Base class of objects that a notebook shows as a document."""

    __slots__ = ()

    def document(self) -> Document:
        """Return the document that shows the object."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return render_notebook(self.document())


def render_notebook(document: Document) -> str:
    """Render a document as a fragment of HTML. The title is the caption of the first table."""
    title = document.title
    parts = list[str]()
    for block in document.blocks:
        parts.append(_render_block(block, title))
        title = ""
    return "".join(parts)


def _render_block(block: Block, title: str) -> str:
    """Render a block; ``title``: title of the document for the first block, else empty."""
    match block:
        case Facts(rows, heading):
            lines = (
                f"<tr><th {_LEFT}>{_escape_cell(name)}</th><td>{_escape_cell(value)}</td></tr>" for name, value in rows
            )
            return f"<table>{_caption(title, heading)}{''.join(lines)}</table>" if rows else ""
        case Table(columns=columns, heading=heading, note=note):
            head = "".join(f"<th>{_escape_cell(column.heading)}</th>" for column in columns)
            lines = (f"<tr>{''.join(_table_cells(columns, row))}</tr>" for row in block.all_rows)
            table = f"<table>{_caption(title, heading)}<tr>{head}</tr>{''.join(lines)}</table>"
            return table + (f"<p>{_escape_cell(note)}</p>" if note else "")
        case Code(content, heading):
            return "<pre>" + _escape_code(f"{heading}\n{content}" if heading else content) + "</pre>"
        case Prose(lines):
            return "".join(f"<p>{_escape_cell(line)}</p>" for line in lines)
        case Shell(commands, heading, note):
            listed = _escape_code("\n".join(commands))
            return f"<p>{_escape_cell(heading)}</p><pre>{listed}</pre><p>{_escape_cell(note)}</p>" if commands else ""
        case Steps(items, heading):
            entries = (
                f"<li>{_escape_cell(item.advice)}"
                + (f"<br><code>{_escape_code(item.command)}</code>" if item.command else "")
                + "</li>"
                for item in items
            )
            return f"<p>{_escape_cell(heading)}</p><ul>{''.join(entries)}</ul>" if items else ""


def _table_cells(columns: Iterable[Column], row: Iterable[Cell]) -> Iterable[str]:
    """Yield the cells of a row as HTML: text flush left, numbers flush right; names of layers are shortened."""
    for column, cell in zip(columns, row, strict=True):
        text = column.format_cell(cell)
        align = f"<td {_LEFT}>" if column.is_text else "<td>"
        yield f"{align}{_escape_cell(fit_layer_name(text) if column.is_layer else text)}</td>"


def _caption(title: str, heading: str) -> str:
    """Return the caption of a table: the document's title, the block's heading, or both; empty if there is neither."""
    text = ": ".join(filter(None, (title, heading)))
    return f"<caption {_LEFT}><b>{_escape_cell(text)}</b></caption>" if text else ""


def _escape_cell(value: str | int | None) -> str:
    """Escape text for HTML, without control characters. Integers get thousands separators."""
    text = f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)
    return escape("".join(c if c.isprintable() else "?" for c in text[:_MAX_LENGTH]))


def _escape_code(text: str) -> str:
    """Escape code for HTML, without control characters but line ends and tabs."""
    return escape(escape_unprintable(text))
