"""Test cases of the operators between scales: edges of rounding, clamping and range, each form of their parameters."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.fixed import INT32_MAX, reduce_multiplier
from microc.graph.ir import Attr, TensorType
from microc.ops.attributes import (
    OPTIONAL,
    STORED,
    Attributes,
    answer,
    defaults_of,
    exponent,
    integer,
    integers,
    mantissa,
    numbers,
)
from microc.ops.registry import Case
from microc.ops.rounding import Multiplier, Ties

REQUANTIZE_ATTRS: Attributes = {
    "multiplier": mantissa("one for all channels; None: an operand", None),
    "shift": exponent("its exponent, positive to the left; None: an operand", None),
    "shift_range": integers("the least and the largest shift", (-31, 31), length=2, least=-31, most=31),
    "input_zero_point": integer("taken off x", 0),
    **STORED,
    "rounding": answer("of what is scaled", *Multiplier, default=Multiplier.DOUBLE),
    "bound": integer("the largest distance of x from its zero point; -1: unknown", -1, least=-1),
    "average": numbers("of a mean over as many elements as a run has: what `mean_multiplier` is made from", OPTIONAL),
}
REQUANTIZE = defaults_of(REQUANTIZE_ATTRS)


def requantize_cases() -> Iterable[Case]:
    edges = np.array(
        [
            0,
            1,
            -1,
            2,
            -2,
            3,
            -3,
            127,
            -128,
            1 << 10,
            -(1 << 10),
            12345,
            -54321,
            (1 << 29) + 7,
            1 - (1 << 30),
            (1 << 30) - 1,
        ],
        np.int32,
    )
    extremes = np.array([INT32_MAX, -(1 << 31), 1 << 30, -(1 << 30)], np.int32)
    outs: tuple[tuple[str, int, int, int], ...] = (
        ("int8", -3, -128, 127),
        ("int8", -128, -128, 127),
        ("int8", 5, 5, 90),
        ("uint8", 128, 0, 255),
        ("int16", 0, -32768, 32767),
    )
    for dtype, zero, low, high in outs:
        for shift in (0, -1, -5, -8, -17, -31):
            attrs = {"multiplier": 1518500250, "shift": shift, "zero_point": zero, "minimum": low, "maximum": high}
            known = {**REQUANTIZE, **attrs, "out_dtype": dtype, "bound": (1 << 30) - 1}
            for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
                bounded, name = {**known, "rounding": rounding}, f"{rounding} {dtype} shift {shift}"
                yield Case(bounded, (TensorType((16,), "int32"),), arrays=(edges,), name=name)
            x = np.concatenate((edges, extremes))
            unknown = {**known, "bound": -1}
            yield Case(unknown, (TensorType((20,), "int32"),), arrays=(x,), name=f"{dtype} shift {shift} unbounded")
            yield Case(
                {**unknown, "rounding": Multiplier.SINGLE},
                (TensorType((20,), "int32"),),
                arrays=(x,),
                name=f"single {dtype} {shift}",
            )
    yield from _channel_cases(edges)
    yield from _special_cases()


def _channel_cases(edges: Array) -> Iterable[Case]:
    multiplier = np.array([1 << 30, INT32_MAX, 1518500250, 1234567890], np.int32)
    types = (TensorType((4, 4), "int32"), TensorType((4,), "int32"), TensorType((4,), "int8"))
    for shifts in (
        (-1, -5, -7, -30),
        (0, -3, -9, -1),
        (0, -31, -2, -3),
        (-1, -31, -5, -8),
        (2, -3, -1, 0),
        (3, 0, 9, 1),
    ):
        for low, zero in ((-128, -7), (4, 4)):
            attrs: dict[str, Attr] = {"zero_point": zero, "minimum": low, "maximum": 127, "out_dtype": "int8"}
            bound = 1 << 20 if shifts[0] > 0 else (1 << 30) - 1
            x = np.clip(edges, -bound, bound).reshape(4, 4)
            known = {**REQUANTIZE, **attrs, "shift_range": (min(shifts), max(shifts)), "bound": bound}
            arrays = (x, multiplier, np.array(shifts, np.int8))
            for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
                name = f"{rounding} channels {shifts} from {low}"
                yield Case({**known, "rounding": rounding}, types, (1, 2), arrays, name=name)
    for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
        shared = {**REQUANTIZE, **attrs, "shift": -6, "bound": (1 << 30) - 1, "rounding": rounding}
        name = f"{rounding} channels, one shift"
        yield Case(shared, types[:2], (1,), (edges.reshape(4, 4), multiplier), name=name)


def _special_cases() -> Iterable[Case]:
    base = {**REQUANTIZE, "zero_point": 0, "minimum": -32768, "maximum": 32767, "out_dtype": "int16"}
    x64 = np.array([0, 1, -1, 1 << 40, -(1 << 40), (1 << 46) - 1, -(1 << 46), 12345678901], np.int64)
    wide = {**base, "rounding": Multiplier.WIDE, "multiplier": reduce_multiplier(1518500250), "bound": 1 << 46}
    for shift in (7, 0, -10, -31):
        x = x64 >> max(0, 16 + shift)
        yield Case({**wide, "shift": shift}, (TensorType((8,), "int64"),), arrays=(x,), name=f"wide shift {shift}")
    small = np.array([0, 1, -1, 16383, -16384, 3000, -29999, 7], np.int32)
    yield Case(
        {**wide, "shift": -3, "bound": 30000}, (TensorType((8,), "int32"),), arrays=(small,), name="wide in int32"
    )
    yield Case({**wide, "shift": -3}, (TensorType((8,), "int32"),), arrays=(small,), name="wide of int32")
    per_channel = {**wide, "multiplier": None, "shift_range": (-12, -4)}
    types = (TensorType((2, 4), "int64"), TensorType((4,), "int16"), TensorType((4,), "int8"))
    parts = (np.array([16384, 32767, 20000, 30000], np.int16), np.array([-4, -5, -12, -8], np.int8))
    yield Case(per_channel, types, (1, 2), ((x64 >> 20).reshape(2, 4), *parts), name="wide channels")
    for dtype in ("int8", "uint8", "int16"):
        low, high = dtypes.int_range(dtype)
        x = np.array([low, low + 1, 0, 1, high - 1, high], dtypes.to_numpy(dtype))
        moved = {**base, "input_zero_point": 3, "bound": 1 << 17, "minimum": low, "maximum": high, "out_dtype": dtype}
        for multiplier, shift in ((1 << 30, 1), (1 << 30, 0), (1 << 30, -3), (1900000000, 2), (1900000000, -1)):
            for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
                attrs = {**moved, "multiplier": multiplier, "shift": shift, "rounding": rounding}
                name = f"{rounding} {dtype} {multiplier} {shift}"
                yield Case(attrs, (TensorType((6,), dtype),), arrays=(x,), name=name)


def requantize_float_cases() -> Iterable[Case]:
    x = np.array([0, 1, -1, 3, -3, 5, -5, 255, -256, 1 << 20, -(1 << 20), INT32_MAX, -(1 << 31), 99, 101, 7], np.int32)
    scale = np.array([0.5, 0.1, 0.0031, 1.25], np.float32)
    for dtype, zero in (("uint8", 128), ("int8", 0), ("int8", -128), ("int16", 0)):
        low, high = dtypes.int_range(dtype)
        attrs: dict[str, Attr] = {"scale": 0.5, "zero_point": zero, "minimum": low, "maximum": high, "out_dtype": dtype}
        yield Case(attrs, (TensorType((16,), "int32"),), arrays=(x,), name=dtype)
        types = (TensorType((4, 4), "int32"), TensorType((4,), "float32"))
        yield Case({**attrs, "scale": None}, types, (1,), (x.reshape(4, 4), scale), name=f"{dtype} channels")


def quantize_cases() -> Iterable[Case]:
    x = np.array(
        [0.0, 0.25, -0.25, 0.75, -0.75, 1.25, 31.9, -32.1, 1e9, -1e9, 0.12, 63.75, -64.25, np.inf, -np.inf, 5.0]
    )
    for rounding in Ties:
        for dtype, zero in (
            ("int8", 0),
            ("int8", -128),
            ("uint8", 127),
            ("int16", 0),
            ("int32", 0),
            ("int32", -1),
            ("int32", 200),
        ):
            attrs: dict[str, Attr] = {
                "scale": (0.5,),
                "zero_point": (zero,),
                "axis": None,
                "out_dtype": dtype,
                "rounding": rounding,
            }
            arrays = (x.astype(np.float32),)
            yield Case(attrs, (TensorType((16,), "float32"),), arrays=arrays, name=f"{dtype} {zero} {rounding}")


def dequantize_cases() -> Iterable[Case]:
    for dtype, zero in (("int8", 0), ("int8", -5), ("uint8", 128), ("int16", 0), ("int32", 0)):
        attrs = {"scale": (0.0031,), "zero_point": (zero,), "axis": None}
        yield Case(attrs, (TensorType((3, 5), dtype),), name=f"{dtype} {zero}")
