"""Depthwise convolutions in float16 (``--math half``): windows of three taps a row, all of whose terms are one run
(:mod:`microc.ops.matrix.halves`, whose bound they have)."""

from __future__ import annotations

from math import prod

from microc import te
from microc.errors import InternalError
from microc.ops.convolution.geometry import DEFAULTS, Geometry, geometry
from microc.ops.convolution.input import padded_input
from microc.ops.matrix.gemm import start
from microc.ops.matrix.halves import HALF, RUN, half_weights
from microc.ops.registry import OpCall
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import HALVES

WIDTH, STRIDES = 3, (1, 2)
"""Taps of a row, and steps to the right, that there are words for."""


def suits_half_windows(call: OpCall) -> bool:
    """Whether a convolution has a window for every channel, and vectors of channels."""
    data, weight, _ = call.weighted
    attrs, channels = {**DEFAULTS, **call.attrs}, data.type.shape[-1]
    if attrs["groups"] != channels or attrs.get("open") or weight.type.shape[0] != channels:
        return False
    _, *kernel, _ = weight.type.shape
    known = kernel[1] == WIDTH and prod(kernel) <= RUN and attrs["strides"][1] in STRIDES
    return known and attrs["dilation"] == (1, 1) and half_weights(call, channels) is not None


def half_windows(call: OpCall) -> te.Tensor:
    """The sums and the bias: (N, Y, X, C) in float32."""
    data, weight, bias = call.weighted
    attrs = {**DEFAULTS, **call.attrs}
    g: Geometry = geometry(attrs, data.type.shape, weight.type.shape)
    halves = half_weights(call, g.channels)
    if halves is None:
        raise InternalError("this convolution is not computed in float16")
    taps = weight.packed(halves.reshape(g.channels, *g.kernel).transpose(1, 2, 0))
    padded = padded_input(g, data, attrs["pad_value"], dtype=HALF)
    ky, kx = te.reduce_axis(g.kernel[0], "ky"), te.reduce_axis(g.kernel[1], "kx")
    down, right = g.strides

    def element(n: Var, y: Var, x: Var, c: Var) -> Expr:
        value = padded[n, y * down + ky.var, x * right + kx.var, c]
        return te.fma_reduce(value, taps[ky.var, kx.var, c], ky, kx, init=0.0)

    shape, axes = (g.batch, g.out_height, g.out_width, g.channels), ("n", "y", "x", "c")
    total = te.compute(shape, element, HALVES, axes)

    def whole(n: Var, y: Var, x: Var, c: Var) -> Expr:
        real = ir.cast("float32", total[n, y, x, c])
        return real if bias is None else real + start(bias, c, "float32")

    return te.compute(shape, whole, "wide", axes)
