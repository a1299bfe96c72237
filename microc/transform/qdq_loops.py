"""Loops whose turns work on integers carry integers, are handed integers, and stack integers.

A value that a turn leaves dequantised, q, is carried as q where it begins as such a number, or is quantised alike wherever a turn
reads it: quantize(dequantize(q)) = q. Elements that are stacked are dequantised behind the loop; what all turns are given
dequantised, they dequantise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name
from microc.ops import registry
from microc.ops.rounding import Ties
from microc.transform.qdq_values import ACTIVATIONS, quantised_as


@frozen
class Given:
    """An operand of a loop: the type of the integers that it is dequantised from, if it is, and its data if they are known."""

    integers: TensorType | None
    data: Array | None


@frozen
class IntegerLoop:
    """A body, and of which type the integers are that stand for its operands (the turn's number apart) and results; None: the
    value stays as it is."""

    body: Graph
    operands: tuple[TensorType | None, ...]
    results: tuple[TensorType | None, ...]


def on_integers(body: Graph, carried: int, given: Sequence[Given], recognised: Callable[[Graph], Graph]) -> IntegerLoop:
    """The loop's body with integers for inputs and outputs where that is the same, its operators ``recognised``."""
    operands = [None if k < carried else each.integers for k, each in enumerate(given)]
    body = recognised(_with_inputs(body, operands))
    results = [_dequantised(body, name) for name in body.outputs]
    states: list[TensorType | None] = [None] * len(given)
    for k, kind in enumerate(results[:carried]):
        name = body.inputs[1 + k]
        fits = kind is not None and (_begins_as(given[k], kind) or _read_as(body, name, kind))
        operands[k] = states[k] = results[k] = kind if fits else None
    changed = recognised(_with_outputs(_with_inputs(body, states), results))
    return IntegerLoop(changed, tuple(operands), tuple(results))


def _dequantised(body: Graph, output: str) -> TensorType | None:
    """The integers that a body dequantises last."""
    node = body.producer().get(output)
    if node is None or node.op != "dequantize" or node.attr("axis") is not None:
        return None
    kind = body.types[node.inputs[0]]
    return replace(kind, quant=quantised_as(node)[0]) if kind.dtype in ACTIVATIONS else None


def _begins_as(given: Given, kind: TensorType) -> bool:
    """Whether the first turn's value is one of the numbers of ``kind``."""
    assert kind.quant is not None
    if given.integers is not None:
        return (given.integers.quant, given.integers.dtype) == (kind.quant, kind.dtype)
    if given.data is None:
        return False
    scaled = {"scale": kind.quant.scale, "zero_point": kind.quant.zero_point, "axis": None}
    into = {**scaled, "out_dtype": kind.dtype, "rounding": Ties.EVEN}
    levels = registry.get("quantize").reference(into, [given.data])
    return np.array_equal(registry.get("dequantize").reference(scaled, levels)[0], given.data)


def _read_as(body: Graph, name: str, kind: TensorType) -> bool:
    """Whether a turn quantises a value wherever it reads it, as ``kind``."""
    users = body.consumers().get(name, ())
    alike = all(user.op == "quantize" and quantised_as(user) == (kind.quant, kind.dtype) for user in users)
    return alike and name not in body.outputs


def _with_inputs(body: Graph, kinds: Sequence[TensorType | None]) -> Graph:
    inputs, types, nodes, taken = list(body.inputs), dict(body.types), list[Node](), set(body.types)
    for position, kind in enumerate(kinds, 1):
        if kind is None or kind.quant is None:
            continue
        real = inputs[position]
        inputs[position] = fresh_name(taken, f"{real}_quantized")
        taken.add(inputs[position])
        types[inputs[position]] = kind
        scaled: dict[str, Attr] = {"scale": kind.quant.scale, "zero_point": kind.quant.zero_point, "axis": None}
        nodes.append(Node("dequantize", (inputs[position],), (real,), scaled, body.nodes[0].loc))
    return replace(body, inputs=tuple(inputs), types=types).with_nodes((*nodes, *body.nodes))


def _with_outputs(body: Graph, kinds: Sequence[TensorType | None]) -> Graph:
    outputs, types, nodes, taken = list(body.outputs), dict(body.types), list(body.nodes), set(body.types)
    makers = body.producer()
    for position, kind in enumerate(kinds):
        if kind is None:
            continue
        maker = makers[outputs[position]]
        outputs[position] = fresh_name(taken, f"{outputs[position]}_quantized")
        taken.add(outputs[position])
        types[outputs[position]] = kind
        nodes.append(Node("reshape", maker.inputs, (outputs[position],), {"shape": kind.shape}, maker.loc))
    return replace(body, outputs=tuple(outputs), types=types).with_nodes(nodes)
