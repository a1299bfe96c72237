# SPDX-License-Identifier: Apache-2.0
"""Windows that slide along axes of the data: of convolutions, transposed convolutions and pools.

A window has taps, ``dilation`` apart; neighbouring windows are ``stride`` apart, and the first one begins ``before``
elements before the data:

    tap t of window i reads element  i * stride + t * dilation - before  of the data.

A transposed convolution is the adjoint: its windows lie on the result, and element i of the data is added, times a
weight for each tap, to the elements of window i. :class:`Product` is what layers with weights are to passes: sums over
the taps of such windows and over channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.ir import Expr


def compute_same_padding_of_axis(extent: int, window: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Return the padding of an axis by the scheme SAME of TFLite, ONNX and Keras: the smaller and the larger half, in
    elements.

    With it there are ceil(extent / stride) windows. Both halves together are max((ceil(extent / stride) - 1) * stride +
    (window - 1) * dilation + 1 - extent, 0) elements."""
    total = max((-(-extent // stride) - 1) * stride + (window - 1) * dilation + 1 - extent, 0)
    return total // 2, total - total // 2


@frozen
class WindowAxis:
    """Windows along one axis of ``extent`` elements, with ``before`` and ``after`` elements of padding around them.

    A negative ``after`` occurs in transposed convolutions only: elements at the end that no window covers."""

    extent: int
    taps: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    def extent_of(self, count: int) -> int:
        """Return the number of elements that ``count`` neighbouring windows span, padding included."""
        return (count - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    @property
    def span(self) -> int:
        """Number of elements that one window spans, with its dilation."""
        return self.extent_of(1)

    @property
    def count(self) -> int:
        """Number of windows; less than 1 if none fits into the padded data."""
        return (self.extent + self.before + self.after - self.span) // self.stride + 1

    @property
    def padded_extent(self) -> int:
        """Number of elements of the padded data, which include all elements that windows span."""
        return max(self.extent_of(self.count), self.before + self.extent)

    @property
    def has_empty_window(self) -> bool:
        """True if the first or the last window lies in the padding as a whole."""
        return self.before >= self.span or (self.count - 1) * self.stride - self.before >= self.extent

    def padded_slice(self, tap: int) -> slice:
        """Return the elements of the padded data that the tap reads in all windows, in order."""
        first = tap * self.dilation
        return slice(first, first + (self.count - 1) * self.stride + 1, self.stride)

    def padded_index(self, window: Expr, tap: Expr) -> Expr:
        """Return the index in the padded data that a tap of a window reads."""
        first = window * self.stride if self.stride > 1 else window
        return first + (tap * self.dilation if self.dilation > 1 else tap)

    def distinct_tap_spans(self) -> Array:
        """Return the distinct spans (first tap, last tap + 1) of taps that windows read inside the data, as an array (S,
        2)."""
        first = np.arange(self.count) * self.stride - self.before
        ends = (-(first // self.dilation), -((first - self.extent) // self.dilation))
        spans = np.clip(np.stack(ends, axis=1), 0, self.taps)
        return np.unique(spans, axis=0, return_index=True)[0]  # without return_index numpy.ma is imported

    @property
    def reads_padding(self) -> bool:
        """True if a tap of a window reads padding."""
        return bool((self.distinct_tap_spans() != (0, self.taps)).any())


Windows = tuple[WindowAxis, ...]
"""Windows along several neighbouring axes of the data, such as height and width."""


def window_axes(
    extents: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] | None = None,
) -> Windows:
    """Return the windows along axes of ``extents`` elements. ``padding``: before each axis, then after each axis."""
    rank = len(extents)
    steps = dilation or (1,) * rank
    return tuple(
        WindowAxis(*axis) for axis in zip(extents, taps, strides, steps, padding[:rank], padding[rank:], strict=True)
    )


def transposed_window_axes(
    data_extents: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Windows:
    """Return the windows of a transposed convolution, which lie on its result: one for each element of the data.

    ``padding``: elements cropped before each axis of the full result, then after each axis."""
    rank = len(data_extents)
    full = (
        WindowAxis(0, *axis).extent_of(count)
        for count, *axis in zip(data_extents, taps, strides, dilation, strict=True)
    )
    extents = [e - before - after for e, before, after in zip(full, padding[:rank], padding[rank:], strict=True)]
    return window_axes(extents, taps, strides, padding, dilation)


@frozen
class Window:
    """Windows of an operator that slide along height and width of its first operand (N, H, W, C).

    Elements outside of the operand have the value ``pad_value``; None: they are omitted from the window."""

    axes: Windows
    pad_value: int | float | None = 0

    @property
    def rows(self) -> WindowAxis:
        """Windows along the height."""
        return self.axes[0]

    @property
    def is_padded(self) -> bool:
        """True if there is padding along an axis."""
        return any(axis.before or axis.after for axis in self.axes)


@frozen
class Product:
    """Layer as a product: sums of its data, operand 0, times weights, operand 1, plus a bias, operand 2, if it has one.

    Axis 0 of the weights are the output channels, and the bias has one number for each of them.

    - ``channel_axis``: axis of the channels in data and result, and of a group's input channels in the weights, counted
      from the end.
    - ``groups``: number of groups of channels. An output channel sums over the input channels of its group.
    - ``windows``: windows along the axes between batch and channels; none if data and weights are matrices.
    - ``pad_value``: value of elements outside of the data.
    - ``transposed``: True for transposed convolutions, whose windows lie on the result. Their sums differ in the number
      of taps."""

    channel_axis: int = -1
    groups: int = 1
    windows: Windows = ()
    pad_value: int | float = 0
    transposed: bool = False

    @property
    def mixes_channels(self) -> bool:
        """True if every sum is over all input channels and over all taps of a window."""
        return self.groups == 1 and not self.transposed

    @property
    def reads_padding(self) -> bool:
        """True if a sum reads elements outside of the data."""
        return any(axis.reads_padding for axis in self.windows)


# ---- Numpy: the padded data tap by tap, and the sums of a product.


def gather_taps(
    windows: Windows, data: Array, pad_value: float, first_axis: int
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield each tap, as its position in the window, with the elements that all windows read at it: the data with the
    numbers of windows in place of the axes from ``first_axis`` on."""
    margin = [(0, 0)] * data.ndim
    margin[first_axis : first_axis + len(windows)] = [(axis.before, axis.after) for axis in windows]
    padded = np.pad(data, margin, constant_values=pad_value)
    for tap in np.ndindex(*(axis.taps for axis in windows)):
        yield tap, padded[_padded_slices(windows, tap, first_axis)]


def _padded_slices(windows: Windows, tap: Sequence[int], first_axis: int) -> tuple[slice, ...]:
    """Return the index of the elements that all windows read at ``tap`` in an array whose axes from ``first_axis`` on are
    the padded data."""
    slices = (axis.padded_slice(position) for axis, position in zip(windows, tap, strict=True))
    return (*(slice(None),) * first_axis, *slices)


def evaluate_product(product: Product, data: Array, weights: Array) -> Array:
    """Compute the sums of a product without bias, as one matrix product for each tap, in the dtype of ``data`` and
    ``weights``."""
    windows, groups = product.windows, product.groups
    data, weights = (np.moveaxis(array, product.channel_axis, -1) for array in (data, weights))
    data = data.reshape(*data.shape[:-1], groups, -1)
    by_tap = np.moveaxis(weights.reshape(groups, -1, *weights.shape[1:]), (0, 1), (-3, -2))
    extents = [axis.padded_extent if product.transposed else axis.count for axis in windows]
    sums = np.zeros((len(data), *extents, groups, len(weights) // groups), data.dtype)
    if product.transposed:
        for tap in np.ndindex(*(axis.taps for axis in windows)):
            sums[_padded_slices(windows, tap, 1)] += np.einsum("n...gi,goi->n...go", data, by_tap[tap])
        sums = sums[:, *(slice(axis.before, axis.before + axis.extent) for axis in windows)]
    else:
        for tap, elements in gather_taps(windows, data, product.pad_value, 1):
            sums += np.einsum("n...gi,goi->n...go", elements, by_tap[tap], optimize=True)
    return np.moveaxis(sums.reshape(*sums.shape[:-2], -1), -1, product.channel_axis)


# ---- Tensor expressions: the element that a tap reads, and the condition that it is inside of the data.


def build_tap_indices(
    windows: Windows, window_index: Sequence[Expr], tap: Sequence[Expr]
) -> tuple[tuple[Expr, ...], Expr | None]:
    """Build the indices in the data that a tap of a window reads, and the condition that they are within the data.

    ``tap``: its position in the window along each axis. The condition is None if it always holds."""
    indices, inside = [], []
    for axis, window, position in zip(windows, window_index, tap, strict=True):
        index = window * axis.stride + position * axis.dilation - axis.before
        indices.append(index)
        inside += [index >= 0] if axis.before else []
        inside += [index < axis.extent] if axis.after else []
    return tuple(indices), ir.all_of(inside)


@frozen
class TransposedTap:
    """Element of the data of a transposed convolution that contributes to its result by a tap, along one axis.

    ``index``: its index, if the conditions ``in_range`` and ``divides`` hold: it is within the data, and the stride
    divides its distance from the first element. The latter always holds if the stride is 1."""

    index: Expr
    in_range: tuple[Expr, Expr]
    divides: Expr


def build_transposed_taps(
    windows: Windows, result_index: Sequence[Expr], tap: Sequence[Expr]
) -> tuple[TransposedTap, ...]:
    """Build the element of the data that contributes to an element of the result by a tap, along each axis."""
    return tuple(
        _build_transposed_tap(axis, index + axis.before - position * axis.dilation)
        for axis, index, position in zip(windows, result_index, tap, strict=True)
    )


def _build_transposed_tap(axis: WindowAxis, index_times_stride: Expr) -> TransposedTap:
    index = index_times_stride // axis.stride
    # With dilation the conditions compare the quotient, because the simplifier moves multiples of the dilation out of it: bounds
    # of ``index_times_stride`` would no longer prove that the quotient is within the data.
    checked, scale = (index_times_stride, axis.stride) if axis.dilation == 1 else (index, 1)
    in_range = checked >= 0, checked <= (axis.count - 1) * scale
    return TransposedTap(index, in_range, (index_times_stride % axis.stride).eq(0))
