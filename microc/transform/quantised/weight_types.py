# SPDX-License-Identifier: Apache-2.0
"""Types of weights: dynamic quantisation of the data of float layers, and weights rounded to 16-bit floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Node
from microc.graph.match import without_dead_nodes
from microc.graph.text import nested_graphs
from microc.ops import registry
from microc.ops.arithmetic import Rewrite, emit_activation
from microc.ops.attributes import Rounding
from microc.ops.matrix.gemm import recover_quantised_weights
from microc.transform.pass_context import Pass, PassContext

# ---- Dynamic range quantisation, as in TFLite's hybrid layers: float data are quantised row by row at run time.
#
# Readers write such a layer as a float layer with a ``dequantize`` of its weights. Its attribute ``dynamic`` is TFLite's
# quantisation of the data: ``symmetric`` or ``asymmetric``. Option ``hybrid=dynamic`` rewrites the layer to ``dynamic_quantize``,
# an exact integer product, and a scaling by the scales of row and channel. Without it the weights become floats, which is closer
# to the trained network and needs four times the flash. :mod:`microc.quantization` uses the same rewriting for the layers that it
# quantises dynamically.

_PLAIN: Mapping[str, Attr] = {"activation": "", "rounding": Rounding.NONE}


def quantise_dynamically(graph: Graph, context: PassContext) -> Graph:
    """Quantise the data of hybrid layers dynamically if the option ``hybrid`` is ``dynamic``."""
    if context.options.get("hybrid") != "dynamic":
        return graph
    makers = graph.producer()
    for node in graph.nodes:
        _refuse_layer_without_dynamic(graph, node, makers)
    return quantise_dynamic_layers_by_rows(graph)


def quantise_dynamic_layers_by_rows(graph: Graph) -> Graph:
    """Let layers with the attribute ``dynamic`` quantise their data row by row at run time. Layers inside loops are
    left unchanged."""
    makers, nodes = graph.producer(), list[Node]()
    for node in graph.nodes:
        source = makers.get(node.inputs[1]) if node.attrs.get("dynamic") else None
        if source is None or source.op != "dequantize" or source.inputs[0] not in graph.consts:
            nodes.append(node)
            continue
        rewrite = Rewrite(node, graph)
        _rewrite_dynamic_layer(rewrite, source)
        nodes += rewrite.nodes
        types, consts = {**graph.types, **rewrite.types}, {**graph.consts, **rewrite.consts}
        graph = replace(graph, types=types, consts=consts)
    return without_dead_nodes(graph.with_nodes(nodes))


def _refuse_layer_without_dynamic(graph: Graph, node: Node, producers: Mapping[str, Node]) -> None:
    """Raise UnsupportedError for a float layer with integer weights that has no attribute ``dynamic``, because ONNX
    computes such layers in floats."""
    if "dynamic" not in registry.get(node.op).attrs or node.attrs.get("dynamic") or len(node.inputs) < 2:
        return
    data, source, weight = (
        producers.get(node.inputs[0]),
        producers.get(node.inputs[1]),
        graph.consts.get(node.inputs[1]),
    )
    if graph.types[node.inputs[0]].dtype != "float32" or (data is not None and data.op == "dequantize"):
        return
    integers = source is not None and source.op == "dequantize" and source.inputs[0] in graph.consts
    if integers or (weight is not None and weight.ndim == 2 and recover_quantised_weights(weight) is not None):
        raise UnsupportedError(
            "hybrid: 'dynamic' does not apply to this layer; got integer weights of a float layer, expected a hybrid "
            "layer of TFLite or DynamicQuantizeLSTM",
            where=str(node.loc),
            hint="leave out --hybrid: such weights stay packed in flash and are unpacked in registers",
        )


def _rewrite_dynamic_layer(rewrite: Rewrite, weight_dequantize: Node) -> None:
    """Rewrite one layer such that it quantises its data at run time. ``weight_dequantize``: the node that dequantises
    the layer's weights."""
    node, graph = rewrite.node, rewrite.graph
    if node.op == "svdf":
        _rewrite_dynamic_svdf(rewrite, weight_dequantize)
        return
    attrs: dict[str, Any] = {name: value for name, value in node.attrs.items() if name not in ("dynamic", "activation")}
    shape, activation = graph.types[node.outputs[0]].shape, str(node.attr("activation"))
    bias = [name for name in node.inputs[2:3] if name]
    ends = [rewrite.add_value(stem, shape, "float32") for stem in ("product", "biased")[: len(bias) + 1]]
    if not activation:
        ends[-1] = node.outputs[0]
    real = _emit_dynamic_product(rewrite, weight_dequantize, ends[0], node.op, {**attrs, **_PLAIN})
    for name in bias:
        real = rewrite.emit("add", (real, name), ends[1], _PLAIN)
    if activation:
        emit_activation(rewrite, activation, real, node.outputs[0])


