# SPDX-License-Identifier: Apache-2.0
"""Gradients of operators that move elements: each element's gradient is the sum of those of its copies."""

from __future__ import annotations

import numpy as np

from microc.ops.gradients.call import GradientCall, Gradients, Value


def build_reshape_gradient(call: GradientCall) -> Gradients:
    return (call.gradient.reshape(call.data.shape),)


def build_transpose_gradient(call: GradientCall) -> Gradients:
    axes = call.attr("axes")
    return (call.gradient.transpose(tuple(axes.index(axis) for axis in range(len(axes)))),)


def build_concat_gradients(call: GradientCall) -> Gradients:
    """Return for each operand its slice of the gradient."""
    g = call.gradient
    axis, first = call.attr("axis") % len(g.shape), 0
    gradients: list[Value | None] = []
    for operand in call.operands:
        assert operand is not None
        extent = operand.shape[axis]
        begin, end = [0] * len(g.shape), list(g.shape)
        begin[axis], end[axis] = first, first + extent
        gradients.append(g.slice(begin, end) if len(gradients) in call.wanted else None)
        first += extent
    return gradients


def build_slice_gradient(call: GradientCall) -> Gradients:
    """Return the gradient with zeros where no element was read. Elements of a stride are spread by a reshape."""
    g = call.gradient
    before, after = [], []
    for axis, (begin, stride) in enumerate(zip(call.attr("begin"), call.attr("strides"), strict=True)):
        g = spread(g, axis, stride)
        before.append(begin)
        after.append(call.data.shape[axis] - begin - g.shape[axis])
    return (g.pad(before, after),)


def spread(g: Value, axis: int, stride: int) -> Value:
    """Put ``stride`` - 1 zeros between neighbours along ``axis``."""
    shape = g.shape
    if stride == 1 or shape[axis] == 1:
        return g
    split = g.reshape((*shape[: axis + 1], 1, *shape[axis + 1 :]))
    after = [0] * len(split.shape)
    after[axis + 1] = stride - 1
    joined = split.pad([0] * len(after), after).reshape((*shape[:axis], shape[axis] * stride, *shape[axis + 1 :]))
    end = list(joined.shape)
    end[axis] -= stride - 1
    return joined.slice([0] * len(end), end)


def build_pad_gradient(call: GradientCall) -> Gradients:
    begin = [before for before, _ in call.attr("padding")]
    end = [before + extent for before, extent in zip(begin, call.data.shape, strict=True)]
    return (call.gradient.slice(begin, end),)


def build_reverse_gradient(call: GradientCall) -> Gradients:
    return (call.gradient.apply("reverse", axes=call.attr("axes")),)


def build_broadcast_gradient(call: GradientCall) -> Gradients:
    return (call.gradient.sum_to(call.data.shape),)


def build_triangle_gradient(call: GradientCall) -> Gradients:
    return (call.gradient.apply("triangle", **call.attrs),)


def build_where_gradients(call: GradientCall) -> Gradients:
    condition, g = call.data, call.gradient
    return (
        None,
        condition.select(g, 0.0).sum_to(call.operand(1).shape) if 1 in call.wanted else None,
        condition.select(0.0, g).sum_to(call.operand(2).shape) if 2 in call.wanted else None,
    )


def build_mirror_pad_gradient(call: GradientCall) -> Gradients:
    """Return the gradient, in which each element sums those of its reflections: a scatter by constant indices."""
    x = call.data
    numbers = np.arange(x.type.size).reshape(x.shape)
    places = np.pad(numbers, call.attr("padding"), mode=call.attr("mode"))
    return (_scatter_flat(call.gradient, places.reshape(-1), x.shape),)


def _scatter_flat(g: Value, places: np.ndarray[tuple[int, ...], np.dtype[np.int64]], shape: tuple[int, ...]) -> Value:
    """Add the elements of ``g`` to zeros of ``shape`` at flat indices."""
    size = int(np.prod(shape, dtype=int))
    indices = g.constant(places, "int64")
    return (
        zeros(g, (size,))
        .apply("scatter_elements", indices, g.reshape((places.size,)), axis=0, reduction="add")
        .reshape(shape)
    )


def zeros(sample: Value, shape: tuple[int, ...]) -> Value:
    """Return zeros of the dtype of ``sample``."""
    return sample.constant(0.0).broadcast_to(shape)


# ---- Gathering by indices.


def build_gather_gradient(call: GradientCall) -> Gradients:
    """Return the rows of the gradient added at their indices. A single constant index is a slice, whose gradient is
    padding."""
    x, g, indices = call.data, call.gradient, call.constant_operand(1)
    axis = call.attr("axis") % len(x.shape)
    if indices is not None and indices.size == 1 and call.attr("span") == 1:
        index = int(indices.reshape(-1)[0])
        extent = x.shape[axis]
        index = min(max(index + extent if index < 0 else index, 0), extent - 1)
        before, after = [0] * len(x.shape), [0] * len(x.shape)
        before[axis], after[axis] = index, extent - 1 - index
        return (g.reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :])).pad(before, after),)
    # The indexed axis comes first, and the result's other axes are one: a scatter of rows.
    rank, batch = len(call.operand(1).shape), call.attr("batch_dims")
    if batch or call.attr("span") != 1:
        raise call.unsupported(f"batch_dims={batch} and span={call.attr('span')}", "batch_dims=0 and span=1")
    at = call.operand(1)
    rest = x.type.size // x.shape[axis]
    order = (*range(axis, axis + rank), *range(axis), *range(axis + rank, len(g.shape)))
    rows = g.transpose(order).reshape((at.type.size, rest))
    moved = (x.shape[axis], *x.shape[:axis], *x.shape[axis + 1 :])
    total = zeros(g, (x.shape[axis], rest)).apply("scatter_nd", at.reshape((at.type.size, 1)), rows, reduction="add")
    back = (*range(1, axis + 1), 0, *range(axis + 1, len(moved)))
    return (total.reshape(moved).transpose(back),)


def build_gather_elements_gradient(call: GradientCall) -> Gradients:
    g, x = call.gradient, call.data
    total = zeros(g, x.shape).apply("scatter_elements", call.operand(1), g, axis=call.attr("axis"), reduction="add")
    return (total,)


def build_gather_nd_gradient(call: GradientCall) -> Gradients:
    if call.attr("batch_dims"):
        raise call.unsupported(f"batch_dims={call.attr('batch_dims')}", "batch_dims=0")
    g, x = call.gradient, call.data
    return (zeros(g, x.shape).apply("scatter_nd", call.operand(1), g, reduction="add"),)
