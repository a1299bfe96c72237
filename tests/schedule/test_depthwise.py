# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions by planes: the same integers as the reference, in place too, and refusals of their primitives."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array, to_numpy
from microc.errors import ScheduleError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.convolution.geometry import DEFAULTS
from microc.ops.lowering import LoweredGroup, lower_group
from microc.ops.registry import get
from microc.schedule.identities import intrinsic_functions
from microc.schedule.rules import OURS
from microc.schedule.rules.rule import product_multiples
from microc.schedule.schedule import Schedule, replay_trace, trace_from_json, trace_to_json
from microc.target import target_for
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower import lower
from microc.tir.rewrite import walk_all_exprs, walk_stmt
from microc.tir.verify import verify
from tests.schedule.functions import matmul, outputs, padded_rows, schedule_kernel
from tests.support.native import UNDEFINED, build

M4 = target_for("cortex-m4")
PLANES = next(rule for rule in OURS if rule.name == "depthwise dsp")


@dataclass(frozen=True)
class Layer:
    """A depthwise convolution: data (height, width, channels), taps, and what differs from the plainest one."""

    data: tuple[int, int, int]
    taps: tuple[int, int]
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    times: int = 1
    batch: int = 1
    dtype: str = "int8"
    relu: bool = True
    bias: bool = True

    def group(self) -> tuple[Graph, LoweredGroup]:
        """conv2d and requantize with a multiplier and a shift for each channel."""
        dice, channels = np.random.default_rng(1), self.data[2] * self.times
        consts: dict[str, Array] = {
            "w": dice.integers(-127, 127, (channels, *self.taps, 1), endpoint=True).astype(np.int8),
            "b": dice.integers(-20000, 20000, channels).astype(np.int32),
            "m": dice.integers(1 << 30, (1 << 31) - 1, channels).astype(np.int32),
            "s": dice.integers(-12, -4, channels).astype(np.int8),
        }
        pad = -128 if self.dtype == "int8" else 0
        attrs: dict[str, Attr] = {
            **DEFAULTS,
            "padding": self.padding,
            "strides": self.strides,
            "dilation": self.dilation,
        }
        attrs |= {"groups": self.data[2], "pad_value": pad, "out_dtype": "int32"}
        names = ("x", "w", "b") if self.bias else ("x", "w")
        types = {name: TensorType(array.shape, str(array.dtype)) for name, array in consts.items()}
        types["x"] = TensorType((self.batch, *self.data), self.dtype)
        types["acc"] = get("conv2d").infer(attrs, [types[name] for name in names])[0]
        types["y"] = TensorType(types["acc"].shape, "int8")
        scaling: dict[str, Attr] = {"multiplier": None, "shift": None, "shift_range": (-12, -4), "input_zero_point": 0}
        scaling |= {
            "rounding": "double",
            "bound": ((1 << 22) << (8 if self.dtype == "int16" else 0)) + 20000,
            "zero_point": -128 if self.relu else 3,
        }
        scaling |= {"minimum": -128, "maximum": 127, "out_dtype": "int8"}
        nodes = (Node("conv2d", names, ("acc",), attrs), Node("requantize", ("acc", "m", "s"), ("y",), scaling))
        consts = {name: consts[name] for name in (*names[1:], "m", "s")}
        graph = Graph(
            "g", ("x",), ("y",), nodes, {n: t for n, t in types.items() if n in consts or n in "xaccy"}, consts
        )
        return graph, lower_group(graph, nodes, product_multiples(M4), "kernel")

    def input(self) -> Array:
        info = np.iinfo(to_numpy(self.dtype))
        return (
            np.random.default_rng(2)
            .integers(info.min, info.max, (self.batch, *self.data), endpoint=True)
            .astype(info.dtype)
        )


def reference(graph: Graph, x: Array) -> Array:
    values = {**graph.consts, "x": x}
    for node in graph.nodes:
        (values[node.outputs[0]],) = get(node.op).reference(dict(node.attrs), [values[name] for name in node.inputs])
    return values["y"]


