# SPDX-License-Identifier: Apache-2.0
"""Single TFLite operators against TFLite Micro: choice, search, places, sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from tests.frontend.tflite_model import Op, Tensor, constant, quantised
from tests.ops.oracle import check, single
from tests.support.campaign import everything

RNG = np.random.default_rng(11)
S8 = {"scale": (0.05,), "zero_point": (7,)}


def data(dtype: str, *shape: int) -> Array:
    """Small floats with ties, or integers of the whole range."""
    if dtype == "float32":
        return np.round(RNG.normal(size=shape) * 4, 1).astype(np.float32)
    if dtype == "bool":
        return RNG.random(shape) < 0.5
    info = np.iinfo(dtype)
    return RNG.integers(max(info.min, -(1 << 20)), min(info.max, 1 << 20), shape, dtype, endpoint=True)


def tensor(name: str, dtype: str, *shape: int, scale: float = 0.05, zero: int = 7) -> Tensor:
    """A tensor without data, quantised if it is of 8 or 16 bits."""
    if dtype in ("int8", "int16"):
        return quantised(name, shape, scale, zero if dtype == "int8" else 0, dtype.upper())
    return Tensor(name, shape, dtype.upper())


def ints(name: str, *values: int, dtype: Any = np.int32) -> Tensor:
    return constant(name, np.array(values, dtype))


@pytest.mark.parametrize("code", ["EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "int32", "int64"])
def test_comparisons(code: str, dtype: str) -> None:
    for other, scale in (((3, 5), 0.05), ((5,), 0.013)):
        tensors = (
            tensor("a", dtype, 3, 5),
            tensor("b", dtype, *other, scale=scale, zero=-3),
            tensor("y", "bool", 3, 5),
        )
        a, b = data(dtype, 3, 5), data(dtype, *other)
        b.reshape(-1)[::2] = a.reshape(-1)[: b.size : 2]
        check(single(Op(code, ("a", "b"), ("y",)), tensors), a, b)


@pytest.mark.parametrize("code", ["LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT"])
def test_logic(code: str) -> None:
    inputs = ("a", "b")[: 1 if code == "LOGICAL_NOT" else 2]
    tensors = (*(tensor(name, "bool", 3, 5) for name in inputs), tensor("y", "bool", 3, 5))
    check(single(Op(code, inputs, ("y",)), tensors), *(data("bool", 3, 5) for _ in inputs))


@pytest.mark.parametrize("dtype", ["float32", "int8", "int16"])
def test_select(dtype: str) -> None:
    for shapes in (((2, 3), (2, 3), (2, 3)), ((3,), (2, 3), (1,)), ((2, 1), (2, 3), (3,))):
        kinds = zip(("c", "a", "b"), ("bool", dtype, dtype), shapes, strict=True)
        tensors = (*(tensor(name, kind, *shape) for name, kind, shape in kinds), tensor("y", dtype, 2, 3))
        arrays = (data("bool", *shapes[0]), data(dtype, *shapes[1]), data(dtype, *shapes[2]))
        check(single(Op("SELECT_V2", ("c", "a", "b"), ("y",)), tensors), *arrays)


@pytest.mark.parametrize("code", ["ARG_MAX", "ARG_MIN"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_search(code: str, dtype: str) -> None:
    for axis, result in ((0, (5, 3)), (1, (2, 3)), (-1, (2, 5))):
        tensors = (tensor("x", dtype, 2, 5, 3), ints("axis", axis), tensor("y", "int32", *result))
        options = "ArgMaxOptions" if code == "ARG_MAX" else "ArgMinOptions"
        check(single(Op(code, ("x", "axis"), ("y",), options, {"OutputType": 2}), tensors), data(dtype, 2, 5, 3))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_sums_of_all_before(dtype: str) -> None:
    for axis, exclusive, reverse in ((0, False, False), (1, True, False), (2, False, True), (-1, True, True)):
        tensors = (tensor("x", dtype, 2, 4, 3), ints("axis", axis), tensor("y", dtype, 2, 4, 3, scale=0.21, zero=-9))
        op = Op("CUMSUM", ("x", "axis"), ("y",), "CumsumOptions", {"Exclusive": exclusive, "Reverse": reverse})
        check(single(op, tensors), np.round(data(dtype, 2, 4, 3)))


@pytest.mark.parametrize("dtype", ["int8"])
def test_sums_of_many(dtype: str) -> None:
    names = ("a", "b", "c")
    tensors = (*(tensor(name, dtype, 4, 5) for name in names), tensor("y", dtype, 4, 5, scale=0.11, zero=-4))
    check(single(Op("ADD_N", names, ("y",)), tensors), *(data(dtype, 4, 5) for _ in names))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_gathers(dtype: str) -> None:
    places = constant("at", np.array([[1, 0], [2, 1]], np.int32))
    x = data(dtype, 2, 3, 4)
    for axis, batch, result in ((0, 0, (2, 2, 3, 4)), (1, 0, (2, 2, 2, 4)), (1, 1, (2, 2, 4)), (2, 1, (2, 3, 2))):
        at = constant("at", np.array([[1, 0], [0, 1]], np.int32)) if axis == 0 else places
        tensors = (tensor("x", dtype, 2, 3, 4), at, tensor("y", dtype, *result))
        op = Op("GATHER", ("x", "at"), ("y",), "GatherOptions", {"Axis": axis, "BatchDims": batch})
        check(single(op, tensors), x)
    tensors = (tensor("x", dtype, 3, 2, 4), places, tensor("y", dtype, 2, 4))
    check(single(Op("GATHER_ND", ("x", "at"), ("y",)), tensors), data(dtype, 3, 2, 4))


@pytest.mark.parametrize("dtype", ["float32", "int8", "int32"])
def test_places(dtype: str) -> None:
    x = data(dtype, 2, 3, 4)
    for mode, before in ((0, 2), (1, 3)):
        tensors = (
            tensor("x", dtype, 2, 3, 4),
            constant("pad", np.array([[0, 1], [before, 1], [0, 2]], np.int32)),
            tensor("y", dtype, 3, before + 4, 6),
        )
        if dtype != "int32":  # TFLite Micro's kernel lists int32, and fails
            check(single(Op("MIRROR_PAD", ("x", "pad"), ("y",), "MirrorPadOptions", {"Mode": mode}), tensors), x)
    tensors = (tensor("x", dtype, 2, 3, 4), ints("axes", 1), tensor("y", dtype, 2, 3, 4))
    check(single(Op("REVERSE_V2", ("x", "axes"), ("y",)), tensors), x)
    tensors = (tensor("x", dtype, 1, 3, 1), ints("shape", 2, 3, 4), tensor("y", dtype, 2, 3, 4))
    check(single(Op("BROADCAST_TO", ("x", "shape"), ("y",)), tensors), data(dtype, 1, 3, 1))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_blocks_of_pixels(dtype: str) -> None:
    """Without padding: TFLite Micro pads with what happens to be in memory."""
    crops = np.array([[1, 0], [0, 1]], np.int32)
    tensors = (
        tensor("x", dtype, 2, 4, 6, 2),
        ints("block", 2, 3),
        constant("pads", crops * 0),
        tensor("y", dtype, 12, 2, 2, 2),
    )
    check(single(Op("SPACE_TO_BATCH_ND", ("x", "block", "pads"), ("y",)), tensors), data(dtype, 2, 4, 6, 2))
    tensors = (
        tensor("x", dtype, 12, 2, 2, 2),
        ints("block", 2, 3),
        constant("crops", crops),
        tensor("y", dtype, 2, 3, 5, 2),
    )
    check(single(Op("BATCH_TO_SPACE_ND", ("x", "block", "crops"), ("y",)), tensors), data(dtype, 12, 2, 2, 2))


@pytest.mark.parametrize("dtype", ["float32", "int8", "int16"])
def test_parts_replaced(dtype: str) -> None:
    tensors = (
        tensor("x", dtype, 4, 5),
        tensor("u", dtype, 2, 3),
        Tensor("at", (2,), "INT32"),
        tensor("y", dtype, 4, 5),
    )
    for at in ((1, 2), (3, -1), (0, 9)):
        arrays = (data(dtype, 4, 5), data(dtype, 2, 3), np.array(at, np.int32))
        check(single(Op("DYNAMIC_UPDATE_SLICE", ("x", "u", "at"), ("y",)), tensors), *arrays)


@pytest.mark.parametrize("code", ["REDUCE_ALL"])
def test_reductions_of_truth(code: str) -> None:
    tensors = (tensor("x", "bool", 4, 5), ints("axes", 1), tensor("y", "bool", 4))
    check(
        single(Op(code, ("x", "axes"), ("y",), "ReducerOptions", {"KeepDims": False}), tensors),
        data("bool", 4, 5) | True,
    )


@pytest.mark.parametrize("code", ["FLOOR_DIV", "FLOOR_MOD"])
def test_quotients_rounded_down(code: str) -> None:
    a = np.array([7, -7, 7, -7, 6, -6, 0.3, 1e7], np.float32)
    b = np.array([2, 2, -2, -2, 3, 3, 0.1, 3.3], np.float32)
    tensors = (tensor("a", "float32", 8), tensor("b", "float32", 8), tensor("y", "float32", 8))
    check(single(Op(code, ("a", "b"), ("y",)), tensors), a, b)


def test_rows_of_a_table() -> None:
    table = data("int8", 5, 3)
    tensors = (
        Tensor("at", (4,), "INT32"),
        constant("table", table, scale=(0.5,), zero_point=(0,)),
        tensor("y", "float32", 4, 3),
    )
    check(single(Op("EMBEDDING_LOOKUP", ("at", "table"), ("y",)), tensors), np.array([4, 0, 2, 2], np.int32))


@pytest.mark.parametrize("dtype", ["float32", "int8", "int16"])
def test_squared_differences(dtype: str) -> None:
    for other, scale in (((3, 5), 0.05), ((5,), 0.013)):
        tensors = (
            tensor("a", dtype, 3, 5),
            tensor("b", dtype, *other, scale=scale, zero=-3),
            tensor("y", dtype, 3, 5, scale=0.3 if dtype == "int8" else 90.0, zero=-100),
        )
        operands = (np.round(data(dtype, 3, 5)), np.round(data(dtype, *other)))
        check(single(Op("SQUARED_DIFFERENCE", ("a", "b"), ("y",)), tensors), *operands)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("scale", [0.05, 0.031])
def test_sizes(dtype: str, scale: float) -> None:
    tensors = (tensor("x", dtype, 256), tensor("y", dtype, 256, scale=scale, zero=-20))
    check(single(Op("ABS", ("x",), ("y",)), tensors), data(dtype, 256))


def test_inverse_roots() -> None:
    tensors = (tensor("x", "int8", 248, zero=-120), tensor("y", "int8", 248, scale=0.02, zero=-100))
    check(single(Op("RSQRT", ("x",), ("y",)), tensors), np.arange(-120, 128).astype(np.int8))


def test_slopes_of_int16() -> None:
    tensors = (
        tensor("x", "int16", 4, 30),
        constant("slope", data("int8", 30), scale=(0.01,), zero_point=(3,)),
        tensor("y", "int16", 4, 30, scale=0.06),
    )
    check(single(Op("PRELU", ("x", "slope"), ("y",)), tensors), data("int16", 4, 30))


@pytest.mark.parametrize("dtype", ["float32", "int8", "int16"])
@pytest.mark.parametrize(("adjoint_x", "adjoint_y"), [(False, False), (True, False), (False, True)])
def test_products_of_matrices(dtype: str, adjoint_x: bool, adjoint_y: bool) -> None:
    x, y = (2, 4, 3) if adjoint_x else (2, 3, 4), (2, 5, 4) if adjoint_y else (2, 4, 5)
    tensors = (
        tensor("a", dtype, *x),
        tensor("b", dtype, *y, scale=0.02, zero=-4),
        tensor("y", dtype, 2, 3, 5, scale=0.2 if dtype == "int8" else 60.0, zero=9),
    )
    fields = {"AdjX": adjoint_x, "AdjY": adjoint_y}
    op = Op("BATCH_MATMUL", ("a", "b"), ("y",), "BatchMatMulOptions", fields)
    check(single(op, tensors), np.round(data(dtype, *x)), np.round(data(dtype, *y)))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_slices_backwards(dtype: str) -> None:
    for begin, end, strides, masks, result in (
        ((1, 4), (-3, 0), (-1, -2), (0, 0), (2, 2)),
        ((0, 0), (0, 0), (-1, 1), (1, 3), (2, 5)),
        ((0, -1), (2, 1), (1, -1), (0, 0), (2, 3)),
    ):
        tensors = (
            tensor("x", dtype, 2, 5),
            ints("begin", *begin),
            ints("end", *end),
            ints("strides", *strides),
            tensor("y", dtype, *result),
        )
        fields = {"BeginMask": masks[0], "EndMask": masks[1]}
        op = Op("STRIDED_SLICE", ("x", "begin", "end", "strides"), ("y",), "StridedSliceOptions", fields)
        check(single(op, tensors), data(dtype, 2, 5))


def test_root_mean_squares_of_windows() -> None:
    tensors = (tensor("x", "float32", 1, 4, 4, 2), tensor("y", "float32", 1, 2, 2, 2))
    fields = {"FilterHeight": 2, "FilterWidth": 3, "StrideH": 2, "StrideW": 2, "Padding": 0}
    x = np.where(data("float32", 1, 4, 4, 2) > 0, 3.0, -3.0).astype(np.float32)
    check(single(Op("L2_POOL_2D", ("x",), ("y",), "Pool2DOptions", fields), tensors), x)


def test_quotients_of_bytes() -> None:
    """Dividends next to zero are left out: TFLite Micro shifts them by more than 31 bits."""
    a = np.array([n if abs(n - 4) > 8 else 40 for n in range(-128, 128)], np.int8)
    b = np.array([-128, -100, -9, -8, -6, -5, 0, 1, 60, 127], np.int8)
    for zero in (-7, 3):
        tensors = (
            tensor("a", "int8", 256, 1, zero=4),
            tensor("b", "int8", 10, scale=0.02, zero=zero),
            tensor("y", "int8", 256, 10, scale=0.11, zero=-9),
        )
        check(single(Op("DIV", ("a", "b"), ("y",), "DivOptions"), tensors), a[:, None], b)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_rows_of_length_one(dtype: str) -> None:
    x = data(dtype, 5, 40)
    x[0] = 7
    x[1, 1:] = 7
    if dtype == "float32":
        x = np.where(np.arange(40) == np.arange(5)[:, None], np.float32(3), np.float32(0))
    scale = 1 / 128
    tensors = (tensor("x", dtype, 5, 40), tensor("y", dtype, 5, 40, scale=scale, zero=0))
    check(single(Op("L2_NORMALIZATION", ("x",), ("y",), "L2NormOptions"), tensors), x)


@pytest.mark.parametrize("scale", [0.2, 0.05, 0.004, 1.3])
def test_logarithms_of_probabilities(scale: float) -> None:
    for classes in (2, 10, 300):
        tensors = (
            tensor("x", "int8", 7, classes, scale=scale),
            tensor("y", "int8", 7, classes, scale=1 / 16, zero=127),
        )
        x = data("int8", 7, classes)
        x[0] = 5
        x[1, 1:] = -128
        check(single(Op("LOG_SOFTMAX", ("x",), ("y",), "LogSoftmaxOptions"), tensors), x)


@pytest.mark.parametrize(("scale", "out"), [(0.05, 0.04), (1 / 32768, 0.02), (0.7, 0.0007)])
def test_roots_of_words(scale: float, out: float) -> None:
    """Of all words where everything is asked for, else of every 17th; 0 and 32767 are among both."""
    words = np.append(np.arange(0, 32767, 1 if everything() else 17), 32767).astype(np.int16)
    tensors = (tensor("x", "int16", words.size, scale=scale), tensor("y", "int16", words.size, scale=out))
    check(single(Op("RSQRT", ("x",), ("y",)), tensors), words)
