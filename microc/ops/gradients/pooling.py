# SPDX-License-Identifier: Apache-2.0
"""Gradients of pools over windows of height and width."""

from __future__ import annotations

from math import prod

import numpy as np

from microc.graph.ir import Attr
from microc.ops.gradients.call import GradientCall, Gradients, Value
from microc.ops.windows import window_axes

_TO_NHWC, _TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def _restore_layout(call: GradientCall, value: Value) -> Value:
    return value.transpose(_TO_NCHW) if call.attr("layout") == "NCHW" else value


def _as_nhwc(call: GradientCall, value: Value) -> Value:
    return value.transpose(_TO_NHWC) if call.attr("layout") == "NCHW" else value


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
        rows, columns = (
            _elements_per_window(axis.extent, axis.taps, axis.stride, axis.before, axis.count) for axis in windows
        )
        counts = (rows[:, None] * columns[None, :])[:, :, None].astype(np.float64)
    share = g * g.constant(1.0 / counts) if np.unique(counts).size > 1 else g * float(1.0 / counts.flat[0])
    ends = tuple(axis.extent_of(axis.count) - axis.before - axis.extent for axis in windows)
    channels = x.shape[3]
    ones = g.constant(np.ones((channels, *kernel, 1)))
    spread = share.apply("conv2d_transpose", ones, strides=strides, padding=(*padding[:2], *ends), groups=channels)
    return (_restore_layout(call, spread),)


def _elements_per_window(
    extent: int, taps: int, stride: int, before: int, count: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the number of elements inside the data of each window along an axis."""
    first = np.arange(count) * stride - before
    return np.minimum(first + taps, extent) - np.maximum(first, 0)