def arguments(group: LoweredGroup, schedule: Schedule, func: ir.PrimFunc, x: Array) -> list[Array]:
    """Arrays for all parameters of the lowered function; memory that it fills starts with rubbish."""
    arrays = [
        x if param.array is None else schedule.packed(buffer, param.array)
        for buffer, param in zip(group.func.params, group.params, strict=False)
    ]
    return arrays + [np.full(p.shape, 77, to_numpy(p.dtype)) for p in func.params[len(arrays) :]]


SAME = (1, 1, 1, 1)
LAYERS: dict[str, Layer] = {
    "3x3": Layer((6, 8, 3), (3, 3), SAME),
    "odd width": Layer((5, 7, 2), (3, 3), SAME, relu=False),
    "tall": Layer((25, 5, 2), (3, 3), SAME),
    "one tile": Layer((3, 3, 4), (3, 3), SAME),
    "valid": Layer((7, 9, 2), (3, 3)),
    "stride 2": Layer((12, 12, 3), (3, 3), (0, 0, 1, 1), strides=(2, 2)),
    "stride 2, odd": Layer((9, 11, 3), (3, 3), SAME, strides=(2, 2)),
    "stride 1 by 2": Layer((6, 9, 2), (3, 3), SAME, strides=(1, 2)),
    "5x5": Layer((9, 10, 2), (5, 5), (2, 2, 2, 2), relu=False),
    "even taps": Layer((9, 10, 2), (4, 2), (2, 0, 1, 1)),
    "long": Layer((24, 1, 5), (10, 1), relu=False),
    "wide": Layer((1, 24, 5), (1, 7), (0, 3, 0, 3)),
    "column of taps": Layer((9, 40, 2), (3, 1), (1, 0, 1, 0)),
    "dilated": Layer((12, 12, 2), (3, 3), (2, 2, 2, 2), dilation=(2, 2)),
    "dilated by 3": Layer((12, 11, 2), (3, 3), (3, 3, 3, 3), dilation=(3, 3), relu=False),
    "dilated rows": Layer((12, 11, 2), (3, 3), (2, 1, 2, 1), dilation=(2, 1)),
    "several outputs": Layer((6, 6, 3), (3, 3), SAME, times=2),
    "batch": Layer((6, 6, 3), (3, 3), SAME, batch=2),
    "unsigned": Layer((6, 6, 3), (3, 3), SAME, dtype="uint8"),
    "16 bits": Layer((6, 8, 3), (3, 3), SAME, dtype="int16"),
    "16 bits, stride 2": Layer((9, 11, 3), (3, 3), SAME, strides=(2, 2), dtype="int16", relu=False),
    "no bias": Layer((6, 6, 3), (3, 3), SAME, bias=False),
}


@pytest.mark.parametrize("name", LAYERS)
def test_planes_are_exact(name: str) -> None:
    graph, group = LAYERS[name].group()
    assert PLANES.applies_to(Schedule(group.func), M4)
    schedule = schedule_kernel(group.func, "conv2d", M4)
    assert replay_trace(group.func, trace_from_json(trace_to_json(schedule.trace))).func == schedule.func
    func = lower(schedule.func)
    verify(func, tables=())
    assert any(isinstance(e, ir.Call) and e.name.startswith(("dot2", "mac_")) for e in walk_all_exprs(func.body))
    x = LAYERS[name].input()
    arrays = arguments(group, schedule, func, x)
    run(func, arrays, intrinsic_functions())
    np.testing.assert_array_equal(
        arrays[len(group.params)], reference(graph, x).reshape(arrays[len(group.params)].shape)
    )


