# SPDX-License-Identifier: Apache-2.0
"""``biquads``: a cascade of second-order sections along an axis, which is an infinite impulse response filter, with its
state.

Operands are the data; the coefficients (S, 5), one row b0 b1 b2 a1 a2 per section with a0 = 1; and the state before the
first sample. Results are the filtered data and the state after the last sample. All other axes are channels; all
channels are filtered with the same coefficients. Each section computes

    y[n] = b0 x[n] + b1 x[n - 1] + b2 x[n - 2] - a1 y[n - 1] - a2 y[n - 2].

Floats are computed in the transposed direct form II; the state (..., S, 2) is that of ``scipy.signal.sosfilt``. int16
data have int32 coefficients of 28 fractional bits and are computed in direct form I. Signals between sections are int32
of twelve fractional bits. Each is rounded once, from an exact sum, and saturated to four times the range of int16. The
state (..., S, 4) contains x[n - 1], x[n - 2], y[n - 1], y[n - 2] of each section.

Source: Oppenheim and Schafer, *Discrete-Time Signal Processing*, 6.3; ``scipy.signal.sosfilt``.
"""

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
from microc.ops.attributes import one_axis
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

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


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "biquads",
        attrs={"axis": one_axis("of time")},
        infer=_infer_biquads_types,
        reference=_evaluate_biquads_reference,
        compute=_compute_biquads,
        cases=_make_biquads_test_cases,
        macs=_count_biquads_macs,
        operand_names=("data", "coefficients", "state"),
    ),
)
