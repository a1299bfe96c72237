# SPDX-License-Identifier: Apache-2.0
"""Losses of a network: functions of its output and of labels, appended to the graph as an input and an output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import UsageError, known_names_hint
from microc.graph.ir import Attr, Graph, Loc, NameSet, Node, TensorType
from microc.ops import registry
from microc.ops.gradients.call import Value


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


CROSS_ENTROPY = "cross_entropy"
"""Name of the loss of classes."""
LABELS, LOSS = "labels", "loss"
"""Names of the input and of the output that a loss adds, unless the graph has values of these names."""


class _LossBuilder(GraphExtension):
    """Graph under construction: the nodes of the network, then those of the loss."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, LOSS)

    def add_labels(self, shape: tuple[int, ...], dtype: str) -> Value:
        """Add the input of the labels."""
        name = self.names.fresh(LABELS)
        self.types[name] = TensorType(shape, dtype)
        return Value(self, name)

    def skip_function(self, output: str, *functions: str) -> tuple[Value, str]:
        """Return the operand of the function that computes ``output``, and its operator, if it is one of ``functions``;
        else ``output`` itself and an empty string.

        Reshapes between the function and the output are passed. A softmax must be over the last axis."""
        name, producers = output, self.graph.producer()
        while name in producers and producers[name].op == "reshape":
            name = producers[name].inputs[0]
        node = producers.get(name)
        shape = self.types[output].shape
        if node is None or node.op not in functions or self.types[name].shape != shape:
            return Value(self, output), ""
        if node.op == "softmax" and (node.attr("axis") % len(shape) != len(shape) - 1 or node.attr("beta") != 1.0):
            return Value(self, output), ""
        return Value(self, node.inputs[0]), node.op


def _build_cross_entropy(builder: _LossBuilder, output: str) -> tuple[Value, Value]:
    """Return labels (int32, one class for each row) and the mean of -log softmax(logits)[label].

    The logits are the operand of the softmax or log_softmax that computes the output, else the output itself."""
    logits, _ = builder.skip_function(output, "softmax", "log_softmax")
    *rows, classes = logits.shape
    labels = builder.add_labels(tuple(rows), "int32")
    numbers = logits.constant(np.arange(classes), "int32")
    chosen = labels.reshape((*rows, 1)).equals(numbers)
    picked = chosen.select(logits.apply("log_softmax"), 0.0)
    count = int(np.prod(rows, dtype=int))
    return labels, picked.sum(range(len(logits.shape))) * (-1.0 / count)


def _build_binary_cross_entropy(builder: _LossBuilder, output: str) -> tuple[Value, Value]:
    """Return labels (floats 0..1 of the output's shape) and the mean of softplus(x) - x label, for logits x.

    The logits are the operand of the sigmoid that computes the output, else the output itself."""
    logits, _ = builder.skip_function(output, "sigmoid")
    labels = builder.add_labels(logits.shape, logits.dtype)
    return labels, _mean(logits.apply("softplus") - logits * labels)


def _build_mean_squared_error(builder: _LossBuilder, output: str) -> tuple[Value, Value]:
    """Return labels (floats of the output's shape) and the mean of the squared differences."""
    value = Value(builder, output)
    labels = builder.add_labels(value.shape, value.dtype)
    return labels, _mean(value.apply("squared_difference", labels))


def _mean(value: Value) -> Value:
    return value.apply("mean", axes=tuple(range(len(value.shape))), keepdims=False) if value.shape else value


LOSSES: Mapping[str, Callable[[_LossBuilder, str], tuple[Value, Value]]] = MappingProxyType(
    {
        CROSS_ENTROPY: _build_cross_entropy,
        "binary_cross_entropy": _build_binary_cross_entropy,
        "mean_squared_error": _build_mean_squared_error,
    }
)
"""Losses by name: functions that append the loss of an output and return the labels and the loss."""


def append_loss(graph: Graph, kind: str, output: str = "") -> Graph:
    """Return the graph with the input ``labels`` and the output ``loss``, a float of shape ().

    ``kind``: ``cross_entropy`` (labels int32, the class of each row of the output), ``binary_cross_entropy`` (labels
    from 0 to 1 of the output's shape) or ``mean_squared_error`` (labels of the output's shape). All are means over the
    elements, or over the rows. The first two start from logits: a softmax, log_softmax or sigmoid that computes the
    output is passed by, because the loss of the logits is exact where probabilities are rounded to 0 or 1. ``output``:
    the float value that is compared with the labels; by default the only output. Raises UsageError if a name or the
    output's type is wrong."""
    if kind not in LOSSES:
        raise UsageError(
            f"loss: there is no loss {kind!r}", where=graph.name, hint=known_names_hint(kind, LOSSES, "losses")
        )
    if not output and len(graph.outputs) != 1:
        raise UsageError(
            f"loss: the network has several outputs; got {', '.join(graph.outputs)}",
            where=graph.name,
            hint="name the one that is compared with the labels: output=...",
        )
    output = output or graph.outputs[0]
    value_type = graph.types.get(output)
    if value_type is None or not dtypes.is_float(value_type.dtype) or (kind == CROSS_ENTROPY and not value_type.shape):
        got = "no such value" if value_type is None else f"{value_type.dtype} {value_type.shape}"
        raise UsageError(
            f"loss: {output!r} is no value that {kind} takes; got {got}, expected floats",
            where=graph.name,
            hint="name a float value, in front of the last quantize",
        )
    builder = _LossBuilder(graph)
    labels, total = LOSSES[kind](builder, output)
    loss = builder.names.fresh(LOSS)
    builder.types[loss] = TensorType((), total.dtype)
    builder.nodes.append(Node("reshape", (total.name,), (loss,), {"shape": ()}, graph.location_of_input(LOSS)))
    return Graph(
        graph.name,
        (*graph.inputs, labels.name),
        (*graph.outputs, loss),
        (),
        builder.types,
        builder.consts,
        graph.state,
        graph.updates,
    ).with_nodes(builder.nodes)
