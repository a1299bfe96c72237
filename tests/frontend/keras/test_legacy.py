# SPDX-License-Identifier: Apache-2.0
"""Whole models in HDF5, written by hand as Keras 2 does, without Keras."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, ToolError, UnsupportedError
from microc.frontend import detect
from microc.frontend.detect import read_symbolic_input_shapes
from microc.frontend.keras import reader
from tests.frontend.mutate import survey
from tests.frontend.run import library

h5py = pytest.importorskip("h5py", reason="needs h5py (pip install microc[keras])")

KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
BACK = np.arange(12, dtype=np.float32)[::-1].reshape(4, 3) / 16
BIAS = np.array([1, -1, 0.5, 0], np.float32)
STATISTICS = {"gamma": 2.0, "beta": 0.5, "moving_mean": 1.0, "moving_variance": 4.0}
X = np.array([[1, -2, 3]], np.float32)


def layer(kind: str, name: str, inbound: Any = None, **config: Any) -> dict[str, Any]:
    found = {"class_name": kind, "config": {"name": name, "dtype": "float32", **config}, "name": name}
    return found if inbound is None else {**found, "inbound_nodes": inbound}


def dense(name: str, units: int, inbound: Any = None, **config: Any) -> dict[str, Any]:
    return layer("Dense", name, inbound, **{"units": units, "activation": "linear", "use_bias": True, **config})


def entry(name: str) -> list[Any]:
    return [name, 0, 0, {}]


def written(config: Any, weights: Mapping[str, Mapping[str, Array]], *, cut: bool = False) -> bytes:
    """A file; ``weights``: of each of the model's own layers, by path. ``cut``: names in numbered attributes, as where they are
    long."""
    data = io.BytesIO()
    with h5py.File(data, "w") as file:
        file.attrs["model_config"] = json.dumps(config)
        file.attrs["keras_version"] = "2.15.0"
        held = file.create_group("model_weights")
        held.attrs["layer_names"] = np.array([name.encode() for name in weights])
        for name, arrays in weights.items():
            group, names = held.create_group(name), [path.encode() for path in arrays]
            for k, part in enumerate([names] if not cut else [[each] for each in names]):
                group.attrs["weight_names" + (str(k) if cut else "")] = np.array(part)
            for path, array in arrays.items():
                group[path] = array
    return data.getvalue()


def functional() -> bytes:
    """x -> first -> inside (dense, normalisation, frozen or not: what trains comes first), added to what came before."""
    normal = layer("BatchNormalization", "norm", axis=[1], epsilon=0.0, scale=True, center=True)
    inner = {"class_name": "Sequential", "config": {"name": "inside", "layers": [
        layer("InputLayer", "inner_input", batch_input_shape=[None, 4]), normal, dense("second", 3),
    ]}}  # fmt: skip
    layers = [
        layer("InputLayer", "x", [], batch_input_shape=[None, 3]),
        dense("first", 4, [[entry("x")]], activation="relu"),
        {**inner, "name": "inside", "inbound_nodes": [[entry("first")]]},
        layer("Add", "sum", [[entry("inside"), entry("x")]]),
    ]
    ends = {"input_layers": [["x", 0, 0]], "output_layers": [["sum", 0, 0]]}
    config = {"class_name": "Functional", "config": {"name": "old", "layers": layers, **ends}}
    first: Mapping[str, Array] = {"first/kernel:0": KERNEL, "first/bias:0": BIAS}
    full = {name: np.full(4, value, np.float32) for name, value in STATISTICS.items()}
    inside: Mapping[str, Array] = {
        "norm/gamma:0": full["gamma"], "norm/beta:0": full["beta"], "second/kernel:0": BACK, "second/bias:0": BIAS[:3],
        "norm/moving_mean:0": full["moving_mean"], "norm/moving_variance:0": full["moving_variance"],
    }  # fmt: skip
    return written(config, {"x": {}, "first": first, "inside": inside, "sum": {}})


def test_a_graph_of_layers_with_a_model_inside() -> None:
    h = np.maximum(X @ KERNEL + BIAS, 0)
    wanted = ((h - 1) / 2 * 2 + 0.5) @ BACK + BIAS[:3] + X
    graph = detect.read_model_data(functional(), "old.h5")
    assert graph.name == "old" and graph.types["x"].shape == (1, 3)
    np.testing.assert_allclose(library(graph)(X), wanted, rtol=1e-6)


@pytest.mark.parametrize("cut", [False, True])
def test_directions_share_a_list_of_weights(cut: bool) -> None:
    """And Sequential models, which once were a plain list of layers."""
    cell = {"units": 2, "activation": "linear", "use_bias": False, "return_sequences": True}
    wrapped = layer("Bidirectional", "both", merge_mode="concat", layer=layer("SimpleRNN", "rnn", **cell), **cell)
    layers = [layer("InputLayer", "x", batch_input_shape=[None, 2, 3]), wrapped]
    weights = {
        f"both/{way}_rnn/cell/{name}:0": array + k
        for k, way in enumerate(("forward", "backward"))
        for name, array in (("kernel", KERNEL[:, :2]), ("recurrent_kernel", np.zeros((2, 2), np.float32)))
    }
    data = written({"class_name": "Sequential", "config": layers}, {"both": weights}, cut=cut)
    x = np.array([[[1, 2, 3], [3, 2, 1]]], np.float32)
    second = np.ones((2, 2), np.float32)
    behind = x[0, 1] @ (KERNEL[:, :2] + 1)
    before = x[0, 0] @ (KERNEL[:, :2] + 1) + behind @ second
    wanted = np.concatenate([x[0] @ KERNEL[:, :2], np.stack([before, behind])], axis=1)
    np.testing.assert_allclose(library(detect.read_model_data(data, "m.h5"))(x)[0], wanted, rtol=1e-6)


def test_code_is_not_run() -> None:
    layers = [
        layer("InputLayer", "x", batch_input_shape=[1, 3]),
        layer("Lambda", "mine", function=["4wEAAA==", None, None]),
    ]
    data = written({"class_name": "Sequential", "config": {"name": "m", "layers": layers}}, {})
    with pytest.raises(UnsupportedError, match="Lambda") as caught:
        detect.read_model_data(data, "m.h5")
    assert "code in a model is not run" in caught.value.hint


def test_files_without_a_model() -> None:
    data = io.BytesIO()
    with h5py.File(data, "w") as file:
        file["dense/kernel"] = KERNEL
    with pytest.raises(ModelError, match="expected a whole Keras model"):
        detect.read_model_data(data.getvalue(), "weights.h5")


def test_keras_is_not_asked_to_load_it(tmp_path: Any) -> None:
    """It has no safe mode for such files."""
    import microc

    path = tmp_path / "m.h5"
    path.write_bytes(functional())
    assert read_symbolic_input_shapes(path) == {"x": ("x:0", 3)}
    with pytest.raises(ToolError, match="safe mode"):
        microc.verify(path)


@pytest.mark.parametrize(
    ("path", "said"), [("norm/gamma:0", "expected"), ("second/kernel:0", "expected"), ("first/kernel:0", "expected")]
)
def test_missing_weights(path: str, said: str) -> None:
    data = functional().replace(path.encode(), path.replace(":0", ":9").replace("/", "_").encode())
    with pytest.raises(ModelError):
        detect.read_model_data(data, "m.h5")


def test_damaged_files() -> None:
    outcomes = survey(lambda data: reader.read_keras(data, "m.h5", {}), functional(), 200, seed=9)
    assert outcomes["ModelError"] > 50
