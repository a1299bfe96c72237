"""What was compiled before, on disk: the files and the report of a network, by all that they are made from.

An entry's name is a digest of the model, the options, the board and the compiler itself. It is read as data only, never run:
compressed JSON behind its own digest, of at most :data:`LARGEST` bytes; one that is damaged is as good as none. Processes may
share a folder: entries appear whole or not at all. The folder belongs to the user alone, since who writes there writes C.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from microc import __version__
from microc.base import file_access
from microc.base.file_access import read_bytes
from microc.base.immutable import frozen
from microc.codegen.output_files import replacing
from microc.compiler.options import Options
from microc.errors import OutputError
from microc.frontend.detect import contents
from microc.target import Target

BOUND = 512 << 20
"""Bytes that a cache holds; beyond them the entries go that were not used for longest."""
LARGEST = 256 << 20
"""Bytes of an entry once it is unpacked."""
_MARK = b"microc 1 "
_LEVEL = 1  # of compression: an entry is written as often as it is read
_OPEN = frozenset(
    {
        "example_inputs",
        "plugins",
        "passes",
        "instruments",
        "schedules",
        "dump",
        "tuned",
        "plan",
        "self_test",
        "external",
    }
)
"""Options that run code of the user's own, name a file that grows, or are there to see a compilation happen: with one of them
nothing is kept."""
_OTHERS_WRITE = 0o022

Files = Mapping[str, str | bytes]


@frozen
class Found:
    """The files of a network by name, and its report."""

    files: Files
    report: Mapping[str, Any]


@frozen
class Entry:
    """Where one compilation is kept."""

    path: Path

    def read(self) -> Found | None:
        """What is kept, if it is whole."""
        try:
            packed = read_bytes(self.path, LARGEST)
            digest, data = packed[len(_MARK) :].split(b"\n", 1)
            if not packed.startswith(_MARK) or hashlib.sha256(data).hexdigest().encode() != digest:
                return None
            found = json.loads(zlib.decompressobj().decompress(data, LARGEST))
            files: dict[str, str | bytes] = {}
            for name, text, content in found["files"]:
                files[_relative(name)] = str(content) if text else bytes.fromhex(content)
            os.utime(self.path)
            return Found(files, dict(found["report"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error, RecursionError):
            return None

    def write(self, files: Files, report: Mapping[str, Any]) -> None:
        """Keep a compilation; where the folder cannot be written nothing is kept."""
        rows = [
            (name, True, each) if isinstance(each, str) else (name, False, each.hex()) for name, each in files.items()
        ]
        data = json.dumps({"files": rows, "report": report}).encode()
        if len(data) > LARGEST:
            return
        packed = zlib.compress(data, _LEVEL)
        with suppress(OSError, OutputError):
            with replacing(self.path) as temporary:
                temporary.write_bytes(_MARK + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed)
            _evict(self.path.parent)


def _relative(name: str) -> str:
    """The name of a file inside a project; ValueError for one that may lead out of it."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or set(name) & set("\\:"):
        raise ValueError(name)
    return name


def entry_of(source: object, target: Target, options: Options, board: Mapping[str, Any] | None = None) -> Entry | None:
    """Where the compilation of a model's file is kept; None where it is not. ``board``: all that its file says."""
    folder = _folder() if options.cache and isinstance(source, Path) else None
    if folder is None or any(getattr(options, name) for name in _OPEN):
        return None
    assert isinstance(source, Path)
    chosen = {f.name: _plain(getattr(options, f.name)) for f in fields(options) if f.name not in _OPEN}
    core = (target.cpu, target.isa, sorted(target.features), target.flash_wait)
    made_from = (
        hashlib.sha256(contents(source)).hexdigest(), source.name, chosen, core, board,
        os.environ.get("SOURCE_DATE_EPOCH", ""), _compiler(),
    )  # fmt: skip
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True, default=repr).encode())
    return Entry(folder / f"{key.hexdigest()[:40]}.entry")


def _plain(value: Any) -> Any:
    """An option's value in an order of its own, whatever the process."""
    if isinstance(value, Mapping):
        return sorted((str(key), repr(each)) for key, each in value.items())
    return sorted(value) if isinstance(value, frozenset) else repr(value)


@lru_cache(maxsize=1)
def _compiler() -> str:
    """What changes with the compiler: its files as the file system tells them, Python and numpy."""
    digest = hashlib.sha256(repr((__version__, sys.version, np.__version__, platform.machine())).encode())
    for root in (
        Path(__file__).resolve().parents[1],
        file_access.templates(),
        file_access.runtime_c(),
        file_access.boards(),
    ):
        for folder, inner, names in os.walk(root):
            inner[:] = sorted(each for each in inner if each != "__pycache__")
            for name in sorted(names):
                state = os.stat(os.path.join(folder, name))
                digest.update(repr((folder, name, state.st_size, state.st_mtime_ns)).encode())
    return digest.hexdigest()


def _folder() -> Path | None:
    """``MICROC_CACHE``, or a folder in the user's own for such; None where that is empty, or where others may write."""
    named = os.environ.get("MICROC_CACHE")
    if named == "":
        return None
    try:
        folder = Path(named) if named else _users() / "microc"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except (OSError, RuntimeError):  # no home, or no right to write there
        return None
    if os.name == "posix" and (state.st_uid != os.getuid() or state.st_mode & _OTHERS_WRITE):
        return None
    return folder


def _users() -> Path:
    """Where programs keep what they can make again."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _evict(folder: Path) -> None:
    """Remove the entries that were not used for longest, until the rest keep within the bound."""
    entries = sorted(((path.stat(), path) for path in folder.glob("*.entry")), key=lambda each: -each[0].st_mtime_ns)
    size = 0
    for state, path in entries:
        size += state.st_size
        if size > BOUND:
            path.unlink(missing_ok=True)
