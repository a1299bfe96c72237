# SPDX-License-Identifier: Apache-2.0
"""The applications that ``operators.py`` measures: one operator each, as a reader of models writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Attr, Graph, Quant
from microc.ops import registry

DTYPES = ("int8", "int16", "float32")
"""Data; weights of int16 data are int8."""

WANTED: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "product": {"m4": (1.1, 1.2, 1.9), "m0": (4.0, 5.0, 0), "m55": (0.22, 0.4, 1.9), "rv32": (3.5, 3.5, 1.9)},
    "depthwise": {"m4": (2.0, 2.0, 2.5), "m0": (6.0, 6.0, 0), "m55": (0.7, 1.0, 2.5), "rv32": (5.0, 5.0, 2.5)},
    "row": {"m4": (1.3, 1.5, 2.2), "m0": (5.0, 5.0, 0), "m55": (0.25, 0.5, 2.2), "rv32": (4.0, 4.0, 2.2)},
    "pool": {"m4": (2.0, 2.0, 3.0), "m0": (4.0, 4.0, 0), "m55": (0.5, 0.7, 3.0), "rv32": (3.0, 3.0, 3.0)},
    "move": {"m4": (0.6, 1.2, 2.0), "m0": (2.0, 2.0, 0), "m55": (0.25, 0.5, 1.0), "rv32": (1.0, 1.5, 2.0)},
    "shuffle": {"m4": (3.0, 3.0, 3.0), "m0": (4.0, 4.0, 0), "m55": (2.0, 2.0, 3.0), "rv32": (3.0, 3.0, 3.0)},
    "table": {"m4": (4.0, 10.0, 5.0), "m0": (5.0, 20.0, 0), "m55": (3.0, 8.0, 5.0), "rv32": (5.0, 15.0, 5.0)},
    "scale": {"m4": (8.0, 8.0, 5.0), "m0": (30.0, 30.0, 0), "m55": (2.5, 2.5, 4.0), "rv32": (14.0, 14.0, 5.0)},
    "sum": {"m4": (16.0, 16.0, 4.0), "m0": (60.0, 60.0, 0), "m55": (4.0, 4.0, 4.0), "rv32": (30.0, 30.0, 4.0)},
    "reduce": {"m4": (1.5, 1.5, 2.0), "m0": (3.0, 3.0, 0), "m55": (0.25, 0.4, 2.0), "rv32": (2.5, 2.5, 2.0)},
    "function": {
        "m4": (20.0, 20.0, 40.0),
        "m0": (80.0, 80.0, 0),
        "m55": (20.0, 20.0, 40.0),
        "rv32": (40.0, 40.0, 40.0),
    },
}
"""What a kernel written by hand takes for a unit of work: int8, int16 by int8, float32."""
LIKE = {"m3": "m0", "m7": "m4", "rv32f": "rv32"}


@dataclass(frozen=True)
class Application:
    """One operator at one size; ``kind`` is its row in :data:`WANTED`."""

    name: str
    kind: str
    write: Callable[[GraphBuilder, str], str]
    macs: int = 0

    def wanted(self, core: str, dtype: str) -> float:
        """Instructions for a unit of work."""
        return WANTED[self.kind][LIKE.get(core, core)][DTYPES.index(dtype)]

    def work(self, writer: GraphBuilder, output: str) -> tuple[int, str]:
        """How much there is to do, and its unit."""
        place = writer.graph("all", {"out": output})
        mine = _cone(place)
        macs = self.macs or sum(_macs(writer, node) for node in mine)
        if macs:
            return macs, "MAC"
        operands = [writer.type(n).size for node in mine for n in node.inputs if n and n not in writer.consts]
        return max(writer.type(output).size, *operands), "element"


def _cone(graph: Graph) -> list[Any]:
    """The nodes that the output depends on."""
    needed, found = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            found.append(node)
    return found


def _macs(writer: GraphBuilder, node: Any) -> int:
    definition = registry.get(node.op)
    if definition.macs is None or node.op.startswith("avg"):
        return 0
    return definition.macs(
        node.attrs, [writer.type(n) for n in node.inputs if n], [writer.type(n) for n in node.outputs]
    )


def quant(dtype: str, scale: float = 0.05, zero: int = 3) -> Quant | None:
    """Per-tensor quantisation of a dtype."""
    return None if dtype == "float32" else Quant((scale,), (zero if dtype == "int8" else 0,))


def data(writer: GraphBuilder, dtype: str, shape: Sequence[int]) -> str:
    return writer.input("x", shape, dtype, quant(dtype))


def emit(
    writer: GraphBuilder, dtype: str, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], scale: float = 0.07
) -> str:
    """An application whose result is quantised with a scale of its own."""
    made = writer.emit(op, inputs, attrs)
    return writer.set_quant(made, quant(dtype, scale, -5), dtype) if dtype != "float32" else made


def weights(writer: GraphBuilder, dtype: str, shape: Sequence[int], axis: int = 0) -> tuple[str, str]:
    """Weights by channel, and a bias."""
    rng, count = np.random.default_rng(2), shape[axis]
    if dtype == "float32":
        return (
            writer.new_constant("weight", rng.normal(size=shape).astype(np.float32)),
            writer.new_constant("bias", rng.normal(size=count).astype(np.float32)),
        )
    scales = tuple(float(s) for s in rng.uniform(0.002, 0.004, count))
    weight = writer.new_constant("weight", rng.integers(-127, 128, shape).astype(np.int8))
    writer.set_quant(weight, Quant(scales, (0,) * count, axis))
    wide = np.int32 if dtype == "int8" else np.int64
    bias = writer.new_constant("bias", rng.integers(-1000, 1000, count).astype(wide))
    writer.set_quant(bias, Quant(tuple(s * 0.05 for s in scales), (0,) * count, 0))
    return weight, bias


Shape = tuple[int, ...]
SAME = (1, 1, 1, 1)


def conv(
    name: str, shape: Shape, weight: Shape, kind: str = "product", op: str = "conv2d", **attrs: Any
) -> Application:
    """A convolution of NHWC data by OHWI weights."""

    def write(writer: GraphBuilder, dtype: str) -> str:
        x = data(writer, dtype, shape)
        return emit(writer, dtype, op, (x, *weights(writer, dtype, weight)), attrs, 0.8)

    return Application(name, kind, write)


def volume(name: str, shape: Shape, weight: Shape, **attrs: Any) -> Application:
    """A convolution over three axes, channels last as TFLite has it."""
    attrs = {"strides": (1, 1, 1), "dilation": (1, 1, 1), "padding": (1,) * 6, "groups": 1, **attrs}

    def write(writer: GraphBuilder, dtype: str) -> str:
        x = writer.emit("transpose", (data(writer, dtype, shape),), {"axes": (0, 4, 1, 2, 3)})
        made = writer.emit("convolution", (x, *weights(writer, dtype, weight)), attrs)
        return writer.emit("transpose", (made,), {"axes": (0, 2, 3, 4, 1)})

    return Application(name, "product", write)


def dense(name: str, rows: int, depth: int, columns: int) -> Application:
    def write(writer: GraphBuilder, dtype: str) -> str:
        operands = (data(writer, dtype, (rows, depth)), *weights(writer, dtype, (columns, depth)))
        return emit(writer, dtype, "dense", operands, {"activation": "", "rounding": "double"}, 0.8)

    return Application(name, "row" if rows == 1 else "product", write)


def plain(
    name: str, kind: str, op: str, *shapes: Shape, scale: float = 0.07, alike: bool = False, **attrs: Any
) -> Application:
    """An operator on data alone; ``alike``: the result is quantised as the operand."""

    def write(writer: GraphBuilder, dtype: str) -> str:
        inputs = [data(writer, dtype, shape) for shape in shapes]
        if not alike:
            return emit(writer, dtype, op, inputs, attrs, scale)
        made = writer.emit(op, inputs, attrs)
        return writer.set_quant(made, quant(dtype), dtype)

    return Application(name, kind, write)


def fixed(name: str, kind: str, op: str, shape: Shape, result: tuple[float, int], **attrs: Any) -> Application:
    """An operator whose result has a quantisation of its own (scale and zero point for int8; int16: 2**-15)."""

    def write(writer: GraphBuilder, dtype: str) -> str:
        made = writer.emit(op, (data(writer, dtype, shape),), attrs)
        if dtype == "float32":
            return made
        own = Quant(result[:1], result[1:]) if dtype == "int8" else Quant((2.0**-15,), (0,))
        return writer.set_quant(made, own, dtype)

    return Application(name, kind, write)


def prelu(writer: GraphBuilder, dtype: str) -> str:
    x = data(writer, dtype, (1, 16, 16, 16))
    slope = np.random.default_rng(3).uniform(10, 90, (1, 1, 16))
    alpha = writer.new_constant("slope", slope.astype(dtype))
    if dtype != "float32":
        writer.set_quant(alpha, quant(dtype, 0.01, 0))
    return emit(writer, dtype, "prelu", (x, alpha), {})


def resized(name: str, shape: Shape, linear: bool) -> Application:
    """To twice the size."""

    def write(writer: GraphBuilder, dtype: str) -> str:
        tables, shares = [], []
        for extent in shape[1:3]:
            places = np.maximum((np.arange(2 * extent) + 0.5) / 2 - 0.5, 0)
            below = np.floor(places)
            index = (
                np.stack([below, np.minimum(below + 1, extent - 1)], 1)
                if linear
                else (np.arange(2 * extent) // 2)[:, None]
            )
            tables.append(writer.new_constant("index", index.astype(np.int16)))
            share = np.stack([1 - places + below, places - below], 1)
            exact = share.astype(np.float32) if dtype == "float32" else (share * 1024).astype(np.int16)
            shares += [writer.new_constant("share", exact)] if linear else []
        attrs = {"axes": (1, 2), "shift": 20 if linear and dtype != "float32" else 0}
        made = writer.emit("resample", (data(writer, dtype, shape), *tables, *shares), attrs)
        return writer.set_quant(made, quant(dtype), dtype)

    return Application(name, "function" if linear else "move", write)


def embedding(writer: GraphBuilder, dtype: str) -> str:
    table = np.random.default_rng(4).integers(-99, 99, (200, 32)).astype(dtype)
    return writer.emit("gather", (writer.new_constant("table", table), writer.input("x", (32,), "int32")), {"axis": 0})


def layer_norm(writer: GraphBuilder, dtype: str) -> str:
    """Of floats, as exporters spell it."""
    x = data(writer, dtype, (1, 32, 64))
    rng = np.random.default_rng(5)
    centred = writer.emit("sub", (x, writer.emit("mean", (x,), {"axes": (2,), "keepdims": True})))
    square = writer.emit("mul", (centred, centred))
    spread = writer.emit("add", (writer.emit("mean", (square,), {"axes": (2,), "keepdims": True}), writer.scalar(1e-5)))
    scaled = writer.emit("div", (centred, writer.emit("sqrt", (spread,))))
    gain, shift = (writer.new_constant("gain", rng.normal(size=64).astype(np.float32)) for _ in range(2))
    return writer.emit("add", (writer.emit("mul", (scaled, gain)), shift))


def quantized(writer: GraphBuilder, dtype: str) -> str:
    """Floats to integers."""
    x = writer.input("x", (1, 1024))
    made = writer.emit("quantize", (x,), {"scale": (0.05,), "zero_point": (3,), "axis": None, "out_dtype": "int8"})
    return writer.set_quant(made, quant("int8"), "int8")


def dequantized(writer: GraphBuilder, dtype: str) -> str:
    """Integers to floats."""
    x = data(writer, dtype, (1, 1024))
    return writer.emit(
        "dequantize", (x,), {"scale": (0.05,), "zero_point": (3 if dtype == "int8" else 0,), "axis": None}
    )


def recurrent(cell: str, steps: int, width: int, units: int) -> Application:
    """A layer of Keras's, over a sequence."""
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[cell]

    def write(writer: GraphBuilder, dtype: str) -> str:
        rng = np.random.default_rng(8)
        shapes = {"weights": (gates * units, width), "recurrent": (gates * units, units), "hidden": (1, units)}
        if cell == "lstm":
            shapes["cell"] = (1, units)
        operands = [
            writer.new_constant(name, (rng.normal(scale=0.1, size=shape) * (shape[0] > 1)).astype(np.float32))
            for name, shape in shapes.items()
        ]
        x = data(writer, dtype, (1, steps, width))
        return writer.emit_all(cell, (x, *operands))[0]

    return Application(f"{cell} {steps}x{width} to {units}", "row", write, steps * gates * units * (width + units))


