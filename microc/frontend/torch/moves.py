"""Spellings of ATen's operators that move elements: views, slices, joins, paddings, constants of a shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc import dtypes
from microc.frontend.torch.application import Application, Spelling


def view(a: Application) -> str:
    return a.reshaped(a.operand("self"), a.result_shape())


def same(a: Application) -> str:
    """A copy, a change of strides, dropout: the same elements."""
    return a.operand("self") if a.argument("self") is not None else a.operand("input")


def permute(a: Application) -> str:
    x = a.operand("self")
    rank = len(a.shape(x))
    if a.name == "permute":
        axes = [d % rank for d in a.argument("dims")]
    else:
        axes = list(range(rank))
        one, other = (0, rank - 1) if a.name == "t" else (a.argument("dim0") % rank, a.argument("dim1") % rank)
        axes[one], axes[other] = axes[other], axes[one]
    return x if axes == sorted(axes) else a.emit("transpose", (x,), {"axes": tuple(axes)})


def expand(a: Application) -> str:
    x, wanted = a.operand("self"), a.result_shape()
    return x if a.shape(x) == wanted else a.emit("broadcast_to", (x,), {"shape": wanted})


def repeat(a: Application) -> str:
    x, wanted = a.operand("self"), a.result_shape()
    x = a.reshaped(x, (1,) * (len(wanted) - len(a.shape(x))) + a.shape(x))
    for axis, extent in enumerate(wanted):
        have = a.shape(x)[axis]
        if have != extent:
            x = a.emit("concat", (x,) * (extent // have), {"axis": axis})
    return x


def concat(a: Application) -> str:
    parts = [a.value(part) for part in a.argument("tensors")]
    parts = [part for part in parts if 0 not in a.shape(part)]
    if len(parts) == 1:
        return parts[0]
    return a.emit("concat", parts, {"axis": int(a.argument("dim", 0))})


def stack(a: Application) -> str:
    axis, wanted = int(a.argument("dim", 0)), a.result_shape()
    axis %= len(wanted)
    one = (*wanted[:axis], 1, *wanted[axis + 1 :])
    return a.emit("concat", [a.reshaped(a.value(part), one) for part in a.argument("tensors")], {"axis": axis})


def sliced(a: Application, x: str, axis: int, begin: int, end: int, step: int = 1) -> str:
    """Elements begin, begin + step ... below end along an axis."""
    shape = a.shape(x)
    if (begin, end, step) == (0, shape[axis], 1):
        return x
    starts, ends, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], ends[axis], strides[axis] = begin, end, step
    return a.emit("slice", (x,), {"begin": tuple(starts), "end": tuple(ends), "strides": tuple(strides)})


def slice_(a: Application) -> str:
    x, axis = a.operand("self"), int(a.argument("dim", 0)) % len(a.shape(a.operand("self")))
    begin, end, step = slice(a.argument("start"), a.argument("end"), a.argument("step", 1)).indices(a.shape(x)[axis])
    return sliced(a, x, axis, begin, end, step)


def select(a: Application) -> str:
    x, axis = a.operand("self"), int(a.argument("dim")) % len(a.shape(a.operand("self")))
    place = int(a.argument("index")) % a.shape(x)[axis]
    return a.reshaped(sliced(a, x, axis, place, place + 1), a.result_shape())


def split(a: Application) -> tuple[str, ...]:
    x, axis = a.operand("self"), int(a.argument("dim", 0)) % len(a.shape(a.operand("self")))
    extents = [a.result_shape(k)[axis] for k in range(len(a.node.meta["val"]))]
    starts = [sum(extents[:k]) for k in range(len(extents))]
    return tuple(sliced(a, x, axis, start, start + extent) for start, extent in zip(starts, extents, strict=True))


def unbind(a: Application) -> tuple[str, ...]:
    x, axis = a.operand("self"), int(a.argument("dim", 0)) % len(a.shape(a.operand("self")))
    return tuple(a.reshaped(sliced(a, x, axis, k, k + 1), a.result_shape(k)) for k in range(a.shape(x)[axis]))


def pad(a: Application) -> str:
    """constant_pad_nd: pairs from the last axis on; negative ones cut."""
    x, amounts = a.operand("self"), a.argument("pad")
    rank = len(a.shape(x))
    pairs: list[Sequence[int]] = [(0, 0)] * rank
    for k in range(len(amounts) // 2):
        pairs[rank - 1 - k] = amounts[2 * k : 2 * k + 2]
    for axis, (before, after) in enumerate(pairs):
        x = sliced(a, x, axis, max(-before, 0), a.shape(x)[axis] - max(-after, 0))
    padding = tuple((max(int(b), 0), max(int(e), 0)) for b, e in pairs)
    if not any(map(any, padding)):
        return x
    return a.emit("pad", (x,), {"padding": padding, "value": float(a.argument("value", 0) or 0)})


def to_dtype(a: Application) -> str:
    return a.cast(a.operand("self"), a.result_dtype())


def filled(a: Application) -> str:
    """full_like and its kin: a constant of the operand's shape."""
    number = {"zeros_like": 0, "ones_like": 1}.get(a.name, a.argument("fill_value"))
    return a.write.new_constant("full", np.full(a.result_shape(), number, dtypes.to_numpy(a.result_dtype())))


SPELLINGS: Mapping[str, Spelling] = {
    "_to_copy": to_dtype,
    "_unsafe_view": view,
    "alias": same,
    "cat": concat,
    "clone": same,
    "constant_pad_nd": pad,
    "contiguous": same,
    "detach": same,
    "dropout": same,
    "expand": expand,
    "flatten": view,
    "full_like": filled,
    "lift_fresh_copy": same,
    "ones_like": filled,
    "permute": permute,
    "repeat": repeat,
    "select": select,
    "slice": slice_,
    "split_with_sizes": split,
    "squeeze": view,
    "stack": stack,
    "t": permute,
    "transpose": permute,
    "unbind": unbind,
    "unsqueeze": view,
    "view": view,
    "zeros_like": filled,
}
