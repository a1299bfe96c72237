"""A network on a user's data: what the board answers, whether the host agrees, and how good the answers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from microc.driver.data.samples import Samples
from microc.driver.desktop.library import Library
from microc.driver.measure.session import Device
from microc.driver.progress import Progress
from microc.dtypes import Array
from microc.errors import UsageError, suggestion
from microc.frozen import frozen

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
