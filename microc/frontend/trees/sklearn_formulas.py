# SPDX-License-Identifier: Apache-2.0
"""Direct conversion of scikit-learn estimators: trees and forests from their arrays, other estimators by formulas of
microc."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.trees.ensembles import (
    Ensemble,
    emit_class_of_index,
    emit_ensemble,
    emit_post_transform,
    replace_categorical_splits,
)
from microc.frontend.trees.known_rows import iterate_nested_estimators
from microc.frontend.trees.support_vectors import emit_support_vector_classifier, is_support_vector_classifier
from microc.ops.trees.tree_arrays import AT_MOST, UNORDERED, Tree

# ---- Conversion of scikit-learn's trees, forests and boosted trees to ensembles, from the arrays of the fitted estimator.

EnsembleReader = Callable[[Any], Ensemble]


def read_tree_ensemble(estimator: Any) -> Ensemble | None:
    """Convert a fitted estimator of trees to an ensemble; return None for any other estimator."""
    names = [kind.__name__ for kind in type(estimator).__mro__]
    read = next((READERS[name] for name in names if name in READERS), None)
    return read(estimator) if read is not None else None


def _make_unsupported_error(estimator: Any, what: str, hint: str = "") -> UnsupportedError:
    """Return the UnsupportedError for an estimator that cannot be converted, with the estimator's class as its
    location."""
    return UnsupportedError(what, where=type(estimator).__name__, hint=hint)


def _read_split_modes(tree_structure: Any, left: Array) -> Array:
    """Return the comparison mode of each split of a scikit-learn tree: values of at most the threshold go left.

    Missing values go in the direction that training chose."""
    missing = getattr(tree_structure, "missing_go_to_left", np.zeros(len(left), bool))
    return np.where(np.asarray(missing, bool), AT_MOST | UNORDERED, AT_MOST)


def _convert_tree(estimator: Any, node_values: Array, result_index: int = 0) -> Tree:
    """Convert one tree of scikit-learn.

    ``node_values`` (nodes, width): values that each leaf adds to ``width`` consecutive results.
    ``result_index``: the first of these results."""
    structure = estimator.tree_
    left, right = np.asarray(structure.children_left), np.asarray(structure.children_right)
    return Tree(
        left,
        right,
        structure.feature,
        structure.threshold,
        _read_split_modes(structure, left),
        node_values,
        result_index,
    )


def _convert_averaged_trees(estimator: Any) -> Ensemble:
    """Convert a tree or forest whose result is the average over the trees: class probabilities, or one number for each
    output."""
    trees = getattr(estimator, "estimators_", [estimator])
    converted = []
    for tree in trees:
        values = np.asarray(tree.tree_.value, np.float64)
        if hasattr(estimator, "classes_"):
            if values.shape[1] != 1:
                raise _make_unsupported_error(
                    estimator,
                    f"classifier: got {values.shape[1]} outputs, expected 1",
                    "train one classifier for every output",
                )
            values = values[:, 0] / values[:, 0].sum(axis=1, keepdims=True)
        else:
            values = values[:, :, 0]
        converted.append(_convert_tree(tree, values / len(trees)))
    return Ensemble(tuple(converted), converted[0].values.shape[1])


def _convert_gradient_boosting(estimator: Any) -> Ensemble:
    """Convert gradient boosting: a constant plus the sum of all trees, times the learning rate.

    There is one tree for each round and class."""
    rounds = np.asarray(estimator.estimators_)
    starts_constant = estimator.init_ == "zero" or type(estimator.init_).__name__.startswith("Dummy")
    if not starts_constant:
        raise _make_unsupported_error(
            estimator, "init: starting from another estimator is not supported", "leave init at its default"
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
    return Ensemble(tuple(converted), rounds.shape[1], np.asarray(first, np.float64), post_transform=post)


def _convert_histogram_boosting(estimator: Any) -> Ensemble:
    """Convert histogram gradient boosting. Each node says whether missing values go left or right."""
    converted = [
        _convert_histogram_tree(estimator, tree, k) for row in estimator._predictors for k, tree in enumerate(row)
    ]
    targets = len(estimator._predictors[0])
    post = "none"
    if hasattr(estimator, "classes_"):
        post = "softmax" if targets > 1 else "sigmoid"
    elif estimator.loss in ("poisson", "gamma"):
        post = "exp"
    return Ensemble(
        tuple(converted), targets, np.asarray(estimator._baseline_prediction, np.float64), post_transform=post
    )


def _convert_histogram_tree(estimator: Any, predictor: Any, result_index: int) -> Tree:
    """Convert one tree of histogram gradient boosting; ``result_index``: index of the result that the tree adds to."""
    nodes, leaf = predictor.nodes, predictor.nodes["is_leaf"].astype(bool)
    is_categorical = nodes["is_categorical"].astype(bool) & ~leaf
    missing_left = nodes["missing_go_to_left"].astype(bool)
    columns, category_values = _read_histogram_columns(estimator)
    # A category that training has not seen goes where missing values go. The listed values, which replace_categorical_splits
    # sends to the right, are therefore those of the other child, and both children change places if that is the left one.
    bounds = {}
    for index in np.flatnonzero(is_categorical).tolist():
        values = category_values[int(nodes["feature_idx"][index])]
        bit_field = predictor.raw_left_cat_bitsets[nodes["bitset_idx"][index]]
        goes_left = np.unpackbits(bit_field.astype("<u4").view(np.uint8), bitorder="little")[: len(values)] != 0
        listed = np.sort(values[goes_left != missing_left[index]])
        bounds[index] = [edge for value in listed for edge in (value, np.nextafter(value, np.inf))]
    swaps = is_categorical & ~missing_left
    left, right = (np.where(leaf, -1, nodes[name].astype(np.int64)) for name in ("left", "right"))
    left, right = np.where(swaps, right, left), np.where(swaps, left, right)
    mode = np.where(missing_left | is_categorical, AT_MOST | UNORDERED, AT_MOST)
    leaf_values = nodes["value"].astype(np.float64).reshape(-1, 1)
    feature = np.where(leaf, 0, columns[nodes["feature_idx"].astype(np.int64)])
    tree = Tree(left, right, feature, nodes["num_threshold"], mode, leaf_values, result_index)
    return replace_categorical_splits(tree, bounds, type(estimator).__name__)


def _read_histogram_columns(estimator: Any) -> tuple[Array, Mapping[int, Array]]:
    """Return the column of the input for each feature of histogram gradient boosting, and the values of the categories
    of each categorical feature, in the order of their codes.

    The estimator encodes categories as 0, 1 ... and moves their columns before the others. UnsupportedError for
    categories that are no numbers."""
    if getattr(estimator, "is_categorical_", None) is None:
        return np.arange(estimator.n_features_in_), {}
    is_first = np.asarray(estimator.is_categorical_, bool)
    columns = np.concatenate([np.flatnonzero(is_first), np.flatnonzero(~is_first)])
    categories = estimator._preprocessor.named_transformers_["encoder"].categories_
    values: dict[int, Array] = {}
    for feature, numbers in enumerate(categories):
        if np.asarray(numbers).dtype.kind not in "iufb":
            raise _make_unsupported_error(
                estimator,
                f"categories of feature {columns[feature]}: got {np.asarray(numbers).dtype}, expected numbers",
                "encode the categories as numbers",
            )
        finite = np.asarray(numbers, np.float64)
        values[feature] = finite[~np.isnan(finite)]
    return columns, values


def convert_isolation_forest(estimator: Any) -> Ensemble:
    """Convert an isolation forest to an ensemble whose result is 2 ** (-depth / c).

    depth is a row's mean depth over the trees, c the average path length of an unsuccessful search. The value of a leaf
    is its depth plus the expected length of the further path that separates its training rows, scaled so that exp(sum
    over trees) is the result. If there is only one training row, every leaf counts as depth c. A tree may use only some
    of the features.
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
    return Ensemble(tuple(converted), 1, post_transform="exp")


