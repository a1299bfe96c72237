# SPDX-License-Identifier: Apache-2.0
"""Compilation cache on disk: the generated files and the report of each compiled network, and the schedules that were
chosen for kernels.

The key of an entry is a digest of the model, the options, the board and the compiler itself. An entry consists of
compressed JSON and a digest of these compressed bytes, and has at most :data:`MAX_ENTRY_BYTES` bytes. It is parsed but
never executed. A damaged entry counts as missing. Several processes may use the same folder, because each entry is
written atomically. The folder must belong to the user alone, since anyone who can write to the folder controls the
generated C.

Networks that differ in an option, a layer or their weights share most of their kernels. The choices of schedules are
therefore kept apart from the networks, as lines of one file for each core (:class:`ChoiceFile`).
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
from microc.base.file_access import open_regular_file, read_bytes
from microc.base.immutable import frozen
from microc.base.operating_system import is_private, user_cache_folder
from microc.codegen.output_files import append_line, replace_atomically
from microc.compiler.options import Options
from microc.errors import OutputError
from microc.frontend.detect import read_model_bytes
from microc.target import Target

MAX_CACHE_BYTES = 512 << 20
"""Size limit of the cache in bytes. Above this size, the least recently used entries are removed."""
MAX_ENTRY_BYTES = 256 << 20
"""Size limit of a single entry in bytes, both packed and unpacked."""
_ENTRY_HEADER = b"microc 1 "
_COMPRESSION_LEVEL = 1  # compression level: an entry is written about as often as it is read
_UNCACHED_OPTIONS = frozenset(
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
        "learn",
    }
)
"""Options that disable the cache of networks if they are set. They run code of the user, name a file that may change, or
observe the compilation itself."""
_OPTIONS_WITH_USER_CODE = ("plugins", "passes", "instruments", "schedules")
"""Options that disable the cache of choices, too. The others change what is chosen from, which is part of the key."""
MAX_CHOICE_BYTES = 16 << 20
"""Size limit of a file of choices in bytes, some 20,000 choices. A larger file is removed and begun again."""

Files = Mapping[str, str | bytes]


@frozen
class CachedNetwork:
    """The generated files of a cached network by name, and its report."""

    files: Files
    report: Mapping[str, Any]


@frozen
class CacheEntry:
    """An entry of the compilation cache: the file at ``path``, which may not exist yet."""

    path: Path

    def read(self) -> CachedNetwork | None:
        """Read the cached network; None if the entry is missing or damaged."""
        try:
            packed = read_bytes(self.path, MAX_ENTRY_BYTES)
            # The digest is of the compressed bytes, so that damaged data is never decompressed.
            digest, data = packed[len(_ENTRY_HEADER) :].split(b"\n", 1)
            if not packed.startswith(_ENTRY_HEADER) or hashlib.sha256(data).hexdigest().encode() != digest:
                return None
            entry = json.loads(zlib.decompressobj().decompress(data, MAX_ENTRY_BYTES))
            files: dict[str, str | bytes] = {}
            for name, text, content in entry["files"]:
                files[_validated_relative_path(name)] = str(content) if text else bytes.fromhex(content)
            os.utime(self.path)
            return CachedNetwork(files, dict(entry["report"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error, RecursionError):
            return None

    def write(self, files: Files, report: Mapping[str, Any]) -> None:
        """Store the generated files and the report of a compilation; do nothing if the folder is not writable."""
        rows = [
            (name, True, content) if isinstance(content, str) else (name, False, content.hex())
            for name, content in files.items()
        ]
        data = json.dumps({"files": rows, "report": report}).encode()
        if len(data) > MAX_ENTRY_BYTES:
            return
        packed = zlib.compress(data, _COMPRESSION_LEVEL)
        with suppress(OSError, OutputError):
            with replace_atomically(self.path) as temporary:
                temporary.write_bytes(_ENTRY_HEADER + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed)
            _remove_oldest_entries(self.path.parent)


class ChoiceFile:
    """The choices of schedules for one core, which outlive the process: a file of lines, to which processes append.

    A line consists of a key, a digest of the rest of the line, and JSON. A line that is damaged, or that another process
    has not finished, counts as missing. Lines that other processes append are read when a key is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[bytes, bytes] = {}
        self._inode, self._read_bytes = 0, 0

    def find(self, key: str) -> Any | None:
        """Return the JSON value of a key; None if there is none."""
        if key.encode() not in self._lines:
            self._read_appended_lines()
        try:
            digest, data = self._lines[key.encode()].split(b" ", 1)
            return json.loads(data) if _choice_digest(data) == digest else None
        except (KeyError, ValueError, RecursionError):
            return None

    def add(self, key: str, value: Any) -> None:
        """Append a key and its JSON value; do nothing if the file is not writable."""
        data = json.dumps(value, separators=(",", ":")).encode()
        line = b"%s %s %s\n" % (key.encode(), _choice_digest(data), data)
        with suppress(OSError):
            if self._read_bytes + len(line) > MAX_CHOICE_BYTES:
                self.path.unlink(missing_ok=True)
            is_new = not self.path.exists()
            append_line(self.path, line)
            if is_new:
                _remove_oldest_entries(self.path.parent)

    def _read_appended_lines(self) -> None:
        """Read the lines that were appended since the file was last read, or all lines if the file was replaced."""
        with suppress(OSError), open_regular_file(self.path) as file:
            state = os.fstat(file.fileno())
            if state.st_ino != self._inode or state.st_size < self._read_bytes:
                self._lines, self._inode, self._read_bytes = {}, state.st_ino, 0
                with suppress(OSError):  # a cache that may only be read
                    os.utime(self.path)
            start = file.seek(self._read_bytes)
            appended = file.read(max(MAX_CHOICE_BYTES - start, 0))
            complete = appended[: appended.rfind(b"\n") + 1]
            for line in complete.splitlines():
                key, _, entry = line.partition(b" ")
                self._lines[key] = entry
            self._read_bytes = start + len(complete)


