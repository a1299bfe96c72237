# SPDX-License-Identifier: Apache-2.0
"""Digital filters along an axis, ``fir`` and ``biquads``, and ``frame``, which splits a sequence into frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.arithmetic import wrap_in_lets
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
            "axis": one_axis("axis of time, which becomes the frames; a new axis behind it has their samples"),
            "length": integer("number of samples of a frame", least=1),
            "step": integer("number of samples between the beginnings of two frames", least=1),
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
            f"fir: the axis is outside of the data, or the taps do not have two axes; got axis={attrs['axis']} of "
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
            "axis": one_axis("axis of time"),
            "down": integer("number of input samples for each result", 1, least=1),
            "shift": integer("number of bits by which sums of integers are shifted right", 0, least=0),
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


# ---- ``biquads``: a cascade of second-order sections along an axis, which is an infinite impulse response filter,
# with its state.
#
# Operands are the data; the coefficients (S, 5), one row b0 b1 b2 a1 a2 per section with a0 = 1; and the state
# before the first sample. Results are the filtered data and the state after the last sample. All other axes are
# channels; all channels are filtered with the same coefficients. Each section computes
#
#     y[n] = b0 x[n] + b1 x[n - 1] + b2 x[n - 2] - a1 y[n - 1] - a2 y[n - 2].
#
# Floats are computed in the transposed direct form II; the state (..., S, 2) is that of
# ``scipy.signal.sosfilt``. int16 data have int32 coefficients of 28 fractional bits and are computed in direct
# form I. Signals between sections are int32 of twelve fractional bits. Each is rounded once, from an exact sum,
# and saturated to four times the range of int16. The state (..., S, 4) contains x[n - 1], x[n - 2], y[n - 1],
# y[n - 2] of each section.
#
# Source: Oppenheim and Schafer, *Discrete-Time Signal Processing*, 6.3; ``scipy.signal.sosfilt``.


SIGNAL_BITS, COEFFICIENT_BITS = 12, 28
"""Number of fractional bits of signals between sections, and of coefficients."""
LIMIT = (1 << 29) - 1
"""Largest magnitude of a signal between sections. With it the sum of five products with 32-bit coefficients fits 64 bits."""
_HALF = 1 << COEFFICIENT_BITS - 1
_ZERO = ir.const(0, "int32")


def biquad_state_shape(data_shape: Sequence[int], axis: int, section_count: int, dtype: str) -> tuple[int, ...]:
    """Return the shape of the state of ``section_count`` filter sections along ``axis`` of data of shape
    ``data_shape``.

    A section has two state values per channel, or four if the data are int16."""
    channels = [extent for place, extent in enumerate(data_shape) if place != axis % len(data_shape)]
    return (*channels, section_count, 4 if dtype == "int16" else 2)


def _infer_biquads_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, coefficients, state = types
    inner = {"float32": "float32", "int16": "int32"}.get(data.dtype)
    if inner is None or coefficients.dtype != inner or state.dtype != inner:
        raise ModelError(
            f"biquads: operands have unsupported dtypes; got data {data.dtype}, coefficients {coefficients.dtype} and "
            f"state {state.dtype}, expected float32 throughout, or int16, int32 and int32"
        )
    if not -len(data.shape) <= attrs["axis"] < len(data.shape) or len(coefficients.shape) != 2:
        raise ModelError(
            f"biquads: the axis is outside of the data, or coefficients have no two axes; got axis={attrs['axis']} "
            f"of {data.shape} and coefficients {coefficients.shape}"
        )
    if coefficients.shape[1] != 5 or not coefficients.shape[0]:
        raise ModelError(
            f"biquads: the coefficients have a wrong shape; got {coefficients.shape}, expected (sections, 5)"
        )
    wanted = biquad_state_shape(data.shape, attrs["axis"], coefficients.shape[0], data.dtype)
    if state.shape != wanted:
        raise ModelError(f"biquads: the state has a wrong shape; got {state.shape}, expected {wanted}")
    return TensorType(data.shape, data.dtype), TensorType(state.shape, inner)


def _evaluate_biquads_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, coefficients, state = arrays
    axis, floats = attrs["axis"] % data.ndim, data.dtype == np.float32
    wide = np.float64 if floats else np.int64
    x = np.moveaxis(data, axis, -1).astype(wide)
    x = x if floats else x << SIGNAL_BITS
    now = state.astype(wide) if floats else np.clip(state.astype(wide), -LIMIT, LIMIT)
    for section, row in enumerate(coefficients.astype(wide)):
        step = _filter_float_sample if floats else _filter_fixed_point_sample
        made, kept_ = np.empty_like(x), now[..., section, :].copy()
        for n in range(x.shape[-1]):
            made[..., n] = step(row, x[..., n], kept_)
        x, now[..., section, :] = made, kept_
    if not floats:
        x = np.clip((x + (1 << SIGNAL_BITS - 1)) >> SIGNAL_BITS, -32768, 32767)
    return np.ascontiguousarray(np.moveaxis(x, -1, axis)).astype(data.dtype), now.astype(state.dtype)


def _filter_float_sample(coefficients: Array, samples: Array, state: Array) -> Array:
    """Filter one float sample of every channel by one biquad section; return the outputs, and update ``state`` in
    place.

    ``coefficients``: b0, b1, b2, a1, a2."""
    b0, b1, b2, a1, a2 = coefficients
    y: Array = b0 * samples + state[..., 0]
    state[..., 0] = b1 * samples - a1 * y + state[..., 1]
    state[..., 1] = b2 * samples - a2 * y
    return y


def _filter_fixed_point_sample(coefficients: Array, samples: Array, state: Array) -> Array:
    """Filter one integer sample of every channel by one biquad section; return the outputs, and update ``state`` in
    place.

    ``coefficients``: b0, b1, b2, a1, a2."""
    b0, b1, b2, a1, a2 = coefficients
    total = b0 * samples + b1 * state[..., 0] + b2 * state[..., 1] - a1 * state[..., 2] - a2 * state[..., 3]
    y: Array = np.clip((total + _HALF) >> COEFFICIENT_BITS, -LIMIT, LIMIT)
    state[..., 1], state[..., 0] = state[..., 0].copy(), samples
    state[..., 3], state[..., 2] = state[..., 2].copy(), y
    return y


def _compute_biquads(call: OpCall) -> tuple[te.Tensor, ...]:
    """Build loops over channels, samples and sections. The buffer of the new state is also the working memory of the
    loops."""
    data, coefficients, state = call.present
    axis, shape = call.attrs["axis"] % len(data.type.shape), data.type.shape
    outer, samples, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    sections, kept_ = state.type.shape[-2:]
    floats, dtype = data.type.dtype == "float32", state.type.dtype

    def build_biquads_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, rows, before), (out, now) = operands, results
        o, c, t, s, i = Var("o"), Var("c"), Var("t"), Var("s"), Var("i")
        line, channel = Buffer("line", (1,), dtype, "register"), o * inner + c
        old = before[channel, i] if floats else ir.clamp(before[channel, i], -LIMIT, LIMIT)
        begin = ir.loops([(i, sections * kept_)], ir.Store(now, (channel, i), old))
        sample = x[o, t, c] if floats else ir.cast("int32", x[o, t, c]) * (1 << SIGNAL_BITS)
        places = [(channel, s * kept_ + k) for k in range(kept_)]
        row = [rows[s, k] for k in range(5)]
        step = (_build_float_section if floats else _build_fixed_point_section)(row, line, now, places)
        value: Expr = line[0]
        if not floats:
            rounded = (value + (1 << SIGNAL_BITS - 1)) >> SIGNAL_BITS
            value = ir.cast("int16", ir.clamp(rounded, -32768, 32767))
        iteration = ir.seq(
            ir.Store(line, (_ZERO,), sample),
            ir.loops([(s, sections)], step),
            ir.Store(out, (o, t, c), value),
        )
        each = ir.seq(begin, ir.loops([(t, samples)], iteration))
        return ir.loops([(o, outer), (c, inner)], ir.Alloc(line, each))

    channels = outer * inner
    operands = (data.tensor((outer, samples, inner)), coefficients.tensor(), state.tensor((channels, sections * kept_)))
    results = (("out", (outer, samples, inner), data.type.dtype), ("now", (channels, sections * kept_), dtype))
    return te.extern("biquads", operands, results, build_biquads_loops)


def _build_float_section(
    coefficients: Sequence[Expr], sample: Buffer, new_state: Buffer, state_indices: Sequence[tuple[Expr, ...]]
) -> Stmt:
    """Build one biquad section of floats.

    It replaces the content of ``sample`` by its output, which is the input of the next section, and updates
    ``new_state``."""
    x, y = Var("x", "float32"), Var("y", "float32")
    b0, b1, b2, a1, a2 = coefficients
    stores = (
        ir.Store(new_state, state_indices[0], b1 * x - a1 * y + new_state[state_indices[1]]),
        ir.Store(new_state, state_indices[1], b2 * x - a2 * y),
        ir.Store(sample, (_ZERO,), y),
    )
    return wrap_in_lets([(x, sample[0]), (y, b0 * x + new_state[state_indices[0]])], ir.seq(*stores))


def _build_fixed_point_section(
    coefficients: Sequence[Expr], sample: Buffer, new_state: Buffer, state_indices: Sequence[tuple[Expr, ...]]
) -> Stmt:
    """Build one biquad section of fixed-point integers.

    It replaces the content of ``sample`` by its output, which is the input of the next section, and updates
    ``new_state``."""
    x, y, total = Var("x"), Var("y"), Var("total", "int64")
    signals = (x, *(new_state[place] for place in state_indices))
    products = [
        ir.cast("int64", factor) * ir.cast("int64", value) for factor, value in zip(coefficients, signals, strict=True)
    ]
    sums = products[0] + products[1] + products[2] - products[3] - products[4]
    rounded = (sums + ir.const(_HALF, "int64")) >> ir.const(COEFFICIENT_BITS, "int64")
    limited = ir.cast("int32", ir.clamp(total, -LIMIT, LIMIT))
    moved = (new_state[state_indices[0]], x, new_state[state_indices[2]], y)
    stores = [ir.Store(new_state, state_indices[k], moved[k2]) for k, k2 in ((1, 0), (0, 1), (3, 2), (2, 3))]
    return wrap_in_lets(
        [(x, sample[0]), (total, rounded), (y, limited)], ir.seq(*stores, ir.Store(sample, (_ZERO,), y))
    )


def _count_biquads_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    """Return the number of multiply-accumulate operations: five for each sample and section."""
    return types[0].size * types[1].size


def _make_biquads_test_cases() -> Iterable[Case]:
    rows = np.array([[0.2, 0.4, 0.2, -0.5, 0.3], [1.0, -1.0, 0.0, -0.8, 0.0], [0.9, 0.1, 0.3, 0.1, 0.5]])
    for shape, axis, sections in (((9,), 0, 1), ((1, 12), 1, 3), ((2, 7, 3), 1, 2), ((1, 5, 2), -1, 1)):
        for dtype, wide in (("float32", "float32"), ("int16", "int32")):
            factors = rows[:sections] if dtype == "float32" else np.rint(rows[:sections] * (1 << COEFFICIENT_BITS))
            state = TensorType(biquad_state_shape(shape, axis, sections, dtype), wide)
            types = (TensorType(shape, dtype), TensorType((sections, 5), wide), state)
            arrays = (None, factors.astype(wide), None)
            yield Case({"axis": axis}, types, (1,), arrays, 1e-5, f"{dtype} {shape} {sections}")
    most = np.array([[-(1 << 31), (1 << 31) - 1, -(1 << 31), (1 << 31) - 1, -(1 << 31)]], np.int32)
    past = np.array([[-(1 << 31), (1 << 31) - 1, (1 << 31) - 1, -(1 << 31)]], np.int32)
    x = np.array([-32768, 32767, 0, -32768, 32767], np.int16)
    types = (TensorType((5,), "int16"), TensorType((1, 5), "int32"), TensorType((1, 4), "int32"))
    yield Case({"axis": 0}, types, (1,), (x, most, past), name="the largest numbers")


BIQUADS_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "biquads",
        attrs={"axis": one_axis("axis of time")},
        infer=_infer_biquads_types,
        reference=_evaluate_biquads_reference,
        compute=_compute_biquads,
        cases=_make_biquads_test_cases,
        macs=_count_biquads_macs,
        operand_names=("data", "coefficients", "state"),
    ),
)


OPERATORS = (*FIR_OPERATORS, *FRAMES_OPERATORS, *BIQUADS_OPERATORS)
