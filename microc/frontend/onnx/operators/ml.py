# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX linear models, scalers, encoders and support vector machines (domain ai.onnx.ml)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import comb
from typing import Annotated, Any, Literal

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.model_limits import check_shape
from microc.frontend.onnx.context import FLOAT, MOVABLE, ConverterTable, OpContext
from microc.frontend.onnx.operators.trees import (
    ML_DOMAIN,
    NUMBERS,
    emit_feature_rows,
    get_post_transform,
    number_class_labels,
    write_label_output,
)
from microc.frontend.signature import Floats, Ints, Only, Strings, UncheckedFloat, Value
from microc.frontend.trees.ensembles import emit_both_probabilities, emit_post_transform

CONVERTERS = ConverterTable()
_ML_NUMBERS: Mapping[str, Any] = {"dtypes": NUMBERS, "domain": ML_DOMAIN}

# ---- SVMRegressor and SVMClassifier: a kernel of data and support vectors, then dense layers.
#
# The squared distance of a radial kernel is computed as |x|^2 - 2 x.v + |v|^2, limited to 0 from below.


@frozen
class SvmAttributes:
    """Attributes of SVMRegressor and SVMClassifier."""

    coefficients: Floats
    rho: Floats
    support_vectors: Floats = ()
    kernel_params: Floats = ()
    kernel_type: Literal["LINEAR", "POLY", "RBF", "SIGMOID"] = "LINEAR"
    post_transform: str = "NONE"


@CONVERTERS.register("SVMRegressor", dtypes=FLOAT, domain=ML_DOMAIN)
def convert_svm_regressor(
    context: OpContext, x: Value, *, n_supports: int = 0, one_class: bool = False, svm: SvmAttributes
) -> None:
    """Convert SVMRegressor, a weighted sum of kernel values plus a bias.

    A one-class machine (attribute ``one_class``) returns 1 for a positive sum, else -1."""
    values = data = emit_feature_rows(context, x)
    if n_supports:
        values = _emit_kernel_values(context, data, svm, _get_support_vectors(context, svm, n_supports, data.shape[1]))
    weights, rho = np.array(svm.coefficients, np.float32), np.array(svm.rho, np.float32)
    scores = _emit_dense(context, values, weights.reshape(1, -1), rho)
    if one_class:
        above = context.emit("cast", (context.emit("greater", (scores, context.scalar(0.0))),), {"dtype": "float32"})
        doubled = context.emit("mul", (above, context.scalar(2.0)))
        context.result("sub", (doubled, context.scalar(1.0)))
        return
    post = get_post_transform(context, svm.post_transform)
    context.result_alias(emit_post_transform(context, scores, post, context.where))


@CONVERTERS.register("SVMClassifier", **_ML_NUMBERS)
def convert_svm_classifier(
    context: OpContext,
    x: Value,
    *,
    classlabels_ints: Ints = (),
    classlabels_strings: Strings = (),
    prob_a: Floats = (),
    prob_b: Floats = (),
    vectors_per_class: Ints = (),
    svm: SvmAttributes,
) -> None:
    """Convert SVMClassifier, which decides between each pair of classes and returns the class with the most votes.

    Probabilities are supported for two classes only. Without probabilities, the scores for more than two classes are
    the decision values of the pairs, as in ONNX Runtime."""
    labels = number_class_labels(classlabels_ints, classlabels_strings)
    data, class_count = emit_feature_rows(context, x), len(vectors_per_class)
    if not vectors_per_class:
        context.refuse(
            "vectors_per_class is missing, expected support vectors", "export the model as a LinearClassifier"
        )
    vector_count, pair_count = sum(vectors_per_class), comb(class_count, 2)
    expected = (len(labels), (class_count - 1) * vector_count, pair_count)
    got = (class_count, len(svm.coefficients), len(svm.rho))
    if class_count < 2 or min(vectors_per_class) < 0 or got != expected:
        context.broken(
            f"vectors_per_class, coefficients, rho: got {vectors_per_class!s:.80}, {got[1]} and {got[2]} numbers, expected a "
            f"number of at least 0 for each of {expected[0]} classes, at least 2, and {expected[1]} and {expected[2]} numbers"
        )
    if len(prob_a) != len(prob_b) or len(prob_a) not in (0, pair_count):
        context.broken(
            f"prob_a, prob_b: got {len(prob_a)} and {len(prob_b)} numbers, expected 0 or {pair_count}, one for each pair"
        )
    for operand_count in (class_count, vector_count):  # operands of the matrices of votes and of decisions
        check_shape((pair_count, operand_count), "float32", context.where)
    pairs = list(combinations(range(class_count), 2))
    vectors = _get_support_vectors(context, svm, vector_count, data.shape[1])
    values = _emit_kernel_values(context, data, svm, vectors)
    weights = np.array(svm.coefficients, np.float32).reshape(class_count - 1, -1)
    rho = np.array(svm.rho, np.float32)
    decisions = _emit_dense(context, values, _compute_class_pair_weights(weights, vectors_per_class, pairs), rho)
    if class_count == 2 and prob_a:
        line = _emit_affine(context, decisions, prob_a[0], prob_b[0])
        first = context.emit("sigmoid", (context.emit("neg", (line,)),))
        second = context.emit("sub", (context.scalar(1.0), first))
        write_label_output(context, labels, second, is_binary=True, score_threshold=0.5)
        context.result_alias(context.emit("concat", (first, second), {"axis": 1}), 1)
        return
    if prob_a:
        context.refuse(
            f"prob_a for {class_count} classes is not supported, expected two classes",
            "export without probabilities (probability=False)",
        )
    votes = _emit_vote_counts(context, decisions, pairs, class_count)
    write_label_output(context, labels, votes)
    if class_count == 2:
        both = (context.emit("neg", (decisions,)), decisions)
        context.result_alias(context.emit("concat", both, {"axis": 1}), 1)
    else:
        context.result_alias(decisions, 1)


