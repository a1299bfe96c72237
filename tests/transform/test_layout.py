# SPDX-License-Identifier: Apache-2.0
"""Networks with channels first come out with channels last, with few transpositions, and compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.frontend.detect import load_model_file
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.transform import PASSES
from microc.transform.channels_last import channels_last
from microc.transform.pass_context import PassContext, run_passes
from tests.support.corpus import models
from tests.transform.network import Network, check, ops

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def run(net: Network, *outputs: str) -> Graph:
    graph = check(channels_last, net.graph(*outputs), 1e-5)
    assert all(node.attrs.get("layout") in (None, "NHWC") for node in graph.nodes)
    return graph


def moved(graph: Graph) -> list[tuple[int, ...]]:
    """The axes of all transpositions."""
    return [node.attr("axes") for node in graph.nodes if node.op == "transpose"]


def depths(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    """Operators with the shapes they make."""
    return [(node.op, graph.types[node.outputs[0]].shape) for node in graph.nodes]


# ---------------------------------------------------------------- whole networks


def test_a_grey_image_is_not_moved_at_all() -> None:
    net = Network(x=(1, 1, 8, 8))
    value = net.op("relu", net.conv("x", 4))
    value = net.op("max_pool2d", value, kernel=(2, 2), strides=(2, 2), layout="NCHW")
    net.dense(net.flatten(net.op("relu", net.conv(value, 6))), 5)
    assert sorted(ops(run(net))) == sorted(
        ["reshape", "conv2d", "relu", "max_pool2d", "conv2d", "relu", "reshape", "dense"]
    )


def test_a_colour_image_is_moved_once_at_the_start() -> None:
    net = Network(x=(1, 3, 8, 8))
    first = net.op("relu", net.conv("x", 4))
    second = net.op("add", net.conv(net.op("relu", net.conv(first, 4)), 4), first)
    net.dense(net.flatten(net.op("mean", second, axes=(2, 3), keepdims=True)), 5)
    graph = run(net)
    assert moved(graph) == [NHWC] and graph.nodes[0].op == "transpose" and graph.nodes[0].inputs == ("x",)


@pytest.mark.parametrize("batch", [1, 2])
def test_flattening_before_a_dense_layer_costs_nothing(batch: int) -> None:
    """The order is taken up by the columns of the weight, through what stands between."""
    net = Network(x=(batch, 2, 4, 5))
    flat = net.op("relu", net.flatten(net.conv("x", 3)))
    net.dense(net.op("mul", flat, net.random(60)), 4)
    if batch == 1:
        assert moved(run(net)) == [NHWC]
    else:
        assert moved(run(net))[0] == NHWC


def test_quantising_the_input_joins_the_kernel_that_transposes_it() -> None:
    net = Network(x=(1, 3, 4, 4))
    quant = Quant((0.1,), (0,))
    stored = net.op("quantize", "x", scale=quant.scale, zero_point=quant.zero_point, out_dtype="int8", quant=quant)
    weight = net.constant(np.ones((2, 3, 1, 1), np.int8), quant)
    net.op("conv2d", stored, weight, layout="NCHW", quant=quant)
    assert ops(channels_last(net.graph(), PassContext()))[:2] == ["transpose", "quantize"]


def test_squeeze_and_excitation_stays_in_one_order() -> None:
    net = Network(x=(1, 1, 6, 6))
    image = net.conv("x", 8)
    gate = net.op("mean", image, axes=(2, 3), keepdims=True)
    gate = net.op("sigmoid", net.conv(net.op("relu", net.conv(gate, 2, 1, 0)), 8, 1, 0))
    net.conv(net.op("mul", image, gate), 2)
    assert moved(run(net)) == [NCHW]  # two channels at the output, which keeps its shape


def test_a_gate_from_dense_layers_is_turned_round_by_a_reshape() -> None:
    net = Network(x=(1, 1, 6, 6))
    image = net.conv("x", 8)
    gate = net.dense(net.op("mean", image, axes=(2, 3)), 8)
    gate = net.op("reshape", net.op("sigmoid", gate), shape=(1, 8, 1, 1))
    net.conv(net.op("mul", gate, image), 1)
    assert moved(run(net)) == []


def test_concatenation_padding_and_slices_work_in_the_other_order() -> None:
    net = Network(x=(1, 1, 6, 6))
    parts = [net.conv("x", 2), net.conv("x", 3), net.constant(np.ones((1, 2, 6, 6), np.float32))]
    value = net.op("concat", *parts, axis=1)
    value = net.op("pad", value, padding=((0, 0), (1, 0), (0, 2), (3, 0)))
    value = net.op("slice", value, begin=(0, 2, 1, 0), end=(1, 8, 8, 9), strides=(1, 2, 1, 3))
    net.dense(net.flatten(net.op("softmax", value, axis=1)), 3)
    assert moved(run(net)) == []


@pytest.mark.parametrize("op", ["mean", "sum", "max", "min"])
@pytest.mark.parametrize("axes", [(1,), (2,), (-1, -2), (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_reductions_take_the_axes_where_they_are(op: str, axes: tuple[int, ...], keepdims: bool) -> None:
    net = Network(x=(1, 1, 4, 5))
    net.op(op, net.conv("x", 3), axes=axes, keepdims=keepdims)
    graph = run(net)
    assert [node.op for node in graph.nodes].index(op) < 3


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("axis", [2, 3])
def test_indices_of_a_gather_are_not_turned(axis: int, rank: int) -> None:
    """An axis of indices is none of the data's, as where an image grows by its nearest elements."""
    net = Network(x=(1, 1, 6, 5))
    y = net.conv("x", 8)
    places = np.array([0, 0, 1, 1, 2, 2, 3, 4])
    y = net.op("gather", y, net.constant(places.reshape((8,) if rank == 1 else (2, 4))), axis=axis, batch_dims=0)
    if rank == 1:
        net.conv(y, 1)
    assert len(moved(run(net))) == rank - 1


