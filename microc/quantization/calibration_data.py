"""Calibration data, the float network observed on it, and its score."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler import api, validation
from microc.compiler.api import compile
from microc.compiler.interaction import Progress
from microc.errors import ModelError, UsageError
from microc.graph.ir import Graph, Quant
from microc.quantization.integer_scheme import SMALLEST, Activation
from microc.quantization.network_structure import exposed
from microc.run.data.array_files import read
from microc.run.data.pictures import FINITE, fit
from microc.run.data.samples import read_samples
from microc.run.desktop.library import Library
from microc.run.verify import Classification, classify
from microc.transform.boundary import EVERY
from microc.transform.quantised.unary_functions import Function, byte_functions

# ---- Raw bytes at an input: what is computed of one of them each needs no scale that is measured.
#
# A value that is an affine function of a byte, with a byte as its zero, is that byte: it is stored as it comes in. Compiled, what
# makes it is nothing; and what makes other functions of bytes is a table (:mod:`microc.transform.quantised.unary_functions`).

_EXACT = 2.0**-10
"""Of a step: what floats that make a function of a byte are off."""


def functions_of_bytes(graph: Graph) -> dict[str, Activation | None]:
    """The values that floats make of one byte each, and how those are stored that are it."""
    found: Mapping[str, Function] = byte_functions(graph)
    return {name: _as_byte(of, graph) for name, of in found.items() if graph.types[name].dtype == "float32"}


def _as_byte(found: Function, graph: Graph) -> Activation | None:
    dtype = graph.types[found.root].dtype
    low, high = dtypes.int_range(dtype)
    reals, levels = found.table.astype(np.float64), np.arange(low, high + 1)[:, None]
    scale = float(np.float32((reals[-1, 0] - reals[0, 0]) / (high - low)))
    if reals.shape[1] > 1 or not np.isfinite(reals).all() or not scale > SMALLEST:
        return None
    zero = int(np.rint(low - reals[0, 0] / scale))
    exact = np.abs((levels - zero) * scale - reals).max() <= _EXACT * scale
    return Activation(dtype, Quant((scale,), (zero,))) if exact and low <= zero <= high else None


# ---- The float network on samples: what its activations are. It runs as the compiled code of this computer.

Row = tuple[Array, ...]
State = Mapping[str, Array]
KEPT = 1 << 16
"""How many elements of an activation are kept, drawn evenly from all samples; extremes are exact."""
_AT_ONCE = 1 << 22
"""Bytes of inputs and outputs that are in memory together."""


class First(Row):
    """A sample that begins a sequence."""


def state_of(graph: Graph, row: Row, now: State) -> State:
    """The state that a sample finds: as it starts, or as it is ``now``."""
    return graph.state if isinstance(row, First) else now


@dataclass
class Statistics:
    """One activation over all samples. ``lows`` and ``highs``: of every sample; ``drawn``: elements at random.

    ``channels``: the largest magnitude for each index of the last axis; ``squares``: the sum of squares; ``count``: of how many.
    ``size``: elements of a sample. ``reach``: what no sample exceeds, whatever it holds.
    """

    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    drawn: list[Array] = field(default_factory=list)
    channels: Array = field(default_factory=lambda: np.zeros(1))
    squares: Array = field(default_factory=lambda: np.zeros(1))
    count: int = 0
    size: int = 0
    reach: tuple[float, float] = (-np.inf, np.inf)

    @property
    def low(self) -> float:
        return min(self.lows)

    @property
    def high(self) -> float:
        return max(self.highs)

    @property
    def elements(self) -> Array:
        """The elements that were drawn."""
        return np.concatenate(self.drawn)

    @property
    def power(self) -> Array:
        """The mean square for each index of the last axis."""
        return self.squares / max(1, self.count)

    def add(self, array: Array, share: int, random: np.random.Generator) -> None:
        """One sample's values."""
        flat = array.reshape(-1)
        self.lows.append(float(flat.min()))
        self.highs.append(float(flat.max()))
        self.drawn.append(flat if flat.size <= share else flat[random.integers(0, flat.size, share)])
        rows = array.reshape(-1, (1, *array.shape)[-1])
        self.channels = np.maximum(self.channels, np.abs(rows).max(axis=0))
        self.squares = self.squares + np.square(rows, dtype=np.float64).sum(axis=0)
        self.count += len(rows)
        self.size = array.size


def merged(several: Sequence[Statistics]) -> Statistics:
    """What values of one scale hold together: sample by sample for the extremes, all elements that were drawn."""
    if len(several) == 1:
        return several[0]
    turns = range(max(len(each.lows) for each in several))
    lows = [min(each.lows[min(k, len(each.lows) - 1)] for each in several) for k in turns]
    highs = [max(each.highs[min(k, len(each.highs) - 1)] for each in several) for k in turns]
    drawn = [array for each in several for array in each.drawn]
    return Statistics(lows, highs, drawn, size=sum(each.size for each in several))


