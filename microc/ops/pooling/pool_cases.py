"""Test cases of the pools: borders, strides, dtypes, windows over everything, extents of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from microc.graph.ir import Attr, TensorType
from microc.ops.registry import Case


def _case(shape: tuple[int, ...], dtype: str, kernel: tuple[int, int], tolerance: float = 0.0, **attrs: Any) -> Case:
    given = {"kernel": kernel, "strides": kernel, **attrs}
    return Case(given, (TensorType(shape, dtype),), tolerance=tolerance)


def max_cases(**extra: Any) -> Iterable[Case]:
    for dtype in ("float32", "int8", "uint8", "int16"):
        near = 2e-6 if dtype == "float32" else 0.0
        yield _case((1, 4, 4, 3), dtype, (2, 2), near, **extra)
        yield _case((2, 5, 7, 1), dtype, (3, 2), near, strides=(2, 1), padding=(1, 0, 1, 1), **extra)
        yield _case((1, 3, 3, 4), dtype, (3, 3), near, strides=(1, 1), padding=(1, 1, 1, 1), **extra)
        yield _case((1, 3, 5, 6), dtype, (3, 5), near, **extra)
        yield _case((1, 1, 1, 1), dtype, (1, 1), near, **extra)
        yield _case((1, 6, 1, 2), dtype, (2, 1), near, strides=(3, 1), padding=(0, 0, 1, 0), **extra)


def avg_cases() -> Iterable[Case]:
    yield from max_cases(count_include_pad=False)
    yield _case((1, 3, 3, 2), "float32", (2, 2), 2e-6, strides=(1, 1), padding=(1, 1, 0, 0), count_include_pad=True)


def sum_cases() -> Iterable[Case]:
    base: dict[str, Attr] = {"strides": (2, 2), "padding": (1, 0, 0, 1), "layout": "NHWC", "out_dtype": "int32"}
    for dtype in ("int8", "uint8", "int16"):
        attrs: dict[str, Attr] = {**base, "kernel": (2, 3), "pad_value": 3, "offset": -18}
        yield Case(attrs, (TensorType((2, 5, 6, 3), dtype),))
        yield Case({**attrs, "kernel": (5, 6), "padding": (0, 0, 0, 0)}, (TensorType((2, 5, 6, 3), dtype),))
