# SPDX-License-Identifier: Apache-2.0
"""Graph verification: :func:`verify` checks the rules that every pass must preserve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from microc.base import dtypes
from microc.errors import InternalError, MicrocError, ModelError
from microc.graph.ir import Graph, Node, TensorType

Infer = Callable[[str, Mapping[str, Any], Sequence[TensorType]], Sequence[TensorType]]
Fault = Callable[[Node, Graph, Mapping[str, Node]], str]


def verify(graph: Graph, infer: Infer | None = None, where: str = "", constants: Fault | None = None) -> None:
    """Raise :class:`InternalError` unless ``graph`` is well-formed. ``where``: name of the pass that made it, for the
    error.

    These rules are checked. Names are defined once and before use, so there are no cycles. Every name has a type, and
    the data of constants have their type. Inputs are not computed; outputs and state updates are defined. Every group
    of nodes can run as one kernel.

    If ``infer`` is given, the types of all results are compared in shape and dtype with ``infer(op, attributes, types
    of the inputs that are present)``. If ``constants`` is given, ``constants(node, graph, nodes by the values that they
    compute)`` returns the problem of a node whose constant operands are invalid as indices, shifts and the like, or an
    empty string. Such a problem raises :class:`ModelError`, because the model contains these numbers."""
    _Verifier(graph, infer, where).check_graph()
    if constants is not None:
        producers = graph.producer()
        for node in graph.nodes:
            if wrong := constants(node, graph, producers):
                raise ModelError(f"{node.op}: {wrong}", where=str(node.loc))


class _Verifier:
    """Verifier of one graph. ``defined``: names of the values that the nodes checked so far have defined."""

    def __init__(self, graph: Graph, infer: Infer | None, where: str) -> None:
        self.graph, self.infer, self.where = graph, infer, where
        self.defined: set[str] = set()

    def check_graph(self) -> None:
        """Check all rules, in the order in which they depend on each other."""
        self.check_inputs_constants_and_states()
        for name, kind in self.graph.types.items():
            self.check_type(name, kind)
        for node in self.graph.nodes:
            self.check_node(node)
        self.check_outputs_and_updates()
        self.check_groups_are_convex()

    def fail(self, problem: str, node: Node | None = None) -> NoReturn:
        """Raise the InternalError for a problem of ``node``, or of the graph if it is None."""
        place = f"{node.op} at {node.loc}" if node is not None else f"graph {self.graph.name}"
        raise InternalError(problem, where=f"{place}, after {self.where}" if self.where else place)

    def record_definitions(self, names: Iterable[str], role: str, node: Node | None = None) -> None:
        """Record that the values ``names`` are defined. InternalError if a name is empty, already defined or has no
        type."""
        for name in names:
            if not name:
                self.fail(f"{role} has an empty name", node)
            if name in self.defined:
                self.fail(f"{role} {name!r} is defined twice", node)
            if name not in self.graph.types:
                self.fail(f"{role} {name!r} has no type", node)
            self.defined.add(name)

    def check_inputs_constants_and_states(self) -> None:
        """Check that inputs, constants and state are defined once and have types, and that their data match these
        types."""
        graph = self.graph
        self.record_definitions(graph.inputs, "input")
        self.record_definitions(graph.consts, "constant")
        self.record_definitions(graph.state, "state")
        for name, array in (*graph.consts.items(), *graph.state.items()):
            kind = graph.types[name]
            if (array.shape, str(array.dtype)) != (kind.shape, kind.dtype):
                self.fail(f"{name!r} is {_format_type(kind)}, but its data are {array.dtype}{list(array.shape)}")

    def check_type(self, name: str, kind: TensorType) -> None:
        """Check the type of the value ``name``: its dtype, shape and quantisation parameters."""
        if not dtypes.is_valid(kind.dtype) or any(extent < 0 for extent in kind.shape):
            self.fail(f"{name!r} has the invalid type {_format_type(kind)}")
        quant = kind.quant
        if quant is None:
            return
        scales = np.asarray(quant.scale, np.float32)
        if not (np.isfinite(scales) & (scales > 0)).all():
            self.fail(f"{name!r}, {_format_type(kind)}, has a scale that is not a positive float32")
        if dtypes.is_integer(kind.dtype):
            low, high = dtypes.int_range(kind.dtype)
            if not all(low <= zero <= high for zero in quant.zero_point):
                self.fail(f"{name!r}, {_format_type(kind)}, has a zero point outside of the range of its dtype")
        if quant.axis is None:
            return
        if not 0 <= quant.axis < len(kind.shape) or kind.shape[quant.axis] != len(quant.scale):
            self.fail(
                f"{name!r}, {_format_type(kind)}, has {len(quant.scale)} scales along axis {quant.axis}, "
                "expected one for each index"
            )

    def check_node(self, node: Node) -> None:
        """Check that a node's operands are defined, that its results are new, and that inference yields the results'
        types."""
        for name in node.inputs:
            if name and name not in self.defined:
                self.fail(f"operand {name!r} is not defined before its use", node)
        self.record_definitions([name for name in node.outputs if name], "result", node)
        if self.infer is not None:
            self.check_inferred_types(node, self.infer)

    def check_inferred_types(self, node: Node, infer: Infer) -> None:
        """Check that the types of a node's results equal the types that ``infer`` returns, in shape and dtype."""
        try:
            wanted = infer(node.op, node.attrs, [self.graph.types[name] for name in node.inputs if name])
        except MicrocError as error:
            self.fail(f"type inference fails: {error.what}", node)
        if len(wanted) != len(node.outputs):
            self.fail(f"wrong number of results; got {len(node.outputs)}, expected {len(wanted)}", node)
        for name, kind in zip(node.outputs, wanted, strict=True):
            mine = self.graph.types[name] if name else kind
            chosen = mine.quant is not None  # a quantised result has the dtype that the model gives it
            if mine.shape != kind.shape or not (chosen or mine.dtype == kind.dtype):
                self.fail(
                    f"result {name!r} has a wrong type; got {_format_type(mine)}, expected {_format_type(kind)}", node
                )

    def check_outputs_and_updates(self) -> None:
        """Check that outputs exist and are distinct, and that every state has an update of its shape and dtype."""
        graph = self.graph
        for name in graph.outputs:
            if name not in self.defined:
                self.fail(f"output {name!r} is not defined")
        if len(set(graph.outputs)) != len(graph.outputs):
            self.fail("an output is listed twice")
        if set(graph.updates) != set(graph.state):
            self.fail(
                f"every state needs one update; got states {sorted(graph.state)}, updates of {sorted(graph.updates)}"
            )
        for name, value in graph.updates.items():
            if value not in self.defined:
                self.fail(f"{value!r}, the update of state {name!r}, is not defined")
            old, new = graph.types[name], graph.types[value]
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                self.fail(
                    f"the update of state {name!r} has a wrong type; got {_format_type(new)}, "
                    f"expected {_format_type(old)}"
                )

    def check_groups_are_convex(self) -> None:
        """Check that every group of nodes (the nodes of one kernel) is convex.

        A group runs at the position of its last node. So all of its operands must be computed before this position, and
        all nodes that read its results must follow."""
        graph = self.graph
        last = {node.group: position for position, node in enumerate(graph.nodes) if node.group}
        ready = {*graph.inputs, *graph.consts, *graph.state}
        waiting: dict[str, list[Node]] = {}
        for position, node in enumerate(graph.nodes):
            waiting.setdefault(node.group, []).append(node)
            if node.group and last[node.group] != position:
                continue
            for member in waiting.pop(node.group):
                missing = [name for name in member.inputs if name and name not in ready]
                if missing:
                    of = f"group {node.group!r} runs" if member.group else "the node runs"
                    self.fail(f"{of} before {missing[0]!r} is computed: a group of nodes is not convex", member)
                ready.update(member.outputs)


def _format_type(kind: TensorType) -> str:
    return f"{kind.dtype}{list(kind.shape)}"
