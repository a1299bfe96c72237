# SPDX-License-Identifier: Apache-2.0
"""Paths of the folders that come with the package, reading of untrusted files with a size limit, and writing of text."""

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


# ---- Opening files from others: only regular files, of bounded size, and of a trusted owner if the user did not name them
# (:func:`microc.base.operating_system.distrust_reason`).
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
_LONG_KEY = re.compile(  # also rejects such text inside strings, which no file of ours contains
    rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MAX_KEY_PARTS}}}"""
)


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
    """Parse a TOML file from others. Raise ValueError if it is not TOML, or if keys, nesting or numbers exceed the limits.

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


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8. Its line ends are those of ``text``, so that every system writes the same bytes."""
    path.write_bytes(text.encode("utf-8"))


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
