# SPDX-License-Identifier: Apache-2.0
"""Objects are held against their framework when they are compiled; what differs is refused, and the refusal can be left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.errors import VerificationError
from microc.frontend import detect
from microc.graph.ir import Graph

tree = pytest.importorskip("sklearn.tree", reason="needs scikit-learn (pip install microc[sklearn])")


def fitted(seed: int = 0) -> Any:
    """A tree whose thresholds lie between neighbouring floats."""
    x = np.random.default_rng(seed).standard_normal((60, 3)).astype(np.float32)
    return tree.DecisionTreeRegressor(random_state=0).fit(x, x[:, 0] * 10 + x[:, 1])


@pytest.mark.parametrize("board", [None, "netduinoplus2"])
def test_a_reader_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch, board: str | None) -> None:
    """As if thresholds were rounded to the nearest float: features that equal it go the other way."""
    estimator, wrong = fitted(), fitted()
    threshold = wrong.tree_.threshold
    threshold[:] = np.nextafter(threshold.astype(np.float32), np.float32(np.inf))
    read = detect.read_object
    microc.compile(estimator, board=board)

    def misread(model: Any, *rest: Any) -> Graph:
        return read(wrong, *rest)

    monkeypatch.setattr(detect, "read_object", misread)
    with pytest.raises(VerificationError, match="differs from sklearn") as error:
        microc.compile(estimator, board=board)
    assert "check=False" in error.value.hint and "prediction" in error.value.what
    microc.compile(estimator, board=board, check=False)


def test_files_and_graphs_are_not_asked() -> None:
    """They have no framework that is imported anyway."""
    digits = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_float.onnx"
    microc.compile(microc.load(digits), board="host")


def test_many_estimators_pass() -> None:
    """No alarm where both are right: scores that tie, scaled features, objects through ONNX."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    linear = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((80, 4)) * [1, 100, 0.01, 1e4]
    y = (x[:, 0] > 0).astype(int) + (x[:, 3] > 0)
    for estimator in (
        ensemble.RandomForestClassifier(2, max_depth=2, random_state=0),
        ensemble.HistGradientBoostingClassifier(max_iter=2),
        linear.LogisticRegression(max_iter=50),
    ):
        microc.compile(estimator.fit(x, y), board="netduinoplus2")


@pytest.mark.parametrize("board", [None, "netduinoplus2"])
def test_a_network_that_learns_is_compared_as_it_was_read(board: str | None) -> None:
    """The framework knows neither labels nor rate."""
    neural = pytest.importorskip("sklearn.neural_network")
    x = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    estimator = neural.MLPClassifier((5,), max_iter=5).fit(x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0))
    program = microc.compile(estimator, board=board, learn={"layers": 1, "output": "probabilities"})
    assert isinstance(program, microc.Program) or program.inputs[-1]["name"] == "rate"
