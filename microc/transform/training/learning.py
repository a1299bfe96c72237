# SPDX-License-Identifier: Apache-2.0
"""Networks that learn: the last layers in float32, with a loss, its gradients and the step of an optimiser behind them.

The layers in front stay as they are, integers of a quantised network included. Weights that learn are state, which the
optimiser updates in every run; its own state is kept beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError, UsageError, similar_names_hint
from microc.graph.ir import Attr, Graph, NameSet, Node, Quant, TensorType, verify
from microc.ops import registry
from microc.ops.gradients.call import Value
from microc.ops.recurrent import cells as recurrent
from microc.transform import canonicalise, channels_last
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised import qdq
from microc.transform.training.gradient import append_gradients, gradient_name
from microc.transform.training.graph_extensions import CROSS_ENTROPY, GraphExtension, append_loss, append_replay

RATE = "rate"
"""Name of the input of the learning rate, unless the network has a value of this name."""
ALL, BIASES = "all", "biases"
SGD, MOMENTUM, ADAM = "sgd", "momentum", "adam"
OPTIMISERS = (SGD, MOMENTUM, ADAM)
PARAMETERS = (ALL, BIASES)


@frozen
class Head:
    """Declaration of what learns and how.

    - ``layers``: number of layers with weights, counted from the network's end, or their names.
    - ``parameters``: ``all`` weights and biases of these layers, or their ``biases`` alone.
    - ``loss``: a loss of :func:`microc.add_loss`; ``output``: the output that it compares with the labels, if the network
      has several.
    - ``optimiser``: ``sgd``, ``momentum`` or ``adam``, in PyTorch's form. ``momentum``: of ``momentum``; ``beta1``,
      ``beta2``, ``epsilon``: of ``adam``.
    - ``accumulate``: number of runs whose mean gradient makes one step.
    - ``classes``: number of outputs of the last layer, if it gets more than the model has: new ones begin with weights of 0.
    - ``channels``: output channels of each layer that learn, as a number (the last ones) or a list; 0: all.
    - ``replay``: number of samples of each class whose features are kept and learned again (:mod:`.replay`)."""

    layers: int | tuple[str, ...] = 1
    parameters: str = ALL
    loss: str = CROSS_ENTROPY
    output: str = ""
    optimiser: str = SGD
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    accumulate: int = 1
    classes: int = 0
    channels: int | tuple[int, ...] = 0
    replay: int = 0


@frozen
class LearningNetwork:
    """A network that learns in every run.

    ``inference_outputs``: its outputs without the loss. ``parameters``: names of the states that are learned weights.
    ``labels``, ``rate``, ``loss``: names of the further inputs and of the further output."""

    graph: Graph
    inference_outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    labels: str
    rate: str
    loss: str


def append_learning(graph: Graph, head: Head) -> LearningNetwork:
    """Return the network with inputs for labels and learning rate, the output of the loss, and weights that each run
    updates.

    The layers that learn, and all layers behind them, compute in float32. Outputs keep their types. Raises UsageError
    for layers that the network does not have, and UnsupportedError for operators without a gradient."""
    if graph.updates:
        raise UnsupportedError(
            f"learn: a network with state of its own cannot learn; got {', '.join(graph.state)}",
            where=graph.name,
            hint="cut the network behind its state: inputs=..., outputs=...",
        )
    graph = _normalise(graph)
    outputs = graph.outputs
    float_head = _FloatHead(graph, _find_layers(graph, head))
    graph, layers = float_head.build(), float_head.layers
    if head.classes:
        graph, layers = _add_classes(graph, layers, head.classes)
    if head.channels:
        split = _ChannelSplit(graph, head.channels)
        graph, layers = split.build(layers), split.layers
    graph, parameters = _convert_parameters_to_state(graph, _find_parameters(graph, layers, head))
    compared = _loss_output(graph, head)
    with_loss = append_loss(graph, head.loss, compared)
    labels, loss = with_loss.inputs[-1], with_loss.outputs[-1]
    descended = loss
    if head.replay:
        with_loss, descended = append_replay(
            with_loss, loss, labels, parameters, graph.types[compared].shape[-1], head.replay
        )
    trained = append_gradients(with_loss, descended, parameters)
    step = _OptimiserStep(replace(trained, outputs=(*outputs, loss)), head)
    for name in parameters:
        step.update(name, gradient_name(name))
    result = step.finish()
    verify(result, registry.infer_node_types, "learn", registry.node_constant_error_message)
    return LearningNetwork(result, outputs, parameters, labels, step.rate.name, loss)


_NORMALISING = (
    qdq.PASS,
    canonicalise.FOLD_CONSTANTS_PASS,
    canonicalise.CANONICALISE_PASS,
    channels_last.LAYOUT_PASS,
    canonicalise.CANONICALISE_PASS,
)
"""Passes that run first: weights that learn have the layout in which layers compute, and quantised operators are single
nodes."""


def _normalise(graph: Graph) -> Graph:
    return run_passes(graph, _NORMALISING, PassContext())


# ---- Layers and parameters.


def _layer_name(node: Node) -> str:
    return node.loc.name or node.outputs[0]


def _has_weights(graph: Graph, node: Node, producers: Mapping[str, Node]) -> bool:
    """Test whether a node is a layer whose weights are constant, possibly dequantised by a node of their own; a recurrent
    layer must be of floats."""
    if not (registry.is_layer(node) or _is_recurrent(node)):
        return False
    weight = node.inputs[1]
    producer = producers.get(weight)
    if _is_recurrent(node) and not dtypes.is_float(graph.types[weight].dtype):
        return False
    return weight in graph.consts or (
        producer is not None and producer.op == "dequantize" and producer.inputs[0] in graph.consts
    )


def _is_recurrent(node: Node) -> bool:
    return node.op in recurrent.STATES


def _list_parameters(node: Node) -> tuple[list[str], list[str]]:
    """Return the names of the weights of a layer, and those of its biases."""
    if not _is_recurrent(node):
        return [node.inputs[1]], [name for name in node.inputs[2:] if name]
    operands = recurrent.bind_operands(node.op, node.attrs, node.inputs)
    own = {role: name for role, name in operands.items() if role not in ("data", "lengths", *recurrent.STATES[node.op])}
    return [name for role, name in own.items() if "bias" not in role], [own[role] for role in own if "bias" in role]


def _find_layers(graph: Graph, head: Head) -> list[Node]:
    """Return the layers that learn, in the order of the graph."""
    producers = graph.producer()
    known = [node for node in graph.nodes if _has_weights(graph, node, producers)]
    names = [_layer_name(node) for node in known]
    if isinstance(head.layers, int):
        if not 1 <= head.layers <= len(known):
            raise UsageError(
                f"learn: layers={head.layers} is out of range; got a network of {len(known)} layers with weights",
                where=graph.name,
                hint=f"choose from 1 to {len(known)}" if known else "learn a network with dense layers or convolutions",
            )
        return known[-head.layers :]
    for name in head.layers:
        if name not in names:
            raise UsageError(
                f"learn: there is no layer {name!r} with weights",
                where=graph.name,
                hint=similar_names_hint(name, names) or f"layers with weights: {', '.join(names)}",
            )
    return [node for node, name in zip(known, names, strict=True) if name in head.layers]


def _add_classes(graph: Graph, layers: Sequence[Node], classes: int) -> tuple[Graph, list[Node]]:
    """Return the graph whose last learning layer has ``classes`` outputs, and its layers.

    The weights of new outputs are 0. All values behind the layer have as many elements along their last axis."""
    layer, count = layers[-1], graph.types[layers[-1].outputs[0]].shape[-1]
    if layer.op != "dense" or classes <= count:
        raise UsageError(
            f"learn: classes={classes} does not extend {_layer_name(layer)!r}; got {layer.op} of {count} outputs",
            where=graph.name,
            hint=f"give more than {count}" if layer.op == "dense" else "end the layers that learn with a dense layer",
        )
    types, consts, changed = dict(graph.types), dict(graph.consts), set(layer.outputs)
    for name in filter(None, layer.inputs[1:]):
        data = consts[name]
        consts[name] = np.pad(data, [(0, classes - count)] + [(0, 0)] * (data.ndim - 1))
        types[name] = replace(types[name], shape=consts[name].shape)
    nodes = []
    for node in graph.nodes:
        if changed.intersection((*node.inputs, *node.outputs)):
            if node.op == "reshape":
                shape = node.attr("shape")
                node = replace(node, attrs={**node.attrs, "shape": (*shape[:-1], classes)})
            changed.update(node.outputs)
            try:
                inferred = registry.infer(node.op, node.attrs, [types[name] for name in node.inputs])
            except ModelError as error:
                raise UnsupportedError(
                    f"learn: classes={classes} does not suit {node.op} behind the layer: {error.what}",
                    where=str(node.loc),
                    hint="leave out classes, or cut the network behind its last layer: outputs=...",
                ) from error
            for name, result in zip(node.outputs, inferred, strict=True):
                types[name] = replace(types[name], shape=result.shape)
        nodes.append(node)
    return replace(graph, types=types, consts=consts).with_nodes(nodes), [*layers]


class _ChannelSplit:
    """Split of each learning layer into one of frozen and one of learning output channels, joined in the old order.

    ``channels``: number of last channels that learn, or their positions. ``layers``: the layers that learn, once :meth:`build`
    has run; those whose channels all learn stay whole."""

    def __init__(self, graph: Graph, channels: int | tuple[int, ...]) -> None:
        self._graph, self._channels = graph, channels
        self._types, self._consts, self._names = dict(graph.types), dict(graph.consts), NameSet(graph.types)
        self._split: dict[tuple[str, str], str] = {}
        self.layers: list[Node] = []

    def build(self, layers: Sequence[Node]) -> Graph:
        """Return the graph with split ``layers``."""
        nodes: list[Node] = []
        outputs = {layer.outputs for layer in layers}
        for node in self._graph.nodes:
            nodes += self._split_layer(node) if node.outputs in outputs else (node,)
        return replace(self._graph, types=self._types, consts=self._consts).with_nodes(nodes)

    def _split_layer(self, node: Node) -> list[Node]:
        count = self._types[node.outputs[0]].shape[-1]
        channels = self._channels
        chosen = list(range(count))[-channels:] if isinstance(channels, int) else list(channels)
        if node.op not in ("dense", "conv2d") or len(self._consts[node.inputs[1]]) != count or max(chosen) >= count:
            raise UsageError(
                f"learn: channels of {_layer_name(node)!r} cannot be chosen; got channel {max(chosen)} of {node.op} with "
                f"{count}",
                where=self._graph.name,
                hint="choose channels of dense layers and convolutions, numbered from 0",
            )
        frozen = [k for k in range(count) if k not in chosen]
        if not frozen:
            self.layers.append(node)
            return [node]
        if node.op == "conv2d" and node.attr("groups") > 1 and self._types[node.inputs[1]].shape[3] > 1:
            raise UnsupportedError(
                f"learn: channels of {_layer_name(node)!r} cannot be chosen; got a convolution of {node.attr('groups')} groups "
                f"of {self._types[node.inputs[1]].shape[3]} input channels, expected one group, or one input channel in each",
                where=str(node.loc),
                hint="let all its channels learn, or name other layers",
            )
        parts = [*self._take_channels(node, "frozen", frozen), *self._take_channels(node, "learned", chosen)]
        self.layers.append(parts[-1])
        order = np.argsort([*frozen, *chosen])
        is_ordered = bool(np.all(order == np.arange(count)))
        joined = node.outputs[0] if is_ordered else self._names.fresh(f"{node.outputs[0]}.joined")
        self._types[joined] = self._types[node.outputs[0]]
        axis = len(self._types[joined].shape) - 1
        results = tuple(part.outputs[0] for part in parts if part.op == node.op)
        nodes = [*parts, Node("concat", results, (joined,), {"axis": axis}, node.loc)]
        if not is_ordered:
            index = self._add_index(node.outputs[0], order)
            attrs = {**registry.get("gather").defaults, "axis": axis}
            nodes.append(Node("gather", (joined, index), node.outputs, attrs, node.loc))
        return nodes

    def _take_channels(self, node: Node, stem: str, channels: Sequence[int]) -> list[Node]:
        """Return the nodes of a layer that computes some output channels of ``node``; the layer is the last.

        A depthwise convolution reads the input channels of these outputs alone, which a node in front picks."""
        operands, nodes, attrs = [node.inputs[0]], list[Node](), node.attrs
        if node.op == "conv2d" and node.attr("groups") > 1:
            outputs_per_group = self._types[node.outputs[0]].shape[-1] // node.attr("groups")
            picked = self._names.fresh(f"{node.outputs[0]}.{stem}.data")
            index = self._add_index(picked, np.asarray(channels) // outputs_per_group)
            data = self._types[node.inputs[0]]
            self._types[picked] = replace(data, shape=(*data.shape[:-1], len(channels)))
            gather = {**registry.get("gather").defaults, "axis": len(data.shape) - 1}
            nodes.append(Node("gather", (node.inputs[0], index), (picked,), gather, node.loc))
            operands, attrs = [picked], {**node.attrs, "groups": len(channels)}
        for name in node.inputs[1:]:
            if name and (name, stem) not in self._split:
                new = self._split[name, stem] = self._names.fresh(f"{name}.{stem}")
                self._consts[new] = self._consts[name][list(channels)]
                self._types[new] = replace(self._types[name], shape=self._consts[new].shape)
            operands.append(name and self._split[name, stem])
        result, output = self._names.fresh(f"{node.outputs[0]}.{stem}"), self._types[node.outputs[0]]
        self._types[result] = replace(output, shape=(*output.shape[:-1], len(channels)))
        return [*nodes, replace(node, inputs=tuple(operands), outputs=(result,), attrs=attrs)]

    def _add_index(self, stem: str, positions: Array) -> str:
        """Add a constant of positions of channels; return its name."""
        name = self._names.fresh(f"{stem}.order")
        self._consts[name], self._types[name] = positions.astype(np.int32), TensorType(positions.shape, "int32")
        return name


def _find_parameters(graph: Graph, layers: Sequence[Node], head: Head) -> list[str]:
    """Return the names of the constants that learn, each once."""
    names: dict[str, None] = {}
    for node in layers:
        weights, biases = _list_parameters(node)
        if head.parameters == BIASES and not biases:
            raise UsageError(
                f"learn: layer {_layer_name(node)!r} has no bias; got parameters={BIASES!r}",
                where=graph.name,
                hint=f"give parameters={ALL!r}, or name other layers",
            )
        names.update(dict.fromkeys(biases if head.parameters == BIASES else [*weights, *biases]))
    return [name for name in names if name in graph.consts]


def _convert_parameters_to_state(graph: Graph, names: Sequence[str]) -> tuple[Graph, tuple[str, ...]]:
    """Make constants the initial contents of states of the same names."""
    state = {name: graph.consts[name] for name in names}
    consts = {name: data for name, data in graph.consts.items() if name not in state}
    return replace(
        graph, consts=consts, state={**graph.state, **state}, updates=dict(zip(names, names, strict=True))
    ), tuple(names)


def _loss_output(graph: Graph, head: Head) -> str:
    """Return the float value that the loss compares with the labels: an output, in front of its quantisation."""
    if head.output or len(graph.outputs) == 1:
        name = head.output or graph.outputs[0]
        producer = graph.producer().get(name)
        return producer.inputs[0] if producer is not None and producer.op == "quantize" else name
    return ""


# ---- The head in float32.


def _dequantise(data: Array, quant: Quant) -> Array:
    """Return the real numbers of quantised constants, rounded once to float32."""
    shape = [1] * data.ndim
    if quant.axis is not None:
        shape[quant.axis] = -1
    scale, zero = (np.asarray(numbers, np.float64).reshape(shape) for numbers in (quant.scale, quant.zero_point))
    return ((data.astype(np.float64) - zero) * scale).astype(np.float32)


class _FloatHead:
    """Conversion of the layers that learn, and of all nodes that depend on them, to float32.

    Quantised operands are dequantised in front of them, and quantised outputs are quantised at the end. ``layers``: the
    converted layers, once :meth:`build` has run."""

    def __init__(self, graph: Graph, layers: Sequence[Node]) -> None:
        self._graph = graph
        self._types, self._consts = dict(graph.types), dict(graph.consts)
        self._names = NameSet(graph.types)
        self._nodes: list[Node] = []
        self._producers = graph.producer()
        self._first = {node.outputs for node in layers}
        self._renamed: dict[str, str] = {}
        self._dependent: set[str] = set()
        self._float_constants: dict[str, str] = {}
        self.layers: list[Node] = []

    def build(self) -> Graph:
        """Return the converted graph."""
        for node in self._graph.nodes:
            inputs = [name for name in node.inputs if name]
            is_layer = node.outputs in self._first
            if is_layer or any(name in self._dependent for name in inputs):
                self._convert(node)
                self.layers += self._nodes[-1:] if is_layer else []
            else:
                self._nodes.append(node)
        outputs = [self._quantise_output(name) for name in self._graph.outputs]
        return replace(self._graph, outputs=tuple(outputs), types=self._types, consts=self._consts).with_nodes(
            self._nodes
        )

    def _convert(self, node: Node) -> None:
        """Append the node with float operands and results. ``quantize`` and ``dequantize`` between them do nothing."""
        for name in filter(None, node.outputs):
            self._dependent.add(name)
            self._rename_result(name)
        results = tuple(name and self._renamed[name] for name in node.outputs)
        if node.op in ("quantize", "dequantize"):
            attrs: Mapping[str, Attr] = {"shape": self._types[results[0]].shape}
            self._nodes.append(Node("reshape", (self._as_float(node, node.inputs[0]),), results, attrs, node.loc))
            return
        if _is_recurrent(node) and not dtypes.is_float(self._graph.types[node.inputs[1]].dtype):
            raise UnsupportedError(
                f"learn: {node.op} of integers cannot pass gradients; got {self._graph.types[node.inputs[1]].dtype} weights",
                where=str(node.loc),
                hint="learn layers behind it, or load the model before it was quantised",
            )
        operands = tuple(name and self._as_float(node, name) for name in node.inputs)
        kept = {key: value for key, value in node.attrs.items() if key != "dynamic"}
        self._nodes.append(replace(node, inputs=operands, outputs=results, attrs=kept))

    def _rename_result(self, name: str) -> None:
        """Give a result its float type: under its own name, or under a new one if it is a quantised output."""
        value_type = self._types[name]
        if not value_type.is_quantised:
            self._renamed[name] = name
            return
        new = self._names.fresh(f"{name}.real") if name in self._graph.outputs else name
        self._renamed[name] = new
        self._types[new] = TensorType(value_type.shape, "float32", layout=value_type.layout)

    def _as_float(self, node: Node, name: str) -> str:
        """Return the float value of an operand."""
        if name in self._renamed:
            return self._renamed[name]
        if name in self._float_constants:
            return self._float_constants[name]
        value_type, producer = self._graph.types[name], self._producers.get(name)
        if producer is not None and producer.op == "dequantize" and producer.inputs[0] in self._consts:
            attrs = producer.attrs
            quant = Quant(attrs["scale"], attrs["zero_point"], attrs["axis"])  # type: ignore[arg-type]
            return self._add_constant(name, _dequantise(self._graph.consts[producer.inputs[0]], quant))
        if value_type.quant is None or not value_type.is_quantised:
            if name in self._graph.consts and self._is_read_elsewhere(name, node):
                return self._add_constant(name, self._graph.consts[name])
            return name
        if name in self._graph.consts:
            return self._add_constant(name, _dequantise(self._graph.consts[name], value_type.quant))
        quant = value_type.quant
        real = self._renamed[name] = self._names.fresh(f"{name}.real")
        self._types[real] = TensorType(value_type.shape, "float32", layout=value_type.layout)
        attrs = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
        self._nodes.append(Node("dequantize", (name,), (real,), attrs, node.loc))
        return real

    def _is_read_elsewhere(self, name: str, node: Node) -> bool:
        return any(other is not node and name in other.inputs for other in self._graph.nodes)

    def _add_constant(self, name: str, data: Array) -> str:
        """Add the float form of the constant ``name`` once; return its name."""
        if name not in self._float_constants:
            new = self._float_constants[name] = self._names.fresh(f"{name}.real")
            self._types[new], self._consts[new] = TensorType(data.shape, "float32"), data
        return self._float_constants[name]

    def _quantise_output(self, name: str) -> str:
        """Append the quantisation of an output that was quantised; return the output's name."""
        real = self._renamed.get(name, name)
        if real == name:
            return name
        value_type = self._graph.types[name]
        assert value_type.quant is not None
        quant = value_type.quant
        attrs: dict[str, Attr] = {
            "scale": quant.scale,
            "zero_point": quant.zero_point,
            "axis": quant.axis,
            "out_dtype": value_type.dtype,
        }
        whole = {**registry.get("quantize").defaults, **attrs}
        self._nodes.append(Node("quantize", (real,), (name,), whole, self._producers[name].loc))
        return name


