"""Conversion of ONNX linear models, scalers, encoders and support vector machines (domain ai.onnx.ml)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.onnx.context import FLOAT, MOVABLE, Converter, OpContext
from microc.frontend.onnx.operators_trees import (
    convert_tree_classifier,
    convert_tree_ensemble,
    convert_tree_regressor,
    emit_feature_rows,
    read_class_labels,
    read_post_transform,
    write_label_output,
)
from microc.frontend.trees.ensembles import emit_both_probabilities, emit_post_transform

# ---- SVMRegressor and SVMClassifier: a kernel of data and support vectors, then dense layers.
#
# The squared distance of a radial kernel is computed as |x|^2 - 2 x.v + |v|^2, limited to 0 from below.


def convert_svm_regressor(context: OpContext) -> None:
    """Convert SVMRegressor, a weighted sum of kernel values plus a bias.

    A one-class machine (attribute ``one_class``) returns 1 for a positive sum, else -1."""
    attributes = context.operator.attributes
    count = attributes.integer("n_supports", 0)
    data = emit_feature_rows(context)
    rho = np.array(attributes.reals("rho"), np.float32)
    weights = np.array(attributes.reals("coefficients"), np.float32)
    width = context.type(data).shape[1]
    values = _emit_kernel_values(context, data, _read_support_vectors(context, count, width)) if count else data
    scores = _emit_dense(context, values, weights.reshape(1, -1), rho)
    if attributes.flag("one_class"):
        above = context.emit("cast", (context.emit("greater", (scores, context.scalar(0.0))),), {"dtype": "float32"})
        doubled = context.emit("mul", (above, context.scalar(2.0)))
        context.result("sub", (doubled, context.scalar(1.0)))
        return
    context.result_alias(emit_post_transform(context, scores, read_post_transform(context), context.where))


def convert_svm_classifier(context: OpContext) -> None:
    """Convert SVMClassifier, which decides between each pair of classes and returns the class with the most votes.

    Probabilities are supported for two classes only. Without probabilities, the scores for more than two classes are
    the decision values of the pairs, as in ONNX Runtime."""
    attributes = context.operator.attributes
    labels = read_class_labels(context, "classlabels_ints", "classlabels_strings")
    per_class, data = attributes.integers("vectors_per_class", ()), emit_feature_rows(context)
    if not per_class:
        context.refuse(
            "vectors_per_class is missing, expected support vectors", "export the model as a LinearClassifier"
        )
    values = _emit_kernel_values(
        context, data, _read_support_vectors(context, sum(per_class), context.type(data).shape[1])
    )
    weights = np.array(attributes.reals("coefficients"), np.float32).reshape(len(per_class) - 1, -1)
    pairs = list(combinations(range(len(per_class)), 2))
    rho = np.array(attributes.reals("rho"), np.float32)
    decisions = _emit_dense(context, values, _compute_class_pair_weights(weights, per_class, pairs), rho)
    has_probabilities = "prob_a" in attributes and len(attributes.reals("prob_a")) > 0
    if len(per_class) == 2 and has_probabilities:
        line = _emit_affine(context, decisions, attributes.reals("prob_a")[0], attributes.reals("prob_b")[0])
        first = context.emit("sigmoid", (context.emit("neg", (line,)),))
        second = context.emit("sub", (context.scalar(1.0), first))
        write_label_output(context, labels, second, is_binary=True, score_threshold=0.5)
        context.result_alias(context.emit("concat", (first, second), {"axis": 1}), 1)
        return
    if has_probabilities:
        context.refuse(
            f"prob_a for {len(per_class)} classes is not supported, expected two classes",
            "export without probabilities (probability=False)",
        )
    votes = _emit_vote_counts(context, decisions, pairs, len(per_class))
    write_label_output(context, labels, votes)
    if len(per_class) == 2:
        both = (context.emit("neg", (decisions,)), decisions)
        context.result_alias(context.emit("concat", both, {"axis": 1}), 1)
    else:
        context.result_alias(decisions, 1)


def _read_support_vectors(context: OpContext, vector_count: int, feature_count: int) -> Array:
    """Return the support vectors as an array (``vector_count``, ``feature_count``)."""
    vectors = np.array(context.operator.attributes.reals("support_vectors"), np.float32)
    if vectors.size != vector_count * feature_count:
        context.broken(
            f"support_vectors: got {vectors.size} numbers, expected {vector_count} x {feature_count} (vectors x features)"
        )
    return vectors.reshape(vector_count, feature_count)


def _emit_kernel_values(context: OpContext, data_name: str, support_vectors: Array) -> str:
    """Emit the values of the SVM's kernel function for every row of ``data_name`` and every support vector.

    Return the name of the result (rows, vectors)."""
    attributes = context.operator.attributes
    gamma, offset, degree = (
        *(attributes.reals("kernel_params") if "kernel_params" in attributes else ()),
        0.0,
        0.0,
        0.0,
    )[:3]
    products = _emit_dense(context, data_name, support_vectors, np.zeros(0, np.float32))
    match attributes.text("kernel_type", "LINEAR"):
        case "LINEAR":
            return products
        case "POLY":
            return context.emit("pow", (_emit_affine(context, products, gamma, offset), context.scalar(degree)))
        case "SIGMOID":
            return context.emit("tanh", (_emit_affine(context, products, gamma, offset),))
        case "RBF":
            squares = context.emit(
                "sum", (context.emit("mul", (data_name, data_name)),), {"axes": (1,), "keepdims": True}
            )
            lengths = context.new_constant("lengths", (support_vectors**2).sum(axis=1))
            twice = context.emit("mul", (products, context.scalar(-2.0)))
            distance = context.emit("add", (context.emit("add", (twice, lengths)), squares))
            clamped = context.emit("relu", (distance,))
            return context.emit("exp", (context.emit("mul", (clamped, context.scalar(-gamma))),))
        case kernel:
            context.broken(f"kernel_type is {kernel!r}, expected LINEAR, POLY, RBF or SIGMOID")


def _emit_affine(context: OpContext, value_name: str, factor: float, offset: float) -> str:
    """Emit ``value_name`` * ``factor`` + ``offset``; return the result's name."""
    scaled = context.emit("mul", (value_name, context.scalar(factor)))
    return context.emit("add", (scaled, context.scalar(offset)))


