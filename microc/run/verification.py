"""Compare board and host kernel by kernel, and evaluate a network on the user's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler import validation
from microc.compiler.interaction import Progress
from microc.compiler.sizes.run_shapes import RunShapes
from microc.errors import UsageError, VerificationError, known_names_hint
from microc.run.data.samples import Samples
from microc.run.desktop.library import Library
from microc.run.session import Device

# ---- Board against host, kernel by kernel and bit by bit.
#
# Two C libraries may round ``expf`` or ``tanhf`` differently in the last place. Float tensors therefore have a tolerance,
# relative to the largest magnitude in the tensor. After a tolerated difference the host continues with the board's values, so
# that each kernel is judged by itself and errors do not accumulate. Integers must agree in every bit.

SEED = 20
TOLERANCE = 1e-6


@frozen
class LayerCheck:
    """Comparison of the outputs of one kernel on board and host, over all samples.

    ``error``: largest difference within the tolerance, 0 if all bits agree."""

    kernel: int
    layer: str
    op: str
    tensors: tuple[str, ...]
    elements: int
    error: float


@frozen
class Difference:
    """The first difference between board and host, at ``index`` of ``tensor``.

    ``count``: number of differing elements in this sample, of ``elements`` in the tensor."""

    sample: int
    kernel: int
    layer: str
    op: str
    tensor: str
    index: tuple[int, ...]
    board: float | int | bool
    host: float | int | bool
    count: int
    elements: int

    def error(self, where: str, details: Mapping[str, Any] | None = None) -> VerificationError:
        """Return the error that reports this disagreement; ``where``: the board."""
        index_text = f"[{', '.join(map(str, self.index))}]"
        return VerificationError(
            f"board and host differ after kernel {self.kernel} ({self.op}): {self.tensor}{index_text} is {self.board} on the "
            f"board, {self.host} on the host; {self.count} of {self.elements} elements differ",
            where=f"{self.layer}, sample {self.sample}, {where}",
            hint="flash the firmware that was built from this project, with its compiler and flags",
            details=details,
        )


def random_inputs(
    tensors: Sequence[dict[str, Any]], generator: np.random.Generator, shapes: RunShapes | None = None
) -> list[Array]:
    """Generate one array for each input of a manifest: integers over the whole dtype, standard normal floats.

    ``shapes``: shapes for the sizes of this run, if sizes of the network vary; None for the largest sizes.
    """
    return [_random_array(shapes.shape_of(t) if shapes else t["shape"], t["dtype"], generator) for t in tensors]


def _random_array(shape: Sequence[int], dtype: str, generator: np.random.Generator) -> Array:
    """Generate integers over the whole dtype, or standard normal floats."""
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtypes.is_float(dtype):
        return generator.standard_normal(shape).astype(dtypes.to_numpy(dtype))
    low, high = dtypes.int_range(dtype)
    return generator.integers(low, high, shape, dtype=dtypes.to_numpy(dtype), endpoint=True)


def random_input_sets(device: Device, set_count: int, seed: int = SEED) -> list[list[Array]]:
    """Generate ``set_count`` sets of random inputs from a seed.

    If sizes of the network vary, the first set has the largest sizes, the others have random sizes."""
    if set_count < 1:
        raise UsageError(f"samples: got {set_count} samples, expected 1 at least", hint="give --samples 1 or more")
    generator = np.random.default_rng(seed)
    sets, shapes = [], RunShapes(device.project.manifest)
    for _ in range(set_count):
        sets.append(random_inputs(device.inputs, generator, shapes))
        shapes.draw_sizes(generator)
    return sets


def compare_board_with_host(
    device: Device,
    library: Library,
    inputs: Sequence[Sequence[Any]],
    progress: Progress | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[tuple[LayerCheck, ...], Difference | None]:
    """Run every kernel on board and host, and compare its outputs immediately, before a later kernel reuses their
    memory.

    ``inputs``: sets of arrays in the graph's order; state is reset once and continues from set to set. The comparison
    stops at the first difference; it is returned together with the checks before it. ``tolerance``: tolerance of
    floats; 0 requires equal bits. Kernels with external code (a vendor library, for example) may differ by the bound
    that their backend states.
    """
    tolerance = validation.as_number("a tolerance", tolerance, 0, 1)
    device.reset()
    library.reset()
    kernels = device.kernels
    external = device.project.manifest.get("external", {}).get("kernels", ())
    bounds = {entry["index"]: max(tolerance, entry["bound"]) for entry in external}
    elements, errors = [0] * len(kernels), [0.0] * len(kernels)
    for sample, arrays in enumerate(inputs):
        device.set_inputs(*arrays)
        for position, array in enumerate(arrays):
            library.set_input(position, array)
        for k, kernel in enumerate(kernels):
            if progress is not None:
                progress(
                    f"sample {sample + 1}: {kernel['layer']}", sample * len(kernels) + k, len(inputs) * len(kernels)
                )
            device.run_kernel(k)
            library.run_kernel(k)
            for name, host_name in zip(kernel["outputs"], library.manifest["kernels"][k]["outputs"], strict=True):
                board, host = device.read(name), library.tensor(host_name)
                comparison = compare_arrays(board, host, bounds.get(k, tolerance))
                if comparison.wrong:
                    checks = _summarise_layer_checks(kernels, elements, errors)
                    return checks[: len(kernels) if sample else k], _describe_first_difference(
                        sample, k, kernel, name, board, host, comparison
                    )
                if comparison.error:
                    library.set_tensor(host_name, board)
                elements[k] += board.size
                errors[k] = max(errors[k], comparison.error)
    return _summarise_layer_checks(kernels, elements, errors), None


def _summarise_layer_checks(
    kernels: Sequence[dict[str, Any]], elements: Sequence[int], errors: Sequence[float]
) -> tuple[LayerCheck, ...]:
    """Summarise the comparison of each kernel. ``elements``: compared elements by kernel; ``errors``: largest tolerated
    differences."""
    rows = enumerate(zip(kernels, elements, errors, strict=True))
    return tuple(LayerCheck(k, c["layer"], c["op"], tuple(c["outputs"]), n, e) for k, (c, n, e) in rows)


def _describe_first_difference(
    sample: int,
    kernel_number: int,
    kernel: dict[str, Any],
    tensor_name: str,
    board_array: Array,
    host_array: Array,
    comparison: ArrayComparison,
) -> Difference:
    """Describe the first wrong element of a tensor that kernel ``kernel_number`` wrote."""
    at = comparison.first
    index = tuple(int(i) for i in np.unravel_index(at, board_array.shape))
    values = board_array.reshape(-1)[at].item(), host_array.reshape(-1)[at].item()
    return Difference(
        sample,
        kernel_number,
        kernel["layer"],
        kernel["op"],
        tensor_name,
        index,
        *values,
        comparison.wrong,
        board_array.size,
    )


@dataclass(frozen=True, slots=True)
class ArrayComparison:
    """Result of comparing two arrays: number of wrong elements, position of the first wrong element (-1 if none), and
    the largest difference within the tolerance."""

    wrong: int
    first: int
    error: float


def compare_arrays(board: Array, host: Array, tolerance: float) -> ArrayComparison:
    """Compare arrays of the board and the host, of one shape and dtype. ``tolerance``: relative to the largest
    magnitude. NaN equals NaN of the same bits, or any NaN if there is a tolerance."""
    a, b = board.reshape(-1), host.reshape(-1)
    differs = (_view_element_bytes(a) != _view_element_bytes(b)).any(axis=1)
    error = 0.0
    if tolerance and differs.any() and a.dtype.kind == "f":
        finite = np.isfinite(a) & np.isfinite(b)
        x, y = (np.where(finite, v, 0).astype(np.float64) for v in (a, b))
        distance = np.abs(x - y)
        close = np.where(finite, distance <= tolerance * np.abs(y).max(), np.isnan(a) & np.isnan(b))
        error = float(distance[differs & close].max(initial=0.0))
        differs &= ~close
    wrong = np.flatnonzero(differs)
    return ArrayComparison(len(wrong), int(wrong[0]) if len(wrong) else -1, error)


def _view_element_bytes(flat: Array) -> Array:
    """Return a flat array as an array of bytes (elements, bytes per element)."""
    return np.ascontiguousarray(flat).view(np.uint8).reshape(flat.size, flat.dtype.itemsize)


# ---- Evaluation on the user's data: the board's answers, their agreement with the host, and their quality.

_MAX_CLASSES = 10_000


@frozen
class BoardAnswers:
    """The board's outputs for all samples, and their differences from the host's.

    ``outputs``: arrays of shape (samples, ...) by name. ``differing_samples``: indices of the samples whose outputs differ from
    the host's in any bit. ``max_deviation``: largest difference of floats in these samples."""

    outputs: Mapping[str, Array]
    differing_samples: tuple[int, ...]
    max_deviation: float


