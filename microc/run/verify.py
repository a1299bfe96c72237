"""Board against host, kernel by kernel; a network on a user's data."""

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
from microc.errors import UsageError, VerificationError, suggestion
from microc.run.data.samples import Samples
from microc.run.desktop.library import Library
from microc.run.session import Device

# ---- Board against host, kernel by kernel and bit by bit.
#
# Two C libraries may round ``expf`` or ``tanhf`` differently in the last place. Float tensors are therefore allowed a tolerance,
# relative to the largest magnitude in the tensor; where it was needed the host goes on with the board's values, so that every
# kernel is judged by itself and no error adds up. Integers must agree in every bit.

SEED = 20
TOLERANCE = 1e-6


@frozen
class LayerCheck:
    """What was compared after one kernel, over all samples. ``error``: the largest difference; 0 when all bits agree."""

    kernel: int
    layer: str
    op: str
    tensors: tuple[str, ...]
    elements: int
    error: float


@frozen
class Difference:
    """The first disagreement. ``index`` is a position in the tensor; ``count`` elements of it differ in ``sample``."""

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
        """The refusal that reports it."""
        place = f"[{', '.join(map(str, self.index))}]"
        return VerificationError(
            f"board and host differ after kernel {self.kernel} ({self.op}): {self.tensor}{place} is {self.board} on the "
            f"board, {self.host} on the host; {self.count} of {self.elements} elements differ",
            where=f"{self.layer}, sample {self.sample}, {where}",
            hint="was the firmware built from this project, with another compiler or other flags?",
            details=details,
        )


def random_inputs(
    tensors: Sequence[dict[str, Any]], generator: np.random.Generator, shapes: RunShapes | None = None
) -> list[Array]:
    """One array for each input of a manifest: any integer of the dtype, standard normal floats.

    ``shapes``: the sizes of the run, where they vary; None: the largest.
    """
    return [_random(shapes.of(t) if shapes else t["shape"], t["dtype"], generator) for t in tensors]


def _random(shape: Sequence[int], dtype: str, generator: np.random.Generator) -> Array:
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtypes.is_float(dtype):
        return generator.standard_normal(shape).astype(dtypes.to_numpy(dtype))
    low, high = dtypes.int_range(dtype)
    return generator.integers(low, high, shape, dtype=dtypes.to_numpy(dtype), endpoint=True)


def samples(device: Device, count: int, seed: int = SEED) -> list[list[Array]]:
    """``count`` sets of random inputs, the same for the same seed; where sizes vary, of the largest at first, then of any."""
    if count < 1:
        raise UsageError(f"cannot verify {count} samples", hint="--samples takes a number from 1 on")
    generator = np.random.default_rng(seed)
    found, shapes = [], RunShapes(device.project.manifest)
    for _ in range(count):
        found.append(random_inputs(device.inputs, generator, shapes))
        shapes.draw(generator)
    return found