def _emit_dense(context: OpContext, data_name: str, weights: Array, bias: Array) -> str:
    """Emit a dense layer with constant weights and bias; return its result's name. A bias of zeros is omitted."""
    if weights.shape[1] != context.type(data_name).shape[1] or bias.size not in (0, weights.shape[0]):
        context.broken(
            f"got coefficients of shape {weights.shape} and {bias.size} numbers in rho, expected "
            f"{context.type(data_name).shape[1]} columns and 0 or {weights.shape[0]} numbers"
        )
    operands = [data_name, context.new_constant("coefficients", weights)]
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
    context: OpContext, decisions_name: str, class_pairs: list[tuple[int, int]], class_count: int
) -> str:
    """Emit the number of votes for each class, from the decision values of all pairs of classes.

    Return the result's name. A positive decision value is a vote for the first class of its pair; any other value is a
    vote for the second class."""
    positive = context.emit("greater", (decisions_name, context.scalar(0.0)))
    first = context.emit("cast", (positive,), {"dtype": "float32"})
    weights, offsets = np.zeros((class_count, len(class_pairs)), np.float32), np.zeros(class_count, np.float32)
    for column, (i, j) in enumerate(class_pairs):
        weights[i, column], weights[j, column] = 1, -1
        offsets[j] += 1
    return _emit_dense(context, first, weights, offsets)


# ---- Converters of other ai.onnx.ml operators that scikit-learn's exporters write (tree ensembles: operators_trees.py).
#
# Integer labels of classes are returned as they are. String labels are replaced by numbers from 0 on, in the order of the file.
# In other runtimes ``ZipMap`` turns every row into a dictionary. Here the row stays a tensor.

NUMBERS = ("float32", "float64", "int32", "int64")


def convert_linear_regressor(context: OpContext) -> None:
    """Convert LinearRegressor to a dense layer with a row of coefficients for each target."""
    attributes = context.operator.attributes
    targets = attributes.integer("targets", 1)
    scores = _emit_linear_scores(context, targets)
    context.result_alias(emit_post_transform(context, scores, read_post_transform(context), context.where))