def _get_support_vectors(context: OpContext, svm: SvmAttributes, vector_count: int, feature_count: int) -> Array:
    """Return the support vectors as an array (``vector_count``, ``feature_count``)."""
    vectors = np.array(svm.support_vectors, np.float32)
    if vectors.size != vector_count * feature_count:
        context.broken(
            f"support_vectors: got {vectors.size} numbers, expected {vector_count} x {feature_count} (vectors x features)"
        )
    return vectors.reshape(vector_count, feature_count)


def _emit_kernel_values(context: OpContext, data: Value, svm: SvmAttributes, support_vectors: Array) -> Value:
    """Emit the values of the SVM's kernel function for every row of ``data`` and every support vector.

    Return the result (rows, vectors)."""
    gamma, offset, degree = (*svm.kernel_params, 0.0, 0.0, 0.0)[:3]
    products = _emit_dense(context, data, support_vectors, np.zeros(0, np.float32))
    match svm.kernel_type:
        case "LINEAR":
            return products
        case "POLY":
            return context.emit("pow", (_emit_affine(context, products, gamma, offset), context.scalar(degree)))
        case "SIGMOID":
            return context.emit("tanh", (_emit_affine(context, products, gamma, offset),))
        case "RBF":
            squares = context.emit("sum", (context.emit("mul", (data, data)),), {"axes": (1,), "keepdims": True})
            lengths = context.new_constant("lengths", (support_vectors**2).sum(axis=1))
            twice = context.emit("mul", (products, context.scalar(-2.0)))
            distance = context.emit("add", (context.emit("add", (twice, lengths)), squares))
            clamped = context.emit("relu", (distance,))
            return context.emit("exp", (context.emit("mul", (clamped, context.scalar(-gamma))),))


def _emit_affine(context: OpContext, value: Value, factor: float, offset: float) -> Value:
    """Emit ``value`` * ``factor`` + ``offset``; return the result."""
    scaled = context.emit("mul", (value, context.scalar(factor)))
    return context.emit("add", (scaled, context.scalar(offset)))


def _emit_dense(context: OpContext, data: Value, weights: Array, bias: Array) -> Value:
    """Emit a dense layer with constant weights and bias; return its result. A bias of zeros is omitted."""
    if weights.shape[1] != data.shape[1] or bias.size not in (0, weights.shape[0]):
        context.broken(
            f"got coefficients of shape {weights.shape} and {bias.size} numbers in rho, expected "
            f"{data.shape[1]} columns and 0 or {weights.shape[0]} numbers"
        )
    operands = [data, context.new_constant("coefficients", weights)]
    return context.emit("dense", operands + ([context.new_constant("rho", bias)] if bias.any() else []))


