"""Loops over time, block by block: what a turn multiplies of the data alone is multiplied for several turns at once.

A recurrent layer's turn multiplies the data's row by one matrix and what it carries by another. Only the second has to wait for
the turn before. A single row takes every weight for one product, several rows share them. So a loop of 48 turns becomes one of 8,
each of which multiplies 6 rows and then runs a loop of 6 turns. The products of a block take no more memory than the data of all
turns; those of all turns at once often take several times as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from microc import dtypes
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name
from microc.transform.context import WHERE_REQUIRED, Pass, PassContext

TURNS = (6, 3, 8, 5, 7, 4)
"""Turns of a block, the best first: tiles of rows mostly have three, and larger blocks gain little for their memory."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A turn's ``dense`` of what it gathers of the fixed value ``data`` by its number, and nothing else does."""

    data: str
    gather: Node
    dense: Node


def blocked_turns(graph: Graph, context: PassContext) -> Graph:
    """The graph with such loops in blocks."""
    nodes: list[Node] = []
    types = dict(graph.types)
    for node in graph.nodes:
        nodes += _blocked(node, types) if node.op == "loop" else [node]
    return graph if len(nodes) == len(graph.nodes) else replace(graph, types=types).with_nodes(nodes)


def _blocked(loop: Node, types: dict[str, TensorType]) -> list[Node]:
    """The loop over blocks, and the views around it; ``types`` gets theirs. The loop itself where it stays."""
    body, count, carried = loop.attr("body"), loop.attr("count"), loop.attr("carried")
    layer = None if loop.attr("guarded") else _layer(body, carried, count)
    block = 0 if layer is None else _turns(body, layer, count)
    if layer is None or not block:
        return [loop]
    place = body.inputs.index(layer.data) - 1
    data, rows = loop.inputs[place], body.types[layer.gather.outputs[0]]
    made: list[Node] = []

    def view(value: str, shape: tuple[int, ...], name: str) -> str:
        types[name] = replace(types[value], shape=shape)
        made.append(Node("reshape", (value,), (name,), {"shape": shape}, loop.loc))
        return name

    blocks = (count // block, block, rows.shape[1])
    inputs = [*loop.inputs]
    inputs[place] = view(data, blocks, fresh_name(types, f"{data}.blocks"))
    outer = _outer(loop, layer, block, replace(types[data], shape=blocks))
    stacked = loop.outputs[carried:]
    whole = [fresh_name(types, f"{name}.blocks") for name in stacked]
    for name, wide in zip(stacked, whole, strict=True):
        types[wide] = replace(types[name], shape=(count // block, block, *types[name].shape[1:]))
    attrs: Mapping[str, Attr] = {**loop.attrs, "body": outer, "count": count // block}
    made.append(replace(loop, inputs=tuple(inputs), outputs=(*loop.outputs[:carried], *whole), attrs=attrs))
    for name, wide in zip(stacked, whole, strict=True):
        view(wide, types[name].shape, name)
    return made


def _layer(body: Graph, carried: int, count: int) -> _Layer | None:
    """That of a turn, of a single row, where nothing else asks for the turn's number or for the data."""
    turn, fixed = body.inputs[0], body.inputs[1 + carried :]
    users = {name: [node for node in body.nodes if name in node.inputs] for name in body.types}
    for dense in body.nodes:
        gather = next((n for n in body.nodes if dense.op == "dense" and n.outputs == dense.inputs[:1]), None)
        if gather is None or gather.op != "gather" or gather.inputs[1] != turn or gather.inputs[0] not in fixed:
            continue
        data, row = gather.inputs[0], gather.outputs[0]
        kind, alone = body.types[data], all(users[name] == [gather] for name in (turn, data)) and users[row] == [dense]
        single = body.types[row].shape == (1, kind.shape[-1]) and kind.size == count * kind.shape[-1]
        constant = all(name in body.consts for name in dense.inputs[1:] if name)
        if alone and single and constant and not {row, *dense.outputs}.intersection(body.outputs):
            return _Layer(data, gather, dense)
    return None


def _turns(body: Graph, layer: _Layer, count: int) -> int:
    """Turns of a block: as many as leave none over and take no more memory than the data; 0 where they are too few."""
    row, data = body.types[layer.dense.outputs[0]], body.types[layer.data]
    even = (n for n in TURNS if n < count and count % n == 0)
    return next((n for n in even if n * row.size * dtypes.nbytes(row.dtype) <= data.nbytes), 0)


def _outer(loop: Node, layer: _Layer, block: int, data: TensorType) -> Graph:
    """A block: its rows, their products, the loop over its turns."""
    body, carried = loop.attr("body"), loop.attr("carried")
    dense, gather = layer.dense, layer.gather
    row, made = body.types[gather.outputs[0]], body.types[dense.outputs[0]]
    several, products = replace(row, shape=(block, row.shape[1])), replace(made, shape=(block, made.shape[1]))
    inner = _inner(body, layer, replace(made, shape=(block, *made.shape)))
    consts = {name: body.consts[name] for name in dense.inputs[1:] if name}
    types = {name: body.types[name] for name in (*body.inputs, *consts)} | {layer.data: data}
    rows, sums, turns = (fresh_name(types, f"{stem}.block") for stem in (gather.outputs[0], dense.outputs[0], "turns"))
    types |= {rows: several, sums: products, turns: inner.types[layer.data]}
    outputs = [fresh_name(types, f"{name}.block") for name in body.outputs]
    for k, (name, result) in enumerate(zip(outputs, body.outputs, strict=True)):
        kind = body.types[result]
        types[name] = kind if k < carried else replace(kind, shape=(block, *kind.shape))
    given = tuple(turns if name == layer.data else name for name in body.inputs[1:])
    nodes = (
        replace(gather, inputs=(layer.data, body.inputs[0]), outputs=(rows,), attrs={**gather.attrs, "axis": 0}),
        replace(dense, inputs=(rows, *dense.inputs[1:]), outputs=(sums,)),
        Node("reshape", (sums,), (turns,), {"shape": types[turns].shape}, dense.loc),
        replace(loop, inputs=given, outputs=tuple(outputs), attrs={**loop.attrs, "body": inner, "count": block}),
    )
    return Graph(body.name, body.inputs, tuple(outputs), nodes, types, consts)


def _inner(body: Graph, layer: _Layer, turns: TensorType) -> Graph:
    """A turn that takes its products as they are; what only they needed goes."""
    taken = replace(layer.gather, outputs=layer.dense.outputs, attrs={**layer.gather.attrs, "axis": 0})
    nodes = [taken if node == layer.gather else node for node in body.nodes if node != layer.dense]
    used = {name for node in nodes for name in node.inputs} | {*body.outputs}
    consts = {name: array for name, array in body.consts.items() if name in used}
    gone = {*layer.gather.outputs, *(body.consts.keys() - consts.keys())}
    types = {name: kind for name, kind in body.types.items() if name not in gone} | {layer.data: turns}
    return replace(body, types=types, consts=consts, nodes=tuple(nodes))


PASS = Pass("blocked_turns", blocked_turns, WHERE_REQUIRED, around=True)
"""Time for memory, more or less of both by core and network: it is for the user to say."""
