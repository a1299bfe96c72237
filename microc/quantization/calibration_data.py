# SPDX-License-Identifier: Apache-2.0
"""Convert calibration data to samples, collect statistics of a float network's activations on samples, and score
networks."""

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
from microc.quantization.integer_scheme import SMALLEST_SCALE, Activation
from microc.quantization.network_structure import expose_values
from microc.run.data.array_files import read_arrays
from microc.run.data.pictures import FINITE, convert_samples
from microc.run.data.samples import read_samples
from microc.run.desktop.library import Library
from microc.run.engine import NumpyReference
from microc.run.verification import Classification, classify
from microc.transform.boundary import EVERY
from microc.transform.quantised.unary_functions import ByteFunction, find_byte_functions

# ---- 8-bit inputs: values that are computed elementwise from a byte of an input need no calibrated scale.
#
# A value that is an affine function of an input's byte, with an integer zero point, is stored as this byte, and the compiled
# network computes nothing for it. Other functions of a byte become a table (:mod:`microc.transform.quantised.unary_functions`).

_AFFINE_TOLERANCE = 2.0**-10
"""Largest difference, as a fraction of the scale, at which a function of a byte counts as equal to an affine function.
It allows for the rounding of floats."""


def storage_of_values_from_input_bytes(graph: Graph) -> dict[str, Activation | None]:
    """Map each float value that is a function of an input's byte to the quantisation with which the byte itself stores
    it.

    None for values that are no affine function of the byte."""
    functions: Mapping[str, ByteFunction] = find_byte_functions(graph)
    return {
        name: _storage_of_input_byte(function, graph)
        for name, function in functions.items()
        if graph.types[name].dtype == "float32"
    }


def _storage_of_input_byte(function: ByteFunction, graph: Graph) -> Activation | None:
    """Return the affine quantisation of a function's byte that dequantises to the function's result; None if there is
    none."""
    dtype = graph.types[function.root].dtype
    low, high = dtypes.int_range(dtype)
    reals, levels = function.table.astype(np.float64), np.arange(low, high + 1)[:, None]
    scale = float(np.float32((reals[-1, 0] - reals[0, 0]) / (high - low)))
    if reals.shape[1] > 1 or not np.isfinite(reals).all() or not scale > SMALLEST_SCALE:
        return None
    zero = int(np.rint(low - reals[0, 0] / scale))
    is_exact = np.abs((levels - zero) * scale - reals).max() <= _AFFINE_TOLERANCE * scale
    return Activation(dtype, Quant((scale,), (zero,))) if is_exact and low <= zero <= high else None


# ---- Statistics of the float network's activations on samples. The network is compiled for this computer and run.

Row = tuple[Array, ...]
State = Mapping[str, Array]
MAX_KEPT_ELEMENTS = 1 << 16
"""Maximum number of elements of an activation that its statistics keep. They are drawn evenly from all samples. Minima
and maxima are those of all elements."""
_BATCH_BYTES = 1 << 22
"""Number of bytes of inputs and outputs that are in memory at a time when a network runs on samples."""


class FirstOfSequence(Row):
    """The first sample of a sequence, before which the state of the network is reset."""


def state_before(graph: Graph, row: Row, current_state: State) -> State:
    """Return the network's state before a sample: its initial state if the sample begins a sequence, else
    ``current_state``.

    ``row``: the sample, an array for each input."""
    return graph.state if isinstance(row, FirstOfSequence) else current_state


def infer_sample(reference: NumpyReference, row: Row) -> Mapping[str, Array]:
    """Run a network in numpy on the next sample; return all values by name."""
    if isinstance(row, FirstOfSequence):
        reference.reset()
    return reference.infer(row).tensors


