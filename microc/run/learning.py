# SPDX-License-Identifier: Apache-2.0
"""Learning on a user's samples: labels for each run, steps by epochs, and answers before and after.

A board that learns and a library on this computer are both a :class:`Learner`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.interaction import Progress
from microc.errors import UsageError, VerificationError
from microc.run.data.pictures import dequantise
from microc.run.data.samples import Samples
from microc.run.engine import stack_outputs
from microc.run.verification import Classification, Closeness, classify, measure_closeness

Tensor = Mapping[str, Any]
"""Description of a tensor in a manifest."""


class Learner(Protocol):
    """A network that learns, ready to run. ``outputs``: its outputs in order, the loss last, as a manifest describes them."""

    outputs: tuple[dict[str, Any], ...]

    def run(self, *arrays: Any) -> Array | tuple[Array, ...]:
        """Infer from the network's own inputs; return its outputs without the loss."""

    def learn(self, *arrays: Any, rate: float) -> float:
        """Make a step on inputs and labels; return the loss before the step."""


@frozen
class Quality:
    """Quality of a network's answers to samples: ``classification`` if the samples have class numbers, else the
    ``closeness`` of each output that is expected."""

    classification: Classification | None
    closeness: tuple[Closeness, ...]


# ---- Labels.


def sample_labels(samples: Samples, labels: Tensor, outputs: Sequence[Tensor]) -> Array:
    """Return the labels of all samples: class numbers, or the expected output that has the shape of the labels.

    ``labels``: description of the input of the labels; ``outputs``: descriptions of the outputs without the loss. The result
    has the shape (samples, *shape of the labels). Raises UsageError if the samples have no labels of this kind."""
    shape = tuple(labels["shape"])
    if samples.labels is not None:
        if math.prod(shape) != 1:
            raise UsageError(
                f"labels: a run takes labels of shape {shape}; got one class number for each sample",
                where=labels["name"],
                hint="compile the model with a batch of 1, and set accumulate in head.toml; or call microc.Device.learn"
                if dtypes.is_integer(labels["dtype"])
                else "give the expected outputs: --expected FILE",
            )
        return _check_classes(samples.labels, labels, outputs).reshape(-1, *shape)
    if dtypes.is_integer(labels["dtype"]):
        raise UsageError(
            "labels: got none, expected the class number of each sample",
            where=labels["name"],
            hint="name an array or column of --data, or a file: --labels NAME",
        )
    fitting = [t for t in outputs if t["name"] in samples.expected and tuple(t["shape"]) == shape]
    if len(fitting) != 1:
        raise UsageError(
            f"labels: got {len(fitting)} expected outputs of shape {shape}, expected one",
            where=labels["name"],
            hint="give the output that the loss compares, and no other: --expected FILE",
        )
    expected = samples.expected[fitting[0]["name"]]
    return expected if expected.dtype.kind == "f" else dequantise(expected, fitting[0])


def _check_classes(classes: Array, labels: Tensor, outputs: Sequence[Tensor]) -> Array:
    """Return class numbers; raise UsageError if no output has the largest of them.

    The loss of such a class would be 0, and nothing would be learned."""
    count = max(t["shape"][-1] if t["shape"] else 1 for t in outputs) if dtypes.is_integer(labels["dtype"]) else 2
    if classes.max() >= count:
        raise UsageError(
            f"label {classes.max()} is beyond the {count} classes of the network",
            where=labels["name"],
            hint="number classes from 0; a model with more outputs learns more classes",
        )
    return classes


# ---- Steps and answers.


def learn_samples(
    learner: Learner, samples: Samples, labels: Array, rate: float, seed: int, progress: Progress | None = None
) -> Iterator[float]:
    """Learn from all samples, once in each epoch, in a new random order; yield the mean loss of each epoch.

    ``labels``: of :func:`sample_labels`; ``seed``: seed of the orders. Raises VerificationError if a loss is not finite."""
    generator = np.random.default_rng(seed)
    while True:
        total = 0.0
        for done, k in enumerate(generator.permutation(len(samples)).tolist()):
            if progress is not None:
                progress("learn", done, len(samples))
            loss = learner.learn(*samples.sample(k), labels[k], rate=rate)
            if not math.isfinite(loss):
                raise VerificationError(
                    f"learning diverges: the loss of sample {k + 1} is {loss}",
                    hint=f"take a smaller rate: --rate {rate / 10:g}; the weights are lost until the board is reset",
                )
            total += loss
        yield total / len(samples)


def evaluate_learner(learner: Learner, samples: Samples, progress: Progress | None = None) -> Quality:
    """Infer all samples, and compare the answers with the samples' class numbers or expected outputs."""
    outputs, rows = learner.outputs[:-1], []
    for k in range(len(samples)):
        if progress is not None:
            progress("evaluate", k, len(samples))
        result = learner.run(*samples.sample(k))
        rows.append(result if isinstance(result, tuple) else (result,))
    answers, tensors = stack_outputs(rows, outputs), {t["name"]: t for t in outputs}
    if samples.labels is not None:
        return Quality(classify(answers, tensors, samples.labels), ())
    return Quality(
        None, tuple(measure_closeness(answers[name], tensors[name], array) for name, array in samples.expected.items())
    )
