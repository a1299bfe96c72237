"""Files that hold arrays, and sounds."""

from __future__ import annotations

import csv
import os
import shlex
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
from microc.base.file_access import open_regular, read_text
from microc.device.board_info import readable
from microc.errors import UsageError, nearest_file
from microc.run.data import pictures

# ---- NumPy's .npy and .npz files of others, in bounded time and memory.
#
# A header is believed only as far as the file, or the member of the archive, has the bytes for it. ValueError, whose words are
# for the user, for all that is refused; zipfile's and numpy's own errors for damaged files.

_MAGIC = b"\x93NUMPY"
_HEADERS = MappingProxyType({(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0})
"""Readers of headers, which take 10,000 characters at most."""
_KINDS = "biufcSU"
"""Kinds of dtypes that are numbers or texts."""
_MOST_AXES = 32
_MOST_MEMBERS = 1 << 16
_MOST_DIRECTORY = 16 << 20
"""Bytes of an archive's list of members, 200 each: zipfile makes an object of every one before anybody is asked."""
_ROOM = 1 << 30
_RATIO = 16
"""All members may unpack to ``_ROOM`` bytes and so many times the archive's size: masks and spectrograms pack by 10 to 1,
zeros, which bombs are made of, by 1,030 to 1."""
_ZIP64 = 20
"""Bytes of the record in front of an archive's end where the archive is a large one."""


def load(file: BinaryIO) -> Array | dict[str, Array]:
    """The array of a .npy file, or the arrays of a .npz file by their names."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(len(_MAGIC))
    file.seek(0)
    if start == _MAGIC:
        return _array(file, size, "it")
    if not start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise ValueError("it is no file of NumPy's")
    return _arrays(file, size)


def _arrays(file: BinaryIO, size: int) -> dict[str, Array]:
    _check_directory(file, size)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS:
            raise ValueError(f"it has {len(members):,} arrays; the most are {_MOST_MEMBERS:,}")
        total, most = sum(member.file_size for member in members), _ROOM + _RATIO * size
        if total > most:
            raise ValueError(f"its {size:,} bytes unpack to {total:,}; the most are {most:,}")
        found = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise ValueError(f"it has two arrays {name[:80]!r}")
            with archive.open(member) as part:
                found[name] = _array(cast(BinaryIO, part), member.file_size, repr(name[:80]))
        return found


def _check_directory(file: BinaryIO, size: int) -> None:
    """ValueError for a list of members that is too large to be read."""
    longest = 22 + (1 << 16) + _ZIP64
    file.seek(max(0, size - longest))
    end = file.read(longest)
    file.seek(0)
    at = end.rfind(b"PK\x05\x06")
    if at < 0 or at + 22 > len(end):
        return  # zipfile says that it is no archive
    sizes = [struct.unpack_from("<I", end, at + 12)[0]]
    if at >= _ZIP64 and end[at - _ZIP64 :].startswith(b"PK\x06\x07"):
        file.seek(min(struct.unpack_from("<Q", end, at - _ZIP64 + 8)[0], size))
        record = file.read(56)
        file.seek(0)
        sizes = [struct.unpack_from("<Q", record, 40)[0]] if len(record) == 56 else sizes
    if max(sizes) > _MOST_DIRECTORY:
        raise ValueError(f"its list of arrays has {max(sizes):,} bytes; the most are {_MOST_DIRECTORY:,}")


def _array(file: BinaryIO, size: int, what: str) -> Array:
    """The array of ``size`` bytes of a file, header included."""
    version = npy.read_magic(file)
    if version not in _HEADERS:  # 3.0 is written for records alone
        raise ValueError(f"{what} is of version {version}, expected 1.0 or 2.0")
    shape, by_columns, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects, which would be run: save numbers")
    if dtype.kind not in _KINDS or dtype.subdtype is not None:
        raise ValueError(f"{what} is of dtype {dtype}, expected numbers")
    if len(shape) > _MOST_AXES or any(type(extent) is not int or extent < 0 for extent in shape):
        raise ValueError(f"{what} has the shape {str(shape)[:80]}")
    count, taken = prod(shape), file.tell()
    if count * dtype.itemsize > size - taken or max(shape, default=0) > 1 << 62:
        raise ValueError(f"{what} promises {count:,} numbers of {dtype}; there are {max(size - taken, 0):,} bytes")
    data = _exactly(file, count * dtype.itemsize)
    array = np.frombuffer(data, dtype) if dtype.itemsize else np.zeros(0 if not count else 1, dtype)
    if array.size != count:
        raise ValueError(f"{what} holds empty texts")
    return array.reshape(shape[::-1]).T if by_columns else array.reshape(shape)


def _exactly(file: BinaryIO, count: int) -> bytearray:
    data, step = bytearray(), 1 << 20
    while len(data) < count:
        part = file.read(min(step, count - len(data)))
        if not part:
            raise EOFError("the file ends before its numbers do")
        data += part
    return data


# ---- Sounds as inputs: WAV files of linear PCM, full scale as one.

SUFFIX = ".wav"


def is_sound(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX


def read_sound(path: Path) -> Array:
    """The samples (frames,), or (frames, channels) of several, in float32 from -1 to 1. UsageError for what is no linear PCM."""
    try:
        with open_regular(path) as opened, wave.open(opened, "rb") as file:
            width, channels = file.getsampwidth(), file.getnchannels()
            data = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
    except (wave.Error, EOFError) as error:
        raise UsageError(
            f"{path} is no sound that can be read: {error}", where=str(path),
            hint="WAV files of linear PCM, 8 to 32 bits, are read; or save the arrays with numpy.save",
        ) from error  # fmt: skip
    if width == 1:  # the only width without a sign
        reals = data.astype(np.float32) / 128 - 1
    else:
        wide = np.zeros((len(data) // width, 4), np.uint8)
        wide[:, 4 - width :] = data[: len(wide) * width].reshape(-1, width)
        reals = (wide.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    return reals if channels == 1 else reals[: len(reals) // channels * channels].reshape(-1, channels)


# ---- Files and folders that hold arrays: NumPy's, tables, and a file for each sample.

CLASSES = "classes of folders"
"""The name of the array of class numbers that come from the names of folders."""
ROWS = ""
"""The name of an array that has none."""
DAMAGE = (
    ValueError, EOFError, MemoryError, SyntaxError, TokenError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError,
    KeyError, TypeError, OverflowError, IndexError, AttributeError, struct.error, csv.Error,
)  # fmt: skip
"""What numpy, zipfile and csv raise for files that are damaged, encrypted or of a kind that they do not know."""
_TABLES = (".csv", ".txt", ".tsv")
_DATA = "data are .npz or .npy files (numpy.savez, numpy.save), tables (.csv), pictures, sounds (.wav), or folders of samples"


def is_table(path: Path) -> bool:
    """Whether a file holds numbers as text."""
    return path.suffix.lower() in _TABLES


def holds_pictures(path: Path) -> bool:
    """Whether a file is a picture, or a folder holds some."""
    return (path.is_dir() and any(map(pictures.is_picture, path.rglob("*")))) or pictures.is_picture(path)


def read(path: Path, picture: pictures.Reader | None = None) -> dict[str, Array]:
    """Arrays by name; ``picture`` reads pictures where they make sense. UsageError for what cannot be read."""
    try:
        if path.is_dir():
            return _read_folder(path, picture)
        if picture and pictures.is_picture(path):
            return {ROWS: picture.read(path)[np.newaxis]}
        if is_sound(path):
            return {ROWS: read_sound(path)[np.newaxis]}
        if is_table(path):
            return _read_table(path)
        with open_regular(path) as file:
            loaded = load(file)
            return {ROWS: loaded} if isinstance(loaded, np.ndarray) else loaded
    except OSError as error:
        hint = nearest_file(path) or _DATA
        raise UsageError(f"cannot read {path}: {error.strerror or error}", where=str(path), hint=hint) from error
    except DAMAGE as error:
        why = f": {error}" if type(error) in (ValueError, EOFError) else ""
        raise UsageError(
            f"{path} holds no arrays that can be read{readable(why, 300)}", where=str(path), hint=_rename(path) or _DATA
        ) from error


def _rename(path: Path) -> str:
    """The hint for a table under a name that says something else."""
    try:
        _read_table(path)
    except (OSError, ValueError, UsageError):
        return ""
    return f"it holds a table: mv {shlex.quote(str(path))} {shlex.quote(str(path.with_suffix('.csv')))}"


def _read_folder(folder: Path, picture: pictures.Reader | None) -> dict[str, Array]:
    """One file for each sample; folders inside are classes: by their numbers, or else in the order of their names."""
    kinds = sorted(path for path in folder.iterdir() if path.is_dir() and _samples(path))
    numbers = [int(k.name) for k in kinds] if all(k.name.isdecimal() for k in kinds) else list(range(len(kinds)))
    classes = [n for k, n in zip(kinds, numbers, strict=True) for _ in _samples(k)]
    files = _samples(folder) + [path for kind in kinds for path in _samples(kind)]
    if not files or (kinds and len(classes) != len(files)):
        reason = "files beside folders of classes" if files else "no .npy files, pictures or sounds"
        raise UsageError(f"{folder} holds {reason}", where=str(folder), hint="one file for each sample")
    if picture is None and any(map(pictures.is_picture, files)):
        raise UsageError(f"{folder} holds pictures, but the network has several inputs", where=str(folder), hint=_DATA)
    arrays = [_sample(path, picture) for path in files]
    for path, array in zip(files, arrays, strict=True):
        if (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
            raise UsageError(
                f"{path.name} is {array.dtype}{array.shape}, {files[0].name} is {arrays[0].dtype}{arrays[0].shape}",
                where=str(folder),
                hint="all samples have one shape and dtype",
            )
    found: dict[str, Array] = {ROWS: np.stack(arrays)}
    return {**found, CLASSES: np.array(classes)} if kinds else found


def _samples(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() == ".npy" or _is_recording(path))


def _is_recording(path: Path) -> bool:
    return pictures.is_picture(path) or is_sound(path)


def _sample(path: Path, picture: pictures.Reader | None) -> Array:
    """What a file holds of one sample."""
    if picture and pictures.is_picture(path):
        return picture.read(path)
    if is_sound(path):
        return read_sound(path)
    with open_regular(path) as file:
        loaded = load(file)
    if not isinstance(loaded, np.ndarray):
        raise ValueError(f"{path.name} holds several arrays, expected one sample")
    return loaded


def _read_table(path: Path) -> dict[str, Array]:
    """Reals between commas (or tabs, semicolons), one sample a row; with names in the first row, columns by name too."""
    text = read_text(path, encoding="utf-8-sig")
    mark = next((m for m in "\t;" if m in text), ",")
    rows = [row for row in csv.reader(text.splitlines(), delimiter=mark) if row]
    if not rows:
        raise UsageError(f"{path} is empty", where=str(path), hint="one sample a row, numbers between commas")
    header = [name.strip() for name in rows[0]] if not all(map(_is_number, rows[0])) else []
    if len(set(header)) < len(header):
        raise UsageError(
            f"two columns of {path.name} have one name",
            where=str(path),
            hint="columns are found by their names: rename one",
        )
    body = rows[1:] if header else rows
    for number, row in enumerate(body, 2 if header else 1):
        if len(row) != len(rows[0]) or not all(map(_is_number, row)):
            raise UsageError(
                f"row {number} of {path.name} is not {len(rows[0])} numbers", where=str(path), hint="one sample a row"
            )
    table = np.array([[float(cell) for cell in row] for row in body]).reshape(len(body), len(rows[0]))
    return {ROWS: table} | {name: table[:, k] for k, name in enumerate(header)}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
