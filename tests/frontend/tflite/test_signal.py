# SPDX-License-Identifier: Apache-2.0
"""Operators on signals against TFLite Micro, over several calls: what they remember is state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.frontend.tflite import reader as tflite
from tests.frontend.tflite_model import Op, Tensor, model
from tests.ops.oracle import run

RNG = np.random.default_rng(9)


def check(op: Op, tensors: Sequence[Tensor], dtype: str, calls: int = 6, valid: int = -1, **bound: Any) -> None:
    """All outputs of every call; where output ``valid`` is false, the first one is whatever it may be."""
    runtime = pytest.importorskip("tflite_micro").runtime
    data = model(tensors, (op,), (op.inputs[0],), op.outputs)
    interpreter = runtime.Interpreter.from_bytes(data, arena_size=1 << 20)
    graph, state = tflite.read_tflite(data, "signal.tflite"), dict[str, Array]()
    for _ in range(calls):
        shape = tensors[0].shape
        big = RNG.integers(-30000, 30000, shape)
        x = (big / 100).astype(np.float32) if dtype == "float32" else big.astype(dtype)
        interpreter.set_input(x, 0)
        interpreter.invoke()
        ours, wanted = run(graph, (x,), state), [np.asarray(interpreter.get_output(k)) for k in range(len(op.outputs))]
        if valid >= 0:
            assert bool(ours[valid]) == bool(wanted[valid])
            if not wanted[valid]:
                continue
        for mine, theirs in zip(ours, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, **(bound or {"rtol": 0, "atol": 0}))


def test_delay() -> None:
    for length in (3, 7, 10):
        tensors = (Tensor("x", (2, 7), "INT16"), Tensor("y", (2, 7), "INT16"))
        op = Op("CUSTOM", ("x",), ("y",), custom="SignalDelay", custom_fields={"delay_length": length})
        check(op, tensors, "int16")


@pytest.mark.parametrize("prefill", [True, False])
@pytest.mark.parametrize(("size", "step", "count"), [(5, 2, 3), (4, 2, 2), (3, 3, 1), (7, 2, 1)])
def test_framer(prefill: bool, size: int, step: int, count: int) -> None:
    tensors = (Tensor("x", (1, step * count), "INT16"), Tensor("y", (1, count, size), "INT16"), Tensor("v", (), "BOOL"))
    fields = {"frame_size": size, "frame_step": step, "prefill": prefill}
    check(Op("CUSTOM", ("x",), ("y", "v"), custom="SignalFramer", custom_fields=fields), tensors, "int16", 7, 1)


@pytest.mark.parametrize(("left", "right", "step"), [(2, 1, 2), (0, 0, 1), (1, 2, 3), (3, 0, 1)])
def test_stacker(left: int, right: int, step: int) -> None:
    size = 4 * (left + right + 1)
    tensors = (Tensor("x", (4,), "INT16"), Tensor("y", (size,), "INT16"), Tensor("v", (), "BOOL"))
    fields = {
        "num_channels": 4,
        "stacker_left_context": left,
        "stacker_right_context": right,
        "stacker_step": step,
    }
    check(Op("CUSTOM", ("x",), ("y", "v"), custom="SignalStacker", custom_fields=fields), tensors, "int16", 9, 1)


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_overlap_add(dtype: str) -> None:
    for rows in (1, 2):
        tensors = (Tensor("x", (rows, 3, 6), dtype.upper()), Tensor("y", (rows, 6), dtype.upper()))
        fields = {"T": {"int16": 7, "float32": 0}[dtype], "frame_step": 2}
        check(Op("CUSTOM", ("x",), ("y",), custom="SignalOverlapAdd", custom_fields=fields), tensors, dtype)


@pytest.mark.parametrize("dtype", ["int16", "int32", "float32"])
@pytest.mark.parametrize(("size", "length"), [(20, 32), (64, 64), (100, 128)])
def test_spectra(dtype: str, size: int, length: int) -> None:
    tensors = (Tensor("x", (2, size), dtype.upper()), Tensor("y", (2, length + 2), dtype.upper()))
    fields = {"T": {"int16": 7, "int32": 2, "float32": 0}[dtype], "fft_length": length}
    bound: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-3 * length} if dtype == "float32" else {}
    check(Op("CUSTOM", ("x",), ("y",), custom="SignalRfft", custom_fields=fields), tensors, dtype, 2, **bound)


@pytest.mark.parametrize("dtype", ["int16", "int32", "float32"])
@pytest.mark.parametrize("length", [8, 64, 128])
def test_samples_of_spectra(dtype: str, length: int) -> None:
    tensors = (Tensor("x", (2, length + 2), dtype.upper()), Tensor("y", (2, length), dtype.upper()))
    fields = {"T": {"int16": 7, "int32": 2, "float32": 0}[dtype], "fft_length": length}
    bound: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-3} if dtype == "float32" else {}
    check(Op("CUSTOM", ("x",), ("y",), custom="SignalIrfft", custom_fields=fields), tensors, dtype, 2, **bound)
