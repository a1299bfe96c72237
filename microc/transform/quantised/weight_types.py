"""Types of weights: dynamic quantisation, 16-bit floats."""

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
from microc.graph.text import regions
from microc.ops import registry
from microc.ops.arithmetic import Rewrite, emit_activation
from microc.ops.attributes import Rounding
from microc.ops.matrix.gemm import find_levels
from microc.transform.pass_context import Pass, PassContext

# ---- Layers of floats with integer weights, computed as TFLite does: data are quantised row by row when they are
# there.
#
# Readers leave such a layer as one of floats on a ``dequantize`` of its weights, and say with attribute ``dynamic`` how TFLite
# would quantise the data: ``symmetric`` or ``asymmetric``. With option ``hybrid=dynamic`` it becomes ``dynamic_quantize``, an
# exact product of integers, and a scaling by the scales of row and channel. Else the weights are floats, which is closer to the
# network as it was trained, and takes four times the flash. :mod:`microc.quantization` makes the same of layers that shall have
# it.

_PLAIN: Mapping[str, Attr] = {"activation": "", "rounding": Rounding.NONE}


def dynamic_range(graph: Graph, context: PassContext) -> Graph:
    """Rewrite the layers where the option asks for it."""
    if context.options.get("hybrid") != "dynamic":
        return graph
    makers = graph.producer()
    for node in graph.nodes:
        _check_marked(graph, node, makers)
    return by_rows(graph)


def by_rows(graph: Graph) -> Graph:
    """The graph whose layers with attribute ``dynamic``, not those in its loops, quantise their data."""
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


def _check_marked(graph: Graph, node: Node, makers: Mapping[str, Node]) -> None:
    """Refuse a layer of floats with integer weights of which no file says how its data would be quantised: ONNX's are floats."""
    if "dynamic" not in registry.get(node.op).attrs or node.attrs.get("dynamic") or len(node.inputs) < 2:
        return
    data, source, weight = makers.get(node.inputs[0]), makers.get(node.inputs[1]), graph.consts.get(node.inputs[1])
    if graph.types[node.inputs[0]].dtype != "float32" or (data is not None and data.op == "dequantize"):
        return
    integers = source is not None and source.op == "dequantize" and source.inputs[0] in graph.consts
    if integers or (weight is not None and weight.ndim == 2 and find_levels(weight) is not None):
        raise UnsupportedError(
            "hybrid=dynamic of a layer on floats whose weights alone are integers",
            where=str(node.loc),
            hint="the option is for TFLite's hybrid layers; leave it out: such weights stay packed and are opened in registers",
        )


def _rewrite(rewrite: Rewrite, source: Node) -> None:
    """One layer; ``source`` dequantises its weights."""
    node, graph = rewrite.node, rewrite.graph
    if node.op == "svdf":
        _rewrite_svdf(rewrite, source)
        return
    attrs: dict[str, Any] = {name: value for name, value in node.attrs.items() if name not in ("dynamic", "activation")}
    shape, activation = graph.types[node.outputs[0]].shape, str(node.attr("activation"))
    bias = [name for name in node.inputs[2:3] if name]
    ends = [rewrite.value(stem, shape, "float32") for stem in ("product", "biased")[: len(bias) + 1]]
    if not activation:
        ends[-1] = node.outputs[0]
    real = _product(rewrite, source, ends[0], node.op, {**attrs, **_PLAIN})
    for name in bias:
        real = rewrite.emit("add", (real, name), ends[1], _PLAIN)
    if activation:
        emit_activation(rewrite, activation, real, node.outputs[0])