def test_channel_shuffle_moves_channels_only() -> None:
    net = Network(x=(1, 1, 4, 4))
    parted = net.op("reshape", net.conv("x", 6), shape=(1, 2, 3, 4, 4))
    joined = net.op("reshape", net.op("transpose", parted, axes=(0, 2, 1, 3, 4)), shape=(1, 6, 4, 4))
    net.conv(joined, 1)
    assert moved(run(net)) == [(0, 1, 2, 4, 3)]


def test_depth_to_space_moves_each_element_once() -> None:
    net = Network(x=(1, 1, 4, 4))
    parts = net.op("reshape", net.conv("x", 12), shape=(1, 3, 2, 2, 4, 4))
    wide = net.op("reshape", net.op("transpose", parts, axes=(0, 1, 4, 2, 5, 3)), shape=(1, 3, 8, 8))
    net.conv(wide, 1)
    assert len(moved(run(net))) == 1


def test_one_dimension_is_moved_once_at_the_start() -> None:
    net = Network(x=(1, 3, 16))
    value = net.op("pad", "x", padding=((0, 0), (0, 0), (2, 0)))
    for _ in range(2):
        image = net.op("reshape", value, shape=(*net.types[value].shape[:2], 1, net.types[value].shape[2]))
        image = net.op("conv2d", image, net.random(4, net.types[value].shape[1], 1, 3), net.random(4), layout="NCHW")
        flat = net.op("reshape", image, shape=(1, 4, net.types[image].shape[3]))
        value = net.op("pad", net.op("relu", flat), padding=((0, 0), (0, 0), (2, 0)))
    net.dense(net.op("max", value, axes=(2,)), 3)
    graph = run(net)
    assert moved(graph) == [(0, 2, 1)] and graph.nodes[0].inputs == ("x",)


