"""Attention in a fused graph: scores, their softmax, and what it weighs, each a group."""

from __future__ import annotations

from collections.abc import Mapping

from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.ops import registry

_SOFTMAX = frozenset(("softmax", "qsoftmax", "qsoftmax_scaled", "qsoftmax16"))


@frozen
class Attention:
    """Three groups, each of an anchor and elementwise nodes behind it: ``scores`` (..., M, N), ``weights`` of its rows, and the
    ``product`` (..., M, P) with the values. Nothing else reads the first two."""

    scores: tuple[Node, ...]
    weights: tuple[Node, ...]
    product: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.scores, *self.weights, *self.product)

    @property
    def queries(self) -> str:
        return self.scores[0].inputs[0]


def find_attention(graph: Graph) -> tuple[Attention, ...]:
    """All of a fused graph."""
    groups: dict[str, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node.group:
            groups[node.group] = (*groups.get(node.group, ()), node)
    makers = {group[-1].outputs[0]: group for group in groups.values()}
    readers = graph.consumers()

    def before(group: tuple[Node, ...]) -> tuple[Node, ...]:
        """The group that makes the first operand of a group's anchor, for it alone."""
        name = group[0].inputs[0]
        alone = name not in graph.outputs and [id(node) for node in readers.get(name, ())] == [id(group[0])]
        return makers.get(name, ()) if alone else ()

    found = []
    for product in groups.values():
        weights = before(product) if _is_product(graph, product) else ()
        scores = before(weights) if weights and _is_softmax(graph, weights) else ()
        if scores and _is_product(graph, scores) and not product[0].attrs["axes_a"]:
            found.append(Attention(scores, weights, product))
    return tuple(found)


def _is_product(graph: Graph, group: tuple[Node, ...]) -> bool:
    return group[0].op == "matmul" and group[0].inputs[0] != group[0].inputs[1] and _plain(graph, group)


def _is_softmax(graph: Graph, group: tuple[Node, ...]) -> bool:
    axis: Mapping[str, object] = group[0].attrs
    rank = len(graph.types[group[0].inputs[0]].shape)
    return group[0].op in _SOFTMAX and axis.get("axis", rank - 1) in (-1, rank - 1) and _plain(graph, group)


def _plain(graph: Graph, group: tuple[Node, ...]) -> bool:
    """Whether a group's results are all alike, and no node behind the anchor speaks of an axis."""
    shape = graph.types[group[0].outputs[0]].shape
    return all(graph.types[node.outputs[0]].shape == shape and len(node.outputs) == 1 for node in group) and all(
        registry.get(node.op).elementwise and node.attrs.get("axis") is None for node in group[1:]
    )
