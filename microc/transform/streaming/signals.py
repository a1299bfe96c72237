"""Signals in a stream: frames and filters over samples. A step takes samples; frames and filtered samples come of it."""

from __future__ import annotations

from dataclasses import replace

from microc.graph.ir import Node
from microc.transform.streaming.rewrite import Writer
from microc.transform.streaming.track import Frames, slide


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
