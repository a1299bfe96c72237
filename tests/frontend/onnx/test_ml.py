# SPDX-License-Identifier: Apache-2.0
"""The ai.onnx.ml operators: ONNX's node tests, and what skl2onnx writes, against onnxruntime."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.onnx import reader as onnx_reader
from tests.frontend.mutate import survey
from tests.frontend.run import library

onnx = pytest.importorskip("onnx")
pytest.importorskip("sklearn", reason="needs scikit-learn and skl2onnx (pip install microc[sklearn])")
skl2onnx = pytest.importorskip("skl2onnx", reason="needs skl2onnx (pip install microc[sklearn])")
pytest.importorskip("onnxruntime")

from onnx import helper  # noqa: E402
from sklearn import ensemble, linear_model, neural_network, preprocessing, svm, tree  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402

from tests.support.onnx_session import session  # noqa: E402

ROWS, FEATURES = 20, 5
BOUND = 3e-5
"""Sums of float32 in another order than onnxruntime's, relative to one."""

CLASSIFIERS = (
    tree.DecisionTreeClassifier(random_state=0),
    ensemble.RandomForestClassifier(5, random_state=0),
    ensemble.GradientBoostingClassifier(n_estimators=4, random_state=0),
    linear_model.LogisticRegression(),
    make_pipeline(preprocessing.StandardScaler(), linear_model.RidgeClassifier()),
)
REGRESSORS = (
    linear_model.LinearRegression(),
    svm.SVR(),
    svm.SVR(kernel="sigmoid"),
    ensemble.RandomForestRegressor(4, random_state=0),
    neural_network.MLPRegressor(hidden_layer_sizes=(6,), random_state=0),
)
TRANSFORMERS = (
    preprocessing.StandardScaler(),
    preprocessing.Normalizer(),
    preprocessing.Normalizer("l1"),
    preprocessing.Normalizer("max"),
    preprocessing.Binarizer(threshold=0.2),
)


def data() -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    x = rng.normal(0, 1, (200, FEATURES)).astype(np.float32)
    return x, x[:, 0] * x[:, 1] + x[:, 2]


def compare(model: Any, x: Array) -> None:
    """The compiled model gives what onnxruntime gives."""
    raw = model.SerializeToString()
    wanted = session(raw).run(None, {"input": x})
    found = library(onnx_reader.read_onnx(raw, "model.onnx", {}))(x)
    for got, want in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=BOUND, atol=BOUND)


def converted(estimator: Any, x: Array, options: Any = None) -> Any:
    kind = skl2onnx.common.data_types.FloatTensorType((len(x), FEATURES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return skl2onnx.convert_sklearn(estimator, "model", [("input", kind)], options=options or {})


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda e: type(e).__name__)
def test_classifiers(estimator: Any, classes: int) -> None:
    x, score = data()
    estimator.fit(x, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes)) * 5 - 3)
    compare(converted(estimator, x[:ROWS], {id(estimator): {"zipmap": False}}), x[:ROWS])


@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda e: type(e).__name__)
def test_regressors(estimator: Any) -> None:
    x, score = data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(x, score)
    compare(converted(estimator, x[:ROWS]), x[:ROWS])


@pytest.mark.parametrize("estimator", TRANSFORMERS, ids=lambda e: type(e).__name__)
def test_transformers(estimator: Any) -> None:
    x, _ = data()
    x = x.copy()
    x[3] = 0
    compare(converted(estimator.fit(x), x[:ROWS]), x[:ROWS])


def test_a_dictionary_is_a_row() -> None:
    """With ZipMap the model compiles, and gives rows."""
    x, score = data()
    model = converted(tree.DecisionTreeClassifier(max_depth=3).fit(x, score > 0), x[:ROWS])
    assert any(node.op_type == "ZipMap" for node in model.graph.node)
    _, rows = library(onnx_reader.read_onnx(model.SerializeToString(), "model.onnx", {}))(x[:ROWS])
    assert rows.shape == (ROWS, 2)


@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf", "sigmoid"])
def test_support_vectors(kernel: str) -> None:
    x, score = data()
    compare(converted(svm.SVC(kernel=kernel, gamma=0.3).fit(x, score > 0), x[:ROWS], {"zipmap": False}), x[:ROWS])


NODE_TESTS = {
    "array_feature_extractor": "array_feature_extractor",
    "binarizer": "binarizer",
    "tree_ensemble_single_tree": "tree_ensemble",
    "tree_ensemble_set_membership": "tree_ensemble",
}
"""Names of ONNX's node tests, and the modules that make them when they are imported. (All modules together take 10 s.)"""


