"""Analyse the structure of a float network: loops, data flow, ends at which noise is measured, layers as matrix products, and
channels that can be rescaled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Graph, NameSet, Node
from microc.ops import registry
from microc.ops.control import UNBOUNDED
from microc.transform.channel_relations import channel_count, find_channel_links, is_mixing
from microc.transform.quantised.qdq import LAYERS
from microc.transform.quantised.qdq_values import CHOICES, moves_elements

# ---- Loops in float networks, such as recurrent layers: their bodies are quantised like the rest of the network.
#
# Every value of a network, including those in bodies of loops, has a unique name here. To observe a value in a body, it is added
# as a result of the loop, which stacks the value over the iterations.


def quantisable_body_of(node: Node) -> Graph | None:
    """Return the body of a node that is a loop with a fixed trip count; None for other nodes.

    The body of any other loop cannot be quantised: the loop cannot stack values over its iterations, so they cannot be observed.
    """
    return node.attr("body") if node.op == "loop" and node.attr("count") != UNBOUNDED else None


def make_names_distinct(graph: Graph) -> Graph:
    """Return the graph with the values in bodies of loops renamed, so that names are unique in the whole network."""
    return _make_distinct(graph, NameSet(graph.types))


def _make_distinct(graph: Graph, taken_names: NameSet) -> Graph:
    def rename_body(node: Node) -> Node:
        body = quantisable_body_of(node)
        if body is None:
            return node
        names = {name: taken_names.fresh(name) for name in body.types}
        return replace(node, attrs={**node.attrs, "body": _make_distinct(_rename_values(body, names), taken_names)})

    return graph.with_nodes(list(map(rename_body, graph.nodes)))


def _rename_values(body: Graph, names: dict[str, str]) -> Graph:
    def new_names(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(names[value] if value else "" for value in values)

    return replace(
        body,
        inputs=new_names(body.inputs),
        outputs=new_names(body.outputs),
        nodes=tuple(
            replace(node, inputs=new_names(node.inputs), outputs=new_names(node.outputs)) for node in body.nodes
        ),
        types={names[name]: kind for name, kind in body.types.items()},
        consts={names[name]: data for name, data in body.consts.items()},
    )


def flatten_graph(graph: Graph) -> Graph:
    """Return a graph that contains the nodes, types and constants of a graph and of all bodies of its loops.

    Its inputs and outputs include those of the bodies. The result can be analysed but not run."""
    inputs, outputs, types, consts = [*graph.inputs], [*graph.outputs], {**graph.types}, {**graph.consts}
    nodes: list[Node] = []
    for node in graph.nodes:
        body = quantisable_body_of(node)
        if body is not None:
            flat = flatten_graph(body)
            inputs += flat.inputs
            outputs += flat.outputs
            types |= flat.types
            consts |= flat.consts
            nodes += flat.nodes
        nodes.append(node)
    return replace(graph, inputs=tuple(inputs), outputs=tuple(outputs), nodes=tuple(nodes), types=types, consts=consts)


def loop_operands(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the values that a loop passes unchanged to all iterations, as pairs: name outside of the loop, name in its body."""
    body = quantisable_body_of(node)
    if body is not None:
        carried = node.attr("carried")
        yield from zip(node.inputs[carried:], body.inputs[1 + carried :], strict=True)


def loop_links(node: Node) -> Iterator[tuple[str, str]]:
    """Yield pairs of names of the same value: outside of a loop and in its body, or in an iteration and the next one.

    Data flows from the first name to the second."""
    yield from loop_operands(node)
    body = quantisable_body_of(node)
    if body is not None:
        carried = node.attr("carried")
        states = body.inputs[1 : 1 + carried]
        yield from zip(node.inputs[:carried], states, strict=True)
        yield from zip(body.outputs[:carried], states, strict=True)
        yield from zip(body.outputs, node.outputs, strict=True)


