# SPDX-License-Identifier: Apache-2.0
"""Written models in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc.base.dtypes import Array
from microc.graph.ir import Graph, Node
from microc.ops import registry
from tests.support.onnx_session import session

TIES = frozenset(("double", "single", "away"))


def frames(model: bytes, graph: Graph, inputs: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """The outputs of the runs that are given in order, each with the state that the one before left."""
    runtime, state, found = session(model), dict(graph.state), []
    for given in inputs:
        feed: Mapping[str, Array] = {**dict(zip(graph.inputs, given, strict=True)), **state}
        made = runtime.run(None, feed)
        state = dict(zip(graph.updates, made[len(graph.outputs) :], strict=True))
        found.append(made[: len(graph.outputs)])
    return found


def half_to_even(graph: Graph) -> Graph:
    """The network with its quantised numbers rounded as ONNX rounds them."""

    def rounded(node: Node) -> Node:
        known = {**registry.get(node.op).defaults, **node.attrs}.get("rounding")
        return replace(node, attrs={**node.attrs, "rounding": "even"}) if known in TIES else node

    return graph.with_nodes([rounded(node) for node in graph.nodes])