def verify(
    device: Device,
    library: Library,
    inputs: Sequence[Sequence[Any]],
    progress: Progress | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[tuple[LayerCheck, ...], Difference | None]:
    """Run every kernel on both sides and compare what it wrote, right then, before a later kernel uses the memory again.

    ``inputs``: sets of arrays in the graph's order; state is reset once and lives from set to set. Stops at the first
    difference, with what was compared before it. ``tolerance`` is for floats, 0 demands equal bits; those of external code may
    differ by its backend's bound from ours.
    """
    tolerance = validation.number("a tolerance", tolerance, 0, 1)
    device.reset()
    library.reset()
    kernels = device.kernels
    external = device.project.manifest.get("external", {}).get("kernels", ())
    bounds = {each["index"]: max(tolerance, each["bound"]) for each in external}
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
            for name, own in zip(kernel["outputs"], library.manifest["kernels"][k]["outputs"], strict=True):
                board, host = device.read(name), library.tensor(own)
                comparison = compare(board, host, bounds.get(k, tolerance))
                if comparison.wrong:
                    checks = _checks(kernels, elements, errors)
                    return checks[: len(kernels) if sample else k], _difference(
                        sample, k, kernel, name, board, host, comparison
                    )
                if comparison.error:
                    library.set_tensor(own, board)
                elements[k] += board.size
                errors[k] = max(errors[k], comparison.error)
    return _checks(kernels, elements, errors), None


def _checks(
    kernels: Sequence[dict[str, Any]], elements: Sequence[int], errors: Sequence[float]
) -> tuple[LayerCheck, ...]:
    rows = enumerate(zip(kernels, elements, errors, strict=True))
    return tuple(LayerCheck(k, c["layer"], c["op"], tuple(c["outputs"]), n, e) for k, (c, n, e) in rows)


def _difference(
    sample: int, number: int, kernel: dict[str, Any], name: str, board: Array, host: Array, comparison: Comparison
) -> Difference:
    at = comparison.first
    index = tuple(int(i) for i in np.unravel_index(at, board.shape))
    values = board.reshape(-1)[at].item(), host.reshape(-1)[at].item()
    return Difference(sample, number, kernel["layer"], kernel["op"], name, index, *values, comparison.wrong, board.size)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many elements are wrong, the position of the first, and the largest tolerated difference."""

    wrong: int
    first: int
    error: float


def compare(board: Array, host: Array, tolerance: float) -> Comparison:
    """Compare arrays of one shape and dtype. NaN agrees with NaN of the same bits, or of any bits within a tolerance."""
    a, b = board.reshape(-1), host.reshape(-1)
    differs = (_bytes(a) != _bytes(b)).any(axis=1)
    error = 0.0
    if tolerance and differs.any() and a.dtype.kind == "f":
        finite = np.isfinite(a) & np.isfinite(b)
        x, y = (np.where(finite, v, 0).astype(np.float64) for v in (a, b))
        distance = np.abs(x - y)
        close = np.where(finite, distance <= tolerance * np.abs(y).max(), np.isnan(a) & np.isnan(b))
        error = float(distance[differs & close].max(initial=0.0))
        differs &= ~close
    wrong = np.flatnonzero(differs)
    return Comparison(len(wrong), int(wrong[0]) if len(wrong) else -1, error)


def _bytes(flat: Array) -> Array:
    return np.ascontiguousarray(flat).view(np.uint8).reshape(flat.size, flat.dtype.itemsize)


# ---- A network on a user's data: what the board answers, whether the host agrees, and how good the answers are.

_MOST_CLASSES = 10_000


@frozen
class Answers:
    """What the board answered. ``outputs``: by name, of shape (samples, ...). ``differing``: samples in which a bit of the
    outputs is not the host's; ``deviation``: the largest distance of any float in them."""

    outputs: Mapping[str, Array]
    differing: tuple[int, ...]
    deviation: float


@frozen
class Classification:
    """How often the classes are right. ``answers``: the class of each sample; ``confusion[truth, answer]`` counts samples."""

    output: str
    correct: int
    total: int
    answers: Array
    confusion: Array

    @property
    def accuracy(self) -> float:
        return self.correct / self.total

    def recall(self, truth: int) -> float | None:
        """The share of a class's samples that are recognised; None if it has none."""
        count = int(self.confusion[truth].sum())
        return float(self.confusion[truth, truth]) / count if count else None

    def mistakes(self) -> list[tuple[int, int, int]]:
        """Truth, answer and how often, the most frequent first."""
        wrong = self.confusion * (1 - np.eye(len(self.confusion), dtype=np.int64))
        found = [(int(t), int(a), int(wrong[t, a])) for t, a in np.argwhere(wrong)]
        return sorted(found, key=lambda m: (-m[2], m[0], m[1]))


@frozen
class Closeness:
    """An output against what was expected, as real numbers: root of the mean square, and largest, of the differences; cosine of
    the angle between both, over all samples (None where one of them is all zeros)."""

    output: str
    rmse: float
    largest: float
    cosine: float | None


def run_samples(device: Device, library: Library, samples: Samples, progress: Progress | None = None) -> Answers:
    """Run all samples on both sides, in order; state is reset once, and lives from sample to sample."""
    device.reset()
    library.reset()
    rows: list[tuple[Array, ...]] = []
    differing: list[int] = []
    deviation = 0.0
    for number in range(len(samples)):
        if progress is not None:
            progress(f"sample {number + 1} of {len(samples)}", number, len(samples))
        arrays = samples.sample(number)
        board, host = (_tuple(run(*arrays)) for run in (device.run, library))
        if any(a.tobytes() != b.tobytes() for a, b in zip(board, host, strict=True)):
            differing.append(number)
            deviation = max(deviation, *(_deviation(a, b) for a, b in zip(board, host, strict=True)))
        rows.append(board)
    outputs = {t["name"]: np.stack([row[k] for row in rows]) for k, t in enumerate(device.outputs)}
    return Answers(outputs, tuple(differing), deviation)


def _tuple(result: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    return result if isinstance(result, tuple) else (result,)


def _deviation(a: Array, b: Array) -> float:
    """The largest distance of finite floats."""
    if a.dtype.kind != "f":
        return 0.0
    finite = np.isfinite(a) & np.isfinite(b)
    return float(np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0.0))


def classify(
    outputs: Mapping[str, Array], tensors: Mapping[str, Mapping[str, Any]], labels: Array, answer: str = ""
) -> Classification:
    """Compare classes. ``answer``: the output that holds them, by default the first that is a class number, else the first.

    An output of one integer without a scale is the class itself; another of one element is the probability of class 1; of
    several, the largest wins (the first of equals). UsageError when a label is beyond the classes.
    """
    name = answer or next((n for n in outputs if _is_class(outputs[n], tensors[n])), next(iter(outputs)))
    if name not in outputs:
        raise UsageError(f"there is no output {name!r}", hint=suggestion(name, outputs, "outputs"))
    flat = outputs[name].reshape(len(labels), -1)
    if _is_class(outputs[name], tensors[name]):
        answers, classes = flat[:, 0].astype(np.int64), int(max(flat.max(), labels.max())) + 1
    elif flat.shape[1] == 1:
        answers, classes = (_real(flat[:, 0], tensors[name]) >= 0.5).astype(np.int64), 2
    else:
        answers, classes = flat.argmax(axis=1), flat.shape[1]
    if classes > _MOST_CLASSES:
        raise UsageError(
            f"output {name!r} and labels hold {classes - 1}: these are no class numbers",
            hint="--answer names the output that classifies; labels count from 0",
        )
    if labels.max() >= classes or answers.min() < 0:
        raise UsageError(
            f"label {labels.max()} is beyond the {classes} classes of output {name!r}",
            hint="classes count from 0; name another output with --answer",
        )
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels, answers), 1)
    return Classification(name, int(np.trace(confusion)), len(labels), answers, confusion)


def _is_class(output: Array, tensor: Mapping[str, Any]) -> bool:
    return output[0].size == 1 and output.dtype.kind in "iu" and tensor["scale"] is None


def closeness(output: Array, tensor: Mapping[str, Any], expected: Array) -> Closeness:
    """Compare an output with what was expected of it: integers with integers as they are stored, else as real numbers.

    https://en.wikipedia.org/wiki/Root_mean_square_deviation, https://en.wikipedia.org/wiki/Cosine_similarity
    """
    real = expected.dtype.kind == "f" and output.dtype.kind != "f"
    a, b = (x.astype(np.float64).reshape(-1) for x in (_real(output, tensor) if real else output, expected))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    difference = a - b
    return Closeness(
        tensor["name"],
        float(np.sqrt(np.mean(difference**2))),
        float(np.abs(difference).max()),
        float(a @ b) / lengths if lengths else None,
    )


def _real(stored: Array, tensor: Mapping[str, Any]) -> Array:
    """The numbers that stored integers mean; others as they are."""
    real = stored.astype(np.float64)
    return real if tensor["scale"] is None else (real - tensor["zero_point"]) * tensor["scale"]
