"""From a network over a whole sequence to one that takes a frame, or a few, at a time: :func:`stream`.

What the stream gives is, frame by frame, what the whole run gives. Every value has a :mod:`~microc.transform.streaming.track`
that says which frames of it a step has; layers whose windows slide along time get the frames before from what the stream keeps
(:mod:`~microc.transform.streaming.history`).
"""

from __future__ import annotations

from collections.abc import Mapping

from microc.errors import UnsupportedError, UsageError
from microc.graph.ir import Graph
from microc.module import StreamedOutput, Streaming
from microc.transform.streaming.recurrent import carries_all_state
from microc.transform.streaming.rewrite import LOOKAHEAD, WINDOW, Writer
from microc.transform.streaming.rules import apply
from microc.transform.streaming.track import Frames, HopTooShortError

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