def _average_path_length(row_count: int) -> float:
    """Return the average path length of an unsuccessful search in a binary search tree of ``row_count`` rows.

    Source: Liu, Ting and Zhou, 2008, eq. 1."""
    if row_count <= 2:
        return float(row_count == 2)
    return 2.0 * (math.log(row_count - 1) + float(np.euler_gamma)) - 2.0 * (row_count - 1.0) / row_count


READERS: Mapping[str, EnsembleReader] = {
    "DecisionTreeClassifier": _convert_averaged_trees,
    "DecisionTreeRegressor": _convert_averaged_trees,
    "ForestClassifier": _convert_averaged_trees,
    "ForestRegressor": _convert_averaged_trees,
    "GradientBoostingClassifier": _convert_gradient_boosting,
    "GradientBoostingRegressor": _convert_gradient_boosting,
    "HistGradientBoostingClassifier": _convert_histogram_boosting,
    "HistGradientBoostingRegressor": _convert_histogram_boosting,
}
"""Functions that convert an estimator of trees, by the name of its class or of a base class. ExtraTrees and
RandomForest are subclasses of the forests."""


# ---- Formulas of microc for estimators of scikit-learn that skl2onnx converts inefficiently, inaccurately or not at all.

OutputEmitter = Callable[[GraphBuilder, str, Any], dict[str, str]]


