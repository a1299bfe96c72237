# SPDX-License-Identifier: Apache-2.0
"""Reader of fitted estimators of scikit-learn, LightGBM, XGBoost and CatBoost. Trees are converted directly, other estimators by
skl2onnx.

The graph of a classifier has the outputs ``label``, the class if classes are integers, else the index of the class in
``classes_``, and ``probabilities``. The graph of a regressor has the output ``prediction``. Estimators are read as
objects in memory, never from pickles, because unpickling a file can execute code.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from math import inf, isnan, nextafter
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, ToolError, UnsupportedError, UsageError
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.trees import boosters, catboost_json
from microc.frontend.trees.ensembles import (
    Ensemble,
    LinearModel,
    compute_leaf_scale,
    emit_class_of_index,
    emit_ensemble,
    emit_linear_model,
    emit_missing_as_nan,
    emit_post_transform,
)
from microc.frontend.trees.known_rows import iterate_nested_estimators, predict_outputs_and_ties, sample_known_rows
from microc.frontend.trees.sklearn_formulas import (
    emit_scaler,
    find_output_emitter,
    read_tree_ensemble,
    refuse_ties_in_training_data,
)
from microc.graph.ir import Graph, Quant
from microc.ops.attributes import Rounding
from microc.ops.meaning import evaluate
from microc.ops.trees.tree_arrays import Tree

INPUT_DTYPES = ("float32", "int8", "uint8", "int16", "uint16", "int32")
OPSETS = {"": 17, "ai.onnx.ml": 3}
"""ONNX opset versions requested from skl2onnx. All of its converters support these versions."""
_CHECK_ROWS = 96
"""Number of rows on which the graph from skl2onnx is compared with the estimator. Each kind of sampled row then comes
from several attributes."""
_TOLERANCE = 1e-3
"""Tolerated difference between the outputs of graph and estimator, relative to the largest number."""
LEAF_DTYPES = ("float32", "int8", "uint8", "int16")


def read_estimator(
    estimator: Any,
    input_shape: Sequence[int] | None = None,
    *,
    input_dtype: str = "float32",
    input_scale: float | Sequence[float] = 1.0,
    leaf_dtype: str = "float32",
) -> Graph:
    """Convert a fitted estimator to a graph, whose input is rows of features.

    ``input_shape``: (rows, features), one row by default.

    ``input_dtype`` and ``leaf_dtype`` may be integer dtypes for estimators of trees. With an integer ``input_dtype``
    the input contains integers q that stand for features q * ``input_scale`` (one number, or one number for each
    feature). The network then compares integers only; thresholds are rounded without changing any decision. With an
    integer ``leaf_dtype`` the leaves are integers. The outputs are then ``label`` and ``scores``, the int32 sums before
    softmax or sigmoid, with a scale; the network computes no floats.

    Raises UnsupportedError for an estimator that cannot be converted, also inside of another one; ModelError for an
    estimator that is not fitted.
    """
    tree_model = _read_ensemble(estimator)
    if tree_model is None:
        if (input_dtype, leaf_dtype) != ("float32", "float32"):
            raise UsageError(
                f"integer dtypes are supported for trees only; got input dtype {input_dtype} and leaf dtype "
                f"{leaf_dtype}, expected float32",
                where=type(estimator).__name__,
                hint="leave both at float32",
            )
        direct = _convert_by_own_formula(estimator, input_shape)
        if direct is None:
            refuse_ties_in_training_data(estimator)
        return direct or _check_against_estimator(_convert_through_onnx(estimator, input_shape), estimator)
    ensemble, features = tree_model
    shape = _check_input_shape(input_shape, features, type(estimator).__name__)
    for name, dtype, known in (("input", input_dtype, INPUT_DTYPES), ("leaf", leaf_dtype, LEAF_DTYPES)):
        if dtype not in known:
            raise UsageError(f"{name} dtype {dtype!r} is not supported", hint=f"use one of {', '.join(known)}")
    # XGBoost's estimators number the classes themselves; CatBoost's models have their labels in the file.
    takes_classes = not boosters.is_xgboost_object(estimator) and not catboost_json.is_catboost_object(estimator)
    return convert_ensemble(
        ensemble,
        shape,
        type(estimator).__name__,
        getattr(estimator, "classes_", None) if takes_classes else None,
        input_dtype,
        input_scale,
        leaf_dtype,
    )


BOOSTER_FORMATS: Sequence[
    tuple[Callable[[bytes], bool], Callable[[bytes, str], tuple[Ensemble | LinearModel, int]]]
] = (
    (boosters.is_lightgbm, boosters.parse_lightgbm),
    (boosters.is_xgboost, boosters.parse_xgboost),
    (catboost_json.is_catboost, catboost_json.parse_catboost),
)
"""Test and parser of each format of model files of boosters."""


def is_booster_file(data: bytes) -> bool:
    """Test whether ``data`` are the bytes of a model file of LightGBM, XGBoost or CatBoost."""
    return any(is_format(data) for is_format, _ in BOOSTER_FORMATS)


def read_booster_file(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Read a model file of LightGBM (text), XGBoost (JSON, UBJSON) or CatBoost (JSON) from its bytes; return it as a graph.

    ``input_shapes``: shape (rows, features) of the input ``input``; one row by default."""
    parse = next((parse for is_format, parse in BOOSTER_FORMATS if is_format(data)), None)
    if parse is None:
        raise ModelError(
            "got the bytes of another format, expected a model file of LightGBM, XGBoost or CatBoost", where=file_name
        )
    ensemble, features = parse(data, file_name)
    return convert_ensemble(
        ensemble, _check_input_shape(single_input_shape(input_shapes, file_name), features, file_name), file_name
    )


