# SPDX-License-Identifier: Apache-2.0
"""Gradient rules of operators: matrix products, reductions, movement of elements, convolutions, pools and resampling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from microc.base.dtypes import Array
from microc.graph.ir import Attr
from microc.ops.gradients.call import GradientCall, Gradients, Value
from microc.ops.windows import WindowAxis, window_axes

# ---- Gradients of matrix products: ``dense``, ``matmul`` and ``einsum``.


def build_dense_gradients(call: GradientCall) -> Gradients:
    """Return g W for the data, g^T x for the weights, and the sum of g over the rows for the bias."""
    g, data, weight = call.gradient, call.data, call.operand(1)
    return (
        g.apply("matmul", weight) if 0 in call.wanted else None,
        _multiply_transposed(g, data) if 1 in call.wanted else None,
        sum_to_bias(call, g, (0,)) if 2 in call.wanted else None,
    )


def _multiply_transposed(g: Value, data: Value) -> Value:
    """Return g^T times data. For a single row it is an outer product, elementwise, which fuses with an update of the
    weights."""
    if g.shape[0] == 1:
        return g.reshape((g.shape[1], 1)) * data
    return g.apply("matmul", data, axes_a=(1, 0))


def sum_to_bias(call: GradientCall, g: Value, axes: Sequence[int]) -> Value:
    """Return the gradient of a layer's bias, operand 2: the sum of ``g`` over all axes but that of the channels."""
    return g.sum(axes).reshape(call.operand(2).shape)


def build_matmul_gradients(call: GradientCall) -> Gradients:
    """Return g B^T for a and A^T g for b, where A and B are the operands with their axes in the order of the product.

    Batch axes that were broadcast are summed."""
    g = call.gradient
    orders = [
        tuple(call.attr(f"axes_{name}")) or tuple(range(len(call.operand(k).shape))) for k, name in enumerate("ab")
    ]

    def restore_operand(position: int, product: Value) -> Value:
        operand, order = call.operand(position), orders[position]
        total = product.sum_to(tuple(operand.shape[axis] for axis in order))
        return total.transpose(tuple(order.index(axis) for axis in range(len(order))))

    a, b = call.operand(0), call.operand(1)
    last_axes_of_a, last_axes_of_b = (_swap_last_axes(order) for order in orders)
    return (
        restore_operand(0, g.apply("matmul", b, axes_b=last_axes_of_b)) if 0 in call.wanted else None,
        restore_operand(1, a.apply("matmul", g, axes_a=last_axes_of_a)) if 1 in call.wanted else None,
    )


def _swap_last_axes(order: tuple[int, ...]) -> tuple[int, ...]:
    return (*order[:-2], order[-1], order[-2])


def build_einsum_gradients(call: GradientCall) -> Gradients:
    """Return for each operand the product of g and the other operands, summed to the labels of the operand.

    A label that no other factor has was summed over this operand alone: its elements have one gradient. A diagonal
    spreads through a product with the identity."""
    inputs, output = [tuple(labels) for labels in call.attr("inputs")], tuple(call.attr("output"))
    gradients: list[Value | None] = [None] * len(inputs)
    for position in sorted(call.wanted):
        labels, operand = inputs[position], call.operand(position)
        others = [(call.operand(k), inputs[k]) for k in range(len(inputs)) if k != position]
        factors = [(call.gradient, output), *others]
        factors += [
            (call.data.constant(1.0).broadcast_to((extent,)), (label,))
            for label, extent in zip(labels, operand.shape, strict=True)
        ]
        gradients[position] = _multiply_by_labels(factors, labels, operand)
    return gradients


