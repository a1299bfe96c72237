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
from microc.frontend.trees.ensembles import Ensemble, emit_ensemble, emit_post
from microc.frontend.trees.known_rows import parts
from microc.ops.trees.tree_arrays import AT_MOST, UNORDERED, Tree

# ---- scikit-learn's trees, forests and boosted trees as ensembles: from a fitted estimator's arrays, without calling
# it.

Read = Callable[[Any], Ensemble]


def ensemble_of(estimator: Any) -> Ensemble | None:
    """The ensemble of a fitted estimator; None where it is none of trees that are known here."""
    names = [kind.__name__ for kind in type(estimator).__mro__]
    read = next((READERS[name] for name in names if name in READERS), None)
    return read(estimator) if read is not None else None


def _refuse(estimator: Any, what: str, hint: str = "") -> UnsupportedError:
    return UnsupportedError(what, where=type(estimator).__name__, hint=hint)


def _modes(structure: Any, left: Array) -> Array:
    """At most the threshold to the left; missing values too where training saw some and found it better."""
    missing = getattr(structure, "missing_go_to_left", np.zeros(len(left), bool))
    return np.where(np.asarray(missing, bool), AT_MOST | UNORDERED, AT_MOST)


def _tree(estimator: Any, values: Array, target: int = 0) -> Tree:
    """One of scikit-learn's trees, with values of its nodes (nodes, width)."""
    structure = estimator.tree_
    left, right = np.asarray(structure.children_left), np.asarray(structure.children_right)
    return Tree(left, right, structure.feature, structure.threshold, _modes(structure, left), values, target)


def _average(estimator: Any) -> Ensemble:
    """Trees whose values are averaged: shares of the classes, or one number per output."""
    trees = getattr(estimator, "estimators_", [estimator])
    found = []
    for tree in trees:
        values = np.asarray(tree.tree_.value, np.float64)
        if hasattr(estimator, "classes_"):
            if values.shape[1] != 1:
                raise _refuse(estimator, "a classifier of several outputs", "train one for every output")
            values = values[:, 0] / values[:, 0].sum(axis=1, keepdims=True)
        else:
            values = values[:, :, 0]
        found.append(_tree(tree, values / len(trees)))
    return Ensemble(tuple(found), found[0].values.shape[1])


def _boosted(estimator: Any) -> Ensemble:
    """Gradient boosting: one tree per round and class, times the learning rate, onto a constant."""
    rounds = np.asarray(estimator.estimators_)
    constant = estimator.init_ == "zero" or type(estimator.init_).__name__.startswith("Dummy")
    if not constant:
        raise _refuse(estimator, "boosting that starts from another estimator", "leave init at its default")
    first = estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_), np.float32))
    found = [
        _tree(tree, np.asarray(tree.tree_.value)[:, :, 0] * estimator.learning_rate, k)
        for row in rounds
        for k, tree in enumerate(row)
    ]
    post = "none"
    if hasattr(estimator, "classes_"):
        post = "softmax" if rounds.shape[1] > 1 else "sigmoid"
        if estimator.loss == "exponential":
            found = [tree.with_values(2 * tree.values) for tree in found]
            first = 2 * first
    return Ensemble(tuple(found), rounds.shape[1], np.asarray(first, np.float64), post=post)


def _histogram(estimator: Any) -> Ensemble:
    """Gradient boosting over histograms; missing values go where training sent them."""
    found = [_histogram_tree(estimator, tree.nodes, k) for row in estimator._predictors for k, tree in enumerate(row)]
    targets = len(estimator._predictors[0])
    post = "none"
    if hasattr(estimator, "classes_"):
        post = "softmax" if targets > 1 else "sigmoid"
    elif estimator.loss in ("poisson", "gamma"):
        post = "exp"
    return Ensemble(tuple(found), targets, np.asarray(estimator._baseline_prediction, np.float64), post=post)