def expose_values(graph: Graph, values: Iterable[str]) -> Graph:
    """Return the graph with the values in bodies of loops that are among ``values`` added as results of their loops.

    They have the same names as in the body, and are stacked over the iterations along a new first axis."""
    wanted = set(values)
    nodes, types = list[Node](), dict(graph.types)
    for node in graph.nodes:
        body = quantisable_body_of(node)
        if body is not None:
            body = expose_values(body, wanted)
            inside = [name for name in body.types if name in wanted and name not in types]
            names = NameSet({*types, *body.types})
            rows = {name: names.fresh(f"{name}_row") for name in inside}
            kinds = {name: body.types[name] for name in inside}
            copies = [
                Node("reshape", (name,), (row,), {"shape": kinds[name].shape}, node.loc) for name, row in rows.items()
            ]
            body = replace(
                body,
                outputs=(*body.outputs, *rows.values()),
                nodes=(*body.nodes, *copies),
                types={**body.types, **{row: kinds[name] for name, row in rows.items()}},
            )
            count = node.attr("count")
            types |= {name: replace(kind, shape=(count, *kind.shape)) for name, kind in kinds.items()}
            node = replace(node, outputs=(*node.outputs, *inside), attrs={**node.attrs, "body": body})
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=types)


# ---- Data flow through a float network with its loops and state: producers and readers of values, and names of the same value.


