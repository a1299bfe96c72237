"""Loops over time by blocks of iterations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from microc.base.immutable import frozen
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name, new_value
from microc.ops import registry
from microc.ops.control import scanned_of
from microc.ops.matrix.gemm import Levels, find_levels
from microc.ops.recurrent.lstm import Turn
from microc.tir.bit_fields import bits_of
from microc.transform.pass_context import WHERE_REQUIRED, Pass, PassContext

# ---- Loops over time, block by block: what a turn multiplies of the data alone is multiplied for several turns at
# once.
#
# A recurrent layer's turn multiplies the data's row by one matrix and what it carries by another. Only the second has to wait for
# the turn before. A single row takes every weight for one product, several rows share them. So a loop of 48 turns becomes one
# of 8, each of which multiplies 6 rows and then runs a loop of 6 turns. Where the last block has turns too many its inner loop
# is guarded, and rows behind the last are this one again. Products of all turns at once would take several times the data's
# memory.

TURNS = (3, 4, 6)
"""Turns of a block, the best first: tiles of rows mostly have three, and larger blocks gain little for their memory."""


@frozen
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
    """The loop over blocks, and the views behind it; ``types`` gets theirs. The loop itself where it stays."""
    body, count, carried = loop.attr("body"), loop.attr("count"), loop.attr("carried")
    layer = None if loop.attr("guarded") else _layer(body, carried, count)
    block = 0 if layer is None else _turns(count)
    if layer is None or not block:
        return [loop]
    blocks = -(-count // block)
    attrs: Mapping[str, Attr] = {**loop.attrs, "body": _outer(loop, layer, block), "count": blocks}
    stacked = loop.outputs[carried:]
    whole = tuple(fresh_name(types, f"{name}.blocks") for name in stacked)
    made = [replace(loop, outputs=(*loop.outputs[:carried], *whole), attrs=attrs)]
    for name, wide in zip(stacked, whole, strict=True):
        shape = types[name].shape[1:]
        types[wide] = replace(types[name], shape=(blocks, block, *shape))
        rows = name if blocks * block == count else fresh_name(types, f"{name}.rows")
        types[rows] = replace(types[name], shape=(blocks * block, *shape))
        made.append(Node("reshape", (wide,), (rows,), {"shape": types[rows].shape}, loop.loc))
        if rows != name:
            cut = {"begin": (0,) * (1 + len(shape)), "end": (count, *shape), "strides": (1,) * (1 + len(shape))}
            made.append(Node("slice", (rows,), (name,), cut, loop.loc))
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


def _turns(count: int) -> int:
    """Turns of a block: as many as leave the fewest over; 0 where there are no blocks."""
    return min((n for n in TURNS if n < count), key=lambda n: -count % n, default=0)


def _outer(loop: Node, layer: _Layer, block: int) -> Graph:
    """A block: its rows, their products, the loop over its turns."""
    body, count, carried = loop.attr("body"), loop.attr("count"), loop.attr("carried")
    write = Turn(loop.loc)
    turn, *given = (write.input(name, body.types[name]) for name in body.inputs)
    data, dense = body.types[layer.data], layer.dense
    rows = write.emit("gather", (layer.data, turn), data.quant, axis=layer.gather.attr("axis"), span=block)
    rows = write.emit("reshape", (rows,), data.quant, shape=(block, data.shape[-1]))
    weights = [name and write.constant(name, body.consts[name], body.types[name].quant) for name in dense.inputs[1:]]
    row = body.types[dense.outputs[0]]
    sums = write.emit("dense", (rows, *weights), row.quant, row.dtype, **dense.attrs)
    turns = write.emit("reshape", (sums,), row.quant, shape=(block, *row.shape))
    inner, states = _inner(body, layer, write.types[turns]), carried
    given = [turns if name == layer.data else name for name in given]
    if count % block:
        first = write.emit("mul", (turn, write.constant("turns", np.array(block, np.int32))))
        last = write.emit("sub", (write.constant("last", np.array(count - 1, np.int32)), first))
        given, inner, states = [write.constant("go", np.array(True)), *given, last], _guarded(inner), carried + 1
    kinds = [inner.types[name] for name in inner.outputs]
    kinds[states:] = [replace(kind, shape=(block, *kind.shape)) for kind in kinds[states:]]
    attrs = {**loop.attrs, "body": inner, "count": block, "carried": states, "guarded": states > carried}
    made = write.node(replace(loop, inputs=tuple(given), outputs=inner.outputs, attrs=attrs), kinds)
    return write.ending(body.name, made[states - carried :])


def _inner(body: Graph, layer: _Layer, turns: TensorType) -> Graph:
    """A turn that takes its products as they are; what only they needed goes."""
    taken = replace(layer.gather, outputs=layer.dense.outputs, attrs={**layer.gather.attrs, "axis": 0})
    nodes = [taken if node == layer.gather else node for node in body.nodes if node != layer.dense]
    used = {name for node in nodes for name in node.inputs} | {*body.outputs}
    consts = {name: array for name, array in body.consts.items() if name in used}
    gone = {*layer.gather.outputs, *(body.consts.keys() - consts.keys())}
    types = {name: kind for name, kind in body.types.items() if name not in gone} | {layer.data: turns}
    return replace(body, types=types, consts=consts, nodes=tuple(nodes))


def _guarded(body: Graph) -> Graph:
    """A turn behind which others come only as long as its number is less than the value that is given last."""
    taken = dict(body.types)
    flag, last, goes = (fresh_name(taken, stem) for stem in ("go", "last", "goes"))
    types = {**taken, flag: TensorType((), "bool"), last: body.types[body.inputs[0]], goes: TensorType((), "bool")}
    turn, *given = body.inputs
    test = Node("less", (turn, last), (goes,), dict(registry.get("less").defaults))
    return replace(
        body, inputs=(turn, flag, *given, last), outputs=(goes, *body.outputs), nodes=(*body.nodes, test), types=types
    )


BLOCKED_TURNS_PASS = Pass("blocked_turns", blocked_turns, WHERE_REQUIRED, around=True)
"""Time for memory, more or less of both by core and network: the driver compares (``compiler/fit/search.py``)."""


# ---- Loops that take what they gather by the number of their turn row by row: it is read where it lies, and nothing
# is copied.


def scanned_rows(graph: Graph, context: PassContext) -> Graph:
    """The graph with such loops."""
    nodes: list[Node] = []
    types = dict(graph.types)
    for node in graph.nodes:
        nodes += _scanning(node, types) if node.op == "loop" else [node]
    return graph if nodes == [*graph.nodes] else replace(graph, types=types).with_nodes(nodes)


def _scanning(loop: Node, types: dict[str, TensorType]) -> list[Node]:
    """The loop, and the views before it; ``types`` gets theirs."""
    body: Graph = loop.attr("body")
    scanned = scanned_of(loop)
    gathers = _gathers(body, int(loop.attr("carried")), scanned, int(loop.attr("count")))
    if not gathers:
        return [loop]
    views, inputs, outer = [], list(body.inputs), list(loop.inputs)
    for gather in gathers:
        place, row = inputs.index(gather.inputs[0]), body.types[gather.outputs[0]]
        data = outer.pop(place - 1)
        del inputs[place]
        shape = (int(loop.attr("count")), *row.shape)
        name = new_value(types, f"{data}.scanned", replace(types[data], shape=shape))
        views.append(Node("reshape", (data,), (name,), {"shape": shape}, loop.loc))
        outer.append(name)
        inputs.append(gather.outputs[0])
    gone = {gather.inputs[0] for gather in gathers}
    turn = replace(
        body,
        inputs=tuple(inputs),
        nodes=tuple(node for node in body.nodes if node not in gathers),
        types={name: kind for name, kind in body.types.items() if name not in gone},
    )
    attrs = {**loop.attrs, "body": turn, "scanned": scanned + len(gathers)}
    return [*views, replace(loop, inputs=tuple(outer), attrs=attrs)]


def _gathers(body: Graph, carried: int, scanned: int, count: int) -> list[Node]:
    """Those of a fixed value along the axis that the turns number, before which there are none, and which nothing else reads."""
    turn, fixed = body.inputs[0], body.inputs[1 + carried : len(body.inputs) - scanned]
    found = []
    for node in body.nodes:
        if node.op != "gather" or node.inputs[0] not in fixed or node.inputs[1] != turn:
            continue
        data = node.inputs[0]
        shape, size = body.types[data].shape, body.types[node.outputs[0]].size
        outer = shape[: node.attr("axis") % len(shape)]
        alone = sum(other.inputs.count(data) for other in body.nodes) == 1 and data not in body.outputs
        if alone and prod(outer) == 1 and size * count == body.types[data].size:
            found.append(node)
    return found


SCANNED_ROWS_PASS = Pass("scanned_rows", scanned_rows, 2, around=True)


# ---- Layers of floats whose constant weights are integers times scales, with these opened before the layer runs.
#
# A product that opens its weights in registers does so again for every few rows. Opened first, they are read as they are, and
# take RAM while the layer runs. A sum changes by no more than :mod:`microc.ops.matrix.gemm` says.

ROWS = 8
"""Rows of a product from which on weights serve often enough to be worth it."""
LAYERS = ("conv2d", "dense")
BYTE = 8


def opened_weights(graph: Graph, context: PassContext) -> Graph:
    """The graph with all such weights opened first."""
    found = find_opened(graph)
    return with_opened(graph, found, found) if found else graph


def find_opened(graph: Graph) -> dict[str, Levels]:
    """By name, the weights of such layers, each channel's with one scale; those of few bits, packed for the flash, stay."""
    found = {}
    for node in graph.nodes:
        name = node.inputs[1] if node.op in LAYERS else ""
        array = graph.consts.get(name)
        if array is None or array.dtype != "float32" or node.attrs.get("groups", 1) != 1 or _rows(graph, node) < ROWS:
            continue
        levels = find_levels(array.reshape(len(array), -1))
        if levels is not None and levels.scales.shape[1] == 1 and bits_of(levels.values) == BYTE:
            found[name] = levels
    return found


