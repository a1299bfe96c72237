# SPDX-License-Identifier: Apache-2.0
"""Every contradiction in an ONNX file is a ModelError that says where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import MicrocError, ModelError, UnsupportedError
from microc.frontend.onnx import reader as onnx_reader
from tests.frontend.mutate import survey
from tests.frontend.onnx_model import node, onnx, proto, read
from tests.support.corpus import models

ONES = np.ones((4, 3, 3, 3), np.float32)


def f(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def small(*nodes: Any, x: Any = (1, 3, 8, 8), **constants: Array) -> Any:
    return proto(nodes or [node("Conv", ["x", "w"])], {"x": x}, constants or {"w": ONES})


def changed(change: Any, model: Any = None) -> Any:
    """A model after ``change`` was done to it."""
    model = small() if model is None else model
    change(model)
    return model


def mel(bins: int = 8, length: int = 16, rate: int = 8192, low: float = 0.0, high: float = 4096.0) -> Any:
    """A model that is a single MelWeightMatrix."""
    numbers = {"a": np.array(bins), "b": np.array(length), "c": np.array(rate)}
    edges = {"d": np.float32(low), "e": np.float32(high)}
    nodes = (node("MelWeightMatrix", list("abcde"), ["m"]), node("MatMul", ["x", "m"]))
    return small(*nodes, x=(1, 9), **numbers, **{name: np.array(edge) for name, edge in edges.items()})


def weight(**fields: Any) -> Any:
    """A model whose weight tensor has other fields."""

    def change(model: Any) -> None:
        tensor = model.graph.initializer[0]
        for name, value in fields.items():
            if name == "dims":
                tensor.dims[:] = value
            elif name == "float_data":
                tensor.ClearField("raw_data")
                tensor.float_data[:] = value
            else:
                setattr(tensor, name, value)

    return changed(change)


def external(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


def wrong_type(model: Any) -> None:
    attribute = model.graph.node[0].attribute.add(name="group", type=onnx.AttributeProto.FLOAT)
    attribute.f = 1.0


def duplicate_attribute(model: Any) -> None:
    for _ in range(2):
        model.graph.node[0].attribute.add(name="group", type=onnx.AttributeProto.INT, i=1)


def twice_defined_function(model: Any) -> None:
    for _ in range(2):
        model.functions.add(name="Block", domain="local")


def sparse(model: Any) -> None:
    model.graph.sparse_initializer.add()


def no_element_type(model: Any) -> None:
    model.graph.input[0].type.tensor_type.elem_type = 0


def sequence_input(model: Any) -> None:
    model.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1


QUANT = {"s": f(), "z": np.array(0, np.uint8), "neg": -f(), "nan": f() * np.nan}
DENSE = {"w": f(3, 4), "v": f(5)}
BROKEN: dict[str, Any] = {
    "no ONNX model": b"\x08\x01hello",
    "no ONNX graph": b"",
    "opset_import has no version": changed(lambda m: m.opset_import.__delitem__(slice(None))),
    "has the versions 9, 17 of": changed(lambda m: m.opset_import.add(domain="ai.onnx", version=9)),
    "several functions of this name": changed(twice_defined_function),
    "sparse": changed(sparse),
    "stored in 'weights.bin'": changed(external),
    "432 bytes of data for shape": weight(dims=[4, 3, 3, 4]),
    "432 bytes of data": weight(data_type=11),
    "negative extent": weight(dims=[4, -3, 3, 3]),
    "takes .* bytes, expected at most": weight(dims=[1 << 40, 1 << 40]),
    "3 elements of data": weight(float_data=[1.0, 2.0, 3.0]),
    "a tensor of rank 40": weight(dims=[1] * 40),
    "dtype string is not supported": weight(data_type=8),
    "dtype number 99 is not supported": weight(data_type=99),
    "an initialiser has no name": weight(name=""),
    "value 'w': used before it is defined": weight(name="other"),
    "two initialisers have this name": changed(lambda m: m.graph.initializer.add().CopyFrom(m.graph.initializer[0])),
    "'group' is not an integer": changed(wrong_type),
    "'group' is given twice": changed(duplicate_attribute),
    "element type is undefined": changed(no_element_type),
    "of type sequence_type, expected a tensor": changed(sequence_input),
    "value 'loop': used before it is defined": small(node("Add", ["x", "loop"], ["t"]), node("Relu", ["t"], ["loop"])),
    "value 'y': defined twice": small(node("Relu", ["x"]), node("Abs", ["x"])),
    "value 'w': both an initialiser and an output": small(node("Relu", ["x"], ["w"]), w=ONES),
    "value 'x': defined twice": small(node("Relu", ["x"], ["x"])),
    "output 'y': listed twice": proto([node("Relu", ["x"])], {"x": (2,)}, outputs=["y", "y"]),
    "value 'nothing': used": proto([node("Relu", ["x"])], {"x": (2,)}, outputs=["nothing"]),
    "input 1 is missing": small(node("Conv", ["x"])),
    "no output with a name": small(node("Relu", ["x"], [""])),
    "data of shape .* and weights of shape": small(node("Conv", ["x", "w"]), x=(3, 8, 8), w=ONES),
    "group 2 and weights": small(node("Conv", ["x", "w"], group=2), w=ONES),
    "group 0 and weights": small(node("Conv", ["x", "w"], group=0), w=ONES),
    "kernel_shape is .2, 2. for weights": small(node("Conv", ["x", "w"], kernel_shape=[2, 2]), w=ONES),
    "strides is": small(node("Conv", ["x", "w"], strides=[0, 1]), w=ONES),
    "pads is": small(node("Conv", ["x", "w"], pads=[0, -1, 0, 0]), w=ONES),
    "auto_pad is 'SOME'": small(node("Conv", ["x", "w"], auto_pad="SOME"), w=ONES),
    "a window of 21 elements": small(node("Conv", ["x", "w"], dilations=[10, 1]), w=ONES),
    "bias: got shape": small(node("Conv", ["x", "w", "b"]), w=ONES, b=f(3)),
    "got a computed tensor": small(node("Reshape", ["x", "x"]), w=ONES),
    "takes 13194139533312 bytes": small(node("MaxPool", ["x"], kernel_shape=[1, 1]), x=(1, 3, 1 << 20, 1 << 20)),
    "kernel_shape is .0, 1. for data": small(node("MaxPool", ["x"], kernel_shape=[0, 1])),
    "attribute 'kernel_shape' is missing": small(node("MaxPool", ["x"])),
    "matrices of shapes": small(node("MatMul", ["x", "w"]), x=(2, 7), **DENSE),
    "input 2 has shape": small(node("Gemm", ["x", "x", "c"]), x=(3, 3), c=f(1, 3, 3)),
    "do not broadcast": small(node("PRelu", ["x", "v"]), x=(2, 3), **DENSE),
    "axis 4 of a tensor of rank 4": small(node("Softmax", ["x"], axis=4)),
    "axes: got .1, -3., expected each axis once": small(node("ReduceMean", ["x"], axes=[1, -3])),
    "perm is .* expected each of 0..3 once": small(node("Transpose", ["x"], perm=[0, 1, 1, 2])),
    "cannot become .1, 5.": small(node("Reshape", ["x", "s"]), s=ints(1, 5)),
    "shape: got .-1, -1.": small(node("Reshape", ["x", "s"]), s=ints(-1, -1)),
    "expected axes of extent 1": small(node("Squeeze", ["x", "a"]), a=ints(1)),
    "split: got .1, 1., expected 2 extents": small(node("Split", ["x", "p"], ["y", "z"], axis=1), p=ints(1, 1)),
    "expected a result with elements": small(node("Pad", ["x", "p"]), x=(3,), p=ints(-2, -1)),
    "pads: got .1, 2., expected 8 numbers": small(node("Pad", ["x", "p"]), p=ints(1, 2)),
    "axis 9 of a tensor of rank 8": small(node("Gather", ["x", "i"], axis=2), i=ints(9)),
    "scale: got -1.0, expected a positive number": small(node("QuantizeLinear", ["x", "neg", "z"]), **QUANT),
    "scale: got nan, expected a positive number": small(node("QuantizeLinear", ["x", "nan", "z"]), **QUANT),
    "3 scales along axis 2": small(node("QuantizeLinear", ["x", "s"], axis=2), s=f(3)),
    "the output has dtype float32, expected integers": small(node("QuantizeLinear", ["x", "s", "s"]), **QUANT),
    "concat: operands may differ in their extents along axis 0 only": small(
        node("Concat", ["a", "b"], ["y"], axis=0), a=f(2), b=f(2, 2)
    ),
    "the constant integer divisor contains 0": small(node("Mod", ["a", "b"], ["y"]), a=ints(2), b=ints(0)),
    "takes 1073741824 bytes": small(node("ConstantOfShape", ["a"], ["y"]), a=ints(1 << 14, 1 << 14)),
    "expected 1 or 2 parts": small(node("DFT", ["x"]), x=(1, 8, 3)),
    "dft_length: got 0": small(node("DFT", ["x", "n"]), x=(1, 8, 1), n=np.array(0)),
    "got data of shape .1, 8, 1., expected 2 parts": small(node("DFT", ["x"], inverse=1, onesided=1), x=(1, 8, 1)),
    "got 6 blocks, expected .-2, -3.": small(node("Col2Im", ["x", "i", "b"]), x=(1, 20, 6), i=ints(1, 1), b=ints(4, 5)),
    "takes 6400000000 bytes": small(node("DFT", ["x"]), x=(1, 20_000, 1)),
    "a frame_step of 0": small(node("STFT", ["x", "a", "", "n"]), x=(1, 64, 1), a=np.array(0), n=np.array(8)),
    "frames of 65 for 64 samples": small(
        node("STFT", ["x", "a", "", "n"]), x=(1, 64, 1), a=np.array(4), n=np.array(65)
    ),
    "input 2 has shape .., expected one axis": small(node("STFT", ["x", "a", "w"]), x=(1, 64, 1), a=np.array(4), w=f()),
    "got -5 bins": mel(bins=-5),
    "got 1.09951e[+]12 bins": mel(bins=1 << 40),
    "a dft_length of -9": mel(length=-9),
    "a sample_rate of 0": mel(rate=0),
    "edges of nan": mel(low=float("nan")),
    "upper_edge_hertz is 99000": mel(high=99_000.0),
    "block_shape .0, 5.": small(node("Col2Im", ["x", "i", "b"]), x=(1, 5, 5), i=ints(5, 5), b=ints(0, 5)),
    "strides is .0, 1.": small(
        node("Col2Im", ["x", "i", "b"], strides=[0, 1]), x=(1, 5, 5), i=ints(5, 5), b=ints(1, 5)
    ),
    "block_shape is .5,.": small(node("Col2Im", ["x", "i", "b"]), x=(1, 5, 5), i=ints(5, 5), b=ints(5)),
    "takes 12800000000 bytes": small(
        node("Col2Im", ["x", "i", "b"]), x=(1, 40_000, 1), i=ints(40_000, 1), b=ints(40_000, 1)
    ),
    "bool data": proto([node("Relu", ["x"])], {"x": (2,)}, dtypes={"x": "bool"}),
    "var: got -1.0, expected no negative number": small(
        node("BatchNormalization", ["x", "p", "p", "p", "n"]), p=f(3), n=-f(3)
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_files_are_refused(message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read(BROKEN[message])
    assert "small.onnx" in caught.value.where


def without_axes() -> Any:
    """Resize with an empty list of axes, which the ONNX package does not write."""
    model = small(node("Resize", ["x", "", "", "s"], axes=[0]), s=ints(8))
    del model.graph.node[0].attribute[0].ints[:]
    return model


LP: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
PARAMETERS = {"scale": f(3, 3), "b": f(3), "mean": f(3), "var": f(3)}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            small(node("LpPool", ["x"], kernel_shape=[2])),
            r"kernel_shape is \(2,\) for data of shape \(1, 3, 8, 8\)",
        ),
        (small(node("LpPool", ["x"], **LP, p=0)), "p is 0, expected at least 1"),
        (small(node("GlobalLpPool", ["x"], p=0)), "p is 0, expected at least 1"),
        (
            small(node("MaxUnpool", ["x", "i"], **LP, pads=[0]), i=ints(*range(192)).reshape(1, 3, 8, 8)),
            "expected 4 numbers",
        ),
        (small(node("MaxUnpool", ["x", "i"], kernel_shape=[2]), i=ints(0)), "kernel_shape is"),
        (
            small(node("MaxUnpool", ["x", "i", "s"], **LP), i=ints(*range(192)).reshape(1, 3, 8, 8), s=ints(1, 3, 16)),
            r"output_shape: got \(1, 3, 16\), expected 4 extents",
        ),
        (
            small(node("InstanceNormalization", ["x", "scale", "b"]), scale=f(), b=f(3)),
            "expected one element for each channel",
        ),
        (
            proto(
                [node("QLinearMatMul", ["a", "s", "z", "b", "s", "z", "t", "zero"])],
                {"a": (2, 3), "b": (3, 2), "t": (1,)},
                {"s": f(), "z": np.zeros((), np.int8), "zero": np.zeros((), np.float64)},
                dtypes={"a": "int8", "b": "int8"},
            ),
            "y_zero_point has dtype float64, expected",
        ),
        (without_axes(), r"axes: got \(\), expected at least one axis"),
    ],
)
def test_attributes_and_ranks_that_disagree(model: Any, message: str) -> None:
    """What made Python's own errors when the node tests of ONNX were changed in one attribute or shape."""
    with pytest.raises(ModelError, match=message):
        read(model)


