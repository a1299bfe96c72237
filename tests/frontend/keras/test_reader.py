# SPDX-License-Identifier: Apache-2.0
"""Keras 3 files, compiled, against Keras. The reader needs h5py only; the tests make their files with Keras on PyTorch."""

from __future__ import annotations

import inspect
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError, UsageError
from microc.frontend.keras import file as keras_file
from microc.frontend.keras import reader
from microc.frontend.signature import REQUIRED
from microc.graph.ir import Graph
from microc.ops.matrix.gemm import recover_quantised_weights
from tests.frontend.mutate import survey
from tests.frontend.run import library
from tests.support.growth import network_size

pytest.importorskip("h5py", reason="needs h5py (pip install microc[keras])")
pytest.importorskip("torch", reason="Keras runs on PyTorch here")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="needs Keras, to make models")
layers = keras.layers

BOUND = 2e-5
"""Sums of float32 in another order than the backend's, relative above one and absolute below."""


def saved(model: Any, folder: Path) -> bytes:
    path = folder / "model.keras"
    model.save(path)
    return path.read_bytes()


def unsettled(model: Any) -> Any:
    """Weights that are not those of new layers: biases, statistics and factors matter."""
    rng = np.random.default_rng(0)
    model.set_weights([w + rng.uniform(0.05, 0.5, w.shape).astype(w.dtype) for w in model.get_weights()])
    return model


def compare(model: Any, folder: Path, *inputs: Array) -> None:
    """The compiled file gives what the model gives."""
    unsettled(model)
    graph = reader.read_keras(saved(model, folder), "model.keras", {"*": inputs[0].shape} if len(inputs) == 1 else {})
    wanted = model.predict(list(inputs) if len(inputs) > 1 else inputs[0], verbose=0)
    if isinstance(wanted, dict):
        wanted = [wanted[name] for name in graph.outputs]
    wanted = wanted if isinstance(wanted, list) else [wanted]
    found = library(graph)(*inputs)
    for got, want in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=BOUND, atol=BOUND)


def data(*shape: int) -> Array:
    return np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)


def sequential(shape: tuple[int, ...], *parts: Any) -> Any:
    return keras.Sequential([keras.Input(shape), *parts])


def test_an_image_network(tmp_path: Path) -> None:
    parts = (
        layers.ZeroPadding2D(((1, 0), (2, 1))), layers.Conv2D(8, 3, strides=2, padding="same", activation="relu"),
        layers.BatchNormalization(), layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2), layers.ReLU(6.0),
        layers.SeparableConv2D(6, 3, padding="same", activation="silu"), layers.MaxPooling2D(), layers.Dropout(0.5),
        layers.Conv2DTranspose(4, 3, strides=2, padding="same"), layers.LeakyReLU(), layers.UpSampling2D(2),
        layers.Cropping2D(1), layers.AveragePooling2D(2), layers.Conv2D(4, 3, groups=2, dilation_rate=2, padding="same"),
        layers.Flatten(), layers.Dense(5, activation="softmax"),
    )  # fmt: skip
    compare(sequential((12, 12, 3), *parts), tmp_path, data(2, 12, 12, 3))


def test_a_graph_of_layers(tmp_path: Path) -> None:
    """Branches, a model inside, a layer that is called twice, arithmetic, two inputs and two outputs."""
    image, extra = keras.Input((6, 6, 2), name="image", batch_size=1), keras.Input((4,), name="extra", batch_size=1)
    x = layers.Conv2D(4, 3, padding="same", name="renamed")(image)
    y = layers.BatchNormalization()(x)
    x = layers.Concatenate()([layers.Add()([x, y]), layers.Multiply()([x, y]), layers.Average()([x, y])])
    x = layers.GlobalAveragePooling2D()(x)
    shared = layers.Dense(4, activation="tanh")
    z = shared(extra)
    z = shared(z) * 2.0 + 1.0
    inside = keras.Sequential([layers.Dense(7, activation="gelu"), layers.Dense(4)], name="inside")
    x = layers.Subtract()([inside(x), z])
    outputs = {"scores": layers.Softmax()(x), "norm": layers.LayerNormalization()(x)}
    compare(keras.Model([image, extra], outputs), tmp_path, data(1, 6, 6, 2), data(1, 4))


