# SPDX-License-Identifier: Apache-2.0
"""The TFLite reader on models written here: spelling, types, shapes and names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import UnsupportedError, UsageError
from microc.frontend.tflite import reader as tflite
from microc.frontend.tflite.context import resolve_padding_scheme
from microc.graph.ir import Graph, Quant
from tests.frontend.tflite_model import Op, Subgraph, Tensor, constant, model, quantised

CONV = {"Padding": 0, "StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
Bounds = tuple[int, ...]
RNG = np.random.default_rng(7)


def read(data: bytes, shapes: Mapping[str, tuple[int, ...]] = {}) -> Graph:
    return tflite.read_tflite(data, "small.tflite", shapes)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def int8(*shape: int) -> Array:
    return RNG.integers(-127, 128, shape).astype(np.int8)


def int32(*values: int) -> Array:
    return np.array(values, np.int32)


def small_cnn(batch: int | None = 1) -> bytes:
    """int8: conv, depthwise, average pool, reshape, dense, softmax."""
    unknown = batch is None

    def activation(name: str, *shape: int, scale: float = 0.1, zero_point: int = 3) -> Tensor:
        signature = (-1, *shape) if unknown else ()
        return Tensor(name, (1, *shape), "INT8", scale=(scale,), zero_point=(zero_point,), signature=signature)

    per_channel = {"scale": (0.1, 0.2, 0.3, 0.4), "zero_point": (0,) * 4}
    tensors = [
        activation("x", 9, 8, 2),
        constant("w1", int8(4, 3, 3, 2), **per_channel),
        constant("b1", int32(1, 2, 3, 4), **per_channel),
        activation("c1", 5, 4, 4),
        constant("w2", int8(1, 3, 3, 4), **per_channel, axis=3),
        constant("b2", int32(1, 2, 3, 4), **per_channel, axis=3),
        activation("c2", 3, 2, 4),
        activation("p", 1, 1, 4),
        constant("shape", int32(-1, 4)),
        activation("flat", 4),
        constant("w3", int8(5, 4), scale=(0.01,), zero_point=(0,)),
        activation("d", 5),
        activation("y", 5, scale=1 / 256, zero_point=-128),
    ]
    nodes = [
        Op("CONV_2D", ("x", "w1", "b1"), ("c1",), "Conv2DOptions", CONV | {"StrideH": 2, "StrideW": 2}),
        Op(
            "DEPTHWISE_CONV_2D",
            ("c1", "w2", "b2"),
            ("c2",),
            "DepthwiseConv2DOptions",
            CONV | {"Padding": 1, "DepthMultiplier": 1, "FusedActivationFunction": 3},
        ),
        Op(
            "AVERAGE_POOL_2D",
            ("c2",),
            ("p",),
            "Pool2DOptions",
            {"Padding": 1, "StrideH": 3, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2},
        ),
        Op("RESHAPE", ("p", "shape"), ("flat",)),
        Op("FULLY_CONNECTED", ("flat", "w3", ""), ("d",), "FullyConnectedOptions", {"FusedActivationFunction": 1}),
        Op("SOFTMAX", ("d",), ("y",), "SoftmaxOptions", {"Beta": 1.0}),
    ]
    return model(tensors, nodes, ["x"], ["y"])


def test_int8_network_is_spelled_with_quantisation_on_the_types() -> None:
    graph = read(small_cnn())
    assert graph.name == "small" and graph.inputs == ("x",) and graph.outputs == ("y",)
    assert ops(graph) == ["conv2d", "conv2d", "avg_pool2d", "reshape", "dense", "softmax"]
    conv, depthwise, pool, flat, dense, softmax = graph.nodes
    assert conv.attr("strides") == (2, 2) and conv.attr("padding") == (1, 0, 1, 1) and conv.attr("groups") == 1
    assert conv.attr("rounding") == "double" and conv.attr("layout") == "NHWC" and conv.attr("activation") == ""
    assert depthwise.attr("groups") == 4 and depthwise.attr("activation") == "relu6"
    assert depthwise.attr("padding") == (0, 0, 0, 0) and depthwise.attr("dilation") == (1, 1)
    assert pool.attr("kernel") == (3, 2) and pool.attr("count_include_pad") is False
    assert flat.attr("shape") == (1, 4)
    assert dense.inputs == ("flat", "w3") and dense.attr("activation") == "relu"
    assert softmax.attr("axis") == 1 and softmax.attr("beta") == 1.0
    assert graph.types["c1"].quant == Quant((float(np.float32(0.1)),), (3,))
    assert graph.types["w1"].quant is not None and graph.types["w1"].quant.axis == 0
    assert (conv.loc.file, conv.loc.index, conv.loc.name) == ("small.tflite", 0, "c1")


def test_depthwise_weights_become_one_input_channel_per_group() -> None:
    graph = read(small_cnn())
    weight = graph.nodes[1].inputs[1]
    kind = graph.types[weight]
    assert kind.shape == (4, 3, 3, 1) and kind.quant is not None and kind.quant.axis == 0
    bias = graph.types["b2"].quant
    assert bias is not None and bias.axis == 0, "a bias whose quantised axis is that of the weights"


def test_depth_multiplier_keeps_the_order_of_output_channels() -> None:
    data = RNG.standard_normal((1, 2, 2, 6)).astype(np.float32)
    tensors = [Tensor("x", (1, 4, 4, 3)), constant("w", data), Tensor("y", (1, 4, 4, 6))]
    options = CONV | {"DepthMultiplier": 2}
    graph = read(
        model(tensors, [Op("DEPTHWISE_CONV_2D", ("x", "w"), ("y",), "DepthwiseConv2DOptions", options)], ["x"], ["y"])
    )
    (node,) = graph.nodes
    assert node.attr("groups") == 3
    assert np.array_equal(graph.consts[node.inputs[1]][:, 1, 0, 0], data[0, 1, 0, :])


def test_fewer_weight_channels_than_data_channels_are_groups() -> None:
    tensors = [Tensor("x", (1, 4, 4, 6)), constant("w", np.ones((4, 1, 1, 3), np.float32)), Tensor("y", (1, 4, 4, 4))]
    graph = read(model(tensors, [Op("CONV_2D", ("x", "w"), ("y",), "Conv2DOptions", CONV)], ["x"], ["y"]))
    assert graph.nodes[0].attr("groups") == 2 and graph.nodes[0].inputs == ("x", "w")


@pytest.mark.parametrize("extent", range(1, 12))
@pytest.mark.parametrize(
    ("window", "stride", "dilation"), [(1, 1, 1), (3, 1, 1), (3, 2, 1), (4, 3, 1), (3, 1, 3), (2, 5, 1)]
)
def test_same_padding_covers_ceil_extent_over_stride(extent: int, window: int, stride: int, dilation: int) -> None:
    application = object()
    top, left, bottom, right = resolve_padding_scheme(
        application,  # type: ignore[arg-type]
        0,
        (extent, extent),
        (window, window),
        (stride, stride),
        (dilation, dilation),
    )
    assert (top, bottom) == (left, right) and 0 <= bottom - top <= 1
    span = (window - 1) * dilation + 1
    outputs = -(-extent // stride)
    assert (extent + top + bottom - span) // stride + 1 == outputs or top + bottom == 0
    assert (outputs - 1) * stride + span <= extent + top + bottom


def test_integer_weights_of_a_float_layer_are_dequantised() -> None:
    tensors = [
        Tensor("x", (1, 4, 4, 2)),
        constant("w", int8(3, 1, 1, 2), scale=(0.5, 0.25, 1.0), zero_point=(0, 0, 0)),
        Tensor("y", (1, 4, 4, 3)),
    ]
    graph = read(model(tensors, [Op("CONV_2D", ("x", "w"), ("y",), "Conv2DOptions", CONV)], ["x"], ["y"]))
    assert ops(graph) == ["dequantize", "conv2d"]
    assert graph.nodes[0].attr("scale") == (0.5, 0.25, 1.0) and graph.nodes[0].attr("axis") == 0
    assert graph.types[graph.nodes[1].inputs[1]].dtype == "float32"
    assert "rounding" not in graph.nodes[1].attrs or graph.nodes[1].attr("rounding") in ("", "double")


def test_int4_weights_are_unpacked() -> None:
    tensors = [
        quantised("x", (1, 3), 0.1, 0),
        Tensor("w", (1, 3), "INT4", bytes([0x8F, 0x07]), scale=(0.1,), zero_point=(0,)),
        quantised("y", (1, 1), 0.1, 0),
    ]
    graph = read(model(tensors, [Op("FULLY_CONNECTED", ("x", "w"), ("y",), "FullyConnectedOptions")], ["x"], ["y"]))
    assert graph.consts["w"].tolist() == [[-1, -8, 7]] and graph.types["w"].dtype == "int8"


def test_float16_constants_are_widened() -> None:
    half = np.array([[1.5, -2.0]], np.float16)
    tensors = [constant("h", half), Tensor("w", (1, 2)), Tensor("x", (3, 2)), Tensor("y", (3, 1))]
    nodes = [
        Op("DEQUANTIZE", ("h",), ("w",)),
        Op("FULLY_CONNECTED", ("x", "w"), ("y",), "FullyConnectedOptions"),
    ]
    graph = read(model(tensors, nodes, ["x"], ["y"]))
    assert ops(graph) == ["dense"] and graph.consts["w"].dtype == np.float32
    assert graph.consts["w"].tolist() == [[1.5, -2.0]]


def test_dense_takes_data_of_any_rank() -> None:
    weight = constant("w", np.ones((5, 4), np.float32))

    def dense(shape: tuple[int, ...], out: tuple[int, ...], keep: bool) -> Graph:
        op = Op("FULLY_CONNECTED", ("x", "w"), ("y",), "FullyConnectedOptions", {"KeepNumDims": keep})
        return read(model([Tensor("x", shape), weight, Tensor("y", out)], [op], ["x"], ["y"]))

    assert ops(dense((2, 3, 4), (2, 3, 5), True)) == ["reshape", "dense", "reshape"]
    assert ops(dense((2, 3, 4), (6, 5), False)) == ["reshape", "dense"]
    assert ops(dense((3, 4), (3, 5), True)) == ["dense"]


def test_an_unknown_batch_is_one_unless_bound() -> None:
    data = small_cnn(batch=None)
    assert read(data).types["y"].shape == (1, 5)
    bound = read(data, {"x": (3, 9, 8, 2)})
    assert bound.types["c2"].shape == (3, 3, 2, 4) and bound.types["y"].shape == (3, 5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1,)}, "no input 'z'"),
        ({"x": (1, 9, 8)}, "got 1,9,8, expected"),
        ({"x": (1, 9, 9, 2)}, "got 1,9,9,2, expected"),
        ({"x": (0, 9, 8, 2)}, "got 0,9,8,2, expected"),
    ],
)
def test_input_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(small_cnn(batch=None), shapes)


def test_an_unknown_extent_other_than_the_batch_must_be_given() -> None:
    tensors = [Tensor("x", (1, 1), signature=(1, -1)), Tensor("y", (1, 1), signature=(1, -1))]
    data = model(tensors, [Op("RELU", ("x",), ("y",))], ["x"], ["y"])
    with pytest.raises(UsageError, match=r"1,\?"):
        read(data)
    assert read(data, {"x": (1, 7)}).types["y"].shape == (1, 7)


def test_value_names_are_the_tensors_names_made_unique() -> None:
    names = ["a", "a", "", "a_1", "tab\there"]
    tensors = [Tensor(name, (1,)) for name in names]
    data = model(tensors, [], ["a"], ["a"])
    assert tflite.tensor_names(data) == {0: "a", 1: "a_1", 2: "tensor_2", 3: "a_1_1", 4: "tab_here"}


def test_unsupported_operators_are_listed_at_once() -> None:
    tensors = [Tensor("x", (1, 2)), Tensor("a", (1, 2)), Tensor("b", (1, 2)), Tensor("c", (1, 2))]
    nodes = [
        Op("CUSTOM", ("x",), ("a",), custom="Magic"),
        Op("RELU", ("a",), ("b",)),
        Op("UNIQUE", ("b",), ("c",)),
    ]
    with pytest.raises(UnsupportedError) as caught:
        read(model(tensors, nodes, ["x"], ["c"]))
    text = str(caught.value)
    assert "#0 a CUSTOM:Magic (float32)" in text and "#2 c UNIQUE (float32)" in text and "RELU" not in text
    assert "2 operators" in text and "small.tflite" in text


def test_refusals_of_known_operators_are_listed_at_once() -> None:
    tensors = [quantised("x", (1, 2), 0.1, 0), *(quantised(name, (1, 2), 0.1, 0) for name in "abc")]
    nodes = [
        Op("FLOOR", ("x",), ("a",)),
        Op("ADD", ("a", "x"), ("b",), "AddOptions", {"FusedActivationFunction": 5}),
        Op("SIN", ("b",), ("c",)),
    ]
    with pytest.raises(UnsupportedError) as caught:
        read(model(tensors, nodes, ["x"], ["c"]))
    text = str(caught.value)
    assert (
        "#0 a FLOOR (int8): output: dtype int8 is not supported" in text
        and "#1 b ADD" in text
        and "#2 c SIN (int8)" in text
    )


def test_svdf_memory_is_state_that_starts_at_its_zero_point() -> None:
    tensors = [
        quantised("x", (1, 3), 0.1, 0),
        constant("feature", int8(4, 3), scale=(0.1,), zero_point=(0,)),
        constant("time", np.ones((4, 5), np.int8), scale=(0.1,), zero_point=(0,)),
        constant("bias", int32(1, 2), scale=(0.1,), zero_point=(0,)),
        Tensor("memory", (1, 20), "INT8", scale=(0.1,), zero_point=(7,), variable=True),
        quantised("y", (1, 2), 0.1, -128),
    ]
    options = {"Rank": 2, "FusedActivationFunction": 1}
    op = Op("SVDF", ("x", "feature", "time", "bias", "memory"), ("y",), "SVDFOptions", options)
    graph = read(model(tensors, [op], ["x"], ["y"]))
    (node,) = graph.nodes
    assert node.op == "svdf" and node.attr("rank") == 2 and node.attr("activation") == "relu"
    assert np.array_equal(graph.state["memory"], np.full((1, 20), 7, np.int8))
    assert graph.updates == {"memory": node.outputs[1]}


def variable_model(initial: Array) -> bytes:
    """y = state + x; state = y, the state starting as ``initial``."""
    handle = {"Container": "", "SharedName": "memory"}
    tensors = [
        Tensor("x", (1, 2)),
        Tensor("handle", (), "RESOURCE"),
        Tensor("held", (1, 2)),
        Tensor("y", (1, 2)),
        Tensor("again", (1, 2)),
    ]
    nodes = [
        Op("CALL_ONCE", (), (), "CallOnceOptions", {"InitSubgraphIndex": 1}),
        Op("VAR_HANDLE", (), ("handle",), "VarHandleOptions", handle),
        Op("READ_VARIABLE", ("handle",), ("held",)),
        Op("ADD", ("held", "x"), ("y",), "AddOptions"),
        Op("ASSIGN_VARIABLE", ("handle", "y"), ()),
        Op("READ_VARIABLE", ("handle",), ("again",)),
    ]
    once = Subgraph(
        (Tensor("h", (), "RESOURCE"), constant("zero", initial)),
        (Op("VAR_HANDLE", (), ("h",), "VarHandleOptions", handle), Op("ASSIGN_VARIABLE", ("h", "zero"), ())),
    )
    return model(tensors, nodes, ["x"], ["again"], [once])


def test_resource_variables_are_state() -> None:
    graph = read(variable_model(np.array([[1.0, 2.0]], np.float32)))
    assert ops(graph) == ["add", "reshape"] and graph.nodes[1].inputs == ("y",)
    assert graph.state["held"].tolist() == [[1.0, 2.0]] and graph.updates == {"held": "y"}


def test_strided_slice_is_numpys() -> None:
    shape, data = (5, 6, 7), np.arange(5 * 6 * 7).reshape(5, 6, 7)

    def check(begin: Bounds, end: Bounds, strides: Bounds, masks: dict[str, int], wanted: Array) -> None:
        spec = [constant(name, int32(*values)) for name, values in (("b", begin), ("e", end), ("s", strides))]
        op = Op("STRIDED_SLICE", ("x", "b", "e", "s"), ("y",), "StridedSliceOptions", masks)
        graph = read(model([Tensor("x", shape), *spec, Tensor("y", wanted.shape)], [op], ["x"], ["y"]))
        bounds = (graph.nodes[0].attr(name) for name in ("begin", "end", "strides"))
        part = data[tuple(slice(*axis) for axis in zip(*bounds, strict=True))]
        assert np.array_equal(part.reshape(graph.types["y"].shape), wanted)

    check((1, 0, -3), (-1, 6, 7), (2, 3, 1), {}, data[1:-1:2, 0:6:3, -3:7])
    check((9, 1), (1, 2), (1, 1), {"BeginMask": 1, "EndMask": 2}, data[:1, 1:])
    check((0, -1), (0, 2), (1, 1), {"EllipsisMask": 1, "ShrinkAxisMask": 2}, data[..., -1])
    check((0, 2, 1), (0, 3, 99), (1, 1, 1), {"NewAxisMask": 1, "ShrinkAxisMask": 2}, data[np.newaxis, 2, 1:99])
    check((1, 1, 1), (2, 3, 4), (1, 1, 1), {"Offset": 1}, data[1:3, 1:4, 1:5])


def test_split_and_unpack_are_slices() -> None:
    tensors = [
        constant("axis", int32(-1)),
        constant("sizes", int32(1, -1)),
        Tensor("x", (2, 6)),
        Tensor("a", (2, 3)),
        Tensor("b", (2, 3)),
        Tensor("c", (2, 1)),
        Tensor("d", (2, 2)),
        Tensor("e", (3,)),
        Tensor("f", (3,)),
    ]
    nodes = [
        Op("SPLIT", ("axis", "x"), ("a", "b"), "SplitOptions", {"NumSplits": 2}),
        Op("SPLIT_V", ("a", "sizes", "axis"), ("c", "d"), "SplitVOptions", {"NumSplits": 2}),
        Op("UNPACK", ("b",), ("e", "f"), "UnpackOptions", {"Num": 2, "Axis": 0}),
    ]
    graph = read(model(tensors, nodes, ["x"], ["c", "d", "e", "f"]))
    assert ops(graph) == ["slice"] * 4 + ["slice", "reshape"] * 2
    assert graph.nodes[1].attr("begin") == (0, 3) and graph.nodes[3].attr("end") == (2, 3)


def test_outputs_that_are_inputs_or_repeated_get_copies() -> None:
    data = model([Tensor("x", (2,)), Tensor("y", (2,))], [Op("RELU", ("x",), ("y",))], ["x"], ["x", "y", "y"])
    graph = read(data)
    assert graph.outputs == ("x_copy", "y", "y_copy") and ops(graph) == ["relu", "reshape", "reshape"]


def test_plain_integers_compute_without_quantisation() -> None:
    tensors = [Tensor("x", (2,), "INT32"), constant("one", int32(1)), Tensor("y", (2,), "INT32")]
    graph = read(model(tensors, [Op("ADD", ("x", "one"), ("y",), "AddOptions")], ["x"], ["y"]))
    assert ops(graph) == ["add"] and graph.types["y"].quant is None


def test_pad_fills_with_the_zero_point() -> None:
    tensors = [
        quantised("x", (1, 2), 0.1, 5),
        constant("p", np.array([[0, 0], [1, 2]], np.int32)),
        quantised("y", (1, 5), 0.1, 5),
    ]
    graph = read(model(tensors, [Op("PAD", ("x", "p"), ("y",))], ["x"], ["y"]))
    assert graph.nodes[0].attr("padding") == ((0, 0), (1, 2)) and graph.nodes[0].attr("value") == 5


def test_quantize_and_dequantize_carry_their_parameters() -> None:
    tensors = [
        Tensor("x", (1, 2)),
        quantised("q", (1, 2), 0.5, 3),
        quantised("r", (1, 2), 0.25, 130, "UINT8"),
        Tensor("y", (1, 2)),
    ]
    nodes = [Op("QUANTIZE", ("x",), ("q",)), Op("QUANTIZE", ("q",), ("r",)), Op("DEQUANTIZE", ("r",), ("y",))]
    first, second, third = read(model(tensors, nodes, ["x"], ["y"])).nodes
    assert first.attr("rounding") == "away" and first.attr("scale") == (0.5,) and first.attr("out_dtype") == "int8"
    assert second.op == "quantize" and second.attr("rounding") == "double" and second.attr("out_dtype") == "uint8"
    assert third.attr("zero_point") == (130,)


def test_shapes_computed_at_run_time_are_known_when_compiling() -> None:
    tensors = [
        Tensor("x", (1, 2, 3), signature=(-1, 2, 3)),
        Tensor("s", (3,), "INT32"),
        constant("zero", int32(0)),
        constant("one", int32(1)),
        Tensor("batch", (), "INT32"),
        constant("six", np.array(6, np.int32)),
        Tensor("to", (2,), "INT32"),
        Tensor("y", (1, 6), signature=(-1, 6)),
    ]
    nodes = [
        Op("SHAPE", ("x",), ("s",), "ShapeOptions", {"OutType": 2}),
        Op("STRIDED_SLICE", ("s", "zero", "one", "one"), ("batch",), "StridedSliceOptions", {"ShrinkAxisMask": 1}),
        Op("PACK", ("batch", "six"), ("to",), "PackOptions", {"ValuesCount": 2, "Axis": 0}),
        Op("RESHAPE", ("x", "to"), ("y",), "ReshapeOptions"),
    ]
    data = model(tensors, nodes, ["x"], ["y"])
    assert read(data).types["y"].shape == (1, 6)
    bound = read(data, {"x": (4, 2, 3)})
    assert bound.types["y"].shape == (4, 6) and bound.consts["s"].tolist() == [4, 2, 3]
