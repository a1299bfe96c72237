"""Test cases of conv2d: every path of its tensor expression, borders, strides, dilations, dtypes, extents of one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import TensorType
from microc.ops.convolution.geometry import DEFAULTS
from microc.ops.matrix.halves import HALF_TOLERANCE
from microc.ops.matrix.packed import FAR, PACKED, TABLES
from microc.ops.registry import Case


def _case(
    data: tuple[int, ...],
    out_channels: int,
    kernel: tuple[int, int],
    dtypes_: str = "int8 int8",
    bias: bool = True,
    **attrs: Any,
) -> Case:
    """A case named by its geometry; ``dtypes_`` are those of data and weight, and of the accumulator if not int32."""
    data_dtype, weight_dtype, *rest = dtypes_.split()
    out_dtype = rest[0] if rest else "int32"
    depth = data[3] // attrs.get("groups", 1)
    types = [TensorType(data, data_dtype), TensorType((out_channels, *kernel, depth), weight_dtype)]
    types += [TensorType((out_channels,), out_dtype)] if bias else []
    arrays: tuple[Array | None, ...] = ()
    if bias and out_dtype != "float32":
        arrays = (None, None, (np.arange(out_channels) * 977 - 1000).astype(out_dtype))
    settings = " ".join(f"{key} {value}" for key, value in attrs.items())
    name = f"{data} {dtypes_} {out_channels} {kernel} {settings}"
    consts = tuple(range(1, len(types)))
    return Case(
        {**DEFAULTS, **attrs, "out_dtype": out_dtype},
        tuple(types),
        consts,
        arrays,
        HALF_TOLERANCE if attrs.get("algorithm") == "half" else 1e-4 if out_dtype == "float32" else 0.0,
        name,
    )


def cases() -> Iterable[Case]:
    """Every path of ``compute``, borders, strides, dilations, dtypes and extents of one."""
    same, odd = (1, 1, 1, 1), (2, 0, 1, 3)
    mixed = ("uint8 int16", "int16 int8 int64", "int16 int8 int32", "float32 float32 float32")
    for kinds in ("int8 int8", "uint8 int8", *mixed):
        pad = 0 if "float" in kinds else 7
        yield _case((1, 5, 6, 3), 4, (3, 3), kinds, padding=same, pad_value=pad)
        yield _case((1, 4, 3, 6), 5, (1, 1), kinds)
        yield _case((1, 5, 4, 3), 3, (3, 3), kinds, padding=same, groups=3, pad_value=pad)
        yield _case((1, 5, 4, 4), 6, (2, 3), kinds, padding=odd, groups=2, pad_value=pad)
    yield _case((1, 7, 5, 3), 32, (3, 3), "uint8 int8", strides=(2, 1), padding=odd, pad_value=200)
    yield _case((2, 3, 3, 10), 16, (1, 1), "uint8 int8", bias=False)
    yield _case((2, 5, 6, 3), 4, (3, 2), strides=(2, 2), padding=odd, pad_value=-128)
    yield _case((2, 7, 6, 3), 4, (3, 3), strides=(2, 1), dilation=(1, 2))
    yield _case((1, 9, 8, 2), 3, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), pad_value=5)
    yield _case((1, 5, 4, 3), 4, (1, 1), strides=(2, 2))
    yield _case((1, 4, 4, 3), 4, (1, 1), padding=same, pad_value=-3)
    yield _case((2, 4, 3, 5), 4, (4, 3), bias=False)
    yield _case((1, 1, 10, 4), 3, (1, 3), padding=(0, 1, 0, 1), pad_value=1)
    yield _case((1, 10, 1, 4), 3, (4, 1), strides=(2, 1), padding=(3, 0, 0, 0), pad_value=1)
    yield _case((1, 1, 1, 1), 1, (1, 1))
    yield _case((1, 1, 1, 1), 1, (3, 3), padding=same, pad_value=2)
    yield _case((1, 2, 2, 1), 1, (5, 5), padding=(2, 2, 2, 2), pad_value=2, bias=False)
    yield _case((1, 6, 6, 1), 8, (3, 3), padding=(0, 0, 1, 1), strides=(2, 2), pad_value=-1)
    yield _case((2, 5, 4, 3), 6, (3, 3), padding=odd, groups=3, strides=(2, 2), pad_value=9)
    yield _case((1, 7, 7, 4), 4, (3, 3), groups=4, dilation=(2, 3))
    yield _case((1, 4, 4, 4), 4, (1, 1), groups=4, bias=False)
    yield _case((1, 1, 6, 2), 4, (1, 4), groups=2, padding=(0, 1, 0, 2), pad_value=-7)
    yield _case((1, 5, 5, 6), 9, (3, 3), groups=3, strides=(2, 2), dilation=(1, 1), bias=False)
    for kinds, pad in (("int8 int8", -5), ("uint8 int8", 200), ("uint8 int16", 7), ("int16 int8", 0)):
        yield _case((1, 5, 9, 16), 16, (3, 3), kinds, groups=16, padding=same, pad_value=pad)
    yield _case((2, 7, 9, 8), 8, (5, 5), groups=8, padding=odd, strides=(2, 2), pad_value=-128, bias=False)
    yield _case((1, 1, 21, 12), 12, (1, 7), groups=12, padding=(0, 3, 0, 3), pad_value=9)
    yield _case((1, 9, 6, 8), 8, (4, 2), groups=8, dilation=(2, 1))
    for kinds, pad in (("int8 int8", -5), ("uint8 int8", 200)):
        yield _case((1, 8, 8, 8), 4, (3, 3), kinds, padding=same, pad_value=pad, algorithm="winograd")
        yield _case((2, 5, 7, 4), 3, (3, 3), kinds, padding=odd, pad_value=pad, algorithm="winograd")
    floats = "float32 float32 float32"
    yield _case((1, 4, 6, 16), 32, (3, 3), floats, bias=False)
    yield _case((1, 6, 9, 8), 4, (3, 3), floats, padding=same, algorithm="winograd_floats")
    yield _case((2, 5, 7, 3), 5, (3, 3), floats, padding=odd, algorithm="winograd_floats")
    yield _case((1, 4, 6, 16), 32, (3, 3), floats, bias=False, algorithm="winograd_floats")
    yield _case((1, 8, 4, 8), 16, (3, 3), floats, padding=same, algorithm="winograd_four")
    yield _case((2, 6, 6, 3), 5, (3, 3), floats, bias=False, algorithm="winograd_four")
    yield _case((1, 5, 4, 3), 8, (3, 3), floats, padding=same, strides=(2, 1), algorithm="half")
    yield _case((1, 5, 7, 8), 8, (3, 3), floats, padding=same, groups=8, algorithm="half")
    yield _case((1, 6, 5, 8), 8, (2, 3), floats, bias=False, strides=(1, 2), groups=8, algorithm="half")
    yield _case((1, 3, 4, 12), 16, (1, 1), floats, bias=False, algorithm="half")
    yield _case((1, 3, 3, 5), 8, (3, 3), floats, padding=odd, algorithm="half")
    yield _case((1, 6, 6, 4), 2, (3, 3), algorithm="winograd", bias=False)
    yield _case((1, 4, 5, 20), 1, (3, 3), algorithm="winograd")
    yield _case((1, 5, 12, 6), 5, (3, 3), padding=same, algorithm="winograd")
    yield _case((1, 8, 9, 5), 5, (3, 3), groups=5, padding=same, pad_value=-5, algorithm="unsigned")
    yield _case((2, 5, 7, 4), 8, (3, 3), groups=4, padding=odd, strides=(2, 2), pad_value=127, algorithm="unsigned")
    yield _case((1, 12, 1, 3), 3, (5, 1), groups=3, padding=(2, 0, 2, 0), pad_value=-128, algorithm="unsigned")
    yield _case((1, 6, 7, 3), 3, (3, 5), groups=3, bias=False, dilation=(2, 1), algorithm="unsigned")
    yield _case((1, 7, 5, 3), 32, (3, 3), strides=(2, 1), padding=odd, pad_value=-9, algorithm="unsigned_rows")
    yield _case((1, 6, 6, 16), 16, (3, 3), padding=same, pad_value=127, algorithm="unsigned_rows")
    yield _case((2, 3, 3, 10), 5, (1, 1), bias=False, algorithm="unsigned_rows")
    for kinds, pad in (("int8 int8", -5), ("uint8 int8", 200), ("float32 float32 float32", 0)):
        yield _case((2, 4, 8, 4), 16, (3, 3), kinds, padding=same, pad_value=pad, algorithm="windows")
        yield _case((1, 7, 21, 3), 12, (2, 3), kinds, padding=odd, strides=(1, 2), pad_value=pad, algorithm="windows")
    yield _case((1, 6, 10, 4), 8, (3, 3), dilation=(2, 1), bias=False, algorithm="windows")
    yield _case((1, 5, 9, 4), 20, (3, 3), padding=same, pad_value=-9, algorithm="unsigned_windows")
    for kinds, pad in (("int8 int8", -5), ("uint8 int8", 200), ("int16 int8", 0), ("float32 float32 float32", 0)):
        yield _case((1, 5, 6, 16), 16, (3, 3), kinds, groups=2, padding=same, pad_value=pad, algorithm="grouped")
        yield _case((2, 4, 3, 6), 9, (1, 1), kinds, groups=3, algorithm="grouped")
    yield _case((1, 7, 9, 8), 10, (2, 3), groups=2, padding=odd, strides=(2, 1), pad_value=9, algorithm="grouped")
    yield _case((1, 1, 20, 12), 8, (1, 3), groups=4, dilation=(1, 2), bias=False, algorithm="grouped")
    yield _case((1, 3, 3, 8), 8, (3, 3), groups=2, algorithm="grouped")
    for kinds, pad in (("int8 int8", -5), ("uint8 int8", 200), ("int16 int8", 0), ("float32 float32 float32", 0)):
        yield _case((2, 6, 9, 1), 5, (3, 3), kinds, padding=same, pad_value=pad, algorithm="single")
        yield _case((1, 1, 21, 1), 4, (1, 5), kinds, padding=(0, 2, 0, 2), pad_value=pad, algorithm="single")
    yield _case((1, 9, 8, 1), 3, (4, 2), padding=odd, strides=(2, 2), pad_value=9, bias=False, algorithm="single")
    for k, (size, algorithm) in enumerate(zip((5, 4, 5, 5), PACKED, strict=True)):
        for case in (
            _case((2, 5, 6, size), 4, (3, 3), padding=same, pad_value=7 - 9 * k, algorithm=algorithm),
            _case((1, 4, 3, size), 5, (1, 1), "uint8 int8", algorithm=algorithm),
            _case((1, 7, 6, size), 3, (3, 1), "int16 int8", strides=(2, 1), bias=False, algorithm=algorithm),
        ):
            shape = case.types[1].shape
            for bits in (4, 2):
                small = (np.arange(np.prod(shape)) * 7 % (1 << bits) - (1 << bits - 1)).astype(np.int8).reshape(shape)
                few = small * FAR if algorithm == TABLES else small
                yield replace(case, arrays=(None, few, *case.arrays[2:]), name=f"{case.name} {bits} bits")
    dynamic = (TensorType((1, 4, 4, 3), "int16"), TensorType((2, 3, 3, 3), "int16"))
    yield Case({**DEFAULTS, "out_dtype": "int64"}, dynamic, name="computed weights")
    depthwise = (TensorType((1, 4, 4, 3), "int8"), TensorType((6, 3, 3, 1), "int8"))
    yield Case({**DEFAULTS, "groups": 3, "out_dtype": "int32"}, depthwise, name="computed depthwise weights")