def _multiply_by_labels(
    factors: Sequence[tuple[Value, tuple[int, ...]]], labels: tuple[int, ...], operand: Value
) -> Value:
    """Return the sum of products of ``factors`` over the labels that ``operand`` does not have."""
    terms = list(factors)
    distinct: list[int] = []
    fresh = 1 + max((label for _, names in terms for label in names), default=0)
    for axis, label in enumerate(labels):
        if label not in distinct:
            distinct.append(label)
            continue
        identity = [
            [float(row == column) for column in range(operand.shape[axis])] for row in range(operand.shape[axis])
        ]
        terms.append((operand.constant(identity), (label, fresh)))
        distinct.append(fresh)
        fresh += 1
    first, *rest = (value for value, _ in terms)
    product = first.apply("einsum", *rest, inputs=tuple(names for _, names in terms), output=tuple(distinct))
    return product.sum_to(operand.shape)


# ---- Reductions.


def _reduced_axes(call: GradientCall) -> tuple[int, ...]:
    rank = len(call.data.shape)
    return tuple(sorted(axis % rank for axis in call.attr("axes")))


def _keep_axes(call: GradientCall, value: Value) -> Value:
    """Return a value of the result's shape with the reduced axes, of one element each."""
    axes = _reduced_axes(call)
    return value.reshape(tuple(1 if axis in axes else extent for axis, extent in enumerate(call.data.shape)))


def build_sum_gradient(call: GradientCall) -> Gradients:
    return (_keep_axes(call, call.gradient).broadcast_to(call.data.shape),)


def build_mean_gradient(call: GradientCall) -> Gradients:
    count = prod(call.data.shape[axis] for axis in _reduced_axes(call))
    return (_keep_axes(call, call.gradient * (1.0 / count)).broadcast_to(call.data.shape),)


def build_extremum_gradient(call: GradientCall) -> Gradients:
    """Return the gradient of ``max`` or ``min``, shared evenly among the elements of the extreme value, as
    ``torch.amax`` does."""
    wins = call.data.equals(_keep_axes(call, call.result))
    count = wins.apply("cast", dtype=call.data.dtype).sum(_reduced_axes(call), keepdims=True)
    return (wins.select(_keep_axes(call, call.gradient) / count, 0.0),)


def build_cumsum_gradient(call: GradientCall) -> Gradients:
    """Return the running sum in the other direction: element k was added to the sums from k on."""
    return (call.gradient.apply("cumsum", **{**call.attrs, "reverse": not call.attr("reverse")}),)


# ---- Normalisations. g is the gradient of the result y of a row x.


def build_softmax_gradient(call: GradientCall) -> Gradients:
    """Return beta y (g - sum(g y)), from dy_i / dx_k = beta y_i ([i = k] - y_k)."""
    g, y = call.gradient, call.result
    axis = call.attr("axis") % len(y.shape)
    gradient = y * (g - (g * y).sum((axis,), keepdims=True))
    return (gradient if call.attr("beta") == 1.0 else gradient * call.attr("beta"),)


def build_log_softmax_gradient(call: GradientCall) -> Gradients:
    """Return g - softmax(x) sum(g), where softmax(x) = exp(y)."""
    g, y = call.gradient, call.result
    return (g - y.apply("exp") * g.sum((len(y.shape) - 1,), keepdims=True),)


def _mean_of_rows(value: Value) -> Value:
    return value.apply("mean", axes=(len(value.shape) - 1,), keepdims=True)


def build_layer_norm_gradient(call: GradientCall) -> Gradients:
    """Return (g - mean(g) - y mean(g y)) / sqrt(variance + epsilon)."""
    g, y, x = call.gradient, call.result, call.data
    centred = x - _mean_of_rows(x)
    factor = (_mean_of_rows(centred * centred) + call.attr("epsilon")).apply("rsqrt")
    return ((g - _mean_of_rows(g) - y * _mean_of_rows(g * y)) * factor,)


LEAST_NORM = 1e-6
"""Least norm by which ``l2_normalize`` divides a row."""


def build_l2_normalize_gradient(call: GradientCall) -> Gradients:
    """Return (g - y sum(g y)) / |x|, and g / 1e-6 for shorter rows, which are divided by that constant."""
    g, y, x = call.gradient, call.result, call.data
    axis = (len(x.shape) - 1,)
    norm = (x * x).sum(axis, keepdims=True).apply("sqrt")
    along = (norm > LEAST_NORM).select((g * y).sum(axis, keepdims=True), 0.0)
    return ((g - y * along) / norm.apply("maximum", LEAST_NORM),)


