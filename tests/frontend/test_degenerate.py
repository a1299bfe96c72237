# SPDX-License-Identifier: Apache-2.0
"""Models that no exporter writes become a graph or a refusal: soon, and without the memory that they speak of."""

from __future__ import annotations

import time

import pytest

from microc.errors import InternalError, MicrocError, ModelError, UnsupportedError
from microc.frontend.model_limits import MAX_BYTES, MAX_OPERANDS, MAX_WINDOW, check_shape, infer_types, parse_model_json
from microc.frontend.onnx import reader as onnx_reader
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Graph, TensorType
from microc.ops import registry
from tests.frontend import degenerate

MAX_SECONDS = 20.0
"""Processor time that each model may take; on an idle machine none takes over 2 s. A reader without a bound takes hours."""


def read(name: str, data: bytes) -> Graph:
    return tflite.read_tflite(data, name) if name.endswith(".tflite") else onnx_reader.read_onnx(data, name, {})


@pytest.mark.parametrize("family", degenerate.FAMILIES, ids=lambda family: family.__name__.strip("_"))
def test_degenerate_models_are_read_or_refused(family: degenerate.Family) -> None:
    """Any other exception (MemoryError, RecursionError, OverflowError, an internal one) fails the test with the model's name."""
    for name, data in family():
        start = time.process_time()
        try:
            graph = read(name, data)
        except InternalError as error:
            raise AssertionError(f"{name}: {error}") from error
        except MicrocError as error:
            assert error.where, name
        except Exception as error:
            raise AssertionError(f"{name}: {error!r}") from error
        else:
            assert all(kind.nbytes <= MAX_BYTES for kind in graph.types.values()), name
        assert time.process_time() - start < MAX_SECONDS, name


def test_sizes_are_judged_as_numbers() -> None:
    check_shape((1 << 28,), "int8", "x")
    check_shape((1 << 62, 0), "float32", "x")
    for shape, dtype in (((1 << 28, 2), "int8"), ((1 << 27,), "float32"), ((1 << 62,) * 8, "float64"), ((-1,), "int8")):
        with pytest.raises(ModelError):
            check_shape(shape, dtype, "x")
    with pytest.raises(UnsupportedError, match="rank 9"):
        check_shape((1,) * 9, "int8", "x")


@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel": (MAX_WINDOW + 1, 1)},
        {"kernel": (1 << 13, 1 << 13), "padding": (0, 0, 0, 0)},
        {"strides": (1 << 31, 1)},
        {"padding": (1 << 40, 0, 0, 0)},
        {"padding": (MAX_WINDOW, MAX_WINDOW, MAX_WINDOW, MAX_WINDOW)},
    ],
)
def test_windows_are_judged_before_anything_is_made(attrs: dict[str, object]) -> None:
    given = {**registry.get("max_pool2d").defaults, "kernel": (1, 1), **attrs}
    with pytest.raises(ModelError, match=r"window|takes"):
        infer_types("max_pool2d", given, [TensorType((1, 8, 8, 1), "int8")], "x")


def test_operands_are_counted() -> None:
    kinds = [TensorType((2,), "int8")] * (MAX_OPERANDS + 1)
    assert infer_types("concat", {"axis": 0}, kinds[1:], "x")[0].shape == (2 * MAX_OPERANDS,)
    with pytest.raises(UnsupportedError, match="operands"):
        infer_types("concat", {"axis": 0}, kinds, "x")


def test_json_is_bounded_in_depth() -> None:
    assert parse_model_json(b"[" * 100 + b"]" * 100, "x")
    for text in (b"[" * 300 + b"]" * 300, b"[" * 100_000, b"{", b"\xff"):
        with pytest.raises(ModelError, match="JSON"):
            parse_model_json(text, "x")
