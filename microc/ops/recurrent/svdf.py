# SPDX-License-Identifier: Apache-2.0
"""Operators ``svdf`` (of floats, or quantised as in the model file) and ``qsvdf`` (in fixed point)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import INT32_MAX, INT32_MIN, NUMPY, quantize_multiplier
from microc.ops.arithmetic import (
    Rewrite,
    clamp_to_dtype,
    constant_data,
    emit_activation,
    is_quantised,
    per_tensor_quant,
)
from microc.ops.attributes import (
    ACTIVATED,
    DYNAMIC,
    MULTIPLIER_ROUNDING,
    SCALED,
    STORED,
    Multiplier,
    Rounding,
    exponent,
    integer,
    mantissa,
)
from microc.ops.constants import (
    INT32,
    CheckedNode,
    Constants,
    NumberUse,
    OperandBounds,
    make_zero_point_range_check,
    stored_range_error_message,
)
from microc.ops.quantised.scaling import FixedPointScale, ScaledResult, scale_double_rounding, scale_single_rounding
from microc.ops.registry import Case, Legalized, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC

# ---- Parts that float and fixed-point SVDF share: shapes, the update of the state by one time step, tensor expressions.

SHAPES = ((1, 4, 6, 3, 2), (2, 5, 4, 1, 1), (1, 1, 1, 2, 1), (1, 8, 8, 10, 4))
"""Extents of test cases: batch, depth, filters, memory (features kept per filter), rank (filters of an output unit)."""


def infer_svdf_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Infer the types of output and new state from the types of data, feature weights, time weights, bias and state.

    Raise ModelError if their shapes contradict each other."""
    data, feature, time, bias, state = types
    if len(data.shape) != 2 or len(feature.shape) != 2 or len(time.shape) != 2 or attrs["rank"] < 1:
        raise ModelError(
            f"svdf: operands or rank are invalid; got data {data.shape}, feature weights {feature.shape}, time weights "
            f"{time.shape} and rank={attrs['rank']}, expected two axes each and rank from 1 on"
        )
    (batch, depth), (filters, memory) = data.shape, time.shape
    units = filters // attrs["rank"]
    if feature.shape != (filters, depth) or units * attrs["rank"] != filters or bias.shape != (units,):
        raise ModelError(
            f"svdf: operands disagree; got data {data.shape}, weights {feature.shape} and {time.shape}, bias "
            f"{bias.shape} and rank={attrs['rank']}, expected (B, D), (F, D), (F, memory) and (F / rank,)"
        )
    if state.size != batch * filters * memory:
        raise ModelError(
            f"svdf: the state has a wrong size; got {state.shape}, expected {batch} x {filters} x {memory} elements"
        )
    dtype = attrs.get("out_dtype") or data.dtype
    return TensorType((batch, units), dtype), TensorType(state.shape, state.dtype)


