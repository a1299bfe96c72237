# SPDX-License-Identifier: Apache-2.0
"""XGBoost's model files, written by hand and by XGBoost, and its objects, against what XGBoost predicts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError, UsageError
from microc.frontend import detect
from microc.frontend.trees import sklearn as reader
from microc.frontend.trees.boosters import is_xgboost, parse_xgboost
from microc.ops.meaning import evaluate
from tests.frontend.mutate import survey

NAN = float("nan")
BOUND = 2e-6
"""Leaves and sums are float32, as XGBoost's; relative to the largest result, or one."""


def tree(left: list[int], right: list[int], feature: list[int], condition: list[float], **more: Any) -> dict[str, Any]:
    """A tree as a file has it; ``more``: arrays of categories."""
    none: dict[str, Any] = {name: [] for name in ("", "_nodes", "_segments", "_sizes")}
    held = {f"categories{name}": value for name, value in none.items()} | {"split_type": [0] * len(left)} | more
    names = {"left_children": left, "right_children": right, "split_indices": feature, "split_conditions": condition}
    return {**names, "default_left": [0] + [1] * (len(left) - 1), "tree_param": {"size_leaf_vector": "1"}, **held}


STUMP = tree([1, -1, -1], [2, -1, -1], [1, 0, 0], [0.5, -2.0, 3.0])
DEEP = tree([1, 3, -1, -1, -1], [2, 4, -1, -1, -1], [0, 1, 0, 0, 0], [1.0, 0.25, 8.0, 1.0, 2.0])


def model(
    trees: list[dict[str, Any]], objective: str = "reg:squarederror", base: str = "5E-1", **learner: Any
) -> dict[str, Any]:
    held = {"trees": trees, "tree_info": [0] * len(trees), "iteration_indptr": list(range(len(trees) + 1))}
    sizes = {"base_score": base, "num_class": "0", "num_feature": "2", "num_target": "1"}
    known = {
        "attributes": {}, "gradient_booster": {"model": held, "name": "gbtree"}, "learner_model_param": sizes,
        "objective": {"name": objective}, **learner,
    }  # fmt: skip
    return {"learner": known, "version": [3, 2, 0]}


