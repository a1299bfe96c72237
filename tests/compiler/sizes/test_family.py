# SPDX-License-Identifier: Apache-2.0
"""Networks whose sizes are told when they run: equal, in every bit, to the network compiled for these sizes."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from onnx import TensorProto, helper

import microc
from microc.base.dtypes import Array
from microc.codegen.c.source import network_files
from microc.compiler.options import Bound, make_options
from microc.compiler.pipeline import compile_model, optimise_graph
from microc.compiler.single_function import open_dynamic_sizes
from microc.compiler.sizes.family import infer_symbolic_types, instantiate_graph, read_family
from microc.errors import FitError, MicrocError, ModelError, UnsupportedError, UsageError
from microc.graph.ir import Graph, Node
from microc.run import board_project
from microc.run.data.samples import draw_input_sets
from microc.run.verification import compare_board_with_host
from microc.target import target_for
from microc.tir.analysis.size_forms import evaluate_at_sizes
from tests.device.smoke import needs
from tests.frontend import tflite_model as tfl
from tests.frontend.onnx_model import node, proto
from tests.support.campaign import everything
from tests.support.native import WARNINGS

GENERATOR = np.random.default_rng(7)


def weights(*shape: int) -> Array:
    return np.asarray(GENERATOR.standard_normal(shape) / np.sqrt(np.prod(shape[1:])), np.float32)


def mlp() -> Any:
    nodes = [
        node("Gemm", ["x", "a", "b"], ["h"], transB=1),
        node("Relu", ["h"], ["r"]),
        node("Gemm", ["r", "c"], ["l"], transB=1),
        node("Softmax", ["l"], axis=-1),
    ]
    return proto(nodes, {"x": ["batch", 6]}, {"a": weights(8, 6), "b": weights(8), "c": weights(3, 8)})


def sequence() -> Any:
    nodes = [
        node("Conv", ["x", "a", "b"], ["h"], pads=[1, 1]),
        node("Relu", ["h"], ["r"]),
        node("Conv", ["r", "c"], pads=[4, 0], dilations=[2]),
    ]
    return proto(nodes, {"x": [1, 4, "seq"]}, {"a": weights(6, 4, 3), "b": weights(6), "c": weights(2, 6, 3)})


def attention() -> Any:
    """One head, with the shape arithmetic that exporters write, positions from a table, and layer normalisation."""
    width = 4
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "one", "two"], ["seq"]),
        node("Slice", ["table", "zero", "seq", "one"], ["positions"]),
        node("Add", ["x", "positions"], ["h"]),
        *(node("MatMul", ["h", f"w{k}"], [k]) for k in "qkv"),
        node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["mixed"]),
        node("Concat", ["minus", "four"], ["flat"], axis=0),
        node("Reshape", ["mixed", "flat"], ["rows"]),
        node("Gemm", ["rows", "wo"], ["o"]),
        node("Reshape", ["o", "shape"], ["back"]),
        node("LayerNormalization", ["back", "scale"], axis=-1),
    ]
    constants = {f"w{k}": weights(width, width) for k in "qkvo"} | {
        "table": weights(1, 32, width),
        "scale": np.ones(width, np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "minus": np.array([-1]),
        "four": np.array([width]),
    }
    return proto(nodes, {"x": ["batch", "seq", width]}, constants)


def recurrent(code: str, gates: int, batch: int | str = "batch", sides: int = 2) -> Any:
    direction = "bidirectional" if sides == 2 else "reverse"
    made = node(code, ["x", "w", "r", "b"], ["y", "last"], hidden_size=3, direction=direction)
    constants = {"w": weights(sides, 3 * gates, 2), "r": weights(sides, 3 * gates, 3), "b": weights(sides, 6 * gates)}
    return proto([made], {"x": ["seq", batch, 2]}, constants, outputs=("y", "last"))


def image() -> Any:
    """Strides of two with padding on both sides, pools, a resize, a global average."""
    nodes = [
        node("Conv", ["x", "a", "b"], ["h"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["h"], ["r"]),
        node("Conv", ["r", "c"], ["d"], pads=[1, 1, 1, 1], group=4),
        node("MaxPool", ["d"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("Resize", ["p", "", "twice"], ["u"], mode="nearest"),
        node("Conv", ["u", "e"], ["y"]),
        node("GlobalAveragePool", ["u"], ["mean"]),
    ]
    constants = {"a": weights(4, 2, 3, 3), "b": weights(4), "c": weights(4, 1, 3, 3), "e": weights(3, 4, 1, 1)}
    constants["twice"] = np.array([1, 1, 2, 2], np.float32)
    return proto(nodes, {"x": [1, 2, "height", "width"]}, constants, outputs=("y", "mean"))


def quantised_image() -> bytes:
    """TFLite: convolution, depthwise convolution and mean of int8, an open batch, and the padding of odd sizes."""

    def value(name: str, *shape: int) -> tfl.Tensor:
        return tfl.Tensor(name, (1, *shape), "INT8", scale=(0.05,), zero_point=(3,), signature=(-1, *shape))

    def filters(name: str, *shape: int) -> tfl.Tensor:
        data = GENERATOR.integers(-90, 90, shape).astype(np.int8)
        return tfl.Tensor(name, shape, "INT8", data, (0.02,), (0,))

    zeros = tfl.Tensor("bias", (4,), "INT32", np.arange(4, dtype=np.int32) * 40, (0.001,), (0,))
    tensors = [
        value("x", 9, 7, 2),
        filters("w", 4, 3, 3, 2),
        zeros,
        value("h", 5, 4, 4),
        filters("d", 1, 3, 3, 4),
        value("g", 5, 4, 4),
        tfl.Tensor("axes", (2,), "INT32", np.array([1, 2], np.int32)),
        value("y", 4),
    ]
    conv = {"Padding": 0, "StrideH": 2, "StrideW": 2, "FusedActivationFunction": 1}
    deep = {"Padding": 0, "StrideH": 1, "StrideW": 1, "DepthMultiplier": 1}
    ops = [
        tfl.Op("CONV_2D", ("x", "w", "bias"), ("h",), "Conv2DOptions", conv),
        tfl.Op("DEPTHWISE_CONV_2D", ("h", "d", "bias"), ("g",), "DepthwiseConv2DOptions", deep),
        tfl.Op("MEAN", ("g", "axes"), ("y",), "ReducerOptions", {"KeepDims": False}),
    ]
    return tfl.model(tensors, ops, ["x"], ["y"])


def controlled() -> Any:
    """A loop of as many turns as the sequence has rows, then one side or the other of what its sum decides."""

    def info(name: str, kind: int, shape: Sequence[int | str | None]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    rows: list[int | str | None] = ["seq", 4]
    real, flag = TensorProto.FLOAT, TensorProto.BOOL
    turn = [node("Mul", ["s", "half"], ["h"]), node("Add", ["h", "x"], ["more"]), node("Identity", ["on"], ["go"])]
    carried = [info("turn", TensorProto.INT64, []), info("on", flag, []), info("s", real, rows)]
    body = helper.make_graph(turn, "turn", carried, [info("go", flag, []), info("more", real, rows)])
    softmax, relu = node("Softmax", ["all"], ["soft"], axis=-1), node("Relu", ["all"], ["hard"])
    then = helper.make_graph([softmax], "then", [], [info("soft", real, rows)])
    otherwise = helper.make_graph([relu], "otherwise", [], [info("hard", real, rows)])
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["turns"], axis=0),
        node("Loop", ["turns", "", "x"], ["all"], body=body),
        node("ReduceSum", ["all"], ["total"], keepdims=0),
        node("Greater", ["total", "half"], ["positive"]),
        node("If", ["positive"], then_branch=then, else_branch=otherwise),
    ]
    return proto(nodes, {"x": rows}, {"zero": np.array(0), "half": np.array(0.5, np.float32)})


def open_means(dtype: str) -> bytes:
    """TFLite: the mean of an image whose height and width are open."""
    zero = (-7,) if dtype == "INT8" else (0,)
    tensors = [
        tfl.Tensor("x", (1, 6, 7, 3), dtype, scale=(0.05,), zero_point=zero, signature=(1, -1, -1, 3)),
        tfl.Tensor("axes", (2,), "INT32", np.array([1, 2], np.int32)),
        tfl.Tensor("y", (1, 3), dtype, scale=(0.03,), zero_point=zero),
    ]
    return tfl.model(tensors, [tfl.Op("MEAN", ("x", "axes"), ("y",), "ReducerOptions", {})], ["x"], ["y"])


def quantised_average() -> Any:
    """ONNX: a global average between scales, which float numbers make."""
    scales: dict[str, Array] = {"s": np.array(0.05, np.float32), "t": np.array(0.02, np.float32)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("GlobalAveragePool", ["d"], ["m"]),
        node("QuantizeLinear", ["m", "t", "z"], ["n"]),
        node("DequantizeLinear", ["n", "t", "z"]),
    ]
    return proto(nodes, {"x": [1, 3, "height", "width"]}, scales | {"z": np.array(3, np.int8)})


def saved(model: Any, folder: Path) -> Path:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    path = folder / ("model.tflite" if isinstance(model, bytes) else "model.onnx")
    path.write_bytes(data)
    return path


def inputs_of(library: microc.Library, sizes: Mapping[str, int]) -> list[Array]:
    """Random inputs of some sizes."""
    found = []
    for tensor in library.inputs:
        shape = [sizes[e] if isinstance(e, str) else e for e in tensor.get("extents", tensor["shape"])]
        if tensor["dtype"].startswith("int"):
            ends = np.iinfo(tensor["dtype"])
            found.append(GENERATOR.integers(ends.min, ends.max, shape, endpoint=True).astype(tensor["dtype"]))
        else:
            found.append(GENERATOR.standard_normal(shape).astype(np.float32))
    return found


def several(result: Any) -> Sequence[Array]:
    return result if isinstance(result, tuple) else (result,)


CASES: Mapping[str, tuple[Any, dict[str, Any], tuple[dict[str, int], ...]]] = {
    "mlp": (mlp, {"batch": 4}, tuple({"batch": n} for n in (1, 2, 4, 3))),
    "sequence": (sequence, {"seq": 40}, tuple({"seq": n} for n in (1, 2, 7, 4, 40))),
    "attention": (
        attention,
        {"batch": 2, "seq": 24},
        tuple({"batch": b, "seq": s} for b, s in ((1, 1), (2, 2), (2, 24), (1, 9))),
    ),
    "lstm": (
        lambda: recurrent("LSTM", 4),
        {"seq": 20, "batch": 2},
        tuple({"seq": s, "batch": b} for s, b in ((1, 1), (5, 1), (20, 2))),
    ),
    "gru": (lambda: recurrent("GRU", 3, 1, sides=1), {"seq": 20}, tuple({"seq": n} for n in (1, 6, 20))),
    "image": (
        image,
        {"height": 40, "width": 36},
        tuple({"height": h, "width": w} for h, w in ((40, 36), (4, 3), (3, 3), (17, 30), (18, 5))),
    ),
    "quantised": (quantised_image, {"batch": 3}, tuple({"batch": n} for n in (1, 2, 3))),
    "control flow": (controlled, {"seq": 12}, tuple({"seq": n} for n in (1, 2, 12, 7))),
    "mean of int8": (
        lambda: open_means("INT8"),
        {"x:1": 20, "x:2": 9},
        tuple({"x_1": h, "x_2": w} for h, w in ((20, 9), (3, 7), (1, 1), (16, 8), (1, 9))),
    ),
    "mean of int16": (
        lambda: open_means("INT16"),
        {"x:1": 20, "x:2": 9},
        tuple({"x_1": h, "x_2": w} for h, w in ((20, 9), (5, 3), (1, 1))),
    ),
    "quantised average": (
        quantised_average,
        {"height": 12, "width": 9},
        tuple({"height": h, "width": w} for h, w in ((12, 9), (8, 8), (1, 1), (3, 7))),
    ),
}


"""Networks, the bounds of their sizes, and sizes, of which every second is tried unless everything is."""


@pytest.mark.parametrize("name", CASES)
def test_equals_the_network_of_fixed_sizes(name: str, tmp_path: Path) -> None:
    make, bounds, tries = CASES[name]
    path = saved(make(), tmp_path)
    library = microc.compile(path, bounds=bounds)
    for sizes in tries[:: 1 if everything() else 2]:
        arrays = inputs_of(library, sizes)
        shapes = {t["label"]: a.shape for t, a in zip(library.inputs, arrays, strict=True)}
        fixed = microc.compile(path, input_shapes=shapes)
        for got, want in zip(several(library(*arrays)), several(fixed(*arrays)), strict=True):
            assert got.shape == want.shape
            if np.issubdtype(want.dtype, np.floating):  # another schedule may add in another order
                np.testing.assert_allclose(got, want, rtol=0, atol=2e-7 * np.abs(want).max(), err_msg=str(sizes))
            else:
                assert got.tobytes() == want.tobytes(), sizes


def test_weights_are_halves_as_in_the_network_of_fixed_sizes(tmp_path: Path) -> None:
    path = saved(sequence(), tmp_path)
    library = microc.compile(path, bounds={"seq": 9}, weight_dtype="float16")
    module = compile_model(path, target_for("cortex-m4"), make_options(bounds={"seq": 9}, weight_dtype="float16"))
    assert any(
        value.dtype in ("float16", "bfloat16", "int32") for value in module.values.values() if value.data is not None
    )
    (x,) = inputs_of(library, {"seq": 7})
    shapes = {library.inputs[0]["label"]: x.shape}
    fixed = microc.compile(path, input_shapes=shapes, weight_dtype="float16")
    assert np.asarray(library(x)).tobytes() == np.asarray(fixed(x)).tobytes()


@pytest.mark.parametrize("name", CASES if everything() else [*list(CASES)[::2], "image"])
def test_values_overlap_as_in_the_network_of_fixed_sizes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same kernels: attention in blocks, which takes less, is for fixed sizes alone."""
    monkeypatch.setattr("microc.compiler.fit.moves.find_attention", lambda graph: [])
    make, bounds, _ = CASES[name]
    path, options = saved(make(), tmp_path), make_options(bounds=bounds)
    open_ = compile_model(path, target_for("cortex-m4"), options)
    shapes = {v.label: v.shape for v in map(open_.values.__getitem__, open_.inputs)}
    fixed = compile_model(path, target_for("cortex-m4"), make_options(input_shapes=shapes))
    assert open_.plan is not None and fixed.plan is not None
    assert open_.plan.size <= 1.1 * fixed.plan.size