def _choice_digest(data: bytes) -> bytes:
    """Return the digest with which a line of a file of choices begins, after its key."""
    return hashlib.sha256(data).hexdigest()[:16].encode()


def find_choice_file(target: Target, options: Options) -> ChoiceFile | None:
    """Return the file of choices for a compilation, whether the file exists or not; None if choices are not kept."""
    folder = _cache_folder() if options.cache else None
    if folder is None or any(getattr(options, name) for name in _OPTIONS_WITH_USER_CODE):
        return None
    digest = hashlib.sha256(repr((target.cpu, _compute_compiler_digest())).encode()).hexdigest()
    return _open_choice_file(folder / f"{digest[:40]}.choices")


@lru_cache(maxsize=4)
def _open_choice_file(path: Path) -> ChoiceFile:
    """Return the object of a file of choices, which compilations of a process share, so that lines are read once."""
    return ChoiceFile(path)


def _validated_relative_path(name: str) -> str:
    """Return a file name from a cache entry; ValueError unless it is a relative path inside of the project."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or set(name) & set("\\:"):
        raise ValueError(f"cache entry: got file name {name!r}, expected a relative path inside of the project")
    return name


def find_cache_entry(
    source: object, target: Target, options: Options, board: Mapping[str, Any] | None = None
) -> CacheEntry | None:
    """Return the cache entry for a compilation, whether the entry exists or not; None if the compilation cannot be
    cached.

    ``board``: the contents of the board file.
    """
    folder = _cache_folder() if options.cache and isinstance(source, Path) else None
    if folder is None or any(getattr(options, name) for name in _UNCACHED_OPTIONS):
        return None
    assert isinstance(source, Path)
    chosen = {
        f.name: _to_process_independent_value(getattr(options, f.name))
        for f in fields(options)
        if f.name not in _UNCACHED_OPTIONS
    }
    core = (target.cpu, target.isa, sorted(target.features), target.flash_wait, target.copies_weights)
    made_from = (
        hashlib.sha256(read_model_bytes(source)).hexdigest(), source.name, chosen, core, board,
        os.environ.get("SOURCE_DATE_EPOCH", ""), _compute_compiler_digest(),
    )  # fmt: skip
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True, default=repr).encode())
    return CacheEntry(folder / f"{key.hexdigest()[:40]}.entry")


def _to_process_independent_value(value: Any) -> Any:
    """Return a representation of an option's value that is identical in every process."""
    if isinstance(value, Mapping):
        return sorted((str(key), repr(each)) for key, each in value.items())
    return sorted(value) if isinstance(value, frozenset) else repr(value)


@lru_cache(maxsize=1)
def _compute_compiler_digest() -> str:
    """Return a digest that identifies the compiler.

    It covers the sizes and modification times of the compiler's files, and the versions of Python and numpy.
    """
    digest = hashlib.sha256(repr((__version__, sys.version, np.__version__, platform.machine())).encode())
    for root in (
        Path(__file__).resolve().parents[1],
        file_access.templates_folder(),
        file_access.runtime_c_folder(),
        file_access.boards_folder(),
    ):
        for folder, inner, names in os.walk(root):
            inner[:] = sorted(each for each in inner if each != "__pycache__")
            for name in sorted(names):
                state = os.stat(os.path.join(folder, name))
                digest.update(repr((folder, name, state.st_size, state.st_mtime_ns)).encode())
    return digest.hexdigest()


def _cache_folder() -> Path | None:
    """Return the cache folder: ``MICROC_CACHE``, or else a folder below the user's cache folder.

    None if the folder cannot be used or if other users can write to it.
    """
    named = os.environ.get("MICROC_CACHE")
    if named == "":
        return None
    try:
        folder = Path(named) if named else user_cache_folder() / "microc"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except (OSError, RuntimeError):  # there is no home folder, or it is not writable
        return None
    return folder if is_private(state) else None


def _remove_oldest_entries(folder: Path) -> None:
    """Remove the least recently used entries until the size of the cache is within :data:`MAX_CACHE_BYTES`."""
    paths = (path for path in folder.iterdir() if path.suffix in (".entry", ".choices"))
    entries = sorted(((path.stat(), path) for path in paths), key=lambda each: -each[0].st_mtime_ns)
    size = 0
    for state, path in entries:
        size += state.st_size
        if size > MAX_CACHE_BYTES:
            path.unlink(missing_ok=True)
