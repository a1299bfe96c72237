# SPDX-License-Identifier: Apache-2.0
"""Operators ``reshape``, ``transpose``, ``slice``, ``pad``, ``concat`` and ``gather``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Graph, Node, TensorType
from microc.ops.arithmetic import Rewrite, emit_dequantize, quantize_attrs
from microc.ops.attributes import (
    ROUNDING,
    int_pairs_by_axis,
    integer,
    integers,
    ints_by_axis,
    number,
    one_axis,
    result_extents,
)
from microc.ops.constants import BOUNDED, attribute_dtype_error_message
from microc.ops.data_movement.rearrange import check_index_dtype, wrap_index, wrap_index_array
from microc.ops.elementwise.tables import IDENTITY, emit_table_lookup
from microc.ops.gradients.rules import (
    build_concat_gradients,
    build_gather_gradient,
    build_pad_gradient,
    build_reshape_gradient,
    build_slice_gradient,
    build_transpose_gradient,
)
from microc.ops.registry import (
    Alias,
    AxisMap,
    Case,
    Legalized,
    OpCall,
    OpDef,
    axis_after_reshape,
    map_padding,
    map_unchanged_axes,
)
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import PADDED

# ---- ``concat`` and ``gather``: elements of several tensors, or elements of one tensor at run-time indices. Any dtype.

# ---------------------------------------------------------------- concat


def _infer_concat_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, axis = types[0].shape, attrs["axis"]
    if not -len(shape) <= axis < len(shape):
        raise ModelError(
            f"concat: the axis is outside of the operands' shape; got axis={axis}, expected "
            f"-{len(shape)}..{len(shape) - 1} for {shape}"
        )
    axis %= len(shape)
    for tensor_type in types[1:]:
        others = tensor_type.shape[:axis] + tensor_type.shape[axis + 1 :]
        if (
            len(tensor_type.shape) != len(shape)
            or others != shape[:axis] + shape[axis + 1 :]
            or tensor_type.dtype != types[0].dtype
        ):
            shapes = ", ".join(f"{t.dtype} {t.shape}" for t in types)
            raise ModelError(f"concat: operands may differ in their extents along axis {axis} only; got {shapes}")
    total = sum(tensor_type.shape[axis] for tensor_type in types)
    return (TensorType((*shape[:axis], total, *shape[axis + 1 :]), types[0].dtype),)


def _evaluate_concat_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return (np.concatenate([np.asarray(a) for a in arrays], axis=attrs["axis"]),)


_FEW = 16
"""Largest number of operands of ``concat`` for which an element's operand is found by a chain of comparisons. With more
operands it is found by binary search."""


def _compute_concat(call: OpCall) -> te.Tensor:
    """Build the rows of the result; each row consists of one row of every operand."""
    shape = call.out_types[0].shape
    axis = call.attrs["axis"] % len(shape)
    outer = prod(shape[:axis])
    operands = call.present
    tensors = [operand.tensor((outer, prod(operand.type.shape[axis:]))) for operand in operands]

    starts = list(accumulate((tensor.shape[1] for tensor in tensors), initial=0))

    def build_concat_element(n: Expr, i: Expr, first: int = 0, last: int = len(tensors)) -> Expr:
        if last - first == 1:
            return tensors[first][n, i - starts[first]]
        middle = first + 1 if len(tensors) <= _FEW else (first + last) // 2
        return ir.select(
            i < starts[middle], build_concat_element(n, i, first, middle), build_concat_element(n, i, middle, last)
        )

    return te.compute((outer, prod(shape[axis:])), lambda n, i: build_concat_element(n, i), "joined", ("n", "i"))


def emit_rescale(rewrite: Rewrite, value_name: str, target_type: TensorType, rounding: str) -> str:
    """Append nodes that rescale the quantised value ``value_name`` to ``target_type``; return the name of the result.

    8-bit values are rescaled by a lookup table, 16-bit values by float operators."""
    tensor_type = rewrite.type(value_name)
    scaled = rewrite.add_value("scaled", tensor_type.shape, target_type.dtype, target_type.quant)
    if dtypes.nbytes(tensor_type.dtype) == 1:
        op, attrs = IDENTITY
        return emit_table_lookup(rewrite, op, attrs, value_name, scaled, rounding)
    return rewrite.emit(
        "quantize", (emit_dequantize(rewrite, value_name),), scaled, quantize_attrs(target_type, rounding)
    )


def _legalize_concat(node: Node, graph: Graph) -> Legalized | None:
    """Rescale the operands whose scale or zero point differs from the result's; return None if none differs."""
    result = graph.types[node.outputs[0]]
    if result.quant is None or not dtypes.is_integer(result.dtype):
        return None
    differing = [name for name in node.inputs if graph.types[name].quant not in (None, result.quant)]
    if not differing:
        return None
    rewrite = Rewrite(node, graph)
    rounding = str(node.attr("rounding"))
    operands = [emit_rescale(rewrite, name, result, rounding) if name in differing else name for name in node.inputs]
    rewrite.emit("concat", operands, node.outputs[0], node.attrs)
    return rewrite.legalized()


