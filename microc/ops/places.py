"""Elements in other places: ``reverse``, ``mirror_pad``, ``broadcast_to``, ``one_hot``, ``gather_nd``, ``scatter_nd``,
``dynamic_slice``, ``dynamic_update_slice``. Indices that lie outside are clamped, so that nothing is read or written there.

Sources: TFLite ``reverse.h``, ``mirror_pad``, ``gather_nd``, ``scatter_nd``, ``dynamic_update_slice.cc``; ONNX Pad, GatherND,
ScatterND.
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
from microc.ops.concat import first_operand
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_INDICES = ("int32", "int64")


def clamped_index(index: Expr, extent: int) -> Expr:
    """An index made of data, within 0..extent - 1."""
    return ir.cast("int32", ir.clamp(index, 0, extent - 1))


def _check_indices(name: str, kind: TensorType) -> None:
    if kind.dtype not in _INDICES:
        raise ModelError(f"{name} with {kind.dtype} indices", hint="indices are int32 or int64")


# ---------------------------------------------------------------- reverse


def _infer_reverse(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if any(not 0 <= axis < len(types[0].shape) for axis in attrs["axes"]):
        raise ModelError(f"reverse of shape {types[0].shape} along axes {attrs['axes']}")
    return (TensorType(types[0].shape, types[0].dtype),)


def _compute_reverse(call: OpCall) -> te.Tensor:
    data, axes = first_operand(call), call.attrs["axes"]
    x, shape = data.tensor(), data.type.shape

    def element(*index: Expr) -> Expr:
        return x[tuple(shape[k] - 1 - i if k in axes else i for k, i in enumerate(index))]

    return te.compute(shape, element, "turned")


def _cases_reverse() -> Iterable[Case]:
    for shape, axes in (((5,), (0,)), ((2, 3, 4), (1,)), ((2, 3, 4), (0, 2)), ((3, 2), ())):
        yield Case({"axes": axes}, (TensorType(shape, "int8"),))
    yield Case({"axes": (1,)}, (TensorType((2, 3), "float32"),))


# ---------------------------------------------------------------- mirror_pad

_MODES = ("reflect", "symmetric", "edge", "wrap")


def _infer_mirror(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, padding, mode = types[0].shape, attrs["padding"], attrs["mode"]
    if mode not in _MODES or len(padding) != len(shape) or any(min(p) < 0 for p in padding):
        raise ModelError(f"padding {padding} of shape {shape} by mode {mode!r}")
    most = {"reflect": -1, "symmetric": 0, "wrap": 0}
    for extent, amounts in zip(shape, padding, strict=True):
        if not extent or (mode in most and max(amounts) > extent + most[mode]):
            raise ModelError(f"padding {amounts} of {extent} elements by mode {mode!r}")
    extents = (before + extent + after for extent, (before, after) in zip(shape, padding, strict=True))
    return (TensorType(tuple(extents), types[0].dtype),)


def _reference_mirror(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return (np.pad(arrays[0], attrs["padding"], mode=attrs["mode"]) if arrays[0].ndim else arrays[0],)


def _compute_mirror(call: OpCall) -> te.Tensor:
    data, mode = first_operand(call), call.attrs["mode"]
    x = data.tensor()

    def place(index: Expr, extent: int, before: int, after: int) -> Expr:
        inside = index - before if before else index
        skipped = 0 if mode == "reflect" else 1
        first = {"edge": ir.const(0, "int32"), "wrap": inside + extent}.get(mode, -inside - skipped)
        last = {"edge": ir.const(extent - 1, "int32"), "wrap": inside - extent}.get(
            mode, 2 * (extent - 1) + skipped - inside
        )
        found = ir.select(index >= before + extent, last, inside) if after else inside
        return ir.select(index < before, first, found) if before else found

    def element(*index: Expr) -> Expr:
        parts = zip(index, data.type.shape, call.attrs["padding"], strict=True)
        return x[tuple(place(i, extent, before, after) for i, extent, (before, after) in parts)]

    return te.compute(call.out_types[0].shape, element, "padded_out")


def _cases_mirror() -> Iterable[Case]:
    for mode in _MODES:
        for shape, padding in (((4,), ((3, 2),)), ((2, 3), ((0, 1), (2, 0))), ((1, 3, 2), ((0, 0), (2, 2), (1, 1)))):
            yield Case({"padding": padding, "mode": mode}, (TensorType(shape, "int8"),), name=f"{mode} {shape}")
    yield Case({"padding": ((1, 1),), "mode": "edge"}, (TensorType((1,), "float32"),), name="one element")


# ---------------------------------------------------------------- broadcast_to


def _infer_broadcast(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape = tuple(attrs["shape"])
    try:
        fits = np.broadcast_shapes(types[0].shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ModelError(f"shape {types[0].shape} cannot be broadcast to {shape}")
    return (TensorType(shape, types[0].dtype),)


def _compute_broadcast(call: OpCall) -> te.Tensor:
    data, shape = first_operand(call), call.attrs["shape"]
    x, own = data.tensor(), data.type.shape

    def element(*index: Expr) -> Expr:
        mine = index[len(index) - len(own) :]
        return x[tuple(0 if extent == 1 else i for i, extent in zip(mine, own, strict=True))]

    return te.compute(tuple(shape), element, "spread")


def _cases_broadcast() -> Iterable[Case]:
    for shape, result in (((3,), (2, 3)), ((2, 1), (2, 4)), ((), (2, 2)), ((1, 3, 1), (2, 3, 2)), ((2,), (2,))):
        yield Case({"shape": result}, (TensorType(shape, "int8"),))
    yield Case({"shape": (2, 2)}, (TensorType((2, 1), "float32"),))


# ---------------------------------------------------------------- one_hot


def _infer_one_hot(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Indices, the value on, the value off (both of one element)."""
    indices, on, off = types
    rank = len(indices.shape)
    if on.dtype != off.dtype or (on.size, off.size) != (1, 1) or not -rank - 1 <= attrs["axis"] <= rank:
        raise ModelError(f"one_hot of {indices.shape} along axis {attrs['axis']} with {on.dtype} and {off.dtype}")
    if attrs["depth"] < 1 or indices.dtype not in (*_INDICES, "uint8"):
        raise ModelError(f"one_hot of {indices.dtype} indices to depth {attrs['depth']}")
    axis = attrs["axis"] % (rank + 1)
    return (TensorType((*indices.shape[:axis], attrs["depth"], *indices.shape[axis:]), on.dtype),)


