"""scikit-learn estimators by their own formulas, and forests by their arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.trees.ensembles import Ensemble, emit_ensemble, emit_post_transform
from microc.frontend.trees.known_rows import nested_estimators
from microc.ops.trees.tree_arrays import AT_MOST, UNORDERED, Tree

# ---- scikit-learn's trees, forests and boosted trees as ensembles, from the fitted estimator's arrays.

Read = Callable[[Any], Ensemble]


def tree_ensemble_of(estimator: Any) -> Ensemble | None:
    """Return the ensemble of a fitted estimator; None if it has no trees or is unknown."""
    names = [kind.__name__ for kind in type(estimator).__mro__]
    read = next((READERS[name] for name in names if name in READERS), None)
    return read(estimator) if read is not None else None


def _unsupported_error(estimator: Any, what: str, hint: str = "") -> UnsupportedError:
    """Return the error for an estimator that cannot be converted."""
    return UnsupportedError(what, where=type(estimator).__name__, hint=hint)


def _split_modes(tree_structure: Any, left: Array) -> Array:
    """Return the modes of scikit-learn's splits: at most the threshold goes left; missing values too if training chose
    so."""
    missing = getattr(tree_structure, "missing_go_to_left", np.zeros(len(left), bool))
    return np.where(np.asarray(missing, bool), AT_MOST | UNORDERED, AT_MOST)


def _convert_tree(estimator: Any, node_values: Array, target: int = 0) -> Tree:
    """Convert one of scikit-learn's trees; ``node_values`` (nodes, width) are the values of its nodes."""
    structure = estimator.tree_
    left, right = np.asarray(structure.children_left), np.asarray(structure.children_right)
    return Tree(left, right, structure.feature, structure.threshold, _split_modes(structure, left), node_values, target)


def _averaged_trees(estimator: Any) -> Ensemble:
    """Return trees whose values are averaged: class probabilities, or one number per output."""
    trees = getattr(estimator, "estimators_", [estimator])
    converted = []
    for tree in trees:
        values = np.asarray(tree.tree_.value, np.float64)
        if hasattr(estimator, "classes_"):
            if values.shape[1] != 1:
                raise _unsupported_error(
                    estimator, f"a classifier of several outputs, {values.shape[1]}", "train one for every output"
                )
            values = values[:, 0] / values[:, 0].sum(axis=1, keepdims=True)
        else:
            values = values[:, :, 0]
        converted.append(_convert_tree(tree, values / len(trees)))
    return Ensemble(tuple(converted), converted[0].values.shape[1])


def _gradient_boosting(estimator: Any) -> Ensemble:
    """Return gradient boosting: one tree per round and class, times the learning rate, added to a constant."""
    rounds = np.asarray(estimator.estimators_)
    starts_constant = estimator.init_ == "zero" or type(estimator.init_).__name__.startswith("Dummy")
    if not starts_constant:
        raise _unsupported_error(
            estimator, "boosting that starts from another estimator", "leave the parameter init at its default"
        )
    first = estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_), np.float32))
    converted = [
        _convert_tree(tree, np.asarray(tree.tree_.value)[:, :, 0] * estimator.learning_rate, k)
        for row in rounds
        for k, tree in enumerate(row)
    ]
    post = "none"
    if hasattr(estimator, "classes_"):
        post = "softmax" if rounds.shape[1] > 1 else "sigmoid"
        if estimator.loss == "exponential":
            converted = [tree.with_values(2 * tree.values) for tree in converted]
            first = 2 * first
    return Ensemble(tuple(converted), rounds.shape[1], np.asarray(first, np.float64), post=post)


def _histogram_boosting(estimator: Any) -> Ensemble:
    """Return histogram gradient boosting; missing values follow the nodes."""
    converted = [
        _histogram_tree(estimator, tree.nodes, k) for row in estimator._predictors for k, tree in enumerate(row)
    ]
    targets = len(estimator._predictors[0])
    post = "none"
    if hasattr(estimator, "classes_"):
        post = "softmax" if targets > 1 else "sigmoid"
    elif estimator.loss in ("poisson", "gamma"):
        post = "exp"
    return Ensemble(tuple(converted), targets, np.asarray(estimator._baseline_prediction, np.float64), post=post)