def written(found: dict[str, Any]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def ubjson(value: Any) -> bytes:
    """As XGBoost writes it: arrays of numbers are packed."""
    if isinstance(value, dict):
        return b"{" + b"".join(_length(name) + ubjson(each) for name, each in value.items()) + b"}"
    if isinstance(value, str):
        return b"S" + _length(value)
    if isinstance(value, list) and value and all(isinstance(each, (int, float)) for each in value):
        whole = all(isinstance(each, int) for each in value)
        kind, packed = ("l", ">i4") if whole else ("d", ">f4")
        return f"[${kind}#L".encode() + struct.pack(">q", len(value)) + np.array(value, packed).tobytes()
    if isinstance(value, list):
        return b"[" + b"".join(map(ubjson, value)) + b"]"
    return b"L" + struct.pack(">q", value)


def _length(text: str) -> bytes:
    return b"L" + struct.pack(">q", len(text)) + text.encode()


def run(data: bytes, rows: list[list[float]]) -> Any:
    x = np.array(rows, np.float32)
    return microc.compile(data, input_shapes={"input": x.shape})(x)


ROWS = [[0, 0.25], [0.999, 0.5], [1, 0.2], [NAN, NAN], [0, NAN]]


@pytest.mark.parametrize("write", [written, ubjson])
def test_trees_add_to_the_base(write: Any) -> None:
    """Less goes left, equal goes right; missing values where the node says: the root right, others left."""
    data = write(model([STUMP, DEEP]))
    assert is_xgboost(data)
    np.testing.assert_array_equal(run(data, ROWS), np.array([-2 + 2, 3 + 2, -2 + 8, 3 + 8, 3 + 1], np.float32) + 0.5)


def test_objectives() -> None:
    """The file has the base in the unit of the results: of sums it is its logit, or its logarithm."""
    margin = np.array([-2, 3, -2, 3, 3])
    label, shares = run(written(model([STUMP], "binary:logistic", "[2.5E-1]")), ROWS)
    share = 1 / (1 + np.exp(-(margin - np.log(3))))
    np.testing.assert_allclose(shares, np.stack([1 - share, share], axis=1), atol=1e-6)
    np.testing.assert_array_equal(label, margin > 0)
    np.testing.assert_allclose(run(written(model([STUMP], "count:poisson", "2")), ROWS), 2 * np.exp(margin), rtol=1e-6)
    with pytest.raises(UnsupportedError, match="objective 'survival:mine'"):
        run(written(model([STUMP], "survival:mine")), ROWS)


def test_a_linear_booster_takes_missing_features_as_zero() -> None:
    booster = {"name": "gblinear", "model": {"weights": [2, -1, 10], "boosted_rounds": 3}}
    assert run(written(model([], gradient_booster=booster)), [[1, 4], [NAN, 1], [0, 0]]).tolist() == [8.5, 9.5, 10.5]


def test_a_hinge_decides_for_certain() -> None:
    label, probabilities = run(written(model([STUMP], "binary:hinge", base="0")), [[0, 0], [0, 0.5]])
    assert label.tolist() == [0, 1] and probabilities.tolist() == [[1, 0], [0, 1]]


class Estimator:
    """A fitted estimator whose training took ``missing`` for missing."""

    def __init__(self, missing: float) -> None:
        self.missing = missing

    def get_booster(self) -> Estimator:
        return self

    def save_raw(self, raw_format: str) -> bytes:
        return ubjson(model([DEEP]))


def test_a_number_may_stand_for_missing() -> None:
    rows = np.array([[-1, 0], [NAN, 0], [0, -1]], np.float32)
    graph = reader.read_estimator(Estimator(-1.0), rows.shape)
    plain = reader.read_estimator(Estimator(NAN), rows.shape)
    expected, _ = evaluate(plain, {"input": np.where(rows == -1, np.float32(NAN), rows)})
    assert evaluate(graph, {"input": rows})[0][0].tolist() == expected[0].tolist()
    with pytest.raises(UsageError, match="missing"):
        reader.read_estimator(Estimator(-1.0), input_dtype="int8")


def test_estimators_stop_at_their_best_round() -> None:
    best = {"best_iteration": "0"}
    whole, cut = (
        run(written(model([STUMP, STUMP], attributes=a)), ROWS) for a in (best, best | {"scikit_learn": "{}"})
    )
    np.testing.assert_array_equal(whole - cut, [-2, 3, -2, 3, 3])


def test_dropped_trees_weigh_less() -> None:
    held = model([STUMP, DEEP])["learner"]["gradient_booster"]
    dart = {"name": "dart", "gbtree": held, "weight_drop": [0.5, 2]}
    found = run(written(model([], gradient_booster=dart)), ROWS)
    np.testing.assert_array_equal(found, np.array([-1 + 4, 1.5 + 4, -1 + 16, 1.5 + 16, 1.5 + 2], np.float32) + 0.5)


@pytest.mark.parametrize("default_left", [0, 1])
def test_categories_lead_to_the_right(default_left: int) -> None:
    """Runs of categories become thresholds, with what is below there as often as it takes."""
    wanted = [0, 3, 4, 5, 9]
    asks = {
        "split_type": [1, 0, 0, 0, 0], "categories": wanted, "categories_nodes": [0], "categories_segments": [0],
        "categories_sizes": [len(wanted)], "default_left": [default_left, 0, 0, 0, 0],
    }  # fmt: skip
    held = tree([1, 3, -1, -1, -1], [2, 4, -1, -1, -1], [0, 1, 0, 0, 0], [0.0, 0.5, 8.0, 1.0, 2.0], **asks)
    rows = [[float(k), b] for k in range(12) for b in (0.0, 1.0)] + [[NAN, 1.0]]
    right = [k in wanted or (k != k and not default_left) for k, _ in rows]
    expected = [8.0 if goes else 1.0 + b for goes, (_, b) in zip(right, rows, strict=True)]
    np.testing.assert_array_equal(run(written(model([held], base="0")), rows), np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"left_children": [7, -1, -1]}, "left_children: got 7"),
        ({"left_children": [0, -1, -1]}, "children"),
        ({"right_children": [-1, -1, -1]}, "one child"),
        ({"split_indices": [9, 0, 0]}, "got 9, expected 0..1"),
        ({"split_indices": [-7, 0, 0]}, "split_indices: got -7"),
        ({"split_indices": [0.5, 0, 0]}, "split_indices: got 0.5; expected whole"),
        ({"split_indices": [1 << 70, 0, 0]}, "split_indices: got"),
        ({"left_children": [1 << 40, -1, -1]}, "left_children"),
        ({"split_conditions": [0.5, 1.0]}, "tree arrays: got lengths"),
        ({"split_conditions": [NAN, 1.0, 1.0]}, "got nan"),
        ({"split_conditions": [0.5, 1.0, float("inf")]}, "leaf value: got inf"),
        ({"split_type": [1, 0, 0]}, "categories"),
        ({"left_children": "x"}, "left_children"),
    ],
)
def test_broken_trees(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        run(written(model([{**STUMP, **change}])), ROWS)


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        ({"gradient_booster": {"name": "gblinear", "model": {"weights": [1]}}}, "weights: got 1, expected 3"),
        ({"gradient_booster": 3}, "broken"),
        (
            {"learner_model_param": {"num_feature": "2", "num_class": "99999", "base_score": "0"}},
            "num_class: got 99999",
        ),
        ({"learner_model_param": {"num_feature": "2", "base_score": "__import__"}}, "broken"),
    ],
)
def test_broken_learners(learner: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        run(written(model([STUMP], **learner)), ROWS)


@pytest.mark.parametrize(("best", "ends", "said"), [("7", [0, 1], "best_iteration"), ("0", [0, 9], "iteration_indptr")])
def test_errors_of_the_best_round_name_the_file(best: str, ends: list[int], said: str) -> None:
    broken = model([STUMP], attributes={"best_iteration": best, "scikit_learn": "{}"})
    broken["learner"]["gradient_booster"]["model"]["iteration_indptr"] = ends
    with pytest.raises(ModelError, match=said) as caught:
        parse_xgboost(written(broken), "trees.json")
    assert caught.value.where.startswith("trees.json")


@pytest.mark.parametrize(
    "bomb", [b"[$Z#L\x7f" + b"\xff" * 7, b"[" * 100, b"[$d#L\x7f" + b"\xff" * 7, b"[$l#l\xff\xff\xff\xff"]
)
def test_lengths_are_not_believed(bomb: bytes) -> None:
    with pytest.raises(ModelError, match="UBJSON is broken"):
        detect.read_model_data(b"{L" + struct.pack(">q", 7) + b"learner" + bomb, "m.ubj")


@pytest.mark.parametrize("write", [written, ubjson])
def test_damaged_files(write: Any) -> None:
    outcomes = survey(lambda data: reader.read_booster_file(data, "m", {}), write(model([STUMP, DEEP])), 300, seed=5)
    assert outcomes["ModelError"] > 100


def data(classes: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(classes)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    score = np.nansum(x[:, :2], axis=1)
    return x, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes)) if classes else score


