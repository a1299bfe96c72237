"""Loops in float networks: their turns are quantised like the rest, recurrent layers among them.

Every value of a network, those in bodies of loops too, has one name here. What a turn computes is observed as one more result
that the loop stacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from microc.graph.ir import Graph, Names, Node
from microc.ops.control import UNBOUNDED


def body_of(node: Node) -> Graph | None:
    """The body of a loop that can be quantised: what a loop without a bound computes cannot be stacked, so is never seen."""
    return node.attr("body") if node.op == "loop" and node.attr("count") != UNBOUNDED else None


def distinct(graph: Graph) -> Graph:
    """The graph whose bodies name values as neither it nor another of them does."""
    return _distinct(graph, Names(graph.types))


def _distinct(graph: Graph, taken: Names) -> Graph:
    def renamed(node: Node) -> Node:
        body = body_of(node)
        if body is None:
            return node
        names = {name: taken.fresh(name) for name in body.types}
        return replace(node, attrs={**node.attrs, "body": _distinct(_with_names(body, names), taken)})

    return graph.with_nodes(list(map(renamed, graph.nodes)))


def _with_names(body: Graph, names: dict[str, str]) -> Graph:
    def known(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(names[value] if value else "" for value in values)

    return replace(
        body,
        inputs=known(body.inputs),
        outputs=known(body.outputs),
        nodes=tuple(replace(node, inputs=known(node.inputs), outputs=known(node.outputs)) for node in body.nodes),
        types={names[name]: kind for name, kind in body.types.items()},
        consts={names[name]: data for name, data in body.consts.items()},
    )


def flattened(graph: Graph) -> Graph:
    """All nodes, types and constants in one: inputs and outputs of bodies are those of the whole. It is read, and never runs."""
    inputs, outputs, types, consts = [*graph.inputs], [*graph.outputs], {**graph.types}, {**graph.consts}
    nodes: list[Node] = []
    for node in graph.nodes:
        body = body_of(node)
        if body is not None:
            flat = flattened(body)
            inputs += flat.inputs
            outputs += flat.outputs
            types |= flat.types
            consts |= flat.consts
            nodes += flat.nodes
        nodes.append(node)
    return replace(graph, inputs=tuple(inputs), outputs=tuple(outputs), nodes=tuple(nodes), types=types, consts=consts)


def given(node: Node) -> Iterator[tuple[str, str]]:
    """What a loop gives to all its turns: (what it is called outside, inside)."""
    body = body_of(node)
    if body is not None:
        carried = node.attr("carried")
        yield from zip(node.inputs[carried:], body.inputs[1 + carried :], strict=True)


def handed(node: Node) -> Iterator[tuple[str, str]]:
    """What is the same value inside of a loop and outside, or in the next turn: (from, to)."""
    yield from given(node)
    body = body_of(node)
    if body is not None:
        carried = node.attr("carried")
        states = body.inputs[1 : 1 + carried]
        yield from zip(node.inputs[:carried], states, strict=True)
        yield from zip(body.outputs[:carried], states, strict=True)
        yield from zip(body.outputs, node.outputs, strict=True)


def exposed(graph: Graph, values: Iterable[str]) -> Graph:
    """The graph that has those of ``values`` that are a turn's as well, under their names: all turns' along the first axis."""
    wanted = set(values)
    nodes, types = list[Node](), dict(graph.types)
    for node in graph.nodes:
        body = body_of(node)
        if body is not None:
            body = exposed(body, wanted)
            seen = [name for name in body.types if name in wanted and name not in types]
            names = Names({*types, *body.types})
            rows = {name: names.fresh(f"{name}_row") for name in seen}
            kinds = {name: body.types[name] for name in seen}
            copies = [
                Node("reshape", (name,), (row,), {"shape": kinds[name].shape}, node.loc) for name, row in rows.items()
            ]
            body = replace(
                body,
                outputs=(*body.outputs, *rows.values()),
                nodes=(*body.nodes, *copies),
                types={**body.types, **{row: kinds[name] for name, row in rows.items()}},
            )
            count = node.attr("count")
            types |= {name: replace(kind, shape=(count, *kind.shape)) for name, kind in kinds.items()}
            node = replace(node, outputs=(*node.outputs, *seen), attrs={**node.attrs, "body": body})
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=types)
