"""Writing files and folders so that nobody ever sees half of one, whatever ends the process.

What is new is made beside its place, under a name that begins with a dot and ends with ``.microc-new``, and takes the place in
one step: a file by ``rename``, a folder by exchanging both, where the system can, after which the old one is removed under that
name. Where it cannot, the old folder is renamed to ``.microc-old`` in between. The writer holds a lock on what it makes, so that
the next writer knows what a dead one left: it removes that, and puts back an old folder whose new one never came.
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
_NAME = 40
"""Letters of a target's name that stand in that of its temporary sibling, which must not be too long for the file system."""
_LONG_AGO = 24 * 3600.0
"""Seconds after which a sibling is taken for left behind where the system has no locks."""
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS."""
_HERE = -100
"""AT_FDCWD of Linux: paths are relative to the current folder."""


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary path beside ``target``; it takes ``target``'s place when the block succeeds, and vanishes otherwise."""
    temporary = _sibling(target, _NEW)
    try:
        _refuse_irregular(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        clear_left_behind(target.parent, target.name)
        temporary.open("xb").close()  # with the rights that files of this user have; mkstemp gives fewer
        lock = _lock(temporary)  # a writer who takes it for a dead one's before makes us write it again, no more
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        _unlock(lock)
        temporary.unlink(missing_ok=True)


def _refuse_irregular(target: Path) -> None:
    """OSError for a device or a pipe: a file that took its place would be no such thing."""
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OSError(EINVAL, "it is a device, a pipe or a socket, not a file", str(target))


def _sibling(target: Path, ends: str) -> Path:
    return target.parent / f".{target.name[:_NAME]}.{secrets.token_hex(8)}{ends}"


def clear_left_behind(folder: Path, name: str = "") -> None:
    """Remove from a folder what dead writers of a file or folder ``name`` left, of any name if empty; where such a writer had
    moved an old folder away and not put the new one in its place, the old one comes back.

    Only siblings that :func:`replacing` and :func:`replacing_folder` name, that belong to the user, and that nobody holds.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _OURS.fullmatch(entry.name)
            if found and (not name or found[1] == name[:_NAME]):
                with suppress(OSError):
                    _clear(Path(entry.path), folder / name if name and found[2] == _OLD else None)


def _clear(left: Path, place: Path | None) -> None:
    state = left.lstat()
    if hasattr(os, "getuid") and state.st_uid != os.getuid():
        return
    lock = None if left.is_symlink() else _lock(left)  # BlockingIOError where its writer lives
    if lock is None and time.time() - state.st_mtime < _LONG_AGO:
        return
    try:
        if place is not None and not os.path.lexists(place):
            os.rename(left, place)
        elif left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
    finally:
        _unlock(lock)


def _lock(path: Path) -> int | None:
    """Lock a file or folder for as long as this process lives, unless :func:`_unlock` is called; None where there are no locks,
    BlockingIOError where another process has it."""
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


def unwritable(target: Path, error: OSError, option: str = "-o") -> OutputError:
    """The one message for a place that cannot be written."""
    reason = error.strerror or str(error)
    hint = f"choose another place: {option} {free(target)}"
    if error.errno in (ENOSPC, EDQUOT):  # beside it is as little room
        hint = f"make room there, or name a folder on another disk: {option} FOLDER"
    elif error.errno == EROFS:
        hint = f"name a folder on a disk that can be written: {option} FOLDER"
    return OutputError(f"cannot write {target}: {reason}", where=str(target), hint=hint)


def free(target: Path) -> str:
    """A place beside one that is taken, or beside the file that is no folder on the way to it; as a shell takes it."""
    parents = [folder for folder in target.parents if folder.exists() and not folder.is_dir()]
    around = parents[-1].parent if parents else target.parent
    around = around if os.access(around, os.W_OK) or not around.exists() else Path()
    names = (f"{target.stem}{number}{target.suffix}" for number in ("", *range(2, _TRIED)))
    return shlex.quote(str(around / next((n for n in names if not (around / n).exists()), target.name)))


MARKER = "manifest.json"
_TRIED = 100
"""Names that are tried for a place that is free."""


def write_tree(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write a project: into a temporary folder first, which then replaces ``folder``.

    An existing folder is replaced only when it is empty or holds a project of ours (it has a manifest).
    """
    with replacing_folder(folder) as temporary:
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextmanager
def replacing_folder(folder: Path, marker: str | None = MARKER, option: str = "-o") -> Iterator[Path]:
    """A temporary folder that takes ``folder``'s place when the block succeeds, and vanishes otherwise.

    An existing one is replaced only when it is empty or holds a file ``marker`` of ours. ``option``: what the user names it by.
    """
    clear_left_behind(folder.parent, folder.name)
    check_folder(folder, marker, option)
    temporary = _sibling(folder, _NEW)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = _make_and_lock(temporary)
    except OSError as error:
        raise unwritable(folder, error, option) from error
    try:
        yield temporary
        os.chmod(temporary, 0o755)
        _put(temporary, folder)
    except OSError as error:
        raise unwritable(folder, error, option) from error
    finally:
        _unlock(lock)
        shutil.rmtree(temporary, ignore_errors=True)


def _make_and_lock(folder: Path) -> int | None:
    """Make a folder that bears its name only once it is locked, or else another writer could take it for a dead one's."""
    unlocked = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    lock = _lock(unlocked)
    try:
        os.rename(unlocked, folder)
    except OSError:
        _unlock(lock)
        unlocked.rmdir()
        raise
    return lock


def _put(new: Path, folder: Path) -> None:
    """Give ``new`` the place of a folder, whose old content is at ``new``, or nowhere, then."""
    if not folder.exists():
        os.rename(new, folder)
    elif not _exchange(new, folder):
        old, lock = _sibling(folder, _OLD), _lock(folder)
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


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, if the system and the file system can."""
    library = ctypes.CDLL(None) if os.name == "posix" else None
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return library.renamex_np(*names, _EXCHANGE) == 0  # type: ignore[union-attr, no-any-return]
    if hasattr(library, "renameat2"):
        return library.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0  # type: ignore[union-attr, no-any-return]
    return False


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """What the manifest in a folder says; None where there is none of ours: browsers have files of that name, too."""
    try:
        data = json.loads(read_bytes(folder / MARKER).decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {} if (folder / "model.h").is_file() else None  # damaged, beside what is ours
    return data if isinstance(data, dict) and {"schema_version", "microc"} <= set(data) else None


def _replaceable(folder: Path, marker: str | None) -> bool:
    if marker == MARKER:
        return manifest_of(folder) is not None
    return marker is not None and (folder / marker).is_file()


def check_folder(folder: Path, marker: str | None = MARKER, option: str = "-o") -> None:
    """OutputError for a folder that :func:`replacing_folder` would refuse, as far as that shows before the work."""
    check_place(folder / MARKER, option, folder)
    if folder.is_symlink() and folder.is_dir():
        raise OutputError(
            f"{folder} is a link to another folder",
            where=str(folder),
            hint=f"name the folder itself: {option} {shlex.quote(str(folder.resolve()))}",
        )
    if folder.is_dir() and any(folder.iterdir()) and not _replaceable(folder, marker):
        raise OutputError(
            f"{folder} holds other files",
            where=str(folder),
            hint=f"choose a new or empty folder: {option} {free(folder)}; nothing was written",
        )


def check_place(target: Path, option: str = "-o", told: Path | None = None) -> None:
    """OutputError where a file cannot be written, as far as that shows before the work: it is a folder, or below a file.
    ``told``: what the user named, if that is the folder of the file."""
    on_the_way = next(folder for folder in target.parents if folder.exists())
    if not on_the_way.is_dir():
        named = told or target
        what = f"{named} is a file" if on_the_way == named else f"cannot write {named}: {on_the_way} is a file"
        raise OutputError(what, where=str(named), hint=f"choose another place: {option} {free(named)}")
    if target.is_dir():
        raise unwritable(told or target, IsADirectoryError(EISDIR, os.strerror(EISDIR)), option)
    if not os.access(on_the_way, os.W_OK):
        raise unwritable(told or target, PermissionError(EACCES, os.strerror(EACCES)), option)
