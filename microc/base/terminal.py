"""Escape untrusted text where it is printed on a terminal, so that it cannot act as control sequences.

Names come from models, boards, records, files and remote machines. An escape sequence in one could clear the screen,
rename the window or forge a line; a bidirectional control character could make one name look like another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

LAYOUT_CHARACTERS = "\n\t"
CONTINUATION = "\n    "


def escape_unprintable(text: str, layout: str = LAYOUT_CHARACTERS) -> str:
    """Return ``text`` with every unprintable character as its escape (``\\x1b``, ``\\u202e``).

    These are control characters, bidirectional and zero-width characters, and lone surrogates. Characters of ``layout`` stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in layout else c.encode("unicode_escape").decode() for c in text)


def escape_message_lines(text: str) -> str:
    """Escape the unprintable characters of a message of several lines.
    Only line ends followed by four blanks are the message's own; others came with a name."""
    return CONTINUATION.join(escape_unprintable(part, "\t") for part in text.split(CONTINUATION))


def write_control(text: str) -> None:
    """Write trusted text with control sequences to standard error at once, without escaping it."""
    write = getattr(sys.stderr, "control", sys.stderr.write)
    write(text)
    sys.stderr.flush()


class _EscapingStream:
    """A text stream that escapes unprintable characters, and those that its encoding lacks."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self.control(escape_unprintable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def control(self, text: str) -> None:
        """Write trusted text with its control sequences; characters that the encoding lacks are escaped."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escape_all_output() -> Iterator[None]:
    """Escape everything that Python code writes to standard output or standard error during a ``with``: commands,
    warnings, logs of libraries."""
    own = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        each if isinstance(each, _EscapingStream) else cast(TextIO, _EscapingStream(each)) for each in own
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = own


LAYER_WIDTH = 48
"""Maximum width of a layer's name in a table, in columns."""


def fit_layer_name(name: str, width: int = LAYER_WIDTH) -> str:
    """Shorten a layer's name for a table: drop the model's file name, keep at most ``width`` columns.

    ``--json`` has the full name.
    """
    start = name.find("#")
    shown = name[start:] if start > 0 else name
    return shown if len(shown) <= width else shown[: width - 3] + "..."
