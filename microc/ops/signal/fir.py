# SPDX-License-Identifier: Apache-2.0
"""Operators ``fir``, a filter of finite impulse response, and ``frame``, which splits a sequence into overlapping frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import integer, one_axis
from microc.ops.registry import Alias, AxisMap, Case, OpCall, OpDef, map_unchanged_axes
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

# ---- ``frame``: overlapping frames of a sequence. Samples, rows or images along an axis are copied to frames of ``length``
# elements, which begin ``step`` elements apart. An incomplete frame at the end is dropped. All dtypes are supported.
#
# Source: ``tf.signal.frame``.


def count_frames(sample_count: int, frame_length: int, frame_step: int) -> int:
    """Return the number of complete frames in ``sample_count`` samples, where frames begin ``frame_step`` samples apart."""
    return max(0, (sample_count - frame_length) // frame_step + 1)


def _nonnegative_axis(attrs: Mapping[str, Any], tensor_type: TensorType) -> int:
    """Return the attribute ``axis`` as an index from 0 to rank - 1."""
    return int(attrs["axis"]) % len(tensor_type.shape)


def _infer_frame_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (data,), length = types, attrs["length"]
    if not -len(data.shape) <= attrs["axis"] < len(data.shape):
        raise ModelError(f"frame: the axis is outside of the data; got axis={attrs['axis']} of {data.shape}")
    axis = _nonnegative_axis(attrs, data)
    count = count_frames(data.shape[axis], length, attrs["step"])
    if not count:
        raise ModelError(
            f"frame: the data are shorter than a frame; got {data.shape[axis]} samples, expected length={length} at "
            "least"
        )
    return (TensorType((*data.shape[:axis], count, length, *data.shape[axis + 1 :]), data.dtype),)


def _evaluate_frame_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, length, step = arrays[0], attrs["length"], attrs["step"]
    axis = attrs["axis"] % data.ndim
    places = np.arange(count_frames(data.shape[axis], length, step))[:, None] * step + np.arange(length)
    return (np.take(data, places, axis),)


def _compute_frame(call: OpCall) -> te.Tensor:
    (data,) = call.present
    axis, length, step = _nonnegative_axis(call.attrs, data.type), call.attrs["length"], call.attrs["step"]
    outer, samples, inner = prod(data.type.shape[:axis]), data.type.shape[axis], prod(data.type.shape[axis + 1 :])
    count = count_frames(samples, length, step)

    def build_frame_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out,) = operands, results
        n, f, i = Var("n"), Var("f"), Var("i")
        sample = ir.Store(out, (n, f, i), x[n, f * (step * inner) + i])
        return ir.loops([(n, outer), (f, count), (i, length * inner)], sample)

    results = (("out", (outer, count, length * inner), data.type.dtype),)
    return te.extern("frame", (data.tensor((outer, samples * inner)),), results, build_frame_loops)[0]


def _find_frame_alias(
    attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]
) -> Alias | None:
    """Return the alias by which the frames share the memory of the samples, or None if they need a copy.

    Frames can share it if they follow each other without overlap or gap, or if there is only one frame, and if all axes
    before the axis of time have one element."""
    axis = _nonnegative_axis(attrs, types[0])
    single = out_types[0].shape[axis] == 1 or attrs["step"] == attrs["length"]
    return Alias(source=0) if single and prod(types[0].shape[:axis]) == 1 else None


def _map_frame_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map each axis of the data to an axis of the result; the axis of time is mapped to None."""
    axis = _nonnegative_axis(attrs, types[0])
    return (tuple(None if k == axis else k + (k > axis) for k in range(len(types[0].shape))),)


def _make_frame_test_cases() -> Iterable[Case]:
    for shape, axis, length, step in (
        ((10,), 0, 4, 3),
        ((2, 10), 1, 4, 2),
        ((1, 12, 3), 1, 5, 7),
        ((3, 7), -1, 7, 1),
        ((12,), 0, 4, 4),
    ):
        for dtype in ("int16", "float32"):
            attrs = {"axis": axis, "length": length, "step": step}
            yield Case(attrs, (TensorType(shape, dtype),), name=f"{dtype} {shape} {length} {step}")


FRAMES_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "frame",
        attrs={
            "axis": one_axis("of time; the frames' own samples are the axis behind it"),
            "length": integer("of a frame, in samples", least=1),
            "step": integer("from a frame's beginning to the next one's", least=1),
        },
        infer=_infer_frame_types,
        reference=_evaluate_frame_reference,
        compute=_compute_frame,
        alias=_find_frame_alias,
        cases=_make_frame_test_cases,
        axes=_map_frame_axes,
        moves=True,
        operand_names=("data",),
    ),
)


# ---- ``fir``: a filter of finite impulse response along an axis, which may change the sample rate. It has P phases of K taps and
# advances by ``down`` samples.
#
#     y[P i + p] = sum_k taps[p, k] x[i down + k],  0 <= p < P, 0 <= k < K
#
# for all i whose samples exist; pad the data in front to filter its beginning. With one phase the operator is a correlation, and
# with reversed taps a filter. With the P phases of a filter designed at P times the rate it resamples by P / down. Products of
# int16 data and int16 taps are summed exactly; the sum is shifted right by ``shift`` bits, rounded half up, and saturated to
# int16.
#
# Source: the polyphase form of a rational resampler, Crochiere and Rabiner, *Multirate Digital Signal Processing*, 1983.

