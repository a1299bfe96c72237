# SPDX-License-Identifier: Apache-2.0
"""Gradients of a graph, in reverse mode: the nodes of the gradients are appended to those of the network.

Each operator declares a rule (``OpDef.gradient``), which builds the gradients of its operands from those of its results
out of ordinary operators. The order is:

1. Nodes between the values of interest and the loss are prepared: loops and recurrent layers are unrolled, composed
   operators are expanded, fused activations are split off.
2. All prepared nodes are checked, so that an error names every operator without a rule at once.
3. From the loss backwards, the gradients of each node's results are summed and given to its rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError, UnsupportedError, UsageError, similar_names_hint
from microc.graph.ir import Attr, Graph, Node, TensorType, verify
from microc.ops import registry
from microc.ops.arithmetic import split_activation
from microc.ops.gradients.call import GradientCall, Value
from microc.transform.training.graph_extensions import GraphExtension

SUFFIX = ".gradient"
"""Suffix of the names of outputs that are gradients."""


def gradient_name(name: str) -> str:
    """Return the name of the output that is the gradient of the loss by the value ``name``."""
    return name + SUFFIX


def append_gradients(graph: Graph, loss: str, of: Sequence[str]) -> Graph:
    """Return the graph with further outputs: the value ``loss``, unless it is an output, and its gradients by the values
    ``of``, in this order.

    ``loss``: a float value of one element. ``of``: inputs, constants, states or computed values, of floats; the gradient
    of each has its type and the name :func:`gradient_name`. Raises UsageError for an unknown name, a loss that is no
    float of one element, a value that is no float, and a value on which the loss does not depend. Raises
    UnsupportedError for operators without a gradient, which it lists all, and for quantised operators between a value
    and the loss."""
    if len(set(of)) != len(of) or not of:
        raise UsageError(
            f"gradient: the values must be named once each; got {', '.join(of) or 'none'}",
            where=graph.name,
            hint="name one value at least",
        )
    _check_loss(graph, loss)
    graph = _prepare_nodes(graph, loss, of)
    for name in of:
        _check_value(graph, name)
    active = _find_active_nodes(graph, loss, of)
    for name in of:
        if name != loss and not any(name in node.inputs for node in active):
            raise UsageError(
                f"gradient: {loss!r} does not depend on {name!r}",
                where=graph.name,
                hint="name values that the loss is computed from",
            )
    _check_rules(graph, active)
    builder = _GradientBuilder(graph, of)
    builder.differentiate(loss, active)
    result = builder.finish(loss, of)
    verify(result, registry.infer_node_types, "gradient", registry.node_constant_error_message)
    return result


# ---- Checks of names and operators.


def _check_loss(graph: Graph, loss: str) -> None:
    loss_type = graph.types.get(loss)
    if loss_type is None:
        raise UsageError(
            f"gradient: there is no value {loss!r}",
            where=graph.name,
            hint=similar_names_hint(loss, graph.types) or "microc.add_loss appends a loss to a network",
        )
    if loss_type.size != 1 or not dtypes.is_float(loss_type.dtype):
        raise UsageError(
            f"gradient: the loss {loss!r} is not a single float; got {loss_type.dtype} {loss_type.shape}",
            where=graph.name,
            hint="append a loss by microc.add_loss, or reduce the value by sum or mean",
        )


def _check_value(graph: Graph, name: str) -> None:
    value_type = graph.types.get(name)
    if value_type is None:
        raise UsageError(
            f"gradient: there is no value {name!r}",
            where=graph.name,
            hint=similar_names_hint(name, graph.types) or "list all tensors: microc check MODEL --tensors",
        )
    if not dtypes.is_float(value_type.dtype):
        raise UsageError(
            f"gradient: {name!r} is no float; got {value_type.dtype}, expected float32 or float64",
            where=graph.name,
            hint="integers have no gradient: load the model before it was quantised",
        )


def _check_rules(graph: Graph, active: Sequence[Node]) -> None:
    """Raise UnsupportedError if a node between a value and the loss is quantised, or if its operator has no gradient."""
    for node in active:
        quantised = [name for name in (*node.inputs, *node.outputs) if name and graph.types[name].is_quantised]
        if quantised:
            raise UnsupportedError(
                f"{node.op}: a quantised operator has no gradient; got {graph.types[quantised[0]].dtype} {quantised[0]!r}",
                where=str(node.loc),
                hint="name values behind the quantised part, or load the model before it was quantised",
            )
    missing = Counter(node.op for node in active if registry.get(node.op).gradient is None)
    if missing:
        listed = ", ".join(op if count == 1 else f"{op} ({count} times)" for op, count in sorted(missing.items()))
        first = next(node for node in active if node.op in missing)
        raise UnsupportedError(
            f"operators without a gradient: {listed}",
            where=str(first.loc),
            hint="declare OpDef.gradient: for microc's operators in microc/ops, for a plugin's in the plugin; or name "
            "values behind them",
        )


# ---- Nodes between the values and the loss.


def _find_active_nodes(graph: Graph, loss: str, of: Collection[str]) -> list[Node]:
    """Return the nodes through which ``loss`` depends on a value of ``of``, in the order of the graph.

    Values that are plain integers or bools (indices, conditions) end the dependence: they are constant almost
    everywhere."""
    needed, dependent = {loss}, set(of)
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(filter(None, node.inputs))
    active = []
    for node in graph.nodes:
        results = [name for name in node.outputs if name in needed and _carries_gradient(graph.types[name])]
        if results and dependent.intersection(node.inputs):
            active.append(node)
            dependent.update(results)
    return [node for node in active if needed.intersection(node.outputs)]


def _carries_gradient(value_type: TensorType) -> bool:
    """Test whether gradients pass through a value: a float, or a quantised integer, which stands for one and is
    refused."""
    return dtypes.is_float(value_type.dtype) or value_type.quant is not None


def _prepare_nodes(graph: Graph, loss: str, of: Sequence[str]) -> Graph:
    """Unroll loops, expand composed operators and split activations off, of the nodes between ``of`` and ``loss``.

    Names that the graph does not have may be constants in the bodies of loops. Then the loss depends on all nodes from
    which it is computed."""
    while True:
        known = set(of) <= graph.types.keys()
        start = of if known else (*graph.inputs, *graph.state, *graph.consts)
        replaced = {}
        for node in _find_active_nodes(graph, loss, start):
            definition = registry.get(node.op)
            rewrite = definition.unroll or definition.expand or split_activation
            if (changed := rewrite(node, graph)) is not None:
                replaced[id(node)] = changed
        if not replaced:
            return graph
        types, consts = dict(graph.types), dict(graph.consts)
        nodes: list[Node] = []
        for node in graph.nodes:
            if id(node) not in replaced:
                nodes.append(node)
                continue
            new_nodes, new_types, new_consts = replaced[id(node)]
            nodes += new_nodes
            types |= new_types
            consts |= new_consts
        kept = {name: consts[name] for name in of if name in consts}
        graph = graph.with_nodes(nodes, types=types, consts=consts)
        graph = replace(
            graph,
            types={**graph.types, **{name: types[name] for name in kept}},
            consts={**graph.consts, **kept},
        )


# ---- Reverse accumulation.


class _GradientBuilder(GraphExtension):
    """Graph under construction: the nodes of the network, then those of the gradients. Equal constants are added once.

    ``of``: the values whose gradients are wanted."""

    def __init__(self, graph: Graph, of: Sequence[str]) -> None:
        super().__init__(graph, "gradient", map(gradient_name, of))
        self._constant_names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._node: Node | None = None
        self._parts: dict[str, list[Value]] = {}
        self._wanted = set(of)

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> tuple[str, ...]:
        """Append a node at the location of the node that is differentiated; return the names of its results."""
        loc = self._node.loc if self._node is not None else self.graph.location_of_input(self.graph.name)
        stem = next(filter(None, self._node.outputs)) if self._node is not None else "loss"
        return self._append_node(op, inputs, attrs, stem + SUFFIX, loc)

    def add_constant(self, data: Array) -> str:
        """Add a constant, or return the name of an equal one that was added before."""
        key = (data.dtype.str, data.shape, data.tobytes())
        if key not in self._constant_names:
            self._constant_names[key] = super().add_constant(np.ascontiguousarray(data).reshape(data.shape))
        return self._constant_names[key]

    def differentiate(self, loss: str, active: Sequence[Node]) -> None:
        """Append the gradients of ``loss`` by the operands of all ``active`` nodes."""
        dependent = {name for node in active for name in node.outputs if name} | self._wanted
        one = Value(self, loss).constant(np.ones(self.types[loss].shape))
        self._parts[loss] = [one]
        for node in reversed(active):
            if any(name in self._parts for name in node.outputs):
                self._differentiate_node(node, dependent)

    def _differentiate_node(self, node: Node, dependent: Collection[str]) -> None:
        rule = registry.get(node.op).gradient
        assert rule is not None
        self._node = node
        results = [name for name in node.outputs if name]
        wanted = frozenset(
            k for k, name in enumerate(node.inputs) if name in dependent and dtypes.is_float(self.types[name].dtype)
        )
        call = GradientCall(
            node,
            self.graph,
            tuple(Value(self, name) if name else None for name in node.inputs),
            tuple(Value(self, name) for name in results),
            tuple(self._total(name) for name in results),
            wanted,
        )
        gradients = rule(call)
        for position in sorted(wanted):
            gradient = gradients[position] if position < len(gradients) else None
            if gradient is None:
                continue
            operand, expected = node.inputs[position], self.types[node.inputs[position]]
            if (gradient.shape, gradient.dtype) != (expected.shape, expected.dtype):
                raise InternalError(
                    f"{node.op}: the gradient of operand {position} has a wrong type; got {gradient.dtype} "
                    f"{gradient.shape}, expected {expected.dtype} {expected.shape}",
                    where=str(node.loc),
                )
            self._parts.setdefault(operand, []).append(gradient)

    def _total(self, name: str) -> Value | None:
        """Return the sum of the gradients by ``name`` from all nodes that read it; None if there is none."""
        parts = self._parts.get(name, [])
        while len(parts) > 1:
            parts[:2] = [parts[0] + parts[1]]
        return parts[0] if parts else None

    def finish(self, loss: str, of: Iterable[str]) -> Graph:
        """Return the graph with the loss and the gradients by the values ``of`` as its last outputs."""
        outputs = list(self.graph.outputs)
        if loss not in outputs:
            outputs.append(loss)
        self._node = None
        for name in of:
            total = self._total(name)
            value_type = self.types[name]
            if total is None:  # all paths from the value to the loss pass functions that are constant almost everywhere
                total = Value(self, name).constant(0.0).broadcast_to(value_type.shape)
            output = gradient_name(name)
            self.types[output] = TensorType(value_type.shape, value_type.dtype)
            loc = self.graph.location_of_input(output)
            self.nodes.append(Node("reshape", (total.name,), (output,), {"shape": value_type.shape}, loc))
            outputs.append(output)
        unfinished = replace(self.graph, outputs=tuple(outputs), types=self.types, consts=self.consts)
        return unfinished.with_nodes(self.nodes)
