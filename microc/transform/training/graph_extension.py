# SPDX-License-Identifier: Apache-2.0
"""A network under construction, to which losses, gradients and steps of an optimiser append nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from microc.base.dtypes import Array
from microc.graph.ir import Attr, Graph, Loc, NameSet, Node, TensorType
from microc.ops import registry


class GraphExtension:
    """Graph under construction: the nodes of a network, then those that arithmetic on values appends.

    It is the :class:`microc.ops.gradients.call.NodeEmitter` of such values. ``subject``: the stem of the names of new
    nodes and constants, and their location. ``reserved``: names that new values do not get."""

    def __init__(self, graph: Graph, subject: str, reserved: Iterable[str] = ()) -> None:
        self.graph = graph
        self.subject = subject
        self.nodes = list(graph.nodes)
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.names = NameSet([*graph.types, *reserved])
        self._constant_stem = f"{subject}.constant"

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> str:
        """Append a node; return the name of its result."""
        return self._append_node(op, inputs, attrs, f"{self.subject}.{op}", self.graph.location_of_input(self.subject))

    def _append_node(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], stem: str, loc: Loc) -> str:
        """Append a node at a location; return the name of its result, which is new and made from ``stem``."""
        whole = {**registry.get(op).defaults, **attrs}
        (result_type,) = registry.infer(op, whole, [self.types[name] for name in inputs])
        name = self.names.fresh(stem)
        self.types[name] = result_type
        self.nodes.append(Node(op, tuple(inputs), (name,), whole, loc))
        return name

    def add_constant(self, data: Array) -> str:
        """Add a constant; return its name."""
        name = self.names.fresh(self._constant_stem)
        self.types[name], self.consts[name] = TensorType(data.shape, data.dtype.name), data
        return name

    def type(self, name: str) -> TensorType:
        """Return the type of a value."""
        return self.types[name]