def _histogram_tree(estimator: Any, nodes: Array, target: int) -> Tree:
    leaf = nodes["is_leaf"].astype(bool)
    if (nodes["is_categorical"].astype(bool) & ~leaf).any():
        raise _refuse(estimator, "splits over categories", "encode the categories as numbers before the trees")
    left = np.where(leaf, -1, nodes["left"].astype(np.int64))
    mode = np.where(nodes["missing_go_to_left"].astype(bool), AT_MOST | UNORDERED, AT_MOST)
    right, values = nodes["right"].astype(np.int64), nodes["value"].astype(np.float64).reshape(-1, 1)
    return Tree(left, right, nodes["feature_idx"].astype(np.int64), nodes["num_threshold"], mode, values, target)


def isolating(estimator: Any) -> Ensemble:
    """An isolation forest: how deep a leaf lies, and what it would take to part the rows that it was trained with, so scaled
    that exp of the sum is 2 ** (-depth / c). Trees may see some of the features only; those of one row count as c deep."""
    trees, found = estimator.estimators_, []
    depths, more = estimator._decision_path_lengths, estimator._average_path_length_per_tree
    average = _path_length(int(estimator.max_samples_))
    for tree, features, depth, below in zip(trees, estimator.estimators_features_, depths, more, strict=True):
        depth = np.asarray(depth) + np.asarray(below) - 1.0
        share = depth / average if average else np.ones_like(depth)
        read = _tree(tree, -math.log(2) / len(trees) * share.reshape(-1, 1))
        found.append(replace(read, feature=np.where(read.left >= 0, np.asarray(features)[read.feature], read.feature)))
    return Ensemble(tuple(found), 1, post="exp")


def _path_length(rows: int) -> float:
    """The comparisons of a search that fails in a random binary tree of so many rows (Liu, Ting and Zhou, 2008, eq. 1)."""
    if rows <= 2:
        return float(rows == 2)
    return 2.0 * (math.log(rows - 1) + float(np.euler_gamma)) - 2.0 * (rows - 1.0) / rows


READERS: Mapping[str, Read] = {
    "DecisionTreeClassifier": _average,
    "DecisionTreeRegressor": _average,
    "ForestClassifier": _average,
    "ForestRegressor": _average,
    "GradientBoostingClassifier": _boosted,
    "GradientBoostingRegressor": _boosted,
    "HistGradientBoostingClassifier": _histogram,
    "HistGradientBoostingRegressor": _histogram,
}
"""By the name of the class or of one that it extends (ExtraTrees and RandomForest extend the forests)."""


# ---- scikit-learn's estimators that skl2onnx writes at length or not at all, by their own formulas.

Write = Callable[[GraphBuilder, str, Any], dict[str, str]]


def writer_of(estimator: Any) -> Write | None:
    """What writes the results of a fitted estimator for rows of features, by their names; None where others read it."""
    if _is_logistic(estimator):
        return logistic
    if _is_linear(estimator):
        return linear
    return next((WRITERS[kind.__name__] for kind in type(estimator).__mro__ if kind.__name__ in WRITERS), None)


def refuse_ties(estimator: Any) -> None:
    """Refuse estimators whose converters answer otherwise than scikit-learn if rows or quantiles are equal."""
    for part in parts(estimator):
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


