"""``-`` in the place of a model or of data: what comes on standard input, read once, within bounds, into a file of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from microc.cli.arguments import Arguments
from microc.errors import UsageError

_PIPE = Path("-")
_PLACES = ("model", "models", "inputs", "data", "evaluation")
_MOST = 256 << 20
"""Bytes, as of a model's file."""


@contextmanager
def piped(arguments: Arguments) -> Iterator[None]:
    """Give the arguments the path of a temporary file for ``-``; UsageError where it stands twice, or nothing comes."""
    given = {name: getattr(arguments, name, None) for name in _PLACES}
    count = sum(value.count(_PIPE) if isinstance(value, list) else value == _PIPE for value in given.values())
    if not count:
        yield
        return
    if count > 1:
        raise UsageError("- stands for standard input, which is read once", hint="give the other a file")
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "- stands for standard input, which is a terminal", hint="pipe a file in: cat x.npy | microc ..."
        )
    data = sys.stdin.buffer.read(_MOST + 1)
    if not 0 < len(data) <= _MOST:
        raise UsageError(
            f"{'no' if not data else f'more than {_MOST}'} bytes came on standard input",
            hint="does the command before the pipe succeed?",
        )
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        path = Path(folder) / f"stdin{_suffix(data) if _PIPE not in (given['model'], *(given['models'] or ())) else ''}"
        path.write_bytes(data)
        for name, value in given.items():
            if isinstance(value, list):
                setattr(arguments, name, [path if each == _PIPE else each for each in value])
            elif value == _PIPE:
                setattr(arguments, name, path)
        yield


def _suffix(data: bytes) -> str:
    """What data are, by what they start with; else a table."""
    starts = {b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz", b"RIFF": ".wav", b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg"}
    return next((suffix for start, suffix in starts.items() if data.startswith(start)), ".csv")
