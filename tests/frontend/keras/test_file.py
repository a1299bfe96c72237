# SPDX-License-Identifier: Apache-2.0
"""Keras archives written by hand: what the reader needs of them, without Keras."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.keras import reader
from microc.frontend.keras.file import to_snake_case
from microc.graph import ir
from microc.graph.ir import Graph
from microc.ops.meaning import reference_node_function
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
    found = library(reader.read_keras(archive(layers, weights, named=named), "by_hand.keras", {}))(X)
    np.testing.assert_allclose(found, np.maximum(X @ KERNEL + BIAS, 0) @ KERNEL.T[:, :2] + BIAS[:2], rtol=1e-6)


def test_a_batch_of_rows() -> None:
    data = archive([dense("first")], {"dense": (KERNEL, BIAS)}, named=False)
    rows = np.repeat(X, 3, axis=0)
    found = library(reader.read_keras(data, "by_hand.keras", {"x": (3, 3)}))(rows)
    np.testing.assert_allclose(found, np.maximum(rows @ KERNEL + BIAS, 0), rtol=1e-6)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (
            "elsewhere",
            "the layer reads the output of call 0 of 'elsewhere', expected an output of a layer of the model",
        ),
        ("own", "the layer's inputs depend on its own output, expected layers without a cycle"),
    ],
)
def test_operands_that_no_layer_computes(read: str, text: str) -> None:
    entry = {"class_name": "__keras_tensor__", "config": {"keras_history": [read, 0, 0]}}
    first = {"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [None, 3]}, "inbound_nodes": []}
    last = {**layer("ReLU"), "inbound_nodes": [{"args": [entry], "kwargs": {}}]}
    ends = {"input_layers": ["x", 0, 0], "output_layers": ["own", 0, 0]}
    config = {"class_name": "Functional", "config": {"name": "net", "layers": [first, last], **ends}}
    data = archive([], {}, named=False)
    with pytest.raises(ModelError, match=re.escape(text)):
        reader.read_keras(replace_member(data, "config.json", json.dumps(config)), "by_hand.keras", {})


@pytest.mark.parametrize(
    ("nodes", "ends"),
    [(True, ["own", 0, 0]), ([[None]], ["own", 0, 0]), ([{"args": [], "kwargs": {}}], "own")],
    ids=["no list of calls", "no operand", "a text in place of a key"],
)
def test_calls_of_other_types(nodes: Any, ends: Any) -> None:
    last = {**layer("ReLU"), "inbound_nodes": nodes}
    inputs = {"input_layers": ends, "output_layers": ends}
    config = {"class_name": "Functional", "config": {"name": "net", "layers": [last], **inputs}}
    data = replace_member(archive([], {}, named=False), "config.json", json.dumps(config))
    with pytest.raises(ModelError, match="the configuration is broken"):
        reader.read_keras(data, "by_hand.keras", {})


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("config.json", "[1, 2]", r"the configuration: got \[1, 2\], expected an object of JSON"),
        ("config.json", "{}", "the configuration is broken: the entry 'class_name' is missing"),
        ("model.weights.h5", None, "the archive has no model.weights.h5; got metadata.json, config.json"),
    ],
)
def test_broken_members(name: str, content: str | None, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        reader.read_keras(replace_member(archive([], {}, named=False), name, content), "by_hand.keras", {})


def replace_member(data: bytes, name: str, content: str | None) -> bytes:
    """The archive with another content of a member, or without it."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for member in old.namelist():
            if member != name:
                new.writestr(member, old.read(member))
        if content is not None:
            new.writestr(name, content)
    return made.getvalue()


def test_what_is_missing_or_unknown() -> None:
    with pytest.raises(ModelError, match="weights: got 0 arrays, expected 2"):
        reader.read_keras(archive([dense("first")], {}, named=False), "by_hand.keras", {})
    unknown = [{"class_name": name, "config": {"name": name}} for name in ("Lambda", "Custom")]
    with pytest.raises(UnsupportedError, match="Lambda"):
        reader.read_keras(archive(unknown, {}, named=False), "by_hand.keras", {})
    with pytest.raises(UnsupportedError, match="'sine'"):
        layers = [dense("first", activation="sine")]
        reader.read_keras(archive(layers, {"dense": (KERNEL, BIAS)}, named=False), "by_hand.keras", {})


def small(*layers: dict[str, Any], weights: Mapping[str, tuple[Array, ...]] | None = None) -> Graph:
    """A model of three features whose layers have the settings given."""
    return reader.read_keras(archive(list(layers), weights or {}, named=False), "by_hand.keras", {})