def _find_concat_alias(
    attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]
) -> Alias | None:
    """Return the alias of a concatenation: for each operand, the index of the element in the result's memory where it
    begins. Return None if an operand is not contiguous in the result.

    Operands are contiguous if all axes before the concatenated axis have one element."""
    shape = out_types[0].shape
    axis = attrs["axis"] % len(shape)
    if prod(shape[:axis]) != 1:
        return None
    starts = [sum(t.size for t in types[:k]) for k in range(len(types))]
    return Alias(parts=tuple(starts))


def _make_concat_test_cases() -> Iterable[Case]:
    for shapes, axis in (
        (((2, 3), (2, 5)), 1),
        (((2, 3), (1, 3), (4, 3)), 0),
        (((1, 2, 2, 3), (1, 2, 2, 1)), -1),
        (((3,), (1,)), -1),
        (((2, 3),), 0),
    ):
        yield Case({"axis": axis}, tuple(TensorType(s, "int8") for s in shapes))
    yield Case({"axis": 0}, (TensorType((2, 2), "float32"), TensorType((1, 2), "float32")))


# ---------------------------------------------------------------- gather


def _infer_gather_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, indices = types
    axis, rank, batch = attrs["axis"], len(data.shape), attrs.get("batch_dims", 0)
    if not -rank <= axis < rank or 0 in data.shape:
        raise ModelError(
            f"gather: the axis is outside of the data, or the data are empty; got axis={axis} for {data.shape}"
        )
    check_index_dtype("gather", indices)
    axis %= rank
    if not 0 <= batch <= min(axis, len(indices.shape)) or data.shape[:batch] != indices.shape[:batch]:
        raise ModelError(
            f"gather: batch axes disagree; got data {data.shape}, indices {indices.shape} and batch_dims={batch}, "
            f"expected the same first axes, and batch_dims of at most axis={axis}"
        )
    found = (*indices.shape[batch:], *((attrs["span"],) if attrs.get("span", 1) > 1 else ()))
    return (TensorType((*data.shape[:axis], *found, *data.shape[axis + 1 :]), data.dtype),)


def _expand_run_indices_to_elements(run_indices: Array, run_length: int) -> Array:
    """Return the indices of the elements in the selected runs. Run i consists of ``run_length`` elements from i *
    ``run_length`` on.

    The result has one more axis than ``run_indices``, of ``run_length`` elements, unless the runs are single
    elements."""
    if run_length == 1:
        return run_indices
    near = np.clip(run_indices.astype(np.int64), -(1 << 32), 1 << 32)
    return near[..., None] * run_length + np.arange(run_length)