def _compute_class_pair_weights(
    weights: Array, vectors_per_class: tuple[int, ...], class_pairs: list[tuple[int, int]]
) -> Array:
    """Return the weight of each support vector in each pair of classes, of shape (pairs, support vectors).

    ``weights`` has LIBSVM's layout, (classes - 1, support vectors). For a vector of class i, its weight in the pair
    with class j is in row j - 1 if j > i, else in row j. Vectors of other classes have weight 0 in a pair."""
    starts = np.concatenate([[0], np.cumsum(vectors_per_class)])
    weights_of_pairs = np.zeros((len(class_pairs), starts[-1]), np.float32)
    for row, (i, j) in enumerate(class_pairs):
        weights_of_pairs[row, starts[i] : starts[i + 1]] = weights[j - 1, starts[i] : starts[i + 1]]
        weights_of_pairs[row, starts[j] : starts[j + 1]] = weights[i, starts[j] : starts[j + 1]]
    return weights_of_pairs


def _emit_vote_counts(
    context: OpContext, decisions: Value, class_pairs: list[tuple[int, int]], class_count: int
) -> Value:
    """Emit the number of votes for each class, from the decision values of all pairs of classes; return the result.

    A positive decision value is a vote for the first class of its pair; any other value is a
    vote for the second class."""
    positive = context.emit("greater", (decisions, context.scalar(0.0)))
    first = context.emit("cast", (positive,), {"dtype": "float32"})
    weights, offsets = np.zeros((class_count, len(class_pairs)), np.float32), np.zeros(class_count, np.float32)
    for column, (i, j) in enumerate(class_pairs):
        weights[i, column], weights[j, column] = 1, -1
        offsets[j] += 1
    return _emit_dense(context, first, weights, offsets)


# ---- Converters of other ai.onnx.ml operators that scikit-learn's exporters write (tree ensembles: trees.py).
#
# Integer labels of classes are returned as they are. String labels are replaced by numbers from 0 on, in the order of the file.
# In other runtimes ``ZipMap`` turns every row into a dictionary. Here the row stays a tensor.


@frozen
class LinearAttributes:
    """Attributes of LinearRegressor and LinearClassifier."""

    coefficients: Floats
    intercepts: Floats = ()
    post_transform: str = "NONE"


@CONVERTERS.register("LinearRegressor", dtypes=FLOAT, domain=ML_DOMAIN)
def convert_linear_regressor(context: OpContext, x: Value, *, targets: int = 1, linear: LinearAttributes) -> None:
    """Convert LinearRegressor to a dense layer with a row of coefficients for each target."""
    scores = _emit_linear_scores(context, x, linear, targets)
    post = get_post_transform(context, linear.post_transform)
    context.result_alias(emit_post_transform(context, scores, post, context.where))


@CONVERTERS.register("LinearClassifier", **_ML_NUMBERS)
def convert_linear_classifier(
    context: OpContext,
    x: Value,
    *,
    classlabels_ints: Ints = (),
    classlabels_strings: Strings = (),
    linear: LinearAttributes,
) -> None:
    """Convert LinearClassifier, which returns the class with the largest score, and all scores.

    If there is a single row of coefficients for two classes, the sign of its score selects the class."""
    labels = number_class_labels(classlabels_ints, classlabels_strings)
    rows = len(linear.intercepts) or max(len(labels), 1)
    scores = _emit_linear_scores(context, x, linear, rows)
    post = get_post_transform(context, linear.post_transform)
    is_binary = rows == 1 and len(labels) == 2
    write_label_output(context, labels, scores, is_binary=is_binary)
    if is_binary:
        scores = context.emit("sigmoid", (scores,)) if post == "logistic" else scores
        context.result_alias(emit_both_probabilities(context, scores), 1)
    else:
        context.result_alias(emit_post_transform(context, scores, post, context.where), 1)


def _emit_linear_scores(context: OpContext, x: Value, linear: LinearAttributes, score_count: int) -> Value:
    """Emit a dense layer with the coefficients and intercepts of a linear model; return the scores.

    There are ``score_count`` scores for each row of features, and a row of coefficients for each score."""
    data = emit_feature_rows(context, x)
    coefficients, width = np.array(linear.coefficients, np.float32), data.shape[-1]
    if coefficients.size != score_count * width:
        context.broken(f"coefficients: got {coefficients.size}, expected {score_count} x {width} (results x features)")
    operands = [data, context.new_constant("coefficients", coefficients.reshape(score_count, width))]
    if any(linear.intercepts):
        intercepts = np.array(linear.intercepts, np.float32)
        if intercepts.size != score_count:
            context.broken(f"intercepts: got {intercepts.size}, expected {score_count}, one for each result")
        operands.append(context.new_constant("intercepts", intercepts))
    return context.emit("dense", operands)