def _rows(graph: Graph, node: Node) -> int:
    """Of a layer's product: its results over its channels."""
    return prod(graph.types[node.outputs[0]].shape) // max(graph.types[node.inputs[1]].shape[0], 1)


def with_opened(graph: Graph, found: Mapping[str, Levels], chosen: Collection[str]) -> Graph:
    """The graph, fused or not, with the chosen weights opened by kernels of their own, each in front of the first layer that
    reads it."""
    types, consts = dict(graph.types), {name: array for name, array in graph.consts.items() if name not in chosen}
    nodes, waiting, groups = list[Node](), set(chosen), {node.group for node in graph.nodes}
    for node in graph.nodes:
        for name in dict.fromkeys(name for name in node.inputs if name in waiting):
            shape, levels = types[name].shape, found[name]
            factors = levels.scales.reshape(-1, *(1 for _ in shape[1:]))
            whole = new_value(types, f"{name}.levels", TensorType(shape, "int8"))
            real = new_value(types, f"{name}.real", TensorType(shape, "float32"))
            scale = new_value(types, f"{name}.scale", TensorType(factors.shape, "float32"))
            group = fresh_name(groups, "opened")
            groups.add(group)
            consts[whole], consts[scale] = levels.values.reshape(shape), factors
            nodes.append(Node("cast", (whole,), (real,), {"dtype": "float32"}, node.loc, group))
            nodes.append(Node("mul", (real, scale), (name,), dict(registry.get("mul").defaults), node.loc, group))
        waiting.difference_update(node.inputs)
        nodes.append(node)
    return replace(graph, types=types, consts=consts).with_nodes(nodes)


OPENED_WEIGHTS_PASS = Pass("opened_weights", opened_weights, WHERE_REQUIRED, before="fuse")
"""Time for memory: the driver compares (``compiler/fit/search.py``)."""
