"""A float graph and what was decided for it become a quantised graph: first ``dequantize -> operator -> quantize``, then
integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Attr, Graph, Loc, Names, Node, Quant, TensorType
from microc.graph.match import without_dead_nodes
from microc.ops.attributes import Ties
from microc.quantization.integer_scheme import Activation, Weight, rounded
from microc.quantization.network_structure import body_of, flattened
from microc.transform.canonicalise import norms_in_fixed_point
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised import qdq
from microc.transform.quantised.legalize import in_fixed_point
from microc.transform.quantised.qdq import LAYERS
from microc.transform.quantised.qdq_values import CLAMPS
from microc.transform.quantised.weight_types import quantise_by_rows


@frozen
class Recipe:
    """What is decided, by name: how activations and constants are stored, and how layers read those activations that they do not
    read as they are stored (``narrowed``), but layers whose results are in ``wide``. All else stays in floats. ``block``: inputs
    that share a multiplier in weights of few bits, 0 where none do. ``opened``: those weights whose layers compute in floats;
    ``power_of_two``: all scales are powers of two; ``by_rows``: those of ``opened`` whose layers quantise their data row by row
    when they are there."""

    activations: Mapping[str, Activation]
    weights: Mapping[str, Weight]
    narrowed: Mapping[str, Activation] = field(default_factory=dict)
    wide: frozenset[str] = frozenset()
    block: int = 0
    opened: frozenset[str] = frozenset()
    power_of_two: bool = False
    by_rows: frozenset[str] = frozenset()

    def narrows(self, node: Node) -> bool:
        """Whether a node reads its data as fewer bits than they are stored in."""
        return node.op in LAYERS and node.inputs[0] in self.narrowed and node.outputs[0] not in self.wide

    def read(self, node: Node) -> Activation:
        """How a layer reads its data."""
        return (self.narrowed if self.narrows(node) else self.activations)[node.inputs[0]]


@frozen
class Written:
    """A quantised graph. ``exact``: the same, scaled by floats, as ONNX defines it. ``stored``: what the integers of a
    value are called, unless they were found superfluous."""

    graph: Graph
    exact: Graph
    stored: Mapping[str, str]


@frozen
class Simulated:
    """The float graph with a pair of ``quantize`` and ``dequantize`` behind every value that is stored. ``data``: what layers
    read there, by the names of their results in the float graph."""

    graph: Graph
    data: Mapping[str, str]


def simulated(graph: Graph, recipe: Recipe) -> Simulated:
    """The quantised network in floats: as it is but for how operators that are no layers round inside."""
    writer = _Writer(graph, recipe, Names(flattened(graph).types), {}, {})
    return Simulated(writer.run(), writer.data)


def quantised(graph: Graph, recipe: Recipe) -> Written:
    """The graph on integers, scaled by fixed-point multipliers that round once."""
    writer = _Writer(graph, recipe, Names(flattened(graph).types), {}, {})
    exact = _with_opened(run_passes(writer.run(), (qdq.PASS,), PassContext()), recipe, writer.names)
    made = in_fixed_point(norms_in_fixed_point(exact))
    return Written(made, exact, {**writer.stored, **dict(writer.renamed(made))})


class _Writer:
    """The float graph with a pair of ``quantize`` and ``dequantize`` behind every activation of the recipe, and its constants
    and state dequantised from integers. Inputs and outputs stay what they are.

    ``real``: what stands for a value's reals from where it became integers on; ``stored``: the integers; ``data``: the first
    operands of layers. ``names``, ``stored`` and ``data`` are those of all graphs, of this one and of bodies.
    """

    def __init__(
        self, graph: Graph, recipe: Recipe, names: Names, stored: dict[str, str], data: dict[str, str]
    ) -> None:
        self.graph, self.recipe = graph, recipe
        self.names, self.makers = names, graph.producer()
        self.nodes: list[Node] = []
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.real: dict[str, str] = {}
        self.stored_constants: dict[str, str] = {}
        self.narrow: dict[str, str] = {}
        self.stored, self.data = stored, data

    def run(self) -> Graph:
        for name in self.graph.consts:
            if name in self.recipe.weights and name not in self.recipe.opened:
                self.weight(name, self.recipe.weights[name])
        for name in self.graph.inputs:
            self.pair(name, name)
        state = dict(self.started(name, start) for name, start in self.graph.state.items())
        for node in self.graph.nodes:
            made = {name: self.made(name) for name in node.outputs}
            self.nodes.append(replace(self.with_body(node), inputs=self.read(node), outputs=tuple(made.values())))
            for name, source in made.items():
                self.pair(name, source)
        updates = dict(self.updated(name, value) for name, value in self.graph.updates.items())
        return without_dead_nodes(
            self.graph.with_nodes(self.nodes, types=self.types, consts=self.consts, state=state, updates=updates)
        )

    def with_body(self, node: Node) -> Node:
        body = body_of(node)
        if body is None:
            return node
        inside = _Writer(body, self.recipe, self.names, self.stored, self.data)
        return replace(node, attrs={**node.attrs, "body": inside.run()})

    def read(self, node: Node) -> tuple[str, ...]:
        """The operands as they are from where they became integers on."""
        inputs = [self.real.get(name, name) for name in node.inputs]
        if self.recipe.narrows(node):
            inputs[0] = self.narrowed(node.inputs[0])
        if node.op in LAYERS:
            self.data[node.outputs[0]] = inputs[0]
        return tuple(inputs)

    def narrowed(self, name: str) -> str:
        """What layers read of a value."""
        if name not in self.narrow:
            self.narrow[name] = self.names.fresh(f"{name}_narrow")
            self.through(name, self.real[name], self.recipe.narrowed[name], self.narrow[name])
        return self.narrow[name]

    def made(self, name: str) -> str:
        """What an operator's result is called: an output's name belongs to what is dequantised at the end."""
        if name not in self.graph.outputs or name not in self.recipe.activations:
            return name
        fresh = self.names.fresh(f"{name}_real")
        self.types[fresh] = self.types[name]
        return fresh

    def renamed(self, made: Graph) -> Iterator[tuple[str, str]]:
        """What a value is called where it lost its name, since a clamp that its range implies is gone: as what is clamped, or as
        what layers read."""
        for node in self.graph.nodes:
            name, made_as = node.outputs[0], f"{node.inputs[0]}_quantized"
            gone = node.op in CLAMPS and name in self.stored and self.stored[name] not in made.types
            if gone and made_as in made.types and made.types[made_as].quant == self.recipe.activations[name].quant:
                yield name, made_as
        readers = [node for node in made.nodes if node.op in LAYERS]
        for node in self.graph.nodes:
            if node.op in LAYERS and self.stored.get(node.inputs[0]) not in made.types:
                weight = self.stored_constants.get(node.inputs[1])
                found = {reader.inputs[0] for reader in readers if reader.inputs[1] == weight}
                if len(found) == 1 and made.types[min(found)].quant is not None:
                    yield node.inputs[0], found.pop()

    def weight(self, name: str, weight: Weight) -> None:
        stored = self.stored_constants[name] = self.names.fresh(f"{name}_quantized")
        self.types[stored] = TensorType(weight.data.shape, str(weight.data.dtype), layout=self.types[name].layout)
        self.consts[stored] = weight.data
        self.real[name] = self.names.fresh(f"{name}_dequantized")
        self.dequantize(stored, name, weight.quant, self.real[name])

    def started(self, name: str, start: Array) -> tuple[str, Array]:
        """A state as it is stored, and the integers nearest to what it starts with."""
        how = self.recipe.activations.get(name)
        if how is None:
            return name, start
        stored = self.stored[name] = self.integers(name, how)
        self.real[name] = name
        self.dequantize(stored, name, how.quant, name)
        return stored, rounded(start, how.quant, how.dtype)

    def updated(self, name: str, value: str) -> tuple[str, str]:
        """A state as it is stored, and what it holds next."""
        how = self.recipe.activations.get(name)
        if how is None:
            return name, self.real.get(value, value)
        if self.recipe.activations.get(value) == how:
            return self.stored[name], self.stored[value]
        return self.stored[name], self.quantize(name, self.real.get(value, value), how)

    def pair(self, name: str, source: str) -> None:
        how = self.recipe.activations.get(name)
        if how is not None:
            self.real[name] = name if source != name else self.names.fresh(f"{name}_dequantized")
            self.stored[name] = self.through(name, source, how, self.real[name])

    def through(self, name: str, source: str, how: Activation, real: str) -> str:
        """``real`` becomes what is left of ``source`` behind integers; those."""
        stored = self.quantize(name, source, how)
        self.dequantize(stored, name, how.quant, real)
        return stored

    def quantize(self, name: str, source: str, how: Activation) -> str:
        stored, attrs = self.integers(name, how), {**_attributes(how.quant), "out_dtype": how.dtype}
        self.nodes.append(Node("quantize", (source,), (stored,), {**attrs, "rounding": Ties.EVEN}, self.place(name)))
        return stored

    def integers(self, name: str, how: Activation) -> str:
        """A name for what is stored of a value."""
        stored, kind = self.names.fresh(f"{name}_quantized"), self.graph.types[name]
        self.types[stored] = TensorType(kind.shape, how.dtype, layout=kind.layout)
        return stored

    def dequantize(self, stored: str, name: str, quant: Quant, real: str) -> None:
        self.types[real] = replace(self.types[stored], dtype="float32")
        self.nodes.append(Node("dequantize", (stored,), (real,), _attributes(quant), self.place(name)))

    def place(self, name: str) -> Loc:
        maker = self.makers.get(name)
        return maker.loc if maker is not None else self.graph.place(name)


def _with_opened(graph: Graph, recipe: Recipe, names: Names) -> Graph:
    """The graph, bodies of loops too, that dequantises the integers of weights whose layers compute in floats: behind the pass,
    which would make integer layers of those between integers. Layers of dynamic range are products of integers there."""
    types, consts, first = dict(graph.types), dict(graph.consts), list[Node]()
    for name in sorted(recipe.opened & consts.keys()):
        weight, stored = recipe.weights[name], names.fresh(f"{name}_quantized")
        types[stored], consts[stored] = replace(types[name], dtype=str(weight.data.dtype)), weight.data
        del consts[name]
        first.append(Node("dequantize", (stored,), (name,), _attributes(weight.quant), graph.place(name)))
    nodes = list(first)
    for node in graph.nodes:
        body = body_of(node)
        if body is not None:
            node = replace(node, attrs={**node.attrs, "body": _with_opened(body, recipe, names)})
        if node.op in LAYERS and node.inputs[1] in recipe.by_rows:
            node = replace(node, attrs={**node.attrs, "dynamic": "symmetric"})
        nodes.append(node)
    return quantise_by_rows(graph.with_nodes(nodes, types=types, consts=consts))


def _attributes(quant: Quant) -> dict[str, Attr]:
    return {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
