# SPDX-License-Identifier: Apache-2.0
"""Gradients of whole networks: what is refused, what is unrolled, and that the graphs compile like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import UnsupportedError, UsageError
from microc.graph import ir
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.ops.meaning import reference_node_function
from microc.plugin import Case, OpDef, Plugin


def run(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    return ir.run(graph, inputs, reference_node_function(graph))


def draw(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.normal(size=shape) * 0.5).astype(np.float32)


def small_network(rng: np.random.Generator, layout: str = "NHWC") -> Graph:
    """A convolution, a pool and a dense layer over two images."""
    net = microc.GraphBuilder()
    axes = (0, 3, 1, 2) if layout == "NCHW" else (0, 1, 2, 3)
    x = net.input("x", tuple((2, 6, 5, 2)[axis] for axis in axes))
    kernel = net.constant("kernel", draw(rng, 4, 3, 2, 2).transpose(axes))
    bias = net.constant("bias", draw(rng, 4))
    h = net.op("conv2d", x, kernel, bias, padding=(1, 0, 1, 1), strides=(2, 1), activation="relu", layout=layout)
    h = net.op("max_pool2d", h, kernel=(2, 2), strides=(1, 2), layout=layout)
    h = net.reshape(h, (2, net.type(h).size // 2))
    y = net.op("dense", h, net.constant("weight", draw(rng, 3, net.shape(h)[1])), net.constant("offset", draw(rng, 3)))
    return net.graph("small", {"y": net.op("softmax", y)})


PARAMETERS = ("kernel", "bias", "weight", "offset", "x")


def compare_with_differences(trained: Graph, graph: Graph, inputs: dict[str, Array], names: tuple[str, ...]) -> None:
    """Compare the gradients with central differences of the loss along a random direction.

    Results are rounded to float32, which limits differences to three digits; the step is short beside distances to corners."""
    found, rng = run(trained, inputs), np.random.default_rng(1)
    for name in names:
        where = inputs if name in inputs else graph.consts
        direction = rng.normal(size=where[name].shape).astype(np.float32)
        losses = []
        for step in (5e-4, -5e-4):
            moved = {name: (where[name] + step * direction).astype(np.float32)}
            changed = graph if name in inputs else replace(graph, consts={**graph.consts, **moved})
            losses.append(float(run(changed, {**inputs, **(moved if name in inputs else {})})["loss"]))
        expected = (losses[0] - losses[1]) / 1e-3
        assert float((found[f"{name}.gradient"] * direction).sum()) == pytest.approx(expected, rel=2e-2, abs=2e-3), name


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_network_has_the_gradients_of_differences_in_both_layouts(layout: str) -> None:
    rng = np.random.default_rng(0)
    graph = microc.add_loss(small_network(rng, layout), "cross_entropy")
    trained = microc.gradient(graph, "loss", PARAMETERS)
    assert trained.outputs == ("y", "loss", *(f"{name}.gradient" for name in PARAMETERS))
    inputs = {"x": draw(rng, *graph.types["x"].shape), "labels": np.array([2, 0], np.int32)}
    compare_with_differences(trained, graph, inputs, PARAMETERS)


def test_gradients_compile_like_any_other_network() -> None:
    rng = np.random.default_rng(3)
    graph = microc.add_loss(small_network(rng), "cross_entropy")
    trained = microc.gradient(graph, "loss", PARAMETERS)
    inputs = {"x": draw(rng, 2, 6, 5, 2), "labels": np.array([1, 2], np.int32)}
    expected, results = run(trained, inputs), microc.compile(trained)(*inputs.values())
    for name, array in zip(trained.outputs, results, strict=True):
        # Sums of at most 120 products: a rounding of 2**-24 for each, relative to their magnitudes.
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=120 * 2.0**-24)


def test_losses_start_from_logits() -> None:
    """A probability that float32 rounds to zero has an infinite logarithm; the loss of its logit is exact."""
    for kind, function, labels, expected in (
        ("cross_entropy", "softmax", np.array([1], np.int32), 200.0),
        ("binary_cross_entropy", "sigmoid", np.array([[0.0, 1.0]], np.float32), 100.0),
    ):
        net = microc.GraphBuilder()
        graph = microc.add_loss(net.graph("n", {"y": net.op(function, net.input("x", (1, 2)))}), kind)
        x = np.array([[100.0, -100.0]], np.float32)
        found = run(microc.gradient(graph, "loss", "x"), {"x": x, "labels": labels})
        assert float(found["loss"]) == pytest.approx(expected)
        np.testing.assert_allclose(
            found["x.gradient"], [[1.0, -1.0]] if function == "softmax" else [[0.5, -0.5]], rtol=1e-6
        )


def test_mean_squared_error() -> None:
    net = microc.GraphBuilder()
    graph = microc.add_loss(net.graph("n", {"y": net.op("neg", net.input("x", (2, 2)))}), "mean_squared_error")
    x, labels = np.array([[1, 2], [3, 4]], np.float32), np.zeros((2, 2), np.float32)
    found = run(microc.gradient(graph, "loss", ["x"]), {"x": x, "labels": labels})
    assert found["loss"] == 7.5
    np.testing.assert_allclose(found["x.gradient"], x / 2)


@pytest.mark.parametrize(("op", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_recurrent_layers_are_unrolled(op: str, gates: int) -> None:
    rng = np.random.default_rng(5)
    net = microc.GraphBuilder()
    x = net.input("x", (2, 4, 3))
    shapes = {"weights": (gates * 2, 3), "recurrent": (gates * 2, 2), "hidden": (2, 2)}
    shapes |= {"cell": (2, 2)} if op == "lstm" else {}
    operands = [net.constant(name, draw(rng, *shape)) for name, shape in {**shapes, "bias": (gates * 2,)}.items()]
    rows = net.emit_all(op, (x, *operands))[0]
    graph = microc.add_loss(net.graph("rnn", {"y": rows}), "mean_squared_error")
    names = ("weights", "recurrent", "bias", "x", "hidden")
    inputs = {"x": draw(rng, 2, 4, 3), "labels": draw(rng, *graph.types["y"].shape)}
    compare_with_differences(microc.gradient(graph, "loss", names), graph, inputs, names)


def loop_network(rng: np.random.Generator, guarded: bool = False) -> Graph:
    """A hidden state times a matrix, four times, with a constant inside of the loop."""
    body = microc.GraphBuilder()
    body.input("turn", (), "int32")
    h = body.input("h", (1, 3))
    state = body.op("tanh", body.op("dense", h, body.constant("matrix", draw(rng, 3, 3))))
    net = microc.GraphBuilder()
    x = net.input("x", (1, 3))
    attrs: dict[str, Any] = {"body": body.graph("step", {"next": state}), "count": 4, "carried": 1, "guarded": guarded}
    graph = net.graph("loops", {"y": net.op("loop", x, **attrs)})
    return microc.add_loss(graph, "mean_squared_error")


def test_constants_of_a_loop_have_a_gradient() -> None:
    rng = np.random.default_rng(6)
    graph = loop_network(rng)
    with pytest.raises(UsageError, match="there is no value") as raised:
        microc.gradient(graph, "loss", ["matrix"])
    (name,) = [n for n in microc.gradient(graph, "loss", ["x"]).consts if n.endswith(".matrix")]
    assert name in str(raised.value.hint)
    trained = microc.gradient(graph, "loss", [name, "x"])
    inputs = {"x": draw(rng, 1, 3), "labels": draw(rng, 1, 3)}
    unrolled = replace(trained, outputs=("y", "loss")).with_nodes(trained.nodes)
    compare_with_differences(trained, unrolled, inputs, (name, "x"))


def refuse(graph: Graph, of: list[str], error: type[Exception], *parts: str) -> None:
    with pytest.raises(error) as raised:
        microc.gradient(graph, "loss", of)
    assert all(part in str(raised.value) for part in parts), str(raised.value)


def test_names_and_types_are_checked() -> None:
    rng = np.random.default_rng(0)
    graph = microc.add_loss(small_network(rng), "cross_entropy")
    refuse(graph, ["kernl"], UsageError, "there is no value 'kernl'", "kernel")
    refuse(graph, ["labels"], UsageError, "'labels' is no float; got int32")
    refuse(graph, ["bias", "bias"], UsageError, "named once each")
    refuse(graph, [], UsageError, "named once each")
    for loss, said in (("y", "not a single float; got float32 (2, 3)"), ("los", "there is no value 'los'")):
        with pytest.raises(UsageError, match="gradient") as raised:
            microc.gradient(graph, loss, ["bias"])
        assert said in str(raised.value)
    with pytest.raises(UsageError, match=r"a microc\.Graph"):
        microc.gradient("model.onnx", "loss", ["x"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no loss 'entropy'"):
        microc.add_loss(graph, "entropy", "y")
    with pytest.raises(UsageError, match="several outputs"):
        microc.add_loss(graph, "cross_entropy")


def test_a_value_without_influence_is_refused_and_a_flat_one_has_zeros() -> None:
    net = microc.GraphBuilder()
    x, unused = net.input("x", (1, 3)), net.constant("unused", np.ones(3, np.float32))
    net.op("mul", x, unused)
    graph = microc.add_loss(net.graph("n", {"y": net.op("round", x)}), "mean_squared_error")
    refuse(graph, ["unused"], UsageError, "'unused'")
    found = run(microc.gradient(graph, "loss", ["x"]), dict.fromkeys(("x", "labels"), np.ones((1, 3), np.float32)))
    assert not found["x.gradient"].any()


def test_all_operators_without_a_gradient_are_listed() -> None:
    net = microc.GraphBuilder()
    x = net.input("x", (2, 8))
    y = net.op("prod", net.op("cumprod", net.op("cumprod", x, axis=1), axis=1), axes=(1,))
    graph = microc.add_loss(net.graph("n", {"y": y}), "mean_squared_error")
    refuse(graph, ["x"], UnsupportedError, "cumprod (2 times), prod", "OpDef.gradient")
    refuse(loop_network(np.random.default_rng(0)), ["y.gradient"], UsageError, "there is no value")


def test_quantised_operators_are_refused_where_the_gradient_passes_only() -> None:
    quant = Quant((0.1,), (0,))
    types = {
        "x": TensorType((1, 4), "float32"),
        "q": TensorType((1, 4), "int8", quant),
        "r": TensorType((1, 4), "int8", quant),
        "d": TensorType((1, 4), "float32"),
        "w": TensorType((2, 4), "float32"),
        "y": TensorType((1, 2), "float32"),
    }
    graph = Graph("mixed", ("x",), ("y",), (), types, {"w": np.ones((2, 4), np.float32)}).with_nodes(
        [
            Node(
                "quantize",
                ("x",),
                ("q",),
                {"scale": (0.1,), "zero_point": (0,), "axis": None, "out_dtype": "int8", "rounding": "away"},
            ),
            Node("relu", ("q",), ("r",), {"rounding": "double"}),
            Node("dequantize", ("r",), ("d",), {"scale": (0.1,), "zero_point": (0,), "axis": None}),
            Node(
                "dense", ("d", "w"), ("y",), {"activation": "", "algorithm": "", "out_dtype": "", "rounding": "double"}
            ),
        ]
    )
    graph = microc.add_loss(graph, "mean_squared_error")
    refuse(graph, ["x"], UnsupportedError, "a quantised operator has no gradient")
    assert microc.gradient(graph, "loss", ["w", "d"]).outputs[-2:] == ("w.gradient", "d.gradient")


def test_an_operator_of_a_plugin_declares_its_gradient() -> None:
    def define(**more: Any) -> OpDef:
        return OpDef(
            "thrice",
            infer=lambda attrs, types: tuple(types),
            reference=lambda attrs, arrays: (arrays[0] * 3,),
            scalar=lambda attrs, args: args[0] * 3.0,
            cases=lambda: (Case({}, (TensorType((2,), "float32"),)),),
            **more,
        )

    types = {name: TensorType((2,), "float32") for name in ("x", "y")}
    graph = Graph("n", ("x",), ("y",), (Node("thrice", ("x",), ("y",)),), types)
    with_rule = Plugin(operators=(define(gradient=lambda call: (call.gradient * 3.0,)),))
    graph = microc.add_loss(graph, "mean_squared_error")
    trained = microc.gradient(graph, "loss", ["x"], plugins=with_rule)
    assert any(node.op == "mul" for node in trained.nodes)
    with pytest.raises(UnsupportedError, match="operators without a gradient: thrice"):
        microc.gradient(graph, "loss", ["x"], plugins=Plugin(operators=(define(),)))


def test_a_node_that_reads_a_value_twice_sums_both_gradients() -> None:
    net = microc.GraphBuilder()
    x = net.input("x", (1, 3))
    graph = microc.add_loss(net.graph("n", {"y": net.op("mul", x, x)}), "mean_squared_error")
    value = np.array([[1.0, -2.0, 3.0]], np.float32)
    found = run(microc.gradient(graph, "loss", ["x", "y"]), {"x": value, "labels": np.zeros((1, 3), np.float32)})
    np.testing.assert_allclose(found["x.gradient"], 4 * value**3 / 3, rtol=1e-6)
    np.testing.assert_allclose(found["y.gradient"], 2 * value**2 / 3, rtol=1e-6)


def test_the_loss_has_a_gradient_of_one() -> None:
    net = microc.GraphBuilder()
    graph = microc.add_loss(net.graph("n", {"y": net.input("x", (1, 3))}), "mean_squared_error")
    trained = microc.gradient(graph, "loss", ["loss", "x"])
    found = run(trained, dict.fromkeys(("x", "labels"), np.ones((1, 3), np.float32)))
    assert found["loss.gradient"] == 1.0


@pytest.mark.parametrize(("strides", "dilation"), [((1, 1), (1, 1)), ((2, 3), (1, 1)), ((1, 2), (2, 1))])
def test_weights_that_are_computed_have_the_gradients_of_constants(
    strides: tuple[int, int], dilation: tuple[int, int]
) -> None:
    """Their data's gradient is a convolution with the flipped kernel, a transposed one where weights are constant."""
    rng = np.random.default_rng(8)
    weight, found = draw(rng, 4, 3, 2, 1), []
    x, labels = draw(rng, 1, 7, 8, 2), draw(rng, 1, *[1])
    for is_constant in (True, False):
        net = microc.GraphBuilder()
        data = net.input("x", x.shape)
        w = net.constant("w", weight) if is_constant else net.input("w", weight.shape)
        y = net.op("conv2d", data, w, strides=strides, dilation=dilation, padding=(1, 0, 1, 1), groups=2)
        y = net.op("mean", net.op("tanh", y), axes=(1, 2, 3), keepdims=False)
        graph = microc.add_loss(net.graph("conv", {"y": net.reshape(y, (1, 1))}), "mean_squared_error")
        trained = microc.gradient(graph, "loss", ["x", "w"])
        values = run(trained, {"x": x, "labels": labels, **({} if is_constant else {"w": weight})})
        found.append([values[name] for name in ("x.gradient", "w.gradient")])
    for first, second in zip(*found, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("extents", "taps", "strides", "padding"),
    [((1, 2), (1, 2), (3, 1), (1, 0)), ((4, 1), (2, 1), (2, 3), (0, 2)), ((1, 1), (1, 1), (3, 4), (1, 1))],
)
def test_windows_that_read_padding_alone_have_gradients(
    extents: tuple[int, int], taps: tuple[int, int], strides: tuple[int, int], padding: tuple[int, int]
) -> None:
    """No element of the data is in a window along one axis: taps behind the kernel are cut off."""
    rng = np.random.default_rng(12)
    net = microc.GraphBuilder()
    kernel, bias = net.constant("kernel", draw(rng, 2, *taps, 3)), net.constant("bias", draw(rng, 2))
    x = net.input("x", (1, *extents, 3))
    y = net.op("conv2d", x, kernel, bias, strides=strides, padding=(*padding, *padding))
    graph = microc.add_loss(net.graph("padded", {"y": y}), "mean_squared_error")
    inputs = {name: draw(rng, *graph.types[name].shape) for name in graph.inputs}
    names = ("kernel", "bias", "x")
    compare_with_differences(microc.gradient(graph, "loss", names), graph, inputs, names)