def single_input_shape(input_shapes: Mapping[str, tuple[int, ...]], where: str) -> tuple[int, ...] | None:
    """Return the shape that the caller requests for the only input, which is named ``input``; None for the default.

    UsageError if ``input_shapes`` contains another name."""
    unknown = [name for name in input_shapes if name not in ("input", "*")]
    if unknown:
        raise UsageError(f"the model has no input {unknown[0]!r}", where=where, hint="use its only input, 'input'")
    return input_shapes.get("input", input_shapes.get("*"))


def _check_input_shape(requested_shape: Sequence[int] | None, feature_count: int, where: str) -> tuple[int, ...]:
    """Return the shape (rows, features) of the input, by default of one row; UsageError for a shape of other rank or
    features."""
    input_shape = tuple(requested_shape or (1, feature_count))
    if len(input_shape) != 2 or input_shape[1] != feature_count or input_shape[0] < 1:
        raise UsageError(
            f"input shape: got {input_shape}, expected (rows, features) with {feature_count} features",
            where=where,
            hint=f"give (1, {feature_count})",
        )
    return input_shape


def _read_ensemble(estimator: Any) -> tuple[Ensemble | LinearModel, int] | None:
    """Convert an estimator that consists of trees, or a linear booster; return it and its number of features.

    None for other estimators; ModelError if the estimator is not fitted."""
    where = type(estimator).__name__
    try:
        booster = getattr(estimator, "booster_", estimator)
        if hasattr(booster, "model_to_string"):
            return boosters.parse_lightgbm(booster.model_to_string().encode(), where)
        if boosters.is_xgboost_object(estimator):
            return boosters.parse_xgboost_object(estimator)
        if catboost_json.is_catboost_object(estimator):
            return catboost_json.parse_catboost_object(estimator)
        ensemble = read_tree_ensemble(estimator)
        return None if ensemble is None else (ensemble, int(estimator.n_features_in_))
    except AttributeError as error:
        raise ModelError(f"the estimator is not fitted: {error}", where=where, hint="call fit first") from error


def convert_ensemble(
    ensemble: Ensemble | LinearModel,
    input_shape: tuple[int, ...],
    file_name: str,
    classes: Array | None = None,
    input_dtype: str = "float32",
    input_scale: float | Sequence[float] = 1.0,
    leaf_dtype: str = "float32",
) -> Graph:
    """Convert a tree ensemble or a linear booster to a graph.

    ``input_shape``: (rows, features). ``classes``: labels of a classifier, by default those of the ensemble. For the
    other arguments see :func:`read_estimator`."""
    builder = GraphBuilder(file_name)
    quant = None
    classes = ensemble.classes if classes is None else classes
    integers = [dtype for dtype in (input_dtype, leaf_dtype) if dtypes.is_integer(dtype)]
    if integers and (isinstance(ensemble, LinearModel) or not isnan(ensemble.missing)):
        raise UsageError(
            f"got dtype {integers[0]}, expected float32 for a linear booster or a number that stands for missing",
            where=file_name,
            hint="leave both dtypes at float32",
        )
    if isinstance(ensemble, Ensemble) and dtypes.is_integer(input_dtype):
        ensemble, quant = _scale_thresholds_and_input(ensemble, input_scale, input_shape[1])
    x = builder.input("input", input_shape, input_dtype, quant)
    builder.at(-1, "trees")
    x = emit_missing_as_nan(builder, x, ensemble.missing)
    has_integer_leaves = dtypes.is_integer(leaf_dtype)
    if isinstance(ensemble, LinearModel):
        scores = emit_linear_model(builder, x, ensemble)
    else:
        scores = emit_ensemble(builder, x, ensemble, file_name, leaf_dtype)
        if has_integer_leaves:
            builder.set_quant(scores, Quant((compute_leaf_scale(ensemble, leaf_dtype),), (0,)))
    classifies = classes is not None or ensemble.post_transform in ("sigmoid", "softmax", "hinge")
    label_scores = scores
    if not has_integer_leaves:
        builder.at(-1, "scores")
        scores = label_scores = emit_post_transform(builder, scores, ensemble.post_transform, file_name)
    if not classifies:
        flat = builder.reshape(scores, input_shape[:1]) if ensemble.target_count == 1 else scores
        return builder.graph(file_name, {"scores" if has_integer_leaves else "prediction": flat})
    builder.at(-1, "decision")
    label = _emit_label(builder, label_scores, classes)
    return builder.graph(file_name, {"label": label, "scores" if has_integer_leaves else "probabilities": scores})


