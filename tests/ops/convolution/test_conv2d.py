# SPDX-License-Identifier: Apache-2.0
"""conv2d: the form of its tensor expression, layouts, refusals, and quantised convolutions against the plain formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from microc import te
from microc.base.dtypes import Array, int_range
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.numerics import (
    NUMPY,
    multiply_by_reduced_factor,
    multiply_double_rounding,
    quantize_multiplier,
    reduce_multiplier,
)
from microc.ops.arithmetic import activation_range
from microc.ops.convolution.conv2d import OPERATORS, count_conv2d_macs, evaluate_conv2d_reference
from microc.ops.convolution.geometry import DEFAULTS
from microc.ops.registry import OpCall, Operand
from microc.te.tensor import collect_tensors
from microc.tir import ir
from microc.tir.rewrite import walk_all_exprs
from tests.ops.harness import legalized, run_legalized

CONV = OPERATORS[0]


def stage_names(data: Sequence[int], weight: Sequence[int], **attrs: Any) -> tuple[tuple[str, ...], ir.PrimFunc]:
    """Computed stages in order, and their loops."""
    kinds = (TensorType(tuple(data), "int8"), TensorType(tuple(weight), "int8"))
    params: list[te.Tensor] = []

    def operand(kind: TensorType, known: Array | None) -> Operand:
        def view(shape: tuple[int, ...] | None = None) -> te.Tensor:
            params.append(te.placeholder(shape or kind.shape, kind.dtype, f"x{len(params)}"))
            return params[-1]

        return Operand(kind, known, view, lambda array: view(array.shape))

    attrs = {**DEFAULTS, "out_dtype": "int32", **attrs}
    operands = (operand(kinds[0], None), operand(kinds[1], np.zeros(weight, np.int8)))
    assert CONV.compute is not None
    out = CONV.compute(OpCall(attrs, operands, CONV.infer(attrs, kinds)))
    assert isinstance(out, te.Tensor)
    func = te.create_prim_func("conv", params, [out])
    return tuple(t.name for t in collect_tensors([out]) if t.definition is not None), func


def has_select(func: ir.PrimFunc) -> bool:
    return any(isinstance(e, ir.Select) for e in walk_all_exprs(func.body))


def test_stages_have_the_names_that_schedules_look_for() -> None:
    same = (1, 1, 1, 1)
    assert stage_names((1, 5, 5, 3), (4, 3, 3, 3))[0] == ("patch", "acc")
    assert stage_names((1, 5, 5, 3), (4, 1, 1, 3), strides=(2, 2))[0] == ("patch", "acc")
    assert stage_names((1, 5, 5, 3), (4, 1, 1, 3))[0] == ("acc",)
    assert stage_names((2, 5, 4, 3), (4, 5, 4, 3))[0] == ("acc",)
    assert stage_names((1, 5, 5, 3), (3, 3, 3, 1), groups=3)[0] == ("acc",)
    assert stage_names((1, 5, 5, 3), (3, 3, 3, 1), groups=3, padding=same)[0] == ("padded", "acc")
    assert stage_names((1, 5, 5, 4), (4, 3, 3, 2), groups=2, padding=same)[0] == ("padded", "acc")


def test_only_padding_costs_bounds_checks() -> None:
    assert not has_select(stage_names((1, 5, 5, 3), (4, 3, 3, 3))[1])
    assert not has_select(stage_names((1, 6, 5, 3), (4, 3, 3, 3), strides=(2, 2))[1])
    assert has_select(stage_names((1, 5, 5, 3), (4, 3, 3, 3), padding=(0, 0, 1, 0))[1])


def test_nchw_is_nhwc_transposed() -> None:
    rng = np.random.default_rng(1)
    data, weight = rng.integers(-9, 9, (2, 6, 5, 4)), rng.integers(-9, 9, (6, 3, 2, 2))
    attrs = {**DEFAULTS, "groups": 2, "strides": (2, 1), "padding": (1, 0, 2, 1), "pad_value": 3, "out_dtype": "int32"}
    (plain,) = evaluate_conv2d_reference(attrs, (data, weight))
    swapped = (np.moveaxis(data, 3, 1), np.moveaxis(weight, 3, 1))
    (other,) = evaluate_conv2d_reference({**attrs, "layout": "NCHW"}, swapped)
    np.testing.assert_array_equal(np.moveaxis(other, 1, 3), plain)
    kinds = tuple(TensorType(a.shape, "int8") for a in swapped)
    assert CONV.infer({**attrs, "layout": "NCHW"}, kinds)[0].shape == other.shape


def test_macs_count_every_tap() -> None:
    kinds = (TensorType((1, 8, 8, 4), "int8"), TensorType((6, 3, 3, 2), "int8"))
    attrs = {**DEFAULTS, "groups": 2, "padding": (1, 1, 1, 1)}
    assert count_conv2d_macs(attrs, kinds, CONV.infer(attrs, kinds)) == 8 * 8 * 6 * 9 * 2


@pytest.mark.parametrize(
    ("data", "weight", "groups"),
    [
        ((1, 4, 4, 3), (2, 3, 3, 2), 1),
        ((1, 4, 4), (2, 3, 3, 4), 1),
        ((1, 4, 4, 4), (3, 3, 3, 2), 2),
        ((1, 2, 2, 3), (2, 3, 3, 3), 1),
    ],
)
def test_contradicting_shapes_are_refused(data: tuple[int, ...], weight: tuple[int, ...], groups: int) -> None:
    with pytest.raises(ModelError):
        CONV.infer({**DEFAULTS, "groups": groups}, (TensorType(data, "int8"), TensorType(weight, "int8")))


# ---------------------------------------------------------------- quantised


class Quantised:
    """A quantised convolution: a graph of one node, with random data."""

    def __init__(
        self,
        data: tuple[tuple[int, ...], str, int],
        weight: tuple[tuple[int, ...], str, Sequence[int]],
        output: tuple[str, int],
        bias: str = "int32",
        known: bool = True,
        **attrs: Attr,
    ) -> None:
        rng = np.random.default_rng(7)
        channels = weight[0][0]
        scales = tuple(float(np.float32(0.01 + 0.003 * c)) for c in range(len(weight[2])))
        axis = 0 if len(scales) > 1 else None
        self.attrs = {**DEFAULTS, **attrs}
        self.x = self.random(rng, data[0], data[1])
        self.w = self.random(rng, weight[0], weight[1])
        self.b = rng.integers(-3000, 3000, channels).astype(bias or "int32")
        kinds = {
            "x": TensorType(data[0], data[1], Quant((float(np.float32(0.02)),), (data[2],))),
            "w": TensorType(weight[0], weight[1], Quant(scales, tuple(weight[2]), axis)),
            "b": TensorType((channels,), bias or "int32"),
        }
        shape = CONV.infer(self.attrs, (kinds["x"], kinds["w"]))[0].shape
        kinds["y"] = TensorType(shape, output[0], Quant((float(np.float32(0.05)),), (output[1],)))
        names = ("x", "w", "b") if bias else ("x", "w")
        consts = {"w": self.w, "b": self.b} if known else {}
        self.inputs: dict[str, Array] = {"x": self.x} if known else {"x": self.x, "w": self.w, "b": self.b}
        self.node = Node("conv2d", names, ("y",), self.attrs)
        self.graph = Graph("g", tuple(self.inputs), ("y",), (self.node,), kinds, consts)
        self.bias = bool(bias)

    @staticmethod
    def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
        low, high = int_range(dtype)
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)

    def accumulated(self) -> Array:
        """sum((x - zx) (w - zw)) + bias, zeros beyond the border."""
        kinds = self.graph.types
        assert kinds["x"].quant is not None and kinds["w"].quant is not None
        points = np.array(kinds["w"].quant.zero_point).reshape(-1, 1, 1, 1)
        x, w = self.x.astype(np.int64) - kinds["x"].quant.zero_point[0], self.w.astype(np.int64) - points
        bias = (self.b.astype(np.int64),) if self.bias else ()
        return evaluate_conv2d_reference({**self.attrs, "pad_value": 0, "out_dtype": "int64"}, (x, w, *bias))[0]

    def expected(self, wide: bool = False, single: bool = False) -> Array:
        """TFLite's result: scaled channel by channel in fixed point."""
        x, w, y = (self.graph.types[name].quant for name in "xwy")
        assert x is not None and w is not None and y is not None
        total = self.accumulated()
        scales = np.resize(np.array(w.scale), self.w.shape[0])
        axis = 1 if self.attrs["layout"] == "NCHW" else 3
        made = []
        for channel, scale in zip(np.moveaxis(total, axis, 0), scales, strict=True):
            product = float(np.float32(x.scale[0]) * np.float32(scale)) if single else x.scale[0] * float(scale)
            mantissa, shift = quantize_multiplier(product / y.scale[0])
            multiply = multiply_by_reduced_factor if wide else multiply_double_rounding
            mantissa = reduce_multiplier(mantissa) if wide else mantissa
            made.append(multiply(channel, mantissa, shift, NUMPY) + y.zero_point[0])
        dtype = self.graph.types["y"].dtype
        low, high = activation_range(str(self.attrs["activation"]), y, dtype)
        return np.moveaxis(np.clip(np.stack(made), low, high).astype(dtype), 0, axis)

    def result(self) -> Array:
        return run_legalized(self.node, self.graph, self.inputs)[0]


