"""What a quantised network still computes in floats, and why."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.quantization.loops import body_of, flattened
from microc.quantization.pixels import functions_of_bytes
from microc.transform.qdq import LAYERS, has_integer_form

_CHANGING = frozenset(("quantize", "dequantize"))
UNSEEN = "the values in it cannot be observed: it is no loop with a bound"
COMPUTED = "its weights are computed"
FORMLESS = "has no integer form"
ASKED = "as asked"
OPENED = "its weights alone are integers"
BESIDE = "an operand or its result stays in floats"


def floats_report(graph: Graph, asked: Container[str] = ()) -> dict[str, Any]:
    """Of a quantised ``graph``, of which the results ``asked`` for shall stay in floats: ``operators``, those that compute in
    float32, in loops too, each with its multiply-accumulates in a run and the reason, but what compiled is a table; ``share``,
    of all multiply-accumulates, those in floats."""
    flat = flattened(graph)
    by_rows = {node.loc for node in flat.nodes if node.op == "dynamic_quantize"}
    tabulated = functions_of_bytes(flat)
    left, of_all, of_floats = list[dict[str, Any]](), 0, 0
    for node, macs in _counted(graph, 1):
        of_all += macs
        made = {flat.types[name].dtype for name in node.outputs if name}
        if node.op not in _CHANGING and "float32" in made and node.outputs[0] not in tabulated:
            of_floats += macs
            reason = ASKED if node.loc in by_rows else _reason(node, flat, asked)
            left.append({"value": node.outputs[0], "op": node.op, "macs": macs, "reason": reason})
    return {"operators": left, "share": of_floats / max(1, of_all)}


def _counted(graph: Graph, turns: int) -> Iterator[tuple[Node, int]]:
    """The operators, those of bodies in place of their loops, and their multiply-accumulates in so many turns."""
    for node in graph.nodes:
        body = body_of(node)
        if body is not None:
            yield from _counted(body, turns * node.attr("count"))
            continue
        count = registry.get(node.op).macs
        kinds = ([graph.types[name] for name in names if name] for names in (node.inputs, node.outputs))
        yield node, turns * count(node.attrs, *kinds) if count is not None else 0


def _reason(node: Node, flat: Graph, asked: Container[str]) -> str:
    if node.outputs[0] in asked:
        return ASKED
    if registry.get(node.op).regions:
        return UNSEEN
    source = flat.producer().get(node.inputs[1]) if node.op in LAYERS else None
    if source is not None and source.op == "dequantize" and source.inputs[0] in flat.consts:
        return OPENED
    if has_integer_form(node, flat):
        return BESIDE
    return COMPUTED if node.op in LAYERS else FORMLESS