@dataclass
class Statistics:
    """Statistics of an activation over all samples.

    ``sample_minima`` and ``sample_maxima``: smallest and largest element of each sample. ``random_elements``: arrays of
    random elements. ``channel_magnitudes``: the largest magnitude for each index of the last axis.
    ``channel_square_sums``: the sum of squares for each index of the last axis, and ``terms_per_square_sum``: the
    number of terms in each of these sums. ``elements_per_sample``: number of elements in a sample. ``certain_bounds``:
    bounds that no sample can exceed, because of the operator that computes the activation."""

    sample_minima: list[float] = field(default_factory=list)
    sample_maxima: list[float] = field(default_factory=list)
    random_elements: list[Array] = field(default_factory=list)
    channel_magnitudes: Array = field(default_factory=lambda: np.zeros(1))
    channel_square_sums: Array = field(default_factory=lambda: np.zeros(1))
    terms_per_square_sum: int = 0
    elements_per_sample: int = 0
    certain_bounds: tuple[float, float] = (-np.inf, np.inf)

    @property
    def low(self) -> float:
        return min(self.sample_minima)

    @property
    def high(self) -> float:
        return max(self.sample_maxima)

    @property
    def elements(self) -> Array:
        """All elements that were drawn at random, in one array."""
        return np.concatenate(self.random_elements)

    @property
    def mean_squares(self) -> Array:
        """Mean of the squares of all elements, for each index of the last axis."""
        return self.channel_square_sums / max(1, self.terms_per_square_sum)

    def add(self, array: Array, max_elements: int, random: np.random.Generator) -> None:
        """Add the activation's values in one sample. At most ``max_elements`` random elements of it are kept."""
        flat = array.reshape(-1)
        self.sample_minima.append(float(flat.min()))
        self.sample_maxima.append(float(flat.max()))
        self.random_elements.append(
            flat if flat.size <= max_elements else flat[random.integers(0, flat.size, max_elements)]
        )
        rows = array.reshape(-1, (1, *array.shape)[-1])
        self.channel_magnitudes = np.maximum(self.channel_magnitudes, np.abs(rows).max(axis=0))
        self.channel_square_sums = self.channel_square_sums + np.square(rows, dtype=np.float64).sum(axis=0)
        self.terms_per_square_sum += len(rows)
        self.elements_per_sample = array.size


def merge_statistics(statistics_of_values: Sequence[Statistics]) -> Statistics:
    """Return common statistics of several values that share a scale.

    The smallest and the largest element of each sample are those over all values; the drawn elements are those of all
    values."""
    if len(statistics_of_values) == 1:
        return statistics_of_values[0]
    samples = range(max(len(statistics.sample_minima) for statistics in statistics_of_values))
    lows = [
        min(statistics.sample_minima[min(k, len(statistics.sample_minima) - 1)] for statistics in statistics_of_values)
        for k in samples
    ]
    highs = [
        max(statistics.sample_maxima[min(k, len(statistics.sample_maxima) - 1)] for statistics in statistics_of_values)
        for k in samples
    ]
    drawn = [array for statistics in statistics_of_values for array in statistics.random_elements]
    return Statistics(
        lows,
        highs,
        drawn,
        elements_per_sample=sum(statistics.elements_per_sample for statistics in statistics_of_values),
    )


def statistics_of_table(table: Array) -> Statistics:
    """Return the statistics of a constant from which elements are selected at run time, as if a sample contained all of
    them."""
    flat = table.reshape(-1)
    return Statistics([float(flat.min())], [float(flat.max())], [flat])


def compile_runner(graph: Graph, values: Sequence[str]) -> Library:
    """Compile a network for this computer as a library whose outputs are ``values``.

    Values in the bodies of loops are stacked over the iterations, along a new first axis."""
    return api.compile(
        replace(expose_values(graph, values), outputs=tuple(dict.fromkeys(values))), optimize="speed", check=False
    )


