# SPDX-License-Identifier: Apache-2.0
"""Read arrays from files: NumPy's .npy and .npz, tables, WAV sounds, folders of samples."""

from __future__ import annotations

import csv
import os
import struct
import wave
import zipfile
import zlib
from math import prod
from pathlib import Path
from tokenize import TokenError
from types import MappingProxyType
from typing import BinaryIO, cast

import numpy as np
from numpy.lib import format as npy

from microc.base.dtypes import Array
from microc.base.file_access import open_regular_file, read_text
from microc.base.operating_system import quote_argument
from microc.device.board_info import make_printable
from microc.errors import UsageError, similar_files_hint
from microc.run.data import pictures

# ---- NumPy's .npy and .npz files from untrusted sources, read in bounded time and memory.
#
# The size that a header promises is checked against the bytes of the file or archive member before anything is allocated.
# Refused files raise ValueError with a message for the user; damaged ones raise the errors of zipfile and numpy.

_MAGIC = b"\x93NUMPY"
_HEADERS = MappingProxyType({(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0})
"""Readers of headers by version; each reads at most 10,000 characters."""
_KINDS = "biufcSU"
"""numpy kinds of dtypes that are numbers or text."""
_MAX_AXES = 32
_MAX_MEMBERS = 1 << 16
_MAX_DIRECTORY = 16 << 20
"""Bytes of an archive's directory, about 200 per member. zipfile creates an object for each member when it opens the
file."""
_UNPACKED_BASE = 1 << 30
_MAX_RATIO = 16
"""All members together may unpack to ``_UNPACKED_BASE`` bytes plus this multiple of the archive's size. Masks and
spectrograms are compressed by about 10 to 1; zip bombs consist of zeros, which deflate compresses by 1,030 to 1."""
_ZIP64_LOCATOR = 20
"""Bytes of the ZIP64 locator before the end record of a large archive."""


def load_numpy_file(file: BinaryIO) -> Array | dict[str, Array]:
    """Load the array of a .npy file, or the arrays of a .npz file by name.

    Raises ValueError for a file that is refused, and an error of :data:`DAMAGED_FILE_ERRORS` for a damaged file."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(len(_MAGIC))
    file.seek(0)
    if start == _MAGIC:
        return _load_npy(file, size, "it")
    if not start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise ValueError("expected a .npy or .npz file of NumPy")
    return _load_npz(file, size)


def _load_npz(file: BinaryIO, archive_bytes: int) -> dict[str, Array]:
    """Load the arrays of a .npz archive by name, after checking their number and total size."""
    _check_archive_directory(file, archive_bytes)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > _MAX_MEMBERS:
            raise ValueError(f"got {len(members):,} arrays, expected at most {_MAX_MEMBERS:,}")
        unpacked_size, max_size = (
            sum(member.file_size for member in members),
            _UNPACKED_BASE + _MAX_RATIO * archive_bytes,
        )
        if unpacked_size > max_size:
            raise ValueError(
                f"its {archive_bytes:,} bytes unpack to {unpacked_size:,} bytes, expected at most {max_size:,}"
            )
        arrays = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"two arrays have the name {name[:80]!r}")
            with archive.open(member) as stream:
                arrays[name] = _load_npy(cast(BinaryIO, stream), member.file_size, repr(name[:80]))
        return arrays


def _check_archive_directory(file: BinaryIO, archive_bytes: int) -> None:
    """Raise ValueError if the central directory of an archive is too large to read."""
    longest = 22 + (1 << 16) + _ZIP64_LOCATOR
    file.seek(max(0, archive_bytes - longest))
    tail = file.read(longest)
    file.seek(0)
    position = tail.rfind(b"PK\x05\x06")
    if position < 0 or position + 22 > len(tail):
        return  # not an archive: zipfile will report that
    sizes = [struct.unpack_from("<I", tail, position + 12)[0]]
    if position >= _ZIP64_LOCATOR and tail[position - _ZIP64_LOCATOR :].startswith(b"PK\x06\x07"):
        file.seek(min(struct.unpack_from("<Q", tail, position - _ZIP64_LOCATOR + 8)[0], archive_bytes))
        record = file.read(56)
        file.seek(0)
        sizes = [struct.unpack_from("<Q", record, 40)[0]] if len(record) == 56 else sizes
    if max(sizes) > _MAX_DIRECTORY:
        raise ValueError(f"its directory has {max(sizes):,} bytes, expected at most {_MAX_DIRECTORY:,}")


def _load_npy(file: BinaryIO, available_bytes: int, array_name: str) -> Array:
    """Load an array in .npy format from a stream of ``available_bytes`` bytes, header included.

    ``array_name``: name of the array in errors. Raises ValueError if the array contains neither numbers nor text, or if
    its header declares more elements than ``available_bytes`` can hold."""
    version = npy.read_magic(file)
    if version not in _HEADERS:  # version 3.0 is for records only
        raise ValueError(
            f"{array_name}: got version {'.'.join(map(str, version))} of the .npy format, expected 1.0 or 2.0"
        )
    shape, by_columns, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"{array_name} holds Python objects, whose loading can run code; expected numbers")
    if dtype.kind not in _KINDS or dtype.subdtype is not None:
        raise ValueError(f"{array_name}: got dtype {dtype}, expected numbers or text")
    if len(shape) > _MAX_AXES or any(type(extent) is not int or extent < 0 for extent in shape):
        raise ValueError(
            f"{array_name} has shape {str(shape)[:80]}, expected at most {_MAX_AXES} extents, none negative"
        )
    count, header_size = prod(shape), file.tell()
    if count * dtype.itemsize > available_bytes - header_size or max(shape, default=0) > 1 << 62:
        raise ValueError(
            f"{array_name} declares {count:,} elements of {dtype}, {count * dtype.itemsize:,} bytes; "
            f"got {max(available_bytes - header_size, 0):,} bytes"
        )
    data = _read_exactly(file, count * dtype.itemsize)
    array = np.frombuffer(data, dtype) if dtype.itemsize else np.zeros(0 if not count else 1, dtype)
    if array.size != count:
        raise ValueError(
            f"{array_name} holds texts of no characters, expected numbers or texts of one character at least"
        )
    return array.reshape(shape[::-1]).T if by_columns else array.reshape(shape)


def _read_exactly(file: BinaryIO, byte_count: int) -> bytearray:
    """Read the next ``byte_count`` bytes of a file; raise EOFError if there are fewer."""
    data, step = bytearray(), 1 << 20
    while len(data) < byte_count:
        block = file.read(min(step, byte_count - len(data)))
        if not block:
            raise EOFError(f"the file ends after {len(data):,} of {byte_count:,} bytes of an array")
        data += block
    return data


# ---- Sounds: WAV files with linear PCM; full scale is 1.

SUFFIX = ".wav"


def is_sound_file(path: Path) -> bool:
    """Test whether a file is a sound, by its suffix."""
    return path.suffix.lower() == SUFFIX


def read_sound_file(path: Path) -> Array:
    """Read the samples of a WAV file as float32 from -1 to 1, in shape (frames,) or (frames, channels).

    Raises UsageError for anything but linear PCM."""
    try:
        with open_regular_file(path) as opened, wave.open(opened, "rb") as file:
            width, channels = file.getsampwidth(), file.getnchannels()
            data = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
    except (wave.Error, EOFError) as error:
        raise UsageError(
            f"cannot read {path} as a WAV file: {error}", where=str(path),
            hint="convert it to WAV, linear PCM of 8 to 32 bits; or save the arrays with numpy.save",
        ) from error  # fmt: skip
    if width == 1:  # in WAV files, samples of 8 bits are unsigned, wider ones signed
        reals = data.astype(np.float32) / 128 - 1
    else:
        wide = np.zeros((len(data) // width, 4), np.uint8)
        wide[:, 4 - width :] = data[: len(wide) * width].reshape(-1, width)
        reals = (wide.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    return reals if channels == 1 else reals[: len(reals) // channels * channels].reshape(-1, channels)


# ---- Files and folders that hold arrays: NumPy's, tables, and folders with one file per sample.

CLASSES = "classes of folders"
"""Name of the array of class numbers derived from the names of subfolders."""
ROWS = ""
"""Name of an array without a name."""
DAMAGED_FILE_ERRORS = (
    ValueError, EOFError, MemoryError, SyntaxError, TokenError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError,
    KeyError, TypeError, OverflowError, IndexError, AttributeError, struct.error, csv.Error,
)  # fmt: skip
"""Errors of numpy, zipfile and csv for files that are damaged, encrypted or of an unknown type."""
_TABLES = (".csv", ".txt", ".tsv")
_HINT = (
    "give .npz or .npy files (numpy.savez, numpy.save), tables (.csv), pictures, sounds (.wav), or folders of samples"
)


def is_table_file(path: Path) -> bool:
    """Test whether a file is a table of numbers as text, by its suffix."""
    return path.suffix.lower() in _TABLES


def contains_pictures(path: Path) -> bool:
    """Test whether a path is a picture, or a folder that contains pictures."""
    return (path.is_dir() and any(map(pictures.is_picture, path.rglob("*")))) or pictures.is_picture(path)


def load_npy_file(path: Path) -> Array:
    """Load the array of a .npy file; raise UsageError if the file cannot be read, or contains anything but an array of
    numbers."""
    try:
        with open_regular_file(path) as file:
            array = load_numpy_file(file)
    except OSError as error:
        hint = similar_files_hint(path) or "write it with numpy.save"
        raise UsageError(f"cannot read {path}: {error.strerror or error}", where=str(path), hint=hint) from error
    except DAMAGED_FILE_ERRORS as error:
        hint = f'write numbers: numpy.save("{path.stem}.npy", array)'
        why = f": {make_printable(str(error), 300)}" if type(error) in (ValueError, EOFError) else ""
        raise UsageError(f"{path} is no .npy file of numbers{why}", where=str(path), hint=hint) from error
    if not isinstance(array, np.ndarray):
        hint = f'save each array to its own file: numpy.save("{path.stem}.npy", arrays[{next(iter(array), "")!r}])'
        raise UsageError(f"{path}: got an archive of arrays, expected a .npy file of one", where=str(path), hint=hint)
    return array


def read_arrays(path: Path, picture_reader: pictures.PictureReader | None = None) -> dict[str, Array]:
    """Read arrays by name from a file or folder; an array without a name gets the name :data:`ROWS`.

    ``picture_reader``: reader of pictures; None if no input of the network is a picture. Raises UsageError if the file
    or folder cannot be read."""
    try:
        if path.is_dir():
            return _read_sample_folder(path, picture_reader)
        if picture_reader and pictures.is_picture(path):
            return {ROWS: picture_reader.read(path)[np.newaxis]}
        if is_sound_file(path):
            return {ROWS: read_sound_file(path)[np.newaxis]}
        if is_table_file(path):
            return _read_number_table(path)
        with open_regular_file(path) as file:
            loaded = load_numpy_file(file)
            return {ROWS: loaded} if isinstance(loaded, np.ndarray) else loaded
    except OSError as error:
        hint = similar_files_hint(path) or _HINT
        raise UsageError(f"cannot read {path}: {error.strerror or error}", where=str(path), hint=hint) from error
    except DAMAGED_FILE_ERRORS as error:
        reason = f": {error}" if type(error) in (ValueError, EOFError) else ""
        raise UsageError(
            f"cannot read arrays from {path}{make_printable(reason, 300)}",
            where=str(path),
            hint=_table_suffix_hint(path) or _HINT,
        ) from error


def _table_suffix_hint(path: Path) -> str:
    """Return the hint to rename a file to ``.csv`` if its content is a table; else an empty text."""
    try:
        _read_number_table(path)
    except (OSError, ValueError, UsageError):
        return ""
    return f"it holds a table: mv {quote_argument(str(path))} {quote_argument(str(path.with_suffix('.csv')))}"


def _read_sample_folder(folder: Path, picture_reader: pictures.PictureReader | None) -> dict[str, Array]:
    """Read a folder with one file per sample, or with one subfolder of such files per class.

    The class numbers are the subfolders' names if all are decimal numbers, else their positions in alphabetical
    order."""
    class_folders = sorted(path for path in folder.iterdir() if path.is_dir() and _list_sample_files(path))
    numbers = (
        [int(k.name) for k in class_folders]
        if all(k.name.isdecimal() for k in class_folders)
        else list(range(len(class_folders)))
    )
    # In the order of ``files`` below: samples sorted within each class, classes in the order of their folders.
    classes = [n for k, n in zip(class_folders, numbers, strict=True) for _ in _list_sample_files(k)]
    files = _list_sample_files(folder) + [path for folder in class_folders for path in _list_sample_files(folder)]
    # With classes every sample needs one, so that files beside the class folders are an error.
    if not files or (class_folders and len(classes) != len(files)):
        reason = "files beside folders of classes" if files else "no .npy files, pictures or sounds"
        raise UsageError(
            f"{folder} holds {reason}, expected one file for each sample",
            where=str(folder),
            hint="put the files of all samples into the folder, or all into folders of classes",
        )
    if picture_reader is None and any(map(pictures.is_picture, files)):
        raise UsageError(
            f"{folder}: a network with several inputs takes no pictures; got a folder of pictures",
            where=str(folder),
            hint=_HINT,
        )
    arrays = [_read_sample_file(path, picture_reader) for path in files]
    for path, array in zip(files, arrays, strict=True):
        if (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
            raise UsageError(
                f"{path.name}: got {array.dtype}{array.shape}, expected {arrays[0].dtype}{arrays[0].shape} "
                f"as in {files[0].name}",
                where=str(folder),
                hint="give all samples one shape and dtype",
            )
    arrays_by_name: dict[str, Array] = {ROWS: np.stack(arrays)}
    return {**arrays_by_name, CLASSES: np.array(classes)} if class_folders else arrays_by_name


def _list_sample_files(folder: Path) -> list[Path]:
    """List the .npy files, pictures and sounds in a folder, sorted by name."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() == ".npy" or pictures.is_picture(path) or is_sound_file(path)
    )


