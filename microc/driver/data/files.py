"""Files and folders that hold arrays: NumPy's, tables, and a file for each sample."""

from __future__ import annotations

import csv
import shlex
import struct
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError

import numpy as np

from microc.device.info import readable
from microc.driver.data import numpy_files, pictures, sounds
from microc.dtypes import Array
from microc.errors import UsageError, nearest_file
from microc.reading import open_regular, read_text

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
        if sounds.is_sound(path):
            return {ROWS: sounds.read(path)[np.newaxis]}
        if is_table(path):
            return _read_table(path)
        with open_regular(path) as file:
            loaded = numpy_files.load(file)
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
    return pictures.is_picture(path) or sounds.is_sound(path)


def _sample(path: Path, picture: pictures.Reader | None) -> Array:
    """What a file holds of one sample."""
    if picture and pictures.is_picture(path):
        return picture.read(path)
    if sounds.is_sound(path):
        return sounds.read(path)
    with open_regular(path) as file:
        loaded = numpy_files.load(file)
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