def test_hidden_growth_is_bounded() -> None:
    """A few nodes that double a constant again and again."""
    nodes = [node("Concat", [f"c{k}", f"c{k}"], [f"c{k + 1}"], axis=0) for k in range(60)]
    with pytest.raises(ModelError, match="bytes after folding"):
        read(small(*nodes, c0=f(1 << 10)))


def network() -> bytes:
    """A small network with most kinds of layers, quantised and not."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["r"]),
        node("DequantizeLinear", ["wq", "ws", "wz"], ["w"], axis=0),
        node("Conv", ["r", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Clip", ["c", "low", "high"], ["k"]),
        node("MaxPool", ["k"], ["p"], kernel_shape=[2, 2], ceil_mode=1),
        node("Shape", ["p"], ["shape"]),
        node("Slice", ["shape", "i0", "i1"], ["batch"]),
        node("Concat", ["batch", "m"], ["target"], axis=0),
        node("Reshape", ["p", "target"], ["flat"]),
        node("Gemm", ["flat", "g", "b"], ["e"], transB=1),
        node("ReduceMean", ["e"], ["mean"], axes=[1]),
        node("Sub", ["e", "mean"], ["d"]),
        node("Softmax", ["d"], ["y"], axis=1),
    ]
    constants: dict[str, Array] = {
        "s": f() / 50,
        "z": np.array(100, np.uint8),
        "ws": f(4) / 100,
        "wz": np.zeros(4, np.int8),
    }
    constants |= {"wq": np.arange(108).astype(np.int8).reshape(4, 3, 3, 3), "low": f() * 0, "high": f() * 6}
    constants |= {"i0": ints(0), "i1": ints(1), "m": ints(-1), "g": f(5, 36), "b": f(5)}
    data: bytes = proto(nodes, {"x": (1, 3, 8, 8)}, constants).SerializeToString()
    return data


def test_mutations_of_a_small_model() -> None:
    outcomes = survey(lambda data: onnx_reader.read_onnx(data, "small.onnx", {}), network(), 600, seed=1)
    assert outcomes["Graph"] and outcomes["ModelError"] and outcomes["UnsupportedError"]


def proto_mutations(count: int, seed: int) -> list[bytes]:
    """Variants in which single numbers and names of the message are others: the wire format stays right."""
    rng = np.random.default_rng(seed)
    numbers = [-(1 << 63), -129, -1, 0, 1, 2, 3, 7, 8, 64, 1 << 31, (1 << 63) - 1]
    found = []
    for _ in range(count):
        model = onnx.ModelProto.FromString(network())
        each = model.graph.node[rng.integers(len(model.graph.node))]
        constant = model.graph.initializer[rng.integers(len(model.graph.initializer))]
        number = numbers[rng.integers(len(numbers))]
        match rng.integers(8):
            case 0:
                constant.dims[:] = [number, *constant.dims[1:]]
            case 1:
                constant.data_type = int(rng.integers(24))
            case 2:
                constant.raw_data = rng.bytes(len(constant.raw_data))
            case 3:
                for attribute in each.attribute:
                    attribute.i = number
                    attribute.ints[:] = [number, *attribute.ints[1:]]
            case 4:
                if each.attribute:
                    each.attribute[0].type = int(rng.integers(15))
            case 5:
                other = model.graph.node[rng.integers(len(model.graph.node))]
                each.input[rng.integers(len(each.input))] = (other.output[0], constant.name, "x", "")[rng.integers(4)]
            case 6:
                each.op_type = model.graph.node[rng.integers(len(model.graph.node))].op_type
            case 7:
                model.graph.input[0].type.tensor_type.shape.dim[rng.integers(4)].dim_value = number
        found.append(model.SerializeToString())
    return found


def test_mutations_of_the_message() -> None:
    outcomes = set()
    for data in proto_mutations(1500, seed=2):
        try:
            onnx_reader.read_onnx(data, "small.onnx", {})
            outcomes.add("Graph")
        except ModelError as error:
            assert error.where
            outcomes.add(type(error).__name__)
    assert outcomes == {"Graph", "ModelError", "UnsupportedError"}


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["torch_espcn_sr__legacy_op17", "ortq_mlp_ae_qdq_u8", "torch_tcn_har__legacy_op17"])
def test_mutations_of_real_models(name: str) -> None:
    (path,) = models(f"{name}.onnx")
    outcomes = survey(lambda data: onnx_reader.read_onnx(data, path.name, {}), path.read_bytes(), 120, seed=3)
    assert outcomes["ModelError"]


def test_errors_are_the_users() -> None:
    assert issubclass(UnsupportedError, ModelError) and issubclass(ModelError, MicrocError)