DTYPES = ("float32", "int16")
MOST_SHIFT = 30
"""Largest right shift of sums of int16 products."""


def _infer_fir_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, taps = types
    if data.dtype not in DTYPES or taps.dtype != data.dtype:
        raise ModelError(
            f"fir: data and taps have unsupported dtypes; got {data.dtype} and {taps.dtype}, expected both float32 or both "
            "int16"
        )
    if not -len(data.shape) <= attrs["axis"] < len(data.shape) or len(taps.shape) != 2 or 0 in taps.shape:
        raise ModelError(
            f"fir: the axis is outside of the data, or taps have no two axes; got axis={attrs['axis']} of "
            f"{data.shape} and taps {taps.shape}"
        )
    if attrs["shift"] > (MOST_SHIFT if data.dtype == "int16" else 0):
        raise ModelError(
            f"fir: the shift is out of range; got shift={attrs['shift']}, expected "
            f"{f'at most {MOST_SHIFT}' if data.dtype == 'int16' else 0} for {data.dtype}"
        )
    axis = attrs["axis"] % len(data.shape)
    count = taps.shape[0] * count_frames(data.shape[axis], taps.shape[1], attrs["down"])
    if not count:
        raise ModelError(
            f"fir: the data are shorter than the filter; got {data.shape[axis]} samples, expected {taps.shape[1]} "
            "(taps) at least"
        )
    return (TensorType((*data.shape[:axis], count, *data.shape[axis + 1 :]), data.dtype),)


def _evaluate_fir_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, taps = arrays
    wide = np.float64 if data.dtype == np.float32 else np.int64
    x = np.moveaxis(data, attrs["axis"], -1).astype(wide)
    count = count_frames(x.shape[-1], taps.shape[1], attrs["down"])
    places = np.arange(count)[:, None] * attrs["down"] + np.arange(taps.shape[1])
    made = (x[..., places] @ taps.T.astype(wide)).reshape(*x.shape[:-1], count * len(taps))
    if wide is np.int64:
        made = np.clip((made + _rounding_addend(attrs["shift"])) >> attrs["shift"], -32768, 32767)
    return (np.ascontiguousarray(np.moveaxis(made, -1, attrs["axis"])).astype(data.dtype),)


def _rounding_addend(right_shift: int) -> int:
    """Return the addend that makes a right shift by ``right_shift`` bits round half up."""
    return 1 << right_shift - 1 if right_shift else 0


def _compute_fir(call: OpCall) -> te.Tensor:
    """Build the sums of products, of shape (outer, steps, phases, inner), and for integers the rounding of these sums."""
    data, taps = call.present
    axis, shift, down = call.attrs["axis"] % len(data.type.shape), call.attrs["shift"], call.attrs["down"]
    outer, samples, inner = prod(data.type.shape[:axis]), data.type.shape[axis], prod(data.type.shape[axis + 1 :])
    (phases, count), dtype = taps.type.shape, data.type.dtype
    x, w, k = data.tensor((outer, samples, inner)), taps.tensor(), te.reduce_axis(count, "k")
    sums = dtype if dtype == "float32" else "int64"
    if sums == "int64" and taps.data is not None:
        largest = int(np.abs(taps.data.astype(np.int64)).sum(axis=1).max())
        sums = "int32" if (largest << 15) + _rounding_addend(shift) < 1 << 31 else sums

    def build_sum(n: Expr, i: Expr, p: Expr, c: Expr) -> Expr:
        factors = (x[n, i * down + k.var, c], w[p, k.var])
        if dtype == "float32":
            return te.sum_reduce(factors[0] * factors[1], k)
        product = ir.cast("int32", factors[0]) * ir.cast("int32", factors[1])
        return te.sum_reduce(ir.cast(sums, product), k)

    shape = (outer, count_frames(samples, count, down), phases, inner)
    acc = te.compute(shape, build_sum, "sums", ("n", "i", "p", "c"))
    if dtype == "float32":
        return acc

    def build_rounded_sum(n: Expr, i: Expr, p: Expr, c: Expr) -> Expr:
        moved = (acc[n, i, p, c] + _rounding_addend(shift)) >> shift if shift else acc[n, i, p, c]
        return ir.cast("int16", ir.clamp(moved, -32768, 32767))

    return te.compute(shape, build_rounded_sum, "out", ("n", "i", "p", "c"))


def _map_fir_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    return (map_unchanged_axes(len(types[0].shape), (attrs["axis"],)), None)


def _count_fir_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    """Return the number of multiply-accumulate operations: one for each output sample and tap."""
    return out_types[0].size * types[1].shape[1]


def _make_fir_test_cases() -> Iterable[Case]:
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


FIR_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "fir",
        attrs={
            "axis": one_axis("of time"),
            "down": integer("samples from a step to the next", 1, least=1),
            "shift": integer("of sums of integers, to the right", 0, least=0),
        },
        infer=_infer_fir_types,
        reference=_evaluate_fir_reference,
        compute=_compute_fir,
        cases=_make_fir_test_cases,
        axes=_map_fir_axes,
        macs=_count_fir_macs,
        operand_names=("data", "taps"),
    ),
)


OPERATORS = (*FIR_OPERATORS, *FRAMES_OPERATORS)