def _map_gather_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map the axes of the data and of the indices to axes of the result, in which the axes of the indices replace the
    gathered axis."""
    data, indices = (len(tensor_type.shape) for tensor_type in types)
    if attrs.get("batch_dims", 0) or attrs.get("span", 1) > 1:
        return ()
    axis = attrs["axis"] % data
    others = (None if k == axis else k if k < axis else k + indices - 1 for k in range(data))
    return tuple(others), tuple(range(axis, axis + indices))


def _evaluate_gather_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, indices = arrays
    axis, batch = attrs["axis"] % data.ndim, attrs.get("batch_dims", 0)
    extent, indices = data.shape[axis], _expand_run_indices_to_elements(indices, attrs.get("span", 1))
    places = wrap_index_array(indices, extent)
    if not batch:
        return (np.take(data, places, axis=axis),)
    groups = prod(data.shape[:batch])
    pairs = zip(data.reshape(groups, *data.shape[batch:]), places.reshape(groups, *places.shape[batch:]), strict=True)
    found = np.stack([np.take(part, at, axis=axis - batch) for part, at in pairs])
    return (found.reshape(*data.shape[:batch], *found.shape[1:]),)


def _compute_gather(call: OpCall) -> te.Tensor:
    data, indices = call.present
    shape, batch = data.type.shape, call.attrs.get("batch_dims", 0)
    axis = call.attrs["axis"] % len(shape)
    groups, outer = prod(shape[:batch]), prod(shape[batch:axis])
    extent, inner, count = shape[axis], prod(shape[axis + 1 :]), prod(indices.type.shape[batch:])
    x, places, span = (
        data.tensor((groups, outer, extent, inner)),
        indices.tensor((groups, count)),
        call.attrs.get("span", 1),
    )

    def build_gathered_element(g: Expr, n: Expr, i: Expr, c: Expr) -> Expr:
        place = places[g, i]
        if (
            span > 1
        ):  # indices far outside would overflow; clamping keeps the result, since all runs beyond the ends read the same element
            runs = extent // span + 1
            place = ir.clamp(places[g, i // span], -runs, runs) * span + i % span
        return x[g, n, wrap_index(place, extent), c]

    return te.compute((groups, outer, count * span, inner), build_gathered_element, "gathered", ("g", "n", "i", "c"))


def _make_gather_test_cases() -> Iterable[Case]:
    for dtype, shape, axis, places, batch in (
        ("float32", (5, 3), 0, [[0, 4], [-1, -5]], 0),
        ("int8", (2, 4, 3), 1, [3, 0, 3], 0),
        ("int8", (2, 4), -1, 2, 0),
        ("float32", (3, 2), 0, [7, -9, 1], 0),
        ("int8", (2, 4, 3), 1, [[3, 0], [1, -1]], 1),
        ("float32", (2, 2, 3, 2), 2, [[0, 1, 2], [2, 2, 0]], 1),
    ):
        indices = np.array(places, np.int64 if dtype == "int8" else np.int32)
        types = (TensorType(shape, dtype), TensorType(indices.shape, indices.dtype.name))
        yield Case({"axis": axis, "batch_dims": batch}, types, arrays=(None, indices), name=f"{dtype} {places}")
    operand_types = TensorType((1, 7, 2), "int8"), TensorType((), "int32")
    yield Case({"axis": 1, "span": 3}, operand_types, arrays=(None, np.array(2, np.int32)), name="span")


CONCAT = OpDef(
    "concat",
    gradient=build_concat_gradients,
    infer=_infer_concat_types,
    reference=_evaluate_concat_reference,
    compute=_compute_concat,
    alias=_find_concat_alias,
    cases=_make_concat_test_cases,
    attrs={"axis": one_axis(), "rounding": ROUNDING},
    axes=lambda attrs, types: tuple(
        map_unchanged_axes(len(tensor_type.shape), (attrs["axis"],)) for tensor_type in types
    ),
    legalize=_legalize_concat,
)
GATHER = OpDef(
    "gather",
    gradient=build_gather_gradient,
    infer=_infer_gather_types,
    reference=_evaluate_gather_reference,
    compute=_compute_gather,
    cases=_make_gather_test_cases,
    constants={1: BOUNDED},
    attrs={
        "axis": one_axis("of the data", 0),
        "batch_dims": integer("number of leading axes that data and indices share", 0, least=0),
        "span": integer("number of neighbouring elements that an index selects", 1, least=1, most=(1 << 28) - 1),
    },
    axes=_map_gather_axes,
    moves=True,
    operand_names=("data", "indices"),
    edges="Negative indices count from the end; an index outside reads the nearest element",
)
"""Operator ``gather``: elements of the data at indices along an axis. Each element of the leading ``batch_dims`` axes
has indices of its own.

