"""SVDF: a dense layer over time whose weights are factored, so that one step takes one new feature per filter.

Data (B, D), feature weights (F, D), time weights (F, M), bias (F / rank), state (B, F * M): the last M features of every filter,
oldest first. A step drops the oldest, appends the new one, and sums features by time weights over the rank filters of a unit.
The new state is an output of its own.

``qsvdf`` is TFLite Micro's integer form: zero points of data and state are folded into ``feature_bias`` (F) and ``bias``. As there, a
fused activation of a quantised application does nothing beyond the clamp to the output's dtype, and sums must fit 32 bits.
Source: TFLite Micro ``svdf_common.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import dtypes, fixed, te
from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.fixed import INT32_MAX, NUMPY, Arith, quantize_multiplier
from microc.graph.ir import Graph, Node, TensorType
from microc.ops.arith import TIR, Legalized, Rewrite, clamped, constant, is_quantised, scalar_quant
from microc.ops.registry import Case, OpCall, OpDef
from microc.ops.scaling import Output, Scale, double_rounded, single_rounded
from microc.ops.surface import emit_activation
from microc.tir import ir
from microc.tir.ir import Expr


def _check(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
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


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].dtype != "float32" and types[0].quant is None:
        raise ModelError(f"svdf of {types[0].dtype}")
    return _check(attrs, types)


def _infer_q(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, feature, feature_bias, time, bias, state = types
    if feature_bias.shape != feature.shape[:1]:
        raise ModelError(f"qsvdf with a feature bias of {feature_bias.shape} for weights {feature.shape}")
    return _check(attrs, (data, feature, time, bias, state))


def _stepped(state: Array, feature: Array, time: Array, bias: Array, rank: int) -> tuple[Array, Array]:
    """(sums by time weights, new state) of a state (B, F, M) and new features (B, F), in the arrays' dtype."""
    following = np.concatenate((state[:, :, 1:], feature[:, :, None]), axis=2)
    by_filter = (following * time).sum(axis=2)
    return by_filter.reshape(len(state), -1, rank).sum(axis=2) + bias, following


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, weights, time, bias, state = (np.asarray(array, np.float64) for array in arrays)
    old = state.reshape(len(data), *time.shape)
    total, following = _stepped(old, data @ weights.T, time, bias, attrs["rank"])
    return total.astype(np.float32), following.reshape(state.shape).astype(np.float32)


def _scaled_feature(x: Any, attrs: Mapping[str, Any], k: Arith[Any]) -> Any:
    multiply = fixed.multiply_single_rounding if attrs["rounding"] == "single" else fixed.multiply_double_rounding
    return multiply(x, attrs["feature_multiplier"], attrs["feature_shift"], k)