def advance_svdf_state(
    state: Array, new_features: Array, time_weights: Array, bias: Array, rank: int
) -> tuple[Array, Array]:
    """Update a state (B, F, M) by one time step over numpy; return the sums (B, F / ``rank``) and the new state.

    The oldest feature of each filter is dropped and the newest one of ``new_features`` (B, F) is appended. A sum adds
    features times ``time_weights`` over time and over the ``rank`` filters of an output unit, plus the bias. All is
    computed in the arrays' dtype."""
    following = np.concatenate((state[:, :, 1:], new_features[:, :, None]), axis=2)
    by_filter = (following * time_weights).sum(axis=2)
    return by_filter.reshape(len(state), by_filter.shape[1] // rank, rank).sum(axis=2) + bias, following


def svdf_batch_depth_filters_memory(call: OpCall) -> tuple[int, int, int, int]:
    """Return the extents of an SVDF: batch, depth (elements of one input), filters, memory (features kept per
    filter)."""
    time = call.operands[-3]
    assert time is not None
    return (*call.data.type.shape, *time.type.shape)  # type: ignore[return-value]


def reshaped_operand_tensors(call: OpCall) -> list[te.Tensor]:
    """Return the te tensors of an SVDF's operands. The state is reshaped to (batch, filters, memory)."""
    batch, _, filters, memory = svdf_batch_depth_filters_memory(call)
    *others, state = call.present
    return [*(operand.tensor() for operand in others), state.tensor((batch, filters, memory))]


def build_new_state(call: OpCall, state: te.Tensor, newest_feature: Any) -> te.Tensor:
    """Build the te stage ``following``, the new state: the old state without the oldest features, followed by
    ``newest_feature(b, f)``."""
    batch, _, filters, memory = svdf_batch_depth_filters_memory(call)

    def build_new_state_element(b: Expr, f: Expr, m: Expr) -> Expr:
        return (
            ir.select(m < memory - 1, state[b, f, m + 1], newest_feature(b, f)) if memory > 1 else newest_feature(b, f)
        )

    return te.compute((batch, filters, memory), build_new_state_element, "following", ("b", "f", "m"))


def sum_over_time(
    call: OpCall, new_state: te.Tensor, time_weights: te.Tensor, bias: te.Tensor, acc_dtype: str
) -> te.Tensor:
    """Build the te stage ``acc``: the bias plus the sum over time, and over the filters of a unit, of features times
    ``time_weights``."""
    batch, _, filters, memory = svdf_batch_depth_filters_memory(call)
    rank = call.attrs["rank"]
    r, m = te.reduce_axis(rank, "r"), te.reduce_axis(memory, "k")

    def build_sum_over_time(b: Expr, u: Expr) -> Expr:
        f = u * rank + r.var
        product = ir.cast(acc_dtype, new_state[b, f, m.var]) * ir.cast(acc_dtype, time_weights[f, m.var])
        return te.sum_reduce(product, r, m, init=ir.cast(acc_dtype, bias[u]))

    return te.compute((batch, filters // rank), build_sum_over_time, ACC, ("b", "u"))


def build_features(
    call: OpCall, x: te.Tensor, weights: te.Tensor, acc_dtype: str, bias: te.Tensor | None = None
) -> te.Tensor:
    """Build the te stage ``feature``: the data times the feature weights, plus the bias if there is one."""
    batch, depth, filters, _ = svdf_batch_depth_filters_memory(call)
    d = te.reduce_axis(depth, "d")

    def build_feature(b: Expr, f: Expr) -> Expr:
        product = ir.cast(acc_dtype, x[b, d.var]) * ir.cast(acc_dtype, weights[f, d.var])
        return te.sum_reduce(product, d, init=ir.cast(acc_dtype, bias[f]) if bias is not None else 0)

    return te.compute((batch, filters), build_feature, "feature", ("b", "f"))


def count_svdf_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    """Return the number of multiply-accumulate operations of one time step."""
    batch, depth = types[0].shape
    return batch * types[1].shape[0] * depth + types[-1].size


# ---- ``qsvdf``: TFLite Micro's integer SVDF. Data and feature weights are int8, time weights and state are int16 or int8.
#
# Zero points of data and state are folded into ``feature_bias`` (F) and ``bias``. As in TFLite a fused activation does nothing
# beyond the clamp to the output's dtype. ``feature_bound`` and ``bound`` are the largest magnitudes of the two sums, derived from
# the weights. Sums wrap around in 32 bits, so that a sum that fits is correct in any order of additions.
#
# Source: TFLite Micro ``svdf_common.cc`` (EvalIntegerSvdfReference).


def _infer_qsvdf_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, feature, feature_bias, time, bias, state = types
    if feature_bias.shape != feature.shape[:1]:
        raise ModelError(
            f"qsvdf: the feature bias has a wrong shape; got {feature_bias.shape}, expected {feature.shape[:1]}"
        )
    return infer_svdf_types(attrs, (data, feature, time, bias, state))


def _evaluate_qsvdf_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, weights, feature_bias, time, bias, state = (np.asarray(array, np.int64) for array in arrays)
    low, high = dtypes.int_range(str(arrays[5].dtype))
    multiply = Multiplier(attrs["rounding"]).multiply_function
    features = NUMPY.wrap(data @ weights.T + feature_bias)
    new = np.clip(multiply(features, attrs["feature_multiplier"], attrs["feature_shift"], NUMPY), low, high)
    new = (new + attrs["state_zero_point"]).astype(arrays[5].dtype).astype(np.int64)
    old = state.reshape(len(data), *time.shape)
    total, memory = advance_svdf_state(old, new, time, bias, attrs["rank"])
    scaled = multiply(NUMPY.wrap(total), attrs["multiplier"], attrs["shift"], NUMPY)
    result = np.clip(scaled + attrs["zero_point"], attrs["minimum"], attrs["maximum"]).astype(attrs["out_dtype"])
    return result, memory.reshape(state.shape).astype(arrays[5].dtype)


def _compute_qsvdf(call: OpCall) -> tuple[te.Tensor, ...]:
    x, weights, feature_bias, time, bias, state = reshaped_operand_tensors(call)
    attrs = call.attrs
    new = build_features(call, x, weights, _sum_dtype(attrs["feature_bound"]), feature_bias)

    def build_newest_feature(b: Expr, f: Expr) -> Expr:
        value, bound = ir.cast("int32", new[b, f]), min(attrs["feature_bound"], INT32_MAX)
        scale = FixedPointScale.from_mantissa_and_shift(attrs["feature_multiplier"], attrs["feature_shift"])
        if attrs["rounding"] == Multiplier.SINGLE:
            scaled = scale_single_rounding(value, bound, scale)
        else:
            scaled = scale_double_rounding(value, -bound, bound, scale)
        clipped = clamp_to_dtype(scaled, *dtypes.int_range(state.dtype), "int32")
        return ir.cast(state.dtype, clipped + attrs["state_zero_point"] if attrs["state_zero_point"] else clipped)

    memory = build_new_state(call, state, build_newest_feature)
    acc, bound = sum_over_time(call, memory, time, bias, _sum_dtype(attrs["bound"])), min(attrs["bound"], INT32_MAX)
    out = ScaledResult(attrs["zero_point"], attrs["minimum"], attrs["maximum"], attrs["out_dtype"])
    scale = FixedPointScale.from_mantissa_and_shift(attrs["multiplier"], attrs["shift"])

    def build_output_element(b: Expr, u: Expr) -> Expr:
        if attrs["rounding"] == Multiplier.SINGLE:
            return scale_single_rounding(ir.cast("int32", acc[b, u]), bound, scale, out)
        return scale_double_rounding(ir.cast("int32", acc[b, u]), -bound, bound, scale, out)

    return te.compute(acc.shape, build_output_element, "svdf", ("b", "u")), memory


def _sum_dtype(max_sum: int) -> str:
    """Return the dtype in which sums of a magnitude up to ``max_sum`` are computed.

    It is int32, or uint32 if the sums may exceed int32, because C defines the overflow of unsigned integers."""
    return "int32" if max_sum <= INT32_MAX else "uint32"


def legalize_to_qsvdf(node: Node, graph: Graph) -> Legalized:
    """Rewrite a quantised ``svdf`` with constant weights to ``qsvdf``. Multipliers are computed from the scales in
    double precision."""
    rounding = str(node.attr("rounding"))
    data, weights, time, bias, state = node.inputs
    constants = [constant_data(graph, name) for name in (weights, time, bias)]
    if rounding == Rounding.EVEN or any(array is None for array in constants):
        raise UnsupportedError(
            f"weights or bias are not constant, or the rounding is unsupported; got rounding={rounding}, expected "
            f"constants and any rounding but {Rounding.EVEN}",
            where=str(node.loc),
            hint="make them constants, or keep the layer in float32",
        )
    w, t, b = (np.asarray(array, np.int64) for array in constants)
    (scale_x, zero_x), (scale_state, zero_state) = (per_tensor_quant(node, graph, name) for name in (data, state))
    scale_w, scale_t, scale_out = (per_tensor_quant(node, graph, name)[0] for name in (weights, time, node.outputs[0]))
    result = graph.types[node.outputs[0]]
    low, high = dtypes.int_range(result.dtype)
    by_unit = t.reshape(-1, node.attr("rank") * t.shape[1])
    folded = b - zero_state * by_unit.sum(axis=1)
    new_mantissa, new_shift = quantize_multiplier(scale_x * scale_w / scale_state)
    mantissa, shift = quantize_multiplier(scale_state * scale_t / scale_out)
    data_reach = max(abs(end - zero_x) for end in dtypes.int_range(graph.types[data].dtype))
    state_reach = max(abs(end) for end in dtypes.int_range(graph.types[state].dtype))
    attrs: dict[str, Attr] = {"rank": node.attr("rank"), "rounding": rounding, "state_zero_point": zero_state}
    attrs |= {"feature_multiplier": new_mantissa, "feature_shift": new_shift, "multiplier": mantissa, "shift": shift}
    attrs |= {"feature_bound": int((abs(w).sum(axis=1) * data_reach).max())}
    attrs |= {"bound": int((abs(by_unit).sum(axis=1) * state_reach + abs(folded)).max())}
    zero_out = per_tensor_quant(node, graph, node.outputs[0])[1]
    attrs |= {"zero_point": zero_out, "minimum": low, "maximum": high, "out_dtype": result.dtype}
    rewrite = Rewrite(node, graph)
    feature_bias = rewrite.add_constant("feature_bias", (-zero_x * w.sum(axis=1)).astype(np.int32))
    if zero_state:
        bias = rewrite.add_constant("bias", folded.astype(np.int32))
    rewrite.emit("qsvdf", (data, weights, feature_bias, time, bias, state), node.outputs, attrs)
    return rewrite.legalized()


def _svdf_operand_bounds(checked_node: CheckedNode) -> Constants:
    """Return the bounds of weights and biases. They must be constants if the attributes bound the sums to 32 bits.

    If the attributes do not bound the sums, weights may be computed at run time, because the sums may wrap around."""
    known = OperandBounds(NumberUse.TERM, INT32_MIN, INT32_MAX)
    fits = [checked_node.attrs[name] <= INT32_MAX for name in ("feature_bound", "bound")]
    return {1 + k: known if fits[k // 2] else INT32 for k in range(4)}


def _qsvdf_error_message(checked_node: CheckedNode) -> str:
    """Return a message if operands have unsupported dtypes, or if sums exceed the bounds in the attributes, else an
    empty string."""
    attrs, (data, *operand_types) = checked_node.attrs, checked_node.types
    dtypes_ = [tensor_type.dtype for tensor_type in (data, *operand_types)]
    if dtypes_[:3] != ["int8", "int8", "int32"] or dtypes_[3] not in ("int8", "int16") or dtypes_[4] != "int32":
        return (
            f"operands have unsupported dtypes; got {', '.join(dtypes_)}, expected int8, int8, int32, int8 or int16, "
            "int32 and a state of int8 or int16"
        )
    if dtypes_[5] not in ("int8", "int16"):
        return f"the state has an unsupported dtype; got {dtypes_[5]}, expected int8 or int16"
    for name, position, rank, reach in (("feature_bound", 1, 1, data), ("bound", 3, attrs["rank"], operand_types[-1])):
        weights, bias = (checked_node.data[position + k] for k in (0, 1))
        if attrs[name] > INT32_MAX or weights is None or bias is None:
            continue
        low, high = dtypes.int_range(reach.dtype)
        rows = weights.reshape(-1, rank * weights.shape[1]).astype(np.int64)
        terms = bias.reshape(-1).astype(np.int64)
        above = int((np.maximum(rows * low, rows * high).sum(axis=1) + np.maximum(terms, 0)).max(initial=0))
        below = int((np.minimum(rows * low, rows * high).sum(axis=1) + np.minimum(terms, 0)).min(initial=0))
        if max(above, -below) > INT32_MAX:
            return f"partial sums can overflow int32; got up to {max(above, -below)}, expected at most {INT32_MAX}"
        whole = np.abs(
            np.stack([np.maximum(rows * low, rows * high), np.minimum(rows * low, rows * high)]).sum(axis=2) + terms
        )
        if int(whole.max(initial=0)) > attrs[name]:
            return f"sums exceed {name}; got up to {whole.max()}, expected at most {attrs[name]}"
    return ""


def _make_qsvdf_test_cases() -> Iterable[Case]:
    rng = np.random.default_rng(7)
    for state_dtype, zero_state in (("int16", 0), ("int8", 3)):
        for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
            for batch, depth, filters, memory, rank in SHAPES:
                low, high = dtypes.int_range(state_dtype)
                shapes = ((batch, depth), (filters, depth), (filters,), (filters, memory), (filters // rank,), ())
                dtype_names = ("int8", "int8", "int32", state_dtype, "int32")
                spans = ((-128, 127), (-127, 127), (-999, 999), (low // 64, high // 64), (-4000, 4000))
                arrays = [
                    rng.integers(a, b, shape, endpoint=True).astype(dtype)
                    for shape, dtype, (a, b) in zip(shapes, dtype_names, spans, strict=False)
                ]
                state = rng.integers(low, high, (batch, filters * memory), endpoint=True).astype(state_dtype)
                arrays.append(state)
                shift = -2 if state_dtype == "int16" else -6
                attrs: dict[str, Attr] = {"rank": rank, "state_zero_point": zero_state, "rounding": rounding}
                attrs |= {"feature_bound": INT32_MAX, "feature_multiplier": 1518500250, "feature_shift": shift}
                attrs |= {"bound": INT32_MAX, "multiplier": 1234567890, "shift": -10 if state_dtype == "int16" else -3}
                attrs |= {"zero_point": -5, "minimum": -128, "maximum": 127, "out_dtype": "int8"}
                types = tuple(TensorType(array.shape, array.dtype.name) for array in arrays)
                yield Case(attrs, types, (1, 2, 3, 4), tuple(arrays), name=f"{state_dtype} {rounding} {shapes[1]}")


QSVDF = OpDef(
    "qsvdf",
    attrs={
        "rank": integer("number of filters of a unit", least=1),
        "feature_multiplier": mantissa("of the first product, Q0.31"),
        "feature_shift": exponent("its exponent"),
        "feature_bound": integer("the largest of its sums", least=0),
        "state_zero_point": integer("of the state"),
        **SCALED,
        "bound": integer("the largest of the second sums", least=0),
        **STORED,
        "rounding": MULTIPLIER_ROUNDING,
    },
    infer=_infer_qsvdf_types,
    reference=_evaluate_qsvdf_reference,
    compute=_compute_qsvdf,
    cases=_make_qsvdf_test_cases,
    constants=_svdf_operand_bounds,
    sound=(stored_range_error_message, make_zero_point_range_check("state_zero_point", 5), _qsvdf_error_message),
    macs=count_svdf_macs,
    operand_names=("data", "weights", "feature_bias", "time_weights", "bias", "state"),
)


# ---- SVDF: a dense layer over time whose weights are factored, so that one time step computes one new feature per filter.
#
# Data (B, D), feature weights (F, D), time weights (F, M), bias (F / rank), state (B, F * M): the last M features of every
# filter, oldest first. A time step drops the oldest feature, appends the new one, and multiplies features by time weights; the
# products are summed over time and over the ``rank`` filters of an output unit. The new state is the second output. The
# quantised operator is ``qsvdf`` above.
#
# Source: TFLite Micro ``svdf_common.cc`` (EvalFloatSvdfReference).


def _infer_svdf_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].dtype != "float32" and types[0].quant is None:
        raise ModelError(
            f"svdf: the data have an unsupported dtype; got {types[0].dtype}, expected float32 or quantised integers"
        )
    return infer_svdf_types(attrs, types)


def _evaluate_svdf_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, weights, time, bias, state = (np.asarray(array, np.float64) for array in arrays)
    old = state.reshape(len(data), *time.shape)
    total, memory = advance_svdf_state(old, data @ weights.T, time, bias, attrs["rank"])
    return total.astype(np.float32), memory.reshape(state.shape).astype(np.float32)


def _compute_svdf(call: OpCall) -> tuple[te.Tensor, ...]:
    x, weights, time, bias, state = reshaped_operand_tensors(call)
    new = build_features(call, x, weights, "float32")
    memory = build_new_state(call, state, lambda b, f: new[b, f])
    return sum_over_time(call, memory, time, bias, "float32"), memory


def _legalize_svdf(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a quantised ``svdf`` to ``qsvdf``; split a fused activation from a float ``svdf``."""
    return legalize_to_qsvdf(node, graph) if is_quantised(node, graph) else _split_svdf_activation(node, graph)


def _split_svdf_activation(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a float ``svdf`` with an activation to an ``svdf`` without one, followed by the activation; return None
    if there is none."""
    activation = str(node.attr("activation"))
    if not activation:
        return None
    rewrite = Rewrite(node, graph)
    tensor_type = graph.types[node.outputs[0]]
    linear = rewrite.add_value("linear", tensor_type.shape, tensor_type.dtype)
    rewrite.emit("svdf", node.inputs, (linear, node.outputs[1]), {**node.attrs, "activation": ""})
    emit_activation(rewrite, activation, linear, node.outputs[0])
    return rewrite.legalized()


def _make_svdf_test_cases() -> Iterable[Case]:
    for batch, depth, filters, memory, rank in SHAPES:
        shapes = ((batch, depth), (filters, depth), (filters, memory), (filters // rank,), (batch, filters * memory))
        attrs: dict[str, Attr] = {"rank": rank, "activation": "", "rounding": Rounding.DOUBLE}
        yield Case(attrs, tuple(TensorType(s, "float32") for s in shapes), consts=(1, 2, 3), tolerance=2e-5)


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "svdf",
        infer=_infer_svdf_types,
        reference=_evaluate_svdf_reference,
        compute=_compute_svdf,
        cases=_make_svdf_test_cases,
        attrs={"rank": integer("number of filters of a unit", least=1), **ACTIVATED, "dynamic": DYNAMIC},
        legalize=_legalize_svdf,
        macs=count_svdf_macs,
        operand_names=("data", "weights", "time_weights", "bias", "state"),
    ),
    QSVDF,
)