Negative indices count from the end; indices out of range select the nearest element."""


# ---- ``reshape``, ``transpose``, ``slice``, ``pad``. Any dtype; nothing is computed.

# ---------------------------------------------------------------- reshape


def _infer_reshape_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape = tuple(attrs["shape"])
    if any(extent < 0 for extent in shape) or prod(shape) != types[0].size:
        raise ModelError(
            f"reshape: the shape has another number of elements than the data; got {shape}, expected {types[0].size} "
            f"elements as in {types[0].shape}"
        )
    return (TensorType(shape, types[0].dtype),)


def _map_reshape_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    shape = types[0].shape
    return (tuple(axis_after_reshape(shape, attrs["shape"], axis) for axis in range(len(shape))),)


def _evaluate_reshape_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return (arrays[0].reshape(attrs["shape"]),)


def _compute_reshape(call: OpCall) -> te.Tensor:
    """Build a copy of the data, for a result that cannot share the data's memory."""
    data = call.data
    x = data.tensor((data.type.size,))
    return te.compute((data.type.size,), lambda i: x[i], "copy", ("i",))


def _make_reshape_test_cases() -> Iterable[Case]:
    yield Case({"shape": (2, 0)}, (TensorType((0, 3), "int8"),), name="empty")
    for before, after in (((2, 3, 4), (6, 4)), ((1,), ()), ((5,), (1, 5, 1))):
        yield Case({"shape": after}, (TensorType(before, "int8"),))
    yield Case({"shape": (4,)}, (TensorType((2, 2), "float32"),))


# ---------------------------------------------------------------- transpose


def _infer_transpose_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, axes = types[0].shape, attrs["axes"]
    if sorted(axes) != list(range(len(shape))):
        raise ModelError(f"transpose: axes must name each axis once; got {axes} for shape {shape}")
    return (TensorType(tuple(shape[axis] for axis in axes), types[0].dtype),)


def _evaluate_transpose_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return (arrays[0].transpose(attrs["axes"]).copy(),)