@frozen
class Classification:
    """Accuracy of a classifier. ``answers``: the class of each sample; ``confusion[true_class, answer]`` counts samples."""

    output: str
    correct: int
    total: int
    answers: Array
    confusion: Array

    @property
    def accuracy(self) -> float:
        return self.correct / self.total

    def recall(self, true_class: int) -> float | None:
        """Compute the share of the samples of class ``true_class`` that are recognised; None if there are none."""
        count = int(self.confusion[true_class].sum())
        return float(self.confusion[true_class, true_class]) / count if count else None

    def mistakes(self) -> list[tuple[int, int, int]]:
        """List (true_class, answer, count) of wrong answers, the most frequent first."""
        wrong = self.confusion * (1 - np.eye(len(self.confusion), dtype=np.int64))
        mistakes = [(int(t), int(a), int(wrong[t, a])) for t, a in np.argwhere(wrong)]
        return sorted(mistakes, key=lambda m: (-m[2], m[0], m[1]))


@frozen
class Closeness:
    """Difference between an output and the expected one as real numbers, over all samples: root mean square, maximum,
    and the cosine of the angle between both (None if one is all zeros)."""

    output: str
    rmse: float
    largest: float
    cosine: float | None


def run_samples_on_both(
    device: Device, library: Library, samples: Samples, progress: Progress | None = None
) -> BoardAnswers:
    """Run all samples in order on board and host, and compare the outputs.

    State is reset before the first sample and continues from sample to sample."""
    device.reset()
    library.reset()
    rows: list[tuple[Array, ...]] = []
    differing: list[int] = []
    deviation = 0.0
    for number in range(len(samples)):
        if progress is not None:
            progress(f"sample {number + 1} of {len(samples)}", number, len(samples))
        arrays = samples.sample(number)
        board, host = (_to_output_tuple(run(*arrays)) for run in (device.run, library))
        if any(a.tobytes() != b.tobytes() for a, b in zip(board, host, strict=True)):
            differing.append(number)
            deviation = max(deviation, *(_max_float_deviation(a, b) for a, b in zip(board, host, strict=True)))
        rows.append(board)
    outputs = {t["name"]: np.stack([row[k] for row in rows]) for k, t in enumerate(device.outputs)}
    return BoardAnswers(outputs, tuple(differing), deviation)