def test_weights_stored_as_several_constants(tmp_path: Path) -> None:
    """For size, weights of few values are stored as integers and scales, at the smallest sizes as they are."""
    ones = {"w": np.ones((24, 4, 3), np.float32), "b": np.ones(24, np.float32)}
    path = saved(proto([node("Conv", ["x", "w", "b"])], {"x": [1, 4, "n"]}, ones), tmp_path)
    library = microc.compile(path, "cortex-m4", optimize="size", bounds={"n": 32})
    x = GENERATOR.standard_normal((1, 4, 20)).astype(np.float32)
    wanted = 1 + sum(x[0, :, k : k + 18].sum(axis=0) for k in range(3))
    np.testing.assert_allclose(np.asarray(library(x))[0], np.tile(wanted, (24, 1)), rtol=1e-5, atol=1e-5)


def test_sizes_are_checked(tmp_path: Path) -> None:
    library = microc.compile(saved(sequence(), tmp_path), bounds={"seq": 20})
    with pytest.raises(UsageError, match="size 'seq': got 21"):
        library(np.zeros((1, 4, 21), np.float32))
    with pytest.raises(UsageError, match="got shape"):
        library(np.zeros((1, 5, 20), np.float32))
    assert np.asarray(library(np.zeros((1, 4, 3), np.float32))).shape == (1, 2, 3)