@CONVERTERS.register("Scaler", **_ML_NUMBERS)
def convert_scaler(context: OpContext, x: Value, *, offset: Floats = (0.0,), scale: Floats = (1.0,)) -> None:
    """Convert Scaler, (x - offset) * scale.

    Offset and scale have one number for all features, or one for each feature."""
    data = context.cast(x, "float32")
    width = data.shape[-1] if data.shape else 1
    for op, name, stated, neutral in (("sub", "offset", offset, 0.0), ("mul", "scale", scale, 1.0)):
        numbers = np.array(stated, np.float32)
        if numbers.size not in (1, width):
            context.broken(f"{name}: got {numbers.size} numbers, expected 1 or {width}, one for each feature")
        if (numbers != neutral).any():
            data = context.emit(op, (data, context.new_constant(name, numbers)))
    context.result_alias(data)


@CONVERTERS.register("Normalizer", **_ML_NUMBERS)
def convert_normalizer(context: OpContext, x: Value, *, norm: Literal["MAX", "L1", "L2"] = "MAX") -> None:
    """Convert Normalizer, which divides each row by its maximum, L1 norm or L2 norm.

    A row whose divisor is 0 is unchanged."""
    data = context.cast(x, "float32")
    over: Mapping[str, tuple[int, ...] | bool] = {"axes": (data.rank - 1,), "keepdims": True}
    if norm == "MAX":
        divisor = context.emit("max", (data,), over)
    elif norm == "L1":
        divisor = context.emit("sum", (context.emit("abs", (data,)),), over)
    else:
        divisor = context.emit("sqrt", (context.emit("sum", (context.emit("mul", (data, data)),), over),))
    zero = context.emit("equal", (divisor, context.scalar(0.0)))
    safe = context.emit("where", (zero, context.scalar(1.0), divisor))
    context.result("div", (data, safe))


@CONVERTERS.register("Binarizer", **_ML_NUMBERS)
def convert_binarizer(context: OpContext, x: Value, *, threshold: float = 0.0) -> None:
    """Convert Binarizer, which returns 1 for elements above a threshold and 0 for others."""
    above = context.emit("greater", (x, context.new_constant("threshold", np.array(threshold, x.dtype))))
    context.result("cast", (above,), {"dtype": x.dtype})


@CONVERTERS.register("Imputer", dtypes=("float32", "int64"), domain=ML_DOMAIN)
def convert_imputer(
    context: OpContext,
    x: Value,
    *,
    imputed_value_floats: Floats = (),
    imputed_value_int64s: Ints = (),
    replaced_value_float: UncheckedFloat = 0.0,
    replaced_value_int64: int = 0,
) -> None:
    """Convert Imputer, which replaces missing elements: elements that equal a given number, or NaN.

    There is one replacement for all features, or one for each feature."""
    is_real = x.dtype == "float32"
    imputed = np.array(imputed_value_floats if is_real else imputed_value_int64s, x.dtype)
    if imputed.size not in (1, x.shape[-1]):
        context.broken(f"imputed values: got {imputed.size}, expected 1 or {x.shape[-1]}, one for each feature")
    missing = _emit_equality_test(context, x, replaced_value_float if is_real else replaced_value_int64)
    context.result("where", (missing, context.new_constant("imputed", imputed), x))


def _emit_equality_test(context: OpContext, data: Value, number: float) -> Value:
    """Emit a test of each element of ``data`` for equality with ``number``; NaN counts as equal to NaN."""
    if number != number:
        return context.emit("not_equal", (data, data))
    return context.emit("equal", (data, context.new_constant("key", np.array(number, data.dtype))))


@CONVERTERS.register("OneHotEncoder", **_ML_NUMBERS)
def convert_one_hot_encoder(
    context: OpContext,
    x: Value,
    *,
    cats_int64s: Ints = (),
    cats_strings: Annotated[Strings, Only((), "encode them as integers before the model")] = (),
    zeros: Annotated[bool, Only(True, "export with zeros=1")] = True,
) -> None:
    """Convert OneHotEncoder, which appends an axis with one element for each category.

    The element of the input's category is 1, the others are 0. With ``zeros`` = 0 an unknown category is an error."""
    data = context.cast(x, "int64")
    column = context.emit("reshape", (data,), {"shape": (*data.shape, 1)})
    hit = context.emit("equal", (column, context.new_constant("categories", np.array(cats_int64s, np.int64))))
    context.result("cast", (hit,), {"dtype": "float32"})


