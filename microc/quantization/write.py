# SPDX-License-Identifier: Apache-2.0
"""Write the quantised graph of a float graph and its recipe.

Operators become ``dequantize -> operator -> quantize`` first, and then integer operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Attr, Graph, Loc, NameSet, Node, Quant, TensorType
from microc.graph.match import without_dead_nodes
from microc.ops import registry
from microc.ops.attributes import Ties
from microc.quantization.integer_scheme import Activation, Weight, quantise_array
from microc.quantization.network_structure import find_quantisable_loop_body, flatten_graph
from microc.transform.canonicalise import rewrite_layer_norms_to_fixed_point
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised import qdq
from microc.transform.quantised.legalize import convert_requantisation_to_fixed_point
from microc.transform.quantised.qdq_values import CLAMPS
from microc.transform.quantised.weight_types import quantise_dynamic_layers_by_rows


@frozen
class Recipe:
    """Recipe of a quantised network: the dtype and quantisation (storage) of values, by name. All other values stay in
    floats.

    ``activations`` and ``weights``: storage of activations and of constants. ``storage_of_narrowed``: activations that
    layers read in fewer bits than they are stored in, with the storage in which they are read. Layers whose results are
    in ``wide_results`` read all bits. ``block_size``: number of inputs that share a multiplier in weights of few bits;
    0 without multipliers. ``dequantised_weights``: weights whose layers compute in floats. ``dynamic_range_weights``:
    those of the latter whose layers quantise their data at run time, with a scale for each row. ``power_of_two``: True
    if all scales are powers of two."""

    activations: Mapping[str, Activation]
    weights: Mapping[str, Weight]
    storage_of_narrowed: Mapping[str, Activation] = field(default_factory=dict)
    wide_results: frozenset[str] = frozenset()
    block_size: int = 0
    dequantised_weights: frozenset[str] = frozenset()
    power_of_two: bool = False
    dynamic_range_weights: frozenset[str] = frozenset()

    def reads_narrowed_data(self, node: Node) -> bool:
        """Test whether a node is a layer that reads its first operand in fewer bits than the operand is stored in."""
        return (
            registry.is_layer(node)
            and node.inputs[0] in self.storage_of_narrowed
            and node.outputs[0] not in self.wide_results
        )

    def storage_of_read_data(self, node: Node) -> Activation:
        """Return the dtype and quantisation with which a layer reads its first operand."""
        return (self.storage_of_narrowed if self.reads_narrowed_data(node) else self.activations)[node.inputs[0]]


@frozen
class QuantisedGraph:
    """A quantised graph.

    ``graph``: its scales are fixed-point multipliers. ``exact``: the same network with float scales, as ONNX defines
    them. ``stored``: for each value of the float network the name of its integers in ``graph``. Passes may have removed
    these integers as redundant."""

    graph: Graph
    exact: Graph
    stored: Mapping[str, str]


@frozen
class SimulatedGraph:
    """A float graph in which every value that the recipe stores is quantised and dequantised again.

    ``data``: the name of each layer's first operand in this graph, by the name of the layer's result in the float
    graph."""

    graph: Graph
    data: Mapping[str, str]


def write_simulated_graph(graph: Graph, recipe: Recipe) -> SimulatedGraph:
    """Build the simulation of a quantised network in floats: every value that the recipe stores is rounded.

    It differs from the integer network only in the rounding inside of operators other than layers."""
    writer = _QuantisedGraphBuilder(graph, recipe, NameSet(flatten_graph(graph).types), {}, {})
    return SimulatedGraph(writer.build_graph(), writer.data)


def write_quantised_graph(graph: Graph, recipe: Recipe) -> QuantisedGraph:
    """Build the quantised graph of a float graph and its recipe. Integers are scaled by fixed-point multipliers,
    rounded once."""
    writer = _QuantisedGraphBuilder(graph, recipe, NameSet(flatten_graph(graph).types), {}, {})
    exact = _dequantise_weights(run_passes(writer.build_graph(), (qdq.PASS,), PassContext()), recipe, writer.names)
    fixed = convert_requantisation_to_fixed_point(rewrite_layer_norms_to_fixed_point(exact))
    return QuantisedGraph(fixed, exact, {**writer.stored, **dict(writer.find_replacements_of_removed_integers(fixed))})


class _QuantisedGraphBuilder:
    """Builder of the graph that quantises and dequantises every activation of the recipe.

    Constants and state are stored as integers and dequantised. Inputs and outputs of the graph stay floats. ``real``:
    name of the dequantised value by the name of the original value. ``stored``: name of the integers by the name of the
    original value. ``data``: name of each layer's first operand by the name of the layer's result. ``names``,
    ``stored`` and ``data`` are shared with the builders for the bodies of loops."""

    def __init__(
        self, graph: Graph, recipe: Recipe, names: NameSet, stored: dict[str, str], data: dict[str, str]
    ) -> None:
        self.graph, self.recipe = graph, recipe
        self.names, self.makers = names, graph.producer()
        self.nodes: list[Node] = []
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.real: dict[str, str] = {}
        self.stored_constants: dict[str, str] = {}
        self.narrow: dict[str, str] = {}
        self.stored, self.data = stored, data

    def build_graph(self) -> Graph:
        for name in self.graph.consts:
            if name in self.recipe.weights and name not in self.recipe.dequantised_weights:
                self.write_weight(name, self.recipe.weights[name])
        for name in self.graph.inputs:
            self.write_quantize_and_dequantize(name, name)
        state = dict(self.write_initial_state(name, start) for name, start in self.graph.state.items())
        for node in self.graph.nodes:
            made = {name: self.new_name_of_result(name) for name in node.outputs}
            self.nodes.append(
                replace(self.quantise_body_of_loop(node), inputs=self.read_operands(node), outputs=tuple(made.values()))
            )
            for name, source in made.items():
                self.write_quantize_and_dequantize(name, source)
        updates = dict(self.write_update(name, value) for name, value in self.graph.updates.items())
        return without_dead_nodes(
            self.graph.with_nodes(self.nodes, types=self.types, consts=self.consts, state=state, updates=updates)
        )

    def quantise_body_of_loop(self, node: Node) -> Node:
        """Return a node; if it is a loop, with its body quantised by the recipe as well."""
        body = find_quantisable_loop_body(node)
        if body is None:
            return node
        inside = _QuantisedGraphBuilder(body, self.recipe, self.names, self.stored, self.data)
        return replace(node, attrs={**node.attrs, "body": inside.build_graph()})

    def read_operands(self, node: Node) -> tuple[str, ...]:
        """Return the names of the dequantised operands of a node. For a layer, record the first of them in ``data``."""
        inputs = [self.real.get(name, name) for name in node.inputs]
        if self.recipe.reads_narrowed_data(node):
            inputs[0] = self.name_of_narrowed_value(node.inputs[0])
        if registry.is_layer(node):
            self.data[node.outputs[0]] = inputs[0]
        return tuple(inputs)

    def name_of_narrowed_value(self, name: str) -> str:
        """Return the name of the dequantised value that layers read instead of ``name``, with fewer bits."""
        if name not in self.narrow:
            self.narrow[name] = self.names.fresh(f"{name}_narrow")
            self.write_rounding_of_value(
                name, self.real[name], self.recipe.storage_of_narrowed[name], self.narrow[name]
            )
        return self.narrow[name]

    def new_name_of_result(self, name: str) -> str:
        """Return the new name of an operator's result.

        It is a new one for an output of the graph that the recipe stores: the dequantised value then has the output's
        name."""
        if name not in self.graph.outputs or name not in self.recipe.activations:
            return name
        fresh = self.names.fresh(f"{name}_real")
        self.types[fresh] = self.types[name]
        return fresh

    def find_replacements_of_removed_integers(self, integer_graph: Graph) -> Iterator[tuple[str, str]]:
        """Yield values whose integers passes have removed, with the name of equal integers in ``integer_graph``.

        If a clamp was removed because saturation implies it, the integers are those of its operand. Otherwise they are
        the first operand of the layer that reads the value."""
        for node in self.graph.nodes:
            name, operand_name = node.outputs[0], f"{node.inputs[0]}_quantized"
            is_removed = node.op in CLAMPS and name in self.stored and self.stored[name] not in integer_graph.types
            operand = integer_graph.types.get(operand_name) if is_removed else None
            if operand is not None and operand.quant == self.recipe.activations[name].quant:
                yield name, operand_name
        readers = [node for node in integer_graph.nodes if registry.is_layer(node)]
        for node in self.graph.nodes:
            if registry.is_layer(node) and self.stored.get(node.inputs[0]) not in integer_graph.types:
                weight = self.stored_constants.get(node.inputs[1])
                data_names = {reader.inputs[0] for reader in readers if reader.inputs[1] == weight}
                if len(data_names) == 1 and integer_graph.types[min(data_names)].quant is not None:
                    yield node.inputs[0], data_names.pop()

    def write_weight(self, name: str, weight: Weight) -> None:
        """Write a constant: its stored integers, and a node that dequantises them."""
        stored = self.stored_constants[name] = self.names.fresh(f"{name}_quantized")
        self.types[stored] = TensorType(weight.data.shape, str(weight.data.dtype), layout=self.types[name].layout)
        self.consts[stored] = weight.data
        self.real[name] = self.names.fresh(f"{name}_dequantized")
        self.write_dequantize(stored, name, weight.quant, self.real[name])

    def write_initial_state(self, name: str, initial_value: Array) -> tuple[str, Array]:
        """Return the name of a state's integers and their initial value; for a state in floats its name and initial
        value."""
        storage = self.recipe.activations.get(name)
        if storage is None:
            return name, initial_value
        stored = self.stored[name] = self.add_integer_value(name, storage)
        self.real[name] = name
        self.write_dequantize(stored, name, storage.quant, name)
        return stored, quantise_array(initial_value, storage.quant, storage.dtype)

    def write_update(self, name: str, value: str) -> tuple[str, str]:
        """Return the name of a state's integers and the name of their next value; for a state in floats the names of
        both."""
        storage = self.recipe.activations.get(name)
        if storage is None:
            return name, self.real.get(value, value)
        if self.recipe.activations.get(value) == storage:
            return self.stored[name], self.stored[value]
        return self.stored[name], self.write_quantize(name, self.real.get(value, value), storage)

    def write_quantize_and_dequantize(self, name: str, source: str) -> None:
        """Write the pair of nodes that quantises a value and dequantises it again, if the recipe stores the value.

        ``name``: the value's name in the float graph. ``source``: its name here before it is quantised."""
        storage = self.recipe.activations.get(name)
        if storage is not None:
            self.real[name] = name if source != name else self.names.fresh(f"{name}_dequantized")
            self.stored[name] = self.write_rounding_of_value(name, source, storage, self.real[name])

    def write_rounding_of_value(self, name: str, source: str, storage: Activation, real: str) -> str:
        """Write a node that quantises ``source``, and a node that dequantises the integers to ``real``.

        Return the name of the integers. ``name``: the value's name in the float graph."""
        stored = self.write_quantize(name, source, storage)
        self.write_dequantize(stored, name, storage.quant, real)
        return stored

    def write_quantize(self, name: str, source: str, storage: Activation) -> str:
        """Write the node that quantises ``source``. Return the name of the integers.

        ``name``: the value's name in the float graph."""
        stored, attrs = (
            self.add_integer_value(name, storage),
            {**_attrs_of_quantize_node(storage.quant), "out_dtype": storage.dtype},
        )
        self.nodes.append(
            Node("quantize", (source,), (stored,), {**attrs, "rounding": Ties.EVEN}, self.location_of(name))
        )
        return stored

    def add_integer_value(self, name: str, storage: Activation) -> str:
        """Return a new name for the integers of a value, and record their type."""
        stored, kind = self.names.fresh(f"{name}_quantized"), self.graph.types[name]
        self.types[stored] = TensorType(kind.shape, storage.dtype, layout=kind.layout)
        return stored

    def write_dequantize(self, stored: str, name: str, quant: Quant, real: str) -> None:
        """Write the node that dequantises the integers ``stored`` to the float value ``real``.

        ``name``: the value's name in the float graph."""
        self.types[real] = replace(self.types[stored], dtype="float32")
        self.nodes.append(
            Node("dequantize", (stored,), (real,), _attrs_of_quantize_node(quant), self.location_of(name))
        )

    def location_of(self, name: str) -> Loc:
        """Return the location in the model of the node that computes a value, or of the input or constant itself."""
        maker = self.makers.get(name)
        return maker.loc if maker is not None else self.graph.location_of_input(name)