def layer(class_name: str, **config: Any) -> dict[str, Any]:
    return {"class_name": class_name, "config": {"name": "own", **config}}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (layer("Softmax", axis=[0, 1]), "Softmax: axis: got (0, 1), expected one axis"),
        (layer("BatchNormalization", axis=0), "axis: got (0,) of 2 axes, expected the last axis"),
        (layer("LayerNormalization", axis=2), "axis 2 of a tensor of rank 2, expected -2..1"),
        (
            layer("GlobalMaxPooling1D", data_format="channels_first"),
            "data_format is channels_first, expected channels_last",
        ),
        (
            layer("UpSampling1D", size=2, interpolation="bicubic"),
            "interpolation is 'bicubic', expected nearest or bilinear",
        ),
        (layer("Normalization"), "the file contains no mean and variance"),
        (layer("Dot", axes=1), "got 1 operands, expected x, y"),
        (layer("RepeatVector", n="many"), "the configuration is broken: n: got 'many', expected a number"),
        (layer("RepeatVector"), "the configuration is broken: the entry 'n' is missing"),
        (layer("RepeatVector", n=-3), "RepeatVector: n is -3, expected at least 1"),
        (layer("Reshape", target_shape=[None, 3]), "target_shape: got None, expected a number"),
        (layer("ReLU", max_value="6"), "max_value: got '6', expected a number"),
        (layer("TimeDistributed", layer=layer("Lambda")), "layer: Lambda is not supported"),
        (
            layer("Bidirectional", layer=layer("Dense"), merge_mode="sum"),
            "layer: got Dense, expected SimpleRNN, GRU or LSTM",
        ),
        (layer("Bidirectional", layer=layer("LSTM"), merge_mode=None), "merge_mode is 'None', expected concat"),
        (layer("GroupNormalization", groups=2), "expected a divisor of 3"),
    ],
)
def test_refused_settings(config: dict[str, Any], text: str) -> None:
    """Each names the layer's class, the setting, what it is and what it may be."""
    held = {"batch_normalization": (BIAS, BIAS, BIAS, BIAS), "layer_normalization": (BIAS[:3], BIAS[:3])}
    held["group_normalization"] = held["layer_normalization"]
    with pytest.raises(ModelError) as error:
        small(config, weights=held)
    assert text in str(error.value)