def _rewrite_dynamic_svdf(rewrite: Rewrite, weight_dequantize: Node) -> None:
    """Rewrite an SVDF: its dense layer of features quantises the data; the update of the state and the sums over time
    are in floats."""
    node, graph = rewrite.node, rewrite.graph
    data, time, state = (graph.types[node.inputs[position]] for position in (0, 2, 4))
    (filters, taps), batch, rank = time.shape, data.shape[0], int(node.attr("rank"))
    features = _emit_dynamic_product(
        rewrite,
        weight_dequantize,
        rewrite.add_value("features", (batch, filters), "float32"),
        "dense",
        {**registry.get("dense").defaults, **_PLAIN},
    )

    def emit_float_operator(op: str, inputs: Sequence[str], shape: Sequence[int], attrs: Mapping[str, Attr]) -> str:
        return rewrite.emit(op, inputs, rewrite.add_value(op, shape, "float32"), {**registry.get(op).defaults, **attrs})

    memory = (batch, filters, taps)
    past = emit_float_operator("reshape", (node.inputs[4],), memory, {"shape": memory})
    fresh = emit_float_operator("reshape", (features,), (batch, filters, 1), {"shape": (batch, filters, 1)})
    shift: Mapping[str, Attr] = {"begin": (0, 0, 1), "end": memory, "strides": (1, 1, 1)}
    parts = [emit_float_operator("slice", (past,), (batch, filters, taps - 1), shift), fresh] if taps > 1 else [fresh]
    now = emit_float_operator("concat", parts, memory, {"axis": 2, "rounding": Rounding.DOUBLE})
    rewrite.emit("reshape", (now,), node.outputs[1], {"shape": state.shape})
    weighted = emit_float_operator("mul", (now, node.inputs[2]), memory, _PLAIN)
    grouped = (batch, filters // rank, rank * taps)
    reshaped = emit_float_operator("reshape", (weighted,), grouped, {"shape": grouped})
    axes: Mapping[str, Attr] = {"axes": (2,), "keepdims": False, "rounding": Rounding.NONE}
    sums = emit_float_operator("sum", (reshaped,), grouped[:2], axes)
    activation = str(node.attr("activation"))
    if activation:
        emit_activation(
            rewrite,
            activation,
            emit_float_operator("add", (sums, node.inputs[3]), grouped[:2], _PLAIN),
            node.outputs[0],
        )
    else:
        rewrite.emit("add", (sums, node.inputs[3]), node.outputs[0], _PLAIN)


def _emit_dynamic_product(
    rewrite: Rewrite, weight_dequantize: Node, output_name: str, op: str, attrs: Mapping[str, Any]
) -> str:
    """Emit the layer without bias and activation: quantisation of the data by rows, exact sums, and a scaling by the
    scales of row and channel.

    ``output_name``: name of the result. ``op``: operator that computes the sums."""
    node, graph = rewrite.node, rewrite.graph
    data, shape = graph.types[node.inputs[0]], rewrite.type(output_name).shape
    symmetric, rows = node.attr("dynamic") == "symmetric", data.shape[0]
    values = rewrite.add_value("steps", data.shape, "int8" if symmetric else "int16")
    scales = rewrite.add_value("scales", (rows,), "float32")
    rewrite.emit("dynamic_quantize", node.inputs[:1], (values, scales), {"rows": rows, "symmetric": symmetric})
    weight = rewrite.add_constant("weight", graph.consts[weight_dequantize.inputs[0]])
    sums = rewrite.add_value("sum", shape, "int32")
    rewrite.emit(op, (values, weight), sums, {**attrs, "out_dtype": "int32"})
    real = rewrite.emit("cast", (sums,), rewrite.add_value("real", shape, "float32"), {"dtype": "float32"})
    row_shape = (rows, *(1,) * (len(shape) - 1))
    row = rewrite.emit(
        "reshape", (scales,), rewrite.add_value("row_scales", row_shape, "float32"), {"shape": row_shape}
    )
    channel = rewrite.add_constant("channel_scales", np.array(weight_dequantize.attr("scale"), np.float32))
    scaled = rewrite.emit("mul", (real, row), rewrite.add_value("scaled", shape, "float32"), _PLAIN)
    return rewrite.emit("mul", (scaled, channel), output_name, _PLAIN)


DYNAMIC_RANGE_PASS = Pass("dynamic_range", quantise_dynamically, 0, around=True)


# ---- Weights rounded to float16 or bfloat16 on request: to nearest, ties to even.
#
# Their dtype stays float32, so that the interpreter and every comparison use the rounded network; code generation detects that
# each weight fits two bytes. Weights are constants by which products multiply data, or whose rows are looked up. Biases and
# operands of elementwise operators are not rounded. Neither are weights that are integers times scales, which take a byte or
# less, nor weights with a finite number that would become infinite: from 65,520 on for float16.

MIN_WEIGHT_ELEMENTS = 64
"""Least number of elements of a constant that counts as weights."""
LOOKED_UP = "gather"
"""Operator that looks up rows of its first operand."""
BIASES = "bias"
"""Suffix of the names of operands that are added, not multiplied."""


def find_weight_constants(graph: Graph) -> Iterator[str]:
    """Yield the names of float32 constants that all their readers use as weights, in the order of the nodes."""
    roles: dict[str, set[bool]] = {}
    for node in graph.nodes:
        for position, name in enumerate(node.inputs):
            if name in graph.consts and graph.types[name].dtype == "float32":
                roles.setdefault(name, set()).add(_is_weight_operand(node, position))
    kept = {*graph.outputs, *graph.updates.values()}
    yield from (
        n
        for n, role in roles.items()
        if role == {True} and n not in kept and graph.consts[n].size >= MIN_WEIGHT_ELEMENTS
    )


def _is_weight_operand(node: Node, position: int) -> bool:
    """Test whether a node multiplies its data by the operand at ``position``, or looks up rows of this operand."""
    known = registry.get(node.op)
    if known.regions or (known.macs is None and node.op != LOOKED_UP):
        return False
    role = known.operand_names[position] if position < len(known.operand_names) else ""
    return not role.endswith(BIASES) and not (node.op == LOOKED_UP and position > 0)


def find_overflowing_weights(graph: Graph, dtype: str) -> tuple[str, ...]:
    """Return the names of weights that contain a finite number beyond the range of the 16-bit float ``dtype``.
    Subgraphs are included."""
    return tuple(
        n
        for subgraph in (graph, *nested_graphs(graph))
        for n in find_weight_constants(subgraph)
        if _overflows_16_bit_float(subgraph.consts[n], dtype)
    )


def count_16_bit_weights(graph: Graph) -> int:
    """Count the elements of all weights that float16 or bfloat16 represents exactly. Subgraphs are included."""
    arrays = (
        subgraph.consts[name] for subgraph in (graph, *nested_graphs(graph)) for name in find_weight_constants(subgraph)
    )
    return sum(array.size for array in arrays if any(dtypes.is_exact_in(array, half) for half in dtypes.HALF))


def _overflows_16_bit_float(array: Array, dtype: str) -> bool:
    """Test whether a finite number of an array becomes infinite in the 16-bit float ``dtype``."""
    return bool(
        (np.isfinite(array) & ~np.isfinite(dtypes.round_to_16_bit_float(array, dtype).astype(np.float32))).any()
    )


def round_weights(graph: Graph, context: PassContext) -> Graph:
    """Round weights to the dtype in the option ``weight_dtype``, if that is float16 or bfloat16."""
    dtype = str(context.options.get("weight_dtype", ""))
    if dtype not in dtypes.HALF:
        return graph
    consts = dict(graph.consts)
    for name in find_weight_constants(graph):
        array = consts[name]
        is_exact = any(dtypes.is_exact_in(array, half) for half in dtypes.HALF)
        has_levels = np.isfinite(array).all() and recover_quantised_weights(array.reshape(len(array), -1)) is not None
        if not (is_exact or has_levels or np.isnan(array).any() or _overflows_16_bit_float(array, dtype)):
            consts[name] = dtypes.round_to_16_bit_float(array, dtype).astype(np.float32)
    return replace(graph, consts=consts)


WEIGHT_DTYPE_PASS = Pass("weight_dtype", round_weights, 0)