def _histogram_tree(estimator: Any, nodes: Array, target: int) -> Tree:
    """Convert one tree of histogram gradient boosting."""
    leaf = nodes["is_leaf"].astype(bool)
    if (nodes["is_categorical"].astype(bool) & ~leaf).any():
        raise _unsupported_error(
            estimator, "splits over categories", "encode the categories as numbers before the trees"
        )
    left = np.where(leaf, -1, nodes["left"].astype(np.int64))
    mode = np.where(nodes["missing_go_to_left"].astype(bool), AT_MOST | UNORDERED, AT_MOST)
    right, values = nodes["right"].astype(np.int64), nodes["value"].astype(np.float64).reshape(-1, 1)
    return Tree(left, right, nodes["feature_idx"].astype(np.int64), nodes["num_threshold"], mode, values, target)


def isolation_ensemble(estimator: Any) -> Ensemble:
    """Return an isolation forest, scaled so that exp of the sum is 2 ** (-depth / c).

    A leaf counts its depth and the expected further path of its training rows. Trees may see only some of the features; for one
    training row every leaf counts as depth c.
    """
    trees, converted = estimator.estimators_, []
    depths, further = estimator._decision_path_lengths, estimator._average_path_length_per_tree
    average = _average_path_length(int(estimator.max_samples_))
    for tree, features, depth, further_depths in zip(
        trees, estimator.estimators_features_, depths, further, strict=True
    ):
        depth = np.asarray(depth) + np.asarray(further_depths) - 1.0
        scaled_depth = depth / average if average else np.ones_like(depth)
        tree_ = _convert_tree(tree, -math.log(2) / len(trees) * scaled_depth.reshape(-1, 1))
        converted.append(
            replace(tree_, feature=np.where(tree_.left >= 0, np.asarray(features)[tree_.feature], tree_.feature))
        )
    return Ensemble(tuple(converted), 1, post="exp")


def _average_path_length(row_count: int) -> float:
    """Return the average path length of an unsuccessful search in a binary search tree of ``row_count`` rows.

    Source: Liu, Ting and Zhou, 2008, eq. 1."""
    if row_count <= 2:
        return float(row_count == 2)
    return 2.0 * (math.log(row_count - 1) + float(np.euler_gamma)) - 2.0 * (row_count - 1.0) / row_count


READERS: Mapping[str, Read] = {
    "DecisionTreeClassifier": _averaged_trees,
    "DecisionTreeRegressor": _averaged_trees,
    "ForestClassifier": _averaged_trees,
    "ForestRegressor": _averaged_trees,
    "GradientBoostingClassifier": _gradient_boosting,
    "GradientBoostingRegressor": _gradient_boosting,
    "HistGradientBoostingClassifier": _histogram_boosting,
    "HistGradientBoostingRegressor": _histogram_boosting,
}
"""Readers by the name of the class or of a base class (ExtraTrees and RandomForest extend the forests)."""


# ---- scikit-learn's estimators that skl2onnx converts inefficiently, inaccurately or not at all, by their own formulas.

Write = Callable[[GraphBuilder, str, Any], dict[str, str]]


def formula_of(estimator: Any) -> Write | None:
    """Return the function that emits an estimator's results for rows of features, by name; None if it has no formula here."""
    if _is_logistic(estimator):
        return emit_logistic
    if _is_linear(estimator):
        return emit_linear
    return next((WRITERS[kind.__name__] for kind in type(estimator).__mro__ if kind.__name__ in WRITERS), None)


def refuse_ties(estimator: Any) -> None:
    """Refuse estimators whose results by skl2onnx differ from scikit-learn's if rows or quantiles are equal."""
    for part in nested_estimators(estimator):
        kind = type(part).__name__
        if kind == "LocalOutlierFactor" and hasattr(part, "_fit_X"):
            count = part.n_neighbors_
            near = part.kneighbors(n_neighbors=min(count + 1, len(part._fit_X) - 1))[0]
            if near.shape[1] > count and np.isclose(near[:, count - 1], near[:, count], rtol=1e-6, atol=0).any():
                raise UnsupportedError(
                    f"LocalOutlierFactor with n_neighbors={part.n_neighbors} on this training data is not supported: "
                    "the converter's formula differs by which of several equally far rows is the last neighbour",
                    where=kind,
                    hint="train an IsolationForest, or choose an n_neighbors that leaves no equally far row out",
                )
        if kind == "QuantileTransformer" and (np.diff(getattr(part, "quantiles_", [[0]]), axis=0) == 0).any():
            raise UnsupportedError(
                "QuantileTransformer with repeated quantiles_ before another estimator is not supported: "
                "the converter's formula differs by half of a repeated quantile's share",
                where=kind,
                hint="compile the transformer and the estimator each alone, or take a RobustScaler",
            )