def _scale_thresholds_and_input(
    ensemble: Ensemble, input_scale: float | Sequence[float], feature_count: int
) -> tuple[Ensemble, Quant | None]:
    """Convert the thresholds of an ensemble for integer features, which stand for multiples of ``input_scale``.

    Return the converted ensemble and the quantisation of the input. The quantisation is None if features have different
    scales, or the scale is 1. All decisions of the trees stay the same."""
    factors = np.broadcast_to(np.asarray(input_scale, np.float64), (feature_count,))
    if not (factors > 0).all() or not np.isfinite(factors).all():
        raise UsageError(
            f"input scale: got {factors[~(np.isfinite(factors) & (factors > 0))][0]}, expected a positive number"
        )
    trees = tuple(_divide_thresholds(tree, factors) for tree in ensemble.trees)
    same = len(set(factors.tolist())) == 1
    quant = None if not same or factors[0] == 1 else Quant((float(factors[0]),), (0,))
    return replace(ensemble, trees=trees), quant


def _divide_thresholds(tree: Tree, feature_scales: Array) -> Tree:
    """Return the tree with each threshold divided by the scale of its feature."""
    inner = tree.left >= 0
    factor = np.where(inner, feature_scales[np.where(inner, tree.feature, 0)], 1.0)
    pairs = zip(np.where(inner, tree.threshold, 0.0).tolist(), factor.tolist(), strict=True)
    return tree.with_threshold(np.array([_divide_threshold(threshold, scale) for threshold, scale in pairs]))


def _divide_threshold(threshold: float, scale: float) -> float:
    """Return ``threshold / scale``, rounded to a float that separates the same integers as the exact quotient."""
    quotient = threshold / scale
    is_too_large = quotient.is_integer() and Fraction(quotient) * Fraction(scale) > Fraction(threshold)
    return nextafter(quotient, -inf) if is_too_large else quotient


def _emit_label(builder: GraphBuilder, scores: str, classes: Array | None) -> str:
    """Emit the label: the class of the largest score. A single integer score, of two classes, is compared with 0
    instead."""
    if builder.shape(scores)[1] == 1:
        rows = builder.reshape(scores, builder.shape(scores)[:1])
        label = builder.emit("clip", (rows,), {"minimum": 0, "maximum": 1, "rounding": Rounding.NONE})
    else:
        label = builder.emit("argmax", (scores,), {"axis": 1, "out_dtype": "int32"})
    return emit_class_of_index(builder, label, classes)


def _convert_by_own_formula(estimator: Any, input_shape: Sequence[int] | None) -> Graph | None:
    """Convert an estimator by microc's own formula from ``sklearn_formulas``; return the graph.

    The estimator may be the last step of a pipeline of scalers. Return None if there is no formula for it."""
    where = type(estimator).__name__
    steps = [step for _, step in estimator.steps] if where == "Pipeline" else [estimator]
    emit = find_output_emitter(steps[-1]) if steps else None
    if emit is None:
        return None
    builder = GraphBuilder(where)
    features = getattr(estimator, "n_features_in_", None)
    if features is None:
        raise ModelError(
            "n_features_in_ is missing: the estimator is not fitted, or does not record its number of features",
            where=where,
            hint="call fit first",
        )
    x: str | None = builder.input("input", _check_input_shape(input_shape, features, where))
    for scaler in steps[:-1]:
        x = x and emit_scaler(builder, x, scaler)
    return None if x is None else builder.graph(where, emit(builder, x, steps[-1]))


