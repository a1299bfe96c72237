# SPDX-License-Identifier: Apache-2.0
"""Conversion of scikit-learn's SVC and NuSVC.

LIBSVM decides between each pair of classes. The label is the class with the most votes, or with the highest score if the
estimator breaks ties. With probabilities, a sigmoid (Platt, 2000) makes one of each decision, and an iteration couples those of
all pairs (Wu, Lin and Weng, 2004, algorithm 2). It stops as soon as an error is below a tolerance, so the network iterates as
LIBSVM does. Without probabilities, the scores are those of ``decision_function``.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.trees.ensembles import emit_class_of_index
from microc.graph.ir import Attr, Graph

_MOST_CLASSES = 16
"""Maximum number of classes: a step of the iteration has about 12 operators for each class."""
_LEAST_PROBABILITY = 1e-7
_MOST_ITERATIONS = 100
_TOLERANCE = 0.005
"""Constants of LIBSVM (svm.cpp); the tolerance is divided by the number of classes."""


def is_support_vector_classifier(estimator: Any) -> bool:
    """Test whether an estimator is a fitted SVC or NuSVC."""
    return type(estimator).__name__ in ("SVC", "NuSVC") and hasattr(estimator, "support_vectors_")


def emit_support_vector_classifier(builder: GraphBuilder, x: str, estimator: Any) -> dict[str, str]:
    """Emit the outputs of an SVC or NuSVC: ``label``, and ``probabilities`` if it has them, else ``scores``."""
    classes, where = np.asarray(estimator.classes_), type(estimator).__name__
    has_probabilities = np.size(getattr(estimator, "_probA", ())) > 0
    if (
        (has_probabilities and len(classes) > _MOST_CLASSES)
        or (estimator.break_ties and estimator.decision_function_shape == "ovo")  # predict raises an error
        or callable(estimator.kernel)
        or estimator.kernel == "precomputed"
    ):
        raise UnsupportedError(
            f"got {len(classes)} classes, kernel {estimator.kernel!r}, break_ties={estimator.break_ties} and "
            f"decision_function_shape={estimator.decision_function_shape!r}, expected at most {_MOST_CLASSES} classes with "
            "probabilities, a kernel of scikit-learn, and break_ties=False with 'ovo'",
            where=where,
            hint="train with probability=False, break_ties=False, and one of the kernels linear, poly, rbf and sigmoid",
        )
    pairs = list(combinations(range(len(classes)), 2))
    weights, vectors = _stack_pair_weights(estimator, pairs), _to_dense(estimator.support_vectors_)
    if estimator.kernel == "linear":  # one vector for each pair: fewer products, and summed in float64
        values, weights = x, weights @ vectors
    else:
        values = _emit_kernel(builder, x, estimator, vectors.astype(np.float32))
    operands = (
        builder.new_constant(stem, np.asarray(numbers, np.float32))
        for stem, numbers in (("weights", weights), ("intercept", estimator._intercept_))
    )
    decisions = builder.emit("dense", (values, *operands))
    votes = _emit_votes(builder, decisions, pairs, len(classes))
    breaks_ties = estimator.break_ties and len(classes) > 2
    if breaks_ties or not has_probabilities:
        scores = _emit_scores(builder, decisions, votes, estimator, pairs)
    ranks = scores if breaks_ties else votes
    label = emit_class_of_index(builder, builder.emit("argmax", (ranks,), {"axis": 1, "out_dtype": "int32"}), classes)
    if has_probabilities:
        probabilities = _emit_coupled_probabilities(builder, decisions, estimator, pairs, len(classes))
        return {"label": label, "probabilities": probabilities}
    return {"label": label, "scores": scores}


def _stack_pair_weights(estimator: Any, pairs: list[tuple[int, int]]) -> Array:
    """Return the weight of each support vector in the decision of each pair, (pairs, support vectors).

    LIBSVM stores the weight of a vector of class i in the pair (i, j) in row j - 1 or, if j < i, in row j."""
    coefficients = _to_dense(estimator._dual_coef_)
    ends = np.cumsum([0, *estimator.n_support_])
    weights = np.zeros((len(pairs), coefficients.shape[1]))
    for row, (first, second) in enumerate(pairs):
        own, other = slice(ends[first], ends[first + 1]), slice(ends[second], ends[second + 1])
        weights[row, own] = coefficients[second - 1, own]
        weights[row, other] = coefficients[first, other]
    return weights


def _to_dense(matrix: Any) -> Array:
    """Return a matrix of numpy or scipy, which an estimator that was fitted on sparse data holds, as float64."""
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, np.float64)


def _emit_kernel(builder: GraphBuilder, x: str, estimator: Any, vectors: Array) -> str:
    """Emit the values of the kernel poly, rbf or sigmoid of all rows and support vectors, (rows, support vectors)."""
    gamma = float(np.float32(estimator._gamma))
    if estimator.kernel == "rbf":
        rows, features = builder.shape(x)
        differences = builder.emit(
            "sub", (builder.reshape(x, (rows, 1, features)), builder.new_constant("vectors", vectors))
        )
        squares = builder.emit("mul", (differences, differences))
        distances = builder.emit("sum", (squares,), {"axes": (2,), "keepdims": False})
        return builder.emit("exp", (builder.emit("mul", (distances, _scalar(builder, "gamma", -gamma))),))
    products = builder.emit("dense", (x, builder.new_constant("vectors", vectors * gamma)))
    shifted = builder.emit("add", (products, _scalar(builder, "coef0", estimator.coef0)))
    if estimator.kernel == "sigmoid":
        return builder.emit("tanh", (shifted,))
    return builder.emit("pow", (shifted, _scalar(builder, "degree", estimator.degree)))


def _scalar(builder: GraphBuilder, stem: str, number: float) -> str:
    """Add a constant of shape (1, 1)."""
    return builder.new_constant(stem, np.full((1, 1), number, np.float32))


def _sign_classes_of_pairs(pairs: list[tuple[int, int]], class_count: int) -> Array:
    """Return a matrix (classes, pairs): 1 for the first class of each pair, -1 for the second, 0 for all others."""
    signs = np.zeros((class_count, len(pairs)), np.float32)
    for column, (one, other) in enumerate(pairs):
        signs[one, column], signs[other, column] = 1, -1
    return signs


def _emit_votes(builder: GraphBuilder, decisions: str, pairs: list[tuple[int, int]], class_count: int) -> str:
    """Emit the votes of all classes, (rows, classes); a positive decision votes for the first class of its pair."""
    signs = _sign_classes_of_pairs(pairs, class_count)
    is_first = builder.emit("greater", (decisions, _scalar(builder, "zero", 0)))
    won = builder.emit("where", (is_first, _scalar(builder, "one", 1), _scalar(builder, "none", 0)))
    second_votes = (signs < 0).sum(axis=1).astype(np.float32)  # of each class, if every decision is for the second
    operands = (builder.new_constant("gain", signs), builder.new_constant("votes", second_votes))
    return builder.emit("dense", (won, *operands))


def _emit_scores(
    builder: GraphBuilder, decisions: str, votes: str, estimator: Any, pairs: list[tuple[int, int]]
) -> str:
    """Emit the scores of ``decision_function``: for each class, or for each pair of classes."""
    class_count = len(estimator.classes_)
    if class_count == 2:  # scikit-learn's score is the negative decision; the last column is that of the second class
        return builder.emit("concat", (decisions, builder.emit("neg", (decisions,))), {"axis": 1})
    if estimator.decision_function_shape == "ovo":
        return decisions
    return _emit_one_vs_rest_scores(builder, decisions, votes, pairs, class_count)


def _emit_one_vs_rest_scores(
    builder: GraphBuilder, decisions: str, votes: str, pairs: list[tuple[int, int]], class_count: int
) -> str:
    """Emit one score for each class: its votes, plus less than 1/3 by the sum s of its decisions, s / (3 (abs(s) + 1)).

    Source: scikit-learn, ``_ovr_decision_function``."""
    signs = builder.new_constant("signs", _sign_classes_of_pairs(pairs, class_count))
    total = builder.emit("dense", (decisions, signs))
    size = builder.emit("add", (builder.emit("abs", (total,)), _scalar(builder, "one", 1)))
    bound = builder.emit("mul", (size, _scalar(builder, "three", 3)))
    return builder.emit("add", (votes, builder.emit("div", (total, bound))))


def _emit_coupled_probabilities(
    builder: GraphBuilder, decisions: str, estimator: Any, pairs: list[tuple[int, int]], class_count: int
) -> str:
    """Emit the probabilities of all classes, (rows, classes)."""
    slope, offset = (builder.new_constant(name, -np.asarray(numbers, np.float32)[None])
                     for name, numbers in (("slope", estimator._probA), ("offset", estimator._probB)))  # fmt: skip
    scores = builder.emit("add", (builder.emit("mul", (decisions, slope)), offset))
    limits = {"minimum": _LEAST_PROBABILITY, "maximum": 1 - _LEAST_PROBABILITY}
    pairwise = builder.emit("clip", (builder.emit("sigmoid", (scores,)),), limits)
    # Q[t, j] = -r[j, t] r[t, j] for j != t, and Q[t, t] is the sum of the squares of r[j, t], with r[t, j] the probability of
    # class t against class j: both are sums over the pairs.
    rows = builder.shape(decisions)[0]
    reverse = builder.emit("sub", (_scalar(builder, "one", 1), pairwise))
    terms = [builder.emit("mul", two) for two in ((pairwise, reverse), (pairwise, pairwise), (reverse, reverse))]
    columns = builder.emit("concat", tuple(terms), {"axis": 1})
    matrix = np.zeros((class_count, class_count, 3, len(pairs)), np.float32)
    for column, (one, other) in enumerate(pairs):
        matrix[one, other, 0, column] = matrix[other, one, 0, column] = -1
        matrix[other, other, 1, column] = matrix[one, one, 2, column] = 1
    flat = builder.emit("dense", (columns, builder.new_constant("pairs", matrix.reshape(class_count**2, -1))))
    q = builder.reshape(flat, (rows, class_count, class_count))
    start = builder.new_constant("start", np.full((rows, class_count), 1 / class_count, np.float32))
    going = builder.new_constant("going", np.array(True))
    attrs: dict[str, Attr] = {
        "body": _build_iteration(rows, class_count),
        "count": max(_MOST_ITERATIONS, class_count),
        "carried": 2,
        "guarded": True,
    }
    return builder.emit_all("loop", (going, start, q), attrs)[1]


def _build_iteration(rows: int, class_count: int) -> Graph:
    """Return the body of the loop: from (iteration, going, p, Q) to the next ``going`` and ``p``.

    A row whose error is below the tolerance keeps its p."""
    builder = GraphBuilder("coupling")
    builder.input("iteration", (), "int32")
    builder.input("going", (), "bool")
    p = start = builder.input("p", (rows, class_count), "float32")
    q = builder.input("q", (rows, class_count, class_count), "float32")
    builder.at(-1, "coupling")

    def column(value: str, index: int) -> str:
        attrs = {"begin": (0, index), "end": (rows, index + 1), "strides": (1, 1)}
        return builder.emit("slice", (value,), attrs)

    def total(value: str) -> str:
        return builder.emit("sum", (value,), {"axes": (1,), "keepdims": True})

    wide = builder.reshape(p, (rows, 1, class_count))
    qp = builder.emit("sum", (builder.emit("mul", (q, wide)),), {"axes": (2,), "keepdims": False})
    pqp = total(builder.emit("mul", (p, qp)))
    errors = builder.emit("abs", (builder.emit("sub", (qp, pqp)),))
    error = builder.emit("max", (errors,), {"axes": (1,), "keepdims": True})
    is_active = builder.emit("greater_equal", (error, _scalar(builder, "tolerance", _TOLERANCE / class_count)))
    one, two = _scalar(builder, "one", 1), _scalar(builder, "two", 2)
    for t in range(class_count):
        attrs = {"begin": (0, t, 0), "end": (rows, t + 1, class_count), "strides": (1, 1, 1)}
        q_row = builder.reshape(builder.emit("slice", (q,), attrs), (rows, class_count))
        q_tt, qp_t = column(q_row, t), column(qp, t)
        step = builder.emit("div", (builder.emit("sub", (pqp, qp_t)), q_tt))
        scale = builder.emit("add", (step, one))
        unit = builder.new_constant("unit", np.eye(class_count, dtype=np.float32)[t : t + 1])
        p = builder.emit("div", (builder.emit("add", (p, builder.emit("mul", (step, unit)))), scale))
        inner = builder.emit("add", (builder.emit("mul", (step, q_tt)), builder.emit("mul", (qp_t, two))))
        pqp = builder.emit("add", (pqp, builder.emit("mul", (step, inner))))
        pqp = builder.emit("div", (builder.emit("div", (pqp, scale)), scale))
        qp = builder.emit("div", (builder.emit("add", (qp, builder.emit("mul", (step, q_row)))), scale))
    active = builder.emit("where", (is_active, one, _scalar(builder, "zero", 0)))
    any_active = builder.emit("max", (active,), {"axes": (0, 1), "keepdims": False})
    going = builder.emit("greater", (any_active, builder.new_constant("none", np.zeros((), np.float32))))
    return builder.graph("coupling", {"next_going": going, "next_p": builder.emit("where", (is_active, p, start))})