def _reference_one_hot(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    indices, on, off = arrays
    axis, depth = attrs["axis"] % (indices.ndim + 1), attrs["depth"]
    wrapped = np.where(indices < 0, indices.astype(np.int64) + depth, indices) if attrs["wrap"] else indices
    places = np.arange(depth).reshape((depth,) + (1,) * (indices.ndim - axis))
    hot = np.expand_dims(wrapped, axis) == places
    return (np.where(hot, on.reshape(()), off.reshape(())).astype(on.dtype),)


def _compute_one_hot(call: OpCall) -> te.Tensor:
    indices, on, off = (operand for operand in call.operands if operand is not None)
    depth, rank = int(call.attrs["depth"]), len(indices.type.shape)
    axis = call.attrs["axis"] % (rank + 1)
    outer, inner = prod(indices.type.shape[:axis]), prod(indices.type.shape[axis:])
    x, high, low = indices.tensor((outer, inner)), on.tensor((1,)), off.tensor((1,))

    def element(n: Expr, d: Expr, i: Expr) -> Expr:
        index = x[n, i] if indices.type.dtype != "uint8" else ir.cast("int32", x[n, i])
        if call.attrs["wrap"]:
            index = ir.select(index < 0, index + depth, index)
        return ir.select(index.eq(ir.cast(index.dtype, d)), high[0], low[0])

    return te.compute((outer, depth, inner), element, "hot", ("n", "d", "i"))


def _cases_one_hot() -> Iterable[Case]:
    for shape, axis, dtype in (((4,), -1, "int32"), ((2, 3), 0, "int64"), ((2, 3), 1, "int32"), ((), 0, "int32")):
        indices = (np.arange(prod(shape)) * 2 - 3).reshape(shape).astype(dtype)
        for wrap in (False, True):
            types = (TensorType(shape, dtype), TensorType((), "float32"), TensorType((1,), "float32"))
            attrs = {"depth": 4, "axis": axis, "wrap": wrap}
            yield Case(attrs, types, arrays=(indices, None, None), name=f"{shape} {axis}")


# ---------------------------------------------------------------- gather_nd


def _infer_gather_nd(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, indices = types
    _check_indices("gather_nd", indices)
    batch = attrs["batch_dims"]
    depth = indices.shape[-1] if indices.shape else 0
    if not indices.shape or data.shape[:batch] != indices.shape[:batch] or batch + depth > len(data.shape):
        raise ModelError(f"gather_nd of shape {data.shape} at indices of shape {indices.shape}")
    if batch >= len(indices.shape) or 0 in data.shape:
        raise ModelError(f"gather_nd of shape {data.shape} with {batch} batch axes")
    return (TensorType((*indices.shape[:-1], *data.shape[batch + depth :]), data.dtype),)


def _places(data: Sequence[int], indices: Array, batch: int, wrap: bool) -> tuple[Array, ...]:
    """numpy's index of every element that ``indices`` name."""
    depth = indices.shape[-1]
    found: list[Array] = list(np.indices(indices.shape[:-1], sparse=True)[:batch]) if batch else []
    for k in range(depth):
        extent, at = data[batch + k], indices[..., k].astype(np.int64)
        found.append(np.clip(np.where(at < 0, at + extent, at) if wrap else at, 0, extent - 1))
    return tuple(found)


def _reference_gather_nd(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices = arrays
    return (np.array(data[_places(data.shape, indices, attrs["batch_dims"], True)]),)


def _flat_place(at: Buffer | te.Tensor, n: Expr, extents: Sequence[int]) -> Expr:
    """The row that indices number ``n`` name, in a tensor of ``extents``; negative ones count from the end."""
    flat: Expr = ir.const(0, "int32")
    for k, extent in enumerate(extents):
        index = at[n, k]
        wrapped = ir.select(index < 0, ir.clamp(index, -extent, -1) + extent, ir.minimum(index, extent - 1))
        flat = flat * extent + ir.cast("int32", wrapped)
    return flat


def _compute_gather_nd(call: OpCall) -> te.Tensor:
    data, indices = (operand for operand in call.operands if operand is not None)
    batch, depth = int(call.attrs["batch_dims"]), indices.type.shape[-1]
    shape, extents = data.type.shape, data.type.shape[batch : batch + depth]
    groups, rows = prod(shape[:batch]), prod(indices.type.shape[batch:-1])
    inner = prod(shape[batch + depth :])
    x = data.tensor((groups, prod(extents), inner))
    at = indices.tensor((groups * rows, depth))

    def element(g: Expr, r: Expr, c: Expr) -> Expr:
        return x[g, _flat_place(at, g * rows + r, extents), c]

    return te.compute((groups, rows, inner), element, "gathered", ("g", "r", "c"))


def _cases_gather_nd() -> Iterable[Case]:
    for shape, places, batch in (
        ((3, 4), [[0, 1], [2, -1], [-3, 9]], 0),
        ((3, 4), [[2], [0]], 0),
        ((2, 3, 2), [[[1, 0], [2, 1]], [[0, 0], [-1, -1]]], 1),
        ((2, 2, 2, 3), [[[1, 0]], [[0, 1]]], 0),
    ):
        for dtype, kind in (("int32", "int8"), ("int64", "float32")):
            indices = np.array(places, dtype)
            types = (TensorType(shape, kind), TensorType(indices.shape, dtype))
            yield Case({"batch_dims": batch}, types, arrays=(None, indices), name=f"{shape} {kind}")


# ---------------------------------------------------------------- scatter_nd

_REDUCTIONS: Mapping[str, Any] = {"": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _infer_scatter_nd(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, indices, updates = types
    _check_indices("scatter_nd", indices)
    depth = indices.shape[-1] if indices.shape else 0
    if not 1 <= depth <= len(data.shape) or updates.shape != (*indices.shape[:-1], *data.shape[depth:]):
        raise ModelError(f"scatter_nd of {updates.shape} into {data.shape} at indices of shape {indices.shape}")
    if updates.dtype != data.dtype or attrs["reduction"] not in _REDUCTIONS:
        raise ModelError(f"scatter_nd of {updates.dtype} into {data.dtype} by {attrs['reduction']!r}")
    return (TensorType(data.shape, data.dtype),)


def _reference_scatter_nd(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices, updates = arrays
    result, at = data.copy(), _places(data.shape, indices, 0, True)
    reduce = _REDUCTIONS[attrs["reduction"]]
    if reduce is None:
        for place in np.ndindex(indices.shape[:-1]):
            result[tuple(int(axis[place]) for axis in at)] = updates[place]
    else:
        reduce.at(result, at, updates)
    return (result,)


def _compute_scatter_nd(call: OpCall) -> te.Tensor:
    """The data copied, then one update after the other."""
    data, indices, updates = (operand for operand in call.operands if operand is not None)
    shape, depth, dtype = data.type.shape, indices.type.shape[-1], data.type.dtype
    rows, inner = prod(indices.type.shape[:-1]), prod(shape[depth:])
    compute = dtype if dtype in ("float32", "float64", "int64", "uint32", "uint64") else "int32"

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, at, new), (out,) = operands, results
        i, j, r, c = Var("i"), Var("j"), Var("r"), Var("c")
        copy = ir.loops([(i, prod(shape[:depth])), (j, inner)], ir.Store(out, (i, j), x[i, j]))
        place, value = _flat_place(at, r, shape[:depth]), ir.cast(compute, new[r, c])
        if call.attrs["reduction"]:
            value = ir.binary(call.attrs["reduction"], ir.cast(compute, out[place, c]), value)
        update = ir.Store(out, (place, c), ir.cast(dtype, value))
        return ir.seq(copy, ir.loops([(r, rows), (c, inner)], update))

    operands = (data.tensor((prod(shape[:depth]), inner)), indices.tensor((rows, depth)), updates.tensor((rows, inner)))
    return te.extern("scatter", operands, (("out", (prod(shape[:depth]), inner), dtype),), build)[0]


def _cases_scatter_nd() -> Iterable[Case]:
    for shape, places, dtype in (
        ((4, 3), [[1], [3], [1]], "int32"),
        ((4, 3), [[1, 2], [-1, 0], [1, 2], [0, 0]], "int64"),
        ((5,), [[4], [4], [0]], "int32"),
        ((2, 2, 3), [[[0, 1]], [[1, 1]]], "int32"),
    ):
        indices = np.array(places, dtype)
        updates = (*indices.shape[:-1], *shape[indices.shape[-1] :])
        for reduction in _REDUCTIONS:
            for kind in ("float32", "int32"):
                types = (TensorType(shape, kind), TensorType(indices.shape, dtype), TensorType(updates, kind))
                arrays = (None, indices, None)
                yield Case({"reduction": reduction}, types, arrays=arrays, tolerance=1e-6, name=f"{shape} {reduction}")


# ---------------------------------------------------------------- dynamic slices


def _check_begin(name: str, attrs: Mapping[str, Any], data: TensorType, begin: TensorType, size: Sequence[int]) -> None:
    _check_indices(name, begin)
    if begin.shape != (len(data.shape),) or len(size) != len(data.shape):
        raise ModelError(f"{name} of shape {data.shape} from {begin.shape} indices on")
    if any(not 1 <= part <= extent for part, extent in zip(size, data.shape, strict=True)):
        raise ModelError(f"{name} of {tuple(size)} elements of shape {data.shape}")


def _starts(begin: Any, shape: Sequence[int], size: Sequence[int]) -> list[int]:
    return [int(np.clip(b, 0, extent - part)) for b, extent, part in zip(begin, shape, size, strict=True)]


def _infer_dynamic_slice(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _check_begin("dynamic_slice", attrs, types[0], types[1], attrs["size"])
    return (TensorType(tuple(attrs["size"]), types[0].dtype),)


def _reference_dynamic_slice(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, begin = arrays
    starts = _starts(begin, data.shape, attrs["size"])
    return (data[tuple(slice(s, s + part) for s, part in zip(starts, attrs["size"], strict=True))].copy(),)


def _compute_dynamic_slice(call: OpCall) -> te.Tensor:
    data, begin = (operand for operand in call.operands if operand is not None)
    x, first, size = data.tensor(), begin.tensor(), call.attrs["size"]

    def element(*index: Expr) -> Expr:
        parts = zip(index, data.type.shape, size, strict=True)
        return x[tuple(i + clamped_index(first[k], extent - part + 1) for k, (i, extent, part) in enumerate(parts))]

    return te.compute(tuple(size), element, "part")


def _cases_dynamic_slice() -> Iterable[Case]:
    for shape, begin, size in (((5,), [2], (3,)), ((4, 6), [3, -1], (2, 6)), ((2, 3, 4), [1, 0, 2], (1, 2, 2))):
        indices = np.array(begin, np.int32)
        types = (TensorType(shape, "int8"), TensorType(indices.shape, "int32"))
        yield Case({"size": size}, types, arrays=(None, indices))


def _infer_update(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, update, begin = types
    _check_begin("dynamic_update_slice", attrs, data, begin, update.shape)
    if update.dtype != data.dtype:
        raise ModelError(f"dynamic_update_slice of {update.dtype} into {data.dtype}")
    return (TensorType(data.shape, data.dtype),)


def _reference_update(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, update, begin = arrays
    starts, result = _starts(begin, data.shape, update.shape), data.copy()
    result[tuple(slice(s, s + part) for s, part in zip(starts, update.shape, strict=True))] = update
    return (result,)


def _compute_update(call: OpCall) -> te.Tensor:
    data, update, begin = (operand for operand in call.operands if operand is not None)
    shape, size = data.type.shape, update.type.shape
    x, new, first = data.tensor(), update.tensor(), begin.tensor()

    def element(*index: Expr) -> Expr:
        offsets = [
            i - clamped_index(first[k], extent - part + 1)
            for k, (i, extent, part) in enumerate(zip(index, shape, size, strict=True))
        ]
        inside = ir.all_of(
            condition for offset, part in zip(offsets, size, strict=True) for condition in (offset >= 0, offset < part)
        )
        return x[index] if inside is None else ir.select(inside, new[tuple(offsets)], x[index])

    return te.compute(shape, element, "updated")


def _update_in_place(call: OpCall) -> te.Tensor:
    """The update's elements alone, at their places."""
    data, update, begin = (operand for operand in call.operands if operand is not None)
    shape, size = data.type.shape, update.type.shape

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (new, first), (out,) = operands, results
        index = tuple(Var(f"i{k}") for k in range(len(size)))
        places = tuple(
            i + clamped_index(first[k], extent - part + 1)
            for k, (i, extent, part) in enumerate(zip(index, shape, size, strict=True))
        )
        return ir.loops(zip(index, size, strict=True), ir.Store(out, places, new[index]))

    return te.extern("write", (update.tensor(), begin.tensor()), (("out", shape, data.type.dtype),), build)[0]


def _cases_update() -> Iterable[Case]:
    for shape, begin, size in (((5,), [2], (2,)), ((4, 6), [9, -1], (1, 6)), ((2, 3, 4), [1, 0, 2], (1, 2, 2))):
        indices = np.array(begin, np.int64)
        types = (TensorType(shape, "int8"), TensorType(size, "int8"), TensorType(indices.shape, "int64"))
        yield Case({}, types, arrays=(None, None, indices))


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "reverse",
        infer=_infer_reverse,
        reference=lambda attrs, arrays: (np.ascontiguousarray(np.flip(arrays[0], attrs["axes"])),),
        compute=_compute_reverse,
        cases=_cases_reverse,
        operand_names=("data",),
    ),
    OpDef(
        "mirror_pad",
        infer=_infer_mirror,
        reference=_reference_mirror,
        compute=_compute_mirror,
        cases=_cases_mirror,
        operand_names=("data",),
    ),
    OpDef(
        "broadcast_to",
        infer=_infer_broadcast,
        reference=lambda attrs, arrays: (np.broadcast_to(arrays[0], attrs["shape"]).copy(),),
        compute=_compute_broadcast,
        cases=_cases_broadcast,
        operand_names=("data",),
    ),
    OpDef(
        "one_hot",
        infer=_infer_one_hot,
        reference=_reference_one_hot,
        compute=_compute_one_hot,
        cases=_cases_one_hot,
        defaults={"axis": -1, "wrap": True},
        operand_names=("indices", "on", "off"),
    ),
    OpDef(
        "gather_nd",
        infer=_infer_gather_nd,
        reference=_reference_gather_nd,
        compute=_compute_gather_nd,
        cases=_cases_gather_nd,
        defaults={"batch_dims": 0},
        operand_names=("data", "indices"),
    ),
    OpDef(
        "scatter_nd",
        infer=_infer_scatter_nd,
        reference=_reference_scatter_nd,
        compute=_compute_scatter_nd,
        cases=_cases_scatter_nd,
        defaults={"reduction": ""},
        operand_names=("data", "indices", "updates"),
    ),
    OpDef(
        "dynamic_slice",
        infer=_infer_dynamic_slice,
        reference=_reference_dynamic_slice,
        compute=_compute_dynamic_slice,
        cases=_cases_dynamic_slice,
        operand_names=("data", "begin"),
    ),
    OpDef(
        "dynamic_update_slice",
        infer=_infer_update,
        reference=_reference_update,
        compute=_compute_update,
        update=_update_in_place,
        cases=_cases_update,
        operand_names=("data", "update", "begin"),
    ),
)
