"""Layers by the names that their users know: a model's own name of the operator, its result's, or its weight's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from microc.driver import accepted
from microc.errors import UsageError
from microc.graph.ir import Graph, Node
from microc.quantization.loops import flattened
from microc.transform.qdq import LAYERS

BITS = (8, 4, 2)
"""Bits that weights may have."""
_SHOWN = 12


def labels(graph: Graph, weights: Iterable[str]) -> dict[str, str]:
    """Weight -> what its layer is called, one name for each."""
    readers = {node.inputs[1]: node for node in reversed(flattened(graph).nodes) if node.op in LAYERS}
    named = {weight: readers[weight].loc.name or readers[weight].outputs[0] for weight in weights}
    found = list(named.values())
    return {weight: name if found.count(name) == 1 else readers[weight].outputs[0] for weight, name in named.items()}


def widths(graph: Graph, weights: Sequence[str], given: Mapping[str, int]) -> dict[str, int]:
    """Bits by the results of layers on ``weights``, from bits by their names. UsageError for a layer that is not there, or other
    bits."""
    layers = [node for node in flattened(graph).nodes if node.op in LAYERS and node.inputs[1] in weights]
    known = {name: node.outputs[0] for node in layers for name in _names(node)}
    found: dict[str, int] = {}
    for name, bits in accepted.by_name("bits", given, _bits).items():
        if name not in known:
            raise _unknown(name, labels(graph, weights).values())
        found[known[name]] = bits
    return found


def by_weight(graph: Graph, widths: Mapping[str, int]) -> dict[str, int]:
    """The same by weight."""
    return {node.inputs[1]: widths[node.outputs[0]] for node in flattened(graph).nodes if node.outputs[0] in widths}


def floating(graph: Graph, given: Iterable[str]) -> frozenset[str]:
    """The results of operators that shall stay in floats. UsageError for one that is not there."""
    found: set[str] = set()
    for name in accepted.names("float_layers", given):
        values = {node.outputs[0] for node in graph.nodes if name in _names(node)}
        if not values:
            raise _unknown(name, (node.loc.name or node.outputs[0] for node in graph.nodes))
        found |= values
    return frozenset(found)


def _names(node: Node) -> Iterator[str]:
    if node.loc.name:
        yield node.loc.name
    yield node.outputs[0]
    if node.op in LAYERS:
        yield node.inputs[1]


def _bits(what: str, value: Any) -> int:
    return int(accepted.choice(what, value, BITS))


def _unknown(name: str, known: Iterable[str]) -> UsageError:
    there = list(dict.fromkeys(known))
    more = f", and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    return UsageError(f"there is no layer {name!r}", hint=f"layers: {', '.join(there[:_SHOWN])}{more}")
