# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can act on: each states what went wrong, where, and what to do about it.

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

import shlex
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from microc.base.terminal import escape_message_lines, escape_unprintable

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

    try:
        names = [each.name for each in islice(path.parent.iterdir(), MOST_FILES) if not each.name.startswith(".")]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name[:LONGEST], names, n=NEAREST)
    return f"did you mean {' or '.join(shlex.quote(str(path.parent / name)) for name in close)}?" if close else ""


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
