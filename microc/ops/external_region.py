# SPDX-License-Identifier: Apache-2.0
"""Operator ``external``: a region of the network that external code computes, such as a vendor's library or accelerator
compiler. The attribute ``body`` is the region's graph; it defines the result.

Frontends never create this operator; :mod:`microc.external.partition` replaces regions of a graph by it. Where the
external code is not available, as in the host build that a board is compared with, the compiler lowers the body itself,
as it lowers the graphs of control flow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import names, subgraph
from microc.ops.control import evaluate_graph, format_types, graph_macs, one_operator_graph
from microc.ops.registry import Case, OpDef

EXTERNAL = "external"
"""Name of the operator."""


def _infer_external_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    body = attrs["body"]
    inside = [body.types[name] for name in body.inputs]
    if [(t.shape, t.dtype) for t in inside] != [(t.shape, t.dtype) for t in types] or body.state:
        raise ModelError(
            f"external: graph {body.name} has inputs of other types than the operands; got {format_types(inside)}, "
            f"expected {format_types(types)}" + (" and no state" if body.state else "")
        )
    return tuple(TensorType(body.types[name].shape, body.types[name].dtype) for name in body.outputs)


def _evaluate_external_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return tuple(np.asarray(array) for array in evaluate_graph(attrs["body"], arrays))


def _count_external_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return graph_macs(attrs["body"])


def _make_external_test_cases() -> Iterable[Case]:
    tensor_type = TensorType((2, 3), "float32")
    yield Case({"body": one_operator_graph("relu", tensor_type), "code": ("somebody", "0")}, (tensor_type,))


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        EXTERNAL,
        infer=_infer_external_types,
        reference=_evaluate_external_reference,
        cases=_make_external_test_cases,
        attrs={
            "body": subgraph("what the code computes: of the operands -> the results"),
            "code": names("whose code it is, and the region's number"),
        },
        macs=_count_external_macs,
        regions=("body",),
    ),
)
