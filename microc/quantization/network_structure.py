# SPDX-License-Identifier: Apache-2.0
"""Analyse the structure of a float network: loops, data flow, layers as matrix products, and channels that can be
rescaled.

The ends of the network, at which quantisation noise is measured, are found here as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Graph, NameSet, Node
from microc.ops import registry
from microc.ops.control import UNBOUNDED
from microc.ops.windows import Product, WindowAxis
from microc.transform.channel_relations import channel_count, find_channel_links, sums_over_all_channels
from microc.transform.quantised.qdq_values import CHOICES, only_moves_elements

# ---- Loops in float networks, such as recurrent layers: their bodies are quantised like the rest of the network.
#
# Every value of a network, including those in bodies of loops, has a unique name here. To observe a value in a body, it is added
# as a result of the loop, which stacks the value over the iterations.


def find_quantisable_loop_body(node: Node) -> Graph | None:
    """Return the body of a loop with a fixed trip count; None for any other node.

    The body of a loop without a fixed trip count cannot be quantised: such a loop cannot stack the values of its
    iterations, so calibration cannot observe them."""
    return node.attr("body") if node.op == "loop" and node.attr("count") != UNBOUNDED else None


def make_names_distinct(graph: Graph) -> Graph:
    """Rename the values in bodies of loops so that every name is unique in the whole network; return the new graph."""
    return _rename_values_in_bodies(graph, NameSet(graph.types))


def _rename_values_in_bodies(graph: Graph, taken_names: NameSet) -> Graph:
    """Give the values in bodies of loops names that are not in ``taken_names``, and add these names to it."""

    def rename_body(node: Node) -> Node:
        body = find_quantisable_loop_body(node)
        if body is None:
            return node
        new_names = {name: taken_names.fresh(name) for name in body.types}
        return replace(
            node, attrs={**node.attrs, "body": _rename_values_in_bodies(_rename_values(body, new_names), taken_names)}
        )

    return graph.with_nodes(list(map(rename_body, graph.nodes)))


def _rename_values(body: Graph, new_names: Mapping[str, str]) -> Graph:
    """Rename all values of a loop's body; ``new_names``: the new name of each value by its present name."""

    def rename_all(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(new_names[value] if value else "" for value in values)

    return replace(
        body,
        inputs=rename_all(body.inputs),
        outputs=rename_all(body.outputs),
        nodes=tuple(
            replace(node, inputs=rename_all(node.inputs), outputs=rename_all(node.outputs)) for node in body.nodes
        ),
        types={new_names[name]: kind for name, kind in body.types.items()},
        consts={new_names[name]: data for name, data in body.consts.items()},
    )


def flatten_graph(graph: Graph) -> Graph:
    """Return a graph that contains the nodes, types and constants of a graph and of all bodies of its loops.

    Its inputs and outputs include those of the bodies. The result can be analysed but not run."""
    inputs, outputs, types, consts = [*graph.inputs], [*graph.outputs], {**graph.types}, {**graph.consts}
    nodes: list[Node] = []
    for node in graph.nodes:
        body = find_quantisable_loop_body(node)
        if body is not None:
            flat = flatten_graph(body)
            inputs += flat.inputs
            outputs += flat.outputs
            types |= flat.types
            consts |= flat.consts
            nodes += flat.nodes
        nodes.append(node)
    return replace(graph, inputs=tuple(inputs), outputs=tuple(outputs), nodes=tuple(nodes), types=types, consts=consts)


class ValueLink(NamedTuple):
    """Two names of the same value: data flow from the name ``source`` to the name ``target``.

    The names are those outside of a loop and in its body, in an iteration and the next one, or in a run and the next
    one."""

    source: str
    target: str


def find_loop_invariants(node: Node) -> Iterator[ValueLink]:
    """Yield the values that a loop passes unchanged to all iterations: ``source`` is outside, ``target`` in the loop's
    body.

    A node that is no loop has none."""
    body = find_quantisable_loop_body(node)
    if body is not None:
        carried = node.attr("carried")
        yield from starmap(ValueLink, zip(node.inputs[carried:], body.inputs[1 + carried :], strict=True))


def find_loop_links(node: Node) -> Iterator[ValueLink]:
    """Yield the pairs of names that a loop gives to the same value.

    The names are those outside of the loop and in its body, or in an iteration and the next one."""
    yield from find_loop_invariants(node)
    body = find_quantisable_loop_body(node)
    if body is not None:
        carried = node.attr("carried")
        states = body.inputs[1 : 1 + carried]
        yield from starmap(ValueLink, zip(node.inputs[:carried], states, strict=True))
        yield from starmap(ValueLink, zip(body.outputs[:carried], states, strict=True))
        yield from starmap(ValueLink, zip(body.outputs, node.outputs, strict=True))


def expose_values(graph: Graph, values: Iterable[str]) -> Graph:
    """Add values in bodies of loops as results of their loops, so that the values can be observed; return the new
    graph.

    ``values``: names of the values; names outside of loops are ignored. A result has the same name as the value in the
    body, and contains the values of all iterations, stacked along a new first axis."""
    wanted = set(values)
    nodes, types = list[Node](), dict(graph.types)
    for node in graph.nodes:
        body = find_quantisable_loop_body(node)
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

    ``graph``: the flattened graph, with the nodes of all bodies of loops. ``consumers``: for each value the nodes that
    read it. ``makers``: for each value the node that computes it. ``links``: pairs of names of the same activation.
    ``recurrent``: values in loops, and values that depend on their own content in an earlier run."""

    def __init__(self, graph: Graph) -> None:
        self.graph = flatten_graph(graph)
        self.consumers, self.makers = self.graph.consumers(), self.graph.producer()
        state_links = [ValueLink(value, state) for state, value in self.graph.updates.items()]
        self.links = [
            link
            for link in (*(link for node in self.graph.nodes for link in find_loop_links(node)), *state_links)
            if all(map(self.is_activation, link))
            and (link.target in self.consumers or link.target in self.graph.outputs)
        ]
        self.recurrent = (self.graph.types.keys() - graph.types.keys()) | self.find_values_in_state_cycles()

    def find_values_in_state_cycles(self) -> set[str]:
        """Return the values on a path from a state back to the same state, within a run or over several runs."""
        forwards, backwards = dict[str, list[str]](), dict[str, list[str]]()
        steps = [(name, result) for node in self.graph.nodes for name in node.inputs for result in node.outputs]
        for name, result in (*steps, *((value, state) for state, value in self.graph.updates.items())):
            forwards.setdefault(name, []).append(result)
            backwards.setdefault(result, []).append(name)
        cycles = (find_reachable(state, forwards) & find_reachable(state, backwards) for state in self.graph.state)
        return set().union(*cycles)

    def is_float(self, value: str) -> bool:
        """Test whether the dtype of a value is float32."""
        return self.graph.types[value].dtype == "float32"

    def is_activation(self, name: str) -> bool:
        """Test whether a value is float32 and not constant. ``name``: name of the value; empty for an omitted
        operand."""
        return bool(name) and name not in self.graph.consts and self.is_float(name)

    def activations(self, node: Node) -> Iterator[str]:
        """Yield the operands of a node that are activations: float32 and not constant."""
        return filter(self.is_activation, node.inputs)

    def all_values(self) -> Iterator[str]:
        """Yield the names of all values except constants: inputs, then state, then results in the order of the
        nodes."""
        yield from self.graph.inputs
        yield from self.graph.state
        for node in self.graph.nodes:
            yield from node.outputs

    def only_user(self, value: str) -> Node | None:
        """Return the single node that reads a value; None if several or no nodes do, or if it is an output or next
        state."""
        users = self.consumers.get(value, ())
        is_kept = value in self.graph.outputs or value in self.graph.updates.values()
        return users[0] if len(users) == 1 and not is_kept else None

    def keeps_scale(self, node: Node) -> bool:
        """Test whether the result of a node can be stored with the scale of its first operand.

        This holds if every element of the result is an element of an operand, or a number between such elements."""
        return (only_moves_elements(node) or node.op in CHOICES or node.op == "resample") and self.is_float(
            node.outputs[0]
        )


def find_reachable(start: str, successors: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the values that can be reached from the value ``start`` in one or more steps.

    ``start`` is among them if a path returns to it. ``successors``: for each value the values that can be reached in
    one step."""
    reachable, pending = set[str](), [start]
    while pending:
        for name in successors.get(pending.pop(), ()):
            if name not in reachable:
                reachable.add(name)
                pending.append(name)
    return reachable


# ---- Ends of a network, at which noise is measured: its outputs, or the operand of the last function if this function saturates.
#
# After a softmax or a sigmoid, the outputs of most samples are near 0 or 1 in any case: saturated samples hide noise, and only a
# few samples determine it. Before the function all samples count. A number that is added to all classes does not change a softmax
# or an argmax. Before these functions, the mean over the classes is therefore subtracted.

_LAST_AXIS = -1
SATURATING: Mapping[str, int | None] = MappingProxyType(
    {"softmax": _LAST_AXIS, "log_softmax": _LAST_AXIS, "argmax": _LAST_AXIS, "argmin": _LAST_AXIS, "sigmoid": None}
)
"""Operators that saturate, each with its default axis: the axis along which it compares elements if it has no attribute
``axis``.

None: the operator computes each element alone."""


@frozen
class MeasuredEnd:
    """An end of a network: a value at which quantisation noise is measured.

    ``mean_axis``: the axis along which the mean is subtracted before noise is measured; None if no mean is
    subtracted."""

    value_name: str
    mean_axis: int | None = None

    def measured_part(self, array: Array) -> Array:
        """Return the array in which noise is measured, as float64: ``array``, minus its mean along ``self.mean_axis``
        if set."""
        measured = np.asarray(array, np.float64)
        return measured if self.mean_axis is None else measured - measured.mean(axis=self.mean_axis, keepdims=True)


def find_measured_ends(graph: Graph) -> dict[str, MeasuredEnd]:
    """Return for each output of a network the end at which the noise of the output is measured.

    The end is the output itself, or the operand of the operator that computes the output if this operator saturates."""
    producers = graph.producer()
    return {name: _find_measured_end(producers, name) for name in dict.fromkeys(graph.outputs)}


def _find_measured_end(producers: Mapping[str, Node], output: str) -> MeasuredEnd:
    """Return the end at which the noise of an output is measured.

    The end is the output itself. If saturating operators compute the output, the end is the operand of the first of
    them. ``producers``: the node that computes each value."""
    end, value = MeasuredEnd(output), output
    while value in producers:
        node = producers[value]
        if node.op in SATURATING:
            axis = SATURATING[node.op]
            end = MeasuredEnd(node.inputs[0], node.attr("axis") if "axis" in node.attrs else axis)
        elif not registry.get(node.op).moves:
            break
        value = node.inputs[0]
    return end


# ---- Layers as matrix products. Each result of a convolution or dense layer has a row of factors: the data that the weights are
# multiplied by.

_MAX_DEPTH = 2048
"""Maximum number of products in a layer's sum for which second moments are computed: they take 32 MB in float64."""


@frozen
class Layer:
    """A layer as a matrix product, with constant weights (O, taps ..., I); the last axis of its data are the channels.

    ``bias``: one number per output channel; zeros if the layer has no bias. ``output_size``: extents of the axes of the
    result between batch and channels, such as height and width.
    """

    node: Node
    weights: Array
    bias: Array
    product: Product
    output_size: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the layer's result."""
        return self.node.outputs[0]

    @property
    def data(self) -> str:
        """Name of the layer's first operand."""
        return self.node.inputs[0]

    @property
    def weight(self) -> str:
        """Name of the constant that contains the layer's weights."""
        return self.node.inputs[1]

    @property
    def depth(self) -> int:
        """Number of products in the sum that computes one element of the result."""
        return int(self.weights[0].size)

    @property
    def rows(self) -> Array:
        """Weights in the shape (groups, output channels of a group, depth), as float64."""
        return self.weights.reshape(self.product.groups, -1, self.depth).astype(np.float64)

    def sample_reads(self, data: Array, max_positions: int, random: np.random.Generator) -> SampledReads:
        """Choose at most ``max_positions`` random positions of the layer's result, and find the data that these
        positions read.

        ``data``: the layer's first operand. It may be stacked over the iterations of a loop, along an additional first
        axis."""
        images = data.size // int(np.prod(data.shape[-1 - len(self.output_size) :]))
        grid = (images, *self.output_size)
        positions = np.sort(_draw_random_indices(int(np.prod(grid)), max_positions, random))
        image, *indices = np.unravel_index(positions, grid)
        reads = map(self._read_indices_along_axis, self.product.windows, indices)
        # Image (P, 1, ...), rows (P, KH, 1, ...), columns (P, 1, KW, ...): together they index the windows (P, KH, KW, ...).
        rank = len(indices)
        axes = (np.expand_dims(read, [1 + k for k in range(rank) if k != axis]) for axis, read in enumerate(reads))
        return SampledReads(self, positions, (image.reshape(-1, *(1,) * rank), *axes))

    def _read_indices_along_axis(self, axis: WindowAxis, positions: Array) -> Array:
        """Return the indices of the data along an axis that results read, in the shape (positions, taps).

        ``positions``: indices of the results along the axis. For a tap that reads padding, the index that is returned
        is the extent of the data."""
        taps = np.arange(axis.taps) * axis.dilation
        if not self.product.transposed:
            source, exists, extent = positions[:, None] * axis.stride - axis.before + taps, np.True_, axis.extent
        else:
            source, remainder = np.divmod(positions[:, None] + axis.before - taps, axis.stride)
            exists, extent = remainder == 0, axis.count
        return np.where(exists & (source >= 0) & (source < extent), source, extent)


@frozen
class SampledReads:
    """Randomly chosen positions of a layer's result, and the data that weights are multiplied by to compute these
    positions.

    ``positions``: indices of the positions, counted over all images. ``window_indices``: image, row and column of the
    data that are read, as arrays that index the padded data."""

    layer: Layer
    positions: Array
    window_indices: tuple[Array, ...]

    def gather_factors(self, data: Array) -> Array:
        """Return the data that weights are multiplied by at the chosen positions, in the shape (groups, positions,
        depth).

        ``data``: the layer's first operand."""
        layer = self.layer
        rank, groups = len(layer.output_size), layer.product.groups
        padded = np.pad(data.reshape(-1, *data.shape[-1 - rank :]), ((0, 0), *((0, 1),) * rank, (0, 0)))
        windows = padded[self.window_indices].astype(np.float64)
        parts = windows.reshape(len(windows), -1, groups, layer.weights.shape[-1])
        return np.moveaxis(parts, 2, 0).reshape(groups, len(windows), layer.depth)


def find_matrix_layers(graph: Graph, weight_names: frozenset[str]) -> Iterator[Layer]:
    """Yield the layers that can be written as matrix products, including layers in bodies of loops.

    ``weight_names``: names of the weights whose layers are wanted. A layer is left out if another layer has the same
    weights, if it has more than :data:`_MAX_DEPTH` products in a sum, or if its layout, padding value or bias is not
    supported."""
    flat = flatten_graph(graph)
    users = [node.inputs[1] for node in flat.nodes if registry.is_layer(node)]
    for node in flat.nodes:
        if not registry.is_layer(node) or node.inputs[1] not in weight_names or users.count(node.inputs[1]) > 1:
            continue
        product = registry.product_of(node, flat.types)
        assert product is not None
        if product.channel_axis != -1 or product.pad_value:
            continue
        data = flat.consts[node.inputs[1]]
        name = (*node.inputs, "", "")[2]
        bias = np.zeros(len(data), np.float32) if not name else flat.consts.get(name)
        if bias is not None and bias.size == len(data) and data[0].size <= _MAX_DEPTH:
            yield Layer(node, data, bias.reshape(-1), product, flat.types[node.outputs[0]].shape[1:-1])


def _draw_random_indices(index_count: int, max_count: int, random: np.random.Generator) -> Array:
    """Return all indices below ``index_count``, or ``max_count`` random ones of them if there are more."""
    return np.arange(index_count) if index_count <= max_count else random.choice(index_count, max_count, replace=False)


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
_ADDITIONS = frozenset(("add", "sub"))
_HOMOGENEOUS_ACTIVATIONS = ("", "relu")
"""Values of the attribute ``activation`` (a fused activation) that are positively homogeneous; empty: no activation."""


class ChannelUnits:
    """Units of the channels of a float graph, numbered from 0. Channels of the same unit are divided by the same
    factor.

    ``count``: number of units. ``free``: boolean array (count,), True if the factor of a unit can be chosen, False if
    it must be 1. The units are found by union-find over all channels."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._first_channels: dict[str, int] = {}
        total = 0
        for name in graph.types:
            if name not in graph.consts:
                self._first_channels[name], total = total, total + channel_count(graph, name)
        self._parents = list(range(total))
        fixed = np.zeros(total, bool)
        for name in (*graph.inputs, *graph.outputs, *graph.state, *graph.updates.values()):
            if name in self._first_channels:
                fixed[self._channel_slice_of(name)] = True
        for node in graph.nodes:
            if not self._join_units_of_node_channels(node):
                for name in (*node.inputs, *node.outputs):
                    if name in self._first_channels:
                        fixed[self._channel_slice_of(name)] = True
        roots = np.array([self._find_root_channel(channel) for channel in range(total)], np.int64)
        _, self._unit_of_channel = np.unique(roots, return_inverse=True)
        self.count = int(self._unit_of_channel.max(initial=-1)) + 1
        self.free = np.ones(self.count, bool)
        self.free[self._unit_of_channel[fixed]] = False

    def units_of_channels(self, value: str) -> Array:
        """Return the number of the unit of each channel of a value, as an array (channels,)."""
        return np.asarray(self._unit_of_channel[self._channel_slice_of(value)])

    def group_by_common_unit(self, values: Sequence[str]) -> Iterator[list[str]]:
        """Group ``values`` so that values with a common unit are in the same list; yield the lists.

        Two values are also in the same list if a chain of other values, with common units from one to the next,
        connects them."""
        owner: dict[int, int] = {}
        groups: list[list[str]] = []
        for value in values:
            units = set(self.units_of_channels(value).tolist())
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

    def can_convert_units(self, node: Node) -> bool:
        """Test whether a node is a layer whose constant weights and bias can convert one unit into another.

        These are dense layers, convolutions of one group, and depthwise convolutions."""
        if node.attrs.get("activation", "") not in _HOMOGENEOUS_ACTIVATIONS or node.attrs.get("pad_value", 0):
            return False
        return sums_over_all_channels(self.graph, node) or (
            registry.is_layer(node) and find_channel_links(self.graph, node) is not None
        )

    def rescale_graph(self, unit_factors: Array) -> Graph:
        """Divide each channel of the graph by the factor of its unit; return the new graph.

        ``unit_factors``: array (count,) with the factor of each unit. Only constants change. The network computes the
        same function if the factor of every unit that is not free is 1."""
        names, types, consts = NameSet(self.graph.types), dict(self.graph.types), dict(self.graph.consts)

        def add_constant(name: str, data: Array) -> str:
            fresh = names.fresh(name)
            consts[fresh] = data.astype(np.float32)
            types[fresh] = replace(types[name], shape=data.shape)
            return fresh

        def convert_node(node: Node) -> Node:
            changed = self._rescale_constants(node, unit_factors)
            inputs = (add_constant(name, changed[name]) if name in changed else name for name in node.inputs)
            return replace(node, inputs=tuple(inputs))

        return self.graph.with_nodes(list(map(convert_node, self.graph.nodes)), types=types, consts=consts)

    def _rescale_constants(self, node: Node, unit_factors: Array) -> dict[str, Array]:
        """Rescale the constants of a node for channels that are divided by the factors of their units; return them by
        name.

        ``unit_factors``: array (count,) with the factor of each unit. Constants that do not change are left out."""
        constants = [name for name in node.inputs if name in self.graph.consts]
        if (
            not constants
            or len(node.outputs) != 1
            or not (self.can_convert_units(node) or node.op in _ADDITIONS or self._is_channelwise_factor(node))
        ):
            return {}
        out_factors = unit_factors[self.units_of_channels(node.outputs[0])]
        in_factors = next(
            (unit_factors[self.units_of_channels(name)] for name in node.inputs if name in self._first_channels),
            out_factors,
        )
        if (out_factors == 1).all() and (in_factors == 1).all():
            return {}
        consts = {name: self.graph.consts[name].astype(np.float64) for name in constants}
        if node.op in _ADDITIONS:
            return {name: array / out_factors for name, array in consts.items()}
        if not self.can_convert_units(node):
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

    def _join_units_of_node_channels(self, node: Node) -> bool:
        """Join the units of channels that a node connects. Return False if the node requires fixed units.

        Layers and constant factors connect no channels, because they can convert units."""
        if len(node.outputs) != 1 or self.graph.types[node.outputs[0]].dtype != "float32":
            return False
        if self.can_convert_units(node) or self._is_channelwise_factor(node):
            return True
        is_homogeneous = node.op in HOMOGENEOUS and node.attrs.get("activation", "") in _HOMOGENEOUS_ACTIVATIONS
        if not is_homogeneous or (node.op == "pad" and node.attr("value")):
            return False
        links = find_channel_links(self.graph, node)
        computed = {k for k, name in enumerate(node.inputs) if name in self._first_channels}
        has_constant = any(name in self.graph.consts for name in node.inputs) and node.op not in _ADDITIONS
        if links is None or has_constant or {link.operand_index for link in links} != computed:
            return False
        for link in links:
            first_source, first_target = (
                self._first_channels[node.inputs[link.operand_index]],
                self._first_channels[node.outputs[0]],
            )
            for source, target in zip(link.operand_channels.tolist(), link.result_channels.tolist(), strict=True):
                self._join_units(first_source + source, first_target + target)
        return True

    def _is_channelwise_factor(self, node: Node) -> bool:
        """Test whether a node multiplies each channel by a constant of its own."""
        if node.op != "mul" or node.attrs.get("activation", "") not in _HOMOGENEOUS_ACTIVATIONS:
            return False
        count = channel_count(self.graph, node.outputs[0])
        constants = [name for name in node.inputs if name in self.graph.consts]
        return len(constants) == 1 and all(channel_count(self.graph, name) == count for name in node.inputs)

    def _channel_slice_of(self, value: str) -> slice:
        """Return the range of a value's channels among the channels of all values."""
        start = self._first_channels[value]
        return slice(start, start + channel_count(self.graph, value))

    def _find_root_channel(self, channel: int) -> int:
        """Return the channel that represents the unit of a channel in the union-find structure."""
        while self._parents[channel] != channel:
            self._parents[channel] = channel = self._parents[self._parents[channel]]
        return channel

    def _join_units(self, channel: int, other_channel: int) -> None:
        """Join the units of two channels, given by their indices among all channels."""
        self._parents[self._find_root_channel(other_channel)] = self._find_root_channel(channel)
