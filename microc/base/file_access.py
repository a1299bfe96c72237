# SPDX-License-Identifier: Apache-2.0
"""Paths of the folders that come with the package, and reading of untrusted files with a size limit."""

from __future__ import annotations

import os
import re
import stat
from errno import EFBIG, EINVAL, EISDIR
from pathlib import Path
from typing import Any, BinaryIO

# ---- Locations of templates, boards and runtime_c: beside the package in a checkout, inside it in a wheel.

_PACKAGE = Path(__file__).resolve().parents[1]


def _package_data_folder(name: str) -> Path:
    """Return the path of a folder of the package's data: below ``_data`` in a wheel, beside the package in a
    checkout."""
    shipped = _PACKAGE / "_data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def templates_folder() -> Path:
    """Return the path of the folder of the Jinja templates."""
    return _package_data_folder("templates")


def boards_folder() -> Path:
    """Return the path of the folder of the board files."""
    return _package_data_folder("boards")


def examples_folder() -> Path:
    """Return the path of the folder of the examples. A wheel contains only the examples that ``microc demo`` needs."""
    return _package_data_folder("examples")


def runtime_c_folder() -> Path:
    """Return the path of the folder of the C runtime (framing, dispatcher, ports)."""
    return _package_data_folder("runtime_c")


# ---- Opening files from others: only regular files, of bounded size, and of a trusted owner if the user did not name them.
#
# A pipe, a device or a socket with the name of a file could block a command, or feed it endlessly. Each refusal is an OSError
# whose ``strerror`` is a sentence, so that callers report it in the same way as a missing file.

DEFAULT_MAX_BYTES = 1 << 30
"""Size limit of a file, in bytes, for readers that set no smaller limit."""
TRUST = "MICROC_TRUST"
"""Environment variable that lists trusted folders. Files in these are used whoever owns them, and may name plugins
and libraries to run."""
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NOCTTY", "O_NONBLOCK"))
_MAX_KEY_PARTS = 64
"""Parts of a dotted TOML key. Every TOML file of ours has at most 4 of them."""
_LONG_KEY = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MAX_KEY_PARTS}}}"""  # also in a string: none needs it
)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def open_regular_file(path: str | Path) -> BinaryIO:
    """Open a regular file for reading. Raise OSError for a folder, device, pipe or socket, without waiting for the
    other end of a pipe.

    The file's mode is tested twice: before opening, because opening alone may act on a device, and after opening,
    because the name may refer to another file by then."""
    _check_is_regular_file(os.stat(path).st_mode, path)
    descriptor = os.open(path, _FLAGS)
    try:
        _check_is_regular_file(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | Path, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """Read a whole regular file. Raise OSError if it has more than ``max_bytes`` bytes.

    The memory needed grows with the size of the file, not with ``max_bytes``."""
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, max_bytes) + 1)
        if size < len(data) <= max_bytes:  # it grew, or belongs to a file system that states no sizes
            data += file.read(max_bytes + 1 - len(data))
    if len(data) > max_bytes:
        raise OSError(EFBIG, f"it has more than {max_bytes:,} bytes", str(path))
    return data


def read_text(
    path: str | Path, max_bytes: int = DEFAULT_MAX_BYTES, encoding: str = "utf-8", errors: str = "strict"
) -> str:
    """Read a whole regular text file; line ends become ``\\n``. Raise UnicodeDecodeError if the bytes are not in
    ``encoding``."""
    return read_bytes(path, max_bytes).decode(encoding, errors).replace("\r\n", "\n").replace("\r", "\n")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML file from others. Raise ValueError for everything that is not a table of bounded depth and numbers.

    ``tomllib`` takes quadratic time for dotted keys, and raises RecursionError and a plain ValueError besides its own error."""
    import tomllib

    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {_MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # of int(), see sys.set_int_max_str_digits
        raise ValueError("a number has thousands of digits") from None


def _check_is_regular_file(file_mode: int, path: str | Path) -> None:
    """Raise OSError unless ``file_mode`` is the mode of a regular file."""
    if stat.S_ISDIR(file_mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    if not stat.S_ISREG(file_mode):
        raise OSError(EINVAL, "it is a device, a pipe or a socket, not a file", str(path))


def is_trusted(folder: Path) -> bool:
    """Test whether the environment variable ``MICROC_TRUST`` contains this folder."""
    named = os.environ.get(TRUST, "").split(os.pathsep)
    return any(candidate and Path(candidate).resolve() == folder.resolve() for candidate in named)


def distrust_reason(path: Path) -> str:
    """Return the reason why a file is not trusted, as a clause for error messages; an empty string if it is trusted.

    It applies to files that are read although the user did not name them.

    A file is trusted by the rule of git's ``safe.directory``: its owner is the user or root, and nobody else can
    write to it. The rule applies to the file, to the target of a symbolic link, and to the folders of both. A folder
    with the sticky bit may be writable by others, because they cannot replace files of another owner in it. Under
    ``sudo`` the user who called it counts as the user. On systems without file owners (Windows) every file is
    trusted."""
    if not hasattr(os, "getuid"):
        return ""
    users = _trusted_users()
    for candidate in dict.fromkeys((path, path.resolve())):
        for inspected, state in ((candidate, candidate.lstat()), (candidate.parent, candidate.parent.stat())):
            if state.st_uid not in users:
                return f"{inspected} belongs to {_login_name(state.st_uid)}, and the user is {_login_name(os.getuid())}"
            sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
            if (
                state.st_mode & _OTHERS_WRITE & ~_private_group_write_bit(state)
                and not sticky
                and not stat.S_ISLNK(state.st_mode)
            ):
                return f"others than its owner may write {inspected}"
    return ""


def _trusted_users() -> frozenset[int]:
    """Return the numeric ids of the trusted users: the user, root, and the user who called ``sudo``."""
    sudo_uid = os.environ.get("SUDO_UID", "")
    sudo = {int(sudo_uid)} if os.getuid() == _ROOT and sudo_uid.isdecimal() else set()
    return frozenset({os.getuid(), _ROOT, *sudo})


def _private_group_write_bit(file_status: os.stat_result) -> int:
    """Return the group-write bit of a file's mode if the file's owner is the only member of the file's group, else 0.

    Many systems create such a group for each user (umask 002). The bit then permits nobody else to write."""
    import grp
    import pwd

    try:
        group, owner = grp.getgrgid(file_status.st_gid), pwd.getpwuid(file_status.st_uid)
    except KeyError:
        return 0
    alone = (
        owner.pw_gid == file_status.st_gid and set(group.gr_mem) <= {owner.pw_name} and group.gr_name == owner.pw_name
    )
    return stat.S_IWGRP if alone else 0


def _login_name(user_id: int) -> str:
    """Return the login name of a user id."""
    import pwd

    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:  # of another machine, or a container's
        return f"user {user_id}"