def simplify_transposition(shape: Sequence[int], axes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and axes of a transposition with the fewest axes that has the same effect on memory.

    Axes of one element are dropped, and axes that remain neighbours in the same order are merged."""
    order = [axis for axis in axes if shape[axis] != 1]
    runs: list[list[int]] = []
    for axis in order:
        between = range(runs[-1][-1] + 1, axis) if runs else range(0)
        if runs and axis > runs[-1][-1] and all(shape[b] == 1 for b in between):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if not runs:
        return (1,), (0,)
    first = sorted(run[0] for run in runs)
    extents = {run[0]: prod(shape[axis] for axis in run) for run in runs}
    return tuple(extents[f] for f in first), tuple(first.index(run[0]) for run in runs)


def _compute_transpose(call: OpCall) -> te.Tensor:
    data = call.data
    shape, axes = simplify_transposition(data.type.shape, call.attrs["axes"])
    x: te.Tensor = data.tensor(shape)

    def build_transposed_element(*index: Expr) -> Expr:
        return x[tuple(index[axes.index(axis)] for axis in range(len(shape)))]

    return te.compute(tuple(shape[axis] for axis in axes), build_transposed_element, "moved")


def _make_transpose_test_cases() -> Iterable[Case]:
    for shape, axes in (
        ((2, 3), (1, 0)),
        ((1, 4, 5, 3), (0, 3, 1, 2)),
        ((2, 3, 4, 5), (2, 0, 1, 3)),
        ((2, 3, 4), (0, 1, 2)),
        ((1, 1, 3), (2, 1, 0)),
        ((), ()),
        ((2, 1, 3, 2), (3, 0, 1, 2)),
    ):
        yield Case({"axes": axes}, (TensorType(shape, "int8"),))
    yield Case({"axes": (2, 1, 0)}, (TensorType((2, 3, 2), "float32"),))
    yield Case({"axes": (1, 0)}, (TensorType((2, 3), "bool"),))


# ---------------------------------------------------------------- slice


def _infer_slice_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, begin, end, strides = types[0].shape, attrs["begin"], attrs["end"], attrs["strides"]
    lengths = {len(begin), len(end), len(strides)}
    if lengths != {len(shape)} or any(
        not 0 <= b < e <= extent or s < 1 for b, e, s, extent in zip(begin, end, strides, shape, strict=True)
    ):
        raise ModelError(
            f"slice: begin, end and strides are outside of the data; got {begin}, {end} and {strides} for {shape}, "
            "expected 0 <= begin < end <= extent and strides from 1 on along each axis"
        )
    extents = tuple(-(-(e - b) // s) for b, e, s in zip(begin, end, strides, strict=True))
    return (TensorType(extents, types[0].dtype),)


def _map_slice_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map the axes that are not sliced."""
    taken = zip(attrs["begin"], attrs["end"], attrs["strides"], types[0].shape, strict=True)
    return (tuple(k if part == (0, part[3], 1, part[3]) else None for k, part in enumerate(taken)),)


def _evaluate_slice_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    parts = zip(attrs["begin"], attrs["end"], attrs["strides"], strict=True)
    return (arrays[0][tuple(slice(*part) for part in parts)].copy(),)


def _compute_slice(call: OpCall) -> te.Tensor:
    data, begin, strides = call.data, call.attrs["begin"], call.attrs["strides"]
    shape = data.type.shape
    x = data.tensor()

    def build_slice_element(*index: Expr) -> Expr:
        return x[tuple(i * s + b for i, s, b in zip(index, strides, begin, strict=True))]

    if not shape:
        return te.compute((), lambda: x[()], "part")
    return te.compute(call.out_types[0].shape, build_slice_element, "part")


def _find_slice_alias(
    attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]
) -> Alias | None:
    """Return the alias of a slice that is contiguous in the data's memory, else None.

    A slice is contiguous if the axes after the first axis with more than one element in the result are complete."""
    if any(s != 1 for s in attrs["strides"]):
        return None
    shape, result = types[0].shape, out_types[0].shape
    free = next((axis for axis, extent in enumerate(result) if extent != 1), len(result))
    if any(result[axis] != shape[axis] for axis in range(free + 1, len(result))):
        return None
    return Alias(source=sum(b * prod(shape[axis + 1 :]) for axis, b in enumerate(attrs["begin"])))


def _make_slice_test_cases() -> Iterable[Case]:
    for shape, begin, end, strides in (
        ((5,), (1,), (4,), (1,)),
        ((4, 6), (0, 1), (4, 6), (1, 2)),
        ((1, 5, 5, 3), (0, 1, 0, 2), (1, 5, 5, 3), (1, 3, 2, 1)),
        ((3, 4), (2, 0), (3, 4), (1, 1)),
        ((1,), (0,), (1,), (1,)),
    ):
        yield Case({"begin": begin, "end": end, "strides": strides}, (TensorType(shape, "int8"),))
    yield Case({"begin": (0, 1), "end": (2, 3), "strides": (1, 1)}, (TensorType((2, 3), "float32"),))


# ---------------------------------------------------------------- pad


