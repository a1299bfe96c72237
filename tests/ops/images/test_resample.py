# SPDX-License-Identifier: Apache-2.0
"""Operators that change the size of images, against TFLite Micro and against what they are made of."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.graph.ir import Graph, Node
from microc.ops import registry
from tests.frontend.tflite_model import Op, constant, quantised
from tests.ops.harness import run_legalized
from tests.ops.oracle import check, single

RNG = np.random.default_rng(7)


def random(kind: str, shape: tuple[int, ...]) -> Array:
    info = np.iinfo(kind)
    return RNG.integers(info.min, info.max, shape, kind, endpoint=True)


@pytest.mark.parametrize("definition", [c for c in registry.get("conv2d_transpose").cases() if not c.consts])
def test_phases_give_what_the_definition_gives(definition: registry.Case) -> None:
    """The convolution of all phases, put in place and cut, is the transposed convolution."""
    operator = registry.get("conv2d_transpose")
    arrays = [RNG.integers(-4, 5, kind.shape).astype(np.float32) for kind in definition.types]
    names = ("data", "weight", "bias")
    types = dict(zip(names, definition.types, strict=True))
    (result,) = operator.infer(definition.attrs, definition.types)
    consts = {"weight": arrays[1], "bias": arrays[2]}
    node = Node("conv2d_transpose", names, ("y",), definition.attrs)
    graph = Graph("g", ("data",), ("y",), (node,), {**types, "y": result}, consts)
    (got,) = run_legalized(node, graph, {"data": arrays[0]})
    np.testing.assert_array_equal(got, operator.reference(definition.attrs, arrays)[0])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize(
    ("extent", "kernel", "stride", "padding"),
    [
        ((3, 4), (3, 3), (2, 2), 0),
        ((3, 4), (4, 2), (2, 1), 0),
        ((2, 2), (2, 3), (3, 2), 1),
        ((1, 5), (1, 4), (1, 2), 1),
    ],
)
def test_transposed_convolutions(
    dtype: str, extent: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], padding: int
) -> None:
    sizes = [e * s if padding == 0 else (e - 1) * s + k for e, s, k in zip(extent, stride, kernel, strict=True)]
    scales = tuple(float(s) for s in RNG.uniform(0.002, 0.01, 3).astype(np.float32))
    zeros = (5, -9) if dtype == "int8" else (0, 0)
    bias = RNG.integers(-900, 900, 3).astype(np.int32 if dtype == "int8" else np.int64)
    tensors = (
        constant("shape", np.array([1, *sizes, 3], np.int32)),
        constant("weight", random("int8", (3, *kernel, 2)), scale=scales, zero_point=(0, 0, 0)),
        quantised("x", (1, *extent, 2), 0.03, zeros[0], dtype.upper()),
        constant("bias", bias, scale=tuple(s * 0.03 for s in scales), zero_point=(0, 0, 0)),
        quantised("y", (1, *sizes, 3), 0.07 if dtype == "int8" else 0.9, zeros[1], dtype.upper()),
    )
    fields = {"Padding": padding, "StrideW": stride[1], "StrideH": stride[0]}
    op = Op("TRANSPOSE_CONV", ("shape", "weight", "x", "bias"), ("y",), "TransposeConvOptions", fields)
    check(single(op, tensors), random(dtype, (1, *extent, 2)))


@pytest.mark.parametrize("code", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
@pytest.mark.parametrize(("corners", "centres"), [(False, False), (True, False), (False, True)])
def test_resizing_integers(code: str, corners: bool, centres: bool) -> None:
    options = "ResizeBilinearOptions" if code == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
    for extent, size in product(((3, 5), (1, 4)), ((6, 10), (2, 3), (7, 1), (1, 9))):
        tensors = (
            quantised("x", (2, *extent, 3), 0.1, 4),
            constant("size", np.array(size, np.int32)),
            quantised("y", (2, *size, 3), 0.1, 4),
        )
        fields = {"AlignCorners": corners, "HalfPixelCenters": centres}
        check(single(Op(code, ("x", "size"), ("y",), options, fields), tensors), random("int8", (2, *extent, 3)))


def test_prelu() -> None:
    dtype, low = "int8", -128
    for slopes in ((4,), (3, 4), (1,)):
        tensors = (
            quantised("x", (2, 3, 4), 0.05, low + 120, dtype.upper()),
            constant("slope", random(dtype, slopes), scale=(0.007,), zero_point=(low + 140,)),
            quantised("y", (2, 3, 4), 0.04, low + 100, dtype.upper()),
        )
        check(single(Op("PRELU", ("x", "slope"), ("y",)), tensors), random(dtype, (2, 3, 4)))
