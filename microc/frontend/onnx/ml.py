"""Spellings of the ai.onnx.ml operators that compute numbers: what scikit-learn's converters write (trees: ``trees.py``).

A label is the class itself where classes are integers; classes that are strings are numbered from 0 in the order of the file.
``ZipMap`` makes a dictionary of every row in other runtimes: here the row stays a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.dtypes import Array
from microc.frontend.onnx.application import FLOAT, MOVABLE, Application, Spelling
from microc.frontend.onnx.scores import class_labels, features, post_transform, result_label
from microc.frontend.onnx.svm import svm_classifier, svm_regressor
from microc.frontend.onnx.trees import tree_classifier, tree_ensemble, tree_regressor
from microc.frontend.trees.ensembles import emit_post, two_classes

NUMBERS = ("float32", "float64", "int32", "int64")


def linear_regressor(application: Application) -> None:
    """LinearRegressor: one row of coefficients for every target."""
    attributes = application.operator.attributes
    targets = attributes.integer("targets", 1)
    scores = _linear(application, targets)
    application.result_alias(emit_post(application, scores, post_transform(application), application.where))


def linear_classifier(application: Application) -> None:
    """LinearClassifier: the largest score, or the sign where one row of coefficients tells two classes apart."""
    labels = class_labels(application, "classlabels_ints", "classlabels_strings")
    rows = (
        len(application.operator.attributes.reals("intercepts"))
        if "intercepts" in application.operator.attributes
        else 0
    )
    rows = rows or max(len(labels), 1)
    scores = _linear(application, rows)
    post = post_transform(application)
    two = rows == 1 and len(labels) == 2
    result_label(application, labels, scores, two=two)
    if two:
        scores = application.emit("sigmoid", (scores,)) if post == "logistic" else scores
        application.result_alias(two_classes(application, scores), 1)
    else:
        application.result_alias(emit_post(application, scores, post, application.where), 1)


def _linear(application: Application, rows: int) -> str:
    attributes = application.operator.attributes
    data = features(application)
    coefficients = np.array(attributes.reals("coefficients"), np.float32)
    width = application.type(data).shape[-1]
    if coefficients.size != rows * width:
        application.broken(f"{coefficients.size} coefficients for {rows} results of {width} features")
    operands = [data, application.new_constant("coefficients", coefficients.reshape(rows, width))]
    if "intercepts" in attributes and any(attributes.reals("intercepts")):
        intercepts = np.array(attributes.reals("intercepts"), np.float32)
        if intercepts.size != rows:
            application.broken(f"{intercepts.size} intercepts for {rows} results")
        operands.append(application.new_constant("intercepts", intercepts))
    return application.emit("dense", operands)


def scaler(application: Application) -> None:
    """Scaler: (x - offset) * scale, numbers for every feature or for all."""
    attributes, data = application.operator.attributes, _real(application)
    width = application.type(data).shape[-1] if application.type(data).shape else 1
    for op, name, neutral in (("sub", "offset", 0.0), ("mul", "scale", 1.0)):
        numbers = np.array(attributes.reals(name) if name in attributes else (neutral,), np.float32)
        if numbers.size not in (1, width):
            application.broken(f"{name} of {numbers.size} numbers for {width} features")
        if (numbers != neutral).any():
            data = application.emit(op, (data, application.new_constant(name, numbers)))
    application.result_alias(data)


def normalizer(application: Application) -> None:
    """Normalizer: a row by its largest element, the sum of magnitudes, or its length; rows of zeros stay."""
    norm, data = application.operator.attributes.text("norm", "MAX"), _real(application)
    over: Mapping[str, tuple[int, ...] | bool] = {"axes": (len(application.type(data).shape) - 1,), "keepdims": True}
    if norm == "MAX":
        divisor = application.emit("max", (data,), over)
    elif norm == "L1":
        divisor = application.emit("sum", (application.emit("abs", (data,)),), over)
    elif norm == "L2":
        divisor = application.emit("sqrt", (application.emit("sum", (application.emit("mul", (data, data)),), over),))
    else:
        application.broken(f"the norm is {norm!r}")
    zero = application.emit("equal", (divisor, application.scalar(0.0)))
    safe = application.emit("where", (zero, application.scalar(1.0), divisor))
    application.result("div", (data, safe))


def binarizer(application: Application) -> None:
    """Binarizer: 1 above the threshold, else 0."""
    data = application.value(0)
    dtype = application.type(data).dtype
    threshold = np.array(application.operator.attributes.real("threshold", 0.0), dtype)
    above = application.emit("greater", (data, application.new_constant("threshold", threshold)))
    application.result("cast", (above,), {"dtype": dtype})


def imputer(application: Application) -> None:
    """Imputer: another number in the place of a number, or of NaN; one for every feature or for all."""
    attributes, data = application.operator.attributes, application.value(0)
    dtype = application.type(data).dtype
    if dtype.startswith("float"):
        replaced = float(attributes.raw_real("replaced_value_float", 0.0))
        imputed = attributes.reals("imputed_value_floats")
    else:
        replaced, imputed = attributes.integer("replaced_value_int64", 0), attributes.integers("imputed_value_int64s")
    if len(imputed) not in (1, application.type(data).shape[-1]):
        application.broken(f"{len(imputed)} values for {application.type(data).shape[-1]} features")
    missing = _equals(application, data, replaced)
    application.result("where", (missing, application.new_constant("imputed", np.array(imputed, dtype)), data))


def _equals(application: Application, data: str, number: float) -> str:
    """Where ``data`` is ``number``; NaN is NaN."""
    if number != number:
        return application.emit("not_equal", (data, data))
    dtype = application.type(data).dtype
    return application.emit("equal", (data, application.new_constant("key", np.array(number, dtype))))


def one_hot(application: Application) -> None:
    """OneHotEncoder: a column for every category, 1 where the number is that category."""
    attributes, data = application.operator.attributes, application.value(0)
    if attributes.texts("cats_strings"):
        application.refuse("categories that are strings", "encode them as integers before the model")
    if not attributes.flag("zeros", True):
        application.refuse("an error for unknown categories", "export with zeros=1")
    if application.type(data).dtype != "int64":
        data = application.emit("cast", (data,), {"dtype": "int64"})
    categories = np.array(attributes.integers("cats_int64s"), np.int64)
    column = application.emit("reshape", (data,), {"shape": (*application.type(data).shape, 1)})
    hit = application.emit("equal", (column, application.new_constant("categories", categories)))
    application.result("cast", (hit,), {"dtype": "float32"})


def label_encoder(application: Application) -> None:
    """LabelEncoder between numbers: the first of the keys that fits, from the last, as the last takes precedence."""
    data, (keys, values, default) = application.value(0), _dictionary(application)
    dtype = application.type(data).dtype
    if keys.dtype.name != dtype:
        application.broken(f"keys of {keys.dtype} for data of {dtype}")
    found = application.new_constant("default", np.array(default, values.dtype))
    for key, value in zip(keys.tolist(), values, strict=True):
        hit = _equals(application, data, key)
        found = application.emit("where", (hit, application.new_constant("mapped", np.array(value)), found))
    application.result_alias(found)


_MOST_KEYS = 64


def _dictionary(application: Application) -> tuple[Array, Array, float]:
    """Keys, values and default of a LabelEncoder, all numbers."""
    attributes, found = application.operator.attributes, []
    for role in ("keys", "values"):
        if f"{role}_tensor" in attributes:
            found.append(attributes.tensor(f"{role}_tensor").reshape(-1))
        elif f"{role}_int64s" in attributes:
            found.append(np.array(attributes.integers(f"{role}_int64s"), np.int64))
        elif f"{role}_floats" in attributes:
            found.append(np.array(attributes.reals(f"{role}_floats"), np.float32))
        else:
            application.refuse(f"{role} that are strings", "encode them as integers before the model")
    keys, values = found
    if len(keys) != len(values) or len(keys) > _MOST_KEYS:
        application.refuse(f"{len(keys)} keys for {len(values)} values", f"up to {_MOST_KEYS} pairs of numbers")
    if "default_tensor" in attributes:
        return keys, values, attributes.tensor("default_tensor").reshape(-1)[0]
    real = values.dtype.kind == "f"
    return keys, values, attributes.real("default_float", -0.0) if real else attributes.integer("default_int64", -1)


def array_feature_extractor(application: Application) -> None:
    """ArrayFeatureExtractor: elements at some places of the last axis, which may be computed (the class of the largest score)."""
    data = application.value(0)
    shape = application.type(data).shape
    rows = data if len(shape) > 1 else application.reshaped(data, (1, *shape))
    indices, axis = application.value(1), len(application.type(rows).shape) - 1
    if indices in application.builder.consts:
        places, features = application.constant(1).reshape(-1).astype(np.int64), application.type(rows).shape[-1]
        if places.size and not 0 <= places.min() <= places.max() < features:
            application.broken(f"features {places.min()} to {places.max()} of {features}")
        indices = application.new_constant("places", places)
    else:
        indices = application.reshaped(indices, (application.type(indices).size,))
    application.result("gather", (rows, indices), {"axis": axis})


def feature_vectorizer(application: Application) -> None:
    """FeatureVectorizer: rows of all inputs side by side, as floats."""
    parts = [_matrix(application, application.value(position)) for position in range(application.count())]
    if len(parts) == 1:
        application.result_alias(parts[0])
    else:
        application.result("concat", parts, {"axis": 1})


def _matrix(application: Application, value: str) -> str:
    """A float value of two axes; one axis is one row."""
    shape = application.type(value).shape
    if application.type(value).dtype != "float32":
        value = application.emit("cast", (value,), {"dtype": "float32"})
    return value if len(shape) == 2 else application.reshaped(value, (1, application.type(value).size))


def zip_map(application: Application) -> None:
    """ZipMap: the row as it is."""
    application.result_alias(application.value(0))


def _real(application: Application) -> str:
    """The first operand as float32, of any shape."""
    data = application.value(0)
    return (
        data if application.type(data).dtype == "float32" else application.emit("cast", (data,), {"dtype": "float32"})
    )


SPELLINGS: Mapping[str, Spelling] = {
    "ArrayFeatureExtractor": Spelling(array_feature_extractor, MOVABLE),
    "Binarizer": Spelling(binarizer, NUMBERS),
    "FeatureVectorizer": Spelling(feature_vectorizer, MOVABLE),
    "Imputer": Spelling(imputer, ("float32", "int64")),
    "LabelEncoder": Spelling(label_encoder, NUMBERS),
    "LinearClassifier": Spelling(linear_classifier, NUMBERS),
    "LinearRegressor": Spelling(linear_regressor, FLOAT),
    "Normalizer": Spelling(normalizer, NUMBERS),
    "OneHotEncoder": Spelling(one_hot, NUMBERS),
    "SVMClassifier": Spelling(svm_classifier, NUMBERS),
    "SVMRegressor": Spelling(svm_regressor, FLOAT),
    "Scaler": Spelling(scaler, NUMBERS),
    "TreeEnsemble": Spelling(tree_ensemble, ("float32", "float64")),
    "TreeEnsembleClassifier": Spelling(tree_classifier, NUMBERS),
    "TreeEnsembleRegressor": Spelling(tree_regressor, NUMBERS),
    "ZipMap": Spelling(zip_map, FLOAT),
}