def _infer_pad_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, padding = types[0].shape, attrs["padding"]
    if len(padding) != len(shape) or any(len(p) != 2 or min(p) < 0 for p in padding):
        raise ModelError(f"pad: padding needs two numbers from 0 on for each axis; got {padding} for {shape}")
    extents = tuple(before + extent + after for extent, (before, after) in zip(shape, padding, strict=True))
    return (TensorType(extents, types[0].dtype),)


def _evaluate_pad_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0]
    return (np.pad(x, attrs["padding"], constant_values=x.dtype.type(attrs["value"])) if x.ndim else x,)


def _compute_pad(call: OpCall) -> te.Tensor:
    data, padding = call.data, call.attrs["padding"]
    shape = data.type.shape
    x, value = data.tensor(), ir.const(call.attrs["value"], data.type.dtype)

    def build_padded_element(*index: Expr) -> Expr:
        inside = ir.all_of(
            condition
            for i, extent, (before, after) in zip(index, shape, padding, strict=True)
            for condition in (*((i >= before,) if before else ()), *((i < before + extent,) if after else ()))
        )
        read = x[tuple(i - before if before else i for i, (before, _) in zip(index, padding, strict=True))]
        return read if inside is None else ir.select(inside, read, value)

    return te.compute(call.out_types[0].shape, build_padded_element, PADDED)


def _make_pad_test_cases() -> Iterable[Case]:
    for shape, padding, value in (
        ((3,), ((1, 2),), -128),
        ((2, 3), ((0, 0), (2, 0)), 7),
        ((1, 2, 3, 2), ((0, 0), (1, 1), (0, 2), (0, 0)), 0),
        ((2, 2), ((0, 0), (0, 0)), 5),
    ):
        yield Case({"padding": padding, "value": value}, (TensorType(shape, "int8"),))
    yield Case({"padding": ((1, 0),), "value": -1.5}, (TensorType((2,), "float32"),))


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "reshape",
        gradient=build_reshape_gradient,
        attrs={"shape": result_extents("of the result")},
        axes=_map_reshape_axes,
        moves=True,
        infer=_infer_reshape_types,
        reference=_evaluate_reshape_reference,
        compute=_compute_reshape,
        cases=_make_reshape_test_cases,
        view=True,
        operand_names=("data",),
    ),
    OpDef(
        "transpose",
        gradient=build_transpose_gradient,
        attrs={"axes": integers("axes of the data in the order of the result", least=0)},
        axes=lambda attrs, types: (tuple(attrs["axes"].index(k) for k in range(len(attrs["axes"]))),),
        moves=True,
        infer=_infer_transpose_types,
        reference=_evaluate_transpose_reference,
        compute=_compute_transpose,
        cases=_make_transpose_test_cases,
        operand_names=("data",),
    ),
    CONCAT,
    GATHER,
    OpDef(
        "slice",
        gradient=build_slice_gradient,
        attrs={
            "begin": ints_by_axis("first element of the part on each axis", least=0),
            "end": ints_by_axis("element behind the last one", least=0),
            "strides": ints_by_axis("of each axis", least=1),
        },
        axes=_map_slice_axes,
        moves=True,
        infer=_infer_slice_types,
        reference=_evaluate_slice_reference,
        compute=_compute_slice,
        alias=_find_slice_alias,
        cases=_make_slice_test_cases,
        operand_names=("data",),
    ),
    OpDef(
        "pad",
        gradient=build_pad_gradient,
        infer=_infer_pad_types,
        reference=_evaluate_pad_reference,
        compute=_compute_pad,
        cases=_make_pad_test_cases,
        sound=(
            lambda checked_node: attribute_dtype_error_message(
                "value", checked_node.attrs["value"], checked_node.types[0].dtype
            ),
        ),
        attrs={
            "padding": int_pairs_by_axis("elements before and behind each axis"),
            "value": number("value of the padding, as stored", 0),
        },
        axes=map_padding,
        operand_names=("data",),
    ),
)
