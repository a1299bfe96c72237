"""Calibration and evaluation data as a float network takes them: rows, one array for each input."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.driver import accepted
from microc.driver.data.files import read
from microc.driver.data.fit import FINITE, fit
from microc.driver.data.samples import read_samples
from microc.dtypes import Array
from microc.errors import UsageError
from microc.frozen import frozen
from microc.graph.ir import Graph
from microc.quantization.observe import First, Row
from microc.transform.boundary import EVERY

MOST = 1 << 14
"""Samples that are read of a generator."""
NO_COLOURS: Mapping[str, str] = MappingProxyType({})
_GIVEN = Path("data")


@frozen
class Data:
    """``rows``: the samples; ``labels``: class numbers, None where there are none; ``notes``: what was converted. ``steps``: the
    samples of a sequence, whose last answer is what labels speak of."""

    rows: tuple[Row, ...]
    labels: Array | None
    notes: tuple[str, ...]
    steps: int = 1

    def answered(self, answers: Array) -> Array:
        """Those of all samples' answers that labels speak of."""
        return answers[self.steps - 1 :: self.steps]


def tensors_of(graph: Graph, colours: Mapping[str, str] = NO_COLOURS) -> list[dict[str, Any]]:
    """A float graph's inputs as a manifest describes tensors, and the colour that each, or ``*``, has."""
    every = colours.get(EVERY, "")
    return [{**_tensor(graph, name), "colour": colours.get(name, every)} for name in graph.inputs]


def _tensor(graph: Graph, name: str) -> dict[str, Any]:
    kind = graph.types[name]
    real = {"scale": None, "zero_point": None, "sequences": bool(graph.state)}
    return {"name": name, "label": name, "dtype": kind.dtype, "shape": kind.shape, **real}


def data_of(
    graph: Graph,
    given: Any,
    labels: str = "",
    pixels: tuple[float, float] | None = None,
    colours: Mapping[str, str] = NO_COLOURS,
) -> Data:
    """What may be given as data: a path (.npz, .npy, table, folder of arrays or pictures), an array, arrays by the names of
    inputs or in their order, or an iterable of samples. Samples of a network with state may be sequences, each of which it
    begins anew. ``colours``: the order of channels of inputs, in which pictures are read. UsageError for what does not fit, is
    empty, or is no number."""
    if isinstance(given, Data):
        return given
    if isinstance(given, (str, os.PathLike)):
        path = accepted.path("data", given)
        outputs = [_tensor(graph, name) for name in graph.outputs]
        found = read_samples(tensors_of(graph, colours), outputs, path, labels, None, pixels)
        return _checked(graph, found.inputs, found.labels, found.notes, path)
    fitted = [
        fit(array, tensor, _GIVEN) for array, tensor in zip(_arrays(graph, given), tensors_of(graph), strict=True)
    ]
    return _checked(graph, [array for array, _ in fitted], None, [note for _, note in fitted if note], _GIVEN)


def calibration_of(
    graph: Graph, given: Any, labels: str, pixels: tuple[float, float] | None, colours: Mapping[str, str]
) -> Data:
    """The same where labels are looked for elsewhere: those that are in the data, too, are no input."""
    if isinstance(given, (str, os.PathLike)) and labels:
        path = accepted.path("data", given)
        labels = labels if not path.is_dir() and labels in read(path) else ""
    return data_of(graph, given, labels, pixels, colours)


def _arrays(graph: Graph, given: Any) -> list[Array]:
    """One array of all samples for each input."""
    count = len(graph.inputs)
    if isinstance(given, Mapping):
        if set(given) != set(graph.inputs):
            raise UsageError(
                f"data are for {', '.join(map(str, given))}", hint=f"the network's inputs are {', '.join(graph.inputs)}"
            )
        return [accepted.arrays("data", [given[name]])[0] for name in graph.inputs]
    if isinstance(given, np.ndarray):
        if count != 1:
            raise UsageError(f"one array for {count} inputs", hint="give a mapping, from their names")
        return [given]
    if isinstance(given, (tuple, list)) and len(given) == count and all(isinstance(a, np.ndarray) for a in given):
        shape = graph.types[graph.inputs[0]].shape
        if given[0].ndim > len(shape) or (given[0].shape[1:] == shape[1:] and count > 1):
            return list(given)
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        return _stacked(given, count)
    raise UsageError(
        f"data cannot be {accepted.shown(given)}",
        hint="a path, arrays with the samples along the first axis, or samples one by one",
    )


def _stacked(samples: Iterable[Any], count: int) -> list[Array]:
    """Samples one by one, each an array or a tuple of arrays."""
    rows = []
    for sample in islice(samples, MOST):
        row = sample if isinstance(sample, (tuple, list)) and count > 1 else (sample,)
        if len(row) != count:
            raise UsageError(
                f"a sample has {len(row)} arrays, the network {count} inputs", hint="give one for each input"
            )
        rows.append(tuple(np.asarray(array) for array in row))
    if not rows:
        raise UsageError(
            "there are no samples", hint="give some tens to some hundreds, typical of what the network will see"
        )
    if len({tuple(array.shape for array in row) for row in rows}) > 1:
        raise UsageError("samples differ in shape", hint="give all in the shape of the network's inputs")
    return [np.stack([row[k] for row in rows]) for k in range(count)]


def _checked(graph: Graph, arrays: Sequence[Array], labels: Array | None, notes: Iterable[str], path: Path) -> Data:
    shapes = [graph.types[name].shape for name in graph.inputs]
    counts = {array.shape[: array.ndim - len(shape)] for array, shape in zip(arrays, shapes, strict=True)}
    arrays = [array.reshape(-1, *shape) for array, shape in zip(arrays, shapes, strict=True)]
    lengths = {len(array) for array in arrays}
    if lengths == {0} or len(counts) != 1:
        raise UsageError(
            "there are no samples" if lengths == {0} else "the inputs have different numbers of samples",
            where=str(path), hint="the first axis counts the samples, as many for each input",
        )  # fmt: skip
    for name, array in zip(graph.inputs, arrays, strict=True):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(f"the samples for {name} hold infinities or NaN", where=str(path), hint=FINITE)
    if all(array.min() == array.max() for array in arrays if array.size):
        raise UsageError(
            f"all samples are {float(arrays[0].flat[0]):g} throughout", where=str(path),
            hint="calibrate with data that is typical of what the network will see",
        )  # fmt: skip
    rows: list[Row] = list(zip(*([np.ascontiguousarray(a) for a in array] for array in arrays), strict=True))
    count = counts.pop()
    steps = count[1] if len(count) > 1 else 1
    if len(count) > 1:
        rows[::steps] = map(First, rows[::steps])
    return Data(tuple(rows), labels, tuple(notes), steps)
