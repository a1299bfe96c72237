"""Layers by the names that their users know: a model's own name of the operator, its result's, or its weight's."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from microc.driver import accepted
from microc.errors import UsageError, suggestion
from microc.graph.ir import Graph, Node
from microc.quantization.loops import flattened
from microc.transform.qdq import LAYERS
from microc.transform.qdq_moves import moves
from microc.transform.qdq_values import CHOICES

BITS = (8, 4, 2)
"""Bits that weights may have."""
WIDE_BITS, FLOAT_BITS = 16, 32
"""Of an operator: its activations have 16 bits, its weights 8; it stays in floats."""
WIDTHS = (FLOAT_BITS, WIDE_BITS, *BITS)
ALL = "all"
"""The name of every layer."""


def labels(graph: Graph, weights: Iterable[str]) -> dict[str, str]:
    """Weight -> what its layer is called, one name for each."""
    readers = {node.inputs[1]: node for node in reversed(flattened(graph).nodes) if node.op in LAYERS}
    named = {weight: readers[weight].loc.name or readers[weight].outputs[0] for weight in weights}
    found = list(named.values())
    return {weight: name if found.count(name) == 1 else readers[weight].outputs[0] for weight, name in named.items()}


def widths(graph: Graph, weights: Sequence[str], given: Mapping[str, int]) -> dict[str, int]:
    """Bits by the results of operators, from bits by their names. UsageError for an operator that is not there, or that cannot
    have so many: without weights 16 is all there is."""
    known = {name: node for node in reversed(flattened(graph).nodes) for name in _names(node)}
    found: dict[str, int] = {}
    for name, bits in accepted.by_name("bits", given, _bits).items():
        if name not in known:
            raise _unknown(name, labels(graph, weights).values())
        node = known[name]
        if bits != WIDE_BITS and (node.op not in LAYERS or node.inputs[1] not in weights):
            raise UsageError(
                f"{name!r} has no weights that could have {bits} bits", hint=f"{WIDE_BITS}, for its activations"
            )
        found[node.outputs[0]] = bits
    return found


def everywhere(graph: Graph, weights: Sequence[str], bits: int) -> dict[str, int]:
    """``bits`` for each of ``weights``, but 8 in depthwise and grouped convolutions: kernels store these as bytes whatever their
    numbers are, so that fewer bits would save nothing."""
    nodes = (node for node in flattened(graph).nodes if node.op in LAYERS)
    grouped = {node.inputs[1] for node in nodes if node.attrs.get("groups", 1) != 1}
    return {name: 8 if name in grouped else bits for name in weights}


def by_weight(graph: Graph, widths: Mapping[str, int]) -> dict[str, int]:
    """The same by weight, of layers."""
    return {
        node.inputs[1]: widths[node.outputs[0]]
        for node in flattened(graph).nodes
        if node.outputs[0] in widths and node.op in LAYERS
    }


def of_weights(widths: Mapping[str, int]) -> dict[str, int]:
    """The bits of weights that go with widths: of 16 bits and in floats what fits beside int16, 8."""
    return {name: min(bits, BITS[0]) for name, bits in widths.items()}


def of_width(graph: Graph, widths: Mapping[str, int], bits: int) -> frozenset[str]:
    """The results of operators of so many bits, as they or their weights are named."""
    return frozenset(
        node.outputs[0]
        for node in flattened(graph).nodes
        if widths.get(node.outputs[0]) == bits or (node.op in LAYERS and widths.get(node.inputs[1]) == bits)
    )


def readers(graph: Graph, value: str) -> list[str]:
    """What to name so that a value has 16 bits where it is read: the operators that read its elements, or else make it."""
    flat = flattened(graph)
    users = flat.consumers().get(value, ())
    moved = [
        readers(flat, node.outputs[0]) if moves(node) or node.op in CHOICES else [node.outputs[0]] for node in users
    ]
    return list(dict.fromkeys(name for names in moved for name in names)) or [value]


def floating(graph: Graph, given: Iterable[str]) -> frozenset[str]:
    """The results of operators that shall stay in floats. UsageError for one that is not there."""
    found: set[str] = set()
    for name in accepted.names("float_layers", given):
        values = {node.outputs[0] for node in graph.nodes if name in _names(node)}
        if not values:
            raise _unknown(name, (node.loc.name or node.outputs[0] for node in graph.nodes))
        found |= values
    return frozenset(found)


def opening(graph: Graph, given: Iterable[str]) -> frozenset[str]:
    """The results of layers on floats whose weights alone shall be integers. UsageError for one that is not there, or whose
    weights kernels cannot open: computed ones, those of grouped and transposed convolutions."""
    can = [node for node in _with_constant_weights(graph) if _opens(node)]
    return _chosen(
        graph, "weight_only", given, can, "the weights of {!r} cannot be opened where they are read",
        "of convolutions of one group and dense layers, constant weights can; leave the others out",
    )  # fmt: skip


def by_rows(graph: Graph, given: Iterable[str]) -> frozenset[str]:
    """The results of layers that shall quantise their data row by row when they are there, and have integer weights. UsageError
    for one that is not there, or whose weights are computed."""
    return _chosen(
        graph, "dynamic_range", given, _with_constant_weights(graph), "the weights of {!r} are computed",
        "dense layers and convolutions with constant weights have a form of dynamic range; leave the others out",
    )  # fmt: skip


def weights_of(graph: Graph, results: Container[str]) -> frozenset[str]:
    """What the layers of these results multiply by."""
    return frozenset(
        node.inputs[1] for node in flattened(graph).nodes if node.op in LAYERS and node.outputs[0] in results
    )


def all_floating(graph: Graph, *given: Iterable[str]) -> frozenset[str]:
    """All values where one of these speaks of all layers: what else there is stays in floats."""
    everything = any(list(names) == [ALL] for names in given)
    return frozenset(flattened(graph).types) if everything else frozenset()


def _chosen(
    graph: Graph, what: str, given: Iterable[str], can: Sequence[Node], refusal: str, hint: str
) -> frozenset[str]:
    """The results of those layers of ``can`` that are named. UsageError for another one."""
    named = accepted.names(what, given)
    if list(named) == [ALL]:
        return frozenset(node.outputs[0] for node in can)
    found: set[str] = set()
    for name in named:
        values = {node.outputs[0] for node in can if name in _names(node)}
        if not values and any(name in _names(node) for node in flattened(graph).nodes if node.op in LAYERS):
            raise UsageError(refusal.format(name), hint=hint)
        if not values:
            raise _unknown(name, (node.loc.name or node.outputs[0] for node in can))
        found |= values
    return frozenset(found)


def _with_constant_weights(graph: Graph) -> list[Node]:
    flat = flattened(graph)
    return [node for node in flat.nodes if node.op in LAYERS and node.inputs[1] in flat.consts]


def _opens(node: Node) -> bool:
    return node.op in ("conv2d", "dense") and node.attrs.get("groups", 1) == 1


def _names(node: Node) -> Iterator[str]:
    if node.loc.name:
        yield node.loc.name
    yield node.outputs[0]
    if node.op in LAYERS:
        yield node.inputs[1]


def _bits(what: str, value: Any) -> int:
    return int(accepted.choice(what, value, WIDTHS))


def _unknown(name: str, known: Iterable[str]) -> UsageError:
    return UsageError(f"there is no layer {name!r}", hint=suggestion(name, known, "layers"))