def test_arguments_of_a_call_that_no_converter_declares_are_refused() -> None:
    """A mask would change the result; ``training`` would not."""

    def tensor(name: str) -> dict[str, Any]:
        return {"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, 0]}}

    def model(**kwargs: Any) -> bytes:
        first = {"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [None, 3]}, "inbound_nodes": []}
        node = {"args": [tensor("x")], "kwargs": kwargs}
        last = {**layer("Softmax"), "inbound_nodes": [node]}
        config = {"name": "m", "layers": [first, last], "input_layers": [["x", 0, 0]], "output_layers": [["own", 0, 0]]}
        with zipfile.ZipFile(io.BytesIO(archive([], {}, named=False))) as held:
            members = {name: held.read(name) for name in held.namelist()}
        return packed({**members, "config.json": json.dumps({"class_name": "Functional", "config": config}).encode()})

    assert reader.read_keras(model(training=False, mask=None), "m.keras", {}).outputs
    with pytest.raises(UnsupportedError, match="Softmax: argument mask of the call is not supported"):
        reader.read_keras(model(mask=tensor("x")), "m.keras", {})


@pytest.mark.parametrize("invert", [False, True])
def test_normalization_by_settings(invert: bool) -> None:
    """Statistics of each feature, and those of all features, as an array that Keras stores as an object."""
    stored = {"class_name": "__numpy__", "config": {"value": [4.0, 1.0, 0.25], "dtype": "float32"}}
    by_feature = small(layer("Normalization", axis=[-1], mean=[1.0, 2.0, 3.0], variance=stored, invert=invert))
    of_all = small(layer("Normalization", axis=[], mean=1.0, variance=4.0, invert=invert))
    mean, deviation = np.array([1, 2, 3]), np.array([2, 1, 0.5])
    for graph, m, d in ((by_feature, mean, deviation), (of_all, 1, 2)):
        wanted = X * d + m if invert else (X - m) / d
        np.testing.assert_allclose(
            ir.run(graph, {"x": X}, reference_node_function(graph))[graph.outputs[0]], wanted, rtol=1e-6
        )


def test_paths_are_spelled_as_keras_does() -> None:
    names = {
        "Conv2D": "conv2d",
        "DepthwiseConv2D": "depthwise_conv2d",
        "LSTM": "lstm",
        "PReLU": "p_re_lu",
        "ELU": "elu",
    }
    assert {name: to_snake_case(name) for name in names} == names


def edited(change: Callable[[Any], object]) -> bytes:
    """A good archive whose weights' file has been changed."""
    data = archive([dense("first")], {"dense": (KERNEL, BIAS)}, named=False)
    with zipfile.ZipFile(io.BytesIO(data)) as held:
        members = {name: held.read(name) for name in held.namelist()}
    stored = io.BytesIO(members["model.weights.h5"])
    with h5py.File(stored, "r+") as file:
        change(file)
    members["model.weights.h5"] = stored.getvalue()
    return packed(members)


def packed(members: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return data.getvalue()


def replaced(place: str, new: Callable[[Any, str], object]) -> Callable[[Any], object]:
    def change(file: Any) -> None:
        del file[place]
        new(file, place)

    return change


KERNEL_AT = "layers/dense/vars/0"


def virtual(file: Any, place: str) -> None:
    layout = h5py.VirtualLayout((3, 4), "f4")
    layout[:] = h5py.VirtualSource("secret.h5", "x", (3, 4))
    file.create_virtual_dataset(place, layout)


ELSEWHERE: dict[str, Callable[[Any], object]] = {
    "an external link": replaced(KERNEL_AT, lambda f, at: f.__setitem__(at, h5py.ExternalLink("secret.h5", "/x"))),
    "a soft link": replaced(KERNEL_AT, lambda f, at: f.__setitem__(at, h5py.SoftLink("/layers/dense/vars/1"))),
    "a soft link to nowhere": replaced(KERNEL_AT, lambda f, at: f.__setitem__(at, h5py.SoftLink("/nowhere"))),
    "a group that is linked": replaced("layers", lambda f, at: f.__setitem__(at, h5py.ExternalLink("secret.h5", "/"))),
    "a layer that is linked": replaced(
        "layers/dense", lambda f, at: f.__setitem__(at, h5py.ExternalLink("secret.h5", "/layers/dense"))
    ),
    "external storage": replaced(
        KERNEL_AT, lambda f, at: f.create_dataset(at, (3, 4), "f4", external=[("secret.bin", 0, 48)])
    ),
    "a virtual data set": replaced(KERNEL_AT, virtual),
    "an array that is declared, not stored": replaced(
        KERNEL_AT, lambda f, at: f.create_dataset(at, (1 << 20, 1 << 20), "f4", chunks=(64, 64))
    ),
    "an array without elements": replaced(KERNEL_AT, lambda f, at: f.__setitem__(at, h5py.Empty("f4"))),
    "strings": replaced(KERNEL_AT, lambda f, at: f.__setitem__(at, "text")),
    "references": replaced(KERNEL_AT, lambda f, at: f.create_dataset(at, (1,), h5py.ref_dtype)),
    "records": replaced(KERNEL_AT, lambda f, at: f.create_dataset(at, (3,), [("a", "f4"), ("b", "f4")])),
    "a group for an array": replaced(KERNEL_AT, lambda f, at: f.create_group(at)),
    "an array for a group": replaced("layers/dense/vars", lambda f, at: f.__setitem__(at, KERNEL)),
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_weights_that_lie_elsewhere_or_are_no_numbers(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that links speak of is there, and would fit: it is not read."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("secret.h5", "w") as secret:
        secret["x"] = KERNEL
        secret["layers/dense/vars/0"], secret["layers/dense/vars/1"] = KERNEL, BIAS
    Path("secret.bin").write_bytes(KERNEL.tobytes())
    with pytest.raises(ModelError):
        reader.read_keras(edited(ELSEWHERE[how]), "by_hand.keras", {})


def test_one_array_under_many_names_is_read_within_the_budget() -> None:
    def change(file: Any) -> None:
        file.create_dataset("large", (60 << 20,), "u1", chunks=(1 << 20,))
        del file["layers/dense/vars/0"]
        for k in (0, *range(2, 9)):
            file[f"layers/dense/vars/{k}"] = file["large"]

    with pytest.raises(ModelError, match="weights: got more than"):
        reader.read_keras(edited(change), "by_hand.keras", {})


@pytest.mark.parametrize(
    "config", [b"[" * 50_000, b'{"class_name": ' * 3000 + b"1" + b"}" * 3000, b"{", b"[]", b"\xff"]
)
def test_configurations_that_are_none(config: bytes) -> None:
    members = {"metadata.json": b"{}", "config.json": config, "model.weights.h5": b""}
    with pytest.raises(ModelError):
        reader.read_keras(packed(members), "by_hand.keras", {})


def test_an_archive_that_unfolds_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microc.frontend.keras.file.MAX_STORED", 1 << 20)
    members = {"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": bytes(1 << 21)}
    with pytest.raises(ModelError, match="archive: got more than"):
        reader.read_keras(packed(members), "by_hand.keras", {})
