# SPDX-License-Identifier: Apache-2.0
"""Transformations of loops over time, and weights that are widened before a layer runs.

Pass ``blocked_loops`` multiplies the data of several iterations by the weights at once. Pass ``scanned_rows`` lets
loops read the rows of their data in place instead of gathering them. Pass ``prewidened_weights`` converts quantised
weights of float layers to floats in RAM before the layers run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from microc.base.immutable import frozen
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name, new_value
from microc.ops import registry
from microc.ops.control import scanned_operand_count
from microc.ops.matrix.gemm import QuantisedWeights, recover_quantised_weights
from microc.ops.recurrent.cells import LoopBodyBuilder
from microc.tir.bit_fields import smallest_bit_width
from microc.transform.pass_context import WHERE_REQUIRED, Pass, PassContext

# ---- Loop blocking: hoist the products of the data alone out of a block of iterations and compute them together.
#
# An iteration of a recurrent layer multiplies a row of the data by one matrix and the carried values by another. Only the second
# product depends on the previous iteration. For a single row every weight is loaded for one product; several rows share the
# loads. Therefore a loop of 48 iterations becomes a loop of 8 blocks, each of which multiplies 6 rows and then runs a loop of 6
# iterations. If the last block has surplus iterations, the inner loop is guarded, and the missing rows repeat the last row.
# Hoisting the products of all iterations at once would need several times the memory of the data.

BLOCK_SIZES = (3, 4, 6)
"""Numbers of iterations in a block, the best first: most register tiles have three rows, and larger blocks gain little
for their memory."""


@frozen
class _GatheredDense:
    """Node ``dense`` whose data an iteration gathers by its iteration index from the loop-invariant value ``data``.

    No other node reads that value or the gathered row."""

    data: str
    gather: Node
    dense: Node


def block_loops(graph: Graph, context: PassContext) -> Graph:
    """Block every loop over time whose iterations multiply a row of the data by constant weights."""
    nodes: list[Node] = []
    types = dict(graph.types)
    for node in graph.nodes:
        nodes += _split_loop_into_blocks(node, types) if node.op == "loop" else [node]
    return graph if len(nodes) == len(graph.nodes) else replace(graph, types=types).with_nodes(nodes)


def _split_loop_into_blocks(loop: Node, types: dict[str, TensorType]) -> list[Node]:
    """Return the blocked loop and the views after it, and add their types to ``types``; return only the loop itself if
    it cannot be blocked."""
    body, count, carried = loop.attr("body"), loop.attr("count"), loop.attr("carried")
    layer = None if loop.attr("guarded") else _find_gathered_dense(body, carried, count)
    block = 0 if layer is None else _choose_iterations_per_block(count)
    if layer is None or not block:
        return [loop]
    blocks = -(-count // block)
    attrs: Mapping[str, Attr] = {**loop.attrs, "body": _build_outer_body(loop, layer, block), "count": blocks}
    stacked = loop.outputs[carried:]
    blocked = tuple(fresh_name(types, f"{name}.blocks") for name in stacked)
    nodes = [replace(loop, outputs=(*loop.outputs[:carried], *blocked), attrs=attrs)]
    for name, block_value in zip(stacked, blocked, strict=True):
        shape = types[name].shape[1:]
        types[block_value] = replace(types[name], shape=(blocks, block, *shape))
        flat = name if blocks * block == count else fresh_name(types, f"{name}.rows")
        types[flat] = replace(types[name], shape=(blocks * block, *shape))
        nodes.append(Node("reshape", (block_value,), (flat,), {"shape": types[flat].shape}, loop.loc))
        if flat != name:
            cut = {"begin": (0,) * (1 + len(shape)), "end": (count, *shape), "strides": (1,) * (1 + len(shape))}
            nodes.append(Node("slice", (flat,), (name,), cut, loop.loc))
    return nodes


def _find_gathered_dense(body: Graph, carried_value_count: int, iteration_count: int) -> _GatheredDense | None:
    """Return a ``dense`` whose data is a single row that the iteration gathers, or None.

    No other node may read the data or the iteration index."""
    iteration, fixed = body.inputs[0], body.inputs[1 + carried_value_count :]
    users = {name: [node for node in body.nodes if name in node.inputs] for name in body.types}
    for dense in body.nodes:
        gather = next((n for n in body.nodes if registry.is_layer(dense) and n.outputs == dense.inputs[:1]), None)
        if gather is None or gather.op != "gather" or gather.inputs[1] != iteration or gather.inputs[0] not in fixed:
            continue
        data, row = gather.inputs[0], gather.outputs[0]
        kind = body.types[data]
        # Inside a block the iteration index restarts at 0, and the products replace ``data``: nothing else may read the index or
        # the data.
        has_only_one_reader = all(users[name] == [gather] for name in (iteration, data)) and users[row] == [dense]
        is_one_row = body.types[row].shape == (1, kind.shape[-1]) and kind.size == iteration_count * kind.shape[-1]
        is_constant = all(name in body.consts for name in dense.inputs[1:] if name)
        if has_only_one_reader and is_one_row and is_constant and not {row, *dense.outputs}.intersection(body.outputs):
            return _GatheredDense(data, gather, dense)
    return None


def _choose_iterations_per_block(iteration_count: int) -> int:
    """Return the number of iterations in a block with which the last block has the fewest surplus iterations.

    Return 0 if the loop has too few iterations for any block."""
    return min((n for n in BLOCK_SIZES if n < iteration_count), key=lambda n: -iteration_count % n, default=0)


def _build_outer_body(loop: Node, layer: _GatheredDense, iterations_per_block: int) -> Graph:
    """Build the body of the loop over blocks: gather the rows of a block, multiply them by one ``dense``, run the inner
    loop over its iterations."""
    body, count, carried = loop.attr("body"), loop.attr("count"), loop.attr("carried")
    write = LoopBodyBuilder(loop.loc)
    block_number, *fixed = (write.add_input(name, body.types[name]) for name in body.inputs)
    data, dense = body.types[layer.data], layer.dense
    rows = write.emit(
        "gather", (layer.data, block_number), data.quant, axis=layer.gather.attr("axis"), span=iterations_per_block
    )
    rows = write.emit("reshape", (rows,), data.quant, shape=(iterations_per_block, data.shape[-1]))
    weights = [
        name and write.add_constant(name, body.consts[name], body.types[name].quant) for name in dense.inputs[1:]
    ]
    row = body.types[dense.outputs[0]]
    sums = write.emit(dense.op, (rows, *weights), row.quant, row.dtype, **dense.attrs)
    products = write.emit("reshape", (sums,), row.quant, shape=(iterations_per_block, *row.shape))
    inner, states = _build_inner_body(body, layer, write.types[products]), carried
    fixed = [products if name == layer.data else name for name in fixed]
    if count % iterations_per_block:
        first = write.emit(
            "mul", (block_number, write.add_constant("iterations", np.array(iterations_per_block, np.int32)))
        )
        last = write.emit("sub", (write.add_constant("last", np.array(count - 1, np.int32)), first))
        fixed, inner, states = (
            [write.add_constant("go", np.array(True)), *fixed, last],
            _add_iteration_guard(inner),
            carried + 1,
        )
    kinds = [inner.types[name] for name in inner.outputs]
    kinds[states:] = [replace(kind, shape=(iterations_per_block, *kind.shape)) for kind in kinds[states:]]
    attrs = {**loop.attrs, "body": inner, "count": iterations_per_block, "carried": states, "guarded": states > carried}
    made = write.copy_node(replace(loop, inputs=tuple(fixed), outputs=inner.outputs, attrs=attrs), kinds)
    return write.build_graph_with_value_names(body.name, made[states - carried :])


def _build_inner_body(loop_body: Graph, layer: _GatheredDense, product_type: TensorType) -> Graph:
    """Build the body of the loop within a block: each iteration gathers its product instead of computing it.

    Nodes and constants that only the product needed are removed."""
    gather_product = replace(layer.gather, outputs=layer.dense.outputs, attrs={**layer.gather.attrs, "axis": 0})
    nodes = [gather_product if node == layer.gather else node for node in loop_body.nodes if node != layer.dense]
    used = {name for node in nodes for name in node.inputs} | {*loop_body.outputs}
    consts = {name: array for name, array in loop_body.consts.items() if name in used}
    gone = {*layer.gather.outputs, *(loop_body.consts.keys() - consts.keys())}
    types = {name: kind for name, kind in loop_body.types.items() if name not in gone} | {layer.data: product_type}
    return replace(loop_body, types=types, consts=consts, nodes=tuple(nodes))


def _add_iteration_guard(body: Graph) -> Graph:
    """Return a body with a guard: the loop continues only while the iteration index is less than ``last``, the new last
    input of the body."""
    before = dict(body.types)
    go, last, continues = (fresh_name(before, stem) for stem in ("go", "last", "goes"))
    types = {**before, go: TensorType((), "bool"), last: body.types[body.inputs[0]], continues: TensorType((), "bool")}
    iteration, *inputs = body.inputs
    test = Node("less", (iteration, last), (continues,), dict(registry.get("less").defaults))
    return replace(
        body,
        inputs=(iteration, go, *inputs, last),
        outputs=(continues, *body.outputs),
        nodes=(*body.nodes, test),
        types=types,
    )


LOOP_BLOCKING_PASS = Pass("blocked_loops", block_loops, WHERE_REQUIRED, around=True)
"""Pass that trades memory for time, by an amount that depends on core and network. The compiler compares both
(``compiler/fit/moves.py``)."""


# ---- Scanned inputs: a value that iterations gather by their index becomes an input that the loop reads row by row, in place.


def scan_rows_in_place(graph: Graph, context: PassContext) -> Graph:
    """Turn values that iterations gather by their iteration index into scanned inputs of the loops, which are read row
    by row in place."""
    nodes: list[Node] = []
    types = dict(graph.types)
    for node in graph.nodes:
        nodes += _convert_gathers_to_scanned_inputs(node, types) if node.op == "loop" else [node]
    return graph if nodes == [*graph.nodes] else replace(graph, types=types).with_nodes(nodes)


def _convert_gathers_to_scanned_inputs(loop: Node, types: dict[str, TensorType]) -> list[Node]:
    """Return the loop with scanned inputs and the views before it, and add their types to ``types``; return only the
    loop itself if it has none."""
    body: Graph = loop.attr("body")
    scanned = scanned_operand_count(loop)
    gathers = _find_row_gathers(body, int(loop.attr("carried")), scanned, int(loop.attr("count")))
    if not gathers:
        return [loop]
    views, inputs, outer = [], list(body.inputs), list(loop.inputs)
    for gather in gathers:
        position, row = inputs.index(gather.inputs[0]), body.types[gather.outputs[0]]
        data = outer.pop(position - 1)
        del inputs[position]
        shape = (int(loop.attr("count")), *row.shape)
        name = new_value(types, f"{data}.scanned", replace(types[data], shape=shape))
        views.append(Node("reshape", (data,), (name,), {"shape": shape}, loop.loc))
        outer.append(name)
        inputs.append(gather.outputs[0])
    removed = {gather.inputs[0] for gather in gathers}
    new_body = replace(
        body,
        inputs=tuple(inputs),
        nodes=tuple(node for node in body.nodes if node not in gathers),
        types={name: kind for name, kind in body.types.items() if name not in removed},
    )
    attrs = {**loop.attrs, "body": new_body, "scanned": scanned + len(gathers)}
    return [*views, replace(loop, inputs=tuple(outer), attrs=attrs)]


def _find_row_gathers(
    body: Graph, carried_value_count: int, scanned_input_count: int, iteration_count: int
) -> list[Node]:
    """Return the gathers of an iteration that read a row of a loop-invariant value by the iteration index, if nothing
    else reads the value.

    The row must be along the first axis with an extent above 1."""
    iteration, fixed = body.inputs[0], body.inputs[1 + carried_value_count : len(body.inputs) - scanned_input_count]
    gathers = []
    for node in body.nodes:
        if node.op != "gather" or node.inputs[0] not in fixed or node.inputs[1] != iteration:
            continue
        data = node.inputs[0]
        shape, size = body.types[data].shape, body.types[node.outputs[0]].size
        outer = shape[: node.attr("axis") % len(shape)]
        has_only_one_reader = sum(other.inputs.count(data) for other in body.nodes) == 1 and data not in body.outputs
        if has_only_one_reader and prod(outer) == 1 and size * iteration_count == body.types[data].size:
            gathers.append(node)
    return gathers


SCAN_IN_PLACE_PASS = Pass("scanned_rows", scan_rows_in_place, 2, around=True)


# ---- Widen the quantised weights of float layers (int8 levels times scales) in RAM before the layer runs.
#
# A product that dequantises weights in registers repeats that for every tile of rows. Weights that are widened first are loaded
# directly, but need RAM while the layer runs. :mod:`microc.ops.matrix.gemm` bounds the change of a sum.

MIN_REUSING_ROWS = 8
"""Least number of rows of a product for which widening the weights first is worth its cost: each weight is used once
per row."""
BYTE = 8
"""Number of bits of the weights that are widened."""


def prewiden_weights(graph: Graph, context: PassContext) -> Graph:
    """Widen all weights that :func:`find_widenable_weights` finds, in RAM, before their layers run."""
    levels = find_widenable_weights(graph)
    return widen_weights(graph, levels, levels) if levels else graph


def find_widenable_weights(graph: Graph) -> dict[str, QuantisedWeights]:
    """Return the weights of float layers that are int8 levels with one scale per channel, by name.

    Weights of fewer bits are not included, because they are packed to save flash."""
    levels_by_name = {}
    for node in graph.nodes:
        product = registry.product_of(node, graph.types)
        if product is None or not product.mixes_channels:
            continue
        name = node.inputs[1]
        array = graph.consts.get(name)
        if array is None or array.dtype != "float32" or _count_rows(graph, node) < MIN_REUSING_ROWS:
            continue
        levels = recover_quantised_weights(array.reshape(len(array), -1))
        if levels is not None and levels.scales.shape[1] == 1 and smallest_bit_width(levels.values) == BYTE:
            levels_by_name[name] = levels
    return levels_by_name


def _count_rows(graph: Graph, node: Node) -> int:
    """Return the number of rows of a layer's product, which is its number of results divided by its number of
    channels."""
    return prod(graph.types[node.outputs[0]].shape) // max(graph.types[node.inputs[1]].shape[0], 1)


def widen_weights(graph: Graph, levels_by_name: Mapping[str, QuantisedWeights], weight_names: Collection[str]) -> Graph:
    """Add kernels that widen the weights ``weight_names``, each before the first layer that reads the weights.

    ``levels_by_name``: integer levels and scales of the weights. The graph may be fused already: each kernel gets a new
    group."""
    types, consts = dict(graph.types), {name: array for name, array in graph.consts.items() if name not in weight_names}
    nodes, pending, groups = list[Node](), set(weight_names), {node.group for node in graph.nodes}
    for node in graph.nodes:
        for name in dict.fromkeys(name for name in node.inputs if name in pending):
            shape, levels = types[name].shape, levels_by_name[name]
            factors = levels.scales.reshape(-1, *(1 for _ in shape[1:]))
            whole = new_value(types, f"{name}.levels", TensorType(shape, "int8"))
            real = new_value(types, f"{name}.real", TensorType(shape, "float32"))
            scale = new_value(types, f"{name}.scale", TensorType(factors.shape, "float32"))
            group = fresh_name(groups, "opened")
            groups.add(group)
            consts[whole], consts[scale] = levels.values.reshape(shape), factors
            nodes.append(Node("cast", (whole,), (real,), {"dtype": "float32"}, node.loc, group))
            nodes.append(Node("mul", (real, scale), (name,), dict(registry.get("mul").defaults), node.loc, group))
        pending.difference_update(node.inputs)
        nodes.append(node)
    return replace(graph, types=types, consts=consts).with_nodes(nodes)


PREWIDENED_WEIGHTS_PASS = Pass("prewidened_weights", prewiden_weights, WHERE_REQUIRED, before="fuse")
"""Pass that trades RAM for time. The compiler compares both (``compiler/fit/moves.py``)."""