def find_output_emitter(estimator: Any) -> OutputEmitter | None:
    """Return the function that emits an estimator's outputs for rows of features; None if microc has no formula for it.

    The function returns values of the graph by the names of the outputs."""
    if is_support_vector_classifier(estimator):
        return emit_support_vector_classifier
    if _is_logistic_classifier(estimator):
        return emit_one_vs_rest_logistic
    if _is_linear_one_vs_rest(estimator):
        return emit_one_vs_rest_linear
    return next((WRITERS[kind.__name__] for kind in type(estimator).__mro__ if kind.__name__ in WRITERS), None)


def refuse_ties_in_training_data(estimator: Any) -> None:
    """Refuse an estimator for which skl2onnx's formula differs from scikit-learn's because of ties in its training
    data.

    Ties are neighbours at equal distance for LocalOutlierFactor, and repeated quantiles for QuantileTransformer."""
    for part in iterate_nested_estimators(estimator):
        kind = type(part).__name__
        if kind == "LocalOutlierFactor" and hasattr(part, "_fit_X"):
            count = part.n_neighbors_
            near = part.kneighbors(n_neighbors=min(count + 1, len(part._fit_X) - 1))[0]
            if near.shape[1] > count and np.isclose(near[:, count - 1], near[:, count], rtol=1e-6, atol=0).any():
                raise UnsupportedError(
                    f"LocalOutlierFactor with n_neighbors={part.n_neighbors} on this training data is not supported: "
                    "skl2onnx's formula may choose another of several equally far rows as the last neighbour",
                    where=kind,
                    hint="train an IsolationForest, or choose an n_neighbors that leaves no equally far row out",
                )
        if kind == "QuantileTransformer" and (np.diff(getattr(part, "quantiles_", [[0]]), axis=0) == 0).any():
            raise UnsupportedError(
                "QuantileTransformer with repeated quantiles_ before another estimator is not supported: "
                "skl2onnx's formula differs by half of a repeated quantile's share",
                where=kind,
                hint="compile the transformer and the estimator separately, or use a RobustScaler",
            )


