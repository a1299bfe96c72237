"""Spellings of ATen's normalisations. Those that come with statistics give three results, of which the first is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.frontend.torch.application import Application, Spelling
from microc.graph.ir import Attr


def batch_norm(a: Application) -> tuple[str, str, str]:
    """A factor and an offset for every channel."""
    x = a.operand("input")
    mean, var = (a.constant(name) for name in ("running_mean", "running_var"))
    if mean is None or var is None:
        a.refuse("statistics of the batch", "export in eval mode")
    weight, bias = (a.constant(name) for name in ("weight", "bias"))
    factor = 1 / np.sqrt(var.astype(np.float64) + float(a.argument("eps")))
    factor = factor if weight is None else factor * weight
    offset = (0 if bias is None else bias) - mean * factor
    return (_per_channel(a, x, factor, offset), "", "")


def _per_channel(a: Application, x: str, factor: Array, offset: Array) -> str:
    shape = (-1, *(1,) * (len(a.shape(x)) - 2))
    names = [
        a.write.new_constant(stem, part.astype(np.float32).reshape(shape))
        for stem, part in (("factor", factor), ("offset", np.asarray(offset)))
    ]
    return a.emit("add", (a.emit("mul", (x, names[0])), names[1]))


def instance_norm(a: Application) -> tuple[str, str, str]:
    """_native_batch_norm_legit without statistics: every channel by its own mean and variance, of the input at hand."""
    x = a.operand("input")
    rank = len(a.shape(x))
    made = _normalised(a, x, {"axes": (0, *range(2, rank)), "keepdims": True})
    weight, bias = (a.constant(name) for name in ("weight", "bias"))
    if weight is None and bias is None:
        return (made, "", "")
    ones = np.ones(a.shape(x)[1])
    return (_per_channel(a, made, ones if weight is None else weight, 0 * ones if bias is None else bias), "", "")


def layer_norm(a: Application) -> Any:
    """Over the last axes: (x - mean) / sqrt(var + eps), scaled and shifted."""
    x = a.operand("input")
    rank, count = len(a.shape(x)), len(a.argument("normalized_shape"))
    over: Mapping[str, Attr] = {"axes": tuple(range(rank - count, rank)), "keepdims": True}
    made = _normalised(a, x, over)
    for op, name in (("mul", "weight"), ("add", "bias")):
        if a.argument(name) is not None:
            made = a.emit(op, (made, a.operand(name)))
    return made if a.name == "layer_norm" else (made, "", "")


def _normalised(a: Application, x: str, over: Mapping[str, Attr]) -> str:
    centred = a.emit("sub", (x, a.emit("mean", (x,), over)))
    spread = a.emit("mean", (a.emit("mul", (centred, centred)),), over)
    scale = a.emit("rsqrt", (a.emit("add", (spread, a.value(float(a.argument("eps"))))),))
    return a.emit("mul", (centred, scale))


def group_norm(a: Application) -> Any:
    """native_group_norm: every group of channels by itself, then a factor and an offset for every channel."""
    x, groups = a.operand("input"), int(a.argument("group"))
    shape = a.shape(x)
    rows = a.reshaped(x, (shape[0] * groups, math.prod(shape[1:]) // groups))
    made = a.reshaped(_normalised(a, rows, {"axes": (1,), "keepdims": True}), shape)
    weight, bias = (a.constant(name) for name in ("weight", "bias"))
    if weight is not None or bias is not None:
        ones = np.ones(shape[1])
        made = _per_channel(a, made, ones if weight is None else weight, 0 * ones if bias is None else bias)
    return (made, "", "")


SPELLINGS: Mapping[str, Spelling] = {
    "_native_batch_norm_legit": instance_norm,
    "_native_batch_norm_legit_no_training": batch_norm,
    "layer_norm": layer_norm,
    "native_group_norm": group_norm,
    "native_layer_norm": layer_norm,
}
