"""``fir``: a filter of finite impulse response along an axis, which may change the rate: P phases of K taps, a step of ``down``.

    y[P i + p] = sum_k taps[p, k] x[i down + k],  0 <= p < P, 0 <= k < K

for all i whose samples are there: who wants the beginning pads in front. With one phase that is a correlation, with taps reversed
a filter; with P phases of a filter at P times the rate it is resampling by P / down. int16 data by int16 taps are summed exactly,
rounded by ``shift`` places (halves up) and saturated to int16.

Source: the polyphase form of a rational resampler, Crochiere and Rabiner, *Multirate Digital Signal Processing*, 1983.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import integer, one_axis
from microc.ops.axes import AxisMap, kept
from microc.ops.registry import Case, OpCall, OpDef
from microc.ops.signal.frames import frames_of
from microc.tir import ir
from microc.tir.ir import Expr

DTYPES = ("float32", "int16")
MOST_SHIFT = 30


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, taps = types
    if data.dtype not in DTYPES or taps.dtype != data.dtype:
        raise ModelError(f"fir of {data.dtype} by taps of {taps.dtype}", hint="both float32 or both int16")
    if not -len(data.shape) <= attrs["axis"] < len(data.shape) or len(taps.shape) != 2 or 0 in taps.shape:
        raise ModelError(f"fir of shape {data.shape} along axis {attrs['axis']} by taps of shape {taps.shape}")
    if attrs["shift"] > (MOST_SHIFT if data.dtype == "int16" else 0):
        raise ModelError(f"fir of {data.dtype} shifted by {attrs['shift']}", hint=f"integers by {MOST_SHIFT} at most")
    axis = attrs["axis"] % len(data.shape)
    count = taps.shape[0] * frames_of(data.shape[axis], taps.shape[1], attrs["down"])
    if not count:
        raise ModelError(f"fir of {taps.shape[1]} taps over {data.shape[axis]} samples")
    return (TensorType((*data.shape[:axis], count, *data.shape[axis + 1 :]), data.dtype),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, taps = arrays
    wide = np.float64 if data.dtype == np.float32 else np.int64
    x = np.moveaxis(data, attrs["axis"], -1).astype(wide)
    count = frames_of(x.shape[-1], taps.shape[1], attrs["down"])
    places = np.arange(count)[:, None] * attrs["down"] + np.arange(taps.shape[1])
    made = (x[..., places] @ taps.T.astype(wide)).reshape(*x.shape[:-1], count * len(taps))
    if wide is np.int64:
        made = np.clip((made + _half(attrs["shift"])) >> attrs["shift"], -32768, 32767)
    return (np.ascontiguousarray(np.moveaxis(made, -1, attrs["axis"])).astype(data.dtype),)


def _half(shift: int) -> int:
    """What rounds halves up before a shift."""
    return 1 << shift - 1 if shift else 0


def _compute(call: OpCall) -> te.Tensor:
    """Sums (outer, steps, phases, inner), then what is rounded."""
    data, taps = call.present
    axis, shift, down = call.attrs["axis"] % len(data.type.shape), call.attrs["shift"], call.attrs["down"]
    outer, samples, inner = prod(data.type.shape[:axis]), data.type.shape[axis], prod(data.type.shape[axis + 1 :])
    (phases, count), dtype = taps.type.shape, data.type.dtype
    x, w, k = data.tensor((outer, samples, inner)), taps.tensor(), te.reduce_axis(count, "k")
    sums = dtype if dtype == "float32" else "int64"
    if sums == "int64" and taps.data is not None:
        largest = int(np.abs(taps.data.astype(np.int64)).sum(axis=1).max())
        sums = "int32" if (largest << 15) + _half(shift) < 1 << 31 else sums

    def term(n: Expr, i: Expr, p: Expr, c: Expr) -> Expr:
        factors = (x[n, i * down + k.var, c], w[p, k.var])
        if dtype == "float32":
            return te.sum_reduce(factors[0] * factors[1], k)
        product = ir.cast("int32", factors[0]) * ir.cast("int32", factors[1])
        return te.sum_reduce(ir.cast(sums, product), k)

    shape = (outer, frames_of(samples, count, down), phases, inner)
    acc = te.compute(shape, term, "sums", ("n", "i", "p", "c"))
    if dtype == "float32":
        return acc

    def rounded(n: Expr, i: Expr, p: Expr, c: Expr) -> Expr:
        moved = (acc[n, i, p, c] + _half(shift)) >> shift if shift else acc[n, i, p, c]
        return ir.cast("int16", ir.clamp(moved, -32768, 32767))

    return te.compute(shape, rounded, "out", ("n", "i", "p", "c"))


def _axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    return (kept(len(types[0].shape), (attrs["axis"],)), None)


def _macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return out_types[0].size * types[1].shape[1]


def _cases() -> Iterable[Case]:
    for shape, axis, taps, down in (
        ((1, 20), 1, (1, 5), 1),
        ((2, 21, 3), 1, (1, 8), 2),
        ((1, 30), -1, (3, 4), 2),
        ((17,), 0, (2, 1), 1),
        ((1, 40, 1), 1, (2, 6), 5),
    ):
        for dtype in DTYPES:
            types = (TensorType(shape, dtype), TensorType(taps, dtype))
            for shift in (0,) if dtype == "float32" else (15, 0):
                attrs = {"axis": axis, "down": down, "shift": shift}
                yield Case(attrs, types, (1,), tolerance=1e-5, name=f"{dtype} {shape} {taps} {shift}")
    halved = np.array([[16384, -16384]], np.int16)
    types = (TensorType((1, 50), "int16"), TensorType((1, 2), "int16"))
    yield Case({"axis": 1, "shift": 15}, types, (1,), (None, halved), name="sums of 32 bits")
    yield Case({"axis": 1, "shift": 15}, types, name="computed taps")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "fir",
        attrs={
            "axis": one_axis("of time"),
            "down": integer("samples from a step to the next", 1, least=1),
            "shift": integer("of sums of integers, to the right", 0, least=0),
        },
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        axes=_axes,
        macs=_macs,
        operand_names=("data", "taps"),
    ),
)
