# SPDX-License-Identifier: Apache-2.0
"""Sample rows for checking a converted estimator, similar to its training data, and the outputs that it predicts for
them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.dtypes import Array

# ---- Outputs of a fitted estimator in the order of its network's outputs, and a mask of the rows whose label depends on
# rounding.

_TIE = 1e-6
"""Maximum difference of two scores that counts as equal in float32. Rounding then decides which class has the larger
score."""
_NUDGE = 1e-6
"""Relative change of features by a few rounding steps of float32."""


def predict_outputs_and_ties(estimator: Any, feature_rows: Array) -> tuple[tuple[Array, ...], dict[int, Array]]:
    """Compute an estimator's outputs for rows of features, in the order of the outputs of its network.

    A classifier has the outputs label and probabilities, other estimators their prediction or transformation. Also
    return masks of the rows whose label depends on rounding, by the position of the label output."""
    if not hasattr(estimator, "predict"):
        return (np.asarray(estimator.transform(feature_rows)),), {}
    predicted = np.asarray(estimator.predict(feature_rows))
    if not hasattr(estimator, "predict_proba"):
        if not hasattr(estimator, "classes_") and predicted.dtype.kind == "f":
            return (predicted,), {}
        nudged_labels = [
            np.asarray(estimator.predict(feature_rows + np.abs(feature_rows) * side)) for side in (_NUDGE, -_NUDGE)
        ]
        is_undecided = np.any([other != predicted for other in nudged_labels], axis=0)
        return (_labels_as_integers(estimator, predicted),), {0: is_undecided}
    probabilities = estimator.predict_proba(feature_rows)
    if isinstance(probabilities, list):  # of several outputs; of one width they are a tensor (rows, classes, outputs)
        have_one_shape = len({other.shape for other in probabilities}) == 1
        return (predicted, np.stack(probabilities, axis=-1)) if have_one_shape else (predicted,), {}
    probabilities_array = np.asarray(probabilities)
    if predicted.ndim > 1:  # labels that do not exclude each other
        return (predicted, probabilities_array), {0: np.abs(probabilities_array - 0.5) <= _TIE}
    return (_labels_as_integers(estimator, predicted), probabilities_array), {
        0: _find_undecided_rows(estimator, feature_rows, probabilities_array)
    }


def _find_undecided_rows(estimator: Any, feature_rows: Array, probabilities: Array) -> Array:
    """Return a mask of the rows whose label depends on rounding: rows whose two largest scores are equal up to
    rounding.

    The scores are those of ``decision_function`` if the estimator has one, else ``probabilities``. Saturated
    probabilities are equal in float32 although the scores differ. Such rows are not in the mask: a network that takes
    its label from the probabilities is wrong there."""
    if not hasattr(estimator, "decision_function"):
        return find_tied_rows(probabilities)
    scores = np.asarray(estimator.decision_function(feature_rows))
    scores = np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores
    return find_tied_rows(scores / np.maximum(np.abs(scores).max(axis=1, keepdims=True), 1.0))


def _labels_as_integers(estimator: Any, labels: Array) -> Array:
    """Return labels as integers: integer classes unchanged, other classes as indices into the estimator's
    ``classes_``."""
    classes = np.asarray(getattr(estimator, "classes_", labels))
    if labels.dtype.kind in "iub" or classes.dtype.kind in "iub":
        return labels
    return np.asarray(np.argmax(labels[:, None] == classes[None, :], axis=1))


def find_tied_rows(class_shares: Array) -> Array:
    """Return a mask of the rows of ``class_shares`` (rows, classes) whose two largest numbers are equal up to
    rounding."""
    top = np.sort(class_shares, axis=1)[:, -2:]
    return np.asarray(top[:, -1] - top[:, 0] <= _TIE)


# ---- Rows of features similar to an estimator's training data, drawn from its fitted attributes.
#
# Rows from a standard normal distribution are far from most training data. All neighbours are about equally far from such rows,
# and a calibration is constant there, so that they would not show errors. Fitted attributes contain information about the
# training data: training rows, centres, means with variances, thresholds of trees, hyperplanes. They are collected from the
# estimator and all estimators inside of it. Rows of a later step of a pipeline are transformed back through the earlier steps.

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
"""Maximum number of rows taken from one attribute."""
_DEPTH = 4
"""Maximum nesting depth of estimators in estimators."""
_SEED = 20


def sample_known_rows(estimator: Any, feature_count: int, row_count: int) -> Array:
    """Return ``row_count`` float32 rows similar to the estimator's training data. Every call returns the same rows.

    Return an array of 0 rows if no fitted attribute contains information about the training data."""
    generator = np.random.default_rng(_SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        groups = [rows for rows in _iterate_fitted_rows(estimator, feature_count, generator, 0) if len(rows)]
    if not groups:
        return np.zeros((0, feature_count), np.float32)
    # Take at most 32 rows of each attribute: attributes with few rows (means of classes) must appear beside training data.
    pool = np.concatenate([rows[np.linspace(0, len(rows) - 1, min(len(rows), 32)).astype(int)] for rows in groups])
    pool = _fill_unknown_features(pool[np.isfinite(pool).any(axis=1)], generator)
    if not len(pool):
        return np.zeros((0, feature_count), np.float32)
    spread = np.std(pool, axis=0)
    first, second = (pool[generator.integers(0, len(pool), row_count)] for _ in range(2))
    fraction = generator.uniform(0.15, 0.45, (row_count, 1))
    mixed = first + fraction * (second - first)
    jittered = first + 0.2 * spread * generator.standard_normal(first.shape)
    variant = (np.arange(row_count) % 3)[:, None]
    rows = np.where(variant == 0, first, np.where(variant == 1, mixed, jittered))
    return np.asarray(np.clip(rows, -1e30, 1e30), np.float32)


def _fill_unknown_features(partial_rows: Array, generator: np.random.Generator) -> Array:
    """Return rows with NaN replaced by numbers of the same feature in other rows.

    A feature that is NaN in all rows is drawn from a standard normal distribution."""
    partial_rows = partial_rows.copy()
    for column in range(partial_rows.shape[1]):
        unknown = ~np.isfinite(partial_rows[:, column])
        known = partial_rows[~unknown, column]
        count = int(unknown.sum())
        partial_rows[unknown, column] = (
            generator.choice(known, count) if known.size else generator.standard_normal(count)
        )
    return partial_rows


def _iterate_fitted_rows(
    estimator: Any, feature_count: int, generator: np.random.Generator, nesting_depth: int
) -> Iterator[Array]:
    """Yield arrays of rows (k, features) from the fitted attributes of an estimator and of those inside of it.

    A feature about which an attribute contains no information is NaN."""
    if nesting_depth > _DEPTH:
        return
    steps = getattr(estimator, "steps", None)
    if isinstance(steps, list):
        yield from _iterate_pipeline_rows([step for _, step in steps], feature_count, generator, nesting_depth)
        return
    attributes = _instance_attributes(estimator)
    if getattr(estimator, "n_features_in_", feature_count) == feature_count:
        yield from _iterate_attribute_rows(attributes, feature_count, generator)
    columns = attributes.get("transformers_")
    if isinstance(columns, list):
        yield from _iterate_column_transformer_rows(columns, feature_count, generator, nesting_depth)
    subsets = attributes.get("estimators_features_")
    for number, inner in enumerate(_iterate_inner_estimators(attributes)):
        width = getattr(inner, "n_features_in_", feature_count)
        if width == feature_count and not hasattr(inner, "X_thresholds_"):
            yield from _iterate_fitted_rows(inner, feature_count, generator, nesting_depth + 1)
        elif isinstance(subsets, list) and number < len(subsets) and width == len(subsets[number]):
            for rows in _iterate_fitted_rows(inner, width, generator, nesting_depth + 1):
                yield _scatter_columns(rows, subsets[number], feature_count)


def iterate_nested_estimators(estimator: Any, nesting_depth: int = 0) -> Iterator[Any]:
    """Yield the estimator and all estimators inside of it."""
    yield estimator
    if nesting_depth < 2 * _DEPTH:
        attributes = _instance_attributes(estimator)
        steps = [step for _, step in attributes.get("steps", ()) if not isinstance(step, str)]
        for inner in (*steps, *_iterate_inner_estimators(attributes)):
            yield from iterate_nested_estimators(inner, nesting_depth + 1)


def _instance_attributes(estimator: Any) -> Mapping[str, Any]:
    """Return the instance attributes of an estimator, by name."""
    return getattr(estimator, "__dict__", {})


def _iterate_inner_estimators(attributes: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the fitted estimators among attributes, also those in lists and arrays."""
    for name, value in attributes.items():
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