def test_inputs_of_one_run_have_the_same_sizes(tmp_path: Path) -> None:
    model = proto([node("Add", ["a", "b"])], {"a": ["n", 3], "b": ["n", 3]})
    library = microc.compile(saved(model, tmp_path), bounds={"n": 8})
    one, two = np.ones((1, 3), np.float32), np.ones((2, 3), np.float32)
    with pytest.raises(UsageError, match="another input"):
        library(one, two)
    library.set_input("a", two)
    library.set_input("b", one)
    with pytest.raises(UsageError, match="contradicts the sizes"):
        library.run()
    assert np.asarray(library(two, two)).shape == (2, 3)


def test_minimum_and_step(tmp_path: Path) -> None:
    """A window that must fit gives the smallest size; what must divide gives a step."""
    model = proto([node("Conv", ["x", "w"])], {"x": [1, 2, "seq"]}, {"w": weights(3, 2, 5)})
    library = microc.compile(saved(model, tmp_path), bounds={"seq": 30})
    assert library.manifest["sizes"][0]["minimum"] == 5
    halves = proto([node("Reshape", ["x", "shape"])], {"x": [2, "seq"]}, {"shape": np.array([4, -1])})
    library = microc.compile(saved(halves, tmp_path), bounds={"seq": Bound(32, step=2)})
    assert np.asarray(library(np.ones((2, 6), np.float32))).shape == (4, 3)
    with pytest.raises(UsageError, match="steps of 2"):
        library(np.ones((2, 7), np.float32))