@pytest.mark.parametrize("name", ["3x3", "stride 2", "batch"])
def test_planes_work_in_place(name: str, tmp_path: Path) -> None:
    """Stride 1 or not: a channel's results only overwrite what was read of that channel, or of one before it."""
    graph, group = LAYERS[name].group()
    schedule = schedule_kernel(group.func, "conv2d", M4)
    func = lower(schedule.func)
    library = build([func], tmp_path, UNDEFINED)
    x = LAYERS[name].input()
    arrays = arguments(group, schedule, func, x.copy())
    place = len(group.params)
    wanted = reference(graph, x)
    arrays[place] = arrays[0]
    library.call_kernel(*(ctypes.c_void_p(np.ascontiguousarray(a).ctypes.data) for a in arrays))
    np.testing.assert_array_equal(arrays[0].reshape(-1)[: wanted.size], wanted.reshape(-1))


def test_the_border_is_filled_once_and_sums_are_doubled_by_their_weights() -> None:
    _, group = LAYERS["3x3"].group()
    schedule = schedule_kernel(group.func, "conv2d", M4)
    func = lower(schedule.func)
    assert isinstance(func.body, ir.Seq) and len(func.body.body) == 2
    channels = func.body.body[1]
    assert isinstance(channels, ir.For) and channels.extent == ir.const(3, "int32")
    filled = [s for s in walk_stmt(channels) if isinstance(s, ir.Store) and isinstance(s.value, ir.Const)]
    assert not filled
    weight = next(k for k, p in enumerate(group.params) if p.role == "weight")
    array = group.params[weight].array
    assert array is not None
    packed = schedule.packed(group.func.params[weight], array)
    # runs go down: six outputs are a tile of four and one of two
    np.testing.assert_array_equal(packed, 2 * array.astype(np.int16).transpose(2, 1, 0))


def test_planes_are_for_bytes_that_are_used_again() -> None:
    for layer in (Layer((15, 1, 8), (15, 1)), Layer((8, 8, 4), (2, 2), strides=(2, 2)), Layer((6, 6, 4), (1, 1))):
        _, group = layer.group()
        assert not PLANES.applies_to(Schedule(group.func), M4)
    _, group = LAYERS["3x3"].group()
    assert not PLANES.applies_to(Schedule(group.func), target_for("cortex-m3"))


Steps = Callable[[Schedule], Schedule]

PADDED: dict[str, Steps] = {
    "decompose_padding": lambda s: s.decompose_padding("padded"),
    "decompose_padding inside": lambda s: (
        s.split("y_acc", (1, None)).compute_at("padded", "y_acc_0").decompose_padding("padded")
    ),
    "pad_reduction": lambda s: s.split("y_acc", (None, 3)).decompose_reduction("acc", "k").pad_reduction("acc"),
    "storage_align": lambda s: s.storage_align("padded", 1, 8),
}


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("lowered", [False, True], ids=["blocks", "lowered"])
def test_regular_loops_keep_the_meaning(name: str, lowered: bool) -> None:
    func = padded_rows(7, 4)
    schedule = PADDED[name](Schedule(func))
    np.testing.assert_array_equal(outputs(schedule.func, lowered=lowered), outputs(func, lowered=False))


REFUSED: dict[str, tuple[ir.PrimFunc, Steps]] = {
    "no border": (matmul(5, 8, 6), lambda s: s.decompose_padding("out")),
    "beyond an input": (matmul(5, 8, 6), lambda s: s.split("p", (None, 2)).pad_reduction("acc")),
    "align a parameter": (matmul(5, 8, 6), lambda s: s.storage_align("x", 1, 2)),
    "no such axis": (padded_rows(7, 4), lambda s: s.storage_align("padded", 5, 2)),
    "double what is read plainly": (
        matmul(5, 8, 6),
        lambda s: s.decompose_reduction("acc", "k").double_reduction("acc", "weight"),
    ),
    "defer what began": (matmul(5, 8, 6), lambda s: s.decompose_reduction("acc", "k").defer_init("acc")),
    "double no constant": (matmul(5, 8, 6), lambda s: s.decompose_reduction("acc", "k").double_reduction("acc", "x")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_teach(name: str) -> None:
    func, steps = REFUSED[name]
    with pytest.raises(ScheduleError) as refusal:
        steps(Schedule(func))
    assert refusal.value.what