def _iterate_pipeline_rows(
    pipeline_steps: Sequence[Any], feature_count: int, generator: np.random.Generator, nesting_depth: int
) -> Iterator[Array]:
    """Yield rows of every step of a pipeline, transformed back to the pipeline's features by the inverses of earlier
    steps.

    Rows that cannot be transformed back are left out."""
    before: list[Any] = []
    width = feature_count
    for step in pipeline_steps:
        if isinstance(step, str) or step is None:  # "passthrough"
            continue
        for rows in _iterate_fitted_rows(step, getattr(step, "n_features_in_", width), generator, nesting_depth + 1):
            try:
                for earlier in reversed(before):
                    rows = np.asarray(earlier.inverse_transform(_fill_unknown_features(rows, generator)), np.float64)
            except Exception:  # noqa: BLE001 - a step that has no inverse, or none for such rows
                continue
            if rows.ndim == 2 and rows.shape[1] == feature_count:
                yield rows
        before.append(step)


def _iterate_column_transformer_rows(
    transformer_parts: Sequence[Any], feature_count: int, generator: np.random.Generator, nesting_depth: int
) -> Iterator[Array]:
    """Yield rows of the transformers inside of a ColumnTransformer. Each transformer gets only some of the columns."""
    for _, part, columns in transformer_parts:
        columns_of_part = np.arange(feature_count)[columns] if isinstance(columns, slice) else np.asarray(columns)
        if isinstance(part, str) or columns_of_part.dtype.kind not in "iu":
            continue
        for rows in _iterate_fitted_rows(part, len(columns_of_part), generator, nesting_depth + 1):
            yield _scatter_columns(rows, columns_of_part, feature_count)


