# SPDX-License-Identifier: Apache-2.0
"""What mutation begins with: small networks of many operators in every format, made by the tests' own writers.

Where the corpus of real models lies beside the checkout, its small files are seeds too.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.onnx import reader as onnx_reader
from microc.frontend.tflite import reader as tflite
from microc.graph.file import to_bytes
from tests.frontend.tflite.test_fuzz import MODELS
from tests.frontend.tflite_model import Op, Tensor, constant, model, quantised
from tests.fuzz.onnx_seeds import onnx_models, weights
from tests.ops.oracle import single
from tests.support import corpus, digits

FORMATS = ("tflite", "onnx", "keras", "mcg")
_LARGEST = 20_000  # bytes of a file of the corpus: what is larger compiles for seconds
_SLOW = frozenset({"lstm", "detection"})


@cache
def seeds(kind: str) -> dict[str, bytes]:
    """Files of one format by name."""
    if kind == "tflite":
        made = {name: data for name, data in MODELS.items() if name not in _SLOW}
        return made | _quantised() | _networks() | _real(".tflite")
    if kind == "onnx":
        return onnx_models() | _real(".onnx")
    return _keras() if kind == "keras" else _graphs()


def _real(suffix: str) -> dict[str, bytes]:
    found = [p for p in corpus.models("*") if p.suffix == suffix and p.stat().st_size < _LARGEST]
    own = [digits.INT8] if suffix == ".tflite" else [digits.FLOAT, digits.QDQ]
    return {path.name: path.read_bytes() for path in (*own, *found[:12])}


def _quantised() -> dict[str, bytes]:
    """One operator each on int8 and int16."""
    made = {}
    for dtype, zero, suffix in (("INT8", 3, "int8"), ("INT16", 0, "int16")):
        x, y = quantised("x", (1, 4, 4, 4), 0.05, zero, dtype), quantised("y", (1, 4, 4, 4), 0.07, zero, dtype)
        z = quantised("z", (1, 4, 4, 4), 0.02, zero, dtype)
        half = quantised("y", (1, 2, 2, 4), 0.05, zero, dtype)
        unit = quantised("y", (1, 4, 4, 4), 1 / 256 if dtype == "INT8" else 1 / 32768, -128 if zero else 0, dtype)
        for code, options in (("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions")):
            made[f"{code} {suffix}"] = single(Op(code, ("x", "z"), ("y",), options), (x, z, y))
        same = tuple(quantised(n, (1, 4, 4, 4), 0.05, zero, dtype) for n in "xzy")
        for code in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"):
            made[f"{code} {suffix}"] = single(Op(code, ("x", "z"), ("y",)), same)
        for code in ("QUANTIZE", "RELU", "RELU6", "ABS", "LOGISTIC", "TANH", "HARD_SWISH")[: 7 if zero else 6]:
            out = unit if code in ("LOGISTIC", "TANH") else y
            made[f"{code} {suffix}"] = single(Op(code, ("x",), ("y",)), (x, out))
        made[f"LEAKY_RELU {suffix}"] = single(
            Op("LEAKY_RELU", ("x",), ("y",), "LeakyReluOptions", {"Alpha": 0.1}), (x, y)
        )
        made[f"SOFTMAX {suffix}"] = single(Op("SOFTMAX", ("x",), ("y",), "SoftmaxOptions", {"Beta": 1.0}), (x, unit))
        pool = {"StrideW": 2, "StrideH": 2, "FilterWidth": 2, "FilterHeight": 2, "Padding": 1}
        for code in ("MAX_POOL_2D", "AVERAGE_POOL_2D"):
            made[f"{code} {suffix}"] = single(Op(code, ("x",), ("y",), "Pool2DOptions", pool), (x, half))
        axes = constant("a", np.array([1, 2], np.int32))
        for code in ("MEAN", "SUM", "REDUCE_MAX"):
            out = quantised("y", (1, 4), 0.05, zero, dtype)
            made[f"{code} {suffix}"] = single(Op(code, ("x", "a"), ("y",), "ReducerOptions"), (x, axes, out))
        made[f"CONCATENATION {suffix}"] = single(
            Op("CONCATENATION", ("x", "z"), ("y",), "ConcatenationOptions", {"Axis": 3}),
            (x, quantised("z", x.shape, 0.05, zero, dtype), quantised("y", (1, 4, 4, 8), 0.05, zero, dtype)),
        )
        made |= _layers(x, dtype, zero, suffix)
    x = Tensor("x", (1, 4, 4, 4))
    for code in ("EXP", "SQRT", "RSQRT", "SIN", "LOG", "FLOOR", "ELU", "SQUARE", "ROUND", "CEIL"):
        made[f"{code} float"] = single(Op(code, ("x",), ("y",)), (x, Tensor("y", x.shape)))
    made["TRANSPOSE"] = single(
        Op("TRANSPOSE", ("x", "a"), ("y",)),
        (x, constant("a", np.array([0, 3, 1, 2], np.int32)), Tensor("y", (1, 4, 4, 4))),
    )
    made["STRIDED_SLICE"] = single(
        Op("STRIDED_SLICE", ("x", "a", "b", "c"), ("y",), "StridedSliceOptions", {"BeginMask": 1}),
        (x, *(constant(n, np.array(v, np.int32)) for n, v in (("a", [0, 1, 0, 0]), ("b", [1, 4, 4, 4]), ("c", [1, 1, 2, 1])))
         , Tensor("y", (1, 3, 2, 4))),
    )  # fmt: skip
    return made


def _layers(x: Tensor, dtype: str, zero: int, suffix: str) -> dict[str, bytes]:
    """Layers with weights, per channel and per tensor."""
    wide = "int32" if dtype == "INT8" else "int64"
    scales = (0.01, 0.02, 0.004)

    def layer(code: str, w: Array, axis: int, shape: tuple[int, ...], options: str, fields: dict[str, int]) -> bytes:
        count = w.shape[axis]
        own = tuple(scales[k % 3] for k in range(count))
        tensors = (
            x,
            constant("w", w, scale=own, zero_point=(0,) * count, axis=axis),
            constant("b", weights(count, dtype=wide), scale=tuple(0.05 * s for s in own), zero_point=(0,) * count),
            quantised("y", shape, 0.3, zero, dtype),
        )
        return single(Op(code, ("x", "w", "b"), ("y",), options, fields), tensors)

    strides = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1, "Padding": 0}
    dense = (
        Op("FULLY_CONNECTED", ("x", "w", "b"), ("y",), "FullyConnectedOptions"),
        (
            quantised("x", (2, 9), 0.05, zero, dtype),
            constant("w", weights(5, 9), scale=(0.01,), zero_point=(0,)),
            constant("b", weights(5, dtype=wide), scale=(0.0005,), zero_point=(0,)),
            quantised("y", (2, 5), 0.1, zero, dtype),
        ),
    )
    return {
        f"CONV_2D {suffix}": layer("CONV_2D", weights(3, 3, 3, 4), 0, (1, 4, 4, 3), "Conv2DOptions", strides),
        f"DEPTHWISE {suffix}": layer(
            "DEPTHWISE_CONV_2D", weights(1, 3, 3, 4), 3, (1, 4, 4, 4), "DepthwiseConv2DOptions",
            {**strides, "DepthMultiplier": 1},
        ),
        f"FULLY_CONNECTED {suffix}": single(*dense),
    }  # fmt: skip


def _networks() -> dict[str, bytes]:
    """Some layers one after another, so that fusion, plans and shared memory have work."""
    tensors = (
        quantised("x", (1, 6, 6, 2), 0.05, 3),
        constant("w", weights(4, 3, 3, 2), scale=(0.01,) * 4, zero_point=(0,) * 4),
        constant("b", weights(4, dtype="int32"), scale=(0.0005,) * 4, zero_point=(0,) * 4),
        quantised("c", (1, 6, 6, 4), 0.05, 3),
        quantised("r", (1, 6, 6, 4), 0.05, 3),
        quantised("s", (1, 6, 6, 4), 0.05, 3),
        quantised("p", (1, 3, 3, 4), 0.05, 3),
        constant("n", np.array([1, 36], np.int32)),
        quantised("f", (1, 36), 0.05, 3),
        constant("v", weights(3, 36), scale=(0.02,), zero_point=(0,)),
        quantised("d", (1, 3), 0.05, 3),
        Tensor("y", (1, 3), "INT8", scale=(1 / 256,), zero_point=(-128,)),
    )
    strides = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}
    pool = {"StrideW": 2, "StrideH": 2, "FilterWidth": 2, "FilterHeight": 2}
    ops = (
        Op("CONV_2D", ("x", "w", "b"), ("c",), "Conv2DOptions", strides),
        Op("RELU", ("c",), ("r",)),
        Op("ADD", ("c", "r"), ("s",), "AddOptions"),
        Op("MAX_POOL_2D", ("s",), ("p",), "Pool2DOptions", pool),
        Op("RESHAPE", ("p", "n"), ("f",)),
        Op("FULLY_CONNECTED", ("f", "v", ""), ("d",), "FullyConnectedOptions"),
        Op("SOFTMAX", ("d",), ("y",), "SoftmaxOptions", {"Beta": 1.0}),
    )
    return {"network": model(tensors, ops, ("x",), ("y",))}


def _graphs() -> dict[str, bytes]:
    """Graph files of what the others are read as."""
    read = {name: tflite.read_tflite(data, "seed.tflite") for name, data in (_quantised() | _networks()).items()}
    for name, data in list(onnx_models().items())[:20]:
        read[name] = onnx_reader.read_onnx(data, "seed.onnx", {})
    return {name: to_bytes(graph) for name, graph in read.items()}


def _keras() -> dict[str, bytes]:
    """Keras archives; none where h5py is not installed."""
    try:
        import h5py  # noqa: F401
    except ImportError:
        return {}
    from tests.frontend.keras.test_file import BIAS, KERNEL, archive, dense

    weights = {"dense": (KERNEL, BIAS), "dense_1": (KERNEL.T[:, :2], BIAS[:2])}
    made = {}
    for activation in ("relu", "sigmoid", "softmax", "gelu"):
        layers = [dense("first", activation=activation), dense("second", units=2, activation="linear")]
        made[activation] = archive(layers, weights, named=False)
    for name, config in (
        ("BatchNormalization", {"axis": -1, "epsilon": 0.001, "center": True, "scale": True, "momentum": 0.9}),
        ("Dropout", {"rate": 0.5}),
        ("Reshape", {"target_shape": [2, 2]}),
        ("Activation", {"activation": "tanh"}),
        ("LeakyReLU", {"negative_slope": 0.2}),
    ):
        extra = {"class_name": name, "module": "keras.layers", "config": {"name": "extra", **config}}
        held: dict[str, tuple[Array, ...]] = {"dense": (KERNEL, BIAS)}
        if name == "BatchNormalization":
            held["batch_normalization"] = (BIAS, BIAS, BIAS, np.abs(BIAS))
        made[name] = archive([dense("first"), extra], held, named=False)
    return made
