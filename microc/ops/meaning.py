"""What a node computes, at any stage of the passes: its operator's reference, or that of the core operators that it stands for.

A surface operator on quantised tensors, or with an ``activation``, means what ``OpDef.legalize`` makes of it (or ``expand``, of
one that names others): how it rounds, and where it saturates, is in the types of its operands, which a reference is not given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc.dtypes import Array
from microc.graph import interp
from microc.graph.ir import Graph, Node
from microc.ops import registry


def meaning(graph: Graph) -> interp.Apply:
    """How nodes of ``graph`` are applied, for :func:`microc.graph.interp.run`.

    A node that no compiled network can have is refused as compiling it would be (UnsupportedError).
    """

    def apply(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
        definition = registry.get(node.op)
        made_of = definition.expand or definition.legalize
        found = made_of(node, graph) if made_of is not None else None
        if found is None:
            return definition.reference({**definition.defaults, **node.attrs}, arrays)
        nodes, types, consts = found
        inner = replace(graph, types={**graph.types, **types}, consts={**graph.consts, **consts})
        given = dict(zip((name for name in node.inputs if name), arrays, strict=True))
        part = Graph(graph.name, tuple(given), node.outputs, tuple(nodes), inner.types, consts)
        values = interp.run(part, given, meaning(inner))
        return [values[name] if name else arrays[0] for name in node.outputs]

    return apply


def evaluate(
    graph: Graph, inputs: Mapping[str, Array], state: Mapping[str, Array] | None = None
) -> tuple[list[Array], dict[str, Array]]:
    """The outputs of a graph and its state afterwards; ``state`` is the one before (the initial one unless given)."""
    values = interp.run(graph, inputs, meaning(graph), state)
    return [values[name] for name in graph.outputs], {name: values[value] for name, value in graph.updates.items()}
