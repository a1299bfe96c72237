"""A fusion group for one row of its result: the graph that a row-streamed layer is lowered from.

A layer can be computed row by row when its anchor says which rows it reads (``OpDef.rows``) and everything else that it reads
is constant along height and width, or has the result's own shape. Tensors are (1, height, width, channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.ops.registry import RowWindow


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A group for one row. ``graph`` holds its ``nodes`` alone, on a padded window of the value ``data``.

    ``by_row``: values of the result's shape of which it reads the same row.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    window: RowWindow
    data: str
    by_row: tuple[str, ...]


def row_group(graph: Graph, nodes: Sequence[Node], data: str) -> RowGroup | None:
    """The group for one row, made from rows of ``data``; None if it cannot be computed so."""
    result = graph.types[nodes[-1].outputs[0]]
    made = {name for node in nodes for name in node.outputs if name}
    others = dict.fromkeys(v for n in nodes for v in n.inputs if v and v not in made and v != data)
    by_row = tuple(v for v in others if v not in graph.consts)
    alike = all(graph.types[v].shape == result.shape for v in (*made, *by_row))
    window = _window(graph, nodes, data) if alike and _image(graph.types[data]) and _image(result) else None
    if window is None or not _alike_in_every_row(graph, nodes):
        return None
    types = dict(graph.types)
    for name in (*made, *by_row):
        types[name] = replace(types[name], shape=(1, 1, *result.shape[2:]))
    _, _, width, channels = types[data].shape
    _, left, _, right = window.padding
    types[data] = replace(types[data], shape=(1, window.reach, left + width + right, channels))
    first = nodes[0]
    if "padding" in first.attrs:
        first = replace(first, attrs={**first.attrs, "padding": (0, 0, 0, 0)})
    row = replace(graph, inputs=(data, *by_row), outputs=(nodes[-1].outputs[0],), types=types, state={}, updates={})
    return RowGroup(row.with_nodes((first, *nodes[1:])), (first, *nodes[1:]), window, data, by_row)


def _window(graph: Graph, nodes: Sequence[Node], data: str) -> RowWindow | None:
    """What the group reads of ``data``: the anchor's window, or the same row where there is none."""
    first, definition = nodes[0], registry.get(nodes[0].op)
    if sum(node.inputs.count(data) for node in nodes) != 1:
        return None
    if definition.elementwise:
        return RowWindow() if graph.types[data].shape == graph.types[nodes[-1].outputs[0]].shape else None
    constant = all(v in graph.consts for v in first.inputs[1:] if v)
    if definition.rows is None or first.inputs[0] != data or not constant:
        return None
    return definition.rows(first.attrs, [graph.types[v] for v in first.inputs if v])


def _alike_in_every_row(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether the constants of elementwise nodes do not vary along height and width."""
    for node in nodes:
        definition, channels = registry.get(node.op), graph.types[node.outputs[0]].shape[-1]
        for position, name in enumerate(node.inputs):
            if not definition.elementwise or name not in graph.consts or position in definition.whole:
                continue
            kind = graph.types[name]
            if kind.size != 1 and not (kind.size == kind.shape[-1] == channels):
                return False
    return True


def _image(kind: TensorType) -> bool:
    return len(kind.shape) == 4 and kind.shape[0] == 1
