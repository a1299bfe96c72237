"""Recurrent layers in a stream: a loop over time runs on the frames of a step, and what it carries is state of the graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from microc.graph.ir import Graph, Node, TensorType, new_value
from microc.ops.rounding import Rounding
from microc.transform.streaming.rewrite import Writer
from microc.transform.streaming.track import Frames, Track, Whole


def loop(writer: Writer, node: Node) -> bool:
    """A loop whose turns read one frame each of what depends on time, and that starts from constants or from state."""
    body, carried = node.attr("body"), node.attr("carried")
    fixed = range(carried, len(node.inputs))
    tracks = {k: track for k in fixed if (track := writer.frames(node.inputs[k])) is not None}
    known = {*writer.graph.consts, *writer.graph.state}
    paced = {t.length for t in tracks.values()} == {node.attr("count")} and len({t.count for t in tracks.values()}) == 1
    if node.attr("guarded") or not paced or any(value not in known for value in node.inputs[:carried]):
        return False
    if not all(_by_turns(body, body.inputs[1 + k], track.axis) for k, track in tracks.items()):
        return False
    first = next(iter(tracks.values()))
    delay = max(0, *(track.delay for track in tracks.values()))
    if _last_needed(writer, node, carried):
        delay += -(first.length + delay) % first.count
    inputs = [writer.settled(node, v, delay)[0] if k in tracks else v for k, v in enumerate(node.inputs)]
    for k in range(carried):
        inputs[k] = _kept(writer, node, k)
    types = {body.inputs[1 + k]: writer.framed(body.types[body.inputs[1 + k]], track) for k, track in tracks.items()}
    body = replace(body, types={**body.types, **types})
    if delay:
        body = _waiting(body, carried, delay)
        inputs.append(writer.age(node, first.count, delay))
    clean = min(track.clean for track in tracks.values())
    blame = next((track.blame for track in tracks.values() if track.blame), "")
    rows = Frames(0, first.length, first.count, delay, clean, None, blame)
    last = Whole((first.length + delay) // first.count - 1)
    results: list[Track] = [last] * carried + [rows] * (len(node.outputs) - carried)
    writer.write(node, inputs, {**node.attrs, "body": body, "count": first.count}, results)
    return True


def carries_all_state(graph: Graph) -> bool:
    """Whether all state is what loops carry: the stream goes on with it."""
    readers, makers = graph.consumers(), graph.producer()
    for state, value in graph.updates.items():
        nodes, maker = readers.get(state, ()), makers.get(value)
        if maker is None or nodes != (maker,) or maker.op != "loop" or maker.inputs.count(state) != 1:
            return False
        place = maker.inputs.index(state)
        if place >= maker.attr("carried") or maker.outputs[place] != value:
            return False
    return True


def _by_turns(body: Graph, value: str, axis: int) -> bool:
    """Whether a turn reads its own frame of a value and no other."""
    readers = body.consumers().get(value, ())
    turn = body.inputs[0]
    return value not in body.outputs and all(
        n.op == "gather" and n.inputs == (value, turn) and n.attr("axis") % len(body.types[value].shape) == axis
        for n in readers
    )


def _last_needed(writer: Writer, node: Node, carried: int) -> bool:
    """Whether anyone reads what is carried after the last turn."""
    graph, last = writer.graph, set(node.outputs[:carried])
    return bool(last & {name for n in graph.nodes for name in n.inputs} or last & set(graph.outputs))


def _kept(writer: Writer, node: Node, place: int) -> str:
    """The state that a carried value is kept in."""
    value, result, memory = node.inputs[place], node.outputs[place], writer.memory
    if value in writer.graph.state:
        return value
    name = memory.name(f"{result}.state", writer.graph.types[value])
    memory.state[name] = writer.graph.consts[value].copy()
    memory.updates[name] = result
    return name


def _waiting(body: Graph, carried: int, delay: int) -> Graph:
    """The body with one more input, how many frames came before this step: nothing changes before the first of the sequence."""
    types, consts = dict(body.types), dict(body.consts)

    scalar, flag = TensorType((1,), "int32"), TensorType((1,), "bool")
    age, number = new_value(types, "age", scalar), new_value(types, "delay", scalar)
    consts[number] = np.array([delay], np.int32)
    place, begun = new_value(types, "place", scalar), new_value(types, "begun", flag)
    nodes = [
        Node("add", (body.inputs[0], age), (place,), {"activation": "", "rounding": Rounding.DOUBLE}),
        Node("greater_equal", (place, number), (begun,), {"rounding": Rounding.DOUBLE}),
    ]
    outputs = list(body.outputs)
    for k in range(carried):
        old = body.inputs[1 + k]
        outputs[k] = new_value(types, f"{body.outputs[k]}.kept", types[old])
        nodes.append(Node("where", (begun, body.outputs[k], old), (outputs[k],)))
    return replace(
        body,
        inputs=(*body.inputs, age),
        outputs=tuple(outputs),
        nodes=(*body.nodes, *nodes),
        types=types,
        consts=consts,
    )