MAX_KEYS = 64
"""Maximum number of keys of a LabelEncoder."""


@CONVERTERS.register("LabelEncoder", **_ML_NUMBERS)
def convert_label_encoder(
    context: OpContext,
    x: Value,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_tensor: Array | None = None,
    keys_floats: Floats | None = None,
    keys_int64s: Ints | None = None,
    keys_tensor: Array | None = None,
    values_floats: Floats | None = None,
    values_int64s: Ints | None = None,
    values_tensor: Array | None = None,
) -> None:
    """Convert LabelEncoder, a mapping from numbers to numbers, to a chain of ``where`` operators.

    If keys are equal, the value of the last key is used."""
    keys = _select_table(context, "keys", keys_tensor, keys_int64s, keys_floats)
    values = _select_table(context, "values", values_tensor, values_int64s, values_floats)
    if len(keys) != len(values) or len(keys) > MAX_KEYS:
        context.refuse(
            f"got {len(keys)} keys and {len(values)} values, expected equal numbers, at most {MAX_KEYS}",
            f"give as many keys as values, at most {MAX_KEYS}",
        )
    if keys.dtype.name != x.dtype:
        context.broken(f"keys have dtype {keys.dtype}, expected {x.dtype}, the dtype of the data")
    default = default_float if values.dtype.kind == "f" else default_int64
    default = default if default_tensor is None else default_tensor.reshape(-1)[0]
    mapped = context.new_constant("default", np.array(default, values.dtype))
    for key, value in zip(keys.tolist(), values, strict=True):
        hit = _emit_equality_test(context, x, key)
        mapped = context.emit("where", (hit, context.new_constant("mapped", np.array(value)), mapped))
    context.result_alias(mapped)


def _select_table(
    context: OpContext, role: str, tensor: Array | None, integers: Ints | None, floats: Floats | None
) -> Array:
    """Return the keys or values (``role``) of a LabelEncoder, which are one of three attributes.

    Raise UnsupportedError if they are strings."""
    if tensor is not None:
        return tensor.reshape(-1)
    if integers is not None:
        return np.array(integers, np.int64)
    if floats is not None:
        return np.array(floats, np.float32)
    context.refuse(
        f"{role}_strings is not supported, expected {role}_int64s, {role}_floats or {role}_tensor",
        "encode them as integers before the model",
    )


@CONVERTERS.register("ArrayFeatureExtractor", dtypes=MOVABLE, domain=ML_DOMAIN)
def convert_array_feature_extractor(context: OpContext, x: Value, y: Value) -> None:
    """Convert ArrayFeatureExtractor to a ``gather`` along the last axis, which selects features by index.

    The indices may be computed at run time; an example is the class with the largest score.
    """
    rows = x if x.rank > 1 else context.reshape(x, (1, *x.shape))
    if y.constant is not None:
        features, count = y.constant.reshape(-1).astype(np.int64), rows.shape[-1]
        if features.size and not 0 <= features.min() <= features.max() < count:
            context.broken(f"got feature indices {features.min()}..{features.max()}, expected 0..{count - 1}")
        indices = context.new_constant("places", features)
    else:
        indices = context.reshape(y, (y.size,))
    context.result("gather", (rows, indices), {"axis": rows.rank - 1})


@CONVERTERS.register("FeatureVectorizer", dtypes=MOVABLE, domain=ML_DOMAIN)
def convert_feature_vectorizer(context: OpContext, *inputs: Value) -> None:
    """Convert FeatureVectorizer, which concatenates the features of all inputs in each row, as float32."""
    parts = [_emit_float32_matrix(context, value) for value in inputs]
    if len(parts) == 1:
        context.result_alias(parts[0])
    else:
        context.result("concat", parts, {"axis": 1})


def _emit_float32_matrix(context: OpContext, value: Value) -> Value:
    """Return ``value`` as a float32 matrix; data that are no matrix become a single row."""
    real = context.cast(value, "float32")
    return real if real.rank == 2 else context.reshape(real, (1, real.size))


@CONVERTERS.register("ZipMap", dtypes=FLOAT, domain=ML_DOMAIN)
def convert_zip_map(context: OpContext, x: Value) -> None:
    """Convert ZipMap to an alias of its input, rows of scores. The dictionaries of scores by class are not built."""
    context.result_alias(x)
