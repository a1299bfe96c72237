# SPDX-License-Identifier: Apache-2.0
"""Kernels: what an operator becomes on a core, from tensor expressions to C. Shapes are small so that the texts are short."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np

from microc.compiler.lowering import kernel_selection
from microc.compiler.lowering.derivation import DerivedKernel, derive_kernel
from microc.compiler.lowering.kernel_builder import CompiledNetwork
from microc.compiler.lowering.kernel_selection import list_candidates
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.graph.ir import Graph, TensorType
from microc.schedule.schedule import Schedule
from microc.target import target_for
from tests.transform.network import Network

FIXED: dict[str, Any] = {
    "multiplier": 1518500250, "shift": -7, "shift_range": (-7, -7), "zero_point": 3, "input_zero_point": 0, "bound": 1 << 20,
    "minimum": -128, "maximum": 127, "out_dtype": "int8", "rounding": "double",
}  # fmt: skip


def bytes_of(net: Network, *shape: int, most: int = 99) -> str:
    return net.constant(net.rng.integers(-most, most, shape).astype(np.int8))


def convolution(
    size: tuple[int, int],
    data: int,
    units: int,
    kernel: int,
    padding: int = 0,
    groups: int = 1,
    algorithm: str = "",
    most: int = 99,
) -> Graph:
    net = Network(x=TensorType((1, *size, data), "int8"))
    weight = bytes_of(net, units, kernel, kernel, data // groups, most=most)
    bias = net.constant(np.arange(units, dtype=np.int32))
    attrs: dict[str, Any] = {"padding": (padding,) * 4, "groups": groups, "out_dtype": "int32", "pad_value": -1}
    net.op("requantize", net.op("conv2d", "x", weight, bias, **attrs, algorithm=algorithm), **FIXED)
    return net.graph()


def dense(units: int = 2, depth: int = 8, algorithm: str = "", most: int = 99) -> Graph:
    net = Network(x=TensorType((1, depth), "int8"))
    weight, bias = bytes_of(net, units, depth, most=most), net.constant(np.arange(units, dtype=np.int32))
    acc = net.op("dense", "x", weight, bias, out_dtype="int32", algorithm=algorithm)
    net.op("requantize", acc, **FIXED)
    return net.graph()


def dense_half() -> Graph:
    net = Network(x=(3, 8))
    net.op("relu", net.op("dense", "x", net.random(16, 8), net.random(16), algorithm="half"))
    return net.graph()


def dense_tables() -> Graph:
    net = Network(x=TensorType((9, 8), "int8"))
    weight = bytes_of(net, 2, 8, most=1)
    net.consts[weight] = net.consts[weight] * np.int8(99)
    net.op("dense", "x", weight, out_dtype="int32", algorithm="packed_tables")
    return net.graph()


def channel_scaling(rounding: str = "double") -> Graph:
    net = Network(x=TensorType((3, 5), "int32"))
    shifts = net.constant(np.arange(-9, -4, dtype=np.int8))
    multipliers = net.constant(np.full(5, 1518500250, np.int32))
    channels = {"multiplier": None, "shift": None, "shift_range": (-9, -5), "rounding": rounding}
    net.op("requantize", "x", multipliers, shifts, **{**FIXED, **channels})
    return net.graph()


def dense_float() -> Graph:
    net = Network(x=(1, 6))
    net.op("relu", net.dense("x", 2))
    return net.graph()


def convolution_float() -> Graph:
    net = Network(x=(1, 3, 3, 1))
    net.conv("x", 1, kernel=2, padding=0, layout="NHWC")
    return net.graph()


def one(
    op: str, kind: TensorType, operands: Callable[[Network], tuple[str, ...]] = lambda net: (), **attrs: Any
) -> Graph:
    """A graph of one operator whose first operand is the input."""
    net = Network(x=kind)
    net.op(op, "x", *operands(net), **attrs)
    return net.graph()


def two(op: str, kind: TensorType, **attrs: Any) -> Graph:
    net = Network(x=kind, y=kind)
    net.op(op, "x", "y", **attrs)
    return net.graph()


def table(net: Network) -> tuple[str, ...]:
    return (net.constant(np.arange(-128, 128, dtype=np.int8)[::-1].copy()),)


def exponentials(net: Network) -> tuple[str, ...]:
    return (net.constant(np.round(np.exp(-np.arange(256) / 16) * (2**31 - 1)).astype(np.int32)),)


QADD: dict[str, Any] = {
    "multiplier_a": 1 << 30, "shift_a": 0, "multiplier_b": 1500000000, "shift_b": -1, "zero_point": 3, "minimum": -128,
    "maximum": 127, "out_dtype": "int8", "rounding": "double", "zero_point_a": 1, "zero_point_b": -5, "left_shift": 20,
    "multiplier": 1300000000, "shift": -18, "negate_b": False,
}  # fmt: skip
BYTES, REALS = partial(TensorType, dtype="int8"), partial(TensorType, dtype="float32")

CASES: Mapping[str, tuple[str, str, Callable[[], Graph]]] = {
    "pointwise_m4": ("cortex-m4", "speed", partial(convolution, (1, 3), 4, 2, 1)),
    "pointwise_m55": ("cortex-m55", "speed", partial(convolution, (2, 2), 16, 2, 1)),
    "pointwise_m0": ("cortex-m0", "speed", partial(convolution, (1, 2), 3, 2, 1)),
    "pointwise_unit": ("cortex-m4+tensor16", "speed", partial(convolution, (8, 8), 16, 40, 1)),
    "pointwise_rv32": ("rv32imc", "size", partial(convolution, (1, 2), 3, 2, 1)),
    "pointwise_rvv": ("rv64gcv", "speed", partial(convolution, (3, 3), 8, 40, 1)),
    "depthwise_m4": ("cortex-m4", "size", partial(convolution, (3, 4), 2, 2, 2, 0, 2)),
    "depthwise_m55": ("cortex-m55", "speed", partial(convolution, (2, 4), 2, 2, 3, 1, 2)),
    "depthwise_m0": ("cortex-m0", "size", partial(convolution, (2, 4), 2, 2, 2, 0, 2)),
    "depthwise_vnni": ("x86-64-v4-vnni", "speed", partial(convolution, (3, 4), 8, 8, 3, 0, 8)),
    "winograd_m4": ("cortex-m4", "speed", partial(convolution, (4, 4), 4, 1, 3, algorithm="winograd")),
    "dense_m4": ("cortex-m4", "speed", dense),
    "dense_avr": ("avr", "size", dense),
    "dense_rv32": ("rv32imc", "speed", dense),
    "dense_float_m4": ("cortex-m4", "speed", dense_float),
    "convolution_float_host": ("host", "size", convolution_float),
    "softmax_float_host": ("host", "size", partial(one, "softmax", REALS((2, 5)), axis=-1, beta=1.0)),
    "softmax_m4": ("cortex-m4", "size", partial(one, "qsoftmax", BYTES((1, 4)), exponentials, out_dtype="int8")),
    "max_pool_m4": ("cortex-m4", "size", partial(one, "max_pool2d", BYTES((1, 4, 4, 4)), kernel=(2, 2), strides=(2, 2))),
    "average_pool_m0": ("cortex-m0", "size", partial(one, "avg_pool2d", BYTES((1, 4, 4, 2)), kernel=(4, 4), strides=(1, 1))),
    "add_m4": ("cortex-m4", "size", partial(two, "qadd", BYTES((9,)), **QADD)),
    "windows_vnni": ("x86-64-v4-vnni", "speed", partial(convolution, (3, 8), 4, 16, 3, 1)),
    "softmax_v3": ("x86-64-v3", "speed", partial(one, "softmax", REALS((3, 11)), axis=-1, beta=1.0)),
    "sigmoid_v3": ("x86-64-v3", "speed", partial(one, "sigmoid", REALS((16,)))),
    "erf_v3": ("x86-64-v3", "speed", partial(one, "erf", REALS((11,)))),
    "add_float_m55": ("cortex-m55", "speed", partial(two, "add", REALS((8,)))),
    "concat_m4": ("cortex-m4", "speed", partial(two, "concat", BYTES((2, 8)), axis=1)),
    "transpose_m4": ("cortex-m4", "size", partial(one, "transpose", BYTES((3, 5)), axes=(1, 0))),
    "lookup_m4": ("cortex-m4", "size", partial(one, "lookup", BYTES((9,)), table)),
    "requantize_m4": ("cortex-m4", "size", partial(one, "requantize", TensorType((5,), "int32"), **FIXED)),
    "requantize_m0": ("cortex-m0", "size", partial(one, "requantize", TensorType((5,), "int32"), **FIXED)),
    "requantize_float_m4": (
        "cortex-m4", "size",
        partial(one, "requantize_float", TensorType((5,), "int32"), scale=0.125, zero_point=3, minimum=-128, maximum=127,
                out_dtype="int8"),
    ),
    "requantize_channels_m4": ("cortex-m4", "size", channel_scaling),
    "requantize_once_m4": ("cortex-m4", "size", partial(channel_scaling, "single")),
    "requantize_once_m0": ("cortex-m0", "size", partial(channel_scaling, "single")),
    "requantize_once_m55": ("cortex-m55", "speed", partial(channel_scaling, "single")),
    "dense_half_m55": ("cortex-m55", "speed", dense_half),
    "clip_m55": ("cortex-m55", "speed", partial(one, "clip", BYTES((8,)), minimum=-128, maximum=100, rounding="")),
    "dense_paired_m4": ("cortex-m4", "size", partial(dense, 2, 20)),
    "pointwise_bits_m4": ("cortex-m4", "speed", partial(convolution, (1, 2), 8, 1, 1, algorithm="packed_halves", most=7)),
    "pointwise_bits_m55": ("cortex-m55", "speed", partial(convolution, (1, 2), 32, 2, 1, algorithm="packed_vectors", most=7)),
    "dense_bits_m4": ("cortex-m4", "speed", partial(dense, 4, 16, "packed_halves", 7)),
    "dense_bits_rv32": ("rv32imc", "speed", partial(dense, 2, 16, "packed", 7)),
    "dense_tables_m4": ("cortex-m4", "speed", dense_tables),
    "clip_m0": ("cortex-m0", "size", partial(one, "clip", BYTES((5,)), minimum=-128, maximum=100, rounding="")),
}  # fmt: skip
"""Core, goal, and a graph of one kernel."""


RULE: Mapping[str, str] = {
    "pointwise_m4": "matrix dsp",
    "softmax_float_host": "rows",
    "softmax_m4": "rows",
    "average_pool_m0": "generic",
    "pointwise_bits_m4": "matrix bit pairs",
    "dense_bits_m4": "matrix bit pairs",
    "dense_bits_rv32": "matrix bits",
    "dense_tables_m4": "matrix opened columns",
}
"""Rules of cases that are so small that another rule would be better, or the same rule with its loops unrolled."""


def _of_the_rule(name: str, candidates: list[tuple[int, Schedule]]) -> list[tuple[int, Schedule]]:
    return [(k, schedule) for k, schedule in candidates if schedule.rule == RULE.get(name, schedule.rule)]


@cache
def _compiled(name: str) -> CompiledNetwork:
    cpu, goal, make = CASES[name]
    with patch.object(kernel_selection, "list_candidates", lambda *given: _of_the_rule(name, list_candidates(*given))):
        return compile_network(make(), target_for(cpu), make_options(optimize=goal))


@cache
def derived(name: str) -> DerivedKernel:
    """The first kernel of a case."""
    return derive_kernel(_compiled(name), 0)


def _text(name: str) -> str:
    kernel, (cpu, goal, _) = derived(name), CASES[name]
    (part,) = kernel.parts
    trace = " ".join(map(str, part.schedule.trace))
    steps = "".join(f" * {line}\n" for line in textwrap.wrap(trace, 120, break_long_words=False))
    te = "".join(f" * {line}\n" for line in part.start.text.splitlines())
    head = f"{cpu}, {goal}: {part.schedule.rule} ({part.start.algorithm})"
    code = kernel.c[kernel.c.index(" */\n") + len(" */\n") :]  # behind its comment, which says the same
    return f"/* {head}\n *\n{te} *\n{steps} */\n{code}\n"


TEXTS: Mapping[str, Callable[[], str]] = {f"kernels/{name}.c": partial(_text, name) for name in CASES}