def _dequantise_weights(graph: Graph, recipe: Recipe, names: NameSet) -> Graph:
    """Return the graph with integer weights, which are dequantised, for the layers that compute in floats.

    Layers in bodies of loops are included. Dynamic-range layers become products of integers. This must follow the qdq
    pass, which would convert such layers to integer layers if their operands and results were integers."""
    types, consts, dequantizers = dict(graph.types), dict(graph.consts), list[Node]()
    for name in sorted(recipe.dequantised_weights & consts.keys()):
        weight, stored = recipe.weights[name], names.fresh(f"{name}_quantized")
        types[stored], consts[stored] = replace(types[name], dtype=str(weight.data.dtype)), weight.data
        del consts[name]
        dequantizers.append(
            Node("dequantize", (stored,), (name,), _attrs_of_quantize_node(weight.quant), graph.location_of_input(name))
        )
    nodes = list(dequantizers)
    for node in graph.nodes:
        body = find_quantisable_loop_body(node)
        if body is not None:
            node = replace(node, attrs={**node.attrs, "body": _dequantise_weights(body, recipe, names)})
        if registry.is_layer(node) and node.inputs[1] in recipe.dynamic_range_weights:
            node = replace(node, attrs={**node.attrs, "dynamic": "symmetric"})
        nodes.append(node)
    return quantise_dynamic_layers_by_rows(graph.with_nodes(nodes, types=types, consts=consts))


def _attrs_of_quantize_node(quant: Quant) -> dict[str, Attr]:
    """Return a quantisation as the attributes of a ``quantize`` or ``dequantize`` node."""
    return {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