@pytest.mark.parametrize("kind", ["XGBClassifier", "XGBRFClassifier", "XGBRegressor", "XGBRFRegressor", "XGBRanker"])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_estimators_and_their_files(kind: str, classes: int, tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost", reason="needs XGBoost (pip install microc[xgboost])")
    x, y = data(classes)
    if (classes == 0) == kind.endswith("Classifier"):
        pytest.skip("classifiers have classes, others here have none")
    ranks = {"qid": np.arange(len(x)) // 20} if kind == "XGBRanker" else {}
    estimator = getattr(xgboost, kind)(n_estimators=8).fit(x, np.abs(y).astype(int) if ranks else y, **ranks)
    estimator.save_model(tmp_path / "m.json")
    estimator.save_model(tmp_path / "m.ubj")
    for source in (estimator, tmp_path / "m.json", tmp_path / "m.ubj"):
        found = microc.compile(source, input_shapes={"input": x.shape})(x)
        if classes:
            np.testing.assert_array_equal(found[0], estimator.predict(x))
            np.testing.assert_allclose(found[1], estimator.predict_proba(x), atol=BOUND)
        else:
            wanted = estimator.predict(x)
            np.testing.assert_allclose(found, wanted, atol=BOUND * max(1, np.abs(wanted).max()))
    assert microc.verify(tmp_path / "m.ubj").agrees


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "binary:hinge"},
        {"booster": "gblinear"},
        {"booster": "gblinear", "objective": "multi:softprob"},
        {"missing": -1.0},
    ],
    ids=str,
)
def test_other_boosters_and_missing_numbers(options: dict[str, Any]) -> None:
    xgboost = pytest.importorskip("xgboost", reason="needs XGBoost (pip install microc[xgboost])")
    x, y = data(3 if "multi:softprob" in options.values() else 2)
    x = np.where(np.isnan(x), np.float32(options.get("missing", NAN)), x)
    estimator = xgboost.XGBClassifier(n_estimators=5, **options).fit(x, y)
    (label, probabilities), _ = evaluate(reader.read_estimator(estimator, x.shape), {"input": x})
    np.testing.assert_array_equal(label, estimator.predict(x))
    np.testing.assert_allclose(probabilities, estimator.predict_proba(x), atol=BOUND)
