"""Errors that a user can act on: what went wrong, where, and what to do about it.

Every error that the library raises deliberately is a :class:`MicrocError`. The command line prints it as ``error[CODE]:
what``, ``where`` and ``help: hint``, and exits with the error's ``exit_code``.

==== =====================================================
exit meaning
==== =====================================================
0    success
1    verification failed (board and host differ)
2    usage: wrong argument, shape or dtype
3    the model is broken or uses something unsupported
4    the model does not fit the board
5    a tool is missing, or a build failed
6    the board, the serial line or a time-out
7    the firmware has grown beyond a bound
70   a defect in microc itself
==== =====================================================
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from microc.base.terminal import escape_message_lines, escape_unprintable

NEAREST, LISTED = 3, 24
"""Names in a hint: similar ones (NEAREST), and those of a complete list (LISTED)."""
LONGEST = 200
"""Characters of a word that are compared."""
MOST_FILES = 1000
"""Entries of a folder that are compared with a missing file's name."""


class MicrocError(Exception):
    """Base class of all errors. ``what`` is one sentence, ``where`` a file, line or name, ``hint`` the next thing to try.

    ``details``: data about the error, which ``--json`` prints."""

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
    """Two executions that must agree differ."""

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
    """The model is well-formed but uses something that microc does not support; lists everything at once."""

    code = "E0302"


class ScheduleError(MicrocError):
    """A schedule step cannot be applied; the hint says what to do first."""

    code = "E0303"
    exit_code = 3


class FitError(MicrocError):
    """The model needs more flash or RAM than the board has; ``what`` contains the numbers."""

    code = "E0401"
    exit_code = 4


class ToolError(MicrocError):
    """A compiler, emulator or flasher is missing or has failed."""

    code = "E0501"
    exit_code = 5


class DeviceError(MicrocError):
    """The board does not answer, answers nonsense, or its port is gone."""

    code = "E0601"
    exit_code = 6


class GrowthError(MicrocError):
    """Flash, RAM or time of a firmware has grown beyond its bound."""

    code = "E0701"
    exit_code = 7


class InternalError(MicrocError):
    """A broken invariant inside microc; never the user's fault."""

    code = "E7001"
    exit_code = 70


class ProgramError(InternalError):
    """A tensor expression, function or pass is invalid: the fault of its author.

    The author is the user if ``microc.te`` or ``microc.tir`` is called, else an operator of microc or of a plugin.
    """

    code = "E0304"
    exit_code = 3


def similar_names_hint(requested_name: str, known_names: Iterable[str]) -> str:
    """Return a hint "did you mean ...?" with the most similar ones of ``known_names``; empty if none is similar."""
    import difflib

    requested_name, names = requested_name[:LONGEST], {name.lower(): name for name in known_names}
    close = [names[near] for near in difflib.get_close_matches(requested_name.lower(), names, n=NEAREST)]
    close += [
        name
        for low, name in names.items()
        if len(requested_name) > 1 and requested_name.lower() in low and name not in close
    ]
    return f"did you mean {' or '.join(map(_quote_words, close[:NEAREST]))}?" if close else ""


def similar_files_hint(path: Path) -> str:
    """Return a hint "did you mean ...?" with the names in the same folder most similar to a missing file or folder; empty
    if none is."""
    import difflib

    try:
        names = [each.name for each in islice(path.parent.iterdir(), MOST_FILES) if not each.name.startswith(".")]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name[:LONGEST], names, n=NEAREST)
    return f"did you mean {' or '.join(shlex.quote(str(path.parent / name)) for name in close)}?" if close else ""


def known_names_hint(requested_name: str, known_names: Iterable[str], plural_noun: str) -> str:
    """Return a hint with the most similar ones of ``known_names``; with all of them if none is similar.

    ``plural_noun``: what the names are called in the hint."""
    names = list(known_names)
    listed = ", ".join(map(_quote_words, names[:LISTED])) or "none"
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return similar_names_hint(requested_name, names) or f"{plural_noun}: {listed}{more}"


def _quote_words(name: str) -> str:
    """Return a name as a terminal may show it: quoted if it contains spaces or unprintable characters."""
    return name if name.isprintable() and " " not in name else repr(name)
