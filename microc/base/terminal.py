# SPDX-License-Identifier: Apache-2.0
"""Escaping of untrusted text that is printed on a terminal, so that it cannot act as control sequences.

Names come from models, boards, records, files and remote machines. An escape sequence in a name could clear the
screen, rename the window or forge a line; a bidirectional control character could make one name look like another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

LAYOUT_CHARACTERS = "\n\t"
CONTINUATION = "\n    "


def escape_unprintable(text: str, layout: str = LAYOUT_CHARACTERS) -> str:
    """Return ``text`` with every unprintable character replaced by its escape sequence (``\\x1b``, ``\\u202e``).

    Unprintable are control characters, bidirectional and zero-width characters, and lone surrogates. The characters
    in ``layout`` are not replaced."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in layout else c.encode("unicode_escape").decode() for c in text)


def escape_message_lines(text: str) -> str:
    """Escape the unprintable characters of a message of several lines.

    A line end followed by four blanks separates the lines of the message and stays. Any other line end is part of an
    untrusted name and is escaped."""
    return CONTINUATION.join(escape_unprintable(part, "\t") for part in text.split(CONTINUATION))


def write_trusted_control_sequence(text: str) -> None:
    """Write trusted text with control sequences to standard error at once, without escaping it."""
    write = getattr(sys.stderr, "write_control_sequences", sys.stderr.write)
    write(text)
    sys.stderr.flush()


class _EscapingStream:
    """A text stream that escapes unprintable characters, and characters that the encoding of the underlying stream
    lacks."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self.write_control_sequences(escape_unprintable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def write_control_sequences(self, text: str) -> None:
        """Write trusted text with its control sequences; characters that the encoding lacks are escaped."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escape_all_output() -> Iterator[None]:
    """Escape everything that Python code writes to standard output or standard error inside the ``with`` block:
    commands, warnings, logs of libraries."""
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
    """Shorten the name of a layer for a table: drop the model's file name, and keep at most ``width`` columns.

    Unlike the table, the output of ``--json`` contains the full name."""
    start = name.find("#")
    shown = name[start:] if start > 0 else name
    return shown if len(shown) <= width else shown[: width - 3] + "..."