# ---- The optimiser.


class _OptimiserStep(GraphExtension):
    """Graph under construction: a network with gradients, then the update of each parameter."""

    def __init__(self, graph: Graph, head: Head) -> None:
        super().__init__(graph, "learn")
        self._head = head
        self._state, self._updates = dict(graph.state), dict(graph.updates)
        self.rate = Value(self, self.names.fresh(RATE))
        self.types[self.rate.name] = TensorType((), "float32")
        self._is_last = self._count_runs() if head.accumulate > 1 else None
        self._corrections = self._track_corrections() if head.optimiser == ADAM else None

    def _add_state(self, stem: str, initial: Array) -> Value:
        name = self.names.fresh(stem)
        self.types[name], self._state[name] = TensorType(initial.shape, initial.dtype.name), initial
        return Value(self, name)

    def _store(self, state: Value, following: Value) -> Value:
        """Make a value the contents of a state after the run; return the value.

        If gradients are accumulated, the state changes in the last run of each step only."""
        if self._is_last is not None:
            following = self._is_last.select(following, state)
        self._updates[state.name] = following.name
        return following

    def _count_runs(self) -> Value:
        """Count the runs whose gradients are accumulated; return the condition that this is the last one of a step."""
        count = self._add_state("learn.runs", np.zeros((), np.int32))
        following = count + 1
        is_last = following.equals(self._head.accumulate)
        self._updates[count.name] = is_last.select(following.constant(0), following).name
        return is_last

    def _track_corrections(self) -> tuple[Value, Value]:
        """Return Adam's corrections 1 - beta**t of both means, in step t."""
        corrections = []
        for name, beta in (("beta1", self._head.beta1), ("beta2", self._head.beta2)):
            power = self._add_state(f"learn.{name}", np.ones((), np.float32))
            following = power * beta
            self._store(power, following)
            corrections.append(1.0 - following)
        return corrections[0], corrections[1]

    def update(self, parameter: str, gradient: str) -> None:
        """Append the step of one parameter: PyTorch's SGD, SGD with momentum, or Adam."""
        self.subject, head = parameter, self._head
        w, g = Value(self, parameter), Value(self, gradient)
        zeros = np.zeros(w.shape, np.float32)
        if self._is_last is not None:
            total = self._add_state(f"{parameter}.accumulated", zeros)
            accumulated = total + g
            self._updates[total.name] = self._is_last.select(0.0, accumulated).name
            g = accumulated * (1.0 / head.accumulate)
        if head.optimiser == ADAM:
            assert self._corrections is not None
            first, second = (self._add_state(f"{parameter}.{name}", zeros) for name in ("mean", "square"))
            mean = first * head.beta1 + g * (1.0 - head.beta1)
            square = second * head.beta2 + g * g * (1.0 - head.beta2)
            self._store(first, mean)
            self._store(second, square)
            root = (square / self._corrections[1]).apply("sqrt") + head.epsilon
            step = mean / self._corrections[0] / root
        elif head.optimiser == MOMENTUM:
            velocity = self._add_state(f"{parameter}.velocity", zeros)
            step = velocity * head.momentum + g
            self._store(velocity, step)
        else:
            step = g
        self._store(w, w - step * self.rate)

    def finish(self) -> Graph:
        """Return the graph."""
        return replace(
            self.graph,
            inputs=(*self.graph.inputs, self.rate.name),
            types=self.types,
            consts=self.consts,
            state=self._state,
            updates=self._updates,
        ).with_nodes(self.nodes)
