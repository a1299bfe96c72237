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
