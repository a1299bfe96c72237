# SPDX-License-Identifier: Apache-2.0
"""The ONNX reader on models written here: names, shapes, symbols, constants, and the list of what is not supported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError, UsageError
from microc.frontend.onnx import reader as onnx_reader
from microc.graph.ir import Loc, TensorType
from tests.frontend.onnx_model import evaluate, node, ops, proto, read

RNG = np.random.default_rng(11)


def f(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def test_values_and_locations_keep_the_names_of_the_file() -> None:
    nodes = [node("Conv", ["image", "w", "b"], ["/conv 1"]), node("Relu", ["/conv 1"], ["out"])]
    graph = read(proto(nodes, {"image": (1, 3, 8, 8)}, {"w": f(4, 3, 3, 3), "b": f(4)}, ["out"]))
    conv, relu = graph.nodes
    assert (graph.name, graph.inputs, graph.outputs) == ("small", ("image",), ("out",))
    assert (conv.inputs, conv.outputs, relu.inputs) == (("image", "w", "b"), ("/conv 1",), ("/conv 1",))
    assert (conv.loc, relu.loc) == (Loc("small.onnx", 0, "/CONV 1"), Loc("small.onnx", 1, "OUT"))
    assert conv.attrs["layout"] == "NCHW"
    assert graph.types["/conv 1"].shape == (1, 4, 6, 6)
    assert set(graph.consts) == {"w", "b"}


def test_an_initialiser_listed_as_input_is_a_constant() -> None:
    model = proto([node("Add", ["x", "c"])], {"x": (2,), "c": (2,)}, {"c": f(2)})
    assert read(model).inputs == ("x",)


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ({}, None),
        ({"x": (4, 16)}, (4, 16)),
        ({"*": (2, 5)}, (2, 5)),
        ({"*": (2, 5), "x": (3, 6)}, (3, 6)),
    ],
)
def test_symbolic_extents_are_bound_by_the_caller(
    shapes: dict[str, tuple[int, ...]], found: tuple[int, ...] | None
) -> None:
    model = proto([node("Relu", ["x"])], {"x": ("batch", "time")})
    if found is None:
        with pytest.raises(ModelError, match="not fully known") as caught:
            read(model)
        assert "--input-shape x=" in caught.value.hint
        assert caught.value.where == "small.onnx input 'x'"
    else:
        assert read(model, shapes).types["y"].shape == found


def test_an_unbound_batch_is_one() -> None:
    for batch in ("N", None, 0):
        assert read(proto([node("Relu", ["x"])], {"x": (batch, 3)})).types["x"].shape == (1, 3)


def test_a_symbol_has_one_value_in_all_inputs() -> None:
    model = proto([node("Add", ["x", "c"])], {"x": ("N", 3), "c": ("N", 3)})
    assert read(model, {"c": (5, 3)}).types["x"].shape == (5, 3)


@pytest.mark.parametrize("shapes", [{"x": (2, 3)}, {"x": (3,)}, {"x": (0, 4)}, {"z": (1, 4)}])
def test_shapes_that_do_not_fit_are_the_callers_mistake(shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(UsageError) as caught:
        read(proto([node("Relu", ["x"])], {"x": ("N", 4)}), shapes)
    assert caught.value.where and caught.value.hint


def test_shape_arithmetic_disappears() -> None:
    """What torch writes for x.view(x.shape[0], -1): Shape, Gather, Unsqueeze, Concat, Reshape."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Unsqueeze", ["batch", "axes"], ["batch1"]),
        node("Concat", ["batch1", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"]),
    ]
    constants = {"zero": np.array(0, np.int64), "axes": ints(0), "rest": ints(-1)}
    graph = read(proto(nodes, {"x": ("N", 3, 4)}, constants), {"x": (2, 3, 4)})
    assert ops(graph) == ["reshape"]
    assert graph.types["y"] == TensorType((2, 12), "float32")
    assert not graph.consts


FOLDED = {
    "mul": ([node("Mul", ["a", "b"], ["k"])], ints(2, 6)),
    "floor division": ([node("Div", ["n", "b"], ["k"])], ints(-3, -2)),
    "mod": ([node("Mod", ["n", "b"], ["k"])], ints(1, 1)),
    "reversed slice": ([node("Slice", ["n", "minus1", "lowest", "zero", "minus1"], ["k"])], ints(-5, -7)),
    "where": ([node("Equal", ["a", "b"], ["e"]), node("Where", ["e", "a", "n"], ["k"])], ints(-7, -5)),
    "cast": (
        [node("Cast", ["a"], ["r"], to=1), node("Sqrt", ["r"], ["s"]), node("Cast", ["s"], ["k"], to=7)],
        ints(1, 1),
    ),
    "range": ([node("Range", ["two", "six", "two"], ["k"])], ints(2, 4)),
    "constant of shape": ([node("ConstantOfShape", ["twice"], ["o"]), node("Cast", ["o"], ["k"], to=7)], ints(0, 0)),
    "split": ([node("Split", ["a"], ["", "j"], axis=0), node("Tile", ["j", "twice"], ["k"])], ints(3, 3)),
    "reduce": ([node("ReduceProd", ["a"], ["p"], keepdims=1), node("Expand", ["p", "twice"], ["k"])], ints(3, 3)),
    "constants": ([node("Constant", [], ["k"], value_ints=[4, 5])], ints(4, 5)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_constants_are_computed(name: str) -> None:
    nodes, wanted = FOLDED[name]
    constants = {"a": ints(1, 3), "b": ints(2, 2), "n": ints(-7, -5), "minus1": ints(-1), "zero": ints(0)}
    constants |= {"lowest": ints(-(1 << 63)), "twice": ints(2), "two": np.array(2), "six": np.array(6)}
    model = proto([*nodes, node("Add", ["x", "k"])], {"x": (2,)}, constants, dtypes={"x": "int64", "y": "int64"})
    np.testing.assert_equal(evaluate(read(model), [np.zeros(2, np.int64)])[0], wanted)
    shifted = [*nodes, node("Add", ["k", "hundred"], ["t"]), node("Reshape", ["x", "t"])]
    total = proto(shifted, {"x": tuple(int(e) + 100 for e in wanted)}, {**constants, "hundred": ints(100)})
    assert read(total).types["y"].shape == tuple(wanted + 100)


def test_outputs_that_are_inputs_or_constants_get_copies() -> None:
    nodes = [node("Identity", ["x"], ["y"]), node("Identity", ["c"], ["z"]), node("Dropout", ["y"], ["w"])]
    graph = read(proto(nodes, {"x": (2, 3)}, {"c": f(2)}, ["y", "z", "w", "x"]))
    assert graph.outputs == ("y", "z", "w", "x")
    x = f(2, 3)
    np.testing.assert_equal(evaluate(graph, [x]), [x, graph.consts["c"], x, x])


def test_everything_unsupported_is_listed_at_once() -> None:
    nodes: list[Any] = [
        node("Multinomial", ["x"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Exotic", ["b"], ["c"], domain="org.acme"),
        node("NonZero", ["x"], ["d"]),
        node("Unique", ["e"], ["y"]),
    ]
    with pytest.raises(UnsupportedError) as caught:
        read(proto(nodes, {"x": (2, 1, 3), "e": (1, 1, 8, 8)}))
    what = caught.value.what
    assert "4 operators" in what
    for part in ("#0 A (Multinomial)", "#2 C (org.acme.Exotic)", "#3 D (NonZero)", "#4 Y (Unique)", "help: "):
        assert part in what
    assert "Relu" not in what


def test_the_operator_set_is_checked() -> None:
    for opset in (6, 99):
        with pytest.raises(UnsupportedError, match=f"version {opset}"):
            read(proto([node("Add", ["x", "x"])], {"x": (2,)}, opset=opset))
    assert onnx_reader.read_onnx(proto([node("Relu", ["x"])], {"x": (2,)}, opset=7).SerializeToString(), "a.onnx", {})


def test_quantisation_is_literal() -> None:
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"])]
    graph = read(proto(nodes, {"x": (2,)}, {"s": np.array(0.5, np.float32), "z": np.array(7, np.uint8)}))
    quantize, dequantize = graph.nodes
    assert dict(quantize.attrs) == {
        "scale": (0.5,),
        "zero_point": (7,),
        "axis": None,
        "out_dtype": "uint8",
        "rounding": "even",
    }
    assert (dequantize.attrs["scale"], dequantize.attrs["zero_point"]) == ((0.5,), (7,))
    assert graph.types["q"].dtype == "uint8"


def test_weights_quantised_in_the_file_become_integers() -> None:
    """Training tools leave float weights behind QuantizeLinear."""
    nodes = [
        node("QuantizeLinear", ["w", "s", "z"], ["q"], axis=0),
        node("DequantizeLinear", ["q", "s", "z"], ["r"], axis=0),
        node("Conv", ["x", "r"]),
    ]
    weight = np.array([[-1.0, 0.25, 0.75], [3.0, -9.0, 0.1]], np.float32).reshape(2, 3, 1, 1)
    constants: dict[str, Array] = {"w": weight, "s": np.array([0.5, 0.05], np.float32), "z": np.zeros(2, np.int8)}
    graph = read(proto(nodes, {"x": (1, 3, 2, 2)}, constants))
    assert ops(graph) == ["dequantize", "conv2d"]
    assert graph.consts["q"].reshape(2, 3).tolist() == [[-2, 0, 2], [60, -128, 2]]


@pytest.mark.parametrize(
    ("code", "domain", "what", "hint"),
    [
        ("NonZero", "", "depends on data", "--outputs"),
        ("SequenceLength", "", "sequence of tensors", "onnxslim"),
        ("StringNormalizer", "", "strings", "--inputs"),
        ("DictVectorizer", "ai.onnx.ml", "dictionaries", "--inputs"),
        ("RandomNormalLike", "", "random", "--inputs"),
        ("MaxRoiPool", "", "rounding", "RoiAlign"),
        ("Fancy", "my.own", "unknown", "--plugin"),
        ("Fancy", "", "unknown", "onnxslim"),
    ],
)
def test_refusals_say_why_and_what_helps(code: str, domain: str, what: str, hint: str) -> None:
    with pytest.raises(UnsupportedError, match=what) as caught:
        read(proto([node(code, ["x"], domain=domain)], {"x": (2, 3)}))
    assert hint in caught.value.hint and "small.onnx #0" in caught.value.where
