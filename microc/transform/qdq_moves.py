"""Integers that are only moved stand for the same numbers before and behind: one quantisation for both.

Quantisers of operators let Reshape and Transpose work on integers, of which the file says nothing more; what reads and
what writes them says which numbers they stand for. Rules that change the order of operators rely on that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry


def spread_quantisation(graph: Graph) -> Graph:
    """The graph where both sides of a move carry the quantisation, per tensor, that one of them has."""
    types = dict(graph.types)
    moves = [node for node in graph.nodes if registry.get(node.op).moves]
    _spread(types, moves)
    _spread(types, reversed(moves))
    return graph.with_nodes(graph.nodes, types=types)


def _spread(types: dict[str, TensorType], moves: Iterable[Node]) -> None:
    for node in moves:
        ends = node.inputs[0], node.outputs[0]
        for known, other in (ends, ends[::-1]):
            quant = types[known].quant
            if quant is not None and quant.axis is None and types[other].quant is None:
                types[other] = replace(types[other], quant=quant)


def is_function(node: Node) -> bool:
    """Whether it is a function of one number, of which integers of any two scales are a table."""
    definition = registry.get(node.op)
    return definition.elementwise and len(node.inputs) == 1 and "rounding" in definition.attrs and node.op != "quantize"


def moves(node: Node) -> bool:
    """Whether elements of the result are those of the first operand, or what pads them."""
    picks = node.op == "resample" and len(node.inputs) == 1 + len(node.attr("axes"))
    return registry.get(node.op).moves or node.op == "pad" or picks
