# SPDX-License-Identifier: Apache-2.0
"""Converters of ATen's pools.

Most pools over one or two axes without dilation become pool operators, which have optimised schedules. All others become
window operators (``window_sum``, ``window_max``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.operator_context import expand_to_axes
from microc.frontend.signature import ConverterTable, Ints, Value
from microc.frontend.torch.context import OpContext
from microc.graph.ir import Attr
from microc.ops.attributes import Rounding

CONVERTERS = ConverterTable()


@frozen
class PoolAttributes:
    """Attributes of all pools. No ``stride`` stands for the kernel's extents.

    ``ceil_mode``, which becomes additional padding at the end, follows from the shape of the result."""

    kernel_size: Ints
    stride: Ints = ()
    padding: Ints = (0,)


def _make_average_pool_converter(rank: int) -> Callable[..., Value]:
    """Return the converter of average pools over ``rank`` spatial axes."""

    def convert_average_pool(
        context: OpContext,
        x: Value,
        *,
        attributes: PoolAttributes,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        if divisor_override is not None:
            context.refuse("divisor_override is not supported", "leave it out and scale the result")
        window = _make_pool_window(context, x, attributes, rank, (1,) * rank, context.result_shape())
        return _emit_pool(context, "avg_pool2d", x, window, context.result_shape(), count_include_pad)

    return convert_average_pool


def _make_max_pool_converter(rank: int, has_indices: bool) -> Callable[..., Value | tuple[str, str]]:
    """Return the converter of maximum pools over ``rank`` spatial axes. ``has_indices``: the operator has indices as
    its second result, which must not be used."""

    def convert_max_pool(
        context: OpContext, x: Value, *, attributes: PoolAttributes, dilation: Ints = (1,)
    ) -> Value | tuple[str, str]:
        if has_indices and any(user.args[1] == 1 for user in context.node.users):
            context.refuse("the result with indices is not supported", "pool with return_indices=False")
        result_shape = context.result_shape(0 if has_indices else None)
        window = _make_pool_window(context, x, attributes, rank, expand_to_axes(dilation, rank), result_shape)
        pooled = _emit_pool(context, "max_pool2d", x, window, result_shape)
        return (pooled, "") if has_indices else pooled

    return convert_max_pool


for _rank in (1, 2, 3):
    CONVERTERS.register(f"avg_pool{_rank}d")(_make_average_pool_converter(_rank))
    CONVERTERS.register(f"max_pool{_rank}d")(_make_max_pool_converter(_rank, has_indices=False))
    CONVERTERS.register(f"max_pool{_rank}d_with_indices")(_make_max_pool_converter(_rank, has_indices=True))


def _make_pool_window(
    context: OpContext, x: Value, attributes: PoolAttributes, rank: int, dilation: Ints, result_shape: Ints
) -> _PoolWindow:
    """Return the window of a pool over the last ``rank`` axes of ``x``."""
    kernel = expand_to_axes(attributes.kernel_size, rank)
    strides = expand_to_axes(attributes.stride or kernel, rank)
    padding = expand_to_axes(attributes.padding, rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    rows = zip(result_shape[-rank:], strides, spans, x.shape[-rank:], padding, strict=True)
    extra = tuple(max((o - 1) * s + span - extent - 2 * p, 0) for o, s, span, extent, p in rows)
    return _PoolWindow(kernel, strides, padding, extra, dilation)


def _emit_pool(
    context: OpContext, op: str, x: Value, window: _PoolWindow, result_shape: Ints, count_include_pad: bool = False
) -> Value:
    """Emit the pool ``op``, ``avg_pool2d`` or ``max_pool2d``, as a pool operator or as window operators."""
    rank = len(window.kernel)
    batch = context.reshape(x, (*(1,) * (rank + 2 - x.rank), *x.shape))
    counts_padding = count_include_pad and any(window.before)
    is_plain = rank < 3 and set(window.dilation) == {1} and not (counts_padding and window.before != window.after)
    emit = window.emit_pool2d if is_plain else window.emit_window_operators
    return context.reshape(emit(context, op, batch, counts_padding), result_shape)


class _PoolWindow:
    """Window of a pool: its kernel, strides, padding and dilation along each spatial axis.

    ``padding``: elements of padding on both sides of an axis. ``end_padding``: additional elements after it, because of
    ``ceil_mode``."""

    def __init__(
        self,
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        end_padding: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        self.kernel, self.strides, self.before, self.dilation = map(tuple, (kernel, strides, padding, dilation))
        self.after = tuple(p + e for p, e in zip(padding, end_padding, strict=True))

    def emit_pool2d(self, context: OpContext, op: str, x: Value, counts_padding: bool) -> Value:
        """Emit a pool over one or two spatial axes, without dilation, as a 2D pool operator. A single axis gets a
        second axis of extent 1."""
        unit_axes = (1,) * (2 - len(self.kernel))
        no_padding = (0,) * len(unit_axes)
        shape = x.shape
        attrs: dict[str, Attr] = {
            "kernel": (*unit_axes, *self.kernel),
            "strides": (*unit_axes, *self.strides),
            "padding": (*no_padding, *self.before, *no_padding, *self.after),
            "layout": "NCHW",
            "rounding": Rounding.EVEN,
        }
        if op == "avg_pool2d":
            attrs["count_include_pad"] = counts_padding
        return context.emit(op, (context.reshape(x, (*shape[:2], *unit_axes, *shape[2:])),), attrs)

    def emit_window_operators(self, context: OpContext, op: str, x: Value, counts_padding: bool) -> Value:
        """Emit a pool over any number of spatial axes as window operators: the maximum of each window, or its sum
        divided by its number of elements. This number differs at the edges."""
        attrs: dict[str, Attr] = {
            "kernel": self.kernel,
            "strides": self.strides,
            "padding": (*self.before, *self.after),
            "dilation": self.dilation,
        }
        if op == "max_pool2d":
            return context.emit("window_max", (x,), attrs)
        total = context.emit("window_sum", (x,), attrs)
        counts = np.ones((1,), np.float32)
        for axis, extent in enumerate(x.shape[2:]):
            counts = np.multiply.outer(
                counts, self._count_elements_per_window(axis, extent, total.shape[2 + axis], counts_padding)
            )
        return context.emit("div", (total, context.new_constant("counts", counts[None])))

    def _count_elements_per_window(self, axis: int, extent: int, out_extent: int, counts_padding: bool) -> Array:
        """Return the number of elements of every window along an axis.

        ``counts_padding`` includes padding, except for the padding that ``ceil_mode`` adds."""
        low, high = (-self.before[axis], extent + self.before[axis]) if counts_padding else (0, extent)
        starts = np.arange(out_extent)[:, None] * self.strides[axis] - self.before[axis]
        positions = starts + np.arange(self.kernel[axis]) * self.dilation[axis]
        return np.asarray(((positions >= low) & (positions < high)).sum(axis=1), np.float32)


def _make_adaptive_pool_converter(
    rank: int, reduce_op: str, pool_op: str, has_indices: bool
) -> Callable[..., Value | tuple[str, str]]:
    """Return the converter of adaptive pools over ``rank`` spatial axes.

    The pool becomes a reduction if its result has one element for each channel, a pool operator if the input's extents
    are multiples of the result's, and otherwise weighted sums along each axis, or gathers of the elements of each
    window with a reduction. ``reduce_op`` and ``pool_op``: microc's operators for the reduction and the pool.
    ``has_indices``: the operator has indices as its second result."""

    def convert_adaptive_pool(context: OpContext, x: Value) -> Value | tuple[str, str]:
        out = context.result_shape(0 if has_indices else None)[-rank:]
        pooled = _emit_adaptive_pool(context, x, reduce_op, pool_op, out)
        return (pooled, "") if has_indices else pooled

    return convert_adaptive_pool


for _rank in (1, 2, 3):
    CONVERTERS.register(f"adaptive_avg_pool{_rank}d", f"_adaptive_avg_pool{_rank}d")(
        _make_adaptive_pool_converter(_rank, "mean", "avg_pool2d", has_indices=False)
    )
    CONVERTERS.register(f"adaptive_max_pool{_rank}d")(
        _make_adaptive_pool_converter(_rank, "max", "max_pool2d", has_indices=True)
    )


def _emit_adaptive_pool(context: OpContext, x: Value, reduce_op: str, pool_op: str, out: Ints) -> Value:
    """Emit an adaptive pool, whose result has the extents ``out`` along the last axes."""
    axes = tuple(range(x.rank - len(out), x.rank))
    spatial = x.shape[-len(out) :]
    if all(extent == 1 for extent in out):
        return context.emit(reduce_op, (x,), {"axes": axes, "keepdims": True})
    if len(out) == 2 and x.rank == 4 and not any(extent % o for extent, o in zip(spatial, out, strict=True)):
        kernel = tuple(extent // o for extent, o in zip(spatial, out, strict=True))
        attrs: Mapping[str, Attr] = {"kernel": kernel, "strides": kernel, "padding": (0, 0, 0, 0), "layout": "NCHW"}
        return context.emit(pool_op, (x,), attrs)
    windows = [_adaptive_window_indices_and_weights(extent, o) for extent, o in zip(spatial, out, strict=True)]
    if reduce_op == "mean":
        names = [context.new_constant("places", indices) for indices, _ in windows]
        names += [context.new_constant("shares", weights) for _, weights in windows]
        return context.emit("resample", (x, *names), {"axes": axes})
    for axis, (indices, _) in zip(axes, windows, strict=True):
        gathered = context.emit("gather", (x, context.new_constant("places", indices)), {"axis": axis})
        x = context.emit("max", (gathered,), {"axes": (axis + 1,), "keepdims": False})
    return x


def _adaptive_window_indices_and_weights(in_extent: int, out_extent: int) -> tuple[Array, Array]:
    """Return the indices and weights of the input elements of each of the ``out_extent`` windows of an adaptive pool.

    Both arrays have the shape (``out_extent``, elements of the largest window). A smaller window repeats its last
    index, with weight 0."""
    starts = np.arange(out_extent) * in_extent // out_extent
    ends = -(-(np.arange(out_extent) + 1) * in_extent // out_extent)
    indices = starts[:, None] + np.arange(int((ends - starts).max()))
    weights = np.where(indices < ends[:, None], 1 / (ends - starts)[:, None], 0)
    return np.minimum(indices, ends[:, None] - 1).astype(np.int32), weights.astype(np.float32)