@pytest.mark.parametrize("dilation", [(1,), (2,)])
def test_windows_of_one_axis_and_resized_images_have_compiled_gradients(dilation: tuple[int]) -> None:
    """Largest elements are searched again; elements that a table reads twice or never are summed or 0."""
    rng = np.random.default_rng(13)
    net = microc.GraphBuilder()
    x = net.input("x", (1, 2, 9))
    indices = net.constant("indices", np.array([[0, 1], [0, 2], [4, 8], [8, 8], [7, 6]], np.int32))
    weights = net.constant("weights", draw(rng, 5, 2))
    h = net.op("resample", net.op("mul", x, net.constant("scale", draw(rng, 9))), indices, weights, axes=(2,), shift=0)
    windows: dict[str, Any] = {"kernel": (2,), "strides": (1,), "padding": (1, 0), "dilation": dilation}
    y = net.op("add", net.op("window_max", h, **windows), net.op("window_sum", h, **windows))
    graph = microc.add_loss(net.graph("windows", {"y": y}), "mean_squared_error")
    trained = microc.gradient(graph, "loss", ["scale", "x"])
    inputs = {name: draw(rng, *graph.types[name].shape) for name in graph.inputs}
    compare_with_differences(trained, graph, inputs, ("scale", "x"))
    values = run(trained, inputs)
    for name, result in zip(trained.outputs, microc.compile(trained)(*inputs.values()), strict=True):
        np.testing.assert_allclose(result, values[name], rtol=1e-5, atol=1e-6)
    refuse(graph, ["weights"], UnsupportedError, "resample: the gradient of this form", "rewrite it")
