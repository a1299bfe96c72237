"""Write files and folders atomically: no reader ever sees half of one, whatever ends the process.

New content is written beside its target, under a name that begins with a dot and ends with ``.microc-new``, and replaces the
target in one step: a file by ``rename``, a folder by an exchange of both, if the system has one, after which the old folder
is removed under that name. Otherwise the old folder is renamed to ``.microc-old`` in between. The writer holds a lock on the
new content, so that the next writer recognises leftovers of a dead one: it removes them, and restores an old folder whose
replacement never came.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EACCES, EDQUOT, EINVAL, EISDIR, ENOSPC, EROFS
from pathlib import Path
from typing import Any

from microc.base.file_access import read_bytes
from microc.errors import OutputError

_NEW, _OLD = ".microc-new", ".microc-old"
_OURS = re.compile(rf"\.(.*)\.[0-9a-f]{{16}}({re.escape(_NEW)}|{re.escape(_OLD)})", re.DOTALL)
NAME_PREFIX_LENGTH = 40
"""Length of the target's name in that of its temporary sibling, which must not be too long for the file system."""
ABANDONED_SECONDS = 24 * 3600.0
"""Age in seconds from which a sibling counts as abandoned on systems without locks."""
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS."""
_HERE = -100
"""AT_FDCWD of Linux: paths are relative to the current folder."""


@contextmanager
def replace_atomically(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``target``, which replaces ``target`` if the block succeeds and is removed otherwise."""
    temporary = _temporary_sibling(target, _NEW)
    try:
        _refuse_irregular(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent, target.name)
        temporary.open("xb").close()  # with the rights that files of this user have; mkstemp gives fewer
        lock = _lock(temporary)  # a writer who takes it for a dead one's before makes us write it again, no more
    except OSError as error:
        raise unwritable_error(target, error) from error
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise unwritable_error(target, error) from error
    finally:
        _unlock(lock)
        temporary.unlink(missing_ok=True)


def _refuse_irregular(target: Path) -> None:
    """Raise OSError for a device or a pipe, which a regular file must not replace."""
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OSError(EINVAL, "it is a device, a pipe or a socket, not a file", str(target))


def _temporary_sibling(target: Path, suffix: str) -> Path:
    """Return an unused hidden path beside ``target``, of the beginning of its name, a random number and ``suffix``."""
    return target.parent / f".{target.name[:NAME_PREFIX_LENGTH]}.{secrets.token_hex(8)}{suffix}"


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove the temporary siblings that ended writers left in a folder, of the target ``name`` (empty: of any target).

    If such a writer had moved an old folder away and not put the new one in its place, the old one is restored. Only
    siblings that :func:`replace_atomically` and :func:`replace_folder_atomically` name, that belong to the user, and
    that are not locked are touched."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _OURS.fullmatch(entry.name)
            if match and (not name or match[1] == name[:NAME_PREFIX_LENGTH]):
                with suppress(OSError):
                    _remove_leftover(Path(entry.path), folder / name if name and match[2] == _OLD else None)


def _remove_leftover(leftover: Path, original: Path | None) -> None:
    """Remove a temporary sibling that an ended writer left, or restore it as ``original`` if that is given and does not
    exist.

    Leftovers of other users are kept, and so are young ones that cannot be locked. BlockingIOError if the writer still
    holds the lock."""
    state = leftover.lstat()
    if hasattr(os, "getuid") and state.st_uid != os.getuid():
        return
    lock = None if leftover.is_symlink() else _lock(leftover)  # BlockingIOError where its writer lives
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
        _unlock(lock)


def _lock(path: Path) -> int | None:
    """Lock a file or folder until :func:`_unlock` or the end of this process, and return the lock's file descriptor.

    None if the system has no locks; BlockingIOError if another process holds the lock."""
    try:
        import fcntl
    except ImportError:  # Windows, whose open files cannot be renamed
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # a file system without locks
        os.close(descriptor)
        return None
    return descriptor


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def unwritable_error(target: Path, error: OSError, option: str = "-o") -> OutputError:
    """Return the error for a target that cannot be written, with a hint for another."""
    reason = error.strerror or str(error)
    hint = f"choose another place: {option} {free_path(target)}"
    if error.errno in (ENOSPC, EDQUOT):  # beside it is as little room
        hint = f"make room there, or name a folder on another disk: {option} FOLDER"
    elif error.errno == EROFS:
        hint = f"name a folder on a disk that can be written: {option} FOLDER"
    return OutputError(f"cannot write {target}: {reason}", where=str(target), hint=hint)


def free_path(target: Path) -> str:
    """Return, quoted for a shell, an unused path beside ``target``, or beside the file that blocks the way to it."""
    parents = [folder for folder in target.parents if folder.exists() and not folder.is_dir()]
    parent = parents[-1].parent if parents else target.parent
    parent = parent if os.access(parent, os.W_OK) or not parent.exists() else Path()
    names = (f"{target.stem}{number}{target.suffix}" for number in ("", *range(2, MAX_CANDIDATES)))
    return shlex.quote(str(parent / next((n for n in names if not (parent / n).exists()), target.name)))