def convert_linear_classifier(context: OpContext) -> None:
    """Convert LinearClassifier, which returns the class with the largest score, and all scores.

    If there is a single row of coefficients for two classes, the sign of its score selects the class."""
    labels = read_class_labels(context, "classlabels_ints", "classlabels_strings")
    rows = len(context.operator.attributes.reals("intercepts")) if "intercepts" in context.operator.attributes else 0
    rows = rows or max(len(labels), 1)
    scores = _emit_linear_scores(context, rows)
    post = read_post_transform(context)
    is_binary = rows == 1 and len(labels) == 2
    write_label_output(context, labels, scores, is_binary=is_binary)
    if is_binary:
        scores = context.emit("sigmoid", (scores,)) if post == "logistic" else scores
        context.result_alias(emit_both_probabilities(context, scores), 1)
    else:
        context.result_alias(emit_post_transform(context, scores, post, context.where), 1)


def _emit_linear_scores(context: OpContext, score_count: int) -> str:
    """Emit a dense layer with the coefficients and intercepts of a linear model; return the name of the scores.

    There are ``score_count`` scores for each row of features, and a row of coefficients for each score."""
    attributes = context.operator.attributes
    data = emit_feature_rows(context)
    coefficients = np.array(attributes.reals("coefficients"), np.float32)
    width = context.type(data).shape[-1]
    if coefficients.size != score_count * width:
        context.broken(f"coefficients: got {coefficients.size}, expected {score_count} x {width} (results x features)")
    operands = [data, context.new_constant("coefficients", coefficients.reshape(score_count, width))]
    if "intercepts" in attributes and any(attributes.reals("intercepts")):
        intercepts = np.array(attributes.reals("intercepts"), np.float32)
        if intercepts.size != score_count:
            context.broken(f"intercepts: got {intercepts.size}, expected {score_count}, one for each result")
        operands.append(context.new_constant("intercepts", intercepts))
    return context.emit("dense", operands)


def convert_scaler(context: OpContext) -> None:
    """Convert Scaler, (x - offset) * scale.

    Offset and scale have one number for all features, or one for each feature."""
    attributes, data = context.operator.attributes, _emit_float32_input(context)
    width = context.type(data).shape[-1] if context.type(data).shape else 1
    for op, name, neutral in (("sub", "offset", 0.0), ("mul", "scale", 1.0)):
        numbers = np.array(attributes.reals(name) if name in attributes else (neutral,), np.float32)
        if numbers.size not in (1, width):
            context.broken(f"{name}: got {numbers.size} numbers, expected 1 or {width}, one for each feature")
        if (numbers != neutral).any():
            data = context.emit(op, (data, context.new_constant(name, numbers)))
    context.result_alias(data)


def convert_normalizer(context: OpContext) -> None:
    """Convert Normalizer, which divides each row by its maximum, L1 norm or L2 norm.

    A row whose divisor is 0 is unchanged."""
    norm, data = context.operator.attributes.text("norm", "MAX"), _emit_float32_input(context)
    over: Mapping[str, tuple[int, ...] | bool] = {"axes": (len(context.type(data).shape) - 1,), "keepdims": True}
    if norm == "MAX":
        divisor = context.emit("max", (data,), over)
    elif norm == "L1":
        divisor = context.emit("sum", (context.emit("abs", (data,)),), over)
    elif norm == "L2":
        divisor = context.emit("sqrt", (context.emit("sum", (context.emit("mul", (data, data)),), over),))
    else:
        context.broken(f"norm is {norm!r}, expected MAX, L1 or L2")
    zero = context.emit("equal", (divisor, context.scalar(0.0)))
    safe = context.emit("where", (zero, context.scalar(1.0), divisor))
    context.result("div", (data, safe))


def convert_binarizer(context: OpContext) -> None:
    """Convert Binarizer, which returns 1 for elements above a threshold and 0 for others."""
    data = context.value(0)
    dtype = context.type(data).dtype
    threshold = np.array(context.operator.attributes.real("threshold", 0.0), dtype)
    above = context.emit("greater", (data, context.new_constant("threshold", threshold)))
    context.result("cast", (above,), {"dtype": dtype})


