"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


def unwritable(target: Path, error: OSError, option: str = "with -o") -> OutputError:
    """The one message for a place that cannot be written."""
    reason = error.strerror or str(error)
    return OutputError(f"cannot write {target}: {reason}", where=str(target), hint=f"choose another folder {option}")


MARKER = "manifest.json"


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
def replacing_folder(folder: Path, marker: str | None = MARKER, option: str = "with -o") -> Iterator[Path]:
    """A temporary folder that takes ``folder``'s place when the block succeeds, and vanishes otherwise.

    An existing one is replaced only when it is empty or holds a file ``marker`` of ours. ``option``: how the user names it.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file", where=str(folder), hint=f"choose another folder {option}")
    if folder.is_dir() and any(folder.iterdir()) and not _replaceable(folder, marker):
        raise OutputError(
            f"{folder} holds other files",
            where=str(folder),
            hint=f"choose a new or empty folder {option}; nothing was written",
        )
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
