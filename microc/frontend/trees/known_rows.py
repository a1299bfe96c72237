"""Rows that an estimator was fitted on, and answers to them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.dtypes import Array

# ---- Answers of a fitted estimator in the form of its network's outputs, and the rows of which rounding decides the
# label.

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


# ---- Rows of features like those that an estimator was fitted on, drawn from what it holds.
#
# Standard normal rows are far from most data: all neighbours are equally far from them, and a calibration is flat there. Fitted
# attributes say where the data is: training rows, centres, means with variances, thresholds of trees, hyperplanes. They are
# collected from the estimator and from those inside of it; rows of a pipeline's last step go back through its scalers.

_ROWS = (
    "_fit_X",
    "X_train_",
    "X_fit_",
    "support_vectors_",
    "cluster_centers_",
    "subcluster_centers_",
    "means_",
    "theta_",
)
_MORE_ROWS = (
    "centroids_",
    "mean_",
    "xbar_",
    "center_",
    "location_",
    "statistics_",
    "data_min_",
    "data_max_",
    "_x_mean",
)
_SPREADS = ("scale_", "data_range_")
_PLANES = (("coef_", "intercept_"), ("coefs_", "intercepts_"))
_MOST = 256
"""Rows of one attribute."""
_DEPTH = 4
"""Estimators inside of estimators."""
_SEED = 20


def known_rows(estimator: Any, features: int, count: int) -> Array:
    """``count`` rows (float32), always the same ones; none where the estimator holds nothing that says where its data is."""
    generator = np.random.default_rng(_SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [rows for rows in _anchors(estimator, features, generator, 0) if len(rows)]
    if not found:
        return np.zeros((0, features), np.float32)
    # Attributes of many rows (training data) must not hide those of few (means of classes).
    pool = np.concatenate([rows[np.linspace(0, len(rows) - 1, min(len(rows), 32)).astype(int)] for rows in found])
    pool = _filled(pool[np.isfinite(pool).any(axis=1)], generator)
    if not len(pool):
        return np.zeros((0, features), np.float32)
    spread = np.std(pool, axis=0)
    first, second = (pool[generator.integers(0, len(pool), count)] for _ in range(2))
    share = generator.uniform(0.15, 0.45, (count, 1))
    mixed = first + share * (second - first)
    moved = first + 0.2 * spread * generator.standard_normal(first.shape)
    kinds = (np.arange(count) % 3)[:, None]
    rows = np.where(kinds == 0, first, np.where(kinds == 1, mixed, moved))
    return np.asarray(np.clip(rows, -1e30, 1e30), np.float32)


def _filled(pool: Array, generator: np.random.Generator) -> Array:
    """Features that a row does not say, from rows that do; standard normal where none does."""
    pool = pool.copy()
    for column in range(pool.shape[1]):
        unknown = ~np.isfinite(pool[:, column])
        known = pool[~unknown, column]
        count = int(unknown.sum())
        pool[unknown, column] = generator.choice(known, count) if known.size else generator.standard_normal(count)
    return pool


def _anchors(estimator: Any, features: int, generator: np.random.Generator, depth: int) -> Iterator[Array]:
    """Groups of rows (k, features); NaN where a group says nothing of a feature."""
    if depth > _DEPTH:
        return
    steps = getattr(estimator, "steps", None)
    if isinstance(steps, list):
        yield from _of_steps([step for _, step in steps], features, generator, depth)
        return
    held = _attributes(estimator)
    if getattr(estimator, "n_features_in_", features) == features:
        yield from _own(held, features, generator)
    columns = held.get("transformers_")
    if isinstance(columns, list):
        yield from _of_columns(columns, features, generator, depth)
    subsets = held.get("estimators_features_")
    for number, inner in enumerate(_inside(held)):
        width = getattr(inner, "n_features_in_", features)
        if width == features and not hasattr(inner, "X_thresholds_"):
            yield from _anchors(inner, features, generator, depth + 1)
        elif isinstance(subsets, list) and number < len(subsets) and width == len(subsets[number]):
            for rows in _anchors(inner, width, generator, depth + 1):
                yield _spread_out(rows, subsets[number], features)


def parts(estimator: Any, depth: int = 0) -> Iterator[Any]:
    """The estimator and all fitted ones inside of it."""
    yield estimator
    if depth < 2 * _DEPTH:
        held = _attributes(estimator)
        steps = [step for _, step in held.get("steps", ()) if not isinstance(step, str)]
        for inner in (*steps, *_inside(held)):
            yield from parts(inner, depth + 1)


def _attributes(estimator: Any) -> Mapping[str, Any]:
    return getattr(estimator, "__dict__", {})


def _inside(held: Mapping[str, Any]) -> Iterator[Any]:
    """Fitted estimators among the attributes, and in lists of these."""
    for name, value in held.items():
        if not name.endswith("_") and name not in ("estimators", "estimator", "calibrators"):
            continue
        stack = [value]
        while stack:
            x = stack.pop(0)
            if isinstance(x, (list, tuple)):
                stack = [*x[:_MOST], *stack]
            elif isinstance(x, np.ndarray) and x.dtype == object:
                stack = [*x.reshape(-1)[:_MOST].tolist(), *stack]
            elif hasattr(x, "n_features_in_") or hasattr(x, "calibrators") or hasattr(x, "X_thresholds_"):
                yield x


def _of_steps(steps: Sequence[Any], features: int, generator: np.random.Generator, depth: int) -> Iterator[Array]:
    """Rows of every step of a pipeline, back through the steps before it as far as they can be inverted."""
    before: list[Any] = []
    width = features
    for step in steps:
        if isinstance(step, str) or step is None:  # "passthrough"
            continue
        for rows in _anchors(step, getattr(step, "n_features_in_", width), generator, depth + 1):
            try:
                for earlier in reversed(before):
                    rows = np.asarray(earlier.inverse_transform(_filled(rows, generator)), np.float64)
            except Exception:  # noqa: BLE001 - a step that has no inverse, or none for such rows
                continue
            if rows.ndim == 2 and rows.shape[1] == features:
                yield rows
        before.append(step)


def _of_columns(parts: Sequence[Any], features: int, generator: np.random.Generator, depth: int) -> Iterator[Array]:
    """Rows of a ColumnTransformer's parts, which see some of the columns."""
    for _, part, columns in parts:
        places = np.arange(features)[columns] if isinstance(columns, slice) else np.asarray(columns)
        if isinstance(part, str) or places.dtype.kind not in "iu":
            continue
        for rows in _anchors(part, len(places), generator, depth + 1):
            yield _spread_out(rows, places, features)


