# SPDX-License-Identifier: Apache-2.0
"""TFLite's operators that TFLite Micro has not: what they are spelled as computes what numpy says that they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend.tflite import reader as tflite
from tests.frontend.tflite_model import Op, Tensor, constant, model, quantised
from tests.ops.oracle import run, single
from tests.ops.test_tflite_kernels import data, ints

RNG = np.random.default_rng(21)
MOVED = ("float32", "int8", "int32", "bool")
NUMBERS = ("float32", "int32")


def check(op: Op, tensors: Sequence[Tensor], wanted: Callable[..., Array], *inputs: Array, **bound: Any) -> None:
    """The model of one operator gives what ``wanted`` gives of the same inputs."""
    (found,) = run(tflite.read_tflite(single(op, tensors), "one.tflite"), inputs)
    expected = np.asarray(wanted(*inputs))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, **(bound or {"rtol": 0, "atol": 0}))


def plain(name: str, dtype: str, *shape: int) -> Tensor:
    return Tensor(name, shape, dtype.upper())


@pytest.mark.parametrize("dtype", MOVED)
def test_beginnings_turned_round(dtype: str) -> None:
    def turned(x: Array) -> Array:
        return np.stack(
            [np.concatenate([row[:, :n][:, ::-1], row[:, n:]], 1) for row, n in zip(x, (2, 4, 0), strict=True)]
        )

    tensors = (plain("x", dtype, 3, 2, 4), ints("n", 2, 4, 0), plain("y", dtype, 3, 2, 4))
    fields = {"SeqDim": 2, "BatchDim": -3}
    check(
        Op("REVERSE_SEQUENCE", ("x", "n"), ("y",), "ReverseSequenceOptions", fields),
        tensors,
        turned,
        data(dtype, 3, 2, 4),
    )


@pytest.mark.parametrize("dtype", MOVED)
def test_diagonals(dtype: str) -> None:
    def made(x: Array) -> Array:
        return np.stack([np.diag(row) for row in x])

    tensors = (plain("x", dtype, 2, 3), plain("y", dtype, 2, 3, 3))
    check(Op("MATRIX_DIAG", ("x",), ("y",)), tensors, made, data(dtype, 2, 3))
    for rows, columns in ((3, 5), (4, 2), (1, 1)):
        least = min(rows, columns)

        def replaced(x: Array, d: Array, least: int = least) -> Array:
            x = x.copy()
            x[:, range(least), range(least)] = d
            return x

        shapes = ((2, rows, columns), (2, least))
        all_three = (plain("x", dtype, *shapes[0]), plain("d", dtype, *shapes[1]), plain("y", dtype, *shapes[0]))
        check(
            Op("MATRIX_SET_DIAG", ("x", "d"), ("y",)), all_three, replaced, *(data(dtype, *shape) for shape in shapes)
        )


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", ["SUM", "PROD", "MAX", "MIN"])
def test_segments(dtype: str, known: bool, name: str) -> None:
    """Rows of a negative number go; a segment without rows holds what changes nothing."""
    ends = np.finfo(np.float32) if dtype == "float32" else np.iinfo(np.int32)
    start = {"SUM": 0, "PROD": 1, "MAX": ends.min, "MIN": ends.max}[name]
    reduce: Any = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum}[name]
    numbers = np.array([2, -1, 0, 0, 2], np.int32)

    def grouped(x: Array, *_: Array) -> Array:
        made = np.full((4, 3), start, dtype)
        for row, number in zip(x, numbers, strict=True):
            if number >= 0:
                made[number] = reduce(made[number], row)
        return made

    tensors = (
        plain("x", dtype, 5, 3),
        constant("n", numbers) if known else plain("n", "int32", 5),
        ints("count", 4),
        plain("y", dtype, 4, 3),
    )
    rows = data(dtype, 5, 3) if dtype == "float32" else data("int8", 5, 3).astype(np.int32)
    inputs = (rows,) if known else (rows, numbers)
    op = Op(f"UNSORTED_SEGMENT_{name}", ("x", "n", "count"), ("y",))
    check(op, tensors, grouped, *inputs, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_sums_of_rows_that_follow_each_other(dtype: type) -> None:
    segments = constant("n", np.array([0, 0, 1, 1], dtype))
    check(
        Op("SEGMENT_SUM", ("x", "n"), ("y",)),
        (plain("x", "int32", 4, 2), segments, plain("y", "int32", 2, 2)),
        lambda x: x.reshape(2, 2, 2).sum(1, dtype=np.int32),
        data("int32", 4, 2),
    )


@pytest.mark.parametrize("dtype", MOVED)
def test_sparse_values(dtype: str) -> None:
    for at, shape, values in (([[1, 0], [3, 2]], (4, 3), (2,)), ([3, 1], (5,), ()), (2, (3,), ())):
        places = np.array(at, np.int64)

        def spread(x: Array, places: Array = places, shape: tuple[int, ...] = shape) -> Array:
            made = np.full(shape, 1, dtype)
            made[tuple(places.T) if places.ndim == 2 else places] = x
            return made

        tensors = (
            constant("at", places),
            constant("shape", np.array(shape, np.int64)),
            plain("x", dtype, *values),
            constant("rest", np.array(1, dtype)),
            plain("y", dtype, *shape),
        )
        check(Op("SPARSE_TO_DENSE", ("at", "shape", "x", "rest"), ("y",)), tensors, spread, data(dtype, *values))


@pytest.mark.parametrize("dtype", MOVED)
def test_elements_moved_apart(dtype: str) -> None:
    def apart(x: Array) -> Array:
        made = np.full((2, 7, 3), 1, dtype)
        made[:, ::3, ::2] = x
        return made

    tensors = (
        plain("x", dtype, 2, 3, 2),
        ints("by", 1, 3, 2),
        constant("rest", np.array(1, dtype)),
        plain("y", dtype, 2, 7, 3),
    )
    check(Op("DILATE", ("x", "by", "rest"), ("y",), "DilateOptions"), tensors, apart, data(dtype, 2, 3, 2))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_buckets(dtype: str) -> None:
    ends = (-4.0, 0.0, 2.5)
    tensors = (plain("x", dtype, 7), plain("y", "int32", 7))
    x = np.array([-9, -4, -3, 0, 2, 3, 100], dtype)
    op = Op("BUCKETIZE", ("x",), ("y",), "BucketizeOptions", {"Boundaries": ends})
    check(op, tensors, lambda x: np.asarray(np.searchsorted(ends, x, "right"), np.int32), x)


@pytest.mark.parametrize(("code", "meaning"), [("BITWISE_XOR", np.bitwise_xor), ("RIGHT_SHIFT", None)])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
def test_bits(code: str, meaning: Callable[..., Array] | None, dtype: str) -> None:
    info = np.iinfo(dtype)
    edges = np.array([info.min, info.min + 1, 0, 1, 5, info.max - 1, info.max], dtype)
    places = np.array([0, 1, 3, info.bits - 1, info.bits, 100, max(info.min, -2)], dtype)

    def shifted(a: Array, b: Array) -> Array:
        return np.asarray(a >> np.clip(b, 0, info.bits - 1).astype(dtype))

    tensors = (plain("a", dtype, 7, 1), plain("b", dtype, 7), plain("y", dtype, 7, 7))
    check(Op(code, ("a", "b"), ("y",)), tensors, meaning or shifted, edges[:, None], places)


def test_angles() -> None:
    y, x = (a.astype(np.float32).reshape(-1) for a in np.meshgrid([-2, -1e-3, 0.0, 3], [-5, -0.0, 0.0, 7]))
    tensors = (plain("a", "float32", 16), plain("b", "float32", 16), plain("y", "float32", 16))
    check(Op("ATAN2", ("a", "b"), ("y",)), tensors, np.arctan2, y, x, rtol=1e-6)


def test_rounded_to_steps() -> None:
    def steps(x: Array) -> Array:
        return np.asarray(np.round((np.clip(x, -2, 2) + 2) * 63.75) / 63.75 - 2, np.float32)

    fields = {"Min": -2.0, "Max": 2.0, "NumBits": 8}
    tensors = (plain("x", "float32", 50), plain("y", "float32", 50))
    x = np.linspace(-3, 3, 50, dtype=np.float32)
    nudged = 0.5 / 63.75  # zero is a step, so that all of them lie half a step beside those above
    check(Op("FAKE_QUANT", ("x",), ("y",), "FakeQuantOptions", fields), tensors, steps, x, atol=1.01 * nudged)


def test_neighbouring_channels() -> None:
    def normal(x: Array) -> Array:
        square, wide = x.astype(np.float64) ** 2, np.zeros((2, 3, 9))
        wide[:, :, 2:7] = square
        around = sum(wide[:, :, k : k + 5] for k in range(5))
        return np.asarray(x * (1.5 + 0.2 * around) ** -0.75, np.float32)[None]

    fields = {"Radius": 2, "Bias": 1.5, "Alpha": 0.2, "Beta": 0.75}
    op = Op("LOCAL_RESPONSE_NORMALIZATION", ("x",), ("y",), "LocalResponseNormalizationOptions", fields)
    tensors = (plain("x", "float32", 1, 2, 3, 5), plain("y", "float32", 1, 2, 3, 5))
    check(op, tensors, lambda x: normal(x[0]), data("float32", 1, 2, 3, 5), rtol=2e-6)


def volume_taps(weight: Array) -> Any:
    return [(tap, weight[tap]) for tap in np.ndindex(*weight.shape[:3])]


def test_volumes() -> None:
    weight = data("float32", 2, 1, 3, 2, 4)

    def correlated(x: Array) -> Array:
        padded = np.pad(x, [(0, 0), (0, 1), (0, 0), (1, 1), (0, 0)])
        made = np.zeros((1, 2, 3, 4, 4))
        for (d, _, w), tap in volume_taps(weight):
            made += padded[:, d : d + 3 : 2, :, w : w + 4] @ tap
        return np.asarray(np.maximum(made, 0), np.float32)

    fields = {"Padding": 0, "StrideD": 2, "StrideH": 1, "StrideW": 1, "FusedActivationFunction": 1}
    tensors = (plain("x", "float32", 1, 3, 3, 4, 2), constant("w", weight), plain("y", "float32", 1, 2, 3, 4, 4))
    op = Op("CONV_3D", ("x", "w"), ("y",), "Conv3DOptions", fields)
    check(op, tensors, correlated, data("float32", 1, 3, 3, 4, 2), atol=1e-4)


def test_volumes_enlarged() -> None:
    weight = data("float32", 2, 1, 3, 4, 2)

    def spread(x: Array) -> Array:
        made = np.zeros((1, 4, 3, 6, 4))
        for (d, _, w), tap in volume_taps(weight):
            made[:, d : d + 3 : 2, :, w : w + 4] += x @ tap.T
        return made.astype(np.float32)

    fields = {"Padding": 1, "StrideD": 2, "StrideH": 1, "StrideW": 1}
    tensors = (
        ints("shape", 1, 4, 3, 6, 4),
        constant("w", weight),
        plain("x", "float32", 1, 2, 3, 4, 2),
        plain("y", "float32", 1, 4, 3, 6, 4),
    )
    op = Op("CONV_3D_TRANSPOSE", ("shape", "w", "x"), ("y",), "Conv3DOptions", fields)
    check(op, tensors, spread, data("float32", 1, 2, 3, 4, 2), atol=1e-4)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_reductions_of_plain_integers(dtype: str) -> None:
    x = data("int8", 2, 5, 3).astype(dtype)
    for code, meaning in (("SUM", np.sum), ("REDUCE_MAX", np.max), ("REDUCE_MIN", np.min), ("REDUCE_PROD", np.prod)):
        tensors = (plain("x", dtype, 2, 5, 3), ints("axes", -2), plain("y", dtype, 2, 3))
        op = Op(code, ("x", "axes"), ("y",), "ReducerOptions", {"KeepDims": False})
        check(op, tensors, lambda x, meaning=meaning: meaning(x % 7, axis=1).astype(dtype), x % 7)


def test_no_axes_change_nothing() -> None:
    tensors = (plain("x", "float32", 2, 3), constant("axes", np.zeros(0, np.int32)), plain("y", "float32", 2, 3))
    check(Op("MEAN", ("x", "axes"), ("y",), "ReducerOptions"), tensors, lambda x: x, data("float32", 2, 3))


def test_what_is_known_when_compiling() -> None:
    x, y = plain("x", "float32", 2, 3), plain("y", "int32")
    check(Op("RANK", ("x",), ("y",)), (x, y), lambda x: np.array(2, np.int32), data("float32", 2, 3))
    for first, last, step in ((1, 9, 2), (5, 0, -2), (3, 3, 1)):
        numbers = np.arange(first, last, step).astype(np.int32)
        ends = [constant(name, np.array(n, np.int32)) for name, n in (("a", first), ("b", last), ("c", step))]
        tensors = (*ends, plain("y", "int32", len(numbers)))
        check(Op("RANGE", ("a", "b", "c"), ("y",), "RangeOptions"), tensors, lambda numbers=numbers: numbers)


def test_bits_of_constants_are_read_otherwise() -> None:
    bits = np.array([1.0, -2.5, np.inf], np.float32)
    tensors = (constant("x", bits), plain("y", "int32", 3))
    check(Op("BITCAST", ("x",), ("y",)), tensors, lambda: bits.view(np.int32))
    with pytest.raises(UnsupportedError, match="got float32 and int32, expected integers of equal width"):
        tflite.read_tflite(
            single(Op("BITCAST", ("x",), ("y",)), (plain("x", "float32", 3), plain("y", "int32", 3))), "one.tflite"
        )


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (3, 8), (6, 4)])
@pytest.mark.parametrize("code", ["COMPLEX_ABS", "REAL", "IMAG"])
def test_spectra_of_images(code: str, rows: int, columns: int) -> None:
    """The image (2, 3, 10) is cut or continued to rows by columns."""
    meaning: Any = {"COMPLEX_ABS": np.abs, "REAL": np.real, "IMAG": np.imag}[code]
    result = (2, rows, columns // 2 + 1)
    tensors = (
        Tensor("x", (2, 3, 10)),
        ints("n", rows, columns),
        Tensor("z", result, "COMPLEX64"),
        Tensor("y", result),
    )
    data_ = model(tensors, [Op("RFFT2D", ("x", "n"), ("z",), "Rfft2dOptions"), Op(code, ("z",), ("y",))], ["x"], ["y"])
    x = RNG.normal(size=(2, 3, 10)).astype(np.float32)
    (found,) = run(tflite.read_tflite(data_, "spectrum.tflite"), (x,))
    np.testing.assert_allclose(found, meaning(np.fft.rfft2(x, (rows, columns))), atol=2e-5)


def test_spectra_keep_their_parts_in_other_shapes() -> None:
    """As tf.signal.stft has them: frames become images of one row, spectra frames again."""
    tensors = (
        Tensor("x", (3, 1, 16)),
        ints("n", 1, 16),
        Tensor("z", (3, 1, 9), "COMPLEX64"),
        ints("shape", 3, 9),
        Tensor("r", (3, 9), "COMPLEX64"),
        ints("axis", 0),
        Tensor("e", (1, 3, 9), "COMPLEX64"),
        Tensor("y", (1, 3, 9)),
    )
    nodes = [
        Op("RFFT2D", ("x", "n"), ("z",), "Rfft2dOptions"),
        Op("RESHAPE", ("z", "shape"), ("r",)),
        Op("EXPAND_DIMS", ("r", "axis"), ("e",)),
        Op("COMPLEX_ABS", ("e",), ("y",)),
    ]
    x = data("float32", 3, 1, 16)
    (found,) = run(tflite.read_tflite(model(tensors, nodes, ("x",), ("y",)), "stft.tflite"), (x,))
    np.testing.assert_allclose(found, np.abs(np.fft.rfft(x[:, 0]))[None], atol=2e-5)


@pytest.mark.parametrize(("place", "wanted"), [((7, 2), 2), ((0, -1), 4)])
def test_slices_from_computed_places(place: tuple[int, int], wanted: int) -> None:
    """x[:, i] and x[i : i + 2], as loops over time have them."""
    one = (Tensor("x", (3, 5, 4)), plain("b", "int32", 2), plain("e", "int32", 2), ints("s", 1, 1), Tensor("y", (3, 4)))
    masks = {"BeginMask": 1, "EndMask": 1, "ShrinkAxisMask": 2}
    op = Op("STRIDED_SLICE", ("x", "b", "e", "s"), ("y",), "StridedSliceOptions", masks)
    begin, x = np.array(place, np.int32), data("float32", 3, 5, 4)
    (found,) = run(
        tflite.read_tflite(model(one, (op,), ("x", "b", "e"), ("y",)), "place.tflite"), (x, begin, begin + 1)
    )
    assert (found == x[:, wanted]).all()
    some = (Tensor("x", (5, 4)), plain("b", "int32", 1), plain("e", "int32", 1), ints("s", 1), Tensor("y", (2, 4)))
    op = Op("STRIDED_SLICE", ("x", "b", "e", "s"), ("y",), "StridedSliceOptions")
    (found,) = run(
        tflite.read_tflite(model(some, (op,), ("x", "b", "e"), ("y",)), "places.tflite"),
        (x[0], begin[1:], begin[1:] + 2),
    )
    assert (found == x[0, min(wanted, 3) :][:2]).all()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_dense_layers_by_computed_weights(dtype: str) -> None:
    """A product of two matrices that both are data, as TFLite's converter spells it."""
    x, w = data(dtype, 3, 6), data(dtype, 4, 6)
    quants = (((0.1,), (3,)), ((0.2,), (-5,)), ((1.5,), (7,))) if dtype == "int8" else (((), ()),) * 3
    tensors = [
        Tensor(name, shape, dtype.upper(), scale=scale, zero_point=zero)
        for name, shape, (scale, zero) in zip("xwy", ((3, 6), (4, 6), (3, 4)), quants, strict=True)
    ]
    op = Op("FULLY_CONNECTED", ("x", "w"), ("y",), "FullyConnectedOptions")
    (found,) = run(tflite.read_tflite(model(tensors, (op,), ("x", "w"), ("y",)), "product.tflite"), (x, w))
    if dtype == "float32":
        np.testing.assert_allclose(found, x @ w.T, rtol=1e-5)
    else:
        exact = (x.astype(int) - 3) @ (w.astype(int).T + 5) * (0.1 * 0.2 / 1.5) + 7
        assert np.abs(found - np.clip(exact, -128, 127)).max() <= 0.51