def table_statistics(table: Array) -> Statistics:
    """A constant whose elements become an activation: all of them may be met."""
    flat = table.reshape(-1)
    return Statistics([float(flat.min())], [float(flat.max())], [flat])


def runner(graph: Graph, values: Sequence[str]) -> Library:
    """The network as a library whose outputs are ``values``; of those in loops, what all turns make."""
    return api.compile(
        replace(exposed(graph, values), outputs=tuple(dict.fromkeys(values))), optimize="speed", check=False
    )


def rows_of(library: Library, samples: Sequence[Row]) -> Iterator[Row]:
    """What the library answers to every sample, of which it takes some megabytes at once; state lives from sample to sample of a
    sequence."""
    library.reset()
    most = max(1, _AT_ONCE // sum(tensor["bytes"] for tensor in (*library.inputs, *library.outputs)))
    for batch in _batches(samples, most):
        if isinstance(batch[0], First):
            library.reset()
        result = library.batch(*map(np.stack, zip(*batch, strict=True)))
        yield from zip(*(result if isinstance(result, tuple) else (result,)), strict=True)


def _batches(samples: Sequence[Row], most: int) -> Iterator[Sequence[Row]]:
    """The samples in turn, at most so many together, and none that begins a sequence behind another."""
    begin = 0
    for end in range(1, len(samples) + 1):
        if end == len(samples) or end - begin == most or isinstance(samples[end], First):
            yield samples[begin:end]
            begin = end


def observe(
    graph: Graph, values: Sequence[str], samples: Sequence[Row], seed: int, progress: Progress | None = None
) -> Mapping[str, Statistics]:
    """Statistics of ``values``, which may be inputs. ModelError where the network's own answer is no number."""
    random, share = np.random.default_rng(seed), max(1, KEPT // len(samples))
    found = {value: Statistics() for value in values}
    inner = [value for value in values if value not in graph.inputs]
    library = runner(graph, inner) if inner else None
    answers = rows_of(library, samples) if library is not None else iter(() for _ in samples)
    for number, (arrays, answer) in enumerate(zip(samples, answers, strict=True)):
        if progress is not None:
            progress("calibration", number, len(samples))
        for value, array in (*zip(graph.inputs, arrays, strict=True), *zip(inner, answer, strict=True)):
            if value in found:
                _check(value, array, number)
                found[value].add(array, share, random)
    return found


def _check(value: str, array: Array, number: int) -> None:
    if not np.isfinite(array).all():
        raise ModelError(
            f"{value!r} is infinite or NaN in sample {number + 1}",
            hint="calibrate with data that the float network answers with numbers",
        )


# ---- Calibration and evaluation data as a float network takes them: rows, one array for each input.

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
        path = validation.path("data", given)
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
        path = validation.path("data", given)
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
        return [validation.arrays("data", [given[name]])[0] for name in graph.inputs]
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
        f"data cannot be {validation.shown(given)}",
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


# ---- How well a network does its task: one number, larger is better.

Score = Callable[[Graph], float]


def score_by(evaluate: Any, data: Data) -> Score | None:
    """The caller's function where ``evaluate`` is one, accuracy where ``data`` has labels, else None."""
    if callable(evaluate):
        return lambda graph: _own(evaluate, graph)
    return None if data.labels is None else lambda graph: _accuracy(graph, data)


def _own(evaluate: Callable[..., Any], graph: Graph) -> float:
    """What the caller's function says of a network."""
    found = evaluate(compile(graph, optimize="speed", check=False))
    if not isinstance(found, numbers.Real) or not math.isfinite(found):
        raise UsageError(
            f"evaluate gave {validation.shown(found)}", hint="a function of a network that gives a finite number"
        )
    return float(found)


def _accuracy(graph: Graph, data: Data) -> float:
    """The share of samples, or sequences, whose class is found."""
    assert data.labels is not None
    ends = list(dict.fromkeys(graph.outputs))
    rows = list(rows_of(runner(graph, ends), data.rows))
    answers = {name: data.answered(np.stack([row[k] for row in rows])) for k, name in enumerate(ends)}
    return classified(answers, data.labels).accuracy


def classified(answers: Mapping[str, Array], labels: Array) -> Classification:
    """Classes that outputs of floats, by name, tell."""
    tensors = {name: {"name": name, "scale": None, "zero_point": None} for name in answers}
    try:
        return classify(answers, tensors, labels)
    except UsageError as error:
        raise UsageError(
            error.what, hint="number the classes from 0 on: 0, 1, 2 ..., in the order of the first output"
        ) from error


def check_labels(graph: Graph, data: Data) -> None:
    """UsageError for labels that no answer of the network can be."""
    if data.labels is not None:
        kinds = {name: graph.types[name] for name in graph.outputs}
        shapes = {name: (len(data.labels), *kind.shape) for name, kind in kinds.items()}
        classified(
            {name: np.zeros(shapes[name], dtypes.to_numpy(kind.dtype)) for name, kind in kinds.items()}, data.labels
        )