def test_patches_become_rows_without_moving() -> None:
    """A vision transformer's embedding: flatten the pixels, then put the channels last."""
    net = Network(x=(1, 1, 8, 8))
    image = net.op("conv2d", "x", net.random(6, 1, 4, 4), net.random(6), strides=(4, 4), layout="NCHW")
    net.op("transpose", net.op("reshape", image, shape=(1, 6, 4)), axes=(0, 2, 1))
    assert moved(run(net)) == []


def test_images_at_both_ends_keep_their_shapes() -> None:
    net = Network(x=(1, 3, 4, 4))
    net.op("relu", net.conv("x", 2), output="y")
    graph = run(net, "y")
    assert moved(graph) == [NHWC, NCHW] and graph.types["y"].shape == (1, 2, 4, 4)


def test_an_input_used_in_both_orders() -> None:
    net = Network(x=(1, 3, 4, 4))
    net.op("add", net.conv("x", 3), "x", output="y")
    net.op("reshape", "x", shape=(3, 16), output="z")
    graph = run(net, "y", "z")
    assert moved(graph) == [NHWC, NCHW]


def test_an_input_that_is_an_output_too() -> None:
    net = Network(x=(1, 3, 4, 4))
    net.conv("x", 2)
    run(net, net.nodes[-1].outputs[0], "x")


def test_networks_in_the_right_order_stay_as_they_are() -> None:
    net = Network(x=(1, 4, 4, 3))
    net.op("relu", net.conv("x", 2, layout="NHWC"))
    graph = net.graph()
    assert channels_last(graph, PassContext()) is graph


# ---------------------------------------------------------------- single rules

FIRST: dict[str, Any] = {"axes": NCHW}


def image(shape: tuple[int, ...] = (1, 2, 3, 4), **inputs: Any) -> tuple[Network, str]:
    """A network whose input x is transposed."""
    net = Network(x=shape, **inputs)
    return net, net.op("transpose", "x", **FIRST)


def test_elementwise_operators_with_constants() -> None:
    net, value = image()
    for shape in ((4, 1, 1), (3,), (2, 3), (1, 4, 2, 3), ()):
        value = net.op("add", value, net.random(*shape))
    net.op("neg", net.op("transpose", value, axes=NHWC))
    assert ops(run(net)) == ["add"] * 5 + ["neg"]


def test_two_orders_do_not_mix() -> None:
    net = Network(x=(1, 2, 2, 4), y=(1, 2, 2, 4))
    net.op("add", net.op("transpose", "x", axes=NCHW), net.op("transpose", "y", axes=(0, 3, 2, 1)))
    assert ops(run(net)) == ["transpose", "transpose", "add"]
    other = Network(x=(1, 2, 3, 4), y=(1, 4, 2, 3))
    other.op("add", other.op("transpose", "x", axes=NCHW), "y")
    assert ops(run(other)) == ["transpose", "add"]


def test_only_small_operands_are_turned_round() -> None:
    """What is as large as the result would have to be moved."""
    net, value = image((1, 2, 3, 4), gate=(1, 4, 1, 1), row=(1, 1, 1, 3))
    net.op("transpose", net.op("mul", value, "gate"), axes=NHWC)
    assert "transpose" not in ops(run(net))
    second, value = image((1, 2, 3, 4), plane=(1, 1, 2, 3))
    second.op("transpose", second.op("mul", value, "plane"), axes=NHWC)
    assert "transpose" not in ops(run(second))
    third, value = image((1, 2, 3, 4), both=(1, 4, 1, 3))
    third.op("transpose", third.op("mul", value, "both"), axes=NHWC)
    assert ops(run(third)) == ["transpose", "mul", "transpose"]