class DataFlow:
    """Data flow of a network.

    ``graph``: the flattened graph, with the nodes of all bodies of loops. ``links``: pairs of names of the same value: outside of
    a loop and in its body, in an iteration and the next one, or in a run and the next one. ``recurrent``: values in loops, and
    values that depend on their own content in an earlier run.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = flatten_graph(graph)
        self.consumers, self.makers = self.graph.consumers(), self.graph.producer()
        state_links = [(value, state) for state, value in self.graph.updates.items()]
        self.links = [
            link
            for link in (*(link for node in self.graph.nodes for link in loop_links(node)), *state_links)
            if all(map(self.is_activation, link)) and (link[1] in self.consumers or link[1] in self.graph.outputs)
        ]
        self.recurrent = (self.graph.types.keys() - graph.types.keys()) | self.find_state_cycles()

    def find_state_cycles(self) -> set[str]:
        """Return the values on a path from a state back to the same state, within a run or over several runs."""
        forwards, backwards = dict[str, list[str]](), dict[str, list[str]]()
        steps = [(name, result) for node in self.graph.nodes for name in node.inputs for result in node.outputs]
        for name, result in (*steps, *((value, state) for state, value in self.graph.updates.items())):
            forwards.setdefault(name, []).append(result)
            backwards.setdefault(result, []).append(name)
        cycles = (find_reachable(state, forwards) & find_reachable(state, backwards) for state in self.graph.state)
        return set().union(*cycles)

    def is_float(self, value: str) -> bool:
        return self.graph.types[value].dtype == "float32"

    def is_activation(self, name: str) -> bool:
        return bool(name) and name not in self.graph.consts and self.is_float(name)

    def activations(self, node: Node) -> Iterator[str]:
        """Yield the operands of a node that are activations: float32 and not constant."""
        return filter(self.is_activation, node.inputs)

    def all_values(self) -> Iterator[str]:
        """Yield the names of all values that are no constants: inputs, state, then results in the order of the nodes."""
        yield from self.graph.inputs
        yield from self.graph.state
        for node in self.graph.nodes:
            yield from node.outputs

    def only_user(self, value: str) -> Node | None:
        """Return the single node that reads a value; None if several or no nodes do, or if it is an output or next state."""
        users = self.consumers.get(value, ())
        kept = value in self.graph.outputs or value in self.graph.updates.values()
        return users[0] if len(users) == 1 and not kept else None

    def keeps_scale(self, node: Node) -> bool:
        """Test whether the result of a node has the scale of its operand.

        It does if all its elements are elements of the operand, or numbers between such elements."""
        return (moves_elements(node) or node.op in CHOICES or node.op == "resample") and self.is_float(node.outputs[0])


def find_reachable(start: str, successors: Mapping[str, Sequence[str]]) -> set[str]:
    """Return all values that can be reached from ``start`` in one or more steps; ``start`` is among them if a path returns to it.

    ``successors``: for each value the values that can be reached in one step."""
    reachable, pending = set[str](), [start]
    while pending:
        for name in successors.get(pending.pop(), ()):
            if name not in reachable:
                reachable.add(name)
                pending.append(name)
    return reachable


# ---- Ends of a network, at which noise is measured: its outputs, or the operand of a last function that saturates.
#
# After a softmax or a sigmoid, the outputs of most samples are near 0 or 1 in any case: saturated samples hide noise, and only a
# few samples determine it. Before the function all samples count. A number that is added to all classes does not change a softmax
# or an argmax. Before these functions, the mean over the classes is therefore subtracted.

_LAST = -1
SATURATING: Mapping[str, int | None] = MappingProxyType(
    {"softmax": _LAST, "log_softmax": _LAST, "argmax": _LAST, "argmin": _LAST, "sigmoid": None}
)
"""Functions that saturate, and the axis along which each compares elements, if its attributes do not name the axis. None: each
element is computed alone."""


@frozen
class End:
    """An end of a network: a value at which quantisation noise is measured.

    ``axis``: the axis along which the mean is subtracted before noise is measured; None if no mean is subtracted."""

    value: str
    axis: int | None = None

    def seen(self, array: Array) -> Array:
        """Return the part of an array in which noise is measured, as float64: the array minus its mean along ``axis``."""
        measured = np.asarray(array, np.float64)
        return measured if self.axis is None else measured - measured.mean(axis=self.axis, keepdims=True)


def find_measured_ends(graph: Graph) -> dict[str, End]:
    """Return for each output of a network the end at which its noise is measured.

    It is the output itself, or the operand of the function that computes the output if this function saturates."""
    makers = graph.producer()
    return {name: _measured_end_of(makers, name) for name in dict.fromkeys(graph.outputs)}


def _measured_end_of(makers: Mapping[str, Node], output: str) -> End:
    """Return the end at which the noise of an output is measured: the output, or the operand of a last saturating function.

    ``makers``: the node that computes each value."""
    end, value = End(output), output
    while value in makers:
        node = makers[value]
        if node.op in SATURATING:
            axis = SATURATING[node.op]
            end = End(node.inputs[0], node.attr("axis") if "axis" in node.attrs else axis)
        elif not registry.get(node.op).moves:
            break
        value = node.inputs[0]
    return end


# ---- Layers as matrix products: a row for each result of a convolution or dense layer, which contains the factors: the data that
# the weights are multiplied by.

_MOST_DEPTH = 2048
"""Maximum number of products in a sum for which second moments are computed: these take 32 MB in float64."""


@frozen
class Layer:
    """A layer as a matrix product: a ``dense``, ``conv2d`` (NHWC) or ``conv2d_transpose`` with constant weights (O, ...).

    ``groups``: number of groups of output channels, each of which reads input channels of its own. ``out``: height and width of a
    convolution's result.
    """

    node: Node
    weights: Array
    bias: Array
    groups: int
    out: tuple[int, int] = (1, 1)

    @property
    def name(self) -> str:
        """Name of the layer's result."""
        return self.node.outputs[0]

    @property
    def data(self) -> str:
        return self.node.inputs[0]

    @property
    def weight(self) -> str:
        return self.node.inputs[1]

    @property
    def depth(self) -> int:
        """Number of products in the sum for one output."""
        return int(self.weights[0].size)

    @property
    def rows(self) -> Array:
        """The weights in the shape (groups, outputs of a group, depth)."""
        return self.weights.reshape(self.groups, -1, self.depth).astype(np.float64)

    def reads(self, data: Array, most: int, random: np.random.Generator) -> SampledReads:
        """Choose at most ``most`` random positions of the layer's result, and return them with the indices of the data they read.

        ``data``: the layer's first operand. It may be stacked over the iterations of a loop, along an additional first axis."""
        if self.node.op == "dense":
            return SampledReads(self, np.sort(_draw_indices(data.size // self.depth, most, random)), ())
        images = data.size // int(np.prod(data.shape[-3:]))
        positions = np.sort(_draw_indices(images * self.out[0] * self.out[1], most, random))
        image, position = np.divmod(positions, self.out[0] * self.out[1])
        row, column = np.divmod(position, self.out[1])
        rows, columns = (self._source_indices(k, index, data.shape[k - 3]) for k, index in enumerate((row, column)))
        return SampledReads(self, positions, (image[:, None, None], rows[:, :, None], columns[:, None, :]))

    def _source_indices(self, axis: int, positions: Array, extent: int) -> Array:
        """Return the row (``axis`` 0) or column (``axis`` 1) of the data that each kernel position (tap) reads for results.

        ``positions``: rows or columns of the results. ``extent``: number of rows or columns of the data; it is also the index
        that is returned for a tap that reads padding."""
        stride, step, before = (self.node.attr(name)[axis] for name in ("strides", "dilation", "padding"))
        taps = np.arange(self.weights.shape[1 + axis]) * step
        if self.node.op == "conv2d":
            source, exists = positions[:, None] * stride - before + taps, np.True_
        else:
            source, remainder = np.divmod(positions[:, None] + before - taps, stride)
            exists = remainder == 0
        return np.where(exists & (source >= 0) & (source < extent), source, extent)


@frozen
class SampledReads:
    """Randomly chosen positions of a layer's result, and the data that weights are multiplied by to compute these positions.

    ``places``: indices of the positions. ``window``: index arrays of the data that a convolution reads; empty for a dense
    layer."""

    layer: Layer
    places: Array
    window: tuple[Array, ...]

    def of(self, data: Array) -> Array:
        """Return the data that weights are multiplied by at the chosen positions, in the shape (groups, positions, depth).

        ``data``: the layer's first operand."""
        layer = self.layer
        if not self.window:
            return np.asarray(data.reshape(-1, layer.depth)[self.places], np.float64)[np.newaxis]
        padded = np.pad(data.reshape(-1, *data.shape[-3:]), ((0, 0), (0, 1), (0, 1), (0, 0)))
        windows = padded[self.window].astype(np.float64)
        parts = windows.reshape(len(windows), -1, layer.groups, layer.weights.shape[-1])
        return np.moveaxis(parts, 2, 0).reshape(layer.groups, len(windows), layer.depth)


def find_matrix_layers(graph: Graph, weights: frozenset[str]) -> Iterator[Layer]:
    """Yield the layers of a graph, including those in bodies of loops, that can be written as matrix products.

    ``weights``: names of the weights whose layers are wanted. Layers are left out if another layer has the same weights, if they
    have more than :data:`_MOST_DEPTH` products in a sum, or if their layout, padding or bias is not supported."""
    flat = flatten_graph(graph)
    users = [node.inputs[1] for node in flat.nodes if node.op in LAYERS]
    for node in flat.nodes:
        if node.op not in LAYERS or node.inputs[1] not in weights or users.count(node.inputs[1]) > 1:
            continue
        if node.attrs.get("layout") == "NCHW" or node.attrs.get("pad_value", 0):
            continue
        data = flat.consts[node.inputs[1]]
        name = (*node.inputs, "", "")[2]
        bias = np.zeros(len(data), np.float32) if not name else flat.consts.get(name)
        if bias is not None and bias.size == len(data) and data[0].size <= _MOST_DEPTH:
            groups: int = 1
            out: tuple[int, ...] = (1, 1)
            if node.op != "dense":
                groups = flat.types[node.inputs[0]].shape[3] // data.shape[3]
                out = flat.types[node.outputs[0]].shape[1:3]
            yield Layer(node, data, bias.reshape(-1), groups, (out[0], out[1]))


def _draw_indices(count: int, max_count: int, random: np.random.Generator) -> Array:
    return np.arange(count) if count <= max_count else random.choice(count, max_count, replace=False)


# ---- Units of channels, for cross-layer equalisation: a channel may be stored in another unit, which means divided by a factor.
#
# A channel is an index along the last axis. Channels must have the same unit if a positively homogeneous operator connects them.
# The weights of a layer, and constant factors, convert one unit into another. If any other operator reads or computes a channel,
# the channel's unit cannot be chosen.

HOMOGENEOUS = frozenset(
    (
        *("relu", "leaky_relu", "abs", "neg", "max_pool2d", "avg_pool2d", "mean", "max", "min", "sum"),
        *("reshape", "transpose", "pad", "slice", "concat", "add", "sub"),
    )
)
"""Positively homogeneous operators: f(s x) = s f(x) for s > 0, for each channel alone."""
_TERMS = frozenset(("add", "sub"))
_LINEAR = ("", "relu")
"""Fused activations that are positively homogeneous."""


class ChannelUnits:
    """Units of the channels of a float graph, numbered from 0. Channels of the same unit are divided by the same factor.

    ``count``: number of units. ``free``: for each unit True if its factor can be chosen, False if it must be 1. Units are
    found by union-find over all channels."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._starts: dict[str, int] = {}
        total = 0
        for name in graph.types:
            if name not in graph.consts:
                self._starts[name], total = total, total + channel_count(graph, name)
        self._parents = list(range(total))
        fixed = np.zeros(total, bool)
        for name in (*graph.inputs, *graph.outputs, *graph.state, *graph.updates.values()):
            if name in self._starts:
                fixed[self._channels_of(name)] = True
        for node in graph.nodes:
            if not self._tie_channels(node):
                for name in (*node.inputs, *node.outputs):
                    if name in self._starts:
                        fixed[self._channels_of(name)] = True
        roots = np.array([self._find(channel) for channel in range(total)], np.int64)
        _, self._units = np.unique(roots, return_inverse=True)
        self.count = int(self._units.max(initial=-1)) + 1
        self.free = np.ones(self.count, bool)
        self.free[self._units[fixed]] = False

    def of(self, value: str) -> Array:
        """Return for each channel of a value the number of its unit."""
        return np.asarray(self._units[self._channels_of(value)])

    def blocks(self, values: Sequence[str]) -> Iterator[list[str]]:
        """Yield ``values`` in lists. Values with a common unit, directly or through other values, are in the same list."""
        owner: dict[int, int] = {}
        groups: list[list[str]] = []
        for value in values:
            units = set(self.of(value).tolist())
            known = sorted({owner[unit] for unit in units if unit in owner})
            block = known[0] if known else len(groups)
            if not known:
                groups.append([])
            for other in known[1:]:
                groups[block] += groups[other]
                groups[other] = []
                owner |= {unit: block for unit, at in owner.items() if at == other}
            groups[block].append(value)
            owner |= dict.fromkeys(units, block)
        yield from filter(None, groups)

    def is_layer(self, node: Node) -> bool:
        """Test whether a node is a layer whose constant weights and bias can convert one unit into another.

        These are dense layers, convolutions of one group, and depthwise convolutions."""
        if node.attrs.get("activation", "") not in _LINEAR or node.attrs.get("pad_value", 0):
            return False
        return is_mixing(self.graph, node) or (node.op == "conv2d" and find_channel_links(self.graph, node) is not None)

    def apply(self, factors: Array) -> Graph:
        """Return the graph with each channel divided by the factor of its unit. ``factors``: the factor of each unit.

        Only constants change, so that the network computes the same function."""
        names, types, consts = NameSet(self.graph.types), dict(self.graph.types), dict(self.graph.consts)

        def add_constant(name: str, data: Array) -> str:
            fresh = names.fresh(name)
            consts[fresh] = data.astype(np.float32)
            types[fresh] = replace(types[name], shape=data.shape)
            return fresh

        def convert_node(node: Node) -> Node:
            changed = self._rescale_constants(node, factors)
            inputs = (add_constant(name, changed[name]) if name in changed else name for name in node.inputs)
            return replace(node, inputs=tuple(inputs))

        return self.graph.with_nodes(list(map(convert_node, self.graph.nodes)), types=types, consts=consts)

    def _rescale_constants(self, node: Node, unit_factors: Array) -> dict[str, Array]:
        """Return by name the constants of a node, rescaled for channels that are divided by the factors of their units.

        ``unit_factors``: the factor of each unit. Constants that do not change are left out."""
        constants = [name for name in node.inputs if name in self.graph.consts]
        if (
            not constants
            or len(node.outputs) != 1
            or not (self.is_layer(node) or node.op in _TERMS or self._is_factor(node))
        ):
            return {}
        out_factors = unit_factors[self.of(node.outputs[0])]
        in_factors = next((unit_factors[self.of(name)] for name in node.inputs if name in self._starts), out_factors)
        if (out_factors == 1).all() and (in_factors == 1).all():
            return {}
        consts = {name: self.graph.consts[name].astype(np.float64) for name in constants}
        if node.op in _TERMS:
            return {name: array / out_factors for name, array in consts.items()}
        if not self.is_layer(node):
            return {name: array * in_factors / out_factors for name, array in consts.items()}
        weight = consts[node.inputs[1]]
        if weight.shape[-1] == len(in_factors):
            per_input = in_factors
        else:
            per_input = in_factors[np.arange(len(out_factors)) // (len(out_factors) // len(in_factors))].reshape(
                -1, 1, 1, 1
            )
        per_output = out_factors.reshape(-1, *(1,) * (weight.ndim - 1))
        return {
            name: array * per_input / per_output if name == node.inputs[1] else array / out_factors
            for name, array in consts.items()
        }

    def _tie_channels(self, node: Node) -> bool:
        """Join the units of channels that a node connects. Return False if the node requires fixed units.

        Layers and constant factors connect no channels, because they can convert units."""
        if len(node.outputs) != 1 or self.graph.types[node.outputs[0]].dtype != "float32":
            return False
        if self.is_layer(node) or self._is_factor(node):
            return True
        is_homogeneous = node.op in HOMOGENEOUS and node.attrs.get("activation", "") in _LINEAR
        if not is_homogeneous or (node.op == "pad" and node.attr("value")):
            return False
        links = find_channel_links(self.graph, node)
        computed = {k for k, name in enumerate(node.inputs) if name in self._starts}
        has_constant = any(name in self.graph.consts for name in node.inputs) and node.op not in _TERMS
        if links is None or has_constant or {link.operand for link in links} != computed:
            return False
        for link in links:
            first_in, first_out = self._starts[node.inputs[link.operand]], self._starts[node.outputs[0]]
            for source, target in zip(link.source.tolist(), link.target.tolist(), strict=True):
                self._join_units(first_in + source, first_out + target)
        return True

    def _is_factor(self, node: Node) -> bool:
        """Test whether a node multiplies each channel by a constant of its own."""
        if node.op != "mul" or node.attrs.get("activation", "") not in _LINEAR:
            return False
        count = channel_count(self.graph, node.outputs[0])
        constants = [name for name in node.inputs if name in self.graph.consts]
        return len(constants) == 1 and all(channel_count(self.graph, name) == count for name in node.inputs)

    def _channels_of(self, value: str) -> slice:
        start = self._starts[value]
        return slice(start, start + channel_count(self.graph, value))

    def _find(self, channel: int) -> int:
        while self._parents[channel] != channel:
            self._parents[channel] = channel = self._parents[self._parents[channel]]
        return channel

    def _join_units(self, a: int, b: int) -> None:
        """Join the units of two channels, given by their indices among all channels."""
        self._parents[self._find(b)] = self._find(a)