@pytest.mark.parametrize("name", NODE_TESTS)
def test_node_tests(name: str) -> None:
    from onnx.backend.test.case import node as made

    importlib.import_module(f"{made.__name__}.ai_onnx_ml.{NODE_TESTS[name]}")
    case = next(c for c in made._NodeTestCases if c.name == f"test_ai_onnx_ml_{name}")
    model, (inputs, outputs) = case.model, case.data_sets[0]
    for k in range(len(inputs) - 1, 0, -1):  # indices are known when compiling
        model.graph.initializer.append(onnx.numpy_helper.from_array(inputs[k], model.graph.input[k].name))
        del model.graph.input[k]
    found = library(onnx_reader.read_onnx(model.SerializeToString(), "node.onnx", {}))(inputs[0])
    assert isinstance(found, np.ndarray)
    assert found.dtype == outputs[0].dtype
    np.testing.assert_allclose(found, outputs[0], rtol=1e-6)


def node(code: str, x: Array, result: int, **attributes: Any) -> Any:
    """A model of one operator."""
    made = helper.make_node(code, ["input"], ["y"], domain="ai.onnx.ml", **attributes)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [helper.make_tensor_value_info("input", kind, x.shape)]
    graph = helper.make_graph([made], "g", inputs, [helper.make_tensor_value_info("y", result, None)])
    imports = [helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_computed_places() -> None:
    """Classes by the largest score, as skl2onnx asks for them."""
    node = helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=1)
    taken = helper.make_node("ArrayFeatureExtractor", ["classes", "best"], ["y"], domain="ai.onnx.ml")
    classes = helper.make_tensor("classes", onnx.TensorProto.INT64, (3,), [70, 20, 50])
    graph = helper.make_graph(
        [node, taken],
        "classes",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (4, 3))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT64, (1, 4))],
        [classes],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    x = np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)
    found = library(onnx_reader.read_onnx(model, "classes", {}))(x)
    np.testing.assert_array_equal(found, session(model).run(None, {"x": x})[0])


def test_imputer() -> None:
    x = np.array([[1, np.nan, 3], [np.nan, 5, 6]], np.float32)
    compare(node("Imputer", x, 1, imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=float("nan")), x)
    whole = np.array([[1, -1, 3], [-1, 5, 6]], np.int64)
    compare(node("Imputer", whole, 7, imputed_value_int64s=[4], replaced_value_int64=-1), whole)


def test_one_hot_and_labels() -> None:
    x = np.array([[1, 5], [9, 7]], np.int64)
    compare(node("OneHotEncoder", x, 1, cats_int64s=[5, 1, 9], zeros=1), x)
    compare(node("LabelEncoder", x, 7, keys_int64s=[5, 9], values_int64s=[50, 90], default_int64=-7), x)
    with pytest.raises(UnsupportedError, match="strings"):
        onnx_reader.read_onnx(node("OneHotEncoder", x, 1, cats_strings=["a"]).SerializeToString(), "m", {})