def test_scales_along_an_axis_follow() -> None:
    quant = Quant((0.5, 0.25), (1, 2), 1)
    net = Network(x=TensorType((1, 3, 3, 2), "int8", Quant((0.5, 0.25), (1, 2), 3)))
    value = net.op("transpose", "x", quant=quant, axes=NCHW)
    real = net.op("dequantize", value, scale=(0.5, 0.25), zero_point=(1, 2), axis=1)
    net.op("neg", net.op("transpose", real, axes=NHWC))
    graph = run(net)
    assert ops(graph) == ["dequantize", "neg"] and graph.nodes[0].attr("axis") == 3


def test_a_quantised_softmax_keeps_its_axis_last() -> None:
    quant = Quant((0.1,), (0,))
    for rounding, order in (("double", ["transpose", "softmax"]), ("even", ["softmax", "transpose"])):
        net = Network(x=TensorType((1, 2, 3, 4), "int8", quant))
        value = net.op("transpose", "x", quant=quant, axes=NCHW)
        net.op("softmax", value, quant=Quant((1 / 256,), (-128,)), axis=-1, rounding=rounding)
        assert ops(channels_last(net.graph(), PassContext())) == order


def test_integers_are_moved_rather_than_floats() -> None:
    quant = Quant((0.1,), (0,))
    net = Network(x=TensorType((1, 2, 3, 4), "int8", quant))
    net.op("transpose", net.op("dequantize", "x", scale=(0.1,), zero_point=(0,)), axes=NCHW)
    assert ops(run(net)) == ["transpose", "dequantize"]


def test_weights_behind_dequantize_are_stored_in_the_new_order() -> None:
    net = Network(x=(1, 1, 4, 4))
    quant = Quant((0.5, 0.25), (0, 0), 0)
    stored = net.constant(np.arange(18, dtype=np.int8).reshape(2, 1, 3, 3), quant)
    weight = net.op("dequantize", stored, scale=quant.scale, zero_point=quant.zero_point, axis=0)
    net.op("mean", net.op("conv2d", "x", weight, layout="NCHW"), axes=(1, 2, 3))
    graph = run(net)
    assert moved(graph) == [] and graph.types[graph.nodes[0].inputs[0]].shape in ((2, 3, 3, 1), (1, 1, 4, 4))


def test_weights_quantised_along_their_columns_are_not_mixed_up() -> None:
    net, value = image()
    weight = net.constant(np.ones((5, 24), np.float32), Quant((1.0,) * 24, (0,) * 24, 1))
    net.op("dense", net.flatten(value), weight)
    assert ops(run(net)) == ["transpose", "reshape", "dense"]


# ---------------------------------------------------------------- real models


def inherent(node: Node, graph: Graph) -> bool:
    """Depth to space (phases of transposed convolutions, too) and the heads of attention move elements by what they mean."""
    source = graph.types[node.inputs[0]].shape
    return len(source) >= 6 or node.inputs[0] in graph.inputs or node.attr("axes") in ((0, 2, 1, 3), (0, 2, 3, 1))


@pytest.mark.corpus
@pytest.mark.parametrize(
    "path",
    models(
        "torch_dscnn*", "torch_espcn*", "torch_lenet*", "torch_mobilenet*", "torch_resnet*", "torch_tcn*", "torch_unet*"
    )
    + models("ortq_dscnn*", "ortq_mobilenet*", "ortq_resnet*", "ortq_tcn*", "onnx2c*", "pulsevad*"),
    ids=lambda path: path.stem,
)
def test_exported_networks_move_their_input_at_most(path: Path) -> None:
    graph = run_passes(load_model_file(path), PASSES, PassContext())
    stray = [node for node in graph.nodes if node.op == "transpose" and not inherent(node, graph)]
    assert not stray, [(str(node.loc), node.attr("axes")) for node in stray]


def test_what_moves_an_input_is_called_by_it() -> None:
    net = Network(x=(1, 3, 8, 8))
    net.op("relu", net.conv("x", 4))
    assert [node.loc.name for node in run(net).nodes if "x" in node.inputs] == ["x"]
