# SPDX-License-Identifier: Apache-2.0
"""Write files and folders atomically: readers never see incomplete content, even if the process is killed.

New content is written to a temporary sibling: a file or folder beside the target path whose name begins with a dot and ends
with ``.microc-new``. The sibling then replaces the target. A file is replaced by ``rename``. A folder is exchanged with its
sibling in one system call, and the sibling, which is the old folder now, is removed. On systems without such a call the old
folder is first renamed to a name that ends with ``.microc-old``.

The writer locks the sibling while it works. A sibling without a lock was therefore left by a process that ended: the next
writer removes it, or renames it back to the target if it is an old folder whose replacement is missing.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EACCES, EDQUOT, EINVAL, EISDIR, ENOSPC, EROFS
from pathlib import Path
from typing import Any

from microc.base.file_access import read_bytes
from microc.base.operating_system import exchange_folders, is_own, lock_path, quote_argument, release_lock
from microc.errors import OutputError

_NEW, _OLD = ".microc-new", ".microc-old"
_TEMPORARY_NAME = re.compile(rf"\.(.*)\.[0-9a-f]{{16}}({re.escape(_NEW)}|{re.escape(_OLD)})", re.DOTALL)
"""Pattern of the names of temporary siblings. Its groups are the beginning of the target's name, and the suffix."""
NAME_PREFIX_LENGTH = 40
"""Maximum number of letters of the target's name that the name of its temporary sibling repeats. File systems limit the length
of names."""
_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | sum(getattr(os, n, 0) for n in ("O_BINARY", "O_NONBLOCK"))
ABANDONED_SECONDS = 24 * 3600.0
"""Age in seconds from which a temporary sibling counts as abandoned on systems without file locks."""


