# SPDX-License-Identifier: Apache-2.0
"""Models that no exporter writes: every operator with huge, zero, negative and odd sizes, absurd attributes, growth and depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from microc.base.dtypes import Array
from tests.frontend import onnx_model
from tests.frontend import tflite_model as flat
from tests.frontend.tflite_model import Op, Tensor, constant, quantised

HUGE = (1 << 16, 1 << 20, 1 << 30, (1 << 31) - 1)
ODD = (0, -1, -(1 << 31), *HUGE)
Case = tuple[str, bytes]
Family = Callable[[], Iterator[Case]]


def _tflite(name: str, tensors: Sequence[Tensor], ops: Sequence[Op], inputs: Sequence[str], **more: Any) -> Case:
    return f"{name}.tflite", flat.model(tensors, ops, inputs, ("y",), **more)


def _onnx(name: str, nodes: Sequence[Any], inputs: Mapping[str, Any], constants: Mapping[str, Array] = {}) -> Case:
    return f"{name}.onnx", onnx_model.proto(nodes, inputs, constants).SerializeToString()


def _ints(*values: int, dtype: str = "int32") -> Array:
    return np.array(np.array(values, np.int64).astype(dtype))


def _elements() -> Iterator[Case]:
    """One tensor of up to 2^31 - 1 elements through operators of one operand."""
    for count in HUGE[2:]:
        for code in ("RELU", "LOGISTIC", "TANH", "SOFTMAX", "QUANTIZE", "HARD_SWISH"):
            pair = [quantised(name, (1, count), 1 / 256 if code == "SOFTMAX" else 0.05, -128) for name in "xy"]
            options = {"SOFTMAX": "SoftmaxOptions", "QUANTIZE": "QuantizeOptions"}.get(code, "")
            fields = {"Beta": 1.0} if code == "SOFTMAX" else {}
            yield _tflite(f"{code}-of-{count}", pair, (Op(code, ("x",), ("y",), options, fields),), ("x",))
        yield _onnx(f"Relu-of-{count}", [onnx_model.node("Relu", ["x"])], {"x": (1, count)})
        yield _onnx(f"Softmax-of-{count}", [onnx_model.node("Softmax", ["x"])], {"x": (1, count)})
    for shape in ((1 << 10,) * 3, (1 << 4,) * 7, (1, 0, 5), (1 << 30, 0), (0,)):
        yield _onnx(f"Neg-of-{shape}", [onnx_model.node("Neg", ["x"])], {"x": shape})
        tensors = (Tensor("x", shape), Tensor("y", shape))
        yield _tflite(f"NEG-of-{shape}", tensors, (Op("NEG", ("x",), ("y",), "NegOptions"),), ("x",))


def _windows() -> Iterator[Case]:
    """Pools and convolutions with windows, strides and dilations of all sizes, over 8 x 8 pixels."""
    for pool in ("MAX_POOL_2D", "AVERAGE_POOL_2D"):
        for size in (0, -1, 9, *HUGE):
            for padding in (0, 1):
                for stride in (1, size):
                    fields = {"Padding": padding, "StrideW": stride, "StrideH": stride}
                    fields |= {"FilterWidth": size, "FilterHeight": size}
                    extent = 8 if padding == 0 and stride == 1 else 1
                    for dtype in ("INT8", "FLOAT32"):
                        made = [Tensor("x", (1, 8, 8, 2), dtype), Tensor("y", (1, extent, extent, 2), dtype)]
                        if dtype == "INT8":
                            made = [quantised(t.name, t.shape, 0.5, 0) for t in made]
                        name = f"{pool}-{dtype}-filter-{size}-stride-{stride}-padding-{padding}"
                        yield _tflite(name, made, (Op(pool, ("x",), ("y",), "Pool2DOptions", fields),), ("x",))
    weights = np.ones((2, 3, 3, 2), np.float32)
    for field in ("StrideW", "DilationHFactor"):
        for value in ODD:
            fields = {
                "Padding": 0,
                "StrideW": 1,
                "StrideH": 1,
                "DilationWFactor": 1,
                "DilationHFactor": 1,
                field: value,
            }
            tensors = (Tensor("x", (1, 8, 8, 2)), constant("w", weights), Tensor("y", (1, 8, 8, 2)))
            op = Op("CONV_2D", ("x", "w"), ("y",), "Conv2DOptions", fields)
            yield _tflite(f"CONV_2D-{field}-{value}", tensors, (op,), ("x",))
    for code in ("MaxPool", "AveragePool", "LpPool"):
        for size in ODD:
            choices: tuple[dict[str, Any], ...] = (
                {"kernel_shape": [size, 1]},
                {"kernel_shape": [2, 2], "strides": [size, 1]},
                {"kernel_shape": [2, 2], "pads": [size, 0, size, 0]},
                {"kernel_shape": [size, size], "pads": [size - 1, size - 1, 0, 0]},
            )
            for attrs in choices:
                spelled = "-".join(f"{key}{value}" for key, value in attrs.items())
                yield _onnx(f"{code}-{spelled}", [onnx_model.node(code, ["x"], **attrs)], {"x": (1, 2, 8, 8)})


def _moves() -> Iterator[Case]:
    """Padding, tiling, broadcasting, filling, ranges, one-hot and reshaping to all sizes."""
    x = Tensor("x", (1, 2, 2, 1))
    for size in ODD:
        y = Tensor("y", (1, max(size, 1), 2, 1))
        around = constant("p", _ints(0, 0, size, size, 0, 0, 0, 0).reshape(4, 2))
        yield _tflite(f"PAD-{size}", (x, around, y), (Op("PAD", ("x", "p"), ("y",), "PadOptions"),), ("x",))
        times = constant("t", _ints(1, size, 1, 1))
        yield _tflite(f"TILE-{size}", (x, times, y), (Op("TILE", ("x", "t"), ("y",), "TileOptions"),), ("x",))
        shape = constant("s", _ints(size, 2, 2, 1))
        op = Op("BROADCAST_TO", ("x", "s"), ("y",), "BroadcastToOptions")
        yield _tflite(f"BROADCAST_TO-{size}", (x, shape, y), (op,), ("x",))
        op = Op("RESHAPE", ("x", "s"), ("y",), "ReshapeOptions", {"NewShape": (size, -1)})
        yield _tflite(f"RESHAPE-{size}", (x, shape, y), (op,), ("x",))
        filled = (x, constant("s", _ints(size, 2)), constant("v", np.array(1, np.float32)), Tensor("f", (1, 2)), y)
        ops = (Op("FILL", ("s", "v"), ("f",), "FillOptions"), Op("ADD", ("x", "f"), ("y",), "AddOptions"))
        yield _tflite(f"FILL-{size}", filled, ops, ("x",))
        begin, extent = constant("b", _ints(0, size, 0, 0)), constant("e", _ints(1, size, 1, 1))
        op = Op("SLICE", ("x", "b", "e"), ("y",), "SliceOptions")
        yield _tflite(f"SLICE-{size}", (x, begin, extent, y), (op,), ("x",))
        indices, depth = Tensor("i", (4,), "INT32"), constant("d", _ints(size).reshape(()))
        ends = (constant("on", np.array(1, np.float32)), constant("off", np.array(0, np.float32)))
        op = Op("ONE_HOT", ("i", "d", "on", "off"), ("y",), "OneHotOptions", {"Axis": -1})
        yield _tflite(f"ONE_HOT-{size}", (indices, depth, *ends, Tensor("y", (4, max(size, 1)))), (op,), ("i",))
        for code, table in (("DEPTH_TO_SPACE", "DepthToSpaceOptions"), ("SPACE_TO_DEPTH", "SpaceToDepthOptions")):
            op = Op(code, ("x",), ("y",), table, {"BlockSize": size})
            yield _tflite(f"{code}-{size}", (x, Tensor("y", (1, 1, 1, 4))), (op,), ("x",))
        long = _ints(size, 1, 1, dtype="int64")
        yield _onnx(f"Expand-{size}", [onnx_model.node("Expand", ["x", "s"])], {"x": (1, 2, 2)}, {"s": long})
        yield _onnx(f"Tile-{size}", [onnx_model.node("Tile", ["x", "s"])], {"x": (1, 2, 2)}, {"s": long})
        pads = _ints(size, 0, 0, 1, dtype="int64")
        yield _onnx(f"Pad-{size}", [onnx_model.node("Pad", ["x", "s"])], {"x": (2, 2)}, {"s": pads})
        nodes = [onnx_model.node("ConstantOfShape", ["s"], ["c"]), onnx_model.node("Add", ["x", "c"])]
        yield _onnx(f"ConstantOfShape-{size}", nodes, {"x": (1, 2, 2)}, {"s": long})
        ends64 = {name: np.array(number, np.int64) for name, number in (("a", 0), ("b", size), ("c", 1))}
        nodes = [onnx_model.node("Range", ["a", "b", "c"], ["r"]), onnx_model.node("Gather", ["x", "r"])]
        yield _onnx(f"Range-{size}", nodes, {"x": (4,)}, ends64)
        nodes = [onnx_model.node("OneHot", ["x", "d", "v"])]
        yield _onnx(
            f"OneHot-{size}", nodes, {"x": (4,)}, {"d": np.array(size, np.int64), "v": np.array([0, 1], np.float32)}
        )


def _images() -> Iterator[Case]:
    """Resizing to all sizes."""
    for size in (*ODD, 10_000):
        shape = constant("s", _ints(size, size))
        for code, table in (
            ("RESIZE_BILINEAR", "ResizeBilinearOptions"),
            ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
        ):
            for pair in (
                (Tensor("x", (1, 2, 2, 1)), Tensor("y", (1, 1, 1, 1))),
                (quantised("x", (1, 2, 2, 1), 1, 0), quantised("y", (1, 1, 1, 1), 1, 0)),
            ):
                yield _tflite(
                    f"{code}-{pair[0].dtype}-{size}",
                    (pair[0], shape, pair[1]),
                    (Op(code, ("x", "s"), ("y",), table),),
                    ("x",),
                )
        for mode in ("linear", "nearest", "cubic"):
            sizes = _ints(1, 1, size, size, dtype="int64")
            yield _onnx(
                f"Resize-{mode}-{size}",
                [onnx_model.node("Resize", ["x", "", "", "s"], mode=mode)],
                {"x": (1, 1, 2, 2)},
                {"s": sizes},
            )
    for scale in (0.0, -1.0, 1e-30, 1e9, 1e30, float("inf"), float("nan")):
        scales = np.array([1, 1, scale, scale], np.float32)
        for mode in ("linear", "nearest"):
            yield _onnx(
                f"Resize-{mode}-by-{scale}",
                [onnx_model.node("Resize", ["x", "", "s"], mode=mode)],
                {"x": (1, 1, 2, 2)},
                {"s": scales},
            )


def _attributes() -> Iterator[Case]:
    """Axes, counts and splits of all sizes."""
    x = Tensor("x", (2, 4))
    for value in ODD:
        axis = constant("a", _ints(value))
        for code in ("SUM", "MEAN", "REDUCE_MAX"):
            yield _tflite(
                f"{code}-axis-{value}",
                (x, axis, Tensor("y", (4,))),
                (Op(code, ("x", "a"), ("y",), "ReducerOptions"),),
                ("x",),
            )
        op = Op("CONCATENATION", ("x", "x"), ("y",), "ConcatenationOptions", {"Axis": value})
        yield _tflite(f"CONCATENATION-axis-{value}", (x, Tensor("y", (4, 4))), (op,), ("x",))
        op = Op("GATHER", ("x", "a"), ("y",), "GatherOptions", {"Axis": 0})
        yield _tflite(f"GATHER-{value}", (x, axis, Tensor("y", (1, 4))), (op,), ("x",))
        op = Op("PACK", ("x",), ("y",), "PackOptions", {"Axis": value, "ValuesCount": 1})
        yield _tflite(f"PACK-{value}", (x, Tensor("y", (1, 2, 4))), (op,), ("x",))
        op = Op("TOPK_V2", ("x", "k"), ("y", "z"))
        k = constant("k", _ints(value).reshape(()))
        yield _tflite(
            f"TOPK_V2-{value}",
            (x, k, Tensor("y", (2, max(value, 1))), Tensor("z", (2, max(value, 1)), "INT32")),
            (op,),
            ("x",),
        )
        op = Op("SPLIT", ("a", "x"), ("y",), "SplitOptions", {"NumSplits": value})
        yield _tflite(f"SPLIT-{value}", (x, constant("a", _ints(1).reshape(())), Tensor("y", (2, 4))), (op,), ("x",))
        op = Op(
            "LOCAL_RESPONSE_NORMALIZATION",
            ("x",),
            ("y",),
            "LocalResponseNormalizationOptions",
            {"Radius": value, "Alpha": 1.0, "Beta": 0.5, "Bias": 1.0},
        )
        yield _tflite(f"LRN-{value}", (Tensor("x", (1, 2, 2, 4)), Tensor("y", (1, 2, 2, 4))), (op,), ("x",))


def _onnx_attributes() -> Iterator[Case]:
    shape = (1, 2, 8, 8)
    weights = np.ones((2, 2, 3, 3), np.float32)
    for value in (*ODD, -(1 << 63), (1 << 63) - 1):
        for code, attrs in (
            ("Conv", {"strides": [value, 1]}),
            ("Conv", {"dilations": [value, 1]}),
            ("Conv", {"pads": [value, 0, 0, 0]}),
            ("Conv", {"group": value}),
            ("ConvTranspose", {"strides": [value, 1]}),
            ("ConvTranspose", {"dilations": [value, value]}),
            ("ConvTranspose", {"output_shape": [value, value]}),
            ("ConvTranspose", {"output_padding": [value, 0]}),
        ):
            yield _onnx(f"{code}-{attrs}", [onnx_model.node(code, ["x", "w"], **attrs)], {"x": shape}, {"w": weights})
        for code, attrs in (
            ("Softmax", {"axis": value}),
            ("Flatten", {"axis": value}),
            ("LRN", {"size": value}),
            ("DepthToSpace", {"blocksize": value}),
            ("SpaceToDepth", {"blocksize": value}),
            ("Transpose", {"perm": [0, 1, 2, value]}),
            ("LpNormalization", {"p": value}),
            ("ArgMax", {"axis": value}),
            ("Cast", {"to": value}),
            ("ReduceMean", {"axes": [value]}),
        ):
            yield _onnx(f"{code}-{attrs}", [onnx_model.node(code, ["x"], **attrs)], {"x": shape})
        long = {"k": _ints(value, dtype="int64")}
        yield _onnx(f"TopK-{value}", [onnx_model.node("TopK", ["x", "k"], ["y", "z"])], {"x": (2, 4)}, long)
        yield _onnx(f"Squeeze-{value}", [onnx_model.node("Squeeze", ["x", "k"])], {"x": (1, 4)}, long)
        yield _onnx(f"Unsqueeze-{value}", [onnx_model.node("Unsqueeze", ["x", "k"])], {"x": (1, 4)}, long)
        yield _onnx(f"Reshape-{value}", [onnx_model.node("Reshape", ["x", "k"])], {"x": (1, 4)}, long)
        yield _onnx(f"CumSum-{value}", [onnx_model.node("CumSum", ["x", "k"])], {"x": (1, 4)}, long)
        begin = {
            "b": _ints(value, dtype="int64"),
            "e": _ints((1 << 62), dtype="int64"),
            "a": _ints(1, dtype="int64"),
            "s": _ints(value, dtype="int64"),
        }
        yield _onnx(f"Slice-{value}", [onnx_model.node("Slice", ["x", "b", "e", "a"])], {"x": (1, 4)}, begin)
        yield _onnx(f"Slice-step-{value}", [onnx_model.node("Slice", ["x", "a", "e", "a", "s"])], {"x": (1, 4)}, begin)
        yield _onnx(f"Gather-{value}", [onnx_model.node("Gather", ["x", "k"])], {"x": (4, 4)}, long)
        yield _onnx(f"Split-{value}", [onnx_model.node("Split", ["x", "k"])], {"x": (4, 4)}, long)


def _growth() -> Iterator[Case]:
    """Constants that double, wide operators, squares of squares."""
    nodes, last = [], "c"
    for k in range(40):
        nodes.append(onnx_model.node("Concat", [last, last], [f"c{k}"], axis=0))
        last = f"c{k}"
    nodes.append(onnx_model.node("Gather", ["x", last]))
    yield _onnx("doubling-Concat", nodes, {"x": (4,)}, {"c": np.zeros(1024, np.int64)})
    nodes, last = [], "c"
    for k in range(40):
        nodes.append(onnx_model.node("Add", [last, last], [f"c{k}"]))
        last = f"c{k}"
    nodes.append(onnx_model.node("Add", ["x", last]))
    yield _onnx("Add-of-large-constants", nodes, {"x": (1 << 22,)}, {"c": np.zeros(1 << 22, np.float32)})
    nodes, last = [], "x"
    for k in range(40):
        nodes.append(onnx_model.node("Concat", [last, last], [f"c{k}"], axis=0))
        last = f"c{k}"
    nodes.append(onnx_model.node("ReduceSum", [last]))
    yield _onnx("doubling-Concat-of-an-input", nodes, {"x": (4,)})
    for count in (700,):
        yield _onnx(f"Concat-of-{count}", [onnx_model.node("Concat", ["x"] * count, axis=0)], {"x": (4,)})
        yield _onnx(f"Sum-of-{count}", [onnx_model.node("Sum", ["x"] * count)], {"x": (4,)})
        yield _onnx(f"Max-of-{count}", [onnx_model.node("Max", ["x"] * count)], {"x": (4,)})
        names = [f"p{k}" for k in range(count)]
        nodes = [onnx_model.node("Split", ["x"], names, axis=0), onnx_model.node("Concat", names[::-1], axis=0)]
        yield _onnx(f"Split-to-{count}", nodes, {"x": (count,)})
        op = Op("CONCATENATION", ("x",) * count, ("y",), "ConcatenationOptions", {"Axis": 0})
        yield _tflite(f"CONCATENATION-of-{count}", (Tensor("x", (4,)), Tensor("y", (4 * count,))), (op,), ("x",))
        op = Op("ADD_N", ("x",) * count, ("y",), "AddNOptions")
        yield _tflite(f"ADD_N-of-{count}", (Tensor("x", (4,)), Tensor("y", (4,))), (op,), ("x",))
        parts = tuple(Tensor(f"t{k}", (1,)) for k in range(count))
        split = Op("UNPACK", ("x",), tuple(t.name for t in parts), "UnpackOptions", {"Num": count, "Axis": 0})
        parts = tuple(Tensor(t.name, ()) for t in parts)
        pack = Op("PACK", tuple(t.name for t in parts), ("y",), "PackOptions", {"ValuesCount": count, "Axis": 0})
        yield _tflite(
            f"UNPACK-to-{count}", (Tensor("x", (count,)), *parts, Tensor("y", (count,))), (split, pack), ("x",)
        )
    fan = [onnx_model.node("Neg", ["x"], [f"n{k}"]) for k in range(1000)]
    yield _onnx("fan-out-1000", [*fan, onnx_model.node("Sum", [f"n{k}" for k in range(1000)])], {"x": (4,)})


def _depth() -> Iterator[Case]:
    """Chains, graphs in graphs, calls in calls, cycles."""
    inner = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["o"])], "b", [], [helper.make_tensor_value_info("o", 1, None)]
    )
    single = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["o"])], "b", [], [helper.make_tensor_value_info("o", 1, None)]
    )
    for _ in range(28):
        node = helper.make_node("If", ["c"], ["o"], then_branch=inner, else_branch=single)
        inner = helper.make_graph([node], "b", [], [helper.make_tensor_value_info("o", 1, None)])
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=single)
    yield "If-nested-28.onnx", onnx_model.proto([node], {"c": (), "x": (4,)}, dtypes={"c": "bool"}).SerializeToString()
    called = [
        flat.Subgraph(
            (Tensor("x", (4,)), Tensor("y", (4,))),
            (Op("CALL", ("x",), ("y",), "CallOptions", {"Subgraph": k + 2}),),
            ("x",),
            ("y",),
        )
        for k in range(200)
    ]
    last = flat.Subgraph(
        (Tensor("x", (4,)), Tensor("y", (4,))), (Op("NEG", ("x",), ("y",), "NegOptions"),), ("x",), ("y",)
    )
    call = Op("CALL", ("x",), ("y",), "CallOptions", {"Subgraph": 1})
    yield _tflite("CALL-200-deep", (Tensor("x", (4,)), Tensor("y", (4,))), (call,), ("x",), others=(*called, last))
    own = Op("CALL", ("x",), ("y",), "CallOptions", {"Subgraph": 0})
    yield _tflite("CALL-of-itself", (Tensor("x", (4,)), Tensor("y", (4,))), (own,), ("x",))
    twice = []
    for k in range(30):
        calls = [("x", "h"), ("h", "y")]
        ops = tuple(Op("CALL", (a,), (b,), "CallOptions", {"Subgraph": k + 2}) for a, b in calls)
        tensors = tuple(Tensor(name, (4,)) for name in "xhy")
        twice.append(flat.Subgraph(tensors, ops, ("x",), ("y",)))
    yield _tflite("CALL-twice-each", (Tensor("x", (4,)), Tensor("y", (4,))), (call,), ("x",), others=(*twice, last))


def chain(form: str, count: int) -> Case:
    """Operators one behind the other."""
    if form == "onnx":
        names = ["x", *(f"h{k}" for k in range(count - 1)), "y"]
        codes = ("Relu", "Neg", "Abs")
        nodes = [onnx_model.node(codes[k % 3], [names[k]], [names[k + 1]]) for k in range(count)]
        return _onnx(f"chain-of-{count}", nodes, {"x": (1, 16)})
    tensors = tuple(quantised(f"t{k}" if k < count else "y", (1, 16), 0.5, 0) for k in range(count + 1))
    ops = [Op("ADD", (tensors[k].name, "t0"), (tensors[k + 1].name,), "AddOptions") for k in range(count)]
    return _tflite(f"chain-of-{count}", tensors, ops, ("t0",))


def _scales() -> Iterator[Case]:
    """Scales that are denormal, tiny, huge."""
    for scale in (1e-45, 1e-38, 1e-20, 1e20, 3e38):
        for code, table in (("RSQRT", ""), ("LOGISTIC", ""), ("ABS", "AbsOptions"), ("HARD_SWISH", "")):
            pair = (quantised("x", (1, 4), scale, -128), quantised("y", (1, 4), 1 / 256, -128))
            yield _tflite(f"{code}-scale-{scale}", pair, (Op(code, ("x",), ("y",), table),), ("x",))
            yield _tflite(
                f"{code}-to-{scale}",
                (quantised("x", (1, 4), 0.1, -128), quantised("y", (1, 4), scale, -128)),
                (Op(code, ("x",), ("y",), table),),
                ("x",),
            )


def _large() -> Iterator[Case]:
    """Sizes within the bounds, and large: what comes behind the reader works with them."""
    for count in (1 << 20, 1 << 22, 1 << 28):
        for code in ("RELU", "LOGISTIC"):
            pair = [quantised(name, (1, count), 0.05, -128) for name in "xy"]
            yield _tflite(f"{code}-of-{count}", pair, (Op(code, ("x",), ("y",)),), ("x",))
        yield _onnx(f"Neg-of-{count}", [onnx_model.node("Neg", ["x"])], {"x": (count >> 2,)})
    image, pixels = {"x": (1, 1, 16, 16)}, np.ones((1, 1, 3, 3), np.float32)
    nodes = [onnx_model.node("ConvTranspose", ["x", "w"], strides=[1 << 14, 1])]
    yield _onnx("ConvTranspose-far", nodes, image, {"w": pixels})
    for code in ("MaxPool", "AveragePool", "LpPool"):
        node = onnx_model.node(code, ["x"], kernel_shape=[1000, 1000], pads=[999, 999, 0, 0])
        yield _onnx(f"{code}-of-1000-by-1000", [node], {"x": (1, 2, 8, 8)})
    yield _onnx("Concat-of-128", [onnx_model.node("Concat", ["x"] * 128, axis=0)], {"x": (4,)})
    for size in (2_000, 4_000, 8_000):
        for mode in ("linear", "nearest", "cubic"):
            sizes = _ints(1, 1, size, size, dtype="int64")
            node = onnx_model.node("Resize", ["x", "", "", "s"], mode=mode)
            yield _onnx(f"Resize-{mode}-to-{size}", [node], {"x": (1, 1, 2, 2)}, {"s": sizes})
    square, side = np.ones((1 << 11, 1 << 11), np.float32), 1 << 11
    yield _onnx("MatMul-of-4194304", [onnx_model.node("MatMul", ["x", "w"])], {"x": (1, side)}, {"w": square})
    yield _onnx("MatMul-of-data", [onnx_model.node("MatMul", ["x", "z"])], {"x": (side, side), "z": (side, side)})
    yield _onnx("Conv-of-4194304", [onnx_model.node("Conv", ["x", "w"])], {"x": (1, 1, side, side)}, {"w": pixels})
    weights = np.ones((1000, 1000, 1, 1), np.float32)
    yield _onnx(
        "Conv-of-1000-by-1000-channels", [onnx_model.node("Conv", ["x", "w"])], {"x": (1, 1000, 4, 4)}, {"w": weights}
    )
    window = np.ones((1, 1, 1000, 1000), np.float32)
    far = onnx_model.node("Conv", ["x", "w"], pads=[999, 999, 0, 0])
    yield _onnx("Conv-of-1000-by-1000-pixels", [far], {"x": (1, 1, 8, 8)}, {"w": window})
    around = {"p": _ints(0, 1, 0, 1, dtype="int64")}
    yield _onnx("Pad-of-4194304", [onnx_model.node("Pad", ["x", "p"])], {"x": (side, side)}, around)
    wide = {"s": _ints(side, side, dtype="int64")}
    yield _onnx("Expand-to-4194304", [onnx_model.node("Expand", ["x", "s"])], {"x": (1, side)}, wide)


def _wide() -> Iterator[Case]:
    """Operators of many operands, each another one."""
    for code, count in (("Max", 1_000), ("Max", 5_000), ("Sum", 5_000)):
        inputs = {f"x{k}": (4,) for k in range(count)}
        yield _onnx(f"{code}-of-{count}-inputs", [onnx_model.node(code, list(inputs))], inputs)
    parts = {f"x{k}": (4, 1 + k % 5) for k in range(128)}
    yield _onnx("Concat-of-128-inputs", [onnx_model.node("Concat", list(parts), axis=1)], parts)


FAMILIES: tuple[Family, ...] = (
    _elements,
    _windows,
    _moves,
    _images,
    _attributes,
    _onnx_attributes,
    _growth,
    _depth,
    _scales,
    _large,
    _wide,
)


def cases() -> Iterator[Case]:
    """All, each with a name and the bytes of its file (``.tflite`` or ``.onnx``, as the name says)."""
    for make in FAMILIES:
        yield from make()