def test_attention(tmp_path: Path) -> None:
    """Of a sequence to itself, to another one, to the past, with other widths of values; heads that share keys."""
    image, other = keras.Input((7, 6)), keras.Input((5, 4))
    x = layers.MultiHeadAttention(3, 4)(image, image)
    x = layers.LayerNormalization()(layers.Add()([x, image]))
    x = layers.MultiHeadAttention(2, 5, value_dim=3, output_shape=8)(x, other, key=layers.Dense(4)(other))
    x = layers.MultiHeadAttention(1, 3, use_bias=False)(x, x, use_causal_mask=True)
    x = layers.GroupQueryAttention(3, 4, 2)(x, x)
    keys, values = layers.Dense(4)(other), layers.Dense(3)(other)
    y = layers.Attention(use_scale=True)([layers.Dense(4)(x), values, keys])
    compare(keras.Model([image, other], [x, y]), tmp_path, data(1, 7, 6), data(1, 5, 4))


@pytest.mark.parametrize(
    ("equation", "shape", "bias_axes"),
    [
        ("abc,cd->abd", (None, 5), "d"),
        ("abc,cde->abde", (None, 2, 3), "de"),
        ("abc,cde->adbe", (2, None, 3), "e"),
        ("abc,bcd->ad", (5,), None),
        ("abc,cd->abd", (4, 5), "bd"),
        ("...x,xy->...y", (5,), "y"),
        ("abc,dbc->ad", (5,), "d"),
    ],
)
def test_products_over_labelled_axes(
    equation: str, shape: tuple[int, ...], bias_axes: str | None, tmp_path: Path
) -> None:
    layer = layers.EinsumDense(equation, shape, bias_axes=bias_axes, activation="relu")
    compare(keras.Sequential([keras.Input((4, 3)), layer]), tmp_path, data(1, 4, 3))


def test_a_transformer_becomes_integers() -> None:
    """Heads, norms and products over labelled axes: nothing between the ends is left in floats."""
    x = keras.Input((12, 8))
    y = layers.Dense(16)(x)
    y = layers.LayerNormalization()(layers.Add()([y, layers.MultiHeadAttention(2, 8)(y, y)]))
    h = layers.EinsumDense("abc,cd->abd", (None, 32), bias_axes="d", activation="relu")(y)
    y = layers.LayerNormalization()(layers.Add()([y, layers.Dense(16)(h)]))
    model = keras.Model(x, layers.Dense(5)(layers.GlobalAveragePooling1D()(y)))
    frames = np.random.default_rng(0).normal(size=(60, 12, 8)).astype(np.float32)
    found = microc.quantize(model, frames[:40], evaluate=frames[40:])
    kinds = found.graph.types
    floats = {node.op for node in found.graph.nodes for value in node.outputs if kinds[value].dtype == "float32"}
    assert floats == {"dequantize"}
    assert found.report["outputs"][0]["decibels"] > 28


def refused(layer: Any, folder: Path, *inputs: Any, **kwargs: Any) -> str:
    """What is said of a layer on some inputs."""
    with pytest.raises(UnsupportedError) as error:
        reader.read_keras(saved(keras.Model(list(inputs), layer(*inputs, **kwargs)), folder), "model.keras", {})
    return str(error.value)


def test_other_attention_is_refused_with_words(tmp_path: Path) -> None:
    x, image = keras.Input((7, 6)), keras.Input((5, 7, 6))
    twice = layers.MultiHeadAttention(2, 4)
    for layer, values, kwargs, said in (
        (lambda a, **more: twice(a, a, **more), (x,), {"return_attention_scores": True}, "return_attention_scores"),
        (lambda a: layers.MultiHeadAttention(2, 4)(a, a), (image,), {}, "expected three axes"),
        (lambda a: layers.EinsumDense("abc,bcd->abd", (7, 5))(a), (x,), {}, "equation: "),
        (lambda a: layers.Embedding(9, 4, mask_zero=True)(a), (keras.Input((7,)),), {}, "mask_zero"),
    ):
        assert said in refused(layer, tmp_path, *values, **kwargs)


