# SPDX-License-Identifier: Apache-2.0
"""Renderers of a document: text for terminals and files, and HTML for notebooks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from microc.base.immutable import frozen
from microc.base.operating_system import is_windows, quote_argument, split_command
from microc.document.blocks import Block, Cell, Code, Column, Document, Fact, Facts, Prose, Shell, Step, Steps, Table
from microc.errors import escape_unprintable, fit_layer_name

# ---- Render a document as text for a terminal or a file, within a width; and tables as Markdown, for generated
# pages.
#
# Blocks are separated by blank lines. Names come from models of unknown origin: no control characters are
# printed, and in cells and facts no line ends either.


_COLUMN_GAP = "  "
_COMMAND_INDENT = "  "
"""Indent of a shell command that the user may copy."""
_MIN_TEXT_WIDTH = 12
"""Least width of a column of text in characters. A last column of text that is at least this wide is wrapped instead of cut."""
_MIN_TRAILING_WIDTH = 24
"""Width, in characters, up to which a column of text behind numbers stays whole, and to which a wider one is wrapped at
least; in less room, its texts are printed below the rows."""
_TRAILING_INDENT = 4
"""Indent, in characters, of a text that is printed below its table row."""


def render_text(document: Document, width: int = 0, ellipsis: str = "...") -> str:
    """Render a document as text without a line end at its end.

    ``width``: largest width of a line in characters, 0: unlimited. ``ellipsis``: end of texts that are cut."""
    parts = (_render_block(block, width, ellipsis) for block in document.blocks)
    return escape_unprintable("\n\n".join(part for part in parts if part))


def _render_block(block: Block, width: int, ellipsis: str) -> str:
    """Render a block with its heading and its note; empty if it shows nothing."""
    match block:
        case Prose(lines=lines):
            return _wrap_prose("\n".join(lines), width)
        case Code(content=code):
            return "\n".join(filter(None, (_wrap_prose(block.heading, width), code.rstrip())))
        case Table():
            content, note = _render_table(block, width, ellipsis), block.note
        case Facts(rows=rows):
            content, note = "\n".join(_render_facts(rows, width)), ""
        case Shell():
            content, note = "\n".join(_render_commands(block, width)), block.note
        case Steps(items=items):
            content, note = "\n".join(_render_steps(items, width)), ""
    if not content:
        return ""
    return "\n".join(filter(None, (_wrap_prose(block.heading, width), content, _wrap_prose(note, width))))


# ---- Words.


def _format_value(cell: str | int | None) -> str:
    """Convert a value to text without control characters. Integers get thousands separators."""
    return escape_unprintable(f"{cell:,}" if isinstance(cell, int) else "" if cell is None else str(cell), "")


def _wrap_prose(text: str, width: int) -> str:
    """Wrap lines of prose to ``width`` characters (0: unlimited)."""
    return "\n".join(part for line in text.split("\n") for part in _wrap_line(line, width))


def _wrap_line(line: str, width: int) -> list[str]:
    """Wrap a line of prose to ``width`` characters (0: unlimited), and keep its indent; words are not broken.

    If the line is a list item (it begins with a dash), further lines are indented by two more characters."""
    if not width or len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    begin, hang = (indent + "- ", indent + "  ") if line.lstrip().startswith("- ") else (indent, indent)
    text = line[len(begin) :]
    return textwrap.wrap(
        text, width, initial_indent=begin, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
    )


def _wrap_item(text: str, width: int) -> list[str]:
    """Wrap the text of a list item, which begins with a dash, to ``width`` characters (0: unlimited)."""
    text = _format_value(text)
    if not width:
        return [f"- {text}"]
    return textwrap.wrap(text, max(width, 2 + _MIN_TEXT_WIDTH), initial_indent="- ", subsequent_indent="  ")


def _render_commands(block: Shell, width: int) -> Iterator[str]:
    """Render shell commands, indented below their heading; commands that are too long are continued over several lines."""
    indent = _COMMAND_INDENT if block.heading else ""
    one_line = indent + " && ".join(block.commands)
    if block.is_chain and (not width or is_windows() or len(one_line) <= width):
        yield one_line
    elif block.is_chain:
        # The end of a line, " && \\", must fit as well; every command but the first is indented even without a heading.
        room = width - len(" && \\")
        parts = ["\n".join(_wrap_command(command, room)) for command in block.commands]
        yield indent + f" && \\\n{_COMMAND_INDENT}".join(parts)
    else:
        for command in block.commands:
            yield from _wrap_command(command, width, indent)


def _wrap_command(text: str, width: int = 0, first_prefix: str = "") -> list[str]:
    """Wrap a shell command to ``width`` characters (0: unlimited) with backslashes, so that it can be copied.

    The first line begins with ``first_prefix``; the others are indented. Commands of Windows stay on one line, since
    ``cmd.exe`` and PowerShell continue lines with different characters."""
    if not width or is_windows() or len(first_prefix) + len(text) <= width:
        return [first_prefix + text]
    parts = list[str]()
    for word in split_command(text):
        is_new = word.startswith("-") or not parts or not parts[-1].startswith("-") or " " in parts[-1]
        parts[len(parts) - (not is_new) :] = [quote_argument(word) if is_new else f"{parts[-1]} {quote_argument(word)}"]
    lines = [first_prefix + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(f" {part} \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append(" " * (len(first_prefix) + 2) + part)
    return lines


def _render_steps(items: Sequence[Step], width: int) -> Iterator[str]:
    """Render advice as list items, each with its command below it."""
    for item in items:
        yield from _wrap_item(item.advice, width)
        yield from _wrap_command(item.command, width, _COMMAND_INDENT) if item.command else []


def _render_facts(rows: Sequence[Fact], width: int) -> Iterator[str]:
    """Render names and values, one pair per line. Values that are too long are wrapped beside their name."""
    indent = max((len(name) for name, _ in rows), default=0) + len(_COLUMN_GAP)
    for name, value in rows:
        text, room = _format_value(value), width - indent
        parts = textwrap.wrap(text, room) if room >= _MIN_TEXT_WIDTH and len(text) > room else [text]
        for label, part in zip([name, *[""] * len(parts)], parts, strict=False):
            yield f"{label.ljust(indent)}{part}".rstrip()


# ---- Tables.


@frozen
class _TextColumn:
    """A column whose cells are formatted: its heading, then the text of each row.

    ``min_width``: width in characters to which the column can be narrowed."""

    cells: tuple[str, ...]
    is_text: bool
    min_width: int

    @property
    def width(self) -> int:
        """Width of the widest cell in characters."""
        return max(map(len, self.cells))


def _render_table(table: Table, width: int, ellipsis: str) -> str:
    """Render a table with a line of dashes below its heading.

    If the table is too wide, a last column of text is wrapped unless it is short. Other columns of text are cut and end in
    ``ellipsis``, the widest column first and the first column last. Columns of numbers that do not fit form another table
    below, which repeats the first column."""
    columns = [_format_column(column, k, table.all_rows) for k, column in enumerate(table.columns)]
    last = columns[-1]
    is_behind_numbers = last.is_text and not all(column.is_text for column in columns)
    has_trailing_text = is_behind_numbers and last.width > _MIN_TRAILING_WIDTH
    if is_behind_numbers and not has_trailing_text:
        columns[-1] = _TextColumn(last.cells, last.is_text, last.width)
    leading = columns[:-1] if has_trailing_text else columns
    parts = [_render_columns(part, width, ellipsis) for part in _split_columns(leading, width)]
    if not has_trailing_text:
        return "\n\n".join("\n".join(part) for part in parts)
    if len(parts) == 1:
        return "\n".join(_add_trailing_text(parts[0], last.cells, width))
    heading, *texts = last.cells
    listed = _render_facts(list(zip(columns[0].cells[1:], texts, strict=True)), width)
    return "\n\n".join("\n".join(part) for part in (*parts, (*filter(None, (heading,)), *listed)))


def _format_column(column: Column, index: int, rows: Sequence[Sequence[Cell]]) -> _TextColumn:
    """Format the cells of the column with the given index, without control characters; names of layers are shortened."""
    cells = [escape_unprintable(column.format_cell(row[index]), "") for row in rows]
    shown = (column.heading, *(map(fit_layer_name, cells) if column.is_layer else cells))
    width = max(map(len, shown))
    return _TextColumn(shown, column.is_text, min(width, _MIN_TEXT_WIDTH) if column.is_text else width)


def _split_columns(columns: Sequence[_TextColumn], width: int) -> Iterator[list[_TextColumn]]:
    """Split a table by columns into tables that fit ``width`` (0: unlimited); each begins with the first column."""
    first = columns[0]
    part, room = list[_TextColumn](), width - first.min_width
    for column in columns[1:]:
        if width and part and room < column.min_width + len(_COLUMN_GAP):
            yield [first, *part]
            part, room = [], width - first.min_width
        part.append(column)
        room -= column.min_width + len(_COLUMN_GAP)
    yield [first, *part]


def _render_columns(columns: Sequence[_TextColumn], width: int, ellipsis: str) -> list[str]:
    """Render columns that fit ``width`` side by side, as lines."""
    widths = _narrow_text_columns(columns, width)
    wraps = all(column.is_text for column in columns)
    lines = list[str]()
    for number, row in enumerate(zip(*(column.cells for column in columns), strict=True)):
        cells = [
            cell if len(cell) <= w else cell[: w - len(ellipsis)] + ellipsis
            for cell, w in zip(row, widths, strict=True)
        ]
        last = textwrap.wrap(row[-1], widths[-1]) if wraps and len(row[-1]) > widths[-1] else cells[-1:]
        lines.append(_join_cells([*cells[:-1], last[0]], widths, columns))
        lines += [_join_cells([*[""] * len(cells[:-1]), more], widths, columns) for more in last[1:]]
        if number == 0:
            lines.append(_join_cells(["-" * w for w in widths], widths, columns))
    return lines


def _join_cells(cells: Sequence[str], widths: Sequence[int], columns: Sequence[_TextColumn]) -> str:
    """Join the cells of a line: text flush left, numbers flush right."""
    padded = (
        cell.ljust(width) if column.is_text else cell.rjust(width)
        for cell, width, column in zip(cells, widths, columns, strict=True)
    )
    return _COLUMN_GAP.join(padded).rstrip()


def _narrow_text_columns(columns: Sequence[_TextColumn], width: int) -> list[int]:
    """Return the widths of columns, with those of text narrowed until the table fits ``width`` (0: unlimited).

    If all columns are text, the last column is narrowed first; then the widest columns."""
    fitted = [column.width for column in columns]
    excess = sum(fitted) + len(_COLUMN_GAP) * (len(fitted) - 1) - width if width else 0
    if excess > 0 and all(column.is_text for column in columns):
        last_width = max(_MIN_TEXT_WIDTH, fitted[-1] - excess)
        excess -= max(0, fitted[-1] - last_width)
        fitted[-1] = min(fitted[-1], last_width)
    for group in (range(1, len(columns)), range(1)):
        while excess > 0 and (wide := [k for k in group if fitted[k] > columns[k].min_width]):
            fitted[max(wide, key=lambda k: fitted[k])] -= 1
            excess -= 1
    return fitted


def _add_trailing_text(lines: Sequence[str], texts: Sequence[str], width: int) -> list[str]:
    """Add a last column of text, ``texts`` with their heading, to the lines of a table.

    Text that is too wide is wrapped within its column; if the column would be too narrow, it is printed below its row."""
    indent = max(map(len, lines)) + len(_COLUMN_GAP)
    below = 0 < width < indent + _MIN_TRAILING_WIDTH
    room = max(_MIN_TRAILING_WIDTH, width - (_TRAILING_INDENT if below else indent))
    head, dashes, *rows = lines
    result = list[str]()
    for line, text in zip((head, dashes, *rows), (texts[0], "-" * len(texts[0]), *texts[1:]), strict=True):
        wrapped = (textwrap.wrap(text, room) if width else [text]) or [""]
        if below:
            result.append(line)
            result += [" " * _TRAILING_INDENT + part for part in wrapped if line is not dashes]
        else:
            starts = (line, *[""] * len(wrapped))
            result += [f"{start.ljust(indent)}{part}".rstrip() for start, part in zip(starts, wrapped, strict=False)]
    return result


# ---- Markdown, for pages of the documentation and of evidence.


def render_markdown_table(table: Table) -> str:
    """Render a table as Markdown without a line end at its end; numbers are flush right.

    A ``|`` in a cell is escaped, other markup is kept."""
    cells = (
        [column.format_cell(cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.all_rows
    )
    headings = "".join(f" {column.heading} |" if column.heading else " |" for column in table.columns)
    lines = (" | ".join(text.replace("|", "\\|") for text in row) for row in cells)
    rule = "".join("---|" if column.is_text else "--:|" for column in table.columns)
    return "\n".join((f"|{headings}", f"|{rule}", *(f"| {line} |" for line in lines)))


# ---- Render a document as HTML for a notebook: plain tables without style sheets, with all text escaped.


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
        parts.append(_render_html_block(block, title))
        title = ""
    return "".join(parts)


def _render_html_block(block: Block, title: str) -> str:
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
