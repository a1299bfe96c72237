"""Quantised and activated surface operators become core operators with explicit integer parameters."""

from __future__ import annotations

from dataclasses import replace

from microc.errors import InternalError, UnsupportedError
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.transform.context import Pass, PassContext
from microc.transform.rounding import in_fixed_point

ROUNDS = 8
"""An operator may become surface operators again (a mean becomes a sum and a requantize); few rounds settle everything."""


def legalize(graph: Graph, context: PassContext) -> Graph:
    """Rewrite until nothing changes. With option ``requantize=fixed``, ONNX's float requantisation becomes fixed point.

    Raises UnsupportedError that lists every operator which has no core form.
    """
    if context.options.get("requantize") == "fixed":
        graph = in_fixed_point(graph)
    for _ in range(ROUNDS):
        rewritten = _once(graph)
        if rewritten is graph:
            return graph
        graph = rewritten
    raise InternalError(f"legalizing graph {graph.name} comes to no end")


def _once(graph: Graph) -> Graph:
    """Every node once; the same object when no operator had anything to rewrite."""
    nodes: list[Node] = []
    types, consts = dict(graph.types), dict(graph.consts)
    refused: list[UnsupportedError] = []
    changed = False
    for node in graph.nodes:
        rewrite = registry.get(node.op).legalize
        try:
            found = rewrite(node, replace(graph, types=types, consts=consts)) if rewrite is not None else None
        except UnsupportedError as error:
            refused.append(error if error.where else _placed(error, node))
            continue
        if found is None:
            nodes.append(node)
            continue
        changed = True
        new_nodes, new_types, new_consts = found
        nodes.extend(new_nodes)
        types.update(new_types)
        consts.update(new_consts)
    if refused:
        raise _all_at_once(refused)
    return replace(graph, types=types, consts=consts).with_nodes(nodes) if changed else graph


def _placed(error: UnsupportedError, node: Node) -> UnsupportedError:
    """The same of a node: arithmetic does not know whose numbers it is given."""
    return UnsupportedError(
        f"{node.op} of {', '.join(map(repr, node.outputs))}: {error.what}", where=str(node.loc), hint=error.hint
    )


def _all_at_once(errors: list[UnsupportedError]) -> UnsupportedError:
    """One error that says what all say."""
    if len(errors) == 1:
        return errors[0]
    lines = [f"  {e.where}: {e.what}" + (f" (help: {e.hint})" if e.hint else "") for e in errors]
    return UnsupportedError("\n".join((f"{len(errors)} operators are not supported:", *lines)))


PASS = Pass("legalize", legalize, 0)
