"""From a network over a whole sequence to one that takes frames: rules of operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from microc.errors import UnsupportedError, UsageError
from microc.graph.ir import Graph, Node, TensorType, new_value
from microc.module import StreamedOutput, Streaming
from microc.ops import registry
from microc.ops.attributes import Rounding
from microc.transform.streaming_rewrite import LOOKAHEAD, WINDOW, Frames, HopTooShortError, Track, Whole, Writer, slide

# ---- Signals in a stream: frames and filters over samples. A step takes samples; frames and filtered samples come of
# it.


def frame(writer: Writer, node: Node) -> bool:
    """Windows over samples, each a frame of the result."""
    track = writer.data_frames(node)
    if track is None or track.axis != _axis(writer, node):
        return False
    return _slid(writer, node, track, node.attr("length"), node.attr("step"), 1)


def fir(writer: Writer, node: Node) -> bool:
    """Windows of as many samples as there are taps; every step of them makes as many samples as there are phases."""
    track = writer.data_frames(node)
    if track is None or track.axis != _axis(writer, node):
        return False
    phases, taps = writer.graph.types[node.inputs[1]].shape
    return _slid(writer, node, track, taps, node.attr("down"), phases)


def biquads(writer: Writer, node: Node) -> bool:
    """The state that the filter starts from becomes one of the graph. Samples before the first are zeros, which leave zeros."""
    track, constant = writer.data_frames(node), writer.graph.consts.get(node.inputs[2])
    if track is None or track.axis != _axis(writer, node) or constant is None or (track.delay > 0 and constant.any()):
        return False
    data = node.inputs[0]
    if track.delay > 0:
        data = writer.mask(node, data, track, 0.0)
    if track.delay < 0:
        data, track = writer.settled(node, data, 0)
    memory, kind = writer.memory, writer.graph.types[node.inputs[2]]
    state = memory.name(f"{node.outputs[0]}.state", kind)
    memory.state[state] = constant
    following = node.outputs[1] or memory.name(f"{node.outputs[0]}.next", kind)
    writer.types[following] = kind
    made = replace(node, outputs=(node.outputs[0], following))
    writer.write(made, (data, node.inputs[1], state), node.attrs, (replace(track, fill=None), None))
    memory.updates[state] = following
    return True


def _axis(writer: Writer, node: Node) -> int:
    return int(node.attr("axis")) % len(writer.graph.types[node.inputs[0]].shape)


def _slid(writer: Writer, node: Node, track: Frames, reach: int, stride: int, phases: int) -> bool:
    """The node over the samples of a step and those before, ``phases`` of its results for each of its steps.

    Where the whole run has a single frame, the next one begins a stride later all the same.
    """
    length = writer.graph.types[node.outputs[0]].shape[track.axis] // phases
    slid = slide(track, reach, stride, 0, max(length, 2), str(node.loc))
    data = writer.window(node, node.inputs[0], track, slid, None)
    made = replace(slid.track, length=length, clean=min(length, slid.track.clean))
    counts = {name: getattr(made, name) * phases for name in ("length", "count", "delay", "clean")}
    writer.write(node, (data, *node.inputs[1:]), node.attrs, (replace(made, **counts),))
    return True


# ---- Recurrent layers in a stream: a loop over time runs on the frames of a step, and what it carries is state of
# the graph.


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


# ---- How every operator treats a time axis. A rule writes a node for the frames of a step; it returns False where
# the node needs the whole sequence.

Rule = Callable[[Writer, Node], bool]


def apply(writer: Writer, node: Node) -> None:
    """Write a node for a step of the stream."""
    tracks = [writer.track(value) for value in node.inputs]
    if all(track is None for track in tracks):
        writer.nodes.append(node)
        return
    rules = (RULES[node.op],) if node.op in RULES else (_shared, _windowed)
    local = all(track is None or isinstance(track, Frames) for track in tracks)
    if not local or not any(rule(writer, node) for rule in rules):
        writer.write_whole(node)


def _same_pace(writer: Writer, node: Node, axes: Mapping[int, int], moves: bool) -> tuple[list[str], Frames] | None:
    """Operands that step along together, the earlier ones delayed; ``axes``: by position, their time axis in the result.

    None where they have different lengths or axes. What ``moves`` a single operand leaves frames that never come as they are.
    """
    found = {k: t for k in axes if (t := writer.frames(node.inputs[k])) is not None}
    first = min(found.values(), key=lambda t: t.clean)
    if moves and len(found) == 1:
        return list(node.inputs), first.along(*axes.values())
    if len({(axes[k], t.length, t.count) for k, t in found.items()}) != 1:
        return None
    delay = max(0, *(t.delay for t in found.values()))
    inputs = [writer.settled(node, v, delay)[0] if k in axes else v for k, v in enumerate(node.inputs)]
    return inputs, Frames(next(iter(axes.values())), first.length, first.count, delay, first.clean, None, first.blame)


def _shared(writer: Writer, node: Node) -> bool:
    """A node of which each frame is made of the same frame of its operands, all frames alike."""
    definition, types = registry.get(node.op), writer.graph.types
    axes, fixed = {}, []
    for k, (value, places) in enumerate(zip(node.inputs, definition.axis_map(node, types), strict=True)):
        track = writer.frames(value)
        if track is None:
            fixed += [(place, types[value].shape[axis]) for axis, place in enumerate(places or ())]
        elif places is None or (place := places[track.axis]) is None:
            return False
        else:
            axes[k] = place
    paced = _same_pace(writer, node, axes, definition.moves)
    if len(set(axes.values())) != 1 or paced is None or (paced[1].axis, paced[1].length) in fixed:
        return False
    inputs, track = paced
    extents = {
        name: (*value[: track.axis], track.count, *value[track.axis + 1 :])
        for name, value in node.attrs.items()
        if definition.attrs[name].kind == "extents" and isinstance(value, tuple)
    }
    writer.write(node, inputs, {**node.attrs, **extents}, (track,) * len(node.outputs))
    return True


# ---------------------------------------------------------------- places


def _slice(writer: Writer, node: Node) -> bool:
    """Frames that are left out in front come, in the stream, before the first."""
    track = writer.data_frames(node)
    if track is None:
        return False
    axis, length = track.axis, writer.graph.types[node.outputs[0]].shape[track.axis]
    begin, end, strides = (list(node.attr(name)) for name in ("begin", "end", "strides"))
    window = slide(track, 1, strides[axis], -begin[axis], length, str(node.loc))
    data = writer.window(node, node.inputs[0], track, window, None, strides[axis] if length > 1 else 1)
    begin[axis], strides[axis] = 0, 1
    end[axis] = writer.types[data].shape[axis]
    attrs = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
    writer.write(node, (data,), attrs, (window.track,))
    return True


def _pad(writer: Writer, node: Node) -> bool:
    """Frames in front never come: whoever reads them knows what they hold."""
    track = writer.data_frames(node)
    if track is None:
        return False
    pairs, value, inputs = list(node.attr("padding")), node.attr("value"), node.inputs
    before, behind = pairs[track.axis]
    if before and track.delay > 0:
        masked = writer.mask(node, node.inputs[0], track, value)
        inputs, track = (masked,), replace(track, fill=value)
    if before and track.delay < 0 and track.fill != value:
        data, track = writer.settled(node, node.inputs[0], 0)
        inputs = (data,)
    pairs[track.axis] = (0, 0)
    length, clean = track.length + before + behind, track.clean + before
    blame = str(node.loc) if track.complete and behind else track.blame
    fill = None if track.delay >= before else value if before else track.fill
    padded = Frames(track.axis, length, track.count, track.delay - before, clean, fill, blame)
    writer.write(node, inputs, {**node.attrs, "padding": tuple(pairs)}, (padded,))
    return True


# ---------------------------------------------------------------- windows


def _windowed(writer: Writer, node: Node) -> bool:
    """A layer whose window slides along height or width. What padding holds has to count, for a step cannot tell the beginning
    of a sequence."""
    track, give = writer.data_frames(node), registry.get(node.op).window
    window = give(node.attrs, [writer.graph.types[value] for value in node.inputs if value]) if give else None
    if track is None or window is None or track.axis not in (1, 2):
        return False
    place = track.axis - 1
    strides, padding, dilation = list(window.strides), list(window.padding), list(window.dilation)
    length, before, value = writer.graph.types[node.outputs[0]].shape[track.axis], padding[place], node.inputs[0]
    if before and window.pad_value is None:
        return False
    fill = float(window.pad_value or writer.zero(value))
    if before and track.fill is not None and track.fill != fill:
        value, track = writer.settled(node, value, 0)
    slid = slide(track, window.reach(place), strides[place], before, length, str(node.loc))
    taps = dilation[place] > 1 and slid.track.count == 1
    data = writer.window(node, value, track, slid, fill if before else None, dilation[place] if taps else 1)
    padding[place] = padding[place + 2] = 0
    if slid.track.count == 1 or length == 1:
        strides[place] = 1
    if taps:
        dilation[place] = 1
    changed = {"strides": tuple(strides), "padding": tuple(padding), "dilation": tuple(dilation)}
    attrs = {**node.attrs, **{name: value for name, value in changed.items() if name in node.attrs}}
    writer.write(node, (data, *node.inputs[1:]), attrs, (slid.track,))
    return True


def _along_time(rule: Rule) -> Rule:
    """The rule of a signal's operator, which works along another axis than time on each frame by itself."""
    return lambda writer, node: rule(writer, node) or _shared(writer, node)