def _scatter_columns(rows: Array, columns: Any, feature_count: int) -> Array:
    """Return rows of ``columns`` only as rows of all features, with NaN in the other columns."""
    wide = np.full((len(rows), feature_count), np.nan)
    wide[:, columns] = rows
    return wide


def _iterate_attribute_rows(
    attributes: Mapping[str, Any], feature_count: int, generator: np.random.Generator
) -> Iterator[Array]:
    """Yield arrays of rows from the attributes of one estimator, without those of estimators inside of it."""
    for name in (*_ROWS, *_MORE_ROWS):
        rows: Any = attributes.get(name)
        rows = rows.toarray() if hasattr(rows, "toarray") else rows
        if isinstance(rows, np.ndarray) and rows.dtype.kind in "fiu" and rows.ndim and rows.shape[-1] == feature_count:
            rows = np.atleast_2d(rows).astype(np.float64)
            yield rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST)).astype(int)]
    yield from _iterate_rows_around_means(attributes, feature_count, generator)
    tree = attributes.get("tree_")
    if tree is not None:
        yield _sample_rows_near_thresholds(tree.feature, tree.threshold, feature_count, generator)
    for row in attributes.get("_predictors", ())[:8]:
        for predictor in row:
            inner = predictor.nodes[predictor.nodes["is_leaf"] == 0]
            yield _sample_rows_near_thresholds(
                inner["feature_idx"].astype(int), inner["num_threshold"], feature_count, generator
            )
    for name, constants in _PLANES:
        weight, bias = attributes.get(name), attributes.get(constants)
        if isinstance(weight, list) and weight:
            weight, bias = weight[0].T, bias[0] if bias else 0.0
        if isinstance(weight, np.ndarray) and weight.dtype.kind == "f" and weight.shape[-1] == feature_count:
            yield _sample_rows_near_planes(np.atleast_2d(weight), np.asarray(0.0 if bias is None else bias), generator)


