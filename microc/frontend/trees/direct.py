"""scikit-learn's estimators that skl2onnx writes at length or not at all, by their own formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.trees.ensembles import emit_ensemble, emit_post
from microc.frontend.trees.forests import isolating

Write = Callable[[GraphBuilder, str, Any], dict[str, str]]


def writer_of(estimator: Any) -> Write | None:
    """What writes the results of a fitted estimator for rows of features, by their names; None where others read it."""
    if _is_logistic(estimator):
        return logistic
    return next((WRITERS[kind.__name__] for kind in type(estimator).__mro__ if kind.__name__ in WRITERS), None)


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


def _one_for_each_class(estimator: Any) -> tuple[Array, Array]:
    """Weights (classes, features) and biases (classes,); of two classes those of the second alone."""
    members = getattr(estimator, "estimators_", [estimator])
    weights, biases = ([np.asarray(getattr(m, name)) for m in members] for name in ("coef_", "intercept_"))
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


WRITERS: Mapping[str, Write] = {
    "IsolationForest": isolation,
    "LinearDiscriminantAnalysis": discriminant,
    "NearestCentroid": centroids,
}
"""By the name of the class or of one that it extends."""