def run_on_samples(library: Library, samples: Sequence[Row]) -> Iterator[Row]:
    """Run a compiled network on samples, in batches of some megabytes, and yield its outputs for every sample.

    The network's state is reset before the first sample of each sequence."""
    library.reset()
    most = max(1, _BATCH_BYTES // sum(tensor["bytes"] for tensor in (*library.inputs, *library.outputs)))
    for batch in _split_into_batches(samples, most):
        if isinstance(batch[0], FirstOfSequence):
            library.reset()
        result = library.batch(*map(np.stack, zip(*batch, strict=True)))
        yield from zip(*(result if isinstance(result, tuple) else (result,)), strict=True)


def _split_into_batches(samples: Sequence[Row], max_samples: int) -> Iterator[Sequence[Row]]:
    """Yield the samples in batches of at most ``max_samples``. A batch never contains samples of two sequences."""
    begin = 0
    for end in range(1, len(samples) + 1):
        if end == len(samples) or end - begin == max_samples or isinstance(samples[end], FirstOfSequence):
            yield samples[begin:end]
            begin = end


def observe_activations(
    graph: Graph, values: Sequence[str], samples: Sequence[Row], seed: int, progress: Progress | None = None
) -> Mapping[str, Statistics]:
    """Run the float network on samples, and return the statistics of ``values`` by name. Values may be inputs.

    ``seed``: seed of the random choice of the elements that statistics keep. ModelError for infinite values and NaN."""
    random, share = np.random.default_rng(seed), max(1, MAX_KEPT_ELEMENTS // len(samples))
    statistics = {value: Statistics() for value in values}
    computed = [value for value in values if value not in graph.inputs]
    library = compile_runner(graph, computed) if computed else None
    answers = run_on_samples(library, samples) if library is not None else iter(() for _ in samples)
    for number, (arrays, answer) in enumerate(zip(samples, answers, strict=True)):
        if progress is not None:
            progress("calibration", number, len(samples))
        for value, array in (*zip(graph.inputs, arrays, strict=True), *zip(computed, answer, strict=True)):
            if value in statistics:
                _check_finite(value, array, number)
                statistics[value].add(array, share, random)
    return statistics


def _check_finite(value_name: str, array: Array, sample_index: int) -> None:
    """Raise ModelError if the array of a value in a sample contains infinities or NaN."""
    if not np.isfinite(array).all():
        raise ModelError(
            f"value {value_name!r}: got infinity or NaN in sample {sample_index + 1}, expected finite numbers",
            hint="calibrate with data for which all values of the float network are finite",
        )


# ---- Conversion of calibration and evaluation data to samples of a float network: rows with one array for each input.

MAX_GENERATED_SAMPLES = 1 << 14
"""Maximum number of samples that are read from a generator."""
NO_COLOURS: Mapping[str, str] = MappingProxyType({})
_DATA_NAME = Path("data")


@frozen
class SampleData:
    """Calibration or evaluation data, converted to samples.

    ``rows``: the samples, each with an array for every input. ``labels``: the number of the true class for each sample
    or sequence; None without labels. ``conversion_notes``: texts about conversions that were made.
    ``samples_per_sequence``: number of samples in each sequence; 1 without sequences. The label of a sequence is for
    the output of its last sample."""

    rows: tuple[Row, ...]
    labels: Array | None
    conversion_notes: tuple[str, ...]
    samples_per_sequence: int = 1

    def select_labelled(self, answers: Array) -> Array:
        """Return the outputs that labels are for: those of the last sample of each sequence.

        ``answers``: an output of the network, for all samples along the first axis."""
        return answers[self.samples_per_sequence - 1 :: self.samples_per_sequence]


def describe_input_tensors(graph: Graph, colours: Mapping[str, str] = NO_COLOURS) -> list[dict[str, Any]]:
    """Return descriptions of a float graph's inputs, in the form in which a manifest describes tensors.

    ``colours``: the order of colour channels by name of an input; the name ``*`` is for all other inputs."""
    every = colours.get(EVERY, "")
    return [{**_describe_tensor(graph, name), "colour": colours.get(name, every)} for name in graph.inputs]


def _describe_tensor(graph: Graph, name: str) -> dict[str, Any]:
    """Return the description of an input or output of a float graph, in the form in which a manifest describes
    tensors."""
    kind = graph.types[name]
    real = {"scale": None, "zero_point": None, "sequences": bool(graph.state)}
    return {"name": name, "label": name, "dtype": kind.dtype, "shape": kind.shape, **real}


def convert_to_samples(
    graph: Graph,
    user_data: Any,
    labels: str = "",
    pixels: tuple[float, float] | None = None,
    colours: Mapping[str, str] = NO_COLOURS,
) -> SampleData:
    """Convert a user's data to samples of a network, each with one array for every input.

    The data may be a path (.npz, .npy, table, folder of arrays or pictures), an array, arrays by the names of inputs or
    in their order, or an iterable of samples. For a network with state, samples may be sequences. Each sequence begins
    with the initial state. ``labels``: name of the array, or file, of class numbers. ``pixels``: the real numbers for
    the pixel values 0 and 255. ``colours``: the order of colour channels in which pictures are read, by name of an
    input. UsageError for data that do not have the shape of the inputs, are empty, or are no numbers."""
    if isinstance(user_data, SampleData):
        return user_data
    if isinstance(user_data, (str, os.PathLike)):
        path = validation.as_path("data", user_data)
        outputs = [_describe_tensor(graph, name) for name in graph.outputs]
        samples = read_samples(describe_input_tensors(graph, colours), outputs, path, labels, None, pixels)
        return _check_and_convert_to_sample_data(graph, samples.inputs, samples.labels, samples.notes, path)
    converted = [
        convert_samples(array, tensor, _DATA_NAME)
        for array, tensor in zip(_convert_to_input_arrays(graph, user_data), describe_input_tensors(graph), strict=True)
    ]
    return _check_and_convert_to_sample_data(
        graph, [array for array, _ in converted], None, [note for _, note in converted if note], _DATA_NAME
    )


def convert_calibration_data(
    graph: Graph, user_data: Any, labels: str, pixels: tuple[float, float] | None, colours: Mapping[str, str]
) -> SampleData:
    """Convert a user's calibration data to samples, where ``labels`` names an array of labels in the evaluation data.

    If the calibration data contains an array of the same name, this array is read as labels too, and not as an
    input."""
    if isinstance(user_data, (str, os.PathLike)) and labels:
        path = validation.as_path("data", user_data)
        labels = labels if not path.is_dir() and labels in read_arrays(path) else ""
    return convert_to_samples(graph, user_data, labels, pixels, colours)


def _convert_to_input_arrays(graph: Graph, user_data: Any) -> list[Array]:
    """Convert a user's arrays or samples to a list with one array for each input, which contains all samples.

    UsageError for data of other types."""
    count = len(graph.inputs)
    if isinstance(user_data, Mapping):
        if set(user_data) != set(graph.inputs):
            raise UsageError(
                f"data: got arrays for {', '.join(map(str, user_data))}, expected {', '.join(graph.inputs)}",
                hint="give one array for each input, by its name",
            )
        return [validation.as_arrays("data", [user_data[name]])[0] for name in graph.inputs]
    if isinstance(user_data, np.ndarray):
        if count != 1:
            raise UsageError(
                f"data: got one array, expected one for each of {count} inputs",
                hint=f"give a mapping from the names {', '.join(graph.inputs)} to arrays",
            )
        return [user_data]
    if (
        isinstance(user_data, (tuple, list))
        and len(user_data) == count
        and all(isinstance(a, np.ndarray) for a in user_data)
    ):
        shape = graph.types[graph.inputs[0]].shape
        if user_data[0].ndim > len(shape) or (user_data[0].shape[1:] == shape[1:] and count > 1):
            return list(user_data)
    if isinstance(user_data, Iterable) and not isinstance(user_data, (str, bytes)):
        return _stack_samples(user_data, count)
    raise UsageError(
        f"data: got {validation.short_repr(user_data)}, expected a path, arrays or samples",
        hint="give a path, arrays with the samples along the first axis, or samples one by one",
    )


def _stack_samples(samples: Iterable[Any], input_count: int) -> list[Array]:
    """Stack samples into one array for each input, with the samples along the first axis.

    A sample is an array or, for a network with several inputs, a tuple with an array for each input. UsageError if a
    sample has another number of arrays, or if samples differ in shape."""
    rows = []
    for sample in islice(samples, MAX_GENERATED_SAMPLES):
        row = sample if isinstance(sample, (tuple, list)) and input_count > 1 else (sample,)
        if len(row) != input_count:
            raise UsageError(
                f"data: got a sample of {len(row)} arrays, expected {input_count}", hint="give one array for each input"
            )
        rows.append(tuple(np.asarray(array) for array in row))
    if not rows:
        raise UsageError(
            "data: got no samples, expected at least one",
            hint="give some tens to some hundreds of samples that are typical of the inputs in use",
        )
    if len({tuple(array.shape for array in row) for row in rows}) > 1:
        raise UsageError(
            "data: samples differ in shape; "
            f"got {', '.join(map(str, dict.fromkeys(array.shape for row in rows for array in row)))}",
            hint="give all samples in the shape of the network's inputs",
        )
    return [np.stack([row[k] for row in rows]) for k in range(input_count)]


def _check_and_convert_to_sample_data(
    graph: Graph, arrays: Sequence[Array], labels: Array | None, notes: Iterable[str], path: Path
) -> SampleData:
    """Check the arrays of all samples, one for each input, and convert them to :class:`SampleData`.

    ``path``: the file or folder of the data, for errors."""
    shapes = [graph.types[name].shape for name in graph.inputs]
    counts = {array.shape[: array.ndim - len(shape)] for array, shape in zip(arrays, shapes, strict=True)}
    arrays = [array.reshape(-1, *shape) for array, shape in zip(arrays, shapes, strict=True)]
    lengths = {len(array) for array in arrays}
    if lengths == {0} or len(counts) != 1:
        raise UsageError(
            "data: got no samples, expected one at least"
            if lengths == {0}
            else f"data: got arrays of {', '.join(map(str, sorted(lengths)))} samples, expected as many for each input",
            where=str(path), hint="give arrays whose first axis counts the samples",
        )  # fmt: skip
    for name, array in zip(graph.inputs, arrays, strict=True):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(f"the samples for {name} contain infinities or NaN", where=str(path), hint=FINITE)
    if all(array.min() == array.max() for array in arrays if array.size):
        raise UsageError(
            f"data: every element of every sample is {float(arrays[0].flat[0]):g}, expected different numbers", where=str(path),
            hint="calibrate with data that are typical of the inputs in use",
        )  # fmt: skip
    rows: list[Row] = list(zip(*([np.ascontiguousarray(a) for a in array] for array in arrays), strict=True))
    count = counts.pop()
    steps = count[1] if len(count) > 1 else 1
    if len(count) > 1:
        rows[::steps] = map(FirstOfSequence, rows[::steps])
    return SampleData(tuple(rows), labels, tuple(notes), steps)


# ---- Score of a network: a single number that states how good the network is at its task. A larger score is better.

Score = Callable[[Graph], float]


def choose_score(evaluate_argument: Any, data: SampleData) -> Score | None:
    """Return the function that scores a network; None if there is no score.

    It is the caller's function ``evaluate_argument`` if this argument is a function. Otherwise it is the accuracy on
    ``data``, if the data has labels."""
    if callable(evaluate_argument):
        return lambda graph: _compute_user_score(evaluate_argument, graph)
    return None if data.labels is None else lambda graph: _measure_accuracy(graph, data)


def _compute_user_score(evaluate: Callable[..., Any], graph: Graph) -> float:
    """Compile a network and return its score by the caller's function. UsageError if the score is no finite number."""
    result = evaluate(compile(graph, optimize="speed", check=False))
    if not isinstance(result, numbers.Real) or not math.isfinite(result):
        raise UsageError(
            f"evaluate returned {validation.short_repr(result)}, expected a finite number",
            hint="give a function of a network that returns a finite number",
        )
    return float(result)


def _measure_accuracy(graph: Graph, data: SampleData) -> float:
    """Return the accuracy of a network: the fraction of samples, or of sequences, that it classifies correctly."""
    assert data.labels is not None
    ends = list(dict.fromkeys(graph.outputs))
    rows = list(run_on_samples(compile_runner(graph, ends), data.rows))
    answers = {name: data.select_labelled(np.stack([row[k] for row in rows])) for k, name in enumerate(ends)}
    return classify_outputs(answers, data.labels).accuracy


def classify_outputs(answers: Mapping[str, Array], labels: Array) -> Classification:
    """Compare the classes that float outputs predict with the labels.

    ``answers``: by name of an output, its numbers for all samples. UsageError if a label is no class of the network."""
    tensors = {name: {"name": name, "scale": None, "zero_point": None} for name in answers}
    try:
        return classify(answers, tensors, labels)
    except UsageError as error:
        raise UsageError(
            error.what, hint="number the classes from 0 on: 0, 1, 2 ..., in the order of the first output"
        ) from error


def check_labels(graph: Graph, data: SampleData) -> None:
    """Raise UsageError if a label in ``data`` is not the number of a class of the network."""
    if data.labels is not None:
        types = {name: graph.types[name] for name in graph.outputs}
        shapes = {name: (len(data.labels), *kind.shape) for name, kind in types.items()}
        classify_outputs(
            {name: np.zeros(shapes[name], dtypes.to_numpy(kind.dtype)) for name, kind in types.items()}, data.labels
        )
