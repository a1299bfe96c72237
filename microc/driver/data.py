"""Data of users' own: samples for a network, with labels or expected outputs, from arrays, tables and folders.

Every array has the samples along its first axis. Floats are reals: quantised where the input says how, else taken as integers
where they are whole. Integers of another dtype are taken where all fit and the input is not quantised, which would leave open
whether they are stored numbers or reals. Notes tell of every conversion; all else that does not match is refused.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import UsageError
from microc.fixed import round_half_away

_TABLES = (".csv", ".txt", ".tsv")


@dataclass(frozen=True, slots=True)
class Samples:
    """``inputs``: for each input of the network an array of its dtype, of shape (samples, ...). ``labels``: class numbers;
    ``expected``: by output, arrays of shape (samples, ...). ``notes``: what was converted."""

    inputs: tuple[Array, ...]
    labels: Array | None
    expected: Mapping[str, Array]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.inputs[0])

    def sample(self, number: int) -> tuple[Array, ...]:
        """The inputs of one inference."""
        return tuple(array[number] for array in self.inputs)


def read_samples(
    inputs: Sequence[Mapping[str, Any]],
    outputs: Sequence[Mapping[str, Any]],
    data: Path,
    labels: str = "",
    expected: Path | None = None,
) -> Samples:
    """Samples for a network whose tensors a manifest describes.

    ``data``: a .npz file (arrays by the names of inputs), a .npy file or a table (one input), or a folder of .npy files, one a
    sample, perhaps in folders by class. ``labels``: an array or a column of that by name, or a file. ``expected``: a .npz file
    (by the names of outputs), or a .npy file or table (one output). UsageError says what does not match.
    """
    arrays = _read(data)
    truth = _labels(arrays, labels, data)
    rest = {name: array for name, array in arrays.items() if name != (labels or _CLASSES)}
    found = [_fit(_pick(rest, tensor, len(inputs), data), tensor, data) for tensor in inputs]
    wanted = _read(expected) if expected else {}
    answers = {
        t["name"]: _shaped(_pick(wanted, t, len(outputs), expected or data), t, expected or data)
        for t in outputs
        if wanted and (len(outputs) == 1 or _named(wanted, t))
    }
    if wanted and not answers:
        _pick(wanted, outputs[0], len(outputs), expected or data)
    samples = Samples(tuple(array for array, _ in found), truth, answers, tuple(note for _, note in found if note))
    _check_lengths(samples, inputs, data)
    return samples


_CLASSES = "classes of folders"
_ROWS = ""
_DATA = "data are .npz or .npy files (numpy.savez, numpy.save), tables (.csv), or folders of .npy files"


def _read(path: Path) -> dict[str, Array]:
    """Arrays by name; one that has no name is called ``_ROWS``."""
    try:
        if path.is_dir():
            return _read_folder(path)
        if path.suffix.lower() in _TABLES:
            return _read_table(path)
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {_ROWS: loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", where=str(path), hint=_DATA) from error
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path} holds no arrays that can be read", where=str(path), hint=_DATA) from error


def _read_folder(folder: Path) -> dict[str, Array]:
    """One .npy file for each sample; folders inside are classes: by their numbers, or else in the order of their names."""
    files = sorted(folder.glob("*.npy"))
    kinds = sorted(path for path in folder.iterdir() if path.is_dir() and any(path.glob("*.npy")))
    numbers = [int(k.name) for k in kinds] if all(k.name.isdecimal() for k in kinds) else list(range(len(kinds)))
    classes = [n for k, n in zip(kinds, numbers, strict=True) for _ in k.glob("*.npy")]
    files += [path for kind in kinds for path in sorted(kind.glob("*.npy"))]
    if not files or (kinds and len(classes) != len(files)):
        reason = "files beside folders of classes" if files else "no .npy files"
        raise UsageError(f"{folder} holds {reason}", where=str(folder), hint="one .npy file for each sample")
    arrays = [np.load(path, allow_pickle=False) for path in files]
    for path, array in zip(files, arrays, strict=True):
        if (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
            raise UsageError(
                f"{path.name} is {array.dtype}{array.shape}, {files[0].name} is {arrays[0].dtype}{arrays[0].shape}",
                where=str(folder),
                hint="all samples have one shape and dtype",
            )
    found: dict[str, Array] = {_ROWS: np.stack(arrays)}
    return {**found, _CLASSES: np.array(classes)} if kinds else found


def _read_table(path: Path) -> dict[str, Array]:
    """Reals between commas (or tabs, semicolons), one sample a row; with names in the first row, columns by name too."""
    text = path.read_text(encoding="utf-8-sig")
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
    return {_ROWS: table} | {name: table[:, k] for k, name in enumerate(header)}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _labels(arrays: dict[str, Array], labels: str, data: Path) -> Array | None:
    """Class numbers, whole and not negative; a column that holds them leaves the table."""
    if not labels:
        return arrays.get(_CLASSES)
    if labels in arrays:
        found = arrays[labels]
        if data.suffix.lower() in _TABLES:
            column = list(arrays).index(labels) - 1
            arrays[_ROWS] = np.delete(arrays[_ROWS], column, axis=1)
    elif Path(labels).exists():
        several = _read(Path(labels))
        found = several[_ROWS] if _ROWS in several else next(iter(several.values()))
    else:
        names = ", ".join(sorted(name for name in arrays if name not in (_ROWS, _CLASSES))) or "none"
        raise UsageError(
            f"there are no labels {labels!r}", where=str(data), hint=f"name a file, or an array of the data: {names}"
        )
    flat = found.reshape(-1)
    if flat.dtype.kind not in "biuf" or np.any(np.mod(flat, 1) != 0) or np.any(flat < 0):
        raise UsageError("labels are no class numbers", where=labels, hint="number the classes from 0 on: 0, 1, 2 ...")
    return flat.astype(np.int64)


def _named(arrays: Mapping[str, Array], tensor: Mapping[str, Any]) -> str:
    return next((name for name in (tensor["name"], tensor["label"]) if name and name in arrays), "")


def _pick(arrays: Mapping[str, Array], tensor: Mapping[str, Any], count: int, path: Path) -> Array:
    """The array for a tensor: by name, or the only one there is for the only tensor."""
    name = _named(arrays, tensor)
    if name:
        return arrays[name]
    if count == 1 and _ROWS in arrays:
        return arrays[_ROWS]
    if count == 1 and len(arrays) == 1:
        return next(iter(arrays.values()))
    names = ", ".join(n or "one without a name" for n in arrays)
    raise UsageError(
        f"no array is called {tensor['name']!r}",
        where=str(path),
        hint=f"call the arrays as the network's tensors (numpy.savez(path, {tensor['name']}=...)); there are: {names}",
    )


def _shaped(array: Array, tensor: Mapping[str, Any], path: Path) -> Array:
    """The samples in the tensor's shape; the axis of a batch of one may be absent, and rows may be flat."""
    shape = tuple(tensor["shape"])
    flat = array.ndim == 2 and array.shape[1] == prod(shape)
    if array.ndim and (array.shape[1:] == shape or (shape[:1] == (1,) and array.shape[1:] == shape[1:]) or flat):
        return np.ascontiguousarray(array).reshape(len(array), *shape)
    wanted = "x".join(map(str, ("N", *shape)))
    raise UsageError(
        f"{tensor['name']} takes samples of shape {wanted}, {array.shape} was given",
        where=str(path),
        hint="the first axis counts the samples" + ("; a batch of one may be left out" if shape[:1] == (1,) else ""),
    )