PROJECT_MARKER = "manifest.json"
MAX_CANDIDATES = 100
"""Maximum number of names that are tried for an unused path."""


def write_tree(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write a project into a temporary folder, which then replaces ``folder``.

    An existing folder is replaced only if it is empty or holds a project of ours (it has a manifest).
    """
    with replace_folder_atomically(folder) as temporary:
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextmanager
def replace_folder_atomically(folder: Path, marker: str | None = PROJECT_MARKER, option: str = "-o") -> Iterator[Path]:
    """Yield a temporary folder that replaces ``folder`` if the block succeeds, and is removed otherwise.

    An existing folder is replaced only if it is empty or holds our file ``marker``. ``option``: the option that names it, for
    hints.
    """
    remove_leftovers(folder.parent, folder.name)
    check_folder(folder, marker, option)
    temporary = _temporary_sibling(folder, _NEW)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = _make_and_lock(temporary)
    except OSError as error:
        raise unwritable_error(folder, error, option) from error
    try:
        yield temporary
        os.chmod(temporary, 0o755)
        _move_into_place(temporary, folder)
    except OSError as error:
        raise unwritable_error(folder, error, option) from error
    finally:
        _unlock(lock)
        shutil.rmtree(temporary, ignore_errors=True)


def _make_and_lock(folder: Path) -> int | None:
    """Create a folder that gets its name only when it is locked: another writer could take it for an abandoned one before."""
    unlocked = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    lock = _lock(unlocked)
    try:
        os.rename(unlocked, folder)
    except OSError:
        _unlock(lock)
        unlocked.rmdir()
        raise
    return lock


def _move_into_place(new: Path, folder: Path) -> None:
    """Move ``new`` to ``folder``; the old content, if any, is then at ``new`` or deleted."""
    if not folder.exists():
        os.rename(new, folder)
    elif not _exchange_folders(new, folder):
        old, lock = _temporary_sibling(folder, _OLD), _lock(folder)
        try:
            os.rename(folder, old)
            try:
                os.rename(new, folder)
            except OSError:
                os.rename(old, folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
        finally:
            _unlock(lock)


def _exchange_folders(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False if the system or the file system cannot."""
    library = ctypes.CDLL(None) if os.name == "posix" else None
    names = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return library.renamex_np(*names, _EXCHANGE) == 0  # type: ignore[union-attr, no-any-return]
    if hasattr(library, "renameat2"):
        return library.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0  # type: ignore[union-attr, no-any-return]
    return False


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read a project's manifest.

    None if the folder holds no manifest of ours (browsers have files of that name, too). An empty dict if the file is
    damaged but a network's header is beside it."""
    try:
        data = json.loads(read_bytes(folder / PROJECT_MARKER).decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {} if (folder / "model.h").is_file() else None  # damaged, beside what is ours
    return data if isinstance(data, dict) and {"schema_version", "microc"} <= set(data) else None


def _holds_own_marker(folder: Path, marker: str | None) -> bool:
    """Test whether a folder holds our file ``marker``, so that it may be replaced. A project's manifest must be one of
    ours."""
    if marker == PROJECT_MARKER:
        return read_manifest(folder) is not None
    return marker is not None and (folder / marker).is_file()


def check_folder(folder: Path, marker: str | None = PROJECT_MARKER, option: str = "-o") -> None:
    """Raise OutputError for a folder that :func:`replace_folder_atomically` would refuse, as far as that can be known
    before anything is written."""
    check_writable(folder / PROJECT_MARKER, option, folder)
    if folder.is_symlink() and folder.is_dir():
        raise OutputError(
            f"{folder} is a link to another folder",
            where=str(folder),
            hint=f"name the folder itself: {option} {shlex.quote(str(folder.resolve()))}",
        )
    if folder.is_dir() and any(folder.iterdir()) and not _holds_own_marker(folder, marker):
        raise OutputError(
            f"{folder} holds other files",
            where=str(folder),
            hint=f"choose a new or empty folder: {option} {free_path(folder)}; nothing was written",
        )


def check_writable(target: Path, option: str = "-o", named_by_user: Path | None = None) -> None:
    """Raise OutputError if a file cannot be written: it is a folder, is below a file, or access is denied.

    ``named_by_user``: the folder of the file, if the user named that.
    """
    ancestor = next(folder for folder in target.parents if folder.exists())
    if not ancestor.is_dir():
        shown = named_by_user or target
        what = f"{shown} is a file" if ancestor == shown else f"cannot write {shown}: {ancestor} is a file"
        raise OutputError(what, where=str(shown), hint=f"choose another place: {option} {free_path(shown)}")
    if target.is_dir():
        raise unwritable_error(named_by_user or target, IsADirectoryError(EISDIR, os.strerror(EISDIR)), option)
    if not os.access(ancestor, os.W_OK):
        raise unwritable_error(named_by_user or target, PermissionError(EACCES, os.strerror(EACCES)), option)