def test_refusals(tmp_path: Path) -> None:
    path = saved(mlp(), tmp_path)
    with pytest.raises(UsageError, match="no symbolic dimension 'seq'") as refusal:
        microc.compile(path, bounds={"seq": 4})
    assert refusal.value.hint == "name one of its symbolic dimensions: batch"
    with pytest.raises(UsageError, match="no size is possible"):
        microc.compile(path, bounds={"batch": Bound(4, minimum=5)})
    with pytest.raises(FitError, match="an arena of 64 bytes cannot hold tensors, which take at least 2048"):
        microc.compile(path, bounds={"batch": 64}, ram=64)
    with pytest.raises(UsageError, match="a graph has fixed shapes"):
        microc.load(path, bounds={"batch": 4})  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="stream cannot be combined with bounds"):
        microc.compile(path, bounds={"batch": 4}, stream=1)


def test_places_that_depend_on_sizes(tmp_path: Path) -> None:
    """Parts of an open axis lie at no fixed place of their operand or result, so that they are copied."""
    nodes = [
        node("Slice", ["x", "last", "end"], ["tail"]),
        node("Gather", ["x", "rows"], ["some"], axis=0),
        node("Concat", ["tail", "some", "x", "tail"], ["joined"], axis=0),
        node("Hardmax", ["joined"], ["y"], axis=0),
    ]
    constants = {"last": np.array([-2]), "end": np.array([1000]), "rows": np.array([0, -1, 1])}
    model = proto(nodes, {"x": ["n", 3]}, constants, outputs=("joined", "y"))
    library = microc.compile(saved(model, tmp_path), bounds={"n": Bound(9, minimum=2)})
    for n in (2, 3, 9):
        x = GENERATOR.normal(size=(n, 3)).astype(np.float32)
        joined, hard = library(x)
        expected = np.concatenate([x[-2:], x[[0, -1, 1]], x, x[-2:]])
        assert np.array_equal(joined, expected)
        assert np.array_equal(hard, np.arange(n + 7)[:, None] == expected.argmax(axis=0))