def convert_imputer(context: OpContext) -> None:
    """Convert Imputer, which replaces missing elements: elements that equal a given number, or NaN.

    There is one replacement for all features, or one for each feature."""
    attributes, data = context.operator.attributes, context.value(0)
    dtype = context.type(data).dtype
    if dtype.startswith("float"):
        replaced = float(attributes.unchecked_real("replaced_value_float", 0.0))
        imputed = attributes.reals("imputed_value_floats")
    else:
        replaced, imputed = attributes.integer("replaced_value_int64", 0), attributes.integers("imputed_value_int64s")
    if len(imputed) not in (1, context.type(data).shape[-1]):
        context.broken(
            f"imputed values: got {len(imputed)}, expected 1 or {context.type(data).shape[-1]}, one for each feature"
        )
    missing = _emit_equality_test(context, data, replaced)
    context.result("where", (missing, context.new_constant("imputed", np.array(imputed, dtype)), data))


def _emit_equality_test(context: OpContext, data_name: str, number: float) -> str:
    """Emit a test of each element of ``data_name`` for equality with ``number``; NaN counts as equal to NaN.

    Return the name of the result."""
    if number != number:
        return context.emit("not_equal", (data_name, data_name))
    dtype = context.type(data_name).dtype
    return context.emit("equal", (data_name, context.new_constant("key", np.array(number, dtype))))


def convert_one_hot_encoder(context: OpContext) -> None:
    """Convert OneHotEncoder, which appends an axis with one element for each category.

    The element of the input's category is 1, the others are 0."""
    attributes, data = context.operator.attributes, context.value(0)
    if attributes.texts("cats_strings"):
        context.refuse(
            "cats_strings is not supported, expected cats_int64s", "encode them as integers before the model"
        )
    if not attributes.flag("zeros", True):
        context.refuse("zeros is 0 (an error for unknown categories), expected 1", "export with zeros=1")
    if context.type(data).dtype != "int64":
        data = context.emit("cast", (data,), {"dtype": "int64"})
    categories = np.array(attributes.integers("cats_int64s"), np.int64)
    column = context.emit("reshape", (data,), {"shape": (*context.type(data).shape, 1)})
    hit = context.emit("equal", (column, context.new_constant("categories", categories)))
    context.result("cast", (hit,), {"dtype": "float32"})


def convert_label_encoder(context: OpContext) -> None:
    """Convert LabelEncoder, a mapping from numbers to numbers, to a chain of ``where`` operators.

    If keys are equal, the value of the last key is used."""
    data, (keys, values, default) = context.value(0), _read_keys_values_and_default(context)
    dtype = context.type(data).dtype
    if keys.dtype.name != dtype:
        context.broken(f"keys have dtype {keys.dtype}, expected {dtype}, the dtype of the data")
    mapped = context.new_constant("default", np.array(default, values.dtype))
    for key, value in zip(keys.tolist(), values, strict=True):
        hit = _emit_equality_test(context, data, key)
        mapped = context.emit("where", (hit, context.new_constant("mapped", np.array(value)), mapped))
    context.result_alias(mapped)


MAX_KEYS = 64


def _read_keys_values_and_default(context: OpContext) -> tuple[Array, Array, float]:
    """Return the keys, the values and the default value of a LabelEncoder.

    Raise UnsupportedError if keys or values are strings."""
    attributes, tables = context.operator.attributes, []
    for role in ("keys", "values"):
        if f"{role}_tensor" in attributes:
            tables.append(attributes.tensor(f"{role}_tensor").reshape(-1))
        elif f"{role}_int64s" in attributes:
            tables.append(np.array(attributes.integers(f"{role}_int64s"), np.int64))
        elif f"{role}_floats" in attributes:
            tables.append(np.array(attributes.reals(f"{role}_floats"), np.float32))
        else:
            context.refuse(
                f"{role}_strings is not supported, expected {role}_int64s, {role}_floats or {role}_tensor",
                "encode them as integers before the model",
            )
    keys, values = tables
    if len(keys) != len(values) or len(keys) > MAX_KEYS:
        context.refuse(
            f"got {len(keys)} keys and {len(values)} values, expected equal numbers, at most {MAX_KEYS}",
            f"give as many keys as values, at most {MAX_KEYS}",
        )
    if "default_tensor" in attributes:
        return keys, values, attributes.tensor("default_tensor").reshape(-1)[0]
    real = values.dtype.kind == "f"
    return keys, values, attributes.real("default_float", -0.0) if real else attributes.integer("default_int64", -1)