RULES: Mapping[str, Rule] = {
    "biquads": biquads,
    "fir": _along_time(fir),
    "frame": _along_time(frame),
    "loop": loop,
    "pad": _pad,
    "slice": _slice,
}
"""Of operators that are neither made frame by frame nor of windows."""


# ---- From a network over a whole sequence to one that takes a frame, or a few, at a time: :func:`stream`.
#
# What the stream gives is, frame by frame, what the whole run gives. Every value has a :mod:`~microc.transform.streaming_rewrite`
# that says which frames of it a step has; layers whose windows slide along time get the frames before from what the stream keeps
# (:mod:`~microc.transform.streaming_rewrite`).

EVERY = "*"
ALLOWED = (WINDOW, LOOKAHEAD)


def stream(
    graph: Graph, axes: Mapping[str, int], hop: int = 0, allowed: frozenset[str] = frozenset()
) -> tuple[Graph, Streaming]:
    """The graph of a step, and how it streams, by the graph's names.

    ``axes``: the time axis of inputs, by name or ``*``; ``hop``: input frames in a step, 0: as few as strides allow. ``allowed``:
    ``window`` and ``lookahead`` (:data:`ALLOWED`).

    UsageError for inputs and axes that are not there, or a hop that strides do not divide; UnsupportedError, naming the layer,
    where a step cannot give what the whole run gives.
    """
    times = _times(graph, axes)
    if not carries_all_state(graph):
        hint = "compile it without --stream: it already takes the sequence piece by piece"
        raise UnsupportedError("the network keeps state from run to run", where=graph.name, hint=hint)
    least = 1
    while True:
        try:
            made = _written(graph, times, least, allowed)
            break
        except HopTooShortError as short:
            least, where = least * short.factor, short.where
    if hop in (0, least):
        return made
    if hop % least:
        hint = f"a multiple of {least}"
        raise UsageError(f"a step cannot take {hop} frames: strides go {least} at a time", where=where, hint=hint)
    return _written(graph, times, hop, allowed)


