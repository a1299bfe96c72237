"""Files: the package's own folders, and files of others, opened within bounds."""

from __future__ import annotations

import os
import stat
from errno import EFBIG, EINVAL, EISDIR
from pathlib import Path
from typing import BinaryIO

# ---- Where templates, boards and runtime_c live: in a checkout beside the package, in a wheel inside it.

_PACKAGE = Path(__file__).resolve().parents[1]


def _folder(name: str) -> Path:
    shipped = _PACKAGE / "_data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def templates() -> Path:
    """Folder of the Jinja templates."""
    return _folder("templates")


def boards() -> Path:
    """Folder of the board files."""
    return _folder("boards")


def examples() -> Path:
    """Folder of the examples; a wheel has what the demonstration needs."""
    return _folder("examples")


def runtime_c() -> Path:
    """Folder of the C runtime (framing, dispatcher, ports)."""
    return _folder("runtime_c")


# ---- Opening files that others may have made: regular files alone, of a bounded size, and of a known owner where
# nobody named them.
#
# A pipe, a device or a socket under the name of a file would block a command, or feed it for ever. Each refusal is an OSError
# whose ``strerror`` is a sentence, so that callers report it as they report a file that is not there.

LARGEST = 1 << 30
"""Bytes of a file of which the reader knows no smaller bound."""
TRUST = "MICROC_TRUST"
"""The environment's list of folders whose files are used whoever owns them, and may name plugins and libraries, which run."""
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NOCTTY", "O_NONBLOCK"))
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading; OSError for all else. Nothing waits for the other end of a pipe.

    The mode is compared twice: before opening, since opening alone may act on a device, and after it, since the name may have
    been given to another file.
    """
    _refuse_irregular(os.stat(path).st_mode, path)
    descriptor = os.open(path, _FLAGS)
    try:
        _refuse_irregular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | Path, most: int = LARGEST) -> bytes:
    """Read a whole regular file; OSError for one of more than ``most`` bytes. Memory is taken for what a file has."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, most) + 1)
        if size < len(data) <= most:  # it grew, or belongs to a file system that states no sizes
            data += file.read(most + 1 - len(data))
    if len(data) > most:
        raise OSError(EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def read_text(path: str | Path, most: int = LARGEST, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Read a whole regular file of text; UnicodeDecodeError for what is none. Line ends become ``\\n``."""
    return read_bytes(path, most).decode(encoding, errors).replace("\r\n", "\n").replace("\r", "\n")


def _refuse_irregular(mode: int, path: str | Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(EINVAL, "it is a device, a pipe or a socket, not a file", str(path))


def is_trusted(folder: Path) -> bool:
    """Test whether the user names this folder in ``MICROC_TRUST``."""
    named = os.environ.get(TRUST, "").split(os.pathsep)
    return any(each and Path(each).resolve() == folder.resolve() for each in named)


def foreign_reason(path: Path) -> str:
    """Return why a file that nobody named is not the user's own, as a clause; empty for one that is.

    The rule is that of git's ``safe.directory``, for the file, the file that a link names, and the folders of both: the owner is
    the user or root, and nobody else can write it. A folder with the sticky bit may be written by others, who cannot replace a
    file of another owner there. Under ``sudo`` the user is the one who called it. Without owners (Windows) nothing is refused.
    """
    if not hasattr(os, "getuid"):
        return ""
    users = _users()
    for each in dict.fromkeys((path, path.resolve())):
        for place, state in ((each, each.lstat()), (each.parent, each.parent.stat())):
            if state.st_uid not in users:
                return f"{place} belongs to {_name(state.st_uid)}, and the user is {_name(os.getuid())}"
            sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
            if state.st_mode & _OTHERS_WRITE & ~_own_group(state) and not sticky and not stat.S_ISLNK(state.st_mode):
                return f"others than its owner may write {place}"
    return ""


def _users() -> frozenset[int]:
    """The user, root, and who became root by ``sudo``."""
    told = os.environ.get("SUDO_UID", "")
    sudo = {int(told)} if os.getuid() == _ROOT and told.isdecimal() else set()
    return frozenset({os.getuid(), _ROOT, *sudo})


def _own_group(state: os.stat_result) -> int:
    """The bit that lets a group write, where that group holds its owner alone: many systems give each user one (umask 002)."""
    import grp
    import pwd

    try:
        group, owner = grp.getgrgid(state.st_gid), pwd.getpwuid(state.st_uid)
    except KeyError:
        return 0
    alone = owner.pw_gid == state.st_gid and set(group.gr_mem) <= {owner.pw_name} and group.gr_name == owner.pw_name
    return stat.S_IWGRP if alone else 0


def _name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # of another machine, or a container's
        return f"user {user}"
