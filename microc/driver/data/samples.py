"""Data of users' own: samples for a network, with labels or expected outputs, from arrays, tables and folders.

Every array has the samples along its first axis. Floats are reals: quantised where the input says how, else taken as integers
where they are whole. Integers of another dtype are taken where all fit and the input is not quantised, which would leave open
whether they are stored numbers or reals. Notes tell of every conversion; all else that does not match is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from microc.driver.data.files import CLASSES, ROWS, holds_pictures, is_table, read
from microc.driver.data.fit import fit, shaped
from microc.driver.data.pictures import Reader
from microc.dtypes import Array
from microc.errors import UsageError, nearest
from microc.frozen import frozen

_NUMBERED = "number the classes from 0 on: numpy.unique(labels, return_inverse=True)[1]"


@frozen
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
    pixels: tuple[float, float] | None = None,
) -> Samples:
    """Samples for a network whose tensors a manifest describes.

    ``data``: a .npz file (arrays by the names of inputs), a .npy file, a table, a picture or a sound (one input), or a folder
    of .npy files, pictures or sounds, one a sample, perhaps in folders by class. ``labels``: an array or a column of that by
    name, or a file. ``expected``: a .npz file (by the names of outputs), or a .npy file or table (one output). ``pixels``: the
    reals that those of 0 and 255 stand for (:class:`microc.driver.data.pictures.Reader`). UsageError says what does not match.
    """
    picture = Reader(inputs[0], pixels) if len(inputs) == 1 else None
    arrays = read(data, picture)
    truth = _labels(arrays, labels, data)
    rest = {name: array for name, array in arrays.items() if name != (labels or CLASSES)}
    found = [fit(_pick(rest, tensor, len(inputs), data), tensor, data) for tensor in inputs]
    wanted = read(expected) if expected else {}
    answers = {
        t["name"]: shaped(_pick(wanted, t, len(outputs), expected or data), t, expected or data)
        for t in outputs
        if wanted and (len(outputs) == 1 or _named(wanted, t))
    }
    if wanted and not answers:
        _pick(wanted, outputs[0], len(outputs), expected or data)
    notes = [picture.note()] if picture and holds_pictures(data) else []
    notes += [note for _, note in found if note]
    samples = Samples(tuple(array for array, _ in found), truth, answers, tuple(notes))
    _check_lengths(samples, inputs, data)
    return samples


def _labels(arrays: dict[str, Array], labels: str, data: Path) -> Array | None:
    """Class numbers, whole and not negative; a column that holds them leaves the table."""
    if not labels:
        return arrays.get(CLASSES)
    if labels in arrays:
        found = arrays[labels]
        if is_table(data):
            column = list(arrays).index(labels) - 1
            arrays[ROWS] = np.delete(arrays[ROWS], column, axis=1)
    elif Path(labels).exists():
        several = read(Path(labels))
        found = several[ROWS] if ROWS in several else next(iter(several.values()))
    else:
        names = sorted(name for name in arrays if name not in (ROWS, CLASSES))
        hint = nearest(labels, names) or f"name a file, or an array of the data: {', '.join(names) or 'it has none'}"
        raise UsageError(f"there are no labels {labels!r}", where=str(data), hint=hint)
    flat = found.reshape(-1)
    if flat.dtype.kind not in "biuf" or np.any(np.mod(flat, 1) != 0) or np.any(flat < 0):
        raise UsageError("labels are no class numbers", where=labels, hint=_NUMBERED)
    return flat.astype(np.int64)


def _named(arrays: Mapping[str, Array], tensor: Mapping[str, Any]) -> str:
    return next((name for name in (tensor["name"], tensor["label"]) if name and name in arrays), "")


def _pick(arrays: Mapping[str, Array], tensor: Mapping[str, Any], count: int, path: Path) -> Array:
    """The array for a tensor: by name, or the only one there is for the only tensor."""
    name = _named(arrays, tensor)
    if name:
        return arrays[name]
    if count == 1 and ROWS in arrays:
        return arrays[ROWS]
    if count == 1 and len(arrays) == 1:
        return next(iter(arrays.values()))
    names = ", ".join(n or "one without a name" for n in arrays) or "none"
    raise UsageError(
        f"no array is called {tensor['name']!r}",
        where=str(path),
        hint=f"call the arrays as the network's tensors (numpy.savez(path, {tensor['name']}=...)); there are: {names}",
    )


def _check_lengths(samples: Samples, inputs: Sequence[Mapping[str, Any]], data: Path) -> None:
    """As many samples of everything, and one at least."""
    lengths = {t["name"]: len(a) for t, a in zip(inputs, samples.inputs, strict=True)}
    lengths |= {f"expected {name}": len(array) for name, array in samples.expected.items()}
    if samples.labels is not None:
        lengths["labels"] = len(samples.labels)
    if len(set(lengths.values())) != 1 or not len(samples):
        counts = ", ".join(f"{name} {count}" for name, count in lengths.items())
        if not any(lengths.values()):
            raise UsageError("there are no samples", where=str(data), hint="give one at least")
        hint = f"cut them to one length: array[:{min(lengths.values())}]"
        raise UsageError(f"the numbers of samples differ: {counts}", where=str(data), hint=hint)