# ---- Gradients of operators that move elements: each element's gradient is the sum of those of its copies.


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


# ---- Gradients of convolutions and of pools: operators over windows.
#
# A convolution sums y[p] = sum over t of w[t] x[s p + d t - before], with stride s and dilation d. Its gradient
# by the data is the transposed convolution of g with the same windows. Its gradient by the weights,
#
#     dw[t] = sum over p of g[p] x[s p + d t - before],
#
# is a convolution of x whose taps are g: its dilation is s and its stride is d. Channels become a batch, and
# the batch becomes channels. The gradient of an average pool is a transposed convolution whose weights are one.


_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
_CHANNELS_TO_BATCH = (3, 1, 2, 0)
"""Axes of NHWC data with channels and batch exchanged. It is its own inverse."""


def _restore_layout(call: GradientCall, value: Value) -> Value:
    return value.transpose(_TO_NCHW) if call.attr("layout") == "NCHW" else value


def _as_nhwc(call: GradientCall, value: Value) -> Value:
    return value.transpose(_TO_NHWC) if call.attr("layout") == "NCHW" else value


# ---- Convolutions.


def build_conv2d_gradients(call: GradientCall) -> Gradients:
    """Return the gradients of data, weights and bias, of data in either layout."""
    g, x, w = (_as_nhwc(call, value) for value in (call.gradient, call.data, call.operand(1)))
    return (
        _restore_layout(call, _differentiate_by_data(call, g, x, w)) if 0 in call.wanted else None,
        _restore_layout(call, _differentiate_by_weights(call, g, x, w)) if 1 in call.wanted else None,
        sum_to_bias(call, g, (0, 1, 2)) if 2 in call.wanted else None,
    )


def _ends_of_windows(call: GradientCall, g: Value, x: Value, w: Value) -> tuple[int, int]:
    """Return the padding behind the data, down and to the right, that windows read. A negative number counts elements of
    the data behind the last window."""
    ends = []
    for axis, before in enumerate(call.attr("padding")[:2]):
        span = (w.shape[1 + axis] - 1) * call.attr("dilation")[axis] + 1
        covered = (g.shape[1 + axis] - 1) * call.attr("strides")[axis] + span
        ends.append(covered - before - x.shape[1 + axis])
    return ends[0], ends[1]


def _differentiate_by_data(call: GradientCall, g: Value, x: Value, w: Value) -> Value:
    """Return the transposed convolution of ``g``. Rows behind the last window get zeros.

    With weights that are computed or learned it is a convolution of ``g``, spread by the strides, with the flipped
    kernel: it multiplies matrices, where a transposed convolution with such weights tests every tap. measured: 6 times
    fewer instructions for 24 channels, a kernel of 3 and a stride of 2 on Cortex-M4."""
    groups, dilation = call.attr("groups"), call.attr("dilation")
    top, left = call.attr("padding")[:2]
    bottom, right = _ends_of_windows(call, g, x, w)
    exchanged = _exchange_channels(w, groups)
    spans = [(taps - 1) * step for taps, step in zip(w.shape[1:3], dilation, strict=True)]
    flipped_padding = (spans[0] - top, spans[1] - left, spans[0] - bottom, spans[1] - right)
    if call.constant_operand(1) is None and min(flipped_padding) >= 0:
        flipped = exchanged.apply("reverse", axes=(1, 2)) if any(spans) else exchanged
        for axis, stride in enumerate(call.attr("strides")):
            g = spread(g, 1 + axis, stride)
        return g.apply("conv2d", flipped, padding=flipped_padding, dilation=dilation, groups=groups)
    return g.apply(
        "conv2d_transpose",
        exchanged,
        padding=(top, left, bottom, right),
        strides=call.attr("strides"),
        dilation=dilation,
        groups=groups,
    )