def applications(dtype: str) -> tuple[Application, ...]:
    """All that make sense for a dtype of data."""
    image, flat = (1, 16, 16, 16), (1, 1024)
    window: dict[str, Any] = {"kernel": (2, 2), "strides": (2, 2)}
    bigger: dict[str, Any] = {"kernel": (3, 3), "strides": (1, 1), "padding": SAME}
    transposed, start = "conv2d_transpose", (0, 0, 0, 0)
    around, ones, two = ((0, 0), (1, 1), (1, 1), (0, 0)), (1,) * 4, {"groups": 2}
    common: tuple[Application, ...] = (
        conv("conv 1x1 16->32", image, (32, 1, 1, 16)),
        conv("conv 1x1 stride 2 16->32", image, (32, 1, 1, 16), strides=(2, 2)),
        conv("conv 1x1 13->17", (1, 9, 9, 13), (17, 1, 1, 13)),
        conv("conv 3x3 3->8 stride 2", (1, 48, 48, 3), (8, 3, 3, 3), strides=(2, 2), padding=(0, 0, 1, 1)),
        conv("conv 3x3 1->8", (1, 28, 28, 1), (8, 3, 3, 1), padding=SAME),
        conv("conv 3x3 16->16 same", image, (16, 3, 3, 16), padding=SAME),
        conv("conv 3x3 16->16 valid", image, (16, 3, 3, 16)),
        conv("conv 3x3 16->16 dilated", image, (16, 3, 3, 16), padding=(2, 2, 2, 2), dilation=(2, 2)),
        conv("conv 3x3 16->32 stride 2", image, (32, 3, 3, 16), padding=SAME, strides=(2, 2)),
        conv("conv 5x5 8->8 same", (1, 16, 16, 8), (8, 5, 5, 8), padding=(2, 2, 2, 2)),
        conv("depthwise 3x3 same", image, (16, 3, 3, 1), "depthwise", padding=SAME, groups=16),
        conv("depthwise 3x3 stride 2", image, (16, 3, 3, 1), "depthwise", padding=SAME, groups=16, strides=(2, 2)),
        conv("depthwise 3x3 valid", image, (16, 3, 3, 1), "depthwise", groups=16),
        conv("depthwise 5x5 same", image, (16, 5, 5, 1), "depthwise", padding=(2, 2, 2, 2), groups=16),
        conv("depthwise 3x3 dilated", image, (16, 3, 3, 1), "depthwise", padding=(2, 2, 2, 2), groups=16, dilation=(2, 2)),
        conv("depthwise 1x9 of 1x64", (1, 1, 64, 32), (32, 1, 9, 1), "depthwise", groups=32),
        conv("depthwise 9x1 of 64x1", (1, 64, 1, 32), (32, 9, 1, 1), "depthwise", groups=32),
        conv("depthwise 3x3 on 4x4x64", (1, 4, 4, 64), (64, 3, 3, 1), "depthwise", padding=SAME, groups=64),
        conv("depthwise 3x3 on 2x2x64", (1, 2, 2, 64), (64, 3, 3, 1), "depthwise", padding=SAME, groups=64),
        conv("depthwise multiplier 2", image, (32, 3, 3, 1), "depthwise", padding=SAME, groups=16),
        conv("depthwise multiplier 8 of 1", (1, 25, 20, 1), (8, 10, 8, 1), padding=(4, 3, 5, 4), strides=(2, 2)),
        conv("grouped 3x3 2 groups of 8", image, (16, 3, 3, 8), padding=SAME, **two),
        conv("grouped 3x3 4 groups of 4", image, (16, 3, 3, 4), padding=SAME, groups=4),
        conv("grouped 3x3 8 groups of 2", image, (16, 3, 3, 2), padding=SAME, groups=8),
        conv("grouped 1x1 2 groups of 8", image, (16, 1, 1, 8), **two),
        conv("grouped 1x1 8 groups of 2", image, (16, 1, 1, 2), groups=8),
        conv("grouped 1x1 4 groups 24->48", (1, 8, 8, 24), (48, 1, 1, 6), groups=4),
        conv("conv1d 3 of 64x16", (1, 1, 64, 16), (32, 1, 3, 16), padding=(0, 1, 0, 1)),
        conv("conv1d 5 of 128x1", (1, 1, 128, 1), (8, 1, 5, 1), padding=(0, 2, 0, 2)),
        conv("conv1d 3 dilated 4", (1, 1, 64, 16), (16, 1, 3, 16), padding=(0, 8, 0, 0), dilation=(1, 4)),
        conv("transposed 2x2 stride 2", (1, 8, 8, 16), (16, 2, 2, 16), op=transposed, strides=(2, 2)),
        conv("transposed 3x3 stride 2", (1, 8, 8, 16), (16, 3, 3, 16), op=transposed, strides=(2, 2), padding=(0, 0, 1, 1)),
        conv("transposed 4x4 stride 2 to 1", (1, 14, 14, 8), (1, 4, 4, 8), op=transposed, strides=(2, 2), padding=SAME),
        dense("dense 1x256 to 64", 1, 256, 64),
        dense("dense 1x100 to 10", 1, 100, 10),
        dense("dense 1x33 to 7", 1, 33, 7),
        dense("dense 16x64 to 32", 16, 64, 32),
        plain("matmul 32x32x32", "product", "matmul", (32, 32), (32, 32), scale=0.8),
        plain("matmul batch 4 of 32x16x32", "product", "matmul", (4, 32, 16), (4, 16, 32), scale=0.8),
        plain("max_pool 2x2", "pool", "max_pool2d", image, alike=True, **window),
        plain("max_pool 3x3 stride 1", "pool", "max_pool2d", image, alike=True, **bigger),
        plain("avg_pool 2x2", "scale", "avg_pool2d", image, alike=True, **window),
        plain("avg_pool 3x3 stride 1", "scale", "avg_pool2d", image, alike=True, **bigger),
        plain("global avg_pool 8x8x64", "reduce", "avg_pool2d", (1, 8, 8, 64), alike=True, kernel=(8, 8), strides=(8, 8)),
        plain("mean over 1 2", "reduce", "mean", (1, 8, 8, 64), axes=(1, 2)),
        plain("mean over last", "reduce", "mean", (16, 64), axes=(1,)),
        plain("sum over last", "reduce", "sum", (16, 64), axes=(1,), scale=0.5),
        plain("max over last", "reduce", "max", (16, 64), alike=True, axes=(1,)),
        plain("max over 1", "reduce", "max", (1, 64, 16), alike=True, axes=(1,)),
        plain("add", "sum", "add", image, image),
        plain("add of a channel's", "sum", "add", image, (16,)),
        plain("add of a pixel's", "sum", "add", image, (1, 16, 16, 1)),
        plain("sub", "sum", "sub", image, image),
        plain("mul", "sum", "mul", image, image),
        plain("mul of a channel's", "sum", "mul", image, (1, 1, 1, 16)),
        plain("maximum", "pool", "maximum", image, image, alike=True),
        plain("relu", "table", "relu", image),
        plain("relu of the same scale", "move", "relu", image, alike=True),
        plain("leaky_relu", "table", "leaky_relu", image, alpha=0.1),
        Application("prelu", "sum", prelu),
        plain("abs", "table", "abs", image, alike=True),
        fixed("sigmoid", "table" if dtype == "int8" else "function", "sigmoid", flat, (1 / 256, -128)),
        fixed("tanh", "table" if dtype == "int8" else "function", "tanh", flat, (1 / 128, 0)),
        fixed("softmax 1x10", "function", "softmax", (1, 10), (1 / 256, -128), axis=-1),
        fixed("softmax 16x64", "function", "softmax", (16, 64), (1 / 256, -128), axis=-1),
        plain("pad", "move", "pad", image, alike=True, padding=around, value=3),
        plain("pad channels", "move", "pad", image, alike=True, padding=((0, 0), (0, 0), (0, 0), (0, 4)), value=3),
        plain("slice inside", "move", "slice", image, alike=True, begin=(0, 2, 2, 0), end=(1, 14, 14, 16), strides=ones),
        plain("slice channels", "move", "slice", image, alike=True, begin=(0, 0, 0, 4), end=(1, 16, 16, 12), strides=ones),
        plain("slice every second", "move", "slice", image, alike=True, begin=start, end=image, strides=(1, 2, 2, 1)),
        plain("transpose 0 2 1", "shuffle", "transpose", (1, 32, 64), alike=True, axes=(0, 2, 1)),
        plain("transpose NHWC to NCHW", "shuffle", "transpose", image, alike=True, axes=(0, 3, 1, 2)),
        plain("transpose heads", "move", "transpose", (1, 32, 4, 16), alike=True, axes=(0, 2, 1, 3)),
        plain("concat channels", "move", "concat", (1, 16, 16, 8), image, alike=True, axis=3),
        plain("concat rows", "move", "concat", image, image, alike=True, axis=1),
        resized("resize nearest", (1, 8, 8, 16), False),
        resized("resize bilinear", (1, 8, 8, 16), True),
        Application("embedding", "move", embedding),
        plain("reverse", "shuffle", "reverse", (1, 64, 16), alike=True, axes=(1,)),
        plain("mirror_pad", "move", "mirror_pad", image, alike=True, padding=around, mode="reflect"),
        Application("space_to_depth", "move", space_to_depth),
        Application("depth_to_space", "move", depth_to_space),
        argmax(),
        plain("cumsum", "scale", "cumsum", (16, 64), axis=1),
        Application("dequantize", "scale", dequantized) if dtype != "float32" else Application("quantize", "scale", quantized),
    )  # fmt: skip
    if dtype == "int8":
        return (*common, plain("hard_swish", "table", "hard_swish", image), requantized())
    if dtype == "int16":
        refused = ("matmul 32", "prelu", "cumsum")
        return tuple(a for a in common if not a.name.startswith(refused))
    return (
        *common,
        plain("hard_swish", "scale", "hard_swish", image),
        plain("exp", "function", "exp", flat),
        plain("gelu's erf", "function", "erf", flat),
        Application("layer norm", "function", layer_norm),
        volume("conv3d 3x3x3 8->8", (1, 8, 8, 8, 8), (8, 8, 3, 3, 3)),
        volume("conv3d 3x3x3 1->8 stride 2", (1, 12, 12, 12, 1), (8, 1, 3, 3, 3), strides=(2, 2, 2)),
        volume("conv3d 1x1x1 8->16", (1, 8, 8, 8, 8), (16, 8, 1, 1, 1), padding=(0,) * 6),
        volume("conv3d 3x3x3 depthwise", (1, 8, 8, 8, 8), (8, 1, 3, 3, 3), groups=8),
        recurrent("lstm", 16, 16, 32),
        recurrent("gru", 16, 16, 32),
        recurrent("rnn", 16, 16, 32),
    )


