"""What float and fixed-point SVDF share: shapes, one step of the state, tensor expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.registry import OpCall
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC

SHAPES = ((1, 4, 6, 3, 2), (2, 5, 4, 1, 1), (1, 1, 1, 2, 1), (1, 8, 8, 10, 4))
"""Batch, depth, filters, memory, rank."""


def check_shapes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Output and new state of operands data, feature weights, time weights, bias, state."""
    data, feature, time, bias, state = types
    if len(data.shape) != 2 or len(feature.shape) != 2 or len(time.shape) != 2 or attrs["rank"] < 1:
        raise ModelError(f"svdf of data {data.shape}, weights {feature.shape} and {time.shape}, rank {attrs['rank']}")
    (batch, depth), (filters, memory) = data.shape, time.shape
    units = filters // attrs["rank"]
    if feature.shape != (filters, depth) or units * attrs["rank"] != filters or bias.shape != (units,):
        raise ModelError(
            f"svdf of data {data.shape}, weights {feature.shape} and {time.shape}, bias {bias.shape}, rank {attrs['rank']}"
        )
    if state.size != batch * filters * memory:
        raise ModelError(f"svdf with a state of {state.shape} for {filters} filters of {memory} steps, batch {batch}")
    dtype = attrs.get("out_dtype") or data.dtype
    return TensorType((batch, units), dtype), TensorType(state.shape, state.dtype)


def stepped(state: Array, feature: Array, time: Array, bias: Array, rank: int) -> tuple[Array, Array]:
    """(sums by time weights, new state) of a state (B, F, M) and new features (B, F), in the arrays' dtype."""
    following = np.concatenate((state[:, :, 1:], feature[:, :, None]), axis=2)
    by_filter = (following * time).sum(axis=2)
    return by_filter.reshape(len(state), by_filter.shape[1] // rank, rank).sum(axis=2) + bias, following


def sizes(call: OpCall) -> tuple[int, int, int, int]:
    """(batch, depth, filters, memory)"""
    time = call.operands[-3]
    assert time is not None
    return (*call.data.type.shape, *time.type.shape)  # type: ignore[return-value]


def tensors(call: OpCall) -> list[te.Tensor]:
    """The operands' tensors; the state as (batch, filters, memory)."""
    batch, _, filters, memory = sizes(call)
    *others, state = call.present
    return [*(operand.tensor() for operand in others), state.tensor((batch, filters, memory))]


def following(call: OpCall, state: te.Tensor, newest: Any) -> te.Tensor:
    """Stage ``state``: the old one a step on, with ``newest(b, f)`` at the end."""
    batch, _, filters, memory = sizes(call)

    def element(b: Expr, f: Expr, m: Expr) -> Expr:
        return ir.select(m < memory - 1, state[b, f, m + 1], newest(b, f)) if memory > 1 else newest(b, f)

    return te.compute((batch, filters, memory), element, "following", ("b", "f", "m"))


def summed(call: OpCall, following: te.Tensor, time: te.Tensor, bias: te.Tensor, dtype: str) -> te.Tensor:
    """Stage ``acc``: bias plus features by time weights."""
    batch, _, filters, memory = sizes(call)
    rank = call.attrs["rank"]
    r, m = te.reduce_axis(rank, "r"), te.reduce_axis(memory, "k")

    def element(b: Expr, u: Expr) -> Expr:
        f = u * rank + r.var
        product = ir.cast(dtype, following[b, f, m.var]) * ir.cast(dtype, time[f, m.var])
        return te.sum_reduce(product, r, m, init=ir.cast(dtype, bias[u]))

    return te.compute((batch, filters // rank), element, ACC, ("b", "u"))


def feature(call: OpCall, x: te.Tensor, weights: te.Tensor, dtype: str, bias: te.Tensor | None = None) -> te.Tensor:
    """Stage ``feature``: data by feature weights."""
    batch, depth, filters, _ = sizes(call)
    d = te.reduce_axis(depth, "d")

    def element(b: Expr, f: Expr) -> Expr:
        product = ir.cast(dtype, x[b, d.var]) * ir.cast(dtype, weights[f, d.var])
        return te.sum_reduce(product, d, init=ir.cast(dtype, bias[f]) if bias is not None else 0)

    return te.compute((batch, filters), element, "feature", ("b", "f"))


def macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    batch, depth = types[0].shape
    return batch * types[1].shape[0] * depth + types[-1].size
