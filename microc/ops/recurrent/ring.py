# SPDX-License-Identifier: Apache-2.0
"""Operators that keep the last frames of a stream: ``shift_in``, ``ring_slice``, ``ring_write``. They only copy
elements of any dtype.

``shift_in(history, data)`` drops the oldest frames of a history and appends the frames of the data. If the result is
the next contents of the history, it is written in place.

A ring buffer of R frames is an alternative that moves no old frames: the k frames of each step replace the k oldest
ones. R is a multiple of k. ``position`` (int32, one element) counts the steps, modulo a multiple of R / k.
``ring_slice(ring, position, data)`` reads ``count`` frames, ``step`` frames apart, from the frames of the ring followed
by those of the data; the first one read is ``back`` frames before the end. ``ring_write(ring, position, data)`` stores
the data in the ring.
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
from microc.ops.attributes import integer, one_axis
from microc.ops.constants import BOUNDED
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var


def _check_history(history_type: TensorType, data_type: TensorType, axis: int) -> None:
    """Raise ModelError unless history and data have the same dtype and shape up to the number of frames along
    ``axis``."""
    others = [(*tensor_type.shape[:axis], *tensor_type.shape[axis + 1 :]) for tensor_type in (history_type, data_type)]
    if not 0 <= axis < len(history_type.shape) or others[0] != others[1] or history_type.dtype != data_type.dtype:
        raise ModelError(
            f"history and data may differ along axis={axis} only; got history {history_type.dtype} "
            f"{history_type.shape} and data {data_type.dtype} {data_type.shape}"
        )


def _outer_size_frame_count_frame_size(tensor_type: TensorType, axis: int) -> tuple[int, int, int]:
    """Return three extents of a tensor whose frames are along ``axis``: elements before the axis, frames, elements of
    one frame."""
    return prod(tensor_type.shape[:axis]), tensor_type.shape[axis], prod(tensor_type.shape[axis + 1 :])


# ---------------------------------------------------------------- shift_in


def _infer_shift_in_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    history, data = types
    _check_history(history, data, attrs["axis"])
    if data.shape[attrs["axis"]] > history.shape[attrs["axis"]]:
        raise ModelError(
            f"shift_in: the data have more frames than the history; got {data.shape[attrs['axis']]}, expected at "
            f"most {history.shape[attrs['axis']]}"
        )
    return (TensorType(history.shape, history.dtype),)


def _evaluate_shift_in_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    history, data = arrays
    axis = attrs["axis"]
    kept = np.take(history, range(data.shape[axis], history.shape[axis]), axis)
    return (np.concatenate([kept, data], axis),)


def _compute_shift_in(call: OpCall) -> te.Tensor:
    """Build a loop over rows that moves the remaining frames of the history to the front and stores the data after
    them."""
    history, data = call.present
    (outer, frames, inner), fresh = (
        _outer_size_frame_count_frame_size(history.type, call.attrs["axis"]),
        data.type.shape[call.attrs["axis"]],
    )
    kept, added = (frames - fresh) * inner, fresh * inner

    def build_shift_in_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (old, new), (out,) = operands, results
        n, i, j = Var("n"), Var("i"), Var("j")
        stay = ir.loops([(i, kept)], ir.Store(out, (n, i), old[n, i + added]))
        come = ir.loops([(j, added)], ir.Store(out, (n, j + kept), new[n, j]))
        return ir.loops([(n, outer)], ir.seq(stay, come) if kept else come)

    tensors = (history.tensor((outer, frames * inner)), data.tensor((outer, added)))
    return te.extern("shift", tensors, (("out", (outer, frames * inner), history.type.dtype),), build_shift_in_loops)[0]


def _make_shift_in_test_cases() -> Iterable[Case]:
    for history, data, axis in (((1, 5, 4), (1, 1, 4), 1), ((2, 6, 3), (2, 2, 3), 1), ((3, 3), (3, 3), 1)):
        for dtype in ("int8", "float32"):
            yield Case({"axis": axis}, (TensorType(history, dtype), TensorType(data, dtype)))


# ---------------------------------------------------------------- rings


def _checked_ring_and_data_frames(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[int, int]:
    """Raise ModelError if attributes or types of a ring operator are invalid; return the number of frames of the ring
    and of the data."""
    ring, position, data = types
    axis = attrs["axis"]
    _check_history(ring, data, axis)
    whole = 0 < data.shape[axis] <= ring.shape[axis] and ring.shape[axis] % data.shape[axis] == 0
    if (position.size, position.dtype) != (1, "int32") or not whole:
        raise ModelError(
            f"ring or position are invalid; got {ring.shape[axis]} ring frames, {data.shape[axis]} data frames and "
            f"position {position.dtype} {position.shape}, expected a multiple of the data's frames, and one int32"
        )
    return ring.shape[axis], data.shape[axis]


def _infer_ring_slice_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kept, fresh = _checked_ring_and_data_frames(attrs, types)
    axis, back, step, count = (attrs[name] for name in ("axis", "back", "step", "count"))
    if step < 1 or count < 1 or back > kept + fresh or back - (count - 1) * step < 1:
        raise ModelError(
            f"ring_slice: frames are outside of ring and data; got count={count}, step={step} and back={back}, "
            f"expected 1..{kept + fresh} frames before the end"
        )
    shape = types[0].shape
    return (TensorType((*shape[:axis], count, *shape[axis + 1 :]), types[0].dtype),)


def _evaluate_ring_slice_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    ring, position, data = arrays
    axis, back, step, count = (attrs[name] for name in ("axis", "back", "step", "count"))
    oldest = int(position.reshape(-1)[0]) * data.shape[axis] % ring.shape[axis]
    line = np.concatenate([np.roll(ring, -oldest, axis), data], axis)
    first = line.shape[axis] - back
    return (np.take(line, range(first, first + (count - 1) * step + 1, step), axis),)


def _build_oldest_frame_index(position: Buffer, steps_per_ring: int, new_frames: int) -> Expr:
    """Build the index of the ring's oldest frame, which the new data will replace.

    ``steps_per_ring``: number of steps that fill the ring. ``new_frames``: number of frames that each step adds."""
    zero = ir.const(0, "int32")
    return zero if steps_per_ring == 1 else position[zero] % steps_per_ring * new_frames


def _compute_ring_slice(call: OpCall) -> te.Tensor:
    """Build a loop over the frames that are read: first frames of the ring, then frames of the data."""
    ring, position, data = call.present
    axis, back, step, count = (call.attrs[name] for name in ("axis", "back", "step", "count"))
    (outer, kept, inner), fresh = _outer_size_frame_count_frame_size(ring.type, axis), data.type.shape[axis]
    first = kept + fresh - back
    old = len(range(first, kept, step)) if first < kept else 0
    old, rest = min(old, count), first + min(old, count) * step - kept

    def build_ring_slice_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (frames, at, new), (out,) = operands, results
        n, t, i, u, j = Var("n"), Var("t"), Var("i"), Var("u"), Var("j")
        start, place, source = Var("start"), Var("place"), Var("source")
        fetch = ir.loops([(i, inner)], ir.Store(out, (n, t, i), frames[n, source, i]))
        wrapped = ir.Let(source, ir.select(place >= kept, place - kept, place), fetch)
        past = ir.loops([(t, old)], ir.Let(place, start + t * step + first, wrapped))
        take = ir.Store(out, (n, u + old, j), new[n, u * step + rest, j])
        now = ir.loops([(u, count - old), (j, inner)], take)
        parts = [part for part, size in ((past, old), (now, count - old)) if size]
        body = ir.loops([(n, outer)], ir.seq(*parts))
        return ir.Let(start, _build_oldest_frame_index(at, kept // fresh, fresh), body) if old else body

    tensors = (ring.tensor((outer, kept, inner)), position.tensor((1,)), data.tensor((outer, fresh, inner)))
    return te.extern("window", tensors, (("out", (outer, count, inner), ring.type.dtype),), build_ring_slice_loops)[0]


def _infer_ring_write_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _checked_ring_and_data_frames(attrs, types)
    return (TensorType(types[0].shape, types[0].dtype),)


def _evaluate_ring_write_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    ring, position, data = arrays
    axis, result = attrs["axis"], arrays[0].copy()
    start = int(position.reshape(-1)[0]) * data.shape[axis] % ring.shape[axis]
    result[(slice(None),) * axis + (slice(start, start + data.shape[axis]),)] = data
    return (result,)


def _compute_ring_write(call: OpCall, copies_ring: bool = True) -> te.Tensor:
    """Build the loops that store the data in the ring. If ``copies_ring`` they copy the old ring first; otherwise the
    ring is updated in place."""
    ring, position, data = call.present
    (outer, kept, inner), fresh = (
        _outer_size_frame_count_frame_size(ring.type, call.attrs["axis"]),
        data.type.shape[call.attrs["axis"]],
    )

    def build_ring_write_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (at, new, *frames), (out,) = operands, results
        n, m, i, j, start = Var("n"), Var("m"), Var("i"), Var("j"), Var("start")
        put = ir.loops([(n, outer), (j, fresh * inner)], ir.Store(out, (n, start + j), new[n, j]))
        copies = [ir.loops([(m, outer), (i, kept * inner)], ir.Store(out, (m, i), old[m, i])) for old in frames]
        return ir.seq(*copies, ir.Let(start, _build_oldest_frame_index(at, kept // fresh, fresh) * inner, put))

    operands = (position.tensor((1,)), data.tensor((outer, fresh * inner)))
    before = (ring.tensor((outer, kept * inner)),) if copies_ring else ()
    return te.extern(
        "write", (*operands, *before), (("out", (outer, kept * inner), ring.type.dtype),), build_ring_write_loops
    )[0]


def _ring_test_case_operands() -> Iterable[tuple[int, tuple[TensorType, ...], Array]]:
    """Yield axis, operand types and position of the test cases of ring operators."""
    for ring, data, axis in (
        ((1, 6, 4), (1, 1, 4), 1),
        ((2, 6, 3), (2, 2, 3), 1),
        ((3, 3), (3, 3), 1),
        ((4, 5), (1, 5), 0),
    ):
        for dtype, position in (("int8", 0), ("float32", 2)):
            types = (TensorType(ring, dtype), TensorType((1,), "int32"), TensorType(data, dtype))
            yield axis, types, np.array([position], np.int32)


def _make_ring_slice_test_cases() -> Iterable[Case]:
    for axis, types, position in _ring_test_case_operands():
        length = types[0].shape[axis] + types[2].shape[axis]
        for back, step, count in ((length, 1, length), (length, 3, 2), (2, 1, 1), (1, 1, 1), (4, 1, 3)):
            attrs = {"axis": axis, "back": back, "step": step, "count": count}
            yield Case(attrs, types, arrays=(None, position, None), name=f"{types[0].shape} {back} {step} {count}")


def _make_ring_write_test_cases() -> Iterable[Case]:
    for axis, types, position in _ring_test_case_operands():
        yield Case({"axis": axis}, types, arrays=(None, position, None))


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "shift_in",
        attrs={"axis": one_axis()},
        infer=_infer_shift_in_types,
        reference=_evaluate_shift_in_reference,
        compute=_compute_shift_in,
        cases=_make_shift_in_test_cases,
        operand_names=("history", "data"),
    ),
    OpDef(
        "ring_slice",
        attrs={
            "axis": one_axis(),
            "back": integer("number of frames from the first one to the end of the ring and the data"),
            "step": integer("distance of two frames"),
            "count": integer("of frames", least=0),
        },
        infer=_infer_ring_slice_types,
        reference=_evaluate_ring_slice_reference,
        compute=_compute_ring_slice,
        cases=_make_ring_slice_test_cases,
        constants={1: BOUNDED},
        operand_names=("ring", "position", "data"),
    ),
    OpDef(
        "ring_write",
        attrs={"axis": one_axis()},
        infer=_infer_ring_write_types,
        reference=_evaluate_ring_write_reference,
        compute=_compute_ring_write,
        update=lambda call: _compute_ring_write(call, copies_ring=False),
        cases=_make_ring_write_test_cases,
        constants={1: BOUNDED},
        operand_names=("ring", "position", "data"),
    ),
)