def emit_isolation_forest(builder: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit the outputs of an IsolationForest: ``label``, -1 for outliers and 1 for other rows, and ``scores``, its
    decision function.

    The decision function is -2 ** (-depth / c) minus an offset, where depth is the row's mean depth over the trees, and
    c the average path length of an unsuccessful search."""
    ensemble = convert_isolation_forest(estimator)
    where = type(estimator).__name__
    builder.at(-1, "trees")
    depth = emit_ensemble(builder, x, ensemble, where)
    anomaly = builder.reshape(
        emit_post_transform(builder, depth, ensemble.post_transform, where), builder.shape(depth)[:1]
    )
    builder.at(-1, "anomaly")
    offset = builder.new_constant("offset", np.array(-estimator.offset_, np.float32))
    scores = builder.emit("sub", (offset, anomaly))
    numbers = (
        builder.new_constant(name, np.array(value, np.int32)) for name, value in (("outlier", -1), ("inlier", 1))
    )
    outlier = builder.emit("greater", (anomaly, offset))
    label = builder.emit("where", (outlier, *numbers))
    return {"label": label, "scores": scores}


def emit_nearest_centroid(builder: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit the output ``label`` of a NearestCentroid: the class whose centroid is nearest.

    The distance is the sum of the squared differences of the features, or of their magnitudes for the manhattan
    metric."""
    classes = np.asarray(estimator.classes_)
    if not np.allclose(estimator.class_prior_, 1 / len(classes)):
        raise UnsupportedError(
            f"priors: got {estimator.class_prior_.tolist()}, expected equal numbers",
            where=type(estimator).__name__,
            hint="leave priors at 'uniform', or train a LinearDiscriminantAnalysis",
        )
    means = builder.new_constant("centroids", np.asarray(estimator.centroids_, np.float32))
    rows, features = builder.shape(x)
    differences = builder.emit("sub", (builder.reshape(x, (rows, 1, features)), means))
    distances_by_feature = (
        builder.emit("abs", (differences,))
        if estimator.metric == "manhattan"
        else builder.emit("mul", (differences, differences))
    )
    distances = builder.emit("sum", (distances_by_feature,), {"axes": (2,), "keepdims": False})
    nearest = builder.emit("argmin", (distances,), {"axis": 1, "out_dtype": "int32"})
    return {"label": emit_class_of_index(builder, nearest, classes)}


def emit_linear_discriminant(builder: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit the outputs ``label`` and ``probabilities`` of a LinearDiscriminantAnalysis.

    The scores W x + b suffer from cancellation: for badly scaled features the products can be 1e4 times their sum.
    Therefore the training mean c is subtracted from x, and b + W c is computed in float64 at compile time; float32 then
    rounds only the remaining products."""
    weight, bias = (np.asarray(part, np.float64) for part in (estimator.coef_, estimator.intercept_))
    mean = np.asarray(estimator.means_, np.float64).T @ np.asarray(estimator.priors_, np.float64)
    centre = mean.astype(np.float32)
    bias = bias + weight @ centre.astype(np.float64)
    centred = builder.emit("sub", (x, builder.new_constant("centre", centre)))
    operands = (
        builder.new_constant(stem, part.astype(np.float32)) for stem, part in (("weight", weight), ("bias", bias))
    )
    scores = builder.emit("dense", (centred, *operands))
    probabilities = emit_post_transform(
        builder, scores, "sigmoid" if len(bias) == 1 else "softmax", type(estimator).__name__
    )
    class_index = builder.emit("argmax", (probabilities,), {"axis": 1, "out_dtype": "int32"})
    return {
        "label": emit_class_of_index(builder, class_index, np.asarray(estimator.classes_)),
        "probabilities": probabilities,
    }


def emit_one_vs_rest_logistic(builder: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit the outputs ``label`` and ``probabilities`` of a classifier that has one logistic regression for each class.

    These are SGDClassifier and OneVsRestClassifier. The label is the class of the largest score W x + b. Probabilities
    are the sigmoids of the scores, divided by their sum. Several sigmoids may be 1 in float32; therefore the label does
    not depend on them. If all sigmoids are 0, the probabilities are 1 / classes for SGDClassifier and 0 for
    OneVsRestClassifier, as in scikit-learn."""
    weight, bias = _stack_weights_and_biases(estimator)
    operands = (
        builder.new_constant(stem, np.asarray(part, np.float32)) for stem, part in (("weight", weight), ("bias", bias))
    )
    scores = builder.emit("dense", (x, *operands))
    if builder.shape(scores)[1] == 1:
        probabilities = emit_post_transform(builder, scores, "sigmoid", type(estimator).__name__)
        scores = builder.emit("concat", (builder.emit("neg", (scores,)), scores), {"axis": 1})
    else:
        sigmoids = builder.emit("sigmoid", (scores,))
        total = builder.emit("sum", (sigmoids,), {"axes": (1,), "keepdims": True})
        count = 1 if hasattr(estimator, "estimators_") else builder.shape(scores)[1]
        one, classes = (
            builder.new_constant(stem, np.full((1, 1), value, np.float32))
            for stem, value in (("one", 1), ("count", count))
        )
        # scikit-learn computes 1 / (1 + exp(-s)), and exp overflows beyond the largest float32
        least = builder.new_constant("least", np.full((1, 1), 1 / np.finfo(np.float32).max, np.float32))
        all_zero = builder.emit("less", (total, least))
        if count > 1:
            sigmoids = builder.emit("where", (all_zero, one, sigmoids))
        probabilities = builder.emit("div", (sigmoids, builder.emit("where", (all_zero, classes, total))))
    class_index = builder.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int32"})
    return {
        "label": emit_class_of_index(builder, class_index, np.asarray(estimator.classes_)),
        "probabilities": probabilities,
    }


def emit_one_vs_rest_linear(builder: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit the outputs ``label`` and ``scores`` of a OneVsRestClassifier of linear classifiers that have no
    probabilities.

    The scores are W x + b; skl2onnx divides them by the sum of their magnitudes. If there are two classes, the score of
    the first is minus that of the second."""
    weight, bias = _stack_weights_and_biases(estimator)
    operands = (
        builder.new_constant(stem, np.asarray(part, np.float32)) for stem, part in (("weight", weight), ("bias", bias))
    )
    scores = builder.emit("dense", (x, *operands))
    if builder.shape(scores)[1] == 1:
        scores = builder.emit("concat", (builder.emit("neg", (scores,)), scores), {"axis": 1})
    class_index = builder.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int32"})
    return {"label": emit_class_of_index(builder, class_index, np.asarray(estimator.classes_)), "scores": scores}


def emit_gaussian_mixture(builder: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit the outputs ``label`` and ``probabilities`` of a GaussianMixture, from the squares of (x - mean) *
    precision.

    skl2onnx expands the squares. Its float32 sums suffer from cancellation if means are many standard deviations from
    0."""
    means, roots = (np.asarray(part, np.float64) for part in (estimator.means_, estimator.precisions_cholesky_))
    covariance, (components, features) = estimator.covariance_type, means.shape
    rows = builder.shape(x)[0]
    centred = builder.emit(
        "sub", (builder.reshape(x, (rows, 1, features)), builder.new_constant("means", _as_float32(means)))
    )
    if covariance in ("diag", "spherical"):
        roots = np.broadcast_to(roots.reshape(components, -1), means.shape)
        log_determinants = np.log(roots).sum(axis=1)
        scaled = builder.emit("mul", (centred, builder.new_constant("precision", _as_float32(roots))))
    else:
        roots = np.broadcast_to(roots, (components, features, features))
        log_determinants = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        column = builder.reshape(centred, (rows, components, 1, features))
        scaled = builder.emit("matmul", (column, builder.new_constant("precision", _as_float32(roots))))
        scaled = builder.reshape(scaled, (rows, components, features))
    squares = builder.emit("sum", (builder.emit("mul", (scaled, scaled)),), {"axes": (2,), "keepdims": False})
    bias = log_determinants + np.log(np.asarray(estimator.weights_, np.float64))
    half = builder.emit("mul", (squares, builder.new_constant("half", np.full((1, 1), 0.5, np.float32))))
    scores = builder.emit("sub", (builder.new_constant("bias", _as_float32(bias - bias.max())[None]), half))
    component = builder.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int32"})
    return {
        "label": component,
        "probabilities": emit_post_transform(builder, scores, "softmax", type(estimator).__name__),
    }


def emit_quantile_transformer(builder: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit the output ``variable`` of a QuantileTransformer: for each feature the fraction of training rows with
    smaller numbers.

    The fraction is a piecewise linear function of the feature, the sum of ramps and steps. A quantile that occurs
    several times is a step. For a feature equal to it scikit-learn returns the middle of the step, but skl2onnx an end
    of it."""
    where = type(estimator).__name__
    if estimator.output_distribution != "uniform":
        raise UnsupportedError(
            f"QuantileTransformer with output_distribution={estimator.output_distribution!r} is not supported: "
            "it takes the inverse of the normal distribution",
            where=where,
            hint="set output_distribution='uniform'",
        )
    references = np.asarray(estimator.references_, np.float64)
    columns = [_fit_ramps_and_steps(column, references) for column in np.asarray(estimator.quantiles_, np.float64).T]
    shape = builder.shape(x)
    wide = builder.reshape(x, (shape[0], 1, shape[1]))
    zero = builder.new_constant("zero", np.zeros((1, 1, 1), np.float32))
    start, slope, most = (_stack_padded_columns([ramps[part] for ramps, _ in columns]) for part in range(3))
    ramp = builder.emit("sub", (wide, builder.new_constant("start", _as_float32(start))))
    ramp = builder.emit(
        "maximum", (builder.emit("mul", (ramp, builder.new_constant("slope", _as_float32(slope)))), zero)
    )
    ramp = builder.emit("minimum", (ramp, builder.new_constant("most", _as_float32(most))))
    total = builder.emit("sum", (ramp,), {"axes": (1,), "keepdims": False})
    if any(len(steps[0]) for _, steps in columns):
        threshold, height = (_stack_padded_columns([steps[part] for _, steps in columns]) for part in range(2))
        above = builder.emit("greater", (wide, builder.new_constant("threshold", _as_float32(threshold))))
        steps = builder.emit("where", (above, builder.new_constant("height", _as_float32(height)[None]), zero))
        total = builder.emit("add", (total, builder.emit("sum", (steps,), {"axes": (1,), "keepdims": False})))
    return {"variable": total}


_NARROW = 64
"""Maximum width of a ramp, in float32 rounding steps, that is replaced by single steps. Rounding the start of so narrow
a ramp by half a rounding step would change the result by 1 % of the ramp's height."""


def _fit_ramps_and_steps(quantiles: Array, references: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
    """Return the ramps and steps whose sum is a QuantileTransformer's function of one feature.

    Ramps are three vectors: start, slope, and maximum height. Steps are two vectors, threshold and height; a step is
    added for features above its threshold. ``references``: result for each of the ``quantiles``."""
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
        inner = _list_float32_between(before[index + 1], values[index])
        shares = rise[index] * np.append((inner.astype(np.float64) - values[index]) / width[index], 1.0)
        starts = np.append(np.nextafter(inner, np.float32(-np.inf)), before[index + 1])
        thresholds, heights = np.append(thresholds, starts), np.append(heights, np.diff(shares, prepend=0.0))
    is_needed = heights > 0
    return (values[:-1][wide], (rise / width)[wide], rise[wide]), (thresholds[is_needed], heights[is_needed])


def _list_float32_between(high: Array, low: Array) -> Array:
    """Return all float32 numbers x with ``low`` < x <= ``high``, ascending."""
    values = []
    while high > low:
        values.append(high)
        high = np.nextafter(high, np.float32(-np.inf))
    return np.array(values[::-1], np.float32)


def _stack_padded_columns(columns: list[Array]) -> Array:
    """Stack vectors of different lengths as the columns of a matrix of at least one row. Shorter columns end with
    zeros."""
    table = np.zeros((max(1, *(len(column) for column in columns)), len(columns)))
    for index, column in enumerate(columns):
        table[: len(column), index] = column
    return table


def _as_float32(x: Array) -> Array:
    """Return an array as float32."""
    return np.asarray(x, np.float32)


def _stack_weights_and_biases(estimator: Any) -> tuple[Array, Array]:
    """Return the weights (classes, features) and biases (classes,) of a linear classifier or of one classifier for each
    class.

    For two classes they have only one row, which belongs to the second class."""
    members = getattr(estimator, "estimators_", [estimator])
    weights = [np.atleast_2d(member.coef_) for member in members]
    biases = [np.broadcast_to(member.intercept_, len(weight)) for member, weight in zip(members, weights, strict=True)]
    return np.concatenate(weights), np.concatenate(biases)


def _is_logistic_classifier(estimator: Any) -> bool:
    """Test whether :func:`emit_one_vs_rest_logistic` is the formula of an estimator."""
    class_name = type(estimator).__name__
    if class_name == "OneVsRestClassifier":
        members = getattr(estimator, "estimators_", [])
        return (
            bool(members)
            and not estimator.multilabel_
            and all(_is_logistic_classifier(member) or _is_binary_logistic_regression(member) for member in members)
        )
    return class_name == "SGDClassifier" and estimator.loss == "log_loss" and hasattr(estimator, "coef_")


def _is_linear_one_vs_rest(estimator: Any) -> bool:
    """Test whether :func:`emit_one_vs_rest_linear` is the formula of an estimator."""
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


def _is_binary_logistic_regression(estimator: Any) -> bool:
    """Test whether an estimator is a logistic regression of two classes. Its probability is a sigmoid for every
    solver."""
    return type(estimator).__name__ == "LogisticRegression" and np.shape(getattr(estimator, "coef_", ()))[:1] == (1,)


def emit_scaler(builder: GraphBuilder, x: str, scaler: Any) -> str | None:
    """Emit (x - offset) * factor, the formula of scikit-learn's scalers, with constants computed in float64 at compile
    time.

    Return None for any other transformer."""
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
        x = builder.emit("sub", (x, builder.new_constant("offset", np.asarray(offset, np.float32)[None])))
    if factor is not None:
        x = builder.emit("mul", (x, builder.new_constant("factor", np.asarray(1 / factor, np.float32)[None])))
    return x


_LINEAR = (
    "LinearSVC",
    "PassiveAggressiveClassifier",
    "Perceptron",
    "RidgeClassifier",
    "RidgeClassifierCV",
    "SGDClassifier",
)
"""Names of classifiers whose decision function is W x + b."""
WRITERS: Mapping[str, OutputEmitter] = {
    "GaussianMixture": emit_gaussian_mixture,
    "IsolationForest": emit_isolation_forest,
    "LinearDiscriminantAnalysis": emit_linear_discriminant,
    "NearestCentroid": emit_nearest_centroid,
    "QuantileTransformer": emit_quantile_transformer,
}
"""Functions that emit an estimator's outputs, by the name of its class or of a base class."""
