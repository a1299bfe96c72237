# SPDX-License-Identifier: Apache-2.0
"""Gradients of reductions over axes, of running sums, and of normalisations: ``softmax``, ``log_softmax``,
``layer_norm``, ``l2_normalize``."""

from __future__ import annotations

from math import prod

from microc.ops.gradients.call import GradientCall, Gradients, Value

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
