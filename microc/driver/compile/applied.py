"""What a call is made of, as the model has it: operators, their attributes in words, their constants."""

from __future__ import annotations

from collections.abc import Sequence

from microc.graph.ir import Attr, Graph, Node
from microc.module import Applied, Weights

_LONGEST = 120
"""Letters of an attribute that are kept."""
_INSIDE = frozenset({"algorithm", "bound", "shift_range", "multiplier", "shift"})
"""Attributes that passes keep for themselves."""


def applied(graph: Graph, nodes: Sequence[Node]) -> tuple[Applied, ...]:
    """The operators of some nodes, in order."""
    return tuple(Applied(node.op, _attributes(node), _weights(graph, node)) for node in nodes)


def _attributes(node: Node) -> tuple[tuple[str, str], ...]:
    """Those that say something."""
    said = ((name, value) for name, value in node.attrs.items() if name not in _INSIDE and value not in (None, "", ()))
    return tuple((name, _words(value)) for name, value in said)


def _words(value: Attr) -> str:
    if isinstance(value, Graph):
        return f"{len(value.nodes)} operators"
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _weights(graph: Graph, node: Node) -> tuple[Weights, ...]:
    found = []
    for name in node.inputs:
        if name in graph.consts:
            kind = graph.types[name]
            quant = kind.quant
            scales = (min(quant.scale), max(quant.scale), len(quant.scale)) if quant else None
            found.append(Weights(name, kind.dtype, kind.shape, scales, quant.axis if quant else None))
    return tuple(found)
