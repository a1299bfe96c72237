# SPDX-License-Identifier: Apache-2.0
"""Graph passes: a graph before and after one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Quant, TensorType, verify
from microc.graph.text import to_text
from microc.ops import registry
from microc.transform import (
    canonicalise,
    channel_removal,
    channels_last,
    fuse,
    loop_blocking,
    parallel_layers,
    scale_axis,
)
from microc.transform import canonicalise as common_subexpressions
from microc.transform import canonicalise as dead_code
from microc.transform import canonicalise as expand
from microc.transform import canonicalise as fold_constants
from microc.transform import canonicalise as layer_norm
from microc.transform import scale_axis as raw_inputs
from microc.transform.pass_context import Pass, PassContext
from microc.transform.quantised import integer_ranges, legalize, qdq, unary_functions, weight_types
from microc.transform.quantised import legalize as rounding
from microc.transform.quantised import legalize as svdf_layers
from tests.transform.integer_network import IntegerNetwork
from tests.transform.network import Network

SCALE = Quant((0.5,), (3,))
INT8 = TensorType((2, 4), "int8", SCALE)


def dequantized(net: Network, x: str, scale: float = 0.5, zero_point: int = 3) -> str:
    return net.op("dequantize", x, scale=(scale,), zero_point=(zero_point,), axis=None)


def quantized(net: Network, x: str, scale: float = 0.25, zero_point: int = -1, dtype: str = "int8") -> str:
    attrs: dict[str, Any] = {
        "scale": (scale,),
        "zero_point": (zero_point,),
        "axis": None,
        "out_dtype": dtype,
        "rounding": "even",
    }
    return net.op("quantize", x, **attrs)


def qdq_dense(clamped: bool) -> Graph:
    """A dense layer between dequantize and quantize, as ONNX exports them."""
    net = Network(x=TensorType((2, 4), "int8"))
    weight = dequantized(net, net.constant(np.arange(-4, 4, dtype=np.int8).reshape(2, 4)), 0.125, 0)
    made = net.op("dense", dequantized(net, "x"), weight, net.constant(np.zeros(2, np.float32)))
    quantized(net, net.op("relu", made) if clamped else made)
    return net.graph()


def qdq_wide() -> Graph:
    """Activations of 16 bits, a result of 8, and a sum of both."""
    net = Network(x=TensorType((2, 4), "int16"), y=TensorType((2, 2), "int8"))
    weight = dequantized(net, net.constant(np.arange(-4, 4, dtype=np.int8).reshape(2, 4)), 0.125, 0)
    made = net.op("dense", dequantized(net, "x", 0.001, 0), weight, net.constant(np.array([1.0, 1e6], np.float32)))
    same = quantized(net, made, 0.002, 0, "int16")
    quantized(net, net.op("add", dequantized(net, same, 0.002, 0), dequantized(net, "y")))
    return net.graph()


def qdq_sum() -> Graph:
    net = Network(x=TensorType((2, 4), "int8"), y=TensorType((2, 4), "int8"))
    quantized(net, net.op("add", dequantized(net, "x"), dequantized(net, "y", 0.25, 0)))
    return net.graph()


def raw_rows() -> Graph:
    """Bytes, their channels reversed and normalised one by one, before a dense layer."""
    net = Network(x=TensorType((1, 3), "uint8"))
    real = net.op("cast", net.op("reverse", "x", axes=(1,)), dtype="float32")
    centred = net.op("sub", real, net.constant(np.array([[1.0, 2.0, 4.0]], np.float32)))
    scaled = net.op("mul", centred, net.constant(np.array([[0.5, 0.25, 0.125]], np.float32)))
    net.op("dense", scaled, net.constant(np.arange(6, dtype=np.float32).reshape(2, 3)))
    return net.graph()


def quantised_dense(rounding: str = "double", activation: str = "relu") -> Graph:
    net = Network(x=INT8)
    weight = net.constant(np.arange(-6, 6, dtype=np.int8).reshape(3, 4), Quant((0.1, 0.2, 0.3), (0, 0, 0), 0))
    bias = net.constant(np.arange(3, dtype=np.int32), Quant((0.05, 0.1, 0.15), (0, 0, 0), 0))
    net.op("dense", "x", weight, bias, quant=Quant((4.0,), (-2,)), activation=activation, rounding=rounding)
    return net.graph()


def quantised_sum() -> Graph:
    net = Network(x=INT8, y=INT8)
    net.op("add", "x", "y", quant=Quant((1.0,), (0,)), rounding="double")
    return net.graph()


def quantised_table() -> Graph:
    net = Network(x=TensorType((16, 32), "int8", SCALE))
    net.op("tanh", "x", quant=Quant((1 / 128,), (0,)), rounding="double")
    return net.graph()


def quantised_softmax() -> Graph:
    net = Network(x=INT8)
    net.op("softmax", "x", quant=Quant((1 / 256,), (-128,)), axis=-1, beta=1.0, rounding="double")
    return net.graph()


def activations() -> Graph:
    net = Network(x=(1, 4, 4, 2))
    net.op("add", net.conv("x", 2, layout="NHWC", activation="relu6"), "x", activation="tanh")
    return net.graph()


def hybrid_dense() -> Graph:
    net = Network(x=(3, 4))
    weight = dequantized(net, net.constant(np.arange(-4, 4, dtype=np.int8).reshape(2, 4)), 0.02, 0)
    net.op("dense", "x", weight, net.constant(np.zeros(2, np.float32)), dynamic="symmetric")
    return net.graph()


def levels() -> Graph:
    net = Network(x=(8, 4))
    whole = np.array([[-100, 37, 2, 71], [5, 90, -63, 11]], np.int8)
    weight = whole * np.array([[0.02], [0.03]], np.float32)
    net.op("dense", "x", net.constant(weight), net.constant(np.zeros(2, np.float32)))
    return net.graph()


def constants() -> Graph:
    net = Network(x=(3, 2))
    net.op("add", "x", net.op("transpose", net.op("add", net.random(2, 3), net.random(3)), axes=(1, 0)))
    return net.graph()


def batch_normalised() -> Graph:
    net = Network(x=(1, 4, 4, 2))
    scaled = net.op("mul", net.conv("x", 3, layout="NHWC"), net.random(3))
    net.op("add", scaled, net.random(3))
    return net.graph()


def activated_before() -> Graph:
    """Batch normalisation and activation in front of a layer."""
    net = Network(x=(1, 4, 4, 2))
    scaled = net.op("mul", "x", net.constant(np.array([2, 0.5], np.float32)))
    net.conv(net.op("relu", net.op("add", scaled, net.constant(np.array([1, -1], np.float32)))), 3, layout="NHWC")
    return net.graph()


def padded() -> Graph:
    net = Network(x=(1, 4, 4, 2))
    wide = net.op("pad", "x", padding=((0, 0), (1, 1), (1, 1), (0, 0)), value=0.0)
    net.conv(wide, 3, padding=0, layout="NHWC")
    return net.graph()


def views() -> Graph:
    """Transposes that undo each other, reshapes in a row, a sum with nothing."""
    net = Network(x=(2, 3, 4))
    turned = net.op("transpose", net.op("transpose", "x", axes=(2, 0, 1)), axes=(1, 2, 0))
    flat = net.op("reshape", net.op("reshape", turned, shape=(6, 4)), shape=(24,))
    net.op("relu", net.op("add", flat, net.constant(np.zeros(1, np.float32))))
    return net.graph()


def clamps() -> Graph:
    net = Network(x=(4,))
    net.op("clip", net.op("relu", "x"), minimum=-1.0, maximum=3.0)
    return net.graph()


def channels_first() -> Graph:
    net = Network(x=(1, 3, 8, 8))
    pooled = net.op("max_pool2d", net.op("relu", net.conv("x", 4)), kernel=(2, 2), strides=(2, 2), layout="NCHW")
    net.dense(net.flatten(pooled), 2)
    return net.graph()


def integer_layers(weights: list[list[int]], second: list[list[int]]) -> Graph:
    """Two pointwise layers in integers."""
    net = IntegerNetwork(1, x=TensorType((1, 2, 2, len(weights[0])), "int8"))
    pixel = "x"
    for rows in (weights, second):
        array = np.array(rows, np.int8)[:, None, None]
        acc = net.op(
            "conv2d", pixel, net.constant(array), net.constant(np.full(len(rows), 9, np.int32)), out_dtype="int32"
        )
        fixed: dict[str, Any] = {"multiplier": 1 << 30, "shift": -4, "shift_range": (-4, -4), "zero_point": 0}
        fixed |= {"minimum": -128, "maximum": 127, "out_dtype": "int8", "rounding": "double", "bound": -1}
        pixel = net.op("requantize", acc, **fixed, input_zero_point=0)
    return net.graph()


def branches(rows: int) -> Graph:
    """Two layers of one input, each with its scale, that meet again."""
    net = IntegerNetwork(1, x=TensorType((1, rows, 1, 2), "int8"))
    fixed: dict[str, Any] = {"minimum": -128, "maximum": 127, "out_dtype": "int8", "rounding": "double", "bound": 900}
    results = []
    for k, row in enumerate(([1, 2], [3, -4])):
        acc = net.op("conv2d", "x", net.constant(np.array([[[row]]], np.int8)), out_dtype="int32")
        scale: dict[str, Any] = {"multiplier": 1 << 30, "shift": -k, "shift_range": (-k, -k)}
        results.append(net.op("requantize", acc, **fixed, **scale, zero_point=3, input_zero_point=0))
    if rows == 1:
        results = [net.op("max", result, axes=(3,), keepdims=True) for result in results]
    net.op("concat", *results, axis=-1)
    return net.graph()


def rescaled() -> Graph:
    """A product with one, and a clamp behind it."""
    net = Network(x=TensorType((4, 256), "int8"))
    fixed: dict[str, Any] = {"minimum": -128, "maximum": 127, "out_dtype": "int8", "rounding": "double"}
    fixed |= {"multiplier": 1 << 30, "shift": 1, "shift_range": (1, 1), "zero_point": 0, "input_zero_point": 0}
    net.op("clip", net.op("requantize", "x", **fixed, bound=128), minimum=-9, maximum=99, rounding="")
    return net.graph()


def tables() -> Graph:
    net = Network(x=TensorType((4, 256), "int8"))
    table = net.constant(np.arange(-128, 128, dtype=np.int8)[::-1].copy())
    half = net.constant((np.arange(-128, 128) // 2).astype(np.int8))
    net.op("lookup", net.op("lookup", "x", table), half)
    return net.graph()


def normalised_integers() -> Graph:
    """With factors and terms, between integers."""
    net = Network(x=TensorType((2, 4), "int8"))
    made = net.op("layer_norm", dequantized(net, "x"), epsilon=0.25)
    scaled = net.op("mul", made, net.constant(np.array([0.5, 1, -1, 2], np.float32)))
    quantized(net, net.op("add", net.constant(np.array([[0.25]], np.float32)), scaled))
    return net.graph()


def normalised() -> Graph:
    net = Network(x=(2, 12))
    centred = net.op("sub", "x", net.op("mean", "x", axes=(-1,), keepdims=True))
    variance = net.op("mean", net.op("mul", centred, centred), axes=(-1,), keepdims=True)
    root = net.op("sqrt", net.op("add", variance, net.constant(np.float32(1e-5))))
    net.op("div", centred, root)
    return net.graph()


def twice() -> Graph:
    net = Network(x=(4,))
    net.op("add", net.op("exp", "x"), net.op("neg", net.op("exp", "x")))
    return net.graph()


def unread() -> Graph:
    net = Network(x=(4,))
    net.op("exp", "x", output="nobody")
    net.op("neg", "x", output="y")
    return net.graph("y")


def remembering() -> Graph:
    """Four filters of two units, which remember three features each."""
    net = GraphBuilder()
    arrays = (np.ones((4, 2)), np.arange(12).reshape(4, 3), np.ones(2))
    weights = [net.constant("w", array.astype(np.float32)) for array in arrays]
    state = net.state("s", np.arange(12, dtype=np.float32)[None])
    y, new = net.emit_all("svdf", (net.input("x", (1, 2)), *weights, state), {"rank": 2, "activation": "relu"})
    net.update(state, new)
    return net.graph("net", {"y": y})


def viewed() -> Graph:
    net = Network(x=TensorType((2, 4), "int8"))
    net.op("relu", net.op("reshape", dequantized(net, "x"), shape=(8,)))
    return net.graph()


def layer_and_end() -> Graph:
    """A layer, a scaling, and a sum that something else feeds."""
    net = Network(x=(1, 4, 4, 2))
    made = net.op("relu", net.conv("x", 2, layout="NHWC"))
    net.op("tanh", net.op("add", made, net.op("exp", "x")))
    return net.graph()


def sequence() -> Graph:
    """An LSTM of two units over three steps of two sequences."""
    net = GraphBuilder()
    weights = [net.constant("w", np.ones(shape, np.float32)) for shape in ((8, 1), (8, 2))]
    states = [net.state(name, np.zeros((2, 2), np.float32)) for name in ("hidden", "cell")]
    attrs: dict[str, Any] = {"cell_clip": 2.0, "rounding": ""}
    y, *after = net.emit_all("lstm", (net.input("x", (2, 3, 1)), *weights, *states), attrs)
    for state, value in zip(states, after, strict=True):
        net.update(state, value)
    return net.graph("net", {"y": y})


def long_sequence(steps: int) -> Graph:
    """The loop of an LSTM of one unit over steps of three numbers."""
    net = GraphBuilder()
    weights = [net.constant("w", np.ones(shape, np.float32)) for shape in ((4, 3), (4, 1))]
    states = [net.state(name, np.zeros((1, 1), np.float32)) for name in ("hidden", "cell")]
    attrs: dict[str, Any] = {"cell_clip": 0.0, "rounding": ""}
    y, *after = net.emit_all("lstm", (net.input("x", (1, steps, 3)), *weights, *states), attrs)
    for state, value in zip(states, after, strict=True):
        net.update(state, value)
    return expand.expand_composites(net.graph("net", {"y": y}), PassContext())


CASES: Mapping[str, tuple[Pass, Callable[[], Graph], Mapping[str, str | bool]]] = {
    "expand_lstm": (expand.EXPAND_PASS, sequence, {}),
    "blocked_loops": (loop_blocking.LOOP_BLOCKING_PASS, partial(long_sequence, 12), {}),
    "scanned_rows": (loop_blocking.SCAN_IN_PLACE_PASS, partial(long_sequence, 3), {}),
    "rounding_once": (rounding.ROUNDING_PASS, quantised_dense, {"rounding": "single"}),
    "dynamic_range_dense": (weight_types.DYNAMIC_RANGE_PASS, hybrid_dense, {"hybrid": "dynamic"}),
    "qdq_dense": (qdq.PASS, partial(qdq_dense, False), {}),
    "qdq_clamp": (qdq.PASS, partial(qdq_dense, True), {}),
    "qdq_sum": (qdq.PASS, qdq_sum, {}),
    "qdq_wide": (qdq.PASS, qdq_wide, {}),
    "prewidened_weights": (loop_blocking.PREWIDENED_WEIGHTS_PASS, levels, {}),
    "fold_constants": (fold_constants.FOLD_CONSTANTS_PASS, constants, {}),
    "canonicalise_batch_normalisation": (canonicalise.CANONICALISE_PASS, batch_normalised, {}),
    "canonicalise_padding": (canonicalise.CANONICALISE_PASS, padded, {}),
    "canonicalise_views": (canonicalise.CANONICALISE_PASS, views, {}),
    "canonicalise_clamps": (canonicalise.CANONICALISE_PASS, clamps, {}),
    "layout_channels_last": (channels_last.LAYOUT_PASS, channels_first, {}),
    "legalize_dense": (legalize.LEGALIZE_PASS, quantised_dense, {}),
    "legalize_dense_floats": (legalize.LEGALIZE_PASS, partial(quantised_dense, "even", ""), {}),
    "legalize_sum": (legalize.LEGALIZE_PASS, quantised_sum, {}),
    "legalize_table": (legalize.LEGALIZE_PASS, quantised_table, {}),
    "legalize_softmax": (legalize.LEGALIZE_PASS, quantised_softmax, {}),
    "legalize_activations": (legalize.LEGALIZE_PASS, activations, {}),
    "constant_channels": (
        channel_removal.CONSTANT_CHANNELS_PASS,
        partial(integer_layers, [[0, 0], [1, 2]], [[3, 4]]),
        {},
    ),
    "duplicate_channels": (
        channel_removal.DUPLICATE_CHANNELS_PASS,
        partial(integer_layers, [[1, 2], [1, 2]], [[3, 4]]),
        {},
    ),
    "dead_channels": (
        channel_removal.DEAD_CHANNELS_PASS,
        partial(integer_layers, [[k, 1] for k in range(8)], [[5] * 4 + [0] * 4]),
        {},
    ),
    "parallel_layers": (parallel_layers.PASS, partial(branches, 1), {}),
    "parallel_layers_concat": (parallel_layers.PASS, partial(branches, 2), {}),
    "unary_functions_clamp": (unary_functions.PASS, rescaled, {}),
    "unary_functions_tables": (unary_functions.PASS, tables, {}),
    "bounds": (integer_ranges.PASS, partial(integer_layers, [[1, 2]], [[3]]), {}),
    "scale_axis": (scale_axis.PASS, activated_before, {}),
    "raw_scales": (raw_inputs.FOLD_SCALES_PASS, raw_rows, {}),
    "raw_shifts": (raw_inputs.FOLD_SHIFTS_PASS, lambda: raw_inputs.fold_scales(raw_rows(), PassContext()), {}),
    "raw_centred": (raw_inputs.CENTRE_PASS, lambda: raw_inputs.fold_scales(raw_rows(), PassContext()), {}),
    "layer_norm": (layer_norm.LAYER_NORM_PASS, normalised, {}),
    "layer_norm_fixed": (layer_norm.LAYER_NORM_PASS, normalised_integers, {"requantize": "fixed"}),
    "common_subexpressions": (common_subexpressions.COMMON_SUBEXPRESSIONS_PASS, twice, {}),
    "dead_code": (dead_code.DEAD_CODE_PASS, unread, {}),
    "svdf_layers": (svdf_layers.SVDF_LAYERS_PASS, remembering, {}),
    "narrow_views": (channels_last.NARROW_VIEWS_PASS, viewed, {}),
    "fuse_sum": (fuse.PASS, layer_and_end, {}),
    "fuse_layer": (fuse.PASS, partial(integer_layers, [[1, 2]], [[3]]), {}),
}


def _text(name: str) -> str:
    what, make, options = CASES[name]
    before = make()
    verify(before, registry.infer_node_types, "the golden graph")
    after = what.function(before, PassContext(options=options))
    verify(after, registry.infer_node_types, f"pass {what.name}")
    return f"# before {what.name}\n{to_text(before)}\n# after\n{to_text(after)}"


TEXTS: Mapping[str, Callable[[], str]] = {f"passes/{name}.txt": partial(_text, name) for name in CASES}