@pytest.mark.parametrize("activation", ["", "relu", "relu6", "relu_n1_to_1"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_int8_equals_the_plain_formula(activation: str, groups: int) -> None:
    conv = Quantised(
        ((1, 6, 5, 4), "int8", -7),
        ((8, 3, 3, 4 // groups), "int8", (0,) * 8),
        ("int8", 11),
        groups=groups,
        padding=(1, 1, 1, 0),
        strides=(2, 1),
        activation=activation,
    )
    np.testing.assert_array_equal(conv.result(), conv.expected())
    requantize = legalized(conv.node, conv.graph)[0][-1]
    assert requantize.op == "requantize" and 0 < requantize.attr("bound") < 1 << 30


@pytest.mark.parametrize(
    ("dtype", "weight", "points"),
    [("int8", "int8", (5,)), ("uint8", "uint8", (128,)), ("uint8", "uint8", (3,)), ("uint8", "int8", (0, 1, -2, 3))],
)
def test_weights_with_zero_points(dtype: str, weight: str, points: tuple[int, ...]) -> None:
    conv = Quantised(((1, 5, 5, 3), dtype, 100), ((4, 3, 3, 3), weight, points), (dtype, 90), padding=(1, 1, 1, 1))
    np.testing.assert_array_equal(conv.result(), conv.expected(single=dtype == "uint8" and len(points) == 1))
    _, types, _ = legalized(conv.node, conv.graph)
    shifted = [kind.dtype for name, kind in types.items() if name.endswith(".weight")]
    centred = conv.w.astype(np.int64) - np.array(points).reshape(-1, 1, 1, 1)
    assert shifted == ["int8" if centred.min() >= -128 and centred.max() <= 127 else "int16"]


def test_no_bias_and_no_zero_point_leave_no_bias() -> None:
    conv = Quantised(((1, 4, 4, 3), "int8", 0), ((4, 1, 1, 3), "int8", (0,) * 4), ("int8", 0), bias="")
    assert len(legalized(conv.node, conv.graph)[0][0].inputs) == 2
    np.testing.assert_array_equal(conv.result(), conv.expected())


@pytest.mark.parametrize("bias", ["int64", "int32", ""])
def test_int16_data(bias: str) -> None:
    conv = Quantised(((1, 4, 4, 3), "int16", 0), ((4, 3, 3, 3), "int8", (0,) * 4), ("int16", 0), bias=bias)
    np.testing.assert_array_equal(conv.result(), conv.expected(wide=bias != "int32"))
    nodes, types, _ = legalized(conv.node, conv.graph)
    assert types[nodes[0].outputs[0]].dtype == "int32", "27 products of 16 by 8 bits fit 32 bits"
    assert nodes[-1].attr("rounding") == ("double" if bias == "int32" else "wide")


def test_deep_int16_sums_take_64_bits() -> None:
    conv = Quantised(((1, 3, 3, 128), "int16", 0), ((2, 3, 3, 128), "int8", (0, 0)), ("int16", 0), bias="int64")
    nodes, types, _ = legalized(conv.node, conv.graph)
    assert types[nodes[0].outputs[0]].dtype == "int64"
    np.testing.assert_array_equal(conv.result(), conv.expected(wide=True))


def test_computed_weights_are_centred() -> None:
    conv = Quantised(
        ((1, 5, 5, 3), "int8", -3), ((4, 3, 3, 3), "int8", (9,)), ("int8", 4), known=False, padding=(1, 1, 1, 1)
    )
    np.testing.assert_array_equal(conv.result(), conv.expected())


def test_onnx_rounding_in_either_layout() -> None:
    for layout, data, weight in (("NHWC", (1, 5, 5, 3), (4, 3, 3, 3)), ("NCHW", (1, 3, 5, 5), (4, 3, 3, 3))):
        conv = Quantised(
            (data, "uint8", 120),
            (weight, "int8", (0,) * 4),
            ("uint8", 128),
            layout=layout,
            rounding="even",
            padding=(1, 1, 1, 1),
        )
        x, w, y = (conv.graph.types[name].quant for name in "xwy")
        assert x is not None and w is not None and y is not None
        scale = np.float32(x.scale[0]) * np.array(w.scale, np.float32) / np.float32(y.scale[0])
        scale = scale.reshape(-1, 1, 1) if layout == "NCHW" else scale
        real = np.rint(conv.accumulated().astype(np.float32) * scale) + 128
        np.testing.assert_array_equal(conv.result(), np.clip(real, 0, 255).astype(np.uint8))


def test_float_activation_becomes_a_node() -> None:
    kinds = {name: TensorType((1, 2, 2, 1), "float32") for name in "xwy"} | {"w": TensorType((1, 1, 1, 1), "float32")}
    node = Node("conv2d", ("x", "w"), ("y",), {**DEFAULTS, "activation": "relu6"})
    nodes, _, _ = legalized(node, Graph("g", ("x", "w"), ("y",), (node,), kinds))
    assert [n.op for n in nodes] == ["conv2d", "clip"]


def test_quantised_tanh_and_odd_weight_axes_are_refused() -> None:
    conv = Quantised(((1, 4, 4, 3), "int8", 0), ((4, 1, 1, 3), "int8", (0,) * 4), ("int8", 0), activation="tanh")
    with pytest.raises(UnsupportedError, match="tanh"):
        legalized(conv.node, conv.graph)
