"""What a terminal shows: text of strangers is escaped where it is printed, so that it is read, never obeyed.

Names come from models, boards, records, files and other people's machines. An escape sequence in one could clear the screen,
rename the window or forge a line; a mark of direction could show one name for another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_LAYOUT = "\n\t"
_HANGING = "\n    "


def visible(text: str, layout: str = _LAYOUT) -> str:
    """Return a text with every character that is no letter, sign or blank as its escape (``\\x1b``, ``\\u202e``): control
    characters of both sets, marks of direction, what has no width, and halves of pairs. ``layout``: characters that stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in layout else c.encode("unicode_escape").decode() for c in text)


def visible_lines(text: str) -> str:
    """Return a message, whose further lines are indented by four blanks: other line ends came with a name, and are escaped."""
    return _HANGING.join(visible(part, "\t") for part in text.split(_HANGING))


def control(text: str) -> None:
    """Write to standard error at once what microc itself makes of control sequences and of text that is visible."""
    write = getattr(sys.stderr, "control", sys.stderr.write)
    write(text)
    sys.stderr.flush()


class _Guarded:
    """A stream of text that shows what others would have obeyed; what its encoding lacks is escaped, too."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self.control(visible(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def control(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Guard standard output and standard error, whoever writes there from Python: commands, warnings, logs of libraries."""
    own = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (each if isinstance(each, _Guarded) else cast(TextIO, _Guarded(each)) for each in own)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = own


LAYER_WIDTH = 48
"""Columns of a layer's name in a table at most."""


def shorten_layer(name: str, width: int = LAYER_WIDTH) -> str:
    """Shorten a layer for a table: without the name of the model's file, at most ``width`` columns. ``--json`` has it whole."""
    start = name.find("#")
    shown = name[start:] if start > 0 else name
    return shown if len(shown) <= width else shown[: width - 3] + "..."