def test_a_slice_whose_extent_has_no_rule_is_refused(tmp_path: Path) -> None:
    """Of six rows or fewer, ``x[-3:3]`` has some; of all larger numbers none."""
    nodes = [node("Slice", ["x", "start", "end", "axis"])]
    constants = {"start": np.array([-3]), "end": np.array([3]), "axis": np.array([1])}
    with pytest.raises(UsageError, match=r"differ between h=5 and|violates the rule"):
        microc.compile(saved(proto(nodes, {"x": [1, "h", 3]}, constants), tmp_path), bounds={"h": 5})


def test_unnamed_dimensions(tmp_path: Path) -> None:
    path = saved(quantised_image(), tmp_path)
    library = microc.compile(path, bounds={"x:0": 2})
    assert library.manifest["sizes"][0]["label"] == "x:0" and library.manifest["sizes"][0]["name"] == "x_0"
    assert np.asarray(library(np.zeros((2, 9, 7, 2), np.int8))).shape == (2, 4)


def test_generated_c(tmp_path: Path) -> None:
    """Strict C99; sizes outside their bounds are an error and touch nothing; elements of outputs can be asked for."""
    module = compile_model(
        saved(image(), tmp_path), target_for("host"), make_options(bounds={"height": 24, "width": 20})
    )
    for name, text in network_files(module, "test").items():
        (tmp_path / name).write_text(text)
    (tmp_path / "ask.c").write_text(
        '#include "model.h"\n'
        "#include <stddef.h>\n"
        "int32_t elements(int32_t height, int32_t width);\n"
        "int32_t elements(int32_t height, int32_t width)\n"
        "{\n    const struct model_sizes sizes = { .height = height, .width = width };\n"
        "    return model_y_elements(&sizes);\n}\n"
        "int run(void *arena, int32_t height, int32_t width);\n"
        "int run(void *arena, int32_t height, int32_t width)\n"
        "{\n    const struct model_sizes sizes = { .height = height, .width = width };\n"
        "    const struct model_inputs in = { model_x(arena) };\n"
        "    const struct model_outputs out = { .y = model_y(arena), .mean = model_mean(arena) };\n"
        "    return model_run(arena, &sizes, &in, &out);\n}\n"
    )
    for compiler in ("gcc", "clang"):
        command = [compiler, *WARNINGS, "-shared", "-fPIC", "-o", "ask.so", "ask.c", "model.c", "model_data.c", "-lm"]
        subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "ask.so"))
    assert library.elements(24, 20) == 3 * 12 * 10 and library.elements(5, 7) == 3 * 4 * 4
    assert module.plan is not None
    arena = (ctypes.c_uint64 * (module.plan.size // 8 + 1))()
    assert library.run(arena, 24, 20) == 0 and library.run(arena, 5, 7) == 0
    kept = bytes(arena)
    assert [library.run(arena, h, w) for h, w in ((25, 20), (24, 21), (0, 5), (-1, 5))] == [-3] * 4
    assert bytes(arena) == kept


def test_graphs_that_differ_are_refused_by_node(tmp_path: Path) -> None:
    """A slice that ends where the network does for some sizes, and before for others, is another network there."""
    model = proto(
        [node("Slice", ["x", "zero", "end", "axis"], ["s"]), node("Relu", ["s"])],
        {"x": [1, "seq"]},
        {"zero": np.array([0]), "end": np.array([24]), "axis": np.array([1])},
    )
    with pytest.raises(MicrocError) as refusal:
        microc.compile(saved(model, tmp_path), bounds={"seq": 64})
    assert "seq" in str(refusal.value) or "axis 1 of" in str(refusal.value)
    assert isinstance(refusal.value, (UsageError, UnsupportedError))


def test_sizes_of_an_example_are_named(tmp_path: Path) -> None:
    """Exporters that trace an example leave its sizes in the file as numbers."""
    made = node("Reshape", ["x", "shape"])
    model = proto([made], {"x": ["seq", 4]}, {"shape": np.array([12, 2, 2])})
    with pytest.raises(ModelError, match=r"does not support seq=24, only seq=12: .* cannot become") as refusal:
        microc.compile(saved(model, tmp_path), bounds={"seq": 24})
    assert "export the model with these dimensions symbolic" in str(refusal.value.hint)


def test_a_fixed_product_of_two_sizes_is_refused_with_its_cure(tmp_path: Path) -> None:
    """A flattened picture before weights: no single side that is varied alone fits them."""
    nodes = [node("Flatten", ["x"], ["flat"]), node("Gemm", ["flat", "w"], transB=1)]
    model = proto(nodes, {"x": [1, 1, "height", "width"]}, {"w": np.ones((1, 99), np.float32)})
    with pytest.raises(ModelError, match=r"does not support height=13, width=10: dense") as refusal:
        microc.compile(saved(model, tmp_path), bounds={"height": 13, "width": 10})
    assert "export the model with these dimensions symbolic" in str(refusal.value.hint)


def test_rules_of_shapes(tmp_path: Path) -> None:
    """Every extent is a rule over the sizes, also where strides follow strides."""
    options = make_options(bounds={"height": 40, "width": 36}, disabled="common_subexpressions")
    path = saved(image(), tmp_path)
    sizes, read = open_dynamic_sizes(path, options)
    family = read_family(sizes, lambda at: optimise_graph(read(at), options))
    for height, width in ((40, 36), (7, 10), (12, 5)):
        graph = optimise_graph(read({"height": height, "width": width}), options)
        at = {"size_height": height, "size_width": width}
        told = tuple(evaluate_at_sizes(e, at) for e in family.extents["y"])
        assert told == graph.types["y"].shape


def strided_same() -> Any:
    """Padding that depends on remainders of sizes, on both sides of an image."""
    nodes = [
        node("Conv", ["x", "a"], ["h"], auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Conv", ["h", "b"], ["y"], auto_pad="SAME_LOWER", strides=[3, 2]),
    ]
    return proto(nodes, {"x": [1, 2, "n", "m"]}, {"a": weights(4, 2, 3, 3), "b": weights(4, 4, 3, 3)})


def later_third() -> Any:
    """A slice from a computed third, and a step of two."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["n"]),
        node("Div", ["n", "three"], ["third"]),
        node("Slice", ["x", "third", "n", "one"], ["later"]),
        node("Slice", ["later", "one", "n", "one", "two"], ["y"]),
    ]
    return proto(nodes, {"x": ["m", "n", 4]}, {"one": np.array([1]), "two": np.array([2]), "three": np.array([3])})


def windows() -> Any:
    """Squares of four by four elements, by computed shapes."""
    numbers = {name: np.array([k]) for k, name in enumerate(("zero", "one", "two", "three", "four"))}
    nodes = [
        node("Shape", ["x"], ["shape"]),
        *(node("Gather", ["shape", axis], [f"n{axis}"]) for axis in ("one", "two")),
        *(node("Div", [f"n{axis}", "four"], [f"blocks{axis}"]) for axis in ("one", "two")),
        node("Concat", ["one", "blocksone", "four", "blockstwo", "four", "three"], ["split"], axis=0),
        node("Reshape", ["x", "split"], ["parts"]),
        node("Transpose", ["parts"], ["moved"], perm=[0, 1, 3, 2, 4, 5]),
        node("Reshape", ["moved", "flat"], ["y"]),
    ]
    return proto(nodes, {"x": [1, "n", "m", 3]}, {**numbers, "flat": np.array([-1, 16, 3])})


@pytest.mark.parametrize(("make", "step"), [(strided_same, 1), (later_third, 1), (windows, 4)])
def test_attributes_that_depend_on_sizes(make: Callable[[], Any], step: int, tmp_path: Path) -> None:
    """At other sizes than those that were read, the symbolic graph is the graph of these sizes."""
    bounds = {"n": Bound(60, minimum=4, step=step), "m": Bound(48, minimum=4, step=step)}
    options = make_options(bounds=bounds, disabled="common_subexpressions")
    sizes, read = open_dynamic_sizes(saved(make(), tmp_path), options)
    family = read_family(sizes, lambda at: optimise_graph(read(at), options))
    for n, m in (
        np.random.default_rng(5).integers(2, 12, (12, 2)) * max(step, 4) + (step == 1) * np.arange(12)[:, None] % 4
    ):
        found = instantiate_graph(family.symbolic, {"size_n": int(n), "size_m": int(m)})
        wanted = optimise_graph(read({"n": int(n), "m": int(m)}), options)
        assert found.nodes == wanted.nodes
        assert {name: found.types[name].shape for name in wanted.types} == {k: t.shape for k, t in wanted.types.items()}


def graphs_of_means(tmp_path: Path, change: Callable[[Node, Mapping[str, int]], Node]) -> Any:
    """The family of a mean of int8 with open height and width, whose nodes are changed at given sizes."""
    path = saved(open_means("INT8"), tmp_path)
    options = make_options(bounds={"x:1": 4, "x:2": 3}, disabled="common_subexpressions")
    sizes, read = open_dynamic_sizes(path, options)

    def read_changed(at: Mapping[str, int]) -> Graph:
        graph = optimise_graph(read(at), options)
        return replace(graph, nodes=tuple(change(node, at) for node in graph.nodes))

    return read_family(sizes, read_changed)


def test_an_extent_of_one_number_up_to_the_largest_size(tmp_path: Path) -> None:
    """Points at which a network is read are beyond its largest sizes, where strided windows leave more than one element."""
    nodes = [
        node("MaxPool", ["x"], ["h"], kernel_shape=[3, 3], strides=[9, 1]),
        node("Conv", ["h", "a"], ["y"], strides=[3, 1]),
    ]
    path = saved(proto(nodes, {"x": [1, 2, "n", 9]}, {"a": weights(4, 2, 2, 3)}), tmp_path)
    options = make_options(bounds={"n": 30})
    sizes, read = open_dynamic_sizes(path, options)
    family = read_family(sizes, lambda at: optimise_graph(read(at), options))
    (output,) = family.symbolic.outputs
    assert family.symbolic.types[output].shape == family.largest.types[output].shape
    library = microc.compile(path, "host", bounds={"n": 30})
    assert library.manifest["sizes"][0]["minimum"] == 12


def test_an_attribute_that_breaks_its_rule_at_the_largest_sizes(tmp_path: Path) -> None:
    def clamp_offset(node: Node, at: Mapping[str, int]) -> Node:
        offset = node.attrs.get("offset")
        is_largest = at["x:1"] == 4
        return replace(node, attrs={**node.attrs, "offset": 7}) if is_largest and isinstance(offset, int) else node

    graphs_of_means(tmp_path, lambda node, at: node)
    with pytest.raises(UsageError, match="sum: its offset at x:1=4, x:2=3 violates the rule"):
        graphs_of_means(tmp_path, clamp_offset)


def test_shapes_that_operators_do_not_infer_are_refused(tmp_path: Path) -> None:
    """A rule of a reshape that has the elements of its operand at some sizes alone is not one of all sizes."""
    path = saved(sequence(), tmp_path)
    options = make_options(bounds={"seq": 700}, disabled="common_subexpressions")
    sizes, read = open_dynamic_sizes(path, options)
    family = read_family(sizes, lambda at: optimise_graph(read(at), options))
    reshape = next(node for node in family.symbolic.nodes if node.op == "reshape")
    shape = reshape.attrs["shape"]
    assert isinstance(shape, tuple)
    longer = replace(reshape, attrs={"shape": (*shape[:-2], cast(int, shape[-2]) + 1, shape[-1])})
    infer_symbolic_types(reshape, family.symbolic.types)
    with pytest.raises(UnsupportedError, match="reshape: its shapes are not those of a rule at all sizes"):
        infer_symbolic_types(longer, family.symbolic.types)


@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_on_a_board(tmp_path: Path) -> None:
    """Sizes go to the board over the line; host and board agree kernel by kernel."""
    program = microc.compile(saved(attention(), tmp_path), board="mps2-an386", bounds={"batch": 2, "seq": 8})
    project = board_project.open_project(program.write(tmp_path / "attention"))
    board_project.build_project(project)
    library = board_project.build_host_library(project)
    with microc.Device(project) as device:
        layers, difference = compare_board_with_host(
            device, library, draw_input_sets(device.project.manifest, device.inputs, 3)
        )
        assert difference is None and layers
        short = GENERATOR.standard_normal((1, 3, 4)).astype(np.float32)
        np.testing.assert_allclose(np.asarray(device.run(short)), np.asarray(library(short)), rtol=1e-5, atol=1e-6)
        with pytest.raises(UsageError, match="size 'seq': got 9"):
            device.run(np.zeros((1, 9, 4), np.float32))
