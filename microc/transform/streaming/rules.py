"""How every operator treats a time axis. A rule writes a node for the frames of a step; it returns False where the node needs the
whole sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from microc.graph.ir import Node
from microc.ops import registry
from microc.transform.streaming import signals
from microc.transform.streaming.recurrent import loop
from microc.transform.streaming.rewrite import Writer
from microc.transform.streaming.track import Frames, slide

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
    "biquads": signals.biquads,
    "fir": _along_time(signals.fir),
    "frame": _along_time(signals.frame),
    "loop": loop,
    "pad": _pad,
    "slice": _slice,
}
"""Of operators that are neither made frame by frame nor of windows."""
