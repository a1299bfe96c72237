# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can act on: each states what went wrong, where, and what to do about it. The untrusted text that they
quote is escaped.

Every error that the library raises deliberately is a :class:`MicrocError`. The command line prints it as ``error[CODE]:
what``, ``where`` and ``help: hint``, and exits with the error's ``exit_code``.

==== =====================================================
exit meaning
==== =====================================================
0    success
1    verification failed (board and host differ)
2    usage error: wrong argument, shape or dtype
3    the model is broken or uses something unsupported
4    the model does not fit the board
5    a tool is missing, or a build failed
6    the board or its serial line failed, or a time-out
7    flash, RAM or time of the firmware exceeds a bound
70   a defect in microc itself
==== ====================================================="""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, cast

# ---- Escaping of untrusted text that is printed on a terminal, so that it cannot act as control sequences.
#
# Names come from models, boards, records, files and remote machines. An escape sequence in a name could clear
# the screen, rename the window or forge a line; a bidirectional control character could make one name look like
# another.


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


# ---- Errors, and the suggestions of their hints.


NEAREST, LISTED = 3, 24
"""Maximum number of names in a hint: NEAREST similar names, or the first LISTED of all known names."""
LONGEST = 200
"""Maximum number of characters of a misspelled name that are compared with the known names."""
MOST_FILES = 1000
"""Maximum number of entries of a folder that are compared with the name of a missing file."""


class MicrocError(Exception):
    """Base class of all errors of microc. ``what`` is one sentence that states the error. ``where`` is a file, line or
    name. ``hint`` is the next thing to try.

    ``details``: data about the error for programs; ``--json`` prints them."""

    code = "E0000"
    exit_code = 70

    def __init__(self, what: str, *, where: str = "", hint: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.details = details or {}

    def __str__(self) -> str:
        lines = [f"error[{self.code}]: {escape_message_lines(self.what)}"]
        if self.where:
            lines.append(f"  --> {escape_unprintable(self.where, '')}")
        if self.hint:
            lines.append(f"  help: {escape_message_lines(self.hint)}")
        return "\n".join(lines)


class VerificationError(MicrocError):
    """Two executions of a network that must agree give different results."""

    code = "E0101"
    exit_code = 1


class UsageError(MicrocError):
    """A wrong argument, option, shape or dtype from the caller."""

    code = "E0201"
    exit_code = 2


class OutputError(UsageError):
    """A file or folder cannot be written or read."""

    code = "E0202"


class ModelError(MicrocError):
    """The model file is corrupt, truncated, inconsistent or not a model at all."""

    code = "E0301"
    exit_code = 3


class UnsupportedError(ModelError):
    """The model is well-formed but uses something that microc does not support. The message lists everything
    unsupported at once."""

    code = "E0302"


class ScheduleError(MicrocError):
    """A schedule step cannot be applied. The hint states what to do first."""

    code = "E0303"
    exit_code = 3


class FitError(MicrocError):
    """The model needs more flash or RAM than the board has. ``what`` contains the bytes needed and the bytes
    available."""

    code = "E0401"
    exit_code = 4


class ToolError(MicrocError):
    """A compiler, emulator or flasher is missing or has failed."""

    code = "E0501"
    exit_code = 5


class DeviceError(MicrocError):
    """The board does not answer, its answer is invalid, or its port has disappeared."""

    code = "E0601"
    exit_code = 6


class GrowthError(MicrocError):
    """Flash, RAM or time of a firmware exceeds the bound that was set for it."""

    code = "E0701"
    exit_code = 7


class InternalError(MicrocError):
    """An invariant inside microc is violated. The defect is in microc, not in the user's input."""

    code = "E7001"
    exit_code = 70


class ProgramError(InternalError):
    """A tensor expression, function or pass is invalid. The defect is in the code that builds it.

    That code is the user's if ``microc.te`` or ``microc.tir`` is called directly; else it is an operator of microc
    or of a plugin."""

    code = "E0304"
    exit_code = 3


def similar_names_hint(requested_name: str, known_names: Iterable[str]) -> str:
    """Return the hint "did you mean ...?" with the known names that are most similar to a requested name; empty if
    no name is similar."""
    import difflib

    requested_name, names = requested_name[:LONGEST], {name.lower(): name for name in known_names}
    close = [names[near] for near in difflib.get_close_matches(requested_name.lower(), names, n=NEAREST)]
    close += [
        name
        for low, name in names.items()
        if len(requested_name) > 1 and requested_name.lower() in low and name not in close
    ]
    return f"did you mean {' or '.join(map(_quote_if_needed, close[:NEAREST]))}?" if close else ""


def similar_files_hint(path: Path) -> str:
    """Return the hint "did you mean ...?" for a missing file or folder, with the most similar names in its folder;
    empty if no name is similar."""
    import difflib

    from microc.base.operating_system import quote_argument

    try:
        names = [each.name for each in islice(path.parent.iterdir(), MOST_FILES) if not each.name.startswith(".")]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name[:LONGEST], names, n=NEAREST)
    return f"did you mean {' or '.join(quote_argument(str(path.parent / name)) for name in close)}?" if close else ""


def known_names_hint(requested_name: str, known_names: Iterable[str], plural_noun: str) -> str:
    """Return a hint with the known names that are most similar to a requested name, or with a list of all known names
    if no name is similar.

    ``plural_noun``: noun before that list, such as "layers"."""
    names = list(known_names)
    listed = ", ".join(map(_quote_if_needed, names[:LISTED])) or "none"
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return similar_names_hint(requested_name, names) or f"{plural_noun}: {listed}{more}"


def _quote_if_needed(name: str) -> str:
    """Quote a name for a message if it contains spaces or unprintable characters."""
    return name if name.isprintable() and " " not in name else repr(name)
