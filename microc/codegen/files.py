"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import EACCES, EISDIR
from pathlib import Path
from typing import Any

from microc.errors import OutputError


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary path beside ``target``; it takes ``target``'s place when the block succeeds, and vanishes otherwise."""
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.open("xb").close()  # with the rights that files of this user have; mkstemp gives fewer
    except OSError as error:
        raise unwritable(target, error) from error
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def unwritable(target: Path, error: OSError, option: str = "-o") -> OutputError:
    """The one message for a place that cannot be written."""
    reason = error.strerror or str(error)
    return OutputError(
        f"cannot write {target}: {reason}", where=str(target), hint=f"choose another place: {option} {free(target)}"
    )


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
    check_folder(folder, marker, option)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise unwritable(folder, error, option) from error
    try:
        yield temporary
        os.chmod(temporary, 0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    except OSError as error:
        raise unwritable(folder, error, option) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """What the manifest in a folder says; None where there is none of ours: browsers have files of that name, too."""
    try:
        data = json.loads((folder / MARKER).read_text(encoding="utf-8"))
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
