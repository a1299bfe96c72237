# SPDX-License-Identifier: Apache-2.0
"""Comparison of engines: board and host kernel by kernel and bit by bit, and quality on the user's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler import validation
from microc.compiler.interaction import Progress
from microc.errors import UsageError, VerificationError, known_names_hint
from microc.run.comparison import compare_bits, measure_differences
from microc.run.data.pictures import dequantise
from microc.run.data.samples import Samples
from microc.run.desktop.library import Library
from microc.run.engine import Engine, HostKernels, KernelEngine, NetworkEngine, stack_outputs
from microc.run.session import Device

# ---- Compare board and host kernel by kernel and bit by bit.
#
# Two C libraries may round ``expf`` or ``tanhf`` differently in the last place. Float tensors therefore have a
# tolerance, relative to the largest magnitude in the tensor. After a tolerated difference the host continues
# with the board's values, so that each kernel is judged by itself and errors do not accumulate. Integers must
# agree in every bit.


TOLERANCE = 1e-6
"""Tolerance of floats, relative to the largest magnitude of a tensor."""


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


class BoardKernels(KernelEngine):
    """The kernels of a firmware, on a board."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.project.manifest)
        self.name, self.device = device.project.board.name, device

    def reset(self) -> None:
        self.device.reset()

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        self.device.set_inputs(*arrays)

    def run(self) -> None:
        self.device.client.run()

    def run_kernel(self, number: int) -> None:
        self.device.run_kernel(number)

    def read(self, name: str) -> Array:
        return self.device.read(name)


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
    board, host = BoardKernels(device), HostKernels(library)
    board.reset()
    host.reset()
    kernels = board.kernels
    external = board.manifest.get("external", {}).get("kernels", ())
    bounds = {entry["index"]: max(tolerance, entry["bound"]) for entry in external}
    elements, errors = [0] * len(kernels), [0.0] * len(kernels)
    for sample, arrays in enumerate(inputs):
        board.set_inputs(arrays)
        host.set_inputs(arrays)
        for k, kernel in enumerate(kernels):
            if progress is not None:
                progress(
                    f"sample {sample + 1}: {kernel['layer']}", sample * len(kernels) + k, len(inputs) * len(kernels)
                )
            board.run_kernel(k)
            host.run_kernel(k)
            for name, host_name in zip(kernel["outputs"], host.kernels[k]["outputs"], strict=True):
                ours, theirs = board.read(name), host.read(host_name)
                comparison = compare_bits(ours, theirs, bounds.get(k, tolerance))
                if comparison.wrong.any():
                    checks = _summarise_layer_checks(kernels, elements, errors)
                    difference = _describe_first_difference(sample, k, kernel, name, ours, theirs, comparison.wrong)
                    return checks[: len(kernels) if sample else k], difference
                if comparison.error:
                    library.set_tensor(host_name, ours)
                elements[k] += ours.size
                errors[k] = max(errors[k], comparison.error)
    return _summarise_layer_checks(kernels, elements, errors), None


def _summarise_layer_checks(
    kernels: Sequence[Mapping[str, Any]], elements: Sequence[int], errors: Sequence[float]
) -> tuple[LayerCheck, ...]:
    """Summarise the comparison of each kernel. ``elements``: compared elements by kernel; ``errors``: largest tolerated
    differences."""
    rows = enumerate(zip(kernels, elements, errors, strict=True))
    return tuple(LayerCheck(k, c["layer"], c["op"], tuple(c["outputs"]), n, e) for k, (c, n, e) in rows)


def _describe_first_difference(
    sample: int,
    kernel_number: int,
    kernel: Mapping[str, Any],
    tensor_name: str,
    board_array: Array,
    host_array: Array,
    wrong: Array,
) -> Difference:
    """Describe the first wrong element of a tensor that kernel ``kernel_number`` wrote. ``wrong``: mask."""
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return Difference(
        sample,
        kernel_number,
        kernel["layer"],
        kernel["op"],
        tensor_name,
        index,
        board_array[index].item(),
        host_array[index].item(),
        int(np.count_nonzero(wrong)),
        board_array.size,
    )


# ---- Answers of an engine, and their agreement with those of another.


@frozen
class Answers:
    """Outputs of an engine for all samples, and their differences from those of another engine.

    ``outputs``: arrays of shape (samples, ...) by name. ``differing_samples``: indices of the samples whose outputs
    differ in any bit. ``max_deviation``: largest difference of floats in these samples."""

    outputs: Mapping[str, Array]
    differing_samples: tuple[int, ...]
    max_deviation: float


def compare_answers(
    first: NetworkEngine, second: Engine, samples: Samples, progress: Progress | None = None
) -> Answers:
    """Run all samples in order on two engines; return the outputs of the first, and their differences from the second's.

    State is reset before the first sample and continues from sample to sample."""
    first.reset()
    second.reset()
    rows: list[tuple[Array, ...]] = []
    differing: list[int] = []
    deviation = 0.0
    for number in range(len(samples)):
        if progress is not None:
            progress(f"sample {number + 1} of {len(samples)}", number, len(samples))
        ours, theirs = (engine.infer(samples.sample(number)).outputs for engine in (first, second))
        if any(a.tobytes() != b.tobytes() for a, b in zip(ours, theirs, strict=True)):
            differing.append(number)
            floats = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.dtype.kind == "f"]
            distances = [measure_differences(a, b, is_float=True).distance for a, b in floats]
            deviation = max([deviation, *(float(distance.max(initial=0.0)) for distance in distances)])
        rows.append(ours)
    return Answers(stack_outputs(rows, first.outputs), tuple(differing), deviation)


# ---- Quality of answers: accuracy of a classifier, and difference from expected outputs.

_MAX_CLASSES = 10_000


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
        answers, classes = (dequantise(rows[:, 0], tensors[name]) >= 0.5).astype(np.int64), 2
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
    a, b = (x.astype(np.float64).reshape(-1) for x in (dequantise(output, tensor) if real else output, expected))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    difference = a - b
    return Closeness(
        tensor["name"],
        float(np.sqrt(np.mean(difference**2))),
        float(np.abs(difference).max()),
        float(a @ b) / lengths if lengths else None,
    )