def test_a_signal_network(tmp_path: Path) -> None:
    parts = (
        layers.Conv1D(6, 3, padding="causal", dilation_rate=2, activation="elu"), layers.MaxPooling1D(2),
        layers.SeparableConv1D(5, 3), layers.PReLU(), layers.Permute((2, 1)), layers.Reshape((-1, 5)),
        layers.GlobalMaxPooling1D(), layers.RepeatVector(3), layers.TimeDistributed(layers.Dense(2, "hard_sigmoid")),
        layers.Rescaling(2.0, -1.0),
    )  # fmt: skip
    compare(sequential((20, 3), *parts), tmp_path, data(2, 20, 3))


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 3), (4, 2), (3, 1)])
def test_transposed_convolutions(padding: str, kernel: int, stride: int, tmp_path: Path) -> None:
    layer = layers.Conv2DTranspose(3, kernel, strides=stride, padding=padding)
    compare(sequential((4, 5, 2), layer), tmp_path, data(1, 4, 5, 2))


@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_recurrent_layers(kind: str, tmp_path: Path) -> None:
    layer = getattr(layers, kind)
    compare(sequential((4, 3), layer(5, return_sequences=True), layer(2)), tmp_path, data(1, 4, 3))


def test_recurrence_both_ways(tmp_path: Path) -> None:
    parts = (
        layers.Bidirectional(layers.GRU(2, reset_after=False, return_sequences=True)),
        layers.Bidirectional(layers.LSTM(3), merge_mode="sum"),
    )
    compare(sequential((4, 3), *parts), tmp_path, data(1, 4, 3))


def test_recurrence_of_a_batch_backwards(tmp_path: Path) -> None:
    """Rows in the order in which they are made, and the last states."""
    x = keras.Input((5, 3), batch_size=2)
    rows, hidden, cell = layers.LSTM(4, go_backwards=True, return_sequences=True, return_state=True)(x)
    graph = keras.Model(x, [rows, hidden, cell])
    compare(graph, tmp_path, data(2, 5, 3))


@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_c_does_not_grow_with_the_number_of_steps(kind: str, tmp_path: Path) -> None:
    sizes = []
    for steps in (8, 80):
        layer = layers.Bidirectional(getattr(layers, kind)(5, return_sequences=True), name="both")
        raw = saved(sequential((steps, 3), layer), tmp_path)
        sizes.append(network_size(reader.read_keras(raw, "model.keras", {"*": (1, steps, 3)})))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("most", [None, 1.25])
@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_relu_with_slope_and_threshold(most: float | None, threshold: float, tmp_path: Path) -> None:
    x = np.linspace(-2, 2, 17, dtype=np.float32).reshape(1, 17)
    compare(sequential((17,), layers.ReLU(most, negative_slope=0.25, threshold=threshold)), tmp_path, x)
    compare(sequential((17,), layers.ReLU(most, threshold=threshold)), tmp_path, x)


def test_words(tmp_path: Path) -> None:
    model = keras.Sequential(
        [keras.Input((6,), dtype="int32"), layers.Embedding(20, 4), layers.GlobalAveragePooling1D()]
    )
    compare(model, tmp_path, np.array([[1, 5, 19, 0, 3, 3]], np.int32))


ACTIVATIONS = (
    "selu",
    "softplus",
    "softsign",
    "silu",
    "mish",
    "gelu",
    "exponential",
    "hard_silu",
    "relu6",
    "leaky_relu",
)


def test_activations(tmp_path: Path) -> None:
    compare(sequential((7,), *(layers.Dense(7, activation=name) for name in ACTIVATIONS)), tmp_path, data(1, 7) / 8)


