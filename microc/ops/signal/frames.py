"""``frame``: overlapping pieces of a sequence: samples, rows or images along an axis become frames of ``length`` of them, which
begin ``step`` apart; what does not fill a frame at the end is left out. Any dtype; nothing is computed.

Source: ``tf.signal.frame``.
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
from microc.ops.axes import AxisMap
from microc.ops.registry import Alias, Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Stmt, Var


def frames_of(samples: int, length: int, step: int) -> int:
    """How many frames so many samples have."""
    return max(0, (samples - length) // step + 1)


def _axis(attrs: Mapping[str, Any], kind: TensorType) -> int:
    return int(attrs["axis"]) % len(kind.shape)


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (data,), length = types, attrs["length"]
    if not -len(data.shape) <= attrs["axis"] < len(data.shape):
        raise ModelError(f"frame of shape {data.shape} along axis {attrs['axis']}")
    axis = _axis(attrs, data)
    count = frames_of(data.shape[axis], length, attrs["step"])
    if not count:
        raise ModelError(f"frames of {length} from {data.shape[axis]} samples")
    return (TensorType((*data.shape[:axis], count, length, *data.shape[axis + 1 :]), data.dtype),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, length, step = arrays[0], attrs["length"], attrs["step"]
    axis = attrs["axis"] % data.ndim
    places = np.arange(frames_of(data.shape[axis], length, step))[:, None] * step + np.arange(length)
    return (np.take(data, places, axis),)


def _compute(call: OpCall) -> te.Tensor:
    (data,) = call.present
    axis, length, step = _axis(call.attrs, data.type), call.attrs["length"], call.attrs["step"]
    outer, samples, inner = prod(data.type.shape[:axis]), data.type.shape[axis], prod(data.type.shape[axis + 1 :])
    count = frames_of(samples, length, step)

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out,) = operands, results
        n, f, i = Var("n"), Var("f"), Var("i")
        sample = ir.Store(out, (n, f, i), x[n, f * (step * inner) + i])
        return ir.loops([(n, outer), (f, count), (i, length * inner)], sample)

    results = (("out", (outer, count, length * inner), data.type.dtype),)
    return te.extern("frame", (data.tensor((outer, samples * inner)),), results, build)[0]


def _alias(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> Alias | None:
    """Frames that do not overlap, or a single one, are the samples themselves."""
    axis = _axis(attrs, types[0])
    single = out_types[0].shape[axis] == 1 or attrs["step"] == attrs["length"]
    return Alias(source=0) if single and prod(types[0].shape[:axis]) == 1 else None


def _axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    axis = _axis(attrs, types[0])
    return (tuple(None if k == axis else k + (k > axis) for k in range(len(types[0].shape))),)


def _cases() -> Iterable[Case]:
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


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "frame",
        attrs={
            "axis": one_axis("of time; the frames' own samples are the axis behind it"),
            "length": integer("of a frame, in samples", least=1),
            "step": integer("from a frame's beginning to the next one's", least=1),
        },
        infer=_infer,
        reference=_reference,
        compute=_compute,
        alias=_alias,
        cases=_cases,
        axes=_axes,
        moves=True,
        operand_names=("data",),
    ),
)
