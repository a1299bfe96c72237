"""A float graph and what was decided for it become a quantised graph: first ``dequantize -> operator -> quantize``, then
integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from microc.graph.ir import Attr, Graph, Loc, Names, Node, Quant, TensorType
from microc.graph.rewriting import without_dead_nodes
from microc.ops.rounding import Ties
from microc.quantization.scheme import Activation, Weight
from microc.transform import qdq
from microc.transform.context import PassContext, run_passes
from microc.transform.layer_norm import norms_in_fixed_point
from microc.transform.rounding import in_fixed_point


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is decided: how activations and constants are stored, by name. All else stays in floats."""

    activations: Mapping[str, Activation]
    weights: Mapping[str, Weight]


@dataclass(frozen=True, slots=True)
class Written:
    """A quantised graph. ``exact``: the same, scaled by floats, as ONNX defines it. ``stored``: what the integers of a
    value are called, unless they were found superfluous."""

    graph: Graph
    exact: Graph
    stored: Mapping[str, str]


def quantised(graph: Graph, recipe: Recipe) -> Written:
    """The graph on integers, scaled by fixed-point multipliers that round once."""
    writer = _Writer(graph, recipe)
    exact = run_passes(writer.run(), (qdq.PASS,), PassContext())
    made = in_fixed_point(norms_in_fixed_point(exact))
    return Written(made, exact, {**writer.stored, **dict(writer.read(made))})


class _Writer:
    """The float graph with a pair of ``quantize`` and ``dequantize`` behind every activation of the recipe, and its constants
    dequantised from integers. Inputs and outputs stay what they are.

    ``real``: what stands for a value's reals from where it became integers on; ``stored``: the integers.
    """

    def __init__(self, graph: Graph, recipe: Recipe) -> None:
        self.graph, self.recipe = graph, recipe
        self.names, self.makers = Names(graph.types), graph.producer()
        self.nodes: list[Node] = []
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.real: dict[str, str] = {}
        self.stored: dict[str, str] = {}
        self.stored_constants: dict[str, str] = {}

    def run(self) -> Graph:
        for name, weight in self.recipe.weights.items():
            self.weight(name, weight)
        for name in (*self.graph.inputs, *self.graph.state):
            self.pair(name, name)
        for node in self.graph.nodes:
            inputs = tuple(self.real.get(name, name) for name in node.inputs)
            made = {name: self.made(name) for name in node.outputs}
            self.nodes.append(replace(node, inputs=inputs, outputs=tuple(made.values())))
            for name, source in made.items():
                self.pair(name, source)
        updates = {state: self.real.get(value, value) for state, value in self.graph.updates.items()}
        return without_dead_nodes(
            self.graph.with_nodes(self.nodes, types=self.types, consts=self.consts, updates=updates)
        )

    def made(self, name: str) -> str:
        """What an operator's result is called: an output's name belongs to what is dequantised at the end."""
        if name not in self.graph.outputs or name not in self.recipe.activations:
            return name
        fresh = self.names.fresh(f"{name}_real")
        self.types[fresh] = self.types[name]
        return fresh

    def read(self, made: Graph) -> Iterator[tuple[str, str]]:
        """What layers read where it lost its name: a clamp that its range implies is gone."""
        readers = [node for node in made.nodes if node.op in qdq.LAYERS]
        for node in self.graph.nodes:
            if node.op in qdq.LAYERS and self.stored.get(node.inputs[0]) not in made.types:
                weight = self.stored_constants.get(node.inputs[1])
                found = {reader.inputs[0] for reader in readers if reader.inputs[1] == weight}
                if len(found) == 1 and made.types[min(found)].quant is not None:
                    yield node.inputs[0], found.pop()

    def weight(self, name: str, weight: Weight) -> None:
        stored = self.stored_constants[name] = self.names.fresh(f"{name}_quantized")
        self.types[stored] = TensorType(weight.data.shape, str(weight.data.dtype), layout=self.types[name].layout)
        self.consts[stored] = weight.data
        self.dequantize(stored, name, weight.quant, self.names.fresh(f"{name}_dequantized"))

    def pair(self, name: str, source: str) -> None:
        how = self.recipe.activations.get(name)
        if how is None:
            return
        stored, kind = self.names.fresh(f"{name}_quantized"), self.graph.types[name]
        attrs = {**_attributes(how.quant), "out_dtype": how.dtype, "rounding": Ties.EVEN}
        self.types[stored] = TensorType(kind.shape, how.dtype, layout=kind.layout)
        self.stored[name] = stored
        self.nodes.append(Node("quantize", (source,), (stored,), attrs, self.place(name)))
        self.dequantize(stored, name, how.quant, name if source != name else self.names.fresh(f"{name}_dequantized"))

    def dequantize(self, stored: str, name: str, quant: Quant, real: str) -> None:
        self.types[real] = replace(self.types[stored], dtype="float32")
        self.nodes.append(Node("dequantize", (stored,), (real,), _attributes(quant), self.place(name)))
        self.real[name] = real

    def place(self, name: str) -> Loc:
        maker = self.makers.get(name)
        return maker.loc if maker is not None else self.graph.place(name)


def _attributes(quant: Quant) -> dict[str, Attr]:
    return {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