def emit_isolation_forest(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit an IsolationForest: ``label``, -1 for outliers and 1 for others, and ``scores``, its decision function.

    A row's score is -2 ** (-depth / c): its mean depth over the trees, relative to the average length c of an unsuccessful
    search."""
    ensemble = isolation_ensemble(estimator)
    where = type(estimator).__name__
    write.at(-1, "trees")
    depth = emit_ensemble(write, x, ensemble, where)
    anomaly = write.reshape(emit_post_transform(write, depth, ensemble.post, where), write.shape(depth)[:1])
    write.at(-1, "anomaly")
    offset = write.new_constant("offset", np.array(-estimator.offset_, np.float32))
    scores = write.emit("sub", (offset, anomaly))
    numbers = (write.new_constant(name, np.array(value, np.int32)) for name, value in (("outlier", -1), ("inlier", 1)))
    outlier = write.emit("greater", (anomaly, offset))
    label = write.emit("where", (outlier, *numbers))
    return {"label": label, "scores": scores}


def emit_nearest_centroid(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit a NearestCentroid: ``label``, the class whose mean is nearest, by the sum of squares or of magnitudes."""
    classes = np.asarray(estimator.classes_)
    if not np.allclose(estimator.class_prior_, 1 / len(classes)):
        raise UnsupportedError(
            f"priors {estimator.class_prior_.tolist()}, expected equal ones",
            where=type(estimator).__name__,
            hint="leave priors at 'uniform', or train an LDA",
        )
    means = write.new_constant("centroids", np.asarray(estimator.centroids_, np.float32))
    rows, features = write.shape(x)
    differences = write.emit("sub", (write.reshape(x, (rows, 1, features)), means))
    distances_by_feature = (
        write.emit("abs", (differences,))
        if estimator.metric == "manhattan"
        else write.emit("mul", (differences, differences))
    )
    distances = write.emit("sum", (distances_by_feature,), {"axes": (2,), "keepdims": False})
    nearest = write.emit("argmin", (distances,), {"axis": 1, "out_dtype": "int32"})
    return {"label": emit_class(write, nearest, classes)}


def emit_linear_discriminant(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit a LinearDiscriminantAnalysis: ``label`` and ``probabilities``.

    Scores W x + b cancel: on badly scaled features the products are 1e4 times their sum. So the training mean c is
    subtracted first, and b + W c is folded in float64; float32 then rounds only the remaining products."""
    weight, bias = (np.asarray(part, np.float64) for part in (estimator.coef_, estimator.intercept_))
    mean = np.asarray(estimator.means_, np.float64).T @ np.asarray(estimator.priors_, np.float64)
    centre = mean.astype(np.float32)
    bias = bias + weight @ centre.astype(np.float64)
    centred = write.emit("sub", (x, write.new_constant("centre", centre)))
    operands = (
        write.new_constant(stem, part.astype(np.float32)) for stem, part in (("weight", weight), ("bias", bias))
    )
    scores = write.emit("dense", (centred, *operands))
    probabilities = emit_post_transform(
        write, scores, "sigmoid" if len(bias) == 1 else "softmax", type(estimator).__name__
    )
    class_index = write.emit("argmax", (probabilities,), {"axis": 1, "out_dtype": "int32"})
    return {"label": emit_class(write, class_index, np.asarray(estimator.classes_)), "probabilities": probabilities}


def emit_logistic(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit an SGDClassifier or OneVsRestClassifier of one logistic regression per class: ``label`` and ``probabilities``.

    The label is that of the largest score W x + b. Probabilities are sigmoids divided by their sum; several may be 1 in
    float32, so they do not decide the label. If all are 0, SGDClassifier gives 1 / classes and OneVsRestClassifier 0, as in
    scikit-learn."""
    weight, bias = _weights_and_biases(estimator)
    operands = (
        write.new_constant(stem, np.asarray(part, np.float32)) for stem, part in (("weight", weight), ("bias", bias))
    )
    scores = write.emit("dense", (x, *operands))
    if write.shape(scores)[1] == 1:
        probabilities = emit_post_transform(write, scores, "sigmoid", type(estimator).__name__)
        scores = write.emit("concat", (write.emit("neg", (scores,)), scores), {"axis": 1})
    else:
        sigmoids = write.emit("sigmoid", (scores,))
        total = write.emit("sum", (sigmoids,), {"axes": (1,), "keepdims": True})
        count = 1 if hasattr(estimator, "estimators_") else write.shape(scores)[1]
        one, classes = (
            write.new_constant(stem, np.full((1, 1), value, np.float32))
            for stem, value in (("one", 1), ("count", count))
        )
        # scikit-learn computes 1 / (1 + exp(-s)), and exp overflows beyond the largest float32
        least = write.new_constant("least", np.full((1, 1), 1 / np.finfo(np.float32).max, np.float32))
        all_zero = write.emit("less", (total, least))
        if count > 1:
            sigmoids = write.emit("where", (all_zero, one, sigmoids))
        probabilities = write.emit("div", (sigmoids, write.emit("where", (all_zero, classes, total))))
    class_index = write.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int32"})
    return {"label": emit_class(write, class_index, np.asarray(estimator.classes_)), "probabilities": probabilities}


def emit_linear(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit a OneVsRestClassifier of linear classifiers without probabilities: ``label`` and ``scores`` W x + b.

    skl2onnx divides the scores by the sum of their magnitudes instead. Of two classes the first one's score is minus the
    second's."""
    weight, bias = _weights_and_biases(estimator)
    operands = (
        write.new_constant(stem, np.asarray(part, np.float32)) for stem, part in (("weight", weight), ("bias", bias))
    )
    scores = write.emit("dense", (x, *operands))
    if write.shape(scores)[1] == 1:
        scores = write.emit("concat", (write.emit("neg", (scores,)), scores), {"axis": 1})
    class_index = write.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int32"})
    return {"label": emit_class(write, class_index, np.asarray(estimator.classes_)), "scores": scores}


def emit_gaussian_mixture(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit a GaussianMixture: ``label`` and ``probabilities``, from squares of (x - mean) * precision.

    skl2onnx multiplies the squares out; its float32 sums cancel if means are many deviations from zero."""
    means, roots = (np.asarray(part, np.float64) for part in (estimator.means_, estimator.precisions_cholesky_))
    covariance, (components, features) = estimator.covariance_type, means.shape
    rows = write.shape(x)[0]
    centred = write.emit(
        "sub", (write.reshape(x, (rows, 1, features)), write.new_constant("means", _as_float32(means)))
    )
    if covariance in ("diag", "spherical"):
        roots = np.broadcast_to(roots.reshape(components, -1), means.shape)
        log_determinants = np.log(roots).sum(axis=1)
        scaled = write.emit("mul", (centred, write.new_constant("precision", _as_float32(roots))))
    else:
        roots = np.broadcast_to(roots, (components, features, features))
        log_determinants = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        column = write.reshape(centred, (rows, components, 1, features))
        scaled = write.emit("matmul", (column, write.new_constant("precision", _as_float32(roots))))
        scaled = write.reshape(scaled, (rows, components, features))
    squares = write.emit("sum", (write.emit("mul", (scaled, scaled)),), {"axes": (2,), "keepdims": False})
    bias = log_determinants + np.log(np.asarray(estimator.weights_, np.float64))
    half = write.emit("mul", (squares, write.new_constant("half", np.full((1, 1), 0.5, np.float32))))
    scores = write.emit("sub", (write.new_constant("bias", _as_float32(bias - bias.max())[None]), half))
    component = write.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int32"})
    return {
        "label": component,
        "probabilities": emit_post_transform(write, scores, "softmax", type(estimator).__name__),
    }


def emit_quantile_transformer(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit a QuantileTransformer: ``variable``, the shares of training rows below, as sums of ramps and steps.

    A repeated quantile is a step. For a feature equal to it scikit-learn gives the middle of the step, skl2onnx an end."""
    where = type(estimator).__name__
    if estimator.output_distribution != "uniform":
        raise UnsupportedError(
            f"QuantileTransformer with output_distribution={estimator.output_distribution!r} is not supported: "
            "it takes the inverse of the normal distribution",
            where=where,
            hint="set output_distribution='uniform'",
        )
    references = np.asarray(estimator.references_, np.float64)
    columns = [_ramps_and_steps(column, references) for column in np.asarray(estimator.quantiles_, np.float64).T]
    shape = write.shape(x)
    wide = write.reshape(x, (shape[0], 1, shape[1]))
    zero = write.new_constant("zero", np.zeros((1, 1, 1), np.float32))
    start, slope, most = (_stack_columns([ramps[part] for ramps, _ in columns]) for part in range(3))
    ramp = write.emit("sub", (wide, write.new_constant("start", _as_float32(start))))
    ramp = write.emit("maximum", (write.emit("mul", (ramp, write.new_constant("slope", _as_float32(slope)))), zero))
    ramp = write.emit("minimum", (ramp, write.new_constant("most", _as_float32(most))))
    total = write.emit("sum", (ramp,), {"axes": (1,), "keepdims": False})
    if any(len(steps[0]) for _, steps in columns):
        threshold, height = (_stack_columns([steps[part] for _, steps in columns]) for part in range(2))
        above = write.emit("greater", (wide, write.new_constant("threshold", _as_float32(threshold))))
        steps = write.emit("where", (above, write.new_constant("height", _as_float32(height)[None]), zero))
        total = write.emit("add", (total, write.emit("sum", (steps,), {"axes": (1,), "keepdims": False})))
    return {"variable": total}


_NARROW = 64
"""Width of a ramp, in float32 steps, up to which it becomes single steps: rounding its start by half a step would change the
share by 1 % of that between two quantiles."""


def _ramps_and_steps(quantiles: Array, references: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
    """Return the ramps (start, slope, most) and steps (threshold, height) that sum to one feature's share of training
    rows.

    A step counts above its threshold."""
    values, first, count = np.unique(quantiles, return_index=True, return_counts=True)
    low, high = references[first], references[first + count - 1]
    rise = low[1:] - high[:-1]
    jump = high - low
    below = values.astype(np.float32)  # the largest float32 <= value: x > below means x > value
    below = np.where(below > values, np.nextafter(below, np.float32(-np.inf)), below)
    before = np.where(below == values, np.nextafter(below, np.float32(-np.inf)), below)  # x > before means x >= value
    # At a value scikit-learn gives the middle of its step, at the smallest 0 and at the largest 1.
    height_at = jump / 2
    height_at[-1] = jump[-1]
    height_at[0] = 0.0
    thresholds, heights = np.concatenate([before, below]), np.concatenate([height_at, jump - height_at])
    width = np.diff(values)
    wide = width > _NARROW * np.spacing(np.abs(values).max(initial=0.0).astype(np.float32))
    for index in np.flatnonzero(~wide).tolist():  # float32 cannot hold the ramp: a step at each of its float32s
        inner = _floats_between(before[index + 1], values[index])
        shares = rise[index] * np.append((inner.astype(np.float64) - values[index]) / width[index], 1.0)
        starts = np.append(np.nextafter(inner, np.float32(-np.inf)), before[index + 1])
        thresholds, heights = np.append(thresholds, starts), np.append(heights, np.diff(shares, prepend=0.0))
    is_needed = heights > 0
    return (values[:-1][wide], (rise / width)[wide], rise[wide]), (thresholds[is_needed], heights[is_needed])


def _floats_between(high: Array, low: Array) -> Array:
    """Return the float32 values above ``low`` up to ``high``, ascending."""
    values = []
    while high > low:
        values.append(high)
        high = np.nextafter(high, np.float32(-np.inf))
    return np.array(values[::-1], np.float32)


def _stack_columns(columns: list[Array]) -> Array:
    """Stack columns of different lengths side by side, zero-padded, with at least one row."""
    table = np.zeros((max(1, *(len(column) for column in columns)), len(columns)))
    for index, column in enumerate(columns):
        table[: len(column), index] = column
    return table


def _as_float32(x: Array) -> Array:
    """Return an array as float32."""
    return np.asarray(x, np.float32)


def _weights_and_biases(estimator: Any) -> tuple[Array, Array]:
    """Return weights (classes, features) and biases (classes,); for two classes those of the second only."""
    members = getattr(estimator, "estimators_", [estimator])
    weights = [np.atleast_2d(member.coef_) for member in members]
    biases = [np.broadcast_to(member.intercept_, len(weight)) for member, weight in zip(members, weights, strict=True)]
    return np.concatenate(weights), np.concatenate(biases)


def _is_logistic(estimator: Any) -> bool:
    """Test whether :func:`emit_logistic` computes what an estimator does."""
    class_name = type(estimator).__name__
    if class_name == "OneVsRestClassifier":
        members = getattr(estimator, "estimators_", [])
        return (
            bool(members)
            and not estimator.multilabel_
            and all(_is_logistic(member) or _is_binary_regression(member) for member in members)
        )
    return class_name == "SGDClassifier" and estimator.loss == "log_loss" and hasattr(estimator, "coef_")


def _is_linear(estimator: Any) -> bool:
    """Test whether :func:`emit_linear` computes what an estimator does."""
    members = getattr(estimator, "estimators_", [])
    return (
        type(estimator).__name__ == "OneVsRestClassifier"
        and bool(members)
        and not estimator.multilabel_
        and all(
            hasattr(member, "decision_function")
            and not hasattr(member, "predict_proba")
            and type(member).__name__ in _LINEAR
            for member in members
        )
    )


def _is_binary_regression(estimator: Any) -> bool:
    """Test for a logistic regression of two classes, whose probability is a sigmoid whatever its solver."""
    return type(estimator).__name__ == "LogisticRegression" and np.shape(getattr(estimator, "coef_", ()))[:1] == (1,)


def emit_scaler(write: GraphBuilder, x: str, scaler: Any) -> str | None:
    """Emit (x - offset) * factor of a scaler of scikit-learn, folded in float64; None for any other transformer."""
    kind = type(scaler).__name__
    if kind == "StandardScaler":
        offset, factor = scaler.mean_, scaler.scale_
    elif kind == "RobustScaler":
        offset, factor = scaler.center_, scaler.scale_
    elif kind == "MaxAbsScaler":
        offset, factor = None, scaler.scale_
    elif kind == "MinMaxScaler" and not scaler.clip:  # x * scale + min
        offset, factor = -scaler.min_ / scaler.scale_, 1 / scaler.scale_
    else:
        return None
    if offset is not None and getattr(scaler, "with_mean", True):
        x = write.emit("sub", (x, write.new_constant("offset", np.asarray(offset, np.float32)[None])))
    if factor is not None:
        x = write.emit("mul", (x, write.new_constant("factor", np.asarray(1 / factor, np.float32)[None])))
    return x


def emit_class(write: GraphBuilder, index: str, classes: Array | None) -> str:
    """Emit the class at an index if classes are integers other than indices; else the index."""
    if classes is None or classes.dtype.kind not in "iu" or np.array_equal(classes, np.arange(len(classes))):
        return index
    return write.emit("gather", (write.new_constant("classes", classes.astype(np.int32)), index), {"axis": 0})


_LINEAR = (
    "LinearSVC",
    "PassiveAggressiveClassifier",
    "Perceptron",
    "RidgeClassifier",
    "RidgeClassifierCV",
    "SGDClassifier",
)
"""Classifiers whose decision function is W x + b."""
WRITERS: Mapping[str, Write] = {
    "GaussianMixture": emit_gaussian_mixture,
    "IsolationForest": emit_isolation_forest,
    "LinearDiscriminantAnalysis": emit_linear_discriminant,
    "NearestCentroid": emit_nearest_centroid,
    "QuantileTransformer": emit_quantile_transformer,
}
"""Functions that emit an estimator, by the name of the class or of a base class."""
