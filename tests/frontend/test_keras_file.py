"""Keras archives written by hand: what the reader needs of them, without Keras."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend import keras_reader as reader
from microc.frontend.keras_file import snake_case
from tests.frontend.run import library

h5py = pytest.importorskip("h5py", reason="needs h5py (pip install microc[keras])")

KERNEL = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
BIAS = np.array([1, -1, 0.5, 0], np.float32)
X = np.array([[1, -2, 3]], np.float32)


def dense(name: str, **changes: Any) -> dict[str, Any]:
    config = {"name": name, "units": 4, "activation": "relu", "use_bias": True, **changes}
    return {"class_name": "Dense", "module": "keras.layers", "config": config}


def archive(layers: list[dict[str, Any]], weights: Mapping[str, tuple[Array, ...]], *, named: bool) -> bytes:
    """A sequential model; ``weights`` by the path of the layer, or (``named``) by any path that carries the layer's name."""
    stored = io.BytesIO()
    with h5py.File(stored, "w") as file:
        for number, (name, arrays) in enumerate(weights.items()):
            held = file.create_group(f"layers/{f'anything_{number}' if named else name}/vars")
            if named:
                held.attrs["name"] = name
            for k, array in enumerate(arrays):
                held[str(k)] = array
    first = {"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [None, 3], "dtype": "float32"}}
    config = {"class_name": "Sequential", "config": {"name": "by_hand", "layers": [first, *layers]}}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("metadata.json", "{}")
        file.writestr("config.json", json.dumps(config))
        file.writestr("model.weights.h5", stored.getvalue())
    return data.getvalue()


@pytest.mark.parametrize("named", [False, True])
def test_layers_find_their_weights(named: bool) -> None:
    """Groups are told by their names, in early versions by their classes' names, numbered."""
    names = ("first", "second") if named else ("dense", "dense_1")
    layers = [dense("first"), dense("second", units=2, activation="linear")]
    weights = {names[0]: (KERNEL, BIAS), names[1]: (KERNEL.T[:, :2], BIAS[:2])}
    found = library(reader.read(archive(layers, weights, named=named), "by_hand.keras", {}))(X)
    np.testing.assert_allclose(found, np.maximum(X @ KERNEL + BIAS, 0) @ KERNEL.T[:, :2] + BIAS[:2], rtol=1e-6)


def test_a_batch_of_rows() -> None:
    data = archive([dense("first")], {"dense": (KERNEL, BIAS)}, named=False)
    rows = np.repeat(X, 3, axis=0)
    found = library(reader.read(data, "by_hand.keras", {"x": (3, 3)}))(rows)
    np.testing.assert_allclose(found, np.maximum(rows @ KERNEL + BIAS, 0), rtol=1e-6)


def test_what_is_missing_or_unknown() -> None:
    with pytest.raises(ModelError, match="0 weights, 2 expected"):
        reader.read(archive([dense("first")], {}, named=False), "by_hand.keras", {})
    unknown = [{"class_name": name, "config": {"name": name}} for name in ("Lambda", "Custom")]
    with pytest.raises(UnsupportedError, match="Lambda"):
        reader.read(archive(unknown, {}, named=False), "by_hand.keras", {})
    with pytest.raises(UnsupportedError, match="'sine'"):
        layers = [dense("first", activation="sine")]
        reader.read(archive(layers, {"dense": (KERNEL, BIAS)}, named=False), "by_hand.keras", {})


def test_paths_are_spelled_as_keras_does() -> None:
    names = {
        "Conv2D": "conv2d",
        "DepthwiseConv2D": "depthwise_conv2d",
        "LSTM": "lstm",
        "PReLU": "p_re_lu",
        "ELU": "elu",
    }
    assert {name: snake_case(name) for name in names} == names