@pytest.mark.parametrize("combine", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_combinations_of_trees(combine: str) -> None:
    """Two targets, several votes in a leaf, a missing value that follows the true branch."""
    x = np.array([[0.5, 2], [1.5, 2], [np.nan, -2], [3, np.nan]], np.float32)
    attributes = {
        "n_targets": 2,
        "aggregate_function": combine,
        "nodes_treeids": [0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 0, 1, 2],
        "nodes_featureids": [0, 0, 0, 1, 0, 0],
        "nodes_values": [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
        "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 0],
        "target_treeids": [0, 0, 0, 0, 1, 1, 1, 1],
        "target_nodeids": [1, 1, 2, 2, 1, 1, 2, 2],
        "target_ids": [0, 1, 0, 1, 0, 1, 0, 1],
        "target_weights": [1.0, -2.0, 3.0, 4.0, 5.0, -6.0, 7.0, 8.0],
    }
    compare(node("TreeEnsembleRegressor", x, 1, **attributes), x)


def test_damaged_models() -> None:
    """A forest and a machine of support vectors: a graph or a refusal, whatever is broken."""
    x, score = data()
    for estimator in (ensemble.RandomForestRegressor(2, max_depth=3, random_state=0), svm.SVR()):
        raw = converted(estimator.fit(x[:40], score[:40]), x[:1]).SerializeToString()
        outcomes = survey(lambda damaged: onnx_reader.read_onnx(damaged, "model.onnx", {}), raw, 150, seed=4)
        assert outcomes["ModelError"] + outcomes["NotOnnxError"] > 10


def test_a_broken_tree() -> None:
    x = np.zeros((1, 1), np.float32)
    attributes = {
        "nodes_treeids": [0, 0],
        "nodes_nodeids": [0, 1],
        "nodes_featureids": [0, 0],
        "nodes_values": [1.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ"],
        "nodes_truenodeids": [1, 0],
        "nodes_falsenodeids": [1, 0],
        "target_treeids": [0],
        "target_nodeids": [1],
        "target_ids": [0],
        "target_weights": [1.0],
    }
    with pytest.raises(ModelError):
        onnx_reader.read_onnx(node("TreeEnsembleRegressor", x, 1, **attributes).SerializeToString(), "m", {})


@pytest.mark.parametrize(
    ("attribute", "number", "allowed"),
    [("aggregate_function", 5, "0, 1, 2 or 3"), ("post_transform", -1, "0, 1, 2, 3 or 4")],
)
def test_numbers_that_name_nothing(attribute: str, number: int, allowed: str) -> None:
    x = np.zeros((1, 2), np.float32)
    network = node("TreeEnsemble", x, 1, **{"n_targets": 1, "tree_roots": [0], attribute: number})
    with pytest.raises(ModelError, match=f"{attribute} is {number}, expected {allowed}"):
        onnx_reader.read_onnx(network.SerializeToString(), "m", {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes_featureids": [-7, 0, 0]}, "got -7, expected 0..3"),
        ({"nodes_featureids": [4, 0, 0]}, "got 4, expected 0..3"),
        ({"nodes_featureids": [1 << 40, 0, 0]}, "got 1099511627776"),
        ({"n_targets": 1 << 30}, "n_targets: got 1073741824"),
        ({"target_weights": [float("nan"), 1.0]}, "a leaf of a tree is not finite; got nan"),
    ],
)
def test_numbers_of_trees_are_refused(change: dict[str, Any], said: str) -> None:
    stump = {
        "n_targets": 1,
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [3, 0, 0],
        "nodes_values": [1.0, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    }
    x = np.zeros((1, 4), np.float32)
    with pytest.raises(ModelError, match=said):
        onnx_reader.read_onnx(node("TreeEnsembleRegressor", x, 1, **{**stump, **change}).SerializeToString(), "m", {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"vectors_per_class": [1]},
            "got \\(1,\\), 2 and 1 numbers, expected a number of at least 0 for each of 2 classes",
        ),
        (
            {"vectors_per_class": [3, -1]},
            "expected a number of at least 0 for each of 2 classes, at least 2, and 2 and 1 numbers",
        ),
        ({"coefficients": [1.0]}, "got \\(1, 1\\), 1 and 1 numbers, .* and 2 and 1 numbers"),
        ({"prob_a": [1.0]}, "prob_a, prob_b: got 1 and 0 numbers, expected 0 or 1"),
        # A list of all their pairs would take gigabytes.
        ({"vectors_per_class": [0] * 100_000}, "coefficients, rho: got \\(0, 0[0 ,]+, 2 and 1 numbers"),
    ],
)
def test_support_vectors_that_disagree(change: dict[str, Any], said: str) -> None:
    machine = {
        "classlabels_ints": [0, 1],
        "vectors_per_class": [1, 1],
        "coefficients": [1.0, -1.0],
        "rho": [0.0],
        "support_vectors": [1.0, 2.0, 3.0, 4.0],
        "kernel_params": [1.0, 0.0, 3.0],
        "kernel_type": "RBF",
    }
    made = node("SVMClassifier", np.zeros((1, 2), np.float32), 7, **{**machine, **change})
    made.graph.node[0].output.append("scores")
    with pytest.raises(ModelError, match=said):
        onnx_reader.read_onnx(made.SerializeToString(), "m", {})


def test_many_classes_of_support_vectors() -> None:
    """The votes of all pairs of classes are a matrix of their third power."""
    count = 600
    machine = {
        "classlabels_ints": range(count),
        "vectors_per_class": [1] + [0] * (count - 1),
        "coefficients": [1.0] * (count - 1),
        "rho": [0.0] * (count * (count - 1) // 2),
        "support_vectors": [1.0, 2.0],
        "kernel_type": "LINEAR",
    }
    made = node("SVMClassifier", np.zeros((1, 2), np.float32), 7, **machine)
    made.graph.node[0].output.append("scores")
    with pytest.raises(UnsupportedError, match=r"\(179700, 600\)"):
        onnx_reader.read_onnx(made.SerializeToString(), "m", {})