def convert_array_feature_extractor(context: OpContext) -> None:
    """Convert ArrayFeatureExtractor to a ``gather`` along the last axis, which selects features by index.

    The indices may be computed at run time; an example is the class with the largest score.
    """
    data = context.value(0)
    shape = context.type(data).shape
    rows = data if len(shape) > 1 else context.reshape(data, (1, *shape))
    indices, axis = context.value(1), len(context.type(rows).shape) - 1
    if indices in context.builder.consts:
        features_read, feature_count = (
            context.constant(1).reshape(-1).astype(np.int64),
            context.type(rows).shape[-1],
        )
        if features_read.size and not 0 <= features_read.min() <= features_read.max() < feature_count:
            context.broken(
                f"got feature indices {features_read.min()}..{features_read.max()}, expected 0..{feature_count - 1}"
            )
        indices = context.new_constant("places", features_read)
    else:
        indices = context.reshape(indices, (context.type(indices).size,))
    context.result("gather", (rows, indices), {"axis": axis})


def convert_feature_vectorizer(context: OpContext) -> None:
    """Convert FeatureVectorizer, which concatenates the features of all inputs in each row, as float32."""
    parts = [_emit_float32_matrix(context, context.value(position)) for position in range(context.input_count())]
    if len(parts) == 1:
        context.result_alias(parts[0])
    else:
        context.result("concat", parts, {"axis": 1})


def _emit_float32_matrix(context: OpContext, value_name: str) -> str:
    """Return the name of ``value_name`` as a float32 matrix; data that are no matrix become a single row."""
    shape = context.type(value_name).shape
    if context.type(value_name).dtype != "float32":
        value_name = context.emit("cast", (value_name,), {"dtype": "float32"})
    return value_name if len(shape) == 2 else context.reshape(value_name, (1, context.type(value_name).size))


def convert_zip_map(context: OpContext) -> None:
    """Convert ZipMap to an alias of its input, rows of scores. The dictionaries of scores by class are not built."""
    context.result_alias(context.value(0))


def _emit_float32_input(context: OpContext) -> str:
    """Return the name of the first operand, converted to float32 if it has another dtype."""
    data = context.value(0)
    return data if context.type(data).dtype == "float32" else context.emit("cast", (data,), {"dtype": "float32"})


ML_CONVERTERS: Mapping[str, Converter] = {
    "ArrayFeatureExtractor": Converter(convert_array_feature_extractor, MOVABLE),
    "Binarizer": Converter(convert_binarizer, NUMBERS),
    "FeatureVectorizer": Converter(convert_feature_vectorizer, MOVABLE),
    "Imputer": Converter(convert_imputer, ("float32", "int64")),
    "LabelEncoder": Converter(convert_label_encoder, NUMBERS),
    "LinearClassifier": Converter(convert_linear_classifier, NUMBERS),
    "LinearRegressor": Converter(convert_linear_regressor, FLOAT),
    "Normalizer": Converter(convert_normalizer, NUMBERS),
    "OneHotEncoder": Converter(convert_one_hot_encoder, NUMBERS),
    "SVMClassifier": Converter(convert_svm_classifier, NUMBERS),
    "SVMRegressor": Converter(convert_svm_regressor, FLOAT),
    "Scaler": Converter(convert_scaler, NUMBERS),
    "TreeEnsemble": Converter(convert_tree_ensemble, ("float32", "float64")),
    "TreeEnsembleClassifier": Converter(convert_tree_classifier, NUMBERS),
    "TreeEnsembleRegressor": Converter(convert_tree_regressor, NUMBERS),
    "ZipMap": Converter(convert_zip_map, FLOAT),
}