def _exchange_channels(w: Value, groups: int) -> Value:
    """Exchange output and input channels of weights (O, H, W, I) within each group."""
    outputs, rows, columns, depth = w.shape
    by_group = w.reshape((groups, outputs // groups, rows, columns, depth)).transpose((0, 4, 2, 3, 1))
    return by_group.reshape((groups * depth, rows, columns, outputs // groups))


def _differentiate_by_weights(call: GradientCall, g: Value, x: Value, w: Value) -> Value:
    """Return the convolution of the data, as a batch of channels, by the gradient of each output channel.

    The group k of channels of the data becomes the k-th group of a batch of channels: (I, H, W, groups * N). A pointwise
    convolution is a product of matrices."""
    groups, (batch, *extents, channels) = call.attr("groups"), x.shape
    if w.shape[1:3] == (1, 1) and call.attr("strides") == (1, 1) and groups == 1 and not any(call.attr("padding")):
        pixels = batch * extents[0] * extents[1]
        rows = g.reshape((pixels, g.shape[3])).apply("matmul", x.reshape((pixels, channels)), axes_a=(1, 0))
        return rows.reshape(w.shape)
    depth = channels // groups
    bottom, right = _ends_of_windows(call, g, x, w)
    # Data behind the last window would be positions of further taps. Windows that read padding alone leave one element,
    # whose taps are cut off behind the convolution.
    kept = [max(extent + min(end, 0), 1) for extent, end in zip(extents, (bottom, right), strict=True)]
    read = x.slice((0, 0, 0, 0), (batch, *kept, channels))
    by_group = read.reshape((*read.shape[:3], groups, depth)).transpose((4, 1, 2, 3, 0))
    full = by_group.reshape((depth, *read.shape[1:3], groups * batch)).apply(
        "conv2d",
        g.transpose(_CHANNELS_TO_BATCH),
        strides=call.attr("dilation"),
        dilation=call.attr("strides"),
        padding=(*call.attr("padding")[:2], max(bottom, 0), max(right, 0)),
        pad_value=call.attr("pad_value"),
        groups=groups,
    )
    used = full.slice((0, 0, 0, 0), (depth, *w.shape[1:3], full.shape[3]))
    return used.transpose(_CHANNELS_TO_BATCH)


def build_conv2d_transpose_gradients(call: GradientCall) -> Gradients:
    """Return the gradients of data, weights and bias: the adjoint is a convolution of ``g`` with the same windows."""
    g, x, w = call.gradient, call.data, call.operand(1)
    groups = call.attr("groups")
    top, left, bottom, right = call.attr("padding")
    # A negative crop at an end added rows that no window covers.
    covered = g.slice((0, 0, 0, 0), (g.shape[0], g.shape[1] + min(bottom, 0), g.shape[2] + min(right, 0), g.shape[3]))
    attrs: dict[str, Attr] = {"padding": (top, left, max(bottom, 0), max(right, 0)), "groups": groups}
    strides, dilation = call.attr("strides"), call.attr("dilation")
    by_data = by_weights = None
    if 0 in call.wanted:
        by_data = covered.apply("conv2d", _exchange_channels(w, groups), strides=strides, dilation=dilation, **attrs)
    if 1 in call.wanted:
        batch, rows, columns, channels = covered.shape
        depth = channels // groups
        by_group = covered.reshape((batch, rows, columns, groups, depth)).transpose((4, 1, 2, 3, 0))
        image = by_group.reshape((depth, rows, columns, groups * batch))
        taps = x.transpose(_CHANNELS_TO_BATCH)
        full = image.apply("conv2d", taps, strides=dilation, dilation=strides, **attrs)
        exchanged = full.slice((0, 0, 0, 0), (depth, *w.shape[1:3], x.shape[3])).transpose(_CHANNELS_TO_BATCH)
        by_weights = _exchange_channels(exchanged, groups)
    return by_data, by_weights, sum_to_bias(call, g, (0, 1, 2)) if 2 in call.wanted else None


def build_convolution_gradients(call: GradientCall) -> Gradients:
    """Return the gradients of data, weights and bias of ``convolution``, data (N, C, spatial ...)."""
    g, x, w, groups = call.gradient, call.data, call.operand(1), call.attr("groups")
    rank = len(x.shape) - 2
    strides, dilation, padding = call.attr("strides"), call.attr("dilation"), call.attr("padding")
    by_data = by_weights = None
    if 0 in call.wanted:
        by_data = _spread_over_windows(call, w, groups)
    if 1 in call.wanted:
        batch, channels, *extents = x.shape
        depth, spatial = channels // groups, tuple(range(3, 3 + rank))
        image = x.reshape((batch, groups, depth, *extents)).transpose((2, 1, 0, *spatial))
        taps = g.transpose((1, 0, *range(2, 2 + rank)))
        full = image.reshape((depth, groups * batch, *extents)).apply(
            "convolution", taps, strides=dilation, dilation=strides, padding=padding, groups=groups
        )
        used = full.slice((0,) * (rank + 2), (depth, g.shape[1], *w.shape[2:]))
        by_weights = used.transpose((1, 0, *range(2, 2 + rank)))
    return by_data, by_weights, sum_to_bias(call, g, (0, *range(2, 2 + rank))) if 2 in call.wanted else None


def _spread_over_windows(call: GradientCall, weights: Value, groups: int) -> Value:
    """Return the transposed convolution of g over the windows of data (N, C, spatial ...): each element of g, times the
    weights, is added to the elements of its window."""
    g, extents = call.gradient, call.data.shape[2:]
    rank = len(extents)
    strides, dilation, before = call.attr("strides"), call.attr("dilation"), call.attr("padding")[:rank]
    spans = [(taps - 1) * step + 1 for taps, step in zip(weights.shape[2:], dilation, strict=True)]
    covered = [(n - 1) * s + span for n, s, span in zip(g.shape[2:], strides, spans, strict=True)]
    ends = [full - first - extent for full, first, extent in zip(covered, before, extents, strict=True)]
    return g.apply(
        "convolution_transpose",
        weights,
        strides=strides,
        dilation=dilation,
        padding=(*before, *(max(end, 0) for end in ends)),
        groups=groups,
    ).pad((0,) * (rank + 2), (0, 0, *(max(-end, 0) for end in ends)))


# ---- Pools: over height and width, then over windows of any number of axes.


def build_max_pool_gradient(call: GradientCall) -> Gradients:
    """Return the gradient of each window at its first largest element, by the operator ``max_pool2d_gradient``."""
    attrs: dict[str, Attr] = {key: call.attr(key) for key in ("kernel", "strides", "padding")}
    gradient = _as_nhwc(call, call.data).apply("max_pool2d_gradient", _as_nhwc(call, call.gradient), **attrs)
    return (_restore_layout(call, gradient),)


def build_avg_pool_gradient(call: GradientCall) -> Gradients:
    """Return each window's gradient, divided by its number of elements, added to all its elements.

    A window of the whole image is broadcast. Other windows are spread by a depthwise transposed convolution whose
    weights are one."""
    g, x = _as_nhwc(call, call.gradient), _as_nhwc(call, call.data)
    kernel, strides, padding = (tuple(call.attr(key)) for key in ("kernel", "strides", "padding"))
    windows = window_axes(x.shape[1:3], kernel, strides, padding)
    if kernel == x.shape[1:3] and not any(padding):
        whole = (g * (1.0 / prod(kernel))).broadcast_to(x.shape)
        return (_restore_layout(call, whole),)
    counts = np.full((g.shape[1], g.shape[2], 1), float(prod(kernel)))
    if not call.attr("count_include_pad"):
        rows, columns = (_count_elements_per_window(axis) for axis in windows)
        counts = (rows[:, None] * columns[None, :])[:, :, None].astype(np.float64)
    share = g * g.constant(1.0 / counts) if np.unique(counts).size > 1 else g * float(1.0 / counts.flat[0])
    ends = tuple(axis.extent_of(axis.count) - axis.before - axis.extent for axis in windows)
    channels = x.shape[3]
    ones = g.constant(np.ones((channels, *kernel, 1)))
    gradient = share.apply("conv2d_transpose", ones, strides=strides, padding=(*padding[:2], *ends), groups=channels)
    return (_restore_layout(call, gradient),)


def _count_elements_per_window(axis: WindowAxis) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the number of elements inside the data of each window along an axis without dilation."""
    first = np.arange(axis.count) * axis.stride - axis.before
    return np.minimum(first + axis.taps, axis.extent) - np.maximum(first, 0)


def build_window_sum_gradient(call: GradientCall) -> Gradients:
    """Return the gradient of each window, added to all its elements: a depthwise transposed convolution of ones."""
    channels = call.data.shape[1]
    return (_spread_over_windows(call, call.data.constant(np.ones((channels, 1, *call.attr("kernel")))), channels),)


def build_window_max_gradient(call: GradientCall) -> Gradients:
    """Return the gradient of each window at its first largest element, which is searched again."""
    x, g = call.data, call.gradient
    kernel, strides, padding, dilation = (call.attr(key) for key in ("kernel", "strides", "padding", "dilation"))
    if any(axis.has_empty_window for axis in window_axes(x.shape[2:], kernel, strides, padding, dilation)):
        raise call.unsupported(f"padding={padding}, where a window holds padding only", "an element in each window")
    attrs: dict[str, Attr] = {"kernel": kernel, "strides": strides, "padding": padding, "dilation": dilation}
    _, places = x.apply_all("window_argmax", **attrs)
    count = g.type.size
    flat = zeros(g, (x.type.size,)).apply(
        "scatter_elements", places.reshape((count,)), g.reshape((count,)), axis=0, reduction="add"
    )
    return (flat.reshape(x.shape),)


# ---- Resampling.


def build_resample_gradient(call: GradientCall) -> Gradients:
    """Return the resampling by transposed tables: each element of the data sums the gradients of the elements that read
    it, times their weights.

    Along each axis, rows of the tables are as long as the most readers of an element; others get taps of weight 0."""
    axes = call.attr("axes")
    tables = [call.constant_operand(1 + k) for k in range(len(call.operands) - 1)]
    if any(table is None for table in tables) or call.wanted != {0}:
        raise call.unsupported("tables that are computed or learned", "constant tables")
    known = [np.asarray(table) for table in tables]
    indices, weights = known[: len(axes)], known[len(axes) :] or [np.ones_like(index) for index in known]
    operands = [
        _transpose_taps(index, weight, call.data.shape[axis])
        for axis, index, weight in zip(axes, indices, weights, strict=True)
    ]
    g = call.gradient
    return (
        g.apply(
            "resample",
            *(g.constant(index, "int32") for index, _ in operands),
            *(g.constant(weight) for _, weight in operands),
            axes=axes,
            shift=0,
        ),
    )


def _transpose_taps(index: Array, weight: Array, extent: int) -> tuple[Array, Array]:
    """Return the tables (extent, taps) of the rows that read each element along an axis, and of their weights.

    ``index``, ``weight``: tables (rows, taps) of the elements that each row reads, among ``extent``."""
    readers: list[list[tuple[int, float]]] = [[] for _ in range(extent)]
    for row, tap in np.ndindex(*index.shape):
        if weight[row, tap]:
            readers[int(index[row, tap])].append((row, float(weight[row, tap])))
    shape = (extent, max(1, *map(len, readers)))
    rows, shares = np.zeros(shape, np.int32), np.zeros(shape)
    for element, taps in enumerate(readers):
        for tap, (row, share) in enumerate(taps):
            rows[element, tap], shares[element, tap] = row, share
    return rows, shares
