"""Answers of a fitted estimator in the form of its network's outputs, and the rows of which rounding decides the label."""

from __future__ import annotations

from typing import Any

import numpy as np

from microc.dtypes import Array

_TIE = 1e-6
"""Scores that differ by less are equal in float32: which class wins is decided by rounding."""
_NUDGE = 1e-6
"""A relative change of features that float32's rounding of a few steps amounts to."""


def answers(estimator: Any, x: Array) -> tuple[tuple[Array, ...], dict[int, Array]]:
    """The estimator's answers for rows, in the order of the network's outputs; for a label the rows that are undecided.

    A classifier gives its label and its probabilities, any other its prediction or transformation.
    """
    if not hasattr(estimator, "predict"):
        return (np.asarray(estimator.transform(x)),), {}
    predicted = np.asarray(estimator.predict(x))
    if not hasattr(estimator, "predict_proba"):
        if not hasattr(estimator, "classes_") and predicted.dtype.kind == "f":
            return (predicted,), {}
        near = [np.asarray(estimator.predict(x + np.abs(x) * side)) for side in (_NUDGE, -_NUDGE)]
        unsure = np.any([each != predicted for each in near], axis=0)
        return (_places(estimator, predicted),), {0: unsure}
    found = estimator.predict_proba(x)
    if isinstance(found, list):  # of several outputs; of one width they are a tensor (rows, classes, outputs)
        alike = len({each.shape for each in found}) == 1
        return (predicted, np.stack(found, axis=-1)) if alike else (predicted,), {}
    shares = np.asarray(found)
    if predicted.ndim > 1:  # labels that do not exclude each other
        return (predicted, shares), {0: np.abs(shares - 0.5) <= _TIE}
    return (_places(estimator, predicted), shares), {0: _undecided(estimator, x, shares)}


def _undecided(estimator: Any, x: Array, shares: Array) -> Array:
    """Find the rows whose label rounding decides: by scores, if those and not the probabilities make the label.

    Probabilities that saturate are equal in float32 while their scores differ. A network that takes its label from them is
    wrong on such rows, and no rounding excuses it.
    """
    if not hasattr(estimator, "decision_function"):
        return tied(shares)
    scores = np.asarray(estimator.decision_function(x))
    scores = np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores
    return tied(scores / np.maximum(np.abs(scores).max(axis=1, keepdims=True), 1.0))


def _places(estimator: Any, label: Array) -> Array:
    """Integer classes as they are, others by their place among the classes."""
    classes = np.asarray(getattr(estimator, "classes_", label))
    if label.dtype.kind in "iub" or classes.dtype.kind in "iub":
        return label
    return np.asarray(np.argmax(label[:, None] == classes[None, :], axis=1))


def tied(shares: Array) -> Array:
    """The rows whose two largest shares are equal but for rounding."""
    top = np.sort(shares, axis=1)[:, -2:]
    return np.asarray(top[:, -1] - top[:, 0] <= _TIE)