def test_parts_without_elements() -> None:
    """They may be joined, and padded."""
    places = (ints("b", 0, 2), ints("e", 2, 2), ints("s", 1, 1))
    cut = Op("STRIDED_SLICE", ("x", "b", "e", "s"), ("z",), "StridedSliceOptions")
    join = Op("CONCATENATION", ("z", "x"), ("y",), "ConcatenationOptions", {"Axis": 1})
    fill = Op("PAD", ("z", "p"), ("w",))
    borders = constant("p", np.array([[0, 0], [1, 2]], np.int32))
    tensors = (Tensor("x", (2, 4)), *places, Tensor("z", (2, 0)), borders, Tensor("w", (2, 3)), Tensor("y", (2, 4)))
    graph, x = (
        tflite.read_tflite(model(tensors, (cut, join, fill), ("x",), ("y", "w")), "empty.tflite"),
        data("float32", 2, 4),
    )
    joined, padded = run(graph, (x,))
    assert (joined == x).all() and padded.shape == (2, 3) and not padded.any()
    nothing = (Tensor("x", (2, 4)), ints("n", 0, 2), Tensor("y", (0, 8)))
    check(Op("TILE", ("x", "n"), ("y",)), nothing, lambda x: np.tile(x, (0, 2)), x)


def test_bytes_of_other_scales_are_joined_as_in_litert() -> None:
    """uint8, which old models have: each operand is brought to the result's scale."""
    tensors = (
        quantised("a", (2, 3), 0.05, 131, "UINT8"),
        quantised("b", (2, 1), 0.1, 128, "UINT8"),
        quantised("y", (2, 4), 0.05, 131, "UINT8"),
    )
    a, b = data("uint8", 2, 3), data("uint8", 2, 1)

    def joined(a: Array, b: Array) -> Array:
        moved = np.clip((b.astype(np.int64) - 128) * 2 + 131, 0, 255)
        return np.concatenate([a, moved.astype(np.uint8)], 1)

    op = Op("CONCATENATION", ("a", "b"), ("y",), "ConcatenationOptions", {"Axis": 1})
    check(op, tensors, joined, a, b)