def argmax() -> Application:
    def write(writer: GraphBuilder, dtype: str) -> str:
        return writer.emit("argmax", (data(writer, dtype, (16, 64)),), {"axis": -1, "out_dtype": "int32"})

    return Application("argmax", "pool", write)


def requantized() -> Application:
    def write(writer: GraphBuilder, dtype: str) -> str:
        attrs = {"scale": (0.07,), "zero_point": (1,), "axis": None, "out_dtype": "int8", "rounding": "double"}
        made = writer.emit("quantize", (data(writer, dtype, (1, 4096)),), attrs)
        return writer.set_quant(made, Quant((0.07,), (1,)), "int8")

    return Application("requantize", "table", write)


def space_to_depth(writer: GraphBuilder, dtype: str) -> str:
    x = writer.reshape(data(writer, dtype, (1, 16, 16, 16)), (1, 8, 2, 8, 2, 16))
    moved = writer.emit("transpose", (x,), {"axes": (0, 1, 3, 2, 4, 5)})
    return writer.reshape(moved, (1, 8, 8, 64))


def depth_to_space(writer: GraphBuilder, dtype: str) -> str:
    x = writer.reshape(data(writer, dtype, (1, 8, 8, 64)), (1, 8, 8, 2, 2, 16))
    moved = writer.emit("transpose", (x,), {"axes": (0, 1, 3, 2, 4, 5)})
    return writer.reshape(moved, (1, 16, 16, 16))
