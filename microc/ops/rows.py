"""A fusion group for some rows of its result: the graph that a layer that works row by row is lowered from.

A group can work so when its anchor says which rows it reads (``OpDef.window``) and everything else that it reads is constant
along the height, or has the result's own shape. Tensors are (1, height, width, channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.ops.axes import Window


def row_window(graph: Graph, nodes: Sequence[Node], data: str) -> Window | None:
    """Which rows of ``data`` a row of the group's result needs; None if the group cannot work row by row of it."""
    result = graph.types[nodes[-1].outputs[0]]
    values = [data, *(name for node in nodes for name in node.outputs if name), *companions(graph, nodes, data)]
    if any(graph.types[v].shape != result.shape for v in values[1:]) or not (
        _image(graph.types[data]) and _image(result)
    ):
        return None
    if sum(node.inputs.count(data) for node in nodes) != 1 or not _alike_in_every_row(graph, nodes):
        return None
    first, definition = nodes[0], registry.get(nodes[0].op)
    if definition.elementwise:
        return Window() if graph.types[data].shape == result.shape else None
    constant = all(v in graph.consts for v in first.inputs[1:] if v)
    if definition.window is None or first.inputs[0] != data or not constant:
        return None
    window = definition.window(first.attrs, [graph.types[v] for v in first.inputs if v])
    return None if window is None or (window.pad_value is None and any(window.padding)) else window


def companions(graph: Graph, nodes: Sequence[Node], data: str) -> tuple[str, ...]:
    """What a group reads beside ``data`` and constants: of these it takes the rows that it makes."""
    made = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v)
    return tuple(v for v in read if v != data and v not in made and v not in graph.consts)


def row_group(
    graph: Graph, nodes: Sequence[Node], data: str, window: Window, rows: int
) -> tuple[Graph, tuple[Node, ...]]:
    """The group for ``rows`` rows of its result, alone in a graph: ``data`` is the window that they need."""
    result, types = graph.types[nodes[-1].outputs[0]], dict(graph.types)
    beside = companions(graph, nodes, data)
    for name in (*beside, *(name for node in nodes for name in node.outputs if name)):
        types[name] = replace(types[name], shape=(1, rows, *result.shape[2:]))
    types[data] = replace(
        types[data], shape=(1, (rows - 1) * window.strides[0] + window.reach(0), *types[data].shape[2:])
    )
    first = nodes[0]
    if "padding" in first.attrs:
        _, left, _, right = window.padding
        first = replace(first, attrs={**first.attrs, "padding": (0, left, 0, right)})
    alone = replace(graph, inputs=(data, *beside), outputs=nodes[-1].outputs, types=types, state={}, updates={})
    members = (first, *nodes[1:])
    return alone.with_nodes(members), members


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