def _read_sample_file(path: Path, picture_reader: pictures.PictureReader | None) -> Array:
    """Read the array of one sample from a picture, sound or .npy file."""
    if picture_reader and pictures.is_picture(path):
        return picture_reader.read(path)
    if is_sound_file(path):
        return read_sound_file(path)
    with open_regular_file(path) as file:
        loaded = load_numpy_file(file)
    if not isinstance(loaded, np.ndarray):
        raise ValueError(f"{path.name} is an archive of several arrays, expected one array")
    return loaded


def _read_number_table(path: Path) -> dict[str, Array]:
    """Read a table of real numbers, one sample per row, with cells between commas, tabs or semicolons.

    The whole table has the name :data:`ROWS`. If the first row has names, each column is also returned under its name.
    Raises UsageError if a cell is no number."""
    text = read_text(path, encoding="utf-8-sig")
    mark = next((m for m in "\t;" if m in text), ",")
    rows = [row for row in csv.reader(text.splitlines(), delimiter=mark) if row]
    if not rows:
        raise UsageError(
            f"{path} is empty, expected rows of numbers", where=str(path), hint="write one sample a row, with commas"
        )
    header = [name.strip() for name in rows[0]] if not all(map(_is_number, rows[0])) else []
    if len(set(header)) < len(header):
        raise UsageError(
            f"{path.name}: two columns are called {next(name for name in header if header.count(name) > 1)!r}",
            where=str(path),
            hint="rename one: columns are found by their names",
        )
    body = rows[1:] if header else rows
    for number, row in enumerate(body, 2 if header else 1):
        if len(row) != len(rows[0]) or not all(map(_is_number, row)):
            raise UsageError(
                f"{path.name}: row {number} does not hold {len(rows[0])} numbers; got {make_printable(', '.join(row), 80)}",
                where=str(path),
                hint=f"write one sample a row, with {len(rows[0])} numbers as in the first row",
            )
    table = np.array([[float(cell) for cell in row] for row in body]).reshape(len(body), len(rows[0]))
    return {ROWS: table} | {name: table[:, k] for k, name in enumerate(header)}


def _is_number(text: str) -> bool:
    """Test whether text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