def test_weights_that_keras_quantised(tmp_path: Path) -> None:
    """They are what they were rounded to, and stay bytes; data, which Keras rounds as well, do not."""
    plain = sequential((96,), layers.Dense(40, activation="relu"), layers.Dense(2, use_bias=False))
    plain.quantize("int8")
    x = np.random.default_rng(1).normal(0, 1, (4, 96)).astype(np.float32)
    graph = reader.read_keras(saved(plain, tmp_path), "model.keras", {"*": x.shape})
    wanted, found = plain.predict(x, verbose=0), library(graph)(x)
    assert np.abs(wanted - found).max() < 0.02 * np.abs(wanted).max()
    assert recover_quantised_weights(next(data for data in graph.consts.values() if data.ndim == 2)) is not None
    words = sequential((3,), layers.Embedding(9, 4))
    words.quantize("int8")
    graph = reader.read_keras(saved(words, tmp_path), "model.keras", {"*": (1, 3)})
    places = np.array([[8, 0, 5]], dtypes.to_numpy(graph.types[graph.inputs[0]].dtype))
    np.testing.assert_allclose(library(graph)(places), words.predict(places, verbose=0), atol=1e-6)


def test_other_ways_of_keras_to_quantise_are_refused(tmp_path: Path) -> None:
    model = sequential((8,), layers.Dense(4))
    model.quantize("int4")
    with pytest.raises(UnsupportedError, match="this quantisation of Keras"):
        reader.read_keras(saved(model, tmp_path), "model.keras", {})


def test_broken_files(tmp_path: Path) -> None:
    """Damaged bytes, and damaged configurations in archives that are whole."""
    raw = saved(sequential((6, 3), layers.Conv1D(4, 3), layers.LSTM(2), layers.Dense(2)), tmp_path)
    survey(lambda data: reader.read_keras(data, "model.keras", {}), raw, 60, seed=1)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}

    def packed(config: bytes) -> Graph:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in {**parts, "config.json": config}.items():
                archive.writestr(name, data)
        return reader.read_keras(file.getvalue(), "model.keras", {})

    outcomes = survey(packed, parts["config.json"], 120, seed=2)
    assert outcomes["ModelError"] + outcomes["UnsupportedError"] > 20


RENAMED = {"Divide": None, "TrueDivide": None, "GroupedQueryAttention": "GroupQueryAttention"}
"""Keras's classes of layers whose own name differs; None for functions on tensors."""
OF_OTHERS = {
    *(("LeakyReLU", name) for name in ("alpha", "negative_slope")),
    *((f"UpSampling{rank}D", "interpolation") for rank in (1, 3)),
    *(("UpSampling1D", "data_format"), ("Cropping1D", "data_format"), ("MultiHeadAttention", "attention_axes")),
    *(("Attention", "use_gate"), ("Attention", "sliding_window"), ("EinsumDense", "bias_axes")),
    *(("LSTM", "reset_after"), ("SimpleRNN", "reset_after")),
}
"""Settings of Keras 2, those that a shared converter has for other layers, and those that are computed if they are None."""


def keras_defaults(name: str) -> dict[str, Any]:
    """Defaults of a layer's settings and of the arguments of its call."""
    kind = getattr(layers, RENAMED.get(name) or name)
    functions = [kind.call, *(base.__init__ for base in kind.__mro__ if base.__module__.startswith("keras.src.layers"))]
    return {p.name: p.default for f in reversed(functions) for p in inspect.signature(f).parameters.values()}


@pytest.mark.parametrize("name", [name for name in reader.CONVERTERS if RENAMED.get(name, name)])
def test_signatures_are_those_of_keras(name: str) -> None:
    defaults = keras_defaults(name)
    for setting in reader.CONVERTERS[name].signature.attributes:
        if (name, setting.name) in OF_OTHERS:
            continue
        default = defaults[setting.name]
        expected = (default, (default,), *([default[:1]] if isinstance(default, tuple) else []))
        if setting.name != "data_format" and setting.default is not REQUIRED:
            assert setting.default in expected