def _times(graph: Graph, axes: Mapping[str, int]) -> dict[str, int]:
    """The time axis of every input that has one."""
    for name in sorted(set(axes) - {EVERY, *graph.inputs}):
        raise UsageError(
            f"the network has no input {name!r}", where=graph.name, hint="inputs: " + ", ".join(graph.inputs)
        )
    found = {}
    for name in graph.inputs:
        axis, shape = axes.get(name, axes.get(EVERY)), graph.types[name].shape
        if axis is None:
            continue
        if not -len(shape) <= axis < len(shape):
            raise UsageError(
                f"input {name!r} of shape {list(shape)} has no axis {axis}", where=graph.name, hint="axes count from 0"
            )
        found[name] = axis % len(shape)
    return found


def _written(graph: Graph, times: Mapping[str, int], hop: int, allowed: frozenset[str]) -> tuple[Graph, Streaming]:
    """The graph for steps of ``hop`` frames."""
    tracks = {}
    for name, axis in times.items():
        length = graph.types[name].shape[axis]
        tracks[name] = Frames(axis, length, hop, 0, length)
    writer = Writer(graph, tracks, allowed)
    for node in graph.nodes:
        apply(writer, node)
    outputs = {name: _output(writer, graph, name) for name in graph.outputs}
    memory = writer.memory
    nodes = memory.finished(writer.nodes)
    state, updates = {**graph.state, **memory.state}, {**graph.updates, **memory.updates}
    made = Graph(graph.name, graph.inputs, graph.outputs, (), writer.types, writer.consts, state, updates)
    return made.with_nodes(nodes), Streaming(hop, times, outputs)


def _output(writer: Writer, graph: Graph, name: str) -> StreamedOutput:
    """What a step gives of an output."""
    track, node = writer.track(name), graph.producer().get(name)
    if track is None:
        return StreamedOutput(-1, 0, 0, 0)
    if not isinstance(track, Frames):
        return StreamedOutput(-1, 0, 0, track.delay)
    if node is not None and not track.complete and LOOKAHEAD not in writer.allowed:
        writer.looked_ahead(node, track)
    if node is not None and track.delay < 0:
        writer.refuse(
            node, f"puts {-track.delay} frames in front of output {name!r}", "leave the padding to the application"
        )
    return StreamedOutput(track.axis, track.count, track.delay, -(-track.delay // track.count))