def _rewrite_svdf(rewrite: Rewrite, source: Node) -> None:
    """SVDF: the features are the layer; then the memory, one feature later, times its weights, and the sums of each unit."""
    node, graph = rewrite.node, rewrite.graph
    data, time, state = (graph.types[node.inputs[position]] for position in (0, 2, 4))
    (filters, taps), batch, rank = time.shape, data.shape[0], int(node.attr("rank"))
    found = _product(
        rewrite,
        source,
        rewrite.value("features", (batch, filters), "float32"),
        "dense",
        {**registry.get("dense").defaults, **_PLAIN},
    )

    def step(op: str, inputs: Sequence[str], shape: Sequence[int], attrs: Mapping[str, Attr]) -> str:
        return rewrite.emit(op, inputs, rewrite.value(op, shape, "float32"), {**registry.get(op).defaults, **attrs})

    memory = (batch, filters, taps)
    past = step("reshape", (node.inputs[4],), memory, {"shape": memory})
    fresh = step("reshape", (found,), (batch, filters, 1), {"shape": (batch, filters, 1)})
    cut: Mapping[str, Attr] = {"begin": (0, 0, 1), "end": memory, "strides": (1, 1, 1)}
    parts = [step("slice", (past,), (batch, filters, taps - 1), cut), fresh] if taps > 1 else [fresh]
    now = step("concat", parts, memory, {"axis": 2, "rounding": Rounding.DOUBLE})
    rewrite.emit("reshape", (now,), node.outputs[1], {"shape": state.shape})
    weighted = step("mul", (now, node.inputs[2]), memory, _PLAIN)
    grouped = (batch, filters // rank, rank * taps)
    shaped = step("reshape", (weighted,), grouped, {"shape": grouped})
    axes: Mapping[str, Attr] = {"axes": (2,), "keepdims": False, "rounding": Rounding.NONE}
    summed = step("sum", (shaped,), grouped[:2], axes)
    activation = str(node.attr("activation"))
    if activation:
        emit_activation(
            rewrite, activation, step("add", (summed, node.inputs[3]), grouped[:2], _PLAIN), node.outputs[0]
        )
    else:
        rewrite.emit("add", (summed, node.inputs[3]), node.outputs[0], _PLAIN)


def _product(rewrite: Rewrite, source: Node, output: str, op: str, attrs: Mapping[str, Any]) -> str:
    """``output``, the layer without bias and activation: data quantised row by row, exact sums, scales of row and channel."""
    node, graph = rewrite.node, rewrite.graph
    data, shape = graph.types[node.inputs[0]], rewrite.type(output).shape
    symmetric, rows = node.attr("dynamic") == "symmetric", data.shape[0]
    values = rewrite.value("steps", data.shape, "int8" if symmetric else "int16")
    scales = rewrite.value("scales", (rows,), "float32")
    rewrite.emit("dynamic_quantize", node.inputs[:1], (values, scales), {"rows": rows, "symmetric": symmetric})
    weight = rewrite.constant("weight", graph.consts[source.inputs[0]])
    whole = rewrite.value("sum", shape, "int32")
    rewrite.emit(op, (values, weight), whole, {**attrs, "out_dtype": "int32"})
    real = rewrite.emit("cast", (whole,), rewrite.value("real", shape, "float32"), {"dtype": "float32"})
    each = (rows, *(1,) * (len(shape) - 1))
    row = rewrite.emit("reshape", (scales,), rewrite.value("row_scales", each, "float32"), {"shape": each})
    channel = rewrite.constant("channel_scales", np.array(source.attr("scale"), np.float32))
    scaled = rewrite.emit("mul", (real, row), rewrite.value("scaled", shape, "float32"), _PLAIN)
    return rewrite.emit("mul", (scaled, channel), output, _PLAIN)


DYNAMIC_RANGE_PASS = Pass("dynamic_range", dynamic_range, 0, around=True)


# ---- Weights of float32 rounded to what 16 bits hold, where the user asks for float16 or bfloat16: to the nearest,
# ties to even.
#
# They stay float32 here: what the network is from this pass on is a network of rounded numbers, for the interpreter and
# whatever it is compared with; who stores constants finds that two bytes hold them. Weights are constants that products
# multiply data by, or whose rows are looked up; biases, and what elementwise operators take, stay as they are. So do weights
# that are integers times scales, which take a byte or less, and those with a number that is finite and would be infinite: from
# 65,520 on for float16.

LEAST = 64
"""Elements that a constant has at least."""
LOOKED_UP = "gather"
BIASES = "bias"
"""What operands that are added end with."""


def weights_of(graph: Graph) -> Iterator[str]:
    """Names of the constants of float32 that are weights for all that read them, in the order of the nodes."""
    roles: dict[str, set[bool]] = {}
    for node in graph.nodes:
        for position, name in enumerate(node.inputs):
            if name in graph.consts and graph.types[name].dtype == "float32":
                roles.setdefault(name, set()).add(_weighs(node, position))
    kept = {*graph.outputs, *graph.updates.values()}
    yield from (n for n, role in roles.items() if role == {True} and n not in kept and graph.consts[n].size >= LEAST)


def _weighs(node: Node, position: int) -> bool:
    """Whether an operand is multiplied or looked up."""
    known = registry.get(node.op)
    if known.regions or (known.macs is None and node.op != LOOKED_UP):
        return False
    role = known.operand_names[position] if position < len(known.operand_names) else ""
    return not role.endswith(BIASES) and not (node.op == LOOKED_UP and position > 0)


def too_large(graph: Graph, dtype: str) -> tuple[str, ...]:
    """The weights with a number that a half has no finite one for, of the graphs inside, too."""
    return tuple(n for each in (graph, *regions(graph)) for n in weights_of(each) if _overflows(each.consts[n], dtype))


def halved(graph: Graph) -> int:
    """How many numbers of weights there are that a half holds, in the graphs inside, too."""
    found = (each.consts[name] for each in (graph, *regions(graph)) for name in weights_of(each))
    return sum(array.size for array in found if any(dtypes.keeps(array, half) for half in dtypes.HALF))


def _overflows(array: Array, dtype: str) -> bool:
    return bool((np.isfinite(array) & ~np.isfinite(dtypes.narrowed(array, dtype).astype(np.float32))).any())


def weight_dtype(graph: Graph, context: PassContext) -> Graph:
    """The graph with weights rounded to the option's half, if it is one."""
    dtype = str(context.options.get("weight_dtype", ""))
    if dtype not in dtypes.HALF:
        return graph
    consts = dict(graph.consts)
    for name in weights_of(graph):
        array = consts[name]
        exact = any(dtypes.keeps(array, half) for half in dtypes.HALF)
        levels = np.isfinite(array).all() and find_levels(array.reshape(len(array), -1)) is not None
        if not (exact or levels or np.isnan(array).any() or _overflows(array, dtype)):
            consts[name] = dtypes.narrowed(array, dtype).astype(np.float32)
    return replace(graph, consts=consts)


WEIGHT_DTYPE_PASS = Pass("weight_dtype", weight_dtype, 0)
