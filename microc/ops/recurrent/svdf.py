"""SVDF: a dense layer over time whose weights are factored, so that one step takes one new feature per filter.

Data (B, D), feature weights (F, D), time weights (F, M), bias (F / rank), state (B, F * M): the last M features of every filter,
oldest first. A step drops the oldest, appends the new one, and sums features by time weights over the rank filters of a unit.
The new state is an output of its own. The quantised form is in ``svdf_fixed.py``.

Source: TFLite Micro ``svdf_common.cc`` (EvalFloatSvdfReference).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.arith import Rewrite, is_quantised
from microc.ops.attributes import ACTIVATED, DYNAMIC, integer
from microc.ops.recurrent.svdf_fixed import QSVDF, legalize_quantised
from microc.ops.recurrent.svdf_parts import SHAPES, check_shapes, feature, following, macs, stepped, summed, tensors
from microc.ops.registry import Case, Legalized, OpCall, OpDef
from microc.ops.rounding import Rounding
from microc.ops.surface import emit_activation


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].dtype != "float32" and types[0].quant is None:
        raise ModelError(f"svdf of {types[0].dtype}")
    return check_shapes(attrs, types)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, weights, time, bias, state = (np.asarray(array, np.float64) for array in arrays)
    old = state.reshape(len(data), *time.shape)
    total, memory = stepped(old, data @ weights.T, time, bias, attrs["rank"])
    return total.astype(np.float32), memory.reshape(state.shape).astype(np.float32)


def _compute(call: OpCall) -> tuple[te.Tensor, ...]:
    x, weights, time, bias, state = tensors(call)
    new = feature(call, x, weights, "float32")
    memory = following(call, state, lambda b, f: new[b, f])
    return summed(call, memory, time, bias, "float32"), memory


def _legalize(node: Node, graph: Graph) -> Legalized | None:
    return legalize_quantised(node, graph) if is_quantised(node, graph) else _split_activation(node, graph)


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


def _cases() -> Iterable[Case]:
    for batch, depth, filters, memory, rank in SHAPES:
        shapes = ((batch, depth), (filters, depth), (filters, memory), (filters // rank,), (batch, filters * memory))
        attrs: dict[str, Attr] = {"rank": rank, "activation": "", "rounding": Rounding.DOUBLE}
        yield Case(attrs, tuple(TensorType(s, "float32") for s in shapes), consts=(1, 2, 3), tolerance=2e-5)


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "svdf",
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        attrs={"rank": integer("filters of a unit", least=1), **ACTIVATED, "dynamic": DYNAMIC},
        legalize=_legalize,
        macs=macs,
        operand_names=("data", "weights", "time_weights", "bias", "state"),
    ),
    QSVDF,
)