def isolation(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """An IsolationForest's ``label``, -1 for outliers and 1 for others, and ``scores``, its decision function.

    A row's score is -2 ** (-depth / c): its depth, summed over the trees, by what a search that fails takes on average.
    """
    ensemble = isolating(estimator)
    where = type(estimator).__name__
    write.at(-1, "trees")
    depth = emit_ensemble(write, x, ensemble, where)
    anomaly = write.reshape(emit_post(write, depth, ensemble.post, where), write.shape(depth)[:1])
    write.at(-1, "anomaly")
    offset = write.new_constant("offset", np.array(-estimator.offset_, np.float32))
    scores = write.emit("sub", (offset, anomaly))
    numbers = (write.new_constant(name, np.array(value, np.int32)) for name, value in (("outlier", -1), ("inlier", 1)))
    outlier = write.emit("greater", (anomaly, offset))
    label = write.emit("where", (outlier, *numbers))
    return {"label": label, "scores": scores}


def centroids(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """A NearestCentroid's ``label``: the class whose mean lies nearest, by the sum of squares or of magnitudes."""
    classes = np.asarray(estimator.classes_)
    if not np.allclose(estimator.class_prior_, 1 / len(classes)):
        raise UnsupportedError(
            "priors that differ", where=type(estimator).__name__, hint="leave priors at 'uniform', or train an LDA"
        )
    means = write.new_constant("centroids", np.asarray(estimator.centroids_, np.float32))
    rows, features = write.shape(x)
    apart = write.emit("sub", (write.reshape(x, (rows, 1, features)), means))
    each = write.emit("abs", (apart,)) if estimator.metric == "manhattan" else write.emit("mul", (apart, apart))
    distances = write.emit("sum", (each,), {"axes": (2,), "keepdims": False})
    nearest = write.emit("argmin", (distances,), {"axis": 1, "out_dtype": "int32"})
    return {"label": named(write, nearest, classes)}


def discriminant(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """A LinearDiscriminantAnalysis's ``label`` and ``probabilities``.

    Scores W x + b cancel: on badly scaled features the products are 1e4 times their sum. The training mean c is subtracted
    first, and b + W c is folded in float64, so that float32 rounds what is left of the products only.
    """
    weight, bias = (np.asarray(part, np.float64) for part in (estimator.coef_, estimator.intercept_))
    mean = np.asarray(estimator.means_, np.float64).T @ np.asarray(estimator.priors_, np.float64)
    centre = mean.astype(np.float32)
    bias = bias + weight @ centre.astype(np.float64)
    apart = write.emit("sub", (x, write.new_constant("centre", centre)))
    operands = (
        write.new_constant(stem, part.astype(np.float32)) for stem, part in (("weight", weight), ("bias", bias))
    )
    scores = write.emit("dense", (apart, *operands))
    shares = emit_post(write, scores, "sigmoid" if len(bias) == 1 else "softmax", type(estimator).__name__)
    place = write.emit("argmax", (shares,), {"axis": 1, "out_dtype": "int32"})
    return {"label": named(write, place, np.asarray(estimator.classes_)), "probabilities": shares}


def logistic(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """``label`` and ``probabilities`` of one logistic regression for each class: SGDClassifier, OneVsRestClassifier.

    The label is that of the largest score W x + b. Probabilities are sigmoids divided by their sum; several may be 1 in float32,
    which is why they do not make the label. Where all are 0, scikit-learn gives 1 / classes for the first and 0 for the second.
    """
    weight, bias = _one_for_each_class(estimator)
    operands = (
        write.new_constant(stem, np.asarray(part, np.float32)) for stem, part in (("weight", weight), ("bias", bias))
    )
    scores = write.emit("dense", (x, *operands))
    if write.shape(scores)[1] == 1:
        shares = emit_post(write, scores, "sigmoid", type(estimator).__name__)
        scores = write.emit("concat", (write.emit("neg", (scores,)), scores), {"axis": 1})
    else:
        each = write.emit("sigmoid", (scores,))
        total = write.emit("sum", (each,), {"axes": (1,), "keepdims": True})
        count = 1 if hasattr(estimator, "estimators_") else write.shape(scores)[1]
        one, classes = (
            write.new_constant(stem, np.full((1, 1), value, np.float32))
            for stem, value in (("one", 1), ("count", count))
        )
        # scikit-learn computes 1 / (1 + exp(-s)), and exp overflows beyond the largest float32
        least = write.new_constant("least", np.full((1, 1), 1 / np.finfo(np.float32).max, np.float32))
        nothing = write.emit("less", (total, least))
        if count > 1:
            each = write.emit("where", (nothing, one, each))
        shares = write.emit("div", (each, write.emit("where", (nothing, classes, total))))
    place = write.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int32"})
    return {"label": named(write, place, np.asarray(estimator.classes_)), "probabilities": shares}


def linear(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """``label`` and ``scores`` W x + b of a OneVsRestClassifier of linear ones that give no probabilities.

    skl2onnx divides the scores by the sum of their magnitudes. Of two classes the first one's score is minus the second's.
    """
    weight, bias = _one_for_each_class(estimator)
    operands = (
        write.new_constant(stem, np.asarray(part, np.float32)) for stem, part in (("weight", weight), ("bias", bias))
    )
    scores = write.emit("dense", (x, *operands))
    if write.shape(scores)[1] == 1:
        scores = write.emit("concat", (write.emit("neg", (scores,)), scores), {"axis": 1})
    place = write.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int32"})
    return {"label": named(write, place, np.asarray(estimator.classes_)), "scores": scores}


def mixture(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """A GaussianMixture's ``label`` and ``probabilities``, from squares of (x - mean) * precision.

    skl2onnx multiplies the squares out, whose float32 sums cancel when means are many deviations from zero.
    """
    means, roots = (np.asarray(part, np.float64) for part in (estimator.means_, estimator.precisions_cholesky_))
    kind, (components, features) = estimator.covariance_type, means.shape
    rows = write.shape(x)[0]
    apart = write.emit("sub", (write.reshape(x, (rows, 1, features)), write.new_constant("means", _float32(means))))
    if kind in ("diag", "spherical"):
        roots = np.broadcast_to(roots.reshape(components, -1), means.shape)
        halves = np.log(roots).sum(axis=1)
        scaled = write.emit("mul", (apart, write.new_constant("precision", _float32(roots))))
    else:
        roots = np.broadcast_to(roots, (components, features, features))
        halves = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        column = write.reshape(apart, (rows, components, 1, features))
        scaled = write.emit("matmul", (column, write.new_constant("precision", _float32(roots))))
        scaled = write.reshape(scaled, (rows, components, features))
    squares = write.emit("sum", (write.emit("mul", (scaled, scaled)),), {"axes": (2,), "keepdims": False})
    bias = halves + np.log(np.asarray(estimator.weights_, np.float64))
    half = write.emit("mul", (squares, write.new_constant("half", np.full((1, 1), 0.5, np.float32))))
    scores = write.emit("sub", (write.new_constant("bias", _float32(bias - bias.max())[None]), half))
    place = write.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int32"})
    return {"label": place, "probabilities": emit_post(write, scores, "softmax", type(estimator).__name__)}


def quantiles(write: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """A QuantileTransformer's ``variable``: shares of the training rows, as sums of ramps and steps.

    A repeated quantile is a step. scikit-learn gives its middle for a feature equal to it, skl2onnx an end of it.
    """
    where = type(estimator).__name__
    if estimator.output_distribution != "uniform":
        raise UnsupportedError(
            f"QuantileTransformer with output_distribution={estimator.output_distribution!r} is not supported: "
            "it takes the inverse of the normal distribution",
            where=where,
            hint="set output_distribution='uniform'",
        )
    references = np.asarray(estimator.references_, np.float64)
    columns = [_shares(column, references) for column in np.asarray(estimator.quantiles_, np.float64).T]
    shape = write.shape(x)
    wide = write.reshape(x, (shape[0], 1, shape[1]))
    zero = write.new_constant("zero", np.zeros((1, 1, 1), np.float32))
    start, slope, most = (_table([ramps[part] for ramps, _ in columns]) for part in range(3))
    ramp = write.emit("sub", (wide, write.new_constant("start", _float32(start))))
    ramp = write.emit("maximum", (write.emit("mul", (ramp, write.new_constant("slope", _float32(slope)))), zero))
    ramp = write.emit("minimum", (ramp, write.new_constant("most", _float32(most))))
    total = write.emit("sum", (ramp,), {"axes": (1,), "keepdims": False})
    if any(len(steps[0]) for _, steps in columns):
        threshold, height = (_table([steps[part] for _, steps in columns]) for part in range(2))
        above = write.emit("greater", (wide, write.new_constant("threshold", _float32(threshold))))
        steps = write.emit("where", (above, write.new_constant("height", _float32(height)[None]), zero))
        total = write.emit("add", (total, write.emit("sum", (steps,), {"axes": (1,), "keepdims": False})))
    return {"variable": total}


_NARROW = 64
"""Steps of float32 in a ramp whose start may be rounded: by half a step, 1 % of the share between two quantiles."""


def _shares(column: Array, references: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
    """Ramps (start, slope, most) and steps (threshold, height) of one feature; a step is taken above its threshold."""
    values, first, count = np.unique(column, return_index=True, return_counts=True)
    low, high = references[first], references[first + count - 1]
    rise = low[1:] - high[:-1]
    jump = high - low
    below = values.astype(np.float32)  # the largest float32 <= value: x > below means x > value
    below = np.where(below > values, np.nextafter(below, np.float32(-np.inf)), below)
    before = np.where(below == values, np.nextafter(below, np.float32(-np.inf)), below)  # x > before means x >= value
    # At a value scikit-learn gives the middle of its step, at the smallest 0 and at the largest 1.
    at = jump / 2
    at[-1] = jump[-1]
    at[0] = 0.0
    thresholds, heights = np.concatenate([before, below]), np.concatenate([at, jump - at])
    width = np.diff(values)
    wide = width > _NARROW * np.spacing(np.abs(values).max(initial=0.0).astype(np.float32))
    for place in np.flatnonzero(~wide).tolist():  # float32 cannot hold the ramp: a step at each of its float32s
        inner = _between(before[place + 1], values[place])
        share = rise[place] * np.append((inner.astype(np.float64) - values[place]) / width[place], 1.0)
        starts = np.append(np.nextafter(inner, np.float32(-np.inf)), before[place + 1])
        thresholds, heights = np.append(thresholds, starts), np.append(heights, np.diff(share, prepend=0.0))
    taken = heights > 0
    return (values[:-1][wide], (rise / width)[wide], rise[wide]), (thresholds[taken], heights[taken])


def _between(last: Array, low: Array) -> Array:
    """Float32s above ``low`` up to ``last``, ascending."""
    found = []
    while last > low:
        found.append(last)
        last = np.nextafter(last, np.float32(-np.inf))
    return np.array(found[::-1], np.float32)


def _table(columns: list[Array]) -> Array:
    """Columns of different lengths side by side, at least one row."""
    table = np.zeros((max(1, *(len(column) for column in columns)), len(columns)))
    for place, column in enumerate(columns):
        table[: len(column), place] = column
    return table


def _float32(x: Array) -> Array:
    return np.asarray(x, np.float32)


def _one_for_each_class(estimator: Any) -> tuple[Array, Array]:
    """Weights (classes, features) and biases (classes,); of two classes those of the second alone."""
    members = getattr(estimator, "estimators_", [estimator])
    weights = [np.atleast_2d(m.coef_) for m in members]
    biases = [np.broadcast_to(m.intercept_, len(weight)) for m, weight in zip(members, weights, strict=True)]
    return np.concatenate(weights), np.concatenate(biases)


def _is_logistic(estimator: Any) -> bool:
    """Test whether :func:`logistic` is what an estimator computes."""
    kind = type(estimator).__name__
    if kind == "OneVsRestClassifier":
        each = getattr(estimator, "estimators_", [])
        return (
            bool(each) and not estimator.multilabel_ and all(_is_logistic(m) or _is_binary_regression(m) for m in each)
        )
    return kind == "SGDClassifier" and estimator.loss == "log_loss" and hasattr(estimator, "coef_")


def _is_linear(estimator: Any) -> bool:
    """Test whether :func:`linear` is what an estimator computes."""
    each = getattr(estimator, "estimators_", [])
    return (
        type(estimator).__name__ == "OneVsRestClassifier"
        and bool(each)
        and not estimator.multilabel_
        and all(
            hasattr(m, "decision_function") and not hasattr(m, "predict_proba") and type(m).__name__ in _LINEAR
            for m in each
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


def named(write: GraphBuilder, place: str, classes: Array | None) -> str:
    """The class at a place, where classes are integers other than places; else the place."""
    if classes is None or classes.dtype.kind not in "iu" or np.array_equal(classes, np.arange(len(classes))):
        return place
    return write.emit("gather", (write.new_constant("classes", classes.astype(np.int32)), place), {"axis": 0})


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
    "GaussianMixture": mixture,
    "IsolationForest": isolation,
    "LinearDiscriminantAnalysis": discriminant,
    "NearestCentroid": centroids,
    "QuantileTransformer": quantiles,
}
"""By the name of the class or of one that it extends."""
