# SPDX-License-Identifier: Apache-2.0
"""Constants that TFLite Micro stores compressed, its circular buffers, and what these let run only now and then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_graph
from microc.errors import ModelError, UnsupportedError
from microc.frontend.tflite import reader as tflite
from microc.frontend.tflite.builder import ControlSubgraph, TfliteGraphBuilder
from microc.frontend.tflite.context import OpContext
from microc.frontend.tflite.file import TfliteFile
from microc.frontend.tflite.operators_gather import CONVERTERS
from microc.graph.ir import Loc
from microc.target import target_for
from tests.frontend.run import library
from tests.frontend.tflite_model import Op, Tensor, constant, model, quantised
from tests.ops.oracle import run, tflm

RNG = np.random.default_rng(6)


def header(kind: int, *more: int) -> bytes:
    """Kind and version of the operator, version of the kind, and what the kind wants."""
    return bytes([kind, 1, 0, 0, 1, *more]).ljust(16, b"\0")


def packed(numbers: Array, width: int) -> bytes:
    """Numbers of so many bits, the highest first."""
    bits = numbers.reshape(-1, 1) >> np.arange(width)[::-1] & 1
    return np.packbits(bits.astype(np.uint8).reshape(-1)).tobytes().ljust(-(-numbers.size * width // 32) * 4, b"\0")


def model_of(bits: bytes, how: bytes, made: Tensor) -> bytes:
    """The constant, decoded, plus the input."""
    x = Tensor("x", made.shape, made.dtype, scale=made.scale[:1], zero_point=made.zero_point[:1])
    tensors = [
        x,
        Tensor("bits", (len(bits),), "UINT8", bits),
        Tensor("how", (len(how),), "UINT8", how),
        made,
        Tensor("y", made.shape, made.dtype, scale=made.scale[:1], zero_point=made.zero_point[:1]),
    ]
    decode = Op("CUSTOM", ("bits", "how"), ("w",), custom="TFLM_DECODE", custom_options=b"\0")
    return model(tensors, [decode, Op("MAXIMUM", ("x", "w"), ("y",))], ["x"], ["y"])


def check(data: bytes, wanted: Array) -> None:
    """TFLite Micro and we decode the same, which is what was meant."""
    low = np.full(wanted.shape, np.finfo(np.float32).min if wanted.dtype.kind == "f" else np.iinfo(wanted.dtype).min)
    x = low.astype(wanted.dtype)
    graph = tflite.read_tflite(data, "compressed.tflite")
    np.testing.assert_array_equal(run(graph, (x,))[0], wanted)
    np.testing.assert_array_equal(tflm(data, x), wanted)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "float32"])
@pytest.mark.parametrize("width", range(1, 8))
def test_values_from_a_table(dtype: str, width: int) -> None:
    values = np.sort(RNG.integers(-100, 100, 1 << width)).astype(dtype)
    places = RNG.integers(0, 1 << width, (5, 7))
    made = Tensor("w", (5, 7), dtype.upper(), scale=(0.5,) if dtype in ("int8", "int16") else (), zero_point=(0,))
    how = header(0, width, 1 << width) + values.tobytes()
    check(model_of(packed(places, width), how, made), values[places])


@pytest.mark.parametrize("axis", [0, 2])
def test_a_table_for_every_channel(axis: int) -> None:
    values, places = RNG.integers(-9, 9, (3, 5)).astype(np.int8), RNG.integers(0, 5, (3, 4, 3))
    channel = np.arange(3).reshape([-1 if k == axis else 1 for k in range(3)])
    made = Tensor("w", (3, 4, 3), "INT8", scale=(0.5, 0.25, 1.0), zero_point=(0, 0, 0), axis=axis)
    data = model_of(packed(places, 3), header(0, 3, 5) + values.tobytes(), made)
    wanted = values[channel, places]
    np.testing.assert_array_equal(decoded_constant(data), wanted)


def decoded_constant(data: bytes) -> Array:
    """What ``w`` holds, which is decoded first."""

    def none(index: int, _: Mapping[int, str]) -> ControlSubgraph:
        raise AssertionError(index)

    file = TfliteFile(data, "m.tflite")
    builder = TfliteGraphBuilder(file, {}, none)
    CONVERTERS.by_code["CUSTOM:TFLM_DECODE"].convert(OpContext(file.operator(0), builder, Loc("m.tflite", 0, "w")))
    return builder.consts["w"]


def test_a_layer_by_a_table_stays_packed() -> None:
    """In flash are indices and tables, and the firmware's sums are TFLite Micro's."""
    values, places = RNG.integers(-127, 128, (32, 16)).astype(np.int8), RNG.integers(0, 16, (32, 96))
    made = Tensor("w", (32, 96), "INT8", scale=(0.01,) * 32, zero_point=(0,) * 32)
    bits, how = packed(places, 4), header(0, 4, 16) + values.tobytes()
    tensors = [
        quantised("x", (24, 96), 0.1, 3),
        Tensor("bits", (len(bits),), "UINT8", bits),
        Tensor("how", (len(how),), "UINT8", how),
        made,
        quantised("y", (24, 32), 0.5, -7),
    ]
    decode = Op("CUSTOM", ("bits", "how"), ("w",), custom="TFLM_DECODE", custom_options=b"\0")
    dense = Op("FULLY_CONNECTED", ("x", "w"), ("y",), "FullyConnectedOptions")
    data, x = model(tensors, [decode, dense], ["x"], ["y"]), RNG.integers(-128, 128, (24, 96), np.int8)
    graph, size = tflite.read_tflite(data, "compressed.tflite"), make_options(optimize="size")
    module = compile_graph(graph, "net", target_for("cortex-m4"), size)
    (weight,) = (v for v in module.values.values() if v.label.endswith("_weight"))
    assert weight.nbytes == len(bits) + values.size
    np.testing.assert_array_equal(library(graph, size)(x), tflm(data, x))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "float32"])
def test_pruned_values(dtype: str) -> None:
    values = RNG.integers(1, 100, (5, 9)).astype(dtype) * (RNG.random((5, 9)) < 0.4).astype(dtype)
    zero = 3 if dtype == "int8" else 0
    values[values == 0] = zero
    kept = values != zero
    made = Tensor("w", (5, 9), dtype.upper(), scale=(0.5,) if dtype in ("int8", "int16") else (), zero_point=(zero,))
    check(model_of(packed(kept, 1), header(2) + values[kept].tobytes(), made), values)


CODES = {5: "0", -7: "10", 100: "1100", -128: "1101", 3: "111"}
"""A prefix code of five symbols."""


def table(wide: bool) -> bytes:
    """The tables of that code: a first one of four entries, and two that it leads to."""
    count_at, found = (27, 1 << 31) if wide else (11, 1 << 15)

    def symbol(value: int, bits: int) -> int:
        return found | bits << count_at | value & (0xFFFF if wide else 0xFF)

    first = [symbol(5, 1), symbol(5, 1), symbol(-7, 2), (2 - 1) << count_at | 4 - 3]
    second = [symbol(100, 2), symbol(-128, 2), symbol(3, 1), symbol(3, 1)]
    return np.array(first + second, np.uint32 if wide else np.uint16).tobytes()


@pytest.mark.parametrize(("dtype", "wide"), [("int8", False), ("int8", True), ("int16", True)])
def test_code_words(dtype: str, wide: bool) -> None:
    values = RNG.choice(list(CODES), (6, 11)).astype(dtype)
    text = "".join(CODES[int(value)] for value in values.reshape(-1))
    bits = np.packbits(np.array([int(bit) for bit in text], np.uint8)).tobytes()
    made = Tensor("w", (6, 11), dtype.upper(), scale=(0.5,), zero_point=(0,))
    stored = bits.ljust(-(-len(bits) // 4) * 4 + 4, b"\0")
    check(model_of(stored, header(1, int(wide) | 1 << 4) + table(wide), made), values)


BROKEN: dict[str, tuple[bytes, bytes]] = {
    "got 1 compressed bytes, expected 31": (b"\0", header(0, 7, 4) + bytes(4)),
    "got index 7 of the value table, expected 0..3": (b"\xff" * 64, header(0, 3, 4) + bytes(4)),
    "indices of 0 bits": (b"\0" * 64, header(0, 0, 4) + bytes(4)),
    "leads beyond": (b"\xff" * 64, header(1, 1 << 4) + bytes(16)),
    "format version is not supported": (b"\0" * 64, bytes(20)),
    "compression type 127": (b"\0" * 64, header(127)),
}


@pytest.mark.parametrize("message", BROKEN)
def test_damage_is_named(message: str) -> None:
    bits, how = BROKEN[message]
    made = Tensor("w", (5, 7), "INT8", scale=(0.5,), zero_point=(0,))
    with pytest.raises(ModelError, match=message):
        tflite.read_tflite(model_of(bits, how, made), "broken.tflite")


# ---------------------------------------------------------------- circular buffers


def stream(period: int, **options: Any) -> bytes:
    """A buffer of three rows, what it holds added up, and a second buffer of two sums."""
    tensors = [
        quantised("x", (1, 1, 2, 2), 0.5, 1),
        quantised("rows", (1, 3, 2, 2), 0.5, 1),
        constant("axes", np.array([1], np.int32)),
        quantised("sum", (1, 1, 2, 2), 0.5, 1),
        quantised("sums", (1, 2, 2, 2), 0.5, 1),
    ]
    first = options or {"cycles_max": period}
    ops = [
        Op("CUSTOM", ("x",), ("rows",), custom="CIRCULAR_BUFFER", custom_fields=first),
        Op("REDUCE_MAX", ("rows", "axes"), ("sum",), "ReducerOptions", {"KeepDims": True}),
        Op("CUSTOM", ("sum",), ("sums",), custom="CIRCULAR_BUFFER", custom_fields={"cycles_max": 1}),
    ]
    return model(tensors, ops, ["x"], ["sums", "rows"])


@pytest.mark.parametrize("period", [1, 2, 3])
def test_what_is_behind_a_buffer_runs_once_a_period(period: int) -> None:
    """The compiled network; outputs stay as they are in between."""
    lib = library(tflite.read_tflite(stream(period), "stream.tflite"))
    rows, sums = np.full((1, 3, 2, 2), 1, np.int8), np.full((1, 2, 2, 2), 1, np.int8)
    for call in range(1, 10):
        x = RNG.integers(-128, 128, (1, 1, 2, 2), np.int8)
        rows = np.concatenate([rows[:, 1:], x], 1)
        if call % period == 0:
            sums = np.concatenate([sums[:, 1:], rows.max(1, keepdims=True)], 1)
        found = lib(x)
        np.testing.assert_array_equal(found[0], sums)
        np.testing.assert_array_equal(found[1], rows)


def test_a_buffer_without_a_period_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="cycles_max"):
        tflite.read_tflite(stream(1, cycles=3), "stream.tflite")