def _to_output_tuple(result: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the outputs of a run as a tuple, also if there is only one."""
    return result if isinstance(result, tuple) else (result,)


def _max_float_deviation(board_output: Array, host_output: Array) -> float:
    """Compute the largest difference of finite floats in two arrays; 0 for integers."""
    if board_output.dtype.kind != "f":
        return 0.0
    finite = np.isfinite(board_output) & np.isfinite(host_output)
    return float(np.abs(board_output[finite].astype(np.float64) - host_output[finite]).max(initial=0.0))


def classify(
    outputs: Mapping[str, Array], tensors: Mapping[str, Mapping[str, Any]], labels: Array, answer: str = ""
) -> Classification:
    """Evaluate a classifier: compare the classes in its outputs with the labels. ``answer``: name of the output that
    contains the class; by default the first output that is a class number, else the first output.

    An output of one integer without a scale is the class number. Any other output of one element is the probability of
    class 1. In an output of several elements, the index of the largest element is the class; if several are largest,
    the first. Raises UsageError if a label is beyond the classes."""
    name = answer or next((n for n in outputs if _is_class_number(outputs[n], tensors[n])), next(iter(outputs)))
    if name not in outputs:
        raise UsageError(f"there is no output {name!r}", hint=known_names_hint(name, outputs, "outputs"))
    rows = outputs[name].reshape(len(labels), -1)
    if _is_class_number(outputs[name], tensors[name]):
        answers, classes = rows[:, 0].astype(np.int64), int(max(rows.max(), labels.max())) + 1
    elif rows.shape[1] == 1:
        answers, classes = (_dequantise_output(rows[:, 0], tensors[name]) >= 0.5).astype(np.int64), 2
    else:
        answers, classes = rows.argmax(axis=1), rows.shape[1]
    if classes > _MAX_CLASSES:
        raise UsageError(
            f"output {name!r} or the labels hold the number {classes - 1}, too large for a class number",
            hint="name the output that classifies (--answer), and number labels from 0",
        )
    if labels.max() >= classes or answers.min() < 0:
        raise UsageError(
            f"label {labels.max()} is beyond the {classes} classes of output {name!r}",
            hint="number classes from 0, or name another output with --answer",
        )
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels, answers), 1)
    return Classification(name, int(np.trace(confusion)), len(labels), answers, confusion)


def _is_class_number(output: Array, tensor: Mapping[str, Any]) -> bool:
    """Test whether an output is a class number: one integer without a scale."""
    return output[0].size == 1 and output.dtype.kind in "iu" and tensor["scale"] is None


def measure_closeness(output: Array, tensor: Mapping[str, Any], expected: Array) -> Closeness:
    """Compare an output with the expected one: integers with integers as stored, else as real numbers.

    https://en.wikipedia.org/wiki/Root_mean_square_deviation, https://en.wikipedia.org/wiki/Cosine_similarity
    """
    real = expected.dtype.kind == "f" and output.dtype.kind != "f"
    a, b = (
        x.astype(np.float64).reshape(-1) for x in (_dequantise_output(output, tensor) if real else output, expected)
    )
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    difference = a - b
    return Closeness(
        tensor["name"],
        float(np.sqrt(np.mean(difference**2))),
        float(np.abs(difference).max()),
        float(a @ b) / lengths if lengths else None,
    )


def _dequantise_output(stored: Array, tensor: Mapping[str, Any]) -> Array:
    """Convert stored numbers to reals: dequantise integers that have a scale, leave other numbers unchanged."""
    real = stored.astype(np.float64)
    return real if tensor["scale"] is None else (real - tensor["zero_point"]) * tensor["scale"]