@contextmanager
def replace_atomically(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file beside ``target`` to write to.

    If the ``with`` block succeeds, the temporary file replaces ``target``; otherwise it is removed."""
    temporary = _temporary_sibling(target, _NEW)
    try:
        _refuse_irregular_file(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent, target.name)
        temporary.open("xb").close()  # with the user's default permissions; mkstemp would restrict them
        # If another writer removes the file before it is locked, it is created again when it is written.
        lock = lock_path(temporary)
    except OSError as error:
        raise unwritable_error(target, error) from error
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise unwritable_error(target, error) from error
    finally:
        release_lock(lock)
        temporary.unlink(missing_ok=True)


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file that several processes append to; create the file, for its owner alone, if it is missing.

    The line is written by one call, so that lines of processes that write at the same time do not mix. Raises OSError."""
    descriptor = os.open(path, _APPENDING, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _refuse_irregular_file(target: Path) -> None:
    """Raise OSError if ``target`` is a device, a pipe or a socket, which a regular file must not replace."""
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OSError(EINVAL, "it is a device, a pipe or a socket, not a file", str(target))


def _temporary_sibling(target: Path, suffix: str) -> Path:
    """Return an unused path in the folder of ``target`` for a temporary file or folder.

    The name consists of a dot, the beginning of the target's name, a random number and ``suffix``."""
    return target.parent / f".{target.name[:NAME_PREFIX_LENGTH]}.{secrets.token_hex(8)}{suffix}"


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove the temporary siblings that processes which have ended left in a folder.

    ``name``: the file name of the target whose siblings are removed; empty for the siblings of all targets. If such a
    process had renamed an old folder and the target is missing, the old folder is renamed back to the target. A file is
    removed only if its name is one that :func:`replace_atomically` and :func:`replace_folder_atomically` make, if it
    belongs to the user, and if no process has locked it."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _TEMPORARY_NAME.fullmatch(entry.name)
            if match and (not name or match[1] == name[:NAME_PREFIX_LENGTH]):
                with suppress(OSError):
                    _remove_leftover(Path(entry.path), folder / name if name and match[2] == _OLD else None)


def _remove_leftover(leftover: Path, original: Path | None) -> None:
    """Remove a temporary sibling that a process left, or rename it back to ``original``.

    It is renamed if ``original`` is not None and does not exist. Leftovers of other users are kept, and so are leftovers
    younger than :data:`ABANDONED_SECONDS` that cannot be locked. BlockingIOError if the writer still holds the lock."""
    state = leftover.lstat()
    if not is_own(state):
        return
    lock = None if leftover.is_symlink() else lock_path(leftover)  # BlockingIOError if its writer still runs
    if lock is None and time.time() - state.st_mtime < ABANDONED_SECONDS:
        return
    try:
        if original is not None and not os.path.lexists(original):
            os.rename(leftover, original)
        elif leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
    finally:
        release_lock(lock)


def unwritable_error(target: Path, error: OSError, option: str = "-o") -> OutputError:
    """Return the error for a file or folder that cannot be written. Its hint suggests another path.

    ``option``: the command line option that names the path, for the hint."""
    reason = error.strerror or str(error)
    hint = f"choose another place: {option} {find_unused_path(target)}"
    if error.errno in (ENOSPC, EDQUOT):  # a path in the same folder would have no more space
        hint = f"make room there, or name a folder on another disk: {option} FOLDER"
    elif error.errno == EROFS:
        hint = f"name a folder on a disk that can be written: {option} FOLDER"
    return OutputError(f"cannot write {target}: {reason}", where=str(target), hint=hint)


def find_unused_path(target: Path) -> str:
    """Return an unused path similar to ``target``, quoted for a shell.

    It is in the folder of ``target``. If one of that path's parents is a file, it is in the folder of that file; if the folder
    cannot be written, it is in the current folder."""
    parents = [folder for folder in target.parents if folder.exists() and not folder.is_dir()]
    parent = parents[-1].parent if parents else target.parent
    parent = parent if os.access(parent, os.W_OK) or not parent.exists() else Path()
    names = (f"{target.stem}{number}{target.suffix}" for number in ("", *range(2, MAX_CANDIDATES)))
    return quote_argument(str(parent / next((n for n in names if not (parent / n).exists()), target.name)))


PROJECT_MARKER = "manifest.json"
MAX_CANDIDATES = 100
"""Maximum number of names that are tried for an unused path."""


def write_tree(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write the files of a project into a temporary folder, which then replaces ``folder``.

    ``files``: content by path relative to ``folder``. An existing folder is replaced only if it is empty or contains a project
    that microc wrote, which is recognised by its manifest.
    """
    with replace_folder_atomically(folder) as temporary:
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextmanager
def replace_folder_atomically(folder: Path, marker: str | None = PROJECT_MARKER, option: str = "-o") -> Iterator[Path]:
    """Yield the path of a temporary folder to write to.

    If the ``with`` block succeeds, the temporary folder replaces ``folder``; otherwise it is removed. An existing folder is
    replaced only if it is empty or contains the file ``marker`` that microc wrote. ``option``: the command line option that
    names the folder, for hints.
    """
    remove_leftovers(folder.parent, folder.name)
    check_replaceable_folder(folder, marker, option)
    temporary = _temporary_sibling(folder, _NEW)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = _create_locked_folder(temporary)
    except OSError as error:
        raise unwritable_error(folder, error, option) from error
    try:
        yield temporary
        os.chmod(temporary, 0o755)
        _move_into_place(temporary, folder)
    except OSError as error:
        raise unwritable_error(folder, error, option) from error
    finally:
        release_lock(lock)
        shutil.rmtree(temporary, ignore_errors=True)


def _create_locked_folder(folder: Path) -> int | None:
    """Create a folder and lock it; return the lock's file descriptor, or None if the system has no locks.

    The folder gets its final name after it was locked. Under that name, an unlocked folder would look abandoned to another
    writer."""
    unlocked = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    lock = lock_path(unlocked)
    try:
        os.rename(unlocked, folder)
    except OSError:
        release_lock(lock)
        unlocked.rmdir()
        raise
    return lock


def _move_into_place(new_folder: Path, folder: Path) -> None:
    """Rename ``new_folder`` to ``folder``. The old ``folder``, if it exists, gets the path ``new_folder`` or is deleted."""
    if not folder.exists():
        os.rename(new_folder, folder)
    elif not exchange_folders(new_folder, folder):
        old, lock = _temporary_sibling(folder, _OLD), lock_path(folder)
        try:
            os.rename(folder, old)
            try:
                os.rename(new_folder, folder)
            except OSError:
                os.rename(old, folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
        finally:
            release_lock(lock)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read the manifest of a project.

    Return None if the folder contains no manifest that microc wrote; web applications have files of the same name. Return an
    empty dict if the manifest is damaged but the network's header ``model.h`` is in the folder."""
    try:
        data = json.loads(read_bytes(folder / PROJECT_MARKER).decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {} if (folder / "model.h").is_file() else None  # a damaged manifest in a project that microc wrote
    return data if isinstance(data, dict) and {"schema_version", "microc"} <= set(data) else None


def _contains_own_marker(folder: Path, marker: str | None) -> bool:
    """Test whether a folder may be replaced, because it contains the file ``marker`` that microc wrote.

    If ``marker`` is the name of a manifest, its content must also be that of a manifest of microc."""
    if marker == PROJECT_MARKER:
        return read_manifest(folder) is not None
    return marker is not None and (folder / marker).is_file()


def check_replaceable_folder(folder: Path, marker: str | None = PROJECT_MARKER, option: str = "-o") -> None:
    """Raise OutputError for a folder that :func:`replace_folder_atomically` would not replace.

    The check writes nothing, and therefore cannot detect every reason for which writing fails."""
    check_writable(folder / PROJECT_MARKER, option, folder)
    if folder.is_symlink() and folder.is_dir():
        raise OutputError(
            f"{folder} is a link to another folder",
            where=str(folder),
            hint=f"name the folder itself: {option} {quote_argument(str(folder.resolve()))}",
        )
    if folder.is_dir() and any(folder.iterdir()) and not _contains_own_marker(folder, marker):
        raise OutputError(
            f"{folder} contains files that microc did not write",
            where=str(folder),
            hint=f"choose a new or empty folder: {option} {find_unused_path(folder)}; nothing was written",
        )


def check_writable(target: Path, option: str = "-o", named_by_user: Path | None = None) -> None:
    """Raise OutputError if ``target`` cannot be written as a file.

    It cannot be written if it is a folder, if one of the parents in its path is a file, or if access is denied.
    ``named_by_user``: the path that errors name if the user named the file's folder rather than the file.
    """
    ancestor = next(folder for folder in target.parents if folder.exists())
    if not ancestor.is_dir():
        shown = named_by_user or target
        what = f"{shown} is a file" if ancestor == shown else f"cannot write {shown}: {ancestor} is a file"
        raise OutputError(what, where=str(shown), hint=f"choose another place: {option} {find_unused_path(shown)}")
    if target.is_dir():
        raise unwritable_error(named_by_user or target, IsADirectoryError(EISDIR, os.strerror(EISDIR)), option)
    if not os.access(ancestor, os.W_OK):
        raise unwritable_error(named_by_user or target, PermissionError(EACCES, os.strerror(EACCES)), option)
