# SPDX-License-Identifier: Apache-2.0
"""Losses and replay, which learning appends to a graph. A loss is a function of an output and of labels.

Replay works against forgetting: features of samples seen before are kept in RAM, and every step learns one of them again.

The features are the value between the frozen layers and those that learn, as int8: integers of a quantised network as they are,
floats with a scale for each sample. The buffer has a ring of slots for each class, so that rare classes stay in it
(class-balanced memory, as in https://arxiv.org/abs/1810.12448). A run

1. picks the next slot that is filled, in turn over all classes, and computes the loss of its sample by a copy of the
   layers that learn, which shares their weights;
2. puts its own sample into the slot behind the newest of its class.

The step is against the mean of both losses. Buffer and counters are state, which saved weights contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import UnsupportedError, UsageError, known_names_hint
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

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> tuple[str, ...]:
        """Append a node; return the names of its results."""
        return self._append_node(op, inputs, attrs, f"{self.subject}.{op}", self.graph.location_of_input(self.subject))

    def _append_node(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], stem: str, loc: Loc
    ) -> tuple[str, ...]:
        """Append a node at a location; return the names of its results, which are new and made from ``stem``."""
        whole = {**registry.get(op).defaults, **attrs}
        result_types = registry.infer(op, whole, [self.types[name] for name in inputs])
        names = tuple(self.names.fresh(stem) for _ in result_types)
        self.types.update(zip(names, result_types, strict=True))
        self.nodes.append(Node(op, tuple(inputs), names, whole, loc))
        return names

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


# ---- Replay.

_INT8_MAX = 127.0
_TINY = 1e-30
"""Least magnitude that features of floats are divided by, so that features of zeros have a scale."""


def append_replay(
    graph: Graph, loss: str, labels: str, parameters: Sequence[str], classes: int, slots: int
) -> tuple[Graph, str]:
    """Return the network with a replay buffer, and the name of the loss that learning descends: the mean of ``loss`` and of the
    loss of a sample from the buffer, once it has one.

    ``labels``: input of the class of the sample; ``parameters``: states that learn; ``slots``: number of samples that are
    kept of each of the ``classes``. Raises UnsupportedError for a batch of several samples, and if the layers that learn
    depend on several inputs of the network."""
    builder = _ReplayBuilder(graph, loss, labels, parameters)
    return builder.build(classes, slots)


class _ReplayBuilder(GraphExtension):
    """Graph under construction: a network with a loss, then buffer, copied layers and total loss."""

    def __init__(self, graph: Graph, loss: str, labels: str, parameters: Sequence[str]) -> None:
        super().__init__(graph, "replay")
        self._loss, self._labels = Value(self, loss), Value(self, labels)
        self._state, self._updates = dict(graph.state), dict(graph.updates)
        self._copied = self._find_learning_nodes(parameters)
        self._features = self._find_features(parameters)

    def _find_learning_nodes(self, parameters: Sequence[str]) -> list[Node]:
        """Return the nodes between parameters or labels and the loss."""
        needed, dependent = {self._loss.name}, {*parameters, self._labels.name}
        for node in reversed(self.graph.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
        found = []
        for node in self.graph.nodes:
            if needed.intersection(node.outputs) and dependent.intersection(node.inputs):
                found.append(node)
                dependent.update(node.outputs)
        return found

    def _find_features(self, parameters: Sequence[str]) -> Value:
        """Return the last value from which all that the learning layers read is computed.

        Where these layers read several values (skip connections, frozen channels), the frozen nodes between are copied, too: the
        last of them first, until a single value is left."""
        number = {name: k for k, node in enumerate(self.graph.nodes) for name in node.outputs}
        copied = {number[node.outputs[0]] for node in self._copied}
        known = {"", self._labels.name, *self.consts, *parameters}
        while True:
            inner = known | {name for k in copied for name in self.graph.nodes[k].outputs}
            names = {name for k in copied for name in self.graph.nodes[k].inputs} - inner
            last = max(names, key=lambda name: number.get(name, -1))
            if len(names) == 1 or last not in number:
                break
            copied.add(number[last])
        self._copied = [self.graph.nodes[k] for k in sorted(copied)]
        if len(names) != 1 or self.types[last].shape[:1] != (1,) or self._labels.shape != (1,):
            raise UnsupportedError(
                f"learn: replay takes one sample in a run; got {', '.join(map(str, sorted(names)))} of shape "
                f"{self.types[last].shape}",
                where=self.graph.name,
                hint="leave out replay, compile a batch of 1, or learn layers that depend on a single value",
            )
        return Value(self, last)

    def build(self, classes: int, slots: int) -> tuple[Graph, str]:
        """Append all nodes; return the graph and the name of the total loss."""
        count = classes * slots
        counts = self._add_state("counts", np.zeros((classes, 1), np.int32))
        following = self._add_state("next", np.zeros((), np.int32))
        ring_numbers = counts.constant(np.arange(slots)[None])
        is_filled = (ring_numbers < counts).reshape((count,))
        # Steps from the slot whose turn it is; the nearest filled slot is picked, and any slot while all are empty.
        numbers = counts.constant(np.arange(count))
        steps = numbers - following
        steps = is_filled.select((steps < 0).select(steps + count, steps), count)
        picked = steps.apply("argmin", axis=0, out_dtype="int32").reshape(())
        is_any_filled = steps.apply("min", axes=(0,), keepdims=False) < count
        self._updates[following.name] = (picked > count - 2).select(following.constant(0), picked + 1).name
        position = self._append_count(counts, slots)
        features = self._append_features(position, picked, count)
        labels = numbers.constant(np.arange(count) // slots).apply("gather", picked, axis=0).reshape((1,))
        again = self._copy_layers(features, labels)
        total = is_any_filled.select((self._loss + again) * 0.5, self._loss)
        graph = replace(self.graph, types=self.types, consts=self.consts, state=self._state, updates=self._updates)
        return graph.with_nodes(self.nodes), total.name

    def _add_state(self, stem: str, initial: Array) -> Value:
        name = self.names.fresh(f"replay.{stem}")
        self.types[name], self._state[name] = TensorType(initial.shape, initial.dtype.name), initial
        return Value(self, name)

    def _append_count(self, counts: Value, slots: int) -> Value:
        """Append the counting of the sample's class; return the slot that takes the sample.

        A count grows to ``slots``, then cycles from there to 2 ``slots`` - 1: the ring is full, and the place behind the newest
        sample is the count minus ``slots``."""
        is_own = counts.constant(np.arange(counts.shape[0])[:, None]).equals(self._labels.reshape((1, 1)))
        self._updates[counts.name] = is_own.select(
            (counts > 2 * slots - 2).select(counts.constant(slots), counts + 1), counts
        ).name
        own = is_own.select(counts, 0).sum((0, 1))
        place = (own > slots - 1).select(own - slots, own)
        return self._labels.reshape(()) * slots + place

    def _append_features(self, position: Value, picked: Value, count: int) -> Value:
        """Append the buffer of features; return those of the picked sample as floats, with the shape of the features."""
        producer = self.graph.producer().get(self._features.name)
        shape = (count, *self._features.shape[1:])
        if producer is not None and producer.op == "dequantize" and self.types[producer.inputs[0]].dtype == "int8":
            stored = Value(self, producer.inputs[0])
            attrs, scales = dict(producer.attrs), None
        else:
            largest = self._features.apply("abs").apply("max", axes=tuple(range(len(shape))), keepdims=False)
            scale = largest.apply("maximum", _TINY) * (1 / _INT8_MAX)
            stored = (self._features / scale).apply("round").apply("cast", dtype="int8")
            attrs = {}
            scales = self._add_state("scales", np.ones((count,), np.float32))
            self._write(scales, position, scale.reshape((1,)))
        buffer = self._add_state("features", np.zeros(shape, np.int8))
        self._write(buffer, position, stored)
        read = buffer.apply("gather", picked, axis=0).reshape(self._features.shape)
        if scales is None:
            return read.apply("dequantize", **attrs)
        return read.apply("cast", dtype="float32") * scales.apply("gather", picked, axis=0)

    def _write(self, ring: Value, position: Value, data: Value) -> None:
        """Make ``ring`` with ``data`` at ``position`` of its first axis the contents of the state after the run."""
        self._updates[ring.name] = ring.apply("ring_write", position, data, axis=0).name

    def _copy_layers(self, features: Value, labels: Value) -> Value:
        """Append a copy of the layers that learn, on a sample of the buffer; return its loss."""
        names = {self._features.name: features.name, self._labels.name: labels.name}
        for node in self._copied:
            for name in filter(None, node.outputs):
                names[name] = self.names.fresh(f"replay.{name}")
                self.types[names[name]] = self.types[name]
            inputs, outputs = (tuple(names.get(name, name) for name in ends) for ends in (node.inputs, node.outputs))
            self.nodes.append(replace(node, inputs=inputs, outputs=outputs))
        return Value(self, names[self._loss.name])