def _check_against_estimator(graph: Graph, estimator: Any) -> Graph:
    """Return ``graph``, which skl2onnx converted, after comparing its outputs with the estimator's on sampled rows.

    UnsupportedError if a label or a number differs. The check is needed because some of skl2onnx's converters silently
    ignore parameters (weights of neighbours, steps of a calibration).
    """
    rows, features = graph.types[graph.inputs[0]].shape
    x = sample_known_rows(estimator, features, rows * -(-_CHECK_ROWS // rows))
    for start in range(0, len(x), rows):
        batch = x[start : start + rows]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected, undecided = predict_outputs_and_ties(estimator, batch)
                nudged, _ = predict_outputs_and_ties(estimator, batch * np.float32(1 + 2e-6))
        except Exception:  # noqa: BLE001 - rows that the estimator itself refuses
            continue
        outputs = evaluate(graph, {graph.inputs[0]: batch})[0]
        for position, (ours, theirs, nudged_answer) in enumerate(zip(outputs, expected, nudged, strict=False)):
            difference = _describe_difference(ours, theirs, nudged_answer, undecided.get(position))
            if difference:
                raise UnsupportedError(
                    f"skl2onnx's model differs from scikit-learn's predictions: {graph.outputs[position]} {difference}",
                    where=type(estimator).__name__,
                    hint="leave the estimator's parameters at their defaults, or use another estimator",
                )
    return graph


def _describe_difference(
    network_output: Array, estimator_output: Array, nearby_outputs: Array, undecided_rows: Array | None
) -> str:
    """Return a description of how an output of the network differs from the estimator's output; "" if both agree.

    A difference is allowed where rounding errors of float32 in the features change the estimator's own output, or in
    ``undecided_rows``. ``nearby_outputs``: the estimator's outputs for slightly changed features."""
    if network_output.size != estimator_output.size:
        return f"has {network_output.size} elements for {estimator_output.size}"
    network_output = network_output.reshape(estimator_output.shape)
    if estimator_output.dtype.kind in "iub":
        is_wrong = (network_output != estimator_output) & (nearby_outputs == estimator_output)
        is_wrong &= (
            np.ones(estimator_output.shape, bool)
            if undecided_rows is None
            else ~undecided_rows.reshape(estimator_output.shape)
        )
        return f"differs in {int(is_wrong.sum())} of {is_wrong.size}" if is_wrong.any() else ""
    if estimator_output.dtype.kind != "f":
        return ""
    largest = float(np.abs(estimator_output[np.isfinite(estimator_output)]).max(initial=1e-30))
    excess = np.abs(np.nan_to_num(network_output) - np.nan_to_num(estimator_output)) - 3 * np.abs(
        np.nan_to_num(nearby_outputs) - np.nan_to_num(estimator_output)
    )
    return f"is off by {float(excess.max()):.3g}" if excess.max(initial=0.0) > _TOLERANCE * largest else ""


def _convert_through_onnx(estimator: Any, input_shape: Sequence[int] | None) -> Graph:
    """Convert an estimator by skl2onnx to ONNX, and that to a graph. Probabilities are a tensor, not ZipMap's
    dictionaries."""
    try:
        from skl2onnx import convert_sklearn
        from skl2onnx.common.data_types import FloatTensorType
    except ImportError as error:
        raise ToolError(
            f"{type(estimator).__name__} is read through skl2onnx, which is not installed",
            hint='pip install "microc[sklearn]"',
        ) from error
    from microc.frontend.onnx import reader as onnx_reader

    where = type(estimator).__name__
    features = getattr(estimator, "n_features_in_", None)
    shape = tuple(input_shape or (1, features))
    if features is None and input_shape is None:
        raise ModelError(
            "n_features_in_ is missing: the estimator is not fitted, or does not record its number of features",
            where=where,
            hint="call fit first, or give input_shapes={'input': (1, features)}",
        )
    if any(type(part).__name__ == "IsotonicRegression" for part in iterate_nested_estimators(estimator)):
        raise UnsupportedError(
            "isotonic calibration is not supported: skl2onnx converts it to a step function",
            where=where,
            hint="calibrate with method='sigmoid'",
        )
    # skl2onnx refuses VotingClassifier's parameter flatten_transform=True. It affects transform() only, which is not converted.
    flags = {name: False for name in estimator.get_params() if name.split("__")[-1] == "flatten_transform"}
    if flags:
        estimator = deepcopy(estimator).set_params(**flags)
    inputs = [("input", FloatTensorType(shape))]
    plain: Mapping[Any, Any] = {id(estimator): {"zipmap": False}} if hasattr(estimator, "classes_") else {}
    try:
        try:
            model = convert_sklearn(estimator, where, inputs, options=plain, target_opset=OPSETS)
        except NameError:  # an option that the converter does not have: of a classifier without probabilities
            # Without options of its own, the last step of a pipeline gets this one again.
            plain = {id(part): {} for part in iterate_nested_estimators(estimator)}
            model = convert_sklearn(estimator, where, inputs, options=plain, target_opset=OPSETS)
    except Exception as error:
        raise UnsupportedError(
            f"skl2onnx cannot convert the estimator: {error}",
            where=where,
            hint="use an estimator that skl2onnx supports",
        ) from error
    return onnx_reader.read_onnx(model.SerializeToString(), where, {})
