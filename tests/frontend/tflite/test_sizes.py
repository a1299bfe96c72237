# SPDX-License-Identifier: Apache-2.0
"""Sizes that a TFLite file leaves open, bound when reading or told when the network runs, and what networks compute from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import UsageError
from microc.frontend.tflite import reader as tflite
from tests.frontend.tflite_model import Op, Tensor, constant, model
from tests.ops.test_tflite_kernels import ints

RNG = np.random.default_rng(16)
KERNEL = RNG.normal(size=(3, 3, 3, 2)).astype(np.float32)


def open_tensor(name: str, *signature: int) -> Tensor:
    return Tensor(name, tuple(max(extent, 1) for extent in signature), signature=signature)


def part(source: str, first: str, last: str, target: str, shrink: int = 0) -> Op:
    fields = {"ShrinkAxisMask": shrink}
    return Op("STRIDED_SLICE", (source, first, last, "by_one"), (target,), "StridedSliceOptions", fields)


def heads() -> bytes:
    """Rows (N, T, 6) apart as (N, 2, T, 3), the shape computed from the data's, and summed."""
    numbers = [Tensor(name, (), "INT32") for name in ("n", "t")]
    known = [ints("by_one", 1), *(ints(f"at{k}", k) for k in range(3)), ints("order", 0, 2, 1, 3), ints("axis", 3)]
    known += [constant(name, np.array(value, np.int32)) for name, value in (("two", 2), ("three", 3))]
    computed = [Tensor("shape", (3,), "INT32"), Tensor("target", (4,), "INT32"), *numbers]
    data = [open_tensor("x", -1, -1, 6), open_tensor("apart", -1, -1, 2, 3), open_tensor("turned", -1, 2, -1, 3)]
    ops = (
        Op("SHAPE", ("x",), ("shape",), "ShapeOptions", {"OutType": 2}),
        part("shape", "at0", "at1", "n", 1),
        part("shape", "at1", "at2", "t", 1),
        Op("PACK", ("n", "t", "two", "three"), ("target",), "PackOptions", {"ValuesCount": 4}),
        Op("RESHAPE", ("x", "target"), ("apart",)),
        Op("TRANSPOSE", ("apart", "order"), ("turned",)),
        Op("SUM", ("turned", "axis"), ("y",), "ReducerOptions"),
    )
    return model((*data, *computed, *known, open_tensor("y", -1, 2, -1)), ops, ("x",), ("y",))


def wanted_heads(x: Array) -> Array:
    return np.asarray(x.reshape(*x.shape[:2], 2, 3).transpose(0, 2, 1, 3).sum(3))


def atrous() -> bytes:
    """A convolution with a step of two between its taps, as older converters write it: the border filled up to whole blocks."""
    pairs = [Tensor(name, (2,), "INT32") for name in ("size", "sum", "over", "lack", "end", "after")]
    known = [
        ints("by_one", 1),
        ints("at1", 1),
        ints("at3", 3),
        ints("block", 2, 2),
        ints("start", 2, 2),
        ints("none", 0, 0),
    ]
    data = [open_tensor("x", -1, -1, -1, 2), open_tensor("blocks", -1, -1, -1, 2), open_tensor("sums", -1, -1, -1, 3)]
    tables = [Tensor(name, (2, 2), "INT32") for name in ("paddings", "crops")]
    ops = (
        Op("SHAPE", ("x",), ("shape",), "ShapeOptions", {"OutType": 2}),
        part("shape", "at1", "at3", "size"),
        Op("FLOOR_MOD", ("size", "block"), ("over",), "FloorModOptions"),
        Op("SUB", ("block", "over"), ("lack",), "SubOptions"),
        Op("FLOOR_MOD", ("lack", "block"), ("end",), "FloorModOptions"),
        Op("ADD", ("end", "start"), ("after",), "AddOptions"),
        Op("PACK", ("start", "after"), ("paddings",), "PackOptions", {"ValuesCount": 2, "Axis": 1}),
        Op("PACK", ("none", "end"), ("crops",), "PackOptions", {"ValuesCount": 2, "Axis": 1}),
        Op("SPACE_TO_BATCH_ND", ("x", "block", "paddings"), ("blocks",)),
        Op("CONV_2D", ("blocks", "w"), ("sums",), "Conv2DOptions", {"Padding": 1, "StrideH": 1, "StrideW": 1}),
        Op("BATCH_TO_SPACE_ND", ("sums", "block", "crops"), ("y",)),
    )
    rest = (Tensor("shape", (4,), "INT32"), constant("w", KERNEL), open_tensor("y", -1, -1, -1, 3))
    return model((*data, *pairs, *known, *tables, *rest), ops, ("x",), ("y",))


def wanted_atrous(x: Array) -> Array:
    wide = np.pad(x.astype(np.float64), ((0, 0), (2, 2), (2, 2), (0, 0)))
    rows, columns = x.shape[1:3]
    taps = [
        wide[:, 2 * i : 2 * i + rows, 2 * j : 2 * j + columns] @ KERNEL[:, i, j].T.astype(np.float64)
        for i, j in np.ndindex(3, 3)
    ]
    return np.asarray(sum(taps))


def saved(path: Path, data: bytes) -> str:
    file = path / "open.tflite"
    file.write_bytes(data)
    return str(file)


@pytest.mark.parametrize("shape", [(1, 5, 6, 2), (2, 8, 7, 2), (1, 4, 4, 2)])
def test_paddings_that_are_computed(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = RNG.normal(size=shape).astype(np.float32)
    found = microc.compile(saved(tmp_path, atrous()), input_shapes={"x": shape})(x)
    np.testing.assert_allclose(found, wanted_atrous(x), rtol=1e-5, atol=1e-5)


def test_numbers_that_shapes_are_made_of_leave_no_nodes() -> None:
    graph = tflite.read_tflite(atrous(), "open.tflite", {"x": (1, 4, 4, 2)})
    assert {node.op for node in graph.nodes} == {"pad", "reshape", "transpose", "conv2d"}


@pytest.mark.parametrize("shape", [(1, 5, 6), (3, 8, 6)])
def test_shapes_that_are_computed(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = RNG.normal(size=shape).astype(np.float32)
    found = microc.compile(saved(tmp_path, heads()), input_shapes={"x": shape})(x)
    np.testing.assert_allclose(found, wanted_heads(x), rtol=1e-5, atol=1e-5)


def test_sizes_told_when_the_network_runs(tmp_path: Path) -> None:
    lib = microc.compile(saved(tmp_path, heads()), bounds={"x:1": 8, "batch": 3})
    for shape in ((1, 5, 6), (3, 8, 6), (2, 1, 6)):
        x = RNG.normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(lib(x), wanted_heads(x), rtol=1e-5, atol=1e-5)


def test_paddings_of_sizes_told_when_the_network_runs(tmp_path: Path) -> None:
    """Multiples of the block need none; others would need other layers."""
    file = saved(tmp_path, atrous())
    lib = microc.compile(file, bounds={"x:1": microc.Bound(12, step=2), "x:2": microc.Bound(10, step=2)})
    for shape in ((1, 6, 4, 2), (1, 12, 10, 2)):
        x = RNG.normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(lib(x), wanted_atrous(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match="multiples of a step"):
        microc.compile(file, bounds={"x:1": 12, "x:2": 9})


def test_sizes_that_nobody_gives_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown extents"):
        microc.compile(saved(tmp_path, heads()))