def _fit(array: Array, tensor: Mapping[str, Any], path: Path) -> tuple[Array, str]:
    """The samples in the tensor's shape and dtype, and a note on what was converted."""
    shaped, dtype = _shaped(array, tensor, path), dtypes.to_numpy(tensor["dtype"])
    name, given = tensor["name"], shaped.dtype
    if given == dtype:
        return shaped, ""
    if given.kind == "f" and dtype.kind in "iu" and not np.isfinite(shaped).all():
        raise UsageError(
            f"the samples for {name} hold infinities or NaN, which have no integer",
            where=str(path),
            hint="leave these samples out",
        )
    if dtype.kind == "f" and given.kind in "biuf":
        return shaped.astype(dtype), f"{name}: {given} taken as {dtype}"
    if given.kind == "f" and tensor["scale"] is not None:
        return quantise(shaped, tensor), f"{name}: {given} quantised by {tensor['scale']:.9g}, {tensor['zero_point']}"
    if tensor["scale"] is None and dtype.kind in "iub" and given.kind in "biuf" and _within(shaped, dtype):
        return shaped.astype(dtype), f"{name}: {given} taken as {dtype}"
    hint = f"give {dtype}"
    if tensor["scale"] is not None:
        hint += ", which are taken as they are, or floats, which are quantised"
    raise UsageError(f"{name} holds {dtype}, {given} was given", where=str(path), hint=hint)


def quantise(real: Array, tensor: Mapping[str, Any]) -> Array:
    """Reals as the stored integers of a tensor: round(x / scale) + zero point in single precision, as TFLite does; saturated."""
    low, high = dtypes.int_range(tensor["dtype"])
    steps = round_half_away(real.astype(np.float32) / np.float32(tensor["scale"])).astype(np.float64)
    stored: Array = np.clip(steps + tensor["zero_point"], low, high).astype(dtypes.to_numpy(tensor["dtype"]))
    return stored


def _within(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether all elements are whole numbers of a dtype."""
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    whole = array.dtype.kind != "f" or bool(np.all(np.mod(array, 1) == 0))
    return not array.size or (whole and low <= int(array.min()) and int(array.max()) <= high)


def _check_lengths(samples: Samples, inputs: Sequence[Mapping[str, Any]], data: Path) -> None:
    """As many samples of everything, and one at least."""
    lengths = {t["name"]: len(a) for t, a in zip(inputs, samples.inputs, strict=True)}
    lengths |= {f"expected {name}": len(array) for name, array in samples.expected.items()}
    if samples.labels is not None:
        lengths["labels"] = len(samples.labels)
    if len(set(lengths.values())) != 1 or not len(samples):
        counts = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise UsageError(
            f"the numbers of samples differ, or there are none: {counts}",
            where=str(data),
            hint="give as many of each, one at least",
        )