def _spread_out(rows: Array, places: Any, features: int) -> Array:
    wide = np.full((len(rows), features), np.nan)
    wide[:, places] = rows
    return wide


def _own(held: Mapping[str, Any], features: int, generator: np.random.Generator) -> Iterator[Array]:
    """What one estimator's own attributes say."""
    for name in (*_ROWS, *_MORE_ROWS):
        rows: Any = held.get(name)
        rows = rows.toarray() if hasattr(rows, "toarray") else rows
        if isinstance(rows, np.ndarray) and rows.dtype.kind in "fiu" and rows.ndim and rows.shape[-1] == features:
            rows = np.atleast_2d(rows).astype(np.float64)
            yield rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST)).astype(int)]
    yield from _around(held, features, generator)
    tree = held.get("tree_")
    if tree is not None:
        yield _thresholds(tree.feature, tree.threshold, features, generator)
    for row in held.get("_predictors", ())[:8]:
        for each in row:
            inner = each.nodes[each.nodes["is_leaf"] == 0]
            yield _thresholds(inner["feature_idx"].astype(int), inner["num_threshold"], features, generator)
    for name, constants in _PLANES:
        weight, bias = held.get(name), held.get(constants)
        if isinstance(weight, list) and weight:
            weight, bias = weight[0].T, bias[0] if bias else 0.0
        if isinstance(weight, np.ndarray) and weight.dtype.kind == "f" and weight.shape[-1] == features:
            yield _beside_planes(np.atleast_2d(weight), np.asarray(0.0 if bias is None else bias), generator)


def _around(held: Mapping[str, Any], features: int, generator: np.random.Generator) -> Iterator[Array]:
    """Rows around means by variances, those of discrete features by their shares."""
    mean = next(
        (held[name] for name in ("mean_", "center_", "theta_", "means_") if _is_rows(held.get(name), features)), None
    )
    spread = next((held[name] for name in _SPREADS if _is_rows(held.get(name), features)), None)
    if spread is None and _is_rows(held.get("var_"), features):
        spread = np.sqrt(held["var_"])
    if mean is not None and spread is not None:
        mean, spread = np.atleast_2d(mean), np.atleast_2d(spread)
        yield (mean[:, None] + spread[:, None] * generator.standard_normal((1, 12, features))).reshape(-1, features)
    shares: Any = held.get("feature_log_prob_")
    if _is_rows(shares, features):
        shares = np.exp(np.atleast_2d(shares))
        yield np.floor(10 * features * shares[:, None] * generator.exponential(size=(1, 6, features))).reshape(
            -1, features
        )
        yield (generator.random((len(shares), 12, features)) < shares[:, None]).astype(np.float64).reshape(-1, features)


def _is_rows(x: Any, features: int) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f" and 0 < x.ndim < 3 and x.shape[-1] == features


def _thresholds(feature: Array, threshold: Array, features: int, generator: np.random.Generator) -> Array:
    """Rows whose features are near the thresholds of a tree, on both sides of them."""
    rows = np.full((8, features), np.nan)
    for column in np.unique(feature[feature >= 0]).tolist():
        known = threshold[feature == column]
        step = max(float(np.std(known)), 1e-2 * float(np.abs(known).max()), 1e-6)
        rows[:, column] = generator.choice(known, len(rows)) + step * generator.uniform(-0.5, 0.5, len(rows))
    return rows


def _beside_planes(weight: Array, bias: Array, generator: np.random.Generator) -> Array:
    """Rows near hyperplanes weight x + bias = 0, whose features are as large as their weights let them matter."""
    size = np.abs(weight).max(axis=0)
    scale = 1 / np.maximum(size, max(float(size.max()), 1e-30) * 1e-6) / np.sqrt(weight.shape[1])
    count = min(len(weight), 16)
    chosen, constant = weight[:count], np.broadcast_to(bias, (len(weight),))[:count]
    rows = scale * generator.standard_normal((count, weight.shape[1]))
    wanted = generator.uniform(-2, 2, count)
    length = np.maximum((chosen * scale * chosen * scale).sum(axis=1), 1e-30)
    gap = wanted - (rows * chosen).sum(axis=1) - constant
    return np.asarray(rows + (gap / length)[:, None] * chosen * scale * scale)