def test_plain_integers_are_added_up() -> None:
    tensors = (*(plain(name, "int32", 3, 4) for name in "abc"), plain("y", "int32", 3, 4))
    check(
        Op("ADD_N", ("a", "b", "c"), ("y",)), tensors, lambda a, b, c: a + b + c, *(data("int32", 3, 4) for _ in "abc")
    )


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_variables_of_any_dtype(dtype: str) -> None:
    handle = Tensor("v", (), "RESOURCE")
    tensors = (plain("x", dtype, 3), handle, plain("old", dtype, 3), plain("y", dtype, 3))
    name = {"SharedName": "memory", "Container": ""}
    ops = [
        Op("VAR_HANDLE", (), ("v",), "VarHandleOptions", name),
        Op("READ_VARIABLE", ("v",), ("old",), "ReadVariableOptions"),
        Op("ASSIGN_VARIABLE", ("v", "x"), (), "AssignVariableOptions"),
        Op("RESHAPE", ("old",), ("y",), "ReshapeOptions", {"NewShape": (3,)}),
    ]
    graph = tflite.read_tflite(model(tensors, ops, ("x",), ("y",)), "variable.tflite")
    state, before = dict[str, Array](), np.zeros(3, dtype)
    for _ in range(3):
        x = data(dtype, 3)
        (found,) = run(graph, (x,), state)
        assert (found == before).all()
        before = x
