"""SVMRegressor and SVMClassifier: kernels between the data and the support vectors, then dense layers.

The squared distance of a radial kernel is |x|^2 - 2 x.v + |v|^2, not below zero.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from microc.dtypes import Array
from microc.frontend.onnx.application import Application
from microc.frontend.onnx.scores import class_labels, features, post_transform, result_label
from microc.frontend.trees.ensembles import emit_post


def svm_regressor(application: Application) -> None:
    """SVMRegressor: the kernel's values weighted; a one-class machine says 1 or -1."""
    attributes = application.operator.attributes
    count = attributes.integer("n_supports", 0)
    data = features(application)
    rho = np.array(attributes.reals("rho"), np.float32)
    weights = np.array(attributes.reals("coefficients"), np.float32)
    width = application.type(data).shape[1]
    values = _kernel(application, data, _supports(application, count, width)) if count else data
    scores = _dense(application, values, weights.reshape(1, -1), rho)
    if attributes.flag("one_class"):
        above = application.emit(
            "cast", (application.emit("greater", (scores, application.scalar(0.0))),), {"dtype": "float32"}
        )
        doubled = application.emit("mul", (above, application.scalar(2.0)))
        application.result("sub", (doubled, application.scalar(1.0)))
        return
    application.result_alias(emit_post(application, scores, post_transform(application), application.where))


def svm_classifier(application: Application) -> None:
    """SVMClassifier: a decision for every pair of classes, the class with most of them; the probability of two classes.

    Without probabilities the scores are the decisions of the pairs, for more than two classes, as onnxruntime gives them.
    """
    attributes = application.operator.attributes
    labels = class_labels(application, "classlabels_ints", "classlabels_strings")
    per_class, data = attributes.integers("vectors_per_class", ()), features(application)
    if not per_class:
        application.refuse("a linear machine without support vectors", "export it as a linear classifier")
    values = _kernel(application, data, _supports(application, sum(per_class), application.type(data).shape[1]))
    weights = np.array(attributes.reals("coefficients"), np.float32).reshape(len(per_class) - 1, -1)
    pairs = list(combinations(range(len(per_class)), 2))
    rho = np.array(attributes.reals("rho"), np.float32)
    decisions = _dense(application, values, _pair_weights(weights, per_class, pairs), rho)
    probable = "prob_a" in attributes and len(attributes.reals("prob_a")) > 0
    if len(per_class) == 2 and probable:
        line = _affine(application, decisions, attributes.reals("prob_a")[0], attributes.reals("prob_b")[0])
        first = application.emit("sigmoid", (application.emit("neg", (line,)),))
        second = application.emit("sub", (application.scalar(1.0), first))
        result_label(application, labels, second, two=True, cut=0.5)
        application.result_alias(application.emit("concat", (first, second), {"axis": 1}), 1)
        return
    if probable:
        application.refuse("probabilities of more than two classes", "export without probabilities (probability=False)")
    votes = _votes(application, decisions, pairs, len(per_class))
    result_label(application, labels, votes)
    if len(per_class) == 2:
        both = (application.emit("neg", (decisions,)), decisions)
        application.result_alias(application.emit("concat", both, {"axis": 1}), 1)
    else:
        application.result_alias(decisions, 1)


def _supports(application: Application, count: int, width: int) -> Array:
    vectors = np.array(application.operator.attributes.reals("support_vectors"), np.float32)
    if vectors.size != count * width:
        application.broken(f"{vectors.size} numbers for {count} support vectors of {width} features")
    return vectors.reshape(count, width)


def _kernel(application: Application, data: str, supports: Array) -> str:
    """The kernel of every row with every support vector."""
    attributes = application.operator.attributes
    gamma, offset, degree = (
        *(attributes.reals("kernel_params") if "kernel_params" in attributes else ()),
        0.0,
        0.0,
        0.0,
    )[:3]
    products = _dense(application, data, supports, np.zeros(0, np.float32))
    match attributes.text("kernel_type", "LINEAR"):
        case "LINEAR":
            return products
        case "POLY":
            return application.emit("pow", (_affine(application, products, gamma, offset), application.scalar(degree)))
        case "SIGMOID":
            return application.emit("tanh", (_affine(application, products, gamma, offset),))
        case "RBF":
            squares = application.emit(
                "sum", (application.emit("mul", (data, data)),), {"axes": (1,), "keepdims": True}
            )
            lengths = application.new_constant("lengths", (supports**2).sum(axis=1))
            twice = application.emit("mul", (products, application.scalar(-2.0)))
            distance = application.emit("add", (application.emit("add", (twice, lengths)), squares))
            near = application.emit("relu", (distance,))
            return application.emit("exp", (application.emit("mul", (near, application.scalar(-gamma))),))
        case kernel:
            application.broken(f"the kernel is {kernel!r}")


def _affine(application: Application, value: str, factor: float, offset: float) -> str:
    scaled = application.emit("mul", (value, application.scalar(factor)))
    return application.emit("add", (scaled, application.scalar(offset)))


def _dense(application: Application, data: str, weights: Array, bias: Array) -> str:
    if weights.shape[1] != application.type(data).shape[1] or bias.size not in (0, weights.shape[0]):
        application.broken(f"coefficients of shape {weights.shape} for {application.type(data).shape[1]} values")
    operands = [data, application.new_constant("coefficients", weights)]
    return application.emit("dense", operands + ([application.new_constant("rho", bias)] if bias.any() else []))


def _pair_weights(weights: Array, per_class: tuple[int, ...], pairs: list[tuple[int, int]]) -> Array:
    """(pairs, support vectors): LIBSVM keeps for a vector of class i its weight against class j in row j, or j - 1 beyond i."""
    starts = np.concatenate([[0], np.cumsum(per_class)])
    found = np.zeros((len(pairs), starts[-1]), np.float32)
    for row, (i, j) in enumerate(pairs):
        found[row, starts[i] : starts[i + 1]] = weights[j - 1, starts[i] : starts[i + 1]]
        found[row, starts[j] : starts[j + 1]] = weights[i, starts[j] : starts[j + 1]]
    return found


def _votes(application: Application, decisions: str, pairs: list[tuple[int, int]], classes: int) -> str:
    """How many pairs decide for every class: a positive decision is for the first of the pair."""
    positive = application.emit("greater", (decisions, application.scalar(0.0)))
    first = application.emit("cast", (positive,), {"dtype": "float32"})
    weights, start = np.zeros((classes, len(pairs)), np.float32), np.zeros(classes, np.float32)
    for column, (i, j) in enumerate(pairs):
        weights[i, column], weights[j, column] = 1, -1
        start[j] += 1
    return _dense(application, first, weights, start)