def test_refusals(tmp_path: Path) -> None:
    model = sequential((8, 8, 1), layers.Conv2D(2, 3), layers.RandomCrop(4, 4), layers.Flatten())
    raw = saved(model, tmp_path)
    assert keras_file.is_keras(raw) and not keras_file.is_keras(b"PK\x03\x04 nothing")
    with pytest.raises(UnsupportedError, match="RandomCrop"):
        reader.read_keras(raw, "model.keras", {})
    with pytest.raises(UsageError, match="no input"):
        reader.read_keras(raw, "model.keras", {"sound": (1, 2)})
    with pytest.raises(UsageError, match="does not fit"):
        reader.read_keras(raw, "model.keras", {"*": (1, 2)})
    with pytest.raises(ModelError):
        reader.read_keras(raw[:-200], "model.keras", {})


@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_stateful_layers_go_on(kind: str, tmp_path: Path) -> None:
    """Piece after piece of a sequence; another instance keeps a state of its own, and a reset begins anew."""
    x = keras.Input((3, 4), batch_size=1)
    rows = getattr(layers, kind)(5, stateful=True, return_sequences=True)(x)
    model = unsettled(keras.Model(x, layers.Bidirectional(layers.LSTM(2, stateful=True))(rows)))
    one = library(reader.read_keras(saved(model, tmp_path), "model.keras", {}))
    two, pieces = one.instance(), [data(1, 3, 4) * (k + 1) for k in range(3)]
    wanted = [np.asarray(model.predict(piece, verbose=0)) for piece in pieces]
    for piece, want in zip(pieces, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one(piece)), want, rtol=BOUND, atol=BOUND)
    assert np.abs(wanted[0] - np.asarray(one(pieces[0]))).max() > 1e-3
    one.reset()
    for instance in (one, two):
        np.testing.assert_allclose(np.asarray(instance(pieces[0])), wanted[0], rtol=BOUND, atol=BOUND)


def test_layers_that_normalise_and_fit_images(tmp_path: Path) -> None:
    parts = (layers.GroupNormalization(4), layers.UnitNormalization(), layers.RMSNormalization(), layers.RandomFlip())
    compare(sequential((6, 5, 8), *parts, layers.Resizing(4, 9), layers.CenterCrop(3, 4)), tmp_path, data(1, 6, 5, 8))
    compare(sequential((6, 5, 3), layers.Resizing(9, 4, interpolation="nearest")), tmp_path, data(1, 6, 5, 3))
    parts = (layers.ZeroPadding3D(1), layers.Cropping3D(1), layers.UpSampling3D(2), layers.GlobalAveragePooling3D())
    compare(sequential((4, 4, 4, 2), *parts), tmp_path, data(1, 4, 4, 4, 2))


def test_products_of_operands_in_the_models_order(tmp_path: Path) -> None:
    """The second input is needed first."""
    a, b = keras.Input((4, 3)), keras.Input((3, 5))
    turned = layers.Permute((2, 1))(layers.Permute((2, 1))(b))
    compare(keras.Model([a, b], layers.Dot((2, 1))([a, turned])), tmp_path, data(1, 4, 3), data(1, 3, 5))
    compare(keras.Model([a, b], layers.Dot((1, 2))([a, layers.Dense(4)(b)])), tmp_path, data(1, 4, 3), data(1, 3, 5))


@pytest.mark.filterwarnings("ignore")
def test_whole_models_in_hdf5(tmp_path: Path) -> None:
    image = keras.Input((7, 6))
    x = layers.MultiHeadAttention(3, 4)(image, image)
    inside = keras.Sequential([layers.Dense(5), layers.BatchNormalization(), layers.Dense(6)])
    model = unsettled(keras.Model(image, layers.Bidirectional(layers.LSTM(4))(inside(inside(x)))))
    path, x = tmp_path / "m.h5", data(1, 7, 6)
    model.save(path)
    found = library(reader.read_keras(path.read_bytes(), "m.h5", {}))(x)
    np.testing.assert_allclose(found, model.predict(x, verbose=0), rtol=BOUND, atol=BOUND)