def _iterate_rows_around_means(
    attributes: Mapping[str, Any], feature_count: int, generator: np.random.Generator
) -> Iterator[Array]:
    """Yield rows from normal distributions, if the attributes contain means and variances or scales.

    For discrete features, yield rows drawn by the attribute's probabilities."""
    mean = next(
        (
            attributes[name]
            for name in ("mean_", "center_", "theta_", "means_")
            if _has_one_value_per_feature(attributes.get(name), feature_count)
        ),
        None,
    )
    spread = next(
        (attributes[name] for name in _SPREADS if _has_one_value_per_feature(attributes.get(name), feature_count)), None
    )
    if spread is None and _has_one_value_per_feature(attributes.get("var_"), feature_count):
        spread = np.sqrt(attributes["var_"])
    if mean is not None and spread is not None:
        mean, spread = np.atleast_2d(mean), np.atleast_2d(spread)
        yield (mean[:, None] + spread[:, None] * generator.standard_normal((1, 12, feature_count))).reshape(
            -1, feature_count
        )
    probabilities: Any = attributes.get("feature_log_prob_")
    if _has_one_value_per_feature(probabilities, feature_count):
        probabilities = np.exp(np.atleast_2d(probabilities))
        yield np.floor(
            10 * feature_count * probabilities[:, None] * generator.exponential(size=(1, 6, feature_count))
        ).reshape(-1, feature_count)
        yield (
            (generator.random((len(probabilities), 12, feature_count)) < probabilities[:, None])
            .astype(np.float64)
            .reshape(-1, feature_count)
        )


def _has_one_value_per_feature(candidate: Any, feature_count: int) -> bool:
    """Test whether an attribute is a vector or matrix of floats whose last axis has ``feature_count`` elements."""
    return (
        isinstance(candidate, np.ndarray)
        and candidate.dtype.kind == "f"
        and 0 < candidate.ndim < 3
        and candidate.shape[-1] == feature_count
    )


def _sample_rows_near_thresholds(
    node_features: Array, node_thresholds: Array, feature_count: int, generator: np.random.Generator
) -> Array:
    """Return rows whose features are near the thresholds of a tree, on both sides. ``node_features``: the feature that
    each node compares."""
    rows = np.full((8, feature_count), np.nan)
    for column in np.unique(node_features[node_features >= 0]).tolist():
        known = node_thresholds[node_features == column]
        step = max(float(np.std(known)), 1e-2 * float(np.abs(known).max()), 1e-6)
        rows[:, column] = generator.choice(known, len(rows)) + step * generator.uniform(-0.5, 0.5, len(rows))
    return rows


def _sample_rows_near_planes(weights: Array, biases: Array, generator: np.random.Generator) -> Array:
    """Return rows near the hyperplanes weight x + bias = 0.

    Features are scaled inversely to their weights, to make each feature affect the decision equally. Then each row is
    moved along the normal of its plane until weight x + bias is a number drawn from -2 .. 2.
    """
    size = np.abs(weights).max(axis=0)
    scale = 1 / np.maximum(size, max(float(size.max()), 1e-30) * 1e-6) / np.sqrt(weights.shape[1])
    count = min(len(weights), 16)
    normals, constant = weights[:count], np.broadcast_to(biases, (len(weights),))[:count]
    rows = scale * generator.standard_normal((count, weights.shape[1]))
    target = generator.uniform(-2, 2, count)
    length = np.maximum((normals * scale * normals * scale).sum(axis=1), 1e-30)
    gap = target - (rows * normals).sum(axis=1) - constant
    return np.asarray(rows + (gap / length)[:, None] * normals * scale * scale)
