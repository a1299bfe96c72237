"""Layers of floats with integer weights, computed as TFLite does: data are quantised row by row when they are there.

Readers leave such a layer as one of floats on a ``dequantize`` of its weights, and say with attribute ``dynamic`` how TFLite
would quantise the data: ``symmetric`` or ``asymmetric``. With option ``hybrid=dynamic`` it becomes ``dynamic_quantize``, an exact
product of integers, and a scaling by the scales of row and channel. Else the weights are floats, which is closer to the
network as it was trained, and takes four times the flash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.graph.ir import Attr, Graph, Node
from microc.graph.rewriting import without_dead_nodes
from microc.ops.arith import Rewrite
from microc.ops.surface import emit_activation
from microc.transform.context import Pass, PassContext

_PLAIN: Mapping[str, Attr] = {"activation": "", "rounding": ""}


def dynamic_range(graph: Graph, context: PassContext) -> Graph:
    """Rewrite the layers where the option asks for it."""
    if context.options.get("hybrid") != "dynamic":
        return graph
    makers, nodes = graph.producer(), list[Node]()
    for node in graph.nodes:
        source = makers.get(node.inputs[1]) if node.attrs.get("dynamic") else None
        if source is None or source.op != "dequantize" or source.inputs[0] not in graph.consts:
            nodes.append(node)
            continue
        rewrite = Rewrite(node, graph)
        _rewrite(rewrite, source)
        nodes += rewrite.nodes
        types, consts = {**graph.types, **rewrite.types}, {**graph.consts, **rewrite.consts}
        graph = replace(graph, types=types, consts=consts)
    return without_dead_nodes(graph.with_nodes(nodes))


def _rewrite(rewrite: Rewrite, source: Node) -> None:
    """One layer; ``source`` dequantises its weights."""
    node, graph = rewrite.node, rewrite.graph
    data, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    symmetric, rows = node.attr("dynamic") == "symmetric", data.shape[0]
    values = rewrite.value("steps", data.shape, "int8" if symmetric else "int16")
    scales = rewrite.value("scales", (rows,), "float32")
    rewrite.emit("dynamic_quantize", node.inputs[:1], (values, scales), {"rows": rows, "symmetric": symmetric})
    weight = rewrite.constant("weight", graph.consts[source.inputs[0]])
    attrs: dict[str, Any] = {name: value for name, value in node.attrs.items() if name != "dynamic"}
    whole = rewrite.value("sum", result.shape, "int32")
    rewrite.emit(node.op, (values, weight), whole, {**attrs, **_PLAIN, "out_dtype": "int32"})
    real = rewrite.emit("cast", (whole,), rewrite.value("real", result.shape, "float32"), {"dtype": "float32"})
    each = (rows, *(1,) * (len(result.shape) - 1))
    row = rewrite.emit("reshape", (scales,), rewrite.value("row_scales", each, "float32"), {"shape": each})
    channel = rewrite.constant("channel_scales", np.array(source.attr("scale"), np.float32))
    steps = [("mul", row), ("mul", channel)]
    steps += [("add", name) for name in node.inputs[2:3] if name]
    for k, (op, operand) in enumerate(steps):
        last = k + 1 == len(steps) and not attrs["activation"]
        output = node.outputs[0] if last else rewrite.value(op, result.shape, "float32")
        real = rewrite.emit(op, (real, operand), output, _PLAIN)
    if attrs["activation"]:
        emit_activation(rewrite, str(attrs["activation"]), real, node.outputs[0])


PASS = Pass("dynamic_range", dynamic_range, 0)