def _reference_q(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, weights, feature_bias, time, bias, state = (np.asarray(array, np.int64) for array in arrays)
    low, high = dtypes.int_range(str(arrays[5].dtype))
    feature = np.clip(_scaled_feature(data @ weights.T + feature_bias, attrs, NUMPY), low, high)
    feature = (feature + attrs["state_zero_point"]).astype(arrays[5].dtype).astype(np.int64)
    old = state.reshape(len(data), *time.shape)
    total, following = _stepped(old, feature, time, bias, attrs["rank"])
    multiply = fixed.multiply_single_rounding if attrs["rounding"] == "single" else fixed.multiply_double_rounding
    scaled = multiply(total, attrs["multiplier"], attrs["shift"], NUMPY) + attrs["zero_point"]
    result = np.clip(scaled, attrs["minimum"], attrs["maximum"]).astype(attrs["out_dtype"])
    return result, following.reshape(state.shape).astype(arrays[5].dtype)


# ---------------------------------------------------------------- tensor expressions


def _sizes(call: OpCall) -> tuple[int, int, int, int]:
    """(batch, depth, filters, memory)"""
    data, time = call.operands[0], call.operands[-3]
    assert data is not None and time is not None
    return (*data.type.shape, *time.type.shape)  # type: ignore[return-value]


def _tensors(call: OpCall) -> list[te.Tensor]:
    """The operands' tensors; the state as (batch, filters, memory)."""
    batch, _, filters, memory = _sizes(call)
    *others, state = (operand for operand in call.operands if operand is not None)
    return [*(operand.tensor() for operand in others), state.tensor((batch, filters, memory))]


def _following(call: OpCall, state: te.Tensor, newest: Any) -> te.Tensor:
    """Stage ``state``: the old one a step on, with ``newest(b, f)`` at the end."""
    batch, _, filters, memory = _sizes(call)

    def element(b: Expr, f: Expr, m: Expr) -> Expr:
        return ir.select(m < memory - 1, state[b, f, m + 1], newest(b, f)) if memory > 1 else newest(b, f)

    return te.compute((batch, filters, memory), element, "following", ("b", "f", "m"))


def _summed(call: OpCall, following: te.Tensor, time: te.Tensor, bias: te.Tensor, dtype: str) -> te.Tensor:
    """Stage ``acc``: bias plus features by time weights."""
    batch, _, filters, memory = _sizes(call)
    rank = call.attrs["rank"]
    r, m = te.reduce_axis(rank, "r"), te.reduce_axis(memory, "k")

    def element(b: Expr, u: Expr) -> Expr:
        f = u * rank + r.var
        product = ir.cast(dtype, following[b, f, m.var]) * ir.cast(dtype, time[f, m.var])
        return te.sum_reduce(product, r, m, init=bias[u])

    return te.compute((batch, filters // rank), element, "acc", ("b", "u"))


def _feature(call: OpCall, x: te.Tensor, weights: te.Tensor, dtype: str, bias: te.Tensor | None = None) -> te.Tensor:
    """Stage ``feature``: data by feature weights."""
    batch, depth, filters, _ = _sizes(call)
    d = te.reduce_axis(depth, "d")

    def element(b: Expr, f: Expr) -> Expr:
        product = ir.cast(dtype, x[b, d.var]) * ir.cast(dtype, weights[f, d.var])
        return te.sum_reduce(product, d, init=bias[f] if bias is not None else 0)

    return te.compute((batch, filters), element, "feature", ("b", "f"))


def _compute(call: OpCall) -> tuple[te.Tensor, ...]:
    x, weights, time, bias, state = _tensors(call)
    feature = _feature(call, x, weights, "float32")
    following = _following(call, state, lambda b, f: feature[b, f])
    return _summed(call, following, time, bias, "float32"), following


def _compute_q(call: OpCall) -> tuple[te.Tensor, ...]:
    x, weights, feature_bias, time, bias, state = _tensors(call)
    attrs = call.attrs
    feature = _feature(call, x, weights, "int32", feature_bias)

    def newest(b: Expr, f: Expr) -> Expr:
        value, bound = feature[b, f], attrs["feature_bound"]
        if attrs["rounding"] == "single":
            scaled = _scaled_feature(value, attrs, TIR)
        else:
            scale = Scale.of(attrs["feature_multiplier"], attrs["feature_shift"])
            scaled = double_rounded(value, -bound, bound, scale)
        clipped = clamped(scaled, *dtypes.int_range(state.dtype), "int32")
        return ir.cast(state.dtype, clipped + attrs["state_zero_point"] if attrs["state_zero_point"] else clipped)

    following = _following(call, state, newest)
    acc = _summed(call, following, time, bias, "int32")
    out = Output(attrs["zero_point"], attrs["minimum"], attrs["maximum"], attrs["out_dtype"])
    scale = Scale.of(attrs["multiplier"], attrs["shift"])

    def element(b: Expr, u: Expr) -> Expr:
        if attrs["rounding"] == "single":
            return single_rounded(acc[b, u], scale, out)
        return double_rounded(acc[b, u], -attrs["bound"], attrs["bound"], scale, out)

    return te.compute(acc.shape, element, "svdf", ("b", "u")), following


# ---------------------------------------------------------------- quantised


def _legalize(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph):
        return _split_activation(node, graph)
    if node.attr("rounding") == "even":
        raise UnsupportedError("a quantised svdf with rounding half to even", where=str(node.loc))
    data, weights, time, bias, state = node.inputs
    scale_x, zero_x = scalar_quant(node, graph, data)
    scale_out, zero_out = scalar_quant(node, graph, node.outputs[0])
    scale_state, zero_state = scalar_quant(node, graph, state)
    scale_weights, scale_time = (scalar_quant(node, graph, name)[0] for name in (weights, time))
    constants = [constant(graph, name) for name in (weights, time, bias)]
    if any(array is None for array in constants):
        raise UnsupportedError("a quantised svdf whose weights are not constant", where=str(node.loc))
    w, t, b = (np.asarray(array, np.int64) for array in constants)
    by_unit = t.reshape(-1, node.attr("rank") * t.shape[1])
    low, high = dtypes.int_range(graph.types[node.outputs[0]].dtype)
    feature_mantissa, feature_shift = quantize_multiplier(scale_x * scale_weights / scale_state)
    mantissa, shift = quantize_multiplier(scale_state * scale_time / scale_out)
    folded = b - zero_state * by_unit.sum(axis=1)
    rewrite = Rewrite(node, graph)
    operands = (
        data,
        weights,
        rewrite.constant("feature_bias", (-zero_x * w.sum(axis=1)).astype(np.int32)),
        time,
        rewrite.constant("bias", folded.astype(np.int32)) if zero_state else bias,
        state,
    )
    reach = [max(abs(end - zero_x) for end in dtypes.int_range(graph.types[data].dtype))]
    reach.append(max(abs(end) for end in dtypes.int_range(graph.types[state].dtype)))
    rewrite.emit(
        "qsvdf",
        operands,
        node.outputs,
        {
            **{"rank": node.attr("rank"), "state_zero_point": zero_state},
            **{"feature_multiplier": feature_mantissa, "feature_shift": feature_shift},
            **{"feature_bound": _bound(abs(w).sum(axis=1) * reach[0])},
            **{"multiplier": mantissa, "shift": shift, "bound": _bound(abs(by_unit).sum(axis=1) * reach[1] + abs(folded))},
            **{"zero_point": zero_out, "minimum": low, "maximum": high},
            **{"out_dtype": graph.types[node.outputs[0]].dtype, "rounding": node.attr("rounding")},
        },
    )
    return rewrite.legalized()


def _bound(sums: Array) -> int:
    return min(int(sums.max()), INT32_MAX)


def _split_activation(node: Node, graph: Graph) -> Legalized | None:
    """The float operator, and its activation as an operator of its own."""
    activation = str(node.attr("activation"))
    if not activation:
        return None
    rewrite = Rewrite(node, graph)
    kind = graph.types[node.outputs[0]]
    linear = rewrite.value("linear", kind.shape, kind.dtype)
    rewrite.emit("svdf", node.inputs, (linear, node.outputs[1]), {**node.attrs, "activation": ""})
    emit_activation(rewrite, activation, linear, node.outputs[0])
    return rewrite.legalized()


# ---------------------------------------------------------------- registry

_SHAPES = ((1, 4, 6, 3, 2), (2, 5, 4, 1, 1), (1, 1, 1, 2, 1), (1, 8, 8, 10, 4))
"""Batch, depth, filters, memory, rank."""


def _cases() -> Iterable[Case]:
    for batch, depth, filters, memory, rank in _SHAPES:
        shapes = ((batch, depth), (filters, depth), (filters, memory), (filters // rank,), (batch, filters * memory))
        attrs = {"rank": rank, "activation": "", "rounding": "double"}
        yield Case(attrs, tuple(TensorType(s, "float32") for s in shapes), consts=(1, 2, 3), tolerance=2e-5)


def _cases_q() -> Iterable[Case]:
    rng = np.random.default_rng(7)
    for state_dtype, zero_state in (("int16", 0), ("int8", 3)):
        for rounding in ("double", "single"):
            for batch, depth, filters, memory, rank in _SHAPES:
                low, high = dtypes.int_range(state_dtype)
                shapes = ((batch, depth), (filters, depth), (filters,), (filters, memory), (filters // rank,), ())
                kinds = ("int8", "int8", "int32", state_dtype, "int32")
                spans = ((-128, 127), (-127, 127), (-999, 999), (low // 64, high // 64), (-4000, 4000))
                arrays = [
                    rng.integers(a, b, shape, endpoint=True).astype(kind)
                    for shape, kind, (a, b) in zip(shapes, kinds, spans, strict=False)
                ]
                state = rng.integers(low, high, (batch, filters * memory), endpoint=True).astype(state_dtype)
                arrays.append(state)
                attrs = {
                    **{"rank": rank, "state_zero_point": zero_state, "feature_bound": INT32_MAX, "bound": INT32_MAX},
                    **{"feature_multiplier": 1518500250, "feature_shift": -2 if state_dtype == "int16" else -6},
                    **{"multiplier": 1234567890, "shift": -10 if state_dtype == "int16" else -3, "zero_point": -5},
                    **{"minimum": -128, "maximum": 127, "out_dtype": "int8", "rounding": rounding},
                }
                types = tuple(TensorType(array.shape, array.dtype.name) for array in arrays)
                yield Case(attrs, types, (1, 2, 3, 4), tuple(arrays), name=f"{state_dtype} {rounding} {shapes[1]}")


def _macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    batch, depth = types[0].shape
    return batch * types[1].shape[0] * depth + types[-1].size


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "svdf",
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        defaults={"activation": "", "rounding": "double"},
        legalize=_legalize,
        macs=_macs,
        operand_names=("data", "weights", "time_weights", "bias", "state"),
    ),
    OpDef(
        "qsvdf",
        infer=_infer_q,
        reference=_reference_q,
        compute=_compute_q,
        cases=_cases_q,
        macs=_macs,
        operand_names=("data", "weights", "feature_bias", "time_weights", "bias", "state"),
    ),
)
